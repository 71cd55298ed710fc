//! `failover`: the time for which a shard serves no writes, when its primary is killed, and when an operator
//! makes the replica the primary.
//!
//! Three shards with a replica each. A client writes to one shard, waits a millisecond after each reply, and
//! follows redirections. The time without service is the longest time between two replies. Between two
//! fail-overs, the killed node comes back and is synchronized.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::Session;
use crate::interrupt;
use crate::json::{Json, object};
use crate::servers::{Cluster, ServerKind, ask};
use crate::stats::{Goal, Spread};
use crate::table::Table;

/// The longest time without service, in seconds: with the default lease, and with a lease of a second.
const DEFAULT_S_MAX: f64 = 4.0;
const SHORT_S_MAX: f64 = 2.5;
/// The same for a planned change, in milliseconds.
const PLANNED_MS_MAX: f64 = 100.0;

/// A key of the first shard.
const KEY: &str = "bar";

/// The client waits so long for a reply, and after one.
const REPLY_MAX: Duration = Duration::from_millis(500);
const THINK: Duration = Duration::from_millis(1);

/// Time of service before and after a fail-over.
const MARGIN: Duration = Duration::from_millis(500);

/// The longest time for a fail-over.
const FAILOVER_MAX: Duration = Duration::from_secs(90);

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct FailoverArgs {
    /// Number of killed primaries, and of planned changes
    #[arg(long, default_value_t = 50)]
    times: usize,
    /// Evenkeel's cluster-lease, in seconds
    #[arg(long, default_value_t = 3)]
    lease: u64,
    /// Valkey's cluster-node-timeout, in milliseconds
    #[arg(long, default_value_t = 15_000)]
    node_timeout: u64,
}

/// The times without service of a server.
struct Measured {
    kind: ServerKind,
    killed: Vec<f64>,
    planned: Vec<f64>,
}

pub(crate) fn failover(session: &mut Session, args: &FailoverArgs) -> Result<()> {
    let mut all = Vec::new();
    for kind in [ServerKind::Evenkeel, ServerKind::Valkey] {
        let Some(program) = session.program(kind) else { continue };
        let patience = match kind {
            ServerKind::Evenkeel => Duration::from_secs(args.lease),
            _ => Duration::from_millis(args.node_timeout),
        };
        let mut cluster = Cluster::start(program, patience)?;
        all.push(measure(&mut cluster, kind, args.times)?);
    }
    let mut table = Table::new(&["", "killed, s", "planned, ms"]);
    let mut rows = Vec::new();
    for Measured { kind, killed, planned } in &all {
        let (Some(killed), Some(planned)) =
            (Spread::of(killed.iter().copied()), Spread::of(planned.iter().copied()))
        else {
            bail!("no fail-over was measured");
        };
        table.row(vec![
            kind.name().to_owned(),
            format!("{:.2} ({:.2}..{:.2})", killed.median, killed.min, killed.max),
            planned.to_one_decimal(),
        ]);
        rows.push(object(vec![
            ("server", kind.name().into()),
            ("killed_s_median", killed.median.into()),
            ("killed_s_max", killed.max.into()),
            ("planned_ms_median", planned.median.into()),
            ("planned_ms_max", planned.max.into()),
        ]));
        if *kind == ServerKind::Evenkeel {
            let most = if args.lease <= 1 { SHORT_S_MAX } else { DEFAULT_S_MAX };
            let what = format!("longest time without service after a kill, lease {} s, s", args.lease);
            session.judge(what, Goal::AtMost(most), killed.max);
            let what = "longest time without service in a planned change, ms".into();
            session.judge(what, Goal::AtMost(PLANNED_MS_MAX), planned.max);
        }
    }
    let title = format!(
        "failover: time without service, {} kills and {} planned changes; cluster-lease {} s, \
         cluster-node-timeout {} ms",
        args.times, args.times, args.lease, args.node_timeout
    );
    session.report("failover", &title, &table, vec![("servers", Json::Array(rows))]);
    Ok(())
}

fn measure(cluster: &mut Cluster, kind: ServerKind, times: usize) -> Result<Measured> {
    let (mut killed, mut planned) = (Vec::new(), Vec::new());
    for _ in 0..times {
        let [one, other] = Cluster::nodes_of(0);
        let Some(primary) = cluster.primary(0) else { bail!("the shard has no primary") };
        let nodes: Vec<SocketAddr> = cluster.nodes.iter().map(|node| node.address).collect();
        let gap = without_service(&nodes, primary, || {
            cluster.nodes[primary].kill();
            Ok(())
        })?;
        killed.push(gap.as_secs_f64());
        cluster.nodes[primary].restart(&[])?;
        cluster.wait_until_ready(0)?;
        let Some(now) = cluster.primary(0) else { bail!("the shard has no primary") };
        let replica = nodes[if now == one { other } else { one }];
        let gap = without_service(&nodes, now, || {
            let reply = ask(replica, &["CLUSTER", "FAILOVER"])?;
            if !reply.starts_with("+OK") {
                bail!("CLUSTER FAILOVER: {}", reply.trim());
            }
            Ok(())
        })?;
        planned.push(gap.as_secs_f64() * 1e3);
        cluster.wait_until_ready(0)?;
        interrupt::check()?;
    }
    Ok(Measured { kind, killed, planned })
}

/// The longest time between two replies to writes, from before an event until another node serves.
fn without_service(
    nodes: &[SocketAddr],
    primary: usize,
    event: impl FnOnce() -> Result<()>,
) -> Result<Duration> {
    let (stops, seen) = (AtomicBool::new(false), Mutex::new(Seen { node: primary, longest: Duration::ZERO }));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(nodes, primary, &seen, &stops));
        let ended = (|| {
            interrupt::sleep(MARGIN)?;
            event()?;
            let until = Instant::now() + FAILOVER_MAX;
            while seen.lock().expect("the writer does not panic").node == primary {
                if Instant::now() > until {
                    bail!("no other node served within {FAILOVER_MAX:?}");
                }
                interrupt::sleep(Duration::from_millis(10))?;
            }
            interrupt::sleep(MARGIN)
        })();
        stops.store(true, Relaxed);
        writer.join().expect("the writer does not panic");
        ended
    })?;
    let longest = seen.lock().expect("the writer has ended").longest;
    Ok(longest)
}

/// What the writer has seen.
struct Seen {
    /// The node that served the last write.
    node: usize,
    longest: Duration,
}

fn write(nodes: &[SocketAddr], first: usize, seen: &Mutex<Seen>, stops: &AtomicBool) {
    let (mut node, mut connection, mut last) = (first, None, Instant::now());
    while !stops.load(Relaxed) {
        let reply = set(&mut connection, nodes[node]);
        match reply.as_deref() {
            Some(reply) if reply.starts_with("+OK") => {
                let mut seen = seen.lock().expect("the main thread does not panic");
                (seen.node, seen.longest) = (node, seen.longest.max(last.elapsed()));
                last = Instant::now();
                std::thread::sleep(THINK);
                continue;
            }
            Some(reply) => {
                let port = reply.trim().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
                let to = port.map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
                let moved = to.filter(|_| reply.starts_with("-MOVED"));
                node = moved.and_then(|to| nodes.iter().position(|one| *one == to)).unwrap_or(node);
            }
            None => node = (node + 1) % nodes.len(),
        }
        connection = None;
        std::thread::sleep(THINK);
    }
}

/// Writes the key. `None`: there is no reply.
fn set(connection: &mut Option<TcpStream>, node: SocketAddr) -> Option<String> {
    if connection.is_none() {
        let stream = TcpStream::connect_timeout(&node, REPLY_MAX).ok()?;
        stream.set_read_timeout(Some(REPLY_MAX)).ok()?;
        stream.set_nodelay(true).ok()?;
        *connection = Some(stream);
    }
    let stream = connection.as_mut()?;
    stream.write_all(format!("SET {KEY} v\r\n").as_bytes()).ok()?;
    let (mut reply, mut piece) = (Vec::new(), [0; 512]);
    while !reply.ends_with(b"\n") {
        match stream.read(&mut piece) {
            Ok(got) if got > 0 => reply.extend_from_slice(&piece[..got]),
            _ => return None,
        }
    }
    String::from_utf8(reply).ok()
}
