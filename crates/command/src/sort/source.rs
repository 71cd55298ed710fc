//! The source of a sort: a list, a set or a sorted set, shared.

use std::ops::Range;

use evenkeel_store::collection::{List, Set, ZSet};
use evenkeel_store::{Key, Kind, SlotGuard, View};

use crate::error::Error;

/// The form of a large sorted set.
const LARGE: u8 = 1;

/// See the module's text. A clone takes constant time, except for the few members of a set of integers.
#[derive(Clone)]
pub(super) enum Source {
    Nothing,
    List(List),
    Set(Set),
    /// A set of packed integers, and its members as texts.
    Integers(Set, Vec<Vec<u8>>),
    ZSet(ZSet),
}

impl Source {
    /// Returns the value at the key, which counts as a read of it. Redis converts a sorted set for this,
    /// which shows in OBJECT ENCODING.
    pub(super) fn read(guard: &mut SlotGuard<'_>, key: &Key<'_>) -> Result<Source, Error> {
        let source = guard.read(key).map_or(Ok(Source::Nothing), Source::of)?;
        if let Source::ZSet(_) = source {
            guard.set_form(key, LARGE);
        }
        Ok(source)
    }

    /// [`Source::read`] without counting.
    pub(super) fn peek(guard: &mut SlotGuard<'_>, key: &Key<'_>) -> Result<Source, Error> {
        guard.peek(key).map_or(Ok(Source::Nothing), Source::of)
    }

    fn of(view: View<'_>) -> Result<Source, Error> {
        match view.kind() {
            Kind::List => Ok(Source::List(view.collection::<List>().clone())),
            Kind::Set => Ok(Source::of_set(view.collection::<Set>().clone())),
            Kind::ZSet => Ok(Source::ZSet(view.collection::<ZSet>().clone())),
            _ => Err(Error::WrongType),
        }
    }

    fn of_set(set: Set) -> Source {
        if !set.is_packed() {
            return Source::Set(set);
        }
        let members = set.iter().map(|member| member.to_vec()).collect();
        Source::Integers(set, members)
    }

    pub(super) fn len(&self) -> usize {
        let len = match self {
            Source::Nothing => 0,
            Source::List(list) => list.len(),
            Source::Set(set) | Source::Integers(set, _) => set.len(),
            Source::ZSet(set) => set.len(),
        };
        len as usize
    }

    /// Whether its elements have no order of their own.
    pub(super) fn is_unordered(&self) -> bool {
        matches!(self, Source::Set(_) | Source::Integers(..))
    }

    /// Returns the elements at positions in a range, which is in bounds.
    pub(super) fn elements(&self, range: Range<usize>) -> Vec<&[u8]> {
        let positions = range.start as u64..range.end as u64;
        match self {
            Source::Nothing => Vec::new(),
            Source::List(list) => list.range(positions).collect(),
            Source::Set(set) => set.unpacked().skip(range.start).take(range.len()).collect(),
            Source::Integers(_, members) => members[range].iter().map(Vec::as_slice).collect(),
            Source::ZSet(set) => set.range(positions).map(|(member, _)| member).collect(),
        }
    }

    /// Whether both share the same value, so nothing was written to it since.
    pub(super) fn is_same(&self, other: &Source) -> bool {
        match (self, other) {
            (Source::Nothing, Source::Nothing) => true,
            (Source::List(this), Source::List(other)) => this.is_same(other),
            (Source::Set(this), Source::Set(other)) => this.is_same(other),
            (Source::Integers(this, _), Source::Integers(other, _)) => this.is_same(other),
            (Source::ZSet(this), Source::ZSet(other)) => this.is_same(other),
            _ => false,
        }
    }
}
