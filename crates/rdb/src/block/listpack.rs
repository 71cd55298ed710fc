//! Listpack: the packed block of Redis 7 and Valkey.
//!
//! ```text
//! total bytes, u32 | elements, u16 (65,535: count them) | element .. | ff
//! element: form and content | how many bytes those are, to be read backwards: 1 to 5 bytes of 7 bits
//!
//!   0vvvvvvv                      0..127              1110llll llllllll  string of up to 4,095 bytes
//!   10llllll                      string, up to 63    11110000 u32       longer string
//!   110vvvvv vvvvvvvv             -4,096..4,095       1111 0001..0100    integer of 16, 24, 32, 64 bits
//! ```
//!
//! Numbers are little-endian, except for numbers that begin in the form's byte.
//!
//! For a backward length that just fits two bytes (16,383), Redis takes three, and so on; Valkey 9.1 takes
//! two. Each refuses the other's form. The cursor reads both; the builder writes the form that readers of the
//! version know.
//!
//! Source: the listpack specification (github.com/antirez/listpack).

use super::{Element, Flaw, fixed, int24, span};
use crate::error::Reason;
use crate::item::Item;

const HEADER: usize = 6;
const END: u8 = 0xff;
/// In the header: this many elements or more.
const UNCOUNTED: u16 = u16::MAX;

/// Reads a block's elements in sequence.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    /// Position of the next element. `HEADER <= at < block.len()`.
    at: usize,
    found: u32,
    announced: u16,
}

impl Cursor {
    pub(crate) fn open(block: &[u8]) -> Result<Cursor, Flaw> {
        let total = u32::from_le_bytes(fixed(block, 0)?);
        let announced = u16::from_le_bytes(fixed(block, 4)?);
        if total as usize != block.len() || block.len() == HEADER {
            return Err(Flaw::new(0, Reason::Count));
        }
        if block[block.len() - 1] != END {
            return Err(Flaw::new(block.len() - 1, Reason::EndMark));
        }
        Ok(Cursor { at: HEADER, found: 0, announced })
    }

    #[inline]
    pub(crate) fn next(&mut self, block: &[u8]) -> Result<Option<Element>, Flaw> {
        let body = &block[..block.len() - 1]; // without the end mark
        if self.at == body.len() {
            return self.end();
        }
        let (element, end) = element(body, self.at)?;
        self.at = behind_back_length(body, end, end - self.at)?;
        self.found += 1; // at most an element per two bytes of at most 4 GiB
        Ok(Some(element))
    }

    fn end(&self) -> Result<Option<Element>, Flaw> {
        let counted = self.announced == UNCOUNTED || u32::from(self.announced) == self.found;
        if counted { Ok(None) } else { Err(Flaw::new(4, Reason::Count)) }
    }

    pub(crate) fn announced(&self) -> u64 {
        u64::from(self.announced)
    }

    /// Position of the next element.
    pub(crate) fn position(&self) -> usize {
        self.at
    }
}

/// Elements that a [`Cursor`] has already checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    at: usize,
}

impl Passed {
    /// Starts at a position of a cursor.
    pub(crate) fn from(at: usize) -> Passed {
        Passed { at }
    }

    #[inline]
    pub(crate) fn next(&mut self, block: &[u8]) -> Element {
        let (element, end) = element(block, self.at).expect("a cursor has passed this element");
        self.at = end + back_length_there(block, end, end - self.at);
        element
    }
}

/// Returns the element that starts at `at`, and the end of its content.
#[inline]
fn element(body: &[u8], at: usize) -> Result<(Element, usize), Flaw> {
    let [form] = fixed(body, at)?;
    let string = |start: usize, len: usize| span(body, start, len).map(|element| (element, start + len));
    let int = |number: i64, len: usize| Ok((Element::Int(number), at + 1 + len));
    match form {
        0x00..=0x7f => int(i64::from(form), 0),
        0x80..=0xbf => string(at + 1, usize::from(form & 0x3f)),
        0xc0..=0xdf => {
            let [low] = fixed(body, at + 1)?;
            let number = i16::from_be_bytes([form << 3 | low >> 5, low << 3]) >> 3; // 13 bits, sign first
            int(i64::from(number), 1)
        }
        0xe0..=0xef => {
            let [low] = fixed(body, at + 1)?;
            string(at + 2, usize::from(form & 0x0f) << 8 | usize::from(low))
        }
        0xf0 => string(at + 5, u32::from_le_bytes(fixed(body, at + 1)?) as usize),
        0xf1 => int(i64::from(i16::from_le_bytes(fixed(body, at + 1)?)), 2),
        0xf2 => int(int24(fixed(body, at + 1)?), 3),
        0xf3 => int(i64::from(i32::from_le_bytes(fixed(body, at + 1)?)), 4),
        0xf4 => int(i64::from_le_bytes(fixed(body, at + 1)?), 8),
        END => Err(Flaw::new(at, Reason::EndMark)),
        _ => Err(Flaw::new(at, Reason::Element)),
    }
}

/// Returns the position behind the backward length at `at`; an error unless it is `len`.
#[inline]
fn behind_back_length(body: &[u8], at: usize, len: usize) -> Result<usize, Flaw> {
    if len < 0x80 && body.get(at) == Some(&(len as u8)) {
        return Ok(at + 1);
    }
    let (expected, size) = back_length(len, back_length_there(body, at, len));
    match body.get(at..at + size) {
        Some(found) if *found == expected[..size] => Ok(at + size),
        Some(_) => Err(Flaw::new(at, Reason::BackLength)),
        None => Err(Flaw::new(at, Reason::Truncated)),
    }
}

/// Returns the backward length: 7 bits a byte, the highest first. All bytes but the first have the top bit
/// set: a backward reader goes on.
fn back_length(len: usize, size: usize) -> ([u8; 5], usize) {
    let mut bytes = [0; 5];
    for (index, byte) in bytes[..size].iter_mut().enumerate() {
        let seven = (len >> (7 * (size - 1 - index))) as u8 & 0x7f;
        *byte = if index == 0 { seven } else { seven | 0x80 };
    }
    (bytes, size)
}

/// The size in Redis, which takes a byte more than necessary for the greatest lengths of two, three and four
/// bytes.
#[inline]
fn back_length_bytes(len: usize) -> usize {
    match len {
        0..0x80 => 1,
        0x80..0x3fff => 2,
        0x3fff..0x1f_ffff => 3,
        0x1f_ffff..0xfff_ffff => 4,
        _ => 5,
    }
}

/// The size in Valkey 9.1.
fn narrow_back_length_bytes(len: usize) -> usize {
    back_length_bytes(len) - usize::from(matches!(len, 0x3fff | 0x1f_ffff | 0xfff_ffff))
}

/// Size of the backward length at `at`, which should be `len`. The two forms differ in their first byte.
#[inline]
fn back_length_there(block: &[u8], at: usize, len: usize) -> usize {
    if block.get(at) == Some(&0) { back_length_bytes(len) } else { narrow_back_length_bytes(len) }
}

/// Upper bound of a string's size with form and backward length: to check whether it fits.
pub(crate) fn size_max(len: usize) -> usize {
    let content = match len {
        0..64 => 1 + len,
        64..4096 => 2 + len,
        _ => 5 + len,
    };
    content + back_length_bytes(content)
}

/// Bytes of a block without elements: its header and end mark.
pub const EMPTY: usize = HEADER + 1;

/// Bytes that an item takes in a block of Redis or Valkey, with its form and backward length. Items that read
/// as integers are stored as integers.
pub fn size(item: Item<'_>) -> usize {
    let content = match (item.int(), item) {
        (Some(0..=127), _) => 1,
        (Some(-4_096..=4_095), _) => 2,
        (Some(-0x8000..=0x7fff), _) => 3,
        (Some(-0x80_0000..=0x7f_ffff), _) => 4,
        (Some(-0x8000_0000..=0x7fff_ffff), _) => 5,
        (None, Item::Bytes(bytes)) => return size_max(bytes.len()),
        (Some(_), _) | (None, Item::Int(_)) => 9,
    };
    content + back_length_bytes(content)
}

/// Whether Redis and Valkey write a string of this length in forms that the other refuses. The encoder then
/// avoids a listpack.
pub(crate) fn is_disputed(len: usize) -> bool {
    let content = len.saturating_add(5);
    back_length_bytes(content) != narrow_back_length_bytes(content)
}

/// Builds a block. The memory is kept for the next block.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    /// Elements without header and end mark.
    body: Vec<u8>,
    elements: u32,
    /// Backward lengths are Valkey's.
    narrow: bool,
}

impl Builder {
    /// `narrow`: for readers of Valkey's own versions; otherwise for Redis.
    pub(crate) fn new(narrow: bool) -> Builder {
        Builder { narrow, ..Builder::default() }
    }

    /// Current length of the block in bytes.
    pub(crate) fn len(&self) -> usize {
        HEADER + self.body.len() + 1
    }

    pub(crate) fn elements(&self) -> u32 {
        self.elements
    }

    pub(crate) fn clear(&mut self) {
        self.body.clear();
        self.elements = 0;
    }

    /// Stores an item that reads as an integer as an integer: Redis compares elements in this form.
    pub(crate) fn push(&mut self, item: Item<'_>) {
        let start = self.body.len();
        match (item.int(), item) {
            (Some(number), _) => self.int(number),
            (None, Item::Bytes(bytes)) => self.string(bytes),
            (None, Item::Int(_)) => unreachable!("an integer is one"),
        }
        let len = self.body.len() - start;
        let size = if self.narrow { narrow_back_length_bytes(len) } else { back_length_bytes(len) };
        let (bytes, size) = back_length(len, size);
        self.body.extend_from_slice(&bytes[..size]);
        self.elements += 1;
    }

    /// Appends the elements of another block.
    pub(crate) fn append(&mut self, other: &Builder) {
        self.body.extend_from_slice(&other.body);
        self.elements += other.elements;
    }

    fn int(&mut self, number: i64) {
        let wide = number.to_le_bytes();
        match number {
            0..=127 => self.body.push(number as u8),
            -4_096..=4_095 => self.body.extend_from_slice(&[0xc0 | (number >> 8) as u8 & 0x1f, number as u8]),
            -0x8000..=0x7fff => self.form(0xf1, &wide[..2]),
            -0x80_0000..=0x7f_ffff => self.form(0xf2, &wide[..3]),
            -0x8000_0000..=0x7fff_ffff => self.form(0xf3, &wide[..4]),
            _ => self.form(0xf4, &wide),
        }
    }

    fn string(&mut self, bytes: &[u8]) {
        match bytes.len() {
            len @ 0..64 => self.body.push(0x80 | len as u8),
            len @ 64..4096 => self.body.extend_from_slice(&[0xe0 | (len >> 8) as u8, len as u8]),
            len => self.form(0xf0, &(len as u32).to_le_bytes()),
        }
        self.body.extend_from_slice(bytes);
    }

    fn form(&mut self, form: u8, content: &[u8]) {
        self.body.push(form);
        self.body.extend_from_slice(content);
    }

    /// Writes the whole block, at most 4 GiB, to `out`, which is emptied first.
    pub(crate) fn block(&self, out: &mut Vec<u8>) {
        out.clear();
        out.reserve(self.len());
        let total = u32::try_from(self.len()).expect("whoever fills a block keeps it below 4 GiB");
        let elements = u16::try_from(self.elements).unwrap_or(UNCOUNTED);
        out.extend_from_slice(&total.to_le_bytes());
        out.extend_from_slice(&elements.to_le_bytes());
        out.extend_from_slice(&self.body);
        out.push(END);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(items: &[Item<'_>]) -> Vec<u8> {
        let (mut builder, mut out) = (Builder::default(), Vec::new());
        items.iter().for_each(|item| builder.push(*item));
        builder.block(&mut out);
        assert_eq!(out.len(), builder.len());
        out
    }

    fn items(block: &[u8]) -> Result<Vec<Vec<u8>>, Flaw> {
        let mut cursor = Cursor::open(block)?;
        let (mut passed, mut all) = (Passed::from(cursor.position()), Vec::new());
        while let Some(element) = cursor.next(block)? {
            assert_eq!(passed.next(block), element);
            all.push(element.item(block).to_vec());
        }
        Ok(all)
    }

    fn reason(block: &[u8]) -> Reason {
        items(block).expect_err("it is broken").reason
    }

    #[test]
    fn every_form_and_its_bounds() {
        let numbers = [0, 127, 128, -1, 4_095, 4_096, -4_096, -4_097, 32_767, 32_768, -32_768, -32_769]
            .into_iter()
            .chain([
                8_388_607,
                8_388_608,
                -8_388_608,
                -8_388_609,
                1 << 31,
                (1 << 31) - 1,
                -(1 << 31),
                i64::MIN,
            ])
            .chain([-(1 << 31) - 1, i64::MAX]);
        for number in numbers {
            assert_eq!(items(&block(&[number.into()])), Ok(vec![number.to_string().into_bytes()]));
        }
        for len in [
            0, 1, 63, 64, 4_095, 4_096, 125, 126, 127, 128, 16_377, 16_378, 16_379, 16_384, 2_097_145,
            2_097_146, 2_097_147,
        ] {
            let string = vec![b'x'; len];
            let block = block(&[Item::Bytes(&string), Item::Bytes(b"end")]);
            assert_eq!(items(&block), Ok(vec![string, b"end".to_vec()]));
            assert_eq!(block.len(), HEADER + size_max(len) + size_max(3) + 1);
        }
        // Lengths, form included, at the limits of two and three bytes: there Redis takes one byte more.
        for (len, back) in [(16_377, 2), (16_378, 3), (2_097_145, 3), (2_097_146, 4)] {
            assert_eq!(size_max(len), 5 + len + back, "{len}");
            assert_eq!(is_disputed(len), len % 2 == 0 && back > 2, "{len}");
        }
    }

    #[test]
    fn the_divergent_forms_of_redis_and_valkey_are_read() {
        for (len, back) in [(16_378, &b"\x7f\xff"[..]), (2_097_146, b"\x7f\xff\xff")] {
            let string = vec![b'x'; len];
            for (narrow, expected) in [(false, [b"\0\xff", &back[1..]].concat()), (true, back.to_vec())] {
                let (mut builder, mut out) = (Builder::new(narrow), Vec::new());
                builder.push(Item::Bytes(&string));
                builder.push(Item::Bytes(b"end"));
                builder.block(&mut out);
                let at = HEADER + 5 + len;
                assert_eq!(out[at..at + expected.len()], expected);
                assert_eq!(items(&out), Ok(vec![string.clone(), b"end".to_vec()]));
                out[at + 1] ^= 1;
                assert_eq!(reason(&out), Reason::BackLength);
            }
        }
    }

    #[test]
    fn sizes_are_those_of_blocks() {
        let long = "x".repeat(5_000);
        let texts =
            ["", "0", "127", "128", "-1", "-4096", "4095", "4096", "-32768", "32768", "8388607", "-8388609"];
        let more =
            ["2147483647", "2147483648", "-9223372036854775808", "007", "abc", &long[..63], &long[..64]];
        for text in texts.iter().chain(&more).chain(&[&long[..126], &long[..4_095], &long]) {
            let item = Item::Bytes(text.as_bytes());
            assert_eq!(EMPTY + size(item), block(&[item]).len(), "{text}");
        }
    }

    #[test]
    fn integers_take_no_more_than_they_need() {
        for (bound, before, behind) in
            [(127, 1, 2), (4_095, 2, 3), (32_767, 3, 4), (8_388_607, 4, 5), (2_147_483_647, 5, 9)]
        {
            let size = |number: i64| block(&[number.into()]).len() - HEADER - 1 - 1;
            assert_eq!((size(bound), size(bound + 1)), (before, behind), "{bound}");
            if bound > 127 {
                assert_eq!((size(-bound - 1), size(-bound - 2)), (before, behind), "-{bound}");
            }
        }
    }

    #[test]
    fn bytes_as_redis_writes_them() {
        // RPUSH l a 1 and thirty b, DUMP l, unpacked.
        let redis =
            [&b"\x2c\x00\x00\x00\x03\x00\x81a\x02\x01\x01\x9e"[..], &[b'b'; 30], b"\x1f\xff"].concat();
        assert_eq!(block(&[Item::Bytes(b"a"), Item::Bytes(b"1"), Item::Bytes(&[b'b'; 30])]), redis);
    }

    #[test]
    fn flaws_are_named() {
        let good = block(&[Item::Bytes(b"abc"), Item::Int(5_000)]);
        let broken = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            reason(&bytes)
        };
        assert_eq!(broken(0, 9), Reason::Count);
        assert_eq!(broken(4, 3), Reason::Count);
        assert_eq!(broken(6, 0xbf), Reason::Truncated);
        assert_eq!(broken(6, 0xf5), Reason::Element);
        assert_eq!(broken(6, 0xff), Reason::EndMark);
        assert_eq!(broken(10, 5), Reason::BackLength);
        assert_eq!(broken(good.len() - 1, 0), Reason::EndMark);
        assert_eq!(reason(&good[..6]), Reason::Count);
        assert_eq!(reason(&good[..5]), Reason::Truncated);
        let mut uncounted = good.clone();
        uncounted[4..6].copy_from_slice(&[0xff, 0xff]);
        assert_eq!(items(&uncounted).map(|items| items.len()), Ok(2));
    }
}
