//! `struct`: values packed in the layout of C.

use mlua::{Lua, MultiValue, Table, Value};

use super::{Given, add};
use crate::native::Raise;
use crate::values::{one, truncated};

/// Bytes of the largest integer.
const INT_SIZE_MAX: usize = 32;

/// The largest alignment, and the default of `!`.
const ALIGN_MAX: usize = 8;

/// Bytes of the longest result.
const LEN_MAX: usize = 512 << 20;

pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    add(lua, &table, "pack", pack)?;
    add(lua, &table, "unpack", unpack)?;
    add(lua, &table, "size", size)?;
    Ok(table)
}

/// A format and the position in it.
struct Format<'f> {
    rest: &'f [u8],
    is_little: bool,
    align: usize,
}

/// An option of the format, and the size of its value in bytes.
struct Item {
    option: u8,
    size: usize,
    /// Bytes before the value that align it.
    padding: usize,
}

impl<'f> Format<'f> {
    fn new(text: &'f [u8]) -> Format<'f> {
        // As in C, the format ends at its first zero byte.
        let rest = text.split(|byte| *byte == 0).next().unwrap_or_default();
        Format { rest, is_little: true, align: 1 }
    }

    /// Reads the next option, for a value at offset `at`.
    fn next(&mut self, at: usize) -> Option<Result<Item, Raise>> {
        let (option, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(self.size(*option).map(|size| Item {
            option: *option,
            size,
            padding: self.padding(at, *option, size),
        }))
    }

    fn size(&mut self, option: u8) -> Result<usize, Raise> {
        Ok(match option {
            b'B' | b'b' | b'x' => 1,
            b'H' | b'h' => 2,
            b'L' | b'l' | b'T' | b'd' => 8,
            b'f' => 4,
            b'c' => self.number(1)?,
            b'i' | b'I' => {
                let size = self.number(4)?;
                if size > INT_SIZE_MAX {
                    let text = format!("integral size {size} is larger than limit of {INT_SIZE_MAX}");
                    return Err(Raise::here(text));
                }
                size
            }
            _ => 0,
        })
    }

    /// Reads a number, if the format has digits here.
    fn number(&mut self, default: usize) -> Result<usize, Raise> {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return Ok(default);
        }
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        let mut value: i32 = 0;
        for digit in number {
            let next = value.checked_mul(10).and_then(|value| value.checked_add(i32::from(digit - b'0')));
            value = next.ok_or_else(|| Raise::here("integral size overflow"))?;
        }
        Ok(value as usize)
    }

    fn padding(&self, at: usize, option: u8, size: usize) -> usize {
        if size == 0 || option == b'c' {
            return 0;
        }
        let size = size.min(self.align);
        size.wrapping_sub(at & size.wrapping_sub(1)) & size.wrapping_sub(1)
    }

    /// Handles an option without a value.
    fn control(&mut self, given: &Given<'_>, option: u8) -> Result<(), Raise> {
        match option {
            b' ' => {}
            b'>' => self.is_little = false,
            b'<' => self.is_little = true,
            b'!' => {
                let align = self.number(ALIGN_MAX)?;
                if !align.is_power_of_two() {
                    return Err(Raise::here(format!("alignment {align} is not a power of 2")));
                }
                self.align = align;
            }
            option => {
                let mut text =
                    format!("bad argument #1 to '{}' (invalid format option '", given.name).into_bytes();
                text.push(option);
                text.extend_from_slice(b"')");
                return Err(Raise::Here(text));
            }
        }
        Ok(())
    }

    /// Reorders the bytes of an integer or a float, given in little-endian order, into the format's order.
    fn ordered(&self, bytes: &mut [u8]) {
        if !self.is_little {
            bytes.reverse();
        }
    }
}

fn pack(given: &Given<'_>) -> Result<MultiValue, Raise> {
    let text = given.text(1)?;
    let text = text.as_bytes();
    let (mut format, mut out, mut arg) = (Format::new(&text), Vec::new(), 2);
    while let Some(item) = format.next(out.len()) {
        let Item { option, size, padding } = item?;
        // A string's length is checked before room for it is made.
        if !matches!(option, b'c' | b's') {
            find_room(&out, padding + size)?;
        }
        out.resize(out.len() + padding, 0);
        match option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                let mut bytes = [0; INT_SIZE_MAX];
                bytes[..8].copy_from_slice(&unsigned(given.number(arg)?).to_le_bytes());
                format.ordered(&mut bytes[..size]);
                out.extend_from_slice(&bytes[..size]);
                arg += 1;
            }
            b'x' => out.push(0),
            b'f' => {
                let mut bytes = (given.number(arg)? as f32).to_le_bytes();
                format.ordered(&mut bytes);
                out.extend_from_slice(&bytes);
                arg += 1;
            }
            b'd' => {
                let mut bytes = given.number(arg)?.to_le_bytes();
                format.ordered(&mut bytes);
                out.extend_from_slice(&bytes);
                arg += 1;
            }
            b'c' | b's' => {
                let word = given.text(arg)?;
                let word = word.as_bytes();
                arg += 1;
                let len = if size == 0 { word.len() } else { size };
                if word.len() < len {
                    return Err(given.bad(arg, "string too short"));
                }
                find_room(&out, len + 1)?;
                out.extend_from_slice(&word[..len]);
                if option == b's' {
                    out.push(0);
                }
            }
            option => format.control(given, option)?,
        }
    }
    one(Value::String(given.lua.create_string(out)?))
}

fn find_room(out: &[u8], more: usize) -> Result<(), Raise> {
    if out.len() + more > LEN_MAX { Err(Raise::here("not enough memory")) } else { Ok(()) }
}

/// Converts a number to an unsigned integer as C does on x86, also a number that fits none.
fn unsigned(number: f64) -> u64 {
    const HALF: f64 = 9_223_372_036_854_775_808.0;
    if number >= HALF { truncated(number - HALF) as u64 ^ 1 << 63 } else { truncated(number) as u64 }
}

fn unpack(given: &Given<'_>) -> Result<MultiValue, Raise> {
    let (text, data) = (given.text(1)?, given.text(2)?);
    let (text, data) = (text.as_bytes(), data.as_bytes());
    let mut at = if given.is_none_or_nil(3) { 0 } else { (given.int(3)? as usize).wrapping_sub(1) };
    if at == usize::MAX {
        return Err(given.bad(3, "offset must be 1 or greater"));
    }
    let (mut format, mut values) = (Format::new(&text), Vec::new());
    let too_short = || given.bad(2, "data string too short");
    while let Some(item) = format.next(at) {
        let Item { option, mut size, padding } = item?;
        at = at.wrapping_add(padding);
        if size > data.len() || at > data.len() - size {
            return Err(too_short());
        }
        if values.len() >= VALUES_MAX {
            return Err(Raise::here("stack overflow (too many results)"));
        }
        match option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                let is_signed = option.is_ascii_lowercase();
                values.push(Value::Number(integer(&data[at..at + size], format.is_little, is_signed)));
            }
            b'x' => {}
            b'f' => {
                let mut bytes: [u8; 4] = data[at..at + 4].try_into().expect("four");
                format.ordered(&mut bytes);
                values.push(Value::Number(f64::from(f32::from_le_bytes(bytes))));
            }
            b'd' => {
                let mut bytes: [u8; 8] = data[at..at + 8].try_into().expect("eight");
                format.ordered(&mut bytes);
                values.push(Value::Number(f64::from_le_bytes(bytes)));
            }
            b'c' => {
                if size == 0 {
                    let number = values.pop().and_then(|value| given.lua.coerce_number(value).ok().flatten());
                    let number = number.ok_or_else(|| Raise::here("format 'c0' needs a previous size"))?;
                    size = unsigned(number) as usize;
                    if size > data.len() || at > data.len() - size {
                        return Err(too_short());
                    }
                }
                values.push(Value::String(given.lua.create_string(&data[at..at + size])?));
            }
            b's' => {
                let len = data[at..].iter().position(|byte| *byte == 0);
                let len = len.ok_or_else(|| Raise::here("unfinished string in data"))?;
                values.push(Value::String(given.lua.create_string(&data[at..at + len])?));
                size = len + 1;
            }
            option => format.control(given, option)?,
        }
        at += size;
    }
    values.push(Value::Number((at + 1) as f64));
    Ok(MultiValue::from_vec(values))
}

/// Most values that a function may return: Lua's stack has room for no more.
const VALUES_MAX: usize = 7_900;

fn integer(bytes: &[u8], is_little: bool, is_signed: bool) -> f64 {
    let join = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
    let value = if is_little { bytes.iter().rev().fold(0, join) } else { bytes.iter().fold(0, join) };
    if !is_signed {
        return value as f64;
    }
    // For more than eight bytes, C on x86 shifts by the lowest six bits.
    let mask = u64::MAX.wrapping_shl((bytes.len() as u32 * 8).wrapping_sub(1));
    (if value & mask != 0 { value | mask } else { value }) as i64 as f64
}

fn size(given: &Given<'_>) -> Result<MultiValue, Raise> {
    let text = given.text(1)?;
    let text = text.as_bytes();
    let (mut format, mut at) = (Format::new(&text), 0_usize);
    while let Some(item) = format.next(at) {
        let Item { option, size, padding } = item?;
        match option {
            b's' => return Err(given.bad(1, "option 's' has no fixed size")),
            b'c' if size == 0 => return Err(given.bad(1, "option 'c0' has no fixed size")),
            option if !option.is_ascii_alphanumeric() => format.control(given, option)?,
            _ => {}
        }
        at = at.wrapping_add(padding).wrapping_add(size);
    }
    one(Value::Number(at as f64))
}
