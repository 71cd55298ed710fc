//! The order in which the load touches its keys.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use super::keys::Random;

/// Exponent of `zipf` by default, as measured in caches and used by other generators.
const ZIPF_EXPONENT: f64 = 0.99;
const ZIPF_EXPONENT_MAX: f64 = 10.0;
/// Percentage of requests that `hot` sends to a single key by default.
const HOT_PERCENT: u8 = 50;

/// The order in which keys come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Distribution {
    /// Each request takes any key, all with the same probability.
    Uniform,
    /// In sequence, and from the start again.
    Sequential,
    /// The key with the k-th number comes in proportion to 1/k^exponent.
    Zipf { exponent: f64 },
    /// `percent` of the requests go to the first key, the rest to any key.
    Hot { percent: u8 },
}

impl FromStr for Distribution {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, parameter) =
            text.split_once(':').map_or((text, None), |(name, parameter)| (name, Some(parameter)));
        match (name, parameter) {
            ("uniform", None) => Ok(Self::Uniform),
            ("sequential", None) => Ok(Self::Sequential),
            ("zipf", parameter) => {
                let exponent = parameter.map_or(Ok(ZIPF_EXPONENT), str::parse).ok();
                let exponent = exponent.filter(|exponent| *exponent > 0.0 && *exponent <= ZIPF_EXPONENT_MAX);
                let exponent =
                    exponent.with_context(|| format!("zipf:EXPONENT, up to {ZIPF_EXPONENT_MAX}"))?;
                Ok(Self::Zipf { exponent })
            }
            ("hot", parameter) => {
                let percent =
                    parameter.map_or(Ok(HOT_PERCENT), str::parse).ok().filter(|percent| *percent <= 100);
                Ok(Self::Hot { percent: percent.context("hot:PERCENT, 0 to 100")? })
            }
            _ => bail!("use uniform, sequential, zipf, zipf:EXPONENT, hot, or hot:PERCENT"),
        }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Sequential => f.write_str("sequential"),
            Self::Zipf { exponent } => write!(f, "zipf:{exponent}"),
            Self::Hot { percent } => write!(f, "hot:{percent}"),
        }
    }
}

/// Draws offsets below `count`.
#[derive(Debug)]
pub(super) enum Draw {
    Uniform { count: u64 },
    Sequential { count: u64, next: u64 },
    Zipf(Zipf),
    Hot { count: u64, percent: u8 },
}

impl Draw {
    pub(super) fn new(distribution: Distribution, count: u64) -> Self {
        match distribution {
            Distribution::Uniform => Self::Uniform { count },
            Distribution::Sequential => Self::Sequential { count, next: 0 },
            Distribution::Zipf { exponent } => Self::Zipf(Zipf::new(count, exponent)),
            Distribution::Hot { percent } => Self::Hot { count, percent },
        }
    }

    #[inline]
    pub(super) fn next(&mut self, random: &mut Random) -> u64 {
        match self {
            Self::Uniform { count } => random.below(*count),
            Self::Sequential { count, next } => {
                let now = *next;
                *next = if now + 1 == *count { 0 } else { now + 1 };
                now
            }
            Self::Zipf(zipf) => zipf.next(random),
            Self::Hot { percent, .. } if random.below(100) < u64::from(*percent) => 0,
            Self::Hot { count, .. } => random.below(*count),
        }
    }
}

/// Ranks by Zipf's law, by rejection-inversion (Hörmann and Derflinger 1996): no table, and about a draw
/// per rank, whatever the number of ranks.
///
/// The law's bars of width one lie under the curve x^-exponent. A point is drawn under the curve, by the
/// inverse of the curve's integral, and counts if it lies in the bar of the nearest rank.
#[derive(Debug)]
pub(super) struct Zipf {
    exponent: f64,
    count: f64,
    /// The integral up to the start of the first bar, and up to the end of the last bar.
    from: f64,
    to: f64,
    /// A point at most this far below its rank is surely in the bar.
    sure: f64,
}

impl Zipf {
    fn new(count: u64, exponent: f64) -> Zipf {
        let mut zipf = Zipf { exponent, count: count as f64, from: 0.0, to: 0.0, sure: 0.0 };
        zipf.from = zipf.integral(1.5) - 1.0;
        zipf.to = zipf.integral(zipf.count + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.height(2.0));
        zipf
    }

    fn next(&self, random: &mut Random) -> u64 {
        loop {
            // A float between 0 and 1 holds 53 bits.
            let part = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
            let area = self.to + part * (self.from - self.to);
            let at = self.inverse(area);
            let rank = at.round().clamp(1.0, self.count);
            if rank - at <= self.sure || area >= self.integral(rank + 0.5) - self.height(rank) {
                return rank as u64 - 1;
            }
        }
    }

    fn height(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// (x^(1-exponent) - 1) / (1-exponent), which at exponent 1 is ln x.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        over(f64::exp_m1, (1.0 - self.exponent) * log) * log
    }

    fn inverse(&self, y: f64) -> f64 {
        let part = (y * (1.0 - self.exponent)).max(-1.0);
        (over(f64::ln_1p, part) * y).exp()
    }
}

/// f(x)/x, for functions whose slope at 0 is 1.
fn over(f: fn(f64) -> f64, x: f64) -> f64 {
    const NEAR_0: f64 = 1e-12;
    if x.abs() < NEAR_0 { 1.0 } else { f(x) / x }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of draws per rank.
    fn drawn(distribution: Distribution, count: u64, draws: u64) -> Vec<u64> {
        let (mut draw, mut random) = (Draw::new(distribution, count), Random::new(5));
        let mut hits = vec![0; count as usize];
        (0..draws).for_each(|_| hits[draw.next(&mut random) as usize] += 1);
        hits
    }

    #[test]
    fn ranks_follow_the_law() {
        const DRAWS: u64 = 400_000;
        for exponent in [0.5, 0.99, 1.0, 1.5, 3.0] {
            let count = 1_000;
            let hits = drawn(Distribution::Zipf { exponent }, count, DRAWS);
            let whole: f64 = (1..=count).map(|rank| (rank as f64).powf(-exponent)).sum();
            for rank in [1, 2, 3, 10, 100] {
                let expected = (rank as f64).powf(-exponent) / whole * DRAWS as f64;
                let seen = hits[rank - 1] as f64;
                // Five standard deviations.
                assert!(
                    (seen - expected).abs() <= 5.0 * expected.sqrt() + 1.0,
                    "{exponent} {rank}: {seen} {expected}"
                );
            }
        }
        assert_eq!(drawn(Distribution::Zipf { exponent: 0.99 }, 1, 10), [10]);
    }

    #[test]
    fn a_hot_key_gets_its_share() {
        let hits = drawn(Distribution::Hot { percent: 90 }, 10, 100_000);
        assert!((90_300..91_700).contains(&hits[0]), "{hits:?}"); // 90 percent, and a tenth of the rest
        assert!(hits[1..].iter().all(|hits| (800..1_200).contains(hits)), "{hits:?}");
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["uniform", "sequential", "zipf:0.99", "zipf:1.2", "hot:50", "hot:0"] {
            assert_eq!(name.parse::<Distribution>().expect("a name").to_string(), name);
        }
        assert_eq!(
            "zipf".parse::<Distribution>().expect("a name"),
            Distribution::Zipf { exponent: ZIPF_EXPONENT }
        );
        for bad in ["", "zipf:0", "zipf:x", "zipf:-1", "hot:101", "hot:", "uniform:1", "nan", "zipf:nan"] {
            assert!(bad.parse::<Distribution>().is_err(), "{bad}");
        }
    }
}
