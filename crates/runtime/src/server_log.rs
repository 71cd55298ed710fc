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
//! the log ([`escaped`], and the forms of lines in `server_log/format.rs`).

use std::ffi::CString;
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

mod format;

use format::{Line, escaped};
pub use format::{LineFormat, TimeFormat, set_format, set_replica};

/// Capacity of the queue in lines: 400 KiB at 100 bytes each.
const QUEUE: usize = 4096;

/// Upper bound of [`flush`] for the last lines at the end of the process.
const FLUSH_WAIT: Duration = Duration::from_secs(2);

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
        let line = Line::new(level, at_ms, &text).formatted();
        // A failure to write the log can be reported nowhere.
        let _ = match &self.target.file {
            None => io::stdout().lock().write_all(line.as_bytes()),
            Some(path) => open(path, 0).and_then(|mut file| file.write_all(line.as_bytes())),
        };
        if self.target.syslog.is_some() {
            write_syslog(level, &escaped(&text));
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
