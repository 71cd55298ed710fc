//! Sets, sorted sets and hashes: a count and the elements, or a single packed block.
//!
//! A packed value whose block would outgrow [`BLOCK_MAX`](super::BLOCK_MAX) is written in plain form instead:
//! the writer unpacks the elements packed so far, and goes on in plain form.

use super::{Encoder, Out, put_length};
use crate::Millis;
use crate::block::listpack::{self, Cursor};
use crate::item::{Digits, Item};
use crate::kind;

/// The form of a set, a sorted set or a hash. Readers convert either form by their own settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A single packed block, for a small value. Before version 11 sets have no such form and are written
    /// plain.
    Packed,
    /// Element by element, for a value of any size.
    Plain,
}

/// Limits of a small value: `hash-max-listpack-entries` and `-value`, and the like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most members or fields.
    pub entries_max: u64,
    /// Longest member, field or value, in bytes.
    pub value_max: usize,
}

impl Limits {
    pub fn form(&self, entries: u64, longest: usize) -> Form {
        match entries <= self.entries_max && longest <= self.value_max {
            true => Form::Packed,
            false => Form::Plain,
        }
    }
}

/// Writes the members of a set.
#[must_use = "what is not finished is not written"]
pub struct SetWriter<'e, O: Out>(Collection<'e, O>);

impl<'e, O: Out> SetWriter<'e, O> {
    pub(super) fn new(encoder: &'e mut Encoder<O>, form: Form, count: u64) -> Self {
        let form = if encoder.version.has_packed_sets() { form } else { Form::Plain };
        SetWriter(Collection::new(encoder, SET, form, count))
    }

    pub fn push(&mut self, member: Item<'_>) {
        self.0.entry();
        self.0.put(member);
    }

    pub fn finish(self) {
        self.0.finish();
    }
}

/// Writes the members of a sorted set with their scores.
#[must_use = "what is not finished is not written"]
pub struct SortedSetWriter<'e, O: Out>(Collection<'e, O>);

impl<'e, O: Out> SortedSetWriter<'e, O> {
    pub(super) fn new(encoder: &'e mut Encoder<O>, form: Form, count: u64) -> Self {
        SortedSetWriter(Collection::new(encoder, SORTED_SET, form, count))
    }

    /// In packed form members must ascend; in plain form Redis loads descending members fastest.
    pub fn push(&mut self, member: Item<'_>, score: f64) {
        assert!(!score.is_nan(), "a score is a number");
        self.0.entry();
        self.0.put(member);
        self.0.put_score(score);
    }

    pub fn finish(self) {
        self.0.finish();
    }
}

/// Writes the fields of a hash.
#[must_use = "what is not finished is not written"]
pub struct HashWriter<'e, O: Out> {
    collection: Collection<'e, O>,
    expiring: bool,
}

impl<'e, O: Out> HashWriter<'e, O> {
    pub(super) fn new(encoder: &'e mut Encoder<O>, form: Form, count: u64) -> Self {
        HashWriter { collection: Collection::new(encoder, HASH, form, count), expiring: false }
    }

    pub(super) fn expiring(encoder: &'e mut Encoder<O>, count: u64) -> Self {
        HashWriter { collection: Collection::new(encoder, EXPIRING_HASH, Form::Plain, count), expiring: true }
    }

    /// `expires` requires a hash begun by [`Encoder::expiring_hash`](super::Encoder::expiring_hash).
    pub fn push(&mut self, field: Item<'_>, value: Item<'_>, expires: Option<Millis>) {
        self.collection.entry();
        self.collection.put(field);
        self.collection.put(value);
        match (self.expiring, expires) {
            (true, expires) => self.collection.encoder.put_millis(expires.unwrap_or(u64::MAX)), // -1: never
            (false, None) => {}
            (false, Some(_)) => panic!("a field expires in a hash that was begun as one where none does"),
        }
    }

    pub fn finish(self) {
        self.collection.finish();
    }
}

/// The numbers of a collection's types, and the number of block elements per entry.
struct CollectionKind {
    plain: u8,
    packed: u8,
    elements: u32,
    /// Whether an entry's second element is eight bytes in plain form, and text or an integer in a block.
    scored: bool,
}

const SET: CollectionKind =
    CollectionKind { plain: kind::SET, packed: kind::SET_LISTPACK, elements: 1, scored: false };
const SORTED_SET: CollectionKind =
    CollectionKind { plain: kind::ZSET_2, packed: kind::ZSET_LISTPACK, elements: 2, scored: true };
const HASH: CollectionKind =
    CollectionKind { plain: kind::HASH, packed: kind::HASH_LISTPACK, elements: 2, scored: false };
const EXPIRING_HASH: CollectionKind =
    CollectionKind { plain: kind::HASH_2, packed: kind::HASH_2, elements: 3, scored: false };

struct Collection<'e, O: Out> {
    encoder: &'e mut Encoder<O>,
    kind: CollectionKind,
    form: Form,
    /// Number of announced entries still to come.
    left: u64,
}

impl<'e, O: Out> Collection<'e, O> {
    fn new(encoder: &'e mut Encoder<O>, kind: CollectionKind, form: Form, count: u64) -> Self {
        assert!(count > 0, "an empty collection has no serialized form");
        match form {
            Form::Packed => encoder.builder.clear(),
            Form::Plain => {
                encoder.begin(kind.plain);
                encoder.put_length(count);
            }
        }
        Collection { encoder, kind, form, left: count }
    }

    fn entry(&mut self) {
        self.left = self.left.checked_sub(1).expect("no more entries than announced");
    }

    #[inline]
    fn put(&mut self, item: Item<'_>) {
        let len = if let Item::Bytes(bytes) = item { bytes.len() } else { 0 };
        match self.packs(len) {
            true => self.encoder.builder.push(item),
            false => self.encoder.put_string(item),
        }
    }

    fn put_score(&mut self, score: f64) {
        match self.packs(SCORE_TEXT_MAX) {
            true => self.encoder.builder.push(packed_score(score, &mut String::new())),
            false => self.encoder.out.put(&score.to_le_bytes()),
        }
    }

    /// Whether the next element, of `len` bytes, goes into the block. Unpacks the block if the element does
    /// not fit, or if some readers would refuse it there.
    #[inline]
    fn packs(&mut self, len: usize) -> bool {
        let fits = || {
            let bytes = self.encoder.builder.len() + listpack::size_max(len);
            bytes <= self.encoder.block_max && !listpack::is_disputed(len)
        };
        if self.form == Form::Packed && !fits() {
            self.unpack();
        }
        self.form == Form::Packed
    }

    /// Changes to plain form, with the current entry incomplete.
    #[cold]
    fn unpack(&mut self) {
        let encoder = &mut *self.encoder;
        let (before, elements) = (encoder.builder.elements(), self.kind.elements);
        let entry_at_hand = 1; // `entry` has counted it
        let count = u64::from(before / elements) + entry_at_hand + self.left;
        encoder.builder.block(&mut encoder.block);
        encoder.builder.clear();
        encoder.begin(self.kind.plain);
        put_length(&mut encoder.out, count);
        let mut cursor = Cursor::open(&encoder.block).expect("it was built here");
        for index in 0..before {
            let element =
                cursor.next(&encoder.block).expect("it was built here").expect("as many as were put in");
            match element.item(&encoder.block) {
                item if self.kind.scored && index % 2 == 1 => encoder.out.put(&score_of(item).to_le_bytes()),
                item => encoder.strings.put(&mut encoder.out, item),
            }
        }
        self.form = Form::Plain;
    }

    fn finish(self) {
        assert_eq!(self.left, 0, "as many entries as announced");
        if let Form::Packed = self.form {
            self.encoder.begin(self.kind.packed);
            self.encoder.put_block();
        }
    }
}

/// Longest text of a score: a sign, 17 digits, a point, `e-` and three digits; or 19 digits and a fraction's
/// zeros.
const SCORE_TEXT_MAX: usize = 32;

/// Returns a score as an element of a block: as an integer if a double holds it exactly, else as the shortest
/// text that reads as the same number.
fn packed_score(score: f64, text: &mut String) -> Item<'_> {
    const EXACT_MAX: f64 = (1u64 << 53) as f64;
    if score.fract() == 0.0 && score.abs() <= EXACT_MAX && !(score == 0.0 && score.is_sign_negative()) {
        return Item::Int(score as i64);
    }
    *text = match score.abs() {
        0.0 | 1e-5..1e17 => format!("{score}"),
        size if size.is_infinite() => format!("{score}"),
        _ => format!("{score:e}"),
    };
    debug_assert!(text.len() <= SCORE_TEXT_MAX);
    Item::Bytes(text.as_bytes())
}

/// The inverse of [`packed_score`].
fn score_of(item: Item<'_>) -> f64 {
    let mut digits = Digits::default();
    let text = std::str::from_utf8(item.bytes(&mut digits)).ok();
    text.and_then(|text| text.parse().ok()).expect("a score was put in")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Decoder, Object};
    use crate::kind::Version;
    use crate::source::Slice;

    fn pairs(bytes: &[u8]) -> Vec<(Vec<u8>, f64)> {
        let mut all = Vec::new();
        let mut decoder = Decoder::new(Slice::new(bytes), 11);
        let Ok(Object::SortedSet(mut members)) = decoder.object() else { panic!("a sorted set") };
        while let Some(member) = members.next().expect("it was written here") {
            all.push((member.name.to_vec(), member.score));
        }
        all
    }

    #[test]
    fn scores_come_back_bit_by_bit() {
        let mut scores =
            vec![f64::NEG_INFINITY, -1e300, -9_007_199_254_740_993.0, -1.5, -1e-9, -0.0, 1e-320, 0.1];
        scores.extend([2.5, 3.0, 1e16, 9_007_199_254_740_992.0, 1e17, 1.7976931348623157e308, f64::INFINITY]);
        scores.sort_by(f64::total_cmp);
        for form in [Form::Packed, Form::Plain] {
            let mut encoder = Encoder::new(Vec::new(), Version::V10);
            let mut writer = encoder.sorted_set(form, scores.len() as u64);
            scores.iter().enumerate().for_each(|(index, score)| writer.push(Item::Int(index as i64), *score));
            writer.finish();
            let found: Vec<u64> = pairs(&encoder.into_out()).iter().map(|pair| pair.1.to_bits()).collect();
            assert_eq!(found, scores.iter().map(|score| score.to_bits()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_block_that_outgrows_its_bound_is_written_plain() {
        let mut kinds = Vec::new();
        for block_max in 20..500 {
            let mut encoder = Encoder::new(Vec::new(), Version::V11);
            encoder.block_max = block_max;
            encoder.key(Item::Bytes(b"key"));
            let mut writer = encoder.sorted_set(Form::Packed, 20);
            let members: Vec<(Vec<u8>, f64)> =
                (0..20).map(|n| (format!("member {n:2}").into_bytes(), f64::from(n) / 4.0)).collect();
            members.iter().for_each(|(name, score)| writer.push(Item::Bytes(name), *score));
            writer.finish();
            let out = encoder.into_out();
            kinds.push(out[0]);
            assert_eq!(&out[1..5], b"\x03key");
            let without_key = [&out[..1], &out[5..]].concat();
            assert_eq!(pairs(&without_key), members);
        }
        kinds.dedup();
        assert_eq!(kinds, [kind::ZSET_2, kind::ZSET_LISTPACK]);
    }

    #[test]
    fn limits_decide_the_form() {
        let limits = Limits { entries_max: 128, value_max: 64 };
        assert_eq!(limits.form(128, 64), Form::Packed);
        assert_eq!(limits.form(129, 1), Form::Plain);
        assert_eq!(limits.form(1, 65), Form::Plain);
    }

    #[test]
    fn forms_unknown_to_a_version_are_not_written() {
        let mut encoder = Encoder::new(Vec::new(), Version::V10);
        assert!(encoder.expiring_hash(1).is_none());
        let mut set = encoder.set(Form::Packed, 1);
        set.push(Item::Bytes(b"a"));
        set.finish();
        assert_eq!(encoder.into_out(), b"\x02\x01\x01a");
    }
}
