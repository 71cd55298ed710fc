//! The settings that the server reads: one field for each directive that takes effect, named after it.
//!
//! Numbers are in the directive's own unit. An empty `Fields` is not a configuration: `Settings::default()` fills one
//! from the table.

use super::typed::{
    AuthClients, Bind, CertifiedUser, ChannelsOfNew, Cpus, DisklessLoad, Facility, Fsync, LogLevel, OomScore,
    OutputLimits, Permit, Policy, Primary, SavePoint, ShutdownOptions, Supervised,
};
use super::value::Word;
use std::path::PathBuf;

#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    // Network
    pub(crate) bind: Vec<Bind>,
    /// Zero: no TCP.
    pub(crate) port: u16,
    pub(crate) unixsocket: Option<PathBuf>,
    /// File mode; zero leaves it to the umask.
    pub(crate) unixsocketperm: u32,
    pub(crate) tcp_backlog: u32,
    /// Seconds; zero: off.
    pub(crate) tcp_keepalive: u32,
    /// Seconds after which an idle client is dropped; zero: never.
    pub(crate) timeout: u32,
    pub(crate) protected_mode: bool,
    pub(crate) maxclients: u32,
    pub(crate) proto_max_bulk_len: usize,
    pub(crate) client_query_buffer_limit: usize,
    pub(crate) client_output_buffer_limit: OutputLimits,

    // TLS
    /// Zero: none.
    pub(crate) tls_port: u16,
    /// Handshakes that a worker goes on with in a turn.
    pub(crate) max_new_tls_connections_per_cycle: u32,
    pub(crate) tls_cert_file: Option<PathBuf>,
    pub(crate) tls_key_file: Option<PathBuf>,
    /// Of the key; empty: it has none.
    pub(crate) tls_key_file_pass: Word,
    /// What is shown to servers that this one connects to; none: the same as to clients.
    pub(crate) tls_client_cert_file: Option<PathBuf>,
    pub(crate) tls_client_key_file: Option<PathBuf>,
    pub(crate) tls_client_key_file_pass: Word,
    pub(crate) tls_ca_cert_file: Option<PathBuf>,
    pub(crate) tls_ca_cert_dir: Option<PathBuf>,
    pub(crate) tls_auth_clients: AuthClients,
    pub(crate) tls_auth_clients_user: CertifiedUser,
    /// Words of OpenSSL; empty: all that there is.
    pub(crate) tls_protocols: Word,
    pub(crate) tls_ciphers: Word,
    pub(crate) tls_ciphersuites: Word,
    pub(crate) tls_prefer_server_ciphers: bool,
    /// Refused.
    pub(crate) tls_dh_params_file: Option<PathBuf>,
    pub(crate) tls_session_caching: bool,
    /// Zero: no limit.
    pub(crate) tls_session_cache_size: u32,
    /// Seconds.
    pub(crate) tls_session_cache_timeout: u32,
    /// Whether the link to the primary, and MIGRATE's to other servers, are encrypted.
    pub(crate) tls_replication: bool,
    pub(crate) tls_cluster: bool,
    /// Seconds between two looks at the files; zero: none.
    pub(crate) tls_auto_reload_interval: u32,

    // Process
    /// Worker threads; zero: one for each core.
    pub(crate) threads: usize,
    pub(crate) thread_affinity: Cpus,
    /// Transparent huge pages for the heap.
    pub(crate) huge_pages: bool,
    /// Absolute after a start; `.` in `Settings::default()`.
    pub(crate) dir: PathBuf,
    pub(crate) pidfile: Option<PathBuf>,
    /// None: standard output.
    pub(crate) logfile: Option<PathBuf>,
    pub(crate) loglevel: LogLevel,
    pub(crate) syslog_enabled: bool,
    pub(crate) syslog_facility: Facility,
    pub(crate) syslog_ident: Word,
    pub(crate) supervised: Supervised,
    pub(crate) crash_log_enabled: bool,
    pub(crate) oom_score_adj: OomScore,
    pub(crate) oom_score_adj_values: [i64; 3],
    /// Seconds to wait for replicas.
    pub(crate) shutdown_timeout: u32,
    /// What INFO shows: background work has one clock.
    pub(crate) hz: u32,

    // Access
    /// Empty: none.
    pub(crate) requirepass: Word,
    /// What `user` lines say: a name and rules. None where there is an `aclfile`.
    pub(crate) users: Vec<Vec<Word>>,
    pub(crate) aclfile: Option<PathBuf>,
    pub(crate) acl_pubsub_default: ChannelsOfNew,
    pub(crate) acllog_max_len: usize,
    pub(crate) enable_debug_command: Permit,
    pub(crate) enable_protected_configs: Permit,
    /// Commands and their new names, in the order of the file; an empty name takes the command away.
    pub(crate) rename_command: Vec<(Word, Word)>,

    // Keyspace and memory
    pub(crate) databases: usize,
    /// Bytes; zero: no limit.
    pub(crate) maxmemory: u64,
    pub(crate) maxmemory_policy: Policy,
    /// Bytes for all clients together; zero: no limit; below zero: a percentage of `maxmemory`.
    pub(crate) maxmemory_clients: i128,
    pub(crate) maxmemory_samples: usize,
    pub(crate) lfu_log_factor: u32,
    /// Minutes.
    pub(crate) lfu_decay_time: u32,
    pub(crate) lazyfree_lazy_user_flush: bool,

    // Scripts
    /// Milliseconds; zero: never.
    pub(crate) busy_reply_threshold: u64,

    // Encodings
    pub(crate) hash_max_listpack_entries: usize,
    pub(crate) hash_max_listpack_value: usize,
    pub(crate) hll_sparse_max_bytes: usize,
    /// Entries, or below zero a class of sizes: -1 is 4 kb, -5 is 64 kb.
    pub(crate) list_max_listpack_size: i32,
    /// Bytes; zero: as the format has it. DEBUG sets it, no directive does.
    pub(crate) quicklist_packed_threshold: usize,
    /// DEBUG SET-SKIP-CHECKSUM-VALIDATION: RESTORE does not look at the checksum.
    pub(crate) skips_checksums: bool,
    pub(crate) set_max_intset_entries: usize,
    pub(crate) set_max_listpack_entries: usize,
    pub(crate) set_max_listpack_value: usize,
    pub(crate) zset_max_listpack_entries: usize,
    pub(crate) zset_max_listpack_value: usize,
    pub(crate) stream_node_max_bytes: usize,
    pub(crate) stream_node_max_entries: usize,

    // Observation
    /// Microseconds; zero: every command; below zero: none.
    pub(crate) slowlog_log_slower_than: i64,
    pub(crate) slowlog_max_len: usize,
    /// Bytes; below zero: none.
    pub(crate) commandlog_request_larger_than: i64,
    pub(crate) commandlog_large_request_max_len: usize,
    pub(crate) commandlog_reply_larger_than: i64,
    pub(crate) commandlog_large_reply_max_len: usize,
    /// Milliseconds; zero: off.
    pub(crate) latency_monitor_threshold: u64,
    pub(crate) latency_tracking: bool,
    /// Letters, in their order; none: nobody is told.
    pub(crate) notify_keyspace_events: Word,
    /// Keys that clients are remembered to have read; zero: as many as there are.
    pub(crate) tracking_table_max_keys: usize,
    pub(crate) latency_tracking_info_percentiles: Vec<f64>,

    // Persistence
    pub(crate) save: Vec<SavePoint>,
    pub(crate) dbfilename: PathBuf,
    pub(crate) rdbcompression: bool,
    pub(crate) rdbchecksum: bool,
    pub(crate) rdb_save_incremental_fsync: bool,
    /// Microseconds for each key of a snapshot, or one for so many keys if it is below zero.
    pub(crate) rdb_key_save_delay: i32,
    /// The same for each key that is loaded.
    pub(crate) key_load_delay: i32,
    /// Megabytes a second that a snapshot may write; zero: as many as it can.
    pub(crate) snapshot_max_mbps: u32,
    /// Bytes of entries that may wait for a snapshot's disk before the snapshot is given up.
    pub(crate) snapshot_buffer_limit: u64,
    /// Snapshots go past the page cache where that can be.
    pub(crate) snapshot_direct_io: bool,
    pub(crate) stop_writes_on_bgsave_error: bool,
    pub(crate) appendonly: bool,
    pub(crate) appendfsync: Fsync,
    pub(crate) appendfilename: PathBuf,
    pub(crate) appenddirname: PathBuf,
    /// Bytes of the log that may wait to be written before writers have to.
    pub(crate) appendonly_buffer_limit: u64,
    /// The append-only file goes past the page cache where that can be and there is much.
    pub(crate) appendonly_direct_io: bool,
    pub(crate) aof_load_truncated: bool,
    pub(crate) aof_timestamp_enabled: bool,
    pub(crate) aof_use_rdb_preamble: bool,
    pub(crate) aof_disable_auto_gc: bool,
    pub(crate) auto_aof_rewrite_min_size: u64,
    /// Growth in percent of the size after the last rewrite; zero: never.
    pub(crate) auto_aof_rewrite_percentage: u32,

    // Replication
    /// Bytes of the stream kept for replicas that come back.
    pub(crate) repl_backlog_size: u64,
    /// Seconds without a replica after which it is freed; zero: never.
    pub(crate) repl_backlog_ttl: u64,
    pub(crate) repl_disable_tcp_nodelay: bool,
    pub(crate) repl_diskless_sync: bool,
    /// Seconds that a full sync waits for more replicas to come, and how many are enough; zero: no number is.
    pub(crate) repl_diskless_sync_delay: u32,
    pub(crate) repl_diskless_sync_max_replicas: u32,
    /// Seconds.
    pub(crate) repl_ping_replica_period: u32,
    pub(crate) repl_timeout: u32,
    /// Writes are refused with fewer replicas than that, heard of within so many seconds; zero of either: never.
    pub(crate) min_replicas_to_write: u32,
    pub(crate) min_replicas_max_lag: u32,

    // Following another server
    /// REPLICAOF changes it.
    pub(crate) replicaof: Option<Primary>,
    /// Empty: none is asked for.
    pub(crate) masterauth: Word,
    pub(crate) masteruser: Word,
    /// Empty: as the kernel likes.
    pub(crate) bind_source_addr: Word,
    pub(crate) repl_diskless_load: DisklessLoad,
    pub(crate) rdb_del_sync_files: bool,
    pub(crate) replica_read_only: bool,
    pub(crate) replica_serve_stale_data: bool,
    pub(crate) replica_ignore_maxmemory: bool,
    /// The lower, the sooner Sentinel makes it a primary; zero: never.
    pub(crate) replica_priority: u32,
    pub(crate) replica_announced: bool,
    /// What the primary tells others about where to reach this server, where that is not what it sees.
    pub(crate) replica_announce_ip: Word,
    pub(crate) replica_announce_port: u16,

    // The end
    pub(crate) shutdown_on_sigint: ShutdownOptions,
    pub(crate) shutdown_on_sigterm: ShutdownOptions,
}
