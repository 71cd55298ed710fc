//! HGETEX, HSETEX, HGETDEL: values and deadlines in one go.

use evenkeel_store::collection::Hash;
use evenkeel_store::{Edit, Expire};

use super::super::set_options::{Condition, Of, Options};
use super::times::{check_fields, find_fields, only_fields};
use super::{Call, note_form, reply_value, sight};
use crate::error::Done;

/// HGETEX key [EX seconds | PX ms | EXAT unix-seconds | PXAT unix-ms | PERSIST] FIELDS numfields field [field ...]
pub(super) fn hgetex(call: &mut Call<'_, '_>) -> Done {
    let args = call.args;
    let at = find_fields(&args, 2)?;
    let options = Options::parse(&args.until(at), 2, Of::HGetEx)?;
    let first = check_fields(&args, at, 1)?;
    // Of another type is said before a time that is none.
    call.held.peek_collection::<Hash>(&call.keys[0])?;
    let (settings, (hasher, now)) = (call.settings, sight(call));
    let expire = options.field_expire(now, "hgetex")?;
    let (keys, reply) = (call.keys, &mut *call.reply);
    reply.array(args.len() - first);
    let found = call.held.edit_if_there(&keys[0], |hash: &mut Edit<'_, Hash>| {
        for name in args.from(first) {
            reply_value(reply, Some(hash), (hasher, now), name);
            let Some(field) = hash.field(hasher, now, name).filter(|_| !options.leaves_deadline()) else {
                continue;
            };
            let had_deadline = field.deadline.is_some();
            hash.changes += u64::from(match expire {
                Expire::At(deadline) if deadline <= now => hash.remove(hasher, now, name),
                Expire::At(deadline) => hash.set_deadline(hasher, now, name, Some(deadline)),
                Expire::Clear | Expire::Keep => had_deadline && hash.set_deadline(hasher, now, name, None),
            });
        }
        note_form(hash, settings, 0);
    })?;
    if found.is_none() {
        args.from(first).for_each(|_| reply.null());
    }
    Ok(())
}

/// HSETEX key [NX | XX] [FNX | FXX] [EX seconds | PX ms | EXAT unix-seconds | PXAT unix-ms | KEEPTTL] FIELDS numfields
/// field value [field value ...]
pub(super) fn hsetex(call: &mut Call<'_, '_>) -> Done {
    let args = call.args;
    let at = find_fields(&args, 2)?;
    let options = Options::parse(&args.until(at), 2, Of::HSetEx)?;
    let first = check_fields(&args, at, 2)?;
    let is_there = call.held.peek_collection::<Hash>(&call.keys[0])?.is_some();
    if options.condition == if is_there { Condition::IfAbsent } else { Condition::IfPresent } {
        call.reply.int(0);
        return Ok(());
    }
    let (settings, (hasher, now)) = (call.settings, sight(call));
    let expire = options.field_expire(now, "hsetex")?;
    let sets = call.held.edit(&call.keys[0], |hash: &mut Edit<'_, Hash>| {
        let pairs = || (first..args.len()).step_by(2).map(|at| (args.at(at), args.at(at + 1)));
        let has = |name| hash.get(hasher, now, name).is_some();
        let sets = match options.field_condition {
            Condition::IfAbsent => !pairs().any(|(name, _)| has(name)),
            Condition::IfPresent => pairs().all(|(name, _)| has(name)),
            _ => true,
        };
        if !sets {
            return false;
        }
        let mut longest = 0;
        for (name, value) in pairs() {
            if let Expire::At(deadline) = expire
                && deadline <= now
            {
                hash.changes += u64::from(hash.remove(hasher, now, name));
                continue;
            }
            hash.set(hasher, now, name, value, expire);
            hash.changes += 1;
            longest = longest.max(name.len()).max(value.len());
        }
        note_form(hash, settings, longest);
        true
    })?;
    call.reply.int(i64::from(sets));
    Ok(())
}

/// HGETDEL key FIELDS numfields field [field ...]
pub(super) fn hgetdel(call: &mut Call<'_, '_>) -> Done {
    let (args, (hasher, now)) = (call.args, sight(call));
    let first = only_fields(&args)?;
    call.held.peek_collection::<Hash>(&call.keys[0])?;
    let (keys, reply) = (call.keys, &mut *call.reply);
    reply.array(args.len() - first);
    let found = call.held.edit_if_there(&keys[0], |hash: &mut Edit<'_, Hash>| {
        for name in args.from(first) {
            reply_value(reply, Some(hash), (hasher, now), name);
            hash.changes += u64::from(hash.remove(hasher, now, name));
        }
    })?;
    if found.is_none() {
        args.from(first).for_each(|_| reply.null());
    }
    Ok(())
}
