//! Manual pages as roff, with the macros of man(7).
//!
//! Lines are filled to less than 80 bytes, since mandoc's lint counts longer lines as a fault of style.

use std::fmt::Write;

/// Bytes of a line of text.
const WIDTH: usize = 76;

/// A page in the making.
#[derive(Debug)]
pub(crate) struct Page {
    name: String,
    section: u8,
    roff: String,
}

/// A piece of text in a font.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Span<'a> {
    Plain(&'a str),
    Bold(&'a str),
    Italic(&'a str),
}

impl Page {
    pub(crate) fn new(name: &str, section: u8, about: &str, date: &str) -> Page {
        let mut page = Page { name: name.to_owned(), section, roff: String::new() };
        let version = env!("CARGO_PKG_VERSION");
        let title = escaped(&name.to_uppercase());
        let _ =
            writeln!(page.roff, ".TH \"{title}\" {section} \"{date}\" \"Evenkeel {version}\" \"Evenkeel\"");
        page.heading("NAME");
        let _ = writeln!(page.roff, "{} \\- {}", escaped(name), escaped(&lowered(about)));
        page
    }

    pub(crate) fn file_name(&self) -> String {
        format!("{}.{}", self.name, self.section)
    }

    pub(crate) fn finish(self) -> String {
        self.roff
    }

    pub(crate) fn heading(&mut self, text: &str) {
        let _ = writeln!(self.roff, ".SH {}", escaped(text));
    }

    pub(crate) fn subheading(&mut self, text: &str) {
        let _ = writeln!(self.roff, ".SS {}", escaped(text));
    }

    /// Begins a new paragraph, unless it is the first below a heading.
    pub(crate) fn paragraph(&mut self, text: &str) {
        let last = self.roff.trim_end().rsplit('\n').next().unwrap_or_default();
        if !last.starts_with(".SH") && !last.starts_with(".SS") {
            self.roff.push_str(".PP\n");
        }
        self.fill(text);
    }

    /// An entry of a list, with its text indented below.
    pub(crate) fn entry(&mut self, tag: &[Span<'_>], text: &str) {
        self.roff.push_str(".TP\n");
        self.line(tag);
        self.fill(text);
    }

    /// A further paragraph of an entry.
    pub(crate) fn in_entry(&mut self, text: &str) {
        self.roff.push_str(".br\n");
        self.fill(text);
    }

    /// Lines as they are.
    pub(crate) fn verbatim(&mut self, text: &str) {
        self.roff.push_str(".nf\n");
        for line in text.lines() {
            let _ = writeln!(self.roff, "{}", guarded(escaped(line.trim_end())));
        }
        self.roff.push_str(".fi\n");
    }

    fn line(&mut self, spans: &[Span<'_>]) {
        let line: String = spans.iter().map(|span| span.roff()).collect();
        let _ = writeln!(self.roff, "{}", guarded(line));
    }

    fn fill(&mut self, text: &str) {
        let mut line = String::new();
        for word in text.split_whitespace().map(escaped) {
            if !line.is_empty() && line.len() + word.len() >= WIDTH {
                let _ = writeln!(self.roff, "{}", guarded(std::mem::take(&mut line)));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(&word);
            // Formatters set two spaces after the end of a sentence only at the end of a line.
            if word.ends_with('.') {
                let _ = writeln!(self.roff, "{}", guarded(std::mem::take(&mut line)));
            }
        }
        if !line.is_empty() {
            let _ = writeln!(self.roff, "{}", guarded(line));
        }
    }
}

impl Span<'_> {
    fn roff(self) -> String {
        match self {
            Span::Plain(text) => escaped(text),
            Span::Bold(text) => format!("\\fB{}\\fR", escaped(text)),
            Span::Italic(text) => format!("\\fI{}\\fR", escaped(text)),
        }
    }
}

/// Escapes what roff interprets inside a line; `-` would become a hyphen, which cannot be copied.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '`' => out.push_str("\\(ga"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            '"' => out.push_str("\\(dq"),
            c => out.push(c),
        }
    }
    out
}

/// Keeps a line from being taken for a request.
fn guarded(line: String) -> String {
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

/// A sentence as the rest of a line: without capital and full stop.
fn lowered(about: &str) -> String {
    let mut chars = about.trim_end_matches('.').chars();
    let first = chars.next().map(|c| c.to_lowercase().to_string()).unwrap_or_default();
    let is_name = about.chars().nth(1).is_some_and(char::is_uppercase);
    if is_name { about.to_owned() } else { first + chars.as_str() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_not_taken_for_requests() {
        let mut page = Page::new("a-b", 1, "Does this.", "2026-01-02");
        page.heading("TEXT");
        page.paragraph(".x 'a\\b' -1. More");
        let version = env!("CARGO_PKG_VERSION");
        let head = format!(".TH \"A\\-B\" 1 \"2026-01-02\" \"Evenkeel {version}\" \"Evenkeel\"\n");
        let body = ".SH NAME\na\\-b \\- does this\n.SH TEXT\n\\&.x \\(aqa\\eb\\(aq \\-1.\nMore\n";
        assert_eq!(page.file_name(), "a-b.1");
        assert_eq!(page.finish(), head + body);
    }
}
