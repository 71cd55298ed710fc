//! XREAD: the entries after an ID, in several streams, blocking if there are none; and the parts that
//! XREADGROUP shares.
//!
//! All IDs are resolved, and all errors found, before the first stream is searched for entries. The reply
//! begins with its number of streams, known only after the last stream, so that number is put in front in the
//! end. A waiter is served by the same steps on the single stream that was written to.

use std::ops::Range;

use evenkeel_resp::reply::Encoder;
use evenkeel_store::Kind;
use evenkeel_store::collection::stream::{Log, Stream, StreamId};

use super::id;
use super::range::reply_entry;
use crate::args::OwnedArgs;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::flow::{Mode, Timeout, Wait};
use crate::offloading::is_much;
use crate::reply::Reply;
use crate::{Args, Call};

/// The options, and where the streams stand.
pub(super) struct ReadOptions {
    /// Most entries of each stream.
    pub(super) count: u64,
    pub(super) timeout: Option<Timeout>,
    /// The index of the group's name; the consumer's follows it.
    pub(super) group: usize,
    pub(super) no_ack: bool,
    /// The index of the first key; the IDs follow the keys.
    first_key: usize,
    pub(super) streams: usize,
}

/// Calls `key` with the arguments that are keys: the first half of the arguments behind STREAMS.
pub(super) fn find_keys(args: &Args<'_>, db: u32, _: u32, key: &mut dyn FnMut(usize, u32)) {
    let mut at = 1;
    while at < args.len() {
        match args.word(at).as_bytes() {
            b"BLOCK" | b"COUNT" => at += 2,
            b"GROUP" => at += 3,
            b"NOACK" => at += 1,
            b"STREAMS" => {
                let (first, more) = (at + 1, args.len() - at - 1);
                if more % 2 == 0 {
                    (first..first + more / 2).for_each(|at| key(at, db));
                }
                return;
            }
            _ => return,
        }
    }
}

impl ReadOptions {
    pub(super) fn parse(call: &Call<'_, '_>, for_group: bool) -> Result<ReadOptions, Error> {
        let (args, mut at) = (&call.args, 1);
        let mut options =
            ReadOptions { count: u64::MAX, timeout: None, group: 0, no_ack: false, first_key: 0, streams: 0 };
        while options.streams == 0 && at < args.len() {
            let more = args.len() - at - 1;
            at += match args.word(at).as_bytes() {
                b"BLOCK" if more > 0 && call.mode == Mode::Script => {
                    let name = call.name().to_ascii_lowercase();
                    let text = format!("ERR {name} command is not allowed with BLOCK option from scripts");
                    return Err(Error::text(text));
                }
                b"BLOCK" if more > 0 => {
                    options.timeout = Some(call.timeout_ms(at + 1)?);
                    2
                }
                b"COUNT" if more > 0 => {
                    // Zero and negative numbers mean all.
                    options.count =
                        u64::try_from(args.int(at + 1)?).unwrap_or(0).wrapping_sub(1).saturating_add(1);
                    2
                }
                b"STREAMS" if more > 0 && more % 2 == 1 => return Err(unbalanced(for_group)),
                b"STREAMS" if more > 0 => {
                    (options.first_key, options.streams) = (at + 1, more / 2);
                    1
                }
                b"GROUP" if more >= 2 && !for_group => return Err(only_for_groups("GROUP")),
                b"GROUP" if more >= 2 => {
                    options.group = at + 1;
                    3
                }
                b"NOACK" if !for_group => return Err(only_for_groups("NOACK")),
                b"NOACK" => {
                    options.no_ack = true;
                    1
                }
                _ => return Err(Error::Syntax),
            };
        }
        match options {
            ReadOptions { streams: 0, .. } => Err(Error::Syntax),
            ReadOptions { group: 0, .. } if for_group => {
                Err(Error::text("ERR Missing GROUP option for XREADGROUP"))
            }
            options => Ok(options),
        }
    }

    /// Returns the ID given for a stream.
    pub(super) fn id_text<'a>(&self, args: &Args<'a>, stream: usize) -> &'a [u8] {
        args.at(self.first_key + self.streams + stream)
    }
}

fn unbalanced(for_group: bool) -> Error {
    let (command, id) = if for_group { ("xreadgroup", '>') } else { ("xread", '$') };
    Error::text(format!(
        "ERR Unbalanced '{command}' list of streams: for each stream key an ID or '{id}' must be specified."
    ))
}

fn only_for_groups(option: &str) -> Error {
    Error::text(format!("ERR The {option} option is only supported by XREADGROUP. You called XREAD instead."))
}

/// XREAD [COUNT count] [BLOCK milliseconds] STREAMS key [key ...] id [id ...]
pub(super) fn xread(call: &mut Call<'_, '_>) -> Done {
    let options = ReadOptions::parse(call, false)?;
    let tries = call.tries(0..options.streams);
    let mut ids = Vec::with_capacity(tries.len());
    for stream in tries {
        let text = options.id_text(&call.args, stream);
        let found = call.guard.collection::<Stream>(&call.keys[stream])?;
        ids.push((stream, settle(text, found.as_ref().map(|stream| stream.log()))?));
    }
    if is_much(entries_after(call, &ids, options.count)) {
        return offload_read_entries(call, &ids, options.count);
    }
    let len_max = call.reply_len_max();
    let served = reply_streams(call, ids.iter().copied(), |call, stream, after| {
        let found = call.guard.peek_collection::<Stream>(&call.keys[stream]);
        let Ok(Some(found)) = found else { return false };
        let range = positions_after(found.log(), after, options.count);
        call.reply.cut_beyond(len_max) || reply_stream(call.reply, call.keys[stream].bytes, &found, range)
    });
    if served || !may_wait(call, &options) {
        return Ok(Flow::Replied);
    }
    let wait = Wait::on(0..options.streams, Kind::Stream, options.timeout.expect("seen above"));
    // `$` is resolved now, not when an entry comes.
    let wait = if call.is_serving() { wait } else { wait.rerun(with_ids(&call.args, &options, &ids)) };
    call.block(wait)
}

/// Returns the number of entries of these streams after these IDs, at most `count` of each.
fn entries_after(call: &mut Call<'_, '_>, ids: &[(usize, StreamId)], count: u64) -> u64 {
    let of_each = |(stream, after): &(usize, StreamId)| {
        let found = call.guard.peek_collection::<Stream>(&call.keys[*stream]).ok().flatten()?;
        let range = positions_after(found.log(), *after, count);
        Some(range.end - range.start)
    };
    ids.iter().filter_map(of_each).sum()
}

/// Offloads a reply with many entries.
fn offload_read_entries(call: &mut Call<'_, '_>, ids: &[(usize, StreamId)], count: u64) -> Done {
    let of_each = |(stream, after): &(usize, StreamId)| {
        let key = &call.keys[*stream];
        let found = call.guard.peek_collection::<Stream>(key).ok().flatten()?;
        let range = positions_after(found.log(), *after, count);
        (!range.is_empty()).then(|| (key.bytes.to_vec(), Stream::clone(&found), range))
    };
    let all: Vec<_> = ids.iter().filter_map(of_each).collect();
    let len_max = call.reply_len_max();
    call.offload_reply(move |reply| {
        begin_streams(reply, all.len());
        for (key, stream, range) in all {
            if reply.cut_beyond(len_max) {
                break;
            }
            reply_stream(reply, &key, &stream, range);
        }
    })
}

/// Resolves the ID after which entries are requested.
fn settle(text: &[u8], log: Option<&Log>) -> Result<StreamId, Error> {
    let last_id = log.map_or(StreamId::MIN, Log::last_id);
    match text {
        b"$" => Ok(last_id),
        // The last entry comes after the ID before it.
        b"+" => match log.and_then(|log| log.entries().last()) {
            Some(last) => Ok(last.id.previous().unwrap_or_default()),
            None => Ok(last_id),
        },
        b">" => Err(Error::text(
            "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> \
             option.",
        )),
        _ => id::strict(text, 0),
    }
}

/// Returns the call's arguments with resolved IDs in place of the given IDs.
fn with_ids(args: &Args<'_>, options: &ReadOptions, ids: &[(usize, StreamId)]) -> OwnedArgs {
    let texts: Vec<String> = ids.iter().map(|(_, id)| id.to_string()).collect();
    let before = args.from(0).take(options.first_key + options.streams);
    OwnedArgs::new(before.chain(texts.iter().map(String::as_bytes)))
}

/// Returns the positions of the entries after an ID, at most `count`.
pub(super) fn positions_after(log: &Log, after: StreamId, count: u64) -> Range<u64> {
    let (len, start) = (log.entries().len(), after.next().map(|first| log.entries().position(first)));
    let start = start.unwrap_or(len);
    start..len.min(start.saturating_add(count))
}

/// Replies with the streams for which `each` writes entries; returns false, without a reply, if there are
/// none.
pub(super) fn reply_streams<T>(
    call: &mut Call<'_, '_>,
    streams: impl Iterator<Item = (usize, T)>,
    mut each: impl FnMut(&mut Call<'_, '_>, usize, T) -> bool,
) -> bool {
    let start = call.reply.bytes.len();
    let served = streams.map(|(stream, wanted)| each(call, stream, wanted)).filter(|served| *served).count();
    if served > 0 {
        let mut header = Encoder { bytes: Vec::new(), resp3: call.reply.resp3 };
        begin_streams(&mut header, served);
        call.reply.bytes.splice(start..start, header.bytes);
    }
    served > 0
}

/// Begins a reply of so many streams.
fn begin_streams(reply: &mut Encoder, streams: usize) {
    if reply.resp3 {
        reply.map(streams);
    } else {
        reply.array(streams);
    }
}

/// Replies with a stream's name and the entries at these positions; false if there are none.
fn reply_stream(reply: &mut Reply, key: &[u8], stream: &Stream, positions: Range<u64>) -> bool {
    if positions.is_empty() {
        return false;
    }
    begin_stream(reply, key, (positions.end - positions.start) as usize);
    stream.entries().range(positions).for_each(|entry| reply_entry(reply, &entry));
    true
}

/// Writes a stream's name, and how many entries follow.
pub(super) fn begin_stream(reply: &mut Reply, key: &[u8], entries: usize) {
    if !reply.resp3 {
        reply.array(2);
    }
    reply.bulk(key);
    reply.array(entries);
}

/// Whether the call, for which there are no entries, may wait; if not, the reply is written.
pub(super) fn may_wait(call: &mut Call<'_, '_>, options: &ReadOptions) -> bool {
    if options.timeout.is_none() {
        call.reply.null_array();
    }
    options.timeout.is_some()
}
