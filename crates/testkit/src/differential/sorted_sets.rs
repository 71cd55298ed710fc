//! Sorted sets: every command and option of Redis 7.0, on few members with scores of every kind, and on sets
//! about to change their encoding.
//!
//! Ranges by member are drawn only where all scores are the same, or the set is small: elsewhere the start of
//! such a range is unpredictable in Redis itself. Blocking commands are drawn well-formed only, with a short
//! timeout.

use super::make::{Maker, args};
use super::{Action, Args, Family};
use crate::program::Reference;

#[rustfmt::skip]
pub(super) const FAMILY: Family = Family {
    name: "sorted sets",
    weight: 120,
    only: None,
    commands: &[
        (30, zadd), (6, zincrby), (6, zrem), (3, zcard), (5, zscore), (4, zmscore), (6, zrank), (5, zcount),
        (12, zrange), (6, old_range), (5, zrangestore), (4, zremrange), (5, pop), (4, zmpop),
        (4, zrandmember), (4, zscan), (8, combine),
        (6, combine_and_store), (3, zintercard), (2, encoding),
    ],
    scenes: &[(4, by_member), (1, near_the_threshold), (2, walk), (3, wait), (2, wait_in_multi)],
};

/// Commands and options newer than Redis 7.0.
#[rustfmt::skip]
pub(super) const NEWER: Family = Family {
    name: "sorted-sets-valkey",
    weight: 10,
    only: Some(Reference::Valkey),
    commands: &[(4, rank_with_score), (1, members_by_pages)],
    scenes: &[],
};

/// Few members, so that commands meet; the longest exceeds a `listpack`'s limit.
fn member(make: &mut Maker) -> Vec<u8> {
    let name = match make.random.below(20) {
        0 => return make.value(),
        1 => "",
        2 => "a member that is longer than the sixty-four bytes that a small set takes",
        3 => "7",
        number => ["a", "aa", "b", "c", "d", "a\r\n\0b"][number % 6],
    };
    name.into()
}

fn members(make: &mut Maker) -> Args {
    (0..=make.random.below(4)).map(|_| member(make)).collect()
}

fn score(make: &mut Maker) -> Vec<u8> {
    // Only Redis 7.0 accepts hexadecimal digits, and spaces before the end of a range.
    match make.random.below(20) {
        0..8 => make.random.between(-3, 3).to_string().into(),
        8..12 => format!("{}", make.random.between(-1_000_000, 1_000_000) as f64 / 64.0).into(),
        12 => make.int(),
        13 => make.word(&["0x", "", "1x"]),
        14 => make.word(&["-0", "inf", "-inf", "+inf", "Infinity", "nan"]),
        15 => make.word(&[
            "1e17",
            "1e16",
            "-1e-5",
            "123456789012345678",
            "1.7976931348623157e308",
            "3e-300",
            ".5",
            "1.",
        ]),
        _ => format!("{}.{}", make.random.between(-2, 2), make.random.below(4)).into(),
    }
}

fn pairs(make: &mut Maker) -> Args {
    (0..=make.random.below(4)).flat_map(|_| [score(make), member(make)]).collect()
}

fn zadd(make: &mut Maker) -> Args {
    let mut args = args!["ZADD", make.key()];
    if make.chance(40) {
        for _ in 0..=make.random.below(3) {
            args.push(make.word(&["NX", "XX", "GT", "LT", "CH", "INCR", "XX", "CH"]));
        }
    }
    let is_increment = args.iter().any(|arg| arg.eq_ignore_ascii_case(b"INCR"));
    args.extend(if is_increment && make.chance(80) { args![score(make), member(make)] } else { pairs(make) });
    args
}

fn zincrby(make: &mut Maker) -> Args {
    args!["ZINCRBY", make.key(), score(make), member(make)]
}

fn zrem(make: &mut Maker) -> Args {
    [args!["ZREM", make.key()], members(make)].concat()
}

fn zcard(make: &mut Maker) -> Args {
    args!["ZCARD", make.key()]
}

fn zscore(make: &mut Maker) -> Args {
    args!["ZSCORE", make.key(), member(make)]
}

fn zmscore(make: &mut Maker) -> Args {
    [args!["ZMSCORE", make.key()], members(make)].concat()
}

fn zrank(make: &mut Maker) -> Args {
    args![make.word(&["ZRANK", "ZREVRANK"]), make.key(), member(make)]
}

fn rank_with_score(make: &mut Maker) -> Args {
    args![
        make.word(&["ZRANK", "ZREVRANK"]),
        make.key(),
        member(make),
        make.word(&["WITHSCORE", "WITHSCORES"])
    ]
}

/// A position from either end: mostly within the set.
fn index(make: &mut Maker) -> Vec<u8> {
    if make.chance(85) { make.random.between(-8, 8).to_string().into() } else { make.int() }
}

/// An end of a range of scores.
fn end(make: &mut Maker) -> Vec<u8> {
    match make.random.below(10) {
        0..2 => make.word(&["-inf", "+inf", "inf", "(inf", "(-inf"]),
        2 => make.word(&["", "1\0x", "1 ", "nan", "((1"]),
        3..6 => [b"(", &score(make)[..]].concat(),
        _ => score(make),
    }
}

fn zcount(make: &mut Maker) -> Args {
    args!["ZCOUNT", make.key(), end(make), end(make)]
}

/// In large sets, Valkey counts a negative offset from the end.
fn limit(make: &mut Maker) -> Args {
    args![make.word(&["LIMIT"]), make.random.below(8).to_string(), index(make)]
}

/// ZRANGE and its arguments, or the arguments of ZRANGESTORE from the source on.
fn range(make: &mut Maker, stores: bool) -> Args {
    let by_score = make.chance(50);
    let mut args = if by_score {
        args![make.key(), end(make), end(make), make.word(&["BYSCORE"])]
    } else {
        args![make.key(), index(make), index(make)]
    };
    if make.chance(30) {
        args.push(make.word(&["REV"]));
    }
    if make.chance(if by_score { 40 } else { 5 }) {
        args.extend(limit(make));
    }
    if make.chance(if stores { 5 } else { 40 }) {
        args.push(make.word(&["WITHSCORES"]));
    }
    args
}

fn zrange(make: &mut Maker) -> Args {
    [args!["ZRANGE"], range(make, false)].concat()
}

fn zrangestore(make: &mut Maker) -> Args {
    [args!["ZRANGESTORE", make.key()], range(make, true)].concat()
}

fn old_range(make: &mut Maker) -> Args {
    let mut args = if make.chance(40) {
        args![make.word(&["ZREVRANGE"]), make.key(), index(make), index(make)]
    } else {
        args![make.word(&["ZRANGEBYSCORE", "ZREVRANGEBYSCORE"]), make.key(), end(make), end(make)]
    };
    if make.chance(40) {
        args.push(make.word(&["WITHSCORES"]));
    }
    if make.chance(30) {
        args.extend(limit(make));
    }
    args
}

fn zremrange(make: &mut Maker) -> Args {
    if make.chance(50) {
        args![make.word(&["ZREMRANGEBYRANK"]), make.key(), index(make), index(make)]
    } else {
        args![make.word(&["ZREMRANGEBYSCORE"]), make.key(), end(make), end(make)]
    }
}

fn few(make: &mut Maker) -> Vec<u8> {
    if make.chance(85) { make.random.below(6).to_string().into() } else { make.int() }
}

fn pop(make: &mut Maker) -> Args {
    let mut args = args![make.word(&["ZPOPMIN", "ZPOPMAX"]), make.key()];
    if make.chance(50) {
        args.push(few(make));
    }
    args
}

/// A number of keys, and the keys.
fn counted_keys(make: &mut Maker) -> Args {
    let keys = make.keys(4);
    [args![keys.len().to_string()], keys].concat()
}

fn popped_keys(make: &mut Maker) -> Args {
    [counted_keys(make), args![make.word(&["MIN", "MAX"])]].concat()
}

fn zmpop(make: &mut Maker) -> Args {
    let mut args = [args!["ZMPOP"], popped_keys(make)].concat();
    if make.chance(60) {
        args.extend(args![make.word(&["COUNT"]), few(make)]);
    }
    args
}

/// Large negative counts are left out: the reply would have that length.
fn zrandmember(make: &mut Maker) -> Args {
    let mut args = args!["ZRANDMEMBER", make.key()];
    match make.random.below(10) {
        0..2 => return args,
        2..8 => args.push(make.small_int()),
        8 => args.push(make.word(&["9223372036854775807", "-9223372036854775808", "4294967296"])),
        _ => args.push(make.word(&["", "abc", "1.5", " 1", "-", "+1"])),
    }
    if make.chance(50) {
        args.push(make.word(&["WITHSCORES"]));
    }
    args
}

/// Scans in a single page: the borders of smaller pages differ between servers.
fn zscan(make: &mut Maker) -> Args {
    let mut args = args!["ZSCAN", make.key(), "0", "COUNT", "100000"];
    if make.chance(40) {
        args.extend(args![make.word(&["MATCH"]), make.word(&["a*", "*", "[a-c]", "*b", "nosuch"])]);
    }
    if make.chance(20) {
        args[2] = make.int();
    }
    if make.chance(20) {
        args[4] = make.int();
    }
    args
}

/// The sources, and the way to combine them.
fn sources(make: &mut Maker, is_difference: bool) -> Args {
    let mut args = counted_keys(make);
    if make.chance(if is_difference { 5 } else { 40 }) {
        let weights: Args = (1..args.len()).map(|_| score(make)).collect();
        args.extend([args![make.word(&["WEIGHTS"])], weights].concat());
    }
    if make.chance(if is_difference { 5 } else { 40 }) {
        args.extend(args![make.word(&["AGGREGATE"]), make.word(&["SUM", "MIN", "MAX", "MAX", "AVG"])]);
    }
    args
}

fn combine(make: &mut Maker) -> Args {
    let name = make.word(&["ZUNION", "ZINTER", "ZDIFF"]);
    let is_difference = name.eq_ignore_ascii_case(b"ZDIFF");
    let mut args = [args![name], sources(make, is_difference)].concat();
    if make.chance(60) {
        args.push(make.word(&["WITHSCORES"]));
    }
    args
}

fn combine_and_store(make: &mut Maker) -> Args {
    let name = make.word(&["ZUNIONSTORE", "ZINTERSTORE", "ZDIFFSTORE"]);
    let is_difference = name.eq_ignore_ascii_case(b"ZDIFFSTORE");
    [args![name, make.key()], sources(make, is_difference)].concat()
}

fn zintercard(make: &mut Maker) -> Args {
    let mut args = [args!["ZINTERCARD"], counted_keys(make)].concat();
    if make.chance(50) {
        args.extend(args![make.word(&["LIMIT"]), few(make)]);
    }
    args
}

fn encoding(make: &mut Maker) -> Args {
    args!["OBJECT", "ENCODING", make.key()]
}

/// An end of a range of members.
fn lex(make: &mut Maker) -> Vec<u8> {
    match make.random.below(10) {
        0 => make.word(&["-", "+", "", "a", "-a", "+a", "[", "("]),
        1..3 => make.word(&["-", "+"]),
        3..6 => [b"(", &member(make)[..]].concat(),
        _ => [b"[", &member(make)[..]].concat(),
    }
}

/// A fresh set, whose members either share a score, or have different scores but are few and short.
fn by_member(make: &mut Maker) {
    let key = make.key();
    make.command(args!["DEL", key.clone()]);
    let mixed = make.chance(30);
    for _ in 0..3 + make.random.below(8) {
        let (score, member) = if mixed {
            (make.random.below(4).to_string(), make.word(&["a", "aa", "b", "c", "d", ""]))
        } else {
            ("0".into(), member(make))
        };
        make.command(args!["ZADD", key.clone(), score, member]);
    }
    for _ in 0..make.random.below(8) {
        let (one, other) = (lex(make), lex(make));
        let args = match make.random.below(6) {
            0 => args![make.word(&["ZLEXCOUNT"]), key.clone(), one, other],
            1 => args![make.word(&["ZREMRANGEBYLEX"]), key.clone(), one, other],
            2 => args!["ZRANGESTORE", make.key(), key.clone(), one, other, make.word(&["BYLEX"])],
            3 => args![
                "ZRANGE",
                key.clone(),
                one,
                other,
                "BYLEX",
                make.word(&["REV", "WITHSCORES", "BYSCORE"])
            ],
            _ => args![make.word(&["ZRANGEBYLEX", "ZREVRANGEBYLEX"]), key.clone(), one, other],
        };
        // Redis skips members outside of a range if scores differ.
        let limit = if !mixed && make.chance(20) { limit(make) } else { args![] };
        make.command([args, limit].concat());
    }
}

/// Adds enough members to make a set large, then removes some.
fn near_the_threshold(make: &mut Maker) {
    let key = make.key();
    let count = 124 + make.random.below(6);
    let all = (0..count).flat_map(|n| args![(n % 50).to_string(), format!("member:{n}")]);
    make.command(args!["ZADD", key.clone()].into_iter().chain(all).collect());
    make.command(args!["OBJECT", "ENCODING", key.clone()]);
    let two_more = args!["ZADD", key.clone(), score(make), member(make), score(make), member(make)];
    make.command(two_more);
    make.command(args!["OBJECT", "ENCODING", key.clone()]);
    for _ in 0..make.random.below(6) {
        let (from, to) = (make.random.below(130).to_string(), make.random.between(-130, 130).to_string());
        let args = match make.random.below(6) {
            0 => args!["ZRANGE", key.clone(), from, to, "WITHSCORES"],
            1 => args!["ZRANGE", key.clone(), from, to, "REV"],
            2 => args!["ZREMRANGEBYRANK", key.clone(), from, to],
            3 => args!["ZRANGEBYSCORE", key.clone(), "10", "(20", "WITHSCORES"],
            4 => args!["ZRANK", key.clone(), format!("member:{from}")],
            _ => args!["ZUNIONSTORE", make.key(), "2", key.clone(), make.key(), "WEIGHTS", "1", "-1"],
        };
        make.command(args);
    }
    make.command(args!["ZREMRANGEBYSCORE", key.clone(), "5", "40"]);
    make.command(args!["OBJECT", "ENCODING", key.clone()]);
    make.command(args!["ZRANGE", key, "0", "-1", "WITHSCORES"]);
}

fn members_by_pages(make: &mut Maker) -> Args {
    let mut args = zscan(make);
    args.push(make.word(&["NOSCORES"]));
    args
}

fn walk(make: &mut Maker) {
    let key = make.key();
    let mut options = args![make.word(&["COUNT"]), make.random.between(1, 300).to_string()];
    if make.chance(50) {
        options.extend(args!["MATCH", make.word(&["a*", "*1*", "nosuch"])]);
    }
    make.step(Action::Walk([args!["ZSCAN", key], options].concat()));
}

/// A blocking command with this timeout.
fn waiting(make: &mut Maker, timeout: &str) -> Args {
    if make.chance(60) {
        return [args![make.word(&["BZPOPMIN", "BZPOPMAX"])], make.keys(4), args![timeout]].concat();
    }
    let mut args = [args!["BZMPOP", timeout], popped_keys(make)].concat();
    if make.chance(50) {
        args.extend(args!["COUNT", few(make)]);
    }
    args
}

fn wait(make: &mut Maker) {
    let timeout = ["0.01", "0.001", "1e-3", "-1", "x"][make.random.below(5)];
    let args = waiting(make, timeout);
    make.command(args);
}

fn wait_in_multi(make: &mut Maker) {
    make.command(args!["MULTI"]);
    for _ in 0..make.random.below(3) {
        let args = waiting(make, "0");
        make.command(args);
        let args = zadd(make);
        make.command(args);
    }
    make.command(args!["EXEC"]);
}
