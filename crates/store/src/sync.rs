//! Synchronization primitives of [`crate::gate`] and [`crate::journal`]. They are a separate module, so that
//! the models in `tests/it` can compile the files of both against loom's counterparts.

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic;
pub(crate) use std::thread::yield_now;
