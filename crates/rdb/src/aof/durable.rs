//! Changes of files that are complete or not begun after a power cut.
//!
//! A rename is visible at once, and survives a crash after the folder was synced. The file is synced before
//! its rename, or the name could survive without the content.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::path::Path;

use crate::aof::error::{Error, Problem};

type Result<T> = std::result::Result<T, Error>;

/// Replaces the content of `path` by `bytes`: writes `beside`, syncs, renames, syncs the folder. After an
/// error `beside` is removed.
pub(crate) fn replace(path: &Path, beside: &Path, bytes: &[u8]) -> Result<()> {
    let replaced = write(beside, bytes).and_then(|()| rename(beside, path));
    if replaced.is_err() {
        let _ = fs::remove_file(beside); // the file may be missing; the caller gets the first error
    }
    replaced
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path).map_err(Error::io("create", path))?;
    file.write_all(bytes).map_err(Error::io("write", path))?;
    file.sync_all().map_err(Error::io("sync", path))
}

/// Copies a file's bytes from byte `from` on to the new file `path`, durably. After an error `path` is
/// removed.
pub(crate) fn copy(mut file: &File, from: u64, path: &Path) -> Result<()> {
    file.seek(SeekFrom::Start(from)).map_err(Error::io("read", path))?;
    let mut copy = File::create_new(path).map_err(Error::io("create", path))?;
    let copied = std::io::copy(&mut file, &mut copy).map_err(Error::io("write", path));
    let copied = copied.and_then(|_| copy.sync_all().map_err(Error::io("sync", path)));
    if copied.is_err() {
        let _ = fs::remove_file(path); // the next attempt begins anew, and needs the room
    }
    copied.and_then(|()| sync_folder_of(path))
}

/// Renames within a file system and syncs the folders of both names.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(Error::io("rename", from))?;
    sync_folder_of(to)?;
    match from.parent() == to.parent() {
        true => Ok(()),
        false => sync_folder_of(from),
    }
}

/// Removes a file; false if there is none.
pub(crate) fn remove_if_there(path: &Path) -> Result<bool> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io("remove", path)(error)),
        Ok(()) => Ok(true),
    }
}

pub(crate) fn sync_folder_of(path: &Path) -> Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let opened = File::open(folder).map_err(Error::io("open", folder))?;
    opened.sync_all().map_err(Error::io("sync", folder))
}

/// Truncates a file to `len` bytes, durably. A file that is not longer is an error and stays as it is.
pub fn truncate(path: &Path, len: u64) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path).map_err(Error::io("open", path))?;
    let now = file.metadata().map_err(Error::io("examine", path))?.len();
    if now < len {
        let error = std::io::Error::other(format!("it has {now} bytes, fewer than the {len} to be kept"));
        return Err(Error::new(path, Problem::Io("truncate", error)));
    }
    file.set_len(len).map_err(Error::io("truncate", path))?;
    file.sync_all().map_err(Error::io("sync", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aof::scratch::Root;

    #[test]
    fn a_failed_replacement_leaves_no_temporary_file() {
        let root = Root::with::<&str>(&[]);
        let (path, beside) = (root.0.join("manifest"), root.0.join("temp"));
        replace(&path, &beside, b"one").expect("there is room");
        replace(&path, &beside, b"two").expect("there is room");
        assert_eq!(fs::read(&path).expect("it is there"), b"two");
        fs::remove_file(&path).expect("it is there");
        fs::create_dir_all(path.join("in the way")).expect("there is room");
        assert!(replace(&path, &beside, b"three").is_err());
        assert!(!beside.exists());
    }
}
