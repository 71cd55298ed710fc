//! The server's log: lines in Redis' format, written by a thread of their own.
//!
//! A line is put into a bounded queue and the caller goes on; a disk that hangs delays nobody. When the queue is full
//! the line is dropped and counted, and the next line that gets through says how many were lost.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use crate::clock;

/// Lines that may wait: at 100 bytes each, 400 KiB.
const QUEUE: usize = 4096;

/// How much a line matters, as in Redis' `loglevel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Debug,
    Verbose,
    Notice,
    Warning,
    /// Only for `loglevel nothing`: no line has this level.
    Nothing,
}

impl Level {
    fn mark(self) -> char {
        match self {
            Level::Debug => '.',
            Level::Verbose => '-',
            Level::Notice => '*',
            Level::Warning | Level::Nothing => '#',
        }
    }
}

enum Order {
    Line(Level, u64, String),
    Flush(SyncSender<()>),
}

/// See the module's text. Cloning gives another handle on the same log.
#[derive(Clone)]
pub(crate) struct Log {
    queue: SyncSender<Order>,
    shared: Arc<Shared>,
}

struct Shared {
    level: AtomicU8,
    dropped: AtomicU64,
}

impl Log {
    /// Starts the thread; `file` is appended to, `None` is standard output.
    pub(crate) fn start(level: Level, file: Option<PathBuf>) -> Log {
        let (queue, orders) = sync_channel(QUEUE);
        let shared = Arc::new(Shared { level: AtomicU8::new(level as u8), dropped: AtomicU64::new(0) });
        let of_thread = shared.clone();
        std::thread::Builder::new()
            .name("log".into())
            .spawn(move || write_lines(&orders, file, &of_thread))
            .expect("a thread can be started");
        Log { queue, shared }
    }

    pub(crate) fn set_level(&self, level: Level) {
        self.shared.level.store(level as u8, Relaxed);
    }

    pub(crate) fn is_enabled(&self, level: Level) -> bool {
        level as u8 >= self.shared.level.load(Relaxed)
    }

    pub(crate) fn line(&self, level: Level, text: impl Into<String>) {
        if self.is_enabled(level)
            && self.queue.try_send(Order::Line(level, clock::unix_ms(), text.into())).is_err()
        {
            self.shared.dropped.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn notice(&self, text: impl Into<String>) {
        self.line(Level::Notice, text);
    }

    pub(crate) fn warning(&self, text: impl Into<String>) {
        self.line(Level::Warning, text);
    }

    pub(crate) fn verbose(&self, text: impl Into<String>) {
        self.line(Level::Verbose, text);
    }

    /// Waits until all lines so far are written, for two seconds at most. Not for workers.
    pub(crate) fn flush(&self) {
        let (done, wait) = sync_channel(1);
        if self.queue.send(Order::Flush(done)).is_ok() {
            let _ = wait.recv_timeout(Duration::from_secs(2));
        }
    }
}

fn write_lines(orders: &Receiver<Order>, file: Option<PathBuf>, shared: &Shared) {
    for order in orders {
        let lost = shared.dropped.swap(0, Relaxed);
        if lost > 0 {
            let text = format!("{lost} log lines were lost: the log could not be written fast enough");
            write_line(file.as_ref(), &format_line(Level::Warning, clock::unix_ms(), &text));
        }
        match order {
            Order::Line(level, at_ms, text) => write_line(file.as_ref(), &format_line(level, at_ms, &text)),
            Order::Flush(done) => drop(done.send(())),
        }
    }
}

/// The file is opened for each line, as Redis does, so that it may be renamed at any time.
fn write_line(file: Option<&PathBuf>, line: &str) {
    // There is nowhere left to complain to when the log itself cannot be written.
    let _ = match file {
        None => std::io::stdout().lock().write_all(line.as_bytes()),
        Some(path) => OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .and_then(|mut file| file.write_all(line.as_bytes())),
    };
}

/// `PID:M DD Mon YYYY HH:MM:SS.mmm * text`.
fn format_line(level: Level, at_ms: u64, text: &str) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let time = local_time(at_ms / 1000);
    format!(
        "{}:M {:02} {} {} {:02}:{:02}:{:02}.{:03} {} {}\n",
        std::process::id(),
        time.tm_mday,
        MONTHS[time.tm_mon.clamp(0, 11) as usize],
        time.tm_year + 1900,
        time.tm_hour,
        time.tm_min,
        time.tm_sec,
        at_ms % 1000,
        level.mark(),
        text
    )
}

fn local_time(seconds: u64) -> libc::tm {
    let seconds = seconds as libc::time_t;
    // SAFETY: `tm` is plain data, for which zeros are valid; `localtime_r` writes only to it.
    unsafe {
        let mut time = std::mem::zeroed();
        libc::localtime_r(&seconds, &mut time);
        time
    }
}
