//! A replica as its clients see it, with any primary.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenkeel_testkit::{Client, Program, Reference, Server};

use super::{PRIMARY, REPLICA, await_equal, await_link, follow, wait_until};
use crate::{program, start};

fn pair(args: &[&str]) -> Option<(Server, Server)> {
    let reference = Program::oracle(Reference::Redis)?;
    let (primary, replica) =
        (Server::start(&reference, PRIMARY), Server::start(&program(), &[REPLICA, args].concat()));
    follow(&replica, primary.port());
    await_link(&replica);
    Some((primary, replica))
}

#[test]
fn a_replica_reports_its_role_and_settings() {
    let Some((primary, replica)) = pair(&["--replica-priority", "7", "--replica-announced", "no"]) else {
        return;
    };
    primary.connect().run("SET k v");
    await_equal(&primary, &replica);
    let mut client = replica.connect();
    for (field, value) in [
        ("role", "slave"),
        ("master_host", "127.0.0.1"),
        ("master_link_status", "up"),
        ("master_sync_in_progress", "0"),
        ("slave_priority", "7"),
        ("slave_read_only", "1"),
        ("replica_announced", "0"),
    ] {
        assert_eq!(replica.info(field), value, "{field}");
    }
    assert_eq!(replica.info("master_replid"), primary.info("master_replid"));
    wait_until("offsets agree", || replica.info("slave_repl_offset") == primary.info("master_repl_offset"));
    let offset = primary.info("master_repl_offset");
    let role = client.run("ROLE").to_string();
    assert!(
        role.starts_with(&format!("[\"slave\", \"127.0.0.1\", :{}, \"connected\", :", primary.port())),
        "{role}"
    );
    let listed = primary.connect().run("INFO replication").to_string();
    assert!(
        listed.contains(&format!("slave0:ip=127.0.0.1,port={},state=online", replica.port())),
        "{listed}"
    );
    wait_until("it is acknowledged", || {
        primary.connect().run("INFO replication").to_string().contains(&format!("offset={offset}"))
            || primary.info("master_repl_offset") != offset
    });
    let clients = client.run("CLIENT LIST").to_string();
    assert!(clients.contains("flags=M"), "{clients}");
    let hello = client.run("HELLO").to_string();
    assert!(hello.contains("\"role\", \"replica\""), "{hello}");
    // WAIT asks the replicas for their offsets at once.
    primary.connect().run("SET k w");
    let mut writer = primary.connect();
    writer.run("SET k x");
    let started = Instant::now();
    assert_eq!(writer.run("WAIT 1 5000").as_int(), Some(1));
    assert!(started.elapsed() < Duration::from_millis(800), "GETACK is answered at once");
}

/// The time between two commands of the primary counts for no command; bytes from it and to replicas are
/// counted.
#[test]
fn a_replica_accounts_for_commands_and_traffic() {
    let Some((redis, middle)) = pair(&["--slowlog-log-slower-than", "200000"]) else { return };
    let last = Server::start(&program(), REPLICA);
    follow(&last, middle.port());
    await_link(&last);
    let traffic = |server: &Server, way: &str| {
        server.info(&format!("total_net_repl_{way}_bytes")).parse::<u64>().expect("a number")
    };
    let before = [traffic(&middle, "input"), traffic(&middle, "output"), traffic(&last, "input")];
    let value = "v".repeat(100_000);
    for number in 0..3 {
        std::thread::sleep(Duration::from_millis(400));
        redis.connect().run(&format!("SET k{number} {value}"));
    }
    await_equal(&redis, &last);
    assert_eq!(middle.connect().run("SLOWLOG GET").to_string(), "[]");
    let after = [traffic(&middle, "input"), traffic(&middle, "output"), traffic(&last, "input")];
    for (before, after) in before.into_iter().zip(after) {
        assert!((300_000..400_000).contains(&(after - before)), "{before} {after}");
    }
    let all: u64 = middle.info("total_net_output_bytes").parse().expect("a number");
    assert!(all >= after[1], "the whole has it, too");
}

#[test]
fn blocked_clients_are_unblocked_when_the_role_changes() {
    let Some(reference) = Program::oracle(Reference::Redis) else { return };
    let (primary, replica) = (Server::start(&reference, PRIMARY), Server::start(&program(), REPLICA));
    let mut waiting = replica.connect();
    waiting.send(&["BLPOP", "list", "0"]).expect("it reads");
    wait_until("it waits", || replica.info("blocked_clients") == "1");
    follow(&replica, primary.port());
    let reply = waiting.read().to_string();
    assert!(reply.starts_with("-UNBLOCKED force unblock from blocking operation"), "{reply}");
    assert!(
        waiting.read_to_end().is_ok_and(|rest| rest.is_empty()),
        "whoever looks for the primary connects anew"
    );
    // As Valkey 9.1 counts it.
    let counted = replica.info("cmdstat_blpop");
    assert!(
        counted.starts_with("calls=1,") && counted.ends_with(",rejected_calls=1,failed_calls=0"),
        "{counted}"
    );
    assert_eq!(replica.info("errorstat_UNBLOCKED"), "count=1");
    await_link(&replica);
    let mut waiting = replica.connect();
    // Clients may block on a replica, and the primary's writes serve them.
    waiting.send(&["XREAD", "BLOCK", "0", "STREAMS", "s", "$"]).expect("it reads");
    wait_until("it waits", || replica.info("blocked_clients") == "1");
    primary.connect().run("XADD s 1-1 f v");
    assert_eq!(waiting.read().to_string(), "[[\"s\", [[\"1-1\", [\"f\", \"v\"]]]]]");
    // With another primary, they would wait for an entry that is already there.
    waiting.send(&["XREAD", "BLOCK", "0", "STREAMS", "s", "$"]).expect("it reads");
    wait_until("it waits", || replica.info("blocked_clients") == "1");
    follow(&replica, Server::start(&reference, PRIMARY).port());
    let reply = waiting.read().to_string();
    assert!(reply.starts_with("-UNBLOCKED force unblock from blocking operation"), "{reply}");
    assert!(waiting.read_to_end().is_ok_and(|rest| rest.is_empty()));
}

/// Cuts the replica's link, runs `meanwhile` on the primary, and reconnects the replica for a full sync.
fn resync_fully(primary: &Server, replica: &Server, meanwhile: impl FnOnce(&mut Client)) {
    let mut client = primary.connect();
    let syncs = primary.info("sync_full");
    for line in ["CONFIG SET requirepass secret", "CLIENT KILL TYPE replica"] {
        client.run(line);
    }
    meanwhile(&mut client);
    client.run(&format!("PUBLISH nobody {}", "x".repeat(100_000)));
    client.run("CONFIG SET requirepass \"\"");
    wait_until("it comes again", || primary.info("sync_full") != syncs);
    await_link(replica);
}

const SMALL_BACKLOG: &[&str] = &["--repl-backlog-size", "16384"];

/// A full sync serves the clients that wait for its data, in every way of loading.
#[test]
fn a_full_sync_serves_blocked_clients() {
    let Some(reference) = Program::oracle(Reference::Redis) else { return };
    for way in ["disabled", "swapdb", "flush-before-load"] {
        let primary = Server::start(&reference, &[PRIMARY, SMALL_BACKLOG].concat());
        let replica = Server::start(&program(), &[REPLICA, &["--repl-diskless-load", way]].concat());
        follow(&replica, primary.port());
        await_link(&replica);
        let mut waiting = replica.connect();
        waiting.send(&["XREAD", "BLOCK", "0", "STREAMS", "s", "0"]).expect("it reads");
        wait_until("it waits", || replica.info("blocked_clients") == "1");
        resync_fully(&primary, &replica, |client| _ = client.run("XADD s 1-1 f v"));
        assert_eq!(waiting.read().to_string(), "[[\"s\", [[\"1-1\", [\"f\", \"v\"]]]]]", "{way}");
        waiting.send(&["XREAD", "BLOCK", "0", "STREAMS", "s", "$"]).expect("it reads");
        wait_until("it waits", || replica.info("blocked_clients") == "1");
        primary.connect().run("XADD s 2-1 f w");
        assert_eq!(waiting.read().to_string(), "[[\"s\", [[\"2-1\", [\"f\", \"w\"]]]]]", "{way}");
    }
}

/// In the same history, reads are served from the present data until the new data are complete.
#[test]
fn old_data_are_served_until_the_swap() {
    let Some(reference) = Program::oracle(Reference::Redis) else { return };
    let primary = Server::start(&reference, &[PRIMARY, SMALL_BACKLOG].concat());
    let options = ["--repl-diskless-load", "swapdb", "--threads", "2"];
    let replica = Server::start(&program(), &[REPLICA, &options].concat());
    let mut client = primary.connect();
    let sets = (0..2_000).map(|n| vec!["SET".to_owned(), format!("key:{n}"), "v".to_owned()]);
    client.pipeline(&sets.collect::<Vec<_>>());
    client.run("SET which old");
    follow(&replica, primary.port());
    await_link(&replica);
    await_equal(&primary, &replica);
    let mut reader = replica.connect();
    assert_eq!(reader.run("CONFIG SET key-load-delay 1000").to_string(), "OK");
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            resync_fully(&primary, &replica, |client| _ = client.run("SET which new"));
            has_ended.store(true, Relaxed);
        });
        wait_until("it is loaded beside", || replica.info("async_loading") == "1");
        let mut reads = 0;
        while !has_ended.load(Relaxed) {
            match reader.run("GET which").to_string().as_str() {
                "\"old\"" => reads += 1,
                "\"new\"" => {}
                other => panic!("{other}"),
            }
        }
        assert!(reads > 20, "{reads} reads");
    });
    assert_eq!(replica.info("async_loading"), "0");
    assert_eq!(reader.run("GET which").to_string(), "\"new\"");
}

/// A full sync is no change for save points; later writes are. If it came as a file, that file is complete;
/// Redis goes on counting from the earlier number.
#[test]
fn a_full_sync_does_not_count_for_save_points() {
    let Some(reference) = Program::oracle(Reference::Redis) else { return };
    for way in ["disabled", "swapdb", "flush-before-load"] {
        let primary = Server::start(&reference, &[PRIMARY, SMALL_BACKLOG].concat());
        let mut client = primary.connect();
        client.run("MSET a 1 b 2 c 3");
        let options = ["--save", "3600 1000000", "--repl-diskless-load", way];
        let replica = Server::start(&program(), &[REPLICA, &options].concat());
        replica.connect().run("MSET own 1 other 2");
        follow(&replica, primary.port());
        await_link(&replica);
        let changes = || replica.info("rdb_changes_since_last_save");
        // The received file is on disk.
        let before = if way == "disabled" { 0 } else { 2 };
        assert_eq!(changes(), before.to_string(), "{way}");
        resync_fully(&primary, &replica, |_| ());
        assert_eq!(changes(), before.to_string(), "{way}");
        client.run("SET d 4");
        wait_until("it has come", || changes() == (before + 1).to_string());
    }
}

/// A replicated FLUSHALL also removes the data on disk: a replica restarted alone is empty.
#[test]
fn data_flushed_by_the_primary_do_not_come_back() {
    let Some((primary, mut replica)) = pair(&["--save", "3600 1000000"]) else { return };
    let mut client = primary.connect();
    for (round, flush) in
        [&["FLUSHALL"][..], &["FLUSHALL", "ASYNC"], &["EVAL", "redis.call('FLUSHALL')", "0"]]
            .into_iter()
            .enumerate()
    {
        client.run("SET k v");
        await_equal(&primary, &replica);
        assert_eq!(replica.connect().run("SAVE").to_string(), "OK");
        client.call(flush);
        let saves = (2 * round + 2).to_string();
        wait_until("it is saved", || replica.info("rdb_saves") == saves);
    }
    replica.kill();
    replica.start_again();
    assert_eq!(replica.connect().run("DBSIZE").to_string(), ":0");
}

/// REPLICAOF NO ONE: the data stay, and the replica remembers the former id of their history.
#[test]
fn a_replica_becomes_a_primary() {
    let Some((primary, replica)) = pair(&[]) else { return };
    primary.connect().run("SET k v");
    await_equal(&primary, &replica);
    let (id, offset) = (replica.info("master_replid"), replica.info("master_repl_offset"));
    let mut client = replica.connect();
    assert_eq!(client.run("REPLICAOF NO ONE").to_string(), "OK");
    assert_eq!(client.run("SET k w").to_string(), "OK");
    assert_eq!(replica.info("role"), "master");
    assert_eq!(replica.info("master_replid2"), id);
    assert_ne!(replica.info("master_replid"), id);
    let second: u64 = replica.info("second_repl_offset").parse().expect("a number");
    assert!(second > offset.parse().expect("a number"));
    primary.connect().run("SET k x");
    assert_eq!(client.run("GET k").to_string(), "\"w\"");
    assert!(!client.run("CLIENT LIST").to_string().contains("flags=M"));
}

/// In every order of the replication thread and the command, the promoted server keeps its own data.
#[test]
fn a_promoted_replica_stops_following() {
    const PROMOTED: &str = "PRIMARY MODE enabled";
    let (primary, replica) = (start(PRIMARY), start(REPLICA));
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = primary.connect();
            while !ends.load(Relaxed) {
                writer.run("INCR theirs");
            }
        });
        let mut client = replica.connect();
        for round in 0..60 {
            follow(&replica, primary.port());
            await_link(&replica);
            assert_eq!(client.run("REPLICAOF NO ONE").to_string(), "OK");
            client.run(&format!("SET ours {round}"));
            let syncs = replica.info("sync_full");
            std::thread::sleep(Duration::from_millis(20));
            let ours = client.run("GET ours").to_string();
            wait_until("the log has it", || replica.log().matches(PROMOTED).count() == round + 1);
            let log = replica.log();
            let after = log.rsplit(PROMOTED).next().expect("something");
            if ours != format!("\"{round}\"") || after.contains("sync started") {
                ends.store(true, Relaxed);
                panic!("round {round}: {ours}, {syncs} full syncs, and then: {after}");
            }
        }
        ends.store(true, Relaxed);
    });
}

#[test]
fn synced_data_are_in_the_aof() {
    for way in ["disabled", "swapdb"] {
        let Some((primary, mut replica)) = pair(&["--appendonly", "yes", "--repl-diskless-load", way]) else {
            return;
        };
        primary.connect().run("SET k v");
        (0..100).for_each(|n| drop(primary.connect().run(&format!("RPUSH list {n}"))));
        await_equal(&primary, &replica);
        wait_until("the log is whole", || {
            replica.info("aof_enabled") == "1" && replica.info("aof_rewrite_in_progress") == "0"
        });
        assert!(replica.stop().success());
        drop(primary);
        replica.start_again();
        assert_eq!(replica.connect().run("LLEN list").as_int(), Some(100));
        replica.assert_healthy();
    }
}

/// A primary sends nothing while its replica loads, however long. It keeps its writes for connected replicas
/// only.
#[test]
fn loading_may_take_longer_than_the_timeout() {
    for way in ["disabled", "swapdb", "flush-before-load"] {
        let args = ["--repl-backlog-size", "16kb", "--repl-ping-replica-period", "1"];
        let primary = start(&[PRIMARY, &args].concat());
        let mut writer = primary.connect();
        (0..800).for_each(|n| drop(writer.run(&format!("SET k{n} v"))));
        let args = ["--repl-timeout", "2", "--key-load-delay", "6000", "--repl-diskless-load", way];
        let replica = start(&[REPLICA, &args].concat());
        follow(&replica, primary.port());
        let (began, large) = (Instant::now(), "v".repeat(20_000));
        wait_until("the link stands", || {
            writer.run(&format!("SET large {large}"));
            replica.info("master_link_status") == "up"
        });
        assert!(began.elapsed() > Duration::from_secs(3), "{way}: it takes some seconds to load");
        await_equal(&primary, &replica);
        let syncs = ["sync_full", "sync_partial_ok"].map(|field| primary.info(field));
        assert_eq!(syncs, ["1", "0"], "{way}: {}", replica.log());
    }
}

#[test]
fn a_killed_link_reconnects() {
    let Some((primary, replica)) = pair(&[]) else { return };
    let mut client = replica.connect();
    let list = client.run("CLIENT LIST").to_string();
    let line =
        list.split("\\n").find(|line| line.contains("flags=M")).expect("the primary is listed").to_owned();
    let id = line.split("id=").nth(1).and_then(|rest| rest.split(' ').next()).expect("an id");
    assert_eq!(client.run(&format!("CLIENT KILL ID {id}")).as_int(), Some(1));
    wait_until("it comes back", || replica.info("master_partial_syncs") == "1");
    await_link(&replica);
    primary.connect().run("SET k v");
    await_equal(&primary, &replica);
}

/// After DEBUG CHANGE-REPL-ID a connected replica stays, and a replica that reconnects needs a full sync.
#[test]
fn a_changed_stream_id_forces_a_full_sync() {
    let primary = start(&[PRIMARY, &["--enable-debug-command", "yes"]].concat());
    let replica = start(REPLICA);
    follow(&replica, primary.port());
    await_link(&replica);
    let before = primary.info("master_replid");
    assert_eq!(primary.connect().run("DEBUG CHANGE-REPL-ID").to_string(), "OK");
    assert_ne!(primary.info("master_replid"), before);
    primary.connect().run("SET k v");
    await_equal(&primary, &replica);
    assert_eq!(primary.info("sync_full"), "1");
    primary.connect().run("CLIENT KILL TYPE replica");
    wait_until("it synchronizes anew", || primary.info("sync_full") == "2");
    await_link(&replica);
    await_equal(&primary, &replica);
    assert_eq!(replica.info("master_replid"), primary.info("master_replid"));
}

/// A full sync replaces all functions by the primary's.
#[test]
fn functions_match_the_primary() {
    let load = |server: &Server, name: &str| {
        let code =
            format!("#!lua name={name}\nredis.register_function('{name}', function() return '{name}' end)");
        let loaded = server.connect().call(&["FUNCTION", "LOAD", &code]);
        assert_eq!(loaded.to_string(), format!("\"{name}\""));
    };
    for way in ["disabled", "swapdb", "flush-before-load"] {
        let (primary, replica) = (
            Server::start(&program(), PRIMARY),
            Server::start(&program(), &[REPLICA, &["--repl-diskless-load", way]].concat()),
        );
        load(&primary, "theirs");
        load(&replica, "own");
        follow(&replica, primary.port());
        await_link(&replica);
        let mut client = replica.connect();
        assert_eq!(client.run("FCALL_RO own 0").to_string(), "-ERR Function not found", "{way}");
        let listed = client.run("FUNCTION LIST").to_string();
        assert!(listed.contains("theirs") && !listed.contains("own"), "{way}: {listed}");
        load(&primary, "later");
        await_equal(&primary, &replica);
        wait_until("it comes by the stream", || client.run("FUNCTION LIST").to_string().contains("later"));
    }
}

/// The replica applies the stream as soon as the script lets it.
#[test]
fn an_endless_script_loses_nothing_of_the_stream() {
    let Some((primary, replica)) = pair(&["--lua-time-limit", "10"]) else { return };
    let (mut writer, mut runner, mut client) = (primary.connect(), replica.connect(), replica.connect());
    writer.run("SET n 0");
    await_equal(&primary, &replica);
    runner.send(&["EVAL", "redis.call('get', 'n') while true do end", "0"]).expect("it reads");
    wait_until("it is busy", || client.run("GET n").to_string().starts_with("-BUSY"));
    for n in 0..1_000 {
        writer.run("INCR n");
        writer.run(&format!("RPUSH list {n}"));
    }
    assert_eq!(client.run("SCRIPT KILL").to_string(), "OK");
    assert!(runner.read().is_error());
    await_equal(&primary, &replica);
    assert_eq!(client.run("GET n").to_string(), "\"1000\"");
}

/// DEBUG RELOAD writes and reads the data while the stream goes on: nothing of the stream is lost.
#[test]
fn a_reload_loses_nothing_of_the_stream() {
    let (primary, replica) = (Server::start(&program(), PRIMARY), Server::start(&program(), REPLICA));
    primary.connect().run("DEBUG POPULATE 30000 key 20"); // not part of the stream
    follow(&replica, primary.port());
    await_link(&replica);
    let has_ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut client, mut number) = (primary.connect(), 0);
            while !has_ended.load(std::sync::atomic::Ordering::Relaxed) {
                number += 100;
                let sets =
                    (number..number + 100).map(|n| vec!["SET".into(), format!("new:{n}"), n.to_string()]);
                client.pipeline(&sets.collect::<Vec<Vec<String>>>());
            }
        });
        for _ in 0..4 {
            assert_eq!(replica.connect().run("DEBUG RELOAD").to_string(), "OK");
        }
        has_ended.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    await_equal(&primary, &replica);
    let size = |server: &Server| server.connect().run("DBSIZE").as_int();
    assert_eq!(size(&primary), size(&replica));
}

/// The stream has the standard names of commands, whatever names the clients use.
#[test]
fn a_renamed_command_is_applied() {
    let renamed = ["--rename-command", "FLUSHALL", "secretflush", "--rename-command", "SELECT", ""];
    let [primary, replica] =
        [PRIMARY, REPLICA].map(|args| Server::start(&program(), &[args, &renamed].concat()));
    follow(&replica, primary.port());
    await_link(&replica);
    let mut client = primary.connect();
    for line in ["SET gone x", "secretflush", "SET here x"] {
        assert_eq!(client.run(line).to_string(), "OK", "{line}");
    }
    await_equal(&primary, &replica);
    assert_eq!(replica.connect().run("KEYS *").to_string(), "[\"here\"]");
    assert_eq!(replica.info("master_commands_failed"), "0");
}

/// A full sync replaces all keys: client-side caches are invalidated as a whole, and subscribers go on
/// receiving events.
#[test]
fn subscribers_and_caches_are_notified_of_a_full_sync_and_later_changes() {
    for way in ["disabled", "swapdb", "flush-before-load"] {
        let [primary, replica] = [
            Server::start(&program(), PRIMARY),
            Server::start(
                &program(),
                &[REPLICA, &["--repl-diskless-load", way, "--notify-keyspace-events", "KEAn"]].concat(),
            ),
        ];
        primary.connect().run("DEBUG POPULATE 20000 key 20");
        replica.connect().run("SET own 1");
        let [mut cache, mut listener] = [(); 2].map(|()| replica.connect3());
        assert_eq!(cache.run("CLIENT TRACKING ON").to_string(), "OK");
        assert_eq!(cache.run("GET own").to_string(), "\"1\"");
        listener.run("PSUBSCRIBE __keyevent*");
        follow(&replica, primary.port());
        assert_eq!(cache.read().to_string(), ">[\"invalidate\", (null)]", "{way}");
        await_link(&replica);
        assert_eq!(cache.run("GET later").to_string(), "(null)");
        primary.connect().run("SET later 1");
        assert_eq!(cache.read().to_string(), ">[\"invalidate\", [\"later\"]]", "{way}");
        let reply = [listener.read().to_string(), listener.read().to_string()];
        // events "new" and "set"
        assert!(reply.iter().all(|reply| reply.contains("\"later\"")), "{way}: {reply:?}");
    }
}

/// Data that arrive during a shutdown replace neither the saved data nor the save itself.
#[test]
fn a_replica_can_shut_down_during_a_full_sync() {
    let (primary, mut replica) = (start(&[]), start(&["--save", "3600 1"]));
    for (server, keys, delay) in [(&primary, 100, 20_000), (&replica, 300, 10_000)] {
        let mut client = server.connect();
        (0..keys).for_each(|n| assert_eq!(client.run(&format!("SET key:{n} {keys}")).to_string(), "OK"));
        client.run(&format!("CONFIG SET rdb-key-save-delay {delay}"));
        client.run("CONFIG SET repl-diskless-sync-delay 0");
    }
    follow(&replica, primary.port());
    wait_until("it is sent", || replica.log().contains("receiving streamed RDB from master"));
    replica.signal(libc::SIGTERM);
    wait_until("it ends", || !replica.is_alive());
    assert!(replica.stop().success(), "{}", replica.log());
    assert!(!replica.log().contains("can't exit"), "{}", replica.log());
    let dir = replica.folder().display().to_string();
    let again = start(&["--dir", &dir]);
    assert_eq!(again.connect().run("DBSIZE").as_int(), Some(300));
    assert_eq!(again.connect().run("GET key:7").to_string(), "\"300\"");
}

/// CLIENT KILL does not close the link to the primary, unless its filter asks for it.
#[test]
fn client_kill_spares_the_link_to_the_primary() {
    let Some((primary, replica)) = pair(&[]) else { return };
    let mut client = replica.connect();
    wait_until("those who have gone are gone", || {
        client.run("CLIENT LIST TYPE normal").to_string().matches("flags=").count() == 1
    });
    assert_eq!(client.run("CLIENT KILL TYPE normal").as_int(), Some(0));
    let listed = client.run("CLIENT LIST TYPE master").to_string();
    assert!(listed.contains("flags=M"), "{listed}");
    assert!(!client.run("CLIENT LIST TYPE normal").to_string().contains("flags=M"));
    // From the reply on the link is down, or new: a client that waits for a link does not see the former
    // link.
    for syncs in 1..20 {
        assert_eq!(client.run("CLIENT KILL TYPE master").as_int(), Some(1));
        let info = client.run("INFO replication").to_string();
        let had = |line: &str| info.contains(line);
        let is_new = had(&format!("master_partial_syncs:{syncs}"));
        assert!(is_new || had("master_link_status:down"), "{info}");
        wait_until("it comes back", || replica.info("master_partial_syncs") == syncs.to_string());
        await_link(&replica);
    }
    primary.connect().run("SET k v");
    await_equal(&primary, &replica);
}

/// Otherwise Sentinel would add the time before, and think that the data are so old.
#[test]
fn the_down_time_of_a_link_starts_with_its_primary() {
    let (primary, replica) = (start(&[]), start(&[]));
    follow(&replica, primary.port());
    await_link(&replica);
    let mut client = replica.connect();
    client.run("REPLICAOF NO ONE");
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    client.run("REPLICAOF 127.0.0.1 1");
    assert_eq!(replica.info("master_link_down_since_seconds"), "-1");
}

/// A key with expiry that a client wrote to a writable replica expires by the replica's own clock, since the
/// primary does not know it. Keys of the primary expire by its stream, as ever.
#[test]
fn a_replicas_own_keys_expire() {
    for log in ["no", "yes"] {
        let options = ["--replica-read-only", "no", "--appendonly", log, "--appendfsync", "always"];
        let Some((primary, mut replica)) = pair(&options) else { return };
        let (mut client, mut other) = (replica.connect(), primary.connect());
        assert_eq!(other.run("DEBUG SET-ACTIVE-EXPIRE 0").to_string(), "OK");
        other.run("SET theirs v PX 150");
        wait_until("it has come", || client.run("DBSIZE").as_int() == Some(1));
        wait_until("the log is on", || replica.info("aof_enabled") == if log == "yes" { "1" } else { "0" });
        client.run("SELECT 5");
        for line in
            ["SET own v PX 150", "SET later v", "PEXPIRE later 150", "SET stays v EX 100", "SADD set a"]
        {
            assert!(!client.run(line).is_error(), "{line}");
        }
        client.run("SET forgets v PX 150");
        client.run("PERSIST forgets");
        assert_eq!(replica.info("slave_expires_tracked_keys"), "4");
        wait_until("they are gone", || client.run("DBSIZE").as_int() == Some(3));
        assert_eq!(replica.info("expired_keys"), "2");
        wait_until("no other is to go", || replica.info("slave_expires_tracked_keys") == "1");
        client.run("SELECT 0");
        assert_eq!(client.run("DBSIZE").as_int(), Some(1), "hidden, and there");
        assert_eq!(client.run("GET theirs").to_string(), "(nil)");
        if log == "yes" {
            replica.kill();
            replica.start_again();
            let mut client = replica.connect();
            client.run("SELECT 5");
            assert_eq!(client.run("DBSIZE").as_int(), Some(3), "the log has it, too");
        } else {
            client.run("REPLICAOF NO ONE");
            assert_eq!(replica.info("slave_expires_tracked_keys"), "0");
            wait_until("all are its own now", || client.run("DBSIZE").as_int() == Some(0));
        }
    }
}
