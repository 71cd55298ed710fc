//! The testkit on real servers: its judgements of them must be true before it may judge another server.

mod differential;
mod server;
