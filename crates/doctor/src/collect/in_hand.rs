//! Requests inside the server, and requests of the server to others, by samples of its connections.
//!
//! The kernel knows for each connection how long ago it last sent and last received data. A client's
//! connection that received later than it sent has a request inside the server. A connection that the
//! server opened, and on which it sent later than it received, waits for a reply. A datagram socket with a
//! connection to port 53 is a question to a name server: programs close it after the answer. The clock has
//! milliseconds, so only requests of [`LONG_MS`] and more count. Where one side has sent nothing yet, its
//! clock shows the connection's beginning, and does not count. Beyond [`STALE_MS`] nobody waits for a
//! reply: the protocol has none.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use super::sockets::Entry;
use super::{chain, target};
use crate::recording::{InHand, MOMENTS_MAX, Moment, Step, Upstream};

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
    /// Servers behind Unix sockets, by address.
    unix: HashMap<String, Upstream>,
    course: Course,
    /// The last sample found requests inside.
    pub(super) has_requests: bool,
}

const _: () = assert!(MOMENTS_MAX.is_multiple_of(2)); // points are merged in pairs

/// The course of a number over a window of unknown length, in at most [`MOMENTS_MAX`] points.
#[derive(Debug)]
struct Course {
    points: Vec<Moment>,
    /// Samples that a point stands for; twice as many each time that the points are too many.
    each: u32,
    /// Samples in the last point.
    in_last: u32,
}

impl Default for Course {
    fn default() -> Course {
        Course { points: Vec::new(), each: 1, in_last: 0 }
    }
}

impl Course {
    fn add(&mut self, moment: Moment) {
        if self.in_last == self.each && self.points.len() == MOMENTS_MAX {
            self.points =
                self.points.chunks(2).map(|pair| pair.iter().copied().fold(pair[0], most)).collect();
            self.each *= 2;
        }
        match self.points.last_mut().filter(|_| self.in_last < self.each) {
            Some(last) => *last = most(*last, moment),
            None => {
                self.points.push(moment);
                self.in_last = 0;
            }
        }
        self.in_last += 1;
    }
}

/// The first of two moments, with the most of both.
fn most(first: Moment, other: Moment) -> Moment {
    Moment {
        at_ms: first.at_ms,
        inside: first.inside.max(other.inside),
        upstream: first.upstream.max(other.upstream),
    }
}

/// Milliseconds for which a connection has waited for this side to send, if it does.
fn request_ms(entry: &Entry) -> Option<u32> {
    let (sent, received) = (entry.sent_ms_ago?, entry.received_ms_ago?);
    open_ms((received, entry.segments_received), (sent, entry.segments_sent))
}

/// Milliseconds for which a connection has waited for the other side to send or to accept it, if it does.
pub(super) fn reply_ms(entry: &Entry) -> Option<u32> {
    if entry.connecting {
        return Some(0); // the kernel does not tell for how long
    }
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
    /// Takes a sample of the server's own sockets. `at`: since the start of the window; `ports`: on which any
    /// process listens, since a process may have got its connections from another; `datagrams`: its datagram
    /// sockets. Returns the local and remote addresses of connections that wait for a reply while clients
    /// wait.
    pub(super) fn sample<'a>(
        &mut self,
        at: Duration,
        ports: &HashSet<u16>,
        own: impl Iterator<Item = &'a Entry> + Clone,
        datagrams: impl Iterator<Item = Entry>,
    ) -> Vec<(SocketAddr, SocketAddr)> {
        let is_inbound = |entry: &Entry| ports.contains(&entry.local.port());
        self.in_hand.seen += 1;
        self.has_requests = false;
        let connections = own.filter(|entry| !entry.listens);
        let (inbound, outbound): (Vec<&Entry>, Vec<&Entry>) =
            connections.partition(|entry| is_inbound(entry));
        let requests = inbound.iter().filter_map(|entry| request_ms(entry));
        let (count, longest) = requests.fold((0, 0), |(count, longest), ms| (count + 1, ms.max(longest)));
        self.in_hand.requests += count;
        self.in_hand.longest_ms = self.in_hand.longest_ms.max(u64::from(longest));
        let mut moment = Moment { at_ms: at.as_millis() as u64, inside: count, upstream: 0 };
        if count == 0 {
            self.course.add(moment);
            return Vec::new(); // no client waits, so an upstream delays none
        }
        self.in_hand.seen_requests += 1;
        self.has_requests = true;
        let mut waits: HashMap<SocketAddr, (u64, u32)> = HashMap::new();
        let replies = outbound.iter().filter_map(|entry| Some((entry.remote, reply_ms(entry)?)));
        let names = datagrams.filter(|entry| entry.remote.port() == NAME_SERVER).map(|e| (e.remote, 0));
        for (remote, ms) in replies.chain(names) {
            let wait = waits.entry(remote).or_default();
            *wait = (wait.0 + 1, wait.1.max(ms));
        }
        moment.upstream = waits.values().map(|(requests, _)| requests).sum();
        self.course.add(moment);
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
        let open = outbound.iter().filter(|entry| reply_ms(entry).is_some());
        open.map(|entry| (entry.local, entry.remote)).collect()
    }

    /// Adds the servers behind Unix sockets with a connection while clients wait. Whether they owe a reply is
    /// unknown: the kernel keeps no times for these sockets.
    pub(super) fn sample_unix(&mut self, servers: Vec<(String, Option<Step>)>) {
        for (address, step) in servers {
            let new = || Upstream { address: address.clone(), is_unix: true, ..Upstream::default() };
            let upstream = self.unix.entry(address.clone()).or_insert_with(new);
            upstream.seen_waiting += 1;
            upstream.requests += 1;
            if let Some(step) = step {
                upstream.process = Some(step.process.clone());
                upstream.chain = vec![step];
            }
        }
    }

    /// `chains`: the processes that were seen behind the upstreams.
    pub(super) fn end(mut self, chains: &chain::Watch) -> (InHand, Vec<Moment>) {
        let mut upstreams: Vec<(SocketAddr, Upstream)> = self.upstreams.drain().collect();
        upstreams.sort_by(|(a, one), (b, other)| other.seen_waiting.cmp(&one.seen_waiting).then(a.cmp(b)));
        upstreams.truncate(UPSTREAMS_MAX);
        for (remote, upstream) in &mut upstreams {
            upstream.process = if remote.ip().is_loopback() && !upstream.is_name_server {
                target::listening_on(remote.port())
            } else {
                None
            };
            upstream.chain = chains.of(*remote);
        }
        self.in_hand.upstreams = upstreams.into_iter().map(|(_, upstream)| upstream).collect();
        let mut unix: Vec<Upstream> = self.unix.drain().map(|(_, upstream)| upstream).collect();
        unix.sort_by(|a, b| b.seen_waiting.cmp(&a.seen_waiting).then_with(|| a.address.cmp(&b.address)));
        unix.truncate(UPSTREAMS_MAX);
        self.in_hand.upstreams.extend(unix);
        (self.in_hand, self.course.points)
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
        let ports = HashSet::from([80]);
        watch.sample(
            Duration::from_millis(150),
            &ports,
            own.iter(),
            [connection(6000, 53, 0, 0)].into_iter(),
        );
        // Without a request inside, a waiting connection delays nobody.
        watch.sample(Duration::from_millis(300), &ports, own[4..].iter(), std::iter::empty());
        let (seen, moments) = watch.end(&chain::Watch::default());
        let moments: Vec<_> = moments.iter().map(|m| (m.at_ms, m.inside, m.upstream)).collect();
        assert_eq!(moments, [(150, 1, 2), (300, 0, 0)], "the name server is asked as well");
        assert_eq!((seen.seen, seen.seen_requests, seen.requests, seen.longest_ms), (2, 1, 1, 120));
        let upstreams: Vec<(&str, bool, u64, u64)> = seen
            .upstreams
            .iter()
            .map(|up| (up.address.as_str(), up.is_name_server, up.seen_waiting, up.longest_ms))
            .collect();
        assert_eq!(upstreams, [("127.0.0.1:53", true, 1, 0), ("127.0.0.1:8080", false, 1, 110)]);
    }

    #[test]
    fn the_course_of_a_long_window_has_few_points_and_every_peak() {
        let mut course = Course::default();
        for sample in 0..1_000_u64 {
            let inside = if sample == 777 { 50 } else { 1 };
            course.add(Moment { at_ms: sample * 200, inside, upstream: sample % 2 });
            assert!(course.points.len() <= MOMENTS_MAX);
        }
        assert_eq!((course.points.len(), course.each), (125, 8));
        let peak = course.points.iter().find(|point| point.inside == 50).expect("no peak is lost");
        assert!((peak.at_ms..peak.at_ms + 8 * 200).contains(&(777 * 200)), "{peak:?}");
        assert!(course.points.iter().all(|point| point.upstream == 1));
        assert!(course.points.is_sorted_by_key(|point| point.at_ms));
    }
}
