//! Replies as scripts see them.

use std::ffi::c_int;

use mlua::ffi::{self, lua_State};

use crate::stack::push_text;

/// Pushes a table with a single field.
unsafe fn push_tagged(state: *mut lua_State, name: &[u8], push: impl FnOnce(*mut lua_State)) {
    // SAFETY: callers have made room on the stack.
    unsafe {
        ffi::lua_createtable(state, 0, 1);
        push_text(state, name);
        push(state);
        ffi::lua_rawset(state, -3);
    }
}

/// Pushes an error in Redis' form. `is_counted`: the statistics of errors have it.
pub(crate) unsafe fn push_error(state: *mut lua_State, line: &[u8], is_counted: bool) {
    // SAFETY: as above.
    unsafe {
        push_tagged(state, b"err", |state| push_text(state, line));
        if is_counted {
            push_text(state, b"ignore_error_stats_update");
            ffi::lua_pushboolean(state, 1);
            ffi::lua_rawset(state, -3);
        }
    }
}

/// Pushes a reply, encoded by this server, as scripts see it.
pub(crate) unsafe fn push_reply(state: *mut lua_State, bytes: &[u8]) {
    // SAFETY: as in `super::native::raising`.
    unsafe {
        push_value(state, bytes, 0);
    }
}

/// An integer as Lua keeps numbers. Lengths and indices of arrays may have no sign.
fn integer(text: &[u8]) -> f64 {
    let signed = evenkeel_resp::number::parse_i64(text).map(|number| number as f64);
    let unsigned = || evenkeel_resp::number::parse_u64(text).map(|number| number as f64);
    signed.or_else(unsigned).expect("a number")
}

/// Deepest nesting of a reply; the deepest replies are COMMAND's.
const REPLY_DEPTH_MAX: usize = 64;

/// Pushes the value at the start of `bytes`; returns its length.
unsafe fn push_value(state: *mut lua_State, bytes: &[u8], depth: usize) -> usize {
    assert!(depth < REPLY_DEPTH_MAX, "no reply is nested this deep");
    let end = bytes.iter().position(|byte| *byte == b'\r').expect("a line ends");
    let (kind, line, next) = (bytes[0], &bytes[1..end], end + 2);
    let number = || evenkeel_resp::number::parse_i64(line).expect("a number");
    // SAFETY: as in `super::native::raising`; there is room for the values of a level.
    unsafe {
        ffi::luaL_checkstack(state, 8, c"out of stack".as_ptr());
        match kind {
            b'+' => push_tagged(state, b"ok", |state| push_text(state, line)),
            b'-' => push_error(state, line, false),
            b':' => ffi::lua_pushnumber(state, integer(line)),
            b'$' | b'*' if line == b"-1" => ffi::lua_pushboolean(state, 0),
            b'_' => ffi::lua_pushnil(state),
            b'#' => ffi::lua_pushboolean(state, c_int::from(line == b"t")),
            b',' => {
                let value = evenkeel_resp::float::parse(line).unwrap_or(f64::NAN);
                push_tagged(state, b"double", |state| ffi::lua_pushnumber(state, value));
            }
            b'(' => push_tagged(state, b"big_number", |state| push_text(state, line)),
            b'$' => {
                let len = number() as usize;
                push_text(state, &bytes[next..next + len]);
                return next + len + 2;
            }
            b'=' => {
                let len = number() as usize;
                let (format, text) = (&bytes[next..next + 3], &bytes[next + 4..next + len]);
                push_tagged(state, b"verbatim_string", |state| {
                    ffi::lua_createtable(state, 0, 2);
                    push_text(state, b"string");
                    push_text(state, text);
                    ffi::lua_rawset(state, -3);
                    push_text(state, b"format");
                    push_text(state, format);
                    ffi::lua_rawset(state, -3);
                });
                return next + len + 2;
            }
            b'*' | b'>' => return next + push_array(state, &bytes[next..], number() as usize, depth),
            b'%' | b'~' => {
                ffi::lua_createtable(state, 0, 1);
                push_text(state, if kind == b'%' { b"map" } else { b"set" });
                let taken = push_pairs(state, &bytes[next..], number() as usize, kind == b'%', depth);
                ffi::lua_rawset(state, -3);
                return next + taken;
            }
            b'|' => {
                // Attributes of the value that follows are not shown.
                let pairs = push_pairs(state, &bytes[next..], number() as usize, true, depth);
                ffi::lua_pop(state, 1);
                return next + pairs + push_value(state, &bytes[next + pairs..], depth + 1);
            }
            _ => unreachable!("no command replies otherwise"),
        }
    }
    next
}

unsafe fn push_array(state: *mut lua_State, bytes: &[u8], len: usize, depth: usize) -> usize {
    let mut at = 0;
    // SAFETY: as above.
    unsafe {
        ffi::lua_createtable(state, len.min(c_int::MAX as usize) as c_int, 0);
        for index in 0..len {
            at += push_value(state, &bytes[at..], depth + 1);
            ffi::lua_rawseti(state, -2, index as ffi::lua_Integer + 1);
        }
    }
    at
}

/// Pushes a table of pairs, or of members as keys with the value `true`.
unsafe fn push_pairs(
    state: *mut lua_State,
    bytes: &[u8],
    len: usize,
    has_values: bool,
    depth: usize,
) -> usize {
    let mut at = 0;
    // SAFETY: as above. An invalid key, such as a null, would raise an error; no command has such.
    unsafe {
        ffi::lua_createtable(state, 0, len.min(c_int::MAX as usize) as c_int);
        for _ in 0..len {
            at += push_value(state, &bytes[at..], depth + 1);
            if has_values {
                at += push_value(state, &bytes[at..], depth + 1);
            } else {
                ffi::lua_pushboolean(state, 1);
            }
            ffi::lua_rawset(state, -3);
        }
    }
    at
}
