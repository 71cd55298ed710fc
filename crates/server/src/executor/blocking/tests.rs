//! Waiting, in process, with commands that only tests have: the mechanism, whatever the type of value.

use crate::testing::World;

fn check(text: &str) {
    let mut world = World::new();
    world.check(text);
    world.verify();
}

#[test]
fn blocked_clients_are_served_by_writes() {
    check(
        "
        > SET k v
        a> TEST.BGET k 0                  < [\"k\", \"v\"]
        a> TEST.BGET k 0
        > SET k w                         < OK
        a< [\"k\", \"w\"]
        > EXISTS k                        < :0
        a> PING                           < PONG
    ",
    );
}

#[test]
fn clients_are_served_in_order_of_arrival() {
    check(
        "
        a> TEST.BGET k 0
        b> TEST.BGET k 0
        c> TEST.BGET k 0
        > SET k 1
        > SET k 2
        a< [\"k\", \"1\"]
        b< [\"k\", \"2\"]
        a> TEST.BGET k 0
        > SET k 3
        > SET k 4
        > SET k 5
        c< [\"k\", \"3\"]
        a< [\"k\", \"4\"]
        > GET k                           < \"5\"
    ",
    );
}

#[test]
fn any_of_several_keys_serves() {
    check(
        "
        a> TEST.BGET j k k l 0
        > INFO clients
        < \"*blocked_clients:1\\r*clients_in_timeout_table:0\\r*total_blocking_keys:3\\r*\"
        > SET other v
        > SET l v
        a< [\"l\", \"v\"]
        > SET j v
        > GET j                           < \"v\"
        > INFO clients                    < \"*blocked_clients:0\\r*total_blocking_keys:0\\r*\"
    ",
    );
}

/// Redis 7.0 serves the first push, whichever key comes first in the command.
#[test]
fn the_key_written_first_serves() {
    check(
        "
        a> TEST.BGET j k 0
        > MULTI
        > SET k 1
        > SET j 2
        > EXEC                            < [OK, OK]
        a< [\"k\", \"1\"]
        > GET j                           < \"2\"
    ",
    );
}

#[test]
fn commands_do_not_block_inside_multi() {
    check(
        "
        > MULTI
        > TEST.BGET k 0
        > TEST.BMOVE k j 0
        > SET k v
        > TEST.BGET k 0
        > EXEC                            < [(nil array), (nil), OK, [\"k\", \"v\"]]
    ",
    );
}

#[test]
fn clients_are_served_after_the_transaction() {
    check(
        "
        a> TEST.BGET k 0
        > MULTI
        > SET k 1
        > APPEND k 2
        > EXEC                            < [OK, :2]
        a< [\"k\", \"12\"]
        a> TEST.BGET k 0
        > MULTI
        > SET k 1
        > DEL k
        > EXEC                            < [OK, :1]
        > SET k v
        a< [\"k\", \"v\"]
    ",
    );
}

#[test]
fn waits_time_out() {
    check(
        "
        a> TEST.BGET k 0.1
        b> TEST.BGET k 0.05
        c> TEST.BMOVE k j 0.25
        > INFO clients                    < \"*blocked_clients:3\\r*clients_in_timeout_table:3\\r*\"
        ~ 49ms
        > INFO clients                    < \"*blocked_clients:3\\r*\"
        ~ 1ms
        b< (nil array)
        ~ 50ms
        a< (nil array)
        > SET k v
        c< \"v\"
        ~ 500ms
        > GET j                           < \"v\"
    ",
    );
}

#[test]
fn invalid_timeouts_are_refused() {
    check(
        "
        > TEST.BGET k x                   < -ERR timeout is not a float or out of range
        > TEST.BGET k nan                 < -ERR timeout is not a float or out of range
        > TEST.BGET k \"\"                < -ERR timeout is not a float or out of range
        > TEST.BGET k -1                  < -ERR timeout is negative
        > TEST.BGET k -inf                < -ERR timeout is negative
        > TEST.BGET k -9223372036854775808 < -ERR timeout is negative
        > TEST.BGET k inf                 < -ERR timeout is out of range
        > TEST.BGET k 1e400               < -ERR timeout is out of range
        > TEST.BGET k 9223372036854774    < -ERR timeout is out of range
        > SET k v
        > TEST.BGONE k 0.5                < -ERR timeout is not an integer or out of range
        > TEST.BGONE k -1                 < -ERR timeout is negative
        > TEST.BGONE k 9223372036854775807 < -ERR timeout is out of range
        > DEL k
        a> TEST.BGET k 9e15
        b> TEST.BGET k -0.0001
        c> TEST.BGET k 0
        d> TEST.BGET k 0.0000001
        > INFO clients                    < \"*blocked_clients:4\\r*clients_in_timeout_table:2\\r*\"
        ~ 1ms
        d< (nil array)
        > CLIENT UNBLOCK 2                < :1
        > CLIENT UNBLOCK 3                < :1
        > CLIENT UNBLOCK 4                < :1
        a< (nil array)
        b< (nil array)
        c< (nil array)
    ",
    );
}

#[test]
fn client_unblock_ends_waits() {
    check(
        "
        a> CLIENT ID                      < :1
        a> TEST.BGET k 100
        > CLIENT UNBLOCK 1                < :1
        a< (nil array)
        > CLIENT UNBLOCK 1                < :0
        a> TEST.BMOVE k j 0
        > CLIENT UNBLOCK 1 ERROR          < :1
        a< -UNBLOCKED client unblocked via CLIENT UNBLOCK
        > INFO errorstats                 < \"*errorstat_UNBLOCKED:count=1\\r*\"
        > CLIENT UNBLOCK -1               < :0
        a> TEST.BGET k 0
        > CLIENT LIST ID 1                < \"* flags=b *cmd=test.bget *\"
        > CLIENT UNBLOCK 1 TIMEOUT        < :1
        a< (nil array)
        > CLIENT LIST ID 1                < \"* flags=N *\"
        > SET k v                         < OK
        > GET k                           < \"v\"
    ",
    );
}

#[test]
fn commands_behind_a_blocked_command_wait() {
    let mut world = World::new();
    // A transcript asks for each reply before it sends the next command on a connection.
    for line in ["TEST.BGET k 0", "INCR n", "TEST.BGET k 0.1", "INCR n", "TEST.BGET k 0", "INCR n"] {
        world.type_in("a", line);
    }
    world.check(
        "> GET n < (nil)\n > SET k v\n > GET n < \"1\"\n ~ 100ms\n > GET n < \"2\"\n > SET k w\n \
                 > GET n < \"3\"",
    );
    world.check("a< [\"k\", \"v\"]\n a< :1\n a< (nil array)\n a< :2\n a< [\"k\", \"w\"]\n a< :3");
}

#[test]
fn serving_a_client_may_serve_more_clients() {
    check(
        "
        a> TEST.BMOVE k1 k2 0
        b> TEST.BMOVE k2 k3 0
        c> TEST.BGET k3 0
        > SET k1 v                        < OK
        a< \"v\"
        b< \"v\"
        c< [\"k3\", \"v\"]
        > EXISTS k1 k2 k3                 < :0
        a> TEST.BMOVE k1 k2 0
        b> TEST.BMOVE k2 k1 0
        > SET k1 v                        < OK
        a< \"v\"
        b< \"v\"
        > GET k1                          < \"v\"
        a> TEST.BMOVE k9 k9 0
        > RENAME k1 k9                    < OK
        a< \"v\"
        > GET k9                          < \"v\"
    ",
    );
}

#[test]
fn errors_end_a_wait() {
    check(
        "
        > SET to full
        a> TEST.BMOVE k to 0
        b> TEST.BMOVE k other 0
        > SET k v
        a< -WRONGTYPE Operation against a key holding the wrong kind of value
        b< \"v\"
        > GET other                       < \"v\"
        a> TEST.BGET k 0
        b> TEST.BGET k 0
        > SET k panic
        a< -ERR internal error: the command was aborted, see the server log
        b< -ERR internal error: the command was aborted, see the server log
        > GET k                           < \"panic\"
        a> PING                           < PONG
    ",
    );
}

/// The waiters' keys are in slots of their own, so each of these writes has to lock the slots that serving
/// takes.
#[test]
fn each_way_to_create_a_key_serves_waiters() {
    for (before, write) in [
        ("", "MSET other 1 k v"),
        ("", "APPEND k v"),
        ("SET other v", "RENAME other k"),
        ("SET other v", "COPY other k"),
        ("SELECT 9", "SWAPDB 0 9"),
        ("SELECT 9", "MOVE k 0"),
    ] {
        check(
            &format!(
                "
            > SELECT 0
            > {before}
            {}
            a> TEST.BGET x k 0
            b> TEST.BMOVE k to 0
            > {write}
            a< [\"k\", \"v\"]
            c> SET k w
            b< \"w\"
            c> GET to < \"w\"
        ",
                if before == "SELECT 9" { "> SET k v" } else { "" }
            )
            .replace("> \n", "\n"),
        );
    }
}

#[test]
fn waits_keep_their_database_number() {
    check(
        "
        a> SELECT 9
        a> TEST.BGET k 0
        > SWAPDB 0 9                      < OK
        > SET k wrong
        > SELECT 9
        > SWAPDB 9 5                      < OK
        > SET k right
        a< [\"k\", \"right\"]
    ",
    );
}

#[test]
fn removals_serve_clients_that_wait_for_any_change() {
    for way in ["DEL k", "RENAME k j", "MOVE k 9", "FLUSHDB", "FLUSHALL ASYNC", "SWAPDB 0 9", "PEXPIRE k -1"]
    {
        check(
            &format!(
                "
            > SET k v
            a> TEST.BGONE k 0
            b> TEST.BGET j 0
            > APPEND k w
            > {way}
            a< -ERR no such key
        "
            )
            .replace(
                "b> TEST.BGET j 0\n",
                if way == "RENAME k j" { "\n" } else { "b> TEST.BGET j 0.1\n ~ 100ms\n" },
            ),
        );
    }
    let mut world = World::new();
    world.check("> SET k v PX 50\n a> TEST.BGONE k 0\n ~ 50ms\n > GET k < (nil)\n a< -ERR no such key");
    world.check("> SET k v PX 50");
    world.type_in("a", "TEST.BGONE k 0");
    world.check("~ 100ms");
    world.sweep();
    world.check("a< -ERR no such key");
    world.verify();
}

/// The first write does not serve the second of three, which keeps its place.
#[test]
fn reruns_may_change_the_wait_condition() {
    check(
        "
        > SET k 12345
        a> TEST.BMORE k $ 0
        b> TEST.BMORE k 10 0
        c> TEST.BMORE k 5 0
        > SET k 1234
        > SET k 1234567
        a< :7
        c< :7
        a> TEST.BMORE k 10 0
        > SET k 123456789012
        b< :12
        a< :12
    ",
    );
}

#[test]
fn expired_values_serve_no_client() {
    check(
        "
        a> TEST.BGET k 0
        > MULTI
        > SET k v
        > PEXPIREAT k 1
        > EXEC                            < [OK, :1]
        > SET k w
        a< [\"k\", \"w\"]
    ",
    );
}

#[test]
fn disconnected_clients_are_not_served() {
    let mut world = World::new();
    world.check("a> CLIENT ID < :1\n b> CLIENT ID < :2\n c> CLIENT ID < :3");
    for name in ["a", "b", "c"] {
        world.type_in(name, "TEST.BGET k 0");
    }
    world.hang_up("a");
    world.check("> CLIENT KILL ID 2 < :1\n > SET k v\n c< [\"k\", \"v\"]\n > SET k w\n > GET k < \"w\"");
    world.hang_up("b");
    world.verify();
}

#[test]
fn client_reply_off_applies_to_late_replies() {
    let mut world = World::new();
    world.type_in("a", "CLIENT REPLY SKIP");
    world.type_in("a", "TEST.BGET k 0");
    world.check("> SET k v\n a> PING < PONG");
    world.check("a> TEST.BGET k 0\n > SET k v\n a< [\"k\", \"v\"]");
}

#[test]
fn blocked_commands_are_counted_once() {
    check(
        "
        a> TEST.BGET k 0
        > SET k panic
        a< -ERR internal*
        > INFO commandstats               < \"*cmdstat_test.bget:calls=1,*failed_calls=1*\"
        > INFO commandstats               < \"*cmdstat_set:calls=1,*failed_calls=0*\"
    ",
    );
}

#[test]
fn serving_invalidates_watches() {
    check(
        "
        a> TEST.BMOVE k to 0
        b> WATCH to
        > SET k v
        b> MULTI
        b> PING
        b> EXEC                           < (nil array)
        a< \"v\"
        b> WATCH to2
        a> TEST.BMOVE k2 to2 0.1
        b> MULTI
        b> PING
        b> EXEC                           < [PONG]
        ~ 100ms
        a< (nil array)
    ",
    );
}

/// Every key twice, and too many of them to search through for each.
#[test]
fn repeated_keys_are_waited_for_once() {
    const KEYS: usize = 30_000;
    let mut world = World::new();
    let keys: String = (0..KEYS).map(|number| format!(" {{k}}{number}")).collect();
    world.type_in("a", &format!("TEST.BGET{keys}{keys} 0"));
    world.check(&format!(
        "
        > INFO clients                    < \"*blocked_clients:1\\r*total_blocking_keys:{KEYS}\\r*\"
        > SET {{k}}77 v
        a< [\"{{k}}77\", \"v\"]
        > INFO clients                    < \"*blocked_clients:0\\r*total_blocking_keys:0\\r*\"
    "
    ));
    world.verify();
}
