//! The road of received bytes: read into a region, parsed ahead with the other connections of a group, run as
//! batches, answered.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use super::Worker;
use super::schedule::Next;
use crate::executor::record_stage;
use crate::observe::stats::{Stage, add};
use crate::worker::connection::Connection;
use crate::worker::pipeline::{Ended, ParsedAhead};
use evenkeel_net::region::{Regions, Source, Spot};

/// Connections that are read before the first of them is run, so that the keys of all are prefetched
/// together.
pub(super) const GROUP: usize = 16;

/// Region for connections that are read and run at once. Each connection of a group has a region of its own,
/// which may be filled meanwhile.
const OWN_REGION: usize = GROUP;

/// Reads of a connection per turn.
const READS_PER_TURN: usize = 4;

/// Received bytes of the connections that are being served.
pub(super) struct Input {
    pub(super) regions: Regions,
    /// The connections of the group that is being served.
    pub(super) arrivals: Vec<Arrival>,
}

impl Input {
    pub(super) fn new() -> Input {
        Input { regions: Regions::new(OWN_REGION + 1), arrivals: Vec::new() }
    }
}

/// A connection that has been read from and not yet run.
pub(super) struct Arrival {
    token: u64,
    connection: Box<Connection>,
    result: io::Result<usize>,
    /// Bytes that could have arrived, and the region that they are in.
    room: usize,
    spot: Spot,
    /// Its request, if that is alone in the region and has been parsed.
    first: Option<ParsedAhead>,
}

impl Worker {
    /// Reads once from each connection of a group. Connections with unfinished work are served at once.
    pub(super) fn read_group(&mut self, group: &[u64]) {
        for &token in group {
            let Some(mut connection) = self.connections.take(token) else { continue };
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
            let spot = self.spot(self.input.arrivals.len(), &connection);
            let buffer = self.input.regions.bytes_mut(spot);
            let (room, result) = (buffer.len(), connection.read(buffer));
            let got = result.as_ref().map_or(0, |got| *got);
            self.book_read(&connection, got);
            self.input.arrivals.push(Arrival { token, connection, result, room, spot, first: None });
        }
    }

    /// Parses the requests of a group's connections that sent a single request, and prefetches their keys:
    /// all slots first, then all buckets, then all entries. A pipeline prefetches its own keys when it is
    /// run.
    pub(super) fn prefetch_first(&mut self) {
        let executor = &mut self.executor;
        let keyspace = &executor.server.core.keyspace;
        let busy = &executor.server.scripts.busy;
        if !keyspace.enter_unless(&mut executor.ctx, || busy.is_busy()) {
            return;
        }
        self.pipeline.forget_ahead();
        for arrival in &mut self.input.arrivals {
            let len = arrival.result.as_ref().map_or(0, |got| *got);
            let bytes = &mut self.input.regions.bytes_mut(arrival.spot)[..len];
            arrival.first = self.pipeline.parse_ahead(executor, &arrival.connection.session, bytes);
        }
        let (keyspace, ctx, lines) =
            (&executor.server.core.keyspace, &executor.ctx, self.pipeline.entry_lines());
        let keys = || self.input.arrivals.iter().filter_map(|arrival| arrival.first?.key);
        keys().for_each(|(_, place)| keyspace.prefetch_slot(ctx, place));
        keys().for_each(|(hash, place)| keyspace.prefetch_bucket(ctx, place, hash));
        keys().for_each(|(hash, place)| keyspace.prefetch_entry(ctx, place, hash, lines));
        executor.server.core.keyspace.leave(&mut executor.ctx);
        executor.last_ticks = record_stage(executor.stats(), Stage::Parse, executor.last_ticks);
    }

    /// Runs the requests of a connection that was read with its group, and sends the replies. Then puts the
    /// connection back or closes it.
    pub(super) fn serve_arrival(&mut self, arrival: Arrival) {
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

    /// Runs the requests that the connection has kept, then reads and runs more, as long as its share lasts.
    /// Returns the next step.
    pub(super) fn read_and_run(&mut self, connection: &mut Connection) -> Next {
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
                let buffer = self.input.regions.bytes_mut(spot);
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

    /// Runs the requests in the first `len` bytes of a region; unused bytes move into the connection.
    /// `ahead`: the only request, if it has been parsed.
    fn run_region(
        &mut self,
        connection: &mut Connection,
        (spot, len): (Spot, usize),
        ahead: Option<ParsedAhead>,
    ) -> Next {
        connection.reader.record_read(len);
        let mut arrived = self.input.regions.take(spot, len, self.server.core.keyspace.journal.is_on());
        let (next, used) = self.run_bytes(connection, &mut arrived, ahead);
        if used < len && next != Next::Close {
            connection.reader.keep(&arrived.bytes()[used..]);
        }
        self.input.regions.put_back(spot, arrived);
        self.publish_lent();
        self.record_input(connection);
        next
    }

    /// Publishes the lent bytes for other threads, if their number has changed.
    pub(super) fn publish_lent(&self) {
        let (lent, noted) = (self.input.regions.lent_len(), &self.inbox().lent);
        if noted.load(Relaxed) != lent {
            noted.store(lent, Relaxed);
        }
    }

    /// Runs the requests that start in the connection's own buffer.
    fn run_input(&mut self, connection: &mut Connection) -> Next {
        // A request that alone exceeds the memory of all clients is not run, however its bytes arrived.
        let limit = self.executor.settings.client_memory_max();
        if limit > 0 && connection.reader.capacity() > limit {
            self.record_input(connection);
            self.evict_clients();
            if connection.client().killed.load(Relaxed) {
                return Next::Close;
            }
        }
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
}
