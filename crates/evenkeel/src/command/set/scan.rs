//! SSCAN: a set by pages.

use evenkeel_resp::reply::Encoder;
use evenkeel_store::collection::Set;

use super::super::scan::{Filter, Of, cursor_of};
use super::form::HASHTABLE;
use super::{Call, hasher};
use crate::error::{Done, Error};

/// SSCAN key cursor [MATCH pattern] [COUNT count]
///
/// What is an `intset` or a `listpack` to clients comes whole, as from Redis.
pub(super) fn sscan(call: &mut Call<'_, '_>) -> Done {
    let cursor = cursor_of(call.args.at(2)).ok_or(Error::text("ERR invalid cursor"))?;
    let (hasher, args) = (hasher(call), call.args);
    let is_small = call.held.peek(&call.keys[0]).is_some_and(|view| view.form() < HASHTABLE);
    let Some(set) = call.held.collection::<Set>(&call.keys[0])? else {
        call.reply.array(2);
        call.reply.bulk(b"0");
        call.reply.array(0);
        return Ok(());
    };
    let filter = Filter::parse(&args, 3, Of::Members)?;
    let (mut found, mut count) = (Encoder::default(), 0);
    let (from, step) = if is_small { (0, usize::MAX) } else { (cursor.0, filter.count) };
    let next = set.scan(hasher, from, step, |member| {
        if filter.admits(member) {
            found.bulk(member);
            count += 1;
        }
    });
    call.reply.array(2);
    call.reply.bulk(next.to_string().as_bytes());
    call.reply.array(count);
    call.reply.bytes.extend_from_slice(&found.bytes);
    Ok(())
}
