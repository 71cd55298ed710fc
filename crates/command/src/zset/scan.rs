//! ZSCAN: a sorted set by pages.

use evenkeel_resp::float;
use evenkeel_resp::reply::Encoder;
use evenkeel_store::Hasher;
use evenkeel_store::collection::ZSet;

use super::LISTPACK;
use crate::Call;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::offloading::is_much;
use crate::reply::Reply;
use crate::scan::{Filter, Of, PageFound, cursor_of};

/// ZSCAN key cursor [MATCH pattern] [COUNT count] [NOSCORES]
///
/// A `listpack` comes as a whole, as from Redis. Scores are texts even in RESP3.
pub(super) fn zscan(call: &mut Call<'_, '_>) -> Done {
    let cursor = cursor_of(call.args.at(2)).ok_or(Error::text("ERR invalid cursor"))?;
    let (hasher, args) = (&call.guard.keyspace().hasher, call.args);
    let small = call.guard.peek(&call.keys[0]).is_some_and(|view| view.form() == LISTPACK);
    let Some(zset) = call.guard.collection::<ZSet>(&call.keys[0])? else {
        PageFound::default().reply(call.reply, 0);
        return Ok(Flow::Replied);
    };
    let filter = Filter::parse(&args, 3, Of::ScoredMembers)?;
    let (from, step) = if small { (0, usize::MAX) } else { (cursor.0, filter.count) };
    if is_much(zset.len().min(step as u64)) {
        let (zset, hasher, args) = (ZSet::clone(&zset), hasher.clone(), args.to_owned());
        return call.offload_reply(move |reply| {
            let filter = Filter::parse(&args.as_args(), 3, Of::ScoredMembers).expect("it was read before");
            page(reply, &zset, &hasher, (from, step), &filter, small);
        });
    }
    page(call.reply, &zset, hasher, (from, step), &filter, small);
    Ok(Flow::Replied)
}

fn page(
    reply: &mut Reply,
    zset: &ZSet,
    hasher: &Hasher,
    (from, step): (u64, usize),
    filter: &Filter<'_>,
    small: bool,
) {
    let mut page = PageFound::default();
    let next = zset.scan(hasher, from, step, |member, score| {
        if filter.admits(member) {
            page.found.bulk(member);
            page.count += 1;
            if !filter.names_only {
                write_score(&mut page.found, score, small);
                page.count += 1;
            }
        }
    });
    page.reply(reply, next);
}

/// Writes a score as a text; in a `listpack`, a whole number as an integer.
fn write_score(found: &mut Encoder, score: f64, small: bool) {
    /// Larger numbers are no integers to a `listpack`.
    const INTEGER_MAX: f64 = (1_i64 << 62) as f64;
    if small && score.abs() <= INTEGER_MAX && score == score.trunc() {
        found.bulk_int(score as i64);
    } else {
        found.bulk(float::Text::new(score).as_bytes());
    }
}
