//! Publish and subscribe: the subscribers of channels, and the delivery of messages to them.
//!
//! A message is encoded once and shared by all its receivers. The publisher puts it into the [`push_queue`]
//! of every subscriber while it holds the lock of the channel. The messages of a transaction, a script or a
//! command with several keys are put there together ([`unit`]). That guarantees these orders to clients:
//!
//! - All subscribers of a channel get its messages in the same order.
//! - A publisher's messages arrive in the order in which it published them.
//! - A client that has read the confirmation of a subscription gets every later message.
//!
//! If a subscriber's queue was empty, its worker is notified: once per batch of commands and worker, and only
//! a sleeping worker is woken. docs/pubsub.md has the interleavings.
//!
//! Not chosen: a queue per worker, which looks its own subscribers up. It takes work from the publisher where
//! a channel has thousands of subscribers. But messages in transit would then outlive UNSUBSCRIBE, and would
//! not follow a connection that moves.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, OnceLock};

use evenkeel_resp::reply::Encoder;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::clients::{ClientInfo, Names};
use evenkeel_config::Settings;
use evenkeel_runtime::glob;
use push_queue::PushMessage;

pub mod notices;
pub mod push_queue;
pub mod relay;
pub mod unit;

/// Locks over the channels of a kind: publishers to different channels seldom wait for each other.
const SHELVES: usize = 64;

/// Kinds of subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionKind {
    Channel,
    Pattern,
    /// A channel of SSUBSCRIBE, which in a cluster belongs to a slot.
    Shard,
}

type Subscribers = BTreeMap<u64, Arc<ClientInfo>>;
type Shelf = HashMap<Box<[u8]>, Subscribers>;
type Patterns = BTreeMap<Box<[u8]>, Subscribers>;

/// Channels and their subscribers; a channel without subscribers is absent.
struct Channels {
    hasher: RandomState,
    shelves: Box<[Mutex<Shelf>]>,
    count: AtomicUsize,
}

/// All subscriptions; see the module's text.
pub struct PubSub {
    channels: Channels,
    shards: Channels,
    /// Read by publishers under the lock of their channel; no thread takes a channel's lock while it holds
    /// this lock.
    patterns: RwLock<Patterns>,
    pattern_count: AtomicUsize,
    limits: Limits,
    /// In a cluster of several nodes.
    relay: OnceLock<Box<dyn relay::Relay>>,
}

/// Most bytes that may wait for a client: the hard limits of `client-output-buffer-limit`.
#[derive(Debug)]
pub struct Limits {
    normal: AtomicU64,
    subscriber: AtomicU64,
}

impl Limits {
    fn of(&self, client: &ClientInfo) -> u64 {
        if client.is_subscriber() { self.subscriber.load(Relaxed) } else { self.normal.load(Relaxed) }
    }
}

/// A message in both protocols, each encoded for the first client that needs it.
struct Parcel<'a> {
    words: &'a [&'a [u8]],
    forms: [OnceCell<Arc<[u8]>>; 2],
}

impl<'a> Parcel<'a> {
    fn new(words: &'a [&'a [u8]]) -> Parcel<'a> {
        Parcel { words, forms: Default::default() }
    }

    fn encoded(&self, resp3: bool) -> &Arc<[u8]> {
        self.forms[usize::from(resp3)].get_or_init(|| encode(self.words, resp3))
    }

    /// Passes it to all subscribers by `put`; returns their number.
    fn hand_to(&self, subscribers: &Subscribers, put: &mut Put<'_>) -> usize {
        let receivers = there(subscribers).map(|client| put(client, self.encoded(client.is_resp3()).clone()));
        receivers.count()
    }
}

/// Puts an encoded message into a client's push queue, or keeps it for the client.
type Put<'a> = dyn FnMut(&Arc<ClientInfo>, Arc<[u8]>) + 'a;

/// Skips killed clients, which may still be registered until their worker removes them.
fn there(subscribers: &Subscribers) -> impl Iterator<Item = &Arc<ClientInfo>> {
    subscribers.values().filter(|client| !client.killed.load(Relaxed))
}

/// Passes a message to all subscribers of its channel, which is on this shelf, and of matching patterns.
/// Returns the number of deliveries.
fn hand_out(
    shelf: &Shelf,
    patterns: Option<&Patterns>,
    (channel, message): (&[u8], &[u8]),
    put: &mut Put<'_>,
) -> usize {
    let parcel: [&[u8]; 3] = [b"message", channel, message];
    let mut count = shelf.get(channel).map_or(0, |them| Parcel::new(&parcel).hand_to(them, put));
    for (pattern, them) in patterns.into_iter().flatten() {
        if glob::matches(pattern, channel, false) {
            let parcel: [&[u8]; 4] = [b"pmessage", pattern, channel, message];
            count += Parcel::new(&parcel).hand_to(them, put);
        }
    }
    count
}

/// Like [`hand_out`], for a channel of SSUBSCRIBE.
fn hand_out_in_shard(shelf: &Shelf, (channel, message): (&[u8], &[u8]), put: &mut Put<'_>) -> usize {
    let parcel: [&[u8]; 3] = [b"smessage", channel, message];
    shelf.get(channel).map_or(0, |them| Parcel::new(&parcel).hand_to(them, put))
}

/// Encodes a push of bulk strings.
pub fn encode(words: &[&[u8]], resp3: bool) -> Arc<[u8]> {
    let mut encoder = Encoder { resp3, ..Encoder::default() };
    encoder.push(words.len());
    words.iter().for_each(|word| encoder.bulk(word));
    encoder.bytes.into()
}

impl Default for Channels {
    fn default() -> Channels {
        let shelves = (0..SHELVES).map(|_| Mutex::default()).collect();
        Channels { hasher: RandomState::new(), shelves, count: AtomicUsize::new(0) }
    }
}

impl Channels {
    fn shelf(&self, channel: &[u8]) -> &Mutex<Shelf> {
        &self.shelves[self.shelf_index(channel)]
    }

    fn shelf_index(&self, channel: &[u8]) -> usize {
        self.hasher.hash_one(channel) as usize % SHELVES
    }

    fn join(&self, channel: &[u8], client: &Arc<ClientInfo>, confirm: impl FnOnce()) {
        let mut shelf = self.shelf(channel).lock();
        let subscribers = shelf.entry(channel.into()).or_insert_with(|| {
            self.count.fetch_add(1, Relaxed);
            Subscribers::new()
        });
        subscribers.insert(client.id, client.clone());
        confirm();
    }

    fn leave(&self, channel: &[u8], client: &ClientInfo) {
        let mut shelf = self.shelf(channel).lock();
        if let Some(subscribers) = shelf.get_mut(channel) {
            subscribers.remove(&client.id);
            if subscribers.is_empty() {
                shelf.remove(channel);
                self.count.fetch_sub(1, Relaxed);
            }
        }
    }

    fn subscribers(&self, channel: &[u8]) -> usize {
        self.shelf(channel).lock().get(channel).map_or(0, Subscribers::len)
    }

    fn names(&self, pattern: Option<&[u8]>) -> Vec<Box<[u8]>> {
        let admits = |name: &[u8]| pattern.is_none_or(|pattern| glob::matches(pattern, name, false));
        let mut names = Vec::new();
        for shelf in &self.shelves {
            names.extend(shelf.lock().keys().filter(|name| admits(name)).cloned());
        }
        names.sort_unstable();
        names
    }
}

impl PubSub {
    pub fn new(settings: &Settings) -> PubSub {
        let limits = Limits { normal: AtomicU64::new(0), subscriber: AtomicU64::new(0) };
        let pubsub = PubSub {
            channels: Channels::default(),
            shards: Channels::default(),
            patterns: RwLock::default(),
            pattern_count: AtomicUsize::new(0),
            limits,
            relay: OnceLock::new(),
        };
        pubsub.configure(settings);
        pubsub
    }

    /// Applies changed settings.
    pub fn configure(&self, settings: &Settings) {
        let limits = &settings.client_output_buffer_limit;
        let or_none = |bytes: u64| if bytes == 0 { u64::MAX } else { bytes };
        self.limits.normal.store(or_none(limits.normal.hard_bytes), Relaxed);
        self.limits.subscriber.store(or_none(limits.pubsub.hard_bytes), Relaxed);
    }

    /// Publishes a message to all subscribers of its channel and of matching patterns. Returns the number of
    /// deliveries.
    pub fn publish(&self, channel: &[u8], message: &[u8]) -> usize {
        let shelf = self.channels.shelf(channel).lock();
        let patterns = self.patterns_if_any();
        hand_out(&shelf, patterns.as_deref(), (channel, message), &mut |client, bytes| {
            self.send(client, bytes)
        })
    }

    fn patterns_if_any(&self) -> Option<RwLockReadGuard<'_, Patterns>> {
        (self.pattern_count.load(Acquire) > 0).then(|| self.patterns.read())
    }

    /// Returns the number of deliveries that a message to this channel would have now.
    fn count_listeners(&self, channel: &[u8]) -> usize {
        let shelf = self.channels.shelf(channel).lock();
        let patterns = self.patterns_if_any();
        let mut count = shelf.get(channel).map_or(0, |them| there(them).count());
        for (pattern, them) in patterns.as_deref().into_iter().flatten() {
            if glob::matches(pattern, channel, false) {
                count += there(them).count();
            }
        }
        count
    }

    /// Whether a message to this channel may have receivers.
    fn may_have_subscribers(&self, channel: &[u8]) -> bool {
        self.pattern_count.load(Acquire) > 0 || self.channels.shelf(channel).lock().contains_key(channel)
    }

    /// Sends a message to a single client.
    pub fn send(&self, client: &Arc<ClientInfo>, message: impl Into<PushMessage>) {
        push_queue::put(client, message, self.limits.of(client));
    }

    /// Publishes a message to all subscribers of a channel of SSUBSCRIBE.
    pub fn publish_in_shard(&self, channel: &[u8], message: &[u8]) -> usize {
        let shelf = self.shards.shelf(channel).lock();
        hand_out_in_shard(&shelf, (channel, message), &mut |client, bytes| self.send(client, bytes))
    }

    /// Subscribes a client. `confirm` sends the confirmation before any message can arrive.
    pub fn join(
        &self,
        kind: SubscriptionKind,
        name: &[u8],
        client: &Arc<ClientInfo>,
        confirm: impl FnOnce(),
    ) {
        match kind {
            SubscriptionKind::Channel => self.channels.join(name, client, confirm),
            SubscriptionKind::Shard => self.shards.join(name, client, confirm),
            SubscriptionKind::Pattern => {
                let mut patterns = self.patterns.write();
                patterns.entry(name.into()).or_default().insert(client.id, client.clone());
                self.pattern_count.store(patterns.len(), Release);
                confirm();
            }
        }
    }

    /// Unsubscribes a client: once this returns, no further message is put into its queue.
    pub fn leave(&self, kind: SubscriptionKind, name: &[u8], client: &ClientInfo) {
        match kind {
            SubscriptionKind::Channel => self.channels.leave(name, client),
            SubscriptionKind::Shard => self.shards.leave(name, client),
            SubscriptionKind::Pattern => {
                let mut patterns = self.patterns.write();
                if let Some(subscribers) = patterns.get_mut(name) {
                    subscribers.remove(&client.id);
                    if subscribers.is_empty() {
                        patterns.remove(name);
                    }
                }
                self.pattern_count.store(patterns.len(), Release);
            }
        }
    }

    /// Calls `f` for each subscription of a kind, under the lock of the channel.
    pub fn each_subscription(&self, kind: SubscriptionKind, mut f: impl FnMut(&[u8], &Arc<ClientInfo>)) {
        let mut all = |name: &[u8], them: &Subscribers| them.values().for_each(|client| f(name, client));
        if kind == SubscriptionKind::Pattern {
            return self.patterns.read().iter().for_each(|(name, them)| all(name, them));
        }
        for shelf in &self.of(kind).shelves {
            shelf.lock().iter().for_each(|(name, them)| all(name, them));
        }
    }

    fn of(&self, kind: SubscriptionKind) -> &Channels {
        if kind == SubscriptionKind::Shard { &self.shards } else { &self.channels }
    }

    /// Returns the number of a channel's subscribers by name.
    pub fn subscribers(&self, kind: SubscriptionKind, channel: &[u8]) -> usize {
        self.of(kind).subscribers(channel)
    }

    /// Returns the channels with subscribers by name that match the pattern, in order.
    pub fn names(&self, kind: SubscriptionKind, pattern: Option<&[u8]>) -> Vec<Box<[u8]>> {
        self.of(kind).names(pattern)
    }

    /// Returns the number of channels or patterns of a kind.
    pub fn count(&self, kind: SubscriptionKind) -> usize {
        match kind {
            SubscriptionKind::Pattern => self.pattern_count.load(Relaxed),
            _ => self.of(kind).count.load(Relaxed),
        }
    }
}

/// Subscriptions of a session.
#[derive(Default)]
pub struct Subscriptions {
    channels: BTreeSet<Box<[u8]>>,
    patterns: BTreeSet<Box<[u8]>>,
    shards: BTreeSet<Box<[u8]>>,
    /// Memory of all names, in bytes.
    bytes: usize,
}

impl Subscriptions {
    /// Returns all names of a kind.
    pub fn names(&self, kind: SubscriptionKind) -> impl Iterator<Item = &[u8]> {
        let names = match kind {
            SubscriptionKind::Channel => &self.channels,
            SubscriptionKind::Pattern => &self.patterns,
            SubscriptionKind::Shard => &self.shards,
        };
        names.iter().map(|name| &**name)
    }

    /// Adds a name. Returns whether it is new.
    pub fn add(&mut self, kind: SubscriptionKind, name: &[u8]) -> bool {
        let is_new = self.of(kind).insert(name.into());
        self.bytes += if is_new { Names::cost(name) } else { 0 };
        is_new
    }

    /// Removes a name. Returns whether it was present.
    pub fn remove(&mut self, kind: SubscriptionKind, name: &[u8]) -> bool {
        let was_there = self.of(kind).remove(name);
        self.bytes -= if was_there { Names::cost(name) } else { 0 };
        was_there
    }

    fn of(&mut self, kind: SubscriptionKind) -> &mut BTreeSet<Box<[u8]>> {
        match kind {
            SubscriptionKind::Channel => &mut self.channels,
            SubscriptionKind::Pattern => &mut self.patterns,
            SubscriptionKind::Shard => &mut self.shards,
        }
    }

    /// Returns the number in confirmations of this kind.
    pub fn count(&self, kind: SubscriptionKind) -> usize {
        match kind {
            SubscriptionKind::Shard => self.shards.len(),
            _ => self.channels.len() + self.patterns.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.channels.is_empty() && self.patterns.is_empty() && self.shards.is_empty()
    }

    /// Stores the counts for CLIENT LIST and for the class of the client.
    pub fn note(&self, client: &ClientInfo) {
        client.subscribed.store(self.channels.len() as u32, Relaxed);
        client.patterns.store(self.patterns.len() as u32, Relaxed);
        client.shards.store(self.shards.len() as u32, Relaxed);
        client.names.subscribed.store(self.bytes, Relaxed);
    }

    /// Ends all subscriptions without confirmations.
    pub fn end(&mut self, pubsub: &PubSub, client: &ClientInfo) {
        for kind in [SubscriptionKind::Channel, SubscriptionKind::Pattern, SubscriptionKind::Shard] {
            for name in std::mem::take(self.of(kind)) {
                pubsub.leave(kind, &name, client);
            }
        }
        self.bytes = 0;
        self.note(client);
    }
}
