//! The input of a connection: received bytes that are not used up, and how far the request at their start has
//! been parsed.
//!
//! A connection without unused bytes reads into a region of its worker ([`evenkeel_net::region`]). The worker
//! runs the requests there, and only the bytes behind them move into the reader ([`RequestReader::keep`]). As
//! long as the reader has bytes, the connection reads behind them ([`RequestReader::read_more`]).

use std::io;
use std::mem;

use evenkeel_resp::request::{Span, State};

use evenkeel_client::clients::ClientInfo;
use evenkeel_net::Stream;
use evenkeel_net::region::Spot;

/// Fewest bytes of buffer reserved for a long request.
const ROOM_MIN: usize = 64 * 1024;

/// A buffer of more bytes than this is shrunk when it is mostly empty.
const UNSHRUNK_MAX: usize = 64 * 1024;

/// See the module's text.
pub(crate) struct RequestReader {
    /// Received bytes that are not used up; nearly always empty.
    input: Vec<u8>,
    /// Length of `input` when it was last published.
    published_len: usize,
    /// Parser state of the request at the start of the unused bytes, relative to its first byte.
    state: State,
    /// The arguments of that request that have arrived.
    args: Vec<Span>,
    /// Lower bound of the bytes that the request still lacks. Zero: nothing is known to be lacking.
    missing: usize,
    /// Most bytes to reserve for the next read of this request, judged by earlier reads.
    room: usize,
    /// Bytes of the last read into a worker's region.
    last_read: usize,
}

/// A request whose rest has not arrived.
pub(crate) struct Incomplete {
    /// The parser's state; `at` is an offset into the parsed bytes.
    pub(crate) state: State,
    /// Lower bound of the bytes that are missing.
    pub(crate) missing: usize,
}

impl RequestReader {
    pub(crate) fn new() -> RequestReader {
        RequestReader {
            input: Vec::new(),
            published_len: 0,
            state: State::start(0),
            args: Vec::new(),
            missing: 0,
            room: ROOM_MIN,
            last_read: 0,
        }
    }

    /// Returns the number of unused bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.input.len()
    }

    /// The unused bytes.
    pub(crate) fn unused(&self) -> &[u8] {
        &self.input
    }

    /// Returns the bytes of its own buffer.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.input.capacity()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.input.is_empty()
    }

    /// Whether the unused bytes begin with requests to run before anything new is read: requests that a
    /// pause, a wait or the end of the connection's share has left behind.
    #[inline]
    pub(crate) fn has_requests(&self) -> bool {
        !self.input.is_empty() && self.missing == 0
    }

    // Reading.

    /// Selects the region that the connection reads into, among the regions with this index. `may_lend`: the
    /// journal may keep the region.
    #[inline]
    pub(crate) fn spot(&self, index: usize, may_lend: bool) -> Spot {
        Spot::new(index, self.last_read, may_lend)
    }

    /// Reads behind the unused bytes as much of the incomplete request as has probably arrived. Returns the
    /// outcome of [`Stream::read`] and the bytes that there was room for.
    pub(crate) fn read_more(&mut self, stream: &mut Stream) -> (io::Result<usize>, usize) {
        let room = more_room(self.missing, self.input.len()).min(self.room);
        // Within a long argument, nothing is read beyond its end, to which the buffer grows.
        let argument_len = (self.input.len() + self.missing).saturating_sub(self.state.at);
        let is_long = self.missing > 0 && argument_len >= ROOM_MIN;
        let room = if is_long { room.min(self.missing) } else { room };
        let result = self.read(stream, room);
        let got = result.as_ref().map_or(0, |got| *got);
        self.room = (4 * got).max(ROOM_MIN);
        (result, room)
    }

    /// Reads up to `room` bytes behind the unused bytes, and reserves their space: not many more than have
    /// probably arrived.
    fn read(&mut self, stream: &mut Stream, room: usize) -> io::Result<usize> {
        let len = self.input.len();
        if len + room > self.input.capacity() {
            self.input.reserve_exact(grown_to(len, room, self.missing) - len);
        }
        self.input.resize(len + room, 0);
        let got = stream.read(&mut self.input[len..]);
        self.input.truncate(len + got.as_ref().map_or(0, |got| *got));
        got
    }

    /// Records the length of a read into a region, for the choice of the next region.
    #[inline]
    pub(crate) fn record_read(&mut self, len: usize) {
        self.last_read = len;
    }

    /// Keeps bytes of a region that no run request has used.
    #[inline]
    pub(crate) fn keep(&mut self, rest: &[u8]) {
        self.input.extend_from_slice(rest);
    }

    // The reader's own bytes, while their requests run.

    /// Takes the unused bytes out of the reader; the caller puts them back.
    pub(crate) fn take_bytes(&mut self) -> Vec<u8> {
        mem::take(&mut self.input)
    }

    /// Puts bytes back, without the first `used` bytes; frees their memory if nothing is left.
    pub(crate) fn put_back(&mut self, mut bytes: Vec<u8>, used: usize) {
        if used < bytes.len() {
            bytes.drain(..used);
            self.input = bytes;
        }
    }

    // Parsing.

    /// Continues parsing at offset `used` of the bytes: returns the parser's state there, and puts the
    /// received arguments of the incomplete request into `spans`, in place of its content. There may be
    /// millions of arguments, so they are moved and not copied.
    #[inline]
    pub(crate) fn resume_parsing(&mut self, used: usize, spans: &mut Vec<Span>) -> State {
        if self.args.is_empty() {
            spans.clear();
        } else {
            *spans = mem::take(&mut self.args);
        }
        State { at: self.state.at + used, ..self.state }
    }

    /// Stops parsing within a request that begins at offset `used` of the bytes; its arguments are the spans
    /// from `first` on. If the request is alone in the bytes, as a long request is from its second part on,
    /// the spans are moved and not copied.
    pub(crate) fn stop_within(
        &mut self,
        Incomplete { state, missing }: Incomplete,
        used: usize,
        spans: &mut Vec<Span>,
        first: usize,
    ) {
        self.args = if (first, used) == (0, 0) {
            mem::take(spans)
        } else {
            spans[first..].iter().map(|span| span.shifted_down(used)).collect()
        };
        self.state = State { at: state.at - used, ..state };
        self.missing = missing;
    }

    /// Stops parsing at the beginning of a request: that request is parsed again when it runs.
    #[inline]
    pub(crate) fn stop_between(&mut self) {
        self.state = State::start(0);
        self.missing = 0;
    }

    // Memory.

    /// Publishes the reader's length and memory for other threads; returns the bytes by which it has grown
    /// since the last call.
    pub(crate) fn publish_len(&mut self, client: &ClientInfo) -> usize {
        let before = mem::replace(&mut self.published_len, self.input.len());
        client.set_query(self.unparsed_len(), self.input.capacity());
        self.input.len().saturating_sub(before)
    }

    /// Returns the number of unused bytes without the arguments that have arrived whole, and without the
    /// lines before them and before the present argument.
    fn unparsed_len(&self) -> usize {
        /// A line with a length has at most so many bytes: `$`, 20 digits, CR LF.
        const LINE_MAX: usize = 23;
        let rest = self.input.get(self.state.at..).unwrap_or_default();
        let line = rest.iter().take(LINE_MAX).position(|byte| *byte == b'\n');
        let is_within_argument = self.missing > 1 && rest.first() == Some(&b'$');
        rest.len() - line.filter(|_| is_within_argument).map_or(0, |end| end + 1)
    }

    /// Gives memory back that a long request has left unused.
    pub(crate) fn shrink(&mut self) {
        if self.input.capacity() > UNSHRUNK_MAX && self.input.len() * 4 < self.input.capacity() {
            self.input.shrink_to_fit();
        }
    }

    /// The arguments of the incomplete request.
    #[cfg(test)]
    pub(crate) fn args(&self) -> &[Span] {
        &self.args
    }
}

/// Returns the capacity for `room` bytes behind the `len` bytes of a request that lacks `missing` bytes.
///
/// A short buffer doubles. A long one, whose unused half would count as the client's memory, grows by a
/// quarter, so that the copies on the way stay in proportion. Either grows to the end of the present argument
/// at most, so the memory of a client does not depend on how its bytes arrived.
fn grown_to(len: usize, room: usize, missing: usize) -> usize {
    const DOUBLES_UP_TO: usize = 128 * 1024;
    let step = if len < DOUBLES_UP_TO { len } else { len / 4 };
    let (needed, end) = (len + room, len + missing);
    if needed <= end { (len + step).clamp(needed, end) } else { needed.max(len + step) }
}

/// Returns the bytes to read of a request of which `had` have arrived and at least `missing` have not. A long
/// request of many short arguments lacks little at any time, so it is read in steps that grow with it.
fn more_room(missing: usize, had: usize) -> usize {
    const MIN: usize = 16 * 1024;
    const STEP_MAX: usize = 256 * 1024;
    missing.max((had / 4).min(STEP_MAX)).clamp(MIN, 1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_testkit::random::{Random, fresh_seed};

    /// A long argument arrives in random pieces: the buffer always ends with the argument at the latest, the
    /// growth of the buffer copies each byte a few times at most, and the buffer is never more than twice as
    /// long as the bytes that have arrived, or than those and the room for the next read.
    #[test]
    fn buffers_grow_to_the_end_of_an_argument() {
        let seed = fresh_seed();
        println!("seed {seed}");
        let mut random = Random::new(seed);
        for _ in 0..500 {
            let end = ROOM_MIN + random.below(20 << 20);
            let (mut len, mut capacity, mut copied) = (1 + random.below(ROOM_MIN), 0, 0);
            while len < end {
                let missing = end - len;
                let room = (1 + random.below(1 << 20)).min(missing);
                if len + room > capacity {
                    copied += len;
                    capacity = grown_to(len, room, missing);
                    assert!(capacity <= end && capacity <= (2 * len).max(len + room));
                }
                len += 1 + random.below(room);
            }
            assert_eq!(capacity, end);
            assert!(copied <= 8 * end, "{copied} of {end}");
        }
        // Many short arguments: the end of the present one is near, and the buffer grows all the same.
        assert_eq!(grown_to(1 << 20, 16 << 10, 5), (1 << 20) + (1 << 18));
        assert_eq!(grown_to(1000, 16 << 10, 5), 1000 + (16 << 10));
    }
}
