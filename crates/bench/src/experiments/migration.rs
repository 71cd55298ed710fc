//! `migration`: a quarter of the slots of a node moves to another one, first without clients and then while
//! clients write to all slots.
//!
//! Two nodes without replicas; the first owns all slots. Each client waits for its reply, and follows
//! redirections: the time of a request includes them. The clients run before all other threads, where the
//! kernel permits it: on a small machine the longest request is otherwise that of a client which waits for a
//! core, and says nothing about the server. Memory is that of both nodes together, relative to
//! before: what moves is there twice for a while.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Session;
use crate::json::{Json, object};
use crate::load::keys::Random;
use crate::pauses::Pauses;
use crate::proc::PeakMemory;
use crate::servers::{Cluster, ServerKind, ask, ask_within};
use crate::stats::Goal;
use crate::table::Table;
use crate::{interrupt, sys};

/// The longest request beyond the machine's own pauses, in milliseconds: of moving slots, and of the others.
const MOVING_MS_MAX: f64 = 10.0;
const OTHERS_MS_MAX: f64 = 3.0;
/// The rate during the move, relative to before.
const RATE_MIN: f64 = 0.85;
/// Memory in addition to the data that are there twice, relative to before.
const MEMORY_MAX: f64 = 0.02;

/// The slots that move: a quarter.
const MOVING: u16 = 4_096;

/// The longest time for a move, or for filling.
const MOVE_MAX: Duration = Duration::from_secs(600);
/// A client waits so long for a reply.
const REPLY_MAX: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct MigrationArgs {
    /// Megabytes of values on the first node
    #[arg(long, default_value_t = 1_000)]
    megabytes: usize,
    /// Bytes of a value
    #[arg(long, default_value_t = 1_000)]
    size: usize,
    /// Clients, each with a connection to both nodes
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Seconds of load before the move
    #[arg(long, default_value_t = 3)]
    before: u64,
}

/// What the clients have seen.
#[derive(Clone, Copy, Default)]
struct Seen {
    requests: u64,
    /// The longest request on a moving slot, and on another one.
    moving: Duration,
    others: Duration,
}

struct Measured {
    kind: ServerKind,
    idle: Duration,
    loaded: Duration,
    before: Seen,
    during: Seen,
    rate: f64,
    memory: f64,
}

pub(crate) fn migration(session: &mut Session, args: &MigrationArgs) -> Result<()> {
    let pauses = Pauses::observe(Duration::from_secs(3))?;
    let runs_first = std::thread::spawn(sys::run_before_others).join().expect("it does not panic");
    let mut all = Vec::new();
    for kind in [ServerKind::Evenkeel, ServerKind::Valkey] {
        let Some(program) = session.program(kind) else { continue };
        let cluster = Cluster::pair(program)?;
        all.push(measure(&cluster, kind, args)?);
    }
    let mut table =
        Table::new(&["", "idle, s", "loaded, s", "rate", "moving, ms", "others, ms", "before, ms", "memory"]);
    let (ms, mut rows) = (|time: Duration| time.as_secs_f64() * 1e3, Vec::new());
    for one in &all {
        let before = ms(one.before.moving.max(one.before.others));
        table.row(vec![
            one.kind.name().to_owned(),
            format!("{:.2}", one.idle.as_secs_f64()),
            format!("{:.2}", one.loaded.as_secs_f64()),
            format!("{:.2}", one.rate),
            format!("{:.1}", ms(one.during.moving)),
            format!("{:.1}", ms(one.during.others)),
            format!("{before:.1}"),
            format!("{:.2}", one.memory),
        ]);
        rows.push(object(vec![
            ("server", one.kind.name().into()),
            ("idle_s", one.idle.as_secs_f64().into()),
            ("loaded_s", one.loaded.as_secs_f64().into()),
            ("rate_ratio", one.rate.into()),
            ("moving_longest_ms", ms(one.during.moving).into()),
            ("others_longest_ms", ms(one.during.others).into()),
            ("before_longest_ms", before.into()),
            ("memory_ratio", one.memory.into()),
        ]));
    }
    if let Some(ours) = all.iter().find(|one| one.kind == ServerKind::Evenkeel) {
        let alone = pauses.longest_us() / 1e3;
        let beyond = |longest: Duration| (ms(longest) - alone).max(0.0);
        let mut judge = |what: &str, goal, value| _ = session.judge(what.to_owned(), goal, value);
        let what = "longest request on moving slots, beyond the machine's pauses, ms";
        judge(what, Goal::AtMost(MOVING_MS_MAX), beyond(ours.during.moving));
        let what = "longest request on other slots, beyond the machine's pauses, ms";
        judge(what, Goal::AtMost(OTHERS_MS_MAX), beyond(ours.during.others));
        judge("rate during a move, to before", Goal::AtLeast(RATE_MIN), ours.rate);
        let quarter = f64::from(MOVING) / 16_384.0;
        judge("memory beyond the data that move", Goal::AtMost(MEMORY_MAX), ours.memory - 1.0 - quarter);
        if let Some(peer) = all.iter().find(|one| one.kind == ServerKind::Valkey) {
            let ratio = ours.loaded.as_secs_f64() / peer.idle.as_secs_f64();
            judge("time of a move under load, to Valkey's without load", Goal::AtMost(1.0), ratio);
        }
    }
    let title = format!(
        "migration: {MOVING} of 16384 slots of {} MB in values of {} bytes; {} clients{}; {}",
        args.megabytes,
        args.size,
        args.clients,
        runs_first.map_or_else(|error| format!(", which wait for cores ({error})"), |()| String::new()),
        pauses.words()
    );
    session.report("migration", &title, &table, vec![("servers", Json::Array(rows))]);
    Ok(())
}

fn measure(cluster: &Cluster, kind: ServerKind, args: &MigrationArgs) -> Result<Measured> {
    let keys = (args.megabytes * 1_000_000 / args.size).max(1);
    let populate = ["DEBUG", "POPULATE", &keys.to_string(), "key", &args.size.to_string()];
    let reply = ask_within(cluster.nodes[0].address, &populate, MOVE_MAX)?;
    if !reply.starts_with("+OK") {
        bail!("DEBUG POPULATE: {}", reply.trim());
    }
    let idle = move_slots(cluster, 0)?;
    wait_for_keys(cluster, 0)?;
    move_slots(cluster, 1)?;
    wait_for_keys(cluster, 1)?;
    let resident = memory(cluster).look();
    let before = under_load(cluster, args, keys, || {
        let began = Instant::now();
        interrupt::sleep(Duration::from_secs(args.before))?;
        Ok((began.elapsed(), 0))
    })?;
    let during = under_load(cluster, args, keys, || {
        let mut memory = memory(cluster);
        let took = watch_move(cluster, 0, || _ = memory.look())?;
        Ok((took, memory.look()))
    })?;
    Ok(Measured {
        kind,
        idle,
        loaded: during.took,
        before: before.seen,
        during: during.seen,
        rate: during.rate() / before.rate(),
        memory: during.peak as f64 / resident as f64,
    })
}

/// The memory of both nodes.
fn memory(cluster: &Cluster) -> PeakMemory {
    PeakMemory::of(cluster.nodes.iter().map(|node| node.pid()))
}

fn move_slots(cluster: &Cluster, from: usize) -> Result<Duration> {
    watch_move(cluster, from, || ())
}

/// Moves the slots to the other node, and calls `look` until that is done.
fn watch_move(cluster: &Cluster, from: usize, mut look: impl FnMut()) -> Result<Duration> {
    let (source, target) = (cluster.nodes[from].address, cluster.nodes[1 - from].address);
    let id = ask(target, &["CLUSTER", "MYID"])?;
    let id = id.lines().nth(1).context("CLUSTER MYID has an identity")?.to_owned();
    let last = (MOVING - 1).to_string();
    let began = Instant::now();
    let reply = ask(source, &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", "0", &last, "NODE", &id])?;
    if !reply.starts_with("+OK") {
        bail!("CLUSTER MIGRATESLOTS: {}", reply.trim());
    }
    loop {
        let moves = ask(source, &["CLUSTER", "GETSLOTMIGRATIONS"])?;
        // The newest comes first.
        let state = moves.split("state\r\n").nth(1).and_then(|rest| rest.lines().nth(1)).unwrap_or_default();
        match state {
            "success" => return Ok(began.elapsed()),
            "failed" | "cancelled" => bail!("the move has ended: {moves}"),
            _ if began.elapsed() > MOVE_MAX => bail!("the move takes longer than {MOVE_MAX:?}"),
            _ => {}
        }
        look();
        interrupt::sleep(POLL_INTERVAL)?;
    }
}

/// Waits until the source has removed its copy.
fn wait_for_keys(cluster: &Cluster, source: usize) -> Result<()> {
    let began = Instant::now();
    loop {
        let count = ask(cluster.nodes[source].address, &["CLUSTER", "COUNTKEYSINSLOT", "4095"])?;
        let first = ask(cluster.nodes[source].address, &["CLUSTER", "COUNTKEYSINSLOT", "0"])?;
        if count.trim() == ":0" && first.trim() == ":0" {
            return interrupt::sleep(Duration::from_secs(1));
        }
        if began.elapsed() > MOVE_MAX {
            bail!("the source keeps its copy");
        }
        interrupt::sleep(POLL_INTERVAL)?;
    }
}

/// What clients have seen during an event, its time, and the largest memory that it has seen.
struct Loaded {
    seen: Seen,
    took: Duration,
    peak: u64,
}

impl Loaded {
    /// Requests in a second.
    fn rate(&self) -> f64 {
        self.seen.requests as f64 / self.took.as_secs_f64()
    }
}

/// Calls `event` while clients write.
fn under_load(
    cluster: &Cluster,
    args: &MigrationArgs,
    keys: usize,
    event: impl FnOnce() -> Result<(Duration, u64)>,
) -> Result<Loaded> {
    let nodes: Vec<SocketAddr> = cluster.nodes.iter().map(|node| node.address).collect();
    let stops = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..args.clients)
            .map(|number| {
                let (nodes, stops, size) = (&nodes, &stops, args.size);
                scope.spawn(move || write(nodes, keys, size, number as u64, stops))
            })
            .collect();
        let ended = event();
        stops.store(true, Relaxed);
        let mut all = Seen::default();
        for client in clients {
            let seen = client.join().expect("a client does not panic")?;
            all.requests += seen.requests;
            all.moving = all.moving.max(seen.moving);
            all.others = all.others.max(seen.others);
        }
        let (took, peak) = ended?;
        Ok(Loaded { seen: all, took, peak })
    })
}

/// Writes random keys until `stops`.
fn write(nodes: &[SocketAddr], keys: usize, size: usize, seed: u64, stops: &AtomicBool) -> Result<Seen> {
    let mut connections = Vec::new();
    for node in nodes {
        let stream = TcpStream::connect_timeout(node, REPLY_MAX)?;
        stream.set_read_timeout(Some(REPLY_MAX))?;
        stream.set_nodelay(true)?;
        connections.push(stream);
    }
    let _ = sys::run_before_others(); // the report says so if the kernel refuses it
    let (mut seen, mut random, value) = (Seen::default(), Random::new(seed + 1), vec![b'v'; size]);
    // Where the moving slots are; the others stay at the first node.
    let mut owner = 0;
    while !stops.load(Relaxed) {
        let key = format!("key:{}", random.below(keys as u64));
        let is_moving = slot(key.as_bytes()) < MOVING;
        let mut request = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${size}\r\n", key.len()).into_bytes();
        request.extend_from_slice(&value);
        request.extend_from_slice(b"\r\n");
        let began = Instant::now();
        loop {
            let reply = exchange(&mut connections[if is_moving { owner } else { 0 }], &request)?;
            if reply.starts_with("+OK") {
                break;
            }
            let port = reply.trim().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
            let to = port.map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
            let to = to.filter(|_| reply.starts_with("-MOVED"));
            match to.and_then(|to| nodes.iter().position(|one| *one == to)) {
                Some(node) if is_moving => owner = node,
                _ => bail!("SET: {}", reply.trim()),
            }
        }
        let took = began.elapsed();
        let longest = if is_moving { &mut seen.moving } else { &mut seen.others };
        *longest = took.max(*longest);
        seen.requests += 1;
    }
    Ok(seen)
}

fn exchange(stream: &mut TcpStream, request: &[u8]) -> Result<String> {
    stream.write_all(request)?;
    let (mut reply, mut piece) = (Vec::new(), [0; 512]);
    while !reply.ends_with(b"\n") {
        match stream.read(&mut piece)? {
            0 => bail!("the server closed the connection"),
            got => reply.extend_from_slice(&piece[..got]),
        }
    }
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

/// The slot of a key without a tag: CRC16 (XMODEM), modulo 16,384.
fn slot(key: &[u8]) -> u16 {
    let mut crc = 0u16;
    for byte in key {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 };
        }
    }
    crc % 16_384
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!([&b"foo"[..], b"a", b"b", b"1"].map(slot), [12_182, 15_495, 3_300, 9_842]);
    }
}
