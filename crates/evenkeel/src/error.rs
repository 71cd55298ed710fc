//! The errors that clients read, byte for byte Redis' own: client libraries match on them.

use std::borrow::Cow;

use evenkeel_store::WrongType;

/// What a command replies instead of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    WrongType,
    NotInteger,
    NotFloat,
    NotFinite,
    Syntax,
    NoSuchKey,
    Overflow,
    StringTooLong,
    InvalidDb,
    BitOffset,
    BitValue,
    OutOfMemory,
    NoAuth,
    ExecAborted,
    Arity(&'static str),
    InvalidExpire(&'static str),
    /// Not an error: the command waits, and its reply comes later. See [`crate::blocking`].
    Suspended,
    /// Not an error: nothing has been done, and the command is to be run again with everything held.
    NeedsAll,
    /// Not an error: nothing has been done, and it is to be looked at once more whether the command may be run.
    AdmitAgain,
    /// Any other text, with its code: `ERR ...`.
    Text(Cow<'static, str>),
    /// A text that quotes what the client sent, which need not be UTF-8.
    Bytes(Vec<u8>),
}

/// What a handler returns: its reply has been written, or an error is to be.
pub(crate) type Done = Result<(), Error>;

impl Error {
    /// `ERR` and the text.
    pub(crate) fn text(text: impl Into<Cow<'static, str>>) -> Error {
        Error::Text(text.into())
    }

    /// The command has panicked.
    pub(crate) fn abandoned() -> Error {
        Error::text("ERR internal error: the command was aborted, see the server log")
    }

    /// The client was killed while its command waited: nobody reads this.
    pub(crate) fn killed() -> Error {
        Error::text("ERR the client was killed")
    }

    /// The reply's line without the leading minus.
    pub(crate) fn line(&self) -> Cow<'_, [u8]> {
        let text: Cow<'_, str> = match self {
            Error::WrongType => "WRONGTYPE Operation against a key holding the wrong kind of value".into(),
            Error::NotInteger => "ERR value is not an integer or out of range".into(),
            Error::NotFloat => "ERR value is not a valid float".into(),
            Error::NotFinite => "ERR increment would produce NaN or Infinity".into(),
            Error::Syntax => "ERR syntax error".into(),
            Error::NoSuchKey => "ERR no such key".into(),
            Error::Overflow => "ERR increment or decrement would overflow".into(),
            Error::StringTooLong => "ERR string exceeds maximum allowed size (proto-max-bulk-len)".into(),
            Error::InvalidDb => "ERR DB index is out of range".into(),
            Error::BitOffset => "ERR bit offset is not an integer or out of range".into(),
            Error::BitValue => "ERR bit is not an integer or out of range".into(),
            Error::OutOfMemory => "OOM command not allowed when used memory > 'maxmemory'.".into(),
            Error::NoAuth => "NOAUTH Authentication required.".into(),
            Error::ExecAborted => "EXECABORT Transaction discarded because of previous errors.".into(),
            Error::Arity(name) => {
                format!("ERR wrong number of arguments for '{}' command", name.to_ascii_lowercase()).into()
            }
            Error::InvalidExpire(name) => {
                format!("ERR invalid expire time in '{}' command", name.to_ascii_lowercase()).into()
            }
            // Nobody ever reads these.
            Error::Suspended => "ERR the command waits".into(),
            Error::NeedsAll => "ERR the command is to be run again".into(),
            Error::AdmitAgain => "ERR the command is to be admitted again".into(),
            Error::Text(text) => Cow::Borrowed(text.as_ref()),
            Error::Bytes(bytes) => return Cow::Borrowed(bytes),
        };
        match text {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        }
    }
}

impl From<WrongType> for Error {
    fn from(_: WrongType) -> Error {
        Error::WrongType
    }
}
