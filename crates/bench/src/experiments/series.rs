//! The metrics of a server over the rounds, and their formats.

use crate::json::{Json, object};
use crate::load::Outcome;
use crate::proc::Spent;
use crate::servers::ServerKind;
use crate::stats::Spread;
use crate::table::time_us;

/// A measurement, reduced to the reported metrics.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Commands per second.
    pub(super) rate: f64,
    /// CPU microseconds of the server process per command.
    pub(super) cpu_us: f64,
    /// CPU microseconds per command of the thread that ran most.
    pub(super) busiest_us: f64,
    pub(super) system_share: f64,
    /// Context switches of the server per thousand commands.
    pub(super) switches: f64,
    /// Involuntary context switches among them.
    pub(super) involuntary: f64,
    /// Page faults of the server per thousand commands.
    pub(super) faults: f64,
    /// Resident bytes at the end.
    pub(super) rss_bytes: f64,
    /// Latencies of a batch, in microseconds.
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
    /// The generator: CPU microseconds per command, and share of the time in which it ran.
    pub(super) load_us: f64,
    pub(super) load_busy: f64,
    pub(super) refused: u64,
    pub(super) failed: u64,
    pub(super) listen_overflows: u64,
}

impl From<&Outcome> for Sample {
    fn from(outcome: &Outcome) -> Self {
        let spent = outcome.server.as_ref();
        let per_1000 = |count: fn(&Spent) -> u64| {
            spent.map_or(f64::NAN, |spent| count(spent) as f64 * 1e3 / outcome.commands.max(1) as f64)
        };
        Self {
            rate: outcome.rate(),
            cpu_us: outcome.server_us().unwrap_or(f64::NAN),
            busiest_us: spent
                .map_or(f64::NAN, |spent| spent.busiest.as_secs_f64() * 1e6 / outcome.commands.max(1) as f64),
            system_share: spent.map_or(f64::NAN, |spent| spent.system_share),
            switches: per_1000(|spent| spent.voluntary_switches + spent.involuntary_switches),
            involuntary: per_1000(|spent| spent.involuntary_switches),
            faults: per_1000(|spent| spent.page_faults),
            rss_bytes: spent.map_or(f64::NAN, |spent| spent.rss_bytes as f64),
            p50: outcome.latency_us(0.5),
            p99: outcome.latency_us(0.99),
            p999: outcome.latency_us(0.999),
            max: outcome.latency_us(1.0),
            load_us: outcome.load_us(),
            load_busy: outcome.load_busy(),
            refused: outcome.refused,
            failed: outcome.failed,
            listen_overflows: outcome.listen_overflows,
        }
    }
}

/// A server's samples, a sample per round.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) kind: ServerKind,
    /// The second measurement of a server that is measured twice, to show the noise.
    pub(super) is_control: bool,
    pub(super) samples: Vec<Sample>,
}

impl Series {
    pub(super) fn values(&self, figure: impl Fn(&Sample) -> f64) -> Vec<f64> {
        self.samples.iter().map(figure).collect()
    }

    pub(super) fn spread(&self, figure: impl Fn(&Sample) -> f64) -> Spread {
        Spread::of(self.values(figure)).unwrap_or(Spread { median: f64::NAN, min: f64::NAN, max: f64::NAN })
    }

    pub(super) fn median(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        self.spread(figure).median
    }

    /// Returns the ratio of this server's metric to the other's, round by round.
    pub(super) fn ratio_to(&self, other: &Self, figure: impl Fn(&Sample) -> f64 + Copy) -> Option<Spread> {
        Spread::of_ratios(&self.values(figure), &other.values(figure))
    }

    /// Returns this server's metric less the other's, round by round.
    pub(super) fn more_than(&self, other: &Self, figure: impl Fn(&Sample) -> f64 + Copy) -> Option<Spread> {
        let (ours, theirs) = (self.values(figure), other.values(figure));
        Spread::of(ours.iter().zip(&theirs).map(|(ours, theirs)| ours - theirs))
    }

    pub(super) fn sum(&self, figure: impl Fn(&Sample) -> u64) -> u64 {
        self.samples.iter().map(figure).sum()
    }

    /// `512k (498..530)`, or `14.2k (13.8..15.0)`.
    pub(super) fn rate_cell(&self) -> String {
        let rate = self.spread(|sample| sample.rate / 1e3);
        let digits = if rate.max < 100.0 { 1 } else { 0 };
        format!("{:.digits$}k ({:.digits$}..{:.digits$})", rate.median, rate.min, rate.max)
    }

    pub(super) fn cpu_cell(&self) -> String {
        self.spread(|sample| sample.cpu_us).to_string()
    }

    /// p50, p99 and p99.9: medians over the rounds; max: of all rounds.
    pub(super) fn latency_cells(&self) -> [String; 4] {
        let longest = self.spread(|sample| sample.max).max;
        let quantiles = [self.median(|s| s.p50), self.median(|s| s.p99), self.median(|s| s.p999), longest];
        quantiles.map(time_us)
    }

    pub(super) fn to_json(&self) -> Json {
        let list = |figure: fn(&Sample) -> f64| Json::from(self.values(figure));
        object(vec![
            ("server", self.name.as_str().into()),
            ("control", self.is_control.into()),
            ("requests_per_s", list(|sample| sample.rate)),
            ("cpu_us_per_command", list(|sample| sample.cpu_us)),
            ("busiest_thread_us_per_command", list(|sample| sample.busiest_us)),
            ("kernel_share", list(|sample| sample.system_share)),
            ("context_switches_per_1000", list(|sample| sample.switches)),
            ("involuntary_switches_per_1000", list(|sample| sample.involuntary)),
            ("page_faults_per_1000", list(|sample| sample.faults)),
            ("rss_bytes", list(|sample| sample.rss_bytes)),
            ("latency_us_p50", list(|sample| sample.p50)),
            ("latency_us_p99", list(|sample| sample.p99)),
            ("latency_us_p999", list(|sample| sample.p999)),
            ("latency_us_max", list(|sample| sample.max)),
            ("load_cpu_us_per_command", list(|sample| sample.load_us)),
            ("load_busy", list(|sample| sample.load_busy)),
            ("refused", self.sum(|sample| sample.refused).into()),
            ("failed", self.sum(|sample| sample.failed).into()),
            ("listen_overflows", self.sum(|sample| sample.listen_overflows).into()),
        ])
    }
}

/// Returns the deviation between two measurements of the same server, for a metric; 0 without a control.
pub(super) fn noise(all: &[Series], figure: impl Fn(&Sample) -> f64 + Copy) -> f64 {
    let Some(control) = all.iter().find(|series| series.is_control) else { return 0.0 };
    let original = all.iter().find(|series| !series.is_control && series.kind == control.kind);
    original.and_then(|original| control.ratio_to(original, figure)).map_or(0.0, |ratio| ratio.noise())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn series(kind: ServerKind, is_control: bool, cpu_us: &[f64]) -> Series {
        let sample = |&cpu_us: &f64| Sample {
            rate: 1e6 / cpu_us,
            cpu_us,
            busiest_us: cpu_us,
            system_share: 0.5,
            switches: 1.0,
            involuntary: 0.5,
            faults: 0.1,
            rss_bytes: 1e6,
            p50: 1.0,
            p99: 2.0,
            p999: 3.0,
            max: 4.0 * cpu_us,
            load_us: 0.5,
            load_busy: 0.2,
            refused: 1,
            failed: 0,
            listen_overflows: 0,
        };
        let samples = cpu_us.iter().map(sample).collect();
        Series { name: kind.name().to_owned(), kind, is_control, samples }
    }

    #[test]
    fn the_noise_is_the_control_against_its_original() {
        let all = [
            series(ServerKind::Valkey, false, &[2.0, 2.0]),
            series(ServerKind::Evenkeel, false, &[1.0, 1.0]),
            series(ServerKind::Evenkeel, true, &[1.1, 0.95]),
        ];
        assert!((noise(&all, |sample| sample.cpu_us) - 0.1).abs() < 1e-9);
        assert!(noise(&all[..2], |sample| sample.cpu_us) == 0.0);
    }

    #[test]
    fn cells() {
        let series = series(ServerKind::Redis, false, &[2.0, 4.0, 5.0]);
        assert_eq!(series.rate_cell(), "250k (200..500)");
        assert_eq!(series.cpu_cell(), "4.00 (2.00..5.00)");
        assert_eq!(series.latency_cells(), ["1 us", "2 us", "3 us", "20 us"]);
        assert_eq!(series.sum(|sample| sample.refused), 3);
    }
}
