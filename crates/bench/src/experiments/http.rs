//! `http`: the rate of the server's HTTP thread, beside nginx, and the CPU time that it adds to a SET.
//!
//! - Requests for `/livez` over kept connections, and over short connections (connect, GET, close), from few
//!   clients to many. nginx answers the same bytes from a single process.
//! - The CPU time of a scrape of `/metrics`, with some 3,000 series.
//! - SET with neither HTTP nor the flight recorder, with the recorder, with both, while the metrics are
//!   scraped every second, and with a console open, which asks for five minutes of history every second.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::connections::last_to_peak;
use super::lanes::{self, Lane, Traffic};
use super::series::{Sample, Series};
use super::{Session, WARM_UP};
use crate::json::Json;
use crate::load::endpoint::{Address, Endpoint, Protocol};
use crate::load::keys::KeyRange;
use crate::load::requests::Command;
use crate::load::{self, Plan, Until};
use crate::servers::{Launch, Nginx, ServerKind, ask};
use crate::stats::Goal;
use crate::table::{Table, thousands, time_us};

const KEPT: [usize; 5] = [1, 10, 100, 1_000, 3_000];
const SHORT: [usize; 4] = [1, 100, 1_000, 3_000];
/// The rate with the most short connections, to the best.
const FLAT_GOAL: Goal = Goal::AtLeast(0.90);
/// A little more than the clients: each may take three descriptors of the limit that all clients share.
const CONNECTIONS_MAX: &str = "3100";
const BODY: &str = "ok\n";
const PATH: &str = "/livez";
/// CPU of a scrape.
const SCRAPES: u32 = 200;
const SCRAPE_GOAL_MS: Goal = Goal::AtMost(5.0);
/// CPU per SET with recorder and HTTP on, and with a console open, to all off.
const IDLE_GOAL: Goal = Goal::AtMost(1.01);
const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);
const PIPELINES: [usize; 2] = [1, 16];

/// Where HTTP requests go.
struct Target {
    name: &'static str,
    pid: u32,
    address: SocketAddr,
}

pub(super) fn estimate(session: &Session) -> Duration {
    let targets = (KEPT.len() + SHORT.len()) * 2;
    session.time_for(session.rounds * (targets + PIPELINES.len() * Burden::ALL.len()))
}

pub(crate) fn http(session: &mut Session) -> Result<()> {
    let program = session.program(ServerKind::Evenkeel).context("the experiment needs evenkeel")?.clone();
    let launch = Launch { cpus: session.server_cpus.clone(), threads: 1, more: &[] };
    let lane = Lane::start(&program, "evenkeel", &launch)?;
    let address = open(&lane)?;
    let nginx = Nginx::start(&session.server_cpus, BODY)?;
    let mut targets = vec![Target { name: "evenkeel", pid: lane.server.pid(), address }];
    targets.extend(nginx.as_ref().map(|one| Target { name: "nginx", pid: one.pid(), address: one.address }));
    for (title, numbers, short) in [
        ("Kept connections, GET /livez, requests/s", &KEPT[..], false),
        ("Short connections (connect, GET /livez, close), per second", &SHORT[..], true),
    ] {
        sweep(session, &targets, (title, numbers, short))?;
    }
    scrape(session, &lane, address)?;
    drop((nginx, lane));
    burden(session)
}

/// Opens the HTTP port of a server, on a free port.
fn open(lane: &Lane) -> Result<SocketAddr> {
    lane.set("http-max-connections", CONNECTIONS_MAX)?;
    let free = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
    lane.set("http-port", &free.port().to_string())?;
    Ok(free)
}

fn plan(session: &Session, target: &Target, clients: usize, short: bool) -> Plan {
    let keys = KeyRange { first: 0, count: 1 };
    let endpoint = Endpoint { address: Address::Tcp(target.address), protocol: Protocol::Http, tls: None };
    Plan {
        clients,
        command: Command::Words(PATH.to_owned()),
        short,
        threads: session.load_cpus.len().max(1),
        cpus: session.load_cpus.clone(),
        pipeline: 1,
        until: Until::Time { warm_up: WARM_UP, measured: session.measured },
        ..Plan::fill(endpoint, keys, lanes::KEY_SIZE, 1)
    }
}

fn sweep(session: &mut Session, targets: &[Target], kind: (&str, &[usize], bool)) -> Result<()> {
    let (title, numbers, short) = kind;
    let mut all: Vec<Vec<Vec<Sample>>> = vec![vec![Vec::new(); numbers.len()]; targets.len()];
    for _ in 0..session.rounds {
        for (target, samples) in targets.iter().zip(&mut all) {
            for (clients, samples) in numbers.iter().zip(samples) {
                let outcome = load::run(&plan(session, target, *clients, short), Some(target.pid))
                    .with_context(|| format!("{}: {clients} clients", target.name))?;
                if outcome.errors > 0 {
                    bail!("{}: {} errors, such as {:?}", target.name, outcome.errors, outcome.error_text);
                }
                samples.push(Sample::from(&outcome));
            }
        }
    }
    let columns: Vec<String> =
        numbers.iter().map(|clients| format!("{} clients", thousands(*clients as f64))).collect();
    let mut head = vec![""];
    head.extend(columns.iter().map(String::as_str));
    head.extend(["last to peak", "goal", "", "CPU us", "p99 at last", "max", "failed"]);
    let (mut table, mut records) = (Table::new(&head), Vec::new());
    for (target, by_number) in targets.iter().zip(all) {
        let across: Vec<Series> = by_number
            .into_iter()
            .map(|samples| Series {
                name: target.name.to_owned(),
                kind: ServerKind::Evenkeel,
                is_control: false,
                samples,
            })
            .collect();
        let last = across.last().expect("there is more than one number of clients");
        let mut cells = vec![target.name.to_owned()];
        cells.extend(across.iter().map(Series::rate_cell));
        let ratio = last_to_peak(&across.iter().collect::<Vec<_>>());
        cells.push(ratio.map(|ratio| ratio.to_string()).unwrap_or_default());
        let judged = ratio.filter(|_| short && target.name == "evenkeel");
        cells.push(judged.map(|_| FLAT_GOAL.to_string()).unwrap_or_default());
        let what = "short HTTP connections, 3,000 to peak".to_owned();
        cells.push(judged.map(|ratio| session.judge(what, FLAT_GOAL, ratio.median)).unwrap_or_default());
        cells.push(format!("{:.1}", last.median(|sample| sample.cpu_us)));
        cells.push(time_us(last.median(|sample| sample.p99)));
        cells.push(time_us(last.spread(|sample| sample.max).max));
        cells.push((last.sum(|sample| sample.failed) + last.sum(|sample| sample.refused)).to_string());
        table.row(cells);
        records.push(Json::Array(across.iter().map(Series::to_json).collect()));
    }
    let cpus = format!("server on cpu {:?}, load on cpu {:?}", session.server_cpus, session.load_cpus);
    let figures = vec![("clients", numbers.to_vec().into()), ("servers", Json::Array(records))];
    session.report("http", &format!("{title}; {cpus}"), &table, figures);
    Ok(())
}

/// Commands that leave counters, so that a scrape has as many series as on a busy server.
const USED: &[&str] = &[
    "SET k 1",
    "GET k",
    "INCR k",
    "APPEND s x",
    "STRLEN s",
    "GETRANGE s 0 1",
    "SETRANGE s 0 y",
    "GETDEL s",
    "MSET a 1 b 2",
    "MGET a b",
    "DEL a b",
    "EXISTS k",
    "EXPIRE k 1000",
    "TTL k",
    "PTTL k",
    "PERSIST k",
    "TYPE k",
    "RENAME k k2",
    "COPY k2 k",
    "TOUCH k",
    "HSET h a 1",
    "HGET h a",
    "HGETALL h",
    "HMGET h a",
    "HINCRBY h a 1",
    "HLEN h",
    "HKEYS h",
    "HVALS h",
    "HEXISTS h a",
    "HDEL h a",
    "LPUSH l 1",
    "RPUSH l 2",
    "LRANGE l 0 1",
    "LLEN l",
    "LINDEX l 0",
    "LPOP l",
    "RPOP l",
    "SADD t 1",
    "SMEMBERS t",
    "SCARD t",
    "SISMEMBER t 1",
    "SREM t 1",
    "ZADD z 1 a",
    "ZRANGE z 0 1",
    "ZSCORE z a",
    "ZCARD z",
    "ZINCRBY z 1 a",
    "ZRANK z a",
    "ZREM z a",
    "XADD x * f v",
    "XLEN x",
    "XRANGE x - +",
    "XTRIM x MAXLEN 1",
    "PFADD p 1",
    "PFCOUNT p",
    "SETBIT y 1 1",
    "GETBIT y 1",
    "BITCOUNT y",
    "GEOADD g 1 1 a",
    "GEOPOS g a",
    "SCAN 0",
    "DBSIZE",
    "INFO",
    "PING",
    "ECHO x",
    "TIME",
    "PUBLISH c x",
    "OBJECT ENCODING k",
    "MEMORY USAGE k",
    "CLIENT ID",
    "CONFIG GET maxmemory",
    "COMMAND COUNT",
];

fn scrape(session: &mut Session, lane: &Lane, address: SocketAddr) -> Result<()> {
    for command in USED {
        ask(lane.server.address, &command.split(' ').collect::<Vec<_>>())?;
    }
    let series = get(address, "/metrics")?.lines().filter(|line| !line.starts_with('#')).count();
    let before = crate::sys::process_cpu_ns(lane.server.pid())?;
    for _ in 0..SCRAPES {
        get(address, "/metrics")?;
    }
    let spent = crate::sys::process_cpu_ns(lane.server.pid())? - before;
    let ms = spent as f64 / 1e6 / f64::from(SCRAPES);
    let mut table = Table::new(&["series", "CPU ms per scrape", "goal", ""]);
    let verdict = session.judge("CPU milliseconds of a scrape".to_owned(), SCRAPE_GOAL_MS, ms);
    table.row(vec![thousands(series as f64), format!("{ms:.2}"), SCRAPE_GOAL_MS.to_string(), verdict]);
    let figures = vec![("series", series.into()), ("cpu_ms", ms.into())];
    session.report("http", "A scrape of /metrics, of the whole process", &table, figures);
    Ok(())
}

/// Returns the body of a path.
fn get(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    // The default user takes any password.
    let headers = "Host: 127.0.0.1\r\nAuthorization: Bearer x\r\nConnection: close";
    write!(stream, "GET {path} HTTP/1.1\r\n{headers}\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").context("no response of HTTP")?;
    if !head.starts_with("HTTP/1.1 200") {
        bail!("{path}: {}", head.lines().next().unwrap_or_default());
    }
    Ok(body.to_owned())
}

/// Parts of the server that are on while SET is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Burden {
    Off,
    /// All is off again, to show the noise.
    Control,
    Recorder,
    /// The recorder, and HTTP without requests.
    Idle,
    Scraped,
    /// A console is open.
    Watched,
}

impl Burden {
    const ALL: [Burden; 6] =
        [Burden::Off, Burden::Control, Burden::Recorder, Burden::Idle, Burden::Scraped, Burden::Watched];

    fn name(self) -> &'static str {
        match self {
            Burden::Off => "all off",
            Burden::Control => "all off, again",
            Burden::Recorder => "recorder on",
            Burden::Idle => "recorder and HTTP on",
            Burden::Scraped => "scraped every second",
            Burden::Watched => "a console open",
        }
    }

    /// Returns the paths that are requested every second.
    fn paths(self) -> &'static [&'static str] {
        match self {
            Burden::Scraped => &["/metrics"],
            Burden::Watched => &[
                "/api/series?from=-300000&to=0&points=600",
                "/api/events?from=-300000&to=0",
                "/api/findings?from=-300000&to=0",
            ],
            _ => &[],
        }
    }

    fn is_judged(self) -> bool {
        matches!(self, Burden::Idle | Burden::Watched)
    }
}

fn burden(session: &mut Session) -> Result<()> {
    let program = session.program(ServerKind::Evenkeel).context("the experiment needs evenkeel")?.clone();
    let launch = Launch { cpus: session.server_cpus.clone(), threads: 1, more: &[] };
    let lanes: Vec<Lane> = Burden::ALL
        .iter()
        .map(|burden| Lane::start(&program, burden.name(), &launch))
        .collect::<Result<_>>()?;
    let mut readers = Vec::new();
    for (lane, burden) in lanes.iter().zip(Burden::ALL) {
        match burden {
            Burden::Off | Burden::Control => lane.set("recorder-memory", "0")?,
            Burden::Recorder => {}
            Burden::Idle | Burden::Scraped | Burden::Watched => {
                readers.push(Reader::start(open(lane)?, burden.paths()));
            }
        }
    }
    for pipeline in PIPELINES {
        let traffic = Traffic { pipeline, ..Traffic::pinned(session) };
        let all = lanes::rounds(session, &lanes, &traffic)?;
        let mut table = Table::new(&["", "SET/s", "CPU us/command", "to all off", "goal", "", "p99", "max"]);
        for (series, burden) in all.iter().zip(Burden::ALL) {
            let ratio = series.ratio_to(&all[0], |sample| sample.cpu_us).filter(|_| burden != Burden::Off);
            let judged = ratio.filter(|_| burden.is_judged());
            let what = format!("CPU per SET at pipeline {pipeline}, {}, to all off", burden.name());
            table.row(vec![
                series.name.clone(),
                series.rate_cell(),
                series.cpu_cell(),
                ratio.map(|ratio| ratio.to_string()).unwrap_or_default(),
                judged.map(|_| IDLE_GOAL.to_string()).unwrap_or_default(),
                judged.map(|ratio| session.judge(what, IDLE_GOAL, ratio.median)).unwrap_or_default(),
                time_us(series.median(|sample| sample.p99)),
                time_us(series.spread(|sample| sample.max).max),
            ]);
        }
        let figures = vec![
            ("pipeline", pipeline.into()),
            ("servers", Json::Array(all.iter().map(Series::to_json).collect())),
        ];
        session.report(
            "http",
            &format!("SET at pipeline {pipeline} with recorder and HTTP"),
            &table,
            figures,
        );
    }
    Ok(())
}

/// Requests paths every second until it is dropped.
struct Reader {
    is_over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Reader {
    fn start(address: SocketAddr, paths: &'static [&'static str]) -> Reader {
        let is_over = Arc::new(AtomicBool::new(false));
        let until = is_over.clone();
        let thread = thread::spawn(move || {
            while !until.load(Relaxed) && !paths.is_empty() {
                for path in paths {
                    let _ = get(address, path); // a request that fails costs the server less
                }
                thread::sleep(SCRAPE_INTERVAL);
            }
        });
        Reader { is_over, thread: Some(thread) }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
