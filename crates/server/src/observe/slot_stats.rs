//! What the slots of a cluster's node cost: processor time and network bytes (CLUSTER SLOT-STATS), while
//! `cluster-slot-stats-enabled` is on.
//!
//! Each thread has counters of its own, which only it writes; a report adds them up. They take 0.4 MB per
//! thread that has counted a command.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evenkeel_cluster::SLOTS;
use evenkeel_command::{Args, Spec};
use evenkeel_runtime::clock;
use evenkeel_store::key::slot_of;

use super::commandlog::Spent;
use super::stats::add;

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

/// See the module's text.
pub(crate) struct SlotStats {
    threads: Box<[OnceLock<Box<[Counters]>>]>,
}

impl SlotStats {
    pub(crate) fn new(threads: usize) -> SlotStats {
        SlotStats { threads: (0..threads).map(|_| OnceLock::new()).collect() }
    }

    /// Counts a command for the slot of its first key. Called by the thread of this number alone.
    #[cold]
    pub(crate) fn note(&self, thread: usize, (row, args, spent): (&Spec, Args<'_>, &Spent)) {
        let mut slot = None;
        row.keys.for_each(&args, 0, u32::MAX, |index, _| _ = slot.get_or_insert(slot_of(args.at(index))));
        let Some(slot) = slot else { return };
        let all = self.threads[thread].get_or_init(|| (0..SLOTS).map(|_| Counters::default()).collect());
        let counters = &all[usize::from(slot)];
        add(&counters.ticks, spent.ticks);
        add(&counters.bytes_in, args.wire_len() as u64);
        add(&counters.bytes_out, spent.reply as u64);
    }

    /// Returns the sums of a slot.
    pub(crate) fn of(&self, slot: u16) -> SlotCost {
        let counters = self.threads.iter().filter_map(|thread| thread.get());
        let (mut cost, mut ticks) = (SlotCost::default(), 0);
        for counters in counters.map(|all| &all[usize::from(slot)]) {
            ticks += counters.ticks.load(Relaxed);
            cost.bytes_in += counters.bytes_in.load(Relaxed);
            cost.bytes_out += counters.bytes_out.load(Relaxed);
        }
        SlotCost { cpu_us: clock::us(ticks), ..cost }
    }

    /// Sets all counters to zero; a concurrent count may survive.
    pub(crate) fn reset(&self) {
        for counters in self.threads.iter().filter_map(|thread| thread.get()).flatten() {
            [&counters.ticks, &counters.bytes_in, &counters.bytes_out]
                .iter()
                .for_each(|counter| counter.store(0, Relaxed));
        }
    }
}
