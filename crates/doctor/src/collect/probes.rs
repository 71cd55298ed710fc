//! Probes on request: the latency of a function, counts of kernel tracepoints and functions, and the target's
//! own static probes.
//!
//! Their cost depends on the request, so they are never a part of a diagnosis. A function with more than
//! `CALLS_A_SECOND_MAX` calls a second is refused: a probe costs up to 6 us a call, and would slow such a
//! server by more than a tenth.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Result;

use super::target::FoundProcess;

/// Latency of the calls of a function.
#[derive(Debug, Clone, Default)]
pub(crate) struct FunctionTimes {
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
pub(crate) struct TracepointCounts {
    pub(crate) seconds: f64,
    pub(crate) counts: Vec<(String, u64)>,
}

/// A stage of requests, by the target's static probes and by its own statistics.
#[derive(Debug, Clone)]
pub(crate) struct StageTimes {
    pub(crate) name: String,
    pub(crate) times: u64,
    pub(crate) probe_us: f64,
    pub(crate) server_us: f64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct RequestStages {
    pub(crate) seconds: f64,
    pub(crate) stages: Vec<StageTimes>,
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
    use crate::collect::{STEP_MAX, descriptors, server_query, target};

    const CALLS_A_SECOND_MAX: f64 = 20_000.0;
    /// Calls are counted this long before the first check: at a tenth of the limit these are 100 calls.
    const TRIAL: Duration = Duration::from_millis(50);

    pub(crate) fn time_function(
        found: &FoundProcess,
        name: &str,
        length: Duration,
        stop: &AtomicBool,
    ) -> Result<FunctionTimes> {
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
        Ok(FunctionTimes {
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
        found: &FoundProcess,
        pattern: &str,
        length: Duration,
        stop: &AtomicBool,
    ) -> Result<TracepointCounts> {
        let counter = bpf::Counter::start(found.pid, pattern)?;
        let passed = wait(found, length, stop, STEP_MAX, |_| Ok(()))?;
        Ok(TracepointCounts { seconds: passed.as_secs_f64(), counts: counter.finish() })
    }

    /// Compares the probe at each stage of a request with the server's own statistics. The probe gives a
    /// stage's number and time, and the statistics give the names.
    pub(crate) fn stages(
        found: &FoundProcess,
        password: Option<&str>,
        length: Duration,
        stop: &AtomicBool,
    ) -> Result<RequestStages> {
        let name = target::describe(found.pid).name;
        let (descriptors, _) = descriptors::describe_all(found.pid, &name);
        let server = server_query::server(found.pid, &descriptors, &name, password);
        let ask = || {
            let stages = server.as_ref().and_then(server_query::Server::info).and_then(|info| info.stages);
            stages.context("its INFO has no times of the stages of requests")
        };
        ask()?;
        let probe = bpf::StaticProbe::start(found.pid, "evenkeel", "stage")?;
        let hits = |totals: &[bpf::ProbeTotal]| totals.iter().map(|totals| totals.count).sum::<u64>();
        // The probe's counts are read before INFO: the end of INFO's own execution is then in neither or in
        // both.
        let (before, counted_before) = (probe.totals(), ask()?);
        let passed = wait(found, length, stop, TRIAL, |passed| {
            let rate = hits(&probe.totals()).saturating_sub(hits(&before)) as f64 / passed.as_secs_f64();
            ensure!(
                rate <= CALLS_A_SECOND_MAX,
                "{rate:.0} stages end each second: to look at each would slow the server too much (at most \
                 {:.0})",
                CALLS_A_SECOND_MAX
            );
            Ok(())
        })?;
        let (after, counted) = (probe.totals(), ask()?);
        let totals = after.iter().zip(&before);
        let times = counted.us.iter().zip(&counted_before.us);
        let stages = totals.zip(times).map(|((after, before), ((name, us), (_, us_before)))| StageTimes {
            name: name.clone(),
            times: after.count.saturating_sub(before.count),
            probe_us: after.sum.saturating_sub(before.sum) as f64 / counted.ticks_per_us,
            server_us: us.saturating_sub(*us_before) as f64,
        });
        Ok(RequestStages { seconds: passed.as_secs_f64(), stages: stages.collect() })
    }

    /// Waits for the end of the window, checking at each step, the first after `step`. Returns the actual
    /// length.
    fn wait(
        found: &FoundProcess,
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

    pub(crate) fn time_function(
        _: &FoundProcess,
        _: &str,
        _: Duration,
        _: &AtomicBool,
    ) -> Result<FunctionTimes> {
        bail!(WHY)
    }

    pub(crate) fn count(_: &FoundProcess, _: &str, _: Duration, _: &AtomicBool) -> Result<TracepointCounts> {
        bail!(WHY)
    }

    pub(crate) fn stages(
        _: &FoundProcess,
        _: Option<&str>,
        _: Duration,
        _: &AtomicBool,
    ) -> Result<RequestStages> {
        bail!(WHY)
    }
}
