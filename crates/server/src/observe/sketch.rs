//! The heaviest keys of a stream, in bounded memory: "space saving" (Metwally, Agrawal, El Abbadi, 2005),
//! with weights.
//!
//! The sketch has a fixed capacity. When it is full, a new key replaces the lightest key and inherits its
//! count as an error bound. So the true weight of each key in the sketch lies between two bounds, and the
//! sketch contains every key whose weight exceeds the weight of the stream divided by the capacity.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Bytes kept of a key, for display. The hash identifies a key.
const KEY_LEN_MAX: usize = 1024;

/// A space-saving sketch; see the module's text.
#[derive(Debug)]
pub(super) struct Sketch {
    room: usize,
    /// A min-heap by count. Moving a node touches only the heap, and the place that the key stores.
    heap: Vec<Node>,
    keys: Vec<Known>,
    /// Index into `keys` by hash.
    by_hash: HashMap<u64, usize, BuildHasherDefault<Given>>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    count: u64,
    key: usize,
}

#[derive(Debug)]
struct Known {
    hash: u64,
    key: Vec<u8>,
    error: u64,
    /// Index of its node in the heap.
    place: usize,
}

/// A key and the bounds of its weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counter<'a> {
    pub(super) hash: u64,
    pub(super) key: &'a [u8],
    /// The true weight is at most `count`, and at least `count - error`.
    pub(super) count: u64,
    pub(super) error: u64,
}

/// Passes hashes through: keys are hashed already, with a secret of this process.
#[derive(Default)]
struct Given(u64);

impl Hasher for Given {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only hashes of 64 bits are looked up");
    }
}

impl Sketch {
    /// Creates a sketch with a capacity of `room` keys, at least 1.
    pub(super) fn new(room: usize) -> Sketch {
        Sketch { room: room.max(1), heap: Vec::new(), keys: Vec::new(), by_hash: HashMap::default() }
    }

    pub(super) fn counters(&self) -> impl Iterator<Item = Counter<'_>> {
        self.heap.iter().map(|node| {
            let Known { hash, key, error, .. } = &self.keys[node.key];
            Counter { hash: *hash, key, count: node.count, error: *error }
        })
    }

    /// Adds a weight to a key.
    pub(super) fn add(&mut self, hash: u64, key: &[u8], weight: u64) {
        if let Some(known) = self.by_hash.get(&hash) {
            let place = self.keys[*known].place;
            self.heap[place].count = self.heap[place].count.saturating_add(weight);
            return self.sink(place);
        }
        let shown = &key[..key.len().min(KEY_LEN_MAX)];
        if self.heap.len() < self.room {
            let place = self.heap.len();
            self.by_hash.insert(hash, place);
            self.keys.push(Known { hash, key: shown.to_vec(), error: 0, place });
            self.heap.push(Node { count: weight, key: place });
            return self.rise(place);
        }
        let Node { count, key: lightest } = self.heap[0];
        let known = &mut self.keys[lightest];
        self.by_hash.remove(&known.hash);
        self.by_hash.insert(hash, lightest);
        known.hash = hash;
        known.key.clear();
        known.key.extend_from_slice(shown);
        known.error = count;
        self.heap[0].count = count.saturating_add(weight);
        self.sink(0);
    }

    /// Restores the heap after a node has become heavier.
    fn sink(&mut self, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
            let Some(child) = children.min_by_key(|child| self.heap[*child].count) else { return };
            if self.heap[child].count >= self.heap[place].count {
                return;
            }
            self.swap(place, child);
            place = child;
        }
    }

    /// Restores the heap after a node was added at the end.
    fn rise(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.heap[parent].count <= self.heap[place].count {
                return;
            }
            self.swap(place, parent);
            place = parent;
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        self.keys[self.heap[one].key].place = one;
        self.keys[self.heap[other].key].place = other;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use evenkeel_testkit::Random;

    use super::*;

    fn check_heap(sketch: &Sketch) {
        for (place, node) in sketch.heap.iter().enumerate() {
            assert!(sketch.heap[place.saturating_sub(1) / 2].count <= node.count, "{sketch:?}");
            let known = &sketch.keys[node.key];
            assert_eq!((known.place, sketch.by_hash[&known.hash]), (place, node.key));
        }
        assert_eq!([sketch.by_hash.len(), sketch.keys.len()], [sketch.heap.len(); 2]);
    }

    /// Compares streams of all shapes with exact counts.
    #[test]
    fn heavy_keys_are_found_within_both_error_bounds() {
        for seed in 0..60 {
            let mut random = Random::new(seed);
            let room = 1 + random.below(40);
            let keys = 1 + random.below(400);
            let skew = random.below(4);
            let mut sketch = Sketch::new(room);
            let mut truth: BTreeMap<u64, u64> = BTreeMap::new();
            for _ in 0..3000 {
                // The more draws the minimum is taken of, the hotter are the first keys.
                let key = (0..=skew).map(|_| random.below(keys)).min().expect("at least one") as u64;
                let weight = 1 + random.below(100) as u64;
                *truth.entry(key).or_default() += weight;
                sketch.add(key.wrapping_mul(0x9e37_79b9_7f4a_7c15), format!("key:{key}").as_bytes(), weight);
            }
            check_heap(&sketch);
            let total: u64 = truth.values().sum();
            assert_eq!(sketch.counters().map(|counter| counter.count).sum::<u64>(), total, "seed {seed}");
            let mut known: BTreeMap<String, (u64, u64)> = BTreeMap::new();
            for counter in sketch.counters() {
                let key = String::from_utf8(counter.key.to_vec()).expect("text");
                known.insert(key, (counter.count - counter.error, counter.count));
                assert!(counter.error <= total / room as u64, "seed {seed}: {counter:?}");
            }
            for (key, weight) in truth {
                match known.get(&format!("key:{key}")) {
                    Some((least, most)) => {
                        assert!((least..=most).contains(&&weight), "seed {seed}: key {key} is {weight}");
                    }
                    None => assert!(
                        weight <= total / room as u64,
                        "seed {seed}: key {key} of {weight} is missing"
                    ),
                }
            }
        }
    }

    #[test]
    fn long_keys_are_truncated_and_stay_distinct() {
        let mut sketch = Sketch::new(2);
        let key = vec![b'x'; 5000];
        sketch.add(1, &key, 7);
        sketch.add(2, &[&key[..], b"y"].concat(), 5);
        let shown: Vec<(u64, usize)> =
            sketch.counters().map(|counter| (counter.count, counter.key.len())).collect();
        assert_eq!(shown, [(5, KEY_LEN_MAX), (7, KEY_LEN_MAX)]);
    }
}
