//! HSCAN: a hash by pages.

use evenkeel_resp::reply::Encoder;
use evenkeel_store::collection::Hash;

use super::super::scan::{Filter, Of, cursor_of};
use super::{Call, sight};
use crate::error::{Done, Error};

/// HSCAN key cursor [MATCH pattern] [COUNT count] [NOVALUES]
///
/// What is a `listpack` to clients comes whole, as from Redis.
pub(super) fn hscan(call: &mut Call<'_, '_>) -> Done {
    let cursor = cursor_of(call.args.at(2)).ok_or(Error::text("ERR invalid cursor"))?;
    let ((hasher, now), args) = (sight(call), call.args);
    let small = call.held.peek(&call.keys[0]).is_some_and(|view| view.form() == 0);
    let Some(hash) = call.held.collection::<Hash>(&call.keys[0])? else {
        call.reply.array(2);
        call.reply.bulk(b"0");
        call.reply.array(0);
        return Ok(());
    };
    let filter = Filter::parse(&args, 3, Of::Fields)?;
    let (mut found, mut count) = (Encoder::default(), 0);
    let (from, step) = if small { (0, usize::MAX) } else { (cursor.0, filter.count) };
    let next = hash.scan(hasher, now, from, step, |field, value| {
        if filter.admits(field) {
            found.bulk(field);
            count += 1;
            if !filter.names_only {
                found.bulk(value);
                count += 1;
            }
        }
    });
    call.reply.array(2);
    call.reply.bulk(next.to_string().as_bytes());
    call.reply.array(count);
    call.reply.bytes.extend_from_slice(&found.bytes);
    Ok(())
}
