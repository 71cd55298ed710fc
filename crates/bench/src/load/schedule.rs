//! The open loop: when batches are due, whatever the server does.
//!
//! A closed loop waits for the slow answer and sends nothing meanwhile, so a stall of a second is one long latency among
//! thousands of short ones. Here what was due during the stall is late, each batch by its own measure: latencies run from
//! the moment at which a batch should have been sent.

use std::time::{Duration, Instant};

/// The batches of one thread, at even distances.
#[derive(Debug)]
pub(super) struct Schedule {
    every: Duration,
    /// Threads begin at different moments, so that they do not all send at once.
    first: Duration,
    due: Instant,
}

impl Schedule {
    /// `rate`: batches per second, above 0. For thread `index` of `threads`.
    pub(super) fn new(rate: f64, index: usize, threads: usize) -> Self {
        let every = Duration::from_secs_f64(1.0 / rate);
        Self { every, first: every.mul_f64(index as f64 / threads as f64), due: Instant::now() }
    }

    /// Nothing was due before now.
    pub(super) fn begin(&mut self) {
        self.due = Instant::now() + self.first;
    }

    /// The moment at which the next batch was due, if it is; it counts as sent.
    pub(super) fn take(&mut self, now: Instant) -> Option<Instant> {
        let due = self.due;
        (due <= now).then(|| {
            self.due += self.every;
            due
        })
    }

    /// How long it is until something is due.
    pub(super) fn until_due(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    /// How many batches are due and were not sent.
    pub(super) fn late(&self, now: Instant) -> u64 {
        let late = self.late_by(now);
        if late.is_zero() { 0 } else { 1 + (late.as_nanos() / self.every.as_nanos().max(1)) as u64 }
    }

    /// How long the oldest batch that was not sent has been due.
    pub(super) fn late_by(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_due_meanwhile_is_late_and_not_forgotten() {
        let mut schedule = Schedule::new(1_000.0, 0, 1);
        let start = schedule.due;
        let ms = |ms| start + Duration::from_millis(ms);
        assert_eq!(schedule.take(start), Some(start));
        assert_eq!(schedule.take(start), None);
        assert_eq!(schedule.until_due(start), Duration::from_millis(1));
        // Nobody came for ten milliseconds.
        let late: Vec<Instant> = std::iter::from_fn(|| schedule.take(ms(10))).collect();
        assert_eq!(late, (1..=10).map(ms).collect::<Vec<_>>());
        assert_eq!(schedule.late_by(ms(14)), Duration::from_millis(3));
        assert_eq!(schedule.late(ms(14)), 4);
        assert_eq!(schedule.until_due(ms(14)), Duration::ZERO);
    }
}
