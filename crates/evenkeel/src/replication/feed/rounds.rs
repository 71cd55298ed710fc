//! What the feeding thread looks after now and then: pings, replicas that are silent or too far behind.

use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use super::Feed;
use crate::config::OutputLimit;
use crate::replication::peer::{Peer, Stage};
use crate::replication::pipe::Pipe;
use crate::replication::replicas::Asks;

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

impl Feed {
    pub(super) fn round(&mut self) {
        self.settings = self.server.settings();
        let settings = self.settings.clone();
        let (timeout, now) = (Duration::from_secs(u64::from(settings.repl_timeout)), self.now);
        let every = Duration::from_secs(u64::from(settings.repl_ping_replica_period));
        let ping = now - self.last_ping >= every && !self.server.replication.is_replica();
        if ping && !self.peers.is_empty() && self.reader.is_some() {
            let mut stream = self.server.replication.stream();
            if !stream.is_at_rest {
                self.last_ping = now;
                stream.append(PING);
            }
        }
        let blank = now - self.last_blank >= Duration::from_secs(1);
        if blank {
            self.last_blank = now;
        }
        for peer in self.peers.values_mut() {
            // One that has been sent its snapshot with a length loads it now, for all we know, and reads nothing until it says ACK. Who has
            // asked by SYNC never does.
            let may_load = !peer.has_loaded && peer.introduction.asks != Some(Asks::Snapshot);
            if peer.is_writable || may_load || !matches!(peer.stage, Stage::Online { .. }) {
                peer.took = now;
            }
            peer.is_writable = true; // should an announcement have been missed
            // So that it does not take us for dead while it waits.
            if blank && peer.hears_nothing() {
                peer.say(b"\n");
            }
        }
        let offset = self.server.replication.stream().offset();
        let limits = settings.client_output_buffer_limit.replica;
        let server = self.server.clone();
        let pipes: Vec<Arc<Pipe>> = self.peers.values().filter_map(|peer| peer.pipe().cloned()).collect();
        self.part_if(|peer| {
            if let Some(reason) = is_too_late(peer, now, timeout).or_else(|| holds_up_others(peer, &pipes, now)) {
                server.log.warning(format!("Disconnecting timedout replica ({reason}): {}", peer.shared.name()));
                return Some("it was not heard of for too long".into());
            }
            let behind = peer.needs().map_or(0, |needs| offset.saturating_sub(needs));
            peer.shared.client.out_bytes.store(behind as usize, Relaxed);
            // One that catches up may be as far behind as it is, as long as it takes what it is sent: that comes from the disk, which
            // others need as well.
            let is_limited = !peer.catches_up || now.duration_since(peer.took) > timeout;
            let is_too_far =
                is_limited && is_too_far_behind(peer, behind, limits, settings.repl_backlog_size, now);
            is_too_far.then(|| {
                server.closed_for_output.fetch_add(1, Relaxed);
                server.log.warning(format!(
                    "Client id={} addr={} closed for overcoming of output buffer limits ({behind} bytes waiting).",
                    peer.shared.client.id, peer.shared.client.address
                ));
                "it is too far behind".into()
            })
        });
        // A replica has no end of its own to its stream, so its time as one does not count.
        if !self.peers.is_empty() || self.server.replication.is_replica() {
            self.alone_since = now;
        }
        self.server.replication.follow(&self.server, &settings);
    }
}

/// How long a replica that takes nothing may keep others waiting who are sent the same snapshot, where the disk does not take what
/// it is to be sent.
const STUCK: Duration = Duration::from_secs(10);

/// Whether a replica keeps others waiting who are sent the same snapshot, and takes nothing of it itself.
fn holds_up_others(peer: &Peer, pipes: &[Arc<Pipe>], now: Instant) -> Option<&'static str> {
    let Stage::Snapshot { pipe, at, .. } = &peer.stage else { return None };
    let is_long = |since: Instant| now.duration_since(since) > STUCK;
    let is_stuck = is_long(peer.moved) && pipe.held_up_since(*at).is_some_and(is_long);
    let is_shared = pipes.iter().filter(|other| Arc::ptr_eq(other, pipe)).count() > 1;
    (is_stuck && is_shared).then_some("full sync, and others wait")
}

/// Whether a replica that should say something has said nothing for too long.
fn is_too_late(peer: &Peer, now: Instant, timeout: Duration) -> Option<&'static str> {
    let stage = match peer.stage {
        Stage::Online { .. } if peer.introduction.asks != Some(Asks::Snapshot) => "streaming sync",
        Stage::Loading { .. } | Stage::Snapshot { .. } => "full sync",
        _ => return None,
    };
    (now.duration_since(peer.moved) > timeout).then_some(stage)
}

/// Whether more waits to be sent than may. What is kept anyway is never too much.
fn is_too_far_behind(peer: &mut Peer, behind: u64, limit: OutputLimit, kept: u64, now: Instant) -> bool {
    if limit.hard_bytes > 0 && behind > limit.hard_bytes.max(kept) {
        return true;
    }
    let over_soft = limit.soft_bytes > 0 && behind > limit.soft_bytes.max(kept);
    peer.over_soft_since = over_soft.then(|| peer.over_soft_since.unwrap_or(now));
    let allowed = Duration::from_secs(limit.soft_seconds);
    peer.over_soft_since.is_some_and(|since| now.duration_since(since) > allowed)
}
