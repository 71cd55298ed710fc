//! What the gate's file finds as `crate::sync` when it is compiled here: loom's primitives, in `parking_lot`'s shape.

pub(crate) use loom::hint::spin_loop;
pub(crate) use loom::sync::atomic;
pub(crate) use loom::thread::yield_now;

pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

pub(crate) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().expect("no model panics with a lock held")))
    }
}

pub(crate) struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar(loom::sync::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let inner = guard.0.take().expect("a guard holds its lock");
        guard.0 = Some(self.0.wait(inner).expect("no model panics with a lock held"));
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
