//! SORT and SORT_RO.
//!
//! The collection to be sorted is shared in constant time, and everything else is done with what was shared. Without
//! patterns, the keys of the call are all that is touched. With `BY w_*` or `GET o_*`, every element names a key of its
//! own, in any slot, and none of them is known before the collection has been seen. So such a call holds nothing at first
//! (see [`Reach::KeysUnless`]), and then goes one of these ways:
//!
//! - Few keys: their slots and those of the call are locked together, in ascending order. If the collection is still the
//!   one that was seen, no key can be missing, and the call is one step to everyone, as it is in Redis. Otherwise it is
//!   tried again, at last with everything held.
//! - More of them: it is a long command ([`crate::long`]). Its thread visits the slots one after the other, each for a
//!   few keys at a time. What is sorted is the collection as it was at one moment; what the patterns find is each key as
//!   it was at some moment between the call and its reply; and STORE happens only if the collection has not changed.
//! - Inside MULTI everything is held, so that it is one step again.

mod column;
mod order;
mod plan;
mod source;

use std::sync::Arc;

use evenkeel_store::collection::List;
use evenkeel_store::{Held, Key};

use super::effect::log_list;
use super::table::table;
use super::{Call, Command, Group, Reach, at_least, read, write};
use crate::acl;
use crate::blocking::Mode;
use crate::blocking::serve::Host;
use crate::config::Settings;
use crate::dispatch::look_again;
use crate::error::{Done, Error};
use crate::long::Work;
use crate::pubsub::notices::{GENERIC, LIST};
use crate::reply::Reply;
use crate::server::Server;
use order::Outcome;
use plan::Plan;
use source::Source;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command] = &[
    Command { reach: REACH, ..write("SORT",    at_least(2), plan::KEYS,    Group::List, sort   ).grows() },
    Command { reach: REACH, ..read ("SORT_RO", at_least(2), plan::KEYS_RO, Group::List, sort_ro) },
];

const REACH: Reach = Reach::KeysUnless(plan::has_patterns);

/// Slots that are locked together at most: a thousand locks that nobody holds take 20 us.
const LOCKS_MAX: usize = 1_000;

/// How often a collection may change under who is about to lock what it names.
const ATTEMPTS: usize = 3;

/// SORT key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA] [STORE destination]
fn sort(call: &mut Call<'_, '_>) -> Done {
    let plan = Plan::parse(&call.args, true, acl::reads_all_keys(call))?;
    run(call, plan)
}

/// SORT_RO key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA]
fn sort_ro(call: &mut Call<'_, '_>) -> Done {
    let plan = Plan::parse(&call.args, false, acl::reads_all_keys(call))?;
    run(call, plan)
}

fn run(call: &mut Call<'_, '_>, mut plan: Plan) -> Done {
    let key = &call.keys[0];
    let source = call.held.visit(key.place, |held| Source::read(held, key))?;
    plan.suit(&source, call.mode == Mode::Script);
    plan.reply_len_max = call.reply_len_max();
    let holds_keys = call.held.holds(key.place);
    let holds_enough = call.held.holds_all() || holds_keys && !plan.looks_up();
    // A long command that finds another collection in the end holds its keys already, and no more can be locked.
    let cannot_lock = holds_keys && !holds_enough;
    if cannot_lock || call.is_long(plan.units(&source)) {
        return call.go_long(work(plan, source, call.session.db));
    }
    if holds_enough {
        return finish(&plan, &source, call.held, call.keys, call.session.db, call.reply);
    }
    lock_and_finish(call, &plan, source)
}

/// Does what there is to do, all that it touches being held.
fn finish(
    plan: &Plan,
    source: &Source,
    held: &mut Held<'_>,
    keys: &[Key<'_>],
    db: u32,
    reply: &mut Reply,
) -> Done {
    let outcome = Outcome::of(plan, source, held, db)?;
    if plan.stores {
        store(held, &keys[1], db, outcome.list()?, reply);
    } else {
        outcome.reply(reply);
    }
    Ok(())
}

/// Stores the result, and logs it as such: what the patterns have found need not be found again, and what is held when this
/// is done may not be what the call holds.
fn store(held: &mut Held<'_>, key: &Key<'_>, db: u32, list: List, reply: &mut Reply) {
    let (len, sorted, before) = (list.len(), list.clone(), held.changes());
    held.set_collection(key, list, 0, None);
    if held.changes() != before && held.is_logged() {
        log_list(held, db, key.bytes, &sorted);
    }
    if len > 0 {
        held.say(db, key.bytes, LIST, "sortstore");
    } else if held.changes() != before {
        held.say(db, key.bytes, GENERIC, "del");
    }
    if len > 1 {
        held.announce(key, len - 1); // each element counts as a change
    }
    reply.int(len as i64);
}

/// What another thread is to do.
fn work(plan: Plan, source: Source, db: u32) -> Work {
    if !plan.stores {
        return Work::visits(move |held, reply| {
            let outcome = Outcome::of(&plan, &source, held, db)?;
            held.aside(|| {
                outcome.reply(reply);
                drop(outcome);
            });
            held.aside(|| drop((plan, source)));
            Ok(())
        });
    }
    let shared = source.clone();
    let compute = move |held: &mut Held<'_>| {
        let outcome = Outcome::of(&plan, &source, held, db)?;
        let list = held.aside(|| outcome.list());
        drop(outcome);
        held.aside(|| drop((plan, source)));
        list
    };
    let is_current = move |call: &mut Call<'_, '_>| {
        Source::peek(call.held, &call.keys[0]).is_ok_and(|source| source.is_same(&shared))
    };
    let store = |call: &mut Call<'_, '_>, list| {
        store(call.held, &call.keys[1], call.session.db, list, call.reply);
        Ok(())
    };
    Work::visits_and_writes(compute, is_current, store)
}

/// Locks all keys that the call names and those that the elements name, and finishes.
fn lock_and_finish(call: &mut Call<'_, '_>, plan: &Plan, mut source: Source) -> Done {
    let (keyspace, keys, db) = (call.held.keyspace(), call.keys, call.session.db);
    let mut places = Vec::new();
    for attempt in 1.. {
        places.clear();
        places.extend(keys.iter().map(|key| key.place));
        plan.add_places(&source, keyspace, db, &mut places);
        let all = attempt > ATTEMPTS || places.len() > LOCKS_MAX;
        let mut held = match plan.stores {
            _ if all => keyspace.try_hold_all(call.held.seat).ok_or(Error::AdmitAgain)?,
            true => keyspace.hold_to_write(call.held.seat, &mut places),
            false => keyspace.hold(call.held.seat, &mut places),
        };
        if held.holds_all() {
            look_again(call.server, call.session, (table().row(call.id), &call.args), held.seat.now_ms)?;
        }
        let now = Source::peek(&mut held, &keys[0])?;
        if all || now.is_same(&source) {
            let done = finish(plan, &now, &mut held, keys, db, call.reply);
            serve(call.server, call.settings, call.worker, held);
            return done;
        }
        source = now;
    }
    unreachable!("the last attempt has held everything")
}

/// Serves those who wait for what was stored, before others may touch it.
fn serve(server: &Arc<Server>, settings: &Arc<Settings>, worker: usize, mut held: Held<'_>) {
    let mut resumed = Vec::new();
    if held.seat.has_woken() {
        Host { server, settings, worker }.serve(&mut held, &mut resumed);
    }
    drop(held);
    resumed.into_iter().for_each(|resumed| server.resume(resumed));
}

#[cfg(test)]
mod tests;
