use crate::testing::World;

#[test]
fn hashes_get_the_fields_of_a_fieldset() {
    World::new().check(
        r#"
        > HIMPORT PREPARE user name email age           < OK
        > HIMPORT SET u:1 user alice a@b 30             < OK
        > HGETALL u:1                                   < ["name", "alice", "email", "a@b", "age", "30"]
        > HIMPORT PREPARE user city                     < OK
        > EXPIRE u:1 100                                < :1
        > HIMPORT SET u:1 user Paris                    < OK
        > HGETALL u:1                                   < ["city", "Paris"]
        > TTL u:1                                       < :-1
        > OBJECT ENCODING u:1                           < "listpack"
        > HIMPORT PREPARE "" "" b                       < OK
        > HIMPORT SET e "" va vb                        < OK
        > HMGET e "" b                                  < ["va", "vb"]
        > HIMPORT DISCARD user                          < :1
        > HIMPORT DISCARD user                          < :0
        > HIMPORT SET u:2 user Paris                    < -ERR no such fieldset
        > HGETALL u:1                                   < ["city", "Paris"]
        > HIMPORT PREPARE other a                       < OK
        > HIMPORT DISCARDALL                            < :2
        > HIMPORT DISCARDALL                            < :0
        "#,
    );
}

#[test]
fn refused_imports_change_nothing() {
    World::new().check(
        r#"
        > HIMPORT                        < -ERR wrong number of arguments for 'himport' command
        > HIMPORT FOO                    < -ERR unknown subcommand 'FOO'. Try HIMPORT HELP.
        > HIMPORT PREPARE f              < -ERR wrong number of arguments for 'himport|prepare' command
        > HIMPORT SET k f                < -ERR wrong number of arguments for 'himport|set' command
        > HIMPORT DISCARD                < -ERR wrong number of arguments for 'himport|discard' command
        > HIMPORT DISCARDALL x           < -ERR wrong number of arguments for 'himport|discardall' command
        > HIMPORT PREPARE f a b a        < -ERR duplicate field name in fieldset
        > HIMPORT SET k f 1 2 3          < -ERR no such fieldset
        > HIMPORT PREPARE f a b          < OK
        > HIMPORT SET k f 1
        < -ERR value count does not match the number of fields in the fieldset
        > HIMPORT SET k f 1 2 3
        < -ERR value count does not match the number of fields in the fieldset
        > EXISTS k                       < :0
        > SET k v                        < OK
        > HIMPORT SET k f 1 2            < -WRONGTYPE *
        > GET k                          < "v"
        "#,
    );
}

#[test]
fn fieldsets_belong_to_a_connection_or_a_script() {
    World::new().check(
        r#"
        > HIMPORT PREPARE f a                                          < OK
        a> HIMPORT SET k f 1                                           < -ERR no such fieldset
        > EVAL "return redis.call('HIMPORT', 'SET', KEYS[1], 'f', 1)" 1 k
        < -ERR no such fieldset*
        > EVAL "redis.call('HIMPORT', 'PREPARE', 'g', 'b') \
            return redis.call('HIMPORT', 'SET', KEYS[1], 'g', 1)" 1 k
        < OK
        > HGETALL k                                                    < ["b", "1"]
        > HIMPORT SET k g 1                                            < -ERR no such fieldset
        > HIMPORT SET k f 1                                            < OK
        > MULTI                                                        < OK
        > HIMPORT PREPARE h c d                                        < QUEUED
        > HIMPORT SET k h 1 2                                          < QUEUED
        > EXEC                                                         < [OK, OK]
        > HGETALL k                                                    < ["c", "1", "d", "2"]
        > RESET                                                        < RESET
        > HIMPORT SET k f 1                                            < -ERR no such fieldset
        "#,
    );
}

#[test]
fn fieldsets_count_as_memory_of_the_client() {
    let mut world = World::new();
    let mut memory = |line: &str| {
        world.run(line);
        let info = world.run("CLIENT INFO");
        let found = info.split(' ').find_map(|word| word.strip_prefix("tot-mem="));
        found.and_then(|bytes| bytes.parse::<usize>().ok()).expect("the client's memory")
    };
    let long = "x".repeat(10_000);
    let before = memory("PING");
    assert!(memory(&format!("HIMPORT PREPARE f {long}")) >= before + 10_000);
    assert!(memory(&format!("HIMPORT PREPARE f a{long}")) < before + 15_000, "it was replaced");
    assert!(memory("HIMPORT DISCARDALL") < before + 5_000);
}

#[test]
fn imports_send_the_events_of_hset() {
    World::with(&["--notify-keyspace-events", "EAo"]).check(
        r#"
        a> PSUBSCRIBE *                  < *
        > HIMPORT PREPARE f a b          < OK
        > HIMPORT SET k f 1 2            < OK
        > HIMPORT SET k f 3 4            < OK
        a< ["pmessage", "*", "__keyevent@0__:hset", "k"]
        a< ["pmessage", "*", "__keyevent@0__:overwritten", "k"]
        a< ["pmessage", "*", "__keyevent@0__:hset", "k"]
        "#,
    );
}
