//! A connection: a stream, received bytes that are not used up yet, and replies that are not sent yet.
//!
//! It is a value without ties to its worker's thread, so it can move to another worker.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::request_reader::RequestReader;
use evenkeel_client::clients::{CONNECTION_BYTES, ClientInfo};
use evenkeel_client::session::Session;
use evenkeel_command::reply::{Reply, ReplyChunk};
use evenkeel_config::WriteAcks;
use evenkeel_net::Stream;
use evenkeel_net::tls::TlsStream;
use evenkeel_replication::replica_inbox::Arrival;

/// Most chunks per system call (the kernel takes 1,024).
const GATHER_MAX: usize = 512;

/// A client's connection; see the module's text.
pub(crate) struct Connection {
    stream: Stream,
    pub(crate) session: Session,
    /// Received bytes that are not used up.
    pub(crate) reader: RequestReader,
    /// Replies not sent yet, except `sent` bytes of the first chunk.
    backlog: VecDeque<ReplyChunk>,
    sent: usize,
    backlog_len: usize,
    /// Bytes that have left the backlog since the beginning.
    gone: u64,
    /// Parts of the backlog that must not be sent yet.
    held_back: VecDeque<HeldReplies>,
    /// Chunks that are sent, and too large to be freed here.
    pub(crate) lazy_free: Vec<ReplyChunk>,
    /// There may be more to read.
    pub(crate) readable: bool,
    /// The end of its stream was announced, which happens once: the connection is read until that end comes.
    pub(crate) hung_up: bool,
    /// Its last commands used up its share of a turn: other connections go first.
    pub(crate) is_heavy: bool,
    /// Its worker will return to it without an event.
    pub(crate) is_ready: bool,
    /// Waits for the end of a pause.
    pub(crate) parked: bool,
    /// The backlog has the replies to the beginning of a pipeline, which wait for the remaining replies:
    /// since when, in milliseconds since the Unix epoch. The connection is ready for its next turn, which
    /// sends them or defers more.
    pub(crate) put_off_since_ms: Option<u64>,
    /// Since when the backlog has been above the soft limit, in milliseconds since the Unix epoch.
    pub(crate) soft_since_ms: Option<u64>,
    /// Batches run since the worker's last check, for moving busy connections.
    pub(crate) activity: u32,
}

const _: () = assert!(size_of::<Connection>().abs_diff(CONNECTION_BYTES) <= 64, "as CLIENT LIST reports it");

/// From here on the backlog depends on a journal record that is not kept yet.
struct HeldReplies {
    record: u64,
    acks: WriteAcks,
    /// Bytes before it: of the backlog, and of all chunks that have left the backlog.
    start: u64,
}

/// Outcome of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    All,
    /// The socket is full; the rest waits in the backlog.
    Part,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd, session: Session) -> Connection {
        Connection {
            stream: Stream::new(socket),
            session,
            reader: RequestReader::new(),
            backlog: VecDeque::new(),
            sent: 0,
            backlog_len: 0,
            gone: 0,
            held_back: VecDeque::new(),
            lazy_free: Vec::new(),
            readable: true,
            hung_up: false,
            is_heavy: false,
            is_ready: false,
            parked: false,
            put_off_since_ms: None,
            soft_since_ms: None,
            activity: 0,
        }
    }

    /// A copy of the bytes that wait to be sent.
    pub(crate) fn unsent(&self) -> Vec<u8> {
        let mut unsent = Vec::with_capacity(self.backlog_len);
        let mut skipped = self.sent;
        for chunk in &self.backlog {
            unsent.extend_from_slice(&chunk.as_slice()[std::mem::take(&mut skipped)..]);
        }
        unsent
    }

    pub(crate) fn has_tls(&self) -> bool {
        self.stream.has_tls()
    }

    /// Hands the connection over to the replication thread, which sends the unsent replies without a wait for
    /// the disk.
    pub(crate) fn into_arrival(self) -> Arrival {
        let Connection { stream, session, mut reader, backlog, sent, .. } = self;
        let mut unsent: Vec<u8> = backlog.iter().flat_map(|chunk| chunk.as_slice()).copied().collect();
        unsent.drain(..sent);
        Arrival { stream, session, input: reader.take_bytes(), unsent }
    }

    /// Makes the connection encrypted.
    pub(crate) fn within(mut self, tls_stream: TlsStream) -> Connection {
        self.client().tls_size.store(TlsStream::MEMORY, Relaxed);
        self.stream.encrypt(tls_stream);
        self
    }

    /// Whether the backlog waits for the socket, and not for the rest of a pipeline.
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        self.backlog_len() > 0 && !self.is_put_off()
    }

    #[inline]
    pub(crate) fn is_put_off(&self) -> bool {
        self.put_off_since_ms.is_some()
    }

    /// See [`Stream::discard_received`].
    pub(crate) fn discard_received(&self) {
        self.stream.discard_received();
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.fd()
    }

    /// Whether the TLS handshake is not finished.
    #[inline]
    pub(crate) fn is_handshaking(&self) -> bool {
        self.stream.is_handshaking()
    }

    pub(crate) fn tls_stream(&mut self) -> Option<&mut TlsStream> {
        self.stream.tls()
    }

    /// Continues the handshake. Returns whether it is finished.
    pub(crate) fn shake(&mut self) -> io::Result<bool> {
        let done = self.stream.shake();
        self.publish_backlog_len();
        done
    }

    /// Whether there is more to read although the socket may be empty.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.stream.has_more()
    }

    pub(crate) fn client(&self) -> &Arc<ClientInfo> {
        &self.session.client
    }

    /// Reads into `buf`. Returns 0 at the end of the stream, and `WouldBlock` if there is nothing now.
    #[inline]
    pub(crate) fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buf)
    }

    /// Reads behind the unused bytes; see [`RequestReader::read_more`].
    pub(crate) fn read_more(&mut self) -> (io::Result<usize>, usize) {
        self.reader.read_more(&mut self.stream)
    }

    /// Sends a reply, or as much of it as the socket takes; the reply is empty afterwards.
    pub(crate) fn send(&mut self, reply: &mut Reply) -> io::Result<Sent> {
        if !self.backlog.is_empty() {
            self.queue(reply.take_rest(0).0);
            return Ok(Sent::Part);
        }
        let total = reply.len();
        let sent = match reply.plain() {
            Some(bytes) => self.stream.write(bytes)?,
            None => {
                let slices = reply.slices();
                self.stream.write_gathered(&slices[..slices.len().min(GATHER_MAX)])?
            }
        };
        if sent == total {
            reply.clear();
            return Ok(self.all_sent());
        }
        let (rest, skip) = reply.take_rest(sent);
        self.queue(rest);
        (self.sent, self.backlog_len) = (skip, self.backlog_len - skip);
        // A gathering write may have been cut short by its own bound rather than by the socket.
        self.send_backlog()
    }

    /// Keeps a reply that is sent later.
    pub(crate) fn keep(&mut self, reply: &mut Reply) {
        self.queue(reply.take_rest(0).0);
    }

    /// Queues `reply` until `record` is kept, on disk or as `acks` asks: these ask for no less than what
    /// earlier replies wait for. Returns true if no earlier reply waits for the same, so the caller must
    /// register for it.
    pub(crate) fn hold_back(&mut self, reply: &mut Reply, record: u64, acks: WriteAcks) -> bool {
        let is_new = self.held_back.back().is_none_or(|last| last.record < record || last.acks != acks);
        if is_new {
            let start = self.gone + self.backlog_len as u64;
            self.held_back.push_back(HeldReplies { record, acks, start });
        }
        self.keep(reply);
        is_new
    }

    /// Whether any reply waits for the journal to be durable.
    #[inline]
    pub(crate) fn is_held_back(&self) -> bool {
        !self.held_back.is_empty()
    }

    /// What the replies that are held back wait for, at replicas.
    pub(crate) fn held_acks(&self) -> WriteAcks {
        self.held_back.back().map_or_else(WriteAcks::default, |held_back| held_back.acks)
    }

    /// Releases replies up to the journal record `kept` that wait for `acks`. Returns whether more may be
    /// sent now.
    pub(crate) fn release_replies(&mut self, kept: u64, acks: WriteAcks) -> bool {
        let before = self.held_back.len();
        let is_due = |held_back: &HeldReplies| held_back.record <= kept && held_back.acks == acks;
        while self.held_back.front().is_some_and(is_due) {
            self.held_back.pop_front();
        }
        self.held_back.len() < before
    }

    /// Returns the bytes of the backlog that may be sent.
    fn may_be_sent(&self) -> usize {
        self.held_back.front().map_or(self.backlog_len, |held_back| (held_back.start - self.gone) as usize)
    }

    /// Queues push messages behind the backlog.
    pub(crate) fn enqueue(&mut self, messages: Vec<Arc<[u8]>>) {
        self.queue(messages.into_iter().map(ReplyChunk::PushMessage).collect());
    }

    fn queue(&mut self, chunks: Vec<ReplyChunk>) {
        self.backlog_len += chunks.iter().map(|chunk| chunk.as_slice().len()).sum::<usize>();
        self.backlog.extend(chunks);
        self.publish_backlog_len();
    }

    /// Returns whether the socket has taken all sealed bytes, after the backlog was taken.
    #[inline]
    fn all_sent(&self) -> Sent {
        if self.stream.unsent() == 0 {
            return Sent::All;
        }
        self.publish_backlog_len();
        Sent::Part
    }

    /// Sends sealed records. Returns whether the socket took all of them.
    pub(crate) fn send_sealed(&mut self) -> io::Result<bool> {
        let sent = self.stream.send_sealed();
        self.publish_backlog_len();
        sent
    }

    /// Sends the part of the backlog that may be sent, as far as the socket takes it.
    pub(crate) fn send_backlog(&mut self) -> io::Result<Sent> {
        if self.stream.unsent() > 0 && !self.send_sealed()? {
            return Ok(Sent::Part);
        }
        while !self.backlog.is_empty() {
            let mut left = self.may_be_sent();
            if left == 0 && self.is_held_back() {
                self.publish_backlog_len();
                return Ok(Sent::Part);
            }
            let mut slices = Vec::with_capacity(self.backlog.len().min(GATHER_MAX));
            for (index, chunk) in self.backlog.iter().take(GATHER_MAX).enumerate() {
                let from = if index == 0 { self.sent } else { 0 };
                let bytes = &chunk.as_slice()[from..];
                let bytes = &bytes[..bytes.len().min(left)];
                left -= bytes.len();
                slices.push(IoSlice::new(bytes));
            }
            let wanted: usize = slices.iter().map(|slice| slice.len()).sum();
            let sent = self.stream.write_gathered(&slices)?;
            self.forget(sent);
            if sent < wanted {
                self.publish_backlog_len();
                return Ok(Sent::Part);
            }
        }
        self.publish_backlog_len();
        Ok(self.all_sent())
    }

    /// Drops the first `bytes` of the backlog.
    fn forget(&mut self, bytes: usize) {
        self.backlog_len -= bytes;
        self.gone += bytes as u64;
        self.sent += bytes;
        while let Some(first) = self.backlog.front() {
            let len = first.as_slice().len();
            if self.sent < len {
                break;
            }
            self.sent -= len;
            self.lazy_free.extend(self.backlog.pop_front().filter(ReplyChunk::is_large));
        }
    }

    /// Replaces parts of values by copies: the values may become another process'.
    pub(crate) fn own_backlog(&mut self) {
        self.lazy_free.clear();
        for chunk in &mut self.backlog {
            if matches!(chunk, ReplyChunk::Chunk(..) | ReplyChunk::Element(_)) {
                *chunk = ReplyChunk::Bytes(chunk.as_slice().to_vec());
            }
        }
    }

    fn publish_backlog_len(&self) {
        self.client().out_bytes.store(self.backlog_len(), Relaxed);
        self.client().out_chunks.store(self.backlog.len(), Relaxed);
    }

    /// Removes the backlog; the caller drops it where there is time.
    pub(crate) fn abandon(&mut self) -> VecDeque<ReplyChunk> {
        self.backlog_len = 0;
        self.held_back.clear();
        std::mem::take(&mut self.backlog)
    }

    /// Returns the bytes waiting to be sent.
    pub(crate) fn backlog_len(&self) -> usize {
        self.backlog_len + self.stream.unsent()
    }

    /// Writes as much as the socket takes.
    pub(crate) fn write_gathered(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.stream.write_gathered(slices)
    }
}
