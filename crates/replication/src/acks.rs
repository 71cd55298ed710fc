//! The records that replicas have, for replies that wait for replicas (`write-acks`).
//!
//! A worker that holds a reply back compares its record with [`Acks::kept`], which only rises. It rises on
//! the replication thread, when an acknowledgement comes, and on the thread that changes the required set.
//!
//! **The required set** (`write-acks in-sync`) is a cluster's: the nodes that have to have every acknowledged
//! write ([`Acks::require`]). A set may grow, and then counts for later records. So the cluster has to know
//! which records may have been acknowledged without the new member. Records have numbers before they are
//! published, hence this order: the set is in force; the journal's last number is read; each reply to a
//! record above that number waits for the new set.
//!
//! **A new primary** does not know which writes of its predecessor every member has. A read that sees one of
//! them must not be answered before. So a number stands for all that came before the epoch, and a member has
//! acknowledged it when it has the stream up to there ([`Acks::begin_epoch`]).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*, fence};

use parking_lot::Mutex;

use evenkeel_client::replica_hello::Membership;
use evenkeel_config::WriteAcks;
use evenkeel_store::journal::Journal;

/// Without a required member, every record is kept.
const ALL: u64 = u64::MAX;

/// The state of all acknowledgements; see the module's text.
pub struct Acks {
    /// The last record that so many replicas have, less one.
    by_count: [AtomicU64; WriteAcks::COUNT_MAX as usize],
    /// The last record that the required set has.
    in_sync: AtomicU64,
    /// The number that stands for all records before the epoch; zero: this server is not the primary of a
    /// shard.
    epoch_record: AtomicU64,
    /// The journal has to have a reader, which gives records their numbers: some client waits for a number of
    /// replicas.
    needs_log: AtomicBool,
    /// Replies to records up to this number that are not kept are never sent: this server has become a
    /// replica.
    lost: AtomicU64,
    required: Mutex<Required>,
}

#[derive(Default)]
struct Required {
    epoch: u64,
    /// The stream's offset at the beginning of the epoch.
    begins_at: u64,
    /// The number of the data that each node has to have.
    members: BTreeMap<String, u64>,
    /// For each node: the number of its data, and the last record that it has acknowledged.
    acked: BTreeMap<String, (u64, u64)>,
}

impl Default for Acks {
    fn default() -> Acks {
        Acks {
            by_count: [const { AtomicU64::new(0) }; WriteAcks::COUNT_MAX as usize],
            in_sync: AtomicU64::new(ALL),
            epoch_record: AtomicU64::new(0),
            needs_log: AtomicBool::new(false),
            lost: AtomicU64::new(0),
            required: Mutex::default(),
        }
    }
}

impl Acks {
    /// The last record that is kept as `acks` asks. For a worker that has published its records: it calls
    /// this afterwards.
    #[inline]
    pub fn kept(&self, acks: WriteAcks) -> u64 {
        if acks.is_none() {
            return ALL;
        }
        // Either this thread sees a new set, or the thread that made the set sees the records.
        fence(SeqCst);
        let count = match acks.count {
            0 => ALL,
            count => self.by_count[usize::from(count) - 1].load(Acquire),
        };
        if acks.in_sync { count.min(self.in_sync.load(Acquire)) } else { count }
    }

    /// Whether the reply to this record is never sent.
    pub fn is_lost(&self, record: u64) -> bool {
        record <= self.lost.load(Acquire)
    }

    /// The number that stands for all records before the epoch.
    pub fn epoch_record(&self) -> u64 {
        self.epoch_record.load(Acquire)
    }

    /// This server has become a replica. The caller holds all locks, so no reply is on its way to be held.
    pub(super) fn lose(&self, journal: &Journal) {
        self.lost.store(journal.last(), Release);
        self.epoch_record.store(0, Release);
    }

    /// This server has become the primary of a shard. The caller holds all locks, and names the set next.
    pub(super) fn begin_epoch(&self, epoch: u64, journal: &Journal, offset: u64) {
        let mut required = self.required.lock();
        *required = Required { epoch, begins_at: offset, ..Required::default() };
        // Later records have larger numbers than the last, and so than its successor.
        let last = journal.last();
        self.epoch_record.store(last + 1, Release);
        self.in_sync.store(last, Release);
    }

    /// Replaces the required set, without this server. Returns a record: replies to records above it wait for
    /// the new set.
    pub(super) fn require(&self, members: BTreeMap<String, u64>, journal: &Journal) -> u64 {
        let mut required = self.required.lock();
        required.members = members;
        if required.members.is_empty() {
            self.in_sync.store(ALL, Release);
        } else {
            // The members of a set after none have none of the records.
            let _ = self.in_sync.compare_exchange(ALL, journal.last(), AcqRel, Relaxed);
            self.follow(&required);
        }
        fence(SeqCst);
        journal.last()
    }

    pub(super) fn ask_for_numbers(&self) {
        self.needs_log.store(true, Release);
    }

    pub(super) fn are_numbers_asked(&self) -> bool {
        self.needs_log.load(Acquire)
    }

    /// Whether replies may wait for records, so the journal has to have a reader.
    pub(super) fn needs_log(&self) -> bool {
        self.needs_log.load(Acquire) || !self.required.lock().members.is_empty()
    }

    /// Records that a node has the first `bytes` bytes of the stream, and so the records up to `record`. An
    /// acknowledgement of another epoch has no effect: its bytes may be those of another stream.
    pub(super) fn record_member(&self, member: &Membership, (bytes, record): (u64, u64)) {
        let mut required = self.required.lock();
        if member.epoch != required.epoch {
            return;
        }
        let (node, incarnation) = (&member.node[..], member.incarnation);
        let before = if bytes >= required.begins_at { self.epoch_record() } else { 0 };
        let record = record.max(before);
        match required.acked.get_mut(node) {
            Some(acked) if acked.0 == incarnation => acked.1 = acked.1.max(record),
            Some(acked) => *acked = (incarnation, record),
            None => {
                required.acked.insert(node.to_owned(), (incarnation, record));
            }
        }
        self.follow(&required);
    }

    fn follow(&self, required: &Required) {
        let has = |(node, incarnation): (&String, &u64)| {
            let acked = required.acked.get(node).filter(|(number, _)| number == incarnation);
            acked.map_or(0, |(_, record)| *record)
        };
        if let Some(least) = required.members.iter().map(has).min() {
            self.in_sync.fetch_max(least, AcqRel);
        }
    }

    /// Records the last records of all replicas, in any order.
    pub(super) fn record_all(&self, mut records: Vec<u64>) {
        records.sort_unstable_by(|one, other| other.cmp(one));
        for (kept, record) in self.by_count.iter().zip(records) {
            kept.fetch_max(record, AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_SYNC: WriteAcks = WriteAcks { count: 0, in_sync: true };

    fn members(numbers: &[(&str, u64)]) -> BTreeMap<String, u64> {
        numbers.iter().map(|(node, number)| ((*node).to_owned(), *number)).collect()
    }

    #[test]
    fn counts_are_those_of_the_slowest_that_count() {
        let acks = Acks::default();
        let kept = |count| acks.kept(WriteAcks { count, in_sync: false });
        assert_eq!((kept(0), kept(1), kept(2)), (ALL, 0, 0));
        acks.record_all(vec![5, 9]);
        assert_eq!((kept(1), kept(2), kept(3)), (9, 5, 0));
        acks.record_all(vec![7]);
        assert_eq!((kept(1), kept(2)), (9, 5), "nothing is taken back");
    }

    #[test]
    fn the_required_set_counts_with_the_data_it_names() {
        let (acks, journal) = (Acks::default(), Journal::new(1));
        assert_eq!(acks.kept(IN_SYNC), ALL);
        acks.begin_epoch(3, &journal, 100);
        let record = |node: &str, incarnation, acked| {
            let (node, primary) = (node.to_owned(), String::new());
            acks.record_member(&Membership { node, primary, epoch: 3, incarnation }, acked);
        };
        assert_eq!((acks.kept(IN_SYNC), acks.epoch_record()), (0, 1), "what came before is not kept yet");
        acks.require(members(&[("a", 1), ("b", 1)]), &journal);
        record("a", 1, (200, 10));
        assert_eq!(acks.kept(IN_SYNC), 0);
        record("b", 2, (300, 20));
        assert_eq!(acks.kept(IN_SYNC), 0, "these are other data");
        record("b", 1, (99, 0));
        assert_eq!(acks.kept(IN_SYNC), 0, "it lacks a byte of the stream before the epoch");
        let member = Membership { node: "b".into(), epoch: 2, incarnation: 1, ..Membership::default() };
        acks.record_member(&member, (100, 9));
        assert_eq!(acks.kept(IN_SYNC), 0, "this is of another epoch");
        record("b", 1, (100, 0));
        assert_eq!(acks.kept(IN_SYNC), 1);
        record("b", 1, (180, 7));
        assert_eq!(acks.kept(IN_SYNC), 7);
        acks.require(members(&[("a", 1)]), &journal);
        assert_eq!(acks.kept(IN_SYNC), 10);
        acks.require(members(&[("a", 1), ("c", 1)]), &journal);
        record("a", 1, (220, 12));
        assert_eq!(acks.kept(IN_SYNC), 10, "the new member counts from now on");
        acks.require(members(&[]), &journal);
        assert_eq!(acks.kept(IN_SYNC), ALL);
        assert_eq!(acks.kept(WriteAcks { count: 1, in_sync: true }), 0);
    }
}
