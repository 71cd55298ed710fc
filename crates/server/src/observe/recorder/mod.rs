//! The flight recorder: the server's own metrics over time, kept in the server.
//!
//! The thread `recorder` wakes every 50 ms, reads counters that the threads keep anyway, and stores the
//! differences as a row ([`evenkeel_history`]). Once a second it adds values that cost more: percentiles from
//! the histograms of commands, memory, clients, the lag of replicas, pressure of the machine. Then the
//! detector looks for waits of clients and their causes in this second. The thread never enters the gate and
//! takes no slot lock, so a script that keeps the keyspace closed does not stop it.
//!
//! With `recorder-dir`, the thread `recorder-file` writes rows of seconds, events and incidents to files. If
//! its disk hangs, rows are missing in the files, and nothing else happens.

mod gather;
mod json;
mod machine;
mod store;

use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use evenkeel_history::{
    Columns, Detector, Event, EventKind, FINE_MS, Findings, Frame, History, Log, Row, Series, Slow, findings,
};
use parking_lot::Mutex;

use crate::observe::commandlog::{CommandLogKind, Entry};
use crate::observe::stats::Stage;
use crate::server::Server;
use evenkeel_command::Group;
use evenkeel_runtime::clock;
use evenkeel_runtime::threads;
use gather::Gatherer;
pub(crate) use json::{events_json, findings_json, series_json};
use store::Store;

/// Entries of the slow log that are looked at in a second.
const SLOW_MAX: usize = 64;

/// Time of sleep while the recorder is off.
const OFF_INTERVAL: Duration = Duration::from_millis(500);

/// The record of the server's past. Never locked by a worker but for the log of events, which nothing holds
/// for longer than a copy takes.
pub(crate) struct Recorder {
    columns: Arc<Columns>,
    rows: Mutex<History>,
    log: Mutex<Log>,
    /// Events that are to be written to the file.
    new_events: Mutex<Vec<Event>>,
}

impl Recorder {
    pub(crate) fn new(workers: usize, bytes_max: usize) -> Recorder {
        let columns = Columns::new(workers, &stages(), &families());
        Recorder {
            rows: Mutex::new(History::new(columns.schema.clone(), bytes_max)),
            log: Mutex::default(),
            new_events: Mutex::default(),
            columns: Arc::new(columns),
        }
    }

    /// Records an event that ends now.
    pub(crate) fn record(&self, kind: EventKind, lasted: Option<Duration>, text: String) {
        let lasted_us = lasted.map(|lasted| lasted.as_micros() as u64);
        let event = Event { at_ms: clock::unix_ms(), lasted_us, kind, text };
        self.new_events.lock().push(event.clone());
        self.log.lock().push_event(event);
    }

    /// Returns rows of a span, merged to about this number.
    pub(crate) fn series(&self, from_ms: u64, to_ms: u64, points: usize) -> Series {
        self.rows.lock().series(from_ms, to_ms, points)
    }

    /// Returns the columns of the rows.
    pub(crate) fn columns(&self) -> &Arc<Columns> {
        &self.columns
    }

    /// Returns the end of the oldest row; `None`: there is none.
    pub(crate) fn first_ms(&self) -> Option<u64> {
        self.rows.lock().first_ms()
    }

    /// Returns the bytes of all rows.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.lock().bytes()
    }

    /// Calls `read` with the events and incidents.
    pub(crate) fn with_log<T>(&self, read: impl FnOnce(&Log) -> T) -> T {
        read(&self.log.lock())
    }

    /// Returns the causes for which clients waited in a span.
    pub(crate) fn findings(&self, from_ms: u64, to_ms: u64) -> Findings {
        findings(&self.log.lock(), from_ms, to_ms, time_of_day)
    }

    fn push(&self, frame: &Frame) {
        match frame {
            Frame::Second(row) => self.rows.lock().push_second(row),
            Frame::Event(event) => self.log.lock().push_event(event.clone()),
            Frame::Incident(incident) => self.log.lock().push_incident(incident.clone()),
        }
    }
}

/// Formats a Unix time in milliseconds as a time of day, in UTC.
pub(crate) fn time_of_day(unix_ms: u64) -> String {
    let s = unix_ms / 1_000;
    format!("{:02}:{:02}:{:02}.{:03} UTC", s / 3_600 % 24, s / 60 % 60, s % 60, unix_ms % 1_000)
}

fn stages() -> [&'static str; Stage::ALL.len()] {
    Stage::ALL.map(Stage::name)
}

/// Names of the groups of commands, in the order of [`Group`].
fn families() -> Vec<&'static str> {
    FAMILIES.iter().map(|(_, name)| *name).collect()
}

const FAMILIES: [(Group, &str); 16] = [
    (Group::Keyspace, "keyspace"),
    (Group::String, "string"),
    (Group::Bitmap, "bitmap"),
    (Group::Hash, "hash"),
    (Group::List, "list"),
    (Group::Set, "set"),
    (Group::SortedSet, "zset"),
    (Group::Stream, "stream"),
    (Group::Array, "array"),
    (Group::Geo, "geo"),
    (Group::HyperLogLog, "hyperloglog"),
    (Group::PubSub, "pubsub"),
    (Group::Transaction, "transaction"),
    (Group::Connection, "connection"),
    (Group::Scripting, "scripting"),
    (Group::Server, "server"),
];

/// Starts the thread.
pub(crate) fn start(server: Arc<Server>) -> std::io::Result<()> {
    threads::named("recorder").spawn(move || Run::new(&server).run(&server))?;
    Ok(())
}

/// The state of the thread.
struct Run {
    /// `None` while the recorder is off.
    gatherer: Option<Gatherer>,
    detector: Detector,
    store: Option<Store>,
    /// Rows of the present second, and its number.
    fine: Vec<Row>,
    second: u64,
    /// The number of the next entry of the slow log.
    next_slow: u64,
    bytes_max: usize,
}

impl Run {
    fn new(server: &Server) -> Run {
        let columns = server.recorder.columns.clone();
        let settings = server.core.settings();
        let directory = settings.recorder_dir.as_ref().map(|directory| settings.dir.join(directory));
        let store = directory.and_then(|directory| {
            let started = Store::start(&directory, columns.schema.clone(), settings.recorder_memory as u64);
            let cannot = |error| log::warn!("Recorder: cannot use '{}': {error}", directory.display());
            started.map_err(cannot).ok()
        });
        Run {
            gatherer: Some(Gatherer::at_start(server)),
            detector: Detector::new((*columns).clone(), &stages()),
            store,
            fine: Vec::new(),
            second: clock::unix_ms() / 1_000,
            next_slow: 0,
            bytes_max: settings.recorder_memory,
        }
    }

    fn run(&mut self, server: &Server) {
        if let Some(store) = &self.store {
            store.load(|frame| server.recorder.push(&frame));
        }
        server.recorder.record(EventKind::Start, None, "The server was started".to_owned());
        while !server.core.stopping.load(Acquire) {
            if self.follow(server) {
                std::thread::sleep(Duration::from_millis(FINE_MS - clock::unix_ms() % FINE_MS));
                self.tick(server, clock::unix_ms());
            } else {
                std::thread::sleep(OFF_INTERVAL);
            }
        }
    }

    /// Follows the setting; returns whether the recorder is on.
    fn follow(&mut self, server: &Server) -> bool {
        let bytes_max = server.core.settings().recorder_memory;
        if bytes_max != self.bytes_max {
            self.bytes_max = bytes_max;
            server.recorder.rows.lock().set_bytes_max(bytes_max);
        }
        if bytes_max == 0 {
            (self.gatherer, self.fine) = (None, Vec::new());
        }
        bytes_max > 0
    }

    /// Takes a row, which may end a second.
    fn tick(&mut self, server: &Server, now_ms: u64) {
        let Some(gatherer) = &mut self.gatherer else {
            self.gatherer = Some(Gatherer::from_now(server));
            self.second = now_ms / 1_000;
            return;
        };
        let is_end = now_ms / 1_000 != self.second;
        let row = gatherer.row(server, now_ms, is_end);
        server.recorder.rows.lock().push_fine(&row);
        self.fine.push(row);
        if is_end {
            self.second = now_ms / 1_000;
            self.end_second(server);
            self.fine.clear();
        }
    }

    fn end_second(&mut self, server: &Server) {
        let (Some(gatherer), Some(first)) = (&mut self.gatherer, self.fine.first()) else { return };
        let mut second = first.clone();
        let schema = &server.recorder.columns.schema;
        self.fine[1..].iter().for_each(|row| schema.merge(&mut second, row));
        gatherer.add_commands(server, &mut second);
        gatherer.events(server);
        let slow = new_slow(server, &mut self.next_slow);
        let incidents = self.detector.second(&self.fine, &second, slow);
        let mut frames = vec![Frame::Second(second)];
        frames.extend(incidents.into_iter().map(Frame::Incident));
        frames.iter().for_each(|frame| server.recorder.push(frame));
        frames.extend(server.recorder.new_events.lock().drain(..).map(Frame::Event));
        if let Some(store) = &self.store {
            store.append(frames);
        }
    }
}

/// Returns the commands that the slow log got since the last call.
fn new_slow(server: &Server, next: &mut u64) -> Vec<Slow> {
    let recorded = server.commandlog.recorded(CommandLogKind::Slow);
    let count = recorded.saturating_sub(std::mem::replace(next, recorded)).min(SLOW_MAX as u64);
    if count == 0 {
        return Vec::new();
    }
    let entries = server.commandlog.newest(CommandLogKind::Slow, count as usize);
    // The script or the transaction that a command is part of is the cause.
    entries.into_iter().filter(|entry| !entry.is_part).map(slow).collect()
}

fn slow(entry: Entry) -> Slow {
    let words: Vec<String> = entry.args.iter().map(|arg| shown(arg)).collect();
    let lock_wait = entry.stages.iter().find(|(stage, _)| *stage == "lock_wait");
    Slow {
        at_ms: entry.at_ms,
        us: entry.amount,
        lock_wait_us: lock_wait.map_or(0, |(_, us)| *us),
        command: words.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default(),
        shown: cut(words.join(" ")),
        client: entry.address,
    }
}

/// Returns an argument as text, in which bytes other than printable ASCII are escaped.
fn shown(arg: &[u8]) -> String {
    arg.escape_ascii().to_string()
}

fn cut(mut text: String) -> String {
    /// Characters of a command that are enough to recognize it.
    const SHOWN_MAX: usize = 120;
    if text.len() > SHOWN_MAX {
        text.truncate(SHOWN_MAX); // ASCII alone
        text += "...";
    }
    text
}

#[cfg(test)]
mod tests;
