//! Transcripts of stream commands.

use crate::testing::{World, check};
use evenkeel_testkit::{Program, Reference, Server, transcript};

/// Runs a transcript in process, and on Valkey if it is installed: Redis 7.0 differs.
#[track_caller]
fn check_newer(text: &str) {
    World::new().check(text);
    if let Some(oracle) = Program::oracle(Reference::Valkey) {
        transcript::check(&Server::start(&oracle, &[]), text);
    }
}

#[test]
fn entries_are_added_and_read() {
    check(
        r#"
        > XLEN s                            < :0
        > XADD s 1-1 a 1 b 2                < "1-1"
        > XADD s 1-* a 1 b 2                < "1-2"
        > XADD s 5 c 3                      < "5-0"
        > XADD s 5-0 c 3
        < -ERR The ID specified in XADD is equal or smaller than the target stream top item
        > XADD s 0-0 c 3                    < -ERR The ID specified in XADD must be greater than 0-0
        > XADD s abc c 3                    < -ERR Invalid stream ID specified as stream command argument
        > XADD s 7 c                        < -ERR wrong number of arguments for 'xadd' command
        > XADD s 7 c 1 d                    < -ERR wrong number of arguments for 'xadd' command
        > XADD s MAXLEN 7 c 1               < -ERR Invalid stream ID specified as stream command argument
        > XADD none NOMKSTREAM 1-1 a b      < (nil)
        > EXISTS none                       < :0
        > XLEN s                            < :3
        > XRANGE s - +
        < [["1-1", ["a", "1", "b", "2"]], ["1-2", ["a", "1", "b", "2"]], ["5-0", ["c", "3"]]]
        > XREVRANGE s + - COUNT 2           < [["5-0", ["c", "3"]], ["1-2", ["a", "1", "b", "2"]]]
        > XRANGE s (1-1 (5-0                < [["1-2", ["a", "1", "b", "2"]]]
        > XRANGE s - + COUNT 0              < (nil array)
        > XRANGE s + -                      < []
        > XRANGE none - +                   < []
        > XRANGE s (- +                     < -ERR Invalid stream ID specified as stream command argument
        > XRANGE s - (0-0                   < -ERR invalid end ID for the interval
        > XREAD COUNT 1 STREAMS s none 1-1 0 < [["s", [["1-2", ["a", "1", "b", "2"]]]]]
        > XREAD STREAMS s $                 < (nil array)
        > XDEL s 1-2 9-9                    < :1
        > XLEN s                            < :2
        > TYPE s                            < stream
        > OBJECT ENCODING s                 < "stream"
        > XTRIM s MAXLEN 0                  < :2
        > EXISTS s                          < :1
        > XADD s 5-0 c 3
        < -ERR The ID specified in XADD is equal or smaller than the target stream top item
    "#,
    );
}

#[test]
fn groups_distribute_entries() {
    check(
        r#"
        > XGROUP CREATE s g $               < -ERR The XGROUP subcommand requires the key to exist. *
        > XGROUP CREATE s g $ MKSTREAM      < OK
        > XGROUP CREATE s g $               < -BUSYGROUP Consumer Group name already exists
        > XGROUP CREATE s h $ ENTRIESREAD 1 ENTRIESREAD 1
        < -ERR unknown subcommand or wrong number of arguments for 'CREATE'. Try XGROUP HELP.
        > XGROUP CREATE none h $ ENTRIESREAD 1 ENTRIESREAD 1
        < -ERR The XGROUP subcommand requires the key to exist. *
        > XGROUP SETID s g 0 ENTRIESREAD 1 ENTRIESREAD 1
        < -ERR unknown subcommand or wrong number of arguments for 'SETID'. Try XGROUP HELP.
        > XGROUP SETID s h 0 ENTRIESREAD 1 ENTRIESREAD 1   < -NOGROUP *
        > XREADGROUP GROUP g c STREAMS s >  < (nil array)
        > XADD s 1-1 a 1
        > XADD s 2-1 a 2
        > XADD s 3-1 a 3
        > XREADGROUP GROUP g c COUNT 2 STREAMS s >  < [["s", [["1-1", ["a", "1"]], ["2-1", ["a", "2"]]]]]
        > XREADGROUP GROUP g d STREAMS s s > > < [["s", [["3-1", ["a", "3"]]]]]
        > XREADGROUP GROUP g c STREAMS s 1-1 < [["s", [["2-1", ["a", "2"]]]]]
        > XREADGROUP GROUP g e STREAMS s 0  < [["s", []]]
        > XPENDING s g                      < [:3, "1-1", "3-1", [["c", "2"], ["d", "1"]]]
        > XPENDING s g - + 10 c             < [["1-1", "c", :*, :1], ["2-1", "c", :*, :2]]
        > XPENDING s g IDLE 100000 - + 10   < []
        > XPENDING s g - + 10 nobody        < []
        > XPENDING s nog                    < -NOGROUP No such key 's' or consumer group 'nog'
        > XACK s g 1-1 1-1 9-9              < :1
        > XACK s nog 1-1                    < :0
        > XACK s g abc                      < -ERR Invalid stream ID specified as stream command argument
        > XCLAIM s g d 0 2-1 9-9            < [["2-1", ["a", "2"]]]
        > XCLAIM s g d 100000 2-1           < []
        > XCLAIM s g d 0 2-1 JUSTID RETRYCOUNT 7 < ["2-1"]
        > XCLAIM s g d 0 1-1 FORCE JUSTID   < ["1-1"]
        > XCLAIM s g d 0 1-1 FORC           < -ERR Unrecognized XCLAIM option 'FORC'
        > XPENDING s g - + 10
        < [["1-1", "d", :*, :1], ["2-1", "d", :*, :7], ["3-1", "d", :*, :1]]
        > XDEL s 2-1                        < :1
        > XREADGROUP GROUP g d STREAMS s 0
        < [["s", [["1-1", ["a", "1"]], ["2-1", (nil array)], ["3-1", ["a", "3"]]]]]
        > XAUTOCLAIM s g c 0 - COUNT 1      < ["2-1", [["1-1", ["a", "1"]]], []]
        > XAUTOCLAIM s g c 0 2-1 JUSTID     < ["0-0", ["3-1"], ["2-1"]]
        > XAUTOCLAIM s g c 0 - COUNT 0      < -ERR COUNT must be > 0
        > XGROUP CREATECONSUMER s g c       < :0
        > XGROUP CREATECONSUMER s g f       < :1
        > XGROUP DELCONSUMER s g c          < :2
        > XPENDING s g                      < [:0, (nil), (nil), (nil array)]
        > XGROUP SETID s g 1-1              < OK
        > XREADGROUP GROUP g f NOACK STREAMS s > < [["s", [["3-1", ["a", "3"]]]]]
        > XPENDING s g                      < [:0, (nil), (nil), (nil array)]
        > XGROUP DESTROY s g                < :1
        > XGROUP DESTROY s g                < :0
        > XREADGROUP GROUP g f STREAMS s >
        < -NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option
    "#,
    );
}

/// Redis 7.0 names XREAD for XREADGROUP, too.
#[test]
fn unbalanced_lists_are_refused_by_the_name_of_the_command() {
    check_newer(
        r#"
        > XREAD STREAMS s 0 1
        < -ERR Unbalanced 'xread' list of streams: for each stream key an ID or '$' must be specified.
        > XREADGROUP GROUP g c STREAMS s
        < -ERR wrong number of arguments for 'xreadgroup' command
        > xreadgroup GROUP g c COUNT 1 STREAMS s
        < -ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be specified.
    "#,
    );
}

/// As in Valkey: later versions of Redis take the length for a group that stands before the first entry.
#[test]
fn the_lag_of_a_group_counts_trimmed_entries() {
    check_newer(
        r#"
        > XADD s 2-0 a 1                    < "2-0"
        > XDEL s 2-0                        < :1
        > XADD s 177-0 a 1                  < "177-0"
        > XGROUP CREATE s g 1-0             < OK
        > XINFO GROUPS s
        < [["name", "g", "consumers", :0, "pending", :0, "last-delivered-id", "1-0", "entries-read", (nil), \
            "lag", (nil)]]
        > XADD t 1-0 a 1                    < "1-0"
        > XADD t 2-0 a 1                    < "2-0"
        > XADD t 3-0 a 1                    < "3-0"
        > XADD t 4-0 a 1                    < "4-0"
        > XGROUP CREATE t g 0 ENTRIESREAD 0 < OK
        > XINFO GROUPS t                    < [[*, "entries-read", :0, "lag", :4]]
        > XTRIM t MAXLEN 2                  < :2
        > XINFO GROUPS t                    < [[*, "entries-read", :0, "lag", :4]]
        > XREADGROUP GROUP g c COUNT 1 STREAMS t > < [*
        > XINFO GROUPS t                    < [[*, "entries-read", :3, "lag", :1]]
        > XTRIM t MAXLEN 0                  < :2
        > XINFO GROUPS t                    < [[*, "entries-read", :3, "lag", :1]]
        > XGROUP SETID t g 4-0 ENTRIESREAD 9
        > XINFO GROUPS t                    < [[*, "entries-read", :9, "lag", :-5]]
    "#,
    );
}

/// As in Redis 8; Valkey replies nil.
#[test]
fn a_group_of_an_empty_stream_has_no_lag() {
    let text = r#"
        > XADD s MINID 5-0 4-0 a b          < "4-0"
        > XGROUP CREATE s g 4-1             < OK
        > XINFO GROUPS s
        < [[*, "last-delivered-id", "4-1", "entries-read", (nil), "lag", :0]]
        > XADD t 1-0 a b                    < "1-0"
        > XGROUP CREATE t g 7-0             < OK
        > XINFO GROUPS t
        < [[*, "last-delivered-id", "7-0", "entries-read", (nil), "lag", (nil)]]
    "#;
    World::new().check(text);
    if let Some(oracle) = Program::oracle(Reference::Redis8) {
        transcript::check(&Server::start(&oracle, &[]), text);
    }
}

/// Redis 7.0 has an error of its own for a key that has gone.
#[test]
fn waiting_readers_of_a_group_are_told_that_it_has_gone() {
    for (way, error) in [
        ("DEL s", "NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option"),
        ("UNLINK s", "NOGROUP *"),
        ("PEXPIRE s -1", "NOGROUP *"),
        ("RENAME s {s}t", "NOGROUP *"),
        ("MOVE s 9", "NOGROUP *"),
        ("FLUSHALL", "NOGROUP *"),
        ("FLUSHDB", "NOGROUP *"),
        ("SWAPDB 0 9", "NOGROUP *"),
        ("XGROUP DESTROY s g", "NOGROUP *"),
        ("COPY {s}u s REPLACE", "NOGROUP *"),
        ("SET s v", "WRONGTYPE *"),
        ("RENAME {s}v s", "WRONGTYPE *"),
        ("SORT {s}v STORE s", "WRONGTYPE *"),
    ] {
        check_newer(&format!(
            "
            > XGROUP CREATE s g $ MKSTREAM
            > XGROUP CREATE {{s}}u h $ MKSTREAM
            > RPUSH {{s}}v 1
            a> XREADGROUP GROUP g c BLOCK 0 STREAMS s >
            ~ 40ms
            > {way}
            a< -{error}
        "
        ));
    }
    check_newer(
        "
        > XGROUP CREATE s g $ MKSTREAM
        > SELECT 9
        > RPUSH s 1
        > SELECT 0
        a> XREADGROUP GROUP g c BLOCK 0 STREAMS s >
        ~ 40ms
        > SWAPDB 0 9
        a< -WRONGTYPE *
        > FLUSHALL
        > XGROUP CREATE s g $ MKSTREAM
        a> XREADGROUP GROUP g c BLOCK 0 STREAMS s >
        ~ 40ms
        > MULTI
        > DEL s
        > SADD s e
        > EXEC
        a< -WRONGTYPE *
    ",
    );
}

#[test]
fn xsetid_refuses_ids_below_deleted_entries() {
    check_newer(
        r#"
        > XADD s 5-0 a b
        > XADD s 10-0 a b
        > XDEL s 10-0                       < :1
        > XSETID s 6-0
        < -ERR The ID specified in XSETID is smaller than current max_deleted_entry_id
        > XSETID s 4-0
        < -ERR The ID specified in XSETID is smaller than current max_deleted_entry_id
        > XSETID s 6-0 MAXDELETEDID 6-0
        < -ERR The ID specified in XSETID is smaller than current max_deleted_entry_id
        > XSETID s 6-0 MAXDELETEDID 7-0
        < -ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id
        > XSETID s 12-0 MAXDELETEDID 0-0    < OK
        > XINFO STREAM s
        < ["length", :1, *, "last-generated-id", "12-0", "max-deleted-entry-id", "10-0", *
        > XSETID s 12-0 MAXDELETEDID 3-0    < OK
        > XSETID s 4-0
        < -ERR The ID specified in XSETID is smaller than the target stream top item
        > XSETID s 5-0                      < OK
    "#,
    );
}

/// Here the reference servers begin again at the least of all numbers.
#[test]
fn counters_saturate() {
    World::new().check(
        r#"
        > XADD t 5-0 a b
        > XSETID t 5-0 ENTRIESADDED 9223372036854775807
        > XADD t 6-0 a b
        > XINFO STREAM t                    < [*, "entries-added", :9223372036854775807, *
        > XGROUP CREATE t g 5-0 ENTRIESREAD 9223372036854775807
        > XREADGROUP GROUP g c STREAMS t >  < [["t", [["6-0", ["a", "b"]]]]]
        > XINFO GROUPS t                    < [[*, "entries-read", :9223372036854775807, "lag", :0]]
        > XCLAIM t g c 0 6-0 RETRYCOUNT 9223372036854775807
        > XCLAIM t g c 0 6-0
        > XPENDING t g - + 10               < [["6-0", "c", :*, :9223372036854775807]]
        > XAUTOCLAIM t g c 0 0              < ["0-0", [["6-0", ["a", "b"]]], []]
        > XREADGROUP GROUP g c STREAMS t 0  < [["t", [["6-0", ["a", "b"]]]]]
        > XPENDING t g - + 10               < [["6-0", "c", :*, :9223372036854775807]]
    "#,
    );
}

#[test]
fn consumers_without_entries_are_created() {
    check_newer(
        r#"
        > XADD s 1-0 a b
        > XGROUP CREATE s g $
        > XGROUP CREATE none g $ MKSTREAM
        > XREADGROUP GROUP g alice STREAMS s > < (nil array)
        > XREADGROUP GROUP g bob NOACK STREAMS s none > > < (nil array)
        > MULTI
        > XREADGROUP GROUP g carol BLOCK 0 STREAMS s > < QUEUED
        > EXEC                              < [(nil array)]
        > EVAL "return redis.call('XREADGROUP', 'GROUP', 'g', 'dave', 'STREAMS', KEYS[1], '>')" 1 s < (nil)
        a> XREADGROUP GROUP g eve BLOCK 0 STREAMS s >
        ~ 60ms
        > XINFO CONSUMERS s g
        < [["name", "alice", *, "inactive", :-1], ["name", "bob", *], ["name", "carol", *], ["name", "dave", \
            *], ["name", "eve", "pending", :0, "idle", :*, "inactive", :-1]]
        > XINFO CONSUMERS none g            < [["name", "bob", "pending", :0, "idle", :*, "inactive", :-1]]
        > XREADGROUP GROUP g frank STREAMS s missing > > < -NOGROUP *
        > XGROUP DELCONSUMER s g bob        < :0
        > XGROUP CREATECONSUMER s g frank   < :1
        > XGROUP CREATECONSUMER s g eve     < :0
        > XADD s 2-0 a b                    < "2-0"
        a< [["s", [["2-0", ["a", "b"]]]]]
    "#,
    );
}

/// By the clock that the test moves.
#[test]
fn consumers_without_entries_are_seen_but_not_active() {
    World::new().check(
        r#"
        > XADD s 1-0 a b
        > XGROUP CREATE s g 0
        > XREADGROUP GROUP g c STREAMS s >  < [*
        ~ 500ms
        > XINFO CONSUMERS s g               < [["name", "c", "pending", :1, "idle", :500, "inactive", :500]]
        > XREADGROUP GROUP g c STREAMS s >  < (nil array)
        ~ 10ms
        > XINFO CONSUMERS s g               < [["name", "c", "pending", :1, "idle", :10, "inactive", :510]]
        a> XREADGROUP GROUP g c BLOCK 0 STREAMS s >
        ~ 20ms
        > XINFO CONSUMERS s g               < [["name", "c", "pending", :1, "idle", :20, "inactive", :530]]
        > XADD s 2-0 a b                    < "2-0"
        a< [["s", [["2-0", ["a", "b"]]]]]
        ~ 5ms
        > XINFO CONSUMERS s g               < [["name", "c", "pending", :2, "idle", :5, "inactive", :5]]
    "#,
    );
}

/// As Valkey counts: it does not go on from a number that a client has invented.
#[test]
fn entries_read_counts_existing_entries() {
    let text = r#"
        > XADD q 1-0 a b
        > XADD q 2-0 a b
        > XADD q 3-0 a b
        > XADD q 4-0 a b
        > XGROUP CREATE q h 0 ENTRIESREAD 1
        > XINFO GROUPS q                    < [[*, "entries-read", :1, "lag", :3]]
        > XREADGROUP GROUP h c COUNT 1 STREAMS q > < [*
        > XINFO GROUPS q                    < [[*, "entries-read", :1, "lag", :3]]
        > XGROUP SETID q h 0 ENTRIESREAD 9
        > XREADGROUP GROUP h c COUNT 3 STREAMS q > < [*
        > XINFO GROUPS q                    < [[*, "last-delivered-id", "3-0", "entries-read", :3, "lag", :1]]
        > XGROUP SETID q h 2-0 ENTRIESREAD 3
        > XREADGROUP GROUP h c COUNT 1 STREAMS q > < [*
        > XINFO GROUPS q                    < [[*, "entries-read", :4, "lag", :0]]
        > XGROUP SETID q h 1-0 ENTRIESREAD 1
        > XTRIM q MAXLEN 2                  < :2
        > XINFO GROUPS q                    < [[*, "entries-read", :1, *]]
        > XREADGROUP GROUP h c COUNT 1 STREAMS q > < [*
        > XINFO GROUPS q                    < [[*, "entries-read", :3, "lag", :1]]
        > XTRIM q MAXLEN 0                  < :2
        > XGROUP SETID q h 7-0 ENTRIESREAD 2
        > XADD q 9-0 a b
        > XREADGROUP GROUP h c COUNT 1 STREAMS q > < [*
        > XINFO GROUPS q                    < [[*, "entries-read", :5, "lag", :0]]
        > XADD q 10-0 a b
        > XADD q 11-0 a b
        > XDEL q 10-0                       < :1
        > XINFO GROUPS q                    < [[*, "entries-read", :5, "lag", (nil)]]
        > XREADGROUP GROUP h c COUNT 1 STREAMS q > < [*
        > XINFO GROUPS q                    < [[*, "entries-read", :7, "lag", :0]]
    "#;
    check_newer(text);
}

/// A command may name a stream several times with different IDs, each of which may be served. Redis 7.0 looks
/// at the first.
#[test]
fn repeated_keys_are_read_each_time() {
    check_newer(
        "
        > XADD s 1-1 a b
        a> XREAD BLOCK 0 STREAMS s t s 100 0 5
        ~ 40ms
        > XADD s 4-0 a b                  < \"4-0\"
        > XADD s 6-0 a b                  < \"6-0\"
        a< [[\"s\", [[\"6-0\", [\"a\", \"b\"]]]]]
    ",
    );
}
