//! `cmsgpack`: MessagePack of the first version, with the second version's strings of up to 255 bytes.

use mlua::{Lua, MultiValue, Table, Value};

use super::{Given, Steps, add};
use crate::native::Raise;
use crate::values::{one, truncated};
use crate::{Host, MEMORY_MAX};

/// Deepest nesting that is packed; deeper tables are packed as nil.
const PACK_DEPTH_MAX: usize = 16;

/// Deepest nesting that is unpacked, and most values that are returned: Lua's stack has room for no more.
const UNPACK_DEPTH_MAX: usize = 2_000;
const VALUES_MAX: usize = 7_900;

pub(super) fn library<H: Host>(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    add(lua, &table, "pack", pack::<H>)?;
    add(lua, &table, "unpack", |given| unpack(given, 0, 0))?;
    add(lua, &table, "unpack_one", |given| {
        let offset = if given.is_none_or_nil(2) { 0 } else { given.int(2)? };
        unpack(given, 1, offset)
    })?;
    add(lua, &table, "unpack_limit", |given| {
        let limit = given.int(2)?;
        let offset = if given.is_none_or_nil(3) { 0 } else { given.int(3)? };
        unpack(given, limit, offset)
    })?;
    table.raw_set("_NAME", "cmsgpack")?;
    table.raw_set("_VERSION", "lua-cmsgpack 0.4.0")?;
    table.raw_set("_COPYRIGHT", "Copyright (C) 2012, Salvatore Sanfilippo")?;
    table.raw_set("_DESCRIPTION", "MessagePack C implementation for Lua")?;
    Ok(table)
}

fn pack<H: Host>(given: &Given<'_>) -> Result<MultiValue, Raise> {
    if given.len() == 0 {
        return Err(given.bad(0, "MessagePack pack needs input."));
    }
    let (mut out, mut steps) = (Vec::new(), Steps::new::<H>());
    for value in given.args.iter() {
        encode(value, 0, &mut out, &mut steps)?;
    }
    one(Value::String(given.lua.create_string(out)?))
}

fn encode(value: &Value, depth: usize, out: &mut Vec<u8>, steps: &mut Steps) -> Result<(), Raise> {
    steps.take()?;
    if out.len() > MEMORY_MAX {
        return Err(Raise::here("not enough memory"));
    }
    match value {
        Value::String(text) => encode_text(&text.as_bytes(), out),
        Value::Boolean(value) => out.push(if *value { 0xc3 } else { 0xc2 }),
        Value::Integer(number) => encode_number(*number as f64, out),
        Value::Number(number) => encode_number(*number, out),
        Value::Table(table) if depth < PACK_DEPTH_MAX => encode_table(table, depth, out, steps)?,
        _ => out.push(0xc0),
    }
    Ok(())
}

fn encode_text(text: &[u8], out: &mut Vec<u8>) {
    head(out, text.len(), 31, 0xa0, &[(0xff, 0xd9), (0xffff, 0xda)], 0xdb);
    out.extend_from_slice(text);
}

/// Writes a length: in a single byte up to `short_max`, otherwise behind a code, in as many bytes as that
/// code's largest length takes.
fn head(out: &mut Vec<u8>, len: usize, short_max: usize, short: u8, codes: &[(usize, u8)], last: u8) {
    if len <= short_max {
        return out.push(short | len as u8);
    }
    match codes.iter().find(|(most, _)| len <= *most) {
        Some((0xff, code)) => out.extend_from_slice(&[*code, len as u8]),
        Some((_, code)) => {
            out.push(*code);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        None => {
            out.push(last);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
}

fn encode_number(number: f64, out: &mut Vec<u8>) {
    let whole = truncated(number);
    if number.is_infinite() || whole as f64 != number || number >= 9_223_372_036_854_775_808.0 {
        let short = number as f32;
        if f64::from(short) == number {
            out.push(0xca);
            out.extend_from_slice(&short.to_be_bytes());
        } else {
            out.push(0xcb);
            out.extend_from_slice(&number.to_be_bytes());
        }
        return;
    }
    let bytes = whole.to_be_bytes();
    let (code, len) = match whole {
        -32..=127 => return out.push(whole as u8),
        128..=0xff => (0xcc, 1),
        0x100..=0xffff => (0xcd, 2),
        0x1_0000..=0xffff_ffff => (0xce, 4),
        0x1_0000_0000.. => (0xcf, 8),
        -128..=-33 => (0xd0, 1),
        -32_768..=-129 => (0xd1, 2),
        -2_147_483_648..=-32_769 => (0xd2, 4),
        _ => (0xd3, 8),
    };
    out.push(code);
    out.extend_from_slice(&bytes[8 - len..]);
}

fn encode_table(table: &Table, depth: usize, out: &mut Vec<u8>, steps: &mut Steps) -> Result<(), Raise> {
    let (mut count, mut most, mut is_array) = (0_usize, 0.0_f64, true);
    for pair in table.pairs::<Value, Value>() {
        let number = match pair?.0 {
            Value::Integer(number) => number as f64,
            Value::Number(number) => number,
            _ => 0.0,
        };
        is_array &= number > 0.0 && number <= f64::from(i32::MAX) && number.trunc() == number;
        most = most.max(number);
        count += 1;
    }
    if is_array && most == count as f64 {
        let len = table.raw_len();
        head(out, len, 15, 0x90, &[(0xffff, 0xdc)], 0xdd);
        for index in 1..=len {
            encode(&table.raw_get::<Value>(index)?, depth + 1, out, steps)?;
        }
        return Ok(());
    }
    head(out, count, 15, 0x80, &[(0xffff, 0xde)], 0xdf);
    for pair in table.pairs::<Value, Value>() {
        let (key, value) = pair?;
        encode(&key, depth + 1, out, steps)?;
        encode(&value, depth + 1, out, steps)?;
    }
    Ok(())
}

fn unpack(given: &Given<'_>, limit: i64, offset: i64) -> Result<MultiValue, Raise> {
    let text = given.text(1)?;
    let data = text.as_bytes();
    if offset < 0 || limit < 0 {
        let text = format!("Invalid request to unpack with offset of {offset} and limit of {limit}.");
        return Err(Raise::here(text));
    }
    if offset as usize > data.len() {
        let text = format!("Start offset {offset} greater than input length {}.", data.len());
        return Err(Raise::here(text));
    }
    let is_all = limit == 0 && offset == 0;
    let limit = if is_all { i64::MAX } else { limit };
    let mut input = Input { lua: given.lua, left: &data[offset as usize..], depth: 0 };
    let mut values = Vec::new();
    while !input.left.is_empty() && (values.len() as i64) < limit {
        if values.len() >= VALUES_MAX {
            const TEXT: &str =
                "stack overflow (too many return values at once; use unpack_one or unpack_limit instead.)";
            return Err(Raise::here(TEXT));
        }
        values.push(input.value()?);
    }
    if !is_all {
        let next = if input.left.is_empty() { -1 } else { (data.len() - input.left.len()) as i64 };
        values.insert(0, Value::Number(next as f64));
    }
    Ok(MultiValue::from_vec(values))
}

struct Input<'l, 'd> {
    lua: &'l Lua,
    left: &'d [u8],
    depth: usize,
}

impl<'d> Input<'_, 'd> {
    fn take(&mut self, len: usize) -> Result<&'d [u8], Raise> {
        if len > self.left.len() {
            return Err(Raise::here("Missing bytes in input."));
        }
        let (taken, left) = self.left.split_at(len);
        self.left = left;
        Ok(taken)
    }

    /// Reads an unsigned number of `len` bytes.
    fn unsigned(&mut self, len: usize) -> Result<u64, Raise> {
        Ok(self.take(len)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn value(&mut self) -> Result<Value, Raise> {
        let code = self.take(1)?[0];
        let number = |number: f64| Ok(Value::Number(number));
        match code {
            0x00..=0x7f => number(f64::from(code)),
            0xe0..=0xff => number(f64::from(code as i8)),
            0xc0 => Ok(Value::Nil),
            0xc2 | 0xc3 => Ok(Value::Boolean(code == 0xc3)),
            0xcc..=0xce => number(self.unsigned(1 << (code - 0xcc))? as f64),
            // Lua 5.1 has only signed integers, and Redis converts by way of them.
            0xcf => number(self.unsigned(8)? as i64 as f64),
            0xd0 => number(f64::from(self.unsigned(1)? as i8)),
            0xd1 => number(f64::from(self.unsigned(2)? as i16)),
            0xd2 => number(f64::from(self.unsigned(4)? as i32)),
            0xd3 => number(self.unsigned(8)? as i64 as f64),
            0xca => number(f64::from(f32::from_bits(self.unsigned(4)? as u32))),
            0xcb => number(f64::from_bits(self.unsigned(8)?)),
            0xa0..=0xbf => self.text(usize::from(code & 31)),
            0xd9..=0xdb => {
                let len = self.unsigned(1 << (code - 0xd9))?;
                self.text(len as usize)
            }
            0x90..=0x9f => self.array(u64::from(code & 15)),
            0xdc | 0xdd => {
                let len = self.unsigned(2 << (code - 0xdc))?;
                self.array(len)
            }
            0x80..=0x8f => self.map(u64::from(code & 15)),
            0xde | 0xdf => {
                let len = self.unsigned(2 << (code - 0xde))?;
                self.map(len)
            }
            _ => Err(Raise::here("Bad data format in input.")),
        }
    }

    fn text(&mut self, len: usize) -> Result<Value, Raise> {
        let text = self.take(len)?;
        Ok(Value::String(self.lua.create_string(text)?))
    }

    fn descend(&mut self, what: &str) -> Result<Table, Raise> {
        self.depth += 1;
        if self.depth > UNPACK_DEPTH_MAX {
            return Err(Raise::here(format!("stack overflow (in function mp_decode_to_lua_{what})")));
        }
        Ok(self.lua.create_table()?)
    }

    /// Reserves nothing for the announced length, since the elements may be missing.
    fn array(&mut self, len: u64) -> Result<Value, Raise> {
        let table = self.descend("array")?;
        for index in 1..=len {
            let value = self.value()?;
            table.raw_set(index, value)?;
        }
        self.depth -= 1;
        Ok(Value::Table(table))
    }

    /// Returns the error in Lua's form for a C function: without a position.
    fn bad_index(&self, what: &str) -> Raise {
        match self.lua.create_string(format!("table index is {what}")) {
            Ok(text) => Raise::As(Value::String(text)),
            Err(error) => error.into(),
        }
    }

    fn map(&mut self, len: u64) -> Result<Value, Raise> {
        let table = self.descend("hash")?;
        for _ in 0..len {
            let (key, value) = (self.value()?, self.value()?);
            match key {
                Value::Nil => return Err(self.bad_index("nil")),
                Value::Number(number) if number.is_nan() => return Err(self.bad_index("NaN")),
                key => table.raw_set(key, value)?,
            }
        }
        self.depth -= 1;
        Ok(Value::Table(table))
    }
}
