//! Periodic tasks of the replication thread: pings, and replicas that are silent or too far behind.

use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use super::Feed;
use crate::replica_connection::{ReplicaConnection, Stage};
use crate::snapshot_pipe::SnapshotPipe;
use evenkeel_client::replica_hello::Asks;
use evenkeel_config::OutputLimit;

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

impl Feed {
    pub(super) fn round(&mut self) {
        self.settings = self.replication.core.settings();
        let settings = self.settings.clone();
        let (timeout, now) = (Duration::from_secs(u64::from(settings.repl_timeout)), self.times.now);
        let every = Duration::from_secs(u64::from(settings.repl_ping_replica_period));
        let ping = now - self.times.last_ping >= every && !self.replication.is_replica();
        if ping && !self.replicas.is_empty() && self.reader.is_some() {
            let mut stream = self.replication.stream();
            if !stream.is_at_rest {
                self.times.last_ping = now;
                stream.append(PING);
            }
        }
        let blank = now - self.times.last_blank >= Duration::from_secs(1);
        if blank {
            self.times.last_blank = now;
        }
        for replica in self.replicas.values_mut() {
            // A replica that has been sent its snapshot with a length may be loading it, and reads nothing
            // before its first ACK. A replica that sent SYNC never acknowledges.
            let may_load = !replica.has_loaded && replica.replica_hello.asks != Some(Asks::Snapshot);
            if replica.is_writable || may_load || !matches!(replica.stage, Stage::Online { .. }) {
                replica.took = now;
            }
            replica.is_writable = true; // in case an event was missed
            // A sign of life for a replica that waits.
            if blank && replica.expects_no_bytes() {
                replica.say(b"\n");
            }
        }
        let offset = self.replication.stream().offset();
        let limits = settings.client_output_buffer_limit.replica;
        let replication = self.replication.clone();
        let pipes: Vec<Arc<SnapshotPipe>> =
            self.replicas.values().filter_map(|replica| replica.pipe().cloned()).collect();
        self.part_if(|replica| {
            if let Some(reason) =
                is_too_late(replica, now, timeout).or_else(|| holds_up_others(replica, &pipes, now))
            {
                log::warn!("Disconnecting timedout replica ({reason}): {}", replica.shared.name());
                return Some("timeout".into());
            }
            let behind = replica.needs().map_or(0, |needs| offset.saturating_sub(needs));
            replica.shared.client.out_bytes.store(behind as usize, Relaxed);
            // A replica that catches up may be far behind, as long as it takes the bytes it is sent: they
            // come from the disk, which has other users.
            let is_limited = !replica.catches_up || now.duration_since(replica.took) > timeout;
            let is_too_far =
                is_limited && is_too_far_behind(replica, behind, limits, settings.repl_backlog_size, now);
            is_too_far.then(|| {
                replication.hub.closed_for_output.fetch_add(1, Relaxed);
                log::warn!(
                    "Client id={} addr={} closed for overcoming of output buffer limits ({behind} bytes \
                     waiting).",
                    replica.shared.client.id,
                    replica.shared.client.address
                );
                "output buffer limit".into()
            })
        });
        // The time as a replica does not count: its stream comes from its primary.
        if !self.replicas.is_empty() || self.replication.is_replica() {
            self.times.alone_since = now;
        }
        self.replication.follow(&settings);
    }
}

/// How long a replica that takes nothing may hold up other replicas of the same snapshot, if the disk does
/// not take its bytes.
const STUCK: Duration = Duration::from_secs(10);

/// Whether a replica holds up other replicas of the same snapshot, and takes nothing of it itself.
fn holds_up_others(
    replica: &ReplicaConnection,
    pipes: &[Arc<SnapshotPipe>],
    now: Instant,
) -> Option<&'static str> {
    let Stage::Snapshot { pipe, at, .. } = &replica.stage else { return None };
    let is_worth_offloading = |since: Instant| now.duration_since(since) > STUCK;
    let is_stuck =
        is_worth_offloading(replica.moved) && pipe.held_up_since(*at).is_some_and(is_worth_offloading);
    let is_shared = pipes.iter().filter(|other| Arc::ptr_eq(other, pipe)).count() > 1;
    (is_stuck && is_shared).then_some("full sync, which delays other replicas")
}

/// Whether a replica that should send messages has been silent for too long.
fn is_too_late(replica: &ReplicaConnection, now: Instant, timeout: Duration) -> Option<&'static str> {
    let stage = match replica.stage {
        Stage::Online { .. } if replica.replica_hello.asks != Some(Asks::Snapshot) => "streaming sync",
        Stage::Loading { .. } | Stage::Snapshot { .. } => "full sync",
        _ => return None,
    };
    (now.duration_since(replica.moved) > timeout).then_some(stage)
}

/// Whether more bytes wait to be sent than the limits allow. Bytes that the backlog keeps anyway are never
/// too many.
fn is_too_far_behind(
    replica: &mut ReplicaConnection,
    behind: u64,
    limit: OutputLimit,
    kept: u64,
    now: Instant,
) -> bool {
    if limit.hard_bytes > 0 && behind > limit.hard_bytes.max(kept) {
        return true;
    }
    let over_soft = limit.soft_bytes > 0 && behind > limit.soft_bytes.max(kept);
    replica.over_soft_since = over_soft.then(|| replica.over_soft_since.unwrap_or(now));
    let allowed = Duration::from_secs(limit.soft_seconds);
    replica.over_soft_since.is_some_and(|since| now.duration_since(since) > allowed)
}
