//! Commands on keys of any type.

use super::Command;

#[rustfmt::skip]
pub const COMMANDS: &[Command] = &[];
