//! Options of the sockets of replicas.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;

use crate::testing::live::Live;

/// Whether TCP_NODELAY is set for the connection to this address.
fn has_no_delay(to: SocketAddr) -> Option<bool> {
    let sockets = std::fs::read_dir("/proc/self/fd").expect("a list").flatten();
    let fds = sockets.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    fds.filter_map(|fd: i32| {
        // SAFETY: the copy is of a descriptor that is open at that moment, or fails.
        let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok()?;
        let stream = TcpStream::from(copy);
        (stream.peer_addr().ok()? == to).then(|| stream.nodelay().expect("an option"))
    })
    .next()
}

#[test]
fn small_packets_are_merged_if_configured() {
    for (setting, no_delay) in [("no", true), ("yes", false)] {
        let port = evenkeel_testkit::server::free_port();
        let args = ["--port", &port.to_string(), "--repl-disable-tcp-nodelay", setting];
        let live = Live::start(1, &args);
        let mut replica = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let own = replica.local_addr().expect("it is connected");
        replica.write_all(b"PING\r\n").expect("it reads");
        live.wait_until("it is there", || has_no_delay(own) == Some(true));
        replica.write_all(b"PSYNC ? -1\r\n").expect("it reads");
        let replicas = || live.server.replication.replicas.list().len();
        live.wait_until("it follows", || replicas() == 1);
        assert_eq!(has_no_delay(own), Some(no_delay));
        drop(replica);
        live.stop();
    }
}
