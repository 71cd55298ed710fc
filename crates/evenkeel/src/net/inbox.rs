//! A worker's inbox: how other threads hand it things, without waking it when it is awake.
//!
//! A [`Mailbox`] decides who must be woken; an event counter of the kernel, readable in the worker's `epoll`, wakes.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};

use super::connection::Connection;
use super::poll::Wakeup;
use crate::clients::ClientInfo;
use crate::waiting::Resumed;
use evenkeel_runtime::allocator;
use evenkeel_runtime::mailbox::Mailbox;

/// What a worker can be told.
pub(crate) enum Message {
    /// Serve this connection from now on.
    Adopt(Box<Connection>),
    /// Close the connections whose clients have been killed.
    CloseKilled,
    /// Go round once.
    Wake,
    /// The server listens elsewhere.
    Listen,
    /// A connection's command waits no more.
    Resume(Resumed),
    /// These clients have got mail.
    PushQueued(Vec<Arc<ClientInfo>>),
    /// The lazy-free thread has freed much of the worker's memory: see [`Inbox::settle`].
    Settle,
    /// More of the log is on disk.
    Durable,
}

pub(crate) struct Inbox {
    mailbox: Mailbox<Message>,
    wakeup: Wakeup,
    /// Connections that the worker serves, those on their way to it included.
    pub(crate) connections: AtomicUsize,
    /// The share of its time that the worker was busy lately, in thousandths.
    pub(crate) busy: AtomicU64,
    /// Bytes that the worker has lent to the log, or keeps to lend them again.
    pub(crate) lent: AtomicUsize,
    /// The worker holds replies back until what they tell of is on disk.
    pub(crate) awaits_log: AtomicBool,
    /// How often the lazy-free thread has asked the worker to take back what was freed of its memory ..
    settle_asked: AtomicU64,
    /// .. and up to which of these requests the worker has.
    settled: AtomicU64,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Inbox> {
        Ok(Inbox {
            mailbox: Mailbox::new(),
            wakeup: Wakeup::new()?,
            connections: AtomicUsize::new(0),
            busy: AtomicU64::new(0),
            lent: AtomicUsize::new(0),
            awaits_log: AtomicBool::new(false),
            settle_asked: AtomicU64::new(0),
            settled: AtomicU64::new(0),
        })
    }

    /// Puts a message in, and wakes the worker if it sleeps.
    pub(crate) fn post(&self, message: Message) {
        if self.mailbox.put(message) {
            self.wakeup.wake();
        }
    }

    /// Asks the worker to [`Inbox::settle`] soon. For the lazy-free thread alone.
    pub(crate) fn ask_to_settle(&self) {
        self.settle_asked.fetch_add(1, Release);
        self.post(Message::Settle);
    }

    /// Whether the worker has done what it was asked to.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled.load(Acquire) == self.settle_asked.load(Relaxed)
    }

    /// Takes back what other threads have freed of the worker's memory. For the worker alone.
    pub(crate) fn settle(&self) {
        let asked = self.settle_asked.load(Acquire);
        allocator::settle();
        self.settled.store(asked, Release);
    }

    /// Says that the worker is about to wait; `false` when there are messages, and it must not.
    pub(crate) fn may_sleep(&self) -> bool {
        self.mailbox.may_sleep()
    }

    /// The worker is awake.
    pub(crate) fn awake(&self) {
        self.mailbox.awake();
    }

    /// Takes all messages.
    pub(crate) fn take(&self) -> Vec<Message> {
        self.mailbox.take()
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.wakeup.fd()
    }

    /// Makes the wake-up unreadable again.
    pub(crate) fn drain_wakeup(&self) {
        self.wakeup.drain();
    }
}
