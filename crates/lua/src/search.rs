//! `string.find`, `match`, `gmatch` and `gsub`, on Lua's own stack. The crate's text has the rules for
//! such functions, and [`super::pattern`] the matcher.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use mlua::ffi::{self, lua_State};

use crate::Host;
use crate::native::raise_here;
use crate::pattern::{self, Caught, Matcher, Stop};

/// `string.find(s, pattern [, init [, plain]])`
pub(crate) unsafe extern "C-unwind" fn find<H: Host>(state: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this with its arguments on the stack and room for twenty values more. This frame owns
    // nothing.
    unsafe {
        let (subject, wanted) = (text(state, 1), text(state, 2));
        let start = start(state, subject.len());
        if ffi::lua_toboolean(state, 4) == 0 && has_specials(wanted) {
            return search::<H>(state, subject, wanted, start, true);
        }
        match memchr::memmem::find(&subject[start..], wanted) {
            Some(at) => {
                ffi::lua_pushinteger(state, (start + at + 1) as ffi::lua_Integer);
                ffi::lua_pushinteger(state, (start + at + wanted.len()) as ffi::lua_Integer);
                2
            }
            None => {
                ffi::lua_pushnil(state);
                1
            }
        }
    }
}

/// `string.match(s, pattern [, init])`
pub(crate) unsafe extern "C-unwind" fn match_<H: Host>(state: *mut lua_State) -> c_int {
    // SAFETY: as in `find`.
    unsafe {
        let (subject, pattern) = (text(state, 1), text(state, 2));
        let start = start(state, subject.len());
        search::<H>(state, subject, pattern, start, false)
    }
}

/// `string.gmatch(s, pattern)`: returns a closure over both and its position.
pub(crate) unsafe extern "C-unwind" fn gmatch<H: Host>(state: *mut lua_State) -> c_int {
    // SAFETY: as in `find`.
    unsafe {
        let (_, pattern) = (text(state, 1), text(state, 2));
        refuse_long(state, pattern);
        ffi::lua_settop(state, 2);
        ffi::lua_pushinteger(state, 0);
        ffi::lua_pushcclosure(state, next_match::<H>, 3);
        1
    }
}

unsafe extern "C-unwind" fn next_match<H: Host>(state: *mut lua_State) -> c_int {
    // SAFETY: as in `find`; `gmatch` has set the upvalues.
    unsafe {
        let subject = text(state, ffi::lua_upvalueindex(1));
        let pattern = text(state, ffi::lua_upvalueindex(2));
        let start = ffi::lua_tointeger(state, ffi::lua_upvalueindex(3)) as usize;
        let mut matcher = Matcher::new(subject, pattern, H::may_continue);
        for at in start..=subject.len() {
            if let Some(end) = matched(state, &mut matcher, at) {
                // After an empty match the next match begins at least a byte further on.
                let next = if end == at { end + 1 } else { end };
                ffi::lua_pushinteger(state, next as ffi::lua_Integer);
                ffi::lua_replace(state, ffi::lua_upvalueindex(3));
                return push_captures(state, &matcher, Some((at, end)));
            }
        }
        0
    }
}

/// `string.gsub(s, pattern, replacement [, n])`
pub(crate) unsafe extern "C-unwind" fn gsub<H: Host>(state: *mut lua_State) -> c_int {
    // SAFETY: as in `find`. The buffer is Lua's own: its values lie on the stack above the arguments, and
    // values pushed meanwhile are popped or added to it.
    unsafe {
        let (subject, pattern) = (text(state, 1), text(state, 2));
        let kind = ffi::lua_type(state, 3);
        // Cut to an `int`, as Lua does.
        let count_max =
            ffi::luaL_optinteger(state, 4, (subject.len() + 1) as ffi::lua_Integer) as c_int as i64;
        if !matches!(kind, ffi::LUA_TNUMBER | ffi::LUA_TSTRING | ffi::LUA_TFUNCTION | ffi::LUA_TTABLE) {
            ffi::luaL_argerror(state, 3, c"string/function/table expected".as_ptr());
        }
        refuse_long(state, pattern);
        let anchored = pattern.strip_prefix(b"^");
        let mut matcher = Matcher::new(subject, anchored.unwrap_or(pattern), H::may_continue);
        let mut buffer = MaybeUninit::<ffi::luaL_Buffer>::uninit();
        let buffer = buffer.as_mut_ptr();
        ffi::luaL_buffinit(state, buffer);
        // The text before `copied` is in the buffer.
        let (mut at, mut copied, mut count) = (0, 0, 0);
        while count < count_max {
            let end = matched(state, &mut matcher, at);
            if let Some(end) = end {
                add(buffer, &subject[copied..at]);
                add_replacement(state, buffer, &matcher, (at, end), kind);
                copied = end;
                count += 1;
            }
            match end {
                Some(end) if end > at => at = end,
                _ if at < subject.len() => at += 1,
                _ => break,
            }
            if anchored.is_some() {
                break;
            }
        }
        add(buffer, &subject[copied..]);
        ffi::luaL_pushresult(buffer);
        ffi::lua_pushinteger(state, count as ffi::lua_Integer);
        2
    }
}

/// Appends the replacement of a match to the buffer.
unsafe fn add_replacement(
    state: *mut lua_State,
    buffer: *mut ffi::luaL_Buffer,
    matcher: &Matcher<'_>,
    whole: (usize, usize),
    kind: c_int,
) {
    // SAFETY: as in `gsub`.
    unsafe {
        match kind {
            ffi::LUA_TFUNCTION => {
                ffi::lua_pushvalue(state, 3);
                let args = push_captures(state, matcher, Some(whole));
                ffi::lua_call(state, args, 1);
            }
            ffi::LUA_TTABLE => {
                push_capture(state, matcher, 0, Some(whole));
                ffi::lua_gettable(state, 3);
            }
            _ => return add_template(state, buffer, matcher, whole),
        }
        if ffi::lua_toboolean(state, -1) == 0 {
            // The match stays unchanged.
            ffi::lua_settop(state, -2);
            push_whole(state, matcher, whole);
        } else if ffi::lua_isstring(state, -1) == 0 {
            let name = ffi::luaL_typename(state, -1);
            ffi::luaL_where(state, 1);
            ffi::lua_pushstring(state, c"invalid replacement value (a ".as_ptr());
            ffi::lua_pushstring(state, name);
            ffi::lua_pushstring(state, c")".as_ptr());
            ffi::lua_concat(state, 4);
            ffi::lua_error(state);
        }
        ffi::luaL_addvalue(buffer);
    }
}

/// Appends a template to the buffer, in which `%1` stands for the first capture and `%0` for the whole match.
unsafe fn add_template(
    state: *mut lua_State,
    buffer: *mut ffi::luaL_Buffer,
    matcher: &Matcher<'_>,
    whole: (usize, usize),
) {
    // SAFETY: as in `gsub`.
    unsafe {
        let template = text(state, 3);
        let mut rest = template;
        while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
            add(buffer, &rest[..at]);
            match rest.get(at + 1).copied() {
                Some(b'0') => {
                    push_whole(state, matcher, whole);
                    ffi::luaL_addvalue(buffer);
                }
                Some(digit @ b'1'..=b'9') => {
                    push_capture(state, matcher, usize::from(digit - b'1'), Some(whole));
                    ffi::luaL_addvalue(buffer);
                }
                // At the end there is, as in C, a zero.
                other => add(buffer, &[other.unwrap_or(0)]),
            }
            rest = rest.get(at + 2..).unwrap_or_default();
        }
        add(buffer, rest);
    }
}

/// Pushes the captures of the first match from `start` on, after its bounds if `with_bounds`.
unsafe fn search<H: Host>(
    state: *mut lua_State,
    subject: &[u8],
    pattern: &[u8],
    start: usize,
    with_bounds: bool,
) -> c_int {
    // SAFETY: as in `find`.
    unsafe {
        refuse_long(state, pattern);
        let anchored = pattern.strip_prefix(b"^");
        let mut matcher = Matcher::new(subject, anchored.unwrap_or(pattern), H::may_continue);
        let last = if anchored.is_some() { start } else { subject.len() };
        for at in start..=last {
            let Some(end) = matched(state, &mut matcher, at) else { continue };
            if !with_bounds {
                return push_captures(state, &matcher, Some((at, end)));
            }
            ffi::lua_pushinteger(state, (at + 1) as ffi::lua_Integer);
            ffi::lua_pushinteger(state, end as ffi::lua_Integer);
            return push_captures(state, &matcher, None) + 2;
        }
        ffi::lua_pushnil(state);
        1
    }
}

/// Returns an argument that must be a string. The bytes stay valid while the argument is on the stack.
unsafe fn text<'s>(state: *mut lua_State, index: c_int) -> &'s [u8] {
    // SAFETY: as in `find`.
    unsafe {
        let mut len = 0;
        let start = ffi::luaL_checklstring(state, index, &mut len);
        std::slice::from_raw_parts(start.cast(), len)
    }
}

/// Returns the third argument as an offset: it counts from 1 on, or from the end.
unsafe fn start(state: *mut lua_State, len: usize) -> usize {
    // SAFETY: as in `find`.
    let given = unsafe { ffi::luaL_optinteger(state, 3, 1) } as i64;
    let offset = if given < 0 { given.saturating_add(len as i64) } else { given - 1 };
    offset.clamp(0, len as i64) as usize
}

/// Whether a text, up to its first zero byte, has special characters of patterns.
fn has_specials(pattern: &[u8]) -> bool {
    let mut seen = pattern.iter().take_while(|byte| **byte != 0);
    seen.any(|byte| b"^$*+?.([%-".contains(byte))
}

unsafe fn refuse_long(state: *mut lua_State, pattern: &[u8]) {
    if pattern.len() > pattern::LEN_MAX {
        // SAFETY: as in `find`.
        unsafe { raise_here(state, c"pattern too long") }
    }
}

unsafe fn matched(state: *mut lua_State, matcher: &mut Matcher<'_>, at: usize) -> Option<usize> {
    match matcher.match_at(at) {
        Ok(end) => end,
        // SAFETY: as in `find`.
        Err(stop) => unsafe { raise(state, stop) },
    }
}

unsafe fn raise(state: *mut lua_State, stop: Stop) -> ! {
    let text = match stop {
        Stop::Bad(text) => text,
        Stop::Ended => c"the script was stopped",
    };
    // SAFETY: as in `find`.
    unsafe { raise_here(state, text) }
}

/// Pushes all captures; `whole`, if given, when the pattern has none.
unsafe fn push_captures(
    state: *mut lua_State,
    matcher: &Matcher<'_>,
    whole: Option<(usize, usize)>,
) -> c_int {
    let count = if matcher.captures() == 0 && whole.is_some() { 1 } else { matcher.captures() };
    // SAFETY: as in `find`, and room is made.
    unsafe {
        ffi::luaL_checkstack(state, count as c_int, c"too many captures".as_ptr());
        (0..count).for_each(|index| push_capture(state, matcher, index, whole));
    }
    count as c_int
}

unsafe fn push_capture(
    state: *mut lua_State,
    matcher: &Matcher<'_>,
    index: usize,
    whole: Option<(usize, usize)>,
) {
    // SAFETY: as in `find`.
    unsafe {
        match matcher.caught(index, whole.unwrap_or_default()) {
            Ok(Caught::Text(text)) => _ = ffi::lua_pushlstring(state, text.as_ptr().cast(), text.len()),
            Ok(Caught::Position(position)) => ffi::lua_pushinteger(state, position as ffi::lua_Integer),
            Err(stop) => raise(state, stop),
        }
    }
}

unsafe fn push_whole(state: *mut lua_State, matcher: &Matcher<'_>, (at, end): (usize, usize)) {
    let text = matcher.between(at, end);
    // SAFETY: as in `find`.
    unsafe { _ = ffi::lua_pushlstring(state, text.as_ptr().cast(), text.len()) };
}

unsafe fn add(buffer: *mut ffi::luaL_Buffer, text: &[u8]) {
    // SAFETY: as in `gsub`.
    unsafe { ffi::luaL_addlstring(buffer, text.as_ptr().cast(), text.len()) };
}
