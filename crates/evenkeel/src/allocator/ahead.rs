//! Memory is asked for before it is needed: a thread of its own takes the huge pages into which the workers' data are about to
//! grow.
//!
//! The kernel finds and clears a page when it is first written to, and whoever writes waits. For a huge page that is 0.1 ms where
//! memory is at hand. It is milliseconds where memory is in pieces, since the kernel then moves others' pages first, and on virtual
//! machines whose host gives them memory as they touch it (measured: 4.2 ms for each 2 MiB, 0.08 the second time). So when the first
//! block has come out of a region ([`evenkeel_store::memory::regions`]), the next ones are populated; no more of them than a worker
//! fills meanwhile, since they are resident.
//!
//! Where that is follows from how the allocator takes memory: a thread fills its segment from the front, and its next segment is
//! the first free one of the first arena that has any.
//!
//! With several memory nodes nothing is done, since all data would come from the node of this thread.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::thread::Thread;

use evenkeel_store::memory::regions::{self, REGION};

/// What a thread takes of an arena at once, and its alignment.
const SEGMENT: usize = 32 << 20;

/// The smallest page.
const PAGE: usize = 4096;

/// Regions asked for ahead, and how much memory has to be in use for the second one: with little, a region is much.
const AHEAD: usize = 2;
const SECOND_FROM: usize = 256 << 20;

/// First blocks that have not been looked at. Where more come at once, the oldest are lost, and their threads wait for the kernel.
const FIRST_BLOCKS: usize = 64;
static FIRST: [AtomicUsize; FIRST_BLOCKS] = [const { AtomicUsize::new(0) }; FIRST_BLOCKS];
static NEXT: AtomicUsize = AtomicUsize::new(0);
static THREAD: OnceLock<Thread> = OnceLock::new();

unsafe extern "C" {
    /// The memory of an arena, of which the first has number 1; null where there is none.
    fn mi_arena_area(arena: std::ffi::c_int, size: *mut usize) -> *mut libc::c_void;
}

/// Starts the thread, which goes on as long as the process.
pub(crate) fn start() -> std::io::Result<()> {
    if has_several_nodes() {
        return Ok(());
    }
    let thread = std::thread::Builder::new().name("memory".into()).spawn(run)?;
    if THREAD.set(thread.thread().clone()).is_ok() {
        regions::tell_of_first_blocks(tell);
    }
    Ok(())
}

fn has_several_nodes() -> bool {
    let nodes = std::fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    nodes.contains(['-', ','])
}

/// Called by the thread that has got the block, within the allocator.
fn tell(address: usize) {
    FIRST[NEXT.fetch_add(1, Relaxed) % FIRST_BLOCKS].store(address, Release);
    if let Some(thread) = THREAD.get() {
        thread.unpark();
    }
}

fn run() {
    let mut ahead = Ahead::new(Kernel { may_reserve: overcommits() });
    loop {
        for first in &FIRST {
            let address = first.swap(0, Acquire);
            if address != 0 {
                ahead.follow(address, evenkeel_store::memory::used());
            }
        }
        // A block that has come meanwhile has left a token: then this does not wait.
        std::thread::park();
    }
}

/// Whether more address space may be taken than there is memory.
fn overcommits() -> bool {
    std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() != "2")
}

/// What is done with memory; tests have another one.
trait Memory {
    /// All arenas, in the order in which they are used.
    fn arenas(&self) -> Vec<Range<usize>>;
    /// Whether any page of a range is there.
    fn is_any_resident(&self, range: Range<usize>) -> bool;
    /// Whether a block has come from the region there.
    fn is_used(&self, address: usize) -> bool;
    /// Fills a range with pages; one that is there stays as it is.
    fn populate(&mut self, range: Range<usize>);
    /// Makes another arena beside so many, which the allocator uses when the others are full.
    fn reserve(&mut self, arenas: usize);
}

struct Ahead<M> {
    memory: M,
    /// The segment that was begun last before any thread had it.
    begun: Option<usize>,
}

impl<M: Memory> Ahead<M> {
    fn new(memory: M) -> Self {
        Ahead { memory, begun: None }
    }

    /// A thread has got the first block of the region around `address`, with so many bytes in use by all.
    fn follow(&mut self, address: usize, used: usize) {
        let arenas = self.memory.arenas();
        if !arenas.iter().any(|arena| arena.contains(&address)) {
            return; // a block of its own, from the system
        }
        let (region, segment) = (address / REGION * REGION, address / SEGMENT * SEGMENT);
        if region == segment && self.begun != Some(segment) {
            return; // most threads never need more than their first region
        }
        let ahead = if used >= SECOND_FROM { AHEAD } else { 1 };
        let (wanted, end) = (region + REGION..region + (1 + ahead) * REGION, segment + SEGMENT);
        // A segment with pages behind these is one that blocks come back to, and what is missing was given back.
        if wanted.end < end && self.memory.is_any_resident(wanted.end..end) {
            return;
        }
        self.memory.populate(wanted.start..wanted.end.min(end));
        if wanted.end > end {
            self.begin_next(arenas, wanted.end - end);
        }
    }

    /// Populates the beginning of the segment that will be taken next, unless the last one has not been yet.
    fn begin_next(&mut self, mut arenas: Vec<Range<usize>>, len: usize) {
        if self.begun.is_some_and(|begun| !self.memory.is_used(begun)) {
            return;
        }
        self.begun = self.free_segment(&arenas);
        if self.begun.is_none() {
            self.memory.reserve(arenas.len());
            arenas = self.memory.arenas();
            self.begun = self.free_segment(&arenas);
        }
        if let Some(segment) = self.begun {
            self.memory.populate(segment..segment + len);
        }
    }

    /// The first one that nobody has: who has one has written to its first page.
    fn free_segment(&self, arenas: &[Range<usize>]) -> Option<usize> {
        let segments = |arena: &Range<usize>| (arena.start..arena.end).step_by(SEGMENT);
        let is_free = |start: &usize| !self.memory.is_any_resident(*start..start + PAGE);
        arenas.iter().flat_map(segments).find(is_free)
    }
}

struct Kernel {
    may_reserve: bool,
}

impl Memory for Kernel {
    fn arenas(&self) -> Vec<Range<usize>> {
        let area = |number| {
            let mut size = 0;
            // SAFETY: writes the size; the allocator's arenas stay for ever.
            let start = unsafe { mi_arena_area(number, &mut size) } as usize;
            (start != 0).then_some(start..start + size)
        };
        (1..).map_while(area).collect()
    }

    fn is_any_resident(&self, range: Range<usize>) -> bool {
        let mut pages = vec![0u8; range.len().div_ceil(PAGE)];
        // SAFETY: writes a byte per page of the range, which is an arena's. Pages larger than `PAGE` need fewer.
        let result = unsafe {
            libc::mincore(range.start as *mut libc::c_void, range.len(), pages.as_mut_ptr().cast())
        };
        result == 0 && pages.iter().any(|page| page & 1 == 1)
    }

    fn is_used(&self, address: usize) -> bool {
        regions::is_known(address)
    }

    fn populate(&mut self, range: Range<usize>) {
        /// Of Linux 5.14 and later; others refuse it, and threads wait for their pages there.
        const MADV_POPULATE_WRITE: i32 = 23;
        // SAFETY: pages that are missing from the range, which is an arena's, appear with zeros, as they do when written to.
        unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), MADV_POPULATE_WRITE) };
    }

    /// As large as the allocator would make it: there are 132 at most, so every eighth is twice as large as those before.
    fn reserve(&mut self, arenas: usize) {
        let len = 1 << (30 + (arenas / 8).min(16));
        if self.may_reserve {
            // SAFETY: takes address space and gives it to the allocator. It asks for huge pages as its own arenas do.
            unsafe { libmimalloc_sys::mi_reserve_os_memory_ex(len, true, true, false, std::ptr::null_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Arenas of so many segments each, one behind the other; by number of the region, what is there and what is used.
    #[derive(Default)]
    struct Plain {
        arenas: Vec<usize>,
        resident: BTreeSet<usize>,
        used: BTreeSet<usize>,
    }

    const PER_SEGMENT: usize = SEGMENT / REGION;
    const LITTLE: usize = 1 << 20;
    const MUCH: usize = 1 << 30;

    impl Memory for Plain {
        fn arenas(&self) -> Vec<Range<usize>> {
            let mut start = 0;
            let area = |segments: &usize| {
                let area = start..start + segments * SEGMENT;
                start = area.end;
                area
            };
            self.arenas.iter().map(area).collect()
        }

        fn is_any_resident(&self, range: Range<usize>) -> bool {
            self.resident.range(range.start / REGION..range.end.div_ceil(REGION)).next().is_some()
        }

        fn is_used(&self, address: usize) -> bool {
            self.used.contains(&(address / REGION))
        }

        fn populate(&mut self, range: Range<usize>) {
            self.resident.extend(range.start / REGION..range.end.div_ceil(REGION));
        }

        fn reserve(&mut self, _: usize) {
            self.arenas.push(4);
        }
    }

    impl Ahead<Plain> {
        /// A thread takes its first block of a region; whether it had to wait for the kernel.
        fn take(&mut self, region: usize, used: usize) -> bool {
            let waits = self.memory.resident.insert(region);
            self.memory.used.insert(region);
            self.follow(region * REGION + 64, used);
            waits
        }
    }

    fn of(segments: usize) -> Ahead<Plain> {
        Ahead::new(Plain { arenas: vec![segments], ..Plain::default() })
    }

    #[test]
    fn who_fills_memory_waits_at_its_beginning_alone() {
        for used in [LITTLE, MUCH] {
            let mut ahead = of(2);
            let waits: Vec<usize> =
                (0..20 * PER_SEGMENT).filter(|region| ahead.take(*region, used)).collect();
            assert_eq!(waits, [0, 1]);
            assert_eq!(ahead.memory.arenas, [2, 4, 4, 4, 4, 4], "the last was made before it was needed");
        }
    }

    #[test]
    fn little_is_asked_for_where_there_is_little() {
        let mut ahead = of(2);
        ahead.take(0, LITTLE);
        assert_eq!(ahead.memory.resident.len(), 1);
        ahead.take(1, LITTLE);
        assert_eq!(ahead.memory.resident.len(), 3);
        ahead.take(2, MUCH);
        assert_eq!(ahead.memory.resident.len(), 5);
    }

    #[test]
    fn two_threads_get_one_next_segment_at_a_time() {
        let mut ahead = of(8);
        let (one, other) = (0, PER_SEGMENT);
        for region in 0..PER_SEGMENT {
            ahead.take(one + region, MUCH);
            ahead.take(other + region, MUCH);
        }
        let resident = |segment: usize, ahead: &Ahead<Plain>| {
            ahead.memory.resident.range(segment * PER_SEGMENT..(segment + 1) * PER_SEGMENT).count()
        };
        assert_eq!((resident(2, &ahead), resident(3, &ahead)), (1, 0));
        assert!(!ahead.take(2 * PER_SEGMENT, MUCH));
        ahead.take(one + PER_SEGMENT - 1, MUCH);
        assert_eq!(resident(3, &ahead), 2);
    }

    #[test]
    fn what_was_given_back_in_the_middle_stays_with_the_system() {
        let mut ahead = of(4);
        (0..PER_SEGMENT).for_each(|region| _ = ahead.take(region, MUCH));
        for region in 3..8 {
            ahead.memory.resident.remove(&region);
        }
        let before = ahead.memory.resident.clone();
        ahead.follow(2 * REGION, MUCH);
        assert_eq!(ahead.memory.resident, before);
    }

    #[test]
    fn blocks_that_lie_elsewhere_are_passed_over() {
        let mut ahead = of(1);
        ahead.follow(SEGMENT + REGION, MUCH);
        assert!(ahead.memory.resident.is_empty());
    }
}
