//! The `evenkeel_runtime::sync` of the files compiled here for tests: loom's primitives, in `parking_lot`'s
//! shape.

pub(crate) use loom::sync::{MutexGuard, atomic};

pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no thread panics while it holds a lock")
    }
}
