//! HGETEX, HSETEX, HGETDEL: values and deadlines in a single step.

use evenkeel_store::collection::Hash;
use evenkeel_store::{Edit, Expire};

use super::times::{check_fields, find_fields, only_fields};
use super::{Call, reply_value, sight, update_form};
use crate::class::{HASH, NEW};
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
                Expire::At(deadline) if deadline <= now => hash.remove(hasher, now, name),
                Expire::At(deadline) => hash.set_deadline(hasher, now, name, Some(deadline)),
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
            match expire {
                Expire::At(deadline) if deadline <= now => call.say_taken(&keys[0], HASH, "hexpired"),
                Expire::At(_) => call.say(&keys[0], HASH, "hexpire"),
                Expire::Clear | Expire::Keep => call.say(&keys[0], HASH, "hpersist"),
            }
        }
        None => args.from(first).for_each(|_| reply.null()),
    }
    Ok(Flow::Replied)
}

/// Logs the effect of HGETEX on the deadlines of these fields.
fn log_deadlines(call: &mut Call<'_, '_>, changed: &[&[u8]], expire: Expire) {
    let (key, now) = (call.keys[0].bytes, call.now_ms());
    if !call.is_logged() {
        return;
    }
    match expire {
        Expire::At(deadline) if deadline <= now => call.log_each(&[b"HDEL", key], 1, changed),
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
    let mut traces = Traces::default();
    let sets = call.guard.edit(&call.keys[0], |hash: &mut Edit<'_, Hash>| {
        let size = hash.size();
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
            let size = hash.size();
            let is_new = hash.set(hasher, now, name, value, expire);
            if expire == Expire::Keep && is_new && hash.size() == size {
                traces.expired.push(name);
            }
            hash.changes += 1;
            longest = longest.max(name.len()).max(value.len());
        }
        update_form(hash, settings, longest);
        traces.removed_any = hash.size() < size;
        traces.was_lost = size > 0 && hash.size() == 0 && hash.changes == 0;
        true
    })?;
    if sets {
        let was_lost = traces.was_lost;
        log_set(call, first, expire, traces);
        say_set(call, is_there, was_lost, expire);
    }
    call.reply.int(i64::from(sets));
    Ok(Flow::Replied)
}

/// Emits the events of set fields and of their fate; as in Valkey, also for fields that are gone at once.
fn say_set(call: &mut Call<'_, '_>, was_there: bool, was_lost: bool, expire: Expire) {
    let (key, now) = (&call.keys[0], call.now_ms());
    let is_past = matches!(expire, Expire::At(deadline) if deadline <= now);
    if is_past && !was_there {
        call.say(key, NEW, "new");
    }
    call.say(key, HASH, "hset");
    if matches!(expire, Expire::At(_)) {
        call.say(key, HASH, "hexpire");
    }
    // If all fields had expired before, their event was already emitted.
    if is_past && !was_lost {
        call.say_taken(key, HASH, "hexpired");
    }
}

/// State that HSETEX has found and the journal's reader would not find.
#[derive(Default)]
struct Traces<'a> {
    /// Fields that had expired, whose deadlines were not kept.
    expired: Vec<&'a [u8]>,
    removed_any: bool,
    /// All fields had expired before.
    was_lost: bool,
}

/// Logs that the fields from argument `first` on were set unconditionally.
fn log_set(call: &mut Call<'_, '_>, first: usize, expire: Expire, traces: Traces<'_>) {
    let (args, key, now) = (call.args, call.keys[0].bytes, call.now_ms());
    if !call.is_logged() {
        return;
    }
    match expire {
        Expire::At(deadline) if deadline <= now => {
            if traces.removed_any {
                call.log_each(&[b"HDEL", key], 1, args.from(first).step_by(2));
            }
        }
        Expire::At(deadline) => {
            let deadline = deadline.to_string();
            call.log_fields(&[b"HSETEX", key, b"PXAT", deadline.as_bytes()], 2, args.from(first));
        }
        Expire::Keep => {
            call.log_fields(&[b"HSETEX", key, b"KEEPTTL"], 2, args.from(first));
            call.log_fields(&[b"HPERSIST", key], 1, traces.expired);
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
    let removed_any = call.guard.edit_if_there(&keys[0], |hash: &mut Edit<'_, Hash>| {
        let size = hash.size();
        for name in args.from(first) {
            reply_value(reply, Some(hash), (hasher, now), name);
            hash.changes += u64::from(hash.remove(hasher, now, name));
        }
        hash.size() < size
    })?;
    match removed_any {
        Some(true) => call.log_each(&[b"HDEL", keys[0].bytes], 1, args.from(first)),
        Some(false) => {}
        None => args.from(first).for_each(|_| reply.null()),
    }
    Ok(Flow::Replied)
}
