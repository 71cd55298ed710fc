//! Memory is asked for before it is needed: a thread of its own takes the huge pages into which the workers' data are about to
//! grow.
//!
//! The kernel finds and clears a page when it is first written to, and whoever writes waits. For a huge page that is 0.1 ms where
//! memory is at hand. It is milliseconds where memory is in pieces, since the kernel then moves others' pages first, and on virtual
//! machines whose host gives them memory as they touch it (measured: 4.2 ms for each 2 MiB, 0.08 the second time). So when the first
//! block has come out of a region ([`evenkeel_store::memory::regions`]), the next ones are populated; no more of them than a worker
//! fills meanwhile, since they are resident.
//!
//! **Who comes first takes small pages.** Only what is populated here, or has been filled, is of huge pages: elsewhere workers' first
//! writes get pages of 4 KiB, so that one that outruns this thread, or is at the beginning of its memory, waits for those (8 us each
//! on such a machine) and not for 2 MiB; and a process with little in it does not take 2 MiB for each of its threads. When such a region
//! has been filled, and there is enough in use, its pages are gathered into a huge one.
//!
//! Where that is follows from how the allocator takes memory: a thread fills its segment from the front, and its next segment is
//! the first free one of the first arena that has any. It may be wrong, and then a worker takes small pages.
//!
//! With several memory nodes nothing is done, since all data would come from the node of this thread: there, and where the kernel
//! cannot do it, workers take huge pages themselves.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::thread::Thread;

use evenkeel_store::memory::regions::{self, REGION};

/// What a thread takes of an arena at once, and its alignment.
const SEGMENT: usize = 32 << 20;

/// The smallest page.
const PAGE: usize = 4096;

/// So many of them make it worth to have a huge page instead, which has all.
const FILLED: usize = REGION / PAGE * 7 / 8;

/// Regions asked for ahead at most. With little in use, a region for each worker is much: so much has to be in use for the first
/// one, per worker, and for the second, per worker and in all.
const AHEAD: usize = 2;
const FIRST_FROM: usize = 2 * REGION;
const SECOND_FROM: usize = 16 * REGION;
const SECOND_FROM_IN_ALL: usize = 256 << 20;

/// Segments that are populated at their beginning and that nobody has taken: more than one only where it was another one that was
/// taken next.
const BEGUN_MAX: usize = 4;

/// Regions of small pages that may be gathered later: the oldest are left as they are, where more come.
const LOOSE_MAX: usize = 256;

/// First blocks that have not been looked at. Where more come at once, the oldest are lost, and their threads take small pages.
const FIRST_BLOCKS: usize = 64;
static FIRST: [AtomicUsize; FIRST_BLOCKS] = [const { AtomicUsize::new(0) }; FIRST_BLOCKS];
static NEXT: AtomicUsize = AtomicUsize::new(0);
static GAPS: AtomicBool = AtomicBool::new(false);
static THREAD: OnceLock<Thread> = OnceLock::new();

unsafe extern "C" {
    /// The memory of an arena, of which the first has number 1; null where there is none.
    fn mi_arena_area(arena: std::ffi::c_int, size: *mut usize) -> *mut libc::c_void;
}

/// Starts the thread, which goes on as long as the process, where the kernel can do what it needs. To be called before other threads are
/// started, which take their first pages.
pub(crate) fn start(workers: usize, huge_pages: bool) -> std::io::Result<()> {
    if has_several_nodes() || !can_ask() {
        return Ok(());
    }
    let mut kernel = Kernel::new(huge_pages);
    kernel.arenas();
    let thread =
        std::thread::Builder::new().name("memory".into()).spawn(move || run(Ahead::new(kernel, workers)))?;
    if THREAD.set(thread.thread().clone()).is_ok() {
        regions::tell_of_first_blocks(tell);
    }
    Ok(())
}

/// Memory may have gone back to the system: where, is found out.
pub(crate) fn look_for_gaps() {
    GAPS.store(true, Release);
    wake();
}

fn wake() {
    if let Some(thread) = THREAD.get() {
        thread.unpark();
    }
}

fn has_several_nodes() -> bool {
    let nodes = std::fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    nodes.contains(['-', ','])
}

/// Whether more address space may be taken than there is memory.
fn overcommits() -> bool {
    std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() != "2")
}

/// New memory of so many bytes, which stays mapped; `None` where there is no address space.
fn map(len: usize) -> Option<Range<usize>> {
    use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE};
    // SAFETY: takes nothing away from anybody.
    let memory = unsafe {
        let (access, kind) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0)
    };
    (memory != MAP_FAILED).then_some(memory as usize..memory as usize + len)
}

/// A new region.
fn map_region() -> Option<Range<usize>> {
    let start = map(2 * REGION)?.start.next_multiple_of(REGION);
    Some(start..start + REGION)
}

/// Tries with a page whether the kernel populates memory (Linux 5.14) and says which is there (a sandbox may say that all is).
fn can_ask() -> bool {
    let Some(page) = map(PAGE) else { return false };
    let can = resident(&page) == 0 && populate(&page) && resident(&page) == 1;
    // SAFETY: mapped above, and not used otherwise.
    unsafe { libc::munmap(page.start as *mut libc::c_void, PAGE) };
    can
}

/// Called by the thread that has got the block, within the allocator.
fn tell(address: usize) {
    FIRST[NEXT.fetch_add(1, Relaxed) % FIRST_BLOCKS].store(address, Release);
    wake();
}

fn run(mut ahead: Ahead<Kernel>) {
    loop {
        if GAPS.swap(false, Acquire) {
            ahead.look_for_gaps();
        }
        let mut is_calm = true;
        for first in &FIRST {
            let address = first.swap(0, Acquire);
            if address != 0 {
                is_calm = false;
                ahead.follow(address, evenkeel_store::memory::used());
            }
        }
        if !is_calm || ahead.gather_one(evenkeel_store::memory::used()) {
            continue;
        }
        // A block that has come meanwhile has left a token: then this does not wait.
        std::thread::park();
    }
}

/// What is done with memory; tests have another one.
trait Memory {
    /// All arenas, in the order in which they are used.
    fn arenas(&mut self) -> Vec<Range<usize>>;
    /// How many pages of a range are there.
    fn resident(&self, range: Range<usize>) -> usize;
    /// Whether a block has come from the region there.
    fn is_used(&self, address: usize) -> bool;
    /// No block of these regions counts as the first one any more.
    fn forget(&mut self, regions: Range<usize>);
    /// Fills a region with pages, a huge one if none is there; one that is there stays as it is.
    fn populate(&mut self, region: usize);
    /// Makes the pages of a region a huge one.
    fn gather(&mut self, region: usize);
    /// Makes another arena beside so many, which the allocator uses when the others are full.
    fn reserve(&mut self, arenas: usize);
}

struct Ahead<M> {
    memory: M,
    workers: usize,
    /// At most `BEGUN_MAX` segments, populated at the beginning before any thread had them.
    begun: Vec<usize>,
    /// Another segment was taken than one of these.
    was_wrong: bool,
    /// Another arena did not help.
    is_at_end: bool,
    /// Regions that are populated and that no block has come out of.
    ready: BTreeSet<usize>,
    /// Regions that blocks have come out of before they were populated, the oldest first; at most `LOOSE_MAX`.
    loose: VecDeque<usize>,
}

fn segments(arenas: &[Range<usize>]) -> impl Iterator<Item = usize> {
    arenas.iter().flat_map(|arena| (arena.start..arena.end).step_by(SEGMENT))
}

impl<M: Memory> Ahead<M> {
    fn new(memory: M, workers: usize) -> Self {
        let (begun, ready, loose) = Default::default();
        Ahead { memory, workers, begun, was_wrong: false, is_at_end: false, ready, loose }
    }

    /// A thread has got the first block of the region around `address`, with so many bytes in use by all.
    fn follow(&mut self, address: usize, used: usize) {
        let arenas = self.memory.arenas();
        if !arenas.iter().any(|arena| arena.contains(&address)) {
            return; // a block of its own, from the system
        }
        let (region, segment) = (address / REGION * REGION, address / SEGMENT * SEGMENT);
        if !self.ready.remove(&region) {
            if self.loose.len() == LOOSE_MAX {
                self.loose.pop_front();
            }
            self.loose.push_back(region);
        }
        if region == segment && !self.begun.contains(&segment) {
            self.was_wrong = true;
            return; // most threads never need more than their first region
        }
        let ahead = self.regions_ahead(used);
        let (wanted, end) = (region + REGION..region + (1 + ahead) * REGION, segment + SEGMENT);
        // A segment with pages behind these is one that blocks come back to, and what is missing was given back.
        if wanted.end < end && self.memory.resident(wanted.end..end) > 0 {
            return;
        }
        self.populate(wanted.start..wanted.end.min(end));
        if wanted.end > end {
            self.begin_next(arenas, wanted.end - end);
        }
    }

    /// One region after the other: the kernel keeps others from changing what is mapped meanwhile.
    fn populate(&mut self, range: Range<usize>) {
        for region in range.step_by(REGION) {
            // Who is there already has small pages, which are gathered when there are enough.
            if !self.ready.contains(&region) && !self.memory.is_used(region) {
                self.memory.populate(region);
                self.ready.insert(region);
            }
        }
    }

    /// Makes a region that has been filled with small pages a huge one, if there is one and enough is in use; whether there may be more.
    fn gather_one(&mut self, used: usize) -> bool {
        if self.regions_ahead(used) == 0 {
            return false;
        }
        let is_filled = |region: &usize| {
            let is_over = region % SEGMENT == SEGMENT - REGION || self.memory.is_used(region + REGION);
            is_over && self.memory.resident(*region..region + REGION) >= FILLED
        };
        let Some(at) = self.loose.iter().position(is_filled) else { return false };
        let region = self.loose.remove(at);
        region.into_iter().for_each(|region| self.memory.gather(region));
        region.is_some()
    }

    fn regions_ahead(&self, used: usize) -> usize {
        let share = used / self.workers;
        if share >= SECOND_FROM && used >= SECOND_FROM_IN_ALL { AHEAD } else { (share >= FIRST_FROM).into() }
    }

    /// Populates the beginning of the segment that will be taken next, unless that has been done.
    fn begin_next(&mut self, mut arenas: Vec<Range<usize>>, len: usize) {
        self.begun.retain(|begun| !self.memory.is_used(*begun));
        let next = segments(&arenas).find(|segment| !self.memory.is_used(*segment));
        if let Some(segment) = next.filter(|next| self.begun.contains(next) && !self.was_wrong) {
            return self.populate(segment..segment + len);
        }
        if self.begun.len() == BEGUN_MAX {
            return;
        }
        self.was_wrong = false;
        // Each worker may take one before this is asked again.
        let left = segments(&arenas).filter(|segment| !self.memory.is_used(*segment)).take(self.workers + 1);
        if left.count() <= self.workers && !self.is_at_end {
            self.memory.reserve(arenas.len());
            let before = arenas.len();
            arenas = self.memory.arenas();
            self.is_at_end = arenas.len() == before;
        }
        let is_free = |segment: &usize| !self.memory.is_used(*segment) && !self.is_begun(*segment);
        if let Some(segment) = segments(&arenas).find(is_free) {
            self.begun.push(segment);
            self.populate(segment..segment + len);
        }
    }

    /// Whether a segment has its first page: who has one has written to it.
    fn is_begun(&self, segment: usize) -> bool {
        self.memory.resident(segment..segment + PAGE) > 0
    }

    /// Segments of which nothing is left are filled from the front again.
    fn look_for_gaps(&mut self) {
        for segment in segments(&self.memory.arenas()) {
            if self.memory.is_used(segment) && !self.is_begun(segment) {
                self.memory.forget(segment..segment + SEGMENT);
            }
        }
    }
}

struct Kernel {
    may_reserve: bool,
    huge_pages: bool,
    /// A region in which there is nothing, for pages that are to be used once.
    own: Option<Range<usize>>,
    /// Arenas that huge pages have been asked for.
    advised: usize,
}

/// Pages of a range that are there; all where that cannot be asked.
fn resident(range: &Range<usize>) -> usize {
    let mut pages = vec![0u8; range.len().div_ceil(PAGE)];
    // SAFETY: writes a byte for each page of the range at most, which is mapped.
    let result =
        unsafe { libc::mincore(range.start as *mut libc::c_void, range.len(), pages.as_mut_ptr().cast()) };
    if result != 0 { pages.len() } else { pages.iter().filter(|page| *page & 1 == 1).count() }
}

/// Whether all of the range is there now.
fn populate(range: &Range<usize>) -> bool {
    const MADV_POPULATE_WRITE: i32 = 23;
    // SAFETY: pages that are missing from the range, which is mapped, appear with zeros, as they do when written to.
    unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), MADV_POPULATE_WRITE) == 0 }
}

const MADV_COLLAPSE: i32 = 25;

/// Says what is wished for memory that is mapped.
fn advise(range: &Range<usize>, advice: i32) -> bool {
    // SAFETY: of the advices that are given here, only one changes what can be read, and that is given for memory with nothing in it.
    unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), advice) == 0 }
}

impl Kernel {
    fn new(huge_pages: bool) -> Kernel {
        let own = map_region();
        if let Some(own) = &own {
            advise(own, libc::MADV_HUGEPAGE);
        }
        Kernel { may_reserve: overcommits(), huge_pages, own, advised: 0 }
    }
}

impl Memory for Kernel {
    fn arenas(&mut self) -> Vec<Range<usize>> {
        let area = |number| {
            let mut size = 0;
            // SAFETY: writes the size; the allocator's arenas stay for ever.
            let start = unsafe { mi_arena_area(number, &mut size) } as usize;
            (start != 0).then_some(start..start + size)
        };
        let arenas: Vec<Range<usize>> = (1..).map_while(area).collect();
        for arena in &arenas[self.advised.min(arenas.len())..] {
            advise(arena, libc::MADV_NOHUGEPAGE);
        }
        self.advised = arenas.len();
        arenas
    }

    fn resident(&self, range: Range<usize>) -> usize {
        resident(&range)
    }

    fn is_used(&self, address: usize) -> bool {
        regions::is_known(address)
    }

    fn forget(&mut self, regions: Range<usize>) {
        advise(&regions, libc::MADV_NOHUGEPAGE);
        regions::forget(regions);
    }

    fn populate(&mut self, region: usize) {
        let region = region..region + REGION;
        if self.huge_pages {
            advise(&region, libc::MADV_HUGEPAGE);
        }
        populate(&region);
    }

    /// From Linux 6.1 on; before, the kernel's own thread comes by at some time.
    ///
    /// The kernel copies what is there while nobody may change what is mapped, so all who need a page wait for that. It is to copy
    /// to a page that the machine has: one that has just been used and freed is what it takes.
    fn gather(&mut self, region: usize) {
        if self.huge_pages {
            let region = region..region + REGION;
            advise(&region, libc::MADV_HUGEPAGE);
            if let Some(own) = &self.own {
                populate(own);
                advise(own, libc::MADV_DONTNEED);
            }
            advise(&region, MADV_COLLAPSE);
        }
    }

    /// As large as the allocator would make it: there are 132 at most, so every eighth is twice as large as those before.
    fn reserve(&mut self, arenas: usize) {
        let len = 1 << (30 + (arenas / 8).min(16));
        if self.may_reserve {
            // SAFETY: takes address space and gives it to the allocator.
            unsafe {
                libmimalloc_sys::mi_reserve_os_memory_ex(len, true, false, false, std::ptr::null_mut())
            };
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
        huge: BTreeSet<usize>,
        used: BTreeSet<usize>,
        is_full: bool,
    }

    const PER_SEGMENT: usize = SEGMENT / REGION;
    const LITTLE: usize = 8 << 20;
    const MUCH: usize = 1 << 30;

    impl Memory for Plain {
        fn arenas(&mut self) -> Vec<Range<usize>> {
            let mut start = 0;
            let area = |segments: &usize| {
                let area = start..start + segments * SEGMENT;
                start = area.end;
                area
            };
            self.arenas.iter().map(area).collect()
        }

        fn resident(&self, range: Range<usize>) -> usize {
            let regions = self.resident.range(range.start / REGION..range.end.div_ceil(REGION)).count();
            regions * range.len().min(REGION) / PAGE
        }

        fn is_used(&self, address: usize) -> bool {
            self.used.contains(&(address / REGION))
        }

        fn forget(&mut self, regions: Range<usize>) {
            regions.step_by(REGION).for_each(|region| _ = self.used.remove(&(region / REGION)));
        }

        fn populate(&mut self, region: usize) {
            self.resident.insert(region / REGION);
            self.huge.insert(region / REGION);
        }

        fn gather(&mut self, region: usize) {
            assert!(self.huge.insert(region / REGION));
        }

        fn reserve(&mut self, _: usize) {
            if !self.is_full {
                self.arenas.push(4);
            }
        }
    }

    impl Ahead<Plain> {
        /// A thread takes its first block of a region; whether it had to wait for the kernel.
        fn take(&mut self, region: usize, used: usize) -> bool {
            let waits = self.memory.resident.insert(region);
            if self.memory.used.insert(region) {
                self.follow(region * REGION + 64, used);
            }
            waits
        }

        /// All of a segment; how often it had to wait.
        fn fill(&mut self, segment: usize) -> usize {
            let regions = segment * PER_SEGMENT..(segment + 1) * PER_SEGMENT;
            regions.filter(|region| self.take(*region, MUCH)).count()
        }

        fn resident_of(&self, segment: usize) -> usize {
            self.memory.resident.range(segment * PER_SEGMENT..(segment + 1) * PER_SEGMENT).count()
        }
    }

    fn of(segments: usize) -> Ahead<Plain> {
        Ahead::new(Plain { arenas: vec![segments], ..Plain::default() }, 1)
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
        ahead.take(1, FIRST_FROM - 1);
        assert_eq!(ahead.memory.resident.len(), 2);
        ahead.take(2, LITTLE);
        assert_eq!(ahead.memory.resident.len(), 4);
        ahead.take(3, MUCH);
        assert_eq!(ahead.memory.resident.len(), 6);
        ahead.workers = 128;
        ahead.take(4, MUCH);
        ahead.take(5, MUCH / 4);
        assert_eq!(ahead.memory.resident.len(), 6, "the other workers have as much");
    }

    #[test]
    fn two_threads_get_one_next_segment_at_a_time() {
        let mut ahead = of(8);
        for region in 0..PER_SEGMENT {
            ahead.take(region, MUCH);
            ahead.take(PER_SEGMENT + region, MUCH);
        }
        assert_eq!((ahead.resident_of(2), ahead.resident_of(3)), (2, 0));
        assert!(!ahead.take(2 * PER_SEGMENT, MUCH));
    }

    #[test]
    fn who_takes_another_segment_is_followed() {
        let mut ahead = of(64);
        ahead.fill(0);
        // Others than the one that was begun: blocks of several segments lie between.
        assert_eq!((3..20).map(|segment| ahead.fill(segment)).filter(|waits| *waits > 2).count(), 0);
        let begun = (0..64).filter(|segment| (1..=4).contains(&ahead.resident_of(*segment))).count();
        assert!(begun <= BEGUN_MAX, "no more is taken for nobody: {begun}");
    }

    #[test]
    fn what_went_back_is_taken_ahead_again() {
        let mut ahead = of(8);
        (0..4).for_each(|segment| _ = ahead.fill(segment));
        (0..3 * PER_SEGMENT).for_each(|region| _ = ahead.memory.resident.remove(&region));
        ahead.look_for_gaps();
        assert!(
            (3 * PER_SEGMENT..4 * PER_SEGMENT).all(|region| ahead.memory.used.contains(&region)),
            "is there"
        );
        assert_eq!((0..3).map(|segment| ahead.fill(segment)).collect::<Vec<_>>(), [2, 0, 0]);
    }

    #[test]
    fn what_was_given_back_in_the_middle_stays_with_the_system() {
        let mut ahead = of(4);
        ahead.fill(0);
        (3..8).for_each(|region| _ = ahead.memory.resident.remove(&region));
        let before = ahead.memory.resident.clone();
        ahead.look_for_gaps();
        assert!(!ahead.memory.used.contains(&PER_SEGMENT) && ahead.memory.used.contains(&3));
        ahead.follow(2 * REGION, MUCH);
        assert_eq!(ahead.memory.resident, before);
    }

    #[test]
    fn where_there_is_no_room_no_more_is_asked_for() {
        let mut ahead = of(2);
        ahead.memory.is_full = true;
        (0..2).for_each(|segment| _ = ahead.fill(segment));
        assert!(ahead.is_at_end && ahead.memory.arenas == [2]);
    }

    #[test]
    fn blocks_that_lie_elsewhere_are_passed_over() {
        let mut ahead = of(1);
        ahead.follow(SEGMENT + REGION, MUCH);
        assert!(ahead.memory.resident.is_empty());
    }

    #[test]
    fn small_pages_are_gathered_when_a_region_is_full_and_much_is_in_use() {
        let mut ahead = of(2);
        (0..3).for_each(|region| _ = ahead.take(region, FIRST_FROM - 1));
        assert!(!ahead.gather_one(FIRST_FROM - 1), "little is in use");
        assert!(ahead.gather_one(LITTLE) && ahead.gather_one(LITTLE) && !ahead.gather_one(LITTLE));
        assert_eq!(Vec::from_iter(&ahead.memory.huge), [&0, &1], "the third has just been begun");
        ahead.take(3, LITTLE);
        ahead.take(4, LITTLE);
        assert_eq!(Vec::from_iter(&ahead.memory.huge), [&0, &1, &4, &5], "the fourth was taken small");
        assert!(ahead.gather_one(LITTLE) && ahead.gather_one(LITTLE) && !ahead.gather_one(LITTLE));
        assert_eq!(Vec::from_iter(&ahead.memory.huge), [&0, &1, &2, &3, &4, &5]);
    }

    #[test]
    fn what_went_back_is_not_gathered() {
        let mut ahead = of(2);
        (0..3).for_each(|region| _ = ahead.take(region, LITTLE / 4));
        ahead.memory.resident.remove(&0);
        assert!(ahead.gather_one(LITTLE) && !ahead.gather_one(LITTLE));
        assert_eq!(Vec::from_iter(&ahead.memory.huge), [&1]);
    }

    #[test]
    fn a_populated_region_is_not_gathered() {
        let mut ahead = of(2);
        (0..2 * PER_SEGMENT).for_each(|region| _ = ahead.take(region, MUCH));
        while ahead.gather_one(MUCH) {} // what is huge already would panic
        assert_eq!(ahead.memory.huge.len(), 2 * PER_SEGMENT + AHEAD);
        assert!(ahead.loose.is_empty() && ahead.ready.len() == AHEAD);
    }

    #[test]
    fn this_kernel_can_be_asked() {
        assert!(can_ask(), "Linux 5.14 or later");
    }

    /// Pages of a range that are parts of huge ones, as the kernel counts them.
    fn huge_in(range: &Range<usize>) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("it can be read");
        let start = format!("{:x}-{:x} ", range.start, range.end);
        let of_range = maps.lines().skip_while(|line| !line.starts_with(&start)).skip(1);
        let huge = of_range.into_iter().find_map(|line| line.strip_prefix("AnonHugePages:"));
        let kib: usize = huge.and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0);
        kib * 1024 / PAGE
    }

    #[test]
    fn the_kernel_gathers_pages_and_keeps_what_is_in_them() {
        let range = map_region().expect("there is address space");
        let region = range.start;
        advise(&range, libc::MADV_NOHUGEPAGE);
        // SAFETY: mapped above, and nobody else's.
        let bytes = unsafe { std::slice::from_raw_parts_mut(region as *mut u8, REGION) };
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 37) as u8);
        assert_eq!((resident(&range), huge_in(&range)), (REGION / PAGE, 0));
        let mut kernel = Kernel::new(true);
        kernel.gather(region);
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == (at / 37) as u8));
        // Some kernels, older than 6.1 or without huge pages, and sandboxes, cannot.
        let can = advise(&range, MADV_COLLAPSE);
        assert_eq!(
            huge_in(&range),
            if can { REGION / PAGE } else { 0 },
            "{}",
            std::io::Error::last_os_error()
        );
    }
}
