//! Tidy: the rules of the repository that neither rustc nor clippy knows, as a test.
//!
//! | rule | bound |
//! |---|---|
//! | `layer` | a crate depends on crates of lower layers only ([`layers::LAYERS`]) |
//! | `share` | a crate has at most a quarter of the product's lines |
//! | `length` | a Rust file has at most 800 lines; [`sizes::LONG_FILES`] lists tables and tests |
//! | `width` | a line of a Rust file has at most 110 columns |
//! | `word` | identifiers and modules use the terms of the field ([`words::GLOSSARY`]) |
//! | `prose` | per 1,000 words of comments or documents: 3 "what", 1 "who", 7 "one" and the like |
//! | `path` | no `#[path]` leads into another crate |
//! | `circle` | files of a crate that import each other in a circle hold at most 15% of the product's lines |
//!
//! The product is the `src` folder of every crate, without test code ([`tree`]).
//!
//! `tests/tidy.rs` has a test for each rule, which scans the working tree. `cargo run -p evenkeel-tidy`
//! prints the figures, `cargo run -p evenkeel-tidy -- --list width store` every place that counts in one
//! of them.
//!
//! # The ratchet
//! A tree that breaks a bound today has a limit of its own in `ratchet.txt`, the only place for such
//! limits. A limit only goes down: the test fails when a figure is above its limit, and also when the
//! limit could be lowered, or is no longer needed. `--update` lowers limits to the figures and removes
//! what is settled. `--update --raise` also raises limits. It is for code that moved: a folder that
//! became a crate takes its wide lines along. The sums over all crates must not rise with it.
//!
//! Counts are exact, so that a limit follows each improvement. Shares, lengths and rates have slack
//! ([`Rule`]): they move a little with every change elsewhere, and a limit is stale only when it is
//! clearly too high.

pub mod circle;
pub mod layers;
pub mod lexer;
pub mod paths;
pub mod prose;
pub mod ratchet;
pub mod sizes;
pub mod tree;
pub mod words;

use std::path::{Path, PathBuf};

use tree::Tree;

/// A rule: how its figures are named, bounded and repaired.
#[derive(Debug)]
pub struct Rule {
    /// Name in the ratchet and on the command line.
    pub name: &'static str,
    /// Noun for the figure's value, in messages.
    pub unit: &'static str,
    /// Largest value that needs no limit in the ratchet.
    pub bound: usize,
    /// A limit is stale when the value is below it by so much.
    pub slack: usize,
    /// Instruction for the author of a change that breaks the rule.
    pub advice: &'static str,
}

/// A place in a file that counts in a figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index in [`Tree::files`].
    pub file: usize,
    /// Line, from 1.
    pub line: usize,
    /// Remark for the message; may be empty.
    pub note: String,
}

/// A measured value of a rule for a crate, a file or a word.
#[derive(Debug)]
pub struct Figure {
    pub rule: &'static Rule,
    /// The crate, file or word; without blanks.
    pub subject: String,
    /// The bound of [`Rule::bound`], or another one that the subject has.
    pub bound: usize,
    /// The value in the rule's unit, rounded up.
    pub value: usize,
    pub places: Vec<Place>,
    /// Instruction that is particular to the subject; may be empty.
    pub hint: String,
}

impl Figure {
    fn new(rule: &'static Rule, subject: impl Into<String>, value: usize) -> Figure {
        let subject = subject.into();
        Figure { rule, subject, bound: rule.bound, value, places: Vec::new(), hint: String::new() }
    }

    /// A figure that counts its places.
    fn count(rule: &'static Rule, subject: impl Into<String>, places: Vec<Place>) -> Figure {
        let value = places.len();
        Figure { places, ..Figure::new(rule, subject, value) }
    }
}

/// All rules, in the order of the table above.
pub const RULES: &[&Rule] = &[
    &layers::RULE,
    &sizes::SHARE,
    &sizes::LENGTH,
    &sizes::WIDTH,
    &words::RULE,
    &prose::RULE,
    &paths::RULE,
    &circle::RULE,
];

/// Returns the figures of all rules, those of a rule side by side.
pub fn measure(tree: &Tree) -> Vec<Figure> {
    let mut figures = layers::measure(tree);
    figures.extend(sizes::measure(tree));
    figures.extend(words::measure(tree));
    figures.extend(prose::measure(tree));
    figures.extend(paths::measure(tree));
    figures.extend(circle::measure(tree));
    figures
}

/// Returns the root of the workspace that this crate was built in.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns `part` of `whole` in percent, rounded up.
fn percent(part: usize, whole: usize) -> usize {
    (part * 100).div_ceil(whole.max(1))
}
