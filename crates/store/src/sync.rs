//! What [`crate::gate`] waits with. A module of its own, so that the model in `tests/it/gate.rs` can compile the
//! gate's file against loom's counterparts.

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic;
pub(crate) use std::thread::yield_now;
