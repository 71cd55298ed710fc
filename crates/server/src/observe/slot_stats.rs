//! What the slots of a cluster's node cost: processor time and network bytes (CLUSTER SLOT-STATS), while
//! `cluster-slot-stats-enabled` is on.
//!
//! Each thread has counters of its own, which only it writes; a report adds them up. They take 0.4 MB per
//! thread that has counted a command.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use evenkeel_cluster::SLOTS;
use evenkeel_command::{Args, LockScope, Spec};
use evenkeel_runtime::clock;
use evenkeel_store::key::slot_of;

use super::commandlog::Spent;
use super::stats::add;
use crate::cluster::routing::is_on_shard_channels;

/// The counters of a slot.
#[derive(Default)]
struct Counters {
    ticks: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

/// The sums of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotCost {
    pub(crate) cpu_us: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}

/// The counters of a thread.
struct OfThread {
    slots: Box<[Counters]>,
    /// What the commands of the present transaction or script have in common.
    unit_slot: AtomicU32,
    unit_bytes_in: AtomicU64,
}

/// In place of the slot of a unit: no command has had a key so far, or they have keys in several slots.
const NO_SLOT: u32 = u32::MAX;
const SEVERAL_SLOTS: u32 = u32::MAX - 1;

/// Bytes of the command MULTI.
const MULTI_LEN: u64 = 15;

impl OfThread {
    fn new() -> OfThread {
        OfThread {
            slots: (0..SLOTS).map(|_| Counters::default()).collect(),
            unit_slot: AtomicU32::new(NO_SLOT),
            unit_bytes_in: AtomicU64::new(0),
        }
    }

    /// Ends the unit. Returns its slot, if it has one, and the bytes of its commands.
    fn take_unit(&self) -> (Option<u16>, u64) {
        let slot = self.unit_slot.load(Relaxed);
        self.unit_slot.store(NO_SLOT, Relaxed);
        let bytes = self.unit_bytes_in.load(Relaxed);
        self.unit_bytes_in.store(0, Relaxed);
        (u16::try_from(slot).ok(), bytes)
    }
}

/// See the module's text.
pub(crate) struct SlotStats {
    threads: Box<[OnceLock<Box<OfThread>>]>,
}

/// The slot of a command's first key, or channel of a shard.
fn slot_of_call(row: &Spec, args: &Args<'_>) -> Option<u16> {
    if is_on_shard_channels(row) {
        return args.get(1).map(slot_of);
    }
    let mut slot = None;
    row.keys.for_each(args, 0, u32::MAX, |index, _| _ = slot.get_or_insert(slot_of(args.at(index))));
    slot
}

impl SlotStats {
    pub(crate) fn new(threads: usize) -> SlotStats {
        SlotStats { threads: (0..threads).map(|_| OnceLock::new()).collect() }
    }

    fn of_thread(&self, thread: usize) -> &OfThread {
        self.threads[thread].get_or_init(|| Box::new(OfThread::new()))
    }

    /// Counts a command for the slot of its first key; EXEC and scripts for the only slot of their commands.
    /// A primary, whose commands come `by_primary`, gets no replies, and its messages are not counted. Called
    /// by the thread of this number alone, as the other functions with a number are.
    #[cold]
    pub(crate) fn note(
        &self,
        thread: usize,
        (row, args, spent): (&Spec, Args<'_>, &Spent),
        by_primary: bool,
    ) {
        if spent.is_nested {
            return self.count_nested(thread, row, &args, args.wire_len());
        }
        if by_primary && is_on_shard_channels(row) {
            return;
        }
        let all = self.of_thread(thread);
        let (unit_slot, mut bytes_in) = all.take_unit();
        let is_queue = matches!(row.lock_scope, LockScope::Queue);
        let slot = if is_queue { unit_slot } else { slot_of_call(row, &args) };
        let Some(slot) = slot.or_else(|| unit_slot.filter(|_| row.runs_scripts())) else { return };
        bytes_in = if is_queue { bytes_in + MULTI_LEN } else { 0 };
        // The length of a replica's command is not known.
        let request = if spent.request == 0 { args.wire_len() } else { spent.request };
        let counters = &all.slots[usize::from(slot)];
        add(&counters.ticks, spent.ticks);
        add(&counters.bytes_in, bytes_in + request as u64);
        add(&counters.bytes_out, if by_primary { 0 } else { spent.reply as u64 });
    }

    /// Counts a command of a transaction or a script for it. `len`: the bytes that a client has sent for it.
    #[cold]
    pub(crate) fn count_nested(&self, thread: usize, row: &Spec, args: &Args<'_>, len: usize) {
        let all = self.of_thread(thread);
        add(&all.unit_bytes_in, len as u64);
        let Some(slot) = slot_of_call(row, args).map(u32::from) else { return };
        match all.unit_slot.load(Relaxed) {
            NO_SLOT => all.unit_slot.store(slot, Relaxed),
            known if known != slot => all.unit_slot.store(SEVERAL_SLOTS, Relaxed),
            _ => {}
        }
    }

    /// Counts bytes for listeners to a channel of a slot.
    #[cold]
    pub(crate) fn count_messages(&self, thread: usize, slot: u16, bytes: u64) {
        add(&self.of_thread(thread).slots[usize::from(slot)].bytes_out, bytes);
    }

    /// Returns the sums of a slot.
    pub(crate) fn of(&self, slot: u16) -> SlotCost {
        let threads = self.threads.iter().filter_map(|thread| thread.get());
        let (mut cost, mut ticks) = (SlotCost::default(), 0);
        for counters in threads.map(|all| &all.slots[usize::from(slot)]) {
            ticks += counters.ticks.load(Relaxed);
            cost.bytes_in += counters.bytes_in.load(Relaxed);
            cost.bytes_out += counters.bytes_out.load(Relaxed);
        }
        SlotCost { cpu_us: clock::us(ticks), ..cost }
    }

    /// Sets all counters to zero; a concurrent count may survive.
    pub(crate) fn reset(&self) {
        (0..SLOTS as u16).for_each(|slot| self.reset_slot(slot));
    }

    /// [`SlotStats::reset`] for a slot.
    pub(crate) fn reset_slot(&self, slot: u16) {
        for all in self.threads.iter().filter_map(|thread| thread.get()) {
            let Counters { ticks, bytes_in, bytes_out } = &all.slots[usize::from(slot)];
            [ticks, bytes_in, bytes_out].iter().for_each(|counter| counter.store(0, Relaxed));
        }
    }
}
