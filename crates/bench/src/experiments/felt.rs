//! What clients feel while something happens to a server: the load alone, and then with the event in it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Result;

use super::lanes::{self, Lane, Traffic};
use super::series::Sample;
use super::{Session, WARM_UP};
use crate::json::{Json, object};
use crate::load::timeline::{SLICE, Timeline};
use crate::table::time_us;
use crate::{interrupt, proc};

/// How often the process' memory is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// A million keys of 700 B, unless told otherwise.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct DataArgs {
    /// Number of keys
    #[arg(short, long, default_value_t = 1_000_000)]
    pub(super) keys: u64,
    /// Bytes of a value
    #[arg(short = 'd', long, default_value_t = 700)]
    pub(super) value_size: usize,
}

impl Default for DataArgs {
    fn default() -> Self {
        Self { keys: 1_000_000, value_size: 700 }
    }
}

impl DataArgs {
    /// SETs of such values from 50 clients, with all cores for server and load alike.
    pub(super) fn traffic(&self) -> Traffic {
        Traffic { keys: self.keys, value_size: self.value_size, ..Traffic::default() }
    }
}

/// The load before an event and during it.
pub(super) struct Felt {
    pub(super) before: Sample,
    pub(super) during: Sample,
    timeline: Timeline,
    /// Resident bytes before, and the most beyond those during the event; a forked child's own are not in it.
    pub(super) resident: u64,
    pub(super) grown: u64,
}

/// Names of the columns that [`Felt::cells`] fills.
pub(super) const HEAD: [&str; 7] =
    ["SET/s before", "during", "ratio", "p99 before", "during", "longest before", "during"];

/// Measures the load alone, and then for `measured` with an event that begins with it.
pub(super) fn feel<T: Send>(
    session: &Session,
    lane: &Lane,
    traffic: &Traffic,
    measured: Duration,
    event: impl FnOnce() -> Result<T> + Send,
) -> Result<(Felt, T)> {
    let before = lanes::measure(session, lane, traffic)?;
    let pid = lane.server.pid();
    let resident = proc::usage(pid)?.rss_bytes;
    let is_over = &AtomicBool::new(false);
    let (during, happened, peak) = std::thread::scope(|scope| {
        let happening = scope.spawn(move || {
            let happened = interrupt::sleep(WARM_UP).and_then(|()| event());
            is_over.store(true, Relaxed);
            happened
        });
        let watching = scope.spawn(move || -> Result<u64> {
            let mut peak = 0;
            while !is_over.load(Relaxed) {
                peak = peak.max(proc::usage(pid)?.rss_bytes);
                interrupt::sleep(LOOK)?;
            }
            Ok(peak)
        });
        let during = lanes::watch(lane, traffic, measured);
        let joined = (happening.join(), watching.join());
        (during, joined.0.expect("events do not panic"), joined.1.expect("a look does not panic"))
    });
    let ((during, timeline), happened, peak) = (during?, happened?, peak?);
    let grown = peak.saturating_sub(resident);
    Ok((Felt { before, during, timeline, resident, grown }, happened))
}

impl Felt {
    /// Rate during the event, to before.
    pub(super) fn ratio(&self) -> f64 {
        self.during.rate / self.before.rate
    }

    pub(super) fn cells(&self) -> [String; 7] {
        let Self { before, during, .. } = self;
        let rate = |sample: &Sample| format!("{:.0}k", sample.rate / 1e3);
        [
            rate(before),
            rate(during),
            format!("{:.2}", self.ratio()),
            time_us(before.p99),
            time_us(during.p99),
            time_us(before.max),
            time_us(during.max),
        ]
    }

    pub(super) fn figures(&self) -> Vec<(&'static str, Json)> {
        let Self { before, during, .. } = self;
        vec![
            ("requests_per_s_before", before.rate.into()),
            ("requests_per_s_during", during.rate.into()),
            ("p99_us_before", before.p99.into()),
            ("p99_us_during", during.p99.into()),
            ("longest_us_before", before.max.into()),
            ("longest_us_during", during.max.into()),
            ("memory_grown_bytes", self.grown.into()),
        ]
    }

    /// For the page: the longest latency over time, with the event between two moments of it.
    pub(super) fn curve(&self, server: &str, event: &str, from: Duration, to: Duration) -> Json {
        let longest = self.timeline.slices().iter().map(|slice| slice.longest.as_secs_f64() * 1e6);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        object(vec![
            ("server", server.into()),
            ("slice_ms", ms(SLICE).into()),
            ("longest_us", longest.collect::<Vec<f64>>().into()),
            ("event", event.into()),
            ("event_ms", vec![ms(from), ms(to)].into()),
        ])
    }
}
