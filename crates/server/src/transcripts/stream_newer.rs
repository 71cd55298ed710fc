//! Transcripts of stream commands of Redis 8.4 to 8.10. No server that knows them can be asked, so they
//! follow the documentation and the tests of Redis.

use crate::testing::World;

#[test]
fn entries_that_are_sent_again_are_not_added_again() {
    World::new().check(
        r#"
        > XADD s IDMP p i * a 1             < "*-0"
        > XADD s IDMP p j * a 2             < "*-*"
        > XADD s IDMP q i * a 3             < "*-*"
        > XADD s NOMKSTREAM MAXLEN ~ 9 IDMP p i * a 4 < "*-0"
        > XLEN s                            < :3
        > XINFO STREAM s
        < [*, "idmp-duration", :100, "idmp-maxsize", :100, "pids-tracked", :2, "iids-tracked", :3, \
            "iids-added", :3, "iids-duplicates", :1, "groups", :0, *
        > XADD s IDMPAUTO p * a 1 b 2       < *
        > XADD s IDMPAUTO p * b 2 a 1       < *
        > XLEN s                            < :4
        > XADD s IDMPAUTO p * b 1 a 2       < *
        > XLEN s                            < :5
        > XADD t NOMKSTREAM IDMP p i * a 1  < (nil)
        > EXISTS t                          < :0
        > XADD s IDMP p i 1-1 a 1
        < -ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs
        > XADD s IDMP p * a 1               < -ERR Invalid stream ID *
        > XADD s IDMP p i IDMPAUTO q * a 1
        < -ERR syntax error, IDMP/IDMPAUTO specified multiple times
        > XADD s IDMP "" i * a 1            < -ERR syntax error, IDMP requires a non-empty producer ID
        > XADD s IDMP p "" * a 1            < -ERR syntax error, IDMP requires a non-empty idempotent ID
        > XADD s IDMPAUTO "" * a 1          < -ERR syntax error, IDMPAUTO requires a non-empty producer ID
        > XADD other 1-1 a 1
        > XINFO STREAM other                < [*, "recorded-first-entry-id", "1-1", "groups", :0, *
    "#,
    );
}

/// By the clock that the test moves.
#[test]
fn producers_are_remembered_for_as_long_as_configured() {
    World::new().check(
        r#"
        > XCFGSET s IDMP-DURATION 2         < -ERR no such key
        > XADD s IDMP p i * a 1
        > XCFGSET s                         < -ERR At least one parameter must be specified
        > XCFGSET s IDMP-DURATION 0         < -ERR IDMP-DURATION must be between 1 and 86400 seconds
        > XCFGSET s IDMP-MAXSIZE 10001      < -ERR IDMP-MAXSIZE must be between 1 and 10000 entries
        > XCFGSET s IDMP-MAXSIZE x          < -ERR value is not an integer or out of range
        > XCFGSET s IDMP-MAXSIZE 1 IDMP-MAXSIZE 1 < -ERR IDMP-MAXSIZE specified multiple times
        > XCFGSET s IDMP-MAXSIZE            < -ERR syntax error
        > XCFGSET s IDMP-DURATION 100       < OK
        > XADD s IDMP p i * a 1
        > XLEN s                            < :1
        > XCFGSET s IDMP-DURATION 2 IDMP-MAXSIZE 2 < OK
        > XADD s IDMP p i * a 2
        > XLEN s                            < :2
        ~ 1999ms
        > XADD s IDMP p i * a 3
        > XLEN s                            < :2
        ~ 1ms
        > XINFO STREAM s FULL
        < [*, "idmp-duration", :2, "idmp-maxsize", :2, "pids-tracked", :0, "iids-tracked", :0, *
        > XADD s IDMP p i * a 4
        > XLEN s                            < :3
        > XADD s IDMP p j * a 5
        > XADD s IDMP p k * a 6
        > XADD s IDMP p j * a 7
        > XLEN s                            < :5
        > XADD s IDMP p i * a 8
        > XLEN s                            < :6
        > SET string v
        > XCFGSET string IDMP-DURATION 1    < -WRONGTYPE *
    "#,
    );
}

#[test]
fn producers_of_entries_can_be_recorded() {
    World::new().check(
        r#"
        > XADD s 1-1 a 1
        > XADD s 2-1 a 1
        > XCFGSET s IDMP-DURATION 86400     < OK
        > XIDMPRECORD s p i 1-1             < OK
        > XIDMPRECORD s "" i 1-1            < -ERR producer ID must be non-empty
        > XIDMPRECORD s p "" 1-1            < -ERR idempotent ID must be non-empty
        > XIDMPRECORD s p i x               < -ERR Invalid stream ID *
        > XIDMPRECORD s p i 3-1             < -ERR No such message in stream
        > XIDMPRECORD none p i 1-1          < -ERR no such key
        > XINFO STREAM s                    < [*, "iids-added", :1, *
        > XADD t * a 1
        > XADD t * a 1
        > EVAL "local id = redis.call('XRANGE', KEYS[1], '-', '+')[1][1] \
            return redis.call('XIDMPRECORD', KEYS[1], 'p', 'i', id)" 1 t < OK
        > XADD t IDMP p i * a 2
        > XLEN t                            < :2
        > EVAL "local id = redis.call('XRANGE', KEYS[1], '-', '+')[2][1] \
            return redis.call('XIDMPRECORD', KEYS[1], 'p', 'i', id)" 1 t
        < -ERR IID already exists for this producer with a different stream ID*
    "#,
    );
}

#[test]
fn released_entries_belong_to_nobody() {
    World::new().check(
        r#"
        > XADD s 1-0 a 1
        > XADD s 2-0 a 2
        > XADD s 3-0 a 3
        > XNACK s g FAIL IDS 1 1-0          < -NOGROUP No such key 's' or consumer group 'g'
        > XGROUP CREATE s g 0
        > XREADGROUP GROUP g c STREAMS s >  < [*
        > XREADGROUP GROUP g c STREAMS s 0  < [*
        > XNACK s g LATER IDS 1 1-0         < -ERR mode must be SILENT, FAIL, or FATAL
        > XNACK s g FAIL IDS 0 1-0          < -ERR numids must be a positive integer
        > XNACK s g FAIL IDS 2 1-0          < -ERR number of IDs doesn't match numids
        > XNACK s g FAIL IDS 1 x            < -ERR Invalid stream ID *
        > XNACK s g FAIL IDS 1 1-0 LATER    < -ERR Unrecognized XNACK option 'LATER'
        > XNACK s g FAIL RETRYCOUNT 1 FORCE < -ERR syntax error, expected IDS keyword
        > XNACK s g FAIL IDS 1 1-0 RETRYCOUNT -1 < -ERR Invalid RETRYCOUNT value, must be >= 0
        > XNACK s g SILENT IDS 2 3-0 9-0    < :1
        > XNACK s g FAIL IDS 1 1-0          < :1
        > XPENDING s g                      < [:3, "1-0", "3-0", [["c", "1"]]]
        > XPENDING s g - + 9
        < [["1-0", "", :-1, :2], ["2-0", "c", :*, :2], ["3-0", "", :-1, :1]]
        > XPENDING s g IDLE 100000 - + 9    < [["1-0", "", :-1, :2], ["3-0", "", :-1, :1]]
        > XINFO STREAM s FULL
        < [*, "groups", [["name", "g", *, "pel-count", :3, "nacked-count", :2, "pending", \
            [["1-0", "", :0, :2], *
        > XREADGROUP GROUP g c STREAMS s 0  < [["s", [["2-0", ["a", "2"]]]]]
        > XREADGROUP GROUP g d CLAIM 100000 COUNT 1 STREAMS s >
        < [["s", [["3-0", ["a", "3"], :*, :1]]]]
        > XREADGROUP GROUP g d CLAIM 100000 STREAMS s > < [["s", [["1-0", ["a", "1"], :*, :2]]]]
        > XREADGROUP GROUP g d CLAIM 100000 STREAMS s > < (nil array)
        > XNACK s g FATAL IDS 1 1-0         < :1
        > XNACK s g FAIL IDS 1 2-0 RETRYCOUNT 7 < :1
        > XPENDING s g - + 9
        < [["1-0", "", :-1, :9223372036854775807], ["2-0", "", :-1, :7], ["3-0", "d", :*, :2]]
        > XCLAIM s g e 100000 2-0 3-0       < [["2-0", ["a", "2"]]]
        > XAUTOCLAIM s g e 100000 0         < ["0-0", [["1-0", ["a", "1"]]], []]
        > XINFO STREAM s FULL               < [*, "pel-count", :3, "pending", [["1-0", "e", *
        > XACK s g 1-0 2-0                  < :2
        > XNACK s g FAIL IDS 2 1-0 8-0 FORCE < :1
        > XPENDING s g - + 9                < [["1-0", "", :-1, :0], ["3-0", "d", :*, :2]]
        > XACK s g 1-0                      < :1
        > XNACK s g SILENT IDS 1 3-0        < :1
        > XGROUP DELCONSUMER s g d          < :0
        > XACKDEL s g IDS 1 3-0             < [:1]
        > XPENDING s g                      < [:0, (nil), (nil), (nil array)]
    "#,
    );
}

/// By the clock that the test moves.
#[test]
fn idle_entries_are_claimed_while_reading() {
    World::new().check(
        r#"
        > XADD s 1-0 a 1
        > XADD s 2-0 a 2
        > XGROUP CREATE s g 0
        > XREADGROUP GROUP g c COUNT 1 STREAMS s > < [*
        ~ 50ms
        > XREADGROUP GROUP g c COUNT 1 STREAMS s > < [*
        > XADD s 3-0 a 3
        > XADD s 4-0 a 4
        > XREADGROUP GROUP g d CLAIM 50 COUNT 2 STREAMS s >
        < [["s", [["1-0", ["a", "1"], :50, :1], ["3-0", ["a", "3"], :0, :0]]]]
        > XPENDING s g - + 9
        < [["1-0", "d", :0, :2], ["2-0", "c", :0, :1], ["3-0", "d", :0, :1]]
        ~ 60ms
        > XREADGROUP GROUP g e CLAIM 60 NOACK STREAMS s >
        < [["s", [["1-0", ["a", "1"], :60, :2], ["2-0", ["a", "2"], :60, :1], ["3-0", ["a", "3"], :60, :1], \
            ["4-0", ["a", "4"], :0, :0]]]]
        > XPENDING s g                      < [:3, "1-0", "3-0", [["e", "3"]]]
        > XREADGROUP GROUP g f CLAIM 0 STREAMS s 0 < [["s", []]]
        > XDEL s 1-0
        > XREADGROUP GROUP g f CLAIM 0 COUNT 1 STREAMS s > < [["s", [["2-0", ["a", "2"], :0, :2]]]]
        > XREAD CLAIM 0 STREAMS s 0
        < -ERR The CLAIM option is only supported by XREADGROUP. You called XREAD instead.
        > XREADGROUP GROUP g f CLAIM x STREAMS s >
        < -ERR min-idle-time is not an integer or out of range
        > XREADGROUP GROUP g f CLAIM -1 STREAMS s > < -ERR min-idle-time must be a positive integer
        > COMMAND GETKEYS XREADGROUP GROUP g f CLAIM 1 MAXCOUNT 1 MAXSIZE 1 STREAMS k > < ["k"]
    "#,
    );
}

/// A waiter with CLAIM gets entries that are given back.
#[test]
fn released_entries_serve_waiters_that_claim() {
    World::new().check(
        r#"
        > XADD s 1-0 a 1
        > XGROUP CREATE s g 0
        > XREADGROUP GROUP g c STREAMS s >  < [*
        a> XREADGROUP GROUP g d BLOCK 0 CLAIM 60000 STREAMS s >
        b> XREADGROUP GROUP g e BLOCK 0 STREAMS s >
        ~ 40ms
        > XNACK s g FAIL IDS 1 1-0          < :1
        a< [["s", [["1-0", ["a", "1"], :*, :1]]]]
        > XADD s 2-0 a 2
        b< [["s", [["2-0", ["a", "2"]]]]]
    "#,
    );
}

/// Time alone serves a waiter with CLAIM, by the clock that the test moves.
#[test]
fn entries_that_become_idle_serve_waiters_that_claim() {
    World::new().check(
        r#"
        > XADD s 1-0 a 1
        > XGROUP CREATE s g 0
        > XREADGROUP GROUP g c STREAMS s >  < [*
        a> XREADGROUP GROUP g d BLOCK 0 CLAIM 100 STREAMS s >
        b> XREADGROUP GROUP g e BLOCK 300 CLAIM 500 STREAMS s >
        ~ 60ms
        > XPENDING s g                      < [:1, "1-0", "1-0", [["c", "1"]]]
        ~ 60ms
        a< [["s", [["1-0", ["a", "1"], :120, :1]]]]
        > XPENDING s g                      < [:1, "1-0", "1-0", [["d", "1"]]]
        ~ 300ms
        b< (nil array)
    "#,
    );
}

#[test]
fn reads_of_several_streams_are_limited_together() {
    World::new().check(
        r#"
        > XADD {s}1 1-0 a 1
        > XADD {s}1 2-0 a 2
        > XADD {s}2 1-0 a 1
        > XADD {s}2 2-0 a 2
        > XREAD MAXCOUNT 3 STREAMS {s}1 {s}2 0 0
        < [["{s}1", [["1-0", ["a", "1"]], ["2-0", ["a", "2"]]]], ["{s}2", [["1-0", ["a", "1"]]]]]
        > XREAD MAXCOUNT 2 STREAMS {s}1 {s}2 0 0
        < [["{s}1", [["1-0", ["a", "1"]], ["2-0", ["a", "2"]]]]]
        > XREAD COUNT 1 MAXCOUNT 2 STREAMS {s}1 {s}2 0 0
        < [["{s}1", [["1-0", ["a", "1"]]]], ["{s}2", [["1-0", ["a", "1"]]]]]
        > XREAD COUNT 2 MAXCOUNT 1 STREAMS {s}1 0 < -ERR MAXCOUNT must be greater than or equal to COUNT
        > XREAD MAXCOUNT 0 STREAMS {s}1 0   < -ERR MAXCOUNT must be a positive integer
        > XREAD MAXSIZE 0 STREAMS {s}1 0    < -ERR MAXSIZE must be a positive integer
        > XREAD MAXSIZE 1 STREAMS {s}1 {s}2 0 0 < [["{s}1", [["1-0", ["a", "1"]]]]]
        > XREAD MAXSIZE 60 STREAMS {s}1 {s}2 0 0
        < [["{s}1", [["1-0", ["a", "1"]], ["2-0", ["a", "2"]]]]]
        > XREAD MAXSIZE 100000 STREAMS {s}1 {s}2 1 1
        < [["{s}1", [["2-0", ["a", "2"]]]], ["{s}2", [["2-0", ["a", "2"]]]]]
        > XGROUP CREATE {s}1 g 0
        > XGROUP CREATE {s}2 g 0
        > XREADGROUP GROUP g c MAXCOUNT 3 STREAMS {s}1 {s}2 > >
        < [["{s}1", [["1-0", ["a", "1"]], ["2-0", ["a", "2"]]]], ["{s}2", [["1-0", ["a", "1"]]]]]
        > XREADGROUP GROUP g c MAXSIZE 1 STREAMS {s}1 {s}2 0 0 < [["{s}1", [["1-0", ["a", "1"]]]]]
        > XREADGROUP GROUP g d CLAIM 0 MAXCOUNT 2 STREAMS {s}1 {s}2 > >
        < [["{s}1", [["1-0", ["a", "1"], :*, :2], ["2-0", ["a", "2"], :*, :1]]]]
        > XPENDING {s}2 g                   < [:1, "1-0", "1-0", [["c", "1"]]]
    "#,
    );
}

/// The parts that older servers do not know survive DUMP and RESTORE, and streams without them keep their
/// form.
#[test]
fn newer_parts_of_streams_are_restored() {
    World::new().check(
        r#"
        > XADD s IDMP p i * a 1
        > XADD s IDMP q j * a 2
        > XGROUP CREATE s g 0
        > XREADGROUP GROUP g c STREAMS s >  < [*
        > EVAL "local all = redis.call('XRANGE', KEYS[1], '-', '+') \
            return redis.call('XNACK', KEYS[1], 'g', 'FAIL', 'IDS', 2, all[2][1], all[1][1])" 1 s < :2
        > EVAL "return redis.call('RESTORE', KEYS[2], 0, redis.call('DUMP', KEYS[1]))" 2 s {s}t < OK
        > XINFO STREAM {s}t FULL
        < [*, "pids-tracked", :2, "iids-tracked", :2, "iids-added", :2, "iids-duplicates", :0, *, \
            "nacked-count", :2, *
        > XADD {s}t IDMP p i * a 1
        > XLEN {s}t                         < :2
        > XREADGROUP GROUP g c CLAIM 0 COUNT 1 STREAMS {s}t > < [["{s}t", [[*, ["a", "2"], :*, :1]]]]
        > EVAL "return string.byte(redis.call('DUMP', KEYS[1]))" 1 s < :27
        > XADD u * a 1
        > EVAL "return string.byte(redis.call('DUMP', KEYS[1]))" 1 u < :19
        > XADD u IDMP p i * a 1
        > EVAL "return string.byte(redis.call('DUMP', KEYS[1]))" 1 u < :26
        > COPY s {s}v
        > XADD {s}v IDMP q j * a 1
        > XLEN {s}v                         < :2
    "#,
    );
}
