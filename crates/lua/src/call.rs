//! `redis.call`: from a script's stack to the host, and the reply back.

use std::ffi::c_int;

use mlua::ffi::{self, lua_State};
use mlua::{Function, Lua};

use crate::Host;
use crate::native::closure;
use crate::push::{push_error, push_reply};
use crate::stack::text_at;

/// Returns `redis.call`, which raises the errors of commands, or `redis.pcall`, which returns them.
pub fn function<H: Host>(lua: &Lua, raises: bool) -> mlua::Result<Function> {
    closure(lua, call::<H>, raises)
}

/// `redis.call` or `redis.pcall`; the first upvalue says whether errors are raised.
unsafe extern "C-unwind" fn call<H: Host>(state: *mut lua_State) -> c_int {
    // SAFETY: as in `super::native::raising`. `Host::call` does not unwind, and its bytes stay as they are:
    // no script runs before this function returns.
    unsafe {
        let raises = ffi::lua_toboolean(state, ffi::lua_upvalueindex(1)) != 0;
        let called = H::call(&Stack(state));
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

/// Outcome of a command that a script has called. The host owns the bytes, see [`Host::call`].
#[derive(Clone, Copy)]
pub enum Called {
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
pub struct Stack(*mut lua_State);

/// An argument of `redis.call`.
pub enum Arg<'a> {
    Text(&'a [u8]),
    Number(f64),
    Other,
}

impl Stack {
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn len(&self) -> usize {
        // SAFETY: the state is that of the running function.
        unsafe { ffi::lua_gettop(self.0) as usize }
    }

    /// Returns the argument at `index`, from 0 on.
    pub fn arg(&self, index: usize) -> Arg<'_> {
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
