//! Moves of slots as a whole: MIGRATESLOTS, GETSLOTMIGRATIONS, CANCELSLOTMIGRATIONS, and IMPORTSLOTS, by
//! which a source introduces the connections of a copy.

use evenkeel_client::lane_ticket::LaneTicket;
use evenkeel_cluster::{MigrationId, NodeId, SlotRanges};
use evenkeel_resp::number::parse_i64;

use super::super::ServerCall;
use super::requests::{failed, may_change, shared};
use super::slots::slot_at;
use super::view;
use crate::cluster::owner::MapRequest;
use crate::cluster::random_id;
use crate::cluster::{MoveInfo, MoveState};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow, Work};
use evenkeel_command::reply::Reply;

use Field::{Number, Text};

/// CLUSTER MIGRATESLOTS SLOTSRANGE first last [first last ...] NODE node-id [SLOTSRANGE ... NODE node-id ...]
pub(super) fn begin(call: &mut ServerCall<'_, '_>) -> Done {
    may_change(call)?;
    let moves = parse(call)?;
    shared(call)?;
    let server = call.server.clone();
    call.offload_io(Work::waits_for_disk(move || {
        moves.into_iter().try_for_each(|(slots, node)| {
            let request = MapRequest::Move(MigrationId::new(random_id()), slots, node);
            server.change_map(&request).map_err(failed)
        })
    }))
}

/// Parses the slots and the target of each move.
fn parse(call: &ServerCall<'_, '_>) -> Result<Vec<(SlotRanges, NodeId)>, Error> {
    let (view, args) = (view(call)?, call.base.args);
    let own = view.map.shard(view.shard).map(|own| own.slots.clone()).unwrap_or_default();
    let (mut moves, mut ranges, mut at) = (Vec::new(), Vec::<(u16, u16)>::new(), 2);
    while at < args.len() {
        if !args.is(at, "SLOTSRANGE") {
            return Err(Error::Syntax);
        }
        let first_of_move = ranges.len();
        at += 1;
        while at < args.len() && !args.is(at, "NODE") {
            if at + 1 == args.len() {
                return Err(Error::text("ERR No end slot for final slot range"));
            }
            let range = (slot_at(call, at)?, slot_at(call, at + 1)?);
            check_range(&ranges, range)?;
            ranges.push(range);
            at += 2;
        }
        let (true, Some(name)) = (ranges.len() > first_of_move, args.get(at + 1)) else {
            return Err(Error::Syntax);
        };
        let id: Option<NodeId> = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
        let id =
            id.ok_or_else(|| Error::Bytes([b"ERR Invalid node name: ", args.quoted(at + 1, 64)].concat()))?;
        if id == view.me {
            return Err(Error::text("ERR Target node can not be this node."));
        }
        let slots = slots_in(&ranges[first_of_move..]);
        if !view.is_primary || !own.includes(&slots) {
            return Err(Error::text("ERR Slots are not served by this node."));
        }
        moves.push((slots, id));
        at += 2;
    }
    Ok(moves)
}

/// The slots of ranges without overlap.
fn slots_in(ranges: &[(u16, u16)]) -> SlotRanges {
    let mut slots: Vec<u16> = ranges.iter().flat_map(|(first, last)| *first..=*last).collect();
    slots.sort_unstable();
    slots.into_iter().collect()
}

fn check_range(others: &[(u16, u16)], (first, last): (u16, u16)) -> Result<(), Error> {
    if first > last {
        let text = format!("ERR Start slot number {first} is greater than end slot number {last}.");
        return Err(Error::text(text));
    }
    match others.iter().find(|(other_first, other_last)| first <= *other_last && *other_first <= last) {
        Some((other_first, other_last)) => Err(Error::text(format!(
            "ERR Slot range {first}-{last} overlaps with previous range {other_first}-{other_last}."
        ))),
        None => Ok(()),
    }
}

/// CLUSTER CANCELSLOTMIGRATIONS
pub(super) fn cancel(call: &mut ServerCall<'_, '_>) -> Done {
    may_change(call)?;
    let present: Vec<MigrationId> =
        moves(call).iter().filter(|info| !info.state.has_ended()).map(|info| info.id).collect();
    if present.is_empty() {
        return Err(Error::text("ERR No migrations ongoing"));
    }
    let server = call.server.clone();
    call.offload_io(Work::waits_for_disk(move || {
        // A move that has ended meanwhile is not there any more.
        present.iter().for_each(|id| _ = server.change_map(&MapRequest::CancelMove(*id)));
        Ok(())
    }))
}

fn moves(call: &ServerCall<'_, '_>) -> Vec<MoveInfo> {
    call.server.cluster.as_ref().map(|cluster| cluster.moves(call.server)).unwrap_or_default()
}

/// A field of a reply.
enum Field {
    Text(String),
    Number(u64),
}

/// Appends a map.
fn show(reply: &mut Reply, fields: &[(&str, Field)]) {
    reply.map(fields.len());
    for (name, value) in fields {
        reply.bulk(name.as_bytes());
        match value {
            Field::Text(text) => reply.bulk(text.as_bytes()),
            Field::Number(number) => reply.int(*number as i64),
        }
    }
}

/// The identity of a node, which is empty if its shard has no primary.
fn node(node: Option<NodeId>) -> Field {
    Text(node.map(|node| node.to_string()).unwrap_or_default())
}

/// CLUSTER GETSLOTMIGRATIONS
pub(super) fn list(call: &mut ServerCall<'_, '_>) -> Done {
    view(call)?;
    let moves = moves(call);
    call.base.reply.array(moves.len());
    for info in moves {
        let fields = [
            ("name", Text(info.id.to_string())),
            ("operation", Text(if info.is_export { "EXPORT" } else { "IMPORT" }.into())),
            ("slot_ranges", Text(ranges(&info.slots))),
            ("target_node", node(info.target)),
            ("source_node", node(info.source)),
            ("create_time", Number(info.created_s)),
            ("last_update_time", Number(info.updated_s)),
            ("last_ack_time", Number(info.updated_s)),
            ("state", Text(info.state.name().into())),
            ("message", Text(info.message)),
            ("cow_size", Number(0)),
            ("remaining_repl_size", Number(info.behind)),
        ];
        show(call.base.reply, &fields);
    }
    Ok(Flow::Replied)
}

/// Returns ranges as clients see them: `0-1 5-5`.
fn ranges(slots: &SlotRanges) -> String {
    let range = |range: std::ops::RangeInclusive<u16>| format!("{}-{}", range.start(), range.end());
    slots.ranges().map(range).collect::<Vec<_>>().join(" ")
}

/// CLUSTER MIGRATION IMPORT first last [first last ...] | CANCEL ID task-id | CANCEL ALL | STATUS ID
/// task-id | STATUS ALL
///
/// The words of Redis 8.4: IMPORT is sent to the target.
pub(super) fn migration(call: &mut ServerCall<'_, '_>) -> Done {
    may_change(call)?;
    let args = call.base.args;
    match args.word(2).as_bytes() {
        b"IMPORT" if args.len() >= 5 && args.len() % 2 == 1 => import(call),
        b"CANCEL" | b"STATUS" if args.is(3, "ALL") && args.len() == 4 => of_tasks(call, None),
        b"CANCEL" | b"STATUS" if args.is(3, "ID") && args.len() == 5 => {
            let id = std::str::from_utf8(args.at(4)).ok().and_then(|id| id.parse().ok());
            // No task has another name.
            of_tasks(call, Some(id.unwrap_or(MigrationId::new([0; 20]))))
        }
        _ => Err(Error::Syntax),
    }
}

fn import(call: &mut ServerCall<'_, '_>) -> Done {
    shared(call)?;
    let (view, mut ranges) = (view(call)?, Vec::new());
    for index in (3..call.base.args.len()).step_by(2) {
        let range = (slot_at(call, index)?, slot_at(call, index + 1)?);
        check_range(&ranges, range)?;
        ranges.push(range);
    }
    let (server, id) = (call.server.clone(), MigrationId::new(random_id()));
    let request = MapRequest::Move(id, slots_in(&ranges), view.me);
    call.offload_io(Work::blocking_io(
        move |_| server.change_map(&request).map_err(failed),
        move |call, ()| {
            call.reply.bulk(id.to_string().as_bytes());
            Ok(Flow::Replied)
        },
    ))
}

/// CANCEL or STATUS of one task, or of all.
fn of_tasks(call: &mut ServerCall<'_, '_>, id: Option<MigrationId>) -> Done {
    let mut tasks = moves(call);
    tasks.retain(|info| id.is_none_or(|id| info.id == id));
    if call.base.args.is(2, "STATUS") {
        call.base.reply.array(tasks.len());
        tasks.iter().for_each(|info| show_task(call, info));
        return Ok(Flow::Replied);
    }
    tasks.retain(|info| !info.state.has_ended());
    let server = call.server.clone();
    call.offload_io(Work::blocking_io(
        move |_| {
            let cancelled = |info: &&MoveInfo| server.change_map(&MapRequest::CancelMove(info.id)).is_ok();
            Ok(tasks.iter().filter(cancelled).count())
        },
        |call, count| {
            call.reply.int(count as i64);
            Ok(Flow::Replied)
        },
    ))
}

/// A task in the form of Redis 8.4; times are in milliseconds.
fn show_task(call: &mut ServerCall<'_, '_>, info: &MoveInfo) {
    let state = match info.state {
        MoveState::Success => "completed",
        MoveState::Cancelled => "canceled",
        state => state.name(),
    };
    let end_s = if info.state.has_ended() { info.updated_s } else { 0 };
    let fields = [
        ("id", Text(info.id.to_string())),
        ("slots", Text(ranges(&info.slots))),
        ("source", node(info.source)),
        ("dest", node(info.target)),
        ("operation", Text(if info.is_export { "migrate" } else { "import" }.into())),
        ("state", Text(state.into())),
        ("last_error", Text(info.message.clone())),
        ("retries", Number(u64::from(info.failures))),
        ("create_time", Number(info.created_s * 1000)),
        ("start_time", Number(info.created_s * 1000)),
        ("end_time", Number(end_s * 1000)),
        ("write_pause_ms", Number(info.pause_ms)),
    ];
    show(call.base.reply, &fields);
}

/// CLUSTER IMPORTSLOTS migration-id source-epoch target-epoch attempt lane
///
/// The connection brings slots from another node from now on. TRYAGAIN: not yet.
pub(super) fn import_slots(call: &mut ServerCall<'_, '_>) -> Done {
    may_change(call)?;
    shared(call)?;
    let (view, args) = (view(call)?, call.base.args);
    let number = |index| {
        let number = parse_i64(args.at(index)).and_then(|number| u64::try_from(number).ok());
        number.ok_or(Error::NotInteger)
    };
    let id: Option<MigrationId> = std::str::from_utf8(args.at(2)).ok().and_then(|id| id.parse().ok());
    let id = id.ok_or(Error::text("ERR Invalid name of a migration"))?;
    let ticket = LaneTicket {
        id: id.to_string(),
        source_epoch: number(3)?,
        target_epoch: number(4)?,
        attempt: number(5)?,
        lane: number(6)? as usize,
    };
    let later = |reason: &str| Error::text(format!("TRYAGAIN {reason}"));
    let Some(slots) = view.imports(id, ticket.source_epoch, ticket.target_epoch) else {
        return Err(later("this node's map does not have that migration between these epochs"));
    };
    let slots = slots.iter().collect();
    call.server.replication.admit_lane(&ticket, slots).map_err(|reason| later(&reason))?;
    call.session.end_push(&call.server.hub);
    call.session.unwatch(call.base.guard);
    call.session.lane = Some(Box::new(ticket));
    call.base.reply.ok();
    Ok(Flow::HandOff)
}
