//! Times to live: setting them under conditions, reading them, losing them, and keys that end.

use super::make::{Maker, args};
use super::{Action, Args, Family};

#[rustfmt::skip]
pub(super) const FAMILY: Family = Family {
    name: "expiry",
    weight: 50,
    only: None,
    commands: &[(10, expire), (6, ttl), (4, persist), (2, get_again)],
    scenes: &[(1, expiry_within_a_millisecond)],
};

fn expire(make: &mut Maker) -> Args {
    let mut args = match make.random.below(4) {
        0 => args!["EXPIRE", make.key(), make.seconds_to_live()],
        1 => args!["PEXPIRE", make.key(), make.ms_to_live()],
        2 => args!["EXPIREAT", make.key(), make.moment_s()],
        _ => args!["PEXPIREAT", make.key(), make.moment_ms()],
    };
    if make.chance(50) {
        args.push(make.word(&["NX", "XX", "GT", "LT"]));
        if make.chance(10) {
            args.push(make.word(&["NX", "XX", "GT", "LT", "no"]));
        }
    }
    args
}

fn ttl(make: &mut Maker) -> Args {
    args![make.word(&["TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME"]), make.key()]
}

fn persist(make: &mut Maker) -> Args {
    args!["PERSIST", make.key()]
}

/// The next TTL shows whether a command keeps a time to live or clears it.
fn get_again(make: &mut Maker) -> Args {
    args![make.word(&["GET", "EXISTS", "TYPE"]), make.key()]
}

/// Asks for the key right after its end: until then no command of another step may depend on the key's
/// presence.
fn expiry_within_a_millisecond(make: &mut Maker) {
    let key = args!["brief"];
    match make.random.below(3) {
        0 => make.command([args!["SET"], key.clone(), args!["v", "PX", "1"]].concat()),
        1 => {
            make.command([args!["SET"], key.clone(), args!["v"]].concat());
            make.command([args!["PEXPIRE"], key.clone(), args!["1"]].concat());
        }
        _ => make.command([args!["PSETEX"], key.clone(), args!["1", "v"]].concat()),
    }
    make.step(Action::PauseMs(3));
    let question =
        make.word(&["GET", "TTL", "PTTL", "EXISTS", "TYPE", "GETDEL", "STRLEN", "PERSIST", "INCR"]);
    make.command([vec![question], key.clone()].concat());
    make.command([args!["DEL"], key].concat());
}
