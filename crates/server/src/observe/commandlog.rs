//! Command logs: per-worker ring buffers of commands that exceeded the time, request-size or reply-size
//! threshold, with their arguments.
//!
//! A command costs three comparisons, with thresholds that are computed when the settings change. A command
//! beyond a threshold is added to the log of its worker. Readers merge the logs by the ids of their entries.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::server::Server;
use evenkeel_client::clients::ClientInfo;
use evenkeel_command::{Args, Flags, Spec, specs};
use evenkeel_config::Settings;
use evenkeel_runtime::clock::{self, Ticks};

/// Subject of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandLogKind {
    Slow,
    LargeRequest,
    LargeReply,
}

impl CommandLogKind {
    pub(crate) const ALL: [CommandLogKind; 3] =
        [CommandLogKind::Slow, CommandLogKind::LargeRequest, CommandLogKind::LargeReply];

    pub(crate) fn name(self) -> &'static str {
        match self {
            CommandLogKind::Slow => "slow",
            CommandLogKind::LargeRequest => "large-request",
            CommandLogKind::LargeReply => "large-reply",
        }
    }

    /// Returns the threshold, in microseconds or bytes, and the number of entries kept.
    fn limits(self, settings: &Settings) -> (i64, usize) {
        match self {
            CommandLogKind::Slow => (settings.slowlog_log_slower_than, settings.slowlog_max_len),
            CommandLogKind::LargeRequest => {
                (settings.commandlog_request_larger_than, settings.commandlog_large_request_max_len)
            }
            CommandLogKind::LargeReply => {
                (settings.commandlog_reply_larger_than, settings.commandlog_large_reply_max_len)
            }
        }
    }

    pub(crate) fn len_max(self, settings: &Settings) -> usize {
        self.limits(settings).1
    }

    /// Returns the threshold; `None`: nothing is recorded.
    fn least(self, settings: &Settings) -> Option<u64> {
        let (least, len_max) = self.limits(settings);
        u64::try_from(least).ok().filter(|_| len_max > 0)
    }
}

/// Resources that a command has used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) ticks: Ticks,
    /// Ticks among them of waiting for locks, and on the offload pool.
    pub(crate) waited: Ticks,
    pub(crate) long: Ticks,
    /// Bytes; zero for a command that was part of another request: run by EXEC, or by a script.
    pub(crate) request: usize,
    pub(crate) reply: usize,
    /// EXEC has run the command.
    pub(crate) is_nested: bool,
}

impl Spent {
    fn amount(&self, kind: CommandLogKind) -> u64 {
        match kind {
            CommandLogKind::Slow => clock::us(self.ticks),
            CommandLogKind::LargeRequest => self.request as u64,
            CommandLogKind::LargeReply => self.reply as u64,
        }
    }

    /// Returns the time per stage, in microseconds.
    fn stages_us(&self) -> [(&'static str, u64); 3] {
        let executed = self.ticks.saturating_sub(self.waited + self.long);
        [
            ("lock_wait", clock::us(self.waited)),
            ("execute", clock::us(executed)),
            ("long", clock::us(self.long)),
        ]
    }
}

/// A command beyond a threshold.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) at_ms: u64,
    /// Whether the command was part of another request: run by EXEC, or by a script.
    pub(crate) is_part: bool,
    /// Microseconds or bytes, depending on the log.
    pub(crate) amount: u64,
    /// Microseconds.
    pub(crate) stages: [(&'static str, u64); 3],
    pub(crate) args: Vec<Vec<u8>>,
    pub(crate) address: String,
    pub(crate) name: Vec<u8>,
}

/// The command logs; see the module's text.
pub(crate) struct CommandLog {
    least: Least,
    /// In the order of [`CommandLogKind::ALL`].
    logs: [Log; 3],
}

/// Thresholds that every command is compared with; `u64::MAX`: nothing is recorded.
#[repr(align(64))]
struct Least {
    ticks: AtomicU64,
    request: AtomicU64,
    reply: AtomicU64,
}

struct Log {
    next_id: AtomicU64,
    /// A buffer per worker, oldest first.
    entries: Box<[Mutex<VecDeque<Entry>>]>,
}

impl Log {
    fn new(workers: usize) -> Log {
        Log { next_id: AtomicU64::new(0), entries: (0..workers).map(|_| Mutex::default()).collect() }
    }

    fn push(&self, worker: usize, entry: Entry, len_max: usize) {
        let mut entries = self.entries[worker].lock();
        entries.push_back(entry);
        while entries.len() > len_max {
            entries.pop_front();
        }
    }

    fn newest(&self, count: usize) -> Vec<Entry> {
        let mut all: Vec<Entry> = self
            .entries
            .iter()
            .flat_map(|entries| entries.lock().iter().rev().take(count).cloned().collect::<Vec<_>>())
            .collect();
        all.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.id));
        all.truncate(count);
        all
    }

    fn len(&self) -> usize {
        self.entries.iter().map(|entries| entries.lock().len()).sum()
    }
}

impl CommandLog {
    pub(crate) fn new(workers: usize) -> CommandLog {
        let none = || AtomicU64::new(u64::MAX);
        CommandLog {
            least: Least { ticks: none(), request: none(), reply: none() },
            logs: std::array::from_fn(|_| Log::new(workers)),
        }
    }

    /// Applies changed settings. The latency monitor shares the time threshold.
    pub(crate) fn configure(&self, settings: &Settings) {
        let slow_us = CommandLogKind::Slow.least(settings);
        let monitored_us = Some(settings.latency_monitor_threshold.saturating_mul(1000)).filter(|us| *us > 0);
        let us = slow_us.into_iter().chain(monitored_us).min();
        let ticks = us.map_or(Ticks::MAX, |us| us.saturating_mul(clock::ticks_per_us()));
        self.least.ticks.store(ticks, Relaxed);
        self.least.request.store(CommandLogKind::LargeRequest.least(settings).unwrap_or(u64::MAX), Relaxed);
        self.least.reply.store(CommandLogKind::LargeReply.least(settings).unwrap_or(u64::MAX), Relaxed);
    }

    /// Whether [`note`] has to be called.
    #[inline]
    pub(crate) fn wants(&self, spent: &Spent) -> bool {
        spent.ticks >= self.least.ticks.load(Relaxed)
            || spent.request as u64 >= self.least.request.load(Relaxed)
            || spent.reply as u64 >= self.least.reply.load(Relaxed)
    }

    /// Returns at most `count` entries, newest first.
    pub(crate) fn newest(&self, kind: CommandLogKind, count: usize) -> Vec<Entry> {
        self.logs[kind as usize].newest(count)
    }

    pub(crate) fn len(&self, kind: CommandLogKind) -> usize {
        self.logs[kind as usize].len()
    }

    /// Returns the number of entries ever recorded, which is the id of the next.
    pub(crate) fn recorded(&self, kind: CommandLogKind) -> u64 {
        self.logs[kind as usize].next_id.load(Relaxed)
    }

    pub(crate) fn reset(&self, kind: CommandLogKind) {
        self.logs[kind as usize].entries.iter().for_each(|entries| entries.lock().clear());
    }
}

/// Records a command that is beyond a threshold, in every log concerned and in the latency monitor.
#[cold]
pub(crate) fn note(
    server: &Server,
    settings: &Settings,
    worker: usize,
    client: &ClientInfo,
    (row, args, spent): (&Spec, Args<'_>, &Spent),
) {
    let event = if row.flags.has(Flags::FAST) { "fast-command" } else { "command" };
    server.core.latency.record(event, clock::us(spent.ticks), settings.latency_monitor_threshold);
    if row.flags.has(Flags::SKIP_SLOWLOG) {
        return;
    }
    for kind in CommandLogKind::ALL {
        let is_part = kind == CommandLogKind::LargeRequest && spent.request == 0;
        if is_part || kind.least(settings).is_none_or(|least| spent.amount(kind) < least) {
            continue;
        }
        let log = &server.commandlog.logs[kind as usize];
        let entry = Entry {
            id: log.next_id.fetch_add(1, Relaxed),
            at_ms: clock::unix_ms(),
            is_part: spent.request == 0,
            amount: spent.amount(kind),
            stages: spent.stages_us(),
            args: shown_args(row, &args, settings),
            address: client.address.clone(),
            name: client.name.lock().clone(),
        };
        log.push(worker, entry, kind.len_max(settings));
    }
}

/// Returns the arguments, truncated, and without passwords.
fn shown_args(row: &Spec, args: &Args<'_>, settings: &Settings) -> Vec<Vec<u8>> {
    let (most, len_max) = (settings.slowlog_entry_max_argc, settings.slowlog_entry_max_string_len);
    let shown = if args.len() > most { most - 1 } else { args.len() };
    let mut list: Vec<Vec<u8>> = (0..shown)
        .map(|index| {
            if specs::is_secret(row, args, index) {
                b"(redacted)".to_vec()
            } else {
                cut(args.at(index), len_max)
            }
        })
        .collect();
    if args.len() > shown {
        list.push(format!("... ({} more arguments)", args.len() - shown).into_bytes());
    }
    list
}

fn cut(arg: &[u8], len_max: usize) -> Vec<u8> {
    if arg.len() <= len_max {
        return arg.to_vec();
    }
    let more = format!("... ({} more bytes)", arg.len() - len_max);
    [&arg[..len_max], more.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64) -> Entry {
        Entry {
            id,
            at_ms: 0,
            is_part: false,
            amount: 0,
            stages: Spent::default().stages_us(),
            args: Vec::new(),
            address: String::new(),
            name: Vec::new(),
        }
    }

    #[test]
    fn logs_of_workers_are_merged_and_bounded() {
        let log = Log::new(2);
        (0..20).for_each(|id| log.push(id as usize % 2, entry(id), 4));
        assert_eq!(log.len(), 8);
        let ids = |count| log.newest(count).iter().map(|entry| entry.id).collect::<Vec<_>>();
        assert_eq!(ids(4), [19, 18, 17, 16]);
        assert_eq!(ids(1), [19]);
        assert!(ids(0).is_empty());
    }

    #[test]
    fn the_threshold_is_the_lower_of_two() {
        let log = CommandLog::new(1);
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
            assert_eq!(log.least.ticks.load(Relaxed), ticks, "{slower_than} {max_len} {monitor}");
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
