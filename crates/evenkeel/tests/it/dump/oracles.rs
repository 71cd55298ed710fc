//! Changed payloads of every type and form, judged by Valkey and Redis under `sanitize-dump-payload yes`: a
//! payload that an oracle refuses is refused. A payload that is accepted gives a whole value, whose own
//! payload the oracles accept.
//!
//! The test takes seconds; `EVENKEEL_PAYLOAD_SECONDS` lengthens it.

mod blocks;
mod change;
mod pieces;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenkeel_resp::value::Value;
use evenkeel_testkit::random::{Random, fresh_seed};
use evenkeel_testkit::{Client, Program, Reference, Server};

use super::content::{Depth, content};
use super::samples::{Needs, few};
use super::{Args, build, dump};
use crate::program;

const SECONDS_VARIABLE: &str = "EVENKEEL_PAYLOAD_SECONDS";
const SECONDS: u64 = 15;

/// Payloads sent in a batch.
const BATCH: usize = 500;

/// Longest payload of the corpus, in bytes.
const PAYLOAD_MAX: usize = 700;

/// Distinct faults after which the test ends.
const FAULTS_MAX: usize = 40;

/// Bounds that give more values their plain forms, or more nodes. Some servers lack some of them.
const LOW_BOUNDS: [(&str, &str); 6] = [
    ("hash-max-listpack-entries", "1"),
    ("set-max-intset-entries", "1"),
    ("set-max-listpack-entries", "1"),
    ("zset-max-listpack-entries", "1"),
    ("list-max-listpack-size", "2"),
    ("stream-node-max-entries", "3"),
];

/// Lists with nodes of a single element, which servers make of large elements only.
const PLAIN_NODES: [&[u8]; 3] = [
    b"\x12\x01\x01\x02xy",
    b"\x12\x02\x02\x0a\x0a\0\0\0\x01\0\x81a\x02\xff\x01\x03xyz",
    b"\x12\x02\x01\x01a\x01\xc0\x05",
];

/// A server that judges payloads.
struct Oracle {
    name: String,
    server: Server,
    client: Client,
    version_max: u16,
    is_valkey: bool,
    crashes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Accepted,
    Refused,
    /// A version or type that the server does not know, or a payload that ends it.
    None,
}

const STRICT: [&str; 6] =
    ["--sanitize-dump-payload", "yes", "--enable-debug-command", "yes", "--rdbcompression", "no"];

impl Oracle {
    fn start(program: &Program) -> Oracle {
        let bounded = ["--proto-max-bulk-len", "64mb"];
        let server = Server::start(program, &[&STRICT[..], &bounded].concat());
        let client = server.connect();
        let is_valkey = program.reference() == Some(Reference::Valkey);
        let version = server.info("redis_version");
        let version_max = match version.as_str() {
            _ if is_valkey => 80,
            version if version.starts_with("7.0") => 10,
            version if version.starts_with("7.2") => 11,
            _ => 12,
        };
        let name = format!("{} ({version})", program.path().display());
        Oracle { name, server, client, version_max, is_valkey, crashes: 0 }
    }

    /// Whether the server knows the payload's version and type.
    fn judges(&self, payload: &[u8]) -> bool {
        let (kind, version) = (payload[0], version(payload));
        let kinds = match (self.is_valkey, self.version_max) {
            (true, _) if version == 80 => 22,
            (true, _) => 21,
            (false, 10) => 19,
            (false, 11) => 21,
            _ => 25,
        };
        let knows_version = version <= self.version_max && !(self.is_valkey && (12..80).contains(&version));
        knows_version && kind <= kinds && !matches!(kind, 6..=8)
    }

    fn verdicts(&mut self, payloads: &[Vec<u8>]) -> Vec<Verdict> {
        match self.try_verdicts(payloads) {
            Some(verdicts) => verdicts,
            None if payloads.len() == 1 => {
                self.crashes += 1;
                println!("{} ended by {}", self.name, hex(&payloads[0]));
                self.restart();
                vec![Verdict::None]
            }
            None => {
                self.restart();
                let (first, second) = payloads.split_at(payloads.len() / 2);
                [self.verdicts(first), self.verdicts(second)].concat()
            }
        }
    }

    fn restart(&mut self) {
        self.server.kill();
        self.server.start_again();
        self.client = self.server.connect();
    }

    fn try_verdicts(&mut self, payloads: &[Vec<u8>]) -> Option<Vec<Verdict>> {
        self.client.try_call(&["FLUSHALL"]).ok()?;
        let replies = restore_all(&mut self.client, payloads)?;
        let verdict = |(reply, payload): (&Value, &Vec<u8>)| match reply {
            _ if !self.judges(payload) => Verdict::None,
            Value::Error(text) if text.starts_with(b"ERR Bad data format") => Verdict::Refused,
            Value::Error(_) => Verdict::None,
            _ => Verdict::Accepted,
        };
        Some(replies.iter().zip(payloads).map(verdict).collect())
    }
}

fn version(payload: &[u8]) -> u16 {
    let footer = &payload[payload.len() - 10..];
    u16::from_le_bytes([footer[0], footer[1]])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("two digits");
    (0..text.len()).step_by(2).map(digits).collect()
}

/// Restores all payloads under `k0` and so on.
fn restore_all(client: &mut Client, payloads: &[Vec<u8>]) -> Option<Vec<Value>> {
    let command = |(number, payload): (usize, &Vec<u8>)| {
        let key = format!("k{number}").into_bytes();
        vec![b"RESTORE".to_vec(), key, b"0".to_vec(), payload.clone(), b"REPLACE".to_vec()]
    };
    let commands: Vec<Args> = payloads.iter().enumerate().map(command).collect();
    let bytes: Vec<u8> =
        commands.iter().flat_map(|args| evenkeel_resp::value::encode_command(args)).collect();
    client.send_raw(&bytes).ok()?;
    commands.iter().map(|_| client.try_read().ok()).collect()
}

fn programs() -> Vec<Program> {
    [
        Program::oracle(Reference::Valkey),
        Program::oracle(Reference::Redis),
        Program::oracle(Reference::Redis8),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Payloads of all available servers, of all types, and of servers that are gone.
fn corpus() -> Vec<Vec<u8>> {
    let lines = include_str!("../../../../rdb/tests/it/golden.txt").lines();
    let mut corpus: Vec<Vec<u8>> =
        lines.map(|line| unhex(line.split('|').nth(1).expect("a payload"))).collect();
    corpus.extend(PLAIN_NODES.iter().map(|body| evenkeel_testkit::payload::seal(body, 11)));
    for program in programs().into_iter().chain([program()]) {
        for (compresses, bounds) in [("no", &LOW_BOUNDS[..]), ("no", &[]), ("yes", &[])] {
            let server = Server::start(&program, &["--rdbcompression", compresses]);
            let mut client = server.connect();
            for (name, bound) in bounds {
                client.call(&["CONFIG", "SET", name, bound]); // possibly refused
            }
            let has_field_expiry = !client.run("HPEXPIRETIME none FIELDS 1 f").is_error();
            for sample in few() {
                if sample.needs != Needs::FieldExpiry || has_field_expiry {
                    build(&mut client, &sample);
                    corpus.push(dump(&mut client, "v"));
                }
            }
        }
    }
    corpus.retain(|payload| payload.len() <= PAYLOAD_MAX);
    corpus.sort();
    corpus.dedup();
    corpus
}

#[test]
fn a_payload_that_an_oracle_refuses_is_refused() {
    let mut oracles: Vec<Oracle> = programs().iter().map(Oracle::start).collect();
    if oracles.is_empty() || program().reference().is_some() {
        return;
    }
    let mut tested = Oracle::start(&program());
    let (corpus, seed) = (corpus(), fresh_seed());
    println!("EVENKEEL_SEED={seed}, {} payloads to change", corpus.len());
    let mut random = Random::new(seed);
    let seconds = std::env::var(SECONDS_VARIABLE).ok();
    let seconds = seconds.map_or(SECONDS, |text| text.parse().expect("a number of seconds"));
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut found = Found::default();
    while Instant::now() < until && found.faults.len() < FAULTS_MAX {
        let payloads: Vec<Vec<u8>> = (0..BATCH)
            .map(|_| change::changed(&corpus[random.below(corpus.len())], &corpus, &mut random))
            .collect();
        judge(&mut tested, &mut oracles, &payloads, &mut found);
    }
    println!("{} judged, {} accepted", found.judged, found.accepted);
    tested.server.assert_healthy();
    assert_eq!(tested.crashes, 0);
    let faults: Vec<String> = found.faults.into_values().collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(found.accepted > found.judged / 50, "too few payloads get past the first checks");
}

#[derive(Default)]
struct Found {
    judged: usize,
    accepted: usize,
    faults: BTreeMap<String, String>,
}

impl Found {
    /// Records a fault; a single payload of a kind is enough.
    fn fault(&mut self, kind: String, payload: &[u8]) {
        let line = format!("{kind}: {}", hex(payload));
        self.faults.entry(kind).or_insert(line);
    }
}

/// Asks the oracles about the accepted payloads. The others may keep an oracle busy for minutes, since it
/// makes room for as many members as a payload announces.
fn judge(tested: &mut Oracle, oracles: &mut [Oracle], payloads: &[Vec<u8>], found: &mut Found) {
    tested.client.run("FLUSHALL");
    let replies = restore_all(&mut tested.client, payloads).expect("the server goes on");
    let accepted: Vec<(String, Vec<u8>)> = replies
        .iter()
        .zip(payloads)
        .enumerate()
        .filter(|(_, (reply, _))| !reply.is_error())
        .map(|(number, (_, payload))| (format!("k{number}"), payload.clone()))
        .collect();
    let sent: Vec<Vec<u8>> = accepted.iter().map(|(_, payload)| payload.clone()).collect();
    for oracle in oracles.iter_mut() {
        for (verdict, payload) in oracle.verdicts(&sent).iter().zip(&sent) {
            if *verdict == Verdict::Refused {
                let form = format!("type {} of version {}", payload[0], version(payload));
                found.fault(format!("{} refuses {form}", oracle.name), payload);
            }
        }
    }
    found.judged += payloads.len();
    found.accepted += accepted.len();
    use_values(tested, oracles, &accepted, found);
}

/// Reads, dumps, copies, saves and reloads the accepted values, and gives their payloads to the oracles.
fn use_values(tested: &mut Oracle, oracles: &mut [Oracle], keys: &[(String, Vec<u8>)], found: &mut Found) {
    let client = &mut tested.client;
    let mut dumps = Vec::new();
    let mut before = BTreeMap::new();
    for (key, payload) in keys {
        let lines = content(client, key, Depth::Common);
        if lines.len() < 2 {
            continue; // a hash whose fields have all expired has its type alone
        }
        if lines.iter().any(|line| line.starts_with('-')) {
            found.fault(format!("a value of type {} cannot be read: {lines:?}", payload[0]), payload);
        }
        let again = dump(client, key);
        let copied = format!("{key} copied");
        client.call(&["COPY", key, &copied, "REPLACE"]);
        let restored = client.call(&[b"RESTORE", key.as_bytes(), b"0", &again, b"REPLACE"]);
        for of in [key, &copied] {
            if content(client, of, Depth::Common) != lines {
                let kind = format!("a value of type {} changes on its way: {restored}", payload[0]);
                found.fault(kind, payload);
            }
        }
        before.insert(key.clone(), (lines, payload));
        dumps.push(again);
    }
    let reloaded = client.run("DEBUG RELOAD").to_string();
    for (key, (lines, payload)) in &before {
        if content(client, key, Depth::Common) != *lines {
            found.fault(format!("a value of type {} is lost by a reload ({reloaded})", payload[0]), payload);
        }
    }
    for oracle in oracles {
        for (verdict, payload) in oracle.verdicts(&dumps).iter().zip(&dumps) {
            if *verdict == Verdict::Refused {
                let kind = format!("{} refuses our own type {}", oracle.name, payload[0]);
                found.fault(kind, payload);
            }
        }
    }
}
