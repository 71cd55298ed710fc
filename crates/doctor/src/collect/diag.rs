//! INET_DIAG and UNIX_DIAG: the kernel's tables of TCP and Unix sockets, which `ss` also reads.
//!
//! Beyond /proc/net/tcp, INET_DIAG has a listener's limit and drops, and a connection's retransmissions and
//! acknowledged bytes. UNIX_DIAG has the inode of the other end, and the length of the queues. Both cover the
//! network namespace of this process.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::sockets::Entry;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const TCP_SYN_SENT: u8 = 2;
const TCP_LISTEN: u8 = 10;
/// Every state but TIME_WAIT (6) and NEW_SYN_RECV (12), which have no owner.
const STATES: u32 = 0x0fff & !(1 << 6);
/// Attributes of a reply, and the request bits for them.
const ATTRIBUTE_INFO: u16 = 2;
const ATTRIBUTE_SKMEMINFO: u16 = 7;
const EXTENSIONS: u8 = 1 << (ATTRIBUTE_INFO - 1) | 1 << (ATTRIBUTE_SKMEMINFO - 1);
const SKMEMINFO_DROPS: usize = 8 * 4;
/// Offsets in `struct tcp_info`.
const INFO_LAST_DATA_SENT: usize = 44;
const INFO_LAST_DATA_RECV: usize = 52;
const INFO_TOTAL_RETRANS: usize = 100;
const INFO_BYTES_ACKED: usize = 120;
const INFO_DATA_SEGS_IN: usize = 152;
const INFO_DATA_SEGS_OUT: usize = 156;
const INFO_DSACK_DUPS: usize = 216;
/// Sizes of `struct nlmsghdr`, `struct inet_diag_req_v2`, and `struct inet_diag_msg`.
const HEADER: usize = 16;
const REQUEST: usize = 56;
const MESSAGE: usize = 72;
const TIMER_PROBE: u8 = 4;
/// A datagram of the kernel's reply is at most 32 KiB.
const BUFFER: usize = 64 << 10;
/// Bound of the kept entries: ten times the descriptors of the largest expected server.
const ENTRIES_MAX: usize = 500_000;

/// Sizes of `struct unix_diag_req` and `struct unix_diag_msg`.
const UNIX_REQUEST: usize = 24;
const UNIX_MESSAGE: usize = 16;
const UNIX_SHOW_NAME: u32 = 1;
const UNIX_SHOW_PEER: u32 = 1 << 2;
const UNIX_SHOW_QUEUES: u32 = 1 << 4;
const UNIX_ATTRIBUTE_NAME: u16 = 0;
const UNIX_ATTRIBUTE_PEER: u16 = 2;
const UNIX_ATTRIBUTE_QUEUES: u16 = 4;

/// Returns the TCP sockets.
pub(crate) fn read() -> io::Result<Vec<Entry>> {
    let socket = open()?;
    let mut entries = Vec::new();
    for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
        let mut request = [0_u8; REQUEST];
        request[0] = family;
        request[1] = libc::IPPROTO_TCP as u8;
        request[2] = EXTENSIONS;
        request[4..8].copy_from_slice(&STATES.to_ne_bytes());
        ask(&socket, &request)?;
        receive(&socket, &mut entries, entry)?;
    }
    Ok(entries)
}

/// A Unix socket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UnixEntry {
    pub(crate) inode: u64,
    /// The address to which it, or the listener that accepted it, was bound: a path, or `@` and a name.
    pub(crate) name: Option<String>,
    /// Inode of the connected socket.
    pub(crate) peer: Option<u64>,
    /// Memory of sent data that the other end has not read yet.
    pub(crate) send_queue: u32,
    pub(crate) receive_queue: u32,
}

pub(crate) fn read_unix() -> io::Result<Vec<UnixEntry>> {
    const ALL: u32 = u32::MAX;
    let socket = open()?;
    let mut request = [0_u8; UNIX_REQUEST];
    request[0] = libc::AF_UNIX as u8;
    request[4..8].copy_from_slice(&ALL.to_ne_bytes());
    request[12..16].copy_from_slice(&(UNIX_SHOW_NAME | UNIX_SHOW_PEER | UNIX_SHOW_QUEUES).to_ne_bytes());
    ask(&socket, &request)?;
    let mut entries = Vec::new();
    receive(&socket, &mut entries, unix_entry)?;
    Ok(entries)
}

fn open() -> io::Result<OwnedFd> {
    // SAFETY: socket(2) takes no pointers.
    let fd = unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_SOCK_DIAG)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Requests all sockets of the family in the first byte of `body`.
fn ask(socket: &OwnedFd, body: &[u8]) -> io::Result<()> {
    let mut request = vec![0_u8; HEADER];
    request[0..4].copy_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    request.extend_from_slice(body);
    // SAFETY: the buffer is alive for the call, and its length is passed.
    let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn receive<T>(socket: &OwnedFd, entries: &mut Vec<T>, entry: fn(&[u8]) -> Option<T>) -> io::Result<()> {
    let mut buffer = vec![0_u8; BUFFER];
    loop {
        // SAFETY: the buffer is alive for the call, and its length is passed.
        let got = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        if parse(&buffer[..got as usize], entries, entry)? {
            return Ok(());
        }
    }
}

/// Parses the messages of a datagram; returns true after the last message of the reply.
fn parse<T>(mut bytes: &[u8], entries: &mut Vec<T>, entry: fn(&[u8]) -> Option<T>) -> io::Result<bool> {
    while bytes.len() >= HEADER {
        let length = u32_at(bytes, 0).unwrap_or(0) as usize;
        let kind = i32::from(u16_at(bytes, 4).unwrap_or(0));
        if length < HEADER || length > bytes.len() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a message that is longer than its answer",
            ));
        }
        let body = &bytes[HEADER..length];
        match kind {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let code = u32_at(body, 0).unwrap_or(0).cast_signed();
                return Err(io::Error::from_raw_os_error(-code));
            }
            _ => {
                if entries.len() < ENTRIES_MAX {
                    entries.extend(entry(body));
                }
            }
        }
        bytes = &bytes[align(length).min(bytes.len())..];
    }
    Ok(false)
}

fn entry(body: &[u8]) -> Option<Entry> {
    if body.len() < MESSAGE {
        return None;
    }
    let (family, state, timer) = (body[0], body[1], body[2]);
    let (source_port, peer_port) = (port_at(body, 4), port_at(body, 6));
    let (receive_queue, send_queue) = (u32_at(body, 56)?, u32_at(body, 60)?);
    let mut entry = Entry {
        local: SocketAddr::new(address(family, &body[8..24]), source_port),
        remote: SocketAddr::new(address(family, &body[24..40]), peer_port),
        listens: state == TCP_LISTEN,
        connecting: state == TCP_SYN_SENT,
        inode: u64::from(u32_at(body, 68)?),
        receive_queue,
        send_queue,
        probing: timer == TIMER_PROBE,
        ..Entry::default()
    };
    for (kind, value) in attributes(&body[MESSAGE..]) {
        match kind {
            ATTRIBUTE_INFO => {
                // Older kernels tell no duplicates.
                let needless = u32_at(value, INFO_DSACK_DUPS).unwrap_or(0);
                let again = u32_at(value, INFO_TOTAL_RETRANS).unwrap_or(0);
                entry.retransmissions = again.saturating_sub(needless);
                entry.acked = u64_at(value, INFO_BYTES_ACKED);
                entry.sent_ms_ago = u32_at(value, INFO_LAST_DATA_SENT);
                entry.received_ms_ago = u32_at(value, INFO_LAST_DATA_RECV);
                entry.segments_received = u32_at(value, INFO_DATA_SEGS_IN).unwrap_or(0);
                entry.segments_sent = u32_at(value, INFO_DATA_SEGS_OUT).unwrap_or(0);
            }
            ATTRIBUTE_SKMEMINFO => entry.drops = u32_at(value, SKMEMINFO_DROPS),
            _ => {}
        }
    }
    if entry.listens {
        entry.backlog = Some(send_queue);
        entry.send_queue = 0;
    }
    Some(entry)
}

fn unix_entry(body: &[u8]) -> Option<UnixEntry> {
    let inode = u64::from(u32_at(body, 4)?);
    let mut entry = UnixEntry { inode, ..UnixEntry::default() };
    for (kind, value) in attributes(body.get(UNIX_MESSAGE..)?) {
        match kind {
            UNIX_ATTRIBUTE_NAME => {
                // A path ends with a zero byte; a name without a file begins with one.
                let name = value.strip_suffix(&[0]).unwrap_or(value);
                let name = String::from_utf8_lossy(name).replace('\0', "@");
                entry.name =
                    Some(name.replace(|c: char| c.is_control(), "?")).filter(|name| !name.is_empty());
            }
            UNIX_ATTRIBUTE_PEER => entry.peer = u32_at(value, 0).map(u64::from),
            UNIX_ATTRIBUTE_QUEUES => {
                entry.receive_queue = u32_at(value, 0).unwrap_or(0);
                entry.send_queue = u32_at(value, 4).unwrap_or(0);
            }
            _ => {}
        }
    }
    Some(entry)
}

fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)?;
        let value = bytes.get(4..length)?;
        bytes = &bytes[align(length).min(bytes.len())..];
        Some((kind, value))
    })
}

fn align(length: usize) -> usize {
    length.saturating_add(3) & !3
}

fn address(family: u8, bytes: &[u8]) -> IpAddr {
    let mut octets = [0_u8; 16];
    octets.copy_from_slice(bytes);
    if i32::from(family) == libc::AF_INET {
        return IpAddr::V4(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]));
    }
    Ipv6Addr::from(octets).to_canonical()
}

fn port_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_listener_shows_its_queue_and_its_backlog() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let _waiting = TcpStream::connect(address).expect("the kernel accepts for us");
        let entries = read().expect("INET_DIAG answers anybody");
        let seen = entries.iter().find(|e| e.listens && e.local == address).expect("our listener");
        assert_eq!(seen.receive_queue, 1);
        assert_eq!(seen.backlog, Some(128));
        assert_eq!(seen.drops, Some(0));
    }

    #[test]
    fn a_unix_socket_shows_its_other_end_and_unread_bytes() {
        use std::io::Write;
        use std::os::unix::fs::MetadataExt;
        use std::os::unix::net::UnixStream;
        let inode = |end: &UnixStream| {
            let path = format!("/proc/self/fd/{}", end.as_raw_fd());
            std::fs::metadata(path).expect("it is open").ino()
        };
        let (mut here, there) = UnixStream::pair().expect("two sockets");
        here.write_all(b"not read").expect("there is room");
        let entries = read_unix().expect("UNIX_DIAG answers anybody");
        let seen = entries.iter().find(|e| e.inode == inode(&here)).expect("our socket");
        assert_eq!(seen.peer, Some(inode(&there)));
        assert!(seen.send_queue >= 8, "{seen:?}");
        let other = entries.iter().find(|e| e.inode == inode(&there)).expect("the other one");
        assert_eq!((other.receive_queue, other.send_queue), (8, 0));
        assert!(unix_entry(&[0; UNIX_MESSAGE - 1]).is_none());
    }

    #[test]
    fn truncated_replies_give_no_entries() {
        let mut entries = Vec::new();
        assert!(parse(&[0; 40], &mut entries, entry).is_err());
        assert!(matches!(parse(&[1, 2, 3], &mut entries, entry), Ok(false)));
        assert!(entry(&[0; MESSAGE - 1]).is_none());
        assert_eq!(attributes(&[200, 0, 2, 0, 1]).count(), 0);
        assert!(entries.is_empty());
    }
}
