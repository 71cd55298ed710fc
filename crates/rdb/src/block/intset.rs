//! Intset: a set of integers, ascending, all of the same width.
//!
//! ```text
//! bytes per integer, u32: 2, 4 or 8 | integers, u32 | integer, lowest byte first ..
//! ```

use super::{Element, Flaw, fixed};
use crate::error::Reason;

const HEADER: usize = 8;

#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    at: usize,
    width: usize,
    count: u32,
    before: Option<i64>,
}

impl Cursor {
    pub(crate) fn open(block: &[u8]) -> Result<Cursor, Flaw> {
        let width = u32::from_le_bytes(fixed(block, 0)?) as usize;
        let count = u32::from_le_bytes(fixed(block, 4)?);
        if ![2, 4, 8].contains(&width) {
            return Err(Flaw::new(0, Reason::Element));
        }
        if block.len() - HEADER != count as usize * width {
            return Err(Flaw::new(4, Reason::Count));
        }
        Ok(Cursor { at: HEADER, width, count, before: None })
    }

    #[inline]
    pub(crate) fn next(&mut self, block: &[u8]) -> Result<Option<Element>, Flaw> {
        if self.at == block.len() {
            return Ok(None);
        }
        let number = match self.width {
            2 => i64::from(i16::from_le_bytes(fixed(block, self.at)?)),
            4 => i64::from(i32::from_le_bytes(fixed(block, self.at)?)),
            _ => i64::from_le_bytes(fixed(block, self.at)?),
        };
        if self.before.is_some_and(|before| before >= number) {
            return Err(Flaw::new(self.at, Reason::Order));
        }
        self.before = Some(number);
        self.at += self.width;
        Ok(Some(Element::Int(number)))
    }

    pub(crate) fn announced(&self) -> u64 {
        u64::from(self.count)
    }
}

/// Writes the block of these integers (ascending, at most `u32::MAX`) to `out`, which is emptied first.
pub(crate) fn block(numbers: impl Iterator<Item = i64> + Clone, out: &mut Vec<u8>) {
    let (count, width) =
        numbers.clone().fold((0u32, 2), |(count, width), number| (count + 1, width.max(width_of(number))));
    out.clear();
    out.reserve(HEADER + count as usize * width);
    out.extend_from_slice(&(width as u32).to_le_bytes());
    out.extend_from_slice(&count.to_le_bytes());
    let mut before = None;
    for number in numbers {
        assert!(before < Some(number), "the integers of an intset ascend");
        before = Some(number);
        out.extend_from_slice(&number.to_le_bytes()[..width]);
    }
}

fn width_of(number: i64) -> usize {
    match number {
        -0x8000..=0x7fff => 2,
        -0x8000_0000..=0x7fff_ffff => 4,
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(block: &[u8]) -> Result<Vec<i64>, Flaw> {
        let (mut cursor, mut all) = (Cursor::open(block)?, Vec::new());
        while let Some(element) = cursor.next(block)? {
            all.push(element.item(block).int().expect("an integer"));
        }
        Ok(all)
    }

    #[test]
    fn each_width_and_its_bounds() {
        for (set, width) in [
            (vec![], 2),
            (vec![-32_768, 0, 32_767], 2),
            (vec![-32_769, 1], 4),
            (vec![-2_147_483_648, 2_147_483_647], 4),
            (vec![i64::MIN, i64::MAX], 8),
            (vec![2_147_483_648], 8),
        ] {
            let mut out = Vec::new();
            block(set.iter().copied(), &mut out);
            assert_eq!(out.len(), HEADER + set.len() * width);
            assert_eq!(numbers(&out), Ok(set));
        }
    }

    #[test]
    fn flaws_are_named() {
        let mut good = Vec::new();
        block([1, 2, 3].into_iter(), &mut good);
        let broken = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            numbers(&bytes).expect_err("it is broken").reason
        };
        assert_eq!(broken(0, 3), Reason::Element);
        assert_eq!(broken(0, 4), Reason::Count);
        assert_eq!(broken(4, 2), Reason::Count);
        assert_eq!(broken(10, 1), Reason::Order);
        assert_eq!(broken(10, 0), Reason::Order);
        assert_eq!(numbers(&good[..7]).expect_err("short").reason, Reason::Truncated);
    }
}
