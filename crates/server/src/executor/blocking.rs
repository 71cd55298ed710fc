//! Commands that wait: BLPOP and the like.
//!
//! A handler that finds nothing returns [`Call::block`]. The command then stands in the wait queues of its
//! keys, entered under the locks that it holds anyway, and its connection is not read any further. A thread
//! that writes to such a key runs the same handler on the waiter's behalf before it releases its own
//! command's locks ([`serve`]). So a pushed value is never seen by a client that came later. In such a run
//! the handler looks at the written key ([`Call::tries`]). It then replies, fails, or blocks again, which
//! keeps the waiter in its place.
//!
//! [`claim`] decides which thread ends a wait; `worker/suspended.rs` is the part of the connection's
//! worker; docs/blocking.md describes the whole.

pub(crate) mod serve;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use evenkeel_store::{Key, Place, SlotGuard};

use crate::server::Server;
use evenkeel_client::session::Session;
use evenkeel_client::waiting::{Blocked, Condition, NEVER, On, Waiting};
use evenkeel_command::args::OwnedArgs;
use evenkeel_command::flow::{Timeout, Wait};
use evenkeel_command::{Args, Id};

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
    let args = wait.args.unwrap_or_else(|| args.to_owned());
    let mut beyond: Vec<Place> = places(wait.beyond).collect();
    beyond.sort_unstable();
    beyond.dedup();
    let ticket = server.core.keyspace.ticket();
    let blocked = Blocked {
        wants: wait.wants,
        beyond,
        keys: wait.keys.clone(),
        retry_ms: AtomicU64::new(wait.retry_ms.unwrap_or(NEVER)),
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
    enter(session, wait.timeout, (blocked, memory), names);
}

/// Lets the command of a session wait until its writes are safe, and for no key.
pub(crate) fn begin_wait_for_safety(
    server: &Server,
    session: &mut Session,
    (id, args, resp3): (Id, OwnedArgs, bool),
    safety: Box<dyn Condition>,
    timeout: Timeout,
) {
    let memory = args.memory() + size_of::<Blocked>();
    let blocked = Blocked::of(session, server.core.keyspace.ticket(), (id, args, resp3), Some(safety));
    enter(session, timeout, (Arc::new(blocked), memory), Vec::new());
}

/// Marks the client as waiting: from the moment at which it is counted, CLIENT UNBLOCK finds its wait.
fn enter(
    session: &mut Session,
    timeout: Timeout,
    (blocked, memory): (Arc<Blocked>, usize),
    keys: Vec<Box<[u8]>>,
) {
    let timeout = session.resumes_wait.take().map_or(timeout, Timeout);
    let mut wait = session.client.wait.lock();
    *wait = Arc::downgrade(&blocked);
    session.client.set_waiting(true, memory, timeout.0.is_some());
    drop(wait);
    let waiting = Waiting::new(blocked.ticket, timeout, On::Keys(blocked, keys));
    session.waiting = Some(Box::new(waiting));
}

#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod redis_tests;
#[cfg(test)]
mod tests;
