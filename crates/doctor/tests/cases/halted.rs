//! Cases of servers that could work and are not allowed to.

use evenkeel_testkit::Server;

use crate::stage::{ANYWHERE, Load, diagnose, diagnose_with, redis, stage};

/// Stops a process, and lets it go on when dropped.
struct Stop(libc::pid_t);

impl Stop {
    fn of(pid: u32) -> Stop {
        let pid = pid.cast_signed();
        // SAFETY: sends a signal to a process of this test.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
        Stop(pid)
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::kill(self.0, libc::SIGCONT) };
    }
}

#[test]
fn a_stopped_server_is_the_first_finding() {
    let _stage = stage();
    let server = Server::start(&redis(ANYWHERE), &[]);
    let _stop = Stop::of(server.pid());
    for more in [&[][..], &["--proc-only"]] {
        let seen = diagnose_with("redis-server, stopped by SIGSTOP", server.pid(), more);
        seen.expect_first("R23");
        assert!(seen.titles()[0].contains("stopped by a signal"), "{seen}");
    }
}

#[test]
#[ignore = "long"]
fn a_pause_of_all_clients_is_the_first_finding() {
    let _stage = stage();
    let server = Server::start(&redis(ANYWHERE), &[]);
    let _load = Load::start_at(ANYWHERE, server.port(), &["-t", "set", "-c", "5"]);
    assert_eq!(server.connect().run("CLIENT PAUSE 12000 ALL").to_string(), "OK");
    let seen = diagnose("redis-server, CLIENT PAUSE ALL", server.pid());
    seen.expect_first("R23");
    assert!(seen.titles()[0].contains("CLIENT PAUSE"), "{seen}");
}

#[test]
#[ignore = "long"]
fn the_limit_of_clients_is_the_first_finding() {
    let _stage = stage();
    let server = Server::start(&redis(ANYWHERE), &["--maxclients", "10"]);
    let _clients: Vec<_> = (0..10).map(|_| server.connect()).collect();
    let seen = diagnose("redis-server, maxclients reached", server.pid());
    seen.expect_first("R23");
    assert!(seen.titles()[0].contains("maxclients"), "{seen}");
}
