//! Tests of lower crates that need a whole server.

mod push_queue;
mod units;
