//! The libraries that scripts find beside Lua's own, with the results and the error texts of the libraries
//! that Redis has.

mod bit;
mod cjson;
mod cmsgpack;
mod structs;

use mlua::{Lua, MultiValue, Table, Value};

use crate::Host;
use crate::native::{Raise, native};
use crate::values::{one, truncated};

/// Creates the libraries, by the names that scripts use.
pub fn all<H: Host>(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set("bit", bit::library(lua)?)?;
    table.raw_set("cjson", cjson::library::<H>(lua)?)?;
    table.raw_set("cmsgpack", cmsgpack::library::<H>(lua)?)?;
    table.raw_set("os", os(lua)?)?;
    table.raw_set("struct", structs::library(lua)?)?;
    Ok(table)
}

/// Returns the library `os`, which has only `clock()`: the CPU seconds of the process.
fn os(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let clock = native(lua, |_, _| {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        one(Value::Number(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9))
    })?;
    table.raw_set("clock", clock)?;
    Ok(table)
}

/// Resets the settings of the last script, so that scripts do not depend on earlier scripts of the same
/// thread.
pub fn reset(lua: &Lua) {
    cjson::reset(lua);
}

/// Arguments of a call of a library function.
struct Given<'l> {
    lua: &'l Lua,
    name: &'static str,
    args: MultiValue,
}

impl Given<'_> {
    fn len(&self) -> usize {
        self.args.len()
    }

    /// Returns an error about an argument; arguments count from 1.
    fn bad(&self, index: usize, text: &str) -> Raise {
        Raise::here(format!("bad argument #{index} to '{}' ({text})", self.name))
    }

    fn expected(&self, index: usize, kind: &str) -> Raise {
        let got = self.args.get(index - 1).map_or("no value", type_name);
        self.bad(index, &format!("{kind} expected, got {got}"))
    }

    fn is_none_or_nil(&self, index: usize) -> bool {
        matches!(self.args.get(index - 1), None | Some(Value::Nil))
    }

    fn number(&self, index: usize) -> Result<f64, Raise> {
        let value = self.args.get(index - 1).cloned();
        let number = value.and_then(|value| self.lua.coerce_number(value).ok().flatten());
        number.ok_or_else(|| self.expected(index, "number"))
    }

    fn int(&self, index: usize) -> Result<i64, Raise> {
        self.number(index).map(truncated)
    }

    fn text(&self, index: usize) -> Result<mlua::LuaString, Raise> {
        let value = self.args.get(index - 1).cloned();
        let is_text = matches!(value, Some(Value::String(_) | Value::Number(_) | Value::Integer(_)));
        let text = value.filter(|_| is_text).and_then(|value| self.lua.coerce_string(value).ok().flatten());
        text.ok_or_else(|| self.expected(index, "string"))
    }
}

/// Counts the steps of a call, and asks regularly whether the script may go on: a value may refer to another
/// many times, and so expand beyond any memory.
struct Steps {
    taken: u32,
    may_continue: fn() -> bool,
}

impl Steps {
    fn new<H: Host>() -> Steps {
        Steps { taken: 0, may_continue: H::may_continue }
    }

    fn take(&mut self) -> Result<(), Raise> {
        self.taken = self.taken.wrapping_add(1);
        if self.taken.is_multiple_of(4_096) && !(self.may_continue)() {
            return Err(Raise::here("interrupted"));
        }
        Ok(())
    }
}

/// Returns Lua's name of a value's type.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Integer(_) | Value::Number(_) => "number",
        Value::LightUserData(_) | Value::Error(_) => "userdata",
        value => value.type_name(),
    }
}

/// Adds a function to a library.
fn add(
    lua: &Lua,
    table: &Table,
    name: &'static str,
    body: impl Fn(&Given<'_>) -> Result<MultiValue, Raise> + 'static,
) -> mlua::Result<()> {
    let function = native(lua, move |lua, args| body(&Given { lua, name, args }))?;
    table.raw_set(name, function)
}
