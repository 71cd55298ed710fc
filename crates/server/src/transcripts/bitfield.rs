//! Transcripts of bitfield commands.

use crate::testing::{World, check};

#[test]
fn bitfield_operations() {
    check(
        r#"
        > BITFIELD k                                            < []
        > BITFIELD k OVERFLOW FAIL                              < []
        > BITFIELD k GET u8 0 GET i64 #3                        < [:0, :0]
        > EXISTS k                                              < :0
        > bitfield k set u8 0 300 get u8 0 set i5 100 11        < [:0, :44, :0]
        > STRLEN k                                              < :14
        > BITFIELD k SET u8 0 -1 OVERFLOW SAT SET u8 0 -1       < [:44, :255]
        > BITFIELD k OVERFLOW SAT INCRBY u8 0 5 OVERFLOW FAIL INCRBY u8 0 5 INCRBY u8 0 -5
        < [:255, (nil), :250]
        > BITFIELD k OVERFLOW SAT SET i8 0 -1000 GET i8 0       < [:-6, :-128]
        > BITFIELD k OVERFLOW SAT SET i31 0 -9223372036854775808 GET i31 0 < [:-1073741824, :1073741823]
        > BITFIELD new OVERFLOW FAIL INCRBY u2 100 5            < [(nil)]
        > STRLEN new                                            < :13
        > SET n 13
        > BITFIELD n SET u8 0 49 OVERFLOW FAIL SET i2 0 7       < [:49, (nil)]
        > OBJECT ENCODING n                                     < "raw"
        > BITFIELD_RO k GET u8 0 GET u1 4294967295              < [:127, :0]
        > BITFIELD_RO none GET i64 7                            < [:0]
        > BITFIELD_RO k GET u8 0 SET u8 0 1
        < -ERR BITFIELD_RO only supports the GET subcommand
        > BITFIELD k GET u8                                     < -ERR syntax error
        > BITFIELD k SET u8 0                                   < -ERR syntax error
        > BITFIELD k OVERFLOW                                   < -ERR syntax error
        > BITFIELD k SET u8 0 1 OVERFLOW UP                     < -ERR Invalid OVERFLOW type specified
        > BITFIELD k SET u64 0 1
        < -ERR Invalid bitfield type. Use something like i16 u8. *
        > BITFIELD k SET u0 0 1                                 < -ERR Invalid bitfield type. *
        > BITFIELD k SET U8 0 1                                 < -ERR Invalid bitfield type. *
        > BITFIELD k SET u8 #-1 1
        < -ERR bit offset is not an integer or out of range
        > BITFIELD k SET u8 4294967296 1
        < -ERR bit offset is not an integer or out of range
        > BITFIELD k SET u3 #9223372036854775807 1
        < -ERR bit offset is not an integer or out of range
        > BITFIELD k SET u8 0 one                               < -ERR value is not an integer or out of range
        > BITFIELD k GET u8 0                                   < [:127]
    "#,
    );
}

/// A step that changes nothing is no write for WATCH, nor for the counter of changes.
#[test]
fn writing_the_present_value_is_no_change() {
    let mut world = World::new();
    let dirty = |world: &World| world.server.core.keyspace.total().dirty;
    for (line, changes) in [
        ("SETBIT b 0 0", 1),
        ("SETBIT b 0 0", 0),
        ("SETBIT b 0 1", 1),
        ("SETBIT b 0 1", 0),
        ("SETBIT b 8 0", 1),
        ("BITFIELD f SET u8 0 0", 1),
        ("BITFIELD f SET u8 0 0 INCRBY u4 0 0", 0),
        ("BITFIELD f SET u8 0 1 SET u8 0 2 SET u8 0 2", 2),
        ("BITFIELD f OVERFLOW FAIL INCRBY u2 0 5", 0),
    ] {
        let before = dirty(&world);
        world.run(line);
        assert_eq!(dirty(&world) - before, changes, "{line}");
    }
    world.check(
        "w> WATCH b f\n > SETBIT b 0 1\n > BITFIELD f SET u8 0 2\n w> MULTI\n w> EXEC < []
         w> WATCH b f\n > SETBIT b 0 0\n w> MULTI\n w> EXEC < (nil array)",
    );
}
