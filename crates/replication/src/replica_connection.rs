//! A replica's connection in the replication thread: the bytes it is sent next, and its acknowledgements.
//!
//! ```text
//!                asks for the rest, and it is kept
//!   (new) ─────────────────────────────────────────────────────────> Online
//!     │                                        with a length            ^
//!     └─> Waiting ─> Begun ─> Snapshot ────────────────────────────────>│
//!                                  └──── with a mark ──> Loading ───────┘
//! ```
//!
//! A replica that reads a snapshot with a mark at its end looks for the mark at the end of the bytes that
//! have arrived, and would not find it if the stream followed at once. So the stream waits for the replica's
//! first acknowledgement after the load.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use evenkeel_resp::number::parse_i64;
use evenkeel_resp::request::{Parsed, State, parse};

use super::Replication;
use super::Stream;
use super::replica_inbox::Arrival;
use super::replicas::{Progress, Replica};
use super::snapshot_pipe::SnapshotPipe;
use evenkeel_client::replica_hello::{Membership, ReplicaHello};
use evenkeel_client::session::Session;
use evenkeel_command::table::table;
use evenkeel_command::{Args, Keys};
use evenkeel_net as net;
use evenkeel_runtime::server_log;

/// Bytes sent to a replica before the next replica's turn.
const SEND_LEN: usize = 1 << 20;

/// Bytes read at once. Replicas send little.
const READ_LEN: usize = 16 * 1024;

/// Reads before the next replica's turn: a replica that never stops sending takes a fraction of a
/// millisecond.
const READS_MAX: usize = 4;

/// The longest request that a replica may send.
const WORD_LEN_MAX: usize = 16 * 1024;

/// A replica's connection, and its state of synchronization.
pub(super) struct ReplicaConnection {
    stream: net::Stream,
    session: Session,
    /// Received bytes that are not parsed yet.
    input: Vec<u8>,
    pub(super) shared: Arc<Replica>,
    pub(super) replica_hello: ReplicaHello,
    pub(super) stage: Stage,
    /// Bytes that go first, of which `head_sent` are sent.
    head: Vec<u8>,
    head_sent: usize,
    pub(super) is_writable: bool,
    /// Whether the socket may have bytes that have not been read.
    pub(super) is_readable: bool,
    /// The time when it last sent bytes, or took bytes of a snapshot.
    pub(super) moved: Instant,
    /// Bytes of the stream on the replica's disk, if it reports them.
    pub(super) synced: Option<u64>,
    /// Whether it has been sent a snapshot, or has reconnected, and has not reached the end of the stream
    /// since: it may be far behind.
    pub(super) catches_up: bool,
    /// Whether it has acknowledged an offset before this thread noticed that all of the snapshot has been
    /// sent.
    pub(super) has_loaded: bool,
    /// The time when it last took bytes of the stream, or its socket was not full.
    pub(super) took: Instant,
    /// Since when the bytes to be sent have exceeded the soft limit.
    pub(super) over_soft_since: Option<Instant>,
}

pub(super) enum Stage {
    /// Waits for a full sync to begin.
    Waiting { since: Instant },
    /// Will get the snapshot in this pipe, once the snapshot's offset in the stream is known. If the stream
    /// comes from a primary, it may go on before the offset is known here: the offset is at least `keeps`.
    Begun { pipe: Arc<SnapshotPipe>, keeps: Option<u64> },
    /// Is sent the snapshot from `at` on, and then the stream from `then` on.
    Snapshot { pipe: Arc<SnapshotPipe>, at: u64, then: u64 },
    /// Loads the snapshot.
    Loading { then: u64 },
    /// Is sent the stream from `at` on.
    Online { at: u64 },
    /// Has been sent everything it wanted.
    Done,
}

/// A message of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// A sign of life.
    Alive,
    /// The bytes of the stream that it has and, if reported, the bytes on its disk.
    /// `incarnation`: the number of its data, from a replica in a cluster. `kept`: the bytes that count for
    /// `write-acks`, from a replica in a cluster with `appendfsync always`.
    Ack { bytes: u64, synced: Option<u64>, incarnation: Option<u64>, kept: Option<u64> },
}

impl ReplicaConnection {
    pub(super) fn new(arrival: Arrival, now_ms: u64, now: Instant) -> ReplicaConnection {
        let Arrival { stream, session, input, unsent } = arrival;
        let replica_hello = session.replica_hello.as_deref().cloned().unwrap_or_default();
        let shared = Arc::new(Replica::new(session.client.clone(), &replica_hello, now_ms));
        ReplicaConnection {
            stream,
            session,
            input,
            shared,
            replica_hello,
            stage: Stage::Waiting { since: now },
            head: unsent,
            head_sent: 0,
            is_writable: true,
            is_readable: true,
            moved: now,
            synced: None,
            catches_up: false,
            has_loaded: false,
            took: now,
            over_soft_since: None,
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.fd()
    }

    /// Turns TCP_NODELAY off or on: with `delay`, the kernel sends fewer and later packets.
    pub(super) fn delay_small_packets(&self, delay: bool) {
        self.stream.delay_small_packets(delay);
    }

    pub(super) fn is_killed(&self) -> bool {
        self.session.client.killed.load(Relaxed)
    }

    /// Sends these bytes as soon as possible. Only for bytes that a replica expects between the snapshot and
    /// the stream, or before both.
    pub(super) fn say(&mut self, words: &[u8]) {
        self.head.extend_from_slice(words);
    }

    /// Whether it has been sent everything it wanted.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done) && self.head.is_empty() && self.stream.unsent() == 0
    }

    /// Whether it gets no bytes until its full sync begins, or the file of its snapshot is complete.
    pub(super) fn expects_no_bytes(&self) -> bool {
        match &self.stage {
            Stage::Waiting { .. } | Stage::Begun { .. } => true,
            Stage::Snapshot { pipe, at: 0, .. } => {
                !self.replica_hello.takes_mark && pipe.lock().bytes.end() == 0
            }
            _ => false,
        }
    }

    /// The pipe of its snapshot.
    pub(super) fn pipe(&self) -> Option<&Arc<SnapshotPipe>> {
        match &self.stage {
            Stage::Begun { pipe, .. } | Stage::Snapshot { pipe, .. } => Some(pipe),
            _ => None,
        }
    }

    /// The offset up to which acknowledgements have been translated to records.
    pub(super) fn answered(&self) -> u64 {
        self.synced.unwrap_or(u64::MAX).min(self.shared.acked())
    }

    /// The replica as a node of a cluster.
    pub(super) fn member(&self) -> Option<&Membership> {
        self.replica_hello.membership.as_ref()
    }

    /// The first byte of the stream that it still needs.
    pub(super) fn needs(&self) -> Option<u64> {
        match self.stage {
            Stage::Snapshot { then, .. } | Stage::Loading { then } => Some(then),
            Stage::Online { at } => Some(at),
            Stage::Begun { keeps, .. } => keeps,
            Stage::Waiting { .. } | Stage::Done => None,
        }
    }

    /// Continues with the stream at this offset.
    pub(super) fn go_online(&mut self, at: u64) {
        self.stage = Stage::Online { at };
        self.shared.set_progress(Progress::Online);
    }

    /// The same for a replica that reconnects at `at`, and has been told that the bytes up to `offset` are
    /// kept.
    pub(super) fn reconnect(&mut self, at: u64, offset: u64) {
        self.go_online(at);
        self.catches_up = at < offset;
        self.has_loaded = true;
    }

    /// Begins the snapshot in `pipe`, behind which the stream continues at `then`.
    pub(super) fn begin_snapshot(&mut self, pipe: Arc<SnapshotPipe>, then: u64) {
        self.stage = Stage::Snapshot { pipe, at: 0, then };
        self.catches_up = true;
        self.has_loaded = false;
    }

    /// Sends as many bytes as the socket takes, and returns their number. If
    /// [`ReplicaConnection::is_writable`] afterwards, there may be more.
    pub(super) fn send(&mut self, stream: &Stream, now: Instant) -> io::Result<usize> {
        if self.stream.unsent() > 0 && !self.stream.send_sealed()? {
            self.is_writable = false;
            return Ok(0);
        }
        let mut sent = self.send_head()?;
        while self.is_writable && sent < SEND_LEN {
            let some = match &self.stage {
                Stage::Snapshot { .. } => self.send_snapshot(now)?,
                Stage::Online { at } => self.send_stream(stream, *at, now)?,
                _ => 0,
            };
            sent += some;
            if some == 0 {
                break;
            }
        }
        self.session.client.net_out.fetch_add(sent as u64, Relaxed);
        Ok(sent)
    }

    /// Whether there are bytes that it could be sent now.
    pub(super) fn has_more(&self, stream: &Stream) -> bool {
        match &self.stage {
            Stage::Snapshot { pipe, at, .. } => pipe.lock().bytes.end() > *at,
            Stage::Online { at } => stream.offset() > *at,
            _ => false,
        }
    }

    fn send_head(&mut self) -> io::Result<usize> {
        if self.head.is_empty() {
            return Ok(0);
        }
        let rest = IoSlice::new(&self.head[self.head_sent..]);
        let sent = self.stream.write_gathered(&[rest])?;
        self.head_sent += sent;
        self.is_writable = self.head_sent == self.head.len();
        if self.is_writable {
            (self.head, self.head_sent) = (Vec::new(), 0);
        }
        Ok(sent)
    }

    fn send_snapshot(&mut self, now: Instant) -> io::Result<usize> {
        let Stage::Snapshot { pipe, at, then } = &self.stage else { return Ok(0) };
        let (pipe, at, then) = (pipe.clone(), *at, *then);
        let state = pipe.lock();
        if state.ends_at(at) {
            drop(state);
            self.end_snapshot(then);
            return Ok(0);
        }
        let has_none = state.bytes.end() == at;
        let sent = if let Some(spilled) = state.spilled(at) {
            let Some((piece, skip)) = spilled.read(at) else { return Ok(0) };
            drop(state);
            self.send_slices(&[IoSlice::new(&piece[skip..])])?
        } else {
            let sent = self.send_slices(&state.bytes.slices(at, SEND_LEN))?;
            drop(state);
            sent
        };
        if sent > 0 || has_none {
            self.moved = now;
        }
        if sent > 0 {
            self.stage = Stage::Snapshot { pipe, at: at + sent as u64, then };
            if !self.replica_hello.takes_mark {
                self.shared.set_progress(Progress::Snapshot);
            }
        }
        Ok(sent)
    }

    /// Handles the end of the snapshot, all of which has been sent.
    fn end_snapshot(&mut self, then: u64) {
        if self.replica_hello.only_snapshot {
            self.stage = Stage::Done;
            self.shared.set_progress(Progress::Done);
        } else if self.replica_hello.takes_mark && !self.has_loaded {
            self.stage = Stage::Loading { then };
            self.shared.set_progress(Progress::Online);
        } else {
            self.go_online(then);
        }
    }

    fn send_stream(&mut self, stream: &Stream, at: u64, now: Instant) -> io::Result<usize> {
        let Some(backlog) = stream.backlog() else { return Ok(0) };
        let sent = match &stream.spill_file {
            Some(spill_file) if spill_file.has(at) => {
                let Some((piece, skip)) = spill_file.read(at) else { return Ok(0) };
                self.send_slices(&[IoSlice::new(&piece[skip..])])?
            }
            _ if backlog.has(at) => self.send_slices(&backlog.slices(at, SEND_LEN))?,
            _ => return Err(io::Error::other("the replication stream was restarted")),
        };
        if sent > 0 {
            self.took = now;
        }
        let at = at + sent as u64;
        self.stage = Stage::Online { at };
        self.catches_up &= at < stream.offset();
        Ok(sent)
    }

    fn send_slices(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if slices.is_empty() {
            return Ok(0);
        }
        let wanted: usize = slices.iter().map(|slice| slice.len()).sum();
        let sent = self.stream.write_gathered(slices)?;
        self.is_writable = sent == wanted;
        Ok(sent)
    }

    /// Records a message, also for CLIENT LIST, where the replica is a client as any other.
    pub(super) fn record_message(&self, now_ms: u64) {
        self.shared.last_io_ms.store(now_ms, Relaxed);
        let client = &self.session.client;
        client.active_ms.store(now_ms, Relaxed);
        if let Some(id) = table().find(b"REPLCONF") {
            client.command.store(id.index() as u32, Relaxed);
        }
    }

    /// Reads a bounded number of bytes, and calls `f` with each message. If
    /// [`ReplicaConnection::is_readable`] afterwards, there may be more. An error ends the connection, as
    /// does a request that the user may no longer make.
    pub(super) fn listen(
        &mut self,
        replication: &Replication,
        mut f: impl FnMut(&mut ReplicaConnection, Word),
    ) -> io::Result<()> {
        for _ in 0..READS_MAX {
            let len = self.input.len();
            self.input.resize(len + READ_LEN, 0);
            let got = self.stream.read(&mut self.input[len..]);
            self.input.truncate(len + got.as_ref().map_or(0, |got| *got));
            match got {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => {
                    _ = self.session.client.net_in.fetch_add(got as u64, Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_readable = false;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            self.take_words(replication, &mut f)?;
            if self.input.len() > WORD_LEN_MAX {
                return Err(io::Error::other("the request is too long for a replica"));
            }
        }
        self.take_words(replication, &mut f) // messages that came with its request
    }

    fn take_words(
        &mut self,
        replication: &Replication,
        f: &mut impl FnMut(&mut ReplicaConnection, Word),
    ) -> io::Result<()> {
        let session = &mut self.session;
        let (words, used) = words(&mut self.input, |args| may_say(replication, session, args))?;
        self.input.drain(..used);
        words.into_iter().for_each(|word| f(self, word));
        Ok(())
    }
}

/// Bytes of a command's name in the server log.
const NAME_SHOWN: usize = 64;

/// Checks whether the session's user may still make this request: permissions revoked after PSYNC count, as
/// in Redis. A replica sends REPLCONF alone: it would take the reply to another command for the stream.
fn may_say(replication: &Replication, session: &mut Session, args: &Args<'_>) -> io::Result<()> {
    if let Some(id) = table().find(args.at(0)) {
        match replication.host().admit(session, id, args) {
            Ok(true) => {}
            Ok(false) => return Err(io::Error::other("its user was deleted")),
            Err(error) => {
                return Err(io::Error::other(String::from_utf8_lossy(&error.line()).into_owned()));
            }
        }
    }
    // A replica's second SYNC or PSYNC gets no reply, as in Valkey: the stream goes on.
    if ["REPLCONF", "SYNC", "PSYNC"].iter().any(|name| args.is(0, name)) {
        return Ok(());
    }
    let row = table().find_call(args).map(|id| table().row(id));
    let name =
        row.map_or_else(|| args.quoted(0, NAME_SHOWN).escape_ascii().to_string(), |row| row.lower_name());
    if row.is_some_and(|row| !matches!(row.keys, Keys::Range { first: 0, .. })) {
        log::warn!(
            "== CRITICAL == This primary is sending an error to its replica: '-Replica can't interact with \
             the keyspace' after processing the command '{name}'"
        );
    }
    let address = &session.client.address;
    log::warn!("Replica generated a reply to command '{name}', disconnecting it: {address}");
    server_log::flush(); // whoever sees the end finds the reason
    Err(io::Error::other("it has sent a command"))
}

/// Parses the complete messages in these bytes, and returns them with the number of bytes used. `judge`
/// checks whether a request may be made.
fn words(
    bytes: &mut [u8],
    mut judge: impl FnMut(&Args<'_>) -> io::Result<()>,
) -> io::Result<(Vec<Word>, usize)> {
    let (mut words, mut used, mut spans) = (Vec::new(), 0, Vec::new());
    while used < bytes.len() {
        spans.clear();
        match parse(bytes, State::start(used), &mut spans, WORD_LEN_MAX) {
            Ok(Parsed::Ready(end)) => {
                used = end;
                if spans.is_empty() {
                    words.push(Word::Alive);
                } else {
                    let args = Args::new(bytes, &spans);
                    judge(&args)?;
                    words.extend(word(args));
                }
            }
            Ok(Parsed::More { .. }) => break,
            Err(_) => return Err(io::Error::other("protocol error")),
        }
    }
    Ok((words, used))
}

fn word(args: Args<'_>) -> Option<Word> {
    if !args.is(0, "REPLCONF") || args.len() < 3 || !args.is(1, "ACK") {
        return None;
    }
    let number = |index: usize| parse_i64(args.at(index)).and_then(|number| u64::try_from(number).ok());
    let value = |name: &str| {
        let index = (3..args.len().saturating_sub(1)).step_by(2).find(|index| args.is(*index, name))?;
        number(index + 1)
    };
    Some(Word::Ack {
        bytes: number(2)?,
        synced: value("FACK"),
        incarnation: value("CLUSTER-INCARNATION"),
        kept: value("CLUSTER-KEPT"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(said: &str, expected: &[Word], left: usize) {
        let mut bytes = said.replace(' ', "\r\n").into_bytes();
        let (words, used) = words(&mut bytes, |_| Ok(())).expect("well said");
        assert_eq!((&words[..], bytes.len() - used), (expected, left));
    }

    #[test]
    fn replica_messages_parse() {
        let ack = |bytes| Word::Ack { bytes, synced: None, incarnation: None, kept: None };
        check("*3 $8 REPLCONF $3 ACK $2 12 ", &[ack(12)], 0);
        check("*3 $8 replconf $3 ack $1 0 *3 $8 REPLCONF $3 AC", &[ack(0)], 24);
        check("\n\n", &[Word::Alive, Word::Alive], 0);
        let ack = Word::Ack { bytes: 7, synced: Some(5), incarnation: Some(9), kept: Some(5) };
        check(
            "*9 $8 REPLCONF $3 ACK $1 7 $4 FACK $1 5 $19 CLUSTER-INCARNATION $1 9 $12 CLUSTER-KEPT $1 5 ",
            &[ack],
            0,
        );
        let ack = Word::Ack { bytes: 7, synced: Some(5), incarnation: None, kept: None };
        check("*5 $8 REPLCONF $3 ACK $1 7 $4 FACK $1 5 ", &[ack], 0);
        check("*1 $4 PING *3 $8 REPLCONF $3 ACK $2 -1 *3 $8 REPLCONF $3 ACK $1 x ", &[], 0);
        check("*2 $8 REPLCONF $3 ACK ", &[], 0);
        assert!(words(&mut b"*1\r\n$99999999\r\n".to_vec(), |_| Ok(())).is_err());
    }
}
