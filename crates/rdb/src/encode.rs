//! Writes values, in forms that readers of the chosen version know.
//!
//! The caller pushes elements. A collection in plain form goes straight to the output, element by element, so
//! a value of any size needs no memory of its own; its count comes first, so the caller must know it. A
//! packed block is built in a buffer, since its length comes first and it may be compressed.
//!
//! Every value starts with its type's number. In a file the key stands between the number and the value; see
//! [`Encoder::record`].

mod array;
mod collection;
mod list;
mod nodes;
mod pieces;
mod stream;

pub use array::ArrayWriter;
pub use collection::{Form, HashWriter, Limits, SetWriter, SortedSetWriter};
pub use list::ListWriter;
pub use nodes::{NodeCount, NodeLimits};
pub use pieces::Piece;
pub use stream::{GroupsWriter, StreamForm, StreamWriter};

use crate::block::{intset, listpack};
use crate::file::KeyMetadata;
use crate::item::{Digits, Item};
use crate::kind::{self, Version};
use crate::lzf::Compressor;

/// As in Redis, shorter strings (in bytes) are not compressed, and compression must save a minimum of bytes.
const COMPRESSED_MIN: usize = 21;
const COMPRESSION_GAIN_MIN: usize = 4;

/// Longest packed block in bytes: Redis refuses to grow a listpack beyond it.
const BLOCK_MAX: usize = 1 << 30;

/// The sink of written bytes: memory, or a forwarder.
pub trait Out {
    fn put(&mut self, bytes: &[u8]);
}

impl Out for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl<O: Out> Out for &mut O {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        (**self).put(bytes);
    }
}

/// Writes values in sequence. Its buffers (a block, a table for compression) are kept between values.
pub struct Encoder<O> {
    out: O,
    version: Version,
    /// The version of records without a version of their own, and the highest version used.
    base: Version,
    highest: Version,
    strings: Strings,
    /// The block under construction, and the buffer that its bytes are put together in.
    builder: listpack::Builder,
    block: Vec<u8>,
    /// The key to write behind the next type's number, if `has_key`.
    key: Vec<u8>,
    has_key: bool,
    block_max: usize,
}

/// Writes strings, compressed or plain.
#[derive(Default)]
struct Strings {
    compressor: Option<Compressor>,
    scratch: Vec<u8>,
    plain: bool,
    misses: Misses,
}

/// Decides which strings compression skips. If so many strings of about the same length in a row were not
/// shortened, one of three to five is tried and the rest is written plain, until a trial succeeds. For values
/// of 700 B without repetitions (compressed or encrypted data), the search for repetitions is a third of a
/// snapshot's cost.
#[derive(Default)]
struct Misses {
    /// Failed trials in a row, by the logarithm of the length; from [`MISSES_MAX`] on, skipped strings count
    /// as well.
    in_a_row: [u8; LENGTHS],
    /// Number of trials between skipped strings.
    tries: u8,
}

const MISSES_MAX: u8 = 32;
/// This many strings, or up to two more by turns, are skipped. With a fixed number the trials might always
/// hit the keys and never the values.
const UNTRIED: u8 = 2;

/// Strings of 4 KiB or more are always tried.
const LENGTHS: usize = 12;

impl Misses {
    fn is_worth_a_try(&mut self, len: usize) -> bool {
        let Some(misses) = self.in_a_row.get_mut(len.ilog2() as usize) else { return true };
        if *misses < MISSES_MAX {
            return true;
        }
        let is_worth_it = *misses >= MISSES_MAX + UNTRIED + self.tries % 3;
        (*misses, self.tries) =
            if is_worth_it { (*misses, self.tries.wrapping_add(1)) } else { (*misses + 1, self.tries) };
        is_worth_it
    }

    fn record_trial(&mut self, len: usize, is_miss: bool) {
        if let Some(misses) = self.in_a_row.get_mut(len.ilog2() as usize) {
            *misses = if is_miss { (*misses + 1).min(MISSES_MAX) } else { 0 };
        }
    }
}

impl<O: Out> Encoder<O> {
    pub fn new(out: O, version: Version) -> Encoder<O> {
        let (strings, builder) = (Strings::default(), listpack::Builder::new(version >= Version::V80));
        Encoder {
            out,
            version,
            base: version,
            highest: version,
            strings,
            builder,
            block: Vec::new(),
            key: Vec::new(),
            has_key: false,
            block_max: BLOCK_MAX,
        }
    }

    /// Writes strings plain (`rdbcompression no`).
    pub fn without_compression(mut self) -> Encoder<O> {
        self.strings.plain = true;
        self
    }

    pub fn version(&self) -> Version {
        self.version
    }

    pub fn out(&mut self) -> &mut O {
        &mut self.out
    }

    pub fn into_out(self) -> O {
        self.out
    }

    /// Starts the record of a key in a file; its value comes next.
    ///
    /// A file's records need no other state, so any number of threads may encode records, each with its own
    /// encoder.
    pub fn record(&mut self, key: Item<'_>, metadata: &KeyMetadata) {
        self.version = self.base;
        metadata.put(&mut self.out);
        self.key(key);
    }

    /// Writes forms of this version until the next record, if it is higher than the encoder's own.
    ///
    /// A reader of a version knows all lower versions, so a file may mix them; its header must name the
    /// highest.
    pub fn raise(&mut self, version: Version) {
        self.version = self.version.max(version);
        self.highest = self.highest.max(version);
    }

    /// Returns the highest version of the forms written so far.
    pub fn highest(&self) -> Version {
        self.highest
    }

    /// Sets the key to put between the next type's number and the value, as in a file's records.
    pub fn key(&mut self, key: Item<'_>) {
        self.key.clear();
        self.key.extend_from_slice(key.bytes(&mut Digits::default()));
        self.has_key = true;
    }

    // ---- values ----

    pub fn string(&mut self, string: Item<'_>) {
        self.begin(kind::STRING);
        self.put_string(string);
    }

    /// Writes a string of `len` bytes in pieces, each compressed by itself: 64 KiB each at best.
    pub fn string_in_pieces<'p>(&mut self, len: usize, pieces: impl Iterator<Item = Piece<'p>> + Clone) {
        self.begin(kind::STRING);
        self.strings.put_pieces(&mut self.out, len, pieces);
    }

    /// Writes a set of integers in ascending order: at most `u32::MAX`, not zero.
    pub fn intset(&mut self, numbers: impl Iterator<Item = i64> + Clone) {
        self.begin(kind::SET_INTSET);
        intset::block(numbers, &mut self.block);
        self.strings.put_bytes(&mut self.out, &self.block);
    }

    /// Writes a list. `nodes`: the number of nodes if a [`NodeCount`] has counted them; without it the output
    /// waits in memory for its count.
    pub fn list(&mut self, limits: NodeLimits, nodes: Option<u64>) -> ListWriter<'_, O> {
        ListWriter::new(self, limits, nodes)
    }

    /// Writes a set of `count` members, not zero.
    pub fn set(&mut self, form: Form, count: u64) -> SetWriter<'_, O> {
        SetWriter::new(self, form, count)
    }

    /// Writes a sorted set of `count` members, not zero.
    pub fn sorted_set(&mut self, form: Form, count: u64) -> SortedSetWriter<'_, O> {
        SortedSetWriter::new(self, form, count)
    }

    /// Writes a hash of `count` fields, not zero, without expiry.
    pub fn hash(&mut self, form: Form, count: u64) -> HashWriter<'_, O> {
        HashWriter::new(self, form, count)
    }

    /// Writes a hash of `count` fields, not zero, that may expire; `None` if the version has no such
    /// hash.
    pub fn expiring_hash(&mut self, count: u64) -> Option<HashWriter<'_, O>> {
        self.version.has_field_expiry().then(|| HashWriter::expiring(self, count))
    }

    /// Writes a stream. `nodes`: as with lists.
    pub fn stream(&mut self, limits: NodeLimits, nodes: Option<u64>) -> StreamWriter<'_, O> {
        self.stream_of(StreamForm::Plain, limits, nodes)
    }

    /// [`Encoder::stream`] of a certain form, whose version the encoder may have to be raised to.
    pub fn stream_of(
        &mut self,
        form: StreamForm,
        limits: NodeLimits,
        nodes: Option<u64>,
    ) -> StreamWriter<'_, O> {
        StreamWriter::new(self, limits, nodes, form)
    }

    /// Writes an array of `count` values, not zero, with the index of its last insertion; `None` if the
    /// version has no arrays.
    pub fn array(&mut self, count: u64, cursor: Option<u64>) -> Option<ArrayWriter<'_, O>> {
        self.version.has_arrays().then(|| ArrayWriter::new(self, count, cursor))
    }

    // ---- primitives ----

    pub fn put_byte(&mut self, byte: u8) {
        self.out.put(&[byte]);
    }

    pub fn put_length(&mut self, length: u64) {
        put_length(&mut self.out, length);
    }

    /// Writes a string: as an integer if it reads as an `i32`, else compressed if that saves bytes.
    pub fn put_string(&mut self, string: Item<'_>) {
        self.strings.put(&mut self.out, string);
    }

    pub fn put_millis(&mut self, time: u64) {
        self.out.put(&time.to_le_bytes());
    }

    /// Writes a type's number, and the key if one waits.
    fn begin(&mut self, kind: u8) {
        self.put_byte(kind);
        if std::mem::take(&mut self.has_key) {
            self.strings.put(&mut self.out, Item::Bytes(&self.key));
        }
    }

    /// Writes the finished block, and empties the builder.
    fn put_block(&mut self) {
        self.builder.block(&mut self.block);
        self.builder.clear();
        self.strings.put_bytes(&mut self.out, &self.block);
    }
}

impl Strings {
    fn put(&mut self, out: &mut impl Out, string: Item<'_>) {
        match (string, small_int(string)) {
            (_, Some(number)) => put_int(out, number),
            (Item::Bytes(bytes), None) => self.put_bytes(out, bytes),
            (Item::Int(_), None) => self.put_bytes(out, string.bytes(&mut Digits::default())),
        }
    }

    /// Writes bytes that are no integer, such as a block.
    fn put_bytes(&mut self, out: &mut impl Out, bytes: &[u8]) {
        if bytes.len() < COMPRESSED_MIN || self.plain || !self.put_compressed(out, bytes) {
            put_length(out, bytes.len() as u64);
            out.put(bytes);
        }
    }

    fn put_compressed(&mut self, out: &mut impl Out, bytes: &[u8]) -> bool {
        if !self.misses.is_worth_a_try(bytes.len()) {
            return false;
        }
        let compressor = self.compressor.get_or_insert_with(Compressor::new);
        let compressed = compressor.compress(bytes, &mut self.scratch, bytes.len() - COMPRESSION_GAIN_MIN);
        self.misses.record_trial(bytes.len(), compressed.is_none());
        let Some(compressed) = compressed else { return false };
        out.put(&[0xc3]);
        put_length(out, compressed.len() as u64);
        put_length(out, bytes.len() as u64);
        out.put(compressed);
        true
    }
}

/// Parses an integer of 32 bits. A string of more than 11 bytes cannot be one.
fn small_int(string: Item<'_>) -> Option<i32> {
    match string {
        Item::Bytes(bytes) if bytes.len() > 11 => None,
        string => string.int().and_then(|number| i32::try_from(number).ok()),
    }
}

fn put_int(out: &mut impl Out, number: i32) {
    let [a, b, c, d] = number.to_le_bytes();
    match number {
        -0x80..=0x7f => out.put(&[0xc0, a]),
        -0x8000..=0x7fff => out.put(&[0xc1, a, b]),
        _ => out.put(&[0xc2, a, b, c, d]),
    }
}

pub(crate) fn put_length(out: &mut impl Out, length: u64) {
    match length {
        0..0x40 => out.put(&[length as u8]),
        0x40..0x4000 => out.put(&(length as u16 | 0x4000).to_be_bytes()),
        0x4000..=0xffff_ffff => {
            out.put(&[0x80]);
            out.put(&(length as u32).to_be_bytes());
        }
        _ => {
            out.put(&[0x81]);
            out.put(&length.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the encoded length of a string without its length prefix.
    fn len_of(encoder: &mut Encoder<Vec<u8>>, string: &[u8]) -> usize {
        let before = encoder.out().len();
        encoder.strings.put_bytes(&mut encoder.out, string);
        encoder.out().len() - before
    }

    #[test]
    fn incompressible_strings_are_not_always_tried() {
        let mut encoder = Encoder::new(Vec::new(), Version::V10);
        let mut random = evenkeel_testkit::Random::new(7);
        let mut noise = |len: usize| -> Vec<u8> { (0..len).map(|_| random.draw() as u8).collect() };
        let text = |len: usize| b"ab".repeat(len / 2);
        for _ in 0..100 {
            assert!(len_of(&mut encoder, &noise(700)) > 700);
        }
        // Strings of other lengths and long strings are always tried.
        assert!(len_of(&mut encoder, &text(300)) < 100);
        for _ in 0..100 {
            len_of(&mut encoder, &noise(9_000));
        }
        assert!(len_of(&mut encoder, &text(9_000)) < 1_000);
        let first = (0..10).find(|_| len_of(&mut encoder, &text(700)) < 100).expect("one is tried");
        assert!(first >= u32::from(UNTRIED), "{first} were not tried");
        for _ in 0..100 {
            len_of(&mut encoder, &noise(700));
        }
        // Keys and values take turns.
        let values = (0..20).filter(|_| {
            len_of(&mut encoder, &noise(690));
            len_of(&mut encoder, &text(700)) < 100
        });
        assert!(values.count() > 10);
        // One success among 32 restores the trial of each string.
        for number in 1..400 {
            assert!(len_of(&mut encoder, &noise(700)) > 700);
            if number % (u32::from(MISSES_MAX) - 1) == 0 {
                assert!(len_of(&mut encoder, &text(700)) < 100, "behind {number}");
            }
        }
    }

    fn string(string: Item<'_>) -> Vec<u8> {
        let mut encoder = Encoder::new(Vec::new(), Version::V10);
        encoder.put_string(string);
        encoder.into_out()
    }

    #[test]
    fn strings_take_the_forms_that_redis_gives_them() {
        assert_eq!(string(Item::Bytes(b"hello")), b"\x05hello");
        assert_eq!(string(Item::Bytes(b"-128")), b"\xc0\x80");
        assert_eq!(string(Item::Int(12_345)), b"\xc1\x39\x30");
        assert_eq!(string(Item::Bytes(b"-2147483648")), b"\xc2\x00\x00\x00\x80");
        assert_eq!(string(Item::Int(2_147_483_648)), b"\x0a2147483648");
        assert_eq!(string(Item::Bytes(b"007")), b"\x03007");
        assert_eq!(string(Item::Bytes(&[b'a'; 100])), b"\xc3\x05\x40\x64\x00a\xe0\x5a\x00");
        assert_eq!(string(Item::Bytes(&[b'a'; 20]))[0], 20);
        assert_eq!(string(Item::Bytes(&[b'a'; 21]))[0], 0xc3);
        let mut plain = Encoder::new(Vec::new(), Version::V10).without_compression();
        plain.put_string(Item::Bytes(&[b'a'; 100]));
        assert_eq!(plain.out().len(), 102);
    }

    #[test]
    fn lengths_take_the_shortest_form() {
        for (length, bytes) in [
            (63, &b"\x3f"[..]),
            (64, b"\x40\x40"),
            (16_383, b"\x7f\xff"),
            (16_384, b"\x80\x00\x00\x40\x00"),
            (u64::from(u32::MAX), b"\x80\xff\xff\xff\xff"),
            (1 << 32, b"\x81\x00\x00\x00\x01\x00\x00\x00\x00"),
        ] {
            let mut out = Vec::new();
            put_length(&mut out, length);
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn a_higher_version_ends_with_its_record() {
        let mut encoder = Encoder::new(Vec::new(), Version::V10);
        encoder.record(Item::Bytes(b"a"), &KeyMetadata::default());
        assert!(encoder.expiring_hash(1).is_none());
        encoder.raise(Version::V80);
        let mut hash = encoder.expiring_hash(1).expect("it was raised");
        hash.push(Item::Bytes(b"f"), Item::Bytes(b"v"), Some(1));
        hash.finish();
        encoder.raise(Version::V11);
        assert_eq!(encoder.version(), Version::V80, "it is not lowered");
        encoder.record(Item::Bytes(b"b"), &KeyMetadata::default());
        assert_eq!((encoder.version(), encoder.highest()), (Version::V10, Version::V80));
    }

    #[test]
    fn a_record_of_a_file_has_its_key_behind_the_type() {
        let mut encoder = Encoder::new(Vec::new(), Version::V10);
        encoder.record(Item::Bytes(b"k"), &KeyMetadata::default());
        encoder.string(Item::Bytes(b"v"));
        encoder.string_in_pieces(3, [Piece::Bytes(b"ab"), Piece::Bytes(b"c")].into_iter());
        assert_eq!(encoder.into_out(), b"\x00\x01k\x01v\x00\x03abc");
    }
}
