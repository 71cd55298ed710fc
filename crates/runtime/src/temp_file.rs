//! New files that no other process writes.
//!
//! The process id in a name is not enough: servers in containers may share a folder, and each may have
//! process id 1. So only a new file is opened, and if a name is taken by another server's file, or a
//! leftover, the next name is tried.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Names that are tried. Fewer servers begin the same work at once.
const NAMES: u64 = 1_000;

/// Creates a file for writing and reading, and returns it with its path: the first free name of `name(0)`,
/// `name(1)` .. in `folder`.
///
/// # Errors
/// The system's error; [`ErrorKind::AlreadyExists`] if a thousand names are taken.
pub fn create(folder: &Path, name: impl Fn(u64) -> String) -> io::Result<(File, PathBuf)> {
    open(OpenOptions::new().read(true).write(true), folder, name)
}

/// Creates a file that only this user may read and write, and that is gone once it is closed. `purpose` is
/// part of the name that it has for a moment.
pub fn nameless(folder: &Path, purpose: &str) -> io::Result<File> {
    let process = std::process::id();
    let name = |number| format!("temp-{purpose}-{process}-{number}");
    let (file, path) = open(OpenOptions::new().read(true).write(true).mode(0o600), folder, name)?;
    fs::remove_file(&path)?;
    Ok(file)
}

fn open(options: &OpenOptions, folder: &Path, name: impl Fn(u64) -> String) -> io::Result<(File, PathBuf)> {
    let mut options = options.clone();
    options.create_new(true);
    for path in (0..NAMES).map(|number| folder.join(name(number))) {
        match options.open(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::scratch::Scratch;

    #[test]
    fn existing_files_are_not_overwritten() {
        let scratch = Scratch::new();
        let folder = &scratch.path;
        fs::write(folder.join("a-0"), "another server's").expect("writes");
        let (_, path) = create(folder, |number| format!("a-{number}")).expect("the next name is free");
        assert_eq!(path, folder.join("a-1"));
        assert_eq!(fs::read(folder.join("a-0")).expect("reads"), b"another server's");
        let refused = create(folder, |_| "a-0".into()).expect_err("it is taken");
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
        let missing = create(&folder.join("none"), |number| number.to_string()).expect_err("no such folder");
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn nameless_files_are_distinct() {
        let scratch = Scratch::new();
        let folder = &scratch.path;
        let other = folder.join(format!("temp-x-{}-0", std::process::id()));
        fs::write(&other, "just made by another one").expect("writes");
        let file = nameless(folder, "x").expect("creates");
        assert_eq!(file.metadata().expect("is open").len(), 0);
        let left: Vec<_> = fs::read_dir(folder).expect("lists").flatten().map(|entry| entry.path()).collect();
        assert_eq!(left, [other]);
    }
}
