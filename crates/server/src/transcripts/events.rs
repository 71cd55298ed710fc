//! Transcripts of events commands.

use crate::testing::{World, check};
use evenkeel_command::Flags;
use evenkeel_command::events::with_rules;

/// Whether events are wanted changes nothing else: the key stays until a command looks for it.
#[test]
fn a_key_set_with_a_past_deadline_stays_with_events_as_well() {
    check(
        "
        > DEBUG SET-ACTIVE-EXPIRE 0              < OK
        > MSETEX 1 a v EXAT 100                  < :1
        > DBSIZE                                 < :1
        > CONFIG SET notify-keyspace-events KEA  < OK
        > MSETEX 2 b v c v PXAT 100              < :1
        > DBSIZE                                 < :3
        > EXISTS a b                             < :0
        > DBSIZE                                 < :1
    ",
    );
}

#[test]
fn only_configured_events_are_published() {
    check(
        r#"
        > CONFIG SET notify-keyspace-events Kl$ < OK
        a> PSUBSCRIBE * < ["psubscribe", "*", :1]
        > SET k v EX 100                      < OK
        > LPUSH l x                           < :1
        > CONFIG SET notify-keyspace-events Eg < OK
        > LPOP l                              < "x"
        > CONFIG SET notify-keyspace-events "" < OK
        > SET k v
        > CONFIG SET notify-keyspace-events KEn < OK
        > SELECT 3                            < OK
        > SET new v                           < OK
        a< ["pmessage", "*", "__keyspace@0__:k", "set"]
        a< ["pmessage", "*", "__keyspace@0__:l", "lpush"]
        a< ["pmessage", "*", "__keyevent@0__:del", "l"]
        a< ["pmessage", "*", "__keyspace@3__:new", "new"]
        a< ["pmessage", "*", "__keyevent@3__:new", "new"]
        > CONFIG SET notify-keyspace-events q
        < -ERR CONFIG SET failed (possibly related to argument 'notify-keyspace-events') - Invalid event \
            class character. Use 'Ag$lshzxeKEtmdn'.
    "#,
    );
}

#[test]
fn expired_events_fire_on_access_and_in_background() {
    let mut world = World::with(&["--notify-keyspace-events", "Ex"]);
    world.check(
        r#"
        a> PSUBSCRIBE * < ["psubscribe", "*", :1]
        > SET met v PX 100                    < OK
        > SET swept v PX 100                  < OK
        ~ 1s
        > GET met                             < (nil)
        a< ["pmessage", "*", "__keyevent@0__:expired", "met"]
    "#,
    );
    world.now_ms += 1_000;
    world.sweep();
    world.check(r#"a< ["pmessage", "*", "__keyevent@0__:expired", "swept"]"#);
}

#[test]
fn events_of_served_clients_follow_the_serving_command() {
    check(
        r#"
        > CONFIG SET notify-keyspace-events EA < OK
        a> PSUBSCRIBE * < ["psubscribe", "*", :1]
        b> BLMOVE from to LEFT RIGHT 0
        > MULTI                               < OK
        > RPUSH from x                        < QUEUED
        > SET k v                             < QUEUED
        > EXEC                                < [:1, OK]
        b< "x"
        a< ["pmessage", "*", "__keyevent@0__:rpush", "from"]
        a< ["pmessage", "*", "__keyevent@0__:set", "k"]
        a< ["pmessage", "*", "__keyevent@0__:rpush", "to"]
        a< ["pmessage", "*", "__keyevent@0__:lpop", "from"]
        a< ["pmessage", "*", "__keyevent@0__:del", "from"]
    "#,
    );
}

/// A slow script is undone and offloaded; events of later commands on its thread are notified, too.
#[test]
fn events_of_scripts_fire_once() {
    check(
        r#"
        > CONFIG SET notify-keyspace-events EA < OK
        a> PSUBSCRIBE * < ["psubscribe", "*", :1]
        > EVAL "redis.call('set', KEYS[1], 1) local s = 0 for i = 1, \
            2e7 do s = s + i % 7 end return 'done'" 1 k
        < "done"
        > SET t new                           < OK
        b> SET u new                          < OK
        > EVAL "redis.call('set', KEYS[1], 1) return redis.call('get', 'other')" 1 v < (nil)
        a< ["pmessage", "*", "__keyevent@0__:set", "k"]
        a< ["pmessage", "*", "__keyevent@0__:set", "t"]
        a< ["pmessage", "*", "__keyevent@0__:set", "u"]
        a< ["pmessage", "*", "__keyevent@0__:set", "v"]
        > SET w new                           < OK
        a< ["pmessage", "*", "__keyevent@0__:set", "w"]
    "#,
    );
}

#[test]
fn expired_fields_fire_events() {
    World::with(&["--notify-keyspace-events", "Eh"]).check(
        r#"
        a> PSUBSCRIBE * < ["psubscribe", "*", :1]
        > HSET h a 1 b 2                      < :2
        > HEXPIRE h 100 FIELDS 1 a            < [:1]
        > HPERSIST h FIELDS 1 a               < [:1]
        > HGETDEL h FIELDS 1 b                < ["2"]
        a< ["pmessage", "*", "__keyevent@0__:hset", "h"]
        a< ["pmessage", "*", "__keyevent@0__:hexpire", "h"]
        a< ["pmessage", "*", "__keyevent@0__:hpersist", "h"]
        a< ["pmessage", "*", "__keyevent@0__:hdel", "h"]
    "#,
    );
}

/// As in Valkey 9.1.
#[test]
fn past_field_deadlines_fire_expired_events() {
    let check = |commands: &[&str], names: &str| {
        let mut world = World::with(&["--notify-keyspace-events", "EAn"]);
        world.check(r#"a> PSUBSCRIBE * < ["psubscribe", "*", :1]"#);
        for command in commands {
            println!("{command}");
            world.run(command);
        }
        world.now_ms += 100;
        world.sweep();
        world.run("PUBLISH end .");
        for name in names.split_whitespace() {
            world.check(&format!(r#"a< ["pmessage", "*", "__keyevent@0__:{name}", "*"]"#));
        }
        world.check(r#"a< ["pmessage", "*", "end", "."]"#);
    };
    let h = "HSET h f v g w";
    for (command, expected) in [
        ("HEXPIRE h 0 FIELDS 1 f", "hexpired"),
        ("HEXPIRE h 0 FIELDS 2 f g", "hexpired del"),
        ("HEXPIRE h 100 FIELDS 2 f g", "hexpire"),
        ("HEXPIRE h 100 XX FIELDS 2 f g", ""),
        ("HGETEX h PXAT 1 FIELDS 1 f", "hexpired"),
        ("HGETEX h PXAT 1 FIELDS 2 f g", "hexpired del"),
        ("HGETEX h EX 9 FIELDS 1 f", "hexpire"),
        ("HGETEX h PERSIST FIELDS 1 f", ""),
        ("HSETEX h PXAT 1 FIELDS 1 f v", "hset hexpire hexpired"),
        ("HSETEX h PXAT 1 FIELDS 2 f v g v", "hset hexpire hexpired del"),
        ("HSETEX h EX 9 FIELDS 1 f v", "hset hexpire"),
        ("HSETEX h FIELDS 1 ex v", "hset"),
        ("HSETEX h FXX FIELDS 1 none v", ""),
        ("HSETEX none PXAT 1 FIELDS 1 f v", "new hset hexpire hexpired del"),
        ("HSETEX q PX 10 FIELDS 2 f v g v", "new hset hexpire hexpired del"),
        ("HPEXPIRE h 10 FIELDS 1 f", "hexpire hexpired"),
    ] {
        check(&[h, command], &format!("new hset {expected}"));
    }
    // A word that looks like an option, in another place.
    for (command, expected) in [
        ("MSETEX 1 ex 1", "new set"),
        ("MSETEX 2 a PX b 1", "new set new set"),
        ("MSETEX 1 ex 1 EX 9", "new set expire"),
        ("SET s ex", "new set"),
        ("INCREX n", "new incrby"),
        ("INCREX n BYFLOAT 1.5 EX 9", "new incrbyfloat expire"),
        ("INCREX n EXAT 1", ""),
        ("INCREX n UBOUND 0", ""),
        ("SET s v EX 9", "new set expire"),
        ("SET s q IFEQ ex", ""),
    ] {
        check(&[command], expected);
    }
}

#[test]
fn events_are_recorded_only_with_a_listener() {
    let mut world = World::new();
    world.check("> SET k v < OK\n> DEL k < :1");
    assert!(!world.server.core.keyspace.events.is_wanted());
    world.configure("notify-keyspace-events", "KEA");
    assert!(world.server.core.keyspace.events.is_wanted());
    world.configure("notify-keyspace-events", "K");
    assert!(!world.server.core.keyspace.events.is_wanted(), "no class is asked for");
}

/// As in Valkey, the command that meets an expired field emits its event, also where only readers of the
/// field would notice.
#[test]
fn expired_field_events_fire_on_access() {
    World::new().check(
        r#"
        > DEBUG SET-ACTIVE-EXPIRE 0                     < OK
        > CONFIG SET notify-keyspace-events KEhg        < OK
        > HSET h f v g w i 1                            < :3
        > HPEXPIRE h 1 FIELDS 3 f g i                   < [:1, :1, :1]
        > HSET h other 1                                < :1
        a> HELLO 3                                      < *
        a> CLIENT TRACKING ON                           < OK
        a> HGETALL h                                    < *
        a> SUBSCRIBE __keyspace@0__:h                   < *
        ~ 10ms
        > HSET h f x                                    < :1
        a< >["invalidate", ["h"]]
        a< >["message", "__keyspace@0__:h", "hexpired"]
        a< >["message", "__keyspace@0__:h", "hset"]
        > HINCRBY h i 3                                 < :3
        a< >["message", "__keyspace@0__:h", "hexpired"]
        a< >["message", "__keyspace@0__:h", "hincrby"]
        > HDEL h g                                      < :0
        > INFO stats                                    < "*expired_fields:2\r*"
        > HDEL h other f i                              < :3
        a< >["message", "__keyspace@0__:h", "hdel"]
        > DEL h                                         < :1
        a< >["message", "__keyspace@0__:h", "del"]
        > HSET h f v                                    < :1
        a< >["message", "__keyspace@0__:h", "hset"]
        > HPEXPIRE h 1 FIELDS 1 f                       < [:1]
        a< >["message", "__keyspace@0__:h", "hexpire"]
        ~ 10ms
        > HSETEX h PXAT 1 FIELDS 1 f v                  < :1
        a< >["message", "__keyspace@0__:h", "hset"]
        a< >["message", "__keyspace@0__:h", "hexpire"]
        a< >["message", "__keyspace@0__:h", "hexpired"]
        a< >["message", "__keyspace@0__:h", "del"]
        a> PING                                         < PONG
    "#,
    );
}

/// As in Redis 8.2.
#[test]
fn replaced_values_fire_events() {
    let check = |setup: &[&str], command: &str, names: &str| {
        let mut world = World::with(&["--notify-keyspace-events", "EAoc"]);
        for line in setup {
            world.run(line);
        }
        world.check(r#"a> PSUBSCRIBE * < ["psubscribe", "*", :1]"#);
        println!("{setup:?} {command}");
        world.run(command);
        world.run("PUBLISH end .");
        for name in names.split_whitespace() {
            let (name, key) = name.split_once(':').unwrap_or((name, "k"));
            world.check(&format!(r#"a< ["pmessage", "*", "__keyevent@0__:{name}", "{key}"]"#));
        }
        world.check(r#"a< ["pmessage", "*", "end", "."]"#);
    };
    let sources = ["SET s x", "SADD t a", "ZADD z 1 a", "GEOADD g 13 38 p", "RPUSH l 1 2"];
    const OTHER: &str = "overwritten type_changed";
    for (old, is_string) in [("SET k v", true), ("RPUSH k a", false)] {
        let setup = [&sources[..], &[old]].concat();
        let replaced = if is_string { "overwritten" } else { OTHER };
        for (command, names) in [
            ("SET k n", format!("{replaced} set")),
            ("SET k n XX EX 10", format!("{replaced} set expire")),
            ("SET k n NX", String::new()),
            ("SET k n PXAT 1", "expired".to_owned()),
            ("SETEX k 10 n", format!("{replaced} set expire")),
            ("MSET k n o p", format!("{replaced} set set:o")),
            ("MSETEX 2 k n o p", format!("{replaced} set set:o")),
            ("MSETNX k n", String::new()),
            ("BITOP OR k s", format!("{replaced} set")),
            ("BITOP OR k none", "del".to_owned()),
            ("SUNIONSTORE k t", format!("{OTHER} sunionstore")),
            ("SINTERSTORE k none", "del".to_owned()),
            ("ZUNIONSTORE k 1 z", format!("{OTHER} zunionstore")),
            ("ZRANGESTORE k z 0 -1", format!("{OTHER} zrangestore")),
            ("GEOSEARCHSTORE k g FROMMEMBER p BYRADIUS 9 km", format!("{OTHER} geosearchstore")),
            ("GEORADIUS g 13 38 200 km STORE k", format!("{OTHER} georadiusstore")),
            ("RENAME z k", format!("rename_from:z rename_to {OTHER}")),
            ("COPY z k REPLACE", format!("copy_to {OTHER}")),
            ("COPY s k REPLACE", format!("copy_to {replaced}")),
            ("EXPIRE k 10", "expire".to_owned()),
            ("DEL k", "del".to_owned()),
        ] {
            check(&setup, command, &names);
        }
        let stored = if is_string { OTHER } else { "overwritten" };
        check(&setup, "SORT l STORE k", &format!("{stored} sortstore"));
        check(&setup, "SORT none STORE k", "del");
    }
    check(&["SET k v"], "GETSET k n", "overwritten set");
    check(&["SET k v"], "APPEND k n", "append");
    check(&["SET k 1"], "INCR k", "incrby");
    check(&["PFADD k a", "PFADD j b"], "PFMERGE k j", "pfadd");
    check(&[], "MSET k 1 k 2", "set overwritten set");
    check(&["RPUSH k a"], "SET k n PXAT 1", "expired");
}

/// The names of the fields come in channels of their own, as in Redis 8.8.
#[test]
fn fields_are_named() {
    World::with(&["--notify-keyspace-events", "hSTIV"]).check(
        r#"
        a> PSUBSCRIBE *                      < ["psubscribe", "*", :1]
        > HSET h a 1 long 2                  < :2
        a< ["pmessage", "*", "__subkeyspace@0__:h", "hset|1:a,4:long"]
        a< ["pmessage", "*", "__subkeyevent@0__:hset", "1:h|1:a,4:long"]
        a< ["pmessage", "*", "__subkeyspaceitem@0__:h\na", "hset"]
        a< ["pmessage", "*", "__subkeyspaceitem@0__:h\nlong", "hset"]
        a< ["pmessage", "*", "__subkeyspaceevent@0__:hset|h", "1:a,4:long"]
        > CONFIG SET notify-keyspace-events S  < OK
        > HSET h a 1                           < :0
        > CONFIG SET notify-keyspace-events Ih < OK
        > HSET "k\nl" a 1                     < :1
        > HSET h "" 1                          < :1
        a< ["pmessage", "*", "__subkeyspaceitem@0__:h\n", "hset"]
        > CONFIG SET notify-keyspace-events SA < OK
        > CONFIG GET notify-keyspace-events    < ["notify-keyspace-events", "AS"]
        > SET s 1                              < OK
        "#,
    );
    let mut world = World::with(&["--notify-keyspace-events", "SA"]);
    world.check(r#"a> PSUBSCRIBE * < ["psubscribe", "*", :1]"#);
    for (command, texts) in [
        ("HSET h a 1 b 2 c 3 d 4 e 5", &["hset|1:a,1:b,1:c,1:d,1:e"][..]),
        ("HMSET h a 1", &["hset|1:a"]),
        ("HSETNX h a 1", &[]),
        ("HSETNX h f 1", &["hset|1:f"]),
        ("HINCRBY h a 1", &["hincrby|1:a"]),
        ("HINCRBYFLOAT h a 1", &["hincrbyfloat|1:a"]),
        ("HDEL h f none", &["hdel|1:f"]),
        ("HDEL h none", &[]),
        ("HEXPIRE h 10 FIELDS 3 a none b", &["hexpire|1:a,1:b"]),
        ("HPERSIST h FIELDS 3 a none c", &["hpersist|1:a"]),
        ("HGETEX h PERSIST FIELDS 2 a b", &["hpersist|1:b"]),
        ("HGETEX h EX 10 FIELDS 2 none a", &["hexpire|1:a"]),
        ("HGETEX h PXAT 1 FIELDS 1 e", &["hexpired|1:e"]),
        ("HSETEX h EX 10 FIELDS 2 a 1 e 1", &["hset|1:a,1:e", "hexpire|1:a,1:e"]),
        ("HSETEX h PXAT 1 FIELDS 2 e 1 x 1", &["hset|1:e,1:x", "hexpire|1:e,1:x", "hexpired|1:e"]),
        ("HGETDEL h FIELDS 2 d none", &["hdel|1:d"]),
        ("HEXPIRE h 0 FIELDS 2 c none", &["hexpired|1:c"]),
        ("HIMPORT PREPARE f a b", &[]),
        ("HIMPORT SET h f 1 2", &["hset|1:a,1:b"]),
        ("HPEXPIRE h 10 FIELDS 1 a", &["hexpire|1:a", "hexpired|1:a"]),
        ("HPEXPIRE h 10 FIELDS 1 b", &["hexpire|1:b", "hexpired|1:b"]),
    ] {
        println!("{command}");
        world.run(command);
        world.now_ms += 200;
        world.sweep();
        world.run("PUBLISH end .");
        for text in texts {
            world.check(&format!(r#"a< ["pmessage", "*", "__subkeyspace@0__:h", "{text}"]"#));
        }
        world.check(r#"a< ["pmessage", "*", "end", "."]"#);
    }
}

/// As in Valkey, an expired field is an expired field's event (class `x`) where it expires by itself, and one
/// of hashes (class `h`) where a command replaces it.
#[test]
fn classes_of_expired_fields() {
    let mut world = World::with(&["--notify-keyspace-events", "Ex"]);
    world.check(
        r#"
        > DEBUG SET-ACTIVE-EXPIRE 0       < OK
        a> PSUBSCRIBE *                   < ["psubscribe", "*", :1]
        > HSET h f v g w                  < :2
        > HPEXPIRE h 1 FIELDS 2 f g       < [:1, :1]
        ~ 10ms
        > HSET h f x                      < :1
        > HEXPIRE h 0 FIELDS 1 f          < [:2]
        "#,
    );
    world.now_ms += 200;
    world.check("> DEBUG SET-ACTIVE-EXPIRE 1 < OK");
    world.sweep();
    world.check(r#"a< ["pmessage", "*", "__keyevent@0__:hexpired", "h"]"#);
}

#[test]
fn event_rules_belong_to_write_commands() {
    let table = crate::commands::install();
    for name in with_rules() {
        let id = table.find_full(name.as_bytes()).unwrap_or_else(|| panic!("{name} is no command"));
        assert!(table.row(id).flags.has(Flags::WRITE), "{name}");
        assert_eq!(with_rules().filter(|other| *other == name).count(), 1, "{name}");
    }
}

/// A command may lack a rule only if its handler emits the events, or if there are none.
#[test]
fn every_write_command_has_an_event_rule_or_reports_itself() {
    const SAY_IT: &[&str] = &[
        "BITFIELD",
        "BLMOVE",
        "BLMOVEM",
        "BRPOPLPUSH",
        "CLUSTER|FLUSHSLOT",
        "HDEL",
        "HEXPIRE",
        "HEXPIREAT",
        "HGETDEL",
        "HGETEX",
        "HIMPORT|SET",
        "HPERSIST",
        "HPEXPIRE",
        "HPEXPIREAT",
        "HSETEX",
        "INCREX",
        "LMOVE",
        "LMOVEM",
        "MOVE",
        "RENAME",
        "RENAMENX",
        "RPOPLPUSH",
        "SMOVE",
        "SORT",
        "XADD",
        "XAUTOCLAIM",
        "XCLAIM",
        "XGROUP|CREATE",
        "XGROUP|CREATECONSUMER",
        "XGROUP|DELCONSUMER",
        "XGROUP|DESTROY",
        "XGROUP|SETID",
        "XREADGROUP",
        "XSETID",
    ];
    // Libraries of functions are no keys.
    const NOTHING: &[&str] = &[
        "FLUSHALL",
        "FLUSHDB",
        "FUNCTION|DELETE",
        "FUNCTION|FLUSH",
        "FUNCTION|LOAD",
        "FUNCTION|RESTORE",
        "PFDEBUG",
        "SWAPDB",
        "XACK",
        "XCFGSET",
        "XIDMPRECORD",
        "XNACK",
    ];
    let says = |name: &str| with_rules().any(|other| other == name);
    for row in crate::commands::install()
        .rows()
        .iter()
        .filter(|row| row.flags.has(Flags::WRITE) && !row.has_subcommands())
    {
        let listed =
            SAY_IT.contains(&row.name) || NOTHING.contains(&row.name) || row.name.starts_with("TEST.");
        assert!(says(row.name) != listed, "{}: {listed}", row.name);
    }
}
