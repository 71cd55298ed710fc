//! Zipmap: small hashes before Redis 2.6. Read only.
//!
//! ```text
//! pairs, a byte (254: count them) | field | value | .. | ff
//! field: length (a byte, or fe and u32) | bytes
//! value: length | number of unused bytes, a byte | bytes | unused bytes
//! ```
//!
//! The cursor refuses a length below 254 in the long form. Redis' own reader takes the size of the short form
//! when it walks over such an element, and so reads bytes that its validation did not check
//! (CVE-2026-25243).

use super::{Element, Flaw, fixed, span};
use crate::error::Reason;

const END: u8 = 0xff;
const LONG: u8 = 0xfe;

#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    /// Position of the next element. `1 <= at < block.len()`.
    at: usize,
    /// Fields and values together.
    found: u32,
    pairs: u8,
}

impl Cursor {
    pub(crate) fn open(block: &[u8]) -> Result<Cursor, Flaw> {
        let [pairs] = fixed(block, 0)?;
        // Lengths have 32 bits, so no element of a block within this bound can end beyond a `u32`.
        if block.len() == 1 || block.len() > u32::MAX as usize {
            return Err(Flaw::new(0, Reason::Count));
        }
        if pairs == END || block[block.len() - 1] != END {
            return Err(Flaw::new(block.len() - 1, Reason::EndMark));
        }
        Ok(Cursor { at: 1, found: 0, pairs })
    }

    pub(crate) fn next(&mut self, block: &[u8]) -> Result<Option<Element>, Flaw> {
        let body = &block[..block.len() - 1]; // without the end mark
        if self.at == body.len() {
            let counted = self.pairs == LONG || u32::from(self.pairs) == self.found / 2;
            return if counted { Ok(None) } else { Err(Flaw::new(0, Reason::Count)) };
        }
        let (len, after) = match fixed(body, self.at)? {
            [END] => return Err(Flaw::new(self.at, Reason::EndMark)),
            [LONG] => match u32::from_le_bytes(fixed(body, self.at + 1)?) {
                len if len < u32::from(LONG) => return Err(Flaw::new(self.at, Reason::Element)),
                len => (len as usize, self.at + 5),
            },
            [len] => (usize::from(len), self.at + 1),
        };
        let (start, unused) = match self.found % 2 {
            0 => (after, 0),
            _ => (after + 1, usize::from(fixed::<1>(body, after)?[0])),
        };
        let element = span(body, start, len)?;
        span(body, start + len, unused)?;
        self.at = start + len + unused;
        self.found += 1;
        Ok(Some(element))
    }

    pub(crate) fn announced(&self) -> u64 {
        2 * u64::from(self.pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(block: &[u8]) -> Result<Vec<Vec<u8>>, Flaw> {
        let (mut cursor, mut all) = (Cursor::open(block)?, Vec::new());
        while let Some(element) = cursor.next(block)? {
            all.push(element.item(block).to_vec());
        }
        Ok(all)
    }

    #[test]
    fn lengths_of_both_forms_and_unused_bytes() {
        let long = [b'y'; 300];
        let block =
            [&b"\x02\x03foo\x03\x02bar..\x05hello\xfe\x2c\x01\x00\x00\x00"[..], &long, b"\xff"].concat();
        assert_eq!(
            items(&block),
            Ok(vec![b"foo".to_vec(), b"bar".to_vec(), b"hello".to_vec(), long.to_vec()])
        );
        assert_eq!(items(b"\x00\xff"), Ok(vec![]));
    }

    #[test]
    fn flaws_are_named() {
        let reason = |block: &[u8]| items(block).expect_err("it is broken").reason;
        assert_eq!(reason(b"\x02\x01a\x01\x00b\xff"), Reason::Count);
        assert_eq!(reason(b"\x01\x01a\x01\x01b\xff"), Reason::Truncated);
        assert_eq!(reason(b"\x01\x09a\x01\x00b\xff"), Reason::Truncated);
        assert_eq!(reason(b"\x01\x01a\x01\x00b"), Reason::EndMark);
        assert_eq!(reason(b"\x01\x01a\xff\x00b\xff"), Reason::EndMark);
        assert_eq!(reason(b"\xff\x01a\x01\x00b\xff"), Reason::EndMark);
        // A length in the long form that has a short form.
        assert_eq!(reason(b"\x01\xfe\x01\x00\x00\x00a\x01\x00b\xff"), Reason::Element);
        assert_eq!(reason(b"\x01\x01a\xfe\x01\x00\x00\x00\x00b\xff"), Reason::Element);
        assert_eq!(reason(b"\x01"), Reason::Count);
        assert_eq!(reason(b""), Reason::Truncated);
    }
}
