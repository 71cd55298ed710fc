//! Values of Lua in Rust.

use mlua::{Lua, MultiValue, Value};

use crate::native::Raise;

/// Returns a single result.
pub fn one(value: Value) -> Result<MultiValue, Raise> {
    Ok(MultiValue::from_vec(vec![value]))
}

/// Returns a number, or a string that Lua converts to a number.
pub fn number(lua: &Lua, value: Option<&Value>) -> Option<f64> {
    lua.coerce_number(value?.clone()).ok()?
}

/// Returns a string, or a number as Lua converts it to a string.
pub fn text(lua: &Lua, value: Option<&Value>) -> Option<Vec<u8>> {
    Some(lua.coerce_string(value?.clone()).ok()??.as_bytes().to_vec())
}

/// Converts a number to a `long long` as C does: towards zero, and the least number if it does not fit.
pub fn truncated(number: f64) -> i64 {
    let fits = number > -9_223_372_036_854_775_809.0 && number < 9_223_372_036_854_775_808.0;
    if fits { number as i64 } else { i64::MIN }
}
