//! Times to live: when a key expires, and how long that is from now.
//!
//! Redis counts in signed 64-bit milliseconds and refuses a number that does not fit before it looks at the
//! key. A deadline that is not after the present deletes the key at once, and the reply is still 1.

use super::{Args, Call, Command, DataHandler, Group, Keys, at_least, exactly, read, write};
use crate::command::flow::{Done, Flow};
use crate::error::Error;
use evenkeel_store::{Key, Millis};

const GROUP: Group = Group::Keyspace;

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<DataHandler>] = &[
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
pub(super) fn expire_at(call: &mut Call<'_, '_>, key: &Key<'_>, deadline: Millis) {
    if deadline <= call.now_ms() {
        call.guard.remove(key);
        call.log(&[b"DEL", key.bytes]);
        return;
    }
    call.guard.set_deadline(key, Some(deadline));
    if call.is_logged() {
        call.log(&[b"PEXPIREAT", key.bytes, deadline.to_string().as_bytes()]);
    }
}

/// The conditions for setting a deadline: NX, XX, GT, LT, some of which exclude each other.
#[derive(Default)]
pub(super) struct Conditions {
    if_none: bool,
    if_any: bool,
    if_later: bool,
    if_earlier: bool,
}

impl Conditions {
    /// Parses the arguments from the fourth on.
    pub(super) fn parse(args: &Args<'_>) -> Result<Conditions, Error> {
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
    pub(super) fn admit(&self, current: Option<Millis>, deadline: i64) -> bool {
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
pub(super) fn to_seconds(ms: Millis) -> u64 {
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

#[cfg(test)]
mod tests {
    use crate::testing::check;

    #[test]
    fn deadlines_are_set_read_and_cleared() {
        check(
            "
            > TTL k                    < :-2
            > PEXPIRETIME k            < :-2
            > EXPIRE k 10              < :0
            > SET k v
            > TTL k                    < :-1
            > EXPIRETIME k             < :-1
            > PERSIST k                < :0
            > EXPIREAT k 33177117420   < :1
            > EXPIRETIME k             < :33177117420
            > PEXPIRETIME k            < :33177117420000
            > PEXPIREAT k 33177117420499 < :1
            > EXPIRETIME k             < :33177117420
            > PEXPIREAT k 33177117420500 < :1
            > EXPIRETIME k             < :33177117421
            > EXPIRE k 100             < :1
            > TTL k                    < :100
            > PERSIST k                < :1
            > PERSIST k                < :0
            > TTL k                    < :-1
            > PERSIST none             < :0
        ",
        );
    }

    #[test]
    fn keys_are_gone_at_their_millisecond() {
        check(
            "
            > SET k v
            > PEXPIRE k 300            < :1
            ~ 100ms
            > GET k                    < \"v\"
            ~ 250ms
            > GET k                    < (nil)
            > PTTL k                   < :-2
            > EXISTS k                 < :0
            > PERSIST k                < :0
        ",
        );
    }

    #[test]
    fn a_deadline_in_the_past_deletes() {
        for past in ["EXPIRE k 0", "EXPIRE k -1", "PEXPIRE k -9999", "EXPIREAT k 1", "PEXPIREAT k 0"] {
            check(&format!("> SET k v\n > {past} < :1\n > EXISTS k < :0\n > DBSIZE < :0"));
        }
        check(
            "
            > SET k v
            > PEXPIREAT k -9223372036854775808 < :1
            > EXISTS k                 < :0
            > SET k v
            > EXPIRE k -10 GT          < :0
            > EXPIRE k -10 XX          < :0
            > EXPIRE k -10 LT          < :1
            > EXISTS k                 < :0
        ",
        );
    }

    #[test]
    fn conditions() {
        check(
            "
            > SET k v
            > EXPIRE k 100 XX          < :0
            > EXPIRE k 100 GT          < :0
            > EXPIRE k 100 XX LT       < :0
            > EXPIRE k 100 nx          < :1
            > EXPIRE k 100 NX NX       < :0
            > EXPIRE k 90 GT           < :0
            > EXPIRE k 110 LT          < :0
            > EXPIRE k 200 GT XX       < :1
            > TTL k                    < :200
            > EXPIRE k 50 LT XX        < :1
            > TTL k                    < :50
            > PERSIST k
            > EXPIRE k 70 LT           < :1
            > PEXPIREAT k 9223372036854775807 GT < :1
            > PEXPIREAT k 9223372036854775807 GT < :0
            > PEXPIREAT k 9223372036854775807 LT < :0
            > EXPIRETIME k             < :9223372036854776
        ",
        );
    }

    #[test]
    fn what_is_refused_changes_nothing() {
        check(
            "
            > SET k v
            > EXPIRE k                 < -ERR wrong number of arguments for 'expire' command
            > EXPIRE k \"\"            < -ERR value is not an integer or out of range
            > EXPIRE k 1.5             < -ERR value is not an integer or out of range
            > EXPIRE k x no            < -ERR Unsupported option no
            > EXPIRE k x \"n\\x00o\"   < -ERR Unsupported option n
            > EXPIRE k 1 NX XX         < -ERR NX and XX, GT or LT options at the same time are not compatible
            > EXPIRE k 1 NX LT         < -ERR NX and XX, GT or LT options at the same time are not compatible
            > EXPIRE k 1 NX XX no      < -ERR Unsupported option no
            > EXPIRE k 1 XX GT LT      < -ERR GT and LT options at the same time are not compatible
            > EXPIRE k 9223370399119966      < -ERR invalid expire time in 'expire' command
            > EXPIRE k 9223372036854776      < -ERR invalid expire time in 'expire' command
            > EXPIRE k -9223372036854776     < -ERR invalid expire time in 'expire' command
            > EXPIRE none 9223372036854776   < -ERR invalid expire time in 'expire' command
            > PEXPIRE k 9223372036854775807  < -ERR invalid expire time in 'pexpire' command
            > EXPIREAT k 9223372036854776    < -ERR invalid expire time in 'expireat' command
            > PEXPIREAT k 9223372036854775808 < -ERR value is not an integer or out of range
            > TTL k                    < :-1
            > EXPIREAT k 9223372036854775    < :1
        ",
        );
    }
}
