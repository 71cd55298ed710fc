//! A worker and the journal: replies held back until their records are durable (`appendfsync always`), or at
//! replicas (`write-acks`), writers that wait because too much of the journal is unwritten, and WAITAOF.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{Ordering::*, fence};

use super::Worker;
use crate::observe::stats::Outcome;
use crate::worker::connection::Connection;
use evenkeel_client::waiting::{Blocked, End};
use evenkeel_config::{Fsync, WriteAcks};
use evenkeel_core::blockers::Blockers;

/// Replies and commands of a worker that wait for the append-only file, or for replicas.
#[derive(Default)]
pub(super) struct DurabilityWaits {
    /// For each level of acknowledgements: connections whose replies are held back, with the journal record
    /// that must be kept: in order of arrival, once per record. Queues stay.
    held_back: BTreeMap<WriteAcks, VecDeque<(u64, u64)>>,
    /// Number of entries in `held_back`.
    entries: usize,
    /// Waits of WAITAOF.
    awaiting_log: Vec<Arc<Blocked>>,
}

impl Worker {
    /// Whether replies to writes wait for the disk.
    pub(super) fn is_always(&self) -> bool {
        self.executor.settings.appendfsync == Fsync::Always && self.server.persist.aof.is_on()
    }

    /// What replies to a client wait for, at replicas. On a replica as well: the client's last record is from
    /// the time when this server was a primary.
    #[inline]
    pub(super) fn write_acks(&self, connection: &Connection) -> WriteAcks {
        let acks = self.executor.settings.write_acks.and(connection.session.write_acks);
        acks.and(connection.held_acks())
    }

    /// Returns the last record that is kept: on disk, if replies wait for that, and at replicas, as `acks`
    /// asks.
    fn kept(&self, acks: WriteAcks) -> u64 {
        let durable = if self.is_always() { self.server.persist.aof.durable() } else { u64::MAX };
        durable.min(self.server.replication.acks.kept(acks))
    }

    /// Whether a reply has to wait, since its record is not kept.
    #[cold]
    pub(super) fn awaits_log(&self, connection: &Connection) -> bool {
        // Replies that are held back come first.
        connection.is_held_back() || connection.session.last_record > self.kept(self.write_acks(connection))
    }

    /// Whether this node of a cluster has lost its right to serve while it ran the commands, of a client
    /// whose replies wait for all nodes in sync: another node may have newer data. The machine may have
    /// stopped in between.
    #[inline]
    pub(super) fn is_reply_late(&self, connection: &Connection) -> bool {
        self.executor.cluster.as_ref().is_some_and(|view| view.is_primary)
            && !self.executor.is_fenced
            && self.write_acks(connection).in_sync
            && self.server.is_fenced()
    }

    /// Holds the reply back until its record is kept.
    pub(super) fn hold_back(&mut self, connection: &mut Connection) {
        let (record, acks) = (connection.session.last_record, self.write_acks(connection));
        if connection.hold_back(&mut self.reply, record, acks) {
            let entry = (record, connection.client().token.load(Relaxed));
            self.durability.held_back.entry(acks).or_default().push_back(entry);
            self.durability.entries += 1;
        }
        if !acks.is_none() {
            self.server.replication.ask_for_acks(record);
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

    /// Sends the replies whose records are kept by now. A client whose write is not kept, and never will be
    /// for certain, is disconnected: this server has become a replica.
    pub(super) fn release(&mut self) {
        let mut queues = std::mem::take(&mut self.durability.held_back);
        for (acks, queue) in &mut queues {
            let kept = self.kept(*acks);
            // The numbers of a worker's own records ascend. The number of a record that was read may be
            // above that of the next record, which waits a little longer then.
            while let Some(&(number, token)) = queue.front() {
                let is_lost = !acks.is_none() && self.server.replication.acks.is_lost(number);
                if number > kept && !is_lost {
                    break;
                }
                queue.pop_front();
                self.durability.entries -= 1;
                let Some(mut connection) = self.connections.take(token) else { continue };
                if number > kept {
                    self.close(token, connection);
                    continue;
                }
                // Replies to later requests wait for their own records.
                if connection.release_replies(kept, *acks)
                    && connection.backlog_len() > 0
                    && !self.flush_backlog(&mut connection)
                {
                    self.close(token, connection);
                } else {
                    self.connections.put_back(token, connection);
                }
            }
        }
        // No reply was held back meanwhile.
        self.durability.held_back = queues;
        self.end_waits_for_log();
        if !self.has_held_back() {
            self.server.inboxes[self.index].awaits_log.store(false, Relaxed);
        }
    }

    /// Whether any reply or wait depends on the journal.
    pub(super) fn has_held_back(&self) -> bool {
        self.durability.entries > 0 || !self.durability.awaiting_log.is_empty()
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
