//! A worker's inbox: how other threads hand it things, without waking it when it is awake.
//!
//! The bad interleaving: the worker finds its inbox empty and goes to sleep while a sender puts a message in and
//! finds it still awake. So the worker first says that it is about to sleep and then looks once more; the sender
//! first puts the message in and then asks. With full fences between, at least one of the two sees the other.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*, fence};

use parking_lot::Mutex;

use super::connection::Connection;
use super::poll::check;

/// What a worker can be told.
pub enum Message {
    /// Serve this connection from now on.
    Adopt(Box<Connection>),
    /// Close the connections whose clients have been killed.
    CloseKilled,
    /// Go round once.
    Wake,
    /// The server listens elsewhere.
    Listen,
    /// Give unused memory back.
    Purge,
}

pub struct Inbox {
    messages: Mutex<Vec<Message>>,
    /// The worker is about to wait, or waits.
    sleeping: AtomicBool,
    wakeup: OwnedFd,
    /// Connections that the worker serves, those on their way to it included.
    pub connections: AtomicUsize,
    /// The share of its time that the worker was busy lately, in thousandths.
    pub busy: AtomicU64,
}

impl Inbox {
    pub fn new() -> io::Result<Inbox> {
        // SAFETY: no pointers; the result is checked.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        Ok(Inbox {
            messages: Mutex::default(),
            sleeping: AtomicBool::new(false),
            // SAFETY: the descriptor was just made and has no other owner.
            wakeup: unsafe { OwnedFd::from_raw_fd(fd) },
            connections: AtomicUsize::new(0),
            busy: AtomicU64::new(0),
        })
    }

    /// Puts a message in, and wakes the worker if it sleeps.
    pub fn post(&self, message: Message) {
        self.messages.lock().push(message);
        fence(SeqCst);
        if self.sleeping.load(Relaxed) && self.sleeping.swap(false, AcqRel) {
            let one = 1_u64;
            // A full counter, the only way to fail, wakes the worker as well.
            // SAFETY: eight bytes are read from `one`.
            unsafe { libc::write(self.wakeup.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }

    /// Says that the worker is about to wait; `false` when there are messages, and it must not.
    pub fn may_sleep(&self) -> bool {
        self.sleeping.store(true, Relaxed);
        fence(SeqCst);
        if self.messages.lock().is_empty() {
            return true;
        }
        self.sleeping.store(false, Relaxed);
        false
    }

    /// The worker is awake.
    pub fn awake(&self) {
        self.sleeping.store(false, Relaxed);
    }

    /// Takes all messages.
    pub fn take(&self) -> Vec<Message> {
        std::mem::take(&mut self.messages.lock())
    }

    pub fn fd(&self) -> RawFd {
        self.wakeup.as_raw_fd()
    }

    /// Makes the wake-up unreadable again.
    pub fn drain_wakeup(&self) {
        let mut count = 0_u64;
        // SAFETY: eight bytes are written to `count`.
        unsafe { libc::read(self.wakeup.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}
