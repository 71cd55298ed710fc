//! Ziplist: the packed block before Redis 7. Read only.
//!
//! ```text
//! total bytes, u32 | offset of the last element, u32 | elements, u16 (65,535: count them) | element .. | ff
//! element: length of the previous element (a byte, or fe and u32) | form | content
//!
//!   00llllll                string, up to 63 bytes          11000000   integer of 16 bits
//!   01llllll llllllll       string, up to 16,383 bytes      11010000   of 32
//!   10...... 4 bytes        longer string                   11100000   of 64
//!   1111 0001..1101         0..12                           11110000   of 24
//!                                                           11111110   of 8
//! ```
//!
//! Lengths of strings are big-endian, all other numbers little-endian.
//!
//! The length before an element may take five bytes although a single byte would do: Redis does not shrink
//! it.

use super::{Element, Flaw, fixed, int24, span};
use crate::error::Reason;

const HEADER: usize = 10;
const END: u8 = 0xff;
const UNCOUNTED: u16 = u16::MAX;
const LONG_BEFORE: u8 = 0xfe;

#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    /// Position of the next element. `HEADER <= at < block.len()`.
    at: usize,
    /// Position of the previous element; `at` before the first.
    before: usize,
    found: u32,
    announced: u16,
    tail: usize,
}

impl Cursor {
    pub(crate) fn open(block: &[u8]) -> Result<Cursor, Flaw> {
        let total = u32::from_le_bytes(fixed(block, 0)?);
        let tail = u32::from_le_bytes(fixed(block, 4)?) as usize;
        let announced = u16::from_le_bytes(fixed(block, 8)?);
        if total as usize != block.len() || block.len() == HEADER {
            return Err(Flaw::new(0, Reason::Count));
        }
        if block[block.len() - 1] != END {
            return Err(Flaw::new(block.len() - 1, Reason::EndMark));
        }
        Ok(Cursor { at: HEADER, before: HEADER, found: 0, announced, tail })
    }

    pub(crate) fn next(&mut self, block: &[u8]) -> Result<Option<Element>, Flaw> {
        let body = &block[..block.len() - 1]; // without the end mark
        if self.at == body.len() {
            return self.end();
        }
        let form_at = self.behind_length_before(body)?;
        let (element, end) = element(body, form_at)?;
        (self.before, self.at) = (self.at, end);
        self.found += 1; // at most an element per two bytes of at most 4 GiB
        Ok(Some(element))
    }

    fn behind_length_before(&self, body: &[u8]) -> Result<usize, Flaw> {
        let (len, end) = match fixed(body, self.at)? {
            [END] => return Err(Flaw::new(self.at, Reason::EndMark)),
            [LONG_BEFORE] => (u32::from_le_bytes(fixed(body, self.at + 1)?), self.at + 5),
            [len] => (u32::from(len), self.at + 1),
        };
        if len as usize == self.at - self.before {
            Ok(end)
        } else {
            Err(Flaw::new(self.at, Reason::BackLength))
        }
    }

    fn end(&self) -> Result<Option<Element>, Flaw> {
        if self.announced != UNCOUNTED && u32::from(self.announced) != self.found {
            return Err(Flaw::new(8, Reason::Count));
        }
        if self.tail == self.before { Ok(None) } else { Err(Flaw::new(4, Reason::BackLength)) }
    }

    pub(crate) fn announced(&self) -> u64 {
        u64::from(self.announced)
    }
}

/// Returns the element whose form stands at `at`, and its end.
fn element(body: &[u8], at: usize) -> Result<(Element, usize), Flaw> {
    let [form] = fixed(body, at)?;
    let string = |start: usize, len: usize| span(body, start, len).map(|element| (element, start + len));
    let int = |number: i64, len: usize| Ok((Element::Int(number), at + 1 + len));
    match form {
        0x00..=0x3f => string(at + 1, usize::from(form)),
        0x40..=0x7f => {
            let [low] = fixed(body, at + 1)?;
            string(at + 2, usize::from(form & 0x3f) << 8 | usize::from(low))
        }
        0x80 => string(at + 5, u32::from_be_bytes(fixed(body, at + 1)?) as usize),
        0xc0 => int(i64::from(i16::from_le_bytes(fixed(body, at + 1)?)), 2),
        0xd0 => int(i64::from(i32::from_le_bytes(fixed(body, at + 1)?)), 4),
        0xe0 => int(i64::from_le_bytes(fixed(body, at + 1)?), 8),
        0xf0 => int(int24(fixed(body, at + 1)?), 3),
        0xf1..=0xfd => int(i64::from(form & 0x0f) - 1, 0),
        0xfe => int(i64::from(i8::from_le_bytes(fixed(body, at + 1)?)), 1),
        _ => Err(Flaw::new(at, Reason::Element)),
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

    /// Returns a block of elements given as form and content.
    fn block(elements: &[Vec<u8>]) -> Vec<u8> {
        let mut out = vec![0; HEADER];
        let (mut before, mut tail) = (0, HEADER);
        for element in elements {
            tail = out.len();
            match before {
                0..254 => out.push(before as u8),
                _ => out.extend_from_slice(&[&[LONG_BEFORE][..], &(before as u32).to_le_bytes()].concat()),
            }
            out.extend_from_slice(element);
            before = out.len() - tail;
        }
        out.push(END);
        let total = out.len() as u32;
        out[..4].copy_from_slice(&total.to_le_bytes());
        out[4..8].copy_from_slice(&(tail as u32).to_le_bytes());
        out[8..10].copy_from_slice(&(elements.len() as u16).to_le_bytes());
        out
    }

    #[test]
    fn every_form() {
        let long = |form: &[u8], len: usize| [form, &vec![b'x'; len]].concat();
        let elements = [
            b"\x02ab".to_vec(),
            long(b"\x40\x64", 100),
            long(b"\x41\x2c", 300),
            long(b"\x80\x00\x00\x40\x00", 16_384),
            b"\xc0\x00\x80".to_vec(),
            b"\xd0\x00\x00\x00\x80".to_vec(),
            b"\xe0\xff\xff\xff\xff\xff\xff\xff\x7f".to_vec(),
            b"\xf0\x00\x00\x80".to_vec(),
            b"\xfe\x80".to_vec(),
            b"\xf1".to_vec(),
            b"\xfd".to_vec(),
        ];
        let found = items(&block(&elements)).expect("well formed");
        let lens: Vec<usize> = found.iter().take(4).map(Vec::len).collect();
        assert_eq!(lens, [2, 100, 300, 16_384]);
        let numbers = ["-32768", "-2147483648", "9223372036854775807", "-8388608", "-128", "0", "12"];
        assert_eq!(found[4..].iter().map(|text| String::from_utf8_lossy(text)).collect::<Vec<_>>(), numbers);
        assert_eq!(items(&block(&[])), Ok(vec![]));
    }

    #[test]
    fn bytes_as_redis_writes_them() {
        // HSET h f v g 12, DUMP h, on Redis 6.2.
        let redis = b"\x16\x00\x00\x00\x13\x00\x00\x00\x04\x00\x00\x01f\x03\x01v\x03\x01g\x03\xfd\xff";
        assert_eq!(items(redis), Ok(vec![b"f".to_vec(), b"v".to_vec(), b"g".to_vec(), b"12".to_vec()]));
    }

    #[test]
    fn flaws_are_named() {
        let good = block(&[b"\x03abc".to_vec(), b"\xfe\x40".to_vec()]);
        let broken = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            items(&bytes).expect_err("it is broken").reason
        };
        assert_eq!(broken(0, 9), Reason::Count);
        assert_eq!(broken(4, 11), Reason::BackLength);
        assert_eq!(broken(8, 3), Reason::Count);
        assert_eq!(broken(10, 1), Reason::BackLength);
        assert_eq!(broken(10, 0xff), Reason::EndMark);
        assert_eq!(broken(11, 0x3f), Reason::Truncated);
        assert_eq!(broken(15, 0xfe), Reason::Truncated);
        assert_eq!(broken(15, 4), Reason::BackLength);
        assert_eq!(broken(16, 0xff), Reason::Element);
        assert_eq!(broken(good.len() - 1, 0), Reason::EndMark);
    }
}
