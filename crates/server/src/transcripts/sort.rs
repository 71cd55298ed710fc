//! SORT as a client sees it. Commands that Redis has run on redis-server as well, if it is installed.

use crate::testing::live::Live;
use crate::testing::{World, check, random};
use evenkeel_testkit::random::Random;

#[test]
fn sort_by_number_and_text() {
    check(
        r#"
        > RPUSH l 10 9 2.5 -1 1e1 2 7 +3 inf -inf < :10
        > SORT l                         < ["-inf", "-1", "2", "2.5", "+3", "7", "9", "10", "1e1", "inf"]
        > SORT l DESC LIMIT 0 3          < ["inf", "1e1", "10"]
        > SORT l ALPHA                   < ["+3", "-1", "-inf", "10", "1e1", "2", "2.5", "7", "9", "inf"]
        > SORT l DESC ALPHA LIMIT 1 2    < ["9", "7"]
        > SORT_RO l ALPHA LIMIT -5 2     < ["+3", "-1"]
        > SORT l LIMIT 8 100             < ["1e1", "inf"]
        > SORT l LIMIT 10 1              < []
        > SORT l LIMIT 0 0               < []
        > SORT l LIMIT 9223372036854775807 9223372036854775807 < []
        > SORT none                      < []
        > SORT_RO none ALPHA             < []
        > RPUSH l x                      < :11
        > SORT l                         < -ERR One or more scores can't be converted into double
        > SORT l LIMIT 0 0               < -ERR One or more scores can't be converted into double
        > SORT l BY nosort LIMIT 1 2     < ["9", "2.5"]
        > SORT l BY nosort LIMIT 1 2 DESC < ["-inf", "inf"]
        > SADD s 3 1 2                   < :3
        > SORT s DESC                    < ["3", "2", "1"]
        > ZADD z 1 b 2 a 3 c             < :3
        > SORT z ALPHA                   < ["a", "b", "c"]
        > SORT z BY nosort               < ["b", "a", "c"]
        > SORT z BY nosort DESC LIMIT 0 2 < ["c", "a"]
        > SORT z                         < -ERR One or more scores can't be converted into double
        > SET str 1                      < OK
        > SORT str                       < -WRONGTYPE*
        > HSET h f 1                     < :1
        > SORT_RO h                      < -WRONGTYPE*
    "#,
    );
}

#[test]
fn invalid_numbers_are_refused() {
    for bad in ["", " 1", "1 ", "nan", "1e400", "1e-400", "0x1", "--1", "1_0", "0x", "infi", " "] {
        check(&format!(
            "> RPUSH l 1 \"{bad}\" < :2\n> SORT l < -ERR One or more scores can't be converted into double"
        ));
    }
}

#[test]
fn options_are_read_in_order() {
    check(
        r#"
        > RPUSH l 2 1                    < :2
        > SORT l FOO                     < -ERR syntax error
        > SORT l BY                      < -ERR syntax error
        > SORT l GET                     < -ERR syntax error
        > SORT l STORE                   < -ERR syntax error
        > SORT l LIMIT 1                 < -ERR syntax error
        > SORT l LIMIT x 1 FOO           < -ERR value is not an integer or out of range
        > SORT l FOO LIMIT x 1           < -ERR syntax error
        > SORT_RO l STORE d              < -ERR syntax error
        > SORT l                         < ["1", "2"]
        > SORT l asc desc                < ["2", "1"]
        > SORT l BY x BY w_*             < ["2", "1"]
        > SORT l BY w_* BY x             < ["2", "1"]
        > SORT l LIMIT 5 5 LIMIT 1 1     < ["2"]
        > SORT                           < -ERR wrong number of arguments for 'sort' command
        > SET l x                        < OK
        > SORT l FOO                     < -ERR syntax error
    "#,
    );
}

#[test]
fn patterns_lead_to_other_keys() {
    check(
        r#"
        > RPUSH l 1 2 3                  < :3
        > MSET w_1 30 w_2 20 w_3 10 o_1 one o_3 three < OK
        > SORT l BY w_*                  < ["3", "2", "1"]
        > SORT l BY w_* DESC GET # GET o_* < ["1", "one", "2", (nil), "3", "three"]
        > SORT l BY w_* LIMIT 0 1 GET w_* < ["10"]
        > SORT_RO l BY w_* GET w_*       < ["10", "20", "30"]
        > SORT l GET nostar              < [(nil), (nil), (nil)]
        > SORT l GET #x                  < [(nil), (nil), (nil)]
        > DEL w_2                        < :1
        > SORT l BY w_*                  < ["2", "3", "1"]
        > SORT l BY w_* ALPHA            < ["2", "3", "1"]
        > SORT l BY w_* ALPHA DESC       < ["1", "3", "2"]
        > HSET h_1 f 5 g x               < :2
        > HSET h_2 f 4                   < :1
        > SORT l BY h_*->f GET # GET h_*->g < ["3", (nil), "2", (nil), "1", "x"]
        > SORT l BY h_*->g               < -ERR One or more scores can't be converted into double
        > SORT l BY h_* GET h_*          < [(nil), (nil), (nil)]
        > SORT l BY w_*->f               < ["1", "2", "3"]
        > SET x1-> arrow                 < OK
        > SORT l BY nosort GET x*->      < ["arrow", (nil), (nil)]
        > SET w_1 bad                    < OK
        > SORT l BY w_*                  < -ERR One or more scores can't be converted into double
        > SORT l BY w_* LIMIT 0 1 STORE d < -ERR One or more scores can't be converted into double
        > EXISTS d                       < :0
    "#,
    );
}

#[test]
fn results_are_stored() {
    check(
        r#"
        > RPUSH l 3 1 2                  < :3
        > SORT l STORE d                 < :3
        > LRANGE d 0 -1                  < ["1", "2", "3"]
        > EXPIRE d 100                   < :1
        > SORT l DESC STORE d            < :3
        > TTL d                          < :-1
        > SORT l LIMIT 9 9 STORE d       < :0
        > EXISTS d                       < :0
        > SET d x                        < OK
        > MSET o_1 one o_2 two           < OK
        > SORT l GET o_* GET # STORE d   < :6
        > LRANGE d 0 -1                  < ["one", "1", "two", "2", "", "3"]
        > SORT none STORE d              < :0
        > EXISTS d                       < :0
        > SORT l DESC STORE l            < :3
        > LRANGE l 0 -1                  < ["3", "2", "1"]
        > SORT l BY o_* GET o_* ALPHA STORE l < :3
        > LRANGE l 0 -1                  < ["", "one", "two"]
        > SORT l STORE d                 < -ERR One*
        > SADD s c b a 10 9              < :5
        > SORT s BY nosort STORE d       < :5
        > LRANGE d 0 -1                  < ["10", "9", "a", "b", "c"]
        > SORT s BY nosort DESC LIMIT 1 2 STORE d < :2
        > LRANGE d 0 -1                  < ["b", "a"]
        > SADD i 10 9 8                  < :3
        > SORT i BY nosort STORE d       < :3
        > LRANGE d 0 -1                  < ["10", "8", "9"]
    "#,
    );
}

/// The C library compares up to a zero byte, Redis itself does not.
#[test]
fn texts_with_zero_bytes() {
    check(
        r#"
        > RPUSH l "a\x00b" "a\x00a" "a"      < :3
        > SORT l ALPHA                   < ["a\x00b", "a\x00a", "a"]
        > SORT l ALPHA DESC              < ["a\x00b", "a\x00a", "a"]
        > SORT l ALPHA STORE d           < :3
        > LRANGE d 0 -1                  < ["a", "a\x00a", "a\x00b"]
        > RPUSH n "2\x00x" "1\x00y"          < :2
        > SORT n                         < ["1\x00y", "2\x00x"]
    "#,
    );
}

#[test]
fn inside_a_transaction() {
    check(
        r#"
        > RPUSH l 2 1                    < :2
        > MSET w_1 1 w_2 2               < OK
        > MULTI                          < OK
        > SET w_1 3                      < QUEUED
        > SORT l BY w_*                  < QUEUED
        > SORT l BY w_* GET w_* STORE d  < QUEUED
        > SORT l                         < QUEUED
        > SORT l STORE e                 < QUEUED
        > EXEC                           < [OK, ["2", "1"], :2, ["1", "2"], :2]
        > LRANGE d 0 -1                  < ["2", "3"]
    "#,
    );
}

#[test]
fn stored_sort_results_serve_blocked_clients() {
    check(
        r#"
        > RPUSH l 2 1 3                  < :3
        a> BLPOP d 0
        b> BRPOPLPUSH d e 0
        c> BLPOP e 0
        ~ 5ms
        > SORT l BY w_* GET # STORE d    < :3
        a< ["d", "1"]
        b< "3"
        c< ["e", "3"]
        > LRANGE d 0 -1                  < ["2"]
        > DEL d                          < :1
        a> BLPOP d 0
        ~ 5ms
        > SORT l STORE d                 < :3
        a< ["d", "1"]
    "#,
    );
}

#[test]
fn changes_are_counted_and_watched() {
    check(
        r#"
        > CONFIG RESETSTAT               < OK
        > RPUSH l 2 1 3                  < :3
        > SORT l STORE d                 < :3
        > INFO persistence               < "*rdb_changes_since_last_save:6\r*"
        > SORT none STORE d              < :0
        > INFO persistence               < "*rdb_changes_since_last_save:7\r*"
        > SORT none STORE d              < :0
        > INFO persistence               < "*rdb_changes_since_last_save:7\r*"
        > WATCH d                        < OK
        > SORT l BY w_* STORE d          < :3
        > MULTI                          < OK
        > PING                           < QUEUED
        > EXEC                           < (nil array)
    "#,
    );
}

/// A list of random numbers, some of which are equal, and the same numbers sorted.
fn fill(world: &mut World, random: &mut Random, count: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..count).map(|_| random.below(count)).collect();
    for some in numbers.chunks(5_000) {
        let texts: Vec<String> = some.iter().map(usize::to_string).collect();
        world.run(&format!("RPUSH l {}", texts.join(" ")));
        let weights: Vec<String> = some.iter().map(|n| format!("w_{n} {}", count - n)).collect();
        world.run(&format!("MSET {}", weights.join(" ")));
    }
    numbers.sort_unstable();
    numbers
}

fn shown(numbers: impl Iterator<Item = usize>) -> String {
    format!("[{}]", numbers.map(|number| format!("\"{number}\"")).collect::<Vec<_>>().join(", "))
}

/// Atomically under the locks, with all slots locked, and on another thread.
#[test]
fn sort_of_any_size() {
    for count in [3, 100, 3_000, 30_000] {
        let (mut world, mut random) = (World::new(), random());
        let numbers = fill(&mut world, &mut random, count);
        let (up, down) = (shown(numbers.iter().copied()), shown(numbers.iter().rev().copied()));
        assert!(world.run("SORT l") == up);
        assert!(world.run("SORT l DESC") == down);
        assert!(world.run("SORT l BY w_*") == down);
        assert!(world.run("SORT l BY w_* DESC GET #") == up);
        let half = count / 2;
        let middle = shown(numbers[half..].iter().copied().take(10));
        assert!(world.run(&format!("SORT l LIMIT {half} 10")) == middle);
        assert!(world.run(&format!("SORT l BY w_* DESC LIMIT {half} 10")) == middle);
        world.check(&format!("> SORT l STORE d < :{count}\n > SORT l BY w_* STORE e < :{count}"));
        assert!(world.run("LRANGE d 0 -1") == up);
        assert!(world.run("LRANGE e 0 -1") == down);
        world.check(&format!("> SORT l STORE l < :{count}"));
        assert!(world.run("LRANGE l 0 -1") == up);
        world.verify();
    }
}

/// The final source is stored.
#[test]
fn sort_of_a_changing_source() {
    for options in ["", "BY w_*"] {
        let mut world = World::new();
        fill(&mut world, &mut random(), 30_000);
        world.type_in("a", &format!("SORT l {options} STORE l"));
        world.check("> RPUSH l 40000 < :30001\n a< :30001");
        world.check(if options.is_empty() { "> RPOP l < \"40000\"" } else { "> LPOP l < \"40000\"" });
        world.type_in("a", &format!("SORT l {options} STORE l"));
        let sorted = if options.is_empty() { "\"1\", \"2\"" } else { "\"2\", \"1\"" };
        world.check("> MSET w_1 2 w_2 1 < OK\n > DEL l < :1\n > SADD l 1 2 < :2");
        world.check(&format!("a< :2\n > LRANGE l 0 -1 < [{sorted}]"));
        fill(&mut world, &mut random(), 30_000);
        world.type_in("a", &format!("SORT l {options} STORE d"));
        world.check("> SET l x < OK\n a< -WRONGTYPE*\n > EXISTS d < :0");
        world.verify();
    }
}

/// A command that needs the keyspace at rest, such as SWAPDB, does not wait for the sort of a large
/// collection.
#[test]
fn a_long_sort_does_not_delay_exclusive_access() {
    const ELEMENTS: usize = 600_000;
    const SWAPS: usize = 20;
    const TRIES: usize = 4;
    for sort in ["SORT l ALPHA LIMIT 0 1", "SORT l ALPHA LIMIT 0 1 STORE to", "SORT l BY w* LIMIT 0 1 GET o*"]
    {
        let live = Live::start(2, &[]);
        let (mut slow, mut operator) = (live.connect(), live.connect());
        let elements = (0..ELEMENTS).map(|element| format!("{:09}", (element * 7_919) % ELEMENTS));
        let push = ["RPUSH".to_owned(), "l".to_owned()].into_iter().chain(elements);
        assert_eq!(slow.call(&push.collect::<Vec<_>>()).as_int(), Some(ELEMENTS as i64));
        let mut swaps_during = || {
            slow.send(&sort.split(' ').collect::<Vec<_>>()).expect("it reads");
            live.wait_until("it has begun", || live.server.offload.running() == 1);
            let mut swaps = 0;
            while live.server.offload.running() == 1 {
                assert_eq!(operator.run("SWAPDB 1 2").to_string(), "OK");
                swaps += 1;
            }
            assert!(!slow.read().is_error(), "{sort}");
            swaps
        };
        // A machine that pauses may leave a sort no time beside it; a sort that blocks other commands does so
        // each time.
        let most = (0..TRIES).map(|_| swaps_during()).find(|swaps| *swaps > SWAPS);
        assert!(most.is_some(), "{sort}");
        live.stop();
    }
}

/// Texts longer than a chunk are compared where they lie; a number ends with a zero byte, as in C.
#[test]
fn long_texts_as_weights() {
    let mut world = World::new();
    let long = |end: &str| "x".repeat(100_000) + end;
    let mut set = |name: &str, text: String| assert_eq!(world.run(&format!("SET {name} \"{text}\"")), "OK");
    set("w_a", long("b"));
    set("w_b", long("a"));
    set("w_c", "x".repeat(70_000));
    set("w_d", "w".into());
    set("w_e", long("a") + r"\x00b");
    set("n_a", r"7\x00".to_owned() + &long(""));
    set("n_b", r"-3\x00".to_owned() + &long(""));
    set("n_c", "1e2".into());
    set("n_d", long(""));
    world.run("RPUSH l e d c b a none");
    assert_eq!(world.run("SORT l BY w_* ALPHA"), r#"["none", "d", "c", "e", "b", "a"]"#);
    world.run("RPUSH m a b c none");
    assert_eq!(world.run("SORT m BY n_*"), r#"["b", "none", "a", "c"]"#);
    world.run("RPUSH m d");
    let refused = world.run("SORT m BY n_*");
    assert!(refused.contains("can't be converted into double"), "{refused}");
}
