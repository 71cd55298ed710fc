//! A sheet of text for the terminal: wrapped to its width, and coloured where that is wanted.
//!
//! Names of processes, files and functions come from anywhere. Their control characters are replaced here,
//! before the sheet adds its own escape codes, so none of them reaches the terminal.

use super::look::{Ink, Look};

#[derive(Debug)]
pub(super) struct Sheet {
    out: String,
    look: Look,
}

impl Sheet {
    pub(super) fn new(look: Look) -> Sheet {
        Sheet { out: String::new(), look }
    }

    pub(super) fn into_text(self) -> String {
        self.out
    }

    pub(super) fn gap(&mut self) {
        self.out.push('\n');
    }

    /// Writes a line that is not wrapped, so that it can be copied.
    pub(super) fn line(&mut self, ink: Ink, text: &str) {
        let text = shown(text);
        if self.look.is_colored && ink != Ink::Plain {
            let style = ink.style();
            self.out.push_str(&format!("{style}{text}{style:#}\n"));
        } else {
            self.out.push_str(&text);
            self.out.push('\n');
        }
    }

    /// Writes text with a prefix on its first line; the following lines are indented to match.
    pub(super) fn paragraph(&mut self, ink: Ink, prefix: &str, text: &str) {
        let indent = prefix.chars().count();
        let (mut row, mut column) = (prefix.to_string(), indent);
        for (index, word) in text.split_whitespace().enumerate() {
            let length = word.chars().count();
            if index > 0 && column + 1 + length > self.look.width {
                self.line(ink, &row);
                row = " ".repeat(indent);
                column = indent;
            } else if index > 0 {
                row.push(' ');
                column += 1;
            }
            row.push_str(word);
            column += length;
        }
        self.line(ink, &row);
    }
}

/// Text without control characters.
pub(crate) fn shown(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n', "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet(is_colored: bool) -> Sheet {
        Sheet::new(Look { is_colored, width: 40 })
    }

    #[test]
    fn lines_are_wrapped_below_their_prefix_and_colored_one_by_one() {
        let text = "a sentence that is a little longer than the forty columns of this sheet";
        let mut plain = sheet(false);
        plain.paragraph(Ink::Certain, "1. ", text);
        let plain = plain.into_text();
        assert_eq!(plain, "1. a sentence that is a little longer\n   than the forty columns of this sheet\n");
        let mut colored = sheet(true);
        colored.paragraph(Ink::Certain, "1. ", text);
        let colored = colored.into_text();
        assert!(colored.lines().all(|line| line.starts_with("\x1b[") && line.ends_with("\x1b[0m")));
        let codes = colored.matches("\x1b[").count();
        assert_eq!(codes, 6, "bold, red and the end, for two lines: {colored:?}");
    }

    #[test]
    fn a_name_cannot_send_escape_codes() {
        let mut sheet = sheet(true);
        sheet.line(Ink::Plain, "evil\x1b[31m\u{9b}2J");
        assert_eq!(sheet.into_text(), "evil?[31m?2J\n");
    }
}
