//! The blocks of a run that other threads have freed, and the notice that makes the run's owner look at them.
//!
//! The list is linked through the blocks themselves. Its head, its length and the notice are a single word,
//! so the owner takes the list as a whole, however long it is, without touching a block.
//!
//! **The notice.** An owner that finds its run full takes the run off its lists, and asks for notice
//! ([`Remote::ask`]). The first thread that frees a block afterwards learns this from its own push, and hands
//! the run to its owner. Until then the owner does not look at the run again: an owner of a million full runs
//! has nothing to search.

use crate::sync::atomic::{AtomicU64, Ordering::*};

/// No block.
pub(crate) const NONE: u16 = u16::MAX;

const ASKED: u64 = 1 << 32;

#[derive(Debug)]
pub(crate) struct Remote(AtomicU64);

/// A list of blocks: the place of the first, and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) first: u16,
    pub(crate) len: u16,
}

fn pack(list: List) -> u64 {
    u64::from(list.first) | u64::from(list.len) << 16
}

fn unpack(word: u64) -> List {
    List { first: word as u16, len: (word >> 16) as u16 }
}

const EMPTY: List = List { first: NONE, len: 0 };

impl Remote {
    #[allow(dead_code, reason = "for the model in tests/it: an entry of a run is reset instead")]
    pub(crate) fn new() -> Remote {
        Remote(AtomicU64::new(pack(EMPTY)))
    }

    /// Empties the list, in an entry that is no run's.
    pub(crate) fn reset(&self) {
        self.0.store(pack(EMPTY), Relaxed);
    }

    /// Adds a block. `link` writes the place of the next block into it, and may be called several times.
    /// Returns whether the owner has asked for notice, which this call then has to give.
    pub(crate) fn push(&self, block: u16, mut link: impl FnMut(u16)) -> bool {
        let mut word = self.0.load(Relaxed);
        loop {
            let list = unpack(word);
            link(list.first);
            let new = pack(List { first: block, len: list.len + 1 });
            // Release: the owner finds the links. Acquire: whoever gives the notice comes after the owner's
            // asking, and thus after the owner has left the run alone.
            match self.0.compare_exchange_weak(word, new, AcqRel, Relaxed) {
                Ok(_) => return word & ASKED != 0,
                Err(now) => word = now,
            }
        }
    }

    /// Number of blocks in the list.
    pub(crate) fn len(&self) -> u16 {
        unpack(self.0.load(Relaxed)).len
    }

    /// Takes the list; a request for notice stays only if the list is empty. For the owner.
    pub(crate) fn take(&self) -> List {
        if self.len() == 0 {
            return EMPTY;
        }
        // The request is gone already: the push that made the list longer has seen it.
        unpack(self.0.swap(pack(EMPTY), Acquire))
    }

    /// Asks for notice of the next block. Returns false if there are blocks already. For the owner.
    pub(crate) fn ask(&self) -> bool {
        self.0.compare_exchange(pack(EMPTY), pack(EMPTY) | ASKED, Release, Relaxed).is_ok()
    }

    /// Takes the request back. Returns false if it is too late: a notice has been or will be given. For the
    /// owner, which has asked and has not got notice yet.
    pub(crate) fn retract(&self) -> bool {
        self.0.compare_exchange(pack(EMPTY) | ASKED, pack(EMPTY), Relaxed, Relaxed).is_ok()
    }
}
