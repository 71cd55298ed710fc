//! Syncs without the append-only file: appended bytes also go into a file of a fixed size, past the page
//! cache, and are on disk when that write returns. `evenkeel_rdb::aof::tail` has the format, the reason, and
//! the use of the tail at a start.
//!
//! Any doubt is settled by a sync of the append-only file itself, as if there were no tail: a record must
//! continue where the last sync ended ([`TailFile::record_synced`]), fit, and be written whole.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use evenkeel_rdb::aof::tail::{self, BLOCK, HEADER_LEN, RecordPosition, TAIL_LEN};

use crate::direct;
use crate::disk_space::Space;

const _: () = assert!(BLOCK.is_multiple_of(direct::BLOCK) && TAIL_LEN.is_multiple_of(RECORD_MAX));

/// Longest record in bytes, with header and padding. A sync of more goes to the append-only file.
const RECORD_MAX: usize = 1 << 20;

/// The id of the machine's current boot, or `None` if the system has none.
pub fn boot() -> Option<u128> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
}

/// Bytes that the file system must have free for a tail to be worth its space.
const ROOM_MIN: u64 = 8 * TAIL_LEN as u64;

/// No record can continue here.
const NOWHERE: u64 = u64::MAX;

pub(super) struct TailFile {
    file: File,
    path: PathBuf,
    /// From `start` on, a multiple of [`BLOCK`] in memory, the next record.
    buffer: Vec<u8>,
    start: usize,
    /// End of the prepared bytes in the append-only file; their record is in the buffer, unless there are
    /// none. `None`: nothing is prepared.
    prepared: Option<u64>,
    /// Whether a write has failed.
    has_failed: bool,
    /// The place of the next record in the tail.
    at: u64,
    /// The end of the last sync in the append-only file.
    end: u64,
    epoch: u64,
    boot: u128,
}

impl TailFile {
    /// Creates the file, replacing an older tail, for an append-only file that is synced up to `end`.
    ///
    /// # Errors
    /// The disk has little room, or the file system does not support writes past the page cache.
    pub(super) fn create(path: PathBuf, end: u64) -> io::Result<TailFile> {
        let boot = boot().ok_or(io::ErrorKind::Unsupported)?;
        let mut buffer = direct::buffer(RECORD_MAX);
        let start = buffer.len();
        let file = Self::fill(&path, &mut buffer).inspect_err(|_| {
            let _ = fs::remove_file(&path); // it may not be there
        })?;
        Ok(TailFile {
            file,
            path,
            buffer,
            start,
            prepared: None,
            has_failed: false,
            at: 0,
            end,
            epoch: 1,
            boot,
        })
    }

    /// Fills the file with zeros and syncs them, so that a later write over them takes the disk a single
    /// write.
    fn fill(path: &Path, buffer: &mut Vec<u8>) -> io::Result<File> {
        let open = |flags| {
            OpenOptions::new().write(true).create(true).custom_flags(libc::O_DIRECT | flags).open(path)
        };
        let file = open(libc::O_TRUNC)?;
        if Space::around(&file)?.free < ROOM_MIN {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let start = buffer.len();
        buffer.resize(start + RECORD_MAX, 0);
        for at in (0..TAIL_LEN).step_by(RECORD_MAX) {
            file.write_all_at(&buffer[start..], at as u64)?;
        }
        buffer.truncate(start);
        file.sync_all()?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
        open(libc::O_DSYNC)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Whether the next start will find the file, and it can be written to.
    pub(super) fn is_good(&self) -> bool {
        !self.has_failed && self.file.metadata().is_ok_and(|file| file.nlink() > 0)
    }

    /// Prepares a record of the bytes that are about to be appended at `offset` to the file with this inode.
    pub(super) fn prepare(&mut self, file: u64, offset: u64, bytes: &[u8]) {
        self.prepared = None;
        let len = (HEADER_LEN + bytes.len()).next_multiple_of(BLOCK);
        self.buffer.truncate(self.start);
        if offset != self.end || len > RECORD_MAX || self.at + len as u64 > TAIL_LEN as u64 {
            return;
        }
        self.prepared = Some(offset + bytes.len() as u64);
        if bytes.is_empty() {
            return;
        }
        let place = RecordPosition { epoch: self.epoch, file, boot: self.boot, offset };
        self.buffer.extend_from_slice(&tail::header(&place, bytes));
        self.buffer.extend_from_slice(bytes);
        self.buffer.resize(self.start + len, 0);
    }

    /// Syncs the prepared bytes, which have been appended and end at `end`. Returns false if the append-only
    /// file itself is to be synced.
    pub(super) fn sync(&mut self, end: u64) -> bool {
        if self.prepared.take() != Some(end) {
            return false;
        }
        let record = &self.buffer[self.start..];
        if !record.is_empty() && self.file.write_all_at(record, self.at).is_err() {
            self.has_failed = true;
            return false;
        }
        self.at += record.len() as u64;
        self.end = end;
        true
    }

    /// Records a sync of the append-only file itself, up to `end`.
    pub(super) fn record_synced(&mut self, end: u64) {
        (self.prepared, self.at, self.end) = (None, 0, end);
        self.epoch += 1;
    }

    /// Prepares for a new append-only file; the present file is synced. The first sync of the new file is its
    /// own: until then, a file system may not even know of it.
    ///
    /// # Errors
    /// The records in the tail could not be overwritten, and may some day be taken for records of another
    /// file.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.record_synced(NOWHERE);
        self.buffer.truncate(self.start);
        self.buffer.resize(self.start + BLOCK, 0);
        self.file.write_all_at(&self.buffer[self.start..], 0)
    }

    /// Removes the file: all its bytes have been synced in the append-only file.
    pub(super) fn remove(self) {
        // A tail that stays is of no use to the next start, and does no harm.
        let _ = tail::remove(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::scratch::Scratch;

    /// The header of the first record.
    fn header(path: &Path) -> Vec<u8> {
        fs::read(path).expect("the file")[..HEADER_LEN].to_owned()
    }

    #[test]
    fn records_that_do_not_fit_the_tail_go_to_the_file() {
        let scratch = Scratch::new();
        let path = scratch.path.join("tail");
        fs::write(&path, "an old one").expect("written");
        // The file system may not support it.
        let Ok(mut tail) = TailFile::create(path.clone(), 10) else { return };
        assert_eq!(fs::read(&path).expect("the file"), vec![0; TAIL_LEN], "nothing of the old one");
        assert!(!tail.sync(10), "nothing was prepared");
        tail.prepare(7, 10, b"one");
        assert!(tail.sync(13));
        assert!(!tail.sync(13), "that is done");
        let place = |epoch, offset| RecordPosition { epoch, file: 7, boot: tail.boot, offset };
        assert_eq!(header(&path), tail::header(&place(1, 10), b"one"));
        tail.prepare(7, 13, b"");
        assert!(tail.sync(13), "there is nothing to be synced");
        tail.prepare(7, 13, b"two");
        assert!(!tail.sync(15), "not all of it was appended");
        tail.prepare(7, 16, b"three");
        assert!(!tail.sync(21), "there is a gap");
        tail.prepare(7, 13, &vec![b'x'; RECORD_MAX]);
        assert!(!tail.sync(13 + RECORD_MAX as u64), "it is too long");
        tail.record_synced(21);
        tail.prepare(7, 21, b"four");
        assert!(tail.sync(25));
        assert_eq!(
            header(&path),
            tail::header(&RecordPosition { epoch: 2, offset: 21, file: 7, boot: tail.boot }, b"four")
        );
        // Until it is full.
        let records = (1..).take_while(|number| {
            tail.prepare(7, 24 + number, b"x");
            tail.sync(25 + number)
        });
        assert_eq!(records.count(), TAIL_LEN / BLOCK - 1);
        tail.begin().expect("another file");
        assert_eq!(header(&path), [0; HEADER_LEN], "what belongs to the one before is gone");
        tail.prepare(8, 0, b"five");
        assert!(!tail.sync(4), "nobody knows of that file yet");
        tail.record_synced(4);
        tail.prepare(8, 4, b"six");
        assert!(tail.sync(7));
        assert!(tail.is_good());
        tail.remove();
        assert!(!path.exists());
        let tail = TailFile::create(path.clone(), 0).expect("as before");
        fs::remove_file(&path).expect("it is there");
        assert!(!tail.is_good(), "no start would find it");
    }
}
