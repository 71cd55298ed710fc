//! Shards with replicas, and changes of their primary.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenkeel_testkit::Client;
use evenkeel_testkit::etcd::is_missing;

use super::store::{Shared, arguments, field, wait};
use super::{SLOTS, text};
use crate::replication::{freeze, thaw};
use crate::start;

/// Starts a shard with all slots: the first node is the primary, the others are its replicas, in sync.
#[track_caller]
fn shard(count: usize, args: &[&str]) -> Shared {
    let cluster = Shared::start(count, &[&["--repl-diskless-sync-delay", "0"], args].concat());
    assert_eq!(text(&mut cluster.connect(0), "CLUSTER ADDSLOTSRANGE 0 16383"), "OK");
    let replicate = format!("CLUSTER REPLICATE {}", cluster.id(0));
    for node in 1..count {
        wait("shard", || text(&mut cluster.connect(node), &replicate) == "OK");
    }
    for node in 1..count {
        wait_until_in_sync(&cluster, node);
    }
    cluster.wait_until_served(0..count);
    cluster
}

/// Whether the map has a node in the in-sync set of its shard, with its present data.
fn is_in_sync(cluster: &Shared, node: usize) -> bool {
    let id = cluster.id(node);
    let shards =
        cluster.etcd.control(&["get", "--prefix", "--print-value-only", "/evenkeel/evenkeel/shards/"]);
    let alive =
        cluster.etcd.control(&["get", "--print-value-only", &format!("/evenkeel/evenkeel/alive/{id}")]);
    let number = alive.split("\"incarnation\":").nth(1).and_then(|rest| rest.split(',').next());
    number.is_some_and(|number| shards.contains(&format!("\"{id}\":{number}")))
}

#[track_caller]
fn wait_until_in_sync(cluster: &Shared, node: usize) {
    wait("synchronization", || is_in_sync(cluster, node));
}

fn role(client: &mut Client) -> String {
    let role = text(client, "ROLE");
    role.split('"').nth(1).unwrap_or_default().to_owned()
}

/// The keys of a slot are removed in all databases and at the replica; other keys stay.
#[test]
fn a_slot_is_flushed() {
    if is_missing() {
        return;
    }
    let cluster = shard(2, &["--cluster-databases", "2", "--databases", "2"]);
    let (mut primary, mut replica) = (cluster.connect(0), cluster.connect(1));
    for db in 0..2 {
        primary.run(&format!("SELECT {db}"));
        (0..3_000).for_each(|number| _ = primary.run(&format!("SET {{tag}}:{number} v")));
        primary.run("SET stays v");
    }
    let slot = text(&mut primary, "CLUSTER KEYSLOT {tag}").trim_start_matches(':').to_owned();
    let flush = format!("CLUSTER FLUSHSLOT {slot}");
    primary.run("MULTI");
    primary.run(&flush);
    assert!(text(&mut primary, "EXEC").contains("ERR"), "it cannot be part of a transaction");
    assert_eq!(text(&mut primary, &format!("CLUSTER COUNTKEYSINSLOT {slot}")), ":3000");
    assert!(text(&mut replica, &flush).starts_with("-READONLY"));
    assert_eq!(text(&mut primary, &flush), "OK");
    for db in 0..2 {
        primary.run(&format!("SELECT {db}"));
        assert_eq!(text(&mut primary, &format!("CLUSTER COUNTKEYSINSLOT {slot}")), ":0");
        assert_eq!(text(&mut primary, "GET stays"), "\"v\"");
        replica.run(&format!("SELECT {db}"));
        wait("the replica's removal", || text(&mut replica, "DBSIZE") == ":1");
    }
}

/// A replica that leaves its shard keeps none of the keys, and slots can be added to it. Then no replica
/// could take over the slots of either node, so both refuse SHUTDOWN SAFE.
#[test]
fn a_replica_becomes_an_empty_primary() {
    if is_missing() {
        return;
    }
    let cluster = shard(2, &[]);
    let (mut primary, mut replica) = (cluster.connect(0), cluster.connect(1));
    (0..5_000).for_each(|number| _ = primary.run(&format!("SET key:{number} v")));
    assert_eq!(text(&mut primary, "WAIT 1 5000"), ":1");
    assert_eq!(text(&mut replica, "CLUSTER REPLICATE NO ONE"), "OK");
    assert_eq!(role(&mut replica), "master");
    assert_eq!(text(&mut replica, "DBSIZE"), ":0");
    assert_eq!(text(&mut replica, "CLUSTER REPLICATE NO ONE"), "OK");
    assert_ne!(text(&mut replica, "CLUSTER MYSHARDID"), text(&mut primary, "CLUSTER MYSHARDID"));
    assert_eq!(text(&mut primary, "CLUSTER DELSLOTS 12182"), "OK");
    wait("a new owner", || text(&mut replica, "CLUSTER ADDSLOTS 12182") == "OK");
    wait("service", || text(&mut replica, "SET foo v") == "OK");
    assert_eq!(text(&mut primary, "DBSIZE"), ":5000");
    let refusal = "-ERR Errors trying to SHUTDOWN. Check logs.";
    for client in [&mut primary, &mut replica] {
        assert_eq!(text(client, "SHUTDOWN NOSAVE SAFE"), refusal);
    }
}

/// With a replica that could take the slots over, the node ends.
#[test]
fn a_safe_shutdown_hands_the_shard_over() {
    if is_missing() {
        return;
    }
    let cluster = shard(2, &[]);
    cluster.connect(0).send(&["SHUTDOWN", "NOSAVE", "SAFE"]).expect("connected");
    wait("the end", || cluster.nodes[0].try_connect().is_err());
    wait("service", || text(&mut cluster.connect(1), "SET k v") == "OK");
}

/// What a client saw that wrote one value after another, from `1` on, and followed the redirections.
#[derive(Default)]
struct Written {
    /// The last value with an OK.
    last: u64,
    /// The longest time without an OK.
    gap: Duration,
    /// Number of errors by their first word; `closed`: no reply.
    errors: BTreeMap<String, u64>,
}

/// Writes until `stops`, beginning at a node.
fn write(cluster: &Shared, key: &str, node: usize, stops: &AtomicBool) -> Written {
    let (mut written, mut node, mut next) = (Written::default(), node, 0);
    let (mut client, mut last) = (None, Instant::now());
    while !stops.load(Relaxed) {
        next += 1;
        if client.is_none() {
            client = cluster.nodes[node].try_connect().ok();
        }
        let reply = client.as_mut().map(|client| client.try_call(&["SET", key, &next.to_string()]));
        let (word, port) = match reply {
            Some(Ok(reply)) => {
                let reply = reply.to_string();
                let port = reply.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
                (reply.split(' ').next().unwrap_or_default().trim_start_matches('-').to_owned(), port)
            }
            _ => ("closed".to_owned(), None),
        };
        if word == "OK" {
            written.gap = written.gap.max(last.elapsed());
            (written.last, last) = (next, Instant::now());
            continue;
        }
        match (&word[..], port) {
            ("MOVED", Some(port)) => {
                node =
                    cluster.nodes.iter().position(|node| node.port() == port).expect("a node of the cluster");
                client = None;
            }
            ("closed", _) => {
                node = (node + 1) % cluster.nodes.len();
                client = None;
                std::thread::sleep(Duration::from_millis(5));
            }
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
        *written.errors.entry(word).or_default() += 1;
    }
    written
}

/// Calls `f` while a client writes.
fn during_writes(cluster: &Shared, key: &str, f: impl FnOnce()) -> Written {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let stops = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(cluster, key, 0, &stops));
        let stop = Stop(&stops);
        std::thread::sleep(Duration::from_millis(300));
        f();
        std::thread::sleep(Duration::from_millis(300));
        drop(stop);
        writer.join().expect("the writer does not panic")
    })
}

#[test]
fn replicas_have_the_data_and_serve_reads_on_request() {
    if is_missing() {
        return;
    }
    let cluster = shard(2, &[]);
    let (mut primary, mut replica) = (cluster.connect(0), cluster.connect(1));
    assert_eq!(text(&mut primary, "SET foo v"), "OK");
    assert_eq!(text(&mut primary, "WAIT 1 5000"), ":1");
    assert_eq!(cluster.shown(&text(&mut replica, "GET foo")), "-MOVED 12182 127.0.0.1:PORT0");
    assert_eq!(cluster.shown(&text(&mut replica, "SET foo w")), "-MOVED 12182 127.0.0.1:PORT0");
    assert_eq!(text(&mut replica, "READONLY"), "OK");
    assert_eq!(text(&mut replica, "GET foo"), "\"v\"");
    assert_eq!(cluster.shown(&text(&mut replica, "SET foo w")), "-MOVED 12182 127.0.0.1:PORT0");
    assert!(text(&mut replica, "FLUSHALL").starts_with("-READONLY "));
    assert_eq!(text(&mut replica, "REPLICAOF NO ONE"), "-ERR REPLICAOF not allowed in cluster mode.");
    let (id, primary_id) = (cluster.id(1), cluster.id(0));
    let nodes = text(&mut replica, "CLUSTER NODES");
    assert!(nodes.contains(&format!("myself,slave {primary_id} ")), "{nodes}");
    assert!(text(&mut primary, &format!("CLUSTER REPLICAS {primary_id}")).contains(&id));
    let slots = text(&mut primary, "CLUSTER SLOTS");
    assert!(slots.contains(&id) && slots.contains(&primary_id), "{slots}");
    assert_eq!(cluster.nodes[1].info("role"), "slave");
    assert_eq!(cluster.nodes[1].info("master_link_status"), "up");
    assert_eq!(cluster.nodes[0].info("connected_slaves"), "1");
    assert_eq!(field(&mut primary, "cluster_in_sync_replicas"), "1");
    assert_eq!(cluster.nodes[1].info("cluster_in_sync_replicas"), "1");
    let refused = |client: &mut Client, line: String| text(client, &line);
    assert_eq!(
        refused(&mut primary, format!("CLUSTER REPLICATE {primary_id}")),
        "-ERR Can't replicate myself"
    );
    let chained = refused(&mut primary, format!("CLUSTER REPLICATE {id}"));
    assert!(chained.contains("must be empty"), "{chained}");
    let third = start(&[&arguments(&cluster.etcd)[..], &["--repl-diskless-sync-delay", "0"]].concat());
    let mut client = third.connect();
    let replicate = |id: &str| format!("CLUSTER REPLICATE {id}");
    wait("entry", || text(&mut client, &replicate(&id)).contains("only replicate a master"));
    wait("shard", || text(&mut client, &replicate(&primary_id)) == "OK");
    wait("data", || text(&mut client, "DBSIZE") == ":1");
}

#[test]
fn a_replica_takes_the_place_of_a_killed_primary_which_comes_back_as_its_replica() {
    if is_missing() {
        return;
    }
    let mut cluster = shard(2, &["--cluster-lease", "1"]);
    let mut primary = cluster.connect(0);
    for number in 1..=100 {
        assert_eq!(text(&mut primary, &format!("SET {number} {number}")), "OK");
    }
    assert_eq!(text(&mut primary, "WAIT 1 5000"), ":1");
    let killed = Instant::now();
    cluster.nodes[0].kill();
    let mut heir = cluster.connect(1);
    wait("promotion", || text(&mut heir, "SET new v") == "OK");
    assert!(killed.elapsed() < Duration::from_secs(4), "{:?}", killed.elapsed());
    assert_eq!(text(&mut heir, "DBSIZE"), ":101");
    assert!(text(&mut heir, "CLUSTER NODES").contains("slave,fail"));
    cluster.nodes[0].start_again();
    wait_until_in_sync(&cluster, 0);
    let mut back = cluster.connect(0);
    assert_eq!((role(&mut back), text(&mut back, "DBSIZE")), ("slave".into(), ":101".into()));
    assert_eq!(cluster.shown(&text(&mut back, "GET new")).split(' ').next(), Some("-MOVED"));
    // And it can take its place again.
    cluster.nodes[1].kill();
    wait("promotion", || text(&mut back, "SET new w") == "OK");
}

/// The process starts again, without its data, before its lease has ended.
#[test]
fn a_primary_without_its_data_does_not_empty_its_replicas() {
    if is_missing() {
        return;
    }
    let mut cluster = shard(2, &[]);
    let mut primary = cluster.connect(0);
    (0..50).for_each(|number| assert_eq!(text(&mut primary, &format!("SET {number} v")), "OK"));
    assert_eq!(text(&mut primary, "WAIT 1 5000"), ":1");
    cluster.nodes[0].kill();
    cluster.nodes[0].start_again();
    let mut heir = cluster.connect(1);
    wait("promotion", || role(&mut heir) == "master");
    wait("service", || text(&mut heir, "GET 7") == "\"v\"");
    wait_until_in_sync(&cluster, 0);
    assert_eq!(text(&mut cluster.connect(0), "DBSIZE"), ":50");
}

#[test]
fn a_stopped_primary_serves_nothing_when_it_goes_on_after_its_lease() {
    if is_missing() {
        return;
    }
    let cluster = shard(2, &["--cluster-lease", "1"]);
    let mut old = cluster.connect(0);
    assert_eq!(text(&mut old, "SET foo before"), "OK");
    assert_eq!(text(&mut old, "WAIT 1 5000"), ":1");
    for _ in 0..3 {
        cluster.nodes[0].signal(libc::SIGSTOP);
        let mut heir = cluster.connect(1);
        wait("promotion", || text(&mut heir, "SET foo after") == "OK");
        // These commands wait in the socket, and are run first thing.
        old.send(&["SET", "foo", "late"]).expect("the socket takes it");
        old.send(&["GET", "foo"]).expect("the socket takes it");
        cluster.nodes[0].signal(libc::SIGCONT);
        for _ in 0..2 {
            let reply = old.read().to_string();
            assert!(reply.starts_with("-CLUSTERDOWN") || reply.starts_with("-MOVED"), "{reply}");
        }
        assert_eq!(text(&mut heir, "GET foo"), "\"after\"");
        wait_until_in_sync(&cluster, 0);
        assert_eq!(
            text(&mut cluster.connect(1), "CLUSTER FAILOVER"),
            "-ERR You should send CLUSTER FAILOVER to a replica"
        );
        assert_eq!(text(&mut old, "CLUSTER FAILOVER"), "OK");
        wait("planned change", || text(&mut old, "SET foo before") == "OK");
        wait_until_in_sync(&cluster, 1);
    }
}

#[test]
fn a_planned_change_costs_clients_a_redirection() {
    if is_missing() {
        return;
    }
    let cluster = shard(2, &[]);
    let mut blocked = cluster.connect(0);
    blocked.send(&["BLPOP", "list", "0"]).expect("the socket takes it");
    let mut waits = cluster.connect(0);
    assert_eq!(text(&mut waits, "SET waits v"), "OK");
    waits.send(&["WAIT", "5", "0"]).expect("the socket takes it");
    let written = during_writes(&cluster, "foo", || {
        assert_eq!(text(&mut cluster.connect(1), "CLUSTER FAILOVER"), "OK");
        wait("change", || role(&mut cluster.connect(1)) == "master");
    });
    assert_eq!(written.errors, [("MOVED".to_owned(), 1)].into());
    assert!(written.gap < Duration::from_secs(1), "{:?}", written.gap);
    assert_eq!(text(&mut cluster.connect(1), "GET foo"), format!("\"{}\"", written.last));
    assert!(blocked.read().to_string().starts_with("-MOVED "));
    assert!(waits.read().to_string().starts_with("-UNBLOCKED "));
    // Without a full synchronization.
    wait_until_in_sync(&cluster, 0);
    assert_eq!(
        (cluster.nodes[1].info("sync_full"), cluster.nodes[1].info("sync_partial_ok")),
        ("0".into(), "1".into())
    );
    let back = during_writes(&cluster, "foo", || {
        assert_eq!(text(&mut cluster.connect(0), "CLUSTER FAILOVER FORCE"), "OK");
        wait("change", || role(&mut cluster.connect(0)) == "master");
    });
    assert!(back.errors.keys().all(|word| word == "MOVED"), "{:?}", back.errors);
}

#[test]
fn a_primary_that_ends_hands_its_shard_over() {
    if is_missing() {
        return;
    }
    let mut cluster = shard(3, &[]);
    let pid = i32::try_from(cluster.nodes[0].pid()).expect("a process id");
    let written = during_writes(&cluster, "foo", || {
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(pid).expect("not zero"),
            rustix::process::Signal::TERM,
        )
        .expect("it runs");
        wait("change", || (1..3).any(|node| role(&mut cluster.connect(node)) == "master"));
    });
    assert!(written.errors.keys().all(|word| word == "MOVED"), "{:?}", written.errors);
    assert!(written.gap < Duration::from_secs(1), "{:?}", written.gap);
    let heir = (1..3).find(|node| role(&mut cluster.connect(*node)) == "master").expect("one is");
    assert_eq!(text(&mut cluster.connect(heir), "GET foo"), format!("\"{}\"", written.last));
    cluster.nodes[0].stop();
    cluster.nodes[0].start_again();
    wait_until_in_sync(&cluster, 0);
    assert_eq!(text(&mut cluster.connect(0), "DBSIZE"), ":1");
}

#[test]
fn a_replica_out_of_sync_is_not_promoted_unless_an_operator_wants_it() {
    if is_missing() {
        return;
    }
    let mut cluster = shard(2, &["--cluster-lease", "1"]);
    assert_eq!(text(&mut cluster.connect(0), "SET foo first"), "OK");
    assert_eq!(text(&mut cluster.connect(0), "WAIT 1 5000"), ":1");
    let id = cluster.id(1);
    cluster.nodes[1].signal(libc::SIGSTOP);
    assert_eq!(text(&mut cluster.connect(0), "SET foo second"), "OK");
    wait("smaller set", || {
        let shards =
            cluster.etcd.control(&["get", "--prefix", "--print-value-only", "/evenkeel/evenkeel/shards/"]);
        !shards.contains(&format!("\"{id}\":"))
    });
    cluster.nodes[0].kill();
    cluster.nodes[1].signal(libc::SIGCONT);
    let mut replica = cluster.connect(1);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(role(&mut replica), "slave");
    assert_eq!(field(&mut replica, "cluster_state"), "fail");
    let planned = text(&mut replica, "CLUSTER FAILOVER");
    assert!(planned.contains("please use CLUSTER FAILOVER FORCE"), "{planned}");
    assert_eq!(text(&mut replica, "CLUSTER FAILOVER TAKEOVER"), "OK");
    // It may have found the second write in its socket.
    wait("promotion", || ["\"first\"", "\"second\""].contains(&&text(&mut replica, "GET foo")[..]));
}

#[test]
fn three_shards_with_replicas_by_redis_cli() {
    if is_missing() {
        return;
    }
    let mut cluster = Shared::start(6, &["--repl-diskless-sync-delay", "0", "--cluster-lease", "1"]);
    let addresses: Vec<String> =
        cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let mut create = vec!["--cluster", "create"];
    create.extend(addresses.iter().map(String::as_str));
    create.extend(["--cluster-replicas", "1", "--cluster-yes"]);
    super::tools::must_find(&create, &["1 additional replica(s)", "[OK] All 16384 slots covered."]);
    (0..6).for_each(|node| wait_until_in_sync(&cluster, node));
    cluster.wait_until_served(0..6);
    assert!(text(&mut cluster.connect(0), "CLUSTER NODES").contains(SLOTS[0]));
    let port = addresses[5].rsplit(':').next().expect("a port").to_owned();
    for key in ["foo", "bar", "1"] {
        super::tools::must_find(&["-c", "-p", &port, "SET", key, "v"], &["OK"]);
    }
    // The other shards go on while one has no primary.
    let (stops, shared) = (AtomicBool::new(false), &cluster);
    let others = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(shared, "bar", 0, &stops));
        shared.nodes[2].signal(libc::SIGKILL);
        wait("promotion", || (3..6).any(|node| role(&mut shared.connect(node)) == "master"));
        stops.store(true, Relaxed);
        writer.join().expect("the writer does not panic")
    });
    assert!(others.errors.is_empty(), "{:?}", others.errors);
    cluster.nodes[2].kill();
    cluster.nodes[2].start_again();
    wait_until_in_sync(&cluster, 2);
    wait("agreement", || {
        text(&mut cluster.connect(0), "CLUSTER INFO").contains("cluster_slots_fail:0")
            && text(&mut cluster.connect(0), "CLUSTER NODES").matches("master").count() == 3
    });
    super::tools::must_find(&["-c", "-p", &port, "GET", "foo"], &["v"]);
}

#[test]
fn replies_wait_for_the_replicas_in_sync() {
    if is_missing() {
        return;
    }
    // The replica leaves the set after a third of the lease.
    let cluster = shard(2, &["--write-acks", "in-sync", "--cluster-lease", "9"]);
    let (mut writer, mut reader, mut other) = (cluster.connect(0), cluster.connect(0), cluster.connect(0));
    for number in 1..=200 {
        assert_eq!(
            text(&mut writer, &format!("INCR {{foo}}{}", number % 7)),
            format!(":{}", (number - 1) / 7 + 1)
        );
    }
    // The replica is stopped for less than the time after which it leaves the set.
    assert_eq!(text(&mut other, "SET elsewhere v"), "OK");
    freeze(&cluster.nodes[1]);
    writer.send(&["SET", "foo", "new"]).expect("the socket takes it");
    // Other connections go on, also with writes of their own behind them.
    assert_eq!(text(&mut other, "GET elsewhere"), "\"v\"");
    std::thread::sleep(Duration::from_millis(100));
    reader.send(&["GET", "foo"]).expect("the socket takes it");
    for client in [&mut writer, &mut reader] {
        client.set_reply_timeout(Duration::from_millis(200));
        assert!(client.try_read().is_err(), "the replica has not acknowledged the write");
        client.set_reply_timeout(Duration::from_secs(20));
    }
    thaw(&cluster.nodes[1]);
    assert_eq!((writer.read().to_string(), reader.read().to_string()), ("OK".into(), "\"new\"".into()));
    // A replica that stays away leaves the set, and then the primary goes on without it.
    freeze(&cluster.nodes[1]);
    let began = Instant::now();
    assert_eq!(text(&mut writer, "SET foo newer"), "OK");
    assert!(began.elapsed() > Duration::from_secs(2), "{:?}", began.elapsed());
    thaw(&cluster.nodes[1]);
    wait_until_in_sync(&cluster, 1);
    assert_eq!(text(&mut writer, "SET foo newest"), "OK");
}

#[test]
fn no_write_is_lost_that_had_a_reply() {
    if is_missing() {
        return;
    }
    let mut cluster = shard(3, &["--write-acks", "in-sync", "--cluster-lease", "1"]);
    let mut primary = 0;
    for round in 0..4 {
        let key = format!("key{round}");
        let stops = AtomicBool::new(false);
        let shared = &cluster;
        let written = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write(shared, &key, primary, &stops));
            std::thread::sleep(Duration::from_millis(200));
            shared.nodes[primary].signal(libc::SIGKILL);
            let others: Vec<usize> = (0..3).filter(|node| *node != primary).collect();
            wait("promotion", || others.iter().any(|node| role(&mut shared.connect(*node)) == "master"));
            std::thread::sleep(Duration::from_millis(200));
            stops.store(true, Relaxed);
            writer.join().expect("the writer does not panic")
        });
        cluster.nodes[primary].kill();
        let old = primary;
        primary =
            (0..3).find(|node| *node != old && role(&mut cluster.connect(*node)) == "master").expect("one");
        let found = text(&mut cluster.connect(primary), &format!("GET {key}"));
        let found: u64 = found.trim_matches('"').parse().expect("a number");
        assert!(found >= written.last, "{found} after {}", written.last);
        cluster.nodes[old].start_again();
        (0..3).for_each(|node| wait_until_in_sync(&cluster, node));
    }
}

/// Without a cluster as well.
#[test]
fn replies_wait_for_a_number_of_replicas() {
    let primary = start(&["--write-acks", "1", "--repl-diskless-sync-delay", "0"]);
    let mut client = primary.connect();
    client.send(&["SET", "foo", "v"]).expect("the socket takes it");
    client.set_reply_timeout(Duration::from_millis(300));
    assert!(client.try_read().is_err(), "there is no replica");
    client.set_reply_timeout(Duration::from_secs(20));
    let replica = start(&["--replicaof", &format!("127.0.0.1 {}", primary.port())]);
    assert_eq!(client.read().to_string(), "OK");
    assert_eq!(text(&mut client, "SET foo w"), "OK");
    assert_eq!(text(&mut replica.connect(), "GET foo"), "\"w\"");
    // A client may ask for more.
    assert_eq!(text(&mut client, "CLIENT WRITE-ACKS IN-SYNC"), "-ERR IN-SYNC needs cluster-store");
    assert_eq!(
        text(&mut client, "CONFIG SET write-acks in-sync"),
        "-ERR CONFIG SET failed (possibly related to argument 'write-acks') - in-sync needs cluster-store"
    );
    assert_eq!(text(&mut client, "CLIENT WRITE-ACKS 2"), "OK");
    let mut other = primary.connect();
    assert_eq!(text(&mut other, "SET foo x"), "OK");
    client.send(&["SET", "foo", "y"]).expect("the socket takes it");
    client.send(&["GET", "foo"]).expect("the socket takes it");
    client.set_reply_timeout(Duration::from_millis(300));
    assert!(client.try_read().is_err(), "there is one replica");
    client.set_reply_timeout(Duration::from_secs(20));
    let second = start(&["--replicaof", &format!("127.0.0.1 {}", primary.port())]);
    assert_eq!((client.read().to_string(), client.read().to_string()), ("OK".into(), "\"y\"".into()));
    drop(second);
    assert_eq!(text(&mut other, "CONFIG SET write-acks 0"), "OK");
    let alone = start(&[]);
    let (mut asks, mut writes) = (alone.connect(), alone.connect());
    assert_eq!(text(&mut asks, "CONFIG SET write-acks 1"), "OK");
    std::thread::sleep(Duration::from_millis(500)); // it has its effect within a tenth of a second
    writes.send(&["SET", "foo", "v"]).expect("the socket takes it");
    writes.set_reply_timeout(Duration::from_millis(300));
    assert!(writes.try_read().is_err(), "there is no replica");
    assert_eq!(text(&mut asks, "CONFIG SET write-acks 0"), "OK");
    for line in ["MULTI", "CLIENT WRITE-ACKS 1", "CONFIG SET write-acks 1", "CONFIG SET write-acks 0"] {
        assert!(["OK", "QUEUED"].contains(&&text(&mut asks, line)[..]), "{line}");
    }
    assert_eq!(text(&mut asks, "EXEC"), "[OK, OK, OK]");
    // A server that becomes a replica disconnects those whose writes are not at the replicas.
    assert_eq!(text(&mut client, "CLIENT WRITE-ACKS 16"), "OK");
    client.send(&["SET", "foo", "z"]).expect("the socket takes it");
    assert_eq!(text(&mut other, "PING"), "PONG");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(text(&mut other, &format!("REPLICAOF 127.0.0.1 {}", replica.port())), "OK");
    assert!(client.try_read().is_err());
}
