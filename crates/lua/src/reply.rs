//! The value that a script has returned, as a reply.

use std::ffi::c_int;

use evenkeel_command::reply::Reply;
use mlua::ffi::{self, lua_State};
use mlua::{Lua, Value};

use crate::stack::{push_text, text_at};
use crate::values::truncated;

/// Most bytes of a script's reply.
const REPLY_LEN_MAX: usize = 1 << 30;

/// Most elements of a script's reply. A script's memory holds fewer, but a table may contain itself, many
/// times.
const ELEMENTS_MAX: usize = 32 << 20;

/// Free slots of Lua's stack needed to write a value; with fewer, an error takes its place. Lua's stack has
/// 8,000 slots and each level of nesting keeps some of them, so this bounds the depth of a reply. Four would
/// do. Redis asks for four and has an error handler below, so with five both end at the same depth: 7,995
/// arrays, or 2,665 maps.
const STACK_ROOM: c_int = 5;

/// A reply exceeds [`REPLY_LEN_MAX`] or [`ELEMENTS_MAX`].
pub struct TooLong;

/// Most errors of a reply that are counted.
const ERRORS_MAX: usize = 1_000;

/// Writes the value that a script has returned, and collects the errors in it that are not counted yet.
pub fn write(
    lua: &Lua,
    value: &Value,
    script_resp3: bool,
    reply: &mut Reply,
    errors: &mut Vec<Vec<u8>>,
) -> mlua::Result<Result<(), TooLong>> {
    let (mut written, start, mut frames) = (Ok(()), reply.len(), Vec::new());
    // SAFETY: the value is on the stack. The closure owns nothing, and `exec_raw` catches a jump out of it.
    unsafe {
        lua.exec_raw::<()>(value, |state| {
            written =
                Writer { state, script_resp3, reply, start, elements: 0, frames: &mut frames, errors }.run();
            ffi::lua_settop(state, 0);
        })?;
    }
    Ok(written)
}

/// A table whose elements are being written. The table is on the stack; a variant names the values above it.
enum Frame {
    Array {
        next: usize,
        len: usize,
    },
    /// The table is a field of another table, which is below it. Above it: a key, and the value if the value
    /// is written next.
    Pairs {
        with_values: bool,
        at_value: bool,
    },
}

/// Writes values without recursion: scripts may nest them as deep as Lua's stack allows.
struct Writer<'r> {
    state: *mut lua_State,
    script_resp3: bool,
    reply: &'r mut Reply,
    start: usize,
    /// Elements counted so far: counting visits as many elements again as are written.
    elements: usize,
    frames: &'r mut Vec<Frame>,
    errors: &'r mut Vec<Vec<u8>>,
}

impl Writer<'_> {
    /// Writes the value on top of the stack.
    unsafe fn run(&mut self) -> Result<(), TooLong> {
        loop {
            // SAFETY: there is a value on top, and `advance` has left the next value there.
            unsafe {
                self.value();
                if self.reply.len() - self.start > REPLY_LEN_MAX || self.elements > ELEMENTS_MAX {
                    return Err(TooLong);
                }
                if !self.advance() {
                    return Ok(());
                }
            }
        }
    }

    /// Brings the next value to be written to the top. Returns `false` if there is none.
    unsafe fn advance(&mut self) -> bool {
        let state = self.state;
        // SAFETY: the frames describe the stack.
        unsafe {
            while let Some(frame) = self.frames.last_mut() {
                match frame {
                    Frame::Array { next, len } if *next < *len => {
                        *next += 1;
                        ffi::lua_rawgeti(state, -1, *next as ffi::lua_Integer);
                        return true;
                    }
                    Frame::Array { .. } => ffi::lua_pop(state, 1),
                    Frame::Pairs { at_value: at_value @ true, .. } => {
                        *at_value = false;
                        return true;
                    }
                    Frame::Pairs { with_values, at_value } => {
                        if ffi::lua_next(state, -2) != 0 {
                            *at_value = *with_values;
                            if !*with_values {
                                ffi::lua_pop(state, 1);
                            }
                            ffi::lua_pushvalue(state, if *with_values { -2 } else { -1 });
                            return true;
                        }
                        ffi::lua_pop(state, 2);
                    }
                }
                self.frames.pop();
            }
        }
        false
    }

    /// Writes the value on top and pops it, or makes a frame of it.
    unsafe fn value(&mut self) {
        let state = self.state;
        // SAFETY: as in `write`; there is room for all pushed values.
        unsafe {
            if ffi::lua_checkstack(state, STACK_ROOM) == 0 {
                self.error(b"ERR reached lua stack limit", false);
                return ffi::lua_pop(state, 1);
            }
            match ffi::lua_type(state, -1) {
                ffi::LUA_TSTRING => self.reply.bulk(text_at(state, -1)),
                ffi::LUA_TNUMBER => self.reply.int(truncated(ffi::lua_tonumber(state, -1))),
                ffi::LUA_TBOOLEAN => {
                    let value = ffi::lua_toboolean(state, -1) != 0;
                    match (self.script_resp3, value) {
                        (true, value) => self.reply.bool(value),
                        (false, true) => self.reply.int(1),
                        (false, false) => self.reply.null(),
                    }
                }
                ffi::LUA_TTABLE => return self.table(),
                _ => self.reply.null(),
            }
            ffi::lua_pop(state, 1);
        }
    }

    /// Pushes a field of the table on top if it has this type.
    unsafe fn field(&mut self, name: &[u8], kind: c_int) -> bool {
        // SAFETY: as in `value`.
        unsafe {
            push_text(self.state, name);
            ffi::lua_rawget(self.state, -2);
            let is_there = ffi::lua_type(self.state, -1) == kind;
            if !is_there {
                ffi::lua_pop(self.state, 1);
            }
            is_there
        }
    }

    unsafe fn table(&mut self) {
        let state = self.state;
        // SAFETY: as in `value`.
        unsafe {
            if self.field(b"err", ffi::LUA_TSTRING) {
                ffi::lua_insert(state, -2);
                let is_counted = self.field(b"ignore_error_stats_update", ffi::LUA_TBOOLEAN);
                ffi::lua_pop(state, c_int::from(is_counted));
                ffi::lua_insert(state, -2);
                self.error(text_at(state, -1), is_counted);
            } else if self.field(b"ok", ffi::LUA_TSTRING) {
                self.reply.simple_bytes(text_at(state, -1));
            } else if self.field(b"double", ffi::LUA_TNUMBER) {
                self.reply.double(ffi::lua_tonumber(state, -1));
            } else if self.field(b"map", ffi::LUA_TTABLE) {
                return self.begin_pairs(true);
            } else if self.field(b"set", ffi::LUA_TTABLE) {
                return self.begin_pairs(false);
            } else if self.field(b"big_number", ffi::LUA_TSTRING) {
                self.reply.big_number_bytes(text_at(state, -1));
            } else if !(self.field(b"verbatim_string", ffi::LUA_TTABLE) && self.verbatim()) {
                return self.begin_array();
            }
            ffi::lua_pop(state, 2);
        }
    }

    /// Writes an error, and collects it unless it has been counted.
    fn error(&mut self, line: &[u8], is_counted: bool) {
        self.reply.errors += 1;
        self.reply.error(line);
        if !is_counted && self.errors.len() < ERRORS_MAX {
            self.errors.push(line[..line.len().min(64)].to_vec());
        }
    }

    /// Writes the table on top if it has a text and its format; otherwise pops it.
    unsafe fn verbatim(&mut self) -> bool {
        let state = self.state;
        // SAFETY: as in `value`.
        unsafe {
            let mut is_one = false;
            if self.field(b"format", ffi::LUA_TSTRING) {
                ffi::lua_insert(state, -2);
                if self.field(b"string", ffi::LUA_TSTRING) {
                    self.reply.verbatim_bytes(text_at(state, -1), text_at(state, -3));
                    ffi::lua_pop(state, 1);
                    is_one = true;
                }
                ffi::lua_remove(state, -2);
            }
            if !is_one {
                ffi::lua_pop(state, 1);
            }
            is_one
        }
    }

    /// Begins the table on top, the pairs, or members as keys, of the table below it.
    unsafe fn begin_pairs(&mut self, with_values: bool) {
        let state = self.state;
        // SAFETY: as in `value`.
        unsafe {
            let mut len = 0;
            ffi::lua_pushnil(state);
            while ffi::lua_next(state, -2) != 0 {
                ffi::lua_pop(state, 1);
                len += 1;
            }
            self.elements += len;
            if with_values {
                self.reply.map(len)
            } else {
                self.reply.set(len)
            }
            ffi::lua_pushnil(state);
            self.frames.push(Frame::Pairs { with_values, at_value: false });
        }
    }

    /// Begins the table on top as an array of its elements up to the first nil.
    unsafe fn begin_array(&mut self) {
        let state = self.state;
        let mut len = 0;
        // SAFETY: as in `value`.
        unsafe {
            loop {
                ffi::lua_rawgeti(state, -1, len as ffi::lua_Integer + 1);
                let is_end = ffi::lua_type(state, -1) == ffi::LUA_TNIL;
                ffi::lua_pop(state, 1);
                if is_end {
                    break;
                }
                len += 1;
            }
        }
        self.elements += len;
        self.reply.array(len);
        self.frames.push(Frame::Array { next: 0, len });
    }
}
