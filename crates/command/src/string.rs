//! Strings.
//!
//! A value may be a rope of half a gigabyte. It is sent from where it lies and written only where it changes;
//! nothing here makes a flat copy of a rope.

pub mod bignum;
mod compare;
mod increx;
pub mod lcs;
pub mod set_options;
pub mod x87_float;

use evenkeel_resp::number::parse_i64;
use evenkeel_resp::reply::itoa;
use evenkeel_store::{Expire, Kind, Str};

use compare::{compare_digest, compared, delex, digest};
use increx::increx;

use crate::error::Error;
use crate::expire::{expire_at, expire_now};
use crate::flow::{Done, Flow};
use crate::lcs::lcs;
use crate::set_options::{Condition, Of, Options, Time};
use crate::x87_float::Extended;
use crate::{Args, Call, Command, DataHandler, Group, Keys, at_least, exactly, read, write};

const MSETEX_KEYS: Keys = Keys::Counted { at: 1, step: 2 };

#[rustfmt::skip]
pub const COMMANDS: &[Command<DataHandler>] = &[
    read ("GET",         exactly(2),  Keys::FIRST,     Group::String, get        ).fast(),
    write("SET",         at_least(3), Keys::FIRST,     Group::String, set        ).grows(),
    write("SETNX",       exactly(3),  Keys::FIRST,     Group::String, setnx      ).grows().fast(),
    write("SETEX",       exactly(4),  Keys::FIRST,     Group::String, setex      ).grows(),
    write("PSETEX",      exactly(4),  Keys::FIRST,     Group::String, psetex     ).grows(),
    write("GETSET",      exactly(3),  Keys::FIRST,     Group::String, getset     ).grows().fast(),
    write("GETDEL",      exactly(2),  Keys::FIRST,     Group::String, getdel     ).fast(),
    write("GETEX",       at_least(2), Keys::FIRST,     Group::String, getex      ).fast(),
    write("DELIFEQ",     exactly(3),  Keys::FIRST,     Group::String, delifeq    ).fast(),
    write("DELEX",       at_least(2), Keys::FIRST,     Group::String, delex      ).fast(),
    read ("DIGEST",      exactly(2),  Keys::FIRST,     Group::String, digest     ).fast(),
    read ("MGET",        at_least(2), Keys::REST,      Group::String, mget       ).fast(),
    write("MSET",        at_least(3), Keys::PAIRS,     Group::String, mset       ).grows(),
    write("MSETNX",      at_least(3), Keys::PAIRS,     Group::String, msetnx     ).grows(),
    write("MSETEX",      at_least(4), MSETEX_KEYS,     Group::String, msetex     ).grows(),
    write("INCR",        exactly(2),  Keys::FIRST,     Group::String, incr       ).grows().fast(),
    write("DECR",        exactly(2),  Keys::FIRST,     Group::String, decr       ).grows().fast(),
    write("INCRBY",      exactly(3),  Keys::FIRST,     Group::String, incrby     ).grows().fast(),
    write("DECRBY",      exactly(3),  Keys::FIRST,     Group::String, decrby     ).grows().fast(),
    write("INCRBYFLOAT", exactly(3),  Keys::FIRST,     Group::String, incrbyfloat).grows().fast(),
    write("INCREX",      at_least(2), Keys::FIRST,     Group::String, increx     ).grows().fast(),
    write("APPEND",      exactly(3),  Keys::FIRST,     Group::String, append     ).grows().fast(),
    read ("STRLEN",      exactly(2),  Keys::FIRST,     Group::String, strlen     ).fast(),
    write("SETRANGE",    exactly(4),  Keys::FIRST,     Group::String, setrange   ).grows(),
    read ("GETRANGE",    exactly(4),  Keys::FIRST,     Group::String, getrange   ),
    read ("SUBSTR",      exactly(4),  Keys::FIRST,     Group::String, getrange   ),
    read ("LCS",         at_least(3), Keys::FIRST_TWO, Group::String, lcs        ),
];

/// GET key
fn get(call: &mut Call<'_, '_>) -> Done {
    reply_value(call).map(|()| Flow::Replied)
}

/// Replies with the value of the first key, or null.
fn reply_value(call: &mut Call<'_, '_>) -> Result<(), Error> {
    match call.guard.string(&call.keys[0])? {
        Some(value) => call.reply.string(value),
        None => call.reply.null(),
    }
    Ok(())
}

/// SET key value [NX | XX | IFEQ value | IFNE value | IFDEQ digest | IFDNE digest] [GET]
/// [EX seconds | PX ms | EXAT unix-seconds | PXAT unix-ms | KEEPTTL]
fn set(call: &mut Call<'_, '_>) -> Done {
    if call.args.len() == 3 {
        call.guard.set_string(&call.keys[0], call.args.at(2), Expire::Clear);
        call.reply.ok();
        return Ok(Flow::Replied);
    }
    set_with_options(call)
}

fn set_with_options(call: &mut Call<'_, '_>) -> Done {
    let options = Options::parse(&call.args, 3, Of::Set)?;
    let expire = options.expire(call.counts_from_ms(), "set")?;
    match options.condition {
        Condition::Compared(comparison) if comparison.by_digest => {
            compare_digest(call, comparison, move |call, digest| {
                set_if(call, &Options::parse(&call.args, 3, Of::Set)?, expire, digest)
            })
        }
        _ => set_if(call, &options, expire, None),
    }
}

/// Sets the key if the condition holds. `digest` is that of the present value, if it is known.
fn set_if(call: &mut Call<'_, '_>, options: &Options<'_>, expire: Expire, digest: Option<u64>) -> Done {
    let key = &call.keys[0];
    if options.get {
        reply_value(call)?;
    }
    let sets = match options.condition {
        Condition::Always => true,
        Condition::IfAbsent => call.guard.touch(key).is_none(),
        Condition::IfPresent => call.guard.peek(key).is_some(),
        Condition::Compared(comparison) => compared(call, comparison, digest)?,
    };
    if sets {
        match expire {
            Expire::At(deadline) if call.passes()(deadline) => expire_now(call, key),
            _ => {
                call.guard.set_string(key, call.args.at(2), expire);
                log_set(call, key.bytes, call.args.at(2), expire);
            }
        }
    }
    match (options.get, sets) {
        (true, _) => {}
        (false, true) => call.reply.ok(),
        (false, false) => call.reply.null(),
    }
    Ok(Flow::Replied)
}

/// Logs that a key was set unconditionally, with a deadline that does not depend on the present.
fn log_set(call: &mut Call<'_, '_>, key: &[u8], value: &[u8], expire: Expire) {
    if !call.is_logged() {
        return;
    }
    match expire {
        Expire::Clear => call.log(&[b"SET", key, value]),
        Expire::Keep => call.log(&[b"SET", key, value, b"KEEPTTL"]),
        Expire::At(deadline) => {
            let word = spelled(&call.args, 3, b"PXAT");
            call.log(&[b"SET", key, value, word, deadline.to_string().as_bytes()]);
        }
    }
}

/// Returns the word as the client spelled it, if it is among the arguments from `first` on: it is logged so.
fn spelled<'a>(args: &Args<'a>, first: usize, word: &'static [u8]) -> &'a [u8] {
    args.from(first).find(|given| given.eq_ignore_ascii_case(word)).unwrap_or(word)
}

/// Whether the command's key exists and holds exactly these bytes.
fn holds(call: &mut Call<'_, '_>, bytes: &[u8]) -> Result<bool, Error> {
    Ok(string_to_change(call, 0)?.is_some_and(|value| value.equals(bytes)))
}

/// Returns the string at the command's key of this index for a command that may write it: neither a hit nor a
/// miss.
pub fn string_to_change<'c>(call: &'c mut Call<'_, '_>, key: usize) -> Result<Option<Str<'c>>, Error> {
    match call.guard.peek(&call.keys[key]) {
        None => Ok(None),
        Some(view) if view.kind() == Kind::String => Ok(Some(view.string())),
        Some(_) => Err(Error::WrongType),
    }
}

/// SETNX key value
fn setnx(call: &mut Call<'_, '_>) -> Done {
    let key = &call.keys[0];
    let sets = call.guard.touch(key).is_none();
    if sets {
        call.guard.set_string(key, call.args.at(2), Expire::Clear);
    }
    call.reply.int(i64::from(sets));
    Ok(Flow::Replied)
}

/// SETEX key seconds value
fn setex(call: &mut Call<'_, '_>) -> Done {
    set_for(call, true, "setex")
}

/// PSETEX key milliseconds value
fn psetex(call: &mut Call<'_, '_>) -> Done {
    set_for(call, false, "psetex")
}

fn set_for(call: &mut Call<'_, '_>, seconds: bool, name: &'static str) -> Done {
    let time = Time { text: call.args.at(2), seconds, relative: true };
    let deadline = time.deadline(call.counts_from_ms(), name)?;
    let (key, value) = (&call.keys[0], call.args.at(3));
    call.guard.set_string(key, value, Expire::At(deadline));
    log_set(call, key.bytes, value, Expire::At(deadline));
    call.reply.ok();
    Ok(Flow::Replied)
}

/// GETSET key value
fn getset(call: &mut Call<'_, '_>) -> Done {
    reply_value(call)?;
    let (key, value) = (&call.keys[0], call.args.at(2));
    call.guard.set_string(key, value, Expire::Clear);
    log_set(call, key.bytes, value, Expire::Clear);
    Ok(Flow::Replied)
}

/// Removes the command's key, and logs that; false if the key was missing.
fn remove(call: &mut Call<'_, '_>) -> bool {
    let key = &call.keys[0];
    let removed = call.guard.remove(key);
    if removed {
        call.log(&[b"DEL", key.bytes]);
    }
    removed
}

/// GETDEL key
fn getdel(call: &mut Call<'_, '_>) -> Done {
    reply_value(call)?;
    remove(call);
    Ok(Flow::Replied)
}

/// GETEX key [EX seconds | PX ms | EXAT unix-seconds | PXAT unix-ms | PERSIST]
fn getex(call: &mut Call<'_, '_>) -> Done {
    let options = Options::parse(&call.args, 2, Of::GetEx)?;
    let expire = options.expire(call.counts_from_ms(), "getex")?;
    let key = &call.keys[0];
    let had_deadline = match call.guard.read(key) {
        None => {
            call.reply.null();
            return Ok(Flow::Replied);
        }
        Some(view) if view.kind() == Kind::String => {
            call.reply.string(view.string());
            view.deadline().is_some()
        }
        Some(_) => return Err(Error::WrongType),
    };
    match expire {
        _ if options.leaves_deadline() => {}
        Expire::At(deadline) => expire_at(call, key, deadline),
        Expire::Clear | Expire::Keep if had_deadline => {
            call.guard.set_deadline(key, None);
            call.log(&[b"PERSIST", key.bytes]);
        }
        Expire::Clear | Expire::Keep => {}
    }
    Ok(Flow::Replied)
}

/// DELIFEQ key comparison
fn delifeq(call: &mut Call<'_, '_>) -> Done {
    let removed = holds(call, call.args.at(2))? && remove(call);
    call.reply.int(i64::from(removed));
    Ok(Flow::Replied)
}

/// MGET key [key ...]
fn mget(call: &mut Call<'_, '_>) -> Done {
    let len_max = call.reply_len_max();
    call.reply.array(call.keys.len());
    for key in call.keys {
        match call.guard.string(key) {
            Ok(Some(value)) => call.reply.string(value),
            // A key of another type counts as missing, too.
            Ok(None) | Err(_) => call.reply.null(),
        }
        if call.reply.cut_beyond(len_max) {
            break;
        }
    }
    Ok(Flow::Replied)
}

/// MSET key value [key value ...]
fn mset(call: &mut Call<'_, '_>) -> Done {
    whole_pairs(call, "mset")?;
    set_pairs(call, 2, Expire::Clear);
    call.reply.ok();
    Ok(Flow::Replied)
}

/// MSETNX key value [key value ...]
fn msetnx(call: &mut Call<'_, '_>) -> Done {
    whole_pairs(call, "msetnx")?;
    let sets = !any_key(call);
    if sets {
        set_pairs(call, 2, Expire::Clear);
    }
    call.reply.int(i64::from(sets));
    Ok(Flow::Replied)
}

fn whole_pairs(call: &Call<'_, '_>, name: &'static str) -> Result<(), Error> {
    if call.args.len() % 2 == 1 { Ok(()) } else { Err(Error::Arity(name)) }
}

fn any_key(call: &mut Call<'_, '_>) -> bool {
    call.keys.iter().any(|key| call.guard.peek(key).is_some())
}

/// Sets each key to its argument; the first value is argument `first_value`.
fn set_pairs(call: &mut Call<'_, '_>, first_value: usize, expire: Expire) {
    for (index, key) in call.keys.iter().enumerate() {
        call.guard.set_string(key, call.args.at(first_value + 2 * index), expire);
    }
}

/// MSETEX numkeys key value [key value ...] [NX | XX] [EX seconds | PX ms | EXAT unix-seconds | PXAT unix-ms
/// | KEEPTTL]
fn msetex(call: &mut Call<'_, '_>) -> Done {
    let count = parse_i64(call.args.at(1)).filter(|count| (1..=i64::from(i32::MAX)).contains(count));
    let count = count.ok_or(Error::text("ERR invalid numkeys value or out of range"))? as usize;
    if count != call.keys.len() {
        return Err(Error::Syntax); // the arguments are too few
    }
    let options = Options::parse_sent(&call.args, 2 + 2 * count, Of::MSetEx, call.replays)?;
    let expire = options.expire(call.counts_from_ms(), "msetex")?;
    let sets = match options.condition {
        Condition::IfAbsent => !any_key(call),
        Condition::IfPresent => call.keys.iter().all(|key| call.guard.peek(key).is_some()),
        Condition::Always | Condition::Compared(_) => true,
    };
    if sets {
        set_pairs(call, 3, expire);
        log_pairs(call, expire);
    }
    call.reply.int(i64::from(sets));
    Ok(Flow::Replied)
}

/// Logs that the command's keys were set unconditionally, with a deadline that does not depend on the
/// present.
fn log_pairs(call: &mut Call<'_, '_>, expire: Expire) {
    if !call.is_logged() {
        return;
    }
    let (args, pairs_end) = (call.args, 2 + 2 * call.keys.len());
    let deadline = match expire {
        Expire::Clear => None,
        Expire::Keep => Some((spelled(&args, pairs_end, b"KEEPTTL"), None)),
        Expire::At(deadline) => Some((spelled(&args, pairs_end, b"PXAT"), Some(deadline.to_string()))),
    };
    let mut words: Vec<&[u8]> = vec![b"MSETEX"];
    words.extend(args.until(pairs_end).from(1));
    if let Some((word, deadline)) = &deadline {
        words.push(word);
        words.extend(deadline.as_ref().map(String::as_bytes));
    }
    call.log(&words);
}

/// INCR key
fn incr(call: &mut Call<'_, '_>) -> Done {
    add(call, 1)
}

/// DECR key
fn decr(call: &mut Call<'_, '_>) -> Done {
    add(call, -1)
}

/// INCRBY key increment
fn incrby(call: &mut Call<'_, '_>) -> Done {
    let increment = call.args.int(2)?;
    add(call, increment)
}

/// DECRBY key decrement
fn decrby(call: &mut Call<'_, '_>) -> Done {
    let decrement = call.args.int(2)?;
    let increment = decrement.checked_neg().ok_or(Error::text("ERR decrement would overflow"))?;
    add(call, increment)
}

fn add(call: &mut Call<'_, '_>, increment: i64) -> Done {
    let key = &call.keys[0];
    let value = match string_to_change(call, 0)? {
        None => 0,
        Some(Str::Flat(bytes)) => parse_i64(bytes).ok_or(Error::NotInteger)?,
        Some(Str::Rope(_)) => return Err(Error::NotInteger),
    };
    let value = value.checked_add(increment).ok_or(Error::Overflow)?;
    call.guard.set_string(key, itoa(value).text(), Expire::Keep);
    call.reply.int(value);
    Ok(Flow::Replied)
}

/// INCRBYFLOAT key increment
fn incrbyfloat(call: &mut Call<'_, '_>) -> Done {
    let key = &call.keys[0];
    let value = match string_to_change(call, 0)? {
        None => Extended::parse(b"0"),
        Some(Str::Flat(bytes)) => Extended::parse(bytes),
        Some(Str::Rope(_)) => None,
    };
    let value = value.ok_or(Error::NotFloat)?;
    let increment = Extended::parse(call.args.at(2)).ok_or(Error::NotFloat)?;
    let text = value.plus(increment).ok_or(Error::NotFinite)?.print();
    call.guard.set_text(key, text.as_bytes(), Expire::Keep);
    // Sums of long floats are not the same on all machines.
    call.log(&[b"SET", key.bytes, text.as_bytes(), b"KEEPTTL"]);
    call.reply.bulk(text.as_bytes());
    Ok(Flow::Replied)
}

/// APPEND key value
fn append(call: &mut Call<'_, '_>) -> Done {
    let (key, bytes) = (&call.keys[0], call.args.at(2));
    let len = string_to_change(call, 0)?.map_or(0, |value| value.len());
    check_len(call, len, bytes.len())?;
    let len = call.guard.append(key, bytes)?;
    call.reply.int(len as i64);
    Ok(Flow::Replied)
}

/// Refuses a string that would end `len` bytes after `offset`, if that is too far.
fn check_len(call: &Call<'_, '_>, offset: usize, len: usize) -> Result<(), Error> {
    let fits = offset.checked_add(len).is_some_and(|end| end <= call.string_len_max());
    if fits { Ok(()) } else { Err(Error::StringTooLong) }
}

/// STRLEN key
fn strlen(call: &mut Call<'_, '_>) -> Done {
    let len = call.guard.string(&call.keys[0])?.map_or(0, |value| value.len());
    call.reply.int(len as i64);
    Ok(Flow::Replied)
}

/// SETRANGE key offset value
fn setrange(call: &mut Call<'_, '_>) -> Done {
    let (offset, bytes) = (call.args.int(2)?, call.args.at(3));
    let offset = usize::try_from(offset).map_err(|_| Error::text("ERR offset is out of range"))?;
    let len = string_to_change(call, 0)?.map_or(0, |value| value.len());
    if bytes.is_empty() {
        call.reply.int(len as i64);
        return Ok(Flow::Replied);
    }
    check_len(call, offset, bytes.len())?;
    let len = call.guard.write_range(&call.keys[0], offset, bytes)?;
    call.reply.int(len as i64);
    Ok(Flow::Replied)
}

/// GETRANGE key start end
fn getrange(call: &mut Call<'_, '_>) -> Done {
    let (start, end) = (call.args.int(2)?, call.args.int(3)?);
    match call.guard.string(&call.keys[0])? {
        Some(value) => match clamp(start, end, value.len()) {
            Some((first, last)) => call.reply.string_range(value, first..last + 1),
            None => call.reply.bulk(b""),
        },
        None => call.reply.bulk(b""),
    }
    Ok(Flow::Replied)
}

/// Returns the first and last place, out of `len`, from `start` to `end`, which count from the end if
/// negative. `None` when there are none.
pub fn clamp(start: i64, end: i64, len: usize) -> Option<(usize, usize)> {
    // Both count from the end, and the end comes first.
    let is_backward = start < 0 && end < 0 && start > end;
    if is_backward { None } else { clamp_each(start, end, len) }
}

/// [`clamp`] for BITPOS, where a place before the first means the first, whatever the other place is.
pub fn clamp_each(start: i64, end: i64, len: usize) -> Option<(usize, usize)> {
    let len = i64::try_from(len).expect("memory is smaller than that");
    let from_end = |at: i64| if at < 0 { (at + len).max(0) } else { at };
    let (first, last) = (from_end(start), from_end(end).min(len - 1));
    (first <= last).then_some((first as usize, last as usize))
}

#[cfg(test)]
mod tests;
