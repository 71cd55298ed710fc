//! The log of writes: one order for all threads, and no lock that they share.
//!
//! A write that holds its slots appends Redis commands with the same effect to the [`Draft`] of its seat, gives itself a
//! number when it is done, and only then lets go of its slots ([`Draft::commit`]). So two writes that touch the same slot are
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

use std::ops::Range;
use std::sync::Arc as Shared;

use evenkeel_resp::request::Line;

use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*, fence};
use crate::sync::{Arc, Condvar, Mutex};

/// Most readers at once: the append-only file, replicas, and others that tests have.
pub const READERS_MAX: usize = 4;

/// Bytes of a page that a lane keeps for reuse; larger ones are freed.
const SPARE_LEN_MAX: usize = 256 * 1024;

/// Bytes of all pages that a lane keeps for reuse: what a busy writer fills between two looks of a reader.
const SPARES_LEN_MAX: usize = 512 * 1024;

/// Bytes that the cache is asked for ahead: more lines than that would have to wait for each other.
const EXPECTED_LEN_MAX: usize = 1024;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Bytes of a draft that is copied to a lane's open page. To hand it over as a page of its own would cost more: it is cold when
/// it comes back.
pub const SMALL_LEN_MAX: usize = 4 * 1024;

/// Bytes of an open page, beyond which it is handed out.
pub(crate) const OPEN_LEN_MAX: usize = 16 * 1024;

/// As many as a batch of requests has, or a few more.
const FEW_RECORDS: usize = 64;

/// What was received is kept as a whole. So records have to be this part of it at least, as a divisor.
pub const KEPT_PART: usize = 4;

/// Lowest bits of a number, which say whose it is.
pub(crate) const SEAT_BITS: u32 = 10;

/// Of who has no draft, where it is looked for since when there is one.
const NO_DRAFT: u64 = u64::MAX;

/// What stands before a record of several commands, and behind it.
const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// What all seats share.
pub struct Journal {
    /// Whom pages are for, as bits: changes behind the closed gate only.
    readers: AtomicU32,
    /// Which of them are replicas, for whom there are records that concern nobody else.
    replicas: AtomicU32,
    /// The same for all threads, and never far behind. It need not be of any unit, but has to move between two drafts.
    clock: fn() -> u64,
    desks: [Desk; READERS_MAX],
    lanes: Box<[Lane]>,
    /// Drafts that are begun from now on have larger numbers.
    horizon: Padded,
    /// Bytes of memory laid down since the start: see [`Page::weight`].
    laid: Padded,
}

/// A reader as writers and others see it.
#[repr(align(128))]
struct Desk {
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
struct Lane {
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
    laid: AtomicU64,
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

/// Records in the order of their numbers, each a stretch of the bytes, or of what was received.
#[derive(Default)]
pub struct Page {
    bytes: Vec<u8>,
    /// What was received, with commands in it that are logged as they came.
    received: Option<Received>,
    records: Vec<Span>,
    /// Bytes of all records.
    text: usize,
}

/// Memory that requests were read into. As long as the log has it, it does not change.
pub type Received = Shared<Box<[u8]>>;

#[derive(Clone, Copy)]
struct Span {
    number: u64,
    start: usize,
    end: usize,
    first_db: u32,
    last_db: u32,
    is_data: bool,
    /// Of what was received, not of the bytes.
    is_received: bool,
}

/// One write, or several that took place together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub number: u64,
    /// Redis commands as RESP arrays; if they are several, MULTI comes first and EXEC last.
    pub bytes: &'a [u8],
    /// The database that has to be selected before, and the one that is selected afterwards.
    pub first_db: u32,
    pub last_db: u32,
    /// It changes data. What does not (PUBLISH) is for replicas.
    pub is_data: bool,
}

/// What a seat has logged since it went inside the gate.
#[derive(Default)]
pub struct Draft {
    pub(crate) is_on: bool,
    /// Some of those who read are replicas.
    pub(crate) has_replicas: bool,
    /// What the requests are in that are being run, if the log may keep it as it is: to copy them would cost the thread that
    /// serves clients more than all else that the log does, since the memory for the copy comes from another core's cache.
    pub received: Option<Received>,
    /// Where the record that is being written begins, and its commands so far.
    open: Option<Open>,
    page: Page,
    /// The one that its records go to when it is laid down.
    next: Option<Arc<Page>>,
    /// The number of the last record.
    pub last: u64,
    /// What the numbers of its records are above.
    floor: u64,
}

struct Open {
    start: usize,
    commands: usize,
    /// The only command so far, if that is a stretch of what was received and was not copied.
    received: Option<Range<usize>>,
    first_db: u32,
    db: u32,
    is_data: bool,
}

impl Draft {
    /// Appends a command to the record that is being written.
    pub(crate) fn push<'a>(&mut self, db: u32, args: impl ExactSizeIterator<Item = &'a [u8]>) {
        put_command(self.begin_command(db, true), args);
    }

    /// The same for one that changes no data: for replicas alone, unless others are in the same record.
    pub(crate) fn push_aside<'a>(&mut self, db: u32, args: impl ExactSizeIterator<Item = &'a [u8]>) {
        put_command(self.begin_command(db, false), args);
    }

    /// The same for a command that is an array of bulk strings already.
    pub(crate) fn push_encoded(&mut self, db: u32, command: &[u8]) {
        if self.open.is_none()
            && let Some(received) = &self.received
            && self.page.received.as_ref().is_none_or(|its| Shared::ptr_eq(its, received))
            && let Some(range) = place_in(received, command)
        {
            let (start, received) = (self.page.bytes.len(), Some(range));
            self.open = Some(Open { start, commands: 1, received, first_db: db, db, is_data: true });
            return;
        }
        self.begin_command(db, true).extend_from_slice(command);
    }

    /// Where the next command of the record goes.
    fn begin_command(&mut self, db: u32, is_data: bool) -> &mut Vec<u8> {
        let bytes = &mut self.page.bytes;
        let open = self.open.get_or_insert_with(|| {
            let start = bytes.len();
            bytes.extend_from_slice(MULTI);
            Open { start, commands: 0, received: None, first_db: db, db, is_data: false }
        });
        if let Some(range) = open.received.take() {
            // It is not the only one.
            bytes.extend_from_slice(MULTI);
            bytes.extend_from_slice(&self.received.as_ref().expect("what it is in")[range]);
        }
        if open.db != db {
            select(bytes, db);
            open.db = db;
        }
        open.commands += 1;
        open.is_data |= is_data;
        bytes
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Ends the record, which gets a number above `above`: those of all records on what is held. The caller still holds all that
    /// the record has to do with. Returns the number.
    pub(crate) fn commit(&mut self, journal: &Journal, seat: usize, above: u64) -> u64 {
        let Some(Open { mut start, commands, received, first_db, db, is_data }) = self.open.take() else {
            return self.last;
        };
        let marks = &journal.lanes[seat].marks;
        let is_first = self.page.records.is_empty();
        if is_first {
            self.floor = journal.begin_draft(marks, self.last);
        }
        let least = self.floor.max(self.last).max(above).max(journal.now());
        self.last = ((least >> SEAT_BITS) + 1) << SEAT_BITS | seat as u64;
        marks.last.store(self.last, Relaxed);
        if is_first {
            marks.begun.store(self.last - 1, Relaxed);
        }
        if let Some(Range { start, end }) = received {
            let span =
                Span { number: self.last, start, end, first_db, last_db: db, is_data, is_received: true };
            self.page.push_received(span, self.received.as_ref());
            self.expect_next();
            return self.last;
        }
        if commands == 1 {
            start += MULTI.len();
        } else {
            self.page.bytes.extend_from_slice(EXEC);
        }
        let end = self.page.bytes.len();
        self.page.push(Span {
            number: self.last,
            start,
            end,
            first_db,
            last_db: db,
            is_data,
            is_received: false,
        });
        self.page.expect(end - start);
        self.expect_next();
        self.last
    }

    /// With the first record, asks for the lines that a page's records go to: by then it is known where they are.
    #[inline]
    fn expect_next(&self) {
        if self.page.records.len() == 1
            && let Some(next) = &self.next
        {
            let len = EXPECTED_LEN_MAX.min(next.records.capacity() * size_of::<Span>());
            prefetch_for_write(next.records.as_ptr().cast(), len);
        }
    }

    /// Forgets the record that is being written.
    pub(crate) fn forget(&mut self) {
        if let Some(open) = self.open.take() {
            self.page.bytes.truncate(open.start);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        debug_assert!(self.open.is_none(), "a record is committed before its locks are released");
        self.page.records.is_empty()
    }
}

/// Where a command lies in what was received, if it does.
fn place_in(received: &[u8], command: &[u8]) -> Option<Range<usize>> {
    let start = (command.as_ptr() as usize).checked_sub(received.as_ptr() as usize)?;
    let end = start.checked_add(command.len()).filter(|end| *end <= received.len())?;
    Some(start..end)
}

impl Page {
    /// Bytes of memory that its records take: of short ones, what is known of each is more than what it says.
    fn weight(&self) -> usize {
        let received = self.received.as_ref().map_or(0, |received| received.len());
        self.bytes.len() + received + self.records.len() * size_of::<Span>()
    }

    /// Bytes that it has room for.
    fn room(&self) -> usize {
        self.bytes.capacity() + self.records.capacity() * size_of::<Span>()
    }

    fn push(&mut self, span: Span) {
        self.text += span.end - span.start;
        self.records.push(span);
    }

    /// The same for a record that is in what was received, the same for all of them.
    fn push_received(&mut self, span: Span, received: Option<&Received>) {
        if self.received.is_none() {
            self.received = received.cloned();
        }
        debug_assert_eq!(self.received.as_ref().map(Shared::as_ptr), received.map(Shared::as_ptr));
        self.push(span);
    }

    /// What a record says.
    fn of(&self, span: &Span) -> &[u8] {
        match &self.received {
            Some(received) if span.is_received => &received[span.start..span.end],
            _ => &self.bytes[span.start..span.end],
        }
    }

    /// Copies what it has of what was received, if that is a small part of it: it would be kept as a whole.
    fn copy_if_little(&mut self) {
        let text = self.text;
        let is_little = |received: &mut Received| text * KEPT_PART < received.len();
        let Some(received) = self.received.take_if(is_little) else { return };
        for span in self.records.iter_mut().filter(|span| span.is_received) {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(&received[span.start..span.end]);
            *span = Span { start, end: self.bytes.len(), is_received: false, ..*span };
        }
    }

    /// Makes it an empty one.
    fn clear(&mut self) {
        self.bytes.clear();
        self.received = None;
        self.records.clear();
        self.text = 0;
    }

    /// Moves another one's records here; returns how much heavier it is.
    fn take_from(&mut self, other: &mut Page) -> usize {
        let (before, weight) = (self.bytes.len(), self.weight());
        for span in &other.records {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(other.of(span));
            self.push(Span { start, end: self.bytes.len(), is_received: false, ..*span });
        }
        other.clear();
        self.expect(self.bytes.len() - before);
        self.weight() - weight
    }

    /// So many bytes are likely to come next: has the cache get the lines for them while the thread does something else. A page
    /// is reused when readers on other cores are done with it, so its lines are theirs, and a writer would wait for each.
    #[inline]
    fn expect(&self, len: usize) {
        let next = self.bytes.as_ptr().wrapping_add(self.bytes.len());
        let room = self.bytes.capacity() - self.bytes.len();
        prefetch_for_write(next, len.min(room).min(EXPECTED_LEN_MAX));
    }

    /// Gives all that it has to an empty page, and becomes one. What is known of few records is copied: then they wait together
    /// for the other page's lines, which readers on other cores have had. Each that was written there would wait by
    /// itself, before it lets go of its slot.
    fn move_to(&mut self, empty: &mut Page) {
        std::mem::swap(&mut self.bytes, &mut empty.bytes);
        empty.received = self.received.take();
        if self.records.len() <= FEW_RECORDS {
            empty.records.extend_from_slice(&self.records);
            self.records.clear();
        } else {
            std::mem::swap(&mut self.records, &mut empty.records);
        }
        empty.text = std::mem::take(&mut self.text);
    }
}

/// Asks for lines that are about to be written to, so that no other core has them any more.
#[inline]
fn prefetch_for_write(address: *const u8, len: usize) {
    (0..len.div_ceil(LINE)).for_each(|line| prefetch_line_for_write(address.wrapping_add(line * LINE)));
}

#[inline]
fn prefetch_line_for_write(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint that changes nothing, whatever the address; processors that do not know it pass over it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// A command as a RESP array.
fn put_command<'a>(bytes: &mut Vec<u8>, args: impl ExactSizeIterator<Item = &'a [u8]>) {
    bytes.extend_from_slice(&Line::new(b'*', args.len()));
    for arg in args {
        bytes.extend_from_slice(&Line::new(b'$', arg.len()));
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
}

/// SELECT as a RESP array.
pub fn select(bytes: &mut Vec<u8>, db: u32) {
    let text = db.to_string();
    bytes.extend_from_slice(b"*2\r\n$6\r\nSELECT\r\n");
    bytes.extend_from_slice(&Line::new(b'$', text.len()));
    bytes.extend_from_slice(text.as_bytes());
    bytes.extend_from_slice(b"\r\n");
}

impl Journal {
    /// A log for so many seats, in which nothing but the slots says what comes before what.
    pub fn new(seats: usize) -> Journal {
        Journal {
            readers: AtomicU32::new(0),
            replicas: AtomicU32::new(0),
            clock: || 0,
            desks: std::array::from_fn(|_| Desk::new()),
            lanes: (0..seats).map(|_| Lane::new()).collect(),
            horizon: Padded(AtomicU64::new(0)),
            laid: Padded(AtomicU64::new(0)),
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
        let is_free = |desk: &Desk| !desk.is_taken.swap(true, AcqRel);
        let place = self.desks.iter().position(is_free).expect("there are never that many readers");
        let desk = &self.desks[place];
        desk.read.store(self.laid.0.load(Relaxed), Relaxed);
        desk.until.store(u64::MAX, Relaxed);
        self.readers.fetch_or(1 << place, Relaxed);
        let last = self.last();
        let nothing = |lane: &Lane| Taken { last: lane.marks.laid.load(Relaxed), ..Taken::default() };
        Reader {
            place,
            last,
            bound: last,
            ahead: last,
            lanes: self.lanes.iter().map(nothing).collect(),
            heads: Vec::new(),
        }
    }

    /// What is laid down from now on is not for this reader; to be called behind the closed gate only, when all that was logged
    /// has been laid down.
    pub(crate) fn dismiss(&self, place: usize) {
        self.readers.fetch_and(!(1 << place), Relaxed);
        self.replicas.fetch_and(!(1 << place), Relaxed);
        self.desks[place].until.store(self.laid.0.load(Relaxed), Relaxed);
    }

    /// Gives the place of a reader back that was dismissed, and drops what it has not read.
    pub fn vacate(&self, place: usize) {
        assert!(self.readers.load(Relaxed) & 1 << place == 0, "who is given pages has not been dismissed");
        for lane in &self.lanes {
            let mut pages = lane.pages.lock();
            pages.close(); // or whoever has the place next would get it
            let rest = std::mem::take(&mut pages.filled[place]);
            drop(pages);
            drop(rest);
        }
        self.desks[place].is_taken.store(false, Release);
    }

    /// The number of the last record. Behind the closed gate, all up to it are in their lanes, but for what its closer has
    /// logged since, and all that are written from then on have larger ones.
    pub fn last(&self) -> u64 {
        let last = self.lanes.iter().map(|lane| lane.marks.last.load(Relaxed)).max().unwrap_or(0);
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
        let Some(desk) = self.desks.get(place) else { return 0 };
        let laid = self.laid.0.load(Relaxed).min(desk.until.load(Relaxed));
        laid.saturating_sub(desk.read.load(Relaxed)) as usize
    }

    /// Bytes laid down since the start, for [`Journal::has_read`].
    pub fn laid(&self) -> u64 {
        self.laid.0.load(Relaxed)
    }

    /// Whether a reader has read what was for it of the first `laid` bytes; true if there is no such place.
    pub fn has_read(&self, place: usize, laid: u64) -> bool {
        let Some(desk) = self.desks.get(place) else { return true };
        desk.read.load(Acquire) >= laid.min(desk.until.load(Relaxed))
    }

    /// Makes a draft a page of a seat's lane.
    pub(crate) fn lay_down(&self, seat: usize, draft: &mut Draft) {
        let readers = self.readers.load(Relaxed);
        let lane = &self.lanes[seat];
        let mut pages = lane.pages.lock();
        let laid = pages.put(readers, &mut draft.page, &mut draft.next);
        self.laid.0.fetch_add(laid as u64, Relaxed);
        lane.marks.laid.store(draft.last, Relaxed);
        // Release, and under the lock: who reads that there is no draft any more finds what there was in the lane.
        lane.marks.begun.store(NO_DRAFT, Release);
        drop(pages);
        if let Some(next) = &draft.next {
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
        for (place, desk) in self.desks.iter().enumerate() {
            if readers & 1 << place != 0 && desk.sleeps.load(Relaxed) {
                desk.wake();
            }
        }
    }

    /// Wakes a reader, or keeps it from falling asleep. Nobody is woken where there is no such place.
    pub fn wake(&self, place: usize) {
        if let Some(desk) = self.desks.get(place) {
            desk.wake();
        }
    }
}

impl Lane {
    fn new() -> Lane {
        let marks =
            Marks { begun: AtomicU64::new(NO_DRAFT), last: AtomicU64::new(0), laid: AtomicU64::new(0) };
        Lane { pages: Mutex::new(Pages::default()), marks }
    }
}

impl Desk {
    fn new() -> Desk {
        Desk {
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

/// Reads the records of all lanes in the order of their numbers. Made by [`crate::Held::join_log`]; to be ended by
/// [`crate::Held::dismiss`], and [`Reader::end`] when what was there then has been read or is not wanted.
pub struct Reader {
    /// Which of those that read at the same time it is.
    place: usize,
    /// The number of the last record that was read.
    last: u64,
    /// Whatever is still to be laid down has a larger number.
    bound: u64,
    /// The largest number of a record that was taken from a lane.
    ahead: u64,
    lanes: Vec<Taken>,
    /// The lanes that there is something of, with the number of its first record.
    heads: Vec<(u64, usize)>,
}

#[derive(Default)]
struct Taken {
    /// The first one is at the end.
    pages: Vec<Arc<Page>>,
    /// Which record of the first page comes next.
    at: usize,
    /// The number of the last record that was taken.
    last: u64,
}

impl Reader {
    /// Which of those that read at the same time it is, for those who have to do with it from outside.
    pub fn place(&self) -> usize {
        self.place
    }

    /// Ends it, having been dismissed.
    pub fn end(self, journal: &Journal) {
        let place = self.place;
        drop(self);
        journal.vacate(place);
    }

    /// Bytes laid down for it that it has not read.
    pub fn unread(&self, journal: &Journal) -> usize {
        journal.unread_by(self.place)
    }

    /// The number of the last record that was read, or of the last one before it came.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Calls `f` with the records that are there, as far as none is missing, and until it says `false`, which it says of
    /// the last one that it wants.
    pub fn read(&mut self, journal: &Journal, f: impl FnMut(Record<'_>) -> bool) {
        self.read_while(journal, |_| true, f);
    }

    /// The same, for as long as `wants` says of the next record's number that it is wanted. It is asked when that record
    /// lies before the reader: who has decided about it before it was written is heard.
    pub fn read_while(
        &mut self,
        journal: &Journal,
        wants: impl Fn(u64) -> bool,
        mut f: impl FnMut(Record<'_>) -> bool,
    ) {
        loop {
            let (before, is_held_up) = (self.last, self.take(journal));
            while let Some((place, until)) = self.next_run() {
                if !self.read_lane(journal, place, until, &wants, &mut f) {
                    return;
                }
            }
            // What was laid down since, or is ahead of the clock, is there to be read now, but for what a draft may come before.
            if self.last == before && (self.heads.is_empty() || is_held_up) {
                return;
            }
        }
    }

    /// Takes what has been laid down since, and finds out up to which number all is there. Returns whether a draft holds it up
    /// that nothing of is there yet: who lays that down wakes the reader.
    fn take(&mut self, journal: &Journal) -> bool {
        let now = journal.now().max(self.ahead);
        journal.raise(now);
        fence(SeqCst);
        let (mut bound, mut is_held_up) = (now, false);
        for (index, (lane, taken)) in journal.lanes.iter().zip(&mut self.lanes).enumerate() {
            // In this order: a draft that is not there any more has been laid down.
            let begun = lane.marks.begun.load(Acquire);
            bound = bound.min(begun);
            if lane.marks.laid.load(Acquire) == taken.last {
                is_held_up |= begun < now;
                continue;
            }
            let mut pages = lane.pages.lock();
            pages.close();
            taken.last = lane.marks.laid.load(Relaxed);
            // The first one is to be at the end.
            let mut filled = std::mem::take(&mut pages.filled[self.place]);
            drop(pages);
            self.ahead = self.ahead.max(taken.last);
            filled.reverse();
            if taken.pages.is_empty() {
                self.heads.extend(filled.last().map(|page| (page.records[0].number, index)));
            }
            filled.append(&mut taken.pages);
            taken.pages = filled;
        }
        // Not less than before: who began a draft below that since has seen the horizon, and is above it.
        self.bound = self.bound.max(bound);
        is_held_up
    }

    /// Which of the heads is the next record, and up to which number its lane has all that come then.
    #[inline]
    fn next_run(&self) -> Option<(usize, u64)> {
        let (mut place, mut least, mut second) = (0, u64::MAX, u64::MAX);
        for (index, (head, _)) in self.heads.iter().enumerate() {
            if *head < least {
                (place, least, second) = (index, *head, least);
            } else {
                second = second.min(*head);
            }
        }
        (least <= self.bound).then(|| (place, self.bound.min(second - 1)))
    }

    /// Reads the lane of one of the heads up to this number.
    fn read_lane(
        &mut self,
        journal: &Journal,
        place: usize,
        until: u64,
        wants: &impl Fn(u64) -> bool,
        f: &mut impl FnMut(Record<'_>) -> bool,
    ) -> bool {
        let lane = self.heads[place].1;
        let taken = &mut self.lanes[lane];
        let mut go_on = true;
        while let Some(page) = taken.pages.last() {
            while let Some(span) = page.records.get(taken.at)
                && span.number <= until
                && go_on
            {
                if !wants(span.number) {
                    go_on = false;
                    break;
                }
                let Span { number, first_db, last_db, is_data, .. } = *span;
                go_on = f(Record { number, bytes: page.of(span), first_db, last_db, is_data });
                self.last = number;
                taken.at += 1;
            }
            if taken.at < page.records.len() {
                break;
            }
            let page = taken.pages.pop().expect("just looked at");
            taken.at = 0;
            journal.note_read(self.place, page.weight());
            journal.recycle(lane, page);
        }
        match taken.pages.last() {
            Some(page) => self.heads[place].0 = page.records[taken.at].number,
            None => _ = self.heads.swap_remove(place),
        }
        go_on
    }

    /// Waits until something has been laid down or [`Journal::wake`] was called, for at most so long. What is in nobody's
    /// lane yet may be what is missing.
    pub fn sleep(&self, journal: &Journal, timeout: std::time::Duration) {
        let desk = &journal.desks[self.place];
        desk.sleeps.store(true, Relaxed);
        let is_filled = |lane: &Lane| lane.pages.lock().has_some_for(self.place);
        let mut woken = desk.wake.0.lock();
        if !*woken && !journal.lanes.iter().any(is_filled) {
            desk.wake.1.wait_for(&mut woken, timeout);
        }
        *woken = false;
        drop(woken);
        desk.sleeps.store(false, Relaxed);
    }
}

impl Journal {
    /// Pages that a lane keeps for reuse.
    #[cfg(test)]
    pub(crate) fn spares(&self, lane: usize) -> usize {
        self.lanes[lane].pages.lock().spare.len()
    }

    /// Only the reader itself writes how much it has read.
    fn note_read(&self, place: usize, bytes: usize) {
        let read = &self.desks[place].read;
        read.store(read.load(Relaxed) + bytes as u64, Release);
    }

    /// Gives a page back to its lane, if nobody else has still to read it. Of two who drop theirs at the same moment, it may
    /// be that each finds the other's still there: then it is freed.
    ///
    /// Each by itself: with all of them at the end of a look, the reader spends a quarter more of CPU time.
    fn recycle(&self, lane: usize, mut page: Arc<Page>) {
        let Some(own) = Arc::get_mut(&mut page) else { return };
        own.clear(); // whoever received what is in it waits for that
        let room = own.room();
        if room > SPARE_LEN_MAX {
            return;
        }
        let mut pages = self.lanes[lane].pages.lock();
        if pages.spare_len + room <= SPARES_LEN_MAX {
            pages.spare_len += room;
            pages.spare.push(page);
        }
    }
}
