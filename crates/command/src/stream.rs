//! Streams: entries that are appended under rising IDs, read from an ID on, and distributed to groups of
//! consumers.
//!
//! A group's record of its readers is no change of the key: it counts as a write, but WATCH does not see it
//! and clients that wait for entries are not woken by it, as in Redis.

mod add;
mod claim;
mod deliver;
mod effect;
mod group;
mod id;
mod idmp;
mod info;
mod nack;
mod range;
mod read;
mod refs;
mod trim;

use crate::error::Error;
use crate::{
    Args, Command, DataHandler, Flags, Group, Keys, at_least, container, exactly, read as reads, session,
    write,
};

const GROUP: Group = Group::Stream;

/// Keys behind the word STREAMS.
const STREAMS: Keys = Keys::Across(read::find_keys);

#[rustfmt::skip]
pub const COMMANDS: &[Command<DataHandler>] = &[
    write("XACK",       at_least(4), Keys::FIRST, GROUP, group::xack      ).fast(),
    write("XACKDEL",    at_least(6), Keys::FIRST, GROUP, refs::xackdel    ).fast(),
    write("XADD",       at_least(5), Keys::FIRST, GROUP, add::xadd        ).grows().fast(),
    write("XAUTOCLAIM", at_least(6), Keys::FIRST, GROUP, claim::xautoclaim).fast(),
    write("XCFGSET",    at_least(2), Keys::FIRST, GROUP, idmp::xcfgset    ).fast(),
    write("XCLAIM",     at_least(6), Keys::FIRST, GROUP, claim::xclaim    ).fast(),
    write("XDEL",       at_least(3), Keys::FIRST, GROUP, add::xdel        ).fast(),
    write("XDELEX",     at_least(5), Keys::FIRST, GROUP, refs::xdelex     ).fast(),
    container("XGROUP", GROUP, &[
        write  ("XGROUP|CREATE",         at_least(5), Keys::SECOND, GROUP, group::create         ).grows(),
        write  ("XGROUP|CREATECONSUMER", exactly(5),  Keys::SECOND, GROUP, group::create_consumer).grows(),
        write  ("XGROUP|DELCONSUMER",    exactly(5),  Keys::SECOND, GROUP, group::delete_consumer),
        write  ("XGROUP|DESTROY",        exactly(4),  Keys::SECOND, GROUP, group::destroy        ),
        session("XGROUP|HELP",           exactly(2),  GROUP, group::help).scriptable(),
        write  ("XGROUP|SETID",          at_least(5), Keys::SECOND, GROUP, group::setid          ),
    ]).flags(Flags::NONE),
    write("XIDMPRECORD", exactly(5), Keys::FIRST, GROUP, idmp::xidmprecord).grows().fast(),
    container("XINFO", GROUP, &[
        reads  ("XINFO|CONSUMERS",       exactly(4),  Keys::SECOND, GROUP, info::consumers       ),
        reads  ("XINFO|GROUPS",          exactly(3),  Keys::SECOND, GROUP, info::groups          ),
        session("XINFO|HELP",            exactly(2),  GROUP, info::help).scriptable(),
        reads  ("XINFO|STREAM",          at_least(3), Keys::SECOND, GROUP, info::stream          ),
    ]).flags(Flags::NONE),
    reads("XLEN",       exactly(2),  Keys::FIRST, GROUP, add::xlen        ).fast(),
    write("XNACK",      at_least(7), Keys::FIRST, GROUP, nack::xnack      ).fast(),
    reads("XPENDING",   at_least(3), Keys::FIRST, GROUP, claim::xpending  ),
    reads("XRANGE",     at_least(4), Keys::FIRST, GROUP, range::xrange    ),
    reads("XREAD",      at_least(4), STREAMS,     GROUP, read::xread      ).blocks(),
    write("XREADGROUP", at_least(7), STREAMS,     GROUP, deliver::xreadgroup).blocks(),
    reads("XREVRANGE",  at_least(4), Keys::FIRST, GROUP, range::xrevrange ),
    write("XSETID",     at_least(3), Keys::FIRST, GROUP, add::xsetid      ).grows().fast(),
    write("XTRIM",      at_least(4), Keys::FIRST, GROUP, add::xtrim       ),
];

/// Returns a name as Redis prints it in errors: up to the first zero byte.
fn shown(name: &[u8]) -> &[u8] {
    &name[..name.iter().position(|byte| *byte == 0).unwrap_or(name.len())]
}

/// Returns the beginning of an error.
fn no_such_group(key: &[u8], group: &[u8]) -> Vec<u8> {
    [b"NOGROUP No such key '", shown(key), b"' or consumer group '", shown(group), b"'"].concat()
}

/// The error for a stream at argument 2 that has no group of this name.
fn no_group(args: &Args<'_>, group: usize) -> Error {
    let (group, key) = (shown(args.at(group)), shown(args.at(2)));
    Error::Bytes([b"NOGROUP No such consumer group '", group, b"' for key name '", key, b"'"].concat())
}

/// The error for an unknown subcommand of the container.
fn bad_subcommand(args: &Args<'_>, container: &str) -> Error {
    let parts: [&[u8]; 5] = [
        b"ERR unknown subcommand or wrong number of arguments for '",
        args.quoted(1, 128),
        b"'. Try ",
        container.as_bytes(),
        b" HELP.",
    ];
    Error::Bytes(parts.concat())
}
