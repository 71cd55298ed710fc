//! A run over time: commands and longest latency for each hundredth of a second.

use std::time::{Duration, Instant};

/// Length of a slice.
pub(crate) const SLICE: Duration = Duration::from_millis(10);
/// An hour: later batches are not recorded.
const SLICES_MAX: usize = 360_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) commands: u64,
    /// Longest latency of the batches completed in the slice.
    pub(crate) longest: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    began: Instant,
    slices: Vec<Slice>,
}

impl Timeline {
    pub(super) fn new(began: Instant) -> Self {
        Self { began, slices: Vec::new() }
    }

    pub(super) fn begin(&mut self) {
        self.began = Instant::now();
        self.slices.clear();
    }

    #[inline]
    pub(super) fn record(&mut self, at: Instant, commands: u64, latency: Duration) {
        let index = (at.saturating_duration_since(self.began).as_micros() / SLICE.as_micros()) as usize;
        if index >= self.slices.len() {
            if index >= SLICES_MAX {
                return;
            }
            self.slices.resize(index + 1, Slice::default());
        }
        let slice = &mut self.slices[index];
        slice.commands += commands;
        slice.longest = slice.longest.max(latency);
    }

    /// Adds another thread's timeline.
    pub(super) fn add(&mut self, other: &Self) {
        for (index, slice) in other.slices.iter().enumerate() {
            let at = other.began + SLICE * index as u32 + SLICE / 2;
            self.record(at, slice.commands, slice.longest);
        }
    }

    pub(crate) fn slices(&self) -> &[Slice] {
        &self.slices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_add_up_over_threads() {
        let began = Instant::now();
        let ms = Duration::from_millis;
        let mut one = Timeline::new(began);
        one.record(began + ms(3), 16, ms(2));
        one.record(began + ms(7), 16, ms(1));
        one.record(began + ms(25), 1, ms(9));
        let mut other = Timeline::new(began + ms(10));
        other.record(began + ms(12), 4, ms(5));
        let mut all = Timeline::new(began);
        all.add(&one);
        all.add(&other);
        let expected =
            [(32, 2), (4, 5), (1, 9)].map(|(commands, longest)| Slice { commands, longest: ms(longest) });
        assert_eq!(all.slices(), expected);
        all.record(began + Duration::from_secs(1 << 20), 1, ms(1));
        assert_eq!(all.slices().len(), 3);
    }
}
