//! XREAD: the entries after an ID, in several streams, blocking if there are none; and the parts that
//! XREADGROUP shares.
//!
//! All IDs are resolved, and all errors found, before the first stream is searched for entries. The reply
//! begins with its number of streams, known only after the last stream, so that number is put in front in the
//! end. A waiter is served by the same steps on the single stream that was written to.

use std::ops::Range;

use evenkeel_resp::reply::Encoder;
use evenkeel_store::Kind;
use evenkeel_store::collection::stream::{Entry, Log, Stream, StreamId};

use super::id;
use super::range::reply_entry;
use crate::args::OwnedArgs;
use crate::error::Error;
use crate::flow::{Done, Flow};
use crate::flow::{Timeout, Wait};
use crate::offloading::is_much;
use crate::reply::Reply;
use crate::{Args, Call};

/// The options, and where the streams stand.
#[derive(Default)]
pub(super) struct ReadOptions {
    /// Most entries of each stream.
    pub(super) count: u64,
    /// The limits of all streams together.
    pub(super) limits: ReadLimits,
    /// How long pending entries must have been idle to be claimed (CLAIM).
    pub(super) min_idle_ms: Option<u64>,
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
            b"BLOCK" | b"CLAIM" | b"COUNT" | b"MAXCOUNT" | b"MAXSIZE" => at += 2,
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

/// The limits of a reply: MAXCOUNT and MAXSIZE.
#[derive(Clone, Copy, Default)]
pub(super) struct ReadLimits {
    entries: Option<u64>,
    /// Bytes of the reply. The entry that reaches the limit is the last; there is one in any case.
    bytes: Option<u64>,
}

/// The entries and bytes of a growing reply, with their limits.
pub(super) struct Budget {
    limits: ReadLimits,
    entries: u64,
    bytes: u64,
}

impl Budget {
    pub(super) fn new(limits: ReadLimits) -> Budget {
        Budget { limits, entries: 0, bytes: 0 }
    }

    /// Whether no further entry fits.
    pub(super) fn is_spent(&self) -> bool {
        let reached = |limit: Option<u64>, now: u64| limit.is_some_and(|limit| now >= limit);
        reached(self.limits.entries, self.entries)
            || self.entries > 0 && reached(self.limits.bytes, self.bytes)
    }

    /// Accounts for the name of a stream.
    pub(super) fn begin_stream(&mut self, key: &[u8]) {
        /// The lengths of two arrays of a few elements.
        const ARRAYS: u64 = 8;
        self.bytes += ARRAYS + bulk_len(key.len());
    }

    /// Accounts for an entry; false if it does not fit. `extra`: bytes beside its fields.
    pub(super) fn take(&mut self, entry: &Entry<'_>, extra: u64) -> bool {
        if self.is_spent() {
            return false;
        }
        self.entries += 1;
        if self.limits.bytes.is_some() {
            let fields = entry.fields();
            let arrays = 4 + array_len(2 * fields.len());
            let texts: u64 = fields.map(|(name, value)| bulk_len(name.len()) + bulk_len(value.len())).sum();
            self.bytes += arrays + bulk_len(entry.id.to_string().len()) + texts + extra;
        }
        true
    }

    /// [`Budget::take`] for a deleted entry.
    pub(super) fn take_id(&mut self, id: StreamId) -> bool {
        /// The heads of an array and of a null.
        const HEADS: u64 = 9;
        let fits = !self.is_spent();
        self.entries += u64::from(fits);
        self.bytes += HEADS + bulk_len(id.to_string().len());
        fits
    }

    /// Returns the part of these positions whose entries fit.
    pub(super) fn cut(&mut self, log: &Log, positions: Range<u64>, extra: u64) -> Range<u64> {
        if self.limits.bytes.is_none() {
            let left = self.limits.entries.map_or(u64::MAX, |most| most - self.entries);
            let end = positions.end.min(positions.start.saturating_add(left));
            self.entries += end - positions.start;
            return positions.start..end;
        }
        let entries = log.entries().range(positions.clone());
        let fitting = entries.take_while(|entry| self.take(entry, extra)).count() as u64;
        positions.start..positions.start + fitting
    }
}

/// Bytes of a bulk string of this length, and of the head of an array of this length.
fn bulk_len(len: usize) -> u64 {
    array_len(len) + len as u64 + 2
}

fn array_len(len: usize) -> u64 {
    u64::from(len.checked_ilog10().unwrap_or(0)) + 4
}

impl ReadOptions {
    pub(super) fn parse(call: &Call<'_, '_>, for_group: bool) -> Result<ReadOptions, Error> {
        let (args, mut at) = (&call.args, 1);
        let mut options = ReadOptions { count: u64::MAX, ..ReadOptions::default() };
        while options.streams == 0 && at < args.len() {
            let more = args.len() - at - 1;
            at += match args.word(at).as_bytes() {
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
                b"MAXCOUNT" if more > 0 => {
                    options.limits.entries = Some(positive(args, at + 1, "MAXCOUNT")?);
                    2
                }
                b"MAXSIZE" if more > 0 => {
                    options.limits.bytes = Some(positive(args, at + 1, "MAXSIZE")?);
                    2
                }
                b"CLAIM" if more > 0 && !for_group => return Err(only_for_groups("CLAIM")),
                b"CLAIM" if more > 0 => {
                    let not_integer = |_| Error::text("ERR min-idle-time is not an integer or out of range");
                    let negative = |_| Error::text("ERR min-idle-time must be a positive integer");
                    let min_idle = args.int(at + 1).map_err(not_integer)?;
                    options.min_idle_ms = Some(u64::try_from(min_idle).map_err(negative)?);
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
            ReadOptions { count, limits: ReadLimits { entries: Some(most), .. }, .. }
                if count < u64::MAX && most < count =>
            {
                Err(Error::text("ERR MAXCOUNT must be greater than or equal to COUNT"))
            }
            options => Ok(options),
        }
    }

    /// Returns the ID given for a stream.
    pub(super) fn id_text<'a>(&self, args: &Args<'a>, stream: usize) -> &'a [u8] {
        args.at(self.first_key + self.streams + stream)
    }
}

fn positive(args: &Args<'_>, at: usize, name: &str) -> Result<u64, Error> {
    let number = u64::try_from(args.int(at)?).ok().filter(|number| *number > 0);
    number.ok_or_else(|| Error::text(format!("ERR {name} must be a positive integer")))
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

/// XREAD [COUNT count] [MAXCOUNT count] [MAXSIZE bytes] [BLOCK milliseconds] STREAMS key [key ...] id [id
/// ...]
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
        return offload_read_entries(call, &ids, &options);
    }
    let (len_max, mut budget) = (call.reply_len_max(), Budget::new(options.limits));
    let served = reply_streams(call, ids.iter().copied(), |call, stream, after| {
        let found = call.guard.peek_collection::<Stream>(&call.keys[stream]);
        let Ok(Some(found)) = found else { return false };
        let range = read_range(&found, call.keys[stream].bytes, (after, options.count), &mut budget);
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

/// Returns the positions of the entries after an ID, at most so many, and as many as fit.
fn read_range(
    stream: &Stream,
    key: &[u8],
    (after, count): (StreamId, u64),
    budget: &mut Budget,
) -> Range<u64> {
    let range = positions_after(stream.log(), after, count);
    if range.is_empty() || budget.is_spent() {
        return range.start..range.start;
    }
    budget.begin_stream(key);
    budget.cut(stream.log(), range, 0)
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
fn offload_read_entries(call: &mut Call<'_, '_>, ids: &[(usize, StreamId)], options: &ReadOptions) -> Done {
    let mut budget = Budget::new(options.limits);
    let of_each = |(stream, after): &(usize, StreamId)| {
        let key = &call.keys[*stream];
        let found = call.guard.peek_collection::<Stream>(key).ok().flatten()?;
        let range = read_range(&found, key.bytes, (*after, options.count), &mut budget);
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
