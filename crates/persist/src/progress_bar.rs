//! The progress of a load, for an operator at a terminal: a line on standard error that is redrawn, and
//! cleared in the end.
//!
//! Server log lines may come in between. So the cursor waits at the beginning of the line, where they
//! overwrite it.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Persist;
use evenkeel_runtime::threads;

/// A shorter load shows no line.
const SHOWN_AFTER: Duration = Duration::from_millis(300);

const EVERY: Duration = Duration::from_millis(100);

/// Characters of the bar itself.
const WIDTH: usize = 30;

const CLEAR: &str = "\r\x1b[K";

/// Draws until it is dropped.
pub struct Bar(Option<(Arc<AtomicBool>, JoinHandle<()>)>);

impl Bar {
    /// Begins to draw, if standard error is a terminal.
    pub fn begin(persist: &Arc<Persist>) -> Bar {
        if !io::stderr().is_terminal() {
            return Bar(None);
        }
        let (ends, persist) = (Arc::new(AtomicBool::new(false)), persist.clone());
        let ends_of_thread = ends.clone();
        let thread = threads::named("progress-bar");
        let spawned = thread.spawn(move || draw(&persist, &ends_of_thread));
        Bar(spawned.ok().map(|thread| (ends, thread)))
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some((ends, thread)) = self.0.take() {
            ends.store(true, Release);
            thread.thread().unpark();
            // Fails only after a panic of the thread, which does no harm.
            let _ = thread.join();
        }
    }
}

fn draw(persist: &Persist, ends: &AtomicBool) {
    let (began, mut drawn, loading) = (Instant::now(), false, &persist.loading);
    loop {
        std::thread::park_timeout(if drawn { EVERY } else { SHOWN_AFTER });
        if ends.load(Acquire) {
            break;
        }
        let (loaded, total) = (loading.loaded_bytes.load(Relaxed), loading.total_bytes.load(Relaxed));
        let elapsed = began.elapsed();
        if elapsed >= SHOWN_AFTER && total > 0 {
            say(&format!("{CLEAR}{}\r", line(loaded.min(total), total, elapsed)));
            drawn = true;
        }
    }
    if drawn {
        say(CLEAR);
    }
}

/// A terminal that is gone is no reason to stop loading.
fn say(text: &str) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn line(loaded: u64, total: u64, elapsed: Duration) -> String {
    let part = loaded as f64 / total as f64;
    let full = (part * WIDTH as f64) as usize;
    let seconds = elapsed.as_secs_f64();
    let left = match loaded {
        0 => "?".to_owned(),
        _ => format!("{:.0}", seconds * (total - loaded) as f64 / loaded as f64),
    };
    format!(
        "Loading [{}{}] {:3.0}%  {} of {}  {}/s  {left} s left",
        "#".repeat(full),
        ".".repeat(WIDTH - full),
        part * 100.0,
        size(loaded as f64),
        size(total as f64),
        size(loaded as f64 / seconds),
    )
}

fn size(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];
    let mut unit = 0;
    let mut number = bytes;
    while number >= 999.5 && unit + 1 < UNITS.len() {
        (number, unit) = (number / 1000.0, unit + 1);
    }
    let digits = if unit > 0 && number < 9.95 { 1 } else { 0 };
    format!("{number:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_shows_progress_and_remaining_time() {
        assert_eq!(
            line(1_750_000_000, 7_000_000_000, Duration::from_secs(2)),
            "Loading [#######.......................]  25%  1.8 GB of 7.0 GB  875 MB/s  6 s left"
        );
        assert_eq!(
            line(0, 999, Duration::from_millis(400)),
            "Loading [..............................]   0%  0 B of 999 B  0 B/s  ? s left"
        );
        assert_eq!(
            line(12_345, 12_345, Duration::from_secs(1)),
            "Loading [##############################] 100%  12 KB of 12 KB  12 KB/s  0 s left"
        );
    }

    #[test]
    fn sizes_have_two_or_three_digits() {
        for (bytes, text) in [(999.0, "999 B"), (1_000.0, "1.0 KB"), (9_949.0, "9.9 KB"), (9_951.0, "10 KB")]
        {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(size(999_600.0), "1.0 MB");
        assert_eq!(size(5e15), "5000 TB");
    }
}
