//! The first nine bytes: the format's owner (Redis or Valkey) and its version.

use crate::Version;
use crate::error::{Error, Reason, Result};
use crate::kind::{self, FIRST_VALKEY_VERSION};

pub(super) const HEADER_BYTES: usize = 9;

/// From this version on a checksum follows the end.
const FIRST_CHECKSUM_VERSION: u16 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The version to decode values with: below 80 in Redis' numbering, from there on in Valkey's.
    pub version: u16,
}

impl Header {
    pub(super) fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header> {
        let (digits, of_valkey) = match (bytes.strip_prefix(b"REDIS"), bytes.strip_prefix(b"VALKEY")) {
            (Some(digits), _) => (digits, false),
            (_, Some(digits)) => (digits, true),
            _ => return Err(Error::new(0, Reason::NoRdbFile)),
        };
        if !digits.iter().all(u8::is_ascii_digit) {
            return Err(Error::new(0, Reason::NoRdbFile));
        }
        // at most four digits
        let version = digits.iter().fold(0, |number, digit| number * 10 + u16::from(digit - b'0'));
        match kind::is_known(version) && of_valkey == (version >= FIRST_VALKEY_VERSION) {
            true => Ok(Header { version }),
            false => Err(Error::new(0, Reason::UnknownVersion(version))),
        }
    }

    pub(super) fn has_checksum(self) -> bool {
        self.version >= FIRST_CHECKSUM_VERSION
    }

    pub(super) fn of(version: Version) -> [u8; HEADER_BYTES] {
        *match version {
            Version::V10 => b"REDIS0010",
            Version::V11 => b"REDIS0011",
            Version::V14 => b"REDIS0014",
            Version::V80 => b"VALKEY080",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_versions_of_the_right_name_are_read() {
        let parse = |text: &[u8; 9]| Header::parse(text).map(|header| header.version).map_err(|e| e.reason);
        assert_eq!(parse(b"REDIS0001"), Ok(1));
        assert_eq!(parse(b"REDIS0012"), Ok(12));
        assert_eq!(parse(b"REDIS0014"), Ok(14));
        assert_eq!(parse(b"VALKEY080"), Ok(80));
        for (text, version) in [
            (b"REDIS0000", 0),
            (b"REDIS0015", 15),
            (b"REDIS0080", 80),
            (b"REDIS9999", 9_999),
            (b"VALKEY011", 11),
            (b"VALKEY081", 81),
        ] {
            assert_eq!(parse(text), Err(Reason::UnknownVersion(version)));
        }
        for text in [b"REDIS 001", b"REDIS-001", b"redis0009", b"*3\r\n$3\r\nS", b"\0\0\0\0\0\0\0\0\0"] {
            assert_eq!(parse(text), Err(Reason::NoRdbFile));
        }
        for version in [Version::V10, Version::V11, Version::V14, Version::V80] {
            assert_eq!(parse(&Header::of(version)), Ok(version.number()));
        }
    }
}
