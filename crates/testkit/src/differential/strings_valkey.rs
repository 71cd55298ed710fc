//! Strings: commands that, of the reference servers, only Valkey has.

use super::make::{Maker, args};
use super::strings::expiration;
use super::{Args, Family};
use crate::program::Reference;

#[rustfmt::skip]
pub(super) const FAMILY: Family = Family {
    name: "strings-valkey",
    weight: 30,
    only: Some(Reference::Valkey),
    commands: &[(6, set_if_equal), (4, delete_if_equal), (4, msetex)],
    scenes: &[(4, compare_and_set)],
};

fn set_if_equal(make: &mut Maker) -> Args {
    let mut args = args!["SET", make.key(), make.value(), make.word(&["IFEQ"]), make.value()];
    if make.chance(30) {
        args.push(make.word(&["GET", "NX", "XX"]));
    }
    if make.chance(30) {
        args.extend(expiration(make, true));
    }
    args
}

fn delete_if_equal(make: &mut Maker) -> Args {
    args!["DELIFEQ", make.key(), make.value()]
}

fn msetex(make: &mut Maker) -> Args {
    let pairs = make.pairs(3);
    let count = if make.chance(90) { (pairs.len() / 2).to_string().into() } else { make.int() };
    let mut args = [args!["MSETEX", count], pairs].concat();
    if make.chance(40) {
        args.push(make.word(&["NX", "XX"]));
    }
    if make.chance(60) {
        args.extend(expiration(make, true));
    }
    args
}

/// A comparison that holds: a random comparison nearly never does.
fn compare_and_set(make: &mut Maker) {
    let (key, value, next) = (make.key(), make.value(), make.value());
    make.command(args!["SET", key.clone(), value.clone()]);
    if make.chance(50) {
        make.command(args!["SET", key.clone(), next, "IFEQ", value]);
    } else {
        make.command(args!["DELIFEQ", key.clone(), value]);
    }
    make.command(args!["GET", key]);
}
