//! The content of slots: KEYSLOT, COUNTKEYSINSLOT, GETKEYSINSLOT, SLOT-STATS.

use evenkeel_cluster::SLOTS;
use evenkeel_resp::number::parse_i64;
use evenkeel_resp::reply::Encoder;
use evenkeel_store::Cursor;
use evenkeel_store::key::slot_of;

use super::super::ServerCall;
use super::view;
use crate::cluster::view::ClusterView;
use crate::observe::slot_stats::SlotCost;
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};

/// CLUSTER KEYSLOT key
///
/// As in Valkey, also without a cluster: keys have slots here, too.
pub(super) fn key_slot(call: &mut ServerCall<'_, '_>) -> Done {
    call.base.reply.int(slot_of(call.base.args.at(2)).into());
    Ok(Flow::Replied)
}

fn slot_number(number: i64) -> Option<u16> {
    u16::try_from(number).ok().filter(|slot| usize::from(*slot) < SLOTS)
}

/// Returns the slot that an argument names.
pub(super) fn slot_at(call: &ServerCall<'_, '_>, index: usize) -> Result<u16, Error> {
    let number = parse_i64(call.base.args.at(index));
    number.and_then(slot_number).ok_or(Error::text("ERR Invalid or out of range slot"))
}

/// CLUSTER COUNTKEYSINSLOT slot
pub(super) fn count_keys(call: &mut ServerCall<'_, '_>) -> Done {
    view(call)?;
    let slot = slot_number(call.base.args.int(2)?).ok_or(Error::text("ERR Invalid slot"))?;
    let len = call.server.core.keyspace.slot_len(call.base.guard.ctx, call.base.db as usize, slot);
    call.base.reply.int(len as i64);
    Ok(Flow::Replied)
}

/// Returns the number of keys of a slot in all databases.
pub(super) fn len_of(call: &ServerCall<'_, '_>, slot: u16) -> usize {
    let keyspace = &call.server.core.keyspace;
    (0..keyspace.databases()).map(|db| keyspace.slot_len(call.base.guard.ctx, db, slot)).sum()
}

/// CLUSTER GETKEYSINSLOT slot count
pub(super) fn keys(call: &mut ServerCall<'_, '_>) -> Done {
    view(call)?;
    let (slot, count) = (call.base.args.int(2)?, call.base.args.int(3)?);
    let wrong = || Error::text("ERR Invalid slot or number of keys");
    let (slot, count) = (slot_number(slot).ok_or_else(wrong)?, usize::try_from(count).map_err(|_| wrong())?);
    let (mut found, mut len) = (Encoder::default(), 0);
    let mut cursor = Cursor::of_slot(slot);
    while len < count {
        cursor = call.base.guard.scan_in_slot(call.base.db as usize, cursor, count - len, None, |view| {
            if len < count {
                found.bulk(view.key());
                len += 1;
            }
        });
        if cursor.0 == 0 || cursor.slot() != usize::from(slot) {
            break;
        }
    }
    call.base.reply.array(len);
    call.base.reply.bytes.extend_from_slice(&found.bytes);
    Ok(Flow::Replied)
}

/// CLUSTER FLUSHSLOT slot [ASYNC | SYNC]
///
/// Removes the keys of the slot in all databases, in slices on a thread of its own, while other clients go
/// on. The reply comes when the slot is empty, either way: a key's memory is freed with it.
pub(super) fn flush(call: &mut ServerCall<'_, '_>) -> Done {
    view(call)?;
    let slot = slot_at(call, 2)?;
    match call.base.args.len() {
        3 => {}
        4 if call.base.args.is(3, "ASYNC") || call.base.args.is(3, "SYNC") => {}
        4 => return Err(Error::Syntax),
        _ => return Err(call.wrong_form("CLUSTER")),
    }
    let (server, of_thread) = (call.server.clone(), call.server.clone());
    call.base.offload_alone(move |reply| {
        let is_primary = move || of_thread.cluster.as_ref().is_some_and(|cluster| cluster.view().is_primary);
        let (ended, end) = std::sync::mpsc::channel();
        let slots = std::iter::once(slot).collect();
        // The receiver is gone if the server stops.
        if !server.replication.clear_slots(slots, is_primary, move |is_empty| _ = ended.send(is_empty)) {
            return Err(Error::text("ERR too many slots are being emptied or moved: try again later"));
        }
        match end.recv() {
            Ok(true) => reply.ok(),
            _ => return Err(Error::text("ERR this node is no primary any more: the slot is not empty")),
        }
        Ok(())
    })
}

/// A metric of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    KeyCount,
    Cpu,
    BytesIn,
    BytesOut,
}

impl Metric {
    const ALL: [(&'static str, Metric); 4] = [
        ("key-count", Metric::KeyCount),
        ("cpu-usec", Metric::Cpu),
        ("network-bytes-in", Metric::BytesIn),
        ("network-bytes-out", Metric::BytesOut),
    ];

    /// Returns the metrics that are counted.
    fn counted(call: &ServerCall<'_, '_>) -> &'static [(&'static str, Metric)] {
        if call.base.settings.cluster_slot_stats_enabled { &Metric::ALL } else { &Metric::ALL[..1] }
    }

    fn of(self, keys: usize, cost: &SlotCost) -> u64 {
        match self {
            Metric::KeyCount => keys as u64,
            Metric::Cpu => cost.cpu_us,
            Metric::BytesIn => cost.bytes_in,
            Metric::BytesOut => cost.bytes_out,
        }
    }
}

/// The metrics of a slot.
type SlotMetrics = (u16, usize, SlotCost);

/// CLUSTER SLOT-STATS SLOTSRANGE first last | ORDERBY metric [LIMIT limit] [ASC | DESC]
pub(super) fn statistics(call: &mut ServerCall<'_, '_>) -> Done {
    let view = view(call)?;
    let args = call.base.args;
    match args.word(2).as_bytes() {
        b"SLOTSRANGE" if args.len() == 5 => {
            let (first, last) = (slot_at(call, 3)?, slot_at(call, 4)?);
            if first > last {
                let text = format!("ERR Start slot number {first} is greater than end slot number {last}");
                return Err(Error::text(text));
            }
            let metrics = metrics_of(call, &view, first..=last);
            reply(call, &metrics);
        }
        b"ORDERBY" => {
            let named = Metric::counted(call).iter().find(|(name, _)| args.is(3, name));
            let (_, by) = named.ok_or(Error::text("ERR Unrecognized sort metric for ORDERBY."))?;
            let (limit, ascends) = order(call)?;
            let mut metrics = metrics_of(call, &view, 0..=SLOTS as u16 - 1);
            metrics.sort_by_key(|(_, keys, cost)| {
                let value = by.of(*keys, cost);
                if ascends { value } else { u64::MAX - value }
            });
            metrics.truncate(limit);
            reply(call, &metrics);
        }
        _ => {
            return Err(Error::text(
                "ERR unknown subcommand or wrong number of arguments for 'SLOT-STATS'. Try CLUSTER HELP.",
            ));
        }
    }
    Ok(Flow::Replied)
}

/// Parses the options of ORDERBY: the limit, and whether the order ascends.
fn order(call: &ServerCall<'_, '_>) -> Result<(usize, bool), Error> {
    let (args, mut at, mut limit, mut ascends) = (&call.base.args, 4, None, None);
    while at < args.len() {
        let is_again = match args.word(at).as_bytes() {
            b"LIMIT" if at + 1 < args.len() => {
                let number = parse_i64(args.at(at + 1)).filter(|number| (1..=SLOTS as i64).contains(number));
                let text = "ERR Limit has to lie in between 1 and 16384 (maximum number of slots).";
                at += 1;
                limit.replace(number.ok_or(Error::text(text))? as usize).is_some()
            }
            b"ASC" => ascends.replace(true).is_some(),
            b"DESC" => ascends.replace(false).is_some(),
            _ => return Err(Error::Syntax),
        };
        if is_again {
            return Err(Error::text("ERR Multiple filters of the same type are disallowed."));
        }
        at += 1;
    }
    Ok((limit.unwrap_or(SLOTS), ascends.unwrap_or(false)))
}

/// Returns the metrics of this node's slots in a range.
fn metrics_of(
    call: &ServerCall<'_, '_>,
    view: &ClusterView,
    slots: std::ops::RangeInclusive<u16>,
) -> Vec<SlotMetrics> {
    let own = view.map.shard(view.shard);
    let is_own = |slot: &u16| own.is_some_and(|shard| shard.slots.contains(*slot));
    let keys = |slot| len_of(call, slot);
    let counts = call.base.settings.cluster_slot_stats_enabled;
    let stats = call.server.cluster.as_ref().map(|cluster| &cluster.slot_stats).filter(|_| counts);
    let cost = |slot| stats.map(|stats| stats.of(slot)).unwrap_or_default();
    slots.filter(is_own).map(|slot| (slot, keys(slot), cost(slot))).collect()
}

fn reply(call: &mut ServerCall<'_, '_>, metrics: &[SlotMetrics]) {
    let shown = Metric::counted(call);
    let reply = &mut *call.base.reply;
    reply.array(metrics.len());
    for (slot, keys, cost) in metrics {
        reply.array(2);
        reply.int((*slot).into());
        reply.map(shown.len());
        for (name, metric) in shown {
            reply.bulk(name.as_bytes());
            reply.int(metric.of(*keys, cost) as i64);
        }
    }
}
