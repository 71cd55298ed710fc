//! Medians and ratios over alternating rounds.
//!
//! Machines drift: single values move by a third from minute to minute while the ratio of two servers within
//! a round moves little. So ratios are taken per round, between neighbours in time, and their median is
//! reported. The noise is the deviation from 1 of a server's ratio to itself in the same rounds; a difference
//! within the noise counts as none.

use std::fmt;

/// Median of some values with the smallest and the largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` if there are no values, or if any is NaN.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        if sorted.is_empty() || sorted.iter().any(|value| value.is_nan()) {
            return None;
        }
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
            _ => sorted[middle],
        };
        Some(Self { median, min: sorted[0], max: sorted[sorted.len() - 1] })
    }

    /// Of `ours[i] / theirs[i]`, over the rounds that both have.
    pub(crate) fn of_ratios(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let rounds = ours.iter().zip(theirs).filter(|(_, theirs)| **theirs > 0.0);
        Self::of(rounds.map(|(ours, theirs)| ours / theirs))
    }

    /// Formats with one decimal; without the range if all values are equal.
    pub(crate) fn to_one_decimal(self) -> String {
        let Self { median, min, max } = self;
        if min == max { format!("{median:.1}") } else { format!("{median:.1} ({min:.1}..{max:.1})") }
    }

    /// For a server against itself: the largest deviation of a ratio from 1 that counts as noise.
    pub(crate) fn noise(&self) -> f64 {
        (self.max - 1.0).abs().max((1.0 - self.min).abs())
    }
}

/// Two decimals for ratios, followed by the range.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2}..{:.2})", self.median, self.min, self.max)
    }
}

/// The side of the bound on which a value is good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    pub(crate) fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(bound) => value <= bound,
            Self::AtLeast(bound) => value >= bound,
        }
    }

    /// `met`, or by how much the goal is missed.
    pub(crate) fn verdict(self, value: f64) -> String {
        let (Self::AtMost(bound) | Self::AtLeast(bound)) = self;
        if self.is_met(value) { "met".to_owned() } else { format!("NOT met ({:+.2})", value - bound) }
    }
}

impl Goal {
    /// Returns the distance of a value from the bound, in words, if the value misses the goal.
    pub(crate) fn missed_by(self, value: f64) -> String {
        match self {
            Self::AtMost(bound) if bound > 0.0 => format!("{:.2} times as much", value / bound),
            Self::AtLeast(bound) if bound > 0.0 => format!("{:.2} of it", value / bound),
            Self::AtMost(bound) | Self::AtLeast(bound) => format!("{:+.2}", value - bound),
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "<= {bound:.2}"),
            Self::AtLeast(bound) => write!(f, ">= {bound:.2}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let of = |values: &[f64]| Spread::of(values.iter().copied()).map(|spread| spread.median);
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[f64::NAN]), None);
        assert_eq!(of(&[3.0]), Some(3.0));
        assert_eq!(of(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(of(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        let spread = Spread::of([5.0, 1.0, 3.0]).expect("values");
        assert_eq!((spread.min, spread.max), (1.0, 5.0));
    }

    #[test]
    fn ratios_are_taken_per_round() {
        // Both are twice as slow in the second round: the ratio does not change, though the medians would.
        let spread = Spread::of_ratios(&[1.0, 2.0, 1.1], &[2.0, 4.0, 2.0]).expect("rounds");
        assert_eq!(spread, Spread { median: 0.5, min: 0.5, max: 0.55 });
        assert_eq!(Spread::of_ratios(&[1.0, 1.0], &[0.0, 0.0]), None);
        assert_eq!(Spread::of_ratios(&[1.0, 3.0], &[2.0]).map(|spread| spread.max), Some(0.5));
    }

    #[test]
    fn noise_is_the_largest_step_from_one() {
        let noise = |min, max| Spread { median: 1.0, min, max }.noise();
        assert!((noise(0.9, 1.05) - 0.1).abs() < 1e-9);
        assert!((noise(0.99, 1.05) - 0.05).abs() < 1e-9);
        assert!((noise(1.02, 1.05) - 0.05).abs() < 1e-9);
    }

    #[test]
    fn verdicts() {
        assert_eq!(Goal::AtMost(0.40).verdict(0.40), "met");
        assert_eq!(Goal::AtMost(0.40).verdict(0.43), "NOT met (+0.03)");
        assert_eq!(Goal::AtLeast(0.9).verdict(0.95), "met");
        assert_eq!(Goal::AtLeast(0.9).verdict(0.85), "NOT met (-0.05)");
        assert_eq!(Goal::AtMost(0.4).missed_by(0.5), "1.25 times as much");
        assert_eq!(Goal::AtLeast(0.8).missed_by(0.6), "0.75 of it");
        assert_eq!(Goal::AtMost(0.0).missed_by(3.0), "+3.00");
    }
}
