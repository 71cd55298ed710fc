//! The settings that the server reads: a field for each directive that takes effect, named after it.
//!
//! Numbers are in the directive's own unit. An empty `Fields` is not a configuration: `Settings::default()`
//! fills it from the table.

use super::typed::{
    AuthClients, Bind, CertifiedUser, ChannelsOfNew, Cpus, DisklessLoad, EndpointType, Facility, Fsync,
    LogFormat, LogLevel, LogTimes, OomScore, OutputLimits, Permit, Policy, Preload, Primary, SavePoint,
    ShutdownOptions, Supervised, VersionCheck, WriteAcks,
};
use super::value::Word;
use std::path::PathBuf;

#[derive(Clone, Debug, Default)]
pub struct Fields {
    // Network
    pub bind: Vec<Bind>,
    /// Zero: no TCP.
    pub port: u16,
    pub unixsocket: Option<PathBuf>,
    /// File mode; zero leaves it to the umask.
    pub unixsocketperm: u32,
    pub tcp_backlog: u32,
    /// Seconds; zero: off.
    pub tcp_keepalive: u32,
    /// Seconds after which an idle client is dropped; zero: never.
    pub timeout: u32,
    pub protected_mode: bool,
    pub maxclients: u32,
    pub proto_max_bulk_len: usize,
    pub client_query_buffer_limit: usize,
    pub client_output_buffer_limit: OutputLimits,

    // TLS
    /// Zero: none.
    pub tls_port: u16,
    /// Handshakes that a worker continues per turn.
    pub max_new_tls_connections_per_cycle: u32,
    pub tls_cert_file: Option<PathBuf>,
    pub tls_key_file: Option<PathBuf>,
    /// Passphrase of the key; empty: none.
    pub tls_key_file_pass: Word,
    /// Certificate for connections to other servers; none: the same as for clients.
    pub tls_client_cert_file: Option<PathBuf>,
    pub tls_client_key_file: Option<PathBuf>,
    pub tls_client_key_file_pass: Word,
    pub tls_ca_cert_file: Option<PathBuf>,
    pub tls_ca_cert_dir: Option<PathBuf>,
    pub tls_auth_clients: AuthClients,
    pub tls_auth_clients_user: CertifiedUser,
    /// In OpenSSL's words; empty: no restriction.
    pub tls_protocols: Word,
    pub tls_ciphers: Word,
    pub tls_ciphersuites: Word,
    pub tls_prefer_server_ciphers: bool,
    /// Not supported: a value is refused.
    pub tls_dh_params_file: Option<PathBuf>,
    pub tls_session_caching: bool,
    /// Zero: no limit.
    pub tls_session_cache_size: u32,
    /// Seconds.
    pub tls_session_cache_timeout: u32,
    /// Whether the link to the primary, and MIGRATE's to other servers, are encrypted.
    pub tls_replication: bool,
    pub tls_cluster: bool,
    /// Seconds between two checks of the files; zero: no checks.
    pub tls_auto_reload_interval: u32,

    // HTTP
    /// Zero: none.
    pub http_port: u16,
    pub http_bind: Vec<Bind>,
    /// Whether its connections are encrypted, by the certificate and the rules of `tls-*`.
    pub http_tls: bool,
    pub http_max_connections: u32,
    /// Names of this server, beside its addresses and `localhost`, that a request without credentials may
    /// have in `Host`; separated by spaces.
    pub http_hosts: Word,
    /// Whether `/metrics` needs no credentials.
    pub http_metrics_public: bool,
    /// Origins whose pages may read replies (CORS), separated by spaces; `*`: all.
    pub http_allow_origins: Word,
    /// Whether browsers get the console.
    pub http_console: bool,
    /// Whether commands are run.
    pub http_rest: bool,
    /// Bytes of the body of a request.
    pub http_max_body: usize,

    // Flight recorder
    /// Directory of its files; none: memory alone. Relative to `dir`.
    pub recorder_dir: Option<PathBuf>,
    /// Bytes that it takes in memory, and again in files; zero: it is off.
    pub recorder_memory: usize,

    // Process
    /// Worker threads; zero: one for each core.
    pub threads: usize,
    pub thread_affinity: Cpus,
    /// Transparent huge pages for the heap.
    pub huge_pages: bool,
    pub shared_memory: bool,
    /// Absolute after a start; `.` in `Settings::default()`.
    pub dir: PathBuf,
    pub pidfile: Option<PathBuf>,
    /// None: standard output.
    pub logfile: Option<PathBuf>,
    pub loglevel: LogLevel,
    pub log_format: LogFormat,
    pub log_timestamp_format: LogTimes,
    /// Names of keys, users and clients, and requests, do not appear in the server log.
    pub hide_user_data_from_log: bool,
    pub always_show_logo: bool,
    /// The secret of the hash function of keys and members; empty: drawn at the start.
    pub hash_seed: Word,
    /// The version of Redis that clients are told, for libraries that choose their features by it.
    pub reported_redis_version: Word,
    /// Shown to clients, for libraries that prefer a server nearby.
    /// The process title is made from the template.
    pub set_proc_title: bool,
    pub proc_title_template: Word,
    pub availability_zone: Word,
    pub syslog_enabled: bool,
    pub syslog_facility: Facility,
    pub syslog_ident: Word,
    pub supervised: Supervised,
    pub crash_log_enabled: bool,
    pub oom_score_adj: OomScore,
    pub oom_score_adj_values: [i64; 3],
    /// Seconds to wait for replicas.
    pub shutdown_timeout: u32,
    /// Only shown by INFO: background work has its own clock.
    pub hz: u32,

    // Access
    /// Empty: none.
    pub requirepass: Word,
    /// Words of `user` lines: a name and rules. Empty with an `aclfile`.
    pub users: Vec<Vec<Word>>,
    pub aclfile: Option<PathBuf>,
    pub acl_pubsub_default: ChannelsOfNew,
    pub acllog_max_len: usize,

    // Compaction
    pub activedefrag: bool,
    /// Percent of a worker's time.
    pub active_defrag_cycle_min: u64,
    pub active_defrag_cycle_max: u64,
    /// Unused bytes up to which nothing is done.
    pub active_defrag_ignore_bytes: u64,
    /// Unused bytes in percent of the used ones: up to the lower bound nothing is done, from the upper bound
    /// on the most.
    pub active_defrag_threshold_lower: u64,
    pub active_defrag_threshold_upper: u64,
    pub enable_debug_command: Permit,
    pub enable_protected_configs: Permit,
    /// Commands and their new names, in the order of the file; an empty name removes the command.
    pub rename_command: Vec<(Word, Word)>,

    // Keyspace and memory
    pub databases: usize,
    /// Bytes; zero: no limit.
    pub maxmemory: u64,
    pub maxmemory_policy: Policy,
    /// Bytes for all clients together; zero: no limit; negative: a percentage of `maxmemory`.
    pub maxmemory_clients: i128,
    pub maxmemory_samples: usize,
    pub lfu_log_factor: u32,
    /// Minutes.
    pub lfu_decay_time: u32,
    pub lazyfree_lazy_eviction: bool,
    pub lazyfree_lazy_expire: bool,
    pub lazyfree_lazy_server_del: bool,
    pub lazyfree_lazy_user_flush: bool,
    /// Data are being imported: expired keys stay until the source removes them.
    pub import_mode: bool,

    // Cluster
    pub cluster_enabled: bool,
    /// The map of the cluster, relative to `dir`.
    pub cluster_config_file: PathBuf,
    /// The store of the map, as [`crate::endpoints_of`] reads it; empty: the file.
    pub cluster_store: Word,
    /// A part of the prefix of all keys in the store.
    pub cluster_name: Word,
    pub cluster_store_user: Word,
    pub cluster_store_password: Word,
    /// Files for TLS to the store; empty: none.
    pub cluster_store_cacert: Word,
    pub cluster_store_cert: Word,
    pub cluster_store_key: Word,
    /// Seconds.
    pub cluster_lease: u64,
    pub write_acks: WriteAcks,
    /// In place of `databases`.
    pub cluster_databases: usize,
    /// Commands, transactions and scripts may use all slots of this node at once.
    pub cluster_allow_cross_slot: bool,
    pub cluster_require_full_coverage: bool,
    pub cluster_allow_reads_when_down: bool,
    pub cluster_allow_pubsubshard_when_down: bool,
    pub cluster_slot_stats_enabled: bool,
    pub cluster_preferred_endpoint_type: EndpointType,
    /// This node's address in replies to clients. Empty, or zero: the address that the client has reached.
    pub cluster_announce_ip: Word,
    pub cluster_announce_port: u16,
    pub cluster_announce_tls_port: u16,
    pub cluster_announce_hostname: Word,
    pub cluster_announce_human_nodename: Word,
    pub cluster_replica_no_failover: bool,
    /// What clients of these protocols get, where it differs.
    pub cluster_announce_client_ipv4: Word,
    pub cluster_announce_client_ipv6: Word,
    pub cluster_announce_client_port: u16,
    pub cluster_announce_client_tls_port: u16,

    // Scripts
    /// Milliseconds; zero: no threshold.
    pub busy_reply_threshold: u64,
    /// Scripts have getfenv, setfenv and newproxy.
    pub lua_enable_insecure_api: bool,

    // Encodings
    pub hash_max_listpack_entries: usize,
    pub hash_max_listpack_value: usize,
    pub hll_sparse_max_bytes: usize,
    /// Entries; negative: a class of sizes, -1 is 4 kb, -5 is 64 kb.
    pub list_max_listpack_size: i32,
    /// Bytes; zero: the default of the format. Set by DEBUG only.
    pub quicklist_packed_threshold: usize,
    /// DEBUG SET-SKIP-CHECKSUM-VALIDATION: RESTORE ignores the checksum.
    pub skips_checksums: bool,
    pub set_max_intset_entries: usize,
    pub set_max_listpack_entries: usize,
    pub set_max_listpack_value: usize,
    pub zset_max_listpack_entries: usize,
    pub zset_max_listpack_value: usize,
    /// Seconds for which a new stream remembers the entries of its producers.
    pub stream_idmp_duration: u64,
    /// Entries of a producer that a new stream remembers.
    pub stream_idmp_maxsize: u64,
    pub stream_node_max_bytes: usize,
    pub stream_node_max_entries: usize,

    // Observation
    /// Microseconds; zero: every command; negative: none.
    pub slowlog_log_slower_than: i64,
    pub slowlog_max_len: usize,
    /// Arguments of an entry, and bytes of an argument.
    pub slowlog_entry_max_argc: usize,
    pub slowlog_entry_max_string_len: usize,
    /// Bytes; negative: none.
    pub commandlog_request_larger_than: i64,
    pub commandlog_large_request_max_len: usize,
    pub commandlog_reply_larger_than: i64,
    pub commandlog_large_reply_max_len: usize,
    /// Milliseconds; zero: off.
    pub latency_monitor_threshold: u64,
    /// INFO keysizes also counts keys by the memory of their values.
    pub key_memory_histograms: bool,
    pub latency_tracking: bool,
    /// Milliseconds; zero: no watchdog.
    pub watchdog_period: u32,
    /// Letters of event classes, in their order; empty: no notifications.
    pub notify_keyspace_events: Word,
    /// Keys for which reading clients are remembered; zero: no limit.
    pub tracking_table_max_keys: usize,
    pub latency_tracking_info_percentiles: Vec<f64>,

    // Persistence
    pub save: Vec<SavePoint>,
    pub dbfilename: PathBuf,
    pub rdbcompression: bool,
    pub rdbchecksum: bool,
    pub rdb_version_check: VersionCheck,
    pub rdb_save_incremental_fsync: bool,
    /// Microseconds of delay per key of a snapshot; negative: a microsecond per that many keys.
    pub rdb_key_save_delay: i32,
    /// Like `rdb_key_save_delay`, per loaded key.
    pub key_load_delay: i32,
    /// Megabytes per second that a snapshot may write; zero: no limit.
    pub snapshot_max_mbps: u32,
    /// Bytes of entries that may wait for a snapshot's disk; beyond it the snapshot is abandoned.
    pub snapshot_buffer_limit: u64,
    /// Snapshots bypass the page cache where possible.
    pub snapshot_direct_io: bool,
    pub stop_writes_on_bgsave_error: bool,
    pub appendonly: bool,
    pub appendfsync: Fsync,
    pub appendfilename: PathBuf,
    pub appenddirname: PathBuf,
    pub backupdirname: PathBuf,
    /// Seconds for which a sealed backup is kept; zero: until BACKUP CLEANUP.
    pub backup_sealed_ttl: u64,
    /// The data to be loaded at the start instead of those in `dir`.
    pub preload_file: Option<Preload>,
    /// Bytes of the journal that may wait to be written; beyond it writers wait.
    pub appendonly_buffer_limit: u64,
    /// The append-only file bypasses the page cache where possible and worthwhile.
    pub appendonly_direct_io: bool,
    pub aof_load_truncated: bool,
    /// The most bytes of a damaged end that a load removes; zero: none.
    pub aof_load_corrupt_tail_max_size: u64,
    pub aof_timestamp_enabled: bool,
    pub aof_use_rdb_preamble: bool,
    pub aof_disable_auto_gc: bool,
    pub auto_aof_rewrite_min_size: u64,
    /// Growth in percent of the size after the last rewrite; zero: never.
    pub auto_aof_rewrite_percentage: u32,

    // Replication
    /// Bytes of the stream kept for replicas that reconnect.
    pub repl_backlog_size: u64,
    /// Seconds without a replica after which the backlog is freed; zero: never.
    pub repl_backlog_ttl: u64,
    pub repl_disable_tcp_nodelay: bool,
    pub repl_diskless_sync: bool,
    /// Seconds that a full sync waits for further replicas, and the number of replicas that ends the wait;
    /// zero: none does.
    pub repl_diskless_sync_delay: u32,
    pub repl_diskless_sync_max_replicas: u32,
    /// Seconds.
    pub repl_ping_replica_period: u32,
    pub repl_timeout: u32,
    /// Writes need at least this many replicas that were heard from within `min_replicas_max_lag` seconds;
    /// zero of either: never.
    pub min_replicas_to_write: u32,
    pub min_replicas_max_lag: u32,

    // Following another server
    /// Also changed by REPLICAOF.
    pub replicaof: Option<Primary>,
    /// Empty: no authentication.
    pub masterauth: Word,
    pub masteruser: Word,
    /// Empty: chosen by the kernel.
    pub bind_source_addr: Word,
    pub repl_diskless_load: DisklessLoad,
    pub rdb_del_sync_files: bool,
    pub replica_read_only: bool,
    pub replica_serve_stale_data: bool,
    pub replica_ignore_maxmemory: bool,
    /// Sentinel promotes the replica with the lowest priority; zero: never promoted.
    pub replica_priority: u32,
    pub replica_announced: bool,
    /// Address and port at which the primary announces this server, if they differ from the connection's.
    pub replica_announce_ip: Word,
    pub replica_announce_port: u16,

    // The end
    pub shutdown_on_sigint: ShutdownOptions,
    pub shutdown_on_sigterm: ShutdownOptions,
}
