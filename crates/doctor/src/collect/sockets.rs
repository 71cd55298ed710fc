//! TCP sockets of the target, sampled five times a second: the queues of its listeners, connections that
//! wait for the other end, and requests inside. For Unix sockets and pipes to local processes: unread data,
//! and whether the process is stopped.
//!
//! This needs no BPF: the kernel has the length of each queue and the drops of each listener. The cost of a
//! sample grows with the number of sockets of the machine, so slow samples are taken less often.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use super::descriptors::Local;
use super::{chain, descriptors, diag, in_hand, own_cpu, procfs};
use crate::recording::{InHand, Listener, Moment, Segments, Socket, UNSENT_MUCH};

const SAMPLE_INTERVAL: Duration = Duration::from_millis(150);
/// The interval varies by up to this, so that no request of the same length is always met at the same place.
const VARIATION_MS: u64 = 100;
/// A sample, with the list of descriptors before it, may take a hundredth of the time until the next.
pub(crate) const SAMPLE_COST_FACTOR: u32 = 100;
/// Connections that a recording keeps: the longest queues win.
const SOCKETS_KEPT: usize = 100;
/// Bound of the Unix sockets and pipes that are sampled.
const LOCALS_MAX: usize = 256;

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) listens: bool,
    pub(crate) inode: u64,
    /// For a listener: connections that wait to be accepted. For a connection: unread bytes.
    pub(crate) receive_queue: u32,
    pub(crate) send_queue: u32,
    pub(crate) backlog: Option<u32>,
    pub(crate) drops: Option<u32>,
    /// Segments that this socket has sent again, less the segments that the other end reports as duplicates
    /// (DSACK): a duplicate had arrived out of order, and this kernel took it for lost.
    pub(crate) retransmissions: u32,
    /// Bytes that the other end has acknowledged so far, if known.
    pub(crate) acked: Option<u64>,
    /// Milliseconds since data were last sent and received, if known.
    pub(crate) sent_ms_ago: Option<u32>,
    pub(crate) received_ms_ago: Option<u32>,
    /// Segments with data so far.
    pub(crate) segments_sent: u32,
    pub(crate) segments_received: u32,
    /// The other end's window is closed, and the kernel probes it again and again.
    pub(crate) probing: bool,
    /// The other end has not accepted the connection yet (SYN-SENT).
    pub(crate) connecting: bool,
}

impl Default for Entry {
    fn default() -> Entry {
        let nowhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        Entry {
            local: nowhere,
            remote: nowhere,
            listens: false,
            inode: 0,
            receive_queue: 0,
            send_queue: 0,
            backlog: None,
            drops: None,
            retransmissions: 0,
            acked: None,
            sent_ms_ago: None,
            received_ms_ago: None,
            segments_sent: 0,
            segments_received: 0,
            probing: false,
            connecting: false,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) entries: Vec<Entry>,
    /// Why limits and drops of listeners are unknown.
    pub(crate) note: Option<String>,
}

impl Table {
    /// The ports on which any process of the network namespace listens.
    pub(crate) fn listening(&self) -> HashSet<u16> {
        self.entries.iter().filter(|entry| entry.listens).map(|entry| entry.local.port()).collect()
    }
}

/// Reads the TCP sockets of the network namespace of `pid`.
pub(crate) fn read_table(pid: i32) -> Table {
    let namespace = |pid: i32| std::fs::read_link(procfs::path(pid, "ns/net")).ok();
    let own = std::process::id().cast_signed();
    // An unreadable namespace is taken for the same: most machines have a single namespace.
    let elsewhere = namespace(pid).zip(namespace(own)).is_some_and(|(its, ours)| its != ours);
    let note = if elsewhere {
        "its network is another namespace: limits and drops of accept queues are unknown".to_string()
    } else {
        match diag::read() {
            Ok(entries) => return Table { entries, note: None },
            Err(error) => format!("INET_DIAG: {error}: limits and drops of accept queues are unknown"),
        }
    };
    let text = |file| procfs::read(procfs::path(pid, file)).unwrap_or_default();
    let entries = [text("net/tcp"), text("net/tcp6")].iter().flat_map(|t| parse_lines(t)).collect();
    Table { entries, note: Some(note) }
}

/// Parses /proc/net/tcp, tcp6, udp or udp6, which have the same format.
pub(crate) fn parse_lines(text: &str) -> Vec<Entry> {
    text.lines().skip(1).filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Entry> {
    const SYN_SENT: &str = "02";
    const LISTEN: &str = "0A";
    const PROBE_TIMER: &str = "04";
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (send, receive) = fields.get(4)?.split_once(':')?;
    let timer = fields.get(5)?.split(':').next()?;
    let retransmissions = u32::from_str_radix(fields.get(6)?, 16).ok()?;
    Some(Entry {
        local: parse_address(fields.get(1)?)?,
        remote: parse_address(fields.get(2)?)?,
        listens: *fields.get(3)? == LISTEN,
        connecting: *fields.get(3)? == SYN_SENT,
        inode: fields.get(9)?.parse().ok()?,
        receive_queue: u32::from_str_radix(receive, 16).ok()?,
        send_queue: u32::from_str_radix(send, 16).ok()?,
        retransmissions,
        probing: timer == PROBE_TIMER,
        ..Entry::default()
    })
}

/// Parses "0100007F:1F90": words in the machine's byte order.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(host.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    if host.len() == 8 {
        return Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(word(0)?)), port));
    }
    let mut octets = [0_u8; 16];
    for part in 0..4 {
        octets[part * 4..part * 4 + 4].copy_from_slice(&word(part)?);
    }
    Some(SocketAddr::new(Ipv6Addr::from(octets).to_canonical(), port))
}

#[derive(Debug)]
struct Followed {
    socket: Socket,
    retransmissions_before: u32,
    segments_before: u32,
    segments: u64,
    acked_before: Option<u64>,
}

/// The sockets of a window.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) listeners: Vec<Listener>,
    pub(crate) sockets: Vec<Socket>,
    pub(crate) segments: Segments,
    pub(crate) in_hand: InHand,
    pub(crate) moments: Vec<Moment>,
}

/// The samples of a window.
#[derive(Debug)]
pub(crate) struct Watch {
    pid: i32,
    start: Instant,
    listeners: HashMap<u64, (Listener, u32)>,
    connections: HashMap<u64, Followed>,
    locals: Vec<(Local, Socket)>,
    in_hand: in_hand::Watch,
    chains: chain::Watch,
    samples: u64,
    pub(crate) note: Option<String>,
}

impl Watch {
    pub(crate) fn begin(pid: i32, locals: Vec<Local>) -> Watch {
        let follow = |local: Local| {
            let socket = Socket {
                local: if local.inode.is_some() { "Unix socket" } else { "pipe" }.to_string(),
                remote: local.peer.clone(),
                fd: Some(local.fd),
                local_only: true,
                ..Socket::default()
            };
            (local, socket)
        };
        let locals = locals.into_iter().take(LOCALS_MAX).map(follow).collect();
        let start = Instant::now();
        let (listeners, connections, in_hand, chains) = Default::default();
        Watch { pid, start, listeners, connections, locals, in_hand, chains, samples: 0, note: None }
    }

    /// Takes a sample; `owned` maps the inodes of the target's sockets to descriptors. Returns the time until
    /// the next.
    pub(crate) fn sample(&mut self, owned: &HashMap<u64, i32>) -> Duration {
        let start = own_cpu();
        let at = self.start.elapsed();
        let table = read_table(self.pid);
        let ports = table.listening();
        self.note = table.note;
        for entry in &table.entries {
            let Some(&fd) = owned.get(&entry.inode) else { continue };
            if entry.listens { self.see_listener(entry) } else { self.see_connection(entry, fd) }
        }
        let own = table.entries.iter().filter(|entry| owned.contains_key(&entry.inode));
        let datagrams = descriptors::read_datagram(self.pid).into_values();
        let datagrams = datagrams.filter(|entry| owned.contains_key(&entry.inode));
        let waits = self.in_hand.sample(at, &ports, own, datagrams);
        self.chains.sample(&table.entries, &waits);
        if self.in_hand.has_requests {
            let unix = diag::read_unix().unwrap_or_default();
            self.in_hand.sample_unix(self.chains.behind_unix(&unix, owned));
        }
        self.see_locals();
        self.samples += 1;
        let varied = SAMPLE_INTERVAL + Duration::from_millis(self.samples * 37 % VARIATION_MS);
        varied.max(own_cpu().saturating_sub(start) * SAMPLE_COST_FACTOR)
    }

    fn see_locals(&mut self) {
        if self.locals.is_empty() {
            return;
        }
        let entries = diag::read_unix().unwrap_or_default();
        let entries: HashMap<u64, diag::UnixEntry> = entries.into_iter().map(|e| (e.inode, e)).collect();
        for (local, socket) in &mut self.locals {
            socket.seen += 1;
            let state = procfs::stat(local.peer_pid).map(|stat| stat.state);
            socket.seen_stopped += u64::from(state.is_some_and(|state| matches!(state, 'T' | 't')));
            if let Some(entry) = local.inode.and_then(|inode| entries.get(&inode)) {
                socket.unsent_max = socket.unsent_max.max(u64::from(entry.send_queue));
                socket.seen_unsent += u64::from(entry.send_queue > 0);
                socket.unread_max = socket.unread_max.max(u64::from(entry.receive_queue));
                socket.seen_unread += u64::from(entry.receive_queue > 0);
            }
        }
    }

    fn see_listener(&mut self, entry: &Entry) {
        let drops = entry.drops.unwrap_or(0);
        let (listener, before) = self.listeners.entry(entry.inode).or_insert_with(|| {
            (
                Listener { address: entry.local.to_string(), backlog: entry.backlog, ..Listener::default() },
                drops,
            )
        });
        listener.seen += 1;
        listener.seen_waiting += u64::from(entry.receive_queue > 0);
        listener.waiting_max = listener.waiting_max.max(entry.receive_queue);
        listener.drops = u64::from(drops.wrapping_sub(*before));
    }

    fn see_connection(&mut self, entry: &Entry, fd: i32) {
        let followed = self.connections.entry(entry.inode).or_insert_with(|| Followed {
            socket: Socket {
                local: entry.local.to_string(),
                remote: entry.remote.to_string(),
                fd: Some(fd),
                ..Socket::default()
            },
            retransmissions_before: entry.retransmissions,
            segments_before: entry.segments_sent,
            segments: 0,
            acked_before: None,
        });
        let acked_before = std::mem::replace(&mut followed.acked_before, entry.acked);
        followed.segments = u64::from(entry.segments_sent.saturating_sub(followed.segments_before));
        let socket = &mut followed.socket;
        socket.seen += 1;
        socket.unsent_max = socket.unsent_max.max(u64::from(entry.send_queue));
        socket.seen_unsent += u64::from(u64::from(entry.send_queue) > UNSENT_MUCH);
        socket.unread_max = socket.unread_max.max(u64::from(entry.receive_queue));
        socket.seen_unread += u64::from(entry.receive_queue > 0);
        socket.seen_probing += u64::from(entry.probing);
        socket.seen_taking += u64::from(acked_before.is_some_and(|before| entry.acked > Some(before)));
        socket.retransmissions =
            u64::from(entry.retransmissions.saturating_sub(followed.retransmissions_before));
    }

    pub(crate) fn end(self) -> Ended {
        let mut listeners: Vec<Listener> =
            self.listeners.into_values().map(|(listener, _)| listener).collect();
        listeners.sort_by(|a, b| a.address.cmp(&b.address));
        let segments = segments(self.connections.values());
        let mut sockets: Vec<Socket> =
            self.connections.into_values().map(|followed| followed.socket).collect();
        sockets.extend(self.locals.into_iter().map(|(_, socket)| socket));
        sockets.sort_by_key(|s| (std::cmp::Reverse((s.seen_unsent, s.retransmissions, s.unsent_max)), s.fd));
        sockets.truncate(SOCKETS_KEPT);
        let (in_hand, moments) = self.in_hand.end(&self.chains);
        Ended { listeners, sockets, segments, in_hand, moments }
    }
}

fn segments<'a>(connections: impl Iterator<Item = &'a Followed>) -> Segments {
    let mut segments = Segments::default();
    let mut by_host: HashMap<&str, u64> = HashMap::new();
    for followed in connections {
        segments.sent += followed.segments;
        segments.again += followed.socket.retransmissions;
        let host = followed.socket.remote.rsplit_once(':').map_or("", |(host, _)| host);
        *by_host.entry(host).or_default() += followed.socket.retransmissions;
    }
    let worst = by_host.into_iter().max_by(|(a, one), (b, other)| one.cmp(other).then_with(|| b.cmp(a)));
    segments.worst = worst.filter(|(_, again)| *again > 0).map(|(host, again)| (host.to_string(), again));
    segments
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:18EB 00000000:0000 0A 00000000:00000003 00:00000000 00000000     0     0 1201 1 0 100 0 0 10 0
   1: 0100007F:18EB 0200007F:E480 01 00010000:00000010 04:00000014 00000002     0     0 1202 3 0 20 4 0 10 0
   2: cut
";

    #[test]
    fn lines_of_proc_net_tcp_are_read() {
        let entries = parse_lines(TEXT);
        assert_eq!(entries.len(), 2);
        assert_eq!((entries[0].local.to_string().as_str(), entries[0].listens), ("127.0.0.1:6379", true));
        assert_eq!((entries[0].receive_queue, entries[0].inode), (3, 1201));
        assert_eq!(entries[1].remote.to_string(), "127.0.0.2:58496");
        assert_eq!((entries[1].send_queue, entries[1].receive_queue, entries[1].probing), (65_536, 16, true));
    }

    #[test]
    fn a_mapped_ipv4_address_is_shown_as_ipv4() {
        let entry = parse_address("0000000000000000FFFF00000100007F:0050").expect("an address");
        assert_eq!(entry.to_string(), "127.0.0.1:80");
        assert_eq!(
            parse_address("00000000000000000000000001000000:0050").expect("::1").to_string(),
            "[::1]:80"
        );
        assert!(parse_address("00:0050").is_none() && parse_address("é00000é:0050").is_none());
    }

    #[test]
    fn segments_that_are_sent_again_are_counted_by_host() {
        let mut watch = Watch::begin(0, Vec::new());
        let entry = |inode, remote: &str, segments_sent, retransmissions| Entry {
            remote: remote.parse().expect("an address"),
            inode,
            segments_sent,
            retransmissions,
            ..Entry::default()
        };
        for (sent, again) in [(100, 5), (300, 25)] {
            watch.see_connection(&entry(1, "10.0.0.9:4000", sent, again), 8);
            watch.see_connection(&entry(2, "10.0.0.9:4001", sent, again), 9);
            watch.see_connection(&entry(3, "10.0.0.7:4000", sent, 0), 10);
        }
        let segments = watch.end().segments;
        let worst = Some(("10.0.0.9".to_string(), 40));
        assert_eq!(segments, Segments { sent: 600, again: 40, worst });
    }

    #[test]
    fn drops_are_counted_from_the_first_sample() {
        let mut watch = Watch::begin(0, Vec::new());
        let mut entry =
            Entry { listens: true, inode: 7, drops: Some(10), backlog: Some(5), ..Entry::default() };
        watch.see_listener(&entry);
        entry.drops = Some(14);
        entry.receive_queue = 6;
        watch.see_listener(&entry);
        let listeners = watch.end().listeners;
        assert_eq!((listeners[0].drops, listeners[0].waiting_max, listeners[0].seen_waiting), (4, 6, 1));
    }
}
