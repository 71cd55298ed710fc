//! Colours, or with `NO_COLOR` other marks in their place.

use ratatui::style::{Color, Modifier, Style};

use crate::metrics::STAGES;

/// Colour and letter of each group of stages.
const STAGE_MARKS: [(Color, &str); STAGES.len()] = [
    (Color::Cyan, "r"),
    (Color::Yellow, "p"),
    (Color::Red, "l"),
    (Color::Green, "x"),
    (Color::Blue, "w"),
    (Color::Magenta, "u"),
    (Color::Gray, "o"),
];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    pub(crate) has_colours: bool,
}

impl Theme {
    fn coloured(self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    pub(crate) fn value(self) -> Style {
        Style::new()
    }

    pub(crate) fn dim(self) -> Style {
        self.coloured(Color::DarkGray)
    }

    pub(crate) fn label(self) -> Style {
        self.coloured(Color::Gray)
    }

    pub(crate) fn name(self) -> Style {
        self.coloured(Color::Cyan)
    }

    pub(crate) fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// The title of the column by which a table is sorted.
    pub(crate) fn order(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)
    }

    /// The view that is shown.
    pub(crate) fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED)
    }

    pub(crate) fn warning(self) -> Style {
        self.coloured(Color::Yellow)
    }

    pub(crate) fn alarm(self) -> Style {
        self.coloured(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(crate) fn curve(self) -> Style {
        self.coloured(Color::Green)
    }

    /// Returns the symbol and style of a group of stages.
    pub(crate) fn stage(self, index: usize) -> (&'static str, Style) {
        let (colour, letter) = STAGE_MARKS[index];
        if self.has_colours { ("█", Style::new().fg(colour)) } else { (letter, Style::new()) }
    }
}
