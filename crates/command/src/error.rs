//! The errors that clients read, byte for byte as in Redis: client libraries match on them.

use std::borrow::Cow;

use evenkeel_store::WrongType;

use crate::{Args, Spec};

/// An error reply. The outcome of a command that is not over is no error, but a [`crate::flow::Flow`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
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
    /// Any other text, with its code: `ERR ...`.
    Text(Cow<'static, str>),
    /// A text that quotes the client's bytes, which need not be UTF-8.
    Bytes(Vec<u8>),
}

impl Error {
    /// Returns an error with this text, which includes the code.
    pub fn text(text: impl Into<Cow<'static, str>>) -> Error {
        Error::Text(text.into())
    }

    /// The error for a command that panicked.
    pub fn abandoned() -> Error {
        Error::text("ERR internal error: the command was aborted, see the server log")
    }

    /// The error for an unknown subcommand of a container command, the call's second argument.
    #[cold]
    pub fn unknown_subcommand(container: &Spec, args: &Args<'_>) -> Error {
        const SHOWN: usize = 128;
        let mut text = b"ERR unknown subcommand '".to_vec();
        text.extend_from_slice(args.quoted(1, SHOWN));
        text.extend_from_slice(format!("'. Try {} HELP.", container.name).as_bytes());
        Error::Bytes(text)
    }

    /// The error for a client that was killed while its command waited; no client reads it.
    pub fn killed() -> Error {
        Error::text("ERR the client was killed")
    }

    /// The error for a command that must not read stale data.
    pub fn stale() -> Error {
        Error::text("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.")
    }

    /// Whether the error sends the client to another server, or is about the place of its keys in a cluster.
    pub fn is_redirection(&self) -> bool {
        const CODES: [&str; 6] = ["REDIRECT ", "MOVED ", "ASK ", "TRYAGAIN ", "CROSSSLOT ", "CLUSTERDOWN "];
        matches!(self, Error::Text(text) if CODES.iter().any(|code| text.starts_with(code)))
    }

    /// Returns the reply's line without the leading minus.
    pub fn line(&self) -> Cow<'_, [u8]> {
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
