//! A copy at the source.
//!
//! ```text
//! slot-move          asks for the lanes, walks through the slots, then looks how far the lanes have come
//!    slot-move-log   reads the journal into the queues of the lanes, from the moment of the snapshot on
//!    slot-move-lane  a connection each: sends the snapshot, then its queue; reads acknowledgements
//! ```

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_config::Settings;
use evenkeel_persist::pace::GivesWay;
use evenkeel_persist::position::Position;
use evenkeel_persist::recorder::{Commands, Form, Sizes, Taken};
use evenkeel_persist::{PersistJob, rewrite, snapshot};
use evenkeel_rdb::file::KeyMetadata;
use evenkeel_runtime::{random, threads};
use evenkeel_store::SlotSet;
use evenkeel_store::journal::Reader;
use evenkeel_store::key::slot_of;
use parking_lot::Mutex;

use super::CopyOrder;
use super::brake::Brake;
use super::lane::{Answered, Lane, LaneQueue, introduce};
use super::route::{Router, lane_of};
use crate::Replication;
use crate::node_connection::NodeConnection;
use crate::snapshot_pipe::{Inlet, SnapshotPipe};

/// Lanes of a copy at most.
const LANES_MAX: usize = 4;

/// Poll interval of the thread that waits for the lanes, and of the thread that reads the journal.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Delay before the target, or the keyspace, is asked again.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The slots may be closed when the target lacks no more than this: a millisecond of a fast network.
const READY_LEN: u64 = 64 * 1024;

/// The longest wait for a target that is not ready: it may remove the rest of an earlier copy.
const TARGET_WAIT_MAX: Duration = Duration::from_secs(120);

/// A command without effect, which marks the end of the snapshot, and of everything that was written before
/// the slots were closed.
const MARK: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// The slots are not closed.
const OPEN: u64 = u64::MAX;

/// A stage that a copy has reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The target has nearly everything.
    Ready,
    /// The slots are closed, and the target has everything.
    Drained,
    /// The copy has failed, for this reason.
    Failed(String),
}

/// The progress of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyStatus {
    /// The snapshot has been taken.
    pub is_walked: bool,
    /// The slots are closed.
    pub is_closed: bool,
    /// Bytes that the target has acknowledged.
    pub acked: u64,
    /// Bytes of the journal that the target has not acknowledged, once the snapshot has been sent.
    pub behind: u64,
    /// Bytes of memory that the queues of the lanes take.
    pub memory: u64,
}

/// The state of a copy that its threads share.
pub(super) struct Outgoing {
    pub(super) order: CopyOrder,
    /// Tells the target the lanes of this attempt from those of an earlier one: it rises.
    attempt: u64,
    report: Box<dyn Fn(News) + Send + Sync>,
    is_over: AtomicBool,
    /// It has the claim on the walk through the keyspace.
    is_walking: AtomicBool,
    is_walked: AtomicBool,
    /// The last record before the slots were closed, or [`OPEN`].
    closed_behind: AtomicU64,
    /// The last record of the journal whose commands are in the queues.
    routed: AtomicU64,
    queues: Vec<Arc<LaneQueue>>,
    pipes: Vec<Arc<SnapshotPipe>>,
    failure: Mutex<Option<String>>,
}

impl Outgoing {
    pub(super) fn new(order: CopyOrder, report: Box<dyn Fn(News) + Send + Sync>) -> Outgoing {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let lanes = cores.div_ceil(2).min(LANES_MAX);
        Outgoing {
            order,
            attempt: evenkeel_runtime::clock::unix_ms() << 16 | random::random_seed() & 0xffff,
            report,
            is_over: AtomicBool::new(false),
            is_walking: AtomicBool::new(false),
            is_walked: AtomicBool::new(false),
            closed_behind: AtomicU64::new(OPEN),
            routed: AtomicU64::new(0),
            queues: (0..lanes).map(|_| Arc::default()).collect(),
            pipes: (0..lanes).map(|_| SnapshotPipe::new()).collect(),
            failure: Mutex::default(),
        }
    }

    /// The slots are closed: `last` is the last record that may concern them.
    pub(super) fn close(&self, last: u64) {
        self.closed_behind.store(last, Release);
    }

    /// Ends the copy. Its threads end soon.
    pub(super) fn end(&self, replication: &Replication) {
        if !self.is_over.swap(true, SeqCst) && self.is_walking.load(SeqCst) {
            replication.persist.cancel_move();
        }
        self.pipes.iter().for_each(|pipe| pipe.cancel());
    }

    fn is_over(&self) -> bool {
        self.is_over.load(SeqCst)
    }

    /// Ends the copy, which has failed. A copy that was ended before has not: its threads find their
    /// connections closed.
    fn fail(&self, replication: &Replication, reason: String) {
        if !self.is_over() {
            self.failure.lock().get_or_insert(reason);
        }
        self.end(replication);
    }

    pub(super) fn status(&self) -> CopyStatus {
        let behind = self.queues.iter().filter_map(|queue| queue.unacked()).sum();
        CopyStatus {
            is_walked: self.is_walked.load(Acquire),
            is_closed: self.closed_behind.load(Acquire) != OPEN,
            acked: self.queues.iter().map(|queue| queue.acked()).sum(),
            behind,
            memory: self.queues.iter().map(|queue| queue.memory()).sum(),
        }
    }
}

/// Starts the threads of a copy.
pub(super) fn start(replication: &Arc<Replication>, copy: Arc<Outgoing>) {
    let (on_thread, host, of_thread) = (replication.clone(), replication.host(), copy.clone());
    let spawned = threads::named("slot-move").spawn(move || {
        let _host = host;
        evenkeel_store::memory::register_thread();
        let run = catch_unwind(AssertUnwindSafe(|| run(&on_thread, &of_thread)));
        let result = run.unwrap_or_else(|_| Err("a panic, see the server log".into()));
        result.unwrap_or_else(|reason| of_thread.fail(&on_thread, reason));
        of_thread.end(&on_thread);
        if let Some(reason) = of_thread.failure.lock().take() {
            (of_thread.report)(News::Failed(reason));
        }
    });
    if let Err(error) = spawned {
        (copy.report)(News::Failed(format!("cannot start a thread: {error}")));
    }
}

fn run(replication: &Arc<Replication>, copy: &Arc<Outgoing>) -> Result<(), String> {
    let settings = replication.core.settings();
    let Some(_turn) = Turn::take(replication, copy) else { return Ok(()) };
    let mut connections = Vec::new();
    for lane in 0..copy.queues.len() {
        connections.push(connect(replication, copy, lane)?);
    }
    if !claim_walk(replication, copy) {
        return Ok(());
    }
    let (readers, reader) = channel();
    let mut threads = Vec::new();
    let spawned = spawn_all(replication, copy, connections, reader, &mut threads);
    let copied = match spawned {
        Ok(()) => walk(replication, &settings, copy, readers),
        Err(error) => {
            drop(readers);
            Err(format!("cannot start a thread: {error}"))
        }
    };
    copy.is_walking.store(false, Release);
    rewrite::release(&replication.persist);
    match copied {
        Ok(()) => watch(replication, copy),
        Err(reason) => copy.fail(replication, reason),
    }
    copy.end(replication);
    threads.into_iter().for_each(|thread| _ = thread.join());
    Ok(())
}

/// The turn of a copy: it has a reader of the journal, and threads at the target.
struct Turn<'a>(&'a AtomicBool);

impl<'a> Turn<'a> {
    /// Waits for the end of another copy. `None`: this one is over before.
    fn take(replication: &'a Replication, copy: &Outgoing) -> Option<Turn<'a>> {
        let is_copying = &replication.moves.is_copying;
        while !copy.is_over() && !replication.core.stopping.load(Acquire) {
            if !is_copying.swap(true, AcqRel) {
                return Some(Turn(is_copying));
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
        None
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

/// Connects a lane, once the target is ready for the copy.
fn connect(replication: &Replication, copy: &Outgoing, lane: usize) -> Result<NodeConnection, String> {
    let (order, target) = (&copy.order, &copy.order.target);
    let is_wanted = || !copy.is_over() && !replication.core.stopping.load(Acquire);
    let numbers = [order.source_epoch, order.target_epoch, copy.attempt].map(|number| number.to_string());
    let lane = lane.to_string();
    let words: [&[u8]; 7] = [
        b"CLUSTER",
        b"IMPORTSLOTS",
        order.id.as_bytes(),
        numbers[0].as_bytes(),
        numbers[1].as_bytes(),
        numbers[2].as_bytes(),
        lane.as_bytes(),
    ];
    let began = Instant::now();
    let mut connection = NodeConnection::connect(replication, (&target.host, target.port), &is_wanted)?;
    loop {
        match introduce(&mut connection, &words, &is_wanted)? {
            Answered::Yes => return Ok(connection),
            Answered::Later(reason) if began.elapsed() > TARGET_WAIT_MAX => {
                return Err(format!("the target is not ready: {reason}"));
            }
            Answered::Later(_) => std::thread::sleep(RETRY_INTERVAL),
        }
    }
}

/// Claims the walk through the keyspace, once no other job has it. Returns false if the copy is over before.
fn claim_walk(replication: &Replication, copy: &Outgoing) -> bool {
    while !copy.is_over() && !replication.core.stopping.load(Acquire) {
        if replication.persist.claim(PersistJob::Move) {
            copy.is_walking.store(true, SeqCst);
            if !copy.is_over() {
                return true;
            }
            // Whoever ended the copy may have seen no walk.
            copy.is_walking.store(false, Release);
            rewrite::release(&replication.persist);
            return false;
        }
        replication.persist.is_idle_within(RETRY_INTERVAL);
    }
    false
}

fn spawn_all(
    replication: &Arc<Replication>,
    copy: &Arc<Outgoing>,
    connections: Vec<NodeConnection>,
    reader: Receiver<Reader>,
    threads: &mut Vec<JoinHandle<()>>,
) -> io::Result<()> {
    let (on_thread, of_thread) = (replication.clone(), copy.clone());
    threads.push(threads::named("slot-move-log").spawn(move || {
        evenkeel_store::memory::register_thread();
        let routed = catch_unwind(AssertUnwindSafe(|| read_journal(&on_thread, &of_thread, &reader)));
        let routed = routed.unwrap_or_else(|_| Err("a panic, see the server log".into()));
        routed.unwrap_or_else(|reason| of_thread.fail(&on_thread, reason));
    })?);
    for (lane, connection) in connections.into_iter().enumerate() {
        let (on_thread, of_thread) = (replication.clone(), copy.clone());
        let (pipe, queue) = (copy.pipes[lane].clone(), copy.queues[lane].clone());
        threads.push(threads::named("slot-move-lane").spawn(move || {
            evenkeel_store::memory::register_thread();
            let _gives_way = GivesWay::new();
            let mut lane = Lane::new(connection, pipe, queue);
            let is_over = || of_thread.is_over() || on_thread.core.stopping.load(Acquire);
            let ran = catch_unwind(AssertUnwindSafe(|| lane.run(&on_thread, &is_over)));
            let ran = ran.unwrap_or_else(|_| Err("a panic, see the server log".into()));
            ran.unwrap_or_else(|reason| of_thread.fail(&on_thread, reason));
        })?);
    }
    Ok(())
}

/// Takes the snapshot into the pipes. The journal's reader joins at its moment.
fn walk(
    replication: &Arc<Replication>,
    settings: &Arc<Settings>,
    copy: &Outgoing,
    readers: Sender<Reader>,
) -> Result<(), String> {
    let form = Laned {
        slots: copy.order.slots.clone(),
        lanes: copy.pipes.iter().map(|pipe| Commands::in_pieces(Inlet(pipe.clone()))).collect(),
    };
    let job = (PersistJob::Move, false);
    let taken = snapshot::take(&replication.persist, settings, job, form, |guard| {
        // The receiver is gone if its thread has ended.
        let _ = readers.send(guard.join_log());
        None
    });
    match taken {
        Ok(bytes) => {
            copy.is_walked.store(true, Release);
            copy.queues.iter().for_each(|queue| queue.append(MARK));
            copy.pipes.iter().for_each(|pipe| pipe.finish(Ok(())));
            log::info!("Move {}: the snapshot of its slots has {bytes} bytes", copy.order.id);
            Ok(())
        }
        Err(error) => Err(format!("the snapshot of the slots failed: {error}")),
    }
}

/// Reports the stages that the lanes reach, until the copy is over.
fn watch(replication: &Replication, copy: &Outgoing) {
    let (mut is_ready, mut is_drained, mut has_last) = (false, false, false);
    let mut brake = Brake::default();
    while !copy.is_over() && !replication.core.stopping.load(Acquire) {
        let unacked = copy.queues.iter().map(|queue| queue.unacked()).sum::<Option<u64>>();
        let acked = copy.queues.iter().map(|queue| queue.acked()).sum();
        let is_open = copy.closed_behind.load(Acquire) == OPEN;
        let holds = is_open && brake.holds(Instant::now(), unacked, acked, READY_LEN / 2);
        hold_writers(replication, holds);
        if !is_ready && unacked.is_some_and(|unacked| unacked <= READY_LEN) {
            is_ready = true;
            (copy.report)(News::Ready);
        }
        if !has_last && copy.routed.load(Acquire) >= copy.closed_behind.load(Acquire) {
            has_last = true;
            copy.queues.iter().for_each(|queue| queue.append(MARK));
        } else if has_last && !is_drained && unacked == Some(0) {
            is_drained = true;
            (copy.report)(News::Drained);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    hold_writers(replication, false);
}

/// Lets writers of the leaving slots wait, or go on.
fn hold_writers(replication: &Replication, holds: bool) {
    let waited = replication.moves.holds_writers.swap(holds, AcqRel);
    if waited && !holds {
        replication.core.workers.wake_all();
    }
}

/// Reads the journal into the queues of the lanes.
fn read_journal(
    replication: &Arc<Replication>,
    copy: &Outgoing,
    reader: &Receiver<Reader>,
) -> Result<(), String> {
    let Ok(mut reader) = reader.recv() else { return Ok(()) }; // the walk has not begun
    let journal = &replication.core.keyspace.journal;
    let mut router = Router::new(copy.order.slots.clone(), copy.queues.clone());
    let mut routed = Ok(());
    while !copy.is_over() && !replication.core.stopping.load(Acquire) && routed.is_ok() {
        reader.read(journal, |record| {
            routed = router.route(&record);
            routed.is_ok()
        });
        if routed.is_ok() {
            copy.routed.store(reader.last(), Release);
            // Without a wake-up: it would cost writers a system call.
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    replication.with_all_held(|guard| guard.dismiss(reader.place()));
    reader.end(journal);
    routed
}

/// The snapshot of some slots, as commands for several lanes.
struct Laned {
    slots: SlotSet,
    lanes: Vec<Commands<Inlet>>,
}

impl Form for Laned {
    /// The length in bytes, of all lanes.
    type Whole = u64;

    fn slots(&self) -> Option<&SlotSet> {
        Some(&self.slots)
    }

    /// Ignored: the keys become part of another stream.
    fn position(&mut self, _: &Position) -> io::Result<()> {
        Ok(())
    }

    /// Ignored: each node has libraries of its own.
    fn library(&mut self, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn begin(&mut self, _: Sizes) {}

    fn key(&mut self, db: u32, key: &[u8], metadata: &KeyMetadata, value: Taken<'_>) {
        let lane = lane_of(slot_of(key), self.lanes.len());
        self.lanes[lane].key(db, key, metadata, value);
    }

    fn error(&mut self) -> Option<&io::Error> {
        self.lanes.iter_mut().find_map(|lane| lane.error())
    }

    fn written(&mut self) -> u64 {
        self.lanes.iter_mut().map(|lane| lane.written()).sum()
    }

    fn finish(self) -> io::Result<u64> {
        let written: io::Result<Vec<u64>> = self.lanes.into_iter().map(|lane| lane.finish()).collect();
        written.map(|written| written.iter().sum())
    }
}
