//! The free space of the file system that holds a file.

use std::fs::File;
use std::io;

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Space that this user may still fill.
    pub free: u64,
    pub size: u64,
}

impl Space {
    /// Space on the file system of `file`.
    ///
    /// # Errors
    /// The system's error.
    pub fn around(file: &File) -> io::Result<Space> {
        let status = rustix::fs::fstatvfs(file)?;
        let block = status.f_frsize;
        Ok(Space { free: status.f_bavail * block, size: status.f_blocks * block })
    }
}
