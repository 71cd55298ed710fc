//! Clients.

use super::Command;

#[rustfmt::skip]
pub const COMMANDS: &[Command] = &[];
