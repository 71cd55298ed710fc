//! Full syncs in the replication thread: their beginning, their offset in the stream, and their replicas.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

use super::Feed;
use crate::backlog::Backlog;
use crate::replica_connection::{ReplicaConnection, Stage};
use crate::snapshot_pipe::SnapshotPipe;
use crate::spill_file::SpillFile;
use crate::sync::{self, Form};
use crate::{NEVER, Replication, Stream};
use evenkeel_client::replica_hello::Asks;
use evenkeel_persist::save_points::{self, Awaited};
use evenkeel_persist::{PersistJob, snapshot};

/// A full sync whose snapshot is being taken.
pub(super) struct Sync {
    pub(super) pipe: Arc<SnapshotPipe>,
    form: Form,
    /// Its offset in the stream, once it is known and has been sent to its replicas.
    place: Option<u64>,
}

impl Feed {
    pub(super) fn look_at_sync(&mut self) {
        let at = self.replication.sync_at.swap(NEVER, AcqRel);
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
        } else if !self.replicas.values().any(is_for)
            || self.replication.persist.is_cancelled(PersistJob::Sync)
        {
            pipe.cancel(); // it may wait for room
            self.replication.persist.cancel_sync(); // or write to a file
        }
        if form == Form::Mark && place.is_some() && end == Some(Ok(())) {
            let has_it = |replica: &ReplicaConnection| {
                // All of it has been sent, and is being loaded.
                matches!(replica.stage, Stage::Loading { then } if Some(then) == place)
            };
            let all = self.replicas.iter().filter(|(_, replica)| is_for(replica) || has_it(replica));
            let tokens = all.map(|(token, _)| *token).collect();
            self.draining.push((pipe, tokens));
        }
        // Replicas that are still being sent the pipe's bytes have it to themselves.
        if end.is_some_and(|end| end.is_err() || place.is_some()) {
            self.sync = None;
        }
    }

    /// Logs the end of each snapshot that no replica is being sent any more.
    fn look_at_draining(&mut self) {
        let Feed { draining, replicas, .. } = self;
        draining.retain(|(pipe, tokens)| {
            let is_for =
                |replica: &ReplicaConnection| replica.pipe().is_some_and(|its| Arc::ptr_eq(its, pipe));
            let is_sent = replicas.values().any(is_for);
            if !is_sent {
                let count = tokens.iter().filter(|token| replicas.contains_key(token)).count();
                log::info!("Diskless rdb transfer, done reading from pipe, {count} replicas still up.");
            }
            is_sent
        });
    }

    pub(super) fn begin_sync_if_due(&mut self) {
        if self.replication.persist.ending.is_under_way() {
            return; // it has cancelled the running snapshot
        }
        let waiting = || {
            self.replicas.values().filter_map(|replica| match replica.stage {
                Stage::Waiting { since } if self.may_sync(replica) => {
                    Some((since, replica.replica_hello.content, replica.replica_hello.takes_mark))
                }
                _ => None,
            })
        };
        // Replicas that want another content get a snapshot of their own, after this snapshot.
        let Some((first, content, _)) = waiting().min_by_key(|(since, ..)| *since) else { return };
        let waiting = || waiting().filter(|(_, its, _)| *its == content);
        // Settings made before a replica arrived apply to it.
        let settings = self.replication.core.settings();
        let takes_mark = settings.repl_diskless_sync && waiting().all(|(.., takes_mark)| takes_mark);
        let most = settings.repl_diskless_sync_max_replicas as usize;
        let delay = Duration::from_secs(u64::from(settings.repl_diskless_sync_delay));
        // Other replicas may come, but the process that takes over comes alone.
        let has_successor = self.replication.replicas.successor().is_some();
        let may_wait = takes_mark && !has_successor;
        let waits = may_wait && self.times.now - first < delay && (most == 0 || waiting().count() < most);
        // If this server has given up its data and not got new data yet, no replica may get an empty snapshot
        // in place of its own data.
        let lacks_data = !self.replication.persist.has_all_data();
        // A reader that ends does not belong to the stream that begins now.
        let ends = self.replication.reading.ends();
        if waits || lacks_data || ends {
            return;
        }
        if !self.replication.persist.claim_sync() {
            return snapshot::give_way(&self.replication.persist);
        }
        let (state, pipe) = (&self.replication, SnapshotPipe::new());
        state.sync_behind.store(NEVER, Release);
        let keeps = state.is_replica().then(|| state.stream().offset());
        let is_for = |replica: &ReplicaConnection| {
            matches!(replica.stage, Stage::Waiting { .. })
                && replica.replica_hello.content == content
                && replica.member().is_none_or(|member| state.members.may_sync(&member.node))
        };
        for replica in self.replicas.values_mut().filter(|replica| is_for(replica)) {
            replica.stage = Stage::Begun { pipe: pipe.clone(), keeps };
            replica.moved = self.times.now;
            replica.replica_hello.takes_mark = takes_mark;
            state.metrics.full.fetch_add(1, Relaxed);
        }
        let form = if takes_mark { Form::Mark } else { Form::Length };
        sync::begin(&self.replication, pipe.clone(), form, content);
        self.sync = Some(Sync { pipe, form, place: None });
    }

    /// Begins to send the present snapshot, which is at this offset of the stream.
    pub(super) fn begin_snapshots(&mut self, offset: u64) {
        let Some(sync) = &mut self.sync else { return };
        sync.place = Some(offset);
        let stream = self.replication.stream();
        if stream.era() != self.era {
            return; // the offset belongs to another stream
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

    /// Frees the bytes of snapshots that no replica needs any more, and makes room for waiting replicas and
    /// jobs.
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
            () => save_points::awaited(&self.replication.persist),
        };
        let (mut in_memory, mut on_disk) = (0, 0);
        for (pipe, readers) in pipes {
            let replication = self.replication.clone();
            let create =
                |from| SpillFile::create(&self.settings.dir, from, move || replication.replica_inbox.nudge());
            if let Err(error) = pipe.tend(&readers, awaited, create) {
                log::warn!(
                    "Cannot spill the snapshot for slow replicas to disk, in {}: {error}",
                    self.settings.dir.display()
                );
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
        let metrics = &self.replication.metrics;
        metrics.in_pipes.store(in_memory, Relaxed);
        metrics.spilled.store(on_disk, Relaxed);
        // A tool that finds the metric at zero also finds the result in the server log.
        let syncing = self.draining.len() + usize::from(self.sync.is_some());
        metrics.syncing.store(syncing as u64, Relaxed);
    }

    /// Handles a disk that does not take the bytes kept for full syncs: replicas begin anew if they need
    /// bytes from the disk, or more than memory may hold.
    pub(super) fn drop_slow(&mut self, len_max: u64, error: &io::Error) {
        let stream = self.replication.stream();
        let (offset, start) = (stream.offset(), stream.backlog().map_or(0, Backlog::start));
        drop(stream);
        let is_beyond = |needs: u64| needs < start || offset.saturating_sub(needs) > len_max;
        let is_slow = |replica: &ReplicaConnection| replica.needs().is_some_and(is_beyond);
        if !self.replicas.values().any(is_slow) {
            return;
        }
        log::warn!(
            "Cannot spill the replication stream during a full sync to disk, in {}: {error}",
            self.settings.dir.display()
        );
        self.part_if(|replica| {
            is_slow(replica).then(|| "the full sync needs more space than available".into())
        });
    }
}

/// Returns the offset of the snapshot whose walk has begun behind the last record of the stream. The snapshot
/// selects no database.
pub(super) fn place_sync(state: &Replication, stream: &Stream, selected: &mut Option<u32>) -> u64 {
    state.sync_behind.store(NEVER, Release);
    *selected = None;
    stream.offset()
}
