//! The range of addresses in which everything of the allocator lies, and the system calls on it.
//!
//! ```text
//! | header | heaps | runs | leaving | chunks | pages | chunks' memory ... | large extents ... |
//! ```
//!
//! The range is either private memory of the process, or the mapping of a memory file (`memfd`), which
//! another process may map at the same addresses: see [`crate::attach`]. So a pointer into the range means
//! the same in both, and nothing that describes the blocks lies outside of it.
//!
//! Only pages that were touched take memory, in both cases.

use std::io;
use std::ptr::NonNull;

use crate::CHUNK;

/// Where the tables begin, in bytes from the start of the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) heaps: usize,
    pub(crate) runs: usize,
    pub(crate) leaving: usize,
    pub(crate) chunks: usize,
    pub(crate) pages: usize,
    /// The first chunk.
    pub(crate) base: usize,
    /// The first large extent.
    pub(crate) extents: usize,
    pub(crate) end: usize,
}

/// The sizes of the tables, in bytes, in their order.
pub(crate) struct Sizes {
    pub(crate) header: usize,
    pub(crate) heaps: usize,
    pub(crate) runs: usize,
    pub(crate) leaving: usize,
    pub(crate) chunks: usize,
    pub(crate) pages: usize,
    /// Of all chunks; the extents have as much.
    pub(crate) memory: usize,
}

impl Layout {
    pub(crate) fn of(sizes: &Sizes) -> Layout {
        const PAGE: usize = 4096;
        let heaps = sizes.header.next_multiple_of(PAGE);
        let runs = (heaps + sizes.heaps).next_multiple_of(PAGE);
        let leaving = (runs + sizes.runs).next_multiple_of(PAGE);
        let chunks = (leaving + sizes.leaving).next_multiple_of(PAGE);
        let pages = (chunks + sizes.chunks).next_multiple_of(PAGE);
        let base = (pages + sizes.pages).next_multiple_of(CHUNK);
        let extents = base + sizes.memory;
        Layout { heaps, runs, leaving, chunks, pages, base, extents, end: extents + sizes.memory }
    }
}

/// How chunks get their pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Small pages, when a thread first writes to them.
    Small,
    /// A huge page, when a thread first writes to it.
    Huge,
    /// A huge page by [`crate::populate`], before a thread has the chunk. A chunk that is taken before that
    /// gets small pages when they are written to, and is [loose](crate::next_loose).
    Populated,
}

/// A range of zeros, aligned to chunks.
pub(crate) struct Range {
    pub(crate) start: NonNull<u8>,
    memory: system::Memory,
}

impl Range {
    /// A private range. Memory from `layout.base` on is accessible after [`Range::make_accessible`].
    pub(crate) fn private(layout: &Layout) -> io::Result<Range> {
        let start = system::private(layout.end)?;
        system::allow(start, layout.base)?;
        Ok(Range { start, memory: system::Memory::Private })
    }

    /// The range of a new memory file; all of it is accessible.
    #[cfg(not(miri))]
    pub(crate) fn shared(layout: &Layout) -> io::Result<Range> {
        let (start, file) = system::shared(layout.end)?;
        Ok(Range { start, memory: system::Memory::Shared(file) })
    }

    /// The range of a memory file of another process, at the same address.
    #[cfg(not(miri))]
    pub(crate) fn attached(file: std::os::fd::OwnedFd, address: usize, bytes: usize) -> io::Result<Range> {
        let start = system::attached(&file, address, bytes)?;
        Ok(Range { start, memory: system::Memory::Shared(file) })
    }

    /// The memory file, if the range is one's.
    #[cfg(not(miri))]
    pub(crate) fn file(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        match &self.memory {
            system::Memory::Shared(file) => Some(std::os::fd::AsFd::as_fd(file)),
            system::Memory::Private => None,
        }
    }

    /// Maps the resident pages of a memory file.
    #[cfg(not(miri))]
    pub(crate) fn map_resident(&self, bytes: usize) {
        if let system::Memory::Shared(file) = &self.memory {
            system::map_resident(file, self.start, bytes);
        }
    }

    /// Makes memory accessible, and says how it gets its pages.
    pub(crate) fn make_accessible(&self, at: NonNull<u8>, bytes: usize, pages: Pages) -> io::Result<()> {
        match &self.memory {
            system::Memory::Private => {
                system::allow(at, bytes)?;
                system::advise(at, bytes, pages == Pages::Huge);
            }
            #[cfg(not(miri))]
            system::Memory::Shared(_) if pages == Pages::Huge => system::advise(at, bytes, true),
            // Advice against huge pages would also forbid collapsing.
            #[cfg(not(miri))]
            system::Memory::Shared(_) => {}
        }
        Ok(())
    }

    /// Gives memory back to the system. No block lies in it. It reads as zeros afterwards, unless the system
    /// refuses, in which case it stays resident.
    pub(crate) fn discard(&self, at: NonNull<u8>, bytes: usize) {
        system::discard(&self.memory, at, bytes);
    }

    /// Maps pages of blocks again, after others in their chunk were discarded. When a huge page of a file is
    /// divided, the system forgets where its parts are mapped: each would cost a fault, and none would be
    /// among the resident pages of the process.
    pub(crate) fn map_again(&self, at: NonNull<u8>, bytes: usize) {
        system::map_again(&self.memory, at, bytes);
    }

    /// Populates a chunk in which no block lies, with a huge page if possible. Returns false if there is no
    /// more memory.
    pub(crate) fn populate(&self, at: NonNull<u8>) -> bool {
        system::populate(&self.memory, at)
    }
}

/// The calls of the system.
#[cfg(not(miri))]
mod system {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::ptr::{self, NonNull};

    use rustix::fs::{MemfdFlags, SeekFrom, ftruncate, memfd_create, seek};
    use rustix::mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags};
    use rustix::process::{Resource, getrlimit};

    use crate::CHUNK;

    pub(super) enum Memory {
        Private,
        Shared(OwnedFd),
    }

    /// Where the range of a memory file begins, if nothing else is there: far from the places at which the
    /// kernel puts programs, heaps, libraries and stacks, so that another process has it free, too.
    const ADDRESS: usize = 0x1000_0000_0000;

    fn aligned(at: *mut u8) -> io::Result<NonNull<u8>> {
        let skipped = at.addr().next_multiple_of(CHUNK) - at.addr();
        NonNull::new(at.wrapping_add(skipped)).ok_or(io::ErrorKind::OutOfMemory.into())
    }

    /// A range of addresses without memory, which nobody may access.
    pub(super) fn private(bytes: usize) -> io::Result<NonNull<u8>> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping concerns no other.
        let at = unsafe { mm::mmap_anonymous(ptr::null_mut(), bytes + CHUNK, ProtFlags::empty(), flags) }?;
        aligned(at.cast())
    }

    const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

    /// A memory file of `bytes`, mapped as a whole.
    pub(super) fn shared(bytes: usize) -> io::Result<(NonNull<u8>, OwnedFd)> {
        shared_at(Some(ADDRESS), bytes)
    }

    /// The address is a wish.
    fn shared_at(address: Option<usize>, bytes: usize) -> io::Result<(NonNull<u8>, OwnedFd)> {
        // Beyond a limit of the sizes of files, the system ends the process.
        let limit = getrlimit(Resource::Fsize).current;
        if limit.is_some_and(|limit| limit < bytes as u64) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let file = memfd_create(c"evenkeel-data", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, bytes as u64)?;
        let fixed = match address {
            Some(address) => map(&file, address, bytes, MapFlags::FIXED_NOREPLACE),
            None => Err(io::ErrorKind::AddrInUse.into()),
        };
        let start = fixed.or_else(|_| {
            // The kernel chooses; the first mapping finds room for an aligned one.
            let wide = private(bytes)?;
            // SAFETY: the mapping was just made, and nothing refers to it.
            unsafe { mm::munmap(wide.as_ptr().cast(), bytes) }?;
            map(&file, wide.addr().get(), bytes, MapFlags::FIXED_NOREPLACE)
        })?;
        Ok((start, file))
    }

    pub(super) fn attached(file: &OwnedFd, address: usize, bytes: usize) -> io::Result<NonNull<u8>> {
        if !address.is_multiple_of(CHUNK) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        map(file, address, bytes, MapFlags::FIXED_NOREPLACE)
    }

    fn map(file: &OwnedFd, address: usize, bytes: usize, how: MapFlags) -> io::Result<NonNull<u8>> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | how;
        let wanted = ptr::with_exposed_provenance_mut(address);
        // SAFETY: a new mapping concerns no other: the kernel replaces none with these flags.
        let at = unsafe { mm::mmap(wanted, bytes, READ_WRITE, flags, file, 0) }?;
        // A kernel that does not know the flag (before Linux 4.17) takes the address as a hint.
        if at.addr() != address {
            // SAFETY: the mapping was just made, and nothing refers to it.
            unsafe { mm::munmap(at, bytes) }?;
            return Err(io::ErrorKind::AddrInUse.into());
        }
        NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory.into())
    }

    pub(super) fn allow(at: NonNull<u8>, bytes: usize) -> io::Result<()> {
        // SAFETY: the range is the allocator's, and nothing refers to it yet.
        Ok(unsafe { mm::mprotect(at.as_ptr().cast(), bytes, MprotectFlags::READ | MprotectFlags::WRITE) }?)
    }

    pub(super) fn advise(at: NonNull<u8>, bytes: usize, huge: bool) {
        let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: advice about pages changes no byte. If the system does not know it, nothing changes.
        let _ = unsafe { mm::madvise(at.as_ptr().cast(), bytes, advice) };
    }

    pub(super) fn discard(memory: &Memory, at: NonNull<u8>, bytes: usize) {
        let advice = match memory {
            Memory::Private => Advice::LinuxDontNeed,
            Memory::Shared(_) => Advice::LinuxRemove,
        };
        // SAFETY: no block lies there, so nothing refers to the bytes.
        let _ = unsafe { mm::madvise(at.as_ptr().cast(), bytes, advice) };
    }

    pub(super) fn map_again(memory: &Memory, at: NonNull<u8>, bytes: usize) {
        if matches!(memory, Memory::Shared(_)) {
            // SAFETY: mapping pages changes no byte.
            let _ = unsafe { mm::madvise(at.as_ptr().cast(), bytes, Advice::LinuxPopulateRead) };
        }
    }

    pub(super) fn populate(memory: &Memory, at: NonNull<u8>) -> bool {
        let advise = |advice| {
            // SAFETY: no block lies in the chunk, whose missing pages appear as zeros.
            unsafe { mm::madvise(at.as_ptr().cast(), CHUNK, advice) }
        };
        match memory {
            Memory::Private => {
                let _ = advise(Advice::LinuxHugepage);
                advise(Advice::LinuxPopulateWrite).is_ok()
            }
            Memory::Shared(_) => {
                let is_there = advise(Advice::LinuxPopulateWrite).is_ok();
                collapse(at);
                is_there
            }
        }
    }

    pub(super) fn map_resident(file: &OwnedFd, start: NonNull<u8>, bytes: usize) {
        /// Bytes of a single call, for whose time the map of the process is locked.
        const STEP: u64 = 64 << 20;
        let mut at = 0;
        while let Ok(data) = seek(file, SeekFrom::Data(at)) {
            let hole = seek(file, SeekFrom::Hole(data)).unwrap_or(bytes as u64);
            at = hole.min(data + STEP);
            // SAFETY: the part lies in the range. Mapping pages changes no byte.
            let _ = unsafe {
                let part = start.as_ptr().add(data as usize);
                mm::madvise(part.cast(), (at - data) as usize, Advice::LinuxPopulateRead)
            };
        }
    }

    /// Makes a huge page of the small pages of a chunk, if the system does that (from Linux 6.1 on).
    fn collapse(at: NonNull<u8>) -> bool {
        const MADV_COLLAPSE: i32 = 25;
        // SAFETY: the bytes stay as they are.
        unsafe { libc::madvise(at.as_ptr().cast(), CHUNK, MADV_COLLAPSE) == 0 }
    }

    /// Returns true if a memory file can have huge pages.
    pub(super) fn can_collapse_shared() -> bool {
        let Ok((start, _file)) = shared_at(None, 2 * CHUNK) else { return false };
        // SAFETY: the mapping is this long, and was just made.
        let is_there =
            unsafe { mm::madvise(start.as_ptr().cast(), CHUNK, Advice::LinuxPopulateWrite) }.is_ok();
        let has_collapsed = is_there && collapse(start);
        // SAFETY: nothing refers to the mapping.
        let _ = unsafe { mm::munmap(start.as_ptr().cast(), 2 * CHUNK) };
        has_collapsed
    }
}

/// The same without system calls, for the interpreter.
#[cfg(miri)]
mod system {
    use std::alloc::{Layout, alloc_zeroed};
    use std::io;
    use std::ptr::NonNull;

    use crate::CHUNK;

    pub(super) enum Memory {
        Private,
    }

    pub(super) fn private(bytes: usize) -> io::Result<NonNull<u8>> {
        let layout = Layout::from_size_align(bytes, CHUNK).expect("a small range");
        // SAFETY: the layout is not empty.
        NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory.into())
    }

    pub(super) fn allow(_: NonNull<u8>, _: usize) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn advise(_: NonNull<u8>, _: usize, _: bool) {}

    pub(super) fn discard(_: &Memory, at: NonNull<u8>, bytes: usize) {
        // SAFETY: no block lies there.
        unsafe { at.write_bytes(0, bytes) };
    }

    pub(super) fn map_again(_: &Memory, _: NonNull<u8>, _: usize) {}

    pub(super) fn populate(_: &Memory, _: NonNull<u8>) -> bool {
        true
    }
}

/// Returns true if a memory file can have huge pages here.
#[cfg(not(miri))]
pub(crate) fn can_collapse_shared() -> bool {
    system::can_collapse_shared()
}

/// Bytes of the machine's memory.
#[cfg(not(miri))]
pub(crate) fn total() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").ok();
    let kb = text.as_deref().and_then(|text| text.lines().next()?.split_whitespace().nth(1)?.parse().ok());
    kb.unwrap_or(16_usize << 20) * 1024
}

#[cfg(miri)]
pub(crate) fn total() -> usize {
    CHUNK * 8
}
