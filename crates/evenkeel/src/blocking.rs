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

use evenkeel_store::{Kind, Place, Waiter, Wants};

use crate::clients::ClientInfo;
use crate::command::args::OwnedArgs;
use crate::command::wait::Safety;
use crate::command::{Call, Id};
use crate::error::{Done, Error};
use crate::reply::Reply;
use crate::session::Caching;
use crate::waiting::{On, Resumed, Waiting, has_hung_up};
use evenkeel_runtime::claim::Claim;

/// How a call came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A client sent it.
    Direct,
    /// EXEC runs it, so it must not wait.
    Nested,
    /// A script runs it, so it must not wait either.
    Script,
    /// It waited, and the key at this index was written to since.
    Serving(usize),
    /// It was offloaded so many times, each time with sources that had changed by the end.
    Again(u8),
}

impl Mode {
    /// Whether the call is part of a larger unit that has to end here and now.
    pub(crate) fn is_nested(self) -> bool {
        matches!(self, Mode::Nested | Mode::Script)
    }
}

/// How long a command waits, in milliseconds; `None`: for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeout(pub(crate) Option<u64>);

/// The condition that a command waits for.
pub(crate) struct Wait {
    keys: Range<usize>,
    wants: Wants,
    beyond: Range<usize>,
    timeout: Timeout,
    null_in_multi: fn(&mut Reply),
    args: Option<OwnedArgs>,
    safety: Option<Safety>,
}

impl Wait {
    /// Waits until a key at these indices of the call's keys holds a value of this kind.
    pub(crate) fn on(keys: Range<usize>, kind: Kind, timeout: Timeout) -> Wait {
        let null_in_multi = |reply: &mut Reply| reply.null_array();
        Wait {
            keys,
            wants: Wants::kind(kind),
            beyond: 0..0,
            timeout,
            null_in_multi,
            args: None,
            safety: None,
        }
    }

    /// Waits for no key, but until the client's writes are safe.
    pub(crate) fn for_safety(safety: Safety, timeout: Timeout) -> Wait {
        Wait { safety: Some(safety), ..Wait::on(0..0, Kind::String, timeout) }
    }

    /// Waits for deletions and changes of type as well; the handler replies to them.
    pub(crate) fn or_any_change(self) -> Wait {
        Wait { wants: Wants::any_change(), ..self }
    }

    /// Declares that serving touches these keys as well.
    pub(crate) fn with(self, keys: Range<usize>) -> Wait {
        Wait { beyond: keys, ..self }
    }

    /// Makes the reply inside MULTI a null, not a null array.
    pub(crate) fn null_in_multi(self) -> Wait {
        Wait { null_in_multi: |reply| reply.null(), ..self }
    }

    /// Serves the command with other arguments than it came with; the keys are the same.
    pub(crate) fn rerun(self, args: OwnedArgs) -> Wait {
        Wait { args: Some(args), ..self }
    }
}

impl Call<'_, '_> {
    /// Returns which of the keys at these indices to look at: all of them or, for a waiter, the written key.
    /// If that key stands at several indices, the handler runs for each in turn, until a run serves.
    pub(crate) fn tries(&self, keys: Range<usize>) -> Range<usize> {
        match self.mode {
            Mode::Serving(index) => index..index + 1,
            Mode::Direct | Mode::Nested | Mode::Script | Mode::Again(_) => keys,
        }
    }

    /// Whether the command waited and is run again.
    pub(crate) fn is_serving(&self) -> bool {
        matches!(self.mode, Mode::Serving(_))
    }

    /// Blocks a handler that found nothing. On behalf of a waiter ([`Call::is_serving`]) such a handler must
    /// have changed nothing, or serving would not end. In its first run it may have recorded the consumer, as
    /// XREADGROUP does, which no waiter listens for. Inside MULTI, where no command waits, the reply is a
    /// null.
    pub(crate) fn block(&mut self, wait: Wait) -> Done {
        match self.mode {
            Mode::Nested | Mode::Script | Mode::Again(_) => {
                (wait.null_in_multi)(self.reply);
                Ok(())
            }
            Mode::Serving(_) => Err(Error::Suspended),
            Mode::Direct => {
                self.begin_wait(wait);
                Err(Error::Suspended)
            }
        }
    }

    fn begin_wait(&mut self, wait: Wait) {
        let places = |range: Range<usize>| self.keys[range].iter().map(|key| key.place);
        let (args, client) = (wait.args.unwrap_or_else(|| self.args.to_owned()), &self.session.client);
        let mut beyond: Vec<Place> = places(wait.beyond).collect();
        beyond.sort_unstable();
        beyond.dedup();
        let ticket = self.server.keyspace.ticket();
        let memory = args.memory() + size_of::<Blocked>();
        let blocked = Arc::new(Blocked {
            claim: Claim::new(),
            ticket,
            client: client.clone(),
            id: self.id,
            args,
            db: self.session.db,
            keys: wait.keys.clone(),
            wants: wait.wants,
            beyond,
            resp3: self.reply.resp3,
            no_touch: self.session.no_touch,
            tracks: self.session.tracks,
            caching: self.session.caching,
            permitted_at: self.session.access.checked_at(),
            safety: wait.safety,
        });
        // A waiter enters a queue once, however often the command names the key: there may be a million keys.
        let mut keys: Vec<Box<[u8]>> = Vec::with_capacity(wait.keys.len());
        let (is_one, mut seen) = (wait.keys.len() == 1, HashSet::new());
        for key in &self.keys[wait.keys] {
            if is_one || seen.insert(key.bytes) {
                self.guard.wait(key, ticket, blocked.clone());
                keys.push(key.bytes.into());
            }
        }
        client.note_wait(true, memory, wait.timeout.0.is_some());
        *client.wait.lock() = Arc::downgrade(&blocked);
        let (timeout, on) = (wait.timeout, On::Keys(blocked, keys));
        let waiting = Waiting::new(ticket, timeout, on);
        self.session.waiting = Some(Box::new(waiting));
    }

    /// Parses the timeout at an argument, in seconds with fractions.
    pub(crate) fn timeout_s(&self, index: usize) -> Result<Timeout, Error> {
        let number = super::command::x87_float::Extended::parse(self.args.at(index));
        let number = number.ok_or(Error::text("ERR timeout is not a float or out of range"))?;
        let out_of_range = if number.is_negative() { TIMEOUT_NEGATIVE } else { TIMEOUT_RANGE };
        self.timeout(number.thousandfold_up().ok_or(out_of_range)?)
    }

    /// Parses the timeout at an argument, in milliseconds.
    pub(crate) fn timeout_ms(&self, index: usize) -> Result<Timeout, Error> {
        let not_integer = |_| Error::text("ERR timeout is not an integer or out of range");
        self.timeout(self.args.int(index).map_err(not_integer)?)
    }

    fn timeout(&self, ms: i64) -> Result<Timeout, Error> {
        let ms = u64::try_from(ms).map_err(|_| TIMEOUT_NEGATIVE)?;
        let fits = self.now_ms().checked_add(ms).is_some_and(|until| i64::try_from(until).is_ok());
        if fits { Ok(Timeout((ms > 0).then_some(ms))) } else { Err(TIMEOUT_RANGE) }
    }
}

const TIMEOUT_NEGATIVE: Error = Error::Text(std::borrow::Cow::Borrowed("ERR timeout is negative"));
const TIMEOUT_RANGE: Error = Error::Text(std::borrow::Cow::Borrowed("ERR timeout is out of range"));

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
                "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
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
        self.client.note_wait(false, 0, false);
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
