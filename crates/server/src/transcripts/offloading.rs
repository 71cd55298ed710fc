//! Commands on large collections, which are offloaded, against the same commands inside MULTI, which are not.

use crate::testing::World;

/// Elements of each collection: enough for all of these commands to be long.
const ELEMENTS: usize = 30_000;

const KINDS: [&str; 9] = ["list", "hash", "set", "zset", "other", "ints", "stream", "bits", "mask"];

fn fill(world: &mut World) {
    for part in (0..ELEMENTS).step_by(1000) {
        let all = |each: &dyn Fn(usize) -> String| -> String { (part..part + 1000).map(each).collect() };
        let member = |number: usize| number * 7919 % 100_003;
        world.run(&format!("RPUSH list{}", all(&|number| format!(" e{}", number % 5000))));
        world.run(&format!("HSET hash{}", all(&|number| format!(" f{number} v{number}"))));
        world.run(&format!("SADD set{}", all(&|number| format!(" m{}", number * 2))));
        world.run(&format!("ZADD zset{}", all(&|number| format!(" {} m{number}", member(number) % 1000))));
        world.run(&format!("ZADD other{}", all(&|number| format!(" {number} m{}", member(number)))));
    }
    world.run("SADD ints 1 2 3");
    world.run("HSET single f v");
    world.run("ZADD single_zset 1 m");
    for number in 0..ELEMENTS {
        world.run(&format!("XADD stream {}-1 f v{number}", number + 1));
    }
    world.run("XGROUP CREATE stream g 0");
    world.run("XREADGROUP GROUP g alice STREAMS stream >");
}

/// Two long strings, mostly holes, and a short string.
fn fill_strings(world: &mut World) {
    for (key, places) in [("bits", [0, 65_530, 2_000_000]), ("mask", [20_000, 65_533, 5_000_000])] {
        world.run(&format!("SETRANGE {key} 4300000 last"));
        for place in places {
            world.run(&format!("SETRANGE {key} {place} text:{place}"));
        }
    }
    world.run("SET short some-text");
}

fn long_commands(world: &mut World) -> String {
    let info = world.run("INFO stats");
    let from = info.find("long_commands_processed:").expect("INFO has it");
    info[from..].split('\\').next().expect("the rest of the line").to_owned()
}

/// Returns the reply of a long command, and the digest after it.
fn offloaded(world: &mut World, line: &str) -> (String, String) {
    let before = long_commands(world);
    let reply = world.run(line);
    assert_ne!(long_commands(world), before, "{line:?} is done elsewhere");
    (reply, digest(world))
}

fn in_place(world: &mut World, line: &str) -> (String, String) {
    let before = long_commands(world);
    world.run("MULTI");
    world.run(line);
    let all = world.run("EXEC");
    assert_eq!(long_commands(world), before, "{line:?} is done in place");
    let reply = all.strip_prefix('[').and_then(|all| all.strip_suffix(']')).expect("one reply");
    (reply.to_owned(), digest(world))
}

fn digest(world: &mut World) -> String {
    world.verify();
    world.run("DEBUG DIGEST")
}

#[track_caller]
fn check(fill: fn(&mut World), lines: &[&str]) {
    let mut world = World::new();
    fill(&mut world);
    // A clone, in which a change of the collection would show, stays as it was.
    for kind in KINDS {
        world.run(&format!("COPY {kind} {{{kind}}}kept"));
    }
    for line in lines {
        for resp in ["HELLO 2", "HELLO 3"] {
            world.run(resp);
            let one = offloaded(&mut world, line);
            undo(&mut world);
            let other = in_place(&mut world, line);
            undo(&mut world);
            assert!(one.0 == other.0, "{line} replies {:.200}, in place {:.200}", one.0, other.0);
            assert_eq!(one.1, other.1, "what {line} leaves behind");
        }
    }
}

fn undo(world: &mut World) {
    for kind in KINDS {
        world.run(&format!("COPY {{{kind}}}kept {kind} REPLACE"));
    }
    world.run("DEL to");
}

#[test]
fn offloaded_replies() {
    check(
        fill,
        &[
            "LRANGE list 0 -1",
            "LRANGE list 3 29000",
            "LPOS list e4999 COUNT 0",
            "LPOS list e4999 RANK -3",
            "LPOS list none",
            "HGETALL hash",
            "HKEYS hash",
            "HVALS hash",
            "ZRANGE zset 0 -1 WITHSCORES",
            "ZRANGE zset (5 +inf BYSCORE LIMIT 20 29000",
            "ZREVRANGEBYSCORE zset +inf -inf WITHSCORES",
            "ZRANGEBYLEX zset - +",
            "ZUNION 2 zset other WITHSCORES",
            "ZUNION 3 set zset ints WEIGHTS 2 3 4 AGGREGATE MAX WITHSCORES",
            "ZINTER 2 zset other WITHSCORES",
            "ZDIFF 3 zset other ints",
            "ZINTERCARD 2 zset other",
            "ZINTERCARD 2 zset set LIMIT 9000",
            "XRANGE stream - +",
            "XREVRANGE stream + - COUNT 25000",
            "XREAD STREAMS stream 0",
            "XINFO STREAM stream FULL COUNT 0",
            "XPENDING stream g - + 100000",
            "XPENDING stream g IDLE 100000000 - + 1",
            "XPENDING stream g 100-1 25000-1 30000 alice",
            "HSCAN hash 0 COUNT 30000",
            "HSCAN hash 0 MATCH *7* COUNT 1000000 NOVALUES",
            "SSCAN set 0 MATCH *7* COUNT 1000000",
            "ZSCAN zset 0 COUNT 25000 NOSCORES",
            "ZSCAN zset 0 COUNT 1000000",
            "XREAD COUNT 15000 BLOCK 0 STREAMS stream none stream 0 0 9000",
            "HRANDFIELD hash 30000 WITHVALUES",
            "ZRANDMEMBER zset 30000 WITHSCORES",
            "HRANDFIELD single -30000 WITHVALUES",
            "ZRANDMEMBER single_zset -30000",
        ],
    );
}

/// A few of many are picked, many of many are sifted: each once.
#[test]
fn members_at_random_are_different() {
    let mut world = World::new();
    fill(&mut world);
    world.run("HSET hash {hash}extra v");
    for line in ["HRANDFIELD hash 29000", "ZRANDMEMBER zset 29999", "ZRANDMEMBER zset 3"] {
        let before = long_commands(&mut world);
        let reply = world.run(line);
        let mut all: Vec<&str> = reply.trim_matches(['[', ']']).split(", ").collect();
        let wanted: usize = line.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a count");
        assert_eq!(long_commands(&mut world) != before, wanted > 3, "{line}");
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), wanted, "{line}");
    }
}

#[test]
fn offloaded_changes() {
    check(
        fill,
        &[
            "LPOP list 25000",
            "RPOP list 100000",
            "LREM list 0 e77",
            "LREM list -2 e77",
            "LREM list 0 none",
            "LINSERT list BEFORE e4999 new",
            "LINSERT list AFTER e0 new",
            "LINSERT list AFTER none new",
            "LMPOP 2 nosuch list LEFT COUNT 25000",
            "LMOVEM list to LEFT LEFT COUNT 25000 OBO",
            "LMOVEM list to RIGHT LEFT EXACTLY 30000 BULK",
            "ZPOPMIN zset 20000",
            "ZPOPMAX zset 40000",
            "ZMPOP 2 zset other MAX COUNT 20000",
            "ZMPOP 2 nosuch zset MIN COUNT 40000",
            "ZREMRANGEBYRANK zset 5 -5",
            "ZREMRANGEBYSCORE zset 10 (900",
            "ZREMRANGEBYLEX other [m2 (m7",
            "ZRANGESTORE to zset 0 -1",
            "ZRANGESTORE zset zset 10 +inf BYSCORE LIMIT 5 20000",
            "ZUNIONSTORE to 3 zset other ints",
            "ZUNIONSTORE to 3 zset other ints AGGREGATE COUNT",
            "ZUNIONSTORE zset 2 zset set WEIGHTS 2 0.5 AGGREGATE MIN",
            "ZINTERSTORE to 2 zset set",
            "ZDIFFSTORE other 2 other set",
        ],
    );
}

#[test]
fn offloaded_bitops() {
    check(
        fill_strings,
        &[
            "BITOP XOR to bits mask short nosuch",
            "BITOP XOR to bits mask bits mask bits",
            "BITOP OR bits bits mask bits short",
            "BITOP AND to mask bits mask",
            "BITOP NOT mask mask",
            "BITOP DIFF to bits mask short",
            "BITOP DIFF to short bits mask",
            "BITOP DIFF1 to bits mask short",
            "BITOP DIFF1 to short bits mask nosuch",
            "BITOP ANDOR to bits short mask",
            "BITOP ANDOR to short bits mask",
            "BITOP ONE to bits mask bits short short",
            "BITOP ONE to bits mask short nosuch",
        ],
    );
}

#[test]
fn overtaken_offloaded_work_is_retried() {
    let mut world = World::new();
    fill(&mut world);
    fill_strings(&mut world);
    world.run("COPY list stack");
    world.run("COPY zset pile");
    for (line, meanwhile, reply) in [
        ("LREM list 0 e1", "RPUSH list e1", ":7"),
        ("LPOP list 29000", "DEL list", "(nil array)"),
        ("ZREMRANGEBYRANK zset 0 -2", "ZADD zset 0 new", ":30000"),
        ("ZPOPMIN other 20000", "SET other string", "-WRONGTYPE*"),
        ("ZUNIONSTORE to 2 set ints", "SADD ints 4", ":30004"),
        ("ZUNIONSTORE to 2 set ints", "DEL ints", ":30000"),
        ("ZUNIONSTORE to 2 set ints", "SADD ints 4 5", ":30002"),
        ("ZRANGESTORE to set 0 -1", "PING", "-WRONGTYPE*"),
        ("ZMPOP 2 early pile MIN COUNT 20000", "ZADD early 1 m", "[\"early\", [[\"m\", \"1\"]]]"),
        ("ZMPOP 2 nosuch pile MIN COUNT 20000", "DEL pile", "(nil array)"),
        ("LMPOP 2 early stack LEFT COUNT 20000", "RPUSH early e", "[\"early\", [\"e\"]]"),
        ("LMOVEM stack moved LEFT LEFT COUNT 20000 OBO", "SET moved v", "-WRONGTYPE*"),
        ("BITOP OR to bits mask", "SETRANGE bits 5000000 x", ":5000012"),
        ("BITOP OR to bits mask", "DEL mask", ":5000001"),
        ("BITOP ANDOR to bits short", "SETRANGE bits 5000100 x", ":5000101"),
        ("BITOP NOT to bits", "DEL bits", ":0"),
    ] {
        world.type_in("a", line);
        world.run(meanwhile);
        world.check(&format!("a< {reply}"));
        world.verify();
    }
}

/// The digest of a long string is computed without the lock of its slot.
#[test]
fn offloaded_digests() {
    let mut world = World::new();
    world.run("SETRANGE k 30000000 x");
    let digest = offloaded(&mut world, "DIGEST k").0.trim_matches('"').to_owned();
    assert_eq!(in_place(&mut world, "DIGEST k").0, format!("\"{digest}\""));
    assert_eq!(offloaded(&mut world, "DELEX k IFDEQ 1").0, ":0");
    assert_eq!(offloaded(&mut world, &format!("SET k v IFDNE {digest}")).0, "(nil)");
    // A write that comes before the result makes the string another string.
    world.type_in("a", &format!("DELEX k IFDEQ {digest}"));
    world.run("APPEND k y");
    world.check("a< :0\n > SETRANGE k 30000001 \"\" < :30000002");
    world.run("COPY k l");
    let digest = offloaded(&mut world, "DIGEST l").0.trim_matches('"').to_owned();
    world.type_in("a", &format!("SET k v IFDEQ {digest}"));
    world.run("DEL k");
    world.check("a< (nil)");
    assert_eq!(offloaded(&mut world, &format!("DELEX l IFDEQ {digest}")).0, ":1");
    world.check("> EXISTS k l < :0");
    world.verify();
}

/// Short strings cannot be shared, and count as they are in the end.
#[test]
fn short_strings_may_change_while_long_ones_are_combined() {
    let mut world = World::new();
    fill_strings(&mut world);
    for (meanwhile, start) in
        [("PING", "some-text"), ("SET short TEXT", "TEXT\\x00"), ("DEL short", "\\x00\\x00")]
    {
        let before = long_commands(&mut world);
        world.type_in("a", "BITOP XOR to mask short bits bits");
        world.run(meanwhile);
        world.check(&format!("a< :5000012\n > GETRANGE to 0 9 < \"{start}*\""));
        assert_ne!(long_commands(&mut world), before, "it is done elsewhere");
        world.verify();
    }
}
