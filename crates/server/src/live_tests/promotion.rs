//! An append-only file, and the full sync that replaces the data.

use crate::testing::live::Live;
use evenkeel_persist::PersistJob;
use evenkeel_persist::rewrite::follow_soon;

/// A primary with a key, a replica to be with an append-only file, and the REPLICAOF command for it.
fn pair(way: &str) -> (Live, Live, String) {
    let port = evenkeel_testkit::server::free_port().to_string();
    let primary = Live::start(1, &["--port", &port, "--repl-diskless-sync-delay", "0"]);
    assert!(!primary.connect().run("SET k theirs").is_error());
    let replica = Live::start(1, &["--appendonly", "yes", "--repl-diskless-load", way]);
    follow_soon(&replica.server.persist);
    await_log(&replica);
    (primary, replica, format!("REPLICAOF 127.0.0.1 {port}"))
}

fn await_log(live: &Live) {
    let persist = &live.server.persist;
    live.wait_until("there is a log", || persist.aof.is_on() && persist.state().is_idle());
}

/// The thread that turns the append-only file off needs the context, so without it, it stops right
/// before.
#[test]
fn no_promotion_while_the_aof_is_turned_off() {
    for way in ["disabled", "flush-before-load"] {
        let (primary, replica, follow) = pair(way);
        let (server, mut client) = (&replica.server, replica.connect());
        let dump = server.core.settings().dir.join("dump.rdb");
        let ctx = server.persist.hold_context();
        assert!(!client.run(&follow).is_error());
        replica.wait_until("clients wait", || client.run("GET k").to_string().starts_with("-LOADING"));
        let refusal = client.run("REPLICAOF NO ONE").to_string();
        assert!(refusal.starts_with("-LOADING"), "{refusal}");
        drop(ctx);
        replica.wait_until("the link stands", || server.replication.link.is_up());
        assert_eq!(client.run("GET k").to_string(), "\"theirs\"");
        assert_eq!(dump.exists(), way == "disabled");
        await_log(&replica);
        replica.stop();
        primary.stop();
    }
}

/// While another thread writes to disk, nothing is given up.
#[test]
fn an_early_promotion_keeps_the_old_data() {
    let (primary, replica, follow) = pair("disabled");
    let (server, mut client) = (&replica.server, replica.connect());
    assert!(!client.run("SET k ours").is_error());
    assert!(server.persist.claim_sync());
    assert!(!client.run(&follow).is_error());
    replica.wait_until("it has all, and wants to load it", || server.persist.is_cancelled(PersistJob::Sync));
    assert!(!client.run("REPLICAOF NO ONE").is_error());
    server.persist.end_sync();
    replica.wait_until("the link has given up", || {
        let folder = std::fs::read_dir(&server.core.settings().dir).expect("a folder");
        folder.flatten().all(|entry| !entry.file_name().to_string_lossy().starts_with("temp-"))
    });
    assert_eq!(client.run("GET k").to_string(), "\"ours\"");
    assert!(server.persist.aof.is_on() && !server.core.settings().dir.join("dump.rdb").exists());
    replica.stop();
    primary.stop();
}

/// Clients are served until the data are swapped. The append-only file ends at that moment, without a
/// wait.
#[test]
fn the_aof_is_left_when_the_data_are_swapped() {
    let (primary, replica, follow) = pair("swapdb");
    let (server, mut client) = (&replica.server, replica.connect());
    let ctx = server.persist.hold_context();
    assert!(!client.run(&follow).is_error());
    replica.wait_until("they are swapped", || client.run("GET k").to_string() == "\"theirs\"");
    replica.wait_until("the log has ended", || !server.persist.aof.is_on());
    drop(ctx);
    await_log(&replica);
    replica.stop();
    primary.stop();
}
