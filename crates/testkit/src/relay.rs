//! A TCP relay on loopback that stands for the network between two processes: it can deliver bytes late, stop
//! to deliver them, and close connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::*};
use std::time::Duration;

/// The relay looks so often whether its state has changed.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum State {
    Open,
    /// Bytes are kept, and delivered later: lost packets are sent again.
    Frozen,
    /// Connections end at once, and new ones too.
    Cut,
    Ended,
}

/// See the module's text. Dropping it ends its connections.
pub struct Relay {
    port: u16,
    link: Arc<Link>,
}

/// What the threads of a relay share.
struct Link {
    state: AtomicU8,
    /// Milliseconds by which each piece of at most 64 KiB is late. Pieces do not overtake each other, and do
    /// not wait at the same time: the link is slow, too.
    delay: AtomicU32,
}

impl Link {
    fn is(&self, wanted: State) -> bool {
        self.state.load(Acquire) == wanted as u8
    }
}

impl Relay {
    /// Starts a relay to a port of loopback, where a process may listen later.
    pub fn to(port: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        listener.set_nonblocking(true).expect("a listener may poll");
        let own = listener.local_addr().expect("it is bound").port();
        let link = Arc::new(Link { state: AtomicU8::new(State::Open as u8), delay: AtomicU32::new(0) });
        let shared = link.clone();
        std::thread::spawn(move || accept_all(&listener, port, &shared));
        Relay { port: own, link }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Delivers no byte until [`Relay::heal`].
    pub fn freeze(&self) {
        self.set(State::Frozen);
    }

    /// Ends all connections, and those to come until [`Relay::heal`].
    pub fn cut(&self) {
        self.set(State::Cut);
    }

    /// Delivers each piece of bytes late by this time, until [`Relay::heal`].
    pub fn delay(&self, time: Duration) {
        self.link.delay.store(time.as_millis() as u32, Release);
    }

    pub fn heal(&self) {
        self.delay(Duration::ZERO);
        self.set(State::Open);
    }

    fn set(&self, state: State) {
        self.link.state.store(state as u8, Release);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.set(State::Ended);
    }
}

fn accept_all(listener: &TcpListener, port: u16, link: &Arc<Link>) {
    while !link.is(State::Ended) {
        match listener.accept() {
            Ok((from, _)) => {
                let link = link.clone();
                std::thread::spawn(move || connect(&from, port, &link));
            }
            Err(_) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

fn connect(from: &TcpStream, port: u16, link: &Link) {
    while link.is(State::Frozen) {
        std::thread::sleep(POLL_INTERVAL);
    }
    if !link.is(State::Open) {
        return;
    }
    let Ok(to) = TcpStream::connect(("127.0.0.1", port)) else { return };
    for stream in [from, &to] {
        // On failure the connection is slower, or ends.
        let _ = stream.set_nonblocking(false);
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(POLL_INTERVAL));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| deliver(from, &to, link));
        deliver(&to, from, link);
    });
}

/// Delivers bytes in one direction until the connection ends.
fn deliver(mut from: &TcpStream, mut to: &TcpStream, link: &Link) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        if link.is(State::Cut) || link.is(State::Ended) {
            break;
        }
        let got = match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(got) => got,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(_) => break,
        };
        std::thread::sleep(Duration::from_millis(link.delay.load(Acquire).into()));
        while link.is(State::Frozen) {
            std::thread::sleep(POLL_INTERVAL);
        }
        if !link.is(State::Open) || to.write_all(&bytes[..got]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both); // it may have ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wait_while_it_is_frozen_and_connections_end_when_it_is_cut() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let relay = Relay::to(listener.local_addr().expect("bound").port());
        let mut client = TcpStream::connect(("127.0.0.1", relay.port())).expect("it listens");
        let (mut server, _) = listener.accept().expect("the relay connects");
        let mut byte = [0];
        client.write_all(b"a").expect("open");
        server.read_exact(&mut byte).expect("delivered");
        relay.freeze();
        client.write_all(b"b").expect("open");
        server.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        assert!(server.read(&mut byte).is_err());
        relay.heal();
        server.set_read_timeout(None).expect("no timeout");
        server.read_exact(&mut byte).expect("delivered late");
        assert_eq!(byte, *b"b");
        relay.delay(Duration::from_millis(100));
        let sent = std::time::Instant::now();
        client.write_all(b"c").expect("open");
        server.read_exact(&mut byte).expect("delivered late");
        assert!(sent.elapsed() >= Duration::from_millis(100));
        relay.heal();
        relay.cut();
        assert_eq!(server.read(&mut byte).unwrap_or(0), 0);
    }
}
