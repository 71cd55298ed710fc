//! The types that the server's mailbox uses, for the experiment that measures it (`experiments::ring`).

pub(crate) use parking_lot::Mutex;
pub(crate) use std::sync::atomic;
