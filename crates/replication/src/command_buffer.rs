//! Received bytes, and the commands in them: a stream of commands that a thread runs in batches.
//!
//! ```text
//! bytes:  [parsed, kept for their owner][ parsed, not run ][ not parsed ]
//!                                                         ^ parsed
//! ```

use evenkeel_client::runner::{CommandRunner, Request};
use evenkeel_command::{Args, Id};
use evenkeel_resp::request::{Parsed, Span, State, parse};
use evenkeel_store::{Keyspace, Place, ThreadContext};

/// Commands run between two checks of the gate: enough that prefetching all their keys at once is worthwhile.
const BATCH: usize = 32;

/// An argument may be as long as in a request.
pub(super) const BULK_LEN_MAX: usize = 4 << 30;

/// Cache lines prefetched for an entry.
const ENTRY_LINES: usize = 4;

/// See the module's text.
pub(super) struct CommandBuffer {
    pub(super) bytes: Vec<u8>,
    /// The end of the parsed commands.
    pub(super) parsed: usize,
    /// The progress of parsing the next command.
    state: State,
    /// Arguments of the batch (`whole` of them), and the arguments so far of the next command.
    spans: Vec<Span>,
    whole: usize,
    batch: Vec<Parts>,
}

/// A command in the buffer.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    /// The place behind it.
    pub(super) end: usize,
    first_span: usize,
    end_span: usize,
    pub(super) command: Option<Id>,
    pub(super) key: Option<(u64, Place)>,
}

impl Default for CommandBuffer {
    fn default() -> CommandBuffer {
        CommandBuffer {
            bytes: Vec::new(),
            parsed: 0,
            state: State::start(0),
            spans: Vec::new(),
            whole: 0,
            batch: Vec::new(),
        }
    }
}

impl CommandBuffer {
    /// Forgets all bytes.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        (self.parsed, self.state, self.whole) = (0, State::start(0), 0);
        self.spans.clear();
        self.batch.clear();
    }

    /// The buffer for the next `room` bytes. [`CommandBuffer::received`] sets how many of them have come.
    pub(super) fn room(&mut self, room: usize) -> &mut [u8] {
        let filled = self.bytes.len();
        self.bytes.resize(filled + room, 0);
        &mut self.bytes[filled..]
    }

    pub(super) fn received(&mut self, got: usize, room: usize) {
        self.bytes.truncate(self.bytes.len() - room + got);
    }

    /// Parses the next batch, whose first command runs in this database. Returns the error behind its last
    /// command, if any.
    pub(super) fn parse(&mut self, runner: &dyn CommandRunner, db: u32) -> Option<String> {
        self.batch.clear();
        self.spans.drain(..self.whole);
        self.whole = 0;
        while self.batch.len() < BATCH {
            // Only the first byte of a command can tell that it is no array; the bytes behind it can be
            // anything.
            match self.bytes.get(self.parsed) {
                None | Some(b'*') => {}
                Some(b'\n') => {
                    self.parsed += 1;
                    self.state = State::start(self.parsed);
                    continue;
                }
                Some(other) => return Some(format!("a command starts with '{}'", other.escape_ascii())),
            }
            match parse(&mut self.bytes, self.state, &mut self.spans, BULK_LEN_MAX) {
                Ok(Parsed::Ready(end)) => self.found(end, runner, db),
                Ok(Parsed::More { state, .. }) => {
                    self.state = state;
                    break;
                }
                Err(error) => return Some(String::from_utf8_lossy(&error.text()).into_owned()),
            }
        }
        None
    }

    fn found(&mut self, end: usize, runner: &dyn CommandRunner, db: u32) {
        let (first_span, end_span) = (self.whole, self.spans.len());
        if end_span > first_span {
            let args = Args::new(&self.bytes, &self.spans[first_span..end_span]);
            let Request { command, key, .. } = runner.resolve_logged(args, db);
            self.batch.push(Parts { end, first_span, end_span, command, key });
        }
        (self.whole, self.parsed, self.state) = (end_span, end, State::start(end));
    }

    /// The commands of the batch.
    pub(super) fn batch(&self) -> &[Parts] {
        &self.batch
    }

    /// Whether there may be more complete commands than the batch has.
    pub(super) fn is_batch_full(&self) -> bool {
        self.batch.len() == BATCH
    }

    pub(super) fn args(&self, parts: &Parts) -> Args<'_> {
        Args::new(&self.bytes, &self.spans[parts.first_span..parts.end_span])
    }

    /// Loads the keys of the batch into the cache. The context is inside the gate.
    pub(super) fn prefetch(&self, keyspace: &Keyspace, ctx: &ThreadContext) {
        let keys = || self.batch.iter().filter_map(|parts| parts.key);
        keys().for_each(|(_, place)| keyspace.prefetch_slot(ctx, place));
        keys().for_each(|(hash, place)| keyspace.prefetch_bucket(ctx, place, hash));
        keys().for_each(|(hash, place)| keyspace.prefetch_entry(ctx, place, hash, ENTRY_LINES));
    }

    /// Drops the first `len` bytes, whose commands have been run. A buffer that a long command has enlarged
    /// beyond four times `room` is shrunk.
    pub(super) fn drop_first(&mut self, len: usize, room: usize) {
        self.bytes.drain(..len);
        self.parsed -= len;
        self.state.at -= len;
        self.spans.drain(..self.whole);
        self.whole = 0;
        self.batch.clear();
        self.spans.iter_mut().for_each(|span| *span = span.shifted_down(len));
        if self.bytes.capacity() > 4 * room && self.bytes.len() < room {
            self.bytes.shrink_to(2 * room);
        }
    }
}
