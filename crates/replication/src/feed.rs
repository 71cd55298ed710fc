//! The replication thread: it makes the stream from the journal, and sends it to the replicas.
//!
//! It is a single thread with an `epoll` of its own. No serving thread sends anything to a replica, copies
//! anything for a replica, or wakes this thread after a write. The thread polls every few milliseconds, takes
//! the published records, appends them to the backlog, and gives each socket as much as it takes, up to a
//! megabyte in a system call. A replica with a full socket is left alone until it has room, and delays no
//! other replica. `client-output-buffer-limit replica` limits how far a replica may fall behind before it is
//! dropped.
//!
//! The thread lives from the first replica on, until a primary has had no replica for `repl-backlog-ttl`.
//! Before and afterwards the journal has no reader for replicas, which then cost nothing.

mod arrivals;
mod full;
mod rounds;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use evenkeel_store::journal::Reader;

use super::Replication;
use super::backlog::BLOCK;
use super::replica_connection::{ReplicaConnection, Stage};
use super::snapshot_pipe::SnapshotPipe;
use super::spill_file::SpillFile;
use super::{Reading, Stream};
use evenkeel_config::Settings;
use evenkeel_net::poll::Poll;
use evenkeel_runtime::clock;
use evenkeel_runtime::threads;
use full::{Sync, place_sync};

/// Poll interval while there is something to send: the least lag of a replica.
const POLL_MS: i32 = 2;

/// Poll interval while writers fill more than a core's own cache in that time: their pages are still cached
/// when they are read, and so are the pages they write next.
const BUSY_POLL_MS: i32 = 1;
const BUSY_LEN: usize = 256 * 1024;

/// Poll interval after a while without records.
const IDLE_POLL_MS: i32 = 10;
const IDLE: Duration = Duration::from_millis(200);

/// Bytes taken from the journal before something is sent.
const TAKE_LEN: usize = 1 << 20;

/// Interval of slow work: pings, timeouts, limits.
const ROUND: Duration = Duration::from_millis(100);

/// Bytes of the stream kept in memory for replicas in a full sync; the rest is on disk.
const MEMORY_LEN_MAX: u64 = 8 << 20;

/// The same if no file can be made.
pub(super) const WITHOUT_DISK_LEN_MAX: u64 = 48 << 20;

/// Points that are remembered: offsets in the stream, each with the record that ends there.
const POINTS_MAX: usize = 1 << 16;

const WAKEUP_TOKEN: u64 = u64::MAX;

const GETACK: &[u8] = b"*3\r\n$8\r\nREPLCONF\r\n$6\r\nGETACK\r\n$1\r\n*\r\n";

/// The state of the thread.
struct Feed {
    replication: Arc<Replication>,
    settings: Arc<Settings>,
    poll: Poll,
    replicas: BTreeMap<u64, ReplicaConnection>,
    last_token: u64,
    /// The era of the stream that the replicas have been told of.
    era: u64,
    /// See [`super::members::Members::version`].
    members_version: u64,
    reader: Option<Reader>,
    /// The database selected at the end of the stream.
    selected: Option<u32>,
    /// The ends of records in the stream, as offset and record, both ascending.
    points: VecDeque<(u64, u64)>,
    /// The last record before the last GETACK.
    asked: u64,
    sync: Option<Sync>,
    /// Complete snapshots that some replica has not been sent yet, with the tokens of their replicas.
    draining: Vec<(Arc<SnapshotPipe>, Vec<u64>)>,
    times: Times,
    /// The end of a replica's stream at the last poll.
    seen: u64,
    /// Whether a socket took all bytes it was given, or had more than was read: there may be more.
    has_more: bool,
    /// Whether the last poll found more than [`BUSY_LEN`] bytes in the journal.
    took_much: bool,
}

/// The time of the thread's present turn, and the times of its periodic work.
struct Times {
    now: Instant,
    now_ms: u64,
    /// When it last found a record in the journal.
    last_record: Instant,
    last_round: Instant,
    /// When it last sent a PING to replicas, and a line end to replicas that wait for a snapshot.
    last_ping: Instant,
    last_blank: Instant,
    /// Since when this server has been a primary without a replica.
    alone_since: Instant,
}

/// Asks the replicas for acknowledgements, if clients wait for records up to `last`. Returns whether clients
/// wait.
fn ask_for_acks(replication: &Replication, stream: &mut Stream, last: u64, asked: &mut u64) -> bool {
    let is_wanted = replication.wants_acks.swap(false, AcqRel);
    let wanted = replication.acks_wanted.load(Acquire);
    if !is_wanted && wanted <= *asked {
        return false;
    }
    if last < wanted {
        replication.wants_acks.store(true, Release); // when these records are in the stream
        return true;
    }
    // At rest, replicas that have been asked for everything repeat their acknowledgement within a second.
    if !stream.is_at_rest || last > *asked {
        stream.append(GETACK);
    }
    *asked = last;
    true
}

/// Starts the thread, which runs until it is no longer needed.
pub(super) fn start(replication: &Arc<Replication>) -> io::Result<()> {
    let (mut feed, host) = (new(replication)?, replication.host());
    threads::named("replication").spawn(move || {
        let _host = host;
        evenkeel_store::memory::register_thread();
        let replication = feed.replication.clone();
        // Not earlier: the caller of `start` has locked the inbox, which other threads lock while they hold
        // the stream.
        feed.era = replication.stream().era();
        // No other thread takes these records: the journal would grow without end.
        threads::or_exit("replication thread", || feed.run());
    })?;
    Ok(())
}

fn new(replication: &Arc<Replication>) -> io::Result<Feed> {
    let poll = Poll::new()?;
    poll.add_wakeup(replication.replica_inbox.fd(), WAKEUP_TOKEN)?;
    let now = Instant::now();
    Ok(Feed {
        replication: replication.clone(),
        settings: replication.core.settings(),
        poll,
        replicas: BTreeMap::new(),
        last_token: 0,
        era: 0,
        members_version: 0,
        reader: None,
        selected: None,
        points: VecDeque::new(),
        asked: 0,
        sync: None,
        draining: Vec::new(),
        times: Times::begin(now),
        seen: 0,
        has_more: false,
        took_much: false,
    })
}

impl Times {
    /// The times of a thread that begins now.
    fn begin(now: Instant) -> Times {
        Times {
            now,
            now_ms: clock::unix_ms(),
            last_record: now,
            last_round: now,
            last_ping: now,
            last_blank: now,
            alone_since: now,
        }
    }
}

impl Feed {
    fn run(mut self) {
        loop {
            let stops = self.replication.core.stopping.load(Acquire);
            self.turn();
            if stops {
                return self.stop();
            }
            if self.is_over() && self.leave() {
                return;
            }
        }
    }

    fn turn(&mut self) {
        self.wait();
        self.replication.core.wait_for_sleep();
        self.follow_era();
        self.follow_members();
        let arrivals = self.replication.replica_inbox.take();
        self.take_log();
        if !arrivals.is_empty() {
            // The bytes from before their arrival from which they can continue are those kept now.
            self.settings = self.replication.core.settings();
            self.trim();
            arrivals.into_iter().for_each(|connection| self.welcome(connection));
        }
        self.look_at_sync();
        self.send_all();
        if self.times.now.duration_since(self.times.last_round) >= ROUND {
            self.times.last_round = self.times.now;
            self.round();
        }
        self.trim();
    }

    fn wait(&mut self) {
        let is_idle = self.times.now.duration_since(self.times.last_record) > IDLE && self.sync.is_none();
        let timeout_ms = match (self.has_more, is_idle) {
            (true, _) => 0,
            (_, true) => IDLE_POLL_MS,
            _ if self.took_much => BUSY_POLL_MS,
            _ => POLL_MS,
        };
        // It fails only for a broken descriptor; the interval remains.
        let events = self.poll.wait(timeout_ms).unwrap_or_else(|_| {
            std::thread::sleep(Duration::from_millis(POLL_MS as u64));
            0
        });
        (self.times.now, self.times.now_ms, self.has_more) = (Instant::now(), clock::unix_ms(), false);
        for index in 0..events {
            let event = self.poll.event(index);
            if event.token == WAKEUP_TOKEN {
                self.replication.replica_inbox.drain();
                continue;
            }
            let Some(replica) = self.replicas.get_mut(&event.token) else { continue };
            replica.is_writable |= event.is_writable();
            replica.is_readable |= event.is_readable() || event.is_hangup();
        }
        self.listen_to_all();
    }

    // From the journal to the stream.

    fn take_log(&mut self) {
        if self.reader.is_none() {
            self.adopt_reader();
        }
        let replication = self.replication.clone();
        let (state, journal) = (&replication, &replication.core.keyspace.journal);
        let Some(reader) = &mut self.reader else {
            // The replicas of a replica get the bytes of its primary.
            let offset = state.stream().offset();
            if std::mem::replace(&mut self.seen, offset) != offset {
                self.times.last_record = self.times.now;
            }
            return;
        };
        let mut stream = state.stream();
        let (selected, mut placed, mut taken) = (&mut self.selected, None, 0);
        let before = reader.last();
        reader.read(journal, |record| {
            if record.number > state.sync_behind.load(Acquire) {
                placed = Some(place_sync(state, &stream, selected));
            }
            let from = stream.offset();
            let mut preface = Vec::new();
            let rest = record.preceded(*selected, &mut preface);
            if !preface.is_empty() {
                stream.append(&preface);
            }
            stream.append(rest);
            *selected = Some(record.last_db);
            taken += (stream.offset() - from) as usize;
            taken < TAKE_LEN
        });
        if reader.last() >= state.sync_behind.load(Acquire) {
            placed = Some(place_sync(state, &stream, selected));
        }
        self.took_much = taken >= BUSY_LEN;
        if reader.last() > before {
            self.times.last_record = self.times.now;
            self.has_more |= taken >= TAKE_LEN;
            record_point(&mut self.points, (stream.offset(), reader.last()));
        }
        state.streamed.store(reader.last(), Relaxed);
        // A target of a failover has the stream as it was at its end.
        if !state.reading.ends() && ask_for_acks(state, &mut stream, reader.last(), &mut self.asked) {
            self.times.last_record = self.times.now;
        }
        self.update_memory(&stream);
        drop(stream);
        if let Some(offset) = placed {
            self.begin_snapshots(offset);
        }
        if state.reading.ends() {
            self.end_reader_if_done();
        }
    }

    /// Handles a new era of the stream, in which it is another stream or has another name: replicas must
    /// reconnect.
    ///
    /// The reader may already belong to the new stream, if it was adopted between the last two checks.
    fn follow_era(&mut self) {
        let stream = self.replication.stream();
        let (era, offset) = (stream.era(), stream.offset());
        drop(stream);
        if era != self.era {
            self.era = era;
            self.points.clear();
            self.points.extend(self.reader.as_ref().map(|reader| (offset, reader.last())));
            self.part_if(|replica| {
                let waits = matches!(replica.stage, Stage::Waiting { .. });
                (!waits).then(|| "the replication stream has changed".into())
            });
        }
    }

    /// Ends a dismissed reader once it has read all records from before.
    fn end_reader_if_done(&mut self) {
        let (state, journal) = (&self.replication, &self.replication.core.keyspace.journal);
        let is_done = |reader: &mut Reader| reader.unread(journal) == 0;
        if let Some(reader) = self.reader.take_if(is_done) {
            reader.end(journal);
            state.reading.set(Reading::NONE);
        }
    }

    /// Takes over a reader that another thread has made while it held all locks.
    fn adopt_reader(&mut self) {
        let state = &self.replication;
        let Some(reader) = state.reader.lock().take() else { return };
        let mut stream = state.stream();
        stream.keep();
        self.selected = None;
        self.points.clear();
        self.points.push_back((stream.offset(), reader.last()));
        self.asked = reader.last();
        self.times.alone_since = self.times.now;
        self.reader = Some(reader);
    }

    // From the stream to the sockets.

    fn send_all(&mut self) {
        let (mut failed, mut sent) = (Vec::new(), 0);
        for (token, replica) in &mut self.replicas {
            // A killed replica gets none of the writes made after that.
            if replica.is_killed() {
                failed.push((*token, "the client was killed".into()));
                continue;
            }
            if !replica.is_writable {
                continue;
            }
            // Released between two replicas, since INFO and ROLE lock it too.
            let stream = self.replication.stream();
            if stream.era() != self.era {
                break; // offsets have another meaning now
            }
            match replica.send(&stream, self.times.now) {
                Ok(some) => {
                    sent += some;
                    self.has_more |= some > 0 && replica.is_writable && replica.has_more(&stream);
                    if replica.is_done() {
                        failed.push((*token, "the requested snapshot was sent".into()));
                    }
                }
                Err(error) => failed.push((*token, error.to_string())),
            }
        }
        self.replication.metrics.sent.fetch_add(sent as u64, Relaxed);
        for (token, reason) in failed {
            if let Some(replica) = self.replicas.remove(&token) {
                self.part(replica, &reason);
            }
        }
    }

    /// Updates the metric of memory beyond the backlog, which eviction subtracts. Called while `stream` is
    /// locked after a change: bytes that have left the journal are in the stream.
    fn update_memory(&self, stream: &Stream) {
        let beyond = stream.memory_beyond(self.settings.repl_backlog_size);
        self.replication.metrics.beyond.store(beyond, Relaxed);
    }

    /// Frees the bytes that no replica needs any more.
    fn trim(&mut self) {
        let living = self.replicas.values().filter(|replica| !replica.is_killed());
        let readers: Vec<u64> = living.filter_map(ReplicaConnection::needs).collect();
        let catches_up = self.replicas.values().any(|replica| replica.catches_up);
        let kept = self.settings.repl_backlog_size;
        let state = &self.replication;
        let mut stream = state.stream();
        stream.trim(kept, &readers);
        let in_memory = if catches_up { MEMORY_LEN_MAX.max(kept + BLOCK as u64) } else { u64::MAX };
        let without_disk = WITHOUT_DISK_LEN_MAX.max(in_memory);
        let overflowed = stream.spill_file(in_memory, without_disk, |from| {
            let replication = self.replication.clone();
            SpillFile::create(&self.settings.dir, from, move || replication.replica_inbox.nudge())
        });
        let waiting = stream.spill_file.as_ref().map_or(0, SpillFile::waiting);
        let on_disk = stream
            .spill_file
            .as_ref()
            .map_or(0, |spill_file| spill_file.len() - waiting.min(spill_file.len()));
        self.update_memory(&stream);
        drop(stream);
        state.metrics.on_disk.store(on_disk, Relaxed);
        if let Err(error) = overflowed {
            self.drop_slow(without_disk, &error);
        }
        self.tend_pipes();
        if let Some(answered) = self.replicas.values().map(ReplicaConnection::answered).min() {
            while self.points.len() > 1 && self.points[1].0 <= answered {
                self.points.pop_front();
            }
        }
    }

    // The end.

    /// Whether the backlog has no further use.
    fn is_over(&self) -> bool {
        let ttl = self.settings.repl_backlog_ttl;
        let is_worth_offloading =
            ttl > 0 && self.times.now - self.times.alone_since > Duration::from_secs(ttl);
        let is_idle = self.replicas.is_empty() && self.sync.is_none() && self.draining.is_empty();
        let is_unused =
            is_worth_offloading && !self.replication.is_replica() && !self.replication.acks.needs_log();
        is_idle && (is_unused || !self.reader_is_there())
    }

    /// Ends the stream and frees everything. Returns false if a replica has arrived.
    fn leave(&mut self) -> bool {
        let (keyspace, state) = (&self.replication.core.keyspace, &self.replication);
        if let Some(reader) = self.reader.take() {
            let mut ctx = state.ctx.lock();
            keyspace.enter(&mut ctx);
            let mut guard = keyspace.hold_all(&mut ctx);
            state.leave_log(&mut guard); // unless another thread has made this server a replica
            drop(guard);
            keyspace.leave(&mut ctx);
            reader.end(&keyspace.journal);
            state.stream().forget();
            state.metrics.beyond.store(0, Relaxed);
            state.reading.set(Reading::NONE);
            log::info!("Replication backlog freed: no replica was connected for repl-backlog-ttl seconds.");
        }
        state.replica_inbox.close(|| state.reader.lock().is_some())
    }

    /// Ends the thread with the server. The records of the journal have been sent as far as the sockets took
    /// them.
    fn stop(mut self) {
        if let Some(sync) = self.sync.take() {
            sync.pipe.cancel();
        }
        for replica in self.replicas.values() {
            if let Stage::Snapshot { pipe, .. } = &replica.stage {
                pipe.cancel();
            }
        }
        self.replication.replica_inbox.end();
    }
}

/// Adds a pair of numbers, both larger than those before.
pub(super) fn record_point(points: &mut VecDeque<(u64, u64)>, point: (u64, u64)) {
    if points.len() >= POINTS_MAX {
        // Every other point is enough: a waiting client is told a little later.
        let mut index = 0;
        points.retain(|_| {
            index += 1;
            index % 2 == 0
        });
    }
    points.push_back(point);
}

#[cfg(test)]
mod tests {
    use super::super::testing::Single;
    use super::*;

    /// The server becomes a primary after the thread has checked the era, and before it reads the journal.
    #[test]
    fn a_stream_started_between_two_polls_has_a_point() {
        let state = Single::new(&[]);
        state.stream().keep();
        let mut feed = new(&state).expect("descriptors are free");
        feed.follow_era();
        state.with_all_held(|guard| {
            state.stream().rename(evenkeel_runtime::random::random_hex());
            state.follow_log(guard);
        });
        state.write();
        state.disk.wait_until("it is in the stream", || {
            feed.take_log();
            feed.reader.as_ref().is_some_and(|reader| reader.last() == state.core.keyspace.journal.last())
        });
        feed.follow_era();
        assert_eq!(feed.record_at(state.stream().offset()), state.core.keyspace.journal.last());
    }

    /// The target of a failover has all of the stream at its end: no GETACK may follow.
    #[test]
    fn replicas_with_the_whole_stream_get_no_getack() {
        let state = Single::new(&[]);
        state.stream().keep();
        let mut feed = new(&state).expect("descriptors are free");
        state.with_all_held(|guard| state.follow_log(guard));
        feed.follow_era();
        state.write();
        state.disk.wait_until("it is in the stream", || {
            feed.take_log();
            feed.reader.as_ref().is_some_and(|reader| reader.last() == state.core.keyspace.journal.last())
        });
        let before = state.stream().offset();
        state.ask_for_acks(state.core.keyspace.journal.last());
        state.with_all_held(|guard| state.leave_log(guard));
        feed.take_log();
        assert_eq!((state.stream().offset(), feed.reader.is_none()), (before, true));
    }

    /// A server that becomes a primary, after any time as a replica, keeps the bytes that its own replicas
    /// may ask for.
    #[test]
    fn time_as_a_replica_does_not_free_the_backlog() {
        const LONG: Duration = Duration::from_secs(10);
        let state = Single::new(&["--repl-backlog-ttl", "1"]);
        state.stream().keep();
        let mut feed = new(&state).expect("descriptors are free");
        state.set_replica(true);
        feed.times.now += LONG;
        feed.round();
        state.set_replica(false);
        state.with_all_held(|guard| state.follow_log(guard));
        assert!(!feed.is_over());
        feed.times.now += LONG;
        feed.take_log();
        assert!(!feed.is_over(), "its stream has just begun");
        feed.times.now += LONG;
        feed.round();
        assert!(feed.is_over());
    }

    #[test]
    fn points_are_bounded_and_stay_in_order() {
        let mut points = VecDeque::new();
        (1..200_000).for_each(|n| record_point(&mut points, (10 * n, n)));
        assert!(points.len() <= POINTS_MAX && points.len() >= POINTS_MAX / 2);
        assert!(points.iter().zip(points.iter().skip(1)).all(|(one, next)| one < next));
        assert_eq!(points.back(), Some(&(1_999_990, 199_999)));
    }
}
