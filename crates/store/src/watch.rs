//! WATCH: a session learns that a key it watches was changed.
//!
//! A change marks the session's flag under the slot's lock; EXEC holds the slots of its watched keys and reads the
//! flag, so no change can slip in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

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

impl Watchers {
    /// `false`: it watches the key already.
    pub(crate) fn add(&mut self, key: &[u8], watch: &Arc<Watch>, stale: bool) -> bool {
        let new = !self.0.iter().any(|one| one.is(key, watch));
        if new {
            self.0.push(Watcher { key: key.into(), watch: watch.clone(), stale });
        }
        new
    }

    /// `false`: it does not watch the key.
    pub(crate) fn remove(&mut self, key: &[u8], watch: &Arc<Watch>) -> bool {
        let at = self.0.iter().position(|one| one.is(key, watch));
        if let Some(at) = at {
            self.0.swap_remove(at);
        }
        at.is_some()
    }

    /// Whether the watch began when the key had expired already.
    pub(crate) fn is_stale(&self, key: &[u8], watch: &Arc<Watch>) -> bool {
        self.0.iter().any(|one| one.stale && one.is(key, watch))
    }

    pub(crate) fn touch(&mut self, key: &[u8], change: Change) {
        self.0.iter_mut().filter(|one| *one.key == *key).for_each(|one| one.touch(change));
    }

    /// Tells all watchers of the slot; `change` says what has happened to a key.
    pub(crate) fn touch_all(&mut self, change: impl Fn(&[u8]) -> Change) {
        self.0.iter_mut().for_each(|one| one.touch(change(&one.key)));
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
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
