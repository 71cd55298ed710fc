//! Keyspace notifications: random commands of all families into Evenkeel and into redis-server, and the same events, in
//! the same order, from each command.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_resp::value::Value;
use evenkeel_testkit::differential::{Plan, Sent, commands};
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Client, Peer, Program, Server, words};

use crate::start;

const SETTINGS: [&str; 2] = ["--notify-keyspace-events", "KEAnm"];

/// One server: two clients, one that listens, and one that marks the end of a command.
struct Side {
    clients: [Client; 2],
    listener: Client,
    marker: Client,
}

impl Side {
    fn new(server: &Server) -> Side {
        let mut listener = server.connect();
        listener.call(&["PSUBSCRIBE", "__key*", "mark"]);
        listener.read();
        Side { clients: [server.connect(), server.connect()], listener, marker: server.connect() }
    }

    /// Sends a command, and returns the events that it gave rise to.
    fn events(&mut self, connection: usize, args: &[Vec<u8>]) -> Vec<String> {
        self.clients[connection].call(args);
        self.heard()
    }

    fn heard(&mut self) -> Vec<String> {
        self.marker.call(&["PUBLISH", "mark", "x"]);
        let mut events = Vec::new();
        loop {
            let message = self.listener.read();
            let Value::Array(parts) = &message else { panic!("{message} is no message") };
            if parts[2].as_bytes() == Some(b"mark") {
                return events;
            }
            // Keys that expire in the background do so when they do.
            let text = format!("{} {}", parts[2], parts[3]);
            if !text.contains("expired") {
                events.push(text);
            }
        }
    }
}

/// Commands whose keys that are not there Redis tells of more or less often: it looks for them twice, or here they are
/// looked for without being told of.
const MISSES_DIFFER: &[&str] = &["BITFIELD", "EXEC", "LCS", "MIGRATE", "SORT", "SORT_RO", "XREAD"];

/// Whether a command is another one there: Redis 7.0 takes a rank that is refused here, and a deadline that is a millisecond
/// off may have passed when it looks at the clock once more.
fn is_another_there(name: &str, args: &[Vec<u8>]) -> bool {
    match name {
        "LPOS" => args.iter().any(|arg| *arg == i64::MIN.to_string().as_bytes()),
        "PEXPIRE" => args.get(2).is_some_and(|time| time == b"1"),
        _ => false,
    }
}

/// Without those that tell of keys that were not found, or were.
fn without_misses(events: &[String]) -> Vec<&String> {
    events.iter().filter(|event| !event.contains("keymiss")).collect()
}

fn compare(seed: u64, count: usize) {
    let Some(oracle) = Program::oracle(Peer::Redis) else { return };
    let (subject, oracle) = (start(&SETTINGS), Server::start(&oracle, &SETTINGS));
    let (mut ours, mut theirs) = (Side::new(&subject), Side::new(&oracle));
    println!("EVENKEEL_SEED={seed}");
    let mut findings: BTreeMap<String, String> = BTreeMap::new();
    let (mut compared, mut noted) = (0, 0);
    let plan = Plan { seed, commands: count, oracle: Peer::Redis, except: &["wire", "connection"] };
    for step in commands(plan) {
        let Sent::Command(connection, args) = step else {
            std::thread::sleep(Duration::from_millis(50));
            ours.heard();
            theirs.heard();
            continue;
        };
        let (our, their) = (ours.events(connection, &args), theirs.events(connection, &args));
        compared += 1;
        noted += their.len();
        let name = String::from_utf8_lossy(&args[0]).to_ascii_uppercase();
        if our != their && !is_another_there(&name, &args) {
            let only_misses = without_misses(&our) == without_misses(&their);
            if only_misses && MISSES_DIFFER.contains(&&*name) {
                continue;
            }
            let kind = if only_misses { "misses" } else { "events" };
            findings.entry(format!("{name} {kind}")).or_insert_with(|| {
                format!(
                    "{}\n  ours:   {}\n  theirs: {}",
                    words::join(&args),
                    our.join(", "),
                    their.join(", ")
                )
            });
        }
    }
    println!("{compared} commands, {noted} events");
    assert!(noted > count / 2, "the commands give rise to events");
    let text: Vec<String> = findings.into_iter().map(|(name, text)| format!("{name}: {text}")).collect();
    assert!(text.is_empty(), "{} kinds of differences\n{}", text.len(), text.join("\n"));
}

#[test]
fn redis_tells_of_the_same_events_for_a_fixed_seed() {
    compare(20_260_101, 6_000);
}

#[test]
fn redis_tells_of_the_same_events_for_a_fresh_seed() {
    compare(fresh_seed(), 6_000);
}
