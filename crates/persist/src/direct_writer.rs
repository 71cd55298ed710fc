//! Sequential writes of whole files: snapshots, and bases of the append-only file.
//!
//! Encoded bytes gather in blocks of a megabyte, and a second thread writes these to the disk. So encoding
//! and writing overlap, and the disk does not pause when the encoder rests.
//!
//! The blocks bypass the page cache (`O_DIRECT`). Such a file is not read before the next start of the
//! server. Through the cache, each of its pages is allocated, copied, entered into a tree, found again for
//! the disk, and reclaimed from other uses: with values of 700 B that was two thirds of a snapshot's CPU
//! time. The cache is used in two cases:
//! - The file is read at once ([`Cache::Through`]).
//! - Writers hand over more than the disk takes. A disk writes no more than it is given, while the cache
//!   takes all that there is memory for.
//!
//! If the file system has no way past the cache, all bytes go through it.

use std::fs::File;
use std::io::{self, Write};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use super::Persist;
use super::direct::{self, BLOCK as ALIGN, start_writeback};
use super::jobs::STUCK;
use super::pace::handed_over_max;
use super::snapshot::overrun;
use super::{CANCEL_POLL_INTERVAL, PersistJob, cancelled};
use evenkeel_config::Settings;
use evenkeel_runtime::threads;

/// Bytes of a write: on a disk of 2 GB/s, writes of 64 KiB take three times as long, and six times the CPU
/// time.
const BLOCK: usize = 1 << 20;

/// Blocks of a file: a block that is filled, a block that is written, and a block in between.
const BLOCKS: usize = 3;

const _: () = assert!(BLOCK.is_multiple_of(ALIGN));

/// Bytes after which the kernel is asked to write the cached bytes, so that the sync at the end has little to
/// do.
const WRITEBACK: u64 = 32 << 20;

/// The first destination of written bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// The disk, unless the settings forbid it.
    Past,
    /// The page cache, for a file that will be read soon.
    Through,
}

/// Writes a file through a thread of its own. Written bytes are in the file after a flush, and on disk after
/// a sync of the file.
pub struct DirectWriter {
    persist: Arc<Persist>,
    /// The job that writes the file. Once it is cancelled, the disk is not waited for.
    job: PersistJob,
    /// The block that is filled; `None` after an error.
    block: Option<Block>,
    /// The queue to the thread, which returns empty blocks, or an error before it ends. `None` once the
    /// thread is to end.
    full: Option<Sender<Block>>,
    empty: Receiver<io::Result<Block>>,
    thread: Option<JoinHandle<()>>,
}

impl DirectWriter {
    /// Continues at the end of `file`, a multiple of [`ALIGN`] if the writes are to bypass the cache. No
    /// other writer uses the file until the flush.
    pub fn new(
        persist: &Arc<Persist>,
        settings: &Settings,
        file: &File,
        cache: Cache,
        job: PersistJob,
    ) -> io::Result<DirectWriter> {
        let past_cache = cache == Cache::Past && settings.snapshot_direct_io;
        let mut writer = Writer {
            persist: persist.clone(),
            file: file.try_clone()?,
            past_cache,
            is_direct: false,
            written: 0,
            asked: if settings.rdb_save_incremental_fsync { 0 } else { u64::MAX },
        };
        let (full, to_write) = channel::<Block>();
        let (back, empty) = channel();
        for _ in 0..BLOCKS {
            let _ = back.send(Ok(Block::new()?)); // both ends are here
        }
        let thread = threads::named("snapshot-disk").spawn(move || {
            for mut block in to_write {
                let written = writer.write(&block);
                let has_failed = written.is_err();
                block.len = 0;
                if back.send(written.map(|()| block)).is_err() || has_failed {
                    return;
                }
            }
        })?;
        Ok(DirectWriter {
            persist: persist.clone(),
            job,
            block: None,
            full: Some(full),
            empty,
            thread: Some(thread),
        })
    }
}

impl Write for DirectWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.block.is_none() {
            let given = self.given_back()?;
            self.block = Some(given.ok_or(io::ErrorKind::BrokenPipe)?);
        }
        let block = self.block.as_mut().expect("there is one now");
        let taken = block.add(bytes);
        if block.room() == 0 {
            self.pass_on()?;
        }
        Ok(taken)
    }

    /// Ends the writer: all bytes are in the file, whose flags are as before.
    fn flush(&mut self) -> io::Result<()> {
        self.pass_on()?;
        self.full = None;
        while self.given_back()?.is_some() {}
        let ended = self.thread.take().is_none_or(|thread| thread.join().is_ok());
        if ended { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }
}

impl DirectWriter {
    /// Returns a block that is free; `None`: the thread has ended.
    ///
    /// # Errors
    /// An error of the disk, or the cancellation of the job, after which a hanging disk is not waited for.
    fn given_back(&self) -> io::Result<Option<Block>> {
        let persist = &self.persist;
        let mut waits_since: Option<Instant> = None;
        let given = loop {
            match self.empty.recv_timeout(CANCEL_POLL_INTERVAL) {
                Ok(block) => break block.map(Some),
                Err(RecvTimeoutError::Disconnected) => break Ok(None),
                Err(RecvTimeoutError::Timeout) if persist.is_cancelled(self.job) => break Err(cancelled()),
                Err(RecvTimeoutError::Timeout) => {
                    persist.begin_wait(self.job);
                    let since = *waits_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > STUCK && self.keeps_too_much() {
                        break Err(overrun(&self.persist, &self.persist.core.settings()));
                    }
                }
            }
        };
        if waits_since.is_some() {
            persist.end_wait(self.job);
        }
        given
    }

    /// Whether the memory kept for a snapshot whose disk hangs exceeds its limit, counting large values that
    /// only the snapshot still has. The count of handed-over bytes has only a share of these, since a disk
    /// that works takes them at once. A full sync has no such limit here: the replication feed gives up slow
    /// replicas itself.
    fn keeps_too_much(&self) -> bool {
        let limit = self.persist.core.settings().snapshot_buffer_limit as usize;
        let is_walking = || self.persist.state().is_walking(self.job); // else kept for another walk
        self.job != PersistJob::Sync && self.persist.core.keyspace.kept_for_snapshot() > limit && is_walking()
    }

    /// Hands the filled block to the thread.
    fn pass_on(&mut self) -> io::Result<()> {
        let Some(block) = self.block.take() else { return Ok(()) };
        match &self.full {
            Some(full) if full.send(block).is_ok() => Ok(()),
            _ => self
                .empty
                .iter()
                .try_for_each(|block| block.map(drop))
                .and(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }
}

impl Drop for DirectWriter {
    /// Waits for the thread, unless the job is cancelled: then the thread ends when its disk lets it, and its
    /// file has been removed.
    fn drop(&mut self) {
        self.full = None;
        loop {
            match self.given_back() {
                Ok(None) => break,
                Err(_) if self.persist.is_cancelled(self.job) => return,
                _ => {}
            }
        }
        let _ = self.thread.take().map(JoinHandle::join); // a flush reports a panic
    }
}

/// [`BLOCK`] bytes of memory that begin at a page, and so at a multiple of [`ALIGN`]. They are mapped from
/// the kernel: the memory of a snapshot is not data in the sense of `maxmemory`, and a thread without
/// accounting may free it.
struct Block {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to the block alone, and nothing in it is bound to a thread.
unsafe impl Send for Block {}

impl Block {
    fn new() -> io::Result<Block> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a free place changes no existing memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), BLOCK, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Block { start: NonNull::new(start.cast()).expect("the kernel maps nothing at zero"), len: 0 })
    }

    fn room(&self) -> usize {
        BLOCK - self.len
    }

    /// Adds as many bytes as there is room for, and returns their number.
    fn add(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.room());
        // SAFETY: the mapping has `BLOCK` bytes, zeros at first, and is borrowed here alone.
        let all = unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), BLOCK) };
        all[self.len..][..len].copy_from_slice(&bytes[..len]);
        self.len += len;
        len
    }

    fn filled(&self) -> &[u8] {
        // SAFETY: `len` is at most `BLOCK`, and the borrow excludes writes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no reference is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), BLOCK) };
    }
}

/// The state of the thread.
struct Writer {
    persist: Arc<Persist>,
    file: File,
    past_cache: bool,
    /// Whether the open file has the flag `O_DIRECT`.
    is_direct: bool,
    /// Bytes written, and the end of the bytes that the kernel has been asked to write.
    written: u64,
    asked: u64,
}

impl Writer {
    fn write(&mut self, block: &Block) -> io::Result<()> {
        let in_haste = || self.persist.core.keyspace.handed_over() > handed_over_max();
        let goes_past = self.past_cache && block.room() == 0 && !in_haste();
        self.set_direct(goes_past);
        let mut left = block.filled();
        while !left.is_empty() {
            match self.file.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => left = &left[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The disk has larger blocks than usual, or has taken a part of a block.
                Err(error) if self.is_direct && error.raw_os_error() == Some(libc::EINVAL) => {
                    self.past_cache = false;
                    self.set_direct(false);
                }
                Err(error) => return Err(error),
            }
        }
        self.written += block.len as u64;
        if self.is_direct {
            self.asked = self.asked.max(self.written);
        } else if self.written.saturating_sub(self.asked) >= WRITEBACK {
            start_writeback(&self.file, self.asked, self.written);
            self.asked = self.written;
        }
        Ok(())
    }

    /// Sets whether writes bypass the cache. If the file system does not support that, no write ever does.
    fn set_direct(&mut self, wanted: bool) {
        if wanted == self.is_direct {
            return;
        }
        let done = direct::set(&self.file, wanted).is_ok();
        if done {
            self.is_direct = wanted;
        } else {
            self.past_cache = false;
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.set_direct(false); // the flag belongs to the open file, which duplicates share
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::PathBuf;

    use evenkeel_testkit::random::{Random, fresh_seed};

    use super::*;
    use crate::testing::Disk;

    fn create(disk: &Disk, name: &str) -> (PathBuf, File) {
        let path = disk.core.settings().dir.join(name);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        (path, file.expect("a file"))
    }

    fn is_direct(file: &File) -> bool {
        let flags = rustix::fs::fcntl_getfl(file).expect("the file is open");
        flags.contains(rustix::fs::OFlags::DIRECT)
    }

    #[test]
    fn writes_of_any_size_are_in_the_file() {
        let disk = Disk::new(&[]);
        let settings = disk.core.settings();
        let seed = fresh_seed();
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let ends = [0, 1, ALIGN, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK, 5 * BLOCK + ALIGN + 9];
        for (cache, len) in
            [Cache::Past, Cache::Through].into_iter().flat_map(|cache| ends.map(|len| (cache, len)))
        {
            let (path, mut file) = create(&disk, "draft");
            let bytes: Vec<u8> =
                (0..len / 8 + 1).flat_map(|_| random.draw().to_le_bytes()).take(len).collect();
            let mut writer =
                DirectWriter::new(&disk, &settings, &file, cache, PersistJob::Snapshot).expect("a draft");
            let mut left = &bytes[..];
            while !left.is_empty() {
                let len_max = if random.chance(2) { 300 } else { 3 * BLOCK };
                let (piece, behind) = left.split_at((1 + random.below(len_max)).min(left.len()));
                writer.write_all(piece).expect("it is written");
                left = behind;
            }
            writer.flush().expect("it is written");
            assert!(!is_direct(&file), "others may write what they like");
            assert!(std::fs::read(&path).expect("the file") == bytes, "{len} bytes, {cache:?}");
            // As when a header is corrected.
            io::Seek::rewind(&mut file).expect("the beginning");
            file.write_all(b"REDIS0011").expect("a header of its own length");
        }
    }

    #[test]
    fn direct_io_is_used_where_possible_and_configured() {
        let disk = Disk::new(&[]);
        let (path, file) = create(&disk, "draft");
        let can_be = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&path).is_ok();
        let goes_past = |setting: &str, cache| {
            disk.configure("snapshot-direct-io", setting);
            let settings = disk.core.settings();
            let mut writer =
                DirectWriter::new(&disk, &settings, &file, cache, PersistJob::Snapshot).expect("a draft");
            // Once the last block begins to be filled, the first has been written.
            writer.write_all(&vec![7; BLOCKS * BLOCK + 1]).expect("it is written");
            is_direct(&file)
        };
        assert_eq!(goes_past("yes", Cache::Past), can_be);
        assert!(!goes_past("yes", Cache::Through));
        assert!(!goes_past("no", Cache::Past));
        assert!(!is_direct(&file), "nor when it is gone");
    }

    #[test]
    fn writers_get_the_error() {
        let disk = Disk::new(&[]);
        let full = OpenOptions::new().write(true).open("/dev/full").expect("a device that is always full");
        let mut writer =
            DirectWriter::new(&disk, &disk.core.settings(), &full, Cache::Through, PersistJob::Snapshot)
                .expect("a draft");
        let error = writer.write_all(&vec![0; 9 * BLOCK]).expect_err("it is full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(writer.write_all(&vec![0; 9 * BLOCK]).is_err() || writer.flush().is_err(), "nor later");
        let mut writer =
            DirectWriter::new(&disk, &disk.core.settings(), &full, Cache::Past, PersistJob::Snapshot)
                .expect("a draft");
        writer.write_all(b"little").expect("nobody has tried yet");
        assert_eq!(writer.flush().expect_err("it is full").kind(), io::ErrorKind::StorageFull);
    }
}
