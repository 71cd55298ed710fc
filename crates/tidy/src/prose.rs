//! Sentences name their subjects.
//!
//! Words that stand in for a noun are counted in the comments of each crate, tests included, and in the
//! documents. All kinds of prose need a few of them; the bounds are several times the rates of well-known
//! code bases. The document that is most in need of work is found by `--list prose docs/what`.

use crate::lexer::is_whole;
use crate::tree::Tree;
use crate::{Figure, Place, Rule};

pub const RULE: Rule = Rule {
    name: "prose",
    unit: "per 1,000 words",
    bound: 0, // each word has its own
    slack: 2,
    advice: "Name the thing or the role: \"the client\", \"the writer\", \"the record\", \"the second \
             lock\".",
};

/// Words that stand in for a noun, in groups: name of the group, words, most of them per 1,000 words.
const GROUPS: &[(&str, &[&str], usize)] = &[
    ("what", &["what"], 3),
    ("who", &["who"], 1),
    ("one", &["one", "ones", "those", "others", "somebody"], 7),
];

/// Returns the rates of each crate's comments, as `crate/word`, and of the documents, as `docs/word`.
pub fn measure(tree: &Tree) -> Vec<Figure> {
    let mut figures = Vec::new();
    for krate in tree.crates() {
        let mut tally = Tally::default();
        for source in tree.sources.iter().filter(|source| source.krate == krate) {
            for comment in &source.comments {
                tally.add(source.file, comment.line, &tree.files[source.file].text[comment.span.clone()]);
            }
        }
        figures.extend(tally.figures(krate));
    }
    let mut tally = Tally::default();
    for &file in &tree.documents {
        let mut is_code = false;
        for (index, line) in tree.files[file].text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                is_code = !is_code;
            } else if !is_code {
                tally.add(file, index + 1, line);
            }
        }
    }
    figures.extend(tally.figures("docs"));
    figures
}

#[derive(Default)]
struct Tally {
    words: usize,
    places: [Vec<Place>; GROUPS.len()],
}

impl Tally {
    /// Counts the words of a text that begins on a line of a file.
    fn add(&mut self, file: usize, line: usize, text: &str) {
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            if !bytes[at].is_ascii_alphabetic() {
                at += 1;
                continue;
            }
            let length = |is_in: fn(u8) -> bool| bytes[at..].iter().take_while(|&&byte| is_in(byte)).count();
            let end = at + length(|byte| byte.is_ascii_alphabetic());
            if is_whole(bytes, at, end) {
                let word = &text[at..end];
                let group = GROUPS
                    .iter()
                    .position(|(_, words, _)| words.iter().any(|w| w.eq_ignore_ascii_case(word)));
                if let Some(group) = group {
                    let lines = bytes[..at].iter().filter(|&&byte| byte == b'\n').count();
                    self.places[group].push(Place { file, line: line + lines, note: String::new() });
                }
            }
            // A word with a hyphen or an apostrophe is a single word, of which each part may count.
            let is_continued =
                at > 1 && matches!(bytes[at - 1], b'-' | b'\'') && bytes[at - 2].is_ascii_alphabetic();
            self.words += usize::from(!is_continued);
            at = end;
        }
    }

    fn figures(self, subject: &str) -> impl Iterator<Item = Figure> {
        let words = self.words;
        GROUPS.iter().zip(self.places).map(move |((name, _, bound), places)| {
            let rate = (places.len() * 1000).div_ceil(words.max(1));
            // Where there are few words, a single one more is within the bound.
            let is_within = places.len() <= (bound * words).div_ceil(1000);
            let value = if is_within { rate.min(*bound) } else { rate };
            Figure { bound: *bound, value, places, ..Figure::new(&RULE, format!("{subject}/{name}"), 0) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the rates of a file of 1,000 words that contains a text, and the lines of the words.
    #[track_caller]
    fn check(path: &str, text: &str, words: usize, rates: [usize; 3], lines: &[usize]) {
        let comment = if path.ends_with(".rs") { "// " } else { "" };
        let text = format!("{text}\n{comment}{}", "word ".repeat(1000 - words));
        let tree = Tree::of(&[(path, &text)]);
        let figures: Vec<_> = measure(&tree).into_iter().filter(|figure| figure.value > 0).collect();
        let rate = |name| figures.iter().find(|f| f.subject.ends_with(name)).map_or(0, |figure| figure.value);
        assert_eq!([rate("/what"), rate("/who"), rate("/one")], rates);
        let mut found: Vec<_> =
            figures.iter().flat_map(|f| f.places.iter().map(|place| place.line)).collect();
        found.sort();
        assert_eq!(found, lines);
    }

    #[test]
    fn comments_are_counted() {
        check(
            "crates/a/src/lib.rs",
            "//! What\nwhat /* who\nOne */ \"one\" // one's-no_one",
            4,
            [1, 1, 2],
            &[1, 2, 3, 3],
        );
    }

    #[test]
    fn documents_are_counted_without_their_code() {
        check("docs/a.md", "those\n```\nwhat what\n```\nOthers someone", 3, [0, 0, 2], &[1, 5]);
    }

    #[test]
    fn rates_above_their_bounds_are_seen() {
        let over = |text: &str| -> Vec<String> {
            let figures = measure(&Tree::of(&[("docs/a.md", text)])).into_iter();
            figures.filter(|figure| figure.value > figure.bound).map(|figure| figure.subject).collect()
        };
        let words = "word ".repeat(990);
        assert_eq!(over(&format!("what what what what {words}")), ["docs/what"]);
        assert_eq!(over(&format!("who who {words}")), ["docs/who"]);
        assert_eq!(over(&format!("{} {words}", "ones ".repeat(8))), ["docs/one"]);
        assert!(over(&format!("what what what who one {words}")).is_empty());
        assert!(over("a short text has one of what who").is_empty());
    }
}
