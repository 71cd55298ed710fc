//! Sockets, and the threads that serve them.

pub mod connection;
pub mod inbox;
pub mod listener;
mod mailbox;
pub mod poll;
pub mod worker;
