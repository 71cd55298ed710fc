//! The thread that polls the server, and connects again when the connection is lost.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use crate::connection::{Connection, Target};
use crate::poll::{Opened, Polls, Sample, View};

/// Shortest and longest pause before the next attempt to connect.
const BACKOFF: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(8)];

/// A view's own command runs no more often than once in so many times its duration: the list of many
/// thousand clients is much work for the server.
const EXTRA_PAUSE: u32 = 50;

/// The view on the screen, and when to poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) view: View,
    pub(crate) interval: Duration,
    pub(crate) is_paused: bool,
}

/// A message of the poller to the screen.
#[derive(Debug)]
pub(crate) enum Update {
    Sample(Box<Sample>),
    /// The reply for a view that was just opened.
    Extra(Opened),
    Lost {
        reason: String,
        retry: Instant,
    },
}

/// The screen has gone: the thread ends.
struct Gone;

type Polled<T> = Result<T, Gone>;

/// The thread's state.
struct Poller {
    request: Request,
    requests: Receiver<Request>,
    updates: Sender<Update>,
    polls: Polls,
    /// Before this time, the view's own command does not run again.
    extra_due: Instant,
}

/// Polls until the receiver of the updates is dropped.
pub(crate) fn run(target: &Target, request: Request, requests: Receiver<Request>, updates: Sender<Update>) {
    let polls = Polls::default();
    let mut poller = Poller { request, requests, updates, polls, extra_due: Instant::now() };
    let mut backoff = BACKOFF[0];
    loop {
        let begun = Instant::now();
        let lost = match target.connect() {
            Ok(connection) => poller.serve(connection),
            Err(reason) => Ok(reason),
        };
        let Ok(reason) = lost else { return };
        if begun.elapsed() > BACKOFF[1] {
            backoff = BACKOFF[0];
        }
        let retry = Instant::now() + backoff;
        if poller.send(Update::Lost { reason, retry }).is_err() || poller.wait_for_retry(retry).is_err() {
            return;
        }
        backoff = (backoff * 2).min(BACKOFF[1]);
    }
}

impl Poller {
    /// Polls over a connection. Returns the reason why the connection is lost.
    fn serve(&mut self, mut connection: Connection) -> Polled<String> {
        self.polls = Polls::default(); // another server may have started there
        let mut next = Instant::now();
        loop {
            if let Err(reason) = self.wait(&mut connection, &mut next)? {
                return Ok(reason);
            }
            let now = Instant::now();
            let view = (now >= self.extra_due).then_some(self.request.view);
            match self.polls.poll(&mut connection, view) {
                Ok(sample) => self.send(Update::Sample(Box::new(sample)))?,
                Err(reason) => return Ok(reason),
            }
            if view.and_then(View::command).is_some() {
                self.extra_due = Instant::now() + now.elapsed() * EXTRA_PAUSE;
            }
            next = (next + self.request.interval).max(Instant::now());
        }
    }

    /// Waits until the next poll, and serves requests meanwhile. The inner error is the reason why the
    /// connection is lost.
    fn wait(&mut self, connection: &mut Connection, next: &mut Instant) -> Polled<Result<(), String>> {
        loop {
            let left = next.saturating_duration_since(Instant::now());
            let received = if self.request.is_paused {
                self.requests.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                self.requests.recv_timeout(left)
            };
            match received {
                Ok(request) => {
                    if let Err(reason) = self.take(request, connection, next)? {
                        return Ok(Err(reason));
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Ok(Ok(())),
                Err(RecvTimeoutError::Disconnected) => return Err(Gone),
            }
        }
    }

    fn take(
        &mut self,
        request: Request,
        connection: &mut Connection,
        next: &mut Instant,
    ) -> Polled<Result<(), String>> {
        let before = std::mem::replace(&mut self.request, request);
        if before.interval != request.interval {
            *next = (*next + request.interval).checked_sub(before.interval).unwrap_or(*next);
        }
        if before.view == request.view || request.view.command().is_none() {
            return Ok(Ok(()));
        }
        match Polls::extra(connection, request.view) {
            Ok(Some(opened)) => self.send(Update::Extra(opened))?,
            Ok(None) => {}
            Err(reason) => return Ok(Err(reason)),
        }
        Ok(Ok(()))
    }

    /// Waits until the next attempt to connect. Requests change the state only.
    fn wait_for_retry(&mut self, retry: Instant) -> Polled<()> {
        loop {
            match self.requests.recv_timeout(retry.saturating_duration_since(Instant::now())) {
                Ok(request) => self.request = request,
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => return Err(Gone),
            }
        }
    }

    fn send(&self, update: Update) -> Polled<()> {
        self.updates.send(update).map_err(|_| Gone)
    }
}
