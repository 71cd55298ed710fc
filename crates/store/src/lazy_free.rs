//! Values whose freeing takes long leave the thread that removed them at once.
//!
//! A command that removes a list of a million elements would spend 100 ms on freeing its pages. So the thread
//! context hands such a value to the keyspace's [`LazyFree`] while the command still runs. A script or a
//! transaction that fills and deletes a key repeatedly then holds a single value at a time, not all of them
//! until it ends.

use crate::value::collection::Cut;
use crate::value::heap_value::HeapValue;

/// Frees values on a thread of its own. A keyspace has one, see [`crate::Keyspace::with_lazy_free`].
pub trait LazyFree: Send + Sync {
    /// Takes a value over. Called with slots locked: must not wait for a thread that may wait for a slot.
    fn free(&self, garbage: Garbage);
}

/// Drops values where they are removed: for a keyspace that serves no clients.
pub(crate) struct InPlace;

impl LazyFree for InPlace {
    fn free(&self, garbage: Garbage) {
        drop(garbage);
    }
}

/// A removed value, or removed parts of a value, that may take long to free. Dropping it frees it.
pub struct Garbage {
    #[expect(dead_code, reason = "kept to be dropped")]
    values: Values,
    memory: usize,
}

enum Values {
    HeapValue(#[expect(dead_code, reason = "kept to be dropped")] HeapValue),
    Cut(#[expect(dead_code, reason = "kept to be dropped")] Cut),
    Many(#[expect(dead_code, reason = "kept to be dropped")] Vec<HeapValue>),
}

impl Garbage {
    /// Approximate bytes that dropping it frees; zero if another owner shares the value.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Returns `None` if freeing the value takes no longer than freeing `blocks_max` blocks: it is then freed
    /// here.
    pub(crate) fn of_value(value: HeapValue, blocks_max: usize) -> Option<Garbage> {
        (value.weight() > blocks_max).then(|| {
            let memory = value.memory_if_own();
            Garbage { values: Values::HeapValue(value), memory }
        })
    }

    /// Like [`Garbage::of_value`], for a part cut off a collection.
    pub(crate) fn of_cut(cut: Cut, blocks_max: usize) -> Option<Garbage> {
        (cut.weight() > blocks_max).then(|| {
            let memory = cut.memory();
            Garbage { values: Values::Cut(cut), memory }
        })
    }

    /// Takes many values of several blocks each; values of a single block are freed here. Returns `None` if
    /// none is left.
    pub(crate) fn of_all(values: impl Iterator<Item = HeapValue>) -> Option<Garbage> {
        let mut memory = 0;
        let large: Vec<HeapValue> = values
            .filter(|value| value.weight() > 1)
            .inspect(|value| memory += value.memory_if_own())
            .collect();
        (!large.is_empty()).then(|| Garbage { values: Values::Many(large), memory })
    }
}
