//! A table for the terminal and for the page: heads, and cells as text.
//!
//! Numbers are right-aligned below their heads. A value that the recording does not have is [`UNKNOWN`]: a
//! zero would say that it was measured.

use serde::Serialize;

/// The cell of a value that the recording does not have.
pub(crate) const UNKNOWN: &str = "-";

/// Space between two columns.
const GAP: &str = "  ";

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Column {
    name: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    number: bool,
}

pub(crate) const fn number(name: &'static str) -> Column {
    Column { name, number: true }
}

pub(crate) const fn text(name: &'static str) -> Column {
    Column { name, number: false }
}

#[derive(Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) head: Vec<Column>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(title: impl Into<String>, head: &[Column]) -> Table {
        Table { title: title.into(), head: head.to_vec(), rows: Vec::new() }
    }

    /// The same with at most `count` rows.
    pub(crate) fn first(mut self, count: usize) -> Table {
        self.rows.truncate(count);
        self
    }

    /// The heads and the rows, without the title.
    pub(crate) fn lines(&self) -> String {
        let length = |cell: &str| cell.chars().count();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| length(cell)).max().unwrap_or(0).max(length(self.head[column].name))
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let padded = self.head.iter().zip(&widths).zip(cells).map(|((head, &width), cell)| {
                if head.number { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            padded.collect::<Vec<_>>().join(GAP).trim_end().to_string() + "\n"
        };
        let mut out = line(&mut self.head.iter().map(|column| column.name));
        for row in &self.rows {
            out.push_str(&line(&mut row.iter().map(String::as_str)));
        }
        out
    }
}

/// The cell of a value that may be unknown.
pub(crate) fn known<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| UNKNOWN.to_string(), |value| value.to_string())
}

/// The cell of a number with some decimal places, if it is known.
pub(crate) fn decimal(value: Option<f64>, places: usize) -> String {
    known(value.map(|value| format!("{value:.places$}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_below_their_heads_and_unknown_values_are_dashes() {
        let mut table = Table::new("", &[text("call"), number("ms"), text("what")]);
        table.rows.push(vec!["read".to_string(), decimal(Some(1_234.5), 1), "a".to_string()]);
        table.rows.push(vec!["epoll_wait".to_string(), decimal(None, 1), String::new()]);
        let expected = "call            ms  what\nread        1234.5  a\nepoll_wait       -\n";
        assert_eq!(table.lines(), expected);
    }
}
