//! FUNCTION DUMP's payload: the code of function libraries in the form of RDB files, in DUMP's envelope.

use crate::dump;
use crate::encode::Encoder;
use crate::file::FUNCTION_2;
use crate::item::Item;
use crate::kind::Version;

/// The fault of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionsError {
    /// The version or the checksum.
    Sum,
    /// The content before them.
    Content,
}

/// Returns a payload of these libraries.
pub fn dump(codes: &[&[u8]]) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new(), Version::V10);
    for code in codes {
        encoder.put_byte(FUNCTION_2);
        encoder.put_string(Item::Bytes(code));
    }
    let mut payload = encoder.into_out();
    dump::seal(&mut payload, Version::V10);
    payload
}

/// Returns the code of a payload's libraries. The payload's size bounds the memory, see the crate's text.
pub fn read(payload: &[u8]) -> Result<Vec<Vec<u8>>, FunctionsError> {
    let mut decoder = dump::open(payload).map_err(|_| FunctionsError::Sum)?;
    let mut codes = Vec::new();
    while !decoder.is_at_end() {
        match decoder.byte() {
            Ok(FUNCTION_2) => {}
            _ => return Err(FunctionsError::Content),
        }
        codes.push(decoder.string().map_err(|_| FunctionsError::Content)?.to_vec());
    }
    Ok(codes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumped_functions_are_read_back() {
        let long = b"abc".repeat(1000);
        for codes in [&[][..], &[&b"#!lua name=a\n"[..]], &[&b"x"[..], &long, b""]] {
            assert_eq!(read(&dump(codes)).expect("whole"), codes);
        }
    }

    #[test]
    fn broken_payloads_are_refused() {
        let payload = dump(&[b"#!lua name=a\nreturn 1"]);
        for at in 0..payload.len() {
            let mut broken = payload.clone();
            broken[at] ^= 1;
            assert_eq!(read(&broken), Err(FunctionsError::Sum), "byte {at}");
            assert_eq!(read(&payload[..at]), Err(FunctionsError::Sum), "cut at {at}");
        }
        let mut other = b"\x00\x01a".to_vec();
        dump::seal(&mut other, Version::V10);
        assert_eq!(read(&other), Err(FunctionsError::Content));
        let mut cut = vec![FUNCTION_2, 5, b'a'];
        dump::seal(&mut cut, Version::V10);
        assert_eq!(read(&cut), Err(FunctionsError::Content));
    }
}
