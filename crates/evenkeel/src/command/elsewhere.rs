//! Long commands on one collection: what they reply or change is worked out by another thread (see [`crate::long`]).

use evenkeel_store::collection::Collection;

use super::Call;
use crate::error::Done;
use crate::long::{LONG_MIN, Work};
use crate::reply::Reply;

/// Whether going through so many elements is worth being done elsewhere.
#[inline]
pub(crate) fn is_much(elements: u64) -> bool {
    elements >= LONG_MIN as u64
}

impl Call<'_, '_> {
    /// Replies with what `write` makes of a clone of the collection that it owns.
    pub(crate) fn reply_elsewhere(&mut self, write: impl FnOnce(&mut Reply) + Send + 'static) -> Done {
        self.go_long(Work::reads(move |reply| {
            write(reply);
            Ok(())
        }))
    }

    /// Has the collection at the call's first key changed elsewhere: `change` gets a clone, which then takes the
    /// collection's place, and returns how many elements it has changed. It writes the reply.
    pub(crate) fn change_elsewhere<T: Collection>(
        &mut self,
        collection: T,
        change: impl FnOnce(&mut T, &mut Reply) -> u64 + Send + 'static,
    ) -> Done {
        let known = collection.clone();
        let mut reply = Reply::default();
        reply.resp3 = self.reply.resp3;
        let compute = move || {
            let mut changed = collection;
            let changes = change(&mut changed, &mut reply);
            Ok((changed, changes, reply))
        };
        let is_current = move |call: &mut Call<'_, '_>| {
            let now = call.held.peek_collection::<T>(&call.keys[0]);
            now.is_ok_and(|now| now.is_some_and(|now| now.is_same(&known)))
        };
        self.go_long(Work::writes(compute, is_current, |call, (changed, changes, reply)| {
            let old = call.held.edit_if_there::<T, _>(&call.keys[0], |edit| {
                edit.changes = changes;
                std::mem::replace(&mut **edit, changed)
            })?;
            if let Some(old) = old {
                call.held.discard(old);
            }
            call.reply.append(reply);
            Ok(())
        }))
    }
}

#[cfg(test)]
mod tests;
