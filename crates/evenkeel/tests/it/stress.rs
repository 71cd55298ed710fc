//! Many clients at once on the same keys, and invariants of every instant: atomicity across slots, exact
//! totals, and SCAN's guarantee. Each test runs for a fixed short time on several threads, so more cores give
//! more interleavings; the counts are printed.

mod caches;
mod messages;
mod moves;
mod orders;
mod pieces;
mod queues;
mod scan;
mod together;
mod totals;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evenkeel_resp::value::Value;
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Client, Random, Server};

const RUN: Duration = Duration::from_millis(2_500);

/// State of a thread of a crowd.
struct Member<'a> {
    client: Client,
    random: Random,
    until: Instant,
    stop: &'a AtomicBool,
    turns: u64,
}

impl Member<'_> {
    /// True until time is up or another member has failed.
    fn goes_on(&mut self) -> bool {
        self.turns += 1;
        Instant::now() < self.until && !self.stop.load(Ordering::Relaxed)
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

type Part<'a> = &'a (dyn Fn(&mut Member<'_>) + Sync);

/// Runs each part on its number of threads, all at once, for [`RUN`]; returns the sum of their turns.
#[track_caller]
fn crowd(server: &mut Server, parts: &[(usize, Part<'_>)]) -> u64 {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let (stop, turns, until) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now() + RUN);
    let mut number = 0;
    std::thread::scope(|scope| {
        for (count, part) in parts {
            for _ in 0..*count {
                number += 1;
                let random = Random::new(seed.wrapping_add(number));
                let mut member = Member { client: server.connect(), random, until, stop: &stop, turns: 0 };
                let turns = &turns;
                scope.spawn(move || {
                    part(&mut member);
                    turns.fetch_add(member.turns, Ordering::Relaxed);
                });
            }
        }
    });
    server.assert_healthy();
    let turns = turns.into_inner();
    println!("{turns} turns of {number} clients");
    turns
}

/// The number in a bulk string.
fn number(value: &Value) -> i64 {
    let text = value.as_bytes().and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{value} is no number"))
}

/// Runs a transaction; returns its commands' replies, or `None` if a watched key has changed.
fn exec(client: &mut Client, commands: &[Vec<String>]) -> Option<Vec<Value>> {
    let mut all = vec![vec!["MULTI".to_owned()]];
    all.extend_from_slice(commands);
    all.push(vec!["EXEC".to_owned()]);
    let mut replies = client.pipeline(&all);
    match replies.pop() {
        Some(Value::Array(results)) if results.len() == commands.len() => Some(results),
        Some(Value::NullArray | Value::Null) => None,
        other => panic!("EXEC says {}", other.unwrap_or(Value::Null)),
    }
}

fn command<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}
