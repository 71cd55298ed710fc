//! Writes past the page cache: the requirements on files and memory.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use evenkeel_runtime::sandbox::{self, Call};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Alignment of addresses, lengths and file offsets past the cache: the block of nearly all disks. A disk
/// that needs more refuses the write, and is written through the cache.
pub(super) const BLOCK: usize = 4096;

/// Sets whether writes to the file bypass the page cache. The flag belongs to the open file, which duplicates
/// of the descriptor share.
///
/// # Errors
/// The file system does not support it.
pub(super) fn set(file: &File, wanted: bool) -> io::Result<()> {
    change_flags(file, |flags| flags.set(OFlags::DIRECT, wanted))
}

/// The same for a file that is appended to through the cache. Past the cache it has an explicit offset, since
/// a write that continues inside a block writes that block again.
///
/// # Errors
/// As for [`set`].
pub(super) fn set_or_append(file: &File, wanted: bool) -> io::Result<()> {
    change_flags(file, |flags| {
        flags.set(OFlags::DIRECT, wanted);
        flags.set(OFlags::APPEND, !wanted);
    })
}

fn change_flags(file: &File, change: impl FnOnce(&mut OFlags)) -> io::Result<()> {
    let mut flags = fcntl_getfl(file)?;
    change(&mut flags);
    Ok(fcntl_setfl(file, flags)?)
}

/// A buffer with `room` bytes behind its present length, at which the address is a multiple of [`BLOCK`].
pub(super) fn buffer(room: usize) -> Vec<u8> {
    let mut buffer: Vec<u8> = Vec::with_capacity(BLOCK + room);
    let start = buffer.as_ptr().align_offset(BLOCK);
    buffer.resize(start, 0);
    buffer
}

/// Asks the kernel to write a cached range of the file, without waiting for it.
pub(super) fn start_writeback(file: &File, from: u64, to: u64) {
    if !sandbox::permits(Call::SyncFileRange) {
        return;
    }
    // SAFETY: the descriptor is open. A failure makes no difference.
    unsafe {
        libc::sync_file_range(file.as_raw_fd(), from as i64, (to - from) as i64, libc::SYNC_FILE_RANGE_WRITE);
    }
}
