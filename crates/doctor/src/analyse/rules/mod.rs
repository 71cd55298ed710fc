//! The rules. Each covers a family of causes: the evidence for them, and the evidence against them.
//!
//! A rule returns a finding from `SHARE_MIN` of the critical thread's time on. Thresholds are constants at
//! the top of the rule's file, with their reason. R18 (the limit is elsewhere) is a verdict, in
//! `analyse/mod.rs`.

mod calls;
mod disks;
mod durability;
pub(crate) mod fork;
mod functions;
pub(crate) mod locks;
mod memory;
mod network;
mod own;
mod processor;
mod sends;
mod stalls;

use super::View;
use super::finding::Outcome;

/// Less is noise: at perf's 99 samples a second and 10 s, 5% are 50 samples, good to a quarter.
pub(crate) const SHARE_MIN: f64 = 0.05;

pub(crate) struct Rule {
    pub(crate) id: &'static str,
    look: fn(&View<'_>) -> Outcome,
    /// The data without which the rule cannot rule anything out.
    needs: Needs,
}

#[derive(Clone, Copy)]
enum Needs {
    Nothing,
    Sleeps,
    Descriptors,
}

impl Rule {
    pub(crate) fn look(&self, view: &View<'_>) -> Outcome {
        let hidden = match self.needs {
            Needs::Nothing => None,
            Needs::Sleeps => view.hidden_sleeps(),
            Needs::Descriptors => view.hidden_descriptors(),
        };
        (self.look)(view).if_shown(hidden)
    }
}

#[rustfmt::skip]
pub(crate) const ALL: &[Rule] = &[
    Rule { id: "R1",  look: functions::hot, needs: Needs::Nothing },
    Rule { id: "R2",  look: sends::by_role, needs: Needs::Nothing },
    Rule { id: "R3",  look: durability::on_the_loop, needs: Needs::Sleeps },
    Rule { id: "R4",  look: fork::page_tables, needs: Needs::Nothing },
    Rule { id: "R5",  look: fork::copy_on_write, needs: Needs::Nothing },
    Rule { id: "R6",  look: locks::contended, needs: Needs::Sleeps },
    Rule { id: "R7",  look: calls::useless_wakeups, needs: Needs::Nothing },
    Rule { id: "R8",  look: processor::waiting_for_a_cpu, needs: Needs::Nothing },
    Rule { id: "R9",  look: locks::hand_offs, needs: Needs::Nothing },
    Rule { id: "R10", look: network::accept_queues, needs: Needs::Descriptors },
    Rule { id: "R11", look: network::slow_peers, needs: Needs::Descriptors },
    Rule { id: "R12", look: calls::small_calls, needs: Needs::Nothing },
    Rule { id: "R13", look: sends::receive_inside_send, needs: Needs::Nothing },
    Rule { id: "R14", look: functions::chores, needs: Needs::Nothing },
    Rule { id: "R15", look: memory::not_there, needs: Needs::Sleeps },
    Rule { id: "R16", look: disks::reading, needs: Needs::Sleeps },
    Rule { id: "R17", look: stalls::periodic, needs: Needs::Nothing },
    Rule { id: "R19", look: own::look, needs: Needs::Nothing },
];

/// "24%", and "0.4%" where a whole number would be too coarse.
pub(crate) fn percent(share: f64) -> String {
    if share >= 0.0995 { format!("{:.0}%", share * 100.0) } else { format!("{:.1}%", share * 100.0) }
}

pub(crate) fn millis(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    match ms {
        100.0.. => format!("{ms:.0} ms"),
        1.0.. => format!("{ms:.1} ms"),
        _ => format!("{ms:.2} ms"),
    }
}
