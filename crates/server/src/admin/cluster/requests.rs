//! Subcommands of CLUSTER that change the map, or need a map that several nodes share.
//!
//! A change is written to the map's file and comes into force on a thread of its own: see
//! [`Server::change_map`]. It cannot wait for that inside a script, and is refused there. EXEC of
//! [`IN_ORDER`] commands alone makes their changes one after another on that thread; in other transactions
//! they are refused.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use evenkeel_cluster::{FailoverMode, NodeId, ShardId, SlotRanges};
use evenkeel_resp::number::parse_i64;

use super::super::ServerCall;
use super::lists::named;
use super::slots::{len_of, slot_at};
use super::{disabled, view};
use crate::cluster::owner::{MapRequest, SlotChange};
use crate::cluster::random_id;
use crate::server::Server;
use evenkeel_client::session::Queued;
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow, Mode, Work};
use evenkeel_command::table::table;

/// The longest wait of a reply for the removal of a former replica's keys.
const EMPTY_MAX: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Changes the map; the reply is OK.
fn change(call: &mut ServerCall<'_, '_>, request: MapRequest) -> Done {
    may_change(call)?;
    let server = call.server.clone();
    call.offload_io(Work::waits_for_disk(move || server.change_map(&request).map_err(failed)))
}

/// Makes a replica the primary of a shard of its own. The reply comes when the keys of its former shard are
/// removed, or after [`EMPTY_MAX`].
fn detach(call: &mut ServerCall<'_, '_>) -> Done {
    may_change(call)?;
    let server = call.server.clone();
    call.offload_io(Work::waits_for_disk(move || {
        server.change_map(&MapRequest::Reset { hard: None }).map_err(failed)?;
        let until = Instant::now() + EMPTY_MAX;
        let view = || server.cluster.as_ref().map(|cluster| cluster.view());
        let is_empty = || view().is_none_or(|view| view.is_primary && view.leftover().is_empty());
        while !is_empty() && Instant::now() < until && !server.core.stopping.load(Acquire) {
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }))
}

pub(super) fn may_change(call: &ServerCall<'_, '_>) -> Result<(), Error> {
    view(call)?;
    if !matches!(call.base.mode, Mode::Direct | Mode::Collected) {
        return Err(Error::text(
            "ERR the map of the cluster is not changed in a script, or in a transaction with other commands",
        ));
    }
    Ok(())
}

/// Commands that can change the map in a transaction, as `redis-cli --cluster fix` sends them.
const IN_ORDER: [&str; 8] = [
    "CLUSTER|ADDSLOTS",
    "CLUSTER|ADDSLOTSRANGE",
    "CLUSTER|BUMPEPOCH",
    "CLUSTER|DELSLOTS",
    "CLUSTER|DELSLOTSRANGE",
    "CLUSTER|SAVECONFIG",
    "CLUSTER|SET-CONFIG-EPOCH",
    "CLUSTER|SETSLOT",
];

/// Whether a transaction consists of [`IN_ORDER`] commands.
pub(crate) fn change_the_map(queue: &[Queued]) -> bool {
    let changes = |queued: &Queued| IN_ORDER.contains(&table().row(queued.id).name);
    !queue.is_empty() && queue.iter().all(changes)
}

pub(super) fn failed(reason: String) -> Error {
    Error::text(format!("ERR {reason}"))
}

/// Checks that several nodes share the map.
pub(super) fn shared(call: &ServerCall<'_, '_>) -> Result<(), Error> {
    if call.server.cluster.as_ref().is_some_and(|cluster| cluster.is_shared()) {
        return Ok(());
    }
    let name = table().row(call.base.id).name.replace('|', " ");
    Err(Error::text(format!("ERR {name} needs cluster-store: this node's map is a file of its own")))
}

/// Parses single slots, from argument 2 on.
fn single_slots(call: &ServerCall<'_, '_>) -> Result<SlotRanges, Error> {
    let ranges: Result<Vec<_>, Error> =
        (2..call.base.args.len()).map(|index| slot_at(call, index).map(|slot| (slot, slot))).collect();
    distinct(ranges?)
}

/// Parses pairs of slots, from argument 2 on.
fn slot_ranges(call: &ServerCall<'_, '_>) -> Result<SlotRanges, Error> {
    if call.base.args.len() % 2 == 1 {
        return Err(Error::Arity(table().row(call.base.id).name));
    }
    let mut ranges = Vec::new();
    for index in (2..call.base.args.len()).step_by(2) {
        let (first, last) = (slot_at(call, index)?, slot_at(call, index + 1)?);
        if first > last {
            let text = format!("ERR start slot number {first} is greater than end slot number {last}");
            return Err(Error::text(text));
        }
        ranges.push((first, last));
    }
    distinct(ranges)
}

fn distinct(ranges: Vec<(u16, u16)>) -> Result<SlotRanges, Error> {
    let mut slots = BTreeSet::new();
    for slot in ranges.into_iter().flat_map(|(first, last)| first..=last) {
        if !slots.insert(slot) {
            return Err(Error::text(format!("ERR Slot {slot} specified multiple times")));
        }
    }
    Ok(slots.into_iter().collect())
}

/// CLUSTER ADDSLOTS slot [slot ...]
pub(super) fn add_slots(call: &mut ServerCall<'_, '_>) -> Done {
    view(call)?;
    let slots = single_slots(call)?;
    change(call, MapRequest::AddSlots(slots))
}

/// CLUSTER ADDSLOTSRANGE first last [first last ...]
pub(super) fn add_ranges(call: &mut ServerCall<'_, '_>) -> Done {
    view(call)?;
    let slots = slot_ranges(call)?;
    change(call, MapRequest::AddSlots(slots))
}

/// CLUSTER DELSLOTS slot [slot ...]
pub(super) fn remove_slots(call: &mut ServerCall<'_, '_>) -> Done {
    view(call)?;
    let slots = single_slots(call)?;
    change(call, MapRequest::RemoveSlots(slots))
}

/// CLUSTER DELSLOTSRANGE first last [first last ...]
pub(super) fn remove_ranges(call: &mut ServerCall<'_, '_>) -> Done {
    view(call)?;
    let slots = slot_ranges(call)?;
    change(call, MapRequest::RemoveSlots(slots))
}

/// Whether there is a key in any database.
fn has_keys(call: &ServerCall<'_, '_>) -> bool {
    let keyspace = &call.server.core.keyspace;
    (0..keyspace.databases()).any(|db| !keyspace.is_empty(call.base.guard.ctx, db))
}

/// CLUSTER FLUSHSLOTS
pub(super) fn flush_slots(call: &mut ServerCall<'_, '_>) -> Done {
    view(call)?;
    if has_keys(call) {
        return Err(Error::text("ERR DB must be empty to perform CLUSTER FLUSHSLOTS."));
    }
    change(call, MapRequest::FlushSlots)
}

/// CLUSTER SETSLOT slot MIGRATING node-id | IMPORTING node-id | STABLE | NODE node-id [TIMEOUT ms]
///
/// The timeout is checked, and not needed: the replicas have the map of the store, too.
pub(super) fn set_slot(call: &mut ServerCall<'_, '_>) -> Done {
    let view = view(call)?;
    if !view.is_primary {
        return Err(Error::text("ERR Please use SETSLOT only with masters."));
    }
    let (args, slot) = (call.base.args, slot_at(call, 2)?);
    let is_own = view.map.owner(slot).is_some_and(|(id, _)| id == view.shard);
    // A shared map may be ahead of the view: the plan of the change decides.
    let is_alone = shared(call).is_err();
    let node = |unknown: &str| {
        named(&view, args.at(4))
            .map(|(id, _)| id)
            .map_err(|_| Error::Bytes([b"ERR ", unknown.as_bytes(), b" ", args.at(4)].concat()))
    };
    let len = match () {
        () if args.len() >= 5 && args.is(args.len() - 1, "TIMEOUT") => {
            return Err(Error::text("ERR Missing timeout value"));
        }
        () if args.len() >= 6 && args.is(args.len() - 2, "TIMEOUT") => {
            match parse_i64(args.at(args.len() - 1)) {
                None => return Err(Error::text("ERR timeout is not an integer or out of range")),
                Some(timeout) if timeout < 0 => return Err(Error::text("ERR timeout is negative")),
                Some(_) => args.len() - 2,
            }
        }
        () => args.len(),
    };
    let what = match (args.word(3).as_bytes(), len) {
        (b"MIGRATING", 5) if is_alone && !is_own => {
            return Err(Error::text(format!("ERR I'm not the owner of hash slot {slot}")));
        }
        (b"IMPORTING", 5) if is_alone && is_own => {
            return Err(Error::text(format!("ERR I'm already the owner of hash slot {slot}")));
        }
        (b"MIGRATING", 5) => SlotChange::Migrating(node("I don't know about node")?),
        (b"IMPORTING", 5) => SlotChange::Importing(node("I don't know about node")?),
        (b"STABLE", 4) => SlotChange::Stable,
        (b"NODE", 5) => SlotChange::Owner(node("Unknown node")?),
        _ => {
            return Err(Error::text(
                "ERR Invalid CLUSTER SETSLOT action or number of arguments. Try CLUSTER HELP",
            ));
        }
    };
    let leaves = matches!(&what, SlotChange::Owner(id) if *id != view.me && is_own);
    if leaves && len_of(call, slot) > 0 {
        return Err(Error::text(format!(
            "ERR Can't assign hashslot {slot} to a different node while I still hold keys for this hash slot."
        )));
    }
    change(call, MapRequest::SetSlot(slot, what))
}

/// CLUSTER BUMPEPOCH
pub(super) fn bump_epoch(call: &mut ServerCall<'_, '_>) -> Done {
    may_change(call)?;
    let server = call.server.clone();
    let epoch = |server: &Server| {
        let view = server.cluster.as_ref().map(|cluster| cluster.view());
        view.and_then(|view| view.map.shard(view.shard).map(|shard| shard.epoch)).unwrap_or(0)
    };
    call.offload_io(Work::blocking_io(
        move |_| {
            let before = epoch(&server);
            server.change_map(&MapRequest::BumpEpoch).map_err(failed)?;
            Ok((before, epoch(&server)))
        },
        |call, (before, after)| {
            let word = if before == after { "STILL" } else { "BUMPED" };
            call.reply.simple(&format!("{word} {after}"));
            Ok(Flow::Replied)
        },
    ))
}

/// CLUSTER SET-CONFIG-EPOCH config-epoch
pub(super) fn set_epoch(call: &mut ServerCall<'_, '_>) -> Done {
    view(call)?;
    let number = call.base.args.int(2)?;
    let epoch = u64::try_from(number)
        .map_err(|_| Error::text(format!("ERR Invalid config epoch specified: {number}")))?;
    change(call, MapRequest::SetEpoch(epoch))
}

/// CLUSTER SAVECONFIG
pub(super) fn save(call: &mut ServerCall<'_, '_>) -> Done {
    change(call, MapRequest::Save)
}

/// CLUSTER RESET [HARD | SOFT]
pub(super) fn reset(call: &mut ServerCall<'_, '_>) -> Done {
    let view = view(call)?;
    let is_hard = match call.base.args.len() {
        2 => false,
        3 if call.base.args.is(2, "HARD") => true,
        3 if call.base.args.is(2, "SOFT") => false,
        _ => return Err(Error::Syntax),
    };
    if view.is_primary && has_keys(call) {
        return Err(Error::text("ERR CLUSTER RESET can't be called with master nodes containing keys"));
    }
    if !is_hard && !view.is_primary && shared(call).is_ok() {
        return detach(call);
    }
    let hard = is_hard.then(|| (NodeId::new(random_id()), ShardId::new(random_id())));
    change(call, MapRequest::Reset { hard })
}

/// CLUSTER MEET ip port [cluster-bus-port]
pub(super) fn meet(call: &mut ServerCall<'_, '_>) -> Done {
    view(call)?;
    let (args, shown) = (call.base.args, |index| call.base.args.quoted(index, 128));
    let invalid = |what: &[u8], index| {
        Err(Error::Bytes([b"ERR Invalid ", what, b" port specified: ", shown(index)].concat()))
    };
    let Some(port) = parse_i64(args.at(3)) else { return invalid(b"base", 3) };
    let bus = match args.get(4).map(parse_i64) {
        Some(None) => return invalid(b"bus", 4),
        Some(Some(bus)) => bus,
        None => 0,
    };
    let is_port = |port: i64| u16::try_from(port).is_ok();
    if !is_port(port) || port == 0 {
        return Err(Error::text("ERR Port number is out of range"));
    }
    if !is_port(bus) {
        return Err(Error::text("ERR Cluster bus port number is out of range"));
    }
    shared(call)?;
    let ip = String::from_utf8_lossy(args.at(2)).into_owned();
    change(call, MapRequest::Meet { ip, port: port as u16 })
}

/// CLUSTER FORGET node-id
pub(super) fn forget(call: &mut ServerCall<'_, '_>) -> Done {
    let view = view(call)?;
    let node = match named(&view, call.base.args.at(2)) {
        Ok((node, _)) => node,
        Err(unknown) => {
            shared(call).map_err(|_| unknown.clone())?;
            let name = std::str::from_utf8(call.base.args.at(2)).ok();
            name.and_then(|name| name.parse().ok()).ok_or(unknown)?
        }
    };
    if node == view.me {
        return Err(Error::text("ERR I tried hard but I can't forget myself..."));
    }
    shared(call)?;
    change(call, MapRequest::Forget(node))
}

/// CLUSTER REPLICATE node-id | NO ONE
///
/// With NO ONE, a replica becomes the empty primary of a shard of its own.
pub(super) fn replicate(call: &mut ServerCall<'_, '_>) -> Done {
    let view = view(call)?;
    match call.base.args.len() {
        3 => {}
        4 if call.base.args.is(2, "NO") && call.base.args.is(3, "ONE") => {
            if !view.is_primary {
                shared(call)?;
                return detach(call);
            }
            call.base.reply.ok();
            return Ok(Flow::Replied);
        }
        _ => return Err(call.wrong_form("CLUSTER")),
    }
    let node = named(&view, call.base.args.at(2))?.0;
    if node == view.me {
        return Err(Error::text("ERR Can't replicate myself"));
    }
    shared(call)?;
    if view.is_primary && has_keys(call) {
        return Err(Error::text("ERR To set a master the node must be empty and without assigned slots."));
    }
    change(call, MapRequest::Replicate(node))
}

/// CLUSTER FAILOVER [FORCE | TAKEOVER]
pub(super) fn fail_over(call: &mut ServerCall<'_, '_>) -> Done {
    let view = view(call)?;
    let args = &call.base.args;
    if args.len() > 3 || args.len() == 3 && !args.is(2, "FORCE") && !args.is(2, "TAKEOVER") {
        return Err(Error::Syntax);
    }
    if view.is_primary {
        return Err(Error::text("ERR You should send CLUSTER FAILOVER to a replica"));
    }
    shared(call)?;
    let mode = match () {
        () if args.len() == 2 => FailoverMode::Planned,
        () if args.is(2, "FORCE") => FailoverMode::Force,
        () => FailoverMode::Takeover,
    };
    let primary = view.map.shard(view.shard).and_then(|shard| shard.primary);
    match primary.map(|primary| view.map.node(primary).is_some_and(|node| node.is_alive)) {
        None if mode == FailoverMode::Planned => {
            return Err(Error::text("ERR I'm a replica but my master is unknown to me"));
        }
        Some(false) if mode == FailoverMode::Planned => {
            return Err(Error::text("ERR Master is down or failed, please use CLUSTER FAILOVER FORCE"));
        }
        _ => {}
    }
    let cluster = call.server.cluster.as_ref().ok_or_else(disabled)?;
    cluster.fail_over(mode).map_err(failed)?;
    call.base.reply.ok();
    Ok(Flow::Replied)
}
