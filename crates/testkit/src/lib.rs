//! Tools for tests on a server: start a server, talk to it, state its expected answers in a transcript, and
//! compare it with another server under random commands.
//!
//! Nothing here depends on the server's own crates: a test sees the same as a client. So the same test runs
//! against `evenkeel`, against redis-server and against Valkey, and a test that fails on a reference server
//! is itself suspect.

pub mod client;
pub mod differential;
pub mod digest;
pub mod etcd;
pub mod history;
pub mod payload;
pub mod program;
pub mod random;
pub mod registers;
pub mod relay;
pub mod scratch;
pub mod seccomp;
pub mod server;
pub mod transcript;
pub mod words;

pub use client::Client;
pub use program::{Program, Reference};
pub use random::Random;
pub use server::Server;
pub use transcript::{Target, check, check_on};
