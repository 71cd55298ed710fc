//! The columns of a row.

use serde::Serialize;

use crate::Row;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    Count,
    Bytes,
    Us,
    Ns,
    /// Bits, each for a condition.
    Flags,
}

/// The way in which the values of several rows become the value of a longer row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Merge {
    Sum,
    Max,
    /// A gauge: the latest value.
    Last,
    /// A gauge of bits: all bits that were set.
    Any,
    /// A mean, weighted by another column, whose index is given.
    Mean(#[serde(skip)] usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Column {
    pub name: String,
    pub unit: Unit,
    pub merge: Merge,
    /// The values are taken once a second, so rows that are shorter lack them.
    #[serde(skip)]
    pub in_seconds: bool,
}

/// The columns of all rows of a history, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    columns: Vec<Column>,
}

impl Schema {
    /// Adds a column and returns its index.
    pub fn add(&mut self, name: impl Into<String>, unit: Unit, merge: Merge) -> usize {
        self.columns.push(Column { name: name.into(), unit, merge, in_seconds: false });
        self.columns.len() - 1
    }

    /// Adds a column whose values are taken once a second.
    pub fn add_in_seconds(&mut self, name: impl Into<String>, unit: Unit, merge: Merge) -> usize {
        let index = self.add(name, unit, merge);
        self.columns[index].in_seconds = true;
        index
    }

    /// Gives a row of a part of a second the values that its second has: sums by their share of the time.
    pub(crate) fn complete(&self, row: &mut Row, second: &Row) {
        for (index, column) in self.columns.iter().enumerate().filter(|(_, column)| column.in_seconds) {
            let value = second.values[index];
            row.values[index] = match column.merge {
                Merge::Sum => {
                    (value as f64 * row.covered_ms as f64 / second.covered_ms.max(1) as f64).round() as u64
                }
                _ => value,
            };
        }
    }

    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    pub fn len(&self) -> usize {
        self.columns.len()
    }

    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// Returns the index of a column.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// Extends `row` by the row that follows it.
    pub fn merge(&self, row: &mut Row, next: &Row) {
        // Means first: they need the weights as they were.
        for (index, column) in self.columns.iter().enumerate() {
            if let Merge::Mean(weight) = column.merge {
                row.values[index] =
                    mean((row.values[index], row.values[weight]), (next.values[index], next.values[weight]));
            }
        }
        for (index, column) in self.columns.iter().enumerate() {
            let (value, later) = (&mut row.values[index], next.values[index]);
            match column.merge {
                Merge::Sum => *value = value.saturating_add(later),
                Merge::Max => *value = later.max(*value),
                Merge::Last => *value = later,
                Merge::Any => *value |= later,
                Merge::Mean(_) => {}
            }
        }
        row.at_ms = next.at_ms;
        row.covered_ms = row.covered_ms.saturating_add(next.covered_ms);
    }
}

fn mean((value, weight): (u64, u64), (later, later_weight): (u64, u64)) -> u64 {
    let weights = weight as f64 + later_weight as f64;
    if weights == 0.0 {
        return later;
    }
    ((value as f64 * weight as f64 + later as f64 * later_weight as f64) / weights).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_merged_by_the_kind_of_each_column() {
        let mut schema = Schema::default();
        let calls = schema.add("calls", Unit::Count, Merge::Sum);
        schema.add("p50", Unit::Us, Merge::Mean(calls));
        schema.add("max", Unit::Us, Merge::Max);
        schema.add("used", Unit::Bytes, Merge::Last);
        schema.add("jobs", Unit::Flags, Merge::Any);
        let row = |at_ms, values: [u64; 5]| Row { at_ms, covered_ms: 1_000, values: values.to_vec() };
        let mut merged = row(1_000, [30, 10, 7, 100, 1]);
        schema.merge(&mut merged, &row(2_000, [10, 50, 5, 90, 4]));
        assert_eq!(merged, Row { at_ms: 2_000, covered_ms: 2_000, values: vec![40, 20, 7, 90, 5] });
        assert_eq!(schema.find("used"), Some(3));
        assert_eq!(schema.find("unused"), None);
    }

    #[test]
    fn extreme_values_do_not_overflow() {
        assert_eq!(mean((u64::MAX, u64::MAX), (u64::MAX, u64::MAX)), u64::MAX);
        assert_eq!(mean((5, 0), (9, 0)), 9);
    }
}
