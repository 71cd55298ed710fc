//! ACL LOG: the refusals of permissions, latest first.
//!
//! A client that is refused repeatedly for the same reason makes a single entry with a count. Permitted
//! commands are not recorded, so only refusals take the lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

/// Refusals of the same kind within this many milliseconds share an entry, if that entry is among the latest
/// few.
const GROUP_MS: u64 = 60_000;
const GROUP_AMONG: usize = 10;

/// Reason for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Auth,
    Command,
    Key,
    Channel,
    /// The client's certificate names no enabled user.
    Certificate,
    Database,
}

impl Reason {
    pub const ALL: [Reason; 6] =
        [Reason::Auth, Reason::Command, Reason::Key, Reason::Channel, Reason::Certificate, Reason::Database];

    pub fn name(self) -> &'static str {
        match self {
            Reason::Auth => "auth",
            Reason::Command => "command",
            Reason::Key => "key",
            Reason::Channel => "channel",
            Reason::Database => "database",
            Reason::Certificate => "tls-cert",
        }
    }

    /// Returns the counter's name in INFO.
    pub fn counter_name(self) -> &'static str {
        match self {
            Reason::Auth => "acl_access_denied_auth",
            Reason::Command => "acl_access_denied_cmd",
            Reason::Key => "acl_access_denied_key",
            Reason::Channel => "acl_access_denied_channel",
            Reason::Database => "acl_access_denied_db",
            Reason::Certificate => "acl_access_denied_tls_cert",
        }
    }
}

/// A refused command, login or certificate.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub reason: Reason,
    /// `toplevel`, `multi`, `lua` or `http`.
    pub context: &'static str,
    /// The command, key or channel.
    pub object: Vec<u8>,
    pub user: Vec<u8>,
    /// The client's line in CLIENT LIST.
    pub client: Vec<u8>,
    pub now_ms: u64,
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub id: u64,
    pub count: u64,
    pub created_ms: u64,
    /// The latest refusal of the entry.
    pub last: Refusal,
}

/// Entries of ACL LOG, and counters; see the module's text.
#[derive(Default)]
pub struct AclLog {
    entries: Mutex<Entries>,
    counts: [AtomicU64; Reason::ALL.len()],
}

#[derive(Default)]
struct Entries {
    /// Latest first.
    list: VecDeque<Entry>,
    next_id: u64,
}

impl AclLog {
    pub fn note(&self, refusal: Refusal, len_max: usize) {
        self.counts[refusal.reason as usize].fetch_add(1, Relaxed);
        let mut entries = self.entries.lock();
        let Entries { list, next_id } = &mut *entries;
        let is_same = |entry: &Entry| {
            let last = &entry.last;
            (last.reason, last.context) == (refusal.reason, refusal.context)
                && refusal.now_ms.saturating_sub(last.now_ms) <= GROUP_MS
                && (&last.object, &last.user) == (&refusal.object, &refusal.user)
        };
        let same = list.iter().take(GROUP_AMONG).position(is_same).and_then(|at| list.remove(at));
        let entry = match same {
            Some(entry) => Entry { count: entry.count + 1, last: refusal, ..entry },
            None => {
                *next_id += 1;
                Entry { id: *next_id - 1, count: 1, created_ms: refusal.now_ms, last: refusal }
            }
        };
        list.push_front(entry);
        list.truncate(len_max);
    }

    /// Returns at most `count` entries, latest first.
    pub fn latest(&self, count: usize) -> Vec<Entry> {
        self.entries.lock().list.iter().take(count).cloned().collect()
    }

    pub fn clear(&self) {
        self.entries.lock().list.clear();
    }

    /// Returns the number of refusals for each reason.
    pub fn counts(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.iter().map(|reason| (*reason, self.counts[*reason as usize].load(Relaxed)))
    }

    /// Sets the counters to zero, for CONFIG RESETSTAT.
    pub fn reset_counts(&self) {
        self.counts.iter().for_each(|count| count.store(0, Relaxed));
    }
}
