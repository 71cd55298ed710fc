//! Waiting as in Redis: these transcripts hold for redis-server, too, where it is installed. A pause after a
//! blocking command lets it arrive before commands of other connections.

use crate::testing::{World, check};

#[test]
fn blocked_clients_pop_lists() {
    check(
        "
        a> BLPOP {k}1 {k}2 {k}1 0
        ~ 40ms
        > RPUSH {k}2 x y                  < :2
        a< [\"{k}2\", \"x\"]
        > LRANGE {k}2 0 -1                < [\"y\"]
        a> BLPOP {k}1 {k}2 0              < [\"{k}2\", \"y\"]
        a> BRPOP {k}1 0
        b> BLMPOP 0 2 {k}3 {k}1 LEFT COUNT 2
        ~ 40ms
        > RPUSH {k}1 a b c d              < :4
        a< [\"{k}1\", \"d\"]
        b< [\"{k}1\", [\"a\", \"b\"]]
        > LRANGE {k}1 0 -1                < [\"c\"]
    ",
    );
}

#[test]
fn each_key_has_its_own_queue() {
    check(
        "
        a> BLPOP k1 k2 0
        ~ 40ms
        b> BLPOP k2 0
        ~ 40ms
        c> BLPOP k1 0
        ~ 40ms
        > RPUSH k2 1 2 3                  < :3
        a< [\"k2\", \"1\"]
        b< [\"k2\", \"2\"]
        > LLEN k2                         < :1
        > RPUSH k1 x                      < :1
        c< [\"k1\", \"x\"]
    ",
    );
}

#[test]
fn blocked_clients_are_served_after_transactions() {
    World::new().check(
        "
        a> BLPOP k1 k2 0
        ~ 40ms
        > MULTI
        > LPUSH k2 x
        > LPUSH k1 y
        > LPUSH k1 z
        > EXEC                            < [:1, :1, :2]
        a< [\"k2\", \"x\"]
        > LRANGE k1 0 -1                  < [\"z\", \"y\"]
        a> BLPOP k3 0
        ~ 40ms
        > MULTI
        > LPUSH k3 x
        > DEL k3
        > SET k3 string
        > EXEC                            < [:1, :1, OK]
        > MULTI
        > BLPOP k4 0
        > BLMOVE k4 k5 LEFT LEFT 0
        > BZPOPMIN k4 0
        > LPUSH k4 x
        > BLPOP k4 0
        > EXEC                            < [(nil array), (nil), (nil array), :1, [\"k4\", \"x\"]]
        > DEL k3
        > LPUSH k3 y                      < :1
        a< [\"k3\", \"y\"]
    ",
    );
}

#[test]
fn keys_of_other_types_do_not_serve() {
    World::new().check(
        "
        a> BLPOP k1 k2 0
        b> BZPOPMIN k1 k2 0
        ~ 40ms
        > SET k1 string
        > ZADD k2 1 m
        b< [\"k2\", \"m\", \"1\"]
        > LPUSH k2 x
        a< [\"k2\", \"x\"]
        > TYPE k1                         < string
        a> BLPOP k1 0                     < -WRONGTYPE *
    ",
    );
}

#[test]
fn chained_moves_are_served() {
    check(
        "
        a> BLMOVE k1 k2 LEFT RIGHT 0
        ~ 40ms
        b> BRPOPLPUSH k2 k3 0
        ~ 40ms
        c> BLPOP k3 0
        ~ 40ms
        > RPUSH k1 v                      < :1
        a< \"v\"
        b< \"v\"
        c< [\"k3\", \"v\"]
        > EXISTS k1 k2 k3                 < :0
        > SET wrong string
        a> BLMOVE k1 wrong LEFT RIGHT 0
        ~ 40ms
        b> BLMOVE k1 k2 LEFT RIGHT 0
        ~ 40ms
        > RPUSH k1 v                      < :1
        a< -WRONGTYPE *
        b< \"v\"
        > DEL k2
        a> BRPOPLPUSH k k 0
        ~ 40ms
        > RPUSH k v                       < :1
        a< \"v\"
        > LRANGE k 0 -1                   < [\"v\"]
    ",
    );
}

#[test]
fn keys_created_by_other_commands_serve_waiters() {
    for (before, write) in [
        ("RPUSH {k}other v", "RENAME {k}other {k}"),
        ("RPUSH {k}other v", "COPY {k}other {k}"),
        ("RPUSH {k}other v", "LMOVE {k}other {k} LEFT LEFT"),
        ("PING", "LPUSH {k} v"),
    ] {
        check(&format!(
            "
            > {before}
            a> BLPOP {{k}}x {{k}} 0
            ~ 40ms
            > {write}
            a< [\"{{k}}\", \"v\"]
        "
        ));
    }
    check(
        "
        > SELECT 5
        > RPUSH k v
        > SELECT 0
        a> BLPOP k 0
        ~ 40ms
        > SWAPDB 0 5                      < OK
        a< [\"k\", \"v\"]
        a> BLPOP k 0
        > SELECT 5
        > RPUSH k w
        ~ 40ms
        > MOVE k 0                        < :1
        a< [\"k\", \"w\"]
    ",
    );
}

#[test]
fn waits_end_by_timeout_or_client_unblock() {
    check(
        "
        a> BLPOP k 0.05
        b> BLMOVE k j LEFT LEFT 0.05
        c> BZMPOP 0.05 1 k MIN
        ~ 150ms
        a< (nil array)
        b< (nil array)
        c< (nil array)
        a> HELLO 3
        a> BLPOP k 0.01
        ~ 60ms
        a< (null)
        a> CLIENT SETNAME a
        a> CLIENT ID                      < *
        > BLPOP k -1                      < -ERR timeout is negative
        > BLPOP k x                       < -ERR timeout is not a float or out of range
        > CLIENT UNBLOCK 9999             < :0
    ",
    );
}

#[test]
fn keys_that_expire_at_once_serve_no_client() {
    check(
        "
        a> BLPOP k 0.2
        ~ 40ms
        > MULTI
        > RPUSH k v
        > PEXPIREAT k 1
        > EXEC                            < [:1, :1]
        > EXISTS k                        < :0
        ~ 300ms
        a< (nil array)
    ",
    );
}

/// A client that waits with `>` goes on waiting until there is a new entry, or the group goes.
#[test]
fn xgroup_setid_serves_no_client() {
    check(
        "
        > XADD s 1-0 a b
        > XGROUP CREATE s g $             < OK
        a> XREADGROUP GROUP g c BLOCK 0 STREAMS s >
        ~ 40ms
        > XGROUP SETID s g 0              < OK
        ~ 40ms
        > XPENDING s g                    < [:0, (nil), (nil), (nil array)]
        > XADD s 2-0 a b                  < \"2-0\"
        a< [[\"s\", [[\"1-0\", [\"a\", \"b\"]], [\"2-0\", [\"a\", \"b\"]]]]]
        a> XREADGROUP GROUP g c BLOCK 0 STREAMS s >
        ~ 40ms
        > XGROUP DESTROY s g              < :1
        a< -NOGROUP *
    ",
    );
}
