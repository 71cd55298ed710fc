//! Locks and atomics of [`crate::mailbox`] and [`crate::claim`]. A module of its own, so that the models in
//! `tests/it` can compile both files against loom's counterparts.

pub(crate) use parking_lot::{Mutex, MutexGuard};
pub(crate) use std::sync::atomic;
