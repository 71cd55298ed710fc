//! The thread that feeds replicas: it turns the log into the stream, and sends the stream to whoever follows.
//!
//! One thread for all of them, with an `epoll` of its own: no serving thread sends anything to a replica, copies anything for
//! one, or wakes this thread when it writes. It comes by itself every few milliseconds, takes what the log has by then, appends
//! it to the backlog, and gives each socket as much as that takes, with system calls of up to a megabyte. A replica whose
//! socket is full is left until it has room; the others are none the later. What is kept for it meanwhile is bounded by
//! `client-output-buffer-limit replica`, and one that falls further behind is dropped.
//!
//! It lives from the first replica on until a primary has had none for `repl-backlog-ttl`; before and afterwards the log has no
//! reader for replicas, and nobody pays anything.

mod arrivals;
mod full;
mod rounds;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use evenkeel_store::journal::{Reader, select};

use super::backlog::BLOCK;
use super::replica_connection::{ReplicaConnection, Stage};
use super::snapshot_pipe::SnapshotPipe;
use super::spill_file::SpillFile;
use super::{Reading, Stream};
use crate::config::Settings;
use crate::net::poll::Poll;
use crate::server::Server;
use evenkeel_runtime::clock;
use full::{Sync, place_sync};

/// How often the thread comes while there is something to send: what a replica lags behind at least.
const NAP_MS: i32 = 2;

/// How often while writers fill more than a processor's own cache in that time: what they wrote is still near when it is taken,
/// and what they write into next, too.
const BUSY_NAP_MS: i32 = 1;
const BUSY_LEN: usize = 256 * 1024;

/// How often while there has been nothing for a while.
const IDLE_NAP_MS: i32 = 10;
const IDLE: Duration = Duration::from_millis(200);

/// Bytes taken from the log before something is sent.
const TAKE_LEN: usize = 1 << 20;

/// How often it looks after what takes its time: pings, timeouts, limits.
const ROUND: Duration = Duration::from_millis(100);

/// Bytes of the stream in memory for replicas that are in a full sync; the rest is on disk ..
const MEMORY_LEN_MAX: u64 = 8 << 20;

/// .. and those where no file can be made for that.
pub(super) const WITHOUT_DISK_LEN_MAX: u64 = 48 << 20;

/// Points of the stream that are remembered with the record that ends there.
const POINTS_MAX: usize = 1 << 16;

const WAKEUP_TOKEN: u64 = u64::MAX;

const GETACK: &[u8] = b"*3\r\n$8\r\nREPLCONF\r\n$6\r\nGETACK\r\n$1\r\n*\r\n";

/// See the module's text.
struct Feed {
    server: Arc<Server>,
    settings: Arc<Settings>,
    poll: Poll,
    replicas: BTreeMap<u64, ReplicaConnection>,
    last_token: u64,
    /// Of the stream that the replicas have been told of.
    era: u64,
    reader: Option<Reader>,
    /// The database selected at the end of the stream.
    selected: Option<u32>,
    /// Where in the stream records end: offsets and records, both ascending.
    points: VecDeque<(u64, u64)>,
    /// The last record before the last question for acknowledgements.
    asked: u64,
    sync: Option<Sync>,
    /// Snapshots that have been taken, and of which some replica has yet to be sent the rest, with all for whom they are.
    draining: Vec<(Arc<SnapshotPipe>, Vec<u64>)>,
    now: Instant,
    now_ms: u64,
    last_record: Instant,
    /// The end of a replica's stream when it was last looked at.
    seen: u64,
    last_round: Instant,
    last_ping: Instant,
    last_blank: Instant,
    /// Since when this server has been a primary without a replica.
    alone_since: Instant,
    /// A socket took all that it was given, or had more than was read: there may be more.
    has_more: bool,
    /// There was more than [`BUSY_LEN`] in the log at the last look.
    took_much: bool,
}

/// Runs the thread until nobody needs it any more.
pub(super) fn start(server: &Arc<Server>) -> io::Result<()> {
    let mut feed = new(server)?;
    std::thread::Builder::new().name("replication".into()).spawn(move || {
        evenkeel_store::memory::register_thread();
        let server = feed.server.clone();
        // Not before: whoever starts the thread has locked the door, which others do who have the stream.
        feed.era = server.replication.stream().era();
        // Nobody else takes the log: it would grow without end.
        if catch_unwind(AssertUnwindSafe(|| feed.run())).is_err() {
            server.log.warning("The replication thread failed. Exiting.");
            server.log.flush();
            std::process::exit(70);
        }
    })?;
    Ok(())
}

fn new(server: &Arc<Server>) -> io::Result<Feed> {
    let poll = Poll::new()?;
    poll.add_wakeup(server.replication.replica_inbox.fd(), WAKEUP_TOKEN)?;
    let now = Instant::now();
    Ok(Feed {
        server: server.clone(),
        settings: server.settings(),
        poll,
        replicas: BTreeMap::new(),
        last_token: 0,
        era: 0,
        reader: None,
        selected: None,
        points: VecDeque::new(),
        asked: 0,
        sync: None,
        draining: Vec::new(),
        now,
        now_ms: clock::unix_ms(),
        last_record: now,
        seen: 0,
        last_round: now,
        last_ping: now,
        last_blank: now,
        alone_since: now,
        has_more: false,
        took_much: false,
    })
}

impl Feed {
    fn run(mut self) {
        loop {
            let stops = self.server.stopping.load(Acquire);
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
        self.follow_era();
        let arrivals = self.server.replication.replica_inbox.take();
        self.take_log();
        if !arrivals.is_empty() {
            // What they may go on with is what is to be kept now, of all that was written before they came.
            self.settings = self.server.settings();
            self.trim();
            arrivals.into_iter().for_each(|connection| self.welcome(connection));
        }
        self.look_at_sync();
        self.send_all();
        if self.now.duration_since(self.last_round) >= ROUND {
            self.last_round = self.now;
            self.round();
        }
        self.trim();
    }

    fn wait(&mut self) {
        let is_idle = self.now.duration_since(self.last_record) > IDLE && self.sync.is_none();
        let timeout_ms = match (self.has_more, is_idle) {
            (true, _) => 0,
            (_, true) => IDLE_NAP_MS,
            _ if self.took_much => BUSY_NAP_MS,
            _ => NAP_MS,
        };
        // A broken descriptor is the only way to fail; then there is only the pace.
        let events = self.poll.wait(timeout_ms).unwrap_or_else(|_| {
            std::thread::sleep(Duration::from_millis(NAP_MS as u64));
            0
        });
        (self.now, self.now_ms, self.has_more) = (Instant::now(), clock::unix_ms(), false);
        for index in 0..events {
            let event = self.poll.event(index);
            if event.token == WAKEUP_TOKEN {
                self.server.replication.replica_inbox.drain();
                continue;
            }
            let Some(replica) = self.replicas.get_mut(&event.token) else { continue };
            replica.is_writable |= event.is_writable();
            replica.is_readable |= event.is_readable() || event.is_hangup();
        }
        self.listen_to_all();
    }

    // From the log to the stream.

    fn take_log(&mut self) {
        if self.reader.is_none() {
            self.adopt_reader();
        }
        let server = self.server.clone();
        let (state, journal) = (&server.replication, &server.keyspace.journal);
        let Some(reader) = &mut self.reader else {
            // A replica's own replicas get what its primary sends it.
            let offset = state.stream().offset();
            if std::mem::replace(&mut self.seen, offset) != offset {
                self.last_record = self.now;
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
            if *selected != Some(record.first_db) {
                let mut words = Vec::new();
                select(&mut words, record.first_db);
                stream.append(&words);
            }
            stream.append(record.bytes);
            *selected = Some(record.last_db);
            taken += (stream.offset() - from) as usize;
            taken < TAKE_LEN
        });
        if reader.last() >= state.sync_behind.load(Acquire) {
            placed = Some(place_sync(state, &stream, selected));
        }
        self.took_much = taken >= BUSY_LEN;
        if reader.last() > before {
            self.last_record = self.now;
            self.has_more |= taken >= TAKE_LEN;
            note_point(&mut self.points, (stream.offset(), reader.last()));
        }
        let wanted = state.acks_wanted.load(Acquire);
        // Whoever takes over has what the stream had until then.
        if (wanted > self.asked || state.wants_acks.load(Relaxed)) && !state.reading.ends() {
            if reader.last() >= wanted {
                state.wants_acks.store(false, Relaxed);
                // At rest, those who have been asked for all say it again within a second.
                if !stream.is_at_rest || reader.last() > self.asked {
                    stream.append(GETACK);
                }
                self.asked = reader.last();
            }
            self.last_record = self.now; // somebody waits
        }
        self.note_memory(&stream);
        drop(stream);
        if let Some(offset) = placed {
            self.begin_snapshots(offset);
        }
        if state.reading.ends() {
            self.end_reader_if_done();
        }
    }

    /// The stream is another one, or has another name: who follows has to ask anew.
    ///
    /// A reader may be of the new one already: it has been taken over if that came between this look and the one before.
    fn follow_era(&mut self) {
        let stream = self.server.replication.stream();
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

    /// The stream is not made of the log any more: ends the reader when it has read what was logged before.
    fn end_reader_if_done(&mut self) {
        let (state, journal) = (&self.server.replication, &self.server.keyspace.journal);
        let is_done = |reader: &mut Reader| reader.unread(journal) == 0;
        if let Some(reader) = self.reader.take_if(is_done) {
            reader.end(journal);
            state.reading.set(Reading::NONE);
        }
    }

    /// Takes over a reader whom somebody has made who had everything held.
    fn adopt_reader(&mut self) {
        let state = &self.server.replication;
        let Some(reader) = state.reader.lock().take() else { return };
        let mut stream = state.stream();
        stream.keep();
        self.selected = None;
        self.points.clear();
        self.points.push_back((stream.offset(), reader.last()));
        self.asked = reader.last();
        self.alone_since = self.now;
        self.reader = Some(reader);
    }

    // From the stream to the sockets.

    fn send_all(&mut self) {
        let (mut failed, mut sent) = (Vec::new(), 0);
        for (token, replica) in &mut self.replicas {
            // Of what was written after it was killed, it gets nothing.
            if replica.is_killed() {
                failed.push((*token, "the client was killed".into()));
                continue;
            }
            if !replica.is_writable {
                continue;
            }
            // Let go of between two of them: INFO and ROLE look at it, too.
            let stream = self.server.replication.stream();
            if stream.era() != self.era {
                break; // offsets do not mean what they did
            }
            match replica.send(&stream, self.now) {
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
        self.server.replication.figures.sent.fetch_add(sent as u64, Relaxed);
        for (token, reason) in failed {
            if let Some(replica) = self.replicas.remove(&token) {
                self.part(replica, &reason);
            }
        }
    }

    /// For who decides whether there is room for data. To be called with what was changed still locked: what has left the log is
    /// in the stream.
    fn note_memory(&self, stream: &Stream) {
        let beyond = stream.memory().saturating_sub(self.settings.repl_backlog_size);
        self.server.replication.figures.beyond.store(beyond, Relaxed);
    }

    /// Lets go of what nobody has to be sent any more.
    fn trim(&mut self) {
        let living = self.replicas.values().filter(|replica| !replica.is_killed());
        let readers: Vec<u64> = living.filter_map(ReplicaConnection::needs).collect();
        let catches_up = self.replicas.values().any(|replica| replica.catches_up);
        let kept = self.settings.repl_backlog_size;
        let state = &self.server.replication;
        let mut stream = state.stream();
        stream.trim(kept, &readers);
        let in_memory = if catches_up { MEMORY_LEN_MAX.max(kept + BLOCK as u64) } else { u64::MAX };
        let without_disk = WITHOUT_DISK_LEN_MAX.max(in_memory);
        let overflowed = stream.spill_file(in_memory, without_disk, |from| {
            let server = self.server.clone();
            SpillFile::create(&self.settings.dir, from, move || server.replication.replica_inbox.nudge())
        });
        let waiting = stream.spill_file.as_ref().map_or(0, SpillFile::waiting);
        let on_disk = stream
            .spill_file
            .as_ref()
            .map_or(0, |spill_file| spill_file.len() - waiting.min(spill_file.len()));
        self.note_memory(&stream);
        drop(stream);
        state.figures.on_disk.store(on_disk, Relaxed);
        if let Err(error) = overflowed {
            self.give_up_slow(without_disk, &error);
        }
        self.tend_pipes();
        if let Some(answered) = self.replicas.values().map(ReplicaConnection::answered).min() {
            while self.points.len() > 1 && self.points[1].0 <= answered {
                self.points.pop_front();
            }
        }
    }

    // The end.

    /// Whether the backlog is kept for nobody.
    fn is_over(&self) -> bool {
        let ttl = self.settings.repl_backlog_ttl;
        let is_worth_offloading = ttl > 0 && self.now - self.alone_since > Duration::from_secs(ttl);
        let is_idle = self.replicas.is_empty() && self.sync.is_none() && self.draining.is_empty();
        is_idle && (is_worth_offloading && !self.server.replication.is_replica() || !self.reader_is_there())
    }

    /// Ends the stream, and gives everything back; `false`: somebody has come.
    fn leave(&mut self) -> bool {
        let (keyspace, state) = (&self.server.keyspace, &self.server.replication);
        if let Some(reader) = self.reader.take() {
            let mut ctx = state.ctx.lock();
            keyspace.enter(&mut ctx);
            let mut guard = keyspace.hold_all(&mut ctx);
            state.leave_log(&mut guard); // unless somebody came before, and made this server a replica
            drop(guard);
            keyspace.leave(&mut ctx);
            reader.end(&keyspace.journal);
            state.stream().forget();
            state.figures.beyond.store(0, Relaxed);
            state.reading.set(Reading::NONE);
            self.server
                .log
                .notice("Replication backlog freed: no replica was connected for repl-backlog-ttl seconds.");
        }
        state.replica_inbox.close(|| state.reader.lock().is_some())
    }

    /// The server ends. What was in the log has been sent, as far as the sockets took it.
    fn stop(mut self) {
        if let Some(sync) = self.sync.take() {
            sync.pipe.give_up();
        }
        for replica in self.replicas.values() {
            if let Stage::Snapshot { pipe, .. } = &replica.stage {
                pipe.give_up();
            }
        }
        self.server.replication.replica_inbox.end();
    }
}

/// Remembers one more pair of numbers, both of which are behind those of the pair before.
pub(super) fn note_point(points: &mut VecDeque<(u64, u64)>, point: (u64, u64)) {
    if points.len() >= POINTS_MAX {
        // Every other one will do: who waits is told a little later.
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
    use super::*;

    /// The server becomes a primary after the thread has looked at the stream's name, and before it looks at the log.
    #[test]
    fn a_stream_that_begins_between_two_looks_has_a_point() {
        let live = crate::testing::live::Live::start(1, &[]);
        let (server, state) = (&live.server, &live.server.replication);
        state.stream().keep();
        let mut feed = new(server).expect("descriptors are free");
        feed.follow_era();
        state.with_all_held(server, |guard| {
            state.stream().rename(evenkeel_runtime::random::random_hex());
            state.follow_log(guard);
        });
        assert!(!live.connect().run("SET k v").is_error());
        live.wait_until("it is in the stream", || {
            feed.take_log();
            feed.reader.as_ref().is_some_and(|reader| reader.last() == server.keyspace.journal.last())
        });
        feed.follow_era();
        assert_eq!(feed.record_at(state.stream().offset()), server.keyspace.journal.last());
        live.stop();
    }

    /// The target of a failover has all of the stream at the end: nobody is asked anything behind that.
    #[test]
    fn nobody_is_asked_what_it_has_behind_what_it_has() {
        let live = crate::testing::live::Live::start(1, &[]);
        let (server, state) = (&live.server, &live.server.replication);
        state.stream().keep();
        let mut feed = new(server).expect("descriptors are free");
        state.with_all_held(server, |guard| state.follow_log(guard));
        feed.follow_era();
        assert!(!live.connect().run("SET k v").is_error());
        live.wait_until("it is in the stream", || {
            feed.take_log();
            feed.reader.as_ref().is_some_and(|reader| reader.last() == server.keyspace.journal.last())
        });
        let before = state.stream().offset();
        state.ask_for_acks(server.keyspace.journal.last());
        state.with_all_held(server, |guard| state.leave_log(guard));
        feed.take_log();
        assert_eq!((state.stream().offset(), feed.reader.is_none()), (before, true));
        live.stop();
    }

    /// However long it was a replica, who becomes a primary keeps what its own replicas may ask for.
    #[test]
    fn what_was_no_time_as_a_primary_does_not_count() {
        const LONG: Duration = Duration::from_secs(10);
        let live = crate::testing::live::Live::start(1, &["--repl-backlog-ttl", "1"]);
        let (server, state) = (&live.server, &live.server.replication);
        state.stream().keep();
        let mut feed = new(server).expect("descriptors are free");
        state.set_replica(true);
        feed.now += LONG;
        feed.round();
        state.set_replica(false);
        state.with_all_held(server, |guard| state.follow_log(guard));
        assert!(!feed.is_over());
        feed.now += LONG;
        feed.take_log();
        assert!(!feed.is_over(), "its stream has just begun");
        feed.now += LONG;
        feed.round();
        assert!(feed.is_over());
        live.stop();
    }

    #[test]
    fn points_are_bounded_and_stay_in_order() {
        let mut points = VecDeque::new();
        (1..200_000).for_each(|n| note_point(&mut points, (10 * n, n)));
        assert!(points.len() <= POINTS_MAX && points.len() >= POINTS_MAX / 2);
        assert!(points.iter().zip(points.iter().skip(1)).all(|(one, next)| one < next));
        assert_eq!(points.back(), Some(&(1_999_990, 199_999)));
    }
}
