//! Hashes: every command and option of Redis 7.0, on shared fields and on hashes about to change their
//! encoding.

use super::make::{Maker, args};
use super::{Action, Args, Family};

#[rustfmt::skip]
pub(super) const FAMILY: Family = Family {
    name: "hashes",
    weight: 100,
    only: None,
    commands: &[
        (20, hset), (3, hmset), (4, hsetnx), (8, hget), (5, hmget), (6, hdel), (3, hlen), (3, hstrlen),
        (3, hexists), (2, hkeys), (2, hvals), (4, hgetall), (6, hincrby), (5, hincrbyfloat), (4, hrandfield),
        (4, hscan), (2, encoding),
    ],
    scenes: &[(1, near_the_threshold), (2, walk)],
};

/// Few fields, so that commands meet; some are numbers, and the longest exceeds a `listpack`'s limit.
pub(super) fn field(make: &mut Maker) -> Vec<u8> {
    let name = match make.random.below(20) {
        0 => return make.value(),
        1 => "",
        2 => "a field that is longer than the sixty-four bytes that a small hash takes",
        3 => "7",
        number => ["f1", "f2", "f3", "f4", "f5", "a\r\n\0b"][number % 6],
    };
    name.into()
}

fn fields(make: &mut Maker) -> Args {
    (0..=make.random.below(4)).map(|_| field(make)).collect()
}

fn pairs(make: &mut Maker) -> Args {
    (0..=make.random.below(4)).flat_map(|_| [field(make), make.value()]).collect()
}

fn hset(make: &mut Maker) -> Args {
    [args!["HSET", make.key()], pairs(make)].concat()
}

fn hmset(make: &mut Maker) -> Args {
    [args!["HMSET", make.key()], pairs(make)].concat()
}

fn hsetnx(make: &mut Maker) -> Args {
    args!["HSETNX", make.key(), field(make), make.value()]
}

fn hget(make: &mut Maker) -> Args {
    args!["HGET", make.key(), field(make)]
}

fn hmget(make: &mut Maker) -> Args {
    [args!["HMGET", make.key()], fields(make)].concat()
}

fn hdel(make: &mut Maker) -> Args {
    [args!["HDEL", make.key()], fields(make)].concat()
}

fn hlen(make: &mut Maker) -> Args {
    args!["HLEN", make.key()]
}

fn hstrlen(make: &mut Maker) -> Args {
    args!["HSTRLEN", make.key(), field(make)]
}

fn hexists(make: &mut Maker) -> Args {
    args!["HEXISTS", make.key(), field(make)]
}

fn hkeys(make: &mut Maker) -> Args {
    args!["HKEYS", make.key()]
}

fn hvals(make: &mut Maker) -> Args {
    args!["HVALS", make.key()]
}

fn hgetall(make: &mut Maker) -> Args {
    args!["HGETALL", make.key()]
}

fn hincrby(make: &mut Maker) -> Args {
    args!["HINCRBY", make.key(), field(make), make.int()]
}

fn hincrbyfloat(make: &mut Maker) -> Args {
    args!["HINCRBYFLOAT", make.key(), field(make), make.float()]
}

/// Large negative counts are left out: the reply would have that length.
fn hrandfield(make: &mut Maker) -> Args {
    let mut args = args!["HRANDFIELD", make.key()];
    match make.random.below(10) {
        0..2 => return args,
        2..8 => args.push(make.small_int()),
        8 => args.push(make.word(&[
            "9223372036854775807",
            "-9223372036854775808",
            "9223372036854775808",
            "4294967296",
        ])),
        _ => args.push(make.word(&["", "abc", "1.5", " 1", "-", "+1"])),
    }
    if make.chance(50) {
        args.push(make.word(&["WITHVALUES"]));
    }
    args
}

/// Scans in a single page: the borders of smaller pages differ between servers.
fn hscan(make: &mut Maker) -> Args {
    let mut args = args!["HSCAN", make.key(), "0", "COUNT", "100000"];
    if make.chance(40) {
        args.extend(args![make.word(&["MATCH"]), make.word(&["f*", "*", "f[1-3]", "*b", "nosuch"])]);
    }
    if make.chance(20) {
        args[2] = make.int();
    }
    if make.chance(20) {
        args[4] = make.int();
    }
    if make.chance(10) {
        args.extend(args![make.word(&["TYPE", "nosuch"]), "hash"]);
    }
    args
}

fn encoding(make: &mut Maker) -> Args {
    args!["OBJECT", "ENCODING", make.key()]
}

/// Adds enough fields to make a hash large, then removes most.
fn near_the_threshold(make: &mut Maker) {
    let key = make.key();
    let count = 508 + make.random.below(8);
    let all = (0..count).flat_map(|n| args![format!("field:{n}"), n.to_string()]);
    make.command(args!["HSET", key.clone()].into_iter().chain(all).collect());
    make.command(args!["OBJECT", "ENCODING", key.clone()]);
    let two_more = args!["HSET", key.clone(), field(make), make.value(), field(make), make.value()];
    make.command(two_more);
    make.command(args!["OBJECT", "ENCODING", key.clone()]);
    make.command(args!["HGETALL", key.clone()]);
    let gone = (0..count - 3).map(|n| format!("field:{n}").into_bytes());
    make.command(args!["HDEL", key.clone()].into_iter().chain(gone).collect());
    make.command(args!["OBJECT", "ENCODING", key.clone()]);
    make.command(args!["HGETALL", key]);
}

fn walk(make: &mut Maker) {
    let key = make.key();
    let mut options = args![make.word(&["COUNT"]), make.random.between(1, 300).to_string()];
    if make.chance(50) {
        options.extend(args!["MATCH", make.word(&["f*", "*1*", "nosuch"])]);
    }
    make.step(Action::Walk([args!["HSCAN", key], options].concat()));
}
