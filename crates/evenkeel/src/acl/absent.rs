//! Commands that Redis or Valkey have and this server does not, so that their files of users can be read.
//!
//! A rule about one of them is kept and written down like any other, and changes nothing: there is nothing to permit.

/// Full names in lower case, sorted.
#[rustfmt::skip]
const NAMES: &[&str] = &[
    "asking",
    "client|capa", "client|import-source",
    "cluster", "clusterscan",
    "cluster|addslots", "cluster|addslotsrange", "cluster|bumpepoch", "cluster|cancelslotmigrations",
    "cluster|count-failure-reports", "cluster|countkeysinslot", "cluster|delslots", "cluster|delslotsrange",
    "cluster|failover", "cluster|flushslot", "cluster|flushslots", "cluster|forget", "cluster|getkeysinslot",
    "cluster|getslotmigrations", "cluster|help", "cluster|info", "cluster|keyslot", "cluster|links", "cluster|meet",
    "cluster|migrateslots", "cluster|myid", "cluster|myshardid", "cluster|nodes", "cluster|replicas",
    "cluster|replicate", "cluster|reset", "cluster|saveconfig", "cluster|set-config-epoch", "cluster|setslot",
    "cluster|shards", "cluster|slaves", "cluster|slot-stats", "cluster|slots", "cluster|syncslots",
    "lolwut",
    "module", "module|help", "module|list", "module|load", "module|loadex", "module|unload",
    "readonly", "readwrite",
];

/// Whether this is the name of such a command, or of a subcommand; in lower case.
pub(super) fn is_one(name: &[u8]) -> bool {
    NAMES.binary_search_by(|one| one.as_bytes().cmp(name)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::table::table;

    #[test]
    fn names_are_sorted_and_those_of_commands_that_are_absent() {
        assert!(NAMES.windows(2).all(|pair| pair[0] < pair[1]));
        for name in NAMES {
            assert!(is_one(name.as_bytes()) && table().find_full(name.as_bytes()).is_none(), "{name}");
        }
    }
}
