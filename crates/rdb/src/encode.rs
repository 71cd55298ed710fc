//! Writing values, in forms that the chosen version's readers know.
//!
//! Writing is by pushing. A collection in plain form goes straight to the output, element by element, so a value of any
//! size needs no memory of its own; its count must be known beforehand, since it comes first. A packed block is built
//! aside, since its length comes first and it may be compressed.
//!
//! Every value starts with its type's number. In a file the key stands between the two, so there the number is asked
//! for and left out: see [`Encoder::record`].

mod collection;
mod list;
mod nodes;
mod pieces;
mod stream;

pub use collection::{Form, HashWriter, Limits, SetWriter, SortedSetWriter};
pub use list::ListWriter;
pub use nodes::{NodeCount, NodeLimits};
pub use pieces::Piece;
pub use stream::{GroupsWriter, StreamWriter};

use crate::block::{intset, listpack};
use crate::file::About;
use crate::item::{Digits, Item};
use crate::kind::{self, Version};
use crate::lzf::Compressor;

/// Shorter strings are never compressed, in bytes, nor are those that do not lose this many by it: as Redis has it.
const COMPRESSED_MIN: usize = 21;
const COMPRESSION_GAIN_MIN: usize = 4;

/// The most bytes of a packed block: Redis' own bound, from which on it refuses to grow a listpack.
const BLOCK_MAX: usize = 1 << 30;

/// What takes the bytes that are written: memory, or what passes them on.
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

/// Writes values one after the other. What it needs aside (a block, a table for compression) is kept between them.
pub struct Encoder<O> {
    out: O,
    version: Version,
    /// The version of records that ask for no other, and the highest one that was used.
    base: Version,
    highest: Version,
    strings: Strings,
    /// The block that is being built, and where its bytes are put together.
    builder: listpack::Builder,
    block: Vec<u8>,
    /// What to write behind the next type's number, if `has_key`.
    key: Vec<u8>,
    has_key: bool,
    block_max: usize,
}

/// Writes strings: how, and with what.
#[derive(Default)]
struct Strings {
    compressor: Option<Compressor>,
    scratch: Vec<u8>,
    plain: bool,
    misses: Misses,
}

/// Which strings are not worth a try: where so many in a row of about the same length have lost nothing by compression, one of three
/// to five is tried, and the others are written as they are, until one does lose something. Looking for repetitions is a third
/// of what a snapshot costs of values of 700 B that have none, such as what is compressed or encrypted already.
#[derive(Default)]
struct Misses {
    /// By the logarithm of the length, in a row; from [`MISSES_MAX`] on, those that were not tried are counted as well.
    in_a_row: [u8; LENGTHS],
    /// How often one has been tried among others that were not.
    tries: u8,
}

const MISSES_MAX: u8 = 32;
/// By turns this many and up to two more are not tried: with one number alone it might always be the keys that are, and never
/// the values.
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

    fn note(&mut self, len: usize, is_miss: bool) {
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

    /// Writes strings as they are (`rdbcompression no`).
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

    /// Starts the record of a key, as files have it; its value comes next.
    ///
    /// Nothing else is needed to write a file's records, so any number of threads may do it, each with its own encoder.
    pub fn record(&mut self, key: Item<'_>, about: &About) {
        self.version = self.base;
        about.put(&mut self.out);
        self.key(key);
    }

    /// From here to the next record, writes forms of this version, if that is a higher one than the encoder's own.
    ///
    /// A reader of a version knows all lower ones, so a file may mix them; its header must name the highest.
    pub fn raise(&mut self, version: Version) {
        self.version = self.version.max(version);
        self.highest = self.highest.max(version);
    }

    /// The highest version that anything was written in so far.
    pub fn highest(&self) -> Version {
        self.highest
    }

    /// Puts the key between the next value and its type's number: the form of a file's records.
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

    /// A string of `len` bytes that lies in pieces, each of which is compressed by itself: at best some 64 KiB.
    pub fn string_in_pieces<'p>(&mut self, len: usize, pieces: impl Iterator<Item = Piece<'p>> + Clone) {
        self.begin(kind::STRING);
        self.strings.put_pieces(&mut self.out, len, pieces);
    }

    /// A set of integers, which come in ascending order. There is at least one, and at most `u32::MAX`.
    pub fn intset(&mut self, numbers: impl Iterator<Item = i64> + Clone) {
        self.begin(kind::SET_INTSET);
        intset::block(numbers, &mut self.block);
        self.strings.put_bytes(&mut self.out, &self.block);
    }

    /// A list. `nodes`: how many nodes there will be, where a [`NodeCount`] has counted them beforehand;
    /// without it, what is written waits in memory for its count.
    pub fn list(&mut self, limits: NodeLimits, nodes: Option<u64>) -> ListWriter<'_, O> {
        ListWriter::new(self, limits, nodes)
    }

    /// A set of `count` members, at least one.
    pub fn set(&mut self, form: Form, count: u64) -> SetWriter<'_, O> {
        SetWriter::new(self, form, count)
    }

    /// A sorted set of `count` members, at least one.
    pub fn sorted_set(&mut self, form: Form, count: u64) -> SortedSetWriter<'_, O> {
        SortedSetWriter::new(self, form, count)
    }

    /// A hash of `count` fields, at least one, of which none expires.
    pub fn hash(&mut self, form: Form, count: u64) -> HashWriter<'_, O> {
        HashWriter::new(self, form, count)
    }

    /// A hash of `count` fields, at least one, that may expire; `None`: this version has no such thing.
    pub fn expiring_hash(&mut self, count: u64) -> Option<HashWriter<'_, O>> {
        self.version.has_field_expiry().then(|| HashWriter::expiring(self, count))
    }

    /// A stream. `nodes`: as with lists.
    pub fn stream(&mut self, limits: NodeLimits, nodes: Option<u64>) -> StreamWriter<'_, O> {
        StreamWriter::new(self, limits, nodes)
    }

    // ---- primitives ----

    pub fn put_byte(&mut self, byte: u8) {
        self.out.put(&[byte]);
    }

    pub fn put_length(&mut self, length: u64) {
        put_length(&mut self.out, length);
    }

    /// As an integer where it reads as one of 32 bits, else compressed where that is worth it.
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

    /// Writes the block that has been built, and empties the builder.
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

    /// Without the look at whether it is an integer: a block never is.
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
        self.misses.note(bytes.len(), compressed.is_none());
        let Some(compressed) = compressed else { return false };
        out.put(&[0xc3]);
        put_length(out, compressed.len() as u64);
        put_length(out, bytes.len() as u64);
        out.put(compressed);
        true
    }
}

/// Integers of up to 11 digits and sign are worth a look.
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

    /// Bytes that an encoder takes for a string without its length.
    fn len_of(encoder: &mut Encoder<Vec<u8>>, string: &[u8]) -> usize {
        let before = encoder.out().len();
        encoder.strings.put_bytes(&mut encoder.out, string);
        encoder.out().len() - before
    }

    #[test]
    fn what_is_never_less_is_not_always_tried() {
        let mut encoder = Encoder::new(Vec::new(), Version::V10);
        let mut random = evenkeel_testkit::Random::new(7);
        let mut noise = |len: usize| -> Vec<u8> { (0..len).map(|_| random.draw() as u8).collect() };
        let text = |len: usize| b"ab".repeat(len / 2);
        for _ in 0..100 {
            assert!(len_of(&mut encoder, &noise(700)) > 700);
        }
        // Of other lengths each is, and the long ones.
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
        // That is enough: where one among 32 is less, each is tried.
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
        encoder.record(Item::Bytes(b"a"), &About::default());
        assert!(encoder.expiring_hash(1).is_none());
        encoder.raise(Version::V80);
        let mut hash = encoder.expiring_hash(1).expect("it was raised");
        hash.push(Item::Bytes(b"f"), Item::Bytes(b"v"), Some(1));
        hash.finish();
        encoder.raise(Version::V11);
        assert_eq!(encoder.version(), Version::V80, "it is not lowered");
        encoder.record(Item::Bytes(b"b"), &About::default());
        assert_eq!((encoder.version(), encoder.highest()), (Version::V10, Version::V80));
    }

    #[test]
    fn a_file_s_record_has_its_key_behind_the_type() {
        let mut encoder = Encoder::new(Vec::new(), Version::V10);
        encoder.record(Item::Bytes(b"k"), &About::default());
        encoder.string(Item::Bytes(b"v"));
        encoder.string_in_pieces(3, [Piece::Bytes(b"ab"), Piece::Bytes(b"c")].into_iter());
        assert_eq!(encoder.into_out(), b"\x00\x01k\x01v\x00\x03abc");
    }
}
