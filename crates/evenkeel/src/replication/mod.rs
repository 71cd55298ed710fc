//! Replication: this server's place among those that hold the same data, and the stream of writes that they share.
//!
//! A stream is a sequence of bytes: Redis commands, each of which has an offset, under the name of a history. Whoever has
//! all of a history up to an offset holds the same data as anybody else who has. A primary makes the stream of its log
//! ([`evenkeel_store::journal`]); a replica gets it over its link and passes it on, byte by byte, to replicas of its own. So a
//! replica that becomes a primary goes on with the same offsets under a new name, and remembers under which name, and how
//! far, its history was somebody else's ([`History::branch`]).
//!
//! [`State`] is what both halves share: [`Stream`] under one lock, which is held by whoever appends or sends, never for
//! longer than one system call that does not wait. No serving thread takes it on the path of a command.

mod addresses;
mod apply;
pub(crate) mod backlog;
pub(crate) mod failover;
mod feed;
mod handshake;
mod install;
pub(crate) mod link;
mod primary_connection;
mod receive;
mod replica_connection;
mod replica_inbox;
pub(crate) mod replicas;
mod snapshot_pipe;
mod spill_file;
mod sync;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

use evenkeel_store::journal::{Journal, Reader};
use evenkeel_store::{SlotGuard, ThreadContext};
use parking_lot::{Mutex, MutexGuard};

use crate::config::Settings;
use crate::persist::NO_REPLICAS;
use crate::server::Server;
use backlog::{BLOCK, Backlog};
use evenkeel_runtime::clock;
use evenkeel_runtime::random::random_hex;
use failover::Failover;
use link::{Position, PrimaryLink};
use replica_inbox::ReplicaInbox;
use replicas::Replicas;
use spill_file::SpillFile;

/// Longest that somebody waits who asks for the stream's offset, and how often it is looked at.
const CATCH_UP_MAX: Duration = Duration::from_millis(10);
const CATCH_UP_LOOK: Duration = Duration::from_micros(50);

/// No full sync is beginning.
const NEVER: u64 = u64::MAX;

/// See the module's text.
pub(crate) struct State {
    stream: Mutex<Stream>,
    is_replica: AtomicBool,
    /// To the primary, where there is one.
    pub(crate) link: PrimaryLink,
    pub(crate) failover: Failover,
    pub(crate) replicas: Replicas,
    pub(crate) replica_inbox: ReplicaInbox,
    /// For whoever of this module needs everything held.
    ctx: Mutex<ThreadContext>,
    /// Set once the stream that this server makes has ended for good.
    end: Mutex<Option<End>>,
    /// The stream is made of the log, by a reader that lies here until the feeding thread takes it, and at this place of the
    /// log.
    reading: Reading,
    reader: Mutex<Option<Reader>>,
    place: AtomicUsize,
    /// The last record that is in the snapshot of the full sync that has just begun, or [`NEVER`].
    sync_behind: AtomicU64,
    /// The offset at which it begins, where the stream is not made of the log, or [`NEVER`].
    sync_at: AtomicU64,
    /// Somebody waits for replicas to have the log up to this record.
    acks_wanted: AtomicU64,
    wants_acks: AtomicBool,
    pub(crate) figures: Figures,
}

/// Whether the stream is made of the log: not at all, from what is written, or from what was written before the reader was
/// dismissed, until it has read that. Who holds everything begins it and dismisses the reader, and only then says so here,
/// since the feeding thread may end the reader at that moment; only that thread says that it has ended.
#[derive(Default)]
struct Reading(AtomicU8);

impl Reading {
    const NONE: u8 = 0;
    const GOES_ON: u8 = 1;
    const ENDS: u8 = 2;

    fn is_any(&self) -> bool {
        self.0.load(Acquire) != Reading::NONE
    }

    fn goes_on(&self) -> bool {
        self.0.load(Acquire) == Reading::GOES_ON
    }

    fn ends(&self) -> bool {
        self.0.load(Acquire) == Reading::ENDS
    }

    fn set(&self, reading: u8) {
        self.0.store(reading, Release);
    }
}

/// For INFO. CONFIG RESETSTAT resets what counts, and not what is.
#[derive(Default)]
pub(crate) struct Figures {
    pub(crate) full: AtomicU64,
    pub(crate) partial: AtomicU64,
    pub(crate) partial_refused: AtomicU64,
    /// Bytes sent to replicas.
    pub(crate) sent: AtomicU64,
    /// Bytes of memory of the stream that are kept only until some replica has them.
    pub(crate) beyond: AtomicU64,
    /// Bytes of the stream that are on disk until a replica has them.
    pub(crate) on_disk: AtomicU64,
    /// Bytes of snapshots that are being sent: in memory, and on disk for those who are slower than others.
    pub(crate) in_pipes: AtomicU64,
    pub(crate) spilled: AtomicU64,
    /// Full syncs whose snapshot is being taken, or has yet to be sent to the end.
    pub(crate) syncing: AtomicU64,
}

impl Figures {
    pub(crate) fn reset(&self) {
        for count in [&self.full, &self.partial, &self.partial_refused, &self.sent] {
            count.store(0, Relaxed);
        }
    }
}

/// Where the log and the stream meet: whoever has the log up to this record has the data of this position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) record: u64,
    pub(crate) position: Position,
}

/// How the stream of a server ended that is about to stop.
#[derive(Debug)]
struct End {
    /// Its last point; `None` if it lacks what was logged last, or is not kept.
    point: Option<Point>,
    /// Changes of the data up to then.
    dirty: u64,
}

/// The names of the history that this server holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct History {
    /// Forty hexadecimal digits.
    pub(crate) id: String,
    /// The name that the history had before, and how many bytes of it are the same.
    pub(crate) former: Option<(String, u64)>,
}

impl History {
    /// One that nobody else has.
    pub(crate) fn new() -> History {
        History::named(random_hex())
    }

    /// Somebody else's.
    pub(crate) fn named(id: String) -> History {
        History { id, former: None }
    }

    /// Goes on under another name from this offset on. Who has no more than that of the history so far may follow.
    pub(crate) fn branch(&mut self, offset: u64, id: String) {
        self.former = Some((std::mem::replace(&mut self.id, id), offset));
    }

    /// Whether the first so many bytes of the history of this name are those of this one.
    pub(crate) fn includes(&self, id: &[u8], bytes: u64) -> bool {
        let is = |name: &str| name.as_bytes().eq_ignore_ascii_case(id);
        is(&self.id) || self.former.as_ref().is_some_and(|(name, until)| is(name) && bytes <= *until)
    }

    /// The former name as Redis shows it, and the number of the first byte that is not the same, counted from one.
    pub(crate) fn second(&self) -> (String, i64) {
        match &self.former {
            Some((name, until)) => (name.clone(), i64::try_from(*until).map_or(i64::MAX, |until| until + 1)),
            None => ("0".repeat(self.id.len()), -1),
        }
    }
}

/// The stream so far: how it is called, how long it is, and its last stretch.
pub(crate) struct Stream {
    pub(crate) history: History,
    /// Bytes so far. Equal to the backlog's end where there is one.
    offset: u64,
    backlog: Option<Backlog>,
    /// How often it has begun anew, or got another name: what replicas have been told of it is no longer so.
    era: u64,
    /// What lies before the backlog, and is needed for a full sync.
    spill_file: Option<SpillFile>,
    /// A replica is to come to its end: but for what is logged, nothing more is put in.
    is_at_rest: bool,
}

impl Stream {
    fn new() -> Stream {
        Stream {
            history: History::new(),
            offset: 0,
            backlog: None,
            era: 0,
            spill_file: None,
            is_at_rest: false,
        }
    }

    pub(crate) fn era(&self) -> u64 {
        self.era
    }

    /// The history goes on under another name. Replicas have to ask anew, to learn it.
    pub(crate) fn rename(&mut self, id: String) {
        self.history.branch(self.offset, id);
        self.era += 1;
    }

    /// How many bytes there have been.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    pub(crate) fn backlog(&self) -> Option<&Backlog> {
        self.backlog.as_ref()
    }

    /// Bytes of memory of what is kept, with what the disk has not taken yet.
    pub(crate) fn memory(&self) -> u64 {
        self.backlog.as_ref().map_or(0, Backlog::memory)
            + self.spill_file.as_ref().map_or(0, SpillFile::memory)
    }

    /// The offset of the first byte that is kept, in memory or on disk, if any are.
    pub(crate) fn start(&self) -> Option<u64> {
        let backlog = self.backlog.as_ref()?;
        let spill_file = self.spill_file.as_ref().filter(|spill_file| !spill_file.is_unused());
        Some(spill_file.map_or(backlog.start(), |spill_file| spill_file.start().min(backlog.start())))
    }

    /// Keeps at most so many bytes of the backlog in memory, and has the rest written to disk; where there is no file for it, up to
    /// `len_without` in memory, before that is an error.
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
            Err(error) if !spill_file.is_unused() => return Err(error), // what it had is lost
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

    /// Lets go of all that is neither among the last `size` bytes nor needed by those who have still to be sent what comes from
    /// these offsets on.
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

    /// What comes next. Where nothing is kept, it is only counted.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        if let Some(backlog) = &mut self.backlog {
            backlog.append(bytes);
        }
        self.offset += bytes.len() as u64;
    }

    /// Keeps what comes from now on. What came before nobody can be sent, so it is another history.
    pub(crate) fn keep(&mut self) {
        if self.backlog.is_none() {
            self.history = History::new();
            self.backlog = Some(Backlog::new(self.offset));
        }
    }

    /// Keeps nothing any more: what comes now nobody will ever have had before.
    pub(crate) fn forget(&mut self) {
        self.spill_file = None;
        if self.backlog.take().is_some() {
            self.history = History::new();
        }
    }

    /// The same where it lacks what replicas are still to get: they have to ask anew.
    fn give_up(&mut self) {
        self.forget();
        self.era += 1;
    }

    /// Goes on with somebody else's history at this offset, and keeps what comes.
    pub(crate) fn restart(&mut self, history: History, offset: u64) {
        *self = Stream {
            history,
            offset,
            backlog: Some(Backlog::new(offset)),
            spill_file: None,
            era: self.era + 1,
            is_at_rest: self.is_at_rest,
        };
    }

    /// Whether somebody who has the first so many bytes of a history needs nothing but what is kept.
    pub(crate) fn can_continue(&self, id: &[u8], bytes: u64) -> bool {
        let is_kept = self.start().is_some_and(|start| (start..=self.offset).contains(&bytes));
        self.history.includes(id, bytes) && is_kept
    }
}

impl State {
    /// Bytes that came from the primary, and bytes that went to replicas.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (self.link.figures.bytes_in.load(Relaxed), self.figures.sent.load(Relaxed))
    }

    pub(crate) fn new(ctx: ThreadContext) -> io::Result<State> {
        Ok(State {
            stream: Mutex::new(Stream::new()),
            is_replica: AtomicBool::new(false),
            link: PrimaryLink::new(),
            failover: Failover::default(),
            replicas: Replicas::default(),
            replica_inbox: ReplicaInbox::new()?,
            ctx: Mutex::new(ctx),
            end: Mutex::new(None),
            reading: Reading::default(),
            reader: Mutex::new(None),
            place: AtomicUsize::new(0),
            sync_behind: AtomicU64::new(NEVER),
            sync_at: AtomicU64::new(NEVER),
            acks_wanted: AtomicU64::new(0),
            wants_acks: AtomicBool::new(false),
            figures: Figures::default(),
        })
    }

    /// Whether this server follows another one.
    #[inline]
    pub(crate) fn is_replica(&self) -> bool {
        self.is_replica.load(Relaxed)
    }

    /// To be called behind the closed gate: whether a write may be made, and who logs it, depends on it.
    pub(crate) fn set_replica(&self, is_replica: bool) {
        self.is_replica.store(is_replica, Relaxed);
    }

    /// The stream, which the feeding thread may hold for as long as a system call takes that sends a megabyte.
    pub(crate) fn stream(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock()
    }

    /// Does something with everything held, and does not wait for a snapshot that is being taken.
    fn with_all_held<R>(&self, server: &Server, f: impl FnOnce(&mut SlotGuard<'_>) -> R) -> R {
        let (mut ctx, keyspace) = (self.ctx.lock(), &server.keyspace);
        keyspace.enter(&mut ctx);
        let result = f(&mut keyspace.hold_all(&mut ctx));
        keyspace.leave(&mut ctx);
        result
    }

    /// Waits, for so long at most as a client does not notice, until the stream has what clients have been told is done: who asks
    /// for an offset right after a write means one behind it.
    pub(crate) fn catch_up(&self, journal: &Journal) {
        let (laid, place) = (journal.published(), self.place.load(Relaxed));
        if !self.reading.is_any() || journal.has_read(place, laid) {
            return;
        }
        self.replica_inbox.nudge();
        let began = Instant::now();
        while !journal.has_read(place, laid) && began.elapsed() < CATCH_UP_MAX {
            std::thread::sleep(CATCH_UP_LOOK);
        }
    }

    /// The stream is made of the log from now on, if it is not already. Everything is held.
    pub(crate) fn follow_log(&self, guard: &mut SlotGuard<'_>) {
        if !self.reading.is_any() {
            let reader = guard.join_log_for_replicas();
            self.place.store(reader.place(), Relaxed);
            *self.reader.lock() = Some(reader);
            self.reading.set(Reading::GOES_ON);
        }
    }

    /// The stream is not made of the log any more. Everything is held; [`State::wait_for_end_of_log`] before anybody counts
    /// on that the stream is as far as the data.
    pub(crate) fn leave_log(&self, guard: &mut SlotGuard<'_>) {
        if self.reading.goes_on() {
            guard.dismiss(self.place.load(Relaxed));
            self.reading.set(Reading::ENDS);
        }
    }

    /// Waits until all that was logged for replicas is in the stream, the log having been left, for so long at most; whether
    /// it is. The thread that brings it there needs no gate for that, so everything may be held.
    pub(crate) fn wait_for_end_of_log(&self, patience: Duration) -> bool {
        let began = Instant::now();
        while self.reading.ends() && began.elapsed() < patience {
            self.replica_inbox.nudge();
            std::thread::sleep(Duration::from_millis(1));
        }
        !self.reading.ends()
    }

    /// The last point of the stream, if this server makes it and keeps it: replicas that are there may follow whoever loads
    /// the snapshot of this moment without another one. Everything is held, and nobody writes any more, unless
    /// [`State::go_on`] is called.
    pub(crate) fn finish(&self, guard: &mut SlotGuard<'_>) -> Option<Position> {
        let mut end = self.end.lock();
        let is_known = end.as_ref().is_some_and(|end| end.point.is_some());
        if !is_known && self.reading.is_any() && !self.is_replica() {
            let dirty = end.as_ref().map_or_else(|| guard.keyspace().total().dirty, |end| end.dirty);
            // What is removed from here on, replicas would not hear of.
            guard.hide_expired(true);
            self.leave_log(guard);
            let is_whole = self.wait_for_end_of_log(link::LOG_PATIENCE);
            let stream = self.stream();
            let point = (is_whole && stream.backlog.is_some()).then(|| {
                // What comes next begins with a database, since it begins another stream.
                let position = Position { id: stream.history.id.clone(), offset: stream.offset, db: 0 };
                Point { record: guard.keyspace().journal.last(), position }
            });
            *end = Some(End { point, dirty });
        }
        end.as_ref().and_then(|end| Some(end.point.as_ref()?.position.clone()))
    }

    /// Stops the server at one moment, of which `stop` is told where it is in the stream, if that is known.
    pub(crate) fn stop(&self, server: &Server, stop: impl FnOnce(Option<Point>)) {
        self.with_all_held(server, |guard| {
            if !self.is_replica() {
                self.finish(guard);
                return stop(self.end.lock().as_ref().and_then(|end| end.point.clone()));
            }
            let record = guard.keyspace().journal.last();
            stop(self.link.position(server).map(|position| Point { record, position }));
        });
    }

    /// The end does not come: what [`State::finish`] has ended goes on.
    pub(crate) fn go_on(&self, server: &Arc<Server>) {
        self.with_all_held(server, |guard| {
            let end = self.end.lock().take();
            if self.is_replica() {
                return;
            }
            guard.hide_expired(self.failover.is_under_way());
            if self.stream().backlog.is_some() {
                // Writes were paused; but one that came all the same is in no stream.
                let is_same = end.is_none_or(|end| end.dirty == guard.keyspace().total().dirty);
                if self.wait_for_end_of_log(link::LOG_PATIENCE) && is_same {
                    self.follow_log(guard);
                } else {
                    self.stream().give_up();
                }
            }
        });
        // Without a replica, its thread has ended with its reader.
        if self.reading.is_any()
            && let Err(error) = self.replica_inbox.open(server)
        {
            server.log.warning(format!("Cannot start the replication thread: {error}"));
        }
    }

    /// Refuses writes, or no longer, as there are enough good replicas or not; whether it refuses them.
    pub(crate) fn follow(&self, server: &Server, settings: &Settings) -> bool {
        let (least, lag) = (settings.min_replicas_to_write, settings.min_replicas_max_lag);
        let asks = least > 0 && lag > 0 && !self.is_replica();
        let lacks = asks && self.replicas.count_good(u64::from(lag), clock::unix_ms()) < least as usize;
        if lacks != (server.persist.blockers.any() & NO_REPLICAS != 0) {
            server.persist.blockers.set(NO_REPLICAS, lacks);
        }
        lacks
    }

    /// Waits until the feeding thread has sent what the sockets take, the server being stopped.
    pub(crate) fn wait_for_end(&self, server: &Server) {
        let began = Instant::now();
        while self.replica_inbox.is_open() && began.elapsed() < Duration::from_secs(1) {
            self.replica_inbox.nudge();
            std::thread::sleep(Duration::from_millis(1));
        }
        debug_assert!(server.stopping.load(Acquire));
    }

    /// At the end of the server, writes being paused: waits until all replicas have all, or for so long, or until nobody
    /// wants the end any more.
    pub(crate) fn wait_for_replicas(
        &self,
        server: &Arc<Server>,
        timeout: Duration,
        is_aborted: impl Fn() -> bool,
    ) {
        let began = Instant::now();
        let (mut waits, mut count, mut behind) = (false, 0, Vec::new());
        // Of somebody else's stream they get what there is by now: it goes on, and is no end of ours.
        let offset = self.stream().offset();
        while self.replica_inbox.is_open() {
            let (last, is_replica) = (server.keyspace.journal.last(), self.is_replica());
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
                server.log.notice("Waiting for replicas before shutting down.");
            }
            self.ask_for_acks(last);
            std::thread::sleep(Duration::from_millis(2));
        }
        let (offset, now_ms) = (self.stream().offset(), clock::unix_ms());
        for replica in &behind {
            let (name, lag_s, state) = (replica.name(), replica.lag_s(now_ms), replica.progress().name());
            let bytes = offset.saturating_sub(replica.acked());
            server.log.notice(format!(
                "Lagging replica {name} reported offset {bytes} behind master, lag={lag_s}, state={state}."
            ));
        }
        if count > 0 {
            let in_sync = count - behind.len();
            server.log.notice(format!("{in_sync} of {count} replicas are in sync when shutting down."));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_followed_as_far_as_it_is_the_same() {
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
    fn a_stream_is_kept_from_a_moment_on() {
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

    /// Nobody should write while the server is about to stop. Who did is in no stream, so replicas have to begin anew.
    #[test]
    fn an_end_that_does_not_come_leaves_the_stream_if_nothing_was_written() {
        let live = crate::testing::live::Live::start(1, &[]);
        let (server, state) = (&live.server, &live.server.replication);
        let mut client = live.connect();
        state.stream().keep();
        state.with_all_held(server, |guard| state.follow_log(guard));
        state.replica_inbox.open(server).expect("a thread more");
        let mut end_in_vain = |write: &str| {
            assert!(!client.run("SET k before").is_error());
            let id = state.stream().history.id.clone();
            let position = state.with_all_held(server, |guard| state.finish(guard)).expect("it is kept");
            assert!(!client.run(write).is_error());
            state.go_on(server);
            let stream = state.stream();
            stream.can_continue(id.as_bytes(), position.offset)
        };
        assert!(end_in_vain("GET k"));
        assert!(end_in_vain("GET k"));
        assert!(!end_in_vain("SET k after"));
        live.stop();
    }

    /// Who ends the reader may do so as soon as it is said that it is dismissed.
    #[test]
    fn a_reader_is_said_to_end_when_it_is_dismissed() {
        const TIMES: usize = 500_000;
        let keyspace = evenkeel_store::Keyspace::new(1, 2, 0, 7);
        let state = State::new(keyspace.thread_context()).expect("there are descriptors");
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
