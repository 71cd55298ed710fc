//! The floor: a server that does nothing but the system calls.
//!
//! A single thread with an epoll loop: read, find where the requests end, answer each with a fixed reply,
//! write once. Its cost is the kernel's cost; no server that reads and writes sockets like this can be
//! cheaper. `*2` is taken for a GET and answered with a value of fixed size, `*1` for a PING, all else for a
//! SET.
//!
//! Requests are measured once: the first request of a kind is read byte by byte. Later requests that begin
//! alike are assumed to have the same length, if a request (or nothing) begins where they would end. So the
//! floor does not pay for a parser.
//!
//! A client that sends REPLCONF and PSYNC is a replica, and gets all requests from then on, without a
//! snapshot before.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use socket2::{Domain, Socket, Type};

use crate::load::replies::Skipper;
use crate::sys::{self, Poller};

mod feed;

use feed::Feed;

/// The reply to a replica: a stream that begins at 0, behind an empty snapshot.
const FULL_RESYNC: &[u8] = b"+FULLRESYNC 0000000000000000000000000000000000000000 0\r\n$0\r\n";
const READ_SIZE: usize = 64 * 1024;
const LISTENER: usize = usize::MAX;
/// Most connections that a turn accepts, so that open connections are served meanwhile.
const ACCEPT_MAX: usize = 1_024;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Port to listen on, at 127.0.0.1
    #[arg(long)]
    port: u16,
    /// Bytes of the value that each GET is answered with
    #[arg(long, default_value_t = 500)]
    value_size: usize,
    /// Length of the queue of connections that wait to be accepted
    #[arg(long, default_value_t = 511, overrides_with = "tcp_backlog")]
    tcp_backlog: i32,
}

struct Client {
    socket: Socket,
    /// The beginning of an incomplete request.
    part: Vec<u8>,
    unsent: Vec<u8>,
}

struct Floor {
    poller: Poller,
    listener: Socket,
    clients: Vec<Option<Client>>,
    vacant: Vec<usize>,
    lengths: Lengths,
    value: Vec<u8>,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    feeds: Vec<Feed>,
}

/// Serves until the process is ended.
pub(crate) fn serve(args: &Args) -> Result<()> {
    let mut floor = Floor::listen(args)?;
    loop {
        floor.turn()?;
    }
}

impl Floor {
    fn listen(args: &Args) -> Result<Self> {
        let listener = Socket::new(Domain::IPV4, Type::STREAM.nonblocking().cloexec(), None)?;
        listener.set_reuse_address(true)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
        listener.bind(&address.into()).with_context(|| format!("cannot listen on {address}"))?;
        listener.listen(args.tcp_backlog)?;
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER, sys::READABLE)?;
        let value =
            [format!("${}\r\n", args.value_size).as_bytes(), &vec![b'x'; args.value_size], b"\r\n"].concat();
        Ok(Self {
            poller,
            listener,
            clients: Vec::new(),
            vacant: Vec::new(),
            lengths: Lengths::default(),
            value,
            inbox: vec![0; READ_SIZE],
            outbox: Vec::new(),
            feeds: Vec::new(),
        })
    }

    fn turn(&mut self) -> Result<()> {
        for index in 0..self.poller.wait(None)? {
            let event = self.poller.event(index);
            if event.token == LISTENER {
                self.accept()?;
                continue;
            }
            let Some(mut client) = self.clients[event.token].take() else { continue };
            match self.serve_client(&mut client, event) {
                Some(Next::More) => self.clients[event.token] = Some(client),
                None => self.vacant.push(event.token),
                Some(Next::Feed) => {
                    self.vacant.push(event.token);
                    self.poller.remove(&client.socket)?;
                    self.feeds.push(Feed::start(client.socket)?);
                }
            }
        }
        Ok(())
    }

    /// Accepts waiting connections. Failing accepts (too many open files, a connection reset in the queue)
    /// are left for later.
    fn accept(&mut self) -> Result<()> {
        for _ in 0..ACCEPT_MAX {
            let Ok((socket, _)) = self.listener.accept() else { return Ok(()) };
            socket.set_nonblocking(true)?;
            socket.set_tcp_nodelay(true)?;
            let token = self.vacant.pop().unwrap_or_else(|| {
                self.clients.push(None);
                self.clients.len() - 1
            });
            self.poller.add(&socket, token, sys::BOTH_EDGES)?;
            self.clients[token] = Some(Client { socket, part: Vec::new(), unsent: Vec::new() });
        }
        Ok(())
    }

    /// `None` when the connection is over.
    fn serve_client(&mut self, client: &mut Client, event: sys::Event) -> Option<Next> {
        if event.is_writable() && !client.unsent.is_empty() {
            let rest = std::mem::take(&mut client.unsent);
            client.send(&rest)?;
        }
        while event.is_readable() {
            let kept = client.part.len();
            if self.inbox.len() < kept + READ_SIZE {
                self.inbox.resize(kept + READ_SIZE, 0);
            }
            self.inbox[..kept].copy_from_slice(&client.part);
            let size = match client.socket.read(&mut self.inbox[kept..kept + READ_SIZE]) {
                Ok(0) => return None,
                Ok(size) => size,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return None,
            };
            match self.inbox[..kept + size] {
                [b'R', ..] => {
                    client.send(b"+OK\r\n")?;
                    continue;
                }
                [b'P', ..] => {
                    client.send(FULL_RESYNC)?;
                    return Some(Next::Feed);
                }
                _ => {}
            }
            let rest = self.answer(kept + size)?;
            client.part.clear();
            client.part.extend_from_slice(&self.inbox[rest..kept + size]);
            client.send(&self.outbox)?;
            if rest > 0 && !self.feeds.is_empty() {
                self.feed(rest);
            }
            if size < READ_SIZE {
                break;
            }
        }
        Some(Next::More)
    }

    /// Gives the first `len` bytes of the inbox to all replicas; the last replica gets the buffer, the rest
    /// get copies.
    fn feed(&mut self, len: usize) {
        self.feeds.retain(|feed| !feed.is_over());
        let Some((last, others)) = self.feeds.split_last() else { return };
        others.iter().for_each(|feed| _ = feed.give(self.inbox[..len].to_vec(), 0..len));
        self.inbox = last.give(std::mem::take(&mut self.inbox), 0..len);
    }

    /// Puts the replies to all whole requests of `inbox[..size]` into the outbox; returns the offset of the
    /// unfinished rest.
    fn answer(&mut self, size: usize) -> Option<usize> {
        self.outbox.clear();
        let mut at = 0;
        while let Some(length) = self.lengths.next(&self.inbox[at..size])? {
            let reply: &[u8] = match self.inbox[at + 1] {
                b'1' => b"+PONG\r\n",
                b'2' => &self.value,
                _ => b"+OK\r\n",
            };
            self.outbox.extend_from_slice(reply);
            at += length;
        }
        Some(at)
    }
}

/// The next state of a connection.
enum Next {
    More,
    /// The connection is a replica's.
    Feed,
}

impl Client {
    fn send(&mut self, mut bytes: &[u8]) -> Option<()> {
        while !bytes.is_empty() {
            match self.socket.write(bytes) {
                Ok(size) => bytes = &bytes[size..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.unsent.extend_from_slice(bytes);
                    return Some(());
                }
                Err(_) => return None,
            }
        }
        Some(())
    }
}

/// Lengths of requests, by their number of words (below ten).
#[derive(Default)]
struct Lengths([usize; 10]);

impl Lengths {
    /// Returns the length of the request at the start of `bytes`; `Some(None)` if it is incomplete, `None` if
    /// it is not a request.
    fn next(&mut self, bytes: &[u8]) -> Option<Option<usize>> {
        let [first, words, ..] = *bytes else { return Some(None) };
        if first != b'*' || !words.is_ascii_digit() {
            return None;
        }
        let known = &mut self.0[usize::from(words - b'0')];
        let fits = *known >= 2 && bytes.len() >= *known && bytes[*known - 2..*known] == *b"\r\n";
        if fits && bytes.get(*known).is_none_or(|&next| next == b'*') {
            return Some(Some(*known));
        }
        let length = measure(bytes)?;
        *known = length.unwrap_or(*known);
        Some(length)
    }
}

/// Like `Lengths::next`, byte by byte.
fn measure(bytes: &[u8]) -> Option<Option<usize>> {
    let mut request = Skipper::new();
    for end in 0..bytes.len() {
        if request.feed(&bytes[end..=end]).ok()?.replies > 0 {
            return Some(Some(end + 1));
        }
    }
    Some(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$3\r\nabc\r\n";
    const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$3\r\nabc\r\n$2\r\nvv\r\n";
    const LONGER: &[u8] = b"*3\r\n$3\r\nSET\r\n$3\r\nabc\r\n$5\r\nvvvvv\r\n";

    #[test]
    fn lengths_are_found_whatever_came_before() {
        let mut lengths = Lengths::default();
        let stream = [GET, SET, GET, LONGER, LONGER, SET, SET, GET].concat();
        let (mut at, mut found) = (0, Vec::new());
        while let Some(length) = lengths.next(&stream[at..]).expect("requests") {
            found.push(length);
            at += length;
        }
        assert_eq!(found, [GET, SET, GET, LONGER, LONGER, SET, SET, GET].map(<[u8]>::len));
        assert_eq!(at, stream.len());
    }

    #[test]
    fn a_request_cut_anywhere_waits_for_its_end() {
        let mut lengths = Lengths::default();
        assert_eq!(lengths.next(SET), Some(Some(SET.len())));
        for cut in 0..SET.len() {
            assert_eq!(lengths.next(&SET[..cut]), Some(None), "cut at {cut}");
        }
    }

    #[test]
    fn an_invalid_request_ends_the_connection() {
        assert_eq!(Lengths::default().next(b"GET / HTTP/1.1"), None);
        assert_eq!(Lengths::default().next(b"*x\r\n"), None);
        let mut lengths = Lengths::default();
        assert_eq!(lengths.next(GET), Some(Some(GET.len())));
        let odd = [b"?", &GET[1..]].concat();
        assert_eq!(lengths.next(&odd), None);
    }
}
