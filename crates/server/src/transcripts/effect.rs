//! Transcripts of effect commands.

use crate::testing::World;
use crate::testing::replay::Recorder;
use evenkeel_testkit::differential::{Plan, Sent, commands};
use evenkeel_testkit::digest::{Digest, difference, digest};
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Program, Random, Reference, Server, Target, transcript, words};
use std::time::Duration;

/// The time at which commands run here.
const NOW_MS: u64 = 1_000_000;

/// Runs commands, and compares the journal of the last. Several expected commands are a single transaction.
#[track_caller]
fn check(commands: &[&str], expected: &[&str]) {
    let (mut world, mut timeless) = (World::new(), World::timeless());
    world.now_ms = NOW_MS;
    let mut recorder = world.record();
    let (last, first) = commands.split_last().expect("one at least");
    run(&mut world, first);
    recorder.take(&world);
    run(&mut world, &[last]);
    let expected = match expected {
        [_, _, ..] => [&["MULTI"], expected, &["EXEC"]].concat(),
        _ => expected.to_vec(),
    };
    assert_eq!(recorder.take(&world), expected, "{last}");
    timeless.replay(&recorder.bytes);
    assert_eq!(difference(&world.digest(), &timeless.digest()), None, "{last}");
}

/// `name> command` runs on another connection; `~50` lets milliseconds pass.
fn run(world: &mut World, lines: &[&str]) {
    for line in lines {
        if let Some(ms) = line.strip_prefix('~') {
            world.pass(Duration::from_millis(ms.parse().expect("milliseconds")));
            continue;
        }
        let (name, line) = line.split_once("> ").unwrap_or(("", line));
        world.type_in(name, line);
        while world.receive(name).is_ok() {}
    }
}

/// The reader may have other defaults.
#[test]
fn the_configuration_of_new_streams_is_logged() {
    let added =
        ["XADD s 1000000-0 a 1", "XCFGSET s IDMP-DURATION 7 IDMP-MAXSIZE 3", "XIDMPRECORD s p i 1000000-0"];
    let settings = "CONFIG SET stream-idmp-duration 7 stream-idmp-maxsize 3";
    check(&[settings, "XADD s IDMP p i * a 1"], &added);
    let again = "XADD s IDMP p j 1000000-1 b 2";
    check(&[settings, "XADD s IDMP p i * a 1", "XADD s IDMP p j * b 2"], &[again]);
    check(
        &[settings, "XADD s * a 1", "XCFGSET s IDMP-MAXSIZE 4"],
        &["XCFGSET s IDMP-DURATION 7 IDMP-MAXSIZE 4"],
    );
    check(&["XADD s IDMP p i * a 1"], &["XADD s IDMP p i 1000000-0 a 1"]);
}

/// Arrays have no form that older servers know: their commands are logged as they came.
#[test]
fn commands_on_arrays_are_logged_as_themselves() {
    let filled = ["ARSET a 5 x y z", "ARSEEK a 20", "ARINSERT a i j"];
    for line in [
        "ARMSET a 1 b 9 c",
        "ARDEL a 5",
        "ARDELRANGE a 0 5 9 7",
        "ARRING a 3 n m",
        "ARSEEK a 0",
        "ARINSERT a k",
    ] {
        check(&[&filled[..], &[line]].concat(), &[line]);
    }
    check(&[&filled[..], &["ARDELRANGE a 0 99"]].concat(), &["ARDELRANGE a 0 99"]);
    check(&["ARDEL a 5"], &[]);
}

/// A key that has expired and is still there is gone for replicas, too, before a script reads it.
#[test]
fn scripts_that_read_expired_keys() {
    let script = |command: &str| {
        format!("EVAL \"return redis.call('{command}', KEYS[1], KEYS[2], KEYS[3])\" 3 {{t}}d {{t}}a {{t}}b")
    };
    for command in ["SUNIONSTORE", "SINTERSTORE", "SDIFFSTORE", "PFMERGE"] {
        let add = if command == "PFMERGE" { "PFADD" } else { "SADD" };
        let (a, b) = (format!("{add} {{t}}a 1 2"), format!("{add} {{t}}b 2"));
        let line = script(command);
        let mut world = World::new();
        world.now_ms = NOW_MS;
        let (mut timeless, mut recorder) = (World::timeless(), world.record());
        run(&mut world, &[&a, &b, "PEXPIRE {t}a 10", "~50", &line]);
        let taken = recorder.take(&world);
        assert!(taken.contains(&"UNLINK {t}a".to_string()), "{command}: {taken:?}");
        timeless.replay(&recorder.bytes);
        assert_eq!(difference(&world.digest(), &timeless.digest()), None, "{command}");
    }
}

#[test]
fn strings() {
    check(&["SET k v"], &["SET k v"]);
    check(&["SET k v EX 10"], &["SET k v PXAT 1010000"]);
    check(&["SET k v pxat 1010000"], &["SET k v pxat 1010000"]);
    check(&["SET k v", "SET k w XX KEEPTTL GET"], &["SET k w KEEPTTL"]);
    check(&["SET k v", "SET k w NX"], &[]);
    check(&["SET k v", "SET k w IFEQ v"], &["SET k w"]);
    check(&["SETEX k 10 v"], &["SET k v PXAT 1010000"]);
    check(&["PSETEX k 10 v"], &["SET k v PXAT 1000010"]);
    check(&["SET k v", "GETSET k w"], &["SET k w"]);
    check(&["SET k v", "GETDEL k"], &["DEL k"]);
    check(&["GETDEL k"], &[]);
    check(&["SET k v", "GETEX k"], &[]);
    check(&["SET k v", "GETEX k EX 1"], &["PEXPIREAT k 1001000"]);
    check(&["SET k v", "GETEX k EXAT 1"], &["UNLINK k"]);
    check(&["SET k v EX 1", "GETEX k PERSIST"], &["PERSIST k"]);
    check(&["SET k v", "DELIFEQ k v"], &["DEL k"]);
    check(&["MSET a ab b a", "BITOP DIFF r a b"], &["SET r \"\\x00b\""]);
    check(&["SET r v", "BITOP ONE r none"], &["DEL r"]);
    check(&["SET k v", "DELEX k IFNE x"], &["DEL k"]);
    check(&["SET k v", "DELEX k IFEQ x"], &[]);
    check(&["SET k v", "SET k w IFDNE 1"], &["SET k w"]);
    check(&["MSETEX 2 a 1 b 2 EX 1"], &["MSETEX 2 a 1 b 2 PXAT 1001000"]);
    check(&["MSETEX 2 a 1 b 2 NX"], &["MSETEX 2 a 1 b 2"]);
    check(&["SET a 1 EX 9", "MSETEX 2 a 2 b 2 KEEPTTL"], &["MSETEX 2 a 2 b 2 KEEPTTL"]);
    check(&["MSETEX 1 a 1 NX pxat 9000000"], &["MSETEX 1 a 1 pxat 9000000"]);
    check(&["MSETEX 2 a 1 b 2 XX"], &[]);
    check(&["INCREX n"], &["SET n 1 KEEPTTL"]);
    check(&["INCREX n BYFLOAT 0.5 EX 1"], &["SET n 0.5 PXAT 1001000"]);
    check(&["SET n 10 EX 9", "INCREX n BYINT 5 UBOUND 12 SATURATE PERSIST"], &["SET n 12"]);
    check(&["SET n 10 EX 9", "INCREX n EX 1 ENX"], &["SET n 11 KEEPTTL"]);
    check(&["SET n 10", "INCREX n UBOUND 9 EX 1"], &[]);
    check(&["SET n 10", "INCREX n EXAT 1"], &["DEL n"]);
    check(&["INCREX n EXAT 1"], &[]);
    check(&["INCRBYFLOAT k 1.5"], &["SET k 1.5 KEEPTTL"]);
    check(&["incrby k 5"], &["incrby k 5"]);
    check(&["SET k v PX 5", "~9", "SETNX k w"], &["UNLINK k", "SETNX k w"]);
    check(&["SET k v PX 5", "~9", "GET k"], &["UNLINK k"]);
}

#[test]
fn deadlines() {
    check(&["SET k v", "EXPIRE k 10"], &["PEXPIREAT k 1010000"]);
    check(&["SET k v", "EXPIRE k 10 NX", "EXPIRE k 20 NX"], &[]);
    check(&["SET k v", "EXPIREAT k 1000"], &["UNLINK k"]);
    check(&["SET k v", "PEXPIRE k -1"], &["UNLINK k"]);
    check(&["EXPIRE k -1"], &[]);
    check(&["SET k v EX 9", "PERSIST k"], &["PERSIST k"]);
}

#[test]
fn lists() {
    let filled = "RPUSH l a b c d";
    check(&[filled, "LPOP l 2"], &["LPOP l 2"]);
    check(&[filled, "BRPOP nosuch l 0"], &["RPOP l"]);
    check(&["b> BLPOP l m 0", filled], &[filled, "LPOP l"]);
    check(&[filled, "LMPOP 2 nosuch l RIGHT COUNT 3"], &["RPOP l 3"]);
    check(&["b> BLMPOP 0 1 l LEFT COUNT 9", filled], &[filled, "LPOP l 4"]);
    check(&[filled, "BLMOVE l m LEFT RIGHT 0"], &["LMOVE l m LEFT RIGHT"]);
    check(&["b> BRPOPLPUSH l m 0", "c> BLPOP m 0", filled], &[filled, "RPOPLPUSH l m", "LPOP m"]);
    check(&["BLPOP l 0"], &[]);
    check(&[filled, "LMOVEM l m LEFT RIGHT COUNT 2 OBO"], &["RPUSH m a b", "LPOP l 2"]);
    check(&[filled, "LMOVEM l m RIGHT LEFT COUNT 9 BULK"], &["LPUSH m d c b a", "RPOP l 4"]);
    check(&[filled, "LMOVEM l m LEFT LEFT"], &["LPUSH m a", "LPOP l 1"]);
    check(&[filled, "LMOVEM l m LEFT LEFT EXACTLY 5 OBO"], &[]);
    check(&[filled, "LMOVEM l l LEFT RIGHT COUNT 3 BULK"], &["RPUSH l a b c", "LPOP l 3"]);
    check(&[filled, "LMOVEM l l LEFT LEFT COUNT 3 BULK"], &["LMOVE l l LEFT LEFT"]);
    check(&[filled, "LMOVEM l l LEFT LEFT COUNT 2 OBO"], &["LSET l 0 b", "LSET l 1 a"]);
    check(&[filled, "LMOVEM l l RIGHT RIGHT COUNT 2 OBO"], &["LSET l -2 d", "LSET l -1 c"]);
    check(&["b> BLMOVEM l m LEFT LEFT 0 EXACTLY 3 OBO", filled], &[filled, "LPUSH m a b c", "LPOP l 3"]);
    check(&[filled, "LTRIM l 0 -1"], &[]);
}

#[test]
fn sets_and_sorted_sets() {
    check(&["SADD s a", "SPOP s"], &["SREM s a"]);
    check(&["SADD s a b", "SPOP s 2"], &["UNLINK s"]);
    check(&["SADD s a b", "SREM s a b", "SPOP s 2"], &[]);
    check(&["SADD s a", "SADD s a"], &[]);
    let filled = "ZADD z 1 a 2 b 3 c";
    check(&[filled, "ZUNIONSTORE d 2 z z AGGREGATE COUNT"], &["DEL d", "ZADD d 2 a 2 b 2 c"]);
    check(&[filled, "ZINTERSTORE d 1 none AGGREGATE COUNT"], &[]);
    // Where scores differ, equal sets may disagree on a range of members.
    let mixed = "ZADD z 1 a 2 c 3 b 4 d";
    check(&[mixed, "ZREMRANGEBYLEX z [a [c"], &["ZREM z a c b"]);
    check(&[mixed, "ZREMRANGEBYLEX z - +"], &["DEL z"]);
    check(&[mixed, "ZREMRANGEBYLEX z [x +"], &[]);
    check(&[mixed, "ZRANGESTORE z z [b + BYLEX"], &["DEL z", "ZADD z 2 c 3 b 4 d"]);
    check(&[mixed, "SET d v", "ZRANGESTORE d z [x + BYLEX"], &["DEL d"]);
    check(&[mixed, "ZRANGESTORE d z [x + BYLEX"], &[]);
    check(&[mixed, "ZRANGESTORE d z 1 2"], &["ZRANGESTORE d z 1 2"]);
    let alike = "ZADD z 1 a 1 b 1 c";
    check(&[alike, "ZREMRANGEBYLEX z [b +"], &["ZREMRANGEBYLEX z [b +"]);
    check(&[alike, "ZRANGESTORE d z [b + BYLEX"], &["ZRANGESTORE d z [b + BYLEX"]);
    check(&["GEOADD g XX 13 38 a"], &[]);
    check(&[filled, "ZMPOP 2 nosuch z MAX COUNT 2"], &["ZPOPMAX z 2"]);
    check(&[filled, "BZPOPMIN nosuch z 0"], &["ZPOPMIN z 1"]);
    check(&["b> BZMPOP 0 1 z MIN COUNT 2", filled], &[filled, "ZPOPMIN z 2"]);
    check(&[filled, "ZMPOP 2 nosuch z MIN COUNT 10"], &["ZPOPMIN z 3"]);
    check(&["GEOADD g 13 38 a", "GEOSEARCHSTORE d nosuch FROMLONLAT 13 38 BYRADIUS 9 km"], &[]);
    check(
        &["GEOADD g 13 38 a", "GEOSEARCHSTORE d g FROMLONLAT 13 38 BYRADIUS 9 km"],
        &["DEL d", "ZADD d 3479065152021743 a"],
    );
    check(&["RPUSH l 3 1 2", "SORT l STORE d"], &["DEL d", "RPUSH d 1 2 3"]);
    check(
        &["MSET w1 9 w2 5 w3 7", "RPUSH l 3 1 2", "SORT l BY w* GET # GET w* STORE l"],
        &["DEL l", "RPUSH l 2 5 3 7 1 9"],
    );
    check(&["SET d v", "SORT nosuch STORE d"], &["DEL d"]);
    check(&["SORT nosuch STORE d"], &[]);
}

#[test]
fn hashes() {
    let filled = "HSET h a 1 b 2 c 3";
    check(&[filled, "HEXPIRE h 10 FIELDS 3 a nosuch b"], &["HPEXPIREAT h 1010000 FIELDS 2 a b"]);
    check(&[filled, "HEXPIREAT h 1 FIELDS 2 a nosuch"], &["HDEL h a"]);
    check(&[filled, "HEXPIRE h 10 XX FIELDS 1 a"], &[]);
    check(&[filled, "HPEXPIRE h 9 FIELDS 1 a", "HPERSIST h FIELDS 2 a b"], &["HPERSIST h FIELDS 1 a"]);
    check(&[filled, "HGETEX h EX 1 FIELDS 1 a"], &["HPEXPIREAT h 1001000 FIELDS 1 a"]);
    check(&[filled, "HGETEX h PXAT 1 FIELDS 2 a nosuch"], &["HDEL h a"]);
    check(&[filled, "HGETEX h FIELDS 1 a"], &[]);
    check(&[filled, "HSETEX h FXX EX 1 FIELDS 1 a 5"], &["HSETEX h PXAT 1001000 FIELDS 1 a 5"]);
    check(&[filled, "HSETEX h FNX FIELDS 1 a 5"], &[]);
    check(&[filled, "HSETEX h FIELDS 2 a 5 d 6"], &["HSET h a 5 d 6"]);
    check(&[filled, "HSETEX h PXAT 1 FIELDS 1 a 5"], &["HDEL h a"]);
    check(&[filled, "HGETDEL h FIELDS 2 a nosuch"], &["HDEL h a"]);
    check(&["HIMPORT PREPARE f a b", "HIMPORT SET h f 1 2"], &["HSET h a 1 b 2"]);
    check(&[filled, "HIMPORT PREPARE f b", "HIMPORT SET h f 9"], &["DEL h", "HSET h b 9"]);
    check(&[filled, "HINCRBYFLOAT h a 0.5"], &["HSET h a 1.5"]);
    check(
        &[filled, "HPEXPIRE h 9 FIELDS 1 a", "HINCRBYFLOAT h a 0.5"],
        &["HSETEX h PXAT 1000009 FIELDS 1 a 1.5"],
    );
}

/// A reader of the journal sees no field expire, so the effect on expired fields is logged.
#[test]
fn expired_fields() {
    for (command, expected) in [
        ("HINCRBY h a 5", &["HSET h a 5"][..]),
        ("HINCRBYFLOAT h a 5", &["HSET h a 5"]),
        ("HSETNX h a 5", &["HSET h a 5"]),
        ("HSET h a 5", &["HSET h a 5"]),
        ("HDEL h a", &[]),
        ("HDEL h a b", &["HDEL h b"]),
        ("HGETDEL h FIELDS 1 a", &[]),
        ("HGETDEL h FIELDS 2 a b", &["HDEL h b"]),
        ("HSETEX h FNX KEEPTTL FIELDS 1 a 5", &["HSETEX h KEEPTTL FIELDS 1 a 5", "HPERSIST h FIELDS 1 a"]),
        ("HSETEX h PXAT 1 FIELDS 1 a 5", &["HDEL h a"]),
        ("HPERSIST h FIELDS 2 a b", &[]),
        ("HEXPIRE h 10 FIELDS 2 a b", &["HPEXPIREAT h 1010009 FIELDS 1 b"]),
        ("COPY h i", &["COPY h i"]),
    ] {
        check(&["HSET h a 1 b 2", "HPEXPIRE h 5 FIELDS 1 a", "~9", command], expected);
    }
}

#[test]
fn streams() {
    check(&["XADD x * f v"], &["XADD x 1000000-0 f v"]);
    check(&["XADD x 5-* f v", "XADD x NOMKSTREAM 5-* f v"], &["XADD x 5-1 f v"]);
    check(&["XADD x 1 f v", "XADD x MAXLEN ~ 1 * f v"], &["XADD x 1000000-0 f v"]);
    check(&["XADD x 1 f v", "XADD x 2 f v", "XADD x MINID 2 3 f v"], &["XADD x MAXLEN = 2 3-0 f v"]);
    check(&["XADD x 1 f v", "XADD x MAXLEN 1 DELREF 3 f v"], &["XADD x DELREF MAXLEN = 1 3-0 f v"]);
    check(&["XADD x 1 f v", "XADD x 2 f v", "XTRIM x MINID 2"], &["XTRIM x MAXLEN = 1"]);
    check(&["XADD x 1 f v", "XADD x 2 f v", "XTRIM x MAXLEN 1 ACKED"], &["XDEL x 1-0"]);
    check(&["XADD x 1 f v", "XTRIM x MAXLEN ~ 0"], &["XTRIM x MAXLEN = 0"]);
    check(&["XADD x 1 f v", "XTRIM x MAXLEN 1"], &[]);
}

#[test]
fn groups() {
    let group = ["XADD x 1 f v", "XADD x 2 f v", "XGROUP CREATE x g 0"];
    let after = |commands: &[&'static str]| [&group, commands].concat();
    const GIVEN: &str = "XCLAIM x g c 0 1-0 2-0 TIME 1000000 RETRYCOUNT 1 FORCE JUSTID";
    const READ: &str = "XREADGROUP GROUP g c STREAMS x >";
    const NEW: &str = "XGROUP CREATECONSUMER x g c";
    const TO_2: &str = "XGROUP SETID x g 2-0 ENTRIESREAD 2";
    check(&after(&[READ]), &[NEW, GIVEN, TO_2]);
    check(&after(&["XREADGROUP GROUP g c NOACK STREAMS x >"]), &[NEW, TO_2]);
    check(&after(&[READ, READ]), &[]);
    const OTHERS: &str = "XREADGROUP GROUP g d STREAMS x >";
    check(&after(&[READ, OTHERS]), &["XGROUP CREATECONSUMER x g d"]);
    check(&after(&[READ, OTHERS, OTHERS]), &[]);
    check(&after(&[READ, "b> XREADGROUP GROUP g d BLOCK 0 STREAMS x >"]), &["XGROUP CREATECONSUMER x g d"]);
    check(
        &after(&[
            READ,
            "b> XREADGROUP GROUP g d BLOCK 0 STREAMS x >",
            "XGROUP DELCONSUMER x g d",
            "XGROUP SETID x g 9",
            "XADD x 3 f v",
        ]),
        &["XADD x 3-0 f v"],
    );
    check(
        &after(&[
            "XGROUP SETID x g 1 ENTRIESREAD 9223372036854775807",
            "XREADGROUP GROUP g c NOACK STREAMS x >",
        ]),
        &[NEW, "XGROUP SETID x g 2-0 ENTRIESREAD 9223372036854775807"],
    );
    check(&after(&["XREADGROUP GROUP g c STREAMS x 0"]), &[NEW]);
    check(
        &after(&[READ, "~5", "XREADGROUP GROUP g c COUNT 1 STREAMS x 0"]),
        &["XCLAIM x g c 0 1-0 TIME 1000005 RETRYCOUNT 2 FORCE JUSTID"],
    );
    check(
        &after(&[READ, "b> XREADGROUP GROUP g c BLOCK 0 STREAMS x >", "XADD x 3 f v"]),
        &[
            "XADD x 3-0 f v",
            "XCLAIM x g c 0 3-0 TIME 1000000 RETRYCOUNT 1 FORCE JUSTID",
            "XGROUP SETID x g 3-0 ENTRIESREAD 3",
        ],
    );
    check(
        &after(&[READ, "XDEL x 1", "~5", "XCLAIM x g d 0 1 2 9 IDLE 3 LASTID 7"]),
        &[
            "XGROUP CREATECONSUMER x g d",
            "XCLAIM x g d 0 2-0 TIME 1000002 RETRYCOUNT 2 FORCE JUSTID",
            "XACK x g 1-0",
            "XGROUP SETID x g 7-0 ENTRIESREAD 2",
        ],
    );
    check(
        &after(&[READ, "XDEL x 1", "~5", "XAUTOCLAIM x g c 0 0 JUSTID"]),
        &["XCLAIM x g c 0 2-0 TIME 1000005 RETRYCOUNT 1 FORCE JUSTID", "XACK x g 1-0"],
    );
    check(&after(&[READ, "XACK x g 1 2"]), &["XACK x g 1 2"]);
    check(&after(&["XGROUP CREATE x h $"]), &["XGROUP CREATE x h $"]);
    check(&after(&["XCLAIM x g c 0 9"]), &[NEW]);
    check(&after(&[READ, "XCLAIM x g c 999 1"]), &[]);
}

#[test]
fn keys_and_databases() {
    check(&["SET a 1", "RENAME a b"], &["RENAME a b"]);
    check(&["SET a 1", "COPY a b DB 3"], &["COPY a b DB 3"]);
    check(&["SET a 1", "MOVE a 3"], &["MOVE a 3"]);
    check(&["SWAPDB 0 1"], &["SWAPDB 0 1"]);
    check(&["SET a 1", "FLUSHALL ASYNC"], &["FLUSHALL ASYNC"]);
    check(&["DEL a"], &[]);
    check(&["PFADD p a", "PFCOUNT p"], &["PFCOUNT p"]);
    check(&["PFADD p a", "PFCOUNT p", "PFCOUNT p"], &[]);
    check(&["SETBIT b 7 1", "BITFIELD b GET u8 0"], &[]);
    check(&["BITFIELD b INCRBY u8 0 5 GET u8 0"], &["BITFIELD b INCRBY u8 0 5 GET u8 0"]);
    check(&["SELECT 3", "SET b 1", "SET a 1"], &["SET a 1"]);
    check(
        &["MULTI", "SET a 1", "SELECT 3", "SPOP s", "SET b 2", "EXEC"],
        &["SET a 1", "SELECT 3", "SET b 2"],
    );
}

#[test]
fn restored_values() {
    let mut world = World::new();
    world.now_ms = NOW_MS;
    let mut recorder = world.record();
    run(
        &mut world,
        &["RPUSH l a b", "HSET h a 1 b 2", "HPEXPIRE h 500 FIELDS 1 a", "HPEXPIRE h 5 FIELDS 1 b"],
    );
    for (key, options) in [("l", &["100", "IDLETIME", "9"][..]), ("h", &["0"]), ("h", &["5", "REPLACE"])] {
        let dump = world.call(&words::split(&format!("DUMP {key}")).expect("words")).expect("a reply");
        let payload = dump.as_bytes().expect("the key is there").to_vec();
        world.pass(Duration::from_millis(20));
        let mut args: Vec<Vec<u8>> = ["RESTORE", "r", options[0]].map(|word| word.as_bytes().to_vec()).into();
        args.push(payload);
        args.extend(["REPLACE"].iter().chain(&options[1..]).map(|word| word.as_bytes().to_vec()));
        assert_eq!(world.call(&args).expect("a reply").to_string(), "OK");
        let logged = recorder.take(&world).pop().expect("something was logged");
        assert!(logged.starts_with("RESTORE r ") && logged.contains("ABSTTL"), "{logged}");
        let mut timeless = World::timeless();
        timeless.replay(&recorder.bytes);
        assert_eq!(difference(&world.digest(), &timeless.digest()), None);
    }
}

/// The effect on large values is logged in pieces; the result of another thread is logged like any other.
#[test]
fn long_commands() {
    const MEMBERS: usize = 50_000;
    let (mut world, mut timeless) = (World::new(), World::timeless());
    let mut recorder = world.record();
    let fill = |command: &str, key: &str| {
        let members = (0..MEMBERS).map(|number| format!("member:{number}").into_bytes());
        [command, key].map(|word| word.as_bytes().to_vec()).into_iter().chain(members).collect::<Vec<_>>()
    };
    for (command, key) in [("SADD", "s"), ("SADD", "t"), ("RPUSH", "l")] {
        world.call(&fill(command, key)).expect("a reply");
    }
    run(&mut world, &["SORT l ALPHA STORE m", "SORT s BY nosuch_* LIMIT 0 40000 GET # STORE n"]);
    run(&mut world, &["SPOP s 30000", "SINTERSTORE i s t", "SPOP s 99999", "SPOP t 100", "SDIFFSTORE d t i"]);
    let log = recorder.take(&world);
    assert!(world.server.offload.total() > 3, "some were done elsewhere");
    let longest =
        log.iter().filter(|line| line.starts_with("SREM")).map(|line| line.split(' ').count()).max();
    assert_eq!(longest, Some(1026), "words of one command");
    timeless.replay(&recorder.bytes);
    assert_eq!(difference(&world.digest(), &timeless.digest()), None);
}

/// Where scores differ, a range of members depends on where pages end, and so on how the set was made.
#[test]
fn ranges_of_members_whose_scores_differ() {
    const MEMBERS: usize = 12_000;
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    let (mut world, mut timeless) = (World::new(), World::timeless());
    for _ in 0..MEMBERS {
        let line = format!("ZADD z {} m{:05}", random.below(100), random.below(100_000));
        world.run(&line);
        timeless.run(&line);
    }
    for line in ["ZUNIONSTORE made 1 z", "RENAME made z"] {
        timeless.run(line);
    }
    let mut recorder = world.record();
    let mut differ = 0;
    for round in 0..40 {
        let (from, to) = (random.below(100_000), random.below(100_000));
        let range = format!("[m{:05} (m{:05}", from.min(to), from.max(to));
        let count = format!("ZLEXCOUNT z {range}");
        differ += usize::from(world.run(&count) != timeless.run(&count));
        // A command on thousands, which is offloaded, comes last.
        let line = match round {
            39 => "ZREMRANGEBYLEX z [m00001 +".to_owned(),
            _ if round % 2 == 0 => format!("ZRANGESTORE to z {range} BYLEX LIMIT 1 4000"),
            _ => format!("ZREMRANGEBYLEX z {range}"),
        };
        run(&mut world, &[&line]);
        let logged = recorder.take(&world);
        let mut pieces = logged.iter().filter(|line| !line.starts_with("ZADD z"));
        assert!(pieces.all(|piece| piece.split(' ').count() <= 1026), "{line} is logged in pieces");
        timeless.replay(&std::mem::take(&mut recorder.bytes));
        assert_eq!(difference(&world.digest(), &timeless.digest()), None, "{line}");
        if round % 8 == 7 {
            let more = (0..2000).map(|_| format!(" {} m{:05}", random.below(100), random.below(100_000)));
            run(&mut world, &[&format!("ZADD z{}", more.collect::<String>())]);
        }
    }
    assert!(differ > 0, "the range is another one there");
    assert!(world.server.offload.total() > 0, "some were done elsewhere");
}

/// Clients see the effect of a handler that panicked, so it is logged.
#[test]
fn panicking_handlers_are_logged_by_effect() {
    let (mut world, mut timeless) = (World::new(), World::timeless());
    let mut recorder = world.record();
    run(&mut world, &["SET b v PX 99", "TEST.PANIC a b c"]);
    let log = recorder.take(&world);
    assert_eq!(log[1..3], ["MULTI", "DEL a"]);
    assert!(log[3].starts_with("RESTORE a 0 "), "{}", log[3]);
    timeless.replay(&recorder.bytes);
    assert_eq!(difference(&world.digest(), &timeless.digest()), None);
}

// Random commands.

/// Commands that the families of the differential test have too few of: short lives, chance, waiting, groups.
/// `h`, `s` and so on are keys of a type; the other words that begin with a dollar are drawn.
const TEMPLATES: &[&str] = &[
    "SET $k $v PX $t",
    "SET $k $v PXAT 5",
    "SETEX $k $n $v",
    "GETEX $k PX $t",
    "MSETEX 2 $k $v $k $v PX $t",
    "INCREX $k BYINT $n UBOUND 3 SATURATE PX $t ENX",
    "INCREX $k BYFLOAT 0.$n LBOUND 1",
    "INCREX $k PXAT 5",
    "INCRBYFLOAT $k 0.$n",
    "PEXPIRE $k $t",
    "PEXPIRE $k 0",
    "EXPIRE $any $n",
    "PERSIST $any",
    "COPY $any $any REPLACE",
    "RENAME $any $any",
    "DEL $any",
    "HSET $h $f $n $f $n",
    "HPEXPIRE $h $t FIELDS 2 $f $f",
    "HPEXPIRE $h $t FIELDS 1 $f",
    "HPEXPIRE $h 0 FIELDS 1 $f",
    "HINCRBY $h $f $n",
    "HINCRBYFLOAT $h $f 0.$n",
    "HSETNX $h $f $n",
    "HDEL $h $f $f",
    "HSETEX $h KEEPTTL FIELDS 2 $f $n $f $n",
    "HSETEX $h FNX PX $t FIELDS 1 $f $n",
    "HSETEX $h PXAT 5 FIELDS 1 $f $n",
    "HSETEX $h FXX FIELDS 1 $f $n",
    "HGETEX $h PX $t FIELDS 2 $f $f",
    "HGETEX $h PERSIST FIELDS 2 $f $f",
    "HGETDEL $h FIELDS 2 $f $f",
    "HPERSIST $h FIELDS 2 $f $f",
    "SADD $s $v $v $v",
    "SPOP $s",
    "SPOP $s $n",
    "SMOVE $s $s $v",
    "RPUSH $l $v $v",
    "BLPOP $l $l 0.0$n",
    "BRPOP $l 0",
    "BLMOVE $l $l LEFT RIGHT 0.0$n",
    "BRPOPLPUSH $l $l 0",
    "LMOVEM $l $l LEFT LEFT COUNT $n OBO",
    "LMOVEM $l $l RIGHT LEFT EXACTLY $n BULK",
    "BLMOVEM $l $l LEFT RIGHT 0.0$n EXACTLY $n OBO",
    "BLMPOP 0.0$n 2 $l $l LEFT COUNT $n",
    "LMPOP 2 $l $l RIGHT COUNT $n",
    "SORT $any ALPHA STORE $l",
    "SORT $l BY w$n* GET # GET $k STORE $l",
    "ZADD $z $n $v $n $v",
    "BZPOPMIN $z $z 0.0$n",
    "BZMPOP 0 2 $z $z MAX COUNT $n",
    "ZMPOP 2 $z $z MIN COUNT $n",
    "ZUNIONSTORE $z 2 $z $s",
    "ZUNIONSTORE $z 2 $z $s AGGREGATE COUNT",
    "GEOADD $z 13.$n 38 $v",
    "GEOSEARCHSTORE $z $z FROMLONLAT 13 38 BYRADIUS 40 km STOREDIST",
    "XADD $x * f $v",
    "XADD $x MAXLEN ~ $n * f $v",
    "XADD $x MAXLEN $n * f $v",
    "XADD $x MAXLEN $n DELREF * f $v",
    "XADD $x MAXLEN $n ACKED * f $v",
    "XADD $x $i f $v",
    "XTRIM $x MAXLEN $n ACKED",
    "XTRIM $x MINID $i",
    "XDEL $x $i $i",
    "XDELEX $x ACKED IDS 2 $i $i",
    "XACKDEL $x g IDS 2 $i $i",
    "XSETID $x 9",
    "XGROUP CREATE $x g 0 MKSTREAM",
    "XGROUP CREATE $x g2 $ MKSTREAM",
    "XGROUP DELCONSUMER $x g $c",
    "XGROUP SETID $x g $i",
    "XREADGROUP GROUP g $c COUNT $n STREAMS $x >",
    "XREADGROUP GROUP g $c BLOCK 0 STREAMS $x $x > >",
    "XREADGROUP GROUP g $c NOACK STREAMS $x >",
    "XREADGROUP GROUP g $c COUNT $n STREAMS $x 0",
    "XACK $x g $i $i",
    "XADD $x IDMP p i$i * f $v",
    "XADD $x IDMPAUTO p * f $v",
    "XCFGSET $x IDMP-MAXSIZE $n",
    "XNACK $x g FAIL IDS 2 $i $i",
    "XNACK $x g SILENT IDS 1 $i FORCE",
    "XREADGROUP GROUP g $c CLAIM $t MAXCOUNT $n STREAMS $x >",
    "XCLAIM $x g $c $t $i $i $i",
    "XCLAIM $x g $c 0 $i FORCE IDLE $t LASTID $i",
    "XAUTOCLAIM $x g $c 0 0 COUNT $n",
    "PFADD $k $v $v",
    "PFCOUNT $k",
    "PFMERGE $k $k",
    "BITOP NOT $k $k",
    "BITOP ONE $k $k $k $k",
    "BITOP DIFF1 $k $k $k",
    "SET $k $v IFDNE 1",
    "DELEX $k IFNE $v",
    "MULTI",
    "EXEC",
    "SELECT 0",
    "SELECT 1",
    "SWAPDB 0 1",
];

/// Words of the templates that some reference servers lack.
const ONLY_VALKEY: &[&str] = &["HPEXPIRE", "HSETEX", "HGETEX", "HGETDEL", "HPERSIST", "MSETEX"];

const NO_PEER: &[&str] = &["DELREF", "ACKED", "XDELEX", "XACKDEL", "IDMP", "XNACK"];

fn from_template(random: &mut Random, reference: Option<Reference>) -> Vec<Vec<u8>> {
    loop {
        let template = random.pick(TEMPLATES);
        let has = |words: &[&str]| words.iter().any(|word| template.contains(word));
        let fits = match reference {
            None => true,
            Some(Reference::Valkey) => !has(NO_PEER),
            Some(_) => !has(NO_PEER) && !has(ONLY_VALKEY),
        };
        if fits {
            let words = words::split(template).expect("a template is a command line");
            return words.into_iter().map(|word| filled_in(random, word)).collect();
        }
    }
}

fn filled_in(random: &mut Random, word: Vec<u8>) -> Vec<u8> {
    let text = String::from_utf8(word).expect("templates are text");
    let Some(at) = text.find('$').filter(|at| at + 1 < text.len()) else { return text.into_bytes() };
    let drawn = match &text[at + 1..] {
        "any" => {
            random.pick(&["k1", "k2", "h1", "h2", "s1", "s2", "l1", "l2", "z1", "z2", "x1", "x2"]).to_owned()
        }
        "t" => random.between(1, 40).to_string(),
        "n" | "n*" => random.between(1, 4).to_string(),
        "i" => random.between(1, 9).to_string(),
        "v" => random.pick(&["1", "2", "3", "4", "w1", "w2"]).to_owned(),
        "c" => random.pick(&["alice", "bob"]).to_owned(),
        "f" => format!("f{}", random.between(1, 3)),
        kind => format!("{kind}{}", random.between(1, 2)),
    };
    format!("{}{drawn}", &text[..at]).into_bytes()
}

/// Redis 7.0 lets XSETID go back behind deleted entries, and writes that into its files.
#[test]
fn stream_metadata_of_redis_is_accepted() {
    for set in ["XSETID x 6-0", "XSETID x 6-0 ENTRIESADDED 2 MAXDELETEDID 9-0"] {
        let mut timeless = World::timeless();
        for line in ["XADD x 5-0 f v", "XADD x 9-0 f v", "XDEL x 9-0", set] {
            assert!(!timeless.run(line).starts_with('-'), "{line}");
        }
        timeless.check(
            r#"
            > XINFO STREAM x
            < [*, "last-generated-id", "6-0", "max-deleted-entry-id", "6-0", "entries-added", :2, *
            "#,
        );
    }
}

/// A consumer known from a journal alone was seen when the journal came: it has not been idle since the
/// epoch.
#[test]
fn logged_consumers_are_seen_at_load_time() {
    let mut timeless = World::timeless();
    let before_ms = evenkeel_runtime::clock::unix_ms();
    for line in [
        "XADD x 1-0 f v",
        "XGROUP CREATE x g 0",
        "XGROUP CREATECONSUMER x g c",
        "XCLAIM x g d 0 1-0 TIME 1000 RETRYCOUNT 1 FORCE JUSTID",
    ] {
        assert!(!timeless.run(line).starts_with('-'), "{line}");
    }
    timeless.now_ms = before_ms;
    timeless.check(
        r#"
        > XINFO CONSUMERS x g
        < [["name", "c", "pending", :0, "idle", :0, "inactive", :-1], ["name", "d", "pending", :1, "idle", \
            :0, "inactive", :0]]
        "#,
    );
    timeless.now_ms = before_ms + 60_000;
    timeless.check("> XAUTOCLAIM x g c 50000000 0 < [\"0-0\", [[\"1-0\", *]], []]");
    let idle = timeless.run("XINFO CONSUMERS x g");
    assert!(!idle.contains(&before_ms.to_string()), "{idle}");
}

/// Random commands on several connections, while time passes and sweeps run.
struct Storm {
    random: Random,
    world: World,
    recorder: Recorder,
    /// All that was sent.
    sent: Vec<String>,
}

impl Storm {
    fn new(seed: u64, now_ms: u64) -> Storm {
        let mut world = World::new();
        world.now_ms = now_ms;
        let recorder = world.record();
        Storm { random: Random::new(seed), world, recorder, sent: Vec::new() }
    }

    /// `reference` is the reference server that has to know all commands; `jump_ms_max` is the farthest jump
    /// of the clock.
    fn rage(&mut self, steps: usize, reference: Option<Reference>, jump_ms_max: u64) -> Vec<String> {
        let drawn = if self.random.chance(50) { Reference::Valkey } else { Reference::Redis };
        let oracle = reference.unwrap_or(drawn);
        let plan = Plan { seed: self.random.draw(), commands: steps, oracle, except: &[] };
        for sent in commands(plan) {
            match sent {
                // The bytes of a HyperLogLog depend on this setting, and a journal has no settings.
                Sent::Command(_, args) if words::join(&args).contains("hll-sparse") => {}
                Sent::Command(connection, args) => self.send(["a", "b"][connection], &args),
                Sent::PauseMs(ms) => self.world.pass(Duration::from_millis(ms)),
            }
            for _ in 0..self.random.below(3) {
                let connection = self.random.pick(&["c", "d", "e"]);
                let args = from_template(&mut self.random, reference);
                self.send(connection, &args);
            }
            match self.random.below(100) {
                0..30 => self.world.pass(Duration::from_millis(self.random.below(9) as u64)),
                30..35 => self.world.sweep_all(),
                35..38 => self.world.pass(Duration::from_millis(self.random.draw() % jump_ms_max)),
                38..42 => self.hang_up(),
                _ => {}
            }
        }
        self.recorder.take(&self.world)
    }

    fn send(&mut self, connection: &str, args: &[Vec<u8>]) {
        self.sent.push(format!("{connection}> {}", words::join(args)));
        self.world.send(connection, args);
        while self.world.receive(connection).is_ok() {}
    }

    /// Compares two digests; panics with the commands and the journal of the first key that differs.
    #[track_caller]
    fn compare(&self, here: &Digest, there: &Digest, log: &[String]) {
        const SHOWN: usize = 60;
        const ALWAYS: &[&str] = &["SELECT", "SWAPDB", "FLUSH", "MULTI", "EXEC"];
        let Some(difference) = difference(here, there) else { return };
        let key = difference.split_whitespace().nth(1).expect("a difference begins with a key");
        let about = |lines: &[String]| {
            let matters = |line: &str| {
                let line = line.to_ascii_uppercase();
                line.contains(&key.to_ascii_uppercase()) || ALWAYS.iter().any(|word| line.contains(word))
            };
            let all: Vec<&String> = lines.iter().filter(|line| matters(line)).collect();
            let last = all.iter().rev().take(SHOWN).rev();
            last.map(|line| line.chars().take(200).collect::<String>() + "\n").collect::<String>()
        };
        panic!("{difference}\nsent:\n{}\nlogged:\n{}", about(&self.sent), about(log));
    }

    /// Closes a connection, so that its endless waits make room.
    fn hang_up(&mut self) {
        let connection = self.random.pick(&["c", "d", "e"]);
        self.send(connection, &[b"PING".to_vec()]);
        self.world.hang_up(connection);
    }
}

/// 2026: less than most deadlines of the families, which lie about 2100.
const STARTS_MS: [u64; 2] = [1_770_000_000_000, 4_102_444_800_000];

#[test]
fn the_logged_commands_rebuild_the_keys() {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut seeds = Random::new(seed);
    for episode in 0..40 {
        let mut storm = Storm::new(seeds.draw(), STARTS_MS[episode % 2]);
        let mut timeless = World::timeless();
        let mut log = Vec::new();
        for _ in 0..5 {
            log.extend(storm.rage(60, None, 50_000_000_000));
            timeless.replay(&std::mem::take(&mut storm.recorder.bytes));
            let (here, there) = (storm.world.digest(), timeless.digest());
            storm.compare(&here, &there, &log);
        }
        storm.world.verify();
        timeless.verify();
    }
}

/// A reference server loads the journal as its append-only file.
fn check_reference(reference: Reference) {
    let Some(program) = Program::oracle(reference) else { return };
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let mut seeds = Random::new(seed);
    let mut server = Server::start(&program, &["--appendonly", "yes", "--aof-use-rdb-preamble", "no"]);
    for episode in 0..6 {
        let mut storm = Storm::new(seeds.draw(), STARTS_MS[0]);
        let log = storm.rage(400, Some(reference), 1_000_000_000);
        server.stop();
        let file = server.folder().join("appendonlydir/appendonly.aof.1.incr.aof");
        std::fs::write(&file, &storm.recorder.bytes).expect("the server has stopped");
        server.start_again();
        assert!(!server.log().contains("CRITICAL"), "episode {episode}: {}", server.log());
        // Keys that have expired by now are on neither side.
        storm.world.now_ms = evenkeel_runtime::clock::unix_ms();
        storm.world.sweep_all();
        let (here, there) = (digest(&mut storm.world), digest(&mut transcript::target(&server)));
        storm.compare(&here, &there, &log);
    }
}

#[test]
fn redis_loads_the_log() {
    check_reference(Reference::Redis);
}

#[test]
fn valkey_loads_the_log() {
    check_reference(Reference::Valkey);
}
