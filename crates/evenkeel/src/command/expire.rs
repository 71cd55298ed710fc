//! Deadlines: EXPIRE and its family.

use super::Command;

#[rustfmt::skip]
pub const COMMANDS: &[Command] = &[];
