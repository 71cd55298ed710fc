//! Full syncs: a snapshot of this moment, sent to replicas while it is taken.
//!
//! As for a snapshot on disk (crate `persist`), a thread of its own takes it. That thread writes into a
//! pipe from which the replication thread sends ([`super::snapshot_pipe`]). No file is touched, and the
//! length need not be known: a mark of forty random characters, announced at the beginning, ends the
//! snapshot. A replica that does not support the mark gets the length first, so its snapshot goes to an
//! unlinked file before it is sent.
//!
//! The walk begins while the gate is closed, and so does the stream that the replica is sent afterwards. The
//! number of the last record before is stored in [`super::Replication::sync_behind`], and the
//! replication thread finds the offset in the stream at which that record ends.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Instant;

use evenkeel_rdb::Version;
use evenkeel_rdb::file::FileWriter;
use evenkeel_store::SlotGuard;

use super::Replication;
use super::snapshot_pipe::{Inlet, SnapshotPipe};
use evenkeel_client::replica_hello::Content;
use evenkeel_config::Settings;
use evenkeel_persist::PersistJob;
use evenkeel_persist::direct_writer::{Cache, DirectWriter};
use evenkeel_persist::position::Position;
use evenkeel_persist::recorder::{Form as _, Records};
use evenkeel_persist::snapshot;
use evenkeel_runtime::random::random_hex;
use evenkeel_runtime::temp_file;
use evenkeel_runtime::threads;

/// Bytes read from a file at once.
const PIECE: usize = 256 * 1024;

/// The way in which a replica finds the end of the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// By a mark.
    Mark,
    /// By the length.
    Length,
}

/// Begins a full sync into a pipe. The caller has claimed the sync.
pub(super) fn begin(replication: &Arc<Replication>, pipe: Arc<SnapshotPipe>, form: Form, content: Content) {
    let (on_thread, into) = (replication.clone(), pipe.clone());
    let thread = threads::named("full-sync");
    let spawned = thread.spawn(move || run(&on_thread, into, form, content));
    if let Err(error) = spawned {
        pipe.finish(Err(format!("cannot start a thread: {error}")));
        replication.persist.end_sync();
    }
}

fn run(replication: &Arc<Replication>, pipe: Arc<SnapshotPipe>, form: Form, content: Content) {
    let began = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| match form {
        Form::Mark => send_as_taken(replication, &pipe, content),
        Form::Length => send_from_file(replication, &pipe, content),
    }));
    let result = result.unwrap_or_else(|_| Err(io::Error::other("a panic, see the server log")));
    match &result {
        Ok(bytes) => log::info!(
            "Snapshot for replicas completed: {bytes} bytes in {:.3} s",
            began.elapsed().as_secs_f64()
        ),
        Err(error) => log::warn!("Snapshot for replicas failed: {error}"),
    }
    pipe.finish(result.map(drop).map_err(|error| error.to_string()));
    replication.persist.end_sync();
    replication.replica_inbox.nudge();
}

/// The lowest version of the format that can hold the data. Arrays do not raise it: they have the same form
/// in every version, and a replica that does not know them refuses their type.
fn version(replication: &Replication, guard: &SlotGuard<'_>) -> Version {
    let keyspace = &replication.core.keyspace;
    let has_timed = |db: usize| keyspace.timed_hashes(guard.ctx, db) > 0;
    if (0..keyspace.databases()).any(has_timed) { Version::V80 } else { Version::V10 }
}

/// Fixes the moment of the snapshot, behind which the stream continues. A replica's stream continues in the
/// database that its primary has selected, so the snapshot must name that database, even without a name of
/// the stream.
fn begin_stream(replication: &Replication, guard: &mut SlotGuard<'_>) -> Option<Position> {
    let state = &replication;
    if state.is_replica() {
        if state.reading.ends() {
            // The server has just become a replica, and its stream is behind the data: the snapshot would
            // have no position.
            replication.persist.cancel_sync();
            return None;
        }
        let nameless =
            || Position { id: String::new(), offset: state.stream().offset(), db: state.link.db() };
        let position = state.link.position(replication).unwrap_or_else(nameless);
        state.sync_at.store(position.offset, Release);
        return Some(position);
    }
    state.follow_log(guard);
    state.sync_behind.store(replication.core.keyspace.journal.last(), Release);
    None
}

/// Takes a snapshot with the wanted content. `look` is called at its moment.
fn take<W: Write>(
    replication: &Arc<Replication>,
    settings: &Arc<Settings>,
    file: FileWriter<W>,
    to_disk: bool,
    content: Content,
    look: impl FnOnce(&mut SlotGuard<'_>),
) -> io::Result<FileWriter<W>> {
    let mut records = Records::new(file, settings.clone());
    let at_start = |guard: &mut SlotGuard<'_>| {
        look(guard);
        begin_stream(replication, guard)
    };
    if content == Content::All {
        return snapshot::take(
            &replication.persist,
            settings,
            (PersistJob::Sync, to_disk),
            records,
            at_start,
        );
    }
    let mut libraries = Arc::default();
    let position = replication.with_all_held(|guard| {
        libraries = replication.scripts.libraries();
        at_start(guard)
    });
    position.map_or(Ok(()), |position| records.position(&position))?;
    if content == Content::Libraries {
        libraries.iter().try_for_each(|library| records.library(&library.code))?;
    }
    replication.persist.unless_cancelled(PersistJob::Sync, records.finish())
}

fn send_as_taken(
    replication: &Arc<Replication>,
    pipe: &Arc<SnapshotPipe>,
    content: Content,
) -> io::Result<u64> {
    let (settings, mark) = (replication.core.settings(), random_hex());
    let mut inlet = Inlet(pipe.clone());
    inlet.write_all(format!("$EOF:{mark}\r\n").as_bytes())?;
    // The header is sent first and cannot be changed: its version must suffice for hashes.
    let expected = if content == Content::All { now_needed(replication) } else { Version::V10 };
    let file = snapshot::open(inlet, &settings, expected, false)?.keeping_header();
    let mut needed = expected;
    let file =
        take(replication, &settings, file, false, content, |guard| needed = version(replication, guard))?;
    if content == Content::All && needed > expected {
        return Err(io::Error::other("hash fields with expiration times were added when it started"));
    }
    let finished = file.finish()?;
    let mut inlet = finished.out;
    inlet.write_all(mark.as_bytes())?;
    Ok(finished.len)
}

fn now_needed(replication: &Replication) -> Version {
    let mut ctx = replication.ctx.lock();
    replication.core.keyspace.enter(&mut ctx);
    let version = version(replication, &replication.core.keyspace.hold_none(&mut ctx));
    replication.core.keyspace.leave(&mut ctx);
    version
}

fn send_from_file(
    replication: &Arc<Replication>,
    pipe: &Arc<SnapshotPipe>,
    content: Content,
) -> io::Result<u64> {
    let settings = replication.core.settings();
    let disk = temp_file::nameless(&settings.dir, "repl")?;
    let writer = DirectWriter::new(&replication.persist, &settings, &disk, Cache::Through, PersistJob::Sync)?;
    let file = snapshot::open(writer, &settings, Version::V10, false)?;
    let file = take(replication, &settings, file, true, content, |_| ())?;
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
    use super::super::testing::Single;
    use super::*;

    /// The stream is behind the data, so the snapshot's position is unknown.
    #[test]
    fn full_syncs_fail_while_the_stream_lags_the_journal() {
        let state = Single::new(&[]);
        for content in [Content::All, Content::Libraries] {
            for (reading, is_fine) in [(Reading::ENDS, false), (Reading::NONE, true)] {
                state.set_replica(true);
                state.reading.set(reading);
                let pipe = SnapshotPipe::new();
                assert!(state.persist.claim_sync());
                run(&state, pipe.clone(), Form::Mark, content);
                assert_eq!(pipe.end().map(|end| end.is_ok()), Some(is_fine), "{content:?}");
            }
        }
    }
}
