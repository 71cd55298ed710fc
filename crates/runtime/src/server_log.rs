//! The server log: lines in Redis' format, written by a thread of their own.
//!
//! The back end of the macros of crate `log`. Redis' `loglevel` maps to its levels: `debug` is `Trace`,
//! `verbose` is `Debug`, `notice` is `Info`, `warning` is `Warn`.
//!
//! A macro puts a line into a bounded queue and returns, so a disk that hangs delays no caller. When
//! the queue is full the line is dropped and counted. Once the thread writes again, it reports the number of
//! lost lines behind the lines that were queued.
//!
//! Lines may contain bytes from clients, other servers and files. For the file and for syslog alike, the
//! thread escapes every character that could begin a new line or steer the terminal of an operator reading
//! the log ([`escaped`]).

use std::borrow::Cow;
use std::ffi::CString;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use evenkeel_rdb::without_numbers;
use log::{Level, LevelFilter, Metadata, Record};

use crate::clock;
use crate::threads;

/// Capacity of the queue in lines: 400 KiB at 100 bytes each.
const QUEUE: usize = 4096;

/// Upper bound of [`flush`] for the last lines at the end of the process.
const FLUSH_WAIT: Duration = Duration::from_secs(2);

/// The mark of a line, as in Redis.
fn mark(level: Level) -> char {
    match level {
        Level::Trace => '.',
        Level::Debug => '-',
        Level::Info => '*',
        Level::Warn | Level::Error => '#',
    }
}

fn priority(level: Level) -> libc::c_int {
    match level {
        Level::Trace => libc::LOG_DEBUG,
        Level::Debug => libc::LOG_INFO,
        Level::Info => libc::LOG_NOTICE,
        Level::Warn | Level::Error => libc::LOG_WARNING,
    }
}

/// Destinations of the lines.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// Appended to; `None` is standard output.
    pub file: Option<PathBuf>,
    /// Identity and facility for syslog(3), if lines go there as well.
    pub syslog: Option<(String, libc::c_int)>,
}

/// Checks whether the file can be opened for writing, as far as that shows without waiting: a pipe may get
/// its reader later.
pub fn try_file(path: &Path) -> io::Result<()> {
    match open(path, libc::O_NONBLOCK) {
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(()), // a pipe without a reader
        opened => opened.map(drop),
    }
}

enum Order {
    Line(Level, u64, String),
    Flush(SyncSender<()>),
}

struct ServerLog {
    queue: SyncSender<Order>,
    shared: Arc<Shared>,
}

struct Shared {
    is_in_file: bool,
    /// Lines lost and not reported yet, and all since the start or CONFIG RESETSTAT.
    untold: AtomicU64,
    lost: AtomicU64,
}

static LOG: OnceLock<ServerLog> = OnceLock::new();

/// Starts the thread and makes it the back end of `log`'s macros, which discard all lines before. Once per
/// process.
pub fn start(level: LevelFilter, target: Target) {
    let (queue, orders) = sync_channel(QUEUE);
    let is_in_file = target.file.is_some();
    let shared = Arc::new(Shared { is_in_file, untold: AtomicU64::new(0), lost: AtomicU64::new(0) });
    let writer = Writer { orders, target, shared: shared.clone() };
    threads::named("log").spawn(move || writer.run()).expect("a thread can be started");
    let log = LOG.get_or_init(|| ServerLog { queue, shared });
    log::set_logger(log).expect("the server log is started once");
    log::set_max_level(level);
}

/// Whether lines go to a file, so that an operator at a terminal sees none.
pub fn is_in_file() -> bool {
    LOG.get().is_some_and(|log| log.shared.is_in_file)
}

/// Returns the number of lines lost because the queue was full, since the start or CONFIG RESETSTAT.
pub fn lost() -> u64 {
    LOG.get().map_or(0, |log| log.shared.lost.load(Relaxed))
}

/// CONFIG RESETSTAT.
pub fn reset_lost() {
    if let Some(log) = LOG.get() {
        log.shared.lost.store(0, Relaxed);
    }
}

/// Waits until all lines so far are written, for [`FLUSH_WAIT`] at most. Not for workers.
pub fn flush() {
    log::logger().flush();
}

impl log::Log for ServerLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Libraries are not heard: only this program's own crates write to the server log.
        metadata.target().starts_with("evenkeel")
    }

    /// Queues a line; never waits.
    fn log(&self, record: &Record<'_>) {
        let is_full = || {
            let order = Order::Line(record.level(), clock::unix_ms(), record.args().to_string());
            self.queue.try_send(order).is_err()
        };
        if self.enabled(record.metadata()) && is_full() {
            self.shared.untold.fetch_add(1, Relaxed);
            self.shared.lost.fetch_add(1, Relaxed);
        }
    }

    fn flush(&self) {
        let until = Instant::now() + FLUSH_WAIT;
        let (done, wait) = sync_channel(1);
        let mut order = Order::Flush(done);
        // The queue of a hanging log may be full, and stay so.
        while let Err(refused) = self.queue.try_send(order) {
            match refused {
                TrySendError::Full(again) if Instant::now() < until => order = again,
                _ => return,
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = wait.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

/// State of the log thread.
struct Writer {
    orders: Receiver<Order>,
    target: Target,
    shared: Arc<Shared>,
}

impl Writer {
    fn run(&self) {
        if let Some((ident, facility)) = &self.target.syslog {
            open_syslog(ident, *facility);
        }
        let mut written = 0;
        loop {
            let order = self.orders.try_recv().or_else(|_| {
                self.report_lost();
                written = 0;
                self.orders.recv()
            });
            match order {
                Ok(Order::Line(level, at_ms, text)) => self.write(level, at_ms, &text),
                Ok(Order::Flush(done)) => {
                    self.report_lost();
                    let _ = done.send(()); // the caller of `flush` may have given up
                }
                Err(_) => return, // the last handle is gone
            }
            written += 1;
            // The queue may never be empty. By now every line that was queued at the time of the loss is
            // written.
            if written == QUEUE {
                self.report_lost();
                written = 0;
            }
        }
    }

    fn report_lost(&self) {
        let lost = self.shared.untold.swap(0, Relaxed);
        if lost > 0 {
            let text = format!("{lost} log lines were dropped: the log cannot be written fast enough");
            self.write(Level::Warn, clock::unix_ms(), &text);
        }
    }

    fn write(&self, level: Level, at_ms: u64, text: &str) {
        let text = without_numbers(text);
        let text = &*escaped(&text);
        let line = format_line(level, at_ms, text);
        // A failure to write the log can be reported nowhere.
        let _ = match &self.target.file {
            None => io::stdout().lock().write_all(line.as_bytes()),
            Some(path) => open(path, 0).and_then(|mut file| file.write_all(line.as_bytes())),
        };
        if self.target.syslog.is_some() {
            write_syslog(level, text);
        }
    }
}

/// Opens the file, once for each line as Redis does: it may be renamed or removed at any time without a
/// notice to the server.
fn open(path: &Path, flags: libc::c_int) -> io::Result<std::fs::File> {
    OpenOptions::new().append(true).create(true).mode(0o644).custom_flags(flags).open(path)
}

/// Opens syslog for the whole process. Called only by the log thread, since the syslog daemon may hang as
/// well.
fn open_syslog(ident: &str, facility: libc::c_int) {
    let ident = CString::new(ident.replace('\0', "?")).expect("zeros were replaced");
    // SAFETY: the text lives as long as the process.
    unsafe { libc::openlog(ident.into_raw(), libc::LOG_PID | libc::LOG_NDELAY | libc::LOG_NOWAIT, facility) };
}

fn write_syslog(level: Level, text: &str) {
    let text = CString::new(text).expect("zeros are escaped");
    // SAFETY: the format takes a single C string, which is given.
    unsafe { libc::syslog(priority(level), c"%s".as_ptr(), text.as_ptr()) };
}

/// Replaces control characters, line separators and marks that change the direction of text by escape
/// sequences as in Rust's strings: `\n`, `\u{1b}`. A backslash is kept, since parts of many lines are escaped
/// already.
fn escaped(text: &str) -> Cow<'_, str> {
    let must_be_escaped = |c: char| {
        let steers = matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}');
        steers || c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(must_be_escaped) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match must_be_escaped(c) {
            // All of these have an escape sequence of their own.
            true => write!(line, "{}", c.escape_default()).expect("a string takes all"),
            false => line.push(c),
        }
    }
    Cow::Owned(line)
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
        mark(level),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_line_begins_a_new_one_or_steers_a_terminal() {
        for (text, expected) in [
            ("as it is: \\n, \"quoted\", \u{e4}\u{4e2d}\u{1f600}\u{fffd}", None),
            ("a\r\n1:M # b", Some("a\\r\\n1:M # b")),
            ("\u{1b}[2J\u{7}\u{7f}\u{9b}31m", Some("\\u{1b}[2J\\u{7}\\u{7f}\\u{9b}31m")),
            ("\0\u{b}\u{c}\u{85}\u{2028}\u{2029}", Some("\\u{0}\\u{b}\\u{c}\\u{85}\\u{2028}\\u{2029}")),
            ("\u{202e}txt\u{2066}\u{200f}", Some("\\u{202e}txt\\u{2066}\\u{200f}")),
        ] {
            assert_eq!(escaped(text), expected.unwrap_or(text));
        }
        for c in '\0'..=char::MAX {
            let line = escaped(c.encode_utf8(&mut [0; 4])).into_owned();
            assert!(!line.contains(char::is_control) && line.lines().count() == 1, "{c:?} is {line:?}");
        }
    }
}
