//! Kept connections: each sends a batch, waits for all its replies, and sends the next.
//!
//! A turn costs per ready connection one read and one write, and a share of one `epoll_wait`. It reads from all that are
//! ready before it writes to any: the kernel's code for each direction stays in the cache, which is worth about 5%
//! without a pipeline, where 98% of the generator's time is the kernel's.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::replies::Skipper;
use super::requests::Composer;
use super::tally::Tally;
use super::{Driver, Plan, TURN_MS_MAX, Until};
use crate::sys::{self, Poller};

/// A read takes up to this much: a batch of 16 replies of 500 bytes fits eight times.
const READ_SIZE: usize = 64 * 1024;
/// Longest that a connection may take to be opened.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);

struct Client {
    stream: TcpStream,
    replies: Skipper,
    /// Replies until the batch is complete; 0: nothing is under way.
    awaited: u64,
    sent_at: Instant,
    /// What the socket did not take of the batch.
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
    batch: Vec<u8>,
    inbox: Box<[u8]>,
    tally: Tally,
}

impl KeptConnections {
    /// Opens the connections of this share.
    pub(super) fn new(share: &Plan, composer: Composer) -> Result<Self> {
        let poller = Poller::new().context("epoll")?;
        let mut clients = Vec::with_capacity(share.clients);
        for token in 0..share.clients {
            let client =
                Client::connect(share).with_context(|| format!("cannot connect to {}", share.server))?;
            poller.add(&client.stream, token, sys::BOTH_EDGES).context("epoll")?;
            clients.push(client);
        }
        Ok(Self {
            poller,
            clients,
            composer,
            pipeline: share.pipeline as u64,
            budget: if let Until::Requests(requests) = share.until { requests } else { u64::MAX },
            busy: 0,
            ready: Vec::new(),
            batch: Vec::new(),
            inbox: vec![0; READ_SIZE].into_boxed_slice(),
            tally: Tally::default(),
        })
    }

    /// Sends the next batch of a connection that has nothing under way, as far as requests are left.
    fn send(&mut self, token: usize) -> Result<()> {
        let requests = self.pipeline.min(self.budget);
        if requests == 0 {
            return Ok(());
        }
        self.budget -= requests;
        self.batch.clear();
        (0..requests).for_each(|_| self.composer.append(&mut self.batch));
        let client = &mut self.clients[token];
        client.awaited = requests;
        client.sent_at = Instant::now();
        self.busy += 1;
        client.send(&self.batch)
    }

    /// Reads what has come for a connection; when its batch is complete, it becomes ready for the next.
    fn receive(&mut self, token: usize) -> Result<()> {
        loop {
            let client = &mut self.clients[token];
            let size = match client.stream.read(&mut self.inbox) {
                Ok(0) => bail!("the server closed a connection{}", client.last_words()),
                Ok(size) => size,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("cannot read from the server"),
            };
            let counts = client.replies.feed(&self.inbox[..size])?;
            if counts.errors > 0 {
                self.tally.note_error(|| client.replies.error_text());
            }
            if counts.replies > client.awaited {
                bail!("the server sent more replies than there were requests{}", client.last_words());
            }
            client.awaited -= counts.replies;
            self.tally.answered(counts);
            if client.awaited == 0 && counts.replies > 0 {
                self.tally.took(client.sent_at.elapsed());
                self.busy -= 1;
                self.ready.push(token);
                return Ok(());
            }
            if size < READ_SIZE {
                return Ok(()); // the rest will be a new edge
            }
        }
    }
}

impl Driver for KeptConnections {
    fn begin(&mut self) -> Result<()> {
        (0..self.clients.len()).try_for_each(|token| self.send(token))
    }

    fn turn(&mut self) -> Result<bool> {
        if self.busy == 0 {
            return Ok(false);
        }
        for index in 0..self.poller.wait(TURN_MS_MAX).context("epoll")? {
            let event = self.poller.event(index);
            if event.is_writable() && !self.clients[event.token].unsent.is_empty() {
                let rest = std::mem::take(&mut self.clients[event.token].unsent);
                self.clients[event.token].send(&rest)?;
            }
            if event.is_readable() {
                self.receive(event.token)?;
            }
        }
        while let Some(token) = self.ready.pop() {
            self.send(token)?;
        }
        Ok(true)
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    fn longest_wait(&self) -> Duration {
        let waiting = self.clients.iter().filter(|client| client.awaited > 0);
        waiting.map(|client| client.sent_at.elapsed()).max().unwrap_or_default()
    }
}

impl Client {
    fn connect(plan: &Plan) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&plan.server, CONNECT_TIME_MAX)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let (replies, unsent) = (Skipper::new(), Vec::new());
        Ok(Self { stream, replies, awaited: 0, sent_at: Instant::now(), unsent })
    }

    /// Writes `bytes`; what the socket does not take waits until it is writable again.
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

    fn last_words(&self) -> String {
        match self.replies.error_text() {
            text if text.is_empty() => text,
            text => format!(" after the error {text:?}"),
        }
    }
}
