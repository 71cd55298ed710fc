//! Hashes made from a list of names and a list of values.

use evenkeel_store::Expire;
use evenkeel_store::collection::{Collection, Hash};

use super::{Call, LARGE, sight};
use crate::effect::log_each;
use crate::flow::{Done, Flow};

/// Sets the command's key to a hash of these fields, whose values are the arguments from `first` on. A hash
/// there is replaced, and its deadline with it; a value of another type is an error.
pub fn import(call: &mut Call<'_, '_>, fields: &[Box<[u8]>], first: usize) -> Done {
    let (args, settings, (hasher, now)) = (call.args, call.settings, sight(call));
    let key = &call.keys[0];
    let replaces = call.guard.peek_collection::<Hash>(key)?.is_some();
    let (mut hash, mut longest) = (Hash::new(), 0);
    let pairs = || fields.iter().map(|field| &**field).zip(args.from(first));
    for (field, value) in pairs() {
        hash.set(hasher, now, field, value, Expire::Clear);
        longest = longest.max(field.len()).max(value.len());
    }
    let is_large =
        longest > settings.hash_max_listpack_value || fields.len() > settings.hash_max_listpack_entries;
    call.guard.set_collection(key, hash, if is_large { LARGE } else { 0 }, None);
    if call.is_logged() {
        if replaces {
            call.log(&[b"DEL", key.bytes]);
        }
        let words = pairs().flat_map(|(field, value)| [field, value]);
        log_each(call.guard, call.db, &[b"HSET", key.bytes], 2, words);
    }
    if replaces {
        call.say_overwritten(key, false);
    }
    call.say_fields(key, "hset", fields.iter().map(|field| &**field));
    call.reply.ok();
    Ok(Flow::Replied)
}
