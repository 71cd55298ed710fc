//! The part of the stream before the backlog, on disk: for replicas that are being sent a snapshot or load
//! it. Also the part of a snapshot that slow replicas have not been sent yet ([`super::snapshot_pipe`]).
//!
//! Writes made during a full sync must be kept for the replica. With fast writers and a large snapshot they
//! exceed the memory that should be spent on them. Redis drops such a replica, which begins anew as long as
//! there are writers: unless its output buffer is large enough for the load, the sync never succeeds. Here
//! the oldest blocks go to an unlinked file and are sent from there. So the first try succeeds without any
//! setting, and no writer waits.
//!
//! A thread of its own has the file. It executes requests to write blocks, fetch pieces, and free space. The
//! replication thread enqueues requests and goes on, and is woken when a piece has been read. So a hanging
//! disk delays neither that thread nor other replicas nor INFO. Bytes that the disk has not taken are in
//! memory and bounded: beyond the bound, the replica that needs them begins anew.
//!
//! The road not taken is to slow writers down until the rest fits. With 5 GB to send and 64 MB to spare,
//! writers would run at a tenth of their pace.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::backlog::{BLOCK, SPARES_MAX};
use evenkeel_persist::disk_space::Space;
use evenkeel_runtime::sandbox::{self, Call};
use evenkeel_runtime::temp_file;
use evenkeel_runtime::threads;

/// Bytes on disk at most: more than half an hour of a writing thread's output.
const OVERFLOW_LEN_MAX: u64 = 64 << 30;

/// Bytes that may wait for the disk: the output of a busy server in a second or two.
const WAITING_LEN_MAX: u64 = 256 << 20;

/// Free bytes that the disk must have at the beginning: the amount that is kept in memory if it has less.
const RESERVED_LEN: u64 = super::feed::WITHOUT_DISK_LEN_MAX;

/// Bytes of the disk that are left to other files, at most; on a small disk a quarter. An append-only file
/// without space costs more than a replica that begins anew.
const LEFT_MAX: u64 = 1 << 30;

/// Written bytes between two checks of the free space.
const SPACE_CHECK_LEN: u64 = 1 << 20;

/// Bytes that are freed on the disk at once.
const HOLE_LEN: u64 = 64 << 20;
const _: () = assert!(HOLE_LEN.is_multiple_of(BLOCK as u64), "holes are made of whole pages");
const _: () = assert!(SPACE_CHECK_LEN.is_multiple_of(BLOCK as u64), "a block ends there");

/// Bytes that are fetched at once. A replica that reads from the file has two pieces in memory: the piece
/// that it is sent, and the next.
const PIECE_LEN: u64 = 256 * 1024;

/// Pieces that are kept for reuse. Memory that two threads allocate and free for each other is not found
/// again at the next allocation, and grows (measured: 35 MB while 600 are fetched).
const SPARE_PIECES_MAX: usize = 4;

/// Threads of dropped files that a disk still blocks. At [`LEFT_BEHIND_MAX`], no further thread is started.
static LEFT_BEHIND: AtomicUsize = AtomicUsize::new(0);
const LEFT_BEHIND_MAX: usize = 8;

/// A part of a stream or snapshot, in an unlinked file.
pub(crate) struct SpillFile {
    /// The offsets of the file's first byte, of the first byte that is kept, and behind the last byte.
    base: u64,
    start: u64,
    end: u64,
    shared: Arc<Shared>,
}

/// The state shared with the thread.
#[derive(Default)]
struct Shared {
    /// Whether the file has been created.
    is_open: AtomicBool,
    /// Whether the disk has little more space than is left to other files.
    is_tight: AtomicBool,
    /// Bytes to be written.
    waiting: AtomicU64,
    /// Pieces by their number in the file; `None` while they are being fetched.
    pieces: Mutex<BTreeMap<u64, Option<Arc<Vec<u8>>>>>,
    /// Written blocks and dropped pieces, for reuse.
    written: Mutex<Vec<Box<[u8]>>>,
    read: Mutex<Vec<Vec<u8>>>,
    /// The error that has ended the thread.
    failed: Mutex<Option<String>>,
    queue: Mutex<Queue>,
    /// Signalled after a request, and when the file is dropped.
    asked: Condvar,
}

/// The requests to the thread.
#[derive(Default)]
struct Queue {
    requests: VecDeque<Request>,
    /// Wanted pieces, by number and length. They come before `requests`, once they have been written.
    fetches: VecDeque<(u64, usize)>,
    /// Whether the file has been dropped.
    is_over: bool,
    /// Whether the thread has ended.
    has_ended: bool,
}

enum Request {
    Write(Box<[u8]>),
    Free { at: u64, len: u64 },
    Fetch { index: u64, len: usize },
}

impl SpillFile {
    /// Creates an empty file in this folder, for the stream from `offset` or a later offset on. `notify` is
    /// called when a requested piece has been read.
    pub(super) fn create(
        folder: &Path,
        offset: u64,
        notify: impl Fn() + Send + 'static,
    ) -> io::Result<SpillFile> {
        let folder = folder.to_path_buf();
        let open = move || {
            let file = temp_file::nameless(&folder, "stream")?;
            reserve(&file)?;
            Ok(file)
        };
        SpillFile::start_thread(open, offset, notify)
    }

    fn start_thread(
        open: impl FnOnce() -> io::Result<File> + Send + 'static,
        offset: u64,
        notify: impl Fn() + Send + 'static,
    ) -> io::Result<SpillFile> {
        if LEFT_BEHIND.load(Relaxed) >= LEFT_BEHIND_MAX {
            return Err(io::Error::other("the disk is still blocked by earlier writes"));
        }
        let shared = Arc::<Shared>::default();
        let on_thread = shared.clone();
        threads::named("spill-file").spawn(move || {
            evenkeel_store::memory::register_thread();
            if let Err(error) = serve(open, &on_thread, &notify) {
                *on_thread.failed.lock() = Some(error.to_string());
                notify();
            }
            on_thread.end();
        })?;
        Ok(SpillFile { base: offset, start: offset, end: offset, shared })
    }

    /// The offset of the first byte that is kept.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    pub(super) fn has(&self, offset: u64) -> bool {
        (self.start..self.end).contains(&offset)
    }

    /// Bytes on disk, or on their way.
    pub(super) fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Bytes that are still in memory.
    pub(super) fn waiting(&self) -> u64 {
        self.shared.waiting.load(Acquire)
    }

    /// Memory in bytes: blocks that wait for the disk, fetched pieces, and memory for reuse.
    pub(super) fn memory(&self) -> u64 {
        let fetched = self.shared.pieces.lock().len() + self.shared.read.lock().len();
        let written = self.shared.written.lock().len();
        self.waiting() + fetched as u64 * PIECE_LEN + (written * BLOCK) as u64
    }

    /// Whether the file has been created, which a hanging disk leaves open. Errors as for
    /// [`SpillFile::check`].
    pub(super) fn is_open(&self) -> io::Result<bool> {
        self.check().map(|()| self.shared.is_open.load(Acquire))
    }

    /// Returns an error if the thread has failed, or the disk has lagged too far behind.
    pub(super) fn check(&self) -> io::Result<()> {
        let why = match self.shared.failed.lock().clone() {
            Some(why) => why,
            None if self.len() > OVERFLOW_LEN_MAX => {
                format!("the limit of {OVERFLOW_LEN_MAX} bytes is reached")
            }
            None if self.waiting() > WAITING_LEN_MAX => {
                format!("{} bytes are waiting for the disk", self.waiting())
            }
            None => return Ok(()),
        };
        Err(io::Error::other(why))
    }

    /// Whether more bytes may go to disk, for a caller that can wait.
    pub(super) fn has_room(&self) -> bool {
        self.len() + WAITING_LEN_MAX <= OVERFLOW_LEN_MAX && !self.shared.is_tight.load(Acquire)
    }

    /// Whether nothing has been appended yet.
    pub(super) fn is_unused(&self) -> bool {
        self.base == self.end
    }

    /// Appends blocks at `from`, which is the end of the file, or any offset if nothing has been appended
    /// yet.
    pub(super) fn append(&mut self, from: u64, blocks: Vec<Box<[u8]>>) {
        if self.is_unused() {
            (self.base, self.start, self.end) = (from, from, from);
        }
        assert_eq!(from, self.end, "it has no gaps");
        let len: u64 = blocks.iter().map(|block| block.len() as u64).sum();
        self.shared.waiting.fetch_add(len, AcqRel);
        self.end += len;
        self.ask(blocks.into_iter().map(Request::Write));
    }

    /// Returns the piece with the byte at `from`, which is in the file, and the place of that byte. `None`:
    /// the piece is being fetched.
    pub(super) fn read(&self, from: u64) -> Option<(Arc<Vec<u8>>, usize)> {
        assert!(self.has(from), "only what is kept can be read");
        let index = (from - self.base) / PIECE_LEN;
        let skip = ((from - self.base) % PIECE_LEN) as usize;
        let mut pieces = self.shared.pieces.lock();
        let next = index + 1;
        if self.base + (next + 1) * PIECE_LEN <= self.end && !pieces.contains_key(&next) {
            self.fetch(&mut pieces, next);
        }
        match pieces.get(&index) {
            Some(Some(piece)) if skip < piece.len() => return Some((piece.clone(), skip)),
            Some(None) => return None,
            // It was the last piece, and not full.
            Some(Some(_)) | None => self.fetch(&mut pieces, index),
        }
        None
    }

    fn fetch(&self, pieces: &mut BTreeMap<u64, Option<Arc<Vec<u8>>>>, index: u64) {
        let len = (self.end - self.base - index * PIECE_LEN).min(PIECE_LEN) as usize;
        pieces.insert(index, None);
        self.ask([Request::Fetch { index, len }]);
    }

    /// Drops the pieces that none of `readers` needs, and frees the space before `needed`, in large steps.
    pub(super) fn trim(&mut self, needed: u64, readers: &[u64]) {
        let is_near = |index: u64, reader: &u64| {
            let at = reader.saturating_sub(self.base) / PIECE_LEN;
            (at..=at + 1).contains(&index)
        };
        let mut pieces = self.shared.pieces.lock();
        let mut gone = Vec::new();
        pieces.retain(|index, piece| {
            let stays = piece.is_none() || readers.iter().any(|reader| is_near(*index, reader));
            if !stays {
                gone.extend(piece.take().and_then(Arc::into_inner));
            }
            stays
        });
        drop(pieces);
        let mut read = self.shared.read.lock();
        read.extend(gone);
        read.truncate(SPARE_PIECES_MAX);
        drop(read);
        while self.start + HOLE_LEN <= needed.min(self.end) {
            self.ask([Request::Free { at: self.start - self.base, len: HOLE_LEN }]);
            self.start += HOLE_LEN;
        }
    }

    /// Takes blocks that have been written, for reuse.
    pub(super) fn written(&self) -> Vec<Box<[u8]>> {
        std::mem::take(&mut self.shared.written.lock())
    }

    /// Enqueues requests. A thread that has failed has reported that already.
    fn ask(&self, requests: impl IntoIterator<Item = Request>) {
        let mut queue = self.shared.queue.lock();
        if !queue.has_ended {
            for request in requests {
                match request {
                    Request::Fetch { index, len } => queue.fetches.push_back((index, len)),
                    request => queue.requests.push_back(request),
                }
            }
            self.shared.asked.notify_one();
        }
    }
}

/// Frees the waiting blocks at once, even if the disk hangs. The thread ends when its disk lets it.
impl Drop for SpillFile {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        let waiting = std::mem::take(&mut queue.requests);
        queue.is_over = true;
        if !queue.has_ended {
            LEFT_BEHIND.fetch_add(1, Relaxed);
        }
        drop(queue);
        self.shared.asked.notify_one();
        drop(waiting);
    }
}

impl Shared {
    /// Waits for the next request, after `written` bytes have been written. `None`: the file has been
    /// dropped.
    fn next(&self, written: u64) -> Option<Request> {
        let mut queue = self.queue.lock();
        while !queue.is_over {
            let is_there = |(index, len): &(u64, usize)| index * PIECE_LEN + *len as u64 <= written;
            let first = queue.fetches.iter().position(is_there);
            if let Some((index, len)) = first.and_then(|at| queue.fetches.remove(at)) {
                return Some(Request::Fetch { index, len });
            }
            match queue.requests.pop_front() {
                None => self.asked.wait(&mut queue),
                request => return request,
            }
        }
        None
    }

    /// Marks the end of the thread.
    fn end(&self) {
        let mut queue = self.queue.lock();
        queue.has_ended = true;
        queue.requests.clear();
        queue.fetches.clear();
        if queue.is_over {
            LEFT_BEHIND.fetch_sub(1, Relaxed);
        }
    }
}

/// Reserves space, so that a full disk is found before any bytes are given to it.
fn reserve(file: &File) -> io::Result<()> {
    if !sandbox::permits(Call::Fallocate) {
        return Ok(());
    }
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, RESERVED_LEN) {
        Err(Errno::OPNOTSUPP) => Ok(()),
        done => Ok(done?),
    }
}

/// Checks the free space.
///
/// # Errors
/// The disk has no more space than is left to other files.
fn look_at_space(file: &File, shared: &Shared) -> io::Result<()> {
    let Space { free, size } = Space::around(file)?;
    let left = LEFT_MAX.min(size / 4);
    shared.is_tight.store(free < 2 * left, Release);
    if free < left {
        return Err(io::Error::other(format!(
            "the disk has only {free} bytes left, and {left} are reserved"
        )));
    }
    Ok(())
}

/// Executes requests until the file is dropped.
fn serve(open: impl FnOnce() -> io::Result<File>, shared: &Shared, notify: &impl Fn()) -> io::Result<()> {
    let (file, mut end) = (open()?, 0_u64);
    look_at_space(&file, shared)?;
    shared.is_open.store(true, Release);
    while let Some(request) = shared.next(end) {
        match request {
            Request::Write(block) => {
                if end.is_multiple_of(SPACE_CHECK_LEN) {
                    look_at_space(&file, shared)?;
                }
                file.write_all_at(&block, end)?;
                end += block.len() as u64;
                shared.waiting.fetch_sub(block.len() as u64, AcqRel);
                let mut written = shared.written.lock();
                if written.len() < SPARES_MAX {
                    written.push(block);
                }
            }
            Request::Fetch { index, len } => {
                let mut bytes = shared.read.lock().pop().unwrap_or_default();
                bytes.resize(len, 0);
                file.read_exact_at(&mut bytes, index * PIECE_LEN)?;
                shared.pieces.lock().insert(index, Some(Arc::new(bytes)));
                notify();
            }
            Request::Free { at, len } => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                if sandbox::permits(Call::Fallocate) {
                    // A file system without holes keeps the space until the file is closed.
                    let _ = fallocate(&file, mode, at, len);
                }
                _ = look_at_space(&file, shared); // more than before, and there may be no more writes
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::*;
    use evenkeel_testkit::random::printed as random;

    fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed() < Duration::from_secs(60), "not yet: {what}");
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn blocks(byte: u8, count: usize) -> Vec<Box<[u8]>> {
        vec![vec![byte; BLOCK].into(); count]
    }

    #[test]
    fn spilled_bytes_are_readable_while_needed() {
        let mut random = random();
        let begin = random.draw() >> 20;
        let mut spill_file = SpillFile::create(&std::env::temp_dir(), begin, || {}).expect("a thread");
        let (mut model, mut needed) = (Vec::new(), begin);
        while model.len() < 3 * HOLE_LEN as usize {
            let byte = random.draw() as u8;
            spill_file.append(begin + model.len() as u64, blocks(byte, 16));
            model.resize(model.len() + 16 * BLOCK, byte);
            needed += random.below((begin as usize + model.len()) - needed as usize + 1) as u64 / 8;
            let from = needed + random.below((begin as usize + model.len()) - needed as usize) as u64;
            spill_file.trim(needed, &[from]);
            assert!(spill_file.len() < begin + model.len() as u64 - needed + HOLE_LEN);
            let mut got = None;
            wait_until("it is fetched", || {
                got = spill_file.read(from);
                got.is_some()
            });
            let (piece, skip) = got.expect("it is there");
            let at = (from - begin) as usize;
            assert!(skip < piece.len() && piece[skip..] == model[at..at + piece.len() - skip], "at {at}");
            // The piece that was prefetched arrives once it has been written.
            wait_until("nothing is under way", || {
                spill_file.shared.pieces.lock().values().all(Option::is_some)
            });
            spill_file.trim(needed, &[from]);
            assert!(spill_file.shared.pieces.lock().len() <= 2, "what was fetched for others is let go of");
        }
        assert!(!spill_file.has(begin + model.len() as u64) && !spill_file.has(begin));
        spill_file.check().expect("a disk that takes it");
        wait_until("all is on disk", || spill_file.waiting() == 0);
        assert!(spill_file.shared.read.lock().len() <= SPARE_PIECES_MAX);
    }

    #[test]
    fn spill_buffers_are_reused() {
        let mut spill_file = SpillFile::create(&std::env::temp_dir(), 0, || {}).expect("a thread");
        let given = blocks(1, SPARES_MAX + 5);
        let places: Vec<*const u8> = given.iter().map(|block| block.as_ptr()).collect();
        spill_file.append(0, given);
        wait_until("all is on disk", || spill_file.waiting() == 0);
        wait_until("they are given back", || spill_file.shared.written.lock().len() == SPARES_MAX);
        let written = spill_file.written();
        assert!(written.iter().zip(&places).all(|(block, place)| block.as_ptr() == *place));
        assert!(spill_file.written().is_empty());

        let fetch = |spill_file: &SpillFile, at| {
            let mut got = None;
            wait_until("it is fetched", || {
                got = spill_file.read(at);
                got.is_some()
            });
            got.expect("it is there").0.as_ptr()
        };
        let first = fetch(&spill_file, 0);
        spill_file.trim(2 * PIECE_LEN, &[2 * PIECE_LEN]);
        assert!(!spill_file.shared.read.lock().is_empty());
        assert!(
            (2..4).any(|index| fetch(&spill_file, index * PIECE_LEN) == first),
            "that memory has another piece"
        );
    }

    #[test]
    fn space_is_reserved_before_writing() {
        use std::os::unix::fs::MetadataExt;
        let file = temp_file::nameless(&std::env::temp_dir(), "reserve").expect("a file");
        reserve(&file).expect("room");
        let metadata = file.metadata().expect("it is open");
        assert!(metadata.blocks() * 512 >= RESERVED_LEN && metadata.len() == 0, "{metadata:?}");
        let refused = File::open("/dev/null").expect("it is there");
        assert!(reserve(&refused).is_err());
    }

    /// A wanted piece does not wait for all pending writes.
    #[test]
    fn written_pieces_are_readable_before_pending() {
        let shared = Shared::default();
        let mut queue = shared.queue.lock();
        queue.requests.extend(blocks(1, 2).into_iter().map(Request::Write));
        queue.fetches.extend([(1, 10), (0, BLOCK)]);
        drop(queue);
        let next = |written| shared.next(written).expect("there is something");
        assert!(matches!(next(0), Request::Write(_)), "none is there");
        assert!(matches!(next(BLOCK as u64), Request::Fetch { index: 0, .. }));
        assert!(matches!(next(BLOCK as u64), Request::Write(_)));
        assert!(matches!(next(PIECE_LEN + 10), Request::Fetch { index: 1, len: 10 }));
    }

    /// A replica that has been sent the last piece continues when there is more.
    #[test]
    fn the_last_piece_is_extended() {
        let mut spill_file = SpillFile::create(&std::env::temp_dir(), 7, || {}).expect("a thread");
        let mut at = 7;
        for n in 0..5 * PIECE_LEN as usize / (3 * BLOCK) {
            spill_file.append(7 + (n * 3 * BLOCK) as u64, blocks(n as u8, 3));
            while spill_file.has(at) {
                if let Some((piece, skip)) = spill_file.read(at) {
                    assert!(piece[skip..].iter().all(|byte| usize::from(*byte) == n), "{n} at {at}");
                    at += (piece.len() - skip) as u64;
                }
            }
        }
    }

    /// Nor do its blocks stay in memory for as long as it hangs: the next attempt has as many of its own.
    #[test]
    fn pieces_on_a_hung_disk_are_freed_with_their_readers() {
        let (release, hangs) = channel::<()>();
        let open = move || {
            _ = hangs.recv();
            Err(io::Error::other("it hung"))
        };
        let mut spill_file = SpillFile::start_thread(open, 0, || {}).expect("a thread");
        spill_file.append(0, blocks(1, 64));
        let shared = spill_file.shared.clone();
        assert_eq!(shared.queue.lock().requests.len(), 64);
        drop(spill_file);
        assert!(shared.queue.lock().requests.is_empty());
        drop(release);
        wait_until("the thread ends", || shared.queue.lock().has_ended);
    }

    #[test]
    fn a_hung_disk_blocks_no_caller() {
        let (release, hangs) = channel::<()>();
        let open = move || {
            _ = hangs.recv();
            Err(io::Error::other("it hung"))
        };
        let (sender, receiver) = channel();
        let notify = move || _ = sender.send(());
        let mut spill_file = SpillFile::start_thread(open, 0, notify).expect("a thread");
        let mut given = 0;
        while spill_file.check().is_ok() {
            assert!(!spill_file.is_open().expect("nobody knows yet"));
            spill_file.append(given, blocks(1, 64));
            given += 64 * BLOCK as u64;
            assert_eq!(spill_file.waiting(), given);
            assert!(spill_file.read(0).is_none(), "it is being fetched");
            spill_file.trim(0, &[0]);
        }
        assert!(given > WAITING_LEN_MAX && given <= WAITING_LEN_MAX + 64 * BLOCK as u64, "a bound of memory");
        let why = spill_file.check().expect_err("it does not take it").to_string();
        assert_eq!(why, format!("{given} bytes are waiting for the disk"));
        drop(release);
        receiver.recv_timeout(Duration::from_secs(60)).expect("the feeding thread is woken");
        assert_eq!(spill_file.check().expect_err("it has failed").to_string(), "it hung");
        assert_eq!(spill_file.is_open().expect_err("it will not be").to_string(), "it hung");
        assert!(spill_file.read(0).is_none());
    }
}
