//! Transactions as sessions; each transcript also holds for redis-server.

use crate::testing::{World, check};
use evenkeel_core::pause::Pauser;

#[test]
fn queued_commands_run_in_order() {
    check(
        r#"
        > MULTI                    < OK
        > SET a 1                  < QUEUED
        > SET b 2                  < QUEUED
        > RENAME a c               < QUEUED
        > RENAME nothing c         < QUEUED
        > EXISTS a b c             < QUEUED
        > GET c                    < QUEUED
        > UNWATCH                  < QUEUED
        other> DBSIZE              < :0
        > EXEC                     < [OK, OK, OK, -ERR no such key, :2, "1", OK]
        other> DBSIZE              < :2
        > MULTI
        > EXEC                     < []
    "#,
    );
}

#[test]
fn discarded_transactions_do_not_run() {
    check(
        "
        > MULTI
        > SET a 1                  < QUEUED
        > DISCARD                  < OK
        > EXISTS a                 < :0
        > EXEC                     < -ERR EXEC without MULTI
        > DISCARD                  < -ERR DISCARD without MULTI
        > MULTI
        > SET a 1                  < QUEUED
        > RESET                    < RESET
        > EXEC                     < -ERR EXEC without MULTI
        > EXISTS a                 < :0
    ",
    );
}

/// A command that cannot be queued spoils the transaction.
#[test]
fn errors_while_queueing() {
    for (mistake, reply) in [
        ("NOSUCH", "-ERR unknown command 'NOSUCH', with args beginning with: *"),
        ("\"no\\x00such\" a \"b\\x00c\"", "-ERR unknown command 'no', with args beginning with: 'a' 'b' *"),
        ("GET", "-ERR wrong number of arguments for 'get' command"),
        ("OBJECT NOSUCH", "-ERR unknown subcommand 'NOSUCH'. Try OBJECT HELP."),
        ("WATCH", "-ERR wrong number of arguments for 'watch' command"),
        ("DISCARD x", "-ERR wrong number of arguments for 'discard' command"),
        ("SHUTDOWN", "-ERR Command 'shutdown' not allowed inside a transaction"),
    ] {
        check(&format!(
            "
            > MULTI
            > SET a 1              < QUEUED
            > {mistake}            < {reply}
            > SET b 1              < QUEUED
            > EXEC                 < -EXECABORT Transaction discarded because of previous errors.
            > EXISTS a b           < :0
            > EXEC                 < -ERR EXEC without MULTI
        "
        ));
    }
    check(
        "
        > MULTI
        > MULTI                    < -ERR Command 'multi' not allowed inside a transaction
        > WATCH k                  < -ERR Command 'watch' not allowed inside a transaction
        > SHUTDOWN                 < -ERR Command 'shutdown' not allowed inside a transaction
        > PING                     < QUEUED
        > EXEC                     < -EXECABORT Transaction discarded because of previous errors.
    ",
    );
}

#[test]
fn a_refused_exec_ends_the_transaction() {
    let aborted = "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command";
    check(&format!(
        "
        > WATCH k
        > MULTI
        > SET k v
        > EXEC now                 < {aborted}
        > EXEC                     < -ERR EXEC without MULTI
        > EXISTS k                 < :0
        > EXEC now                 < {aborted}
        > SET k v
        > MULTI
        > EXEC                     < []
    "
    ));
}

/// Of servers at hand none has conditions.
#[test]
fn conditions_decide_whether_a_transaction_runs() {
    let mut world = World::new();
    let mut exec = |conditions: &str, reply: &str| {
        world.check(&format!(
            "
            > DEL new
            > MULTI                    < OK
            > SET new 1                < QUEUED
            > EXEC {conditions}        < {reply}
            > EXEC                     < -ERR EXEC without MULTI
        "
        ));
        assert_eq!(world.run("EXISTS new"), if reply == "[OK]" { ":1" } else { ":0" }, "{conditions}");
    };
    exec("NX a", "[OK]");
    exec("XX a", "(nil array)");
    exec("IFEQ a v", "(nil array)");
    exec("IFNE a v", "[OK]");
    let mut world = World::new();
    world.check("> SET a v\n > HSET h f v\n > SETRANGE long 200000 x");
    let mut exec = |conditions: &str, reply: &str| {
        world.check(&format!("> DEL new\n > MULTI\n > SET new 1\n > EXEC {conditions} < {reply}"));
        assert_eq!(world.run("EXISTS new"), if reply == "[OK]" { ":1" } else { ":0" }, "{conditions}");
    };
    exec("xx a ifeq a v ifne a V nx b", "[OK]");
    exec("ifeq a v ifne a v", "(nil array)");
    exec("IFEQ a vv", "(nil array)");
    exec("IFEQ long v", "(nil array)");
    exec("NX a", "(nil array)");
    exec("XX h", "[OK]");
    exec("IFEQ h v", "-WRONGTYPE *");
    exec("XX a IFNE h v", "-WRONGTYPE *");
    exec("NX a IFEQ h v", "(nil array)");
    let malformed = "-EXECABORT Transaction discarded because of invalid check condition syntax";
    for conditions in ["IFEQ", "IFEQ a", "NX", "XX a NX", "XX a EX", "XX a b"] {
        exec(conditions, malformed);
    }
    world.check(
        "
        > WATCH a
        b> SET a w
        > MULTI
        > SET new 1
        > EXEC IFEQ a w            < (nil array)
        > MULTI
        > GET
        < -ERR wrong number of arguments for 'get' command
        > EXEC XX a                < -EXECABORT Transaction discarded because of previous errors.
        > ACL SETUSER ann on nopass ~n* +@all
        > AUTH ann x
        > MULTI
        > SET new 1
        > EXEC XX a                < -EXECABORT Transaction discarded because of: NOPERM *
        > COMMAND GETKEYS EXEC NX a IFEQ b c < [\"a\", \"b\"]
    ",
    );
}

#[test]
fn changed_watched_keys_abort_exec() {
    for change in
        ["SET {t}k w", "DEL {t}k", "RENAME {t}k l", "RENAME l {t}k", "COPY l {t}k REPLACE", "MOVE {t}k 1"]
    {
        for who in ["", "other"] {
            check(&format!(
                "
                > SET {{t}}k v
                > SET l v
                > WATCH x {{t}}y {{t}}k {{t}}z < *
                {who}> {change}            < *
                > MULTI
                > SET m 1          < QUEUED
                > EXEC             < (nil array)
                > EXISTS m         < :0
                > MULTI
                > SET m 1
                > EXEC             < [OK]
            "
            ));
        }
    }
    for change in ["EXPIRE k 100", "FLUSHALL", "FLUSHDB", "SWAPDB 0 1", "SWAPDB 1 0"] {
        check(&format!(
            "> SET k v\n > WATCH k < *\n o> {change} < *\n > MULTI\n > PING\n > EXEC < (nil array)"
        ));
    }
}

#[test]
fn commands_without_effect_do_not_abort_exec() {
    for harmless in [
        "GET k",
        "SET l w",
        "COPY k l",
        "DEL none",
        "PERSIST k",
        "EXPIRE k 100 XX",
        "RENAMENX l k",
        "SWAPDB 1 2",
        "TOUCH k",
        "SCAN 0",
        "MOVE none 1",
        "RENAME k k",
    ] {
        check(&format!(
            "> SET k v\n > SET l v\n > WATCH k none < *\n other> {harmless} < *\n > MULTI\n > PING\n \
             > EXEC < [PONG]"
        ));
    }
    check(
        "> WATCH k < *\n o> FLUSHALL < *\n o> SWAPDB 0 1 < *\n o> FLUSHDB < *\n > MULTI\n > PING\n \
         > EXEC < [PONG]",
    );
}

#[test]
fn unwatch_discard_and_exec_end_watching() {
    for end in ["UNWATCH", "MULTI\n > DISCARD", "MULTI\n > EXEC", "RESET"] {
        check(&format!("> WATCH k\n > {end}\n > SET k v\n > MULTI\n > PING\n > EXEC < [PONG]"));
        check(&format!("> WATCH k\n > SET k v\n > {end}\n > MULTI\n > PING\n > EXEC < [PONG]"));
    }
    check(
        "> WATCH k\n > SET k v\n > EXEC < -ERR EXEC without MULTI\n > MULTI\n > PING\n > EXEC < (nil array)",
    );
    // The commands of the queue itself do not count.
    check("> WATCH k\n > MULTI\n > SET k v\n > UNWATCH\n > EXEC < [OK, OK]\n > MULTI\n > EXEC < []");
}

#[test]
fn watched_keys_belong_to_a_database() {
    check(
        "
        > SELECT 5
        > WATCH k
        > SELECT 1
        > SET k v
        > MULTI
        > PING
        > EXEC                     < [PONG]
        > WATCH k
        > SELECT 5                 < *
        other> SELECT 1            < *
        other> SET k w             < *
        > MULTI
        > PING
        > EXEC                     < (nil array)
    ",
    );
}

/// Whether or not a command has accessed the key since.
#[test]
fn expired_watched_keys_abort_exec() {
    for meet in ["PING", "EXISTS k", "SCAN 0"] {
        check(&format!(
            "
            > DEBUG SET-ACTIVE-EXPIRE 0
            > SET k v
            > PEXPIRE k 500
            > WATCH k
            ~ 600ms
            other> {meet}              < *
            > MULTI
            > PING
            > EXEC                 < (nil array)
        "
        ));
    }
}

/// A key that had expired when the watch began counts as missing.
#[test]
fn keys_expired_before_watch_do_not_abort_exec() {
    for goes in ["EXISTS k", "FLUSHDB", "SCAN 0", "SWAPDB 0 1", "PING"] {
        check(&format!(
            "
            > DEBUG SET-ACTIVE-EXPIRE 0
            > SET k v
            > PEXPIRE k 1
            ~ 5ms
            > WATCH k
            > {goes}
            > MULTI
            > PING
            > EXEC                 < [PONG]
        "
        ));
    }
    check(
        "
        > DEBUG SET-ACTIVE-EXPIRE 0
        > SET k v
        > PEXPIRE k 1
        ~ 5ms
        > WATCH k
        > SET k new
        > MULTI
        > EXEC                     < (nil array)
    ",
    );
}

/// Nothing is removed in a pause, and the watched key has expired all the same.
#[test]
fn watched_keys_expire_during_a_pause() {
    let mut world = World::new();
    world.check("> SET k v\n > PEXPIRE k 10\n > WATCH k");
    world.server.core.pause.begin(Pauser::Client, false, world.now_ms + 100, world.now_ms);
    world.check("~ 20ms\n > EXISTS k < :0\n > MULTI\n > PING\n > EXEC < (nil array)");
    world.server.core.pause.end(Pauser::Client);
    world.check("> DBSIZE < :1\n > EXISTS k < :0\n > DBSIZE < :0");
}

/// SELECT in a queue changes the meaning of the names after it; walks see the effects of the queue so far.
#[test]
fn queued_commands_may_select_databases() {
    check(
        r#"
        > MULTI
        > SET k 0
        > SELECT 3
        > EXISTS k
        > SET k 3
        > SCAN 0
        > KEYS *
        > DBSIZE
        > RANDOMKEY
        > OBJECT ENCODING k
        > COPY k k DB 4
        > MOVE k 5
        > SELECT 4
        > GET k
        > SWAPDB 4 5
        > DEL k
        > SELECT 5
        > GET k
        > FLUSHDB
        > EXISTS k
        > EXEC
        < [OK, OK, :0, OK, ["0", ["k"]], ["k"], :1, "k", "int", :1, :1, OK, "3", OK, :1, OK, "3", OK, :0]
        > SELECT 0
        > GET k                    < "0"
        > MULTI
        > FLUSHALL
        > SET k 1
        > DBSIZE
        > EXEC                     < [OK, OK, :1]
    "#,
    );
}

#[test]
fn hello_inside_a_transaction() {
    check(
        "
        > MULTI
        > GET k
        > HELLO 3
        > GET k
        > EXEC                     < [(nil), {*}, (null)]
        > WATCH k
        > SET k v
        > MULTI
        > EXEC                     < (null)
    ",
    );
}

#[test]
fn out_of_memory_aborts_a_transaction() {
    let oom = "OOM command not allowed when used memory > 'maxmemory'.";
    check(&format!(
        "
        > MULTI
        > SET k v                  < QUEUED
        other> CONFIG SET maxmemory 1 < *
        > GET k                    < QUEUED
        > EXEC                     < -EXECABORT Transaction discarded because of: {oom}
        > MULTI
        > GET k                    < QUEUED
        > SET k v                  < -{oom}
        > EXEC                     < -EXECABORT Transaction discarded because of previous errors.
        > WATCH k                  < *
        other> SET k v             < -{oom}
        other> CONFIG SET maxmemory 0 < *
        other> SET k v             < *
        > MULTI
        > SET k w                  < QUEUED
        other> CONFIG SET maxmemory 1 < *
        > EXEC                     < (nil array)
        > EVAL \"#!lua\\nreturn 1\" 0 < -{oom}
        other> DEL k               < *
        > MULTI
        > DISCARD                  < OK
        > MULTI
        > EXEC                     < []
        other> CONFIG SET maxmemory 0 < *
        > MULTI
        > SET k v                  < QUEUED
        other> CONFIG SET maxmemory 1 < *
        > EXEC                     < -EXECABORT Transaction discarded because of: {oom}
        > EXEC                     < -ERR EXEC without MULTI
        other> CONFIG SET maxmemory 0 < *
        > MULTI
        > GET k                    < QUEUED
        > DEL k                    < QUEUED
        other> CONFIG SET maxmemory 1 < *
        > EXEC                     < [(nil), :0]
    "
    ));
}

#[test]
fn transactions_in_command_statistics() {
    check(
        r#"
        > CONFIG RESETSTAT
        > MULTI
        > RENAME none k
        > EXEC                     < [-ERR no such key]
        > MULTI
        > OBJECT ENCODING          < -ERR *
        > EXEC                     < -EXECABORT *
        > EXEC x                   < -EXECABORT *
        > INFO errorstats          < *errorstat_ERR:count=2\r\nerrorstat_EXECABORT:count=2\r\n*
        > INFO commandstats        < *cmdstat_exec:calls=2,*,rejected_calls=1,failed_calls=1\r\n*
        > INFO commandstats        < *cmdstat_rename:calls=1,*,rejected_calls=0,failed_calls=1\r\n*
        > INFO commandstats        < *cmdstat_object|encoding:calls=0,*,rejected_calls=1,failed_calls=0\r\n*
    "#,
    );
}

/// A command that panics, alone or in a transaction: its client gets an error, and nothing stays locked.
#[test]
fn a_panic_releases_all_locks() {
    let mut world = World::new();
    let abandoned = "-ERR internal error: the command was aborted, see the server log";
    world.check(&format!(
        "> TEST.PANIC a b c < {abandoned}\n other> SET b 2 < *\n other> GET a < \"half done\""
    ));
    world.check("> SET a 1\n > SET c 3 < *\n other> FLUSHALL < OK\n > DBSIZE < :0");
    for queue in ["SET c 1", "SELECT 1"] {
        world.check(&format!(
            "
            > WATCH a b
            > MULTI
            > {queue}              < QUEUED
            > TEST.PANIC a b       < QUEUED
            > EXEC                 < {abandoned}
            > EXEC                 < -ERR EXEC without MULTI
            other> SET a 2             < *
            other> SET b 2             < *
            other> SET c 2             < *
            other> FLUSHALL            < *
            > MULTI
            > EXEC                 < []
        "
        ));
    }
    assert_eq!(world.workers[0].stats().panics.load(std::sync::atomic::Ordering::Relaxed), 3);
}

/// A queue is waiting input: its size counts towards the same bound as the input after it.
#[test]
fn queued_commands_count_towards_the_input_limit() {
    let mut world = World::new();
    world.configure("client-query-buffer-limit", "1mb");
    let set = format!("SET k {}", "x".repeat(400_000));
    world.check(&format!("a> MULTI < OK\n a> {set} < QUEUED\n a> {set} < QUEUED"));
    world.check("> INFO stats < \"*client_query_buffer_limit_disconnections:0\\r*\"");
    world.type_in("a", &set);
    assert_eq!(world.unread("a"), 0, "nothing is said to it");
    world.check("> INFO stats < \"*client_query_buffer_limit_disconnections:1\\r*\"");
    // A queue that will not run is not kept, so it may be of any length.
    world.check("b> MULTI < OK\n b> GET < -ERR wrong*");
    (0..10).for_each(|_| world.check(&format!("b> {set} < QUEUED")));
    world.check("b> EXEC < -EXECABORT*\n > INFO stats < \"*client_query_buffer_limit_disconnections:1\\r*\"");
}

/// A reply that will not be sent is not kept until the end, but everything is run.
#[test]
fn replies_over_the_output_limit_are_dropped() {
    let mut world = World::new();
    world.configure("client-output-buffer-limit", "normal 50000 0 0");
    world.check(&format!("> SET k {}\n a> MULTI", "x".repeat(10_000)));
    (0..50).for_each(|_| world.check("a> GET k < QUEUED\n a> INCR n < QUEUED"));
    world.type_in("a", "EXEC");
    assert!((50_001..61_000).contains(&world.unread("a")), "{}", world.unread("a"));
    world.check("> GET n < \"50\"");
    // A script's replies are not a client's: it gets all of them.
    world.check(r#"> EVAL "return #redis.call('MGET', unpack(ARGV))" 1 k k k k k k k k k < :8"#);
    world.check(r#"> EVAL "return #redis.call('HRANDFIELD', KEYS[1], -20000)" 1 h < :0"#);
    world.check(
        r#"
        > HSET h field value
        > EVAL "return #redis.call('HRANDFIELD', KEYS[1], -20000)" 1 h < :20000
        > SADD s member
        > EVAL "return #redis.call('SRANDMEMBER', KEYS[1], -20000)" 1 s < :20000
        "#,
    );
}
