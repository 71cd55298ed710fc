//! Functions that work on Lua's own stack: they raise errors as Lua's own functions do, and convert values
//! between replies and Lua.
//!
//! Lua raises an error by a long jump over all frames up to the next `pcall`. A Rust frame on that way must
//! own nothing, or it leaks. So every function here that may raise (it allocates in Lua, or raises on
//! purpose) holds only numbers, addresses and borrowed slices; owned memory belongs to callers outside the
//! jump (`mlua`'s closures, the [`super::run::Run`]).
//!
//! `mlua` raises errors as objects of its own kind. Scripts expect errors in Redis' form: strings with the
//! position of the caller, and tables with a field `err`. Hence [`raising`].

use std::ffi::c_int;

use mlua::ffi::{self, lua_State};
use mlua::{Function, Lua, MultiValue, Value};

use evenkeel_command::reply::Reply;

/// Ends of a function that does not return.
pub(super) enum Raise {
    /// An error with the position of the caller before it, as Lua's own functions raise it.
    Here(Vec<u8>),
    /// An error as it is.
    As(Value),
}

impl Raise {
    pub(super) fn here(text: impl Into<Vec<u8>>) -> Raise {
        Raise::Here(text.into())
    }
}

impl From<mlua::Error> for Raise {
    fn from(error: mlua::Error) -> Raise {
        let text = match error {
            mlua::Error::MemoryError(_) => "not enough memory".to_owned(),
            error => error.to_string(),
        };
        Raise::Here(text.into_bytes())
    }
}

const RETURNED: i64 = 0;
const RAISED: i64 = 1;
const RAISED_HERE: i64 = 2;

/// Creates a function for scripts: `body` in Rust, with errors in the form that scripts expect.
pub(super) fn native(
    lua: &Lua,
    body: impl Fn(&Lua, MultiValue) -> Result<MultiValue, Raise> + 'static,
) -> mlua::Result<Function> {
    let body = lua.create_function(move |lua, args| {
        let (kind, mut values) = match body(lua, args) {
            Ok(values) => (RETURNED, values),
            Err(Raise::As(value)) => (RAISED, MultiValue::from_vec(vec![value])),
            Err(Raise::Here(text)) => {
                (RAISED_HERE, MultiValue::from_vec(vec![Value::String(lua.create_string(&text)?)]))
            }
        };
        values.push_front(Value::Integer(kind));
        Ok(values)
    })?;
    closure(lua, raising, body)
}

/// Creates a C function with upvalues.
pub(super) fn closure(
    lua: &Lua,
    function: unsafe extern "C-unwind" fn(*mut lua_State) -> c_int,
    upvalue: impl mlua::IntoLuaMulti,
) -> mlua::Result<Function> {
    // SAFETY: the values on the stack become the upvalues of the function that is left there.
    unsafe {
        lua.exec_raw(upvalue, |state| {
            let upvalues = ffi::lua_gettop(state);
            ffi::lua_pushcclosure(state, function, upvalues);
        })
    }
}

/// Calls its upvalue, and raises the error that this call asks for.
unsafe extern "C-unwind" fn raising(state: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this with its arguments on the stack and room for twenty values more. This frame owns
    // nothing.
    unsafe {
        let args = ffi::lua_gettop(state);
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(1));
        ffi::lua_insert(state, 1);
        ffi::lua_call(state, args, ffi::LUA_MULTRET);
        match ffi::lua_tointeger(state, 1) as i64 {
            RETURNED => {
                ffi::lua_remove(state, 1);
                return ffi::lua_gettop(state);
            }
            RAISED_HERE => {
                ffi::luaL_where(state, 1);
                ffi::lua_pushvalue(state, 2);
                ffi::lua_concat(state, 2);
            }
            _ => ffi::lua_settop(state, 2),
        }
        ffi::lua_error(state)
    }
}

/// `pcall` in Redis' form: an error that is a table with a string `err` becomes that string. Errors of
/// `mlua`'s kind become strings.
pub(super) unsafe extern "C-unwind" fn pcall(state: *mut lua_State) -> c_int {
    // SAFETY: as in `raising`.
    unsafe {
        let args = ffi::lua_gettop(state);
        if args == 0 {
            raise_here(state, c"bad argument #1 to 'pcall' (value expected)");
        }
        if ffi::lua_pcall(state, args - 1, ffi::LUA_MULTRET, 0) == 0 {
            ffi::lua_pushboolean(state, 1);
            ffi::lua_insert(state, 1);
            return ffi::lua_gettop(state);
        }
        match ffi::lua_type(state, -1) {
            ffi::LUA_TTABLE => {
                ffi::lua_pushstring(state, c"err".as_ptr());
                ffi::lua_rawget(state, -2);
                if ffi::lua_type(state, -1) == ffi::LUA_TSTRING {
                    ffi::lua_replace(state, -2);
                } else {
                    ffi::lua_pop(state, 1);
                }
            }
            ffi::LUA_TUSERDATA => {
                ffi::luaL_tolstring(state, -1, std::ptr::null_mut());
                ffi::lua_replace(state, -2);
            }
            _ => {}
        }
        ffi::lua_pushboolean(state, 0);
        ffi::lua_insert(state, -2);
        2
    }
}

/// Whether the script may go on; called where no hook would run.
pub(super) fn may_go_on() -> bool {
    super::run::look_around() && super::api::load_in_time()
}

/// `xpcall`. After an error that the hook has raised, Lua calls the handler without hooks, so an endless
/// handler would never end.
pub(super) unsafe extern "C-unwind" fn xpcall(state: *mut lua_State) -> c_int {
    // SAFETY: as in `raising`.
    unsafe {
        ffi::luaL_checkany(state, 2);
        ffi::lua_settop(state, 2);
        if ffi::lua_type(state, 2) == ffi::LUA_TFUNCTION {
            ffi::lua_pushcclosure(state, handler, 1);
        }
        ffi::lua_insert(state, 1);
        let failed = ffi::lua_pcall(state, 0, ffi::LUA_MULTRET, 1) != 0;
        ffi::lua_pushboolean(state, c_int::from(!failed));
        ffi::lua_replace(state, 1);
        ffi::lua_gettop(state)
    }
}

/// Calls its upvalue, unless the script is over: then the error stays unchanged.
unsafe extern "C-unwind" fn handler(state: *mut lua_State) -> c_int {
    // SAFETY: as in `raising`.
    unsafe {
        ffi::lua_settop(state, 1);
        if may_go_on() {
            ffi::lua_pushvalue(state, ffi::lua_upvalueindex(1));
            ffi::lua_insert(state, 1);
            ffi::lua_call(state, 1, 1);
        }
    }
    1
}

/// Calls its first argument with the remaining arguments, and on an error the upvalue. Returns whether it
/// succeeded, and a single value. No Lua instruction follows the script, at which the hook could end a script
/// that has ended already.
pub(super) unsafe extern "C-unwind" fn protected(state: *mut lua_State) -> c_int {
    // SAFETY: as in `raising`.
    unsafe {
        let args = ffi::lua_gettop(state) - 1;
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(1));
        ffi::lua_insert(state, 1);
        let failed = ffi::lua_pcall(state, args, 1, 1) != 0;
        ffi::lua_pushboolean(state, c_int::from(!failed));
        ffi::lua_insert(state, -2);
    }
    2
}

/// Whether the first argument is a table that scripts must not change. If so, leaves the table behind it on
/// the stack, which the first upvalue maps to.
unsafe fn is_protected(state: *mut lua_State) -> bool {
    // SAFETY: as in `raising`.
    unsafe {
        if ffi::lua_type(state, 1) != ffi::LUA_TTABLE {
            return false;
        }
        ffi::lua_pushvalue(state, 1);
        ffi::lua_rawget(state, ffi::lua_upvalueindex(1));
        if ffi::lua_type(state, -1) == ffi::LUA_TNIL {
            ffi::lua_pop(state, 1);
            return false;
        }
        true
    }
}

/// Runs the C function in the second upvalue in place of this function.
unsafe fn original(state: *mut lua_State) -> c_int {
    // SAFETY: the second upvalue is one of Lua's own functions, none of which reads upvalues.
    unsafe {
        match ffi::lua_tocfunction(state, ffi::lua_upvalueindex(2)) {
            Some(function) => function(state),
            None => 0,
        }
    }
}

/// Wraps a Lua function that changes its first argument: refuses a protected table.
pub(super) unsafe extern "C-unwind" fn unless_protected(state: *mut lua_State) -> c_int {
    // SAFETY: as in `raising`.
    unsafe {
        refuse_protected(state);
        original(state)
    }
}

unsafe fn refuse_protected(state: *mut lua_State) {
    // SAFETY: as in `raising`.
    unsafe {
        if is_protected(state) {
            ffi::lua_pushstring(state, c"Attempt to modify a readonly table".as_ptr());
            ffi::lua_error(state);
        }
    }
}

/// Wraps a Lua function that goes over all elements of its first argument.
pub(super) unsafe extern "C-unwind" fn over_elements(state: *mut lua_State) -> c_int {
    /// More than the memory of a state has room for. A few elements, at the powers of two, can make Lua
    /// report a length of 2^29, and going over such a range would take minutes.
    const ELEMENTS_MAX: usize = 32 << 20;
    // SAFETY: as in `raising`.
    unsafe {
        if ffi::lua_type(state, 1) == ffi::LUA_TTABLE && ffi::lua_rawlen(state, 1) > ELEMENTS_MAX {
            raise_here(state, c"table is too long");
        }
        original(state)
    }
}

/// Like [`over_elements`], for a function that moves the elements.
pub(super) unsafe extern "C-unwind" fn over_own_elements(state: *mut lua_State) -> c_int {
    // SAFETY: as in `raising`.
    unsafe {
        refuse_protected(state);
        over_elements(state)
    }
}

/// `table.insert`. Lua's own moves all elements from the position on, even through two thousand million empty
/// places.
pub(super) unsafe extern "C-unwind" fn insert(state: *mut lua_State) -> c_int {
    const POSITION_MIN: i64 = -65_536;
    // SAFETY: as in `raising`.
    unsafe {
        // Truncated to an `int`, as Lua does.
        let position = i64::from(ffi::lua_tointeger(state, 2) as c_int);
        if ffi::lua_gettop(state) == 3 && position < POSITION_MIN {
            raise_here(state, c"bad argument #2 to 'insert' (position out of bounds)");
        }
        over_own_elements(state)
    }
}

/// `string.rep`. Lua's own counts to the end even if there is nothing to repeat.
pub(super) unsafe extern "C-unwind" fn rep(state: *mut lua_State) -> c_int {
    // SAFETY: as in `raising`.
    unsafe {
        let mut len = 0;
        ffi::luaL_checklstring(state, 1, &mut len);
        if len > 0 {
            return original(state);
        }
        ffi::luaL_checkinteger(state, 2);
        ffi::lua_settop(state, 1);
        1
    }
}

/// Wraps a Lua function that only reads its first argument: a protected table is replaced by the table behind
/// it.
pub(super) unsafe extern "C-unwind" fn behind_protection(state: *mut lua_State) -> c_int {
    // SAFETY: as in `raising`.
    unsafe {
        if is_protected(state) {
            ffi::lua_replace(state, 1);
        }
        original(state)
    }
}

/// `pairs`. The second upvalue is `next`, the third a `next` that sees the tables behind protected tables.
pub(super) unsafe extern "C-unwind" fn pairs(state: *mut lua_State) -> c_int {
    // SAFETY: as in `raising`.
    unsafe {
        ffi::luaL_checktype(state, 1, ffi::LUA_TTABLE);
        let next = if is_protected(state) { 3 } else { 2 };
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(next));
        ffi::lua_pushvalue(state, 1);
        ffi::lua_pushnil(state);
    }
    3
}

/// Raises the error for a write to a protected table.
pub(super) unsafe extern "C-unwind" fn refuse_write(state: *mut lua_State) -> c_int {
    // SAFETY: as in `raising`.
    unsafe { raise_here(state, c"Attempt to modify a readonly table") }
}

/// Raises the error for a missing global variable: `__index` of the table of globals.
pub(super) unsafe extern "C-unwind" fn missing_global(state: *mut lua_State) -> c_int {
    // SAFETY: as in `raising`.
    unsafe {
        ffi::luaL_where(state, 1);
        ffi::lua_pushstring(state, c"Script attempted to access nonexistent global variable '".as_ptr());
        ffi::luaL_tolstring(state, 2, std::ptr::null_mut());
        ffi::lua_pushstring(state, c"'".as_ptr());
        ffi::lua_concat(state, 4);
        ffi::lua_error(state)
    }
}

/// Wraps a Lua function that makes a coroutine. Each coroutine counts its own instructions to the next hook,
/// so many short coroutines would never be checked.
pub(super) unsafe extern "C-unwind" fn looked_at(state: *mut lua_State) -> c_int {
    // SAFETY: as in `raising`.
    unsafe {
        if !may_go_on() {
            raise_here(state, c"the script was stopped");
        }
        original(state)
    }
}

/// `unpack`. Lua's own counts the values in an `int`, which overflows for the widest ranges, and it writes
/// beyond its stack.
pub(super) unsafe extern "C-unwind" fn unpack(state: *mut lua_State) -> c_int {
    /// Most values that fit onto the stack.
    const VALUES_MAX: i64 = 8_000;
    // SAFETY: as in `raising`.
    unsafe {
        ffi::luaL_checktype(state, 1, ffi::LUA_TTABLE);
        let len = ffi::lua_rawlen(state, 1) as ffi::lua_Integer;
        // Truncated to an `int`, as Lua does.
        let from = ffi::luaL_optinteger(state, 2, 1) as c_int;
        let to = ffi::luaL_optinteger(state, 3, len) as c_int;
        if i64::from(to) - i64::from(from) >= VALUES_MAX {
            raise_here(state, c"too many results to unpack");
        }
        original(state)
    }
}

pub(super) unsafe fn raise_here(state: *mut lua_State, text: &std::ffi::CStr) -> ! {
    // SAFETY: as in `raising`.
    unsafe {
        ffi::luaL_where(state, 1);
        ffi::lua_pushstring(state, text.as_ptr());
        ffi::lua_concat(state, 2);
        ffi::lua_error(state)
    }
}

/// `redis.call` or `redis.pcall`; the first upvalue says whether errors are raised.
pub(super) unsafe extern "C-unwind" fn call(state: *mut lua_State) -> c_int {
    // SAFETY: as in `raising`. `super::run` catches panics, and owns the memory of its result.
    unsafe {
        let raises = ffi::lua_toboolean(state, ffi::lua_upvalueindex(1)) != 0;
        let called = super::run::call(&Stack(state));
        ffi::lua_settop(state, 0);
        match called {
            Called::Replied { bytes, len } => {
                let bytes = std::slice::from_raw_parts(bytes, len);
                push_reply(state, bytes);
            }
            Called::Failed { bytes, len } => push_error(state, std::slice::from_raw_parts(bytes, len), true),
            Called::Refused { bytes, len } => {
                push_error(state, std::slice::from_raw_parts(bytes, len), false);
                if raises {
                    ffi::lua_error(state);
                }
                return 1;
            }
            Called::Ended => {
                // The script may catch this error, but it can do no more, and its result is ignored.
                ffi::lua_pushstring(state, c"the script was stopped".as_ptr());
                ffi::lua_error(state);
            }
        }
        if raises && matches!(called, Called::Failed { .. }) {
            ffi::lua_error(state);
        }
        1
    }
}

/// Outcome of a command that a script has called. The run owns the bytes, and outlives this.
#[derive(Clone, Copy)]
pub(super) enum Called {
    /// A reply in RESP.
    Replied { bytes: *const u8, len: usize },
    /// The command's error: a line without its minus. It has been counted.
    Failed { bytes: *const u8, len: usize },
    /// The command was not run.
    Refused { bytes: *const u8, len: usize },
    /// The whole script is over.
    Ended,
}

/// Arguments of the function that is being called.
pub(super) struct Stack(*mut lua_State);

/// An argument of `redis.call`.
pub(super) enum Arg<'a> {
    Text(&'a [u8]),
    Number(f64),
    Other,
}

impl Stack {
    pub(super) fn len(&self) -> usize {
        // SAFETY: the state is that of the running function.
        unsafe { ffi::lua_gettop(self.0) as usize }
    }

    /// Returns the argument at `index`, from 0 on.
    pub(super) fn arg(&self, index: usize) -> Arg<'_> {
        let index = index as c_int + 1;
        // SAFETY: as above. A string is not converted, so nothing is allocated; it lives as long as it is on
        // the stack.
        unsafe {
            match ffi::lua_type(self.0, index) {
                ffi::LUA_TSTRING => Arg::Text(text_at(self.0, index)),
                ffi::LUA_TNUMBER => Arg::Number(ffi::lua_tonumber(self.0, index)),
                _ => Arg::Other,
            }
        }
    }
}

/// Returns the bytes of the string at an index.
unsafe fn text_at<'a>(state: *mut lua_State, index: c_int) -> &'a [u8] {
    // SAFETY: the caller knows that there is a string, and keeps it on the stack while it uses the bytes.
    unsafe {
        let mut len = 0;
        let bytes = ffi::lua_tolstring(state, index, &mut len);
        std::slice::from_raw_parts(bytes.cast(), len)
    }
}

unsafe fn push_text(state: *mut lua_State, text: &[u8]) {
    // SAFETY: the bytes are copied.
    unsafe {
        ffi::lua_pushlstring(state, text.as_ptr().cast(), text.len());
    }
}

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

unsafe fn push_error(state: *mut lua_State, line: &[u8], is_counted: bool) {
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
unsafe fn push_reply(state: *mut lua_State, bytes: &[u8]) {
    // SAFETY: as in `raising`.
    unsafe {
        push_value(state, bytes, 0);
    }
}

/// Deepest nesting of a reply; the deepest replies are COMMAND's.
const REPLY_DEPTH_MAX: usize = 64;

/// Pushes the value at the start of `bytes`; returns its length.
unsafe fn push_value(state: *mut lua_State, bytes: &[u8], depth: usize) -> usize {
    assert!(depth < REPLY_DEPTH_MAX, "no reply is nested this deep");
    let end = bytes.iter().position(|byte| *byte == b'\r').expect("a line ends");
    let (kind, line, next) = (bytes[0], &bytes[1..end], end + 2);
    let number = || evenkeel_resp::number::parse_i64(line).expect("a number");
    // SAFETY: as in `raising`; there is room for the values of a level.
    unsafe {
        ffi::luaL_checkstack(state, 8, c"out of stack".as_ptr());
        match kind {
            b'+' => push_tagged(state, b"ok", |state| push_text(state, line)),
            b'-' => push_error(state, line, false),
            b':' => ffi::lua_pushnumber(state, number() as f64),
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
pub(super) struct TooLong;

/// Most errors of a reply that are counted.
const ERRORS_MAX: usize = 1_000;

/// Writes the value that a script has returned, and collects the errors in it that are not counted yet.
pub(super) fn write(
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

/// Converts a number to a `long long` as C does: towards zero, and the least number if it does not fit.
pub(super) fn truncated(number: f64) -> i64 {
    let fits = number > -9_223_372_036_854_775_809.0 && number < 9_223_372_036_854_775_808.0;
    if fits { number as i64 } else { i64::MIN }
}
