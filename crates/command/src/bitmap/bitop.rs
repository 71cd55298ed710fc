//! BITOP: bitwise combination of strings.
//!
//! The result is built in chunks, like a rope, from each source in turn. Where a chunk of the result equals a
//! source's chunk, the two share it; holes cost nothing. So OR of two sparse bitmaps of half a gigabyte
//! touches only chunks that are set in both.
//!
//! Long strings are shared and, if their total is large, combined by another thread. Short strings lie in
//! their entries. They are combined in place, which takes no longer than copying them, and again when the
//! long strings are done. The two results are combined in the end, for which the order does not matter: DIFF,
//! DIFF1 and ANDOR combine their first source with the union of the others, and that union has no order.

use evenkeel_store::rope::{Bytes, CHUNK, Chunk, FLAT_MAX, Piece, Rope};
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
    /// Bits of the first source that no other source has.
    Diff,
    /// Bits of other sources that the first source lacks.
    Diff1,
    /// Bits of the first source that some other source has, too.
    AndOr,
    /// Bits that exactly one source has.
    One,
}

impl Operation {
    /// Whether the first source has a part of its own.
    fn has_first(self) -> bool {
        matches!(self, Operation::Diff | Operation::Diff1 | Operation::AndOr)
    }

    /// Whether only servers since Redis 8.2 know it.
    fn is_new(self) -> bool {
        self.has_first() || self == Operation::One
    }

    /// Returns the step that combines sources that are no first source.
    fn step(self) -> Step {
        match self {
            Operation::And => Step::And,
            Operation::Xor | Operation::One => Step::Xor,
            _ => Step::Or,
        }
    }
}

/// A combination of two strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    And,
    Or,
    Xor,
    AndNot,
}

/// BITOP AND | OR | XOR | NOT | DIFF | DIFF1 | ANDOR | ONE destkey key [key ...]
pub fn bitop(call: &mut Call<'_, '_>) -> Done {
    let word = call.args.word(1);
    let operation = match word.as_bytes() {
        b"AND" => Operation::And,
        b"OR" => Operation::Or,
        b"XOR" => Operation::Xor,
        b"NOT" => Operation::Not,
        b"DIFF" => Operation::Diff,
        b"DIFF1" => Operation::Diff1,
        b"ANDOR" => Operation::AndOr,
        b"ONE" => Operation::One,
        _ => return Err(Error::Syntax),
    };
    let (_, sources) = call.keys.split_first().expect("the row declares it, and the arity three more");
    if operation == Operation::Not && sources.len() != 1 {
        return Err(Error::text("ERR BITOP NOT must be called with a single source key."));
    }
    if operation.has_first() && sources.len() < 2 {
        let name = String::from_utf8_lossy(word.as_bytes()).into_owned();
        return Err(Error::text(format!("ERR BITOP {name} must be called with at least two source keys.")));
    }
    for source in sources {
        // Each mention counts as a hit or a miss, and as an access.
        call.guard.string(source)?;
    }
    let sources = Sources::of(call, operation)?;
    if !call.is_worth_offloading(sources.bytes(operation) / BYTES_PER_ELEMENT) {
        let long = sources.long.combined(operation);
        let result = with_short(operation, long, sources);
        return store(call, operation, result);
    }
    let (long, known) = (sources.long.clone(), sources.long);
    call.offload(Work::writes(
        move || Ok(long.combined(operation)),
        move |call| Sources::of(call, operation).is_ok_and(|now| now.long.is_same(&known)),
        move |call, long| {
            let now = Sources::of(call, operation)?;
            let result = with_short(operation, long, now);
            store(call, operation, result)
        },
    ))
}

/// Stores the result at the first key, or removes the key if the result is empty, and replies with its
/// length.
fn store(call: &mut Call<'_, '_>, operation: Operation, result: Bits) -> Done {
    let (len, key) = (result.len, &call.keys[0]);
    // Replicas and readers of files may not know a new operation, but they know its result.
    let logs_result = operation.is_new() && call.is_logged();
    if len == 0 {
        if call.guard.remove(key) && logs_result {
            call.log(&[b"DEL", key.bytes]);
        }
    } else {
        let result = result.made();
        let bytes = logs_result.then(|| match &result {
            Made::Flat(bytes) => bytes.clone(),
            Made::Rope(rope) => Str::Rope(rope).bytes().into_owned(),
        });
        call.guard.set_made(key, result);
        if let Some(bytes) = bytes {
            call.log(&[b"SET", key.bytes, &bytes]);
        }
    }
    call.reply.int(len as i64);
    Ok(Flow::Replied)
}

/// The strings to combine, each key once.
struct Sources {
    /// The first source of DIFF, DIFF1 and ANDOR, if it is short or missing.
    first: Option<Bits>,
    /// The combination of all other short strings, including missing keys; `None` if there are none.
    short: Option<Mix>,
    long: Long,
    /// Minimum length of the result.
    len: usize,
}

/// The long strings among the sources.
#[derive(Clone, Default)]
struct Long {
    /// The first source of DIFF, DIFF1 and ANDOR.
    first: Option<Rope>,
    /// The others, in the order of their keys' names, and how often each occurs.
    others: Vec<(Rope, usize)>,
}

impl Sources {
    fn of(call: &mut Call<'_, '_>, operation: Operation) -> Result<Sources, WrongType> {
        let mut sources = Sources { first: None, short: None, long: Long::default(), len: 0 };
        let mut keys = &call.keys[1..];
        if operation.has_first()
            && let Some((first, others)) = keys.split_first()
        {
            keys = others;
            let (value, rope) = string_of(call, first)?;
            sources.len = value.len();
            sources.first = rope.is_none().then(|| Bits::of(value));
            sources.long.first = rope;
        }
        for (key, times) in each_once(keys) {
            let (value, rope) = string_of(call, key)?;
            sources.len = sources.len.max(value.len());
            match (rope, &mut sources.short) {
                // The string cancels itself out.
                _ if operation == Operation::Xor && times % 2 == 0 => {}
                (Some(rope), _) => sources.long.others.push((rope, times)),
                (None, None) => sources.short = Some(Mix::of(operation, value, times)),
                (None, Some(short)) => short.add(operation, Mix::of(operation, value, times)),
            }
        }
        Ok(sources)
    }

    /// Returns the number of bytes to go through.
    fn bytes(&self, operation: Operation) -> usize {
        let ropes = self.long.first.iter().chain(self.long.others.iter().map(|(rope, _)| rope));
        if operation == Operation::And && self.short.is_some() {
            // The short strings are followed by zeros.
            return ropes.count() * CHUNK;
        }
        ropes.map(|rope| rope.len()).sum()
    }
}

/// Returns the string at a key, and the same as a rope if it is one. A missing key is the empty string.
fn string_of<'g>(call: &'g mut Call<'_, '_>, key: &Key<'_>) -> Result<(Str<'g>, Option<Rope>), WrongType> {
    let Some(view) = call.guard.peek(key) else { return Ok((Str::Flat(b""), None)) };
    if view.kind() != Kind::String {
        return Err(WrongType);
    }
    Ok((view.string(), view.rope()))
}

impl Long {
    /// Whether nothing was written to any of these strings since they were shared.
    fn is_same(&self, known: &Long) -> bool {
        let is_first_same = match (&self.first, &known.first) {
            (Some(now), Some(known)) => now.is_same(known),
            (now, known) => now.is_none() && known.is_none(),
        };
        let pairs = self.others.iter().zip(&known.others);
        is_first_same
            && self.others.len() == known.others.len()
            && pairs
                .into_iter()
                .all(|((now, times), (known, times_known))| now.is_same(known) && times == times_known)
    }

    /// Combines the long strings, which may take long. The result lacks the short strings.
    fn combined(&self, operation: Operation) -> LongResult {
        let mut others: Option<Mix> = None;
        for (rope, times) in &self.others {
            let mix = Mix::of(operation, Str::Rope(rope), *times);
            match &mut others {
                None => others = Some(mix),
                Some(others) => others.add(operation, mix),
            }
        }
        if operation == Operation::Not
            && let Some(others) = &mut others
        {
            others.bits.invert();
        }
        let Some(first) = self.first.clone() else { return LongResult { first: None, mix: others } };
        let others = others.map(|mix| mix.bits).unwrap_or_default();
        let bits = with_first(operation, Bits::of(Str::Rope(&first)), others);
        LongResult { first: Some(first), mix: Some(Mix { bits, more: Bits::default() }) }
    }
}

/// The combination of the long strings. With a first source, that source has been applied.
struct LongResult {
    first: Option<Rope>,
    mix: Option<Mix>,
}

/// Adds the short strings to the combination of the long strings.
fn with_short(operation: Operation, long: LongResult, sources: Sources) -> Bits {
    let LongResult { first, mix } = long;
    let Sources { first: short_first, short, len, .. } = sources;
    let mut result = match (first, short_first) {
        // Of the first source, only the part that meets the short strings is gone through again.
        (Some(first), _) => {
            let mut result = mix.map(|mix| mix.bits).unwrap_or_default();
            if let Some(short) = short {
                let mut short = short.bits;
                match operation {
                    Operation::Diff => result.combine_bits(Step::AndNot, &short),
                    Operation::Diff1 => {
                        short.combine(Step::AndNot, Str::Rope(&first));
                        result.combine_bits(Step::Or, &short);
                    }
                    _ => {
                        short.combine(Step::And, Str::Rope(&first));
                        result.combine_bits(Step::Or, &short);
                    }
                }
            }
            result
        }
        (None, short_first) => {
            let is_short = short.is_some();
            let mut mix = match (mix, short) {
                (Some(mut long), Some(short)) => {
                    long.add(operation, short);
                    long
                }
                (long, short) => long.or(short).unwrap_or_default(),
            };
            if operation == Operation::Not && is_short {
                mix.bits.invert();
            }
            mix.bits.combine_bits(Step::AndNot, &mix.more);
            match short_first {
                Some(first) => with_first(operation, first, mix.bits),
                None => mix.bits,
            }
        }
    };
    result.grow(len);
    result
}

/// Combines the first source of DIFF, DIFF1 or ANDOR with the union of the others.
fn with_first(operation: Operation, mut first: Bits, mut others: Bits) -> Bits {
    match operation {
        Operation::Diff1 => {
            others.combine_bits(Step::AndNot, &first);
            others
        }
        Operation::Diff => {
            first.combine_bits(Step::AndNot, &others);
            first
        }
        _ => {
            first.combine_bits(Step::And, &others);
            first
        }
    }
}

/// A combination of some sources.
#[derive(Default)]
struct Mix {
    bits: Bits,
    /// For ONE: bits that more than one source has.
    more: Bits,
}

impl Mix {
    /// The combination of a single source that occurs so often.
    fn of(operation: Operation, value: Str<'_>, times: usize) -> Mix {
        let (bits, mut more) = (Bits::of(value), Bits::default());
        if operation == Operation::One && times > 1 {
            more = bits.clone();
        }
        Mix { bits, more }
    }

    fn add(&mut self, operation: Operation, other: Mix) {
        if operation == Operation::One {
            let mut both = self.bits.clone();
            both.combine_bits(Step::And, &other.bits);
            self.more.combine_bits(Step::Or, &both);
            self.more.combine_bits(Step::Or, &other.more);
        }
        self.bits.combine_bits(operation.step(), &other.bits);
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

/// A string in the making: chunks as in a rope, all but the last of [`CHUNK`] bytes; `None` is all zeros.
#[derive(Clone, Debug, Default)]
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
                let mut bytes = Bytes::with_capacity(len);
                bytes.extend_from_slice(self.bytes);
                bytes.pad(len, 0);
                bytes.into()
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
        let mut bits = Bits::default();
        bits.combine(Step::Or, value);
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
                chunk.own().pad(len, 0);
            }
        }
    }

    /// Combines it with a string; the shorter of the two is padded with zeros.
    fn combine(&mut self, step: Step, value: Str<'_>) {
        self.combine_chunks(step, value.len(), chunks_of(value));
    }

    /// The same with a string in the making.
    fn combine_bits(&mut self, step: Step, other: &Bits) {
        let chunks = other
            .chunks
            .iter()
            .map(|chunk| chunk.as_ref().map(|chunk| Source { bytes: &chunk[..], chunk: Some(chunk) }));
        self.combine_chunks(step, other.len, chunks);
    }

    fn combine_chunks<'s>(
        &mut self,
        step: Step,
        len: usize,
        mut sources: impl Iterator<Item = Option<Source<'s>>>,
    ) {
        self.grow(len);
        for index in 0..self.chunks.len() {
            let (len, source) = (self.chunk_len(index), sources.next().flatten());
            let mine = &mut self.chunks[index];
            match (step, &mut *mine, source) {
                (Step::And, Some(chunk), Some(source)) => {
                    merge(chunk, source.bytes, |byte, with| byte & with);
                    if source.bytes.len() < len {
                        chunk.own()[source.bytes.len()..].fill(0);
                    }
                }
                (Step::And, ..) => *mine = None,
                (_, _, None) | (Step::AndNot, None, _) => {}
                (_, None, Some(source)) => *mine = Some(source.share(len)),
                (Step::Xor, Some(chunk), Some(source)) => {
                    merge(chunk, source.bytes, |byte, with| byte ^ with);
                }
                (Step::AndNot, Some(chunk), Some(source)) => {
                    merge(chunk, source.bytes, |byte, with| byte & !with);
                }
                (Step::Or, Some(chunk), Some(source)) => {
                    merge(chunk, source.bytes, |byte, with| byte | with);
                }
            }
        }
    }

    fn invert(&mut self) {
        let mut ones: Option<Chunk> = None;
        for index in 0..self.chunks.len() {
            let len = self.chunk_len(index);
            let chunk = &mut self.chunks[index];
            *chunk = Some(match chunk {
                Some(chunk) => {
                    let mut inverted = Bytes::from(&**chunk);
                    inverted.iter_mut().for_each(|byte| *byte = !*byte);
                    inverted.into()
                }
                // All former holes share a single chunk.
                None if len == CHUNK => ones.get_or_insert_with(|| Bytes::of(0xff, CHUNK).into()).clone(),
                None => Bytes::of(0xff, len).into(),
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
        chunk.map_or_else(|| vec![0; self.len], |chunk| chunk.to_vec())
    }
}

/// Combines the first bytes of a chunk with other bytes, which are at most as many. A shared chunk is not
/// copied first, which would be another pass over memory.
#[inline]
fn merge(chunk: &mut Chunk, with: &[u8], operation: impl Fn(u8, u8) -> u8) {
    match chunk.get_mut() {
        Some(bytes) => bytes.iter_mut().zip(with).for_each(|(byte, with)| *byte = operation(*byte, *with)),
        None => {
            let mut bytes = Bytes::with_capacity(chunk.len());
            bytes.pad(with.len(), 0);
            let pairs = chunk.iter().zip(with);
            bytes.iter_mut().zip(pairs).for_each(|(to, (byte, with))| *to = operation(*byte, *with));
            bytes.extend_from_slice(&chunk[with.len()..]);
            *chunk = bytes.into();
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

    /// Returns a byte of the result.
    fn model(operation: Operation, bytes: &[u8]) -> u8 {
        let (first, others) = bytes.split_first().expect("a source at least");
        let union = others.iter().fold(0, |all, byte| all | byte);
        match operation {
            Operation::And => bytes.iter().fold(0xff, |all, byte| all & byte),
            Operation::Or => first | union,
            Operation::Xor => bytes.iter().fold(0, |all, byte| all ^ byte),
            Operation::Not => !first,
            Operation::Diff => first & !union,
            Operation::Diff1 => union & !first,
            Operation::AndOr => first & union,
            Operation::One => (0..8)
                .map(|bit| 1 << bit)
                .filter(|mask| bytes.iter().filter(|byte| *byte & mask != 0).count() == 1)
                .fold(0, |all, mask| all | mask),
        }
    }

    #[test]
    fn random_strings_match_a_bytewise_model() {
        use Operation::*;
        let mut random = random();
        for round in 0..600 {
            let operation = [And, Or, Xor, Not, Diff, Diff1, AndOr, One][round % 8];
            let count = if operation == Not { 1 } else { random.between(2, 5) };
            let mut made: Vec<_> = (0..count).map(|_| random_string(&mut random)).collect();
            let mut sources = Sources { first: None, short: None, long: Long::default(), len: 0 };
            let mut plains: Vec<Vec<u8>> = Vec::new();
            for (index, (value, plain)) in made.iter_mut().enumerate() {
                let times = if operation == One && random.chance(20) { 2 } else { 1 };
                plains.extend(vec![plain.clone(); times]);
                sources.len = sources.len.max(plain.len());
                let is_first = operation.has_first() && index == 0;
                match (value, &mut sources.short) {
                    (Made::Rope(rope), _) if is_first => sources.long.first = Some(rope.clone()),
                    (Made::Flat(bytes), _) if is_first => sources.first = Some(Bits::of(Str::Flat(bytes))),
                    (Made::Rope(rope), _) => sources.long.others.push((rope.clone(), times)),
                    (Made::Flat(bytes), Some(short)) => {
                        short.add(operation, Mix::of(operation, Str::Flat(bytes), times));
                    }
                    (Made::Flat(bytes), short) => {
                        *short = Some(Mix::of(operation, Str::Flat(bytes), times));
                    }
                }
            }
            let len = sources.len;
            let long = sources.long.combined(operation);
            let result = with_short(operation, long, sources);
            let expected: Vec<u8> = (0..len)
                .map(|at| {
                    let bytes = plains.iter().map(|plain| plain.get(at).copied().unwrap_or(0));
                    model(operation, &bytes.collect::<Vec<_>>())
                })
                .collect();
            assert_eq!(result.len, len);
            let result = result.made();
            assert!(len == 0 || *as_str(&result).bytes() == expected, "{operation:?} of {count}");
            // The sources share chunks with the result, and are unchanged.
            assert!(made.iter().all(|(source, plain)| *as_str(source).bytes() == *plain));
        }
    }

    #[test]
    fn holes_take_no_memory() {
        let (mut one, mut other) = (Rope::new(b"x"), Rope::new(b"y"));
        one.write(400 << 20, b"1");
        other.write(500 << 20, b"2");
        let mut bits = Bits::of(Str::Rope(&one));
        bits.combine(Step::Or, Str::Rope(&other));
        assert_eq!(bits.chunks.iter().flatten().count(), 3);
        bits.combine(Step::And, Str::Rope(&one));
        assert_eq!(bits.chunks.iter().flatten().count(), 2);
        bits.invert();
        let chunks: std::collections::HashSet<_> =
            bits.chunks.iter().flatten().map(|chunk| chunk.as_ptr()).collect();
        assert_eq!((bits.chunks.len(), chunks.len()), ((500 << 20) / CHUNK + 1, 4));
    }
}
