//! Random samples of members: all choices of the same size are equally likely.

/// Random numbers for a command (SplitMix64): for sampling, not for secrets.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// A number below `end`, which is not zero.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ mixed >> 31) * u128::from(end)) >> 64) as u64
    }

    /// `count` distinct positions below `len`, ascending; `count` is at most `len`.
    ///
    /// A small sample is drawn position by position, and duplicates are drawn anew. For a large sample, each
    /// position is taken with the probability that leaves as many for the rest as are needed (Knuth's
    /// algorithm S). Both take time in proportion to the count.
    pub fn positions(&mut self, count: u64, len: u64) -> Vec<u64> {
        assert!(count <= len, "no more than there are");
        let mut chosen = Vec::with_capacity(count as usize);
        if count > len / FEW {
            let left = |chosen: &Vec<u64>| count - chosen.len() as u64;
            for at in 0..len {
                if self.below(len - at) < left(&chosen) {
                    chosen.push(at);
                }
            }
            return chosen;
        }
        while (chosen.len() as u64) < count {
            // As if drawn in sequence: there are never too many.
            let missing = count - chosen.len() as u64;
            chosen.extend((0..missing).map(|_| self.below(len)));
            chosen.sort_unstable();
            chosen.dedup();
        }
        chosen
    }

    /// Shuffles things.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for at in (1..things.len()).rev() {
            things.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}

/// A sample of up to 1 / `FEW` of the positions is small: hardly any is drawn twice.
const FEW: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::random::fresh_seed;

    fn dice() -> Dice {
        let seed = fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        Dice::new(seed)
    }

    #[test]
    fn positions_ascend_and_are_as_many_as_asked_for() {
        let mut dice = dice();
        for len in [0, 1, 2, 7, 8, 100, 10_000] {
            for count in [0, 1, len / 20, len / 8, len / 8 + 1, len / 2, len].map(|count: u64| count.min(len))
            {
                let chosen = dice.positions(count, len);
                assert_eq!(chosen.len() as u64, count);
                assert!(chosen.is_sorted_by(|one, next| one < next));
                assert!(chosen.last().is_none_or(|last| *last < len));
            }
        }
    }

    /// Chi-square of the pairs drawn from `len`: all are equally likely.
    #[test]
    fn every_choice_is_as_likely_as_any_other() {
        let mut dice = dice();
        for len in [5usize, 20] {
            let mut times = vec![0u32; len * len];
            let rounds = 400 * len * (len - 1) / 2;
            for _ in 0..rounds {
                let pair = dice.positions(2, len as u64);
                times[pair[0] as usize * len + pair[1] as usize] += 1;
            }
            let (pairs, each) = (len * (len - 1) / 2, 400.0);
            let drawn = times.iter().filter(|times| **times > 0);
            assert_eq!(drawn.clone().count(), pairs);
            let chi: f64 = drawn.map(|times| (f64::from(*times) - each).powi(2) / each).sum();
            // Mean and variance of the distribution: pairs - 1, twice as much. Six deviations.
            let mean = pairs as f64 - 1.0;
            assert!(chi < mean + 6.0 * (2.0 * mean).sqrt(), "chi-square {chi} of {pairs} pairs");
        }
    }

    #[test]
    fn every_order_is_as_likely_as_any_other() {
        let mut dice = dice();
        let mut times = std::collections::HashMap::new();
        for _ in 0..6000 {
            let mut things = [1, 2, 3];
            dice.shuffle(&mut things);
            *times.entry(things).or_insert(0) += 1;
        }
        assert_eq!(times.len(), 6);
        assert!(times.values().all(|times| (800..1200).contains(times)), "{times:?}");
    }
}
