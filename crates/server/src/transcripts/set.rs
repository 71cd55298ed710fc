//! Transcripts of set commands.

use crate::testing::{World, check};
use evenkeel_testkit::Target;

#[test]
fn sadd_srem_and_smembers() {
    check(
        r#"
        > SADD s a                       < :1
        > SADD s a b b c a               < :2
        > SCARD s                        < :3
        > SCARD nosuch                   < :0
        > SISMEMBER s b                  < :1
        > SISMEMBER s nosuch             < :0
        > SISMEMBER nosuch b             < :0
        > SMISMEMBER s b nosuch c b      < [:1, :0, :1, :1]
        > SMISMEMBER nosuch a b          < [:0, :0]
        > SREM s b b nosuch              < :1
        > SREM nosuch a                  < :0
        > SREM s a c x                   < :2
        > EXISTS s                       < :0
        > SADD s ""                      < :1
        > SMEMBERS s                     < [""]
        > SMEMBERS nosuch                < []
        > TYPE s                         < set
        > SADD n 3 -1 20 3 007           < :4
        > SADD n 9223372036854775807 -9223372036854775808 9223372036854775808 -0 < :4
        > SCARD n                        < :8
        > SISMEMBER n 7                  < :0
        > SISMEMBER n 007                < :1
        > SREM n 007 -0 9223372036854775808 < :3
        > SREM n 0 1 x                   < :0
        > SISMEMBER n -9223372036854775808 < :1
        "#,
    );
}

#[test]
fn integer_sets_are_sorted() {
    check(
        r#"
        > SADD n 3 -1 20 9223372036854775807 -9223372036854775808 100000 < :6
        > SMEMBERS n    < ["-9223372036854775808", "-1", "3", "20", "100000", "9223372036854775807"]
        > SSCAN n 0     < ["0", ["-9223372036854775808", "-1", "3", "20", "100000", "9223372036854775807"]]
        > OBJECT ENCODING n              < "intset"
        > SREM n -9223372036854775808 9223372036854775807 < :2
        > SMEMBERS n                     < ["-1", "3", "20", "100000"]
        "#,
    );
}

#[test]
fn replies_in_resp3() {
    check(
        r#"
        > HELLO 3                        < {*
        > SADD s a                       < :1
        > SMEMBERS s                     < ~["a"]
        > SMEMBERS nosuch                < ~[]
        > SMISMEMBER s a                 < [:1]
        > SINTER s s                     < ~["a"]
        > SINTER s nosuch                < ~[]
        > SUNION s nosuch                < ~["a"]
        > SDIFF s nosuch                 < ~["a"]
        > SDIFF s s                      < ~[]
        > SSCAN s 0                      < ["0", ["a"]]
        > SRANDMEMBER s                  < "a"
        > SRANDMEMBER s 2                < ["a"]
        > SRANDMEMBER s -2               < ["a", "a"]
        > SRANDMEMBER s 0                < []
        > SRANDMEMBER nosuch             < (null)
        > SRANDMEMBER nosuch 2           < []
        > SPOP s 0                       < ~[]
        > SPOP nosuch                    < (null)
        > SPOP nosuch 3                  < ~[]
        > SPOP s 3                       < ~["a"]
        > SADD s a                       < :1
        > SPOP s                         < "a"
        > EXISTS s                       < :0
        "#,
    );
}

#[test]
fn smove() {
    check(
        r#"
        > SADD from a b 1                < :3
        > SADD to 2                      < :1
        > SMOVE from to nosuch           < :0
        > SMOVE nosuch to a              < :0
        > SMOVE from to a                < :1
        > SMOVE from new 1               < :1
        > SMOVE from from b              < :1
        > SMOVE from from a              < :0
        > SMEMBERS from                  < ["b"]
        > SMEMBERS new                   < ["1"]
        > SISMEMBER to a                 < :1
        > SADD to b                      < :1
        > SMOVE from to b                < :1
        > EXISTS from                    < :0
        > SCARD to                       < :3
        > SET string x
        > SMOVE to string a              < -WRONGTYPE *
        > SMOVE string to a              < -WRONGTYPE *
        > SMOVE string nosuch a          < -WRONGTYPE *
        > SMOVE nosuch string a          < :0
        > SMOVE to string nosuch         < -WRONGTYPE *
        > SCARD to                       < :3
        "#,
    );
}

/// The commands of Redis 8.10, by its documentation: no server of that version can be asked here.
#[test]
fn unions_and_differences_are_counted() {
    World::new().check(
        r#"
        > SADD a a b c                   < :3
        > SADD b c d e                   < :3
        > SUNIONCARD 2 a b               < :5
        > SUNIONCARD 2 a b LIMIT 3       < :3
        > SUNIONCARD 2 a b LIMIT 0       < :5
        > SUNIONCARD 2 a b approx        < :5
        > SUNIONCARD 2 a b APPROX LIMIT 2    < :2
        > SUNIONCARD 2 a b LIMIT 2 APPROX    < :2
        > SUNIONCARD 3 a nosuch a        < :3
        > SDIFFCARD 2 a b                < :2
        > SDIFFCARD 2 a b LIMIT 1        < :1
        > SDIFFCARD 2 b a                < :2
        > SDIFFCARD 2 a a                < :0
        > SDIFFCARD 2 nosuch a           < :0
        > SDIFFCARD 2 a b APPROX         < -ERR syntax error
        > SDIFFCARD 0 a                  < -ERR numkeys should be greater than 0
        > SUNIONCARD 3 a b               < -ERR Number of keys can't be greater than number of args
        > SUNIONCARD 2 a b LIMIT -1      < -ERR LIMIT can't be negative
        > SUNIONCARD 2 a b LIMIT         < -ERR syntax error
        > SET s v                        < OK
        > SUNIONCARD 2 a s               < -WRONGTYPE*
    "#,
    );
}

#[test]
fn set_algebra() {
    check(
        r#"
        > SADD a 1 2 3 4                 < :4
        > SADD b 3 4 5                   < :3
        > SADD c 4                       < :1
        > SINTER a b                     < ["3", "4"]
        > SINTER a b c                   < ["4"]
        > SINTER a b nosuch              < []
        > SUNION c nosuch                < ["4"]
        > SUNION a b                     < ["1", "2", "3", "4", "5"]
        > SDIFF a b                      < ["1", "2"]
        > SDIFF a b c nosuch             < ["1", "2"]
        > SDIFF nosuch a                 < []
        > SDIFF a a                      < []
        > SINTERCARD 2 a b               < :2
        > SINTERCARD 2 a b LIMIT 1       < :1
        > SINTERCARD 2 a b LIMIT 0       < :2
        > SINTERCARD 2 a b limit 1 LIMIT 9 < :2
        > SINTERCARD 2 a nosuch          < :0
        > SINTERCARD 3 a a b             < :2
        > SINTERSTORE d a b              < :2
        > SMEMBERS d                     < ["3", "4"]
        > SUNIONSTORE d d c b            < :3
        > SMEMBERS d                     < ["3", "4", "5"]
        > SDIFFSTORE d a d d             < :2
        > SMEMBERS d                     < ["1", "2"]
        > SINTERSTORE a a a              < :4
        > EXPIRE d 100                   < :1
        > SUNIONSTORE d b                < :3
        > TTL d                          < :-1
        > SET string x
        > SUNIONSTORE string a c         < :4
        > TYPE string                    < set
        > SDIFFSTORE d a a               < :0
        > EXISTS d                       < :0
        > SET d x
        > SINTERSTORE d a nosuch         < :0
        > EXISTS d                       < :0
        > SINTERSTORE d nosuch           < :0
        "#,
    );
}

#[test]
fn refused_commands_change_nothing() {
    check(
        r#"
        > SET string x
        > SADD s a b                     < :2
        > SADD string a                  < -WRONGTYPE Operation against a key holding the wrong kind of value
        > SREM string a                  < -WRONGTYPE *
        > SISMEMBER string a             < -WRONGTYPE *
        > SMISMEMBER string a            < -WRONGTYPE *
        > SCARD string                   < -WRONGTYPE *
        > SMEMBERS string                < -WRONGTYPE *
        > SPOP string                    < -WRONGTYPE *
        > SPOP string 1                  < -WRONGTYPE *
        > SPOP string -1                 < -ERR value is out of range, must be positive
        > SPOP nosuch x                  < -ERR value is out of range, must be positive
        > SPOP s 1 2                     < -ERR syntax error
        > SRANDMEMBER string             < -WRONGTYPE *
        > SRANDMEMBER string 1           < -WRONGTYPE *
        > SRANDMEMBER string x           < -ERR value is not an integer or out of range
        > SRANDMEMBER nosuch -9223372036854775808
        < -ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807
        > SRANDMEMBER s 1 2              < -ERR syntax error
        > SINTER nosuch string           < -WRONGTYPE *
        > SINTER string nosuch           < -WRONGTYPE *
        > SUNION s nosuch string         < -WRONGTYPE *
        > SDIFF nosuch string            < -WRONGTYPE *
        > SINTERSTORE s nosuch string    < -WRONGTYPE *
        > SUNIONSTORE s string s         < -WRONGTYPE *
        > SDIFFSTORE s nosuch string     < -WRONGTYPE *
        > SINTERCARD 0 s                 < -ERR numkeys should be greater than 0
        > SINTERCARD x s                 < -ERR numkeys should be greater than 0
        > SINTERCARD 2 s                 < -ERR Number of keys can't be greater than number of args
        > SINTERCARD 9223372036854775807 s < -ERR Number of keys can't be greater than number of args
        > SINTERCARD 1 s LIMIT           < -ERR syntax error
        > SINTERCARD 1 s LIMIT -1        < -ERR LIMIT can't be negative
        > SINTERCARD 1 s LIMIT x         < -ERR LIMIT can't be negative
        > SINTERCARD 1 s FOO 1           < -ERR syntax error
        > SINTERCARD 1 string LIMIT -1   < -ERR LIMIT can't be negative
        > SINTERCARD 2 nosuch string     < -WRONGTYPE *
        > SINTERCARD 1                   < -ERR wrong number of arguments for 'sintercard' command
        > SSCAN string 0                 < -WRONGTYPE *
        > SSCAN string x                 < -ERR invalid cursor
        > SSCAN string 0 FOO             < -WRONGTYPE *
        > SSCAN nosuch 0 FOO             < ["0", []]
        > SSCAN s 0 FOO                  < -ERR syntax error
        > SSCAN s 0 COUNT 0              < -ERR syntax error
        > SSCAN s 0 TYPE set             < -ERR syntax error
        > SSCAN s 0 MATCH a              < ["0", ["a"]]
        > SADD s                         < -ERR wrong number of arguments for 'sadd' command
        > SCARD s                        < :2
        > GET string                     < "x"
        "#,
    );
}

/// The number of changes since the last save that each write adds.
#[test]
fn changes_are_counted() {
    let mut world = World::new();
    let mut before = 0;
    let mut check = |line: &str, expected: u64| {
        world.run(line);
        let info = world.run("INFO persistence");
        let at = info.find("rdb_changes_since_last_save:").expect("the field") + 28;
        let digits: String = info[at..].chars().take_while(char::is_ascii_digit).collect();
        let now: u64 = digits.parse().expect("a number");
        assert_eq!(now - before, expected, "{line}");
        before = now;
    };
    check("SADD s a b c d e", 5);
    check("SADD s a b", 0);
    check("SADD s a f", 1);
    check("SREM s a nosuch", 1);
    check("SMOVE s t b", 2);
    check("SADD t c", 1);
    check("SMOVE s t c", 1);
    check("SMOVE s t nosuch", 0);
    check("SPOP s", 1);
    check("SPOP s 0", 0);
    check("SPOP s 5", 2);
    check("SUNIONSTORE u t t", 1);
    check("SDIFFSTORE u t t", 1);
    check("SDIFFSTORE u t t", 0);
    check("SREM t b c", 2);
}

#[test]
fn encodings_match_redis() {
    let mut world = World::new();
    world.configure("set-max-intset-entries", "5");
    world.configure("set-max-listpack-entries", "4");
    world.configure("set-max-listpack-value", "6");
    world.check(
        r#"
        > SADD n 1 2 3 4 5               < :5
        > OBJECT ENCODING n              < "intset"
        > SADD n 6                       < :1
        > OBJECT ENCODING n              < "hashtable"
        > SREM n 6 5 4                   < :3
        > OBJECT ENCODING n              < "hashtable"
        > SADD many 1 2 3 4 5 6          < :6
        > OBJECT ENCODING many           < "hashtable"
        > SADD m 1 2 3                   < :3
        > SADD m a                       < :1
        > OBJECT ENCODING m              < "listpack"
        > SADD m b                       < :1
        > OBJECT ENCODING m              < "hashtable"
        > SADD k 1 2 3 4                 < :4
        > SADD k a                       < :1
        > OBJECT ENCODING k              < "hashtable"
        > SADD l a                       < :1
        > OBJECT ENCODING l              < "listpack"
        > SADD l 6bytes                  < :1
        > OBJECT ENCODING l              < "listpack"
        > SADD l 7.bytes                 < :1
        > OBJECT ENCODING l              < "hashtable"
        > SADD w 1234567                 < :1
        > SADD w a                       < :1
        > OBJECT ENCODING w              < "hashtable"
        > SREM m a b                     < :2
        > SINTERSTORE r n m              < :3
        > OBJECT ENCODING r              < "intset"
        > SUNIONSTORE r l n              < :6
        > OBJECT ENCODING r              < "hashtable"
        > SREM l 7.bytes                 < :1
        > SUNIONSTORE r l                < :2
        > OBJECT ENCODING r              < "listpack"
        > SMOVE l new a                  < :1
        > OBJECT ENCODING new            < "listpack"
        > SADD big a b c d e f g h i j   < :10
        > OBJECT ENCODING big            < "hashtable"
        > SPOP big 2
        > OBJECT ENCODING big            < "hashtable"
        > SPOP big 7
        > OBJECT ENCODING big            < "listpack"
        "#,
    );
}

/// Members in so many sets that another thread computes the result.
#[test]
fn large_set_algebra_is_offloaded() {
    let mut world = World::new();
    let members =
        |from: usize, to: usize| (from..to).map(|number| format!("m{number}")).collect::<Vec<_>>().join(" ");
    for part in 0..30 {
        world.run(&format!("SADD a {}", members(part * 1000, (part + 1) * 1000)));
        world.run(&format!("SADD b {}", members(20_000 + part * 1000, 20_000 + (part + 1) * 1000)));
    }
    world.check(
        r#"
        > SCARD a                        < :30000
        > SUNIONSTORE u a b              < :50000
        > SINTERSTORE i a b              < :10000
        > SINTERCARD 2 a b               < :10000
        > SDIFFSTORE d a b               < :20000
        > SDIFFSTORE d d i               < :20000
        > SINTERSTORE a a u              < :30000
        > SPOP a 25000                   < [*]
        > SCARD a                        < :5000
        > SINTERCARD 2 a u               < :5000
        > SUNION a b                     < [*]
        > SMEMBERS u                     < [*]
        > SRANDMEMBER u 40000            < [*]
        > SRANDMEMBER u -40000           < [*]
        > SSCAN u 0 COUNT 100000         < ["0", [*
        > SPOP u 60000                   < [*]
        > EXISTS u                       < :0
        > SDIFFSTORE u a a               < :0
        "#,
    );
}

#[test]
fn random_member_replies_are_bounded() {
    let mut world = World::new();
    world.configure("proto-max-bulk-len", "1mb");
    world.check(
        r#"
        > SADD s a                       < :1
        > SRANDMEMBER s -9223372036854775807 < -ERR value is out of range
        > SRANDMEMBER s 9223372036854775807  < ["a"]
        > PING                           < PONG
        "#,
    );
}

/// Chi-square of members drawn from ten, by every way of drawing them.
#[test]
fn random_members_are_uniform() {
    let mut world = World::new();
    for members in ["0 1 2 3 4 5 6 7 8 9", "a b c d e f g h i j"] {
        world.run(&format!("SADD s {members}"));
        for (command, drawn) in
            [("SRANDMEMBER s", 1), ("SRANDMEMBER s 1", 1), ("SRANDMEMBER s 4", 4), ("SRANDMEMBER s -4", 4)]
        {
            let mut times = [0u32; 10];
            for _ in 0..2000 / drawn {
                let reply = world.run(command);
                let all = members.split(' ').enumerate();
                for (at, member) in all {
                    times[at] += reply.matches(&format!("\"{member}\"")).count() as u32;
                }
            }
            assert_eq!(times.iter().sum::<u32>(), 2000);
            let chi: f64 = times.iter().map(|times| (f64::from(*times) - 200.0).powi(2) / 200.0).sum();
            // Nine degrees of freedom: a single run in a million has more.
            assert!(chi < 45.0, "{command}: chi-square {chi} of {times:?}");
        }
        let mut first = [0u32; 10];
        for _ in 0..2000 {
            world.run(&format!("SADD t {members}"));
            let reply = world.run("SPOP t 3");
            let all = members.split(' ').enumerate();
            let found =
                all.min_by_key(|(_, member)| reply.find(&format!("\"{member}\"")).unwrap_or(usize::MAX));
            first[found.expect("a member").0] += 1;
            world.run("DEL t");
        }
        let chi: f64 = first.iter().map(|times| (f64::from(*times) - 200.0).powi(2) / 200.0).sum();
        assert!(chi < 45.0, "the first of three popped: chi-square {chi} of {first:?}");
        world.run("DEL s");
    }
}

/// Beyond `set-max-intset-entries`, the reference servers return about COUNT members, so a member that is
/// deleted between two calls is not returned.
#[test]
fn scan_pages_have_the_requested_size() {
    let mut world = World::new();
    let members: Vec<String> = (0..600).map(|number| number.to_string()).collect();
    let fields: Vec<String> = members.iter().map(|member| format!("{member} x")).collect();
    let scored: Vec<String> = members.iter().map(|member| format!("1 {member}")).collect();
    world.run(&format!("SADD integers {}", members.join(" ")));
    world.run(&format!("SADD texts {} text", members.join(" ")));
    world.run(&format!("HSET hash {}", fields.join(" ")));
    world.run(&format!("ZADD zset {}", scored.join(" ")));
    for (command, words) in
        [("SSCAN integers", 10), ("SSCAN texts", 10), ("HSCAN hash", 20), ("ZSCAN zset", 20)]
    {
        let line = format!("{command} 0 COUNT 10");
        let args: Vec<Vec<u8>> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let reply = world.call(&args).expect("a reply");
        let page = reply.as_items().expect("a cursor and a page");
        assert_ne!(page[0].to_string(), "\"0\"", "{command}");
        assert_eq!(page[1].as_items().expect("a page").len(), words, "{command}");
        world.run("SREM integers 1"); // the set remains a set of integers
    }
    world.verify();
}
