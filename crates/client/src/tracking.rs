//! Client-side caching: records the keys in clients' own caches, and sends invalidations when these keys
//! change.
//!
//! In the default mode a client that reads a key is recorded here, once, until the key changes; then it gets
//! an invalidation and is removed. In broadcasting mode a client gets an invalidation for every change of a
//! key with one of its prefixes, and nothing is recorded. Invalidations go through the push queue, like
//! messages to a subscriber.
//!
//! **No change is missed.** A key is recorded under its slot's lock, before it is read, and a change calls
//! [`Tracking::on_events`] before that lock is released. Bad interleaving if the key were recorded after
//! unlocking: another client writes in between, no invalidation is sent, and the cache keeps the old value.
//! If a change comes between recording and reading, the invalidation follows the reply with the new value,
//! and the client reads it again. For the same reason the commands of a tracking client are never offloaded
//! (`offload.rs`), except scripts. An invalidation sent while a reply is in transit, from the offload pool or
//! after a wait for a key, follows that reply.
//!
//! **Bounded.** Beyond `tracking-table-max-keys` an arbitrary key is removed, and its readers get an
//! invalidation as if it had changed. A key knows its readers by their ids only. Readers that are gone are
//! dropped whenever their list has doubled, and when the last tracking client goes, the whole table is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use evenkeel_resp::reply::Encoder;
use evenkeel_store::events::{Event, Events, What};
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use crate::clients::{ClientInfo, Names};
use crate::pubsub::PubSub;
use crate::pubsub::push_queue::PushMessage;
use crate::pubsub::unit::{self, Message};

pub mod prefixes;

use prefixes::{PrefixSet, prefixes_of};

/// Locks over the table of keys.
const SHELVES: usize = 64;

/// Keys removed at once when the bound has been lowered.
const TRIM_AT_ONCE: usize = 10_000;

/// Prefixes registered or removed before a thread that waits for the map of prefixes gets it: some 50 us.
/// Such a thread holds the slots of keys that it has changed.
const PREFIXES_AT_ONCE: usize = 64;

/// Channel of invalidations in RESP2.
const CHANNEL: &[u8] = b"__redis__:invalidate";

/// Options of a client's CLIENT TRACKING, as bits.
pub mod mode {
    pub const ON: u32 = 1 << 0;
    pub const BROADCAST: u32 = 1 << 1;
    /// Records only keys read after CLIENT CACHING YES.
    pub const OPT_IN: u32 = 1 << 2;
    /// Records all keys but keys read after CLIENT CACHING NO.
    pub const OPT_OUT: u32 = 1 << 3;
    /// Sends no invalidation for the client's own changes.
    pub const NO_LOOP: u32 = 1 << 4;
    /// The client to which invalidations are redirected is gone.
    pub const BROKEN: u32 = 1 << 5;
}

/// Tracking state of a client.
#[derive(Default)]
pub struct Tracked {
    pub mode: AtomicU32,
    /// Id of the client to which invalidations are redirected; zero: none.
    pub redirect: AtomicU64,
    target: Mutex<Option<Arc<ClientInfo>>>,
    /// No two prefixes overlap, unless one is empty.
    pub prefixes: Mutex<PrefixSet>,
}

impl Tracked {
    pub fn has(&self, bits: u32) -> bool {
        self.mode.load(Relaxed) & bits != 0
    }
}

/// The readers of a key, by client id: nearly always a single client.
enum Readers {
    One(u64),
    Many(Box<Many>),
}

struct Many {
    ids: BTreeSet<u64>,
    /// At this number of readers, readers that are gone are dropped.
    look_at: usize,
}

impl Readers {
    /// Adds a client. Returns whether it is new.
    fn add(&mut self, id: u64) -> bool {
        match self {
            Readers::One(one) if *one == id => false,
            Readers::One(one) => {
                *self = Readers::Many(Box::new(Many { ids: [*one, id].into(), look_at: 2 }));
                true
            }
            Readers::Many(many) => many.ids.insert(id),
        }
    }

    /// Whether the readers have doubled since readers that are gone were last dropped.
    fn have_doubled(&self) -> bool {
        matches!(self, Readers::Many(many) if many.ids.len() >= many.look_at)
    }

    /// Drops readers for which `is_there` is false.
    fn retain(&mut self, is_there: impl Fn(u64) -> bool) {
        let Readers::Many(many) = self else { return };
        many.ids.retain(|id| is_there(*id));
        many.look_at = 2 * many.ids.len().max(1);
        if many.ids.len() == 1 {
            *self = Readers::One(*many.ids.first().expect("one of them"));
        }
    }

    fn len(&self) -> usize {
        match self {
            Readers::One(_) => 1,
            Readers::Many(many) => many.ids.len(),
        }
    }

    fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        let (one, many) = match self {
            Readers::One(one) => (Some(*one), None),
            Readers::Many(many) => (None, Some(many.ids.iter().copied())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// A part of the table. An arbitrary key can be found in constant time, for removal.
#[derive(Default)]
struct Shelf {
    readers: HashMap<Arc<[u8]>, (Readers, usize)>,
    /// The keys, each at the index that is stored with its readers.
    keys: Vec<Arc<[u8]>>,
    /// Sum of the readers of all keys.
    items: usize,
}

impl Shelf {
    fn insert(&mut self, key: &[u8], readers: Readers) {
        let key: Arc<[u8]> = key.into();
        self.items += readers.len();
        self.readers.insert(key.clone(), (readers, self.keys.len()));
        self.keys.push(key);
    }

    fn remove(&mut self, key: &[u8]) -> Option<Readers> {
        let (readers, at) = self.readers.remove(key)?;
        self.keys.swap_remove(at);
        if let Some((_, place)) = self.keys.get(at).and_then(|moved| self.readers.get_mut(moved)) {
            *place = at;
        }
        self.items -= readers.len();
        Some(readers)
    }

    /// Returns an arbitrary key other than `spared`.
    fn any_but(&self, spared: &[u8], random: usize) -> Option<Arc<[u8]>> {
        let at = random.checked_rem(self.keys.len())?;
        let next = (at + 1) % self.keys.len();
        [at, next].into_iter().map(|at| &self.keys[at]).find(|key| ***key != *spared).cloned()
    }
}

type ById = BTreeMap<u64, Arc<ClientInfo>>;

/// Keys that have changed, each with the id of the client that changed it, and the clients to notify.
type Changes<'a> = (&'a ById, Vec<(&'a [u8], u64)>);

/// All recorded keys and tracking clients; see the module's text.
pub struct Tracking {
    pubsub: Arc<PubSub>,
    hasher: RandomState,
    shelves: Box<[Mutex<Shelf>]>,
    keys: AtomicUsize,
    items: AtomicUsize,
    /// Zero: no limit.
    keys_max: AtomicUsize,
    /// Tracking clients of all modes. Locked before any of the shelves.
    clients: RwLock<ById>,
    client_count: AtomicUsize,
    prefixes: RwLock<BTreeMap<Box<[u8]>, ById>>,
    prefix_count: AtomicUsize,
}

/// Content of an invalidation.
enum Invalid<'a> {
    Keys(&'a [&'a [u8]]),
    All,
}

impl Tracking {
    pub fn new(pubsub: Arc<PubSub>) -> Tracking {
        Tracking {
            pubsub,
            hasher: RandomState::new(),
            shelves: (0..SHELVES).map(|_| Mutex::default()).collect(),
            keys: AtomicUsize::new(0),
            items: AtomicUsize::new(0),
            keys_max: AtomicUsize::new(0),
            clients: RwLock::default(),
            client_count: AtomicUsize::new(0),
            prefixes: RwLock::default(),
            prefix_count: AtomicUsize::new(0),
        }
    }

    pub fn configure(&self, keys_max: usize) {
        self.keys_max.store(keys_max, Relaxed);
        self.trim();
    }

    /// Starts tracking for a client, or changes its options. `prefixes` are added to its present prefixes.
    pub fn begin(
        &self,
        events: &Events,
        client: &Arc<ClientInfo>,
        bits: u32,
        target: Option<Arc<ClientInfo>>,
        prefixes: &[&[u8]],
    ) {
        let own = &client.tracked;
        own.redirect.store(target.as_ref().map_or(0, |target| target.id), Relaxed);
        *own.target.lock() = target;
        own.mode.store(bits | mode::ON, Relaxed);
        let mut clients = self.clients.write();
        // A thread that changes a key read by this client from now on locks that key's slot after this.
        events.want(Events::CACHES, true);
        clients.insert(client.id, client.clone());
        self.client_count.store(clients.len(), Relaxed);
        drop(clients);
        if bits & mode::BROADCAST != 0 {
            self.register(client, if prefixes.is_empty() { &[b""] } else { prefixes });
        }
    }

    fn register(&self, client: &Arc<ClientInfo>, prefixes: &[&[u8]]) {
        let mut all = self.prefixes.write();
        for piece in prefixes.chunks(PREFIXES_AT_ONCE) {
            let mut own = client.tracked.prefixes.lock();
            for prefix in piece {
                if own.insert((*prefix).into()) {
                    client.names.tracked.fetch_add(Names::cost(prefix), Relaxed);
                }
                all.entry((*prefix).into()).or_default().insert(client.id, client.clone());
            }
            self.prefix_count.store(all.len(), Relaxed);
            drop(own);
            RwLockWriteGuard::bump(&mut all);
        }
    }

    /// Reverses [`Tracking::register`], for all prefixes of a client.
    fn unregister(&self, client: &ClientInfo) {
        let own: Vec<Box<[u8]>> = std::mem::take(&mut *client.tracked.prefixes.lock()).into_iter().collect();
        client.names.tracked.store(0, Relaxed);
        if own.is_empty() {
            return;
        }
        let mut all = self.prefixes.write();
        for piece in own.chunks(PREFIXES_AT_ONCE) {
            for prefix in piece {
                if let Some(clients) = all.get_mut(prefix) {
                    clients.remove(&client.id);
                    if clients.is_empty() {
                        all.remove(prefix);
                    }
                }
            }
            self.prefix_count.store(all.len(), Relaxed);
            RwLockWriteGuard::bump(&mut all);
        }
    }

    /// Ends tracking for a client. Its keys are removed when they change, or with the last tracking client:
    /// then the table is returned, and may take long to free.
    ///
    /// Without tracking clients, changes are not reported, so no key may remain for a later client. The lock
    /// decides which client is the last; a client that begins meanwhile records its first key after it has
    /// had that lock.
    pub fn end(&self, events: &Events, client: &ClientInfo) -> Option<Box<dyn Send>> {
        let own = &client.tracked;
        if own.mode.swap(0, Relaxed) & mode::ON == 0 {
            return None;
        }
        own.redirect.store(0, Relaxed);
        *own.target.lock() = None;
        let mut clients = self.clients.write();
        clients.remove(&client.id);
        events.want(Events::CACHES, !clients.is_empty());
        self.client_count.store(clients.len(), Relaxed);
        let forgotten =
            (clients.is_empty() && self.keys() > 0).then(|| -> Box<dyn Send> { Box::new(self.empty()) });
        drop(clients);
        self.unregister(client);
        forgotten
    }

    /// Takes everything out of the table.
    fn empty(&self) -> Vec<Shelf> {
        let take = |shelf: &Mutex<Shelf>| {
            let mut shelf = shelf.lock();
            let gone = std::mem::take(&mut *shelf);
            self.keys.fetch_sub(gone.keys.len(), Relaxed);
            self.items.fetch_sub(gone.items, Relaxed);
            gone
        };
        self.shelves.iter().map(take).collect()
    }

    /// Whether any client needs invalidations.
    pub fn is_needed(&self) -> bool {
        self.client_count.load(Relaxed) > 0
    }

    /// Returns the shelf of a key, and the remaining bits of its hash.
    fn place(&self, key: &[u8]) -> (usize, usize) {
        let hash = self.hasher.hash_one(key) as usize;
        (hash % SHELVES, hash / SHELVES)
    }

    /// Records that a client is about to read a key, whose slot is locked.
    pub fn remember(&self, key: &[u8], client: &Arc<ClientInfo>) {
        let (at, random) = self.place(key);
        let mut shelf = self.shelves[at].lock();
        if let Some((readers, _)) = shelf.readers.get_mut(key) {
            let new = usize::from(readers.add(client.id));
            let have_doubled = readers.have_doubled();
            shelf.items += new;
            self.items.fetch_add(new, Relaxed);
            drop(shelf);
            if have_doubled {
                self.drop_gone(at, key);
            }
            return;
        }
        shelf.insert(key, Readers::One(client.id));
        self.items.fetch_add(1, Relaxed);
        let keys = self.keys.fetch_add(1, Relaxed) + 1;
        drop(shelf);
        let max = self.keys_max.load(Relaxed);
        if max > 0 && keys > max {
            self.forget_any(at, random, key);
        }
    }

    /// Drops the readers of a key that are gone.
    fn drop_gone(&self, at: usize, key: &[u8]) {
        let clients = self.clients.read();
        let mut shelf = self.shelves[at].lock();
        if let Some((readers, _)) = shelf.readers.get_mut(key) {
            let before = readers.len();
            readers.retain(|id| clients.contains_key(&id));
            let gone = before - readers.len();
            shelf.items -= gone;
            self.items.fetch_sub(gone, Relaxed);
        }
    }

    /// Removes an arbitrary key, preferably from this shelf, but not `spared`. Returns `false` if there is
    /// none at all.
    fn forget_any(&self, from: usize, random: usize, spared: &[u8]) -> bool {
        for at in (from..SHELVES).chain(0..from) {
            let Some(key) = self.shelves[at].lock().any_but(spared, random) else { continue };
            self.invalidate(&key, 0, |client, message| self.pubsub.send(client, message));
            return true;
        }
        false
    }

    /// Removes the keys for which `is_gone` holds, and notifies their readers: they are no longer here.
    pub fn forget_where(&self, is_gone: impl Fn(&[u8]) -> bool) {
        for shelf in &self.shelves {
            let gone: Vec<_> = shelf.lock().keys.iter().filter(|key| is_gone(key)).cloned().collect();
            for key in gone {
                self.invalidate(&key, 0, |client, message| self.pubsub.send(client, message));
            }
        }
    }

    /// Removes some of the keys beyond a lowered bound.
    pub fn trim(&self) {
        let max = self.keys_max.load(Relaxed);
        let is_over = || max > 0 && self.keys.load(Relaxed) > max;
        for turn in 0..TRIM_AT_ONCE {
            if !is_over() || !self.forget_any(turn % SHELVES, turn, b"") {
                return;
            }
        }
    }

    /// Handles events of keys, whose slots are locked.
    pub fn on_events(&self, events: &[Event]) {
        for event in events {
            match event.what {
                What::Written | What::Removed => self.invalidate(&event.key, event.by, keep),
                What::Expired
                | What::FieldsExpired
                | What::FieldsReplaced
                | What::AllFieldsExpired
                | What::Evicted => {
                    self.invalidate(&event.key, 0, keep);
                }
                _ => {}
            }
        }
    }

    /// Sends the changes of keys that are about to be unlocked to clients with matching prefixes.
    pub fn before_unlock(&self, events: &[Event]) {
        if self.prefix_count.load(Relaxed) > 0 {
            self.broadcast(events);
        }
    }

    /// Takes a key and its readers out of the table.
    fn take(&self, key: &[u8]) -> Option<Readers> {
        let mut shelf = self.shelves[self.place(key).0].lock();
        let readers = shelf.remove(key)?;
        // Counted under the lock, so that the counters never fall below zero.
        self.keys.fetch_sub(1, Relaxed);
        self.items.fetch_sub(readers.len(), Relaxed);
        Some(readers)
    }

    /// Removes a key and sends invalidations to its readers, except to the client `by` if it asked for
    /// NOLOOP.
    fn invalidate(&self, key: &[u8], by: u64, put: impl Fn(&Arc<ClientInfo>, PushMessage)) {
        if self.keys.load(Relaxed) == 0 {
            return;
        }
        let Some(readers) = self.take(key) else { return };
        let there: Vec<Arc<ClientInfo>> = {
            let clients = self.clients.read();
            readers.ids().filter_map(|id| clients.get(&id).cloned()).collect()
        };
        for client in there {
            let is_own = client.id == by && client.tracked.has(mode::NO_LOOP);
            if client.tracked.has(mode::ON) && !client.tracked.has(mode::BROADCAST) && !is_own {
                self.notify(&client, &Invalid::Keys(&[key]), &put);
            }
        }
    }

    /// Sends invalidations to clients with matching prefixes.
    fn broadcast(&self, events: &[Event]) {
        let mut changed: BTreeMap<&[u8], u64> = BTreeMap::new();
        // Expired or evicted keys whose removal follows, for which no second change is recorded.
        let mut lost: BTreeSet<(u32, &[u8])> = BTreeSet::new();
        for event in events {
            match event.what {
                What::Expired | What::AllFieldsExpired | What::Evicted => {
                    lost.insert((event.db, &event.key));
                    changed.insert(&event.key, 0);
                }
                What::FieldsExpired | What::FieldsReplaced => {
                    changed.insert(&event.key, 0);
                }
                What::Removed if lost.remove(&(event.db, &event.key[..])) => {}
                What::Written | What::Removed => {
                    changed.insert(&event.key, event.by);
                }
                _ => {}
            }
        }
        let prefixes = self.prefixes.read();
        let mut by_prefix: BTreeMap<&[u8], Changes<'_>> = BTreeMap::new();
        for (key, by) in &changed {
            for (prefix, clients) in prefixes_of(&prefixes, key) {
                by_prefix.entry(prefix).or_insert_with(|| (clients, Vec::new())).1.push((key, *by));
            }
        }
        for (clients, keys) in by_prefix.values() {
            let all: Vec<&[u8]> = keys.iter().map(|(key, _)| *key).collect();
            for client in clients.values() {
                if !client.tracked.has(mode::NO_LOOP) {
                    self.notify(client, &Invalid::Keys(&all), keep);
                    continue;
                }
                let others = keys.iter().filter(|(_, by)| *by != client.id);
                let others: Vec<&[u8]> = others.map(|(key, _)| *key).collect();
                if !others.is_empty() {
                    self.notify(client, &Invalid::Keys(&others), keep);
                }
            }
        }
    }

    /// Drops all recorded keys after a database was emptied or exchanged, and sends all tracking clients a
    /// full invalidation. The returned value may take long to free.
    #[must_use]
    pub fn flushed(&self) -> Option<Box<dyn Send>> {
        if !self.is_needed() && self.keys() == 0 {
            return None;
        }
        let forgotten: Box<dyn Send> = Box::new(self.empty());
        let clients: Vec<_> = self.clients.read().values().cloned().collect();
        let put = |client: &Arc<ClientInfo>, message| self.pubsub.send(client, message);
        clients.iter().for_each(|client| self.notify(client, &Invalid::All, put));
        Some(forgotten)
    }

    /// Sends an invalidation by `put` to the client, or to the client to which it is redirected.
    fn notify(
        &self,
        client: &Arc<ClientInfo>,
        invalid: &Invalid<'_>,
        put: impl Fn(&Arc<ClientInfo>, PushMessage),
    ) {
        let target = client.tracked.target.lock().clone();
        let receiver = target.as_ref().unwrap_or(client);
        if receiver.gone.load(Relaxed) {
            return on_broken_redirect(client, receiver.id, put);
        }
        let listens = target.is_some() && receiver.is_subscriber();
        if receiver.is_resp3() || listens {
            let resp2 = listens.then(|| encode(&[b"message", CHANNEL], invalid, false));
            put(receiver, PushMessage::Unlike { resp2, resp3: encode(&[b"invalidate"], invalid, true) });
        }
    }

    pub fn clients(&self) -> usize {
        self.client_count.load(Relaxed)
    }

    pub fn keys(&self) -> usize {
        self.keys.load(Relaxed)
    }

    pub fn items(&self) -> usize {
        self.items.load(Relaxed)
    }

    pub fn prefixes(&self) -> usize {
        self.prefix_count.load(Relaxed)
    }
}

/// Keeps an invalidation until the keys are unlocked, with the other messages of the unit.
fn keep(client: &Arc<ClientInfo>, message: PushMessage) {
    unit::keep(Message::Sent(client.clone(), message));
}

fn on_broken_redirect(client: &Arc<ClientInfo>, target: u64, put: impl Fn(&Arc<ClientInfo>, PushMessage)) {
    client.tracked.mode.fetch_or(mode::BROKEN, Relaxed);
    if client.is_resp3() {
        let mut encoder = Encoder { resp3: true, ..Encoder::default() };
        encoder.push(2);
        encoder.bulk(b"tracking-redir-broken");
        encoder.int(target as i64);
        put(client, PushMessage::Unlike { resp2: None, resp3: encoder.bytes.into() });
    }
}

fn encode(head: &[&[u8]], invalid: &Invalid<'_>, resp3: bool) -> Arc<[u8]> {
    let mut encoder = Encoder { resp3, ..Encoder::default() };
    encoder.push(head.len() + 1);
    head.iter().for_each(|word| encoder.bulk(word));
    match invalid {
        Invalid::All => encoder.null(),
        Invalid::Keys(keys) => {
            encoder.array(keys.len());
            keys.iter().for_each(|key| encoder.bulk(key));
        }
    }
    encoder.bytes.into()
}
