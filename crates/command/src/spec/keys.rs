//! Where a command's keys stand among its arguments.

use evenkeel_store::{Key, Keyspace};

use crate::Args;

/// Calls back with the index and database of each key: `(args, db, databases, key)`.
pub type FindKeys = fn(&Args<'_>, u32, u32, &mut dyn FnMut(usize, u32));

/// A rule that finds keys.
#[derive(Clone, Copy)]
pub enum Keys {
    /// From argument `first` to `last` (negative: from the end), every `step`th.
    Range { first: i16, last: i16, step: i16 },
    /// A count at argument `at`, then as many groups of `step` arguments, the key first in each.
    Counted { at: usize, step: usize },
    /// Keys that a function finds, for instance in several databases: it calls back with the index of each
    /// key and its database.
    Across(FindKeys),
}

impl Keys {
    pub const NONE: Keys = Keys::Range { first: 0, last: 0, step: 0 };
    /// The first argument.
    pub const FIRST: Keys = Keys::Range { first: 1, last: 1, step: 1 };
    /// The first two arguments.
    pub const FIRST_TWO: Keys = Keys::Range { first: 1, last: 2, step: 1 };
    /// The second argument.
    pub const SECOND: Keys = Keys::Range { first: 2, last: 2, step: 1 };
    /// All arguments.
    pub const REST: Keys = Keys::Range { first: 1, last: -1, step: 1 };
    /// All arguments from the second on.
    pub const REST_FROM_SECOND: Keys = Keys::Range { first: 2, last: -1, step: 1 };
    /// Every other argument: keys and values alternate.
    pub const PAIRS: Keys = Keys::Range { first: 1, last: -1, step: 2 };

    /// Whether it is exactly the first argument, which has a fast path.
    #[inline]
    pub fn is_first(&self) -> bool {
        matches!(self, Keys::Range { first: 1, last: 1, .. })
    }

    pub fn is_none(&self) -> bool {
        matches!(self, Keys::Range { step: 0, .. })
    }

    /// Calls `key` with the index and database of each key of a call, in order. A call whose count is not a
    /// number or is too large has no keys: its handler replies with the error.
    pub fn for_each(&self, args: &Args<'_>, db: u32, databases: u32, mut key: impl FnMut(usize, u32)) {
        match *self {
            Keys::Range { step: 0, .. } => {}
            Keys::Range { first, last, step } => {
                let last = if last < 0 { args.len() as i64 + i64::from(last) } else { i64::from(last) };
                let last = last.min(args.len() as i64 - 1);
                let mut at = i64::from(first);
                while at <= last {
                    key(at as usize, db);
                    at += i64::from(step);
                }
            }
            Keys::Counted { at, step } => {
                let count = if at < args.len() { args.int(at).unwrap_or(0) } else { 0 };
                let room = (args.len().saturating_sub(at + 1)) / step;
                if (1..=room as i64).contains(&count) {
                    (0..count as usize).for_each(|group| key(at + 1 + group * step, db));
                }
            }
            Keys::Across(find) => find(args, db, databases, &mut key),
        }
    }

    /// Returns the keys among the arguments of a call in database `db`, with their hashes and places.
    #[inline]
    pub fn find<'a>(&self, args: &Args<'a>, db: u32, keyspace: &Keyspace) -> Vec<Key<'a>> {
        let mut keys = Vec::new();
        self.for_each(args, db, keyspace.databases() as u32, |index, db| {
            keys.push(keyspace.key(db, args.at(index)));
        });
        keys
    }
}

/// Some of a call's arguments: a bit each.
pub struct Marks(Vec<u64>);

impl Marks {
    /// Returns a set without marks for the arguments of a call.
    pub fn of(args: &Args<'_>) -> Marks {
        Marks(vec![0; args.len().div_ceil(64)])
    }

    /// Marks an argument; false if it was marked already.
    pub fn add(&mut self, index: usize) -> bool {
        let is_new = !self.has(index);
        self.0[index / 64] |= 1 << (index % 64);
        is_new
    }

    pub fn has(&self, index: usize) -> bool {
        self.0[index / 64] & 1 << (index % 64) != 0
    }
}
