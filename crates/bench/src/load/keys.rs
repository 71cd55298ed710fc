//! The keys of the load, and their format.
//!
//! Key number i is `key:` and i in decimal, padded with zeroes to the key's size, as in `key:000000001234`:
//! the form that other load generators use as well, so that they can read a server filled by this program,
//! and the reverse.

use anyhow::{Result, bail};

use super::distribution::{Distribution, Draw};

pub(crate) const PREFIX: &[u8] = b"key:";
/// Longest key: a bound for mistakes on the command line.
const KEY_SIZE_MAX: usize = 64 * 1024;

/// The numbers of the keys to use: `first .. first + count`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRange {
    pub(crate) first: u64,
    pub(crate) count: u64,
}

/// A stream of key numbers. Two streams with the same seed are the same.
#[derive(Debug)]
pub(crate) struct KeyStream {
    first: u64,
    draw: Draw,
    random: Random,
}

impl KeyStream {
    pub(crate) fn new(range: KeyRange, distribution: Distribution, seed: u64) -> Self {
        Self { first: range.first, draw: Draw::new(distribution, range.count), random: Random::new(seed) }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.first + self.draw.next(&mut self.random)
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014): two multiplications per number, and any seed will do.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Returns a number below `bound`, by multiplication instead of division; its bias is below 2^-32 for any
    /// count of keys.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// Checks that the numbers of the keys fit into the size.
pub(crate) fn check(key_size: usize, range: KeyRange) -> Result<()> {
    if range.count == 0 {
        bail!("there must be at least one key");
    }
    if key_size > KEY_SIZE_MAX {
        bail!("keys of more than {KEY_SIZE_MAX} bytes are not supported");
    }
    let Some(last) = range.first.checked_add(range.count - 1) else { bail!("key numbers end at 2^64") };
    let needed = PREFIX.len() + last.to_string().len();
    if key_size < needed {
        bail!("key number {last} needs {needed} bytes, more than the key size of {key_size}");
    }
    Ok(())
}

/// Appends key `number` to `out`: `key_size` bytes.
pub(crate) fn write(number: u64, key_size: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(PREFIX);
    write_digits(number, key_size - PREFIX.len(), out);
}

/// Appends a number in decimal, padded with zeroes to this many digits.
pub(crate) fn write_digits(number: u64, digits: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + digits, b'0');
    let mut rest = number;
    for digit in out[start..].iter_mut().rev() {
        if rest == 0 {
            break;
        }
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64, size: usize) -> String {
        let mut out = b"before ".to_vec();
        write(number, size, &mut out);
        String::from_utf8(out.split_off(7)).expect("ASCII")
    }

    #[test]
    fn keys_are_padded_decimals() {
        assert_eq!(key(0, 16), "key:000000000000");
        assert_eq!(key(1234, 16), "key:000000001234");
        assert_eq!(key(987, 7), "key:987");
        assert_eq!(key(u64::MAX, 24), "key:18446744073709551615");
    }

    #[test]
    fn sizes_that_cannot_hold_the_numbers_are_refused() {
        let range = KeyRange { first: 0, count: 1000 };
        assert!(check(7, range).is_ok());
        assert!(check(6, range).is_err());
        assert!(check(7, KeyRange { first: 1, count: 1000 }).is_err());
        assert!(check(16, KeyRange { first: 0, count: 0 }).is_err());
        assert!(check(30, KeyRange { first: u64::MAX, count: 2 }).is_err());
    }

    #[test]
    fn sequential_walks_the_range_and_starts_again() {
        let mut keys = KeyStream::new(KeyRange { first: 5, count: 3 }, Distribution::Sequential, 1);
        let seen: Vec<u64> = (0..7).map(|_| keys.next()).collect();
        assert_eq!(seen, [5, 6, 7, 5, 6, 7, 5]);
    }

    #[test]
    fn uniform_stays_in_the_range_and_reaches_all_of_it_evenly() {
        let mut keys = KeyStream::new(KeyRange { first: 100, count: 10 }, Distribution::Uniform, 7);
        let mut hits = [0u32; 10];
        for _ in 0..100_000 {
            hits[(keys.next() - 100) as usize] += 1;
        }
        assert!(hits.iter().all(|hits| (9_500..10_500).contains(hits)), "{hits:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_keys() {
        let stream = |seed| {
            let mut keys = KeyStream::new(KeyRange { first: 0, count: 1 << 40 }, Distribution::Uniform, seed);
            [keys.next(), keys.next(), keys.next()]
        };
        assert_eq!(stream(3), stream(3));
        assert_ne!(stream(3), stream(4));
    }
}
