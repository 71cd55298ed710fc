//! Arrivals and departures of replicas in the replication thread, and their messages.

use std::sync::atomic::Ordering::*;

use super::{Feed, ROUND};
use crate::Replication;
use crate::replica_connection::{ReplicaConnection, Stage, Word};
use crate::replica_inbox::Arrival;
use evenkeel_client::replica_hello::Asks;

impl Feed {
    pub(super) fn welcome(&mut self, arrival: Arrival) {
        self.last_token += 1;
        let (token, client) = (self.last_token, arrival.session.client.clone());
        client.token.store(token, Relaxed);
        client.is_replica.store(true, Relaxed);
        let mut replica = ReplicaConnection::new(arrival, self.times.now_ms, self.times.now);
        if let Err(error) = self.poll.add_connection(replica.fd(), token) {
            log::warn!("Cannot register replica {} for events: {error}", replica.shared.name());
            return self.replication.hub.clients.remove(client.id);
        }
        replica.delay_small_packets(self.settings.repl_disable_tcp_nodelay);
        log::info!("Replica {} asks for synchronization", replica.shared.name());
        self.answer(&mut replica);
        self.replication.replicas.add(replica.shared.clone());
        self.replicas.insert(token, replica);
        self.listen(token); // bytes that came with the request cause no further event
        self.times.last_round -= ROUND;
    }

    /// Lets a replica continue with the stream, if the bytes that it lacks are kept.
    pub(super) fn answer(&mut self, replica: &mut ReplicaConnection) {
        let state = &self.replication;
        let Some(Asks::Rest(Some((id, bytes)))) = replica.replica_hello.asks.clone() else {
            log::info!("Full resync requested by replica {}", replica.shared.name());
            return;
        };
        let stream = state.stream();
        if stream.can_continue(&id, bytes) && self.reader_is_there() {
            let name = if replica.replica_hello.takes_names { &stream.history.id[..] } else { "" };
            replica.say(format!("+CONTINUE {name}").trim_end().as_bytes());
            replica.say(b"\r\n");
            replica.reconnect(bytes, stream.offset());
            replica.shared.record_acked(bytes, self.record_at(bytes));
            state.metrics.partial.fetch_add(1, Relaxed);
            return log::info!(
                "Partial resynchronization request from {} accepted. Sending {} bytes of backlog starting \
                 from offset {}.",
                replica.shared.name(),
                stream.offset() - bytes,
                bytes + 1
            );
        }
        state.metrics.partial_refused.fetch_add(1, Relaxed);
        let asked = String::from_utf8_lossy(&id).into_owned();
        let reason = if stream.history.includes(&id, bytes) {
            format!("lack of backlog (the replica is at offset {bytes} of {})", stream.offset())
        } else {
            let (second, until) = stream.history.second();
            let own = &stream.history.id;
            format!(
                "replication ID mismatch (requested {asked} at offset {bytes}; the ID is {own}, and \
                     {second} before offset {until})"
            )
        };
        log::info!("Unable to partial resync with replica {} for {reason}", replica.shared.name());
    }

    /// Whether the stream goes on, made by this thread or by the link to our own primary.
    pub(super) fn reader_is_there(&self) -> bool {
        let state = &self.replication;
        state.reading.is_any() || state.is_replica()
    }

    /// Reads from all replicas that may have sent messages.
    pub(super) fn listen_to_all(&mut self) {
        let tokens = self.replicas.iter().filter(|(_, replica)| replica.is_readable).map(|(token, _)| *token);
        for token in tokens.collect::<Vec<_>>() {
            self.listen(token);
        }
    }

    pub(super) fn listen(&mut self, token: u64) {
        let Some(mut replica) = self.replicas.remove(&token) else { return };
        let mut acked = false;
        let received = replica.listen(&self.replication, |replica, word| {
            replica.moved = self.times.now;
            replica.record_message(self.times.now_ms);
            if let Word::Ack { bytes, synced } = word {
                acked = true;
                self.on_ack(replica, bytes, synced);
            }
        });
        self.has_more |= replica.is_readable;
        match received {
            Ok(()) => drop(self.replicas.insert(token, replica)),
            Err(error) => self.part(replica, &error.to_string()),
        }
        if acked {
            self.notify_waiters();
        }
    }

    pub(super) fn on_ack(&self, replica: &mut ReplicaConnection, bytes: u64, synced: Option<u64>) {
        if let Stage::Loading { then } = replica.stage {
            replica.go_online(then);
            let name = replica.shared.name();
            log::info!("Synchronization with replica {name} succeeded");
        }
        replica.has_loaded |= matches!(replica.stage, Stage::Snapshot { .. } | Stage::Online { .. });
        replica.shared.record_acked(bytes, self.record_at(bytes));
        if let Some(synced) = synced {
            replica.shared.record_synced(self.record_at(synced));
            replica.synced = Some(synced);
        }
    }

    /// The last record that is complete within the first `bytes` bytes of the stream.
    pub(super) fn record_at(&self, bytes: u64) -> u64 {
        let behind = self.points.partition_point(|(offset, _)| *offset <= bytes);
        behind.checked_sub(1).map_or(0, |last| self.points[last].1)
    }

    /// Notifies the workers whose clients wait for replicas.
    pub(super) fn notify_waiters(&self) {
        self.replication.core.workers.notify_durable();
    }

    pub(super) fn part(&self, replica: ReplicaConnection, reason: &str) {
        let name = replica.shared.name();
        log::info!("Connection with replica {name} lost: {reason}");
        self.replication.replicas.remove(&replica.shared);
        self.replication.hub.clients.remove(replica.shared.client.id);
        // The descriptor leaves the epoll when it is closed.
    }

    /// Drops the replicas for which `reason` returns a reason.
    pub(super) fn part_if(&mut self, mut reason: impl FnMut(&mut ReplicaConnection) -> Option<String>) {
        let reasons =
            self.replicas.iter_mut().filter_map(|(token, replica)| Some((*token, reason(replica)?)));
        for (token, reason) in reasons.collect::<Vec<_>>() {
            if let Some(replica) = self.replicas.remove(&token) {
                self.part(replica, &reason);
            }
        }
    }
}

/// Requests of clients that wait for replicas.
impl Replication {
    /// Asks all replicas for acknowledgements, once the records up to `record` are in the stream.
    pub fn ask_for_acks(&self, record: u64) {
        self.acks_wanted.fetch_max(record, AcqRel);
        self.wants_acks.store(true, Release);
        self.replica_inbox.nudge();
    }
}
