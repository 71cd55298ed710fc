//! Recording events of the keys held, and handing them to the listener: see [`crate::notify::events`].

use super::SlotGuard;
use crate::key::Place;
use crate::notify::events::{Event, Fields, What};

impl SlotGuard<'_> {
    /// Returns true if the listener wants events.
    #[inline]
    pub fn is_listened_to(&self) -> bool {
        self.keyspace().events.is_wanted()
    }

    #[inline]
    pub(crate) fn emit(&mut self, place: Place, key: &[u8], what: What) {
        if self.keyspace().events.is_wanted() {
            self.record_event(place.db() as u32, key, what, Fields::default());
        }
    }

    /// Records an event about fields of a hash; see [`crate::events::Events::are_fields_wanted`].
    pub(crate) fn emit_fields(&mut self, place: Place, key: &[u8], what: What, fields: Fields) {
        if self.keyspace().events.is_wanted() {
            self.record_event(place.db() as u32, key, what, fields);
        }
    }

    #[cold]
    fn record_event(&mut self, db: u32, key: &[u8], what: What, fields: Fields) {
        if self.ctx.suppresses_events {
            return;
        }
        let by = self.ctx.acting;
        self.ctx.events.push(Event { db, key: key.into(), what, fields, by });
    }

    /// Records the name of a command's effect on a key, which is held.
    pub fn say(&mut self, db: u32, key: &[u8], class: u32, name: &'static str) {
        self.say_fields(db, key, class, name, Fields::default());
    }

    /// Like [`SlotGuard::say`], for an effect on these fields of a hash.
    pub fn say_fields(&mut self, db: u32, key: &[u8], class: u32, name: &'static str, fields: Fields) {
        if self.keyspace().events.are_notices_wanted() {
            self.record_event(db, key, What::Said(class, name), fields);
        }
    }

    /// Takes back the events from an index on, to be recorded anew with names.
    pub fn take_events(&mut self, from: usize) -> Vec<Event> {
        self.ctx.events.split_off(from.min(self.ctx.events.len()))
    }

    /// Records an event that was taken, or a part of it.
    pub fn put_event(&mut self, event: Event) {
        self.ctx.events.push(event);
    }

    /// Number of events recorded since the keys were locked.
    pub fn events_noted(&self) -> usize {
        self.ctx.events.len()
    }

    /// Hands the events of a finished command to the listener. Without this, a read of the transaction's next
    /// command would seem to come before this command's changes.
    #[inline]
    pub fn report_events(&mut self) {
        if self.ctx.events_reported < self.ctx.events.len() {
            self.report_events_now();
        }
    }

    #[cold]
    fn report_events_now(&mut self) {
        let listener = self.keyspace().events.listener.get();
        if let Some(listener) = listener {
            listener.on_events(&self.ctx.events[self.ctx.events_reported..]);
        }
        if listener.is_some_and(|listener| listener.wants_all()) {
            self.ctx.events_reported = self.ctx.events.len();
        } else {
            self.forget_events();
        }
        self.record_messages();
    }

    /// Records that the listener keeps messages until the keys are unlocked. While everything is held no
    /// other thread sends messages, so they are sent at once.
    pub fn record_messages(&mut self) {
        self.ctx.has_messages = true;
        if self.holds_all() {
            self.send_messages();
        }
    }

    /// Sends the messages that the listener keeps.
    pub fn send_messages(&mut self) {
        if std::mem::take(&mut self.ctx.has_messages)
            && let Some(listener) = self.keyspace().events.listener.get()
        {
            listener.send();
        }
    }

    /// Drops the events: the changes since the keys were locked have been undone.
    pub(crate) fn forget_events(&mut self) {
        self.ctx.events.clear();
        self.ctx.events_reported = 0;
    }

    /// Notifies the listener before the keys are unlocked.
    #[inline]
    pub(crate) fn notify_listener(&mut self) {
        self.report_events();
        if self.ctx.has_messages || !self.ctx.events.is_empty() {
            self.end_events();
        }
    }

    #[cold]
    fn end_events(&mut self) {
        if !self.ctx.events.is_empty()
            && let Some(listener) = self.keyspace().events.listener.get()
        {
            listener.before_unlock(&self.ctx.events);
            self.forget_events();
            self.ctx.has_messages = true;
        }
        self.send_messages();
    }
}
