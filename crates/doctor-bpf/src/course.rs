//! The time course: totals by slot of time, and the stalls of event loops.

use crate::attach::Programs;
use crate::harvest::{all, descriptor, place};
use crate::shared::{self, CALL_IDLE, CALL_RECEIVE, Config, FD_LOCK};
use crate::{Slot, Stall};

/// Sleeps (from, to) that were not waits for work and had not ended when the programs were detached.
pub(crate) type OpenSleeps = Vec<(u64, u64)>;

/// Whether a thread's sleep is a wait for work, by the rule of `is_idle` in the programs. They know a
/// descriptor's kind from its finished calls. Here it is unknown, so a read counts as a wait for work.
pub(crate) fn is_idle(config: &Config, thread: &shared::Thread) -> bool {
    let flags =
        usize::try_from(thread.nr).ok().and_then(|nr| config.call_flags.get(nr)).copied().unwrap_or(0);
    thread.in_call != 0 && thread.fd != FD_LOCK && flags & (CALL_IDLE | CALL_RECEIVE) != 0
}

/// Slots from the first attachment to the last detachment.
pub(crate) fn slots(programs: &Programs, open: &OpenSleeps) -> Vec<Slot> {
    let Config { slot_ns, .. } = programs.config;
    let (Some(&(first, _)), Some(&(_, last))) = (programs.on.first(), programs.on.last()) else {
        return Vec::new();
    };
    let counted = all::<u32, shared::TimeSlot>(programs, "time_slots");
    let mut slots = vec![Slot::default(); counted.len()];
    for (index, slot) in counted {
        if let Some(to) = slots.get_mut(index as usize) {
            *to = Slot {
                samples: slot.samples,
                blocked_ns: slot.blocked_ns,
                queued_ns: slot.queued_ns,
                seen_ns: 0,
            };
        }
    }
    let since = |at: u64| at.saturating_sub(programs.config.begin_ns);
    for &(from, to) in open {
        spread(&mut slots, slot_ns, since(from), since(to), |slot, ns| slot.blocked_ns += ns);
    }
    for &(from, to) in &programs.on {
        spread(&mut slots, slot_ns, since(from), since(to), |slot, ns| slot.seen_ns += ns);
    }
    let (first, last) = (since(first) / slot_ns.max(1), since(last) / slot_ns.max(1));
    slots.into_iter().skip(first as usize).take((last + 1 - first) as usize).collect()
}

/// Splits the time between `from` and `to` among its slots.
fn spread(slots: &mut [Slot], slot_ns: u64, mut from: u64, to: u64, add: impl Fn(&mut Slot, u64)) {
    while from < to {
        let index = from / slot_ns.max(1);
        let Some(slot) = slots.get_mut(index as usize) else { return };
        let end = (index + 1) * slot_ns.max(1);
        add(slot, to.min(end) - from);
        from = end;
    }
}

pub(crate) fn stalls(programs: &Programs, kept: u64) -> Vec<Stall> {
    let Some(&(first, _)) = programs.on.first() else { return Vec::new() };
    let found = all::<u32, shared::Stall>(programs, "stalls").into_iter();
    let mut stalls: Vec<Stall> = found
        .filter(|&(index, _)| u64::from(index) < kept)
        .map(|(_, stall)| Stall {
            tid: stall.tid.cast_signed(),
            at_ns: stall.at_ns.saturating_sub(first),
            length_ns: stall.length_ns,
            blocked_ns: stall.blocked_ns,
            queued_ns: stall.queued_ns,
            place: place(stall.longest_nr),
            fd: descriptor(stall.longest_fd),
            call_ns: stall.longest_ns,
        })
        .collect();
    stalls.sort_by_key(|stall| (stall.at_ns, stall.tid));
    stalls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_of_time_is_shared_out_among_its_slots() {
        let mut slots = vec![Slot::default(); 4];
        spread(&mut slots, 10, 15, 32, |slot, ns| slot.seen_ns += ns);
        spread(&mut slots, 10, 38, 99, |slot, ns| slot.seen_ns += ns);
        assert_eq!(slots.iter().map(|slot| slot.seen_ns).collect::<Vec<_>>(), [0, 5, 10, 4]);
    }
}
