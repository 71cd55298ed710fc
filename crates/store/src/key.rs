//! From a key's bytes to its slot and hash.
//!
//! The slot is Redis Cluster's: CRC16 (XMODEM) of the key, or of the first non-empty `{tag}` in it, modulo
//! 16,384. The hash is keyed per process, so that no client can choose keys that collide.

use std::hash::{BuildHasher, RandomState};

use crc::{CRC_16_XMODEM, Crc, Table};
use siphasher::sip::SipHasher13;

/// Slots per database; a power of two, since places pack the slot into the low bits.
pub const SLOTS: usize = 16_384;
pub(crate) const SLOT_BITS: u32 = SLOTS.trailing_zeros();
const _: () = assert!(SLOTS.is_power_of_two());

/// Sixteen tables: a key of 16 bytes takes a single step instead of sixteen dependent steps.
static CRC16: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&CRC_16_XMODEM);

/// A slot of a database: `db * 16,384 + slot`. Locks are taken in ascending order of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u32);

impl Place {
    #[inline]
    pub fn new(db: u32, slot: u16) -> Place {
        debug_assert!((slot as usize) < SLOTS);
        Place(db << SLOT_BITS | u32::from(slot))
    }

    #[inline]
    pub fn db(self) -> usize {
        (self.0 >> SLOT_BITS) as usize
    }

    #[inline]
    pub fn slot(self) -> usize {
        self.0 as usize & (SLOTS - 1)
    }
}

/// A key of a command: its bytes, its place and its hash, computed once.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    pub bytes: &'a [u8],
    pub place: Place,
    pub hash: u64,
}

/// The process' keyed hash function: SipHash-1-3, since clients see its values.
///
/// SCAN and similar commands reply with hashes as cursors, and a client may choose its keys and members by
/// the values it has seen. A client that could compute the secret could make any number of keys collide: in a
/// table whose segments cannot split, on a page that cannot be divided. So the values of the function must
/// reveal nothing of the secret. It takes 11 ns for a key of 16 bytes; foldhash, which does not claim this
/// property, takes 2.
#[derive(Clone)]
pub struct Hasher(SipHasher13);

impl Default for Hasher {
    /// Creates a hasher with a secret of its own.
    fn default() -> Hasher {
        let random = || RandomState::new().hash_one(0_u8);
        Hasher(SipHasher13::new_with_keys(random(), random()))
    }
}

impl Hasher {
    /// Creates a hasher with this secret. Hashers with the same secret are the same function.
    pub fn with_secret([one, other]: [u64; 2]) -> Hasher {
        Hasher(SipHasher13::new_with_keys(one, other))
    }

    /// Returns the secret, for a process that has to compute the same hashes.
    pub fn secret(&self) -> [u64; 2] {
        let (one, other) = self.0.keys();
        [one, other]
    }

    #[inline]
    pub fn hash(&self, bytes: &[u8]) -> u64 {
        self.0.hash(bytes)
    }

    #[inline]
    pub fn key<'a>(&self, db: u32, bytes: &'a [u8]) -> Key<'a> {
        Key { bytes, place: Place::new(db, slot_of(bytes)), hash: self.hash(bytes) }
    }
}

/// The slot of a key, 0..16,384.
///
/// ```
/// assert_eq!(evenkeel_store::key::slot_of(b"foo"), 12182);
/// assert_eq!(evenkeel_store::key::slot_of(b"{foo}.bar"), 12182);
/// ```
#[inline]
pub fn slot_of(key: &[u8]) -> u16 {
    let hashed = if has_brace(key) { tag_of(key) } else { key };
    checksum(hashed) & (SLOTS as u16 - 1)
}

/// A function of this crate, where the constants of the algorithm are known to the compiler: in the crate of
/// a caller, it may make a function for all algorithms, which takes a third more instructions.
#[inline(never)]
fn checksum(bytes: &[u8]) -> u16 {
    CRC16.checksum(bytes)
}

/// Returns true if there is a `{`. Checks eight bytes at a time, since nearly no key has a brace.
#[inline]
fn has_brace(key: &[u8]) -> bool {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let mut words = key.chunks_exact(8);
    let found = words.any(|word| {
        let word = u64::from_le_bytes(word.try_into().expect("chunks of eight")) ^ (LOW * b'{' as u64);
        word.wrapping_sub(LOW) & !word & HIGH != 0
    });
    found || words.remainder().contains(&b'{')
}

#[cold]
fn tag_of(key: &[u8]) -> &[u8] {
    let open = key.iter().position(|byte| *byte == b'{').expect("the caller saw one");
    match key[open + 1..].iter().position(|byte| *byte == b'}') {
        None | Some(0) => key,
        Some(len) => &key[open + 1..open + 1 + len],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis_cluster() {
        // From CLUSTER KEYSLOT of a Redis server.
        for (key, slot) in [
            (&b"123456789"[..], 12739),
            (b"foo", 12182),
            (b"{user1000}.following", 3443),
            (b"{user1000}.followers", 3443),
            (b"foo{}{bar}", 8363),
            (b"foo{{bar}}zap", 4015),
            (b"foo{bar}{zap}", 5061),
            (b"", 0),
        ] {
            assert_eq!(slot_of(key), slot, "{}", key.escape_ascii());
        }
    }

    #[test]
    fn braces_are_seen_at_every_place() {
        for len in 1..40 {
            assert!(!has_brace(&vec![b'z'; len]));
            assert!(!has_brace(&vec![0xfb; len]));
            for at in 0..len {
                let mut key = vec![b'|'; len];
                key[at] = b'{';
                assert!(has_brace(&key), "{len} {at}");
            }
        }
    }

    /// Clients see hashes as cursors: the function is safe for that, and no two secrets are alike.
    #[test]
    fn the_hash_is_siphash_1_3_under_a_secret() {
        // As in the reference implementation with one round a word and three at the end, of the key 00 01 ..
        // 0f.
        let keyed = Hasher(SipHasher13::new_with_keys(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908));
        assert_eq!(keyed.hash(b"").to_le_bytes(), [0xdc, 0xc4, 0x0f, 0x05, 0x58, 0x01, 0xac, 0xab]);
        assert_eq!(keyed.hash(&[0]).to_le_bytes(), [0x93, 0xca, 0x57, 0x7d, 0xf3, 0x9b, 0xf4, 0xc9]);
        let bytes: Vec<u8> = (0..16).collect();
        assert_eq!(keyed.hash(&bytes).to_le_bytes(), [0x66, 0x8b, 0x90, 0x7d, 0x1a, 0xdd, 0x4f, 0xcc]);
        let seen: std::collections::HashSet<u64> = (0..100).map(|_| Hasher::default().hash(b"key")).collect();
        assert_eq!(seen.len(), 100);
        let one = Hasher::default();
        assert_eq!(one.hash(b"key"), one.clone().hash(b"key"));
    }
}
