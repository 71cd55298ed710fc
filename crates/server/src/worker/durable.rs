//! A worker and the append-only file: replies held back until their records are durable (`appendfsync
//! always`), writers that wait because too much of the journal is unwritten, and WAITAOF.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering::*, fence};

use super::Worker;
use crate::observe::stats::Outcome;
use crate::worker::connection::Connection;
use evenkeel_client::waiting::{Blocked, End};
use evenkeel_config::Fsync;
use evenkeel_core::blockers::Blockers;

/// Replies and commands of a worker that wait for the append-only file.
#[derive(Default)]
pub(super) struct DurabilityWaits {
    /// Connections whose replies are held back, with the journal record that must be on disk: in order of
    /// arrival, once per record.
    held_back: VecDeque<(u64, u64)>,
    /// Waits of WAITAOF.
    awaiting_log: Vec<Arc<Blocked>>,
}

impl Worker {
    /// Whether replies to writes wait for the disk.
    pub(super) fn is_always(&self) -> bool {
        self.executor.settings.appendfsync == Fsync::Always && self.server.persist.aof.is_on()
    }

    /// Whether a reply has to wait, since its record is not on disk.
    #[cold]
    pub(super) fn awaits_log(&self, connection: &Connection) -> bool {
        let is_behind = || connection.session.last_record > self.server.persist.aof.durable();
        self.is_always() && (connection.is_held_back() || is_behind())
    }

    /// Holds the reply back until its record is on disk.
    pub(super) fn hold_back(&mut self, connection: &mut Connection) {
        let record = connection.session.last_record;
        if connection.hold_back(&mut self.reply, record) {
            self.durability.held_back.push_back((record, connection.client().token.load(Relaxed)));
        }
        self.await_log();
    }

    fn await_log(&self) {
        self.server.inboxes[self.index].awaits_log.store(true, Relaxed);
        // The writing thread may have reached this record before it could see the waiting reply.
        std::sync::atomic::fence(SeqCst);
    }

    /// Registers a client that waits until its writes are on disk, or at replicas.
    pub(super) fn register_durability_wait(&mut self, blocked: &Arc<Blocked>) {
        if blocked.safety.is_some() {
            self.durability.awaiting_log.push(blocked.clone());
            self.await_log();
        }
    }

    /// Ends the waits whose writes are on disk by now, or will never be.
    fn end_waits_for_log(&mut self) {
        let mut over = Vec::new();
        self.durability.awaiting_log.retain(|blocked| {
            let ends = blocked.safety.as_ref().is_none_or(|safety| safety.is_reached());
            // Waits that their timeout or connection has already ended are dropped as well.
            let resumed = ends.then(|| blocked.end(End::Timeout)).flatten();
            over.extend(resumed.map(|resumed| (blocked.id, resumed)));
            !ends && blocked.claim.take().is_some()
        });
        for (id, resumed) in over {
            let latency_tracking = self.executor.settings.latency_tracking;
            let outcome = Outcome::of_reply(resumed.reply.errors > 0);
            self.executor.stats().resumed(id, 0, outcome, latency_tracking);
            self.resume(resumed);
        }
    }

    /// Sends the replies whose records are on disk by now.
    pub(super) fn release(&mut self) {
        let aof = &self.server.persist.aof;
        let is_needed = aof.is_on() && self.executor.settings.appendfsync == Fsync::Always;
        let durable = if is_needed { aof.durable() } else { u64::MAX };
        // A worker's record numbers ascend, so the front is due first.
        while let Some(&(number, token)) = self.durability.held_back.front()
            && number <= durable
        {
            self.durability.held_back.pop_front();
            let Some(mut connection) = self.connections.take(token) else { continue };
            // Replies to later requests wait for their own records.
            if connection.release_replies(durable)
                && connection.backlog_len() > 0
                && !self.flush_backlog(&mut connection)
            {
                self.close(token, connection);
            } else {
                self.connections.put_back(token, connection);
            }
        }
        self.end_waits_for_log();
        if !self.has_held_back() {
            self.server.inboxes[self.index].awaits_log.store(false, Relaxed);
        }
    }

    /// Whether any reply or wait depends on the journal.
    pub(super) fn has_held_back(&self) -> bool {
        !self.durability.held_back.is_empty() || !self.durability.awaiting_log.is_empty()
    }

    /// Runs once a turn, while the append-only file is on or any reply waits for it.
    pub(super) fn look_at_log(&mut self) {
        if self.has_held_back() {
            self.release();
        }
        let (persist, limit) = (&self.server.persist, self.executor.settings.appendonly_buffer_limit);
        let unread = persist.aof.unread(&self.server.core.keyspace.journal);
        // Only the log's thread would let them go on.
        if unread > limit
            && persist.aof.is_running()
            && !self.server.core.blockers.any().contains(Blockers::CROWDED)
        {
            self.server.core.blockers.set(Blockers::CROWDED, true);
            fence(SeqCst);
            if !persist.aof.is_running() {
                return self.server.core.blockers.set(Blockers::CROWDED, false);
            }
            persist.aof.metrics.crowded.fetch_add(1, Relaxed);
            log::warn!(
                "{unread} bytes are waiting to be written to the append-only file (appendonly-buffer-limit): \
                 write commands are delayed. The disk may be too slow or blocked."
            );
        }
    }
}
