//! Reads values: the primitives of the format, and an [`Object`] per type that yields its elements.
//!
//! The caller pulls. An object borrows the decoder and lends an element at a time, from the source, from the
//! decompressed copy of a block, or as an integer. So the decoder builds no collection that the caller would
//! build again. In return an error may come after some elements were taken; then the caller drops them.

mod array;
mod elements;
mod fields;
mod long;
mod members;
mod packed;
mod pass;
mod seen;
mod stream;

pub use array::ArrayElements;
pub use elements::Elements;
pub use fields::{Field, Fields};
pub use long::{LongString, PIECE};
pub use members::{Member, Members};
pub use stream::{Entry, EntryFields, Groups, Stream};

use crate::Millis;
use crate::block::BlockKind;
use crate::error::{Error, Reason, Result};
use crate::item::Item;
use crate::kind::{self, FIRST_VALKEY_VERSION};
use crate::lzf;
use crate::source::Source;
use elements::Nodes;
use fields::Expiry;
use long::StringValue;
use packed::Packed;

/// Buffers for decompressed or kept strings that a large string has made larger than this, in bytes, are
/// freed.
const ROOM_KEPT_MAX: usize = 1024 * 1024;

/// Bound of an announced number of elements if the remaining length is unknown.
const UNCHECKED_ROOM_MAX: u64 = 65_536;

/// Reads values, and the primitives between them, from a source.
pub struct Decoder<S> {
    source: S,
    version: u16,
    refuses_duplicates: bool,
    /// The decompressed content of the last compressed string.
    unpacked: Vec<u8>,
    /// Strings that must survive the next read: a field while its value is read.
    kept: [Vec<u8>; 2],
    /// Sum of the announced savings of the compressed strings that were skipped, in bytes.
    packed_away: u64,
}

/// A value about to be read.
///
/// The decoder can go on behind it only after the object was read to its end, when `next` has returned
/// `None`.
pub enum Object<'d, S> {
    String(Item<'d>),
    /// A string of more than [`PIECE`] bytes.
    Long(LongString<'d, S>),
    List(Elements<'d, S>),
    Set(Elements<'d, S>),
    SortedSet(Members<'d, S>),
    Hash(Fields<'d, S>),
    Stream(Stream<'d, S>),
    Array(ArrayElements<'d, S>),
}

/// The place of a string until the next string is read.
#[derive(Clone, Copy, Debug)]
enum Blob {
    Taken,
    Unpacked,
}

/// The place of an item.
#[derive(Clone, Copy, Debug)]
enum ItemPlace {
    Int(i64),
    Whole(Blob),
    /// Between these offsets of a block.
    Part(Blob, usize, usize),
    Kept(usize),
}

/// A length, or the number of a string's form in its place.
enum Announced {
    Length(u64),
    Form(u8),
}

impl<S: Source> Decoder<S> {
    /// `version`: from the payload's footer or the file's header; some types share a number and differ by
    /// version.
    pub fn new(source: S, version: u16) -> Decoder<S> {
        Decoder {
            source,
            version,
            refuses_duplicates: true,
            unpacked: Vec::new(),
            kept: [Vec::new(), Vec::new()],
            packed_away: 0,
        }
    }

    /// Leaves the detection of duplicate members and fields to the caller.
    ///
    /// Otherwise the decoder remembers 16 bytes per member or field of the current value. A caller that
    /// inserts members singly detects duplicates for nothing.
    pub fn leave_duplicates(&mut self) {
        self.refuses_duplicates = false;
    }

    pub fn into_source(self) -> S {
        self.source
    }

    pub fn source(&mut self) -> &mut S {
        &mut self.source
    }

    /// Whether the input has been read to its end, if its length is known.
    pub(crate) fn is_at_end(&self) -> bool {
        self.source.left() == Some(0)
    }

    /// Fails if anything is left behind the value.
    pub fn finish(mut self) -> Result<()> {
        let at = self.position();
        match self.source.take(1) {
            Ok(()) => Err(Error::new(at, Reason::Trailing)),
            Err(error) if error.reason == Reason::Truncated => Ok(()),
            Err(error) => Err(error),
        }
    }

    // ---- values ----

    /// Reads a type's number and its value, as in a payload of DUMP.
    pub fn object(&mut self) -> Result<Object<'_, S>> {
        let kind = self.byte()?;
        self.object_of(kind)
    }

    /// Reads a value after its type's number; in a file the key stands between them.
    pub fn object_of(&mut self, kind: u8) -> Result<Object<'_, S>> {
        for room in self.kept.iter_mut().chain([&mut self.unpacked]) {
            if room.capacity() > ROOM_KEPT_MAX {
                *room = Vec::new();
            }
        }
        let at = self.position();
        match kind {
            kind::STRING => Ok(match LongString::open(self)? {
                StringValue::Short(string) => Object::String(string),
                StringValue::Long(string) => Object::Long(string),
            }),
            kind::LIST | kind::LIST_ZIPLIST | kind::LIST_QUICKLIST | kind::LIST_QUICKLIST_2 => {
                self.list(kind)
            }
            kind::SET | kind::SET_INTSET | kind::SET_LISTPACK => self.set(kind),
            kind::ZSET | kind::ZSET_2 | kind::ZSET_ZIPLIST | kind::ZSET_LISTPACK => self.sorted_set(kind),
            kind::HASH | kind::HASH_ZIPMAP | kind::HASH_ZIPLIST | kind::HASH_LISTPACK => self.hash(kind),
            kind::STREAM_LISTPACKS => Ok(Object::Stream(Stream::open(self, 1)?)),
            kind::STREAM_LISTPACKS_2 => Ok(Object::Stream(Stream::open(self, 2)?)),
            kind::STREAM_LISTPACKS_3 => Ok(Object::Stream(Stream::open(self, 3)?)),
            kind::STREAM_LISTPACKS_4 => Ok(Object::Stream(Stream::open(self, 4)?)),
            kind::STREAM_LISTPACKS_5 => Ok(Object::Stream(Stream::open(self, 5)?)),
            kind::ARRAY => Ok(Object::Array(ArrayElements::open(self)?)),
            kind::HASH_2 if self.version >= FIRST_VALKEY_VERSION => self.hash_2(),
            kind::HASH_METADATA_PRE_GA..=kind::HASH_LISTPACK_EX if self.version < FIRST_VALKEY_VERSION => {
                self.hash_of_redis_7_4(kind)
            }
            kind::MODULE | kind::MODULE_2 => Err(Error::new(at, Reason::ModuleType)),
            kind => Err(Error::new(at, Reason::UnknownType(kind))),
        }
    }

    fn list(&mut self, kind: u8) -> Result<Object<'_, S>> {
        let duplicates = true;
        Ok(Object::List(match kind {
            kind::LIST => Elements::plain(self, duplicates)?,
            kind::LIST_ZIPLIST => Elements::block(self, BlockKind::Ziplist, duplicates)?,
            kind::LIST_QUICKLIST => Elements::nodes(self, Nodes::Ziplists)?,
            _ => Elements::nodes(self, Nodes::Containers)?,
        }))
    }

    fn set(&mut self, kind: u8) -> Result<Object<'_, S>> {
        let duplicates = !self.refuses_duplicates;
        Ok(Object::Set(match kind {
            kind::SET => Elements::plain(self, duplicates)?,
            kind::SET_INTSET => Elements::block(self, BlockKind::Intset, true)?, // it ascends
            _ => Elements::block(self, BlockKind::Listpack, duplicates)?,
        }))
    }

    fn sorted_set(&mut self, kind: u8) -> Result<Object<'_, S>> {
        Ok(Object::SortedSet(match kind {
            kind::ZSET => Members::plain(self, true)?,
            kind::ZSET_2 => Members::plain(self, false)?,
            kind::ZSET_ZIPLIST => Members::block(self, BlockKind::Ziplist)?,
            _ => Members::block(self, BlockKind::Listpack)?,
        }))
    }

    fn hash(&mut self, kind: u8) -> Result<Object<'_, S>> {
        Ok(Object::Hash(match kind {
            kind::HASH => Fields::plain(self, Expiry::None)?,
            kind::HASH_ZIPMAP => Fields::block(self, BlockKind::Zipmap, Expiry::None)?,
            kind::HASH_ZIPLIST => Fields::block(self, BlockKind::Ziplist, Expiry::None)?,
            _ => Fields::block(self, BlockKind::Listpack, Expiry::None)?,
        }))
    }

    fn hash_2(&mut self) -> Result<Object<'_, S>> {
        Ok(Object::Hash(Fields::plain(self, Expiry::Behind)?))
    }

    fn hash_of_redis_7_4(&mut self, kind: u8) -> Result<Object<'_, S>> {
        Ok(Object::Hash(match kind {
            kind::HASH_METADATA_PRE_GA => Fields::plain(self, Expiry::Before { earliest: None })?,
            kind::HASH_METADATA => {
                let earliest = self.millis()?;
                Fields::plain(self, Expiry::Before { earliest: Some(earliest) })?
            }
            kind::HASH_LISTPACK_EX_PRE_GA => Fields::block(self, BlockKind::Listpack, Expiry::Behind)?,
            _ => {
                self.millis()?; // the earliest expiry, which the fields repeat
                Fields::block(self, BlockKind::Listpack, Expiry::Behind)?
            }
        }))
    }

    // ---- primitives ----

    pub fn byte(&mut self) -> Result<u8> {
        self.fixed().map(|[byte]| byte)
    }

    /// The next `N` bytes.
    #[inline]
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.source.take(N as u64)?;
        Ok(self.source.taken().try_into().expect("as many as were taken"))
    }

    /// Reads a length or count: 6, 14, 32 or 64 bits.
    pub fn length(&mut self) -> Result<u64> {
        let at = self.position();
        match self.announced()? {
            Announced::Length(length) => Ok(length),
            Announced::Form(_) => Err(Error::new(at, Reason::Length)),
        }
    }

    /// Reads a string in any form.
    pub fn string(&mut self) -> Result<Item<'_>> {
        let place = self.string_place()?;
        Ok(self.item(place))
    }

    /// Reads a time of eight bytes, little-endian; a time before 1970 is refused.
    pub fn millis(&mut self) -> Result<Millis> {
        let at = self.position();
        let time = i64::from_le_bytes(self.fixed()?);
        u64::try_from(time).map_err(|_| Error::new(at, Reason::Time))
    }

    fn position(&self) -> u64 {
        self.source.position()
    }

    #[inline]
    fn announced(&mut self) -> Result<Announced> {
        let at = self.position();
        let first = self.byte()?;
        let low = first & 0x3f;
        Ok(match first >> 6 {
            0 => Announced::Length(u64::from(low)),
            1 => Announced::Length(u64::from(u16::from_be_bytes([low, self.byte()?]))),
            2 if first == 0x80 => Announced::Length(u64::from(u32::from_be_bytes(self.fixed()?))),
            2 if first == 0x81 => Announced::Length(u64::from_be_bytes(self.fixed()?)),
            2 => return Err(Error::new(at, Reason::Length)),
            _ => Announced::Form(low),
        })
    }

    /// Reads a count of items with `bytes_min` bytes or more each. Fails if fewer bytes are left.
    fn count(&mut self, bytes_min: u64) -> Result<u64> {
        let at = self.position();
        let count = self.length()?;
        match self.source.left() {
            Some(left) if count > left / bytes_min => Err(Error::new(at, Reason::TooLong)),
            _ => Ok(count),
        }
    }

    fn string_place(&mut self) -> Result<ItemPlace> {
        let at = self.position();
        let announced = self.announced()?;
        self.place_of(at, announced)
    }

    /// Returns the place of the string that starts at `at`.
    #[inline]
    fn place_of(&mut self, at: u64, announced: Announced) -> Result<ItemPlace> {
        match announced {
            Announced::Length(length) => {
                self.take_string(at, length)?;
                Ok(ItemPlace::Whole(Blob::Taken))
            }
            Announced::Form(0) => Ok(ItemPlace::Int(i64::from(i8::from_le_bytes(self.fixed()?)))),
            Announced::Form(1) => Ok(ItemPlace::Int(i64::from(i16::from_le_bytes(self.fixed()?)))),
            Announced::Form(2) => Ok(ItemPlace::Int(i64::from(i32::from_le_bytes(self.fixed()?)))),
            Announced::Form(3) => {
                let (packed, length) = (self.length()?, self.length()?);
                self.unpacked_place(at, packed, length)
            }
            Announced::Form(_) => Err(Error::new(at, Reason::StringForm)),
        }
    }

    /// The same for a compressed string of `packed` bytes that stands for `length` bytes.
    fn unpacked_place(&mut self, at: u64, packed: u64, length: u64) -> Result<ItemPlace> {
        self.take_string(at, packed)?;
        let length = usize::try_from(length).unwrap_or(usize::MAX); // which is more than anything unpacks to
        match lzf::decompress(self.source.taken(), length, &mut self.unpacked) {
            true => Ok(ItemPlace::Whole(Blob::Unpacked)),
            false => Err(Error::new(at, Reason::Compressed)),
        }
    }

    #[inline]
    fn take_string(&mut self, at: u64, length: u64) -> Result<()> {
        self.refuse_beyond_end(at, length)?;
        self.source.take(length)
    }

    /// Fails if fewer than `length` bytes are left, as far as that is known.
    #[inline]
    fn refuse_beyond_end(&self, at: u64, length: u64) -> Result<()> {
        match self.source.left() {
            Some(left) if length > left => Err(Error::new(at, Reason::TooLong)),
            _ => Ok(()),
        }
    }

    /// Reads a string that is a packed block.
    fn packed(&mut self, kind: BlockKind) -> Result<Packed> {
        let at = self.position();
        match self.string_place()? {
            ItemPlace::Whole(blob) => Packed::open(kind, blob, at, self.blob(blob)),
            _ => Err(Error::new(at, Reason::StringForm)),
        }
    }

    /// Reads a string of a stream's groups into memory of its own; such strings are few.
    fn string_to_own(&mut self) -> Result<Vec<u8>> {
        self.string().map(Item::to_vec)
    }

    /// Copies a string out of the place of the next string.
    #[inline]
    fn keep(&mut self, place: ItemPlace, slot: usize) -> ItemPlace {
        let ItemPlace::Whole(blob) = place else { return place };
        let bytes = match blob {
            Blob::Taken => self.source.taken(),
            Blob::Unpacked => &self.unpacked,
        };
        self.kept[slot].clear();
        self.kept[slot].extend_from_slice(bytes);
        ItemPlace::Kept(slot)
    }

    #[inline]
    fn blob(&self, blob: Blob) -> &[u8] {
        match blob {
            Blob::Taken => self.source.taken(),
            Blob::Unpacked => &self.unpacked,
        }
    }

    #[inline]
    fn item(&self, place: ItemPlace) -> Item<'_> {
        match place {
            ItemPlace::Int(number) => Item::Int(number),
            ItemPlace::Whole(blob) => Item::Bytes(self.blob(blob)),
            ItemPlace::Part(blob, start, end) => Item::Bytes(&self.blob(blob)[start..end]),
            ItemPlace::Kept(slot) => Item::Bytes(&self.kept[slot]),
        }
    }

    /// Bounds a count for an allocation: never more elements than the rest could hold.
    fn believable(&self, count: u64) -> usize {
        let most = self.source.left().unwrap_or(UNCHECKED_ROOM_MAX);
        usize::try_from(count.min(most)).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Slice;

    fn string(bytes: &[u8]) -> std::result::Result<Vec<u8>, Reason> {
        let mut decoder = Decoder::new(Slice::new(bytes), 10);
        let string = decoder.string().map(Item::to_vec).map_err(|error| error.reason)?;
        decoder.finish().map_err(|error| error.reason)?;
        Ok(string)
    }

    #[test]
    fn lengths_of_every_width() {
        for (bytes, length) in [
            (&b"\x3f"[..], 63),
            (b"\x7f\xff", 16_383),
            (b"\x80\x00\x01\x00\x00", 65_536),
            (b"\x81\x00\x00\x00\x01\x00\x00\x00\x00", 1 << 32),
        ] {
            assert_eq!(Decoder::new(Slice::new(bytes), 10).length(), Ok(length));
        }
        for bytes in [&b"\x82"[..], b"\xbf", b"\xc0", b"\xff"] {
            let error = Decoder::new(Slice::new(bytes), 10).length().expect_err("no length");
            assert_eq!(error.reason, Reason::Length);
        }
    }

    #[test]
    fn strings_of_every_form() {
        assert_eq!(string(b"\x05hello"), Ok(b"hello".to_vec()));
        assert_eq!(string(b"\xc0\x80"), Ok(b"-128".to_vec()));
        assert_eq!(string(b"\xc1\x39\x30"), Ok(b"12345".to_vec()));
        assert_eq!(string(b"\xc2\x00\x00\x00\x80"), Ok(b"-2147483648".to_vec()));
        assert_eq!(string(b"\xc3\x09\x40\x64\x01aa\xe0\x57\x00\x01aa"), Ok(vec![b'a'; 100]));
        assert_eq!(string(b"\xc4"), Err(Reason::StringForm));
        assert_eq!(string(b"\x05hell"), Err(Reason::TooLong));
        assert_eq!(string(b"\xc1\x39"), Err(Reason::Truncated));
        assert_eq!(string(b"\x01aa"), Err(Reason::Trailing));
        assert_eq!(string(b"\xc3\x09\x40\x65\x01aa\xe0\x57\x00\x01aa"), Err(Reason::Compressed));
        assert_eq!(string(b"\xc3\x01\x81\xff\xff\xff\xff\xff\xff\xff\xffa"), Err(Reason::Compressed));
    }

    /// Returns the pieces of a long string.
    fn pieces<S: Source>(decoder: &mut Decoder<S>) -> std::result::Result<Vec<Vec<u8>>, Reason> {
        let read = |decoder: &mut Decoder<S>| {
            let Object::Long(mut string) = decoder.object()? else { panic!("a long string") };
            let mut pieces = Vec::new();
            while let Some(piece) = string.next()? {
                pieces.push(piece.to_vec());
            }
            assert_eq!(string.len(), pieces.iter().map(|piece| piece.len() as u64).sum::<u64>());
            Ok(pieces)
        };
        read(decoder).map_err(|error: Error| error.reason)
    }

    #[test]
    fn long_strings_come_in_pieces() {
        let text = b"a long string is read in pieces. ".repeat(10_000);
        for compresses in [true, false] {
            let mut encoder = crate::Encoder::new(Vec::new(), crate::Version::V10);
            if !compresses {
                encoder = encoder.without_compression();
            }
            encoder.string(Item::Bytes(&text));
            encoder.put_byte(7);
            let written = encoder.into_out();
            assert_eq!(written.len() < text.len(), compresses);
            let mut slice = Decoder::new(Slice::new(&written), 10);
            let mut feed = Decoder::new(crate::Feed::new(&written[..], None), 10);
            let (slices, feeds) = (pieces(&mut slice).expect("right"), pieces(&mut feed).expect("right"));
            assert!(slices.concat() == text && slices == feeds);
            assert!(slices[..slices.len() - 1].iter().all(|piece| piece.len() == PIECE));
            assert_eq!((slice.byte(), feed.byte()), (Ok(7), Ok(7)), "it goes on behind it");
            for len in (1..written.len() - 1).step_by(101) {
                assert!(pieces(&mut Decoder::new(Slice::new(&written[..len]), 10)).is_err());
                assert!(pieces(&mut Decoder::new(crate::Feed::new(&written[..len], None), 10)).is_err());
            }
        }
        let impossible = [&b"\x00\xc3\x01\x81"[..], &[0xff; 8], b"a"].concat();
        let refused = pieces(&mut Decoder::new(crate::Feed::new(&impossible[..], None), 10));
        assert_eq!(refused, Err(Reason::Compressed));
    }

    #[test]
    fn unknown_types_are_refused() {
        for (kind, version, reason) in [
            (6, 10, Reason::ModuleType),
            (7, 80, Reason::ModuleType),
            (8, 10, Reason::UnknownType(8)),
            (24, 80, Reason::UnknownType(24)),
            (29, 14, Reason::UnknownType(29)),
            (255, 10, Reason::UnknownType(255)),
        ] {
            let bytes = [kind, 0, 0, 0];
            let mut decoder = Decoder::new(Slice::new(&bytes), version);
            assert_eq!(decoder.object().err().map(|error| error.reason), Some(reason));
        }
    }
}
