//! What the server's mailbox is made of, for the experiment that measures it (`experiments::ring`).

pub(crate) use parking_lot::Mutex;
pub(crate) use std::sync::atomic;
