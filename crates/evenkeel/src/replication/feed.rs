//! The thread that feeds replicas: it turns the log into the stream, and sends the stream to whoever follows.
//!
//! One thread for all of them, with an `epoll` of its own: no serving thread sends anything to a replica, copies anything for
//! one, or wakes this thread when it writes. It comes by itself every few milliseconds, takes what the log has by then, appends
//! it to the backlog, and gives each socket as much as that takes, with system calls of up to a megabyte. A replica whose
//! socket is full is left until it has room; the others are none the later. What is kept for it meanwhile is bounded by
//! `client-output-buffer-limit replica`, and one that falls further behind is dropped.
//!
//! It lives from the first replica on until there has been none for `repl-backlog-ttl`; before and afterwards the log has no
//! reader for replicas, and nobody pays anything.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{Ordering::*, fence};
use std::time::{Duration, Instant};

use evenkeel_store::journal::{Reader, select};

use super::peer::{Peer, Stage, Word};
use super::pipe::Pipe;
use super::replicas::Asks;
use super::sync::{self, Form};
use super::{NEVER, Stream};
use crate::clock;
use crate::config::Settings;
use crate::net::connection::Connection;
use crate::net::inbox::Message;
use crate::net::poll::Poll;
use crate::persist::LOADING;
use crate::server::Server;

/// How often the thread comes while there is something to send: what a replica lags behind at least.
const NAP_MS: i32 = 2;

/// How often while there has been nothing for a while.
const IDLE_NAP_MS: i32 = 10;
const IDLE: Duration = Duration::from_millis(200);

/// Bytes taken from the log before something is sent.
const TAKE_LEN: usize = 1 << 20;

/// How often it looks after what takes its time: pings, timeouts, limits.
const ROUND: Duration = Duration::from_millis(100);

/// Points of the stream that are remembered with the record that ends there.
const POINTS_MAX: usize = 1 << 16;

const WAKEUP_TOKEN: u64 = u64::MAX;

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const GETACK: &[u8] = b"*3\r\n$8\r\nREPLCONF\r\n$6\r\nGETACK\r\n$1\r\n*\r\n";

/// See the module's text.
struct Feed {
    server: Arc<Server>,
    settings: Arc<Settings>,
    poll: Poll,
    peers: BTreeMap<u64, Peer>,
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
    now: Instant,
    now_ms: u64,
    last_record: Instant,
    last_round: Instant,
    last_ping: Instant,
    last_blank: Instant,
    /// Since when there has been no replica.
    alone_since: Instant,
    /// A socket took all that it was given, and there may be more.
    has_more: bool,
}

/// A full sync whose snapshot is being taken.
struct Sync {
    pipe: Arc<Pipe>,
    /// Its place in the stream is known, and told to those for whom it is.
    is_placed: bool,
}

/// Runs the thread until nobody needs it any more.
pub(super) fn start(server: &Arc<Server>) -> io::Result<()> {
    let poll = Poll::new()?;
    poll.add_wakeup(server.replication.door.fd(), WAKEUP_TOKEN)?;
    let now = Instant::now();
    let feed = Feed {
        server: server.clone(),
        settings: server.settings(),
        poll,
        peers: BTreeMap::new(),
        last_token: 0,
        era: server.replication.stream().era(),
        reader: None,
        selected: None,
        points: VecDeque::new(),
        asked: 0,
        sync: None,
        now,
        now_ms: clock::unix_ms(),
        last_record: now,
        last_round: now,
        last_ping: now,
        last_blank: now,
        alone_since: now,
        has_more: false,
    };
    std::thread::Builder::new().name("replication".into()).spawn(move || {
        evenkeel_store::memory::register_thread();
        let server = feed.server.clone();
        // Nobody else takes the log: it would grow without end.
        if catch_unwind(AssertUnwindSafe(|| feed.run())).is_err() {
            server.log.warning("The thread that feeds replicas failed; the process ends");
            server.log.flush();
            std::process::exit(70);
        }
    })?;
    Ok(())
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
        for connection in self.server.replication.door.take() {
            self.welcome(connection);
        }
        self.take_log();
        self.look_at_sync();
        self.send_all();
        if self.now.duration_since(self.last_round) >= ROUND {
            self.last_round = self.now;
            self.round();
        }
        self.trim();
    }

    /// The stream is another one, or has another name: who follows has to ask anew.
    fn follow_era(&mut self) {
        let era = self.server.replication.stream().era();
        if era != self.era {
            self.era = era;
            self.points.clear();
            self.part_if(|peer| {
                let waits = matches!(peer.stage, Stage::Waiting { .. });
                (!waits).then(|| "the stream is another one from now on".into())
            });
        }
    }

    fn wait(&mut self) {
        let is_idle = self.now.duration_since(self.last_record) > IDLE && self.sync.is_none();
        let timeout_ms = match (self.has_more, is_idle) {
            (true, _) => 0,
            (_, true) => IDLE_NAP_MS,
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
                self.server.replication.door.drain();
                continue;
            }
            let Some(peer) = self.peers.get_mut(&event.token) else { continue };
            peer.is_writable |= event.is_writable();
            if event.is_readable() || event.is_hangup() {
                self.listen(event.token);
            }
        }
    }

    // Replicas that come, and what they say.

    fn welcome(&mut self, connection: Box<Connection>) {
        self.last_token += 1;
        let (token, client) = (self.last_token, connection.client().clone());
        client.token.store(token, Relaxed);
        client.is_replica.store(true, Relaxed);
        let mut peer = Peer::new(connection, self.now_ms, self.now);
        if let Err(error) = self.poll.add_connection(peer.connection().fd(), token) {
            self.server.log.warning(format!("Cannot wait for replica {}: {error}", peer.shared.name()));
            return self.server.clients.remove(client.id);
        }
        peer.connection().delay_small_packets(self.settings.repl_disable_tcp_nodelay);
        self.server.log.notice(format!("Replica {} asks for synchronization", peer.shared.name()));
        self.answer(&mut peer);
        self.server.replication.replicas.add(peer.shared.clone());
        self.peers.insert(token, peer);
        self.listen(token); // what came together with the request is not announced any more
        self.last_round -= ROUND;
    }

    /// Lets a replica go on with the stream, if what it lacks is there.
    fn answer(&mut self, peer: &mut Peer) {
        let (log, state) = (&self.server.log, &self.server.replication);
        let Some(Asks::Rest(Some((id, bytes)))) = peer.introduction.asks.clone() else {
            log.notice(format!("Full resync requested by replica {}", peer.shared.name()));
            return;
        };
        let stream = state.stream();
        if stream.can_continue(&id, bytes) && self.reader_is_there() {
            let name = if peer.introduction.takes_names { &stream.history.id[..] } else { "" };
            peer.say(format!("+CONTINUE {name}").trim_end().as_bytes());
            peer.say(b"\r\n");
            peer.go_online(bytes);
            peer.shared.note_acked(bytes, self.record_at(bytes));
            state.figures.partial.fetch_add(1, Relaxed);
            return log.notice(format!(
                "Partial resynchronization request from {} accepted. Sending {} bytes of backlog starting from offset {}.",
                peer.shared.name(),
                stream.offset() - bytes,
                bytes + 1
            ));
        }
        state.figures.partial_refused.fetch_add(1, Relaxed);
        let asked = String::from_utf8_lossy(&id).into_owned();
        let reason = if stream.history.includes(&id, bytes) {
            format!("lack of backlog (the replica has {bytes} bytes, of {})", stream.offset())
        } else {
            let (second, until) = stream.history.second();
            let own = &stream.history.id;
            format!("a history that is not ours ({asked} at {bytes}; ours is {own}, before {until} {second})")
        };
        log.notice(format!("Unable to partial resync with replica {} for {reason}", peer.shared.name()));
    }

    /// Whether the stream goes on: by this thread, or by the link to our own primary.
    fn reader_is_there(&self) -> bool {
        let state = &self.server.replication;
        state.has_reader.load(Acquire) || state.is_replica()
    }

    fn listen(&mut self, token: u64) {
        let Some(mut peer) = self.peers.remove(&token) else { return };
        let mut acked = false;
        let heard = peer.listen(|peer, word| {
            peer.moved = self.now;
            peer.shared.heard_ms.store(self.now_ms, Relaxed);
            if let Word::Ack { bytes, synced } = word {
                acked = true;
                self.note_ack(peer, bytes, synced);
            }
        });
        match heard {
            Ok(()) => drop(self.peers.insert(token, peer)),
            Err(error) => self.part(peer, &error.to_string()),
        }
        if acked {
            self.tell_waiters();
        }
    }

    fn note_ack(&self, peer: &mut Peer, bytes: u64, synced: Option<u64>) {
        if let Stage::Loading { then } = peer.stage {
            peer.go_online(then);
            let name = peer.shared.name();
            self.server.log.notice(format!("Synchronization with replica {name} succeeded"));
        }
        peer.shared.note_acked(bytes, self.record_at(bytes));
        if let Some(synced) = synced {
            peer.shared.note_synced(self.record_at(synced));
        }
    }

    /// The last record of which all is among the first so many bytes of the stream.
    fn record_at(&self, bytes: u64) -> u64 {
        let behind = self.points.partition_point(|(offset, _)| *offset <= bytes);
        behind.checked_sub(1).map_or(0, |last| self.points[last].1)
    }

    /// More of the log is at replicas: lets those look who wait for that.
    fn tell_waiters(&self) {
        // A worker that begins to wait looks once more after it has said so.
        fence(SeqCst);
        for inbox in self.server.inboxes.iter().filter(|inbox| inbox.awaits_log.load(Relaxed)) {
            inbox.post(Message::Durable);
        }
    }

    fn part(&self, peer: Peer, reason: &str) {
        let name = peer.shared.name();
        self.server.log.notice(format!("Connection with replica {name} lost: {reason}"));
        self.server.replication.replicas.remove(&peer.shared);
        self.server.clients.remove(peer.shared.client.id);
        // The descriptor leaves the epoll when it is closed.
    }

    // From the log to the stream.

    fn take_log(&mut self) {
        if self.reader.is_none() {
            self.adopt_reader();
        }
        let server = self.server.clone();
        let (state, journal) = (&server.replication, &server.keyspace.journal);
        let Some(reader) = &mut self.reader else { return };
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
        if reader.last() > before {
            self.last_record = self.now;
            self.has_more |= taken >= TAKE_LEN;
            note_point(&mut self.points, stream.offset(), reader.last());
        }
        let wanted = state.acks_wanted.load(Acquire);
        if wanted > self.asked || state.wants_acks.load(Relaxed) {
            if reader.last() >= wanted {
                state.wants_acks.store(false, Relaxed);
                self.asked = reader.last();
                stream.append(GETACK);
            }
            self.last_record = self.now; // somebody waits
        }
        drop(stream);
        if let Some(offset) = placed {
            self.begin_snapshots(offset);
        }
        if state.is_dismissed.load(Acquire) {
            self.end_reader_if_done();
        }
    }

    /// The stream is not made of the log any more: ends the reader when it has read what was logged before.
    fn end_reader_if_done(&mut self) {
        let (state, journal) = (&self.server.replication, &self.server.keyspace.journal);
        let is_done = |reader: &mut Reader| reader.unread(journal) == 0;
        if let Some(reader) = self.reader.take_if(is_done) {
            reader.end(journal);
            state.has_reader.store(false, Release);
            state.is_dismissed.store(false, Release);
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
        self.reader = Some(reader);
    }

    // Full syncs.

    fn look_at_sync(&mut self) {
        let at = self.server.replication.sync_at.swap(NEVER, AcqRel);
        if at != NEVER {
            self.begin_snapshots(at);
        }
        let Some(sync) = &self.sync else { return self.begin_sync_if_due() };
        let (pipe, is_placed) = (sync.pipe.clone(), sync.is_placed);
        let is_for = |peer: &Peer| match &peer.stage {
            Stage::Begun(its) | Stage::Snapshot { pipe: its, .. } => Arc::ptr_eq(its, &pipe),
            _ => false,
        };
        let end = pipe.end();
        if let Some(Err(reason)) = &end {
            self.part_if(|peer| is_for(peer).then(|| format!("its full sync failed: {reason}")));
        } else if !self.peers.values().any(is_for) {
            pipe.give_up();
        }
        // Those who are still being sent what is in the pipe have it for themselves.
        if end.is_some_and(|end| end.is_err() || is_placed) {
            self.sync = None;
        }
    }

    fn begin_sync_if_due(&mut self) {
        let waiting = || {
            self.peers.values().filter_map(|peer| match peer.stage {
                Stage::Waiting { since } => Some((since, peer.introduction.takes_mark)),
                _ => None,
            })
        };
        let Some(first) = waiting().map(|(since, _)| since).min() else { return };
        let settings = &self.settings;
        let takes_mark = settings.repl_diskless_sync && waiting().all(|(_, takes_mark)| takes_mark);
        let most = settings.repl_diskless_sync_max_replicas as usize;
        let delay = Duration::from_secs(u64::from(settings.repl_diskless_sync_delay));
        let waits = takes_mark && self.now - first < delay && (most == 0 || waiting().count() < most);
        let is_loading = self.server.persist.obstacles.any() & LOADING != 0;
        if waits || is_loading || !self.server.persist.claim_sync() {
            return;
        }
        let (state, pipe) = (&self.server.replication, Pipe::new());
        state.sync_behind.store(NEVER, Release);
        for peer in self.peers.values_mut().filter(|peer| matches!(peer.stage, Stage::Waiting { .. })) {
            peer.stage = Stage::Begun(pipe.clone());
            peer.moved = self.now;
            peer.introduction.takes_mark = takes_mark;
            state.figures.full.fetch_add(1, Relaxed);
        }
        sync::begin(&self.server, pipe.clone(), if takes_mark { Form::Mark } else { Form::Length });
        self.sync = Some(Sync { pipe, is_placed: false });
    }

    /// The snapshot that is being taken begins at this offset of the stream.
    fn begin_snapshots(&mut self, offset: u64) {
        let Some(sync) = &mut self.sync else { return };
        sync.is_placed = true;
        let stream = self.server.replication.stream();
        if stream.era() != self.era {
            return; // the offset is one of another stream
        }
        let id = stream.history.id.clone();
        drop(stream);
        for peer in self.peers.values_mut() {
            let Stage::Begun(pipe) = &peer.stage else { continue };
            let pipe = pipe.clone();
            if peer.introduction.asks != Some(Asks::Snapshot) {
                peer.say(format!("+FULLRESYNC {id} {offset}\r\n").as_bytes());
            }
            peer.begin_snapshot(pipe, offset);
        }
    }

    // From the stream to the sockets.

    fn send_all(&mut self) {
        let (stream, mut sent) = (self.server.replication.stream(), 0);
        if stream.era() != self.era {
            return; // offsets do not mean what they did
        }
        let mut failed = Vec::new();
        for (token, peer) in &mut self.peers {
            if !peer.is_writable {
                continue;
            }
            match peer.send(&stream, self.now) {
                Ok(some) => {
                    sent += some;
                    self.has_more |= some > 0 && peer.is_writable && peer.has_more(&stream);
                }
                Err(error) => failed.push((*token, error.to_string())),
            }
        }
        drop(stream);
        self.server.replication.figures.sent.fetch_add(sent as u64, Relaxed);
        for (token, reason) in failed {
            if let Some(peer) = self.peers.remove(&token) {
                self.part(peer, &reason);
            }
        }
    }

    /// Lets go of what nobody has to be sent any more.
    fn trim(&mut self) {
        let needed = self.peers.values().filter_map(Peer::needs).min();
        let kept = self.settings.repl_backlog_size;
        let state = &self.server.replication;
        let mut stream = state.stream();
        if let Some(backlog) = stream.backlog_mut() {
            backlog.trim(kept, needed);
            let beyond = (backlog.memory() as u64).saturating_sub(kept);
            state.figures.memory.store(backlog.memory() as u64, Relaxed);
            state.figures.beyond.store(beyond, Relaxed);
        }
        drop(stream);
        for peer in self.peers.values() {
            let Stage::Snapshot { pipe, .. } = &peer.stage else { continue };
            let at = |other: &Peer| match &other.stage {
                Stage::Snapshot { pipe: its, at, .. } if Arc::ptr_eq(its, pipe) => Some(*at),
                _ => None,
            };
            pipe.trim(self.peers.values().filter_map(at).min().expect("this one's, at least"));
        }
        if let Some(acked) = self.peers.values().map(|peer| peer.shared.acked.load(Relaxed)).min() {
            while self.points.len() > 1 && self.points[1].0 <= acked {
                self.points.pop_front();
            }
        }
    }

    // What takes its time.

    fn round(&mut self) {
        self.settings = self.server.settings();
        let settings = self.settings.clone();
        let (timeout, now) = (Duration::from_secs(u64::from(settings.repl_timeout)), self.now);
        let every = Duration::from_secs(u64::from(settings.repl_ping_replica_period));
        let ping = now - self.last_ping >= every && !self.server.replication.is_replica();
        if ping && !self.peers.is_empty() && self.reader.is_some() {
            self.last_ping = now;
            self.server.replication.stream().append(PING);
        }
        let blank = now - self.last_blank >= Duration::from_secs(1);
        if blank {
            self.last_blank = now;
        }
        for peer in self.peers.values_mut() {
            peer.is_writable = true; // should an announcement have been missed
            // So that it does not take us for dead while it waits.
            if blank && matches!(peer.stage, Stage::Waiting { .. } | Stage::Begun(_)) {
                peer.say(b"\n");
            }
        }
        let offset = self.server.replication.stream().offset();
        let limits = settings.client_output_buffer_limit.replica;
        let server = self.server.clone();
        self.part_if(|peer| {
            if peer.is_killed() {
                return Some("it was killed".into());
            }
            if let Some(reason) = is_too_late(peer, now, timeout) {
                server.log.warning(format!("Disconnecting timedout replica ({reason}): {}", peer.shared.name()));
                return Some("it was not heard of for too long".into());
            }
            let behind = peer.needs().map_or(0, |needs| offset.saturating_sub(needs));
            peer.shared.client.out_bytes.store(behind as usize, Relaxed);
            is_too_far_behind(peer, behind, limits, settings.repl_backlog_size, now).then(|| {
                server.closed_for_output.fetch_add(1, Relaxed);
                server.log.warning(format!(
                    "Client id={} addr={} closed for overcoming of output buffer limits ({behind} bytes waiting).",
                    peer.shared.client.id, peer.shared.client.address
                ));
                "it is too far behind".into()
            })
        });
        if !self.peers.is_empty() {
            self.alone_since = now;
        }
        self.server.replication.follow(&self.server, &settings);
    }

    /// Parts with those for whom there is a reason.
    fn part_if(&mut self, mut reason: impl FnMut(&mut Peer) -> Option<String>) {
        let reasons = self.peers.iter_mut().filter_map(|(token, peer)| Some((*token, reason(peer)?)));
        for (token, reason) in reasons.collect::<Vec<_>>() {
            if let Some(peer) = self.peers.remove(&token) {
                self.part(peer, &reason);
            }
        }
    }

    // The end.

    /// Whether the backlog is kept for nobody.
    fn is_over(&self) -> bool {
        let ttl = self.settings.repl_backlog_ttl;
        let is_long = ttl > 0 && self.now - self.alone_since > Duration::from_secs(ttl);
        let is_idle = self.peers.is_empty() && self.sync.is_none();
        is_idle && (is_long && !self.server.replication.is_replica() || !self.reader_is_there())
    }

    /// Ends the stream, and gives everything back; `false`: somebody has come.
    fn leave(&mut self) -> bool {
        let (keyspace, state) = (&self.server.keyspace, &self.server.replication);
        if let Some(reader) = self.reader.take() {
            let mut seat = state.seat.lock();
            keyspace.enter(&mut seat);
            let mut held = keyspace.hold_all(&mut seat);
            // Somebody may have come before, and made this server a replica.
            if !state.is_dismissed.swap(false, AcqRel) {
                held.dismiss(reader.place());
            }
            drop(held);
            keyspace.leave(&mut seat);
            reader.end(&keyspace.journal);
            state.stream().forget();
            state.figures.memory.store(0, Relaxed);
            state.figures.beyond.store(0, Relaxed);
            state.has_reader.store(false, Release);
            self.server.log.notice("The replication backlog is freed: there has been no replica for long.");
        }
        state.door.close()
    }

    /// The server ends. What was in the log has been sent, as far as the sockets took it.
    fn stop(mut self) {
        if let Some(sync) = self.sync.take() {
            sync.pipe.give_up();
        }
        for peer in self.peers.values() {
            if let Stage::Snapshot { pipe, .. } = &peer.stage {
                pipe.give_up();
            }
        }
        self.server.replication.door.end();
    }
}

/// The walk of a snapshot has begun behind the last record that is in the stream: says where that is. Who loads the
/// snapshot has no database selected.
fn place_sync(state: &super::State, stream: &Stream, selected: &mut Option<u32>) -> u64 {
    state.sync_behind.store(NEVER, Release);
    *selected = None;
    stream.offset()
}

fn note_point(points: &mut VecDeque<(u64, u64)>, offset: u64, record: u64) {
    if points.len() >= POINTS_MAX {
        // Every other one will do: who waits is told a little later.
        let mut index = 0;
        points.retain(|_| {
            index += 1;
            index % 2 == 0
        });
    }
    points.push_back((offset, record));
}

/// Whether a replica that should say something has said nothing for too long.
fn is_too_late(peer: &Peer, now: Instant, timeout: Duration) -> Option<&'static str> {
    let stage = match peer.stage {
        Stage::Online { .. } if peer.introduction.asks != Some(Asks::Snapshot) => "streaming sync",
        Stage::Loading { .. } | Stage::Snapshot { .. } => "full sync",
        _ => return None,
    };
    (now.duration_since(peer.moved) > timeout).then_some(stage)
}

/// Whether more waits to be sent than may. What is kept anyway is never too much.
fn is_too_far_behind(
    peer: &mut Peer,
    behind: u64,
    limit: crate::config::OutputLimit,
    kept: u64,
    now: Instant,
) -> bool {
    if limit.hard_bytes > 0 && behind > limit.hard_bytes.max(kept) {
        return true;
    }
    let over_soft = limit.soft_bytes > 0 && behind > limit.soft_bytes.max(kept);
    peer.over_soft_since = over_soft.then(|| peer.over_soft_since.unwrap_or(now));
    let allowed = Duration::from_secs(limit.soft_seconds);
    peer.over_soft_since.is_some_and(|since| now.duration_since(since) > allowed)
}

/// For those who wait that replicas get what they have written.
impl super::State {
    /// Asks all replicas what they have, once the log up to this record is on its way to them.
    pub(crate) fn ask_for_acks(&self, record: u64) {
        self.acks_wanted.fetch_max(record, AcqRel);
        self.wants_acks.store(true, Release);
        self.door.nudge();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_bounded_and_stay_in_order() {
        let mut points = VecDeque::new();
        (1..200_000).for_each(|n| note_point(&mut points, 10 * n, n));
        assert!(points.len() <= POINTS_MAX && points.len() >= POINTS_MAX / 2);
        assert!(points.iter().zip(points.iter().skip(1)).all(|(one, next)| one < next));
        assert_eq!(points.back(), Some(&(1_999_990, 199_999)));
    }
}
