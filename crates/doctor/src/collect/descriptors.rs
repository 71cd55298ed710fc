//! Descriptors and their roles: what the server would call them.
//!
//! A number means nothing to a reader; "writes to replicas" does. A role comes from the kind of the descriptor, the
//! path, and for sockets from which end they are: a connection to a port that the server listens on came from outside.
//! Both ends of a local connection are in one table, so the process at the other end has a name; a server of the same
//! kind that connected to us is a replica. Which files are what is known by the names that Redis and its kin give them.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::procfs;
use super::sockets::{Entry, read_table};
use crate::recording::{Descriptor, Role};

/// Descriptors that are looked at.
pub(crate) const DESCRIPTORS_MAX: usize = 65_536;
/// Time for finding the processes at the other ends.
const PEERS_BUDGET: Duration = Duration::from_millis(300);
/// Servers that replicate from one another by connecting as a client does.
const REPLICATING: &[&str] = &["redis-server", "valkey-server", "keydb-server", "evenkeel"];

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

/// Inodes of the target's sockets, with their descriptors.
pub(crate) fn owned_sockets(pid: i32) -> HashMap<u64, i32> {
    let numbers = procfs::numbers_in(procfs::path(pid, "fd"));
    let sockets = numbers.into_iter().take(DESCRIPTORS_MAX);
    sockets.filter_map(|fd| Some((socket_inode(pid, fd)?, fd))).collect()
}

/// All descriptors of the target; `name` is what it is called itself.
pub(crate) fn describe_all(pid: i32, name: &str) -> Vec<Descriptor> {
    let numbers = procfs::numbers_in(procfs::path(pid, "fd"));
    let links: Vec<(i32, String)> =
        numbers.into_iter().take(DESCRIPTORS_MAX).filter_map(|fd| Some((fd, link(pid, fd)?))).collect();
    let table = read_table(pid).entries;
    let by_inode: HashMap<u64, &Entry> = table.iter().map(|entry| (entry.inode, entry)).collect();
    let own = |link: &str| inode_of(link).and_then(|inode| by_inode.get(&inode).copied());
    let ports: HashSet<u16> = links
        .iter()
        .filter_map(|(_, link)| own(link))
        .filter(|e| e.listens)
        .map(|e| e.local.port())
        .collect();
    let wanted = links.iter().filter_map(|(_, link)| own(link)).filter(|e| !e.listens);
    let peers = find_peers(pid, wanted, &table);
    links
        .iter()
        .map(|(fd, link)| match own(link) {
            Some(entry) => connection(*fd, entry, &ports, &peers, name),
            None => Descriptor { fd: *fd, role: role_of_link(link), what: link.clone(), peer: None },
        })
        .collect()
}

fn connection(
    fd: i32,
    entry: &Entry,
    ports: &HashSet<u16>,
    peers: &HashMap<SocketAddr, String>,
    name: &str,
) -> Descriptor {
    if entry.listens {
        return Descriptor { fd, role: Role::Listener, what: entry.local.to_string(), peer: None };
    }
    let inbound = ports.contains(&entry.local.port());
    let peer = peers.get(&entry.remote).cloned();
    let replicates = |name: &str| REPLICATING.iter().any(|known| name.starts_with(known));
    let same_kind = replicates(name) && peer.as_deref().is_some_and(replicates);
    let role = match (inbound, same_kind) {
        (true, true) => Role::Replica,
        (true, false) => Role::Client,
        (false, true) => Role::Primary,
        (false, false) => Role::Outbound,
    };
    let arrow = if inbound { "<-" } else { "->" };
    Descriptor { fd, role, what: format!("{} {arrow} {}", entry.local, entry.remote), peer }
}

/// The names of local processes by the address of their end.
///
/// To find an owner, every process' descriptors must be read: the search ends when all are found, or with its budget.
fn find_peers<'a>(
    pid: i32,
    connections: impl Iterator<Item = &'a Entry>,
    table: &[Entry],
) -> HashMap<SocketAddr, String> {
    let ends: HashMap<SocketAddr, u64> =
        table.iter().filter(|e| !e.listens && e.inode != 0).map(|e| (e.local, e.inode)).collect();
    let mut wanted: HashMap<u64, SocketAddr> =
        connections.filter_map(|e| Some((*ends.get(&e.remote)?, e.remote))).collect();
    let mut found = HashMap::new();
    let start = Instant::now();
    for other in procfs::processes() {
        if wanted.is_empty() || start.elapsed() > PEERS_BUDGET {
            break;
        }
        for fd in procfs::numbers_in(procfs::path(other, "fd")) {
            let Some(inode) = socket_inode(other, fd) else { continue };
            let Some(address) = wanted.remove(&inode) else { continue };
            let name = procfs::stat(other).map_or_else(String::new, |stat| stat.name);
            found.insert(
                address,
                if other == pid { "itself".to_string() } else { format!("{name} ({other})") },
            );
        }
    }
    found
}

/// What a link of /proc/PID/fd says that is no TCP socket.
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
        let peers = HashMap::from([(entry.remote, peer.to_string())]);
        connection(5, entry, &HashSet::from([6379]), &peers, name).role
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
