//! LZF, the compression inside RDB strings: literal runs of up to 32 bytes, and copies of 3 to 264 bytes from
//! at most 8 KiB back. It takes about as long as a few passes over the data, and pays for text alone.
//!
//! ```text
//! 000LLLLL                     L + 1 literal bytes follow
//! LLLooooo oooooooo            copy L + 2 bytes (L: 1..6) from o + 1 bytes back
//! 111ooooo LLLLLLLL oooooooo   copy L + 9 bytes
//! ```
//!
//! Own code: the crate `lzf` is deprecated by its author, allocates the length that a header announces, and
//! allocates a table per call. Here the table is kept. Entries of earlier inputs are told apart by a base
//! that only grows, so nothing is cleared per string and the output depends on the input alone.
//!
//! Source: the format as Marc Lehmann's liblzf documents it.

/// Number of remembered positions, indexed by a hash of four bytes: as many as a copy reaches back (32 KiB,
/// the size of a first-level cache).
const TABLE: usize = 1 << TABLE_BITS;
const TABLE_BITS: u32 = 13;

const LITERALS_MAX: usize = 32;
const COPY_MAX: usize = 264;
/// Length of the longest encoding of a copy, in bytes.
const COPY_LEN_MAX: usize = 3;
const DISTANCE_MAX: usize = 1 << 13;

/// The highest ratio of compression: three bytes copy 264.
const RATIO_MAX: usize = COPY_MAX / 3;

/// Longest input, in bytes: a position plus the base fits 32 bits.
const INPUT_MAX: usize = 1 << 31;

pub(crate) struct Compressor {
    /// `base` plus a position in the input; an entry below `base` is of an earlier input.
    positions: Box<[u32; TABLE]>,
    base: u32,
}

impl Compressor {
    pub(crate) fn new() -> Compressor {
        Compressor { positions: Box::new([0; TABLE]), base: 1 }
    }

    /// Returns the compressed form, in `scratch`; `None` if it would have more than `len_max` bytes.
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
        let (mut at, mut literals) = (0, 0); // the input before `literals` has been written
        while let Some(four) = four_at(input, at) {
            let start = self.exchange(base, four, at).filter(|start| is_copy(input, *start, four, at));
            let Some(start) = start else {
                at += 1 + ((at - literals) >> 5); // strides grow as long as nothing repeats
                continue;
            };
            let len = common(&input[start..], &input[at..]);
            end = put_literals(&input[literals..], at - literals, out, end, len_max)?;
            end = put_copy(at - start, len, out, end);
            at += len;
            literals = at;
            if let Some(four) = four_at(input, at - 1) {
                self.exchange(base, four, at - 1); // the next copy often starts at a copy's end
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

    /// Stores the position under the hash of the four bytes, and returns the position stored there before.
    #[inline]
    fn exchange(&mut self, base: u32, four: u32, at: usize) -> Option<usize> {
        let hash = four.wrapping_mul(0x9E37_79B1) >> (32 - TABLE_BITS);
        let before = std::mem::replace(&mut self.positions[hash as usize], base + at as u32);
        before.checked_sub(base).map(|position| position as usize)
    }
}

/// Returns the four bytes at a position, the shortest match. The format allows three, but a copy of three
/// bytes within a run of literals saves nothing. In letters without a pattern such copies took half of a
/// snapshot's time.
#[inline]
fn four_at(input: &[u8], at: usize) -> Option<u32> {
    input.get(at..at + 4).and_then(|bytes| bytes.first_chunk()).map(|bytes| u32::from_le_bytes(*bytes))
}

#[inline]
fn is_copy(input: &[u8], start: usize, four: u32, at: usize) -> bool {
    at - start <= DISTANCE_MAX && four_at(input, start).is_some_and(|there| there == four)
}

/// Length of the common prefix in bytes, at most `COPY_MAX`.
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

/// Writes the first `len` bytes as literals at `end`; returns the new end, or `None` if it would exceed
/// `len_max`.
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
        // Copies a full run's bytes at once; the surplus is overwritten later.
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

/// Number of copies of 264 zeros, each from the byte before it, in the table below: a hole of 64 KiB in one
/// write.
const ZEROS: usize = 64 * 1024 / COPY_MAX;
static COPIES_OF_ZEROS: [[u8; COPY_LEN_MAX]; ZEROS] = [[7 << 5, (COPY_MAX - 9) as u8, 0]; ZEROS];

/// Writes the compressed form of `len` zeros, not zero, in pieces.
pub(crate) fn zeros(len: usize, mut put: impl FnMut(&[u8])) {
    // One zero to copy from, then the remainder that is shorter than a full copy.
    put(&[0, 0]);
    match (len - 1) % COPY_MAX {
        0 => {}
        few @ 1..=2 => put(&[few as u8 - 1, 0, 0][..1 + few]),
        rest => {
            let mut copy = [0; COPY_LEN_MAX];
            let end = put_copy(1, rest, &mut copy, 0);
            put(&copy[..end]);
        }
    }
    let mut copies = (len - 1) / COPY_MAX;
    while copies > 0 {
        let now = copies.min(ZEROS);
        put(COPIES_OF_ZEROS[..now].as_flattened());
        copies -= now;
    }
}

/// Length of the output of [`zeros`], in bytes.
pub(crate) fn zeros_len(len: usize) -> usize {
    let rest = match (len - 1) % COPY_MAX {
        0 => 0,
        few @ 1..=2 => 1 + few,
        3..=8 => 2,
        _ => 3,
    };
    2 + rest + (len - 1) / COPY_MAX * COPY_LEN_MAX
}

/// Length of the compressed form of a string without repetitions, in bytes.
pub(crate) fn literals_len(len: usize) -> usize {
    len + len.div_ceil(LITERALS_MAX)
}

/// Returns the compressed form without copies, in `scratch`.
pub(crate) fn literals<'s>(input: &[u8], scratch: &'s mut Vec<u8>) -> &'s [u8] {
    scratch.resize(scratch.len().max(literals_len(input.len()) + LITERALS_MAX), 0);
    let end = put_literals(input, input.len(), scratch, 0, usize::MAX).expect("it may have any length");
    &scratch[..end]
}

/// Unpacks `input` into `out`, which is emptied first; false if the result is not exactly `len` bytes.
///
/// Nothing is allocated for a length that the input cannot unpack to, and a failed allocation also returns
/// false.
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
        match command(*control, after, len, out) {
            Some(behind) => rest = behind,
            None => return false,
        }
    }
    out.len() == len
}

/// Unpacks piece by piece. Its memory does not grow with the string: it keeps as much as a copy may reach
/// back.
pub(crate) struct Unpacker {
    /// Compressed bytes, those from `at` on still packed; `more` bytes follow.
    input: Vec<u8>,
    at: usize,
    more: u64,
    /// Unpacked bytes; the bytes before `taken` have been handed out.
    out: Vec<u8>,
    taken: usize,
    /// Bytes still to be unpacked.
    missing: u64,
}

/// Bytes of the longest command: a run of literals.
const COMMAND_MAX: usize = 1 + LITERALS_MAX;

/// Bound of handed-out bytes that are kept: several times the reach of a copy, so that bytes are seldom
/// moved.
const TAKEN_MAX: usize = 8 * DISTANCE_MAX;

impl Unpacker {
    /// Unpacks a string of `len` bytes from `packed` bytes; `None` if so few bytes cannot stand for so many.
    pub(crate) fn new(packed: u64, len: u64) -> Option<Unpacker> {
        let is_possible = len <= packed.saturating_mul(RATIO_MAX as u64);
        let (input, out) = (Vec::new(), Vec::new());
        is_possible.then_some(Unpacker { input, at: 0, more: packed, out, taken: 0, missing: len })
    }

    /// Returns the number of compressed bytes to feed, at most `most`, before unpacking can go on.
    pub(crate) fn bytes_wanted(&self, most: u64) -> u64 {
        if self.input.len() - self.at < COMMAND_MAX { self.more.min(most) } else { 0 }
    }

    /// Takes the next compressed bytes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.more -= bytes.len() as u64;
        self.input.drain(..self.at);
        self.at = 0;
        self.input.extend_from_slice(bytes);
    }

    /// Whether so many bytes can be handed out.
    pub(crate) fn has(&self, len: usize) -> bool {
        self.out.len() - self.taken >= len
    }

    /// Unpacks until `len` bytes can be handed out or more input is needed; false if the input is invalid.
    pub(crate) fn unpack(&mut self, len: usize) -> bool {
        if self.taken > TAKEN_MAX {
            self.out.drain(..self.taken - DISTANCE_MAX);
            self.taken = DISTANCE_MAX;
        }
        while !self.has(len) {
            let rest = &self.input[self.at..];
            if rest.len() < COMMAND_MAX && self.more > 0 {
                return true;
            }
            let [control, after @ ..] = rest else { return false };
            let before = self.out.len();
            let Some(behind) =
                command(*control, after, before.saturating_add(self.missing as usize), &mut self.out)
            else {
                return false;
            };
            self.at = self.input.len() - behind.len();
            self.missing -= (self.out.len() - before) as u64;
        }
        true
    }

    /// Hands out the next `len` bytes; the caller has checked [`Unpacker::has`].
    pub(crate) fn take(&mut self, len: usize) -> &[u8] {
        self.taken += len;
        &self.out[self.taken - len..self.taken]
    }

    /// Whether the input has been used up with the last byte.
    pub(crate) fn is_at_end(&self) -> bool {
        self.more == 0 && self.at == self.input.len()
    }
}

/// Executes one command: a control byte and the bytes `after` it. `None` if the command is invalid, or `out`
/// would exceed `len` bytes.
#[inline]
fn command<'a>(control: u8, after: &'a [u8], len: usize, out: &mut Vec<u8>) -> Option<&'a [u8]> {
    match control >> 5 {
        0 => literal_run(usize::from(control) + 1, after, len, out),
        count => copy(usize::from(count), usize::from(control & 0x1f), after, len, out),
    }
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
    // A copy may overlap its own output. Then it repeats, and each round has twice as many bytes to take.
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
    fn repetitive_input_shrinks_and_other_input_is_refused() {
        let mut compressor = Compressor::new();
        assert!(round_trip(&mut compressor, &[b'a'; 100_000]).expect("it repeats") < 1_200);
        let text = b"The quick brown fox jumps over the lazy dog. ".repeat(40);
        assert!(round_trip(&mut compressor, &text).expect("it repeats") < 120);
        let mut random = Random::new(1);
        let noise: Vec<u8> = (0..10_000).map(|_| random.draw() as u8).collect();
        assert_eq!(round_trip(&mut compressor, &noise), None);
    }

    #[test]
    fn random_inputs_survive_a_round_trip() {
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

    /// Unpacks in pieces of `piece` bytes, fed with at most `most` bytes at a time.
    fn unpack(packed: &[u8], len: u64, piece: usize, most: u64) -> Option<Vec<u8>> {
        let (mut unpacker, mut rest) = (Unpacker::new(packed.len() as u64, len)?, packed);
        let mut unpacked = Vec::new();
        while (unpacked.len() as u64) < len {
            let next = piece.min(len as usize - unpacked.len());
            while !unpacker.has(next) {
                let (now, later) = rest.split_at(unpacker.bytes_wanted(most) as usize);
                unpacker.feed(now);
                rest = later;
                if !unpacker.unpack(next) {
                    return None;
                }
            }
            assert!(unpacker.out.len() <= TAKEN_MAX + 2 * piece + COPY_MAX, "{}", unpacker.out.len());
            unpacked.extend_from_slice(unpacker.take(next));
        }
        unpacker.is_at_end().then_some(unpacked)
    }

    #[test]
    fn stepwise_unpacking_gives_the_same_output() {
        let seed = fresh_seed();
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let (mut compressor, mut scratch, mut whole) = (Compressor::new(), Vec::new(), Vec::new());
        for _ in 0..300 {
            let (letters, len) = (1 + random.below(4), 100 + random.below(200_000));
            let input: Vec<u8> = (0..len).map(|_| b'a' + random.below(letters) as u8).collect();
            let Some(packed) = compressor.compress(&input, &mut scratch, len) else { continue };
            let mut packed = packed.to_vec();
            let (piece, most) = (1 + random.below(70_000), 1 + random.below(5_000) as u64);
            assert!(unpack(&packed, len as u64, piece, most).expect("it is right") == input);
            // Cut, changed, or announced with a wrong length.
            let at = random.below(packed.len());
            packed[at] ^= 1 << random.below(8);
            packed.truncate(packed.len() - random.below(2));
            let len = if random.chance(2) { len } else { random.below(2 * len) };
            let expected = decompress(&packed, len, &mut whole).then_some(&whole);
            assert!(unpack(&packed, len as u64, piece, most).as_ref() == expected);
        }
        assert!(Unpacker::new(10, u64::MAX).is_none());
    }

    #[test]
    fn zeros_and_literals_have_the_predicted_lengths() {
        let mut unpacked = Vec::new();
        for len in (1..1_000).chain([65_535, 65_536, 65_537, 10_000_000]) {
            let mut packed = Vec::new();
            zeros(len, |bytes| packed.extend_from_slice(bytes));
            assert_eq!(packed.len(), zeros_len(len), "{len}");
            assert!(decompress(&packed, len, &mut unpacked) && unpacked.iter().all(|byte| *byte == 0));
        }
        assert_eq!(zeros_len(64 * 1024), 749);
        let (mut random, mut scratch) = (Random::new(1), Vec::new());
        for len in (1..100).chain([65_536]) {
            let noise = (0..len).map(|_| random.draw() as u8).collect::<Vec<u8>>();
            let packed = literals(&noise, &mut scratch);
            assert_eq!(packed.len(), literals_len(len));
            assert!(decompress(packed, len, &mut unpacked) && unpacked == noise);
        }
    }

    #[test]
    fn the_same_input_gives_the_same_output_whatever_came_before() {
        let text = b"one two three one two three one two three four".repeat(3);
        let (mut fresh, mut later) = (Vec::new(), Vec::new());
        let mut compressor = Compressor::new();
        let fresh = compressor.compress(&text, &mut fresh, text.len()).expect("it repeats");
        compressor.base = u32::MAX - 2_000; // and across the end of the number range
        for _ in 0..20 {
            let later = compressor.compress(&text, &mut later, text.len());
            assert_eq!(later, Some(fresh));
        }
        assert!(compressor.base < 10_000, "it started anew");
    }

    #[test]
    fn garbage_unpacks_to_an_error_or_to_the_announced_length() {
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
