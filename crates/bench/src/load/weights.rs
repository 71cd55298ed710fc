//! A weighted random choice among a few items.

use super::keys::Random;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Weights {
    /// For each item the sum of the weights up to its own.
    ends: Vec<u64>,
}

impl Weights {
    /// At least one weight must be more than 0.
    pub(super) fn new(weights: impl IntoIterator<Item = u32>) -> Self {
        let mut sum = 0;
        let end = |weight| {
            sum += u64::from(weight);
            sum
        };
        let ends: Vec<u64> = weights.into_iter().map(end).collect();
        assert!(sum > 0, "there is something to choose");
        Self { ends }
    }

    /// Returns the index of the drawn item.
    #[inline]
    pub(super) fn pick(&self, random: &mut Random) -> usize {
        let at = random.below(self.ends[self.ends.len() - 1]);
        self.ends.partition_point(|end| *end <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_comes_in_proportion_to_its_weight() {
        let (weights, mut random) = (Weights::new([700, 0, 299, 1]), Random::new(3));
        let mut hits = [0u32; 4];
        (0..100_000).for_each(|_| hits[weights.pick(&mut random)] += 1);
        for (hits, expected) in hits.into_iter().zip([70_000.0f64, 0.0, 29_900.0, 100.0]) {
            // Five standard deviations.
            assert!((f64::from(hits) - expected).abs() <= 5.0 * expected.sqrt(), "{hits} {expected}");
        }
    }
}
