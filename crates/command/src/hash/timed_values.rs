//! HGETEX, HSETEX, HGETDEL: values and deadlines in a single step.

use evenkeel_store::collection::Hash;
use evenkeel_store::{Edit, Expire};

use super::times::{check_fields, find_fields, only_fields};
use super::{Call, reply_value, say_removed, sight, update_form};
use crate::class::NEW;
use crate::flow::{Done, Flow};
use crate::set_options::{Condition, Of, Options};

/// HGETEX key [EX seconds | PX ms | EXAT unix-seconds | PXAT unix-ms | PERSIST] FIELDS numfields field [field
/// ...]
pub(super) fn hgetex(call: &mut Call<'_, '_>) -> Done {
    let args = call.args;
    let at = find_fields(&args, 2)?;
    let options = Options::parse(&args.until(at), 2, Of::HGetEx)?;
    let first = check_fields(&args, at, 1)?;
    // A key of another type is reported before an invalid time.
    call.guard.peek_collection::<Hash>(&call.keys[0])?;
    let (settings, (hasher, now)) = (call.settings, sight(call));
    let has_passed = call.passes();
    let (expire, len_max) = (options.field_expire(call.counts_from_ms(), "hgetex")?, call.reply_len_max());
    let (keys, reply) = (call.keys, &mut *call.reply);
    reply.array(args.len() - first);
    let changed = call.guard.edit_if_there(&keys[0], |hash: &mut Edit<'_, Hash>| {
        let mut changed = Vec::new();
        for name in args.from(first) {
            if !reply.cut_beyond(len_max) {
                reply_value(reply, Some(hash), (hasher, now), name);
            }
            let Some(field) = hash.field(hasher, now, name).filter(|_| !options.leaves_deadline()) else {
                continue;
            };
            let had_deadline = field.deadline.is_some();
            let changes = match expire {
                Expire::At(deadline) if has_passed(deadline) => hash.remove(hasher, now, name),
                Expire::At(deadline) => hash.set_deadline(hasher, now, name, Some(deadline.max(1))),
                Expire::Clear | Expire::Keep => had_deadline && hash.set_deadline(hasher, now, name, None),
            };
            changed.extend(changes.then_some(name));
        }
        hash.changes = changed.len() as u64;
        update_form(hash, settings, 0);
        changed
    })?;
    match changed {
        Some(changed) if changed.is_empty() => {}
        Some(changed) => {
            log_deadlines(call, &changed, expire);
            say_changed(call, changed, expire);
        }
        None => args.from(first).for_each(|_| reply.null()),
    }
    Ok(Flow::Replied)
}

/// Emits the events of fields whose deadlines HGETEX has changed.
fn say_changed(call: &mut Call<'_, '_>, changed: Vec<&[u8]>, expire: Expire) {
    let key = &call.keys[0];
    match expire {
        Expire::At(deadline) if call.passes()(deadline) => {
            call.guard.count_expired_fields(changed.len() as u64);
            call.say_fields(key, "hexpired", changed);
            call.say_gone(key);
        }
        Expire::At(_) => call.say_fields(key, "hexpire", changed),
        Expire::Clear | Expire::Keep => call.say_fields(key, "hpersist", changed),
    }
}

/// Logs the effect of HGETEX on the deadlines of these fields.
fn log_deadlines(call: &mut Call<'_, '_>, changed: &[&[u8]], expire: Expire) {
    let key = call.keys[0].bytes;
    if !call.is_logged() {
        return;
    }
    match expire {
        Expire::At(deadline) if call.passes()(deadline) => call.log_each(&[b"HDEL", key], 1, changed),
        Expire::At(deadline) => {
            call.log_fields(&[b"HPEXPIREAT", key, deadline.to_string().as_bytes()], 1, changed);
        }
        Expire::Clear | Expire::Keep => call.log_fields(&[b"HPERSIST", key], 1, changed),
    }
}

/// HSETEX key [NX | XX] [FNX | FXX] [EX seconds | PX ms | EXAT unix-seconds | PXAT unix-ms | KEEPTTL] FIELDS
/// numfields field value [field value ...]
pub(super) fn hsetex(call: &mut Call<'_, '_>) -> Done {
    let args = call.args;
    let at = find_fields(&args, 2)?;
    let options = Options::parse_sent(&args.until(at), 2, Of::HSetEx, call.replays)?;
    let first = check_fields(&args, at, 2)?;
    let is_there = call.guard.peek_collection::<Hash>(&call.keys[0])?.is_some();
    if options.condition == if is_there { Condition::IfAbsent } else { Condition::IfPresent } {
        call.reply.int(0);
        return Ok(Flow::Replied);
    }
    let (settings, (hasher, now)) = (call.settings, sight(call));
    let expire = options.field_expire(call.counts_from_ms(), "hsetex")?;
    // The source of an import sees no deadline as passed but zero.
    let kept = if let Expire::At(deadline) = expire { Expire::At(deadline.max(1)) } else { expire };
    let (mut traces, has_passed) = (Traces::default(), call.passes());
    let sets = call.guard.edit(&call.keys[0], |hash: &mut Edit<'_, Hash>| {
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
                && has_passed(deadline)
            {
                // Expired fields, too.
                hash.removes_expired = true;
                if hash.remove(hasher, 0, name) {
                    hash.changes += 1;
                    traces.removed.push(name);
                }
                continue;
            }
            let size = hash.size();
            let is_new = hash.set(hasher, now, name, value, kept);
            if expire == Expire::Keep && is_new && hash.size() == size {
                traces.expired.push(name);
            }
            hash.changes += 1;
            longest = longest.max(name.len()).max(value.len());
        }
        update_form(hash, settings, longest);
        true
    })?;
    if sets {
        log_set(call, first, expire, &traces);
        say_set(call, is_there, first, expire, traces.removed);
    }
    call.reply.int(i64::from(sets));
    Ok(Flow::Replied)
}

/// Emits the events of set fields and of their fate; as in Valkey, also for fields that are gone at once.
fn say_set(call: &mut Call<'_, '_>, was_there: bool, first: usize, expire: Expire, removed: Vec<&[u8]>) {
    let (args, key, has_passed) = (call.args, &call.keys[0], call.passes());
    let all = || args.from(first).step_by(2);
    let is_past = matches!(expire, Expire::At(deadline) if has_passed(deadline));
    if is_past && !was_there {
        call.say(key, NEW, "new");
    }
    call.say_fields(key, "hset", all());
    if matches!(expire, Expire::At(_)) {
        call.say_fields(key, "hexpire", all());
    }
    if is_past {
        call.guard.count_expired_fields(all().count() as u64);
        call.say_fields(key, "hexpired", removed);
        call.say_gone(key);
    }
}

/// State that HSETEX has found and the journal's reader would not find.
#[derive(Default)]
struct Traces<'a> {
    /// Fields that had expired, whose deadlines were not kept.
    expired: Vec<&'a [u8]>,
    /// Fields that were removed, since their new deadline has passed.
    removed: Vec<&'a [u8]>,
}

/// Logs that the fields from argument `first` on were set unconditionally.
fn log_set(call: &mut Call<'_, '_>, first: usize, expire: Expire, traces: &Traces<'_>) {
    let (args, key) = (call.args, call.keys[0].bytes);
    if !call.is_logged() {
        return;
    }
    match expire {
        Expire::At(deadline) if call.passes()(deadline) => {
            call.log_each(&[b"HDEL", key], 1, &traces.removed);
        }
        Expire::At(deadline) => {
            let deadline = deadline.to_string();
            call.log_fields(&[b"HSETEX", key, b"PXAT", deadline.as_bytes()], 2, args.from(first));
        }
        Expire::Keep => {
            call.log_fields(&[b"HSETEX", key, b"KEEPTTL"], 2, args.from(first));
            call.log_fields(&[b"HPERSIST", key], 1, &traces.expired);
        }
        Expire::Clear => call.log_each(&[b"HSET", key], 2, args.from(first)),
    }
}

/// HGETDEL key FIELDS numfields field [field ...]
pub(super) fn hgetdel(call: &mut Call<'_, '_>) -> Done {
    let (args, (hasher, now)) = (call.args, sight(call));
    let first = only_fields(&args)?;
    call.guard.peek_collection::<Hash>(&call.keys[0])?;
    let (keys, reply) = (call.keys, &mut *call.reply);
    reply.array(args.len() - first);
    let mut gone = Vec::new();
    let hash = call.guard.edit_if_there(&keys[0], |hash: &mut Edit<'_, Hash>| {
        for name in args.from(first) {
            reply_value(reply, Some(hash), (hasher, now), name);
            gone.extend(hash.remove(hasher, now, name).then_some(name));
        }
        hash.changes = gone.len() as u64;
    })?;
    if hash.is_none() {
        args.from(first).for_each(|_| reply.null());
    }
    call.log_each(&[b"HDEL", keys[0].bytes], 1, &gone);
    say_removed(call, !gone.is_empty(), gone);
    Ok(Flow::Replied)
}
