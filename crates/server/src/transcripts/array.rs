//! Arrays as a client sees them. No reference server has them: expected replies follow the documentation and
//! the suite of Redis 8.8.

use std::collections::BTreeMap;

use crate::testing::{World, random};
use evenkeel_testkit::Target;
use evenkeel_testkit::payload::seal;

#[track_caller]
fn check(text: &str) {
    let mut world = World::new();
    world.check(text);
    world.verify();
}

#[test]
fn values_are_set_and_read_by_index() {
    check(
        r#"
        > ARSET a 5 x y ""                     < :3
        > ARSET a 6 Y z w                      < :1
        > ARGET a 5                            < "x"
        > ARGET a 6                            < "Y"
        > ARGET a 8                            < "w"
        > ARGET a 4                            < (nil)
        > ARGET none 4                         < (nil)
        > ARMGET a 5 0 8 18446744073709551614  < ["x", (nil), "w", (nil)]
        > ARMGET none 5 0                      < [(nil), (nil)]
        > ARLEN a                              < :9
        > ARCOUNT a                            < :4
        > ARLEN none                           < :0
        > ARCOUNT none                         < :0
        > ARMSET a 100 i 5 X 100 j             < :1
        > ARGET a 100                          < "j"
        > ARMSET m 18446744073709551614 last 0 first < :2
        > ARLEN m                              < (18446744073709551615
        > ARGET m 18446744073709551614         < "last"
        > TYPE a                               < array
        > OBJECT ENCODING a                    < "sliced-array"
        > EXISTS none                          < :0
        > EVAL "return redis.call('ARLEN', KEYS[1])" 1 m < :*
        > EVAL "return redis.call('ARGET', KEYS[1], 5)" 1 a < "X"
    "#,
    );
}

#[test]
fn arguments_are_checked_before_any_change() {
    check(
        r#"
        > ARSET a 18446744073709551614 x y     < -ERR array index overflow
        > ARSET a 18446744073709551615 x       < -ERR invalid array index
        > ARSET a -1 x                         < -ERR invalid array index
        > ARSET a x x                          < -ERR invalid array index
        > ARSET a 01 x                         < -ERR invalid array index
        > ARMSET a 0 x y z                     < -ERR invalid array index
        > ARMSET a 0 x 1                       < -ERR wrong number of arguments for 'armset' command
        > ARSET a 0                            < -ERR wrong number of arguments for 'arset' command
        > ARGET a not-an-index                 < -ERR invalid array index
        > ARMGET a 0 x                         < -ERR invalid array index
        > ARDEL a 0 x                          < -ERR invalid array index
        > ARDELRANGE a 0 1 2                   < -ERR wrong number of arguments for 'ardelrange' command
        > ARDELRANGE a 0 x                     < -ERR invalid array index
        > ARGETRANGE a - +                     < -ERR invalid array index
        > EXISTS a                             < :0
        > SET s v                              < OK
        > ARSET s 0 x                          < -WRONGTYPE *
        > ARGET s 0                            < -WRONGTYPE *
        > ARINSERT s x                         < -WRONGTYPE *
        > ARRING s 3 x                         < -WRONGTYPE *
        > ARSEEK s 3                           < -WRONGTYPE *
        > ARDELRANGE s 0 1                     < -WRONGTYPE *
        > ARGREP s - + EXACT v                 < -WRONGTYPE *
        > AROP s 0 1 SUM                       < -WRONGTYPE *
        > ARINFO s                             < -WRONGTYPE *
        > ARSET a 0 x                          < :1
        > GET a                                < -WRONGTYPE *
        > LPUSH a x                            < -WRONGTYPE *
    "#,
    );
}

#[test]
fn values_are_deleted_and_the_last_takes_the_key_along() {
    check(
        r#"
        > ARSET a 0 a b c d e f g h            < :8
        > ARDEL a 1 1 7 100                    < :2
        > ARDELRANGE a 3 2 5 5                 < :3
        > ARSCAN a 0 100                       < [[:0, "a"], [:4, "e"], [:6, "g"]]
        > ARLEN a                              < :7
        > ARDELRANGE a 100 7                   < :0
        > ARDELRANGE a 0 5 0 18446744073709551614 < :3
        > EXISTS a                             < :0
        > ARDEL a 0                            < :0
        > ARDELRANGE a 0 1                     < :0
        > ARSET a 3 x                          < :1
        > ARDEL a 3                            < :1
        > EXISTS a                             < :0
    "#,
    );
}

#[test]
fn ranges_have_holes_or_leave_them_out() {
    check(
        r#"
        > ARMSET a 1 b 2 c 5 f                 < :3
        > ARGETRANGE a 0 6                     < [(nil), "b", "c", (nil), (nil), "f", (nil)]
        > ARGETRANGE a 5 1                     < ["f", (nil), (nil), "c", "b"]
        > ARGETRANGE a 3 4                     < [(nil), (nil)]
        > ARGETRANGE a 2 2                     < ["c"]
        > ARGETRANGE none 1 3                  < [(nil), (nil), (nil)]
        > ARGETRANGE a 18446744073709551613 18446744073709551614 < [(nil), (nil)]
        > ARGETRANGE a 0 1000000               < -ERR range exceeds maximum of 1000000 items
        > ARGETRANGE none 1000000 0            < -ERR range exceeds maximum of 1000000 items
        > ARSCAN a 0 18446744073709551614      < [[:1, "b"], [:2, "c"], [:5, "f"]]
        > ARSCAN a 5 0                         < [[:5, "f"], [:2, "c"], [:1, "b"]]
        > ARSCAN a 0 9 LIMIT 2                 < [[:1, "b"], [:2, "c"]]
        > ARSCAN a 9 0 limit 1                 < [[:5, "f"]]
        > ARSCAN a 3 4                         < []
        > ARSCAN none 0 9                      < []
        > ARSCAN a 0 9 LIMIT 0                 < -ERR LIMIT must be positive
        > ARSCAN a 0 9 LIMIT x                 < -ERR value is not an integer or out of range
        > ARSCAN a 0 9 COUNT 1                 < -ERR syntax error
        > ARSCAN a 0 9 LIMIT                   < -ERR wrong number of arguments for 'arscan' command
    "#,
    );
}

#[test]
fn insertions_go_on_at_the_cursor() {
    check(
        r#"
        > ARNEXT a                             < :0
        > ARSEEK a 5                           < :0
        > EXISTS a                             < :0
        > ARINSERT a a b                       < :1
        > ARINSERT a c                         < :2
        > ARNEXT a                             < :3
        > ARSEEK a 10                          < :1
        > ARINSERT a x                         < :10
        > ARNEXT a                             < :11
        > ARGET a 10                           < "x"
        > ARSEEK a 0                           < :1
        > ARNEXT a                             < :0
        > ARINSERT a A                         < :0
        > ARSEEK a 18446744073709551615        < :1
        > ARNEXT a                             < (nil)
        > ARINSERT a b                         < -ERR insert index overflow
        > ARSEEK a 18446744073709551614        < :1
        > ARINSERT a y z                       < -ERR insert index overflow
        > ARINSERT a y                         < (18446744073709551614
        > ARNEXT a                             < (nil)
        > ARSEEK a 18446744073709551616        < -ERR invalid array index
        > ARSET b 7 x                          < :1
        > ARINSERT b a                         < :0
    "#,
    );
}

#[test]
fn rings_keep_the_values_inserted_last() {
    check(
        r#"
        > ARRING r 3 a b                       < :1
        > ARRING r 3 c d e                     < :1
        > ARGETRANGE r 0 3                     < ["d", "e", "c", (nil)]
        > ARLASTITEMS r 9                      < ["c", "d", "e"]
        > ARLASTITEMS r 2 REV                  < ["e", "d"]
        > ARRING r 5 f                         < :3
        > ARGETRANGE r 0 4                     < ["c", "d", "e", "f", (nil)]
        > ARRING r 2 g                         < :0
        > ARGETRANGE r 0 2                     < ["g", "f", (nil)]
        > ARRING r 0 x                         < -ERR size must be positive
        > ARRING r -1 x                        < -ERR size must be positive
        > ARRING r x x                         < -ERR invalid size
        > ARRING w 3 a b c d e                 < :1
        > ARSEEK w 0                           < :1
        > ARRING w 8 first                     < :0
        > ARGETRANGE w 0 3                     < ["first", "e", "c", (nil)]
        > ARNEXT w                             < :1
        > ARRING h 5 v0 v1 v2 v3 v4            < :4
        > ARDEL h 3                            < :1
        > ARRING h 3 new                       < :1
        > ARSCAN h 0 9                         < [[:0, "v4"], [:1, "new"]]
        > ARRING g 5 v0 v1 v2 v3 v4 v5 v6 v7   < :2
        > ARDEL g 1                            < :1
        > ARRING g 8 grown                     < :1
        > ARSCAN g 0 9                         < [[:0, "v7"], [:1, "grown"]]
        > ARRING o 3 a b c d e                 < :1
        > ARSET o 100 outside                  < :1
        > ARRING o 3 f                         < :0
        > ARSCAN o 0 200                       < [[:0, "f"], [:1, "d"], [:2, "e"]]
        > ARSET e 9 x                          < :1
        > ARRING e 4 y                         < :1
        > ARSCAN e 0 99                        < [[:0, "x"], [:1, "y"]]
        > ARRING one 1 a b c                   < :0
        > ARSCAN one 0 9                       < [[:0, "c"]]
    "#,
    );
}

#[test]
fn the_last_values_go_back_from_the_cursor() {
    check(
        r#"
        > ARINSERT a a b c d e                 < :4
        > ARLASTITEMS a 3                      < ["c", "d", "e"]
        > ARLASTITEMS a 3 rev                  < ["e", "d", "c"]
        > ARDEL a 1                            < :1
        > ARLASTITEMS a 10                     < ["a", (nil), "c", "d", "e"]
        > ARSEEK a 0                           < :1
        > ARLASTITEMS a 2                      < ["d", "e"]
        > ARSEEK a 3                           < :1
        > ARLASTITEMS a 4                      < ["e", "a", (nil), "c"]
        > ARLASTITEMS a 4 REV                  < ["c", (nil), "a", "e"]
        > ARLASTITEMS a 0                      < []
        > ARLASTITEMS a -3 X                   < []
        > ARLASTITEMS a x                      < -ERR invalid COUNT
        > ARLASTITEMS a 1 X                    < -ERR syntax error
        > ARLASTITEMS a 1 REV X                < -ERR wrong number of arguments for 'arlastitems' command
        > ARLASTITEMS none 5                   < []
        > ARMSET s 0 a 2000000 b               < :2
        > ARLASTITEMS s 1000001                < -ERR count exceeds maximum of 1000000 items
        > ARLASTITEMS s 2                      < [(nil), "b"]
    "#,
    );
}

#[test]
fn values_are_found_by_predicates() {
    check(
        r#"
        > ARMSET a 0 alpha 1 beta 2 alphabet 5 Gamma 9 7 < :5
        > ARGREP a - + MATCH alpha             < [:0, :2]
        > ARGREP a 2 0 MATCH alpha WITHVALUES  < [[:2, "alphabet"], [:0, "alpha"]]
        > ARGREP a - + EXACT gamma             < []
        > ARGREP a - + EXACT gamma NOCASE      < [:5]
        > ARGREP a - + MATCH MM nocase         < [:5]
        > ARGREP a - + MATCH ""                < [:0, :1, :2, :5, :9]
        > ARGREP a - + GLOB *a                 < [:0, :1, :5]
        > ARGREP a - + GLOB *a MATCH l AND     < [:0]
        > ARGREP a - + AND GLOB *a OR EXACT 7  < [:0, :1, :5, :9]
        > ARGREP a - + RE "^(al|ga).*a$" NOCASE < [:0, :5]
        > ARGREP a - + RE "[[:digit:]]"        < [:9]
        > ARGREP a + - MATCH a LIMIT 2         < [:5, :2]
        > ARGREP a 1 1 MATCH a                 < [:1]
        > ARGREP none - + MATCH a              < []
        > ARGREP a - + LIMIT 1                 < -ERR syntax error
        > ARGREP a - + MATCH                   < -ERR wrong number of arguments for 'argrep' command
        > ARGREP a - + MATCH a FOO             < -ERR syntax error
        > ARGREP a - + MATCH a LIMIT 0         < -ERR LIMIT must be positive
        > ARGREP a x + MATCH a                 < -ERR invalid array index
        > ARGREP a - + RE "("                  < -ERR invalid regular expression: Missing ')'
        > ARGREP a - + RE ""                   < -ERR regular expression is empty
        > ARGREP a - + RE "(a)\\1"             < -ERR regular expression backreferences are not supported
    "#,
    );
    let mut world = World::new();
    world.run("ARSET a 0 foo");
    let many = "MATCH foo ".repeat(250);
    assert_eq!(world.run(&format!("ARGREP a - + {many}")), "[:0]");
    let error = "-ERR too many predicates, maximum is 250";
    assert_eq!(world.run(&format!("ARGREP a - + {many} MATCH foo")), error);
    let error = "-ERR regular expression is too long, maximum is 2048 bytes";
    assert_eq!(world.run(&format!("ARGREP a - + RE {}", "a".repeat(2049))), error);
    assert_eq!(world.run(&format!("ARGREP a - + RE {}", "a".repeat(2048))), "[]");
}

#[test]
fn values_are_summed_up() {
    check(
        r#"
        > ARMSET a 0 10 1 20.5 2 30 7 word     < :4
        > AROP a 0 9 SUM                       < "60.5"
        > AROP a 9 0 MIN                       < "10"
        > AROP a 0 9 MAX                       < "30"
        > AROP a 0 1 USED                      < :2
        > AROP a 0 9 MATCH word                < :1
        > AROP a 0 9 MATCH 10.0                < :0
        > AROP a 7 7 SUM                       < (nil)
        > AROP a 7 7 AND                       < (nil)
        > AROP a 0 9 OR                        < :30
        > ARMSET b 0 7.9 1 3.2 2 1.8           < :3
        > AROP b 0 2 AND                       < :1
        > AROP b 0 2 OR                        < :7
        > AROP b 0 2 XOR                       < :5
        > ARMSET c 0 0.1 1 0.2 2 inf 3 -inf    < :4
        > AROP c 0 1 SUM                       < "0.3"
        > AROP c 0 2 SUM                       < "inf"
        > AROP c 0 3 SUM                       < "-nan"
        > AROP c 0 3 MIN                       < "-inf"
        > AROP c 2 3 XOR                       < (nil)
        > ARMSET d 0 9223372036854775807 1 9223372036854775807 < :2
        > AROP d 0 1 SUM                       < "1.8446744073709552e+19"
        > AROP d 0 1 AND                       < :9223372036854775807
        > AROP none 0 9 SUM                    < (nil)
        > AROP none 0 9 USED                   < :0
        > AROP none 0 9 MATCH x                < :0
        > AROP a 0 9 AVG                       < -ERR unknown operation
        > AROP a 0 9 MATCH                     < -ERR MATCH requires a value argument
        > AROP a 0 9 SUM x                     < -ERR wrong number of arguments for 'arop' command
        > AROP a x 9 SUM                       < -ERR invalid array index
    "#,
    );
}

#[test]
fn info_has_the_numbers_of_an_array_of_redis() {
    check(
        r#"
        > ARINFO none                          < -ERR no such key
        > ARMSET a 0 a 1 b 100 c               < :3
        > ARINFO a
        < ["count", :3, "len", :101, "next-insert-index", :0, "slices", :1, "directory-size", :1, \
            "super-dir-entries", :0, "slice-size", :4096]
        > ARINFO a FULL
        < ["count", :3, "len", :101, "next-insert-index", :0, "slices", :1, "directory-size", :1, \
            "super-dir-entries", :0, "slice-size", :4096, "dense-slices", :0, "sparse-slices", :1, \
            "avg-dense-size", "0", "avg-dense-fill", "0", "avg-sparse-size", "4"]
        > ARSET a 4096 1 2 3 4 5 6 7 8 9 10 11 12 < :12
        > ARSET a 20000000 x                   < :1
        > ARINSERT a x                         < :0
        > ARINFO a FULL
        < ["count", :16, "len", :20000001, "next-insert-index", :1, "slices", :3, "directory-size", :4, \
            "super-dir-entries", :2, "slice-size", :4096, "dense-slices", :1, "sparse-slices", :2, \
            "avg-dense-size", "16", "avg-dense-fill", "0.75", "avg-sparse-size", "4"]
        > ARINFO a SOME                        < -ERR syntax error
        > HELLO 3                              < *
        > ARINFO a                             < {"count": :16, *
    "#,
    );
}

#[test]
fn keys_with_arrays_are_copied_renamed_dumped_and_expire() {
    check(
        r#"
        > ARSET a 5 x 12 0.5 12.25 longer-than-seven < :5
        > ARSEEK a 77                          < :1
        > COPY a b                             < :1
        > ARSET b 5 y                          < :0
        > ARGET a 5                            < "x"
        > ARNEXT b                             < :77
        > RENAME b c                           < OK
        > ARGET c 5                            < "y"
        > SCAN 0 TYPE array COUNT 100          < ["0", [*]]
        > SCAN 0 TYPE list COUNT 100           < ["0", []]
        > MEMORY USAGE a                       < :*
        > OBJECT REFCOUNT a                    < :1
        > DUMP a
        < "\x1c\x05\x01@L\x05\x03\x01x\x06\x01\x0c\x00\x00\x00\x00\x00\x00\x00\a\x02\x00\x00\x00\x00\x00\x00\
            \xe0?\b\x02\x00\x00\x00\x00\x00\x80(@\t\x00\x11longer-than-seven\x0e\x00*"
        > DEBUG DIGEST-VALUE a                 < [*]
        > PEXPIRE a 100                        < :1
        ~ 200ms
        > ARGET a 5                            < (nil)
        > UNLINK c                             < :1
        > DBSIZE                               < :0
    "#,
    );
}

#[test]
fn events_have_a_class_of_their_own() {
    check(
        r#"
        > CONFIG SET notify-keyspace-events Ka < OK
        > CONFIG GET notify-keyspace-events    < ["notify-keyspace-events", "aK"]
        a> PSUBSCRIBE * < ["psubscribe", "*", :1]
        > ARSET k 0 a b c                      < :3
        > ARMSET k 5 a                         < :1
        > ARINSERT k a                         < :0
        > ARRING k 9 a                         < :2
        > ARSEEK k 3                           < :1
        > ARDEL k 100                          < :0
        > CONFIG SET notify-keyspace-events KA < OK
        > ARDEL k 2                            < :1
        > ARDELRANGE k 0 9                     < :2
        > ARSET k 0 a                          < :1
        > ARDEL k 0                            < :1
        a< ["pmessage", "*", "__keyspace@0__:k", "arset"]
        a< ["pmessage", "*", "__keyspace@0__:k", "armset"]
        a< ["pmessage", "*", "__keyspace@0__:k", "arinsert"]
        a< ["pmessage", "*", "__keyspace@0__:k", "arring"]
        a< ["pmessage", "*", "__keyspace@0__:k", "arseek"]
        a< ["pmessage", "*", "__keyspace@0__:k", "ardel"]
        a< ["pmessage", "*", "__keyspace@0__:k", "ardelrange"]
        a< ["pmessage", "*", "__keyspace@0__:k", "del"]
        a< ["pmessage", "*", "__keyspace@0__:k", "arset"]
        a< ["pmessage", "*", "__keyspace@0__:k", "ardel"]
        a< ["pmessage", "*", "__keyspace@0__:k", "del"]
    "#,
    );
}

#[test]
fn users_need_the_category_or_the_commands() {
    check(
        r#"
        > ACL SETUSER u on nopass ~* +@array   < OK
        a> AUTH u x                            < OK
        a> ARSET a 0 x                         < :1
        a> ARGET a 0                           < "x"
        a> GET a                               < -NOPERM *
        > COMMAND GETKEYS ARMSET a 0 x 1 y     < ["a"]
        > COMMAND INFO arring
        < [["arring", :-4, [write, denyoom], :1, :1, :1, [@write, @slow, @array], [], [*], []]]
    "#,
    );
}

/// Payloads of arrays with a byte changed, removed or inserted are refused, or are values.
#[test]
fn changed_payloads_are_survived() {
    let mut random = random();
    let mut world = World::new();
    world.run("ARMSET a 0 -1 5 0.5 4096 abc 1099511627776 longer-text 18446744073709551614 7");
    world.run("ARSEEK a 4097");
    let payload = world.call(&[b"DUMP".to_vec(), b"a".to_vec()]).expect("a reply");
    let payload = payload.as_bytes().expect("a payload").to_vec();
    let body = &payload[..payload.len() - 10];
    let mut accepted = 0;
    for round in 0..4_000 {
        let mut body = body.to_vec();
        for _ in 0..1 + random.below(2) {
            let at = random.below(body.len());
            match random.below(4) {
                0 => drop(body.remove(at)),
                1 => body.insert(at, random.draw() as u8),
                _ => body[at] = if round % 2 == 0 { random.draw() as u8 } else { body[at] ^ 1 },
            }
        }
        let args = [b"RESTORE".to_vec(), b"k".to_vec(), b"0".to_vec(), seal(&body, 14), b"REPLACE".to_vec()];
        let reply = world.call(&args).expect("a reply").to_string();
        if reply == "OK" {
            accepted += 1;
            for line in
                ["ARSCAN k 0 18446744073709551614", "ARLASTITEMS k 3", "ARINFO k FULL", "ARINSERT k x"]
            {
                world.run(line);
            }
            world.verify();
        } else {
            assert!(reply.starts_with("-ERR Bad data format"), "{reply}");
        }
    }
    assert!(accepted > 100, "{accepted}");
}

/// A ring as a plain map, and the cursor.
#[derive(Default)]
struct Ring(BTreeMap<u64, String>, Option<u64>);

impl Ring {
    fn len(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(last, _)| last + 1)
    }

    /// Rebuilds the ring value by value, as the documentation of ARRING describes it.
    fn turn(&mut self, size: u64) {
        let len = self.len();
        let next = self.1.map_or(0, |cursor| cursor + 1);
        let most = match self.1 {
            _ if len == 0 || size == len => return,
            _ if size < len => size,
            Some(_) if next < len => len,
            _ => return,
        };
        let (mut kept, mut at) = (Vec::new(), self.1.map_or(len - 1, |cursor| cursor % len));
        while (kept.len() as u64) < most {
            let Some(value) = self.0.get(&at) else { break };
            kept.push(value.clone());
            at = at.checked_sub(1).unwrap_or(len - 1);
        }
        kept.reverse();
        self.1 = (kept.len() as u64).checked_sub(1);
        self.0 = (0..).zip(kept).collect();
    }

    fn put(&mut self, size: u64, value: String) -> u64 {
        let at = self.1.map_or(0, |cursor| cursor + 1) % size;
        self.0.insert(at, value);
        self.1 = Some(at);
        at
    }
}

#[test]
fn random_rings_match_a_plain_map() {
    let mut random = random();
    for _ in 0..40 {
        let (mut world, mut ring) = (World::new(), Ring::default());
        for step in 0..150 {
            let index = random.below(12) as u64;
            match random.below(12) {
                0 => {
                    world.run(&format!("ARDEL a {index}"));
                    ring.0.remove(&index);
                }
                1 => {
                    world.run(&format!("ARSET a {index} s{step}"));
                    ring.0.insert(index, format!("s{step}"));
                }
                2 if !ring.0.is_empty() => {
                    world.run(&format!("ARSEEK a {index}"));
                    ring.1 = index.checked_sub(1);
                }
                3 => {
                    let last = world.run(&format!("ARINSERT a i{step} j{step}"));
                    let from = ring.1.map_or(0, |cursor| cursor + 1);
                    ring.0.extend([(from, format!("i{step}")), (from + 1, format!("j{step}"))]);
                    ring.1 = Some(from + 1);
                    assert_eq!(last, format!(":{}", from + 1));
                }
                _ => {
                    let size = 1 + random.below(9) as u64;
                    let last = world.run(&format!("ARRING a {size} v{step}"));
                    ring.turn(size);
                    assert_eq!(last, format!(":{}", ring.put(size, format!("v{step}"))));
                }
            }
            if ring.0.is_empty() {
                ring.1 = None;
            }
            let pairs = ring.0.iter().map(|(index, value)| format!("[:{index}, \"{value}\"]"));
            let expected = format!("[{}]", pairs.collect::<Vec<_>>().join(", "));
            assert_eq!(world.run("ARSCAN a 0 18446744073709551614"), expected);
            let next = ring.1.map_or(0, |cursor| cursor + 1);
            assert_eq!(world.run("ARNEXT a"), format!(":{next}"));
        }
        world.verify();
    }
}

/// The rewritten commands of an array give the same array, its cursor as well.
#[test]
fn large_arrays_are_offloaded_and_stay_the_same() {
    let mut world = World::new();
    for part in (0..30_000).step_by(1000) {
        let values: String = (part..part + 1000).map(|number| format!(" v{number}")).collect();
        world.run(&format!("ARSET a {part}{values}"));
        world.run(&format!("ARRING r 30000{values}"));
    }
    world.run("ARSEEK r 100");
    for line in [
        "ARGETRANGE a 0 29999",
        "ARGETRANGE none 0 29999",
        "ARSCAN a 29999 0",
        "ARGREP a - + MATCH 77 WITHVALUES",
        "ARGREP a - + RE ^v77.$",
        "AROP a 0 29999 MATCH v5",
        "ARINFO a FULL",
        "ARLASTITEMS r 29000",
        "ARRING r 25000 x y",
    ] {
        world.run("DEL copy");
        world.run("COPY r copy");
        let before = world.server.offload.total();
        let reply = world.run(line);
        assert!(world.server.offload.total() > before, "{line} is done elsewhere");
        let digest = world.run("DEBUG DIGEST-VALUE r");
        world.run("DEL r");
        world.run("RENAME copy r");
        world.run("MULTI");
        world.run(line);
        assert_eq!(world.run("EXEC"), format!("[{reply}]"), "{line}");
        assert_eq!(world.run("DEBUG DIGEST-VALUE r"), digest, "{line}");
        world.verify();
    }
}
