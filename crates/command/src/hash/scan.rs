//! HSCAN: a hash by pages.

use evenkeel_store::collection::Hash;
use evenkeel_store::{Hasher, Millis};

use super::{Call, sight};
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::offloading::is_much;
use crate::reply::Reply;
use crate::scan::{Filter, Of, PageFound, cursor_of};

/// HSCAN key cursor [MATCH pattern] [COUNT count] [NOVALUES]
///
/// A `listpack` comes as a whole, as from Redis.
pub(super) fn hscan(call: &mut Call<'_, '_>) -> Done {
    let cursor = cursor_of(call.args.at(2)).ok_or(Error::text("ERR invalid cursor"))?;
    let ((hasher, now), args) = (sight(call), call.args);
    let small = call.guard.peek(&call.keys[0]).is_some_and(|view| view.form() == 0);
    let Some(hash) = call.guard.collection::<Hash>(&call.keys[0])? else {
        PageFound::default().reply(call.reply, 0);
        return Ok(Flow::Replied);
    };
    let filter = Filter::parse(&args, 3, Of::Fields)?;
    let (from, step) = if small { (0, usize::MAX) } else { (cursor.0, filter.count) };
    if is_much(hash.size().min(step as u64)) {
        let (hash, hasher, args) = (Hash::clone(&hash), hasher.clone(), args.to_owned());
        return call.offload_reply(move |reply| {
            let filter = Filter::parse(&args.as_args(), 3, Of::Fields).expect("it was read before");
            page(reply, &hash, (&hasher, now), (from, step), &filter);
        });
    }
    page(call.reply, &hash, (hasher, now), (from, step), &filter);
    Ok(Flow::Replied)
}

fn page(
    reply: &mut Reply,
    hash: &Hash,
    (hasher, now): (&Hasher, Millis),
    (from, step): (u64, usize),
    filter: &Filter<'_>,
) {
    let mut page = PageFound::default();
    let next = hash.scan(hasher, now, from, step, |field, value| {
        if filter.admits(field) {
            page.found.bulk(field);
            page.count += 1;
            if !filter.names_only {
                page.found.bulk(value);
                page.count += 1;
            }
        }
    });
    page.reply(reply, next);
}
