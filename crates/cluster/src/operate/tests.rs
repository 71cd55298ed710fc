use super::*;
use crate::snapshot::Alive;

fn node(byte: u8) -> NodeId {
    NodeId::new([byte; 20])
}

fn shard(byte: u8) -> ShardId {
    ShardId::new([byte; 20])
}

fn slots(range: std::ops::RangeInclusive<u16>) -> SlotRanges {
    range.collect()
}

/// Makes an operation.
fn run(view: &mut Snapshot, me: u8, operation: Operation) -> Result<(), Refusal> {
    let transaction = plan(view, node(me), &operation)?;
    let revision = view.revision + 1;
    assert!(view.commit(revision, &transaction), "a plan fits the view that it was made from");
    Ok(())
}

/// Three primaries; the first two share the low slots.
fn cluster() -> Snapshot {
    let mut view = Snapshot { revision: 1, ..Snapshot::default() };
    for byte in 1..=3 {
        let operation =
            Operation::Register { address: Address::default(), shard: shard(byte), incarnation: 0 };
        run(&mut view, byte, operation).expect("the node is new");
        view.apply(view.revision + 1, Change::Alive(node(byte), Alive::default()));
    }
    run(&mut view, 1, Operation::AddSlots(slots(0..=99))).expect("the slots are free");
    run(&mut view, 2, Operation::AddSlots(slots(100..=199))).expect("the slots are free");
    view
}

fn refusal(view: &mut Snapshot, me: u8, operation: Operation) -> String {
    run(view, me, operation).expect_err("it is not possible")
}

fn owner(view: &Snapshot, slot: u16) -> Option<ShardId> {
    view.map().owner(slot).map(|(id, _)| id)
}

#[test]
fn slots_are_added_and_given_up() {
    let mut view = cluster();
    assert_eq!(refusal(&mut view, 3, Operation::AddSlots(slots(99..=300))), "ERR Slot 99 is already busy");
    assert_eq!(
        refusal(&mut view, 1, Operation::DelSlots(slots(300..=300))),
        "ERR Slot 300 is already unassigned"
    );
    assert!(refusal(&mut view, 1, Operation::DelSlots(slots(150..=150))).contains("another node"));
    run(&mut view, 1, Operation::DelSlots(slots(50..=60))).expect("its own slots");
    assert_eq!((owner(&view, 50), owner(&view, 49)), (None, Some(shard(1))));
    run(&mut view, 3, Operation::AddSlots(slots(50..=50))).expect("the slot is free");
    run(&mut view, 1, Operation::FlushSlots).expect("its own slots");
    assert_eq!((view.map().assigned(), owner(&view, 50)), (101, Some(shard(3))));
}

#[test]
fn two_plans_for_the_same_slots_do_not_both_succeed() {
    let mut view = cluster();
    let plans = [1, 3].map(|me| plan(&view, node(me), &Operation::AddSlots(slots(500..=500))).expect("free"));
    assert!(view.commit(1_000, &plans[0]) && !view.commit(1_001, &plans[1]));
}

#[test]
fn a_slot_migrates_key_by_key() {
    let mut view = cluster();
    let migrating = |slot, to| Operation::Migrating { slot, node: node(to) };
    let assign = |to| Operation::Assign { slot: 7, node: node(to) };
    assert_eq!(refusal(&mut view, 1, migrating(150, 2)), "ERR I'm not the owner of hash slot 150");
    assert_eq!(refusal(&mut view, 1, migrating(7, 9)), format!("ERR I don't know about node {}", node(9)));
    let importing = |slot| Operation::Importing { slot, node: node(1) };
    assert_eq!(refusal(&mut view, 2, importing(150)), "ERR I'm already the owner of hash slot 150");
    assert!(refusal(&mut view, 2, assign(2)).contains("does not migrate"));
    for own in [migrating(7, 1), Operation::Importing { slot: 150, node: node(1) }] {
        assert_eq!(refusal(&mut view, 1, own), "ERR Target node is myself");
    }
    run(&mut view, 2, importing(7)).expect("a slot of the other");
    run(&mut view, 1, migrating(7, 2)).expect("its own slot");
    run(&mut view, 1, Operation::Stable { slot: 7 }).expect("its own slot");
    assert!(view.shards[&shard(1)].value.migrating.is_empty());
    run(&mut view, 1, migrating(7, 2)).expect("its own slot");
    // The target is asked first, as redis-cli does; the source's turn then changes nothing.
    run(&mut view, 2, assign(2)).expect("the slot migrates there");
    assert_eq!(owner(&view, 7), Some(shard(2)));
    let transaction = plan(&view, node(1), &assign(2)).expect("it is there");
    assert!(transaction.changes.is_empty());
    assert!(
        view.shards[&shard(1)].value.migrating.is_empty()
            && view.shards[&shard(2)].value.importing.is_empty()
    );
}

#[test]
fn a_slot_that_migrates_here_can_be_added() {
    let mut view = cluster();
    let add = |slot| Operation::AddSlots(slots(slot..=slot));
    run(&mut view, 1, Operation::Migrating { slot: 7, node: node(2) }).expect("its own slot");
    assert_eq!(refusal(&mut view, 3, add(7)), "ERR Slot 7 is already busy");
    assert_eq!(refusal(&mut view, 2, add(8)), "ERR Slot 8 is already busy");
    run(&mut view, 2, add(7)).expect("the slot migrates there");
    assert_eq!(owner(&view, 7), Some(shard(2)));
    let former = &view.shards[&shard(1)].value;
    assert!(former.migrating.is_empty() && !former.slots.contains(7) && former.slots.contains(8));
}

#[test]
fn a_node_replicates_and_is_reset() {
    let mut view = cluster();
    let replicate = |to| Operation::Replicate(node(to));
    assert_eq!(refusal(&mut view, 3, replicate(3)), "ERR Can't replicate myself");
    assert_eq!(refusal(&mut view, 3, replicate(9)), format!("ERR Unknown node {}", node(9)));
    assert!(refusal(&mut view, 1, replicate(2)).contains("must be empty and without assigned slots"));
    run(&mut view, 3, replicate(1)).expect("an empty primary");
    assert_eq!(view.shards.len(), 2);
    assert!(refusal(&mut view, 2, replicate(3)).contains("I can only replicate a master, not a replica."));
    let before = view.revision_of(Key::Shard(shard(1)));
    run(&mut view, 3, replicate(2)).expect("a replica changes its primary");
    assert!(view.revision_of(Key::Shard(shard(1))) > before, "what is under way for the old shard is void");
    run(&mut view, 3, Operation::Reset { shard: shard(8), incarnation: 4 }).expect("a replica");
    assert_eq!(view.shards[&shard(8)].value.primary, Some(node(3)));
    assert!(refusal(&mut view, 3, Operation::AddSlots(slots(16_000..=16_000))).contains("Former keys"));
    run(&mut view, 3, Operation::Cleared(slots(0..=16_383))).expect("the primary");
    assert!(view.shards[&shard(8)].value.leftover.is_empty());
    assert!(refusal(&mut view, 1, Operation::Reset { shard: shard(8), incarnation: 4 }).contains("RESET"));
}

#[test]
fn nodes_are_forgotten() {
    let mut view = cluster();
    let forget = |byte| Operation::Forget(node(byte));
    assert_eq!(refusal(&mut view, 1, forget(1)), "ERR I tried hard but I can't forget myself...");
    assert_eq!(refusal(&mut view, 1, forget(9)), format!("ERR Unknown node {}", node(9)));
    assert!(refusal(&mut view, 1, forget(2)).contains("slots or replicas"));
    run(&mut view, 3, Operation::Replicate(node(1))).expect("an empty primary");
    assert_eq!(refusal(&mut view, 3, forget(1)), "ERR Can't forget my master!");
    run(&mut view, 2, forget(3)).expect("a replica");
    assert_eq!((view.nodes.len(), view.shards.len()), (2, 2));
}

#[test]
fn epochs_only_rise() {
    let mut view = cluster();
    run(&mut view, 1, Operation::BumpEpoch).expect("a primary");
    run(&mut view, 1, Operation::SetConfigEpoch(9)).expect("a higher epoch");
    assert_eq!(view.shards[&shard(1)].value.epoch, 9);
    assert!(refusal(&mut view, 1, Operation::SetConfigEpoch(8)).contains("never goes back"));
    assert_eq!(refusal(&mut view, 1, Operation::SetConfigEpoch(0)), "ERR Invalid config epoch specified: 0");
}

#[test]
fn moves_begin_and_are_cancelled() {
    let mut view = cluster();
    let id = MigrationId::new([7; 20]);
    let begin = |range| Operation::Move { id, slots: slots(range), target: node(3) };
    assert_eq!(refusal(&mut view, 1, begin(90..=110)), "ERR I'm not the owner of hash slot 100");
    run(&mut view, 1, begin(0..=9)).expect("its own slots");
    let again = Operation::Move { id: MigrationId::new([8; 20]), slots: slots(9..=9), target: node(2) };
    assert!(refusal(&mut view, 1, again).contains("moves one of these slots"));
    assert!(refusal(&mut view, 1, Operation::Migrating { slot: 5, node: node(2) }).contains("Migration"));
    run(&mut view, 2, Operation::CancelMove(id)).expect("it is there");
    assert!(refusal(&mut view, 2, Operation::CancelMove(id)).contains("no migration"));
}

#[test]
fn a_target_asks_for_slots_of_one_source() {
    let mut view = cluster();
    let id = MigrationId::new([7; 20]);
    let ask = |range, target| Operation::Move { id, slots: slots(range), target: node(target) };
    assert_eq!(refusal(&mut view, 3, ask(90..=110, 3)), "ERR slots belong to different source nodes");
    assert_eq!(refusal(&mut view, 3, ask(0..=9, 2)), "ERR I'm not the owner of hash slot 0");
    assert_eq!(refusal(&mut view, 3, ask(500..=500, 3)), "ERR I'm not the owner of hash slot 500");
    assert_eq!(refusal(&mut view, 1, ask(0..=9, 1)), "ERR These slots cannot be moved there");
    run(&mut view, 3, ask(0..=9, 3)).expect("slots of one shard");
    let begun = &view.migrations[&id].value;
    assert_eq!((begun.source, begun.target), (shard(1), shard(3)));
}

/// A slot whose keys are still being removed is nobody's next.
#[test]
fn leftover_keys_keep_a_slot_from_being_assigned() {
    let mut view = cluster();
    let id = MigrationId::new([7; 20]);
    run(&mut view, 1, Operation::Move { id, slots: slots(0..=9), target: node(3) }).expect("its own slots");
    run(&mut view, 1, Operation::CancelMove(id)).expect("it is there");
    assert_eq!(view.shards[&shard(3)].value.leftover, slots(0..=9));
    run(&mut view, 1, Operation::DelSlots(slots(5..=5))).expect("its own slot");
    let still = "are still being removed";
    assert!(refusal(&mut view, 3, Operation::AddSlots(slots(5..=5))).contains(still));
    assert!(refusal(&mut view, 3, Operation::Importing { slot: 4, node: node(1) }).contains(still));
    assert!(refusal(&mut view, 1, Operation::Assign { slot: 4, node: node(3) }).contains(still));
    assert!(refusal(&mut view, 9, Operation::Cleared(slots(0..=9))).contains("Unknown node"));
    run(&mut view, 3, Operation::Cleared(slots(0..=9))).expect("a primary");
    assert!(view.shards[&shard(3)].value.leftover.is_empty());
    run(&mut view, 3, Operation::AddSlots(slots(5..=5))).expect("the slot is free");
}
