//! How much room there is on the file system that a file is on.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    /// What this user may still fill.
    pub(crate) free: u64,
    pub(crate) size: u64,
}

impl Space {
    /// # Errors
    /// What the system says.
    pub(crate) fn around(file: &File) -> io::Result<Space> {
        // SAFETY: all zeroes is a valid value, and the kernel writes no more than its size; the descriptor is open.
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
