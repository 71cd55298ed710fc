//! The free space of the file system that holds a file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

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
        // SAFETY: zeros are a valid value, and the kernel writes no more than its size; the descriptor is
        // open.
        let status = unsafe {
            let mut status: libc::statvfs = std::mem::zeroed();
            if libc::fstatvfs(file.as_raw_fd(), &raw mut status) != 0 {
                return Err(io::Error::last_os_error());
            }
            status
        };
        let block = status.f_frsize;
        Ok(Space { free: status.f_bavail * block, size: status.f_blocks * block })
    }
}
