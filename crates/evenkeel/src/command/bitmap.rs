//! Bitmaps: strings seen as bits.

use super::Command;

#[rustfmt::skip]
pub const COMMANDS: &[Command] = &[];
