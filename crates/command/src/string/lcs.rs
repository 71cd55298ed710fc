//! LCS: the longest common subsequence of two strings.
//!
//! Redis fills a table of 32-bit lengths, with a cell for each pair of bytes. Neighbouring cells differ by at
//! most 1, so a bit per cell is enough. A row follows from the row above by an addition and three bitwise
//! operations per 64 cells (Crochemore, Iliopoulos, Pinzon and Reid, 2001). A table of half a gigabyte
//! becomes 16 MiB, or a single row if only the length is asked for, and takes milliseconds. A table too large
//! for Redis is refused all the same.

use crate::Call;
use crate::error::Error;
use crate::flow::{Done, Flow};

/// Bytes of a cell in Redis' table, which `proto-max-bulk-len` limits.
const CELL: u128 = 4;

/// The reply's form.
#[derive(Default)]
struct Options {
    len: bool,
    idx: bool,
    with_match_len: bool,
    min_match_len: i64,
}

/// A range of bytes common to both strings: where it begins in each, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Match {
    a: usize,
    b: usize,
    len: usize,
}

/// LCS key1 key2 [LEN] [IDX] [MINMATCHLEN length] [WITHMATCHLEN]
pub fn lcs(call: &mut Call<'_, '_>) -> Done {
    let lens = [string_len(call, 0)?, string_len(call, 1)?];
    let options = parse(call)?;
    let cells = (lens[0] as u128 + 1) * (lens[1] as u128 + 1);
    if lens.iter().any(|len| *len >= u32::MAX as usize - 1) {
        return Err(Error::text("ERR String too long for LCS"));
    }
    if cells * CELL > call.settings.proto_max_bulk_len as u128 {
        return Err(Error::text(
            "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
        ));
    }
    let (mut a, mut b) = (Vec::new(), Vec::new());
    if lens.iter().all(|len| *len > 0) {
        a = string_bytes(call, 0)?;
        b = string_bytes(call, 1)?;
    }
    if options.len {
        call.reply.int(length(&a, &b) as i64);
        return Ok(Flow::Replied);
    }
    let matches = matches(&a, &b);
    if options.idx {
        reply_matches(call, &options, &matches);
    } else {
        let common = matches.iter().rev().flat_map(|found| &a[found.a..found.a + found.len]);
        call.reply.bulk(&common.copied().collect::<Vec<u8>>());
    }
    Ok(Flow::Replied)
}

fn string_len(call: &mut Call<'_, '_>, index: usize) -> Result<usize, Error> {
    let value = call.guard.string(&call.keys[index]);
    let value = value.map_err(|_| Error::text("ERR The specified keys must contain string values"))?;
    Ok(value.map_or(0, |value| value.len()))
}

/// Copies a string: two strings cannot be borrowed at once, and neither is longer than half of Redis' table.
fn string_bytes(call: &mut Call<'_, '_>, index: usize) -> Result<Vec<u8>, Error> {
    Ok(call.guard.peek(&call.keys[index]).map_or(Vec::new(), |view| view.string().bytes().into_owned()))
}

fn parse(call: &Call<'_, '_>) -> Result<Options, Error> {
    let (args, mut options, mut at) = (call.args, Options::default(), 3);
    while at < args.len() {
        match args.word(at).as_bytes() {
            b"LEN" => options.len = true,
            b"IDX" => options.idx = true,
            b"WITHMATCHLEN" => options.with_match_len = true,
            b"MINMATCHLEN" if at + 1 < args.len() => {
                at += 1;
                options.min_match_len = args.int(at)?;
            }
            _ => return Err(Error::Syntax),
        }
        at += 1;
    }
    if options.len && options.idx {
        return Err(Error::text("ERR If you want both the length and indexes, please just use IDX."));
    }
    Ok(options)
}

fn reply_matches(call: &mut Call<'_, '_>, options: &Options, matches: &[Match]) {
    let shown = || matches.iter().filter(|found| found.len as i64 >= options.min_match_len);
    let reply = &mut *call.reply;
    reply.map(2);
    reply.bulk(b"matches");
    reply.array(shown().count());
    for Match { a, b, len } in shown() {
        reply.array(2 + usize::from(options.with_match_len));
        for start in [a, b] {
            reply.array(2);
            reply.int(*start as i64);
            reply.int((start + len - 1) as i64);
        }
        if options.with_match_len {
            reply.int(*len as i64);
        }
    }
    reply.bulk(b"len");
    reply.int(matches.iter().map(|found| found.len as i64).sum());
}

/// The positions of a row's byte in the other string, as bits: row `i` of the table belongs to byte `i` of
/// `a`, and bit `j` of a row to byte `j` of `b`.
struct Positions {
    /// The place of a byte's bits in `bits`, in rows; `u16::MAX` for a byte that `a` does not have.
    of_byte: [u16; 256],
    words: usize,
    bits: Vec<u64>,
}

impl Positions {
    fn new(a: &[u8], b: &[u8]) -> Positions {
        let mut of_byte = [u16::MAX; 256];
        let mut rows = 0;
        for byte in a {
            let row = &mut of_byte[usize::from(*byte)];
            if *row == u16::MAX {
                *row = rows;
                rows += 1;
            }
        }
        let words = b.len().div_ceil(64);
        let mut bits = vec![0; usize::from(rows) * words];
        for (at, byte) in b.iter().enumerate() {
            let row = of_byte[usize::from(*byte)];
            if row != u16::MAX {
                bits[usize::from(row) * words + at / 64] |= 1 << (at % 64);
            }
        }
        Positions { of_byte, words, bits }
    }

    fn of(&self, byte: u8) -> &[u64] {
        let row = usize::from(self.of_byte[usize::from(byte)]);
        &self.bits[row * self.words..(row + 1) * self.words]
    }
}

/// Turns a row of the table into the next row. A zero bit means that the subsequence is longer here than at
/// the previous byte of `b`. Bits beyond the last byte of `b` stay set.
fn next_row(row: &mut [u64], positions: &[u64]) {
    let mut carry = false;
    for (word, found) in row.iter_mut().zip(positions) {
        let (sum, first) = word.overflowing_add(*word & found);
        let (sum, second) = sum.overflowing_add(u64::from(carry));
        carry = first || second;
        *word = sum | (*word & !found);
    }
}

/// Returns the length of the longest common subsequence.
fn length(a: &[u8], b: &[u8]) -> usize {
    // The outcome is the same either way; rows are cheaper than columns.
    let (a, b) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    let positions = Positions::new(a, b);
    let mut row = vec![u64::MAX; positions.words];
    a.iter().for_each(|byte| next_row(&mut row, positions.of(*byte)));
    row.iter().map(|word| word.count_zeros() as usize).sum()
}

/// Returns the ranges of the subsequence, the last first. Of several subsequences it is Redis' choice: from
/// the end, equal bytes are taken; else the search follows the longer subsequence, and on a tie steps a byte
/// back in `b`.
fn matches(a: &[u8], b: &[u8]) -> Vec<Match> {
    let table = Table::new(a, b);
    let (mut i, mut j, mut found) = (a.len(), b.len(), Vec::<Match>::new());
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            (i, j) = (i - 1, j - 1);
            match found.last_mut() {
                Some(last) if (last.a, last.b) == (i + 1, j + 1) => {
                    *last = Match { a: i, b: j, len: last.len + 1 }
                }
                _ => found.push(Match { a: i, b: j, len: 1 }),
            }
        } else if table.grows(i - 1, j - 1) {
            // The subsequence is longer than at the previous byte of `b`, and not by this pair: so by the row
            // above.
            i -= 1;
        } else {
            j -= 1;
        }
    }
    found
}

/// All rows, each cut to whole bytes: a row of few bits would otherwise take as much as Redis' table.
struct Table {
    row_len: usize,
    rows: Vec<u8>,
}

impl Table {
    fn new(a: &[u8], b: &[u8]) -> Table {
        let positions = Positions::new(a, b);
        let row_len = b.len().div_ceil(8);
        let mut row = vec![u64::MAX; positions.words];
        // Whole words are stored, each row's last word partly under the next row.
        let mut rows = vec![0; row_len * a.len() + size_of::<u64>()];
        for (index, byte) in a.iter().enumerate() {
            next_row(&mut row, positions.of(*byte));
            let (words, _) = rows[index * row_len..].as_chunks_mut();
            words.iter_mut().zip(&row).for_each(|(stored, word)| *stored = word.to_le_bytes());
        }
        Table { row_len, rows }
    }

    fn grows(&self, i: usize, j: usize) -> bool {
        self.rows[i * self.row_len + j / 8] >> (j % 8) & 1 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::random::printed as random;

    /// The textbook's table, walked back from the end like Redis.
    fn slow(a: &[u8], b: &[u8]) -> Vec<Match> {
        let mut table = vec![vec![0_u32; b.len() + 1]; a.len() + 1];
        for i in 1..=a.len() {
            for j in 1..=b.len() {
                table[i][j] = if a[i - 1] == b[j - 1] {
                    table[i - 1][j - 1] + 1
                } else {
                    table[i - 1][j].max(table[i][j - 1])
                };
            }
        }
        let (mut i, mut j, mut run, mut found) = (a.len(), b.len(), 0, Vec::new());
        while i > 0 && j > 0 && table[i][j] > 0 {
            let equal = a[i - 1] == b[j - 1];
            if !equal && run > 0 {
                found.push(Match { a: i, b: j, len: run });
                run = 0;
            }
            match equal {
                true => (i, j, run) = (i - 1, j - 1, run + 1),
                false if table[i - 1][j] > table[i][j - 1] => i -= 1,
                false => j -= 1,
            }
        }
        if run > 0 {
            found.push(Match { a: i, b: j, len: run });
        }
        found
    }

    #[test]
    fn random_strings_match_the_textbook_algorithm() {
        let mut random = random();
        for _ in 0..400 {
            let letters = random.between(1, 40);
            let mut string = |longest: usize| -> Vec<u8> {
                (0..random.below(longest)).map(|_| random.below(letters as usize) as u8).collect()
            };
            let (a, b) = (string(150), string(400));
            let expected = slow(&a, &b);
            assert_eq!(matches(&a, &b), expected, "{a:?} {b:?}");
            let len = expected.iter().map(|found| found.len).sum::<usize>();
            assert_eq!((length(&a, &b), length(&b, &a)), (len, len));
        }
    }
}
