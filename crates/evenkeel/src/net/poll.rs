//! Waiting for readiness: `epoll`, directly, and `poll` for threads that wait for a single descriptor.
//!
//! A few lines of our own instead of `mio`, because of two features that it hides. Connections are
//! edge-triggered, which saves a system call per request. Listeners are level-triggered and exclusive, so
//! that no connection is forgotten and a single worker wakes up for it, not all.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// An event, and the token of its descriptor.
#[derive(Clone, Copy)]
pub(crate) struct Event {
    pub(crate) token: u64,
    bits: u32,
}

impl Event {
    pub(crate) fn is_readable(self) -> bool {
        self.bits & libc::EPOLLIN as u32 != 0
    }

    pub(crate) fn is_writable(self) -> bool {
        self.bits & libc::EPOLLOUT as u32 != 0
    }

    /// Whether the client has closed its side, or the connection broke.
    pub(crate) fn is_hangup(self) -> bool {
        self.bits & (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0
    }
}

/// Waits for any of these events (`POLLIN` and so on), or a failure, on a descriptor, for `patience` at most.
/// Returns the present events; zero if the time is over or a signal came.
pub(crate) fn await_events(fd: RawFd, events: i16, patience: Duration) -> io::Result<i16> {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    let ms = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one valid `pollfd`.
    match check(unsafe { libc::poll(&raw mut poll, 1, ms) }) {
        Ok(_) => Ok(poll.revents),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
    }
}

pub(crate) struct Poll {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
}

/// Most events taken at once: a turn serves at most this many connections before it looks at its inbox and
/// timers.
const EVENTS_MAX: usize = 256;

impl Poll {
    pub(crate) fn new() -> io::Result<Poll> {
        // SAFETY: no pointers; the result is checked.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the descriptor was just made and has no other owner.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Poll { epoll, events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX] })
    }

    /// Reports each time that `fd` becomes readable or writable, once.
    pub(crate) fn add_connection(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.add(fd, token, libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET)
    }

    /// Reports `fd` as long as it is readable, to a single waiting thread.
    pub(crate) fn add_listener(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.add(fd, token, libc::EPOLLIN | libc::EPOLLEXCLUSIVE)
    }

    /// Reports `fd` as long as it is readable.
    pub(crate) fn add_wakeup(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.add(fd, token, libc::EPOLLIN)
    }

    fn add(&self, fd: RawFd, token: u64, events: i32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: the event outlives the call, which copies it.
        check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) })
            .map(drop)
    }

    pub(crate) fn remove(&self, fd: RawFd) -> io::Result<()> {
        // SAFETY: removing takes no event.
        let done =
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
        check(done).map(drop)
    }

    /// Waits for `timeout_ms` at most (-1: without end) and returns the number of events; see
    /// [`Poll::event`].
    pub(crate) fn wait(&mut self, timeout_ms: i32) -> io::Result<usize> {
        // SAFETY: the pointer and length are those of the vector.
        let got = unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                self.events.len() as i32,
                timeout_ms,
            )
        };
        match check(got) {
            Ok(count) => Ok(count as usize),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Returns the event at `index`, which must be below the result of the last wait.
    pub(crate) fn event(&self, index: usize) -> Event {
        let event = self.events[index];
        Event { token: event.u64, bits: event.events }
    }
}

/// An event counter of the kernel, to wake a thread that waits in its [`Poll`].
pub(crate) struct Wakeup(OwnedFd);

impl Wakeup {
    pub(crate) fn new() -> io::Result<Wakeup> {
        // SAFETY: no pointers; the result is checked.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: the descriptor was just made and has no other owner.
        Ok(Wakeup(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn wake(&self) {
        let one = 1_u64;
        // A full counter, the only way to fail, wakes as well.
        // SAFETY: eight bytes are read from `one`.
        unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
    }

    /// Makes it unreadable again.
    pub(crate) fn drain(&self) {
        let mut count = 0_u64;
        // SAFETY: eight bytes are written to `count`.
        unsafe { libc::read(self.fd(), (&raw mut count).cast(), 8) };
    }
}

/// Converts the result of a system call, where -1 means an error.
pub(crate) fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
