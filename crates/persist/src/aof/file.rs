//! The file that commands are appended to, and the buffer of the bytes to be appended next.
//!
//! There are two ways to the disk:
//! - *Through* the page cache, a write takes any number of bytes, which are then safe from a crash of the
//!   process. But each 4 KiB is allocated, copied, entered into a tree, and found again for the disk. That is
//!   0.8 us for a command of 500 B, more than the rest of the logging costs, and it takes memory from other
//!   uses.
//! - *Past* the cache (`O_DIRECT`), only whole blocks go, at a tenth of that cost if they come by the
//!   hundred. So this way is for times of many writes, and for a file system that supports it.
//!
//! A crash of the machine must leave a prefix of the written bytes, since a file with a hole would be
//! refused. Past the cache there is a single write at a time, and a file system records the new length once
//! the bytes are on disk. Bytes in the cache reach the disk later, so all of them are synced before a write
//! bypasses it: the way past begins with a sync ([`LogFile::record_sync`]), and ends with the first bytes
//! that go through the cache.
//!
//! If the last block of the file is not full, the buffer begins with it: the next write past the cache writes
//! it again.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant, SystemTime};

use super::async_fsync::Syncer;
use crate::direct::{self, BLOCK};

/// Pending bytes that justify a write past the cache.
const LEN_MIN: usize = 64 * 1024;

/// Pending bytes that are written at once: twice as many take less disk time per byte, but have left the CPU
/// caches.
const LEN_MAX: usize = 512 * 1024;

/// Minimum room in the buffer. A longer command enlarges the buffer by its own length.
const ROOM: usize = 2 * LEN_MAX;

/// How long bytes may wait in memory for more: the loss in a crash of the process.
const WAIT_MAX: Duration = Duration::from_millis(5);

/// Bytes through the cache since the last sync from which on a sync is worthwhile, to go past the cache.
const FLOW_MIN: u64 = 8 << 20;

/// Bytes in the cache that the kernel is asked to write before a sync has to wait for them.
const WRITEBACK: u64 = 1 << 20;

/// How long all bytes go through the cache after a disk has been too slow, or has refused a write past it.
const REST: Duration = Duration::from_secs(10);

pub(crate) struct LogFile {
    file: File,
    inode: u64,
    /// From `start` on, which is a multiple of [`BLOCK`] in memory, the bytes of the file from `at` on, a
    /// multiple of it in the file: `written` bytes that are in the file, and the pending bytes.
    buffer: Vec<u8>,
    start: usize,
    at: u64,
    written: usize,
    /// Since when bytes have been waiting, if there are any.
    since: Instant,
    goes_past: bool,
    /// Whether a write has gone past the cache since `goes_past` was set.
    went_past: bool,
    /// Whether the open file has the flag `O_DIRECT`.
    is_direct: bool,
    /// Whether bytes have gone through the cache since the last sync.
    in_cache: bool,
    /// Bytes written since the last sync.
    flow: u64,
    /// The end of the bytes that the kernel has been asked to write.
    asked: u64,
    /// No write goes past the cache before this time.
    rests_until: Option<Instant>,
}

impl LogFile {
    /// Continues at the end of a file that is open for reading and appending.
    pub(crate) fn open(file: File) -> io::Result<LogFile> {
        let (at, last) = last_block(&file)?;
        let mut log = LogFile {
            inode: file.metadata()?.ino(),
            file,
            buffer: Vec::new(),
            start: 0,
            at,
            written: last.len(),
            since: Instant::now(),
            goes_past: false,
            went_past: false,
            is_direct: false,
            // Bytes of the previous server process may still be in the cache.
            in_cache: true,
            flow: 0,
            asked: at,
            rests_until: None,
        };
        log.renew_buffer(ROOM, &last);
        Ok(log)
    }

    /// Continues in a new, empty file. Nothing is pending for the present file.
    ///
    /// # Errors
    /// The new file cannot be examined; the present file stays in use.
    pub(super) fn begin(&mut self, file: File) -> io::Result<()> {
        debug_assert_eq!(self.pending(), 0);
        self.inode = file.metadata()?.ino();
        self.file = file;
        (self.at, self.written, self.flow) = (0, 0, 0);
        (self.goes_past, self.is_direct, self.in_cache) = (false, false, false);
        self.asked = 0;
        self.buffer.truncate(self.start);
        Ok(())
    }

    /// The inode, which identifies the file within its file system.
    pub(super) fn inode(&self) -> u64 {
        self.inode
    }

    /// Length of the file in bytes.
    pub(super) fn end(&self) -> u64 {
        self.at + self.written as u64
    }

    /// The buffer for the next bytes, with room for `more`.
    pub(super) fn room(&mut self, more: usize) -> &mut Vec<u8> {
        if self.pending() == 0 {
            self.since = Instant::now();
        }
        if self.buffer.capacity() - self.buffer.len() < more {
            let kept = self.buffer.split_off(self.start);
            self.renew_buffer(more + ROOM, &kept);
        }
        &mut self.buffer
    }

    /// Appends a long record in pieces, and writes each of them but the last at once. After a failed write
    /// the rest is pending, and the next write reports the error.
    pub(super) fn append_long(&mut self, mut bytes: &[u8]) {
        while bytes.len() > LEN_MAX {
            let (piece, rest) = bytes.split_at(LEN_MAX);
            self.room(piece.len()).extend_from_slice(piece);
            bytes = rest;
            if self.write().is_err() {
                break;
            }
        }
        self.room(bytes.len()).extend_from_slice(bytes);
    }

    /// Bytes that are not in the file yet.
    pub(super) fn pending(&self) -> usize {
        self.buffer.len() - self.start - self.written
    }

    pub(super) fn pending_bytes(&self) -> &[u8] {
        &self.buffer[self.start + self.written..]
    }

    /// Whether the pending bytes may wait for more.
    pub(super) fn may_wait(&self) -> bool {
        self.goes_past && self.pending() < LEN_MAX && self.since.elapsed() < WAIT_MAX
    }

    /// Writes the pending bytes. Past the cache, an end of less than a block waits for the next write.
    ///
    /// # Errors
    /// The system's error. Bytes that are not in the file are still pending.
    pub(super) fn write(&mut self) -> io::Result<()> {
        if self.goes_past && !self.in_cache && self.pending() >= LEN_MIN && self.write_past() {
            return Ok(());
        }
        if std::mem::take(&mut self.goes_past) {
            self.flow = 0;
            if !self.went_past {
                self.rest(); // it ended before it began: another sync would be useless
            }
        }
        self.write_all()
    }

    /// Writes all pending bytes.
    ///
    /// # Errors
    /// As for [`LogFile::write`].
    pub(crate) fn write_all(&mut self) -> io::Result<()> {
        if self.pending() == 0 {
            return Ok(());
        }
        self.set_direct(false)?;
        self.in_cache = true;
        while self.pending() > 0 {
            // Appended at the end, wherever that is: another program may have cut the file off.
            match self.file.write(&self.buffer[self.start + self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.on_written(self.written + written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes whole blocks past the cache. Returns false if the bytes are to go through it.
    fn write_past(&mut self) -> bool {
        if !self.is_as_left() {
            self.find_end();
            return false;
        }
        let len = self.buffer.len() - self.start;
        let blocks = self.start..self.start + len - len % BLOCK;
        // The last block may have been written before, with fewer bytes.
        match self.set_direct(true).and_then(|()| self.file.write_at(&self.buffer[blocks], self.at)) {
            Ok(written) if written >= self.written => {
                self.on_written(written);
                self.went_past = true;
                self.since = Instant::now();
                self.pending() < BLOCK
            }
            // A disk error shows again in a write through the cache; a missing `O_DIRECT` does no harm.
            _ => {
                self.rest();
                false
            }
        }
    }

    fn is_as_left(&self) -> bool {
        self.file.metadata().is_ok_and(|file| file.len() == self.end())
    }

    /// Finds the end of the file after another program has changed its length.
    fn find_end(&mut self) {
        self.rest();
        if let Ok((at, last)) = last_block(&self.file) {
            let pending = self.buffer.split_off(self.start + self.written);
            (self.at, self.written) = (at, last.len());
            self.renew_buffer(ROOM + pending.len(), &last);
            self.buffer.extend_from_slice(&pending);
        }
    }

    /// Drops from the buffer the whole blocks among the first `written` bytes, which are in the file.
    fn on_written(&mut self, written: usize) {
        self.flow += (written - self.written) as u64;
        let whole = written - written % BLOCK;
        self.at += whole as u64;
        self.written = written - whole;
        self.buffer.drain(self.start..self.start + whole);
        if self.buffer.capacity() > 2 * ROOM && self.buffer.len() < ROOM {
            let kept = self.buffer.split_off(self.start);
            self.renew_buffer(ROOM, &kept);
        }
    }

    /// Sends all bytes through the cache for a while.
    pub(super) fn rest(&mut self) {
        self.goes_past = false;
        self.rests_until = Some(Instant::now() + REST);
    }

    /// Has the kernel write the cached bytes, if there are many, so that the next sync has little to do.
    pub(crate) fn start_writeback(&mut self) {
        let end = self.end();
        if end.saturating_sub(self.asked) >= WRITEBACK {
            direct::start_writeback(&self.file, self.asked, end);
            self.asked = end;
        }
    }

    /// Syncs the file.
    ///
    /// # Errors
    /// The system's error: bytes written since the previous sync may be lost.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Gives the file the latest modification time of all data files, later than any snapshot's
    /// (`passed_over.rs`).
    pub(super) fn touch(&self) {
        let _ = self.file.set_modified(SystemTime::now()); // a start would only warn for no reason
    }

    /// Begins a sync on the other thread. Returns false if that fails.
    pub(super) fn sync_beside(&self, syncer: &Syncer) -> bool {
        syncer.begin(&self.file)
    }

    /// Whether so many bytes have gone through the cache that a way past it, which begins with a sync, is
    /// worthwhile.
    pub(super) fn is_much(&self) -> bool {
        let has_rested = self.rests_until.is_none_or(|until| Instant::now() >= until);
        !self.goes_past && self.flow >= FLOW_MIN && has_rested
    }

    /// Records a sync of all bytes. What follows may bypass the cache if it `may_go_past`, and there is much
    /// or it did before.
    pub(super) fn record_sync(&mut self, may_go_past: bool) {
        if !self.is_as_left() {
            self.find_end();
        }
        self.in_cache = false;
        self.went_past &= self.goes_past;
        self.goes_past = may_go_past && (self.goes_past || self.is_much());
        self.flow = 0;
    }

    pub(super) fn goes_past(&self) -> bool {
        self.goes_past
    }

    fn set_direct(&mut self, wanted: bool) -> io::Result<()> {
        if wanted == self.is_direct {
            return Ok(());
        }
        debug_assert!(!(wanted && self.in_cache), "what is in the cache might come after what goes past it");
        direct::set_or_append(&self.file, wanted)?;
        self.is_direct = wanted;
        Ok(())
    }

    /// Replaces the buffer, with `room` behind `kept`.
    fn renew_buffer(&mut self, room: usize, kept: &[u8]) {
        self.buffer = direct::buffer(kept.len() + room);
        self.start = self.buffer.len();
        self.buffer.extend_from_slice(kept);
    }
}

/// The start of the last block of a file, and its bytes, unless it is full.
fn last_block(file: &File) -> io::Result<(u64, Vec<u8>)> {
    let len = file.metadata()?.len();
    let mut last = vec![0; (len % BLOCK as u64) as usize];
    let at = len - last.len() as u64;
    file.read_exact_at(&mut last, at)?;
    Ok((at, last))
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::{Path, PathBuf};

    use evenkeel_testkit::random::{Random, fresh_seed};

    use super::*;
    use evenkeel_testkit::scratch::Scratch;

    fn open(path: &Path) -> LogFile {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path);
        LogFile::open(file.expect("a file")).expect("its end")
    }

    fn named(scratch: &Scratch, name: &str) -> PathBuf {
        scratch.path.join(name)
    }

    fn add(log: &mut LogFile, bytes: &[u8]) {
        log.room(bytes.len()).extend_from_slice(bytes);
    }

    fn sync(log: &mut LogFile) {
        log.sync().expect("a sync");
        log.record_sync(true);
    }

    /// Writes [`FLOW_MIN`] bytes through the cache.
    fn begin_flow(log: &mut LogFile) -> Vec<u8> {
        let much = vec![b'.'; FLOW_MIN as usize];
        add(log, &much);
        log.write().expect("written");
        log.rests_until = None;
        assert!(log.is_much() || log.goes_past(), "worth a sync");
        sync(log);
        much
    }

    /// The flag of the open file, as the kernel has it.
    fn is_direct(log: &LogFile) -> bool {
        let flags = rustix::fs::fcntl_getfl(&log.file).expect("the file is open");
        flags.contains(rustix::fs::OFlags::DIRECT)
    }

    fn can_be_passed(path: &Path) -> bool {
        OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).is_ok()
    }

    #[test]
    fn the_file_has_all_bytes_except_the_pending() {
        let scratch = Scratch::new();
        let seed = fresh_seed();
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let path = named(&scratch, "log");
        let (mut log, mut all) = (open(&path), Vec::new());
        let (mut ways, mut long_ones) = ([0, 0], 0);
        for round in 0..600 {
            let len_max = [3, 700, BLOCK, LEN_MIN, 2 * LEN_MIN, LEN_MAX, 3 * LEN_MAX][random.below(7)];
            let len_min = if long_ones > 0 { LEN_MIN } else { 0 };
            long_ones = long_ones.max(1) - 1;
            let len = len_min + random.below(len_max);
            let piece: Vec<u8> = (0..=len / 8).flat_map(|_| random.draw().to_le_bytes()).collect();
            match random.below(3) {
                0 => log.append_long(&piece),
                _ => add(&mut log, &piece),
            }
            all.extend_from_slice(&piece);
            match random.below(12) {
                0 => log.write_all().expect("written"),
                1 => {
                    log.write_all().expect("written");
                    sync(&mut log);
                }
                2 => {
                    log.write_all().expect("written");
                    log = open(&path);
                }
                3 => {
                    all.extend(begin_flow(&mut log));
                    long_ones = random.below(20);
                }
                4 | 5 => continue,
                _ => log.write().expect("written"),
            }
            ways[usize::from(log.is_direct)] += 1;
            let there = std::fs::read(&path).expect("the file");
            assert_eq!(there.len() + log.pending(), all.len(), "round {round}");
            assert!(all.starts_with(&there), "round {round}: other bytes");
            if all.len() > 48 << 20 {
                log.write_all().expect("written");
                (log, all) = (open(&named(&scratch, &round.to_string())), Vec::new());
                std::fs::remove_file(&path).expect("the one before");
                std::fs::rename(named(&scratch, &round.to_string()), &path).expect("the same name");
            }
        }
        println!("through the cache and past it: {ways:?}");
        assert!(ways[0] > 20 && (ways[1] > 20 || !can_be_passed(&path)));
    }

    #[test]
    fn direct_io_follows_a_sync_under_load() {
        let scratch = Scratch::new();
        let path = named(&scratch, "log");
        let mut log = open(&path);
        if !can_be_passed(&path) {
            return;
        }
        add(&mut log, &[7; 3]);
        log.write().expect("written");
        sync(&mut log);
        assert!(!log.goes_past(), "for so little");
        begin_flow(&mut log);
        assert!(log.goes_past() && !is_direct(&log), "nothing has come yet");
        add(&mut log, &[7; LEN_MIN]);
        assert!(log.may_wait(), "others may come soon");
        log.write().expect("written");
        assert!(is_direct(&log));
        assert_eq!(log.pending(), (3 + FLOW_MIN as usize + LEN_MIN) % BLOCK, "whole blocks are in the file");
        // A complete write goes through the cache, and the way past begins again after a sync.
        log.write_all().expect("written");
        assert_eq!((log.pending(), is_direct(&log)), (0, false));
        add(&mut log, &[7; LEN_MIN]);
        sync(&mut log);
        log.write().expect("written");
        assert!(is_direct(&log), "in the middle of a block that has been written");
        // Without the sync, all goes through the cache: cached bytes may be lost while later bytes past it
        // are kept.
        log.write_all().expect("written");
        add(&mut log, &[7; LEN_MIN]);
        log.write().expect("written");
        assert!(!is_direct(&log) && !log.goes_past());
        // The same with little to write.
        begin_flow(&mut log);
        add(&mut log, b"little");
        log.write().expect("written");
        assert!(log.pending() == 0 && !log.goes_past());
        sync(&mut log);
        assert!(!log.goes_past(), "it was much before that");
        assert!(log.rests_until.is_some(), "and the next sync for a way past would be in vain as well");
        begin_flow(&mut log);
        log.record_sync(false);
        assert!(!log.goes_past(), "it is not wanted any more");
        // A disk that has been too slow.
        begin_flow(&mut log);
        log.rest();
        add(&mut log, &vec![b'.'; FLOW_MIN as usize]);
        log.write().expect("written");
        sync(&mut log);
        assert!(!log.goes_past() && !log.is_much(), "it rests");
    }

    #[test]
    fn refused_direct_io_uses_the_cache_and_failed_writes_stay_pending() {
        let device = |path| {
            let file = OpenOptions::new().read(true).append(true).open(path).expect("a device");
            LogFile::open(file).expect("its end")
        };
        let scratch = Scratch::new();
        let mut log = open(&named(&scratch, "log"));
        let mut all = begin_flow(&mut log);
        // As if the disk wanted another alignment.
        log.buffer.insert(0, 0);
        log.start += 1;
        add(&mut log, &[7; LEN_MAX]);
        all.extend([7; LEN_MAX]);
        log.write().expect("written all the same");
        assert_eq!((log.pending(), log.goes_past(), log.is_much()), (0, false, false));
        assert!(std::fs::read(named(&scratch, "log")).expect("the file") == all);
        let mut log = device("/dev/full");
        add(&mut log, b"one");
        add(&mut log, b" and another");
        let error = log.write().expect_err("it is full");
        assert_eq!((error.kind(), log.pending()), (io::ErrorKind::StorageFull, 15));
        log.append_long(&vec![7; 9 * LEN_MAX]);
        assert_eq!(log.pending(), 15 + 9 * LEN_MAX);
    }

    /// The program that cuts the file off loses the bytes behind the cut, but no later bytes.
    #[test]
    fn a_truncated_file_continues_at_its_end() {
        let scratch = Scratch::new();
        let path = named(&scratch, "log");
        let mut log = open(&path);
        for len in [0, 5, BLOCK as u64, FLOW_MIN] {
            log.rests_until = None;
            begin_flow(&mut log);
            add(&mut log, &[7; LEN_MIN + 1]);
            log.write().expect("written");
            let pending = log.pending();
            let other = OpenOptions::new().write(true).open(&path).expect("the file");
            other.set_len(len).expect("it is shortened");
            add(&mut log, &[8; 2 * LEN_MIN]);
            log.write().expect("written");
            log.write_all().expect("written");
            let there = std::fs::read(&path).expect("the file");
            assert_eq!(there.len(), len as usize + pending + 2 * LEN_MIN, "cut off behind {len} bytes");
            let (tail, pieces) = (&there[len as usize..], [vec![7; pending], vec![8; 2 * LEN_MIN]].concat());
            assert!(tail == pieces, "cut off behind {len} bytes: other ones");
            sync(&mut log);
        }
    }

    #[test]
    fn long_commands_leave_no_large_buffer() {
        let scratch = Scratch::new();
        let mut log = open(&named(&scratch, "log"));
        add(&mut log, &vec![7; 40 * ROOM]);
        assert!(log.buffer.capacity() >= 40 * ROOM);
        log.write_all().expect("written");
        assert!(log.buffer.capacity() <= 2 * ROOM);
        let start = log.buffer[log.start..].as_ptr();
        assert_eq!(start.align_offset(BLOCK), 0, "past the cache, memory must be aligned");
        log.append_long(&vec![8; 40 * ROOM + 3]);
        assert!(log.buffer.capacity() <= 2 * ROOM && log.pending() <= LEN_MAX, "{}", log.pending());
        log.write_all().expect("written");
        assert_eq!(log.end(), 80 * ROOM as u64 + 3);
    }
}
