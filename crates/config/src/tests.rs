//! Tests of the table, and of CONFIG GET and SET over it.

use super::directives::DIRECTIVES;
use super::errors::Place;
use super::file::Loader;
use super::testing::{USER_LINES, shown};
use super::*;
use std::path::Path;

/// Names in `CONFIG GET *` of Redis 7.0.
const REDIS: &str = "
    acl-pubsub-default aclfile acllog-max-len active-defrag-cycle-max active-defrag-cycle-min
    active-defrag-ignore-bytes active-defrag-max-scan-fields active-defrag-threshold-lower
    active-defrag-threshold-upper active-expire-effort activedefrag activerehashing always-show-logo
    aof-disable-auto-gc aof-load-truncated aof-rewrite-incremental-fsync aof-timestamp-enabled
    aof-use-rdb-preamble aof_rewrite_cpulist appenddirname appendfilename appendfsync appendonly
    auto-aof-rewrite-min-size auto-aof-rewrite-percentage bgsave_cpulist bind bind-source-addr
    bio_cpulist busy-reply-threshold client-output-buffer-limit client-query-buffer-limit
    cluster-allow-pubsubshard-when-down cluster-allow-reads-when-down cluster-allow-replica-migration
    cluster-announce-bus-port cluster-announce-hostname cluster-announce-ip cluster-announce-port
    cluster-announce-tls-port cluster-config-file cluster-enabled cluster-link-sendbuf-limit
    cluster-migration-barrier cluster-node-timeout cluster-port cluster-preferred-endpoint-type
    cluster-replica-no-failover cluster-replica-validity-factor cluster-require-full-coverage
    cluster-slave-no-failover cluster-slave-validity-factor crash-log-enabled crash-memcheck-enabled
    daemonize databases dbfilename dir disable-thp dynamic-hz enable-debug-command enable-module-command
    enable-protected-configs hash-max-listpack-entries hash-max-listpack-value hash-max-ziplist-entries
    hash-max-ziplist-value hll-sparse-max-bytes hz ignore-warnings io-threads io-threads-do-reads
    jemalloc-bg-thread latency-monitor-threshold latency-tracking latency-tracking-info-percentiles
    lazyfree-lazy-eviction lazyfree-lazy-expire lazyfree-lazy-server-del lazyfree-lazy-user-del
    lazyfree-lazy-user-flush lfu-decay-time lfu-log-factor list-compress-depth list-max-listpack-size
    list-max-ziplist-size logfile loglevel lua-time-limit masterauth masteruser maxclients maxmemory
    maxmemory-clients maxmemory-eviction-tenacity maxmemory-policy maxmemory-samples
    min-replicas-max-lag min-replicas-to-write min-slaves-max-lag min-slaves-to-write
    no-appendfsync-on-rewrite notify-keyspace-events oom-score-adj oom-score-adj-values pidfile port
    proc-title-template propagation-error-behavior protected-mode proto-max-bulk-len rdb-del-sync-files
    rdb-save-incremental-fsync rdbchecksum rdbcompression repl-backlog-size repl-backlog-ttl
    repl-disable-tcp-nodelay repl-diskless-load repl-diskless-sync repl-diskless-sync-delay
    repl-diskless-sync-max-replicas repl-ping-replica-period repl-ping-slave-period repl-timeout
    replica-announce-ip replica-announce-port replica-announced replica-ignore-disk-write-errors
    replica-ignore-maxmemory replica-lazy-flush replica-priority replica-read-only
    replica-serve-stale-data replicaof requirepass sanitize-dump-payload save server_cpulist
    set-max-intset-entries set-proc-title shutdown-on-sigint shutdown-on-sigterm shutdown-timeout
    slave-announce-ip slave-announce-port slave-ignore-maxmemory slave-lazy-flush slave-priority
    slave-read-only slave-serve-stale-data slaveof slowlog-log-slower-than slowlog-max-len
    socket-mark-id stop-writes-on-bgsave-error stream-node-max-bytes stream-node-max-entries supervised
    syslog-enabled syslog-facility syslog-ident tcp-backlog tcp-keepalive timeout tls-auth-clients
    tls-ca-cert-dir tls-ca-cert-file tls-cert-file tls-ciphers tls-ciphersuites tls-client-cert-file
    tls-client-key-file tls-client-key-file-pass tls-cluster tls-dh-params-file tls-key-file
    tls-key-file-pass tls-port tls-prefer-server-ciphers tls-protocols tls-replication
    tls-session-cache-size tls-session-cache-timeout tls-session-caching tracking-table-max-keys
    unixsocket unixsocketperm zset-max-listpack-entries zset-max-listpack-value zset-max-ziplist-entries
    zset-max-ziplist-value
";

/// Additional names in `CONFIG GET *` of Valkey 9.1.
const VALKEY: &str = "
    active-defrag-cycle-us aof-rewrite-cpulist availability-zone bgsave-cpulist bio-cpulist
    cluster-announce-client-ipv4 cluster-announce-client-ipv6 cluster-announce-client-port
    cluster-announce-client-tls-port cluster-announce-human-nodename cluster-blacklist-ttl
    cluster-config-save-behavior cluster-databases cluster-manual-failover-timeout
    cluster-slot-migration-log-max-len cluster-slot-stats-enabled commandlog-execution-slower-than
    commandlog-large-reply-max-len commandlog-large-request-max-len commandlog-reply-larger-than
    commandlog-request-larger-than commandlog-slow-execution-max-len dual-channel-replication-enabled
    extended-redis-compatibility hash-seed hide-user-data-from-log import-mode locale-collate log-format
    log-timestamp-format max-new-connections-per-cycle max-new-tls-connections-per-cycle mptcp
    prefetch-batch-max-size primaryauth primaryuser rdb-version-check rdma-bind rdma-completion-vector
    rdma-port rdma-rx-size repl-mptcp server-cpulist set-max-listpack-entries set-max-listpack-value
    slot-migration-max-failover-repl-bytes tls-auth-clients-user tls-auto-reload-interval
    unixsocketgroup
";

/// Names of later versions of Redis.
const REDIS_8: &str = "
    aof-load-corrupt-tail-max-size array-slice-size array-sparse-kmax array-sparse-kmin
    backup-sealed-ttl backupdirname key-memory-histograms preload-file slowlog-entry-max-argc
    slowlog-entry-max-string-len stream-idmp-duration stream-idmp-maxsize
";

/// Names that Redis or Valkey answers only when asked by the full name.
const HIDDEN: &str = "
    aof-disable-auto-gc cluster-message-gossip-perc cluster-ping-interval debug-context
    enable-debug-assert io-threads-always-active key-load-delay loading-process-events-interval-bytes
    lua-enable-deprecated-api lua-enable-insecure-api min-io-threads-avoid-copy-reply
    min-string-size-avoid-copy-reply min-string-size-avoid-copy-reply-threaded rdb-key-save-delay
    use-exit-on-panic watchdog-period
";

/// Names that have an effect in a file and are unknown to CONFIG.
const IN_FILES: &str =
    "include loadmodule rename-command user list-max-ziplist-entries list-max-ziplist-value";

/// Names of this server only.
const OURS: &str = "appendonly-buffer-limit appendonly-direct-io cluster-allow-cross-slot \
                    cluster-lease cluster-name cluster-store cluster-store-cacert cluster-store-cert \
                    cluster-store-key cluster-store-password cluster-store-user \
                    http-allow-origins http-bind \
                    http-console http-hosts http-max-body \
                    http-max-connections http-metrics-public http-port http-rest http-tls huge-pages \
                    recorder-dir recorder-memory reported-redis-version shared-memory \
                    snapshot-buffer-limit snapshot-direct-io snapshot-max-mbps thread-affinity threads \
                    write-acks";

fn set(settings: &Settings, pairs: &[(&str, &str)]) -> Result<(Settings, Vec<&'static str>), String> {
    let pairs: Vec<_> = pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
    settings.set(&pairs, true).map_err(|error| error.to_string())
}

#[track_caller]
fn refused(pairs: &[(&str, &str)], name: &str, reason: &str) {
    let expected = format!("CONFIG SET failed (possibly related to argument '{name}') - {reason}");
    assert_eq!(set(&Settings::default(), pairs).map(|_| ()), Err(expected));
}

fn names(found: Vec<(Word, Word)>) -> Vec<String> {
    found.into_iter().map(|(name, _)| String::from_utf8_lossy(&name).into_owned()).collect()
}

#[test]
fn rows_are_sorted_and_no_name_is_taken_twice() {
    for pair in DIRECTIVES.windows(2) {
        assert!(pair[0].name < pair[1].name, "{} {}", pair[0].name, pair[1].name);
    }
    let mut all: Vec<_> = DIRECTIVES.iter().flat_map(|row| row.names()).collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
    let lower = |name: &&str| {
        name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b))
    };
    assert!(all.iter().all(lower), "names are found by their lower case");
}

#[test]
fn every_name_of_the_peers_is_known() {
    let settings = Settings::default();
    let shown = names(settings.get(&[b"*"]));
    for name in [REDIS, REDIS_8, VALKEY].into_iter().flat_map(str::split_whitespace) {
        assert!(shown.iter().any(|own| own == name), "{name}");
    }
    for name in HIDDEN.split_whitespace() {
        assert_eq!(settings.get(&[name.as_bytes()]).len(), 1, "{name}");
    }
    for name in IN_FILES.split_whitespace() {
        assert!(directives::find(name.as_bytes()).is_some(), "{name}");
        assert_eq!(settings.get(&[name.as_bytes()]), [], "{name}");
    }
}

#[test]
fn no_name_is_ours_alone_but_those_we_mean() {
    let known: Vec<_> =
        [REDIS, VALKEY, REDIS_8, HIDDEN, OURS].into_iter().flat_map(str::split_whitespace).collect();
    for name in settings().flat_map(Directive::names) {
        assert!(known.contains(&name), "{name}");
    }
}

#[test]
fn every_default_is_read_back_from_what_is_shown_and_from_what_is_written() {
    let defaults = Settings::default();
    for row in settings() {
        let value = defaults.value(row);
        assert_eq!(value, row.default_value(), "{}", row.name);
        let before = Before { value: Some(&value), repeated: false };
        let shown = row.kind.show(&value);
        if !shown.is_empty() && row.name != "dir" {
            assert_eq!(row.parse(&[shown], before), Ok(value.clone()), "{}", row.name);
        }
        let mut loader = Loader::new(USER_LINES, None, Path::new("/"));
        for line in row.kind.lines(&value) {
            let line = [row.name.as_bytes(), b" ", &line].concat();
            // Only the words of a start can express that there is no primary.
            assert!(
                loader.line(&line).is_ok() || row.name == "replicaof",
                "{}",
                String::from_utf8_lossy(&line)
            );
        }
        if row.name != "dir" {
            assert_eq!(loader.settings.value(row), value, "{}", row.name);
        }
    }
}

#[test]
fn fields_hold_the_ends_of_their_ranges() {
    for row in settings() {
        let (value::ValueKind::Integer(range)
        | value::ValueKind::Memory(range)
        | value::ValueKind::Octal(range)) = row.kind
        else {
            continue;
        };
        for number in [range.least, range.most] {
            let mut settings = Settings::default();
            settings.put(row, Value::Number(number));
            assert_eq!(settings.value(row), Value::Number(number), "{}", row.name);
        }
    }
}

#[test]
fn every_choice_fits_its_field() {
    for row in settings() {
        let value::ValueKind::Choice(choices) = row.kind else { continue };
        for &choice in choices {
            let mut settings = Settings::default();
            settings.put(row, Value::Choice(choice));
            assert_eq!(settings.show(row), choice.as_bytes(), "{}", row.name);
        }
    }
}

#[test]
fn each_field_has_one_row() {
    for row in settings().filter(|row| row.field().is_some()) {
        let mut settings = Settings::default();
        let other = match settings.value(row) {
            Value::Flag(on) => Value::Flag(!on),
            Value::Number(number) => Value::Number(if number == 1 { 2 } else { 1 }),
            Value::Choice(name) => match row.kind {
                value::ValueKind::Choice(names) => {
                    Value::Choice(names.iter().find(|n| **n != name).expect("two choices"))
                }
                _ => continue,
            },
            Value::Text(_) if row.name == "preload-file" => Value::Text(b"rdb:1.rdb".to_vec()),
            Value::Text(_) => Value::Text(b"1".to_vec()),
            Value::Words(_) | Value::Numbers(_) | Value::Decimals(_) => continue,
        };
        settings.put(row, other);
        let defaults = Settings::default();
        let differ: Vec<_> = super::settings().filter(|r| settings.value(r) != defaults.value(r)).collect();
        assert_eq!(differ.iter().map(|r| r.name).collect::<Vec<_>>(), [row.name]);
    }
}

#[test]
fn defaults_are_those_of_redis() {
    let settings = Settings::default();
    for (name, value) in [
        ("port", "6379"),
        ("bind", "* -::*"),
        ("save", "3600 1 300 100 60 10000"),
        ("client-output-buffer-limit", "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60"),
        ("proto-max-bulk-len", "536870912"),
        ("client-query-buffer-limit", "1073741824"),
        ("latency-tracking-info-percentiles", "50 99 99.9"),
        ("maxmemory-policy", "noeviction"),
        ("oom-score-adj-values", "0 200 800"),
        ("shutdown-on-sigterm", "default"),
        ("unixsocketperm", "0"),
        ("replicaof", ""),
        ("notify-keyspace-events", ""),
        ("repl-backlog-size", "1048576"),
        ("threads", "0"),
        ("huge-pages", "yes"),
        ("shared-memory", "yes"),
    ] {
        assert_eq!(shown(&settings, name), value, "{name}");
    }
    assert_eq!(settings.maxmemory_policy, Policy::NoEviction);
    assert_eq!(settings.client_output_buffer_limit.replica.hard_bytes, 256 << 20);
    assert_eq!(settings.save[1], SavePoint { seconds: 300, changes: 100 });
    assert_eq!(settings.bind[1], Bind { address: "::*".to_owned(), optional: true });
    assert_eq!(settings.unixsocket, None);
}

#[test]
fn get_takes_names_and_patterns() {
    let settings = Settings::default();
    let get =
        |patterns: &[&str]| names(settings.get(&patterns.iter().map(|p| p.as_bytes()).collect::<Vec<_>>()));
    let memory = [
        "maxmemory",
        "maxmemory-clients",
        "maxmemory-eviction-tenacity",
        "maxmemory-policy",
        "maxmemory-samples",
    ];
    assert_eq!(get(&["MAXMEMORY*", "maxmemory"]), memory);
    assert_eq!(get(&["port", "nosuch", "hz", "port"]), ["hz", "port"]);
    assert_eq!(get(&["HZ"]), ["HZ"]);
    assert_eq!(get(&["*priority*"]), ["replica-priority", "slave-priority"]);
    assert_eq!(get(&["slaveof"]), ["slaveof"]);
    assert_eq!(get(&["m[aA]xm?mory"]), ["maxmemory"]);
    assert_eq!(get(&["key-load*"]), Vec::<String>::new());
    assert_eq!(get(&["key-load-delay"]), ["key-load-delay"]);
    assert_eq!(get(&[]), Vec::<String>::new());
}

#[test]
fn set_tells_what_changed() {
    let old = Settings::default();
    let (new, changed) =
        set(&old, &[("MaxMemory", "1gb"), ("timeout", "0"), ("slave-priority", "7")]).expect("right");
    assert_eq!(changed, ["maxmemory", "replica-priority"]);
    assert_eq!((new.maxmemory, old.maxmemory), (1 << 30, 0));
    assert_eq!(shown(&new, "replica-priority"), "7");
    let (new, _) = set(&new, &[("save", "1 1"), ("hz", "1000")]).expect("right");
    let (new, changed) =
        set(&new, &[("save", "2 2"), ("client-output-buffer-limit", "pubsub 1 2 3")]).expect("right");
    assert_eq!(changed, ["client-output-buffer-limit", "save"]);
    assert_eq!((shown(&new, "save").as_str(), new.hz), ("2 2", 500));
    assert_eq!(new.client_output_buffer_limit.replica.soft_seconds, 60);
    let (new, changed) = set(&new, &[("slave-priority", "1"), ("replica-priority", "2")]).expect("right");
    assert_eq!((shown(&new, "slave-priority").as_str(), changed), ("2", vec!["replica-priority"]));
}

#[test]
fn set_refuses_in_the_words_of_redis() {
    let unknown = set(&Settings::default(), &[("maxmemory", "abc"), ("NoSuch", "1")]).map(|_| ());
    assert_eq!(unknown, Err("Unknown option or number of arguments for CONFIG SET - 'NoSuch'".to_owned()));
    refused(&[("MAXMEMORY", "abc")], "maxmemory", "argument must be a memory value");
    refused(&[("slave-priority", "abc")], "slave-priority", "argument couldn't be parsed into an integer");
    refused(&[("maxmemory", "1"), ("MAXMEMORY", "2")], "MAXMEMORY", "duplicate parameter");
    refused(&[("maxmemory", "abc"), ("daemonize", "yes")], "daemonize", "can't set immutable config");
    refused(&[("DAEMONIZE", "zz"), ("nosuch", "1")], "DAEMONIZE", "can't set immutable config");
    refused(&[("dir", "/")], "dir", "can't set protected config");
    refused(&[("enable-protected-configs", "yes")], "enable-protected-configs", "can't set immutable config");
    refused(
        &[("timeout", "1"), ("maxclients", "0")],
        "maxclients",
        "argument must be between 1 and 4294967295 inclusive",
    );
    refused(&[("save", "1 2 3")], "save", "Invalid save parameters");
    for name in IN_FILES.split_whitespace() {
        let unknown = set(&Settings::default(), &[(name, "x y")]).map(|_| ());
        assert_eq!(unknown, Err(format!("Unknown option or number of arguments for CONFIG SET - '{name}'")));
    }
}

/// With such a name a start would find a directory in place of the file, or fail.
#[test]
fn names_of_files_are_names() {
    let why = |name: &str, value: &[u8]| {
        let line = [name.as_bytes(), b" \"", value, b"\""].concat();
        Loader::new(USER_LINES, None, Path::new("/")).line(&line).err().map(|reason| format!("{reason:?}"))
    };
    for name in ["dbfilename", "appendfilename", "appenddirname", "backupdirname"] {
        assert_eq!(why(name, b"x"), None);
        assert!(why(name, b"").is_some_and(|reason| reason.contains("can't be empty")), "{name}");
        assert!(why(name, b"a\\x00b").is_some_and(|reason| reason.contains("zero byte")), "{name}");
        assert!(why(name, b"a/b").is_some_and(|reason| reason.contains("can't be a path")), "{name}");
    }
    for value in [&b""[..], b"a\0b"] {
        assert!(Settings::default().set(&[(b"dbfilename", value)], true).is_err());
    }
}

#[test]
fn protected_directives_are_for_those_permitted() {
    for (permit, local, allowed) in
        [("no", true, false), ("local", true, true), ("local", false, false), ("yes", false, true)]
    {
        let mut loader = Loader::new(USER_LINES, None, Path::new("/"));
        assert!(loader.line(format!("enable-protected-configs {permit}").as_bytes()).is_ok());
        let done = loader.settings.set(&[(b"dbfilename", b"x.rdb")], local);
        assert_eq!(done.is_ok(), allowed, "{permit} {local}");
    }
}

#[test]
fn values_need_not_be_text() {
    let word: &[u8] = b"\xff\x00\r\n";
    let (new, _) = Settings::default().set(&[(b"requirepass", word)], true).expect("any bytes");
    assert_eq!(new.requirepass, word);
    assert_eq!(new.get(&[b"requirepass"]), [(b"requirepass".to_vec(), word.to_vec())]);
}

/// Debian's own file, if this machine has it: read unchanged, and with every directive in its comments
/// switched on.
#[test]
fn a_stock_redis_conf_is_known() {
    let Ok(text) = std::fs::read_to_string("/etc/redis/redis.conf") else { return };
    for line in text.lines().filter(|line| !line.trim_start().starts_with("dir ")) {
        let mut loader = Loader::new(USER_LINES, None, Path::new("/"));
        assert!(loader.line(line.as_bytes()).is_ok(), "{line}");
    }
    // `# name value`, as the file shows possible directives; the last of these words belong to its prose.
    let prose = ["client-only", "sanitize-payload", "skip-sanitize-payload", "redis-benchmark", "redis-cli"];
    let example = |line: &'static str| line.strip_prefix("# ")?.split_whitespace().next();
    for name in String::leak(text).lines().filter_map(example).filter(|name| name.contains('-')) {
        let letters = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        let prose =
            !letters || name.starts_with('-') || prose.contains(&name) || Policy::NAMES.contains(&name);
        assert!(prose || directives::find(name.as_bytes()).is_some(), "{name}");
    }
}

/// Another process gets the same settings, also of directives that CONFIG SET cannot change.
#[test]
fn settings_travel_to_another_process() {
    let here = Path::new("/tmp");
    let known: &dyn Fn(&[u8]) -> bool = &|_| true;
    let mut loader = Loader::new(USER_LINES, Some(known), here);
    let lines: &[&[u8]] = &[
        b"bind 127.0.0.1 -::1 10.0.0.1",
        b"port 7777",
        b"save 900 1 300 10",
        b"client-output-buffer-limit pubsub 64mb 16mb 60",
        b"notify-keyspace-events KEA",
        b"maxmemory 100mb",
        b"maxmemory-policy allkeys-lfu",
        b"oom-score-adj-values 1 2 3",
        b"latency-tracking-info-percentiles 50 99.9",
        b"requirepass \"a b \\x01\"",
        b"databases 77",
        b"unixsocket /tmp/a.sock",
        b"unixsocketperm 700",
        b"replicaof 10.0.0.9 6380",
        b"shutdown-on-sigterm nosave force",
        b"appendonly yes",
        b"appendfilename log.aof",
        b"io-threads 4",
    ];
    for line in lines {
        loader.line_at(line, || Place::Option { number: 1 });
    }
    assert!(loader.mistakes.is_empty(), "{:?}", loader.mistakes);
    let settings = loader.settings;
    let transferred = settings.transfer();
    assert!(transferred.iter().filter(|one| !one.is_default).count() >= lines.len());
    let there = Settings::default().with_transferred(&transferred).expect("they are valid");
    assert_eq!(there.transfer(), transferred);
    assert_eq!(there.bind, settings.bind);
    assert_eq!(there.replicaof, settings.replicaof);
    // A later program may have directives that this one does not know.
    let unknown = |is_default| Transferred { name: "new".into(), value: b"1".to_vec(), is_default };
    assert!(Settings::default().with_transferred(&[unknown(true)]).is_ok());
    let refused = Settings::default().with_transferred(&[unknown(false)]).expect_err("it is in use");
    assert!(refused.contains("'new'"), "{refused}");
    let invalid = Transferred { name: "port".into(), value: b"x".to_vec(), is_default: false };
    assert!(Settings::default().with_transferred(&[invalid]).is_err());
}

#[test]
fn a_store_has_members() {
    let members = |text: &str| crate::endpoints_of(text.as_bytes()).map_err(|reason| reason.to_string());
    assert_eq!(members("etcd://a:1,[::1]:2"), Ok((false, vec!["a:1".into(), "[::1]:2".into()])));
    assert_eq!(members("etcds://b:65535"), Ok((true, vec!["b:65535".into()])));
    for wrong in ["", "a:1", "http://a:1", "etcd://", "etcd://a", "etcd://a:0", "etcd://a:1,", "etcd://a:1/x"]
    {
        assert!(members(wrong).is_err(), "{wrong}");
    }
    assert!(crate::is_secret(b"cluster-store-password"));
}
