//! Connections whose commands wait: they are not read, and continue when their replies come.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::Worker;
use super::schedule::Next;
use crate::executor::record_stage;
use crate::observe::stats::{Outcome, Stage, add};
use crate::worker::connection::Connection;
use evenkeel_client::waiting::{Blocked, End, NEVER, On, Resumed, Waiting};
use evenkeel_command::reply::{LARGE, Reply};
use evenkeel_net::poll::has_hung_up;

/// Waits of a worker's clients.
#[derive(Default)]
pub(super) struct Waits {
    /// Deadlines of waiting commands, with the tokens of their connections.
    deadlines: BTreeSet<(Instant, u64)>,
    /// When commands are run again, with the tokens of their connections and the numbers of the waits.
    retries: BTreeSet<(Instant, u64, u64)>,
    /// Wait-queue entries of finished waits that cannot be removed yet because a long-running script holds
    /// the gate. Removed once the gate opens.
    ///
    /// Watches wait in [`crate::executor::Executor::left_watches`].
    #[expect(clippy::vec_box, reason = "they come in boxes, and are not moved out of them")]
    leaving: Vec<Box<Waiting>>,
}

impl Waits {
    fn plan_retry(&mut self, blocked: &Blocked, token: u64) {
        let ms = blocked.retry_ms.load(Relaxed);
        if ms == NEVER || blocked.claim.is_over() {
            return;
        }
        let at = Instant::now().checked_add(Duration::from_millis(ms));
        self.retries.extend(at.map(|at| (at, token, blocked.ticket)));
    }
}

impl Worker {
    /// Suspends a connection whose command waits. Bytes that arrive meanwhile stay in the kernel.
    pub(super) fn suspend(&mut self, token: u64, mut connection: Box<Connection>) {
        if let Some(lane) = connection.session.lane.take() {
            self.vacate(token, &connection);
            return self.server.replication.accept_lane(connection.into_arrival(), *lane);
        }
        if connection.session.replica_hello.as_ref().is_some_and(|replica_hello| replica_hello.asks.is_some())
        {
            self.vacate(token, &connection);
            return self
                .server
                .replication
                .replica_inbox
                .enter(&self.server.replication, connection.into_arrival());
        }
        let hung_up = has_hung_up(connection.fd().as_raw_fd());
        let Some(waiting) = &mut connection.session.waiting else {
            return self.connections.put_back(token, connection);
        };
        // A hang-up announced together with the command is not announced again.
        if hung_up && waiting.cancel() {
            return self.close(token, connection);
        }
        connection.readable |= hung_up;
        connection.hung_up |= hung_up;
        if let On::Keys(blocked, _) = &waiting.on {
            let blocked = blocked.clone();
            self.register_durability_wait(&blocked);
            self.waits.plan_retry(&blocked, token);
        }
        if let Some(ms) = waiting.timeout.0 {
            // A deadline beyond the range of the clock counts as none.
            waiting.deadline = Instant::now().checked_add(Duration::from_millis(ms));
            self.waits.deadlines.extend(waiting.deadline.map(|deadline| (deadline, token)));
        }
        self.connections.put_back(token, connection);
    }

    /// Returns the milliseconds until the first deadline, rounded up: a wait never ends early.
    pub(super) fn first_deadline_ms(&self) -> Option<u64> {
        let ends = self.waits.deadlines.first().map(|(at, _)| *at);
        let retries = self.waits.retries.first().map(|(at, ..)| *at);
        let first = ends.into_iter().chain(retries).min();
        let deadline = first.filter(|_| !self.server.scripts.busy.is_busy())?;
        let left = deadline.saturating_duration_since(Instant::now());
        Some(left.as_micros().div_ceil(1000) as u64)
    }

    /// Ends the waits whose deadline has passed.
    pub(super) fn end_waits(&mut self) {
        if self.waits.deadlines.is_empty() || self.server.scripts.busy.is_busy() {
            return;
        }
        let now = Instant::now();
        while let Some((deadline, token)) = self.waits.deadlines.pop_first() {
            if deadline > now {
                self.waits.deadlines.insert((deadline, token));
                return;
            }
            let connection = self.connections.get(token);
            let waiting = connection.and_then(|connection| connection.session.waiting.as_ref());
            let Some(On::Keys(blocked, _)) = waiting.map(|waiting| &waiting.on) else { continue };
            // If it has just been served, the reply is on its way.
            if let Some(resumed) = blocked.end(End::Timeout) {
                let latency_tracking = self.executor.settings.latency_tracking;
                self.executor.stats().resumed(blocked.id, 0, Outcome::Succeeded, latency_tracking);
                self.resume(resumed);
            }
        }
    }

    /// Runs the waiting commands again for which the time has come.
    pub(super) fn retry_waits(&mut self) {
        if self.waits.retries.is_empty() || self.server.scripts.busy.is_busy() {
            return;
        }
        let now = Instant::now();
        while let Some((at, token, number)) = self.waits.retries.pop_first() {
            if at > now {
                self.waits.retries.insert((at, token, number));
                return;
            }
            let connection = self.connections.get(token);
            let waiting = connection.and_then(|connection| connection.session.waiting.as_ref());
            let Some(waiting) = waiting.filter(|waiting| waiting.number == number) else { continue };
            let On::Keys(blocked, keys) = &waiting.on else { continue };
            let (blocked, keys) = (blocked.clone(), keys.clone());
            self.executor.retry(&blocked, &keys);
            self.waits.plan_retry(&blocked, token);
        }
    }

    /// Ends a wait: sends the reply, and continues with the client's later requests.
    pub(super) fn resume(&mut self, resumed: Resumed) {
        let Resumed { client, number, reply, may_write, closes } = resumed;
        let token = client.token.load(Relaxed);
        self.executor.last_ticks =
            record_stage(self.executor.stats(), Stage::Other, self.executor.last_ticks);
        self.executor.begin_share();
        let Some(mut connection) = self.connections.take(token) else { return self.discard(reply) };
        let is_its_own = |waiting: &mut Box<Waiting>| waiting.number == number;
        let Some(mut waiting) = connection.session.waiting.take_if(is_its_own) else {
            self.connections.put_back(token, connection);
            return self.discard(reply);
        };
        connection.session.closing |= closes;
        add(&client.commands, 1);
        client.active_ms.store(self.now_ms, Relaxed); // the client has been waiting, not idle
        let (mute, late) = (waiting.mute, std::mem::take(&mut waiting.late));
        self.leave_queues(token, waiting);
        let acks = self.write_acks(&connection);
        let shows_write = acks.in_sync && !self.server.replication.is_replica();
        if may_write && (self.is_always() || !acks.is_none()) || shows_write {
            // Another thread has written for the client. The record's number is unknown, but the journal
            // contains it by now.
            connection.session.last_record = self.server.core.keyspace.journal.last();
        }
        if mute {
            self.discard(reply);
        } else {
            let own = std::mem::replace(&mut self.reply, reply);
            let is_open = self.flush(&mut connection);
            self.reply = own;
            if !is_open {
                return self.close(token, connection);
            }
        }
        let has_messages = !late.is_empty() || !connection.client().push_queue.is_empty();
        if has_messages && !self.send_messages(&mut connection, late) {
            return self.close(token, connection);
        }
        self.settle(token, connection, Next::Again);
    }

    /// Drops an unwanted reply.
    fn discard(&self, reply: Reply) {
        if reply.len() > LARGE {
            self.server.core.lazy_free.free(reply);
        }
    }

    /// Ends the wait of a connection that is about to be closed.
    pub(super) fn abandon_wait(&mut self, connection: &mut Connection) {
        if let Some(waiting) = connection.session.waiting.take() {
            waiting.abandon();
            self.leave_queues(connection.client().token.load(Relaxed), waiting);
        }
    }

    fn leave_queues(&mut self, token: u64, waiting: Box<Waiting>) {
        if let Some(deadline) = waiting.deadline {
            self.waits.deadlines.remove(&(deadline, token));
        }
        if let On::Long(_) = waiting.on {
            return;
        }
        let (server, ctx) = (&self.server, &mut self.executor.ctx);
        if !server.core.keyspace.enter_unless(ctx, || server.scripts.busy.is_busy()) {
            return self.waits.leaving.push(waiting);
        }
        waiting.leave(&mut server.core.keyspace.hold_none(ctx));
        server.core.keyspace.leave(ctx);
    }

    /// Removes the entries that were kept while a script held the gate.
    pub(super) fn leave_later(&mut self) {
        if self.waits.leaving.is_empty() && self.executor.left_watches.is_empty()
            || self.server.scripts.busy.is_busy()
        {
            return;
        }
        let (server, ctx) = (&self.server, &mut self.executor.ctx);
        if !server.core.keyspace.try_enter(ctx) {
            return;
        }
        let waits = std::mem::take(&mut self.waits.leaving);
        let watches = std::mem::take(&mut self.executor.left_watches);
        let mut guard = server.core.keyspace.hold_none(ctx);
        waits.iter().for_each(|waiting| waiting.leave(&mut guard));
        watches.into_iter().for_each(|watching| watching.end(&mut guard));
        drop(guard);
        server.core.keyspace.leave(ctx);
    }
}
