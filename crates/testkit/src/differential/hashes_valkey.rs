//! Hashes: commands that, of the reference servers, only Valkey has: fields that expire.

use super::hashes::field;
use super::make::{Maker, args};
use super::strings::expiration;
use super::{Action, Args, Family};
use crate::program::Reference;

#[rustfmt::skip]
pub(super) const FAMILY: Family = Family {
    name: "hashes-valkey",
    weight: 60,
    only: Some(Reference::Valkey),
    commands: &[(10, hexpire), (6, httl), (4, hpersist), (6, hgetex), (8, hsetex), (4, hgetdel), (2, hscan)],
    scenes: &[(2, deadlines_of_all), (1, expiry_within_a_millisecond)],
};

/// The word FIELDS, a count that is nearly always right, and fields.
fn fields(make: &mut Maker, with_values: bool) -> Args {
    let fields: Vec<Args> = (0..=make.random.below(4))
        .map(|_| if with_values { args![field(make), make.value()] } else { args![field(make)] })
        .collect();
    let count = if make.chance(92) { fields.len().to_string().into() } else { make.int() };
    let word =
        if make.chance(97) { make.word(&["FIELDS"]) } else { make.word(&["FIELD", "fields", "", "NX"]) };
    [args![word, count], fields.concat()].concat()
}

fn hexpire(make: &mut Maker) -> Args {
    let mut args = match make.random.below(4) {
        0 => args!["HEXPIRE", make.key(), make.seconds_to_live()],
        1 => args!["HPEXPIRE", make.key(), make.ms_to_live()],
        2 => args!["HEXPIREAT", make.key(), make.moment_s()],
        _ => args!["HPEXPIREAT", make.key(), make.moment_ms()],
    };
    if make.chance(50) {
        args.push(make.word(&["NX", "XX", "GT", "LT"]));
        if make.chance(10) {
            args.push(make.word(&["NX", "XX", "GT", "LT", "no"]));
        }
    }
    [args, fields(make, false)].concat()
}

fn httl(make: &mut Maker) -> Args {
    let name = make.word(&["HTTL", "HPTTL", "HEXPIRETIME", "HPEXPIRETIME"]);
    [args![name, make.key()], fields(make, false)].concat()
}

fn hpersist(make: &mut Maker) -> Args {
    [args!["HPERSIST", make.key()], fields(make, false)].concat()
}

fn hgetex(make: &mut Maker) -> Args {
    let mut args = args!["HGETEX", make.key()];
    if make.chance(80) {
        args.extend(expiration(make, false));
    }
    if make.chance(5) {
        args.push(make.word(&["PERSIST", "KEEPTTL", "NX", "FNX", "no"]));
    }
    [args, fields(make, false)].concat()
}

fn hsetex(make: &mut Maker) -> Args {
    let mut args = args!["HSETEX", make.key()];
    if make.chance(30) {
        args.push(make.word(&["NX", "XX", "FNX", "FXX"]));
    }
    if make.chance(60) {
        args.extend(expiration(make, true));
    }
    if make.chance(10) {
        args.push(make.word(&["NX", "XX", "FNX", "FXX", "KEEPTTL", "PERSIST"]));
    }
    [args, fields(make, true)].concat()
}

fn hgetdel(make: &mut Maker) -> Args {
    [args!["HGETDEL", make.key()], fields(make, false)].concat()
}

fn hscan(make: &mut Maker) -> Args {
    args!["HSCAN", make.key(), "0", "COUNT", "100000", make.word(&["NOVALUES"])]
}

/// Asks for all deadlines of a hash.
fn deadlines_of_all(make: &mut Maker) {
    let key = make.key();
    let fields = args!["f1", "f2", "f3", "f4", "f5", ""];
    make.command([args!["HEXPIRETIME", key, "FIELDS", "6"], fields].concat());
}

/// Asks for fields right after their end. HLEN may still count them then, and the key may exist without any
/// field.
fn expiry_within_a_millisecond(make: &mut Maker) {
    let key = args!["brief"];
    let set = |name: &str, rest: Args| [args![name], key.clone(), rest].concat();
    make.command(set("HSET", args!["stays", "5"]));
    make.command(set("HSETEX", args!["PX", "1", "FIELDS", "2", "a", "1", "b", "2"]));
    make.step(Action::PauseMs(3));
    let question = match make.random.below(12) {
        0 => set("HGET", args!["a"]),
        1 => set("HGETALL", args![]),
        2 => set("HKEYS", args![]),
        3 => set("HINCRBY", args!["a", "5"]),
        4 => set("HSETNX", args!["a", "5"]),
        5 => set("HDEL", args!["a", "b"]),
        6 => set("HRANDFIELD", args!["5"]),
        7 => set("HSCAN", args!["0"]),
        8 => set("HPERSIST", args!["FIELDS", "2", "a", "stays"]),
        9 => set("HEXPIRE", args!["1000", "FIELDS", "2", "a", "stays"]),
        10 => set("HSETEX", args!["FNX", "FIELDS", "1", "a", "5"]),
        _ => set("HGETDEL", args!["FIELDS", "2", "a", "stays"]),
    };
    make.command(question);
    make.command(set("HGETALL", args![]));
    // SET makes sure that the key exists: the reply of DEL must not depend on timing.
    make.command(set("SET", args!["v"]));
    make.command(set("DEL", args![]));
}
