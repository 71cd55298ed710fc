//! The arguments of a call, and the ways to read them.

use evenkeel_resp::number::parse_i64;
use evenkeel_resp::request::{self, Span};
use evenkeel_store::journal::{RequestBytes, SentCommand};

use crate::error::Error;

/// Arguments where they arrived: a buffer and where in it each lies. The first is the command's name.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    source: RequestBytes<'a>,
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    #[inline]
    pub fn new(buf: &'a [u8], spans: &'a [Span]) -> Args<'a> {
        Args::of(RequestBytes::unlent(buf), spans)
    }

    /// Like [`Args::new`], for bytes that may be lent to the journal.
    #[inline]
    pub fn of(source: RequestBytes<'a>, spans: &'a [Span]) -> Args<'a> {
        Args { source, spans }
    }

    /// Number of arguments, including the command's name: one or more.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a request has a name")]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns the argument at `index`, which exists by the row's arity or the caller's check. Panics
    /// otherwise.
    #[inline]
    pub fn at(&self, index: usize) -> &'a [u8] {
        self.spans[index].of(self.source.bytes())
    }

    #[inline]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index).map(|span| span.of(self.source.bytes()))
    }

    /// Returns the request as it was sent, if the journal would write it in the same form.
    #[inline]
    pub fn as_sent(&self) -> Option<SentCommand<'a>> {
        let range = request::as_sent(self.source.bytes(), self.spans)?;
        Some(SentCommand::new(self.source, range))
    }

    /// Bytes of the request in the protocol.
    pub fn wire_len(&self) -> usize {
        let line = |number: usize| 3 + number.checked_ilog10().map_or(1, |log| 1 + log as usize);
        line(self.len()) + self.from(0).map(|arg| line(arg.len()) + arg.len() + 2).sum::<usize>()
    }

    /// All from `index` on.
    pub fn from(&self, index: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let buf = self.source.bytes();
        self.spans[index.min(self.spans.len())..].iter().map(move |span| span.of(buf))
    }

    /// The arguments from `first` on, which is at most their number, as a call of their own.
    pub fn skip(&self, first: usize) -> Args<'a> {
        Args { source: self.source, spans: &self.spans[first..] }
    }

    /// The arguments before `end`, which is at most their number.
    pub fn until(&self, end: usize) -> Args<'a> {
        Args { source: self.source, spans: &self.spans[..end] }
    }

    /// Parses an integer.
    pub fn int(&self, index: usize) -> Result<i64, Error> {
        parse_i64(self.at(index)).ok_or(Error::NotInteger)
    }

    /// Parses an integer of 32 bits, for which Redis has another error text.
    pub fn int32(&self, index: usize) -> Result<i32, Error> {
        const TEXT: &str = "ERR value is out of range, value must between -2147483648 and 2147483647";
        i32::try_from(self.int(index)?).map_err(|_| Error::text(TEXT))
    }

    /// Parses the number of a database; `databases` is how many there are.
    pub fn database(&self, index: usize, databases: u32) -> Result<u32, Error> {
        let number = u32::try_from(self.int32(index)?).ok();
        number.filter(|db| *db < databases).ok_or(Error::InvalidDb)
    }

    /// Whether the argument is this word, in any case.
    pub fn is(&self, index: usize, word: &str) -> bool {
        self.get(index).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// Returns the argument in upper case, for matching options; an argument too long for an option becomes
    /// empty.
    pub fn word(&self, index: usize) -> Word {
        Word::new(self.get(index).unwrap_or(b""))
    }

    /// Returns the argument as text for names and messages, with the replacement character for invalid bytes.
    pub fn text(&self, index: usize) -> String {
        String::from_utf8_lossy(self.at(index)).into_owned()
    }

    /// Returns the argument as Redis quotes it in an error: at most `max` bytes, and none from a zero byte
    /// on.
    pub fn quoted(&self, index: usize, max: usize) -> &'a [u8] {
        let arg = self.at(index);
        let len = arg.iter().position(|byte| *byte == 0).unwrap_or(arg.len());
        &arg[..len.min(max)]
    }

    /// A copy that owns its bytes.
    pub fn to_owned(self) -> OwnedArgs {
        OwnedArgs::new(self.from(0))
    }
}

/// Arguments kept for later, as MULTI keeps them.
#[derive(Clone, Debug)]
pub struct OwnedArgs {
    buf: Vec<u8>,
    spans: Vec<Span>,
}

impl OwnedArgs {
    /// A copy of these arguments.
    pub fn new<'a>(args: impl Iterator<Item = &'a [u8]> + Clone) -> OwnedArgs {
        let mut buf = Vec::with_capacity(args.clone().map(<[u8]>::len).sum());
        let spans = args.map(|arg| {
            buf.extend_from_slice(arg);
            Span::new(buf.len() - arg.len(), arg.len())
        });
        OwnedArgs { spans: spans.collect(), buf }
    }

    pub fn as_args(&self) -> Args<'_> {
        Args::new(&self.buf, &self.spans)
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> usize {
        self.buf.capacity() + self.spans.capacity() * size_of::<Span>()
    }
}

/// An option's name in upper case.
#[derive(Clone, Copy)]
pub struct Word {
    bytes: [u8; 24],
    len: usize,
}

impl Word {
    fn new(arg: &[u8]) -> Word {
        let mut bytes = [0; 24];
        // No option is this long; a longer argument must not look like an option.
        let len = if arg.len() > bytes.len() { 0 } else { arg.len() };
        bytes[..len].copy_from_slice(&arg[..len]);
        bytes.make_ascii_uppercase();
        Word { bytes, len }
    }

    /// For matching against byte strings: `b"EX"`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
