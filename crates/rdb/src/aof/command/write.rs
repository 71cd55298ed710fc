//! Commands and annotations as they go into a file.

use std::io::Write;

const WRITTEN: &str = "a Vec takes all that is written";

/// Appends a command to what will be appended to a file. Its first argument is its name.
pub fn push_command<A: AsRef<[u8]>>(out: &mut Vec<u8>, args: &[A]) {
    write!(out, "*{}\r\n", args.len()).expect(WRITTEN);
    for arg in args {
        let arg = arg.as_ref();
        write!(out, "${}\r\n", arg.len()).expect(WRITTEN);
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends an annotation: what follows is executed at `seconds` since 1970 or later.
pub fn push_timestamp(out: &mut Vec<u8>, seconds: i64) {
    write!(out, "#TS:{seconds}\r\n").expect(WRITTEN);
}
