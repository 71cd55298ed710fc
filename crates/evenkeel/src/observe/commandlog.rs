//! The slow log: the latest commands that took longer than a limit, with what they were asked.
//!
//! A command costs one comparison, of its ticks with a threshold that is computed when the settings change. A slow one
//! is put into the log of its worker; whoever reads merges the logs by the numbers of their entries.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::clients::ClientInfo;
use crate::clock::{self, Ticks};
use crate::command::{Args, Command, Flags, specs};
use crate::config::Settings;
use crate::server::Server;

/// Arguments kept of a command, and bytes of each.
const ARGS_MAX: usize = 32;
const ARG_LEN_MAX: usize = 128;

/// A command that was slow.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) unix_s: u64,
    pub(crate) us: u64,
    pub(crate) args: Vec<Vec<u8>>,
    pub(crate) address: String,
    pub(crate) name: Vec<u8>,
}

/// See the module's text.
pub(crate) struct SlowLog {
    /// Commands that take so many ticks are looked at; `Ticks::MAX`: none.
    threshold: AtomicU64,
    next_id: AtomicU64,
    /// One per worker, oldest first.
    logs: Box<[Mutex<VecDeque<Entry>>]>,
}

impl SlowLog {
    pub(crate) fn new(workers: usize) -> SlowLog {
        SlowLog {
            threshold: AtomicU64::new(Ticks::MAX),
            next_id: AtomicU64::new(0),
            logs: (0..workers).map(|_| Mutex::default()).collect(),
        }
    }

    /// Follows changed settings. The latency monitor shares the threshold.
    pub(crate) fn configure(&self, settings: &Settings) {
        let slow_us =
            u64::try_from(settings.slowlog_log_slower_than).ok().filter(|_| settings.slowlog_max_len > 0);
        let monitored_us = Some(settings.latency_monitor_threshold.saturating_mul(1000)).filter(|us| *us > 0);
        let us = slow_us.into_iter().chain(monitored_us).min();
        let ticks = us.map_or(Ticks::MAX, |us| us.saturating_mul(clock::ticks_per_us()));
        self.threshold.store(ticks, Relaxed);
    }

    /// Commands that take so many ticks go to [`note`].
    #[inline]
    pub(crate) fn threshold(&self) -> Ticks {
        self.threshold.load(Relaxed)
    }

    fn push(&self, worker: usize, entry: Entry, len_max: usize) {
        let mut log = self.logs[worker].lock();
        log.push_back(entry);
        while log.len() > len_max {
            log.pop_front();
        }
    }

    /// At most `count` entries, the newest first.
    pub(crate) fn newest(&self, count: usize) -> Vec<Entry> {
        let mut all: Vec<Entry> = self
            .logs
            .iter()
            .flat_map(|log| log.lock().iter().rev().take(count).cloned().collect::<Vec<_>>())
            .collect();
        all.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.id));
        all.truncate(count);
        all
    }

    pub(crate) fn len(&self) -> usize {
        self.logs.iter().map(|log| log.lock().len()).sum()
    }

    pub(crate) fn reset(&self) {
        self.logs.iter().for_each(|log| log.lock().clear());
    }
}

/// A command took at least the threshold: it goes into the slow log, and to the latency monitor.
#[cold]
pub(crate) fn note(
    server: &Server,
    settings: &Settings,
    worker: usize,
    client: &ClientInfo,
    (row, args, ticks): (&Command, Args<'_>, Ticks),
) {
    let us = clock::us(ticks);
    let event = if row.flags.has(Flags::FAST) { "fast-command" } else { "command" };
    server.latency.note(event, us, settings.latency_monitor_threshold);
    let limit = settings.slowlog_log_slower_than;
    if row.flags.has(Flags::SKIP_SLOWLOG) || limit < 0 || us < limit as u64 || settings.slowlog_max_len == 0 {
        return;
    }
    let entry = Entry {
        id: server.slowlog.next_id.fetch_add(1, Relaxed),
        unix_s: clock::unix_ms() / 1000,
        us,
        args: shown_args(row, &args),
        address: client.address.clone(),
        name: client.name.lock().clone(),
    };
    server.slowlog.push(worker, entry, settings.slowlog_max_len);
}

/// The arguments, cut to what is worth keeping; passwords are not.
fn shown_args(row: &Command, args: &Args<'_>) -> Vec<Vec<u8>> {
    let shown = if args.len() > ARGS_MAX { ARGS_MAX - 1 } else { args.len() };
    let mut list: Vec<Vec<u8>> =
        (0..shown)
            .map(|index| {
                if specs::is_secret(row, args, index) { b"(redacted)".to_vec() } else { cut(args.at(index)) }
            })
            .collect();
    if args.len() > shown {
        list.push(format!("... ({} more arguments)", args.len() - shown).into_bytes());
    }
    list
}

fn cut(arg: &[u8]) -> Vec<u8> {
    if arg.len() <= ARG_LEN_MAX {
        return arg.to_vec();
    }
    let more = format!("... ({} more bytes)", arg.len() - ARG_LEN_MAX);
    [&arg[..ARG_LEN_MAX], more.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64) -> Entry {
        Entry { id, unix_s: 0, us: 0, args: Vec::new(), address: String::new(), name: Vec::new() }
    }

    #[test]
    fn logs_of_workers_are_merged_and_bounded() {
        let log = SlowLog::new(2);
        (0..20).for_each(|id| log.push(id as usize % 2, entry(id), 4));
        assert_eq!(log.len(), 8);
        let ids = |count| log.newest(count).iter().map(|entry| entry.id).collect::<Vec<_>>();
        assert_eq!(ids(4), [19, 18, 17, 16]);
        assert_eq!(ids(1), [19]);
        assert!(ids(0).is_empty());
        log.reset();
        assert_eq!(log.len(), 0);
    }

    #[test]
    fn the_threshold_is_the_lower_of_two() {
        let log = SlowLog::new(1);
        let check = |slower_than: &str, max_len: &str, monitor: &str, us: Option<u64>| {
            let pairs = [
                ("slowlog-log-slower-than", slower_than),
                ("slowlog-max-len", max_len),
                ("latency-monitor-threshold", monitor),
            ];
            let pairs = pairs.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
            let settings = Settings::default().set(&pairs, true).expect("good values").0;
            log.configure(&settings);
            let ticks = us.map_or(Ticks::MAX, |us| us * clock::ticks_per_us());
            assert_eq!(log.threshold(), ticks, "{slower_than} {max_len} {monitor}");
        };
        check("10000", "128", "0", Some(10_000));
        check("10000", "128", "5", Some(5_000));
        check("10", "128", "5", Some(10));
        check("0", "128", "0", Some(0));
        check("-1", "128", "0", None);
        check("10", "0", "0", None);
        check("-1", "128", "7", Some(7_000));
    }
}
