//! SINTER, SUNION, SDIFF, their STORE forms, and the commands that count: SINTERCARD, SUNIONCARD, SDIFFCARD.
//!
//! A command shares its sets, which costs nothing, computes its result from the shares, and stores it. So a
//! set may be given twice or be the destination, and the work may run in place or on another thread.

use evenkeel_resp::number::parse_i64;
use evenkeel_store::Hasher;
use evenkeel_store::collection::set::{Aim, Operation, Plan};
use evenkeel_store::collection::{Collection, Set};

use super::form::Limits;
use super::{Call, elements, hasher};
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::flow::{OFFLOAD_MIN, OFFLOAD_PAGES, Work};
use crate::reply::Reply;

/// Returns the sets at the call's keys from `first` on; an empty set for a missing key.
fn sources(call: &mut Call<'_, '_>, first: usize) -> Result<Vec<Set>, Error> {
    let keys = &call.keys[first..];
    let sets = keys.iter().map(|key| {
        let set = call.guard.collection::<Set>(key)?;
        Ok(set.map_or_else(Set::new, |set| Set::clone(&set)))
    });
    sets.collect()
}

/// Replies with the members of the result.
fn reply_with(call: &mut Call<'_, '_>, operation: Operation) -> Done {
    let (hasher, sets) = (hasher(call), sources(call, 0)?);
    let plan = Plan::new(operation, &sets, Aim::Each);
    if call.is_worth_offloading(elements(plan.ns())) {
        let hasher = hasher.clone();
        return call.offload(Work::reads(move |reply| {
            write_members(reply, &plan, &hasher, &sets);
            Ok(())
        }));
    }
    write_members(call.reply, &plan, hasher, &sets);
    Ok(Flow::Replied)
}

fn write_members(reply: &mut Reply, plan: &Plan, hasher: &Hasher, sets: &[Set]) {
    let (start, mut count) = (reply.bytes.len(), 0);
    plan.each(hasher, sets, |member| {
        reply.bulk(member);
        count += 1;
        true
    });
    reply.set_before(start, count);
}

/// Stores the result at the first key, or removes the key if the result is empty, and replies with its size.
fn store(call: &mut Call<'_, '_>, operation: Operation) -> Done {
    let (hasher, limits, sets) = (hasher(call), Limits::of(call.settings), sources(call, 1)?);
    let plan = Plan::new(operation, &sets, Aim::Set);
    // The memory that the result shares is added up, page by page.
    let is_large = |set: &Set| set.pages_up_to(OFFLOAD_PAGES) >= OFFLOAD_PAGES;
    let adds_up = if plan.shares() && sets.iter().any(is_large) { OFFLOAD_MIN } else { 0 };
    if call.is_worth_offloading(elements(plan.ns()).max(adds_up)) {
        let (hasher, known) = (hasher.clone(), sets.clone());
        return call.offload(Work::writes(
            move || Ok(Made::of(operation, &plan, &hasher, limits, sets)),
            move |call| are_there_still(call, &known),
            |call, made| {
                made.store(call);
                Ok(Flow::Replied)
            },
        ));
    }
    Made::of(operation, &plan, hasher, limits, sets).store(call);
    Ok(Flow::Replied)
}

/// A result and its sources, which must be kept until the result is stored or dropped.
struct Made {
    sets: Vec<Set>,
    result: Set,
    form: u8,
    /// Bytes that the result shares with the sources.
    shared: u64,
}

impl Made {
    fn of(operation: Operation, plan: &Plan, hasher: &Hasher, limits: Limits, sets: Vec<Set>) -> Made {
        let result = plan.set(hasher, &sets);
        let grown = operation == Operation::Difference && !result.is_empty() && is_cut_down(&sets);
        let form = limits.of_result(if grown { &sets[0] } else { &result });
        let shared = if plan.shares() { result.shared_memory(1) as u64 } else { 0 };
        Made { sets, result, form, shared }
    }

    fn store(self, call: &mut Call<'_, '_>) {
        call.reply.int(self.result.len() as i64);
        call.guard.set_sharing_collection(&call.keys[0], (self.result, self.form, self.shared), None);
        self.sets.into_iter().for_each(|set| call.guard.discard(set));
    }
}

/// Redis computes a difference by looking up the members of the first set in the other sets, or by removing
/// their members from a copy of the first. Returns whether it would do the latter: the result then has the
/// copy's form.
fn is_cut_down(sets: &[Set]) -> bool {
    let there = sets.iter().filter(|set| !set.is_empty());
    let look_up = there.count() as u64 * sets[0].len() / 2;
    look_up > sets.iter().map(Set::len).sum()
}

fn are_there_still(call: &mut Call<'_, '_>, sets: &[Set]) -> bool {
    call.keys[1..].iter().zip(sets).all(|(key, set)| match call.guard.peek_collection::<Set>(key) {
        Ok(Some(now)) => now.is_same(set),
        Ok(None) => set.is_empty(),
        Err(_) => false,
    })
}

/// SINTER key [key ...]
pub(super) fn sinter(call: &mut Call<'_, '_>) -> Done {
    reply_with(call, Operation::Intersection)
}

/// SINTERSTORE destination key [key ...]
pub(super) fn sinterstore(call: &mut Call<'_, '_>) -> Done {
    store(call, Operation::Intersection)
}

/// SINTERCARD numkeys key [key ...] [LIMIT limit]
pub(super) fn sintercard(call: &mut Call<'_, '_>) -> Done {
    count(call, Operation::Intersection)
}

/// SUNIONCARD numkeys key [key ...] [APPROX] [LIMIT limit]
///
/// With APPROX the count is exact as well.
pub(super) fn sunioncard(call: &mut Call<'_, '_>) -> Done {
    count(call, Operation::Union)
}

/// SDIFFCARD numkeys key [key ...] [LIMIT limit]
pub(super) fn sdiffcard(call: &mut Call<'_, '_>) -> Done {
    count(call, Operation::Difference)
}

/// Replies with the number of members of the result.
fn count(call: &mut Call<'_, '_>, operation: Operation) -> Done {
    let args = call.args;
    let keys = parse_i64(args.at(1)).filter(|keys| *keys > 0);
    let keys = keys.ok_or(Error::text("ERR numkeys should be greater than 0"))?;
    if keys > args.len() as i64 - 2 {
        return Err(Error::text("ERR Number of keys can't be greater than number of args"));
    }
    let (mut limit, mut at) = (0, 2 + keys as usize);
    while at < args.len() {
        if operation == Operation::Union && args.is(at, "APPROX") {
            at += 1;
            continue;
        }
        let value = args.get(at + 1).filter(|_| args.is(at, "LIMIT")).ok_or(Error::Syntax)?;
        let value = parse_i64(value).filter(|value| *value >= 0);
        limit = value.ok_or(Error::text("ERR LIMIT can't be negative"))?;
        at += 2;
    }
    let (hasher, sets) = (hasher(call), sources(call, 0)?);
    let plan = Plan::new(operation, &sets, Aim::Each);
    if call.is_worth_offloading(elements(plan.ns())) {
        let hasher = hasher.clone();
        return call.offload(Work::reads(move |reply| {
            reply.int(count_up_to(&plan, &hasher, &sets, limit));
            Ok(())
        }));
    }
    call.reply.int(count_up_to(&plan, hasher, &sets, limit));
    Ok(Flow::Replied)
}

/// Counts the members of the result, up to `limit` unless that is zero.
fn count_up_to(plan: &Plan, hasher: &Hasher, sets: &[Set], limit: i64) -> i64 {
    let mut count = 0;
    plan.each(hasher, sets, |_| {
        count += 1;
        count != limit
    });
    count
}

/// SUNION key [key ...]
pub(super) fn sunion(call: &mut Call<'_, '_>) -> Done {
    reply_with(call, Operation::Union)
}

/// SUNIONSTORE destination key [key ...]
pub(super) fn sunionstore(call: &mut Call<'_, '_>) -> Done {
    store(call, Operation::Union)
}

/// SDIFF key [key ...]
pub(super) fn sdiff(call: &mut Call<'_, '_>) -> Done {
    reply_with(call, Operation::Difference)
}

/// SDIFFSTORE destination key [key ...]
pub(super) fn sdiffstore(call: &mut Call<'_, '_>) -> Done {
    store(call, Operation::Difference)
}
