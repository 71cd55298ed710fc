//! Descriptors and their roles from the server's point of view.
//!
//! A number means nothing to a reader; "writes to replicas" does. The role comes from the descriptor's kind,
//! the path, and for sockets the direction: a connection to a port on which the server listens is inbound.
//! Both ends of a local connection are in one table, so the process at the other end has a name. A server of
//! the same kind that connected to the target is a replica, and a process at the end of a pipe that writes a
//! log is a log daemon. Files are recognised by the names that Redis and related servers give them.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::time::{Duration, Instant};

use super::sockets::{Entry, parse_lines, read_table};
use super::{diag, procfs};
use crate::recording::{Descriptor, Role, is_of_redis_family};

/// Bound of the descriptors that are examined.
pub(crate) const DESCRIPTORS_MAX: usize = 65_536;
/// Time limit of the search for the processes at the other ends.
const PEERS_BUDGET: Duration = Duration::from_millis(300);

pub(crate) fn link(pid: i32, fd: i32) -> Option<String> {
    let link = std::fs::read_link(procfs::path(pid, &format!("fd/{fd}"))).ok()?;
    Some(link.to_string_lossy().into_owned())
}

fn inode_of(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

pub(crate) fn socket_inode(pid: i32, fd: i32) -> Option<u64> {
    inode_of(&link(pid, fd)?)
}

/// Returns the inodes of the target's sockets, with their descriptors.
pub(crate) fn owned_sockets(pid: i32) -> HashMap<u64, i32> {
    let numbers = procfs::numbers_in(procfs::path(pid, "fd"));
    let sockets = numbers.into_iter().take(DESCRIPTORS_MAX);
    sockets.filter_map(|fd| Some((socket_inode(pid, fd)?, fd))).collect()
}

/// A Unix socket or a pipe of the target, and the process at its other end.
#[derive(Debug, Clone)]
pub(crate) struct Local {
    pub(crate) fd: i32,
    /// `None` for a pipe.
    pub(crate) inode: Option<u64>,
    pub(crate) peer_pid: i32,
    pub(crate) peer: String,
}

/// Describes all descriptors of the target, and returns the local connections to other processes. `name` is
/// the target's own name.
pub(crate) fn describe_all(pid: i32, name: &str) -> (Vec<Descriptor>, Vec<Local>) {
    let numbers = procfs::numbers_in(procfs::path(pid, "fd"));
    let links: Vec<(i32, String)> =
        numbers.into_iter().take(DESCRIPTORS_MAX).filter_map(|fd| Some((fd, link(pid, fd)?))).collect();
    let table = read_table(pid);
    // Of any process: a process may have got its connections from another.
    let ports = table.listening();
    let table = table.entries;
    let by_inode: HashMap<u64, &Entry> = table.iter().map(|entry| (entry.inode, entry)).collect();
    let own = |link: &str| inode_of(link).and_then(|inode| by_inode.get(&inode).copied());
    let accepts = links.iter().filter_map(|(_, link)| own(link)).any(|entry| entry.listens);
    let ends = Ends::new(&table, fifos(pid, &links));
    let holders = find_holders(pid, &ends, links.iter().filter_map(|(_, link)| ends.other(link)));
    let datagram = read_datagram(pid);
    let mut locals = Vec::new();
    let descriptors = links.iter().map(|(fd, link)| {
        let holder = ends.other(link).and_then(|end| holders.get(&end));
        if let Some(entry) = own(link) {
            return connection(*fd, entry, &ports, holder.map(|holder| holder.called(pid)), name);
        }
        let mut descriptor =
            Descriptor { fd: *fd, role: role_of_link(link), what: link.clone(), peer: None, disk: None };
        if inode_of(link).is_some_and(|inode| !ends.unix.is_empty() && !ends.unix.contains(&inode)) {
            // A short connection, which ended before the table was read.
            descriptor.role = if accepts { Role::Client } else { Role::Other };
        }
        if ends.fifos.contains(link) {
            descriptor.role = Role::Pipe;
        }
        if let Some(entry) = inode_of(link).and_then(|inode| datagram.get(&inode)) {
            descriptor.role = Role::Datagram;
            descriptor.what = format!("UDP {}", entry.local);
        } else if let Some(holder) = holder.filter(|holder| holder.pid != pid) {
            let peer = holder.called(pid);
            if holder.writes_a_log() {
                descriptor.role = Role::LogDaemon;
            }
            let inode = inode_of(link);
            locals.push(Local { fd: *fd, inode, peer_pid: holder.pid, peer: peer.clone() });
            descriptor.peer = Some(peer);
        }
        descriptor
    });
    (descriptors.collect(), locals)
}

/// Returns the datagram sockets of its network, by inode.
pub(super) fn read_datagram(pid: i32) -> HashMap<u64, Entry> {
    let text = |file| procfs::read(procfs::path(pid, file)).unwrap_or_default();
    let entries = ["net/udp", "net/udp6"].into_iter().flat_map(|file| parse_lines(&text(file)));
    entries.map(|entry| (entry.inode, entry)).collect()
}

fn connection(fd: i32, entry: &Entry, ports: &HashSet<u16>, peer: Option<String>, name: &str) -> Descriptor {
    if entry.listens {
        return Descriptor {
            fd,
            role: Role::Listener,
            what: entry.local.to_string(),
            peer: None,
            disk: None,
        };
    }
    let inbound = ports.contains(&entry.local.port());
    // Their replicas connect to the primary as a client does.
    let same_kind = is_of_redis_family(name) && peer.as_deref().is_some_and(is_of_redis_family);
    let role = match (inbound, same_kind) {
        (true, true) => Role::Replica,
        (true, false) => Role::Client,
        (false, true) => Role::Primary,
        (false, false) => Role::Outbound,
    };
    let arrow = if inbound { "<-" } else { "->" };
    Descriptor { fd, role, what: format!("{} {arrow} {}", entry.local, entry.remote), peer, disk: None }
}

/// An object that another process may share or hold the other end of. Both ends of a pipe have the same
/// inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum End {
    Socket(u64),
    Pipe(u64),
    /// A pipe with a name, by its index in [`Ends::fifos`].
    Fifo(usize),
}

/// The paths among these links that are pipes with a name (FIFOs).
fn fifos(pid: i32, links: &[(i32, String)]) -> Vec<String> {
    let is_fifo = |fd: i32| {
        let file = std::fs::metadata(procfs::path(pid, &format!("fd/{fd}")));
        file.is_ok_and(|file| file.file_type().is_fifo())
    };
    let named = links.iter().filter(|(fd, link)| link.starts_with('/') && is_fifo(*fd));
    named.map(|(_, link)| link.clone()).collect()
}

/// The other ends of connections on this machine.
struct Ends {
    /// By the inodes of the target's sockets.
    sockets: HashMap<u64, u64>,
    /// Unix sockets of all processes; empty if unknown.
    unix: HashSet<u64>,
    fifos: Vec<String>,
}

impl Ends {
    fn parse(&self, link: &str) -> Option<End> {
        let pipe = || link.strip_prefix("pipe:[")?.strip_suffix(']')?.parse().ok().map(End::Pipe);
        let fifo = || self.fifos.iter().position(|fifo| fifo == link).map(End::Fifo);
        inode_of(link).map(End::Socket).or_else(pipe).or_else(fifo)
    }

    fn new(table: &[Entry], fifos: Vec<String>) -> Ends {
        let connections = || table.iter().filter(|e| !e.listens && e.inode != 0);
        let by_address: HashMap<SocketAddr, u64> = connections().map(|e| (e.local, e.inode)).collect();
        let tcp = connections().filter_map(|e| Some((e.inode, *by_address.get(&e.remote)?)));
        let local = diag::read_unix().unwrap_or_default();
        let unix = local.iter().map(|entry| entry.inode).collect();
        let local = local.into_iter().filter_map(|entry| Some((entry.inode, entry.peer?)));
        Ends { sockets: tcp.chain(local).collect(), unix, fifos }
    }

    fn other(&self, link: &str) -> Option<End> {
        match self.parse(link)? {
            End::Socket(inode) => self.sockets.get(&inode).copied().map(End::Socket),
            pipe @ (End::Pipe(_) | End::Fifo(_)) => Some(pipe),
        }
    }
}

/// A process that holds the other end.
#[derive(Debug, Clone)]
struct Holder {
    pid: i32,
    name: String,
}

impl Holder {
    fn called(&self, target: i32) -> String {
        if self.pid == target { "itself".to_string() } else { format!("{} ({})", self.name, self.pid) }
    }

    fn writes_a_log(&self) -> bool {
        let numbers = procfs::numbers_in(procfs::path(self.pid, "fd")).into_iter().take(DESCRIPTORS_MAX);
        numbers.filter_map(|fd| link(self.pid, fd)).any(|link| role_of_link(&link) == Role::Log)
    }
}

/// Finds the processes that hold these ends. It must read the descriptors of every process, so the search
/// stops when all ends are found, or at the end of its budget.
fn find_holders(pid: i32, ends: &Ends, wanted: impl Iterator<Item = End>) -> HashMap<End, Holder> {
    let mut wanted: HashSet<End> = wanted.collect();
    let mut found = HashMap::new();
    let start = Instant::now();
    for other in procfs::processes() {
        if wanted.is_empty() || start.elapsed() > PEERS_BUDGET {
            break;
        }
        for fd in procfs::numbers_in(procfs::path(other, "fd")) {
            let Some(end) = link(other, fd).and_then(|link| ends.parse(&link)) else { continue };
            // The target's own end of a pipe looks like the other end.
            if (other == pid && matches!(end, End::Pipe(_) | End::Fifo(_))) || !wanted.remove(&end) {
                continue;
            }
            let name = procfs::stat(other).map_or_else(String::new, |stat| stat.name);
            found.insert(end, Holder { pid: other, name });
        }
    }
    found
}

/// The role of a link of /proc/PID/fd that is not a TCP socket.
pub(crate) fn role_of_link(link: &str) -> Role {
    match link {
        "anon_inode:[eventpoll]" => return Role::Epoll,
        "anon_inode:[eventfd]" => return Role::Eventfd,
        "anon_inode:[timerfd]" => return Role::Timer,
        _ => {}
    }
    if link.starts_with("socket:[") {
        Role::UnixSocket
    } else if link.starts_with("pipe:[") {
        Role::Pipe
    } else if link.starts_with('/') {
        role_of_file(link)
    } else {
        Role::Other
    }
}

pub(crate) fn role_of_file(path: &str) -> Role {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let name = path.rsplit('/').next().unwrap_or(path);
    if path.starts_with("/dev/") {
        Role::Other
    } else if name.contains(".aof") {
        Role::AppendOnlyFile
    } else if name.ends_with(".rdb") {
        Role::Snapshot
    } else if name.ends_with(".log") || name.contains(".log.") || path.starts_with("/var/log/") {
        Role::Log
    } else {
        Role::File
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(local: &str, remote: &str) -> Entry {
        let parse = |text: &str| text.parse().expect("an address");
        Entry { local: parse(local), remote: parse(remote), ..Entry::default() }
    }

    fn role(entry: &Entry, peer: &str, name: &str) -> Role {
        connection(5, entry, &HashSet::from([6379]), Some(peer.to_string()), name).role
    }

    #[test]
    fn files_are_known_by_their_names() {
        assert_eq!(role_of_link("/data/appendonlydir/appendonly.aof.1.incr.aof"), Role::AppendOnlyFile);
        assert_eq!(role_of_link("/data/temp-4242.rdb"), Role::Snapshot);
        assert_eq!(role_of_link("/var/log/redis/redis-server.log (deleted)"), Role::Log);
        assert_eq!(role_of_link("/data/x.log.1"), Role::Log);
        assert_eq!(role_of_link("/data/table"), Role::File);
        assert_eq!(role_of_link("/dev/null"), Role::Other);
        assert_eq!(role_of_link("pipe:[12]"), Role::Pipe);
        assert_eq!(role_of_link("anon_inode:[eventpoll]"), Role::Epoll);
    }

    #[test]
    fn the_other_end_of_a_local_connection_is_found() {
        use std::process::{Command, Stdio};
        let mut cat = Command::new("cat");
        // A runner of the tests may write its output to a log, which would make `cat` a log daemon.
        cat.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = cat.spawn().expect("cat is there");
        let own = std::process::id().cast_signed();
        let (descriptors, locals) = describe_all(own, "test");
        let called = format!("cat ({})", child.id());
        let local = locals.iter().find(|local| local.peer == called);
        drop(child.stdin.take());
        child.wait().expect("it was started");
        let local = local.expect("our end of its standard input");
        assert_eq!(local.peer_pid, child.id().cast_signed());
        let descriptor = descriptors.iter().find(|d| d.fd == local.fd).expect("it is open");
        assert_eq!((descriptor.role, descriptor.peer.as_deref()), (Role::Pipe, Some(called.as_str())));
    }

    #[test]
    fn a_connection_is_named_by_its_direction_and_its_other_end() {
        let inbound = entry("127.0.0.1:6379", "127.0.0.1:50000");
        assert_eq!(role(&inbound, "redis-benchmark (9)", "redis-server"), Role::Client);
        assert_eq!(role(&inbound, "redis-server (9)", "redis-server"), Role::Replica);
        assert_eq!(role(&inbound, "redis-server (9)", "proxy"), Role::Client);
        let outbound = entry("127.0.0.1:50000", "127.0.0.1:7000");
        assert_eq!(role(&outbound, "valkey-server (9)", "redis-server"), Role::Primary);
        assert_eq!(role(&outbound, "postgres (9)", "redis-server"), Role::Outbound);
    }
}
