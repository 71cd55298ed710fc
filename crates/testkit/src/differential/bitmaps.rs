//! Bitmaps and BITFIELD. Offsets are small or beyond the limit: offsets between, up to half a gigabyte, are
//! legal and would be allocated.

use super::make::{Maker, args};
use super::{Args, Family};
use crate::program::Reference;

#[rustfmt::skip]
pub(super) const FAMILY: Family = Family {
    name: "bitmaps",
    weight: 50,
    only: None,
    commands: &[(6, setbit), (5, getbit), (5, bitcount), (5, bitpos), (5, bitop), (10, bitfield),
        (3, bitfield_ro)],
    scenes: &[],
};

fn offset(make: &mut Maker) -> Vec<u8> {
    match make.random.below(20) {
        0 => make.int(),
        1 => make.random.between(0, 5_000).to_string().into(),
        _ => make.random.between(0, 100).to_string().into(),
    }
}

fn setbit(make: &mut Maker) -> Args {
    args!["SETBIT", make.key(), offset(make), make.word(&["0", "1", "1", "1", "0", "1", "2", "x"])]
}

fn getbit(make: &mut Maker) -> Args {
    args!["GETBIT", make.key(), offset(make)]
}

fn range(make: &mut Maker) -> Args {
    let mut args = args![make.int(), make.int()];
    if make.chance(60) {
        args.push(make.word(&["BYTE", "BIT", "BIT", "BYTE", "BITS"]));
    }
    args
}

fn bitcount(make: &mut Maker) -> Args {
    let mut args = args!["BITCOUNT", make.key()];
    match make.random.below(10) {
        0..3 => {}
        // Redis wants an end.
        3 if make.oracle == Reference::Valkey => args.push(make.int()),
        3 => {}
        _ => args.extend(range(make)),
    }
    args
}

fn bitpos(make: &mut Maker) -> Args {
    let mut args = args!["BITPOS", make.key(), make.word(&["0", "1", "0", "1", "0", "1", "2"])];
    match make.random.below(4) {
        0 => {}
        1 => args.push(make.int()),
        _ => args.extend(range(make)),
    }
    args
}

fn bitop(make: &mut Maker) -> Args {
    let operation = make.word(&["AND", "OR", "XOR", "NOT", "NOT", "NAND"]);
    let sources = if operation.eq_ignore_ascii_case(b"NOT") && make.chance(80) { 1 } else { 4 };
    [args!["BITOP", operation, make.key()], make.keys(sources)].concat()
}

fn bitfield(make: &mut Maker) -> Args {
    let mut args = args!["BITFIELD", make.key()];
    for _ in 0..make.random.below(5) {
        match make.random.below(10) {
            0..3 => args.extend(args![make.word(&["GET"]), field_type(make), field_offset(make)]),
            3..6 => args.extend(args![make.word(&["SET"]), field_type(make), field_offset(make), make.int()]),
            6..9 => {
                args.extend(args![make.word(&["INCRBY"]), field_type(make), field_offset(make), make.int()])
            }
            _ => args.extend(args![
                make.word(&["OVERFLOW"]),
                make.word(&["WRAP", "SAT", "FAIL", "WRAP", "SAT", "FAIL", "X"])
            ]),
        }
    }
    args
}

fn bitfield_ro(make: &mut Maker) -> Args {
    let mut args = args!["BITFIELD_RO", make.key()];
    for _ in 0..make.random.below(4) {
        let verb = make.word(&["GET", "GET", "GET", "GET", "GET", "SET", "OVERFLOW"]);
        args.extend(args![verb, field_type(make), field_offset(make)]);
    }
    args
}

fn field_type(make: &mut Maker) -> Vec<u8> {
    match make.random.below(20) {
        0 => make.word(&["u64", "i65", "u0", "x8", "i", "8", "i-1", "u8x"]),
        1..8 => make.word(&["u1", "i1", "u8", "i8", "u16", "i16", "u32", "i32", "u63", "i64"]),
        _ => format!("{}{}", make.random.pick(&["u", "i"]), make.random.between(1, 63)).into(),
    }
}

fn field_offset(make: &mut Maker) -> Vec<u8> {
    match make.random.below(20) {
        0 => make.word(&[
            "-1",
            "#-1",
            "#",
            "abc",
            "4294967296",
            "#9223372036854775807",
            "9223372036854775807",
            "# 1",
        ]),
        1..6 => format!("#{}", make.random.below(12)).into(),
        _ => make.random.between(0, 120).to_string().into(),
    }
}
