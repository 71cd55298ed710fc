//! Prefetching the entries of a list of words, some entries ahead of a walk over them.

use crate::memory::prefetch::prefetch;
use crate::table::segment::Word;

/// Distance, in entries, at which a walk prefetches: enough to keep the memory system busy.
const AHEAD: usize = 16;

/// Yields the words of a list, and prefetches their entries.
pub(crate) fn prefetching(words: &[Word]) -> impl Iterator<Item = Word> {
    words.iter().enumerate().map(|(at, word)| {
        if let Some(ahead) = words.get(at + AHEAD) {
            prefetch(ahead.address() as *const u8);
        }
        *word
    })
}
