//! Idempotent production: which entries a stream got from which producers, so that an entry that is sent
//! again is not added again.
//!
//! Each producer names its entries by ids of its own. A stream remembers the latest of these for some time,
//! and for each producer no more than a certain number.

use super::super::named::Named;
use super::id::{Packed, StreamId, unpack};
use super::ids::Ids;

/// See the module's documentation.
#[derive(Clone)]
pub struct Idmp {
    pub duration_s: u64,
    pub entries_max: u64,
    /// Number of entries ever remembered, and of entries that were sent again.
    pub added: u64,
    pub duplicates: u64,
    producers: Named<Producer>,
    /// When expired entries of all producers go next.
    sweep_ms: u64,
}

/// The entries of a producer.
#[derive(Clone)]
pub struct Producer {
    /// By the producer's ids.
    entries: Named<Remembered>,
    /// The places of the entries in the order in which they came, each with the producer's id.
    order: Ids,
    next_place: u64,
}

#[derive(Clone, Copy)]
struct Remembered {
    id: StreamId,
    place: u64,
}

/// The configuration of a new stream, and the bounds of both numbers.
const DURATION_S: u64 = 100;
const ENTRIES_MAX: u64 = 100;
pub const DURATION_S_MAX: u64 = 86_400;
pub const ENTRIES_MAX_MAX: u64 = 10_000;

const MS_PER_S: u64 = 1_000;

impl Default for Idmp {
    fn default() -> Idmp {
        Idmp {
            duration_s: DURATION_S,
            entries_max: ENTRIES_MAX,
            added: 0,
            duplicates: 0,
            producers: Named::default(),
            sweep_ms: 0,
        }
    }
}

impl Idmp {
    /// Producers, in the order of their names.
    pub fn producers(&self) -> impl Iterator<Item = (&[u8], &Producer)> {
        self.producers.iter()
    }

    pub fn producers_len(&self) -> usize {
        self.producers.len()
    }

    /// Sets the configuration; a change forgets all entries.
    pub fn configure(&mut self, duration_s: u64, entries_max: u64) -> bool {
        let has_changed = (duration_s, entries_max) != (self.duration_s, self.entries_max);
        if has_changed {
            (self.duration_s, self.entries_max) = (duration_s, entries_max);
            self.producers = Named::default();
        }
        has_changed
    }

    /// Whether an entry is too old to be remembered.
    pub fn is_expired(&self, id: StreamId, now_ms: u64) -> bool {
        id.ms.saturating_add(self.duration_s * MS_PER_S) <= now_ms
    }

    /// The entry that the producer has sent by this id.
    pub fn find(&self, producer: &[u8], iid: &[u8], now_ms: u64) -> Option<StreamId> {
        let id = self.producers.get(producer)?.entries.get(iid)?.id;
        (!self.is_expired(id, now_ms)).then_some(id)
    }

    /// Remembers an entry, and forgets those that are too old or too many. An id that is known leads to the
    /// new entry. Ids are times, and stand for the present: a reader of the journal has no clock.
    pub fn remember(&mut self, producer: &[u8], iid: &[u8], id: StreamId) {
        self.sweep(id.ms);
        if self.producers.get(producer).is_none() {
            self.producers.insert(producer, Producer::new());
        }
        let most = self.entries_max;
        let producer = self.producers.get_mut(producer).expect("it was added");
        producer.add(iid, id);
        while producer.len() > most {
            producer.forget_first();
        }
        self.added = super::one_more(self.added);
    }

    /// Forgets expired entries of all producers, about once a second.
    fn sweep(&mut self, now_ms: u64) {
        if now_ms < self.sweep_ms {
            return;
        }
        self.sweep_ms = now_ms.saturating_add(MS_PER_S);
        let is_expired = |id: StreamId| id.ms.saturating_add(self.duration_s * MS_PER_S) <= now_ms;
        let old = |producer: &Producer| producer.first().is_some_and(|(_, id)| is_expired(id));
        let names = self.producers.iter().filter(|(_, producer)| old(producer)).map(|(name, _)| name.into());
        for name in names.collect::<Vec<Box<[u8]>>>() {
            let producer = self.producers.get_mut(&name).expect("just seen");
            while producer.first().is_some_and(|(_, id)| is_expired(id)) {
                producer.forget_first();
            }
            if producer.is_empty() {
                self.producers.remove(&name);
            }
        }
    }

    /// Number of producers with remembered entries, and of these entries.
    pub fn tracked(&self, now_ms: u64) -> (u64, u64) {
        let alive = |producer: &Producer| {
            producer.entries().filter(|(_, id)| !self.is_expired(*id, now_ms)).count() as u64
        };
        let counts = self.producers().map(|(_, producer)| alive(producer)).filter(|count| *count > 0);
        counts.fold((0, 0), |(producers, entries), count| (producers + 1, entries + count))
    }

    pub(super) fn memory(&self) -> usize {
        let producers = self.producers().map(|(name, producer)| name.len() + producer.memory());
        size_of::<Idmp>() + producers.sum::<usize>()
    }
}

impl Producer {
    fn new() -> Producer {
        Producer { entries: Named::default(), order: Ids::new(), next_place: 0 }
    }

    pub fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The producer's ids and the entries, in the order in which they came.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], StreamId)> {
        self.order.range(StreamId::MIN, StreamId::MAX).map(|(_, text)| {
            let (id, iid) = unpack(text);
            (iid, id)
        })
    }

    fn first(&self) -> Option<(&[u8], StreamId)> {
        self.entries().next()
    }

    fn add(&mut self, iid: &[u8], id: StreamId) {
        let place = self.next_place;
        self.next_place += 1;
        if let Some(before) = self.entries.remove(iid) {
            self.order.remove(StreamId::new(before.place, 0), |_| ());
        }
        self.entries.insert(iid, Remembered { id, place });
        let text = [Packed::new(id).as_bytes(), iid].concat();
        self.order.set(StreamId::new(place, 0), &text, |_| ());
    }

    fn forget_first(&mut self) {
        let Some((place, text)) = self.order.range(StreamId::MIN, StreamId::MAX).next() else { return };
        let iid: Box<[u8]> = unpack(text).1.into();
        self.order.remove(place, |_| ());
        self.entries.remove(&iid);
    }

    fn memory(&self) -> usize {
        /// A node of the tree of names.
        const NODE: usize = 64;
        let names: usize = self.entries.iter().map(|(iid, _)| iid.len() + NODE).sum();
        size_of::<Producer>() + self.order.memory() + names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(ms: u64) -> StreamId {
        StreamId::new(ms, 0)
    }

    fn iids(idmp: &Idmp, producer: &[u8]) -> Vec<Vec<u8>> {
        let found = idmp.producers().find(|(name, _)| *name == producer);
        found.map_or(Vec::new(), |(_, one)| one.entries().map(|(iid, _)| iid.to_vec()).collect())
    }

    #[test]
    fn the_latest_entries_are_remembered_for_a_while() {
        let mut idmp = Idmp::default();
        assert!(idmp.configure(2, 3) && !idmp.configure(2, 3));
        for (at, iid) in [(1_000, b"a"), (1_001, b"c"), (1_002, b"b"), (1_003, b"d")] {
            idmp.remember(b"p", iid, id(at));
        }
        idmp.remember(b"q", b"a", id(2_500));
        assert_eq!(iids(&idmp, b"p"), [b"c", b"b", b"d"]);
        assert_eq!((idmp.find(b"p", b"a", 1_003), idmp.find(b"p", b"b", 3_001)), (None, Some(id(1_002))));
        assert_eq!((idmp.find(b"p", b"b", 3_002), idmp.find(b"x", b"b", 0)), (None, None));
        assert_eq!((idmp.tracked(2_500), idmp.tracked(3_002), idmp.tracked(9_000)), ((2, 4), (2, 2), (0, 0)));
        let shared = idmp.clone();
        idmp.remember(b"q", b"z", id(5_000));
        assert_eq!((idmp.producers_len(), shared.producers_len()), (1, 2));
        assert_eq!((iids(&idmp, b"q"), idmp.added), (vec![b"z".to_vec()], 6));
        idmp.remember(b"q", b"z", id(5_001));
        assert_eq!(iids(&idmp, b"q"), [b"z"]);
        assert!(idmp.configure(3, 3));
        assert_eq!(idmp.producers_len(), 0);
    }
}
