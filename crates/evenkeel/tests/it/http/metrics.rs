//! The metrics: their names, their values beside INFO, and their formats as Prometheus reads them.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_testkit::Server;
use evenkeel_testkit::scratch::Scratch;
use evenkeel_testkit::server::free_port;

use super::client::get;
use super::{WithHttp, start_http};
use crate::tls::certs::Certs;
use crate::wait_until;

const OPEN_METRICS: (&str, &str) = ("Accept", "application/openmetrics-text; version=1.0.0");

/// Metrics that redis_exporter shows of every Redis 7.2, without options. Metrics about the exporter itself
/// are left out, and those of Sentinel, cluster mode and modules.
const OF_THE_EXPORTER: &str = "
    acl_access_denied_auth_total acl_access_denied_channel_total acl_access_denied_cmd_total
    acl_access_denied_key_total active_defrag_running allocator_active_bytes allocator_allocated_bytes
    allocator_frag_bytes allocator_frag_ratio allocator_resident_bytes allocator_rss_bytes
    allocator_rss_ratio aof_current_rewrite_duration_sec aof_enabled aof_last_bgrewrite_status
    aof_last_cow_size_bytes aof_last_rewrite_duration_sec aof_last_write_status aof_rewrite_in_progress
    aof_rewrite_scheduled async_loading blocked_clients client_output_buffer_limit_disconnections_total
    client_query_buffer_limit_disconnections_total client_recent_max_input_buffer_bytes
    client_recent_max_output_buffer_bytes clients_in_timeout_table commands_duration_seconds_total
    commands_failed_calls_total commands_latencies_usec commands_processed_total
    commands_rejected_calls_total commands_total config_client_output_buffer_limit_bytes
    config_client_output_buffer_limit_overcome_seconds config_maxclients config_maxmemory
    connected_clients connected_slaves connections_received_total cpu_sys_children_seconds_total
    cpu_sys_main_thread_seconds_total cpu_sys_seconds_total cpu_user_children_seconds_total
    cpu_user_main_thread_seconds_total cpu_user_seconds_total current_eviction_exceeded_time_ms
    db_avg_ttl_seconds db_keys db_keys_expiring defrag_hits defrag_key_hits defrag_key_misses
    defrag_misses dump_payload_sanitizations errors_total evicted_clients_total evicted_keys_total
    eviction_exceeded_time_ms_total expire_cycle_cpu_time_ms_total expired_keys_total
    expired_stale_percentage expired_time_cap_reached_total instance_info io_threaded_reads_processed
    io_threaded_writes_processed io_threads_active keyspace_hits_total keyspace_misses_total
    last_slow_execution_duration_seconds latency_percentiles_usec latest_fork_usec
    lazyfree_pending_objects loading_dump_file master_repl_offset max_clients mem_clients_normal
    mem_clients_slaves mem_fragmentation_bytes mem_fragmentation_ratio
    mem_not_counted_for_eviction_bytes mem_total_replication_buffers_bytes memory_max_bytes
    memory_used_bytes memory_used_dataset_bytes memory_used_functions_bytes memory_used_lua_bytes
    memory_used_overhead_bytes memory_used_peak_bytes memory_used_rss_bytes memory_used_scripts_bytes
    memory_used_scripts_eval_bytes memory_used_startup_bytes memory_used_vm_eval_bytes
    memory_used_vm_functions_bytes memory_used_vm_total migrate_cached_sockets_total
    module_fork_in_progress module_fork_last_cow_size net_input_bytes_total net_output_bytes_total
    net_repl_input_bytes_total net_repl_output_bytes_total number_of_cached_scripts number_of_functions
    number_of_libraries process_id pubsub_channels pubsub_patterns pubsubshard_channels
    rdb_bgsave_in_progress rdb_changes_since_last_save rdb_current_bgsave_duration_sec
    rdb_last_bgsave_duration_sec rdb_last_bgsave_status rdb_last_cow_size_bytes
    rdb_last_load_expired_keys rdb_last_load_loaded_keys rdb_last_save_timestamp_seconds rdb_saves_total
    rejected_connections_total repl_backlog_first_byte_offset repl_backlog_history_bytes
    repl_backlog_is_active replica_partial_resync_accepted replica_partial_resync_denied
    replica_resyncs_full replication_backlog_bytes reply_buffer_expands_total
    reply_buffer_shrinks_total second_repl_offset slave_expires_tracked_keys slowlog_last_id
    slowlog_length start_time_seconds total_blocking_keys total_blocking_keys_on_nokey
    total_error_replies total_reads_processed total_writes_processed tracking_clients
    tracking_total_items tracking_total_keys tracking_total_prefixes unexpected_error_replies up
    uptime_in_seconds watching_clients
";

/// Metrics that a primary with a replica shows, and a replica.
const OF_A_PRIMARY: &str = "connected_slave_lag_seconds connected_slave_offset_bytes";
const OF_A_REPLICA: &str = "
    master_last_io_seconds_ago master_link_up master_sync_in_progress slave_info slave_priority
    slave_repl_offset
";

/// Metrics of a server whose append-only file is on.
const WITH_AOF: &str = "
    aof_base_size_bytes aof_buffer_length aof_current_size_bytes aof_delayed_fsync aof_pending_bio_fsync
    aof_pending_rewrite
";

/// The samples of a text by name and labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
        (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("no number: {line}")))
    };
    text.lines().filter(|line| !line.starts_with('#')).map(sample).collect()
}

/// The families that have samples, without `redis_`.
fn families(text: &str) -> Vec<String> {
    let of = |name: &String| {
        let name = name.split('{').next().unwrap_or_default().trim_start_matches("redis_").to_owned();
        ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix).map(str::to_owned))
            .unwrap_or(name)
    };
    samples(text).keys().map(of).collect()
}

/// Waits for families: on a busy machine, a scrape may find the keyspace closed before it was ever looked at.
#[track_caller]
fn expect_families(http: &WithHttp, expected: &str) {
    let mut missing = Vec::new();
    let ended = Instant::now() + Duration::from_secs(10);
    while Instant::now() < ended {
        let found = families(&http.get("/metrics", &[]).body);
        missing = expected.split_whitespace().filter(|name| !found.iter().any(|one| one == name)).collect();
        if missing.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("missing: {missing:?}");
}

/// Leaves something to count in every section.
fn use_server(server: &Server) {
    let mut client = server.connect();
    for command in
        ["SET k v EX 1000", "GET k", "GET none", "HSET h f 1", "NOSUCH", "LPUSH k 1", "EVAL \"return 1\" 0"]
    {
        client.run(command);
    }
}

#[test]
fn names_are_those_of_the_exporter() {
    let http = start_http(&["--appendonly", "yes"]);
    use_server(&http.server);
    expect_families(&http, OF_THE_EXPORTER);
    expect_families(&http, WITH_AOF);
    let port = http.server.port().to_string();
    let replica = start_http(&["--replicaof", "127.0.0.1", &port]);
    wait_until("the replica is attached", || {
        http.get("/metrics", &[]).body.contains("slave_state=\"online\"}")
    });
    expect_families(&http, OF_A_PRIMARY);
    let up = format!("redis_master_link_up{{master_host=\"127.0.0.1\",master_port=\"{port}\"}} 1\n");
    // The primary knows it a moment earlier.
    wait_until("the link is up", || replica.get("/metrics", &[]).body.contains(&up));
    expect_families(&replica, OF_A_REPLICA);
    // The primary counts a replica as online before the replica has loaded all it was sent.
    let link = format!("redis_master_link_up{{master_host=\"127.0.0.1\",master_port=\"{port}\"}} 1\n");
    wait_until("the link is up", || replica.get("/metrics", &[]).body.contains(&link));
    let body = replica.get("/metrics", &[]).body;
    assert!(body.contains("redis_instance_info{role=\"slave\","), "{body}");
}

#[test]
fn values_are_those_of_info() {
    let http = start_http(&[]);
    use_server(&http.server);
    let mut client = http.server.connect();
    client.run("CONFIG SET maxmemory 1gb");
    wait_until("the other clients are gone", || {
        client.run("INFO clients").to_string().contains("connected_clients:1\\r")
    });
    let mut body = String::new();
    wait_until("a scrape has the present number of keys", || {
        body = http.get("/metrics", &[]).body;
        body.contains("redis_db_keys{db=\"db0\"} 2\n")
    });
    let samples = samples(&body);
    let info = client.run("INFO everything").to_string();
    let field = |name: &str| -> f64 {
        let (_, rest) = info
            .split_once(&format!("\n{name}:"))
            .or_else(|| info.split_once(&format!("\\r\\n{name}:")))
            .expect(name);
        let digits: String =
            rest.chars().take_while(|one| one.is_ascii_digit() || "-.".contains(*one)).collect();
        digits.parse().expect(name)
    };
    for (metric, name) in [
        ("redis_memory_max_bytes", "maxmemory"),
        ("redis_keyspace_hits_total", "keyspace_hits"),
        ("redis_keyspace_misses_total", "keyspace_misses"),
        ("redis_total_error_replies", "total_error_replies"),
        ("redis_connected_clients", "connected_clients"),
        ("redis_process_id", "process_id"),
        ("redis_max_clients", "maxclients"),
        ("redis_rdb_changes_since_last_save", "rdb_changes_since_last_save"),
        ("redis_number_of_cached_scripts", "number_of_cached_scripts"),
        ("redis_rdb_current_bgsave_duration_sec", "rdb_current_bgsave_time_sec"),
    ] {
        assert_eq!(samples.get(metric).copied(), Some(field(name)), "{metric}");
    }
    for (sample, value) in [
        ("redis_up", 1.0),
        ("redis_db_keys{db=\"db0\"}", 2.0),
        ("redis_db_keys_expiring{db=\"db0\"}", 1.0),
        ("redis_commands_total{cmd=\"get\"}", 2.0),
        ("redis_commands_failed_calls_total{cmd=\"lpush\"}", 1.0),
        ("redis_errors_total{err=\"WRONGTYPE\"}", 1.0),
        ("redis_commands_latencies_usec_bucket{cmd=\"get\",le=\"+Inf\"}", 2.0),
        ("redis_commands_latencies_usec_bucket{cmd=\"get\",le=\"16777216\"}", 2.0),
        ("redis_latency_percentiles_usec_count{cmd=\"get\"}", 2.0),
        ("redis_rdb_last_bgsave_status", 1.0),
        ("redis_config_client_output_buffer_limit_bytes{class=\"pubsub\",limit=\"soft\"}", 8_388_608.0),
    ] {
        assert_eq!(samples.get(sample).copied(), Some(value), "{sample}");
    }
    assert!(body.contains("redis_instance_info{role=\"master\",redis_version=\""), "{body}");
    let stages = |stage: &str| {
        samples.keys().any(|key| key.starts_with("evenkeel_worker_seconds_total") && key.contains(stage))
    };
    assert!(stages("\"execute\"") && stages("\"lock_wait\"") && stages("\"idle\""));
}

/// The buckets of a histogram never decrease, and the last has all calls.
#[test]
fn histograms_are_cumulative() {
    let http = start_http(&[]);
    let mut client = http.server.connect();
    (0..500).for_each(|number| _ = client.run(&format!("SET k{number} v")));
    client.run("DEBUG SLEEP 0.01");
    let body = http.get("/metrics", &[]).body;
    let buckets: Vec<f64> = body
        .lines()
        .filter(|line| line.starts_with("redis_commands_latencies_usec_bucket{cmd=\"set\","))
        .map(|line| line.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a number"))
        .collect();
    assert_eq!(buckets.len(), 26);
    assert!(buckets.is_sorted(), "{buckets:?}");
    assert_eq!(buckets.last().copied(), Some(500.0));
}

fn is_installed(program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    if !is_there {
        println!("left out: scripts/setup metrics installs {program}");
    }
    is_there
}

fn contrib(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(path)
}

/// Prometheus' own tool finds no fault with the text, beyond its taste in names.
#[test]
fn promtool_accepts_the_metrics() {
    if !is_installed("promtool") {
        return;
    }
    let http = start_http(&["--appendonly", "yes"]);
    use_server(&http.server);
    let body = http.get("/metrics", &[]).body;
    let mut tool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    tool.stdin.take().expect("a pipe").write_all(body.as_bytes()).expect("it reads");
    let output = tool.wait_with_output().expect("it ends");
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    // The exporter's names keep some of its rules and break others.
    let is_taste = |line: &&str| line.starts_with("redis_");
    let faults: Vec<&str> = said.lines().filter(|line| !is_taste(line)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn open_metrics_has_the_same_samples() {
    let http = start_http(&[]);
    use_server(&http.server);
    let (plain, open) = (http.get("/metrics", &[]), http.get("/metrics", &[OPEN_METRICS]));
    assert!(plain.header("content-type").is_some_and(|media| media.starts_with("text/plain; version=0.0.4")));
    assert!(
        open.header("content-type").is_some_and(|media| media.starts_with("application/openmetrics-text"))
    );
    assert!(open.body.ends_with("# EOF\n"));
    let names = |body: &str| samples(body).into_keys().collect::<Vec<_>>();
    assert_eq!(names(&plain.body), names(&open.body));
    let families = open.body.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    for family in families {
        let (name, kind) = family.split_once(' ').expect("name and kind");
        assert!(kind != "counter" || !name.ends_with("_total"), "{family}");
    }
}

/// The names of this server's metrics in a text of queries.
fn names_in(text: &str) -> Vec<String> {
    let is_part = |one: char| one.is_ascii_alphanumeric() || one == '_';
    let words = text.split(|one| !is_part(one));
    let is_metric =
        |word: &&str| (word.starts_with("redis_") || word.starts_with("evenkeel_")) && !word.ends_with('_');
    let mut names: Vec<String> = words.filter(is_metric).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn alert_rules_and_dashboard_name_only_metrics_that_exist() {
    let certs = Certs::new();
    let of_tls = certs.arguments();
    let mut args: Vec<&str> = of_tls.iter().map(String::as_str).collect();
    args.extend(["--tls-replication", "yes", "--appendonly", "yes"]);
    let http = start_http(&args);
    use_server(&http.server);
    let port = http.server.port().to_string();
    let replica = start_http(&["--replicaof", "127.0.0.1", &port]);
    wait_until("the replica is attached", || {
        http.get("/metrics", &[]).body.contains("slave_state=\"online\"}")
    });
    let shown = http.get("/metrics", &[]).body + &replica.get("/metrics", &[]).body;
    let exists =
        |name: &String| shown.contains(&format!("\n{name} ")) || shown.contains(&format!("\n{name}{{"));
    for (path, least) in [("prometheus/evenkeel.rules.yml", 15), ("grafana/evenkeel.json", 25)] {
        let text = std::fs::read_to_string(contrib(path)).expect("a file of the repository");
        let names = names_in(&text);
        assert!(names.len() >= least, "{path}: {names:?}");
        let unknown: Vec<_> = names.iter().filter(|name| !exists(name)).collect();
        assert!(unknown.is_empty(), "{path}: {unknown:?}");
    }
}

#[test]
fn the_alert_rules_pass_their_tests() {
    if !is_installed("promtool") {
        return;
    }
    let run = |args: &[&str]| {
        let output = Command::new("promtool").args(args).current_dir(contrib("prometheus")).output();
        let output = output.expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["check", "rules", "evenkeel.rules.yml"]);
    run(&["check", "config", "prometheus.yml"]);
    run(&["test", "rules", "evenkeel.tests.yml"]);
}

/// A process that is killed at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Prometheus scrapes with a user of its own, and evaluates all rules.
#[test]
fn prometheus_scrapes_and_evaluates_the_rules() {
    if !is_installed("prometheus") {
        return;
    }
    let http = start_http(&["--requirepass", "secret"]);
    let mut client = http.server.connect();
    client.run("AUTH secret");
    client.run("ACL SETUSER prometheus on >watch +info");
    client.run("SET k v");
    let (folder, port) = (Scratch::new(), free_port());
    std::fs::copy(contrib("prometheus/evenkeel.rules.yml"), folder.path.join("evenkeel.rules.yml"))
        .expect("a file of the repository");
    let config = std::fs::read_to_string(contrib("prometheus/prometheus.yml")).expect("the same");
    let config = config
        .replace("15s", "1s")
        .replace("PASSWORD", "watch")
        .replace("127.0.0.1:8379", &format!("127.0.0.1:{}", http.port));
    let config = folder.write("prometheus.yml", &format!("{config}\n")).display().to_string();
    let _prometheus = Running(
        Command::new("prometheus")
            .arg(format!("--config.file={config}"))
            .arg(format!("--storage.tsdb.path={}", folder.path.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts"),
    );
    let query = |query: &str| {
        let path = format!("/api/v1/query?query={query}");
        get(port, &path, &[]).map(|reply| reply.body).unwrap_or_default()
    };
    wait_until("it has scraped", || query("redis_db_keys").contains("\"db\":\"db0\""));
    assert!(query("up").contains("\"1\"]"), "{}", query("up"));
    assert!(query("redis_commands_latencies_usec_bucket").contains("\"le\":\"+Inf\""));
    let rules = || get(port, "/api/v1/rules", &[]).map(|reply| reply.body).unwrap_or_default();
    wait_until("it has evaluated", || !rules().contains("\"health\":\"unknown\""));
    let rules = rules();
    assert!(rules.contains("EvenkeelDown") && !rules.contains("\"health\":\"err\""), "{rules}");
}
