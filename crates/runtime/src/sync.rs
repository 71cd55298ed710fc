//! What [`crate::mailbox`] and [`crate::claim`] are made of. A module of its own, so that the models in
//! `tests/it` can compile those files against loom's counterparts.

pub(crate) use parking_lot::{Mutex, MutexGuard};
pub(crate) use std::sync::atomic;
