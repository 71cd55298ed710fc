//! Deadlines of fields: set, cleared, queried.
//!
//! The syntax is Valkey's. A deadline that is not after the present removes the field at once.

use evenkeel_store::collection::Hash;
use evenkeel_store::{Edit, Millis};

use super::{Args, Call, sight, update_form};
use crate::error::Error;
use crate::expire::{Conditions, to_seconds};
use crate::flow::{Done, Flow};

/// HEXPIRE key seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]
pub(super) fn hexpire(call: &mut Call<'_, '_>) -> Done {
    set_deadlines(call, 1000, call.counts_from_ms())
}

/// HPEXPIRE key milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]
pub(super) fn hpexpire(call: &mut Call<'_, '_>) -> Done {
    set_deadlines(call, 1, call.counts_from_ms())
}

/// HEXPIREAT key unix-time-seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]
pub(super) fn hexpireat(call: &mut Call<'_, '_>) -> Done {
    set_deadlines(call, 1000, 0)
}

/// HPEXPIREAT key unix-time-milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]
pub(super) fn hpexpireat(call: &mut Call<'_, '_>) -> Done {
    set_deadlines(call, 1, 0)
}

/// Finds the first word FIELDS from `from` on; the last argument cannot be it.
pub(super) fn find_fields(args: &Args<'_>, from: usize) -> Result<usize, Error> {
    (from..args.len() - 1).find(|at| args.is(*at, "FIELDS")).ok_or(Error::text(COUNT))
}

const COUNT: &str = "ERR numfields should be greater than 0 and match the provided number of fields";

/// Checks the number of fields after the word FIELDS at `at`, each of which takes `step` arguments. Returns
/// where the fields begin.
pub(super) fn check_fields(args: &Args<'_>, at: usize, step: usize) -> Result<usize, Error> {
    let (count, first) = (args.int(at + 1)?, at + 2);
    let is_right = usize::try_from(count)
        .is_ok_and(|count| count > 0 && count.checked_mul(step) == Some(args.len() - first));
    if is_right { Ok(first) } else { Err(Error::text(COUNT)) }
}

/// Checks the fields of a call with nothing else after its key; `FIELDS` is the third argument.
pub(super) fn only_fields(args: &Args<'_>) -> Result<usize, Error> {
    if args.is(2, "FIELDS") { check_fields(args, 2, 1) } else { Err(Error::Syntax) }
}

/// Sets a deadline given in units of `unit_ms` after `base`.
fn set_deadlines(call: &mut Call<'_, '_>, unit_ms: i64, base: Millis) -> Done {
    let args = call.args;
    let at = find_fields(&args, 3)?;
    let conditions = Conditions::parse(&args.until(at))?;
    let first = check_fields(&args, at, 1)?;
    let given = args.int(2)?;
    let deadline = given.checked_mul(unit_ms).and_then(|given| given.checked_add_unsigned(base));
    let deadline = deadline.filter(|_| given >= 0).ok_or(Error::InvalidExpire(call.name()))?;
    let (settings, (hasher, now)) = (call.settings, sight(call));
    let has_passed = call.passes()(deadline as u64);
    let outcomes = call.guard.edit_if_there(&call.keys[0], |hash: &mut Edit<'_, Hash>| {
        let set = |name| {
            let outcome = set_deadline(hash, hasher, now, name, (deadline, has_passed), &conditions);
            hash.changes += u64::from(outcome > 0);
            outcome
        };
        let outcomes: Vec<i64> = args.from(first).map(set).collect();
        update_form(hash, settings, 0);
        outcomes
    })?;
    let found = outcomes.as_deref().unwrap_or_default();
    log_deadlines(call, found, first, deadline);
    let [set, expired] = [1, 2].map(|outcome| found.iter().filter(|other| **other == outcome).count());
    if set > 0 {
        call.say_fields(&call.keys[0], "hexpire", with(args, found, first, 1));
    }
    if expired > 0 {
        call.guard.count_expired_fields(expired as u64);
        call.say_fields(&call.keys[0], "hexpired", with(args, found, first, 2));
        call.say_gone(&call.keys[0]);
    }
    reply_each(call, outcomes, args.len() - first)
}

/// Logs the outcomes for the fields from argument `first` on.
fn log_deadlines(call: &mut Call<'_, '_>, outcomes: &[i64], first: usize, deadline: i64) {
    let (args, key) = (call.args, call.keys[0].bytes);
    if call.is_logged() {
        let set = with(args, outcomes, first, 1);
        call.log_fields(&[b"HPEXPIREAT", key, deadline.to_string().as_bytes()], 1, set);
        call.log_each(&[b"HDEL", key], 1, with(args, outcomes, first, 2));
    }
}

/// Returns the fields, out of those from argument `first` on, that have met this outcome.
fn with<'a>(args: Args<'a>, outcomes: &[i64], first: usize, wanted: i64) -> impl Iterator<Item = &'a [u8]> {
    let pairs = args.from(first).zip(outcomes);
    pairs.filter(move |(_, outcome)| **outcome == wanted).map(|(name, _)| name)
}

/// Returns 2 if the field was removed, 1 if its deadline was set, 0 if the conditions did not hold, -2 for a
/// missing field.
fn set_deadline(
    hash: &mut Hash,
    hasher: &evenkeel_store::Hasher,
    now: Millis,
    name: &[u8],
    (deadline, has_passed): (i64, bool),
    conditions: &Conditions,
) -> i64 {
    let Some(field) = hash.field(hasher, now, name) else { return -2 };
    if !conditions.admit(field.deadline, deadline) {
        return 0;
    }
    if has_passed {
        hash.remove(hasher, now, name);
        return 2;
    }
    hash.set_deadline(hasher, now, name, Some((deadline as Millis).max(1)));
    1
}

/// Replies with a number for each field; without a hash, all `count` fields are missing.
fn reply_each(call: &mut Call<'_, '_>, numbers: Option<Vec<i64>>, count: usize) -> Done {
    call.reply.array(count);
    match numbers {
        Some(numbers) => numbers.into_iter().for_each(|number| call.reply.int(number)),
        None => (0..count).for_each(|_| call.reply.int(-2)),
    }
    Ok(Flow::Replied)
}

/// HPERSIST key FIELDS numfields field [field ...]
pub(super) fn hpersist(call: &mut Call<'_, '_>) -> Done {
    let (args, (hasher, now)) = (call.args, sight(call));
    let first = only_fields(&args)?;
    let outcomes = call.guard.edit_if_there(&call.keys[0], |hash: &mut Edit<'_, Hash>| {
        let clear = |name| match hash.field(hasher, now, name).map(|field| field.deadline) {
            None => -2,
            Some(None) => -1,
            Some(Some(_)) => {
                hash.set_deadline(hasher, now, name, None);
                hash.changes += 1;
                1
            }
        };
        args.from(first).map(clear).collect::<Vec<i64>>()
    })?;
    // Other fields may have expired, of which the journal's reader does not know.
    let found = outcomes.as_deref().unwrap_or_default();
    call.log_fields(&[b"HPERSIST", call.keys[0].bytes], 1, with(args, found, first, 1));
    if found.contains(&1) {
        call.say_fields(&call.keys[0], "hpersist", with(args, found, first, 1));
    }
    reply_each(call, outcomes, args.len() - first)
}

/// HTTL key FIELDS numfields field [field ...]
pub(super) fn httl(call: &mut Call<'_, '_>) -> Done {
    let now = call.now_ms();
    reply_times(call, |deadline| to_seconds(deadline.saturating_sub(now)))
}

/// HPTTL key FIELDS numfields field [field ...]
pub(super) fn hpttl(call: &mut Call<'_, '_>) -> Done {
    let now = call.now_ms();
    reply_times(call, |deadline| deadline.saturating_sub(now))
}

/// HEXPIRETIME key FIELDS numfields field [field ...]
pub(super) fn hexpiretime(call: &mut Call<'_, '_>) -> Done {
    reply_times(call, to_seconds)
}

/// HPEXPIRETIME key FIELDS numfields field [field ...]
pub(super) fn hpexpiretime(call: &mut Call<'_, '_>) -> Done {
    reply_times(call, |deadline| deadline)
}

/// Replies with -2 for a missing field, -1 without a deadline, else with the result of `shown`.
fn reply_times(call: &mut Call<'_, '_>, shown: impl Fn(Millis) -> u64) -> Done {
    let (args, (hasher, now)) = (call.args, sight(call));
    if !args.is(2, "FIELDS") {
        return Err(Error::Syntax);
    }
    let count = args.int(3)?;
    if usize::try_from(count) != Ok(args.len() - 4) {
        return Err(Error::Syntax);
    }
    let hash = call.guard.collection::<Hash>(&call.keys[0])?;
    call.reply.array(args.len() - 4);
    for name in args.from(4) {
        let field = hash.as_ref().and_then(|hash| hash.field(hasher, now, name));
        call.reply.int(match field.map(|field| field.deadline) {
            None => -2,
            Some(None) => -1,
            Some(Some(deadline)) => shown(deadline) as i64,
        });
    }
    Ok(Flow::Replied)
}
