//! The address space of all blocks: a reserved range, handed out in chunks of 2 MiB, the size of a huge
//! page.
//!
//! ```text
//! | chunk 0 | chunk 1 | ...                      reserved, made accessible in steps, populated when touched
//! | unit 0 | unit 1 | ... | unit 63 |            a chunk: units of 32 KiB
//! | run           | run  |   free    |           runs: consecutive units, blocks of equal size
//! ```
//!
//! The descriptions lie in two tables beside the range: an entry of 64 bytes for each unit, of which a run
//! uses its first ([`Run`]), and an entry for each chunk ([`Chunk`]). So the address of a block leads to its
//! run by shifts and a single load, and walking the descriptions touches no block.
//!
//! Chunks that no heap needs wait in the arena. Their memory is resident until it is [given
//! back](purge), or they are taken again.

use std::cell::Cell;
use std::io;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicUsize, Ordering::*};

use parking_lot::Mutex;

use crate::Kind;
use crate::heap::{HEAPS_MAX, Heap};
use crate::list::{Links, List};
use crate::run::Run;
use crate::units::Units;

/// Bytes of a chunk.
pub const CHUNK: usize = 2 << 20;
/// Bytes of a unit.
pub(crate) const UNIT: usize = 32 << 10;
/// Units of a chunk.
pub(crate) const UNITS: usize = CHUNK / UNIT;
const _: () = assert!(UNITS == u64::BITS as usize);

/// Chunks that become accessible together: each such step is a system call, and may split a mapping.
const STEP: usize = 32;

/// The description of a chunk, for its owner.
#[repr(C, align(64))]
pub(crate) struct Chunk {
    /// The number of the heap that took the chunk, plus 1; 0: the chunk belongs to no heap.
    pub(crate) owner: AtomicU32,
    pub(crate) kind: Cell<Kind>,
    /// Whether its blocks are being moved elsewhere: it gets no new runs.
    pub(crate) is_leaving: Cell<bool>,
    /// Units that belong to no run.
    pub(crate) free: Cell<Units>,
    /// The list of the heap's in which it is, if it has free units: the order of the smallest free block.
    pub(crate) list: Cell<Option<u8>>,
    /// In the heap's list, or in the arena's if the chunk belongs to no heap.
    links: Links,
    /// In [`Free::loose`], for whichever thread has locked it.
    loose_links: Links,
}

/// The range and its tables.
struct Arena {
    heaps: NonNull<Heap>,
    base: NonNull<u8>,
    runs: NonNull<Run>,
    /// For each chunk whose blocks are being moved elsewhere, the number of the heap, plus 1.
    leaving: NonNull<AtomicU16>,
    chunks: NonNull<Chunk>,
    /// Number of chunks that fit.
    len: usize,
    free: Mutex<Free>,
}

// SAFETY: these ranges live as long as the process; the right to use a part of them
// is the matter of the functions below.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// How chunks get their pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Small pages, when a thread first writes to them.
    Small,
    /// A huge page, when a thread first writes to it.
    Huge,
    /// A huge page by [`populate`], before a thread has the chunk. A chunk that is taken before that gets
    /// small pages when they are written to, and is [loose](next_loose).
    Populated,
}

/// Chunks that belong to no heap.
struct Free {
    /// Resident in full or in part.
    resident: List,
    /// Number of these.
    idle: usize,
    /// Not resident.
    purged: List,
    /// From here on, no chunk has ever been taken.
    fresh: usize,
    /// Up to here, memory is accessible.
    accessible: usize,
    /// Chunks of heaps.
    taken: usize,
    /// Chunks that were taken before they were populated.
    loose: List,
}

impl Free {
    const NONE: Free = Free {
        resident: List::EMPTY,
        idle: 0,
        purged: List::EMPTY,
        fresh: 0,
        accessible: 0,
        taken: 0,
        loose: List::EMPTY,
    };

    fn put_resident(&mut self, chunk: u32) {
        self.resident.push(links, chunk);
        self.idle += 1;
    }

    /// Takes the resident chunk that was used last, whose memory is in caches yet.
    fn take_newest(&mut self) -> Option<u32> {
        let chunk = self.resident.pop_newest(links)?;
        self.idle -= 1;
        Some(chunk)
    }

    fn take_oldest(&mut self) -> Option<u32> {
        let chunk = self.resident.pop_oldest(links)?;
        self.idle -= 1;
        Some(chunk)
    }
}

static ARENA: OnceLock<Option<Arena>> = OnceLock::new();
/// [`Arena::base`] and [`Arena::runs`] for the fast paths, which run only after the arena is there.
static BASE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static RUNS: AtomicPtr<Run> = AtomicPtr::new(std::ptr::null_mut());
/// [`Free::taken`] for reading without the lock.
static PAGES: OnceLock<Pages> = OnceLock::new();
static NOTIFY: OnceLock<fn()> = OnceLock::new();
/// [`Free::fresh`] for reading without the lock.
static FRESH: AtomicUsize = AtomicUsize::new(0);
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static IDLE: AtomicUsize = AtomicUsize::new(0);

fn arena() -> Option<&'static Arena> {
    ARENA.get_or_init(Arena::reserve).as_ref()
}

impl Arena {
    /// Reserves a range of four times the machine's memory, or of less where the system refuses this.
    fn reserve() -> Option<Arena> {
        let wanted = memory::total() * 4;
        let sizes = std::iter::successors(Some(wanted), |size| Some(size / 2));
        sizes.take_while(|size| *size >= CHUNK * STEP).find_map(|size| Arena::of(size / CHUNK).ok())
    }

    fn of(len: usize) -> io::Result<Arena> {
        let len = len.next_multiple_of(STEP);
        let runs = memory::table::<Run>(len * UNITS)?;
        let leaving = memory::table::<AtomicU16>(len)?;
        let chunks = memory::table::<Chunk>(len)?;
        let heaps = memory::table::<Heap>(HEAPS_MAX)?;
        let base = memory::range(len * CHUNK)?;
        BASE.store(base.as_ptr(), Release);
        RUNS.store(runs.as_ptr(), Release);
        Ok(Arena { heaps, base, runs, leaving, chunks, len, free: Mutex::new(Free::NONE) })
    }

    fn at(&self, chunk: usize) -> NonNull<u8> {
        assert!(chunk < self.len, "a chunk of the arena");
        // SAFETY: the range has `len` chunks.
        unsafe { self.base.add(chunk * CHUNK) }
    }
}

/// Sets how chunks get their pages. Only the first call counts, and only before the first block.
pub fn set_pages(pages: Pages) {
    let _ = PAGES.set(pages);
}

fn pages() -> Pages {
    *PAGES.get_or_init(|| Pages::Huge)
}

/// Sets the function that a thread calls when it has taken a chunk; it must take no block. Only the first
/// function set counts.
pub fn on_taken(notify: fn()) {
    let _ = NOTIFY.set(notify);
}

/// Takes a chunk for a heap; its units are free. `None`: the system has no more memory or addresses.
pub(crate) fn take() -> Option<u32> {
    let arena = arena()?;
    let chunk = {
        let mut free = arena.free.lock();
        let chunk = match free.take_newest().or_else(|| free.purged.pop_newest(links)) {
            Some(chunk) => chunk,
            None => {
                let chunk = fresh(arena, &mut free)?;
                if pages() == Pages::Populated {
                    free.loose.push(loose_links, chunk);
                }
                chunk
            }
        };
        free.taken += 1;
        publish(&free);
        chunk
    };
    if let Some(notify) = NOTIFY.get() {
        notify();
    }
    Some(chunk)
}

fn fresh(arena: &Arena, free: &mut Free) -> Option<u32> {
    if free.fresh == free.accessible {
        if free.accessible + STEP > arena.len {
            return None;
        }
        memory::make_accessible(arena.at(free.accessible), STEP * CHUNK, pages()).ok()?;
        free.accessible += STEP;
    }
    free.fresh += 1;
    FRESH.store(free.fresh, Relaxed);
    Some((free.fresh - 1) as u32)
}

/// Takes back a chunk without runs.
pub(crate) fn give_back(chunk: u32) {
    let mut free = arena().expect("the chunk came from there").free.lock();
    free.put_resident(chunk);
    free.taken -= 1;
    publish(&free);
}

fn publish(free: &Free) {
    TAKEN.store(free.taken, Relaxed);
    IDLE.store(free.idle, Relaxed);
}

/// Chunks of heaps, and chunks without an owner that are resident.
pub(crate) fn counts() -> (usize, usize) {
    (TAKEN.load(Relaxed), IDLE.load(Relaxed))
}

/// Gives the memory of chunks without an owner back to the system, of at most `limit` chunks; all but `kept`
/// chunks in all. Returns the number of chunks given back.
pub(crate) fn purge(limit: usize, kept: usize) -> usize {
    let Some(arena) = arena() else { return 0 };
    for done in 0..limit {
        // Outside the lock: it may take a millisecond, and threads that need a chunk must not wait for it.
        let chunk = {
            let mut free = arena.free.lock();
            if free.idle <= kept {
                return done;
            }
            let Some(chunk) = free.take_oldest() else { return done };
            publish(&free);
            chunk
        };
        memory::discard(arena.at(chunk as usize), CHUNK);
        arena.free.lock().purged.push(links, chunk);
    }
    limit
}

/// Populates a chunk without an owner, with a huge page if possible. Returns false if it has no
/// more memory or addresses.
pub(crate) fn populate() -> bool {
    let Some(arena) = arena() else { return false };
    let chunk = {
        let mut free = arena.free.lock();
        free.purged.pop_newest(links).or_else(|| fresh(arena, &mut free))
    };
    let Some(chunk) = chunk else { return false };
    // Outside the lock, as it may take milliseconds.
    let is_there = memory::populate(arena.at(chunk as usize), CHUNK);
    let mut free = arena.free.lock();
    if is_there {
        free.put_resident(chunk);
    } else {
        free.purged.push(links, chunk);
    }
    publish(&free);
    is_there
}

/// Takes the address of the chunk that has waited longest since it was taken without being populated.
pub(crate) fn next_loose() -> Option<usize> {
    let arena = arena()?;
    let chunk = arena.free.lock().loose.pop_oldest(loose_links)?;
    Some(arena.at(chunk as usize).addr().get())
}

/// Puts a chunk from [`next_loose`] back.
pub(crate) fn keep_loose(address: usize) {
    let Some(arena) = arena() else { return };
    let chunk = (address - arena.base.addr().get()) / CHUNK;
    arena.free.lock().loose.push(loose_links, chunk as u32);
}

/// The place of a heap. `None`: the system has no more addresses.
pub(crate) fn place_of_heap(number: usize) -> Option<*mut Heap> {
    assert!(number < HEAPS_MAX, "fewer threads at a time than heaps");
    // SAFETY: the table has an entry for each.
    Some(unsafe { arena()?.heaps.add(number).as_ptr() })
}

/// All chunks that were ever taken have lower numbers than this.
pub(crate) fn chunks_end() -> u32 {
    FRESH.load(Relaxed) as u32
}

/// The number of the heap that took a chunk, plus 1, or 0. The chunk's number is below [`chunks_end`].
pub(crate) fn owner_of(number: u32) -> u32 {
    let arena = arena().expect("it has chunks");
    assert!((number as usize) < arena.len, "a chunk of the arena");
    // SAFETY: the table has `len` entries, and this field may be read by any thread.
    unsafe { arena.chunks.add(number as usize).as_ref() }.owner.load(Relaxed)
}

/// Says that a heap, by its number plus 1, moves the blocks of a chunk elsewhere; 0: none does.
pub(crate) fn set_leaving(number: u32, heap: u16) {
    let arena = arena().expect("the chunk came from there");
    assert!((number as usize) < arena.len, "a chunk of the arena");
    // SAFETY: the table has `len` entries.
    unsafe { arena.leaving.add(number as usize).as_ref() }.store(heap, Relaxed);
}

/// The heap, by its number plus 1, that moves the blocks of the chunk with this address elsewhere; 0: none
/// does, or the address is not in a chunk.
#[inline]
pub(crate) fn leaving(address: usize) -> u16 {
    let Some(Some(arena)) = ARENA.get() else { return 0 };
    let chunk = address.wrapping_sub(arena.base.addr().get()) / CHUNK;
    if chunk >= arena.len {
        return 0;
    }
    // SAFETY: the table has `len` entries.
    unsafe { arena.leaving.add(chunk).as_ref() }.load(Relaxed)
}

/// The description of a chunk.
///
/// # Safety
/// The calling thread owns the chunk.
pub(crate) unsafe fn chunk(chunk: u32) -> &'static Chunk {
    let arena = arena().expect("the chunk came from there");
    assert!((chunk as usize) < arena.len, "a chunk of the arena");
    // SAFETY: the table has `len` entries. Another thread that has locked the arena uses `loose_links` alone.
    unsafe { arena.chunks.add(chunk as usize).as_ref() }
}

/// The links of a chunk that the calling thread owns, or that belongs to no heap, with the arena locked.
pub(crate) fn links(number: u32) -> &'static Links {
    // SAFETY: no other thread uses them.
    unsafe { &chunk(number).links }
}

/// The links of a chunk in the list of loose chunks, for a thread that has locked the arena.
fn loose_links(number: u32) -> &'static Links {
    // SAFETY: no other thread uses them, and the owner of the chunk uses its other fields.
    unsafe { &chunk(number).loose_links }
}

/// The run of a block, or of any address in a run.
///
/// # Safety
/// `block` lies in a run.
#[inline]
pub(crate) unsafe fn run_of(block: *const u8) -> *const Run {
    let unit = (block.addr() - BASE.load(Relaxed).addr()) / UNIT;
    // SAFETY: the table has an entry for each unit, and a run's later units say how far its first is.
    unsafe {
        let at = RUNS.load(Relaxed).add(unit);
        at.sub((*at).behind as usize)
    }
}

/// The run that begins in this unit of this chunk, and its first byte.
pub(crate) fn run_at(chunk: u32, unit: usize) -> (*mut Run, *mut u8) {
    assert!(unit < UNITS, "a unit of a chunk");
    let arena = arena().expect("the chunk came from there");
    let first = arena.at(chunk as usize);
    // SAFETY: the table has an entry for each unit, and a chunk has `UNITS`.
    unsafe { (arena.runs.add(chunk as usize * UNITS + unit).as_ptr(), first.add(unit * UNIT).as_ptr()) }
}

/// The number of a run, which is its name in lists.
pub(crate) fn number_of(run: &Run) -> u32 {
    let offset = std::ptr::from_ref(run).addr() - RUNS.load(Relaxed).addr();
    (offset / size_of::<Run>()) as u32
}

pub(crate) fn run_by_number(number: u32) -> &'static Run {
    let arena = arena().expect("the run is in there");
    assert!((number as usize) < arena.len * UNITS, "a run of the arena");
    // SAFETY: as just checked; an entry that is no run's is zeros, or holds a former run. It is written to
    // as a whole only while nobody knows its number.
    unsafe { arena.runs.add(number as usize).as_ref() }
}

/// The calls of the system.
#[cfg(not(miri))]
mod memory {
    use std::io;
    use std::ptr::{self, NonNull};

    use rustix::mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags};

    use super::{CHUNK, Pages};

    pub(super) fn total() -> usize {
        let pages = std::fs::read_to_string("/proc/meminfo").ok();
        let kb =
            pages.as_deref().and_then(|text| text.lines().next()?.split_whitespace().nth(1)?.parse().ok());
        kb.unwrap_or(16_usize << 20) * 1024
    }

    /// A table of zeros. Only its touched pages take memory.
    pub(super) fn table<T>(len: usize) -> io::Result<NonNull<T>> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping concerns no other.
        let at = unsafe { mm::mmap_anonymous(ptr::null_mut(), len * size_of::<T>(), protection, flags) }?;
        NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory.into())
    }

    /// A range of addresses without memory, aligned to chunks.
    pub(super) fn range(bytes: usize) -> io::Result<NonNull<u8>> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping concerns no other.
        let at = unsafe { mm::mmap_anonymous(ptr::null_mut(), bytes + CHUNK, ProtFlags::empty(), flags) }?;
        let skipped = at.addr().next_multiple_of(CHUNK) - at.addr();
        // SAFETY: the mapping is a chunk longer than is needed.
        NonNull::new(unsafe { at.cast::<u8>().add(skipped) }).ok_or(io::ErrorKind::OutOfMemory.into())
    }

    pub(super) fn make_accessible(at: NonNull<u8>, bytes: usize, pages: Pages) -> io::Result<()> {
        let flags = MprotectFlags::READ | MprotectFlags::WRITE;
        let advice = if pages == Pages::Huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: the range is the arena's, and nothing refers to it yet. Advice that the system does not
        // know changes nothing.
        unsafe {
            mm::mprotect(at.as_ptr().cast(), bytes, flags)?;
            let _ = mm::madvise(at.as_ptr().cast(), bytes, advice);
        }
        Ok(())
    }

    pub(super) fn discard(at: NonNull<u8>, bytes: usize) {
        // SAFETY: no run lies in the chunk, so nothing refers to its bytes. If the system refuses, they stay
        // resident.
        let _ = unsafe { mm::madvise(at.as_ptr().cast(), bytes, Advice::LinuxDontNeed) };
    }

    pub(super) fn populate(at: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: no run lies in the chunk, whose missing pages appear as zeros.
        unsafe {
            let _ = mm::madvise(at.as_ptr().cast(), bytes, Advice::LinuxHugepage);
            mm::madvise(at.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite).is_ok()
        }
    }
}

/// The same without system calls, for the interpreter.
#[cfg(miri)]
mod memory {
    use std::alloc::{Layout, alloc_zeroed};
    use std::io;
    use std::ptr::NonNull;

    use super::{CHUNK, Pages, STEP};

    pub(super) fn total() -> usize {
        CHUNK * STEP / 4
    }

    fn zeros(layout: Layout) -> io::Result<NonNull<u8>> {
        // SAFETY: no layout here is empty.
        NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(io::ErrorKind::OutOfMemory.into())
    }

    pub(super) fn table<T>(len: usize) -> io::Result<NonNull<T>> {
        Ok(zeros(Layout::array::<T>(len).expect("a small table"))?.cast())
    }

    pub(super) fn range(bytes: usize) -> io::Result<NonNull<u8>> {
        zeros(Layout::from_size_align(bytes, CHUNK).expect("a small range"))
    }

    pub(super) fn make_accessible(_: NonNull<u8>, _: usize, _: Pages) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn discard(_: NonNull<u8>, _: usize) {}

    pub(super) fn populate(_: NonNull<u8>, _: usize) -> bool {
        true
    }
}
