//! Writing past the page cache: what a file and memory need for it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use evenkeel_runtime::sandbox::{self, Call};

/// What addresses, lengths and places in the file must be multiples of, past the cache: the block of nearly all disks. One
/// that wants more refuses the write, and gets all through the cache.
pub(super) const BLOCK: usize = 4096;

/// Whether writes to the file go past the page cache from now on; the flag is the open file's, which others may have as well.
///
/// # Errors
/// The file system does not know that way.
pub(super) fn set(file: &File, wanted: bool) -> io::Result<()> {
    change_flags(file, |flags| if wanted { flags | libc::O_DIRECT } else { flags & !libc::O_DIRECT })
}

/// The same for a file that is appended to through the cache, and has to be told where to write past it: to go on in the middle
/// of a block, this is written once more.
///
/// # Errors
/// As of [`set`].
pub(super) fn set_or_append(file: &File, wanted: bool) -> io::Result<()> {
    const APPEND: i32 = libc::O_APPEND;
    const DIRECT: i32 = libc::O_DIRECT;
    change_flags(file, |flags| if wanted { flags & !APPEND | DIRECT } else { flags & !DIRECT | APPEND })
}

fn change_flags(file: &File, change: impl FnOnce(i32) -> i32) -> io::Result<()> {
    // SAFETY: the descriptor is open; these calls read and set its flags.
    let done = unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(file.as_raw_fd(), libc::F_SETFL, change(flags))
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A buffer with so much room behind the length that it is returned with, where a multiple of [`BLOCK`] is in memory.
pub(super) fn buffer(room: usize) -> Vec<u8> {
    let mut buffer: Vec<u8> = Vec::with_capacity(BLOCK + room);
    let start = buffer.as_ptr().align_offset(BLOCK);
    buffer.resize(start, 0);
    buffer
}

/// Asks the kernel to write a stretch of the file that is in the cache, and does not wait for it.
pub(super) fn start_writeback(file: &File, from: u64, to: u64) {
    if !sandbox::permits(Call::SyncFileRange) {
        return;
    }
    // SAFETY: the descriptor is open. Whether it helps makes no difference.
    unsafe {
        libc::sync_file_range(file.as_raw_fd(), from as i64, (to - from) as i64, libc::SYNC_FILE_RANGE_WRITE);
    }
}
