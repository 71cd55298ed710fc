//! BITOP: bitwise combination of strings.
//!
//! The result is built in chunks, like a rope, from each source in turn. Where a chunk of the result equals a
//! source's chunk, the two share it; holes cost nothing. So OR of two sparse bitmaps of half a gigabyte
//! touches only chunks that are set in both.
//!
//! Long strings are shared and, if their total is large, combined by another thread (`offload.rs`). Short
//! strings lie in their entries. They are combined in place, which takes no longer than copying them, and
//! again when the long strings are done. The operations do not depend on the order, so the two results are
//! combined in the end.

use std::sync::Arc;

use evenkeel_store::rope::{CHUNK, Chunk, FLAT_MAX, Piece, Rope};
use evenkeel_store::{Key, Kind, Made, Str, WrongType};

use crate::Call;
use crate::error::Error;
use crate::flow::Work;
use crate::flow::{Done, Flow};

/// Bytes that take about as long to combine as an element of a collection takes to write.
const BYTES_PER_ELEMENT: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    And,
    Or,
    Xor,
    Not,
}

/// BITOP AND | OR | XOR | NOT destkey key [key ...]
pub fn bitop(call: &mut Call<'_, '_>) -> Done {
    let operation = match call.args.word(1).as_bytes() {
        b"AND" => Operation::And,
        b"OR" => Operation::Or,
        b"XOR" => Operation::Xor,
        b"NOT" => Operation::Not,
        _ => return Err(Error::Syntax),
    };
    let (_, sources) = call.keys.split_first().expect("the row declares it, and the arity three more");
    if operation == Operation::Not && sources.len() != 1 {
        return Err(Error::text("ERR BITOP NOT must be called with a single source key."));
    }
    for source in sources {
        // Each mention counts as a hit or a miss, and as an access.
        call.guard.string(source)?;
    }
    let sources = Sources::of(call, operation)?;
    if !call.is_worth_offloading(sources.bytes(operation) / BYTES_PER_ELEMENT) {
        let result = combined(operation, sources.short, &sources.long, sources.len);
        drop(sources.long);
        return store(call, result);
    }
    let (long, known) = (sources.long.clone(), sources.long);
    call.offload(Work::writes(
        move || Ok(combined(operation, None, &long, 0)),
        move |call| Sources::of(call, operation).is_ok_and(|now| are_same(&now.long, &known)),
        move |call, mut result| {
            let now = Sources::of(call, operation)?;
            if let Some(short) = now.short {
                result.combine(operation, Str::Flat(&short.into_flat()));
            }
            result.grow(now.len);
            store(call, result)
        },
    ))
}

/// Stores the result at the first key, or removes the key if the result is empty, and replies with its
/// length.
fn store(call: &mut Call<'_, '_>, result: Bits) -> Done {
    let len = result.len;
    if len == 0 {
        call.guard.remove(&call.keys[0]);
    } else {
        call.guard.set_made(&call.keys[0], result.made());
    }
    call.reply.int(len as i64);
    Ok(Flow::Replied)
}

/// The strings to combine, each key once.
struct Sources {
    /// The combination of the short strings, including missing keys; `None` if all are long.
    short: Option<Bits>,
    /// In the order of their keys' names.
    long: Vec<Rope>,
    /// Minimum length of the result.
    len: usize,
}

impl Sources {
    fn of(call: &mut Call<'_, '_>, operation: Operation) -> Result<Sources, WrongType> {
        let mut sources = Sources { short: None, long: Vec::new(), len: 0 };
        for (key, times) in each_once(&call.keys[1..]) {
            let view = call.guard.peek(key);
            if view.is_some_and(|view| view.kind() != Kind::String) {
                return Err(WrongType);
            }
            let value = view.map_or(Str::Flat(b""), |view| view.string());
            sources.len = sources.len.max(value.len());
            match (value, &mut sources.short) {
                // The string cancels itself out.
                _ if operation == Operation::Xor && times % 2 == 0 => {}
                (Str::Rope(_), _) => sources.long.extend(view.and_then(|view| view.rope())),
                (value, None) => sources.short = Some(Bits::of(value)),
                (value, Some(short)) => short.combine(operation, value),
            }
        }
        Ok(sources)
    }

    /// Returns the number of bytes to go through.
    fn bytes(&self, operation: Operation) -> usize {
        if operation == Operation::And && self.short.is_some() {
            // The short strings are followed by zeros.
            return self.long.len() * CHUNK;
        }
        self.long.iter().map(|rope| rope.len()).sum()
    }
}

/// Returns the keys in the order of their names, and how often each occurs.
fn each_once<'k, 'n>(keys: &'k [Key<'n>]) -> impl Iterator<Item = (&'k Key<'n>, usize)> {
    let mut sorted: Vec<&Key<'n>> = keys.iter().collect();
    sorted.sort_unstable_by_key(|key| key.bytes);
    let mut all = sorted.into_iter().peekable();
    std::iter::from_fn(move || {
        let (key, mut times) = (all.next()?, 1);
        while all.next_if(|next| next.bytes == key.bytes).is_some() {
            times += 1;
        }
        Some((key, times))
    })
}

/// Whether nothing was written to any of these strings since they were shared.
fn are_same(now: &[Rope], known: &[Rope]) -> bool {
    now.len() == known.len() && now.iter().zip(known).all(|(now, known)| now.is_same(known))
}

/// Combines the strings, padded with zeros to `len` bytes.
fn combined(operation: Operation, short: Option<Bits>, long: &[Rope], len: usize) -> Bits {
    let mut result = short;
    for rope in long {
        match &mut result {
            None => result = Some(Bits::of(Str::Rope(rope))),
            Some(result) => result.combine(operation, Str::Rope(rope)),
        }
    }
    let mut result = result.unwrap_or(Bits { len: 0, chunks: Vec::new() });
    if operation == Operation::Not {
        result.invert();
    }
    result.grow(len);
    result
}

/// A string in the making: chunks as in a rope, all but the last of [`CHUNK`] bytes; `None` is all zeros.
#[derive(Debug)]
struct Bits {
    len: usize,
    chunks: Vec<Option<Chunk>>,
}

/// A chunk of a source: its bytes, and the chunk itself if the source is a rope.
#[derive(Clone, Copy)]
struct Source<'a> {
    bytes: &'a [u8],
    chunk: Option<&'a Chunk>,
}

impl Source<'_> {
    /// Returns the chunk, padded with zeros to `len` bytes.
    fn share(self, len: usize) -> Chunk {
        match self.chunk {
            Some(chunk) if chunk.len() == len => chunk.clone(),
            _ => {
                let mut bytes = Vec::with_capacity(len);
                bytes.extend_from_slice(self.bytes);
                bytes.resize(len, 0);
                Arc::new(bytes)
            }
        }
    }
}

/// Returns the chunks of a string; `None` is a hole.
fn chunks_of(value: Str<'_>) -> impl Iterator<Item = Option<Source<'_>>> {
    let (flat, rope) = match value {
        Str::Flat(bytes) => ((!bytes.is_empty()).then_some(Some(Source { bytes, chunk: None })), None),
        Str::Rope(rope) => (None, Some(rope)),
    };
    let pieces = rope.into_iter().flat_map(|rope| rope.pieces(0..rope.len()));
    flat.into_iter().chain(pieces.map(|piece| match piece {
        Piece::Bytes(chunk, range) => Some(Source { bytes: &chunk[range], chunk: Some(chunk) }),
        Piece::Zeros(_) => None,
    }))
}

impl Bits {
    fn of(value: Str<'_>) -> Bits {
        let mut bits = Bits { len: 0, chunks: Vec::new() };
        bits.combine(Operation::Or, value);
        bits
    }

    /// Returns the length of the chunk at `index`.
    fn chunk_len(&self, index: usize) -> usize {
        CHUNK.min(self.len - index * CHUNK)
    }

    /// Makes it at least `len` bytes long, padded with zeros.
    fn grow(&mut self, len: usize) {
        if len <= self.len {
            return;
        }
        let last = self.chunks.len().checked_sub(1);
        self.len = len;
        self.chunks.resize(len.div_ceil(CHUNK), None);
        if let Some(last) = last {
            let len = self.chunk_len(last);
            if let Some(chunk) = &mut self.chunks[last]
                && chunk.len() < len
            {
                Arc::make_mut(chunk).resize(len, 0);
            }
        }
    }

    /// Combines it with a string; the shorter of the two is padded with zeros.
    fn combine(&mut self, operation: Operation, value: Str<'_>) {
        self.grow(value.len());
        let mut sources = chunks_of(value);
        for index in 0..self.chunks.len() {
            let (len, source) = (self.chunk_len(index), sources.next().flatten());
            let mine = &mut self.chunks[index];
            match (operation, &mut *mine, source) {
                (Operation::And, Some(chunk), Some(source)) => {
                    merge(chunk, source.bytes, |byte, with| byte & with);
                    if source.bytes.len() < len {
                        Arc::make_mut(chunk)[source.bytes.len()..].fill(0);
                    }
                }
                (Operation::And, ..) => *mine = None,
                (_, _, None) => {}
                (_, None, Some(source)) => *mine = Some(source.share(len)),
                (Operation::Xor, Some(chunk), Some(source)) => {
                    merge(chunk, source.bytes, |byte, with| byte ^ with);
                }
                (_, Some(chunk), Some(source)) => merge(chunk, source.bytes, |byte, with| byte | with),
            }
        }
    }

    fn invert(&mut self) {
        let mut ones = None;
        for index in 0..self.chunks.len() {
            let len = self.chunk_len(index);
            let chunk = &mut self.chunks[index];
            *chunk = Some(match chunk {
                Some(chunk) => Arc::new(chunk.iter().map(|byte| !byte).collect()),
                // All former holes share a single chunk.
                None if len == CHUNK => ones.get_or_insert_with(|| Arc::new(vec![0xff; CHUNK])).clone(),
                None => Arc::new(vec![0xff; len]),
            });
        }
    }

    fn made(self) -> Made {
        if self.len > FLAT_MAX {
            return Made::Rope(Rope::from_chunks(self.len, self.chunks));
        }
        Made::Flat(self.into_flat())
    }

    /// Returns the bytes of a string of at most a single chunk.
    fn into_flat(self) -> Vec<u8> {
        let chunk = self.chunks.into_iter().next().flatten();
        chunk.map_or_else(|| vec![0; self.len], Arc::unwrap_or_clone)
    }
}

/// Combines the first bytes of a chunk with other bytes, which are at most as many. A shared chunk is not
/// copied first, which would be another pass over memory.
#[inline]
fn merge(chunk: &mut Chunk, with: &[u8], operation: impl Fn(u8, u8) -> u8) {
    match Arc::get_mut(chunk) {
        Some(bytes) => bytes.iter_mut().zip(with).for_each(|(byte, with)| *byte = operation(*byte, *with)),
        None => {
            let mut bytes = Vec::with_capacity(chunk.len());
            bytes.extend(chunk.iter().zip(with).map(|(byte, with)| operation(*byte, *with)));
            bytes.extend_from_slice(&chunk[with.len()..]);
            *chunk = Arc::new(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::Random;
    use evenkeel_testkit::random::printed as random;

    fn random_string(random: &mut Random) -> (Made, Vec<u8>) {
        let bytes: Vec<u8> = (0..random.below(300)).map(|_| random.below(256) as u8).collect();
        if random.chance(40) {
            return (Made::Flat(bytes.clone()), bytes);
        }
        let mut rope = Rope::new(&bytes);
        for _ in 0..random.below(4) {
            rope.write(random.below(5 * CHUNK), &vec![random.below(256) as u8; random.below(CHUNK)]);
        }
        let plain = Str::Rope(&rope).bytes().into_owned();
        (Made::Rope(rope), plain)
    }

    fn as_str(made: &Made) -> Str<'_> {
        match made {
            Made::Flat(bytes) => Str::Flat(bytes),
            Made::Rope(rope) => Str::Rope(rope),
        }
    }

    #[test]
    fn random_strings_match_a_bytewise_model() {
        let mut random = random();
        for round in 0..300 {
            let operation = [Operation::And, Operation::Or, Operation::Xor, Operation::Not][round % 4];
            let sources: Vec<_> = (0..random.between(1, 4)).map(|_| random_string(&mut random)).collect();
            let (first, rest) = sources.split_first().expect("one at least");
            let mut bits = Bits::of(as_str(&first.0));
            let mut plain = first.1.clone();
            for (source, with) in rest {
                bits.combine(operation, as_str(source));
                plain.resize(plain.len().max(with.len()), 0);
                for (at, byte) in plain.iter_mut().enumerate() {
                    let with = with.get(at).copied().unwrap_or(0);
                    *byte = match operation {
                        Operation::And => *byte & with,
                        Operation::Xor => *byte ^ with,
                        Operation::Or | Operation::Not => *byte | with,
                    };
                }
            }
            if operation == Operation::Not {
                bits.invert();
                plain.iter_mut().for_each(|byte| *byte = !*byte);
            }
            assert_eq!(bits.len, plain.len());
            assert!(
                plain.is_empty() || *as_str(&bits.made()).bytes() == plain,
                "{operation:?} of {}",
                sources.len()
            );
            // The sources share chunks with the result, and are unchanged.
            assert!(sources.iter().all(|(source, plain)| *as_str(source).bytes() == *plain));
        }
    }

    #[test]
    fn holes_take_no_memory() {
        let (mut one, mut other) = (Rope::new(b"x"), Rope::new(b"y"));
        one.write(400 << 20, b"1");
        other.write(500 << 20, b"2");
        let mut bits = Bits::of(Str::Rope(&one));
        bits.combine(Operation::Or, Str::Rope(&other));
        assert_eq!(bits.chunks.iter().flatten().count(), 3);
        bits.combine(Operation::And, Str::Rope(&one));
        assert_eq!(bits.chunks.iter().flatten().count(), 2);
        bits.invert();
        let chunks: std::collections::HashSet<_> = bits.chunks.iter().flatten().map(Arc::as_ptr).collect();
        assert_eq!((bits.chunks.len(), chunks.len()), ((500 << 20) / CHUNK + 1, 4));
    }
}
