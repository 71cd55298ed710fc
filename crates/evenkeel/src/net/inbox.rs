//! A worker's inbox: how other threads hand it things, without waking it when it is awake.
//!
//! A [`Mailbox`] decides who must be woken; an event counter of the kernel, readable in the worker's `epoll`, wakes.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use super::connection::Connection;
use super::mailbox::Mailbox;
use super::poll::Wakeup;
use crate::clients::ClientInfo;
use crate::waiting::Resumed;

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
    Mail(Vec<Arc<ClientInfo>>),
    /// Others have freed much of the worker's memory: take it back, and note this number.
    Settle(u64),
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
    /// The last number of [`Message::Settle`].
    pub(crate) settled: AtomicU64,
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
            settled: AtomicU64::new(0),
        })
    }

    /// Puts a message in, and wakes the worker if it sleeps.
    pub(crate) fn post(&self, message: Message) {
        if self.mailbox.put(message) {
            self.wakeup.wake();
        }
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
