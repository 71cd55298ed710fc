//! Kept connections: each sends a batch, waits for all its replies, and sends the next, at once or when it is
//! due.
//!
//! A turn costs a read and a write per ready connection, and a share of an `epoll_wait`. It reads from all
//! ready connections before it writes to any: the kernel's code for each direction stays in the cache. This
//! is worth about 5% without a pipeline, where 98% of the generator's time is the kernel's.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::greeting::Greeting;
use super::replies::Replies;
use super::requests::Composer;
use super::schedule::Schedule;
use super::stream::Stream;
use super::tally::Tally;
use super::{Driver, Plan, TURN_MAX, Until};
use crate::sys::{self, Poller};

/// Largest read: a batch of 16 replies of 500 bytes fits eight times.
const READ_SIZE: usize = 64 * 1024;

struct Client {
    stream: Stream,
    replies: Replies,
    /// Replies until the batch is complete; 0: no batch is under way.
    awaited: u64,
    /// Requests of that batch; its time runs from when it was sent or, in an open loop, was due.
    sent: u64,
    sent_at: Instant,
    /// Bytes of the batch that the socket did not take.
    unsent: Vec<u8>,
}

pub(super) struct KeptConnections {
    poller: Poller,
    clients: Vec<Client>,
    composer: Composer,
    pipeline: u64,
    /// Requests that may still be sent.
    budget: u64,
    /// Connections with a batch under way.
    busy: usize,
    /// Connections whose batch this turn completed.
    ready: Vec<usize>,
    /// In an open loop, the connections without a batch under way, and the schedule of the batches.
    idle: VecDeque<usize>,
    schedule: Option<Schedule>,
    batch: Vec<u8>,
    inbox: Box<[u8]>,
    tally: Tally,
}

impl KeptConnections {
    /// Opens the connections of this share.
    pub(super) fn new(share: &Plan, composer: Composer, greeting: &Greeting, index: usize) -> Result<Self> {
        let poller = Poller::new().context("epoll")?;
        let mut clients = Vec::with_capacity(share.clients);
        for token in 0..share.clients {
            let client = Client::connect(share, greeting)
                .with_context(|| format!("cannot connect to {}", share.server))?;
            poller.add(&client.stream, token, sys::BOTH_EDGES).context("epoll")?;
            clients.push(client);
        }
        let threads = share.threads as f64;
        let schedule = share
            .rate
            .map(|rate| Schedule::new(rate / threads / share.pipeline as f64, index, share.threads));
        Ok(Self {
            poller,
            clients,
            composer,
            pipeline: share.pipeline as u64,
            budget: if let Until::Requests(requests) = share.until { requests } else { u64::MAX },
            busy: 0,
            ready: Vec::new(),
            idle: VecDeque::new(),
            schedule,
            batch: Vec::new(),
            inbox: vec![0; READ_SIZE].into_boxed_slice(),
            tally: Tally::default(),
        })
    }

    /// Sends the next batch of an idle connection, as far as requests are left.
    fn send(&mut self, token: usize, due: Instant) -> Result<()> {
        let requests = self.pipeline.min(self.budget);
        if requests == 0 {
            return Ok(());
        }
        self.budget -= requests;
        self.batch.clear();
        (0..requests).for_each(|_| self.composer.append(&mut self.batch));
        let client = &mut self.clients[token];
        (client.awaited, client.sent) = (requests, requests);
        client.sent_at = due;
        self.busy += 1;
        client.send(&self.batch)
    }

    /// Sends the batches that are due, as far as connections are idle.
    fn send_what_is_due(&mut self) -> Result<()> {
        while let Some(&token) = self.idle.front()
            && let Some(due) = self.schedule.as_mut().and_then(|schedule| schedule.take(Instant::now()))
        {
            self.idle.pop_front();
            self.send(token, due)?;
        }
        Ok(())
    }

    /// Returns how long a turn may wait.
    fn poll_timeout(&self) -> Duration {
        let due = self.schedule.as_ref().filter(|_| !self.idle.is_empty() && self.budget > 0);
        due.map_or(TURN_MAX, |schedule| schedule.until_due(Instant::now()).min(TURN_MAX))
    }

    /// Reads incoming bytes of a connection; when its batch is complete, the connection becomes ready for the
    /// next.
    fn receive(&mut self, token: usize) -> Result<()> {
        loop {
            let client = &mut self.clients[token];
            let size = match client.stream.read(&mut self.inbox) {
                Ok(0) => bail!("the server closed a connection{}", client.final_error()),
                Ok(size) => size,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("cannot read from the server"),
            };
            let counts = client.replies.feed(&self.inbox[..size])?;
            if counts.errors > 0 {
                self.tally.record_error(|| client.replies.error_text());
            }
            if counts.replies > client.awaited {
                let words = client.final_error();
                bail!(
                    "the server sent more replies than there were \
                     requests; does it speak this protocol?{words}"
                );
            }
            client.awaited -= counts.replies;
            self.tally.answered(counts);
            if client.awaited == 0 && counts.replies > 0 {
                self.tally.took(client.sent_at, client.sent);
                self.busy -= 1;
                self.ready.push(token);
                return Ok(());
            }
            if size < READ_SIZE && !client.stream.reads_in_parts() {
                return Ok(()); // the rest will be a new edge
            }
        }
    }
}

impl Driver for KeptConnections {
    fn begin(&mut self) -> Result<()> {
        if let Some(schedule) = &mut self.schedule {
            schedule.begin();
            self.idle = (0..self.clients.len()).collect();
            return self.send_what_is_due();
        }
        (0..self.clients.len()).try_for_each(|token| self.send(token, Instant::now()))
    }

    fn turn(&mut self) -> Result<bool> {
        if self.busy == 0 && (self.schedule.is_none() || self.budget == 0) {
            return Ok(false);
        }
        for index in 0..self.poller.wait(Some(self.poll_timeout())).context("epoll")? {
            let event = self.poller.event(index);
            if event.is_writable() {
                self.clients[event.token].go_on()?;
            }
            if event.is_readable() {
                self.receive(event.token)?;
            }
        }
        if self.schedule.is_some() {
            self.idle.extend(self.ready.drain(..));
            self.send_what_is_due()?;
        }
        while let Some(token) = self.ready.pop() {
            self.send(token, Instant::now())?;
        }
        Ok(true)
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    fn longest_wait(&self) -> Duration {
        let waiting = self.clients.iter().filter(|client| client.awaited > 0);
        let answered_last = waiting.map(|client| client.sent_at.elapsed()).max().unwrap_or_default();
        let unsent = self.schedule.as_ref().map(|schedule| schedule.late_by(Instant::now()));
        answered_last.max(unsent.unwrap_or_default())
    }

    fn late(&self) -> u64 {
        self.schedule.as_ref().map_or(0, |schedule| schedule.late(Instant::now()) * self.pipeline)
    }
}

impl Client {
    fn connect(plan: &Plan, greeting: &Greeting) -> Result<Self> {
        let stream = plan.server.open(greeting)?;
        let (replies, unsent) = (plan.server.protocol.replies(), Vec::new());
        Ok(Self { stream, replies, awaited: 0, sent: 0, sent_at: Instant::now(), unsent })
    }

    /// Sends the bytes that the socket did not take before.
    fn go_on(&mut self) -> Result<()> {
        self.stream.push().context("cannot write to the server")?;
        let rest = std::mem::take(&mut self.unsent);
        self.send(&rest)
    }

    /// Writes `bytes`; the part that the socket does not take waits until the socket is writable again.
    fn send(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(size) => bytes = &bytes[size..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.unsent.extend_from_slice(bytes);
                    return Ok(());
                }
                Err(error) => return Err(error).context("cannot write to the server"),
            }
        }
        Ok(())
    }

    fn final_error(&self) -> String {
        match self.replies.error_text() {
            text if text.is_empty() => text,
            text => format!(" after the error {text:?}"),
        }
    }
}
