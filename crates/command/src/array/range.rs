//! Ranges of indices: with their holes, without them, removed; and the values that were inserted last.

use evenkeel_store::Edit;
use evenkeel_store::collection::Array;
use std::ops::{Range, RangeInclusive};

use super::{POSITIONS_MAX, check_pairs, index};
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::offloading::is_much;
use crate::reply::Reply;
use crate::{Args, Call};

/// A range of indices, which may be given from its end.
pub(super) struct Span {
    pub(super) indices: RangeInclusive<u64>,
    /// It was given from its end, and is walked from there.
    pub(super) is_reversed: bool,
}

impl Span {
    pub(super) fn of(start: u64, end: u64) -> Span {
        let is_reversed = start > end;
        Span { indices: start.min(end)..=start.max(end), is_reversed }
    }

    /// Parses the ends, at an argument and the next.
    pub(super) fn parse(args: &Args<'_>, at: usize) -> Result<Span, Error> {
        Ok(Span::of(index(args, at)?, index(args, at + 1)?))
    }

    fn len(&self) -> u64 {
        self.indices.end() - self.indices.start() + 1
    }

    /// Calls `each` with the position, the index and the value of all values in the range, until it returns
    /// false.
    pub(super) fn walk<'a>(&self, array: &'a Array, mut each: impl FnMut(u64, u64, &'a [u8]) -> bool) {
        let positions = array.positions(self.indices.clone());
        let values = array.range(positions.clone());
        if self.is_reversed {
            positions.rev().zip(values.rev()).all(|(at, (index, value))| each(at, index, value));
        } else {
            positions.zip(values).all(|(at, (index, value))| each(at, index, value));
        }
    }

    /// Replies with each position of the range: its value, or a null.
    fn reply_all(&self, reply: &mut Reply, array: Option<&Array>) {
        let nulls = |reply: &mut Reply, count: u64| (0..count).for_each(|_| reply.null());
        let mut passed = 0;
        if let Some(array) = array {
            self.walk(array, |at, index, value| {
                let (start, end) = (self.indices.start(), self.indices.end());
                let before = if self.is_reversed { end - index } else { index - start };
                nulls(reply, before - passed);
                reply.element(value, || array.share(at));
                passed = before + 1;
                true
            });
        }
        nulls(reply, self.len() - passed);
    }
}

/// Replies with all positions of the ranges, in their order; `len` in all.
fn reply_spans(call: &mut Call<'_, '_>, array: Option<Array>, spans: Vec<Span>, len: u64) -> Done {
    let write = move |reply: &mut Reply| {
        reply.array(len as usize);
        spans.iter().for_each(|span| span.reply_all(reply, array.as_ref()));
    };
    if is_much(len) {
        return call.offload_reply(write);
    }
    write(call.reply);
    Ok(Flow::Replied)
}

/// ARGETRANGE key start end
pub(super) fn argetrange(call: &mut Call<'_, '_>) -> Done {
    let span = Span::parse(&call.args, 2)?;
    let array = call.guard.collection::<Array>(&call.keys[0])?.map(|array| Array::clone(&array));
    let len = span.len();
    if len > POSITIONS_MAX {
        return Err(Error::text(format!("ERR range exceeds maximum of {POSITIONS_MAX} items")));
    }
    reply_spans(call, array, vec![span], len)
}

/// ARLASTITEMS key count [REV]
pub(super) fn arlastitems(call: &mut Call<'_, '_>) -> Done {
    let count = call.args.int(2).map_err(|_| Error::text("ERR invalid COUNT"))?;
    let Some(count) = u64::try_from(count).ok().filter(|count| *count > 0) else {
        call.reply.array(0);
        return Ok(Flow::Replied);
    };
    let newest_first = match call.args.len() {
        3 => false,
        4 if call.args.is(3, "REV") => true,
        4 => return Err(Error::Syntax),
        _ => return Err(Error::Arity(call.name())),
    };
    let array = call.guard.collection::<Array>(&call.keys[0])?.map(|array| Array::clone(&array));
    let Some(array) = array else {
        call.reply.array(0);
        return Ok(Flow::Replied);
    };
    let len = array.len();
    let count = count.min(len);
    if count > array.count() && count > POSITIONS_MAX {
        return Err(Error::text(format!("ERR count exceeds maximum of {POSITIONS_MAX} items")));
    }
    let newest = array.cursor().filter(|cursor| *cursor < len).unwrap_or(len - 1);
    // Down from the newest, and from the end once that has reached zero.
    let near = count.min(newest + 1);
    let mut spans = vec![Span::of(newest, newest + 1 - near)];
    if count > near {
        spans.push(Span::of(len - 1, len - (count - near)));
    }
    if !newest_first {
        spans.reverse();
    }
    spans.iter_mut().for_each(|span| span.is_reversed = newest_first);
    reply_spans(call, Some(array), spans, count)
}

/// ARSCAN key start end [LIMIT limit]
pub(super) fn arscan(call: &mut Call<'_, '_>) -> Done {
    let span = Span::parse(&call.args, 2)?;
    let limit = match call.args.len() {
        4 => u64::MAX,
        6 if call.args.is(4, "LIMIT") => limit(&call.args, 5)?,
        6 => return Err(Error::Syntax),
        _ => return Err(Error::Arity(call.name())),
    };
    let array = call.guard.collection::<Array>(&call.keys[0])?.map(|array| Array::clone(&array));
    let Some(array) = array else {
        call.reply.array(0);
        return Ok(Flow::Replied);
    };
    let Range { start, end } = array.positions(span.indices.clone());
    let count = limit.min(end - start);
    let write = move |reply: &mut Reply| {
        reply.array(count as usize);
        let mut left = count;
        span.walk(&array, |at, index, value| {
            let is_wanted = left > 0;
            if is_wanted {
                reply_pair(reply, &array, at, (index, value));
                left -= 1;
            }
            is_wanted
        });
    };
    if is_much(count) {
        return call.offload_reply(write);
    }
    write(call.reply);
    Ok(Flow::Replied)
}

/// Parses the argument of LIMIT.
pub(super) fn limit(args: &Args<'_>, at: usize) -> Result<u64, Error> {
    let limit = u64::try_from(args.int(at)?).ok().filter(|limit| *limit > 0);
    limit.ok_or(Error::text("ERR LIMIT must be positive"))
}

/// Replies with an index and its value, which is at this position.
pub(super) fn reply_pair(reply: &mut Reply, array: &Array, at: u64, (index, value): (u64, &[u8])) {
    reply.array(2);
    reply.uint(index);
    reply.element(value, || array.share(at));
}

/// ARDELRANGE key start end [start end ...]
pub(super) fn ardelrange(call: &mut Call<'_, '_>) -> Done {
    check_pairs(call)?;
    let at = (2..call.args.len()).step_by(2);
    let spans = at.map(|at| Span::parse(&call.args, at)).collect::<Result<Vec<Span>, Error>>()?;
    let removed = call.guard.edit_if_there(&call.keys[0], |array: &mut Edit<'_, Array>| {
        for span in spans {
            let positions = array.positions(span.indices);
            array.changes += positions.end - positions.start;
            let cut = array.remove_range(positions);
            array.discard(cut);
        }
        array.changes
    })?;
    call.reply.uint(removed.unwrap_or(0));
    Ok(Flow::Replied)
}
