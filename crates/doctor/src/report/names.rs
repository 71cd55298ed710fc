//! Short names of the causes that the rules look for, for lists in which their numbers alone say nothing.

#[rustfmt::skip]
const NAMES: &[(&str, &str)] = &[
    ("R1",  "own functions"),
    ("R2",  "sending"),
    ("R3",  "disk writes"),
    ("R4",  "forks"),
    ("R5",  "copies after a fork"),
    ("R6",  "mutexes"),
    ("R7",  "useless wake-ups"),
    ("R8",  "waiting for a CPU"),
    ("R9",  "hand-offs of threads"),
    ("R10", "accept queues"),
    ("R11", "slow receivers"),
    ("R12", "small calls"),
    ("R13", "the receiver's work"),
    ("R14", "routine work"),
    ("R15", "missing memory"),
    ("R16", "disk reads"),
    ("R17", "stalls with a period"),
    ("R19", "the doctor itself"),
    ("R20", "long commands"),
    ("R21", "one busy client"),
    ("R22", "waiting for others"),
    ("R23", "stopped or paused"),
    ("R24", "runtime locks"),
    ("R27", "open descriptors"),
    ("R28", "lost packets"),
    ("R26", "other calls"),
    ("R25", "TLS and the like"),
];

/// "disk writes"; a rule without a name is its number.
pub(super) fn of(rule: &'static str) -> &'static str {
    NAMES.iter().find(|(number, _)| *number == rule).map_or(rule, |(_, name)| name)
}

/// "disk writes (R3)"; a rule without a name is its number.
pub(super) fn with_number(rule: &str) -> String {
    let known = NAMES.iter().find(|(number, _)| *number == rule);
    known.map_or_else(|| rule.to_string(), |(number, name)| format!("{name} ({number})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_a_name() {
        for rule in crate::analyse::rule_ids() {
            assert!(with_number(rule).ends_with(')'), "{rule} has no name in this table");
        }
    }
}
