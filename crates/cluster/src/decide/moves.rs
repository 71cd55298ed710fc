//! Moves of slots, from the side of the source's primary, which alone decides.
//!
//! The target copies the slots and the writes to them, and its in-sync members have the copy. Then the source
//! closes the slots, waits until the target has all, and gives the slots away by one transaction. Its guards
//! are that both shards and the move are as in the view, with the epochs in which the copy was made: a copy
//! that a fail-over of the target may have lost does not count. Until the fate of the transaction is known,
//! the slots remain closed.

use super::{Action, Decider, MoveAction, MoveEvent};
use crate::id::{MigrationId, NodeId};
use crate::map::Shard;
use crate::snapshot::{Change, Key, Migration, Transaction, Versioned};

/// The state of a move whose source is this node.
#[derive(Debug)]
pub(super) struct Move {
    target_epoch: u64,
    stage: Stage,
    /// The data path has the slots closed.
    is_closed: bool,
    /// A transaction on the move's own key.
    asked: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing before this time.
    Waits(u64),
    Copies,
    /// The slots are closed until this time at least.
    Closes(u64),
    /// The target has everything; the same time.
    Drained(u64),
}

/// A copy that was begun so often has failed.
const RESTARTS_MAX: u32 = 16;

impl Decider {
    /// A source of another epoch is refused, since it may be a deposed primary.
    ///
    /// Whether the node, as the target's primary in this epoch, accepts records of a move. It does not when
    /// its view does not have the move: a record that comes late, of a move that was cancelled, must not undo
    /// a later move of the same slots.
    pub fn accepts_copy(&self, id: MigrationId, source_epoch: u64, epoch: u64) -> bool {
        let (Some((own, _)), Some(entry)) = (self.own_shard(), self.view.migrations.get(&id)) else {
            return false;
        };
        self.leads() == Some(epoch) && entry.value.comes_to(own, source_epoch, epoch)
    }

    pub(super) fn move_event(&mut self, id: MigrationId, epoch: u64, event: MoveEvent) {
        let until = self.now + self.setup.timing.pause;
        let wait = self.now + self.setup.timing.retry;
        let Some(state) = self.moves.get_mut(&id).filter(|state| state.target_epoch == epoch) else { return };
        let closes = self.protections.close;
        match (event, state.stage) {
            (MoveEvent::Ready, Stage::Copies) => {
                (state.stage, state.is_closed) = (Stage::Closes(until), closes);
                if closes {
                    self.actions.push(Action::Move(id, MoveAction::Close));
                }
            }
            (MoveEvent::Drained, Stage::Closes(until)) => state.stage = Stage::Drained(until),
            (MoveEvent::Failed, Stage::Copies | Stage::Closes(_)) => state.stage = Stage::Waits(wait),
            _ => {}
        }
    }

    pub(super) fn work_on_moves(&mut self) {
        let Some((own, shard)) = self.own_shard() else { return };
        let mine = |entry: &Versioned<Migration>| entry.value.source == own;
        let view = self.view.clone();
        let moves = view.migrations.iter().filter(|(_, entry)| mine(entry));
        self.end_cancelled();
        moves.for_each(|(id, entry)| self.work_on_move(*id, entry, &shard));
    }

    fn work_on_move(&mut self, id: MigrationId, entry: &Versioned<Migration>, shard: &Shard) {
        let target = self.view.shards.get(&entry.value.target).map(|entry| entry.value.clone());
        let Some(target) = target.filter(|_| shard.slots.includes(&entry.value.slots)) else {
            return self.drop_move(id, "the map does not allow it any more");
        };
        if (entry.value.source_epoch, entry.value.target_epoch) != (shard.epoch, target.epoch) {
            return self.restart(id, entry, shard.epoch, target.epoch);
        }
        let begin = Move { target_epoch: target.epoch, stage: Stage::Waits(0), is_closed: false, asked: 0 };
        let state = self.moves.entry(id).or_insert(begin);
        if state.target_epoch != target.epoch {
            (state.target_epoch, state.stage) = (target.epoch, Stage::Waits(0));
        }
        match state.stage {
            Stage::Waits(until) if self.now >= until => self.copy(id, target.primary, target.epoch),
            Stage::Drained(until) if self.now < until => self.switch(id, &entry.value),
            Stage::Closes(until) | Stage::Drained(until) if self.now >= until => self.give_up(id),
            _ => {}
        }
        self.reopen(id);
    }

    fn copy(&mut self, id: MigrationId, target: Option<NodeId>, epoch: u64) {
        // The slots may still be closed for an older transaction: then no copy begins.
        let Some(target) = target.filter(|_| !self.proposals.switch(id)) else { return };
        self.reopen(id);
        if let Some(state) = self.moves.get_mut(&id) {
            state.stage = Stage::Copies;
            self.actions.push(Action::Move(id, MoveAction::Copy { target, epoch }));
        }
    }

    /// Gives the slots to the target.
    fn switch(&mut self, id: MigrationId, migration: &Migration) {
        if self.proposals.switch(id) {
            return;
        }
        let target = Key::Shard(migration.target);
        let Some(mut changed) =
            self.view.shards.get(&migration.target).map(|entry| Shard::clone(&entry.value))
        else {
            return;
        };
        changed.slots = changed.slots.union(&migration.slots);
        changed.leftover = changed.leftover.minus(&migration.slots);
        let mut guards = vec![self.view.unchanged(target), self.view.unchanged(Key::Migration(id))];
        guards.retain(|_| self.protections.move_guard);
        let changes = vec![Change::Shard(migration.target, changed), Change::Delete(Key::Migration(id))];
        let slots = migration.slots.clone();
        let leave = |shard: &mut Shard| {
            shard.slots = shard.slots.minus(&slots);
            shard.leftover = shard.leftover.union(&slots);
        };
        if self.propose_with(guards, changes, Some(id), leave) {
            self.log(format!("Move {id}: asking for the switch of {} slots", slots.len()));
        }
    }

    /// The pause is over: the slots are opened when no switch can be made any more.
    fn give_up(&mut self, id: MigrationId) {
        let wait = Stage::Waits(self.now + self.setup.timing.retry);
        if let Some(state) = self.moves.get_mut(&id) {
            state.stage = wait;
        }
    }

    /// Opens the slots of a move that waits, unless a switch may yet be made.
    fn reopen(&mut self, id: MigrationId) {
        let may_switch = self.proposals.switch(id);
        let Some(state) = self.moves.get_mut(&id) else { return };
        if matches!(state.stage, Stage::Waits(_)) && state.is_closed && !may_switch {
            state.is_closed = false;
            self.actions.push(Action::Move(id, MoveAction::Open));
        }
    }

    /// Begins the copy anew, after a change of the epoch of either shard.
    fn restart(
        &mut self,
        id: MigrationId,
        entry: &Versioned<Migration>,
        source_epoch: u64,
        target_epoch: u64,
    ) {
        if entry.value.restarts >= RESTARTS_MAX {
            return self.drop_move(id, "it began anew too often");
        }
        let restarts = entry.value.restarts + 1;
        let changed = Migration { source_epoch, target_epoch, restarts, ..Migration::clone(&entry.value) };
        self.change_move(id, Change::Migration(id, changed));
    }

    fn drop_move(&mut self, id: MigrationId, reason: &str) {
        if self.change_move(id, Change::Delete(Key::Migration(id))) {
            self.log(format!("Move {id} ends: {reason}"));
        }
    }

    /// Changes the move's key; the guard is the node's right to do so.
    fn change_move(&mut self, id: MigrationId, change: Change) -> bool {
        let (now, retry) = (self.now, self.setup.timing.rank.max(1));
        let idle = Move { target_epoch: 0, stage: Stage::Waits(0), is_closed: false, asked: 0 };
        let state = self.moves.entry(id).or_insert(idle);
        if state.asked != 0 && now < state.asked + retry {
            return false;
        }
        (state.asked, state.stage) = (now.max(1), Stage::Waits(0));
        let Some(own) = self.own_shard().map(|(own, _)| own) else { return false };
        let guards = vec![self.view.unchanged(Key::Migration(id)), self.view.unchanged(Key::Shard(own))];
        self.submit(Transaction { guards, changes: vec![change] });
        self.reopen(id);
        true
    }

    /// Ends moves that are not in the map any more.
    fn end_cancelled(&mut self) {
        let ended: Vec<MigrationId> = self
            .moves
            .keys()
            .filter(|id| !self.view.migrations.contains_key(id) && !self.proposals.switch(**id))
            .copied()
            .collect();
        ended.into_iter().for_each(|id| self.end_move(id));
    }

    fn end_move(&mut self, id: MigrationId) {
        if self.moves.remove(&id).is_some() {
            self.actions.push(Action::Move(id, MoveAction::End));
        }
    }

    /// The node begins or ends to lead.
    pub(super) fn end_moves(&mut self) {
        let all: Vec<MigrationId> = self.moves.keys().copied().collect();
        all.into_iter().for_each(|id| self.end_move(id));
    }
}
