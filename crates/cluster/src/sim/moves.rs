//! The data path of moving slots: a copy of the slots, and then the writes to them, acknowledged by the
//! target when its own in-sync members have them.

use super::{Message, Record, World, place_of};
use crate::decide::{self, MoveAction, MoveEvent};
use crate::id::MigrationId;

/// The source's side.
pub(super) struct Copying {
    session: u64,
    source_epoch: u64,
    target: usize,
    epoch: u64,
    slots: u64,
    sent: usize,
    confirmed: usize,
    is_ready: bool,
    is_closed: bool,
    /// The time of the last progress.
    since: u64,
}

/// The connection of a copy without progress breaks after so many milliseconds.
const COPY_TIMEOUT: u64 = 1_000;

/// The target's side.
pub(super) struct Import {
    session: u64,
    source: usize,
    count: usize,
    /// The length of the target's log with all of these.
    length: usize,
    confirmed: usize,
}

/// Records that may be under way when the slots are closed.
const DISTANCE: usize = 3;

impl World {
    pub(super) fn act_on_move(&mut self, at: usize, id: MigrationId, action: MoveAction) {
        match action {
            MoveAction::Copy { target, epoch } => self.begin_copy(at, id, place_of(target), epoch),
            MoveAction::Close => self.close(at, id),
            MoveAction::Open => drop(self.nodes[at].closed.remove(&id)),
            MoveAction::End => {
                self.nodes[at].closed.remove(&id);
                self.nodes[at].copies.remove(&id);
            }
        }
    }

    fn begin_copy(&mut self, at: usize, id: MigrationId, target: usize, epoch: u64) {
        let Some(entry) = self.store.view.migrations.get(&id) else { return };
        let slots = entry.value.slots.iter().fold(0u64, |bits, slot| bits | 1 << slot);
        let session = self.number();
        let source_epoch = self.nodes[at].leads.unwrap_or(0);
        let empty = |slot| Record { epoch: 0, slot, write: None, process: 0, is_copy: true };
        let mut records: Vec<Record> = (0..64).filter(|slot| slots & 1 << slot != 0).map(empty).collect();
        records.extend(self.nodes[at].log.iter().filter(|record| slots & 1 << record.slot != 0));
        let copying = Copying {
            session,
            source_epoch,
            target,
            epoch,
            slots,
            sent: records.len(),
            confirmed: 0,
            is_ready: false,
            is_closed: false,
            since: self.now,
        };
        self.nodes[at].copies.insert(id, copying);
        self.send(at, target, Message::Copy { id, session, source_epoch, epoch, at: 0, records });
    }

    fn close(&mut self, at: usize, id: MigrationId) {
        let Some(copying) = self.nodes[at].copies.get_mut(&id) else { return };
        copying.is_closed = true;
        let slots = copying.slots;
        self.nodes[at].closed.insert(id, slots);
        self.report(at, id);
    }

    /// Sends new records of the source's log to the targets of its moves.
    pub(super) fn forward(&mut self, at: usize, start: usize) {
        if self.nodes[at].copies.is_empty() {
            return;
        }
        let new = self.nodes[at].log[start..].to_vec();
        let now = self.now;
        let mut messages = Vec::new();
        for (id, copying) in &mut self.nodes[at].copies {
            let records: Vec<Record> =
                new.iter().filter(|record| copying.slots & 1 << record.slot != 0).copied().collect();
            if !records.is_empty() {
                let (session, epoch, place) = (copying.session, copying.epoch, copying.sent);
                if copying.confirmed == copying.sent {
                    copying.since = now;
                }
                copying.sent += records.len();
                messages.push((
                    copying.target,
                    Message::Copy {
                        id: *id,
                        session,
                        source_epoch: copying.source_epoch,
                        epoch,
                        at: place,
                        records,
                    },
                ));
            }
        }
        messages.into_iter().for_each(|(target, message)| self.send(at, target, message));
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a message")]
    pub(super) fn on_copy(
        &mut self,
        at: usize,
        from: usize,
        id: MigrationId,
        session: u64,
        source_epoch: u64,
        epoch: u64,
        place: usize,
        records: &[Record],
    ) {
        let known = self.nodes[at].imports.get(&id).map(|import| (import.session, import.count));
        let accepts = |decider: &decide::Decider| decider.accepts_copy(id, source_epoch, epoch);
        if !self.nodes[at].decider.as_ref().is_some_and(accepts)
            || known.is_some_and(|(known, _)| session < known)
        {
            return;
        }
        let expected = known.filter(|(known, _)| *known == session).map_or(0, |(_, count)| count);
        if place != expected {
            return;
        }
        let count = place + records.len();
        let length = self.nodes[at].log.len() + records.len();
        let confirmed = if place == 0 { 0 } else { self.nodes[at].imports[&id].confirmed };
        self.nodes[at].imports.insert(id, Import { session, source: from, count, length, confirmed });
        let copies: Vec<Record> = records.iter().map(|record| Record { is_copy: true, ..*record }).collect();
        self.append(at, &copies);
    }

    /// Tells the sources of imports that the in-sync members have them.
    pub(super) fn confirm_imports(&mut self, at: usize) {
        let committed = self.nodes[at].committed;
        let mut messages = Vec::new();
        for (id, import) in &mut self.nodes[at].imports {
            if import.length <= committed && import.confirmed < import.count {
                import.confirmed = import.count;
                let message = Message::Copied { id: *id, session: import.session, count: import.count };
                messages.push((import.source, message));
            }
        }
        messages.into_iter().for_each(|(source, message)| self.send(at, source, message));
    }

    pub(super) fn on_copied(&mut self, at: usize, id: MigrationId, session: u64, count: usize) {
        let Some(copying) = self.nodes[at].copies.get_mut(&id).filter(|copying| copying.session == session)
        else {
            return;
        };
        copying.confirmed = copying.confirmed.max(count);
        copying.since = self.now;
        self.report(at, id);
    }

    /// Breaks the connections of copies that make no progress: a message was lost.
    pub(super) fn check_copies(&mut self, at: usize) {
        let now = self.now;
        let is_late =
            |copying: &Copying| copying.confirmed < copying.sent && now >= copying.since + COPY_TIMEOUT;
        let late: Vec<(MigrationId, u64)> = self.nodes[at]
            .copies
            .iter()
            .filter(|(_, copying)| is_late(copying))
            .map(|(id, copying)| (*id, copying.epoch))
            .collect();
        for (id, epoch) in late {
            self.nodes[at].copies.remove(&id);
            self.decide(at, decide::Event::Move { id, epoch, event: MoveEvent::Failed });
        }
    }

    /// Reports progress to the decider.
    fn report(&mut self, at: usize, id: MigrationId) {
        let Some(copying) = self.nodes[at].copies.get_mut(&id) else { return };
        let (epoch, is_drained) = (copying.epoch, copying.confirmed == copying.sent);
        let is_near = copying.confirmed > 0 && copying.confirmed + DISTANCE >= copying.sent;
        let is_ready = is_near && !copying.is_ready;
        copying.is_ready |= is_near;
        let drained = is_drained && (copying.is_closed || !self.protections.close && copying.is_ready);
        if is_ready {
            self.decide(at, decide::Event::Move { id, epoch, event: MoveEvent::Ready });
        }
        if drained {
            self.decide(at, decide::Event::Move { id, epoch, event: MoveEvent::Drained });
        }
    }
}
