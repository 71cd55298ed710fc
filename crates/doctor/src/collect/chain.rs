//! What the processes of this machine do for which the server waits, and for which these wait in turn.
//!
//! A connection that waits for a reply has its other end in the same table of sockets, and the owner of that
//! socket is a process whose threads /proc shows. So a sample follows the connections from process to
//! process, until one of them does something else: it computes, sleeps, is stopped, or waits for a disk.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::diag::UnixEntry;
use super::in_hand::reply_ms;
use super::procfs::{self, InCall};
use super::sockets::Entry;
use super::threads::place;
use super::{calls, descriptors};
use crate::analyse::is_wait_for_work;
use crate::recording::Step;

/// Processes in a chain.
const STEPS_MAX: usize = 4;
/// Upstreams that are followed at each sample.
const FOLLOWED_MAX: usize = 8;
/// Threads of a process that are looked at.
const THREADS_MAX: usize = 64;
/// The owners of all sockets of the machine are listed at most this often.
const LIST_INTERVAL: Duration = Duration::from_secs(1);

/// Chains by the address of their first process, each with the number of samples that showed it.
#[derive(Debug, Default)]
pub(super) struct Watch {
    owners: HashMap<u64, i32>,
    listed: Option<Instant>,
    seen: HashMap<SocketAddr, BTreeMap<Vec<Step>, u64>>,
}

impl Watch {
    /// Takes a sample: `waits` are the local and remote addresses of connections that wait for a reply.
    pub(super) fn sample(&mut self, table: &[Entry], waits: &[(SocketAddr, SocketAddr)]) {
        let mut followed: Vec<SocketAddr> = Vec::new();
        for &(local, remote) in waits {
            if followed.len() == FOLLOWED_MAX || followed.contains(&remote) {
                continue;
            }
            followed.push(remote);
            let steps = self.follow(table, local, remote);
            if !steps.is_empty() {
                *self.seen.entry(remote).or_default().entry(steps).or_default() += 1;
            }
        }
    }

    /// The servers behind the Unix sockets of a process: the address of each, the process that accepted the
    /// connection, and what that does.
    pub(super) fn behind_unix(
        &mut self,
        entries: &[UnixEntry],
        owned: &HashMap<u64, i32>,
    ) -> Vec<(String, Option<Step>)> {
        let by_inode: HashMap<u64, &UnixEntry> = entries.iter().map(|entry| (entry.inode, entry)).collect();
        let opened = entries.iter().filter(|entry| owned.contains_key(&entry.inode) && entry.name.is_none());
        let mut servers: Vec<(String, Option<Step>)> = Vec::new();
        for peer in opened.filter_map(|entry| by_inode.get(&entry.peer?)) {
            let Some(name) = peer.name.clone().filter(|_| !owned.contains_key(&peer.inode)) else { continue };
            if servers.len() == FOLLOWED_MAX || servers.iter().any(|(known, _)| *known == name) {
                continue;
            }
            let step = self.owner(peer.inode).and_then(|pid| {
                let stat = procfs::stat(pid)?;
                Some(Step { process: format!("{} {pid}", stat.name), does: activity(pid, stat.state) })
            });
            servers.push((name, step));
        }
        servers
    }

    fn follow(&mut self, table: &[Entry], mut local: SocketAddr, mut remote: SocketAddr) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        let mut pids = Vec::new();
        while steps.len() < STEPS_MAX {
            let is_other_end =
                |entry: &&Entry| !entry.listens && entry.local == remote && entry.remote == local;
            let Some(pid) = table.iter().find(is_other_end).and_then(|entry| self.owner(entry.inode)) else {
                break;
            };
            if pids.contains(&pid) {
                break; // two processes that wait for each other
            }
            pids.push(pid);
            let Some(stat) = procfs::stat(pid) else { break };
            let process = format!("{} {pid}", stat.name);
            let Some(next) = self.awaited(table, pid) else {
                steps.push(Step { process, does: activity(pid, stat.state) });
                break;
            };
            steps.push(Step { process, does: format!("waits for {}", next.1) });
            (local, remote) = next;
        }
        steps
    }

    /// The connection of a process on which it has waited longest for a reply.
    fn awaited(&self, table: &[Entry], pid: i32) -> Option<(SocketAddr, SocketAddr)> {
        let is_its = |entry: &&Entry| self.owners.get(&entry.inode) == Some(&pid);
        let listens = |port: u16| table.iter().any(|entry| entry.listens && entry.local.port() == port);
        let outbound = table.iter().filter(is_its).filter(|entry| !listens(entry.local.port()));
        let (_, entry) =
            outbound.filter_map(|entry| Some((reply_ms(entry)?, entry))).max_by_key(|(ms, _)| *ms)?;
        Some((entry.local, entry.remote))
    }

    fn owner(&mut self, inode: u64) -> Option<i32> {
        if let Some(&pid) = self.owners.get(&inode) {
            return Some(pid);
        }
        if self.listed.is_none_or(|listed| listed.elapsed() >= LIST_INTERVAL) {
            self.listed = Some(Instant::now());
            let all = procfs::processes().into_iter();
            let sockets = |pid| descriptors::owned_sockets(pid).into_keys().map(move |inode| (inode, pid));
            // Of processes that share a socket, the child works with it.
            self.owners = all.flat_map(sockets).collect();
        }
        self.owners.get(&inode).copied()
    }

    /// The chain that was seen most often behind an address.
    pub(super) fn of(&self, remote: SocketAddr) -> Vec<Step> {
        let chains = self.seen.get(&remote).into_iter().flatten();
        chains.max_by_key(|(_, count)| **count).map_or_else(Vec::new, |(steps, _)| steps.clone())
    }
}

/// The activity of a process, by its threads: a thread that computes comes first, then a call that is no wait
/// for work, then a sleep for a time, then a wait for work.
fn activity(pid: i32, state: char) -> String {
    if matches!(state, 'T' | 't') {
        return "is stopped".to_string();
    }
    let on_descriptor = calls::on_descriptor();
    let mut waits = "has no thread that can be seen".to_string();
    let mut sleeps = None;
    for tid in procfs::threads(pid).into_iter().take(THREADS_MAX) {
        let read = |file| procfs::read(procfs::task_path(pid, tid, file)).unwrap_or_default();
        match procfs::parse_stat(&read("stat")).map(|stat| stat.state) {
            Some('R') => return "computes".to_string(),
            None => continue,
            Some(_) => {}
        }
        let Some(call) = procfs::parse_syscall(&read("syscall")) else { continue };
        let (name, fd) = match call {
            InCall::Running => return "computes".to_string(),
            InCall::Elsewhere => ("a page fault".to_string(), None),
            InCall::Call { number, arguments } => place(&on_descriptor, number, arguments),
        };
        let what = fd.and_then(|fd| std::fs::read_link(procfs::path(pid, &format!("fd/{fd}"))).ok());
        let what = what.map(|path| path.to_string_lossy().into_owned());
        let is_file = what.as_ref().is_some_and(|path| path.starts_with('/'));
        let named = what.filter(|_| is_file).map_or_else(|| name.clone(), |path| format!("{name} on {path}"));
        if !is_wait_for_work(&name) && (fd.is_none() || is_file) {
            return format!("is in {named}");
        }
        if name.contains("nanosleep") {
            sleeps = Some(format!("sleeps in {name}"));
        } else {
            waits = format!("waits in {named}");
        }
    }
    sleeps.unwrap_or(waits)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::collect::sockets::read_table;

    #[test]
    fn a_chain_ends_at_the_process_that_does_not_wait_for_another() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let remote = listener.local_addr().expect("an address");
        let mut asks = TcpStream::connect(remote).expect("a connection");
        let _accepted = listener.accept().expect("the same");
        asks.write_all(b"a question").expect("it is sent");
        let table = read_table(std::process::id().cast_signed()).entries;
        let local = asks.local_addr().expect("an address");
        let mut watch = Watch::default();
        watch.sample(&table, &[(local, remote), (local, remote)]);
        let steps = watch.of(remote);
        assert_eq!(steps.len(), 1, "{steps:?}");
        assert!(steps[0].process.ends_with(&std::process::id().to_string()), "{steps:?}");
        assert_eq!(steps[0].does, "computes", "this thread runs");
        assert!(watch.of(local).is_empty());
    }
}
