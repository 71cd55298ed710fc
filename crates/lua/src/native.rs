//! Functions for scripts that are written in Rust, and the errors that they raise.
//!
//! `mlua` raises errors as objects of its own kind. Scripts expect errors in Redis' form: strings with the
//! position of the caller, and tables with a field `err`. Hence [`raising`].

use std::ffi::{CStr, c_int};

use mlua::ffi::{self, lua_State};
use mlua::{Function, Lua, MultiValue, Table, Value};

/// Ends of a function that does not return.
pub enum Raise {
    /// An error with the position of the caller before it, as Lua's own functions raise it.
    Here(Vec<u8>),
    /// An error as it is.
    As(Value),
}

impl Raise {
    pub fn here(text: impl Into<Vec<u8>>) -> Raise {
        Raise::Here(text.into())
    }

    /// Returns an error as Redis' own functions raise it: a table, without the caller's position.
    pub fn refuse(lua: &Lua, text: &str) -> Raise {
        match error_table(lua, format!("ERR {text}").as_bytes()) {
            Ok(table) => Raise::As(Value::Table(table)),
            Err(error) => error.into(),
        }
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

/// Returns an error in Redis' form: a table whose field `err` is the line of the error.
pub fn error_table(lua: &Lua, line: &[u8]) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(0, 1)?;
    table.raw_set("err", lua.create_string(line)?)?;
    Ok(table)
}

const RETURNED: i64 = 0;
const RAISED: i64 = 1;
const RAISED_HERE: i64 = 2;

/// Creates a function for scripts: `body` in Rust, with errors in the form that scripts expect.
pub fn native(
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
pub(crate) fn closure(
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

/// Raises `text` with the position of the caller before it.
pub(crate) unsafe fn raise_here(state: *mut lua_State, text: &CStr) -> ! {
    // SAFETY: as in `raising`.
    unsafe {
        ffi::luaL_where(state, 1);
        ffi::lua_pushstring(state, text.as_ptr());
        ffi::lua_concat(state, 2);
        ffi::lua_error(state)
    }
}
