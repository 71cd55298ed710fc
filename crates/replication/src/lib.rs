//! Replication: the role of this server, and the stream of writes that it shares with other servers.
//!
//! A stream is a sequence of bytes: Redis commands, each of which has an offset, under the name of a history.
//! Servers that have all of a history up to the same offset hold the same data. A primary makes the stream
//! from its journal ([`evenkeel_store::journal`]). A replica receives it over its link, and passes it on
//! unchanged to replicas of its own. So a replica that becomes a primary continues with the same offsets
//! under a new name, and remembers the former name and the offset up to which it is valid
//! ([`History::branch`]).
//!
//! [`Replication`] is shared by both halves. It has the [`Stream`] under a lock, which a thread holds to
//! append or send, and never for longer than one system call that does not block. No serving thread takes the
//! lock on the path of a command.

pub mod acks;
mod addresses;
mod apply;
pub mod backlog;
mod command_buffer;
pub mod failover;
mod feed;
pub mod handover;
mod handshake;
mod install;
pub mod link;
pub mod members;
pub mod moves;
pub mod node_connection;
mod primary_connection;
mod receive;
mod replica_connection;
pub mod replica_inbox;
pub mod replicas;
mod snapshot_pipe;
mod spill_file;
mod surplus;
mod sync;
mod target;
#[cfg(test)]
mod testing;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use evenkeel_store::journal::{Journal, Reader};
use evenkeel_store::{SlotGuard, ThreadContext};
use parking_lot::{Mutex, MutexGuard};

use acks::Acks;
use backlog::{BLOCK, Backlog};
use evenkeel_client::runner::RunnerFactory;
use evenkeel_client::{Hub, Session};
use evenkeel_command::error::Error;
use evenkeel_command::{Args, Id, Table};
use evenkeel_config::Settings;
use evenkeel_core::Core;
use evenkeel_core::blockers::Blockers;
use evenkeel_net::tls::Tls;
use evenkeel_persist::Persist;
use evenkeel_persist::position::{Point, Position};
use evenkeel_runtime::clock;
use evenkeel_runtime::random::random_hex;
use evenkeel_runtime::server_log;
use evenkeel_scripting::Scripts;
use failover::Failover;
use link::PrimaryLink;
use members::Members;
use moves::{Admission, Moves, Ticket};
use replica_inbox::ReplicaInbox;
use replicas::Replicas;
use spill_file::SpillFile;

/// Longest wait of a client that asks for the stream's offset, and the poll interval.
const CATCH_UP_MAX: Duration = Duration::from_millis(10);
const CATCH_UP_POLL_INTERVAL: Duration = Duration::from_micros(50);

/// No full sync is beginning.
const NEVER: u64 = u64::MAX;

/// What the parts above do for replication.
pub trait Host: RunnerFactory {
    /// Checks whether the session's user may make this request. `Ok(false)`: its user has been deleted.
    fn admit(&self, session: &mut Session, id: Id, args: &Args<'_>) -> Result<bool, Error>;

    /// Whether commands of a copy of slots may run now. Called inside the gate, and by an idle lane.
    fn may_import(&self, ticket: &Ticket) -> Admission;

    /// Counts a command whose wait a change of roles has ended with this error.
    fn record_ended_wait(&self, id: Id, error: &Error);
}

/// The state of replication, shared by all threads.
pub struct Replication {
    pub core: Arc<Core>,
    hub: Arc<Hub>,
    scripts: Arc<Scripts>,
    persist: Arc<Persist>,
    tls: Arc<Tls>,
    table: &'static Table,
    host: OnceLock<Weak<dyn Host>>,
    stream: Mutex<Stream>,
    is_replica: AtomicBool,
    /// The link to the primary, if there is one.
    pub link: PrimaryLink,
    pub failover: Failover,
    pub replicas: Replicas,
    pub replica_inbox: ReplicaInbox,
    pub members: Members,
    pub moves: Moves,
    pub acks: Acks,
    /// The context for threads of this module that need all locks.
    ctx: Mutex<ThreadContext>,
    /// The end of this server's own stream, once it has ended.
    end: Mutex<Option<End>>,
    /// Whether the stream is made from the journal. The reader stays here until the replication thread takes
    /// it; `place` is its place in the journal.
    reading: Reading,
    reader: Mutex<Option<Reader>>,
    place: AtomicUsize,
    /// The last record in the snapshot of the full sync that has just begun, or [`NEVER`].
    sync_behind: AtomicU64,
    /// The offset of the full sync's snapshot, if the stream is not made from the journal, or [`NEVER`].
    sync_at: AtomicU64,
    /// The last record that a client waits for replicas to have.
    acks_wanted: AtomicU64,
    wants_acks: AtomicBool,
    /// The last record that is in the stream. Written while the stream is locked.
    streamed: AtomicU64,
    pub metrics: ReplicationMetrics,
}

/// Whether the stream is made from the journal:
/// - `NONE`: it is not.
/// - `RUNNING`: it is.
/// - `ENDS`: the reader has been dismissed, and reads the records from before that.
///
/// A thread that holds all locks begins and dismisses the reader. It sets `ENDS` only after the dismissal,
/// since the replication thread may end the reader at that moment. Only the replication thread sets `NONE`.
#[derive(Default)]
struct Reading(AtomicU8);

impl Reading {
    const NONE: u8 = 0;
    const RUNNING: u8 = 1;
    const ENDS: u8 = 2;

    fn is_any(&self) -> bool {
        self.0.load(Acquire) != Reading::NONE
    }

    fn is_running(&self) -> bool {
        self.0.load(Acquire) == Reading::RUNNING
    }

    fn ends(&self) -> bool {
        self.0.load(Acquire) == Reading::ENDS
    }

    fn set(&self, reading: u8) {
        self.0.store(reading, Release);
    }
}

/// Metrics for INFO. CONFIG RESETSTAT resets counters, but not gauges.
#[derive(Default)]
pub struct ReplicationMetrics {
    pub full: AtomicU64,
    pub partial: AtomicU64,
    pub partial_refused: AtomicU64,
    /// Bytes sent to replicas.
    pub sent: AtomicU64,
    /// Memory of the stream that is kept only until some replica has it, in bytes.
    pub beyond: AtomicU64,
    /// Bytes of the stream on disk, kept until a replica has them.
    pub on_disk: AtomicU64,
    /// Bytes of snapshots that are being sent: in memory, and on disk for slower replicas.
    pub in_pipes: AtomicU64,
    pub spilled: AtomicU64,
    /// Full syncs whose snapshot is being taken, or not yet sent to the end.
    pub syncing: AtomicU64,
}

impl ReplicationMetrics {
    pub fn reset(&self) {
        for count in [&self.full, &self.partial, &self.partial_refused, &self.sent] {
            count.store(0, Relaxed);
        }
    }
}

/// The end of the stream of a server that is about to stop.
#[derive(Debug)]
struct End {
    /// The last point; `None` if the last records are missing, or the stream is not kept.
    point: Option<Point>,
    /// The count of data changes up to then.
    dirty: u64,
}

/// The names of the history that this server holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Forty hexadecimal digits.
    pub id: String,
    /// The former name, and the number of bytes up to which it is valid.
    pub former: Option<(String, u64)>,
}

impl History {
    /// Returns a new history, under a random name.
    pub fn random() -> History {
        History::named(random_hex())
    }

    /// The history of another server.
    pub fn named(id: String) -> History {
        History { id, former: None }
    }

    /// Continues under another name from this offset on. A server that has no more of the former history can
    /// follow.
    pub fn branch(&mut self, offset: u64, id: String) {
        self.former = Some((std::mem::replace(&mut self.id, id), offset));
    }

    /// Whether the first `bytes` bytes of the history `id` are those of this history.
    pub fn includes(&self, id: &[u8], bytes: u64) -> bool {
        let is = |name: &str| name.as_bytes().eq_ignore_ascii_case(id);
        is(&self.id) || self.former.as_ref().is_some_and(|(name, until)| is(name) && bytes <= *until)
    }

    /// The former name as Redis shows it, and the number of the first byte that differs, counted from one.
    pub fn second(&self) -> (String, i64) {
        match &self.former {
            Some((name, until)) => (name.clone(), i64::try_from(*until).map_or(i64::MAX, |until| until + 1)),
            None => ("0".repeat(self.id.len()), -1),
        }
    }
}

/// The stream so far: its history, its length, and its last part.
pub struct Stream {
    pub history: History,
    /// Bytes so far. Equal to the backlog's end, if there is a backlog.
    offset: u64,
    backlog: Option<Backlog>,
    /// Incremented when the stream begins anew or is renamed, so that replicas must ask again.
    era: u64,
    /// The bytes before the backlog, kept for full syncs.
    spill_file: Option<SpillFile>,
    /// Whether the stream comes to rest, for a failover: only journal records are still appended.
    is_at_rest: bool,
}

impl Stream {
    fn new() -> Stream {
        Stream {
            history: History::random(),
            offset: 0,
            backlog: None,
            era: 0,
            spill_file: None,
            is_at_rest: false,
        }
    }

    pub fn era(&self) -> u64 {
        self.era
    }

    /// Continues the history under another name. Replicas must reconnect to learn it.
    pub fn rename(&mut self, id: String) {
        self.history.branch(self.offset, id);
        self.era += 1;
    }

    /// The number of bytes so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    pub fn backlog(&self) -> Option<&Backlog> {
        self.backlog.as_ref()
    }

    /// Memory of the kept bytes, including bytes that wait for the disk.
    pub fn memory(&self) -> u64 {
        self.backlog.as_ref().map_or(0, Backlog::memory)
            + self.spill_file.as_ref().map_or(0, SpillFile::memory)
    }

    /// The part of [`Stream::memory`] beyond what a backlog of `size` bytes takes: kept until a replica has
    /// received it.
    pub fn memory_beyond(&self, size: u64) -> u64 {
        self.memory().saturating_sub(backlog::memory_of(size))
    }

    /// The offset of the first byte kept in memory or on disk, if any.
    pub fn start(&self) -> Option<u64> {
        let backlog = self.backlog.as_ref()?;
        let spill_file = self.spill_file.as_ref().filter(|spill_file| !spill_file.is_unused());
        Some(spill_file.map_or(backlog.start(), |spill_file| spill_file.start().min(backlog.start())))
    }

    /// Keeps at most `len` bytes of the backlog in memory, and has the rest written to disk. Without a file,
    /// up to `len_without` bytes stay in memory before that is an error.
    fn spill_file(
        &mut self,
        len: u64,
        len_without: u64,
        create: impl FnOnce(u64) -> io::Result<SpillFile>,
    ) -> io::Result<()> {
        let beyond = self.backlog.as_mut().filter(|backlog| backlog.len() > len);
        let spill_file = match (&mut self.spill_file, &beyond) {
            (Some(spill_file), _) => spill_file,
            (None, None) => return Ok(()),
            (none, Some(backlog)) => none.insert(create(backlog.start())?),
        };
        match spill_file.is_open() {
            Ok(true) => {}
            Err(error) if !spill_file.is_unused() => return Err(error), // its bytes are lost
            _ if beyond.as_ref().is_none_or(|backlog| backlog.len() <= len_without) => return Ok(()),
            Ok(false) => {} // in memory, on its way to the disk
            Err(error) => return Err(error),
        }
        if let Some(backlog) = beyond {
            spill_file.append(backlog.start(), backlog.take_oldest(len));
            backlog.give_back(spill_file.written());
        }
        Ok(())
    }

    /// Frees the bytes that are neither among the last `size` bytes nor needed by a replica that reads at one
    /// of the offsets `readers`.
    fn trim(&mut self, size: u64, readers: &[u64]) {
        let Some(backlog) = &mut self.backlog else { return };
        let needed = readers.iter().copied().min();
        backlog.trim(size, needed);
        let is_needed = |spill_file: &SpillFile| match spill_file.is_unused() {
            true => backlog.len() > size + BLOCK as u64,
            false => needed < Some(backlog.start()),
        };
        if needed.is_none() || !self.spill_file.as_ref().is_some_and(is_needed) {
            self.spill_file = None;
        } else if let (Some(spill_file), Some(needed)) = (&mut self.spill_file, needed) {
            spill_file.trim(needed, readers);
        }
    }

    /// Appends bytes. Without a backlog they are only counted.
    pub fn append(&mut self, bytes: &[u8]) {
        if let Some(backlog) = &mut self.backlog {
            backlog.append(bytes);
        }
        self.offset += bytes.len() as u64;
    }

    /// Keeps the bytes from now on. Earlier bytes cannot be sent to any replica, so this is another history.
    pub fn keep(&mut self) {
        if self.backlog.is_none() {
            self.history = History::random();
            self.backlog = Some(Backlog::new(self.offset));
        }
    }

    /// Keeps nothing any more: the coming bytes belong to a history that no other server knows.
    pub fn forget(&mut self) {
        self.spill_file = None;
        if self.backlog.take().is_some() {
            self.history = History::random();
        }
    }

    /// The same for a stream without bytes that replicas still need: they must ask again.
    fn abandon(&mut self) {
        self.forget();
        self.era += 1;
    }

    /// Continues another server's history at this offset, and keeps the bytes.
    pub fn restart(&mut self, history: History, offset: u64) {
        *self = Stream {
            history,
            offset,
            backlog: Some(Backlog::new(offset)),
            spill_file: None,
            era: self.era + 1,
            is_at_rest: self.is_at_rest,
        };
    }

    /// Whether a replica with the first `bytes` bytes of history `id` needs no bytes but the kept ones.
    pub fn can_continue(&self, id: &[u8], bytes: u64) -> bool {
        let is_kept = self.start().is_some_and(|start| (start..=self.offset).contains(&bytes));
        self.history.includes(id, bytes) && is_kept
    }
}

impl Replication {
    /// Bytes received from the primary, and bytes sent to replicas.
    pub fn traffic(&self) -> (u64, u64) {
        (self.link.metrics.bytes_in.load(Relaxed), self.metrics.sent.load(Relaxed))
    }

    /// Creates the state of a primary without replicas, and without a host. `table` has the commands under
    /// their configured names.
    ///
    /// # Errors
    /// The process has no more descriptors.
    pub fn new(
        (core, hub): (Arc<Core>, Arc<Hub>),
        (scripts, persist): (Arc<Scripts>, Arc<Persist>),
        tls: Arc<Tls>,
        table: &'static Table,
    ) -> io::Result<Replication> {
        Ok(Replication {
            ctx: Mutex::new(core.keyspace.thread_context()),
            core,
            hub,
            scripts,
            persist,
            tls,
            table,
            host: OnceLock::new(),
            stream: Mutex::new(Stream::new()),
            is_replica: AtomicBool::new(false),
            link: PrimaryLink::new(),
            failover: Failover::default(),
            replicas: Replicas::default(),
            replica_inbox: ReplicaInbox::new()?,
            members: Members::default(),
            moves: Moves::default(),
            acks: Acks::default(),
            end: Mutex::new(None),
            reading: Reading::default(),
            reader: Mutex::new(None),
            place: AtomicUsize::new(0),
            sync_behind: AtomicU64::new(NEVER),
            sync_at: AtomicU64::new(NEVER),
            acks_wanted: AtomicU64::new(0),
            wants_acks: AtomicBool::new(false),
            streamed: AtomicU64::new(0),
            metrics: ReplicationMetrics::default(),
        })
    }

    /// Sets the host, once.
    pub fn set_host(&self, host: Weak<dyn Host>) {
        let is_first = self.host.set(host).is_ok();
        debug_assert!(is_first, "a server has one host");
    }

    /// Returns the host. A thread that calls this has had the host from its start, so the host still exists.
    fn host(&self) -> Arc<dyn Host> {
        self.host.get().and_then(Weak::upgrade).expect("this thread has kept it")
    }

    /// Whether this server is a replica.
    #[inline]
    pub fn is_replica(&self) -> bool {
        self.is_replica.load(Relaxed)
    }

    /// Sets the role. Called while the gate is closed, since permission and logging of a write depend on it.
    pub fn set_replica(&self, is_replica: bool) {
        server_log::set_replica(is_replica);
        self.is_replica.store(is_replica, Relaxed);
    }

    /// Locks the stream. The replication thread may hold the lock for a system call that sends a megabyte.
    pub fn stream(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock()
    }

    /// Calls `f` with all locks held, without waiting for a running snapshot.
    fn with_all_held<R>(&self, f: impl FnOnce(&mut SlotGuard<'_>) -> R) -> R {
        let (mut ctx, keyspace) = (self.ctx.lock(), &self.core.keyspace);
        keyspace.enter(&mut ctx);
        let result = f(&mut keyspace.hold_all(&mut ctx));
        keyspace.leave(&mut ctx);
        result
    }

    /// Waits until the stream has all published records, at most [`CATCH_UP_MAX`], which a client does not
    /// notice. A client that asks for the offset right after a write expects an offset behind that write.
    pub fn catch_up(&self, journal: &Journal) {
        let (published, place) = (journal.published(), self.place.load(Relaxed));
        if !self.reading.is_any() || journal.has_read(place, published) {
            return;
        }
        self.replica_inbox.nudge();
        let began = Instant::now();
        while !journal.has_read(place, published) && began.elapsed() < CATCH_UP_MAX {
            std::thread::sleep(CATCH_UP_POLL_INTERVAL);
        }
    }

    /// Makes the stream from the journal, if it is not already. The caller holds all locks.
    pub fn follow_log(&self, guard: &mut SlotGuard<'_>) {
        if !self.reading.is_any() {
            let reader = guard.join_log_for_replicas();
            self.place.store(reader.place(), Relaxed);
            *self.reader.lock() = Some(reader);
            self.reading.set(Reading::RUNNING);
        }
    }

    /// Ends the making of the stream from the journal. The caller holds all locks, and calls
    /// [`Replication::wait_for_end_of_log`] before it relies on the stream being as far as the data.
    pub fn leave_log(&self, guard: &mut SlotGuard<'_>) {
        if self.reading.is_running() {
            guard.dismiss(self.place.load(Relaxed));
            self.reading.set(Reading::ENDS);
        }
    }

    /// Waits until all records from before [`Replication::leave_log`] are in the stream, at most
    /// `timeout`. Returns whether they are. The replication thread needs no gate for that, so the caller may
    /// hold all locks.
    pub fn wait_for_end_of_log(&self, timeout: Duration) -> bool {
        let began = Instant::now();
        while self.reading.ends() && began.elapsed() < timeout {
            self.replica_inbox.nudge();
            std::thread::sleep(Duration::from_millis(1));
        }
        !self.reading.ends()
    }

    /// Ends the stream and returns its last point, if this server makes and keeps it. Replicas that are there
    /// can follow a server that loads the snapshot of this moment, without a snapshot of their own. The
    /// caller holds all locks, and nothing is written afterwards, unless [`Replication::resume_stream`]
    /// is called.
    pub fn finish(&self, guard: &mut SlotGuard<'_>) -> Option<Position> {
        let mut end = self.end.lock();
        let is_known = end.as_ref().is_some_and(|end| end.point.is_some());
        if !is_known && self.reading.is_any() && !self.is_replica() {
            let dirty = end.as_ref().map_or_else(|| guard.keyspace().total().dirty, |end| end.dirty);
            // A later removal would not reach the replicas.
            guard.hide_expired(true);
            self.leave_log(guard);
            let is_whole = self.wait_for_end_of_log(link::JOURNAL_TIMEOUT);
            let stream = self.stream();
            let point = (is_whole && stream.backlog.is_some()).then(|| {
                // The next bytes begin with a SELECT, since they begin another stream.
                let position = Position { id: stream.history.id.clone(), offset: stream.offset, db: 0 };
                Point { record: guard.keyspace().journal.last(), position }
            });
            *end = Some(End { point, dirty });
        }
        end.as_ref().and_then(|end| Some(end.point.as_ref()?.position.clone()))
    }

    /// Stops the server at a moment whose point, if known, is given to `stop`.
    pub fn stop(&self, stop: impl FnOnce(Option<Point>)) {
        self.with_all_held(|guard| {
            if !self.is_replica() {
                self.finish(guard);
                return stop(self.end.lock().as_ref().and_then(|end| end.point.clone()));
            }
            let record = guard.keyspace().journal.last();
            stop(self.link.position(self).map(|position| Point { record, position }));
        });
    }

    /// Continues the stream that [`Replication::finish`] has ended, since the server stays.
    pub fn resume_stream(self: &Arc<Replication>) {
        self.with_all_held(|guard| {
            let end = self.end.lock().take();
            if self.is_replica() {
                return;
            }
            guard.hide_expired(self.failover.is_under_way());
            if self.stream().backlog.is_some() {
                // Writes were paused. A write that was made all the same is in no stream.
                let is_same = end.is_none_or(|end| end.dirty == guard.keyspace().total().dirty);
                if self.wait_for_end_of_log(link::JOURNAL_TIMEOUT) && is_same {
                    self.follow_log(guard);
                } else {
                    self.stream().abandon();
                }
            }
        });
        // Without a replica, the replication thread has ended with its reader.
        if self.reading.is_any()
            && let Err(error) = self.replica_inbox.open(self)
        {
            log::warn!("Cannot start the replication thread: {error}");
        }
    }

    /// Refuses writes while there are too few good replicas, or allows them. Returns whether it refuses them.
    pub fn follow(&self, settings: &Settings) -> bool {
        let (least, lag) = (settings.min_replicas_to_write, settings.min_replicas_max_lag);
        let asks = least > 0 && lag > 0 && !self.is_replica();
        let lacks = asks && self.replicas.count_good(u64::from(lag), clock::unix_ms()) < least as usize;
        if lacks != self.core.blockers.any().contains(Blockers::NO_REPLICAS) {
            self.core.blockers.set(Blockers::NO_REPLICAS, lacks);
        }
        lacks
    }

    /// Waits until the replication thread has sent all that the sockets take, after the server has stopped.
    pub fn wait_for_end(&self) {
        let began = Instant::now();
        while self.replica_inbox.is_open() && began.elapsed() < Duration::from_secs(1) {
            self.replica_inbox.nudge();
            std::thread::sleep(Duration::from_millis(1));
        }
        debug_assert!(self.core.stopping.load(Acquire));
    }

    /// At the end of the server, while writes are paused: waits until all replicas have everything, the
    /// timeout passes, or the end is aborted.
    pub fn wait_for_replicas(&self, timeout: Duration, is_aborted: impl Fn() -> bool) {
        let began = Instant::now();
        let (mut waits, mut count, mut behind) = (false, 0, Vec::new());
        // Of a primary's stream they get the present bytes: that stream goes on, and does not end here.
        let offset = self.stream().offset();
        while self.replica_inbox.is_open() {
            let (last, is_replica) = (self.core.keyspace.journal.last(), self.is_replica());
            behind = self.replicas.list();
            behind.retain(|replica| replica.is_online());
            count = behind.len();
            behind.retain(|replica| match is_replica {
                true => replica.acked() < offset,
                false => replica.acked_record() < last,
            });
            if behind.is_empty() || began.elapsed() >= timeout {
                break;
            }
            if is_aborted() {
                return;
            }
            if !std::mem::replace(&mut waits, true) {
                log::info!("Waiting for replicas before shutting down.");
            }
            self.ask_for_acks(last);
            std::thread::sleep(Duration::from_millis(2));
        }
        let (offset, now_ms) = (self.stream().offset(), clock::unix_ms());
        for replica in &behind {
            let (name, lag_s, state) = (replica.name(), replica.lag_s(now_ms), replica.progress().name());
            let bytes = offset.saturating_sub(replica.acked());
            log::info!(
                "Lagging replica {name} reported offset {bytes} behind master, lag={lag_s}, state={state}."
            );
        }
        if count > 0 {
            let in_sync = count - behind.len();
            log::info!("{in_sync} of {count} replicas are in sync when shutting down.");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_match_up_to_their_branch() {
        let mut history = History::named("a".repeat(40));
        assert_eq!(history.second(), ("0".repeat(40), -1));
        assert!(history.includes(&[b'A'; 40], u64::MAX), "in any case");
        history.branch(10, "b".repeat(40));
        assert!(history.includes(&[b'b'; 40], 99));
        assert!(history.includes(&[b'a'; 40], 10) && !history.includes(&[b'a'; 40], 11));
        assert_eq!(history.second(), ("a".repeat(40), 11));
        history.branch(20, "c".repeat(40));
        assert!(!history.includes(&[b'a'; 40], 10), "only the last name is remembered");
        assert!(!history.includes(b"", 0) && !history.includes(b"?", 0));
    }

    #[test]
    fn streams_are_kept_from_the_first_request() {
        let mut stream = Stream::new();
        stream.append(b"nobody listens");
        let id = stream.history.id.clone();
        assert!(!stream.can_continue(id.as_bytes(), 14));
        stream.keep();
        assert_ne!(stream.history.id, id, "what came before is lost");
        let id = stream.history.id.clone();
        stream.append(b"more");
        stream.keep();
        assert_eq!((stream.offset(), &stream.history.id), (18, &id));
        assert!(stream.can_continue(id.as_bytes(), 14) && stream.can_continue(id.as_bytes(), 18));
        assert!(!stream.can_continue(id.as_bytes(), 13) && !stream.can_continue(id.as_bytes(), 19));
        assert!(!stream.can_continue(&[b'x'; 40], 14));
        stream.forget();
        assert!(stream.backlog().is_none() && !stream.can_continue(id.as_bytes(), 18));
        stream.restart(History::named("d".repeat(40)), 1_000);
        stream.append(b"verbatim");
        assert_eq!(stream.backlog().map(Backlog::start), Some(1_000));
        assert!(stream.can_continue(&[b'd'; 40], 1_008));
    }

    /// No client should write while the server is about to stop. Such a write is in no stream, so replicas
    /// must begin anew.
    #[test]
    fn an_aborted_shutdown_keeps_the_stream_without_writes() {
        let state = testing::Single::new(&[]);
        state.stream().keep();
        state.with_all_held(|guard| state.follow_log(guard));
        state.replica_inbox.open(&state).expect("a thread more");
        let end_in_vain = |writes: bool| {
            state.write();
            let id = state.stream().history.id.clone();
            let position = state.with_all_held(|guard| state.finish(guard)).expect("it is kept");
            if writes {
                state.write();
            }
            state.resume_stream();
            let stream = state.stream();
            stream.can_continue(id.as_bytes(), position.offset)
        };
        assert!(end_in_vain(false));
        assert!(end_in_vain(false));
        assert!(!end_in_vain(true));
    }

    /// The replication thread may end the reader as soon as it sees that the reader is dismissed.
    #[test]
    fn a_dismissed_reader_is_ending() {
        const TIMES: usize = 500_000;
        let state = testing::Single::new(&[]);
        let keyspace = &state.core.keyspace;
        std::thread::scope(|scope| {
            let feeder = scope.spawn(|| {
                for _ in 0..TIMES {
                    while !state.reading.ends() {
                        std::hint::spin_loop();
                    }
                    let reader = state.reader.lock().take().expect("it was there before");
                    assert_eq!(reader.unread(&keyspace.journal), 0);
                    reader.end(&keyspace.journal);
                    state.reading.set(Reading::NONE);
                }
            });
            for _ in 0..TIMES {
                let mut ctx = state.ctx.lock();
                keyspace.enter(&mut ctx);
                let mut guard = keyspace.hold_all(&mut ctx);
                state.follow_log(&mut guard);
                state.leave_log(&mut guard);
                drop(guard);
                keyspace.leave(&mut ctx);
                drop(ctx);
                while !feeder.is_finished() && !state.wait_for_end_of_log(Duration::ZERO) {
                    std::hint::spin_loop();
                }
            }
            feeder.join().expect("nobody ends who has not been dismissed");
        });
    }
}
