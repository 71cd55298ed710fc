use crate::testing::{World, check};

const CONTEXT: &str =
    "only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context";

/// Inserts the text about the commands that RESP2 permits.
#[track_caller]
fn check_restricted(text: &str) {
    check(&text.replace("CONTEXT", CONTEXT));
}

#[test]
fn subscriptions_are_confirmed_one_by_one() {
    check(
        r#"
        > SUBSCRIBE x y x                 < ["subscribe", "x", :1]
        < ["subscribe", "y", :2]
        < ["subscribe", "x", :2]
        > PSUBSCRIBE p*                   < ["psubscribe", "p*", :3]
        > SSUBSCRIBE x                    < ["ssubscribe", "x", :1]
        > UNSUBSCRIBE nope x              < ["unsubscribe", "nope", :3]
        < ["unsubscribe", "x", :2]
        > UNSUBSCRIBE                     < ["unsubscribe", "y", :1]
        > UNSUBSCRIBE                     < ["unsubscribe", (nil), :1]
        > PUNSUBSCRIBE                    < ["punsubscribe", "p*", :0]
        > PUNSUBSCRIBE                    < ["punsubscribe", (nil), :0]
        > SUNSUBSCRIBE z                  < ["sunsubscribe", "z", :1]
        > SUNSUBSCRIBE                    < ["sunsubscribe", "x", :0]
        > SUNSUBSCRIBE                    < ["sunsubscribe", (nil), :0]
        > SUBSCRIBE                       < -ERR wrong number of arguments for 'subscribe' command
        > GET k                           < (nil)
    "#,
    );
}

#[test]
fn messages_reach_all_subscribers() {
    check(
        r#"
        a> SUBSCRIBE x y < ["subscribe", "x", :1]
        a< ["subscribe", "y", :2]
        a> PSUBSCRIBE x* < ["psubscribe", "x*", :3]
        b> SUBSCRIBE x < ["subscribe", "x", :1]
        c> SSUBSCRIBE x < ["ssubscribe", "x", :1]
        > PUBLISH x one                   < :3
        > PUBLISH xy two                  < :1
        > PUBLISH z three                 < :0
        > SPUBLISH x four                 < :1
        > SPUBLISH y five                 < :0
        > PUBLISH y ""                    < :1
        a< ["message", "x", "one"]
        a< ["pmessage", "x*", "x", "one"]
        a< ["pmessage", "x*", "xy", "two"]
        a< ["message", "y", ""]
        b< ["message", "x", "one"]
        c< ["smessage", "x", "four"]
        b> UNSUBSCRIBE < ["unsubscribe", "x", :0]
        > PUBLISH x six                   < :2
        b> PING < PONG
    "#,
    );
}

/// Whether its worker has closed its connection, or is about to.
#[test]
fn killed_clients_receive_no_messages() {
    check(
        r#"
        a> SUBSCRIBE x                    < ["subscribe", "x", :1]
        > PUBLISH x one                   < :1
        > CLIENT KILL TYPE pubsub         < :1
        > PUBLISH x two                   < :0
        a< ["message", "x", "one"]
    "#,
    );
}

#[test]
fn resp2_subscribers_may_run_few_commands() {
    check_restricted(
        r#"
        > SUBSCRIBE x                     < ["subscribe", "x", :1]
        > GET k                           < -ERR Can't execute 'get': CONTEXT
        > GET                             < -ERR wrong number of arguments for 'get' command
        > NOSUCH                          < -ERR unknown command 'NOSUCH', with args beginning with: *
        > CONFIG GET port                 < -ERR Can't execute 'config|get': CONTEXT
        > MULTI                           < -ERR Can't execute 'multi': CONTEXT
        > HELLO 3                         < -ERR Can't execute 'hello': CONTEXT
        > PING                            < ["pong", ""]
        > PING hi                         < ["pong", "hi"]
        > PING a b                        < -ERR wrong number of arguments for 'ping' command
        > RESET                           < RESET
        > PING                            < PONG
        > SSUBSCRIBE x                    < ["ssubscribe", "x", :1]
        > PUBLISH x y                     < -ERR Can't execute 'publish': CONTEXT
        other> PUBSUB NUMSUB x < ["x", :0]
        > SUNSUBSCRIBE                    < ["sunsubscribe", "x", :0]
        > PUBLISH x y                     < :0
    "#,
    );
}

#[test]
fn resp3_subscribers_may_run_any_command() {
    // Redis 7.0 sends a client its own first message before the reply, later messages behind.
    World::new().check(
        r#"
        > HELLO 3
        > SUBSCRIBE x                     < >["subscribe", "x", :1]
        > GET k                           < (null)
        > PING                            < PONG
        > PUBLISH x itself                < :1
        < >["message", "x", "itself"]
        > MULTI                           < OK
        > PUBLISH x first                 < QUEUED
        > UNSUBSCRIBE x                   < QUEUED
        > SUBSCRIBE y                     < QUEUED
        > PUBLISH y second                < QUEUED
        > PUBLISH x third                 < QUEUED
        > EXEC                            < [:1, >["unsubscribe", "x", :0], >["subscribe", "y", :1], :1, :0]
        < >["message", "x", "first"]
        < >["message", "y", "second"]
        > UNSUBSCRIBE                     < >["unsubscribe", "y", :0]
        > UNSUBSCRIBE                     < >["unsubscribe", (null), :0]
    "#,
    );
}

#[test]
fn messages_follow_a_protocol_change() {
    check_restricted(
        r#"
        a> HELLO 3
        a> SUBSCRIBE x < >["subscribe", "x", :1]
        > PUBLISH x 1                     < :1
        a< >["message", "x", "1"]
        a> HELLO 2 < [*]
        > PUBLISH x 2                     < :1
        a< ["message", "x", "2"]
        a> GET k < -ERR Can't execute 'get': CONTEXT
    "#,
    );
}

#[test]
fn transactions_may_subscribe() {
    World::new().check(
        &r#"
        > MULTI                           < OK
        > SUBSCRIBE x                     < QUEUED
        > PUBLISH x itself                < QUEUED
        > GET k                           < QUEUED
        > EXEC                            < [["subscribe", "x", :1], :1, (nil)]
        < ["message", "x", "itself"]
        > GET k                           < -ERR Can't execute 'get': CONTEXT
    "#
        .replace("CONTEXT", CONTEXT),
    );
}

#[test]
fn client_reply_off_does_not_suppress_messages() {
    let mut world = World::new();
    world.type_in("a", "CLIENT REPLY OFF");
    world.type_in("a", "SUBSCRIBE x");
    world.type_in("a", "GET k");
    world.check(
        r#"
        a< ["subscribe", "x", :1]
        > PUBLISH x 1                     < :1
        a< ["message", "x", "1"]
    "#,
    );
}

#[test]
fn pubsub_introspection_counts_subscribers() {
    check(
        r#"
        a> SUBSCRIBE x y < ["subscribe", "x", :1]
        a< ["subscribe", "y", :2]
        b> SUBSCRIBE x < ["subscribe", "x", :1]
        b> PSUBSCRIBE p* < ["psubscribe", "p*", :2]
        a> PSUBSCRIBE p* q* < ["psubscribe", "p*", :3]
        a< ["psubscribe", "q*", :4]
        a> SSUBSCRIBE s < ["ssubscribe", "s", :1]
        > PUBSUB NUMSUB x y z             < ["x", :2, "y", :1, "z", :0]
        > PUBSUB NUMSUB                   < []
        three> HELLO 3                    < *
        three> PUBSUB NUMSUB x z          < ["x", :2, "z", :0]
        > PUBSUB NUMPAT                   < :2
        > PUBSUB CHANNELS y*              < ["y"]
        > PUBSUB CHANNELS s               < []
        > PUBSUB SHARDCHANNELS            < ["s"]
        > PUBSUB SHARDNUMSUB s x          < ["s", :1, "x", :0]
        > PUBSUB CHANNELS a b
        < -ERR unknown subcommand or wrong number of arguments for 'CHANNELS'. Try PUBSUB HELP.
        > PUBSUB NUMPAT x                 < -ERR wrong number of arguments for 'pubsub|numpat' command
        > PUBSUB                          < -ERR wrong number of arguments for 'pubsub' command
        > PUBSUB nope                     < -ERR unknown subcommand 'nope'. Try PUBSUB HELP.
        > CLIENT LIST TYPE pubsub         < "*flags=P * sub=2 psub=2 ssub=1 *flags=P * sub=1 psub=1 ssub=0 *"
        > INFO stats                      < "*pubsub_channels:2*pubsub_patterns:2*"
        > CLIENT KILL TYPE pubsub         < :2
    "#,
    );
}

#[test]
fn disconnected_clients_are_unsubscribed() {
    let mut world = World::new();
    world.check(
        r#"
        a> SUBSCRIBE x
        a> PSUBSCRIBE x
        a> SSUBSCRIBE x
        > PUBLISH x y                     < :2
    "#,
    );
    world.hang_up("a");
    world.check(
        "
        > PUBLISH x y                     < :0
        > SPUBLISH x y                    < :0
        > PUBSUB NUMPAT                   < :0
        > PUBSUB CHANNELS                 < []
    ",
    );
}
