//! Keyspace events: every change of a key, for keyspace notifications and for client-side caches.
//!
//! Nearly always no listener wants events, and then a change costs one relaxed load. Otherwise the thread
//! that holds the key records its events in order, and hands them to the [`Listener`] before it unlocks the
//! key. So the listener receives two changes of a key in the order in which they were made, whatever threads
//! make them. The listener may keep its messages until the keys are unlocked ([`Listener::send`]), to send
//! them together.
//!
//! The name of an event depends on the command, and the store knows no commands. The caller that runs the
//! command adds names to the recorded events ([`crate::SlotGuard::say`]) while the key is still held.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Receives events.
pub trait Listener: Send + Sync {
    /// Receives the events of a command. This thread still holds the keys, so the listener must not wait for
    /// a thread that may wait for keys.
    fn on_events(&self, events: &[Event]);

    /// Receives all events under locks that are about to be released, if [`Listener::wants_all`]; `on_events`
    /// has received each of them before.
    fn before_unlock(&self, events: &[Event]);

    /// Sends the messages that this thread's calls have kept. The keys are still held.
    fn send(&self);

    /// Returns true if [`Listener::before_unlock`] is to receive all events again: a transaction may have any
    /// number of them.
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
    /// A write has replaced expired fields of a hash.
    FieldsReplaced,
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
    /// The fields of a hash that the event is about, if their names are wanted.
    pub fields: Fields,
    /// Number of the client whose command caused the event; zero: no client's.
    pub by: u64,
}

/// Names of fields.
pub type Fields = Box<[Box<[u8]>]>;

/// The listener, and whether it wants events.
#[derive(Default)]
pub struct Events {
    wanted: AtomicU32,
    pub(crate) listener: OnceLock<Arc<dyn Listener>>,
}

impl Events {
    /// Bits of [`Events::want`]: messages with the names of events, client-side caches, and the names of the
    /// fields that an event is about. Whoever wants names of fields wants names of events.
    pub const NOTICES: u32 = 1;
    pub const CACHES: u32 = 2;
    pub const FIELDS: u32 = 4;

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

    /// Returns true if names of fields are wanted.
    #[inline]
    pub fn are_fields_wanted(&self) -> bool {
        self.wanted.load(Relaxed) & Events::FIELDS != 0
    }

    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed) != 0
    }
}
