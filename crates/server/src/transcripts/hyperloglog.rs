//! Transcripts of hyperloglog commands.

use crate::testing::{World, check};
use evenkeel_testkit::{Program, Reference, Server, Target, transcript};

#[test]
fn pfcount_and_pfmerge() {
    check(
        r#"
        > PFADD h                    < :1
        > PFADD h                    < :0
        > PFCOUNT h                  < :0
        > PFADD h a b c              < :1
        > PFADD h a b c              < :0
        > PFCOUNT h                  < :3
        > PFADD g c d                < :1
        > PFCOUNT h g nosuch         < :4
        > PFMERGE m h g              < OK
        > PFCOUNT m                  < :4
        > PFMERGE m                  < OK
        > PFMERGE new nosuch         < OK
        > GET new                    < "HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x7f\xff"
        > PFCOUNT nosuch             < :0
        > EXISTS nosuch              < :0
        > PFADD                      < -ERR wrong number of arguments for 'pfadd' command
        > PFCOUNT                    < -ERR wrong number of arguments for 'pfcount' command
        > PFMERGE                    < -ERR wrong number of arguments for 'pfmerge' command
    "#,
    );
}

/// The last byte of the count says whether it is out of date.
#[test]
fn counts_are_cached_until_a_register_changes() {
    check(
        r#"
        > PFADD h a b c              < :1
        > GETRANGE h 8 15            < "\x00\x00\x00\x00\x00\x00\x00\x80"
        > PFCOUNT h                  < :3
        > GETRANGE h 8 15            < "\x03\x00\x00\x00\x00\x00\x00\x00"
        > PFADD h a                  < :0
        > GETRANGE h 8 15            < "\x03\x00\x00\x00\x00\x00\x00\x00"
        > PFDEBUG TODENSE h          < :1
        > GETRANGE h 8 15            < "\x03\x00\x00\x00\x00\x00\x00\x00"
        > SETRANGE h 8 c             < :12304
        > PFCOUNT h                  < :99
        > PFADD h d                  < :1
        > GETRANGE h 8 15            < "c\x00\x00\x00\x00\x00\x00\x80"
        > PFCOUNT h                  < :4
    "#,
    );
}

#[test]
fn deadlines_and_encodings_of_the_string() {
    check(
        r#"
        > PFADD h a                  < :1
        > OBJECT ENCODING h          < "raw"
        > EXPIRE h 1000              < :1
        > PFADD h b                  < :1
        > PFCOUNT h                  < :2
        > PFDEBUG TODENSE h          < :1
        > PFADD h c                  < :1
        > PFMERGE h nosuch           < OK
        > TTL h                      < :1000
        > SET s "HYLL\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00q\xa6\x84NW"    < OK
        > OBJECT ENCODING s          < "embstr"
        > PFCOUNT s s                < :1
        > OBJECT ENCODING s          < "embstr"
        > PFADD foreign              < :1
        > SET foreign xyz            < OK
        > PFADD foreign a            < -WRONGTYPE*
        > OBJECT ENCODING foreign    < "embstr"
        > PFCOUNT s                  < :1
        > OBJECT ENCODING s          < "raw"
    "#,
    );
}

#[test]
fn pfdebug() {
    check(
        r#"
        > PFADD h a b                < :1
        > PFDEBUG ENCODING h         < sparse
        > PFDEBUG decode h           < "Z:12711 v:2,1 Z:3068 v:1,1 Z:603"
        > PFDEBUG TODENSE h          < :1
        > PFDEBUG TODENSE h          < :0
        > PFDEBUG ENCODING h         < dense
        > PFDEBUG DECODE h           < -ERR HLL encoding is not sparse
        > PFADD g a                  < :1
        > PFDEBUG GETREG g           < [:0, :0, *]
        > PFDEBUG ENCODING g         < dense
        > PFDEBUG FOO h              < -ERR Unknown PFDEBUG subcommand 'FOO'
        > PFDEBUG FOO nosuch         < -ERR The specified key does not exist
        > PFDEBUG GETREG             < -ERR wrong number of arguments for 'pfdebug' command
        > PFSELFTEST x               < -ERR wrong number of arguments for 'pfselftest' command
    "#,
    );
    World::new().check("> PFSELFTEST < OK"); // redis-server takes seconds
}

#[test]
fn strings_without_a_valid_header_are_refused() {
    check(
        r#"
        > SET s 12                   < OK
        > PFADD s a                  < -WRONGTYPE Key is not a valid HyperLogLog string value.
        > PFCOUNT s                  < -WRONGTYPE Key is not a valid HyperLogLog string value.
        > PFCOUNT nosuch s           < -WRONGTYPE Key is not a valid HyperLogLog string value.
        > PFMERGE new s              < -WRONGTYPE Key is not a valid HyperLogLog string value.
        > PFMERGE s new              < -WRONGTYPE Key is not a valid HyperLogLog string value.
        > PFDEBUG ENCODING s         < -WRONGTYPE Key is not a valid HyperLogLog string value.
        > EXISTS new                 < :0
        > PFADD h a b c              < :1
        > APPEND h hello             < :32
        > PFCOUNT h                  < -INVALIDOBJ Corrupted HLL object detected
        > PFCOUNT h h                < -INVALIDOBJ Corrupted HLL object detected
        > PFMERGE new h              < -INVALIDOBJ Corrupted HLL object detected
        > PFDEBUG GETREG h           < -INVALIDOBJ Corrupted HLL object detected
        > PFDEBUG TODENSE h          < -INVALIDOBJ Corrupted HLL object detected
        > SET e "HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80"   < OK
        > PFADD e a                  < -INVALIDOBJ Corrupted HLL object detected
        > PFDEBUG DECODE e           < ""
    "#,
    );
}

/// A failed PFADD has added nothing (Redis keeps the elements before the failing element), and a huge
/// string is not searched for registers. The value here has registers for `a` but not for `b`.
#[test]
fn errors_change_nothing() {
    let mut world = World::new();
    world.check(
        r#"
        > SET s "HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80q\xa6\x80"   < OK
        > PFADD s a b               < -INVALIDOBJ Corrupted HLL object detected
        > GET s                     < "HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80q\xa6\x80"
        > PFADD s a                 < :1
        > SETRANGE s 5000000 x      < :5000001
        > PFADD s a                 < -INVALIDOBJ Corrupted HLL object detected
        > PFCOUNT s                 < -INVALIDOBJ Corrupted HLL object detected
        > PFMERGE s                 < -INVALIDOBJ Corrupted HLL object detected
        > PFDEBUG DECODE s          < -INVALIDOBJ Corrupted HLL object detected
        > SETRANGE s 0 X            < :5000001
        > PFCOUNT s                 < -WRONGTYPE Key is not a valid HyperLogLog string value.
    "#,
    );
}

/// A string of more than 16 KiB does not lie in its entry. No server makes such a value, but any would
/// read it.
#[test]
fn a_sparse_value_may_be_longer_than_a_dense_one() {
    let text = r#"
        > EXPIRE h 1000              < :1
        > PFCOUNT h                  < :0
        > PFCOUNT h                  < :0
        > PFADD h a                  < :1
        > PFADD h a                  < :0
        > STRLEN h                   < :32783
        > TTL h                      < :1000
        > PFCOUNT h h                < :1
        > PFMERGE g h                < OK
        > GET g                      < "HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80q\xa6\x84NW"
        > PFMERGE h g                < OK
        > STRLEN h                   < :32783
        > PFDEBUG TODENSE h          < :1
        > PFCOUNT h                  < :1
        > TTL h                      < :1000
    "#;
    let mut value = b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80".to_vec();
    value.extend([0x40, 0].repeat(evenkeel_command::hll::REGISTERS));
    let set = [b"SET".to_vec(), b"h".to_vec(), value];
    let mut world = World::new();
    world.call(&set).expect("a reply");
    world.check(text);
    if let Some(oracle) = Program::oracle(Reference::Redis) {
        let oracle = Server::start(&oracle, &[]);
        oracle.connect().call(&set);
        transcript::check(&oracle, text);
    }
}

/// It may write, and be part of a transaction that does.
#[test]
fn counting_waits_for_a_pause_of_writes() {
    let mut world = World::new();
    world.check(
        "
        > PFADD h a             < :1
        > MULTI                 < OK
        > PFCOUNT h             < QUEUED
        > EXEC                  < [:1]
    ",
    );
    for (queued, is_paused) in [("GET h", false), ("PFCOUNT h", true), ("PFADD h", true)] {
        world.run("MULTI");
        world.run(queued);
        world.check("operator> CLIENT PAUSE 100000 WRITE");
        assert_eq!(world.is_paused("EXEC"), is_paused, "{queued}");
        world.check("operator> CLIENT UNPAUSE");
        world.run("DISCARD");
    }
    world.run("CLIENT PAUSE 100000 WRITE");
    let paused = ["PFCOUNT", "PFADD", "GET", "EXEC"].map(|name| world.is_paused(name));
    assert_eq!(paused, [true, true, false, false]);
}

/// As in Valkey, whose results are the same with and without vector instructions.
#[test]
fn vector_instructions_are_switched() {
    World::new().check(
        "
        > PFDEBUG SIMD off           < disabled
        > PFDEBUG simd ON            < enabled
        > PFDEBUG SIMD maybe         < -ERR Argument must be ON or OFF
    ",
    );
}
