//! Values that do not lie in their entry: ropes and collections. An entry keeps one address of eight bytes.

use std::ptr::NonNull;

use crate::collection::raw::Raw as _;
use crate::collection::{Hash, List, Set, Stream, ZSet};
use crate::entry::Kind;
use crate::rope::Rope;

/// See the module's text. Cloning shares the value.
#[derive(Clone)]
pub(crate) enum Outside {
    Rope(Rope),
    List(List),
    Set(Set),
    ZSet(ZSet),
    Hash(Hash),
    Stream(Stream),
}

/// Evaluates an expression for the value, whichever it is.
macro_rules! each {
    ($outside:expr, $value:ident => $then:expr) => {
        match $outside {
            Outside::Rope($value) => $then,
            Outside::List($value) => $then,
            Outside::Set($value) => $then,
            Outside::ZSet($value) => $then,
            Outside::Hash($value) => $then,
            Outside::Stream($value) => $then,
        }
    };
}

impl Outside {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Outside::Rope(_) => Kind::String,
            Outside::List(_) => Kind::List,
            Outside::Set(_) => Kind::Set,
            Outside::ZSet(_) => Kind::ZSet,
            Outside::Hash(_) => Kind::Hash,
            Outside::Stream(_) => Kind::Stream,
        }
    }

    pub(crate) fn into_raw(self) -> *const u8 {
        match self {
            Outside::Rope(rope) => rope.into_raw().cast(),
            Outside::List(list) => list.into_raw().as_ptr(),
            Outside::Set(set) => set.into_raw().as_ptr(),
            Outside::ZSet(set) => set.into_raw().as_ptr(),
            Outside::Hash(hash) => hash.into_raw().as_ptr(),
            Outside::Stream(stream) => stream.into_raw().as_ptr(),
        }
    }

    /// # Safety
    /// `raw` comes from `into_raw` of a value of this kind, and stands for one reference.
    pub(crate) unsafe fn from_raw(kind: Kind, raw: *const u8) -> Outside {
        let address = NonNull::new(raw.cast_mut()).expect("a value has an address");
        // SAFETY: by the caller's promise.
        unsafe {
            match kind {
                Kind::String => Outside::Rope(Rope::from_raw(raw.cast())),
                Kind::List => Outside::List(List::from_raw(address)),
                Kind::Set => Outside::Set(Set::from_raw(address)),
                Kind::ZSet => Outside::ZSet(ZSet::from_raw(address)),
                Kind::Hash => Outside::Hash(Hash::from_raw(address)),
                Kind::Stream => Outside::Stream(Stream::from_raw(address)),
            }
        }
    }

    /// Bytes of memory, shared or not.
    pub(crate) fn memory(&self) -> usize {
        each!(self, value => value.memory())
    }

    /// The same without the groups of a stream, each consumer of which would be looked at.
    pub(crate) fn memory_about(&self) -> usize {
        match self {
            Outside::Stream(stream) => stream.memory_of_entries(),
            other => other.memory(),
        }
    }

    /// Bytes that dropping it gives back, about: none while another owner shares the whole value. Parts that are shared count.
    pub(crate) fn memory_if_own(&self) -> usize {
        if each!(self, value => value.is_own()) { self.memory_about() } else { 0 }
    }

    /// Bytes of memory that other values refer to as well: all of it if more than `owners` references to this one are there.
    pub(crate) fn shared_memory(&self, owners: u32) -> usize {
        match self {
            Outside::Rope(rope) => rope.shared_memory(owners as usize),
            Outside::List(list) => list.shared_memory(owners),
            Outside::Set(set) => set.shared_memory(owners),
            Outside::ZSet(set) => set.shared_memory(owners),
            Outside::Hash(hash) => hash.shared_memory(owners),
            Outside::Stream(stream) => stream.shared_memory(owners),
        }
    }

    /// Blocks that dropping it would free at most, about.
    pub(crate) fn weight(&self) -> usize {
        each!(self, value => value.weight())
    }
}
