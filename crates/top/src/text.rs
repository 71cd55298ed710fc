//! Texts for the screen: escaped bytes of the server, and numbers with units in few columns.

/// Shown for a value that the server does not report.
pub(crate) const ABSENT: &str = "-";

/// Returns bytes as printable ASCII. Control characters, backslashes and all bytes above ASCII are escaped as
/// redis-cli escapes them, so that no name or argument reaches the terminal as a control sequence.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\\' => text.push_str("\\\\"),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}

/// Returns an argument of a command as redis-cli would accept it: in quotes if it is empty or has blanks.
pub(crate) fn argument(bytes: &[u8]) -> String {
    let text = escaped(bytes);
    if text.is_empty() || text.contains([' ', '"']) {
        return format!("\"{}\"", text.replace('"', "\\\""));
    }
    text
}

/// Shows a value by `show`, or a dash.
pub(crate) fn or_absent<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| ABSENT.into(), show)
}

/// Returns a rate in at most five columns: `0`, `0.4`, `17`, `1234`, `12.3k`, `1.23M`.
pub(crate) fn rate(number: f64) -> String {
    if number > 0.0 && number < 9.95 { format!("{number:.1}") } else { count(number) }
}

/// Returns a number in at most five columns: `0`, `17`, `1234`, `12.3k`, `1.23M`.
pub(crate) fn count(number: f64) -> String {
    let number = number.max(0.0);
    if number < 9_999.5 {
        return format!("{number:.0}");
    }
    scaled(number, 1000.0, &["", "k", "M", "G", "T", "P"])
}

/// Returns a number of bytes in at most five columns, in powers of 1024: `17B`, `1.50K`, `312M`, `1023G`.
pub(crate) fn bytes(number: f64) -> String {
    scaled(number.max(0.0), 1024.0, &["B", "K", "M", "G", "T", "P"])
}

/// Returns microseconds in at most six columns: `7.0us`, `120us`, `1.23ms`, `12.3s`, `140s`.
pub(crate) fn duration(us: f64) -> String {
    let us = us.max(0.0);
    match us {
        _ if us > 0.0 && us < 9.95 => format!("{us:.1}us"),
        _ if us < 999.5 => format!("{us:.0}us"),
        _ if us < 999_500.0 => format!("{}ms", three_digits(us / 1000.0)),
        _ => format!("{}s", three_digits(us / 1_000_000.0)),
    }
}

/// Returns a share as a percentage with a decimal: `4.2%`, `100.0%`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// Returns seconds as a clock shows them: `00:04:31`, `3d 14:00:12`.
pub(crate) fn uptime(seconds: f64) -> String {
    let seconds = seconds.clamp(0.0, 1e12) as u64;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    if days == 0 { clock } else { format!("{days}d {clock}") }
}

/// Returns an age in at most five columns: `59s`, `12m`, `47h`, `210d`.
pub(crate) fn age(seconds: f64) -> String {
    match seconds.clamp(0.0, 1e12) as u64 {
        seconds @ 0..=99 => format!("{seconds}s"),
        seconds @ 100..=5_999 => format!("{}m", seconds / 60),
        seconds @ 6_000..=359_999 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// Returns a Unix time of day in UTC: `2026-03-01 14:05:09`.
pub(crate) fn moment(unix_s: i64) -> String {
    let (days, rest) = (unix_s.div_euclid(86_400), unix_s.rem_euclid(86_400));
    let (year, month, day) = date(days.clamp(-1_000_000, 10_000_000));
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Returns the date of a number of days since 1970, by the algorithm "civil from days" of Howard Hinnant.
fn date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn scaled(number: f64, base: f64, units: &[&str]) -> String {
    let mut number = number;
    let mut unit = 0;
    while number >= base - 0.5 && unit + 1 < units.len() {
        number /= base;
        unit += 1;
    }
    let digits = if unit == 0 { format!("{number:.0}") } else { three_digits(number) };
    format!("{digits}{}", units[unit])
}

fn three_digits(number: f64) -> String {
    match number {
        _ if number < 9.995 => format!("{number:.2}"),
        _ if number < 99.95 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

/// Breaks a text into lines of at most `width` columns, at blanks where it has any. Leading blanks stay and
/// are repeated on the lines that continue a line; an item of a list continues below its text.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let indent = line.len() - line.trim_start_matches(' ').len();
        let mut current = " ".repeat(if indent * 2 < width { indent } else { 0 });
        let is_item = line.trim_start().starts_with("- ") && width > 8;
        let indent = current.clone() + if is_item { "  " } else { "" };
        let mut has_words = false;
        for word in line.split(' ').filter(|word| !word.is_empty()) {
            if has_words && current.len() + 1 + word.len() > width {
                lines.push(std::mem::replace(&mut current, indent.clone()));
                has_words = false;
            }
            if has_words {
                current.push(' ');
            }
            current.push_str(word);
            has_words = true;
            while current.len() > width && current.is_ascii() {
                let rest = current.split_off(width);
                lines.push(std::mem::replace(&mut current, indent.clone() + &rest));
            }
        }
        lines.push(current);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_few_columns() {
        let counts = [0.0, 0.42, 9.96, 1234.0, 9999.4, 9999.6, 99_960.0, 999_600.0, 1_234_567.0];
        let shown = ["0", "0", "10", "1234", "9999", "10.0k", "100k", "1.00M", "1.23M"];
        assert_eq!(counts.map(count), shown);
        assert_eq!([0.0, 0.42, 3.0, 9.96, 12_340.0].map(rate), ["0", "0.4", "3.0", "10", "12.3k"]);
        let sizes = [0.0, 1023.0, 1536.0, 1_047_552.0, 1_073_741_824.0, 109_951_162_777.6];
        assert_eq!(sizes.map(bytes), ["0B", "1023B", "1.50K", "1023K", "1.00G", "102G"]);
        let times = [0.0, 0.55, 7.0, 999.4, 1234.0, 999_600.0, 61_000_000.0];
        assert_eq!(times.map(duration), ["0us", "0.6us", "7.0us", "999us", "1.23ms", "1.00s", "61.0s"]);
        assert_eq!([0.0, 5.0, 100.0, 86_400.0, 400_000.0].map(age), ["0s", "5s", "1m", "24h", "4d"]);
    }

    #[test]
    fn times_of_day() {
        assert_eq!(uptime(3.0 * 86_400.0 + 3_723.0), "3d 01:02:03");
        assert_eq!(moment(0), "1970-01-01 00:00:00");
        assert_eq!(moment(1_772_374_029), "2026-03-01 14:07:09");
        assert_eq!(moment(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(moment(i64::MIN).len(), moment(i64::MIN).trim().len());
    }

    #[test]
    fn bytes_of_a_client_are_escaped() {
        assert_eq!(escaped(b"a\x1b[2J\r\n\t\\\xc3\xa4\x7f"), "a\\x1b[2J\\r\\n\\t\\\\\\xc3\\xa4\\x7f");
        assert_eq!(argument(b"a \"b\""), "\"a \\\"b\\\"\"");
        assert_eq!(argument(b""), "\"\"");
    }

    #[test]
    fn long_lines_are_wrapped() {
        assert_eq!(wrapped("a bb ccc\n\n  d eee f", 5), ["a bb", "ccc", "", "  d", "  eee", "  f"]);
        assert_eq!(wrapped("- aaaa bb ccc", 10), ["- aaaa bb", "  ccc"]);
        assert_eq!(wrapped("abcdefg", 3), ["abc", "def", "g"]);
    }
}
