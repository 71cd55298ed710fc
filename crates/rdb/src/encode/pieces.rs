//! Strings in pieces: compressed piece by piece, so that a string of any size takes little memory.
//!
//! The compressed length comes first, so the pieces are walked twice. In the first walk a piece of zeros
//! costs only a number, and the compressed form of other pieces is kept, up to [`KEPT_MAX`]; the second walk
//! compresses the rest again. No piece refers back to its predecessor, so both walks give the same bytes. The
//! price is a little less compression: an LZF copy reaches back 8 KiB at most, and a piece is eight times as
//! long.
//!
//! In a string longer than [`DENSE_MAX`], only pieces that are mostly zeros are compressed. LZF takes 2.5 ms
//! a megabyte for text and next to nothing for zeros. A string of 400 MB of JSON would delay a snapshot's
//! other values for 2 s instead of 0.3 s, whereas sparse bitmaps would grow without bound if written in full.

use std::ops::Range;

use super::{COMPRESSED_MIN, COMPRESSION_GAIN_MIN, Out, Strings, put_length};
use crate::lzf::{self, Compressor};

/// Bound of the compressed pieces kept for the second walk, in bytes: enough for 40 MB of JSON.
const KEPT_MAX: usize = if cfg!(test) { 1 << 20 } else { 16 << 20 };

/// Longest string whose pieces are all compressed, in bytes: 40 ms of work.
const DENSE_MAX: usize = 16 << 20;

/// A part of a string.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    Bytes(&'a [u8]),
    /// This many zeros.
    Zeros(usize),
}

/// The form of a piece inside a compressed string.
enum CompressedPiece {
    /// Zeros, or literals without compression.
    AsItIs,
    /// Compressed and kept.
    Kept(Range<usize>),
    /// Compressed to this many bytes, and to be compressed again.
    Anew(usize),
}

/// The result of the first walk.
#[derive(Default)]
struct Plan {
    pieces: Vec<CompressedPiece>,
    kept: Vec<u8>,
    /// Length of the whole compressed form in bytes.
    len: usize,
}

/// A source of zeros for plain strings.
static ZEROS: [u8; 4096] = [0; 4096];

impl Piece<'_> {
    /// Number of bytes that the piece stands for.
    #[allow(clippy::len_without_is_empty, reason = "the empty piece is no special one")]
    pub fn len(&self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Zeros(len) => *len,
        }
    }
}

impl Strings {
    /// Writes a string of `len` bytes, compressed if that saves bytes.
    pub(super) fn put_pieces<'p>(
        &mut self,
        out: &mut impl Out,
        len: usize,
        pieces: impl Iterator<Item = Piece<'p>> + Clone,
    ) {
        assert_eq!(len, pieces.clone().map(|piece| piece.len()).sum(), "the pieces are as long as was said");
        let pieces = pieces.filter(|piece| piece.len() > 0);
        // A hole costs no time to compress, and written in full it could fill a disk.
        let has_zeros = || pieces.clone().any(|piece| matches!(piece, Piece::Zeros(_)));
        if len >= COMPRESSED_MIN && (!self.plain || has_zeros()) {
            let plan = self.plan(pieces.clone(), len <= DENSE_MAX);
            if plan.len <= len - COMPRESSION_GAIN_MIN {
                return self.put_planned(out, len, pieces, &plan);
            }
        }
        put_length(out, len as u64);
        pieces.for_each(|piece| put_plain(out, piece));
    }

    fn plan<'p>(&mut self, pieces: impl Iterator<Item = Piece<'p>>, packs_all: bool) -> Plan {
        let mut plan = Plan::default();
        for piece in pieces {
            let packed = match piece {
                Piece::Zeros(len) => {
                    plan.len += lzf::zeros_len(len);
                    CompressedPiece::AsItIs
                }
                Piece::Bytes(bytes) if !packs_all && !is_mostly_zeros(bytes) => {
                    plan.len += lzf::literals_len(bytes.len());
                    CompressedPiece::AsItIs
                }
                Piece::Bytes(bytes) => match self.compressed(bytes) {
                    None => {
                        plan.len += lzf::literals_len(bytes.len());
                        CompressedPiece::AsItIs
                    }
                    Some(compressed) => {
                        plan.len += compressed.len();
                        plan.keep(compressed)
                    }
                },
            };
            plan.pieces.push(packed);
        }
        plan
    }

    fn compressed(&mut self, bytes: &[u8]) -> Option<&[u8]> {
        if self.plain {
            return None;
        }
        self.compressor.get_or_insert_with(Compressor::new).compress(bytes, &mut self.scratch, bytes.len())
    }

    fn put_planned<'p>(
        &mut self,
        out: &mut impl Out,
        len: usize,
        pieces: impl Iterator<Item = Piece<'p>>,
        plan: &Plan,
    ) {
        out.put(&[0xc3]);
        put_length(out, plan.len as u64);
        put_length(out, len as u64);
        for (piece, packed) in pieces.zip(&plan.pieces) {
            match (piece, packed) {
                (Piece::Zeros(len), _) => lzf::zeros(len, |bytes| out.put(bytes)),
                (Piece::Bytes(_), CompressedPiece::Kept(range)) => out.put(&plan.kept[range.clone()]),
                (Piece::Bytes(bytes), CompressedPiece::AsItIs) => {
                    out.put(lzf::literals(bytes, &mut self.scratch))
                }
                (Piece::Bytes(bytes), CompressedPiece::Anew(len)) => {
                    let compressed = self.compressed(bytes).filter(|compressed| compressed.len() == *len);
                    out.put(compressed.expect("the same bytes compress to the same"));
                }
            }
        }
    }
}

impl Plan {
    fn keep(&mut self, compressed: &[u8]) -> CompressedPiece {
        if self.kept.len() + compressed.len() > KEPT_MAX {
            return CompressedPiece::Anew(compressed.len());
        }
        let start = self.kept.len();
        self.kept.extend_from_slice(compressed);
        CompressedPiece::Kept(start..self.kept.len())
    }
}

/// Whether contiguous zeros make up three quarters of the bytes.
fn is_mostly_zeros(bytes: &[u8]) -> bool {
    let (words, _) = bytes.as_chunks::<8>();
    let zeros = words.iter().filter(|word| **word == [0; 8]).count();
    4 * zeros >= 3 * words.len()
}

fn put_plain(out: &mut impl Out, piece: Piece<'_>) {
    match piece {
        Piece::Bytes(bytes) => out.put(bytes),
        Piece::Zeros(mut left) => {
            while left > 0 {
                let now = left.min(ZEROS.len());
                out.put(&ZEROS[..now]);
                left -= now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::Random;

    use super::*;
    use crate::{Decoder, Encoder, Object, Slice, Version};

    const CHUNK: usize = 64 * 1024;

    /// Returns the encoded size of the pieces, after it has read them back.
    fn written(pieces: &[Piece<'_>], compresses: bool) -> usize {
        let mut encoder = Encoder::new(Vec::new(), Version::V10);
        if !compresses {
            encoder = encoder.without_compression();
        }
        encoder.string_in_pieces(pieces.iter().map(Piece::len).sum(), pieces.iter().copied());
        let written = encoder.into_out();
        let mut plain = Vec::new();
        pieces.iter().for_each(|piece| put_plain(&mut plain, *piece));
        let mut decoder = Decoder::new(Slice::new(&written), 10);
        let read = match decoder.object().expect("it was just written") {
            Object::String(string) => string.to_vec(),
            Object::Long(mut string) => {
                let mut read = Vec::new();
                while let Some(piece) = string.next().expect("it was just written") {
                    read.extend_from_slice(piece);
                }
                read
            }
            _ => panic!("a string"),
        };
        assert!(read == plain);
        written.len()
    }

    #[test]
    fn pieces_are_compressed_independently() {
        let mut random = Random::new(3);
        let noise: Vec<u8> = (0..CHUNK).map(|_| random.draw() as u8).collect();
        let text = b"what lies in pieces ".repeat(CHUNK / 20);
        let (noise, text) = (Piece::Bytes(&noise), Piece::Bytes(&text));
        let zeros = Piece::Zeros(CHUNK);
        assert!(written(&[text, text, Piece::Bytes(b"end")], true) < 3_000);
        assert!(
            written(&[zeros, text, noise, Piece::Bytes(b""), zeros, Piece::Zeros(1)], true) < CHUNK + 6_000
        );
        // Pieces without repetitions are written plain.
        assert_eq!(written(&[noise, noise], true), 1 + 5 + 2 * CHUNK);
        assert_eq!(written(&[text, text], false), 1 + 5 + 2 * text.len());
        assert!((text.len()..text.len() + 4_000).contains(&written(&[zeros, text], false)));
        assert_eq!(written(&[Piece::Bytes(b"a"), Piece::Zeros(1)], true), 1 + 1 + 2);
    }

    #[test]
    fn output_over_the_memory_bound_is_compressed_twice() {
        let mut random = Random::new(4);
        let letters: Vec<Vec<u8>> =
            (0..20).map(|_| (0..4 * CHUNK).map(|_| b"abcd"[random.below(4)]).collect()).collect();
        let pieces: Vec<Piece<'_>> = letters.iter().map(|bytes| Piece::Bytes(bytes)).collect();
        let len = written(&pieces, true);
        assert!((KEPT_MAX..2 * CHUNK * 20).contains(&len), "{len}");
    }

    #[test]
    fn only_runs_of_zeros_are_compressed_in_very_long_strings() {
        let text = b"what lies in pieces ".repeat(CHUNK / 20);
        let mut sparse = vec![0; CHUNK];
        sparse.iter_mut().step_by(1_000).for_each(|byte| *byte = 1);
        let pieces = DENSE_MAX / CHUNK;
        assert!(written(&vec![Piece::Bytes(&text); pieces], true) < DENSE_MAX / 20);
        let (dense, zeros) = (vec![Piece::Bytes(&text); pieces + 2], vec![Piece::Bytes(&sparse); pieces + 2]);
        assert_eq!(written(&dense, true), 1 + 5 + dense.len() * text.len());
        assert!(written(&zeros, true) < DENSE_MAX / 20);
        let half = written(&[dense, zeros].concat(), true);
        assert!((DENSE_MAX..DENSE_MAX + DENSE_MAX / 10).contains(&half), "{half}");
    }

    #[test]
    fn a_hole_takes_little_time_and_memory() {
        struct Count(usize);
        impl Out for Count {
            fn put(&mut self, bytes: &[u8]) {
                self.0 += bytes.len();
            }
        }
        let mut encoder = Encoder::new(Count(0), Version::V10);
        let holes = 1 << 20; // 64 GiB
        encoder.string_in_pieces(holes * CHUNK, std::iter::repeat_n(Piece::Zeros(CHUNK), holes));
        assert!(encoder.into_out().0 < holes * 750);
    }
}
