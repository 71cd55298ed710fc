//! Tables for the terminal: the first column to the left, all others to the right, columns as wide as they
//! need.

use std::fmt;

use crate::json::{Json, object};

#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Returns the names of the columns, and the rows, for a page.
    pub(crate) fn to_json(&self) -> Json {
        let rows = self.rows[1..].iter().map(|row| Json::from(row.clone())).collect();
        object(vec![("head", self.rows[0].clone().into()), ("rows", Json::Array(rows))])
    }

    /// Returns the width of each column. Columns that are empty in all rows are left out: their width is 0.
    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &Vec<String>, column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
        let width = |column| {
            let body = self.rows[1..].iter().map(|row| cell(row, column)).max().unwrap_or(0);
            if body == 0 { 0 } else { body.max(cell(&self.rows[0], column)) }
        };
        (0..columns).map(width).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        for row in &self.rows {
            let mut line = String::from(" ");
            for (column, (cell, &width)) in
                row.iter().zip(&widths).enumerate().filter(|(_, (_, width))| **width > 0)
            {
                line += &if column == 0 { format!(" {cell:<width$}") } else { format!("  {cell:>width$}") };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// `1234567.8` as `1,234,568`.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::from(if number <= -0.5 { "-" } else { "" });
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number of unknown size: two decimals, more below a tenth, none from a thousand on.
pub(crate) fn figure(number: f64) -> String {
    match number.abs() {
        size if size >= 1e3 => thousands(number),
        size if size >= 0.1 || size == 0.0 => format!("{number:.2}"),
        _ => format!("{number:.4}"),
    }
}

/// Formats microseconds as a readable time: `87 us`, `1.25 ms`, `2.10 s`.
pub(crate) fn time_us(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.0} us"),
        us if us < 1e4 => format!("{:.2} ms", us / 1e3),
        us if us < 1e6 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_empty_ones_left_out() {
        let mut table = Table::new(&["server", "rate", "nothing", "é"]);
        table.row(vec!["a".into(), "1,000".into(), String::new(), "x".into()]);
        table.row(vec!["longer".into(), "7".into(), String::new(), "yy".into()]);
        assert_eq!(table.to_string(), "  server   rate   é\n  a       1,000   x\n  longer      7  yy\n");
    }

    #[test]
    fn numbers_for_readers() {
        for (number, text) in
            [(0.0, "0"), (999.4, "999"), (1000.0, "1,000"), (1234567.8, "1,234,568"), (-1234.0, "-1,234")]
        {
            assert_eq!(thousands(number), text);
        }
        for (number, text) in
            [(0.0, "0.00"), (0.0248, "0.0248"), (-0.1, "-0.10"), (12.345, "12.35"), (30785.5, "30,786")]
        {
            assert_eq!(figure(number), text);
        }
        for (us, text) in [(87.4, "87 us"), (1250.0, "1.25 ms"), (45_600.0, "46 ms"), (2_100_000.0, "2.10 s")]
        {
            assert_eq!(time_us(us), text);
        }
    }
}
