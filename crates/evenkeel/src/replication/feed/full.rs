//! Full syncs as the feeding thread sees them: when one begins, where in the stream, and for whom.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

use super::Feed;
use crate::persist::save_points::{self, Awaited};
use crate::persist::{Job, snapshot};
use crate::replication::backlog::Backlog;
use crate::replication::replica_connection::{ReplicaConnection, Stage};
use crate::replication::replicas::Asks;
use crate::replication::snapshot_pipe::SnapshotPipe;
use crate::replication::spill_file::SpillFile;
use crate::replication::sync::{self, Form};
use crate::replication::{NEVER, State, Stream};

/// A full sync whose snapshot is being taken.
pub(super) struct Sync {
    pub(super) pipe: Arc<SnapshotPipe>,
    form: Form,
    /// Its place in the stream, once that is known and told to those for whom it is.
    place: Option<u64>,
}

impl Feed {
    pub(super) fn look_at_sync(&mut self) {
        let at = self.server.replication.sync_at.swap(NEVER, AcqRel);
        if at != NEVER {
            self.begin_snapshots(at);
        }
        self.look_at_draining();
        let Some(sync) = &self.sync else { return self.begin_sync_if_due() };
        let (pipe, form, place) = (sync.pipe.clone(), sync.form, sync.place);
        let is_for = |replica: &ReplicaConnection| replica.pipe().is_some_and(|its| Arc::ptr_eq(its, &pipe));
        let end = pipe.end();
        if let Some(Err(reason)) = &end {
            self.part_if(|replica| is_for(replica).then(|| format!("its full sync failed: {reason}")));
        } else if !self.replicas.values().any(is_for) || self.server.persist.is_cancelled(Job::Sync) {
            pipe.give_up(); // perhaps it waits for room
            self.server.persist.cancel_sync(); // or it writes to a file
        }
        if form == Form::Mark && place.is_some() && end == Some(Ok(())) {
            let has_it = |replica: &ReplicaConnection| matches!(replica.stage, Stage::Loading { then } if Some(then) == place);
            let all = self.replicas.iter().filter(|(_, replica)| is_for(replica) || has_it(replica));
            let tokens = all.map(|(token, _)| *token).collect();
            self.draining.push((pipe, tokens));
        }
        // Those who are still being sent what is in the pipe have it for themselves.
        if end.is_some_and(|end| end.is_err() || place.is_some()) {
            self.sync = None;
        }
    }

    /// Says of each snapshot that nobody is sent any more who has it.
    fn look_at_draining(&mut self) {
        let Feed { draining, replicas, server, .. } = self;
        draining.retain(|(pipe, tokens)| {
            let is_for =
                |replica: &ReplicaConnection| replica.pipe().is_some_and(|its| Arc::ptr_eq(its, pipe));
            let is_sent = replicas.values().any(is_for);
            if !is_sent {
                let count = tokens.iter().filter(|token| replicas.contains_key(token)).count();
                server.log.notice(format!(
                    "Diskless rdb transfer, done reading from pipe, {count} replicas still up."
                ));
            }
            is_sent
        });
    }

    pub(super) fn begin_sync_if_due(&mut self) {
        if self.server.persist.ending.is_under_way() {
            return; // which has given up the one that was being taken
        }
        let waiting = || {
            self.replicas.values().filter_map(|replica| match replica.stage {
                Stage::Waiting { since } => {
                    Some((since, replica.replica_hello.content, replica.replica_hello.takes_mark))
                }
                _ => None,
            })
        };
        // Whoever wants something else of the data gets a snapshot of its own, behind this one.
        let Some((first, content, _)) = waiting().min_by_key(|(since, ..)| *since) else { return };
        let waiting = || waiting().filter(|(_, its, _)| *its == content);
        // What was set before the replica came holds for it.
        let settings = self.server.settings();
        let takes_mark = settings.repl_diskless_sync && waiting().all(|(.., takes_mark)| takes_mark);
        let most = settings.repl_diskless_sync_max_replicas as usize;
        let delay = Duration::from_secs(u64::from(settings.repl_diskless_sync_delay));
        let waits = takes_mark && self.now - first < delay && (most == 0 || waiting().count() < most);
        // Of a replica that has given up its data and not got others yet, nobody is to get nothing in the place of what it has.
        let lacks_data = !self.server.persist.has_all_data();
        // A reader that ends is none of the stream that this one begins.
        let ends = self.server.replication.reading.ends();
        if waits || lacks_data || ends {
            return;
        }
        if !self.server.persist.claim_sync() {
            return snapshot::give_way(&self.server);
        }
        let (state, pipe) = (&self.server.replication, SnapshotPipe::new());
        state.sync_behind.store(NEVER, Release);
        let keeps = state.is_replica().then(|| state.stream().offset());
        let is_for = |replica: &ReplicaConnection| {
            matches!(replica.stage, Stage::Waiting { .. }) && replica.replica_hello.content == content
        };
        for replica in self.replicas.values_mut().filter(|replica| is_for(replica)) {
            replica.stage = Stage::Begun { pipe: pipe.clone(), keeps };
            replica.moved = self.now;
            replica.replica_hello.takes_mark = takes_mark;
            state.figures.full.fetch_add(1, Relaxed);
        }
        let form = if takes_mark { Form::Mark } else { Form::Length };
        sync::begin(&self.server, pipe.clone(), form, content);
        self.sync = Some(Sync { pipe, form, place: None });
    }

    /// The snapshot that is being taken begins at this offset of the stream.
    pub(super) fn begin_snapshots(&mut self, offset: u64) {
        let Some(sync) = &mut self.sync else { return };
        sync.place = Some(offset);
        let stream = self.server.replication.stream();
        if stream.era() != self.era {
            return; // the offset is one of another stream
        }
        let id = stream.history.id.clone();
        drop(stream);
        for replica in self.replicas.values_mut() {
            let Stage::Begun { pipe, .. } = &replica.stage else { continue };
            let pipe = pipe.clone();
            if replica.replica_hello.asks != Some(Asks::Snapshot) {
                replica.say(format!("+FULLRESYNC {id} {offset}\r\n").as_bytes());
            }
            replica.begin_snapshot(pipe, offset);
        }
    }

    /// Lets go of what nobody has to be sent any more of the snapshots that are being sent, and makes room where others wait.
    pub(super) fn tend_pipes(&mut self) {
        let mut pipes: Vec<(Arc<SnapshotPipe>, Vec<u64>)> = Vec::new();
        for replica in self.replicas.values() {
            let Stage::Snapshot { pipe, at, .. } = &replica.stage else { continue };
            match pipes.iter_mut().find(|(other, _)| Arc::ptr_eq(other, pipe)) {
                Some((_, readers)) => readers.push(*at),
                None => pipes.push((pipe.clone(), vec![*at])),
            }
        }
        let is_waited_for = |replica: &ReplicaConnection| matches!(replica.stage, Stage::Waiting { .. });
        let awaited = match () {
            () if pipes.is_empty() => Awaited::Nothing,
            () if self.replicas.values().any(is_waited_for) => Awaited::Asked,
            () => save_points::awaited(&self.server),
        };
        let (mut in_memory, mut on_disk) = (0, 0);
        for (pipe, readers) in pipes {
            let server = self.server.clone();
            let create = |from| {
                SpillFile::create(&self.settings.dir, from, move || server.replication.replica_inbox.nudge())
            };
            if let Err(error) = pipe.tend(&readers, awaited, create) {
                self.server.log.warning(format!(
                    "Cannot spill the snapshot for slow replicas to disk, in {}: {error}",
                    self.settings.dir.display()
                ));
                let start = pipe.lock().bytes.start();
                let lacks = |replica: &ReplicaConnection| match &replica.stage {
                    Stage::Snapshot { pipe: its, at, .. } => Arc::ptr_eq(its, &pipe) && *at < start,
                    _ => false,
                };
                self.part_if(|replica| {
                    lacks(replica).then(|| "the full sync needs more space than available".into())
                });
            }
            let (memory, disk) = pipe.lock().sizes();
            (in_memory, on_disk) = (in_memory + memory, on_disk + disk);
        }
        let figures = &self.server.replication.figures;
        figures.in_pipes.store(in_memory, Relaxed);
        figures.spilled.store(on_disk, Relaxed);
        // Who hears that there is none any more finds in the log how it went.
        let syncing = self.draining.len() + usize::from(self.sync.is_some());
        figures.syncing.store(syncing as u64, Relaxed);
    }

    /// What is needed for full syncs finds no place on disk: those begin anew who need more than the bytes that memory may hold, or
    /// what the disk had.
    pub(super) fn give_up_slow(&mut self, len_max: u64, error: &io::Error) {
        let stream = self.server.replication.stream();
        let (offset, start) = (stream.offset(), stream.backlog().map_or(0, Backlog::start));
        drop(stream);
        let is_beyond = |needs: u64| needs < start || offset.saturating_sub(needs) > len_max;
        let is_slow = |replica: &ReplicaConnection| replica.needs().is_some_and(is_beyond);
        if !self.replicas.values().any(is_slow) {
            return;
        }
        self.server.log.warning(format!(
            "Cannot spill the replication stream during a full sync to disk, in {}: {error}",
            self.settings.dir.display()
        ));
        self.part_if(|replica| {
            is_slow(replica).then(|| "the full sync needs more space than available".into())
        });
    }
}

/// The walk of a snapshot has begun behind the last record that is in the stream: says where that is. Who loads the
/// snapshot has no database selected.
pub(super) fn place_sync(state: &State, stream: &Stream, selected: &mut Option<u32>) -> u64 {
    state.sync_behind.store(NEVER, Release);
    *selected = None;
    stream.offset()
}
