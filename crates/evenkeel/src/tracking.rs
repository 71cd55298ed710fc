//! Client-side caching: which clients hold which keys in caches of their own, and telling them when these have changed.
//!
//! In the default mode a client that reads a key is remembered here, once, until the key changes; then it is told, and
//! forgotten. In the broadcasting mode it is told of every change of a key with one of its prefixes, and nothing is
//! remembered. A client is told by its mail, like a subscriber.
//!
//! **No change is missed.** A key is remembered under its slot's lock, before it is read, and a change reports to
//! [`Tracking::hear`] before that lock is released. Bad interleaving if it were remembered after the lock: another client
//! writes in between, nobody is told, and the cache keeps what was true before. If a change comes between remembering and
//! reading, the client is told of it behind the reply that has the new value already, and reads it once more. For the same
//! reason what a client that tracks asks for is never worked on beside (`long.rs`), but for scripts; and what a client is told
//! while its reply is on its way, from there or after a wait for a key, comes behind that reply.
//!
//! **Bounded.** Beyond `tracking-table-max-keys` any key is forgotten, and its readers are told as if it had changed. Of
//! its readers a key knows the numbers only; those that are gone are dropped whenever their list has doubled, and when the
//! last client that tracks goes, the whole table is.

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

pub(crate) mod prefixes;

use prefixes::{PrefixSet, prefixes_of};

/// Locks over the table of keys.
const SHELVES: usize = 64;

/// Keys forgotten at once when the bound has been lowered.
const TRIM_AT_ONCE: usize = 10_000;

/// Prefixes registered or removed before a thread that waits for the map of prefixes gets it: some 50 us.
/// Such a thread holds the slots of keys that it has changed.
const PREFIXES_AT_ONCE: usize = 64;

/// The channel of those who are told in RESP2.
const CHANNEL: &[u8] = b"__redis__:invalidate";

/// What a client has asked for, as bits.
pub(crate) mod mode {
    pub(crate) const ON: u32 = 1 << 0;
    pub(crate) const BROADCAST: u32 = 1 << 1;
    /// Only what is read behind CLIENT CACHING YES.
    pub(crate) const OPT_IN: u32 = 1 << 2;
    /// All but what is read behind CLIENT CACHING NO.
    pub(crate) const OPT_OUT: u32 = 1 << 3;
    /// Not what the client has changed itself.
    pub(crate) const NO_LOOP: u32 = 1 << 4;
    /// Who was to be told instead is gone.
    pub(crate) const BROKEN: u32 = 1 << 5;
}

/// A client's part.
#[derive(Default)]
pub(crate) struct Tracked {
    pub(crate) mode: AtomicU32,
    /// The id of who is told instead; zero: the client itself.
    pub(crate) redirect: AtomicU64,
    target: Mutex<Option<Arc<ClientInfo>>>,
    /// No two of them overlap, unless one is empty.
    pub(crate) prefixes: Mutex<PrefixSet>,
}

impl Tracked {
    pub(crate) fn has(&self, bits: u32) -> bool {
        self.mode.load(Relaxed) & bits != 0
    }
}

/// Who has read a key, by their numbers: one client nearly always.
enum Readers {
    One(u64),
    Many(Box<Many>),
}

struct Many {
    ids: BTreeSet<u64>,
    /// As soon as there are so many, those that are gone are dropped.
    look_at: usize,
}

impl Readers {
    /// Whether the client is a new one.
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

    /// Whether they have doubled since it was last looked who is there still.
    fn have_doubled(&self) -> bool {
        matches!(self, Readers::Many(many) if many.ids.len() >= many.look_at)
    }

    /// Drops those who are not there any more.
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

/// A part of the table. Any key of it can be found in one step, for who has to forget one.
#[derive(Default)]
struct Shelf {
    readers: HashMap<Arc<[u8]>, (Readers, usize)>,
    /// The keys, each at the place that it has beside its readers.
    keys: Vec<Arc<[u8]>>,
    /// Readers of all of them.
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

    /// Some key, but not this one.
    fn any_but(&self, spared: &[u8], random: usize) -> Option<Arc<[u8]>> {
        let at = random.checked_rem(self.keys.len())?;
        let next = (at + 1) % self.keys.len();
        [at, next].into_iter().map(|at| &self.keys[at]).find(|key| ***key != *spared).cloned()
    }
}

type ById = BTreeMap<u64, Arc<ClientInfo>>;

/// Keys that have changed, each with the id of the client that did it, and the clients that are told.
type Changes<'a> = (&'a ById, Vec<(&'a [u8], u64)>);

/// See the module's text.
pub(crate) struct Tracking {
    pubsub: Arc<PubSub>,
    hasher: RandomState,
    shelves: Box<[Mutex<Shelf>]>,
    keys: AtomicUsize,
    items: AtomicUsize,
    /// Zero: as many as there are.
    keys_max: AtomicUsize,
    /// Those who track, in whatever mode. Locked before any of the shelves.
    clients: RwLock<ById>,
    client_count: AtomicUsize,
    prefixes: RwLock<BTreeMap<Box<[u8]>, ById>>,
    prefix_count: AtomicUsize,
}

/// What a client is told: these keys have changed, or all.
enum Invalid<'a> {
    Keys(&'a [&'a [u8]]),
    All,
}

impl Tracking {
    pub(crate) fn new(pubsub: Arc<PubSub>) -> Tracking {
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

    pub(crate) fn configure(&self, keys_max: usize) {
        self.keys_max.store(keys_max, Relaxed);
        self.trim();
    }

    /// A client tracks from now on, or in another way. `prefixes` are added to those that it has.
    pub(crate) fn begin(
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
        // Whoever changes what this client reads from now on takes the lock of that after this.
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

    /// The opposite of [`Tracking::register`], for all prefixes of a client.
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

    /// A client tracks no more. The keys that it has read are forgotten when they change, or with the last client: the
    /// table is returned then, and may take long to free.
    ///
    /// Nobody would hear of what changes while nobody tracks, so nothing may be left for who tracks next. The lock says
    /// who is the last one; a client that begins meanwhile remembers its first key after it has had that lock.
    pub(crate) fn end(&self, events: &Events, client: &ClientInfo) -> Option<Box<dyn Send>> {
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

    /// Whether somebody has to be told of changes.
    pub(crate) fn is_needed(&self) -> bool {
        self.client_count.load(Relaxed) > 0
    }

    /// Where a key is, and what its hash has besides.
    fn place(&self, key: &[u8]) -> (usize, usize) {
        let hash = self.hasher.hash_one(key) as usize;
        (hash % SHELVES, hash / SHELVES)
    }

    /// A client is about to read a key, whose slot is held.
    pub(crate) fn remember(&self, key: &[u8], client: &Arc<ClientInfo>) {
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

    /// Drops those readers of a key that are gone.
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

    /// Forgets a key, from this part of the table if there is one beside `spared`; `false` if there is none at all.
    fn forget_any(&self, from: usize, random: usize, spared: &[u8]) -> bool {
        for at in (from..SHELVES).chain(0..from) {
            let Some(key) = self.shelves[at].lock().any_but(spared, random) else { continue };
            self.invalidate(&key, 0, |client, message| self.pubsub.send(client, message));
            return true;
        }
        false
    }

    /// Forgets some of the keys that are too many since the bound was lowered.
    pub(crate) fn trim(&self) {
        let max = self.keys_max.load(Relaxed);
        let is_over = || max > 0 && self.keys.load(Relaxed) > max;
        for turn in 0..TRIM_AT_ONCE {
            if !is_over() || !self.forget_any(turn % SHELVES, turn, b"") {
                return;
            }
        }
    }

    /// Something has happened to keys, which are held.
    pub(crate) fn hear(&self, events: &[Event]) {
        for event in events {
            match event.what {
                What::Written | What::Removed => self.invalidate(&event.key, event.by, keep),
                What::Expired | What::FieldsExpired | What::AllFieldsExpired | What::Evicted => {
                    self.invalidate(&event.key, 0, keep);
                }
                _ => {}
            }
        }
    }

    /// Keys are about to be let go of: tells those whose prefixes fit of all that has been done to them.
    pub(crate) fn let_go(&self, events: &[Event]) {
        if self.prefix_count.load(Relaxed) > 0 {
            self.broadcast(events);
        }
    }

    /// Takes a key and its readers out of the table.
    fn take(&self, key: &[u8]) -> Option<Readers> {
        let mut shelf = self.shelves[self.place(key).0].lock();
        let readers = shelf.remove(key)?;
        // Counted under the lock, so that there is never less to take away than was added.
        self.keys.fetch_sub(1, Relaxed);
        self.items.fetch_sub(readers.len(), Relaxed);
        Some(readers)
    }

    /// Forgets a key and tells its readers, but for who has changed it and does not want to hear that.
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
                self.tell(&client, &Invalid::Keys(&[key]), &put);
            }
        }
    }

    /// Tells those whose prefixes fit.
    fn broadcast(&self, events: &[Event]) {
        let mut changed: BTreeMap<&[u8], u64> = BTreeMap::new();
        // Those that have expired or were evicted, and are removed for that: several at a time.
        let mut lost: BTreeSet<(u32, &[u8])> = BTreeSet::new();
        for event in events {
            match event.what {
                What::Expired | What::AllFieldsExpired | What::Evicted => {
                    lost.insert((event.db, &event.key));
                    changed.insert(&event.key, 0);
                }
                What::FieldsExpired => {
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
        let mut told: BTreeMap<&[u8], Changes<'_>> = BTreeMap::new();
        for (key, by) in &changed {
            for (prefix, clients) in prefixes_of(&prefixes, key) {
                told.entry(prefix).or_insert_with(|| (clients, Vec::new())).1.push((key, *by));
            }
        }
        for (clients, keys) in told.values() {
            let all: Vec<&[u8]> = keys.iter().map(|(key, _)| *key).collect();
            for client in clients.values() {
                if !client.tracked.has(mode::NO_LOOP) {
                    self.tell(client, &Invalid::Keys(&all), keep);
                    continue;
                }
                let others = keys.iter().filter(|(_, by)| *by != client.id);
                let others: Vec<&[u8]> = others.map(|(key, _)| *key).collect();
                if !others.is_empty() {
                    self.tell(client, &Invalid::Keys(&others), keep);
                }
            }
        }
    }

    /// All keys of a database are gone, or others are in their place: everything that anybody has read is forgotten, and all are told.
    /// What is returned may take long to free.
    #[must_use]
    pub(crate) fn flushed(&self) -> Option<Box<dyn Send>> {
        if !self.is_needed() && self.keys() == 0 {
            return None;
        }
        let forgotten: Box<dyn Send> = Box::new(self.empty());
        let clients: Vec<_> = self.clients.read().values().cloned().collect();
        let put = |client: &Arc<ClientInfo>, message| self.pubsub.send(client, message);
        clients.iter().for_each(|client| self.tell(client, &Invalid::All, put));
        Some(forgotten)
    }

    /// Puts it into the mail of the client, or of the client that is to be told instead, by `put`.
    fn tell(
        &self,
        client: &Arc<ClientInfo>,
        invalid: &Invalid<'_>,
        put: impl Fn(&Arc<ClientInfo>, PushMessage),
    ) {
        let target = client.tracked.target.lock().clone();
        let receiver = target.as_ref().unwrap_or(client);
        if receiver.gone.load(Relaxed) {
            return note_broken(client, receiver.id, put);
        }
        let listens = target.is_some() && receiver.is_subscriber();
        if receiver.resp.load(Relaxed) == 3 || listens {
            let resp2 = listens.then(|| encode(&[b"message", CHANNEL], invalid, false));
            put(receiver, PushMessage::Unlike { resp2, resp3: encode(&[b"invalidate"], invalid, true) });
        }
    }

    pub(crate) fn clients(&self) -> usize {
        self.client_count.load(Relaxed)
    }

    pub(crate) fn keys(&self) -> usize {
        self.keys.load(Relaxed)
    }

    pub(crate) fn items(&self) -> usize {
        self.items.load(Relaxed)
    }

    pub(crate) fn prefixes(&self) -> usize {
        self.prefix_count.load(Relaxed)
    }
}

/// Keeps what a client is told until the keys are let go of, with the other messages of the unit.
fn keep(client: &Arc<ClientInfo>, message: PushMessage) {
    unit::keep(Message::Sent(client.clone(), message));
}

fn note_broken(client: &Arc<ClientInfo>, target: u64, put: impl Fn(&Arc<ClientInfo>, PushMessage)) {
    client.tracked.mode.fetch_or(mode::BROKEN, Relaxed);
    if client.resp.load(Relaxed) == 3 {
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
