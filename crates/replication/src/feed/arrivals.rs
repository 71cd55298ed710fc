//! Arrivals and departures of replicas in the replication thread, and their messages.

use std::sync::atomic::Ordering::*;

use super::{Feed, ROUND};
use crate::Replication;
use crate::replica_connection::{ReplicaConnection, Stage, Word};
use crate::replica_inbox::Arrival;
use evenkeel_client::replica_hello::{Asks, Membership};

impl Feed {
    pub(super) fn welcome(&mut self, arrival: Arrival) {
        self.last_token += 1;
        let (token, client) = (self.last_token, arrival.session.client.clone());
        client.token.store(token, Relaxed);
        client.is_replica.store(true, Relaxed);
        let mut replica = ReplicaConnection::new(arrival, self.times.now_ms, self.times.now);
        if let Some(member) = replica.member().cloned()
            && let Err(reason) = self.enter(&member)
        {
            log::info!("Replica {} is not served: {reason}", replica.shared.name());
            return self.replication.hub.clients.remove(client.id);
        }
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

    /// Begins the connection of a node of the cluster; an earlier one ends.
    fn enter(&mut self, member: &Membership) -> Result<(), String> {
        self.follow_members(); // the epoch may have changed since the replica was admitted
        let replication = self.replication.clone();
        replication.members.check(member)?;
        let is_same =
            |replica: &ReplicaConnection| replica.member().is_some_and(|its| its.node == member.node);
        self.part_if(|replica| is_same(replica).then(|| "the node has another connection".into()));
        replication.members.forget_sync(&member.node);
        replication.members.cluster().iter().for_each(|cluster| cluster.left(&member.node));
        Ok(())
    }

    /// Ends the connections of nodes that expect this server in another role.
    pub(super) fn follow_members(&mut self) {
        let version = self.replication.members.version();
        if std::mem::replace(&mut self.members_version, version) != version {
            let replication = self.replication.clone();
            self.part_if(|replica| replication.members.check(replica.member()?).err());
        }
    }

    /// Lets a replica continue with the stream, if the bytes that it lacks are kept.
    pub(super) fn answer(&mut self, replica: &mut ReplicaConnection) {
        let state = &self.replication;
        let Some(Asks::Rest(Some((id, bytes)))) = replica.replica_hello.asks.clone() else {
            log::info!("Full resync requested by replica {}", replica.shared.name());
            return self.ask_for_full_sync(replica);
        };
        let stream = state.stream();
        if stream.can_continue(&id, bytes) && self.reader_is_there() {
            let name = if replica.replica_hello.takes_names { &stream.history.id[..] } else { "" };
            replica.say(format!("+CONTINUE {name}").trim_end().as_bytes());
            replica.say(b"\r\n");
            replica.reconnect(bytes, stream.offset());
            replica.shared.record_acked(bytes, self.record_at(bytes));
            state.metrics.partial.fetch_add(1, Relaxed);
            log::info!(
                "Partial resynchronization request from {} accepted. Sending {} bytes of backlog starting \
                 from offset {}.",
                replica.shared.name(),
                stream.offset() - bytes,
                bytes + 1
            );
            drop(stream);
            return self.record_member(replica, bytes);
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
        drop(stream);
        log::info!("Unable to partial resync with replica {} for {reason}", replica.shared.name());
        self.ask_for_full_sync(replica);
    }

    /// A node of the cluster waits until it may drop its data.
    fn ask_for_full_sync(&self, replica: &ReplicaConnection) {
        if let (Some(cluster), Some(member)) = (self.replication.members.cluster(), replica.member()) {
            cluster.needs_full_sync(&member.node);
        }
    }

    /// Whether a full synchronization of a replica may begin.
    pub(super) fn may_sync(&self, replica: &ReplicaConnection) -> bool {
        replica.member().is_none_or(|member| self.replication.members.may_sync(&member.node))
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
            if let Word::Ack { bytes, synced, incarnation, kept } = word {
                acked = true;
                self.on_ack(replica, bytes, synced);
                if let Some(member) = &mut replica.replica_hello.membership {
                    member.incarnation = incarnation.unwrap_or(member.incarnation);
                }
                self.record_member(replica, kept.unwrap_or(bytes));
            }
        });
        self.has_more |= replica.is_readable;
        match received {
            Ok(()) => drop(self.replicas.insert(token, replica)),
            Err(error) => self.part(replica, &error.to_string()),
        }
        if acked {
            let online = self.replicas.values().filter(|replica| replica.shared.is_online());
            self.replication.acks.record_all(online.map(|replica| replica.shared.acked_record()).collect());
            self.notify_waiters();
        }
    }

    /// Records the bytes of a node of the cluster that count for the in-sync set and for `write-acks`.
    fn record_member(&self, replica: &ReplicaConnection, bytes: u64) {
        let Some(member) = replica.member() else { return };
        let acked = (bytes, self.record_at(bytes));
        self.replication.acks.record_member(member, acked);
        if let Some(cluster) = self.replication.members.cluster() {
            cluster.acknowledged(member, bytes);
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
        if let (Some(cluster), Some(member)) = (self.replication.members.cluster(), replica.member()) {
            cluster.left(&member.node);
        }
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
        // The thread clears this before it reads the record.
        if !self.wants_acks.swap(true, AcqRel) {
            self.replica_inbox.nudge();
        }
    }
}
