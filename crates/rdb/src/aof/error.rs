//! Errors about a file or a directory, with its path.

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
    /// The operating system refused an operation on the file.
    Io(&'static str, io::Error),
    Manifest(LineError),
    /// The manifest is larger than any server's.
    ManifestSize,
    /// There are parts (the first is named here), but no manifest that lists the data.
    NoManifest(PathBuf),
    /// The manifest lists a missing part.
    Missing,
    /// The manifest lists a path that is no file.
    NoFile,
    /// A device, a pipe or the like in place of a file.
    Special,
    /// The folder has this many manifests; a single manifest is expected.
    Manifests(usize),
    /// The manifest is in this subfolder.
    ManifestInside(PathBuf),
    /// No file can have this name, or a manifest with it could not be read again.
    Name,
    /// No number is left for the next file.
    Numbers,
    /// The file's content cannot be read.
    Content(Fault),
}

impl Error {
    pub(crate) fn new(path: impl AsRef<Path>, problem: Problem) -> Error {
        Error { path: path.as_ref().to_owned(), problem }
    }

    /// For `map_err`: the failed operation and its path.
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
                "{path} is missing, but there is {}: without a manifest nobody knows which files \
                 are the data",
                part.display()
            ),
            // Redis' text, which its test suite expects.
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
