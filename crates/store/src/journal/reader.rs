//! The reader's side: merges the pages that all threads have published.

use super::{Journal, Page, Record, Span, WriterQueue};
use crate::sync::Arc;
use crate::sync::atomic::Ordering::*;
use crate::sync::atomic::fence;

/// Reads the records of all queues in the order of their numbers. Made by [`crate::SlotGuard::join_log`]. It
/// ends in two steps: [`crate::SlotGuard::dismiss`], and [`Reader::end`] once the remaining records have been
/// read or are not wanted.
pub struct Reader {
    /// Index of its [`super::ReaderSlot`].
    place: usize,
    /// The number of the last record that was read.
    last: u64,
    /// Records that are not published yet have larger numbers.
    bound: u64,
    /// The largest number of a record taken from a queue.
    ahead: u64,
    queues: Vec<Taken>,
    /// The queues with unread pages, each with the number of its first unread record.
    heads: Vec<(u64, usize)>,
}

#[derive(Default)]
struct Taken {
    /// In reverse: the first page is at the end.
    pages: Vec<Arc<Page>>,
    /// Index of the next record in the first page.
    at: usize,
    /// The number of the last record that was taken.
    last: u64,
}

impl Reader {
    /// Creates a reader of the records after `last`, the last record so far.
    pub(super) fn new(journal: &Journal, place: usize, last: u64) -> Reader {
        let nothing =
            |queue: &WriterQueue| Taken { last: queue.marks.published.load(Relaxed), ..Taken::default() };
        let queues = journal.queues.iter().map(nothing).collect();
        Reader { place, last, bound: last, ahead: last, queues, heads: Vec::new() }
    }

    /// Index of its reader slot, by which other threads refer to it.
    pub fn place(&self) -> usize {
        self.place
    }

    /// Ends a reader that was dismissed.
    pub fn end(self, journal: &Journal) {
        let place = self.place;
        drop(self);
        journal.vacate(place);
    }

    /// Bytes published for this reader that it has not read.
    pub fn unread(&self, journal: &Journal) -> usize {
        journal.unread_by(self.place)
    }

    /// The number of the last record that was read; before the first, of the last record before the reader
    /// joined.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Calls `f` with the available records, up to the first gap, until `f` returns false: the last record
    /// that it wants.
    pub fn read(&mut self, journal: &Journal, f: impl FnMut(Record<'_>) -> bool) {
        self.read_while(journal, |_| true, f);
    }

    /// Like [`Reader::read`], while `wants` returns true for the number of the next record. `wants` is called
    /// when that record is in front of the reader, so a decision made before the record was written takes
    /// effect.
    pub fn read_while(
        &mut self,
        journal: &Journal,
        wants: impl Fn(u64) -> bool,
        mut f: impl FnMut(Record<'_>) -> bool,
    ) {
        loop {
            let (before, is_held_up) = (self.last, self.take(journal));
            while let Some((place, until)) = self.next_run() {
                if !self.read_queue(journal, place, until, &wants, &mut f) {
                    return;
                }
            }
            // Records published since, or ahead of the clock, can be read now, unless a buffer may come
            // before them.
            if self.last == before && (self.heads.is_empty() || is_held_up) {
                return;
            }
        }
    }

    /// Takes the pages published since, and finds the number up to which no record is missing. Returns true
    /// if a buffer of which nothing is published holds the reader up: the thread that publishes it wakes the
    /// reader.
    fn take(&mut self, journal: &Journal) -> bool {
        let now = journal.now().max(self.ahead);
        journal.raise(now);
        fence(SeqCst);
        let (mut bound, mut is_held_up) = (now, false);
        for (index, (queue, taken)) in journal.queues.iter().zip(&mut self.queues).enumerate() {
            // `begun` is read first: a buffer that has gone from it has been published.
            let begun = queue.marks.begun.load(Acquire);
            bound = bound.min(begun);
            if queue.marks.published.load(Acquire) == taken.last {
                is_held_up |= begun < now;
                continue;
            }
            let mut pages = queue.pages.lock();
            pages.close();
            taken.last = queue.marks.published.load(Relaxed);
            // The first page must be at the end.
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
        // Never lowered: a thread that has since begun a buffer below the bound has seen the horizon, and is
        // above it.
        self.bound = self.bound.max(bound);
        is_held_up
    }

    /// Returns the head with the next record, and the number up to which its queue alone has the next
    /// records.
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

    /// Reads the queue of a head up to this number.
    fn read_queue(
        &mut self,
        journal: &Journal,
        place: usize,
        until: u64,
        wants: &impl Fn(u64) -> bool,
        f: &mut impl FnMut(Record<'_>) -> bool,
    ) -> bool {
        let queue = self.heads[place].1;
        let taken = &mut self.queues[queue];
        let mut wants_more = true;
        while let Some(page) = taken.pages.last() {
            while let Some(span) = page.records.get(taken.at)
                && span.number <= until
                && wants_more
            {
                if !wants(span.number) {
                    wants_more = false;
                    break;
                }
                let Span { number, first_db, last_db, is_data, .. } = *span;
                wants_more = f(Record { number, bytes: page.of(span), first_db, last_db, is_data });
                self.last = number;
                taken.at += 1;
            }
            if taken.at < page.records.len() {
                break;
            }
            let page = taken.pages.pop().expect("just looked at");
            taken.at = 0;
            journal.add_read(self.place, page.weight());
            journal.recycle(queue, page);
        }
        match taken.pages.last() {
            Some(page) => self.heads[place].0 = page.records[taken.at].number,
            None => _ = self.heads.swap_remove(place),
        }
        wants_more
    }

    /// Waits until a page has been published or [`Journal::wake`] was called, for `timeout` at most. The
    /// missing record may be in a buffer that is in no queue yet.
    pub fn sleep(&self, journal: &Journal, timeout: std::time::Duration) {
        let reader_slot = &journal.reader_slots[self.place];
        reader_slot.sleeps.store(true, Relaxed);
        let is_filled = |queue: &WriterQueue| queue.pages.lock().has_some_for(self.place);
        let mut woken = reader_slot.wake.0.lock();
        if !*woken && !journal.queues.iter().any(is_filled) {
            reader_slot.wake.1.wait_for(&mut woken, timeout);
        }
        *woken = false;
        drop(woken);
        reader_slot.sleeps.store(false, Relaxed);
    }
}
