//! `cjson`: JSON, with the settings, the leniencies and the error texts of lua-cjson 2.1.0.
//!
//! A script's settings hold until it ends: there are several threads with a Lua state each, and a setting
//! that outlived its script would hold on some of them.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::rc::Rc;

use mlua::{Lua, MultiValue, Table, Value};

use super::{Given, Steps, add, type_name};
use crate::native::Raise;
use crate::values::{one, truncated};
use crate::{Host, MEMORY_MAX};

/// Deepest nesting, whatever a script sets: each level takes some of a thread's stack.
const DEPTH_MAX: usize = 4_000;

#[derive(Clone, Copy)]
struct Settings {
    sparse_convert: bool,
    sparse_ratio: i64,
    sparse_safe: i64,
    encode_depth: i64,
    decode_depth: i64,
    precision: i64,
    keep_buffer: bool,
    encode_invalid: Invalid,
    decode_invalid: Invalid,
}

/// Treatment of numbers that JSON does not know.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Invalid {
    Refused,
    Allowed,
    Null,
}

const DEFAULTS: Settings = Settings {
    sparse_convert: false,
    sparse_ratio: 2,
    sparse_safe: 10,
    encode_depth: 1000,
    decode_depth: 1000,
    precision: 14,
    keep_buffer: true,
    encode_invalid: Invalid::Refused,
    decode_invalid: Invalid::Allowed,
};

struct Main(Rc<Cell<Settings>>);

pub(super) fn library<H: Host>(lua: &Lua) -> mlua::Result<Table> {
    let settings = Rc::new(Cell::new(DEFAULTS));
    lua.set_app_data(Main(settings.clone()));
    with_settings::<H>(lua, settings)
}

pub(super) fn reset(lua: &Lua) {
    if let Some(main) = lua.app_data_ref::<Main>() {
        main.0.set(DEFAULTS);
    }
}

fn with_settings<H: Host>(lua: &Lua, settings: Rc<Cell<Settings>>) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set("null", Value::NULL)?;
    table.raw_set("_NAME", "cjson")?;
    table.raw_set("_VERSION", "2.1.0")?;
    let of = |name, body: fn(&Given<'_>, &Cell<Settings>) -> Result<MultiValue, Raise>| {
        let settings = settings.clone();
        add(lua, &table, name, move |given| body(given, &settings))
    };
    of("encode", |given, settings| {
        if given.len() != 1 {
            return Err(given.bad(1, "expected 1 argument"));
        }
        let mut out = Vec::new();
        Encoder { settings: settings.get(), out: &mut out, steps: Steps::new::<H>() }
            .value(&given.args[0], 0)?;
        one(Value::String(given.lua.create_string(out)?))
    })?;
    of("decode", |given, settings| {
        if given.len() != 1 {
            return Err(given.bad(1, "expected 1 argument"));
        }
        let text = given.text(1)?;
        decode(given.lua, &text.as_bytes(), settings.get())
    })?;
    of("encode_sparse_array", |given, settings| {
        at_most(given, 3)?;
        let mut set = settings.get();
        set.sparse_convert = flag(given, 1, set.sparse_convert)?;
        set.sparse_ratio = int(given, 2, set.sparse_ratio, 0)?;
        set.sparse_safe = int(given, 3, set.sparse_safe, 0)?;
        settings.set(set);
        Ok(MultiValue::from_vec(vec![
            Value::Boolean(set.sparse_convert),
            Value::Number(set.sparse_ratio as f64),
            Value::Number(set.sparse_safe as f64),
        ]))
    })?;
    of("encode_max_depth", |given, settings| {
        let depth = only_int(given, settings.get().encode_depth, i64::from(i32::MAX))?;
        settings.set(Settings { encode_depth: depth, ..settings.get() });
        one(Value::Number(depth as f64))
    })?;
    of("decode_max_depth", |given, settings| {
        let depth = only_int(given, settings.get().decode_depth, i64::from(i32::MAX))?;
        settings.set(Settings { decode_depth: depth, ..settings.get() });
        one(Value::Number(depth as f64))
    })?;
    of("encode_number_precision", |given, settings| {
        let precision = only_int(given, settings.get().precision, 14)?;
        settings.set(Settings { precision, ..settings.get() });
        one(Value::Number(precision as f64))
    })?;
    of("encode_keep_buffer", |given, settings| {
        at_most(given, 1)?;
        let keep_buffer = flag(given, 1, settings.get().keep_buffer)?;
        settings.set(Settings { keep_buffer, ..settings.get() });
        one(Value::Boolean(keep_buffer))
    })?;
    of("encode_invalid_numbers", |given, settings| {
        let (encode_invalid, shown) = invalid(given, settings.get().encode_invalid, true)?;
        settings.set(Settings { encode_invalid, ..settings.get() });
        one(shown)
    })?;
    of("decode_invalid_numbers", |given, settings| {
        let (decode_invalid, shown) = invalid(given, settings.get().decode_invalid, false)?;
        settings.set(Settings { decode_invalid, ..settings.get() });
        one(shown)
    })?;
    add(lua, &table, "new", |given| {
        one(Value::Table(with_settings::<H>(given.lua, Rc::new(Cell::new(DEFAULTS)))?))
    })?;
    Ok(table)
}

// Settings.

fn at_most(given: &Given<'_>, most: usize) -> Result<(), Raise> {
    if given.len() > most { Err(given.bad(most + 1, "found too many arguments")) } else { Ok(()) }
}

fn int(given: &Given<'_>, index: usize, now: i64, least: i64) -> Result<i64, Raise> {
    in_range(given, index, now, least, i64::from(i32::MAX))
}

fn in_range(given: &Given<'_>, index: usize, now: i64, least: i64, most: i64) -> Result<i64, Raise> {
    if given.is_none_or_nil(index) {
        return Ok(now);
    }
    let number = given.int(index)?;
    if (least..=most).contains(&number) {
        return Ok(number);
    }
    Err(given.bad(1, &format!("expected integer between {least} and {most}")))
}

fn only_int(given: &Given<'_>, now: i64, most: i64) -> Result<i64, Raise> {
    at_most(given, 1)?;
    in_range(given, 1, now, 1, most)
}

fn flag(given: &Given<'_>, index: usize, now: bool) -> Result<bool, Raise> {
    match given.args.get(index - 1) {
        None | Some(Value::Nil) => Ok(now),
        Some(Value::Boolean(value)) => Ok(*value),
        Some(_) => match given.text(index)?.as_bytes().as_ref() {
            b"on" => Ok(true),
            b"off" => Ok(false),
            other => {
                let other = String::from_utf8_lossy(other).into_owned();
                Err(given.bad(index, &format!("invalid option '{other}'")))
            }
        },
    }
}

fn invalid(given: &Given<'_>, now: Invalid, with_null: bool) -> Result<(Invalid, Value), Raise> {
    at_most(given, 1)?;
    let is_null = with_null
        && matches!(given.args.front(), Some(Value::String(text)) if *text.as_bytes() == b"null"[..]);
    let new = match given.args.front() {
        None | Some(Value::Nil) => now,
        _ if is_null => Invalid::Null,
        _ if flag(given, 1, false)? => Invalid::Allowed,
        _ => Invalid::Refused,
    };
    let shown = match new {
        Invalid::Null => Value::String(given.lua.create_string("null")?),
        new => Value::Boolean(new == Invalid::Allowed),
    };
    Ok((new, shown))
}

// Encoding.

struct Encoder<'o> {
    settings: Settings,
    out: &'o mut Vec<u8>,
    steps: Steps,
}

impl Encoder<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Raise> {
        self.steps.take()?;
        if self.out.len() > MEMORY_MAX {
            return Err(Raise::here("not enough memory"));
        }
        match value {
            Value::String(text) => self.text(&text.as_bytes()),
            Value::Integer(number) => self.number(*number as f64)?,
            Value::Number(number) => self.number(*number)?,
            Value::Boolean(true) => self.out.extend_from_slice(b"true"),
            Value::Boolean(false) => self.out.extend_from_slice(b"false"),
            Value::Nil => self.out.extend_from_slice(b"null"),
            Value::LightUserData(data) if data.0.is_null() => self.out.extend_from_slice(b"null"),
            Value::Table(table) => self.table(table, depth + 1)?,
            other => return Err(cannot(other, "type not supported")),
        }
        Ok(())
    }

    fn table(&mut self, table: &Table, depth: usize) -> Result<(), Raise> {
        if depth as i64 > self.settings.encode_depth || depth > DEPTH_MAX {
            return Err(Raise::here(format!("Cannot serialise, excessive nesting ({depth})")));
        }
        match self.array_len(table)? {
            len @ 1.. => self.array(table, len, depth),
            _ => self.object(table, depth),
        }
    }

    /// Returns the greatest key if all keys are whole numbers from 1 on; otherwise a number below 1.
    fn array_len(&self, table: &Table) -> Result<i64, Raise> {
        let (mut most, mut items) = (0_i64, 0_i64);
        for pair in table.pairs::<Value, Value>() {
            let key = match pair?.0 {
                Value::Integer(key) => key as f64,
                Value::Number(key) => key,
                _ => return Ok(-1),
            };
            if key.floor() != key || key < 1.0 {
                return Ok(-1);
            }
            most = most.max(truncated(key) as i32 as i64);
            items += 1;
        }
        let Settings { sparse_ratio: ratio, sparse_safe, sparse_convert, .. } = self.settings;
        if ratio > 0 && most > items.saturating_mul(ratio) && most > sparse_safe {
            if !sparse_convert {
                return Err(Raise::here("Cannot serialise table: excessively sparse array"));
            }
            return Ok(-1);
        }
        Ok(most)
    }

    fn array(&mut self, table: &Table, len: i64, depth: usize) -> Result<(), Raise> {
        self.out.push(b'[');
        for index in 1..=len {
            if index > 1 {
                self.out.push(b',');
            }
            self.value(&table.raw_get::<Value>(index)?, depth)?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn object(&mut self, table: &Table, depth: usize) -> Result<(), Raise> {
        self.out.push(b'{');
        for (index, pair) in table.pairs::<Value, Value>().enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            let (key, value) = pair?;
            match &key {
                Value::String(text) => self.text(&text.as_bytes()),
                Value::Integer(_) | Value::Number(_) => {
                    self.out.push(b'"');
                    self.value(&key, depth)?;
                    self.out.push(b'"');
                }
                other => return Err(cannot(other, "table key must be a number or string")),
            }
            self.out.push(b':');
            self.value(&value, depth)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    fn text(&mut self, text: &[u8]) {
        self.out.push(b'"');
        for byte in text {
            match byte {
                b'"' => self.out.extend_from_slice(b"\\\""),
                b'\\' => self.out.extend_from_slice(b"\\\\"),
                b'/' => self.out.extend_from_slice(b"\\/"),
                8 => self.out.extend_from_slice(b"\\b"),
                9 => self.out.extend_from_slice(b"\\t"),
                10 => self.out.extend_from_slice(b"\\n"),
                12 => self.out.extend_from_slice(b"\\f"),
                13 => self.out.extend_from_slice(b"\\r"),
                0..32 | 127 => self.out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
                byte => self.out.push(*byte),
            }
        }
        self.out.push(b'"');
    }

    fn number(&mut self, number: f64) -> Result<(), Raise> {
        if !number.is_finite() {
            match self.settings.encode_invalid {
                Invalid::Refused => return Err(cannot(&Value::Number(number), "must not be NaN or Inf")),
                Invalid::Null => return self.value(&Value::Nil, 0),
                Invalid::Allowed if number.is_nan() => {
                    self.out.extend_from_slice(b"nan");
                    return Ok(());
                }
                Invalid::Allowed => {}
            }
        }
        let mut text = [0_u8; 40];
        // SAFETY: the format takes an int and a double; at most 14 digits, a sign, a point and an exponent
        // are written.
        unsafe {
            let precision = self.settings.precision as std::ffi::c_int;
            libc::snprintf(text.as_mut_ptr().cast(), text.len(), c"%.*g".as_ptr(), precision, number);
        }
        let text = CStr::from_bytes_until_nul(&text).expect("it ends in zero");
        self.out.extend_from_slice(text.to_bytes());
        Ok(())
    }
}

fn cannot(value: &Value, why: &str) -> Raise {
    Raise::here(format!("Cannot serialise {}: {why}", type_name(value)))
}

// Decoding.

fn decode(lua: &Lua, text: &[u8], settings: Settings) -> Result<MultiValue, Raise> {
    if text.len() >= 2 && (text[0] == 0 || text[1] == 0) {
        return Err(Raise::here("JSON parser does not support UTF-16 or UTF-32"));
    }
    let mut data = Vec::with_capacity(text.len() + 1);
    data.extend_from_slice(text);
    data.push(0);
    let mut decoder = Decoder { lua, data: &data, at: 0, settings, depth: 0 };
    let token = decoder.next();
    let value = decoder.value(token)?;
    let token = decoder.next();
    if !matches!(token.kind, TokenKind::End) {
        return Err(expected("the end", &token));
    }
    one(value)
}

enum TokenKind {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Text(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    Error(&'static str),
}

struct Token {
    kind: TokenKind,
    at: usize,
}

fn expected(what: &str, token: &Token) -> Raise {
    let found = match &token.kind {
        TokenKind::ObjectBegin => "T_OBJ_BEGIN",
        TokenKind::ObjectEnd => "T_OBJ_END",
        TokenKind::ArrayBegin => "T_ARR_BEGIN",
        TokenKind::ArrayEnd => "T_ARR_END",
        TokenKind::Text(_) => "T_STRING",
        TokenKind::Number(_) => "T_NUMBER",
        TokenKind::Boolean(_) => "T_BOOLEAN",
        TokenKind::Null => "T_NULL",
        TokenKind::Colon => "T_COLON",
        TokenKind::Comma => "T_COMMA",
        TokenKind::End => "T_END",
        TokenKind::Error(text) => text,
    };
    Raise::here(format!("Expected {what} but found {found} at character {}", token.at + 1))
}

struct Decoder<'l, 'd> {
    lua: &'l Lua,
    /// The text and a terminating zero byte; a zero byte inside the text ends it as well.
    data: &'d [u8],
    at: usize,
    settings: Settings,
    depth: usize,
}

impl<'d> Decoder<'_, 'd> {
    fn rest(&self) -> &'d [u8] {
        &self.data[self.at..]
    }

    fn next(&mut self) -> Token {
        while matches!(self.data[self.at], b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        let at = self.at;
        let single = match self.data[at] {
            b'{' => Some(TokenKind::ObjectBegin),
            b'}' => Some(TokenKind::ObjectEnd),
            b'[' => Some(TokenKind::ArrayBegin),
            b']' => Some(TokenKind::ArrayEnd),
            b':' => Some(TokenKind::Colon),
            b',' => Some(TokenKind::Comma),
            _ => None,
        };
        if let Some(kind) = single {
            self.at += 1;
            return Token { kind, at };
        }
        let words = [
            (&b"true"[..], TokenKind::Boolean(true)),
            (b"false", TokenKind::Boolean(false)),
            (b"null", TokenKind::Null),
        ];
        match self.data[at] {
            0 => Token { kind: TokenKind::End, at },
            b'"' => self.text(),
            b'-' | b'0'..=b'9' => {
                if self.settings.decode_invalid != Invalid::Allowed && self.is_odd_number() {
                    return self.error("invalid number");
                }
                self.number()
            }
            b'+' | b'I' | b'i' | b'N' | b'n' | b't' | b'f' => {
                for (word, kind) in words {
                    if self.rest().starts_with(word) {
                        self.at += word.len();
                        return Token { kind, at };
                    }
                }
                if self.settings.decode_invalid == Invalid::Allowed && self.is_odd_number() {
                    return self.number();
                }
                self.error("invalid token")
            }
            _ => self.error("invalid token"),
        }
    }

    fn error(&self, text: &'static str) -> Token {
        Token { kind: TokenKind::Error(text), at: self.at }
    }

    /// Whether the input continues with something like a number that JSON does not know.
    fn is_odd_number(&self) -> bool {
        let rest = self.rest();
        if rest[0] == b'+' {
            return true;
        }
        let rest = rest.strip_prefix(b"-").unwrap_or(rest);
        match rest[0] {
            b'0' => matches!(rest[1], b'x' | b'X' | b'0'..=b'9'),
            0..=b'9' => false,
            _ => {
                let begins = |word: &[u8]| rest.get(..3).is_some_and(|rest| rest.eq_ignore_ascii_case(word));
                begins(b"inf") || begins(b"nan")
            }
        }
    }

    fn number(&mut self) -> Token {
        let at = self.at;
        let start = self.rest().as_ptr().cast::<c_char>();
        let mut end = std::ptr::null_mut();
        // SAFETY: the text ends in a zero byte, at which `strtod` stops at the latest; `end` is set to the
        // place where it stopped.
        let (number, len) = unsafe {
            let number = libc::strtod(start, &mut end);
            (number, end.offset_from(start) as usize)
        };
        if len == 0 {
            return self.error("invalid number");
        }
        self.at += len;
        Token { kind: TokenKind::Number(number), at }
    }

    fn text(&mut self) -> Token {
        let at = self.at;
        self.at += 1;
        let mut text = Vec::new();
        loop {
            match self.data[self.at] {
                b'"' => break,
                0 => return self.error("unexpected end of string"),
                b'\\' => {
                    let escaped = match self.data[self.at + 1] {
                        byte @ (b'"' | b'\\' | b'/') => byte,
                        b'b' => 8,
                        b't' => b'\t',
                        b'n' => b'\n',
                        b'f' => 12,
                        b'r' => b'\r',
                        b'u' => {
                            if self.unicode(&mut text).is_none() {
                                return self.error("invalid unicode escape code");
                            }
                            continue;
                        }
                        _ => return self.error("invalid escape code"),
                    };
                    text.push(escaped);
                    self.at += 2;
                }
                byte => {
                    text.push(byte);
                    self.at += 1;
                }
            }
        }
        self.at += 1;
        Token { kind: TokenKind::Text(text), at }
    }

    /// Reads `\uXXXX`, or two of them for a surrogate pair.
    fn unicode(&mut self, text: &mut Vec<u8>) -> Option<()> {
        let hex = |at: usize| -> Option<u32> {
            let digits = self.data.get(at..at + 4)?;
            digits.iter().try_fold(0, |value, digit| Some(value << 4 | (*digit as char).to_digit(16)?))
        };
        let (mut code, mut len) = (hex(self.at + 2)?, 6);
        if code & 0xf800 == 0xd800 {
            if code & 0x400 != 0 || self.data.get(self.at + 6..self.at + 8)? != b"\\u" {
                return None;
            }
            let low = hex(self.at + 8)?;
            if low & 0xfc00 != 0xdc00 {
                return None;
            }
            code = ((code & 0x3ff) << 10 | low & 0x3ff) + 0x1_0000;
            len = 12;
        }
        let character = char::from_u32(code)?;
        text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        self.at += len;
        Some(())
    }

    fn value(&mut self, token: Token) -> Result<Value, Raise> {
        Ok(match token.kind {
            TokenKind::Text(text) => Value::String(self.lua.create_string(text)?),
            TokenKind::Number(number) => Value::Number(number),
            TokenKind::Boolean(value) => Value::Boolean(value),
            TokenKind::Null => Value::NULL,
            TokenKind::ObjectBegin => return self.object(),
            TokenKind::ArrayBegin => return self.array(),
            _ => return Err(expected("value", &token)),
        })
    }

    fn descend(&mut self) -> Result<Table, Raise> {
        self.depth += 1;
        if self.depth as i64 > self.settings.decode_depth || self.depth > DEPTH_MAX {
            let (depth, at) = (self.depth, self.at);
            let text = format!("Found too many nested data structures ({depth}) at character {at}");
            return Err(Raise::here(text));
        }
        Ok(self.lua.create_table()?)
    }

    fn object(&mut self) -> Result<Value, Raise> {
        let table = self.descend()?;
        let mut token = self.next();
        if matches!(token.kind, TokenKind::ObjectEnd) {
            self.depth -= 1;
            return Ok(Value::Table(table));
        }
        loop {
            let Token { kind: TokenKind::Text(key), .. } = token else {
                return Err(expected("object key string", &token));
            };
            let key = self.lua.create_string(key)?;
            token = self.next();
            if !matches!(token.kind, TokenKind::Colon) {
                return Err(expected("colon", &token));
            }
            token = self.next();
            let value = self.value(token)?;
            table.raw_set(key, value)?;
            token = self.next();
            match token.kind {
                TokenKind::ObjectEnd => {
                    self.depth -= 1;
                    return Ok(Value::Table(table));
                }
                TokenKind::Comma => token = self.next(),
                _ => return Err(expected("comma or object end", &token)),
            }
        }
    }

    fn array(&mut self) -> Result<Value, Raise> {
        let table = self.descend()?;
        let mut token = self.next();
        if matches!(token.kind, TokenKind::ArrayEnd) {
            self.depth -= 1;
            return Ok(Value::Table(table));
        }
        for index in 1.. {
            let value = self.value(token)?;
            table.raw_set(index, value)?;
            token = self.next();
            match token.kind {
                TokenKind::ArrayEnd => break,
                TokenKind::Comma => token = self.next(),
                _ => return Err(expected("comma or array end", &token)),
            }
        }
        self.depth -= 1;
        Ok(Value::Table(table))
    }
}
