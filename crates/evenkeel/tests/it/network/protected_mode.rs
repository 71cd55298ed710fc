//! Clients from other machines, which protected mode refuses.
//!
//! The test has a network namespace of its own: there the loopback device also has an address outside the
//! loopback's block, and no other process can reach the server. A namespace belongs to a thread, so the whole
//! test runs on a single thread, and `nsenter` starts the server there. That takes root; otherwise the test
//! says so and passes.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;

use evenkeel_testkit::{Client, Server};

use super::ping;
use crate::program;
use crate::tls::certs::Certs;
use crate::tls::{start_secure_as, tls_stream};

/// An unassigned address, from the block for documentation (RFC 5737).
const ADDRESS: [u8; 4] = [192, 0, 2, 7];

/// Runs the test on a thread with a network of its own; passes it the command that starts a program there.
fn in_own_network(test: impl FnOnce(&[&str]) + Send) {
    let outcome = std::thread::scope(|scope| {
        let thread = scope.spawn(|| match enter_new_network() {
            Err(error) => eprintln!("SKIPPED: no network namespace: {error}"),
            Ok(network) => {
                let path = format!("--net=/proc/{}/fd/{}", std::process::id(), network.as_raw_fd());
                test(&["nsenter", &path]);
            }
        });
        thread.join()
    });
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn enter_new_network() -> io::Result<File> {
    // SAFETY: takes a number, and changes only the calling thread's network.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    ip("link set lo up")?;
    ip("addr add 192.0.2.7/32 dev lo")?;
    File::open("/proc/thread-self/ns/net")
}

fn ip(command: &str) -> io::Result<()> {
    let status = Command::new("ip").args(command.split(' ')).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("ip {command}: {status}"))) }
}

fn remote_client(server: &Server) -> Client {
    Client::connect(SocketAddr::from((ADDRESS, server.port()))).expect("it listens there")
}

#[test]
fn protected_mode_refuses_remote_clients() {
    in_own_network(|prefix| {
        let program = program().started_by(prefix);
        let server =
            Server::start(&program, &["--bind", "127.0.0.1", "192.0.2.7", "--protected-mode", "yes"]);
        let answer = remote_client(&server).read_to_end().expect("the server hangs up");
        assert!(answer.starts_with(b"-DENIED "), "{}", answer.escape_ascii());
        assert_eq!(ping(&mut server.connect()), "PONG");
        assert_eq!(server.connect().run("CONFIG SET protected-mode no").to_string(), "OK");
        assert_eq!(ping(&mut remote_client(&server)), "PONG");
    });
}

/// Before the handshake no message can be sent to the client.
#[test]
fn protected_mode_refuses_through_tls() {
    in_own_network(|prefix| {
        let (certs, program) = (Certs::new(), program().started_by(prefix));
        let bind = ["--bind", "127.0.0.1", "192.0.2.7", "--protected-mode", "yes"];
        let secure = start_secure_as(&program, &certs, &bind);
        let connect = || {
            let socket = TcpStream::connect(SocketAddr::from((ADDRESS, secure.port))).expect("accepted");
            Client::through(tls_stream(socket, certs.client("client")).expect("let in"))
        };
        let text = connect().read_to_end().expect("an orderly end");
        assert!(text.starts_with(b"-DENIED "), "{}", String::from_utf8_lossy(&text));
        assert_eq!(secure.server.info("rejected_connections"), "1");
        assert_eq!(secure.server.connect().run("CONFIG SET protected-mode no").to_string(), "OK");
        assert_eq!(ping(&mut connect()), "PONG");
    });
}
