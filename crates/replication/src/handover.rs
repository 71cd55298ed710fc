//! The stream of a process that hands its data over to another process, for an upgrade.
//!
//! The process that takes over follows as a replica, over a socket that its predecessor has made for it: a
//! snapshot, and then the stream. If it takes the memory of the data over at the end, the snapshot has
//! function libraries alone, and commands on data are counted and not run. At the end the predecessor pauses
//! its clients, its own primary's stream and its pings, and waits until the other process has acknowledged
//! everything. From then on both hold the same data at the same offset, so the replicas of the one can
//! continue with the other.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

use super::Replication;
use super::link::{self, Phase, Target};
use evenkeel_persist::rewrite;

/// The state of the link to the predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// The data are on their way.
    Loading,
    /// This process has the data, and follows the stream.
    UpToDate,
    /// The link has ended.
    Ended,
}

impl Replication {
    /// Follows the predecessor, whose end of this socket is a client of its own. `lacks_data`: this process
    /// takes the memory of the data over later.
    pub fn follow_predecessor(self: &Arc<Replication>, socket: OwnedFd, lacks_data: bool) {
        self.link.lacks_data.store(lacks_data, Release);
        *self.link.predecessor.lock() = Some(socket);
        rewrite::behind_walks(&self.persist, |guard| {
            link::change(self, guard, Some(Target::predecessor()));
        });
        link::begin(self);
    }

    /// How far this process follows its predecessor.
    pub fn follows_predecessor(&self) -> Follows {
        let is_used = self.link.predecessor.lock().is_none();
        match self.link.phase() {
            Phase::Connected => Follows::UpToDate,
            Phase::None | Phase::Connect if is_used => Follows::Ended,
            _ => Follows::Loading,
        }
    }

    /// Takes the predecessor's role, whose data and history this process has: it follows `primary`, if there
    /// is one, or is a primary itself.
    pub fn take_role(self: &Arc<Replication>, primary: Option<Target>) {
        let is_replica = primary.is_some();
        self.link.lacks_data.store(false, Release);
        rewrite::behind_walks(&self.persist, |guard| link::change(self, guard, primary));
        if is_replica {
            link::begin(self);
        }
    }

    /// Has the stream come to rest, or go on. The clients are paused before it rests.
    pub fn rest(self: &Arc<Replication>, rests: bool) {
        self.link.rests.store(rests, Release);
        self.stream().is_at_rest = rests || self.failover.is_under_way();
        if rests && !self.is_replica() {
            self.ask_for_acks(self.core.keyspace.journal.last());
        }
    }

    /// Whether the process that takes over has acknowledged all of the stream, which is at rest.
    pub fn successor_has_all(&self) -> bool {
        let Some(successor) = self.replicas.successor() else { return false };
        if self.is_replica() {
            let rests = self.link.is_at_rest.load(Acquire) || !self.link.is_up();
            return rests && successor.is_online() && successor.acked() == self.stream().offset();
        }
        let stream = self.stream();
        if self.wants_acks.load(Acquire) {
            return false; // GETACK is appended under the stream's lock
        }
        let (record, offset) = (self.core.keyspace.journal.last(), stream.offset());
        successor.is_online() && successor.acked_record() >= record && successor.acked() == offset
    }
}
