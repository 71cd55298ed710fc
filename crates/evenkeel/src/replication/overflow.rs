//! The stretch of the stream that lies before the backlog, on disk: for replicas that are being sent a snapshot, or load it.
//!
//! What is written meanwhile has to be kept for them, and with fast writers and a large snapshot that is more than memory should
//! be given for. Redis drops such a replica, which then begins anew, again and again as long as there are writers: either its
//! output buffer is large enough for the load, or it never comes to an end. Here the oldest blocks go to a file without a name,
//! and are sent from there; so the first try succeeds, with nothing to be set, and no writer waits.
//!
//! The road not taken: to slow writers down until the rest fits. With 5 GB to send and 64 MB to spare that would be a tenth of
//! their pace.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::backlog::BLOCK;

/// Bytes that may lie on disk: more than half an hour of what one thread writes.
pub(super) const OVERFLOW_LEN_MAX: u64 = 64 << 30;

/// Bytes that are given back to the disk at once.
const HOLE_LEN: u64 = 64 << 20;
const _: () = assert!(HOLE_LEN.is_multiple_of(BLOCK as u64), "holes are made of whole pages");

/// See the module's text.
pub(crate) struct Overflow {
    file: File,
    /// The offset of the file's first byte, of the first one that is still there, and of the one behind the last.
    base: u64,
    start: u64,
    end: u64,
}

impl Overflow {
    /// Empty, in this folder, for the stream from an offset on.
    pub(super) fn create(folder: &Path, offset: u64) -> io::Result<Overflow> {
        let path = folder.join(format!("temp-stream-{}", std::process::id()));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(Overflow { file, base: offset, start: offset, end: offset })
    }

    /// The offset of the first byte that is there.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    pub(super) fn has(&self, offset: u64) -> bool {
        (self.start..self.end).contains(&offset)
    }

    /// Bytes on disk.
    pub(super) fn len(&self) -> u64 {
        self.end - self.start
    }

    /// What comes next.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.len() + bytes.len() as u64 > OVERFLOW_LEN_MAX {
            return Err(io::Error::other(format!("{OVERFLOW_LEN_MAX} bytes are enough")));
        }
        self.file.write_all_at(bytes, self.end - self.base)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// The bytes from an offset on that is there, at most `max`.
    pub(super) fn read(&self, from: u64, max: usize) -> io::Result<Vec<u8>> {
        assert!(self.has(from), "only what is kept can be read");
        let mut bytes = vec![0; (self.end - from).min(max as u64) as usize];
        self.file.read_exact_at(&mut bytes, from - self.base)?;
        Ok(bytes)
    }

    /// Nobody needs what lies before this offset: gives the room back to the disk, a large piece at a time.
    pub(super) fn trim(&mut self, needed: u64) {
        while self.start + HOLE_LEN <= needed.min(self.end) {
            let (at, len) = ((self.start - self.base) as i64, HOLE_LEN as i64);
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: the descriptor is open. A file system that cannot do it keeps the room until the file is closed.
            unsafe { libc::fallocate(self.file.as_raw_fd(), mode, at, len) };
            self.start += HOLE_LEN;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random;

    #[test]
    fn what_was_put_there_is_read_until_it_is_not_needed() {
        let mut random = random();
        let begin = random.draw() >> 20;
        let mut overflow = Overflow::create(&std::env::temp_dir(), begin).expect("a folder to write to");
        let (mut model, mut needed) = (Vec::new(), begin);
        while model.len() < 3 * HOLE_LEN as usize {
            let block = vec![random.draw() as u8; 16 * BLOCK];
            overflow.append(&block).expect("room for some megabytes");
            model.extend_from_slice(&block);
            needed += random.below((begin as usize + model.len()) - needed as usize + 1) as u64 / 8;
            overflow.trim(needed);
            assert!(overflow.len() < begin + model.len() as u64 - needed + HOLE_LEN);
            let from = needed + random.below((begin as usize + model.len()) - needed as usize) as u64;
            let (at, max) = ((from - begin) as usize, 1 + random.below(100_000));
            let got = overflow.read(from, max).expect("it is there");
            assert!(got == model[at..model.len().min(at + max)], "at {at}");
        }
        assert!(!overflow.has(begin + model.len() as u64) && !overflow.has(begin));
    }
}
