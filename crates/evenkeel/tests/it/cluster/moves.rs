//! Slots that move as a whole.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenkeel_testkit::etcd::{PATIENCE, is_missing};
use evenkeel_testkit::{Client, Random, Server};

use super::store::{Shared, wait};
use super::text;
use crate::replication::{freeze, thaw};

/// Two shards of `replicas + 1` nodes each: the first owns all slots. Nodes 0 and 1 are the primaries.
#[track_caller]
fn shards(replicas: usize, args: &[&str]) -> Shared {
    let own = ["--repl-diskless-sync-delay", "0", "--enable-debug-command", "yes"];
    let cluster = Shared::start(2 + 2 * replicas, &[&own[..], args].concat());
    for node in 2..2 + 2 * replicas {
        let replicate = format!("CLUSTER REPLICATE {}", cluster.id(node % 2));
        wait("shard", || text(&mut cluster.connect(node), &replicate) == "OK");
    }
    assert_eq!(text(&mut cluster.connect(0), "CLUSTER ADDSLOTSRANGE 0 16383"), "OK");
    for primary in 0..2 {
        wait("replicas", || cluster.info(primary, "cluster_in_sync_replicas") == replicas.to_string());
    }
    cluster.wait_until_served(0..2);
    cluster
}

/// Asks the first node to move slots to a node.
#[track_caller]
fn begin(cluster: &Shared, from: usize, slots: &str, to: usize) {
    let line = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slots} NODE {}", cluster.id(to));
    assert_eq!(text(&mut cluster.connect(from), &line), "OK");
}

/// Whether a node's keyspace has keys, those included that DBSIZE and SCAN leave out.
fn has_keys(client: &mut Client) -> bool {
    text(client, "INFO keyspace").contains("db0:keys=")
}

/// Fields of the newest move that a node knows.
fn newest(cluster: &Shared, node: usize, field: &str) -> String {
    let moves = text(&mut cluster.connect(node), "CLUSTER GETSLOTMIGRATIONS");
    let after = moves.split(&format!("\"{field}\", ")).nth(1).unwrap_or_default();
    after.split([',', ']']).next().unwrap_or_default().trim_matches('"').to_owned()
}

#[track_caller]
fn wait_for_success(cluster: &Shared, node: usize) {
    wait("end of the move", || newest(cluster, node, "state") == "success");
}

/// Waits until the keys that a move has left are removed.
#[track_caller]
fn wait_until_clear(cluster: &Shared) {
    wait("removal", || {
        let shards =
            cluster.etcd.control(&["get", "--prefix", "--print-value-only", "/evenkeel/evenkeel/shards/"]);
        !shards.contains("leftover")
    });
}

/// Keys of all types with the tag `{x}`, whose slot is 16287, some with a deadline or in another database.
const LINES: [&str; 14] = [
    "SET {x}s value",
    "SET {x}d value PX 100000000",
    "SETRANGE {x}holes 3000000 end",
    "RPUSH {x}l 1 2 3",
    "HSET {x}h a 1 b 2",
    "HPEXPIRE {x}h 100000000 FIELDS 1 a",
    "SADD {x}u 1 2 x",
    "ZADD {x}z 1 a 2.5 b",
    "XADD {x}x 1-1 a b",
    "XADD {x}x 2-1 a b",
    "XGROUP CREATE {x}x g 0",
    "XREADGROUP GROUP g me COUNT 1 STREAMS {x}x >",
    "PFADD {x}p 1 2 3",
    "SETBIT {x}b 70000 1",
];

fn digests(client: &mut Client) -> String {
    text(client, "DEBUG DIGEST-VALUE {x}s {x}d {x}holes {x}l {x}h {x}u {x}z {x}x {x}p {x}b {x}many {x}big")
}

#[test]
fn slots_move_with_all_that_is_in_them() {
    if is_missing() {
        return;
    }
    let cluster = shards(0, &["--cluster-databases", "4", "--databases", "4"]);
    let (mut from, mut to) = (cluster.connect(0), cluster.connect(1));
    for line in LINES {
        assert!(!text(&mut from, line).starts_with('-'), "{line}");
    }
    for number in 0..5_000 {
        from.call(&["ZADD", "{x}many", &number.to_string(), &format!("member{number}")]);
    }
    from.call(&[b"SET".to_vec(), b"{x}big".to_vec(), vec![b'b'; 20 << 20]]);
    assert_eq!(text(&mut from, "SELECT 3"), "OK");
    assert_eq!(text(&mut from, "SET {x}s third"), "OK");
    assert_eq!(text(&mut from, "SELECT 0"), "OK");
    assert_eq!(text(&mut from, "SET stays v"), "OK");
    let before = digests(&mut from);
    begin(&cluster, 0, "16287 16287", 1);
    wait_for_success(&cluster, 0);
    wait("arrival", || newest(&cluster, 1, "state") == "success");
    assert_eq!(newest(&cluster, 0, "operation"), "EXPORT");
    assert_eq!(newest(&cluster, 1, "operation"), "IMPORT");
    assert_eq!(newest(&cluster, 1, "slot_ranges"), "16287-16287");
    assert_eq!(digests(&mut to), before);
    assert_eq!(text(&mut to, "SELECT 3"), "OK");
    assert_eq!(text(&mut to, "GET {x}s"), "\"third\"");
    assert_eq!(text(&mut to, "SELECT 0"), "OK");
    let left: u64 = text(&mut to, "PTTL {x}d").trim_start_matches(':').parse().expect("it has a deadline");
    assert!((99_000_000..=100_000_000).contains(&left), "{left}");
    assert!(text(&mut to, "XPENDING {x}x g").contains("\"me\""));
    assert_eq!(cluster.shown(&text(&mut from, "GET {x}s")), "-MOVED 16287 127.0.0.1:PORT1");
    assert_eq!(text(&mut from, "GET stays"), "\"v\"");
    wait_until_clear(&cluster);
    assert_eq!(text(&mut from, "DBSIZE"), ":1");
    // The slot moves back, to a node from which its keys were removed.
    begin(&cluster, 1, "16287 16287", 0);
    wait_for_success(&cluster, 1);
    assert_eq!(digests(&mut from), before);
    wait_until_clear(&cluster);
    assert_eq!(text(&mut to, "DBSIZE"), ":0");
}

/// A client of two nodes that follows redirections.
struct Roaming<'a> {
    nodes: &'a [Server],
    clients: Vec<Client>,
    at: usize,
    /// The longest time for a command, redirections included.
    longest: Duration,
}

impl<'a> Roaming<'a> {
    fn new(nodes: &'a [Server]) -> Roaming<'a> {
        let clients = nodes.iter().map(Server::connect).collect();
        Roaming { nodes, clients, at: 0, longest: Duration::ZERO }
    }

    /// Runs a command that uses a single slot. Panics at an error that is no redirection.
    #[track_caller]
    fn run(&mut self, line: &str) -> String {
        let began = Instant::now();
        loop {
            let reply = self.clients[self.at].run(line).to_string();
            let Some(moved) = reply.strip_prefix("-MOVED ") else {
                assert!(!reply.starts_with('-'), "{line}: {reply}");
                self.longest = self.longest.max(began.elapsed());
                return reply;
            };
            let port = moved.rsplit_once(':').map(|(_, port)| port.to_owned()).unwrap_or_default();
            let owner = self.nodes.iter().position(|node| node.port().to_string() == port);
            self.at = owner.expect("a node of the cluster");
        }
    }

    /// Runs a transaction of one slot, as a whole again after a redirection.
    #[track_caller]
    fn transact(&mut self, lines: &[String]) {
        loop {
            self.clients[self.at].run("MULTI");
            let mut moved = None;
            for line in lines {
                let reply = self.clients[self.at].run(line).to_string();
                moved = moved.or_else(|| reply.strip_prefix("-MOVED ").map(str::to_owned));
            }
            let reply = self.clients[self.at].run("EXEC").to_string();
            moved = moved.or_else(|| reply.strip_prefix("-MOVED ").map(str::to_owned));
            if moved.is_none() {
                assert!(reply.starts_with('['), "{reply}");
                return;
            }
            self.at = 1 - self.at;
        }
    }
}

/// Stops writers, also after a failure.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Counters, lists, transactions and scripts of several clients, while half of the slots move back and forth.
#[test]
fn nothing_is_lost_and_nothing_happens_twice_while_slots_move() {
    if is_missing() {
        return;
    }
    const CLIENTS: u64 = 4;
    const KEYS: u64 = 40;
    let cluster = shards(0, &[]);
    let seed = evenkeel_testkit::random::fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let (stops, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let counts = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (stops, written, nodes) = (&stops, &written, &cluster.nodes);
                scope.spawn(move || {
                    let (mut client, mut random) = (Roaming::new(nodes), Random::new(seed + number));
                    let mut counts = vec![0u64; KEYS as usize];
                    while !stops.load(Relaxed) {
                        let key = random.below(KEYS as usize);
                        match random.below(5) {
                            0 | 1 => drop(client.run(&format!("INCR {{{key}}}c"))),
                            2 => client.transact(&[
                                format!("INCR {{{key}}}c"),
                                format!("RPUSH {{{key}}}l {number}"),
                                format!("RPOP {{{key}}}l"),
                            ]),
                            3 => {
                                let script = "return redis.call('INCR', KEYS[1])";
                                client.run(&format!("EVAL \"{script}\" 1 {{{key}}}c"));
                            }
                            _ => {
                                client.run(&format!("SET {{{key}}}e{number} v PX {}", random.below(30) + 1));
                                continue;
                            }
                        }
                        counts[key] += 1;
                        written.fetch_add(1, Relaxed);
                    }
                    (counts, client.longest)
                })
            })
            .collect();
        let _stop = Stop(&stops);
        for round in 0..6 {
            let (from, to) = (round % 2, 1 - round % 2);
            begin(&cluster, from, "0 8191", to);
            wait_for_success(&cluster, from);
            let (before, began) = (written.load(Relaxed), Instant::now());
            wait("writes", || {
                written.load(Relaxed) > before + 200 || began.elapsed() > Duration::from_secs(5)
            });
        }
        stops.store(true, Relaxed);
        let mut counts = vec![0; KEYS as usize];
        for writer in writers {
            let (own, longest) = writer.join().expect("no failure");
            println!("longest command: {longest:?}");
            counts.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        counts
    });
    let mut client = Roaming::new(&cluster.nodes);
    for (key, count) in counts.iter().enumerate() {
        let found = client.run(&format!("GET {{{key}}}c"));
        assert_eq!(found, if *count == 0 { "(nil)".into() } else { format!("\"{count}\"") }, "counter {key}");
    }
    println!("{} writes", written.load(Relaxed));
    wait_until_clear(&cluster);
    let keys = |node: usize| text(&mut cluster.connect(node), "KEYS *c").matches("}c").count() as u64;
    wait("keys", || keys(0) + keys(1) == counts.iter().filter(|count| **count > 0).count() as u64);
}

/// The walk of a copy takes some 50 us for each key.
fn slow_down(cluster: &Shared, node: usize) {
    assert_eq!(text(&mut cluster.connect(node), "CONFIG SET rdb-key-save-delay 50"), "OK");
}

fn fill(cluster: &Shared, node: usize, keys: u64) {
    let mut client = cluster.connect(node);
    let batch = |first: u64| -> Vec<Vec<String>> {
        let set = |number: u64| vec!["SET".to_owned(), format!("key:{number}"), number.to_string()];
        (first..(first + 1_000).min(keys)).map(set).collect()
    };
    (0..keys).step_by(1_000).for_each(|first| _ = client.pipeline(&batch(first)));
}

#[test]
fn a_cancelled_move_leaves_all_as_it_was() {
    if is_missing() {
        return;
    }
    let cluster = shards(0, &[]);
    fill(&cluster, 0, 40_000);
    let (mut from, mut to) = (cluster.connect(0), cluster.connect(1));
    assert_eq!(text(&mut from, "CLUSTER CANCELSLOTMIGRATIONS"), "-ERR No migrations ongoing");
    slow_down(&cluster, 0);
    begin(&cluster, 0, "0 16383", 1);
    wait("copy", || has_keys(&mut to));
    assert_eq!(newest(&cluster, 0, "state"), "snapshotting");
    // Clients of the target do not see what arrives.
    assert_eq!(text(&mut to, "DBSIZE"), ":0");
    assert_eq!(text(&mut to, "KEYS *"), "[]");
    assert_eq!(text(&mut to, "RANDOMKEY"), "(nil)");
    assert_eq!(text(&mut to, "SCAN 0 COUNT 100000"), "[\"0\", []]");
    assert_eq!(cluster.nodes[0].info("cluster_slots_leaving"), "16384");
    assert_eq!(cluster.info(1, "cluster_slots_arriving"), "16384");
    // Keys that arrive are nobody's yet.
    assert_eq!(cluster.shown(&text(&mut to, "GET key:1")).split(' ').next(), Some("-MOVED"));
    let again = format!("CLUSTER MIGRATESLOTS SLOTSRANGE 5 6 NODE {}", cluster.id(1));
    assert!(text(&mut from, &again).contains("moves one of these slots"));
    assert_eq!(text(&mut from, "CLUSTER CANCELSLOTMIGRATIONS"), "OK");
    wait("end", || {
        newest(&cluster, 0, "state") == "cancelled" && newest(&cluster, 1, "state") == "cancelled"
    });
    wait_until_clear(&cluster);
    assert_eq!((text(&mut from, "DBSIZE"), text(&mut to, "DBSIZE")), (":40000".into(), ":0".into()));
    assert_eq!(text(&mut from, "GET key:1"), "\"1\"");
    // Without the delay, and with all that is written meanwhile, it succeeds.
    assert_eq!(text(&mut from, "CONFIG SET rdb-key-save-delay 0"), "OK");
    begin(&cluster, 0, "0 16383", 1);
    wait_for_success(&cluster, 0);
    // The target has the map a moment after the source.
    wait("all keys at the target", || text(&mut to, "DBSIZE") == ":40000");
}

/// What a client does at either end during a copy.
#[test]
fn flushes_and_deadlines_during_a_copy() {
    if is_missing() {
        return;
    }
    let cluster = shards(0, &[]);
    fill(&cluster, 0, 20_000);
    let (mut from, mut to) = (cluster.connect(0), cluster.connect(1));
    slow_down(&cluster, 0);
    // At the target: the copy begins anew, and nothing is missing.
    begin(&cluster, 0, "0 16383", 1);
    wait("copy", || has_keys(&mut to));
    assert_eq!(text(&mut from, "SET short v PX 300"), "OK");
    assert_eq!(text(&mut to, "FLUSHALL"), "OK");
    assert_eq!(text(&mut from, "CONFIG SET rdb-key-save-delay 0"), "OK");
    wait_for_success(&cluster, 0);
    wait("expiry", || text(&mut to, "DBSIZE") == ":20000");
    wait_until_clear(&cluster);
    assert_eq!(text(&mut from, "DBSIZE"), ":0");
    // At the source: the keys are gone, and stay so.
    slow_down(&cluster, 1);
    begin(&cluster, 1, "0 16383", 0);
    wait("copy", || has_keys(&mut from));
    assert_eq!(text(&mut to, "FLUSHALL"), "OK");
    assert_eq!(text(&mut to, "SET after v"), "OK");
    assert_eq!(text(&mut to, "CONFIG SET rdb-key-save-delay 0"), "OK");
    wait_for_success(&cluster, 1);
    assert_eq!(text(&mut from, "GET after"), "\"v\"");
    assert_eq!(text(&mut from, "DBSIZE"), ":1");
}

/// Kills a primary during the copy: its replica goes on with the move.
fn killed_during_the_copy(victim: usize) {
    let mut cluster = shards(1, &["--cluster-lease", "1", "--write-acks", "in-sync"]);
    fill(&cluster, 0, 20_000);
    (0..4).for_each(|node| slow_down(&cluster, node));
    begin(&cluster, 0, "0 8191", 1);
    wait("copy", || has_keys(&mut cluster.connect(1)));
    cluster.nodes[victim].kill();
    let survivors: Vec<usize> = (0..4).filter(|node| *node != victim).collect();
    let ports = |node: usize| cluster.nodes[node].port().to_string();
    let (source, target) = (if victim == 0 { 2 } else { 0 }, if victim == 1 { 3 } else { 1 });
    wait("promotion", || {
        let nodes = text(&mut cluster.connect(survivors[0]), "CLUSTER NODES");
        let is_master = |node| {
            nodes
                .split("\\n")
                .any(|line| line.contains(&format!(":{}@", ports(node))) && line.contains("master"))
        };
        is_master(source) && is_master(target)
    });
    (0..4).filter(|node| *node != victim).for_each(|node| {
        text(&mut cluster.connect(node), "CONFIG SET rdb-key-save-delay 0");
    });
    wait("end of the move", || {
        let slots = text(&mut cluster.connect(target), "CLUSTER NODES");
        slots
            .split("\\n")
            .any(|line| line.contains(&format!(":{}@", ports(target))) && line.contains(" 0-8191"))
    });
    wait_until_clear(&cluster);
    let sum = |node: usize| -> u64 {
        text(&mut cluster.connect(node), "DBSIZE").trim_start_matches(':').parse().expect("a number")
    };
    wait("keys", || sum(source) + sum(target) == 20_000);
    assert!(sum(source) > 9_000 && sum(target) > 9_000);
}

#[test]
fn a_move_goes_on_after_the_source_was_killed() {
    if !is_missing() {
        killed_during_the_copy(0);
    }
}

#[test]
fn a_move_goes_on_after_the_target_was_killed() {
    if !is_missing() {
        killed_during_the_copy(1);
    }
}

/// Clients that wait for keys of a slot that moves, or listen in it, are sent to the next owner.
#[test]
fn waiting_clients_are_sent_to_the_new_owner() {
    if is_missing() {
        return;
    }
    let cluster = shards(0, &[]);
    let (mut waits, mut listens) = (cluster.connect(0), cluster.connect(0));
    waits.send(&["BLPOP", "{x}l", "0"]).expect("it takes it");
    assert!(text(&mut listens, "SSUBSCRIBE {x}c").contains("ssubscribe"));
    wait("wait", || cluster.nodes[0].info("blocked_clients") == "1");
    begin(&cluster, 0, "16287 16287", 1);
    assert_eq!(cluster.shown(&waits.read().to_string()), "-MOVED 16287 127.0.0.1:PORT1");
    assert!(listens.read().to_string().contains("sunsubscribe"));
    assert_eq!(cluster.shown(&text(&mut waits, "GET {x}l")), "-MOVED 16287 127.0.0.1:PORT1");
}

/// A client that writes faster than the target can follow is slowed down, and the move ends.
#[test]
fn a_move_ends_although_writers_are_faster_than_the_target() {
    if is_missing() {
        return;
    }
    let cluster = shards(0, &[]);
    let is_over = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut client, mut written) = (cluster.connect(0), 0);
            let value = "v".repeat(1_000);
            while !is_over.load(Relaxed) {
                let set = |number: u64| ["SET".into(), format!("{{x}}:{}", number % 20_000), value.clone()];
                let batch: Vec<Vec<String>> = (written..written + 200).map(|at| set(at).to_vec()).collect();
                let replies = client.pipeline(&batch);
                if replies.iter().any(|reply| reply.to_string().starts_with("-MOVED")) {
                    break;
                }
                written += 200;
            }
            written
        });
        // The target runs for a tenth of the time.
        scope.spawn(|| {
            let target = &cluster.nodes[1];
            while !is_over.load(Relaxed) {
                freeze(target);
                std::thread::sleep(Duration::from_millis(9));
                thaw(target);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        begin(&cluster, 0, "16287 16287", 1);
        let (start, mut state) = (Instant::now(), String::new());
        while state != "success" && start.elapsed() < 2 * PATIENCE {
            std::thread::sleep(Duration::from_millis(50));
            state = newest(&cluster, 0, "state");
        }
        is_over.store(true, Relaxed);
        assert_eq!(state, "success", "{} bytes are missing", newest(&cluster, 0, "remaining_repl_size"));
        writer.join().expect("the writer's thread")
    });
    assert!(written > 0);
    let all = format!(":{}", written.min(20_000));
    wait("all keys at the target", || text(&mut cluster.connect(1), "DBSIZE") == all);
}

/// The words of Redis 8.4, at the target.
#[test]
fn a_target_asks_for_slots() {
    if is_missing() {
        return;
    }
    let cluster = shards(0, &[]);
    fill(&cluster, 0, 20_000);
    let (mut from, mut to) = (cluster.connect(0), cluster.connect(1));
    slow_down(&cluster, 0);
    let first = text(&mut to, "CLUSTER MIGRATION IMPORT 0 100 200 8191").trim_matches('"').to_owned();
    assert_eq!(first.len(), 40, "{first}");
    let status = |client: &mut Client, id: &str| text(client, &format!("CLUSTER MIGRATION STATUS ID {id}"));
    // The reply comes when the target has the map; the source may have it a moment later.
    wait("the move at both ends", || {
        status(&mut to, &first).contains("\"import\"") && status(&mut from, &first).contains("\"migrate\"")
    });
    assert_eq!(status(&mut to, "x"), "[]");
    wait("copy", || has_keys(&mut to));
    assert_eq!(text(&mut to, "CLUSTER MIGRATION CANCEL ALL"), ":1");
    wait("end", || status(&mut from, &first).contains("\"canceled\""));
    assert_eq!(text(&mut to, &format!("CLUSTER MIGRATION CANCEL ID {first}")), ":0");
    assert_eq!(text(&mut from, "CONFIG SET rdb-key-save-delay 0"), "OK");
    wait_until_clear(&cluster);
    let second = text(&mut to, "CLUSTER MIGRATION IMPORT 0 8191").trim_matches('"').to_owned();
    wait("end of the move", || status(&mut to, &second).contains("\"completed\""));
    assert!(text(&mut to, "CLUSTER MIGRATION STATUS ALL").contains(&first));
    let foreign = text(&mut to, "CLUSTER MIGRATION IMPORT 8000 9000");
    assert!(foreign.starts_with("-ERR"), "{foreign}");
    for wrong in ["IMPORT 5 1", "IMPORT 1 2 3", "STATUS ID", "CANCEL x", "FOO ALL"] {
        let reply = text(&mut to, &format!("CLUSTER MIGRATION {wrong}"));
        assert!(reply.starts_with("-ERR"), "{wrong}: {reply}");
    }
}

#[test]
fn wrong_moves_are_refused() {
    if is_missing() {
        return;
    }
    let cluster = shards(0, &[]);
    let mut client = cluster.connect(0);
    let (own, other) = (cluster.id(0), cluster.id(1));
    let mut refused = |words: String| text(&mut client, &format!("CLUSTER MIGRATESLOTS {words}"));
    for (words, error) in [
        (format!("SLOTSRANGE 0 1 NODE {own}"), "-ERR Target node can not be this node."),
        ("SLOTSRANGE 0 1 NODE xx".into(), "-ERR Invalid node name: xx"),
        (
            format!("SLOTSRANGE 5 1 NODE {other}"),
            "-ERR Start slot number 5 is greater than end slot number 1.",
        ),
        (format!("SLOTSRANGE 0 99999 NODE {other}"), "-ERR Invalid or out of range slot"),
        (format!("SLOTSRANGE 0 1 1 2 NODE {other}"), "-ERR Slot range 1-2 overlaps with previous range 0-1."),
        (format!("FOO 0 1 NODE {other}"), "-ERR syntax error"),
        ("SLOTSRANGE 0 1 NODE".into(), "-ERR syntax error"),
        ("SLOTSRANGE 0 0 1".into(), "-ERR No end slot for final slot range"),
    ] {
        assert_eq!(refused(words), error);
    }
    let mut client = cluster.connect(1);
    let line = format!("CLUSTER MIGRATESLOTS SLOTSRANGE 9000 9001 NODE {own}");
    assert_eq!(text(&mut client, &line), "-ERR Slots are not served by this node.");
    let import = |rest: &str| format!("CLUSTER IMPORTSLOTS {rest}");
    assert_eq!(text(&mut client, &import("x 1 1 1 0")), "-ERR Invalid name of a migration");
    let unknown = text(&mut client, &import(&format!("{} 1 1 1 0", "7".repeat(40))));
    assert!(unknown.starts_with("-TRYAGAIN"), "{unknown}");
}
