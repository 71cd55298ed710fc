//! What a seat writes: its draft, and the page that it becomes.

use std::ops::Range;
use std::sync::Arc as Shared;

use evenkeel_resp::request::Line;

use super::{Journal, SEAT_BITS};
use crate::sync::Arc;
use crate::sync::atomic::Ordering::*;

/// Bytes that the cache is asked for ahead: more lines than that would have to wait for each other.
pub(super) const EXPECTED_LEN_MAX: usize = 1024;

/// Bytes of a cache line.
const LINE: usize = 64;

/// As many as a batch of requests has, or a few more.
const FEW_RECORDS: usize = 64;

/// What was received is kept as a whole. So records have to be this part of it at least, as a divisor.
pub const KEPT_PART: usize = 4;

/// What stands before a record of several commands, and behind it.
const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// Records in the order of their numbers, each a stretch of the bytes, or of what was received.
#[derive(Default)]
pub struct Page {
    pub(super) bytes: Vec<u8>,
    /// What was received, with commands in it that are logged as they came.
    received: Option<Received>,
    pub(super) records: Vec<Span>,
    /// Bytes of all records.
    pub(super) text: usize,
}

/// Memory that requests were read into. As long as the log has it, it does not change.
pub type Received = Shared<Box<[u8]>>;

#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) number: u64,
    start: usize,
    end: usize,
    pub(super) first_db: u32,
    pub(super) last_db: u32,
    pub(super) is_data: bool,
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
pub struct JournalBuffer {
    pub(crate) is_on: bool,
    /// Some of those who read are replicas.
    pub(crate) has_replicas: bool,
    /// What the requests are in that are being run, if the log may keep it as it is: to copy them would cost the thread that
    /// serves clients more than all else that the log does, since the memory for the copy comes from another core's cache.
    pub received: Option<Received>,
    /// Where the record that is being written begins, and its commands so far.
    open: Option<Open>,
    pub(super) page: Page,
    /// The one that its records go to when it is laid down.
    pub(super) next: Option<Arc<Page>>,
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

impl JournalBuffer {
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
    pub(crate) fn commit(&mut self, journal: &Journal, ctx: usize, above: u64) -> u64 {
        let Some(Open { mut start, commands, received, first_db, db, is_data }) = self.open.take() else {
            return self.last;
        };
        let marks = &journal.queues[ctx].marks;
        let is_first = self.page.records.is_empty();
        if is_first {
            self.floor = journal.begin_draft(marks, self.last);
        }
        let least = self.floor.max(self.last).max(above).max(journal.now());
        self.last = ((least >> SEAT_BITS) + 1) << SEAT_BITS | ctx as u64;
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
    pub(super) fn weight(&self) -> usize {
        let received = self.received.as_ref().map_or(0, |received| received.len());
        self.bytes.len() + received + self.records.len() * size_of::<Span>()
    }

    /// Bytes that it has room for.
    pub(super) fn room(&self) -> usize {
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
    pub(super) fn of(&self, span: &Span) -> &[u8] {
        match &self.received {
            Some(received) if span.is_received => &received[span.start..span.end],
            _ => &self.bytes[span.start..span.end],
        }
    }

    /// Copies what it has of what was received, if that is a small part of it: it would be kept as a whole.
    pub(super) fn copy_if_little(&mut self) {
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
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.received = None;
        self.records.clear();
        self.text = 0;
    }

    /// Moves another one's records here; returns how much heavier it is.
    pub(super) fn take_from(&mut self, other: &mut Page) -> usize {
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
    pub(super) fn expect(&self, len: usize) {
        let next = self.bytes.as_ptr().wrapping_add(self.bytes.len());
        let room = self.bytes.capacity() - self.bytes.len();
        prefetch_for_write(next, len.min(room).min(EXPECTED_LEN_MAX));
    }

    /// Gives all that it has to an empty page, and becomes one. What is known of few records is copied: then they wait together
    /// for the other page's lines, which readers on other cores have had. Each that was written there would wait by
    /// itself, before it lets go of its slot.
    pub(super) fn move_to(&mut self, empty: &mut Page) {
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
pub(super) fn prefetch_for_write(address: *const u8, len: usize) {
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
