//! Requests of operators as transactions on the map.
//!
//! A request is planned from the newest view, guarded by all that the plan has read, and planned again when
//! a guard does not hold. The reply comes when the change is in force at this node.
//!
//! **Slots are closed before they leave.** When the transaction is made, the next owner serves them, or
//! anybody may take them; this node learns of that later. So it stops serving them first: it publishes a view
//! in which they are closed, and sends the transaction when no earlier command runs any more. A transaction
//! without an answer may yet be made: the slots stay closed until the shard's key has changed. The agent
//! changes it, with the same guard.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use evenkeel_cluster::{
    Address, Change, Key, Node, NodeId, Operation, Outcome, ShardId, SlotRanges, Snapshot, Transaction, plan,
};

use super::super::Cluster;
use super::super::owner::{MapRequest, SlotChange};
use super::{Agent, agent};
use crate::server::Server;

/// The longest time for a request.
const TIME_MAX: Duration = Duration::from_secs(5);

/// The longest time for an answer of the store; its own limit is shorter.
const ANSWER_MAX: Duration = Duration::from_secs(25);

/// The longest wait for the node's entry in the map.
const ENTRY_MAX: Duration = Duration::from_secs(2);

/// The longest wait for a view that has all changes.
const CATCH_UP_MAX: Duration = Duration::from_secs(1);

/// Changes the map by a request. The caller is outside the gate, and may wait. One request at a time.
///
/// # Errors
/// The reason for the client, without a code.
pub(in crate::cluster) fn change(
    server: &Server,
    cluster: &Cluster,
    agent: &Agent,
    request: &MapRequest,
) -> Result<(), String> {
    match request {
        MapRequest::Save => cluster.save_identity(),
        MapRequest::Meet { ip, port } => meet(cluster, agent, ip, *port),
        MapRequest::Reset { hard: Some(_) } => Err("a node with cluster-store keeps its identity: to begin \
                                                    with a new one, stop it, remove cluster-config-file, \
                                                    and start it again"
            .into()),
        // redis-cli sends it to every node, and the first one has done it for all.
        MapRequest::Forget(node) if !agent.snapshot().nodes.contains_key(node) => Ok(()),
        MapRequest::Reset { hard: None } if !agent.snapshot().nodes.contains_key(&agent.me) => Ok(()),
        request => {
            let operation = operation(cluster, request)?;
            let slots = leaving(&agent.snapshot(), agent.me, &operation);
            if slots.is_empty() {
                return commit(agent, &operation).map_err(|failure| failure.reason);
            }
            give_up(server, agent, &operation, slots)
        }
    }
}

fn operation(cluster: &Cluster, request: &MapRequest) -> Result<Operation, String> {
    Ok(match request.clone() {
        MapRequest::AddSlots(slots) => Operation::AddSlots(slots),
        MapRequest::RemoveSlots(slots) => Operation::DelSlots(slots),
        MapRequest::FlushSlots => Operation::FlushSlots,
        MapRequest::SetSlot(slot, SlotChange::Migrating(node)) => Operation::Migrating { slot, node },
        MapRequest::SetSlot(slot, SlotChange::Importing(node)) => Operation::Importing { slot, node },
        MapRequest::SetSlot(slot, SlotChange::Stable) => Operation::Stable { slot },
        MapRequest::SetSlot(slot, SlotChange::Owner(node)) => Operation::Assign { slot, node },
        MapRequest::BumpEpoch => Operation::BumpEpoch,
        MapRequest::SetEpoch(epoch) => Operation::SetConfigEpoch(epoch),
        MapRequest::Forget(node) => Operation::Forget(node),
        MapRequest::Replicate(node) => Operation::Replicate(node),
        MapRequest::Reset { .. } => {
            let shard = ShardId::new(super::super::random_id());
            Operation::Reset { shard, incarnation: cluster.incarnation() }
        }
        MapRequest::Move(id, slots, target) => Operation::Move { id, slots, target },
        MapRequest::CancelMove(id) => Operation::CancelMove(id),
        MapRequest::Save | MapRequest::Meet { .. } => return Err("not a change of the map".into()),
    })
}

/// The slots that leave this node by an operation.
fn leaving(snapshot: &Snapshot, me: NodeId, operation: &Operation) -> SlotRanges {
    let shard = snapshot.nodes.get(&me).map(|entry| entry.value.shard);
    let own = shard.and_then(|id| snapshot.shards.get(&id)).map(|entry| entry.value.slots.clone());
    let own = own.unwrap_or_default();
    match operation {
        Operation::DelSlots(slots) if own.includes(slots) => slots.clone(),
        Operation::FlushSlots => own,
        Operation::Assign { slot, node } if *node != me && own.contains(*slot) => {
            std::iter::once(*slot).collect()
        }
        _ => SlotRanges::default(),
    }
}

/// See the module's text.
fn give_up(server: &Server, agent: &Agent, operation: &Operation, slots: SlotRanges) -> Result<(), String> {
    if agent.state.lock().closed.until_changed.is_some() {
        return Err("slots are about to leave this node already, and the store does not answer".into());
    }
    agent.change(|state| state.closed.set(slots.clone()));
    let version = agent.state.lock().closed.version;
    let is_closed = agent.wait(TIME_MAX, |state| (state.published.1 >= version).then_some(()));
    let has_keys = matches!(operation, Operation::Assign { .. }) && server.has_keys_in(&slots);
    let done = match is_closed {
        None => Err(Failure::of("commands that run for long use these slots")),
        Some(()) if has_keys => Err(Failure::of("this node still holds keys of the slot")),
        Some(()) => commit(agent, operation),
    };
    agent.change(|state| match &done {
        Err(Failure { unsettled: Some(unsettled), .. }) => {
            state.closed.until_changed = Some(*unsettled);
            state.open_if_settled();
        }
        _ => state.closed.set(SlotRanges::default()),
    });
    done.map_err(|failure| failure.reason)
}

/// Why a request was not made.
struct Failure {
    reason: String,
    /// A transaction may yet be made, as long as this shard is as it was at this revision.
    unsettled: Option<(ShardId, u64)>,
}

impl Failure {
    fn of(reason: impl Into<String>) -> Failure {
        Failure { reason: reason.into(), unsettled: None }
    }
}

/// Makes an operation, and waits until it is in force here.
fn commit(agent: &Agent, operation: &Operation) -> Result<(), Failure> {
    let end = Instant::now() + TIME_MAX;
    let (mut is_current, mut was_unknown) = (false, false);
    if !matches!(operation, Operation::Register { .. }) {
        wait_for_entry(agent)?;
    }
    loop {
        let snapshot = agent.snapshot();
        let transaction = match plan(&snapshot, agent.me, operation) {
            Ok(transaction) => transaction,
            Err(_) if !is_current => {
                is_current = true;
                catch_up(agent, &snapshot);
                continue;
            }
            Err(_) if was_unknown && is_made(&snapshot, agent.me, operation) => {
                return in_force(agent, snapshot.revision);
            }
            Err(refusal) => return Err(Failure::of(refusal.strip_prefix("ERR ").unwrap_or(&refusal))),
        };
        if transaction.changes.is_empty() {
            return in_force(agent, snapshot.revision);
        }
        let unsettled = guarded_shard(&snapshot, agent.me, &transaction);
        match agent.submit(transaction, ANSWER_MAX) {
            // The slots stay closed until the view has the change.
            Outcome::Committed(revision) => {
                return in_force(agent, revision).map_err(|failure| Failure { unsettled, ..failure });
            }
            Outcome::Unknown if unsettled.is_some_and(|shard| settle(agent, shard, end)) => {
                was_unknown = true;
            }
            Outcome::Unknown => {
                let reason = format!(
                    "the cluster's store did not answer, and the change may yet be made: {}",
                    agent.health()
                );
                return Err(Failure { reason, unsettled });
            }
            Outcome::Refused if Instant::now() >= end => {
                let reason = match agent.health() {
                    health if health == "ok" => "the map changes too often: try again".into(),
                    health => health,
                };
                return Err(Failure::of(reason));
            }
            Outcome::Refused => {
                // The store refused it without a newer view when it is out of reach.
                let time = Duration::from_millis(200);
                agent.wait(time, |state| (state.snapshot.revision > snapshot.revision).then_some(()));
            }
        }
    }
}

/// Makes an operation of the node itself.
///
/// # Errors
/// The reason why it was not made.
pub(super) fn commit_quietly(agent: &Agent, operation: &Operation) -> Result<(), String> {
    commit(agent, operation).map_err(|failure| failure.reason)
}

/// Waits until a transaction without an answer was made, or never will be, since a shard is not any more as
/// it was at a revision. Returns false at the end of the time.
fn settle(agent: &Agent, (shard, revision): (ShardId, u64), end: Instant) -> bool {
    loop {
        let is_settled = agent.wait(Duration::from_millis(200), |state| {
            (state.snapshot.revision_of(Key::Shard(shard)) != revision).then_some(())
        });
        if is_settled.is_some() || Instant::now() >= end {
            return is_settled.is_some();
        }
        agent.settle(shard, revision);
    }
}

/// Whether a map has the effect of an operation that is refused if it was made before.
fn is_made(snapshot: &Snapshot, me: NodeId, operation: &Operation) -> bool {
    let shard = snapshot.nodes.get(&me).and_then(|node| snapshot.shards.get(&node.value.shard));
    let Some(own) = shard.map(|entry| &entry.value.slots) else { return false };
    match operation {
        Operation::AddSlots(slots) => own.includes(slots),
        Operation::DelSlots(slots) => !own.meets(slots),
        Operation::Forget(node) => !snapshot.nodes.contains_key(node),
        _ => false,
    }
}

/// Waits until the map has this node, which may just have started.
fn wait_for_entry(agent: &Agent) -> Result<(), Failure> {
    let has_me = |state: &mut super::State| state.snapshot.nodes.contains_key(&agent.me).then_some(());
    if agent.wait(ENTRY_MAX, has_me).is_some() {
        return Ok(());
    }
    Err(Failure::of(match agent.snapshot().revision {
        0 => format!("the cluster's store has shown no map yet: {}", agent.health()),
        _ => format!(
            "this node is not in the map; after CLUSTER FORGET, CLUSTER MEET brings it \
             back ({})",
            agent.health()
        ),
    }))
}

/// Waits for a view that has all changes which were made before this call: a request may follow from a change
/// at another node, which this node does not know yet. The node writes its entry again, unchanged, and waits
/// for the view that shows that.
fn catch_up(agent: &Agent, snapshot: &Snapshot) {
    let Some(node) = snapshot.nodes.get(&agent.me) else { return };
    let transaction = Transaction {
        guards: vec![snapshot.unchanged(Key::Node(agent.me))],
        changes: vec![Change::Node(agent.me, Node::clone(&node.value))],
    };
    let revision = match agent.submit(transaction, ANSWER_MAX) {
        Outcome::Committed(revision) => revision,
        Outcome::Refused | Outcome::Unknown => snapshot.revision + 1,
    };
    agent.wait(CATCH_UP_MAX, |state| (state.snapshot.revision >= revision).then_some(()));
}

/// The node's shard, with the revision that a transaction expects.
fn guarded_shard(snapshot: &Snapshot, me: NodeId, transaction: &Transaction) -> Option<(ShardId, u64)> {
    let id = snapshot.nodes.get(&me)?.value.shard;
    let guard = snapshot.unchanged(Key::Shard(id));
    transaction.guards.contains(&guard).then(|| (id, snapshot.revision_of(Key::Shard(id))))
}

fn in_force(agent: &Agent, revision: u64) -> Result<(), Failure> {
    let is_there = agent.wait(TIME_MAX, |state| (state.published.0 >= revision).then_some(()));
    is_there.ok_or_else(|| Failure::of("the change is made, but not in force at this node yet"))
}

/// CLUSTER MEET: nodes with the same store and the same name know each other by that. A node that was
/// forgotten enters the map again.
fn meet(cluster: &Cluster, agent: &Agent, ip: &str, port: u16) -> Result<(), String> {
    if agent.snapshot().revision > 0 && !agent.snapshot().nodes.contains_key(&agent.me) {
        let address = agent.state.lock().address.clone().ok_or("this node's address is not known yet")?;
        let identity = cluster.identity().ok_or("this node has no identity in a store")?;
        let entry = agent::entry(&agent.snapshot(), &identity, address);
        commit(agent, &entry).map_err(|failure| failure.reason)?;
    }
    let is_met = agent.wait(TIME_MAX, |state| {
        let is_there = |node: &Node| has_address(&node.address, ip, port);
        state.snapshot.nodes.values().any(|entry| is_there(&entry.value)).then_some(state.snapshot.revision)
    });
    let Some(revision) = is_met else {
        return Err(format!(
            "no node in the map has the address {ip}:{port}: a node joins when it starts with the same \
             cluster-store and cluster-name, with the address that cluster-announce-ip says"
        ));
    };
    in_force(agent, revision).map_err(|failure| failure.reason)
}

fn has_address(address: &Address, ip: &str, port: u16) -> bool {
    let number = |text: &str| text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    let is_host = address.ip == ip
        || !address.hostname.is_empty() && address.hostname == ip
        || number(ip).is_some() && number(ip) == number(&address.ip);
    is_host && (address.port == port || address.tls_port == port)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evenkeel_cluster::Shard;

    use super::*;

    #[test]
    fn an_address_has_several_forms() {
        let address = Address { ip: "10.0.0.1".into(), port: 7, hostname: "a".into(), ..Address::default() };
        assert!(has_address(&address, "10.0.0.1", 7) && has_address(&address, "a", 7));
        assert!(has_address(&address, "::ffff:10.0.0.1", 7));
        assert!(!has_address(&address, "10.0.0.1", 8) && !has_address(&address, "", 7));
    }

    #[test]
    fn slots_that_leave_are_the_nodes_own() {
        let (me, other, shard) = (NodeId::new([1; 20]), NodeId::new([2; 20]), ShardId::new([1; 20]));
        let slots = |range: std::ops::RangeInclusive<u16>| range.collect::<SlotRanges>();
        let mut view = Snapshot::default();
        let node = Node { address: Address::default(), shard, is_alive: false };
        view.apply(1, Change::Node(me, node));
        view.apply(2, Change::Shard(shard, Shard { slots: slots(0..=9), ..Shard::default() }));
        let view = Arc::new(view);
        let left = |operation| leaving(&view, me, &operation);
        assert_eq!(left(Operation::DelSlots(slots(1..=2))), slots(1..=2));
        assert_eq!(left(Operation::FlushSlots), slots(0..=9));
        assert_eq!(left(Operation::Assign { slot: 3, node: other }), slots(3..=3));
        assert!(left(Operation::Assign { slot: 3, node: me }).is_empty());
        assert!(left(Operation::Assign { slot: 30, node: other }).is_empty());
        assert!(left(Operation::AddSlots(slots(50..=60))).is_empty());
        let made = |operation| is_made(&view, me, &operation);
        assert!(made(Operation::AddSlots(slots(1..=2))) && !made(Operation::AddSlots(slots(9..=10))));
        assert!(made(Operation::DelSlots(slots(10..=11))) && !made(Operation::DelSlots(slots(9..=10))));
        assert!(made(Operation::Forget(other)) && !made(Operation::Forget(me)));
    }
}
