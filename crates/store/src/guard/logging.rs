//! Journalling by a guard: see [`crate::journal`].

use std::sync::atomic::Ordering::Relaxed;

use crate::guard::SlotGuard;
use crate::journal::{Reader, SentCommand};
use crate::key::Place;

/// Why a key that no client removes is removed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause {
    Expired = 0,
    Evicted = 1,
}

impl SlotGuard<'_> {
    /// Returns true if writes are journalled.
    #[inline]
    pub fn is_logged(&self) -> bool {
        self.ctx.buffer.is_on
    }

    /// Logs a command with the same effect as the changes made under this guard. All commands logged before
    /// the locks are released form a transaction. Does nothing if writes are not journalled.
    #[inline]
    pub fn log<'a>(&mut self, db: u32, args: impl ExactSizeIterator<Item = &'a [u8]>) {
        if self.ctx.buffer.is_on {
            self.ctx.buffer.push(db, args);
            self.ctx.log_overrides += 1;
        }
    }

    /// Like [`SlotGuard::log`], for a command as its client sent it. The journal may keep it where it lies.
    #[inline]
    pub fn log_as_sent(&mut self, db: u32, command: SentCommand<'_>) {
        if self.ctx.buffer.is_on {
            self.ctx.buffer.push_sent(db, command);
            self.ctx.log_overrides += 1;
        }
    }

    /// Sends replicas a command that changes no data. Does nothing if there are none.
    #[inline]
    pub fn propagate<'a>(&mut self, db: u32, args: impl ExactSizeIterator<Item = &'a [u8]>) {
        if self.ctx.buffer.has_replicas {
            self.ctx.buffer.push_for_replicas(db, args);
        }
    }

    /// States that the changes so far need no log entry beyond the present entries.
    #[inline]
    pub fn log_nothing(&mut self) {
        self.ctx.log_overrides += 1;
    }

    /// Number of times that a command has stated its own log entry. If it has grown, the command need not be
    /// logged as it came.
    #[inline]
    pub fn log_overrides(&self) -> u64 {
        self.ctx.log_overrides
    }

    /// Adds a reader of all records from now on; everything is held.
    pub fn join_log(&mut self) -> Reader {
        self.publish();
        let reader = self.keyspace().journal.join();
        self.sync_flags();
        reader
    }

    /// Like [`SlotGuard::join_log`], for replicas: they also get commands that change no data.
    pub fn join_log_for_replicas(&mut self) -> Reader {
        let reader = self.join_log();
        self.keyspace().journal.set_replica(reader.place());
        self.sync_flags();
        reader
    }

    /// Ends publishing for the reader at this place; everything is held. It may still read the earlier
    /// records, until it ends.
    pub fn dismiss(&mut self, place: usize) {
        self.publish();
        self.keyspace().journal.dismiss(place);
        self.sync_flags();
    }

    /// Updates the flags of the guard's own context after readers have come or gone.
    fn sync_flags(&mut self) {
        self.keyspace().sync_flags(self.ctx);
    }

    /// Publishes all records so far, for the present readers.
    fn publish(&mut self) {
        assert!(self.holds_all(), "readers change at one moment, for all threads");
        self.commit();
        if !self.ctx.buffer.is_empty() {
            self.keyspace().journal.publish(self.ctx.index, &mut self.ctx.buffer);
        }
    }

    /// Number of changes that are not logged yet, for callers that compare before and after. Changes that no
    /// client requested, such as an expiry, are logged where they are made and do not count.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.ctx.tally.dirty.load(Relaxed).wrapping_sub(self.ctx.logged_unasked)
    }

    /// Logs the removal of a key that no client requested.
    #[inline]
    pub(crate) fn log_removal(&mut self, place: Place, key: &[u8], cause: Cause) {
        if self.ctx.buffer.is_on {
            let unlinks = self.keyspace().unlinks[cause as usize].load(Relaxed);
            let name = if unlinks { &b"UNLINK"[..] } else { b"DEL" };
            self.log_unasked(place, [name, key].into_iter(), 1);
        }
    }

    /// Logs `changes` changes that no client requested.
    pub(crate) fn log_unasked<'a>(
        &mut self,
        place: Place,
        args: impl ExactSizeIterator<Item = &'a [u8]>,
        changes: u64,
    ) {
        if self.ctx.buffer.is_on {
            self.ctx.buffer.push(place.db() as u32, args);
            self.ctx.logged_unasked = self.ctx.logged_unasked.wrapping_add(changes);
        }
    }

    /// Ends the record of the commands logged under the locks that are about to be released.
    #[inline]
    pub(crate) fn commit(&mut self) {
        if self.ctx.buffer.is_open() {
            self.end_record();
        }
    }

    /// The record comes after the last record of every slot held, including slots that were only read: its
    /// commands may use values read there.
    fn end_record(&mut self) {
        let (keyspace, above) = (self.keyspace(), self.last_logged());
        let number = self.ctx.buffer.commit(&keyspace.journal, self.ctx.index, above);
        match self.holds_all() {
            true => keyspace.journal.raise(number),
            false => self.set_logged(number),
        }
    }
}
