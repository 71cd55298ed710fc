//! A lane of a copy at the source: a connection, its part of the snapshot, and its part of the journal.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use evenkeel_config::Settings;
use evenkeel_net as net;
use evenkeel_net::poll::await_events;
use evenkeel_net::tls::TlsStream;
use evenkeel_persist::save_points::Awaited;
use evenkeel_rdb::aof::push_command;
use parking_lot::Mutex;
use socket2::SockAddr;

use crate::handshake::login;
use crate::primary_connection::open;
use crate::snapshot_pipe::SnapshotPipe;
use crate::spill_file::SpillFile;
use crate::{Replication, Stream, feed};

/// Bytes sent in a system call.
const SEND_LEN: usize = 1 << 20;

/// Bytes of the journal that stay in memory; the rest is on disk.
const MEMORY_LEN_MAX: u64 = 8 << 20;

/// Poll interval of a lane: the longest delay of a record.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Bytes of an answer at most.
const LINE_MAX: usize = 4 * 1024;

/// A lane's part of the journal, and how far the lane has come. Shared by the thread that reads the
/// journal, the lane's thread, and the thread of the copy.
pub(super) struct LaneQueue {
    stream: Mutex<Stream>,
    /// Bytes that were appended to `stream`.
    appended: AtomicU64,
    /// Bytes of the lane that the target has acknowledged, of the snapshot and of the journal together.
    acked: AtomicU64,
    /// Bytes of the snapshot, once all of them are known.
    snapshot_len: AtomicU64,
}

impl Default for LaneQueue {
    fn default() -> LaneQueue {
        let mut stream = Stream::new();
        stream.keep();
        LaneQueue {
            stream: Mutex::new(stream),
            appended: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            snapshot_len: AtomicU64::new(u64::MAX),
        }
    }
}

impl LaneQueue {
    /// Appends commands that follow the snapshot.
    pub(super) fn append(&self, bytes: &[u8]) {
        let mut stream = self.stream.lock();
        evenkeel_store::memory::with_the_rest(|| stream.append(bytes));
        self.appended.fetch_add(bytes.len() as u64, AcqRel);
    }

    /// Bytes that the target has not acknowledged. `None`: the snapshot is not complete.
    pub(super) fn unacked(&self) -> Option<u64> {
        let snapshot = Some(self.snapshot_len.load(Acquire)).filter(|len| *len != u64::MAX)?;
        let all = snapshot + self.appended.load(Acquire);
        Some(all.saturating_sub(self.acked.load(Acquire)))
    }

    pub(super) fn acked(&self) -> u64 {
        self.acked.load(Acquire)
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> u64 {
        self.stream.lock().memory()
    }

    /// All bytes of the journal that are kept.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> Vec<u8> {
        let stream = self.stream.lock();
        let slices = stream.backlog().expect("it keeps them").slices(0, usize::MAX);
        slices.iter().flat_map(|slice| slice.iter().copied()).collect()
    }
}

/// A connection to the target.
pub(super) struct LaneConnection {
    stream: net::Stream,
    input: Vec<u8>,
}

/// How a target has answered.
pub(super) enum Answered {
    Yes,
    /// It is not ready yet, for this reason.
    Later(String),
}

impl LaneConnection {
    /// Connects to the target and logs in. `is_wanted` is polled.
    ///
    /// # Errors
    /// The reason why there is no connection.
    pub(super) fn connect(
        replication: &Replication,
        (host, port): (&str, u16),
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<LaneConnection, String> {
        let settings = replication.core.settings();
        let unwanted = || "the copy is not wanted any more".to_owned();
        let failed = |error: io::Error| format!("cannot connect to {host}:{port}: {error}");
        let found = crate::addresses::of(host, port, is_wanted).ok_or_else(unwanted)?.map_err(failed)?;
        let mut last = format!("the host name {host} has no address");
        for address in found {
            let socket = match open(&settings, address, None) {
                Ok(socket) => socket,
                Err(error) => return Err(failed(error)),
            };
            match socket.connect(&SockAddr::from(address)) {
                Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => last = failed(error),
                _ => {
                    let mut stream = net::Stream::new(OwnedFd::from(socket));
                    if settings.tls_replication {
                        let contexts = replication.tls.contexts().ok_or("TLS is not configured")?;
                        let tls = TlsStream::connect(&contexts, address.ip());
                        stream.encrypt(tls.map_err(|error| format!("cannot start TLS: {error}"))?);
                    }
                    let mut connection = LaneConnection { stream, input: Vec::new() };
                    match connection.begin(&settings, is_wanted) {
                        Ok(()) => return Ok(connection),
                        Err(error) => last = failed(error),
                    }
                }
            }
        }
        Err(last)
    }

    fn begin(&mut self, settings: &Settings, is_wanted: &dyn Fn() -> bool) -> io::Result<()> {
        let limit = Limit::of(settings, is_wanted);
        limit.wait(&self.stream, libc::POLLOUT)?;
        while !self.stream.shake()? {
            let writes = self.stream.unsent() > 0;
            limit.wait(&self.stream, if writes { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN })?;
        }
        let Some(words) = login(settings) else { return Ok(()) };
        match self.ask(&words, &limit)? {
            answer if answer.starts_with('-') => Err(io::Error::other(answer)),
            _ => Ok(()),
        }
    }

    /// Asks the target to take this connection as a lane.
    ///
    /// # Errors
    /// The connection is broken, or the target refuses the copy.
    pub(super) fn introduce(
        &mut self,
        settings: &Settings,
        words: &[&[u8]],
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Answered, String> {
        let limit = Limit::of(settings, is_wanted);
        let answer = self.ask(words, &limit).map_err(|error| format!("the connection broke: {error}"))?;
        match answer.strip_prefix("-TRYAGAIN ") {
            Some(reason) => Ok(Answered::Later(reason.to_owned())),
            None if answer == "+OK" => Ok(Answered::Yes),
            None => Err(format!("the target replied: {}", answer.trim_start_matches('-').escape_debug())),
        }
    }

    fn ask(&mut self, words: &[&[u8]], limit: &Limit<'_>) -> io::Result<String> {
        let mut bytes = Vec::new();
        push_command(&mut bytes, words);
        let mut sent = 0;
        while sent < bytes.len() || self.stream.unsent() > 0 {
            let is_sealed = self.stream.send_sealed()?;
            sent += if is_sealed { self.stream.write(&bytes[sent..])? } else { 0 };
            if sent < bytes.len() || self.stream.unsent() > 0 {
                limit.wait(&self.stream, libc::POLLOUT)?;
            }
        }
        loop {
            if let Some(line) = self.line()? {
                return Ok(line);
            }
            if !self.receive()? {
                limit.wait(&self.stream, libc::POLLIN)?;
            }
        }
    }

    /// Reads the bytes that the socket has. Returns false if it has none.
    fn receive(&mut self) -> io::Result<bool> {
        let mut piece = [0; 4096];
        match self.stream.read(&mut piece) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the target closed the connection")),
            Ok(got) => {
                self.input.extend_from_slice(&piece[..got]);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Takes the next line that has come.
    fn line(&mut self) -> io::Result<Option<String>> {
        let Some(end) = self.input.iter().position(|byte| *byte == b'\n') else {
            return match self.input.len() > LINE_MAX {
                true => Err(io::Error::other("the answer of the target is too long")),
                false => Ok(None),
            };
        };
        let line = self.input.drain(..=end).collect::<Vec<u8>>();
        Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()))
    }
}

/// The longest wait for the other node, as for a primary.
struct Limit<'a> {
    until: Instant,
    is_wanted: &'a dyn Fn() -> bool,
}

impl<'a> Limit<'a> {
    fn of(settings: &Settings, is_wanted: &'a dyn Fn() -> bool) -> Limit<'a> {
        let time = Duration::from_secs(settings.repl_timeout.into());
        Limit { until: Instant::now() + time, is_wanted }
    }

    fn wait(&self, stream: &net::Stream, events: i16) -> io::Result<()> {
        const SLICE: Duration = Duration::from_millis(50);
        loop {
            if !(self.is_wanted)() {
                return Err(io::Error::other("it is not wanted any more"));
            }
            if Instant::now() >= self.until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if await_events(stream.fd().as_raw_fd(), events, SLICE)? != 0 {
                return Ok(());
            }
        }
    }
}

/// A lane at work, on its thread.
pub(super) struct Lane {
    connection: LaneConnection,
    pipe: Arc<SnapshotPipe>,
    queue: Arc<LaneQueue>,
    /// Bytes of the snapshot that were sent, and whether these are all.
    at: u64,
    is_behind_snapshot: bool,
    /// Bytes of the journal that were sent.
    journal_at: u64,
    /// When the target last acknowledged bytes, or had acknowledged all.
    acked_at: Instant,
}

impl Lane {
    pub(super) fn new(connection: LaneConnection, pipe: Arc<SnapshotPipe>, queue: Arc<LaneQueue>) -> Lane {
        let acked_at = Instant::now();
        Lane { connection, pipe, queue, at: 0, is_behind_snapshot: false, journal_at: 0, acked_at }
    }

    /// Sends what there is until `is_over`.
    ///
    /// # Errors
    /// The reason why the copy has failed.
    pub(super) fn run(
        &mut self,
        replication: &Replication,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), String> {
        let mut sent = 0;
        while !is_over() {
            let writes = sent > 0 || self.connection.stream.unsent() > 0;
            let events = if writes { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
            let fd = self.connection.stream.fd().as_raw_fd();
            await_events(fd, events, POLL_INTERVAL).map_err(|error| error.to_string())?;
            let broken = |error: io::Error| format!("the connection to the target broke: {error}");
            self.listen().map_err(broken)?;
            sent = self.send().map_err(broken)?;
            self.tend(replication)?;
            self.check_silence(replication)?;
        }
        Ok(())
    }

    /// Reads acknowledgements.
    fn listen(&mut self) -> io::Result<()> {
        while self.connection.receive()? {}
        while let Some(line) = self.connection.line()? {
            let acked = line.strip_prefix(':').and_then(|number| number.parse::<u64>().ok());
            let acked = acked.ok_or_else(|| io::Error::other(line.escape_debug().to_string()))?;
            self.queue.acked.fetch_max(acked, AcqRel);
            self.acked_at = Instant::now();
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<usize> {
        let stream = &mut self.connection.stream;
        if stream.unsent() > 0 && !stream.send_sealed()? {
            return Ok(0);
        }
        if self.is_behind_snapshot { self.send_journal() } else { self.send_snapshot() }
    }

    fn send_snapshot(&mut self) -> io::Result<usize> {
        let state = self.pipe.lock();
        if state.ends_at(self.at) {
            self.queue.snapshot_len.store(self.at, Release);
            self.is_behind_snapshot = true;
            drop(state);
            return self.send_journal();
        }
        let sent = match state.spilled(self.at).map(|spilled| spilled.read(self.at)) {
            Some(None) => 0,
            Some(Some((piece, skip))) => {
                drop(state);
                self.connection.stream.write_gathered(&[IoSlice::new(&piece[skip..])])?
            }
            None => write(&mut self.connection.stream, &state.bytes.slices(self.at, SEND_LEN))?,
        };
        self.at += sent as u64;
        Ok(sent)
    }

    fn send_journal(&mut self) -> io::Result<usize> {
        let stream = self.queue.stream.lock();
        let at = self.journal_at;
        let sent = match &stream.spill_file {
            Some(spill_file) if spill_file.has(at) => match spill_file.read(at) {
                None => 0,
                Some((piece, skip)) => {
                    drop(stream);
                    self.connection.stream.write_gathered(&[IoSlice::new(&piece[skip..])])?
                }
            },
            _ => match stream.backlog() {
                Some(backlog) => write(&mut self.connection.stream, &backlog.slices(at, SEND_LEN))?,
                None => 0,
            },
        };
        self.journal_at += sent as u64;
        Ok(sent)
    }

    /// Frees the bytes that the socket has taken, and moves bytes of the journal to disk that are beyond
    /// [`MEMORY_LEN_MAX`].
    fn tend(&mut self, replication: &Replication) -> Result<(), String> {
        let settings = replication.core.settings();
        let folder: &Path = &settings.dir;
        let full = |error: io::Error| {
            format!("cannot keep what waits for the target, in {}: {error}", folder.display())
        };
        if !self.is_behind_snapshot {
            let readers = [self.at];
            self.pipe
                .tend(&readers, Awaited::Nothing, |from| SpillFile::create(folder, from, || ()))
                .map_err(full)?;
        }
        let mut stream = self.queue.stream.lock();
        stream.trim(0, &[self.journal_at]);
        let create = |from| SpillFile::create(folder, from, || ());
        stream.spill_file(MEMORY_LEN_MAX, feed::WITHOUT_DISK_LEN_MAX, create).map_err(full)
    }

    fn check_silence(&mut self, replication: &Replication) -> Result<(), String> {
        let timeout = Duration::from_secs(replication.core.settings().repl_timeout.into());
        let sent = self.at + self.journal_at;
        if self.queue.acked.load(Acquire) >= sent {
            self.acked_at = Instant::now();
        }
        if self.acked_at.elapsed() > timeout {
            return Err(format!("the target has acknowledged nothing for {} s", timeout.as_secs()));
        }
        Ok(())
    }
}

/// Writes slices, of which there may be none.
fn write(stream: &mut net::Stream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    if slices.is_empty() { Ok(0) } else { stream.write_gathered(slices) }
}
