//! Safety of writes: WAIT, `min-replicas-to-write`, and the replicas' data when the primary ends.

use std::time::{Duration, Instant};

use evenkeel_testkit::{Program, Reference, Server};

use super::{
    PRIMARY, REPLICA, attach, await_caught_up, await_link, freeze, number, ok, primary, references, thaw,
    wait_until,
};
use crate::start;

#[test]
fn wait_returns_once_replicas_have_the_write() {
    let server = primary(&[]);
    let replicas = references();
    replicas.iter().for_each(|replica| attach(replica, &server));
    let count = replicas.len() as i64;
    let mut client = server.connect();
    wait_until("all are online", || client.run(&format!("WAIT {count} 1")).as_int() == Some(count));
    let began = Instant::now();
    for n in 0..100 {
        ok(&mut client, &format!("SET k {n}"));
        assert_eq!(client.run(&format!("WAIT {count} 10000")).as_int(), Some(count));
    }
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "it does not take the replicas' next word by themselves"
    );
    for replica in &replicas {
        assert_eq!(replica.connect().run("GET k").to_string(), "\"99\"");
    }
    // More replicas than there are: waits for the given time.
    let began = Instant::now();
    ok(&mut client, "SET k last");
    assert_eq!(client.run(&format!("WAIT {} 200", count + 1)).as_int(), Some(count));
    assert!(began.elapsed() >= Duration::from_millis(200));
    // Pipelined together.
    for n in 0..50 {
        client.send(&["INCR", "n"]).expect("it reads");
        client.send(&["WAIT", "1", "10000"]).expect("it reads");
        assert_eq!(client.read().as_int(), Some(n + 1));
        assert!(count == 0 || client.read().as_int().is_some_and(|count| count >= 1));
    }
}

/// A pool may write over another connection: as in Redis, WAIT covers all clients' writes.
#[test]
fn wait_covers_the_writes_of_all_clients() {
    for server in [primary(&[])]
        .into_iter()
        .chain(Program::oracle(Reference::Redis).map(|it| Server::start(&it, PRIMARY)))
    {
        let replica = primary(&[]);
        attach(&replica, &server);
        let (mut writer, mut other) = (server.connect(), server.connect());
        ok(&mut writer, "SET k v");
        assert_eq!(writer.run("WAIT 1 10000").as_int(), Some(1));
        freeze(&replica);
        ok(&mut writer, "SET k w");
        assert_eq!(other.run("PING").to_string(), "PONG");
        assert_eq!(other.run("WAIT 1 100").as_int(), Some(0));
        thaw(&replica);
        assert_eq!(other.run("WAIT 1 10000").as_int(), Some(1));
    }
}

#[test]
fn waitaof_returns_once_a_replica_has_synced_the_write() {
    let log = ["--appendonly", "yes"];
    let valkey =
        Program::oracle(Reference::Valkey).map(|program| Server::start(&program, &[PRIMARY, &log].concat()));
    for server in [primary(&log)].into_iter().chain(valkey) {
        let mut client = server.connect();
        (0..60).for_each(|n| ok(&mut client, &format!("SET {n} v")));
        let replica = primary(&[&log[..], &["--rdb-key-save-delay", "100000"]].concat());
        attach(&replica, &server);
        ok(&mut client, "SET k v");
        assert_eq!(client.run("WAITAOF 1 0 10000").to_string(), "[:1, :0]");
        let reply = client.run("WAITAOF 0 1 1500").to_string();
        if replica.info("aof_rewrite_in_progress") == "1" {
            assert_eq!(reply, "[:1, :0]", "what it has is on no disk before its base is whole");
        }
        assert_eq!(client.run("WAITAOF 1 1 30000").to_string(), "[:1, :1]");
        // The replica acknowledges as soon as its disk has the write, not only with its next message.
        ok(&mut replica.connect(), "CONFIG SET appendfsync always");
        let began = Instant::now();
        for n in 0..30 {
            ok(&mut client, &format!("SET k {n}"));
            assert!(client.run("WAITAOF 0 1 10000").to_string().ends_with(", :1]"));
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
}

#[test]
fn wait_blocks_for_a_silent_replica() {
    let Some(program) = Program::oracle(Reference::Redis) else { return };
    let (server, replica) = (primary(&[]), Server::start(&program, REPLICA));
    attach(&replica, &server);
    let mut client = server.connect();
    ok(&mut client, "SET a 1");
    assert_eq!(client.run("WAIT 1 10000").as_int(), Some(1));
    freeze(&replica);
    ok(&mut client, "SET b 1");
    assert_eq!(client.run("WAIT 1 100").as_int(), Some(0));
    client.send(&["WAIT", "1", "0"]).expect("it reads");
    wait_until("it waits", || server.info("blocked_clients") == "1");
    thaw(&replica);
    assert_eq!(client.read().as_int(), Some(1));
}

#[test]
fn writes_need_replicas_that_answer() {
    let Some(program) = Program::oracle(Reference::Redis) else { return };
    let server = primary(&["--min-replicas-to-write", "1", "--min-replicas-max-lag", "2"]);
    let replica = Server::start(&program, REPLICA);
    let mut client = server.connect();
    let refused = "-NOREPLICAS Not enough good replicas to write.";
    assert_eq!(client.run("SET k v").to_string(), refused);
    attach(&replica, &server);
    wait_until("writes go on", || !client.run("SET k v").is_error());
    assert_eq!(server.info("min_slaves_good_slaves"), "1");
    freeze(&replica);
    wait_until("writes are refused", || client.run("SET k v").is_error());
    assert_eq!(client.run("SET k v").to_string(), refused);
    thaw(&replica);
    wait_until("writes go on again", || !client.run("SET k v").is_error());
}

/// A replica silent for `repl-timeout` is closed.
#[test]
fn a_silent_replica_is_closed() {
    let Some(program) = Program::oracle(Reference::Redis) else { return };
    let (server, replica) = (primary(&["--repl-timeout", "2"]), Server::start(&program, REPLICA));
    attach(&replica, &server);
    freeze(&replica);
    wait_until("it is given up", || server.info("connected_slaves") == "0");
    thaw(&replica);
    wait_until("it comes again", || number(&server, "sync_partial_ok") == 1);
}

#[test]
fn a_shutdown_hands_all_writes_to_replicas() {
    for replica in references() {
        let mut server = primary(&[]);
        attach(&replica, &server);
        let mut client = server.connect();
        let sets: Vec<Vec<String>> =
            (0..20_000).map(|n| vec!["SET".into(), format!("key:{n}"), "v".repeat(300)]).collect();
        client.pipeline(&sets);
        assert!(server.stop().success());
        assert_eq!(replica.connect().run("DBSIZE").as_int(), Some(20_000));
    }
}

/// A replica has a journal of its own, whose offsets its replicas do not know.
#[test]
fn the_shutdown_of_a_replica_waits_for_its_replicas() {
    let first = primary(&[]);
    let mut middle = primary(&["--appendonly", "yes", "--shutdown-timeout", "40"]);
    let last = primary(&[]);
    attach(&middle, &first);
    attach(&last, &middle);
    let mut client = first.connect();
    (0..20).for_each(|n| ok(&mut client, &format!("SET key:{n} v")));
    wait_until("its log is whole", || middle.log().matches("AOF rewrite finished successfully").count() == 2);
    await_caught_up(&first, &last);
    let began = Instant::now();
    assert!(middle.stop().success());
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(middle.log().contains("1 of 1 replicas are in sync when shutting down."), "{}", middle.log());
}

/// Whether INFO reports how long the shutdown will wait for replicas.
fn reports_remaining_time(server: &Server) -> bool {
    server.connect().run("INFO server").to_string().contains("shutdown_in_milliseconds:")
}

/// A second SHUTDOWN waits as well, and an abort answers all of them.
#[test]
fn a_shutdown_that_waits_for_replicas_can_be_aborted() {
    let Some(program) = Program::oracle(Reference::Redis) else { return };
    for threads in ["1", "2"] {
        let (server, replica) =
            (primary(&["--shutdown-timeout", "600", "--threads", threads]), Server::start(&program, REPLICA));
        attach(&replica, &server);
        let mut client = server.connect();
        ok(&mut client, "SET k 1");
        assert_eq!(client.run("WAIT 1 10000").as_int(), Some(1));
        freeze(&replica);
        assert_eq!(client.run("SHUTDOWN ABORT").to_string(), "-ERR No shutdown in progress.");
        ok(&mut client, "INCR k");
        ok(&mut client, "CONFIG SET rdb-key-save-delay 1000000");
        ok(&mut client, "BGSAVE");
        let mut askers = [(); 3].map(|()| server.connect());
        for (asker, words) in
            askers.iter_mut().zip([&["SHUTDOWN"][..], &["SHUTDOWN", "NOSAVE"], &["SHUTDOWN", "NOW"]])
        {
            asker.send(words).expect("it reads");
            wait_until("replicas are waited for", || reports_remaining_time(&server));
        }
        let mut writer = server.connect();
        writer.send(&["INCR", "k"]).expect("it reads");
        wait_until("all wait", || number(&server, "blocked_clients") >= 3);
        assert!(number(&server, "shutdown_in_milliseconds") > 500_000);
        assert_eq!(client.run("SHUTDOWN ABORT NOW").to_string(), "-ERR syntax error");
        assert_eq!(client.run("SHUTDOWN ABORT").to_string(), "OK");
        for asker in &mut askers {
            assert_eq!(asker.read().to_string(), "-ERR Errors trying to SHUTDOWN. Check logs.");
            assert_eq!(asker.run("PING").to_string(), "PONG");
        }
        assert_eq!(writer.read().as_int(), Some(3), "writes go on");
        assert!(server.info("blocked_clients") == "0" && !reports_remaining_time(&server));
        assert_eq!(client.run("SHUTDOWN ABORT").to_string(), "-ERR No shutdown in progress.");
        wait_until("the log has it", || server.log().contains("Shutdown manually aborted."));
        ok(&mut client, "CONFIG SET rdb-key-save-delay 0");
        wait_until("it is not given up", || server.info("rdb_saves") == "1");
        thaw(&replica);
        assert_eq!(client.run("WAIT 1 10000").as_int(), Some(1));
    }
}

#[test]
fn a_shutdown_names_the_replicas_that_lag_behind() {
    let Some(program) = Program::oracle(Reference::Redis) else { return };
    let (mut server, replica) = (primary(&["--shutdown-timeout", "1"]), Server::start(&program, REPLICA));
    attach(&replica, &server);
    let mut client = server.connect();
    ok(&mut client, "SET k 1");
    assert_eq!(client.run("WAIT 1 10000").as_int(), Some(1));
    freeze(&replica);
    ok(&mut client, "INCR k");
    assert!(server.stop().success());
    let log = server.log();
    assert!(log.contains(&format!("Lagging replica 127.0.0.1:{} reported offset ", replica.port())), "{log}");
    assert!(log.contains("0 of 1 replicas are in sync when shutting down."), "{log}");
    thaw(&replica);
}

/// A new append-only file does not have the data before its first base is written.
#[test]
fn a_shutdown_before_the_first_base_is_refused() {
    let mut server = primary(&["--rdb-key-save-delay", "30000000", "--save", ""]);
    let mut client = server.connect();
    ok(&mut client, "SET k v");
    ok(&mut client, "CONFIG SET appendonly yes");
    wait_until("it is being written", || server.info("aof_rewrite_in_progress") == "1");
    let refusal = client.run("SHUTDOWN").to_string();
    let reason = "Check logs. The initial append-only file is not complete.";
    assert!(refusal.contains(reason), "{refusal}");
    server.signal(15);
    wait_until("the log says why", || server.log().matches("Writing initial AOF, can't exit").count() == 2);
    ok(&mut client, "SET k w");
    client.send(&["SHUTDOWN", "FORCE"]).expect("it reads");
    wait_until("it ends", || !server.is_alive());
}

#[test]
fn replicas_are_listed_as_such() {
    let Some(program) = Program::oracle(Reference::Redis) else { return };
    let args = [REPLICA, &["--replica-announce-ip", "far.away", "--replica-announce-port", "7"]].concat();
    for (near, far) in
        [(primary(&[]), Server::start(&program, &args)), (Server::start(&program, REPLICA), start(&args))]
    {
        are_listed(&near, &far);
    }
}

/// `far` announces another address than its own.
fn are_listed(near: &Server, far: &Server) {
    let server = primary(&[]);
    attach(near, &server);
    attach(far, &server);
    await_link(far);
    let mut client = server.connect();
    ok(&mut client, "SET k v");
    wait_until("both say what they have", || {
        client.run("WAIT 2 0");
        client.run("ROLE").to_string().contains("far.away")
    });
    let offset = server.info("master_repl_offset");
    let near = near.port().to_string();
    let role = client.run("ROLE").to_string();
    assert!(role.starts_with("[\"master\", :") && role.contains(&near), "{role} {offset}");
    assert!(role.contains("[\"far.away\", \"7\", "), "{role}");
    let line = server.info("slave1");
    assert!(line.starts_with("ip=far.away,port=7,state=online,offset="), "{line}");
    let listed = client.run("CLIENT LIST TYPE replica").to_string();
    assert_eq!(listed.matches("flags=S").count(), 2, "{listed}");
    assert!(!client.run("CLIENT LIST TYPE normal").to_string().contains("flags=S"));
    assert_eq!(client.run("CLIENT KILL TYPE slave").as_int(), Some(2));
}
