//! Moves of slots to another node of a cluster, in the data path: the source copies the keys of the slots,
//! and the writes to them, to the target.
//!
//! | file | |
//! |---|---|
//! | `source.rs` | a copy at the source: its threads, its stages, when the target has everything |
//! | `lane.rs` | a connection of a copy at the source |
//! | `route.rs` | records of the journal, to the connections by their slots |
//! | `brake.rs` | slows writers at the source that are faster than the target |
//! | `import.rs` | the connections at the target, and the commands that come |
//!
//! **A copy** goes over several connections, its lanes. Each lane has the slots of a residue: the order of
//! commands matters within a slot only. A lane sends its part of the snapshot, as commands, and then the
//! records that writers have made since. A reader of the journal joins at the moment of the snapshot, with
//! all locks held. Its records wait in memory, and then in a file, until the lane has sent its part of the
//! snapshot.
//!
//! **The target** runs the commands as a replica runs those of its primary: no key expires by its clock,
//! and no condition refuses a command. It acknowledges bytes whose effects its in-sync members have. Bytes
//! of a copy that the map does not have any more are not run: each batch begins with that check, inside
//! the gate.
//!
//! **When the slots are closed** at the source, no command of theirs runs any more. The lanes then have a
//! last command behind everything that was written. When it is acknowledged, the target has all data.

mod brake;
mod import;
mod lane;
mod route;
mod source;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

use evenkeel_store::{Keyspace, Place, SlotSet, ThreadContext};
use parking_lot::Mutex;

use crate::Replication;
use crate::target::Target;
pub use import::{Admission, IMPORTS_MAX, Imports, Ticket};
use source::Outgoing;
pub use source::{CopyStatus, News};

/// Slots that a source copies to a target.
#[derive(Clone, Debug)]
pub struct CopyOrder {
    /// The identity of the move.
    pub id: String,
    pub slots: SlotSet,
    pub source_epoch: u64,
    pub target_epoch: u64,
    /// The primary of the target.
    pub target: Target,
}

/// The copies of slots that this server sends as the source of moves, and its imports as the target of moves.
#[derive(Default)]
pub struct Moves {
    outgoing: Mutex<BTreeMap<String, Arc<Outgoing>>>,
    /// A copy goes on: another one waits for its end.
    is_copying: AtomicBool,
    /// Writers of the slots that leave wait.
    holds_writers: AtomicBool,
    pub imports: Imports,
}

impl Moves {
    /// Whether writers of the slots that leave this server wait, so that a target catches up.
    #[inline]
    pub fn holds_writers(&self) -> bool {
        self.holds_writers.load(Relaxed)
    }
}

impl Replication {
    /// Begins a copy, in place of an earlier one for the same move. `report` is called with the stages.
    pub fn begin_copy(
        self: &Arc<Replication>,
        order: CopyOrder,
        report: impl Fn(News) + Send + Sync + 'static,
    ) {
        let copy = Arc::new(Outgoing::new(order, Box::new(report)));
        let before = self.moves.outgoing.lock().insert(copy.order.id.clone(), copy.clone());
        before.iter().for_each(|before| before.end(self));
        source::start(self, copy);
    }

    /// The slots of a move are closed: no command of theirs runs any more.
    pub fn close_copy(&self, id: &str) {
        if let Some(copy) = self.moves.outgoing.lock().get(id) {
            copy.close(self.core.keyspace.journal.last());
        }
    }

    /// Ends a copy, complete or not.
    pub fn end_copy(&self, id: &str) {
        let copy = self.moves.outgoing.lock().remove(id);
        copy.iter().for_each(|copy| copy.end(self));
    }

    /// The progress of a copy.
    pub fn copy_status(&self, id: &str) -> Option<CopyStatus> {
        self.moves.outgoing.lock().get(id).map(|copy| copy.status())
    }
}

/// Keys that are removed at once from a slot that is cleared: some 30 us under the slot's lock.
const CLEARED_AT_ONCE: usize = 128;

/// Empty slots that are passed between two checks.
const PASSED_AT_ONCE: usize = 256;

/// Removes all keys of some slots, in slices, while `may_go_on` says so inside the gate. Returns whether
/// all are removed. `rest` is called between two slices, outside the gate.
fn clear(
    keyspace: &Keyspace,
    ctx: &mut ThreadContext,
    slots: &SlotSet,
    may_go_on: impl Fn() -> bool,
    mut rest: impl FnMut(),
) -> bool {
    let mut places = (0..keyspace.databases() as u32)
        .flat_map(|db| (0..evenkeel_store::SLOTS as u16).map(move |slot| Place::new(db, slot)))
        .filter(|place| slots.contains(place.slot()))
        .peekable();
    while places.peek().is_some() {
        keyspace.enter(ctx);
        let may = may_go_on();
        for _ in 0..PASSED_AT_ONCE {
            let Some(place) = places.peek().filter(|_| may) else { break };
            let (db, slot) = (place.db(), place.slot() as u16);
            if keyspace.hold_none(ctx).clear_some(db, slot, CLEARED_AT_ONCE) > 0 {
                break;
            }
            places.next();
        }
        keyspace.leave(ctx);
        if !may {
            return false;
        }
        rest();
    }
    true
}
