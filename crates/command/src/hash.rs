//! Hashes: fields with values under a single key.
//!
//! The name of a hash's form (OBJECT ENCODING) follows Redis. It is `listpack`, and for good `hashtable`
//! once:
//!
//! - a field or value is longer than `hash-max-listpack-value`,
//! - the hash has more than `hash-max-listpack-entries` fields,
//! - its total is more than 1 GiB, or
//! - a field has a deadline.
//!
//! For all commands here but HLEN, an expired field is a missing field. It stays until a sweep removes it, or
//! a command sets it anew.

mod import;
mod scan;
mod timed_values;
mod times;

use evenkeel_resp::number::parse_i64;
use evenkeel_resp::reply::itoa;
use evenkeel_store::collection::Hash;
use evenkeel_store::{Edit, Expire, Hasher, Millis};

pub use import::import;

use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::offloading::is_much;
use crate::random;
use crate::reply::Reply;
use crate::x87_float::Extended;
use crate::{Args, Call, Command, DataHandler, Group, Keys, at_least, exactly, read, write};
use evenkeel_config::Settings;

#[rustfmt::skip]
pub const COMMANDS: &[Command<DataHandler>] = &[
    write("HSET",         at_least(4), Keys::FIRST, Group::Hash, hset             ).grows().fast()
        .members(2, 2),
    write("HSETNX",       exactly(4),  Keys::FIRST, Group::Hash, hsetnx           ).grows().fast()
        .members(2, 2),
    write("HMSET",        at_least(4), Keys::FIRST, Group::Hash, hmset            ).grows().fast()
        .members(2, 2),
    read ("HGET",         exactly(3),  Keys::FIRST, Group::Hash, hget             ).fast().members(2, 1),
    read ("HMGET",        at_least(3), Keys::FIRST, Group::Hash, hmget            ).fast().members(2, 1),
    write("HDEL",         at_least(3), Keys::FIRST, Group::Hash, hdel             ).fast().members(2, 1),
    read ("HLEN",         exactly(2),  Keys::FIRST, Group::Hash, hlen             ).fast(),
    read ("HSTRLEN",      exactly(3),  Keys::FIRST, Group::Hash, hstrlen          ).fast().members(2, 1),
    read ("HEXISTS",      exactly(3),  Keys::FIRST, Group::Hash, hexists          ).fast().members(2, 1),
    read ("HKEYS",        exactly(2),  Keys::FIRST, Group::Hash, hkeys            ),
    read ("HVALS",        exactly(2),  Keys::FIRST, Group::Hash, hvals            ),
    read ("HGETALL",      exactly(2),  Keys::FIRST, Group::Hash, hgetall          ),
    write("HINCRBY",      exactly(4),  Keys::FIRST, Group::Hash, hincrby          ).grows().fast()
        .members(2, 2),
    write("HINCRBYFLOAT", exactly(4),  Keys::FIRST, Group::Hash, hincrbyfloat     ).grows().fast()
        .members(2, 2),
    read ("HRANDFIELD",   at_least(2), Keys::FIRST, Group::Hash, random::hrandfield),
    read ("HSCAN",        at_least(3), Keys::FIRST, Group::Hash, scan::hscan      ),
    write("HEXPIRE",      at_least(6), Keys::FIRST, Group::Hash, times::hexpire   ).fast(),
    write("HPEXPIRE",     at_least(6), Keys::FIRST, Group::Hash, times::hpexpire  ).fast(),
    write("HEXPIREAT",    at_least(6), Keys::FIRST, Group::Hash, times::hexpireat ).fast(),
    write("HPEXPIREAT",   at_least(6), Keys::FIRST, Group::Hash, times::hpexpireat).fast(),
    write("HPERSIST",     at_least(5), Keys::FIRST, Group::Hash, times::hpersist  ).fast(),
    read ("HTTL",         at_least(5), Keys::FIRST, Group::Hash, times::httl      ).fast(),
    read ("HPTTL",        at_least(5), Keys::FIRST, Group::Hash, times::hpttl     ).fast(),
    read ("HEXPIRETIME",  at_least(5), Keys::FIRST, Group::Hash, times::hexpiretime).fast(),
    read ("HPEXPIRETIME", at_least(5), Keys::FIRST, Group::Hash, times::hpexpiretime).fast(),
    write("HGETEX",       at_least(5), Keys::FIRST, Group::Hash, timed_values::hgetex).fast(),
    write("HSETEX",       at_least(6), Keys::FIRST, Group::Hash, timed_values::hsetex).grows().fast(),
    write("HGETDEL",      at_least(5), Keys::FIRST, Group::Hash, timed_values::hgetdel).fast(),
];

/// `Edit::form` of a hash that was once too large, or had too long a field or value, for a `listpack`.
const LARGE: u8 = 1;

/// Maximum bytes of a `listpack`.
const LISTPACK_BYTES_MAX: usize = 1 << 30;

/// Updates the form of a hash that gets fields and values of at most this length.
fn update_form(hash: &mut Edit<'_, Hash>, settings: &Settings, longest: usize) {
    let is_worth_offloading = longest > settings.hash_max_listpack_value;
    let bytes_max =
        settings.hash_max_listpack_value.saturating_mul(settings.hash_max_listpack_entries).saturating_mul(2);
    let is_large = bytes_max > LISTPACK_BYTES_MAX && hash.memory() > LISTPACK_BYTES_MAX;
    if is_worth_offloading
        || is_large
        || hash.size() > settings.hash_max_listpack_entries as u64
        || hash.timed_len() > 0
    {
        hash.form = LARGE;
    }
}

/// Returns the hash function of fields, and the time that decides which fields have expired.
fn sight<'h>(call: &Call<'_, 'h>) -> (&'h Hasher, Millis) {
    (&call.guard.keyspace().hasher, call.guard.ctx.seen_ms())
}

/// HSET key field value [field value ...]
fn hset(call: &mut Call<'_, '_>) -> Done {
    let created = set_pairs(call, "hset")?;
    call.reply.int(created);
    Ok(Flow::Replied)
}

/// HMSET key field value [field value ...]
fn hmset(call: &mut Call<'_, '_>) -> Done {
    set_pairs(call, "hmset")?;
    call.reply.ok();
    Ok(Flow::Replied)
}

/// Sets the fields of the call; returns how many are new.
fn set_pairs(call: &mut Call<'_, '_>, name: &'static str) -> Result<i64, Error> {
    let (args, settings, (hasher, now)) = (call.args, call.settings, sight(call));
    if args.len() % 2 == 1 {
        return Err(Error::Arity(name));
    }
    let created = call.guard.edit(&call.keys[0], |hash: &mut Edit<'_, Hash>| {
        let (mut created, mut longest) = (0, 0);
        for at in (2..args.len()).step_by(2) {
            let (field, value) = (args.at(at), args.at(at + 1));
            created += i64::from(hash.set(hasher, now, field, value, Expire::Clear));
            longest = longest.max(field.len()).max(value.len());
        }
        hash.changes = (args.len() as u64 - 2) / 2;
        update_form(hash, settings, longest);
        // As in Valkey, HSET chooses the encoding by all fields of its call, repeated fields included.
        if hash.changes > settings.hash_max_listpack_entries as u64 {
            hash.form = LARGE;
        }
        created
    })?;
    Ok(created)
}

/// HSETNX key field value
fn hsetnx(call: &mut Call<'_, '_>) -> Done {
    let (args, settings, (hasher, now)) = (call.args, call.settings, sight(call));
    let (field, value) = (args.at(2), args.at(3));
    let sets = call.guard.edit(&call.keys[0], |hash: &mut Edit<'_, Hash>| {
        let sets = hash.get(hasher, now, field).is_none();
        if sets {
            hash.set(hasher, now, field, value, Expire::Clear);
            hash.changes = 1;
            update_form(hash, settings, field.len().max(value.len()));
        }
        sets
    })?;
    if sets {
        // A reader of the journal may still have an expired field here.
        call.log(&[b"HSET", call.keys[0].bytes, field, value]);
    }
    call.reply.int(i64::from(sets));
    Ok(Flow::Replied)
}

/// HGET key field
fn hget(call: &mut Call<'_, '_>) -> Done {
    let (hasher, now) = sight(call);
    let hash = call.guard.collection::<Hash>(&call.keys[0])?;
    reply_value(call.reply, hash.as_deref(), (hasher, now), call.args.at(2));
    Ok(Flow::Replied)
}

/// Replies with the value of a field, or null.
#[inline]
fn reply_value(reply: &mut Reply, hash: Option<&Hash>, (hasher, now): (&Hasher, Millis), field: &[u8]) {
    match hash.and_then(|hash| Some((hash, hash.get(hasher, now, field)?))) {
        Some((hash, value)) => reply.element(value, || hash.share(hasher, field)),
        None => reply.null(),
    }
}

/// HMGET key field [field ...]
fn hmget(call: &mut Call<'_, '_>) -> Done {
    let ((hasher, now), len_max) = (sight(call), call.reply_len_max());
    let hash = call.guard.collection::<Hash>(&call.keys[0])?;
    call.reply.array(call.args.len() - 2);
    for field in call.args.from(2) {
        reply_value(call.reply, hash.as_deref(), (hasher, now), field);
        if call.reply.cut_beyond(len_max) {
            break;
        }
    }
    Ok(Flow::Replied)
}

/// HDEL key field [field ...]
fn hdel(call: &mut Call<'_, '_>) -> Done {
    let (args, (hasher, now)) = (call.args, sight(call));
    let (wants_fields, mut gone) = (call.wants_fields(), Vec::new());
    let done = call.guard.edit_if_there(&call.keys[0], |hash: &mut Edit<'_, Hash>| {
        let has_expired = hash.expired(now) > 0;
        for field in args.from(2) {
            let removed = hash.remove(hasher, now, field);
            hash.changes += u64::from(removed);
            gone.extend((removed && (wants_fields || has_expired)).then_some(field));
        }
        (hash.changes, has_expired)
    })?;
    let (removed, has_expired) = done.unwrap_or_default();
    if has_expired {
        // The journal's reader would remove expired fields, too.
        call.log_each(&[b"HDEL", call.keys[0].bytes], 1, &gone);
    }
    say_removed(call, removed > 0, gone);
    call.reply.int(removed as i64);
    Ok(Flow::Replied)
}

/// Emits the events of removed fields, if there are any.
fn say_removed(call: &mut Call<'_, '_>, any: bool, gone: Vec<&[u8]>) {
    if any && call.guard.is_listened_to() {
        call.say_fields(&call.keys[0], "hdel", gone);
        call.say_gone(&call.keys[0]);
    }
}

/// HLEN key
fn hlen(call: &mut Call<'_, '_>) -> Done {
    let size = call.guard.collection::<Hash>(&call.keys[0])?.map_or(0, |hash| hash.size());
    call.reply.int(size as i64);
    Ok(Flow::Replied)
}

/// HSTRLEN key field
fn hstrlen(call: &mut Call<'_, '_>) -> Done {
    let (hasher, now) = sight(call);
    let hash = call.guard.collection::<Hash>(&call.keys[0])?;
    let value = hash.as_ref().and_then(|hash| hash.get(hasher, now, call.args.at(2)));
    call.reply.int(value.map_or(0, <[u8]>::len) as i64);
    Ok(Flow::Replied)
}

/// HEXISTS key field
fn hexists(call: &mut Call<'_, '_>) -> Done {
    let (hasher, now) = sight(call);
    let hash = call.guard.collection::<Hash>(&call.keys[0])?;
    let exists = hash.as_ref().is_some_and(|hash| hash.get(hasher, now, call.args.at(2)).is_some());
    call.reply.int(i64::from(exists));
    Ok(Flow::Replied)
}

/// HKEYS key
fn hkeys(call: &mut Call<'_, '_>) -> Done {
    all(call, Part::Fields)
}

/// HVALS key
fn hvals(call: &mut Call<'_, '_>) -> Done {
    all(call, Part::Values)
}

/// HGETALL key
fn hgetall(call: &mut Call<'_, '_>) -> Done {
    all(call, Part::Both)
}

/// The part of each field in the reply.
#[derive(Clone, Copy)]
enum Part {
    Fields,
    Values,
    Both,
}

fn all(call: &mut Call<'_, '_>, part: Part) -> Done {
    let now = call.now_ms();
    let hash = call.guard.collection::<Hash>(&call.keys[0])?;
    match hash {
        Some(hash) if is_much(hash.size()) => {
            let hash = Hash::clone(&hash);
            return call.offload_reply(move |reply| part.write(&hash, now, reply));
        }
        Some(hash) => part.write(&hash, now, call.reply),
        None => part.open(0, call.reply),
    }
    Ok(Flow::Replied)
}

impl Part {
    fn open(self, fields: usize, reply: &mut Reply) {
        match self {
            Part::Fields | Part::Values => reply.array(fields),
            Part::Both => reply.map(fields),
        }
    }

    /// Writes all fields that have not expired.
    fn write(self, hash: &Hash, now: Millis, reply: &mut Reply) {
        self.open(hash.len(now) as usize, reply);
        for (at, field) in hash.fields().enumerate().filter(|(_, field)| field.is_live(now)) {
            if !matches!(self, Part::Values) {
                reply.element(field.name, || hash.shares_at(at as u64).0);
            }
            if !matches!(self, Part::Fields) {
                reply.element(field.value, || hash.shares_at(at as u64).1);
            }
        }
    }
}

/// HINCRBY key field increment
fn hincrby(call: &mut Call<'_, '_>) -> Done {
    let increment = call.args.int(3)?;
    let (value, was) = change_number(call, |old| {
        let old = old.map_or(Some(0), parse_i64).ok_or(Error::text("ERR hash value is not an integer"))?;
        let value = old.checked_add(increment).ok_or(Error::Overflow)?;
        Ok((value, itoa(value).text().to_vec()))
    })?;
    if was == Was::Expired {
        call.log(&[b"HSET", call.keys[0].bytes, call.args.at(2), itoa(value).text()]);
    }
    call.reply.int(value);
    Ok(Flow::Replied)
}

/// HINCRBYFLOAT key field increment
fn hincrbyfloat(call: &mut Call<'_, '_>) -> Done {
    let increment = Extended::parse(call.args.at(3)).ok_or(Error::NotFloat)?;
    if !increment.is_finite() {
        return Err(Error::text("ERR value is NaN or Infinity"));
    }
    let (text, was) = change_number(call, |old| {
        let old = Extended::parse(old.unwrap_or(b"0")).ok_or(Error::text("ERR hash value is not a float"))?;
        let text = old.plus(increment).ok_or(Error::NotFinite)?.print();
        Ok((text.clone(), text.into_bytes()))
    })?;
    log_float(call, text.as_bytes(), was);
    call.reply.bulk(text.as_bytes());
    Ok(Flow::Replied)
}

/// Sums of long floats are not the same on all machines.
fn log_float(call: &mut Call<'_, '_>, value: &[u8], was: Was) {
    let (key, field) = (call.keys[0].bytes, call.args.at(2));
    match was {
        Was::Timed(deadline) if call.is_logged() => {
            let deadline = deadline.to_string();
            call.log_fields(&[b"HSETEX", key, b"PXAT", deadline.as_bytes()], 2, [field, value]);
        }
        _ => call.log(&[b"HSET", key, field, value]),
    }
}

/// The state of a field before a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Was {
    NothingOrUntimed,
    Timed(Millis),
    /// It was still stored, but had expired.
    Expired,
}

/// Sets the field of the call to the new value that `change` returns, along with a result, for its old value.
/// The field keeps its deadline. Returns the result and the field's old state.
fn change_number<R>(
    call: &mut Call<'_, '_>,
    change: impl FnOnce(Option<&[u8]>) -> Result<(R, Vec<u8>), Error>,
) -> Result<(R, Was), Error> {
    let (settings, field, (hasher, now)) = (call.settings, call.args.at(2), sight(call));
    call.guard.edit(&call.keys[0], |hash: &mut Edit<'_, Hash>| {
        let (size, old) = (hash.size(), hash.field(hasher, now, field));
        let deadline = old.and_then(|old| old.deadline);
        let (result, value) = change(old.map(|old| old.value))?;
        let is_new = hash.set(hasher, now, field, &value, Expire::Keep);
        let was = match deadline {
            Some(deadline) => Was::Timed(deadline),
            None if is_new && hash.size() == size => Was::Expired,
            None => Was::NothingOrUntimed,
        };
        hash.changes = 1;
        update_form(hash, settings, field.len().max(value.len()));
        Ok((result, was))
    })?
}
