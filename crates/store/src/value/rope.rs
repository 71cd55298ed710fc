//! Large strings: a spine of reference-counted chunks of 64 KiB, where a chunk of zeros is a hole.
//!
//! A string up to [`FLAT_MAX`] bytes lies in its entry. A longer string is a [`Rope`]:
//! - Cloning is O(1). Writing to a shared rope copies the spine (8 bytes per 64 KiB) and the chunks written.
//! - APPEND never moves existing bytes, and SETBIT far beyond the end allocates a single chunk.
//! - Replies are sent from the chunks themselves.

use std::borrow::Cow;
use std::ops::Range;
use std::ptr::NonNull;

use crate::memory::block_vec::BlockVec;
pub use crate::memory::block_vec::Bytes;
use crate::value::shared::Shared;

/// Longest string kept in its entry, in bytes: copying it takes about a microsecond.
pub const FLAT_MAX: usize = 16 * 1024;

/// Bytes per chunk: copying a chunk takes about 5 us, and 512 MB have a spine of 64 KiB.
pub const CHUNK: usize = 64 * 1024;

/// A reference to a chunk's bytes, which keeps them alive while a reply is being sent.
#[derive(Clone)]
pub struct Chunk(Shared<Bytes>);

impl From<Bytes> for Chunk {
    fn from(bytes: Bytes) -> Chunk {
        Chunk(Shared::new(bytes))
    }
}

impl std::ops::Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Chunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl Chunk {
    /// The bytes, for changes; shared bytes are copied first.
    pub fn own(&mut self) -> &mut Bytes {
        self.0.own()
    }

    /// The bytes, for changes, if nothing else refers to them.
    pub fn get_mut(&mut self) -> Option<&mut Bytes> {
        self.0.get_mut()
    }

    /// Number of references.
    pub fn refs(&self) -> u32 {
        self.0.refs()
    }

    /// Returns true if both are the same memory.
    pub fn is_same(&self, other: &Chunk) -> bool {
        self.0.is_same(&other.0)
    }
}

/// The bytes of a hole.
pub static ZEROS: [u8; CHUNK] = [0; CHUNK];

/// A chunk with these bytes, at most [`CHUNK`] of them; `None`, a hole, if all of them are zero.
pub fn chunk_of(bytes: &[u8]) -> Option<Chunk> {
    (!is_zero(bytes)).then(|| Chunk::from(Bytes::from(bytes)))
}

/// Bytes of memory of a chunk, with its counts and its vector.
fn chunk_memory(chunk: &Chunk) -> usize {
    chunk.0.capacity() + 40
}

/// Returns true if all bytes, at most [`CHUNK`] of them, are zero. The first byte nearly always decides.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.first().is_none_or(|first| *first == 0) && *bytes == ZEROS[..bytes.len()]
}

/// A long string. Clones share their chunks.
#[derive(Clone, Debug)]
pub struct Rope(Shared<Spine>);

impl std::ops::Deref for Rope {
    type Target = Spine;

    fn deref(&self) -> &Spine {
        &self.0
    }
}

/// The content of a rope.
#[derive(Clone, Debug)]
pub struct Spine {
    len: usize,
    /// Number of chunks that are `None`.
    holes: usize,
    /// `len.div_ceil(CHUNK)` chunks of `CHUNK` bytes; the last has the remainder; `None` is all zeros.
    chunks: BlockVec<Option<Chunk>>,
}

/// A contiguous part of a rope.
pub enum Piece<'a> {
    Bytes(&'a Chunk, Range<usize>),
    Zeros(usize),
}

impl<'a> Piece<'a> {
    pub fn as_slice(&self) -> &'a [u8] {
        match self {
            Piece::Bytes(chunk, range) => &chunk[range.clone()],
            Piece::Zeros(len) => &ZEROS[..*len],
        }
    }
}

impl Rope {
    pub fn new(bytes: &[u8]) -> Rope {
        Rope::from_chunks(bytes.len(), bytes.chunks(CHUNK).map(chunk_of).collect())
    }

    /// A string of `len` bytes: `len.div_ceil(CHUNK)` chunks of [`CHUNK`] bytes each, the last with the
    /// remainder.
    pub fn from_chunks(len: usize, chunks: Vec<Option<Chunk>>) -> Rope {
        let len_of = |index: usize| CHUNK.min(len - index * CHUNK);
        assert_eq!(chunks.len(), len.div_ceil(CHUNK), "as many chunks as the length says");
        let fits = |(index, chunk): (usize, &Option<Chunk>)| {
            chunk.as_ref().is_none_or(|chunk| chunk.len() == len_of(index))
        };
        assert!(chunks.iter().enumerate().all(fits), "chunks as long as the length says");
        let holes = chunks.iter().filter(|chunk| chunk.is_none()).count();
        Rope(Shared::new(Spine { len, holes, chunks: chunks.into_iter().collect() }))
    }

    /// Bytes of its chunks that other ropes refer to as well: all of them if the rope as a whole has more
    /// than `owners` references.
    pub fn shared_memory(&self, owners: u32) -> usize {
        let is_shared = self.0.refs() > owners;
        let shared = self.chunks.iter().flatten().filter(|chunk| is_shared || !chunk.0.is_own());
        shared.map(chunk_memory).sum()
    }

    /// Returns true if no other rope shares all of its chunks.
    pub(crate) fn is_own(&self) -> bool {
        self.0.is_own()
    }

    /// Writes `bytes` at `offset`, and extends the string if they end beyond it; a gap reads as zeros.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len();
        let spine = self.0.own();
        spine.grow(end);
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let from = at % CHUNK;
            let (now, later) = rest.split_at(rest.len().min(CHUNK - from));
            // Zeros written into a hole leave it a hole.
            if spine.chunks[at / CHUNK].is_some() || !is_zero(now) {
                spine.chunk_mut(at / CHUNK)[from..from + now.len()].copy_from_slice(now);
            }
            at += now.len();
            rest = later;
        }
    }
}

impl Spine {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of chunks, including holes: the work of freeing the rope.
    pub(crate) fn weight(&self) -> usize {
        self.chunks.len()
    }

    /// Returns true if both have the very same chunks, so neither was written to since it was cloned.
    pub fn is_same(&self, other: &Spine) -> bool {
        let same = |pair: (&Option<Chunk>, &Option<Chunk>)| match pair {
            (Some(one), Some(other)) => one.is_same(other),
            (one, other) => one.is_none() && other.is_none(),
        };
        self.len == other.len && self.chunks.iter().zip(other.chunks.iter()).all(same)
    }

    /// Number of chunks that are holes.
    pub fn holes(&self) -> usize {
        self.holes
    }

    /// Bytes of memory that its chunks and spine take, shared or not.
    pub fn memory(&self) -> usize {
        let chunks: usize = self.chunks.iter().flatten().map(chunk_memory).sum();
        size_of::<Spine>() + 16 + self.chunks.capacity() * size_of::<Option<Chunk>>() + chunks
    }

    /// The pieces of `range`, in order. `range` lies inside the string.
    pub fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = Piece<'_>> + Clone {
        assert!(range.start <= range.end && range.end <= self.len(), "a range inside the string");
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at == range.end {
                return None;
            }
            let (index, from) = (at / CHUNK, at % CHUNK);
            let to = CHUNK.min(from + range.end - at);
            at += to - from;
            Some(match &self.chunks[index] {
                Some(chunk) => Piece::Bytes(chunk, from..to),
                None => Piece::Zeros(to - from),
            })
        })
    }

    pub fn byte(&self, at: usize) -> u8 {
        assert!(at < self.len(), "an offset inside the string");
        self.chunks[at / CHUNK].as_ref().map_or(0, |chunk| chunk[at % CHUNK])
    }

    /// Makes the string at least `len` bytes long, without touching chunks before the last.
    fn grow(&mut self, len: usize) {
        if len <= self.len {
            return;
        }
        let old_last = self.len / CHUNK;
        self.len = len;
        let before = self.chunks.len();
        self.chunks.grow(len.div_ceil(CHUNK), None);
        self.holes += self.chunks.len() - before;
        // The former last chunk may be short.
        if let Some(Some(chunk)) = self.chunks.get_mut(old_last) {
            let full = CHUNK.min(len - old_last * CHUNK);
            if chunk.len() < full {
                let chunk = chunk.own();
                if full > chunk.capacity() {
                    let room = full.max(chunk.capacity() * 2).min(CHUNK);
                    chunk.reserve_exact(room - chunk.len());
                }
                chunk.pad(full, 0);
            }
        }
    }

    fn chunk_mut(&mut self, index: usize) -> &mut [u8] {
        let len = CHUNK.min(self.len - index * CHUNK);
        let chunk = &mut self.chunks[index];
        self.holes -= usize::from(chunk.is_none());
        let chunk = chunk.get_or_insert_with(|| Bytes::of(0, len).into());
        chunk.own()
    }
}

impl Rope {
    pub(crate) fn into_raw(self) -> NonNull<u8> {
        self.0.into_raw()
    }

    /// # Safety
    /// `raw` comes from `into_raw`, once.
    pub(crate) unsafe fn from_raw(raw: NonNull<u8>) -> Rope {
        // SAFETY: by the caller's promise.
        Rope(unsafe { Shared::from_raw(raw) })
    }
}

/// A string value in place.
#[derive(Clone, Copy, Debug)]
pub enum Str<'a> {
    Flat(&'a [u8]),
    Rope(&'a Spine),
}

impl<'a> Str<'a> {
    pub fn len(&self) -> usize {
        match self {
            Str::Flat(bytes) => bytes.len(),
            Str::Rope(rope) => rope.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The byte at `at`; zero beyond the end, as bitmaps read it.
    pub fn byte(&self, at: usize) -> u8 {
        match self {
            Str::Flat(bytes) => bytes.get(at).copied().unwrap_or(0),
            Str::Rope(rope) if at < rope.len() => rope.byte(at),
            Str::Rope(_) => 0,
        }
    }

    /// Whether the string is these bytes.
    pub fn equals(&self, bytes: &[u8]) -> bool {
        let (mut rest, mut same) = (bytes, self.len() == bytes.len());
        if same {
            self.for_each(0..bytes.len(), |piece| {
                let (now, later) = rest.split_at(piece.len());
                same = same && now == piece;
                rest = later;
            });
        }
        same
    }

    /// Calls `f` with each piece of `range` in order. `range` lies inside the string.
    pub fn for_each(&self, range: Range<usize>, mut f: impl FnMut(&'a [u8])) {
        match self {
            Str::Flat(bytes) => f(&bytes[range]),
            Str::Rope(rope) => rope.pieces(range).for_each(|piece| f(piece.as_slice())),
        }
    }

    /// All bytes as a single slice; a rope is copied.
    pub fn bytes(&self) -> Cow<'a, [u8]> {
        match self {
            Str::Flat(bytes) => Cow::Borrowed(bytes),
            Str::Rope(rope) => {
                let mut bytes = Vec::with_capacity(rope.len());
                self.for_each(0..rope.len(), |piece| bytes.extend_from_slice(piece));
                Cow::Owned(bytes)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::random::{Random, fresh_seed};

    fn read(rope: &Rope) -> Vec<u8> {
        Str::Rope(rope).bytes().into_owned()
    }

    /// Random writes and clones against plain vectors; every clone still reads its old content.
    #[test]
    fn random_writes_against_a_plain_vector() {
        let seed = fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        let mut random = Random::new(seed);
        let mut random = |below| random.below(below);
        let (mut rope, mut plain) = (Rope::new(b"seed"), b"seed".to_vec());
        let mut clones = Vec::new();
        for _ in 0..if cfg!(miri) { 3 } else { 400 } {
            let offset = if random(3) == 0 { plain.len() } else { random(plain.len() + 2 * CHUNK) };
            let most = if random(4) == 0 { 3 * CHUNK } else { 100 };
            let bytes = vec![random(256) as u8; random(most)];
            rope.write(offset, &bytes);
            if !bytes.is_empty() {
                plain.resize(plain.len().max(offset + bytes.len()), 0);
                plain[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            assert_eq!(rope.len(), plain.len());
            let holes = rope.pieces(0..rope.len()).filter(|piece| matches!(piece, Piece::Zeros(_)));
            assert_eq!(rope.holes(), holes.count());
            let at = random(plain.len());
            assert_eq!(rope.byte(at), plain[at]);
            let to = at + random(plain.len() - at + 1);
            assert_eq!(
                rope.pieces(at..to).flat_map(|piece| piece.as_slice().to_vec()).collect::<Vec<_>>(),
                plain[at..to]
            );
            if random(20) == 0 && clones.len() < 8 {
                clones.push((rope.clone(), plain.clone()));
            }
            if plain.len() > 40 * CHUNK {
                (rope, plain) = (Rope::new(&plain[..100]), plain[..100].to_vec());
            }
        }
        assert!(read(&rope) == plain);
        assert!(clones.iter().all(|(rope, plain)| read(rope) == *plain));
    }

    #[test]
    fn chunks_of_zeros_are_holes() {
        let mut bytes = vec![0; 10 * CHUNK + 5];
        bytes[3 * CHUNK + 7] = 1;
        let rope = Rope::new(&bytes);
        assert!(read(&rope) == bytes);
        assert!(rope.memory() < 2 * CHUNK, "{}", rope.memory());
        let mut rope = Rope::new(b"x");
        rope.write(20 * CHUNK, &bytes);
        assert!(rope.memory() < 5 * CHUNK, "{}", rope.memory());
        rope.write(20 * CHUNK + 3 * CHUNK + 7, &[0]);
        assert!(rope.pieces(1..rope.len()).all(|piece| piece.as_slice().iter().all(|byte| *byte == 0)));
    }

    #[test]
    fn far_writes_leave_holes() {
        let mut rope = Rope::new(b"x");
        rope.write(512 << 20, b"y");
        assert_eq!(rope.len(), (512 << 20) + 1);
        assert!(rope.memory() < 400 * 1024, "{}", rope.memory());
        assert_eq!((rope.byte(0), rope.byte(1 << 20), rope.byte(512 << 20)), (b'x', 0, b'y'));
    }
}
