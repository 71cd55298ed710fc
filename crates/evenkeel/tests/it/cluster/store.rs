//! Nodes that share a map in etcd.

use std::time::{Duration, Instant};

use evenkeel_testkit::etcd::{Members, PATIENCE, is_missing};
use evenkeel_testkit::{Client, Server};

use super::tools::must_find;
use super::{KEYS, SLOTS, text};
use crate::{program, start};

/// Nodes without slots, and the etcd that they share.
pub(super) struct Shared {
    pub(super) etcd: Members,
    pub(super) nodes: Vec<Server>,
}

impl Shared {
    #[track_caller]
    pub(super) fn start(count: usize, args: &[&str]) -> Shared {
        let etcd = Members::start(1);
        etcd.control(&["endpoint", "health"]);
        let nodes = (0..count).map(|_| start(&[&arguments(&etcd)[..], args].concat())).collect();
        let cluster = Shared { etcd, nodes };
        let is_known = |node: &Server| text(&mut node.connect(), "CLUSTER NODES").matches('@').count();
        wait("nodes", || cluster.nodes.iter().all(|node| is_known(node) == count));
        cluster
    }

    /// Starts three nodes, each with a third of the slots.
    #[track_caller]
    pub(super) fn with_slots(args: &[&str]) -> Shared {
        let cluster = Shared::start(3, args);
        for (node, slots) in SLOTS.iter().enumerate() {
            let add = format!("CLUSTER ADDSLOTSRANGE {}", slots.replace('-', " "));
            assert_eq!(text(&mut cluster.connect(node), &add), "OK");
        }
        cluster.wait_until_served(0..3);
        cluster
    }

    #[track_caller]
    pub(super) fn wait_until_served(&self, nodes: std::ops::Range<usize>) {
        wait("service", || nodes.clone().all(|node| self.info(node, "cluster_state") == "ok"));
    }

    pub(super) fn connect(&self, node: usize) -> Client {
        self.nodes[node].connect()
    }

    /// Returns a field of CLUSTER INFO.
    pub(super) fn info(&self, node: usize, name: &str) -> String {
        field(&mut self.connect(node), name)
    }

    pub(super) fn id(&self, node: usize) -> String {
        text(&mut self.connect(node), "CLUSTER MYID").trim_matches('"').to_owned()
    }

    /// Returns a reply with the ports of the nodes replaced by their numbers.
    pub(super) fn shown(&self, text: &str) -> String {
        let ports = self.nodes.iter().enumerate();
        ports.fold(text.to_owned(), |text, (node, server)| {
            text.replace(&format!(":{}", server.port()), &format!(":PORT{node}"))
        })
    }
}

/// The arguments of a node of these members.
pub(super) fn arguments(etcd: &Members) -> Vec<&'static str> {
    let store = format!("etcd://{}", etcd.endpoints().join(","));
    vec!["--cluster-enabled", "yes", "--cluster-store", store.leak()]
}

pub(super) fn field(client: &mut Client, name: &str) -> String {
    let info = text(client, "CLUSTER INFO");
    let after = info.split(&format!("{name}:")).nth(1).unwrap_or_default();
    after.split("\\r").next().unwrap_or_default().trim().lines().next().unwrap_or_default().to_owned()
}

#[track_caller]
pub(super) fn wait(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "no {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    start.elapsed()
}

#[test]
fn nodes_find_each_other_in_etcd() {
    if is_missing() {
        return;
    }
    let cluster = Shared::with_slots(&[]);
    for asked in 0..3 {
        let mut client = cluster.connect(asked);
        for (owner, keys) in KEYS.iter().enumerate() {
            for key in keys {
                let reply = cluster.shown(&text(&mut client, &format!("SET {key} v")));
                let expected = if owner == asked { "OK".into() } else { format!("127.0.0.1:PORT{owner}") };
                assert!(reply.ends_with(&expected), "{reply}");
            }
        }
        assert_eq!(field(&mut client, "cluster_store"), "ok");
        assert_eq!(field(&mut client, "cluster_known_nodes"), "3");
        let shards = text(&mut client, "CLUSTER SHARDS");
        assert_eq!(shards.matches("\"online\"").count(), 3, "{shards}");
    }
    let mut client = cluster.connect(0);
    let port = cluster.nodes[1].port();
    assert_eq!(text(&mut client, &format!("CLUSTER MEET 127.0.0.1 {port}")), "OK");
    assert_eq!(text(&mut client, "CLUSTER ADDSLOTS 9000"), "-ERR Slot 9000 is already busy");
    let foreign = text(&mut client, "CLUSTER DELSLOTS 9000");
    assert_eq!(foreign, "-ERR Slot 9000 is served by another node");
    assert_eq!(text(&mut client, "CLUSTER DELSLOTS 5060"), "OK");
    wait("state", || (0..3).all(|node| cluster.info(node, "cluster_state") == "fail"));
    assert_eq!(text(&mut client, "SET b v"), "-CLUSTERDOWN The cluster is down");
    assert_eq!(text(&mut client, "CLUSTER ADDSLOTS 5060"), "OK");
    assert_eq!(text(&mut client, "SET b v"), "OK");
    let replicate = format!("CLUSTER REPLICATE {}", cluster.id(1));
    assert!(text(&mut client, &replicate).contains("the node must be empty"));
    assert!(text(&mut client, "CLUSTER RESET HARD").contains("master nodes containing keys"));
}

#[test]
fn a_slot_moves_key_by_key_in_a_shared_map() {
    if is_missing() {
        return;
    }
    let cluster = Shared::with_slots(&[]);
    let (mut from, mut to, mut third) = (cluster.connect(0), cluster.connect(1), cluster.connect(2));
    let (source, target) = (cluster.id(0), cluster.id(1));
    for number in 0..20 {
        from.run(&format!("SET {{bar}}{number} {number}"));
    }
    assert_eq!(text(&mut to, &format!("CLUSTER SETSLOT 5061 IMPORTING {source}")), "OK");
    assert_eq!(text(&mut from, &format!("CLUSTER SETSLOT 5061 MIGRATING {target}")), "OK");
    let own = format!("CLUSTER SETSLOT 5061 NODE {target}");
    assert!(text(&mut from, &own).contains("while I still hold keys"));
    let keys: Vec<String> = (0..20).map(|number| format!("{{bar}}{number}")).collect();
    let port = cluster.nodes[1].port();
    let migrate = format!("MIGRATE 127.0.0.1 {port} '' 0 5000 KEYS {}", keys.join(" "));
    assert_eq!(text(&mut from, &migrate), "OK");
    assert_eq!(cluster.shown(&text(&mut from, "GET {bar}3")), "-ASK 5061 127.0.0.1:PORT1");
    assert_eq!(text(&mut to, &own), "OK");
    assert_eq!(text(&mut to, "GET {bar}3"), "\"3\"");
    assert_eq!(text(&mut from, &own), "OK");
    for client in [&mut from, &mut third] {
        wait("redirection", || cluster.shown(&text(client, "GET {bar}3")) == "-MOVED 5061 127.0.0.1:PORT1");
    }
    // An empty slot leaves by a transaction of its owner, which closes it before.
    assert_eq!(text(&mut from, &format!("CLUSTER SETSLOT 7 NODE {target}")), "OK");
    assert!(text(&mut from, "CLUSTER NODES").contains(" 7 5061 5461-10922"));
    assert_eq!(text(&mut from, "SET {bar}3 v").split(' ').next(), Some("-MOVED"));
}

#[test]
fn a_killed_node_is_shown_as_failed_and_comes_back_with_its_identity() {
    if is_missing() {
        return;
    }
    let mut cluster = Shared::with_slots(&["--cluster-require-full-coverage", "no"]);
    let id = cluster.id(2);
    cluster.nodes[2].kill();
    let mut client = cluster.connect(0);
    wait("failure", || text(&mut client, "CLUSTER NODES").contains("master,fail"));
    assert_eq!(field(&mut client, "cluster_nodes_fail"), "1");
    assert!(text(&mut client, "CLUSTER SHARDS").contains("\"failed\""));
    assert_eq!(cluster.shown(&text(&mut client, "GET foo")), "-MOVED 12182 127.0.0.1:PORT2");
    assert_eq!(text(&mut client, "SET bar v"), "OK");
    // With full coverage, a slot that nobody can serve stops the others.
    for (coverage, reply) in [("yes", "-CLUSTERDOWN The cluster is down"), ("no", "OK")] {
        text(&mut client, &format!("CONFIG SET cluster-require-full-coverage {coverage}"));
        assert_eq!(text(&mut client, "SET bar v"), reply);
    }
    cluster.nodes[2].start_again();
    assert_eq!(cluster.id(2), id);
    let mut back = cluster.connect(2);
    wait("service", || text(&mut back, "SET foo v") == "OK");
    wait("recovery", || cluster.shown(&text(&mut client, "GET foo")) == "-MOVED 12182 127.0.0.1:PORT2");
    // An orderly end gives the lease back: others do not wait for its end.
    cluster.nodes[2].stop();
    wait("failure", || text(&mut client, "CLUSTER NODES").contains("master,fail"));
}

#[test]
fn without_etcd_the_fence_stops_a_node() {
    if is_missing() {
        return;
    }
    let cluster = Shared::with_slots(&["--cluster-require-full-coverage", "no"]);
    let mut client = cluster.connect(0);
    assert_eq!(text(&mut client, "SET bar v"), "OK");
    let etcd = cluster.etcd.children[0].as_ref().expect("it runs").id().to_string();
    let signal = |name: &str| {
        let done = std::process::Command::new("kill").args([name, &etcd]).status().expect("kill runs");
        assert!(done.success());
    };
    signal("-STOP");
    let took = wait("fence", || text(&mut client, "SET bar w") == "-CLUSTERDOWN The cluster is down");
    assert!(took < Duration::from_secs(4), "{took:?}");
    let down = "-CLUSTERDOWN The cluster is down";
    for command in ["GET bar", "FLUSHALL", "EVAL \"return redis.call('SET', KEYS[1], 'x')\" 1 bar"] {
        assert_eq!(text(&mut client, command), down, "{command}");
    }
    let script = text(&mut client, "EVAL \"return redis.call('SET', 'bar', 'x')\" 0");
    assert!(script.contains("while the cluster is down"), "{script}");
    assert_eq!(field(&mut client, "cluster_state"), "fail");
    wait("report", || field(&mut client, "cluster_store").contains("out of reach"));
    let refused = text(&mut client, "CLUSTER BUMPEPOCH");
    assert!(refused.starts_with("-ERR "), "{refused}");
    signal("-CONT");
    wait("service", || text(&mut client, "SET bar x") == "OK");
    wait("report", || field(&mut client, "cluster_store") == "ok");
}

#[test]
fn a_node_without_its_store_starts_and_serves_nothing() {
    if is_missing() {
        return;
    }
    let port = evenkeel_testkit::server::free_port();
    let store = format!("etcd://127.0.0.1:{port}");
    let server = start(&["--cluster-enabled", "yes", "--cluster-store", &store]);
    let mut client = server.connect();
    assert_eq!(text(&mut client, "SET foo v"), "-CLUSTERDOWN Hash slot not served");
    assert_eq!(text(&mut client, "FLUSHALL"), "-CLUSTERDOWN The cluster is down");
    wait("report", || field(&mut client, "cluster_store").contains("out of reach"));
    assert!(text(&mut client, "INFO cluster").contains("cluster_store:The cluster's store is out of reach"));
    let added = text(&mut client, "CLUSTER ADDSLOTS 1");
    assert!(added.starts_with("-ERR the cluster's store has shown no map yet"), "{added}");
}

#[test]
fn the_stores_password_is_checked() {
    if is_missing() {
        return;
    }
    let etcd = Members::start(1);
    etcd.control(&["endpoint", "health"]);
    etcd.control(&["user", "add", "root:secret"]);
    etcd.control(&["user", "grant-role", "root", "root"]);
    etcd.control(&["auth", "enable"]);
    let user = ["--cluster-store-user", "root", "--cluster-store-password"];
    let node = |password| start(&[&arguments(&etcd)[..], &user, &[password]].concat());
    let (wrong, right) = (node("not-this-one"), node("secret"));
    let mut client = wrong.connect();
    wait("report", || field(&mut client, "cluster_store").contains("does not accept user 'root'"));
    wait("entry", || text(&mut right.connect(), "CLUSTER ADDSLOTS 1") == "OK");
    assert!(text(&mut right.connect(), "CONFIG GET cluster-store-password").contains("secret"));
    assert!(!wrong.log().contains("not-this-one") && !right.log().contains("secret"));
}

#[test]
fn settings_of_a_store_are_checked_at_the_start() {
    for (args, reason) in [
        (&["--cluster-store", "http://a:1"][..], "etcd://host:port"),
        (&["--write-acks", "in-sync"], "write-acks in-sync needs cluster-store"),
        (&["--write-acks", "17"], "a number of replicas up to 16, or in-sync"),
        (&["--cluster-store", "etcd://a"], "'a' in cluster-store is no host:port"),
        (&["--cluster-enabled", "no", "--cluster-store", "etcd://a:1"], "needs cluster-enabled yes"),
        (&["--cluster-store", "etcds://a:1"], "needs cluster-store-cacert"),
        (&["--cluster-store", "etcds://a:1", "--cluster-store-cacert", "none"], "Cannot read"),
        (&["--cluster-store", "etcd://a:1", "--cluster-store-password", "x"], "needs cluster-store-user"),
        (&["--cluster-store", "etcd://a:1", "--cluster-name", "a/b"], "has no slash"),
        (&["--cluster-store", "etcd://a:1", "--cluster-lease", "0"], "cluster-lease"),
    ] {
        let all = [&["--cluster-enabled", "yes"], args].concat();
        let Err(problem) = Server::try_start(&program(), &all) else { panic!("{args:?} is accepted") };
        assert!(problem.contains(reason), "{args:?}: {problem}");
        let checked = std::process::Command::new(program().path()).args(&all).arg("--check-config").output();
        let checked = checked.expect("it runs");
        let output = String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()).into_owned();
        assert!(!checked.status.success() && output.contains(reason), "{args:?}: {output}");
    }
}

#[test]
fn a_map_that_somebody_damaged_is_named() {
    if is_missing() {
        return;
    }
    let cluster = Shared::start(1, &[]);
    let id = cluster.id(0);
    assert_eq!(text(&mut cluster.connect(0), "CLUSTER ADDSLOTS 1"), "OK"); // the node is in the map
    let key = format!("/evenkeel/evenkeel/nodes/{id}");
    let good = cluster.etcd.control(&["get", "--print-value-only", &key]);
    cluster.etcd.control(&["put", &key, "{}"]);
    wait("report", || cluster.info(0, "cluster_store").contains(&format!("'{key}' is not valid")));
    cluster.etcd.control(&["put", &key, good.trim()]);
    wait("recovery", || cluster.info(0, "cluster_store") == "ok");
    let other = start(&[&arguments(&cluster.etcd)[..], &["--cluster-name", "other"]].concat());
    assert_eq!(field(&mut other.connect(), "cluster_known_nodes"), "1");
}

#[test]
fn redis_cli_creates_and_reshards_a_cluster() {
    if is_missing() {
        return;
    }
    let cluster = Shared::start(3, &[]);
    let addresses: Vec<String> =
        cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let [a, b, c] = &addresses[..] else { unreachable!("three nodes") };
    let create = ["--cluster", "create", a, b, c, "--cluster-replicas", "0", "--cluster-yes"];
    must_find(&create, &["[OK] All nodes agree", "[OK] All 16384 slots covered."]);
    cluster.wait_until_served(0..3);
    must_find(&["--cluster", "check", b], &["[OK] All nodes agree", "[OK] All 16384 slots covered."]);
    for key in ["foo", "bar", "1", "b", "2", "hi"] {
        let port = cluster.nodes[0].port().to_string();
        must_find(&["-c", "-p", &port, "SET", key, "v"], &["OK"]);
    }
    let (from, to) = (cluster.id(0), cluster.id(1));
    let ends = ["--cluster-from", &from, "--cluster-to", &to];
    let reshard = [&["--cluster", "reshard", a][..], &ends, &["--cluster-slots", "20", "--cluster-yes"]];
    must_find(&reshard.concat(), &["Moving slot 0 from"]);
    wait("agreement", || {
        (0..3).all(|node| text(&mut cluster.connect(node), "CLUSTER NODES").contains(" 0-19 5461-10922"))
    });
    must_find(&["--cluster", "check", c], &["[OK] All nodes agree", "[OK] All 16384 slots covered."]);
    let fourth = start(&arguments(&cluster.etcd));
    let new = format!("127.0.0.1:{}", fourth.port());
    wait("entry", || text(&mut cluster.connect(0), "CLUSTER NODES").contains(&new));
    wait("service", || field(&mut fourth.connect(), "cluster_state") == "ok");
    must_find(&["--cluster", "add-node", &new, a], &["[OK] New node added correctly."]);
    let id = text(&mut fourth.connect(), "CLUSTER MYID").trim_matches('"').to_owned();
    must_find(&["--cluster", "del-node", a, &id], &["Sending CLUSTER FORGET", "Sending CLUSTER RESET SOFT"]);
    wait("end", || !text(&mut cluster.connect(0), "CLUSTER NODES").contains(&new));
    assert_eq!(
        text(&mut fourth.connect(), &format!("CLUSTER MEET 127.0.0.1 {}", cluster.nodes[0].port())),
        "OK"
    );
    wait("return", || text(&mut cluster.connect(0), "CLUSTER NODES").contains(&new));
}
