//! What [`crate::net::mailbox`] and [`crate::blocking::claim`] are made of. A module of its own, so that the models in
//! `tests/it` can compile those files against loom's counterparts.

pub(crate) use parking_lot::Mutex;
pub(crate) use std::sync::atomic;
pub(crate) use std::thread::yield_now;
