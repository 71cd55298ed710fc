//! The messages of an atomic unit: a command with several keys, a transaction or a script.
//!
//! A thread keeps the messages of a unit while it holds the unit's keys, and sends them before it unlocks
//! these. Each receiver gets its messages of the unit under a single lock of its queue, so no message of
//! another unit comes in between. The same holds in Redis, where a single thread runs a unit after the other.
//! Since the keys stay locked, messages about a key keep the order of its changes.
//!
//! **The same order for all.** The thread holds the locks of all channels that the unit publishes to until
//! every receiver has its messages, as PUBLISH does with its only channel. So two units that publish to the
//! same channel arrive in the same order at all its subscribers. Locks are taken in ascending order:
//! channels, shard channels, MONITOR's list, patterns, and each client's queue alone.
//!
//! **Bounded.** A unit that holds all locks sends each message at once: no other thread sends any meanwhile.
//! Any other unit is bounded by its request, or by the queue of its transaction.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_store::SlotGuard;
use parking_lot::MutexGuard;

use super::push_queue::{self, PushMessage};
use super::{Channels, PubSub, Shelf, SubscriptionKind, hand_out, hand_out_in_shard};
use crate::clients::ClientInfo;
use crate::monitor::Monitors;

pub enum Message {
    Published {
        channel: Box<[u8]>,
        text: Box<[u8]>,
    },
    PublishedInShard {
        channel: Box<[u8]>,
        text: Box<[u8]>,
    },
    /// For clients of other nodes.
    Relayed {
        kind: SubscriptionKind,
        channel: Box<[u8]>,
        text: Box<[u8]>,
    },
    /// For a single client.
    Sent(Arc<ClientInfo>, PushMessage),
    /// For all clients of MONITOR.
    Lines(Arc<[u8]>),
}

thread_local! {
    static KEPT: RefCell<Vec<Message>> = const { RefCell::new(Vec::new()) };
}

/// Keeps a message until [`deliver`]. The thread that holds the unit's keys calls
/// [`SlotGuard::record_messages`].
pub fn keep(message: Message) {
    KEPT.with_borrow_mut(|kept| kept.push(message));
}

impl PubSub {
    /// PUBLISH within a unit. Returns the number of deliveries that it would have now.
    pub fn publish_in_unit(&self, guard: &mut SlotGuard<'_>, channel: &[u8], text: &[u8]) -> usize {
        let count = self.count_listeners(channel);
        if count > 0 {
            keep(Message::Published { channel: channel.into(), text: text.into() });
            guard.record_messages();
        }
        count
    }

    /// SPUBLISH within a unit.
    pub fn publish_in_shard_in_unit(&self, guard: &mut SlotGuard<'_>, channel: &[u8], text: &[u8]) -> usize {
        let count = self.shards.subscribers(channel);
        if count > 0 {
            keep(Message::PublishedInShard { channel: channel.into(), text: text.into() });
            guard.record_messages();
        }
        count
    }
}

/// Sends the messages that this thread has kept.
pub fn deliver(pubsub: &PubSub, monitors: &Monitors) {
    let mut messages = KEPT.take();
    match &messages[..] {
        [] => return,
        [message] => deliver_one(pubsub, monitors, message),
        messages => deliver_together(pubsub, monitors, messages),
    }
    messages.clear();
    if messages.capacity() <= KEPT_MAX {
        KEPT.replace(messages);
    }
}

/// Messages for which a thread keeps its buffer.
const KEPT_MAX: usize = 1_000;

fn deliver_one(pubsub: &PubSub, monitors: &Monitors, message: &Message) {
    match message {
        Message::Published { channel, text } => _ = pubsub.publish(channel, text),
        Message::PublishedInShard { channel, text } => _ = pubsub.publish_in_shard(channel, text),
        Message::Relayed { kind, channel, text } => pubsub.relay(*kind, channel, text),
        Message::Sent(client, message) => pubsub.send(client, message.clone()),
        Message::Lines(lines) => monitors.send(pubsub, || lines.clone()),
    }
}

/// The messages of each receiver, in the order of their first messages.
#[derive(Default)]
struct Batches {
    at: HashMap<u64, usize>,
    all: Vec<(Arc<ClientInfo>, Vec<PushMessage>)>,
}

impl Batches {
    fn add(&mut self, client: &Arc<ClientInfo>, message: PushMessage) {
        let at = *self.at.entry(client.id).or_insert(self.all.len());
        if at == self.all.len() {
            self.all.push((client.clone(), Vec::new()));
        }
        self.all[at].1.push(message);
    }
}

fn deliver_together(pubsub: &PubSub, monitors: &Monitors, messages: &[Message]) {
    let channels = messages.iter().filter_map(|message| match message {
        Message::Published { channel, .. } => Some(&**channel),
        _ => None,
    });
    let shards = messages.iter().filter_map(|message| match message {
        Message::PublishedInShard { channel, .. } => Some(&**channel),
        _ => None,
    });
    let channels = Shelves::lock(&pubsub.channels, channels);
    let shards = Shelves::lock(&pubsub.shards, shards);
    let has_lines = messages.iter().any(|message| matches!(message, Message::Lines(_)));
    let watchers = has_lines.then(|| monitors.watchers());
    let patterns = pubsub.patterns_if_any();
    let mut batches = Batches::default();
    for message in messages {
        let mut put = |client: &Arc<ClientInfo>, bytes: Arc<[u8]>| batches.add(client, bytes.into());
        match message {
            Message::Published { channel, text } => {
                _ = hand_out(channels.of(channel), patterns.as_deref(), (channel, text), &mut put);
            }
            Message::PublishedInShard { channel, text } => {
                _ = hand_out_in_shard(shards.of(channel), (channel, text), &mut put);
            }
            Message::Relayed { kind, channel, text } => pubsub.relay(*kind, channel, text),
            Message::Sent(client, message) => batches.add(client, message.clone()),
            Message::Lines(lines) => {
                watchers.iter().flat_map(|them| them.iter()).for_each(|client| put(client, lines.clone()));
            }
        }
    }
    for (client, messages) in batches.all {
        push_queue::put_all(&client, messages, pubsub.limits.of(&client));
    }
}

/// Locked shelves, ascending.
struct Shelves<'a> {
    channels: &'a Channels,
    locked: Vec<(usize, MutexGuard<'a, Shelf>)>,
}

impl<'a> Shelves<'a> {
    fn lock<'c>(channels: &'a Channels, names: impl Iterator<Item = &'c [u8]>) -> Shelves<'a> {
        let mut indices: Vec<usize> = names.map(|name| channels.shelf_index(name)).collect();
        indices.sort_unstable();
        indices.dedup();
        let locked = indices.into_iter().map(|index| (index, channels.shelves[index].lock())).collect();
        Shelves { channels, locked }
    }

    fn of(&self, channel: &[u8]) -> &Shelf {
        let index = self.channels.shelf_index(channel);
        let at = self.locked.binary_search_by_key(&index, |(index, _)| *index);
        &self.locked[at.expect("the shelves of all channels were locked")].1
    }
}
