//! Slots that move to another server, or from there: their keys are removed as a whole, and meanwhile by
//! commands alone.

use evenkeel_store::evict::{Order, Policy, Pool};
use evenkeel_store::key::slot_of;
use evenkeel_store::{Expire, SlotSet};

use crate::world::World;

const KEYS: usize = 1_000;

/// Keys of two databases, of which each second has a deadline in the past.
fn filled() -> World {
    let mut world = World::new(2);
    for (db, number) in (0..2).flat_map(|db| (0..KEYS).map(move |number| (db, number))) {
        let deadline = world.ctx.now_ms + 1;
        let expire = if number % 2 == 0 { Expire::At(deadline) } else { Expire::Clear };
        world.set(db, format!("key:{number}").as_bytes(), b"value", expire);
    }
    world.ctx.now_ms += 1_000_000;
    world
}

fn in_slots(slots: &SlotSet) -> usize {
    let keys = (0..KEYS).map(|number| format!("key:{number}"));
    keys.filter(|key| slots.contains(slot_of(key.as_bytes()).into())).count()
}

#[test]
fn a_cleared_slot_is_empty_and_no_other_slot_is_touched() {
    let mut world = World::new(2);
    for number in 0..KEYS {
        world.set(1, format!("{{tag}}{number}").as_bytes(), b"value", Expire::Clear);
        world.set(0, format!("{{tag}}{number}").as_bytes(), b"value", Expire::Clear);
        world.set(1, format!("key:{number}").as_bytes(), b"value", Expire::Clear);
    }
    let slot = slot_of(b"tag");
    let (mut removed, mut steps) = (0, 0);
    loop {
        let some = world.none(|guard| guard.clear_some(1, slot, 100));
        assert!(some <= 100);
        (removed, steps) = (removed + some, steps + 1);
        if some == 0 {
            break;
        }
    }
    assert_eq!((removed, steps), (KEYS, KEYS / 100 + 1));
    assert_eq!((world.len(0), world.len(1)), (KEYS, KEYS));
    assert_eq!(world.get(1, b"{tag}1"), None);
    assert_eq!(world.get(1, b"key:1").as_deref(), Some(&b"value"[..]));
    world.verify();
}

#[test]
fn keys_of_spared_slots_neither_expire_nor_go_for_want_of_memory() {
    let mut world = filled();
    let spared: SlotSet = (0..8_192).collect();
    world.keyspace.spare(&spared);
    let expired = (0..KEYS).filter(|number| number % 2 == 0).map(|number| format!("key:{number}"));
    let expired: Vec<String> = expired.collect();
    let other = expired.iter().filter(|key| !spared.contains(slot_of(key.as_bytes()).into())).count();
    assert_eq!((world.sweep(0), world.sweep(1)), (other, other));
    // A look hides an expired key, and does not remove it.
    for key in &expired {
        assert_eq!(world.get(0, key.as_bytes()), None);
    }
    assert_eq!(world.len(0), KEYS - other);
    let policy = Policy { volatile_only: false, order: Order::Random };
    let mut pool = Pool::default();
    for _ in 0..4 * KEYS {
        world.none(|guard| guard.evict(policy, 5, 1, &mut pool));
    }
    assert_eq!((world.len(0), world.len(1)), (in_slots(&spared), in_slots(&spared)));
    world.keyspace.spare(&SlotSet::default());
    assert_eq!(world.sweep(0), expired.len() - other);
    world.verify();
}
