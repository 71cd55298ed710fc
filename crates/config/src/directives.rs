//! The table of directives: all of Redis 7 and Valkey 9, and the additions of this server. Each name is
//! written here and nowhere else.
//!
//! A row gives the parser of the words, the default (of Redis 7.2), whether CONFIG SET may change the
//! directive, and its effect:
//!
//! - `live` rows have a field that the server reads.
//! - `inert` rows are accepted, checked, stored and written back, without effect. The server log names them
//!   at startup, with the reason for rows marked `missed`.
//! - `line` rows are instructions to the parser of the file; CONFIG does not know them.
//!
//! A new directive takes a row, in alphabetical order, and a field in `fields.rs` if it has an effect.

use super::fields::Fields;
use super::file::{self, Handler};
use super::lists::*;
use super::typed::{
    AuthClients, CertifiedUser, ChannelsOfNew, DisklessLoad, EndpointType, Facility, Fsync, LogFormat,
    LogLevel, LogTimes, OomScore, Permit, Policy, Supervised, Typed, VersionCheck,
};
use super::value::{Before, Range, Reason, Value, ValueKind, Word};

pub(super) struct Directive {
    pub(super) name: &'static str,
    /// A second name; empty if there is none.
    pub(super) alias: &'static str,
    pub(super) kind: ValueKind,
    pub(super) default: &'static str,
    pub(super) change: Change,
    /// Patterns of CONFIG GET do not match it; its full name does.
    pub(super) hidden: bool,
    /// An operator that sets this inert directive relies on the effect that it has in Redis or Valkey.
    pub(super) missed: bool,
    pub(super) effect: Effect,
}

/// The clients that may change a directive at run time.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Change {
    Anybody,
    /// Clients that `enable-protected-configs` permits.
    Permitted,
    Nobody,
}

pub(super) enum Effect {
    Live(Field),
    Inert(&'static str),
    Line(Handler),
}

/// Reads and writes a field of `Fields` as a [`Value`].
#[derive(Clone, Copy)]
pub(super) struct Field {
    pub(super) load: fn(&Fields) -> Value,
    pub(super) store: fn(&mut Fields, &Value),
}

macro_rules! field {
    ($field:ident) => {
        Field {
            load: |fields| fields.$field.value(),
            store: |fields, value| fields.$field = Typed::of(value),
        }
    };
}

const fn row(name: &'static str, kind: ValueKind, default: &'static str, effect: Effect) -> Directive {
    Directive {
        name,
        alias: "",
        kind,
        default,
        change: Change::Anybody,
        hidden: false,
        missed: false,
        effect,
    }
}

const fn live(name: &'static str, kind: ValueKind, default: &'static str, field: Field) -> Directive {
    row(name, kind, default, Effect::Live(field))
}

const fn inert(name: &'static str, kind: ValueKind, default: &'static str, why: &'static str) -> Directive {
    row(name, kind, default, Effect::Inert(why))
}

const fn line(name: &'static str, handler: Handler) -> Directive {
    row(name, Text, "", Effect::Line(handler))
}

impl Directive {
    const fn alias(self, alias: &'static str) -> Self {
        Directive { alias, ..self }
    }

    /// Makes the directive immutable at run time.
    const fn at_start(self) -> Self {
        Directive { change: Change::Nobody, ..self }
    }

    const fn protected(self) -> Self {
        Directive { change: Change::Permitted, ..self }
    }

    const fn hidden(self) -> Self {
        Directive { hidden: true, ..self }
    }

    const fn missed(self) -> Self {
        Directive { missed: true, ..self }
    }

    pub(super) fn is_named(&self, name: &[u8]) -> bool {
        let same = |own: &str| own.as_bytes().eq_ignore_ascii_case(name);
        same(self.name) || (!self.alias.is_empty() && same(self.alias))
    }

    /// Returns the name and the alias, if any.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        [self.name, self.alias].into_iter().filter(|name| !name.is_empty())
    }

    pub(super) fn parse(&self, words: &[Word], before: Before<'_>) -> Result<Value, Reason> {
        self.kind.parse(words, before)
    }

    pub(super) fn default_value(&self) -> Value {
        let word = self.default.as_bytes().to_vec();
        if let ValueKind::Directory = self.kind {
            return Value::Text(word); // parsing would look at the disk
        }
        self.parse(&[word], Before { value: None, repeated: false }).expect("a test reads every default")
    }

    pub(super) fn field(&self) -> Option<Field> {
        match self.effect {
            Effect::Live(field) => Some(field),
            Effect::Inert(_) | Effect::Line(_) => None,
        }
    }

    /// Returns the reason why the directive is inert.
    pub(super) fn why_no_effect(&self) -> Option<&'static str> {
        match self.effect {
            Effect::Inert(why) => Some(why),
            Effect::Live(_) | Effect::Line(_) => None,
        }
    }

    /// Returns false for instructions to the parser of the file, which CONFIG does not know.
    pub(super) fn is_setting(&self) -> bool {
        !matches!(self.effect, Effect::Line(_))
    }
}

/// Finds the row of a name or an alias, in any case.
pub(super) fn find(name: &[u8]) -> Option<&'static Directive> {
    DIRECTIVES.iter().find(|row| row.is_named(name))
}

/// Finds the row of a directive that CONFIG GET and SET know.
pub(super) fn find_setting(name: &[u8]) -> Option<&'static Directive> {
    find(name).filter(|row| row.is_setting())
}

pub(super) fn settings() -> impl Iterator<Item = &'static Directive> {
    DIRECTIVES.iter().filter(|row| row.is_setting())
}

use ValueKind::{Checked, Choice, Choices, Clamped, Directory, Flag, List, MemoryOrPercent, Octal, Text};

const INT_MAX: i128 = i32::MAX as i128;
const LONG_MAX: i128 = i64::MAX as i128;
const MB: i128 = 1 << 20;

const fn integer(least: i128, most: i128) -> ValueKind {
    ValueKind::Integer(Range { least, most })
}

const fn memory(least: i128, most: i128) -> ValueKind {
    ValueKind::Memory(Range { least, most })
}

/// A count of type `int` in Redis.
const COUNT: ValueKind = integer(0, INT_MAX);
/// A count of a 64-bit type in Redis.
const LONG: ValueKind = integer(0, LONG_MAX);
const SIZE: ValueKind = memory(0, LONG_MAX);
const PORT: ValueKind = integer(0, 65_535);
const DELAY: ValueKind = integer(i32::MIN as i128, INT_MAX);
const HZ: ValueKind = Clamped(Range { least: 0, most: INT_MAX }, Range { least: 1, most: 500 });
const MODE: ValueKind = Octal(Range { least: 0, most: 0o777 });
const SIGNAL: ValueKind = Choices(&["default", "save", "nosave", "now", "force", "safe", "failover"]);

const ONE_CHANNEL: &str =
    "a full sync uses a single connection, and the primary does not buffer writes in memory during the sync";
const PLAIN_TCP: &str = "multipath TCP is not supported";
const NO_BUS: &str = "there is no cluster bus";
const NO_VOTES: &str = "the nodes of a cluster elect nothing among themselves";
const NO_FORK: &str = "the server does not fork";
const FREED_ASIDE: &str = "large values are always freed by a background thread";
const NO_SLICES: &str = "arrays are trees of pages, without slices";
const OWN_SLICES: &str = "compaction works in slices of at most 500 us, whatever the size of a value";
const NO_RDMA: &str = "RDMA is not supported";
const NO_JEMALLOC: &str = "the allocator is not jemalloc";
const OWN_LOOP: &str = "each worker thread serves its own connections, see 'threads'";
const ACCEPT_ALL: &str = "all pending connections are accepted at once";
const OWN_BATCH: &str = "the batch size of pipelines is fixed";
const SEE_AFFINITY: &str = "see 'thread-affinity'";
const FOR_TESTS: &str = "it is an option for the tests of Redis or Valkey";

#[rustfmt::skip]
pub(super) static DIRECTIVES: &[Directive] = &[
    live ("acl-pubsub-default",            Choice(ChannelsOfNew::NAMES), "resetchannels",
          field!(acl_pubsub_default)),
    live ("aclfile",                       Text,   "",        field!(aclfile)).at_start(),
    live ("acllog-max-len",                LONG,   "128",     field!(acllog_max_len)),
    live ("active-defrag-cycle-max",       integer(1, 99), "25", field!(active_defrag_cycle_max)),
    live ("active-defrag-cycle-min",       integer(1, 99), "1", field!(active_defrag_cycle_min)),
    inert("active-defrag-cycle-us",        integer(0, 100_000), "500", OWN_SLICES),
    live ("active-defrag-ignore-bytes",    memory(1, LONG_MAX), "100mb", field!(active_defrag_ignore_bytes)),
    inert("active-defrag-max-scan-fields", integer(1, LONG_MAX), "1000", OWN_SLICES),
    live ("active-defrag-threshold-lower", integer(0, 1_000), "10", field!(active_defrag_threshold_lower)),
    live ("active-defrag-threshold-upper", integer(0, 1_000), "100", field!(active_defrag_threshold_upper)),
    inert("active-expire-effort",          integer(1, 10), "1",
          "expired keys are found by deadline and removed in time slices until none is left"),
    live ("activedefrag",                  Flag,   "no",      field!(activedefrag)),
    inert("activerehashing",               Flag,   "yes",     "hash tables always grow incrementally"),
    live ("always-show-logo",              Flag,   "no",      field!(always_show_logo)).at_start(),
    live ("aof-disable-auto-gc",           Flag,   "no",      field!(aof_disable_auto_gc)),
    live ("aof-load-corrupt-tail-max-size", memory(0, LONG_MAX), "0",
          field!(aof_load_corrupt_tail_max_size)),
    live ("aof-load-truncated",            Flag,   "yes",     field!(aof_load_truncated)),
    inert("aof-rewrite-incremental-fsync", Flag,   "yes",     "see 'rdb-save-incremental-fsync'"),
    live ("aof-timestamp-enabled",         Flag,   "no",      field!(aof_timestamp_enabled)),
    live ("aof-use-rdb-preamble",          Flag,   "yes",     field!(aof_use_rdb_preamble)),
    inert("aof_rewrite_cpulist",           Text,   "",
          NO_FORK).at_start().alias("aof-rewrite-cpulist"),
    live ("appenddirname",                 Checked(append_directory_name), "appendonlydir",
          field!(appenddirname)).at_start(),
    live ("appendfilename",                Checked(append_file_name), "appendonly.aof",
          field!(appendfilename)).at_start(),
    live ("appendfsync",                   Choice(Fsync::NAMES), "everysec", field!(appendfsync)),
    live ("appendonly",                    Flag,   "no",      field!(appendonly)),
    live ("appendonly-buffer-limit",       memory(1 << 20, LONG_MAX), "256mb",
          field!(appendonly_buffer_limit)),
    live ("appendonly-direct-io",          Flag,   "yes",     field!(appendonly_direct_io)),
    inert("array-slice-size",              integer(256, 65_536), "4096", NO_SLICES),
    inert("array-sparse-kmax",             integer(0, 65_535), "10", NO_SLICES),
    inert("array-sparse-kmin",             integer(0, 65_535), "5", NO_SLICES),
    live ("auto-aof-rewrite-min-size",     SIZE,   "64mb",    field!(auto_aof_rewrite_min_size)),
    live ("auto-aof-rewrite-percentage",   COUNT,  "100",     field!(auto_aof_rewrite_percentage)),
    live ("availability-zone",             Text,   "",        field!(availability_zone)),
    live ("backup-sealed-ttl",             LONG,   "0",       field!(backup_sealed_ttl)),
    live ("backupdirname",                 Checked(backup_directory_name), "backupdir",
          field!(backupdirname)).at_start(),
    inert("bgsave_cpulist",                Text,   "",        NO_FORK).at_start().alias("bgsave-cpulist"),
    live ("bind",                          List(&ADDRESSES), "* -::*", field!(bind)),
    live ("bind-source-addr",              Text,   "",        field!(bind_source_addr)),
    inert("bio_cpulist",                   Text,   "",
          SEE_AFFINITY).at_start().alias("bio-cpulist").missed(),
    live ("busy-reply-threshold",          LONG,   "5000",
          field!(busy_reply_threshold)).alias("lua-time-limit"),
    live ("client-output-buffer-limit",    List(&OUTPUT_LIMITS),
          "normal 0 0 0 slave 256mb 64mb 60 pubsub 32mb 8mb 60", field!(client_output_buffer_limit)),
    live ("client-query-buffer-limit",     memory(MB, LONG_MAX), "1gb", field!(client_query_buffer_limit)),
    live ("cluster-allow-cross-slot",      Flag,   "no",      field!(cluster_allow_cross_slot)),
    live ("cluster-allow-pubsubshard-when-down", Flag, "yes", field!(cluster_allow_pubsubshard_when_down)),
    live ("cluster-allow-reads-when-down", Flag,   "no",      field!(cluster_allow_reads_when_down)),
    inert("cluster-allow-replica-migration", Flag, "yes",     NO_VOTES),
    inert("cluster-announce-bus-port",     PORT,   "0",       NO_BUS),
    live ("cluster-announce-client-ipv4",  Checked(ipv4), "", field!(cluster_announce_client_ipv4)),
    live ("cluster-announce-client-ipv6",  Checked(ipv6), "", field!(cluster_announce_client_ipv6)),
    live ("cluster-announce-client-port",  PORT,   "0",       field!(cluster_announce_client_port)),
    live ("cluster-announce-client-tls-port", PORT, "0",      field!(cluster_announce_client_tls_port)),
    live ("cluster-announce-hostname",     Checked(host_name), "", field!(cluster_announce_hostname)),
    live ("cluster-announce-human-nodename", Checked(node_name), "", field!(cluster_announce_human_nodename)),
    live ("cluster-announce-ip",           Checked(announced_ip), "", field!(cluster_announce_ip)),
    live ("cluster-announce-port",         PORT,   "0",       field!(cluster_announce_port)),
    live ("cluster-announce-tls-port",     PORT,   "0",       field!(cluster_announce_tls_port)),
    inert("cluster-blacklist-ttl",         LONG,   "60",      NO_BUS),
    live ("cluster-config-file",           Checked(cluster_file_name), "nodes.conf",
          field!(cluster_config_file)).at_start(),
    inert("cluster-config-save-behavior",  Choice(&["sync", "best-effort"]), "sync", NO_BUS),
    live ("cluster-databases",             integer(1, 262_144), "1", field!(cluster_databases)).at_start(),
    live ("cluster-enabled",               Flag,   "no",      field!(cluster_enabled)).at_start(),
    live ("cluster-lease",                 integer(1, 60), "3", field!(cluster_lease)).at_start(),
    inert("cluster-link-sendbuf-limit",    memory(0, u64::MAX as i128), "0", NO_BUS),
    inert("cluster-manual-failover-timeout", integer(1, INT_MAX), "5000", NO_VOTES),
    inert("cluster-message-gossip-perc",   integer(1, 100), "10", NO_BUS).hidden(),
    inert("cluster-migration-barrier",     COUNT,  "1",       NO_VOTES),
    live ("cluster-name",                  Checked(cluster_name), "evenkeel",
          field!(cluster_name)).at_start(),
    inert("cluster-node-timeout",          LONG,   "15000",   NO_BUS),
    inert("cluster-ping-interval",         LONG,   "0",       NO_BUS).hidden(),
    inert("cluster-port",                  PORT,   "0",       NO_BUS).at_start(),
    live ("cluster-preferred-endpoint-type", Choice(EndpointType::NAMES), "ip",
          field!(cluster_preferred_endpoint_type)),
    live ("cluster-replica-no-failover",   Flag,   "no",
          field!(cluster_replica_no_failover)).alias("cluster-slave-no-failover"),
    inert("cluster-replica-validity-factor", COUNT, "10",
          NO_VOTES).alias("cluster-slave-validity-factor"),
    live ("cluster-require-full-coverage", Flag,   "yes",     field!(cluster_require_full_coverage)),
    inert("cluster-slot-migration-log-max-len", LONG, "1000", "slots are moved key by key"),
    live ("cluster-slot-stats-enabled",    Flag,   "no",      field!(cluster_slot_stats_enabled)),
    live ("cluster-store",                 Checked(cluster_store), "", field!(cluster_store)).at_start(),
    live ("cluster-store-cacert",          Text,   "",        field!(cluster_store_cacert)).at_start(),
    live ("cluster-store-cert",            Text,   "",        field!(cluster_store_cert)).at_start(),
    live ("cluster-store-key",             Text,   "",        field!(cluster_store_key)).at_start(),
    live ("cluster-store-password",        Text,   "",        field!(cluster_store_password)).at_start(),
    live ("cluster-store-user",            Text,   "",        field!(cluster_store_user)).at_start(),
    live ("commandlog-large-reply-max-len", LONG,  "128",     field!(commandlog_large_reply_max_len)),
    live ("commandlog-large-request-max-len", LONG, "128",    field!(commandlog_large_request_max_len)),
    live ("commandlog-reply-larger-than",  integer(-1, LONG_MAX), "1048576",
          field!(commandlog_reply_larger_than)),
    live ("commandlog-request-larger-than", integer(-1, LONG_MAX), "1048576",
          field!(commandlog_request_larger_than)),
    live ("crash-log-enabled",             Flag,   "yes",     field!(crash_log_enabled)),
    inert("crash-memcheck-enabled",        Flag,   "yes",     "there is no memory test after a crash"),
    inert("daemonize",                     Flag,   "no",
          "the server always runs in the foreground, for a service manager").at_start().missed(),
    live ("databases",                     integer(1, 262_144), "16", field!(databases)).at_start(),
    live ("dbfilename",                    Checked(db_file_name), "dump.rdb", field!(dbfilename)).protected(),
    inert("debug-context",                 Text,   "",        FOR_TESTS).hidden(),
    live ("dir",                           Directory, ".",    field!(dir)).protected(),
    inert("disable-thp",                   Flag,   "yes",     "see 'huge-pages'").at_start(),
    inert("dual-channel-replication-enabled", Flag, "no",     ONE_CHANNEL),
    inert("dynamic-hz",                    Flag,   "yes",     "background work does not depend on hz"),
    inert("enable-debug-assert",           Flag,   "no",      FOR_TESTS).at_start().hidden(),
    live ("enable-debug-command",          Choice(Permit::NAMES), "no",
          field!(enable_debug_command)).at_start(),
    inert("enable-module-command",         Choice(Permit::NAMES), "no",
          "modules are not supported").at_start().missed(),
    live ("enable-protected-configs",      Choice(Permit::NAMES), "no",
          field!(enable_protected_configs)).at_start(),
    inert("extended-redis-compatibility",  Flag,   "no",      "replies always follow Redis").missed(),
    live ("hash-max-listpack-entries",     LONG,   "512",
          field!(hash_max_listpack_entries)).alias("hash-max-ziplist-entries"),
    live ("hash-max-listpack-value",       SIZE,   "64",
          field!(hash_max_listpack_value)).alias("hash-max-ziplist-value"),
    live ("hash-seed",                     Text,   "",        field!(hash_seed)).at_start(),
    live ("hide-user-data-from-log",       Flag,   "yes",     field!(hide_user_data_from_log)),
    live ("hll-sparse-max-bytes",          SIZE,   "3000",    field!(hll_sparse_max_bytes)),
    live ("http-allow-origins",            Text,   "",        field!(http_allow_origins)),
    live ("http-bind",                     List(&ADDRESSES), "127.0.0.1 -::1", field!(http_bind)),
    live ("http-console",                  Flag,   "yes",     field!(http_console)),
    live ("http-hosts",                    Text,   "",        field!(http_hosts)),
    live ("http-max-body",                 memory(1, LONG_MAX), "64mb", field!(http_max_body)),
    live ("http-max-connections",          integer(1, 100_000), "1000", field!(http_max_connections)),
    live ("http-metrics-public",           Flag,   "no",      field!(http_metrics_public)),
    live ("http-port",                     PORT,   "0",       field!(http_port)),
    live ("http-rest",                     Flag,   "yes",     field!(http_rest)),
    live ("http-tls",                      Flag,   "no",      field!(http_tls)),
    live ("huge-pages",                    Flag,   "yes",     field!(huge_pages)).at_start(),
    live ("hz",                            HZ,     "10",      field!(hz)),
    inert("ignore-warnings",               Text,   "",        "there are no warnings to ignore"),
    live ("import-mode",                   Flag,   "no",      field!(import_mode)),
    line ("include",                       file::include),
    inert("io-threads",                    integer(1, 256), "1", OWN_LOOP),
    inert("io-threads-always-active",      Flag,   "no",      OWN_LOOP).hidden(),
    inert("io-threads-do-reads",           Flag,   "no",      OWN_LOOP).at_start(),
    inert("jemalloc-bg-thread",            Flag,   "yes",     NO_JEMALLOC),
    live ("key-load-delay",                DELAY,  "0",       field!(key_load_delay)).hidden(),
    live ("key-memory-histograms",         Flag,   "no",      field!(key_memory_histograms)),
    live ("latency-monitor-threshold",     LONG,   "0",       field!(latency_monitor_threshold)),
    live ("latency-tracking",              Flag,   "yes",     field!(latency_tracking)),
    live ("latency-tracking-info-percentiles", List(&PERCENTILES), "50 99 99.9",
          field!(latency_tracking_info_percentiles)),
    live ("lazyfree-lazy-eviction",        Flag,   "yes",     field!(lazyfree_lazy_eviction)),
    live ("lazyfree-lazy-expire",          Flag,   "yes",     field!(lazyfree_lazy_expire)),
    live ("lazyfree-lazy-server-del",      Flag,   "yes",     field!(lazyfree_lazy_server_del)),
    inert("lazyfree-lazy-user-del",        Flag,   "yes",     FREED_ASIDE),
    live ("lazyfree-lazy-user-flush",      Flag,   "yes",     field!(lazyfree_lazy_user_flush)),
    live ("lfu-decay-time",                COUNT,  "1",       field!(lfu_decay_time)),
    live ("lfu-log-factor",                COUNT,  "10",      field!(lfu_log_factor)),
    inert("list-compress-depth",           COUNT,  "0",       "lists are not compressed"),
    live ("list-max-listpack-size",        DELAY,  "-2",
          field!(list_max_listpack_size)).alias("list-max-ziplist-size"),
    line ("list-max-ziplist-entries",      file::outdated),
    line ("list-max-ziplist-value",        file::outdated),
    inert("loading-process-events-interval-bytes", integer(1024, INT_MAX), "2097152",
          "workers serve clients while the data is loaded").hidden(),
    line ("loadmodule",                    file::load_module),
    inert("locale-collate",                Text,   "",        "SORT ALPHA compares bytes").missed(),
    live ("log-format",                    Choice(LogFormat::NAMES), "legacy", field!(log_format)),
    live ("log-timestamp-format",          Choice(LogTimes::NAMES), "legacy", field!(log_timestamp_format)),
    live ("logfile",                       Text,   "",        field!(logfile)).at_start(),
    live ("loglevel",                      Choice(LogLevel::NAMES), "notice", field!(loglevel)),
    live ("lua-enable-insecure-api",       Flag,   "no",
          field!(lua_enable_insecure_api)).alias("lua-enable-deprecated-api").protected().hidden(),
    line ("lua-replicate-commands",        file::outdated),
    live ("masterauth",                    Text,   "",        field!(masterauth)).alias("primaryauth"),
    live ("masteruser",                    Text,   "",        field!(masteruser)).alias("primaryuser"),
    inert("max-new-connections-per-cycle", integer(1, 1_000), "10", ACCEPT_ALL),
    live ("max-new-tls-connections-per-cycle", integer(1, 1_000), "1",
          field!(max_new_tls_connections_per_cycle)),
    live ("maxclients",                    integer(1, u32::MAX as i128), "10000", field!(maxclients)),
    live ("maxmemory",                     memory(0, u64::MAX as i128), "0", field!(maxmemory)),
    live ("maxmemory-clients",             MemoryOrPercent, "0", field!(maxmemory_clients)),
    inert("maxmemory-eviction-tenacity",   integer(0, 100), "10",
          "a command evicts the memory that it needs, without delaying other commands"),
    live ("maxmemory-policy",              Choice(Policy::NAMES), "noeviction", field!(maxmemory_policy)),
    live ("maxmemory-samples",             integer(1, INT_MAX), "5", field!(maxmemory_samples)),
    inert("min-io-threads-avoid-copy-reply", COUNT, "7",      OWN_LOOP).hidden(),
    live ("min-replicas-max-lag",          COUNT,  "10",
          field!(min_replicas_max_lag)).alias("min-slaves-max-lag"),
    live ("min-replicas-to-write",         COUNT,  "0",
          field!(min_replicas_to_write)).alias("min-slaves-to-write"),
    inert("min-string-size-avoid-copy-reply", COUNT, "16384", OWN_LOOP).hidden(),
    inert("min-string-size-avoid-copy-reply-threaded", COUNT, "65536", OWN_LOOP).hidden(),
    inert("mptcp",                         Flag,   "no",      PLAIN_TCP).at_start().missed(),
    inert("no-appendfsync-on-rewrite",     Flag,   "no",
          "a slow fsync of the append-only file delays only clients that wait for it"),
    live ("notify-keyspace-events",        Checked(keyspace_events), "", field!(notify_keyspace_events)),
    live ("oom-score-adj",                 Choice(OomScore::NAMES), "no", field!(oom_score_adj)),
    live ("oom-score-adj-values",          List(&OOM_SCORES), "0 200 800", field!(oom_score_adj_values)),
    live ("pidfile",                       Text,   "",        field!(pidfile)).at_start(),
    live ("port",                          PORT,   "6379",    field!(port)),
    inert("prefetch-batch-max-size",       integer(0, 128), "16", OWN_BATCH),
    live ("preload-file",                  Checked(preload_file), "", field!(preload_file)).at_start(),
    live ("proc-title-template",           Checked(title_template), "{title} {listen-addr} {server-mode}",
          field!(proc_title_template)),
    inert("propagation-error-behavior",    Choice(&["ignore", "panic", "panic-on-replicas"]), "ignore",
          "failed commands of the primary are always counted and logged").missed(),
    live ("protected-mode",                Flag,   "yes",     field!(protected_mode)),
    live ("proto-max-bulk-len",            memory(MB, LONG_MAX), "512mb", field!(proto_max_bulk_len)),
    live ("rdb-del-sync-files",            Flag,   "no",      field!(rdb_del_sync_files)),
    live ("rdb-key-save-delay",            DELAY,  "0",       field!(rdb_key_save_delay)).hidden(),
    live ("rdb-save-incremental-fsync",    Flag,   "yes",     field!(rdb_save_incremental_fsync)),
    live ("rdb-version-check",             Choice(VersionCheck::NAMES), "strict",
          field!(rdb_version_check)),
    live ("rdbchecksum",                   Flag,   "yes",     field!(rdbchecksum)).at_start(),
    live ("rdbcompression",                Flag,   "yes",     field!(rdbcompression)),
    inert("rdma-bind",                     List(&ADDRESSES), "", NO_RDMA).missed(),
    inert("rdma-completion-vector",        integer(-1, 1_024), "-1", NO_RDMA).at_start(),
    inert("rdma-port",                     PORT,   "0",       NO_RDMA).missed(),
    inert("rdma-rx-size",                  integer(65_536, 16 * MB), "1048576", NO_RDMA).at_start(),
    live ("recorder-dir",                  Text,   "",        field!(recorder_dir)).at_start(),
    live ("recorder-memory",               memory(0, LONG_MAX), "64mb", field!(recorder_memory)),
    line ("rename-command",                file::rename_command),
    live ("repl-backlog-size",             memory(1, LONG_MAX), "1mb", field!(repl_backlog_size)),
    live ("repl-backlog-ttl",              LONG,   "3600",    field!(repl_backlog_ttl)),
    live ("repl-disable-tcp-nodelay",      Flag,   "no",      field!(repl_disable_tcp_nodelay)),
    live ("repl-diskless-load",            Choice(DisklessLoad::NAMES), "disabled",
          field!(repl_diskless_load)),
    live ("repl-diskless-sync",            Flag,   "yes",     field!(repl_diskless_sync)),
    live ("repl-diskless-sync-delay",      COUNT,  "5",       field!(repl_diskless_sync_delay)),
    live ("repl-diskless-sync-max-replicas", COUNT, "0",      field!(repl_diskless_sync_max_replicas)),
    inert("repl-mptcp",                    Flag,   "no",      PLAIN_TCP).at_start().missed(),
    live ("repl-ping-replica-period",      integer(1, INT_MAX), "10",
          field!(repl_ping_replica_period)).alias("repl-ping-slave-period"),
    live ("repl-timeout",                  integer(1, INT_MAX), "60", field!(repl_timeout)),
    live ("replica-announce-ip",           Text,   "",
          field!(replica_announce_ip)).alias("slave-announce-ip"),
    live ("replica-announce-port",         PORT,   "0",
          field!(replica_announce_port)).alias("slave-announce-port"),
    live ("replica-announced",             Flag,   "yes",     field!(replica_announced)),
    inert("replica-ignore-disk-write-errors", Flag, "no",
          "commands of the primary are always applied, and written to disk when it recovers"),
    live ("replica-ignore-maxmemory",      Flag,   "yes",
          field!(replica_ignore_maxmemory)).alias("slave-ignore-maxmemory"),
    inert("replica-lazy-flush",            Flag,   "yes",
          "the previous data is always freed by a background thread").alias("slave-lazy-flush"),
    live ("replica-priority",              COUNT,  "100",
          field!(replica_priority)).alias("slave-priority"),
    live ("replica-read-only",             Flag,   "yes",
          field!(replica_read_only)).alias("slave-read-only"),
    live ("replica-serve-stale-data",      Flag,   "yes",
          field!(replica_serve_stale_data)).alias("slave-serve-stale-data"),
    live ("replicaof",                     List(&PRIMARY), "", field!(replicaof)).at_start().alias("slaveof"),
    live ("reported-redis-version",        Checked(version), "7.4.0",
          field!(reported_redis_version)).at_start(),
    live ("requirepass",                   Text,   "",        field!(requirepass)),
    inert("sanitize-dump-payload",         Choice(&["no", "yes", "clients"]), "no",
          "payloads and files are always fully validated"),
    live ("save",                          List(&SAVE_POINTS), "3600 1 300 100 60 10000", field!(save)),
    line ("sentinel",                      file::sentinel),
    inert("server_cpulist",                Text,   "",
          SEE_AFFINITY).at_start().alias("server-cpulist").missed(),
    live ("set-max-intset-entries",        LONG,   "512",     field!(set_max_intset_entries)),
    live ("set-max-listpack-entries",      LONG,   "128",     field!(set_max_listpack_entries)),
    live ("set-max-listpack-value",        LONG,   "64",      field!(set_max_listpack_value)),
    live ("set-proc-title",                Flag,   "yes",     field!(set_proc_title)).at_start(),
    live ("shared-memory",                 Flag,   "yes",     field!(shared_memory)).at_start(),
    live ("shutdown-on-sigint",            SIGNAL, "default", field!(shutdown_on_sigint)),
    live ("shutdown-on-sigterm",           SIGNAL, "default", field!(shutdown_on_sigterm)),
    live ("shutdown-timeout",              COUNT,  "10",      field!(shutdown_timeout)),
    inert("slot-migration-max-failover-repl-bytes", memory(-1, LONG_MAX), "0", NO_BUS),
    live ("slowlog-entry-max-argc",        integer(2, INT_MAX), "32", field!(slowlog_entry_max_argc)),
    live ("slowlog-entry-max-string-len",  integer(1, LONG_MAX), "128", field!(slowlog_entry_max_string_len)),
    live ("slowlog-log-slower-than",       integer(-1, LONG_MAX), "10000",
          field!(slowlog_log_slower_than)).alias("commandlog-execution-slower-than"),
    live ("slowlog-max-len",               LONG,   "128",
          field!(slowlog_max_len)).alias("commandlog-slow-execution-max-len"),
    live ("snapshot-buffer-limit",         memory(1 << 20, LONG_MAX), "1gb", field!(snapshot_buffer_limit)),
    live ("snapshot-direct-io",            Flag,   "yes",     field!(snapshot_direct_io)),
    live ("snapshot-max-mbps",             COUNT,  "0",       field!(snapshot_max_mbps)),
    inert("socket-mark-id",                integer(0, u32::MAX as i128), "0",
          "socket marks are not supported").at_start().missed(),
    live ("stop-writes-on-bgsave-error",   Flag,   "yes",     field!(stop_writes_on_bgsave_error)),
    live ("stream-idmp-duration",          integer(1, 86_400), "100", field!(stream_idmp_duration)),
    live ("stream-idmp-maxsize",           integer(1, 10_000), "100", field!(stream_idmp_maxsize)),
    live ("stream-node-max-bytes",         SIZE,   "4096",    field!(stream_node_max_bytes)),
    live ("stream-node-max-entries",       LONG,   "100",     field!(stream_node_max_entries)),
    live ("supervised",                    Choice(Supervised::NAMES), "no", field!(supervised)).at_start(),
    live ("syslog-enabled",                Flag,   "no",      field!(syslog_enabled)).at_start(),
    live ("syslog-facility",               Choice(Facility::NAMES), "local0",
          field!(syslog_facility)).at_start(),
    live ("syslog-ident",                  Text,   "redis",   field!(syslog_ident)).at_start(),
    live ("tcp-backlog",                   COUNT,  "511",     field!(tcp_backlog)).at_start(),
    live ("tcp-keepalive",                 COUNT,  "300",     field!(tcp_keepalive)),
    live ("thread-affinity",               Checked(cpu_list), "", field!(thread_affinity)).at_start(),
    live ("threads",                       integer(0, 256), "0", field!(threads)).at_start(),
    live ("timeout",                       COUNT,  "0",       field!(timeout)),
    live ("tls-auth-clients",              Choice(AuthClients::NAMES), "yes", field!(tls_auth_clients)),
    live ("tls-auth-clients-user",         Choice(CertifiedUser::NAMES), "off",
          field!(tls_auth_clients_user)),
    live ("tls-auto-reload-interval",      COUNT,  "0",       field!(tls_auto_reload_interval)),
    live ("tls-ca-cert-dir",               Text,   "",        field!(tls_ca_cert_dir)),
    live ("tls-ca-cert-file",              Text,   "",        field!(tls_ca_cert_file)),
    live ("tls-cert-file",                 Text,   "",        field!(tls_cert_file)),
    live ("tls-ciphers",                   Text,   "",        field!(tls_ciphers)),
    live ("tls-ciphersuites",              Text,   "",        field!(tls_ciphersuites)),
    live ("tls-client-cert-file",          Text,   "",        field!(tls_client_cert_file)),
    live ("tls-client-key-file",           Text,   "",        field!(tls_client_key_file)),
    live ("tls-client-key-file-pass",      Text,   "",        field!(tls_client_key_file_pass)),
    live ("tls-cluster",                   Flag,   "no",      field!(tls_cluster)),
    live ("tls-dh-params-file",            Text,   "",        field!(tls_dh_params_file)),
    live ("tls-key-file",                  Text,   "",        field!(tls_key_file)),
    live ("tls-key-file-pass",             Text,   "",        field!(tls_key_file_pass)),
    live ("tls-port",                      PORT,   "0",       field!(tls_port)),
    live ("tls-prefer-server-ciphers",     Flag,   "no",      field!(tls_prefer_server_ciphers)),
    live ("tls-protocols",                 Text,   "",        field!(tls_protocols)),
    live ("tls-replication",               Flag,   "no",      field!(tls_replication)),
    live ("tls-session-cache-size",        COUNT,  "20480",   field!(tls_session_cache_size)),
    live ("tls-session-cache-timeout",     COUNT,  "300",     field!(tls_session_cache_timeout)),
    live ("tls-session-caching",           Flag,   "yes",     field!(tls_session_caching)),
    live ("tracking-table-max-keys",       LONG,   "1000000", field!(tracking_table_max_keys)),
    live ("unixsocket",                    Text,   "",        field!(unixsocket)).at_start(),
    inert("unixsocketgroup",               Text,   "",
          "the socket belongs to the group of the process").at_start().missed(),
    live ("unixsocketperm",                MODE,   "0",       field!(unixsocketperm)).at_start(),
    inert("use-exit-on-panic",             Flag,   "no",      FOR_TESTS).hidden(),
    line ("user",                          file::user),
    live ("watchdog-period",               COUNT,  "0",      field!(watchdog_period)).hidden(),
    live ("write-acks",                    Checked(write_acks), "0", field!(write_acks)),
    live ("zset-max-listpack-entries",     LONG,   "128",
          field!(zset_max_listpack_entries)).alias("zset-max-ziplist-entries"),
    live ("zset-max-listpack-value",       SIZE,   "64",
          field!(zset_max_listpack_value)).alias("zset-max-ziplist-value"),
];
