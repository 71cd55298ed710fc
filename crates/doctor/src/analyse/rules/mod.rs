//! The rules. Each covers a family of causes: the evidence for them, and the evidence against them.
//!
//! A rule returns a finding from `SHARE_MIN` of the critical thread's time on. Thresholds are constants at
//! the top of the rule's file, with their reason. R18 (the limit is elsewhere) is a verdict, in
//! `analyse/mod.rs`.

mod activities;
mod asleep;
mod blocked;
mod calls;
mod commands;
mod disks;
mod durability;
pub(crate) mod fork;
mod functions;
mod halted;
pub(crate) mod in_hand;
mod limits;
pub(crate) mod locks;
mod memory;
mod network;
mod own;
mod postgres;
mod processor;
pub(crate) mod runtimes;
mod sends;
mod stalls;

use super::View;
use super::finding::Outcome;

/// Less is noise: at perf's 99 samples a second and 10 s, 5% are 50 samples, good to a quarter.
pub(crate) const SHARE_MIN: f64 = 0.05;

pub(crate) struct Rule {
    pub(crate) id: &'static str,
    evaluate: fn(&View<'_>) -> Outcome,
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
    pub(crate) fn evaluate(&self, view: &View<'_>) -> Outcome {
        let hidden = match self.needs {
            Needs::Nothing => None,
            Needs::Sleeps => view.hidden_sleeps(),
            Needs::Descriptors => view.hidden_descriptors(),
        };
        (self.evaluate)(view).if_shown(hidden)
    }
}

#[rustfmt::skip]
pub(crate) const ALL: &[Rule] = &[
    Rule { id: "R1",  evaluate: functions::hot, needs: Needs::Nothing },
    Rule { id: "R2",  evaluate: sends::by_role, needs: Needs::Nothing },
    Rule { id: "R3",  evaluate: durability::on_the_loop, needs: Needs::Sleeps },
    Rule { id: "R4",  evaluate: fork::page_tables, needs: Needs::Nothing },
    Rule { id: "R5",  evaluate: fork::copy_on_write, needs: Needs::Nothing },
    Rule { id: "R6",  evaluate: locks::contended, needs: Needs::Sleeps },
    Rule { id: "R7",  evaluate: calls::useless_wakeups, needs: Needs::Nothing },
    Rule { id: "R8",  evaluate: processor::waiting_for_a_cpu, needs: Needs::Nothing },
    Rule { id: "R9",  evaluate: locks::hand_offs, needs: Needs::Nothing },
    Rule { id: "R10", evaluate: network::accept_queues, needs: Needs::Descriptors },
    Rule { id: "R11", evaluate: network::slow_peers, needs: Needs::Descriptors },
    Rule { id: "R12", evaluate: calls::small_calls, needs: Needs::Nothing },
    Rule { id: "R13", evaluate: sends::receive_inside_send, needs: Needs::Nothing },
    Rule { id: "R14", evaluate: functions::chores, needs: Needs::Nothing },
    Rule { id: "R15", evaluate: memory::not_there, needs: Needs::Sleeps },
    Rule { id: "R16", evaluate: disks::reading, needs: Needs::Sleeps },
    Rule { id: "R17", evaluate: stalls::periodic, needs: Needs::Nothing },
    Rule { id: "R19", evaluate: own::evaluate, needs: Needs::Nothing },
    Rule { id: "R20", evaluate: commands::long_ones, needs: Needs::Nothing },
    Rule { id: "R21", evaluate: commands::one_client, needs: Needs::Nothing },
    Rule { id: "R22", evaluate: in_hand::waiting, needs: Needs::Descriptors },
    Rule { id: "R23", evaluate: halted::evaluate, needs: Needs::Nothing },
    Rule { id: "R24", evaluate: runtimes::evaluate, needs: Needs::Nothing },
    Rule { id: "R25", evaluate: activities::evaluate, needs: Needs::Nothing },
    Rule { id: "R26", evaluate: blocked::evaluate, needs: Needs::Sleeps },
    Rule { id: "R27", evaluate: limits::descriptors, needs: Needs::Descriptors },
    Rule { id: "R28", evaluate: limits::losses, needs: Needs::Nothing },
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
