//! Lua for scripts: the functions that scripts find, written in Rust, and the values that cross the border.
//!
//! | module | |
//! |---|---|
//! | `native` | functions in Rust and the errors that they raise |
//! | `guarded`, `search`, `pattern` | replacements of Lua's own functions; strings and their patterns |
//! | `call`, `push`, `reply` | `redis.call`, replies as scripts see them, and a script's value as a reply |
//! | `libraries` | cjson, cmsgpack, bit and struct |
//! | `random`, `values`, `stack` | random numbers; values and strings of Lua in Rust |
//! | `shebang` | the first line of a script or library |
//!
//! Absent: commands, sessions and the server, which a [`Host`] stands for; the Lua states, the sandbox's text
//! and the running of scripts (crate `scripting`).
//!
//! # Raising errors
//!
//! Lua raises an error by a long jump over all frames up to the next `pcall`. A Rust frame on that way must
//! own nothing, or it leaks. So every function here that may raise (it allocates in Lua, or raises on
//! purpose) holds only numbers, addresses and borrowed slices; owned memory belongs to callers outside the
//! jump (`mlua`'s closures, the [`Host`]).

pub mod call;
pub mod guarded;
pub mod libraries;
pub mod native;
mod pattern;
mod push;
pub mod random;
pub mod reply;
mod search;
pub mod shebang;
mod stack;
#[cfg(test)]
mod tests;
pub mod values;

use crate::call::{Called, Stack};

/// Most bytes of memory for a Lua state, and of a text that a library makes.
pub const MEMORY_MAX: usize = 512 << 20;

/// The server behind the functions of scripts. Its functions take no object: they find the running script of
/// the thread, and functions in Lua refer to them by address.
///
/// # Safety
///
/// [`Host::call`] does not unwind, and the bytes that it returns stay valid and unchanged until the thread
/// runs more of the script.
pub unsafe trait Host: 'static {
    /// Runs the command on the stack for the running script.
    fn call(stack: &Stack) -> Called;

    /// Returns `false` if the running script is over. It is called where no hook would run.
    fn may_continue() -> bool;
}
