//! The columns of the flight recorder.

use crate::schema::{Merge, Schema, Unit};

/// Conditions of the column `conditions`.
pub mod conditions {
    /// A snapshot, a rewrite of the append-only file, a full sync is running.
    pub const SNAPSHOT: u64 = 1 << 0;
    pub const REWRITE: u64 = 1 << 1;
    pub const FULL_SYNC: u64 = 1 << 2;
    /// Data are being loaded.
    pub const LOADING: u64 = 1 << 3;
    /// CLIENT PAUSE, or a failover, delays commands.
    pub const PAUSED: u64 = 1 << 4;
    /// Writes wait, since too much of the journal is unwritten.
    pub const CROWDED: u64 = 1 << 5;
    /// Replies to writes wait for the disk: `appendfsync always`.
    pub const ALWAYS: u64 = 1 << 6;
    /// The append-only file cannot be written, so writes are refused.
    pub const NO_LOG: u64 = 1 << 7;
    /// The server is a replica.
    pub const REPLICA: u64 = 1 << 8;
    /// The link of a replica to its primary is down.
    pub const LINK_DOWN: u64 = 1 << 9;
}

/// The schema of the rows, with the index of each column.
#[derive(Clone, Debug)]
pub struct Columns {
    pub schema: Schema,
    pub commands: usize,
    pub errors: usize,
    pub bytes_in: usize,
    pub bytes_out: usize,
    /// Connections that were accepted, and connections that were refused for `maxclients`.
    pub accepted: usize,
    pub rejected: usize,
    pub evicted: usize,
    pub expired: usize,
    pub hits: usize,
    pub misses: usize,
    pub slow_commands: usize,
    /// Of the whole process.
    pub cpu_us: usize,
    pub major_faults: usize,
    /// Time in which the control group's limit kept threads of the process from running.
    pub throttled_us: usize,
    /// Pressure stall information of the machine: time in which some task waited.
    pub pressure_cpu_us: usize,
    pub pressure_memory_us: usize,
    pub pressure_io_us: usize,
    /// Longest write and longest sync of the append-only file; both include a call that is under way.
    pub write_max_us: usize,
    pub sync_max_us: usize,
    /// Longest turn of all workers.
    pub turn_max_us: usize,
    /// Time in which workers waited for a CPU.
    pub run_queue_us: usize,
    pub clients: usize,
    pub blocked_clients: usize,
    pub used_bytes: usize,
    pub resident_bytes: usize,
    pub maxmemory_bytes: usize,
    pub keys: usize,
    pub journal_unread_bytes: usize,
    pub replicas: usize,
    /// Bytes of the stream that the slowest replica has not confirmed.
    pub replica_lag_bytes: usize,
    /// Bits of [`conditions`].
    pub conditions: usize,
    pub workers: Vec<WorkerColumns>,
    /// All commands together.
    pub all: FamilyColumns,
    pub families: Vec<FamilyColumns>,
}

#[derive(Clone, Debug)]
pub struct WorkerColumns {
    /// Times by stage, in the order of the names given.
    pub stages: Vec<usize>,
    /// Longest turn, also if it is not over.
    pub turn_max_us: usize,
    /// Longest turn that ended in the row.
    pub turn_ended_us: usize,
    pub run_queue_us: usize,
}

/// Columns of a family of commands. Percentiles exist in rows of a second and longer.
#[derive(Clone, Debug, Default)]
pub struct FamilyColumns {
    pub name: &'static str,
    pub calls: usize,
    pub us: usize,
    pub p50_ns: usize,
    pub p99_ns: usize,
    pub max_ns: usize,
}

/// Sums that are taken once a second. The columns of families are, too.
const IN_SECONDS: [&str; 9] = [
    "evicted",
    "expired",
    "hits",
    "misses",
    "slow_commands",
    "throttled_us",
    "pressure_cpu_us",
    "pressure_memory_us",
    "pressure_io_us",
];

impl Columns {
    /// Returns the columns for this number of workers, with these stages and families of commands.
    pub fn new(workers: usize, stages: &[&str], families: &[&'static str]) -> Columns {
        use Merge::{Any, Last, Max, Sum};
        use Unit::{Bytes, Count, Flags, Us};
        let mut schema = Schema::default();
        let mut add = |name: &str, unit, merge| match IN_SECONDS.contains(&name) {
            true => schema.add_in_seconds(name, unit, merge),
            false => schema.add(name, unit, merge),
        };
        let mut columns = Columns {
            commands: add("commands", Count, Sum),
            errors: add("errors", Count, Sum),
            bytes_in: add("bytes_in", Bytes, Sum),
            bytes_out: add("bytes_out", Bytes, Sum),
            accepted: add("accepted", Count, Sum),
            rejected: add("rejected", Count, Sum),
            evicted: add("evicted", Count, Sum),
            expired: add("expired", Count, Sum),
            hits: add("hits", Count, Sum),
            misses: add("misses", Count, Sum),
            slow_commands: add("slow_commands", Count, Sum),
            cpu_us: add("cpu_us", Us, Sum),
            major_faults: add("major_faults", Count, Sum),
            throttled_us: add("throttled_us", Us, Sum),
            pressure_cpu_us: add("pressure_cpu_us", Us, Sum),
            pressure_memory_us: add("pressure_memory_us", Us, Sum),
            pressure_io_us: add("pressure_io_us", Us, Sum),
            write_max_us: add("write_max_us", Us, Max),
            sync_max_us: add("sync_max_us", Us, Max),
            turn_max_us: add("turn_max_us", Us, Max),
            run_queue_us: add("run_queue_us", Us, Sum),
            clients: add("clients", Count, Last),
            blocked_clients: add("blocked_clients", Count, Last),
            used_bytes: add("used_bytes", Bytes, Last),
            resident_bytes: add("resident_bytes", Bytes, Last),
            maxmemory_bytes: add("maxmemory_bytes", Bytes, Last),
            keys: add("keys", Count, Last),
            journal_unread_bytes: add("journal_unread_bytes", Bytes, Max),
            replicas: add("replicas", Count, Last),
            replica_lag_bytes: add("replica_lag_bytes", Bytes, Max),
            conditions: add("conditions", Flags, Any),
            workers: Vec::new(),
            all: FamilyColumns::default(),
            families: Vec::new(),
            schema: Schema::default(),
        };
        columns.workers = (0..workers)
            .map(|worker| WorkerColumns {
                stages: stages
                    .iter()
                    .map(|stage| add(&format!("worker.{worker}.{stage}"), Us, Sum))
                    .collect(),
                turn_max_us: add(&format!("turn_max.{worker}"), Us, Max),
                turn_ended_us: add(&format!("turn_ended.{worker}"), Us, Max),
                run_queue_us: add(&format!("run_queue.{worker}"), Us, Sum),
            })
            .collect();
        columns.all = family(&mut schema, "all", "all");
        columns.families =
            families.iter().map(|name| family(&mut schema, &format!("family.{name}"), name)).collect();
        columns.schema = schema;
        columns
    }
}

fn family(schema: &mut Schema, prefix: &str, name: &'static str) -> FamilyColumns {
    let mut add =
        |suffix: &str, unit, merge| schema.add_in_seconds(format!("{prefix}.{suffix}"), unit, merge);
    let calls = add("calls", Unit::Count, Merge::Sum);
    FamilyColumns {
        name,
        calls,
        us: add("us", Unit::Us, Merge::Sum),
        p50_ns: add("p50_ns", Unit::Ns, Merge::Mean(calls)),
        p99_ns: add("p99_ns", Unit::Ns, Merge::Max),
        max_ns: add("max_ns", Unit::Ns, Merge::Max),
    }
}
