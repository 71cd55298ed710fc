//! The reply of INFO: fields by name.

use std::collections::BTreeMap;

use crate::text::escaped;

/// Most fields kept of a reply: a server with every command called has about a thousand.
const FIELDS_MAX: usize = 20_000;

/// The fields of INFO. Names are escaped; values are bytes of the server.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Info(BTreeMap<String, Vec<u8>>);

impl Info {
    /// Parses the text of INFO. Lines without a colon and titles of sections are skipped.
    pub(crate) fn parse(text: &[u8]) -> Info {
        let lines = text.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let fields = lines.filter(|line| !line.starts_with(b"#")).filter_map(|line| {
            let colon = line.iter().position(|&byte| byte == b':')?;
            Some((escaped(&line[..colon]), line[colon + 1..].to_vec()))
        });
        Info(fields.take(FIELDS_MAX).collect())
    }

    /// Returns a field, escaped; `None` if it is absent or empty.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.0.get(name).filter(|value| !value.is_empty()).map(|value| escaped(value))
    }

    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        number(self.0.get(name)?)
    }

    /// Returns the fields whose names begin with `prefix`, by the rest of their names.
    pub(crate) fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, Pairs)> {
        let from = self.0.range(prefix.to_owned()..);
        let found = from.map_while(move |(name, value)| Some((name.strip_prefix(prefix)?, value)));
        found.map(|(name, value)| (name, Pairs::parse(value)))
    }

    /// Returns the fields named by `prefix` and a number, in the order of the numbers: `worker0`, `worker1`.
    pub(crate) fn numbered(&self, prefix: &str) -> Vec<(u32, Pairs)> {
        let numbered = |(name, pairs): (&str, Pairs)| Some((name.parse().ok()?, pairs));
        let mut found: Vec<(u32, Pairs)> = self.with_prefix(prefix).filter_map(numbered).collect();
        found.sort_by_key(|(index, _)| *index);
        found
    }
}

/// A value of the form `name=value,name=value`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pairs(Vec<(String, Vec<u8>)>);

impl Pairs {
    fn parse(value: &[u8]) -> Pairs {
        let pairs = value.split(|&byte| byte == b',').filter_map(|pair| {
            let at = pair.iter().position(|&byte| byte == b'=')?;
            Some((escaped(&pair[..at]), pair[at + 1..].to_vec()))
        });
        Pairs(pairs.collect())
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| escaped(value))
    }

    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        number(&self.0.iter().find(|(other, _)| other == name)?.1)
    }

    /// Returns the numbers whose names end with `suffix`, by the rest of their names.
    pub(crate) fn with_suffix<'a>(&'a self, suffix: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.0.iter().filter_map(move |(name, value)| Some((name.strip_suffix(suffix)?, number(value)?)))
    }
}

/// Parses a number, with or without a percent sign. Infinite values and NaN are no numbers.
fn number(value: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(value).ok()?.trim_end_matches('%');
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &[u8] = b"# Server\r\nrun_id:ab\r\nused:7\nempty:\r\nno colon\r\n\
        worker10:busy=0.5,read_usec=3,x\r\nworker2:busy=nan\r\nworkers:1\r\nperc:12.5%\r\nbad\x1b:\x07\r\n";

    #[test]
    fn fields_are_found_by_name() {
        let info = Info::parse(TEXT);
        assert_eq!(info.text("run_id").as_deref(), Some("ab"));
        assert_eq!((info.number("used"), info.number("perc")), (Some(7.0), Some(12.5)));
        assert_eq!((info.text("empty"), info.number("run_id"), info.number("absent")), (None, None, None));
        assert_eq!(info.text("bad\\x1b").as_deref(), Some("\\x07"));
    }

    #[test]
    fn numbered_fields_come_in_order() {
        let workers = Info::parse(TEXT).numbered("worker");
        assert_eq!(workers.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [2, 10]);
        assert_eq!(workers[0].1.number("busy"), None);
        assert_eq!(workers[1].1.with_suffix("_usec").collect::<Vec<_>>(), [("read", 3.0)]);
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_escaped(text in prop::collection::vec(any::<u8>(), 0..400)) {
            let info = Info::parse(&text);
            for (name, pairs) in info.with_prefix("") {
                let shown = [name.to_owned(), info.text(name).unwrap_or_default()].concat();
                prop_assert!(shown.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
                let is_finite = pairs.with_suffix("").all(|(_, number)| number.is_finite());
                prop_assert!(is_finite);
            }
        }

        #[test]
        fn every_line_with_a_colon_is_a_field(
            fields in prop::collection::btree_map("[a-z]{1,9}", "[ -~]{1,9}", 0..20),
        ) {
            let text: String = fields.iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect();
            let info = Info::parse(text.as_bytes());
            for (name, value) in &fields {
                prop_assert_eq!(info.text(name), Some(escaped(value.as_bytes())));
            }
        }
    }
}
