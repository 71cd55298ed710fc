//! WATCH: a session learns that a key it watches was changed.
//!
//! Watchers hang on the slot, so a write finds out with one load of a pointer beside the lock that nobody watches.
//! A change marks the session's flag under the slot's lock; EXEC holds the slots of its watched keys and reads the
//! flag, so no change can slip in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};

/// Set once a watched key has changed.
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

/// Who watches keys of one slot.
#[derive(Default)]
pub(crate) struct Watchers(Vec<Watcher>);

struct Watcher {
    key: Box<[u8]>,
    watch: Arc<Watch>,
    /// The key had expired, but was still there, when the watch began: its removal is no change.
    stale: bool,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Written,
    Removed,
    /// FLUSHALL, SWAPDB: whether the key was there before, and what is there afterwards.
    Replaced {
        before: bool,
        after: After,
    },
}

/// What has come to a key's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Nothing,
    /// A key whose time has passed, although it has not been removed yet.
    Expired,
    Live,
}

// The caller holds the slot's lock for all of these.
impl Watchers {
    /// `false`: it watches the key already.
    pub(crate) fn add(slot: &AtomicPtr<Watchers>, key: &[u8], watch: &Arc<Watch>, stale: bool) -> bool {
        let mut watchers = Watchers::take(slot).unwrap_or_default();
        let new = !watchers.0.iter().any(|one| one.is(key, watch));
        if new {
            watchers.0.push(Watcher { key: key.into(), watch: watch.clone(), stale });
        }
        Watchers::put(slot, Some(watchers));
        new
    }

    /// `false`: it does not watch the key.
    pub(crate) fn remove(slot: &AtomicPtr<Watchers>, key: &[u8], watch: &Arc<Watch>) -> bool {
        let Some(mut watchers) = Watchers::take(slot) else { return false };
        let at = watchers.0.iter().position(|one| one.is(key, watch));
        if let Some(at) = at {
            watchers.0.swap_remove(at);
        }
        Watchers::put(slot, (!watchers.0.is_empty()).then_some(watchers));
        at.is_some()
    }

    /// Whether the watch began when the key had expired already.
    pub(crate) fn is_stale(slot: &AtomicPtr<Watchers>, key: &[u8], watch: &Arc<Watch>) -> bool {
        let watchers = Watchers::take(slot);
        let stale =
            watchers.iter().flat_map(|watchers| &watchers.0).any(|one| one.stale && one.is(key, watch));
        Watchers::put(slot, watchers);
        stale
    }

    #[cold]
    pub(crate) fn touch(slot: &AtomicPtr<Watchers>, key: &[u8], change: Change) {
        if let Some(mut watchers) = Watchers::take(slot) {
            watchers.0.iter_mut().filter(|one| *one.key == *key).for_each(|one| one.touch(change));
            Watchers::put(slot, Some(watchers));
        }
    }

    /// Tells all watchers of the slot; `change` says what has happened to a key.
    pub(crate) fn touch_all(slot: &AtomicPtr<Watchers>, change: impl Fn(&[u8]) -> Change) {
        if let Some(mut watchers) = Watchers::take(slot) {
            watchers.0.iter_mut().for_each(|one| one.touch(change(&one.key)));
            Watchers::put(slot, Some(watchers));
        }
    }

    pub(crate) fn count(slot: &AtomicPtr<Watchers>) -> usize {
        if slot.load(Relaxed).is_null() {
            return 0;
        }
        let watchers = Watchers::take(slot);
        let count = watchers.as_ref().map_or(0, |watchers| watchers.0.len());
        Watchers::put(slot, watchers);
        count
    }

    pub(crate) fn take(slot: &AtomicPtr<Watchers>) -> Option<Box<Watchers>> {
        let watchers = slot.swap(std::ptr::null_mut(), Relaxed);
        // SAFETY: the pointer is null or came from `Box::into_raw` in `put`, and was just taken out.
        (!watchers.is_null()).then(|| unsafe { Box::from_raw(watchers) })
    }

    pub(crate) fn put(slot: &AtomicPtr<Watchers>, watchers: Option<Box<Watchers>>) {
        slot.store(watchers.map_or(std::ptr::null_mut(), Box::into_raw), Relaxed);
    }
}

impl Watcher {
    fn is(&self, key: &[u8], watch: &Arc<Watch>) -> bool {
        Arc::ptr_eq(&self.watch, watch) && *self.key == *key
    }

    /// For readers an expired key is as good as none, so one may come or go, and nothing has changed.
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
