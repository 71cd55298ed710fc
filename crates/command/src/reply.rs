//! Replies on their way to the socket: bytes, and references to large values, which are sent from where they
//! lie.

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use evenkeel_resp::reply::Encoder;
use evenkeel_store::Str;
use evenkeel_store::collection::Share;
use evenkeel_store::rope::{Chunk, FLAT_MAX, Piece, ZEROS};

use crate::error::Error;

/// A reply being written. All of it but large values goes into the encoder's bytes.
#[derive(Default)]
pub struct Reply {
    encoder: Encoder,
    /// Chunks in order of `at`, the number of encoder bytes that come before the chunk.
    shared: Vec<Shared>,
    shared_len: usize,
    /// Part of the reply was left out.
    is_cut: bool,
    /// Errors written so far; the executor compares before and after a command.
    pub errors: u64,
}

struct Shared {
    at: usize,
    chunk: ReplyChunk,
}

/// A chunk of memory to be sent.
pub enum ReplyChunk {
    Bytes(Vec<u8>),
    Chunk(Chunk, Range<usize>),
    Element(Share),
    Zeros(usize),
    /// A message, shared by all clients that get it.
    PushMessage(Arc<[u8]>),
}

impl ReplyChunk {
    pub fn as_slice(&self) -> &[u8] {
        match self {
            ReplyChunk::Bytes(bytes) => bytes,
            ReplyChunk::Chunk(chunk, range) => &chunk[range.clone()],
            ReplyChunk::Element(share) => share,
            ReplyChunk::Zeros(len) => &ZEROS[..*len],
            ReplyChunk::PushMessage(message) => message,
        }
    }

    /// Returns the rest after `skip` bytes, which are counted down; `None` if no byte is left. A large chunk
    /// is not cut: some of `skip` remains, and the caller passes over its first bytes.
    fn after(self, skip: &mut usize) -> Option<ReplyChunk> {
        let len = self.as_slice().len();
        let drop = len.min(*skip);
        if drop == len {
            *skip -= drop;
            return None;
        }
        if self.is_large() || matches!(self, ReplyChunk::PushMessage(_)) {
            return Some(self);
        }
        *skip -= drop;
        Some(match self {
            ReplyChunk::Bytes(mut bytes) => {
                bytes.drain(..drop);
                ReplyChunk::Bytes(bytes)
            }
            ReplyChunk::Chunk(chunk, range) => ReplyChunk::Chunk(chunk, range.start + drop..range.end),
            ReplyChunk::Element(share) => ReplyChunk::Element(share.skip(drop)),
            ReplyChunk::Zeros(len) => ReplyChunk::Zeros(len - drop),
            ReplyChunk::PushMessage(_) => unreachable!("passed over above, not cut"),
        })
    }

    /// Whether it would take long to copy or free the chunk.
    pub fn is_large(&self) -> bool {
        match self {
            ReplyChunk::Bytes(bytes) => bytes.capacity() >= LARGE,
            // This may be the last share of the element.
            ReplyChunk::Element(share) => share.len() >= LARGE,
            ReplyChunk::PushMessage(message) => message.len() >= LARGE,
            ReplyChunk::Chunk(..) | ReplyChunk::Zeros(_) => false,
        }
    }
}

/// Minimum size in bytes of a string in a reply.
pub const BULK_MIN: u64 = 6;

/// Bytes from which on a reply is handed over without a copy, and freed by the lazy-free thread: a million
/// takes 0.1 ms.
pub const LARGE: usize = 1 << 20;

/// A point to which a reply can be rewound.
#[derive(Clone, Copy)]
pub struct Mark {
    bytes: usize,
    shared: usize,
    shared_len: usize,
    is_cut: bool,
}

impl Deref for Reply {
    type Target = Encoder;

    fn deref(&self) -> &Encoder {
        &self.encoder
    }
}

impl DerefMut for Reply {
    fn deref_mut(&mut self) -> &mut Encoder {
        &mut self.encoder
    }
}

impl Reply {
    /// Appends a string value; a large value is referred to, not copied.
    #[inline]
    pub fn string(&mut self, value: Str<'_>) {
        match value {
            Str::Flat(bytes) => self.bulk(bytes),
            Str::Rope(rope) => self.string_range(Str::Rope(rope), 0..rope.len()),
        }
    }

    /// Appends a part of a string value; the range lies inside it.
    pub fn string_range(&mut self, value: Str<'_>, range: Range<usize>) {
        match value {
            Str::Flat(bytes) => self.bulk(&bytes[range]),
            Str::Rope(rope) => {
                self.bulk_start(range.len());
                for piece in rope.pieces(range) {
                    let chunk = match piece {
                        Piece::Bytes(chunk, range) => ReplyChunk::Chunk(chunk.clone(), range),
                        Piece::Zeros(len) => ReplyChunk::Zeros(len),
                    };
                    self.push_shared(chunk);
                }
                self.bulk_end();
            }
        }
    }

    /// Appends an element of a collection; a long element is referred to, not copied. `share` returns the
    /// reference, which takes another look-up of the element.
    #[inline]
    pub fn element(&mut self, element: &[u8], share: impl FnOnce() -> Share) {
        if element.len() <= FLAT_MAX {
            self.bulk(element);
        } else {
            self.share(share());
        }
    }

    #[cold]
    fn share(&mut self, share: Share) {
        self.bulk_start(share.len());
        self.push_shared(ReplyChunk::Element(share));
        self.bulk_end();
    }

    /// Appends a reply that was encoded elsewhere, without copying anything long.
    pub fn append(&mut self, mut other: Reply) {
        self.is_cut |= other.is_cut;
        other.take_rest(0).0.into_iter().for_each(|chunk| self.push_shared(chunk));
    }

    /// Appends a bulk string of owned bytes; many bytes are not copied.
    pub fn bulk_of(&mut self, bytes: Vec<u8>) {
        if bytes.len() <= FLAT_MAX {
            return self.bulk(&bytes);
        }
        self.bulk_start(bytes.len());
        self.push_shared(ReplyChunk::Bytes(bytes));
        self.bulk_end();
    }

    /// Appends a push message; a long message is not copied.
    pub fn message(&mut self, message: Arc<[u8]>) {
        if message.len() <= FLAT_MAX {
            return self.encoder.bytes.extend_from_slice(&message);
        }
        self.push_shared(ReplyChunk::PushMessage(message));
    }

    fn push_shared(&mut self, chunk: ReplyChunk) {
        self.shared_len += chunk.as_slice().len();
        self.shared.push(Shared { at: self.encoder.bytes.len(), chunk });
    }

    /// Appends an error line.
    #[cold]
    pub fn fail(&mut self, error: &Error) {
        self.errors += 1;
        self.encoder.error(&error.line());
    }

    /// Bytes to be sent.
    pub fn len(&self) -> usize {
        self.encoder.bytes.len() + self.shared_len
    }

    pub fn is_empty(&self) -> bool {
        self.encoder.bytes.is_empty() && self.shared.is_empty()
    }

    /// Marks the reply as cut if it is longer than `len_max`, in which case none of it will be sent. The
    /// caller then leaves out the rest.
    #[inline]
    pub fn cut_beyond(&mut self, len_max: usize) -> bool {
        let is_beyond = self.len() > len_max;
        self.is_cut |= is_beyond;
        is_beyond
    }

    /// Whether part was left out, so that none of it may be sent, whatever the limits have become since.
    #[inline]
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    pub fn mark(&self) -> Mark {
        let (bytes, shared) = (self.encoder.bytes.len(), self.shared.len());
        Mark { bytes, shared, shared_len: self.shared_len, is_cut: self.is_cut }
    }

    /// Drops everything written since the mark.
    pub fn rewind(&mut self, mark: Mark) {
        self.encoder.bytes.truncate(mark.bytes);
        self.shared.truncate(mark.shared);
        self.shared_len = mark.shared_len;
        self.is_cut = mark.is_cut;
    }

    /// Returns the bytes if no chunk is shared: the usual case.
    pub fn plain(&self) -> Option<&[u8]> {
        self.shared.is_empty().then_some(&self.encoder.bytes)
    }

    /// Drops everything, and gives memory back after an unusually large reply.
    pub fn clear(&mut self) {
        const KEEP: usize = 256 * 1024;
        self.encoder.bytes.clear();
        if self.encoder.bytes.capacity() > KEEP {
            self.encoder.bytes.shrink_to(KEEP);
        }
        self.shared.clear();
        self.shared_len = 0;
        self.is_cut = false;
    }

    /// Returns the rest to send after the first `sent` bytes, and how many bytes of its first chunk to pass
    /// over. The reply is empty then.
    pub fn take_rest(&mut self, sent: usize) -> (Vec<ReplyChunk>, usize) {
        let (mut rest, mut skip, mut at) = (Vec::new(), sent, 0);
        if self.shared.is_empty() && self.encoder.bytes.len() >= LARGE {
            rest.extend(ReplyChunk::Bytes(std::mem::take(&mut self.encoder.bytes)).after(&mut skip));
            return (rest, skip);
        }
        // The rest of `skip` belongs to the first chunk.
        let mut keep = |chunk: ReplyChunk| {
            if rest.is_empty() {
                rest.extend(chunk.after(&mut skip));
            } else if !chunk.as_slice().is_empty() {
                rest.push(chunk);
            }
        };
        for Shared { at: end, chunk } in std::mem::take(&mut self.shared) {
            keep(ReplyChunk::Bytes(self.encoder.bytes[at..end].to_vec()));
            keep(chunk);
            at = end;
        }
        keep(ReplyChunk::Bytes(self.encoder.bytes[at..].to_vec()));
        self.clear();
        (rest, skip)
    }

    /// Returns everything as slices, for a single gathering write.
    pub fn slices(&self) -> Vec<std::io::IoSlice<'_>> {
        let (mut slices, mut at) = (Vec::with_capacity(2 * self.shared.len() + 1), 0);
        for Shared { at: end, chunk } in &self.shared {
            slices.push(std::io::IoSlice::new(&self.encoder.bytes[at..*end]));
            slices.push(std::io::IoSlice::new(chunk.as_slice()));
            at = *end;
        }
        slices.push(std::io::IoSlice::new(&self.encoder.bytes[at..]));
        slices
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_store::collection::{Collection, List};
    use evenkeel_store::rope::Rope;

    #[test]
    fn replies_split_at_any_byte_stay_complete() {
        let mut value = Rope::new(&[b'x'; 100]);
        value.write(150_000, b"end");
        let mut list = List::new();
        list.push_back(&[b'a'; FLAT_MAX + 1]);
        list.push_back(&[b'b'; 2 * LARGE]);
        let fill = |reply: &mut Reply| {
            reply.ok();
            reply.string(Str::Rope(&value));
            reply.string_range(Str::Rope(&value), 10..20);
            reply.int(7);
            reply.bulk_of(vec![b'y'; LARGE]);
            reply.int(8);
            reply.element(list.get(0).expect("an element"), || list.share(0));
            reply.element(list.get(1).expect("an element"), || list.share(1));
            reply.int(9);
        };
        let mut whole = Vec::new();
        let mut reply = Reply::default();
        fill(&mut reply);
        assert!(reply.plain().is_none());
        reply.slices().iter().for_each(|slice| whole.extend_from_slice(slice));
        assert_eq!(whole.len(), reply.len());
        let cuts = [0, 1, 5, 13, 14, 15, 1000, 65_550, 150_000, 150_060, 200_000];
        let ends = [1_000_000, 1_100_000, 1_198_700, 1_198_800, 1_215_000, 1_300_000, 3_000_000];
        let last = whole.len() - 12..=whole.len();
        for sent in cuts.into_iter().chain(ends).chain(last) {
            let mut reply = Reply::default();
            fill(&mut reply);
            let (rest, skip) = reply.take_rest(sent);
            let rest: Vec<u8> = rest.iter().flat_map(|s| s.as_slice().to_vec()).collect();
            assert!(rest[skip..] == whole[sent..], "after {sent}");
            assert!(reply.is_empty());
        }
    }

    #[test]
    fn large_bulks_are_handed_over_without_a_copy() {
        for sent in [0, 1, 4_999_999, 5_000_008, 5_000_012] {
            let mut reply = Reply::default();
            reply.bulk(&vec![b'x'; 5_000_000]);
            let (len, address) = (reply.len(), reply.plain().expect("nothing is shared").as_ptr());
            let (rest, skip) = reply.take_rest(sent);
            assert!(reply.is_empty() && rest.len() == usize::from(sent < len), "after {sent}");
            if let [only] = &rest[..] {
                assert_eq!((only.as_slice().as_ptr(), only.as_slice().len() - skip), (address, len - sent));
            }
        }
    }
}
