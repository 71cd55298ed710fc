//! A keyspace with a single thread and a clock that moves only on demand.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_store::{Cursor, Garbage, Key, Keyspace, LazyFree, SLOTS, SlotGuard, ThreadContext};
use evenkeel_testkit::random::{Random, fresh_seed};

/// 2023-11-14: any time long after 1970.
pub(crate) const START_MS: u64 = 1_700_000_000_000;

/// Scales a test: little work under Miri, which is slow, and much in a release build.
pub(crate) const fn scaled(miri: usize, dev: usize, release: usize) -> usize {
    if cfg!(miri) {
        miri
    } else if cfg!(debug_assertions) {
        dev
    } else {
        release
    }
}

pub(crate) struct World {
    pub(crate) keyspace: Keyspace,
    pub(crate) ctx: ThreadContext,
    pub(crate) lazy_free: Arc<Queue>,
}

/// Keeps handed-over memory until it is freed.
#[derive(Default)]
pub(crate) struct Queue(Mutex<Vec<Garbage>>);

impl LazyFree for Queue {
    fn free(&self, garbage: Garbage) {
        self.0.lock().expect("no test panics with it").push(garbage);
    }
}

impl Queue {
    /// Frees the kept memory.
    pub(crate) fn clear(&self) {
        self.0.lock().expect("no test panics with it").clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().expect("no test panics with it").len()
    }
}

/// CPU time of this thread: unlike a wall clock, it excludes other threads.
pub(crate) fn thread_time() -> Duration {
    if cfg!(miri) {
        return Duration::ZERO;
    }
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A random generator for a test; prints its seed if the test fails.
pub(crate) fn random(test: &str) -> Random {
    let seed = fresh_seed();
    println!("{test}: EVENKEEL_SEED={seed}");
    Random::new(seed)
}

impl World {
    pub(crate) fn new(databases: usize) -> World {
        let lazy_free = Arc::new(Queue::default());
        let keyspace = Keyspace::new(databases, 2, START_MS, 12345).with_lazy_free(lazy_free.clone());
        let mut ctx = keyspace.thread_context();
        ctx.now_ms = START_MS;
        World { keyspace, ctx, lazy_free }
    }

    /// Calls `f` inside the gate, with a key's slot locked.
    pub(crate) fn one<R>(
        &mut self,
        db: u32,
        key: &[u8],
        f: impl FnOnce(&mut SlotGuard<'_>, &Key<'_>) -> R,
    ) -> R {
        let key = self.keyspace.key(db, key);
        self.keyspace.enter(&mut self.ctx);
        let result = f(&mut self.keyspace.hold_one(&mut self.ctx, key.place), &key);
        self.keyspace.leave(&mut self.ctx);
        result
    }

    /// Calls `f` with the slots of two keys locked.
    pub(crate) fn two<R>(
        &mut self,
        one: (u32, &[u8]),
        other: (u32, &[u8]),
        f: impl FnOnce(&mut SlotGuard<'_>, &Key<'_>, &Key<'_>) -> R,
    ) -> R {
        let (one, other) = (self.keyspace.key(one.0, one.1), self.keyspace.key(other.0, other.1));
        let mut places = vec![one.place, other.place];
        self.keyspace.enter(&mut self.ctx);
        let result = f(&mut self.keyspace.hold(&mut self.ctx, &mut places), &one, &other);
        self.keyspace.leave(&mut self.ctx);
        result
    }

    /// Calls `f` without locks.
    pub(crate) fn none<R>(&mut self, f: impl FnOnce(&mut SlotGuard<'_>) -> R) -> R {
        self.keyspace.enter(&mut self.ctx);
        let result = f(&mut self.keyspace.hold_none(&mut self.ctx));
        self.keyspace.leave(&mut self.ctx);
        result
    }

    /// Calls `f` with all slots locked.
    pub(crate) fn all<R>(&mut self, f: impl FnOnce(&mut SlotGuard<'_>) -> R) -> R {
        self.keyspace.enter(&mut self.ctx);
        let result = f(&mut self.keyspace.hold_all(&mut self.ctx));
        self.keyspace.leave(&mut self.ctx);
        result
    }

    pub(crate) fn verify(&mut self) {
        self.all(|guard| guard.verify());
    }

    pub(crate) fn len(&mut self, db: usize) -> usize {
        self.none(|guard| guard.keyspace().len(guard.ctx, db))
    }

    pub(crate) fn timed_len(&mut self, db: usize) -> usize {
        self.none(|guard| guard.keyspace().timed_len(guard.ctx, db))
    }

    pub(crate) fn set(&mut self, db: u32, key: &[u8], value: &[u8], expire: evenkeel_store::Expire) {
        self.one(db, key, |guard, key| guard.set_string(key, value, expire));
    }

    pub(crate) fn get(&mut self, db: u32, key: &[u8]) -> Option<Vec<u8>> {
        self.one(db, key, |guard, key| guard.read(key).map(|view| view.string().bytes().into_owned()))
    }

    /// The keys that a call of SCAN returns, and the next cursor.
    pub(crate) fn scan(&mut self, db: usize, cursor: Cursor, count: usize) -> (Vec<Vec<u8>>, Cursor) {
        let mut keys = Vec::new();
        let next =
            self.none(|guard| guard.scan(db, cursor, count, None, |view| keys.push(view.key().to_vec())));
        (keys, next)
    }

    /// Sweeps the whole database once; returns the number of removed keys.
    pub(crate) fn sweep(&mut self, db: usize) -> usize {
        self.none(|guard| guard.sweep(db, 0, SLOTS, || false).removed)
    }
}
