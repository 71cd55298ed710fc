//! The map in a store that several nodes share: etcd.
//!
//! | file | |
//! |---|---|
//! | `agent.rs` | the thread `cluster`: feeds the decider of crate `cluster`, and carries out its actions |
//! | `publisher.rs` | the thread `cluster-map`: makes maps of the store the server's map |
//! | `data_path.rs` | the role of this node in replication, and the acknowledgements of replicas |
//! | `operator.rs` | requests of operators as transactions |
//! | `moves.rs` | moves of slots |
//! | `relay.rs` | messages of PUBLISH for clients of other nodes |
//! | `connect.rs` | the store that the settings name |
//!
//! Publishing waits for the commands that run, which may be long. So it has a thread of its own: renewals of
//! the lease do not wait for it.

mod agent;
mod connect;
mod data_path;
mod moves;
mod operator;
mod publisher;
mod relay;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use evenkeel_cluster::store::{Request, Store, StoreEvent};
use evenkeel_cluster::{
    Address, Event, Guard, MigrationId, NodeId, Outcome, ShardId, SlotRanges, Snapshot, Transaction,
};
use evenkeel_replication::moves::News;
use parking_lot::{Condvar, Mutex};

use data_path::Stance;
use moves::MoveLog;

pub(super) use agent::start;
pub(super) use connect::check;
pub(crate) use moves::{MoveInfo, MoveState};
pub(super) use operator::change;
pub(crate) use relay::RelayStats;

/// The first number of transactions that are not the decider's.
const NOT_OF_THE_DECIDER: u64 = 1 << 63;

/// The thread of a node that keeps its place in the store; see the module's text.
pub(crate) struct Agent {
    pub(super) me: NodeId,
    store: Box<dyn Store>,
    messages: Sender<Message>,
    state: Mutex<State>,
    changed: Condvar,
}

/// What reaches the agent's thread.
enum Message {
    Store(StoreEvent),
    Decider(Event),
    /// The map of this revision is in force, and so is the stance of this version.
    Published(u64, u64),
    /// This node is about to drop its data, and the next data have this number. The sender waits.
    DataReset {
        incarnation: u64,
        done: Sender<()>,
    },
    /// A copy of slots to a target of this epoch has reached a stage.
    Move(MigrationId, u64, News),
    /// The process does not end after all.
    Stay,
}

/// What the threads share. Each change notifies `Agent::changed`.
struct State {
    /// The newest view of the store.
    snapshot: Arc<Snapshot>,
    /// Slots that this node owns and does not serve: they are about to leave.
    closed: Closed,
    /// What the decider wants of this node, and the number of its changes.
    stance: Stance,
    stance_version: u64,
    /// The revision of the map in force, and the version of the closed slots.
    published: (u64, u64),
    /// The version of the stance in force.
    stands: u64,
    /// This node's address; `None`: it is not known yet.
    address: Option<Address>,
    /// The field `cluster_store` of INFO: `ok`, or the store's error.
    health: String,
    last_number: u64,
    /// By number: the outcomes of transactions for which a thread of an operator's command waits.
    answers: BTreeMap<u64, Option<Outcome>>,
    /// The process has given its lease back.
    has_ended: bool,
    moves: MoveLog,
}

/// See [`State::closed`].
#[derive(Default)]
struct Closed {
    /// Slots that an operator gives away: their clients get an error.
    slots: SlotRanges,
    /// Slots of moves that are about to end: their clients wait.
    of_moves: BTreeMap<MigrationId, SlotRanges>,
    version: u64,
    /// The slots open again when this shard is not any more as it was at this revision: a transaction may
    /// yet be made until then.
    until_changed: Option<(ShardId, u64)>,
}

impl Closed {
    fn set(&mut self, slots: SlotRanges) {
        (self.slots, self.until_changed) = (slots, None);
        self.version += 1;
    }

    fn close_for(&mut self, id: MigrationId, slots: SlotRanges) {
        self.of_moves.insert(id, slots);
        self.version += 1;
    }

    fn open_for(&mut self, id: MigrationId) {
        self.version += u64::from(self.of_moves.remove(&id).is_some());
    }

    /// The slots of all moves.
    fn paused(&self) -> SlotRanges {
        self.of_moves.values().fold(SlotRanges::default(), |all, slots| all.union(slots))
    }
}

impl State {
    /// Opens slots whose fate the newest view shows. The publisher takes both together.
    fn open_if_settled(&mut self) {
        let is_settled = self.closed.until_changed.is_some_and(|(shard, revision)| {
            self.snapshot.revision_of(evenkeel_cluster::Key::Shard(shard)) != revision
        });
        if is_settled {
            self.closed.set(SlotRanges::default());
        }
    }
}

impl Agent {
    /// Returns the field `cluster_store` of INFO: `ok`, or the store's error, in a line.
    pub(crate) fn health(&self) -> String {
        self.state.lock().health.clone()
    }

    fn set_health(&self, health: &str) {
        self.state.lock().health = health.split_whitespace().collect::<Vec<_>>().join(" ");
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        self.state.lock().snapshot.clone()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    /// Waits until a function returns a value. `None`: the time is up.
    fn wait<T>(&self, time: Duration, mut pick: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let end = Instant::now() + time;
        let mut state = self.state.lock();
        loop {
            if let Some(found) = pick(&mut state) {
                return Some(found);
            }
            if self.changed.wait_until(&mut state, end).timed_out() {
                return pick(&mut state);
            }
        }
    }

    /// Sends a transaction that is not the decider's, and returns its number.
    fn send(&self, transaction: Transaction, awaits: bool) -> u64 {
        let mut state = self.state.lock();
        state.last_number += 1;
        let number = NOT_OF_THE_DECIDER + state.last_number;
        if awaits {
            state.answers.insert(number, None);
        }
        drop(state);
        self.store.send(Request::Submit(number, transaction));
        number
    }

    fn answered(&self, number: u64, outcome: Outcome) {
        self.change(|state| {
            if let Some(answer) = state.answers.get_mut(&number) {
                *answer = Some(outcome);
            }
        });
    }

    /// Sends a transaction and waits for its end.
    fn submit(&self, transaction: Transaction, time: Duration) -> Outcome {
        let number = self.send(transaction, true);
        let outcome = self.wait(time, |state| state.answers.get(&number).copied().flatten());
        self.state.lock().answers.remove(&number);
        outcome.unwrap_or(Outcome::Unknown)
    }

    /// Sends a transaction that changes nothing, and that is made if a shard is as it was at a revision:
    /// either this one is made, or that one whose fate is unknown.
    fn settle(&self, shard: ShardId, revision: u64) {
        let snapshot = self.snapshot();
        let key = evenkeel_cluster::Key::Shard(shard);
        if let Some(entry) = snapshot.shards.get(&shard).filter(|_| snapshot.revision_of(key) == revision) {
            let same = evenkeel_cluster::Change::Shard(shard, entry.value.as_ref().clone());
            let guards = vec![Guard::Unchanged(key, revision)];
            self.send(Transaction { guards, changes: vec![same] }, false);
        }
    }
}
