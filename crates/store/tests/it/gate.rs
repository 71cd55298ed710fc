//! The gate, in every order of its threads: the file is compiled against loom, which explores all orders and
//! all values that a relaxed load may return.

#[path = "../../src/guard/gate.rs"]
#[allow(dead_code, unreachable_pub)]
mod model;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use model::Gate;

/// Explores all orders with at most `preemptions` forced switches of threads; without a bound a model takes
/// hours.
pub(crate) fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// The data behind the gate: loom reports a read that is not ordered with every write.
struct Shared {
    gate: Gate,
    data: UnsafeCell<u64>,
}

fn shared(contexts: usize) -> Arc<Shared> {
    Arc::new(Shared { gate: Gate::new(contexts), data: UnsafeCell::new(0) })
}

impl Shared {
    /// Reads inside the gate; twice, since the data must not change meanwhile.
    fn read(&self, ctx: usize) -> u64 {
        self.gate.enter(ctx);
        self.read_inside(ctx)
    }

    /// The same, or `None` if the gate is closed and `refuse` returns true.
    fn read_unless(&self, ctx: usize, refuse: impl Fn() -> bool) -> Option<u64> {
        self.gate.enter_unless(ctx, refuse).then(|| self.read_inside(ctx))
    }

    fn read_inside(&self, ctx: usize) -> u64 {
        // SAFETY: loom checks that no thread writes meanwhile.
        let (first, second) = self.data.with(|data| unsafe { (*data, *data) });
        self.gate.leave(ctx);
        assert_eq!(first, second);
        first
    }

    /// Writes with the gate closed, from inside.
    fn write(&self, ctx: usize) {
        self.gate.enter(ctx);
        let closed = self.gate.close(ctx);
        // SAFETY: loom checks that no other thread reads or writes meanwhile.
        self.data.with_mut(|data| unsafe { *data += 1 });
        drop(closed);
        self.gate.leave(ctx);
    }
}

#[test]
fn no_thread_is_inside_a_closed_gate() {
    explore(3, || {
        let shared = shared(2);
        let reader = thread::spawn({
            let shared = shared.clone();
            move || {
                let first = shared.read(0);
                assert!(first <= shared.read(0));
            }
        });
        shared.write(1);
        reader.join().expect("no panic");
    });
}

#[test]
fn two_threads_close_the_gate_from_inside() {
    explore(2, || {
        let shared = shared(3);
        let others: Vec<_> = [0, 1]
            .map(|ctx| {
                let shared = shared.clone();
                thread::spawn(move || if ctx == 0 { shared.write(ctx) } else { _ = shared.read(ctx) })
            })
            .into();
        shared.write(2);
        others.into_iter().for_each(|other| other.join().expect("no panic"));
        assert_eq!(shared.read(0), 2);
    });
}

/// A thread that may be refused either enters as safely as a thread that waits, or stays outside, where the
/// closer does not wait for it. The gate is closed twice.
#[test]
fn a_refused_thread_is_outside() {
    use loom::sync::atomic::{AtomicBool, Ordering::*};
    // Counts over all orders: each outcome must occur.
    static OUTCOMES: [std::sync::atomic::AtomicUsize; 2] =
        [const { std::sync::atomic::AtomicUsize::new(0) }; 2];
    explore(3, || {
        let shared = Arc::new((shared(2), AtomicBool::new(false)));
        let reader = thread::spawn({
            let shared = shared.clone();
            move || {
                let (shared, is_long) = &*shared;
                let first = shared.read_unless(0, || is_long.load(Relaxed));
                OUTCOMES[usize::from(first.is_some())].fetch_add(1, Relaxed);
                assert!(first.unwrap_or(0) <= shared.read(0));
            }
        });
        let (shared, is_long) = &*shared;
        for _ in 0..2 {
            shared.gate.enter(1);
            let closed = shared.gate.close(1);
            is_long.store(true, Relaxed);
            // SAFETY: loom checks that no other thread reads or writes meanwhile.
            shared.data.with_mut(|data| unsafe { *data += 1 });
            is_long.store(false, Relaxed);
            drop(closed);
            shared.gate.leave(1);
        }
        reader.join().expect("no panic");
    });
    assert!(OUTCOMES.iter().all(|count| count.load(Relaxed) > 0), "{OUTCOMES:?}");
}

/// A thread that wants to close the gate and is refused is outside, where the current closer does not wait
/// for it. If it is not refused, it closes the gate like any other thread.
#[test]
fn a_refused_closer_is_outside() {
    use loom::sync::atomic::{AtomicBool, Ordering::*};
    static OUTCOMES: [std::sync::atomic::AtomicUsize; 2] =
        [const { std::sync::atomic::AtomicUsize::new(0) }; 2];
    explore(2, || {
        let shared = Arc::new((shared(2), AtomicBool::new(false)));
        let other = thread::spawn({
            let shared = shared.clone();
            move || {
                let (shared, is_long) = &*shared;
                shared.gate.enter(0);
                let closed = shared.gate.close_unless(0, || is_long.load(Relaxed));
                OUTCOMES[usize::from(closed.is_some())].fetch_add(1, Relaxed);
                if closed.is_some() {
                    // SAFETY: loom checks that no other thread reads or writes meanwhile.
                    shared.data.with_mut(|data| unsafe { *data += 1 });
                    drop(closed);
                    shared.gate.leave(0);
                }
            }
        });
        let (shared, is_long) = &*shared;
        shared.gate.enter(1);
        let closed = shared.gate.close(1);
        is_long.store(true, Relaxed);
        // SAFETY: loom checks that no other thread reads or writes meanwhile.
        shared.data.with_mut(|data| unsafe { *data += 1 });
        is_long.store(false, Relaxed);
        drop(closed);
        shared.gate.leave(1);
        other.join().expect("no panic");
    });
    assert!(OUTCOMES.iter().all(|count| count.load(Relaxed) > 0), "{OUTCOMES:?}");
}

/// No wake-up is lost: a thread that is never refused gets in, although no timeout fires in a model.
#[test]
fn an_admitted_thread_is_inside() {
    explore(2, || {
        let shared = shared(3);
        let readers = [0, 1].map(|ctx| {
            let shared = shared.clone();
            thread::spawn(move || assert!(shared.read_unless(ctx, || false).is_some()))
        });
        shared.write(2);
        readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
    });
}

/// A replaced table is freed only when no thread can be reading it. Here the table is a cell, which is
/// written to instead of freed. The replacing thread looks from outside the gate, or from inside between two
/// commands.
#[test]
fn replaced_data_have_no_reader_after_a_glance() {
    [false, true].into_iter().for_each(glance_at_a_replaced_table);
}

fn glance_at_a_replaced_table(from_inside: bool) {
    use loom::sync::atomic::{AtomicUsize, Ordering::*};
    explore(3, move || {
        let shared = Arc::new((Gate::new(2), [UnsafeCell::new(1), UnsafeCell::new(2)], AtomicUsize::new(0)));
        let reader = thread::spawn({
            let shared = shared.clone();
            move || {
                let (gate, tables, current) = &*shared;
                for _ in 0..2 {
                    gate.enter(0);
                    // SAFETY: loom checks that no thread writes meanwhile.
                    let value = tables[current.load(Acquire)].with(|table| unsafe { *table });
                    assert!(value > 0, "a table that was freed");
                    gate.leave(0);
                }
            }
        });
        let (gate, tables, current) = &*shared;
        let mut glance = Vec::new();
        gate.enter(1);
        current.store(1, Release);
        if !from_inside {
            gate.leave(1);
        }
        gate.glance(&mut glance);
        if gate.all_passed(&glance, 1) {
            // SAFETY: loom checks that no other thread reads or writes meanwhile.
            tables[0].with_mut(|table| unsafe { *table = 0 });
        }
        if from_inside {
            gate.leave(1);
        }
        reader.join().expect("no panic");
    });
}

/// Real threads and real time: four enter and leave, two close.
#[test]
fn threads_go_in_and_out() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    let gate = evenkeel_store::gate::Gate::new(6);
    let (inside, closed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let rounds = crate::world::scaled(20, 10_000, 50_000);
    std::thread::scope(|scope| {
        for ctx in 0..4 {
            let (gate, inside, closed) = (&gate, &inside, &closed);
            scope.spawn(move || {
                for _ in 0..rounds {
                    gate.enter(ctx);
                    inside.fetch_add(1, SeqCst);
                    assert_eq!(closed.load(SeqCst), 0);
                    inside.fetch_sub(1, SeqCst);
                    gate.leave(ctx);
                }
            });
        }
        for ctx in 4..6 {
            let (gate, inside, closed) = (&gate, &inside, &closed);
            scope.spawn(move || {
                for _ in 0..rounds / 20 {
                    gate.enter(ctx);
                    let guard = gate.close(ctx);
                    assert_eq!(closed.fetch_add(1, SeqCst), 0, "one closer at a time");
                    assert_eq!(inside.load(SeqCst), 0);
                    closed.fetch_sub(1, SeqCst);
                    drop(guard);
                    gate.leave(ctx);
                }
            });
        }
    });
}
