//! Sockets, and the threads that serve them.

pub(crate) mod connection;
pub(crate) mod inbox;
pub(crate) mod listener;
pub(crate) mod poll;
pub(crate) mod region;
pub(crate) mod worker;
