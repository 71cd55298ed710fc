//! A heap: the runs from which a thread takes blocks.
//!
//! A thread gets a heap with its first block and leaves it behind when it ends. The next thread that begins
//! or needs a run takes it over: a thread that has loaded data ends, and the workers change the data. A
//! thread that has a heap already merges the runs with free blocks into its own ([`Heap::merge`]); the full
//! ones keep their owner's number, and come to the thread by that heap's notices. Heaps are never freed.

mod compaction;

use std::cell::{Cell, UnsafeCell};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};

use parking_lot::Mutex;

use crate::arena::{self, Arena, Chunk};
use crate::classes::{self, CLASSES};
use crate::list::List;
use crate::run::{NO_RUN, Noticed, Run, State};
use crate::units::{ORDERS, Units};
use crate::{KINDS, Kind};

pub(crate) use compaction::Compaction;

/// Most heaps, and thus threads that have blocks of their own at a time.
pub(crate) const HEAPS_MAX: usize = 1024;

/// Chunks with free units that are looked at for a new run, before another chunk is taken.
const LOOKS: usize = 16;

/// This share of the units of a heap may be in the first runs of classes that have a coarse class instead.
const FINE_SHARE: usize = 16;

struct Class {
    current: *const Run,
    /// The first and the last of the runs with free blocks.
    listed: u32,
    last: u32,
    /// Number of runs.
    runs: usize,
    /// Whether the class has runs of its own although it has a coarse class.
    is_fine: bool,
}

pub(crate) struct Heap {
    /// Whether the other fields have been written.
    is_made: AtomicBool,
    number: u32,
    /// Units in runs.
    units: AtomicUsize,
    noticed: Noticed,
    /// The number of the heap into which this was merged, plus 1, or 0.
    merged_into: AtomicU32,
    /// For its thread alone, which has no reference to it for longer than a call.
    own: UnsafeCell<Own>,
}

struct Own {
    /// By kind and class, in one row: see [`cell`].
    classes: [Class; CLASSES * KINDS],
    /// Chunks with free units, by kind and by the order of the smallest free block.
    open: [[List; ORDERS]; KINDS],
    /// Units of the first runs of classes that have a coarse class instead.
    fine: usize,
    /// Heaps of former threads, whose notices come to this thread: the first.
    merged: Option<&'static Heap>,
    /// The next heap in the list in which this is: of merged heaps, or of heaps without a thread.
    next: Option<&'static Heap>,
}

/// The place of a kind's class among all classes. A run knows its class by this number.
#[inline]
fn cell(kind: Kind, class: usize) -> usize {
    kind as usize * CLASSES + class
}

thread_local! {
    /// The calling thread's heap.
    static MINE: Cell<Option<&'static Heap>> = const { Cell::new(None) };
    /// Leaves the heap behind when the thread ends.
    static LEAVES: Leaves = const { Leaves };
}

struct Leaves;

/// The numbers of the heaps of threads that ended while this process did not use the memory.
static LEFT_LATE: Mutex<Vec<u32>> = Mutex::new(Vec::new());

impl Drop for Leaves {
    fn drop(&mut self) {
        // A thread that was joined may still be here: nobody else could wait for the end of this work.
        let _background = arena::in_background();
        if arena::present().is_none() {
            LEFT_LATE.lock().extend(MINE.take().map(|heap| heap.number));
            return;
        }
        if MINE.get().is_some() {
            Walk::new().go_on(|| false);
        }
        if let Some(heap) = MINE.take() {
            leave(heap);
        }
    }
}

/// Lets other threads have the heaps of threads that ended while this process did not use the memory.
pub(crate) fn leave_late() {
    LEFT_LATE.lock().drain(..).map(by_number).for_each(leave);
}

/// Lets another thread have the heap.
fn leave(heap: &Heap) {
    let threads = &arena::present().expect("it has heaps").header().threads;
    let mut left = threads.left.lock();
    push(&mut left, heap);
    threads.is_any_left.store(true, Relaxed);
}

/// Units of a heap that is worth lending: the heap that its thread has next begins with a run for each class.
const LENT_MIN: usize = 8 * arena::UNITS;

/// Lets a thread that compacts have the calling thread's heap.
pub(crate) fn lend() {
    if mine().is_some_and(|heap| heap.units.load(Relaxed) >= LENT_MIN)
        && let Some(arena) = arena::present()
        && arena.header().threads.heaps.load(Relaxed) < HEAPS_MAX / 2
        && let Some(heap) = MINE.take()
    {
        push(&mut arena.header().threads.lent.lock(), heap);
    }
}

fn push(list: &mut Option<u32>, heap: &Heap) {
    // SAFETY: the heap is the calling thread's until the list's lock is released.
    unsafe { heap.own() }.next = list.replace(heap.number).map(by_number);
}

fn pop(list: &mut Option<u32>) -> Option<&'static Heap> {
    let heap = list.take().map(by_number)?;
    // SAFETY: a heap without a thread is the matter of the thread that has locked the list.
    *list = unsafe { heap.own() }.next.take().map(|next| next.number);
    Some(heap)
}

/// Merges the heaps without a thread, and the heaps that threads have lent, into the calling thread's heap.
fn gather() {
    let Some(heap) = mine().or_else(adopt_to_stay) else { return };
    let threads = &arena::present().expect("it has a heap").header().threads;
    while let Some(other) = take_left().or_else(|| pop(&mut threads.lent.lock())) {
        // SAFETY: the heap is the calling thread's.
        heap.merge(unsafe { heap.own() }, other);
    }
}

fn take_left() -> Option<&'static Heap> {
    let threads = &arena::present()?.header().threads;
    if !threads.is_any_left.load(Relaxed) {
        return None;
    }
    let mut left = threads.left.lock();
    let heap = pop(&mut left);
    threads.is_any_left.store(left.is_some(), Relaxed);
    heap
}

#[inline]
fn mine() -> Option<&'static Heap> {
    MINE.try_with(Cell::get).unwrap_or(None)
}

/// The heap of this number, which was made before: whoever knows its number has it from its thread.
#[inline]
fn by_number(number: u32) -> &'static Heap {
    // SAFETY: heaps stay.
    unsafe { &*arena::place_of_heap(number as usize) }
}

/// All heaps that were made.
fn all(arena: &'static Arena) -> impl Iterator<Item = &'static Heap> {
    let count = arena.header().threads.heaps.load(Relaxed).min(HEAPS_MAX);
    let heaps = (0..count as u32).map(by_number);
    heaps.filter(|heap| heap.is_made.load(Acquire))
}

/// Returns a heap without a thread, or a new heap. `None`: the system has no more addresses.
fn adopt() -> Option<&'static Heap> {
    if let Some(heap) = take_left() {
        return Some(heap);
    }
    let number = arena::arena()?.header().threads.heaps.fetch_add(1, Relaxed);
    // SAFETY: nobody else has this number, and the place is zeros.
    unsafe { Heap::make(arena::place_of_heap(number), number as u32) };
    Some(by_number(number as u32))
}

/// Makes heaps without a thread of all heaps, whose threads were another process'. No thread has one yet.
pub(crate) fn leave_all(arena: &'static Arena) {
    let threads = &arena.header().threads;
    *threads.left.lock() = None;
    *threads.lent.lock() = None;
    // A merged heap is the matter of the heap into which it was merged.
    all(arena).filter(|heap| heap.merged_into.load(Relaxed) == 0).for_each(leave);
}

/// Takes a block of at least `size` bytes, at most [`crate::SIZE_MAX`]. `None`: the system has no more
/// memory.
#[inline]
pub(crate) fn take(kind: Kind, size: usize) -> Option<*mut u8> {
    let class = cell(kind, classes::class_of(size));
    let Some(heap) = mine() else { return take_without_heap(class) };
    // SAFETY: the heap is the calling thread's, and so are its runs.
    let block = unsafe {
        let current = (&(*heap.own.get()).classes)[class].current;
        current.as_ref().and_then(Run::take)
    };
    // SAFETY: as above.
    block.or_else(|| unsafe { heap.refill(class) })
}

#[cold]
fn take_without_heap(class: usize) -> Option<*mut u8> {
    if let Some(heap) = adopt_to_stay() {
        // SAFETY: the heap is the calling thread's now.
        return unsafe { heap.refill(class) };
    }
    let heap = adopt()?;
    // SAFETY: the heap is the calling thread's for now.
    let block = unsafe { heap.refill(class) };
    leave(heap);
    block
}

/// Gives the calling thread a heap. `None`: the thread is ending, or the system has no more addresses.
fn adopt_to_stay() -> Option<&'static Heap> {
    LEAVES.try_with(|_| ()).ok()?;
    let heap = adopt()?;
    MINE.try_with(|mine| mine.set(Some(heap))).expect("it is there as long as `LEAVES`");
    Some(heap)
}

/// Frees a block.
///
/// # Safety
/// The block comes from [`take`], and nobody uses it any more.
#[inline]
pub(crate) unsafe fn put_back(block: *mut u8) {
    // SAFETY: the block lies in a run, by the caller's promise; as long as it is in use, the run stays.
    let run = unsafe { &*arena::run_of(block) };
    let owner = run.owner.load(Relaxed);
    match mine() {
        Some(heap) if heap.number + 1 == owner => {
            // SAFETY: the block is the run's, which the calling thread owns.
            unsafe { run.put_back(block) };
            if run.is_unused() || run.state.get() == State::Full {
                // SAFETY: the heap is the calling thread's.
                unsafe { heap.follow(run) };
            }
        }
        _ => {
            // SAFETY: the block is the run's.
            if unsafe { run.put_back_from_afar(block) } {
                give_notice(run, owner - 1);
            }
        }
    }
}

/// Hands a run to its owner. The run is not dissolved until its owner has received it.
#[cold]
fn give_notice(run: &Run, heap: u32) {
    let number = arena::number_of(run);
    by_number(heap).noticed.push(number, |next| run.next_noticed.store(next, Relaxed));
}

/// Takes back the runs of this thread for which other threads have given notice.
#[inline]
pub(crate) fn settle() {
    if let Some(heap) = mine() {
        // SAFETY: the heap is the calling thread's.
        unsafe { heap.follow_noticed() };
    }
}

/// A walk through the runs of the calling thread that have free blocks: it dissolves a run whose blocks other
/// threads have all freed, and the current runs without a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    class: usize,
    /// The next run of the class, unless it is in another list by now; [`NO_RUN`]: the walk has not come to
    /// it.
    next: u32,
    /// Runs that may still be looked at: lists change, and are begun anew then.
    left: usize,
}

impl Walk {
    pub(crate) fn new() -> Walk {
        let units = mine().map_or(0, |heap| heap.units.load(Relaxed));
        Walk { class: 0, next: NO_RUN, left: units + CLASSES * KINDS }
    }

    /// Goes on until `is_over`, which is called after each run. Returns whether there is more.
    pub(crate) fn go_on(&mut self, mut is_over: impl FnMut() -> bool) -> bool {
        let Some(heap) = mine() else { return false };
        // SAFETY: the heap is the calling thread's. `is_over` takes no blocks, as its caller promises.
        let own = unsafe { heap.own() };
        while let Some(left) = take_left() {
            heap.merge(own, left);
        }
        heap.follow_all_noticed(own);
        while self.class < CLASSES * KINDS {
            let mut at = own.classes[self.class].listed;
            if self.next != NO_RUN && heap.is_listed(self.next, self.class) {
                at = self.next;
            }
            while at != NO_RUN && self.left > 0 {
                let run = arena::run_by_number(at);
                at = run.next.get();
                self.left -= 1;
                if run.is_unused() {
                    heap.follow_run(own, run);
                }
                if is_over() {
                    self.next = at;
                    if at == NO_RUN {
                        self.class += 1;
                    }
                    return true;
                }
            }
            // SAFETY: the run is the heap's.
            if let Some(run) = unsafe { own.classes[self.class].current.as_ref() }
                && run.is_unused()
            {
                own.classes[self.class].current = ptr::null();
                heap.dissolve(own, run);
            }
            (self.class, self.next) = (self.class + 1, NO_RUN);
        }
        false
    }
}

/// Bytes in runs.
pub(crate) fn bytes_in_runs() -> usize {
    let Some(arena) = arena::present() else { return 0 };
    all(arena).map(|heap| heap.units.load(Relaxed)).sum::<usize>() * arena::UNIT
}

/// All of these are for the heap's own thread.
impl Heap {
    /// # Safety
    /// `at` is the place of a heap that has not been made, and the caller alone makes it.
    unsafe fn make(at: *mut Heap, number: u32) {
        const CLASS: Class =
            Class { current: ptr::null(), listed: NO_RUN, last: NO_RUN, runs: 0, is_fine: false };
        let own = Own {
            classes: [CLASS; CLASSES * KINDS],
            open: [const { [List::EMPTY; ORDERS] }; KINDS],
            fine: 0,
            merged: None,
            next: None,
        };
        // SAFETY: nobody reads these fields before `is_made` is set.
        unsafe {
            (&raw mut (*at).number).write(number);
            (&raw mut (*at).noticed).write(Noticed::new());
            (&raw mut (*at).merged_into).write(AtomicU32::new(0));
            (&raw mut (*at).units).write(AtomicUsize::new(0));
            (&raw mut (*at).own).write(UnsafeCell::new(own));
            (*at).is_made.store(true, Release);
        }
    }

    /// # Safety
    /// The caller is the heap's thread, and has no other reference to this.
    #[expect(clippy::mut_from_ref, reason = "one thread, and one reference at a time")]
    unsafe fn own(&self) -> &mut Own {
        // SAFETY: by the caller's promise.
        unsafe { &mut *self.own.get() }
    }

    /// Takes a block when the current run of its class has none.
    #[cold]
    unsafe fn refill(&self, class: usize) -> Option<*mut u8> {
        // SAFETY: for this call, this is the only reference; the methods of `self` that follow get it.
        let own = unsafe { self.own() };
        let class = self.served_by(own, class);
        loop {
            // SAFETY: the run is this heap's.
            if let Some(run) = unsafe { own.classes[class].current.as_ref() } {
                if let Some(block) = run.take() {
                    return Some(block);
                }
                if run.collect() {
                    continue;
                }
                if !run.awaits_notice.get() {
                    if !run.remote.ask() {
                        continue; // something has come
                    }
                    run.awaits_notice.set(true);
                }
                run.state.set(State::Full);
                own.classes[class].current = ptr::null();
            }
            while let Some(heap) = take_left() {
                self.merge(own, heap);
            }
            self.follow_all_noticed(own);
            let next = match own.classes[class].listed {
                NO_RUN => self.make_run(own, class)?,
                listed => {
                    let run = arena::run_by_number(listed);
                    own.unlist(run);
                    run
                }
            };
            next.state.set(State::Current);
            next.owner.store(self.number + 1, Relaxed); // it may have been a merged heap's
            own.classes[class].current = next;
        }
    }

    /// Whether that is a run of this heap and class that has free blocks. Its entry may be another run's by
    /// now, or none's.
    fn is_listed(&self, number: u32, class: usize) -> bool {
        let run = arena::run_by_number(number);
        // With this heap's number, or that of a merged heap, the entry is that of a run of this heap.
        let owner = run.owner.load(Relaxed);
        let is_own = owner != 0 && self.is_heap_of(owner - 1);
        is_own && run.class as usize == class && run.state.get() == State::Listed
    }

    /// Lets others have the heaps from `first` on, in the list of merged heaps: none of their runs or chunks
    /// has their number any more.
    fn release(&self, own: &mut Own, first: u32) {
        let mut left = own.merged.take();
        let mut is_free = false;
        while let Some(heap) = left {
            is_free |= heap.number == first;
            // SAFETY: a merged heap is the matter of the thread that merged it.
            left = unsafe { heap.own() }.next.take();
            if is_free {
                self.follow_all_of(own, &heap.noticed);
                heap.merged_into.store(0, Relaxed);
                leave(heap);
            } else {
                // SAFETY: as above.
                unsafe { heap.own() }.next = own.merged.replace(heap);
            }
        }
    }

    /// Whether the heap of this number is this, or was merged into this.
    fn is_heap_of(&self, number: u32) -> bool {
        let mut number = number;
        while number != self.number {
            match by_number(number).merged_into.load(Relaxed) {
                0 => return false,
                into => number = into - 1,
            }
        }
        true
    }

    /// Takes over a heap without a thread: all its lists at once, in constant time. Its runs keep its number
    /// until they are looked at.
    fn merge(&self, own: &mut Own, heap: &'static Heap) {
        // SAFETY: nobody else has the heap, and it is another than this.
        let other = unsafe { heap.own() };
        let mut others = other.merged.take();
        (other.next, own.merged) = (own.merged, Some(heap));
        while let Some(heap) = others {
            // SAFETY: a merged heap is the matter of the thread that merged it, which is this thread now.
            let it = unsafe { heap.own() };
            others = std::mem::replace(&mut it.next, own.merged);
            own.merged = Some(heap);
        }
        heap.merged_into.store(self.number + 1, Relaxed);
        for class in 0..CLASSES * KINDS {
            let it = &mut other.classes[class];
            own.classes[class].runs += std::mem::take(&mut it.runs);
            if std::mem::take(&mut it.is_fine) && !own.classes[class].is_fine {
                own.classes[class].is_fine = true;
                own.fine += 1 << classes::ORDER[class % CLASSES];
            }
            // SAFETY: the run was the other heap's, and is this heap's now.
            let current = unsafe { std::mem::replace(&mut it.current, ptr::null()).as_ref() };
            let (first, last) = (it.listed, it.last);
            (it.listed, it.last) = (NO_RUN, NO_RUN);
            own.list_all(class, first, last);
            if let Some(run) = current {
                own.list(run);
            }
        }
        for (own, other) in own.open.iter_mut().flatten().zip(other.open.iter_mut().flatten()) {
            own.append(arena::links, std::mem::replace(other, List::EMPTY));
        }
        other.fine = 0;
        self.units.store(self.units.load(Relaxed) + heap.units.swap(0, Relaxed), Relaxed);
    }

    /// The class that serves a class: itself, or its coarse class.
    fn served_by(&self, own: &mut Own, class: usize) -> usize {
        let coarse = class - class % CLASSES + classes::coarse(class % CLASSES);
        if coarse == class || own.classes[class].is_fine {
            return class;
        }
        let units = 1 << classes::ORDER[class % CLASSES];
        if (own.fine + units) * FINE_SHARE > self.units.load(Relaxed) {
            return coarse;
        }
        own.fine += units;
        own.classes[class].is_fine = true;
        class
    }

    /// Follows a run of this heap whose last block has been freed, or which was full.
    #[cold]
    unsafe fn follow(&self, run: &Run) {
        // SAFETY: for this call, this is the only reference.
        self.follow_run(unsafe { self.own() }, run);
    }

    fn follow_run(&self, own: &mut Own, run: &Run) {
        match run.state.get() {
            State::Current | State::Over => {}
            State::Leaving | State::Full if run.is_unused() => drop(self.dissolve(own, run)),
            State::Full => own.list(run),
            State::Listed if run.is_unused() => {
                own.unlist(run);
                self.dissolve(own, run);
            }
            State::Leaving | State::Listed => {}
        }
    }

    /// Follows the runs for which other threads have given notice.
    #[inline]
    unsafe fn follow_noticed(&self) {
        // SAFETY: for this call, this is the only reference.
        let own = unsafe { self.own() };
        self.follow_all_noticed(own);
    }

    fn follow_all_noticed(&self, own: &mut Own) {
        self.follow_all_of(own, &self.noticed);
        let mut merged = own.merged;
        while let Some(heap) = merged {
            self.follow_all_of(own, &heap.noticed);
            // SAFETY: a merged heap is the matter of the thread that merged it.
            merged = unsafe { (*heap.own.get()).next };
        }
    }

    fn follow_all_of(&self, own: &mut Own, noticed: &Noticed) {
        let mut number = noticed.take();
        while number != NO_RUN {
            let run = arena::run_by_number(number);
            number = run.next_noticed.load(Relaxed);
            // A thread may have read the owner when it still was the former user of this heap's number, or of
            // a merged heap's.
            let owner = run.owner.load(Relaxed) - 1;
            if !self.is_heap_of(owner) {
                give_notice(run, owner);
                continue;
            }
            run.awaits_notice.set(false);
            run.owner.store(self.number + 1, Relaxed); // it may have been a merged heap's
            if run.state.get() == State::Over {
                self.dissolve(own, run);
            } else {
                run.collect();
                self.follow_run(own, run);
            }
        }
    }

    /// Gives a run's units back to its chunk. All its blocks have been freed, and it is in no list. Returns
    /// whether the chunk has gone back to the arena, and so may be another thread's by now.
    fn dissolve(&self, own: &mut Own, run: &Run) -> bool {
        if run.awaits_notice.get() && !run.remote.retract() {
            // A thread is about to hand the run over: the run must not be dissolved until then.
            run.state.set(State::Over);
            return false;
        }
        let order = run.order();
        let first = arena::number_of(run);
        let (number, unit) = (first / arena::UNITS as u32, first as usize % arena::UNITS);
        run.owner.store(0, Relaxed);
        let class = &mut own.classes[run.class as usize];
        class.runs -= 1;
        if class.runs == 0 && std::mem::take(&mut class.is_fine) {
            own.fine -= 1 << order;
        }
        self.units.store(self.units.load(Relaxed) - (1 << order), Relaxed);
        // SAFETY: the chunk is this heap's.
        let chunk = unsafe { arena::chunk(number) };
        chunk.free.set(chunk.free.get().with(unit, order));
        if chunk.free.get() != Units::ALL {
            own.file(number, chunk);
            return false;
        }
        own.close(number, chunk);
        if chunk.is_leaving.replace(false) {
            arena::set_leaving(number, 0);
        }
        chunk.owner.store(0, Relaxed);
        arena::give_back(number);
        true
    }

    /// Makes a run of this class. `None`: the system has no more memory.
    fn make_run(&self, own: &mut Own, class: usize) -> Option<&'static Run> {
        let (kind, order) = (Kind::ALL[class / CLASSES], classes::ORDER[class % CLASSES] as usize);
        let number = match own.find(kind, order) {
            Some(number) => number,
            None => {
                let number = arena::take()?;
                // SAFETY: the chunk is this heap's now.
                let chunk = unsafe { arena::chunk(number) };
                chunk.free.set(Units::ALL);
                chunk.list.set(None);
                chunk.kind.set(kind);
                chunk.owner.store(self.number + 1, Relaxed);
                number
            }
        };
        // SAFETY: the chunk is this heap's.
        let chunk = unsafe { arena::chunk(number) };
        let mut free = chunk.free.get();
        let unit = free.take(order).expect("that was looked for");
        chunk.free.set(free);
        own.file(number, chunk);
        let (run, base) = arena::run_at(number, unit);
        own.classes[class].runs += 1;
        self.units.store(self.units.load(Relaxed) + (1 << order), Relaxed);
        // SAFETY: the units were free, so their entries are no run's.
        Some(unsafe { Run::make(run, self.number, class, classes::size_of(class % CLASSES), base, order) })
    }
}

impl Own {
    fn list(&mut self, run: &Run) {
        let number = arena::number_of(run);
        run.state.set(State::Listed);
        run.previous.set(NO_RUN);
        run.next.set(NO_RUN);
        self.list_all(run.class as usize, number, number);
    }

    /// Puts linked runs, from the first to the last, before the listed runs of their class.
    fn list_all(&mut self, class: usize, first: u32, last: u32) {
        if first == NO_RUN {
            return;
        }
        let class = &mut self.classes[class];
        arena::run_by_number(last).next.set(class.listed);
        match class.listed {
            NO_RUN => class.last = last,
            next => arena::run_by_number(next).previous.set(last),
        }
        class.listed = first;
    }

    fn unlist(&mut self, run: &Run) {
        let (previous, next) = (run.previous.get(), run.next.get());
        let class = &mut self.classes[run.class as usize];
        match previous {
            NO_RUN => class.listed = next,
            previous => arena::run_by_number(previous).next.set(next),
        }
        match next {
            NO_RUN => class.last = previous,
            next => arena::run_by_number(next).previous.set(previous),
        }
    }

    /// Looks for a chunk with a free block of this order.
    fn find(&mut self, kind: Kind, order: usize) -> Option<u32> {
        let open = &mut self.open[kind as usize];
        // Where the smallest block has room, the fewest blocks are broken up.
        if let Some(first) = open[order..].iter().find_map(List::first) {
            return Some(first);
        }
        open[..order].iter_mut().rev().find_map(|list| {
            // SAFETY: the chunks are this heap's.
            let has_room = |number| unsafe { arena::chunk(number) }.free.get().take(order).is_some();
            list.look_for(arena::links, LOOKS, has_room)
        })
    }

    /// Puts a chunk into the list where it belongs, after its free units have changed.
    fn file(&mut self, number: u32, chunk: &Chunk) {
        if chunk.is_leaving.get() {
            return;
        }
        let list = chunk.free.get().smallest().map(|order| order as u8);
        if list == chunk.list.get() {
            return;
        }
        self.close(number, chunk);
        chunk.list.set(list);
        if let Some(list) = list {
            self.open[chunk.kind.get() as usize][list as usize].push(arena::links, number);
        }
    }

    /// Takes a chunk out of its list.
    fn close(&mut self, number: u32, chunk: &Chunk) {
        if let Some(list) = chunk.list.take() {
            self.open[chunk.kind.get() as usize][list as usize].remove(arena::links, number);
        }
    }
}
