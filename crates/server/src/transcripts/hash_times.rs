//! Transcripts of hash_times commands.

use crate::testing::World;
use evenkeel_testkit::{Program, Reference, Server, transcript};

/// Runs a transcript in process, and on Valkey if it is installed: Redis 7.0 has none of these commands.
#[track_caller]
fn check(text: &str) {
    World::new().check(text);
    if let Some(oracle) = Program::oracle(Reference::Valkey) {
        transcript::check(&Server::start(&oracle, &["--enable-debug-command", "yes"]), text);
    }
}

#[test]
fn deadlines_of_fields_are_set_read_and_cleared() {
    check(
        r#"
        > HSET h a 1 b 2 c 3
        > HEXPIRE h 100 FIELDS 2 a nosuch            < [:1, :-2]
        > HTTL h FIELDS 3 a b nosuch                 < [:100, :-1, :-2]
        > HPTTL h FIELDS 1 a                         < [:*]
        > HEXPIRETIME h FIELDS 1 b                   < [:-1]
        > HPEXPIREAT h 33177117420499 FIELDS 1 a     < [:1]
        > HEXPIRETIME h FIELDS 1 a                   < [:33177117420]
        > HPEXPIREAT h 33177117420500 FIELDS 1 a     < [:1]
        > HEXPIRETIME h FIELDS 1 a                   < [:33177117421]
        > HPEXPIRETIME h FIELDS 1 a                  < [:33177117420500]
        > HEXPIREAT h 33177117420 FIELDS 2 b b       < [:1, :1]
        > HPEXPIRE h 1900 FIELDS 1 c                 < [:1]
        > HTTL h FIELDS 1 c                          < [:2]
        > HPERSIST h FIELDS 4 a b a nosuch           < [:1, :1, :-1, :-2]
        > HTTL h FIELDS 3 a b c                      < [:-1, :-1, :2]
        > HPERSIST nosuch FIELDS 2 a b               < [:-2, :-2]
        > HTTL nosuch FIELDS 2 a b                   < [:-2, :-2]
        > HEXPIRE nosuch 10 FIELDS 2 a b             < [:-2, :-2]
        > EXISTS nosuch                              < :0
        > HPEXPIREAT h 9223372036854775807 FIELDS 1 a < [:1]
        > HPEXPIRETIME h FIELDS 1 a                  < [:9223372036854775807]
        > TTL h                                      < :-1
        "#,
    );
}

#[test]
fn fields_expire_at_their_millisecond() {
    check(
        r#"
        > HSET h a 1 b 2 c 3 d 4 e 5
        > HPEXPIRE h 300 FIELDS 3 a b c              < [:1, :1, :1]
        ~ 200ms
        > HMGET h a d                                < ["1", "4"]
        ~ 120ms
        > HGETALL h                                  < ["d", "4", "e", "5"]
        > HKEYS h                                    < ["d", "e"]
        > HVALS h                                    < ["4", "5"]
        > HSCAN h 0                                  < ["0", ["d", "4", "e", "5"]]
        > HGET h a                                   < (nil)
        > HMGET h a d                                < [(nil), "4"]
        > HEXISTS h a                                < :0
        > HSTRLEN h a                                < :0
        > HRANDFIELD h 10                            < ["d", "e"]
        > HTTL h FIELDS 2 a d                        < [:-2, :-1]
        > HPERSIST h FIELDS 1 a                      < [:-2]
        > HEXPIRE h 100 FIELDS 1 a                   < [:-2]
        > HGETEX h FIELDS 1 a                        < [(nil)]
        > HGETDEL h FIELDS 1 a                       < [(nil)]
        > HDEL h a                                   < :0
        > HSETNX h b 7                               < :1
        > HTTL h FIELDS 1 b                          < [:-1]
        > HINCRBY h c 3                              < :3
        > HTTL h FIELDS 1 c                          < [:-1]
        "#,
    );
    // HLEN counts them until they are removed, and only a sweep or a new value removes them.
    check(
        r#"
        > DEBUG SET-ACTIVE-EXPIRE 0                  < OK
        > CONFIG RESETSTAT                           < OK
        > HSET h a 1 b 2 c 3
        > HPEXPIRE h 300 FIELDS 2 a b
        ~ 299ms
        > HLEN h                                     < :3
        ~ 20ms
        > HLEN h                                     < :3
        > HDEL h a c                                 < :1
        > HGETDEL h FIELDS 1 b                       < [(nil)]
        > HLEN h                                     < :2
        > EXISTS h                                   < :1
        > INFO stats                                 < "*expired_fields:0\r*"
        > HSET h a 1                                 < :1
        > HSETEX h PXAT 1 FIELDS 1 b 1               < :1
        > HLEN h                                     < :1
        > INFO stats                                 < "*expired_fields:2\r*"
        > HEXPIRE h 0 FIELDS 2 a b                   < [:2, :-2]
        > EXISTS h                                   < :0
        > HSETEX h PXAT 1 FIELDS 2 a 1 b 2           < :1
        > INFO stats                                 < "*expired_fields:5\r*"
        > HSET h a 1 b 2
        > HGETEX h PXAT 1 FIELDS 2 a x               < ["1", (nil)]
        > INFO stats                                 < "*expired_fields:6\r*"
        "#,
    );
    check(
        r#"
        > HSET h a 1 b 2
        > HPEXPIRE h 5 FIELDS 2 a b
        ~ 10ms
        > HGETALL h                                  < []
        > HRANDFIELD h                               < (nil)
        > HRANDFIELD h 3                             < []
        > HRANDFIELD h -3                            < []
        > HDEL h a b                                 < :0
        > HSET h a 5                                 < :1
        > HGETALL h                                  < ["a", "5"]
        "#,
    );
}

#[test]
fn commands_that_keep_or_clear_field_deadlines() {
    check(
        r#"
        > HSET h a 1 b 2 c 3 d 4
        > HEXPIRE h 100 FIELDS 4 a b c d
        > HSET h a 5                                 < :0
        > HMSET h b 5                                < OK
        > HINCRBY h c 5                              < :8
        > HINCRBYFLOAT h c 0.5                       < "8.5"
        > HSETNX h d 5                               < :0
        > HTTL h FIELDS 4 a b c d                    < [:-1, :-1, :100, :100]
        > COPY h i                                   < :1
        > RENAME i j                                 < OK
        > HTTL j FIELDS 2 a c                        < [:-1, :100]
        > EXPIRE j 10                                < :1
        > PERSIST j                                  < :1
        > HTTL j FIELDS 2 a c                        < [:-1, :100]
        > HPEXPIRE j 5 FIELDS 2 c d
        ~ 10ms
        > HGETALL j                                  < ["a", "5", "b", "5"]
        > HSET j c 1
        > HDEL j c
        > HSET j c 1
        > HTTL j FIELDS 1 c                          < [:-1]
        "#,
    );
}

#[test]
fn conditions() {
    check(
        r#"
        > HSET h a 1 b 2 c 3
        > HEXPIRE h 100 FIELDS 1 a
        > HEXPIRE h 100 NX FIELDS 2 a b              < [:0, :1]
        > HEXPIRE h 50 GT FIELDS 3 a b c             < [:0, :0, :0]
        > HEXPIRE h 200 gt fields 3 a b c            < [:1, :1, :0]
        > HEXPIRE h 300 LT FIELDS 3 a b c            < [:0, :0, :1]
        > HEXPIRE h 30 XX LT FIELDS 3 a b nosuch     < [:1, :1, :-2]
        > HPEXPIREAT h 5 GT FIELDS 1 a               < [:0]
        > HPEXPIREAT h 5 NX FIELDS 1 a               < [:0]
        > HTTL h FIELDS 3 a b c                      < [:30, :30, :300]
        "#,
    );
}

#[test]
fn a_deadline_in_the_past_removes() {
    check(
        r#"
        > HSET h a 1 b 2 c 3
        > HEXPIRE h 0 FIELDS 1 a                     < [:2]
        > HPEXPIREAT h 5 XX FIELDS 1 b               < [:0]
        > HPEXPIREAT h 5 LT FIELDS 2 b b             < [:2, :-2]
        > HGETALL h                                  < ["c", "3"]
        > HEXPIREAT h 1 FIELDS 1 c                   < [:2]
        > EXISTS h                                   < :0
        "#,
    );
}

#[test]
fn refused_commands_change_nothing() {
    check(
        r#"
        > HSET h a 1 b 2
        > SET s x
        > HEXPIRE h 1 FIELDS 1                       < -ERR wrong number of arguments for 'hexpire' command
        > HEXPIRE h 10 FOO 1 a
        < -ERR numfields should be greater than 0 and match the provided number of fields
        > HEXPIRE h 10 FIELDS 2 a
        < -ERR numfields should be greater than 0 and match the provided number of fields
        > HEXPIRE h 10 FIELDS 1 a b
        < -ERR numfields should be greater than 0 and match the provided number of fields
        > HEXPIRE h 10 FIELDS 0 a
        < -ERR numfields should be greater than 0 and match the provided number of fields
        > HEXPIRE h 10 FIELDS -1 a
        < -ERR numfields should be greater than 0 and match the provided number of fields
        > HEXPIRE h 10 FIELDS 9223372036854775807 a
        < -ERR numfields should be greater than 0 and match the provided number of fields
        > HEXPIRE h 10 FIELDS x a                    < -ERR value is not an integer or out of range
        > HEXPIRE h 10 FIELDS FIELDS 1 a             < -ERR value is not an integer or out of range
        > HEXPIRE h x FIELDS 1 a                     < -ERR value is not an integer or out of range
        > HEXPIRE h x FIELDS 2 a
        < -ERR numfields should be greater than 0 and match the provided number of fields
        > HEXPIRE h 10 foo FIELDS 2 a                < -ERR Unsupported option foo
        > HEXPIRE h 10 NX XX FIELDS 1 a
        < -ERR NX and XX, GT or LT options at the same time are not compatible
        > HEXPIRE h 10 GT LT FIELDS 1 a
        < -ERR GT and LT options at the same time are not compatible
        > HEXPIRE h -1 FIELDS 1 a                    < -ERR invalid expire time in 'hexpire' command
        > HEXPIRE s -1 FIELDS 1 a                    < -ERR invalid expire time in 'hexpire' command
        > HEXPIRE h 9223372036854775807 FIELDS 1 a   < -ERR invalid expire time in 'hexpire' command
        > HPEXPIRE h 9223372036854775807 FIELDS 1 a  < -ERR invalid expire time in 'hpexpire' command
        > HEXPIREAT h 9223372036854775807 FIELDS 1 a < -ERR invalid expire time in 'hexpireat' command
        > HPEXPIREAT h -9223372036854775807 FIELDS 1 a < -ERR invalid expire time in 'hpexpireat' command
        > HEXPIRE s 10 FIELDS 1 a                    < -WRONGTYPE *
        > HTTL h FIELD x a                           < -ERR syntax error
        > HTTL s FIELDS 2 a                          < -ERR syntax error
        > HTTL h FIELDS 0 a                          < -ERR syntax error
        > HTTL h FIELDS x a                          < -ERR value is not an integer or out of range
        > HTTL s FIELDS 1 a                          < -WRONGTYPE *
        > HPERSIST h FIELD x a                       < -ERR syntax error
        > HPERSIST s FIELDS 2 a
        < -ERR numfields should be greater than 0 and match the provided number of fields
        > HPERSIST s FIELDS 1 a                      < -WRONGTYPE *
        > HGETALL h                                  < ["a", "1", "b", "2"]
        > HTTL h FIELDS 2 a b                        < [:-1, :-1]
        > OBJECT ENCODING h                          < "listpack"
        > HEXPIRE h 10 FIELDS 1 a
        > OBJECT ENCODING h                          < "hashtable"
        > HPERSIST h FIELDS 1 a
        > OBJECT ENCODING h                          < "hashtable"
        "#,
    );
}

#[test]
fn values_with_deadlines() {
    check(
        r#"
        > HSET h a 1 b 2
        > HGETEX h FIELDS 2 a nosuch                 < ["1", (nil)]
        > HGETEX nosuch FIELDS 2 a b                 < [(nil), (nil)]
        > HGETEX h EX 10 FIELDS 2 a a                < ["1", "1"]
        > HTTL h FIELDS 2 a b                        < [:10, :-1]
        > HGETEX h PXAT 33177117420123 FIELDS 1 a    < ["1"]
        > HGETEX h FIELDS 1 a                        < ["1"]
        > HPEXPIRETIME h FIELDS 1 a                  < [:33177117420123]
        > HGETEX h PERSIST FIELDS 2 a b              < ["1", "2"]
        > HTTL h FIELDS 2 a b                        < [:-1, :-1]
        > HGETEX h EX 0 FIELDS 2 a a                 < ["1", (nil)]
        > HGETEX h PXAT 1 FIELDS 1 b                 < ["2"]
        > EXISTS h                                   < :0
        > HSETEX h EX 10 FIELDS 2 a 1 b 2            < :1
        > HTTL h FIELDS 2 a b                        < [:10, :10]
        > HSETEX h KEEPTTL FIELDS 2 a 3 c 3          < :1
        > HSETEX h FIELDS 1 b 4                      < :1
        > HTTL h FIELDS 3 a b c                      < [:10, :-1, :-1]
        > HSETEX h FNX FIELDS 2 c 8 d 8              < :0
        > HSETEX h FXX FIELDS 2 c 8 d 8              < :0
        > HSETEX h FNX FNX FIELDS 2 d 8 d 9          < :1
        > HSETEX h FXX PX 9000 FIELDS 1 d 10         < :1
        > HGETALL h                                  < ["a", "3", "b", "4", "c", "3", "d", "10"]
        > HSETEX h NX FIELDS 1 a 1                   < :0
        > HSETEX nosuch XX FIELDS 1 a 1              < :0
        > HSETEX nosuch FXX FIELDS 1 a 1             < :0
        > HSETEX nosuch EX 0 FIELDS 1 a 1            < :1
        > EXISTS nosuch                              < :0
        > HSETEX nosuch NX EXAT 1 FIELDS 1 a 1       < :1
        > EXISTS nosuch                              < :0
        > HSETEX h EX 0 FIELDS 3 a 1 b 1 e 1         < :1
        > HGETDEL h FIELDS 3 c nosuch c              < ["3", (nil), (nil)]
        > HGETDEL h FIELDS 1 d                       < ["10"]
        > EXISTS h                                   < :0
        > HGETDEL h FIELDS 1 d                       < [(nil)]
        "#,
    );
}

#[test]
fn values_with_deadlines_refused() {
    check(
        r#"
        > HSET h a 1
        > SET s x
        > HGETEX h FIELDS 2 a
        < -ERR numfields should be greater than 0 and match the provided number of fields
        > HGETEX h EX FIELDS 1 a                     < -ERR syntax error
        > HGETEX h EX 10 PX 10 FIELDS 1 a            < -ERR syntax error
        > HGETEX h KEEPTTL FIELDS x a                < -ERR syntax error
        > HGETEX h NX FIELDS 1 a                     < -ERR syntax error
        > HGETEX h EX x FIELDS 2 a
        < -ERR numfields should be greater than 0 and match the provided number of fields
        > HGETEX h EX x FIELDS 1 a                   < -ERR value is not an integer or out of range
        > HGETEX h EX -1 FIELDS 1 a                  < -ERR invalid expire time in 'hgetex' command
        > HGETEX nosuch EX -1 FIELDS 1 a             < -ERR invalid expire time in 'hgetex' command
        > HGETEX s EX -1 FIELDS 1 a                  < -WRONGTYPE *
        > HGETEX h EX 10 FIELDS
        < -ERR numfields should be greater than 0 and match the provided number of fields
        > HSETEX h FIELDS 1 a                        < -ERR wrong number of arguments for 'hsetex' command
        > HSETEX h FIELDS 1 a 1 b
        < -ERR numfields should be greater than 0 and match the provided number of fields
        > HSETEX h FOO 1 a 1
        < -ERR numfields should be greater than 0 and match the provided number of fields
        > HSETEX h PERSIST FIELDS 1 a 1              < -ERR syntax error
        > HSETEX h NX XX FIELDS 1 a 1                < -ERR syntax error
        > HSETEX h FNX FXX FIELDS 1 a 1              < -ERR syntax error
        > HSETEX h EX 10 KEEPTTL FIELDS 1 a 1        < -ERR syntax error
        > HSETEX h EX -1 FIELDS 1 a 1                < -ERR invalid expire time in 'hsetex' command
        > HSETEX nosuch XX EX x FIELDS 1 a 1         < :0
        > HSETEX h FXX EX -5 FIELDS 1 nosuch 1       < -ERR invalid expire time in 'hsetex' command
        > HSETEX s EX -1 FIELDS 1 a 1                < -WRONGTYPE *
        > HSETEX s XX FIELDS 1 a 1                   < -WRONGTYPE *
        > HGETDEL h FOO 1 a                          < -ERR syntax error
        > HGETDEL s FIELDS 2 a
        < -ERR numfields should be greater than 0 and match the provided number of fields
        > HGETDEL s FIELDS 1 a                       < -WRONGTYPE *
        > HGETALL h                                  < ["a", "1"]
        > HTTL h FIELDS 1 a                          < [:-1]
        "#,
    );
}

#[test]
fn removal_of_expired_fields_invalidates_watches() {
    let mut world = World::new();
    world.check("> HSET h a 1 b 2\n > HPEXPIRE h 5 FIELDS 1 a\n a> WATCH h");
    world.check("> HEXPIRE h 5 NX FIELDS 1 nosuch\n > HGETEX h FIELDS 1 b\n > HPERSIST h FIELDS 1 b");
    world.check(
        "a> MULTI\n a> EXEC < []\n a> WATCH h\n > HGETEX h EX 100 FIELDS 1 b\n a> MULTI\n \
                 a> EXEC < (nil array)",
    );
}

/// A timed field makes no timed key.
#[test]
fn info_counts_no_timed_field_as_timed_key() {
    let mut world = World::new();
    world.check(
        r##"
        > HSET h a 1 b 2
        > HEXPIRE h 100 FIELDS 2 a b
        > COPY h i
        > EXPIRE i 100
        > INFO keyspace
        < "# Keyspace\r\ndb0:keys=2,expires=1,avg_ttl=*,keys_with_volatile_items=2*"
        > TTL h                         < :-1
        > HPERSIST h FIELDS 2 a b
        > PERSIST i
        > INFO keyspace
        < "# Keyspace\r\ndb0:keys=2,expires=0,avg_ttl=0,keys_with_volatile_items=1*"
        > HDEL i a b
        > INFO keyspace
        < "# Keyspace\r\ndb0:keys=1,expires=0,avg_ttl=0,keys_with_volatile_items=0*"
        "##,
    );
}

#[test]
fn changes_counted_by_each_command() {
    let mut world = World::new();
    let changes = |world: &mut World| world.server.core.keyspace.total().dirty;
    for (line, expected) in [
        ("HSET h a 1 b 2 c 3", 3),
        ("HSETNX h a 1", 0),
        ("HDEL h nosuch", 0),
        ("HEXPIRE h 100 FIELDS 3 a b nosuch", 2),
        ("HEXPIRE h 100 NX FIELDS 3 a b nosuch", 0),
        ("HPERSIST h FIELDS 3 a b c", 2),
        ("HPERSIST h FIELDS 3 a b c", 0),
        ("HGETEX h FIELDS 2 a b", 0),
        ("HGETEX h EX 100 FIELDS 3 a b nosuch", 2),
        ("HGETEX h PERSIST FIELDS 3 a b nosuch", 2),
        ("HGETEX h PERSIST FIELDS 3 a b nosuch", 0),
        ("HGETEX h PXAT 1 FIELDS 2 a nosuch", 1),
        ("HSETEX h FIELDS 2 a 1 d 1", 2),
        ("HSETEX h FXX KEEPTTL FIELDS 2 a 1 d 1", 2),
        ("HSETEX h FNX KEEPTTL FIELDS 2 a 1 d 1", 0),
        ("HSETEX h EX 0 FIELDS 2 a 1 new 1", 1),
        ("HSETEX nosuch EX 0 FIELDS 2 a 1 new 1", 0),
        ("HGETDEL h FIELDS 2 d nosuch", 1),
        ("HGETDEL h FIELDS 1 nosuch", 0),
        ("HEXPIREAT h 1 FIELDS 2 b c", 2),
        ("EXISTS h", 0),
        ("HINCRBY h a 1", 1),
        ("HDEL h a", 1),
    ] {
        let before = changes(&mut world);
        world.run(line);
        assert_eq!(changes(&mut world) - before, expected, "{line}");
    }
}
