//! Values on the heap, outside of their entry: ropes and collections. The entry keeps an address of eight
//! bytes.

use std::ptr::NonNull;

use crate::memory::mover::Mover;
use crate::value::Kind;
use crate::value::collection::raw::Raw as _;
use crate::value::collection::{Array, Hash, List, Set, Stream, ZSet};
use crate::value::rope::Rope;

/// See the module's documentation. Cloning shares the value.
#[derive(Clone)]
pub(crate) enum HeapValue {
    Rope(Rope),
    List(List),
    Set(Set),
    ZSet(ZSet),
    Hash(Hash),
    Stream(Stream),
    Array(Array),
}

/// Evaluates an expression for the value, whatever its kind.
macro_rules! each {
    ($heap_value:expr, $value:ident => $then:expr) => {
        match $heap_value {
            HeapValue::Rope($value) => $then,
            HeapValue::List($value) => $then,
            HeapValue::Set($value) => $then,
            HeapValue::ZSet($value) => $then,
            HeapValue::Hash($value) => $then,
            HeapValue::Stream($value) => $then,
            HeapValue::Array($value) => $then,
        }
    };
}

impl HeapValue {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            HeapValue::Rope(_) => Kind::String,
            HeapValue::List(_) => Kind::List,
            HeapValue::Set(_) => Kind::Set,
            HeapValue::ZSet(_) => Kind::ZSet,
            HeapValue::Hash(_) => Kind::Hash,
            HeapValue::Stream(_) => Kind::Stream,
            HeapValue::Array(_) => Kind::Array,
        }
    }

    pub(crate) fn into_raw(self) -> *const u8 {
        match self {
            HeapValue::Rope(rope) => rope.into_raw().as_ptr(),
            HeapValue::List(list) => list.into_raw().as_ptr(),
            HeapValue::Set(set) => set.into_raw().as_ptr(),
            HeapValue::ZSet(set) => set.into_raw().as_ptr(),
            HeapValue::Hash(hash) => hash.into_raw().as_ptr(),
            HeapValue::Stream(stream) => stream.into_raw().as_ptr(),
            HeapValue::Array(array) => array.into_raw().as_ptr(),
        }
    }

    /// # Safety
    /// `raw` comes from `into_raw` of a value of this kind, and stands for a reference.
    pub(crate) unsafe fn from_raw(kind: Kind, raw: *const u8) -> HeapValue {
        let address = NonNull::new(raw.cast_mut()).expect("a value has an address");
        // SAFETY: by the caller's promise.
        unsafe {
            match kind {
                Kind::String => HeapValue::Rope(Rope::from_raw(address)),
                Kind::List => HeapValue::List(List::from_raw(address)),
                Kind::Set => HeapValue::Set(Set::from_raw(address)),
                Kind::ZSet => HeapValue::ZSet(ZSet::from_raw(address)),
                Kind::Hash => HeapValue::Hash(Hash::from_raw(address)),
                Kind::Stream => HeapValue::Stream(Stream::from_raw(address)),
                Kind::Array => HeapValue::Array(Array::from_raw(address)),
            }
        }
    }

    /// Bytes of memory, shared or not.
    pub(crate) fn memory(&self) -> usize {
        each!(self, value => value.memory())
    }

    /// Like [`HeapValue::memory`], without the groups of a stream, whose consumers would each have to be
    /// visited.
    pub(crate) fn memory_about(&self) -> usize {
        match self {
            HeapValue::Stream(stream) => stream.memory_of_entries(),
            other => other.memory(),
        }
    }

    /// Approximate bytes that dropping the value frees: none while another owner shares the whole value.
    /// Shared parts count.
    pub(crate) fn memory_if_own(&self) -> usize {
        if each!(self, value => value.is_own()) { self.memory_about() } else { 0 }
    }

    /// Moves the pages of a collection that `mover` wants elsewhere, from the item at `from` on. Returns the
    /// item to go on from, if `mover` has had enough before the end. A rope has no pages.
    pub(crate) fn relocate_pages(&mut self, from: u64, mover: &mut Mover<'_>) -> Option<u64> {
        match self {
            HeapValue::Rope(_) => None,
            HeapValue::List(list) => list.relocate(from, mover),
            HeapValue::Set(set) => set.relocate(from, mover),
            HeapValue::ZSet(set) => set.relocate(from, mover),
            HeapValue::Hash(hash) => hash.relocate(from, mover),
            HeapValue::Stream(stream) => stream.relocate(from, mover),
            HeapValue::Array(array) => array.relocate(from, mover),
        }
    }

    /// Bytes of memory that other values refer to as well: all of it if there are more than `owners`
    /// references to this value.
    pub(crate) fn shared_memory(&self, owners: u32) -> usize {
        match self {
            HeapValue::Rope(rope) => rope.shared_memory(owners),
            HeapValue::List(list) => list.shared_memory(owners),
            HeapValue::Set(set) => set.shared_memory(owners),
            HeapValue::ZSet(set) => set.shared_memory(owners),
            HeapValue::Hash(hash) => hash.shared_memory(owners),
            HeapValue::Stream(stream) => stream.shared_memory(owners),
            HeapValue::Array(array) => array.shared_memory(owners),
        }
    }

    /// Approximate maximum number of blocks that dropping the value frees.
    pub(crate) fn weight(&self) -> usize {
        each!(self, value => value.weight())
    }
}
