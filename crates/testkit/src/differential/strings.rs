//! Strings: every command and option of Redis 7.0.

use super::make::{Maker, args};
use super::{Args, Family};

#[rustfmt::skip]
pub(super) const FAMILY: Family = Family {
    name: "strings",
    weight: 100,
    only: None,
    commands: &[
        (12, get), (16, set), (4, set_with_anything), (3, setnx), (3, setex), (2, psetex), (3, getset),
        (3, getdel), (4, getex), (4, mget), (4, mset), (3, msetnx), (6, append), (4, strlen), (6, incr),
        (6, incrby), (6, incrbyfloat),
        (5, getrange), (5, setrange), (4, lcs),
    ],
    scenes: &[],
};

fn get(make: &mut Maker) -> Args {
    args!["GET", make.key()]
}

fn set(make: &mut Maker) -> Args {
    let mut args = args!["SET", make.key(), make.value()];
    if make.chance(30) {
        args.push(make.word(&["NX", "XX"]));
    }
    if make.chance(20) {
        args.push(make.word(&["GET"]));
    }
    if make.chance(30) {
        args.extend(expiration(make, true));
    }
    args
}

/// Options in any order and number: most such commands are refused, and the error texts matter.
fn set_with_anything(make: &mut Maker) -> Args {
    let mut args = args!["SET", make.key(), make.value()];
    for _ in 0..=make.random.below(4) {
        match make.random.below(3) {
            0 => args.extend(expiration(make, true)),
            _ => args.push(make.word(&["NX", "XX", "GET", "KEEPTTL", "PERSIST", "nonsense", "IFGT"])),
        }
    }
    args
}

pub(super) fn expiration(make: &mut Maker, keep: bool) -> Args {
    match make.random.below(10) {
        0..3 => args![make.word(&["EX"]), make.seconds_to_live()],
        3..5 => args![make.word(&["PX"]), make.ms_to_live()],
        5..7 => args![make.word(&["EXAT"]), make.moment_s()],
        7..9 => args![make.word(&["PXAT"]), make.moment_ms()],
        _ if keep => args![make.word(&["KEEPTTL"])],
        _ => args![make.word(&["PERSIST"])],
    }
}

fn setnx(make: &mut Maker) -> Args {
    args!["SETNX", make.key(), make.value()]
}

fn setex(make: &mut Maker) -> Args {
    args!["SETEX", make.key(), make.seconds_to_live(), make.value()]
}

fn psetex(make: &mut Maker) -> Args {
    args!["PSETEX", make.key(), make.ms_to_live(), make.value()]
}

fn getset(make: &mut Maker) -> Args {
    args!["GETSET", make.key(), make.value()]
}

fn getdel(make: &mut Maker) -> Args {
    args!["GETDEL", make.key()]
}

fn getex(make: &mut Maker) -> Args {
    let mut args = args!["GETEX", make.key()];
    if make.chance(80) {
        args.extend(expiration(make, false));
    }
    args
}

fn mget(make: &mut Maker) -> Args {
    [args!["MGET"], make.keys(6)].concat()
}

fn mset(make: &mut Maker) -> Args {
    [args!["MSET"], make.pairs(4)].concat()
}

fn msetnx(make: &mut Maker) -> Args {
    [args!["MSETNX"], make.pairs(3)].concat()
}

fn append(make: &mut Maker) -> Args {
    args!["APPEND", make.key(), make.value()]
}

fn strlen(make: &mut Maker) -> Args {
    args!["STRLEN", make.key()]
}

fn incr(make: &mut Maker) -> Args {
    args![make.word(&["INCR", "DECR"]), make.key()]
}

fn incrby(make: &mut Maker) -> Args {
    args![make.word(&["INCRBY", "DECRBY"]), make.key(), make.int()]
}

fn incrbyfloat(make: &mut Maker) -> Args {
    args!["INCRBYFLOAT", make.key(), make.float()]
}

fn getrange(make: &mut Maker) -> Args {
    args![make.word(&["GETRANGE", "SUBSTR"]), make.key(), make.int(), make.int()]
}

fn setrange(make: &mut Maker) -> Args {
    args!["SETRANGE", make.key(), make.int(), make.value()]
}

fn lcs(make: &mut Maker) -> Args {
    let mut args = args!["LCS", make.key(), make.key()];
    for _ in 0..make.random.below(4) {
        match make.random.below(4) {
            0 => args.extend(args![make.word(&["MINMATCHLEN"]), make.int()]),
            _ => args.push(make.word(&["LEN", "IDX", "IDX", "WITHMATCHLEN"])),
        }
    }
    args
}
