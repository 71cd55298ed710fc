//! Keyspace events: every change of a key, for keyspace notifications and for client-side caches.
//!
//! Nearly always no listener wants events, and then a change costs one relaxed load. Otherwise the thread
//! that holds the key records its events in order, and hands them to the [`Listener`] before it unlocks the
//! key. So the listener receives two changes of a key in the order in which they were made, whatever threads
//! make them. The listener may keep its messages until the keys are unlocked ([`Listener::send`]), to send
//! them together.
//!
//! The name of an event depends on the command, and the store knows no commands. The caller that runs the
//! command adds names to the recorded events ([`SlotGuard::say`]) while the key is still held.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::guard::SlotGuard;
use crate::key::Place;

/// Receives events.
pub trait Listener: Send + Sync {
    /// Receives the events of a command. This thread still holds the keys, so the listener must not wait for
    /// a thread that may wait for keys.
    fn hear(&self, events: &[Event]);

    /// Receives all events under locks that are about to be released, if [`Listener::wants_all`]; `hear` has
    /// received each of them before.
    fn let_go(&self, events: &[Event]);

    /// Sends the messages that this thread's calls have kept. The keys are still held.
    fn send(&self);

    /// Returns true if [`Listener::let_go`] is to receive all events again: a transaction may have any number
    /// of them.
    fn wants_all(&self) -> bool;
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The key did not exist and does now.
    Added,
    /// The key has a new value or deadline.
    Written,
    /// The key is gone; may follow `Expired` or `AllFieldsExpired`.
    Removed,
    /// The deadline of the key has passed.
    Expired,
    /// Some fields of a hash have expired, so its value has changed.
    FieldsExpired,
    /// All fields of a hash have expired, and the hash is removed with them.
    AllFieldsExpired,
    /// The key was evicted, since memory was short.
    Evicted,
    /// A lookup did not find the key.
    Missed,
    /// The class and the name of a command's effect on the key.
    Said(u32, &'static str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub db: u32,
    pub key: Box<[u8]>,
    pub what: What,
    /// Number of the client whose command caused the event; zero: no client's.
    pub by: u64,
}

/// The listener, and whether it wants events.
#[derive(Default)]
pub struct Events {
    wanted: AtomicU32,
    listener: OnceLock<Arc<dyn Listener>>,
}

impl Events {
    /// Bits of [`Events::want`]: messages with the names of events, and client-side caches.
    pub const NOTICES: u32 = 1;
    pub const CACHES: u32 = 2;

    /// Sets the listener; at most once.
    pub fn set_listener(&self, listener: Arc<dyn Listener>) {
        assert!(self.listener.set(listener).is_ok(), "there is one listener");
    }

    /// Sets whether events are wanted for a reason. A client that turns them on gets every change that locks
    /// its key after a command that ran after this call.
    pub fn want(&self, reason: u32, wanted: bool) {
        if wanted {
            self.wanted.fetch_or(reason, Relaxed);
        } else {
            self.wanted.fetch_and(!reason, Relaxed);
        }
    }

    /// Returns true if names are wanted, not just the changes.
    #[inline]
    pub fn are_notices_wanted(&self) -> bool {
        self.wanted.load(Relaxed) & Events::NOTICES != 0
    }

    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed) != 0
    }
}

impl SlotGuard<'_> {
    /// Returns true if the listener wants events.
    #[inline]
    pub fn is_listened_to(&self) -> bool {
        self.keyspace().events.is_wanted()
    }

    #[inline]
    pub(crate) fn emit(&mut self, place: Place, key: &[u8], what: What) {
        if self.keyspace().events.is_wanted() {
            self.note_event(place.db() as u32, key, what);
        }
    }

    #[cold]
    fn note_event(&mut self, db: u32, key: &[u8], what: What) {
        if self.ctx.is_unheard {
            return;
        }
        let by = self.ctx.acting;
        self.ctx.events.push(Event { db, key: key.into(), what, by });
    }

    /// Records the name of a command's effect on a key, which is held.
    pub fn say(&mut self, db: u32, key: &[u8], class: u32, name: &'static str) {
        if self.keyspace().events.are_notices_wanted() {
            self.note_event(db, key, What::Said(class, name));
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
        if self.ctx.events_heard < self.ctx.events.len() {
            self.report_events_now();
        }
    }

    #[cold]
    fn report_events_now(&mut self) {
        let listener = self.keyspace().events.listener.get();
        if let Some(listener) = listener {
            listener.hear(&self.ctx.events[self.ctx.events_heard..]);
        }
        if listener.is_some_and(|listener| listener.wants_all()) {
            self.ctx.events_heard = self.ctx.events.len();
        } else {
            self.forget_events();
        }
        self.note_messages();
    }

    /// Records that the listener keeps messages until the keys are unlocked. While everything is held no
    /// other thread sends messages, so they are sent at once.
    pub fn note_messages(&mut self) {
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
        self.ctx.events_heard = 0;
    }

    /// Notifies the listener before the keys are unlocked.
    #[inline]
    pub(crate) fn tell_listener(&mut self) {
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
            listener.let_go(&self.ctx.events);
            self.forget_events();
            self.ctx.has_messages = true;
        }
        self.send_messages();
    }
}
