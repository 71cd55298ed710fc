//! Replies of servers of the Redis family, read within bounds: a server may say anything.

use std::io::{BufRead, Read};

use anyhow::{Context, Result, bail, ensure};

/// Bound of a bulk string: 50,000 clients at about 350 bytes each.
const BULK_MAX: u64 = 32 << 20;
/// Bounds of arrays: SLOWLOG has arrays of arguments in arrays of entries.
const ITEMS_MAX: usize = 10_000;
const DEPTH_MAX: usize = 4;
const LINE_MAX: u64 = 4096;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Text(String),
    Number(i64),
    List(Vec<Value>),
}

impl Value {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn number(&self) -> Option<i64> {
        match self {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn list(&self) -> Option<&[Value]> {
        match self {
            Value::List(items) => Some(items),
            _ => None,
        }
    }
}

/// Reads a reply. An error reply is an error, and so is a missing value.
pub(super) fn read(reader: &mut impl BufRead) -> Result<Value> {
    read_within(reader, DEPTH_MAX)
}

fn read_within(reader: &mut impl BufRead, depth: usize) -> Result<Value> {
    let line = read_line(reader)?;
    let (kind, rest) = line.split_at_checked(1).context("the server closed the connection")?;
    match kind {
        "+" => Ok(Value::Text(rest.to_string())),
        ":" => Ok(Value::Number(rest.parse().context("not a number")?)),
        "$" => {
            let length: u64 = rest.parse().context("not a length")?;
            ensure!(length <= BULK_MAX, "a reply of {length} bytes");
            let mut text = Vec::new();
            reader.take(length).read_to_end(&mut text)?;
            ensure!(text.len() as u64 == length, "the reply was cut off");
            read_line(reader)?;
            Ok(Value::Text(String::from_utf8_lossy(&text).into_owned()))
        }
        "*" => {
            let items: usize = rest.parse().context("not a number of items")?;
            ensure!(items <= ITEMS_MAX && depth > 0, "a reply of {items} items");
            Ok(Value::List((0..items).map(|_| read_within(reader, depth - 1)).collect::<Result<_>>()?))
        }
        _ => bail!("{line}"),
    }
}

fn read_line(reader: &mut impl BufRead) -> Result<String> {
    let mut line = Vec::new();
    reader.take(LINE_MAX).read_until(b'\n', &mut line)?;
    Ok(String::from_utf8_lossy(&line).trim_end().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_and_malformed_replies_are_refused() {
        let entry = b"*2\r\n:7\r\n*2\r\n$4\r\nkeys\r\n$1\r\n*\r\n";
        let args = Value::List(["keys", "*"].map(|word| Value::Text(word.to_string())).to_vec());
        assert_eq!(read(&mut &entry[..]).expect("valid"), Value::List(vec![Value::Number(7), args]));
        for bad in [
            &b""[..],
            b"-ERR no",
            b"$-1\r\n",
            b"$9999999999\r\n",
            b"$5\r\nab",
            b"*99999999\r\n",
            b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
            b":x\r\n",
            b"?\r\n",
        ] {
            assert!(read(&mut &bad[..]).is_err(), "{}", bad.escape_ascii());
        }
    }
}
