//! Rates and latencies: the difference of two samples.

use std::collections::BTreeMap;

use crate::histogram::Histogram;
use crate::info::{Info, Pairs};
use crate::poll::Sample;

/// Groups of the stages of a worker's time, in the order of a request's way; idle time is the rest.
pub(crate) const STAGES: [&str; 7] = ["read", "parse", "lock", "execute", "write", "upkeep", "other"];

/// Values of the last interval. `None`: the server does not report the value, or there is no interval yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Metrics {
    pub(crate) commands_per_s: Option<f64>,
    /// Estimates from buckets, in microseconds.
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) max_us: Option<f64>,
    pub(crate) hit_ratio: Option<f64>,
    pub(crate) evicted_per_s: Option<f64>,
    pub(crate) expired_per_s: Option<f64>,
    pub(crate) errors_per_s: Option<f64>,
    pub(crate) in_per_s: Option<f64>,
    pub(crate) out_per_s: Option<f64>,
    /// Processor time of the server per second.
    pub(crate) cpu: Option<f64>,
    pub(crate) clients: Option<f64>,
    pub(crate) blocked: Option<f64>,
    pub(crate) used: Option<f64>,
    pub(crate) resident: Option<f64>,
    pub(crate) fragmentation: Option<f64>,
    /// Share of `maxmemory`, if it is set.
    pub(crate) memory_share: Option<f64>,
    /// Bytes by which the slowest replica is behind, or this replica behind its primary.
    pub(crate) replica_lag: Option<f64>,
    /// Bytes of writes that are in memory only, with an append-only file.
    pub(crate) journal_lag: Option<f64>,
    pub(crate) commands: Vec<CommandRates>,
    pub(crate) workers: Vec<WorkerShares>,
}

/// A command in the last interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CommandRates {
    pub(crate) name: String,
    pub(crate) calls_per_s: f64,
    /// Share of the time of all commands.
    pub(crate) share: f64,
    /// `None` without calls.
    pub(crate) us_per_call: Option<f64>,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) max_us: Option<f64>,
    pub(crate) failed_per_s: f64,
    pub(crate) calls: f64,
}

/// A worker in the last interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WorkerShares {
    pub(crate) index: u32,
    /// Shares of the interval by [`STAGES`].
    pub(crate) stages: [f64; STAGES.len()],
}

impl WorkerShares {
    pub(crate) fn busy(&self) -> f64 {
        self.stages.iter().sum()
    }
}

impl Metrics {
    /// Compares a sample with the sample before, unless the server has restarted in between.
    pub(crate) fn between(before: Option<&Sample>, now: &Sample) -> Metrics {
        let mut metrics = Metrics::of_state(&now.info);
        if let Some(before) = before.filter(|before| is_same_server(&before.info, &now.info)) {
            let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
            if seconds > 0.0 {
                let interval = Interval { before: &before.info, now: &now.info, seconds };
                metrics.add_rates(&interval);
                metrics.add_latencies(before, now);
                metrics.workers = workers(&interval);
                metrics.commands = commands(before, now, seconds);
            }
        }
        metrics
    }

    /// Returns the values that are a state, not a rate.
    fn of_state(info: &Info) -> Metrics {
        let limit = info.number("maxmemory").filter(|limit| *limit > 0.0);
        let is_on = info.number("aof_enabled").is_some_and(|on| on > 0.0);
        Metrics {
            clients: info.number("connected_clients"),
            blocked: info.number("blocked_clients"),
            used: info.number("used_memory"),
            resident: info.number("used_memory_rss"),
            fragmentation: info.number("mem_fragmentation_ratio"),
            memory_share: limit.and_then(|limit| Some(info.number("used_memory")? / limit)),
            replica_lag: replica_lag(info),
            journal_lag: if is_on { info.number("aof_buffer_length") } else { None },
            ..Metrics::default()
        }
    }

    fn add_rates(&mut self, interval: &Interval<'_>) {
        self.commands_per_s = interval.rate("total_commands_processed");
        self.evicted_per_s = interval.rate("evicted_keys");
        self.expired_per_s = interval.rate("expired_keys");
        self.errors_per_s = interval.rate("total_error_replies");
        self.in_per_s = interval.rate("total_net_input_bytes");
        self.out_per_s = interval.rate("total_net_output_bytes");
        let cpu = interval.rate("used_cpu_user").zip(interval.rate("used_cpu_sys"));
        self.cpu = cpu.map(|(user, system)| user + system);
        let hits = interval.increase("keyspace_hits").zip(interval.increase("keyspace_misses"));
        self.hit_ratio =
            hits.filter(|(hits, misses)| hits + misses > 0.0).map(|(hits, misses)| hits / (hits + misses));
    }

    fn add_latencies(&mut self, before: &Sample, now: &Sample) {
        let Some(histograms) = &now.histograms else { return };
        let mut all = Histogram::default();
        for (name, histogram) in histograms {
            all.add(&since(histogram, before, name));
        }
        (self.p50_us, self.p99_us, self.max_us) = (all.quantile(0.5), all.quantile(0.99), all.max());
    }
}

/// Two states of a server, and the seconds between them.
struct Interval<'a> {
    before: &'a Info,
    now: &'a Info,
    seconds: f64,
}

impl Interval<'_> {
    fn increase(&self, counter: &str) -> Option<f64> {
        let now = self.now.number(counter)?;
        Some(increase(self.before.number(counter).unwrap_or(0.0), now))
    }

    fn rate(&self, counter: &str) -> Option<f64> {
        Some(self.increase(counter)? / self.seconds)
    }
}

/// Returns the increase of a counter. A counter that fell was reset (CONFIG RESETSTAT), and counts from zero.
fn increase(before: f64, now: f64) -> f64 {
    if now < before { now.max(0.0) } else { now - before }
}

/// Whether two samples are of the same process.
fn is_same_server(before: &Info, now: &Info) -> bool {
    let uptime = |info: &Info| info.number("uptime_in_seconds").unwrap_or(0.0);
    before.text("run_id") == now.text("run_id") && uptime(now) >= uptime(before)
}

fn replica_lag(info: &Info) -> Option<f64> {
    if let Some(received) = info.number("slave_read_repl_offset") {
        return Some((received - info.number("slave_repl_offset")?).max(0.0));
    }
    let offset = info.number("master_repl_offset")?;
    let behind = |(_, replica): (u32, Pairs)| Some((offset - replica.number("offset")?).max(0.0));
    info.numbered("slave").into_iter().filter_map(behind).reduce(f64::max)
}

fn since(histogram: &Histogram, before: &Sample, name: &str) -> Histogram {
    let earlier = before.histograms.as_ref().and_then(|histograms| histograms.get(name));
    histogram.since(earlier.unwrap_or(&Histogram::default()))
}

/// Returns the commands that were called in the interval, or ever.
fn commands(before: &Sample, now: &Sample, seconds: f64) -> Vec<CommandRates> {
    let earlier: BTreeMap<&str, Pairs> = before.info.with_prefix("cmdstat_").collect();
    let mut all_us = 0.0;
    let mut rows: Vec<CommandRates> = Vec::new();
    for (name, pairs) in now.info.with_prefix("cmdstat_") {
        let grown = |counter: &str| {
            let before = earlier.get(name).and_then(|pairs| pairs.number(counter)).unwrap_or(0.0);
            increase(before, pairs.number(counter).unwrap_or(0.0))
        };
        let (calls, us) = (grown("calls"), grown("usec"));
        let histogram = now.histograms.as_ref().and_then(|histograms| histograms.get(name));
        let times = histogram.map(|histogram| since(histogram, before, name)).unwrap_or_default();
        all_us += us;
        rows.push(CommandRates {
            name: name.to_owned(),
            calls_per_s: calls / seconds,
            share: us,
            us_per_call: (calls > 0.0).then(|| us / calls),
            p50_us: times.quantile(0.5),
            p99_us: times.quantile(0.99),
            max_us: times.max(),
            failed_per_s: (grown("failed_calls") + grown("rejected_calls")) / seconds,
            calls: pairs.number("calls").unwrap_or(0.0),
        });
    }
    rows.iter_mut().for_each(|row| row.share = if all_us > 0.0 { row.share / all_us } else { 0.0 });
    rows
}

/// Returns the shares of the workers' time. A server without such an account has none.
fn workers(interval: &Interval<'_>) -> Vec<WorkerShares> {
    let earlier: BTreeMap<u32, Pairs> = interval.before.numbered("worker").into_iter().collect();
    let now = interval.now.numbered("worker").into_iter();
    now.map(|(index, pairs)| shares(index, earlier.get(&index), &pairs, interval.seconds)).collect()
}

fn shares(index: u32, before: Option<&Pairs>, now: &Pairs, seconds: f64) -> WorkerShares {
    let mut stages = [0.0; STAGES.len()];
    for (stage, us) in now.with_suffix("_usec").filter(|(stage, _)| *stage != "idle") {
        let earlier = before.and_then(|pairs| pairs.number(&format!("{stage}_usec"))).unwrap_or(0.0);
        stages[group(stage)] += increase(earlier, us) / 1e6 / seconds;
    }
    // A stage is booked when it ends, so an interval may end with time of the interval before.
    let busy: f64 = stages.iter().sum();
    if busy > 1.0 {
        stages.iter_mut().for_each(|share| *share /= busy);
    }
    WorkerShares { index, stages }
}

/// Returns the group of a stage, as an index of [`STAGES`].
fn group(stage: &str) -> usize {
    match stage {
        "accept" | "read" => 0,
        "parse" => 1,
        "lock_wait" => 2,
        "execute" => 3,
        "write" => 4,
        "expire" | "evict" | "purge" | "compact" => 5,
        _ => 6,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::histogram;

    /// Builds a sample, `seconds` after a moment.
    pub(crate) fn sample(start: Instant, seconds: u64, info: &str, histogram: &[(i64, i64)]) -> Sample {
        let calls = histogram.last().map_or(0, |(_, calls)| *calls);
        Sample {
            at: start + Duration::from_secs(seconds),
            info: Info::parse(info.as_bytes()),
            histograms: Some(histogram::parse(&histogram::tests::reply("get", calls, histogram))),
            extra: None,
            forbidden: Vec::new(),
        }
    }

    const BEFORE: &str = "run_id:a\nuptime_in_seconds:10\ntotal_commands_processed:1000\nevicted_keys:5\n\
        keyspace_hits:10\nkeyspace_misses:10\ncmdstat_get:calls=100,usec=1000,failed_calls=0\n\
        cmdstat_set:calls=7,usec=70\nworker0:execute_usec=0,idle_usec=0,expire_usec=5,odd_usec=0\n";
    const NOW: &str = "run_id:a\nuptime_in_seconds:12\ntotal_commands_processed:3000\nevicted_keys:5\n\
        keyspace_hits:40\nkeyspace_misses:20\nused_memory:50\nmaxmemory:200\nmaster_repl_offset:1000\n\
        slave0:ip=a,offset=900\nslave1:ip=b,offset=400\naof_enabled:1\naof_buffer_length:12\n\
        cmdstat_get:calls=300,usec=4000,failed_calls=4\ncmdstat_set:calls=17,usec=1070\n\
        worker0:execute_usec=500000,idle_usec=1400000,expire_usec=100005,odd_usec=200000\n";

    fn compared(before: &str, now: &str) -> Metrics {
        let start = Instant::now();
        let before = sample(start, 0, before, &[(8, 100)]);
        Metrics::between(Some(&before), &sample(start, 2, now, &[(8, 100), (64, 300)]))
    }

    #[test]
    fn rates_are_differences_per_second() {
        let metrics = compared(BEFORE, NOW);
        assert_eq!((metrics.commands_per_s, metrics.evicted_per_s), (Some(1000.0), Some(0.0)));
        assert_eq!((metrics.hit_ratio, metrics.expired_per_s), (Some(0.75), None));
        assert_eq!((metrics.p50_us, metrics.max_us), (Some(48.0), Some(64.0)));
        assert_eq!((metrics.memory_share, metrics.replica_lag), (Some(0.25), Some(600.0)));
        assert_eq!(metrics.journal_lag, Some(12.0));
    }

    #[test]
    fn commands_have_their_share_of_the_interval() {
        let metrics = compared(BEFORE, NOW);
        let get = &metrics.commands[0];
        assert_eq!((get.name.as_str(), get.calls_per_s, get.share), ("get", 100.0, 0.75));
        assert_eq!((get.us_per_call, get.failed_per_s, get.calls), (Some(15.0), 2.0, 300.0));
        assert_eq!((get.max_us, metrics.commands[1].p99_us), (Some(64.0), None));
    }

    #[test]
    fn workers_have_shares_by_stage() {
        let metrics = compared(BEFORE, NOW);
        assert_eq!(metrics.workers[0].stages, [0.0, 0.0, 0.0, 0.25, 0.0, 0.05, 0.1]);
        // Time that was booked late does not make a worker busier than an interval is long.
        let late = NOW.replace("execute_usec=500000", "execute_usec=9500000");
        assert!((compared(BEFORE, &late).workers[0].busy() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_restarted_server_has_no_rates_at_first() {
        for restarted in [NOW.replace("run_id:a", "run_id:b"), NOW.replace("seconds:12", "seconds:1")] {
            let metrics = compared(BEFORE, &restarted);
            assert_eq!((metrics.commands_per_s, metrics.p99_us), (None, None));
            assert!(metrics.commands.is_empty() && metrics.workers.is_empty());
            assert_eq!(metrics.used, Some(50.0), "a state needs no earlier sample");
        }
    }

    #[test]
    fn reset_counters_count_from_zero() {
        let reset =
            NOW.replace("processed:3000", "processed:600").replace("calls=300,usec=4000", "calls=6,usec=12");
        let metrics = compared(BEFORE, &reset);
        assert_eq!(metrics.commands_per_s, Some(300.0));
        assert_eq!((metrics.commands[0].calls_per_s, metrics.commands[0].us_per_call), (3.0, Some(2.0)));
    }

    #[test]
    fn a_replica_is_behind_by_its_unapplied_bytes() {
        let info = "slave_read_repl_offset:70\nslave_repl_offset:50\nmaster_repl_offset:50\n";
        assert_eq!(replica_lag(&Info::parse(info.as_bytes())), Some(20.0));
    }
}
