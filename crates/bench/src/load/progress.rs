//! A line on the terminal that shows the rate and the progress of a run, once a second.

use std::cell::Cell;
use std::io::Write;
use std::time::{Duration, Instant};

use super::Until;
use crate::table::thousands;

const EVERY: Duration = Duration::from_secs(1);
/// Columns of the longest line: 100% and a rate of a billion.
const WIDTH: usize = 48;

/// Removes its line when it is dropped.
pub(super) struct Progress {
    began: Instant,
    /// The time of the last line, and the number of commands answered then.
    last: Cell<(Instant, u64)>,
    is_shown: Cell<bool>,
}

impl Progress {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { began: now, last: Cell::new((now, 0)), is_shown: Cell::new(false) }
    }

    /// Writes the line when it is time. `commands` returns the number of commands answered.
    pub(super) fn tick(&self, until: &Until, commands: impl FnOnce() -> u64) {
        let (now, (before, answered_before)) = (Instant::now(), self.last.get());
        let passed = now.saturating_duration_since(before);
        if passed < EVERY {
            return;
        }
        let commands = commands();
        self.last.set((now, commands));
        self.is_shown.set(true);
        let rate = (commands - answered_before) as f64 / passed.as_secs_f64();
        show(&line(done(until, now - self.began, commands), rate));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown.get() {
            show("");
        }
    }
}

/// Overwrites the line, and leaves the cursor at its beginning.
fn show(line: &str) {
    let mut stderr = std::io::stderr().lock();
    // failure to show it does no harm
    let _ = write!(stderr, "{line:<WIDTH$}\r").and_then(|()| stderr.flush());
}

/// Returns the part of the run that is over, if known.
fn done(until: &Until, elapsed: Duration, commands: u64) -> Option<f64> {
    match until {
        Until::Time { warm_up, measured } => {
            Some(elapsed.as_secs_f64() / (*warm_up + *measured).as_secs_f64())
        }
        Until::Requests(requests) => Some(commands as f64 / *requests as f64),
        Until::Event { .. } => None,
    }
}

fn line(done: Option<f64>, rate: f64) -> String {
    let done = done.map_or(String::new(), |done| format!("{:3.0}%  ", done.min(1.0) * 100.0));
    format!("  {done}{} requests per second", thousands(rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_and_how_fast() {
        let seconds = Duration::from_secs;
        let time = Until::Time { warm_up: seconds(1), measured: seconds(9) };
        assert_eq!(line(done(&time, seconds(5), 7), 1234567.0), "   50%  1,234,567 requests per second");
        assert_eq!(line(done(&time, seconds(11), 7), 0.0), "  100%  0 requests per second");
        assert_eq!(done(&Until::Requests(200), seconds(5), 50), Some(0.25));
        assert!(line(Some(1.0), 1e9).len() < WIDTH);
    }
}
