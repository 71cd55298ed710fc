//! Commands one after the other, as they come from a file, and as they go into one.
//!
//! A command is lent out where it lies in the buffer, which holds it as a whole. The buffer grows with what has been
//! read, never with what a length announces, and where the file's size is known a length beyond its end is not even
//! waited for.
//!
//! A file that just ends is what a crash leaves. But a length that was changed in the middle of a file looks the same: it
//! swallows all that follows and then "the file ends too early". So what such an argument would have swallowed is searched
//! for commands (`resync`), and if there are some, the file is not torn but corrupt.

use std::io::{self, Read};
use std::ops::Range;

use crate::aof::fault::{Fault, Reason};

mod resync;
mod write;

pub use write::{push_command, push_comment, push_timestamp};

pub(crate) use resync::whole_commands;

type Result<T> = std::result::Result<T, Fault>;

/// Read at least this much at a time, in bytes.
const READ_MIN: usize = 256 * 1024;

/// A buffer that one huge command has made larger than this is given back.
const BUFFER_KEPT_MAX: usize = 4 * 1024 * 1024;

/// Behind a length that reaches beyond the end, commands are searched for in pieces of so many bytes. Memory for it is taken then only.
pub(crate) const RESYNC_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// A sign, 19 digits and a line end have room in it.
pub(crate) const NUMBER_BYTES_MAX: usize = 24;

/// What Redis reads a count into.
const ARGUMENTS_MAX: u64 = i32::MAX as u64;

/// Longest argument: no server has run a command of more bytes, and a damaged length is not to have a file read into memory.
const ARGUMENT_LEN_MAX: u64 = u32::MAX as u64;

/// Servers write `#TS:` and a number. Redis takes a line of at most 128 bytes for one annotation.
pub(crate) const ANNOTATION_BYTES_MAX: usize = 1024;

/// A file of commands, or what follows a snapshot in one.
pub struct Commands<R> {
    /// Gives no more than `len` says, even if somebody appends to the file meanwhile.
    inner: io::Take<R>,
    /// The file's size, where it is known.
    len: Option<u64>,
    buffer: Vec<u8>,
    /// The current record starts here in the buffer. `start + cursor <= buffer.len()`.
    start: usize,
    /// How far the current record has been parsed.
    cursor: usize,
    /// Offset in the file of the buffer's first byte.
    dropped: u64,
    /// The arguments of the current command, counted from its start, so that the buffer may move under them.
    args: Vec<Range<usize>>,
    /// See [`Commands::whole`].
    whole: u64,
    /// Where the transaction began that has not ended.
    multi: Option<u64>,
    failed: Option<Fault>,
}

/// What a file consists of.
#[derive(Debug)]
pub enum Record<'a> {
    Command(Command<'a>),
    /// `#TS:`: what follows was executed at this time or later, in seconds since 1970. At the given offset.
    Timestamp {
        at: u64,
        seconds: i64,
    },
    /// Any other line that begins with `#`, without its line end. Servers skip it.
    Comment {
        at: u64,
        text: &'a [u8],
    },
}

/// A command and where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    at: u64,
    bytes: &'a [u8],
    /// Within `bytes`, in order, at least one.
    args: &'a [Range<usize>],
    queued: bool,
}

impl<'a> Command<'a> {
    /// Its offset in the file.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The offset behind it.
    pub fn end(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }

    /// As it stands in the file.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// How many arguments it has, its name included: at least one.
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

    /// It stands in a transaction, and EXEC, which is in it too, may never come. MULTI itself is in it.
    pub fn in_transaction(&self) -> bool {
        self.queued
    }
}

impl<R: Read> Commands<R> {
    /// `at`: where in the file `inner` stands, 0 unless a snapshot was read first. `len`: the size of the whole file.
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

    /// How many of the file's first bytes hold whole commands, and no part of a transaction that has not ended yet.
    pub fn whole(&self) -> u64 {
        self.whole
    }

    /// The next record, or `None` where the file ends as it should. What fails once fails again.
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

    /// Makes the next record the current one; false: there is none.
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
        self.note_transaction(at)
    }

    fn argument(&mut self) -> Result<()> {
        let at = self.here();
        let len = self.number(Reason::Argument)?;
        let is_too_long = len > ARGUMENT_LEN_MAX;
        // Where nobody knows how long the file is, it may end all the same.
        let is_read = !is_too_long || self.len.is_none();
        if self.ends_before(len) || is_read && !self.has(len.min(ARGUMENT_LEN_MAX) + 2)? {
            return Err(self.cut_short(at));
        }
        if is_too_long {
            return Err(self.fault(at, Reason::Number));
        }
        let from = self.cursor;
        let to = from + len as usize; // so many are in the buffer
        self.cursor = to + 2;
        if self.parsed()[to..] != *b"\r\n" {
            return Err(self.fault(self.here() - 2, Reason::LineEnd));
        }
        self.args.push(from..to);
        Ok(())
    }

    /// Takes a sign, a number and a line end. `wrong`: what another sign is.
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

    fn note_transaction(&mut self, at: u64) -> Result<()> {
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
            // EXEC has ended the transaction that it belongs to.
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

    /// The bytes of the current record that have been parsed.
    fn parsed(&self) -> &[u8] {
        &self.buffer[self.start..self.start + self.cursor]
    }

    /// Offset in the file of what is to be parsed next.
    fn here(&self) -> u64 {
        self.dropped + (self.start + self.cursor) as u64
    }

    fn fault(&self, at: u64, reason: Reason) -> Fault {
        Fault { at, whole: self.whole, reason }
    }

    /// The file is known to end before an argument of `len` bytes does.
    fn ends_before(&self, len: u64) -> bool {
        let wanted = self.here().checked_add(len).and_then(|end| end.checked_add(2));
        match (wanted, self.len) {
            (None, _) => true,
            (Some(end), Some(len)) => end > len,
            (Some(_), None) => false,
        }
    }

    /// An argument, announced at `at`, is longer than the file. Torn, if nothing follows that looks like commands.
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
            // A command that this piece cuts off may begin in its second half.
            self.start += PIECE / 2;
        }
    }

    /// Reads until there are `len` bytes to be parsed; false: the file ends before.
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

/// How a line with a number begins.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    /// The number, and the length of the line with its end.
    Is(u64, usize),
    Sign(u8),
    /// Well-formed as far as it goes.
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
