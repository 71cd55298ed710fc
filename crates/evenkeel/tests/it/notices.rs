//! Keyspace notifications: random commands of all families in Evenkeel and Valkey cause the same
//! events, in the same order, per command.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_resp::value::Value;
use evenkeel_testkit::differential::{Plan, Sent, commands};
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Client, Program, Reference, Server, words};

use crate::start;

const SETTINGS: [&str; 2] = ["--notify-keyspace-events", "KEAnm"];

/// A server with two clients, a subscriber, and a client that marks the end of a command.
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

    /// Sends a command, and returns its reply and its events.
    fn events(&mut self, connection: usize, args: &[Vec<u8>]) -> (Value, Vec<String>) {
        let reply = self.clients[connection].call(args);
        (reply, self.received())
    }

    /// Removes keys whose deadline has passed: MSETEX may set one in the past, and then a later command finds
    /// the key, or finds that it was removed in the background.
    fn look_at(&mut self, connection: usize, keys: &[Vec<u8>]) {
        self.clients[connection].call(&[&[b"EXISTS".to_vec()], &keys[1..]].concat());
        self.received();
    }

    fn received(&mut self) -> Vec<String> {
        self.marker.call(&["PUBLISH", "mark", "x"]);
        let mut events = Vec::new();
        loop {
            let message = self.listener.read();
            let Value::Array(parts) = &message else { panic!("{message} is no message") };
            if parts[2].as_bytes() == Some(b"mark") {
                return events;
            }
            // The time of expiry in the background is random.
            let text = format!("{} {}", parts[2], parts[3]);
            if !text.contains("expired") {
                events.push(text);
            }
        }
    }
}

/// Commands with other numbers of events for missing keys in Valkey: it looks such keys up twice, or here a
/// lookup causes no event.
const MISSES_DIFFER: &[&str] =
    &["BITFIELD", "EXEC", "HGETEX", "LCS", "MIGRATE", "SORT", "SORT_RO", "XAUTOCLAIM", "XREAD"];

/// Valkey's error for a COUNT of XAUTOCLAIM for which it can get no memory. Here, a large COUNT needs none.
const TRANSIENT_MEMORY: &str = "failed allocating transient memory";

/// Whether Valkey may execute the command differently: a time of expiry a millisecond away may have passed at
/// its second look at the clock.
fn may_differ(name: &str, args: &[Vec<u8>]) -> bool {
    name == "PEXPIRE" && args.get(2).is_some_and(|time| time == b"1")
}

/// Follows the key whose fields end within a millisecond: both servers remove them in the background, each at
/// its own time, so that commands on the key find it with or without them.
#[derive(Default)]
struct EndingFields(bool);

impl EndingFields {
    /// Whether the events of the command depend on when fields are removed.
    fn affect(&mut self, name: &str, args: &[Vec<u8>]) -> bool {
        let concerned = args.get(1).is_some_and(|key| key == b"brief");
        self.0 |= concerned && name == "HSETEX";
        let affected = concerned && self.0;
        self.0 &= !(concerned && name == "DEL");
        affected
    }
}

/// The events without hits and misses.
fn without_misses(events: &[String]) -> Vec<&String> {
    events.iter().filter(|event| !event.contains("keymiss")).collect()
}

fn compare(seed: u64, count: usize) {
    let Some(oracle) = Program::oracle(Reference::Valkey) else { return };
    let (subject, oracle) = (start(&SETTINGS), Server::start(&oracle, &SETTINGS));
    let (mut ours, mut theirs) = (Side::new(&subject), Side::new(&oracle));
    println!("EVENKEEL_SEED={seed}");
    let mut findings: BTreeMap<String, String> = BTreeMap::new();
    let (mut compared, mut noted) = (0, 0);
    let mut ending = EndingFields::default();
    let plan = Plan { seed, commands: count, oracle: Reference::Valkey, except: &["wire", "connection"] };
    for step in commands(plan) {
        let Sent::Command(connection, args) = step else {
            std::thread::sleep(Duration::from_millis(50));
            ours.received();
            theirs.received();
            continue;
        };
        let ((_, our), (reply, their)) = (ours.events(connection, &args), theirs.events(connection, &args));
        if reply.to_string().contains(TRANSIENT_MEMORY) {
            continue;
        }
        if args[0].eq_ignore_ascii_case(b"MSETEX") {
            ours.look_at(connection, &args);
            theirs.look_at(connection, &args);
        }
        compared += 1;
        noted += their.len();
        let name = String::from_utf8_lossy(&args[0]).to_ascii_uppercase();
        let ending = ending.affect(&name, &args);
        if our != their && !ending && !may_differ(&name, &args) {
            let only_misses = without_misses(&our) == without_misses(&their);
            if only_misses && MISSES_DIFFER.contains(&&*name) {
                continue;
            }
            let kind = if only_misses { "misses" } else { "events" };
            let (command, our, their) = (words::join(&args), our.join(", "), their.join(", "));
            let text = format!("{command}\n  ours:   {our}\n  theirs: {their}");
            if findings.is_empty() {
                println!("the first difference is of command {compared}: {text}");
            }
            findings.entry(format!("{name} {kind}")).or_insert(text);
        }
    }
    println!("{compared} commands, {noted} events");
    assert!(noted > count / 2, "the commands give rise to events");
    let text: Vec<String> = findings.into_iter().map(|(name, text)| format!("{name}: {text}")).collect();
    assert!(text.is_empty(), "{} kinds of differences\n{}", text.len(), text.join("\n"));
}

#[test]
fn valkey_sends_the_same_events_for_a_fixed_seed() {
    compare(20_260_101, 6_000);
}

#[test]
fn valkey_sends_the_same_events_for_a_fresh_seed() {
    compare(fresh_seed(), 6_000);
}

#[test]
fn a_keymiss_in_a_script_is_notified_once() {
    let server = start(&SETTINGS);
    let mut side = Side::new(&server);
    let script: Vec<Vec<u8>> =
        words::split("EVAL_RO \"return redis.call('GET', KEYS[1])\" 1 none").expect("words");
    let (_, events) = side.events(0, &script);
    assert_eq!(events.len(), 2, "{events:?}");
}

/// A cache with more keys than the server remembers loses random keys, not always the latest.
#[test]
fn excess_tracked_keys_are_dropped_at_random() {
    let server = start(&["--tracking-table-max-keys", "1000", "--threads", "1"]);
    let mut client = server.connect3();
    client.run("CLIENT TRACKING ON");
    let (total, last) = (6_000, 300);
    let mut invalidated: Vec<String> = Vec::new();
    for key in 0..total {
        client.send(&["GET", &format!("key:{key}")]).expect("sent");
        // A push message comes before or behind the reply.
        while let Value::Push(parts) = client.read() {
            invalidated.push(parts[1].to_string());
        }
    }
    let is_late = |text: &&String| {
        let number = text
            .split("key:")
            .nth(1)
            .and_then(|rest| rest.trim_end_matches(['"', ']']).parse::<usize>().ok());
        number.expect("a key") >= total - last
    };
    let late = invalidated.iter().filter(is_late).count();
    assert!(invalidated.len() > total - 1_500, "{} told", invalidated.len());
    assert!(late < last / 2, "{late} of the last {last} keys");
}

#[test]
fn caches_are_invalidated_when_databases_are_swapped() {
    let server = start(&[]);
    let mut client = server.connect3();
    client.run("CLIENT TRACKING ON");
    client.run("SET k 1");
    client.run("GET k");
    server.connect().run("SWAPDB 0 0");
    server.connect().run("SWAPDB 0 1");
    assert_eq!(client.read().to_string(), r#">["invalidate", (null)]"#);
}

/// No client causes the expiry that a lookup finds, so the client itself gets a message for each such key.
#[test]
fn with_noloop_a_client_is_notified_of_keys_it_finds_expired() {
    let server = start(&["--threads", "1"]);
    let mut client = server.connect3();
    client.run("DEBUG SET-ACTIVE-EXPIRE 0");
    client.run("CLIENT TRACKING ON BCAST NOLOOP");
    for key in ["{t}a", "{t}b", "{t}c"] {
        client.call(&["SET", key, "1", "PX", "10"]);
    }
    std::thread::sleep(Duration::from_millis(30));
    client.send(&["SCAN", "0", "COUNT", "1000"]).expect("sent");
    let mut invalidated = String::new();
    for _ in 0..2 {
        invalidated += &client.read().to_string();
    }
    for key in ["{t}a", "{t}b", "{t}c"] {
        assert!(invalidated.contains(key), "{invalidated}");
    }
}
