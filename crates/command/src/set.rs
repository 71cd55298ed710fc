//! Sets: single members, and all of them. `random` has random members, `combine` has operations on several
//! sets.

mod combine;
mod form;
mod random;
mod scan;

use evenkeel_store::Hasher;
use evenkeel_store::collection::Set;

use crate::class;
use crate::flow::Work;
use crate::flow::{Done, Flow};
use crate::reply::Reply;
use crate::{Call, Command, DataHandler, Group, Keys, at_least, exactly, read, write};
use form::Limits;

const GROUP: Group = Group::Set;

/// A count, and so many keys.
const COUNTED: Keys = Keys::Counted { at: 1, step: 1 };

#[rustfmt::skip]
pub const COMMANDS: &[Command<DataHandler>] = &[
    write("SADD",        at_least(3), Keys::FIRST,     GROUP, sadd                ).grows().fast()
        .members(2, 1),
    write("SREM",        at_least(3), Keys::FIRST,     GROUP, srem                ).fast().members(2, 1),
    read ("SISMEMBER",   exactly(3),  Keys::FIRST,     GROUP, sismember           ).fast().members(2, 1),
    read ("SMISMEMBER",  at_least(3), Keys::FIRST,     GROUP, smismember          ).fast().members(2, 1),
    read ("SCARD",       exactly(2),  Keys::FIRST,     GROUP, scard               ).fast(),
    read ("SMEMBERS",    exactly(2),  Keys::FIRST,     GROUP, smembers            ),
    write("SMOVE",       exactly(4),  Keys::FIRST_TWO, GROUP, smove               ).fast(),
    write("SPOP",        at_least(2), Keys::FIRST,     GROUP, random::spop        ).fast(),
    read ("SRANDMEMBER", at_least(2), Keys::FIRST,     GROUP, random::srandmember ),
    read ("SINTER",      at_least(2), Keys::REST,      GROUP, combine::sinter     ),
    write("SINTERSTORE", at_least(3), Keys::REST,      GROUP, combine::sinterstore).grows(),
    read ("SINTERCARD",  at_least(3), COUNTED,         GROUP, combine::sintercard ),
    read ("SUNIONCARD",  at_least(3), COUNTED,         GROUP, combine::sunioncard ),
    read ("SDIFFCARD",   at_least(3), COUNTED,         GROUP, combine::sdiffcard  ),
    read ("SUNION",      at_least(2), Keys::REST,      GROUP, combine::sunion     ),
    write("SUNIONSTORE", at_least(3), Keys::REST,      GROUP, combine::sunionstore).grows(),
    read ("SDIFF",       at_least(2), Keys::REST,      GROUP, combine::sdiff      ),
    write("SDIFFSTORE",  at_least(3), Keys::REST,      GROUP, combine::sdiffstore ).grows(),
    read ("SSCAN",       at_least(3), Keys::FIRST,     GROUP, scan::sscan         ),
];

/// The hash function of members.
fn hasher<'h>(call: &Call<'_, 'h>) -> &'h Hasher {
    &call.guard.keyspace().hasher
}

/// Converts nanoseconds of work to elements, the unit of the decision to offload.
fn elements(ns: u64) -> usize {
    (ns / 50) as usize
}

/// SADD key member [member ...]
fn sadd(call: &mut Call<'_, '_>) -> Done {
    let (hasher, limits, members) = (hasher(call), Limits::of(call.settings), call.args.from(2));
    let added = call.guard.edit::<Set, _>(&call.keys[0], |set| {
        set.form = limits.before(set.form, set, call.args.at(2), members.len() as u64);
        for member in members {
            if set.insert(hasher, member) {
                set.changes += 1;
                set.form = limits.after(set.form, set, member);
            }
        }
        set.changes
    })?;
    call.reply.int(added as i64);
    Ok(Flow::Replied)
}

/// SREM key member [member ...]
fn srem(call: &mut Call<'_, '_>) -> Done {
    let (hasher, members) = (hasher(call), call.args.from(2));
    let removed = call.guard.edit_if_there::<Set, _>(&call.keys[0], |set| {
        for member in members {
            set.changes += u64::from(set.remove(hasher, member));
        }
        set.changes
    })?;
    call.reply.int(removed.unwrap_or(0) as i64);
    Ok(Flow::Replied)
}

/// SISMEMBER key member
fn sismember(call: &mut Call<'_, '_>) -> Done {
    let (hasher, member) = (hasher(call), call.args.at(2));
    let set = call.guard.collection::<Set>(&call.keys[0])?;
    call.reply.int(set.is_some_and(|set| set.contains(hasher, member)).into());
    Ok(Flow::Replied)
}

/// SMISMEMBER key member [member ...]
fn smismember(call: &mut Call<'_, '_>) -> Done {
    let (hasher, members) = (hasher(call), call.args.from(2));
    let set = call.guard.collection::<Set>(&call.keys[0])?;
    call.reply.array(members.len());
    for member in members {
        call.reply.int(set.as_ref().is_some_and(|set| set.contains(hasher, member)).into());
    }
    Ok(Flow::Replied)
}

/// SCARD key
fn scard(call: &mut Call<'_, '_>) -> Done {
    let set = call.guard.collection::<Set>(&call.keys[0])?;
    call.reply.int(set.map_or(0, |set| set.len() as i64));
    Ok(Flow::Replied)
}

/// SMEMBERS key
fn smembers(call: &mut Call<'_, '_>) -> Done {
    match call.guard.collection::<Set>(&call.keys[0])?.map(|set| Set::clone(&set)) {
        Some(set) if call.is_worth_offloading(set.len() as usize) => {
            return call.offload(Work::reads(move |reply| {
                all(reply, &set, Open::Set);
                Ok(())
            }));
        }
        Some(set) => all(call.reply, &set, Open::Set),
        None => call.reply.set(0),
    }
    Ok(Flow::Replied)
}

/// The type of a reply with members.
#[derive(Clone, Copy)]
enum Open {
    Set,
    Array,
}

impl Open {
    fn write(self, reply: &mut Reply, len: usize) {
        match self {
            Open::Set => reply.set(len),
            Open::Array => reply.array(len),
        }
    }
}

fn all(reply: &mut Reply, set: &Set, open: Open) {
    open.write(reply, set.len() as usize);
    (0..).zip(set.iter()).for_each(|(at, member)| reply.element(&member, || set.share(at)));
}

/// SMOVE source destination member
fn smove(call: &mut Call<'_, '_>) -> Done {
    let (hasher, limits, member) = (hasher(call), Limits::of(call.settings), call.args.at(3));
    let (from, to) = (&call.keys[0], &call.keys[1]);
    let there = call.guard.peek_collection::<Set>(from)?.map(|set| set.contains(hasher, member));
    if there.is_some() {
        // Without a source, the destination's type does not matter.
        call.guard.peek_collection::<Set>(to)?;
    }
    let moves = there == Some(true);
    if moves && from.bytes != to.bytes {
        call.guard.edit_if_there::<Set, _>(from, |set| {
            set.changes = u64::from(set.remove(hasher, member));
        })?;
        call.say_taken(from, class::SET, "srem");
        let is_new = call.guard.edit::<Set, _>(to, |set| {
            set.form = limits.before(set.form, set, member, 1);
            let is_new = set.insert(hasher, member);
            if is_new {
                set.changes = 1;
                set.form = limits.after(set.form, set, member);
            }
            is_new
        })?;
        if is_new {
            call.say(to, class::SET, "sadd");
        }
    }
    call.reply.int(moves.into());
    Ok(Flow::Replied)
}
