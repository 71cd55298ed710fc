//! Locks that keep two servers from using the same files for their data.
//!
//! Each server would replace the other's snapshot and append to the other's file, and both would report
//! success. So a server locks the name of its file before it loads or writes, for the life of the process.
//! The kernel releases the lock however the process ends, so nothing has to be cleaned up after a crash.
//!
//! The names are locked, not the folder: servers with a `dbfilename` and an `appendfilename` of their own may
//! share a folder. A file that is replaced cannot be locked itself. So there is a lock file beside it, and
//! each name locks a byte of that file, at a place derived from the name.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The lock file, in the folder of the locked files.
const FILE: &str = ".evenkeel.lock";

/// The whole lock file, in the terms of `fcntl`.
const EVERYWHERE: (i64, i64) = (0, 0);

/// How long a server that is ending may take to release its lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// The kind of file kept under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Snapshot,
    Log,
}

/// The locks of this server: for each kind of file, the lock on its present name.
#[derive(Default)]
pub struct Locks([Mutex<Option<Locked>>; 2]);

struct Locked {
    path: PathBuf,
    /// Releases the lock when it is closed.
    _file: File,
}

impl Locks {
    /// Locks the name in a folder, and releases the previous name. A folder in which nothing can be locked is
    /// accepted as it is.
    pub fn hold(&self, what: What, folder: &Path, name: &Path) -> io::Result<()> {
        let path = std::path::absolute(folder)?.join(name);
        let mut guard = self.0[what as usize].lock();
        if guard.as_ref().is_some_and(|guard| guard.path == path) {
            return Ok(());
        }
        if let Some(file) = lock(folder, what, name)? {
            *guard = Some(Locked { path, _file: file });
        }
        Ok(())
    }

    /// Releases all names, for the process that takes over.
    pub fn release(&self) {
        self.0.iter().for_each(|guard| drop(guard.lock().take()));
    }
}

/// Keeps servers from the files under a name, or under any name, for as long as the returned file is open.
/// For a tool that is about to change a file. `None`: no server has ever locked anything in this folder.
pub fn keep_servers_off(folder: &Path, name: Option<(What, &Path)>) -> io::Result<Option<File>> {
    let path = folder.join(FILE);
    let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else { return Ok(None) };
    let place = name.map_or(EVERYWHERE, |(what, name)| (place_of(what, name), 1));
    match try_lock(&file, place) {
        Err(error) if is_taken(&error) => Err(io::Error::other(format!(
            "a running server uses {} (it holds a lock in {}): stop the server first",
            folder.join(name.map_or(Path::new(""), |(_, name)| name)).display(),
            path.display()
        ))),
        _ => Ok(Some(file)),
    }
}

/// Returns `None` if nothing can be locked in this folder.
fn lock(folder: &Path, what: What, name: &Path) -> io::Result<Option<File>> {
    let path = folder.join(FILE);
    let Ok(file) = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path) else {
        return Ok(None);
    };
    let (place, until) = ((place_of(what, name), 1), Instant::now() + LOCK_TIMEOUT);
    loop {
        match try_lock(&file, place) {
            Ok(()) => return Ok(Some(file)),
            Err(error) if !is_taken(&error) => return Ok(None),
            Err(_) if Instant::now() < until => std::thread::sleep(LOCK_TIMEOUT / 40),
            Err(_) => {
                return Err(io::Error::other(format!(
                    "another server uses {} (it holds a lock in {}). Each server needs its own dir, or its \
                     own dbfilename and appendfilename",
                    folder.join(name).display(),
                    path.display()
                )));
            }
        }
    }
}

/// Locks for the open file, not for the process: the lock survives if another part of the process opens and
/// closes the file.
fn try_lock(file: &File, (start, len): (i64, i64)) -> io::Result<()> {
    // SAFETY: zeros are valid for this plain structure.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = libc::F_WRLCK as i16;
    request.l_whence = libc::SEEK_SET as i16;
    (request.l_start, request.l_len) = (start, len);
    // SAFETY: the descriptor is open and the structure valid.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

/// FNV-1a over the name, in 62 bits: a collision of two names in a folder would be a needless refusal.
fn place_of(what: What, name: &Path) -> i64 {
    let bytes = [what as u8].into_iter().chain(name.as_os_str().as_bytes().iter().copied());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash >> 2) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_exclusive_and_released() {
        let folder = crate::testing::folder("lock");
        let (one, other) = (Locks::default(), Locks::default());
        let hold = |locks: &Locks, what, name: &str| locks.hold(what, &folder, Path::new(name));
        hold(&one, What::Snapshot, "dump.rdb").expect("it is free");
        hold(&one, What::Snapshot, "dump.rdb").expect("it is held already");
        hold(&other, What::Snapshot, "other.rdb").expect("another name is free");
        hold(&other, What::Log, "dump.rdb").expect("and the same name for something else");
        let refused = hold(&other, What::Snapshot, "dump.rdb").expect_err("it is held");
        assert!(refused.to_string().contains("another server uses"), "{refused}");
        hold(&one, What::Snapshot, "new.rdb").expect("it is free");
        hold(&other, What::Snapshot, "dump.rdb").expect("who takes another name lets go of the first");
        drop(other);
        hold(&one, What::Snapshot, "dump.rdb").expect("its holder is gone");
        hold(&one, What::Snapshot, "none/dump.rdb").expect("a folder is no part of the name");
        let off = |what, name| keep_servers_off(&folder, Some((what, Path::new(name))));
        let refused = off(What::Snapshot, "none/dump.rdb").expect_err("it is held").to_string();
        assert!(refused.contains("none/dump.rdb (it holds a lock in"), "{refused}");
        assert!(keep_servers_off(&folder, None).is_err(), "something is held there");
        let kept = off(What::Snapshot, "dump.rdb").expect("it is free").expect("there is a file to lock");
        let refused = hold(&Locks::default(), What::Snapshot, "dump.rdb").expect_err("it is kept off");
        assert!(refused.to_string().contains("another server"), "{refused}");
        drop(kept);
        assert!(keep_servers_off(&folder.join("none"), None).expect("nobody is there").is_none());
        one.hold(What::Log, &folder.join("none"), Path::new("x")).expect("where nothing can be locked");
        std::fs::remove_dir_all(&folder).expect("it can be removed");
    }
}
