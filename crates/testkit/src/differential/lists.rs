//! Lists: every command and option of Redis 7.0, on few elements, and on lists of several pages.
//!
//! Blocking commands are drawn well-formed only, with a short timeout: a spoilt command could wait for ever.

use super::make::{Maker, args};
use super::{Args, Family};

#[rustfmt::skip]
pub(super) const FAMILY: Family = Family {
    name: "lists",
    weight: 100,
    only: None,
    commands: &[
        (24, push), (4, pushx), (8, pop), (6, pop_count), (3, llen), (4, lindex), (5, lset), (6, lrange),
        (3, ltrim), (5, linsert), (5, lrem), (8, lpos), (5, lmove), (3, rpoplpush), (5, lmpop), (1, encoding),
    ],
    scenes: &[(3, wait), (2, wait_in_multi), (1, long)],
};

/// Few elements, so that commands meet; some are numbers, some are long.
fn element(make: &mut Maker) -> Vec<u8> {
    match make.random.below(20) {
        0..2 => make.value(),
        2..4 => make.small_int(),
        4 => make.word(&["9223372036854775807", "-1", "007", " 1", "1.0", ""]),
        number => ["a", "b", "c", "a\r\n\0b"][number % 4].into(),
    }
}

fn elements(make: &mut Maker, count_max: usize) -> Args {
    (0..=make.random.below(count_max)).map(|_| element(make)).collect()
}

fn push(make: &mut Maker) -> Args {
    [args![make.word(&["LPUSH", "RPUSH"]), make.key()], elements(make, 8)].concat()
}

fn pushx(make: &mut Maker) -> Args {
    [args![make.word(&["LPUSHX", "RPUSHX"]), make.key()], elements(make, 4)].concat()
}

fn pop(make: &mut Maker) -> Args {
    args![make.word(&["LPOP", "RPOP"]), make.key()]
}

fn pop_count(make: &mut Maker) -> Args {
    args![make.word(&["LPOP", "RPOP"]), make.key(), few(make)]
}

/// A number of elements: mostly fewer than the list has.
fn few(make: &mut Maker) -> Vec<u8> {
    if make.chance(80) { make.random.below(6).to_string().into() } else { make.int() }
}

/// A position from either end: mostly within the list.
fn index(make: &mut Maker) -> Vec<u8> {
    if make.chance(80) { make.random.between(-8, 8).to_string().into() } else { make.int() }
}

/// Like [`index`], without numbers that Valkey's LSET truncates; see `make::is_delicate`.
fn plain_index(make: &mut Maker) -> Vec<u8> {
    match make.random.below(10) {
        0 => {
            make.word(&["2147483647", "-2147483648", "100000", "9223372036854775808", "abc", "1.5", "", " 1"])
        }
        _ => make.random.between(-8, 8).to_string().into(),
    }
}

fn side(make: &mut Maker) -> Vec<u8> {
    make.word(&["LEFT", "RIGHT"])
}

fn llen(make: &mut Maker) -> Args {
    args!["LLEN", make.key()]
}

fn lindex(make: &mut Maker) -> Args {
    args!["LINDEX", make.key(), index(make)]
}

fn lset(make: &mut Maker) -> Args {
    args!["LSET", make.key(), plain_index(make), element(make)]
}

fn lrange(make: &mut Maker) -> Args {
    args!["LRANGE", make.key(), index(make), index(make)]
}

fn ltrim(make: &mut Maker) -> Args {
    args!["LTRIM", make.key(), index(make), index(make)]
}

fn linsert(make: &mut Maker) -> Args {
    args!["LINSERT", make.key(), make.word(&["BEFORE", "AFTER"]), element(make), element(make)]
}

fn lrem(make: &mut Maker) -> Args {
    args!["LREM", make.key(), plain_index(make), element(make)]
}

/// Like [`index`], without `i64::MIN`, which has no opposite; Redis 7.0 accepts it.
fn rank(make: &mut Maker) -> Vec<u8> {
    let rank = index(make);
    if rank == i64::MIN.to_string().as_bytes() { "-1".into() } else { rank }
}

fn lpos(make: &mut Maker) -> Args {
    let mut args = args!["LPOS", make.key(), element(make)];
    for _ in 0..make.random.below(4) {
        match make.random.below(3) {
            0 => args.extend(args![make.word(&["RANK"]), rank(make)]),
            1 => args.extend(args![make.word(&["COUNT"]), few(make)]),
            _ => args.extend(args![make.word(&["MAXLEN"]), few(make)]),
        }
    }
    args
}

fn lmove(make: &mut Maker) -> Args {
    args!["LMOVE", make.key(), make.key(), side(make), side(make)]
}

fn rpoplpush(make: &mut Maker) -> Args {
    args!["RPOPLPUSH", make.key(), make.key()]
}

fn lmpop(make: &mut Maker) -> Args {
    let mut args = args!["LMPOP"];
    args.extend(counted_keys(make));
    if make.chance(60) {
        args.extend(args![make.word(&["COUNT"]), few(make)]);
    }
    args
}

/// A number of keys, the keys, and the side to pop from.
fn counted_keys(make: &mut Maker) -> Args {
    let keys = make.keys(4);
    [args![keys.len().to_string()], keys, args![side(make)]].concat()
}

fn encoding(make: &mut Maker) -> Args {
    args!["OBJECT", "ENCODING", make.key()]
}

/// A blocking command with this timeout.
fn waiting(make: &mut Maker, timeout: &str) -> Args {
    match make.random.below(5) {
        0 => [args!["BLPOP"], make.keys(4), args![timeout]].concat(),
        1 => [args!["BRPOP"], make.keys(4), args![timeout]].concat(),
        2 => args!["BLMOVE", make.key(), make.key(), side(make), side(make), timeout],
        3 => args!["BRPOPLPUSH", make.key(), make.key(), timeout],
        _ => {
            let mut args = [args!["BLMPOP", timeout], counted_keys(make)].concat();
            if make.chance(50) {
                args.extend(args!["COUNT", few(make)]);
            }
            args
        }
    }
}

fn wait(make: &mut Maker) {
    let timeout = ["0.01", "0.001", "1e-3", "-1", "x"][make.random.below(5)];
    let args = waiting(make, timeout);
    make.command(args);
}

fn wait_in_multi(make: &mut Maker) {
    make.command(args!["MULTI"]);
    for _ in 0..make.random.below(3) {
        let args = waiting(make, "0");
        make.command(args);
        let args = push(make);
        make.command(args);
    }
    make.command(args!["EXEC"]);
}

/// A list of several pages, cut and searched in the middle.
fn long(make: &mut Maker) {
    let key = make.key();
    let count = 200 + make.random.below(1500);
    let all = (0..count).map(|n| format!("element:{}", n % 400).into_bytes());
    make.command(args!["RPUSH", key.clone()].into_iter().chain(all).collect());
    for _ in 0..make.random.below(12) {
        let (from, to) = (make.random.below(count), make.random.below(count));
        let element = format!("element:{}", make.random.below(420));
        let args = match make.random.below(9) {
            0 => args!["LTRIM", key.clone(), (from / 8).to_string(), format!("-{}", to / 8 + 1)],
            1 => args!["LREM", key.clone(), make.random.between(-3, 3).to_string(), element],
            2 => args!["LINSERT", key.clone(), "AFTER", element, make.value()],
            3 => args!["LPOS", key.clone(), element, "COUNT", "0", "RANK", make.word(&["1", "-1", "2"])],
            4 => args!["LSET", key.clone(), from.to_string(), make.value()],
            5 => args!["LRANGE", key.clone(), from.to_string(), to.to_string()],
            6 => args![make.word(&["LPOP", "RPOP"]), key.clone(), (from / 8).to_string()],
            7 => args!["LINDEX", key.clone(), format!("-{from}")],
            _ => args!["LMOVE", key.clone(), key.clone(), side(make), side(make)],
        };
        make.command(args);
    }
    make.command(args!["LRANGE", key, "0", "-1"]);
}
