//! Values between the store and Redis' serialization of them, which crate `rdb` reads and writes.
//!
//! A [`Value`] is a value taken out of its key. For all but small strings it is a share, made in constant
//! time, that never changes. So nothing here needs a lock, whatever the size.

mod read;
mod write;

use evenkeel_store::collection::{Array, Collection, Hash, List, Set, Stream, ZSet};
use evenkeel_store::rope::{CHUNK, Rope};
use evenkeel_store::{Expire, Key, Kind, Made, Millis, SlotGuard, Str, View};

use crate::flow::OFFLOAD_MIN;

pub use read::{Origin, build, read};
pub use write::{payload, record};

/// See the module's text.
pub enum Value {
    Flat(Vec<u8>),
    Rope(Rope),
    List(List),
    Set(Set),
    ZSet(ZSet),
    Hash(Hash),
    Stream(Stream),
    Array(Array),
}

/// Bytes that take as long to write, where they have to be compressed, as a short element of a collection.
const BYTES_PER_ELEMENT: usize = 16;

impl Value {
    /// Returns a share of the value.
    pub fn of(view: View<'_>) -> Value {
        match view.kind() {
            Kind::String => match (view.string(), view.rope()) {
                (Str::Flat(bytes), _) => Value::Flat(bytes.to_vec()),
                (Str::Rope(_), rope) => Value::Rope(rope.expect("a string is flat or a rope")),
            },
            Kind::List => Value::List(view.collection::<List>().clone()),
            Kind::Set => Value::Set(view.collection::<Set>().clone()),
            Kind::ZSet => Value::ZSet(view.collection::<ZSet>().clone()),
            Kind::Hash => Value::Hash(view.collection::<Hash>().clone()),
            Kind::Stream => Value::Stream(view.collection::<Stream>().clone()),
            Kind::Array => Value::Array(view.collection::<Array>().clone()),
        }
    }

    /// Whether this is still the key's value, without a write since it was shared. For a flat string, which
    /// cannot be shared, only whether an equal string is there.
    pub fn is_same(&self, view: View<'_>) -> bool {
        match (self, Value::of(view)) {
            (Value::Flat(one), Value::Flat(other)) => *one == other,
            (Value::Rope(one), Value::Rope(other)) => one.is_same(&other),
            (Value::List(one), Value::List(other)) => one.is_same(&other),
            (Value::Set(one), Value::Set(other)) => one.is_same(&other),
            (Value::ZSet(one), Value::ZSet(other)) => one.is_same(&other),
            (Value::Hash(one), Value::Hash(other)) => one.is_same(&other),
            (Value::Stream(one), Value::Stream(other)) => one.is_same(&other),
            (Value::Array(one), Value::Array(other)) => one.is_same(&other),
            _ => false,
        }
    }

    /// Bytes of memory of the parts that a copy shares. Takes time in proportion to [`Value::pages_up_to`].
    pub fn shared_memory(&self) -> u64 {
        let bytes = match self {
            Value::Flat(_) => 0,
            Value::Rope(rope) => rope.shared_memory(0),
            Value::List(list) => list.shared_memory(0),
            Value::Set(set) => set.shared_memory(0),
            Value::ZSet(set) => set.shared_memory(0),
            Value::Hash(hash) => hash.shared_memory(0),
            Value::Stream(stream) => stream.shared_memory(0),
            Value::Array(array) => array.shared_memory(0),
        };
        bytes as u64
    }

    /// Approximate number of its pages, counted up to `max`.
    pub fn pages_up_to(&self, max: usize) -> usize {
        match self {
            Value::Flat(_) => 0,
            Value::Rope(rope) => rope.len().div_ceil(CHUNK).min(max),
            Value::List(list) => list.pages_up_to(max),
            Value::Set(set) => set.pages_up_to(max),
            Value::ZSet(set) => set.pages_up_to(max),
            Value::Hash(hash) => hash.pages_up_to(max),
            Value::Stream(stream) => stream.pages_up_to(max),
            Value::Array(array) => array.pages_up_to(max),
        }
    }

    /// The work of writing it, in elements. A few elements may be long, and a stream's groups may have more
    /// elements than the stream.
    pub fn elements(&self) -> usize {
        /// A value of more bytes is offloaded in any case.
        const BYTES_MAX: usize = OFFLOAD_MIN * BYTES_PER_ELEMENT;
        let (elements, bytes) = match self {
            Value::Flat(bytes) => (1, bytes.len()),
            Value::Rope(rope) => (1, rope.len()),
            Value::List(list) => (list.len(), list.memory_up_to(BYTES_MAX)),
            Value::Set(set) => (set.len(), set.memory_up_to(BYTES_MAX)),
            Value::ZSet(set) => (set.len(), set.memory_up_to(BYTES_MAX)),
            Value::Hash(hash) => (hash.size(), hash.memory_up_to(BYTES_MAX)),
            Value::Stream(stream) => (stream.len(), stream.memory_up_to(BYTES_MAX)),
            Value::Array(array) => (array.count(), array.memory_up_to(BYTES_MAX)),
        };
        (elements as usize).max(bytes / BYTES_PER_ELEMENT)
    }
}

/// A value with the form that OBJECT ENCODING reports.
pub struct Formed {
    pub value: Value,
    pub form: u8,
    /// The value is a stream whose entries contradicted its counters.
    pub is_corrected: bool,
}

impl Formed {
    fn new(value: Value, form: u8) -> Formed {
        Formed { value, form, is_corrected: false }
    }

    /// Whether it is a hash all of whose fields had expired.
    pub fn is_nothing(&self) -> bool {
        matches!(&self.value, Value::Hash(hash) if hash.is_empty())
    }

    /// Sets the key to this value.
    pub fn store(self, guard: &mut SlotGuard<'_>, key: &Key<'_>, deadline: Option<Millis>) {
        let expire = deadline.map_or(Expire::Clear, Expire::At);
        match self.value {
            Value::Flat(bytes) => guard.set_string(key, &bytes, expire),
            Value::Rope(rope) => guard.remake(key, Made::Rope(rope), expire, 1),
            Value::List(list) => put(guard, key, list, self.form, deadline),
            Value::Set(set) => put(guard, key, set, self.form, deadline),
            Value::ZSet(set) => put(guard, key, set, self.form, deadline),
            Value::Hash(hash) => put(guard, key, hash, self.form, deadline),
            Value::Stream(stream) => put(guard, key, stream, self.form, deadline),
            Value::Array(array) => put(guard, key, array, self.form, deadline),
        }
    }
}

fn put<T: Collection>(
    guard: &mut SlotGuard<'_>,
    key: &Key<'_>,
    value: T,
    form: u8,
    deadline: Option<Millis>,
) {
    guard.set_collection(key, value, form, deadline);
}

/// Returns the name of a stored form, by the number of its type.
pub fn name_of_form(kind: u8) -> &'static str {
    match kind {
        0 => "String",
        1 => "List",
        2 => "Set",
        3 | 5 => "Zset",
        4 | 22..=25 => "Hash",
        9 => "Zipmap",
        10 => "List ziplist",
        11 => "Intset",
        12 => "Zset ziplist",
        13 => "Hash ziplist",
        14 => "Quicklist ziplist",
        15 | 19 | 21 => "Stream listpack",
        16 => "Hash listpack",
        17 => "Zset listpack",
        18 => "Quicklist listpack",
        20 => "Set listpack",
        _ => "Payload",
    }
}
