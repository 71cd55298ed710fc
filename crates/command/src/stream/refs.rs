//! XDELEX and XACKDEL: deletion of entries with a choice about the references to them.

use evenkeel_store::Edit;
use evenkeel_store::collection::stream::{Stream, StreamId};

use super::id;
use super::trim::Refs;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::{Args, Call};

/// The outcomes for an entry, in the reply.
const NOT_FOUND: i64 = -1;
const DELETED: i64 = 1;
const KEPT: i64 = 2;

/// Parses `[KEEPREF | DELREF | ACKED] IDS numids id [id ...]`, in either order, from an argument on.
fn parse(args: &Args<'_>, first: usize) -> Result<(Refs, Vec<StreamId>), Error> {
    let (mut refs, mut ids, mut at) = (None, None, first);
    while at < args.len() {
        let word = args.word(at);
        match Refs::parse(word.as_bytes()) {
            Some(_) if refs.is_some() => return Err(Error::Syntax),
            Some(given) => {
                refs = Some(given);
                at += 1;
            }
            None if word.as_bytes() == b"IDS" && ids.is_none() && at + 1 < args.len() => {
                let count = count(args, at + 1)?;
                ids = Some(at + 2..at + 2 + count);
                at += 2 + count;
            }
            None => return Err(Error::Syntax),
        }
    }
    let ids = ids.ok_or(Error::text("ERR IDS option is required"))?;
    let ids: Result<Vec<StreamId>, Error> = ids.map(|at| id::strict(args.at(at), 0)).collect();
    Ok((refs.unwrap_or_default(), ids?))
}

/// Parses the number of IDs at an argument, which as many IDs must follow.
fn count(args: &Args<'_>, at: usize) -> Result<usize, Error> {
    let count = args.int(at).ok().and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0);
    let count = count.ok_or(Error::text("ERR Number of IDs must be a positive integer"))?;
    if count > args.len() - at - 1 {
        return Err(Error::text("ERR The `numids` parameter must match the number of arguments"));
    }
    Ok(count)
}

/// XDELEX key [KEEPREF | DELREF | ACKED] IDS numids id [id ...]
pub(super) fn xdelex(call: &mut Call<'_, '_>) -> Done {
    let (refs, ids) = parse(&call.args, 2)?;
    let done = call.guard.edit_if_there(&call.keys[0], |edit: &mut Edit<'_, Stream>| {
        let codes = ids.iter().map(|id| delete(edit, *id, refs));
        codes.collect::<Vec<i64>>()
    })?;
    reply_codes(call, done, ids.len());
    Ok(Flow::Replied)
}

/// Deletes an entry as far as `refs` allows that.
fn delete(edit: &mut Edit<'_, Stream>, id: StreamId, refs: Refs) -> i64 {
    if refs == Refs::Acked && edit.entries().contains(id) && edit.is_referenced(id) {
        return KEPT;
    }
    // References to a missing entry go as well.
    let unreferenced = if refs == Refs::Delete { edit.forget(id) } else { 0 };
    let deleted = edit.delete(id);
    edit.changes += u64::from(deleted).max(unreferenced);
    if deleted { DELETED } else { NOT_FOUND }
}

/// XACKDEL key group [KEEPREF | DELREF | ACKED] IDS numids id [id ...]
pub(super) fn xackdel(call: &mut Call<'_, '_>) -> Done {
    let (refs, ids) = parse(&call.args, 3)?;
    let name = call.args.at(2);
    let done = call.guard.edit_if_there(&call.keys[0], |edit: &mut Edit<'_, Stream>| {
        let codes = ids.iter().map(|id| {
            let acknowledged = edit.group_mut(name).is_some_and(|(group, _)| group.forget(*id));
            if !acknowledged {
                return NOT_FOUND;
            }
            edit.changes += 1;
            // The entry was acknowledged, even if it was deleted before.
            delete(edit, *id, refs).max(DELETED)
        });
        codes.collect::<Vec<i64>>()
    })?;
    reply_codes(call, done, ids.len());
    Ok(Flow::Replied)
}

/// Without a stream, all entries are missing.
fn reply_codes(call: &mut Call<'_, '_>, codes: Option<Vec<i64>>, count: usize) {
    let codes = codes.unwrap_or_else(|| vec![NOT_FOUND; count]);
    call.reply.array(codes.len());
    codes.iter().for_each(|code| call.reply.int(*code));
}
