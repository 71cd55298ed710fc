//! Commands on keys as such: their existence, their names and their databases.

use super::make::{Maker, args};
use super::{Action, Args, Family};

#[rustfmt::skip]
pub(super) const FAMILY: Family = Family {
    name: "keyspace",
    weight: 60,
    only: None,
    commands: &[
        (6, del), (4, exists), (3, type_), (3, touch), (6, rename), (5, copy), (4, move_), (5, select),
        (1, swapdb), (2, keys), (1, randomkey), (4, object), (1, flush), (1, memory), (2, bad_scan),
    ],
    scenes: &[(4, walk), (2, dbsize)],
};

/// Mostly three databases, so that keys meet; sometimes a database that does not exist.
fn database(make: &mut Maker) -> Vec<u8> {
    match make.random.below(12) {
        0 => make.word(&["15", "16", "-1", "abc", "99999999999", "", "1.0"]),
        _ => make.word(&["0", "0", "0", "1", "2"]),
    }
}

fn del(make: &mut Maker) -> Args {
    [args![make.word(&["DEL", "UNLINK"])], make.keys(3)].concat()
}

fn exists(make: &mut Maker) -> Args {
    [args!["EXISTS"], make.keys(4)].concat()
}

fn type_(make: &mut Maker) -> Args {
    args!["TYPE", make.key()]
}

fn touch(make: &mut Maker) -> Args {
    [args!["TOUCH"], make.keys(4)].concat()
}

fn rename(make: &mut Maker) -> Args {
    args![make.word(&["RENAME", "RENAMENX"]), make.key(), make.key()]
}

fn copy(make: &mut Maker) -> Args {
    let mut args = args!["COPY", make.key(), make.key()];
    if make.chance(40) {
        args.extend(args![make.word(&["DB"]), database(make)]);
    }
    if make.chance(40) {
        args.push(make.word(&["REPLACE"]));
    }
    args
}

fn move_(make: &mut Maker) -> Args {
    args!["MOVE", make.key(), database(make)]
}

fn select(make: &mut Maker) -> Args {
    args!["SELECT", database(make)]
}

fn swapdb(make: &mut Maker) -> Args {
    args!["SWAPDB", database(make), database(make)]
}

fn pattern(make: &mut Maker) -> Vec<u8> {
    make.word(&[
        "*", "k*", "k?", "k[1-2]", "k[^1]", "{tag}*", "", "*long*", "k\\1", "[", "a\r\n*", "nothing", "**",
        "k[2-1]",
    ])
}

fn keys(make: &mut Maker) -> Args {
    args!["KEYS", pattern(make)]
}

fn randomkey(_: &mut Maker) -> Args {
    args!["RANDOMKEY"]
}

fn object(make: &mut Maker) -> Args {
    args![
        "OBJECT",
        make.word(&["ENCODING", "ENCODING", "ENCODING", "REFCOUNT", "IDLETIME", "FREQ", "NOSUCH"]),
        make.key()
    ]
}

fn flush(make: &mut Maker) -> Args {
    let mut args = args![make.word(&["FLUSHDB", "FLUSHDB", "FLUSHALL"])];
    if make.chance(50) {
        args.push(make.word(&["ASYNC", "SYNC", "NOW"]));
    }
    args
}

fn memory(make: &mut Maker) -> Args {
    let mut args = args!["MEMORY", "USAGE", make.key()];
    if make.chance(30) {
        args.extend(args!["SAMPLES", make.word(&["0", "5", "-1", "x"])]);
    }
    args
}

/// A SCAN that is refused. The results of a valid SCAN depend on the order of a hash table.
fn bad_scan(make: &mut Maker) -> Args {
    match make.random.below(6) {
        5 => args!["SCAN", "0", "TYPE", "nosuch"],
        0 => args!["SCAN", make.word(&["abc", "-1", "", "1.0", " 1", "18446744073709551616"])],
        1 => args!["SCAN", "0", "COUNT", make.word(&["0", "-1", "abc", ""])],
        2 => args!["SCAN", "0", make.word(&["MATCH", "COUNT", "TYPE"])],
        3 => args!["SCAN", "0", "NOSUCH", "1"],
        _ => args!["SCAN"],
    }
}

fn walk(make: &mut Maker) {
    let mut args = args![];
    if make.chance(50) {
        args.extend(args![make.word(&["MATCH"]), pattern(make)]);
    }
    if make.chance(50) {
        args.extend(args![make.word(&["COUNT"]), make.word(&["1", "2", "10", "1000"])]);
    }
    if make.chance(30) {
        args.extend(args![make.word(&["TYPE"]), make.word(&["string", "list"])]);
    }
    make.step(Action::Walk([args!["SCAN"], args].concat()));
}

/// Expired keys count until a command meets them; a walk meets all of them.
fn dbsize(make: &mut Maker) {
    make.step(Action::Walk(args!["SCAN"]));
    make.command(args!["DBSIZE"]);
}
