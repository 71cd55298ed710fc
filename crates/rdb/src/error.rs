//! The reasons why bytes are not a valid value, and their offsets.

use std::borrow::Cow;
use std::fmt;
use std::io;

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// The fault of a serialized value and its offset. Reading on after an error gives no panic, but no
/// meaningful data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// Offset in the source of the faulty part.
    pub at: u64,
    /// Offset inside the packed block that starts at `at`, in its unpacked form if it was compressed.
    pub inside: Option<usize>,
    pub reason: Reason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The source ends before the value does.
    Truncated,
    /// The source could not be read.
    Io(io::ErrorKind),
    /// Bytes behind the value, or behind the end of the file.
    Trailing,
    /// A type that this crate does not know.
    UnknownType(u8),
    /// A value of a module's own type.
    ModuleType,
    /// Not a length, or a length in a form without meaning here.
    Length,
    /// A count or length that the rest of the source cannot hold.
    TooLong,
    /// A string in a form that does not exist, or an integer where bytes must be.
    StringForm,
    /// Compressed bytes that do not unpack to the announced length.
    Compressed,
    /// A wrong number of elements, or a wrong length of a block.
    Count,
    /// A block without its end mark, or with an early end mark.
    EndMark,
    /// An element of a block in a form that does not exist.
    Element,
    /// An element that is not as long as its neighbour says.
    BackLength,
    /// A list node that is neither plain nor packed.
    Container,
    /// A field without a value, a member without a score.
    Unpaired,
    /// A second member, field or group of the same name.
    Duplicate,
    /// A second consumer of the same name in a group.
    DuplicateConsumer,
    /// A pending entry that a consumer owns twice.
    DuplicatePending,
    /// Elements out of the order that this form requires.
    Order,
    /// A score that is not a number.
    Score,
    /// An index of an array beyond the greatest.
    Index,
    /// A time before 1970, or beyond the range of its form.
    Time,
    /// A stream entry that contradicts its flags and counts, or has no field.
    StreamEntry,
    /// A stream's length, last id or counters that its entries contradict.
    StreamCounters,
    /// A pending entry without a consumer or with two, or one that the group's list lacks.
    Pending,
    /// Entries that would take far more memory than they took bytes, since they share names. A store that
    /// copies the names per entry returns this, see [`crate::Entry::shares_names`].
    Inflated,
    /// An element, or a stream's entry, too large to be stored. Only a caller that builds values returns
    /// this.
    TooLarge,
    /// A file that does not begin like an RDB file.
    NoRdbFile,
    /// A file of a version that this crate does not know.
    UnknownVersion(u16),
    /// The name of a job that imports slots is not as long as such names are.
    JobName,
    /// An unknown or misplaced item between the keys of a file.
    UnknownOpcode(u8),
    /// The same in a file of a later Redis than this crate knows.
    ForeignOpcode { opcode: u8, version: u16 },
    /// A file whose bytes do not add up to the checksum at its end.
    Checksum,
    /// An empty list, set, sorted set or hash. The source stands behind the value: a file may be read on.
    Empty,
}

impl Error {
    pub(crate) fn new(at: u64, reason: Reason) -> Error {
        Error { at, inside: None, reason }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.reason, self.at)?;
        match self.inside {
            Some(inside) => write!(f, ", byte {inside} of the block there"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Truncated => "the data ends too early",
            Reason::Io(kind) => return write!(f, "the source cannot be read ({kind})"),
            Reason::Trailing => "data behind the end",
            Reason::UnknownType(number) => return write!(f, "unknown type {number}"),
            Reason::ModuleType => "a module's type",
            Reason::Length => "malformed length",
            Reason::TooLong => "a length beyond the end of the data",
            Reason::StringForm => "unknown form of a string",
            Reason::Compressed => "malformed compressed data",
            Reason::Count => "a count that does not hold",
            Reason::EndMark => "misplaced end mark",
            Reason::Element => "unknown form of an element",
            Reason::BackLength => "an element's length does not match its neighbour's",
            Reason::Container => "unknown kind of list node",
            Reason::Unpaired => "an element without its counterpart",
            Reason::Duplicate => "a duplicate",
            // Operators search the logs of Valkey for these two.
            Reason::DuplicateConsumer => "Duplicate stream consumer detected",
            Reason::DuplicatePending => "Duplicated consumer PEL entry detected",
            Reason::Order => "elements out of order",
            Reason::Score => "a score that is not a number",
            Reason::Index => "an index beyond the greatest",
            Reason::Time => "a time out of range",
            Reason::StreamEntry => "malformed stream entry",
            Reason::StreamCounters => "stream counters contradict the entries",
            Reason::Pending => "a pending entry without its group or its one consumer",
            Reason::Inflated => "stream entries that would take many times the memory of what was sent",
            Reason::TooLarge => "an element of more bytes than can be stored",
            Reason::NoRdbFile => "this is no RDB file",
            Reason::UnknownVersion(version) => return write!(f, "unknown version {version} of RDB"),
            Reason::UnknownOpcode(opcode) => return write!(f, "unknown or misplaced opcode {opcode}"),
            // Operators search the logs of Valkey for it.
            Reason::ForeignOpcode { opcode, version } => {
                return write!(
                    f,
                    "Can't handle foreign type or opcode {opcode} in RDB with version {version}"
                );
            }
            Reason::JobName => "Invalid slot import job name length",
            Reason::Checksum => "the checksum does not match",
            Reason::Empty => "an empty collection",
        })
    }
}

/// A text without the numbers that the standard library adds to the system's errors: ` (os error 2)`.
pub fn without_numbers(text: &str) -> Cow<'_, str> {
    const BEGIN: &str = " (os error ";
    if !text.contains(BEGIN) {
        return text.into();
    }
    let mut pieces = text.split(BEGIN);
    let mut kept = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let behind = piece.trim_start_matches(|digit: char| digit.is_ascii_digit());
        match behind.strip_prefix(')') {
            Some(rest) if behind.len() < piece.len() => kept += rest,
            _ => kept.extend([BEGIN, piece]),
        }
    }
    kept.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_texts_can_omit_numbers() {
        let error = std::io::Error::from_raw_os_error(2).to_string();
        assert_eq!(without_numbers(&error), "No such file or directory");
        let text = format!("a: {error}. b: {error}, c");
        let expected = "a: No such file or directory. b: No such file or directory, c";
        assert_eq!(without_numbers(&text), expected);
        for text in ["", "plain", "cut off (os error 2", "none (os error )", "a word (os error x)"] {
            assert_eq!(without_numbers(text), text);
        }
        // A client can have such a text logged.
        assert_eq!(without_numbers(&"x (os error 1)".repeat(100_000)), "x".repeat(100_000));
    }
}
