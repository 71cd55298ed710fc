//! The first nine bytes: the format's owner (Redis or Valkey) and its version.

use crate::Version;
use crate::error::{Error, Reason, Result};
use crate::kind::{FIRST_VALKEY_VERSION, Versions};

pub(super) const HEADER_BYTES: usize = 9;

/// From this version on a checksum follows the end.
const FIRST_CHECKSUM_VERSION: u16 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The version to decode values with: below 80 in Redis' numbering, from there on in Valkey's.
    pub version: u16,
}

impl Header {
    pub(super) fn parse(bytes: &[u8; HEADER_BYTES], versions: Versions) -> Result<Header> {
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
        match versions.contain(version) && of_valkey == (version >= FIRST_VALKEY_VERSION) {
            true => Ok(Header { version }),
            false => Err(Error::new(0, Reason::UnknownVersion(version))),
        }
    }

    /// Whether all types of this version are known, so that the file is read without a request.
    pub fn is_known(self) -> bool {
        Versions::Known.contain(self.version)
    }

    /// Whether the version is of Valkey's numbering.
    pub fn is_of_valkey(self) -> bool {
        self.version >= FIRST_VALKEY_VERSION
    }

    pub(super) fn has_checksum(self) -> bool {
        self.version >= FIRST_CHECKSUM_VERSION
    }

    pub(super) fn of(version: Version) -> [u8; HEADER_BYTES] {
        *match version {
            Version::V10 => b"REDIS0010",
            Version::V11 => b"REDIS0011",
            Version::V13 => b"REDIS0013",
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
        let parse_as = |text: &[u8; 9], versions| {
            Header::parse(text, versions).map(|header| header.version).map_err(|error| error.reason)
        };
        let parse = |text: &[u8; 9]| parse_as(text, Versions::Known);
        for (text, version) in [(b"REDIS0001", 1), (b"REDIS0014", 14), (b"VALKEY080", 80), (b"VALKEY081", 81)]
        {
            assert_eq!(parse(text), Ok(version));
            assert_eq!(parse_as(text, Versions::Any), Ok(version));
        }
        for (text, version, is_consistent) in [
            (b"REDIS0000", 0, false),
            (b"REDIS0015", 15, true),
            (b"REDIS0080", 80, false),
            (b"REDIS9999", 9_999, false),
            (b"VALKEY011", 11, false),
            (b"VALKEY082", 82, true),
            (b"VALKEY987", 987, true),
        ] {
            let refused = Err(Reason::UnknownVersion(version));
            assert_eq!(parse(text), refused);
            assert_eq!(parse_as(text, Versions::Any), if is_consistent { Ok(version) } else { refused });
        }
        for text in [b"REDIS 001", b"REDIS-001", b"redis0009", b"*3\r\n$3\r\nS", b"\0\0\0\0\0\0\0\0\0"] {
            assert_eq!(parse(text), Err(Reason::NoRdbFile));
        }
        for version in [Version::V10, Version::V11, Version::V13, Version::V14, Version::V80] {
            assert_eq!(parse(&Header::of(version)), Ok(version.number()));
        }
    }
}
