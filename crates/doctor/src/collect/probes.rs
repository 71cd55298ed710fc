//! Probes on request: the latency of a function, counts of kernel tracepoints and functions, and the target's
//! own static probes.
//!
//! Their cost depends on the request, so they are never a part of a diagnosis. A function with more than
//! `CALLS_A_SECOND_MAX` calls a second is refused: a probe costs up to 6 us a call, and would slow such a
//! server by more than a tenth.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Result;

use super::target::Found;

/// Latency of the calls of a function.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timed {
    pub(crate) function: String,
    pub(crate) module: String,
    pub(crate) seconds: f64,
    pub(crate) count: u64,
    /// Nested calls, and calls that had not returned.
    pub(crate) unfinished: u64,
    pub(crate) sum_ns: u64,
    pub(crate) longest_ns: u64,
    /// (Bound in nanoseconds, calls below it and not below the bound of the entry before).
    pub(crate) slots: Vec<(u64, u64)>,
}

/// Names and counts, the most frequent first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counted {
    pub(crate) seconds: f64,
    pub(crate) counts: Vec<(String, u64)>,
}

/// A stage of requests, by the target's static probes and by its own statistics.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub(crate) name: String,
    pub(crate) times: u64,
    pub(crate) told_us: f64,
    pub(crate) counted_us: f64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Staged {
    pub(crate) seconds: f64,
    pub(crate) stages: Vec<Stage>,
}

#[cfg(feature = "bpf")]
pub(crate) use with_programs::{count, stages, time_function};
#[cfg(not(feature = "bpf"))]
pub(crate) use without_programs::{count, stages, time_function};

#[cfg(feature = "bpf")]
mod with_programs {
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    use anyhow::{Context, bail, ensure};
    use evenkeel_doctor_bpf as bpf;

    use super::*;
    use crate::collect::{STEP_MAX, descriptors, helper, target};

    const CALLS_A_SECOND_MAX: f64 = 20_000.0;
    /// Calls are counted this long before the first check: at a tenth of the limit these are 100 calls.
    const TRIAL: Duration = Duration::from_millis(50);

    pub(crate) fn time_function(
        found: &Found,
        name: &str,
        length: Duration,
        stop: &AtomicBool,
    ) -> Result<Timed> {
        let function = bpf::find(found.pid, name)?;
        let stopwatch = bpf::Stopwatch::start(found.pid, &function)?;
        let passed = wait(found, length, stop, TRIAL, |passed| {
            let rate = stopwatch.begun() as f64 / passed.as_secs_f64();
            ensure!(
                rate <= CALLS_A_SECOND_MAX,
                "{} is called {rate:.0} times a second: timing each call would slow the server too much (at \
                 most {:.0}). Its share of CPU time is a part of every diagnosis",
                function.name,
                CALLS_A_SECOND_MAX
            );
            Ok(())
        })?;
        let seen = stopwatch.finish();
        Ok(Timed {
            function: function.name,
            module: function.module,
            seconds: passed.as_secs_f64(),
            count: seen.count,
            unfinished: seen.begun.saturating_sub(seen.count),
            sum_ns: seen.sum_ns,
            longest_ns: seen.longest_ns,
            slots: seen.slots,
        })
    }

    pub(crate) fn count(
        found: &Found,
        pattern: &str,
        length: Duration,
        stop: &AtomicBool,
    ) -> Result<Counted> {
        let counter = bpf::Counter::start(found.pid, pattern)?;
        let passed = wait(found, length, stop, STEP_MAX, |_| Ok(()))?;
        Ok(Counted { seconds: passed.as_secs_f64(), counts: counter.finish() })
    }

    /// Compares the probe at each stage of a request with the server's own statistics. The probe gives a
    /// stage's number and time, and the statistics give the names.
    pub(crate) fn stages(
        found: &Found,
        password: Option<&str>,
        length: Duration,
        stop: &AtomicBool,
    ) -> Result<Staged> {
        let name = target::describe(found.pid).name;
        let (descriptors, _) = descriptors::describe_all(found.pid, &name);
        let server = helper::server(found.pid, &descriptors, &name, password);
        let ask = || {
            let stages = server.as_ref().and_then(helper::Server::say).and_then(|said| said.stages);
            stages.context("its INFO has no times of the stages of requests")
        };
        ask()?;
        let teller = bpf::Teller::start(found.pid, "evenkeel", "stage")?;
        let met = |told: &[bpf::Told]| told.iter().map(|told| told.count).sum::<u64>();
        // The probe's counts are read before INFO: the end of INFO's own execution is then in neither or in
        // both.
        let (before, counted_before) = (teller.told(), ask()?);
        let passed = wait(found, length, stop, TRIAL, |passed| {
            let rate = met(&teller.told()).saturating_sub(met(&before)) as f64 / passed.as_secs_f64();
            ensure!(
                rate <= CALLS_A_SECOND_MAX,
                "{rate:.0} stages end each second: to look at each would slow the server too much (at most \
                 {:.0})",
                CALLS_A_SECOND_MAX
            );
            Ok(())
        })?;
        let (after, counted) = (teller.told(), ask()?);
        let told = after.iter().zip(&before);
        let times = counted.us.iter().zip(&counted_before.us);
        let stages = told.zip(times).map(|((after, before), ((name, us), (_, us_before)))| Stage {
            name: name.clone(),
            times: after.count.saturating_sub(before.count),
            told_us: after.sum.saturating_sub(before.sum) as f64 / counted.ticks_per_us,
            counted_us: us.saturating_sub(*us_before) as f64,
        });
        Ok(Staged { seconds: passed.as_secs_f64(), stages: stages.collect() })
    }

    /// Waits for the end of the window, checking at each step, the first after `step`. Returns the actual
    /// length.
    fn wait(
        found: &Found,
        length: Duration,
        stop: &AtomicBool,
        mut step: Duration,
        mut check: impl FnMut(Duration) -> Result<()>,
    ) -> Result<Duration> {
        let start = Instant::now();
        while start.elapsed() < length && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(step.min(length.saturating_sub(start.elapsed())));
            if !found.is_alive() {
                bail!("process {} ended after {:.1} s", found.pid, start.elapsed().as_secs_f64());
            }
            check(start.elapsed())?;
            step = STEP_MAX;
        }
        Ok(start.elapsed())
    }
}

#[cfg(not(feature = "bpf"))]
mod without_programs {
    use anyhow::bail;

    use super::*;

    const WHY: &str = "this evenkeel-doctor was built without eBPF, which that question needs \
                       (cargo build -p evenkeel-doctor --features bpf)";

    pub(crate) fn time_function(_: &Found, _: &str, _: Duration, _: &AtomicBool) -> Result<Timed> {
        bail!(WHY)
    }

    pub(crate) fn count(_: &Found, _: &str, _: Duration, _: &AtomicBool) -> Result<Counted> {
        bail!(WHY)
    }

    pub(crate) fn stages(_: &Found, _: Option<&str>, _: Duration, _: &AtomicBool) -> Result<Staged> {
        bail!(WHY)
    }
}
