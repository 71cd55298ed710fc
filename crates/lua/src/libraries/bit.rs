//! `bit`: operations on 32 bits.

use mlua::{Lua, Table, Value};

use super::{Given, add};
use crate::native::Raise;
use crate::values::one;

pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let unary = |name, f: fn(u32) -> u32| add(lua, &table, name, move |given| number(f(bits(given, 1)?)));
    unary("tobit", |a| a)?;
    unary("bnot", |a| !a)?;
    unary("bswap", u32::swap_bytes)?;
    let fold = |name, f: fn(u32, u32) -> u32| {
        add(lua, &table, name, move |given| {
            let mut result = bits(given, 1)?;
            for index in 2..=given.len() {
                result = f(result, bits(given, index)?);
            }
            number(result)
        })
    };
    fold("band", |a, b| a & b)?;
    fold("bor", |a, b| a | b)?;
    fold("bxor", |a, b| a ^ b)?;
    let shift = |name, f: fn(u32, u32) -> u32| {
        add(lua, &table, name, move |given| number(f(bits(given, 1)?, bits(given, 2)? & 31)))
    };
    shift("lshift", |a, by| a << by)?;
    shift("rshift", |a, by| a >> by)?;
    shift("arshift", |a, by| ((a as i32) >> by) as u32)?;
    shift("rol", u32::rotate_left)?;
    shift("ror", u32::rotate_right)?;
    add(lua, &table, "tohex", |given| {
        let value = bits(given, 1)?;
        let digits = if given.len() < 2 { 8 } else { bits(given, 2)? as i32 };
        let len = digits.unsigned_abs().min(8) as usize;
        let text = if digits < 0 { format!("{value:08X}") } else { format!("{value:08x}") };
        one(Value::String(given.lua.create_string(&text[8 - len..])?))
    })?;
    Ok(table)
}

/// Returns a number's lowest 32 bits, after rounding. An addition that pushes all other digits out defines
/// the rounding, and the result for large numbers.
fn bits(given: &Given<'_>, index: usize) -> Result<u32, Raise> {
    const PUSH: f64 = 6_755_399_441_055_744.0; // 2^52 + 2^51
    Ok((given.number(index)? + PUSH).to_bits() as u32)
}

fn number(bits: u32) -> Result<mlua::MultiValue, Raise> {
    one(Value::Number(f64::from(bits as i32)))
}
