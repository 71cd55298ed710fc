//! Commands that Redis or Valkey have and this server lacks, so that their ACL files can be read.
//!
//! A rule about such a command is kept and written like any other rule. It has no effect: there is nothing to
//! permit.

/// Full names in lower case, sorted.
#[rustfmt::skip]
const NAMES: &[&str] = &[
    "client|capa", "client|import-source",
    "clusterscan",
    "cluster|flushslot", "cluster|syncslots",
];

/// Whether `name`, in lower case, is such a command or a subcommand.
pub(super) fn is_one(name: &[u8]) -> bool {
    NAMES.binary_search_by(|one| one.as_bytes().cmp(name)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_command::table::table;

    #[test]
    fn names_are_sorted_and_those_of_commands_that_are_absent() {
        crate::commands::install();
        assert!(NAMES.windows(2).all(|pair| pair[0] < pair[1]));
        for name in NAMES {
            assert!(is_one(name.as_bytes()) && table().find_full(name.as_bytes()).is_none(), "{name}");
        }
    }
}
