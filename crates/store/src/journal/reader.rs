//! Merging what all seats have laid down.

use super::{Journal, Page, Record, Span, WriterQueue};
use crate::sync::Arc;
use crate::sync::atomic::Ordering::*;
use crate::sync::atomic::fence;

/// Reads the records of all lanes in the order of their numbers. Made by [`crate::SlotGuard::join_log`]; to be ended by
/// [`crate::SlotGuard::dismiss`], and [`Reader::end`] when what was there then has been read or is not wanted.
pub struct Reader {
    /// Which of those that read at the same time it is.
    place: usize,
    /// The number of the last record that was read.
    last: u64,
    /// Whatever is still to be laid down has a larger number.
    bound: u64,
    /// The largest number of a record that was taken from a lane.
    ahead: u64,
    queues: Vec<Taken>,
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
    /// Of what comes behind a record with this number, the last one of all so far.
    pub(super) fn new(journal: &Journal, place: usize, last: u64) -> Reader {
        let nothing =
            |queue: &WriterQueue| Taken { last: queue.marks.published.load(Relaxed), ..Taken::default() };
        let queues = journal.queues.iter().map(nothing).collect();
        Reader { place, last, bound: last, ahead: last, queues, heads: Vec::new() }
    }

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
        for (index, (queue, taken)) in journal.queues.iter().zip(&mut self.queues).enumerate() {
            // In this order: a draft that is not there any more has been laid down.
            let begun = queue.marks.begun.load(Acquire);
            bound = bound.min(begun);
            if queue.marks.published.load(Acquire) == taken.last {
                is_held_up |= begun < now;
                continue;
            }
            let mut pages = queue.pages.lock();
            pages.close();
            taken.last = queue.marks.published.load(Relaxed);
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
        let queue = self.heads[place].1;
        let taken = &mut self.queues[queue];
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
            journal.recycle(queue, page);
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
