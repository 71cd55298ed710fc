//! Single decisions, with a store that answers at once unless a test says otherwise.

use std::collections::VecDeque;

use super::*;
use crate::map::{FailoverMode, Node};
use crate::snapshot::{Alive, LeaseId};

const TTL: u64 = 3_000;

fn node(byte: u8) -> NodeId {
    NodeId::new([byte; 20])
}

fn shard_id() -> ShardId {
    ShardId::new([9; 20])
}

/// Nodes and their store.
struct Rig {
    now: u64,
    view: Snapshot,
    nodes: BTreeMap<u8, Decider>,
    /// The actions of the last step of each node.
    last: BTreeMap<u8, Vec<Action>>,
    leases: u64,
    /// The next transactions get no answer, and are kept.
    loses_answers: bool,
    kept: Vec<Transaction>,
    queue: VecDeque<(u8, Event)>,
    is_busy: bool,
    /// The offsets of nodes; 10 for the rest.
    offsets: BTreeMap<u8, u64>,
}

impl Rig {
    /// A shard whose members are in sync with data of number 0; the first is the primary in epoch 1.
    fn new(members: &[u8]) -> Rig {
        let mut view = Snapshot::default();
        let mut shard = Shard { epoch: 1, primary: Some(node(members[0])), ..Shard::default() };
        shard.slots = (0..=99).collect();
        shard.set_members(&members.iter().map(|byte| (node(*byte), 0)).collect());
        view.apply(1, Change::Shard(shard_id(), shard));
        let mut rig = Rig {
            now: 100_000,
            view,
            nodes: BTreeMap::new(),
            last: BTreeMap::new(),
            leases: 0,
            loses_answers: false,
            kept: Vec::new(),
            queue: VecDeque::new(),
            is_busy: false,
            offsets: BTreeMap::new(),
        };
        members.iter().for_each(|byte| rig.enter(*byte));
        rig
    }

    fn enter(&mut self, byte: u8) {
        let entry = Node { address: Default::default(), shard: shard_id(), is_alive: false };
        self.view.apply(self.view.revision + 1, Change::Node(node(byte), entry));
    }

    fn start(&mut self, byte: u8, incarnation: u64) {
        let setup = Setup {
            me: node(byte),
            process: self.now + u64::from(byte),
            incarnation,
            offset: self.offsets.get(&byte).copied().unwrap_or(10),
            address: Default::default(),
            version: String::new(),
            timing: Timing::of_lease(TTL),
        };
        self.nodes.insert(byte, Decider::new(setup));
        self.publish();
        self.settle();
    }

    /// The process ends, and its lease too.
    fn end(&mut self, byte: u8) {
        self.nodes.remove(&byte);
        let revision = self.view.revision + 1;
        self.view.apply(revision, Change::Delete(Key::Alive(node(byte))));
        self.publish();
    }

    fn publish(&mut self) {
        let view = Arc::new(self.view.clone());
        let all: Vec<u8> = self.nodes.keys().copied().collect();
        all.into_iter().for_each(|byte| self.give(byte, Event::View(Arc::clone(&view))));
    }

    /// Handles an event, and what follows from it.
    fn give(&mut self, byte: u8, event: Event) {
        self.queue.push_back((byte, event));
        if std::mem::replace(&mut self.is_busy, true) {
            return;
        }
        let mut steps = 0;
        while let Some((byte, event)) = self.queue.pop_front() {
            steps += 1;
            assert!(steps < 10_000, "events without end: {event:?}");
            let Some(decider) = self.nodes.get_mut(&byte) else { continue };
            let actions = decider.handle(event, self.now);
            if !actions.is_empty() || steps == 1 {
                self.last.insert(byte, actions.clone());
            }
            actions.into_iter().for_each(|action| self.act(byte, action));
        }
        self.is_busy = false;
    }

    fn act(&mut self, byte: u8, action: Action) {
        let sent = self.now;
        match action {
            Action::Grant => {
                self.leases += 1;
                self.give(byte, Event::Granted { lease: self.leases, sent });
            }
            Action::Renew { lease } => self.give(byte, Event::Renewed { lease, sent }),
            Action::Submit { transaction, .. } if self.loses_answers => self.kept.push(transaction),
            Action::Submit { number, transaction } => {
                let outcome = self.commit(&transaction);
                self.give(byte, Event::Answered { number, outcome });
            }
            Action::CountAcks { number, .. } => self.give(byte, Event::Counting { number, offset: 10 }),
            _ => {}
        }
    }

    fn commit(&mut self, transaction: &Transaction) -> Outcome {
        let revision = self.view.revision + 1;
        if !self.view.commit(revision, transaction) {
            return Outcome::Refused;
        }
        self.publish();
        Outcome::Committed(revision)
    }

    /// Lets time pass, in small steps.
    fn pass(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + 10).min(end);
            let all: Vec<u8> = self.nodes.keys().copied().collect();
            for byte in all {
                let offset = self.offsets.get(&byte).copied().unwrap_or(10);
                self.give(byte, Event::Tick { offset });
            }
        }
    }

    fn settle(&mut self) {
        self.pass(300);
    }

    fn shard(&self) -> Shard {
        Shard::clone(&self.view.shards[&shard_id()].value)
    }

    fn serves(&self, byte: u8) -> bool {
        self.nodes.get(&byte).is_some_and(|decider| self.now < decider.fence)
    }

    fn acknowledge(&mut self, primary: u8, replica: u8, incarnation: u64, offset: u64) {
        let epoch = self.nodes[&primary].leads().expect("it leads");
        self.give(primary, Event::Ack(Ack { node: node(replica), incarnation, epoch, offset }));
    }
}

/// A primary and a replica in sync.
fn pair() -> Rig {
    let mut rig = Rig::new(&[1, 2]);
    rig.start(1, 0);
    rig.start(2, 0);
    rig.acknowledge(1, 2, 0, 10);
    rig.pass(50);
    assert_eq!(rig.shard().in_sync.len(), 2);
    rig
}

#[test]
fn a_primary_serves_until_its_lease_may_end_less_a_margin() {
    let mut rig = Rig::new(&[1]);
    rig.start(1, 0);
    assert!(rig.serves(1));
    let lease = rig.nodes[&1].lease.id().expect("a lease");
    rig.now += 1_000;
    let sent = rig.now;
    rig.now += 100;
    let decider = rig.nodes.get_mut(&1).expect("it runs");
    decider.handle(Event::Renewed { lease, sent }, sent + 100);
    assert_eq!(rig.nodes[&1].fence, sent + TTL - TTL / 10 - TTL / 500, "counted from when it was asked");
    rig.give(1, Event::LeaseLost { lease });
    assert!(!rig.serves(1));
}

#[test]
fn a_new_lease_does_not_help_without_a_view_of_its_entry() {
    let mut rig = Rig::new(&[1, 2]);
    rig.start(1, 0);
    assert!(rig.serves(1));
    let lease = rig.nodes[&1].lease.id().expect("a lease");
    // The lease ends, and the process gets another, but no news of the store.
    rig.give(1, Event::LeaseLost { lease });
    rig.loses_answers = true;
    rig.pass(1_000);
    assert!(rig.nodes[&1].lease.id().is_some_and(|new| new != lease) && !rig.serves(1));
}

#[test]
fn a_second_process_with_the_same_identity_waits() {
    let mut rig = Rig::new(&[1]);
    rig.start(1, 0);
    let mut first = rig.nodes.remove(&1).expect("it runs");
    rig.now += 100;
    rig.start(1, 0);
    rig.pass(5_000);
    assert!(!rig.serves(1), "the entry of the first process is there");
    assert!(first.handle(Event::Tick { offset: 0 }, rig.now).len() < 9);
    rig.view.apply(rig.view.revision + 1, Change::Delete(Key::Alive(node(1))));
    rig.publish();
    rig.settle();
    assert!(rig.serves(1));
}

#[test]
fn the_most_advanced_member_is_promoted_when_the_entry_of_the_primary_is_gone() {
    let mut rig = Rig::new(&[1, 2, 3]);
    [1, 2, 3].iter().for_each(|byte| rig.start(*byte, 0));
    [2, 3].iter().for_each(|byte| rig.acknowledge(1, *byte, 0, 10));
    rig.pass(50);
    (rig.offsets, rig.now) = ([(2, 5), (3, 8)].into(), rig.now + 10);
    let entry = |view: &Snapshot, byte, offset| {
        let known = Alive::clone(&view.alive[&node(byte)].value);
        Change::Alive(node(byte), Alive { offset, ..known })
    };
    let (behind, ahead) = (entry(&rig.view, 2, 5), entry(&rig.view, 3, 8));
    rig.view.apply(rig.view.revision + 1, behind);
    rig.view.apply(rig.view.revision + 1, ahead);
    rig.publish();
    let epoch = rig.shard().epoch;
    rig.end(1);
    rig.settle();
    assert_eq!((rig.shard().primary, rig.shard().epoch), (Some(node(3)), epoch + 1));
    assert_eq!(rig.shard().members(), [(node(2), 0), (node(3), 0)].into(), "without the old primary");
    assert!(rig.serves(3) && !rig.serves(2));
}

#[test]
fn members_without_their_data_are_not_promoted() {
    let mut rig = Rig::new(&[1, 2]);
    rig.start(1, 0);
    rig.start(2, 7);
    rig.end(1);
    rig.pass(10_000);
    assert_eq!(rig.shard().primary, Some(node(1)));
    rig.start(1, 0);
    assert!(rig.serves(1), "the node with the data comes back");
}

#[test]
fn a_primary_that_lost_its_data_leaves_the_shard_to_a_replica() {
    let mut rig = Rig::new(&[1, 2]);
    rig.start(1, 8);
    assert_eq!(rig.shard().primary, None);
    rig.pass(10_000);
    assert!(!rig.serves(1));
    rig.start(2, 0);
    assert!(rig.serves(2) && !rig.serves(1));
    assert_eq!(rig.nodes[&1].follows(), Some((node(2), 2)));
}

#[test]
fn a_lonely_primary_that_lost_its_data_serves_without_them() {
    let mut rig = Rig::new(&[1]);
    rig.start(1, 8);
    assert!(rig.serves(1));
    assert_eq!(rig.shard().members(), [(node(1), 8)].into());
}

#[test]
fn an_empty_primary_waits_for_the_operator_if_a_replica_has_older_data() {
    let mut rig = Rig::new(&[1]);
    rig.enter(2);
    rig.offsets = [(2, 20)].into();
    rig.start(1, 8);
    assert!(!rig.serves(1), "the replica may have more");
    rig.start(2, 3);
    rig.pass(5_000);
    assert!(!rig.serves(1) && !rig.serves(2));
    rig.give(2, Event::Failover(FailoverMode::Takeover));
    rig.pass(1_000);
    assert!(rig.serves(2) && !rig.serves(1));
}

#[test]
fn an_operator_makes_a_replica_the_primary_that_is_not_in_sync() {
    for mode in [FailoverMode::Takeover, FailoverMode::Force] {
        let mut rig = Rig::new(&[1]);
        rig.enter(2);
        rig.start(1, 0);
        rig.start(2, 3);
        rig.end(1);
        rig.pass(5_000);
        assert!(!rig.serves(2), "it lacks writes");
        rig.give(2, Event::Failover(mode));
        rig.pass(1_000);
        assert_eq!(rig.serves(2), mode == FailoverMode::Takeover);
    }
}

#[test]
fn when_all_have_lost_writes_the_most_advanced_leads() {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.offsets = [(2, 20)].into();
    rig.start(1, 5);
    rig.start(2, 6);
    rig.pass(5_000);
    assert_eq!(
        rig.nodes.values().filter(|decider| decider.is_leading()).count(),
        0,
        "the third may have all"
    );
    rig.start(3, 7);
    rig.pass(1_000);
    assert!(rig.serves(2));
}

#[test]
fn a_transaction_without_an_answer_is_settled_before_its_set_is_dropped() {
    let mut rig = Rig::new(&[1]);
    rig.enter(2);
    rig.start(1, 0);
    rig.start(2, 3);
    rig.loses_answers = true;
    rig.acknowledge(1, 2, 3, 10);
    rig.pass(20);
    let added =
        |change: &&Change| matches!(change, Change::Shard(_, shard) if shard.in_sync.contains(&node(2)));
    let is_join = |kept: &&Transaction| kept.changes.iter().any(|change| added(&change));
    let late = rig.kept.iter().find(is_join).expect("it asks to add the replica").clone();
    let number = rig.nodes[&1].next_number;
    rig.give(1, Event::Answered { number, outcome: Outcome::Unknown });
    rig.give(1, Event::Disconnected(node(2)));
    // Without protection, the primary would now go on alone.
    rig.pass(2_000);
    assert!(rig.nodes[&1].sync.requires(node(2)), "the transaction may yet be made");
    assert!(rig.kept.len() > 1, "the primary tries to settle it");
    rig.loses_answers = false;
    assert!(matches!(rig.commit(&late), Outcome::Committed(_)), "and it is");
    assert!(rig.nodes[&1].sync.requires(node(2)));
    rig.pass(2_000);
    assert!(!rig.nodes[&1].sync.requires(node(2)), "the replica left by a transaction");
    assert_eq!(rig.shard().members(), [(node(1), 0)].into());
}

#[test]
fn a_planned_change_stops_writes_first_and_serving_before_its_transaction() {
    let mut rig = pair();
    rig.give(2, Event::Failover(FailoverMode::Planned));
    rig.pass(10);
    assert!(rig.last[&1].is_empty() || rig.nodes[&1].handover.is_active());
    rig.give(1, Event::Stopped { offset: 50 });
    assert_eq!(rig.shard().primary, Some(node(1)), "the target does not have everything");
    rig.loses_answers = true;
    rig.acknowledge(1, 2, 0, 50);
    let actions = &rig.last[&1];
    let stops = actions.iter().position(|action| *action == Action::ServeUntil(0)).expect("it stops serving");
    let submits = actions.iter().position(|action| matches!(action, Action::Submit { .. })).expect("it asks");
    assert!(stops < submits);
    rig.loses_answers = false;
    let handover = rig.kept.last().expect("it was sent").clone();
    rig.commit(&handover);
    rig.settle();
    assert!(rig.serves(2) && !rig.serves(1));
}

#[test]
fn a_change_that_takes_too_long_is_given_up() {
    let mut rig = pair();
    rig.give(2, Event::Failover(FailoverMode::Planned));
    rig.pass(10);
    rig.give(1, Event::Stopped { offset: 50 });
    rig.pass(TTL / 3 + 100);
    assert!(!rig.nodes[&1].handover.is_active() && rig.serves(1));
}

#[test]
fn an_heir_that_is_about_to_join_the_in_sync_set_is_waited_for() {
    let mut rig = Rig::new(&[1]);
    rig.enter(2);
    rig.start(1, 0);
    rig.start(2, 3);
    rig.give(2, Event::Failover(FailoverMode::Planned));
    rig.pass(100);
    assert!(rig.shard().heir.is_some() && !rig.nodes[&1].handover.is_active());
    rig.acknowledge(1, 2, 3, 10);
    rig.pass(20);
    assert!(rig.nodes[&1].handover.is_active(), "the replica is in sync");
}

#[test]
fn an_heir_that_does_not_join_the_in_sync_set_is_dropped() {
    let mut rig = Rig::new(&[1]);
    rig.enter(2);
    rig.start(1, 0);
    rig.start(2, 3);
    rig.give(2, Event::Failover(FailoverMode::Planned));
    rig.pass(5 * TTL / 3 + 100);
    assert!(rig.shard().heir.is_none() && rig.serves(1) && !rig.nodes[&1].handover.is_active());
    rig.acknowledge(1, 2, 3, 10);
    rig.pass(20);
    assert!(!rig.nodes[&1].handover.is_active(), "the request was given up");
}

#[test]
fn a_forced_change_does_not_wait_for_commands_that_run_for_long() {
    let mut rig = pair();
    rig.give(2, Event::Failover(FailoverMode::Force));
    rig.pass(10);
    assert!(rig.nodes[&1].handover.is_active() && rig.shard().primary == Some(node(1)));
    rig.pass(TTL / 12 + 20); // Event::Stopped does not come
    assert!(rig.serves(2) && !rig.serves(1));
}

#[test]
fn a_replica_without_fail_over_waits_for_an_operator() {
    let mut rig = pair();
    let address = crate::map::Address { no_failover: true, ..Default::default() };
    let entry = Node { address, shard: shard_id(), is_alive: false };
    rig.view.apply(rig.view.revision + 1, Change::Node(node(2), entry));
    rig.end(1);
    rig.pass(3 * TTL);
    assert!(!rig.serves(2) && rig.shard().primary == Some(node(1)));
    rig.give(2, Event::Failover(FailoverMode::Force));
    rig.settle();
    assert!(rig.serves(2));
}

#[test]
fn a_process_that_ends_stops_serving_before_it_gives_the_lease_back() {
    let mut rig = Rig::new(&[1]);
    rig.start(1, 0);
    rig.give(1, Event::Shutdown);
    let lease: LeaseId = 1;
    assert_eq!(rig.last[&1], [Action::ServeUntil(0), Action::Revoke { lease }, Action::Exit]);
    rig.pass(5_000);
    assert!(rig.last[&1].is_empty(), "nothing after the end");
}

#[test]
fn a_store_that_is_away_is_asked_from_time_to_time() {
    let mut decider = Decider::new(Setup {
        me: node(1),
        process: 1,
        incarnation: 0,
        offset: 0,
        address: Default::default(),
        version: String::new(),
        timing: Timing::of_lease(TTL),
    });
    let mut asked = 0;
    for now in 0..1_000 {
        let mut actions = decider.handle(Event::Tick { offset: 0 }, now);
        while actions.contains(&Action::Grant) {
            asked += 1;
            actions = decider.handle(Event::LeaseUnanswered, now);
        }
    }
    assert!((2..=10).contains(&asked), "asked {asked} times in a second");
}

#[test]
fn records_of_a_move_that_the_view_does_not_have_are_refused() {
    let mut rig = Rig::new(&[1]);
    rig.start(1, 0);
    let id = MigrationId::new([3; 20]);
    let epoch = rig.nodes[&1].leads().expect("it leads");
    assert!(!rig.nodes[&1].accepts_copy(id, 1, epoch));
    let source = ShardId::new([8; 20]);
    let slots = (200..=200).collect();
    let migration = crate::snapshot::Migration {
        slots,
        source,
        target: shard_id(),
        source_epoch: 1,
        target_epoch: epoch,
        restarts: 0,
    };
    rig.view.apply(rig.view.revision + 1, Change::Migration(id, migration));
    rig.publish();
    assert!(!rig.nodes[&1].accepts_copy(id, 2, epoch), "another source");
    assert!(rig.nodes[&1].accepts_copy(id, 1, epoch) && !rig.nodes[&1].accepts_copy(id, 1, epoch + 1));
    rig.view.apply(rig.view.revision + 1, Change::Delete(Key::Migration(id)));
    rig.publish();
    assert!(!rig.nodes[&1].accepts_copy(id, 1, epoch));
}
