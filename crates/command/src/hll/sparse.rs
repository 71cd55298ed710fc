//! The sparse encoding: runs of equal registers, from the first register to the last.
//!
//! ```text
//! 00llllll            ZERO   l+1 registers are 0
//! 01llllll llllllll   XZERO  l+1 registers are 0, high bits first
//! 1vvvvvll            VAL    l+1 registers are v+1
//! ```
//!
//! A register is raised by splitting its run; afterwards equal runs close by are joined. Where to split and
//! join is a free choice, and Redis' choice is followed to the byte, so that values can be compared. Runs
//! that do not add up to 16,384 registers are an error wherever that shows. `bytes` is the whole value,
//! `registers` the part after its header.

use std::fmt;

use super::estimate::Histogram;
use super::hash::Place;
use super::{Fault, HEADER, REGISTERS, Registers, SPARSE_LEN_MAX};

const XZERO: u8 = 0x40;
const VAL: u8 = 0x80;

const _: () =
    assert!(SPARSE_LEN_MAX * XZERO_RUN_MAX < u32::MAX as usize, "registers counted by runs, which may lie");

const ZERO_RUN_MAX: usize = 64;
const XZERO_RUN_MAX: usize = REGISTERS;
const VAL_RUN_MAX: usize = 4;

/// Highest value that a run can have.
const VALUE_MAX: u8 = 32;

/// How many runs are looked at, from the run before a change on, for neighbours to be joined.
const JOIN_RUNS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Zero,
    XZero,
    Val(u8),
}

/// A run as it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    code: Code,
    /// How many registers.
    len: usize,
}

impl Run {
    fn zeros(len: usize) -> Run {
        Run { code: if len > ZERO_RUN_MAX { Code::XZero } else { Code::Zero }, len }
    }

    fn of(value: u8, len: usize) -> Run {
        if value == 0 { Run::zeros(len) } else { Run { code: Code::Val(value), len } }
    }

    /// Decodes the run at `at`; `None` at the end. The missing second byte of a truncated code reads as zero.
    #[inline]
    fn at(bytes: &[u8], at: usize) -> Option<Run> {
        let first = *bytes.get(at)?;
        let low = usize::from(first & 0x3f);
        Some(if first & VAL != 0 {
            Run { code: Code::Val((first >> 2 & 0x1f) + 1), len: usize::from(first & 3) + 1 }
        } else if first & XZERO != 0 {
            let second = bytes.get(at + 1).copied().unwrap_or(0);
            Run { code: Code::XZero, len: (low << 8 | usize::from(second)) + 1 }
        } else {
            Run { code: Code::Zero, len: low + 1 }
        })
    }

    pub(super) fn value(&self) -> u8 {
        if let Code::Val(value) = self.code { value } else { 0 }
    }

    fn bytes(&self) -> usize {
        if self.code == Code::XZero { 2 } else { 1 }
    }

    fn is_val(&self) -> bool {
        matches!(self.code, Code::Val(_))
    }

    fn push_to(&self, out: &mut impl Extend<u8>) {
        let len = self.len - 1;
        match self.code {
            Code::Zero => out.extend([len as u8]),
            Code::XZero => out.extend([XZERO | (len >> 8) as u8, len as u8]),
            Code::Val(value) => out.extend([VAL | (value - 1) << 2 | len as u8]),
        }
    }
}

/// As PFDEBUG DECODE prints it.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Code::Zero => write!(f, "z:{}", self.len),
            Code::XZero => write!(f, "Z:{}", self.len),
            Code::Val(value) => write!(f, "v:{value},{}", self.len),
        }
    }
}

/// Appends a run of zeros; there are 1 to `XZERO_RUN_MAX`.
pub(super) fn push_zeros(bytes: &mut Vec<u8>, len: usize) {
    debug_assert!((1..=XZERO_RUN_MAX).contains(&len));
    Run::zeros(len).push_to(bytes);
}

pub(super) fn runs(registers: &[u8]) -> impl Iterator<Item = Run> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let run = Run::at(registers, at)?;
        at += run.bytes();
        Some(run)
    })
}

/// Fits its integers: `registers` are at most `SPARSE_LEN_MAX` bytes.
pub(super) fn histogram(registers: &[u8]) -> Result<Histogram, Fault> {
    let (mut histogram, mut total) = ([0_u32; 64], 0);
    for run in runs(registers) {
        total += run.len;
        histogram[usize::from(run.value())] += run.len as u32;
    }
    if total == REGISTERS { Ok(histogram) } else { Err(Fault::Corrupt) }
}

/// Raises `max` to the registers of the runs where these are higher.
pub(super) fn merge_into(max: &mut Registers, registers: &[u8]) -> Result<(), Fault> {
    let mut at = 0;
    for run in runs(registers) {
        let under = at..at + run.len;
        at = under.end;
        if at > REGISTERS {
            return Err(Fault::Corrupt);
        }
        if run.is_val() {
            under.for_each(|index| max.raise(index, run.value()));
        }
    }
    if at == REGISTERS { Ok(()) } else { Err(Fault::Corrupt) }
}

/// Where a search may begin: at the run whose code begins at `at`, and whose first register is `first`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    at: usize,
    first: usize,
}

pub(super) const START: Start = Start { at: HEADER, first: 0 };

/// The run that a register lies in.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunOfRegister {
    run: Run,
    at: usize,
    /// The first register of the run.
    first: usize,
    /// The run before it, if the search has seen that.
    before: Option<Start>,
}

impl RunOfRegister {
    pub(super) fn value(&self) -> u8 {
        self.run.value()
    }
}

/// Measures the codes that begin in eight bytes, the first of which begins a code. Returns how many bytes
/// these codes take, and how many registers. A code that goes on behind the eight bytes is left out.
///
/// The sequence of codes is unpredictable, so no branch depends on it, and all eight bytes are examined
/// together. The hard part is to find the second bytes of codes. In each series of bytes that look like the
/// first byte of an XZERO, the first is such a byte, and the roles alternate from there to the byte after the
/// series. Flags at the lowest bit of each byte mark the bytes of these series. Shift the flags by a byte,
/// set a flag at every other byte, and subtract the unshifted flags. The borrow then runs through each series
/// to its end and flips every other flag of it.
#[inline]
fn measure(bytes: [u8; 8]) -> (usize, usize) {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const OTHER: u64 = 0x0100_0100_0100_0100;
    let bytes = u64::from_le_bytes(bytes);
    let sum = |parts: u64| (parts.wrapping_mul(EACH) >> 56) as usize;
    let like_xzero = bytes >> 6 & !(bytes >> 7) & EACH;
    let flipped = ((like_xzero << 8 | OTHER).wrapping_sub(like_xzero) ^ OTHER) & EACH;
    let (second, xzero) = (flipped ^ like_xzero, flipped & like_xzero);
    let val = bytes >> 7 & EACH & !second;
    let is_cut = xzero >> 56;
    let whole = |flags: u64| flags * 0xff;
    let plain = !whole(second | xzero | val);
    let high = sum(bytes & whole(xzero & !(is_cut << 56)) & (EACH * 0x3f));
    // Second bytes add up to more than a byte holds.
    let low = bytes & whole(second) | bytes & whole(val) & (EACH * 3) | bytes & plain & (EACH * 0x3f);
    let pairs = (low & 0x00ff_00ff_00ff_00ff) + (low >> 8 & 0x00ff_00ff_00ff_00ff);
    let low = (pairs.wrapping_mul(0x0001_0001_0001_0001) >> 48) as usize;
    let codes = 8 - is_cut as usize - sum(second);
    (8 - is_cut as usize, codes + (high << 8) + low)
}

/// Finds the run of the register `index`, which does not lie before `from`.
#[inline]
pub(super) fn find(bytes: &[u8], index: usize, from: Start) -> Result<RunOfRegister, Fault> {
    let (mut start, mut last) = (from, None);
    while let Some(eight) = bytes.get(start.at..start.at + 8) {
        let (len, registers) = measure(eight.try_into().expect("as many"));
        if index < start.first + registers {
            break;
        }
        last = Some(start);
        start = Start { at: start.at + len, first: start.first + registers };
    }
    match (find_by_one(bytes, index, start)?, last) {
        (found @ RunOfRegister { before: None, .. }, Some(last)) => {
            let before = find_by_one(bytes, found.first - 1, last)?;
            Ok(RunOfRegister { before: Some(Start { at: before.at, first: before.first }), ..found })
        }
        (found, _) => Ok(found),
    }
}

/// [`find`], run by run.
#[inline]
fn find_by_one(bytes: &[u8], index: usize, from: Start) -> Result<RunOfRegister, Fault> {
    let Start { mut at, mut first } = from;
    let mut before = None;
    while let Some(run) = Run::at(bytes, at) {
        if index < first + run.len {
            return Ok(RunOfRegister { run, at, first, before });
        }
        before = Some(Start { at, first });
        at += run.bytes();
        first += run.len;
    }
    Err(Fault::Corrupt)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The register was that high already.
    Same,
    Raised,
    /// Nothing was done: the rank does not fit the encoding, or the value would exceed `len_max`.
    NoRoom,
}

/// Raises a register. Also returns where the search for a register of a higher index may begin.
pub(super) fn raise(
    bytes: &mut Vec<u8>,
    Place { index, rank }: Place,
    from: Start,
    len_max: usize,
) -> Result<(Outcome, Start), Fault> {
    if rank > VALUE_MAX {
        return Ok((Outcome::NoRoom, from));
    }
    let mut found = find(bytes, index, from)?;
    if found.before.is_none() {
        found = find(bytes, index, START)?; // joining needs the run before
    }
    // Joining begins with the run before, whose place stays, and may merge the found run into it.
    let next = found.before.unwrap_or(START);
    if found.value() >= rank {
        return Ok((Outcome::Same, next));
    }
    let split = Split::new(&found, index, rank);
    let old = found.at..found.at + found.run.bytes();
    if old.end > bytes.len() {
        return Err(Fault::Corrupt); // a truncated code cannot be split
    }
    if split.bytes().len() > old.len() && bytes.len() + split.bytes().len() - old.len() > len_max {
        return Ok((Outcome::NoRoom, from));
    }
    bytes.splice(old, split.bytes().iter().copied());
    join(bytes, found.before.map_or(found.at, |before| before.at));
    Ok((Outcome::Raised, next))
}

/// The codes that replace a code: the part before the register, the register, the part behind.
struct Split {
    codes: [u8; 5],
    len: usize,
}

impl Split {
    fn new(found: &RunOfRegister, index: usize, rank: u8) -> Split {
        let mut split = Split { codes: [0; 5], len: 0 };
        let (before, value) = (index - found.first, found.value());
        let behind = found.run.len - before - 1;
        if before > 0 {
            Run::of(value, before).push_to(&mut split);
        }
        Run::of(rank, 1).push_to(&mut split);
        if behind > 0 {
            Run::of(value, behind).push_to(&mut split);
        }
        split
    }

    fn bytes(&self) -> &[u8] {
        &self.codes[..self.len]
    }
}

impl Extend<u8> for Split {
    fn extend<I: IntoIterator<Item = u8>>(&mut self, bytes: I) {
        for byte in bytes {
            self.codes[self.len] = byte;
            self.len += 1;
        }
    }
}

/// Joins neighbours of the same value among the runs from `at` on.
fn join(bytes: &mut Vec<u8>, mut at: usize) {
    for _ in 0..JOIN_RUNS {
        let Some(run) = Run::at(bytes, at) else { return };
        let next = Run::at(bytes, at + 1).filter(|next| run.is_val() && next.code == run.code);
        match next.map(|next| run.len + next.len).filter(|len| *len <= VAL_RUN_MAX) {
            Some(len) => {
                bytes.remove(at);
                bytes[at] = VAL | (run.value() - 1) << 2 | (len - 1) as u8;
            }
            None => at += run.bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::random::printed as random;

    #[test]
    fn eight_byte_search_matches_bytewise_search() {
        let mut random = random();
        for _ in 0..5_000 {
            // Any byte may look like the first of any code.
            let kinds = [0, XZERO, XZERO, XZERO | 0x3c, VAL, VAL | 0x7c];
            let code = |_| kinds[random.below(kinds.len())] | random.below(4) as u8;
            let bytes: Vec<u8> = (0..HEADER + 60).map(code).collect();
            let bytes = &bytes[..HEADER + random.below(60)];
            let registers: usize = runs(&bytes[HEADER..]).map(|run| run.len).sum();
            for _ in 0..50 {
                let index = random.below(registers + 2);
                let (found, expected) = (find(bytes, index, START), find_by_one(bytes, index, START));
                assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{index} in {bytes:x?}");
            }
        }
    }
}
