//! Slows the writers of slots that leave, when the target does not catch up with them.
//!
//! Once the snapshot has been sent, the target has [`PATIENCE`] to catch up. Then the backlog that writers
//! may leave begins to shrink, by half of the rate at which the target takes bytes. Writers of the leaving
//! slots wait while the backlog is longer. So they keep half of that rate, and the backlog ends in bounded
//! time, however fast they are.

use std::time::{Duration, Instant};

/// For how long the backlog may shrink by itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// The time over which the rate of the target is measured.
const WINDOW: Duration = Duration::from_millis(50);

/// The part of the target's rate by which the backlog shrinks.
const SHARE: f64 = 0.5;

/// See the module's text.
#[derive(Default)]
pub(super) struct Brake {
    begun: Option<Begun>,
}

struct Begun {
    at: Instant,
    /// Bytes that the backlog may have.
    allowed: f64,
    looked: Instant,
    /// The beginning of the present window, and the bytes acknowledged by then.
    window: (Instant, u64),
    /// Bytes per second, of the last window.
    rate: f64,
}

impl Brake {
    /// Decides whether writers wait. `backlog`: bytes behind the snapshot that the target has not
    /// acknowledged; `None`: the snapshot has not been sent. `acked`: all bytes that it has acknowledged.
    /// `enough`: the backlog with which the move can end.
    pub(super) fn holds(&mut self, now: Instant, backlog: Option<u64>, acked: u64, enough: u64) -> bool {
        let Some(backlog) = backlog else { return false };
        let begun = self.begun.get_or_insert(Begun {
            at: now,
            allowed: 0.0,
            looked: now,
            window: (now, acked),
            rate: 0.0,
        });
        let (since, former) = begun.window;
        let length = now.saturating_duration_since(since);
        if length >= WINDOW {
            begun.rate = acked.saturating_sub(former) as f64 / length.as_secs_f64();
            begun.window = (now, acked);
        }
        let step = now.saturating_duration_since(std::mem::replace(&mut begun.looked, now));
        if now.saturating_duration_since(begun.at) < PATIENCE {
            begun.allowed = backlog as f64;
            return false;
        }
        begun.allowed = (begun.allowed - SHARE * begun.rate * step.as_secs_f64()).max(enough as f64);
        backlog as f64 > begun.allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENOUGH: u64 = 32 * 1024;
    const STEP: Duration = Duration::from_millis(1);

    /// Lets a writer of `demand` bytes per second and a target of `rate` go on for `time`. Returns when the
    /// backlog was short enough, and the bytes written until then.
    fn run(mut backlog: u64, demand: u64, rate: u64, time: Duration) -> Option<(Duration, u64)> {
        let (mut brake, begin) = (Brake::default(), Instant::now());
        let (mut now, mut acked, mut written) = (begin, 0, 0);
        while now < begin + time {
            now += STEP;
            if backlog <= ENOUGH {
                return Some((now - begin, written));
            }
            if !brake.holds(now, Some(backlog), acked, ENOUGH) {
                (backlog, written) = (backlog + demand / 1_000, written + demand / 1_000);
            }
            let taken = backlog.min(rate / 1_000);
            (backlog, acked) = (backlog - taken, acked + taken);
        }
        None
    }

    #[test]
    fn a_faster_writer_is_slowed_until_the_target_has_caught_up() {
        const MB: u64 = 1 << 20;
        let (took, written) = run(50 * MB, 200 * MB, 100 * MB, Duration::from_secs(60)).expect("it ends");
        // 50 MB, and what comes in the first second, at 50 MB per second.
        assert!(took <= Duration::from_secs(5), "{took:?}");
        let share = written as f64 / (took.as_secs_f64() * 100.0 * MB as f64);
        assert!(share >= 0.45, "writers had {share} of the target's rate");
        let (took, _) = run(2_000 * MB, 5_000 * MB, 100 * MB, Duration::from_secs(600)).expect("it ends");
        assert!(took <= Duration::from_secs(150), "{took:?}");
    }

    #[test]
    fn a_slower_writer_is_never_slowed() {
        const MB: u64 = 1 << 20;
        let (took, written) = run(30 * MB, 20 * MB, 100 * MB, Duration::from_secs(60)).expect("it ends");
        assert!(took < PATIENCE && written >= 7 * MB, "{took:?} {written}");
    }

    #[test]
    fn nobody_waits_for_a_snapshot() {
        let (mut brake, mut now) = (Brake::default(), Instant::now());
        for _ in 0..10_000 {
            now += STEP;
            assert!(!brake.holds(now, None, 0, ENOUGH));
        }
    }
}
