//! Commands on keys of any type, and the size of a database.

use std::sync::Arc;

use evenkeel_store::Kind;

use crate::class::GENERIC;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::flow::{OFFLOAD_MIN, OFFLOAD_PAGES, Work};
use crate::value_codec::Value;
use crate::{Args, Call, Command, DataHandler, Group, Keys, at_least, exactly, read, walk, write};

const GROUP: Group = Group::Keyspace;

#[rustfmt::skip]
pub const COMMANDS: &[Command<DataHandler>] = &[
    write("DEL",       at_least(2), Keys::REST,      GROUP, del),
    write("UNLINK",    at_least(2), Keys::REST,      GROUP, del      ).fast(),
    read ("EXISTS",    at_least(2), Keys::REST,      GROUP, exists   ).fast(),
    read ("TOUCH",     at_least(2), Keys::REST,      GROUP, touch    ).fast(),
    read ("TYPE",      exactly(2),  Keys::FIRST,     GROUP, type_of  ).fast(),
    write("RENAME",    exactly(3),  Keys::FIRST_TWO, GROUP, rename),
    write("RENAMENX",  exactly(3),  Keys::FIRST_TWO, GROUP, renamenx ).fast(),
    write("COPY",      at_least(3), Keys::Across(keys_of_copy), GROUP, copy    ).grows(),
    write("MOVE",      exactly(3),  Keys::Across(keys_of_move), GROUP, move_key).fast(),
    walk ("DBSIZE",    exactly(1),  GROUP, dbsize   ).fast(),
];

/// DEL key [key ...], UNLINK key [key ...]: large values are freed by another thread for both.
fn del(call: &mut Call<'_, '_>) -> Done {
    let removed = call.keys.iter().filter(|key| call.guard.remove(key)).count();
    call.reply.int(removed as i64);
    Ok(Flow::Replied)
}

/// EXISTS key [key ...]
fn exists(call: &mut Call<'_, '_>) -> Done {
    let there = call.keys.iter().filter(|key| call.guard.look(key).is_some()).count();
    call.reply.int(there as i64);
    Ok(Flow::Replied)
}

/// TOUCH key [key ...]
fn touch(call: &mut Call<'_, '_>) -> Done {
    // CLIENT NO-TOUCH concerns keys that are touched in passing, not keys that are to be touched.
    let no_touch = std::mem::replace(&mut call.guard.ctx.no_touch, false);
    let there = call.keys.iter().filter(|key| call.guard.read(key).is_some()).count();
    call.guard.ctx.no_touch = no_touch;
    call.reply.int(there as i64);
    Ok(Flow::Replied)
}

/// TYPE key
fn type_of(call: &mut Call<'_, '_>) -> Done {
    let kind = call.guard.look(&call.keys[0]).map(|view| view.kind());
    call.reply.simple(kind.map_or("none", Kind::name));
    Ok(Flow::Replied)
}

/// RENAME key newkey
fn rename(call: &mut Call<'_, '_>) -> Done {
    let (from, to) = (&call.keys[0], &call.keys[1]);
    call.guard.touch(from).ok_or(Error::NoSuchKey)?;
    if from.bytes != to.bytes {
        let [new, old] = [from, to].map(|key| call.guard.peek(key).map(|view| view.kind()));
        call.guard.rename(from, to);
        say_moved(call, "rename_from", "rename_to");
        if old.is_some() {
            call.say_overwritten(to, old != new);
        }
    }
    call.reply.ok();
    Ok(Flow::Replied)
}

fn say_moved(call: &mut Call<'_, '_>, from: &'static str, to: &'static str) {
    let [old, new] = [call.keys[0], call.keys[1]];
    call.say(&old, GENERIC, from);
    call.say(&new, GENERIC, to);
}

/// RENAMENX key newkey
fn renamenx(call: &mut Call<'_, '_>) -> Done {
    let (from, to) = (&call.keys[0], &call.keys[1]);
    call.guard.touch(from).ok_or(Error::NoSuchKey)?;
    let free = call.guard.touch(to).is_none();
    if free {
        call.guard.rename(from, to);
        say_moved(call, "rename_from", "rename_to");
    }
    call.reply.int(i64::from(free));
    Ok(Flow::Replied)
}

/// The destination of COPY and MOVE, and whether they replace an existing key.
struct Destination {
    db: u32,
    replace: bool,
}

const SAME_OBJECTS: &str = "ERR source and destination objects are the same";

/// COPY source destination [DB destination-db] [REPLACE]
fn copy(call: &mut Call<'_, '_>) -> Done {
    let databases = call.guard.keyspace().databases() as u32;
    let Destination { db, replace } = destination_of_copy(&call.args, call.db, databases)?;
    let (from, to) = (&call.keys[0], &call.keys[1]);
    if db == call.db && from.bytes == to.bytes {
        return Err(Error::text(SAME_OBJECTS));
    }
    let Some(view) = call.guard.read(from) else {
        call.reply.int(0);
        return Ok(Flow::Replied);
    };
    // A short string is copied where it lies, and shares nothing.
    let value = if view.is_flat() { Value::Flat(Vec::new()) } else { Value::of(view) };
    let is_worth_offloading =
        value.pages_up_to(OFFLOAD_PAGES) >= OFFLOAD_PAGES && call.is_worth_offloading(OFFLOAD_MIN);
    if !is_worth_offloading || !replace && call.guard.touch(to).is_some() {
        copy_sharing(call, replace, value.shared_memory());
        return Ok(Flow::Replied);
    }
    // Copying takes no time, but adding up the shared memory does.
    let value = Arc::new(value);
    let known = Arc::clone(&value);
    call.offload(Work::writes(
        move || Ok(value.shared_memory()),
        move |call| call.guard.peek(&call.keys[0]).is_some_and(|view| known.is_same(view)),
        move |call, shared| {
            copy_sharing(call, replace, shared);
            Ok(Flow::Replied)
        },
    ))
}

/// Copies an existing value, if it may, and replies whether it has.
fn copy_sharing(call: &mut Call<'_, '_>, replace: bool, shared: u64) {
    let (from, to) = (&call.keys[0], &call.keys[1]);
    let copied = call.guard.touch(to).is_none() || replace;
    if copied {
        call.guard.copy(from, to, shared);
    }
    call.reply.int(i64::from(copied));
}

fn destination_of_copy(args: &Args<'_>, db: u32, databases: u32) -> Result<Destination, Error> {
    let (mut destination, mut at) = (Destination { db, replace: false }, 3);
    while at < args.len() {
        match args.word(at).as_bytes() {
            b"REPLACE" => destination.replace = true,
            b"DB" if at + 1 < args.len() => {
                at += 1;
                destination.db = args.database(at, databases)?;
            }
            _ => return Err(Error::Syntax),
        }
        at += 1;
    }
    Ok(destination)
}

/// A call that the handler refuses has keys all the same: COMMAND GETKEYS returns them.
fn keys_of_copy(args: &Args<'_>, db: u32, databases: u32, key: &mut dyn FnMut(usize, u32)) {
    key(1, db);
    key(2, destination_of_copy(args, db, databases).map_or(db, |destination| destination.db));
}

/// MOVE key db
fn move_key(call: &mut Call<'_, '_>) -> Done {
    let db = call.args.database(2, call.guard.keyspace().databases() as u32)?;
    if db == call.db {
        return Err(Error::text(SAME_OBJECTS));
    }
    let (from, to) = (&call.keys[0], &call.keys[1]);
    let moved = call.guard.touch(from).is_some() && call.guard.touch(to).is_none();
    if moved {
        call.guard.rename(from, to);
        say_moved(call, "move_from", "move_to");
    }
    call.reply.int(i64::from(moved));
    Ok(Flow::Replied)
}

fn keys_of_move(args: &Args<'_>, db: u32, databases: u32, key: &mut dyn FnMut(usize, u32)) {
    key(1, db);
    if let Ok(to) = args.database(2, databases) {
        key(1, to);
    }
}

/// DBSIZE
fn dbsize(call: &mut Call<'_, '_>) -> Done {
    let len = call.guard.keyspace().visible_len(call.guard.ctx, call.db as usize);
    call.reply.int(len as i64);
    Ok(Flow::Replied)
}
