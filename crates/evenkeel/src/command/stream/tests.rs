use crate::testing::{World, check};

#[test]
fn entries_are_added_and_read() {
    check(
        r#"
        > XLEN s                            < :0
        > XADD s 1-1 a 1 b 2                < "1-1"
        > XADD s 1-* a 1 b 2                < "1-2"
        > XADD s 5 c 3                      < "5-0"
        > XADD s 5-0 c 3                    < -ERR The ID specified in XADD is equal or smaller than the target stream top item
        > XADD s 0-0 c 3                    < -ERR The ID specified in XADD must be greater than 0-0
        > XADD s abc c 3                    < -ERR Invalid stream ID specified as stream command argument
        > XADD s 7 c                        < -ERR wrong number of arguments for 'xadd' command
        > XADD s 7 c 1 d                    < -ERR wrong number of arguments for 'xadd' command
        > XADD s MAXLEN 7 c 1               < -ERR Invalid stream ID specified as stream command argument
        > XADD none NOMKSTREAM 1-1 a b      < (nil)
        > EXISTS none                       < :0
        > XLEN s                            < :3
        > XRANGE s - +                      < [["1-1", ["a", "1", "b", "2"]], ["1-2", ["a", "1", "b", "2"]], ["5-0", ["c", "3"]]]
        > XREVRANGE s + - COUNT 2           < [["5-0", ["c", "3"]], ["1-2", ["a", "1", "b", "2"]]]
        > XRANGE s (1-1 (5-0                < [["1-2", ["a", "1", "b", "2"]]]
        > XRANGE s - + COUNT 0              < (nil array)
        > XRANGE s + -                      < []
        > XRANGE none - +                   < []
        > XRANGE s (- +                     < -ERR Invalid stream ID specified as stream command argument
        > XRANGE s - (0-0                   < -ERR invalid end ID for the interval
        > XREAD COUNT 1 STREAMS s none 1-1 0 < [["s", [["1-2", ["a", "1", "b", "2"]]]]]
        > XREAD STREAMS s $                 < (nil array)
        > XREAD STREAMS s 0 1               < -ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.
        > XDEL s 1-2 9-9                    < :1
        > XLEN s                            < :2
        > TYPE s                            < stream
        > OBJECT ENCODING s                 < "stream"
        > XTRIM s MAXLEN 0                  < :2
        > EXISTS s                          < :1
        > XADD s 5-0 c 3                    < -ERR The ID specified in XADD is equal or smaller than the target stream top item
    "#,
    );
}

#[test]
fn groups_deal_entries_out() {
    check(
        r#"
        > XGROUP CREATE s g $               < -ERR The XGROUP subcommand requires the key to exist. *
        > XGROUP CREATE s g $ MKSTREAM      < OK
        > XGROUP CREATE s g $               < -BUSYGROUP Consumer Group name already exists
        > XGROUP CREATE s h $ ENTRIESREAD 1 ENTRIESREAD 1  < -ERR unknown subcommand or wrong number of arguments for 'CREATE'. Try XGROUP HELP.
        > XGROUP CREATE none h $ ENTRIESREAD 1 ENTRIESREAD 1  < -ERR The XGROUP subcommand requires the key to exist. *
        > XGROUP SETID s g 0 ENTRIESREAD 1 ENTRIESREAD 1   < -ERR unknown subcommand or wrong number of arguments for 'SETID'. Try XGROUP HELP.
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
        > XPENDING s g - + 10               < [["1-1", "d", :*, :1], ["2-1", "d", :*, :7], ["3-1", "d", :*, :1]]
        > XDEL s 2-1                        < :1
        > XREADGROUP GROUP g d STREAMS s 0  < [["s", [["1-1", ["a", "1"]], ["2-1", (nil array)], ["3-1", ["a", "3"]]]]]
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
        > XREADGROUP GROUP g f STREAMS s >  < -NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option
    "#,
    );
}

/// Redis 7.0 replies 1.
#[test]
fn the_lag_of_a_group_that_began_before_a_gap_is_not_known() {
    World::new().check(
        r#"
        > XADD s 2-0 a 1                    < "2-0"
        > XDEL s 2-0                        < :1
        > XADD s 177-0 a 1                  < "177-0"
        > XGROUP CREATE s g 1-0             < OK
        > XINFO GROUPS s                    < [["name", "g", "consumers", :0, "pending", :0, "last-delivered-id", "1-0", "entries-read", (nil), "lag", (nil)]]
    "#,
    );
}
