//! A session whose last command has no reply yet: the command waits for a key ([`crate::blocking`]) or is
//! offloaded ([`crate::offload`]). The connection is not read meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use evenkeel_store::SlotGuard;

use crate::blocking::Blocked;
use crate::clients::ClientInfo;
use evenkeel_command::flow::Timeout;
use evenkeel_command::reply::Reply;

/// A waiting command, as its session sees it.
pub(crate) struct Waiting {
    /// Unique within this server.
    pub(crate) number: u64,
    pub(crate) timeout: Timeout,
    /// When its worker ends the wait.
    pub(crate) deadline: Option<Instant>,
    /// CLIENT REPLY: the reply is dropped.
    pub(crate) mute: bool,
    pub(crate) on: On,
    /// Push messages that have to follow the reply.
    pub(crate) late: Vec<Arc<[u8]>>,
    /// Bytes of `late`.
    pub(crate) late_len: usize,
}

/// The source of the reply.
pub(crate) enum On {
    /// Any of these keys, in whose queues it stands.
    Keys(Arc<Blocked>, Vec<Box<[u8]>>),
    /// A thread that does the work; the flag is set when the client has gone.
    Long(Arc<AtomicBool>),
}

/// The reply to a command that waited, on its way to the connection's worker.
pub(crate) struct Resumed {
    pub(crate) client: Arc<ClientInfo>,
    pub(crate) number: u64,
    pub(crate) reply: Reply,
    /// The command may have written, so the reply may have to wait for the disk.
    pub(crate) may_write: bool,
    /// The connection is closed after the reply.
    pub(crate) closes: bool,
}

impl Waiting {
    /// `number` is unique within this server.
    pub(crate) fn new(number: u64, timeout: Timeout, on: On) -> Waiting {
        Waiting { number, timeout, deadline: None, mute: false, on, late: Vec::new(), late_len: 0 }
    }

    /// Ends the wait since the client has closed its sending side; false if the reply is on its way.
    /// Offloaded work is finished: the client may still be reading.
    pub(crate) fn cancel(&self) -> bool {
        match &self.on {
            On::Keys(blocked, _) => blocked.claim.end(),
            On::Long(_) => false,
        }
    }

    /// Whether the reply may exist already, or be on its way.
    pub(crate) fn may_be_answered(&self) -> bool {
        match &self.on {
            On::Keys(blocked, _) => blocked.claim.is_over(),
            On::Long(_) => true,
        }
    }

    /// Ends the wait because the connection ends.
    pub(crate) fn abandon(&self) {
        match &self.on {
            On::Keys(blocked, _) => drop(blocked.claim.end()),
            On::Long(nobody_waits) => nobody_waits.store(true, Relaxed),
        }
    }

    /// Leaves all queues after the end of the wait. `guard` holds no slots.
    pub(crate) fn leave(&self, guard: &mut SlotGuard<'_>) {
        let On::Keys(blocked, keys) = &self.on else { return };
        blocked.client.set_waiting(false, 0, false);
        for key in keys {
            let key = guard.keyspace().key(blocked.db, key);
            guard.visit(key.place, |guard| guard.unwait(&key, self.number));
        }
    }
}
