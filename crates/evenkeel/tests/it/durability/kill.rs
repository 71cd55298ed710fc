//! Servers that are killed under load, repeatedly, and the data after their next start.
//!
//! Each writer numbers its writes and puts each number on a list, alone or in a transaction with keys of
//! other slots and databases. So the list shows the last write on disk, and all other keys follow from it:
//! every write up to it is there as a whole, and no later write. Rewrites and snapshots run all the time.
//!
//! A killed process loses nothing that it has passed to the kernel. [`super::failing`] simulates a machine's
//! crash.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

use evenkeel_resp::value::{Value, encode_command};
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Client, Random, Server};

use crate::start;

/// More rounds, for nightly runs: each takes about half a second.
const ROUNDS_VARIABLE: &str = "EVENKEEL_KILLS";

const WRITERS: usize = 5;
/// Most writes that a writer sends at once.
const BATCH_MAX: usize = 12;
const MARKS: u64 = 7;
const FAR_MS: i64 = 3_600_000;
const SOON_MS: i64 = 15;

/// With `everysec`, the time span of possible loss.
const LOSS: Duration = Duration::from_secs(1);

/// A writer of a round, and its acknowledged writes.
#[derive(Clone)]
struct Writer {
    round: usize,
    index: usize,
    sent: u64,
    acknowledged: u64,
    /// Times, with the number of acknowledged writes.
    when: Vec<(Instant, u64)>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Writer { round, index, sent, acknowledged, .. } = self;
        write!(f, "writer {index} of round {round} ({acknowledged} of {sent} acknowledged)")
    }
}

impl Writer {
    fn home_database(&self) -> String {
        (self.index % 3).to_string()
    }

    fn other_database(&self) -> String {
        (3 + self.index % 4).to_string()
    }

    /// A key of this writer, in any slot.
    fn key(&self, kind: &str) -> String {
        format!("{kind}:{}:{}", self.round, self.index)
    }

    /// The commands of a write.
    fn commands(&self, number: u64) -> Vec<Vec<String>> {
        let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let (n, mark) = (number.to_string(), (number % MARKS).to_string());
        let push = text(&["RPUSH", &self.key("list"), &n]);
        let key = |kind: &str| self.key(&format!("{kind}{mark}"));
        let (far, soon) = (FAR_MS.to_string(), SOON_MS.to_string());
        let others = match number % 5 {
            0 | 1 => return vec![push],
            2 => vec![text(&["SET", &key("mark"), &n])],
            3 => vec![
                text(&["SELECT", &self.other_database()]),
                text(&["SET", &key("far"), &n, "PX", &far]),
                text(&["SELECT", &self.home_database()]),
            ],
            _ => vec![text(&["SET", &key("soon"), &n, "PX", &soon]), text(&["INCR", &self.key("sum")])],
        };
        let (multi, exec) = (text(&["MULTI"]), text(&["EXEC"]));
        [multi, push].into_iter().chain(others).chain([exec]).collect()
    }

    /// Writes until the server is gone, possibly at once.
    fn work(&mut self, client: &mut Client, random: &mut Random) {
        if client.try_call(&["SELECT", &self.home_database()]).is_err() {
            return;
        }
        while self.send_some(client, 1 + random.below(BATCH_MAX) as u64).is_ok() {}
    }

    fn send_some(&mut self, client: &mut Client, count: u64) -> io::Result<()> {
        let writes: Vec<_> =
            (self.sent + 1..=self.sent + count).map(|number| self.commands(number)).collect();
        self.sent += count;
        let bytes: Vec<u8> = writes.iter().flatten().flat_map(|args| encode_command(args)).collect();
        client.send_raw(&bytes)?;
        for write in &writes {
            for command in write {
                let reply = client.try_read()?;
                assert!(!reply.is_error() && !reply.is_null(), "{command:?}: {reply}");
            }
            self.acknowledged += 1;
        }
        self.when.push((Instant::now(), self.acknowledged));
        Ok(())
    }

    /// Number of acknowledged writes at a time.
    fn acknowledged_at(&self, moment: Instant) -> u64 {
        let before = self.when.iter().rev().find(|(when, _)| *when <= moment);
        before.map_or(0, |(_, acknowledged)| *acknowledged)
    }

    /// Checks all written keys, and returns the last write that is there.
    fn check(&self, client: &mut Client) -> u64 {
        client.call(&["SELECT", &self.home_database()]);
        let list = client.call(&["LRANGE", &self.key("list"), "0", "-1"]);
        let numbers: Vec<u64> = list.as_items().expect("an array").iter().map(number).collect();
        let len = numbers.len() as u64;
        let gap = numbers.iter().zip(1..).find(|(there, expected)| **there != *expected);
        assert_eq!(gap, None, "{self:?}: a write is missing, or came twice or late");
        let last = |kind: u64, mark: u64| (1..=len).rev().find(|n| n % 5 == kind && n % MARKS == mark);
        for mark in 0..MARKS {
            let guard = client.call(&["GET", &self.key(&format!("mark{mark}"))]);
            assert_eq!(some_number(&guard), last(2, mark), "mark {mark} of {self:?}, {len} on the list");
            let gone = client.call(&["GET", &self.key(&format!("soon{mark}"))]);
            assert!(gone.is_null(), "soon {mark} of {self:?} is {gone}");
        }
        let sum = client.call(&["GET", &self.key("sum")]);
        let expected = (1..=len).filter(|n| n % 5 == 4).count() as u64;
        assert_eq!(some_number(&sum).unwrap_or(0), expected, "sum of {self:?}");
        client.call(&["SELECT", &self.other_database()]);
        for mark in 0..MARKS {
            let key = self.key(&format!("far{mark}"));
            let guard = client.call(&["GET", &key]);
            assert_eq!(some_number(&guard), last(3, mark), "far {mark} of {self:?}, {len} on the list");
            let left = client.call(&["PTTL", &key]).as_int().expect("a number");
            let right = if guard.is_null() { left == -2 } else { (FAR_MS / 2..FAR_MS).contains(&left) };
            assert!(right, "far {mark} of {self:?} lives for {left} ms more");
        }
        len
    }
}

fn number(value: &Value) -> u64 {
    some_number(value).unwrap_or_else(|| panic!("{value} is no number"))
}

fn some_number(value: &Value) -> Option<u64> {
    std::str::from_utf8(value.as_bytes()?).ok()?.parse().ok()
}

/// Runs all writers for `run`, and kills the server; returns the writers and the time of the kill.
fn round(server: &mut Server, round: usize, run: Duration, seed: u64) -> (Vec<Writer>, Instant) {
    let (done, ends) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let mut clients: Vec<Client> = (0..=WRITERS).map(|_| server.connect()).collect();
    let mut killed = Instant::now();
    let mut operator = clients.pop().expect("one more than writers");
    std::thread::scope(|scope| {
        for (index, mut client) in clients.into_iter().enumerate() {
            let done = &done;
            scope.spawn(move || {
                let mut writer = Writer { round, index, sent: 0, acknowledged: 0, when: Vec::new() };
                writer.work(&mut client, &mut Random::new(seed ^ index as u64));
                done.lock().expect("no holder panics").push(writer);
            });
        }
        scope.spawn(|| disturb(&mut operator, &ends, &mut Random::new(seed)));
        std::thread::sleep(run);
        ends.store(true, Relaxed);
        killed = Instant::now();
        server.kill();
    });
    (done.into_inner().expect("no holder panics"), killed)
}

/// Duration of the disturbance: a longer round also has a server without requests.
const DISTURBANCE: Duration = Duration::from_millis(600);

/// Asks for rewrites and snapshots at random times.
fn disturb(client: &mut Client, ends: &AtomicBool, random: &mut Random) {
    let began = Instant::now();
    while !ends.load(Relaxed) && began.elapsed() < DISTURBANCE {
        std::thread::sleep(Duration::from_millis(random.below(90) as u64));
        let wish = random.pick(&["BGREWRITEAOF", "BGREWRITEAOF", "BGSAVE SCHEDULE", "PING"]);
        let words: Vec<&str> = wish.split(' ').collect();
        if client.try_call(&words).is_err() {
            return;
        }
    }
}

pub(super) fn with_log(fsync: &str) -> [&str; 6] {
    ["--appendonly", "yes", "--appendfsync", fsync, "--threads", "2"]
}

/// Runs rounds of these lengths. `fallen` is called between a kill and the next start, with the time of the
/// kill; it returns the time up to which acknowledged writes must be there. `None`: all of them.
pub(super) fn rounds(
    mut server: Server,
    lengths: &[Duration],
    seed: u64,
    mut fallen: impl FnMut(&Server, Instant) -> Option<Instant>,
) {
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    let (mut before, mut total, mut lost) = (Vec::<(Writer, u64)>::new(), 0, 0);
    for (number, run) in lengths.iter().enumerate() {
        let (writers, killed) = round(&mut server, number, *run, random.draw());
        let until = fallen(&server, killed);
        server.start_again();
        std::thread::sleep(Duration::from_millis(SOON_MS as u64 + 5));
        server.assert_healthy();
        let mut client = server.connect();
        for (writer, len) in &before {
            assert_eq!(writer.check(&mut client), *len, "what an earlier round left");
        }
        for writer in writers {
            let len = writer.check(&mut client);
            let least = until.map_or(writer.acknowledged, |until| writer.acknowledged_at(until));
            assert!(len >= least, "round {number}: {len} writes are there of {least} that must be");
            assert!(len <= writer.sent, "{len} writes are there of {} sent", writer.sent);
            (total, lost) = (total + len, lost + writer.acknowledged.saturating_sub(len));
            before.push((writer, len));
        }
        if number % 4 == 3 {
            client.run("FLUSHALL");
            before.clear();
        }
    }
    println!("{} kills, {total} writes, {lost} acknowledged ones lost", lengths.len());
    assert!(total > 20 * lengths.len() as u64, "{total} writes are no load");
}

/// Random lengths of the wanted number of rounds, each third longer by `longer`.
pub(super) fn lengths(count: usize, longer: Duration) -> Vec<Duration> {
    let wanted = std::env::var(ROUNDS_VARIABLE).ok();
    let count = wanted.map_or(count, |text| text.parse().expect("EVENKEEL_KILLS is a number"));
    let mut random = Random::new(fresh_seed());
    let more = |round: usize| if round % 3 == 2 { longer } else { Duration::ZERO };
    (0..count).map(|round| Duration::from_millis(40 + random.below(500) as u64) + more(round)).collect()
}

#[test]
fn with_always_all_acknowledged_writes_survive() {
    rounds(start(&with_log("always")), &lengths(34, Duration::ZERO), fresh_seed(), |_, _| None);
}

#[test]
fn with_everysec_at_most_a_second_is_lost() {
    let lengths = lengths(16, LOSS + LOSS / 2);
    rounds(start(&with_log("everysec")), &lengths, fresh_seed(), |_, killed| Some(killed - LOSS));
}
