//! The attached replicas as other threads see them: INFO, ROLE, WAIT, and the check for enough good replicas
//! to write.
//!
//! A replica acknowledges an offset of the stream (REPLCONF ACK), while a client waits for a record of the
//! journal. The replication thread makes the stream from the journal, translates offsets to records, and
//! stores the records here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::*};

use parking_lot::Mutex;

use super::link::Target;
use evenkeel_client::clients::ClientInfo;
use evenkeel_client::replica_hello::ReplicaHello;

/// The progress of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A full sync is to begin, or the snapshot is being taken; also while it is sent as it is taken, as in
    /// Redis.
    Waiting,
    /// It is being sent a snapshot from a file.
    Snapshot,
    /// It gets the stream, or will get it after loading the snapshot.
    Online,
    /// It wanted only the snapshot, and has it.
    Done,
}

impl Progress {
    /// The name in INFO.
    pub fn name(self) -> &'static str {
        match self {
            Progress::Waiting => "wait_bgsave",
            Progress::Snapshot => "send_bulk",
            Progress::Online => "online",
            Progress::Done => "rdb_transmitted",
        }
    }
}

/// A replica.
pub struct Replica {
    pub client: Arc<ClientInfo>,
    pub ip: String,
    pub port: u16,
    progress: AtomicU8,
    /// The acknowledged offset of the stream.
    pub acked: AtomicU64,
    /// The last record that it has, and the last record that it has on disk.
    acked_record: AtomicU64,
    /// Whether it has acknowledged anything. Before, it may still be loading the snapshot.
    has_acked: AtomicBool,
    synced_record: AtomicU64,
    /// Whether it has reported records on disk, though there may be none yet.
    has_synced: AtomicBool,
    /// The time of its last message, in milliseconds since the Unix epoch.
    pub last_io_ms: AtomicU64,
}

impl Replica {
    pub fn new(client: Arc<ClientInfo>, replica_hello: &ReplicaHello, now_ms: u64) -> Replica {
        let ip = match &replica_hello.ip[..] {
            "" => client.address.rsplit_once(':').map_or(client.address.clone(), |(ip, _)| ip.to_owned()),
            ip => ip.to_owned(),
        };
        Replica {
            client,
            ip: ip.trim_matches(['[', ']']).to_owned(),
            port: replica_hello.port,
            progress: AtomicU8::new(Progress::Waiting as u8),
            acked: AtomicU64::new(0),
            acked_record: AtomicU64::new(0),
            has_acked: AtomicBool::new(false),
            synced_record: AtomicU64::new(0),
            has_synced: AtomicBool::new(false),
            last_io_ms: AtomicU64::new(now_ms),
        }
    }

    pub fn progress(&self) -> Progress {
        const ALL: [Progress; 4] = [Progress::Waiting, Progress::Snapshot, Progress::Online, Progress::Done];
        ALL[self.progress.load(Relaxed) as usize]
    }

    pub fn set_progress(&self, progress: Progress) {
        self.progress.store(progress as u8, Relaxed);
    }

    pub fn is_online(&self) -> bool {
        self.progress() == Progress::Online
    }

    fn is_successor(&self) -> bool {
        self.client.is_successor.load(Relaxed)
    }

    /// Records an acknowledgement of an offset, and so of the records up to `record`.
    pub fn record_acked(&self, bytes: u64, record: u64) {
        self.acked.fetch_max(bytes, Relaxed);
        self.acked_record.fetch_max(record, Release);
        self.has_acked.store(true, Release);
    }

    pub fn record_synced(&self, record: u64) {
        self.synced_record.fetch_max(record, Release);
        self.has_synced.store(true, Release);
    }

    /// The acknowledged offset of the stream.
    pub fn acked(&self) -> u64 {
        self.acked.load(Relaxed)
    }

    pub fn acked_record(&self) -> u64 {
        self.acked_record.load(Acquire)
    }

    /// Seconds since its last message.
    pub fn lag_s(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.last_io_ms.load(Relaxed)) / 1000
    }

    /// The address at which it can be followed.
    pub fn address(&self) -> Target {
        Target { host: self.ip.clone(), port: self.port }
    }

    pub fn is(&self, target: &Target) -> bool {
        self.port == target.port && self.ip.eq_ignore_ascii_case(&target.host)
    }

    /// The name in server log lines and in Redis.
    pub fn name(&self) -> String {
        format!("{}:{}", self.ip, if self.port > 0 { self.port.to_string() } else { "<unknown>".into() })
    }
}

/// All replicas, in the order of their arrival.
#[derive(Default)]
pub struct Replicas(Mutex<Vec<Arc<Replica>>>);

impl Replicas {
    pub fn add(&self, replica: Arc<Replica>) {
        self.0.lock().push(replica);
    }

    pub fn remove(&self, replica: &Arc<Replica>) {
        self.0.lock().retain(|one| !Arc::ptr_eq(one, replica));
    }

    /// All replicas, without the process that is about to take over from this process.
    pub fn list(&self) -> Vec<Arc<Replica>> {
        self.0.lock().iter().filter(|replica| !replica.is_successor()).cloned().collect()
    }

    /// The process that is about to take over from this process.
    pub fn successor(&self) -> Option<Arc<Replica>> {
        self.0.lock().iter().find(|replica| replica.is_successor()).cloned()
    }

    /// The number of replicas that have the records up to `record`.
    pub fn count_acked(&self, record: u64) -> usize {
        let has = |replica: &&Arc<Replica>| {
            replica.is_online() && replica.has_acked.load(Acquire) && replica.acked_record() >= record
        };
        self.list().iter().filter(has).count()
    }

    /// The number of replicas that have the records up to `record` on disk.
    pub fn count_synced(&self, record: u64) -> usize {
        let has = |replica: &&Arc<Replica>| {
            replica.is_online()
                && replica.has_synced.load(Acquire)
                && replica.synced_record.load(Acquire) >= record
        };
        self.list().iter().filter(has).count()
    }

    /// The number of online replicas with a message within the last `lag_s_max` seconds.
    pub fn count_good(&self, lag_s_max: u64, now_ms: u64) -> usize {
        let is_good = |replica: &&Arc<Replica>| replica.is_online() && replica.lag_s(now_ms) <= lag_s_max;
        self.list().iter().filter(is_good).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(address: &str, ip: &str) -> Arc<Replica> {
        let client = ClientInfo::new(1, address.into(), String::new(), -1, false, 0);
        let replica_hello = ReplicaHello { ip: ip.into(), port: 7, ..ReplicaHello::default() };
        Arc::new(Replica::new(Arc::new(client), &replica_hello, 1_000))
    }

    #[test]
    fn replicas_are_named_by_announcement_or_socket() {
        assert_eq!(replica("10.0.0.1:999", "").name(), "10.0.0.1:7");
        assert_eq!(replica("[::1]:999", "").name(), "::1:7");
        assert_eq!(replica("10.0.0.1:999", "far.away").name(), "far.away:7");
    }

    #[test]
    fn acknowledgements_count_for_waiters() {
        let replicas = Replicas::default();
        let (one, other) = (replica("a:1", ""), replica("b:1", ""));
        replicas.add(one.clone());
        replicas.add(other.clone());
        one.record_acked(100, 5);
        assert_eq!(replicas.count_acked(0), 0, "none gets the stream yet");
        one.set_progress(Progress::Online);
        other.set_progress(Progress::Online);
        assert_eq!(replicas.count_acked(0), 1, "the other one may still be loading");
        other.record_acked(0, 0);
        assert_eq!((replicas.count_acked(0), replicas.count_acked(5), replicas.count_acked(6)), (2, 1, 0));
        one.record_acked(50, 4);
        assert_eq!((one.acked.load(Relaxed), one.acked_record()), (100, 5), "nothing is taken back");
        assert_eq!(replicas.count_synced(0), 0, "one that says nothing about its disk may have none");
        one.record_synced(3);
        assert_eq!((replicas.count_synced(3), replicas.count_synced(4)), (1, 0));
        one.last_io_ms.store(9_000, Relaxed);
        assert_eq!((replicas.count_good(10, 10_000), replicas.count_good(5, 10_000)), (2, 1));
        replicas.remove(&one);
        assert_eq!(replicas.list().len(), 1);
    }
}
