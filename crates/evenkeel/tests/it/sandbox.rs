//! The server under a seccomp filter that kills its process for optional system calls.

use std::fs;

use evenkeel_testkit::{Client, Server, seccomp};

use crate::{program, start, wait_until};

/// System calls that the server can do without, as listed in `sandbox.rs`.
const OPTIONAL: &[libc::c_long] = &[
    libc::SYS_sched_setattr,
    libc::SYS_sched_setaffinity,
    libc::SYS_mincore,
    libc::SYS_fchown,
    libc::SYS_fallocate,
    libc::SYS_sync_file_range,
];

const KEYS: u32 = 3000;

fn fill(client: &mut Client) {
    for number in 0..KEYS {
        client.run(&format!("SET key:{number} {number}"));
    }
}

#[track_caller]
fn start_forbidden(forbidden: &'static [libc::c_long], args: &[&str]) -> Server {
    Server::start(&program().forbidden(forbidden), args)
}

/// Causes all optional system calls: BGSAVE, BGREWRITEAOF, ACL SAVE, and a full sync in both roles.
fn use_all(forbidden: &'static [libc::c_long]) {
    let holder = start(&[]); // for its folder, which goes with it
    let users = holder.folder().join("users.acl");
    fs::write(&users, "").expect("the folder can be written to");
    // If root runs the test, the file has another owner than the server.
    let _ = std::os::unix::fs::chown(&users, Some(12345), None);
    let path = users.display().to_string();
    let args = [
        "--appendonly",
        "yes",
        "--thread-affinity",
        "0",
        "--repl-diskless-sync-delay",
        "0",
        "--aclfile",
        &path,
    ];
    let mut primary = start_forbidden(forbidden, &args);
    let mut client = primary.connect();
    fill(&mut client);
    client.run("BGSAVE");
    wait_until("the snapshot is there", || primary.info("rdb_bgsave_in_progress") == "0");
    assert_eq!(primary.info("rdb_last_bgsave_status"), "ok");
    client.run("BGREWRITEAOF");
    wait_until("the log is rewritten", || primary.info("aof_rewrite_in_progress") == "0");
    assert_eq!(primary.info("aof_last_bgrewrite_status"), "ok");
    let mut replica = start_forbidden(forbidden, &args);
    replica.connect().run(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    wait_until("the replica follows", || replica.info("master_link_status") == "up");
    wait_until("it has all", || replica.connect().run("DBSIZE").to_string() == format!(":{KEYS}"));
    assert_eq!(client.run("ACL SAVE").to_string(), "OK");
    let log = primary.log();
    assert!(log.contains("system calls, so they are not used: "), "{log}");
    assert!(log.contains("sched_setattr"), "{log}");
    assert_eq!(log.matches("seccomp filter").count(), 1, "{log}");
    primary.assert_healthy();
    replica.assert_healthy();
}

#[test]
fn debians_seccomp_filter_permits_all_commands() {
    use_all(seccomp::DEBIAN);
}

#[test]
fn a_filter_of_all_optional_calls_permits_all_commands() {
    use_all(OPTIONAL);
}
