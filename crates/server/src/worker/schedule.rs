//! The order in which a worker serves its connections within a turn, and the step after serving one.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::{Relaxed, Release};

use super::{Worker, reading};
use crate::worker::connection::Connection;
use evenkeel_net::poll::has_hung_up;
use evenkeel_runtime::clock;

/// Tokens of connections that are to be served.
#[derive(Default)]
pub(super) struct Schedule {
    /// Connections with data to read in this turn.
    pub(super) readable: Vec<u64>,
    /// Connections that have more to read, or whose pause has ended.
    pub(super) ready: VecDeque<u64>,
    /// Connections whose next command waits for the end of a pause.
    pub(super) parked: Vec<u64>,
    /// At the last check, all commands were paused, not only writing commands.
    all_wait: bool,
}

impl Schedule {
    /// Follows a pause: `all_wait` says whether all commands are paused, and not only writing commands.
    /// Returns whether some commands have become free to run since the last call.
    pub(super) fn fewer_wait(&mut self, all_wait: bool) -> bool {
        std::mem::replace(&mut self.all_wait, all_wait) && !all_wait
    }
}

/// The next step for a connection that has been served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for an event.
    Wait,
    /// Serve it again in the next turn: there may be more to read.
    Again,
    Park,
    /// Wait until its command no longer waits.
    Suspend,
    Close,
}

impl Worker {
    /// Serves the connections of this turn's events, group by group.
    pub(super) fn serve_readable(&mut self) {
        let mut readable = std::mem::take(&mut self.schedule.readable);
        for group in readable.chunks(reading::GROUP) {
            self.read_group(group);
            if self.input.arrivals.len() > 1 {
                self.prefetch_first();
            }
            let mut arrivals = std::mem::take(&mut self.input.arrivals);
            for arrival in arrivals.drain(..) {
                self.serve_arrival(arrival);
                self.timers.exclude(self.background.slice_between(&mut self.executor));
            }
            self.input.arrivals = arrivals;
        }
        readable.clear();
        self.schedule.readable = readable;
    }

    /// Serves connections with work left over, until a share is used up: a connection with new data waits for
    /// two shares at most.
    pub(super) fn serve_ready(&mut self) {
        if self.schedule.ready.is_empty() {
            return;
        }
        let until = clock::ticks() + self.executor.share;
        for _ in 0..self.schedule.ready.len() {
            let Some(token) = self.schedule.ready.pop_front() else { return };
            if let Some(mut connection) = self.connections.take(token) {
                connection.is_ready = false;
                self.serve(token, connection);
                self.timers.exclude(self.background.slice_between(&mut self.executor));
            }
            if self.executor.last_ticks >= until {
                return;
            }
        }
    }

    /// Marks a connection to be served after all connections with new events.
    pub(super) fn make_ready(&mut self, token: u64, connection: &mut Connection) {
        if !std::mem::replace(&mut connection.is_ready, true) {
            self.schedule.ready.push_back(token);
        }
    }

    /// Reads, runs and replies; then puts the connection back or closes it.
    pub(super) fn serve(&mut self, token: u64, mut connection: Box<Connection>) {
        self.executor.begin_share();
        let next = self.read_and_run(&mut connection);
        self.settle(token, connection, next);
    }

    /// Takes the next step for a connection that has been served: puts it back or closes it.
    pub(super) fn settle(&mut self, token: u64, mut connection: Box<Connection>, next: Next) {
        connection.is_heavy = self.executor.is_time_up();
        if next != Next::Park && connection.client().parked.load(Relaxed) {
            connection.client().parked.store(false, Release);
        }
        match next {
            Next::Wait => self.connections.put_back(token, connection),
            Next::Again => {
                self.make_ready(token, &mut connection);
                self.connections.put_back(token, connection);
            }
            Next::Park => {
                // A hang-up announced together with the command is not announced again.
                if has_hung_up(connection.fd().as_raw_fd()) {
                    return self.close(token, connection);
                }
                connection.parked = true;
                connection.client().blocked.store(true, Relaxed);
                connection.client().parked.store(true, Relaxed);
                self.schedule.parked.push(token);
                self.connections.put_back(token, connection);
            }
            Next::Suspend => self.suspend(token, connection),
            Next::Close => self.close(token, connection),
        }
    }

    /// Makes the parked connections ready, after a pause.
    pub(super) fn unpark(&mut self) {
        for token in std::mem::take(&mut self.schedule.parked) {
            if let Some(mut connection) = self.connections.take(token) {
                connection.parked = false;
                connection.client().blocked.store(false, Relaxed);
                self.make_ready(token, &mut connection);
                self.connections.put_back(token, connection);
            }
        }
    }
}
