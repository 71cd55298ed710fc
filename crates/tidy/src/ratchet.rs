//! The limits of today, and the comparison of figures with them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::tree::Tree;
use crate::{Figure, RULES, Rule};

/// The file of the limits, from the root of the workspace.
pub const PATH: &str = "crates/tidy/ratchet.txt";

/// The command that lowers the limits.
pub const UPDATE: &str = "cargo run -p evenkeel-tidy -- --update";

const HEADER: &str = "\
# Limits for figures that are above their bounds today: rule, subject, limit. A limit only goes down.
# The rules are in src/lib.rs. Lower the limits to the figures: cargo run -p evenkeel-tidy -- --update
";

/// Most places that a message names.
const NAMED_MAX: usize = 8;

/// The limits, by rule and subject.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Ratchet {
    limits: BTreeMap<(String, String), usize>,
}

impl Ratchet {
    /// Reads the lines of a file; an error names the line.
    pub fn parse(text: &str) -> Result<Ratchet, String> {
        let mut ratchet = Ratchet::default();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |reason: &str| format!("{PATH}:{}: {reason}: {line}", index + 1);
            let mut fields = line.split_whitespace();
            let (Some(rule), Some(subject), Some(limit), None) =
                (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                return Err(wrong("not a rule, a subject and a limit"));
            };
            if !RULES.iter().any(|known| known.name == rule) {
                return Err(wrong("no such rule"));
            }
            let limit = limit.parse().map_err(|_| wrong("the limit is no number"))?;
            if ratchet.limits.insert((rule.to_owned(), subject.to_owned()), limit).is_some() {
                return Err(wrong("a second limit"));
            }
        }
        Ok(ratchet)
    }

    /// Returns the text of the file, with the limits in order.
    pub fn to_text(&self) -> String {
        let mut text = HEADER.to_owned();
        let mut above = "";
        for ((rule, subject), limit) in &self.limits {
            if rule != above {
                text.push('\n');
                above = rule;
            }
            let _ = writeln!(text, "{rule:<6} {subject:<50} {limit:>5}");
        }
        text
    }

    /// Returns the limit of a figure, if it has one.
    pub fn limit(&self, figure: &Figure) -> Option<usize> {
        self.limits.get(&(figure.rule.name.to_owned(), figure.subject.clone())).copied()
    }

    /// Lowers limits to the figures and removes those that are not needed. With `may_raise`, limits also
    /// rise.
    pub fn update(&mut self, figures: &[Figure], may_raise: bool) {
        let old = std::mem::take(self);
        for figure in figures.iter().filter(|figure| figure.value > figure.bound) {
            let limit = match old.limit(figure) {
                _ if may_raise => figure.value,
                Some(limit) => figure.value.min(limit),
                None => continue,
            };
            self.limits.insert((figure.rule.name.to_owned(), figure.subject.clone()), limit);
        }
    }

    /// Returns a message for each figure of a rule that is above its limit, and for each limit that is
    /// too high.
    pub fn judge(&self, rule: &Rule, figures: &[Figure], tree: &Tree) -> Vec<String> {
        let of_rule = || figures.iter().filter(|figure| figure.rule.name == rule.name);
        let mut messages: Vec<String> =
            of_rule().filter_map(|figure| self.judge_figure(figure, tree)).collect();
        for (_, subject) in self.limits.keys().filter(|(name, _)| name == rule.name) {
            if !of_rule().any(|figure| figure.subject == *subject) {
                messages.push(format!(
                    "{} {subject}: is gone; remove its limit from {PATH}: {UPDATE}",
                    rule.name
                ));
            }
        }
        messages
    }

    fn judge_figure(&self, figure: &Figure, tree: &Tree) -> Option<String> {
        let (value, bound, slack) = (figure.value, figure.bound, figure.rule.slack);
        let subject = format!("{} {}: {value} {}", figure.rule.name, figure.subject, figure.rule.unit);
        match self.limit(figure) {
            None if value > bound => Some(format!("{subject}, more than {bound}\n{}", explain(figure, tree))),
            Some(limit) if value > limit.max(bound) => {
                Some(format!("{subject}, more than the {limit} of {PATH}\n{}", explain(figure, tree)))
            }
            Some(limit) if value <= bound => Some(format!(
                "{subject}, within the bound of {bound}; remove the limit {limit} from {PATH}: {UPDATE}"
            )),
            Some(limit) if value + slack <= limit => {
                Some(format!("{subject}; lower the limit {limit} in {PATH} to {value}: {UPDATE}"))
            }
            _ => None,
        }
    }
}

/// Returns the places of a figure, in the files that were edited last first, and what to do.
fn explain(figure: &Figure, tree: &Tree) -> String {
    let mut text = String::new();
    let mut places: Vec<_> = figure.places.iter().collect();
    places.sort_by_key(|place| Reverse(tree.files[place.file].modified)); // stable: lines stay in order
    for place in places.iter().take(NAMED_MAX) {
        let _ = writeln!(text, "    {}", locate(place, tree));
    }
    if places.len() > NAMED_MAX {
        let (rule, subject) = (figure.rule.name, &figure.subject);
        let _ = writeln!(
            text,
            "    and {} more: cargo run -p evenkeel-tidy -- --list {rule} {subject}",
            places.len() - NAMED_MAX
        );
    }
    for sentence in [&*figure.hint, figure.rule.advice] {
        if !sentence.is_empty() {
            let _ = writeln!(text, "  {sentence}");
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// Returns `path:line: note`.
pub fn locate(place: &crate::Place, tree: &Tree) -> String {
    let path = &tree.files[place.file].path;
    let note = if place.note.is_empty() { String::new() } else { format!(": {}", place.note) };
    format!("{path}:{}{note}", place.line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizes::{SHARE, WIDTH};
    use crate::{Place, words};

    fn ratchet(text: &str) -> Ratchet {
        Ratchet::parse(text).expect("the test's limits can be read")
    }

    /// Checks the first line of each message about a figure of a crate `a`.
    #[track_caller]
    fn check(limits: &str, rule: &'static Rule, value: usize, messages: &[&str]) {
        let found = ratchet(limits).judge(rule, &[Figure::new(rule, "a", value)], &Tree::of(&[]));
        let short = |message: &String| {
            message.lines().next().unwrap_or_default().replace(UPDATE, "UPDATE").replace(PATH, "PATH")
        };
        let first: Vec<_> = found.iter().map(short).collect();
        assert_eq!(first, messages);
    }

    #[test]
    fn a_figure_above_its_limit_fails() {
        check("", &SHARE, 25, &[]);
        check("", &SHARE, 26, &["share a: 26 percent of the product's lines, more than 25"]);
        check("share a 30", &SHARE, 30, &[]);
        let message = "share a: 31 percent of the product's lines, more than the 30 of PATH";
        check("share a 30", &SHARE, 31, &[message]);
    }

    #[test]
    fn a_limit_that_is_too_high_fails() {
        check("share a 30", &SHARE, 29, &[]);
        let message = "share a: 28 percent of the product's lines; lower the limit 30 in PATH to 28: UPDATE";
        check("share a 30", &SHARE, 28, &[message]);
        let message = "width a: 8 lines of more than 110 columns; lower the limit 9 in PATH to 8: UPDATE";
        check("width a 9", &WIDTH, 8, &[message]);
        let message = "share a: 25 percent of the product's lines, within the bound of 25; \
                       remove the limit 26 from PATH: UPDATE";
        check("share a 26", &SHARE, 25, &[message]);
        let message = "share b: is gone; remove its limit from PATH: UPDATE";
        check("share a 26\nshare b 40\nwidth b 1", &SHARE, 26, &[message]);
    }

    #[test]
    fn messages_name_places_and_remedies() {
        let tree = Tree::of(&[("crates/a/src/lib.rs", "fn go_long() {}")]);
        let messages = Ratchet::default().judge(&words::RULE, &words::measure(&tree), &tree);
        assert_eq!(
            messages,
            ["word go_long: 1 identifiers, more than 0\n    crates/a/src/lib.rs:1: go_long\n  \
             Use instead: offload.\n  The glossary is in crates/tidy/src/words.rs."]
        );
        let places = vec![Place { file: 0, line: 1, note: String::new() }; 10];
        let message =
            Ratchet::default().judge(&WIDTH, &[Figure::count(&WIDTH, "a", places)], &tree).remove(0);
        assert!(
            message.contains("lib.rs:1\n    and 2 more: cargo run -p evenkeel-tidy -- --list width a"),
            "{message}"
        );
    }

    #[test]
    fn an_update_lowers_and_removes_and_raises_only_if_told_to() {
        let figures = [("a", 28), ("b", 35), ("c", 25), ("d", 26)]
            .map(|(name, value)| Figure::new(&SHARE, name, value));
        let mut limits = ratchet("share a 30\nshare b 30\nshare c 30\nshare e 30");
        limits.update(&figures, false);
        assert_eq!(limits, ratchet("share a 28\nshare b 30"));
        limits.update(&figures, true);
        assert_eq!(limits, ratchet("share a 28\nshare b 35\nshare d 26"));
        assert_eq!(ratchet(&limits.to_text()), limits);
    }

    #[test]
    fn lines_that_are_no_limits_are_refused() {
        for line in
            ["share a", "share a 1 2", "share a b", "shape a 1", "share a 1\nshare a 2", "<<<<<<< main"]
        {
            assert!(Ratchet::parse(line).is_err(), "{line}");
        }
    }
}
