//! The server as its clients see it, over sockets. A module per concern; the tests of a single family of
//! commands are beside that family.
//!
//! `EVENKEEL_BIN` runs the same tests against another binary. Unless they say otherwise, all of them hold for
//! redis-server too: a test that the reference server fails is more likely wrong than the server.

mod acl;
mod apart;
mod arrays;
mod check_config;
mod cluster;
mod compaction;
mod differential;
mod disk;
mod dump;
mod durability;
mod following;
mod freeing;
mod hostile;
mod http;
mod log;
mod long_elements;
mod moving;
mod network;
mod notices;
mod operator;
mod random;
mod replication;
mod revoked;
mod sandbox;
mod service;
mod stress;
mod tls;
mod top;
mod turns;
mod upgrade;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenkeel_testkit::{Program, Server};

/// Ends the other threads of a test, also when it fails: it would wait for them for ever.
pub(crate) struct Ends<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn program() -> Program {
    Program::under_test(env!("CARGO_BIN_EXE_evenkeel"))
}

#[track_caller]
fn start(args: &[&str]) -> Server {
    Server::start(&program(), args)
}

/// Waits until a condition holds.
#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    const TIMEOUT: Duration = Duration::from_secs(60);
    let until = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < until, "not within {TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
