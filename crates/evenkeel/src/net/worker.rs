//! A worker: a thread, an event loop, and the connections that it serves.
//!
//! A turn: wait for events; accept; read each readable connection once, run the received requests as batches,
//! and send the replies in a single write; read the inbox; timers; a slice of background work, if there is
//! any. A connection that keeps sending, or whose commands take long, continues in the next turn, so it
//! cannot keep the other connections waiting.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Instant;

use super::connection::Connection;
use super::inbox::{Inbox, Message};
use crate::background::Background;
use crate::dispatch::{Executor, record_stage};
use crate::observe::stats::{Stage, add};
use crate::pipeline::{Ended, ParsedAhead, Pipeline};
use crate::server::Server;
use evenkeel_client::clients::ClientInfo;
use evenkeel_client::pubsub::push_queue;
use evenkeel_client::session::Session;
use evenkeel_client::waiting::Blocked;
use evenkeel_command::reply::{LARGE, Reply};
use evenkeel_core::blockers::Blockers;
use evenkeel_net::listener::{Accepted, Listener};
use evenkeel_net::poll::{Event, Poll, has_hung_up};
use evenkeel_net::region::{Regions, Source, Spot};
use evenkeel_runtime::allocator;
use evenkeel_runtime::clock::{self, Ticks};

mod accept;
mod delivery;
mod durable;
mod handshakes;
mod replies;
mod suspended;

/// Connections that are read before the first of them is run, so that the keys of all are prefetched
/// together.
const GROUP: usize = 16;

/// Region for connections that are read and run at once. Each connection of a group has a region of its own,
/// which may be filled meanwhile.
const OWN_REGION: usize = GROUP;

/// Reads of a connection per turn.
const READS_PER_TURN: usize = 4;

/// Milliseconds between two rounds of timers.
const TICK_MS: u64 = 100;

/// A worker that is busy for less than this many thousandths of its time continues background work that can
/// wait.
const CALM: u64 = 100;

/// Milliseconds for which a connection that was shut down for writing waits for replies that the disk delays.
const LAST_REPLY_MS: u64 = 10_000;

/// Bytes kept for clients after which the worker checks for clients that use too much memory.
const KEPT_FOR_CLIENTS_MAX: usize = 256 * 1024;

const WAKEUP_TOKEN: u64 = u64::MAX;
/// Tokens from here on are listeners' ids; connections' tokens are below.
const LISTENER_TOKENS: u64 = 1 << 63;

/// A worker's state; see the module's text.
pub(crate) struct Worker {
    index: usize,
    server: Arc<Server>,
    listeners: Vec<Arc<Listener>>,
    poll: Poll,
    executor: Executor,
    pipeline: Pipeline,
    background: Background,
    /// Indexed by the lower half of their tokens; the upper half distinguishes a connection from earlier
    /// connections at the same index.
    connections: Vec<Option<Box<Connection>>>,
    generations: Vec<u32>,
    vacant: Vec<usize>,
    /// Connections whose replies are held back, with the journal record that must be on disk: in order of
    /// arrival, once per record.
    held_back: VecDeque<(u64, u64)>,
    /// Waits of WAITAOF.
    awaiting_log: Vec<Arc<Blocked>>,
    /// Connections that have more to read, or whose pause has ended.
    ready: VecDeque<u64>,
    parked: Vec<u64>,
    /// At the last check, all commands were paused, not only writing commands.
    all_wait: bool,
    /// Deadlines of waiting commands, with the tokens of their connections.
    deadlines: BTreeSet<(Instant, u64)>,
    /// Listeners with connections to accept in this turn.
    ready_listeners: Vec<u64>,
    /// Listeners ignored until the next tick, and when that was last logged.
    muted_listeners: Vec<Arc<Listener>>,
    complained_ms: u64,
    /// Connections beyond `maxclients`, and when each began to wait.
    accept_queue: VecDeque<(u64, Accepted)>,
    leaving: suspended::Leaving,
    /// Connections with received data of a TLS handshake, in order of arrival.
    handshakes: VecDeque<u64>,
    regions: Regions,
    /// Connections with data to read in this turn.
    readable: Vec<u64>,
    arrivals: Vec<Arrival>,
    reply: Reply,
    /// The time at the start of this turn.
    now_ms: u64,
    turn_ticks: Ticks,
    next_tick: Ticks,
    /// Position of the sweep over all connections.
    sweep: usize,
    busy_ticks: Ticks,
    busy_since: Ticks,
    /// Bytes of requests and replies kept since the last check for clients that use too much memory.
    kept_for_clients: usize,
}

impl Worker {
    pub(crate) fn new(server: Arc<Server>, index: usize) -> io::Result<Worker> {
        let poll = Poll::new()?;
        poll.add_wakeup(server.inboxes[index].fd(), WAKEUP_TOKEN)?;
        let listeners = server.listeners.all();
        for listener in &listeners {
            poll.add_listener(listener.fd(), LISTENER_TOKENS + listener.id)?;
        }
        Ok(Worker {
            index,
            listeners,
            poll,
            executor: Executor::new(server.clone(), index).that_answers(),
            pipeline: Pipeline::default(),
            background: Background::new(index, server.core.workers.count()),
            connections: Vec::new(),
            generations: Vec::new(),
            vacant: Vec::new(),
            held_back: VecDeque::new(),
            awaiting_log: Vec::new(),
            ready: VecDeque::new(),
            parked: Vec::new(),
            all_wait: false,
            deadlines: BTreeSet::new(),
            ready_listeners: Vec::new(),
            muted_listeners: Vec::new(),
            complained_ms: 0,
            accept_queue: VecDeque::new(),
            leaving: suspended::Leaving::default(),
            handshakes: VecDeque::new(),
            regions: Regions::new(OWN_REGION + 1),
            readable: Vec::new(),
            arrivals: Vec::new(),
            reply: Reply::default(),
            now_ms: clock::unix_ms(),
            turn_ticks: clock::ticks(),
            next_tick: 0,
            sweep: 0,
            busy_ticks: 0,
            busy_since: clock::ticks(),
            kept_for_clients: 0,
            server,
        })
    }

    /// Serves until the server stops.
    pub(crate) fn run(mut self) {
        evenkeel_store::memory::register_thread();
        while !self.server.core.stopping.load(Acquire) {
            if let Err(error) = self.turn() {
                // Only a broken epoll descriptor gets here, and nothing can be served without one.
                log::warn!("Worker {} failed: {error}", self.index);
                self.server.core.stop();
            }
        }
        for index in 0..self.connections.len() {
            if let Some(connection) = self.connections[index].take() {
                self.forget(connection);
            }
        }
    }

    fn inbox(&self) -> &Inbox {
        &self.server.inboxes[self.index]
    }

    fn turn(&mut self) -> io::Result<()> {
        let timeout = self.timeout_ms();
        let before = clock::ticks();
        self.busy_ticks += before.saturating_sub(self.turn_ticks);
        let events = self.poll.wait(timeout)?;
        self.inbox().awake();
        self.turn_ticks = clock::ticks(); // needed for the load even without accounting
        self.executor.stats().record_stage(Stage::Idle, self.turn_ticks.saturating_sub(before));
        self.executor.last_ticks = self.turn_ticks;
        add(&self.executor.stats().turns, 1);
        self.now_ms = clock::unix_ms();
        self.executor.refresh(self.now_ms);
        for index in 0..events {
            let event = self.poll.event(index);
            self.on_event(event);
        }
        self.serve_readable();
        self.serve_ready();
        self.shake_hands();
        self.end_waits();
        self.leave_later();
        if self.kept_for_clients > KEPT_FOR_CLIENTS_MAX {
            self.evict_clients();
        }
        if self.server.persist.aof.is_on() || self.has_held_back() {
            self.look_at_log();
        }
        self.accept_waiting();
        self.read_inbox();
        // Not by the wall clock, which may be set back.
        if self.turn_ticks >= self.next_tick {
            self.next_tick = self.turn_ticks + TICK_MS * 1000 * clock::ticks_per_us();
            self.tick();
        }
        allocator::settle();
        self.turn_ticks += self.background.slice(&mut self.executor);
        Ok(())
    }

    /// Returns the timeout of the next wait: zero if there is work, otherwise the time until the next tick.
    fn timeout_ms(&mut self) -> i32 {
        if !self.ready.is_empty()
            || !self.handshakes.is_empty()
            || self.background.is_pending()
            || !self.inbox().may_sleep()
        {
            return 0;
        }
        let mut until = u64::MAX;
        if !self.parked.is_empty() && self.server.core.pause.is_active(self.now_ms) {
            until = until.min(self.server.core.pause.until_ms(self.now_ms));
        }
        if let Some((since_ms, _)) = self.accept_queue.front() {
            until = until.min(since_ms + accept::ACCEPT_QUEUE_MS);
        }
        let until_tick_ms = clock::us(self.next_tick.saturating_sub(clock::ticks())).div_ceil(1000);
        let left_ms = until.saturating_sub(clock::unix_ms()).min(until_tick_ms).min(TICK_MS);
        left_ms.min(self.first_deadline_ms().unwrap_or(TICK_MS)) as i32
    }

    fn on_event(&mut self, event: Event) {
        if event.token == WAKEUP_TOKEN {
            add(&self.executor.stats().wakeups, 1);
            return self.inbox().drain_wakeup();
        }
        if event.token >= LISTENER_TOKENS {
            return self.ready_listeners.push(event.token - LISTENER_TOKENS);
        }
        let Some(mut connection) = self.take(event.token) else { return };
        let may_send = connection.has_unsent();
        if event.is_writable() && may_send && !self.flush_backlog(&mut connection) {
            return self.close(event.token, connection);
        }
        if event.is_readable() || event.is_hangup() {
            connection.readable = true;
            connection.hung_up |= event.is_hangup();
            if connection.is_heavy && !connection.hung_up {
                self.make_ready(event.token, &mut connection);
            } else {
                self.readable.push(event.token);
            }
        }
        self.put_back(event.token, connection);
    }

    /// Serves the connections of this turn's events, group by group.
    fn serve_readable(&mut self) {
        let mut readable = std::mem::take(&mut self.readable);
        for group in readable.chunks(GROUP) {
            self.read_group(group);
            if self.arrivals.len() > 1 {
                self.prefetch_first();
            }
            let mut arrivals = std::mem::take(&mut self.arrivals);
            for arrival in arrivals.drain(..) {
                self.serve_arrival(arrival);
            }
            self.arrivals = arrivals;
        }
        readable.clear();
        self.readable = readable;
    }

    /// Reads once from each connection of a group. Connections with unfinished work are served at once.
    fn read_group(&mut self, group: &[u64]) {
        for &token in group {
            let Some(mut connection) = self.take(token) else { continue };
            if connection.is_handshaking() {
                self.queue_handshake(token, connection);
                continue;
            }
            let killed = connection.client().killed.load(Relaxed);
            let waits = connection.parked || connection.session.waiting.is_some();
            if waits || connection.session.closing || killed || !connection.reader.is_empty() {
                self.serve(token, connection);
                continue;
            }
            let spot = self.spot(self.arrivals.len(), &connection);
            let buffer = self.regions.bytes_mut(spot);
            let (room, result) = (buffer.len(), connection.read(buffer));
            let got = result.as_ref().map_or(0, |got| *got);
            self.book_read(&connection, got);
            self.arrivals.push(Arrival { token, connection, result, room, spot, first: None });
        }
    }

    /// Parses the requests of a group's connections that sent a single request, and prefetches their keys: all
    /// slots first, then all buckets, then all entries. A pipeline prefetches its own keys when it is run.
    fn prefetch_first(&mut self) {
        let executor = &mut self.executor;
        let keyspace = &executor.server.core.keyspace;
        let busy = &executor.server.scripts.busy;
        if !keyspace.enter_unless(&mut executor.ctx, || busy.is_busy()) {
            return;
        }
        self.pipeline.forget_ahead();
        for arrival in &mut self.arrivals {
            let len = arrival.result.as_ref().map_or(0, |got| *got);
            let bytes = &mut self.regions.bytes_mut(arrival.spot)[..len];
            arrival.first = self.pipeline.parse_ahead(executor, &arrival.connection.session, bytes);
        }
        let (keyspace, ctx, lines) =
            (&executor.server.core.keyspace, &executor.ctx, self.pipeline.entry_lines());
        let keys = || self.arrivals.iter().filter_map(|arrival| arrival.first?.key);
        keys().for_each(|(_, place)| keyspace.prefetch_slot(ctx, place));
        keys().for_each(|(hash, place)| keyspace.prefetch_bucket(ctx, place, hash));
        keys().for_each(|(hash, place)| keyspace.prefetch_entry(ctx, place, hash, lines));
        executor.server.core.keyspace.leave(&mut executor.ctx);
    }

    fn serve_arrival(&mut self, arrival: Arrival) {
        let Arrival { token, mut connection, result, room, spot, first } = arrival;
        self.executor.begin_share();
        let next = match self.after_read(&mut connection, result, room) {
            Ok(got) => match self.run_region(&mut connection, (spot, got), first) {
                Next::Wait if connection.readable => self.read_and_run(&mut connection),
                next => next,
            },
            Err(next) => next,
        };
        self.settle(token, connection, next);
    }

    /// Serves connections with work left over, until a share is used up: a connection with new data waits for
    /// two shares at most.
    fn serve_ready(&mut self) {
        if self.ready.is_empty() {
            return;
        }
        let until = clock::ticks() + self.executor.share;
        for _ in 0..self.ready.len() {
            let Some(token) = self.ready.pop_front() else { return };
            if let Some(mut connection) = self.take(token) {
                connection.is_ready = false;
                self.serve(token, connection);
            }
            if self.executor.last_ticks >= until {
                return;
            }
        }
    }

    /// Marks a connection to be served after all connections with new events.
    fn make_ready(&mut self, token: u64, connection: &mut Connection) {
        if !std::mem::replace(&mut connection.is_ready, true) {
            self.ready.push_back(token);
        }
    }

    /// Reads, runs and replies; then puts the connection back or closes it.
    fn serve(&mut self, token: u64, mut connection: Box<Connection>) {
        self.executor.begin_share();
        let next = self.read_and_run(&mut connection);
        self.settle(token, connection, next);
    }

    fn settle(&mut self, token: u64, mut connection: Box<Connection>, next: Next) {
        connection.is_heavy = self.executor.is_time_up();
        match next {
            Next::Wait => self.put_back(token, connection),
            Next::Again => {
                self.make_ready(token, &mut connection);
                self.put_back(token, connection);
            }
            Next::Park => {
                // A hang-up announced together with the command is not announced again.
                if has_hung_up(connection.fd().as_raw_fd()) {
                    return self.close(token, connection);
                }
                connection.parked = true;
                connection.client().blocked.store(true, Relaxed);
                self.parked.push(token);
                self.put_back(token, connection);
            }
            Next::Suspend => self.suspend(token, connection),
            Next::Close => self.close(token, connection),
        }
    }

    fn read_and_run(&mut self, connection: &mut Connection) -> Next {
        if connection.client().killed.load(Relaxed) {
            return Next::Close;
        }
        if connection.parked {
            // Commands of a client that is gone are not run after the pause.
            return if connection.hung_up { Next::Close } else { Next::Wait };
        }
        if let Some(waiting) = &connection.session.waiting {
            // An element taken for the client is sent before the end of its stream is read.
            return if connection.hung_up && waiting.cancel() { Next::Close } else { Next::Wait };
        }
        if connection.session.closing {
            return if connection.backlog_len() == 0 { Next::Close } else { Next::Wait };
        }
        // Requests left behind by a pause run before anything new is read.
        if connection.reader.has_requests() {
            match self.run_input(connection) {
                Next::Wait => {}
                other => return other,
            }
        }
        for _ in 0..READS_PER_TURN {
            if !connection.readable {
                return Next::Wait;
            }
            if self.executor.is_time_up() {
                break;
            }
            let spot = connection.reader.is_empty().then(|| self.spot(OWN_REGION, connection));
            let (result, room) = if let Some(spot) = spot {
                let buffer = self.regions.bytes_mut(spot);
                (connection.read(buffer), buffer.len())
            } else {
                connection.read_more()
            };
            self.book_read(connection, result.as_ref().map_or(0, |got| *got));
            let got = match self.after_read(connection, result, room) {
                Ok(0) => continue,
                Ok(got) => got,
                Err(next) => return next,
            };
            let next = match spot {
                Some(spot) => self.run_region(connection, (spot, got), None),
                None => self.run_input(connection),
            };
            if next != Next::Wait {
                return next;
            }
        }
        Next::Again
    }

    /// Selects the region into which a connection is read.
    fn spot(&self, index: usize, connection: &Connection) -> Spot {
        connection.reader.spot(index, self.server.core.keyspace.journal.is_on())
    }

    fn book_read(&mut self, connection: &Connection, got: usize) {
        let from = self.executor.last_ticks;
        let stats = self.executor.stats();
        add(&stats.reads, 1);
        add(&stats.net_in, got as u64);
        add(&connection.client().net_in, got as u64);
        self.executor.last_ticks = record_stage(stats, Stage::Read, from);
    }

    /// Interprets a read: returns the number of bytes, or the next step for the connection. `Ok(0)`: read
    /// again.
    fn after_read(
        &self,
        connection: &mut Connection,
        result: io::Result<usize>,
        room: usize,
    ) -> Result<usize, Next> {
        match result {
            Ok(0) if connection.is_held_back() => {
                // The client has shut down writing, and may wait for outstanding replies.
                connection.session.closing = true;
                connection.readable = false;
                Err(Next::Wait)
            }
            Ok(0) => Err(Next::Close),
            Ok(got) => {
                // Edge-triggered: after a short read, the next byte will be announced. So will the end of the
                // stream, unless that has been announced already.
                if got < room && !connection.hung_up && !connection.has_more() {
                    connection.readable = false;
                }
                Ok(got)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                connection.readable = false;
                Err(Next::Wait)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(_) => Err(Next::Close),
        }
    }

    /// Runs the requests in the first `len` bytes of a region; unused bytes move into the connection. `ahead`:
    /// the only request, if it has been parsed.
    fn run_region(
        &mut self,
        connection: &mut Connection,
        (spot, len): (Spot, usize),
        ahead: Option<ParsedAhead>,
    ) -> Next {
        connection.reader.record_read(len);
        let mut arrived = self.regions.take(spot, len, self.server.core.keyspace.journal.is_on());
        let (next, used) = self.run_bytes(connection, &mut arrived, ahead);
        if used < len && next != Next::Close {
            connection.reader.keep(&arrived.bytes()[used..]);
        }
        self.regions.put_back(spot, arrived);
        self.publish_lent();
        self.record_input(connection);
        next
    }

    /// Publishes the lent bytes for other threads, if their number has changed.
    fn publish_lent(&self) {
        let (lent, noted) = (self.regions.lent_len(), &self.inbox().lent);
        if noted.load(Relaxed) != lent {
            noted.store(lent, Relaxed);
        }
    }

    /// Runs the requests that start in the connection's own buffer.
    fn run_input(&mut self, connection: &mut Connection) -> Next {
        let mut input = connection.reader.take_bytes();
        let (next, used) = self.run_bytes(connection, &mut input, None);
        connection.reader.put_back(input, used);
        self.record_input(connection);
        let limit = self.executor.settings.client_query_buffer_limit;
        let queued = connection.session.multi.as_ref().map_or(0, |multi| multi.memory);
        if connection.reader.len().saturating_add(queued) > limit && next != Next::Close {
            self.server.hub.record_input_limit(connection.client());
            return Next::Close;
        }
        next
    }

    fn record_input(&mut self, connection: &mut Connection) {
        self.kept_for_clients += connection.reader.publish_len(&connection.session.client);
    }

    /// Runs the complete requests of these bytes, batch by batch, and sends the replies. Returns the number
    /// of bytes used up.
    fn run_bytes(
        &mut self,
        connection: &mut Connection,
        source: &mut dyn Source,
        mut ahead: Option<ParsedAhead>,
    ) -> (Next, usize) {
        let len = source.bytes().len();
        connection.activity = connection.activity.saturating_add(1);
        connection.client().record_query(len, self.now_ms);
        self.reply.resp3 = connection.client().is_resp3();
        let mut used = 0;
        loop {
            let Connection { session, reader, .. } = connection;
            let (pipeline, executor, reply) = (&mut self.pipeline, &mut self.executor, &mut self.reply);
            let ended = pipeline.run(executor, (session, reader), (source, ahead.take()), &mut used, reply);
            if ended == Ended::TimeUp && used < len && self.may_put_off(connection) {
                self.put_off(connection);
            } else if (!self.reply.is_empty() || connection.is_put_off()) && !self.flush(connection) {
                return (Next::Close, used);
            }
            match ended {
                Ended::Full => {}
                Ended::Empty if connection.session.closing => return (self.after_closing(connection), used),
                Ended::Empty => return (Next::Wait, used),
                Ended::Paused => return (Next::Park, used),
                Ended::Suspended => return (Next::Suspend, used),
                Ended::TimeUp => return (Next::Again, used),
            }
        }
    }

    fn after_closing(&self, connection: &Connection) -> Next {
        if connection.backlog_len() == 0 { Next::Close } else { Next::Wait }
    }

    fn read_inbox(&mut self) {
        for message in self.inbox().take() {
            match message {
                Message::Wake => {}
                Message::Adopt(connection) => {
                    self.adopt(connection);
                }
                Message::CloseKilled => self.close_killed(),
                Message::Resume(resumed) => self.resume(resumed),
                Message::Listen => self.follow_listeners(),
                Message::PushQueued(clients) => self.deliver_to(clients),
                Message::Settle => self.inbox().settle(),
                Message::Durable => self.release(),
            }
        }
        let may_resume = || {
            let is_crowded = self.server.core.blockers.any().contains(Blockers::CROWDED);
            !is_crowded && !self.server.core.pause.is_active(self.now_ms)
        };
        let all_wait = self.server.core.pause.is_of_all(self.now_ms);
        let fewer_wait = std::mem::replace(&mut self.all_wait, all_wait) && !all_wait;
        if !self.parked.is_empty() && (fewer_wait || may_resume()) {
            self.unpark();
        }
    }

    fn close_killed(&mut self) {
        for token in self.tokens() {
            let connection = self.connections[token as u32 as usize].as_ref();
            if connection.is_some_and(|connection| connection.client().killed.load(Relaxed))
                && let Some(connection) = self.take(token)
            {
                self.close(token, connection);
            }
        }
    }

    fn unpark(&mut self) {
        for token in std::mem::take(&mut self.parked) {
            if let Some(mut connection) = self.take(token) {
                connection.parked = false;
                connection.client().blocked.store(false, Relaxed);
                self.make_ready(token, &mut connection);
                self.put_back(token, connection);
            }
        }
    }

    fn tokens(&self) -> Vec<u64> {
        let token = |index: usize| u64::from(self.generations[index]) << 32 | index as u64;
        (0..self.connections.len()).filter(|index| self.connections[*index].is_some()).map(token).collect()
    }

    // Timers.

    fn tick(&mut self) {
        let before = clock::ticks();
        self.listen_again();
        self.sweep();
        self.evict_clients();
        self.balance();
        self.server.core.keyspace.tidy(&mut self.executor.ctx);
        self.regions.trim();
        self.publish_lent();
        self.background.tick(&self.executor, self.inbox().busy.load(Relaxed) < CALM);
        self.server.hub.tracking.trim();
        push_queue::notify_workers(&self.server.hub);
        record_stage(self.executor.stats(), Stage::Other, before);
    }

    /// Checks a tenth of the connections: for idle clients, for clients that do not read, and for unused
    /// memory.
    fn sweep(&mut self) {
        let count = self.connections.len().div_ceil(10);
        for _ in 0..count {
            self.sweep = if self.sweep + 1 >= self.connections.len() { 0 } else { self.sweep + 1 };
            let index = self.sweep;
            let Some(mut connection) = self.connections[index].take() else { continue };
            let token = u64::from(self.generations[index]) << 32 | index as u64;
            if connection.is_handshaking() && self.is_late(&connection) {
                self.close(token, connection);
                continue;
            }
            if self.is_idle(&connection) {
                log::debug!("Closing idle client");
                self.close(token, connection);
                continue;
            }
            if self.waits_in_vain(&connection)
                || connection.has_unsent() && !self.within_limits(&mut connection)
            {
                self.close(token, connection);
                continue;
            }
            connection.reader.shrink();
            self.put_back(token, connection);
        }
    }

    /// Whether a connection was shut down for writing, and its replies wait for a disk that hangs: it may as
    /// well be closed.
    fn waits_in_vain(&self, connection: &Connection) -> bool {
        let waits_ms = self.now_ms.saturating_sub(connection.client().active_ms.load(Relaxed));
        connection.session.closing && connection.is_held_back() && waits_ms > LAST_REPLY_MS
    }

    fn is_idle(&self, connection: &Connection) -> bool {
        let timeout = self.executor.settings.timeout;
        let idle_ms = self.now_ms.saturating_sub(connection.client().active_ms.load(Relaxed));
        let (client, waits) =
            (connection.client(), connection.parked || connection.session.waiting.is_some());
        let listens = client.is_subscriber() || client.monitors.load(Relaxed);
        timeout > 0 && !waits && !listens && idle_ms > u64::from(timeout) * 1000
    }

    /// Closes clients if all together use more memory than `maxmemory-clients`.
    fn evict_clients(&mut self) {
        self.kept_for_clients = 0;
        let limit = self.executor.settings.client_memory_max();
        if limit > 0 {
            self.server.evict_clients(limit);
        }
    }

    /// Publishes the load of this worker, and moves a busy connection if another worker has time for it.
    fn balance(&mut self) {
        let now = clock::ticks();
        let elapsed = now.saturating_sub(self.busy_since).max(1);
        let busy = (self.busy_ticks * 1000 / elapsed).min(1000);
        (self.busy_ticks, self.busy_since) = (0, now);
        self.inbox().busy.store(busy, Relaxed);
        let others = self.server.inboxes.iter().enumerate().filter(|(index, _)| *index != self.index);
        let idlest = others.map(|(index, inbox)| (inbox.busy.load(Relaxed), index)).min();
        let mut active: Vec<(u32, u64)> = Vec::new();
        for token in self.tokens() {
            let connection =
                self.connections[token as u32 as usize].as_mut().expect("a token of one that is there");
            let waits = connection.parked || connection.session.waiting.is_some() || connection.has_unsent();
            if connection.activity > 0 && !waits {
                active.push((connection.activity, token));
            }
            connection.activity = 0;
        }
        let Some((their_busy, worker)) = idlest else { return };
        // Moving the only busy connection would only move the load.
        if busy < 800 || their_busy + 300 > busy || active.len() < 2 {
            return;
        }
        active.sort_unstable();
        // Connections of middling activity: with many alike, a connection at a time evens out within a
        // second.
        let moving = active.len().div_ceil(8);
        for (_, token) in active.into_iter().take(moving) {
            if let Some(connection) = self.take(token) {
                self.vacate(token, &connection);
                self.send_to(worker, connection);
            }
        }
    }
}

/// A connection that has been read from and not yet run.
pub(crate) struct Arrival {
    token: u64,
    connection: Box<Connection>,
    result: io::Result<usize>,
    /// Bytes that could have arrived, and the region that they are in.
    room: usize,
    spot: Spot,
    /// Its request, if that is alone in the region and has been parsed.
    first: Option<ParsedAhead>,
}

/// The next step for a connection that has been served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Wait for an event.
    Wait,
    /// Serve it again in the next turn: there may be more to read.
    Again,
    Park,
    /// Wait until its command no longer waits.
    Suspend,
    Close,
}

const PROTECTED: &str = "-DENIED Evenkeel is running in protected mode because protected mode is enabled and \
                         no password is set for the default user. In this mode connections are only accepted \
                         from the loopback interface. To connect from other hosts, set a password with \
                         'requirepass' or, in a trusted network, run 'CONFIG SET protected-mode no' from the \
                         loopback interface.\r\n";
