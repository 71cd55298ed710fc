//! What [`crate::net::mailbox`] is made of. A module of its own, so that the model in `tests/it/mailbox.rs` can compile
//! the mailbox's file against loom's counterparts.

pub(crate) use parking_lot::Mutex;
pub(crate) use std::sync::atomic;
