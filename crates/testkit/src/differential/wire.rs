//! The protocol itself: bytes that are not a command, and commands with bytes changed.

use evenkeel_resp::value::encode_command;

use super::make::{Maker, args};
use super::{Action, Family};
use crate::program::Reference;

#[rustfmt::skip]
pub(super) const FAMILY: Family = Family {
    name: "wire",
    weight: 8,
    // Redis takes lengths of arguments that no line end follows.
    only: Some(Reference::Valkey),
    commands: &[],
    scenes: &[(1, odd_bytes), (1, mutated)],
};

/// Complete as far as they go: a server never waits for the rest of a request.
#[rustfmt::skip]
const ODD: &[&str] = &[
    "\r\n", "\n", "\r\n\r\n\r\n", "   \r\n", "*0\r\n", "*-1\r\n", "*-10\r\n", "PING\r\n", "ping\n",
    "  PING  \r\n", "SET k1 \"a\\x41\\n\"\r\n", "SET k1 'it\\'s'\r\n", "SET k1 \"unbalanced\r\n",
    "SET k1 'unbalanced\r\n", "SET k1 \"a\"b\r\n", "GET \"\"\r\n", "\"\"\r\n", "*1\r\n:4\r\n",
    "*1\r\n$-1\r\n", "*1\r\n$abc\r\n", "*abc\r\n",
    "*1x\r\n", "*\r\n", "*1\r\n$\r\n", "*2147483648\r\n", "*99999999999999999999\r\n",
    "*1\r\n$9999999999\r\n", "*1\r\n$-2\r\n", "*+1\r\n$4\r\nPING\r\n", "*01\r\n$4\r\nPING\r\n",
    "*1\r\n$04\r\nPING\r\n", "*1\r\n$4\r\nPINGxx",
    "*1\r\n$0\r\n\r\n", "$4\r\nping\r\n", "+OK\r\n", ":1\r\n", "-ERR\r\n", "_\r\n", "%1\r\n",
    "QUIT\r\n", "quit now\r\n", "*1\r\n$4\r\nQUIT\r\n", "POST / HTTP/1.1\r\n", "Host: here\r\n",
    "GET / HTTP/1.1\r\n", "*1\r\n+PING\r\n", "*1\n$4\nPING\n", "*1\r\n*1\r\n$4\r\nPING\r\n",
    "PING\r\nPING\r\n", "*1\r\n$4\r\nPING\r\nPING\r\n",
];

fn odd_bytes(make: &mut Maker) {
    let bytes = make.random.pick(ODD);
    make.step(Action::Raw(bytes.as_bytes().to_vec()));
}

/// A few commands with bytes changed, dropped or added. They may end within a command; the client closes the
/// connection afterwards.
fn mutated(make: &mut Maker) {
    let mut bytes = Vec::new();
    for _ in 0..=make.random.below(3) {
        bytes.extend(encode_command(&make.any_strict_command()));
    }
    bytes.truncate(2_000);
    let has_time = TIMES.iter().any(|word| contains(&bytes, word));
    for _ in 0..=make.random.below(3) {
        mutate(make, &mut bytes);
    }
    // Redis looks for the end of an inline line in a C string, so a zero byte makes it wait for ever: not
    // worth imitating.
    bytes.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'n');
    bytes.extend(encode_command(&["PING"]));
    make.step(Action::Burst(bytes));
    if has_time {
        // A changed length may leave a short time to live: the key would end in one server before the other.
        make.command(args!["FLUSHALL"]);
    }
}

/// Parts of the names of commands and options that give a key, or a field, a time to live.
const TIMES: &[&str] = &["EXPIRE", "SETEX", "GETEX", "RESTORE", "\nEX\r", "\nPX\r"];

fn contains(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|window| window.eq_ignore_ascii_case(word.as_bytes()))
}

fn mutate(make: &mut Maker, bytes: &mut Vec<u8>) {
    const PIECES: &[&str] =
        &["\r\n", "*1\r\n", "$-1\r\n", "*-1\r\n", "$", "*", "-", "0", "9", " ", "\"", "*3\r\n$3\r\n"];
    let at = make.random.below(bytes.len() + 1);
    match make.random.below(4) {
        0 if at < bytes.len() => bytes[at] ^= 1 << make.random.below(8),
        1 if at < bytes.len() => drop(bytes.remove(at)),
        2 => bytes.truncate(at),
        _ => drop(bytes.splice(at..at, make.random.pick(PIECES).bytes())),
    }
}
