//! Transactions on one connection while the other writes, watched keys, and everything that may not be
//! queued.

use super::make::{Maker, args};
use super::{Args, Family};
use crate::program::Reference;

#[rustfmt::skip]
pub(super) const FAMILY: Family = Family {
    name: "transactions",
    weight: 12,
    only: None,
    commands: &[(1, unwatch)],
    scenes: &[(10, transaction), (2, watch_alone), (1, out_of_place)],
};

fn watch(make: &mut Maker) -> Args {
    [args!["WATCH"], make.keys(3)].concat()
}

fn unwatch(_: &mut Maker) -> Args {
    args!["UNWATCH"]
}

fn watch_alone(make: &mut Maker) {
    let args = watch(make);
    make.command(args);
}

fn out_of_place(make: &mut Maker) {
    let args = args![make.word(&["EXEC", "DISCARD"])];
    make.command(args);
}

fn transaction(make: &mut Maker) {
    if make.chance(50) {
        let args = watch(make);
        make.command(args);
        between_watch_and_multi(make);
    }
    make.command(args!["MULTI"]);
    for _ in 0..make.random.below(7) {
        let args = queued(make);
        make.command(args);
        if make.chance(5) {
            other_connection_writes(make);
        }
    }
    let end =
        if make.chance(85) { "EXEC" } else { make.random.pick(&["DISCARD", "RESET", "exec", "EXEC extra"]) };
    make.command(end.split(' ').map(|word| word.into()).collect());
    make.command(args!["DISCARD"]); // a refused end must not leave the rest of the episode queued
}

fn between_watch_and_multi(make: &mut Maker) {
    if make.chance(50) {
        other_connection_writes(make);
    }
    if make.chance(20) {
        let args = make.any_command();
        make.command(args);
    }
}

fn other_connection_writes(make: &mut Maker) {
    let this = make.switch();
    let args = match make.random.below(6) {
        0 => args!["SET", make.key(), make.value()],
        1 => [args!["DEL"], make.keys(2)].concat(),
        2 => args!["SWAPDB", "0", "1"],
        3 => args!["FLUSHDB"],
        _ => make.any_command(),
    };
    make.command(args);
    make.go_on_with(this);
}

fn queued(make: &mut Maker) -> Args {
    // Redis refuses MULTI and WATCH and goes on, Valkey aborts the transaction.
    let aborts = make.oracle == Reference::Valkey;
    match make.random.below(40) {
        0 if aborts => args!["MULTI"],
        1 if aborts => watch(make),
        2 => args!["NOSUCH", "x"],
        3 => args!["GET"],
        4 => args!["HELLO", "3"],
        _ => make.any_command(),
    }
}
