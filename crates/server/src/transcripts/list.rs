//! Lists as a client sees them. Commands that Redis has run on redis-server as well, if it is installed.

use crate::testing::{World, check};

#[test]
fn ends_are_pushed_and_popped() {
    check(
        r#"
        > LPUSH k a b c                        < :3
        > RPUSH k d ""                         < :5
        > LRANGE k 0 -1                        < ["c", "b", "a", "d", ""]
        > LPOP k                               < "c"
        > RPOP k                               < ""
        > LPOP k 2                             < ["b", "a"]
        > LPUSH k e f                          < :3
        > RPOP k 2                             < ["d", "e"]
        > LPOP k 0                             < []
        > RPOP k 9223372036854775807           < ["f"]
        > EXISTS k                             < :0
        > LPOP k                               < (nil)
        > LPOP k 0                             < (nil array)
        > RPOP k 1                             < (nil array)
        > LPOP k -1                            < -ERR value is out of range, must be positive
        > LPOP k x                             < -ERR value is out of range, must be positive
        > LPOP k 1 2                           < -ERR wrong number of arguments for 'lpop' command
        > RPOP k 1 2                           < -ERR wrong number of arguments for 'rpop' command
        > LPUSH k                              < -ERR wrong number of arguments for 'lpush' command
        > LPUSHX k a                           < :0
        > RPUSHX k a b                         < :0
        > EXISTS k                             < :0
        > RPUSH k a                            < :1
        > RPUSHX k b c                         < :3
        > LPUSHX k 2 1                         < :5
        > LRANGE k 0 -1                        < ["1", "2", "a", "b", "c"]
        > LLEN k                               < :5
        > LLEN none                            < :0
        > TYPE k                               < list
        > OBJECT ENCODING k                    < "listpack"
    "#,
    );
}

#[test]
fn a_list_is_a_quicklist_until_it_has_shrunk_to_half_the_limit() {
    let (long, longer) = ("x".repeat(8_172), "x".repeat(8_192));
    check(&format!(
        r#"
        > CONFIG SET list-max-listpack-size 4  < OK
        > RPUSH k a b c d                      < :4
        > OBJECT ENCODING k                    < "listpack"
        > LSET k 0 e                           < OK
        > OBJECT ENCODING k                    < "quicklist"
        > RPOP k                               < "d"
        > OBJECT ENCODING k                    < "quicklist"
        > LREM k 1 b                           < :1
        > OBJECT ENCODING k                    < "listpack"
        > LINSERT k AFTER e f                  < :3
        > LMOVE k k LEFT RIGHT                 < "e"
        > OBJECT ENCODING k                    < "listpack"
        > RPUSHX k 1 2                         < :5
        > OBJECT ENCODING k                    < "quicklist"
        > LTRIM k 0 1                          < OK
        > OBJECT ENCODING k                    < "listpack"
        > CONFIG SET list-max-listpack-size -2 < OK
        > RPUSH long {long}                    < :1
        > OBJECT ENCODING long                 < "listpack"
        > RPUSH long ab                        < :2
        > OBJECT ENCODING long                 < "listpack"
        > RPUSH long abc                       < :3
        > OBJECT ENCODING long                 < "quicklist"
        > LTRIM long 2 2                       < OK
        > OBJECT ENCODING long                 < "listpack"
        > RPUSH longer {longer}                < :1
        > OBJECT ENCODING longer               < "quicklist"
        > SORT k ALPHA STORE sorted            < :2
        > OBJECT ENCODING sorted               < "listpack"
        > CONFIG SET list-max-listpack-size 0  < OK
        > RPUSH one a                          < :1
        > OBJECT ENCODING one                  < "listpack"
        > RPUSH one b                          < :2
        > OBJECT ENCODING one                  < "quicklist"
    "#,
    ));
}

#[test]
fn positions_count_from_either_end() {
    check(
        r#"
        > RPUSH k a b c d e                    < :5
        > LINDEX k 0                           < "a"
        > LINDEX k -1                          < "e"
        > LINDEX k -5                          < "a"
        > LINDEX k 5                           < (nil)
        > LINDEX k -6                          < (nil)
        > LINDEX k -9223372036854775808        < (nil)
        > LINDEX k 9223372036854775808         < -ERR value is not an integer or out of range
        > LINDEX none x                        < (nil)
        > LSET k 1 B                           < OK
        > LSET k -1 E                          < OK
        > LSET k 5 x                           < -ERR index out of range
        > LSET k -6 x                          < -ERR index out of range
        > LSET k x x                           < -ERR value is not an integer or out of range
        > LSET none x x                        < -ERR no such key
        > EXISTS none                          < :0
        > LRANGE k 0 -1                        < ["a", "B", "c", "d", "E"]
        > LRANGE k 1 2                         < ["B", "c"]
        > LRANGE k -2 100                      < ["d", "E"]
        > LRANGE k -100 0                      < ["a"]
        > LRANGE k 3 2                         < []
        > LRANGE k 5 9                         < []
        > LRANGE k 0 -6                        < []
        > LRANGE k -9223372036854775808 9223372036854775807 < ["a", "B", "c", "d", "E"]
        > LRANGE none 0 -1                     < []
        > LRANGE k x 1                         < -ERR value is not an integer or out of range
        > LRANGE none 0 x                      < -ERR value is not an integer or out of range
        > LTRIM k 1 -2                         < OK
        > LRANGE k 0 -1                        < ["B", "c", "d"]
        > LTRIM k 0 -1                         < OK
        > LTRIM k -1 -1                        < OK
        > LRANGE k 0 -1                        < ["d"]
        > LTRIM none 0 1                       < OK
        > LTRIM k x 1                          < -ERR value is not an integer or out of range
        > LTRIM k 1 0                          < OK
        > EXISTS k none                        < :0
    "#,
    );
}

#[test]
fn lpos_finds_elements() {
    check(
        r#"
        > RPUSH k a b c a b c a                < :7
        > LPOS k a                             < :0
        > LPOS k x                             < (nil)
        > LPOS none a                          < (nil)
        > LPOS none a COUNT 0                  < []
        > LPOS k a COUNT 0                     < [:0, :3, :6]
        > LPOS k a COUNT 2                     < [:0, :3]
        > LPOS k x COUNT 2                     < []
        > LPOS k a RANK 2                      < :3
        > LPOS k a RANK -1                     < :6
        > LPOS k a RANK -2 COUNT 0             < [:3, :0]
        > LPOS k a RANK 4                      < (nil)
        > LPOS k a RANK 9223372036854775807 COUNT 0 < []
        > LPOS k c MAXLEN 2                    < (nil)
        > LPOS k c MAXLEN 3                    < :2
        > LPOS k a MAXLEN 6 COUNT 0            < [:0, :3]
        > LPOS k a MAXLEN 6 COUNT 0 RANK -1    < [:6, :3]
        > LPOS k a rank 1 rank 2 count 5 count 0 < [:3, :6]
        > LPOS k a RANK 0
        < -ERR RANK can't be zero: use 1 to start from the first match, \
            2 from the second ... or use negative to start from the end of the list
        > LPOS k a RANK x                      < -ERR value is not an integer or out of range
        > LPOS k a COUNT -1                    < -ERR COUNT can't be negative
        > LPOS k a COUNT x                     < -ERR COUNT can't be negative
        > LPOS k a MAXLEN -1                   < -ERR MAXLEN can't be negative
        > LPOS k a RANK                        < -ERR syntax error
        > LPOS none a FOO 1                    < -ERR syntax error
        > LREM k 0 x                           < :0
        > LREM k 1 b                           < :1
        > LREM k -2 a                          < :2
        > LRANGE k 0 -1                        < ["a", "c", "b", "c"]
        > LREM k 0 c                           < :2
        > LREM k x a                           < -ERR value is not an integer or out of range
        > LREM none 0 a                        < :0
        > LREM k -9223372036854775807 a        < :1
        > LREM k 0 b                           < :1
        > EXISTS k                             < :0
        > RPUSH k a b a                        < :3
        > LINSERT k BEFORE b x                 < :4
        > LINSERT k after a y                  < :5
        > LINSERT k AFTER none z               < :-1
        > LINSERT none AFTER a z               < :0
        > LINSERT none around a z              < -ERR syntax error
        > LRANGE k 0 -1                        < ["a", "y", "x", "b", "a"]
    "#,
    );
}

#[test]
fn elements_are_moved() {
    check(
        r#"
        > RPUSH k a b c d                      < :4
        > LMOVE k j LEFT RIGHT                 < "a"
        > LMOVE k j right left                 < "d"
        > RPOPLPUSH k j                        < "c"
        > LRANGE j 0 -1                        < ["c", "d", "a"]
        > LRANGE k 0 -1                        < ["b"]
        > LMOVE j j LEFT RIGHT                 < "c"
        > RPOPLPUSH j j                        < "c"
        > LMOVE j j LEFT LEFT                  < "c"
        > LRANGE j 0 -1                        < ["c", "d", "a"]
        > RPOPLPUSH k k                        < "b"
        > LMOVE k j LEFT LEFT                  < "b"
        > EXISTS k                             < :0
        > LMOVE k j LEFT LEFT                  < (nil)
        > RPOPLPUSH k j                        < (nil)
        > LMOVE k j UP LEFT                    < -ERR syntax error
        > SET s 1                              < OK
        > LMOVE k s LEFT LEFT                  < (nil)
        > LMOVE j s LEFT LEFT                  < -WRONGTYPE*
        > LMOVE s j LEFT LEFT                  < -WRONGTYPE*
        > LRANGE j 0 -1                        < ["b", "c", "d", "a"]
        > LMPOP 2 k j LEFT                     < ["j", ["b"]]
        > LMPOP 2 k j RIGHT COUNT 2            < ["j", ["a", "d"]]
        > LMPOP 1 k LEFT                       < (nil array)
        > LMPOP 2 s j LEFT                     < -WRONGTYPE*
        > LMPOP 2 j s LEFT COUNT 10            < ["j", ["c"]]
        > LMPOP 0 j LEFT                       < -ERR numkeys should be greater than 0
        > LMPOP x j LEFT                       < -ERR numkeys should be greater than 0
        > LMPOP 2 j LEFT                       < -ERR syntax error
        > LMPOP 3 j LEFT                       < -ERR syntax error
        > LMPOP 9223372036854775807 j LEFT     < -ERR syntax error
        > LMPOP 1 j UP                         < -ERR syntax error
        > LMPOP 1 j LEFT COUNT                 < -ERR syntax error
        > LMPOP 1 j LEFT COUNT 0               < -ERR count should be greater than 0
        > LMPOP 1 j LEFT COUNT x y             < -ERR count should be greater than 0
        > LMPOP 1 j LEFT COUNT 1 COUNT 1       < -ERR syntax error
        > LMPOP 1 j LEFT FOO 1                 < -ERR syntax error
    "#,
    );
}

/// The replies are those that the tests of Redis 8.10 expect.
#[test]
fn several_elements_are_moved() {
    World::new().check(
        r#"
        > RPUSH k 1 2 3 4 5 6                            < :6
        > LMOVEM k j LEFT RIGHT                          < ["1"]
        > LMOVEM k j LEFT LEFT COUNT 2 OBO               < ["3", "2"]
        > LRANGE j 0 -1                                  < ["3", "2", "1"]
        > LMOVEM k j LEFT LEFT COUNT 2 BULK              < ["4", "5"]
        > LMOVEM k j RIGHT RIGHT EXACTLY 2 BULK          < (nil array)
        > LMOVEM k j RIGHT RIGHT COUNT 2 BULK            < ["6"]
        > EXISTS k                                       < :0
        > LRANGE j 0 -1                                  < ["4", "5", "3", "2", "1", "6"]
        > LMOVEM j k RIGHT RIGHT EXACTLY 3 OBO           < ["6", "1", "2"]
        > LMOVEM j k RIGHT LEFT COUNT 2 OBO              < ["5", "3"]
        > LRANGE k 0 -1                                  < ["5", "3", "6", "1", "2"]
        > LMOVEM k j RIGHT RIGHT EXACTLY 2 BULK          < ["1", "2"]
        > LRANGE j 0 -1                                  < ["4", "1", "2"]
        > LMOVEM j j LEFT RIGHT COUNT 2 BULK             < ["4", "1"]
        > LRANGE j 0 -1                                  < ["2", "4", "1"]
        > LMOVEM j j RIGHT RIGHT COUNT 2 OBO             < ["1", "4"]
        > LMOVEM j j RIGHT RIGHT COUNT 2 BULK            < ["1", "4"]
        > LRANGE j 0 -1                                  < ["2", "1", "4"]
        > EXPIRE j 100
        > LMOVEM j j LEFT RIGHT COUNT 9 BULK             < ["2", "1", "4"]
        > TTL j                                          < :100
        > LMOVEM none j LEFT RIGHT                       < (nil array)
        > LMOVEM none j LEFT RIGHT COUNT 5 OBO           < (nil array)
        > SET s v
        > LMOVEM s j LEFT RIGHT                          < -WRONGTYPE*
        > LMOVEM j s LEFT RIGHT COUNT 2 BULK             < -WRONGTYPE*
        > LMOVEM none s LEFT RIGHT                       < (nil array)
        > LLEN j                                         < :3
        > LMOVEM k j LEFT RIGHT COUNT 0 BULK             < -ERR count should be greater than 0
        > LMOVEM k j LEFT RIGHT EXACTLY -1 BULK          < -ERR count should be greater than 0
        > LMOVEM k j LEFT RIGHT COUNT a BULK             < -ERR count should be greater than 0
        > LMOVEM k j LEFT RIGHT COUNT 2                  < -ERR syntax error
        > LMOVEM k j LEFT RIGHT COUNT 2 OBO more         < -ERR syntax error
        > LMOVEM k j LEFT RIGHT bad 2 OBO                < -ERR syntax error
        > LMOVEM k j LEFT RIGHT COUNT 2 bad              < -ERR syntax error
        > LMOVEM k j bad RIGHT                           < -ERR syntax error
        > LMOVEM k j LEFT                       < -ERR wrong number of arguments for 'lmovem' command
        a> HELLO 3                                       < *
        a> LMOVEM none j LEFT RIGHT                      < (null)
    "#,
    );
}

#[test]
fn blocking_moves_wait_for_enough_elements() {
    World::new().check(
        r#"
        > RPUSH k 1 2 3                                  < :3
        > BLMOVEM k j LEFT RIGHT 0 COUNT 2 BULK          < ["1", "2"]
        > BLMOVEM k j LEFT RIGHT 0                       < ["3"]
        a> BLMOVEM k j LEFT LEFT 0 EXACTLY 3 OBO
        b> BLMOVEM k j LEFT RIGHT 0 COUNT 1 BULK
        c> BLPOP k 0
        ~ 5ms
        > RPUSH k 1                                      < :1
        b< ["1"]
        > RPUSH k 2                                      < :1
        c< ["k", "2"]
        > RPUSH k 3 5                                    < :2
        > LINSERT k BEFORE 5 4                           < :3
        a< ["5", "4", "3"]
        > LRANGE j 0 -1                                  < ["5", "4", "3", "1", "2", "3", "1"]
        a> BLMOVEM k j LEFT RIGHT 0 EXACTLY 2 BULK
        b> BLMOVEM j x LEFT RIGHT 0 EXACTLY 9 BULK
        ~ 5ms
        > SORT j BY nosort LIMIT 0 2 STORE k             < :2
        a< ["5", "4"]
        b< ["5", "4", "3", "1", "2", "3", "1", "5", "4"]
        a> BLMOVEM k s LEFT RIGHT 0 COUNT 2 BULK
        ~ 5ms
        > SET s v                                        < OK
        > RPUSH k 1                                      < :1
        a< -WRONGTYPE*
        a> BLMOVEM k j LEFT RIGHT 0.01 EXACTLY 2 BULK
        ~ 20ms
        a< (nil array)
        > BLMOVEM k j LEFT RIGHT x COUNT 0 BULK          < -ERR count should be greater than 0
        > BLMOVEM k j LEFT RIGHT x                       < -ERR timeout is not a float or out of range
        > BLMOVEM k j LEFT RIGHT 0 COUNT 1               < -ERR syntax error
        > MULTI                                          < OK
        > BLMOVEM k j LEFT RIGHT 0 EXACTLY 2 BULK        < QUEUED
        > EXEC                                           < [(nil array)]
    "#,
    );
}

#[test]
fn other_types_are_refused() {
    for command in [
        "LPUSH s a",
        "RPUSH s a",
        "LPUSHX s a",
        "RPUSHX s a",
        "LPOP s",
        "RPOP s",
        "LPOP s 0",
        "LLEN s",
        "LINDEX s x",
        "LSET s x a",
        "LRANGE s 0 1",
        "LTRIM s 0 1",
        "LINSERT s BEFORE a b",
        "LREM s 0 a",
        "LPOS s a",
        "LMPOP 1 s LEFT",
        "LMOVE s k LEFT LEFT",
        "RPOPLPUSH s k",
        "BLPOP s 0",
        "BRPOP k s 0",
        "BLMOVE s k LEFT LEFT 0",
        "BRPOPLPUSH s k 0",
        "BLMPOP 0 1 s LEFT",
    ] {
        check(&format!(
            "
            > SET s 1     < OK
            > {command}   < -WRONGTYPE Operation against a key holding the wrong kind of value
            > GET s       < \"1\"
        "
        ));
    }
}

#[test]
fn blocking_pops_wait_for_elements() {
    check(
        r#"
        a> BLPOP j k 0
        ~ 5ms
        > RPUSH k 1 2 3                        < :3
        a< ["k", "1"]
        a> BRPOP j k 0                         < ["k", "3"]
        a> BLPOP k 0                           < ["k", "2"]
        a> BLMOVE k j LEFT RIGHT 0
        b> BLMPOP 0 2 none j LEFT COUNT 3
        ~ 5ms
        > RPUSH k 1 2                          < :2
        a< "1"
        b< ["j", ["1"]]
        > LRANGE k 0 -1                        < ["2"]
        a> BRPOPLPUSH k k 0                    < "2"
        a> BLMPOP 0 1 k RIGHT COUNT 10         < ["k", ["2"]]
        a> BLMOVE k s LEFT LEFT 0
        b> BLPOP k 0
        ~ 5ms
        > SET s 1                              < OK
        > LPUSH k v                            < :1
        a< -WRONGTYPE*
        b< ["k", "v"]
        a> BLPOP k 0
        ~ 5ms
        > SET k v                              < OK
        > DEL k                                < :1
        > RPUSH k v                            < :1
        a< ["k", "v"]
    "#,
    );
}

#[test]
fn blocking_pops_time_out() {
    check(
        r#"
        a> BLPOP k 0.01
        b> BRPOP j k 0.01
        c> BLMOVE k j LEFT LEFT 0.01
        d> BRPOPLPUSH k j 0.01
        e> BLMPOP 0.01 1 k LEFT
        ~ 20ms
        a< (nil array)
        b< (nil array)
        c< (nil array)
        d< (nil array)
        e< (nil array)
        > BLPOP k -1                           < -ERR timeout is negative
        > BLPOP k x                            < -ERR timeout is not a float or out of range
        > BLMOVE k j UP LEFT x                 < -ERR syntax error
        > BLMOVE k j LEFT LEFT x               < -ERR timeout is not a float or out of range
        > BRPOPLPUSH k j -1                    < -ERR timeout is negative
        > BLMPOP x 1 k UP                      < -ERR syntax error
        > BLMPOP x 0 k LEFT                    < -ERR numkeys should be greater than 0
        > BLMPOP x 1 k LEFT                    < -ERR timeout is not a float or out of range
        > MULTI                                < OK
        > BLPOP k 0                            < QUEUED
        > BLMOVE k j LEFT LEFT 0               < QUEUED
        > BRPOPLPUSH k j 0                     < QUEUED
        > BLMPOP 0 1 k LEFT                    < QUEUED
        > RPUSH k v                            < QUEUED
        > BRPOP k 0                            < QUEUED
        > EXEC                                 < [(nil array), (nil), (nil), (nil array), :1, ["k", "v"]]
    "#,
    );
}

#[test]
fn one_push_serves_many_clients() {
    check(
        r#"
        a> BLPOP k 0
        b> BLMPOP 0 1 k RIGHT COUNT 2
        c> BRPOPLPUSH k k2 0
        d> BLPOP k2 0
        ~ 5ms
        > RPUSH k 1 2 3 4 5                    < :5
        a< ["k", "1"]
        b< ["k", ["5", "4"]]
        c< "3"
        d< ["k2", "3"]
        > LRANGE k 0 -1                        < ["2"]
        > EXISTS k2                            < :0
        a> BLMOVE x y LEFT LEFT 0
        b> BLMOVE y z LEFT LEFT 0
        c> BLMOVE z x LEFT LEFT 0
        ~ 5ms
        > RPUSH x v                            < :1
        a< "v"
        b< "v"
        c< "v"
        > LRANGE x 0 -1                        < ["v"]
    "#,
    );
}

/// A write to a key under WATCH, whether or not anything is different afterwards.
#[test]
fn writes_to_watched_lists_abort_exec() {
    for (command, aborts) in [
        ("LTRIM k 0 -1", false),
        ("LTRIM none 0 -1", false),
        ("LREM k 0 x", false),
        ("LSET k 0 a", true),
        ("LINSERT k BEFORE x y", false),
        ("LPOP k 0", false),
        ("LMOVE k k LEFT LEFT", true),
        ("RPUSHX none a", false),
        ("LMOVE j k LEFT LEFT", true),
    ] {
        let reply = if aborts { "(nil array)" } else { "[PONG]" };
        check(&format!(
            "
            > RPUSH k a b     < :2
            > RPUSH j a       < :1
            > WATCH k none    < OK
            w> {command}
            > MULTI           < OK
            > PING            < QUEUED
            > EXEC            < {reply}
        "
        ));
    }
}

/// Redis 7.0 negates it and gets the same number.
#[test]
fn the_smallest_integer_is_refused() {
    World::new().check(
        "
        > LREM k -9223372036854775808 a
        < -ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807
        > LPOS k a RANK -9223372036854775808
        < -ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807
    ",
    );
}

/// As INFO counts them, and Redis does.
#[test]
fn changes_are_counted() {
    let mut total = 0;
    let mut script = String::from("> CONFIG RESETSTAT < OK\n");
    for (command, changes) in [
        ("RPUSH k a b c a b c", 6),
        ("LPOP k", 1),
        ("RPOP k 2", 2),
        ("LREM k 0 b", 1),
        ("LMOVE k j LEFT LEFT", 1),
        ("LMOVE k j LEFT LEFT", 1),
        ("RPUSH k a b c d", 4),
        ("LTRIM k 1 2", 2),
        ("LTRIM k 0 -1", 0),
        ("LMPOP 1 k LEFT COUNT 5", 2),
        ("RPOPLPUSH j j", 1),
        ("LSET j 0 x", 1),
        ("LINSERT j AFTER x y", 1),
        ("LTRIM j 5 1", 3),
        ("LPOP none", 0),
    ] {
        total += changes;
        script +=
            &format!("> {command}\n> INFO persistence < \"*rdb_changes_since_last_save:{total}\\r*\"\n");
    }
    check(&script);
}

/// Lists of many pages, and elements longer than a page.
#[test]
fn long_lists_and_long_elements() {
    let mut world = World::new();
    let numbers: Vec<String> = (0..20_000).map(|number| number.to_string()).collect();
    world.check(&format!("> RPUSH k {} < :20000", numbers.join(" ")));
    let long = "x".repeat(100_000);
    world.check(&format!(
        "
        > LINDEX k 12345              < \"12345\"
        > LPOS k 19999                < :19999
        > LPOS k 5 RANK -1            < :5
        > LINSERT k AFTER 777 {long}  < :20001
        > LINDEX k 778                < \"{long}\"
        > COPY k copy                 < :1
        > LREM k -1 {long}            < :1
        > LSET k 10000 {long}         < OK
        > LMOVE k k LEFT RIGHT        < \"0\"
        > LRANGE k 9998 10000         < [\"9999\", \"{long}\", \"10001\"]
        > LTRIM k 9999 9999           < OK
        > LRANGE k 0 -1               < [\"{long}\"]
        > LINDEX copy 778             < \"{long}\"
        > LLEN copy                   < :20001
        > LPOP copy 2                 < [\"0\", \"1\"]
        > RPOP copy 2                 < [\"19999\", \"19998\"]
        > DEL copy k                  < :2
    "
    ));
    world.verify();
}
