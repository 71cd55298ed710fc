//! Waiting for readiness: `epoll`, directly, and `poll` for threads that wait for a single descriptor.
//!
//! A few lines of our own instead of `mio`, because of two features that it hides. Connections are
//! edge-triggered, which saves a system call per request. Listeners are level-triggered and exclusive, so
//! that no connection is forgotten and a single worker wakes up for it, not all.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

/// An event, and the token of its descriptor.
#[derive(Clone, Copy)]
pub struct Event {
    pub token: u64,
    flags: EventFlags,
}

impl Event {
    #[inline]
    pub fn is_readable(self) -> bool {
        self.flags.contains(EventFlags::IN)
    }

    #[inline]
    pub fn is_writable(self) -> bool {
        self.flags.contains(EventFlags::OUT)
    }

    /// Whether the client has closed its side, or the connection broke.
    #[inline]
    pub fn is_hangup(self) -> bool {
        self.flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
    }
}

/// Waits for any of these events (`POLLIN` and so on), or a failure, on a descriptor, for `timeout` at most.
/// Returns the present events; zero if the time is over or a signal came.
///
/// By libc: rustix has only ppoll(2), a system call that filters made for the server need not know.
pub fn await_events(fd: RawFd, events: i16, timeout: Duration) -> io::Result<i16> {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    let ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one valid `pollfd`.
    if unsafe { libc::poll(&raw mut poll, 1, ms) } >= 0 {
        return Ok(poll.revents);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        error => Err(error),
    }
}

/// Whether the client has closed its sending side of a socket. Data that arrived earlier is ignored. A
/// negative descriptor, as tests have, is a connected client.
pub fn has_hung_up(fd: RawFd) -> bool {
    let seen = await_events(fd, libc::POLLRDHUP, Duration::ZERO).unwrap_or(0);
    seen & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0
}

pub struct Poll {
    epoll: OwnedFd,
    events: Vec<Event>,
}

/// Most events taken at once: a turn serves at most this many connections before it looks at its inbox and
/// timers.
const EVENTS_MAX: usize = 256;

impl Poll {
    pub fn new() -> io::Result<Poll> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Poll { epoll, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Reports each time that `fd` becomes readable or writable, once.
    pub fn add_connection(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.add(fd, token, EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET)
    }

    /// Reports `fd` as long as it is readable, to a single waiting thread.
    pub fn add_listener(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.add(fd, token, EventFlags::IN | EventFlags::EXCLUSIVE)
    }

    /// Reports `fd` as long as it is readable.
    pub fn add_wakeup(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.add(fd, token, EventFlags::IN)
    }

    fn add(&self, fd: BorrowedFd<'_>, token: u64, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token), flags)?)
    }

    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Waits for `timeout_ms` at most (-1: without end) and returns the number of events; see
    /// [`Poll::event`].
    pub fn wait(&mut self, timeout_ms: i32) -> io::Result<usize> {
        let timeout = u64::try_from(timeout_ms)
            .ok()
            .map(|ms| Timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000 * 1_000_000) as i64 });
        let mut events = [MaybeUninit::uninit(); EVENTS_MAX];
        let (events, _) = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Err(Errno::INTR) => return Ok(0),
            done => done?,
        };
        // Copied, since rustix' events cannot be sent to another thread, and a worker is.
        self.events.clear();
        self.events.extend(events.iter().map(|event| Event { token: event.data.u64(), flags: event.flags }));
        Ok(self.events.len())
    }

    /// Returns the event at `index`, which must be below the result of the last wait.
    #[inline]
    pub fn event(&self, index: usize) -> Event {
        self.events[index]
    }
}

/// An event counter of the kernel, to wake a thread that waits in its [`Poll`].
pub struct Wakeup(OwnedFd);

impl Wakeup {
    pub fn new() -> io::Result<Wakeup> {
        Ok(Wakeup(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    #[inline]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    #[inline]
    pub fn wake(&self) {
        // A full counter, the only way to fail, wakes as well.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes it unreadable again.
    #[inline]
    pub fn drain(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}
