use std::sync::Arc;

use crate::testing::{World, check};

const SWITCH: &str = "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and \
then re-enabling it with a different mode.";

#[test]
fn invalid_options_are_refused() {
    check(
        &r#"
        > CLIENT CACHING yes
        < -ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT \
            mode enabled
        > CLIENT TRACKING maybe                       < -ERR syntax error
        > CLIENT TRACKING on nosuch                   < -ERR syntax error
        > CLIENT TRACKING on REDIRECT                 < -ERR syntax error
        > CLIENT TRACKING on REDIRECT abc             < -ERR value is not an integer or out of range
        > CLIENT TRACKING on REDIRECT 99999           < -ERR The client ID you want redirect to does not exist
        > CLIENT TRACKING on BCAST OPTIN              < -ERR OPTIN and OPTOUT are not compatible with BCAST
        > CLIENT TRACKING on OPTIN OPTOUT             < -ERR You can't specify both OPTIN mode and OPTOUT mode
        > CLIENT TRACKING on PREFIX a                 < -ERR PREFIX option requires BCAST mode to be enabled
        > CLIENT TRACKING on BCAST PREFIX foo PREFIX foobar
        < -ERR Prefix 'foo' overlaps with another provided prefix 'foobar'. Prefixes for a single client \
            must not overlap.
        > CLIENT TRACKING on BCAST PREFIX foo PREFIX bar < OK
        > CLIENT TRACKING on BCAST PREFIX fo
        < -ERR Prefix 'fo' overlaps with an existing prefix 'foo'. Prefixes for a single client must not \
            overlap.
        > CLIENT TRACKING on BCAST PREFIX foo
        < -ERR Prefix 'foo' overlaps with an existing prefix 'foo'. Prefixes for a single client must not \
            overlap.
        > CLIENT TRACKING on BCAST PREFIX new PREFIX foo
        < -ERR Prefix 'foo' overlaps with an existing prefix 'foo'. Prefixes for a single client must not \
            overlap.
        > CLIENT TRACKING on BCAST PREFIX baz         < OK
        > CLIENT TRACKINGINFO
        < ["flags", ["on", "bcast"], "redirect", :0, "prefixes", ["bar", "baz", "foo"]]
        > CLIENT TRACKING on                          < -SWITCH
        > CLIENT CACHING yes
        < -ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.
        > CLIENT CACHING no
        < -ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.
        > CLIENT CACHING foo                          < -ERR syntax error
        > CLIENT TRACKING off                         < OK
        > CLIENT TRACKING on OPTIN                    < OK
        > CLIENT TRACKING on BCAST                    < -SWITCH
        > CLIENT CACHING no
        < -ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.
        > CLIENT CACHING maybe                        < -ERR syntax error
        > CLIENT TRACKING off                         < OK
        > CLIENT TRACKINGINFO                         < ["flags", ["off"], "redirect", :-1, "prefixes", []]
        > CLIENT GETREDIR                             < :-1
    "#
        .replace("SWITCH", SWITCH),
    );
}

#[test]
fn keys_read_are_invalidated_once() {
    check(
        r#"
        c> HELLO 3 < *
        c> CLIENT TRACKING on < OK
        c> GET x < (null)
        > MSET x 1 y 1                                < OK
        c< >["invalidate", ["x"]]
        > SET x 2                                     < OK
        c> MGET x y z < ["2", "1", (null)]
        > DEL y                                       < :1
        > RENAME x z                                  < OK
        c< >["invalidate", ["y"]]
        c< >["invalidate", ["x"]]
        c< >["invalidate", ["z"]]
        c> SET own 1 < OK
        c> GET own < "1"
        c> SET own 2 < OK
        c< >["invalidate", ["own"]]
        c> MULTI < OK
        c> GET own < QUEUED
        c> SET own 3 < QUEUED
        c> EXEC < ["2", OK]
        c< >["invalidate", ["own"]]
        > FLUSHALL                                    < OK
        c< >["invalidate", (null)]
        c> CLIENT TRACKING off < OK
        c> GET x < (null)
        > SET x 1                                     < OK
        c> PING < PONG
    "#,
    );
}

#[test]
fn expired_and_evicted_keys_are_invalidated() {
    let mut world = World::new();
    world.check(
        r#"
        c> HELLO 3 < *
        c> CLIENT TRACKING on < OK
        > SET met 1 PX 100                            < OK
        > SET swept 1 PX 100                          < OK
        c> MGET met swept < ["1", "1"]
        ~ 1s
        > GET met                                     < (nil)
        c< >["invalidate", ["met"]]
    "#,
    );
    world.sweep();
    world.check(r#"c< >["invalidate", ["swept"]]"#);
    world.check(
        r#"
        > SET k v                                     < OK
        c> GET k < "v"
    "#,
    );
    world.configure("maxmemory-policy", "allkeys-random");
    world.configure("maxmemory", "1");
    world.run("PING");
    world.check(r#"c< >["invalidate", ["k"]]"#);
}

#[test]
fn prefix_invalidations_share_one_message() {
    check(
        r#"
        c> HELLO 3 < *
        c> CLIENT TRACKING on BCAST NOLOOP PREFIX a PREFIX b < OK
        > MSET a2 1 a1 1 b 1 c 1                      < OK
        c< >["invalidate", ["a1", "a2"]]
        c< >["invalidate", ["b"]]
        c> MSET a1 2 b 2 < OK
        > DEL b                                       < :1
        c< >["invalidate", ["b"]]
        > CLIENT LIST                                 < "*flags=tB*redir=0*"
        > INFO stats                                  < "*tracking_total_prefixes:2*"
        > INFO clients                                < "*tracking_clients:1*"
        c> CLIENT TRACKING off < OK
        > INFO stats                                  < "*tracking_total_prefixes:0*"
    "#,
    );
}

#[test]
fn optin_and_optout_select_cached_keys() {
    check(
        r#"
        c> HELLO 3 < *
        c> CLIENT TRACKING on OPTIN < OK
        c> GET x < (null)
        c> CLIENT CACHING yes < OK
        c> CLIENT TRACKINGINFO < {"flags": ~["on", "optin", "caching-yes"], "redirect": :0, "prefixes": []}
        c> MGET y z < [(null), (null)]
        c> GET w < (null)
        > MSET x 1 y 1 w 1                            < OK
        c< >["invalidate", ["y"]]
        c> CLIENT CACHING yes < OK
        c> MULTI < OK
        c> GET x < QUEUED
        c> GET y < QUEUED
        c> EXEC < ["1", "1"]
        > DEL x y                                     < :2
        c< >["invalidate", ["x"]]
        c< >["invalidate", ["y"]]
        c> CLIENT TRACKING off < OK
        c> CLIENT TRACKING on OPTOUT NOLOOP < OK
        c> GET x < (null)
        c> CLIENT CACHING no < OK
        c> GET y < (null)
        c> SET x 1 < OK
        c> GET x < "1"
        > MSET x 1 y 1                                < OK
        c< >["invalidate", ["x"]]
        c> PING < PONG
    "#,
    );
}

#[test]
fn invalidations_can_be_redirected() {
    let mut world = World::new();
    let id = world.run("CLIENT ID").trim_start_matches(':').parse::<u64>().expect("a number") + 1;
    world.check("r> PING < PONG");
    world.check(
        &format!(
            r#"
        c> HELLO 3 < *
        c> CLIENT TRACKING on REDIRECT {id} < OK
        c> CLIENT GETREDIR < :{id}
        c> GET x < (null)
        # It listens to nothing yet, and speaks RESP2: nobody is told.
        > SET x 1                                     < OK
        r> SUBSCRIBE __redis__:invalidate < ["subscribe", "__redis__:invalidate", :1]
        c> GET x < "1"
        > SET x 2                                     < OK
        r< ["message", "__redis__:invalidate", ["x"]]
        > FLUSHALL                                    < OK
        r< ["message", "__redis__:invalidate", (nil)]
        c> GET x < (null)
    "#
        )
        .replace("(nil array)", "*"),
    );
    world.hang_up("r");
    world.check(&format!(
        r#"
        > SET x 3                                     < OK
        c< >["tracking-redir-broken", :{id}]
        c> CLIENT TRACKINGINFO < {{"flags": ~["on", "broken_redirect"], "redirect": :{id}, "prefixes": []}}
        > CLIENT LIST                                 < "*flags=tR*"
    "#
    ));
}

/// Messages would be taken for replies.
#[test]
fn resp2_clients_without_redirect_get_no_invalidations() {
    check(
        r#"
        c> HELLO 3 < *
        c> CLIENT TRACKING on < OK
        c> GET k < (null)
        c> MULTI < OK
        c> SET k 1 < QUEUED
        c> HELLO 2 < QUEUED
        c> EXEC < *
        c> ECHO one < "one"
        c> GET k < "1"
        > SET k 2                                     < OK
        c> ECHO two < "two"
    "#,
    );
}

/// A script declares keys that it may read, which is not the same as reading them.
#[test]
fn declared_keys_are_not_tracked_unless_read() {
    check(
        r#"
        c> HELLO 3 < *
        c> CLIENT TRACKING on < OK
        c> EVAL_RO "return 1" 1 k < :1
        > SET k 1                                     < OK
        c> PING < PONG
        c> EVAL_RO "return redis.call('GET', KEYS[1])" 1 k < "1"
        > SET k 2                                     < OK
        c< >["invalidate", ["k"]]
    "#,
    );
}

#[test]
fn the_tracking_table_is_bounded() {
    let mut world = World::with(&["--tracking-table-max-keys", "2"]);
    world.check(
        r#"
        c> HELLO 3 < *
        c> CLIENT TRACKING on < OK
        c> MGET a b c d < *
        c< >["invalidate", [*]]
        c< >["invalidate", [*]]
        > INFO stats                                  < "*tracking_total_keys:2*tracking_total_items:2*"
        c> RESET < RESET
        > INFO clients                                < "*tracking_clients:0*"
    "#,
    );
}

/// Changes are not reported without tracking clients, so remaining entries of the table would stay for ever.
#[test]
fn the_last_tracking_client_clears_the_table() {
    let mut world = World::new();
    world.check(
        "
        a> CLIENT TRACKING on                         < OK
        b> CLIENT TRACKING on BCAST                   < OK
        a> MGET x y z                                 < [(nil), (nil), (nil)]
        a> CLIENT TRACKING off                        < OK
        > INFO stats                                  < \"*tracking_total_keys:3*tracking_total_items:3*\"
        b> CLIENT TRACKING off                        < OK
        > INFO stats                                  < \"*tracking_total_keys:0*tracking_total_items:0*\"
        ",
    );
}

/// Of all clients that have read a key and gone, a few numbers stay, and no other data.
#[test]
fn disconnected_readers_are_dropped_from_the_table() {
    let (mut world, mut gone) = (World::new(), Vec::new());
    world.check("stays> CLIENT TRACKING on < OK\nstays> GET k < (nil)");
    for turn in 1..=100 {
        let name = format!("c{turn}");
        world.check(&format!(
            "{name}> CLIENT TRACKING on < OK\n{name}> GET k < (nil)\n{name}> GET own{turn} < (nil)"
        ));
        gone.extend(world.server.hub.clients.list().last().map(Arc::downgrade));
        world.hang_up(&name);
        let items = world.server.hub.tracking.items();
        assert!(items <= turn + 3, "{items} after {turn}");
    }
    assert_eq!(gone.len(), 100);
    assert!(gone.iter().all(|client| client.strong_count() == 0), "nothing keeps them");
    world.check("stays> SET k 1 < OK");
    assert_eq!((world.server.hub.tracking.keys(), world.server.hub.tracking.items()), (100, 100));
    world.hang_up("stays");
    assert_eq!((world.server.hub.tracking.keys(), world.server.hub.tracking.items()), (0, 0));
}

#[test]
fn disconnected_clients_stop_tracking() {
    let mut world = World::new();
    world.check("c> HELLO 3 < *\nc> CLIENT TRACKING on BCAST < OK");
    world.hang_up("c");
    world.check("> INFO stats < \"*tracking_total_prefixes:0*\"\n> INFO clients < \"*tracking_clients:0*\"");
}
