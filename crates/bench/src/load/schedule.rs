//! The open loop: batches are due at fixed times, whatever the server does.
//!
//! A closed loop waits for a slow answer and sends nothing meanwhile, so a stall of a second is a single long
//! latency among thousands of short latencies. In an open loop, every batch that was due during the stall is
//! late: latencies run from the moment at which a batch should have been sent.

use std::time::{Duration, Instant};

/// The batches of a thread, at even distances.
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

    /// Starts the schedule: nothing was due before now.
    pub(super) fn begin(&mut self) {
        self.due = Instant::now() + self.first;
    }

    /// Returns the moment at which the next batch was due, if it is; the batch counts as sent.
    pub(super) fn take(&mut self, now: Instant) -> Option<Instant> {
        let due = self.due;
        (due <= now).then(|| {
            self.due += self.every;
            due
        })
    }

    /// Returns the time until a batch is due.
    pub(super) fn until_due(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    /// Returns the number of batches that are due and not sent.
    pub(super) fn late(&self, now: Instant) -> u64 {
        let late = self.late_by(now);
        if late.is_zero() { 0 } else { 1 + (late.as_nanos() / self.every.as_nanos().max(1)) as u64 }
    }

    /// Returns how long the oldest unsent batch has been due.
    pub(super) fn late_by(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overdue_requests_are_late_and_not_dropped() {
        let mut schedule = Schedule::new(1_000.0, 0, 1);
        let start = schedule.due;
        let ms = |ms| start + Duration::from_millis(ms);
        assert_eq!(schedule.take(start), Some(start));
        assert_eq!(schedule.take(start), None);
        assert_eq!(schedule.until_due(start), Duration::from_millis(1));
        // Nothing was taken for ten milliseconds.
        let late: Vec<Instant> = std::iter::from_fn(|| schedule.take(ms(10))).collect();
        assert_eq!(late, (1..=10).map(ms).collect::<Vec<_>>());
        assert_eq!(schedule.late_by(ms(14)), Duration::from_millis(3));
        assert_eq!(schedule.late(ms(14)), 4);
        assert_eq!(schedule.until_due(ms(14)), Duration::ZERO);
    }
}
