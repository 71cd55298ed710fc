//! Payloads as DUMP makes them, from bytes that need not be a value: input for tests of RESTORE.

/// Returns the bytes, followed by the format's version and the checksum over both.
pub fn seal(body: &[u8], version: u16) -> Vec<u8> {
    let mut payload = [body, &version.to_le_bytes()].concat();
    payload.extend_from_slice(&crc64(&payload).to_le_bytes());
    payload
}

/// Replaces the checksum at the payload's end by the right checksum.
pub fn reseal(mut payload: Vec<u8>) -> Vec<u8> {
    payload.truncate(payload.len() - 8);
    payload.extend_from_slice(&crc64(&payload).to_le_bytes());
    payload
}

/// CRC-64 with Jones' polynomial, reflected, bit by bit.
fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| {
            if crc & 1 == 1 { crc >> 1 ^ 0x95ac_9329_ac4b_c9b5 } else { crc >> 1 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_of_redis_is_reproduced() {
        // SET k hello, DUMP k, on Redis 7.0.
        assert_eq!(seal(b"\x00\x05hello", 10), b"\x00\x05hello\x0a\x00\x63\x72\xdf\x76\x65\x34\x20\x0a");
    }
}
