//! Idempotent production, as since Redis 8.6: XADD with IDMP or IDMPAUTO, XCFGSET, XIDMPRECORD.
//!
//! A producer names its entries by ids of its own (iid). An entry that is sent again is not added again, and
//! the reply is the ID that it got. The journal has the words of Redis 8.6, since no older server knows this.

use twox_hash::XxHash3_128;

use evenkeel_store::collection::stream::{DURATION_S_MAX, ENTRIES_MAX_MAX, Idmp, Stream, StreamId};
use evenkeel_store::{Concerns, Edit};

use super::id::{self, NewId};
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::{Args, Call};
use evenkeel_config::Settings;

/// The producer of an entry, and the argument with the producer's id of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    producer: usize,
    /// `None` with IDMPAUTO: the id is a hash of the fields.
    iid: Option<usize>,
}

/// A producer, and its id of an entry.
pub(super) type Origin<'a> = (&'a [u8], Vec<u8>);

impl Source {
    /// Parses the option at `at`, if it is one of these; returns the index of the next argument.
    pub(super) fn read(args: &Args<'_>, at: usize, known: bool) -> Result<Option<(Source, usize)>, Error> {
        let more = args.len() - at - 1;
        let (name, source) = match args.word(at).as_bytes() {
            b"IDMPAUTO" if more > 0 => ("IDMPAUTO", Source { producer: at + 1, iid: None }),
            b"IDMP" if more > 1 => ("IDMP", Source { producer: at + 1, iid: Some(at + 2) }),
            _ => return Ok(None),
        };
        let syntax = |text: String| Err(Error::text(format!("ERR syntax error, {text}")));
        if known {
            return syntax("IDMP/IDMPAUTO specified multiple times".to_owned());
        }
        if args.at(source.producer).is_empty() {
            return syntax(format!("{name} requires a non-empty producer ID"));
        }
        if source.iid.is_some_and(|iid| args.at(iid).is_empty()) {
            return syntax(format!("{name} requires a non-empty idempotent ID"));
        }
        Ok(Some((source, source.iid.unwrap_or(source.producer) + 1)))
    }

    /// Returns the producer and its id of the entry with these fields.
    pub(super) fn resolve<'a>(self, args: &Args<'a>, fields: impl Iterator<Item = &'a [u8]>) -> Origin<'a> {
        let iid = self.iid.map_or_else(|| hash(fields).to_vec(), |iid| args.at(iid).to_vec());
        (args.at(self.producer), iid)
    }
}

pub(super) fn needs_auto_id() -> Error {
    Error::text("ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs")
}

/// Returns the hash of fields in any order, as in Redis.
fn hash<'a>(mut fields: impl Iterator<Item = &'a [u8]>) -> [u8; 16] {
    let (mut sums, mut xors, mut pair) = ([0_u64; 2], [0_u64; 2], Vec::new());
    while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
        pair.clear();
        pair.extend_from_slice(name);
        pair.extend_from_slice(&(name.len() as u64).to_le_bytes());
        pair.extend_from_slice(value);
        let hash = XxHash3_128::oneshot(&pair);
        for (at, half) in [hash as u64, (hash >> 64) as u64].into_iter().enumerate() {
            sums[at] = sums[at].wrapping_add(half);
            xors[at] ^= half;
        }
    }
    let (low, high) = (sums[0] ^ xors[1].rotate_left(1), sums[1] ^ xors[0].rotate_left(1));
    (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
}

/// Returns the entry that its producer has sent before, and counts that. `given`: the ID in a journal, which
/// decides there: an entry that was added anew has another ID than before.
pub(super) fn find(
    call: &mut Call<'_, '_>,
    (producer, iid): (&[u8], &[u8]),
    given: NewId,
) -> Result<Option<StreamId>, Error> {
    let (key, now) = (&call.keys[0], call.now_ms());
    let Some(stream) = call.guard.peek_collection::<Stream>(key)? else { return Ok(None) };
    let last_id = stream.log().last_id();
    let found = stream.idmp().and_then(|idmp| idmp.find(producer, iid, now));
    let id = match given {
        NewId::Exactly(id) if call.replays || call.is_replay() => Some(id).filter(|id| *id <= last_id),
        _ => found,
    };
    if id.is_some() {
        call.guard.edit(key, |edit: &mut Edit<'_, Stream>| {
            let idmp = edit.idmp_mut();
            idmp.duplicates = idmp.duplicates.saturating_add(1);
            (edit.changes, edit.concerns) = (1, Concerns::Nobody);
        })?;
    }
    Ok(id)
}

/// The configuration that XCFGSET sets.
fn configuration(args: &Args<'_>) -> Result<(Option<u64>, Option<u64>), Error> {
    let (mut duration, mut most, mut at) = (None, None, 2);
    while at < args.len() {
        let word = args.word(at);
        let (name, number, max, unit) = match word.as_bytes() {
            b"IDMP-DURATION" => ("IDMP-DURATION", &mut duration, DURATION_S_MAX, "seconds"),
            b"IDMP-MAXSIZE" => ("IDMP-MAXSIZE", &mut most, ENTRIES_MAX_MAX, "entries"),
            _ => return Err(Error::Syntax),
        };
        if at + 1 == args.len() {
            return Err(Error::Syntax);
        }
        if number.is_some() {
            return Err(Error::text(format!("ERR {name} specified multiple times")));
        }
        let given = u64::try_from(args.int(at + 1)?).ok().filter(|given| (1..=max).contains(given));
        let out_of_range = || Error::text(format!("ERR {name} must be between 1 and {max} {unit}"));
        *number = Some(given.ok_or_else(out_of_range)?);
        at += 2;
    }
    match (duration, most) {
        (None, None) => Err(Error::text("ERR At least one parameter must be specified")),
        both => Ok(both),
    }
}

/// The configuration of a new stream, in seconds and entries: `stream-idmp-duration` and
/// `stream-idmp-maxsize`, if they differ from their defaults.
pub(super) fn default_of(settings: &Settings) -> Option<(u64, u64)> {
    let (usual, given) = (Idmp::default(), (settings.stream_idmp_duration, settings.stream_idmp_maxsize));
    (given != (usual.duration_s, usual.entries_max)).then_some(given)
}

/// Logs the configuration of a stream, which may differ from the default of a reader of the journal, and then
/// the first entry of a producer.
pub(super) fn log_configured(
    call: &mut Call<'_, '_>,
    configuration: Option<(u64, u64)>,
    (producer, iid): &Origin<'_>,
    id: StreamId,
) {
    if let Some(configuration) = configuration
        && call.is_logged()
    {
        log_configuration(call, configuration);
        call.log(&[b"XIDMPRECORD", call.keys[0].bytes, producer, iid, id.to_string().as_bytes()]);
    }
}

fn log_configuration(call: &mut Call<'_, '_>, (duration_s, entries_max): (u64, u64)) {
    let (duration, most) = (duration_s.to_string(), entries_max.to_string());
    let words: [&[u8]; 5] =
        [call.keys[0].bytes, b"IDMP-DURATION", duration.as_bytes(), b"IDMP-MAXSIZE", most.as_bytes()];
    call.log(&[&[&b"XCFGSET"[..]][..], &words].concat());
}

/// XCFGSET key [IDMP-DURATION seconds] [IDMP-MAXSIZE entries]
pub(super) fn xcfgset(call: &mut Call<'_, '_>) -> Done {
    let (duration, most) = configuration(&call.args)?;
    let key = &call.keys[0];
    let stream = call.guard.peek_collection::<Stream>(key)?.ok_or(Error::NoSuchKey)?;
    let given = (call.settings.stream_idmp_duration, call.settings.stream_idmp_maxsize);
    let now = stream.idmp().map_or(given, |idmp| (idmp.duration_s, idmp.entries_max));
    let wanted = (duration.unwrap_or(now.0), most.unwrap_or(now.1));
    if wanted != now {
        call.guard.edit(key, |edit: &mut Edit<'_, Stream>| {
            edit.idmp_mut().configure(wanted.0, wanted.1);
            (edit.changes, edit.concerns) = (1, Concerns::Nobody);
        })?;
        if call.is_logged() {
            log_configuration(call, wanted);
        }
    }
    call.reply.ok();
    Ok(Flow::Replied)
}

/// XIDMPRECORD key producer iid id
pub(super) fn xidmprecord(call: &mut Call<'_, '_>) -> Done {
    let (args, now) = (call.args, call.now_ms());
    let id = id::strict(args.at(4), 0)?;
    let (producer, iid) = (args.at(2), args.at(3));
    if producer.is_empty() {
        return Err(Error::text("ERR producer ID must be non-empty"));
    }
    if iid.is_empty() {
        return Err(Error::text("ERR idempotent ID must be non-empty"));
    }
    let key = &call.keys[0];
    let stream = call.guard.peek_collection::<Stream>(key)?.ok_or(Error::NoSuchKey)?;
    if !stream.entries().contains(id) {
        return Err(Error::text("ERR No such message in stream"));
    }
    let before = stream.idmp().and_then(|idmp| idmp.find(producer, iid, now));
    match before {
        Some(before) if before != id => {
            return Err(Error::text("ERR IID already exists for this producer with a different stream ID"));
        }
        Some(_) => {}
        None => call.guard.edit(key, |edit: &mut Edit<'_, Stream>| {
            edit.idmp_mut().remember(producer, iid, id);
            (edit.changes, edit.concerns) = (1, Concerns::Nobody);
        })?,
    }
    call.reply.ok();
    Ok(Flow::Replied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_fields_does_not_matter_to_their_hash() {
        let of = |fields: &[&'static str]| hash(fields.iter().map(|field| field.as_bytes()));
        assert_eq!(of(&["a", "1", "b", "2"]), of(&["b", "2", "a", "1"]));
        assert_ne!(of(&["a", "1", "b", "2"]), of(&["a", "2", "b", "1"]));
        assert_ne!(of(&["a", "bc"]), of(&["ab", "c"]));
        assert_ne!(of(&["a", "b", "a", "b"]), of(&[]));
    }
}
