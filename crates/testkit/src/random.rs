//! Random choices that a printed seed reproduces.
//!
//! SplitMix64 (Steele, Lea, Flood 2014): eight bytes of state, any seed is a good seed, and the sequence is
//! the same on every machine and in every release, which no library promises for its default generator.

/// The environment variable that repeats a run.
const SEED_VARIABLE: &str = "EVENKEEL_SEED";

#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// Returns a number from 0 to `bound - 1`; `bound` is not zero.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "there is no number below zero");
        ((u128::from(self.draw()) * bound as u128) >> 64) as usize
    }

    /// Returns a number of the closed range.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        assert!(low <= high, "an empty range");
        let span = (high as i128 - low as i128 + 1) as u128;
        (low as i128 + ((u128::from(self.draw()) * span) >> 64) as i128) as i64
    }

    /// Returns true in `percent` of 100 cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }

    /// Returns up to `length_max` bytes of any value.
    pub fn bytes(&mut self, length_max: usize) -> Vec<u8> {
        let length = self.below(length_max + 1);
        (0..length).map(|_| self.draw() as u8).collect()
    }
}

/// Returns the seed that `EVENKEEL_SEED` asks for, else a seed from the clock. The caller prints it.
pub fn fresh_seed() -> u64 {
    if let Ok(text) = std::env::var(SEED_VARIABLE) {
        return text.parse().expect("EVENKEEL_SEED is a decimal number");
    }
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since_1970.expect("the clock is set after 1970").as_nanos() as u64
}

/// Returns randomness for a test; `EVENKEEL_SEED`, which a failing test prints, repeats it.
pub fn printed() -> Random {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    Random::new(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // The first outputs of the reference implementation for seed 1234567.
        let mut random = Random::new(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(expected.map(|_| random.draw()), expected);
    }

    #[test]
    fn ranges_are_kept_and_their_ends_are_reached() {
        let mut random = Random::new(7);
        let drawn: Vec<i64> = (0..1_000).map(|_| random.between(-2, 2)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&-2), Some(&2)));
        assert!((0..1_000).all(|_| random.below(3) < 3));
        let whole = random.between(i64::MIN, i64::MAX);
        assert_ne!(whole, random.between(i64::MIN, i64::MAX));
    }
}
