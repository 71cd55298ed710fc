//! LZF, the compression inside RDB strings: literal runs of up to 32 bytes, and copies of 3 to 264 bytes from at most
//! 8 KiB back. About as fast as a few passes over the data, and worth it for text alone.
//!
//! ```text
//! 000LLLLL                     L + 1 literal bytes follow
//! LLLooooo oooooooo            copy L + 2 bytes (L: 1..6) from o + 1 bytes back
//! 111ooooo LLLLLLLL oooooooo   copy L + 9 bytes
//! ```
//!
//! Own code, since the crate `lzf` is deprecated by its author: it allocates what a header announces, and a table per
//! call. Here the table is kept, and entries of earlier inputs are told apart by a base that only grows, so that
//! nothing is cleared per string and the output depends on nothing but the input.
//!
//! Source: the format as Marc Lehmann's liblzf documents it.

/// Positions that are remembered, by a hash of four bytes. As many as a copy reaches back: 32 KiB, a first-level cache.
const TABLE: usize = 1 << TABLE_BITS;
const TABLE_BITS: u32 = 13;

const LITERALS_MAX: usize = 32;
const COPY_MAX: usize = 264;
/// Bytes that a copy is written with at most.
const COPY_LEN_MAX: usize = 3;
const BACK_MAX: usize = 1 << 13;

/// The most that a compressed byte stands for: three bytes that copy 264.
const RATIO_MAX: usize = COPY_MAX / 3;

/// Longest input; with it a position plus the base fits its 32 bits.
const INPUT_MAX: usize = 1 << 31;

pub(crate) struct Compressor {
    /// `base` plus a position in the input; anything below `base` is of an earlier one.
    positions: Box<[u32; TABLE]>,
    base: u32,
}

impl Compressor {
    pub(crate) fn new() -> Compressor {
        Compressor { positions: Box::new([0; TABLE]), base: 1 }
    }

    /// The compressed form, which lies in `scratch`; `None`: it would have more than `len_max` bytes.
    pub(crate) fn compress<'s>(
        &mut self,
        input: &[u8],
        scratch: &'s mut Vec<u8>,
        len_max: usize,
    ) -> Option<&'s [u8]> {
        if input.len() > INPUT_MAX {
            return None;
        }
        let room = len_max + COPY_LEN_MAX + LITERALS_MAX;
        if scratch.len() < room {
            scratch.resize(room, 0);
        }
        let (out, mut end) = (&mut scratch[..room], 0);
        let base = self.base_for(input.len());
        let (mut at, mut literals) = (0, 0); // what stands before `literals` has been written
        while let Some(four) = four_at(input, at) {
            let start = self.exchange(base, four, at).filter(|start| is_copy(input, *start, four, at));
            let Some(start) = start else {
                at += 1 + ((at - literals) >> 5); // strides grow where nothing repeats
                continue;
            };
            let len = common(&input[start..], &input[at..]);
            end = put_literals(&input[literals..], at - literals, out, end, len_max)?;
            end = put_copy(at - start, len, out, end);
            at += len;
            literals = at;
            if let Some(four) = four_at(input, at - 1) {
                self.exchange(base, four, at - 1); // a copy's end is where the next one often starts
            }
        }
        let left = &input[literals..];
        end = put_literals(left, left.len(), out, end, len_max)?;
        Some(&scratch[..end])
    }

    fn base_for(&mut self, len: usize) -> u32 {
        if self.base as usize + len > u32::MAX as usize {
            self.positions.fill(0);
            self.base = 1;
        }
        let base = self.base;
        self.base += len as u32; // at most `INPUT_MAX`, and the sum was checked
        base
    }

    /// Remembers the position by the first four of its bytes, and returns the one that their hash had before.
    #[inline]
    fn exchange(&mut self, base: u32, four: u32, at: usize) -> Option<usize> {
        let hash = four.wrapping_mul(0x9E37_79B1) >> (32 - TABLE_BITS);
        let before = std::mem::replace(&mut self.positions[hash as usize], base + at as u32);
        before.checked_sub(base).map(|position| position as usize)
    }
}

/// What a copy must have in common at least: three bytes would do for the format, but a copy of three within a run of literals
/// saves nothing, and in letters without a pattern such copies took half of a snapshot's time.
#[inline]
fn four_at(input: &[u8], at: usize) -> Option<u32> {
    input.get(at..at + 4).and_then(|bytes| bytes.first_chunk()).map(|bytes| u32::from_le_bytes(*bytes))
}

#[inline]
fn is_copy(input: &[u8], start: usize, four: u32, at: usize) -> bool {
    at - start <= BACK_MAX && four_at(input, start).is_some_and(|there| there == four)
}

/// How many bytes agree, at most `COPY_MAX`.
fn common(a: &[u8], b: &[u8]) -> usize {
    let b = &b[..b.len().min(COPY_MAX)];
    let mut len = 0;
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        let (a, b): (&[u8; 8], &[u8; 8]) = (a.try_into().expect("eight"), b.try_into().expect("eight"));
        match u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b) {
            0 => len += 8,
            differs => return len + differs.trailing_zeros() as usize / 8,
        }
    }
    len + a[len..].iter().zip(&b[len..]).take_while(|(a, b)| a == b).count()
}

/// Puts the first `len` bytes behind the `end`; returns the new one. `None`: it would be more than `len_max`.
#[inline]
fn put_literals(
    mut input: &[u8],
    mut len: usize,
    out: &mut [u8],
    mut end: usize,
    len_max: usize,
) -> Option<usize> {
    if end + len + len.div_ceil(LITERALS_MAX) > len_max {
        return None;
    }
    while len > 0 {
        let run = len.min(LITERALS_MAX);
        out[end] = run as u8 - 1;
        // All that a run may have is copied at once: what is too much is written over.
        match input.first_chunk::<LITERALS_MAX>() {
            Some(all) => out[end + 1..][..LITERALS_MAX].copy_from_slice(all),
            None => out[end + 1..][..run].copy_from_slice(&input[..run]),
        }
        (input, len, end) = (&input[run..], len - run, end + 1 + run);
    }
    Some(end)
}

#[inline]
fn put_copy(back: usize, len: usize, out: &mut [u8], end: usize) -> usize {
    let back = back - 1;
    let high = (back >> 8) as u8;
    let out = &mut out[end..];
    match len - 2 {
        short @ 1..=6 => {
            out[..2].copy_from_slice(&[(short as u8) << 5 | high, back as u8]);
            end + 2
        }
        long => {
            out[..3].copy_from_slice(&[7 << 5 | high, (long - 7) as u8, back as u8]);
            end + 3
        }
    }
}

/// Puts what `input` unpacks to into `out`, which is emptied first; false: that is not exactly `len` bytes.
///
/// Nothing is allocated for a length that the input cannot unpack to, and what the allocator has not got is no length either.
pub(crate) fn decompress(input: &[u8], len: usize, out: &mut Vec<u8>) -> bool {
    out.clear();
    if len > input.len().saturating_mul(RATIO_MAX) {
        return false;
    }
    if out.try_reserve(len).is_err() {
        return false;
    }
    let mut rest = input;
    while let [control, after @ ..] = rest {
        let behind = match control >> 5 {
            0 => literal_run(usize::from(*control) + 1, after, len, out),
            count => copy(usize::from(count), usize::from(control & 0x1f), after, len, out),
        };
        match behind {
            Some(behind) => rest = behind,
            None => return false,
        }
    }
    out.len() == len
}

fn literal_run<'a>(count: usize, after: &'a [u8], len: usize, out: &mut Vec<u8>) -> Option<&'a [u8]> {
    let (literals, behind) = after.split_at_checked(count)?;
    if out.len() + count > len {
        return None;
    }
    out.extend_from_slice(literals);
    Some(behind)
}

fn copy<'a>(count: usize, high: usize, after: &'a [u8], len: usize, out: &mut Vec<u8>) -> Option<&'a [u8]> {
    let (count, after) = match (count, after) {
        (7, [more, after @ ..]) => (9 + usize::from(*more), after),
        (7, []) => return None,
        (count, after) => (count + 2, after),
    };
    let (low, behind) = after.split_first()?;
    let back = (high << 8 | usize::from(*low)) + 1;
    let start = out.len().checked_sub(back)?;
    if out.len() + count > len {
        return None;
    }
    // A copy may reach into what it has itself written: then it repeats, each time with twice as much to take.
    let mut missing = count;
    while missing > 0 {
        let piece = missing.min(out.len() - start);
        out.extend_from_within(start..start + piece);
        missing -= piece;
    }
    Some(behind)
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::random::{Random, fresh_seed};

    use super::*;

    fn round_trip(compressor: &mut Compressor, input: &[u8]) -> Option<usize> {
        let (mut scratch, mut unpacked) = (Vec::new(), Vec::new());
        let packed = compressor.compress(input, &mut scratch, input.len())?;
        assert!(packed.len() <= input.len());
        assert!(decompress(packed, input.len(), &mut unpacked), "{} bytes", input.len());
        assert_eq!(unpacked, input);
        Some(packed.len())
    }

    #[test]
    fn what_repeats_gets_short_and_what_does_not_is_refused() {
        let mut compressor = Compressor::new();
        assert!(round_trip(&mut compressor, &[b'a'; 100_000]).expect("it repeats") < 1_200);
        let text = b"The quick brown fox jumps over the lazy dog. ".repeat(40);
        assert!(round_trip(&mut compressor, &text).expect("it repeats") < 120);
        let mut random = Random::new(1);
        let noise: Vec<u8> = (0..10_000).map(|_| random.draw() as u8).collect();
        assert_eq!(round_trip(&mut compressor, &noise), None);
    }

    #[test]
    fn random_inputs_come_back() {
        let seed = fresh_seed();
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut compressor = Compressor::new();
        for _ in 0..2_000 {
            let letters = 1 + random.below(6);
            let len_max = if random.chance(5) { 40_000 } else { 300 };
            let len = random.below(len_max);
            let input: Vec<u8> = (0..len).map(|_| b'a' + random.below(letters) as u8).collect();
            round_trip(&mut compressor, &input);
        }
    }

    #[test]
    fn the_same_input_gives_the_same_output_whatever_came_before() {
        let text = b"one two three one two three one two three four".repeat(3);
        let (mut fresh, mut later) = (Vec::new(), Vec::new());
        let mut compressor = Compressor::new();
        let fresh = compressor.compress(&text, &mut fresh, text.len()).expect("it repeats");
        compressor.base = u32::MAX - 2_000; // and over the end of the numbers
        for _ in 0..20 {
            let later = compressor.compress(&text, &mut later, text.len());
            assert_eq!(later, Some(fresh));
        }
        assert!(compressor.base < 10_000, "it started anew");
    }

    #[test]
    fn garbage_unpacks_to_nothing_or_to_what_was_announced() {
        let seed = fresh_seed();
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut out = Vec::new();
        for _ in 0..20_000 {
            let input = random.bytes(40);
            let len = random.below(400);
            if decompress(&input, len, &mut out) {
                assert_eq!(out.len(), len);
            }
        }
        assert!(!decompress(&[0xff; 10], 1 << 40, &mut out), "an impossible length");
        assert!(out.capacity() < 100_000, "and nothing was allocated for it");
    }
}
