//! The text formats of metrics: Prometheus 0.0.4 and OpenMetrics 1.0.0.
//!
//! The counters belong to the threads that write them, so there is no registry: each scrape writes all
//! samples from their source. The formats differ in these points:
//!
//! | | Prometheus | OpenMetrics |
//! |---|---|---|
//! | a counter's family | `x_total` | `x`, its samples `x_total` |
//! | a counter with another name | `counter` | `unknown`, since a counter's samples must end in `_total` |
//! | quotes in a help text | as they are | escaped |
//! | end | none | `# EOF` |

use std::fmt::Write as _;

/// Media types of the two formats.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The kind of a family of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    /// Samples with the suffixes `_bucket`, `_sum` and `_count`.
    Histogram,
    /// Samples without suffix, and with `_sum` and `_count`.
    Summary,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
        }
    }
}

/// A text of metrics that is being written.
pub struct Exposition {
    text: String,
    is_open_metrics: bool,
    /// The name of the present family.
    family: &'static str,
}

impl Exposition {
    /// Begins a text in the format that the header `Accept` prefers.
    pub(crate) fn new(accept: &str) -> Exposition {
        let is_open_metrics = prefers_open_metrics(accept);
        Exposition { text: String::with_capacity(256 << 10), is_open_metrics, family: "" }
    }

    /// Begins a family; its samples follow. `name` is that of the samples without suffix; a counter's name
    /// ends in `_total`. A family without samples is allowed.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &str) {
        self.family = name;
        let (mut shown, mut kind_name) = (name, kind.name());
        if self.is_open_metrics && kind == Kind::Counter {
            (shown, kind_name) = match name.strip_suffix("_total") {
                Some(stem) => (stem, kind_name),
                None => (name, "unknown"),
            };
        }
        for part in ["# HELP ", shown, " "] {
            self.text.push_str(part);
        }
        escape(&mut self.text, help, self.is_open_metrics);
        // Writing to a `String` cannot fail.
        let _ = write!(self.text, "\n# TYPE {shown} {kind_name}\n");
    }

    /// Writes a sample of the present family. `suffix` is appended to the name; a counter has none.
    pub fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Number) {
        self.text.push_str(self.family);
        self.text.push_str(suffix);
        let mut separator = '{';
        for (name, label) in labels {
            self.text.push(separator);
            separator = ',';
            self.text.push_str(name);
            self.text.push_str("=\"");
            escape(&mut self.text, label, true);
            self.text.push('"');
        }
        if separator == ',' {
            self.text.push('}');
        }
        self.text.push(' ');
        value.write(&mut self.text);
        self.text.push('\n');
    }

    /// Writes a family that consists of a single sample without labels.
    pub fn single(&mut self, name: &'static str, kind: Kind, help: &str, value: impl Number) {
        self.family(name, kind, help);
        self.sample("", &[], value);
    }

    /// Returns the media type and the text.
    pub(crate) fn end(mut self) -> (&'static str, String) {
        if !self.is_open_metrics {
            return (PROMETHEUS, self.text);
        }
        self.text.push_str("# EOF\n");
        (OPEN_METRICS, self.text)
    }
}

/// A value of a sample.
pub trait Number {
    fn to_f64(&self) -> f64;
    fn write(self, text: &mut String);
}

macro_rules! whole_numbers {
    ($($kind:ty)*) => {
        $(impl Number for $kind {
            fn to_f64(&self) -> f64 {
                *self as f64
            }

            fn write(self, text: &mut String) {
                text.push_str(itoa::Buffer::new().format(self));
            }
        })*
    };
}

whole_numbers!(u8 u16 u32 u64 usize i32 i64);

impl Number for f64 {
    fn to_f64(&self) -> f64 {
        *self
    }

    fn write(self, text: &mut String) {
        let _ = if self.is_infinite() {
            write!(text, "{}Inf", if self > 0.0 { '+' } else { '-' })
        } else {
            write!(text, "{self}")
        };
    }
}

impl Number for bool {
    fn to_f64(&self) -> f64 {
        f64::from(u8::from(*self))
    }

    fn write(self, text: &mut String) {
        text.push(if self { '1' } else { '0' });
    }
}

fn escape(text: &mut String, raw: &str, quotes: bool) {
    for character in raw.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if quotes => text.push_str("\\\""),
            other => text.push(other),
        }
    }
}

/// Whether OpenMetrics has a greater weight in the header than plain text.
fn prefers_open_metrics(accept: &str) -> bool {
    let weight = |media: &str| -> f64 {
        let of = |item: &str| {
            let mut parts = item.split(';').map(str::trim);
            if !parts.next()?.eq_ignore_ascii_case(media) {
                return None;
            }
            let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
            Some(weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0)))
        };
        accept.split(',').filter_map(of).fold(0.0, f64::max)
    };
    weight("application/openmetrics-text") > weight("text/plain")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BY_PROMETHEUS: &str = "application/openmetrics-text;version=1.0.0;q=0.5,\
        application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";

    fn written(accept: &str) -> (&'static str, String) {
        let mut text = Exposition::new(accept);
        text.family("a_total", Kind::Counter, "Counts \"a\".\nAnd \\.");
        text.sample("", &[("cmd", "get"), ("x", "a\"b\\c\nd")], 7_u64);
        text.single("b", Kind::Counter, "Counts.", 1_u64);
        text.family("c", Kind::Histogram, "Times.");
        text.sample("_bucket", &[("le", "+Inf")], 3_usize);
        text.sample("_sum", &[], 0.25);
        text.single("d", Kind::Gauge, "Is.", f64::INFINITY);
        text.single("e", Kind::Gauge, "Is.", true);
        text.end()
    }

    #[test]
    fn text_of_prometheus() {
        let (media, text) = written("");
        assert_eq!(media, PROMETHEUS);
        let expected = "# HELP a_total Counts \"a\".\\nAnd \\\\.\n# TYPE a_total counter\n\
            a_total{cmd=\"get\",x=\"a\\\"b\\\\c\\nd\"} 7\n\
            # HELP b Counts.\n# TYPE b counter\nb 1\n\
            # HELP c Times.\n# TYPE c histogram\nc_bucket{le=\"+Inf\"} 3\nc_sum 0.25\n\
            # HELP d Is.\n# TYPE d gauge\nd +Inf\n# HELP e Is.\n# TYPE e gauge\ne 1\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn text_of_open_metrics() {
        let (media, text) = written(BY_PROMETHEUS);
        assert_eq!(media, OPEN_METRICS);
        assert!(
            text.starts_with("# HELP a Counts \\\"a\\\".\\nAnd \\\\.\n# TYPE a counter\na_total{"),
            "{text}"
        );
        assert!(text.contains("# TYPE b unknown\nb 1\n"), "{text}");
        assert!(text.ends_with("e 1\n# EOF\n"), "{text}");
    }

    #[test]
    fn the_format_with_the_greater_weight_is_chosen() {
        for (accept, is_open_metrics) in [
            ("", false),
            ("*/*", false),
            ("text/plain", false),
            ("application/openmetrics-text", true),
            ("application/openmetrics-text;q=0.1, text/plain;q=0.2", false),
            ("Application/OpenMetrics-Text; version=1.0.0", true),
            ("application/openmetrics-text;q=x", false),
            (BY_PROMETHEUS, true),
        ] {
            assert_eq!(prefers_open_metrics(accept), is_open_metrics, "{accept}");
        }
    }
}
