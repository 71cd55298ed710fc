//! Sizes of values: fixed, any in a range, or several sizes with weights.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use super::keys::Random;
use super::weights::Weights;

/// Longest value: the servers' limit, unless `proto-max-bulk-len` says otherwise.
const SIZE_MAX: usize = 512 << 20;

/// Bytes of values, as asked for on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sizes {
    Fixed(usize),
    /// All sizes from the first to the last, with the same probability.
    Range(usize, usize),
    /// Sizes, each with its weight.
    Weighted(Vec<(usize, u32)>),
}

impl Sizes {
    /// Returns whether all values have the same size.
    pub(super) fn is_one(&self) -> bool {
        matches!(self, Self::Fixed(_))
    }

    pub(super) fn longest(&self) -> usize {
        match self {
            Self::Fixed(size) | Self::Range(_, size) => *size,
            Self::Weighted(sizes) => sizes.iter().map(|(size, _)| *size).max().unwrap_or(0),
        }
    }

    /// The mean, in whole bytes.
    pub(crate) fn mean(&self) -> usize {
        match self {
            Self::Fixed(size) => *size,
            Self::Range(from, to) => (from + to) / 2,
            Self::Weighted(sizes) => {
                let weights: f64 = sizes.iter().map(|(_, weight)| f64::from(*weight)).sum();
                let bytes: f64 = sizes.iter().map(|(size, weight)| *size as f64 * f64::from(*weight)).sum();
                (bytes / weights).round() as usize
            }
        }
    }
}

impl FromStr for Sizes {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.contains(':') {
            return Ok(Self::Weighted(text.split(',').map(weighted).collect::<Result<_>>()?));
        }
        let Some((from, to)) = text.split_once('-') else { return Ok(Self::Fixed(bytes(text)?)) };
        let (from, to) = (bytes(from)?, bytes(to)?);
        if from > to {
            bail!("a range goes from the smaller to the larger: {to}-{from}");
        }
        Ok(Self::Range(from, to))
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => size.fmt(f),
            Self::Range(from, to) => write!(f, "{from}-{to}"),
            Self::Weighted(sizes) => {
                let all: Vec<String> =
                    sizes.iter().map(|(size, weight)| format!("{size}:{weight}")).collect();
                f.write_str(&all.join(","))
            }
        }
    }
}

fn weighted(text: &str) -> Result<(usize, u32)> {
    let (size, weight) = text.split_once(':').with_context(|| format!("{text:?} has no weight"))?;
    let weight: u32 = weight.trim().parse().with_context(|| format!("{weight:?} is no weight"))?;
    if weight == 0 {
        bail!("{text:?} has the weight 0, and would never come");
    }
    Ok((bytes(size)?, weight))
}

fn bytes(text: &str) -> Result<usize> {
    let size = text.trim().parse().ok();
    let size: usize = size.with_context(|| {
        format!("{text:?} is no number of bytes; use 500, 100-1000, or 100:70,1000:30 with weights")
    })?;
    if size > SIZE_MAX {
        bail!("values of more than {SIZE_MAX} bytes are not supported");
    }
    Ok(size)
}

/// Draws sizes in sequence.
#[derive(Debug)]
pub(super) enum SizeStream {
    Fixed(usize),
    Range { from: usize, count: u64 },
    Weighted { sizes: Vec<usize>, weights: Weights },
}

impl SizeStream {
    pub(super) fn new(sizes: &Sizes) -> Self {
        match sizes {
            Sizes::Fixed(size) => Self::Fixed(*size),
            Sizes::Range(from, to) => Self::Range { from: *from, count: (to - from) as u64 + 1 },
            Sizes::Weighted(sizes) => Self::Weighted {
                sizes: sizes.iter().map(|(size, _)| *size).collect(),
                weights: Weights::new(sizes.iter().map(|(_, weight)| *weight)),
            },
        }
    }

    #[inline]
    pub(super) fn next(&self, random: &mut Random) -> usize {
        match self {
            Self::Fixed(size) => *size,
            Self::Range { from, count } => from + random.below(*count) as usize,
            Self::Weighted { sizes, weights } => sizes[weights.pick(random)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(text: &str) -> Sizes {
        text.parse().expect(text)
    }

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for (text, longest, mean) in [
            ("500", 500, 500),
            ("0", 0, 0),
            ("100-1000", 1_000, 550),
            ("7-7", 7, 7),
            ("100:70,1000:25,10000:5", 10_000, 820),
        ] {
            let sizes = sizes(text);
            assert_eq!((sizes.to_string(), sizes.longest(), sizes.mean()), (text.to_owned(), longest, mean));
        }
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for (bad, said) in [
            ("", "no number of bytes"),
            ("x", "no number of bytes"),
            ("-5", "no number of bytes"),
            ("100-", "no number of bytes"),
            ("1-2-3", "no number of bytes"),
            ("1000-100", "100-1000"),
            ("536870913", "not supported"),
            ("1-99999999999", "not supported"),
            ("100:0", "weight 0"),
            ("100:70,1000", "has no weight"),
            ("100:70,", "has no weight"),
            ("100:-1", "is no weight"),
            ("100:x", "is no weight"),
            (":5", "no number of bytes"),
        ] {
            let error = bad.parse::<Sizes>().expect_err(bad).to_string();
            assert!(error.contains(said), "{bad}: {error}");
        }
    }

    #[test]
    fn a_range_is_reached_evenly_to_both_ends() {
        let (stream, mut random) = (SizeStream::new(&sizes("5-9")), Random::new(1));
        let mut hits = [0u32; 5];
        (0..50_000).for_each(|_| hits[stream.next(&mut random) - 5] += 1);
        assert!(hits.iter().all(|hits| (9_500..10_500).contains(hits)), "{hits:?}");
    }

    #[test]
    fn weighted_sizes_come_as_often_as_they_weigh() {
        let (stream, mut random) = (SizeStream::new(&sizes("10:70,20:25,30:5")), Random::new(1));
        let drawn: Vec<usize> = (0..100_000).map(|_| stream.next(&mut random)).collect();
        for (size, expected) in [(10, 70_000), (20, 25_000), (30, 5_000)] {
            let hits = drawn.iter().filter(|drawn| **drawn == size).count();
            assert!(hits.abs_diff(expected) < 1_000, "{size}: {hits}");
        }
    }
}
