//! Long commands on a collection: another thread computes the reply or the change (see [`Work`]).

use evenkeel_store::collection::Collection;

use crate::Call;
use crate::flow::{Done, Flow};
use crate::flow::{OFFLOAD_MIN, Work};
use crate::reply::Reply;

/// Whether a walk over so many elements is worth offloading.
#[inline]
pub fn is_much(elements: u64) -> bool {
    elements >= OFFLOAD_MIN as u64
}

impl Call<'_, '_> {
    /// Offloads the reply: `write` owns a clone of the collection.
    pub fn offload_reply(&mut self, write: impl FnOnce(&mut Reply) + Send + 'static) -> Done {
        self.offload(Work::reads(move |reply| {
            write(reply);
            Ok(())
        }))
    }

    /// Returns the first of the call's keys that exists, if the command takes so many elements from it that
    /// it should be offloaded. A command that may block (BZMPOP) always works in place: if another command
    /// emptied the key meanwhile, it would have to block on a thread that cannot.
    pub fn first_of_much(&mut self, elements: u64) -> Option<usize> {
        let keys = if is_much(elements) { self.keys } else { &[] };
        keys.iter().position(|key| self.guard.peek(key).is_some())
    }

    /// Offloads a change of the collection at the call's first key. `change` gets a clone, which then
    /// replaces the collection, and returns how many elements it has changed. It writes the reply.
    pub fn offload_change<T: Collection>(
        &mut self,
        collection: T,
        change: impl FnOnce(&mut T, &mut Reply) -> u64 + Send + 'static,
    ) -> Done {
        self.offload_change_and_log(0, collection, change, |_, _| {})
    }

    /// [`Call::offload_change`] for the call's key of index `key`, the first that exists. `log` is called
    /// in the end, with the old value.
    pub fn offload_change_and_log<T: Collection>(
        &mut self,
        key: usize,
        collection: T,
        change: impl FnOnce(&mut T, &mut Reply) -> u64 + Send + 'static,
        log: impl FnOnce(&mut Call<'_, '_>, &T) + Send + 'static,
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
            let now = call.guard.peek_collection::<T>(&call.keys[key]);
            let is_same = now.is_ok_and(|now| now.is_some_and(|now| now.is_same(&known)));
            is_same && call.keys[..key].iter().all(|before| call.guard.peek(before).is_none())
        };
        self.offload(Work::writes(compute, is_current, move |call, (changed, changes, reply)| {
            let old = call.guard.edit_if_there::<T, _>(&call.keys[key], |edit| {
                edit.changes = changes;
                std::mem::replace(&mut **edit, changed)
            })?;
            if let Some(old) = old {
                log(call, &old);
                call.guard.discard(old);
            }
            call.reply.append(reply);
            Ok(Flow::Replied)
        }))
    }
}
