//! The pipeline runs batches: parse the received requests, prefetch the memory that the commands will touch,
//! then run them.
//!
//! At pipeline 16 the work of a store is waiting for memory. Slot, bucket and entry of a key depend on each
//! other, so a single command waits three times. A batch prefetches all slots, then all buckets, then all
//! entries, and waits about three times in all. Measured with 300,000 keys of 500 bytes, this is worth a
//! quarter to a third.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;
use evenkeel_resp::request::{Parsed, ProtocolError, Span, State, parse, parse_unauthenticated};
use evenkeel_store::ahead::MEMBERS_MAX;
use evenkeel_store::journal::RequestBytes;
use evenkeel_store::{Key, Place};

use crate::executor::{Executor, append_push, record_stage};
use crate::observe::stats::{Stage, add};
use crate::worker::request_reader::{Incomplete, RequestReader};
use evenkeel_client::pubsub::push_queue;
use evenkeel_client::runner::{Outcome, Request};
use evenkeel_client::session::Session;
use evenkeel_command::error::Error;
use evenkeel_command::reply::Reply;
use evenkeel_command::{Args, Id};
use evenkeel_net::region::Source;
use evenkeel_runtime::clock;

/// Commands per batch: enough to hide the memory's latency, few enough that prefetched lines are still
/// cached.
const BATCH: usize = 32;

/// Bytes of replies after which they are sent before further commands run.
pub(crate) const REPLY_LEN_MAX: usize = 128 * 1024;

/// Buffers that a worker reuses from batch to batch.
#[derive(Default)]
pub(crate) struct Pipeline {
    spans: Vec<Span>,
    batch: Vec<Parts>,
    /// The arguments of the requests that were parsed ahead.
    ahead_spans: Vec<Span>,
    /// The original bytes of an inline request, if it is the batch: parsing it removes its quotes, so it is
    /// parsed twice only if it is put back.
    line: Vec<u8>,
    /// Cache lines of an entry in the last batch, estimated from the bytes that its commands received or
    /// replied.
    entry_lines: usize,
}

/// Most cache lines prefetched per entry; the processor's own prefetcher finds the lines behind these.
const ENTRY_LINES_MAX: usize = 10;

/// Fewest consecutive look-ups of members in the same collection that are prefetched together: fewer do not
/// pay for a second walk down the tree.
const MEMBERS_MIN: usize = 4;

/// Approximate bytes of an entry beside its value.
const ENTRY_OVERHEAD: usize = 32;

/// A request found in the buffer.
#[derive(Clone, Copy)]
struct Parts {
    /// Offsets of its first byte, and of its end.
    start: usize,
    end: usize,
    first_span: usize,
    end_span: usize,
    command: Option<Id>,
    key: Option<(u64, Place)>,
}

/// A request that was parsed ahead of its connection's run, and is alone in the received bytes.
#[derive(Clone, Copy)]
pub(crate) struct ParsedAhead {
    first_span: usize,
    end_span: usize,
    command: Option<Id>,
    /// Hash and place of its key, if it has a single key.
    pub(crate) key: Option<(u64, Place)>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// No further command can run: the rest has not arrived, or the session is closing.
    Empty,
    /// The reply is large enough to be sent; more requests are there.
    Full,
    /// Other connections have their turn; there may be more requests.
    TimeUp,
    /// The next command has to wait for the end of a pause.
    Paused,
    /// The last command waits, and so do the requests behind it.
    Suspended,
}

impl Pipeline {
    /// Runs received requests from `*used` on until there are no more or the reply is large. `*used` moves on
    /// to the first byte of the first request that was not run. `reader` keeps how far that request has
    /// been parsed. `ahead`: the request in the bytes, if it is the only one and has been parsed.
    pub(crate) fn run(
        &mut self,
        executor: &mut Executor,
        (session, reader): (&mut Session, &mut RequestReader),
        (source, mut ahead): (&mut dyn Source, Option<ParsedAhead>),
        used: &mut usize,
        reply: &mut Reply,
    ) -> Ended {
        let mut state = reader.resume_parsing(*used, &mut self.spans);
        loop {
            let parsed = match self.take_ahead(executor, source.bytes(), ahead.take(), session) {
                Some(parsed) => parsed,
                None => self.parse_batch(executor, source.bytes_mut(), *used, state, session),
            };
            // The journal's bytes are never written to again, but parsing an inline request would.
            let is_last = matches!(parsed.end, BatchEnd::More(_));
            let requests = source.request_bytes(is_last && !self.batch.is_empty());
            let run = self.run_batch(executor, session, requests, reply);
            if let Some((at, ended)) = run {
                let last = &self.batch[at];
                if ended == Ended::Paused && !self.line.is_empty() {
                    source.bytes_mut()[last.start..][..self.line.len()].copy_from_slice(&self.line);
                }
                *used = if ended == Ended::Paused { last.start } else { last.end };
                reader.stop_between();
                return ended;
            }
            if session.closing && session.client.killed.load(Relaxed) {
                *used = source.bytes().len();
                return Ended::Empty;
            }
            *used = self.batch.last().map_or(*used, |last| last.end).max(parsed.skipped_to);
            match parsed.end {
                BatchEnd::Full => {
                    self.spans.clear();
                    state = State::start(*used);
                }
                BatchEnd::More(request) => {
                    reader.stop_within(request, *used, &mut self.spans, parsed.spans_used);
                    return Ended::Empty;
                }
                BatchEnd::Broken(error) => {
                    if !session.closing {
                        reply.fail(&Error::Bytes([b"ERR Protocol error: ", &error.text()[..]].concat()));
                        executor.stats().error(b"ERR");
                        log_broken(executor, session, &error.text(), &source.bytes()[*used..]);
                    }
                    session.closing = true;
                }
            }
            if session.closing {
                *used = source.bytes().len();
                return Ended::Empty;
            }
            if reply.len() > REPLY_LEN_MAX {
                reader.stop_between();
                return Ended::Full;
            }
        }
    }

    /// Forgets the requests that were parsed ahead.
    pub(crate) fn forget_ahead(&mut self) {
        self.ahead_spans.clear();
    }

    /// Parses the request in `bytes` and looks it up, if it is alone: a pipeline is parsed as a batch. Its
    /// session must run nothing else before it.
    pub(crate) fn parse_ahead(
        &mut self,
        executor: &Executor,
        session: &Session,
        bytes: &mut [u8],
    ) -> Option<ParsedAhead> {
        if bytes.first() != Some(&b'*') {
            return None; // parsing an inline request changes it
        }
        if session.access.lacks_auth(&executor.server.acl) {
            return None; // the limits of an unauthenticated client are checked when it is run
        }
        let (first_span, bulk_len_max) = (self.ahead_spans.len(), executor.settings.proto_max_bulk_len);
        let parsed = parse(bytes, State::start(0), &mut self.ahead_spans, bulk_len_max);
        let end_span = self.ahead_spans.len();
        if parsed != Ok(Parsed::Ready(bytes.len())) || end_span == first_span {
            self.ahead_spans.truncate(first_span);
            return None;
        }
        let args = Args::new(bytes, &self.ahead_spans[first_span..]);
        let Request { command, key, .. } = executor.resolve(args, session.db);
        Some(ParsedAhead { first_span, end_span, command, key })
    }

    /// Makes a request that was parsed ahead the batch. Returns `None` if there is none, or if its client has
    /// to authenticate by now, so that other limits apply.
    fn take_ahead(
        &mut self,
        executor: &Executor,
        bytes: &[u8],
        ahead: Option<ParsedAhead>,
        session: &Session,
    ) -> Option<ParsedBatch> {
        let ParsedAhead { first_span, end_span, command, key } = ahead?;
        if session.access.lacks_auth(&executor.server.acl) {
            return None;
        }
        self.spans.clear();
        self.spans.extend_from_slice(&self.ahead_spans[first_span..end_span]);
        self.line.clear();
        self.batch.clear();
        let (end, end_span) = (bytes.len(), self.spans.len());
        self.batch.push(Parts { start: 0, end, first_span: 0, end_span, command, key });
        let rest = Incomplete { state: State::start(end), missing: 1 };
        Some(ParsedBatch { end: BatchEnd::More(rest), skipped_to: end, spans_used: end_span })
    }

    /// Returns the cache lines to prefetch per entry.
    pub(crate) fn entry_lines(&self) -> usize {
        self.entry_lines
    }

    fn parse_batch(
        &mut self,
        executor: &mut Executor,
        bytes: &mut [u8],
        used: usize,
        mut state: State,
        session: &Session,
    ) -> ParsedBatch {
        let from = executor.last_ticks;
        self.batch.clear();
        let (mut start, mut first_span) = (used, 0);
        let bulk_len_max = executor.settings.proto_max_bulk_len;
        self.line.clear();
        let is_unauthenticated = session.access.lacks_auth(&executor.server.acl);
        let end = loop {
            let is_line = bytes.get(start).is_some_and(|byte| *byte != b'*');
            // A request that will not run in this batch must not be parsed. After AUTH, larger requests are
            // allowed.
            let is_full =
                self.batch.len() == BATCH || (is_line || is_unauthenticated) && !self.batch.is_empty();
            if is_full && start < bytes.len() {
                break BatchEnd::Full;
            }
            if is_line {
                let line = bytes[start..].split_inclusive(|byte| *byte == b'\n').next();
                self.line.clear();
                self.line.extend_from_slice(line.unwrap_or_default());
            }
            let parsed = if is_unauthenticated {
                parse_unauthenticated(bytes, state, &mut self.spans, bulk_len_max)
            } else {
                parse(bytes, state, &mut self.spans, bulk_len_max)
            };
            match parsed {
                Ok(Parsed::Ready(end)) => {
                    if self.spans.len() > first_span {
                        let end_span = self.spans.len();
                        let parts = Parts { start, end, first_span, end_span, command: None, key: None };
                        self.batch.push(parts);
                        first_span = end_span;
                    } else {
                        self.line.clear(); // an empty line is no request
                    }
                    start = end;
                    state = State::start(end);
                    if is_line && !self.batch.is_empty() {
                        break BatchEnd::Full;
                    }
                }
                Ok(Parsed::More { state, missing }) => break BatchEnd::More(Incomplete { state, missing }),
                Err(error) => break BatchEnd::Broken(error),
            }
        };
        let mut all_have_keys = true;
        for parts in &mut self.batch {
            let args = Args::new(bytes, &self.spans[parts.first_span..parts.end_span]);
            let request = executor.resolve(args, session.db);
            (parts.command, parts.key) = (request.command, request.key);
            all_have_keys &= request.key.is_some();
        }
        if !all_have_keys && self.batch.len() > 1 {
            self.follow_selects(executor, bytes, session.db);
        }
        executor.last_ticks = record_stage(executor.stats(), Stage::Parse, from);
        ParsedBatch { end, skipped_to: start, spans_used: first_span }
    }

    /// Computes the keys behind a SELECT in the database that it selects: prefetching another database's
    /// would be useless.
    #[cold]
    fn follow_selects(&mut self, executor: &Executor, bytes: &[u8], first: u32) {
        let mut db = first;
        for parts in &mut self.batch {
            let args = Args::new(bytes, &self.spans[parts.first_span..parts.end_span]);
            if parts.key.is_some() {
                parts.key = parts.key.map(|(hash, place)| (hash, Place::new(db, place.slot() as u16)));
            } else if let Some(selected) = parts.command.and_then(|id| executor.selected_by(id, &args)) {
                db = selected;
            }
        }
    }

    /// Runs the batch. Returns `Some` with the index of a command that has to wait, and the reason. The
    /// session keeps the number of the last journal record.
    fn run_batch(
        &mut self,
        executor: &mut Executor,
        session: &mut Session,
        requests: RequestBytes<'_>,
        reply: &mut Reply,
    ) -> Option<(usize, Ended)> {
        if self.batch.is_empty() {
            return None;
        }
        let from = executor.last_ticks;
        let Executor { server, ctx, settings, .. } = &mut *executor;
        ctx.buffer.begin_batch();
        // On a primary, a reply waits for the writes that it shows.
        let is_in_sync = settings.write_acks.in_sync || session.write_acks.in_sync;
        (ctx.records_seen, ctx.seen) = (is_in_sync && !server.replication.is_replica(), 0);
        let is_closed = Cell::new(false);
        // A command may leave the gate while a long-running script closes it: the rest of the batch is
        // answered BUSY.
        let inside = server.core.keyspace.enter_unless(ctx, || {
            is_closed.set(true);
            server.scripts.busy.is_busy()
        });
        if is_closed.get() {
            // The wait for the gate is not part of the first command, which begins now.
            executor.last_ticks = clock::ticks();
        }
        if inside {
            if self.batch.len() > 1 {
                self.prefetch(executor);
            }
            executor.make_room(); // leaves the gate for a moment
            executor.update_pause();
        }
        if session.receives_push {
            // Invalidations of evicted keys, for instance, precede the replies to later commands.
            append_push(session, reply);
        }
        let mut ended = None;
        let reply_len = reply.len();
        let mut fetched = 0;
        for (index, parts) in self.batch.iter().enumerate() {
            // Checked inside the gate, like every revocation: see `ServerCall::reply_in_force`.
            session.closing |= session.client.killed.load(Relaxed);
            if session.closing {
                break;
            }
            if executor.ctx.is_inside() && index >= fetched {
                fetched = self.prefetch_members(executor, requests.bytes(), index);
            }
            executor.keep_time();
            let args = Args::of(requests, &self.spans[parts.first_span..parts.end_span]);
            let request =
                Request { command: parts.command, args, len: parts.end - parts.start, key: parts.key };
            let outcome = executor.shielded(reply, |executor, reply| {
                if executor.ctx.is_inside() {
                    executor.run(session, request, reply)
                } else {
                    executor.run_outside(session, request, reply)
                }
            });
            ended = match outcome {
                Some(Outcome::Paused) => Some((index, Ended::Paused)),
                Some(Outcome::Suspended) => Some((index, Ended::Suspended)),
                Some(Outcome::Replied) | None => {
                    (executor.is_time_up() && !session.closing).then_some((index, Ended::TimeUp))
                }
            };
            if ended.is_some() {
                break;
            }
        }
        if executor.ctx.is_inside() {
            executor.serve_woken();
            executor.server.core.keyspace.leave(&mut executor.ctx);
        } else {
            push_queue::notify_workers(&executor.server.hub); // for messages of the earlier commands
        }
        let (former, own) = (session.last_record, executor.ctx.buffer.last_of_batch());
        session.last_record = own.unwrap_or(former);
        if executor.ctx.records_seen {
            let seen = executor.ctx.seen.max(executor.server.replication.acks.epoch_record());
            session.last_record = session.last_record.max(former).max(seen);
        }
        self.update_entry_size(reply.len().saturating_sub(reply_len));
        let waited = std::mem::take(&mut executor.ctx.lock_wait);
        let evicted = std::mem::take(&mut executor.evict_ticks);
        let stats = executor.stats();
        let all = executor.last_ticks.saturating_sub(from);
        stats.record_stage(Stage::Execute, all.saturating_sub(waited + evicted));
        if waited > 0 {
            stats.record_stage(Stage::LockWait, waited);
        }
        let run = match ended {
            // A command that waits is counted at its end.
            Some((at, Ended::Paused | Ended::Suspended)) => at,
            Some((at, _)) => at + 1,
            None => self.batch.len(),
        };
        add(&session.client.commands, run as u64);
        ended
    }

    /// Estimates from this batch how many bytes of each entry the next batch will touch.
    fn update_entry_size(&mut self, replied: usize) {
        let arrived = self.batch[self.batch.len() - 1].end - self.batch[0].start;
        let bytes = arrived.max(replied) / self.batch.len() + ENTRY_OVERHEAD;
        self.entry_lines = bytes.div_ceil(64).min(ENTRY_LINES_MAX);
    }

    fn prefetch(&self, executor: &Executor) {
        let (keyspace, ctx) = (&executor.server.core.keyspace, &executor.ctx);
        let keys = || self.batch.iter().filter_map(|parts| parts.key);
        keys().for_each(|(_, place)| keyspace.prefetch_slot(ctx, place));
        keys().for_each(|(hash, place)| keyspace.prefetch_bucket(ctx, place, hash));
        keys().for_each(|(hash, place)| keyspace.prefetch_entry(ctx, place, hash, self.entry_lines));
    }

    /// Prefetches for the commands from `from` on that look up members of the same collection. Returns the
    /// first command that does not, or whose members are too many at once. The effects of the commands before
    /// them are known by then.
    fn prefetch_members(&self, executor: &mut Executor, bytes: &[u8], from: usize) -> usize {
        let mut members = ArrayVec::<&[u8], MEMBERS_MAX>::new();
        let (key, mut to) = (self.batch[from].key, from);
        for parts in &self.batch[from..] {
            let Some(rule) = parts.command.and_then(|id| executor.table.row(id).members) else { break };
            if parts.key != key || members.is_full() {
                break;
            }
            let args = Args::new(bytes, &self.spans[parts.first_span..parts.end_span]);
            members.extend(rule.of(&args).take(members.remaining_capacity()));
            to += 1;
        }
        if members.len() >= MEMBERS_MIN
            && let Some((hash, place)) = key
        {
            let args = Args::new(bytes, &self.spans[self.batch[from].first_span..self.batch[from].end_span]);
            let key = Key { bytes: args.at(1), place, hash };
            executor.server.core.keyspace.prefetch_members(&mut executor.ctx, &key, &members);
        }
        to.max(from + 1)
    }
}

struct ParsedBatch {
    end: BatchEnd,
    /// End of the last complete request, requests without arguments included.
    skipped_to: usize,
    /// Spans of complete requests; further spans belong to the incomplete request.
    spans_used: usize,
}

enum BatchEnd {
    /// As many requests as a batch holds.
    Full,
    More(Incomplete),
    Broken(ProtocolError),
}

/// Logs a malformed request, of which the rest of the input is shown in part.
#[cold]
fn log_broken(executor: &Executor, session: &Session, error: &[u8], rest: &[u8]) {
    const SHOWN: usize = 64;
    let text = if executor.settings.hide_user_data_from_log {
        "*redacted*".to_owned()
    } else {
        let printable = |bytes: &[u8]| -> String {
            bytes
                .iter()
                .map(|byte| if matches!(byte, b' '..=b'~') { char::from(*byte) } else { '.' })
                .collect()
        };
        match rest.len().checked_sub(2 * SHOWN) {
            None | Some(0) => format!("'{}'", printable(rest)),
            Some(more) => {
                let [start, end] = [&rest[..SHOWN], &rest[rest.len() - SHOWN..]].map(printable);
                format!("'{start}' (... more {more} bytes ...) '{end}'")
            }
        }
    };
    log::debug!(
        "Protocol error ({}) from client: {}. Query buffer: {text}",
        String::from_utf8_lossy(error),
        session.client.address
    );
}

#[cfg(test)]
mod tests;
