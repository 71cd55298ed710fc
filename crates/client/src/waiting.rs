//! A session whose last command has no reply yet: the command waits for a key, for the safety of writes, or
//! is offloaded. The connection is not read meanwhile.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use evenkeel_store::{Kind, Place, SlotGuard, Waiter, Wants};

use crate::clients::ClientInfo;
use crate::session::{Caching, Session};
use evenkeel_command::Id;
use evenkeel_command::args::OwnedArgs;
use evenkeel_command::error::Error;
use evenkeel_command::flow::Timeout;
use evenkeel_command::reply::Reply;
use evenkeel_net::poll::has_hung_up;
use evenkeel_runtime::claim::Claim;

/// A waiting command, as its session sees it.
pub struct Waiting {
    /// Unique within this server.
    pub number: u64,
    pub timeout: Timeout,
    /// When its worker ends the wait.
    pub deadline: Option<Instant>,
    /// CLIENT REPLY: the reply is dropped.
    pub mute: bool,
    pub on: On,
    /// Push messages that have to follow the reply.
    pub late: Vec<Arc<[u8]>>,
    /// Bytes of `late`.
    pub late_len: usize,
}

/// The source of the reply.
pub enum On {
    /// Any of these keys, in whose queues it stands.
    Keys(Arc<Blocked>, Vec<Box<[u8]>>),
    /// A thread that does the work; the flag is set when the client has gone.
    Long(Arc<AtomicBool>),
}

/// The reply to a command that waited, on its way to the connection's worker.
pub struct Resumed {
    pub client: Arc<ClientInfo>,
    pub number: u64,
    pub reply: Reply,
    /// The command may have written, so the reply may have to wait for the disk.
    pub may_write: bool,
    /// The connection is closed after the reply.
    pub closes: bool,
}

impl Waiting {
    /// `number` is unique within this server.
    pub fn new(number: u64, timeout: Timeout, on: On) -> Waiting {
        Waiting { number, timeout, deadline: None, mute: false, on, late: Vec::new(), late_len: 0 }
    }

    /// Ends the wait since the client has closed its sending side; false if the reply is on its way.
    /// Offloaded work is finished: the client may still be reading.
    pub fn cancel(&self) -> bool {
        match &self.on {
            On::Keys(blocked, _) => blocked.claim.end(),
            On::Long(_) => false,
        }
    }

    /// Whether the reply may exist already, or be on its way.
    pub fn may_be_answered(&self) -> bool {
        match &self.on {
            On::Keys(blocked, _) => blocked.claim.is_over(),
            On::Long(_) => true,
        }
    }

    /// Ends the wait because the connection ends.
    pub fn abandon(&self) {
        match &self.on {
            On::Keys(blocked, _) => drop(blocked.claim.end()),
            On::Long(nobody_waits) => nobody_waits.store(true, Relaxed),
        }
    }

    /// Leaves all queues after the end of the wait. `guard` holds no slots.
    pub fn leave(&self, guard: &mut SlotGuard<'_>) {
        let On::Keys(blocked, keys) = &self.on else { return };
        blocked.client.set_waiting(false, 0, false);
        for key in keys {
            let key = guard.keyspace().key(blocked.db, key);
            guard.visit(key.place, |guard| guard.unwait(&key, self.number));
        }
    }
}

/// The condition of a wait for no key: that the client's writes are safe.
pub trait Condition: Send + Sync {
    /// Whether there is nothing more to wait for.
    fn is_reached(&self) -> bool;

    /// Writes the reply at the end of the wait, whether or not the condition is met.
    fn reply(&self, reply: &mut Reply) -> Result<(), Error>;
}

/// A waiting command, as the threads see it that may serve it or end it.
pub struct Blocked {
    pub claim: Claim,
    pub ticket: u64,
    pub client: Arc<ClientInfo>,
    pub id: Id,
    pub args: OwnedArgs,
    pub db: u32,
    /// Indices of the command's keys that it waits for.
    pub keys: Range<usize>,
    pub wants: Wants,
    pub beyond: Vec<Place>,
    pub resp3: bool,
    pub no_touch: bool,
    /// Whether keys that it reads are tracked for its client.
    pub tracks: bool,
    pub caching: Caching,
    /// The version of the users at which the command was permitted.
    pub permitted_at: u64,
    /// Milliseconds from its last run until its worker runs it again, unless a write serves it before;
    /// [`NEVER`]: never.
    pub retry_ms: AtomicU64,
    /// Set if the command waits for safety and not for a key.
    pub safety: Option<Box<dyn Condition>>,
}

impl Waiter for Blocked {
    fn wants(&self) -> Wants {
        self.wants
    }

    fn beyond(&self) -> &[Place] {
        &self.beyond
    }
}

/// In place of the time until a command is run again.
pub const NEVER: u64 = u64::MAX;

/// How a wait ends without being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The time is up, CLIENT UNBLOCK ended it, or the condition of a wait without a key is met.
    Timeout,
    /// CLIENT UNBLOCK ERROR.
    Error,
    /// The server has become a replica: no client can push for its waiters, and they may not pop.
    NewRole,
}

/// The error of a wait that a change of roles has ended.
pub fn new_role() -> Error {
    Error::text(
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    )
}

impl Blocked {
    /// A command that waits for no key.
    pub fn of(
        session: &Session,
        ticket: u64,
        (id, args, resp3): (Id, OwnedArgs, bool),
        safety: Option<Box<dyn Condition>>,
    ) -> Blocked {
        Blocked {
            claim: Claim::new(),
            ticket,
            client: session.client.clone(),
            id,
            args,
            db: session.db,
            keys: 0..0,
            wants: Wants::kind(Kind::String),
            beyond: Vec::new(),
            resp3,
            no_touch: session.no_touch,
            tracks: session.tracks,
            caching: session.caching,
            permitted_at: session.access.checked_at(),
            retry_ms: AtomicU64::new(NEVER),
            safety,
        }
    }

    /// Ends the wait; returns `None` if it has ended already.
    pub fn end(&self, end: End) -> Option<Resumed> {
        if !self.claim.end() {
            return None;
        }
        let mut reply = self.empty_reply();
        match (end, &self.safety) {
            (End::Timeout, None) => reply.null_array(),
            (End::Timeout, Some(safety)) => {
                if let Err(error) = safety.reply(&mut reply) {
                    reply.fail(&error);
                }
            }
            (End::NewRole, _) => reply.fail(&new_role()),
            (End::Error, _) => reply.fail(&Error::text("UNBLOCKED client unblocked via CLIENT UNBLOCK")),
        }
        // A client that keeps its connections to a primary reconnects to the new primary once this connection
        // closes.
        Some(Resumed { closes: end == End::NewRole, ..self.resumed(reply, false) })
    }

    /// Ends the wait with an error; returns `None` if it has ended already.
    pub fn fail(&self, error: &Error) -> Option<Resumed> {
        if !self.claim.end() {
            return None;
        }
        let mut reply = self.empty_reply();
        reply.fail(error);
        Some(self.resumed(reply, false))
    }

    /// Ends the wait with this reply.
    pub fn resumed(&self, reply: Reply, may_write: bool) -> Resumed {
        // Recorded now, so that the client that caused it no longer finds it counted.
        self.client.set_waiting(false, 0, false);
        Resumed { client: self.client.clone(), number: self.ticket, reply, may_write, closes: false }
    }

    pub fn empty_reply(&self) -> Reply {
        let mut reply = Reply::default();
        reply.resp3 = self.resp3;
        reply
    }

    /// Whether the client has gone, so that nothing may be taken for it. The wait is claimed, so the socket
    /// is open.
    pub fn is_gone(&self) -> bool {
        self.client.killed.load(Relaxed) || has_hung_up(self.client.fd)
    }
}
