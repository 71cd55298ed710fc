//! Connections of clients, and the threads that serve them.

pub(crate) mod connection;
pub(crate) mod inbox;
pub(crate) mod request_reader;
pub(crate) mod worker;
