//! Lua's own functions, guarded: replacements of those that would bypass a metatable, run for ever without a
//! hook, or overflow.

use std::ffi::c_int;

use mlua::ffi::{self, lua_State};
use mlua::{Function, Lua, Table};

use crate::Host;
use crate::native::{closure, raise_here};
use crate::search;

/// Adds the replacements to the table `native` of the sandbox:
///
/// | field | |
/// |---|---|
/// | `guarded` | tables `base`, `table`, `string` and `coroutine` of replacements |
/// | `behind` | maps a protected table to the table behind it; the sandbox fills it |
/// | `refuse_write`, `missing_global` | for the metatables of protected tables |
/// | `pcall`, `xpcall` | in Redis' form |
pub fn add<H: Host>(lua: &Lua, native: &Table) -> mlua::Result<()> {
    let behind = lua.create_table()?;
    native.raw_set("guarded", replacements::<H>(lua, &behind)?)?;
    native.raw_set("behind", behind)?;
    native.raw_set("refuse_write", closure(lua, refuse_write, ())?)?;
    native.raw_set("missing_global", closure(lua, missing_global, ())?)?;
    native.raw_set("pcall", closure(lua, pcall, ())?)?;
    native.raw_set("xpcall", closure(lua, xpcall::<H>, ())?)
}

/// Returns the replacements by library. `behind` maps a protected table to the table behind it.
fn replacements<H: Host>(lua: &Lua, behind: &Table) -> mlua::Result<Table> {
    let globals = lua.globals();
    let wrap = |library: Option<&str>, names: &[&str], by| -> mlua::Result<Vec<(String, Function)>> {
        let from: Table = library.map_or(Ok(globals.clone()), |library| globals.raw_get(library))?;
        let one = |name: &&str| {
            let original: Function = from.raw_get(*name)?;
            Ok(((*name).to_owned(), closure(lua, by, (behind.clone(), original))?))
        };
        names.iter().map(one).collect()
    };
    let mut base = wrap(None, &["rawset", "setmetatable"], unless_protected)?;
    base.extend(wrap(None, &["rawget", "next"], behind_protection)?);
    let next: Function = globals.raw_get("next")?;
    let seeing = base.last().expect("the last of them is next").1.clone();
    base.push(("pairs".into(), closure(lua, pairs, (behind.clone(), next, seeing))?));
    let mut table = wrap(Some("table"), &["remove", "sort"], over_own_elements)?;
    table.extend(wrap(Some("table"), &["insert"], insert)?);
    table.extend(wrap(Some("table"), &["setn"], unless_protected)?);
    table.extend(wrap(Some("table"), &["foreach"], behind_protection)?);
    table.extend(wrap(Some("table"), &["foreachi"], over_elements)?);
    let mut string = wrap(Some("string"), &["rep"], rep)?;
    string.extend([
        ("find".to_owned(), closure(lua, search::find::<H>, ())?),
        ("match".to_owned(), closure(lua, search::match_::<H>, ())?),
        ("gmatch".to_owned(), closure(lua, search::gmatch::<H>, ())?),
        ("gfind".to_owned(), closure(lua, search::gmatch::<H>, ())?),
        ("gsub".to_owned(), closure(lua, search::gsub::<H>, ())?),
    ]);
    base.extend(wrap(None, &["unpack"], unpack)?);
    let coroutine = wrap(Some("coroutine"), &["create", "wrap"], looked_at::<H>)?;
    let all = [("base", base), ("table", table), ("string", string), ("coroutine", coroutine)];
    let guarded = lua.create_table()?;
    for (name, functions) in all {
        guarded.raw_set(name, lua.create_table_from(functions)?)?;
    }
    Ok(guarded)
}

/// Returns a function that calls its first argument with the remaining arguments, and `on_error` with an
/// error. It returns whether the call succeeded, and a single value.
pub fn protected_call(lua: &Lua, on_error: Function) -> mlua::Result<Function> {
    closure(lua, protected, on_error)
}

/// Returns `getfenv` and `setfenv` for functions whose environment is `shown`: Lua's own environment appears
/// as `shown`, and functions that live in it keep it.
pub fn environments(lua: &Lua, shown: &Table) -> mlua::Result<(Function, Function)> {
    let own = |name: &str| lua.globals().raw_get::<Function>(name);
    let (get, set) = (own("getfenv")?, own("setfenv")?);
    Ok((closure(lua, get_environment, (shown, get.clone()))?, closure(lua, set_environment, (get, set))?))
}

/// Whether the value on top of the stack is Lua's own environment.
unsafe fn is_own(state: *mut lua_State) -> bool {
    // SAFETY: as in `super::native::raising`.
    unsafe { ffi::lua_rawequal(state, -1, ffi::LUA_GLOBALSINDEX) != 0 }
}

/// `getfenv`; the upvalues are the shown environment, and Lua's function.
unsafe extern "C-unwind" fn get_environment(state: *mut lua_State) -> c_int {
    // SAFETY: as in `super::native::raising`.
    unsafe {
        original(state);
        if is_own(state) {
            ffi::lua_pushvalue(state, ffi::lua_upvalueindex(1));
        }
    }
    1
}

/// `setfenv`; the upvalues are Lua's `getfenv` and `setfenv`.
unsafe extern "C-unwind" fn set_environment(state: *mut lua_State) -> c_int {
    // SAFETY: as in `super::native::raising`; Lua's `getfenv` reads no upvalues.
    unsafe {
        ffi::luaL_checktype(state, 2, ffi::LUA_TTABLE);
        ffi::lua_settop(state, 2);
        if let Some(get) = ffi::lua_tocfunction(state, ffi::lua_upvalueindex(1)) {
            get(state);
            if is_own(state) {
                raise_here(state, c"'setfenv' cannot change environment of given object");
            }
        }
        ffi::lua_settop(state, 2);
        original(state)
    }
}

/// `pcall` in Redis' form: an error that is a table with a string `err` becomes that string. Errors of
/// `mlua`'s kind become strings.
unsafe extern "C-unwind" fn pcall(state: *mut lua_State) -> c_int {
    // SAFETY: as in `super::native::raising`.
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

/// `xpcall`. After an error that the hook has raised, Lua calls the handler without hooks, so an endless
/// handler would never end.
unsafe extern "C-unwind" fn xpcall<H: Host>(state: *mut lua_State) -> c_int {
    // SAFETY: as in `super::native::raising`.
    unsafe {
        ffi::luaL_checkany(state, 2);
        ffi::lua_settop(state, 2);
        if ffi::lua_type(state, 2) == ffi::LUA_TFUNCTION {
            ffi::lua_pushcclosure(state, handler::<H>, 1);
        }
        ffi::lua_insert(state, 1);
        let failed = ffi::lua_pcall(state, 0, ffi::LUA_MULTRET, 1) != 0;
        ffi::lua_pushboolean(state, c_int::from(!failed));
        ffi::lua_replace(state, 1);
        ffi::lua_gettop(state)
    }
}

/// Calls its upvalue, unless the script is over: then the error stays unchanged.
unsafe extern "C-unwind" fn handler<H: Host>(state: *mut lua_State) -> c_int {
    // SAFETY: as in `super::native::raising`.
    unsafe {
        ffi::lua_settop(state, 1);
        if H::may_continue() {
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
unsafe extern "C-unwind" fn protected(state: *mut lua_State) -> c_int {
    // SAFETY: as in `super::native::raising`.
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
    // SAFETY: as in `super::native::raising`.
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
unsafe extern "C-unwind" fn unless_protected(state: *mut lua_State) -> c_int {
    // SAFETY: as in `super::native::raising`.
    unsafe {
        refuse_protected(state);
        original(state)
    }
}

unsafe fn refuse_protected(state: *mut lua_State) {
    // SAFETY: as in `super::native::raising`.
    unsafe {
        if is_protected(state) {
            ffi::lua_pushstring(state, c"Attempt to modify a readonly table".as_ptr());
            ffi::lua_error(state);
        }
    }
}

/// Wraps a Lua function that goes over all elements of its first argument.
unsafe extern "C-unwind" fn over_elements(state: *mut lua_State) -> c_int {
    /// More than the memory of a state has room for. A few elements, at the powers of two, can make Lua
    /// report a length of 2^29, and going over such a range would take minutes.
    const ELEMENTS_MAX: usize = 32 << 20;
    // SAFETY: as in `super::native::raising`.
    unsafe {
        if ffi::lua_type(state, 1) == ffi::LUA_TTABLE && ffi::lua_rawlen(state, 1) > ELEMENTS_MAX {
            raise_here(state, c"table is too long");
        }
        original(state)
    }
}

/// Like [`over_elements`], for a function that moves the elements.
unsafe extern "C-unwind" fn over_own_elements(state: *mut lua_State) -> c_int {
    // SAFETY: as in `super::native::raising`.
    unsafe {
        refuse_protected(state);
        over_elements(state)
    }
}

/// `table.insert`. Lua's own moves all elements from the position on, even through two thousand million empty
/// places.
unsafe extern "C-unwind" fn insert(state: *mut lua_State) -> c_int {
    const POSITION_MIN: i64 = -65_536;
    // SAFETY: as in `super::native::raising`.
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
unsafe extern "C-unwind" fn rep(state: *mut lua_State) -> c_int {
    // SAFETY: as in `super::native::raising`.
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
unsafe extern "C-unwind" fn behind_protection(state: *mut lua_State) -> c_int {
    // SAFETY: as in `super::native::raising`.
    unsafe {
        if is_protected(state) {
            ffi::lua_replace(state, 1);
        }
        original(state)
    }
}

/// `pairs`. The second upvalue is `next`, the third a `next` that sees the tables behind protected tables.
unsafe extern "C-unwind" fn pairs(state: *mut lua_State) -> c_int {
    // SAFETY: as in `super::native::raising`.
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
unsafe extern "C-unwind" fn refuse_write(state: *mut lua_State) -> c_int {
    // SAFETY: as in `super::native::raising`.
    unsafe { raise_here(state, c"Attempt to modify a readonly table") }
}

/// Raises the error for a missing global variable: `__index` of the table of globals.
unsafe extern "C-unwind" fn missing_global(state: *mut lua_State) -> c_int {
    // SAFETY: as in `super::native::raising`.
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
unsafe extern "C-unwind" fn looked_at<H: Host>(state: *mut lua_State) -> c_int {
    // SAFETY: as in `super::native::raising`.
    unsafe {
        if !H::may_continue() {
            raise_here(state, c"the script was stopped");
        }
        original(state)
    }
}

/// `unpack`. Lua's own counts the values in an `int`, which overflows for the widest ranges, and it writes
/// beyond its stack.
unsafe extern "C-unwind" fn unpack(state: *mut lua_State) -> c_int {
    /// Most values that fit onto the stack.
    const VALUES_MAX: i64 = 8_000;
    // SAFETY: as in `super::native::raising`.
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
