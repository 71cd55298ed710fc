//! Keyspace notifications: events of keys, published to subscribers.
//!
//! The store records events while a listener is registered ([`evenkeel_store::events`]), and commands add
//! their names ([`evenkeel_command::events`]). This module publishes the classes selected by
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
use evenkeel_command::class::*;

/// The listener for events; see the module's text.
pub struct Notices {
    classes: AtomicU32,
    pubsub: Arc<PubSub>,
    /// Receives the same events.
    tracking: Arc<Tracking>,
    /// Its lines are sent with the messages of the same unit.
    monitors: Arc<Monitors>,
}

impl Notices {
    pub fn new(pubsub: Arc<PubSub>, tracking: Arc<Tracking>, monitors: Arc<Monitors>) -> Notices {
        Notices { classes: AtomicU32::new(0), pubsub, tracking, monitors }
    }

    /// Publishes these classes from now on, and returns them.
    pub fn configure(&self, messages: &[u8]) -> u32 {
        let classes = classes(messages);
        self.classes.store(classes, Relaxed);
        classes
    }

    fn publish(&self, class: u32, name: &str, event: &Event) {
        let classes = self.classes.load(Relaxed);
        if classes & class != 0 {
            self.publish_key(classes, name, event);
            if classes & OF_FIELDS != 0 && !event.fields.is_empty() {
                self.publish_fields(classes, name, event);
            }
        }
    }

    /// Publishes an event of a whole hash after the event of its fields.
    fn publish_end(&self, class: u32, name: &str, event: &Event) {
        let classes = self.classes.load(Relaxed);
        if classes & class != 0 {
            self.publish_key(classes, name, event);
        }
    }

    fn publish_key(&self, classes: u32, name: &str, event: &Event) {
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

    /// Publishes the names of an event's fields, as Redis 8.8 does. No name of an event has a `|`, which
    /// ends it in some channels and texts; a key with a line feed has no channels of its fields.
    #[cold]
    fn publish_fields(&self, classes: u32, name: &str, event: &Event) {
        let Event { db, key, fields, .. } = event;
        let list = || {
            let mut list = Vec::new();
            for field in fields {
                let _ = write!(list, "{}{}:", if list.is_empty() { "" } else { "," }, field.len());
                list.extend_from_slice(field);
            }
            list
        };
        let channel = |kind: &str, of: &[u8]| [format!("__{kind}@{db}__:").as_bytes(), of].concat();
        if classes & FIELDS_BY_KEY != 0 {
            let text = [name.as_bytes(), b"|", &list()].concat();
            self.keep(&channel("subkeyspace", key), &text);
        }
        if classes & FIELDS_BY_EVENT != 0 {
            let text = [format!("{}:", key.len()).as_bytes(), key, b"|", &list()].concat();
            self.keep(&channel("subkeyevent", name.as_bytes()), &text);
        }
        if classes & BY_FIELD != 0 && !key.contains(&b'\n') {
            for field in fields {
                let of = [key, &b"\n"[..], field].concat();
                self.keep(&channel("subkeyspaceitem", &of), name.as_bytes());
            }
        }
        if classes & FIELDS_BY_BOTH != 0 {
            let of = [name.as_bytes(), b"|", key].concat();
            self.keep(&channel("subkeyspaceevent", &of), &list());
        }
    }

    fn keep(&self, channel: &[u8], text: &[u8]) {
        if self.pubsub.may_have_subscribers(channel) {
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

    fn before_unlock(&self, events: &[Event]) {
        if self.tracking.is_needed() {
            self.tracking.before_unlock(events);
        }
    }

    fn on_events(&self, events: &[Event]) {
        if self.tracking.is_needed() {
            self.tracking.on_events(events);
        }
        for event in events {
            match event.what {
                What::Said(class, name) => self.publish(class, name, event),
                What::Added => self.publish(NEW, "new", event),
                What::Expired => self.publish(EXPIRED, "expired", event),
                What::Evicted => self.publish(EVICTED, "evicted", event),
                What::FieldsReplaced => self.publish(HASH, "hexpired", event),
                What::FieldsExpired => self.publish(EXPIRED, "hexpired", event),
                What::AllFieldsExpired => {
                    self.publish(EXPIRED, "hexpired", event);
                    self.publish_end(GENERIC, "del", event);
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
    fn flags_select_event_classes() {
        assert_eq!(classes(b""), 0);
        assert_eq!(classes(b"A"), 0, "published nowhere");
        assert_eq!(classes(b"KE"), 0, "nothing to publish");
        assert_eq!(classes(b"Kx"), BY_KEY | EXPIRED);
        let asked_for = NEW | MISSES | OVERWRITTEN | TYPE_CHANGED | OF_FIELDS;
        assert_eq!(classes(b"AE") & asked_for, 0, "these have to be asked for");
        assert_eq!(classes(b"STIV"), 0, "nothing to publish");
        assert_eq!(classes(b"Ih"), BY_FIELD | HASH, "no other channel is needed");
    }
}
