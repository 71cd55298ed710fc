//! The reason why a file of commands cannot be read to its end.

use std::fmt;
use std::io;

/// The fault, its offset, and the length of the whole part before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Offset of the fault in the file.
    pub at: u64,
    /// Length of the prefix of whole commands, none of them of an unfinished transaction. `whole <= at`.
    pub whole: u64,
    pub reason: Reason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The file ends within a command or an annotation.
    Torn,
    /// The file ends within a transaction, which starts at `Fault::whole`.
    TornTransaction,
    /// A string is announced beyond the end of the file, but whole commands follow within it, the first at
    /// this offset. A torn write leaves nothing behind itself, so the length is wrong.
    Swallowed(u64),
    /// No command and no annotation starts with this byte.
    Start(u8),
    /// No argument starts with this byte.
    Argument(u8),
    /// A count or length that is not a number, or out of range.
    Number,
    /// No line end behind an argument's bytes.
    LineEnd,
    /// An annotation longer than any server writes.
    Annotation,
    /// MULTI within a transaction.
    NestedMulti,
    /// EXEC without MULTI.
    ExecAlone,
    /// The file could not be read.
    Io(io::ErrorKind),
}

impl Fault {
    /// Whether the file just ends too early, as after a crash during a write: `aof-load-truncated` forgives
    /// this.
    pub fn is_torn(&self) -> bool {
        matches!(self.reason, Reason::Torn | Reason::TornTransaction)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at offset {}", self.reason, self.at)
    }
}

impl std::error::Error for Fault {}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Torn => f.write_str("the file ends within a command"),
            Reason::TornTransaction => f.write_str("the file ends within a transaction"),
            Reason::Swallowed(next) => {
                write!(
                    f,
                    "a length beyond the end of the file, although whole commands follow from offset \
                     {next} on"
                )
            }
            Reason::Start(byte) => write!(f, "expected a command ('*'), found {}", Shown(*byte)),
            Reason::Argument(byte) => write!(f, "expected an argument ('$'), found {}", Shown(*byte)),
            Reason::Number => f.write_str("malformed count or length"),
            Reason::LineEnd => f.write_str("no line end behind an argument"),
            Reason::Annotation => f.write_str("an annotation that does not end"),
            Reason::NestedMulti => f.write_str("MULTI within a transaction"),
            Reason::ExecAlone => f.write_str("EXEC without MULTI"),
            Reason::Io(kind) => write!(f, "the file cannot be read ({kind})"),
        }
    }
}

/// A byte in readable form.
struct Shown(u8);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            b' '..=b'~' => write!(f, "'{}'", char::from(self.0)),
            byte => write!(f, "byte 0x{byte:02x}"),
        }
    }
}
