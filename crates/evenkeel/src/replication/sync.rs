//! Full syncs: a snapshot of this moment, sent to replicas while it is taken.
//!
//! A thread of its own takes it, as it does a snapshot that goes to disk (`persist/snapshot.rs`), and writes into a pipe that
//! the feeding thread sends from ([`super::pipe`]). No file is touched, and how long the snapshot will be need not be known:
//! a mark of forty random characters, told at the beginning, ends it. A replica that does not understand that gets its length
//! first, so its snapshot has to be on disk, in a file without a name, before it goes out.
//!
//! The walk of the snapshot begins behind the closed gate, and so does what the replica is sent afterwards: the number of
//! the last record before is left in [`super::State::sync_behind`], and the feeding thread notes at which offset of the stream
//! that record ends.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Instant;

use evenkeel_rdb::Version;
use evenkeel_rdb::file::FileWriter;
use evenkeel_store::SlotGuard;

use super::link::Position;
use super::replicas::Content;
use super::snapshot_pipe::{Inlet, SnapshotPipe};
use crate::config::Settings;
use crate::persist::Job;
use crate::persist::direct_writer::{Cache, DirectWriter};
use crate::persist::recorder::{Form as _, Records};
use crate::persist::snapshot;
use crate::persist::temp_file;
use crate::server::Server;
use evenkeel_runtime::random::random_hex;

/// Bytes taken from a file at once.
const PIECE: usize = 256 * 1024;

/// How a replica knows where the snapshot ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// By a mark.
    Mark,
    /// By the length.
    Length,
}

/// Begins a full sync into a pipe. Who calls has claimed that a snapshot is being taken.
pub(super) fn begin(server: &Arc<Server>, pipe: Arc<SnapshotPipe>, form: Form, content: Content) {
    let (on_thread, into) = (server.clone(), pipe.clone());
    let thread = std::thread::Builder::new().name("full-sync".into());
    let spawned = thread.spawn(move || run(&on_thread, into, form, content));
    if let Err(error) = spawned {
        pipe.finish(Err(format!("cannot start a thread: {error}")));
        server.persist.end_sync();
    }
}

fn run(server: &Arc<Server>, pipe: Arc<SnapshotPipe>, form: Form, content: Content) {
    let began = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| match form {
        Form::Mark => send_as_taken(server, &pipe, content),
        Form::Length => send_from_file(server, &pipe, content),
    }));
    let result = result.unwrap_or_else(|_| Err(io::Error::other("a panic, see the server log")));
    match &result {
        Ok(bytes) => server.log.notice(format!(
            "Snapshot for replicas completed: {bytes} bytes in {:.3} s",
            began.elapsed().as_secs_f64()
        )),
        Err(error) => server.log.warning(format!("Snapshot for replicas failed: {error}")),
    }
    pipe.finish(result.map(drop).map_err(|error| error.to_string()));
    server.persist.end_sync();
    server.replication.replica_inbox.nudge();
}

/// The lowest version of the format that can hold what there is.
fn version(server: &Server, guard: &SlotGuard<'_>) -> Version {
    let keyspace = &server.keyspace;
    let has_timed = |db: usize| keyspace.timed_hashes(guard.ctx, db) > 0;
    if (0..keyspace.databases()).any(has_timed) { Version::V80 } else { Version::V10 }
}

/// At the moment that the snapshot is of: what comes next is the stream. A replica's goes on in the database that its own
/// primary has selected, so whoever loads the snapshot has to be told, also where nobody knows the name of that stream.
fn begin_stream(server: &Server, guard: &mut SlotGuard<'_>) -> Option<Position> {
    let state = &server.replication;
    if state.is_replica() {
        if state.reading.ends() {
            // It has just become one, and the stream is not as far as the data: nothing says where the snapshot would be.
            server.persist.cancel_sync();
            return None;
        }
        let nameless =
            || Position { id: String::new(), offset: state.stream().offset(), db: state.link.db() };
        let position = state.link.position(server).unwrap_or_else(nameless);
        state.sync_at.store(position.offset, Release);
        return Some(position);
    }
    state.follow_log(guard);
    state.sync_behind.store(server.keyspace.journal.last(), Release);
    None
}

/// Takes what is wanted of the snapshot of a moment, in which `look` is called.
fn take<W: Write>(
    server: &Arc<Server>,
    settings: &Arc<Settings>,
    file: FileWriter<W>,
    to_disk: bool,
    content: Content,
    look: impl FnOnce(&mut SlotGuard<'_>),
) -> io::Result<FileWriter<W>> {
    let mut records = Records::new(file, settings.clone());
    let at_start = |guard: &mut SlotGuard<'_>| {
        look(guard);
        begin_stream(server, guard)
    };
    if content == Content::All {
        return snapshot::take(server, settings, (Job::Sync, to_disk), records, at_start);
    }
    let mut libraries = Arc::default();
    let position = server.replication.with_all_held(server, |guard| {
        libraries = server.scripts.libraries();
        at_start(guard)
    });
    position.map_or(Ok(()), |position| records.position(&position))?;
    if content == Content::Libraries {
        libraries.iter().try_for_each(|library| records.library(&library.code))?;
    }
    server.persist.unless_cancelled(Job::Sync, records.finish())
}

fn send_as_taken(server: &Arc<Server>, pipe: &Arc<SnapshotPipe>, content: Content) -> io::Result<u64> {
    let (settings, mark) = (server.settings(), random_hex());
    let mut inlet = Inlet(pipe.clone());
    inlet.write_all(format!("$EOF:{mark}\r\n").as_bytes())?;
    // The header goes out first, and cannot be taken back: it has to say a version that will do.
    let expected = if content == Content::All { now_needed(server) } else { Version::V10 };
    let file = snapshot::open(inlet, &settings, expected, false)?;
    let mut needed = expected;
    let file = take(server, &settings, file, false, content, |guard| needed = version(server, guard))?;
    if content == Content::All && needed > expected {
        return Err(io::Error::other("hash fields with expiration times were added when it started"));
    }
    let finished = file.finish()?;
    let mut inlet = finished.out;
    inlet.write_all(mark.as_bytes())?;
    Ok(finished.len)
}

fn now_needed(server: &Server) -> Version {
    let mut ctx = server.replication.ctx.lock();
    server.keyspace.enter(&mut ctx);
    let version = version(server, &server.keyspace.hold_none(&mut ctx));
    server.keyspace.leave(&mut ctx);
    version
}

fn send_from_file(server: &Arc<Server>, pipe: &Arc<SnapshotPipe>, content: Content) -> io::Result<u64> {
    let settings = server.settings();
    let disk = temp_file::nameless(&settings.dir, "repl")?;
    let writer = DirectWriter::new(server, &settings, &disk, Cache::Through, Job::Sync)?;
    let file = snapshot::open(writer, &settings, Version::V10, false)?;
    let file = take(server, &settings, file, true, content, |_| ())?;
    let len = snapshot::finish(file, &disk)?;
    let mut inlet = Inlet(pipe.clone());
    inlet.write_all(format!("${len}\r\n").as_bytes())?;
    let (mut disk, mut left, mut piece) = (disk, len, vec![0; PIECE]);
    disk.seek(SeekFrom::Start(0))?;
    while left > 0 {
        let wanted = left.min(PIECE as u64) as usize;
        disk.read_exact(&mut piece[..wanted])?;
        inlet.write_all(&piece[..wanted])?;
        left -= wanted as u64;
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::super::Reading;
    use super::*;

    /// The stream is not as far as the data, and nobody would know where the snapshot is in it.
    #[test]
    fn a_sync_fails_while_the_log_is_on_its_way_into_the_stream() {
        let live = crate::testing::live::Live::start(1, &[]);
        let state = &live.server.replication;
        for content in [Content::All, Content::Libraries] {
            for (reading, is_fine) in [(Reading::ENDS, false), (Reading::NONE, true)] {
                state.set_replica(true);
                state.reading.set(reading);
                let pipe = SnapshotPipe::new();
                assert!(live.server.persist.claim_sync());
                run(&live.server, pipe.clone(), Form::Mark, content);
                assert_eq!(pipe.end().map(|end| end.is_ok()), Some(is_fine), "{content:?}");
            }
        }
        live.stop();
    }
}
