//! Time for which the idle machine keeps a thread from running.
//!
//! The hypervisor takes a virtual machine's processors away for milliseconds at a time. A server that does
//! not answer in such a moment has not stalled. An empty loop on each processor sees how often that happens,
//! and for how long.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::json::{Json, object};
use crate::table::time_us;
use crate::{interrupt, sys};

/// Shortest gap that is counted.
const LONG: Duration = Duration::from_millis(1);

/// The pauses seen by empty loops.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Pauses {
    /// The longest gap between two readings of the clock.
    longest: Duration,
    /// Gaps of a millisecond or more, of all processors.
    long: u64,
    /// Duration of the observation, on each processor.
    observed: Duration,
}

impl Pauses {
    /// Runs an empty loop on each processor that this process may use.
    pub(crate) fn observe(time: Duration) -> Result<Pauses> {
        let cpus = sys::allowed_cpus();
        let seen = thread::scope(|scope| {
            let loops: Vec<_> = cpus.iter().map(|cpu| scope.spawn(|| spin(*cpu, time))).collect();
            loops.into_iter().map(|one| one.join().expect("a loop does not panic")).collect::<Vec<_>>()
        });
        interrupt::check()?;
        let of_one = seen.into_iter().collect::<std::io::Result<Vec<Pauses>>>()?;
        let together = of_one.into_iter().fold(Pauses::default(), Pauses::and);
        Ok(Pauses { observed: time, ..together })
    }

    /// Returns the sum of two observations in sequence.
    pub(crate) fn and(self, other: Pauses) -> Pauses {
        Pauses {
            longest: self.longest.max(other.longest),
            long: self.long + other.long,
            observed: self.observed + other.observed,
        }
    }

    pub(crate) fn longest_us(self) -> f64 {
        self.longest.as_secs_f64() * 1e6
    }

    /// `an empty loop on each core for 6 s: the longest pause 4.03 ms, 5 of a millisecond or more`
    pub(crate) fn words(self) -> String {
        format!(
            "an empty loop on each core for {:.0} s: the longest pause {}, {} of a millisecond or more",
            self.observed.as_secs_f64(),
            time_us(self.longest_us()),
            self.long,
        )
    }

    pub(crate) fn to_json(self) -> Json {
        object(vec![
            ("longest_us", self.longest_us().into()),
            ("of_1_ms_or_more", self.long.into()),
            ("looked_s", self.observed.as_secs_f64().into()),
        ])
    }
}

fn spin(cpu: usize, time: Duration) -> std::io::Result<Pauses> {
    sys::pin(&[cpu])?;
    let began = Instant::now();
    let (mut pauses, mut last) = (Pauses::default(), began);
    while last - began < time {
        let now = Instant::now();
        let gap = now - last;
        pauses.longest = pauses.longest.max(gap);
        pauses.long += u64::from(gap >= LONG);
        last = now;
    }
    Ok(Pauses { observed: last - began, ..pauses })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_loop_detects_lost_processor_time() {
        let cpu = sys::allowed_cpus()[0];
        let alone = spin(cpu, Duration::from_millis(50)).expect("it may run there");
        assert!(alone.observed >= Duration::from_millis(50) && alone.longest < alone.observed, "{alone:?}");
        let beside = thread::scope(|scope| {
            let until = Instant::now() + Duration::from_millis(200);
            for _ in 0..3 {
                scope.spawn(move || {
                    sys::pin(&[cpu]).expect("it may run there");
                    while Instant::now() < until {}
                });
            }
            spin(cpu, Duration::from_millis(150)).expect("it may run there")
        });
        assert!(beside.longest >= LONG && beside.long > 1, "{beside:?}");
    }

    #[test]
    fn two_observations_are_merged() {
        let of = |longest, long, observed| Pauses {
            longest: Duration::from_micros(longest),
            long,
            observed: Duration::from_secs(observed),
        };
        let both = of(4030, 2, 3).and(of(100, 0, 3));
        assert_eq!(both, of(4030, 2, 6));
        let words =
            "an empty loop on each core for 6 s: the longest pause 4.03 ms, 2 of a millisecond or more";
        assert_eq!(both.words(), words);
    }
}
