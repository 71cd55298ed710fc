//! Files that are written from their beginning to their end: snapshots, and bases of the append-only file.
//!
//! What is encoded gathers in blocks of a megabyte, and a thread beside the one that encodes gives them to the disk, so that
//! both go on at once, and a pause of the one that encodes is none of the disk's.
//!
//! The blocks go past the page cache (`O_DIRECT`). Nobody reads such a file before the server starts the next time, and through
//! the cache each of its pages is allocated, copied, entered into a tree, found again for the disk and reclaimed from what
//! others would rather have kept: with values of 700 B that was two thirds of the CPU time of a snapshot. The cache is for two
//! cases: a file that is read at once ([`Cache::Through`]), and writers who hand over more than a disk takes that writes as
//! much and no more than it is given; the cache takes what there is memory for. Where a file system has no such thing as
//! writing past the cache, all goes through it.

use std::fs::File;
use std::io::{self, Write};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use super::direct::{self, BLOCK as ALIGN, start_writeback};
use super::jobs::STUCK;
use super::pace::handed_over_max;
use super::snapshot::overrun;
use super::{Job, LOOK, cancelled};
use crate::config::Settings;
use crate::server::Server;

/// Bytes of a write: on a disk of 2 GB/s, 64 KiB at a time take three times as long and six times the CPU time.
const BLOCK: usize = 1 << 20;

/// Blocks of a file: one that is filled, one that is written, and one that waits for either.
const BLOCKS: usize = 3;

const _: () = assert!(BLOCK.is_multiple_of(ALIGN));

/// Bytes after which the kernel is asked to write what it has in the cache, so that the sync at the end has little to do.
const WRITEBACK: u64 = 32 << 20;

/// Where what is written goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    /// To the disk, if the settings say nothing else.
    Past,
    /// To the page cache: it will be read soon.
    Through,
}

/// See the module's text. What has been written is in the file after a flush, and on disk after a sync of the file.
pub(crate) struct DirectWriter {
    server: Arc<Server>,
    /// Whose file it is. When that is cancelled, nobody waits for the disk any more.
    job: Job,
    /// The one that is filled; `None` after an error.
    block: Option<Block>,
    /// To the thread, which gives them back, or says what went wrong and ends. `None` once it is to end.
    full: Option<Sender<Block>>,
    empty: Receiver<io::Result<Block>>,
    thread: Option<JoinHandle<()>>,
}

impl DirectWriter {
    /// Goes on where `file` ends, which is empty or ends at a multiple of [`ALIGN`] if it is to be written past the cache.
    /// Until it is flushed, nobody else writes to it.
    pub(crate) fn new(
        server: &Arc<Server>,
        settings: &Settings,
        file: &File,
        cache: Cache,
        job: Job,
    ) -> io::Result<DirectWriter> {
        let past_cache = cache == Cache::Past && settings.snapshot_direct_io;
        let mut writer = Writer {
            server: server.clone(),
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
        let thread = std::thread::Builder::new().name("snapshot-disk".into()).spawn(move || {
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
            server: server.clone(),
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

    /// Ends it: what was written is in the file, and the file is one like others.
    fn flush(&mut self) -> io::Result<()> {
        self.pass_on()?;
        self.full = None;
        while self.given_back()?.is_some() {}
        let ended = self.thread.take().is_none_or(|thread| thread.join().is_ok());
        if ended { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }
}

impl DirectWriter {
    /// A block that the disk has taken, or nobody has filled yet; `None`: the thread has ended.
    ///
    /// # Errors
    /// What the disk said, and that nobody wants the file any more, for which a disk that hangs is not waited for.
    fn given_back(&self) -> io::Result<Option<Block>> {
        let persist = &self.server.persist;
        let mut waits_since: Option<Instant> = None;
        let given = loop {
            match self.empty.recv_timeout(LOOK) {
                Ok(block) => break block.map(Some),
                Err(RecvTimeoutError::Disconnected) => break Ok(None),
                Err(RecvTimeoutError::Timeout) if persist.is_cancelled(self.job) => break Err(cancelled()),
                Err(RecvTimeoutError::Timeout) => {
                    persist.note_wait(self.job);
                    let since = *waits_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > STUCK && self.keeps_too_much() {
                        break Err(overrun(&self.server, &self.server.settings()));
                    }
                }
            }
        };
        if waits_since.is_some() {
            persist.end_wait(self.job);
        }
        given
    }

    /// Whether more memory is kept for a snapshot whose disk hangs than may be, with the large values that nobody else has any more: what
    /// writers hand over counts those by the share of them, since on a disk that goes on they are written at once. Replicas are
    /// given up by who feeds them.
    fn keeps_too_much(&self) -> bool {
        let limit = self.server.settings().snapshot_buffer_limit as usize;
        let is_walking = || self.server.persist.state().is_walking(self.job); // else it is kept for another one
        self.job != Job::Sync && self.server.keyspace.kept_for_snapshot() > limit && is_walking()
    }

    /// Gives what has been filled to the thread.
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
    /// Waits for the thread, unless nobody wants the file any more: then the thread ends when the disk lets it, and what it has
    /// written is in a file that is removed.
    fn drop(&mut self) {
        self.full = None;
        loop {
            match self.given_back() {
                Ok(None) => break,
                Err(_) if self.server.persist.is_cancelled(self.job) => return,
                _ => {}
            }
        }
        let _ = self.thread.take().map(JoinHandle::join); // whoever flushes has been told of a panic
    }
}

/// Memory for [`BLOCK`] bytes, which begins at a page, and so at a multiple of [`ALIGN`]. It comes from the kernel: what a
/// snapshot takes is no data that `maxmemory` is for, and there is nobody to count it apart when it is given back.
struct Block {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is the block's alone, and nothing in it belongs to a thread.
unsafe impl Send for Block {}

impl Block {
    fn new() -> io::Result<Block> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, wherever there is room, changes nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), BLOCK, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Block { start: NonNull::new(start.cast()).expect("the kernel maps nothing at zero"), len: 0 })
    }

    fn room(&self) -> usize {
        BLOCK - self.len
    }

    /// Adds as many as there is room for.
    fn add(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.room());
        // SAFETY: the mapping has `BLOCK` bytes, zeroes at first, and is borrowed here alone.
        let all = unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), BLOCK) };
        all[self.len..][..len].copy_from_slice(&bytes[..len]);
        self.len += len;
        len
    }

    fn filled(&self) -> &[u8] {
        // SAFETY: `len` is at most `BLOCK`, and nobody writes while this borrows.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nobody else knows of it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), BLOCK) };
    }
}

/// The thread's side.
struct Writer {
    server: Arc<Server>,
    file: File,
    past_cache: bool,
    /// The file is one that is written past the cache.
    is_direct: bool,
    /// Bytes behind where it began, and those of which the kernel has been asked to write them.
    written: u64,
    asked: u64,
}

impl Writer {
    fn write(&mut self, block: &Block) -> io::Result<()> {
        let in_haste = || self.server.keyspace.handed_over() > handed_over_max();
        let goes_past = self.past_cache && block.room() == 0 && !in_haste();
        self.set_direct(goes_past);
        let mut left = block.filled();
        while !left.is_empty() {
            match self.file.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => left = &left[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The disk has other blocks than most, or has taken a part of one.
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

    /// Whether writes go past the cache from now on; if the file system does not know that, they never do.
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
        self.set_direct(false); // the flag is the open file's, which others have as well
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::PathBuf;

    use evenkeel_testkit::random::{Random, fresh_seed};

    use super::*;
    use crate::testing::live::Live;

    fn create(live: &Live, name: &str) -> (PathBuf, File) {
        let path = live.server.settings().dir.join(name);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        (path, file.expect("a file"))
    }

    fn is_direct(file: &File) -> bool {
        // SAFETY: the descriptor is open.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) & libc::O_DIRECT != 0 }
    }

    #[test]
    fn what_is_written_in_any_pieces_is_in_the_file() {
        let live = Live::start(1, &[]);
        let settings = live.server.settings();
        let seed = fresh_seed();
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let ends = [0, 1, ALIGN, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK, 5 * BLOCK + ALIGN + 9];
        for (cache, len) in
            [Cache::Past, Cache::Through].into_iter().flat_map(|cache| ends.map(|len| (cache, len)))
        {
            let (path, mut file) = create(&live, "draft");
            let bytes: Vec<u8> =
                (0..len / 8 + 1).flat_map(|_| random.draw().to_le_bytes()).take(len).collect();
            let mut writer =
                DirectWriter::new(&live.server, &settings, &file, cache, Job::Snapshot).expect("a draft");
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
            // As when a header is put right.
            io::Seek::rewind(&mut file).expect("the beginning");
            file.write_all(b"REDIS0011").expect("a header of its own length");
        }
        live.stop();
    }

    #[test]
    fn the_cache_is_passed_by_where_that_can_be_and_is_wanted() {
        let live = Live::start(1, &[]);
        let (path, file) = create(&live, "draft");
        let can_be = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&path).is_ok();
        let goes_past = |setting: &str, cache| {
            assert!(!live.connect().run(&format!("CONFIG SET snapshot-direct-io {setting}")).is_error());
            let settings = live.server.settings();
            let mut writer =
                DirectWriter::new(&live.server, &settings, &file, cache, Job::Snapshot).expect("a draft");
            // When the last one has found a block to be filled, the first has been written.
            writer.write_all(&vec![7; BLOCKS * BLOCK + 1]).expect("it is written");
            is_direct(&file)
        };
        assert_eq!(goes_past("yes", Cache::Past), can_be);
        assert!(!goes_past("yes", Cache::Through));
        assert!(!goes_past("no", Cache::Past));
        assert!(!is_direct(&file), "nor when it is gone");
        live.stop();
    }

    #[test]
    fn whoever_writes_is_told_of_an_error() {
        let live = Live::start(1, &[]);
        let full = OpenOptions::new().write(true).open("/dev/full").expect("a device that is always full");
        let mut writer =
            DirectWriter::new(&live.server, &live.server.settings(), &full, Cache::Through, Job::Snapshot)
                .expect("a draft");
        let error = writer.write_all(&vec![0; 9 * BLOCK]).expect_err("it is full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(writer.write_all(&vec![0; 9 * BLOCK]).is_err() || writer.flush().is_err(), "nor later");
        let mut writer =
            DirectWriter::new(&live.server, &live.server.settings(), &full, Cache::Past, Job::Snapshot)
                .expect("a draft");
        writer.write_all(b"little").expect("nobody has tried yet");
        assert_eq!(writer.flush().expect_err("it is full").kind(), io::ErrorKind::StorageFull);
        live.stop();
    }
}
