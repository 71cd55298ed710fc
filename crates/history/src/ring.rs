//! Rows as bytes, in chunks, the oldest of which is dropped.
//!
//! A row is stored as its differences from the row before it in the chunk, as numbers of variable length,
//! with runs of zeros as a single number: a second of an idle server takes a few bytes, a busy one some 150.
//! The first row of a chunk differs from a row of zeros, so each chunk can be read by itself.

use std::collections::VecDeque;

/// Bytes of a chunk, from which the next row begins a new one.
const CHUNK_LEN: usize = 32 << 10;

/// Values over an interval of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// End of the interval, and its length.
    pub at_ms: u64,
    pub covered_ms: u64,
    /// By the columns of the schema.
    pub values: Vec<u64>,
}

impl Row {
    pub fn zeros(columns: usize) -> Row {
        Row { at_ms: 0, covered_ms: 0, values: vec![0; columns] }
    }

    pub fn start_ms(&self) -> u64 {
        self.at_ms.saturating_sub(self.covered_ms)
    }
}

/// Rows in the order of their times.
#[derive(Debug)]
pub(crate) struct Ring {
    columns: usize,
    chunks: VecDeque<Chunk>,
    bytes: usize,
    /// The newest row, from which the next differs.
    last: Row,
    bytes_max: usize,
    age_max_ms: u64,
}

#[derive(Debug)]
struct Chunk {
    first_ms: u64,
    last_ms: u64,
    data: Vec<u8>,
}

impl Ring {
    pub(crate) fn new(columns: usize, bytes_max: usize, age_max_ms: u64) -> Ring {
        Ring { columns, chunks: VecDeque::new(), bytes: 0, last: Row::zeros(columns), bytes_max, age_max_ms }
    }

    /// Adds a row. Drops the oldest chunks that exceed the bounds. A row that is not later than the newest,
    /// as after a step of the clock, gets its time.
    pub(crate) fn push(&mut self, row: &Row) {
        debug_assert_eq!(row.values.len(), self.columns);
        let at_ms = row.at_ms.max(self.last.at_ms);
        if self.chunks.back().is_none_or(|chunk| chunk.data.len() >= CHUNK_LEN) {
            // A chunk ends with its last row, so nearly all of its memory is in use.
            self.chunks.push_back(Chunk { first_ms: at_ms, last_ms: at_ms, data: Vec::new() });
            self.last.values.fill(0);
            (self.last.at_ms, self.last.covered_ms) = (0, 0);
        }
        let chunk = self.chunks.back_mut().expect("a chunk was added");
        let before = chunk.data.len();
        write_row(&mut chunk.data, &self.last, row, at_ms);
        self.bytes += chunk.data.len() - before;
        chunk.last_ms = at_ms;
        self.last.clone_from(row);
        self.last.at_ms = at_ms;
        self.drop_old();
    }

    pub(crate) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        self.drop_old();
    }

    fn drop_old(&mut self) {
        let least_ms = self.last.at_ms.saturating_sub(self.age_max_ms);
        while self.chunks.len() > 1
            && (self.bytes > self.bytes_max || self.chunks.front().is_some_and(|one| one.last_ms < least_ms))
        {
            self.bytes -= self.chunks.pop_front().map_or(0, |chunk| chunk.data.len());
        }
    }

    /// Returns the bytes of all rows.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the end of the oldest row.
    pub(crate) fn first_ms(&self) -> Option<u64> {
        self.chunks.front().map(|chunk| chunk.first_ms)
    }

    pub(crate) fn last_ms(&self) -> Option<u64> {
        self.chunks.back().map(|chunk| chunk.last_ms)
    }

    /// Calls `each` for all rows that end after `from_ms`, up to and with `to_ms`.
    pub(crate) fn read(&self, from_ms: u64, to_ms: u64, mut each: impl FnMut(&Row)) {
        for chunk in self.chunks.iter().filter(|chunk| chunk.last_ms > from_ms && chunk.first_ms <= to_ms) {
            let (mut row, mut data) = (Row::zeros(self.columns), chunk.data.as_slice());
            while read_row(&mut data, &mut row).is_some() && row.at_ms <= to_ms {
                if row.at_ms > from_ms {
                    each(&row);
                }
            }
        }
    }
}

/// Appends a row as its differences from `last`.
pub(crate) fn write_row(data: &mut Vec<u8>, last: &Row, row: &Row, at_ms: u64) {
    let values = row.values.iter().zip(&last.values).map(|(now, before)| (*now, *before));
    let differences = [(at_ms, last.at_ms), (row.covered_ms, last.covered_ms)].into_iter().chain(values);
    let mut zeros = 0_u64;
    for (now, before) in differences {
        if now == before {
            zeros += 1;
            continue;
        }
        if zeros > 0 {
            write_number(data, u128::from(zeros) << 1);
            zeros = 0;
        }
        let difference = now.wrapping_sub(before) as i64;
        let folded = (difference << 1 ^ difference >> 63) as u64;
        write_number(data, u128::from(folded) << 1 | 1);
    }
    if zeros > 0 {
        write_number(data, u128::from(zeros) << 1);
    }
}

/// Reads a row that follows `row` into it. `None`: the data end, or are damaged.
pub(crate) fn read_row(data: &mut &[u8], row: &mut Row) -> Option<()> {
    if data.is_empty() {
        return None;
    }
    let count = row.values.len() + 2;
    let mut at = 0;
    while at < count {
        let number = read_number(data)?;
        if number & 1 == 0 {
            let zeros = usize::try_from(number >> 1).ok().filter(|zeros| *zeros > 0)?;
            at = at.checked_add(zeros).filter(|at| *at <= count)?;
            continue;
        }
        let folded = (number >> 1) as u64;
        let difference = (folded >> 1) as i64 ^ -((folded & 1) as i64);
        let value = match at {
            0 => &mut row.at_ms,
            1 => &mut row.covered_ms,
            _ => &mut row.values[at - 2],
        };
        *value = value.wrapping_add(difference as u64);
        at += 1;
    }
    Some(())
}

/// Appends a number, seven bits a byte, the lowest first.
fn write_number(data: &mut Vec<u8>, mut number: u128) {
    while number >= 0x80 {
        data.push(number as u8 | 0x80);
        number >>= 7;
    }
    data.push(number as u8);
}

fn read_number(data: &mut &[u8]) -> Option<u128> {
    /// A difference has 64 bits, and a bit tells it from a run of zeros.
    const BITS_MAX: u32 = 65;
    let (mut number, mut shift) = (0_u128, 0);
    loop {
        let (byte, rest) = data.split_first()?;
        *data = rest;
        if shift >= BITS_MAX {
            return None;
        }
        number |= u128::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return (number >> BITS_MAX == 0).then_some(number);
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(at_ms: u64, values: &[u64]) -> Row {
        Row { at_ms, covered_ms: 50, values: values.to_vec() }
    }

    fn all(ring: &Ring, from_ms: u64, to_ms: u64) -> Vec<Row> {
        let mut rows = Vec::new();
        ring.read(from_ms, to_ms, |row| rows.push(row.clone()));
        rows
    }

    #[test]
    fn a_span_has_the_rows_that_end_in_it() {
        let mut ring = Ring::new(1, 1 << 20, u64::MAX);
        (1..=100).for_each(|at| ring.push(&row(at * 50, &[at])));
        let rows = all(&ring, 1_000, 1_200);
        assert_eq!(rows.iter().map(|row| row.at_ms).collect::<Vec<_>>(), [1_050, 1_100, 1_150, 1_200]);
        assert_eq!((ring.first_ms(), ring.last_ms()), (Some(50), Some(5_000)));
        assert!(all(&ring, 5_000, 9_000).is_empty());
    }

    #[test]
    fn an_idle_server_takes_a_few_bytes_per_row() {
        let mut ring = Ring::new(200, 1 << 20, u64::MAX);
        let values = [7; 200];
        (1..=1_000).for_each(|at| ring.push(&row(at * 1_000, &values)));
        assert!(ring.bytes() < 1_000 * 6, "{}", ring.bytes());
    }

    #[test]
    fn old_rows_go_by_age_and_by_size() {
        let mut ring = Ring::new(4, 100 << 10, u64::MAX);
        for at in 1..=100_000_u64 {
            ring.push(&row(at, &[at * 7919, at * 104_729, at << 20, 3]));
        }
        assert!(ring.bytes() <= 100 << 10, "{}", ring.bytes());
        assert_eq!(ring.last_ms(), Some(100_000));
        let first = ring.first_ms().expect("it has rows");
        assert_eq!(all(&ring, 0, u64::MAX).len() as u64, 100_001 - first);
        let mut ring = Ring::new(4, usize::MAX, 10_000);
        for at in 1..=100_000_u64 {
            ring.push(&row(at, &[at * 7919, at * 104_729, at << 20, 3]));
        }
        let first = ring.first_ms().expect("it has rows");
        assert!((80_000..=90_000).contains(&first), "{first}");
    }

    #[test]
    fn a_clock_that_steps_back_keeps_the_order() {
        let mut ring = Ring::new(1, 1 << 20, u64::MAX);
        [100, 200, 150, 300].into_iter().for_each(|at| ring.push(&row(at, &[at])));
        let times: Vec<u64> = all(&ring, 0, u64::MAX).iter().map(|row| row.at_ms).collect();
        assert_eq!(times, [100, 200, 200, 300]);
    }

    proptest! {
        #[test]
        fn rows_are_read_as_they_were_written(
            rows in prop::collection::vec(
                prop::collection::vec(prop_oneof![Just(0), 0..100_u64, any::<u64>()], 9),
                1..50,
            ),
        ) {
            let mut ring = Ring::new(9, usize::MAX, u64::MAX);
            let row = |(values, at_ms)| Row { at_ms, covered_ms: 1, values };
            let rows: Vec<Row> = rows.into_iter().zip(1..).map(row).collect();
            rows.iter().for_each(|row| ring.push(row));
            prop_assert_eq!(all(&ring, 0, u64::MAX), rows);
        }

        #[test]
        fn damaged_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let (mut row, mut data) = (Row::zeros(5), bytes.as_slice());
            while read_row(&mut data, &mut row).is_some() {}
        }
    }
}
