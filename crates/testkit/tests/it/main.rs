//! The testkit on real servers: what it says of them must be true before it may judge another.

mod differential;
mod server;
