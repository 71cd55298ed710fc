//! The free space of the file system that holds a file.

use std::fs::File;
use std::io;

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    /// Space that this user may still fill.
    pub(crate) free: u64,
    pub(crate) size: u64,
}

impl Space {
    /// Space on the file system of `file`.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn around(file: &File) -> io::Result<Space> {
        let status = rustix::fs::fstatvfs(file)?;
        let block = status.f_frsize;
        Ok(Space { free: status.f_bavail * block, size: status.f_blocks * block })
    }
}
