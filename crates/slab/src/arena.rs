//! The address space of all blocks: a reserved range, handed out in chunks of 2 MiB, the size of a huge
//! page.
//!
//! ```text
//! | chunk 0 | chunk 1 | ...                      reserved, made accessible in steps, populated when touched
//! | unit 0 | unit 1 | ... | unit 63 |            a chunk: units of 32 KiB
//! | run           | run  |   free    |           runs: consecutive units, blocks of equal size
//! ```
//!
//! The descriptions lie in two tables before the chunks: an entry of 64 bytes for each unit, of which a run
//! uses its first ([`Run`]), and an entry for each chunk ([`Chunk`]). So the address of a block leads to its
//! run by shifts and a single load, and walking the descriptions touches no block.
//!
//! Chunks that no heap needs wait in the arena. Their memory is resident until it is [given
//! back](purge), or they are taken again.

use std::cell::Cell;
use std::io;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicUsize, Ordering::*};

use parking_lot::Mutex;

use crate::Kind;
use crate::heap::{HEAPS_MAX, Heap};
use crate::large::{Large, PageBits};
use crate::list::{Links, List};
use crate::range::{self, Layout, Pages, Range, Sizes};
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

/// The begin of the range: everything that is not in a table. Parts that different threads write lie on lines
/// of their own.
#[repr(C)]
pub(crate) struct Header {
    free: Apart<Mutex<Free>>,
    /// Read between the requests of clients, and written with each chunk.
    counts: Apart<Counts>,
    pub(crate) large: Apart<LargeBlocks>,
    pub(crate) threads: Apart<Threads>,
}

/// A value on a pair of cache lines of its own.
#[repr(align(128))]
pub(crate) struct Apart<T>(T);

impl<T> std::ops::Deref for Apart<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// [`Free::fresh`], [`Free::taken`] and [`Free::idle`] for reading without the lock.
#[derive(Default)]
struct Counts {
    fresh: AtomicUsize,
    taken: AtomicUsize,
    idle: AtomicUsize,
}

pub(crate) struct LargeBlocks {
    pub(crate) places: Mutex<Large>,
    /// Bytes in large blocks, and bytes of the memory in which they lie.
    pub(crate) used: AtomicUsize,
    pub(crate) memory: AtomicUsize,
}

/// The threads' heaps, and the process.
pub(crate) struct Threads {
    /// Number of heaps that were made.
    pub(crate) heaps: AtomicUsize,
    /// The number of the first of the heaps without a thread.
    pub(crate) left: Mutex<Option<u32>>,
    /// The same for heaps that wait for a thread that compacts.
    pub(crate) lent: Mutex<Option<u32>>,
    /// Whether there are any in `left`.
    pub(crate) is_any_left: AtomicBool,
    /// The process that uses the memory.
    pub(crate) owner: AtomicU32,
}

impl Header {
    fn new() -> Header {
        let (used, memory) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Header {
            free: Apart(Mutex::new(Free::NONE)),
            counts: Apart(Counts::default()),
            large: Apart(LargeBlocks { places: Mutex::new(Large::new()), used, memory }),
            threads: Apart(Threads {
                heaps: AtomicUsize::new(0),
                left: Mutex::new(None),
                lent: Mutex::new(None),
                is_any_left: AtomicBool::new(false),
                owner: AtomicU32::new(std::process::id()),
            }),
        }
    }
}

/// The range and its tables.
pub(crate) struct Arena {
    range: Range,
    header: NonNull<Header>,
    heaps: NonNull<Heap>,
    base: NonNull<u8>,
    runs: NonNull<Run>,
    /// For each chunk whose blocks are being moved elsewhere, the number of the heap, plus 1.
    leaving: NonNull<AtomicU16>,
    chunks: NonNull<Chunk>,
    /// For each chunk: the pages of chunks of large blocks.
    pages: NonNull<PageBits>,
    extents: NonNull<u8>,
    /// Number of chunks that fit, and of extents.
    len: usize,
    /// False in a process that has mapped another's range and may not use it yet.
    is_own: AtomicBool,
}

// SAFETY: the range lives as long as the process; the right to use a part of it
// is the matter of the functions below.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

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
/// [`Arena::base`], [`Arena::runs`] and [`Arena::heaps`] for the fast paths, which run only after the arena
/// is there.
static BASE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static RUNS: AtomicPtr<Run> = AtomicPtr::new(std::ptr::null_mut());
static HEAPS: AtomicPtr<Heap> = AtomicPtr::new(std::ptr::null_mut());
static PAGES: OnceLock<Pages> = OnceLock::new();
static IS_SHARED: AtomicBool = AtomicBool::new(false);
static NOTIFY: OnceLock<fn()> = OnceLock::new();
/// Taken by threads that work on chunks in which no block lies, and by threads that leave their heaps behind.
/// So such work has ended when [`set_own`] returns.
static BACKGROUND: Mutex<()> = Mutex::new(());

/// The arena, unless this process must not use it yet.
pub(crate) fn arena() -> Option<&'static Arena> {
    any_arena().filter(|arena| arena.is_own.load(Relaxed))
}

fn any_arena() -> Option<&'static Arena> {
    ARENA.get_or_init(Arena::reserve).as_ref()
}

/// The arena, if there is one already and this process uses it; other than [`arena`], this makes none.
pub(crate) fn present() -> Option<&'static Arena> {
    ARENA.get()?.as_ref().filter(|arena| arena.is_own.load(Relaxed))
}

/// The layout of a range with so many chunks.
pub(crate) fn layout(len: usize) -> Layout {
    Layout::of(&Sizes {
        header: size_of::<Header>(),
        heaps: HEAPS_MAX * size_of::<Heap>(),
        runs: len * UNITS * size_of::<Run>(),
        leaving: len * size_of::<AtomicU16>(),
        chunks: len * size_of::<Chunk>(),
        pages: len * size_of::<PageBits>(),
        memory: len * CHUNK,
    })
}

/// Makes the arena's memory that of a file, if there is no arena yet.
#[cfg(not(miri))]
pub(crate) fn share() {
    IS_SHARED.store(true, Relaxed);
}

/// Maps the range of another process, with `len` chunks.
#[cfg(not(miri))]
pub(crate) fn attach(file: std::os::fd::OwnedFd, address: usize, len: usize) -> io::Result<()> {
    let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, text);
    if !len.is_multiple_of(STEP) || len > 1 << 32 {
        return Err(invalid("a number of chunks that no range has"));
    }
    let layout = layout(len);
    if rustix::fs::fstat(&file)?.st_size as u64 != layout.end as u64 {
        return Err(invalid("the file is not as long as the range"));
    }
    let range = Range::attached(file, address, layout.end)?;
    let arena = Arena::in_range(range, &layout, len, false);
    ARENA.set(Some(arena)).map_err(|_| invalid("this process has memory of its own already"))?;
    any_arena().expect("just set").publish_addresses();
    Ok(())
}

/// The process that uses the memory, also while this process does not.
#[cfg(not(miri))]
pub(crate) fn owner() -> Option<u32> {
    Some(ARENA.get()?.as_ref()?.header().threads.owner.load(SeqCst))
}

/// Maps the pages of an attached range that are resident.
#[cfg(not(miri))]
pub(crate) fn map_resident() {
    if let Some(Some(arena)) = ARENA.get() {
        arena.range.map_resident(layout(arena.len).end);
    }
}

/// Says that this process does not use its range until further notice.
#[cfg(not(miri))]
pub(crate) fn set_own(is_own: bool) {
    let _background = BACKGROUND.lock();
    if let Some(Some(arena)) = ARENA.get() {
        arena.is_own.store(is_own, Release);
    }
}

impl Arena {
    /// Reserves a range with chunks of four times the machine's memory, or of less where the system refuses
    /// this.
    fn reserve() -> Option<Arena> {
        let wanted = range::total() * 4;
        let sizes = std::iter::successors(Some(wanted), |size| Some(size / 2));
        sizes.take_while(|size| *size >= CHUNK * STEP).find_map(|size| Arena::of(size / CHUNK).ok())
    }

    fn of(len: usize) -> io::Result<Arena> {
        let len = len.next_multiple_of(STEP);
        let layout = layout(len);
        #[cfg(not(miri))]
        let shared = IS_SHARED.load(Relaxed).then(|| Range::shared(&layout).ok()).flatten();
        #[cfg(miri)]
        let shared = None;
        let range = match shared {
            Some(range) => range,
            None => Range::private(&layout)?,
        };
        // SAFETY: the range is new, and the header comes first.
        unsafe { range.start.cast::<Header>().write(Header::new()) };
        let arena = Arena::in_range(range, &layout, len, true);
        arena.publish_addresses();
        Ok(arena)
    }

    /// The arena in a range that has this layout.
    fn in_range(range: Range, layout: &Layout, len: usize, is_own: bool) -> Arena {
        // SAFETY: all tables lie inside the range.
        let at = |offset| unsafe { range.start.add(offset) };
        Arena {
            header: range.start.cast(),
            heaps: at(layout.heaps).cast(),
            base: at(layout.base),
            runs: at(layout.runs).cast(),
            leaving: at(layout.leaving).cast(),
            chunks: at(layout.chunks).cast(),
            pages: at(layout.pages).cast(),
            extents: at(layout.extents),
            len,
            is_own: AtomicBool::new(is_own),
            range,
        }
    }

    /// Stores the addresses for the fast paths.
    fn publish_addresses(&self) {
        BASE.store(self.base.as_ptr(), Release);
        RUNS.store(self.runs.as_ptr(), Release);
        HEAPS.store(self.heaps.as_ptr(), Release);
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the header was written when the range was made.
        unsafe { self.header.as_ref() }
    }

    /// Number of chunks, and of extents.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The pages of a chunk of large blocks, for the thread that has locked [`LargeBlocks::places`].
    pub(crate) fn pages(&self, chunk: u32) -> NonNull<PageBits> {
        assert!((chunk as usize) < self.len, "a chunk of the arena");
        // SAFETY: the table has `len` entries.
        unsafe { self.pages.add(chunk as usize) }
    }

    /// The extent of this number.
    pub(crate) fn extent(&self, number: usize) -> NonNull<u8> {
        assert!(number < self.len, "an extent of the arena");
        // SAFETY: there are `len` extents.
        unsafe { self.extents.add(number * CHUNK) }
    }

    /// Whether an extent is in use, for the thread that has locked [`LargeBlocks::places`].
    pub(crate) fn has_extent(&self, number: usize) -> bool {
        // SAFETY: as in `set_extent`.
        unsafe { self.pages(number as u32).as_ref() }.is_extent_used
    }

    pub(crate) fn set_extent(&self, number: usize, is_used: bool) {
        // SAFETY: zeros are a value, and the thread that has locked the table has no other reference.
        unsafe { self.pages(number as u32).as_mut() }.is_extent_used = is_used;
    }

    /// The number of the chunk or extent in which an address lies.
    pub(crate) fn place_of(&self, address: usize) -> Place {
        match address.checked_sub(self.extents.addr().get()) {
            Some(offset) => Place::Extent(offset / CHUNK),
            None => Place::Chunk(((address - self.base.addr().get()) / CHUNK) as u32),
        }
    }

    pub(crate) fn range(&self) -> &Range {
        &self.range
    }

    pub(crate) fn at(&self, chunk: usize) -> NonNull<u8> {
        assert!(chunk < self.len, "a chunk of the arena");
        // SAFETY: the range has `len` chunks.
        unsafe { self.base.add(chunk * CHUNK) }
    }
}

/// Where a large block lies.
pub(crate) enum Place {
    Chunk(u32),
    Extent(usize),
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

/// Keeps this process' use of the range from being ended meanwhile.
pub(crate) fn in_background() -> parking_lot::MutexGuard<'static, ()> {
    BACKGROUND.lock()
}

/// Takes a chunk for a heap; its units are free. `None`: the system has no more memory or addresses.
pub(crate) fn take() -> Option<u32> {
    let arena = arena()?;
    let chunk = take_one(arena, 1)?;
    if let Some(notify) = NOTIFY.get() {
        notify();
    }
    Some(chunk)
}

/// Takes a chunk for large blocks; see [`take`].
pub(crate) fn take_for_large(arena: &Arena) -> Option<u32> {
    take_one(arena, 0)
}

/// `taken` is the number of chunks by which those of heaps become more.
fn take_one(arena: &Arena, taken: usize) -> Option<u32> {
    let mut free = arena.header().free.lock();
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
    free.taken += taken;
    arena.publish(&free);
    Some(chunk)
}

fn fresh(arena: &Arena, free: &mut Free) -> Option<u32> {
    if free.fresh == free.accessible {
        if free.accessible + STEP > arena.len {
            return None;
        }
        arena.range.make_accessible(arena.at(free.accessible), STEP * CHUNK, pages()).ok()?;
        free.accessible += STEP;
    }
    free.fresh += 1;
    arena.header().counts.fresh.store(free.fresh, Relaxed);
    Some((free.fresh - 1) as u32)
}

/// Takes back a chunk without runs.
pub(crate) fn give_back(chunk: u32) {
    arena().expect("the chunk came from there").give_back(chunk, 1);
}

impl Arena {
    /// Takes back a chunk without blocks; see [`take_one`].
    fn give_back(&self, chunk: u32, taken: usize) {
        let mut free = self.header().free.lock();
        free.put_resident(chunk);
        free.taken -= taken;
        self.publish(&free);
    }

    /// Takes back a chunk without large blocks.
    pub(crate) fn give_back_large(&self, chunk: u32) {
        self.give_back(chunk, 0);
    }

    fn publish(&self, free: &Free) {
        self.header().counts.taken.store(free.taken, Relaxed);
        self.header().counts.idle.store(free.idle, Relaxed);
    }
}

/// Chunks of heaps, and chunks without an owner that are resident.
pub(crate) fn counts() -> (usize, usize) {
    let Some(arena) = present() else { return (0, 0) };
    let counts = &arena.header().counts;
    (counts.taken.load(Relaxed), counts.idle.load(Relaxed))
}

/// Gives the memory of chunks without an owner back to the system, of at most `limit` chunks; all but `kept`
/// chunks in all. Returns the number of chunks given back.
pub(crate) fn purge(limit: usize, kept: usize) -> usize {
    let _background = BACKGROUND.lock();
    let Some(arena) = arena() else { return 0 };
    for done in 0..limit {
        // Outside the lock: it may take a millisecond, and threads that need a chunk must not wait for it.
        let chunk = {
            let mut free = arena.header().free.lock();
            if free.idle <= kept {
                return done;
            }
            let Some(chunk) = free.take_oldest() else { return done };
            arena.publish(&free);
            chunk
        };
        arena.range.discard(arena.at(chunk as usize), CHUNK);
        arena.header().free.lock().purged.push(links, chunk);
    }
    limit
}

/// Populates a chunk without an owner, with a huge page if possible. Returns false if it has no
/// more memory or addresses.
pub(crate) fn populate() -> bool {
    let _background = BACKGROUND.lock();
    let Some(arena) = arena() else { return false };
    let chunk = {
        let mut free = arena.header().free.lock();
        free.purged.pop_newest(links).or_else(|| fresh(arena, &mut free))
    };
    let Some(chunk) = chunk else { return false };
    // Outside the lock, as it may take milliseconds.
    let is_there = arena.range.populate(arena.at(chunk as usize));
    let mut free = arena.header().free.lock();
    if is_there {
        free.put_resident(chunk);
    } else {
        free.purged.push(links, chunk);
    }
    arena.publish(&free);
    is_there
}

/// Takes the address of the chunk that has waited longest since it was taken without being populated.
pub(crate) fn next_loose() -> Option<usize> {
    let _background = BACKGROUND.lock();
    let arena = arena()?;
    let chunk = arena.header().free.lock().loose.pop_oldest(loose_links)?;
    Some(arena.at(chunk as usize).addr().get())
}

/// Puts a chunk from [`next_loose`] back.
pub(crate) fn keep_loose(address: usize) {
    let _background = BACKGROUND.lock();
    let Some(arena) = arena() else { return };
    let chunk = (address - arena.base.addr().get()) / CHUNK;
    arena.header().free.lock().loose.push(loose_links, chunk as u32);
}

/// The place of a heap, which is zeros until the heap is made. There is an arena.
#[inline]
pub(crate) fn place_of_heap(number: usize) -> *mut Heap {
    assert!(number < HEAPS_MAX, "fewer threads at a time than heaps");
    // SAFETY: the table has an entry for each.
    unsafe { HEAPS.load(Relaxed).add(number) }
}

/// All chunks that were ever taken have lower numbers than this.
pub(crate) fn chunks_end() -> u32 {
    present().map_or(0, |arena| arena.header().counts.fresh.load(Relaxed) as u32)
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
    let Some(arena) = present() else { return 0 };
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
