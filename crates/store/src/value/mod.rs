//! Values: strings as ropes, and collections as trees of shared pages.
//!
//! A value knows neither its key nor its table. Its users share it in O(1), and it is changed under the lock
//! of its key's slot. Time, hash function and randomness are arguments.

pub mod collection;
pub(crate) mod heap_value;
pub mod rope;
pub(crate) mod shared;

use crate::Millis;

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    String = 0,
    List = 1,
    Set = 2,
    ZSet = 3,
    Hash = 4,
    Stream = 5,
    Array = 6,
}

impl Kind {
    /// Returns the kind of this name, in any case.
    pub fn named(name: &[u8]) -> Option<Kind> {
        let mut all = std::iter::successors(Some(Kind::String), |kind| kind.next());
        all.find(|kind| name.eq_ignore_ascii_case(kind.name().as_bytes()))
    }

    fn next(self) -> Option<Kind> {
        match self {
            Kind::String => Some(Kind::List),
            Kind::List => Some(Kind::Set),
            Kind::Set => Some(Kind::ZSet),
            Kind::ZSet => Some(Kind::Hash),
            Kind::Hash => Some(Kind::Stream),
            Kind::Stream => Some(Kind::Array),
            Kind::Array => None,
        }
    }

    /// The type's name in the reply of TYPE.
    pub fn name(self) -> &'static str {
        match self {
            Kind::String => "string",
            Kind::List => "list",
            Kind::Set => "set",
            Kind::ZSet => "zset",
            Kind::Hash => "hash",
            Kind::Stream => "stream",
            Kind::Array => "array",
        }
    }
}

/// The new deadline of a key, or of a field of a hash, whose value is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expire {
    Keep,
    Clear,
    At(Millis),
}
