//! Populates memory before it is needed: a thread of its own takes the huge pages into which the workers'
//! data are about to grow.
//!
//! The kernel finds and clears a page on the first write, and the writing thread waits. A huge page takes 0.1
//! ms where memory is at hand. It takes milliseconds where memory is fragmented, since the kernel first moves
//! pages, and on virtual machines whose host supplies memory on first touch (measured: 4.2 ms for each 2 MiB,
//! 0.08 the second time). So when the first block has come out of a region
//! ([`evenkeel_store::memory::regions`]), the next regions are populated, but no more of them than a worker
//! fills meanwhile, since they are resident.
//!
//! **The first thread in a region takes small pages.** Huge pages are enabled only as far as workers have
//! come and this thread has populated. So a worker that outruns this thread, or is at the beginning of its
//! memory, waits for 4 KiB (8 us on such a machine), not for 2 MiB, and a process with little data does not
//! take 2 MiB for each of its threads. Regions filled with small pages are collapsed into huge pages when
//! there is time. The kernel then copies the region and holds the lock of the memory map, so a thread that
//! faults waits. Therefore collapsing is rare, and goes to a page that the host has supplied already
//! ([`Memory::warm`]).
//!
//! The next region follows from the allocator's order: a thread fills its segment from the front, and its
//! next segment is the first free segment of the first arena that has any. The prediction may be wrong, and
//! then a worker takes small pages.
//!
//! Workers take huge pages themselves, in arenas of up to a gigabyte that the allocator aligns, in these
//! cases:
//!
//! - There are several memory nodes: all data would come from the node of this thread, which is not started.
//! - The kernel lacks the calls of this thread, or does not collapse pages (before Linux 6.1).
//! - The memory went back to the system and is taken again.
//! - The allocator had to make the arena itself, and this thread has not come to it yet.
//!
//! The inside of a block that spans several regions is left to the kernel's own thread, once blocks lie
//! behind it.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::sandbox::{self, Call};
use crate::threads;
use evenkeel_slab::Pages;
use evenkeel_store::memory::regions::{self, REGION};

mod chunks;
mod kernel;

use kernel::{Kernel, advise, can_ask, has_several_nodes, is_never_huge};

/// Size and alignment of a segment, the unit in which a thread takes memory from an arena.
const SEGMENT: usize = 32 << 20;

/// Size of a small page.
const PAGE: usize = 4096;

/// Resident small pages from which a region is worth a huge page, which is resident as a whole.
const FILLED: usize = REGION / PAGE * 7 / 8;

/// Time between two collapses, and regions that are examined in between.
const GATHERS_EACH: Duration = Duration::from_millis(5);
const LOOKS: usize = 64;

/// Most regions populated ahead of a thread. With little data, a region for each worker is much. So the first
/// region needs `FIRST_FROM` bytes in use per worker, the second `SECOND_FROM` per worker and
/// `SECOND_FROM_IN_ALL` in all.
const AHEAD: usize = 2;
const FIRST_FROM: usize = 2 * REGION;
const SECOND_FROM: usize = 16 * REGION;
const SECOND_FROM_IN_ALL: usize = 256 << 20;

/// Of the memory in use, one part in so many may wait in chunks.
const CHUNKS_SHARE: usize = 512;

/// Most segments that are populated at their beginning and not taken yet: more than one only where the
/// allocator took a segment other than the predicted.
const BEGUN_MAX: usize = 4;

/// Addresses of first blocks that the thread has not seen. When more come at once, the oldest are lost, and
/// their threads take small pages.
const FIRST_BLOCKS: usize = 256;
static FIRST: [AtomicUsize; FIRST_BLOCKS] = [const { AtomicUsize::new(0) }; FIRST_BLOCKS];
static NEXT: AtomicUsize = AtomicUsize::new(0);
static GAPS: AtomicBool = AtomicBool::new(false);
static THREAD: OnceLock<Thread> = OnceLock::new();

/// Starts the thread, if the kernel has the needed calls; it runs as long as the process. Call it before
/// other threads start and take their first pages.
///
/// `shares`: the store's blocks may lie in memory that another process can map. They do if such memory can
/// have the same pages.
pub fn start(workers: usize, huge_pages: bool, shares: bool) -> std::io::Result<()> {
    let huge_pages = huge_pages && !is_never_huge();
    if has_several_nodes() || !can_ask() {
        evenkeel_slab::set_pages(if huge_pages { Pages::Huge } else { Pages::Small });
        return Ok(());
    }
    let mut kernel = Kernel::new(huge_pages);
    evenkeel_slab::set_pages(match (huge_pages, kernel.gathers()) {
        (false, _) => Pages::Small,
        (true, false) => Pages::Huge,
        (true, true) => Pages::Populated,
    });
    if shares
        && sandbox::permits(Call::MemfdCreate)
        && (!huge_pages || kernel.gathers() && evenkeel_slab::can_share())
    {
        evenkeel_slab::share();
    }
    let arenas = kernel.arenas();
    let run = move || run(Ahead::new(kernel, workers));
    let thread = threads::named("memory").spawn(run).inspect_err(|_| {
        // Without the thread, nothing would make huge pages of the workers' memory.
        arenas.iter().for_each(|arena| _ = advise(arena, libc::MADV_HUGEPAGE));
    })?;
    if THREAD.set(thread.thread().clone()).is_ok() {
        regions::on_first_blocks(on_first_block);
        evenkeel_slab::on_taken(wake);
    }
    Ok(())
}

/// Makes the thread search for memory that has gone back to the system.
pub fn look_for_gaps() {
    GAPS.store(true, Release);
    wake();
}

fn wake() {
    if let Some(thread) = THREAD.get() {
        thread.unpark();
    }
}

/// Called within the allocator, by the thread that has got the block.
fn on_first_block(address: usize) {
    FIRST[NEXT.fetch_add(1, Relaxed) % FIRST_BLOCKS].store(address, Release);
    wake();
}

fn run(mut ahead: Ahead<Kernel>) {
    let mut next_gather = Instant::now();
    loop {
        if GAPS.swap(false, Acquire) {
            ahead.look_for_gaps();
        }
        let mut is_calm = true;
        for first in &FIRST {
            let address = first.swap(0, Acquire);
            if address != 0 {
                is_calm = false;
                let blocks = evenkeel_slab::stats().in_runs;
                ahead.follow(address, evenkeel_store::memory::used().saturating_sub(blocks));
            }
        }
        chunks::populate(&ahead.memory, ahead.chunks_ahead(evenkeel_store::memory::used()));
        let now = Instant::now();
        let may_gather = now >= next_gather;
        if may_gather {
            next_gather = now + GATHERS_EACH;
        }
        let is_done = may_gather && !ahead.gather_one() && !chunks::gather_one(&mut ahead.memory);
        // A block that has come meanwhile has left a token: then `park` returns at once.
        match is_done {
            _ if !is_calm => {}
            true => std::thread::park(),
            false => std::thread::park_timeout(next_gather.saturating_duration_since(Instant::now())),
        }
    }
}

/// Operations on memory; tests have their own.
trait Memory {
    /// Returns all arenas in the order of use.
    fn arenas(&mut self) -> Vec<Range<usize>>;
    /// Returns the number of resident pages of a range.
    fn resident(&self, range: Range<usize>) -> usize;
    /// Whether a block has come from the region at `address`.
    fn is_used(&self, address: usize) -> bool;
    /// Forgets the first blocks of these regions, so that the next block of each counts as the first.
    fn forget(&mut self, regions: Range<usize>);
    /// Makes the kernel's next huge page a page that the host has supplied.
    fn warm(&self);
    /// Enables huge pages for the range: the first write to an empty region takes one. Regions never opened
    /// have none.
    fn open(&mut self, range: Range<usize>);
    /// Disables huge pages for the range.
    fn close(&mut self, range: Range<usize>);
    /// Whether small pages can be collapsed.
    fn gathers(&self) -> bool;
    /// Populates a region, with a huge page if no page is resident; resident pages stay. Returns whether all
    /// are resident now.
    fn populate(&mut self, region: usize) -> bool;
    /// Collapses the pages of a region into a huge page and opens it. Returns whether that could be done now.
    fn gather(&mut self, region: usize) -> bool;
    /// Makes an arena beside the `arenas` existing arenas; the allocator uses it when these are full.
    fn reserve(&mut self, arenas: usize);
}

struct Ahead<M> {
    memory: M,
    workers: usize,
    /// At most `BEGUN_MAX` segments, populated at the beginning before any thread had them.
    begun: Vec<usize>,
    /// A thread took a segment that is not in `begun`.
    was_wrong: bool,
    /// The last attempt to make an arena failed.
    is_at_end: bool,
    /// Regions with a huge page, out of which no block has come yet.
    ready: BTreeSet<usize>,
    /// Regions in small pages, least recently examined first: a block came out of them before they had a huge
    /// page.
    loose: VecDeque<usize>,
    /// Regions of `loose` examined since the last first block.
    looked_at: usize,
}

fn segments(arenas: &[Range<usize>]) -> impl Iterator<Item = usize> {
    arenas.iter().flat_map(|arena| (arena.start..arena.end).step_by(SEGMENT))
}

impl<M: Memory> Ahead<M> {
    fn new(memory: M, workers: usize) -> Self {
        let (begun, ready, loose) = Default::default();
        Ahead { memory, workers, begun, was_wrong: false, is_at_end: false, ready, loose, looked_at: 0 }
    }

    /// Handles the first block, at `address`, of a region, with `used` bytes in use by all threads.
    fn follow(&mut self, address: usize, used: usize) {
        let arenas = self.memory.arenas();
        if !arenas.iter().any(|arena| arena.contains(&address)) {
            return; // a block of its own, from the system
        }
        let (region, segment) = (address / REGION * REGION, address / SEGMENT * SEGMENT);
        self.looked_at = 0;
        if !self.ready.remove(&region) && self.memory.gathers() {
            self.loose.push_back(region);
        }
        // The kernel's own thread collapses open regions, however little they hold: so only regions behind
        // the writer are open.
        if region > segment && !self.loose.is_empty() {
            self.memory.open(segment..region);
        }
        if region == segment && !self.begun.contains(&segment) {
            self.was_wrong = true;
            return; // most threads never need more than their first region
        }
        let ahead = self.regions_ahead(used);
        let (wanted, end) = (region + REGION..region + (1 + ahead) * REGION, segment + SEGMENT);
        // Resident pages behind the wanted regions show a segment that was full before; the missing pages
        // were given back.
        if wanted.end < end && self.memory.resident(wanted.end..end) > 0 {
            return;
        }
        self.populate(wanted.start..wanted.end.min(end));
        if wanted.end > end {
            self.begin_next(arenas, wanted.end - end);
        }
    }

    /// Populates regions one after the other, from the segment's beginning or its open part on: the kernel
    /// holds the lock of the memory map meanwhile.
    fn populate(&mut self, range: Range<usize>) {
        for region in range.step_by(REGION) {
            let was_empty = self.memory.resident(region..region + REGION) == 0;
            if was_empty {
                self.memory.warm();
                self.memory.open(region..region + REGION);
            }
            let is_there = self.memory.populate(region);
            if was_empty && !is_there {
                return self.memory.close(region..region + REGION);
            } else if was_empty && !self.memory.is_used(region) {
                self.ready.insert(region); // a thread that was faster has small pages already
            }
        }
    }

    /// Collapses a region that is filled with small pages. Returns whether there may be more.
    fn gather_one(&mut self) -> bool {
        for _ in 0..LOOKS {
            if self.looked_at >= self.loose.len() {
                return false;
            }
            let Some(region) = self.loose.pop_front() else { return false };
            if self.memory.resident(region..region + REGION) >= FILLED && self.memory.gather(region) {
                return true;
            }
            self.loose.push_back(region);
            self.looked_at += 1;
        }
        true
    }

    fn regions_ahead(&self, used: usize) -> usize {
        let share = used / self.workers;
        if share >= SECOND_FROM && used >= SECOND_FROM_IN_ALL { AHEAD } else { (share >= FIRST_FROM).into() }
    }

    /// Chunks that wait for any worker: several workers may need one at the same time. They are resident, so
    /// they are few beside the data.
    fn chunks_ahead(&self, used: usize) -> usize {
        let few = 1 + used / CHUNKS_SHARE / REGION;
        (self.regions_ahead(used) * self.workers.div_ceil(4)).min(few)
    }

    /// Populates the beginning of the segment that is predicted next, unless that has been done.
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
        // Each worker may take a segment before the next call.
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

    /// Whether a segment's first page is resident: its owner has written to it.
    fn is_begun(&self, segment: usize) -> bool {
        self.memory.resident(segment..segment + PAGE) > 0
    }

    /// Forgets segments without resident pages: they will be filled from the front again.
    fn look_for_gaps(&mut self) {
        let mut gone = BTreeSet::new();
        for segment in segments(&self.memory.arenas()) {
            if self.memory.is_used(segment) && !self.is_begun(segment) {
                self.memory.forget(segment..segment + SEGMENT);
                gone.insert(segment);
            }
        }
        let stays = |region: &usize| !gone.contains(&(region / SEGMENT * SEGMENT));
        self.ready.retain(stays);
        self.loose.retain(stays);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Arenas as numbers of segments, back to back; sets of region numbers, resident and used.
    #[derive(Default)]
    struct Plain {
        arenas: Vec<usize>,
        resident: BTreeSet<usize>,
        /// Regions that are only partly resident.
        partly: BTreeSet<usize>,
        open: BTreeSet<usize>,
        huge: BTreeSet<usize>,
        used: BTreeSet<usize>,
        is_full: bool,
        is_refused: bool,
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
            let regions = self.resident.range(range.start / REGION..range.end.div_ceil(REGION));
            let pages = |region: &usize| {
                range.len().min(REGION) / PAGE - usize::from(self.partly.contains(region)) * 100
            };
            regions.map(pages).sum()
        }

        fn is_used(&self, address: usize) -> bool {
            self.used.contains(&(address / REGION))
        }

        fn forget(&mut self, regions: Range<usize>) {
            for region in regions.step_by(REGION).map(|region| region / REGION) {
                for set in [&mut self.used, &mut self.open, &mut self.huge] {
                    set.remove(&region);
                }
            }
        }

        fn warm(&self) {}

        fn open(&mut self, range: Range<usize>) {
            let before = range.start / REGION;
            let is_island = !range.start.is_multiple_of(SEGMENT) && !self.used.contains(&(before - 1));
            assert!(!is_island || self.open.contains(&(before - 1)), "nobody has been before it");
            self.open.extend(range.start / REGION..range.end / REGION);
        }

        fn populate(&mut self, region: usize) -> bool {
            let region = region / REGION;
            assert!(self.resident.contains(&region) || self.open.contains(&region));
            if !self.is_refused && self.resident.insert(region) {
                self.huge.insert(region);
            }
            !self.is_refused
        }

        fn gather(&mut self, region: usize) -> bool {
            self.open.insert(region / REGION);
            assert!(self.huge.insert(region / REGION));
            true
        }

        fn close(&mut self, range: Range<usize>) {
            (range.start / REGION..range.end / REGION).for_each(|region| _ = self.open.remove(&region));
        }

        fn gathers(&self) -> bool {
            true
        }

        fn reserve(&mut self, _: usize) {
            if !self.is_full {
                self.arenas.push(4);
            }
        }
    }

    impl Ahead<Plain> {
        /// Takes a thread's first block of a region. Returns whether the thread had to wait for the kernel.
        fn take(&mut self, region: usize, used: usize) -> bool {
            let waits = self.memory.resident.insert(region);
            if self.memory.used.insert(region) {
                self.follow(region * REGION + 64, used);
            }
            waits
        }

        /// Takes all regions of a segment. Returns how often the thread had to wait.
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
        // Segments other than the predicted: blocks of several segments lie in between.
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

    impl Ahead<Plain> {
        /// Collapses until nothing is left to do. Returns the huge regions.
        fn gather_all(&mut self) -> Vec<usize> {
            while self.gather_one() {}
            self.memory.huge.iter().copied().collect()
        }
    }

    #[test]
    fn small_pages_are_gathered_when_a_region_has_been_filled() {
        let mut ahead = of(2);
        (0..3).for_each(|region| _ = ahead.take(region, FIRST_FROM - 1));
        ahead.memory.partly.insert(2);
        assert_eq!(ahead.gather_all(), [0, 1]);
        ahead.take(3, LITTLE);
        assert_eq!(ahead.gather_all(), [0, 1, 3, 4], "the fourth was taken small, the fifth ahead");
        ahead.memory.partly.clear();
        assert_eq!(ahead.gather_all(), [0, 1, 3, 4], "nobody came meanwhile");
        ahead.take(4, LITTLE);
        assert_eq!(ahead.gather_all(), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn many_that_are_not_full_do_not_keep_one_that_is() {
        let mut ahead = of(40);
        (0..40).for_each(|segment| {
            (0..4).for_each(|region| _ = ahead.take(segment * PER_SEGMENT + region, FIRST_FROM - 1));
        });
        ahead.memory.partly = (0..39 * PER_SEGMENT + 3).collect();
        assert!(ahead.gather_one(), "there are more to be looked at");
        assert_eq!(ahead.gather_all(), [39 * PER_SEGMENT + 3]);
        assert_eq!(ahead.loose.len(), 159);
        assert!(!ahead.gather_one());
    }

    #[test]
    fn who_needs_little_takes_no_huge_page() {
        let mut ahead = of(8);
        for segment in 0..4 {
            ahead.take(segment * PER_SEGMENT, LITTLE);
            ahead.memory.partly.insert(segment * PER_SEGMENT);
        }
        ahead.take(4 * PER_SEGMENT, MUCH);
        ahead.take(4 * PER_SEGMENT + 1, MUCH);
        assert_eq!(ahead.gather_all().first(), Some(&(4 * PER_SEGMENT)));
        assert_eq!(ahead.memory.open.first(), Some(&(4 * PER_SEGMENT)));
    }

    #[test]
    fn what_went_back_is_not_gathered() {
        let mut ahead = of(2);
        (0..3).for_each(|region| _ = ahead.take(region, LITTLE / 4));
        ahead.memory.resident.remove(&0);
        ahead.look_for_gaps();
        assert_eq!(ahead.gather_all(), [0; 0]);
        (0..3).for_each(|region| _ = ahead.take(region, LITTLE / 4));
        assert_eq!(ahead.gather_all(), [0, 1, 2]);
    }

    #[test]
    fn a_populated_region_is_not_gathered() {
        let mut ahead = of(2);
        (0..2 * PER_SEGMENT).for_each(|region| _ = ahead.take(region, MUCH));
        // Collapsing a huge region would panic.
        assert_eq!(ahead.gather_all().len(), 2 * PER_SEGMENT + AHEAD);
        assert!(ahead.loose.is_empty() && ahead.ready.len() == AHEAD);
    }

    #[test]
    fn a_block_that_spans_regions_leaves_no_island() {
        let mut ahead = of(2);
        ahead.take(0, LITTLE / 4);
        ahead.take(5, LITTLE / 4);
        ahead.take(6, LITTLE);
        assert_eq!(
            Vec::from_iter(&ahead.memory.open),
            [&0, &1, &2, &3, &4, &5, &7],
            "what is behind, and one ahead"
        );
    }

    #[test]
    fn what_was_populated_and_went_back_is_populated_again() {
        let mut ahead = of(2);
        (0..4).for_each(|region| _ = ahead.take(region, MUCH));
        ahead.memory.resident.remove(&5);
        ahead.take(4, MUCH);
        assert!(ahead.memory.resident.contains(&5));
    }

    #[test]
    fn what_could_not_be_populated_is_gathered() {
        let mut ahead = of(2);
        ahead.memory.is_refused = true;
        (0..4).for_each(|region| _ = ahead.take(region, MUCH));
        assert!(
            ahead.ready.is_empty() && !ahead.memory.open.contains(&4),
            "who comes next takes small pages"
        );
        assert_eq!(Vec::from_iter(&ahead.loose), [&0, &REGION, &(2 * REGION), &(3 * REGION)]);
    }
}
