//! Tests of lower crates that need a whole server.

mod promotion;
mod push_queue;
mod replica_sockets;
mod scripting;
mod units;
