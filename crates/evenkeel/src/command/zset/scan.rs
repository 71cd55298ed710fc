//! ZSCAN: a sorted set by pages.

use evenkeel_resp::float;
use evenkeel_resp::reply::Encoder;
use evenkeel_store::collection::ZSet;

use super::LISTPACK;
use crate::command::Call;
use crate::command::scan::{Filter, Of, cursor_of};
use crate::error::{Done, Error};

/// ZSCAN key cursor [MATCH pattern] [COUNT count] [NOSCORES]
///
/// What is a `listpack` to clients comes whole, as from Redis. Scores are texts even in RESP3.
pub(super) fn zscan(call: &mut Call<'_, '_>) -> Done {
    let cursor = cursor_of(call.args.at(2)).ok_or(Error::text("ERR invalid cursor"))?;
    let (hasher, args) = (&call.held.keyspace().hasher, call.args);
    let small = call.held.peek(&call.keys[0]).is_some_and(|view| view.form() == LISTPACK);
    let Some(zset) = call.held.collection::<ZSet>(&call.keys[0])? else {
        call.reply.array(2);
        call.reply.bulk(b"0");
        call.reply.array(0);
        return Ok(());
    };
    let filter = Filter::parse(&args, 3, Of::ScoredMembers)?;
    let (mut found, mut count) = (Encoder::default(), 0);
    let (from, step) = if small { (0, usize::MAX) } else { (cursor.0, filter.count) };
    let next = zset.scan(hasher, from, step, |member, score| {
        if filter.admits(member) {
            found.bulk(member);
            count += 1;
            if !filter.names_only {
                tell(&mut found, score, small);
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

/// A score as a text, which in a `listpack` is that of an integer where the score is one.
fn tell(found: &mut Encoder, score: f64, small: bool) {
    /// Larger ones are no integers to a `listpack`.
    const INTEGER_MAX: f64 = (1_i64 << 62) as f64;
    if small && score.abs() <= INTEGER_MAX && score == score.trunc() {
        found.bulk_int(score as i64);
    } else {
        found.bulk(float::Text::new(score).as_bytes());
    }
}
