//! State of a connection: its protocol, its name, small talk, and commands typed as lines.

use super::make::{Maker, args};
use super::{Action, Args, Family};
use crate::program::Reference;

#[rustfmt::skip]
pub(super) const FAMILY: Family = Family {
    name: "connection",
    weight: 10,
    only: None,
    commands: &[(5, ping), (3, echo), (6, hello), (4, client), (1, reset), (1, time)],
    scenes: &[(10, typed)],
};

/// Each byte may take four characters (`\xff`), and a line has at most 64 KiB.
const TYPED_BYTES_MAX: usize = 8 * 1024;

fn ping(make: &mut Maker) -> Args {
    if make.chance(50) { args!["PING"] } else { args!["PING", make.value()] }
}

fn echo(make: &mut Maker) -> Args {
    args!["ECHO", make.value()]
}

fn hello(make: &mut Maker) -> Args {
    let mut args = args!["HELLO"];
    if make.chance(90) {
        args.push(make.word(&["2", "3", "2", "3", "4", "1", "abc", "-1"]));
    }
    match make.random.below(10) {
        0 => args.extend(args![make.word(&["SETNAME"]), make.word(&["me", "two words", ""])]),
        // Redis 8.2.3 leaves some refused ones within a pipeline unanswered.
        1 if make.oracle == Reference::Redis8 => {}
        1 => args.extend(args![make.word(&["AUTH"]), "default", make.word(&["", "wrong"])]),
        2 => args.push(make.word(&["SETNAME", "AUTH", "nonsense"])),
        _ => {}
    }
    args
}

fn client(make: &mut Maker) -> Args {
    match make.random.below(6) {
        0 => args![
            "CLIENT",
            make.word(&["SETNAME"]),
            make.word(&["me", "other", "two words", "", "line\nend"])
        ],
        1 => args!["CLIENT", make.word(&["GETNAME"])],
        2 => args!["CLIENT", make.word(&["NO-EVICT"]), make.word(&["ON", "OFF", "MAYBE"])],
        3 => args!["CLIENT", make.word(&["ID"])],
        4 => args!["CLIENT", make.word(&["UNBLOCK"]), make.word(&["0", "abc", "999999999"])],
        _ => args!["CLIENT", make.word(&["NOSUCH", "KILL", "LIST"]), "x"],
    }
}

fn reset(_: &mut Maker) -> Args {
    args!["RESET"]
}

fn time(_: &mut Maker) -> Args {
    args!["TIME"]
}

fn typed(make: &mut Maker) {
    let args = make.any_command();
    let short = args.iter().map(Vec::len).sum::<usize>() <= TYPED_BYTES_MAX;
    make.step(if short { Action::Inline(args) } else { Action::Command(args) });
}
