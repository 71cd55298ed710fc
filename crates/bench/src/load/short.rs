//! Short connections: connect, one request, its reply, close; then again, over this many connections at a
//! time.
//!
//! The connecting side closes first, as real clients do, so each connection leaves a port in TIME_WAIT for a
//! minute. A loop-back address has 28,000 ports by default, gone in two seconds. Therefore connections to a
//! loop-back address come from `SOURCES` addresses in turn, 127.0.0.1 and upwards: all of them are this
//! machine, and no setting is touched.
//!
//! Each connection makes a whole TLS handshake, if any, and sends the greeting: this is the cost of a client
//! that comes and goes. The request is sent along with the greeting.
//!
//! A connection that is refused, reset, closed without an answer or not answered within `ANSWER_TIMEOUT` is
//! counted and replaced by a new connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use socket2::{SockAddr, Socket};

use super::endpoint::{Address, Endpoint};
use super::greeting::{Answers, Greeting};
use super::replies::Replies;
use super::requests::Composer;
use super::stream::Stream;
use super::tally::Tally;
use super::{Driver, Plan, TURN_MAX, Until};
use crate::sys::{self, Poller};

/// Source addresses: 64 x 28,000 ports outlast the minute of TIME_WAIT up to 30,000 connections a second.
const SOURCES: u8 = 64;
/// A client gives up after this time. After a lost SYN, the kernel tries again at 1 s and at 3 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which all connections are checked for `ANSWER_TIMEOUT`.
const TIMEOUT_CHECK_INTERVAL: Duration = Duration::from_millis(250);
const READ_SIZE: usize = 16 * 1024;
/// A server's last message to a connection above its limit; it is not a reply to the greeting.
const FULL: &str = "max number of clients";

struct Client {
    stream: Stream,
    replies: Replies,
    /// Replies to its greeting.
    answers: Answers,
    request: Vec<u8>,
    started: Instant,
}

pub(super) struct ShortConnections {
    poller: Poller,
    server: Endpoint,
    greeting: Arc<Greeting>,
    clients: Vec<Option<Client>>,
    /// Places in `clients` that need a new connection.
    vacant: Vec<usize>,
    composer: Composer,
    budget: u64,
    source: u8,
    timeouts_checked: Instant,
    inbox: Box<[u8]>,
    tally: Tally,
}

/// The result of a step for its connection.
enum Step {
    Waiting,
    Answered,
    Refused,
    Failed,
}

impl ShortConnections {
    pub(super) fn new(share: &Plan, composer: Composer, greeting: Arc<Greeting>) -> Result<Self> {
        Ok(Self {
            poller: Poller::new().context("epoll")?,
            server: share.server.clone(),
            greeting,
            clients: (0..share.clients).map(|_| None).collect(),
            vacant: (0..share.clients).rev().collect(),
            composer,
            budget: if let Until::Requests(requests) = share.until { requests } else { u64::MAX },
            source: 0,
            timeouts_checked: Instant::now(),
            inbox: vec![0; READ_SIZE].into_boxed_slice(),
            tally: Tally::default(),
        })
    }

    /// Opens a connection in each vacant place. A failed place stays vacant until the next turn, so that a
    /// server that refuses everything does not hold the loop here.
    fn fill_vacancies(&mut self) -> Result<()> {
        for token in std::mem::take(&mut self.vacant) {
            if self.budget == 0 {
                return Ok(());
            }
            self.budget -= 1;
            let step = self.open(token)?;
            self.settle(token, step);
        }
        Ok(())
    }

    /// Connects and, since over loop-back the handshake is done by then, sends the request at once.
    fn open(&mut self, token: usize) -> Result<Step> {
        let started = Instant::now();
        let socket = self.socket()?;
        match socket.connect(&self.server.target()?) {
            Err(error) if !is_in_progress(&error) => return Ok(step_of(&error)),
            _ => self.poller.add(&socket, token, sys::BOTH_EDGES).context("epoll")?,
        }
        let mut request = self.greeting.bytes().to_vec();
        self.composer.append(&mut request);
        let stream = Stream::new(socket, self.server.tls_stream()?);
        let (replies, answers) = (self.server.protocol.replies(), self.greeting.answers());
        let client = Client { stream, replies, answers, request, started };
        Ok(self.clients[token].insert(client).send())
    }

    fn socket(&mut self) -> Result<Socket> {
        let socket = self.server.socket()?;
        socket.set_nonblocking(true)?;
        if let Address::Tcp(server) = self.server.address
            && server.ip().is_loopback()
            && server.is_ipv4()
        {
            self.source = (self.source + 1) % SOURCES;
            let source = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1 + self.source));
            bind_without_port(&socket)?;
            socket.bind(&SockAddr::from(SocketAddr::new(source, 0))).context("cannot bind")?;
        }
        Ok(socket)
    }

    fn settle(&mut self, token: usize, step: Step) {
        match step {
            Step::Waiting => return,
            Step::Answered => {}
            Step::Refused => self.tally.refused += 1,
            Step::Failed => self.tally.failed += 1,
        }
        self.clients[token] = None; // closes it
        self.vacant.push(token);
    }

    fn receive(&mut self, token: usize) -> Result<Step> {
        let Some(client) = &mut self.clients[token] else { return Ok(Step::Waiting) };
        loop {
            let size = match client.stream.read(&mut self.inbox) {
                Ok(0) => return Ok(Step::Failed),
                Ok(size) => size,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Step::Waiting),
                Err(error) => return Ok(step_of(&error)),
            };
            let mut bytes = &self.inbox[..size];
            if let Some(refusal) = client.answers.take(&self.greeting, &mut bytes)? {
                if !refusal.text.contains(FULL) {
                    bail!("{refusal}");
                }
                self.tally.record_error(|| refusal.text);
                return Ok(Step::Refused);
            }
            let counts = client.replies.feed(bytes)?;
            if counts.errors > 0 {
                self.tally.record_error(|| client.replies.error_text());
                return Ok(Step::Refused); // such as `FULL`
            }
            self.tally.answered(counts);
            if counts.replies > 0 {
                self.tally.took(client.started, 1);
                return Ok(Step::Answered);
            }
        }
    }

    fn close_timed_out(&mut self) {
        if self.timeouts_checked.elapsed() < TIMEOUT_CHECK_INTERVAL {
            return;
        }
        self.timeouts_checked = Instant::now();
        for token in 0..self.clients.len() {
            let is_timed_out = |client: &Client| client.started.elapsed() > ANSWER_TIMEOUT;
            if self.clients[token].as_ref().is_some_and(is_timed_out) {
                self.settle(token, Step::Failed);
            }
        }
    }
}

impl Driver for ShortConnections {
    fn begin(&mut self) -> Result<()> {
        self.fill_vacancies()
    }

    fn turn(&mut self) -> Result<bool> {
        // Failed connections are tried again soon, but not in a tight loop.
        let all_busy = self.vacant.is_empty() || self.budget == 0;
        let timeout = if all_busy { TURN_MAX } else { Duration::from_millis(1) };
        for index in 0..self.poller.wait(Some(timeout)).context("epoll")? {
            let event = self.poller.event(index);
            let mut step = Step::Waiting;
            if event.is_writable()
                && let Some(client) = &mut self.clients[event.token]
            {
                step = client.send();
            }
            if event.is_readable() && matches!(step, Step::Waiting) {
                step = self.receive(event.token)?;
            }
            self.settle(event.token, step);
        }
        self.close_timed_out();
        self.fill_vacancies()?;
        Ok(self.budget > 0 || self.clients.iter().any(Option::is_some))
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    fn longest_wait(&self) -> Duration {
        self.clients.iter().flatten().map(|client| client.started.elapsed()).max().unwrap_or_default()
    }

    fn late(&self) -> u64 {
        0
    }
}

impl Client {
    fn send(&mut self) -> Step {
        if let Err(error) = self.stream.push() {
            return step_of(&error);
        }
        while !self.request.is_empty() {
            match self.stream.write(&self.request) {
                Ok(size) => drop(self.request.drain(..size)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Step::Waiting,
                Err(error) => return step_of(&error),
            }
        }
        Step::Waiting
    }
}

/// Lets the kernel choose the port at connect, per destination: a port chosen at bind would have to be free
/// for all destinations.
fn bind_without_port(socket: &Socket) -> Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open, and the option's value is the integer whose size is given.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if rc < 0 { Err(std::io::Error::last_os_error()).context("cannot bind") } else { Ok(()) }
}

fn is_in_progress(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINPROGRESS)
}

/// A Unix socket returns `WouldBlock` when its listener's queue is full: there, the kernel does not retry for
/// the client.
fn step_of(error: &std::io::Error) -> Step {
    match error.kind() {
        ErrorKind::ConnectionRefused | ErrorKind::WouldBlock => Step::Refused,
        _ => Step::Failed,
    }
}
