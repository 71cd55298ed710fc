//! SSCAN: a set by pages.

use evenkeel_store::Hasher;
use evenkeel_store::collection::Set;

use super::form::HASHTABLE;
use super::{Call, hasher};
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::offloading::is_much;
use crate::reply::Reply;
use crate::scan::{Filter, Of, PageFound, cursor_of};

/// SSCAN key cursor [MATCH pattern] [COUNT count]
///
/// An `intset` or a `listpack` comes as a whole, as from Redis.
pub(super) fn sscan(call: &mut Call<'_, '_>) -> Done {
    let cursor = cursor_of(call.args.at(2)).ok_or(Error::text("ERR invalid cursor"))?;
    let (hasher, args) = (hasher(call), call.args);
    let is_small = call.guard.peek(&call.keys[0]).is_some_and(|view| view.form() < HASHTABLE);
    let Some(set) = call.guard.collection::<Set>(&call.keys[0])? else {
        PageFound::default().reply(call.reply, 0);
        return Ok(Flow::Replied);
    };
    let filter = Filter::parse(&args, 3, Of::Members)?;
    let (from, step) = if is_small { (0, usize::MAX) } else { (cursor.0, filter.count) };
    if is_much(set.len().min(step as u64)) {
        let (set, hasher, args) = (Set::clone(&set), hasher.clone(), args.to_owned());
        return call.offload_reply(move |reply| {
            let filter = Filter::parse(&args.as_args(), 3, Of::Members).expect("it was read before");
            page(reply, &set, &hasher, (from, step), &filter);
        });
    }
    page(call.reply, &set, hasher, (from, step), &filter);
    Ok(Flow::Replied)
}

fn page(reply: &mut Reply, set: &Set, hasher: &Hasher, (from, step): (u64, usize), filter: &Filter<'_>) {
    let mut page = PageFound::default();
    let next = set.scan(hasher, from, step, |member| {
        if filter.admits(member) {
            page.found.bulk(member);
            page.count += 1;
        }
    });
    page.reply(reply, next);
}
