//! What is held and the log: see [`crate::journal`].

use crate::guard::SlotGuard;
use crate::journal::Reader;
use crate::key::Place;

impl SlotGuard<'_> {
    /// Whether writes are to be logged.
    #[inline]
    pub fn is_logged(&self) -> bool {
        self.ctx.buffer.is_on
    }

    /// Logs a command with the same effect as what has been done with what is held. All that is logged before the locks
    /// are released is one transaction. Does nothing when writes are not logged.
    #[inline]
    pub fn log<'a>(&mut self, db: u32, args: impl ExactSizeIterator<Item = &'a [u8]>) {
        if self.ctx.buffer.is_on {
            self.ctx.buffer.push(db, args);
            self.ctx.log_overrides += 1;
        }
    }

    /// The same for a command that is an array of bulk strings already.
    #[inline]
    pub fn log_encoded(&mut self, db: u32, command: &[u8]) {
        if self.ctx.buffer.is_on {
            self.ctx.buffer.push_encoded(db, command);
            self.ctx.log_overrides += 1;
        }
    }

    /// Tells replicas of a command that changes no data. Does nothing when there are none.
    #[inline]
    pub fn tell_replicas<'a>(&mut self, db: u32, args: impl ExactSizeIterator<Item = &'a [u8]>) {
        if self.ctx.buffer.has_replicas {
            self.ctx.buffer.push_aside(db, args);
        }
    }

    /// Says that what has been done so far needs no logging, or none beyond what was logged.
    #[inline]
    pub fn log_nothing(&mut self) {
        self.ctx.log_overrides += 1;
    }

    /// How often it was said what to log: if that has changed since, a command need not be logged as it came.
    #[inline]
    pub fn log_overrides(&self) -> u64 {
        self.ctx.log_overrides
    }

    /// A reader of what is logged from now on; everything is held.
    pub fn join_log(&mut self) -> Reader {
        self.publish();
        let reader = self.keyspace().journal.join();
        self.sync_flags();
        reader
    }

    /// The same for replicas, who are told of more than changes of data.
    pub fn join_log_for_replicas(&mut self) -> Reader {
        let reader = self.join_log();
        self.keyspace().journal.note_replica(reader.place());
        self.sync_flags();
        reader
    }

    /// What is logged from now on is not for the reader at this place; everything is held. What was logged before it may
    /// still read, until it ends.
    pub fn dismiss(&mut self, place: usize) {
        self.publish();
        self.keyspace().journal.dismiss(place);
        self.sync_flags();
    }

    /// What the holder's own seat has to know of who reads now.
    fn sync_flags(&mut self) {
        self.keyspace().sync_flags(self.ctx);
    }

    /// Has all that was logged so far laid down, for those who read now.
    fn publish(&mut self) {
        assert!(self.holds_all(), "who reads the log changes at one moment");
        self.commit();
        if !self.ctx.buffer.is_empty() {
            self.keyspace().journal.publish(self.ctx.index, &mut self.ctx.buffer);
        }
    }

    /// How many changes have been made that are not logged yet, for who compares before and after: those that nobody
    /// asked for, as when a key expires, are logged where they are made.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.ctx.tally.dirty.load(std::sync::atomic::Ordering::Relaxed).wrapping_sub(self.ctx.logged_aside)
    }

    /// Logs that a key is removed which nobody asked to be removed.
    #[inline]
    pub(crate) fn log_removal(&mut self, place: Place, key: &[u8]) {
        if self.ctx.buffer.is_on {
            self.log_aside(place, [b"DEL", key].into_iter(), 1);
        }
    }

    /// Logs so many changes that nobody asked for.
    pub(crate) fn log_aside<'a>(
        &mut self,
        place: Place,
        args: impl ExactSizeIterator<Item = &'a [u8]>,
        changes: u64,
    ) {
        if self.ctx.buffer.is_on {
            self.ctx.buffer.push(place.db() as u32, args);
            self.ctx.logged_aside = self.ctx.logged_aside.wrapping_add(changes);
        }
    }

    /// Ends the record of what has been logged under the locks that are about to be released.
    #[inline]
    pub(crate) fn commit(&mut self) {
        if self.ctx.buffer.is_open() {
            self.end_record();
        }
    }

    /// The record comes behind those of all slots that are held, also of those that were only read: it may say what to do
    /// with what was in them.
    fn end_record(&mut self) {
        let (keyspace, above) = (self.keyspace(), self.last_logged());
        let number = self.ctx.buffer.commit(&keyspace.journal, self.ctx.index, above);
        match self.holds_all() {
            true => keyspace.journal.raise(number),
            false => self.note_logged(number),
        }
    }
}
