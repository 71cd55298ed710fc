use std::collections::BTreeMap;

use evenkeel_testkit::random::{Random, fresh_seed};

use super::*;

/// A segment beside a map of its expected content: address to tag and deadline. Addresses are made up; no
/// test reads the entries.
struct Model {
    segment: Segment,
    words: BTreeMap<usize, (u32, u32)>,
    next_address: usize,
}

impl Drop for Model {
    fn drop(&mut self) {
        self.exchange(Segment::EMPTY);
    }
}

impl Model {
    fn new() -> Model {
        Model { segment: Segment::EMPTY, words: BTreeMap::new(), next_address: 1 << 30 }
    }

    fn exchange(&mut self, segment: Segment) {
        if let Some(retired) = std::mem::replace(&mut self.segment, segment).retire() {
            // SAFETY: only this thread has it.
            unsafe { retired.free() }
        }
    }

    fn word(address: usize, tag: u32) -> Word {
        // SAFETY: not null, and no code follows it.
        Word::new(tag, unsafe { EntryPtr::from_address(address) })
    }

    fn insert(&mut self, tag: u32, deadline: u32) {
        if !self.segment.has_room(self.words.len()) || deadline != 0 && !self.segment.has_deadlines() {
            let timed = deadline != 0 || self.segment.has_deadlines();
            self.exchange(self.segment.resized(self.words.len() + 1, timed));
        }
        self.next_address += 40;
        let bucket = self.segment.insert(Model::word(self.next_address, tag), deadline);
        assert_eq!(self.segment.word(bucket).address(), self.next_address);
        self.words.insert(self.next_address, (tag, deadline));
    }

    fn remove(&mut self, address: usize) {
        let (tag, _) = self.words.remove(&address).expect("there");
        let word = Model::word(address, tag);
        let bucket = self.segment.find_by(tag, |other| other == word).expect("found before it is removed");
        self.segment.remove(bucket);
        assert_eq!(self.segment.find_by(tag, |other| other == word), None);
        if self.segment.shrinks(self.words.len()) {
            let timed =
                self.segment.has_deadlines() && self.words.values().any(|(_, deadline)| *deadline != 0);
            self.exchange(self.segment.resized((self.words.len() * 3 / 2).max(1), timed));
        }
    }

    fn any_address(&self, random: &mut Random) -> Option<usize> {
        let skip = random.below(self.words.len().max(1));
        self.words.keys().nth(skip).copied()
    }

    fn check(&self) {
        for (address, (tag, deadline)) in &self.words {
            let word = Model::word(*address, *tag);
            let bucket = self.segment.find_by(*tag, |other| other == word).expect("every word is found");
            assert_eq!(self.segment.deadline(bucket), *deadline);
        }
        let guard: usize = self.segment.occupied().count();
        assert_eq!(guard, self.words.len());
        let timed = (0..self.segment.buckets()).filter(|bucket| self.segment.deadline(*bucket) != 0).count();
        assert_eq!(timed, self.words.values().filter(|(_, deadline)| *deadline != 0).count());
        let mut from_there: Vec<usize> = self.segment.occupied_from(12_345).collect();
        from_there.sort_unstable();
        assert!(from_there.into_iter().eq(self.segment.occupied()));
    }
}

const TAG_MAX: u32 = (1 << TAG_BITS) - 1;

/// Ways to choose tags, from the kind to the malicious.
const TAGS: [fn(&mut Random) -> u32; 6] = [
    |random| random.draw() as u32 & TAG_MAX,
    |_| 0,
    |_| TAG_MAX,
    |random| TAG_MAX - random.below(2) as u32 * 300,
    |random| (TAG_MAX - 4000).wrapping_add(random.below(8000) as u32) & TAG_MAX,
    |random| random.below(4) as u32 * (TAG_MAX / 4),
];

#[test]
fn random_changes_against_a_map() {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    let (steps, sizes) = if cfg!(miri) { (60, 5..=5) } else { (6000, 5..=900) };
    for tags in TAGS {
        for most in [5, 40, 900].into_iter().filter(|most| sizes.contains(most)) {
            let (mut model, mut growing) = (Model::new(), true);
            for step in 0..steps {
                growing = if growing { model.words.len() < most } else { random.below(most) == 0 };
                if random.chance(if growing { 80 } else { 30 }) {
                    let deadline = if random.chance(20) { 1 + random.below(1000) as u32 } else { 0 };
                    model.insert(tags(&mut random), deadline);
                } else if let Some(address) = model.any_address(&mut random) {
                    model.remove(address);
                }
                if step % (1 + model.words.len() / 2) == 0 {
                    model.check();
                }
            }
            while let Some(address) = model.any_address(&mut random) {
                model.remove(address);
            }
            model.check();
        }
    }
}

/// Up to the last capacity: capacities fit their bits, and no segment is ever without an empty bucket.
#[test]
fn segments_grow_to_their_limit() {
    let mut model = Model::new();
    let most = if cfg!(miri) { 60 } else { KEYS_MAX };
    for key in 0..most {
        model.insert((key as u32).wrapping_mul(0x9_e377) & TAG_MAX, key as u32 % 3);
        assert!(model.words.len() < model.segment.buckets());
    }
    model.check();
}

/// Room for a further key is really there, with and without the column of deadlines.
#[test]
fn resizing_leaves_the_room_that_was_asked_for() {
    for keys in 1..if cfg!(miri) { 20 } else { 2000 } {
        let segment = Segment::EMPTY.resized(keys, keys % 2 == 0);
        assert!(segment.has_room(keys - 1), "{keys}");
        // SAFETY: only this thread has it.
        unsafe { segment.retire().expect("not the empty one").free() }
    }
}

#[test]
fn hints_lead_to_the_entry_or_nowhere() {
    let mut random = Random::new(7);
    let mut model = Model::new();
    assert!(model.segment.entry_hint(1).is_null() && model.segment.home_hint(1).is_null());
    let keys = if cfg!(miri) { 50 } else { 800 };
    for _ in 0..keys {
        model.insert(random.draw() as u32 & TAG_MAX, 0);
    }
    let mut led = 0;
    for (address, (tag, _)) in &model.words {
        let hint = model.segment.entry_hint(*tag) as usize;
        led += usize::from(hint == *address);
        assert!(hint == 0 || model.words.contains_key(&hint));
        let home = model.segment.home_hint(*tag) as usize - model.segment.address();
        assert_eq!(home, 8 * model.segment.home(*tag));
    }
    assert!(led * 8 > keys * 5, "{led} of {keys} entries are prefetched");
}
