//! A worker's inbox: other threads post messages to it, and wake the worker only if it sleeps.
//!
//! A [`Mailbox`] decides whether the worker must be woken. An event counter of the kernel, readable in the
//! worker's `epoll`, wakes it.

use std::io;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*, fence};

use super::connection::Connection;
use crate::handover::Freeze;
use evenkeel_client::clients::ClientInfo;
use evenkeel_client::hub::ClientWorkers;
use evenkeel_client::waiting::Resumed;
use evenkeel_core::lazy_free::Owner;
use evenkeel_core::state::Workers;
use evenkeel_net::poll::Wakeup;
use evenkeel_runtime::allocator;
use evenkeel_runtime::mailbox::Mailbox;

/// Messages to a worker.
pub(crate) enum Message {
    /// Serve this connection from now on.
    Adopt(Box<Connection>),
    /// Close the connections of killed clients.
    CloseKilled,
    /// Run a loop turn.
    Wake,
    /// The addresses of the server's listeners have changed.
    Listen,
    /// A connection's command no longer waits.
    Resume(Resumed),
    /// These clients have push messages.
    PushQueued(Vec<Arc<ClientInfo>>),
    /// The lazy-free thread has freed much of the worker's memory: see [`Inbox::settle`].
    Settle,
    /// More of the journal is on disk.
    Durable,
    /// Slots with shard channels have left this node.
    ShardsLeft,
    /// Do nothing until the end of this, for a hand-over.
    Freeze(Arc<Freeze>),
}

pub(crate) struct Inbox {
    mailbox: Mailbox<Message>,
    wakeup: Wakeup,
    /// Connections that the worker serves, including connections in transit to it.
    pub(crate) connections: AtomicUsize,
    /// Recent share of the worker's time that was busy, in thousandths.
    pub(crate) busy: AtomicU64,
    /// Bytes that the worker has lent to the journal, or keeps to lend them again.
    pub(crate) lent: AtomicUsize,
    /// The worker holds replies back until their records are on disk.
    pub(crate) awaits_log: AtomicBool,
    /// Requests of the lazy-free thread to take back freed blocks.
    settle_asked: AtomicU64,
    /// The last of these requests that the worker has followed.
    settled: AtomicU64,
}

impl Owner for Inbox {
    /// Asks the worker to [`Inbox::settle`] soon. Only for the lazy-free thread.
    fn ask_to_settle(&self) {
        self.settle_asked.fetch_add(1, Release);
        self.post(Message::Settle);
    }

    /// Whether the worker has followed the last request.
    fn is_settled(&self) -> bool {
        self.settled.load(Acquire) == self.settle_asked.load(Relaxed)
    }
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

    /// Posts a message, and wakes the worker if it sleeps.
    pub(crate) fn post(&self, message: Message) {
        if self.mailbox.put(message) {
            self.wakeup.wake();
        }
    }

    /// Takes back the worker's blocks that other threads have freed. Only for the worker.
    pub(crate) fn settle(&self) {
        let asked = self.settle_asked.load(Acquire);
        allocator::settle();
        self.settled.store(asked, Release);
    }

    /// Announces that the worker is about to wait. Returns `false` if there are messages, and it must not
    /// wait.
    pub(crate) fn may_sleep(&self) -> bool {
        self.mailbox.may_sleep()
    }

    /// Marks the worker as awake.
    pub(crate) fn awake(&self) {
        self.mailbox.awake();
    }

    /// Takes all messages.
    pub(crate) fn take(&self) -> Vec<Message> {
        self.mailbox.take()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wakeup.fd()
    }

    /// Makes the event counter unreadable again.
    pub(crate) fn drain_wakeup(&self) {
        self.wakeup.drain();
    }
}

/// The inboxes of all workers, by the number of the worker.
pub(crate) struct Inboxes(Arc<[Inbox]>);

impl Inboxes {
    pub(crate) fn new(workers: usize) -> io::Result<Inboxes> {
        Ok(Inboxes((0..workers).map(|_| Inbox::new()).collect::<io::Result<_>>()?))
    }

    /// Returns the inboxes for the lazy-free thread.
    pub(crate) fn owners(&self) -> Arc<[Inbox]> {
        self.0.clone()
    }
}

impl Deref for Inboxes {
    type Target = [Inbox];

    fn deref(&self) -> &[Inbox] {
        &self.0
    }
}

impl Workers for Inboxes {
    fn count(&self) -> usize {
        self.len()
    }

    fn wake_all(&self) {
        self.iter().for_each(|inbox| inbox.post(Message::Wake));
    }

    fn notify_durable(&self) {
        // A worker that begins to wait checks once more after it has set `awaits_log`.
        fence(SeqCst);
        for inbox in self.iter().filter(|inbox| inbox.awaits_log.load(Relaxed)) {
            inbox.post(Message::Durable);
        }
    }
}

impl ClientWorkers for Inboxes {
    fn push_queued(&self, worker: usize, clients: Vec<Arc<ClientInfo>>) {
        self[worker].post(Message::PushQueued(clients));
    }

    fn resume(&self, resumed: Resumed) {
        let worker = resumed.client.worker.load(Relaxed);
        self[worker as usize].post(Message::Resume(resumed));
    }

    fn close_killed(&self) {
        self.iter().for_each(|inbox| inbox.post(Message::CloseKilled));
    }
}
