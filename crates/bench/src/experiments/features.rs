//! `features`: the cost per command of keyspace notifications, monitors, tracking, user rules and TLS.
//!
//! Each server is measured alternately without a feature and with it, so that the two differ in nothing else.
//! Their ratio is the cost of the feature. The ratio of the servers to each other, both with the feature, is
//! the benefit of choosing either.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Session;
use super::lanes::{self, Lane, Traffic};
use super::series::Series;
use crate::json::{Json, object};
use crate::load::endpoint::{Address, Endpoint, Protocol};
use crate::load::keys::{self, KeyRange};
use crate::load::requests::Command;
use crate::load::tls::{Files, Trust};
use crate::servers::{Launch, ServerKind, ask};
use crate::stats::Goal;
use crate::table::Table;

const KEYS: u64 = 50_000;
const VALUE_SIZE: usize = 500;
const CLIENTS: usize = 50;
const TRAFFIC: [(Command, usize); 4] =
    [(Command::Set, 16), (Command::Get, 16), (Command::Set, 1), (Command::Get, 1)];

/// Cost with a feature, relative to Valkey with it.
const TO_VALKEY_MAX: f64 = 1.0;

/// Key patterns of a user with rules; the last pattern matches.
const PATTERNS: usize = 100;

/// A feature that can be on or off in a running server.
struct Feature {
    name: &'static str,
    /// Commands that turn the feature on and off, each on its own connection; the words are separated by
    /// spaces.
    on: fn() -> Vec<String>,
    off: &'static [&'static str],
    /// The load comes over TLS.
    encrypts: bool,
    /// Connections kept open meanwhile, which read whatever comes, and the command that each sends.
    listeners: usize,
    subscription: fn(usize) -> String,
}

const PLAIN: Feature = Feature {
    name: "",
    on: Vec::new,
    off: &[],
    encrypts: false,
    listeners: 0,
    subscription: |_| String::new(),
};

const FEATURES: [Feature; 6] = [
    Feature {
        name: "notifications",
        on: || vec!["CONFIG SET notify-keyspace-events KEA".into()],
        off: &["CONFIG SET notify-keyspace-events none"],
        ..PLAIN
    },
    Feature {
        name: "1,000 subscribers",
        listeners: 1000,
        subscription: |number| format!("SUBSCRIBE idle:{number}\r\n"),
        ..PLAIN
    },
    Feature {
        name: "tracking",
        listeners: 1,
        subscription: |_| "HELLO 3\r\nCLIENT TRACKING ON BCAST\r\n".into(),
        ..PLAIN
    },
    Feature { name: "MONITOR", listeners: 1, subscription: |_| "MONITOR\r\n".into(), ..PLAIN },
    Feature {
        name: "user with 100 rules",
        on: || vec![format!("ACL SETUSER default -debug resetkeys {}", patterns())],
        off: &["ACL SETUSER default +@all allkeys"],
        ..PLAIN
    },
    Feature { name: "TLS", off: &["CONFIG SET tls-port 0"], encrypts: true, ..PLAIN },
];

/// `~app:1:* ~app:2:* ... ~key:*`
fn patterns() -> String {
    let others: String = (1..PATTERNS).map(|number| format!("~app:{number}:* ")).collect();
    format!("{others}~{}*", String::from_utf8_lossy(keys::PREFIX))
}

pub(super) fn estimate(session: &Session) -> Duration {
    session.time_for(2 * FEATURES.len() * TRAFFIC.len() * 3 * session.rounds)
}

pub(crate) fn features(session: &mut Session) -> Result<()> {
    let kinds = [ServerKind::Valkey, ServerKind::Evenkeel, ServerKind::Redis].into_iter();
    let kinds: Vec<ServerKind> = kinds.filter(|kind| session.program(*kind).is_some()).collect();
    let mut without_tls = Vec::new();
    for kind in &kinds {
        if lacks_tls(session, *kind)? {
            without_tls.push(*kind);
        }
    }
    let lanes = kinds.into_iter().map(|kind| start(session, kind)).collect::<Result<Vec<Lane>>>()?;
    for (command, pipeline) in TRAFFIC {
        let head = [
            "with",
            "",
            "requests/s",
            "CPU us/command without",
            "with",
            "with/without",
            "to valkey",
            "goal",
            "",
        ];
        let mut table = Table::new(&head);
        let mut figures = Vec::new();
        for feature in &FEATURES {
            let traffic = traffic(session, &command, pipeline);
            let pairs = measure(session, &lanes, &without_tls, feature, &traffic)?;
            let what = format!("{}, {command}, pipeline {pipeline}", feature.name);
            for pair in &pairs {
                table.row(row(session, &what, feature, pair, &pairs));
            }
            let both =
                |pair: &Pair| object(vec![("without", pair.off.to_json()), ("with", pair.on.to_json())]);
            figures.push(object(vec![
                ("feature", feature.name.into()),
                ("servers", Json::Array(pairs.iter().map(both).collect())),
            ]));
        }
        let title =
            format!("features: {command}, pipeline {pipeline}, {VALUE_SIZE} B values, {CLIENTS} clients");
        let figures = vec![
            ("command", command.to_string().into()),
            ("pipeline", pipeline.into()),
            ("features", Json::Array(figures)),
        ];
        session.report("features", &title, &table, figures);
    }
    Ok(())
}

fn start(session: &Session, kind: ServerKind) -> Result<Lane> {
    let program = session.program(kind).expect("it was found");
    let lane = Lane::start(
        program,
        kind.name(),
        &Launch { cpus: session.server_cpus.clone(), threads: 1, ..Launch::default() },
    )?;
    lane.fill(KeyRange { first: 0, count: KEYS }, VALUE_SIZE)?;
    Ok(lane)
}

fn traffic(session: &Session, command: &Command, pipeline: usize) -> Traffic {
    Traffic {
        command: command.clone(),
        pipeline,
        clients: CLIENTS,
        keys: KEYS,
        value_size: VALUE_SIZE,
        ..Traffic::pinned(session)
    }
}

/// A server's series without a feature and with it.
struct Pair {
    off: Series,
    on: Series,
}

fn measure(
    session: &Session,
    lanes: &[Lane],
    without_tls: &[ServerKind],
    feature: &Feature,
    traffic: &Traffic,
) -> Result<Vec<Pair>> {
    let has_it = |lane: &&Lane| !(feature.encrypts && without_tls.contains(&lane.kind));
    let lanes: Vec<&Lane> = lanes.iter().filter(has_it).collect();
    let empty = |lane: &&Lane| {
        let series =
            Series { name: lane.name.clone(), kind: lane.kind, is_control: false, samples: Vec::new() };
        Pair { off: series.clone(), on: series }
    };
    let mut pairs: Vec<Pair> = lanes.iter().map(empty).collect();
    for round in 0..session.rounds {
        for step in 0..lanes.len() {
            let index = (round + step) % lanes.len();
            let (lane, pair) = (lanes[index], &mut pairs[index]);
            pair.off.samples.push(lanes::measure(session, lane, traffic)?);
            let turned_on = TurnedOn::new(lane.server.address, feature)?;
            let endpoint = feature.encrypts.then(|| encrypted(lane)).transpose()?;
            pair.on.samples.push(lanes::measure(session, lane, &Traffic { endpoint, ..traffic.clone() })?);
            turned_on.end()?;
        }
    }
    Ok(pairs)
}

/// Returns whether a server was built without TLS. Such a server may end when asked for TLS, so the question
/// goes to a separate process.
fn lacks_tls(session: &Session, kind: ServerKind) -> Result<bool> {
    let program = session.program(kind).expect("it was found");
    let lane = Lane::start(
        program,
        kind.name(),
        &Launch { cpus: session.server_cpus.clone(), threads: 1, ..Launch::default() },
    )?;
    let endpoint = encrypted(&lane);
    if let Err(error) = &endpoint {
        eprintln!("{}: TLS skipped, {error:#}", kind.name());
    }
    Ok(endpoint.is_err())
}

/// Makes the server listen for TLS as well; clients need no certificate.
fn encrypted(lane: &Lane) -> Result<Endpoint> {
    let (certificate, key) =
        (lane.server.directory().join("tls.crt"), lane.server.directory().join("tls.key"));
    if !key.is_file() {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).context("no certificate")?;
        fs::write(&certificate, made.cert.pem()).context("cannot write the certificate")?;
        fs::write(&key, made.signing_key.serialize_pem()).context("cannot write the key")?;
    }
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let (certificate, key) = (certificate.display(), key.display());
    let command = format!(
        "CONFIG SET tls-auth-clients no tls-cert-file {certificate} tls-key-file {key} tls-port {port}"
    );
    send_commands(lane.server.address, &[&command])?;
    let trust = Trust::new(Files { authorities: None, own: None, name: "localhost" })?;
    let address = Address::Tcp((Ipv4Addr::LOCALHOST, port).into());
    Ok(Endpoint { address, protocol: Protocol::default(), tls: Some(trust) })
}

fn row(session: &mut Session, what: &str, feature: &Feature, pair: &Pair, all: &[Pair]) -> Vec<String> {
    let is_ours = pair.on.kind == ServerKind::Evenkeel;
    let cost = pair.on.ratio_to(&pair.off, |sample| sample.cpu_us);
    let valkey =
        all.iter().find(|other| other.on.kind == ServerKind::Valkey && pair.on.kind != ServerKind::Valkey);
    let ratio = valkey.and_then(|valkey| pair.on.ratio_to(&valkey.on, |sample| sample.cpu_us));
    let ratio_goal = (is_ours && ratio.is_some()).then_some(Goal::AtMost(TO_VALKEY_MAX));
    let ratio_verdict = match (&ratio, ratio_goal) {
        (Some(ratio), Some(goal)) => {
            session.judge(format!("CPU to valkey's with {what}"), goal, ratio.median)
        }
        _ => String::new(),
    };
    vec![
        feature.name.to_owned(),
        pair.on.name.clone(),
        pair.on.rate_cell(),
        pair.off.cpu_cell(),
        pair.on.cpu_cell(),
        cost.map(|cost| cost.to_string()).unwrap_or_default(),
        ratio.map(|ratio| ratio.to_string()).unwrap_or_default(),
        ratio_goal.map(|goal| goal.to_string()).unwrap_or_default(),
        ratio_verdict,
    ]
}

/// A feature that is on, with its listeners.
struct TurnedOn<'a> {
    feature: &'a Feature,
    server: SocketAddr,
    listeners: Vec<Listener>,
}

impl<'a> TurnedOn<'a> {
    fn new(server: SocketAddr, feature: &'a Feature) -> Result<Self> {
        let on = (feature.on)();
        send_commands(server, &on.iter().map(String::as_str).collect::<Vec<_>>())?;
        let listen =
            |number| Listener::connect(server, &(feature.subscription)(number), feature.listeners == 1);
        let listeners = (0..feature.listeners).map(listen).collect::<Result<Vec<Listener>>>()?;
        Ok(TurnedOn { feature, server, listeners })
    }

    fn end(self) -> Result<()> {
        drop(self.listeners);
        send_commands(self.server, self.feature.off)
    }
}

fn send_commands(server: SocketAddr, commands: &[&str]) -> Result<()> {
    for command in commands {
        let words: Vec<&str> =
            command.split(' ').map(|word| if word == "none" { "" } else { word }).collect();
        let answer = ask(server, &words)?;
        if !answer.starts_with("+OK") {
            bail!("{command}: {answer}");
        }
    }
    Ok(())
}

/// A connection that listens until it is dropped.
pub(super) struct Listener {
    stream: TcpStream,
    /// Reads incoming messages; `None` for a connection that gets none.
    reads: Option<JoinHandle<()>>,
}

impl Listener {
    /// Connects, and returns after the first reply.
    pub(super) fn connect(server: SocketAddr, request: &str, has_messages: bool) -> Result<Self> {
        let mut stream = TcpStream::connect(server)?;
        stream.write_all(request.as_bytes())?;
        let mut piece = vec![0; 256 * 1024];
        let len = stream.read(&mut piece)?;
        if len == 0 || piece[0] == b'-' {
            bail!("{}: {}", request.trim(), String::from_utf8_lossy(&piece[..len]));
        }
        let mut reader = stream.try_clone()?;
        let read = move || while reader.read(&mut piece).is_ok_and(|len| len > 0) {};
        let reads = has_messages.then(|| std::thread::spawn(read));
        Ok(Self { stream, reads })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        drop(self.stream.shutdown(Shutdown::Both)); // the server may have closed it
        if let Some(reads) = self.reads.take() {
            drop(reads.join()); // it does not panic
        }
    }
}
