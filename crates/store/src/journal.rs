//! The log of writes: one order for all threads, and no lock that they share.
//!
//! A write that holds its slots appends Redis commands with the same effect to the [`JournalBuffer`] of its seat, gives itself a
//! number when it is done, and only then lets go of its slots ([`JournalBuffer::commit`]). So two writes that touch the same slot are
//! numbered in the order in which they happened, and what is written under several locks is one record with one number. When
//! the seat goes outside the gate, its draft becomes a [`Page`] in its lane, or a part of one if it is small. A [`Reader`]
//! takes the pages of all lanes and hands on their records by number: the stream that append-only files and replicas get.
//!
//! ```text
//! seat 0: [10 SET a][40 SET b]        \
//! seat 1: [21 DEL c][31 MULTI .. EXEC] >  reader: 10 21 31 40 ...   (62 waits: seat 3 has a draft, begun at 50)
//! seat 2: [62 INCR d]                 /
//! ```
//!
//! # Numbers
//! They come from no counter, since a counter is a cache line that every write of every thread has to have for itself: with
//! eight threads that cost each write 0.12 us. A number is a time (Lamport's, as in a hybrid logical clock) with the seat's
//! index below it, so no two are the same. It is larger than
//! - the seat's last one;
//! - that of the last record on each slot that is held, which is written beside the slot's lock: so the order of writes
//!   to a slot depends on no clock;
//! - the time at which it is given: so what is written after somebody has seen that something else was written comes behind
//!   that, on whatever slots, if the clock is one for all threads;
//! - the horizon at the beginning of the draft: how far readers have asked, and whoever wanted to know the last number.
//!
//! How does a reader know that no smaller number is still to come? It makes the present the horizon, and then looks at the seats. One
//! that has begun a draft says since when, before it looks at the horizon: what it will lay down is above that. One that has
//! none will be above the horizon. The bad interleaving is Dekker's, so there is a full fence on each side. What is not above any of
//! these may be handed on ([`Reader::take`]). Nothing of this depends on the clock: the model in `tests/it/journal.rs` has one that
//! stands still.
//!
//! There may be several readers, each of which merges for itself and at its own pace: a disk that hangs holds up no replica.
//! They share the pages, and who is done with a page as the last one gives it back to its lane. The road not taken: one
//! merging thread that all readers are fed by. It would be a hop more for `appendfsync always`, and the pace of the slowest.
//!
//! Nothing is written while nobody reads: who reads changes behind the closed gate only, and a seat looks when it goes
//! inside. A reader never waits for a lock that is held for long, and writers never wait for a reader: how much has not been
//! read yet is counted ([`Journal::unread`]), and whoever drives the seats decides what to do about it.

// Where they are is said for the model in `tests/it`, which has this file elsewhere.
#[path = "journal/buffer.rs"]
mod buffer;
#[path = "journal/reader.rs"]
mod reader;

use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*, fence};
use crate::sync::{Arc, Condvar, Mutex};

use self::buffer::{EXPECTED_LEN_MAX, Span, prefetch_for_write};
pub use self::buffer::{JournalBuffer, KEPT_PART, Page, Received, Record, select};
pub use self::reader::Reader;

/// Most readers at once: the append-only file, replicas, and others that tests have.
pub const READERS_MAX: usize = 4;

/// Bytes of a page that a lane keeps for reuse; larger ones are freed.
const SPARE_LEN_MAX: usize = 256 * 1024;

/// Bytes of all pages that a lane keeps for reuse: what a busy writer fills between two looks of a reader.
const SPARES_LEN_MAX: usize = 512 * 1024;

/// Bytes of a draft that is copied to a lane's open page. To hand it over as a page of its own would cost more: it is cold when
/// it comes back.
pub const SMALL_LEN_MAX: usize = 4 * 1024;

/// Bytes of an open page, beyond which it is handed out.
pub(crate) const OPEN_LEN_MAX: usize = 16 * 1024;

/// Lowest bits of a number, which say whose it is.
pub(crate) const SEAT_BITS: u32 = 10;

/// Of who has no draft, where it is looked for since when there is one.
const NO_DRAFT: u64 = u64::MAX;

/// What all seats share.
pub struct Journal {
    /// Whom pages are for, as bits: changes behind the closed gate only.
    readers: AtomicU32,
    /// Which of them are replicas, for whom there are records that concern nobody else.
    replicas: AtomicU32,
    /// The same for all threads; see [`crate::Keyspace::with_clock`].
    clock: fn() -> u64,
    reader_slots: [ReaderSlot; READERS_MAX],
    queues: Box<[WriterQueue]>,
    /// Drafts that are begun from now on have larger numbers.
    horizon: Padded,
    /// Bytes of memory laid down since the start: see [`Page::weight`].
    published: Padded,
}

/// A reader as writers and others see it.
#[repr(align(128))]
struct ReaderSlot {
    is_taken: AtomicBool,
    /// How many of the bytes laid down since the start are behind it, those from before it came included.
    read: AtomicU64,
    /// The last of them that are for it.
    until: AtomicU64,
    /// It waits to be woken.
    sleeps: AtomicBool,
    wake: (Mutex<bool>, Condvar),
}

/// On a cache line of its own, or whoever reads what is beside it waits for who writes it.
#[repr(align(128))]
struct Padded(AtomicU64);

#[repr(align(128))]
struct WriterQueue {
    pages: Mutex<Pages>,
    marks: Marks,
}

/// What a seat says of itself with each record, apart from what the lock is on.
#[repr(align(128))]
struct Marks {
    /// The records of the seat's draft have larger numbers than this.
    begun: AtomicU64,
    /// The number of its last record.
    last: AtomicU64,
    /// The number of the last one that has been laid down.
    published: AtomicU64,
}

#[derive(Default)]
struct Pages {
    /// What each reader has not taken yet.
    filled: [Vec<Arc<Page>>; READERS_MAX],
    /// What comes behind that: small drafts, until they are many or somebody takes them, for these readers.
    open: Page,
    open_for: u32,
    spare: Vec<Arc<Page>>,
    /// Bytes that the spare ones have room for.
    spare_len: usize,
}

impl Journal {
    /// A log for so many seats, in which nothing but the slots says what comes before what.
    pub fn new(contexts: usize) -> Journal {
        Journal {
            readers: AtomicU32::new(0),
            replicas: AtomicU32::new(0),
            clock: || 0,
            reader_slots: std::array::from_fn(|_| ReaderSlot::new()),
            queues: (0..contexts).map(|_| WriterQueue::new()).collect(),
            horizon: Padded(AtomicU64::new(0)),
            published: Padded(AtomicU64::new(0)),
        }
    }

    /// Has it go by this clock, which never comes to 2^53.
    pub(crate) fn set_clock(&mut self, clock: fn() -> u64) {
        self.clock = clock;
    }

    /// The present as a number.
    fn now(&self) -> u64 {
        (self.clock)() << SEAT_BITS
    }

    /// Says that a seat whose last record has this number begins a draft; returns what the numbers of its records are above.
    fn begin_draft(&self, marks: &Marks, last: u64) -> u64 {
        let begun = last.max(self.horizon.0.load(Relaxed));
        // Release: who reads it finds what was laid down before.
        marks.begun.store(begun, Release);
        fence(SeqCst);
        begun.max(self.horizon.0.load(Relaxed))
    }

    /// Drafts that are begun from now on are above this.
    pub(crate) fn raise(&self, horizon: u64) {
        if self.horizon.0.load(Relaxed) < horizon {
            self.horizon.0.fetch_max(horizon, Relaxed);
        }
    }

    /// Whether writes are logged, for who is inside the gate.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.readers.load(Relaxed) != 0
    }

    /// Whether replicas read, for who is inside the gate.
    #[inline]
    pub(crate) fn has_replicas(&self) -> bool {
        self.replicas.load(Relaxed) != 0
    }

    /// The reader at this place is a replica, or several; to be called behind the closed gate only.
    pub(crate) fn note_replica(&self, place: usize) {
        self.replicas.fetch_or(1 << place, Relaxed);
    }

    /// A reader of what comes from now on; to be called behind the closed gate only, when all that was logged has been laid
    /// down.
    pub(crate) fn join(&self) -> Reader {
        let is_free = |reader_slot: &ReaderSlot| !reader_slot.is_taken.swap(true, AcqRel);
        let place = self.reader_slots.iter().position(is_free).expect("there are never that many readers");
        let reader_slot = &self.reader_slots[place];
        reader_slot.read.store(self.published.0.load(Relaxed), Relaxed);
        reader_slot.until.store(u64::MAX, Relaxed);
        self.readers.fetch_or(1 << place, Relaxed);
        let last = self.last();
        Reader::new(self, place, last)
    }

    /// What is laid down from now on is not for this reader; to be called behind the closed gate only, when all that was logged
    /// has been laid down.
    pub(crate) fn dismiss(&self, place: usize) {
        self.readers.fetch_and(!(1 << place), Relaxed);
        self.replicas.fetch_and(!(1 << place), Relaxed);
        self.reader_slots[place].until.store(self.published.0.load(Relaxed), Relaxed);
    }

    /// Gives the place of a reader back that was dismissed, and drops what it has not read.
    pub fn vacate(&self, place: usize) {
        assert!(self.readers.load(Relaxed) & 1 << place == 0, "who is given pages has not been dismissed");
        for queue in &self.queues {
            let mut pages = queue.pages.lock();
            pages.close(); // or whoever has the place next would get it
            let rest = std::mem::take(&mut pages.filled[place]);
            drop(pages);
            drop(rest);
        }
        self.reader_slots[place].is_taken.store(false, Release);
    }

    /// The number of the last record. Behind the closed gate, all up to it are in their lanes, but for what its closer has
    /// logged since, and all that are written from then on have larger ones.
    pub fn last(&self) -> u64 {
        let last = self.queues.iter().map(|queue| queue.marks.last.load(Relaxed)).max().unwrap_or(0);
        self.raise(last);
        last
    }

    /// Bytes laid down and not yet read by those who read: pages go when the last one is done with them.
    pub fn unread(&self) -> usize {
        let readers = self.readers.load(Relaxed);
        let reads = |place: &usize| readers & 1 << place != 0;
        (0..READERS_MAX).filter(reads).map(|place| self.unread_by(place)).max().unwrap_or(0)
    }

    /// Bytes laid down for a reader and not yet read by it; zero if there is no such place.
    pub fn unread_by(&self, place: usize) -> usize {
        let Some(reader_slot) = self.reader_slots.get(place) else { return 0 };
        let published = self.published.0.load(Relaxed).min(reader_slot.until.load(Relaxed));
        published.saturating_sub(reader_slot.read.load(Relaxed)) as usize
    }

    /// Bytes laid down since the start, for [`Journal::has_read`].
    pub fn published(&self) -> u64 {
        self.published.0.load(Relaxed)
    }

    /// Whether a reader has read what was for it of the first `published` bytes; true if there is no such place.
    pub fn has_read(&self, place: usize, published: u64) -> bool {
        let Some(reader_slot) = self.reader_slots.get(place) else { return true };
        reader_slot.read.load(Acquire) >= published.min(reader_slot.until.load(Relaxed))
    }

    /// Makes a draft a page of a seat's lane.
    pub(crate) fn publish(&self, ctx: usize, buffer: &mut JournalBuffer) {
        let readers = self.readers.load(Relaxed);
        let queue = &self.queues[ctx];
        let mut pages = queue.pages.lock();
        let published = pages.put(readers, &mut buffer.page, &mut buffer.next);
        self.published.0.fetch_add(published as u64, Relaxed);
        queue.marks.published.store(buffer.last, Relaxed);
        // Release, and under the lock: who reads that there is no draft any more finds what there was in the lane.
        queue.marks.begun.store(NO_DRAFT, Release);
        drop(pages);
        if let Some(next) = &buffer.next {
            let next: &Page = next;
            prefetch_for_write(std::ptr::from_ref(next).cast(), size_of::<Page>());
        }
        self.note_page(readers);
    }

    /// Wakes the readers that sleep. The bad interleaving is Dekker's: a writer lays a page down and then reads `sleeps`,
    /// the reader sets `sleeps` and then looks for pages, and both miss the other. The lane's lock, which both take in between,
    /// orders them: a reader that has not seen the page held it first, and whoever holds it next sees that the reader sleeps.
    #[inline]
    fn note_page(&self, readers: u32) {
        for (place, reader_slot) in self.reader_slots.iter().enumerate() {
            if readers & 1 << place != 0 && reader_slot.sleeps.load(Relaxed) {
                reader_slot.wake();
            }
        }
    }

    /// Wakes a reader, or keeps it from falling asleep. Nobody is woken where there is no such place.
    pub fn wake(&self, place: usize) {
        if let Some(reader_slot) = self.reader_slots.get(place) {
            reader_slot.wake();
        }
    }
}

impl WriterQueue {
    fn new() -> WriterQueue {
        let marks =
            Marks { begun: AtomicU64::new(NO_DRAFT), last: AtomicU64::new(0), published: AtomicU64::new(0) };
        WriterQueue { pages: Mutex::new(Pages::default()), marks }
    }
}

impl ReaderSlot {
    fn new() -> ReaderSlot {
        ReaderSlot {
            is_taken: AtomicBool::new(false),
            read: AtomicU64::new(0),
            until: AtomicU64::new(0),
            sleeps: AtomicBool::new(false),
            wake: (Mutex::new(false), Condvar::new()),
        }
    }

    #[cold]
    fn wake(&self) {
        self.sleeps.store(false, Relaxed);
        *self.wake.0.lock() = true;
        self.wake.1.notify_one();
    }
}

impl Pages {
    /// Takes all of a draft's page for `readers`, and leaves an empty one there; returns its bytes. `next` is what a large one
    /// goes to, and is another one then.
    fn put(&mut self, readers: u32, page: &mut Page, next: &mut Option<Arc<Page>>) -> usize {
        if page.text > SMALL_LEN_MAX {
            self.close();
            page.copy_if_little();
            let weight = page.weight();
            let mut handed = next.take().unwrap_or_default();
            page.move_to(Arc::get_mut(&mut handed).expect("an empty page is nobody else's"));
            self.hand_out(readers, handed);
            *next = Some(self.empty());
            page.expect(EXPECTED_LEN_MAX);
            return weight;
        }
        if self.open_for != readers || self.open.text + page.text > OPEN_LEN_MAX {
            self.close();
            self.open.bytes.reserve(OPEN_LEN_MAX);
            self.open_for = readers;
        }
        self.open.take_from(page)
    }

    /// Hands out what is open.
    fn close(&mut self) {
        if !self.open.records.is_empty() {
            let mut page = self.empty();
            std::mem::swap(Arc::get_mut(&mut page).expect("an empty page is nobody else's"), &mut self.open);
            self.hand_out(self.open_for, page);
        }
    }

    fn empty(&mut self) -> Arc<Page> {
        let page = self.spare.pop().unwrap_or_default();
        self.spare_len -= page.room();
        page
    }

    fn has_some_for(&self, reader: usize) -> bool {
        !self.filled[reader].is_empty() || (!self.open.records.is_empty() && self.open_for & 1 << reader != 0)
    }

    /// Gives a page to each of `readers`.
    fn hand_out(&mut self, readers: u32, page: Arc<Page>) {
        let mut left = readers;
        while left.count_ones() > 1 {
            let place = left.trailing_zeros() as usize;
            self.filled[place].push(page.clone());
            left &= left - 1;
        }
        if left != 0 {
            self.filled[left.trailing_zeros() as usize].push(page);
        }
    }
}

impl Journal {
    /// Pages that a lane keeps for reuse.
    #[cfg(test)]
    pub(crate) fn spares(&self, queue: usize) -> usize {
        self.queues[queue].pages.lock().spare.len()
    }

    /// Only the reader itself writes how much it has read.
    fn note_read(&self, place: usize, bytes: usize) {
        let read = &self.reader_slots[place].read;
        read.store(read.load(Relaxed) + bytes as u64, Release);
    }

    /// Gives a page back to its lane, if nobody else has still to read it. Of two who drop theirs at the same moment, it may
    /// be that each finds the other's still there: then it is freed.
    ///
    /// Each by itself: with all of them at the end of a look, the reader spends a quarter more of CPU time.
    fn recycle(&self, queue: usize, mut page: Arc<Page>) {
        let Some(own) = Arc::get_mut(&mut page) else { return };
        own.clear(); // whoever received what is in it waits for that
        let room = own.room();
        if room > SPARE_LEN_MAX {
            return;
        }
        let mut pages = self.queues[queue].pages.lock();
        if pages.spare_len + room <= SPARES_LEN_MAX {
            pages.spare_len += room;
            pages.spare.push(page);
        }
    }
}
