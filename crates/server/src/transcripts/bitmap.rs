//! Bits counted and found singly; replies as in Redis.

use crate::testing::{World, check};

#[test]
fn setbit_and_getbit() {
    check(
        r#"
        > SETBIT k 7 1                 < :0
        > SETBIT k 7 1                 < :1
        > GET k                        < "\x01"
        > GETBIT k 7                   < :1
        > GETBIT k 6                   < :0
        > GETBIT k 800                 < :0
        > GETBIT none 0                < :0
        > SETBIT k 20 0                < :0
        > STRLEN k                     < :3
        > OBJECT ENCODING k            < "raw"
        > SET n 12
        > SETBIT n 0 0                 < :0
        > OBJECT ENCODING n            < "raw"
        > SETBIT k 4294967296 1        < -ERR bit offset is not an integer or out of range
        > SETBIT k -1 1                < -ERR bit offset is not an integer or out of range
        > SETBIT k x 2                 < -ERR bit offset is not an integer or out of range
        > SETBIT k 0 2                 < -ERR bit is not an integer or out of range
        > SETBIT k 0 01                < -ERR bit is not an integer or out of range
        > GETBIT k #1                  < -ERR bit offset is not an integer or out of range
        > SETBIT far 4294967295 1      < :0
        > GETBIT far 4294967295        < :1
        > STRLEN far                   < :536870912
        > BITCOUNT far                 < :1
        > BITPOS far 1                 < :4294967295
        > BITPOS far 0                 < :0
        > DEL far
    "#,
    );
}

/// The last bit of half a gigabyte takes a single chunk and a spine.
#[test]
fn a_distant_bit_takes_little_memory() {
    let mut world = World::new();
    world.check(
        "> SETBIT far 4294967295 1 < :0\n > BITOP NOT inverse far < :536870912\n \
                 > BITCOUNT inverse < :4294967295",
    );
    let executor = &mut world.workers[0];
    let server = executor.server.clone();
    let memory = |executor: &mut crate::executor::Executor, key: &[u8]| {
        let key = server.core.keyspace.key(0, key);
        server.core.keyspace.enter(&mut executor.ctx);
        let memory =
            server.core.keyspace.hold_one(&mut executor.ctx, key.place).peek(&key).expect("there").memory();
        server.core.keyspace.leave(&mut executor.ctx);
        memory
    };
    assert!(memory(executor, b"far") < 200 << 10);
}

#[test]
fn bitcount_and_bitpos() {
    check(
        r#"
        > SET k foobar
        > BITCOUNT k                       < :26
        > BITCOUNT k 0 0                   < :4
        > BITCOUNT k 5 30 BIT              < :17
        > BITCOUNT k 1 1 byte              < :6
        > BITCOUNT k -1 -100               < :0
        > BITCOUNT k -100 -100             < :4
        > BITCOUNT k 5 3 BIT               < :0
        > BITCOUNT k 0 -1 nonsense         < -ERR syntax error
        > BITCOUNT k 0 1 BIT more          < -ERR syntax error
        > SET e ""
        > BITCOUNT e 0 -1 BIT              < :0
        > BITPOS e 0                       < :-1
        > SET k "\xff\xf0\x00"
        > BITPOS k 0                       < :12
        > BITPOS k 1 2                     < :-1
        > BITPOS k 1 -100 -101             < :0
        > BITPOS k 0 0 0                   < :-1
        > BITPOS k 0 9 11 BIT              < :-1
        > BITPOS k 1 11 -1 BIT             < :11
        > SET k "\xff\xff"
        > BITPOS k 0                       < :16
        > BITPOS k 0 1                     < :16
        > BITPOS k 0 0 -1                  < :-1
        > BITPOS k 0 5                     < :-1
        > BITPOS none 1                    < :-1
        > BITPOS none 2                    < -ERR The bit argument must be 1 or 0.
        > BITPOS k x                       < -ERR value is not an integer or out of range
        > BITPOS k 1 0 -1 BITS             < -ERR syntax error
        > BITPOS k 1 0 -1 BIT more         < -ERR syntax error
    "#,
    );
}

/// Valkey 9.1 gave the replies: Redis 7.0 looks at the key first, and wants both ends of a range.
#[test]
fn arguments_are_checked_before_the_key() {
    check(
        "
        > SET k foobar
        > RPUSH l a
        > BITCOUNT k 0                     < :26
        > BITCOUNT k 3                     < :10
        > BITCOUNT k -2                    < :7
        > BITCOUNT none 0                  < :0
        > BITCOUNT k -3 -5 nonsense        < -ERR syntax error
        > BITCOUNT k 0 x nonsense          < -ERR syntax error
        > BITCOUNT none 0 1 nonsense       < -ERR syntax error
        > BITCOUNT none a b                < -ERR value is not an integer or out of range
        > BITCOUNT none a b nonsense       < -ERR value is not an integer or out of range
        > BITCOUNT none 0 1 BIT more       < -ERR syntax error
        > BITCOUNT l 0 1 nonsense          < -ERR syntax error
        > BITCOUNT l 0                     < -WRONGTYPE*
        > BITPOS none 0 nonsense           < -ERR value is not an integer or out of range
        > BITPOS none 0 0 1 nonsense       < -ERR syntax error
        > BITPOS none 0 0 1 BIT more       < -ERR syntax error
        > BITPOS l 0 nonsense              < -ERR value is not an integer or out of range
        > BITPOS l 0 0                     < -WRONGTYPE*
        > GETEX none EX 0                  < -ERR invalid expire time in 'getex' command
        > GETEX none EX x                  < -ERR value is not an integer or out of range
        > GETEX l EX 0                     < -ERR invalid expire time in 'getex' command
        > GETEX l EX 1                     < -WRONGTYPE*
        > GETEX none EX 1                  < (nil)
    ",
    );
}

/// Redis 8.2.3 gave the replies; the operations are not in Redis 7 and Valkey.
#[test]
fn bitop_knows_the_operations_of_redis_8() {
    let mut world = World::new();
    world.check(
        r#"
        > MSET a "\xff\x0f" b "\x0f" c "\x11\x22\x44"
        > BITOP DIFF r a b c            < :3
        > GET r                        < "\xe0\r\x00"
        > BITOP diff1 r a b c           < :3
        > GET r                        < "\x00 D"
        > BITOP ANDOR r a b c           < :3
        > GET r                        < "\x1f\x02\x00"
        > BITOP ONE r a b c             < :3
        > GET r                        < "\xe0-D"
        > BITOP ONE r a a b             < :2
        > GET r                        < "\x00\x00"
        > BITOP ONE r a                 < :2
        > GET r                        < "\xff\x0f"
        > BITOP DIFF r none a           < :2
        > GET r                        < "\x00\x00"
        > BITOP DIFF1 r none a none     < :2
        > GET r                        < "\xff\x0f"
        > BITOP ANDOR r a a             < :2
        > GET r                        < "\xff\x0f"
        > BITOP DIFF r a a              < :2
        > GET r                        < "\x00\x00"
        > BITOP DIFF r none none        < :0
        > EXISTS r                     < :0
        > BITOP DIFF r a                < -ERR BITOP DIFF must be called with at least two source keys.
        > BITOP DIFF1 r a               < -ERR BITOP DIFF1 must be called with at least two source keys.
        > BITOP ANDOR r a               < -ERR BITOP ANDOR must be called with at least two source keys.
        > RPUSH l x                    < :1
        > BITOP DIFF r a l              < -WRONGTYPE*
        > BITOP DIFF r l a              < -WRONGTYPE*
    "#,
    );
}

#[test]
fn bitop_combines_strings() {
    check(
        r#"
        > MSET a "\xff\x0f" b "\x0f"
        > BITOP AND r a b              < :2
        > GET r                        < "\x0f\x00"
        > OBJECT ENCODING r            < "raw"
        > BITOP or r a b none          < :2
        > GET r                        < "\xff\x0f"
        > BITOP XOR r a b b b          < :2
        > GET r                        < "\xf0\x0f"
        > BITOP NOT a a                < :2
        > GET a                        < "\x00\xf0"
        > EXPIRE r 100                 < :1
        > BITOP OR r a                 < :2
        > TTL r                        < :-1
        > BITOP AND r none             < :0
        > EXISTS r                     < :0
        > BITOP NOT r a b              < -ERR BITOP NOT must be called with a single source key.
        > BITOP NAND r a b             < -ERR syntax error
        > BITOP OR r                   < -ERR wrong number of arguments for 'bitop' command
    "#,
    );
}
