//! Keyspace notifications: events of keys, published to subscribers.
//!
//! The store records events while a listener is registered ([`evenkeel_store::events`]), and commands add
//! their names ([`crate::command::events`]). This module publishes the classes selected by
//! `notify-keyspace-events`, all of a unit together ([`unit`]). It runs while the keys are still locked, so
//! the messages about a key arrive in the order of its changes.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use evenkeel_store::events::{Event, Listener, What};

use super::PubSub;
use super::unit::{self, Message};
use crate::monitor::Monitors;
use crate::tracking::Tracking;

/// Publish to the channel of the key.
const BY_KEY: u32 = 1 << 0;
/// Publish to the channel of the event.
const BY_EVENT: u32 = 1 << 1;
pub(crate) const GENERIC: u32 = 1 << 2;
pub(crate) const STRING: u32 = 1 << 3;
pub(crate) const LIST: u32 = 1 << 4;
pub(crate) const SET: u32 = 1 << 5;
pub(crate) const HASH: u32 = 1 << 6;
pub(crate) const ZSET: u32 = 1 << 7;
const EXPIRED: u32 = 1 << 8;
const EVICTED: u32 = 1 << 9;
pub(crate) const STREAM: u32 = 1 << 10;
pub(crate) const MISSES: u32 = 1 << 11;
const MODULE: u32 = 1 << 13;
pub(crate) const NEW: u32 = 1 << 14;
const ALL: u32 = GENERIC | STRING | LIST | SET | HASH | ZSET | EXPIRED | EVICTED | STREAM | MODULE;

/// Returns the classes for the letters of `notify-keyspace-events`; zero if no channel would get messages.
pub(crate) fn classes(messages: &[u8]) -> u32 {
    let class = |message: &u8| match message {
        b'K' => BY_KEY,
        b'E' => BY_EVENT,
        b'A' => ALL,
        b'g' => GENERIC,
        b'$' => STRING,
        b'l' => LIST,
        b's' => SET,
        b'h' => HASH,
        b'z' => ZSET,
        b'x' => EXPIRED,
        b'e' => EVICTED,
        b't' => STREAM,
        b'm' => MISSES,
        b'd' => MODULE,
        b'n' => NEW,
        _ => 0,
    };
    let classes = messages.iter().map(class).fold(0, |all, one| all | one);
    if classes & (BY_KEY | BY_EVENT) == 0 || classes & !(BY_KEY | BY_EVENT) == 0 { 0 } else { classes }
}

/// The listener for events; see the module's text.
pub(crate) struct Notices {
    classes: AtomicU32,
    pubsub: Arc<PubSub>,
    /// Receives the same events.
    tracking: Arc<Tracking>,
    /// Its lines are sent with the messages of the same unit.
    monitors: Arc<Monitors>,
}

impl Notices {
    pub(crate) fn new(pubsub: Arc<PubSub>, tracking: Arc<Tracking>, monitors: Arc<Monitors>) -> Notices {
        Notices { classes: AtomicU32::new(0), pubsub, tracking, monitors }
    }

    /// Publishes these classes from now on. Returns whether there are any.
    pub(crate) fn configure(&self, messages: &[u8]) -> bool {
        let classes = classes(messages);
        self.classes.store(classes, Relaxed);
        classes != 0
    }

    fn publish(&self, class: u32, name: &str, event: &Event) {
        let classes = self.classes.load(Relaxed);
        if classes & class == 0 {
            return;
        }
        let mut channel = Vec::new();
        // Writing to memory cannot fail, here and below.
        if classes & BY_KEY != 0 {
            let _ = write!(channel, "__keyspace@{}__:", event.db);
            channel.extend_from_slice(&event.key);
            self.keep(&channel, name.as_bytes());
        }
        if classes & BY_EVENT != 0 {
            channel.clear();
            let _ = write!(channel, "__keyevent@{}__:{name}", event.db);
            self.keep(&channel, &event.key);
        }
    }

    fn keep(&self, channel: &[u8], text: &[u8]) {
        if self.pubsub.may_be_heard(channel) {
            unit::keep(Message::Published { channel: channel.into(), text: text.into() });
        }
    }
}

impl Listener for Notices {
    fn send(&self) {
        unit::deliver(&self.pubsub, &self.monitors);
    }

    fn wants_all(&self) -> bool {
        self.tracking.prefixes() > 0
    }

    fn let_go(&self, events: &[Event]) {
        if self.tracking.is_needed() {
            self.tracking.let_go(events);
        }
    }

    fn hear(&self, events: &[Event]) {
        if self.tracking.is_needed() {
            self.tracking.hear(events);
        }
        for event in events {
            match event.what {
                What::Said(class, name) => self.publish(class, name, event),
                What::Added => self.publish(NEW, "new", event),
                What::Expired => self.publish(EXPIRED, "expired", event),
                What::Evicted => self.publish(EVICTED, "evicted", event),
                What::FieldsExpired => self.publish(HASH, "hexpired", event),
                What::AllFieldsExpired => {
                    self.publish(HASH, "hexpired", event);
                    self.publish(GENERIC, "del", event);
                }
                What::Written | What::Removed | What::Missed => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_ask_for_classes() {
        assert_eq!(classes(b""), 0);
        assert_eq!(classes(b"A"), 0, "published nowhere");
        assert_eq!(classes(b"KE"), 0, "nothing to publish");
        assert_eq!(classes(b"Kx"), BY_KEY | EXPIRED);
        assert_eq!(classes(b"AE") & (NEW | MISSES), 0, "these have to be asked for");
    }
}
