//! Times to live: when a key expires, and how long that is from now.
//!
//! Redis counts in signed 64-bit milliseconds and refuses a number that does not fit before it looks at the
//! key. A deadline that is not after the present deletes the key at once, and the reply is still 1.

use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::{Args, Call, Command, DataHandler, Group, Keys, at_least, exactly, read, write};
use evenkeel_store::{Key, Millis};

const GROUP: Group = Group::Keyspace;

#[rustfmt::skip]
pub const COMMANDS: &[Command<DataHandler>] = &[
    write("EXPIRE",      at_least(3), Keys::FIRST, GROUP, expire     ).fast(),
    write("EXPIREAT",    at_least(3), Keys::FIRST, GROUP, expireat   ).fast(),
    write("PEXPIRE",     at_least(3), Keys::FIRST, GROUP, pexpire    ).fast(),
    write("PEXPIREAT",   at_least(3), Keys::FIRST, GROUP, pexpireat  ).fast(),
    write("PERSIST",     exactly(2),  Keys::FIRST, GROUP, persist    ).fast(),
    read ("TTL",         exactly(2),  Keys::FIRST, GROUP, ttl        ).fast(),
    read ("PTTL",        exactly(2),  Keys::FIRST, GROUP, pttl       ).fast(),
    read ("EXPIRETIME",  exactly(2),  Keys::FIRST, GROUP, expiretime ).fast(),
    read ("PEXPIRETIME", exactly(2),  Keys::FIRST, GROUP, pexpiretime).fast(),
];

/// EXPIRE key seconds [NX | XX | GT | LT]
fn expire(call: &mut Call<'_, '_>) -> Done {
    set_deadline(call, 1000, call.counts_from_ms())
}

/// EXPIREAT key unix-time-seconds [NX | XX | GT | LT]
fn expireat(call: &mut Call<'_, '_>) -> Done {
    set_deadline(call, 1000, 0)
}

/// PEXPIRE key milliseconds [NX | XX | GT | LT]
fn pexpire(call: &mut Call<'_, '_>) -> Done {
    set_deadline(call, 1, call.counts_from_ms())
}

/// PEXPIREAT key unix-time-milliseconds [NX | XX | GT | LT]
fn pexpireat(call: &mut Call<'_, '_>) -> Done {
    set_deadline(call, 1, 0)
}

/// Sets a deadline given in units of `unit_ms` after `base`.
fn set_deadline(call: &mut Call<'_, '_>, unit_ms: i64, base: Millis) -> Done {
    let conditions = Conditions::parse(&call.args)?;
    let given = call.args.int(2)?.checked_mul(unit_ms);
    let deadline = given.and_then(|given| given.checked_add_unsigned(base));
    let deadline = deadline.ok_or(Error::InvalidExpire(call.name()))?;
    let key = &call.keys[0];
    let current = call.guard.touch(key).map(|view| view.deadline());
    let admitted = current.is_some_and(|current| conditions.admit(current, deadline));
    if admitted {
        expire_at(call, key, u64::try_from(deadline).unwrap_or(0));
    }
    call.reply.int(i64::from(admitted));
    Ok(Flow::Replied)
}

/// Sets the deadline of an existing key, or removes the key if the deadline has passed; and logs that.
pub(crate) fn expire_at(call: &mut Call<'_, '_>, key: &Key<'_>, deadline: Millis) {
    if call.passes()(deadline) {
        return expire_now(call, key);
    }
    call.guard.set_deadline(key, Some(deadline));
    if call.is_logged() {
        call.log(&[b"PEXPIREAT", key.bytes, deadline.to_string().as_bytes()]);
    }
}

/// Removes a key whose new deadline has passed, if it exists, and logs that.
pub(crate) fn expire_now(call: &mut Call<'_, '_>, key: &Key<'_>) {
    if call.guard.remove_as_expired(key) {
        call.log_removal(key, call.settings.lazyfree_lazy_expire);
    }
}

/// The conditions for setting a deadline: NX, XX, GT, LT, some of which exclude each other.
#[derive(Default)]
pub(crate) struct Conditions {
    if_none: bool,
    if_any: bool,
    if_later: bool,
    if_earlier: bool,
}

impl Conditions {
    /// Parses the arguments from the fourth on.
    pub(crate) fn parse(args: &Args<'_>) -> Result<Conditions, Error> {
        let mut conditions = Conditions::default();
        for index in 3..args.len() {
            match args.word(index).as_bytes() {
                b"NX" => conditions.if_none = true,
                b"XX" => conditions.if_any = true,
                b"GT" => conditions.if_later = true,
                b"LT" => conditions.if_earlier = true,
                _ => {
                    return Err(Error::Bytes(
                        [b"ERR Unsupported option ", args.quoted(index, usize::MAX)].concat(),
                    ));
                }
            }
        }
        let Conditions { if_none, if_any, if_later, if_earlier } = conditions;
        if if_none && (if_any || if_later || if_earlier) {
            const TEXT: &str = "ERR NX and XX, GT or LT options at the same time are not compatible";
            return Err(Error::text(TEXT));
        }
        if if_later && if_earlier {
            return Err(Error::text("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(conditions)
    }

    /// A key without a deadline lives for ever: no deadline is later, every deadline is earlier.
    pub(crate) fn admit(&self, current: Option<Millis>, deadline: i64) -> bool {
        let current = current.map_or(i128::MAX, i128::from);
        let (has_any, deadline) = (current != i128::MAX, i128::from(deadline));
        !(self.if_none && has_any
            || self.if_any && !has_any
            || self.if_later && deadline <= current
            || self.if_earlier && deadline >= current)
    }
}

/// PERSIST key
fn persist(call: &mut Call<'_, '_>) -> Done {
    let key = &call.keys[0];
    let has_any = call.guard.touch(key).is_some_and(|view| view.deadline().is_some());
    if has_any {
        call.guard.set_deadline(key, None);
    }
    call.reply.int(i64::from(has_any));
    Ok(Flow::Replied)
}

/// TTL key
fn ttl(call: &mut Call<'_, '_>) -> Done {
    let now = call.now_ms();
    reply_time(call, |deadline| to_seconds(deadline.saturating_sub(now)))
}

/// PTTL key
fn pttl(call: &mut Call<'_, '_>) -> Done {
    let now = call.now_ms();
    reply_time(call, |deadline| deadline.saturating_sub(now))
}

/// EXPIRETIME key
fn expiretime(call: &mut Call<'_, '_>) -> Done {
    reply_time(call, to_seconds)
}

/// PEXPIRETIME key
fn pexpiretime(call: &mut Call<'_, '_>) -> Done {
    reply_time(call, |deadline| deadline)
}

/// Rounds to the nearest second, as Redis does.
pub(crate) fn to_seconds(ms: Millis) -> u64 {
    ms.saturating_add(500) / 1000
}

/// Replies with -2 for a missing key, -1 without a deadline, else with the result of `shown`.
fn reply_time(call: &mut Call<'_, '_>, shown: impl FnOnce(Millis) -> u64) -> Done {
    let time = match call.guard.look(&call.keys[0]) {
        None => -2,
        Some(view) => view.deadline().map_or(-1, |deadline| shown(deadline) as i64),
    };
    call.reply.int(time);
    Ok(Flow::Replied)
}
