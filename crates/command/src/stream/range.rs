//! XRANGE and XREVRANGE, and the form of entries in replies.

use std::ops::Range;

use evenkeel_store::collection::stream::{Entry, Stream};

use super::id;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::offloading::is_much;
use crate::reply::Reply;
use crate::{Args, Call};

/// XRANGE key start end [COUNT count]
pub(super) fn xrange(call: &mut Call<'_, '_>) -> Done {
    range(call, 2, 3, false)
}

/// XREVRANGE key end start [COUNT count]
pub(super) fn xrevrange(call: &mut Call<'_, '_>) -> Done {
    range(call, 3, 2, true)
}

/// Replies with the entries between the IDs at these arguments.
fn range(call: &mut Call<'_, '_>, start: usize, end: usize, backwards: bool) -> Done {
    let (start, end) = (id::start(call.args.at(start))?, id::end(call.args.at(end))?);
    let count = count(&call.args)?;
    let (stream, reply) = (call.guard.collection::<Stream>(&call.keys[0])?, &mut *call.reply);
    let Some(stream) = stream else {
        reply.array(0);
        return Ok(Flow::Replied);
    };
    if count == Some(0) {
        reply.null_array();
        return Ok(Flow::Replied);
    }
    let all = if start <= end { stream.entries().positions(start, end) } else { 0..0 };
    let taken = (all.end - all.start).min(count.unwrap_or(u64::MAX));
    let range = if backwards { all.end - taken..all.end } else { all.start..all.start + taken };
    if is_much(taken) {
        let stream = Stream::clone(&stream);
        return call.offload_reply(move |reply| reply_range(reply, &stream, range, backwards));
    }
    reply_range(reply, &stream, range, backwards);
    Ok(Flow::Replied)
}

fn reply_range(reply: &mut Reply, stream: &Stream, range: Range<u64>, backwards: bool) {
    reply.array((range.end - range.start) as usize);
    let entries = stream.entries().range(range);
    if backwards {
        entries.rev().for_each(|entry| reply_entry(reply, &entry));
    } else {
        entries.for_each(|entry| reply_entry(reply, &entry));
    }
}

/// Parses COUNT behind the IDs; the last counts. A negative number means zero.
fn count(args: &Args<'_>) -> Result<Option<u64>, Error> {
    let (mut count, mut at) = (None, 4);
    while at < args.len() {
        if !args.is(at, "COUNT") || at + 1 == args.len() {
            return Err(Error::Syntax);
        }
        count = Some(u64::try_from(args.int(at + 1)?).unwrap_or(0));
        at += 2;
    }
    Ok(count)
}

/// Replies with an entry in the common form: the ID, and an array of names and values in turn.
#[inline]
pub(super) fn reply_entry(reply: &mut Reply, entry: &Entry<'_>) {
    reply.array(2);
    reply_id_and_fields(reply, entry);
}

#[inline]
pub(super) fn reply_id_and_fields(reply: &mut Reply, entry: &Entry<'_>) {
    let fields = entry.fields();
    id::reply(reply, entry.id);
    reply.array(2 * fields.len());
    for (name, value) in fields {
        reply.bulk(name);
        reply.bulk(value);
    }
}
