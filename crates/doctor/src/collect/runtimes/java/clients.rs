//! Whether a thread reads from a client's connection.
//!
//! A dump shows a thread that waits for the next request of a client like a thread that waits for the reply
//! of a database. The kernel knows the descriptor that each thread reads from, and connections to a port on
//! which the process listens are its clients'.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::FileExt;

use crate::collect::descriptors;
use crate::collect::procfs::{self, InCall};
use crate::collect::sockets::read_table;

/// Threads that are looked up in a sample, at about 20 us.
const LOOKUPS_MAX: u32 = 500;

#[derive(Debug)]
pub(super) struct Clients {
    pid: i32,
    /// The threads by their numbers in the JVM's PID namespace; empty if that is the doctor's.
    threads: HashMap<i32, i32>,
    is_contained: bool,
    /// Whether a connection, by its inode, is a client's.
    known: HashMap<u64, bool>,
    /// Reads at a place of the program that were a client's, and others.
    places: HashMap<String, (u32, u32)>,
    /// Look-ups of connections that this sample may still make.
    lookups: u32,
    may_read_table: bool,
    may_list_threads: bool,
}

impl Clients {
    pub(super) fn new(pid: i32) -> Clients {
        Clients {
            pid,
            threads: HashMap::new(),
            is_contained: inner_tid(procfs::path(pid, "status")) != Some(pid),
            known: HashMap::new(),
            places: HashMap::new(),
            lookups: 0,
            may_read_table: false,
            may_list_threads: false,
        }
    }

    pub(super) fn begin_sample(&mut self) {
        (self.lookups, self.may_read_table, self.may_list_threads) = (LOOKUPS_MAX, true, true);
    }

    /// Whether the thread with this number in a dump waits for a client, at this place. If it went on since
    /// the dump, or cannot be looked up, other reads at the place tell; without any the answer is no.
    pub(super) fn is_awaited_by(&mut self, native_id: i32, place: &str) -> bool {
        let is_client = self.look_up(native_id);
        let (clients, others) = match self.places.get_mut(place) {
            Some(counts) => counts,
            None => self.places.entry(place.to_string()).or_default(),
        };
        match is_client {
            Some(true) => *clients += 1,
            Some(false) => *others += 1,
            None => return *clients > *others,
        }
        is_client == Some(true)
    }

    fn look_up(&mut self, native_id: i32) -> Option<bool> {
        self.lookups = self.lookups.checked_sub(1)?;
        let inode = self.socket_of(native_id)?;
        self.is_client(inode)
    }

    fn socket_of(&mut self, native_id: i32) -> Option<u64> {
        let tid = self.tid(native_id)?;
        let call = procfs::parse_syscall(&procfs::read(procfs::task_path(self.pid, tid, "syscall"))?)?;
        let InCall::Call { number, arguments } = call else { return None };
        let fd = match descriptor(number, arguments)? {
            Descriptor::Number(fd) => fd,
            Descriptor::At(address) => self.number_at(address)?,
        };
        descriptors::socket_inode(self.pid, fd)
    }

    fn tid(&mut self, native_id: i32) -> Option<i32> {
        if !self.is_contained {
            return Some(native_id);
        }
        if !self.threads.contains_key(&native_id) && std::mem::take(&mut self.may_list_threads) {
            let pid = self.pid;
            let numbers = procfs::threads(pid).into_iter();
            let pair = |tid| Some((inner_tid(procfs::task_path(pid, tid, "status"))?, tid));
            self.threads = numbers.filter_map(pair).collect();
        }
        self.threads.get(&native_id).copied()
    }

    fn number_at(&self, address: u64) -> Option<i32> {
        let memory = std::fs::File::open(procfs::path(self.pid, "mem")).ok()?;
        let mut bytes = [0; 4];
        memory.read_exact_at(&mut bytes, address).ok()?;
        Some(i32::from_ne_bytes(bytes))
    }

    /// `None` for a connection that is not in the table.
    fn is_client(&mut self, inode: u64) -> Option<bool> {
        if !self.known.contains_key(&inode) && std::mem::take(&mut self.may_read_table) {
            self.read_table();
        }
        self.known.get(&inode).copied()
    }

    fn read_table(&mut self) {
        let table = read_table(self.pid).entries;
        let owned = descriptors::owned_sockets(self.pid);
        let own = || table.iter().filter(|entry| owned.contains_key(&entry.inode));
        let ports: HashSet<u16> =
            own().filter(|entry| entry.listens).map(|entry| entry.local.port()).collect();
        self.known = own().map(|entry| (entry.inode, ports.contains(&entry.local.port()))).collect();
    }
}

/// The number of a thread in its innermost PID namespace.
fn inner_tid(status: std::path::PathBuf) -> Option<i32> {
    let status = procfs::read(status)?;
    procfs::status_field(&status, "NSpid")?.split_ascii_whitespace().last()?.parse().ok()
}

#[derive(Debug, PartialEq, Eq)]
enum Descriptor {
    Number(i32),
    /// In the process's memory.
    At(u64),
}

/// The descriptor from which a system call reads, or the only descriptor that it polls.
fn descriptor(number: i64, arguments: [u64; 6]) -> Option<Descriptor> {
    #[cfg(target_arch = "x86_64")]
    let is_poll = matches!(number, libc::SYS_poll | libc::SYS_ppoll);
    #[cfg(not(target_arch = "x86_64"))]
    let is_poll = number == libc::SYS_ppoll;
    match number {
        libc::SYS_read | libc::SYS_readv | libc::SYS_recvfrom | libc::SYS_recvmsg => {
            i32::try_from(arguments[0]).ok().map(Descriptor::Number)
        }
        _ if is_poll && arguments[1] == 1 => Some(Descriptor::At(arguments[0])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_went_on_is_judged_by_other_reads_at_its_place() {
        let mut clients = Clients::new(std::process::id().cast_signed());
        assert!(!clients.is_awaited_by(0, "a"), "nothing is known");
        clients.places = [("a".to_string(), (2, 1)), ("b".to_string(), (1, 2))].into();
        assert!(clients.is_awaited_by(0, "a") && !clients.is_awaited_by(0, "b"));
    }

    #[test]
    fn the_descriptor_of_a_read_and_of_a_single_poll_is_known() {
        let arguments = [7, 1, 0, 0, 0, 0];
        assert_eq!(descriptor(libc::SYS_recvfrom, arguments), Some(Descriptor::Number(7)));
        assert_eq!(descriptor(libc::SYS_ppoll, arguments), Some(Descriptor::At(7)));
        assert_eq!(descriptor(libc::SYS_ppoll, [7, 2, 0, 0, 0, 0]), None, "one of two");
        assert_eq!(descriptor(libc::SYS_write, arguments), None);
        assert_eq!(descriptor(libc::SYS_read, [u64::MAX; 6]), None);
    }
}
