//! Data of every type at many sizes: in bases of commands, read by other servers, and in snapshots.

use std::fs;

use evenkeel_testkit::digest::{Digest, difference, digest};
use evenkeel_testkit::transcript::target;
use evenkeel_testkit::{Client, Program, Reference, Server};

use super::exchange::{ARGS, FOLDER, PLAIN, copy_folder, rewrite};
use crate::{program, wait_until};

/// Everything that a base of commands can express, of every type at many sizes.
#[test]
fn a_base_of_commands_is_complete() {
    let mut server = Server::start(&program(), &[ARGS, PLAIN].concat());
    fill(&mut server.connect());
    let guard = contents(&server);
    rewrite(&server);
    let base = server.folder().join(FOLDER).join("appendonly.aof.2.base.aof");
    assert!(fs::read(&base).expect("the base has this name").starts_with(b"*2\r\n$6\r\nSELECT\r\n"));
    assert!(server.stop().success());
    server.start_again();
    assert_same(&server, &guard, "ourselves");
    for reference in [Reference::Valkey, Reference::Redis] {
        let Some(program) = Program::oracle(reference) else { continue };
        let mut guard = guard.clone();
        if reference == Reference::Redis {
            // Redis has no such type.
            guard.remove(&(0, b"timed".to_vec())).expect("it is there");
            server.connect().run("DEL timed");
            rewrite(&server);
        }
        let mut other = Server::start(&program, ARGS);
        other.kill();
        copy_folder(server.folder(), other.folder());
        other.start_again();
        assert_same(&other, &guard, &format!("{reference:?}"));
    }
}

/// Snapshots of whole servers, in both directions.
#[test]
fn snapshots_are_complete() {
    const LIBRARY: &str = "#!lua name=l\nredis.register_function('f', function() return 7 end)";
    let saved = |program: &Program| {
        let server = Server::start(program, &["--save", ""]);
        let mut client = server.connect();
        fill(&mut client);
        if program.reference() == Some(Reference::Redis) {
            assert!(
                client.run("HPEXPIREAT timed 1 FIELDS 1 a").is_error(),
                "it has learnt that: fill it, too"
            );
        }
        assert_eq!(client.call(&["FUNCTION", "LOAD", LIBRARY]).to_string(), "\"l\"");
        server
    };
    let load = |server: &Server, by: &Program, whose: &str| {
        let guard = contents(server);
        assert_eq!(server.connect().run("SAVE").to_string(), "OK");
        let mut other = Server::start(by, &["--save", ""]);
        other.kill();
        fs::copy(server.folder().join("dump.rdb"), other.folder().join("dump.rdb"))
            .expect("the folder is ours");
        other.start_again();
        assert_same(&other, &guard, whose);
        assert_eq!(other.connect().run("FCALL f 0").as_int(), Some(7), "{whose}");
    };
    let ours = saved(&program());
    load(&ours, &program(), "ours by us");
    for reference in [Reference::Valkey, Reference::Redis] {
        let Some(other) = Program::oracle(reference) else { continue };
        if reference == Reference::Redis {
            assert_eq!(ours.connect().run("DEL timed").as_int(), Some(1)); // Redis has no such type
        }
        load(&ours, &other, &format!("ours by {reference:?}"));
        load(&saved(&other), &program(), &format!("{reference:?}'s by us"));
    }
}

/// What only Redis 8.6 and later know of streams: in bases of commands, in files, and in full syncs.
#[test]
fn newer_parts_of_streams_are_kept() {
    for form in [PLAIN, &[]] {
        let mut server = Server::start(&program(), &[ARGS, form].concat());
        let mut client = server.connect();
        for line in [
            "XADD s IDMP p i * a 1",
            "XADD s IDMP p j * a 2",
            "XADD s IDMPAUTO q * a 3",
            "XADD s IDMP p i * a 4",
            "XCFGSET empty IDMP-MAXSIZE 7",
            "XADD t 1-1 a 1",
            "XADD t 2-1 a 1",
            "XADD t 3-1 a 1",
            "XCFGSET t IDMP-DURATION 86400 IDMP-MAXSIZE 7",
            "XGROUP CREATE t g 0",
            "XREADGROUP GROUP g c STREAMS t >",
            "XNACK t g FAIL IDS 2 3-1 1-1",
            "XNACK t g FATAL IDS 1 1-1",
            "XDEL t 3-1",
        ] {
            client.run(line);
        }
        // A rewrite to commands forgets how many entries were sent again.
        let all = |server: &Server| comparable(&contents(server));
        let guard = all(&server);
        rewrite(&server);
        assert!(server.stop().success());
        server.start_again();
        assert_eq!(all(&server), guard, "{form:?}");
        client = server.connect();
        client.run("XADD s IDMP p i * a 5");
        assert_eq!(client.run("XLEN s").to_string(), ":3");
        let replica = Server::start(&program(), ARGS);
        replica.connect().run(&format!("REPLICAOF 127.0.0.1 {}", server.port()));
        wait_until("it follows", || replica.info("master_link_status") == "up");
        assert_eq!(all(&replica), all(&server), "{form:?}");
        for line in ["XADD s IDMP p i * a 6", "XADD s IDMP p k * a 7", "XNACK t g SILENT IDS 1 2-1"] {
            client.run(line);
        }
        wait_until("the replica has it all", || all(&replica) == all(&server));
        let claim = "XREADGROUP GROUP g d CLAIM 0 COUNT 1 STREAMS t >";
        assert!(client.run(claim).to_string().contains("1-1"), "the first that was released");
    }
}

/// Without the number of entries that were sent again.
fn comparable(digest: &Digest) -> String {
    let text = format!("{digest:?}");
    let parts = text.split("iids-duplicates").enumerate();
    parts.map(|(at, part)| part.split_at(if at == 0 { 0 } else { part.find(',').unwrap_or(0) }).1).collect()
}

fn contents(server: &Server) -> Digest {
    digest(&mut target(server))
}

fn assert_same(server: &Server, guard: &Digest, whose: &str) {
    assert_eq!(difference(&contents(server), guard), None, "{whose}");
}

fn fill(client: &mut Client) {
    for count in [1, 2, 999, 1_000, 1_001, 4_100] {
        for n in 0..count {
            client.run(&format!("RPUSH list{count} {n} element{n}"));
            client.run(&format!("SADD set{count} member{n}"));
            client.run(&format!("SADD ints{count} {n}"));
            client.run(&format!("ZADD zset{count} {n}.25 member{n}"));
            client.run(&format!("HSET hash{count} field{n} value{n}"));
            client.run(&format!("XADD stream{count} {}-{n} field{n} value same {n}", n + 1));
        }
    }
    for line in [
        "SET string 1",
        "SET timed-string x PXAT 99999999999999",
        "SET empty ''",
        "SETRANGE long 300000 x",
        "ZADD odd inf a -inf b 1e300 c -0.5 d",
        "HSET timed a 1 b 2 c 3",
        "SELECT 9",
        "SET other-database 1",
        // A group with minimal data, idle consumers, deleted entries at both ends and in between.
        "XADD s 5-1 a 1",
        "XADD s 5-2 a 1 b 2",
        "XADD s 6-0 a 1",
        "XADD s 7-0 a 1",
        "XADD s 9-9 a 1",
        "XGROUP CREATE s g 0",
        "XGROUP CREATE s late 6-0 ENTRIESREAD 2",
        "XGROUP CREATECONSUMER s g idle",
        "XREADGROUP GROUP g alice COUNT 2 STREAMS s >",
        "XREADGROUP GROUP g bob STREAMS s >",
        "XREADGROUP GROUP late alice STREAMS s >",
        "XDEL s 5-1 6-0 9-9",
        "XCLAIM s g bob 0 5-2 TIME 12345 RETRYCOUNT 7 JUSTID",
        "XADD gone 3-3 a 1",
        "XGROUP CREATE gone g 0",
        "XREADGROUP GROUP g alice STREAMS gone >",
        "XDEL gone 3-3",
        // The missing entries were trimmed; none was deleted.
        "XADD q 1-0 a 1",
        "XADD q 2-0 a 1",
        "XADD q 3-0 a 1",
        "XADD q 4-0 a 1",
        "XGROUP CREATE q g 0",
        "XREADGROUP GROUP g alice COUNT 3 STREAMS q >",
        "XGROUP CREATE q h 1-0 ENTRIESREAD 1",
        "XTRIM q MAXLEN 2",
        "XGROUP CREATE fresh g 0 MKSTREAM",
        "XADD trimmed 1-1 a 1",
        "XADD trimmed MAXLEN 1 2-1 a 1",
        "SELECT 0",
    ] {
        let reply = client.run(line);
        assert!(!reply.is_error(), "{line}: {reply}");
    }
    client.run("HPEXPIREAT timed 99999999999999 FIELDS 2 a c"); // if the server has the command
}
