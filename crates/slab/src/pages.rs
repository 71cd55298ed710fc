//! The pages of a chunk, a bit for each.

/// Bytes of a page: large blocks take whole pages.
pub const PAGE: usize = 4096;
/// Pages of a chunk.
pub(crate) const PAGES: usize = crate::CHUNK / PAGE;
const WORDS: usize = PAGES / 64;

/// A set of pages of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageSet([u64; WORDS]);

impl PageSet {
    pub(crate) const NONE: PageSet = PageSet([0; WORDS]);
    pub(crate) const ALL: PageSet = PageSet([u64::MAX; WORDS]);

    pub(crate) fn add(&mut self, first: usize, len: usize) {
        self.for_each_word(first, len, |word, mask| *word |= mask);
    }

    pub(crate) fn remove(&mut self, first: usize, len: usize) {
        self.for_each_word(first, len, |word, mask| *word &= !mask);
    }

    fn for_each_word(&mut self, first: usize, len: usize, mut f: impl FnMut(&mut u64, u64)) {
        assert!(first + len <= PAGES, "pages of a chunk");
        let (mut at, end) = (first, first + len);
        while at < end {
            let bits = (64 - at % 64).min(end - at);
            f(&mut self.0[at / 64], (u64::MAX >> (64 - bits)) << (at % 64));
            at += bits;
        }
    }

    pub(crate) fn is_all(&self) -> bool {
        *self == PageSet::ALL
    }

    /// The pages of this set that are in the other too.
    pub(crate) fn and(&self, other: &PageSet) -> PageSet {
        PageSet(std::array::from_fn(|at| self.0[at] & other.0[at]))
    }

    /// The pages of this set that are not in the other.
    pub(crate) fn without(&self, other: &PageSet) -> PageSet {
        PageSet(std::array::from_fn(|at| self.0[at] & !other.0[at]))
    }

    /// The first run of neighbouring pages from `from` on: its first page and its length.
    pub(crate) fn next_run(&self, from: usize) -> Option<(usize, usize)> {
        let first = self.next(from, 0)?;
        let end = self.next(first, u64::MAX).unwrap_or(PAGES);
        Some((first, end - first))
    }

    /// The first page from `from` on that is in the set, or with `flip` of all ones: that is not.
    fn next(&self, from: usize, flip: u64) -> Option<usize> {
        let mut at = from;
        while at < PAGES {
            let word = (self.0[at / 64] ^ flip) >> (at % 64);
            if word != 0 {
                return Some(at + word.trailing_zeros() as usize);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    pub(crate) fn runs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let run = self.next_run(from)?;
            from = run.0 + run.1;
            Some(run)
        })
    }

    /// Length of the longest run.
    pub(crate) fn longest(&self) -> usize {
        self.runs().map(|(_, len)| len).max().unwrap_or(0)
    }

    /// The first page of the shortest run of at least `len` pages.
    pub(crate) fn find(&self, len: usize) -> Option<usize> {
        let fits = self.runs().filter(|(_, run)| *run >= len);
        fits.min_by_key(|(_, run)| *run).map(|(first, _)| first)
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::Random;

    use super::*;

    #[test]
    fn random_sets_match_a_plain_list() {
        let mut random = Random::new(7);
        for _ in 0..if cfg!(miri) { 2 } else { 300 } {
            let (mut set, mut plain) = (PageSet::NONE, [false; PAGES]);
            for _ in 0..random.below(40) {
                let first = random.below(PAGES);
                let len = random.below(PAGES - first) + 1;
                let adds = random.chance(50);
                plain[first..first + len].fill(adds);
                if adds { set.add(first, len) } else { set.remove(first, len) }
            }
            let mut runs = Vec::new();
            let mut at = 0;
            for part in plain.chunk_by(|one, other| one == other) {
                if part[0] {
                    runs.push((at, part.len()));
                }
                at += part.len();
            }
            assert_eq!(set.runs().collect::<Vec<_>>(), runs);
            assert_eq!(set.longest(), runs.iter().map(|run| run.1).max().unwrap_or(0));
            assert_eq!(set.is_all(), plain.iter().all(|is_in| *is_in));
            let len = random.below(PAGES) + 1;
            let shortest = runs.iter().filter(|run| run.1 >= len).map(|run| run.1).min();
            let found = set.find(len).map(|first| runs.iter().find(|run| run.0 == first).map(|run| run.1));
            assert_eq!(found, shortest.map(Some));
        }
    }
}
