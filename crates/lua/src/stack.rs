//! Strings on Lua's stack.

use std::ffi::c_int;

use mlua::ffi::{self, lua_State};

/// Returns the bytes of the string at an index.
pub(crate) unsafe fn text_at<'a>(state: *mut lua_State, index: c_int) -> &'a [u8] {
    // SAFETY: the caller knows that there is a string, and keeps it on the stack while it uses the bytes.
    unsafe {
        let mut len = 0;
        let bytes = ffi::lua_tolstring(state, index, &mut len);
        std::slice::from_raw_parts(bytes.cast(), len)
    }
}

/// Pushes a copy of `text`.
pub(crate) unsafe fn push_text(state: *mut lua_State, text: &[u8]) {
    // SAFETY: the bytes are copied.
    unsafe {
        ffi::lua_pushlstring(state, text.as_ptr().cast(), text.len());
    }
}
