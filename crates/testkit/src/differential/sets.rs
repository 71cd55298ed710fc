//! Sets: every command and option of Redis 7.0, on shared members and on sets about to change their encoding.
//!
//! The members left by SPOP are random, unless it takes everything: it runs only on a key that no other
//! command uses.

use super::make::{Maker, args};
use super::{Action, Args, Family};

#[rustfmt::skip]
pub(super) const FAMILY: Family = Family {
    name: "sets",
    weight: 100,
    only: None,
    commands: &[
        (20, sadd), (8, srem), (6, sismember), (4, smismember), (4, scard), (6, smembers), (8, smove),
        (6, srandmember), (16, combined), (10, stored), (5, sintercard), (4, sscan), (4, encoding),
    ],
    scenes: &[(3, near_the_thresholds), (3, popped), (2, popped_at_once), (2, walk)],
};

/// Few members, so that commands meet: integers of all widths, texts that are nearly integers, other texts,
/// and a member that exceeds a `listpack`'s limit.
pub(super) fn member(make: &mut Maker) -> Vec<u8> {
    match make.random.below(12) {
        0..6 => make.random.between(-3, 20).to_string().into(),
        6 => make.int(),
        7 => make.value(),
        8 => make.word(&["32767", "32768", "-32769", "2147483647", "2147483648", "-2147483649"]),
        9 => b"a member that is longer than the sixty-four bytes which a small set takes".into(),
        _ => make.word(&["a", "b", "c", "d", "", "a\r\n\0b"]),
    }
}

fn members(make: &mut Maker, count_max: usize) -> Args {
    // Often integers alone, which have an encoding of their own.
    if make.chance(40) {
        return (0..=make.random.below(count_max)).map(|_| make.small_int()).collect();
    }
    (0..=make.random.below(count_max)).map(|_| member(make)).collect()
}

fn sadd(make: &mut Maker) -> Args {
    // More than 16 integers are no intset here.
    let count_max = if make.chance(10) { 30 } else { 6 };
    [args!["SADD", make.key()], members(make, count_max)].concat()
}

fn srem(make: &mut Maker) -> Args {
    [args!["SREM", make.key()], members(make, 6)].concat()
}

fn sismember(make: &mut Maker) -> Args {
    args!["SISMEMBER", make.key(), member(make)]
}

fn smismember(make: &mut Maker) -> Args {
    [args!["SMISMEMBER", make.key()], members(make, 5)].concat()
}

fn scard(make: &mut Maker) -> Args {
    args!["SCARD", make.key()]
}

fn smembers(make: &mut Maker) -> Args {
    args!["SMEMBERS", make.key()]
}

fn smove(make: &mut Maker) -> Args {
    args!["SMOVE", make.key(), make.key(), member(make)]
}

/// Large negative counts are left out: the reply would have that length.
fn srandmember(make: &mut Maker) -> Args {
    let mut args = args!["SRANDMEMBER", make.key()];
    match make.random.below(10) {
        0..2 => {}
        2..8 => args.push(make.small_int()),
        8 => args.push(make.word(&["9223372036854775807", "-9223372036854775808", "9223372036854775808"])),
        _ => args.push(make.word(&["", "abc", "1.5", " 1", "-", "+1"])),
    }
    args
}

fn combined(make: &mut Maker) -> Args {
    [args![make.word(&["SINTER", "SUNION", "SDIFF"])], make.keys(4)].concat()
}

fn stored(make: &mut Maker) -> Args {
    [args![make.word(&["SINTERSTORE", "SUNIONSTORE", "SDIFFSTORE"]), make.key()], make.keys(4)].concat()
}

fn sintercard(make: &mut Maker) -> Args {
    let keys = make.keys(3);
    let count = if make.chance(85) { keys.len().to_string().into() } else { make.int() };
    let mut args = [args!["SINTERCARD", count], keys].concat();
    for _ in 0..make.random.below(3) {
        args.push(make.word(&["LIMIT", "LIMIT", "LIMIT", "nonsense"]));
        if make.chance(90) {
            args.push(if make.chance(70) { make.small_int() } else { make.int() });
        }
    }
    args
}

/// Scans in a single page: the borders of smaller pages differ between servers.
fn sscan(make: &mut Maker) -> Args {
    let mut args = args!["SSCAN", make.key(), "0", "COUNT", "100000"];
    if make.chance(40) {
        args.extend(args![make.word(&["MATCH"]), make.word(&["1*", "*", "[1-3]", "*b", "nosuch"])]);
    }
    if make.chance(20) {
        args[2] = make.int();
    }
    if make.chance(20) {
        args[4] = make.int();
    }
    if make.chance(10) {
        args.extend(args![make.word(&["TYPE", "nosuch"]), "set"]);
    }
    args
}

fn encoding(make: &mut Maker) -> Args {
    args!["OBJECT", "ENCODING", make.key()]
}

/// Adds enough members to change the encoding of a set, with a single command or with many, and combines the
/// result.
fn near_the_thresholds(make: &mut Maker) {
    let (key, other) = (make.key(), make.key());
    let text = make.word(&["", "", "m"]);
    let count = match make.random.below(4) {
        0 => 505 + make.random.below(15),
        1 => 120 + make.random.below(16),
        _ => 6 + make.random.below(16),
    };
    let all: Args = (0..count).map(|n| [&text[..], n.to_string().as_bytes()].concat()).collect();
    make.command(args!["DEL", key.clone()]);
    if count < 30 && make.chance(50) {
        all.iter().for_each(|member| make.command(args!["SADD", key.clone(), &member[..]]));
    } else {
        make.command([args!["SADD", key.clone()], all.clone()].concat());
    }
    make.command(args!["OBJECT", "ENCODING", key.clone()]);
    let more = [args!["SADD", key.clone()], members(make, 3)].concat();
    make.command(more);
    make.command(args!["OBJECT", "ENCODING", key.clone()]);
    let stored = make.word(&["SINTERSTORE", "SUNIONSTORE", "SDIFFSTORE"]);
    let made = args![stored, other.clone(), key.clone(), make.key(), make.key()];
    make.command(made);
    make.command(args!["OBJECT", "ENCODING", other.clone()]);
    make.command(args!["SMEMBERS", other]);
    let gone = all.into_iter().skip(3);
    make.command(args!["SREM", key.clone()].into_iter().chain(gone).collect());
    make.command(args!["OBJECT", "ENCODING", key.clone()]);
    make.command(args!["SMEMBERS", key]);
}

/// SPOP of all members, or of none.
fn popped_at_once(make: &mut Maker) {
    let key = make.key();
    let count = make.word(&["0", "9223372036854775807", "100000", "-1", "abc", "", "9223372036854775808"]);
    make.command(args!["SPOP", key.clone(), count]);
    make.command(args!["EXISTS", key]);
}

/// SPOP of some members, after which only the number of members left is comparable.
fn popped(make: &mut Maker) {
    const KEY: &str = "popped";
    let count = 1 + make.random.below(40);
    let all = (0..count).map(|n| format!("m{n}").into_bytes());
    make.command(args!["DEL", KEY]);
    make.command(args!["SADD", KEY].into_iter().chain(all).collect());
    for _ in 0..=make.random.below(3) {
        let mut spop = args!["SPOP", KEY];
        if make.chance(70) {
            spop.push(make.random.below(count).to_string().into());
        }
        make.command(spop);
        make.command(args!["SCARD", KEY]);
        make.command(args!["OBJECT", "ENCODING", KEY]);
    }
    make.command(args!["DEL", KEY]);
}

fn walk(make: &mut Maker) {
    let key = make.key();
    let mut options = args![make.word(&["COUNT"]), make.random.between(1, 300).to_string()];
    if make.chance(50) {
        options.extend(args!["MATCH", make.word(&["m*", "*1*", "nosuch"])]);
    }
    make.step(Action::Walk([args!["SSCAN", key], options].concat()));
}
