//! Finds commands behind unreadable bytes.
//!
//! A command starts at a `*` at the beginning of a line, and all its counts and lengths must hold. Data may
//! look the same: a value that holds commands is rare, but possible. So the result decides only whether an
//! operator is asked, and how large a loss a report names; no server executes these commands.

use std::ops::Range;

use super::{Line, NUMBER_BYTES_MAX, parse_number};

/// Commands with more arguments are not recognised, so that each byte is scanned a bounded number of times.
const ARGUMENTS_MAX: u64 = 1024;

/// Returns the whole commands in `bytes`, in order and without overlaps.
pub(crate) fn whole_commands(bytes: &[u8]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut from = 0;
    std::iter::from_fn(move || {
        while let Some(star) = bytes[from..].iter().position(|byte| *byte == b'*') {
            let start = from + star;
            from = start + 1;
            if (start == 0 || bytes[start - 1] == b'\n')
                && let Some(len) = command_len(&bytes[start..])
            {
                from = start + len;
                return Some(start..from);
            }
        }
        from = bytes.len();
        None
    })
}

/// Returns the length of the command that `bytes` begin with, if it is whole.
fn command_len(bytes: &[u8]) -> Option<usize> {
    let (count, mut at) = number(bytes, b'*')?;
    if count == 0 || count > ARGUMENTS_MAX {
        return None;
    }
    for _ in 0..count {
        let (len, line) = number(&bytes[at..], b'$')?;
        let data = usize::try_from(len).ok()?;
        let end = at.checked_add(line)?.checked_add(data)?;
        if bytes.get(end..end.checked_add(2)?)? != b"\r\n" {
            return None;
        }
        at = end + 2;
    }
    Some(at)
}

fn number(bytes: &[u8], sign: u8) -> Option<(u64, usize)> {
    match parse_number(&bytes[..bytes.len().min(NUMBER_BYTES_MAX)], sign) {
        Line::Is(number, len) => Some((number, len)),
        _ => None,
    }
}
