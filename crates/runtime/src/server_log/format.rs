//! The form of a line of the server log: Redis' own, logfmt, or JSON, as Valkey writes them.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use log::Level;

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineFormat {
    #[default]
    Legacy,
    Logfmt,
    Json,
}

/// The form of a line's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeFormat {
    #[default]
    Legacy,
    Iso8601,
    Milliseconds,
}

static LINES: AtomicU8 = AtomicU8::new(LineFormat::Legacy as u8);
static TIMES: AtomicU8 = AtomicU8::new(TimeFormat::Legacy as u8);
static IS_REPLICA: AtomicBool = AtomicBool::new(false);

/// Sets the form of all lines from now on.
pub fn set_format(lines: LineFormat, times: TimeFormat) {
    LINES.store(lines as u8, Relaxed);
    TIMES.store(times as u8, Relaxed);
}

/// Sets the role that lines show.
pub fn set_replica(is_replica: bool) {
    IS_REPLICA.store(is_replica, Relaxed);
}

/// A line's parts; `text` may contain any character.
pub(super) struct Line<'a> {
    pub(super) level: Level,
    pub(super) at_ms: u64,
    pub(super) text: &'a str,
    pub(super) is_replica: bool,
}

impl Line<'_> {
    pub(super) fn new(level: Level, at_ms: u64, text: &str) -> Line<'_> {
        Line { level, at_ms, text, is_replica: IS_REPLICA.load(Relaxed) }
    }

    /// Returns the line in the configured form, with its end.
    pub(super) fn formatted(&self) -> String {
        const LINE_FORMATS: [LineFormat; 3] = [LineFormat::Legacy, LineFormat::Logfmt, LineFormat::Json];
        const TIME_FORMATS: [TimeFormat; 3] =
            [TimeFormat::Legacy, TimeFormat::Iso8601, TimeFormat::Milliseconds];
        self.written(LINE_FORMATS[LINES.load(Relaxed) as usize], TIME_FORMATS[TIMES.load(Relaxed) as usize])
    }

    fn written(&self, lines: LineFormat, times: TimeFormat) -> String {
        let (pid, time) = (std::process::id(), time_text(self.at_ms, times));
        let (letter, role) = if self.is_replica { ('S', "replica") } else { ('M', "primary") };
        let level = name(self.level);
        match lines {
            LineFormat::Legacy => {
                format!("{pid}:{letter} {time} {} {}\n", mark(self.level), escaped(self.text))
            }
            LineFormat::Logfmt => {
                let text = self.text.replace('"', "'").replace(['\n', '\r'], " ");
                let text = escaped(&text);
                format!("pid={pid} role={role} timestamp=\"{time}\" level={level} message=\"{text}\"\n")
            }
            LineFormat::Json => {
                let text = json(self.text);
                format!(
                    "{{\"pid\":{pid},\"role\":\"{role}\",\"timestamp\":\"{time}\",\"level\":\"{level}\",\
                     \"message\":{text}}}\n"
                )
            }
        }
    }
}

/// The mark of a line, as in Redis.
fn mark(level: Level) -> char {
    match level {
        Level::Trace => '.',
        Level::Debug => '-',
        Level::Info => '*',
        Level::Warn | Level::Error => '#',
    }
}

fn name(level: Level) -> &'static str {
    match level {
        Level::Trace => "debug",
        Level::Debug => "info",
        Level::Info => "notice",
        Level::Warn | Level::Error => "warning",
    }
}

fn must_be_escaped(c: char) -> bool {
    let steers = matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}');
    steers || c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Replaces control characters, line separators and marks that change the direction of text by escape
/// sequences as in Rust's strings: `\n`, `\u{1b}`. A backslash is kept, since parts of many lines are escaped
/// already.
pub(super) fn escaped(text: &str) -> Cow<'_, str> {
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

/// Returns the text as a string of JSON, in which nothing steers a terminal.
fn json(text: &str) -> String {
    let quoted = serde_json::to_string(text).expect("a text has a form in JSON");
    let mut line = String::with_capacity(quoted.len());
    for c in quoted.chars() {
        match must_be_escaped(c) {
            // Such characters of more than 16 bits do not exist.
            true => write!(line, "\\u{:04x}", c as u32).expect("a string takes all"),
            false => line.push(c),
        }
    }
    line
}

fn time_text(at_ms: u64, format: TimeFormat) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (time, ms) = (local_time(at_ms / 1000), at_ms % 1000);
    let clock = format!("{:02}:{:02}:{:02}.{ms:03}", time.tm_hour, time.tm_min, time.tm_sec);
    let (year, day) = (time.tm_year + 1900, time.tm_mday);
    match format {
        TimeFormat::Legacy => {
            format!("{day:02} {} {year} {clock}", MONTHS[time.tm_mon.clamp(0, 11) as usize])
        }
        TimeFormat::Iso8601 => {
            let minutes = time.tm_gmtoff / 60;
            let sign = if minutes < 0 { '-' } else { '+' };
            let (hours, minutes) = (minutes.abs() / 60, minutes.abs() % 60);
            format!("{year}-{:02}-{day:02}T{clock}{sign}{hours:02}:{minutes:02}", time.tm_mon + 1)
        }
        TimeFormat::Milliseconds => at_ms.to_string(),
    }
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
            let text = c.encode_utf8(&mut [0; 4]).to_owned();
            for line in [escaped(&text).into_owned(), json(&text)] {
                assert!(!line.contains(char::is_control) && line.lines().count() == 1, "{c:?} is {line:?}");
            }
        }
    }

    #[test]
    fn lines_have_the_forms_of_valkey() {
        let text = "a \"b\" \\ c\td\r\u{8}\u{c}\u{9b}";
        let line = Line { level: Level::Warn, at_ms: 1_000_000_000_123, text, is_replica: true };
        let pid = std::process::id();
        assert_eq!(
            line.written(LineFormat::Json, TimeFormat::Milliseconds),
            format!(
                "{{\"pid\":{pid},\"role\":\"replica\",\"timestamp\":\"1000000000123\",\"level\":\"warning\",\
                 \"message\":\"a \\\"b\\\" \\\\ c\\td\\r\\b\\f\\u009b\"}}\n"
            )
        );
        assert_eq!(
            line.written(LineFormat::Logfmt, TimeFormat::Milliseconds),
            format!(
                "pid={pid} role=replica timestamp=\"1000000000123\" level=warning message=\"a 'b' \\ c\\td \
                 \\u{{8}}\\u{{c}}\\u{{9b}}\"\n"
            )
        );
        let iso = line.written(LineFormat::Logfmt, TimeFormat::Iso8601);
        let time = iso.split('"').nth(1).expect("a time");
        assert!(time.starts_with("2001-09-") && time.contains(".123") && time.len() == 29, "{time}");
        let line = Line { level: Level::Info, is_replica: false, ..line };
        let legacy = line.written(LineFormat::Legacy, TimeFormat::Legacy);
        assert!(legacy.starts_with(&format!("{pid}:M ")) && legacy.contains(" Sep 2001 "), "{legacy}");
        assert!(legacy.contains(".123 * a \"b\" \\ c\\td\\r"), "{legacy}");
    }
}
