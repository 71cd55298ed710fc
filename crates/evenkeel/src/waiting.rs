//! A session whose last command has not been replied to yet: it waits for a key ([`crate::blocking`]), or is being worked
//! on elsewhere ([`crate::offload`]). Its connection is not read meanwhile.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenkeel_store::SlotGuard;

use crate::blocking::{Blocked, Timeout};
use crate::clients::ClientInfo;
use crate::net::poll;
use crate::reply::Reply;

/// A command that waits, as its session sees it.
pub(crate) struct Waiting {
    /// Tells it from all others of this server.
    pub(crate) number: u64,
    pub(crate) timeout: Timeout,
    /// When its worker ends it.
    pub(crate) deadline: Option<Instant>,
    /// CLIENT REPLY: the reply is dropped.
    pub(crate) mute: bool,
    pub(crate) on: On,
    /// Mail that has to come behind the reply.
    pub(crate) late: Vec<Arc<[u8]>>,
    /// Bytes of that.
    pub(crate) late_len: usize,
}

/// What a command waits for.
pub(crate) enum On {
    /// One of these keys, in whose queues it stands.
    Keys(Arc<Blocked>, Vec<Box<[u8]>>),
    /// A thread that does the work; it is told when nobody waits for the reply any more.
    Long(Arc<AtomicBool>),
}

/// The reply to a command that waited, on its way to the connection's worker.
pub(crate) struct Resumed {
    pub(crate) client: Arc<ClientInfo>,
    pub(crate) number: u64,
    pub(crate) reply: Reply,
    /// It may tell of what has been logged for the client.
    pub(crate) may_write: bool,
    /// The connection is closed behind it.
    pub(crate) closes: bool,
}

impl Waiting {
    /// `number` tells it from all others of this server.
    pub(crate) fn new(number: u64, timeout: Timeout, on: On) -> Waiting {
        Waiting { number, timeout, deadline: None, mute: false, on, late: Vec::new(), late_len: 0 }
    }

    /// Ends the wait since the client has closed its side; `false`: the reply is on its way. What is being worked on is
    /// finished: the client may still be listening.
    pub(crate) fn give_up(&self) -> bool {
        match &self.on {
            On::Keys(blocked, _) => blocked.claim.end(),
            On::Long(_) => false,
        }
    }

    /// Whether its reply may be on its way, or made already.
    pub(crate) fn may_be_answered(&self) -> bool {
        match &self.on {
            On::Keys(blocked, _) => blocked.claim.is_over(),
            On::Long(_) => true,
        }
    }

    /// The connection ends.
    pub(crate) fn abandon(&self) {
        match &self.on {
            On::Keys(blocked, _) => drop(blocked.claim.end()),
            On::Long(nobody_waits) => nobody_waits.store(true, Relaxed),
        }
    }

    /// Leaves all queues, the wait being over. `guard` holds nothing.
    pub(crate) fn leave(&self, guard: &mut SlotGuard<'_>) {
        let On::Keys(blocked, keys) = &self.on else { return };
        blocked.client.note_wait(false, 0, false);
        for key in keys {
            let key = guard.keyspace().key(blocked.db, key);
            guard.visit(key.place, |guard| guard.unwait(&key, self.number));
        }
    }
}

/// Whether the peer of a socket has closed its side of it. What has arrived before is not looked at. A descriptor below
/// zero, as tests have, is a client that is there.
pub(crate) fn has_hung_up(fd: RawFd) -> bool {
    let seen = poll::await_events(fd, libc::POLLRDHUP, Duration::ZERO).unwrap_or(0);
    seen & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0
}
