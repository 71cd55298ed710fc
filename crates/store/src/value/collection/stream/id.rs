//! Ids of a stream's entries: milliseconds, and a number among the entries of the same millisecond.

use std::fmt;

/// See the module's documentation. Ids are in the order of their fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    pub ms: u64,
    pub seq: u64,
}

impl StreamId {
    pub const MIN: StreamId = StreamId { ms: 0, seq: 0 };
    pub const MAX: StreamId = StreamId { ms: u64::MAX, seq: u64::MAX };

    pub const fn new(ms: u64, seq: u64) -> StreamId {
        StreamId { ms, seq }
    }

    /// The next id; `None` after the last.
    pub fn next(self) -> Option<StreamId> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(StreamId { seq, ..self }),
            None => Some(StreamId { ms: self.ms.checked_add(1)?, seq: 0 }),
        }
    }

    /// The previous id; `None` before the first.
    pub fn previous(self) -> Option<StreamId> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(StreamId { seq, ..self }),
            None => Some(StreamId { ms: self.ms.checked_sub(1)?, seq: u64::MAX }),
        }
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

/// An id as bytes: the lengths of both numbers, then their bytes without the leading zeros. Eight bytes for
/// an id of the present.
pub(super) struct Packed {
    bytes: [u8; 1 + 2 * WIDTH],
    len: usize,
}

const WIDTH: usize = size_of::<u64>();

impl Packed {
    #[inline]
    pub(super) fn new(id: StreamId) -> Packed {
        let (ms_len, seq_len) = (len_of(id.ms), len_of(id.seq));
        let mut bytes = [0; 1 + 2 * WIDTH];
        bytes[0] = (ms_len << 4 | seq_len) as u8;
        bytes[1..1 + WIDTH].copy_from_slice(&id.ms.to_le_bytes());
        bytes[1 + ms_len..1 + ms_len + WIDTH].copy_from_slice(&id.seq.to_le_bytes());
        Packed { bytes, len: 1 + ms_len + seq_len }
    }

    #[inline]
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Bytes of a number without the leading zeros.
#[inline]
fn len_of(number: u64) -> usize {
    WIDTH - number.leading_zeros() as usize / 8
}

/// The id at the start of `bytes`, and the rest of them.
#[inline]
pub(super) fn unpack(bytes: &[u8]) -> (StreamId, &[u8]) {
    let (ms_len, seq_len) = (bytes[0] as usize >> 4, bytes[0] as usize & 15);
    let (ms, rest) = bytes[1..].split_at(ms_len);
    let (seq, rest) = rest.split_at(seq_len);
    (StreamId { ms: number(ms), seq: number(seq) }, rest)
}

#[inline]
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_each_other() {
        let id = StreamId::new;
        for (before, after) in
            [(id(0, 0), id(0, 1)), (id(1, u64::MAX), id(2, 0)), (id(u64::MAX, 7), id(u64::MAX, 8))]
        {
            assert_eq!((before.next(), after.previous()), (Some(after), Some(before)));
            assert!(before < after);
        }
        assert_eq!((StreamId::MAX.next(), StreamId::MIN.previous()), (None, None));
        assert_eq!(id(u64::MAX, 0).to_string(), "18446744073709551615-0");
    }

    #[test]
    fn packed_ids_read_back() {
        for ms in [0, 1, 255, 256, 1_700_000_000_000, u64::MAX] {
            for seq in [0, 1, 255, 256, u64::MAX] {
                let id = StreamId::new(ms, seq);
                let packed = [Packed::new(id).as_bytes(), b"rest"].concat();
                assert_eq!(unpack(&packed), (id, &b"rest"[..]));
            }
        }
        assert_eq!(Packed::new(StreamId::new(1_700_000_000_000, 1)).as_bytes().len(), 8);
    }
}
