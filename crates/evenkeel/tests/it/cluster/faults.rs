//! Shards, with three members of etcd, under real faults: processes that are killed, stopped and ended,
//! networks that deliver late, or nothing. Clients record their commands and the replies, with `write-acks
//! in-sync`: the histories have to be linearizable, and nothing acknowledged may be lost. With several
//! shards, slots move all the time.
//!
//! All connections to a node, and all of a node to etcd, lead through relays. `EVENKEEL_CLUSTER_ROUNDS`
//! sets the number of faults, and `EVENKEEL_SEED` repeats their order.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use evenkeel_testkit::etcd::{Members, is_missing};
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::registers::{self, Kind, Operation};
use evenkeel_testkit::relay::Relay;
use evenkeel_testkit::{Client, Random, Server};

use super::store::{field, wait};
use super::text;
use crate::start;

/// Rounds without a wish, and clients.
const ROUNDS: usize = 20;
const CLIENTS: usize = 6;

const SLOTS: usize = 16_384;

/// Registers of a round.
const KEYS: usize = 4;

/// The time between two commands of a client: the check of a history takes longer than its making.
const THINK: Duration = Duration::from_millis(3);

/// The longest wait for a reply.
const REPLY_MAX: Duration = Duration::from_millis(1_500);

/// Seconds of a lease.
const LEASE: u64 = 1;

struct World {
    etcd: Members,
    /// The nodes of the first shard, then those of the second, and so on.
    nodes: Vec<Server>,
    nodes_of_shard: usize,
    /// The way of others to each node.
    ways: Vec<Relay>,
    /// The ways of each node to etcd.
    to_etcd: Vec<Vec<Relay>>,
}

impl World {
    fn start(shards: usize, nodes_of_shard: usize, write_acks: &str) -> World {
        let etcd = Members::start(3);
        etcd.control(&["endpoint", "health"]);
        let ports: Vec<u16> = etcd.endpoints().iter().map(|endpoint| port_of(endpoint)).collect();
        let (mut nodes, mut ways, mut to_etcd) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..shards * nodes_of_shard {
            let relays: Vec<Relay> = ports.iter().map(|port| Relay::to(*port)).collect();
            let store: Vec<String> =
                relays.iter().map(|relay| format!("127.0.0.1:{}", relay.port())).collect();
            // The node has to know the port of the relay that leads to it, and the relay that of the node.
            let port = evenkeel_testkit::server::free_port();
            let way = Relay::to(port);
            let args = [
                "--port",
                &port.to_string(),
                "--cluster-enabled",
                "yes",
                "--cluster-store",
                &format!("etcd://{}", store.join(",")),
                "--cluster-announce-port",
                &way.port().to_string(),
                "--cluster-lease",
                &LEASE.to_string(),
                "--write-acks",
                write_acks,
                "--repl-diskless-sync-delay",
                "0",
                "--repl-timeout",
                "5",
                "--repl-ping-replica-period",
                "1",
            ];
            nodes.push(start(&args));
            ways.push(way);
            to_etcd.push(relays);
        }
        let world = World { etcd, nodes, nodes_of_shard, ways, to_etcd };
        for shard in 0..shards {
            let slots = (shard * SLOTS / shards, (shard + 1) * SLOTS / shards - 1);
            let first = world.of_shard(shard).start;
            let add = format!("CLUSTER ADDSLOTSRANGE {} {}", slots.0, slots.1);
            wait("entry", || text(&mut world.nodes[first].connect(), &add) == "OK");
            let replicate = format!("CLUSTER REPLICATE {}", world.id(first));
            for node in world.of_shard(shard).skip(1) {
                wait("shard", || text(&mut world.nodes[node].connect(), &replicate) == "OK");
            }
        }
        world.wait_until_whole();
        world
    }

    fn shards(&self) -> usize {
        self.nodes.len() / self.nodes_of_shard
    }

    fn of_shard(&self, shard: usize) -> Range<usize> {
        shard * self.nodes_of_shard..(shard + 1) * self.nodes_of_shard
    }

    fn id(&self, node: usize) -> String {
        text(&mut self.nodes[node].connect(), "CLUSTER MYID").trim_matches('"').to_owned()
    }

    /// Waits until each shard has a primary, all others are in sync, and no slots move.
    #[track_caller]
    fn wait_until_whole(&self) {
        wait("whole shards", || {
            let shards =
                self.etcd.control(&["get", "--prefix", "--print-value-only", "/evenkeel/evenkeel/shards/"]);
            let alive =
                self.etcd.control(&["get", "--prefix", "--print-value-only", "/evenkeel/evenkeel/alive/"]);
            let living: BTreeSet<u64> = alive
                .split("\"incarnation\":")
                .skip(1)
                .filter_map(|rest| rest.split([',', '}']).next()?.parse().ok())
                .collect();
            let in_sync: BTreeSet<u64> = shards
                .split("\"incarnations\":{")
                .skip(1)
                .filter_map(|rest| rest.split('}').next())
                .flat_map(|all| all.split(','))
                .filter_map(|one| one.rsplit(':').next()?.parse().ok())
                .collect();
            living.len() == self.nodes.len()
                && living == in_sync
                && (0..self.shards()).all(|shard| self.primary(shard).is_some())
                && !shards.contains("leftover")
                && self.nodes.iter().all(|node| moving(&mut node.connect()) == Some(0))
        });
    }

    fn primary(&self, shard: usize) -> Option<usize> {
        self.of_shard(shard).find(|node| {
            let mut client = self.nodes[*node].connect();
            text(&mut client, "ROLE").contains("master") && field(&mut client, "cluster_state") == "ok"
        })
    }

    fn node_at(&self, port: u16) -> Option<usize> {
        self.ways.iter().position(|way| way.port() == port)
    }

    fn connect(&self, node: usize) -> Option<Client> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.ways[node].port()));
        let mut client = Client::connect(address).ok()?;
        client.set_reply_timeout(REPLY_MAX);
        Some(client)
    }
}

/// Slots that leave a node, or arrive at it.
fn moving(client: &mut Client) -> Option<u64> {
    let of = |client: &mut Client, name: &str| field(client, name).parse::<u64>().ok();
    Some(of(client, "cluster_slots_leaving")? + of(client, "cluster_slots_arriving")?)
}

fn port_of(endpoint: &str) -> u16 {
    endpoint.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("an endpoint has a port")
}

/// What clients did and saw in a round.
#[derive(Default)]
struct History {
    registers: BTreeMap<String, Vec<Operation>>,
    /// Elements of the list and of the set, by whether their reply came.
    appended: BTreeMap<String, bool>,
    added: BTreeMap<String, bool>,
}

/// The end of a command.
enum Reply {
    Done(String),
    /// An error that says that the command did not run.
    NotRun,
    Unknown,
}

/// A client that follows redirections.
struct Follower<'w> {
    world: &'w World,
    node: usize,
    client: Option<Client>,
}

impl<'w> Follower<'w> {
    fn new(world: &'w World, node: usize) -> Follower<'w> {
        Follower { world, node, client: None }
    }

    fn call(&mut self, words: &[&str]) -> Reply {
        if self.client.is_none() {
            self.client = self.world.connect(self.node);
        }
        let Some(client) = &mut self.client else {
            self.go_on();
            return Reply::NotRun;
        };
        let Ok(reply) = client.try_call(words) else {
            self.go_on();
            return Reply::Unknown;
        };
        let reply = reply.to_string();
        let Some(error) = reply.strip_prefix('-') else { return Reply::Done(reply) };
        let port = error.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        match (error.starts_with("MOVED "), port.and_then(|port| self.world.node_at(port))) {
            (true, Some(node)) => self.go_to(node),
            _ => {
                let is_refusal = ["MOVED ", "CLUSTERDOWN ", "TRYAGAIN ", "LOADING ", "MASTERDOWN "]
                    .iter()
                    .any(|code| error.starts_with(code));
                assert!(is_refusal, "an error that no fault explains: {reply}");
                self.go_on();
            }
        }
        Reply::NotRun
    }

    fn go_on(&mut self) {
        self.go_to((self.node + 1) % self.world.nodes.len());
    }

    fn go_to(&mut self, node: usize) {
        (self.node, self.client) = (node, None);
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Reads and writes until `stops`.
fn work(
    world: &World,
    (round, number): (usize, u64),
    (began, values): (Instant, &AtomicU64),
    history: &Mutex<History>,
    stops: &AtomicBool,
) {
    let mut random = Random::new(number);
    let mut follower = Follower::new(world, number as usize % world.nodes.len());
    let now = || began.elapsed().as_nanos() as u64 + 1;
    while !stops.load(Relaxed) {
        std::thread::sleep(THINK);
        let (value, begun) = (values.fetch_add(1, Relaxed), now());
        let element = value.to_string();
        let key = format!("register:{round}:{}", random.below(KEYS));
        match random.below(10) {
            0..4 => {
                let reply = follower.call(&["SET", &key, &element]);
                let ended = match reply {
                    Reply::NotRun => continue,
                    Reply::Done(_) => Some(now()),
                    Reply::Unknown => None,
                };
                record(history, key, Operation { begun, ended, kind: Kind::Write(value) });
            }
            4..8 => {
                // What a read without a reply saw is nobody's matter.
                if let Reply::Done(found) = follower.call(&["GET", &key]) {
                    let found = found.trim_matches('"').parse().ok();
                    record(history, key, Operation { begun, ended: Some(now()), kind: Kind::Read(found) });
                }
            }
            8 => {
                let reply = follower.call(&["RPUSH", &format!("list:{round}"), &element]);
                let is_done = matches!(reply, Reply::Done(_));
                if !matches!(reply, Reply::NotRun) {
                    history.lock().expect("no client panics").appended.insert(element, is_done);
                }
            }
            _ => {
                let reply = follower.call(&["SADD", &format!("set:{round}"), &element]);
                let is_done = matches!(reply, Reply::Done(_));
                if !matches!(reply, Reply::NotRun) {
                    history.lock().expect("no client panics").added.insert(element, is_done);
                }
            }
        }
    }
}

fn record(history: &Mutex<History>, key: String, operation: Operation) {
    history.lock().expect("no client panics").registers.entry(key).or_default().push(operation);
}

/// Lets a node or its network fail for a while. Returns the name of the fault, and the node that ends in
/// order, if one does.
fn fail(world: &World, random: &mut Random) -> (String, Option<usize>) {
    let shard = random.below(world.shards());
    let nodes = world.of_shard(shard);
    let primary = world.primary(shard).unwrap_or(nodes.start);
    let node = if random.chance(70) { primary } else { nodes.start + random.below(nodes.len()) };
    let who = if node == primary { "the primary" } else { "a replica" };
    let short = Duration::from_millis(100 + random.below(700) as u64);
    let long = Duration::from_millis(LEASE * 1_000 + 200 + random.below(1_300) as u64);
    let time = if random.chance(50) { short } else { long };
    let nap = || std::thread::sleep(time);
    let slow = Duration::from_millis(5 + random.below(150) as u64);
    let what = match random.below(10) {
        0 | 1 => {
            world.nodes[node].signal(libc::SIGKILL);
            nap();
            format!("{who} was killed")
        }
        2 => {
            world.nodes[node].signal(libc::SIGSTOP);
            nap();
            world.nodes[node].signal(libc::SIGCONT);
            format!("{who} was stopped for {time:?}")
        }
        3 => {
            world.to_etcd[node].iter().for_each(Relay::freeze);
            nap();
            world.to_etcd[node].iter().for_each(Relay::heal);
            format!("{who} did not reach etcd for {time:?}")
        }
        4 => {
            world.ways[node].freeze();
            nap();
            world.ways[node].heal();
            format!("nobody reached {who} for {time:?}")
        }
        5 => {
            world.ways[node].cut();
            world.to_etcd[node].iter().for_each(Relay::cut);
            nap();
            world.ways[node].heal();
            world.to_etcd[node].iter().for_each(Relay::heal);
            format!("{who} was cut off for {time:?}")
        }
        6 => {
            world.ways[node].delay(slow);
            nap();
            world.ways[node].heal();
            format!("what went to {who} was late by {slow:?}, for {time:?}")
        }
        7 => {
            world.to_etcd[node].iter().for_each(|relay| relay.delay(slow));
            nap();
            world.to_etcd[node].iter().for_each(Relay::heal);
            format!("{who} had a slow way to etcd, {slow:?}, for {time:?}")
        }
        8 => {
            let heir = nodes.clone().find(|other| *other != primary).expect("there are several");
            let mut client = world.nodes[heir].connect();
            let reply = text(&mut client, "CLUSTER FAILOVER");
            nap();
            format!("a planned change: {reply}")
        }
        _ => {
            world.nodes[node].signal(libc::SIGTERM);
            nap();
            return (format!("{who} ended"), Some(node));
        }
    };
    (what, None)
}

/// A primary as CLUSTER NODES shows it.
struct Primary {
    id: String,
    node: usize,
    ranges: Vec<(u64, u64)>,
}

fn primaries(world: &World, client: &mut Client) -> Vec<Primary> {
    let shown = client.try_call(&["CLUSTER", "NODES"]).map(|reply| reply.to_string()).unwrap_or_default();
    let lines = shown.trim_matches('"').split("\\n").filter(|line| line.contains("master"));
    let primary = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let port = words.get(1)?.split(['@', ',']).next()?.rsplit_once(':')?.1.parse().ok()?;
        let range = |word: &&str| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        let ranges = words.get(8..).unwrap_or_default().iter().filter_map(range).collect();
        Some(Primary { id: (*words[0]).to_owned(), node: world.node_at(port)?, ranges })
    };
    lines.filter_map(primary).collect()
}

/// Moves slots of a round's keys, and their neighbours, from shard to shard until `stops`. Returns the number
/// of moves that ended well.
fn move_slots(world: &World, round: usize, number: u64, stops: &AtomicBool) -> usize {
    let (mut random, mut moved) = (Random::new(number), 0);
    while !stops.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(random.below(60) as u64));
        let key = match random.below(KEYS + 2) {
            0 => format!("list:{round}"),
            1 => format!("set:{round}"),
            register => format!("register:{round}:{}", register - 2),
        };
        let Some(mut client) = world.connect(random.below(world.nodes.len())) else { continue };
        let Ok(slot) = client.try_call(&["CLUSTER", "KEYSLOT", &key]) else { continue };
        let slot = slot.as_int().expect("a number") as u64;
        let primaries = primaries(world, &mut client);
        let range_of =
            |one: &Primary| one.ranges.iter().copied().find(|(first, last)| (*first..=*last).contains(&slot));
        let Some((from, range)) = primaries.iter().find_map(|one| Some((one, range_of(one)?))) else {
            continue;
        };
        let others: Vec<&Primary> = primaries.iter().filter(|one| one.node != from.node).collect();
        if others.is_empty() {
            continue;
        }
        let to = others[random.below(others.len())];
        let around = random.below(1_000) as u64;
        let (first, last) = (slot.saturating_sub(around).max(range.0), (slot + around).min(range.1));
        let Some(mut client) = world.connect(from.node) else { continue };
        let line = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {first} {last} NODE {}", to.id);
        let words: Vec<&str> = line.split(' ').collect();
        if client.try_call(&words).is_ok_and(|reply| reply.to_string() == "OK") {
            moved += usize::from(is_moved(&mut client, stops));
        }
    }
    moved
}

/// Waits for the end of the newest move of a node, and returns whether all slots have moved.
fn is_moved(source: &mut Client, stops: &AtomicBool) -> bool {
    while !stops.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(10));
        let Ok(moves) = source.try_call(&["CLUSTER", "GETSLOTMIGRATIONS"]) else { return false };
        let moves = moves.to_string();
        let state = moves.split("\"state\", ").nth(1).and_then(|rest| rest.split('"').nth(1));
        match state {
            Some("success") => return true,
            Some("failed" | "cancelled") | None => return false,
            Some(_) => {}
        }
    }
    false
}

/// Runs rounds of faults, and checks the history of each. Returns the number of moves that ended well.
fn soak(mut world: World) -> usize {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let rounds = std::env::var("EVENKEEL_CLUSTER_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let mut random = Random::new(seed);
    let (began, values) = (Instant::now(), AtomicU64::new(1));
    let mut moved = 0;
    for round in 0..rounds.unwrap_or(ROUNDS) {
        let (history, stops) = (Mutex::new(History::default()), AtomicBool::new(false));
        let lost_member = random.chance(20).then(|| random.below(3));
        if let Some(member) = lost_member {
            world.etcd.kill(member);
        }
        let shared = &world;
        let (what, ends) = std::thread::scope(|scope| {
            for number in 0..CLIENTS as u64 {
                let (history, stops, values) = (&history, &stops, &values);
                let number = random.draw() / 16 * 16 + number;
                scope.spawn(move || work(shared, (round, number), (began, values), history, stops));
            }
            let (number, stopped) = (random.draw(), &stops);
            let mover = (shared.shards() > 1)
                .then(|| scope.spawn(move || move_slots(shared, round, number, stopped)));
            std::thread::sleep(Duration::from_millis(300));
            let what = fail(shared, &mut random);
            std::thread::sleep(Duration::from_millis(300));
            stops.store(true, Relaxed);
            moved += mover.map_or(0, |mover| mover.join().expect("it does not panic"));
            what
        });
        println!("round {round}: {what}; member of etcd that was killed: {lost_member:?}; {moved} moves");
        if let Some(member) = lost_member {
            world.etcd.run(member);
        }
        for (number, node) in world.nodes.iter_mut().enumerate() {
            if ends == Some(number) {
                node.stop(); // it may be about to hand its shard over
            }
            if !node.is_alive() {
                node.start_again();
            }
        }
        world.wait_until_whole();
        let history = history.into_inner().expect("no client panics");
        check(&world, round, history, began);
    }
    moved
}

#[test]
fn histories_are_linearizable() {
    if is_missing() {
        return;
    }
    assert_eq!(soak(World::start(1, 3, "in-sync")), 0, "there is no other shard");
}

/// Three shards of two nodes; slots move from shard to shard all the time, and most faults meet a move.
#[test]
fn histories_are_linearizable_while_slots_move() {
    if is_missing() {
        return;
    }
    assert!(soak(World::start(3, 2, "in-sync")) > 0, "slots have moved");
}

/// It serves until its fence, and its writes reach nobody.
#[test]
fn a_deposed_primary_keeps_what_nobody_acknowledged() {
    if is_missing() {
        return;
    }
    let world = World::start(1, 3, "0");
    let old = world.primary(0).expect("it is whole");
    let mut client = world.nodes[old].connect();
    assert_eq!(text(&mut client, "SET known v"), "OK");
    assert_eq!(text(&mut client, "WAIT 2 5000"), ":2");
    world.ways[old].freeze();
    world.to_etcd[old].iter().for_each(Relay::freeze);
    assert_eq!(text(&mut client, "SET lost v"), "OK");
    wait("promotion", || {
        (0..3).any(|node| node != old && text(&mut world.nodes[node].connect(), "ROLE").contains("master"))
    });
    assert_eq!(text(&mut client, "SET late v"), "-CLUSTERDOWN The cluster is down");
    world.ways[old].heal();
    world.to_etcd[old].iter().for_each(Relay::heal);
    world.wait_until_whole();
    assert_eq!(text(&mut client, "DBSIZE"), ":1");
    let is_kept = |entry: &std::fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("unacknowledged-") && name.ends_with(".aof")
    };
    let files = std::fs::read_dir(world.nodes[old].folder()).expect("the folder is there");
    let kept = files.flatten().find(is_kept).expect("the writes are kept");
    let commands = std::fs::read_to_string(kept.path()).expect("it is text");
    assert!(commands.contains("lost") && !commands.contains("known"), "{commands}");
    assert!(world.nodes[old].log().contains("that the new primary lacks"));
}

/// Checks a round's history together with the data that the primary has now.
fn check(world: &World, round: usize, history: History, began: Instant) {
    let mut follower = Follower::new(world, 0);
    let mut ask = |words: &[&str]| {
        let mut tries = 0..1_000;
        let reply = tries.find_map(|_| match follower.call(words) {
            Reply::Done(reply) => Some(reply),
            Reply::NotRun | Reply::Unknown => None,
        });
        reply.unwrap_or_else(|| panic!("no node runs {words:?}"))
    };
    let mut count = 0;
    for (key, mut operations) in history.registers {
        let now = || began.elapsed().as_nanos() as u64 + 1;
        let begun = now();
        let found = ask(&["GET", &key]).trim_matches('"').parse().ok();
        let kind = Kind::Read(found);
        operations.push(Operation { begun, ended: Some(now()), kind });
        count += operations.len();
        if let Err(wrong) = registers::check(&operations) {
            panic!("{key}, {} operations: {wrong}", operations.len());
        }
    }
    let elements =
        |reply: String| -> Vec<String> { reply.split('"').skip(1).step_by(2).map(str::to_owned).collect() };
    let list = elements(ask(&["LRANGE", &format!("list:{round}"), "0", "-1"]));
    let set = elements(ask(&["SMEMBERS", &format!("set:{round}")]));
    for (found, known) in [(list, history.appended), (set, history.added)] {
        let distinct: BTreeSet<&String> = found.iter().collect();
        assert_eq!(distinct.len(), found.len(), "an element is there twice");
        let lost: Vec<&String> = known
            .iter()
            .filter(|(one, done)| **done && !distinct.contains(one))
            .map(|(one, _)| one)
            .collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
        assert!(found.iter().all(|one| known.contains_key(one)), "an element that nobody wrote");
    }
    println!("round {round}: {count} operations on registers");
}
