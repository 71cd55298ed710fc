//! SORT and SORT_RO.
//!
//! The collection is shared in constant time, and everything else works on the share. Without patterns, the
//! call touches only its own keys. With `BY w_*` or `GET o_*`, every element names a key, in any slot, and
//! these keys are unknown before the collection has been read. So such a call locks nothing at first (see
//! [`LockScope::KeysUnless`]), and then proceeds in one of these ways:
//!
//! - Few keys: their slots and the call's slots are locked together, in ascending order. If the collection is
//!   still the same, no key can be missing, and the call is atomic, as in Redis. Otherwise it is tried again,
//!   the last time with all slots locked.
//! - Many keys: it is a long command ([`crate::flow::Work`]). Its thread visits the slots in turn, each for a
//!   few keys at a time. The collection is sorted as it was at a single moment. Each key of a pattern is read
//!   at some moment between the call and its reply. STORE happens only if the collection has not changed.
//! - Inside MULTI all slots are locked, so the call is atomic again.

mod column;
mod order;
mod plan;
mod source;

use evenkeel_store::collection::List;
use evenkeel_store::{Key, Kind, SlotGuard};

use crate::class::{GENERIC, LIST, OVERWRITTEN, TYPE_CHANGED};
use crate::effect::log_list;
use crate::error::Error;
use crate::flow::Mode;
use crate::flow::Work;
use crate::flow::{Done, Flow};
use crate::reply::Reply;
use crate::{Call, Command, DataHandler, Group, LockScope, at_least, read, write};
use order::Outcome;
use plan::Plan;
use source::Source;

#[rustfmt::skip]
pub const COMMANDS: &[Command<DataHandler>] = &[
    write("SORT",    at_least(2), plan::KEYS,    Group::List, sort   ).grows().lock_scope(REACH),
    read ("SORT_RO", at_least(2), plan::KEYS_RO, Group::List, sort_ro).lock_scope(REACH),
];

const REACH: LockScope = LockScope::KeysUnless(plan::has_patterns);

/// Slots that are locked together at most: a thousand uncontended locks take 20 us.
const LOCKS_MAX: usize = 1_000;

/// How often a collection may change before its keys are locked.
const ATTEMPTS: usize = 3;

/// SORT key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA] [STORE
/// destination]
fn sort(call: &mut Call<'_, '_>) -> Done {
    check_slots(call, true)?;
    let plan = Plan::parse(&call.args, true, call.host.may_read_all_keys(call.id, &call.args))?;
    run(call, plan)
}

/// SORT_RO key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA]
fn sort_ro(call: &mut Call<'_, '_>) -> Done {
    check_slots(call, false)?;
    let plan = Plan::parse(&call.args, false, call.host.may_read_all_keys(call.id, &call.args))?;
    run(call, plan)
}

fn check_slots(call: &Call<'_, '_>, may_store: bool) -> Result<(), Error> {
    let settings = call.settings;
    if !settings.cluster_enabled || settings.cluster_allow_cross_slot || call.replays {
        return Ok(());
    }
    plan::check_slots(&call.args, may_store)
}

fn run(call: &mut Call<'_, '_>, mut plan: Plan) -> Done {
    let key = &call.keys[0];
    let source = call.guard.visit(key.place, |guard| Source::read(guard, key))?;
    plan.suit(&source, call.mode == Mode::Script);
    plan.reply_len_max = call.reply_len_max();
    let holds_keys = call.guard.holds(key.place);
    let holds_enough = call.guard.holds_all() || holds_keys && !plan.looks_up();
    // A long command that finds another collection in the end holds its keys already, and no more can be
    // locked.
    let cannot_lock = holds_keys && !holds_enough;
    if cannot_lock || call.is_worth_offloading(plan.units(&source)) {
        return call.offload(work(plan, source, call.db));
    }
    if holds_enough {
        return finish(&plan, &source, call.guard, call.keys, call.db, call.reply).map(|()| Flow::Replied);
    }
    lock_and_finish(call, &plan, source)
}

/// Does the work, with all keys that it touches locked.
fn finish(
    plan: &Plan,
    source: &Source,
    guard: &mut SlotGuard<'_>,
    keys: &[Key<'_>],
    db: u32,
    reply: &mut Reply,
) -> Result<(), Error> {
    let outcome = Outcome::of(plan, source, guard, db)?;
    if plan.stores {
        store(guard, &keys[1], db, outcome.list()?, reply);
    } else {
        outcome.reply(reply);
    }
    Ok(())
}

/// Stores the result, and logs it as a list: a replay need not look up the patterns again, and the locks held
/// here may differ from the call's locks.
fn store(guard: &mut SlotGuard<'_>, key: &Key<'_>, db: u32, list: List, reply: &mut Reply) {
    let (len, sorted, before) = (list.len(), list.clone(), guard.changes());
    let old = guard.peek(key).map(|view| view.kind()).filter(|_| len > 0);
    guard.set_collection(key, list, 0, None);
    if guard.changes() != before && guard.is_logged() {
        log_list(guard, db, key.bytes, &sorted);
    }
    if let Some(old) = old {
        guard.say(db, key.bytes, OVERWRITTEN, "overwritten");
        if old != Kind::List {
            guard.say(db, key.bytes, TYPE_CHANGED, "type_changed");
        }
    }
    if len > 0 {
        guard.say(db, key.bytes, LIST, "sortstore");
    } else if guard.changes() != before {
        guard.say(db, key.bytes, GENERIC, "del");
    }
    if len > 1 {
        guard.announce(key, len - 1); // each element counts as a change
    }
    reply.int(len as i64);
}

/// Returns the work for another thread.
fn work(plan: Plan, source: Source, db: u32) -> Work {
    if !plan.stores {
        return Work::visits(move |guard, reply| {
            let outcome = Outcome::of(&plan, &source, guard, db)?;
            guard.outside_gate(|| {
                outcome.reply(reply);
                drop(outcome);
            });
            guard.outside_gate(|| drop((plan, source)));
            Ok(())
        });
    }
    let shared = source.clone();
    let compute = move |guard: &mut SlotGuard<'_>| {
        let outcome = Outcome::of(&plan, &source, guard, db)?;
        let list = guard.outside_gate(|| outcome.list());
        drop(outcome);
        guard.outside_gate(|| drop((plan, source)));
        list
    };
    let is_current = move |call: &mut Call<'_, '_>| {
        Source::peek(call.guard, &call.keys[0]).is_ok_and(|source| source.is_same(&shared))
    };
    let store = |call: &mut Call<'_, '_>, list| {
        store(call.guard, &call.keys[1], call.db, list, call.reply);
        Ok(Flow::Replied)
    };
    Work::visits_and_writes(compute, is_current, store)
}

/// Locks all keys that the call and the elements name, and finishes.
fn lock_and_finish(call: &mut Call<'_, '_>, plan: &Plan, mut source: Source) -> Done {
    let (keyspace, keys, db) = (call.guard.keyspace(), call.keys, call.db);
    let mut places = Vec::new();
    for attempt in 1.. {
        places.clear();
        places.extend(keys.iter().map(|key| key.place));
        plan.add_places(&source, keyspace, db, &mut places);
        let all = attempt > ATTEMPTS || places.len() > LOCKS_MAX;
        let mut guard = match plan.stores {
            _ if all => match keyspace.try_hold_all(call.guard.ctx) {
                Some(guard) => guard,
                None => return Ok(Flow::RetryAdmission),
            },
            true => keyspace.hold_to_write(call.guard.ctx, &mut places),
            false => keyspace.hold(call.guard.ctx, &mut places),
        };
        if guard.holds_all() {
            match call.host.look_again(call.spec, &call.args, guard.ctx.now_ms)? {
                Flow::Replied => {}
                flow => return Ok(flow),
            }
        }
        let now = Source::peek(&mut guard, &keys[0])?;
        if all || now.is_same(&source) {
            let done = finish(plan, &now, &mut guard, keys, db, call.reply);
            call.host.serve(guard);
            return done.map(|()| Flow::Replied);
        }
        source = now;
    }
    unreachable!("the last attempt has held everything")
}
