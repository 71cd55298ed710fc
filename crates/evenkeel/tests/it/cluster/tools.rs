//! redis-cli's tools for clusters, unmodified.

use std::process::Command;

use super::{StaticCluster, text};
use crate::{program, start};

/// Runs redis-cli; `None` without it.
fn redis_cli(args: &[&str]) -> Option<(bool, String)> {
    let output = Command::new("redis-cli").args(args).output();
    let Ok(output) = output else {
        assert!(std::env::var_os("CI").is_none(), "CI must have redis-cli");
        eprintln!("SKIPPED: no redis-cli on this machine");
        return None;
    };
    let text = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

#[track_caller]
pub(super) fn must_find(args: &[&str], needles: &[&str]) {
    let Some((succeeds, text)) = redis_cli(args) else { return };
    assert!(succeeds, "{args:?}: {text}");
    needles.iter().for_each(|needle| assert!(text.contains(needle), "{args:?}: no {needle:?} in {text}"));
}

#[test]
fn redis_cli_checks_a_node_alone() {
    let server = start(&["--cluster-enabled", "yes"]);
    let address = format!("127.0.0.1:{}", server.port());
    must_find(&["--cluster", "check", &address], &["[OK] All 16384 slots covered."]);
    must_find(&["--cluster", "info", &address], &["[OK] 0 keys in 1 masters."]);
    must_find(&["--cluster", "call", &address, "PING"], &["PONG"]);
}

#[test]
fn redis_cli_finds_its_way_in_a_static_cluster() {
    let cluster = StaticCluster::start(&program(), &[]);
    let port = cluster.nodes[0].port().to_string();
    let address = format!("127.0.0.1:{port}");
    must_find(&["--cluster", "check", &address], &["[OK] All nodes agree", "[OK] All 16384 slots covered."]);
    for key in ["foo", "bar", "1"] {
        must_find(&["-c", "-p", &port, "SET", key, "v"], &["OK"]);
    }
    must_find(&["--cluster", "info", &address], &["[OK] 3 keys in 3 masters."]);
    must_find(&["--cluster", "call", &address, "DBSIZE"], &[": 1"]);
    assert_eq!(text(&mut cluster.connect(2), "GET foo"), "\"v\"");
}
