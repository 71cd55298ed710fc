//! The journal of writes: one order for all threads, without a lock that all threads share.
//!
//! A write works in four steps:
//! 1. It holds the locks of its slots and appends Redis commands with the same effect to the
//!    [`JournalBuffer`] of its thread.
//! 2. When the write is complete, its record gets a number.
//! 3. Only then are the slots unlocked ([`JournalBuffer::commit`]). So two writes to the same slot are
//!    numbered in the order in which they happened, and all changes made under several locks are one record
//!    with one number.
//! 4. When the thread leaves the gate, its buffer becomes a [`Page`] in its queue; a small buffer becomes a
//!    part of a page.
//!
//! A [`Reader`] takes the pages of all queues and emits their records in the order of the numbers.
//! Append-only files and replicas get this stream.
//!
//! ```text
//! thread 0: [10 SET a][40 SET b]        \
//! thread 1: [21 DEL c][31 MULTI .. EXEC] >  reader: 10 21 31 40 ...
//! thread 2: [62 INCR d]                 /   (62 waits: thread 3 has a buffer, begun at 50)
//! ```
//!
//! # Numbers
//! Numbers do not come from a counter. Every write of every thread would need the counter's cache line for
//! itself: with eight threads that costs each write 0.12 us. A number is a time (Lamport's, as in a hybrid
//! logical clock) with the index of the thread in the low bits, so no two numbers are the same. A number is
//! larger than
//! - the thread's last number;
//! - the number of the last record on each slot that is held, which is stored beside the slot's lock: the
//!   order of writes to a slot depends on no clock;
//! - the time at which it is given: with one clock for all threads, a write that follows the observation of
//!   another write gets the larger number, whatever the slots;
//! - the horizon at the start of the buffer: the largest number up to which a reader has asked, or which a
//!   thread that wanted the last number has seen.
//!
//! A reader must know that no smaller number can still appear:
//! 1. The reader raises the horizon to the present, and then scans all threads.
//! 2. A thread that begins a buffer publishes its start, and then reads the horizon: its records are above
//!    both.
//! 3. The bad interleaving is Dekker's, so each side has a full fence between its two steps. Either the
//!    reader sees the start of the buffer, or the thread sees the raised horizon.
//! 4. A thread without a buffer will therefore number its records above the horizon.
//!
//! The reader emits the records up to the lowest of these bounds ([`Reader::take`]). Correctness does not
//! depend on the clock: the clock of the model in `tests/it/journal.rs` stands still.
//!
//! Several readers may exist. Each merges for itself and at its own pace, so a disk that hangs delays no
//! replica. The readers share the pages, and the last reader that is done with a page returns it to its
//! queue. The road not taken is a merging thread that feeds all readers: a hop more for `appendfsync always`,
//! and the pace of the slowest reader for all.
//!
//! Nothing is written while there is no reader. Readers come and go behind the closed gate only, and a thread
//! checks when it enters. A reader never waits for a lock that is held for long. Writers never wait for a
//! reader: unread bytes are counted ([`Journal::unread`]), and the owners of the contexts decide how to
//! react.

mod buffer;
mod lent;
mod reader;

use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*, fence};
use crate::sync::{Arc, Condvar, Mutex};

use self::buffer::{EXPECTED_LEN_MAX, Span, prefetch_for_write};
pub use self::buffer::{JournalBuffer, KEPT_PART, Page, Record, select};
pub use self::lent::{LentRegion, RequestBytes, SentCommand};
pub use self::reader::Reader;

/// Maximum number of readers at once: the append-only file, replicas, a backup, a move of slots, and further
/// ones in tests.
pub const READERS_MAX: usize = 5;

/// A queue keeps pages of at most this many bytes for reuse; larger pages are freed.
const SPARE_LEN_MAX: usize = 256 * 1024;

/// Bytes of all pages that a queue keeps for reuse: a busy writer fills as many between two polls of a
/// reader.
const SPARES_LEN_MAX: usize = 512 * 1024;

/// A buffer of at most this many bytes is copied to the queue's open page. Handing it over as a page of its
/// own would cost more, since the page is cold when it comes back.
pub const SMALL_LEN_MAX: usize = 4 * 1024;

/// An open page is handed out before it exceeds this many bytes.
pub(crate) const OPEN_LEN_MAX: usize = 16 * 1024;

/// Lowest bits of a number: the index of the thread.
pub(crate) const CONTEXT_BITS: u32 = 10;

/// Value of [`Marks::begun`] of a thread that has no buffer.
const NO_BUFFER: u64 = u64::MAX;

/// The part of the journal that all threads share.
pub struct Journal {
    /// Bits of the readers that get pages. Changes behind the closed gate only.
    readers: AtomicU32,
    /// Bits of the readers that are replicas. They get records that no other reader gets.
    replicas: AtomicU32,
    /// The same clock for all threads; see [`crate::Keyspace::with_clock`].
    clock: fn() -> u64,
    reader_slots: [ReaderSlot; READERS_MAX],
    queues: Box<[WriterQueue]>,
    /// Buffers that begin from now on have larger numbers.
    horizon: Padded,
    /// Bytes of memory published since the start: see [`Page::weight`].
    published: Padded,
}

/// State of a reader that writers and other threads see.
#[repr(align(128))]
struct ReaderSlot {
    is_taken: AtomicBool,
    /// Bytes published since the start that the reader has passed, including bytes from before it joined.
    read: AtomicU64,
    /// Value of `published` at which pages for this reader ended; `u64::MAX` until it is dismissed.
    until: AtomicU64,
    /// The reader waits to be woken.
    sleeps: AtomicBool,
    wake: (Mutex<bool>, Condvar),
}

/// On a cache line of its own: a thread that reads a neighbouring field must not wait for the writer of this
/// field.
#[repr(align(128))]
struct Padded(AtomicU64);

#[repr(align(128))]
struct WriterQueue {
    pages: Mutex<Pages>,
    marks: Marks,
}

/// State that a thread publishes with each record, apart from the pages under the lock.
#[repr(align(128))]
struct Marks {
    /// The records of the thread's buffer have larger numbers than this.
    begun: AtomicU64,
    /// The number of the thread's last record.
    last: AtomicU64,
    /// The number of the thread's last published record.
    published: AtomicU64,
}

#[derive(Default)]
struct Pages {
    /// Pages that each reader has not taken yet.
    filled: [Vec<Arc<Page>>; READERS_MAX],
    /// The page behind those: small buffers for the readers in `open_for`. It is handed out when it is full
    /// or a reader takes it.
    open: Page,
    open_for: u32,
    spare: Vec<Arc<Page>>,
    /// Bytes that the spare pages have room for.
    spare_len: usize,
}

impl Journal {
    /// Creates a journal for this many threads, whose numbers only the slots order: its clock stands still.
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

    /// Sets the clock, which never reaches 2^53.
    pub(crate) fn set_clock(&mut self, clock: fn() -> u64) {
        self.clock = clock;
    }

    /// The present as a number.
    fn now(&self) -> u64 {
        (self.clock)() << CONTEXT_BITS
    }

    /// Publishes that a thread whose last record is `last` begins a buffer; returns the number that its
    /// records are above.
    fn begin_buffer(&self, marks: &Marks, last: u64) -> u64 {
        let begun = last.max(self.horizon.0.load(Relaxed));
        // Release: a reader that reads the mark finds all that was published before.
        marks.begun.store(begun, Release);
        fence(SeqCst);
        begun.max(self.horizon.0.load(Relaxed))
    }

    /// Raises the horizon: buffers that begin from now on are above it.
    pub(crate) fn raise(&self, horizon: u64) {
        if self.horizon.0.load(Relaxed) < horizon {
            self.horizon.0.fetch_max(horizon, Relaxed);
        }
    }

    /// Returns true if writes are journalled. For callers inside the gate.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.readers.load(Relaxed) != 0
    }

    /// Returns true if replicas read. For callers inside the gate.
    #[inline]
    pub(crate) fn has_replicas(&self) -> bool {
        self.replicas.load(Relaxed) != 0
    }

    /// Marks the reader at this place as serving replicas. Only behind the closed gate.
    pub(crate) fn set_replica(&self, place: usize) {
        self.replicas.fetch_or(1 << place, Relaxed);
    }

    /// Adds a reader of all records from now on. Only behind the closed gate, when all records have been
    /// published.
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

    /// Ends publishing for this reader. Only behind the closed gate, when all records have been published.
    pub(crate) fn dismiss(&self, place: usize) {
        self.readers.fetch_and(!(1 << place), Relaxed);
        self.replicas.fetch_and(!(1 << place), Relaxed);
        self.reader_slots[place].until.store(self.published.0.load(Relaxed), Relaxed);
    }

    /// Frees the place of a dismissed reader, and drops the pages that it has not read.
    pub fn vacate(&self, place: usize) {
        assert!(
            self.readers.load(Relaxed) & 1 << place == 0,
            "a reader that gets pages has not been dismissed"
        );
        for queue in &self.queues {
            let mut pages = queue.pages.lock();
            pages.close(); // or the next reader at this place would get the open page
            let rest = std::mem::take(&mut pages.filled[place]);
            drop(pages);
            drop(rest);
        }
        self.reader_slots[place].is_taken.store(false, Release);
    }

    /// The number of the last record. Behind the closed gate, all records up to it are in their queues,
    /// except records that the closer has written since. All later records have larger numbers.
    pub fn last(&self) -> u64 {
        let last = self.queues.iter().map(|queue| queue.marks.last.load(Relaxed)).max().unwrap_or(0);
        self.raise(last);
        last
    }

    /// The largest number of published bytes that a present reader has not read: the last reader frees a
    /// page.
    pub fn unread(&self) -> usize {
        let readers = self.readers.load(Relaxed);
        let reads = |place: &usize| readers & 1 << place != 0;
        (0..READERS_MAX).filter(reads).map(|place| self.unread_by(place)).max().unwrap_or(0)
    }

    /// Bytes published for a reader that it has not read; zero if there is no such place.
    pub fn unread_by(&self, place: usize) -> usize {
        let Some(reader_slot) = self.reader_slots.get(place) else { return 0 };
        let published = self.published.0.load(Relaxed).min(reader_slot.until.load(Relaxed));
        published.saturating_sub(reader_slot.read.load(Relaxed)) as usize
    }

    /// Bytes published since the start, for [`Journal::has_read`].
    pub fn published(&self) -> u64 {
        self.published.0.load(Relaxed)
    }

    /// Returns true if a reader has read its share of the first `published` bytes, or if there is no such
    /// place.
    pub fn has_read(&self, place: usize, published: u64) -> bool {
        let Some(reader_slot) = self.reader_slots.get(place) else { return true };
        reader_slot.read.load(Acquire) >= published.min(reader_slot.until.load(Relaxed))
    }

    /// Turns a buffer into a page of the thread's queue.
    pub(crate) fn publish(&self, ctx: usize, buffer: &mut JournalBuffer) {
        let readers = self.readers.load(Relaxed);
        let queue = &self.queues[ctx];
        let mut pages = queue.pages.lock();
        let published = pages.put(readers, &mut buffer.page, &mut buffer.next);
        self.published.0.fetch_add(published as u64, Relaxed);
        queue.marks.published.store(buffer.last, Relaxed);
        // Release, and under the lock: a reader that sees no buffer any more finds its records in the queue.
        queue.marks.begun.store(NO_BUFFER, Release);
        drop(pages);
        if let Some(next) = &buffer.next {
            let next: &Page = next;
            prefetch_for_write(std::ptr::from_ref(next).cast(), size_of::<Page>());
        }
        self.wake_readers(readers);
    }

    /// Wakes the readers that sleep. The bad interleaving is Dekker's: a writer publishes a page and then
    /// reads `sleeps`, the reader sets `sleeps` and then looks for pages, and each misses the other. Both
    /// take the queue's lock between their two steps, which orders them. If the reader has not seen the page,
    /// it held the lock first; then the writer, which holds it next, sees that the reader sleeps.
    #[inline]
    fn wake_readers(&self, readers: u32) {
        for (place, reader_slot) in self.reader_slots.iter().enumerate() {
            if readers & 1 << place != 0 && reader_slot.sleeps.load(Relaxed) {
                reader_slot.wake();
            }
        }
    }

    /// Wakes a reader, or keeps it from falling asleep. Does nothing if there is no such place.
    pub fn wake(&self, place: usize) {
        if let Some(reader_slot) = self.reader_slots.get(place) {
            reader_slot.wake();
        }
    }
}

impl WriterQueue {
    fn new() -> WriterQueue {
        let marks =
            Marks { begun: AtomicU64::new(NO_BUFFER), last: AtomicU64::new(0), published: AtomicU64::new(0) };
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
    /// Takes all of a buffer's page for `readers`, and leaves an empty page there; returns its bytes. A large
    /// page moves to `next`, which is then replaced.
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

    /// Hands out the open page.
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
    /// Number of pages that a queue keeps for reuse.
    #[cfg(test)]
    pub(crate) fn spares(&self, queue: usize) -> usize {
        self.queues[queue].pages.lock().spare.len()
    }

    /// Adds to the bytes that a reader has read; only the reader itself calls this.
    fn add_read(&self, place: usize, bytes: usize) {
        let read = &self.reader_slots[place].read;
        read.store(read.load(Relaxed) + bytes as u64, Release);
    }

    /// Returns a page to its queue if no other reader has still to read it. If two readers drop their
    /// references at the same moment, each may still see the other's; then the page is freed.
    ///
    /// Pages are returned one at a time: returning all of them at the end of a poll costs the reader a
    /// quarter more CPU time.
    fn recycle(&self, queue: usize, mut page: Arc<Page>) {
        let Some(own) = Arc::get_mut(&mut page) else { return };
        own.clear(); // the worker that lent the region waits for this
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
