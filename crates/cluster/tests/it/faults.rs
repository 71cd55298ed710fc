//! Members of etcd that end, an etcd that is full, and an etcd that was restored from a backup.

use evenkeel_cluster::store::{Request, Store, StoreError, StoreEvent};
use evenkeel_cluster::{Change, Outcome, Shard, ShardId};

use super::etcd::{Connection, Connects, Members, is_missing};

fn put(epoch: u64) -> Change {
    Change::Shard(ShardId::new([5; 20]), Shard { epoch, ..Shard::default() })
}

fn epoch_of(view: &evenkeel_cluster::Snapshot) -> u64 {
    view.shards.values().map(|entry| entry.value.epoch).max().unwrap_or(0)
}

/// The place of the member that leads.
fn leader(members: &Members) -> usize {
    let status = members.control(&["endpoint", "status", "--write-out", "simple"]);
    let leads = |line: &str| line.split(", ").nth(4) == Some("true");
    let line = status.lines().find(|line| leads(line)).expect("a member leads");
    let endpoint = line.split(", ").next().expect("the first column");
    members.endpoints().iter().position(|one| one == endpoint).expect("a member")
}

#[test]
fn the_client_goes_on_without_the_leader() {
    if is_missing() {
        return;
    }
    let mut members = Members::start(3);
    let (mut one, two) = (members.connect(), members.connect());
    let lease = one.grant();
    assert!(matches!(one.put(put(1)), Outcome::Committed(_)));
    two.view("first epoch", |view| epoch_of(view) == 1);
    let lost = leader(&members);
    members.kill(lost);
    one.store.send(Request::Renew(lease));
    let mut epoch = 2;
    // An attempt may fail, or have an unknown outcome, while the members elect.
    while !matches!(one.put(put(epoch)), Outcome::Committed(_)) {
        epoch += 1;
        assert!(epoch < 100, "no transaction without the leader");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    two.view("later epoch", |view| epoch_of(view) >= epoch);
    one.store.send(Request::Renew(lease));
    one.wait("renewal", |event| matches!(event, StoreEvent::Renewed { .. }).then_some(()));
    members.run(lost);
    assert!(matches!(one.put(put(200)), Outcome::Committed(_)));
    two.view("last epoch", |view| epoch_of(view) == 200);
}

/// A store of one member with a first epoch, and a client that has seen it.
fn with_first_epoch() -> (Members, Connection) {
    let members = Members::start(1);
    let mut one = members.connect();
    one.put(put(1));
    one.view("first epoch", |view| epoch_of(view) == 1);
    (members, one)
}

#[test]
fn a_store_that_was_away_is_found_again() {
    if is_missing() {
        return;
    }
    let (mut members, mut one) = with_first_epoch();
    members.kill(0);
    assert_eq!(one.put(put(2)), Outcome::Refused, "the request never left");
    one.store.send(Request::Grant);
    one.wait("no lease", |event| matches!(event, StoreEvent::LeaseUnanswered).then_some(()));
    members.run(0);
    one.wait("recovery", |event| matches!(event, StoreEvent::Recovered).then_some(()));
    one.put(put(3));
    one.view("third epoch", |view| epoch_of(view) == 3);
    // What the watch would need is gone.
    members.kill(0);
    members.run(0);
    members.control(&["put", "/elsewhere", "x"]);
    members.control(&["compaction", "--physical", "4"]);
    one.put(put(4));
    one.view("fourth epoch", |view| epoch_of(view) == 4);
}

#[test]
fn a_store_from_a_backup_is_refused() {
    if is_missing() {
        return;
    }
    let (mut members, mut one) = with_first_epoch();
    let backup = members.scratch.path.join("backup");
    let backup = backup.to_str().expect("a path in UTF-8").to_owned();
    members.control(&["snapshot", "save", &backup]);
    one.put(put(2));
    one.view("second epoch", |view| epoch_of(view) == 2);
    let lease = one.grant();
    members.kill(0);
    let data = members.data(0);
    std::fs::remove_dir_all(&data).expect("etcd had data");
    let folder = data.to_str().expect("a path in UTF-8");
    members.control(&[
        "snapshot",
        "restore",
        &backup,
        "--name",
        "m0",
        "--data-dir",
        folder,
        "--initial-cluster",
        "m0=http://127.0.0.1:1",
        "--initial-advertise-peer-urls",
        "http://127.0.0.1:1",
    ]);
    members.run(0);
    one.failure("refusal", |error| matches!(error, StoreError::WentBack { .. }));
    one.store.send(Request::Renew(lease));
    one.wait("loss", |event| matches!(event, StoreEvent::LeaseLost { .. }).then_some(()));
}

#[test]
fn a_full_store_says_so() {
    if is_missing() {
        return;
    }
    let members = Members::with(1, "http", |_| vec!["--quota-backend-bytes=65536".into()]);
    let mut one = members.connect();
    one.put(put(1));
    let value = "x".repeat(100_000);
    for at in 0..20 {
        members.try_control(&["put", &format!("/filler/{at}"), &value]);
    }
    one.store.send(Request::Submit(
        1_000,
        evenkeel_cluster::Transaction { guards: Vec::new(), changes: vec![put(2)] },
    ));
    one.failure("alarm", |error| *error == StoreError::NoSpace);
}
