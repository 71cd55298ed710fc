//! What is wrong with a file or a directory, and with which.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::aof::fault::Fault;
use crate::aof::manifest::LineError;
use crate::error::without_numbers;

#[derive(Debug)]
pub struct Error {
    pub path: PathBuf,
    pub problem: Problem,
}

#[derive(Debug)]
pub enum Problem {
    /// The operating system refused to do something with it.
    Io(&'static str, io::Error),
    Manifest(LineError),
    /// The manifest is larger than any server writes one.
    ManifestSize,
    /// There are parts, the first of which is named, but no manifest says which of them are the data.
    NoManifest(PathBuf),
    /// The manifest lists a part that is not there.
    Missing,
    /// The manifest lists something that is no file.
    NoFile,
    /// A device, a pipe or the like, where a file is wanted.
    Special,
    /// So many manifests are in a folder that should have one.
    Manifests(usize),
    /// The manifest is not in this folder, but in one inside it.
    ManifestInside(PathBuf),
    /// The name cannot be a file's, or a manifest that contains it could not be read again.
    Name,
    /// No number is left for the next file.
    Numbers,
    /// What is in the file cannot be read.
    Content(Fault),
}

impl Error {
    pub(crate) fn new(path: impl AsRef<Path>, problem: Problem) -> Error {
        Error { path: path.as_ref().to_owned(), problem }
    }

    /// For `map_err`: what could not be done with which path.
    pub(crate) fn io(doing: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Error {
        move |error| Error::new(path, Problem::Io(doing, error))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.problem {
            Problem::Io(doing, error) => {
                write!(f, "Can't {doing} {path}: {}", without_numbers(&error.to_string()))
            }
            Problem::Manifest(error) if error.line == 0 => write!(f, "{path}: {}", error.flaw),
            Problem::Manifest(error) => {
                write!(f, "{path}, line {}, >>> '{}': {}", error.line, error.text, error.flaw)
            }
            Problem::ManifestSize => write!(f, "{path}: too large to be an AOF manifest"),
            Problem::NoManifest(part) => write!(
                f,
                "{path} is missing, but there is {}: without a manifest nobody knows which files are the data",
                part.display()
            ),
            // Redis' words, which its test suite looks for.
            Problem::Missing => {
                write!(f, "The AOF file {path} is listed in the manifest: No such file or directory")
            }
            Problem::NoFile => write!(f, "{path} is listed in the manifest, but is not a file"),
            Problem::Special => write!(f, "{path} is not a file"),
            Problem::Manifests(0) => write!(f, "{path}: no manifest is in this folder"),
            Problem::ManifestInside(folder) => {
                write!(f, "{path}: no manifest is in this folder, but one is in {}", folder.display())
            }
            Problem::Manifests(count) => {
                write!(f, "{path}: {count} manifests are in this folder; name the one that is meant")
            }
            Problem::Name => write!(f, "{path} cannot be the name of a file in a manifest"),
            Problem::Numbers => write!(f, "{path}: no sequence number is left for another file"),
            Problem::Content(fault) => write!(f, "{path}: {fault}"),
        }
    }
}

impl std::error::Error for Error {}
