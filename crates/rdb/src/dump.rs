//! DUMP's envelope: the value, the format's version (two bytes), a checksum over both (eight bytes).

use crate::checksum::checksum;
use crate::decode::Decoder;
use crate::kind::{self, Version};
use crate::source::Slice;

const FOOTER: usize = 2 + 8;

/// The reason why a payload is refused unread. RESTORE has the same error for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpError {
    /// Too short for a footer.
    Short,
    /// An unknown version.
    Version(u16),
    Checksum,
}

/// Checks the payload's version and checksum, and starts to read its value.
///
/// [`Decoder::finish`] of the result checks that no bytes are left.
pub fn open(payload: &[u8]) -> Result<Decoder<Slice<'_>>, DumpError> {
    let (value, version, footer) = split(payload)?;
    match checksum(&payload[..value.len() + 2]).to_le_bytes() == footer[2..] {
        true => Ok(Decoder::new(Slice::new(value), version)),
        false => Err(DumpError::Checksum),
    }
}

/// As [`open`], whatever the checksum is: for tests of the checks behind it.
pub fn open_unchecked(payload: &[u8]) -> Result<Decoder<Slice<'_>>, DumpError> {
    let (value, version, _) = split(payload)?;
    Ok(Decoder::new(Slice::new(value), version))
}

/// Returns the length of the payload with all strings unpacked, in bytes, as far as it can be followed: an
/// estimate of the cost of reading. Nothing is unpacked or checked.
pub fn unpacked_len(payload: &[u8]) -> u64 {
    let len = payload.len() as u64;
    let Ok(mut decoder) = open_unchecked(payload) else { return len };
    // A value that turns out to be damaged costs as much as its readable part.
    let _ = decoder.byte().and_then(|kind| decoder.pass_object_of(kind));
    len.saturating_add(decoder.packed_away())
}

/// Splits a payload into the value, the version, and the footer.
fn split(payload: &[u8]) -> Result<(&[u8], u16, &[u8]), DumpError> {
    let body = payload.len().checked_sub(FOOTER).ok_or(DumpError::Short)?;
    let (value, footer) = payload.split_at(body);
    let version = u16::from_le_bytes([footer[0], footer[1]]);
    if !kind::is_known(version) {
        return Err(DumpError::Version(version));
    }
    Ok((value, version, footer))
}

/// Makes a payload of a value that an encoder wrote for this version.
pub fn seal(value: &mut Vec<u8>, version: Version) {
    value.extend_from_slice(&version.number().to_le_bytes());
    let sum = checksum(value);
    value.extend_from_slice(&sum.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_of_redis_is_opened_and_sealed() {
        // SET k hello, DUMP k, on Redis 7.0.
        let dumped = *b"\x00\x05hello\x0a\x00\x63\x72\xdf\x76\x65\x34\x20\x0a";
        assert!(open(&dumped).is_ok());
        let mut value = dumped[..7].to_vec();
        seal(&mut value, Version::V10);
        assert_eq!(value, dumped);
    }

    #[test]
    fn the_length_without_compression_is_read_off() {
        let mut encoder = crate::Encoder::new(Vec::new(), Version::V10);
        encoder.string((&[b'x'; 100_000][..]).into());
        let mut payload = encoder.into_out();
        seal(&mut payload, Version::V10);
        assert!(payload.len() < 2_000, "{}", payload.len());
        assert!((100_000..102_000).contains(&unpacked_len(&payload)));
        for len in 0..payload.len() {
            assert!(unpacked_len(&payload[..len]) >= len as u64); // whatever it is
        }
        let mut plain = b"\x00\x05hello".to_vec();
        seal(&mut plain, Version::V10);
        assert_eq!(unpacked_len(&plain), plain.len() as u64);
        // Announces more than a payload can have, twice.
        let mut huge = b"\x01\x02\xc3\x01\x81\xff\xff\xff\xff\xff\xff\xff\xffx".repeat(2);
        huge.truncate(huge.len() - 2);
        seal(&mut huge, Version::V10);
        assert_eq!(unpacked_len(&huge), u64::MAX);
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let mut payload = b"\x00\x05hello".to_vec();
        seal(&mut payload, Version::V80);
        for at in 0..payload.len() {
            payload[at] ^= 0x10;
            assert!(open(&payload).is_err(), "byte {at}");
            payload[at] ^= 0x10;
        }
        assert!(matches!(open(&payload[..9]), Err(DumpError::Short)));
    }

    #[test]
    fn foreign_versions_are_refused() {
        for (version, known) in
            [(0, false), (1, true), (14, true), (15, false), (79, false), (80, true), (81, false)]
        {
            let mut payload = b"\x00\x01a".to_vec();
            payload.extend_from_slice(&u16::to_le_bytes(version));
            payload.extend_from_slice(&checksum(&payload).to_le_bytes());
            assert_eq!(open(&payload).is_ok(), known, "{version}");
        }
    }
}
