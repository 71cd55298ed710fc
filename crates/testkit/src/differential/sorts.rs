//! SORT: every option, over keys that the other families fill, and over lists and sorted sets made for it.
//!
//! The order of equal elements differs between servers. So texts found by patterns, and the order of a set,
//! are only asked for where no elements compare equal. Numbers are only asked for where all of them are
//! valid: Redis 7.0's SORT checks `errno`, and any number that was too large, in whatever command before,
//! makes it refuse the numbers. A BLPOP with an invalid timeout resets `errno` to zero.

use super::make::{Maker, args};
use super::{Args, Family};

#[rustfmt::skip]
pub(super) const FAMILY: Family = Family {
    name: "sorts",
    weight: 25,
    only: None,
    commands: &[(10, sort)],
    scenes: &[(10, of_numbers), (5, in_order), (5, by_texts)],
};

fn name(make: &mut Maker) -> Vec<u8> {
    make.word(&["SORT", "SORT", "SORT_RO"])
}

/// Options with a single outcome for any content.
fn options(make: &mut Maker) -> Args {
    let mut args = args![];
    for _ in 0..make.random.below(5) {
        match make.random.below(6) {
            0 => args.push(make.word(&["ASC", "DESC"])),
            1 => args.extend(limit(make)),
            2 => args.extend(args![make.word(&["GET"]), pattern(make)]),
            3 => args.extend(args![make.word(&["GET"]), make.word(&["#", "nostar", "k*->", "counter"])]),
            4 => args.extend(args![make.word(&["STORE"]), make.key()]),
            _ => {}
        }
    }
    args
}

fn limit(make: &mut Maker) -> Args {
    let number = |make: &mut Maker| {
        if make.chance(85) { make.random.between(-2, 6).to_string().into() } else { make.int() }
    };
    args![make.word(&["LIMIT"]), number(make), number(make)]
}

/// Some of the keys that elements make of these patterns exist.
fn pattern(make: &mut Maker) -> Vec<u8> {
    make.word(&["k*", "k*->f1", "k*->f2", "*", "{tag}*", "w*", "w*->", "k*->f1->"])
}

fn sort(make: &mut Maker) -> Args {
    [args![name(make), make.key(), make.word(&["ALPHA"])], options(make)].concat()
}

/// Small integers, so that patterns lead somewhere, and other numbers; Valkey does not accept all that C
/// does.
fn number(make: &mut Maker) -> Vec<u8> {
    match make.random.below(10) {
        0 => make.word(&[
            "2.5",
            "-0",
            "1e17",
            "-3.25e-2",
            "9223372036854775807",
            "12345678901234567890",
            "-20",
        ]),
        1 => make.word(&["inf", "-inf", "+3", "-.5e1"]),
        2 if make.chance(5) => make.word(&["1 ", "nan", "x", "1_0", "--1"]),
        _ => make.random.between(1, 6).to_string().into(),
    }
}

fn numbers(make: &mut Maker) -> Args {
    (0..=make.random.below(12)).map(|_| number(make)).collect()
}

fn of_numbers(make: &mut Maker) {
    let key = make.key();
    let elements = numbers(make);
    make.command(args!["DEL", key.clone(), "w1", "w3"]);
    make.command([args!["RPUSH", key.clone()], elements].concat());
    let weights =
        args!["MSET", "w1", number(make), "w2", number(make), "w4", number(make), "w5", number(make)];
    make.command(weights);
    make.command(args!["HSET", "w3", "f", "1.5"]);
    let by = match make.random.below(5) {
        0 | 1 => args!["BY", "w*"],
        2 => args!["BY", "w*->f"],
        _ => args![],
    };
    make.command(args!["BLPOP", "nosuch", "never"]);
    let args = [args![name(make), key.clone()], by, options(make)].concat();
    make.command(args);
}

/// Keys with an order of their own, which a pattern without a star asks for.
fn in_order(make: &mut Maker) {
    let key = make.key();
    make.command(args!["DEL", key.clone()]);
    if make.chance(50) {
        let elements = numbers(make);
        make.command([args!["RPUSH", key.clone()], elements].concat());
    } else {
        let members = (0..8).flat_map(|_| args![make.random.below(5).to_string(), number(make)]);
        let members: Args = members.collect();
        make.command([args!["ZADD", key.clone()], members].concat());
    }
    make.command(args!["BLPOP", "nosuch", "never"]);
    let args = [args![name(make), key, "BY", make.word(&["nosort", "#", ""])], options(make)].concat();
    make.command(args);
}

/// Texts that differ, since each element has its own text.
fn by_texts(make: &mut Maker) {
    let key = make.key();
    make.command(args!["DEL", key.clone()]);
    make.command(args!["RPUSH", key.clone(), "1", "2", "3", "4", "5"]);
    make.command(args!["MSET", "w1", "b", "w2", "", "w3", "a\0z", "w4", "ab", "w5", "aa"]);
    if make.chance(50) {
        let gone = make.word(&["w1", "w2", "w3"]);
        make.command(args!["DEL", gone]);
    }
    let args = [args![name(make), key, "ALPHA", "BY", "w*"], options(make)].concat();
    make.command(args);
    make.command(args!["DEL", "w1", "w2", "w3", "w4", "w5"]);
}
