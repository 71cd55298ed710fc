//! Threads with clients to answer stay outside the gate while another thread keeps it closed for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

use evenkeel_store::{Expire, Keyspace, ThreadContext};

use crate::world::START_MS;

/// Lets another thread close the gate for long as soon as `act` leaves the gate. The calling thread is inside
/// before, and inside again when the other thread is done.
fn beside_a_long_closer(act: impl FnOnce(&Keyspace, &mut ThreadContext)) {
    let keyspace = Keyspace::new(1, 2, START_MS, 7);
    let (busy, is_over) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let (mut own, mut others) = (keyspace.thread_context(), keyspace.thread_context());
    own.gate_busy = Some(busy.clone());
    keyspace.enter(&mut own);
    let key = keyspace.key(0, b"k");
    keyspace.hold_one(&mut own, key.place).set_string(&key, b"v", Expire::Clear);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            keyspace.enter(&mut others);
            let guard = keyspace.hold_all(&mut others);
            busy.store(true, Release);
            while !is_over.load(Acquire) {
                std::thread::yield_now();
            }
            busy.store(false, Release);
            drop(guard);
            keyspace.leave(&mut others);
        });
        act(&keyspace, &mut own);
        assert!(!own.is_inside());
        assert!(!keyspace.try_enter(&mut own), "it is still closed");
        is_over.store(true, Release);
    });
    assert!(keyspace.try_enter(&mut own));
    assert!(keyspace.try_hold_all(&mut own).is_some());
    keyspace.leave(&mut own);
}

#[test]
fn a_thread_stays_outside_wherever_it_waits_for_the_gate() {
    beside_a_long_closer(|keyspace, ctx| while keyspace.hold_none(ctx).give_way() {});
    beside_a_long_closer(|keyspace, ctx| {
        while ctx.is_inside() {
            let walked = keyspace.hold_none(ctx).for_each_key(0, |_| ());
            assert_eq!(walked, ctx.is_inside());
        }
    });
    beside_a_long_closer(|keyspace, ctx| while keyspace.step_out(ctx) {});
    beside_a_long_closer(|keyspace, ctx| {
        while ctx.is_inside() {
            keyspace.hold_none(ctx).outside_gate(std::thread::yield_now);
        }
    });
    beside_a_long_closer(|keyspace, ctx| while keyspace.try_hold_all(ctx).is_some() {});
}
