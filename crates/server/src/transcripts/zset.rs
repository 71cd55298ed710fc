//! Transcripts of zset commands.

use crate::testing::{World, check};
use std::time::{Duration, Instant};

#[test]
fn zadd_zscore_and_zrem() {
    check(
        r#"
        > ZADD z 1 a 2 b 3 c 0.1 d inf f -inf g < :6
        > ZADD z 5 a 7 h                        < :1
        > ZADD z CH 6 a 7 h 8 i                 < :2
        > ZADD z NX CH 1 a 1 j                  < :1
        > ZADD z XX CH 1 nosuch 2 j             < :1
        > ZADD z GT CH 1 a 100 b                < :1
        > ZADD z LT CH 1 a 100 b 4 new          < :2
        > ZADD z XX GT CH 1 nosuch              < :0
        > ZADD z INCR 5 a                       < "6"
        > ZADD z INCR 5 brand-new               < "5"
        > ZADD z NX INCR 5 a                    < (nil)
        > ZADD z XX INCR 5 nosuch               < (nil)
        > ZADD z GT INCR -1 a                   < (nil)
        > ZADD z LT INCR -1 a                   < "5"
        > ZADD nosuch XX 1 a                    < :0
        > EXISTS nosuch                         < :0
        > ZINCRBY z 0.25 a                      < "5.25"
        > ZINCRBY z 1e3 another                 < "1000"
        > ZRANGE z 0 -1 WITHSCORES
        < ["g", "-inf", "d", "0.1", "j", "2", "c", "3", "new", "4", "brand-new", "5", "a", \
            "5.25", "h", "7", "i", "8", "b", "100", "another", "1000", "f", "inf"]
        > ZSCORE z a                            < "5.25"
        > ZSCORE z nosuch                       < (nil)
        > ZSCORE nosuch a                       < (nil)
        > ZMSCORE z a nosuch g                  < ["5.25", (nil), "-inf"]
        > ZMSCORE nosuch a b                    < [(nil), (nil)]
        > ZCARD z                               < :12
        > ZCARD nosuch                          < :0
        > ZRANK z g                             < :0
        > ZRANK z a                             < :6
        > ZREVRANK z g                          < :11
        > ZRANK z nosuch                        < (nil)
        > ZRANK nosuch a                        < (nil)
        > ZREM z a b nosuch a                   < :2
        > ZREM z c d f g h i j new another brand-new < :10
        > EXISTS z                              < :0
        > ZREM z a                              < :0
        "#,
    );
}

#[test]
fn zadd_refuses_invalid_arguments() {
    check(
        r#"
        > SET str v                             < OK
        > ZADD z NX XX 1 a                      < -ERR XX and NX options at the same time are not compatible
        > ZADD z NX GT 1 a
        < -ERR GT, LT, and/or NX options at the same time are not compatible
        > ZADD z LT NX 1 a
        < -ERR GT, LT, and/or NX options at the same time are not compatible
        > ZADD z GT LT 1 a
        < -ERR GT, LT, and/or NX options at the same time are not compatible
        > ZADD z NX XX GT 1 a b                 < -ERR syntax error
        > ZADD z INCR 5 a 7 h                   < -ERR INCR option supports a single increment-element pair
        > ZADD z 1                              < -ERR wrong number of arguments for 'zadd' command
        > ZADD z NX 1                           < -ERR syntax error
        > ZADD z NX CH                          < -ERR syntax error
        > ZADD z 1 a 2                          < -ERR syntax error
        > ZADD z 1 a x b                        < -ERR value is not a valid float
        > ZADD z nan a                          < -ERR value is not a valid float
        > ZADD z 1e400 a                        < -ERR value is not a valid float
        > ZADD z 1e-400 a                       < -ERR value is not a valid float
        > ZADD z " 1" a                         < -ERR value is not a valid float
        > ZADD z "" a                           < -ERR value is not a valid float
        > ZADD z 1 NX a                         < -ERR syntax error
        > ZINCRBY z nx 1                        < -ERR syntax error
        > ZINCRBY z CH x                        < -ERR syntax error
        > ZINCRBY z x a                         < -ERR value is not a valid float
        > EXISTS z                              < :0
        > ZADD str 1 a
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > ZADD str x a                          < -ERR value is not a valid float
        > ZINCRBY str 1 a
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > ZREM str a
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > ZSCORE str a
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > ZMSCORE str a
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > ZCARD str
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > ZRANK str a
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > ZADD z inf a                          < :1
        > ZINCRBY z -inf a                      < -ERR resulting score is not a number (NaN)
        > ZADD z INCR -inf a                    < -ERR resulting score is not a number (NaN)
        > ZADD z 1 b -inf c                     < :2
        > ZSCORE z a                            < "inf"
        "#,
    );
}

#[test]
fn scores_of_all_magnitudes() {
    check(
        r#"
        > ZADD z 0x10 hex                       < -ERR value is not a valid float
        > ZADD z 16. sixteen 25e-2 quarter 1e19 big .5 half +3 three 1e-5 little < :6
        > ZRANGE z 0 -1 WITHSCORES
        < ["little", "0.00001", "quarter", "0.25", "half", "0.5", "three", "3", "sixteen", "16", "big", "1e+19"]
        > ZADD y 3 a -0 b 0 c                   < :3
        > ZRANGE y 0 -1 WITHSCORES              < ["b", "0", "c", "0", "a", "3"]
        > ZADD y 0 b                            < :0
        > CONFIG SET zset-max-listpack-entries 2 < OK
        > ZADD x -0 a -0 b -0 c 0 d             < :4
        > ZRANGE x 0 -1 WITHSCORES              < ["a", "-0", "b", "-0", "c", "-0", "d", "0"]
        > ZADD x 0 c                            < :0
        > ZINCRBY x -0 c                        < "-0"
        > ZSCORE x c                            < "-0"
        > ZRANGESTORE w x 1 2                   < :2
        > ZRANGE w 0 -1 WITHSCORES              < ["b", "0", "c", "0"]
        > CONFIG SET zset-max-listpack-entries 128 < OK
        "#,
    );
}

#[test]
fn encodings_follow_the_limits() {
    check(
        r#"
        > ZADD z 1 a                            < :1
        > OBJECT ENCODING z                     < "listpack"
        > ZADD z 1 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa < :1
        > OBJECT ENCODING z                     < "listpack"
        > ZADD z 1 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab < :1
        > OBJECT ENCODING z                     < "skiplist"
        > ZREM z aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab < :1
        > OBJECT ENCODING z                     < "skiplist"
        > ZRANGESTORE y z 0 -1                  < :2
        > OBJECT ENCODING y                     < "listpack"
        > ZUNIONSTORE y 1 z                     < :2
        > OBJECT ENCODING y                     < "listpack"
        > CONFIG SET zset-max-ziplist-entries 2 < OK
        > ZADD x 1 a 2 b                        < :2
        > OBJECT ENCODING x                     < "listpack"
        > ZADD x 5 a                            < :0
        > OBJECT ENCODING x                     < "listpack"
        > ZADD x 1 c                            < :1
        > OBJECT ENCODING x                     < "skiplist"
        > ZUNIONSTORE v 2 x y                   < :4
        > OBJECT ENCODING v                     < "skiplist"
        > ZRANGESTORE v x 0 1                   < :2
        > OBJECT ENCODING v                     < "listpack"
        > CONFIG SET zset-max-listpack-entries 0 < OK
        > ZADD u 1 a                            < :1
        > OBJECT ENCODING u                     < "skiplist"
        > CONFIG SET zset-max-listpack-entries 128 < OK
        "#,
    );
}

#[test]
fn ranges_by_position() {
    check(
        r#"
        > ZADD z 1 a 2 b 3 c 4 d 5 e            < :5
        > ZRANGE z 0 -1                         < ["a", "b", "c", "d", "e"]
        > ZRANGE z 0 -1 WITHSCORES              < ["a", "1", "b", "2", "c", "3", "d", "4", "e", "5"]
        > ZRANGE z 1 3 REV                      < ["d", "c", "b"]
        > ZRANGE z 1 3 REV WITHSCORES           < ["d", "4", "c", "3", "b", "2"]
        > ZRANGE z -3 -2                        < ["c", "d"]
        > ZRANGE z -300 200                     < ["a", "b", "c", "d", "e"]
        > ZRANGE z 3 1                          < []
        > ZRANGE z 5 200                        < []
        > ZRANGE z -100 -50                     < []
        > ZRANGE z -9223372036854775808 9223372036854775807 REV < ["e", "d", "c", "b", "a"]
        > ZRANGE z 0 -1 LIMIT 0 -1              < ["a", "b", "c", "d", "e"]
        > ZRANGE z 0 -1 LIMIT 0 2
        < -ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX
        > ZRANGE z 0 -1 LIMIT 0                 < -ERR syntax error
        > ZRANGE z 0 -1 LIMIT x 1               < -ERR value is not an integer or out of range
        > ZRANGE z 0 -1 BYLEX BYSCORE           < -ERR syntax error
        > ZRANGE z 0 -1 REV REV                 < -ERR syntax error
        > ZRANGE z 0 -1 NOSUCH                  < -ERR syntax error
        > ZRANGE z x -1                         < -ERR value is not an integer or out of range
        > ZRANGE z 0 1.5                        < -ERR value is not an integer or out of range
        > ZRANGE nosuch 0 -1                    < []
        > ZREVRANGE z 0 1 WITHSCORES            < ["e", "5", "d", "4"]
        > ZREVRANGE z 0 1 REV                   < -ERR syntax error
        > ZREVRANGE z 0 1 BYLEX                 < -ERR syntax error
        > ZREMRANGEBYRANK z 7 9                 < :0
        > ZREMRANGEBYRANK z 3 1                 < :0
        > ZREMRANGEBYRANK z 1 -3                < :2
        > ZREMRANGEBYRANK z 0 x                 < -ERR value is not an integer or out of range
        > ZRANGE z 0 -1                         < ["a", "d", "e"]
        > ZREMRANGEBYRANK z 0 -1                < :3
        > EXISTS z                              < :0
        > ZREMRANGEBYRANK z 0 -1                < :0
        "#,
    );
}

#[test]
fn ranges_by_score() {
    check(
        r#"
        > ZADD z -inf a 1 b 2 c 2 d 3.5 e inf f < :6
        > ZRANGE z (1 2 BYSCORE                 < ["c", "d"]
        > ZRANGE z 1 (2 BYSCORE                 < ["b"]
        > ZRANGE z (2 (2 BYSCORE                < []
        > ZRANGE z -inf +inf BYSCORE WITHSCORES
        < ["a", "-inf", "b", "1", "c", "2", "d", "2", "e", "3.5", "f", "inf"]
        > ZRANGE z (-inf (+inf BYSCORE          < ["b", "c", "d", "e"]
        > ZRANGE z 3 1 BYSCORE                  < []
        > ZRANGE z 3 1 BYSCORE REV              < ["d", "c", "b"]
        > ZRANGE z +inf -inf BYSCORE REV LIMIT 1 3 WITHSCORES < ["e", "3.5", "d", "2", "c", "2"]
        > ZRANGE z -inf +inf BYSCORE LIMIT 2 -5 < ["c", "d", "e", "f"]
        > ZRANGE z -inf +inf BYSCORE LIMIT 100 1 < []
        > ZRANGE z -inf +inf BYSCORE LIMIT -1 3 < []
        > ZRANGE z -inf +inf BYSCORE LIMIT 1 0  < []
        > ZRANGE z -1e400 1e400 BYSCORE         < ["a", "b", "c", "d", "e", "f"]
        > ZRANGE z "" 2 BYSCORE                 < ["b", "c", "d"]
        > ZRANGE z 0 " 2" BYSCORE               < -ERR min or max is not a float
        > ZRANGE z 0 "2 " BYSCORE               < -ERR min or max is not a float
        > ZRANGE z a 2 BYSCORE                  < -ERR min or max is not a float
        > ZRANGE z nan 2 BYSCORE                < -ERR min or max is not a float
        > ZRANGE z ((1 2 BYSCORE                < -ERR min or max is not a float
        > ZRANGEBYSCORE z 1 2 WITHSCORES LIMIT 0 2 < ["b", "1", "c", "2"]
        > ZRANGEBYSCORE z 1 2 REV               < -ERR syntax error
        > ZRANGEBYSCORE z 1 2 LIMIT 0           < -ERR syntax error
        > ZREVRANGEBYSCORE z 2 (1 WITHSCORES    < ["d", "2", "c", "2"]
        > ZREVRANGEBYSCORE z 1 2                < []
        > ZCOUNT z (1 +inf                      < :4
        > ZCOUNT z 3 1                          < :0
        > ZCOUNT z 2 2                          < :2
        > ZCOUNT z x 2                          < -ERR min or max is not a float
        > ZCOUNT nosuch 1 2                     < :0
        > ZREMRANGEBYSCORE z 2 2                < :2
        > ZREMRANGEBYSCORE z (3.5 3.5           < :0
        > ZREMRANGEBYSCORE z 5 1                < :0
        > ZREMRANGEBYSCORE z x 1                < -ERR min or max is not a float
        > ZRANGE z 0 -1                         < ["a", "b", "e", "f"]
        > ZREMRANGEBYSCORE z -inf inf           < :4
        > EXISTS z                              < :0
        "#,
    );
}

#[test]
fn ranges_by_member() {
    check(
        r#"
        > ZADD z 0 a 0 b 0 c 0 d 0 e 0 "" 0 "\xff" < :7
        > ZRANGE z - + BYLEX                    < ["", "a", "b", "c", "d", "e", "\xff"]
        > ZRANGE z [b (d BYLEX                  < ["b", "c"]
        > ZRANGE z (b [d BYLEX                  < ["c", "d"]
        > ZRANGE z [d [b BYLEX REV              < ["d", "c", "b"]
        > ZRANGE z + - BYLEX REV LIMIT 1 2      < ["e", "d"]
        > ZRANGE z + - BYLEX                    < []
        > ZRANGE z [ ( BYLEX                    < []
        > ZRANGE z [ [ BYLEX                    < [""]
        > ZRANGE z - + BYLEX WITHSCORES
        < -ERR syntax error, WITHSCORES not supported in combination with BYLEX
        > ZRANGE z b + BYLEX                    < -ERR min or max not valid string range item
        > ZRANGE z "" + BYLEX                   < -ERR min or max not valid string range item
        > ZRANGE z -b + BYLEX                   < -ERR min or max not valid string range item
        > ZRANGEBYLEX z [aa [cc LIMIT 1 9       < ["c"]
        > ZRANGEBYLEX z - + WITHSCORES
        < -ERR syntax error, WITHSCORES not supported in combination with BYLEX
        > ZREVRANGEBYLEX z [cc [aa              < ["c", "b"]
        > ZLEXCOUNT z - +                       < :7
        > ZLEXCOUNT z (a (e                     < :3
        > ZLEXCOUNT z [e [a                     < :0
        > ZLEXCOUNT z a e                       < -ERR min or max not valid string range item
        > ZLEXCOUNT nosuch - +                  < :0
        > ZREMRANGEBYLEX z (a (c                < :1
        > ZREMRANGEBYLEX z [x [a                < :0
        > ZREMRANGEBYLEX z x y                  < -ERR min or max not valid string range item
        > ZRANGE z 0 -1                         < ["", "a", "c", "d", "e", "\xff"]
        > ZREMRANGEBYLEX z - +                  < :6
        > EXISTS z                              < :0
        "#,
    );
}

#[test]
fn ranges_by_member_on_mixed_scores() {
    check(
        r#"
        > ZADD z 3 c 1 c2 2 b1 2 a9 5 aa 0 zz   < :6
        > ZRANGEBYLEX z [a [c                   < []
        > ZRANGEBYLEX z - +                     < ["zz", "c2", "a9", "b1", "c", "aa"]
        > ZRANGEBYLEX z [aa [c2                 < []
        > ZRANGEBYLEX z [c +                    < []
        > ZRANGEBYLEX z [b (c                   < []
        > ZRANGEBYLEX z [b +                    < []
        > ZREVRANGEBYLEX z [c [a                < []
        > ZREVRANGEBYLEX z + [a                 < ["aa", "c", "b1", "a9", "c2", "zz"]
        > ZREVRANGEBYLEX z [c2 -                < []
        > ZREVRANGEBYLEX z [zz -                < ["aa", "c", "b1", "a9", "c2", "zz"]
        > ZLEXCOUNT z [a [c                     < :0
        > ZLEXCOUNT z - [c                      < :0
        > ZLEXCOUNT z - [zz                     < :6
        > ZREMRANGEBYLEX z - [zz                < :6
        > ZRANGE z 0 -1 WITHSCORES              < []
        "#,
    );
}

#[test]
fn stored_ranges() {
    check(
        r#"
        > ZADD src 1 a 2 b 3 c                  < :3
        > SET str v                             < OK
        > EXPIRE str 100                        < :1
        > ZRANGESTORE dst src 0 1               < :2
        > ZRANGE dst 0 -1 WITHSCORES            < ["a", "1", "b", "2"]
        > ZRANGESTORE str src (1 +inf BYSCORE LIMIT 1 1 < :1
        > ZRANGE str 0 -1 WITHSCORES            < ["c", "3"]
        > TTL str                               < :-1
        > ZRANGESTORE dst src [c - BYLEX REV LIMIT 0 2 < :2
        > ZRANGE dst 0 -1                       < ["b", "c"]
        > ZRANGESTORE dst src 0 -1 WITHSCORES   < -ERR syntax error
        > ZRANGESTORE dst src 0 -1 LIMIT 1 1
        < -ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX
        > ZRANGESTORE src src 1 1               < :1
        > ZRANGE src 0 -1                       < ["b"]
        > ZRANGESTORE dst nosuch 0 -1           < :0
        > EXISTS dst                            < :0
        > SET other v                           < OK
        > ZRANGESTORE dst other 0 -1
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > ZRANGESTORE dst other 0 x             < -ERR value is not an integer or out of range
        > ZRANGESTORE other nosuch 0 x          < -ERR value is not an integer or out of range
        > GET other                             < "v"
        > ZRANGESTORE other src 5 6             < :0
        > EXISTS other                          < :0
        "#,
    );
}

#[test]
fn popping() {
    check(
        r#"
        > SET str v                             < OK
        > ZADD z 1 a 2 b 3 c 4 d 5 e            < :5
        > ZPOPMIN z                             < ["a", "1"]
        > ZPOPMAX z                             < ["e", "5"]
        > ZPOPMIN z 2                           < ["b", "2", "c", "3"]
        > ZPOPMIN z 0                           < []
        > ZPOPMIN z -1                          < -ERR value is out of range, must be positive
        > ZPOPMIN z x                           < -ERR value is out of range, must be positive
        > ZPOPMIN z 1 2                         < -ERR syntax error
        > ZPOPMIN str
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > ZPOPMIN str 0
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > ZPOPMIN nosuch                        < []
        > ZPOPMAX nosuch 3                      < []
        > ZPOPMAX z 100                         < ["d", "4"]
        > EXISTS z                              < :0
        > ZADD z 1 a 2 b 3 c 4 d 5 e            < :5
        > ZMPOP 1 z MIN                         < ["z", [["a", "1"]]]
        > ZMPOP 2 nosuch z MAX COUNT 2          < ["z", [["e", "5"], ["d", "4"]]]
        > ZMPOP 2 str z MAX
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > ZMPOP 2 nosuch str MAX
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > ZMPOP 1 nosuch MIN                    < (nil array)
        > ZMPOP 0 z MIN                         < -ERR numkeys should be greater than 0
        > ZMPOP -1 z MIN                        < -ERR numkeys should be greater than 0
        > ZMPOP x z MIN                         < -ERR numkeys should be greater than 0
        > ZMPOP 3 z MIN                         < -ERR syntax error
        > ZMPOP 9223372036854775807 z MIN       < -ERR syntax error
        > ZMPOP 1 z NOSUCH                      < -ERR syntax error
        > ZMPOP 1 z MIN COUNT                   < -ERR syntax error
        > ZMPOP 1 z MIN COUNT 0                 < -ERR count should be greater than 0
        > ZMPOP 1 z MIN COUNT x                 < -ERR count should be greater than 0
        > ZMPOP 1 z MIN COUNT 1 COUNT 2         < -ERR syntax error
        > ZMPOP 1 z MIN NOSUCH 1                < -ERR syntax error
        > ZMPOP 1 z min count 10                < ["z", [["b", "2"], ["c", "3"]]]
        > EXISTS z                              < :0
        "#,
    );
}

#[test]
fn popping_without_waiting() {
    check(
        r#"
        > SET str v                             < OK
        > ZADD z 1 a 2 b 3 c 4 d 5 e            < :5
        > BZPOPMIN z 0                          < ["z", "a", "1"]
        > BZPOPMAX nosuch z 0                   < ["z", "e", "5"]
        > BZPOPMIN str z 0
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > BZPOPMIN z x                          < -ERR timeout is not a float or out of range
        > BZPOPMIN z -1                         < -ERR timeout is negative
        > BZMPOP 0 1 z MIN                      < ["z", [["b", "2"]]]
        > BZMPOP 0 2 nosuch z MAX COUNT 2       < ["z", [["d", "4"], ["c", "3"]]]
        > BZMPOP x 1 z MAX COUNT 2              < -ERR timeout is not a float or out of range
        > BZMPOP x 1 z MAX COUNT 0              < -ERR count should be greater than 0
        > BZMPOP x 1 z NOSUCH                   < -ERR syntax error
        > BZMPOP -1 1 z MIN                     < -ERR timeout is negative
        > BZMPOP 0 0 z MIN                      < -ERR numkeys should be greater than 0
        > BZMPOP 0 3 z MIN                      < -ERR syntax error
        > EXISTS z                              < :0
        > MULTI                                 < OK
        > BZPOPMIN z 0                          < QUEUED
        > BZMPOP 0 1 z MIN                      < QUEUED
        > EXEC                                  < [(nil array), (nil array)]
        "#,
    );
}

/// COUNT comes from Redis 8.8: each source that has the member gives its weight.
#[test]
fn sources_of_a_member_are_counted() {
    World::new().check(
        r#"
        > ZADD a 1 x 2 y inf z                  < :3
        > ZADD b 10 y 20 z 30 w                 < :3
        > SADD s x y                            < :2
        > ZUNION 3 a b s AGGREGATE COUNT WITHSCORES < ["w", "1", "x", "2", "z", "2", "y", "3"]
        > ZINTER 2 a b AGGREGATE count WITHSCORES   < ["y", "2", "z", "2"]
        > ZUNION 2 a b WEIGHTS 2 -0.5 AGGREGATE COUNT WITHSCORES
        < ["w", "-0.5", "y", "1.5", "z", "1.5", "x", "2"]
        > ZINTERSTORE d 3 a b s WEIGHTS 0 inf -inf AGGREGATE COUNT < :1
        > ZRANGE d 0 -1 WITHSCORES              < ["y", "0"]
        > ZUNIONSTORE d 2 none a AGGREGATE COUNT < :3
        > ZSCORE d z                            < "1"
    "#,
    );
}

#[test]
fn zset_algebra() {
    check(
        r#"
        > ZADD a 1 x 2 y 3 z                    < :3
        > ZADD b 10 y 20 z 30 w                 < :3
        > SET str v                             < OK
        > ZUNION 2 a b                          < ["x", "y", "z", "w"]
        > ZUNION 2 a b WITHSCORES               < ["x", "1", "y", "12", "z", "23", "w", "30"]
        > ZUNION 2 a b WEIGHTS 2 3 WITHSCORES   < ["x", "2", "y", "34", "z", "66", "w", "90"]
        > ZUNION 2 a b WEIGHTS 2 3 AGGREGATE MIN WITHSCORES < ["x", "2", "y", "4", "z", "6", "w", "90"]
        > ZUNION 2 a b AGGREGATE MAX WEIGHTS 2 0.5 WITHSCORES < ["x", "2", "y", "5", "z", "10", "w", "15"]
        > ZUNION 3 a a a WITHSCORES             < ["x", "3", "y", "6", "z", "9"]
        > ZUNION 2 a nosuch                     < ["x", "y", "z"]
        > ZUNION 1 nosuch                       < []
        > ZINTER 2 a b WITHSCORES               < ["y", "12", "z", "23"]
        > ZINTER 2 a b WEIGHTS 1 -1 AGGREGATE MAX WITHSCORES < ["y", "2", "z", "3"]
        > ZINTER 2 a nosuch                     < []
        > ZINTER 2 a a WITHSCORES               < ["x", "2", "y", "4", "z", "6"]
        > ZDIFF 2 a b WITHSCORES                < ["x", "1"]
        > ZDIFF 1 a                             < ["x", "y", "z"]
        > ZDIFF 2 a a                           < []
        > ZDIFF 2 nosuch a                      < []
        > ZINTERCARD 2 a b                      < :2
        > ZINTERCARD 2 a b LIMIT 1              < :1
        > ZINTERCARD 2 a b LIMIT 0              < :2
        > ZINTERCARD 2 a nosuch                 < :0
        > ZUNIONSTORE d 2 a b                   < :4
        > ZRANGE d 0 -1 WITHSCORES              < ["x", "1", "y", "12", "z", "23", "w", "30"]
        > ZINTERSTORE d 2 a b AGGREGATE MAX     < :2
        > ZRANGE d 0 -1 WITHSCORES              < ["y", "10", "z", "20"]
        > ZDIFFSTORE d 2 a b                    < :1
        > ZRANGE d 0 -1 WITHSCORES              < ["x", "1"]
        > ZUNIONSTORE a 2 a a WEIGHTS 1 2       < :3
        > ZRANGE a 0 -1 WITHSCORES              < ["x", "3", "y", "6", "z", "9"]
        > ZINTERSTORE str 2 a nosuch            < :0
        > EXISTS str                            < :0
        > ZDIFFSTORE a 2 a b                    < :1
        > ZRANGE a 0 -1                         < ["x"]
        "#,
    );
}

#[test]
fn infinities_and_fractions_add_up() {
    check(
        r#"
        > ZADD i inf x -inf y 0 z               < :3
        > ZADD j -inf x inf y 0 z               < :3
        > ZUNION 2 i j WITHSCORES               < ["x", "0", "y", "0", "z", "0"]
        > ZUNION 2 i j WEIGHTS 0 0 WITHSCORES   < ["x", "0", "y", "0", "z", "0"]
        > ZUNION 2 i j WEIGHTS -1 0 AGGREGATE MIN WITHSCORES < ["x", "-inf", "y", "0", "z", "-0"]
        > ZINTER 2 i j WEIGHTS 0 0 WITHSCORES   < ["x", "0", "y", "0", "z", "0"]
        > ZINTER 2 i j WEIGHTS -1 0 AGGREGATE MIN WITHSCORES < ["x", "-inf", "z", "-0", "y", "inf"]
        > ZINTER 2 i j WEIGHTS -1 -1 AGGREGATE MAX WITHSCORES < ["z", "-0", "x", "inf", "y", "inf"]
        > ZADD f 0.1 x                          < :1
        > ZADD g 0.2 x 1 y                      < :2
        > ZADD h 0.3 x 1 y 1 z                  < :3
        > ZUNION 3 f g h WITHSCORES             < ["x", "0.6000000000000001", "z", "1", "y", "2"]
        > ZUNION 3 h g f WITHSCORES             < ["x", "0.6000000000000001", "z", "1", "y", "2"]
        > ZINTER 3 h g f WITHSCORES             < ["x", "0.6000000000000001"]
        "#,
    );
}

#[test]
fn zset_algebra_refuses_invalid_arguments() {
    check(
        r#"
        > ZADD a 1 x                            < :1
        > SET str v                             < OK
        > ZUNION 0 a                            < -ERR at least 1 input key is needed for 'zunion' command
        > ZUNION -1 a                           < -ERR at least 1 input key is needed for 'zunion' command
        > ZUNION x a                            < -ERR value is not an integer or out of range
        > ZUNION 2 a                            < -ERR syntax error
        > ZUNION 2 a str
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > ZUNION 2 str a NOSUCH
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > ZUNION 2 nosuch str
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > ZUNION 1 a NOSUCH                     < -ERR syntax error
        > ZUNION 1 a WEIGHTS                    < -ERR syntax error
        > ZUNION 2 a a WEIGHTS 1                < -ERR syntax error
        > ZUNION 1 a WEIGHTS x                  < -ERR weight value is not a float
        > ZUNION 1 a WEIGHTS 1 2                < -ERR syntax error
        > ZUNION 1 a AGGREGATE                  < -ERR syntax error
        > ZDIFF 1 a AGGREGATE COUNT             < -ERR syntax error
        > ZUNION 1 a AGGREGATE AVG              < -ERR syntax error
        > ZDIFF 1 a WEIGHTS 1                   < -ERR syntax error
        > ZDIFF 1 a AGGREGATE MIN               < -ERR syntax error
        > ZINTERCARD 0 a                        < -ERR at least 1 input key is needed for 'zintercard' command
        > ZINTERCARD 1 a LIMIT                  < -ERR syntax error
        > ZINTERCARD 1 a LIMIT -1               < -ERR LIMIT can't be negative
        > ZINTERCARD 1 a LIMIT x                < -ERR LIMIT can't be negative
        > ZINTERCARD 1 a WITHSCORES             < -ERR syntax error
        > ZINTERCARD 1 str
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > ZUNIONSTORE d 1 a WITHSCORES          < -ERR syntax error
        > ZUNIONSTORE d 0 a
        < -ERR at least 1 input key is needed for 'zunionstore' command
        > ZUNIONSTORE d x a                     < -ERR value is not an integer or out of range
        > ZUNIONSTORE d 2 a                     < -ERR syntax error
        > ZINTERSTORE d 2 a str
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > ZDIFFSTORE d 1 a WEIGHTS 1            < -ERR syntax error
        > EXISTS d                              < :0
        "#,
    );
}

#[test]
fn zrandmember() {
    check(
        r#"
        > SET str v                             < OK
        > ZRANDMEMBER nosuch                    < (nil)
        > ZRANDMEMBER nosuch 3                  < []
        > ZRANDMEMBER str
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        > ZADD z 1 a                            < :1
        > ZRANDMEMBER z                         < "a"
        > ZRANDMEMBER z 3                       < ["a"]
        > ZRANDMEMBER z -3                      < ["a", "a", "a"]
        > ZRANDMEMBER z 3 WITHSCORES            < ["a", "1"]
        > ZRANDMEMBER z -2 WITHSCORES           < ["a", "1", "a", "1"]
        > ZRANDMEMBER z 0                       < []
        > ZRANDMEMBER z 3 WITHVALUES            < -ERR syntax error
        > ZRANDMEMBER z 3 WITHSCORES 4          < -ERR syntax error
        > ZRANDMEMBER z x                       < -ERR value is not an integer or out of range
        > ZRANDMEMBER z -9223372036854775808
        < -ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807
        > ZRANDMEMBER z 9223372036854775807 WITHSCORES < -ERR value is out of range
        "#,
    );
}

#[test]
fn zscan() {
    check(
        r#"
        > SET str v                             < OK
        > ZADD z 0.1 a 2 ab inf b               < :3
        > ZSCAN z 0                             < ["0", ["a", "0.1", "ab", "2", "b", "inf"]]
        > ZSCAN z 0 MATCH a*                    < ["0", ["a", "0.1", "ab", "2"]]
        > ZSCAN z 0 COUNT 1                     < ["0", ["a", "0.1", "ab", "2", "b", "inf"]]
        > ZSCAN z 5                             < ["0", ["a", "0.1", "ab", "2", "b", "inf"]]
        > ZSCAN z 0 COUNT 0                     < -ERR syntax error
        > ZSCAN z 0 TYPE zset                   < -ERR syntax error
        > ZSCAN z x                             < -ERR invalid cursor
        > ZSCAN nosuch 0                        < ["0", []]
        > ZSCAN nosuch 0 NOSUCH                 < ["0", []]
        > ZSCAN str 0
        < -WRONGTYPE Operation against a key holding the wrong kind of value
        "#,
    );
}

#[test]
fn replies_in_resp3() {
    check(
        r#"
        > HELLO 3                               < {*
        > ZADD z 1 a 2.5 b inf c                < :3
        > ZSCORE z a                            < ,1
        > ZSCORE z nosuch                       < (null)
        > ZMSCORE z b nosuch                    < [,2.5, (null)]
        > ZADD z INCR 1 a                       < ,2
        > ZADD z NX INCR 1 a                    < (null)
        > ZINCRBY z 0.25 a                      < ,2.25
        > ZRANK z nosuch                        < (null)
        > ZRANGE z 0 -1                         < ["a", "b", "c"]
        > ZRANGE z 0 -1 WITHSCORES              < [["a", ,2.25], ["b", ,2.5], ["c", ,inf]]
        > ZREVRANGE z 0 0 WITHSCORES            < [["c", ,inf]]
        > ZRANGEBYSCORE z 2 +inf WITHSCORES     < [["a", ,2.25], ["b", ,2.5], ["c", ,inf]]
        > ZUNION 1 z WITHSCORES                 < [["a", ,2.25], ["b", ,2.5], ["c", ,inf]]
        > ZDIFF 1 z WITHSCORES                  < [["a", ,2.25], ["b", ,2.5], ["c", ,inf]]
        > ZSCAN z 0                             < ["0", ["a", "2.25", "b", "2.5", "c", "inf"]]
        > ZPOPMIN z                             < ["a", ,2.25]
        > ZPOPMIN z 1                           < [["b", ,2.5]]
        > ZADD z 1 a 2 b                        < :2
        > ZPOPMAX z                             < ["c", ,inf]
        > ZPOPMAX z 1                           < [["b", ,2]]
        > ZPOPMIN z                             < ["a", ,1]
        > ZPOPMIN z 2                           < []
        > ZADD z 1 a 2 b 3 c 4 d                < :4
        > ZMPOP 1 z MIN                         < ["z", [["a", ,1]]]
        > ZMPOP 1 nosuch MIN                    < (null)
        > BZPOPMIN z 0                          < ["z", "b", ,2]
        > BZMPOP 0 1 z MAX COUNT 2              < ["z", [["d", ,4], ["c", ,3]]]
        > ZADD z 1 a                            < :1
        > ZRANDMEMBER z 2 WITHSCORES            < [["a", ,1]]
        > ZRANDMEMBER z                         < "a"
        > ZRANDMEMBER nosuch                    < (null)
        "#,
    );
}

/// As Valkey 9.1 answers.
#[test]
fn newer_options() {
    World::new().check(
        r#"
        > ZADD z 1 a 2.5 b
        > ZRANK z b WITHSCORE                   < [:1, "2.5"]
        > ZREVRANK z b withscore                < [:0, "2.5"]
        > ZRANK z nosuch WITHSCORE              < (nil array)
        > ZRANK nosuch a WITHSCORE              < (nil array)
        > ZRANK z b WITHSCORES                  < -ERR syntax error
        > ZRANK z b WITHSCORE x                 < -ERR wrong number of arguments for 'zrank' command
        > ZSCAN z 0 NOSCORES                    < ["0", ["a", "b"]]
        > ZSCAN z 0 NOSCORES MATCH b            < ["0", ["b"]]
        > ZSCAN z 0 NOVALUES                    < -ERR NOVALUES option can only be used in HSCAN
        > HELLO 3
        > ZRANK z b WITHSCORE                   < [:1, ,2.5]
        > ZRANK z nosuch WITHSCORE              < (null)
        "#,
    );
}

#[test]
fn blocking_pops_are_served() {
    let mut world = World::new();
    world.check(
        r#"
        a> BZPOPMIN y z 0
        b> BZPOPMAX z 0
        c> BZMPOP 0 2 y z MAX COUNT 2
        > SET z v
        > DEL z
        > ZADD z 1 one 2 two 3 three 4 four      < :4
        a< ["z", "one", "1"]
        b< ["z", "four", "4"]
        c< ["z", [["three", "3"], ["two", "2"]]]
        > EXISTS z                              < :0
        a> HELLO 3
        a> BZPOPMIN z 0
        b> BZMPOP 0 1 z MIN
        > ZUNIONSTORE z 1 nosuch
        > ZADD src 1 x 2 y 3 z
        > ZRANGESTORE z src 0 1
        a< ["z", "x", ,1]
        b< ["z", [["y", "2"]]]
        > ZCARD src                             < :3
        a> BZPOPMAX z 0.02
        b> BZMPOP 0.02 1 z MIN
        ~ 1s
        a< (null)
        b< (nil array)
        b> BZPOPMIN z 5
        > ZINCRBY z 7 m
        b< ["z", "m", "7"]
        "#,
    );
    world.verify();
}

/// A set that loses its last member while its lists are replied to.
#[test]
fn a_wait_in_a_transaction_is_served_after_it() {
    let mut world = World::new();
    world.check(
        r#"
        a> BZPOPMIN z 0
        > MULTI
        > ZADD z 5 five
        > ZADD z 1 one
        > ZREM z five
        > EXEC                                  < [:1, :1, :1]
        a< ["z", "one", "1"]
        > EXISTS z                              < :0
        "#,
    );
    world.verify();
}

/// Members of sets of every size, by every way there is, each checked against the other ways.
#[test]
fn large_and_small_sets_agree() {
    let mut world = World::new();
    for at in 0..3000 {
        world.run(&format!("ZADD z {} member:{at}", at * 7919 % 3001));
    }
    world.check(
        r#"
        > ZCARD z                               < :3000
        > ZRANGESTORE copy z 0 -1               < :3000
        > ZDIFF 2 z copy                        < []
        > ZINTERCARD 2 z copy                   < :3000
        > ZUNIONSTORE both 2 z copy             < :3000
        > ZSCORE both member:1                  < "3834"
        > ZREMRANGEBYRANK both 10 2989          < :2980
        > ZRANGE both 8 11 WITHSCORES           < *
        > ZREMRANGEBYSCORE copy -inf (2990      < *
        > ZREMRANGEBYSCORE z 0 2999             < *
        > ZPOPMIN z 3000                        < *
        > EXISTS z                              < :0
        "#,
    );
    world.verify();
}

/// Packed integers are read where they lie: each mention of a set costs a look-up, whatever it holds.
#[test]
fn integer_sets_may_be_repeated_often() {
    const TIMES: usize = 5000;
    let mut world = World::new();
    world.run(&format!("SADD s{}", (0..500).map(|number| format!(" {number}")).collect::<String>()));
    world.check("> OBJECT ENCODING s < \"intset\"\n > ZADD z 0.5 7 1 x < :2");
    let (keys, began) = (" s".repeat(TIMES), Instant::now());
    world.check(&format!("> ZINTERCARD {TIMES}{keys} LIMIT 1 < :1"));
    world.check(&format!("> ZINTER {}{keys} z WITHSCORES < [\"7\", \"5000.5\"]", TIMES + 1));
    world.check(&format!("> ZDIFF {}{keys} < []", TIMES));
    assert!(began.elapsed() < Duration::from_millis(800), "{:?}", began.elapsed());
    world.check(
        "
        > ZUNIONSTORE d 3 s z s                 < :501
        > ZMSCORE d 7 499 x                     < [\"2.5\", \"2\", \"1\"]
        > OBJECT ENCODING s                     < \"intset\"
    ",
    );
    world.verify();
}
