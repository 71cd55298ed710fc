//! Randomness from the kernel, for keys of hash functions, run ids and passwords.

/// Returns a random number for a hash function's key.
pub fn random_seed() -> u64 {
    let mut bytes = [0; 8];
    fill_random(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// Returns forty random hexadecimal digits, the form of Redis' run ids.
pub fn random_hex() -> String {
    let mut bytes = [0; 20];
    fill_random(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Fills `bytes` with random bytes from the kernel.
pub fn fill_random(bytes: &mut [u8]) {
    for bytes in bytes.chunks_mut(256) {
        let got = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty());
        assert_eq!(got, Ok(bytes.len()), "the kernel gives up to 256 random bytes at once");
    }
}
