//! `replica`: what replicas cost their primary.
//!
//! Each server runs several times: alone, with a replica that takes the stream and drops it, with three such, and with a
//! real one, which is the same program; the floor alone and with one that drops. What the second takes more per command in
//! the same round is what the replica costs: the CPU of the whole process, and that of its busiest thread, which is the one
//! that serves the clients. The replicas share the load's cores, so the rates say less than the CPU.
//!
//! Then the lag: how long after its reply a message that is published on the primary comes out of the real replica, whose
//! place in the stream is behind all writes before it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::lanes::{self, Lane, Traffic};
use super::series::Series;
use super::sink::Sink;
use super::{COST_HEAD, Session, WARM_UP};
use crate::interrupt;
use crate::json::{Json, object};
use crate::load::keys::KeyRange;
use crate::peers::{Kind, Launch, Server, ask};
use crate::promises::Promise;
use crate::stats::Goal;
use crate::table::{Table, time_us};

/// What one replica may add to a SET, in CPU microseconds: to the whole process, and to the thread that serves.
const ONE_ADDS_US_MAX: f64 = 0.25;
const ONE_ADDS_TO_SERVING_US_MAX: f64 = 0.05;
const THREE_ADD_US_MAX: f64 = 0.6;
const RATE_MIN: f64 = 0.93;
/// p99 of the lag of a real replica.
const LAG_US_MAX: f64 = 10_000.0;
const KEYS: u64 = 100_000;
const VALUE_SIZE: usize = 500;
const CLIENTS: usize = 50;
/// Longest that a real replica may take to have everything.
const SYNC_TIME_MAX: Duration = Duration::from_secs(60);
/// A message is published this often.
const PUBLISH_EVERY: Duration = Duration::from_millis(5);
const SINKS: [usize; 3] = [0, 1, 3];

pub(super) fn estimate(session: &Session) -> Duration {
    session.time_for(session.peers.len() * ((SINKS.len() + 1) * 2 * session.rounds + 1))
        + Duration::from_secs(30)
}

/// A server's lanes, in this order: one for each number of sinks, and the one with a real replica.
struct Group {
    lanes: Vec<Lane>,
    /// The floor has none.
    real: Option<Server>,
    /// They take their streams as long as they are there.
    sinks: Vec<Sink>,
}

pub(crate) fn replica(session: &mut Session) -> Result<()> {
    let kinds = [Kind::Valkey, Kind::Evenkeel, Kind::Redis, Kind::Floor];
    let kinds: Vec<Kind> = kinds.into_iter().filter(|kind| session.peer(*kind).is_some()).collect();
    let groups = kinds.iter().map(|kind| start(session, *kind)).collect::<Result<Vec<Group>>>()?;
    let (mut lanes, mut rest) = (Vec::new(), Vec::new());
    for Group { lanes: own, real, sinks } in groups {
        lanes.extend(own);
        rest.push((real, sinks));
    }
    for pipeline in [16, 1] {
        cost(session, &lanes, pipeline)?;
    }
    let reals: Vec<SocketAddr> =
        rest.iter().filter_map(|(real, _)| real.as_ref()).map(|real| real.address).collect();
    lag(session, &lanes, &reals)?;
    if rest.iter().flat_map(|(_, sinks)| sinks).any(Sink::is_cut_off) {
        bail!("a replica was cut off");
    }
    for lane in lanes.chunk_by(|a, b| a.kind == b.kind).filter_map(|own| own.get(SINKS.len())) {
        let info = ask(lane.server.address, &["INFO", "replication"])?;
        if !info.contains("connected_slaves:1\r\n") {
            bail!("{}: a replica was lost: {info}", lane.name);
        }
    }
    Ok(())
}

fn start(session: &Session, kind: Kind) -> Result<Group> {
    let peer = session.peer(kind).expect("it was found");
    let launch = |cpus: &[usize]| Launch { cpus: cpus.to_vec(), threads: 1, ..Launch::default() };
    let (mut lanes, mut sinks) = (Vec::new(), Vec::new());
    let lane = |name: String| -> Result<Lane> {
        let lane = Lane::start(peer, &name, &launch(&session.server_cpus))?;
        if kind != Kind::Floor {
            lane.set("repl-diskless-sync-delay", "0")?;
        }
        lane.fill(KeyRange { first: 0, count: KEYS }, VALUE_SIZE)?;
        Ok(lane)
    };
    let numbers = if kind == Kind::Floor { &SINKS[..2] } else { &SINKS };
    for &number in numbers {
        let suffix = match number {
            0 => String::new(),
            1 => ", 1 replica".to_owned(),
            _ => format!(", {number} replicas"),
        };
        let lane = lane(format!("{}{suffix}", kind.name()))?;
        for _ in 0..number {
            sinks.push(Sink::attach(lane.server.address, &session.load_cpus)?);
        }
        lanes.push(lane);
    }
    if kind == Kind::Floor {
        return Ok(Group { lanes, real: None, sinks });
    }
    let primary = lane(format!("{}, a real one", kind.name()))?;
    let real = Server::start(peer, &launch(&session.load_cpus))?;
    follow(&real, primary.server.address)?;
    lanes.push(primary);
    Ok(Group { lanes, real: Some(real), sinks })
}

/// Makes a server a replica and waits until it has everything.
fn follow(replica: &Server, primary: SocketAddr) -> Result<()> {
    let answer =
        ask(replica.address, &["REPLICAOF", &primary.ip().to_string(), &primary.port().to_string()])?;
    if !answer.starts_with("+OK") {
        bail!("REPLICAOF: {answer}");
    }
    let until = Instant::now() + SYNC_TIME_MAX;
    while !ask(replica.address, &["INFO", "replication"])?.contains("master_link_status:up") {
        if Instant::now() > until {
            bail!("a replica was not there after {SYNC_TIME_MAX:?}");
        }
        interrupt::sleep(Duration::from_millis(50))?;
    }
    Ok(())
}

fn traffic(session: &Session, pipeline: usize) -> Traffic {
    Traffic { pipeline, clients: CLIENTS, keys: KEYS, value_size: VALUE_SIZE, ..Traffic::pinned(session) }
}

fn cost(session: &mut Session, lanes: &[Lane], pipeline: usize) -> Result<()> {
    let all = lanes::rounds(session, lanes, &traffic(session, pipeline))?;
    let mut table = Table::new(&[&["", "requests/s", "to alone"], &COST_HEAD[..]].concat());
    for group in all.chunk_by(|a, b| a.kind == b.kind) {
        let alone = &group[0];
        for (at, series) in group.iter().enumerate() {
            let mut cells = vec![series.name.clone(), series.rate_cell()];
            let busiest = series.spread(|sample| sample.busiest_us).to_string();
            if at == 0 {
                cells.extend([String::new(), series.cpu_cell()]);
                cells.extend([const { String::new() }; 3]);
                cells.extend([busiest, String::new(), String::new(), String::new()]);
                table.row(cells);
                continue;
            }
            let rate = series.ratio_to(alone, |sample| sample.rate);
            let added = series.more_than(alone, |sample| sample.cpu_us);
            let to_serving = series.more_than(alone, |sample| sample.busiest_us);
            // A real replica takes what one that drops everything takes.
            let replicas = SINKS.get(at).copied().unwrap_or(1);
            let is_sink = at < SINKS.len();
            let is_ours = series.kind == Kind::Evenkeel;
            if is_ours && is_sink && replicas == 1 {
                let rate = rate.map_or(f64::NAN, |rate| rate.median);
                session.judge_for(
                    Promise::Replica,
                    format!("rate with a replica, to without, pipeline {pipeline}"),
                    Goal::AtLeast(RATE_MIN),
                    rate,
                );
            }
            let most = if replicas == 1 { ONE_ADDS_US_MAX } else { THREE_ADD_US_MAX };
            // What is promised is promised of one that costs nothing itself.
            let promise = (at == 1).then_some(Promise::Replica);
            let mut judged = |what: &str, most, added| {
                session.added_cells(promise, is_ours, format!("{what}, pipeline {pipeline}"), most, added)
            };
            let whole = judged(&format!("CPU us that {} adds", shown(at)), most, added);
            let serving_most = ONE_ADDS_TO_SERVING_US_MAX * replicas as f64;
            let what = format!("CPU us that {} adds to the serving thread", shown(at));
            let serving = judged(&what, serving_most, to_serving);
            cells.push(rate.map(|rate| rate.to_string()).unwrap_or_default());
            cells.push(series.cpu_cell());
            cells.extend(whole);
            cells.push(busiest);
            cells.extend(serving);
            table.row(cells);
        }
    }
    let title = format!("replica: SET, pipeline {pipeline}, {VALUE_SIZE} B values, {CLIENTS} clients");
    let servers = Json::Array(all.iter().map(Series::to_json).collect());
    session.report("replica", &title, &table, vec![("pipeline", pipeline.into()), ("servers", servers)]);
    Ok(())
}

fn shown(at: usize) -> &'static str {
    match at {
        1 => "a replica",
        2 => "three replicas",
        _ => "a real replica",
    }
}

fn lag(session: &mut Session, lanes: &[Lane], reals: &[SocketAddr]) -> Result<()> {
    let mut table = Table::new(&["", "SET/s", "messages", "lag p50", "p99", "longest", "goal", ""]);
    let mut figures = Vec::new();
    let primaries = lanes.chunk_by(|a, b| a.kind == b.kind).filter_map(|own| own.get(SINKS.len()));
    for (lane, replica) in primaries.zip(reals) {
        let traffic = traffic(session, 16);
        let time = WARM_UP + session.measured;
        let (sample, lags) = std::thread::scope(|scope| {
            let lags = scope.spawn(|| lags(lane.server.address, *replica, time));
            let sample = lanes::measure(session, lane, &traffic);
            (sample, lags.join().expect("it does not panic"))
        });
        let (sample, mut lags) = (sample?, lags?);
        lags.sort_unstable();
        let quantile = |part: f64| lags[((lags.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
        let [p50, p99, longest] = [0.5, 0.99, 1.0].map(quantile);
        let (goal, is_ours) = (Goal::AtMost(LAG_US_MAX), lane.kind == Kind::Evenkeel);
        let verdict = match is_ours {
            true => session.judge("p99 of a replica's lag at full load, us".into(), goal, p99),
            false => String::new(),
        };
        table.row(vec![
            lane.kind.name().to_owned(),
            format!("{:.0}k", sample.rate / 1e3),
            lags.len().to_string(),
            time_us(p50),
            time_us(p99),
            time_us(longest),
            if is_ours { time_us(LAG_US_MAX) } else { String::new() },
            verdict,
        ]);
        figures.push(object(vec![
            ("server", lane.kind.name().into()),
            ("requests_per_s", sample.rate.into()),
            ("lag_us_p50", p50.into()),
            ("lag_us_p99", p99.into()),
            ("lag_us_max", longest.into()),
        ]));
    }
    let title = format!("replica: lag of a real one, SET of {VALUE_SIZE} B, pipeline 16, {CLIENTS} clients");
    session.report("replica", &title, &table, vec![("lags", Json::Array(figures))]);
    Ok(())
}

/// How long after its reply each message comes out of the replica.
fn lags(primary: SocketAddr, replica: SocketAddr, time: Duration) -> Result<Vec<Duration>> {
    const CHANNEL: &str = "evenkeel-bench:lag";
    let connect = |server: SocketAddr| -> Result<TcpStream> {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SYNC_TIME_MAX))?;
        Ok(stream)
    };
    let (mut publisher, mut subscriber) = (connect(primary)?, connect(replica)?);
    let mut piece = [0; 512];
    subscriber.write_all(format!("SUBSCRIBE {CHANNEL}\r\n").as_bytes())?;
    let _confirmed = subscriber.read(&mut piece)?;
    let until = Instant::now() + time;
    let mut lags = Vec::new();
    while Instant::now() < until {
        interrupt::check()?;
        publisher.write_all(format!("PUBLISH {CHANNEL} x\r\n").as_bytes())?;
        let size = publisher.read(&mut piece)?;
        if !piece[..size].starts_with(b":") {
            bail!("PUBLISH: {}", String::from_utf8_lossy(&piece[..size]));
        }
        let answered = Instant::now();
        // One message is under way at a time, and it comes in one piece.
        if subscriber.read(&mut piece).context("a message never came out of the replica")? == 0 {
            bail!("the replica has closed the connection");
        }
        lags.push(answered.elapsed());
        std::thread::sleep(PUBLISH_EVERY);
    }
    Ok(lags)
}
