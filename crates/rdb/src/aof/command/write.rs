//! Writes the commands and annotations of a file.

use std::io::Write;

/// Longest annotation that Redis reads at once, in bytes: it takes the rest of a longer line for a command.
const COMMENT_LEN_MAX: usize = 120;

const WRITTEN: &str = "a Vec takes all that is written";

/// Appends a command to `out`. The first argument is the command's name.
pub fn push_command<A: AsRef<[u8]>>(out: &mut Vec<u8>, args: &[A]) {
    write!(out, "*{}\r\n", args.len()).expect(WRITTEN);
    for arg in args {
        let arg = arg.as_ref();
        write!(out, "${}\r\n", arg.len()).expect(WRITTEN);
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends an annotation that servers skip. `text` is a short line: Redis reads at most 127 bytes of it at
/// once.
pub fn push_comment(out: &mut Vec<u8>, text: &str) {
    assert!(text.len() < COMMENT_LEN_MAX && !text.contains(['\r', '\n']), "one line, which is read as one");
    write!(out, "#{text}\r\n").expect(WRITTEN);
}

/// Appends an annotation: later commands are executed at `seconds` since 1970 or later.
pub fn push_timestamp(out: &mut Vec<u8>, seconds: i64) {
    write!(out, "#TS:{seconds}\r\n").expect(WRITTEN);
}
