//! Transcripts of hash commands.

use crate::testing::{World, check};
use evenkeel_testkit::transcript::Target;
use std::time::Duration;

#[test]
fn hset_hget_and_hdel() {
    check(
        r#"
        > HSET h a 1                     < :1
        > HSET h a 2 b 3 c 4 c 5         < :2
        > HGET h a                       < "2"
        > HGET h nosuch                  < (nil)
        > HGET nosuch a                  < (nil)
        > HMGET h a nosuch c             < ["2", (nil), "5"]
        > HMGET nosuch a b               < [(nil), (nil)]
        > HLEN h                         < :3
        > HLEN nosuch                    < :0
        > HEXISTS h b                    < :1
        > HEXISTS h nosuch               < :0
        > HEXISTS nosuch b               < :0
        > HKEYS h                        < ["a", "b", "c"]
        > HVALS h                        < ["2", "3", "5"]
        > HGETALL h                      < ["a", "2", "b", "3", "c", "5"]
        > HKEYS nosuch                   < []
        > HVALS nosuch                   < []
        > HGETALL nosuch                 < []
        > HSETNX h a 9                   < :0
        > HSETNX h d 9                   < :1
        > HSETNX new d 9                 < :1
        > HMSET h d "" "" d              < OK
        > HSTRLEN h d                    < :0
        > HSTRLEN h ""                   < :1
        > HSTRLEN h nosuch               < :0
        > HSTRLEN nosuch d               < :0
        > HDEL h nosuch a a d ""         < :3
        > HGETALL h                      < ["b", "3", "c", "5"]
        > HDEL h b c d                   < :2
        > EXISTS h                       < :0
        > HDEL h b                       < :0
        > TYPE new                       < hash
        "#,
    );
}

#[test]
fn replies_in_resp3() {
    check(
        r#"
        > HELLO 3                        < {*
        > HGETALL nosuch                 < {}
        > HGET nosuch a                  < (null)
        > HSET h a 1
        > HGETALL h                      < {"a": "1"}
        > HRANDFIELD h 5 WITHVALUES      < [["a", "1"]]
        > HRANDFIELD h -2 WITHVALUES     < [["a", "1"], ["a", "1"]]
        > HRANDFIELD h -2                < ["a", "a"]
        > HRANDFIELD nosuch              < (null)
        > HRANDFIELD nosuch 2 WITHVALUES < []
        > HSCAN h 0                      < ["0", ["a", "1"]]
        > HINCRBYFLOAT h a 0.5           < "1.5"
        "#,
    );
}

#[test]
fn numbers_in_fields() {
    check(
        r#"
        > HINCRBY h n 5                  < :5
        > HINCRBY h n -7                 < :-2
        > HGET h n                       < "-2"
        > HSET h n 9223372036854775807 s " 1" t 1.5
        > HINCRBY h n 1                  < -ERR increment or decrement would overflow
        > HINCRBY h n x                  < -ERR value is not an integer or out of range
        > HINCRBY h s 1                  < -ERR hash value is not an integer
        > HINCRBY h t 1                  < -ERR hash value is not an integer
        > HINCRBYFLOAT h t 0.25          < "1.75"
        > HINCRBYFLOAT h s 1             < -ERR hash value is not a float
        > HINCRBYFLOAT h t x             < -ERR value is not a valid float
        > HINCRBYFLOAT h t inf           < -ERR value is NaN or Infinity
        > HINCRBYFLOAT new t -inf        < -ERR value is NaN or Infinity
        > HINCRBYFLOAT new t nan         < -ERR value is not a valid float
        > EXISTS new                     < :0
        > HSET h big 1e4932
        > HINCRBYFLOAT h big 1e4932      < -ERR increment would produce NaN or Infinity
        > HGETALL h
        < ["n", "9223372036854775807", "s", " 1", "t", "1.75", "big", "1e4932"]
        > HINCRBYFLOAT f n 3.0e3         < "3000"
        > HINCRBYFLOAT f n 0.1           < "3000.10000000000000009"
        "#,
    );
}

#[test]
fn refused_commands_change_nothing() {
    check(
        r#"
        > HSET h a                       < -ERR wrong number of arguments for 'hset' command
        > HSET h a 1 b                   < -ERR wrong number of arguments for 'hset' command
        > HMSET h a 1 b                  < -ERR wrong number of arguments for 'hmset' command
        > EXISTS h                       < :0
        > SET s text
        > HSET s a 1 b                   < -ERR wrong number of arguments for 'hset' command
        > HSET s a 1                     < -WRONGTYPE *
        > HMSET s a 1                    < -WRONGTYPE *
        > HSETNX s a 1                   < -WRONGTYPE *
        > HGET s a                       < -WRONGTYPE *
        > HMGET s a                      < -WRONGTYPE *
        > HDEL s a                       < -WRONGTYPE *
        > HLEN s                         < -WRONGTYPE *
        > HSTRLEN s a                    < -WRONGTYPE *
        > HEXISTS s a                    < -WRONGTYPE *
        > HKEYS s                        < -WRONGTYPE *
        > HVALS s                        < -WRONGTYPE *
        > HGETALL s                      < -WRONGTYPE *
        > HINCRBY s a 1                  < -WRONGTYPE *
        > HINCRBY s a x                  < -ERR value is not an integer or out of range
        > HINCRBYFLOAT s a 1             < -WRONGTYPE *
        > HRANDFIELD s                   < -WRONGTYPE *
        > HRANDFIELD s 1                 < -WRONGTYPE *
        > HSCAN s 0                      < -WRONGTYPE *
        > GET s                          < "text"
        > HSET h a 1
        > GET h                          < -WRONGTYPE *
        > APPEND h a                     < -WRONGTYPE *
        > INCR h                         < -WRONGTYPE *
        > SETRANGE h 1 a                 < -WRONGTYPE *
        > GETRANGE h 0 1                 < -WRONGTYPE *
        > SETBIT h 1 1                   < -WRONGTYPE *
        > LCS h s                        < -ERR The specified keys must contain string values
        > MGET h s                       < [(nil), "text"]
        > SET h v GET                    < -WRONGTYPE *
        > SET h v                        < OK
        "#,
    );
}

#[test]
fn hrandfield() {
    check(
        r#"
        > HRANDFIELD nosuch              < (nil)
        > HRANDFIELD nosuch 3            < []
        > HRANDFIELD nosuch -3           < []
        > HSET h a 1
        > HRANDFIELD h                   < "a"
        > HRANDFIELD h 0                 < []
        > HRANDFIELD h 3                 < ["a"]
        > HRANDFIELD h -3                < ["a", "a", "a"]
        > HRANDFIELD h 3 withvalues      < ["a", "1"]
        > HRANDFIELD h -2 WITHVALUES     < ["a", "1", "a", "1"]
        > HRANDFIELD h 3 VALUES          < -ERR syntax error
        > HRANDFIELD h 3 WITHVALUES x    < -ERR syntax error
        > HRANDFIELD h x                 < -ERR value is not an integer or out of range
        > HRANDFIELD h -9223372036854775808 < -ERR value is out of range, value must between *
        > HRANDFIELD h -9223372036854770000 WITHVALUES < -ERR value is out of range
        > HRANDFIELD h 9223372036854775807 < ["a"]
        "#,
    );
}

/// Redis would go on until it has no memory left.
#[test]
fn random_field_replies_are_bounded() {
    let mut world = World::new();
    world.configure("proto-max-bulk-len", "1mb");
    world.check("> HSET h a 1\n > HRANDFIELD h -9223372036854775807 < -ERR value is out of range");
    world.configure("client-output-buffer-limit", "normal 1000 0 0");
    let args = ["HRANDFIELD", "h", "-999999999"].map(|arg| arg.as_bytes().to_vec());
    let reply = evenkeel_testkit::Target::call(&mut world, &args);
    assert!(reply.is_err(), "a reply that breaks off, which the worker does not send");
}

#[test]
fn distinct_random_fields_are_uniform() {
    let mut world = World::new();
    (0..20).for_each(|n| _ = world.run(&format!("HSET h {n} v{n}")));
    for count in [3, 6, 7, 12, 19] {
        let mut seen = [0; 20];
        for _ in 0..2000 {
            let reply = world.run(&format!("HRANDFIELD h {count}"));
            let mut fields: Vec<usize> = reply
                .trim_matches(['[', ']'])
                .split(", ")
                .map(|field| field.trim_matches('"').parse().expect("a field"))
                .collect();
            assert_eq!(fields.len(), count);
            fields.iter().for_each(|field| seen[*field] += 1);
            fields.sort_unstable();
            fields.dedup();
            assert_eq!(fields.len(), count, "no field comes twice");
        }
        let expected = 100 * count as i32;
        // Nine standard deviations.
        assert!(seen.iter().all(|times| (times - expected).abs() < 9 * 23), "{count}: {seen:?}");
    }
}

#[test]
fn hscan_walks_all_fields() {
    check(
        r#"
        > HSCAN nosuch 0                 < ["0", []]
        > HSCAN nosuch 0 COUNT           < ["0", []]
        > HSCAN nosuch x                 < -ERR invalid cursor
        > HSET h a 1 ab 2 b 3
        > HSCAN h 0                      < ["0", ["a", "1", "ab", "2", "b", "3"]]
        > HSCAN h 0 MATCH a* COUNT 1     < ["0", ["a", "1", "ab", "2"]]
        > HSCAN h 77                     < ["0", ["a", "1", "ab", "2", "b", "3"]]
        > HSCAN h 0 COUNT 0              < -ERR syntax error
        > HSCAN h 0 COUNT x              < -ERR value is not an integer or out of range
        > HSCAN h 0 COUNT                < -ERR syntax error
        > HSCAN h 0 TYPE hash            < -ERR syntax error
        > HSCAN h 0 nosuch x             < -ERR syntax error
        "#,
    );
    let mut world = World::new();
    world.check("> HSET h a 1 ab 2 b 3\n > HSCAN h 0 NOVALUES < [\"0\", [\"a\", \"ab\", \"b\"]]");
    world.check("> HSCAN h 0 MATCH a? NOVALUES COUNT 7 < [\"0\", [\"ab\"]]");
    let fields: Vec<String> = (0..3000).map(|n| format!("field:{n}")).collect();
    fields.iter().for_each(|field| _ = world.run(&format!("HSET large {field} {field}")));
    let (mut met, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        let args = ["HSCAN", "large", &cursor, "NOVALUES"].map(|arg| arg.as_bytes().to_vec());
        let page = evenkeel_testkit::Target::call(&mut world, &args).expect("a page");
        let [next, found] = page.as_items().expect("a cursor and fields") else { panic!("{page}") };
        let found = found.as_items().expect("fields");
        assert!(found.len() < 30, "{} at once", found.len());
        met.extend(
            found
                .iter()
                .map(|field| String::from_utf8_lossy(field.as_bytes().expect("a field")).into_owned()),
        );
        cursor = String::from_utf8_lossy(next.as_bytes().expect("a cursor")).into_owned();
        if cursor == "0" {
            break;
        }
    }
    met.sort();
    met.dedup();
    assert_eq!(met.len(), fields.len());
}

#[test]
fn hash_encodings() {
    let (fits, long) = ("x".repeat(64), "x".repeat(65));
    check(&format!(
        r#"
        > HSET h {fits} {fits}
        > OBJECT ENCODING h              < "listpack"
        > HSETNX h f {long}
        > OBJECT ENCODING h              < "hashtable"
        > HDEL h f
        > OBJECT ENCODING h              < "hashtable"
        > COPY h i
        > OBJECT ENCODING i              < "hashtable"
        > DEL h
        > HSETNX h {long} f
        > OBJECT ENCODING h              < "hashtable"
        > CONFIG SET hash-max-listpack-entries 3
        > HSET e a 1 b 2 c 3
        > OBJECT ENCODING e              < "listpack"
        > HINCRBY e d 1
        > OBJECT ENCODING e              < "hashtable"
        > DEL e
        > HSET e a 1 b 2 c 3 c 4         < :3
        > OBJECT ENCODING e              < "hashtable"
        > CONFIG SET hash-max-listpack-value 3
        > HINCRBY n n 999
        > OBJECT ENCODING n              < "listpack"
        > HINCRBYFLOAT n n 1
        > OBJECT ENCODING n              < "hashtable"
        > OBJECT REFCOUNT n              < :1
        "#
    ));
}

#[test]
fn hashes_are_copied_renamed_and_expired() {
    check(
        r#"
        > HSET h a 1 b 2
        > COPY h i                       < :1
        > HSET h a 3
        > HGETALL i                      < ["a", "1", "b", "2"]
        > RENAME h j                     < OK
        > HGETALL j                      < ["a", "3", "b", "2"]
        > EXPIRE j 100                   < :1
        > HSET j c 1                     < :1
        > HDEL j c                       < :1
        > TTL j                          < :100
        > PEXPIRE i 100                  < :1
        ~ 150ms
        > HGETALL i                      < []
        > HSET i a 1                     < :1
        > TTL i                          < :-1
        "#,
    );
}

#[test]
fn changes_are_watched_and_counted() {
    let mut world = World::new();
    world.check(
        r#"
        > HSET h a 1 b 2
        a> WATCH h
        > HDEL h nosuch
        > HSETNX h a 2
        a> MULTI
        a> EXEC                          < []
        a> WATCH h
        > HDEL h a
        a> MULTI
        a> EXEC                          < (nil array)
        a> WATCH h
        > HDEL h b
        a> MULTI
        a> EXEC                          < (nil array)
        "#,
    );
}

#[test]
fn long_values_are_stored() {
    let (mut world, long) = (World::new(), "x".repeat(3_000_000));
    world.check("> HSET h a 1 b 2");
    world.check(&format!("> HSET h a {long} c {long}x < :1"));
    world.check(
        "> HSTRLEN h a < :3000000\n > HSTRLEN h c < :3000001\n > HGET h b < \"2\"\n > HINCRBY h a 1 < -ERR *",
    );
    world.check(&format!("> HGET h a < \"{long}\"\n > HDEL h a c < :2\n > HGETALL h < [\"b\", \"2\"]"));
}

/// Nearly all fields have expired in place: a search for the rest does not go on under locks.
#[test]
fn random_fields_among_many_expired_are_offloaded() {
    const FIELDS: usize = 30_000;
    let mut world = World::new();
    let names: Vec<String> = (0..FIELDS).map(|number| format!("f{number}")).collect();
    for names in names.chunks(1000) {
        let pairs: String = names.iter().map(|name| format!(" {name} v")).collect();
        world.run(&format!("HSETEX h PX 1000 FIELDS {}{pairs}", names.len()));
    }
    world.check(
        "> HSET h left v  < :1\n> HRANDFIELD h -1 < [\"*\"]\n> INFO stats \
                 < \"*long_commands_processed:0\\r*\"",
    );
    world.pass(Duration::from_secs(2));
    world.check(
        "
        > HRANDFIELD h                  < \"left\"
        > HRANDFIELD h -3               < [\"left\", \"left\", \"left\"]
        > HRANDFIELD h -2 WITHVALUES    < [\"left\", \"v\", \"left\", \"v\"]
        > HRANDFIELD h 3                < [\"left\"]
        > INFO stats                    < \"*long_commands_processed:4\\r*\"
        ",
    );
}
