//! Reads commands from a file, and writes commands to a file.
//!
//! A command is lent from the buffer, which holds it as a whole. The buffer grows with the bytes read, never
//! with an announced length. If the file's size is known, a length beyond its end is refused without reading
//! on.
//!
//! A crash leaves a file that just ends. But a damaged length in the middle of a file looks the same: the
//! argument swallows all that follows, and the file seems to end too early. So the bytes that such an
//! argument would swallow are searched for commands (`resync`). If there are any, the file is corrupt, not
//! torn.

use std::io::{self, Read};
use std::ops::Range;

use crate::aof::fault::{Fault, Reason};

mod resync;
mod write;

pub use write::{push_command, push_comment, push_timestamp};

pub(crate) use resync::whole_commands;

type Result<T> = std::result::Result<T, Fault>;

/// Least number of bytes per read.
const READ_MIN: usize = 256 * 1024;

/// A buffer that a huge command has made larger than this is freed.
const BUFFER_KEPT_MAX: usize = 4 * 1024 * 1024;

/// Size of the pieces in which the bytes behind an impossible length are searched for commands. Their memory
/// is taken only then.
pub(crate) const RESYNC_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Room for a sign, 19 digits and a line end.
pub(crate) const NUMBER_BYTES_MAX: usize = 24;

/// Redis reads a count into an `int`.
const ARGUMENTS_MAX: u64 = i32::MAX as u64;

/// Longest argument in bytes. No server has run a longer command, and a damaged length must not read a whole
/// file into memory.
const ARGUMENT_LEN_MAX: u64 = u32::MAX as u64;

/// Longest annotation in bytes. Servers write `#TS:` and a number; Redis reads a line of at most 128 bytes.
pub(crate) const ANNOTATION_BYTES_MAX: usize = 1024;

/// The commands of a file, or of a file's part behind its snapshot.
pub struct Commands<R> {
    /// Ends after `len` bytes, even if another process appends to the file meanwhile.
    inner: io::Take<R>,
    /// The file's size, if known.
    len: Option<u64>,
    buffer: Vec<u8>,
    /// Start of the current record in the buffer. `start + cursor <= buffer.len()`.
    start: usize,
    /// Number of parsed bytes of the current record.
    cursor: usize,
    /// Offset in the file of the buffer's first byte.
    dropped: u64,
    /// The arguments of the current command, relative to its start, so that the buffer may move.
    args: Vec<Range<usize>>,
    /// See [`Commands::whole`].
    whole: u64,
    /// Offset of the open transaction, if there is one.
    multi: Option<u64>,
    failed: Option<Fault>,
}

/// An item of a file.
#[derive(Debug)]
pub enum Record<'a> {
    Command(Command<'a>),
    /// `#TS:`: later commands were executed at this time (in seconds since 1970) or later. `at`: offset in
    /// the file.
    Timestamp {
        at: u64,
        seconds: i64,
    },
    /// Another line that begins with `#`, without its line end. Servers skip it.
    Comment {
        at: u64,
        text: &'a [u8],
    },
}

/// A command and its position.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    at: u64,
    bytes: &'a [u8],
    /// Within `bytes`, in order, at least one.
    args: &'a [Range<usize>],
    queued: bool,
}

impl<'a> Command<'a> {
    /// Offset of the command in the file.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Offset of the first byte behind the command.
    pub fn end(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }

    /// The command's bytes in the file.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Number of arguments, the command's name included: at least one.
    pub fn count(&self) -> usize {
        self.args.len()
    }

    /// Its name and arguments.
    pub fn args(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let bytes = self.bytes;
        self.args.iter().map(move |range| &bytes[range.clone()])
    }

    pub fn arg(&self, index: usize) -> Option<&'a [u8]> {
        self.args.get(index).map(|range| &self.bytes[range.clone()])
    }

    pub fn name(&self) -> &'a [u8] {
        &self.bytes[self.args[0].clone()]
    }

    /// Whether the command belongs to a transaction, whose EXEC may never come. MULTI and EXEC belong to it
    /// too.
    pub fn in_transaction(&self) -> bool {
        self.queued
    }
}

impl<R: Read> Commands<R> {
    /// `at`: current offset of `inner` in the file, 0 unless a snapshot was read first. `len`: the size of
    /// the whole file.
    pub fn new(inner: R, at: u64, len: Option<u64>) -> Commands<R> {
        let left = len.map_or(u64::MAX, |len| len.saturating_sub(at));
        let args = Vec::new();
        Commands {
            inner: inner.take(left),
            len,
            buffer: Vec::new(),
            start: 0,
            cursor: 0,
            dropped: at,
            args,
            whole: at,
            multi: None,
            failed: None,
        }
    }

    /// Length of the file's prefix of whole commands, without any part of an open transaction, in bytes.
    pub fn whole(&self) -> u64 {
        self.whole
    }

    /// Returns the next record, or `None` at a proper end of the file. After an error every call returns that
    /// error.
    #[allow(clippy::should_implement_trait)] // it lends
    pub fn next(&mut self) -> Result<Option<Record<'_>>> {
        if let Some(fault) = self.failed {
            return Err(fault);
        }
        match self.advance() {
            Ok(true) => Ok(Some(self.record())),
            Ok(false) => Ok(None),
            Err(fault) => {
                self.failed = Some(fault);
                Err(fault)
            }
        }
    }

    /// Makes the next record current; false at the end.
    fn advance(&mut self) -> Result<bool> {
        self.start += self.cursor;
        self.cursor = 0;
        self.args.clear();
        if !self.has(1)? {
            return match self.multi {
                Some(_) => Err(self.fault(self.here(), Reason::TornTransaction)),
                None => Ok(false),
            };
        }
        match self.buffer[self.start] {
            b'*' => self.command()?,
            b'#' => self.annotation()?,
            other => return Err(self.fault(self.here(), Reason::Start(other))),
        }
        if self.multi.is_none() {
            self.whole = self.here();
        }
        Ok(true)
    }

    fn command(&mut self) -> Result<()> {
        let at = self.here();
        let count = self.number(Reason::Start)?;
        if count == 0 || count > ARGUMENTS_MAX {
            return Err(self.fault(at, Reason::Number));
        }
        for _ in 0..count {
            self.argument()?;
        }
        self.track_transaction(at)
    }

    fn argument(&mut self) -> Result<()> {
        let at = self.here();
        let len = self.number(Reason::Argument)?;
        let is_too_long = len > ARGUMENT_LEN_MAX;
        // A file of unknown length may end before the argument does.
        let is_read = !is_too_long || self.len.is_none();
        if self.ends_before(len) || is_read && !self.has(len.min(ARGUMENT_LEN_MAX) + 2)? {
            return Err(self.cut_short(at));
        }
        if is_too_long {
            return Err(self.fault(at, Reason::Number));
        }
        let from = self.cursor;
        let to = from + len as usize; // `has` has read that many bytes
        self.cursor = to + 2;
        if self.parsed()[to..] != *b"\r\n" {
            return Err(self.fault(self.here() - 2, Reason::LineEnd));
        }
        self.args.push(from..to);
        Ok(())
    }

    /// Parses a sign, a number and a line end. `wrong`: the error for another sign.
    fn number(&mut self, wrong: fn(u8) -> Reason) -> Result<u64> {
        let at = self.here();
        let whole_line = self.has(NUMBER_BYTES_MAX as u64)?;
        let rest = &self.buffer[self.start + self.cursor..];
        let line = &rest[..rest.len().min(NUMBER_BYTES_MAX)];
        let sign = if self.args.is_empty() && self.cursor == 0 { b'*' } else { b'$' };
        match parse_number(line, sign) {
            Line::Is(number, len) => {
                self.cursor += len;
                Ok(number)
            }
            Line::Sign(other) => Err(self.fault(at, wrong(other))),
            Line::Unfinished if !whole_line => Err(self.fault(at, Reason::Torn)),
            Line::Unfinished | Line::Malformed => Err(self.fault(at, Reason::Number)),
        }
    }

    fn annotation(&mut self) -> Result<()> {
        let whole_line = self.has(ANNOTATION_BYTES_MAX as u64)?;
        let rest = &self.buffer[self.start..];
        let line = &rest[..rest.len().min(ANNOTATION_BYTES_MAX)];
        match line.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                self.cursor = end + 1;
                Ok(())
            }
            None => {
                let reason = if whole_line { Reason::Annotation } else { Reason::Torn };
                Err(self.fault(self.here(), reason))
            }
        }
    }

    fn track_transaction(&mut self, at: u64) -> Result<()> {
        let name = &self.parsed()[self.args[0].clone()];
        let (multi, exec) = (name.eq_ignore_ascii_case(b"MULTI"), name.eq_ignore_ascii_case(b"EXEC"));
        match self.multi {
            None if multi => self.multi = Some(at),
            None if exec => return Err(self.fault(at, Reason::ExecAlone)),
            Some(_) if multi => return Err(self.fault(at, Reason::NestedMulti)),
            Some(_) if exec => self.multi = None,
            _ => {}
        }
        Ok(())
    }

    fn record(&self) -> Record<'_> {
        let (at, bytes) = (self.dropped + self.start as u64, self.parsed());
        if !self.args.is_empty() {
            // EXEC has ended the transaction, but belongs to it.
            let queued = self.multi.is_some() || self.name().eq_ignore_ascii_case(b"EXEC");
            return Record::Command(Command { at, bytes, args: &self.args, queued });
        }
        let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        match timestamp(text) {
            Some(seconds) => Record::Timestamp { at, seconds },
            None => Record::Comment { at, text },
        }
    }

    fn name(&self) -> &[u8] {
        &self.parsed()[self.args[0].clone()]
    }

    /// The parsed bytes of the current record.
    fn parsed(&self) -> &[u8] {
        &self.buffer[self.start..self.start + self.cursor]
    }

    /// Offset in the file of the next byte to parse.
    fn here(&self) -> u64 {
        self.dropped + (self.start + self.cursor) as u64
    }

    fn fault(&self, at: u64, reason: Reason) -> Fault {
        Fault { at, whole: self.whole, reason }
    }

    /// Whether the file is known to end before an argument of `len` bytes.
    fn ends_before(&self, len: u64) -> bool {
        let wanted = self.here().checked_add(len).and_then(|end| end.checked_add(2));
        match (wanted, self.len) {
            (None, _) => true,
            (Some(end), Some(len)) => end > len,
            (Some(_), None) => false,
        }
    }

    /// Returns the fault of an argument, announced at `at`, that is longer than the file: torn, unless
    /// commands follow.
    fn cut_short(&mut self, at: u64) -> Fault {
        const PIECE: usize = RESYNC_BYTES_MAX as usize;
        loop {
            if let Err(fault) = self.has(RESYNC_BYTES_MAX) {
                return fault;
            }
            let rest = &self.buffer[self.start + self.cursor..];
            let rest = &rest[..rest.len().min(PIECE)];
            if let Some(next) = whole_commands(rest).next() {
                return self.fault(at, Reason::Swallowed(self.here() + next.start as u64));
            }
            if rest.len() < PIECE {
                return self.fault(at, Reason::Torn);
            }
            // A command cut off by this piece may begin in its second half.
            self.start += PIECE / 2;
        }
    }

    /// Reads until `len` bytes can be parsed; false if the file ends before.
    fn has(&mut self, len: u64) -> Result<bool> {
        if (self.buffer.len() - self.start - self.cursor) as u64 >= len {
            return Ok(true);
        }
        self.drop_records();
        let wanted = len.saturating_add(self.cursor as u64);
        while (self.buffer.len() as u64) < wanted {
            let piece = (wanted - self.buffer.len() as u64).max(READ_MIN as u64);
            match (&mut self.inner).take(piece).read_to_end(&mut self.buffer) {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.fault(self.here(), Reason::Io(error.kind()))),
            }
        }
        Ok(true)
    }

    /// Moves the current record to the front of the buffer.
    fn drop_records(&mut self) {
        self.dropped += self.start as u64;
        self.buffer.drain(..self.start);
        self.start = 0;
        if self.buffer.capacity() > BUFFER_KEPT_MAX && self.buffer.len() < READ_MIN {
            self.buffer.shrink_to(2 * READ_MIN);
        }
    }
}

/// The start of a line with a number.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    /// The number, and the line's length including its end.
    Is(u64, usize),
    Sign(u8),
    /// Well-formed so far.
    Unfinished,
    Malformed,
}

fn parse_number(line: &[u8], sign: u8) -> Line {
    match line.first() {
        None => return Line::Unfinished,
        Some(first) if *first != sign => return Line::Sign(*first),
        Some(_) => {}
    }
    let digits = line[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = line[1..1 + digits].iter().try_fold(0u64, |number, digit| {
        number
            .checked_mul(10)?
            .checked_add(u64::from(digit - b'0'))
            .filter(|number| *number <= i64::MAX as u64)
    });
    match (number, &line[1 + digits..]) {
        (Some(_), [] | [b'\r']) => Line::Unfinished,
        (Some(number), [b'\r', b'\n', ..]) if digits > 0 => Line::Is(number, digits + 3),
        _ => Line::Malformed,
    }
}

/// The seconds of a `#TS:` annotation.
fn timestamp(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text.strip_prefix(b"#TS:")?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
