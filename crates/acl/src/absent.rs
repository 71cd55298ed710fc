//! Commands that Redis or Valkey have and this server lacks, so that their ACL files can be read.
//!
//! A rule about such a command is kept and written like any other rule. It has no effect: there is nothing to
//! permit.

/// Full names in lower case, sorted.
#[rustfmt::skip]
const NAMES: &[&str] = &[
    "cluster|syncslots",
];

/// Whether `name`, in lower case, is such a command or a subcommand.
pub(super) fn is_one(name: &[u8]) -> bool {
    NAMES.binary_search_by(|one| one.as_bytes().cmp(name)).is_ok()
}

/// The names of these commands, sorted.
pub fn absent_commands() -> &'static [&'static str] {
    NAMES
}
