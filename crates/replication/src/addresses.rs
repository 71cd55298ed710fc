//! The addresses of a name, for a thread that must not wait for a silent name server.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::mpsc::{RecvTimeoutError, channel};

use super::link::LINK_POLL_INTERVAL;

use evenkeel_runtime::threads;

/// Running look-ups, including abandoned look-ups: a resolver cannot be cancelled.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// Most running look-ups. Beyond that, a look-up fails.
const UNDER_WAY_MAX: usize = 8;

/// The addresses of a host, looked up on another thread if it is a name. `None`: they are no longer wanted.
pub(super) fn of(host: &str, port: u16, is_wanted: impl Fn() -> bool) -> Option<io::Result<Vec<SocketAddr>>> {
    match host.parse::<IpAddr>() {
        Ok(address) => Some(Ok(vec![SocketAddr::new(address, port)])),
        Err(_) => {
            let host = host.to_owned();
            aside(move || (host.as_str(), port).to_socket_addrs().map(Iterator::collect), is_wanted)
        }
    }
}

fn aside(
    look_up: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
    is_wanted: impl Fn() -> bool,
) -> Option<io::Result<Vec<SocketAddr>>> {
    if UNDER_WAY.fetch_add(1, Relaxed) >= UNDER_WAY_MAX {
        UNDER_WAY.fetch_sub(1, Relaxed);
        return Some(Err(io::Error::other("names that were asked for before are still being looked up")));
    }
    let (sender, receiver) = channel();
    let spawned = threads::named("resolver").spawn(move || {
        let found = look_up();
        UNDER_WAY.fetch_sub(1, Relaxed);
        _ = sender.send(found); // the receiver may be gone
    });
    if let Err(error) = spawned {
        UNDER_WAY.fetch_sub(1, Relaxed);
        return Some(Err(error));
    }
    loop {
        match receiver.recv_timeout(LINK_POLL_INTERVAL) {
            Ok(found) => return Some(found),
            Err(RecvTimeoutError::Timeout) if is_wanted() => {}
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => return Some(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn addresses_and_names_are_resolved() {
        let found = |host: &str| of(host, 7, || true).expect("they are wanted").expect("there are some");
        assert_eq!(found("127.0.0.2"), ["127.0.0.2:7".parse().expect("an address")]);
        assert_eq!(found("::1"), ["[::1]:7".parse().expect("an address")]);
        assert!(found("localhost").iter().all(|one| one.ip().is_loopback()));
    }

    #[test]
    fn silent_name_servers_are_abandoned() {
        let (release, hangs) = channel::<()>();
        let wanted = AtomicBool::new(true);
        let look_up = move || {
            _ = hangs.recv();
            Ok(Vec::new())
        };
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| aside(look_up, || wanted.load(Relaxed)).is_none());
            std::thread::sleep(3 * LINK_POLL_INTERVAL);
            assert!(!waits.is_finished());
            wanted.store(false, Relaxed);
            assert!(waits.join().expect("it does not panic"));
        });
        drop(release);
    }
}
