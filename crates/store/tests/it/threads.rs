//! Threads with all operations at once: transfers between accounts, sums over all accounts, watches, tables
//! that grow and shrink under prefetches, scans, sweeps, evictions, flushes and swaps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use evenkeel_store::evict::{Order, Policy, Pool};
use evenkeel_store::{Cursor, Expire, Key, Keyspace, Place, SLOTS, SlotGuard, ThreadContext, Watch};
use evenkeel_testkit::Random;
use evenkeel_testkit::random::fresh_seed;

use crate::compaction::Compactor;
use crate::world::{START_MS, scaled};

const ACCOUNTS: usize = 24;
const OPENING: i64 = 1000;
const THREADS: usize = 4;

/// Accounts are in these two databases, beside keys that come and go; the other databases are flushed and
/// swapped.
const ACCOUNT_DBS: u32 = 2;
const SCRATCH_DBS: [usize; 2] = [2, 3];

fn account(at: usize) -> (u32, Vec<u8>) {
    // Some share a slot with each other and with the keys that come and go.
    let name = if at.is_multiple_of(3) { format!("{{tag}}account{at}") } else { format!("account{at}") };
    (at as u32 % ACCOUNT_DBS, name.into_bytes())
}

fn passer_by(at: usize) -> Vec<u8> {
    if at.is_multiple_of(2) { format!("{{tag}}{at}") } else { format!("passer-by{}", at % 64) }.into_bytes()
}

/// Balances are written in different lengths, so that entries are replaced as well as overwritten.
fn write_balance(guard: &mut SlotGuard<'_>, key: &Key<'_>, balance: i64, width: usize) {
    guard.set_string(key, format!("{balance:width$}").as_bytes(), Expire::Keep);
}

fn balance(guard: &mut SlotGuard<'_>, key: &Key<'_>) -> i64 {
    let value = guard.string(key).expect("a string").expect("accounts stay").bytes().into_owned();
    String::from_utf8(value).expect("digits").trim().parse().expect("digits")
}

/// A thread's part of the test.
struct Actor<'a> {
    keyspace: &'a Keyspace,
    ctx: ThreadContext,
    random: Random,
    transfers: &'a AtomicUsize,
    pool: Pool,
    cursor: Cursor,
    compactor: Compactor,
}

impl Actor<'_> {
    fn act(&mut self) {
        self.keyspace.enter(&mut self.ctx);
        match self.random.below(100) {
            0..30 => self.transfer(),
            30..32 => self.audit(),
            32..33 => self.scratch(),
            33..45 => self.walk(),
            45..60 => self.batch(),
            _ => self.come_and_go(),
        }
        self.keyspace.leave(&mut self.ctx);
        match self.random.below(50) {
            0 => self.keyspace.tidy(&mut self.ctx),
            1 => self.watch(),
            2..8 => self.compactor.step(self.keyspace, &mut self.ctx, &mut self.random),
            _ => {}
        }
    }

    fn transfer(&mut self) {
        let (from, to) = (account(self.random.below(ACCOUNTS)), account(self.random.below(ACCOUNTS)));
        let (from, to) = (self.keyspace.key(from.0, &from.1), self.keyspace.key(to.0, &to.1));
        let (amount, width) = (self.random.below(10) as i64, self.random.below(12));
        let mut places = vec![from.place, to.place];
        let mut guard = self.keyspace.hold(&mut self.ctx, &mut places);
        let before = balance(&mut guard, &from);
        if self.random.chance(20) {
            std::thread::yield_now(); // on few cores, threads hardly ever meet by themselves
        }
        write_balance(&mut guard, &from, before - amount, width);
        let before = balance(&mut guard, &to);
        write_balance(&mut guard, &to, before + amount, width);
        self.transfers.fetch_add(1, Relaxed);
    }

    fn audit(&mut self) {
        let keyspace = self.keyspace;
        if self.random.chance(50) {
            let mut guard = keyspace.hold_all(&mut self.ctx);
            assert_eq!(sum(&mut guard, keyspace), ACCOUNTS as i64 * OPENING);
        } else {
            let names: Vec<_> = (0..ACCOUNTS).map(account).collect();
            let mut places = names.iter().map(|(db, name)| keyspace.key(*db, name).place).collect();
            let mut guard = keyspace.hold(&mut self.ctx, &mut places);
            assert_eq!(sum(&mut guard, keyspace), ACCOUNTS as i64 * OPENING);
        }
    }

    /// Flushes and swaps databases in use by other threads.
    fn scratch(&mut self) {
        let mut guard = self.keyspace.hold_all(&mut self.ctx);
        let [one, other] = SCRATCH_DBS;
        match self.random.below(4) {
            0 => guard.swap(one, other),
            1 => guard.verify(),
            _ => drop(guard.flush(one)),
        }
    }

    fn walk(&mut self) {
        let db = self.random.below(4);
        let mut guard = self.keyspace.hold_none(&mut self.ctx);
        match self.random.below(5) {
            0 => self.cursor = guard.scan(db, self.cursor, 100, None, |view| assert!(!view.key().is_empty())),
            1 => drop(guard.random_key(db)),
            2 => {
                let from = self.random.below(SLOTS);
                guard.sweep(db, from, SLOTS, || self.random.chance(20));
            }
            3 => {
                let order = [Order::Lru, Order::Lfu, Order::Ttl, Order::Random][self.random.below(4)];
                // Accounts have no deadline, so they stay.
                guard.evict(Policy { volatile_only: true, order }, 5, 1, &mut self.pool);
            }
            _ => {
                let keyspace = guard.keyspace();
                assert!(keyspace.timed_len(guard.ctx, db) < 1 << 30 && keyspace.len(guard.ctx, db) < 1 << 30);
                keyspace.table_memory(guard.ctx, db);
            }
        }
    }

    /// A batch as in a worker: all slots are prefetched, then all buckets, then all entries.
    fn batch(&mut self) {
        let names: Vec<Vec<u8>> = (0..8).map(|_| passer_by(self.random.below(4000))).collect();
        let db = self.random.below(4) as u32;
        let keys: Vec<Key<'_>> = names.iter().map(|name| self.keyspace.key(db, name)).collect();
        keys.iter().for_each(|key| self.keyspace.prefetch_slot(&self.ctx, key.place));
        keys.iter().for_each(|key| self.keyspace.prefetch_bucket(&self.ctx, key.place, key.hash));
        keys.iter().for_each(|key| self.keyspace.prefetch_entry(&self.ctx, key.place, key.hash, 2));
        for key in &keys {
            let mut guard = self.keyspace.hold_one(&mut self.ctx, key.place);
            if let Some(view) = guard.read(key) {
                assert!(view.key() == key.bytes && view.string().len() < 40_000);
            }
        }
    }

    /// Creates and removes keys, many of them in a single slot, with and without deadlines.
    fn come_and_go(&mut self) {
        let db = self.random.below(4) as u32;
        let remove = self.random.chance(50);
        for _ in 0..self.random.below(12) {
            let name = passer_by(self.random.below(4000));
            let key = self.keyspace.key(db, &name);
            let mut guard = self.keyspace.hold_one(&mut self.ctx, key.place);
            let deadline = START_MS + self.random.below(2000) as u64;
            match self.random.below(4) {
                _ if remove => drop(guard.remove(&key)),
                0 => guard.set_string(&key, b"value", Expire::Clear),
                1 => guard.set_string(&key, &vec![b'v'; self.random.below(40_000)], Expire::At(deadline)),
                2 => drop(guard.set_deadline(&key, Some(deadline))),
                _ => guard.set_string(&key, b"VALUE", Expire::Keep),
            }
        }
    }

    /// WATCH, a pause for other threads, EXEC: if the flag is not set, the account is unchanged.
    fn watch(&mut self) {
        let (db, name) = account(self.random.below(ACCOUNTS));
        let key = self.keyspace.key(db, &name);
        let watch = Arc::new(Watch::default());
        self.keyspace.enter(&mut self.ctx);
        let before = {
            let mut guard = self.keyspace.hold_one(&mut self.ctx, key.place);
            guard.watch(&key, &watch);
            balance(&mut guard, &key)
        };
        self.keyspace.leave(&mut self.ctx);
        std::thread::yield_now();
        self.keyspace.enter(&mut self.ctx);
        {
            let mut guard = self.keyspace.hold_one(&mut self.ctx, key.place);
            let after = balance(&mut guard, &key);
            assert!(watch.is_touched() || before == after, "{before} became {after}");
            guard.unwatch(&key, &watch);
        }
        self.keyspace.leave(&mut self.ctx);
    }
}

impl Drop for Actor<'_> {
    /// A thread that fails inside the gate would leave the other threads waiting for it.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.keyspace.leave(&mut self.ctx);
        }
    }
}

fn sum(guard: &mut SlotGuard<'_>, keyspace: &Keyspace) -> i64 {
    (0..ACCOUNTS)
        .map(|at| {
            let (db, name) = account(at);
            balance(guard, &keyspace.key(db, &name))
        })
        .sum()
}

#[test]
fn everything_at_once() {
    let seed = fresh_seed();
    println!("threads: EVENKEEL_SEED={seed} (the order of threads is not repeated)");
    let keyspace = Keyspace::new(4, THREADS + 1, START_MS, seed);
    let transfers = AtomicUsize::new(0);
    let mut ctx = keyspace.thread_context();
    ctx.now_ms = START_MS;
    keyspace.enter(&mut ctx);
    for (db, name) in (0..ACCOUNTS).map(account) {
        let key = keyspace.key(db, &name);
        write_balance(&mut keyspace.hold_one(&mut ctx, key.place), &key, OPENING, 0);
    }
    keyspace.leave(&mut ctx);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (keyspace, transfers) = (&keyspace, &transfers);
            let mut ctx = keyspace.thread_context();
            ctx.now_ms = START_MS;
            let random = Random::new(seed.wrapping_add(thread as u64));
            scope.spawn(move || {
                let pool = Pool::default();
                let (cursor, compactor) = (Cursor(0), Compactor::default());
                let mut actor = Actor { keyspace, ctx, random, transfers, pool, cursor, compactor };
                for step in 0..scaled(60, 25_000, 200_000) {
                    actor.act();
                    // Clocks of threads differ a little.
                    actor.ctx.now_ms = START_MS + step as u64 / 16 + thread as u64;
                }
                assert!(actor.compactor.passes > scaled(0, 5, 50), "{:?}", actor.compactor.moved);
            });
        }
    });
    assert!(transfers.load(Relaxed) > 0);
    keyspace.enter(&mut ctx);
    {
        let mut guard = keyspace.hold_all(&mut ctx);
        assert_eq!(sum(&mut guard, &keyspace), ACCOUNTS as i64 * OPENING);
        guard.verify();
    }
    keyspace.leave(&mut ctx);
}

/// Misuse that would break the guarantees of the gate and the locks panics at its call.
#[test]
fn misuse_is_caught() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let keyspace = Keyspace::new(1, 2, START_MS, 1);
    let other = Keyspace::new(1, 1, START_MS, 1);
    let key = keyspace.key(0, b"key");
    let mut ctx = keyspace.thread_context();
    let caught = |ctx: &mut ThreadContext, mistake: fn(&Keyspace, &mut ThreadContext, Key<'_>)| {
        catch_unwind(AssertUnwindSafe(|| mistake(&keyspace, ctx, key))).is_err()
    };
    assert!(caught(&mut ctx, |keyspace, ctx, key| drop(keyspace.hold_one(ctx, key.place))), "from outside");
    assert!(caught(&mut ctx, |keyspace, ctx, _| keyspace.leave(ctx)), "twice out");
    assert!(catch_unwind(AssertUnwindSafe(|| other.enter(&mut ctx))).is_err(), "another keyspace's seat");
    keyspace.enter(&mut ctx);
    let mistakes: [fn(&Keyspace, &mut ThreadContext, Key<'_>); 6] = [
        |keyspace, ctx, _| keyspace.enter(ctx),
        |keyspace, ctx, key| keyspace.leave(keyspace.hold_one(ctx, key.place).ctx),
        |keyspace, ctx, _| keyspace.leave(keyspace.hold_all(ctx).ctx),
        |keyspace, ctx, key| drop(keyspace.hold_all(keyspace.hold_one(ctx, key.place).ctx)),
        |keyspace, ctx, key| drop(keyspace.hold_one(keyspace.hold_one(ctx, key.place).ctx, key.place)),
        |keyspace, ctx, _| drop(keyspace.hold(ctx, &mut vec![Place::new(0, 1), Place::new(7, 0)])),
    ];
    assert!(mistakes.iter().all(|mistake| caught(&mut ctx, *mistake)));
    assert!(catch_unwind(AssertUnwindSafe(|| drop(other.hold_one(&mut ctx, key.place)))).is_err());
    // No lock is left, and the gate works.
    drop(keyspace.hold(&mut ctx, &mut vec![key.place, Place::new(0, 1)]));
    keyspace.hold_all(&mut ctx).verify();
    keyspace.leave(&mut ctx);
}
