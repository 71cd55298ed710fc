//! The parts of a payload: counts, strings and fields of fixed size, in the order in which they are stored.
//!
//! A change of a part that leaves the payload around it well-formed reaches the checks behind the first; a
//! change of any byte seldom does.

/// A part of a payload, with its bytes.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) kind: PieceKind,
    pub(super) bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceKind {
    /// A count, a length or a number in the form of a length.
    Count,
    Text,
    /// A string that is a packed block.
    Block(BlockKind),
    Fixed,
    /// Bytes that were not understood.
    Rest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockKind {
    Listpack,
    Ziplist,
    Zipmap,
    Intset,
}

use BlockKind::{Intset, Listpack, Ziplist, Zipmap};
use PieceKind::{Block, Count, Fixed, Rest, Text};

/// First version of Valkey's own numbering, which gives type 22 another meaning.
const FIRST_VALKEY_VERSION: u16 = 80;

/// Returns the parts behind the type's number.
pub(super) fn split(body: &[u8], version: u16) -> Vec<Piece> {
    let mut splitter = Splitter { body, at: 1, pieces: Vec::new() };
    let of_valkey = version >= FIRST_VALKEY_VERSION;
    // Whatever cannot be followed becomes the rest.
    let _ = splitter.value(body[0], of_valkey);
    splitter.rest();
    splitter.pieces
}

struct Splitter<'a> {
    body: &'a [u8],
    at: usize,
    pieces: Vec<Piece>,
}

impl Splitter<'_> {
    fn value(&mut self, kind: u8, of_valkey: bool) -> Option<()> {
        match kind {
            0 => self.text(Text),
            1 | 2 => self.each(&[Text]),
            3 => self.each_member_of_text(),
            4 => self.each(&[Text, Text]),
            5 => self.each_with_fixed(&[Text], 8),
            9 => self.text(Block(Zipmap)),
            10 | 12 | 13 => self.text(Block(Ziplist)),
            11 => self.text(Block(Intset)),
            14 => self.each(&[Block(Ziplist)]),
            16 | 17 | 20 | 23 => self.text(Block(Listpack)),
            18 => self.each(&[Count, Block(Listpack)]),
            22 if of_valkey => self.each_with_fixed(&[Text, Text], 8),
            22 => self.each(&[Count, Text, Text]),
            24 => {
                self.fixed(8)?;
                self.each(&[Count, Text, Text])
            }
            25 => {
                self.fixed(8)?;
                self.text(Block(Listpack))
            }
            15 => self.stream(1),
            19 => self.stream(2),
            21 => self.stream(3),
            _ => None,
        }
    }

    fn stream(&mut self, form: u8) -> Option<()> {
        self.each(&[Text, Block(Listpack)])?;
        for _ in 0..if form == 1 { 3 } else { 8 } {
            self.count()?;
        }
        for _ in 0..self.count()? {
            self.text(Text)?;
            for _ in 0..if form == 1 { 2 } else { 3 } {
                self.count()?;
            }
            for _ in 0..self.count()? {
                self.fixed(16)?;
                self.fixed(8)?;
                self.count()?;
            }
            for _ in 0..self.count()? {
                self.text(Text)?;
                self.fixed(8)?;
                if form == 3 {
                    self.fixed(8)?;
                }
                for _ in 0..self.count()? {
                    self.fixed(16)?;
                }
            }
        }
        Some(())
    }

    fn each(&mut self, kinds: &[PieceKind]) -> Option<()> {
        self.each_with_fixed(kinds, 0)
    }

    fn each_with_fixed(&mut self, kinds: &[PieceKind], len: usize) -> Option<()> {
        for _ in 0..self.count()? {
            for kind in kinds {
                match kind {
                    Count => _ = self.count()?,
                    kind => self.text(*kind)?,
                }
            }
            if len > 0 {
                self.fixed(len)?;
            }
        }
        Some(())
    }

    fn each_member_of_text(&mut self) -> Option<()> {
        for _ in 0..self.count()? {
            self.text(Text)?;
            let len = usize::from(*self.body.get(self.at)?);
            self.fixed(if len >= 253 { 1 } else { 1 + len })?;
        }
        Some(())
    }

    fn count(&mut self) -> Option<u64> {
        let (value, len) = length(&self.body[self.at..])?;
        self.push(Count, len)?;
        Some(value)
    }

    fn text(&mut self, kind: PieceKind) -> Option<()> {
        let rest = &self.body[self.at..];
        let len = match rest.first()? {
            0xc0 => 2,
            0xc1 => 3,
            0xc2 => 5,
            0xc3 => {
                let (packed, first) = length(&rest[1..])?;
                let (_, second) = length(&rest[1 + first..])?;
                usize::try_from(packed).ok()?.checked_add(1 + first + second)?
            }
            _ => {
                let (len, header) = length(rest)?;
                header.checked_add(usize::try_from(len).ok()?)?
            }
        };
        self.push(kind, len)
    }

    fn fixed(&mut self, len: usize) -> Option<()> {
        self.push(Fixed, len)
    }

    fn push(&mut self, kind: PieceKind, len: usize) -> Option<()> {
        let bytes = self.body.get(self.at..self.at.checked_add(len)?)?.to_vec();
        self.at += len;
        self.pieces.push(Piece { kind, bytes });
        Some(())
    }

    fn rest(&mut self) {
        if self.at < self.body.len() {
            self.pieces.push(Piece { kind: Rest, bytes: self.body[self.at..].to_vec() });
        }
    }
}

/// Returns a length and the number of its bytes.
pub(super) fn length(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    Some(match first {
        0..=0x3f => (u64::from(first), 1),
        0x40..=0x7f => (u64::from(first & 0x3f) << 8 | u64::from(*bytes.get(1)?), 2),
        0x80 => (u64::from(u32::from_be_bytes(bytes.get(1..5)?.try_into().ok()?)), 5),
        0x81 => (u64::from_be_bytes(bytes.get(1..9)?.try_into().ok()?), 9),
        _ => return None,
    })
}

/// Returns the length in its shortest form, or in a form that is `wider` steps longer.
pub(super) fn length_bytes(value: u64, wider: usize) -> Vec<u8> {
    let forms: [Option<Vec<u8>>; 4] = [
        (value < 1 << 6).then(|| vec![value as u8]),
        (value < 1 << 14).then(|| (value as u16 | 0x4000).to_be_bytes().to_vec()),
        u32::try_from(value).ok().map(|value| [&[0x80][..], &value.to_be_bytes()].concat()),
        Some([&[0x81][..], &value.to_be_bytes()].concat()),
    ];
    let mut forms = forms.into_iter().flatten();
    let widest = forms.clone().next_back().expect("64 bits hold any value");
    forms.nth(wider).unwrap_or(widest)
}

/// Returns the content of a string that is stored plain.
pub(super) fn content(text: &[u8]) -> Option<&[u8]> {
    let (len, header) = length(text)?;
    ((text.len() - header) as u64 == len).then(|| &text[header..])
}
