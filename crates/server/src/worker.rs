//! A worker: a thread, an event loop, and the connections that it serves.
//!
//! A turn: wait for events; accept; read each readable connection once, run the received requests as batches,
//! and send the replies in a single write; read the inbox; timers; a slice of background work, if there is
//! any. A connection that keeps sending, or whose commands take long, continues in the next turn, so it
//! cannot keep the other connections waiting.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use self::inbox::{Inbox, Message};
use crate::executor::Executor;
use crate::observe::stats::{Stage, add};
use crate::server::Server;
use crate::worker::background::Background;
use crate::worker::pipeline::Pipeline;
use evenkeel_command::reply::Reply;
use evenkeel_core::blockers::Blockers;
use evenkeel_net::poll::{Event, Poll};
use evenkeel_runtime::allocator;
use evenkeel_runtime::clock;

use self::accept::Acceptor;
use self::connection_table::ConnectionTable;
use self::durable::DurabilityWaits;
use self::reading::Input;
use self::schedule::Schedule;
use self::suspended::Waits;
use self::timers::{TICK_MS, Timers};

mod accept;
pub(crate) mod background;
mod compaction;
pub(crate) mod connection;
mod connection_table;
mod delivery;
mod durable;
mod freezing;
mod handshakes;
pub(crate) mod inbox;
pub(crate) mod pipeline;
mod reading;
mod replies;
pub(crate) mod request_reader;
mod schedule;
mod suspended;
mod timers;

/// Bytes kept for clients after which the worker checks for clients that use too much memory.
const KEPT_FOR_CLIENTS_MAX: usize = 256 * 1024;

const WAKEUP_TOKEN: u64 = u64::MAX;
/// Tokens from here on are listeners' ids; connections' tokens are below.
const LISTENER_TOKENS: u64 = 1 << 63;

/// A worker's state; see the module's text.
pub(crate) struct Worker {
    index: usize,
    server: Arc<Server>,
    poll: Poll,
    executor: Executor,
    pipeline: Pipeline,
    background: Background,
    connections: ConnectionTable,
    acceptor: Acceptor,
    /// Connections with received data of a TLS handshake, in order of arrival.
    handshakes: VecDeque<u64>,
    schedule: Schedule,
    input: Input,
    reply: Reply,
    durability: DurabilityWaits,
    waits: Waits,
    timers: Timers,
    /// The time at the start of this turn.
    now_ms: u64,
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
            poll,
            executor: Executor::new(server.clone(), index).that_answers(),
            pipeline: Pipeline::default(),
            background: Background::new(index, server.core.workers.count()),
            connections: ConnectionTable::default(),
            acceptor: Acceptor::new(listeners),
            handshakes: VecDeque::new(),
            schedule: Schedule::default(),
            input: Input::new(),
            reply: Reply::default(),
            durability: DurabilityWaits::default(),
            waits: Waits::default(),
            timers: Timers::new(),
            now_ms: clock::unix_ms(),
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
        for token in self.connections.tokens() {
            if let Some(connection) = self.connections.take(token) {
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
        let stats = self.executor.stats();
        let (ticks, commands) = self.timers.end_turn(before, stats.commands_run.load(Relaxed));
        stats.record_turn(ticks, commands);
        let events = self.poll.wait(timeout)?;
        self.inbox().awake();
        let now = clock::ticks(); // needed for the load even without accounting
        self.timers.begin_turn(now);
        self.executor.stats().turn_began.store(now, Relaxed);
        self.executor.stats().record_stage(Stage::Idle, now.saturating_sub(before));
        self.executor.last_ticks = now;
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
        self.retry_waits();
        self.leave_later();
        if self.kept_for_clients > KEPT_FOR_CLIENTS_MAX {
            self.evict_clients();
        }
        if self.server.persist.aof.is_on() || self.has_held_back() {
            self.look_at_log();
        }
        self.accept_waiting();
        self.read_inbox();
        if self.timers.take_tick() && !self.server.pauses_timers.load(Relaxed) {
            self.tick();
        }
        allocator::settle();
        self.timers.exclude(self.background.slice(&mut self.executor));
        Ok(())
    }

    /// Returns the timeout of the next wait: zero if there is work, otherwise the time until the next tick.
    fn timeout_ms(&mut self) -> i32 {
        if !self.schedule.ready.is_empty()
            || !self.handshakes.is_empty()
            || self.background.is_pending()
            || !self.inbox().may_sleep()
        {
            return 0;
        }
        let mut until = u64::MAX;
        if !self.schedule.parked.is_empty() && self.server.core.pause.is_active(self.now_ms) {
            until = until.min(self.server.core.pause.until_ms(self.now_ms));
        }
        if let Some(due_in_ms) = self.background.due_in_ms() {
            until = until.min(clock::unix_ms() + due_in_ms);
        }
        until = until.min(self.acceptor.first_due_ms().unwrap_or(u64::MAX));
        let until_tick_ms = self.timers.until_tick_ms();
        let left_ms = until.saturating_sub(clock::unix_ms()).min(until_tick_ms).min(TICK_MS);
        left_ms.min(self.first_deadline_ms().unwrap_or(TICK_MS)) as i32
    }

    fn on_event(&mut self, event: Event) {
        if event.token == WAKEUP_TOKEN {
            add(&self.executor.stats().wakeups, 1);
            return self.inbox().drain_wakeup();
        }
        if event.token >= LISTENER_TOKENS {
            return self.acceptor.ready.push(event.token - LISTENER_TOKENS);
        }
        let Some(mut connection) = self.connections.take(event.token) else { return };
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
                self.schedule.readable.push(event.token);
            }
        }
        self.connections.put_back(event.token, connection);
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
                Message::ShardsLeft => self.end_shard_channels(),
                Message::Freeze(freeze) => self.freeze(&freeze),
            }
        }
        let may_resume = || {
            let is_crowded = self.server.core.blockers.any().contains(Blockers::CROWDED);
            let has_paused =
                || self.server.cluster.as_ref().is_some_and(|cluster| cluster.has_paused_slots());
            let holds_writers = self.server.replication.moves.holds_writers();
            !is_crowded && !holds_writers && !self.server.core.pause.is_active(self.now_ms) && !has_paused()
        };
        let fewer_wait = self.schedule.fewer_wait(self.server.core.pause.is_of_all(self.now_ms));
        if !self.schedule.parked.is_empty() && (fewer_wait || may_resume()) {
            self.unpark();
        }
    }

    fn close_killed(&mut self) {
        for token in self.connections.tokens() {
            let connection = self.connections.get(token);
            if connection.is_some_and(|connection| connection.client().killed.load(Relaxed))
                && let Some(connection) = self.connections.take(token)
            {
                self.close(token, connection);
            }
        }
    }
}
