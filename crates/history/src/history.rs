//! Rows of 50 ms, a second, and a minute, each kept for its own time.

use std::collections::VecDeque;

use crate::Row;
use crate::ring::Ring;
use crate::schema::Schema;

/// Time for which rows of 50 ms, of a second and of a minute are kept, if the memory suffices.
const FINE_AGE_MS: u64 = 10 * MINUTE_MS;
const SECONDS_AGE_MS: u64 = 24 * 60 * MINUTE_MS;
const MINUTES_AGE_MS: u64 = 30 * SECONDS_AGE_MS;

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;

/// Longest step whose rows are merged from rows of 50 ms.
const FINE_STEP_MAX_MS: u64 = 250;

/// Longest step whose rows are merged from seconds: a reply of 2,000 rows reads at most 20,000 seconds, which
/// takes some 20 ms.
const FROM_SECONDS_MAX_MS: u64 = 10 * SECOND_MS;

/// Shares of the memory, in eighths.
const FINE_EIGHTHS: usize = 1;
const MINUTES_EIGHTHS: usize = 1;
const SECONDS_EIGHTHS: usize = 6;

/// The rows; see the module's text.
#[derive(Debug)]
pub struct History {
    schema: Schema,
    fine: Ring,
    seconds: Ring,
    minutes: Ring,
    /// The present minute, so far.
    minute: Option<Row>,
}

/// Rows of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Every row but the first and the last covers this time, unless rows are missing.
    pub step_ms: u64,
    pub rows: Vec<Row>,
}

impl History {
    /// Creates an empty history that takes at most `bytes_max`.
    pub fn new(schema: Schema, bytes_max: usize) -> History {
        let columns = schema.len();
        let mut history = History {
            schema,
            fine: Ring::new(columns, 0, FINE_AGE_MS),
            seconds: Ring::new(columns, 0, SECONDS_AGE_MS),
            minutes: Ring::new(columns, 0, MINUTES_AGE_MS),
            minute: None,
        };
        history.set_bytes_max(bytes_max);
        history
    }

    /// Sets the bound of the memory. Drops rows that exceed it.
    pub fn set_bytes_max(&mut self, bytes_max: usize) {
        self.fine.set_bytes_max(bytes_max / 8 * FINE_EIGHTHS);
        self.seconds.set_bytes_max(bytes_max / 8 * SECONDS_EIGHTHS);
        self.minutes.set_bytes_max(bytes_max / 8 * MINUTES_EIGHTHS);
    }

    /// Returns the bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.fine.bytes() + self.seconds.bytes() + self.minutes.bytes()
    }

    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Returns the end of the oldest row.
    pub fn first_ms(&self) -> Option<u64> {
        [&self.fine, &self.seconds, &self.minutes].into_iter().filter_map(Ring::first_ms).min()
    }

    pub fn push_fine(&mut self, row: &Row) {
        self.fine.push(row);
    }

    pub fn push_second(&mut self, row: &Row) {
        self.seconds.push(row);
        let is_of = |minute: &Row| bucket(minute.at_ms, MINUTE_MS) == bucket(row.at_ms, MINUTE_MS);
        match &mut self.minute {
            Some(minute) if is_of(minute) => self.schema.merge(minute, row),
            minute => {
                if let Some(ended) = minute.replace(row.clone()) {
                    self.minutes.push(&ended);
                }
            }
        }
    }

    /// Returns the rows that end after `from_ms`, up to and with `to_ms`, merged to at most about `points`
    /// rows.
    pub fn series(&self, from_ms: u64, to_ms: u64, points: usize) -> Series {
        let asked = to_ms.saturating_sub(from_ms).div_ceil(points.max(1) as u64);
        // A server that started within the span has no older rows of seconds, either.
        let oldest = self.seconds.first_ms().map_or(from_ms, |first| first.max(from_ms));
        let has_fine = self.fine.first_ms().is_some_and(|first| first <= oldest.saturating_add(SECOND_MS));
        let finest = match asked {
            ..=FINE_STEP_MAX_MS if has_fine => FINE_MS,
            ..=FROM_SECONDS_MAX_MS => SECOND_MS,
            _ => MINUTE_MS,
        };
        let step_ms = asked.max(1).next_multiple_of(finest);
        let mut rows: Vec<Row> = Vec::new();
        self.read(from_ms, to_ms, finest, |row| match rows.last_mut() {
            Some(last) if bucket(last.at_ms, step_ms) == bucket(row.at_ms, step_ms) => {
                self.schema.merge(last, row);
            }
            _ => rows.push(row.clone()),
        });
        Series { step_ms, rows }
    }

    /// Reads rows that are at least as long as `finest`, or as short as there are.
    fn read(&self, from_ms: u64, to_ms: u64, finest: u64, mut each: impl FnMut(&Row)) {
        if finest < SECOND_MS {
            let mut seconds: VecDeque<Row> = VecDeque::new();
            self.seconds.read(from_ms, to_ms.saturating_add(SECOND_MS), |row| seconds.push_back(row.clone()));
            return self.fine.read(from_ms, to_ms, |row| {
                // The present second is not over: its rows get the values of the last one.
                while seconds.len() > 1 && seconds[0].at_ms < row.at_ms {
                    seconds.pop_front();
                }
                let mut row = row.clone();
                seconds.front().into_iter().for_each(|second| self.schema.complete(&mut row, second));
                each(&row);
            });
        }
        let last_minute = self.minutes.last_ms().unwrap_or(0);
        let seconds_from = match self.seconds.first_ms() {
            // The minute in which the seconds begin is whole in the minutes alone.
            Some(first) if finest < MINUTE_MS => {
                first.saturating_sub(SECOND_MS).next_multiple_of(MINUTE_MS).min(last_minute)
            }
            _ => last_minute,
        };
        self.minutes.read(from_ms, to_ms.min(seconds_from), &mut each);
        self.seconds.read(from_ms.max(seconds_from), to_ms, each);
    }
}

/// Length of a fine row.
pub const FINE_MS: u64 = 50;

/// The number of the interval that a row belongs to which ends at `at_ms`.
fn bucket(at_ms: u64, step_ms: u64) -> u64 {
    at_ms.saturating_sub(1) / step_ms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Merge, Unit};

    const START: u64 = 1_000_000 * MINUTE_MS;

    /// A history of this many seconds, with 20 commands in each.
    fn history_of(seconds: u64) -> History {
        let mut schema = Schema::default();
        schema.add("commands", Unit::Count, Merge::Sum);
        let mut history = History::new(schema, 64 << 20);
        for second in 0..seconds {
            for part in 1..=20 {
                let at_ms = START + second * SECOND_MS + part * FINE_MS;
                history.push_fine(&Row { at_ms, covered_ms: FINE_MS, values: vec![1] });
            }
            let at_ms = START + (second + 1) * SECOND_MS;
            history.push_second(&Row { at_ms, covered_ms: SECOND_MS, values: vec![20] });
        }
        history
    }

    #[test]
    fn short_spans_have_fine_rows_and_long_spans_merged_rows() {
        let (history, end) = (history_of(3 * 3600), START + 3 * 3600 * SECOND_MS);
        let series = history.series(end - 10 * SECOND_MS, end, 200);
        assert_eq!((series.step_ms, series.rows.len()), (50, 200));
        let series = history.series(end - 10 * SECOND_MS, end, 10);
        assert_eq!((series.step_ms, series.rows.len()), (1_000, 10));
        assert_eq!(series.rows[0].values, [20]);
        let series = history.series(end - 10 * SECOND_MS, end, 40);
        assert_eq!((series.step_ms, series.rows.len()), (250, 40));
        let series = history.series(end - 10 * SECOND_MS, end, 20);
        assert_eq!((series.step_ms, series.rows.len()), (1_000, 10), "seconds have all columns");
        let series = history.series(end - 3600 * SECOND_MS, end, 360);
        assert_eq!((series.step_ms, series.rows.len()), (10_000, 360));
        assert_eq!(series.rows[7].values, [200]);
        let series = history.series(START, end, 90);
        assert_eq!((series.step_ms, series.rows.len()), (120_000, 90));
        assert!(series.rows.iter().all(|row| row.values == [2_400] && row.covered_ms == 120_000));
        // Before the start, there is nothing.
        let young = history_of(5);
        let series = young.series(START - 15 * SECOND_MS, START + 5 * SECOND_MS, 400);
        assert_eq!((series.step_ms, series.rows.len()), (50, 100));
        // Fine rows are gone by now.
        let series = history.series(START, START + 10 * SECOND_MS, 200);
        assert_eq!((series.step_ms, series.rows.len()), (1_000, 10));
    }

    #[test]
    fn fine_rows_have_the_values_of_their_second() {
        let mut schema = Schema::default();
        let calls = schema.add_in_seconds("calls", Unit::Count, Merge::Sum);
        schema.add_in_seconds("p99", Unit::Ns, Merge::Max);
        schema.add_in_seconds("p50", Unit::Ns, Merge::Mean(calls));
        let mut history = History::new(schema, 64 << 20);
        for second in 0..3 {
            let start = START + second * SECOND_MS;
            for part in 1..=20 {
                let at_ms = start + part * FINE_MS;
                history.push_fine(&Row { at_ms, covered_ms: FINE_MS, values: vec![0; 3] });
            }
            let values = vec![200 * (second + 1), 7 + second, 3 + second];
            history.push_second(&Row { at_ms: start + SECOND_MS, covered_ms: SECOND_MS, values });
        }
        let at_ms = START + 3 * SECOND_MS + FINE_MS;
        history.push_fine(&Row { at_ms, covered_ms: FINE_MS, values: vec![0; 3] });
        let rows = history.series(START, START + 4 * SECOND_MS, 2_000).rows;
        assert_eq!(rows.len(), 61);
        assert!(rows[..20].iter().all(|row| row.values == [10, 7, 3]), "{:?}", rows[0]);
        assert!(rows[20..40].iter().all(|row| row.values == [20, 8, 4]), "{:?}", rows[20]);
        assert!(rows[40..].iter().all(|row| row.values == [30, 9, 5]), "{:?}", rows[60]);
    }

    #[test]
    fn no_command_is_counted_twice_or_left_out() {
        for seconds in [1, 59, 60, 61, 119, 120, 3_601] {
            let (history, end) = (history_of(seconds), START + seconds * SECOND_MS);
            for points in [1, 2, 3, 50, 700, 5_000] {
                let series = history.series(START - 1, end, points);
                let sum: u64 = series.rows.iter().map(|row| row.values[0]).sum();
                assert_eq!(sum, 20 * seconds, "{seconds} s, {points} points, step {}", series.step_ms);
            }
        }
    }

    #[test]
    fn minutes_stay_when_seconds_are_dropped() {
        let mut schema = Schema::default();
        let columns = 50;
        (0..columns).for_each(|one| _ = schema.add(format!("c{one}"), Unit::Count, Merge::Sum));
        let mut history = History::new(schema, 1 << 20);
        for second in 1..=20_000_u64 {
            let values = (0..columns).map(|one| second * 7_919 * one % 1_000_003).collect();
            history.push_second(&Row { at_ms: START + second * SECOND_MS, covered_ms: SECOND_MS, values });
        }
        assert!(history.bytes() <= 1 << 20, "{}", history.bytes());
        let kept = history.seconds.first_ms().expect("it has rows");
        assert!(kept > START + 1_000 * SECOND_MS && history.first_ms() < Some(START + 2 * MINUTE_MS));
        let series = history.series(START, START + 20_000 * SECOND_MS, 2_000);
        let covered: u64 = series.rows.iter().map(|row| row.covered_ms).sum();
        assert_eq!(covered, 20_000 * SECOND_MS);
    }
}
