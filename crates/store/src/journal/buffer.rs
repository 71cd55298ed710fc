//! The writer's side: a thread's buffer, and the page that the buffer becomes.

use std::ops::Range;
use std::sync::Arc as Shared;

use evenkeel_resp::request::Line;

use super::lent::{LentRegion, SentCommand};
use super::{CONTEXT_BITS, Journal};
use crate::sync::Arc;
use crate::sync::atomic::Ordering::*;

/// Bytes that are prefetched: more lines than that would have to wait for each other.
pub(super) const EXPECTED_LEN_MAX: usize = 1024;

/// Bytes of a cache line.
const LINE: usize = 64;

/// As many records as a batch of requests has, or a few more.
const FEW_RECORDS: usize = 64;

/// A page keeps the whole lent region. So its records must be at least this fraction of the region, as a
/// divisor.
pub const KEPT_PART: usize = 4;

/// Bytes before a record of several commands; [`EXEC`] stands behind it.
const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// Records in the order of their numbers. Each is a range of `bytes`, or of the lent region.
#[derive(Default)]
pub struct Page {
    pub(super) bytes: Vec<u8>,
    /// The region with the commands that are journalled as they were sent.
    region: Option<LentRegion>,
    pub(super) records: Vec<Span>,
    /// Bytes of all records.
    pub(super) text: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) number: u64,
    start: usize,
    end: usize,
    pub(super) first_db: u32,
    pub(super) last_db: u32,
    pub(super) is_data: bool,
    /// The range is of the lent region, not of `bytes`.
    is_lent: bool,
}

/// A write, or several that took place together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub number: u64,
    /// Redis commands as RESP arrays. If there are several, MULTI comes first and EXEC last.
    pub bytes: &'a [u8],
    /// The database to select before the record, and the database that is selected afterwards.
    pub first_db: u32,
    pub last_db: u32,
    /// The record changes data. Records that do not (PUBLISH) are for replicas.
    pub is_data: bool,
}

impl<'a> Record<'a> {
    /// Appends to `preface` what a stream with this database selected needs before the record, and returns
    /// the rest of the record. A SELECT stands behind MULTI, as in Redis, so that readers of a stream find it
    /// with the commands that it concerns.
    #[inline]
    pub fn preceded(&self, selected: Option<u32>, preface: &mut Vec<u8>) -> &'a [u8] {
        if selected == Some(self.first_db) {
            return self.bytes;
        }
        let rest = self.bytes.strip_prefix(MULTI);
        preface.extend_from_slice(if rest.is_some() { MULTI } else { b"" });
        select(preface, self.first_db);
        rest.unwrap_or(self.bytes)
    }
}

/// Records that a thread has written since it entered the gate.
#[derive(Default)]
pub struct JournalBuffer {
    pub(crate) is_on: bool,
    /// Some of the readers are replicas.
    pub(crate) has_replicas: bool,
    /// The open record: where it begins, and its commands so far.
    open: Option<Open>,
    pub(super) page: Page,
    /// The page that the records move to when the buffer is published.
    pub(super) next: Option<Arc<Page>>,
    /// The number of the last record.
    pub(super) last: u64,
    /// The value of `last` when the present batch began.
    last_before_batch: u64,
    /// The numbers of the records are above this.
    floor: u64,
}

struct Open {
    start: usize,
    commands: usize,
    /// The only command so far, if it was not copied.
    lent: Option<Lent>,
    first_db: u32,
    db: u32,
    is_data: bool,
}

/// A command in the page's region.
struct Lent {
    range: Range<usize>,
    /// The page took the region for this command.
    is_first: bool,
}

impl JournalBuffer {
    /// Appends a command to the open record.
    pub(crate) fn push<'a>(&mut self, db: u32, args: impl ExactSizeIterator<Item = &'a [u8]>) {
        put_command(self.begin_command(db, true), args);
    }

    /// Like [`JournalBuffer::push`], for a command that changes no data: only for replicas, unless the record
    /// also changes data.
    pub(crate) fn push_for_replicas<'a>(&mut self, db: u32, args: impl ExactSizeIterator<Item = &'a [u8]>) {
        put_command(self.begin_command(db, false), args);
    }

    /// Like [`JournalBuffer::push`], for a command as it was sent. It is not copied if it lies in a lent
    /// region, is the record's only command, and its page refers to no other region.
    pub(crate) fn push_sent(&mut self, db: u32, command: SentCommand<'_>) {
        if self.open.is_none()
            && let Some((region, range)) = command.in_region()
            && let Some(is_first) = self.page.refer_to(region)
        {
            let lent = Some(Lent { range: range.clone(), is_first });
            let start = self.page.bytes.len();
            self.open = Some(Open { start, commands: 1, lent, first_db: db, db, is_data: true });
            return;
        }
        self.begin_command(db, true).extend_from_slice(command.bytes());
    }

    /// Starts the next command of the record; returns the bytes to append it to.
    fn begin_command(&mut self, db: u32, is_data: bool) -> &mut Vec<u8> {
        let Page { bytes, region, .. } = &mut self.page;
        let open = self.open.get_or_insert_with(|| {
            let start = bytes.len();
            bytes.extend_from_slice(MULTI);
            Open { start, commands: 0, lent: None, first_db: db, db, is_data: false }
        });
        if let Some(Lent { range, is_first }) = open.lent.take() {
            // A second command follows, so the first is copied after all.
            bytes.extend_from_slice(MULTI);
            bytes.extend_from_slice(&region.as_ref().expect("the first command lies in it")[range]);
            if is_first {
                *region = None;
            }
        }
        if open.db != db {
            select(bytes, db);
            open.db = db;
        }
        open.commands += 1;
        open.is_data |= is_data;
        bytes
    }

    /// Marks the beginning of a batch of commands of a single client.
    #[inline]
    pub fn begin_batch(&mut self) {
        self.last_before_batch = self.last;
    }

    /// Returns the number of the last record since [`JournalBuffer::begin_batch`]; `None` without any.
    #[inline]
    pub fn last_of_batch(&self) -> Option<u64> {
        (self.last != self.last_before_batch).then_some(self.last)
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Ends the record; its number is above `above`, the last number on the held slots. The caller still
    /// holds all slots that the record concerns. Returns the number.
    pub(crate) fn commit(&mut self, journal: &Journal, ctx: usize, above: u64) -> u64 {
        let Some(Open { mut start, commands, lent, first_db, db, is_data }) = self.open.take() else {
            return self.last;
        };
        let marks = &journal.queues[ctx].marks;
        let is_first = self.page.records.is_empty();
        if is_first {
            self.floor = journal.begin_buffer(marks, self.last);
        }
        let least = self.floor.max(self.last).max(above).max(journal.now());
        self.last = ((least >> CONTEXT_BITS) + 1) << CONTEXT_BITS | ctx as u64;
        marks.last.store(self.last, Relaxed);
        if is_first {
            marks.begun.store(self.last - 1, Relaxed);
        }
        if let Some(Lent { range: Range { start, end }, .. }) = lent {
            let number = self.last;
            self.page.push(Span { number, start, end, first_db, last_db: db, is_data, is_lent: true });
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
            is_lent: false,
        });
        self.page.expect(end - start);
        self.expect_next();
        self.last
    }

    /// With the first record, prefetches the lines that the page's records will move to: by now their address
    /// is known.
    #[inline]
    fn expect_next(&self) {
        if self.page.records.len() == 1
            && let Some(next) = &self.next
        {
            let len = EXPECTED_LEN_MAX.min(next.records.capacity() * size_of::<Span>());
            prefetch_for_write(next.records.as_ptr().cast(), len);
        }
    }

    /// Drops the open record.
    pub(crate) fn forget(&mut self) {
        if let Some(open) = self.open.take() {
            self.page.bytes.truncate(open.start);
            if open.lent.is_some_and(|lent| lent.is_first) {
                self.page.region = None;
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        debug_assert!(self.open.is_none(), "a record is committed before its locks are released");
        self.page.records.is_empty()
    }
}

impl Page {
    /// Bytes of memory that the records take. Short records are smaller than their spans.
    pub(super) fn weight(&self) -> usize {
        let region = self.region.as_ref().map_or(0, |region| region.len());
        self.bytes.len() + region + self.records.len() * size_of::<Span>()
    }

    /// Bytes that the page has room for.
    pub(super) fn room(&self) -> usize {
        self.bytes.capacity() + self.records.capacity() * size_of::<Span>()
    }

    fn push(&mut self, span: Span) {
        self.text += span.end - span.start;
        self.records.push(span);
    }

    /// Makes the page refer to this region. Returns whether it did not refer to it before; `None` if it
    /// refers to another region.
    #[inline]
    fn refer_to(&mut self, region: &LentRegion) -> Option<bool> {
        match &self.region {
            Some(own) => Shared::ptr_eq(own, region).then_some(false),
            None => {
                self.region = Some(region.clone());
                Some(true)
            }
        }
    }

    /// The commands of a record.
    pub(super) fn of(&self, span: &Span) -> &[u8] {
        match &self.region {
            Some(region) if span.is_lent => &region[span.start..span.end],
            _ => &self.bytes[span.start..span.end],
        }
    }

    /// Copies the records in the lent region if they are a small part of it, since the page would keep the
    /// whole region.
    pub(super) fn copy_if_little(&mut self) {
        let text = self.text;
        let is_little = |region: &mut LentRegion| text * KEPT_PART < region.len();
        let Some(region) = self.region.take_if(is_little) else { return };
        for span in self.records.iter_mut().filter(|span| span.is_lent) {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(&region[span.start..span.end]);
            *span = Span { start, end: self.bytes.len(), is_lent: false, ..*span };
        }
    }

    /// Empties the page.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.region = None;
        self.records.clear();
        self.text = 0;
    }

    /// Moves the records of another page here; returns the bytes by which this page has grown.
    pub(super) fn take_from(&mut self, other: &mut Page) -> usize {
        let (before, weight) = (self.bytes.len(), self.weight());
        for span in &other.records {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(other.of(span));
            self.push(Span { start, end: self.bytes.len(), is_lent: false, ..*span });
        }
        other.clear();
        self.expect(self.bytes.len() - before);
        self.weight() - weight
    }

    /// Prefetches the lines of the next `len` bytes while the thread does other work. A page is reused when
    /// readers on other cores are done with it, so those cores have its lines, and a writer would wait for
    /// each line.
    #[inline]
    pub(super) fn expect(&self, len: usize) {
        let next = self.bytes.as_ptr().wrapping_add(self.bytes.len());
        let room = self.bytes.capacity() - self.bytes.len();
        prefetch_for_write(next, len.min(room).min(EXPECTED_LEN_MAX));
    }

    /// Moves all content to an empty page. The spans of few records are copied: then they wait together for
    /// the other page's lines, which readers on other cores have had. Were each span written there directly,
    /// each would wait by itself, before its slot is unlocked.
    pub(super) fn move_to(&mut self, empty: &mut Page) {
        std::mem::swap(&mut self.bytes, &mut empty.bytes);
        empty.region = self.region.take();
        if self.records.len() <= FEW_RECORDS {
            empty.records.extend_from_slice(&self.records);
            self.records.clear();
        } else {
            std::mem::swap(&mut self.records, &mut empty.records);
        }
        empty.text = std::mem::take(&mut self.text);
    }
}

/// Prefetches lines that are about to be written, so that no other core has them any more.
#[inline]
pub(super) fn prefetch_for_write(address: *const u8, len: usize) {
    (0..len.div_ceil(LINE)).for_each(|line| prefetch_line_for_write(address.wrapping_add(line * LINE)));
}

#[inline]
fn prefetch_line_for_write(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint that changes nothing, whatever the address; processors without the instruction ignore
    // it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Appends a command as a RESP array.
fn put_command<'a>(bytes: &mut Vec<u8>, args: impl ExactSizeIterator<Item = &'a [u8]>) {
    bytes.extend_from_slice(&Line::new(b'*', args.len()));
    for arg in args {
        bytes.extend_from_slice(&Line::new(b'$', arg.len()));
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
}

/// Appends SELECT as a RESP array.
pub fn select(bytes: &mut Vec<u8>, db: u32) {
    let text = db.to_string();
    bytes.extend_from_slice(b"*2\r\n$6\r\nSELECT\r\n");
    bytes.extend_from_slice(&Line::new(b'$', text.len()));
    bytes.extend_from_slice(text.as_bytes());
    bytes.extend_from_slice(b"\r\n");
}
