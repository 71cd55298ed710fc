//! How text looks on standard output: with colours or without, and how wide.
//!
//! Colours are for people at a terminal. A pipe, a file and JSON have none, and neither has a terminal whose
//! user set NO_COLOR (<https://no-color.org>) or whose kind is "dumb".

use std::ffi::OsStr;
use std::io::IsTerminal;

use anstyle::{AnsiColor, Style};

/// Width of text that goes to no terminal.
const WIDTH: usize = 100;
/// Narrower text falls apart, and longer lines are hard to read.
const WIDTH_MIN: usize = 40;
const WIDTH_MAX: usize = 120;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    Always,
    Never,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub(super) is_colored: bool,
    pub(super) width: usize,
}

impl Look {
    #[cfg(test)]
    pub(super) const PLAIN: Look = Look { is_colored: false, width: WIDTH };

    pub(crate) fn of_stdout(color: Color) -> Look {
        let is_terminal = std::io::stdout().is_terminal();
        let (no_color, term) = (std::env::var_os("NO_COLOR"), std::env::var_os("TERM"));
        let is_colored = is_colored(color, is_terminal, no_color.as_deref(), term.as_deref());
        let width = columns().filter(|_| is_terminal).map_or(WIDTH, |n| n.clamp(WIDTH_MIN, WIDTH_MAX));
        Look { is_colored, width }
    }
}

fn is_colored(color: Color, is_terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            let is_refused = no_color.is_some_and(|text| !text.is_empty()) || term == Some("dumb".as_ref());
            is_terminal && !is_refused
        }
    }
}

/// Width of the terminal on standard output.
fn columns() -> Option<usize> {
    // SAFETY: zeroes are a valid `winsize`, and the call fills the structure or fails.
    let (result, size) = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        (libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size), size)
    };
    (result == 0 && size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// What a line is, which decides its style.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ink {
    Plain,
    /// A title of a finding, or of a section.
    Strong,
    /// Text that a reader in a hurry skips.
    Faint,
    /// A headline that is no cause for worry.
    Calm,
    /// A headline or a figure that is likely, or that leaves a question.
    Likely,
    /// A headline or a figure that is nearly certain.
    Certain,
}

impl Ink {
    /// The ink of a statement of this confidence, from 0 to 1.
    pub(super) fn of_confidence(confidence: f64) -> Ink {
        match confidence {
            0.8.. => Ink::Certain,
            0.5.. => Ink::Likely,
            _ => Ink::Strong,
        }
    }

    pub(super) fn style(self) -> Style {
        let colored = |color: AnsiColor| Style::new().bold().fg_color(Some(color.into()));
        match self {
            Ink::Plain => Style::new(),
            Ink::Strong => Style::new().bold(),
            Ink::Faint => Style::new().dimmed(),
            Ink::Calm => colored(AnsiColor::Green),
            Ink::Likely => colored(AnsiColor::Yellow),
            Ink::Certain => colored(AnsiColor::Red),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_are_for_terminals_whose_user_did_not_refuse_them() {
        let colored = |color, is_terminal, no_color: Option<&str>, term: Option<&str>| {
            is_colored(color, is_terminal, no_color.map(OsStr::new), term.map(OsStr::new))
        };
        assert!(colored(Color::Auto, true, None, Some("xterm")));
        assert!(colored(Color::Auto, true, Some(""), None), "an empty NO_COLOR is as none");
        assert!(!colored(Color::Auto, false, None, Some("xterm")), "a pipe");
        assert!(!colored(Color::Auto, true, Some("1"), Some("xterm")));
        assert!(!colored(Color::Auto, true, None, Some("dumb")));
        assert!(colored(Color::Always, false, Some("1"), Some("dumb")), "an option has the last word");
        assert!(!colored(Color::Never, true, None, Some("xterm")));
    }
}
