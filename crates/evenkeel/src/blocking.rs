//! Commands that wait: BLPOP and the like.
//!
//! A handler that finds nothing returns [`Call::block`]. The command then stands in the wait queues of its
//! keys, entered under the locks that it holds anyway, and its connection is not read any further. A thread
//! that writes to such a key runs the same handler on the waiter's behalf before it releases its own
//! command's locks ([`serve`]). So a pushed value is never seen by a client that came later. In such a run
//! the handler looks at the written key ([`Call::tries`]). It then replies, fails, or blocks again, which
//! keeps the waiter in its place.
//!
//! [`claim`] decides which thread ends a wait; `net/worker/suspended.rs` is the part of the connection's
//! worker; docs/blocking.md describes the whole.

pub(crate) mod serve;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evenkeel_store::{Key, Kind, Place, SlotGuard, Waiter, Wants};

use crate::admin::wait::Safety;
use crate::clients::ClientInfo;
use crate::server::Server;
use crate::session::{Caching, Session};
use crate::waiting::{On, Resumed, Waiting};
use evenkeel_command::args::OwnedArgs;
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Timeout, Wait};
use evenkeel_command::reply::Reply;
use evenkeel_command::{Args, Id};
use evenkeel_net::poll::has_hung_up;
use evenkeel_runtime::claim::Claim;

/// Enters the command of a session into the queues of the keys that it waits for. `guard` holds these keys.
#[cold]
pub(crate) fn begin_wait(
    server: &Server,
    session: &mut Session,
    (id, args, keys): (Id, Args<'_>, &[Key<'_>]),
    (wait, resp3): (Wait, bool),
    guard: &mut SlotGuard<'_>,
) {
    let places = |range: Range<usize>| keys[range].iter().map(|key| key.place);
    let (args, client) = (wait.args.unwrap_or_else(|| args.to_owned()), &session.client);
    let mut beyond: Vec<Place> = places(wait.beyond).collect();
    beyond.sort_unstable();
    beyond.dedup();
    let ticket = server.keyspace.ticket();
    let blocked = Blocked {
        wants: wait.wants,
        beyond,
        keys: wait.keys.clone(),
        ..Blocked::of(session, ticket, (id, args, resp3), None)
    };
    let memory = blocked.args.memory() + size_of::<Blocked>();
    let blocked = Arc::new(blocked);
    // A waiter enters a queue once, however often the command names the key: there may be a million keys.
    let mut names: Vec<Box<[u8]>> = Vec::with_capacity(wait.keys.len());
    let (is_one, mut seen) = (wait.keys.len() == 1, HashSet::new());
    for key in &keys[wait.keys] {
        if is_one || seen.insert(key.bytes) {
            guard.wait(key, ticket, blocked.clone());
            names.push(key.bytes.into());
        }
    }
    client.set_waiting(true, memory, wait.timeout.0.is_some());
    enter(session, wait.timeout, blocked, names);
}

/// Lets the command of a session wait until its writes are safe, and for no key.
pub(crate) fn begin_wait_for_safety(
    server: &Server,
    session: &mut Session,
    (id, args, resp3): (Id, OwnedArgs, bool),
    safety: Safety,
    timeout: Timeout,
) {
    let memory = args.memory() + size_of::<Blocked>();
    let blocked = Blocked::of(session, server.keyspace.ticket(), (id, args, resp3), Some(safety));
    session.client.set_waiting(true, memory, timeout.0.is_some());
    enter(session, timeout, Arc::new(blocked), Vec::new());
}

fn enter(session: &mut Session, timeout: Timeout, blocked: Arc<Blocked>, keys: Vec<Box<[u8]>>) {
    *session.client.wait.lock() = Arc::downgrade(&blocked);
    let waiting = Waiting::new(blocked.ticket, timeout, On::Keys(blocked, keys));
    session.waiting = Some(Box::new(waiting));
}

/// A waiting command, as the threads see it that may serve it or end it.
pub(crate) struct Blocked {
    pub(crate) claim: Claim,
    ticket: u64,
    pub(crate) client: Arc<ClientInfo>,
    pub(crate) id: Id,
    args: OwnedArgs,
    pub(crate) db: u32,
    /// Indices of the command's keys that it waits for.
    keys: Range<usize>,
    wants: Wants,
    beyond: Vec<Place>,
    resp3: bool,
    no_touch: bool,
    /// Whether keys that it reads are tracked for its client.
    tracks: bool,
    caching: Caching,
    /// The version of the users at which the command was permitted.
    permitted_at: u64,
    /// Set if the command waits for safety and not for a key.
    pub(crate) safety: Option<Safety>,
}

impl Waiter for Blocked {
    fn wants(&self) -> Wants {
        self.wants
    }

    fn beyond(&self) -> &[Place] {
        &self.beyond
    }
}

/// How a wait ends without being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The time is up, CLIENT UNBLOCK ended it, or the condition of a wait without a key is met.
    Timeout,
    /// CLIENT UNBLOCK ERROR.
    Error,
    /// The server has become a replica: no client can push for its waiters, and they may not pop.
    NewRole,
}

impl Blocked {
    /// A command that waits for no key.
    fn of(
        session: &Session,
        ticket: u64,
        (id, args, resp3): (Id, OwnedArgs, bool),
        safety: Option<Safety>,
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
            safety,
        }
    }

    /// Ends the wait; returns `None` if it has ended already.
    pub(crate) fn end(&self, end: End) -> Option<Resumed> {
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
            (End::NewRole, _) => reply.fail(&Error::text(
                "UNBLOCKED force unblock from blocking operation, instance state changed (master -> \
                 replica?)",
            )),
            (End::Error, _) => reply.fail(&Error::text("UNBLOCKED client unblocked via CLIENT UNBLOCK")),
        }
        // A client that keeps its connections to a primary reconnects to the new primary once this connection
        // closes.
        Some(Resumed { closes: end == End::NewRole, ..self.resumed(reply, false) })
    }

    /// Ends the wait with this reply.
    fn resumed(&self, reply: Reply, may_write: bool) -> Resumed {
        // Recorded now, so that the client that caused it no longer finds it counted.
        self.client.set_waiting(false, 0, false);
        Resumed { client: self.client.clone(), number: self.ticket, reply, may_write, closes: false }
    }

    fn empty_reply(&self) -> Reply {
        let mut reply = Reply::default();
        reply.resp3 = self.resp3;
        reply
    }

    /// Whether the client has gone, so that nothing may be taken for it. The wait is claimed, so the socket
    /// is open.
    fn is_gone(&self) -> bool {
        self.client.killed.load(Relaxed) || has_hung_up(self.client.fd)
    }
}

#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod redis_tests;
#[cfg(test)]
mod tests;
