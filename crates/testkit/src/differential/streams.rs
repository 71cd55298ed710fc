//! Streams: every command and option that both reference servers have, on few ids, few groups and few
//! consumers.
//!
//! Ids are given or follow from given ids: ids made from the time would differ between two servers. Idle
//! times are either always or never long enough.

use super::make::{Maker, args};
use super::{Args, Family};
use crate::program::Reference;

#[rustfmt::skip]
pub(super) const FAMILY: Family = Family {
    name: "streams",
    weight: 110,
    only: None,
    commands: &[
        (30, xadd), (3, xlen), (6, xrange), (4, xdel), (4, xtrim), (6, xread), (5, xgroup_create),
        (5, xgroup), (5, xack), (5, xpending), (6, xinfo), (3, encoding),
    ],
    scenes: &[(12, xreadgroup_of_known), (3, wait), (2, wait_in_multi), (2, nodes), (2, far_ahead), (1, many),
        (1, xsetid_of_new)],
};

/// Commands in which Redis 7.0 differs. It creates a consumer only when that consumer gets an entry, while
/// newer servers create it when it asks for an entry. And it accepts an XSETID below a deleted entry.
pub(super) const NEWER: Family = Family {
    name: "streams-valkey",
    weight: 40,
    only: Some(Reference::Valkey),
    commands: &[(5, xclaim), (4, xautoclaim), (3, xgroup_create), (4, xadd), (2, xinfo), (1, xsetid)],
    scenes: &[(4, xreadgroup)],
};

/// Low numbers, so that entries meet queries; `ms-*` of the highest is nearly always accepted.
fn new_id(make: &mut Maker) -> Vec<u8> {
    match make.random.below(100) {
        0..50 => format!("{}-*", make.random.between(4, 6)).into(),
        50..80 => id(make),
        80..95 => format!("{}", make.random.below(9)).into(),
        95..98 => {
            make.word(&["0-0", "0-*", "0-1", "-", "+", "$", ">", "1-1-1", "x-*", "5-x", "1-", " 3", "+7-01"])
        }
        _ => make.word(&["18446744073709551615-*", "18446744073709551616", "7-18446744073709551615"]),
    }
}

fn id(make: &mut Maker) -> Vec<u8> {
    format!("{}-{}", make.random.below(7), make.random.below(6)).into()
}

/// An id as commands accept it in queries.
fn some_id(make: &mut Maker) -> Vec<u8> {
    match make.random.below(20) {
        0..14 => id(make),
        14..18 => make.random.below(8).to_string().into(),
        18 => make.word(&["0", "0-0", "18446744073709551615-18446744073709551615"]),
        _ => make.word(&["-", "+", "$", ">", "", "x", "1-x", "-1", "1\0x"]),
    }
}

fn ids(make: &mut Maker) -> Args {
    (0..=make.random.below(4)).map(|_| some_id(make)).collect()
}

/// An end of an interval.
fn end(make: &mut Maker) -> Vec<u8> {
    match make.random.below(10) {
        0..3 => make.word(&["-", "+"]),
        3..5 => [b"(", &some_id(make)[..]].concat(),
        _ => some_id(make),
    }
}

fn text(make: &mut Maker) -> Vec<u8> {
    match make.random.below(40) {
        0 => vec![b'x'; 5000],
        1 => make.random.bytes(12),
        2..10 => make.small_int(),
        _ => make.word(&["a", "b", "name", "", "a\r\n\0b", "9223372036854775807"]),
    }
}

fn fields(make: &mut Maker) -> Args {
    if make.chance(60) {
        return args!["name", text(make), "other", text(make)];
    }
    (0..2 * (1 + make.random.below(3))).map(|_| text(make)).collect()
}

fn trim(make: &mut Maker) -> Args {
    let mut args = args![make.word(&["MAXLEN", "MINID"])];
    if make.chance(40) {
        args.push(make.word(&["~", "=", "~", "x"]));
    }
    args.push(if args[0].eq_ignore_ascii_case(b"MINID") { some_id(make) } else { few(make) });
    if make.chance(15) {
        args.extend(args!["LIMIT", few(make)]);
    }
    args
}

fn few(make: &mut Maker) -> Vec<u8> {
    if make.chance(85) { make.random.below(8).to_string().into() } else { make.int() }
}

fn xadd(make: &mut Maker) -> Args {
    let mut args = args!["XADD", make.key()];
    if make.chance(10) {
        args.push(make.word(&["NOMKSTREAM"]));
    }
    if make.chance(15) {
        args.extend(trim(make));
    }
    [args, args![new_id(make)], fields(make)].concat()
}

fn xlen(make: &mut Maker) -> Args {
    args!["XLEN", make.key()]
}

fn xrange(make: &mut Maker) -> Args {
    let mut args = args![make.word(&["XRANGE", "XREVRANGE"]), make.key(), end(make), end(make)];
    if make.chance(30) {
        args.extend(args!["COUNT", few(make)]);
    }
    args
}

fn xdel(make: &mut Maker) -> Args {
    [args!["XDEL", make.key()], ids(make)].concat()
}

fn xtrim(make: &mut Maker) -> Args {
    [args!["XTRIM", make.key()], trim(make)].concat()
}

fn streams(make: &mut Maker, one_id: fn(&mut Maker) -> Vec<u8>) -> Args {
    let keys = make.keys(3);
    let ids: Args = keys.iter().map(|_| one_id(make)).collect();
    [args!["STREAMS"], keys, ids].concat()
}

/// No plus: for Valkey it is the last entry, for Redis 7.0 it is not an id.
fn id_or_end(make: &mut Maker) -> Vec<u8> {
    if make.chance(10) {
        return make.word(&["$", ">"]);
    }
    Some(some_id(make)).filter(|id| id != b"+").unwrap_or_else(|| id(make))
}

fn xread(make: &mut Maker) -> Args {
    let mut args = args!["XREAD"];
    if make.chance(40) {
        args.extend(args!["COUNT", few(make)]);
    }
    if make.chance(5) {
        args.push(make.word(&["NOACK", "GROUP", "BLOC"]));
    }
    [args, streams(make, id_or_end)].concat()
}

fn group(make: &mut Maker) -> Vec<u8> {
    make.random.pick(&["g", "h", "g", "a\0b"]).into()
}

fn consumer(make: &mut Maker) -> Vec<u8> {
    make.random.pick(&["alice", "bob", "alice", "carol", ""]).into()
}

/// The start of a group.
fn start(make: &mut Maker) -> Vec<u8> {
    match make.random.below(4) {
        0 => make.word(&["$", "-", "+", "0"]),
        _ => id(make),
    }
}

fn xgroup_create(make: &mut Maker) -> Args {
    let mut args = args!["XGROUP", make.word(&["CREATE"]), make.key(), group(make), start(make)];
    if make.chance(60) {
        args.push(make.word(&["MKSTREAM"]));
    }
    if make.chance(20) {
        args.extend(args!["ENTRIESREAD", entries_read(make)]);
    }
    args
}

/// Redis takes no more than the stream ever had; Valkey takes any number.
fn entries_read(make: &mut Maker) -> Vec<u8> {
    if make.oracle == Reference::Redis8 { make.word(&["0", "-1", "x"]) } else { few(make) }
}

fn xgroup(make: &mut Maker) -> Args {
    let (key, group) = (make.key(), group(make));
    match make.random.below(8) {
        0 => args!["XGROUP", "DESTROY", key, group],
        1..3 => args!["XGROUP", "DELCONSUMER", key, group, consumer(make)],
        3..5 => args!["XGROUP", "CREATECONSUMER", key, group, consumer(make)],
        _ => {
            let mut args = args!["XGROUP", "SETID", key, group, start(make)];
            if make.chance(20) {
                args.extend(args!["ENTRIESREAD", entries_read(make)]);
            }
            args
        }
    }
}

fn xack(make: &mut Maker) -> Args {
    [args!["XACK", make.key(), group(make)], ids(make)].concat()
}

fn idle(make: &mut Maker) -> Vec<u8> {
    make.random.pick(&["0", "0", "0", "100000000", "-5", "x"]).into()
}

fn xpending(make: &mut Maker) -> Args {
    let mut args = args!["XPENDING", make.key(), group(make)];
    if make.chance(30) {
        return args;
    }
    if make.chance(20) {
        args.extend(args!["IDLE", idle(make)]);
    }
    args.extend(args![end(make), end(make), few(make)]);
    if make.chance(30) {
        args.push(consumer(make));
    }
    args
}

fn xclaim(make: &mut Maker) -> Args {
    let mut args = args!["XCLAIM", make.key(), group(make), consumer(make), idle(make)];
    args.extend(ids(make));
    for _ in 0..make.random.below(3) {
        match make.random.below(6) {
            0 => args
                .extend(args!["IDLE", make.random.pick(&["0", "1000000", "-1", "9223372036854775807", "x"])]),
            1 => args.extend(args!["TIME", make.random.pick(&["0", "1000", "-1", "9223372036854775807"])]),
            2 => args.extend(args!["RETRYCOUNT", few(make)]),
            3 => args.push(make.word(&["FORCE"])),
            4 => args.push(make.word(&["JUSTID"])),
            _ => args.extend(args!["LASTID", some_id(make)]),
        }
    }
    args
}

fn xautoclaim(make: &mut Maker) -> Args {
    let mut args = args!["XAUTOCLAIM", make.key(), group(make), consumer(make), idle(make), end(make)];
    if make.chance(50) {
        args.extend(args!["COUNT", few(make)]);
    }
    if make.chance(20) {
        args.push(make.word(&["JUSTID"]));
    }
    args
}

fn xinfo(make: &mut Maker) -> Args {
    let key = make.key();
    match make.random.below(8) {
        0..2 => args!["XINFO", "STREAM", key],
        2..4 => args!["XINFO", "STREAM", key, "FULL"],
        4 => args!["XINFO", "STREAM", key, "FULL", "COUNT", few(make)],
        5..7 => args!["XINFO", "GROUPS", key],
        _ => args!["XINFO", "CONSUMERS", key, group(make)],
    }
}

fn xsetid(make: &mut Maker) -> Args {
    let mut args = args!["XSETID", make.key(), some_id(make)];
    if make.chance(40) {
        args.extend(args!["ENTRIESADDED", few(make), "MAXDELETEDID", some_id(make)]);
    }
    args
}

/// XSETID on a stream without deleted entries.
fn xsetid_of_new(make: &mut Maker) {
    let mut set = xsetid(make);
    make.command(args!["DEL", set[1].clone()]);
    let add = args!["XADD", set[1].clone(), id(make), "name", "value"];
    make.command(add);
    set.truncate(3); // neither does the command claim deleted entries
    make.command(set);
}

fn encoding(make: &mut Maker) -> Args {
    args!["OBJECT", "ENCODING", make.key()]
}

fn id_or_new(make: &mut Maker) -> Vec<u8> {
    if make.chance(70) { ">".into() } else { id_or_end(make) }
}

fn xreadgroup(make: &mut Maker) {
    let (group, consumer, streams) = (group(make), consumer(make), streams(make, id_or_new));
    read_group(make, group, consumer, streams);
}

/// Reads as an existing consumer, since not every reference server creates a consumer that gets nothing.
fn xreadgroup_of_known(make: &mut Maker) {
    let (group, consumer, streams) = (group(make), consumer(make), streams(make, id_or_new));
    for key in &streams[1..=streams.len() / 2] {
        make.command(args!["XGROUP", "CREATECONSUMER", key.clone(), group.clone(), consumer.clone()]);
    }
    read_group(make, group, consumer, streams);
}

fn read_group(make: &mut Maker, group: Vec<u8>, consumer: Vec<u8>, streams: Args) {
    let mut args = args!["XREADGROUP", "GROUP", group, consumer];
    if make.chance(50) {
        args.extend(args!["COUNT", few(make)]);
    }
    if make.chance(20) {
        args.push(make.word(&["NOACK"]));
    }
    make.command([args, streams].concat());
}

/// Not spoilt: a spoilt command could wait for ever.
fn wait(make: &mut Maker) {
    let timeout = ["1", "2", "-1", "x"][make.random.below(4)];
    let streams = streams(make, |make| if make.chance(50) { "$".into() } else { id(make) });
    make.command([args!["XREAD", "BLOCK", timeout], streams].concat());
}

fn wait_in_multi(make: &mut Maker) {
    make.command(args!["MULTI"]);
    for _ in 0..1 + make.random.below(3) {
        let streams = streams(make, |make| if make.chance(50) { "$".into() } else { id(make) });
        make.command([args!["XREAD", "BLOCK", "0"], streams].concat());
        let args = xadd(make);
        make.command(args);
    }
    make.command(args!["EXEC"]);
}

/// Nodes of few entries, which an approximate trim removes as a whole.
fn nodes(make: &mut Maker) {
    let (key, entries) = (make.key(), 1 + make.random.below(5));
    make.command(args!["CONFIG", "SET", "stream-node-max-entries", entries.to_string()]);
    make.command(args!["DEL", key.clone()]);
    for _ in 0..make.random.below(40) {
        make.command(args!["XADD", key.clone(), "7-*", "name", "a"]);
    }
    for _ in 0..make.random.below(4) {
        let mut args = args!["XTRIM", key.clone(), "MAXLEN", "~", make.random.below(30).to_string()];
        if make.chance(50) {
            args.extend(args!["LIMIT", make.random.below(20).to_string()]);
        }
        make.command(args);
        let min_id = format!("7-{}", make.random.below(40));
        make.command(args!["XTRIM", key.clone(), "MINID", "~", min_id]);
    }
    make.command(args!["CONFIG", "SET", "stream-node-max-entries", "100"]);
    make.command(args!["XRANGE", key, "-", "+"]);
}

/// Ids that the server makes follow the last id while that is ahead of the clock.
fn far_ahead(make: &mut Maker) {
    let key = make.key();
    make.command(args!["DEL", key.clone()]);
    make.command(args!["XADD", key.clone(), "9999999999999-18446744073709551614", "a", "b"]);
    for _ in 0..make.random.below(4) {
        make.command(args!["XADD", key.clone(), "*", "a", "b"]);
    }
    make.command(args!["XINFO", "STREAM", key]);
}

/// Several pages, read, trimmed and acknowledged in the middle.
fn many(make: &mut Maker) {
    let (key, count) = (make.key(), 150 + make.random.below(300));
    make.command(args!["DEL", key.clone()]);
    make.command(args!["XGROUP", "CREATE", key.clone(), "g", "0", "MKSTREAM"]);
    for number in 0..count {
        make.command(args!["XADD", key.clone(), format!("{}-1", number + 1), "name", "value"]);
    }
    make.command(args!["XREADGROUP", "GROUP", "g", "alice", "STREAMS", key.clone(), ">"]);
    make.command(args!["XGROUP", "CREATECONSUMER", key.clone(), "g", "bob"]);
    for _ in 0..10 {
        let at = |make: &mut Maker| format!("{}-1", make.random.below(count));
        let args = match make.random.below(7) {
            0 => args!["XRANGE", key.clone(), at(make), at(make)],
            1 => args!["XREVRANGE", key.clone(), "+", at(make), "COUNT", "5"],
            2 => args!["XDEL", key.clone(), at(make), at(make)],
            3 => args!["XTRIM", key.clone(), "MINID", format!("{}-1", make.random.below(count / 4))],
            4 => args!["XACK", key.clone(), "g", at(make), at(make)],
            5 => args!["XCLAIM", key.clone(), "g", "bob", "0", at(make), at(make), "JUSTID"],
            _ => args!["XAUTOCLAIM", key.clone(), "g", "bob", "0", at(make), "COUNT", "3"],
        };
        make.command(args);
    }
    make.command(args!["XPENDING", key.clone(), "g"]);
    make.command(args!["XREADGROUP", "GROUP", "g", "bob", "STREAMS", key.clone(), "0"]);
    make.command(args!["XRANGE", key, "-", "+"]);
}
