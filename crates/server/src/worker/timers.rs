//! Timers of a worker: ten times a second it checks its connections, publishes its load, and passes busy
//! connections on.

use std::sync::atomic::Ordering::Relaxed;

use super::Worker;
use crate::executor::record_stage;
use crate::observe::stats::Stage;
use crate::worker::connection::Connection;
use evenkeel_client::pubsub::push_queue;
use evenkeel_runtime::clock::{self, Ticks};

/// Milliseconds between two rounds of timers.
pub(super) const TICK_MS: u64 = 100;

/// A worker that is busy for less than this many thousandths of its time continues background work that can
/// wait.
const CALM: u64 = 100;

/// Milliseconds for which a connection that was shut down for writing waits for replies that the disk delays.
const LAST_REPLY_MS: u64 = 10_000;

/// The times of a worker's turns. They do not follow the wall clock, which may be set back.
pub(super) struct Timers {
    /// Start of the present turn. Background work is added to it, since it does not count as load.
    turn_began: Ticks,
    next_tick: Ticks,
    /// Commands that had run when the present turn began.
    commands_before: u64,
    /// Index of the place among the connections that was swept last.
    sweep_at: usize,
    /// Time spent in turns since `busy_since`.
    busy: Ticks,
    busy_since: Ticks,
}

impl Timers {
    pub(super) fn new() -> Timers {
        let now = clock::ticks();
        Timers { turn_began: now, next_tick: 0, commands_before: 0, sweep_at: 0, busy: 0, busy_since: now }
    }

    /// Ends a turn at `now`, when `commands` have run in all: the worker waits for events. Returns the time
    /// of the turn and its commands.
    pub(super) fn end_turn(&mut self, now: Ticks, commands: u64) -> (Ticks, u64) {
        let ticks = now.saturating_sub(self.turn_began);
        self.busy += ticks;
        (ticks, commands.saturating_sub(std::mem::replace(&mut self.commands_before, commands)))
    }

    pub(super) fn begin_turn(&mut self, now: Ticks) {
        self.turn_began = now;
    }

    /// Excludes background work from the load.
    pub(super) fn exclude(&mut self, ticks: Ticks) {
        self.turn_began += ticks;
    }

    /// Returns whether a round of timers is due in this turn; then the next round is due [`TICK_MS`] later.
    pub(super) fn take_tick(&mut self) -> bool {
        let is_due = self.turn_began >= self.next_tick;
        if is_due {
            self.next_tick = self.turn_began + TICK_MS * 1000 * clock::ticks_per_us();
        }
        is_due
    }

    /// Returns the milliseconds until the next round, rounded up.
    pub(super) fn until_tick_ms(&self) -> u64 {
        clock::us(self.next_tick.saturating_sub(clock::ticks())).div_ceil(1000)
    }

    /// Returns the thousandths of the time since the last call that the worker was busy.
    fn take_load(&mut self) -> u64 {
        let now = clock::ticks();
        let elapsed = now.saturating_sub(self.busy_since).max(1);
        let busy = (self.busy * 1000 / elapsed).min(1000);
        (self.busy, self.busy_since) = (0, now);
        busy
    }
}

impl Worker {
    /// Runs a round of timers, every [`TICK_MS`].
    pub(super) fn tick(&mut self) {
        let before = clock::ticks();
        self.listen_again();
        self.sweep();
        self.evict_clients();
        self.balance();
        self.server.core.keyspace.tidy(&mut self.executor.ctx);
        self.input.regions.trim();
        self.publish_lent();
        self.background.tick(&self.executor, self.inbox().busy.load(Relaxed) < CALM);
        self.server.hub.tracking.trim();
        push_queue::notify_workers(&self.server.hub);
        record_stage(self.executor.stats(), Stage::Other, before);
    }

    /// Checks a tenth of the connections: for idle clients, for clients that do not read, and for unused
    /// memory.
    fn sweep(&mut self) {
        let places = self.connections.places();
        for _ in 0..places.div_ceil(10) {
            self.timers.sweep_at =
                if self.timers.sweep_at + 1 >= places { 0 } else { self.timers.sweep_at + 1 };
            let token = self.connections.token(self.timers.sweep_at);
            let Some(mut connection) = self.connections.take(token) else { continue };
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
            self.connections.put_back(token, connection);
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
    pub(super) fn evict_clients(&mut self) {
        self.kept_for_clients = 0;
        let limit = self.executor.settings.client_memory_max();
        if limit > 0 {
            self.server.evict_clients(limit);
        }
    }

    /// Publishes the load of this worker, and moves a busy connection if another worker has time for it.
    fn balance(&mut self) {
        let busy = self.timers.take_load();
        self.inbox().busy.store(busy, Relaxed);
        let others = self.server.inboxes.iter().enumerate().filter(|(index, _)| *index != self.index);
        let idlest = others.map(|(index, inbox)| (inbox.busy.load(Relaxed), index)).min();
        let mut active: Vec<(u32, u64)> = Vec::new();
        for token in self.connections.tokens() {
            let Some(connection) = self.connections.get_mut(token) else { continue };
            let waits = connection.parked || connection.session.waiting.is_some() || connection.has_unsent();
            if connection.activity > 0 && !waits {
                active.push((connection.activity, token));
            }
            connection.activity = 0;
        }
        let Some((their_busy, worker)) = idlest else { return };
        // Moving the only busy connection would only move the load.
        let stays = self.server.handover.keeps_connections();
        if busy < 800 || their_busy + 300 > busy || active.len() < 2 || stays {
            return;
        }
        active.sort_unstable();
        // Connections of middling activity: with many alike, a connection at a time evens out within a
        // second.
        let moving = active.len().div_ceil(8);
        for (_, token) in active.into_iter().take(moving) {
            if let Some(connection) = self.connections.take(token) {
                self.vacate(token, &connection);
                self.send_to(worker, connection);
            }
        }
    }
}
