//! Requests inside the server, and requests of the server to others, by samples of its connections.
//!
//! The kernel knows for each connection how long ago it last sent and last received data. A client's
//! connection that received later than it sent has a request inside the server. A connection that the
//! server opened, and on which it sent later than it received, waits for a reply. A datagram socket with a
//! connection to port 53 is a question to a name server: programs close it after the answer. The clock has
//! milliseconds, so only requests of [`LONG_MS`] and more count. Where one side has sent nothing yet, its
//! clock shows the connection's beginning, and does not count. Beyond [`STALE_MS`] nobody waits for a
//! reply: the protocol has none.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::sockets::Entry;
use super::target;
use crate::recording::{InHand, Upstream};

/// Shorter ones are work, or within the clock's precision.
const LONG_MS: u32 = 10;
const STALE_MS: u32 = 30_000;
const NAME_SERVER: u16 = 53;
/// Upstreams that a recording keeps, the longest awaited first.
const UPSTREAMS_MAX: usize = 10;

#[derive(Debug, Default)]
pub(super) struct Watch {
    in_hand: InHand,
    upstreams: HashMap<SocketAddr, Upstream>,
}

/// Milliseconds for which a connection has waited for this side to send, if it does.
fn request_ms(entry: &Entry) -> Option<u32> {
    let (sent, received) = (entry.sent_ms_ago?, entry.received_ms_ago?);
    open_ms((received, entry.segments_received), (sent, entry.segments_sent))
}

/// Milliseconds for which a connection has waited for the other side to send, if it does.
fn reply_ms(entry: &Entry) -> Option<u32> {
    let (sent, received) = (entry.sent_ms_ago?, entry.received_ms_ago?);
    open_ms((sent, entry.segments_sent), (received, entry.segments_received))
}

/// The same for both directions: milliseconds since the last data, and segments. If question and answer came
/// within a millisecond, the direction with more segments is ahead: a reply, and at once the next request.
fn open_ms((asked, questions): (u32, u32), (answered, answers): (u32, u32)) -> Option<u32> {
    let is_open =
        questions > 0 && (answers == 0 || asked < answered) || asked == answered && questions > answers;
    (is_open && (LONG_MS..STALE_MS).contains(&asked)).then_some(asked)
}

impl Watch {
    /// Takes a sample of the server's own sockets. `datagrams`: its datagram sockets.
    pub(super) fn sample<'a>(
        &mut self,
        own: impl Iterator<Item = &'a Entry> + Clone,
        datagrams: impl Iterator<Item = Entry>,
    ) {
        let ports: Vec<u16> = own.clone().filter(|entry| entry.listens).map(|e| e.local.port()).collect();
        let is_inbound = |entry: &Entry| ports.contains(&entry.local.port());
        self.in_hand.seen += 1;
        let connections = own.filter(|entry| !entry.listens);
        let (inbound, outbound): (Vec<&Entry>, Vec<&Entry>) =
            connections.partition(|entry| is_inbound(entry));
        let requests = inbound.iter().filter_map(|entry| request_ms(entry));
        let (count, longest) = requests.fold((0, 0), |(count, longest), ms| (count + 1, ms.max(longest)));
        self.in_hand.requests += count;
        self.in_hand.longest_ms = self.in_hand.longest_ms.max(u64::from(longest));
        if count == 0 {
            return; // no client waits, so an upstream delays none
        }
        self.in_hand.seen_requests += 1;
        let mut waits: HashMap<SocketAddr, (u64, u32)> = HashMap::new();
        let replies = outbound.iter().filter_map(|entry| Some((entry.remote, reply_ms(entry)?)));
        let names = datagrams.filter(|entry| entry.remote.port() == NAME_SERVER).map(|e| (e.remote, 0));
        for (remote, ms) in replies.chain(names) {
            let wait = waits.entry(remote).or_default();
            *wait = (wait.0 + 1, wait.1.max(ms));
        }
        for (remote, (requests, longest)) in waits {
            let upstream = self.upstreams.entry(remote).or_insert_with(|| Upstream {
                address: remote.to_string(),
                is_name_server: remote.port() == NAME_SERVER,
                ..Upstream::default()
            });
            upstream.seen_waiting += 1;
            upstream.requests += requests;
            upstream.longest_ms = upstream.longest_ms.max(u64::from(longest));
        }
    }

    pub(super) fn end(mut self) -> InHand {
        let mut upstreams: Vec<(SocketAddr, Upstream)> = self.upstreams.drain().collect();
        upstreams.sort_by(|(a, one), (b, other)| other.seen_waiting.cmp(&one.seen_waiting).then(a.cmp(b)));
        upstreams.truncate(UPSTREAMS_MAX);
        for (remote, upstream) in &mut upstreams {
            upstream.process = if remote.ip().is_loopback() && !upstream.is_name_server {
                target::listening_on(remote.port())
            } else {
                None
            };
        }
        self.in_hand.upstreams = upstreams.into_iter().map(|(_, upstream)| upstream).collect();
        self.in_hand
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn connection(local: u16, remote: u16, sent: u32, received: u32) -> Entry {
        Entry {
            local: at(local),
            remote: at(remote),
            sent_ms_ago: Some(sent),
            received_ms_ago: Some(received),
            segments_sent: 7,
            segments_received: 7,
            ..Entry::default()
        }
    }

    #[test]
    fn requests_are_told_from_replies_and_from_idle_connections() {
        let listener = Entry { listens: true, local: at(80), ..Entry::default() };
        let own = [
            listener,
            connection(80, 4000, 900, 120),   // a request for 120 ms
            connection(80, 4001, 3, 5),       // replied
            connection(80, 4002, 900, 4),     // too short
            connection(5000, 8080, 110, 700), // a question for 110 ms
            connection(5001, 8081, 500, 400), // answered
        ];
        // The first request came with the connection.
        let first = Entry { segments_sent: 0, ..connection(80, 4003, 50, 50) };
        assert_eq!((request_ms(&first), reply_ms(&first)), (Some(50), None));
        assert_eq!(request_ms(&connection(80, 4004, 90_000, 80_000)), None, "there will be no reply");
        let again = Entry { segments_received: 8, ..connection(80, 4005, 50, 50) };
        assert_eq!((request_ms(&again), reply_ms(&again)), (Some(50), None), "a reply, and the next request");
        assert_eq!(request_ms(&connection(80, 4005, 50, 50)), None, "a request, and its reply");
        let mut watch = Watch::default();
        watch.sample(own.iter(), [connection(6000, 53, 0, 0)].into_iter());
        // Without a request inside, a waiting connection delays nobody.
        watch.sample(own[4..].iter(), std::iter::empty());
        let seen = watch.end();
        assert_eq!((seen.seen, seen.seen_requests, seen.requests, seen.longest_ms), (2, 1, 1, 120));
        let upstreams: Vec<(&str, bool, u64, u64)> = seen
            .upstreams
            .iter()
            .map(|up| (up.address.as_str(), up.is_name_server, up.seen_waiting, up.longest_ms))
            .collect();
        assert_eq!(upstreams, [("127.0.0.1:53", true, 1, 0), ("127.0.0.1:8080", false, 1, 110)]);
    }
}
