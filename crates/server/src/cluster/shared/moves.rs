//! Moves of slots: what the decider wants of the data path, the rest of earlier moves, and what operators
//! see.
//!
//! The source closes slots in three steps: the view in which they are closed is published; commands that
//! began before have ended by then; and the last record of the journal is the last one that may concern
//! them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Instant;

use evenkeel_cluster::{
    Change, Key, Migration, MigrationId, MoveAction, MoveEvent, NodeId, Operation, ShardId, SlotRanges,
    Snapshot, Transaction,
};
use evenkeel_replication::link::Target;
use evenkeel_replication::moves::{CopyOrder, News};
use evenkeel_runtime::clock;
use parking_lot::Mutex;

use super::{Agent, Message, operator};
use crate::server::Server;

/// Moves that have ended and are shown.
const ENDED_MAX: usize = 100;

/// A move whose copy has failed so often in a row is given up.
const FAILURES_MAX: u32 = 30;

/// What this node knows of a move, as its source or its target.
#[derive(Clone, Debug)]
pub(crate) struct MoveInfo {
    pub(crate) id: MigrationId,
    pub(crate) slots: SlotRanges,
    /// This node's shard is the source.
    pub(crate) is_export: bool,
    pub(crate) source: Option<NodeId>,
    pub(crate) target: Option<NodeId>,
    /// Seconds since the Unix epoch.
    pub(crate) created_s: u64,
    pub(crate) updated_s: u64,
    pub(crate) state: MoveState,
    /// Why the last copy failed.
    pub(crate) message: String,
    /// Bytes that the target has not acknowledged.
    pub(crate) behind: u64,
    /// Copies that have failed, in all and in a row.
    pub(crate) failures: u32,
    failures_in_a_row: u32,
    /// The version of the closed slots with which those of the move are closed, until it is in force.
    closing: Option<u64>,
    /// The time for which the slots have been closed so far, and since when they are.
    pub(crate) pause_ms: u64,
    paused_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoveState {
    Connecting,
    Snapshotting,
    Streaming,
    Paused,
    Importing,
    Success,
    Failed,
    Cancelled,
}

impl MoveState {
    /// Returns the name for clients.
    pub(crate) fn name(self) -> &'static str {
        match self {
            MoveState::Connecting => "connecting",
            MoveState::Snapshotting => "snapshotting",
            MoveState::Streaming => "streaming",
            MoveState::Paused => "failover-paused",
            MoveState::Importing => "importing",
            MoveState::Success => "success",
            MoveState::Failed => "failed",
            MoveState::Cancelled => "cancelled",
        }
    }

    pub(crate) fn has_ended(self) -> bool {
        matches!(self, MoveState::Success | MoveState::Failed | MoveState::Cancelled)
    }
}

impl MoveInfo {
    fn end_pause(&mut self) {
        let pause = self.paused_at.take().map_or(0, |since| since.elapsed().as_millis() as u64);
        self.pause_ms += pause;
        self.closing = None;
    }
}

/// The moves of this node: those that go on, and the last that have ended, the oldest first.
#[derive(Default)]
pub(super) struct MoveLog {
    present: BTreeMap<MigrationId, MoveInfo>,
    ended: VecDeque<MoveInfo>,
}

impl MoveLog {
    /// Follows a view of the store in which this node's shard is `own`.
    pub(super) fn follow(&mut self, view: &Snapshot, own: ShardId) {
        let now_s = clock::unix_ms() / 1000;
        let primary = |shard: ShardId| view.shards.get(&shard).and_then(|entry| entry.value.primary);
        for (id, entry) in &view.migrations {
            let Migration { slots, source, target, .. } = &*entry.value;
            if *source != own && *target != own {
                continue;
            }
            let info = self.present.entry(*id).or_insert_with(|| MoveInfo {
                id: *id,
                slots: slots.clone(),
                is_export: *source == own,
                source: None,
                target: None,
                created_s: now_s,
                updated_s: now_s,
                state: if *source == own { MoveState::Connecting } else { MoveState::Importing },
                message: String::new(),
                behind: 0,
                failures: 0,
                failures_in_a_row: 0,
                closing: None,
                pause_ms: 0,
                paused_at: None,
            });
            (info.source, info.target) = (primary(*source), primary(*target));
        }
        let gone: Vec<MigrationId> =
            self.present.keys().filter(|id| !view.migrations.contains_key(id)).copied().collect();
        for id in gone {
            let Some(mut info) = self.present.remove(&id) else { continue };
            let owner = view.shards.iter().find(|(_, entry)| entry.value.slots.includes(&info.slots));
            let has_moved = owner.is_some_and(|(id, _)| (*id == own) != info.is_export);
            info.state = match () {
                () if has_moved => MoveState::Success,
                () if info.failures_in_a_row >= FAILURES_MAX => MoveState::Failed,
                () => MoveState::Cancelled,
            };
            (info.updated_s, info.behind) = (now_s, 0);
            info.end_pause();
            self.ended.push_back(info);
            if self.ended.len() > ENDED_MAX {
                self.ended.pop_front();
            }
        }
    }
}

impl Agent {
    /// Does what the decider wants for a move.
    pub(super) fn act_on_move(self: &Arc<Agent>, server: &Arc<Server>, id: MigrationId, action: MoveAction) {
        match action {
            MoveAction::Copy { target, epoch } => self.copy(server, id, target, epoch),
            MoveAction::Close => {
                self.change(|state| {
                    let Some(info) = state.moves.present.get_mut(&id) else { return };
                    state.closed.close_for(id, info.slots.clone());
                    (info.closing, info.paused_at) = (Some(state.closed.version), Some(Instant::now()));
                });
                self.set_move_state(id, MoveState::Paused);
            }
            MoveAction::Open => self.open(id),
            MoveAction::End => {
                server.replication.end_copy(&id.to_string());
                self.open(id);
            }
        }
    }

    fn open(&self, id: MigrationId) {
        self.change(|state| {
            state.closed.open_for(id);
            state.moves.present.get_mut(&id).into_iter().for_each(MoveInfo::end_pause);
        });
    }

    fn set_move_state(&self, id: MigrationId, new: MoveState) {
        if let Some(info) = self.state.lock().moves.present.get_mut(&id) {
            (info.state, info.updated_s) = (new, clock::unix_ms() / 1000);
        }
    }

    fn copy(self: &Arc<Agent>, server: &Arc<Server>, id: MigrationId, target: NodeId, epoch: u64) {
        let view = self.snapshot();
        let Some(entry) = view.migrations.get(&id) else { return };
        let address = view.nodes.get(&target).map(|entry| entry.value.address.clone()).unwrap_or_default();
        let is_encrypted = server.core.settings().tls_replication;
        let port = if is_encrypted { address.tls_port } else { address.port };
        let order = CopyOrder {
            id: id.to_string(),
            slots: entry.value.slots.iter().collect(),
            source_epoch: entry.value.source_epoch,
            target_epoch: epoch,
            target: Target { host: address.ip, port },
        };
        let messages = self.messages.clone();
        self.set_move_state(id, MoveState::Connecting);
        log::info!("Move {id}: {} slots are copied to node {target}", entry.value.slots.len());
        server.replication.begin_copy(order, move |news| {
            // The receiver is gone when the process ends.
            let _ = messages.send(Message::Move(id, epoch, news));
        });
    }

    /// A copy has reached a stage. Returns what the decider has to know.
    pub(super) fn take_news(
        self: &Arc<Agent>,
        server: &Arc<Server>,
        id: MigrationId,
        news: News,
    ) -> MoveEvent {
        match news {
            News::Ready => {
                self.set_move_state(id, MoveState::Streaming);
                MoveEvent::Ready
            }
            News::Drained => {
                let info = &mut self.state.lock().moves.present;
                info.get_mut(&id).into_iter().for_each(|info| info.failures_in_a_row = 0);
                MoveEvent::Drained
            }
            News::Failed(reason) => {
                log::warn!("Move {id}: the copy has failed, and begins anew: {reason}");
                server.replication.end_copy(&id.to_string());
                let mut state = self.state.lock();
                let mut is_last = false;
                if let Some(info) = state.moves.present.get_mut(&id) {
                    (info.message, info.updated_s) = (reason, clock::unix_ms() / 1000);
                    info.failures += 1;
                    info.failures_in_a_row += 1;
                    info.state = MoveState::Connecting;
                    is_last = info.failures_in_a_row >= FAILURES_MAX;
                }
                drop(state);
                if is_last {
                    log::warn!("Move {id} is given up: its copy has failed {FAILURES_MAX} times");
                    let guards = vec![self.snapshot().unchanged(Key::Migration(id))];
                    let changes = vec![Change::Delete(Key::Migration(id))];
                    self.send(Transaction { guards, changes }, false);
                }
                MoveEvent::Failed
            }
        }
    }

    /// The closed slots of this version are in force: the copies of their moves learn of it.
    pub(super) fn close_copies(&self, server: &Server) {
        let mut state = self.state.lock();
        let in_force = state.published.1;
        let closed = state.moves.present.values_mut().filter_map(|info| {
            let version = info.closing.take_if(|version| *version <= in_force);
            version.map(|_| info.id)
        });
        let closed: Vec<MigrationId> = closed.collect();
        drop(state);
        closed.iter().for_each(|id| server.replication.close_copy(&id.to_string()));
    }

    /// The moves of this node, those that go on first.
    pub(in crate::cluster) fn moves(&self, server: &Server) -> Vec<MoveInfo> {
        let state = self.state.lock();
        let mut all: Vec<MoveInfo> =
            state.moves.present.values().chain(state.moves.ended.iter().rev()).cloned().collect();
        drop(state);
        for info in all.iter_mut().filter(|info| info.is_export && !info.state.has_ended()) {
            let Some(status) = server.replication.copy_status(&info.id.to_string()) else { continue };
            info.behind = status.behind;
            if info.state == MoveState::Connecting && status.acked > 0 {
                info.state = if status.is_walked { MoveState::Streaming } else { MoveState::Snapshotting };
            }
        }
        all
    }

    /// Removes the keys of slots that this shard does not own: a move has left them here, or this node was a
    /// replica of another shard.
    pub(super) fn clear_leftover(self: &Arc<Agent>, server: &Arc<Server>, is_clearing: &Arc<AtomicBool>) {
        let Some(cluster) = &server.cluster else { return };
        let view = cluster.view();
        let leftover = view.leftover();
        if leftover.is_empty() || !view.is_primary || server.is_fenced() || is_clearing.swap(true, AcqRel) {
            return;
        }
        let (agent, on_thread, done) = (self.clone(), server.clone(), is_clearing.clone());
        let (slots, of_thread) = (leftover.iter().collect(), server.clone());
        let wanted = leftover.clone();
        // A view is judged once.
        let judged = Mutex::new((view, true));
        let may_go_on = move || {
            let Some(view) = of_thread.cluster.as_ref().map(|cluster| cluster.view()) else { return false };
            let mut judged = judged.lock();
            if !Arc::ptr_eq(&judged.0, &view) {
                let is_wanted = view.is_primary && view.leftover().includes(&wanted);
                *judged = (view, is_wanted);
            }
            judged.1 && !of_thread.is_fenced()
        };
        let begun = server.replication.clear_slots(slots, may_go_on, move |is_clear| {
            if is_clear {
                log::info!("The former keys of {} slots are removed", leftover.len());
                if let Err(reason) = operator::commit_quietly(&agent, &Operation::Cleared(leftover)) {
                    log::info!("The map still says that keys of moved slots are here: {reason}");
                }
            }
            drop(on_thread);
            done.store(false, Release);
        });
        if !begun {
            is_clearing.store(false, Release);
        }
    }
}
