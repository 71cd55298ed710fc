//! What happens to keys, for who wants to know all of it: keyspace notifications, and caches that clients keep.
//!
//! Nobody wants to know it nearly always, and then it costs one relaxed load per change. Otherwise the thread that holds
//! the key notes what happens, in order, and hands it to the one [`Listener`] before it lets go of the key. So of two
//! changes of a key the listener hears in the order in which they were made, whoever makes them. What the listener makes of that it
//! may keep until the keys are let go of ([`Listener::send`]), to send it in one piece.
//!
//! What a change is called depends on the command, of which the store knows nothing. Whoever runs the command adds names to
//! what has been noted ([`SlotGuard::say`]) while the key is still held.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::guard::SlotGuard;
use crate::key::Place;

/// Who hears what happens.
pub trait Listener: Send + Sync {
    /// What one command has done. The keys are still held by this thread; must not wait for anybody who may wait for keys.
    fn hear(&self, events: &[Event]);

    /// All that has been done under locks that are about to be released, every part of which has been heard: if it is wanted.
    fn let_go(&self, events: &[Event]);

    /// Sends what this thread's calls have kept. The keys are held still.
    fn send(&self);

    /// Whether [`Listener::let_go`] is to have what has been heard: a transaction may do as much as it likes.
    fn wants_all(&self) -> bool;
}

/// What has happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It was not there and is.
    Added,
    /// It has got another value or deadline.
    Written,
    /// It is not there any more; may follow one of the next two.
    Removed,
    /// Its time has passed.
    Expired,
    /// Some fields of a hash are gone, since their time has passed: it has got another value.
    FieldsExpired,
    /// The same of all fields of a hash, which is removed with them.
    AllFieldsExpired,
    /// Memory was short.
    Evicted,
    /// Somebody asked for it, and it was not there.
    Missed,
    /// The name of what a command has done to it, and the class of that.
    Said(u32, &'static str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub db: u32,
    pub key: Box<[u8]>,
    pub what: What,
    /// The number of the client whose command has done it; zero: nobody's.
    pub by: u64,
}

/// Whether anybody wants to hear, and who.
#[derive(Default)]
pub struct Events {
    wanted: AtomicU32,
    listener: OnceLock<Arc<dyn Listener>>,
}

impl Events {
    /// Bits of [`Events::want`]: messages with the names of what happens, and caches that clients keep.
    pub const NOTICES: u32 = 1;
    pub const CACHES: u32 = 2;

    /// The listener, from now on; there is one at most.
    pub fn set_listener(&self, listener: Arc<dyn Listener>) {
        assert!(self.listener.set(listener).is_ok(), "there is one listener");
    }

    /// Whether somebody wants to hear for this reason. Who turns it on hears of every change that takes the key's lock
    /// after a command that was run after this.
    pub fn want(&self, reason: u32, wanted: bool) {
        if wanted {
            self.wanted.fetch_or(reason, Relaxed);
        } else {
            self.wanted.fetch_and(!reason, Relaxed);
        }
    }

    /// Whether names are wanted, not only that something has happened.
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
    /// Whether somebody wants to hear what happens to keys.
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

    /// Says what a command has done to a key, which is held.
    pub fn say(&mut self, db: u32, key: &[u8], class: u32, name: &'static str) {
        if self.keyspace().events.are_notices_wanted() {
            self.note_event(db, key, What::Said(class, name));
        }
    }

    /// Takes back what has been noted from a point on, to be noted anew with names.
    pub fn take_events(&mut self, from: usize) -> Vec<Event> {
        self.ctx.events.split_off(from.min(self.ctx.events.len()))
    }

    /// Notes what has been taken, or a part of it.
    pub fn put_event(&mut self, event: Event) {
        self.ctx.events.push(event);
    }

    /// How much has been noted since the keys were locked.
    pub fn events_noted(&self) -> usize {
        self.ctx.events.len()
    }

    /// A command is done: hands what it has done to the listener. Otherwise what the next one of a transaction reads would
    /// seem to have been changed by this one.
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

    /// The listener keeps messages for those who are to be told of what is done here, until the keys are let go of. While everything is
    /// held nobody else sends any, so they are sent at once.
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

    /// What was done since the keys were locked has been taken back.
    pub(crate) fn forget_events(&mut self) {
        self.ctx.events.clear();
        self.ctx.events_heard = 0;
    }

    /// The keys are about to be let go of.
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
