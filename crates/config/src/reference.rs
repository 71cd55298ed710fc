//! The table of directives as a reference, for manual pages and completions.

use super::directives::{Change, DIRECTIVES, Directive, Effect};
use super::summaries;
use super::value::{Range, ValueKind};

/// A directive as the manual page describes it.
#[derive(Debug)]
pub struct DirectiveReference {
    pub name: &'static str,
    /// A second name; empty if there is none.
    pub alias: &'static str,
    /// The values that the parser takes, such as `yes | no` or `0 to 65535`.
    pub values: String,
    /// The single words that the parser takes, if they are few.
    pub words: &'static [&'static str],
    /// `None` for a line that is no setting, such as `include`.
    pub default: Option<&'static str>,
    /// When CONFIG SET may change it.
    pub change: &'static str,
    /// A sentence on its effect, or the reason why it has none.
    pub summary: String,
    pub has_effect: bool,
    /// An option for tests, which `CONFIG GET *` does not show.
    pub is_hidden: bool,
}

/// Returns all directives in the order of their names.
pub fn reference() -> impl Iterator<Item = DirectiveReference> {
    DIRECTIVES.iter().map(|row| DirectiveReference {
        name: row.name,
        alias: row.alias,
        values: values(&row.kind),
        words: words(&row.kind),
        default: row.is_setting().then_some(row.default),
        change: change(row),
        summary: summary(row),
        has_effect: !matches!(row.effect, Effect::Inert(_)),
        is_hidden: row.hidden,
    })
}

fn summary(row: &Directive) -> String {
    match row.effect {
        Effect::Inert(why) => format!("Has no effect: {why}."),
        Effect::Live(_) | Effect::Line(_) => summaries::summary(row.name).unwrap_or_default().to_owned(),
    }
}

fn change(row: &Directive) -> &'static str {
    match (row.is_setting(), row.change) {
        (false, _) | (true, Change::Nobody) => "at the start only",
        (true, Change::Permitted) => "by CONFIG SET with enable-protected-configs",
        (true, Change::Anybody) => "by CONFIG SET",
    }
}

fn words(kind: &ValueKind) -> &'static [&'static str] {
    match kind {
        ValueKind::Flag => &["yes", "no"],
        ValueKind::Choice(names) | ValueKind::Choices(names) => names,
        _ => &[],
    }
}

fn values(kind: &ValueKind) -> String {
    match kind {
        ValueKind::Flag | ValueKind::Choice(_) => words(kind).join(" | "),
        ValueKind::Choices(names) => format!("one or more of {}", names.join(", ")),
        ValueKind::Integer(range) | ValueKind::Clamped(_, range) => between(range, ""),
        ValueKind::Octal(range) => format!("0 to {:o}, in octal", range.most),
        ValueKind::Memory(range) => between(range, "bytes, "),
        ValueKind::MemoryOrPercent => "bytes, or 1% to 100%".into(),
        ValueKind::Directory => "a directory".into(),
        ValueKind::Text | ValueKind::Checked(_) => "text".into(),
        ValueKind::List(_) => "words".into(),
    }
}

/// Names no bound that is only that of the integer's type.
fn between(range: &Range, unit: &str) -> String {
    const LARGE: i128 = i32::MAX as i128;
    match (range.least <= -LARGE, range.most >= LARGE) {
        (true, true) => format!("{unit}a number"),
        (false, true) => format!("{unit}{} or more", range.least),
        (true, false) => format!("{unit}{} or less", range.most),
        (false, false) => format!("{unit}{} to {}", range.least, range.most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summaries::SUMMARIES;

    #[test]
    fn each_directive_with_an_effect_has_a_sentence() {
        let described: Vec<&str> = SUMMARIES.iter().map(|(name, _)| *name).collect();
        let known: Vec<&str> =
            reference().filter(|directive| directive.has_effect).map(|directive| directive.name).collect();
        assert_eq!(described, known);
        for (name, summary) in SUMMARIES {
            assert!(summary.ends_with('.'), "{name}: {summary}");
        }
    }

    #[test]
    fn values_are_described_as_they_are_parsed() {
        let of = |name: &str| {
            let found = reference().find(|directive| directive.name == name).expect(name);
            (found.values, found.default.unwrap_or("-"), found.change)
        };
        let live = "by CONFIG SET";
        assert_eq!(of("appendonly"), ("yes | no".into(), "no", live));
        assert_eq!(of("port"), ("0 to 65535".into(), "6379", live));
        assert_eq!(of("maxmemory"), ("bytes, 0 or more".into(), "0", live));
        assert_eq!(of("unixsocketperm").0, "0 to 777, in octal");
        assert_eq!(of("appendfsync").0, "everysec | always | no");
        assert_eq!(of("threads").2, "at the start only");
        assert_eq!(of("dir").2, "by CONFIG SET with enable-protected-configs");
        assert_eq!(of("include").1, "-");
    }
}
