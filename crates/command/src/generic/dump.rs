//! DUMP and RESTORE: a value as bytes for another server, in Redis' own format both ways.
//!
//! DUMP writes the lowest version of the format that holds all of the value: nearly always 10, which Redis
//! 7.0 and everything after it reads (see docs/rdb.md). RESTORE checks the whole payload before it stores
//! anything: the bytes may come from anywhere.
//!
//! A large value is written and read by another thread, without locks (see `offload.rs`). A value that was
//! read has its final form, so storing it takes no time either.

use evenkeel_rdb::dump::{self, EnvelopeChecks};
use evenkeel_store::{Access, Hasher, Key, Millis, evict};

use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::flow::{OFFLOAD_MIN, Work};
use crate::reply::Reply;
use crate::value_codec::{self, Formed, Origin, Value};
use crate::{Call, Command, DataHandler, Flags, Group, Keys, at_least, exactly, read, write};

#[rustfmt::skip]
pub const COMMANDS: &[Command<DataHandler>] = &[
    read ("DUMP",           exactly(2),  Keys::FIRST, Group::Keyspace, dump   ),
    write("RESTORE",        at_least(4), Keys::FIRST, Group::Keyspace, restore).grows(),
    write("RESTORE-ASKING", at_least(4), Keys::FIRST, Group::Keyspace, restore).grows().flag(Flags::ASKING),
];

/// Bytes of an unpacked payload that take about as long to read as an element of a collection takes to write.
const BYTES_PER_ELEMENT: usize = 4;

/// The most bytes that a byte of a compressed string can expand to: three become 264 at most.
const UNPACKED_MAX: usize = 88;

/// DUMP key
fn dump(call: &mut Call<'_, '_>) -> Done {
    let Some(view) = call.guard.read(&call.keys[0]) else {
        call.reply.null();
        return Ok(Flow::Replied);
    };
    let value = Value::of(view);
    if !call.is_worth_offloading(value.elements()) {
        call.reply.bulk(&value_codec::payload(&value, call.settings));
        return Ok(Flow::Replied);
    }
    let settings = call.settings.clone();
    call.offload(Work::reads(move |reply: &mut Reply| {
        reply.bulk_of(value_codec::payload(&value, &settings));
        Ok(())
    }))
}

/// Marks a deadline beyond all times. Redis and Valkey take such a deadline to be in the past, and lose the
/// key.
const BEYOND: Millis = 0;

/// The options of RESTORE.
#[derive(Clone, Copy, Default)]
struct Options {
    replaces: bool,
    absolute: bool,
    idle_seconds: Option<i64>,
    frequency: Option<u8>,
    /// Milliseconds, or the time itself if `absolute`; zero for ever.
    ttl: u64,
}

impl Options {
    fn parse(call: &Call<'_, '_>) -> Result<Options, Error> {
        let (args, mut options, mut at) = (&call.args, Options::default(), 4);
        while at < args.len() {
            let has_value = at + 1 < args.len();
            match args.word(at).as_bytes() {
                b"REPLACE" => options.replaces = true,
                b"ABSTTL" => options.absolute = true,
                b"IDLETIME" if has_value && options.frequency.is_none() => {
                    at += 1;
                    let idle = args.int(at)?;
                    if idle < 0 {
                        return Err(Error::text("ERR Invalid IDLETIME value, must be >= 0"));
                    }
                    options.idle_seconds = Some(idle);
                }
                b"FREQ" if has_value && options.idle_seconds.is_none() => {
                    at += 1;
                    let frequency = u8::try_from(args.int(at)?);
                    let error = || Error::text("ERR Invalid FREQ value, must be >= 0 and <= 255");
                    options.frequency = Some(frequency.map_err(|_| error())?);
                }
                _ => return Err(Error::Syntax),
            }
            at += 1;
        }
        Ok(options)
    }

    fn deadline(&self, now: Millis) -> Option<Millis> {
        match (self.ttl, self.absolute) {
            (0, _) => None,
            (ttl, true) => Some(ttl),
            (ttl, false) => {
                let deadline = now.checked_add(ttl).filter(|deadline| i64::try_from(*deadline).is_ok());
                Some(deadline.unwrap_or(BEYOND))
            }
        }
    }
}

/// <RESTORE | RESTORE-ASKING> key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]
fn restore(call: &mut Call<'_, '_>) -> Done {
    let mut options = Options::parse(call)?;
    refuse_to_overwrite(call, options)?;
    options.ttl =
        u64::try_from(call.args.int(2)?).map_err(|_| Error::text("ERR Invalid TTL value, must be >= 0"))?;
    // A primary's or a journal's RESTORE has already been executed.
    if !call.replays && options.deadline(call.counts_from_ms()) == Some(BEYOND) {
        return Err(Error::text("ERR invalid expire time in 'restore' command"));
    }
    let payload = call.args.at(3);
    let settings = call.settings.clone();
    let origin = if call.replays { Origin::Trusted } else { Origin::Client };
    // Fields that have expired on their way are kept, like the fields of a key that nobody has visited.
    let by = (0, origin);
    if !call.is_worth_offloading(elements(payload)) {
        let value = read_payload(payload, &settings, &call.guard.keyspace().hasher, by)?;
        return store(call, options, value);
    }
    let hasher = call.guard.keyspace().hasher.clone();
    call.offload(Work::writes_arguments(
        move |args| read_payload(args.at(3), &settings, &hasher, by),
        |_| true, // it depends on no key
        move |call, value| {
            refuse_to_overwrite(call, options)?;
            store(call, options, value)
        },
    ))
}

/// The cost of reading a payload, in elements. A payload too short to be long is not examined for
/// compression.
fn elements(payload: &[u8]) -> usize {
    let len = match payload.len() {
        len if len * UNPACKED_MAX < OFFLOAD_MIN * BYTES_PER_ELEMENT => len,
        _ => usize::try_from(dump::unpacked_len(payload)).unwrap_or(usize::MAX),
    };
    len / BYTES_PER_ELEMENT
}

fn refuse_to_overwrite(call: &mut Call<'_, '_>, options: Options) -> Result<(), Error> {
    if !options.replaces && call.guard.peek(&call.keys[0]).is_some() {
        return Err(Error::text("BUSYKEY Target key name already exists."));
    }
    Ok(())
}

fn read_payload(
    payload: &[u8],
    settings: &evenkeel_config::Settings,
    hasher: &Hasher,
    by: (Millis, Origin),
) -> Result<Formed, Error> {
    let checks =
        EnvelopeChecks { versions: settings.rdb_versions(), skips_checksum: settings.skips_checksums };
    let mut decoder = dump::open_with(payload, checks)
        .map_err(|_| Error::text("ERR DUMP payload version or checksum are wrong"))?;
    let value = value_codec::read(&mut decoder, settings, hasher, by);
    let value = value.and_then(|value| decoder.finish().map(|()| value));
    value.map_err(|error| {
        let form = payload.first().map_or("Payload", |kind| value_codec::name_of_form(*kind));
        log::debug!("RESTORE: {form} integrity check failed: {error}");
        Error::text("ERR Bad data format")
    })
}

fn store(call: &mut Call<'_, '_>, options: Options, value: Formed) -> Done {
    let (key, from): (Key<'_>, _) = (call.keys[0], call.counts_from_ms());
    let deadline = options.deadline(from);
    let removed = call.guard.remove(&key);
    // A value that has expired on its way counts as restored and gone.
    if deadline.is_some_and(call.passes()) {
        if removed {
            call.log_removal(&key, call.settings.lazyfree_lazy_server_del);
        }
    } else {
        value.store(call.guard, &key, deadline);
        log_restore(call, removed, deadline);
        let access = match (call.guard.ctx.access, options) {
            (Access::Lru | Access::Lrm, Options { idle_seconds: Some(idle), .. }) => {
                Some(evict::lru_clock(from.saturating_sub((idle as u64).saturating_mul(1000))))
            }
            (Access::Lfu { .. }, Options { frequency: Some(frequency), .. }) => {
                Some(evict::lfu_new(from) & !0xff | u32::from(frequency))
            }
            _ => None,
        };
        if let Some(access) = access {
            call.guard.set_access(&key, access);
        }
    }
    call.reply.ok();
    Ok(Flow::Replied)
}

/// Logs the restored value, with a deadline that does not depend on the present.
fn log_restore(call: &mut Call<'_, '_>, replaced: bool, deadline: Option<Millis>) {
    if !call.is_logged() {
        return;
    }
    let (args, deadline) = (call.args, deadline.unwrap_or(0).to_string());
    let mut words: Vec<&[u8]> = vec![b"RESTORE", call.keys[0].bytes, deadline.as_bytes()];
    words.extend(args.from(3));
    let has = |option| (4..args.len()).any(|at| args.is(at, option));
    // On a replica, a key that has expired may have been replaced without an option.
    words.extend((replaced && !has("REPLACE")).then_some(&b"REPLACE"[..]));
    words.extend((!has("ABSTTL")).then_some(&b"ABSTTL"[..]));
    call.log(&words);
}
