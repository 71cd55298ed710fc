//! Errors of a configuration, in Redis' words, since operators and test harnesses search for them.

use super::value::{Reason, Word};
use evenkeel_rdb::without_numbers;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// An error of a configuration: an unreadable file, or a malformed line.
#[derive(Debug)]
pub enum ConfigError {
    Open { path: PathBuf, error: io::Error },
    Line { place: Place, text: Word, reason: Reason },
}

/// Position of a line; lines and options count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    File { path: PathBuf, line: usize },
    Stdin { line: usize },
    Option { number: usize },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Open { path, error } => {
                write!(f, "Fatal error, can't open config file '{}': {}", path.display(), cause(error))
            }
            ConfigError::Line { place, text, reason } => {
                writeln!(f, "Reading the {place}")?;
                writeln!(f, ">>> '{}'", String::from_utf8_lossy(text))?;
                write!(f, "{reason}")
            }
        }
    }
}

/// All errors of a configuration, formatted for the standard error stream.
pub struct Mistakes<'m>(pub &'m [ConfigError]);

impl fmt::Display for Mistakes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.iter().any(|mistake| matches!(mistake, ConfigError::Line { .. })) {
            let version = env!("CARGO_PKG_VERSION");
            writeln!(f, "\n*** FATAL CONFIG FILE ERROR (Evenkeel {version}) ***")?;
        }
        let texts: Vec<String> = self.0.iter().map(ConfigError::to_string).collect();
        f.write_str(&texts.join("\n"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { path, line } => {
                write!(f, "configuration file, at line {line} of {}", path.display())
            }
            Place::Stdin { line } => write!(f, "configuration file, at line {line} of the standard input"),
            Place::Option { number } => write!(f, "command line, at option {number}"),
        }
    }
}

impl std::error::Error for ConfigError {}

/// Returns the system's message without the error number that the standard library appends.
pub fn cause(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound if error.get_ref().is_none() => "No such file or directory".to_owned(),
        _ => without_numbers(&error.to_string()).into_owned(),
    }
}

/// Why CONFIG SET changed nothing. The text follows `ERR ` in the reply.
#[derive(Debug, PartialEq, Eq)]
pub enum SetError {
    Unknown { name: String },
    Failed { name: String, reason: Reason },
}

impl SetError {
    /// Returns the error for a well-formed value that could not take effect: `Failed to bind to specified
    /// addresses.`
    pub fn failed(name: &str, reason: impl Into<Reason>) -> Self {
        SetError::Failed { name: name.to_owned(), reason: reason.into() }
    }
}

impl fmt::Display for SetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetError::Unknown { name } => {
                write!(f, "Unknown option or number of arguments for CONFIG SET - '{name}'")
            }
            SetError::Failed { name, reason } => {
                write!(f, "CONFIG SET failed (possibly related to argument '{name}') - {reason}")
            }
        }
    }
}

impl std::error::Error for SetError {}
