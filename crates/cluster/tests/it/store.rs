//! Transactions, leases, watches, and values that were edited by hand.

use evenkeel_cluster::store::{Request, Store, StoreError, StoreEvent};
use evenkeel_cluster::{Alive, Change, Guard, Key, Node, Outcome, Shard, ShardId, Transaction};

use super::etcd::{Connects, Members, is_missing, node_id};

fn alive(lease: u64) -> Change {
    Change::Alive(node_id(1), Alive { process: 7, lease, ..Alive::default() })
}

fn has_entry(view: &evenkeel_cluster::Snapshot) -> bool {
    view.alive.contains_key(&node_id(1))
}

#[test]
fn transactions_have_guards_and_reach_the_watches() {
    if is_missing() {
        return;
    }
    let members = Members::start(1);
    let (mut one, two) = (members.connect(), members.connect());
    let id = ShardId::new([5; 20]);
    let put = |epoch| Change::Shard(id, Shard { epoch, slots: (0..=9).collect(), ..Shard::default() });
    let absent = Guard::Unchanged(Key::Shard(id), 0);
    let create = Transaction { guards: vec![absent], changes: vec![put(1)] };
    let Outcome::Committed(revision) = one.submit(create.clone()) else { panic!("the key is new") };
    assert_eq!(one.submit(create), Outcome::Refused);
    let view = two.view("shard", |view| view.shards.contains_key(&id));
    assert_eq!((view.revision_of(Key::Shard(id)), view.map().assigned()), (revision, 10));
    let change = |guards| Transaction { guards, changes: vec![put(2)] };
    assert_eq!(one.submit(change(vec![Guard::Present(Key::Alive(node_id(1)))])), Outcome::Refused);
    let guards = vec![view.unchanged(Key::Shard(id)), Guard::Present(Key::Shard(id))];
    assert!(matches!(one.submit(change(guards)), Outcome::Committed(_)));
    two.view("second epoch", |view| view.shards[&id].value.epoch == 2);
    assert!(matches!(one.put(Change::Delete(Key::Shard(id))), Outcome::Committed(_)));
    two.view("deletion", |view| view.shards.is_empty());
}

#[test]
fn entries_end_with_their_lease() {
    if is_missing() {
        return;
    }
    let members = Members::start(1);
    let (mut one, two) = (members.connect(), members.connect());
    let lease = one.grant();
    assert!(matches!(one.put(alive(lease)), Outcome::Committed(_)));
    two.view("entry", has_entry);
    one.store.send(Request::Renew(lease));
    one.wait("renewal", |event| matches!(event, StoreEvent::Renewed { .. }).then_some(()));
    one.store.send(Request::Revoke(lease));
    two.view("end of the lease that was given back", |view| !has_entry(view));
    one.store.send(Request::Renew(lease));
    one.wait("loss", |event| matches!(event, StoreEvent::LeaseLost { .. }).then_some(()));
    assert_eq!(one.put(alive(lease)), Outcome::Refused);
    let lease = one.grant();
    assert!(matches!(one.put(alive(lease)), Outcome::Committed(_)));
    two.view("second entry", has_entry);
    let view = two.view("end of the lease that nobody renews", |view| !has_entry(view));
    assert_eq!(view.revision_of(Key::Alive(node_id(1))), 0);
}

#[test]
fn values_that_somebody_edited_are_named_and_refused() {
    if is_missing() {
        return;
    }
    let members = Members::start(1);
    let mut one = members.connect();
    let (low, high) = (ShardId::new([1; 20]), ShardId::new([2; 20]));
    let shard = |slots: std::ops::RangeInclusive<u16>| Shard { slots: slots.collect(), ..Shard::default() };
    one.put(Change::Shard(low, shard(0..=9)));
    one.view("shard", |view| view.shards.contains_key(&low));
    let key = format!("/evenkeel/test/shards/{low}");
    let good = members.control(&["get", "--print-value-only", &key]);
    for bad in [
        "",
        "{",
        "[]",
        r#"{"epoch":-1,"primary":null,"slots":[]}"#,
        r#"{"epoch":1,"primary":null,"slots":[[9,1]]}"#,
    ] {
        members.control(&["put", &key, "--", bad]);
        let is_named =
            |error: &StoreError| matches!(error, StoreError::Document { key: found, .. } if *found == key);
        one.failure("complaint about a value", is_named);
        members.control(&["put", &key, "--", good.trim()]);
        one.wait("recovery", |event| matches!(event, StoreEvent::Recovered).then_some(()));
    }
    one.send(Change::Shard(high, shard(9..=10)));
    let error =
        one.failure("complaint about two owners", |error| matches!(error, StoreError::Document { .. }));
    assert!(error.to_string().contains(&high.to_string()) && error.to_string().contains("slot 9"), "{error}");
    one.send(Change::Delete(Key::Shard(high)));
    one.wait("recovery", |event| matches!(event, StoreEvent::Recovered).then_some(()));
    members.control(&["put", "/evenkeel/test/strange", "x"]);
    let error = one.failure("complaint about a key", |error| matches!(error, StoreError::Document { .. }));
    assert!(error.to_string().contains("/evenkeel/test/strange"), "{error}");
}

#[test]
fn other_formats_and_clusters_are_refused() {
    if is_missing() {
        return;
    }
    let members = Members::start(1);
    let first = super::etcd::Connection::new(members.config());
    let identity = first.wait("identity", |event| match event {
        StoreEvent::Identified { cluster } => Some(cluster),
        _ => None,
    });
    assert_eq!(identity, "first");
    let config =
        evenkeel_cluster::store::etcd::Config { expected: Some("second".into()), ..members.config() };
    let second = super::etcd::Connection::new(config.clone());
    second.failure("refusal of another cluster", |error| matches!(error, StoreError::OtherCluster { .. }));
    members.control(&["put", "/evenkeel/test/meta", r#"{"format":2,"cluster":"first"}"#]);
    let third = super::etcd::Connection::new(members.config());
    third.failure("refusal of a format", |error| matches!(error, StoreError::Format { found: 2, .. }));
    members.control(&["del", "/evenkeel/test/meta"]);
    let fourth = super::etcd::Connection::new(config);
    fourth.failure("refusal of an empty store", |error| matches!(error, StoreError::WentBack { .. }));
}

#[test]
fn a_cluster_sees_only_the_keys_below_its_name() {
    if is_missing() {
        return;
    }
    let members = Members::start(1);
    let mut one = members.connect();
    let config = evenkeel_cluster::store::etcd::Config { cluster: "test2".into(), ..members.config() };
    let mut two = super::etcd::Connection::new(config);
    let node = |byte| {
        let shard = ShardId::new([byte; 20]);
        Change::Node(node_id(byte), Node { address: Default::default(), shard, is_alive: false })
    };
    one.put(node(1));
    two.put(node(2));
    let view = one.view("node of the first", |view| !view.nodes.is_empty());
    assert_eq!(view.nodes.keys().copied().collect::<Vec<_>>(), [node_id(1)]);
    let view = two.view("node of the second", |view| !view.nodes.is_empty());
    assert_eq!(view.nodes.keys().copied().collect::<Vec<_>>(), [node_id(2)]);
}
