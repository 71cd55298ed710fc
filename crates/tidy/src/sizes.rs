//! Crates, files and lines of bounded size.

use crate::lexer::TokenKind;
use crate::tree::{Source, Tree};
use crate::{Figure, Place, Rule, percent};

pub const SHARE: Rule = Rule {
    name: "share",
    unit: "percent of the product's lines",
    bound: 25,
    slack: 2,
    advice: "Move a subject of this crate into a crate of its own.",
};

pub const LENGTH: Rule = Rule {
    name: "length",
    unit: "lines",
    bound: 800,
    slack: 20,
    advice: "Split the file by subject. A file that is mostly a table, or tests, may be listed in LONG_FILES \
             (crates/tidy/src/sizes.rs) with its reason.",
};

pub const WIDTH: Rule = Rule {
    name: "width",
    unit: "lines of more than 110 columns",
    bound: 0,
    slack: 1,
    advice: "Break the line; a string literal can be broken with a backslash at the end of the line.",
};

/// Most columns of a line of code or comment.
const WIDTH_MAX: usize = 110;

/// A line without a blank after this column cannot be broken: it is a URL or a long literal.
const UNBROKEN_FROM: usize = 20;

/// Files that may be longer than 800 lines, with the reason.
pub const LONG_FILES: &[(&str, &str)] = &[
    ("crates/server/src/admin/acl/tests.rs", "tests"),
    ("crates/command/src/spec/docs.rs", "a table: the texts of COMMAND DOCS"),
    ("crates/server/src/live_tests/scripting.rs", "tests"),
    ("crates/evenkeel/tests/it/operator.rs", "tests"),
];

/// Returns the share and the wide lines of each crate, and the length of each file.
pub fn measure(tree: &Tree) -> Vec<Figure> {
    let crates = tree.crates();
    let product = tree.product_lines(None);
    let mut figures = Vec::new();
    for krate in &crates {
        figures.push(Figure::new(&SHARE, *krate, percent(tree.product_lines(Some(krate)), product)));
    }
    figures.extend(lengths(tree, LONG_FILES));
    for krate in &crates {
        let sources = tree.sources.iter().filter(|source| source.krate == *krate);
        let places = sources.flat_map(|source| wide_lines(tree, source)).collect();
        figures.push(Figure::count(&WIDTH, *krate, places));
    }
    figures
}

/// Returns the lengths of the files that are not listed, and a figure above its bound for each row that
/// is not needed.
fn lengths(tree: &Tree, listed: &[(&str, &str)]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for source in &tree.sources {
        let file = &tree.files[source.file];
        let lines = file.text.lines().count();
        let is_listed = listed.iter().any(|(path, _)| *path == file.path);
        if !is_listed {
            let mut figure = Figure::new(&LENGTH, &*file.path, lines);
            figure.places.push(Place { file: source.file, line: lines, note: String::new() });
            figures.push(figure);
        }
    }
    for (path, _) in listed {
        let file = tree.sources.iter().map(|source| &tree.files[source.file]).find(|file| file.path == *path);
        let hint = match file.map(|file| file.text.lines().count()) {
            None => "The file does not exist: remove its row from LONG_FILES (crates/tidy/src/sizes.rs).",
            Some(lines) if lines <= LENGTH.bound => {
                "The file is short enough: remove its row from LONG_FILES (crates/tidy/src/sizes.rs)."
            }
            Some(_) => continue,
        };
        figures.push(Figure { bound: 0, value: 1, hint: hint.to_owned(), ..Figure::new(&LENGTH, *path, 0) });
    }
    figures
}

/// Returns the lines of a file that are too wide and could be broken.
fn wide_lines(tree: &Tree, source: &Source) -> Vec<Place> {
    let text = &tree.files[source.file].text;
    let mut places = Vec::new();
    let mut start = 0;
    for (index, line) in text.split('\n').enumerate() {
        if let Some(beyond) = (line.len() > WIDTH_MAX).then(|| offset_of(line, WIDTH_MAX)).flatten() {
            let from = offset_of(line, UNBROKEN_FROM).unwrap_or(line.len());
            let is_unbroken = !line[from..].trim_end().contains(char::is_whitespace);
            if !is_unbroken && !is_raw_text(source, start + beyond) {
                places.push(Place { file: source.file, line: index + 1, note: String::new() });
            }
        }
        start += line.len() + 1;
    }
    places
}

/// Returns the offset of the character after so many columns.
fn offset_of(line: &str, columns: usize) -> Option<usize> {
    line.char_indices().nth(columns).map(|(offset, _)| offset)
}

/// Returns whether a position lies in a string without escapes: such a string has no way to break a line.
fn is_raw_text(source: &Source, at: usize) -> bool {
    let next = source.tokens.partition_point(|token| token.span.end <= at);
    source.tokens.get(next).is_some_and(|token| token.kind == TokenKind::RawText && token.span.start <= at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(figures: &[Figure], rule: &str, subject: &str) -> usize {
        let found = figures.iter().find(|figure| figure.rule.name == rule && figure.subject == subject);
        found.expect("the subject is measured").value
    }

    #[test]
    fn a_large_crate_is_seen() {
        let (large, small) = ("fn a() {}\n".repeat(26), "fn a() {}\n".repeat(74));
        let tree = Tree::of(&[("crates/a/src/lib.rs", &large), ("crates/b/src/lib.rs", &small)]);
        let figures = measure(&tree);
        assert_eq!((value(&figures, "share", "a"), value(&figures, "share", "b")), (26, 74));
    }

    #[test]
    fn a_long_file_is_seen_unless_it_is_listed() {
        let tree = Tree::of(&[("crates/a/src/a.rs", &"\n".repeat(801)), ("crates/a/src/b.rs", "\n")]);
        let long = |listed: &[(&str, &str)]| -> Vec<String> {
            let figures = lengths(&tree, listed).into_iter().filter(|figure| figure.value > figure.bound);
            figures.map(|figure| format!("{} {} {}", figure.subject, figure.value, figure.hint)).collect()
        };
        assert_eq!(long(&[]), ["crates/a/src/a.rs 801 "]);
        assert!(long(&[("crates/a/src/a.rs", "a table")]).is_empty());
        assert!(
            long(&[("crates/a/src/a.rs", ""), ("crates/a/src/b.rs", "")])[0]
                .contains("b.rs 1 The file is short")
        );
        assert!(
            long(&[("crates/a/src/a.rs", ""), ("crates/a/src/c.rs", "")])[0]
                .contains("c.rs 1 The file does not")
        );
    }

    /// Checks on which lines of a file a wide line is found.
    #[track_caller]
    fn check(text: &str, lines: &[usize]) {
        let tree = Tree::of(&[("crates/a/src/lib.rs", text)]);
        let found: Vec<_> = wide_lines(&tree, &tree.sources[0]).iter().map(|place| place.line).collect();
        assert_eq!(found, lines);
    }

    #[test]
    fn wide_lines_are_seen() {
        let wide = format!("// {}", "word ".repeat(22));
        check(&format!("\n{wide}\n{}", &wide[..110]), &[2]);
        check(&format!("\"a\n{wide}\""), &[2]);
        check(&"é".repeat(110), &[]);
    }

    #[test]
    fn lines_that_cannot_be_broken_are_left() {
        check(&format!("    // see <https://example.org/{}>", "a".repeat(100)), &[]);
        check(&format!("let a = r\"{}\";", "word ".repeat(22)), &[]);
        check(&format!("let a = r\"b\"; // {}", "word ".repeat(22)), &[1]);
    }
}
