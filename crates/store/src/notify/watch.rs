//! WATCH: a session learns that a key it watches was changed.
//!
//! A change marks the session's flag under the slot's lock. EXEC holds the slots of its watched keys and
//! reads the flag, so no change can slip in between.
//!
//! The session that watches also ends the watch ([`crate::SlotGuard::unwatch`]). If its thread panics before
//! that, the watcher list holds the last reference to the flag. Such a watcher is dropped with the next
//! change of the key, or when another session starts to watch it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// A flag that is set once a watched key has changed.
#[derive(Debug, Default)]
pub struct Watch(AtomicBool);

impl Watch {
    pub fn is_touched(&self) -> bool {
        self.0.load(Acquire)
    }

    pub fn touch(&self) {
        self.0.store(true, Release);
    }
}

/// Watchers of the keys of a slot: a list while they are few, a map by key when they are more.
#[derive(Default)]
pub(crate) struct Watchers {
    few: Vec<(Box<[u8]>, Watcher)>,
    /// Replaces the list; `None` most of the time.
    many: Option<Box<Many>>,
}

/// Maximum length of the list: scanning so many watchers is no slower than hashing a key.
const FEW: usize = 8;

#[derive(Default)]
struct Many {
    by_key: HashMap<Box<[u8]>, Vec<Watcher>>,
    len: usize,
}

struct Watcher {
    watch: Arc<Watch>,
    /// The key had expired when the watch began, but had not been removed: its removal is no change.
    stale: bool,
}

/// A change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Written,
    Removed,
    /// FLUSHALL, SWAPDB: whether the key existed before, and its state afterwards.
    Replaced {
        before: bool,
        after: After,
    },
}

/// State of a key after a database was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Nothing,
    /// A key whose deadline has passed, but which has not been removed yet.
    Expired,
    Live,
}

impl Watchers {
    /// Returns false if the session watches the key already.
    pub(crate) fn add(&mut self, key: &[u8], watch: &Arc<Watch>, stale: bool) -> bool {
        if self.of(key).any(|one| one.is(watch)) {
            return false;
        }
        if self.many.is_none() && self.few.len() == FEW {
            let mut many = Box::<Many>::default();
            self.few.drain(..).for_each(|(key, one)| many.put(&key, one));
            self.many = Some(many);
        }
        let watcher = Watcher { watch: watch.clone(), stale };
        match &mut self.many {
            Some(many) => many.put(key, watcher),
            None => self.few.push((key.into(), watcher)),
        }
        true
    }

    /// Returns false if the session does not watch the key.
    pub(crate) fn remove(&mut self, key: &[u8], watch: &Arc<Watch>) -> bool {
        let Some(many) = &mut self.many else {
            let at = self.few.iter().position(|(other, one)| **other == *key && one.is(watch));
            at.map(|at| self.few.swap_remove(at));
            return at.is_some();
        };
        let removed = many.take(key, watch);
        // At half of the list's length, so that a watcher that comes and goes does not convert the whole set
        // each time.
        if many.len <= FEW / 2 {
            let all = std::mem::take(&mut many.by_key);
            self.many = None;
            for (key, watchers) in all {
                self.few.extend(watchers.into_iter().map(|one| (key.clone(), one)));
            }
        }
        removed
    }

    /// Returns true if the key had already expired when the watch began.
    pub(crate) fn is_stale(&self, key: &[u8], watch: &Arc<Watch>) -> bool {
        self.of(key).any(|one| one.stale && one.is(watch))
    }

    /// Drops the watchers of a key whose sessions are gone; returns their number.
    pub(crate) fn drop_forgotten(&mut self, key: &[u8]) -> usize {
        let before = self.len();
        self.few.retain(|(other, one)| **other != *key || !one.is_forgotten());
        if let Some(many) = &mut self.many
            && let Some(watchers) = many.by_key.get_mut(key)
        {
            many.len -= watchers.extract_if(.., |one| one.is_forgotten()).count();
            if watchers.is_empty() {
                many.by_key.remove(key);
            }
        }
        before - self.len()
    }

    pub(crate) fn touch(&mut self, key: &[u8], change: Change) {
        match &mut self.many {
            Some(many) => many.by_key.get_mut(key).into_iter().flatten().for_each(|one| one.touch(change)),
            None => {
                let of_key = self.few.iter_mut().filter(|(other, _)| **other == *key);
                of_key.for_each(|(_, one)| one.touch(change));
            }
        }
    }

    /// Notifies all watchers of the slot; `change` returns the change of a key.
    pub(crate) fn touch_all(&mut self, change: impl Fn(&[u8]) -> Change) {
        self.few.iter_mut().for_each(|(key, one)| one.touch(change(key)));
        for (key, watchers) in self.many.iter_mut().flat_map(|many| &mut many.by_key) {
            let change = change(key);
            watchers.iter_mut().for_each(|one| one.touch(change));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.few.len() + self.many.as_ref().map_or(0, |many| many.len)
    }

    /// The watchers of a key.
    fn of(&self, key: &[u8]) -> impl Iterator<Item = &Watcher> {
        let few = self.few.iter().filter(move |(other, _)| **other == *key).map(|(_, one)| one);
        few.chain(self.many.iter().filter_map(move |many| many.by_key.get(key)).flatten())
    }
}

impl Many {
    fn put(&mut self, key: &[u8], watcher: Watcher) {
        match self.by_key.get_mut(key) {
            Some(watchers) => watchers.push(watcher),
            None => _ = self.by_key.insert(key.into(), vec![watcher]),
        }
        self.len += 1;
    }

    /// Returns false if the session does not watch the key.
    fn take(&mut self, key: &[u8], watch: &Arc<Watch>) -> bool {
        let Some(watchers) = self.by_key.get_mut(key) else { return false };
        let Some(at) = watchers.iter().position(|one| one.is(watch)) else { return false };
        watchers.swap_remove(at);
        if watchers.is_empty() {
            self.by_key.remove(key);
        }
        self.len -= 1;
        true
    }
}

impl Watcher {
    fn is(&self, watch: &Arc<Watch>) -> bool {
        Arc::ptr_eq(&self.watch, watch)
    }

    /// Returns true if only this list refers to the flag, so no session can read it.
    fn is_forgotten(&self) -> bool {
        Arc::strong_count(&self.watch) == 1
    }

    /// For readers an expired key is the same as a missing key, so an expired key may come or go without a
    /// change.
    fn touch(&mut self, change: Change) {
        let (same, stale) = match (change, self.stale) {
            (Change::Removed, true) => (true, false),
            (Change::Replaced { before: false, after: After::Nothing }, false) => (true, false),
            (Change::Replaced { before: false, after: After::Expired }, false) => (true, true),
            (Change::Replaced { after: After::Nothing, .. }, true) => (true, false),
            (Change::Replaced { after: After::Expired, .. }, true) => (true, true),
            _ => (false, false),
        };
        self.stale = stale;
        if !same {
            self.watch.touch();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::random::{Random, fresh_seed};
    use std::time::{Duration, Instant};

    /// Few or many, in a list or by key: the same watchers are notified.
    #[test]
    fn watchers_are_those_of_a_plain_list() {
        let seed = fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        let mut random = Random::new(seed);
        for most in [3, 12, 60] {
            let watches: Vec<Arc<Watch>> = (0..5).map(|_| Arc::default()).collect();
            let (mut watchers, mut plain) = (Watchers::default(), Vec::<(Vec<u8>, usize, bool)>::new());
            let mut was_many = false;
            for _ in 0..2_000 {
                let (key, at) = (vec![b'k', random.below(most) as u8], random.below(watches.len()));
                let known = plain.iter().position(|(other, who, _)| *other == key && *who == at);
                match random.below(5) {
                    0 | 1 if plain.len() < most => {
                        let stale = random.below(3) == 0;
                        assert_eq!(watchers.add(&key, &watches[at], stale), known.is_none());
                        if known.is_none() {
                            plain.push((key, at, stale));
                        }
                    }
                    2 => {
                        let expected =
                            plain.iter().any(|(other, who, stale)| *other == key && *who == at && !stale);
                        watches.iter().for_each(|watch| watch.0.store(false, Release));
                        watchers.touch(&key, Change::Removed);
                        assert_eq!(watches[at].is_touched(), expected);
                        let stale = plain.iter_mut().filter(|(other, ..)| *other == key);
                        stale.for_each(|(_, _, stale)| *stale = false);
                    }
                    _ => {
                        assert_eq!(watchers.remove(&key, &watches[at]), known.is_some());
                        known.map(|known| plain.swap_remove(known));
                    }
                }
                was_many |= watchers.many.is_some();
                assert_eq!(watchers.len(), plain.len());
                for (key, at, stale) in &plain {
                    assert_eq!(watchers.is_stale(key, &watches[*at]), *stale);
                }
            }
            assert_eq!(was_many, most > FEW);
            watches.iter().for_each(|watch| watch.0.store(false, Release));
            watchers.touch_all(|_| Change::Written);
            for (at, watch) in watches.iter().enumerate() {
                assert_eq!(watch.is_touched(), plain.iter().any(|(_, who, _)| *who == at));
            }
            plain.iter().for_each(|(key, at, _)| assert!(watchers.remove(key, &watches[*at])));
            assert!(watchers.len() == 0 && watchers.many.is_none());
        }
    }

    /// Scanning all watchers each time would take quadratic time: a minute.
    #[test]
    fn a_slot_of_many_watchers_takes_no_longer_for_each() {
        let (count, watch, began) =
            (if cfg!(miri) { 100 } else { 100_000_u32 }, Arc::default(), Instant::now());
        let mut watchers = Watchers::default();
        for number in 0..count {
            assert!(watchers.add(&number.to_le_bytes(), &watch, false));
            watchers.touch(b"another", Change::Written);
            assert!(!watchers.is_stale(b"another", &watch));
        }
        assert!(!watch.is_touched());
        (0..count).for_each(|number| assert!(watchers.remove(&number.to_le_bytes(), &watch)));
        assert!(watchers.len() == 0 && began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    }
}
