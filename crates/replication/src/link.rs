//! A replica's link to its primary: the target, the thread that follows it, and the state that other threads
//! see.
//!
//! A single thread starts with the first REPLICAOF. It connects, introduces this server
//! ([`super::handshake`]), takes over the data ([`super::receive`], [`super::install`]) unless the stream can
//! continue, and runs the stream ([`super::apply`]). When the connection ends, the thread tries again: at
//! once if the link was established, otherwise after a second. Only the [`Position`] in the stream, which is
//! that of the data, outlives a connection.
//!
//! **The target changes while the gate is closed** ([`change`]), together with everything that depends on it:
//! whether clients may write, whether expired keys are removed, where the stream comes from. Each change
//! increments `generation`, and work of the thread for another generation has no effect any more. The change
//! takes time, so a target carries its generation: the former target is never followed under a new number.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use evenkeel_store::SlotGuard;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::History;
use super::Replication;
use super::apply::Applier;
use super::failover;
use super::handshake::{self, Answer, Introduced};
use super::install;
use super::primary_connection::{Ended, PrimaryConnection};
use super::surplus;
pub use super::target::{Phase, Target};
use evenkeel_client::clients::ClientInfo;
use evenkeel_client::maintenance;
use evenkeel_client::waiting::{End, new_role};
use evenkeel_command::Flags;
use evenkeel_command::error::Error;
use evenkeel_command::table::table;
use evenkeel_config::{Fsync, Primary};
use evenkeel_core::blockers::Blockers;
use evenkeel_persist::position::Position;
use evenkeel_persist::rewrite;
use evenkeel_runtime::clock;
use evenkeel_runtime::random::random_hex;
use evenkeel_runtime::threads;

/// Bytes received at a time.
pub(super) const ROOM: usize = 256 * 1024;

/// Delay before the next connection.
const PAUSE: Duration = Duration::from_secs(1);

/// Short links in a row without progress after which the next attempt is delayed. A link is short if it
/// lasted less than [`PAUSE`].
const VAIN_MAX: u64 = 10;

/// Short links in a row, with or without progress, after which each attempt is delayed by
/// [`RECONNECT_DELAY`]. A bad line breaks often, and a replica that waits for long may fall too far behind.
const SHORT_MAX: u64 = 50;
const RECONNECT_DELAY: Duration = Duration::from_millis(5);

/// Attempts with a delay of [`EARLY_DELAY`] if the primary does not know its role yet: it takes milliseconds.
const EARLY_MAX: u64 = 50;
const EARLY_DELAY: Duration = Duration::from_millis(10);

/// Interval of acknowledgements.
const ACK_EVERY: Duration = Duration::from_secs(1);

/// The same for a replica in a cluster, if it has more than before: it leaves the in-sync set when it lags.
const ACK_EVERY_OF_MEMBER: Duration = Duration::from_millis(50);

/// The same for the process that hands its data over to this process: its clients wait for the last one.
const ACK_EVERY_SOON: Duration = Duration::from_millis(5);

/// Interval of checks whether the offset that the primary asked for is on disk.
const SYNC_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Longest wait for journal records to reach the stream. It takes milliseconds, unless the machine is very
/// busy.
pub(super) const JOURNAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval of checks whether the link goes on, while it rests.
const REST_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Longest interval at which an idle thread checks whether the server ends.
pub(super) const LINK_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Metrics for INFO.
#[derive(Default)]
pub struct LinkMetrics {
    /// The time of the last bytes from the primary; zero: none.
    pub last_io_ms: AtomicU64,
    /// Since when the link has been down; zero: it has never been up.
    pub down_since_ms: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    /// Size and received bytes of the present snapshot; zero: unknown.
    pub transfer_total: AtomicI64,
    pub transfer_read: AtomicI64,
    /// Bytes of the stream received so far.
    pub read_offset: AtomicU64,
    /// Commands of the stream that could not be run.
    pub failed: AtomicU64,
    /// Successful full and partial syncs.
    pub full_syncs: AtomicU64,
    pub partial_syncs: AtomicU64,
}

/// The link, as other threads see it.
pub struct PrimaryLink {
    wanted: Mutex<Wanted>,
    changed: Condvar,
    /// Held while the permissions of clients on a replica are updated.
    following: Mutex<()>,
    /// Incremented under the lock of `wanted`.
    generation: AtomicU64,
    /// The primary's id among the clients, while the link is up.
    client: Mutex<Option<u64>>,
    phase: AtomicU8,
    has_thread: AtomicBool,
    /// Whether the data are those of the stream's history at its offset, so that a primary of that history
    /// can continue from there.
    has_position: AtomicBool,
    /// The database selected at the stream's offset.
    db: AtomicU32,
    /// Whether another data set is being loaded while the present data are served.
    pub(super) loads_beside: AtomicBool,
    /// The socket of the process that hands its data over to this process, until the link uses it.
    pub(super) predecessor: Mutex<Option<OwnedFd>>,
    /// This process is about to take the predecessor's data over as they are: it follows the stream without
    /// them.
    pub(super) lacks_data: AtomicBool,
    /// The thread reads nothing from the primary for the time being, and whether it knows that.
    pub(super) rests: AtomicBool,
    pub(super) is_at_rest: AtomicBool,
    pub metrics: LinkMetrics,
}

/// The target, and the generation from which on it is followed.
#[derive(Default)]
struct Wanted {
    target: Option<Target>,
    generation: u64,
}

impl PrimaryLink {
    pub(super) fn new() -> PrimaryLink {
        PrimaryLink {
            wanted: Mutex::default(),
            changed: Condvar::new(),
            following: Mutex::default(),
            generation: AtomicU64::new(0),
            client: Mutex::new(None),
            phase: AtomicU8::new(Phase::None as u8),
            has_thread: AtomicBool::new(false),
            has_position: AtomicBool::new(false),
            db: AtomicU32::new(0),
            loads_beside: AtomicBool::new(false),
            predecessor: Mutex::new(None),
            lacks_data: AtomicBool::new(false),
            rests: AtomicBool::new(false),
            is_at_rest: AtomicBool::new(false),
            metrics: LinkMetrics::default(),
        }
    }

    pub fn target(&self) -> Option<Target> {
        self.wanted.lock().target.clone()
    }

    pub fn phase(&self) -> Phase {
        Phase::of(self.phase.load(Acquire))
    }

    pub fn is_up(&self) -> bool {
        self.phase() == Phase::Connected
    }

    pub fn loads_beside(&self) -> bool {
        self.loads_beside.load(Relaxed)
    }

    /// The number of the present link. Changes only while the gate is closed.
    pub fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Records that the stream has been run up to its end, where `db` is selected.
    pub(super) fn set_applied_db(&self, db: u32) {
        self.db.store(db, Relaxed);
    }

    /// Records whether the data are those of the stream's history.
    pub(super) fn set_position(&self, is_there: bool, db: u32) {
        self.db.store(db, Relaxed);
        self.has_position.store(is_there, Release);
    }

    /// The database selected at the stream's offset, whether or not a primary can continue from there.
    pub(super) fn db(&self) -> u32 {
        self.db.load(Relaxed)
    }

    /// The position of a replica's data in the stream. Stable only while the gate is closed.
    pub fn position(&self, replication: &Replication) -> Option<Position> {
        let stream = replication.stream();
        let is_there = self.has_position.load(Acquire);
        is_there.then(|| Position { id: stream.history.id.clone(), offset: stream.offset(), db: self.db() })
    }

    /// Marks the link as up, and adds the primary to the clients.
    fn stand(
        &self,
        replication: &Replication,
        conn: &PrimaryConnection,
        generation: u64,
    ) -> Result<(), Ended> {
        let mut client = self.client.lock();
        conn.check()?; // under the lock, so a thread that ends the link removes the client
        replication.hub.clients.add(conn.client.clone());
        *client = Some(conn.client.id);
        self.reach(replication, generation, Phase::Connected)
    }

    /// Handles killed clients: if the primary is among them, the link is down from now on, although its
    /// thread may notice only later.
    pub fn on_killed(&self, replication: &Replication, clients: &[Arc<ClientInfo>]) {
        let client = self.client.lock();
        if clients.iter().any(|killed| Some(killed.id) == *client) {
            self.set_phase(replication, Phase::Connect);
        }
    }

    fn strike_client(&self, replication: &Replication) {
        if let Some(id) = self.client.lock().take() {
            replication.hub.clients.remove(id);
        }
    }

    /// Calls `f` for the link of this generation, under a lock that keeps the generation from changing.
    fn for_generation(&self, generation: u64, f: impl FnOnce()) -> Result<(), Ended> {
        let _wanted = self.wanted.lock();
        if self.generation() != generation {
            return Err(Ended::Superseded);
        }
        f();
        Ok(())
    }

    /// Sets the phase of the link of this generation.
    fn reach(&self, replication: &Replication, generation: u64, phase: Phase) -> Result<(), Ended> {
        self.for_generation(generation, || self.set_phase(replication, phase))
    }

    fn set_phase(&self, replication: &Replication, phase: Phase) {
        let before = Phase::of(self.phase.swap(phase as u8, AcqRel));
        if before == Phase::Connected {
            self.metrics.down_since_ms.store(clock::unix_ms(), Relaxed);
        }
        follow_settings(replication);
    }
}

/// Sets the blockers for clients of a replica, as the settings say.
pub fn follow_settings(replication: &Replication) {
    let blockers = &replication.core.blockers;
    // Serialised by this lock: the last thread sees all changes.
    let _turn = replication.link.following.lock();
    let settings = replication.core.settings();
    let is_replica = replication.is_replica();
    blockers.set(Blockers::READ_ONLY, is_replica && settings.replica_read_only);
    let is_stale = is_replica && !replication.link.is_up();
    blockers.set(Blockers::STALE, is_stale && !settings.replica_serve_stale_data);
}

/// Makes this server a replica of `target`, or a primary. The caller holds all locks.
pub fn change(replication: &Arc<Replication>, guard: &mut SlotGuard<'_>, target: Option<Target>) {
    assert!(guard.holds_all(), "who may write changes at one moment");
    let link = &replication.link;
    let was_replica = replication.is_replica();
    let generation = {
        let _wanted = link.wanted.lock();
        link.generation.fetch_add(1, AcqRel) + 1
    };
    link.strike_client(replication);
    match (&target, was_replica) {
        (Some(_), false) => {
            guard.hide_expired(true);
            replication.set_replica(true);
            replication.acks.lose(&replication.core.keyspace.journal);
            replication.core.workers.notify_durable();
            replication.leave_log(guard);
            // The position is that of the data, and the last writes of clients may still be on their way into
            // the stream.
            let is_whole = replication.wait_for_end_of_log(JOURNAL_TIMEOUT);
            // The target may be a former replica that continues our stream. Its stream begins with a SELECT.
            link.set_position(is_whole && replication.stream().backlog().is_some(), 0);
        }
        (None, true) => promote(replication, guard),
        (Some(_), true) | (None, false) => {}
    }
    let phase = if target.is_some() { Phase::Connect } else { Phase::None };
    link.metrics.last_io_ms.store(0, Relaxed);
    link.set_phase(replication, phase);
    if phase == Phase::None {
        link.metrics.down_since_ms.store(0, Relaxed); // there is no link that could be down
    }
    *link.wanted.lock() = Wanted { target, generation };
    link.changed.notify_all();
    replication.follow(&replication.core.settings());
}

/// Stores the target in the settings, for CONFIG GET and CONFIG REWRITE, and adjusts the OOM score to the
/// role.
pub fn remember(replication: &Replication, target: Option<Target>) {
    let primary = target.map(|Target { host, port }| Primary { host, port });
    let changed = replication
        .core
        .change_settings(|settings| Ok::<_, std::convert::Infallible>(settings.with_primary(primary)));
    changed.unwrap_or_else(|never| match never {});
    if let Err(error) =
        replication.core.oom_score.follow(&replication.core.settings(), replication.is_replica())
    {
        log::warn!("Unable to write oom_score_adj: {error}");
    }
}

/// Continues the history under a new name, since other servers may continue it under the former name.
fn promote(replication: &Arc<Replication>, guard: &mut SlotGuard<'_>) {
    // The server may have been a primary a moment ago, with a stream that is not complete yet.
    let is_whole = replication.wait_for_end_of_log(JOURNAL_TIMEOUT);
    let mut stream = replication.stream();
    if !is_whole {
        stream.forget();
    }
    let new = random_hex();
    log::info!(
        "Setting secondary replication ID to {}, valid up to offset: {}. New replication ID is {new}",
        stream.history.id,
        stream.offset() + 1
    );
    stream.rename(new);
    let is_kept = stream.backlog().is_some();
    drop(stream);
    guard.hide_expired(false);
    replication.set_replica(false);
    replication.link.set_position(false, 0);
    // The present data, complete or not, are the data from now on.
    replication.persist.is_incomplete.store(false, Release);
    if is_kept {
        replication.follow_log(guard);
        if let Err(error) = replication.replica_inbox.open(replication) {
            log::warn!("Cannot start the replication thread: {error}");
        }
    }
}

/// Follows the primary in the settings, before any data are loaded. The thread starts later, after the load.
pub fn follow_at_start(replication: &Arc<Replication>) {
    let Some(Primary { host, port }) = replication.core.settings().replicaof.clone() else { return };
    rewrite::behind_walks(&replication.persist, |guard| {
        change(replication, guard, Some(Target { host, port }))
    });
}

/// Sets the position of the data loaded from disk, from which a replica continues.
pub fn set_loaded_position(replication: &Replication, position: Option<Position>) {
    if let Some(Position { id, offset, db }) =
        position.filter(|position| position.is_possible(replication.core.keyspace.databases()))
        && replication.is_replica()
    {
        replication.stream().restart(History::named(id), offset);
        replication.link.set_position(true, db);
    }
}

/// Continues the stream of a primary's own data, which are about to be loaded, at this position under a new
/// name. Replicas that have no more than these need no snapshot.
pub fn continue_as_primary(replication: &Arc<Replication>, position: Option<Position>) {
    let Some(Position { id, offset, .. }) =
        position.filter(|position| position.is_possible(replication.core.keyspace.databases()))
    else {
        return;
    };
    let mut history = History::named(id);
    history.branch(offset, random_hex());
    replication.stream().restart(history, offset);
    rewrite::behind_walks(&replication.persist, |guard| replication.follow_log(guard));
    if let Err(error) = replication.replica_inbox.open(replication) {
        log::warn!("Cannot start the replication thread: {error}");
    }
}

/// Starts the thread, if it does not run, or wakes it.
pub fn begin(replication: &Arc<Replication>) {
    let link = &replication.link;
    link.changed.notify_all(); // it may be asleep
    if !link.has_thread.swap(true, AcqRel) {
        let (on_thread, host) = (replication.clone(), replication.host());
        // It runs the code of function libraries.
        let thread = threads::with_deep_stack("primary-link");
        let spawned = thread.spawn(move || {
            let _host = host;
            evenkeel_store::memory::register_thread();
            // The stream is half run, and no other thread would run the rest.
            threads::or_exit("thread of the link to the master", || Follower::new(on_thread).run());
        });
        if let Err(error) = spawned {
            link.has_thread.store(false, Release);
            log::warn!("Cannot start the thread of the link to the master: {error}");
        }
    }
}

/// Ends the waits of all clients: they wait for writes, or in order to write.
///
/// A client that can be redirected (CLIENT CAPA) is told of the new primary, and keeps its connection. If it
/// reads from a replica on purpose (READONLY), it goes on waiting for data, as all such clients of a cluster
/// do.
pub fn end_waits(replication: &Replication) {
    const DATA: Flags = Flags::WRITE.with(Flags::READONLY);
    let primary = replication.link.target();
    let in_cluster = replication.core.settings().cluster_enabled;
    for client in replication.hub.clients.list() {
        let Some(blocked) = client.wait.lock().upgrade() else { continue };
        let flags = table().row(blocked.id).flags;
        let redirects = client.redirects.load(Relaxed);
        let reads = flags.has(Flags::READONLY) && client.reads_replica.load(Relaxed);
        if reads && (in_cluster || redirects && primary.is_some()) {
            continue;
        }
        let primary = primary.as_ref().filter(|_| redirects);
        let (resumed, error) = match primary {
            Some(primary) if flags.has(Flags::WRITE) || flags.has(Flags::READONLY) => {
                let error = Error::text(format!("REDIRECT {}:{}", primary.host, primary.port));
                (blocked.fail(&error), error)
            }
            _ => match of_moved(replication, &client).filter(|_| flags.has(DATA)) {
                Some(error) => (blocked.fail(&error), error),
                None => (blocked.end(End::NewRole), new_role()),
            },
        };
        if let Some(resumed) = resumed {
            replication.host().record_ended_wait(blocked.id, &error);
            replication.hub.resume(resumed);
        }
    }
}

/// Returns the refusal of a command of a client that was told to move to this server's primary (CLIENT
/// MAINT_NOTIFICATIONS).
pub fn of_moved(replication: &Replication, client: &ClientInfo) -> Option<Error> {
    let primary = replication.link.target()?;
    maintenance::refusal(&replication.hub, client, (&primary.host, primary.port))
}

/// The state of the thread.
struct Follower {
    replication: Arc<Replication>,
    applier: Applier,
    /// Whether the last attempt established the link.
    has_stood: bool,
}

impl Follower {
    fn new(replication: Arc<Replication>) -> Follower {
        Follower { applier: Applier::new(&replication), replication, has_stood: false }
    }

    fn run(mut self) {
        let replication = self.replication.clone();
        let link = &replication.link;
        // Short links in a row, and how many of them made no progress.
        let (mut short, mut vain) = (0_u64, 0_u64);
        // Refusals in a row by a primary that does not know its role yet.
        let mut early = 0_u64;
        while let Some((target, generation)) = self.await_target() {
            replication.core.wait_for_sleep();
            let (began, full_syncs) = (Instant::now(), link.metrics.full_syncs.load(Relaxed));
            let offset = || replication.stream().offset();
            let before = offset();
            let Err(ended) = self.attempt(&target, generation);
            // A link that was up is tried again at once, unless it cost the primary a snapshot, or again and
            // again made no progress: the primary may accept it only to drop it.
            let was_full = link.metrics.full_syncs.load(Relaxed) != full_syncs;
            let was_short = began.elapsed() < PAUSE;
            (short, vain) = match (was_short, offset() == before) {
                (false, _) => (0, 0),
                (true, false) => (short + 1, 0),
                (true, true) => (short + 1, vain + 1),
            };
            let may_hurry = self.has_stood && !(was_full && was_short) && vain <= VAIN_MAX;
            let ended =
                link.reach(&replication, generation, Phase::Connect).map_or_else(|newer| newer, |()| ended);
            let may_hurry = may_hurry && !matches!(ended, Ended::Unfit(_));
            early = if matches!(ended, Ended::TooEarly(_)) { early + 1 } else { 0 };
            match ended {
                Ended::Superseded => continue,
                Ended::TooEarly(reason) => {
                    if early == 1 {
                        log::info!("{reason}");
                    }
                    self.pause(generation, if early <= EARLY_MAX { EARLY_DELAY } else { PAUSE });
                    continue;
                }
                Ended::Broken(reason) | Ended::Unfit(reason) => log::warn!("{}", reason),
                Ended::Refused(reason) => failover::refused(&replication, generation, &reason),
                Ended::Garbled(reason) => {
                    log::warn!("{reason}. A full resynchronization follows.");
                    self.forget_position(generation);
                }
            }
            if !may_hurry {
                self.pause(generation, PAUSE);
            } else if short > SHORT_MAX {
                self.pause(generation, RECONNECT_DELAY);
            }
        }
    }

    /// Waits for a target. `None`: the server ends.
    fn await_target(&self) -> Option<(Target, u64)> {
        let (link, failover) = (&self.replication.link, &self.replication.failover);
        let mut wanted = link.wanted.lock();
        loop {
            if self.replication.core.stopping.load(Acquire) {
                return None;
            }
            if let Wanted { target: Some(target), generation } = &*wanted
                && *generation == link.generation()
                && !target.is_nobody()
            {
                return Some((target.clone(), *generation));
            }
            let timeout =
                if failover.is_waiting() { failover::FAILOVER_POLL_INTERVAL } else { LINK_POLL_INTERVAL };
            link.changed.wait_for(&mut wanted, timeout);
            MutexGuard::unlocked(&mut wanted, || failover::look(&self.replication));
        }
    }

    fn pause(&self, generation: u64, len: Duration) {
        let (link, until) = (&self.replication.link, Instant::now() + len);
        let mut wanted = link.wanted.lock();
        while Instant::now() < until
            && link.generation() == generation
            && !self.replication.core.stopping.load(Acquire)
        {
            link.changed.wait_for(&mut wanted, LINK_POLL_INTERVAL.min(len));
        }
    }

    fn forget_position(&self, generation: u64) {
        let link = &self.replication.link;
        // For a newer generation, `change` has set the position.
        let _ = link.for_generation(generation, || link.set_position(false, 0));
    }

    /// Connects and follows, until the connection ends.
    fn attempt(&mut self, target: &Target, generation: u64) -> Result<Infallible, Ended> {
        let replication = self.replication.clone();
        let link = &replication.link;
        self.has_stood = false;
        log::info!("Connecting to PRIMARY {}:{}", target.host, target.port);
        link.reach(&replication, generation, Phase::Connecting)?;
        let mut conn = PrimaryConnection::connect(&replication, target, generation)?;
        log::info!("PRIMARY <-> REPLICA sync started");
        link.reach(&replication, generation, Phase::Handshake)?;
        // On a former primary, the last writes of its clients are still on their way into the stream.
        if !replication.wait_for_end_of_log(JOURNAL_TIMEOUT) {
            return Err(Ended::broken("The replication stream of the local writes is not complete yet"));
        }
        let (settings, position) = (replication.core.settings(), link.position(&replication));
        let is_asking = replication.failover.is_asking();
        let (answer, introduced) =
            handshake::introduce(&replication, &settings, &mut conn, position.as_ref(), is_asking)?;
        failover::succeeded(&replication, generation);
        match answer {
            Answer::Continue { id } => match position {
                Some(position) => self.continue_stream(&conn, position, id)?,
                None => {
                    return Err(Ended::broken(
                        "The master continues a replication stream that was not requested",
                    ));
                }
            },
            Answer::Full { id, offset } => {
                if let (Some(position), Some(Introduced { member, branch: Some(branch) })) =
                    (&position, &introduced)
                {
                    surplus::keep(&replication, position, branch, member);
                }
                replication.members.reset_data().map_err(Ended::Broken)?;
                self.take_over(&mut conn, generation, Some((id, offset)))?;
            }
            Answer::FullWithoutOffset => {
                replication.members.reset_data().map_err(Ended::Broken)?;
                self.take_over(&mut conn, generation, None)?;
            }
        }
        link.stand(&replication, &conn, generation)?;
        self.has_stood = true;
        let ended = self.follow(&mut conn, generation);
        if generation == link.generation() {
            link.strike_client(&replication);
        }
        ended
    }

    /// Continues the stream at its position.
    fn continue_stream(
        &mut self,
        conn: &PrimaryConnection,
        position: Position,
        id: Option<String>,
    ) -> Result<(), Ended> {
        let replication = &self.replication;
        let mut stream = replication.stream();
        conn.check()?; // under the lock under which a promoted server renames its stream
        if let Some(id) = id.filter(|id| *id != stream.history.id) {
            log::info!("Master replication ID changed to {id}");
            stream.rename(id);
        }
        drop(stream);
        replication.replica_inbox.nudge(); // our replicas must learn the name
        replication.link.metrics.partial_syncs.fetch_add(1, Relaxed);
        log::info!("Successful partial resynchronization with master.");
        self.applier.begin(conn.client.clone(), position.db);
        Ok(())
    }

    /// Replaces the data by a snapshot of the primary. `point`: the history's name and the offset of the
    /// snapshot.
    fn take_over(
        &mut self,
        conn: &mut PrimaryConnection,
        generation: u64,
        point: Option<(String, u64)>,
    ) -> Result<(), Ended> {
        let replication = self.replication.clone();
        replication.link.reach(&replication, generation, Phase::Transfer)?;
        let is_known = point.is_some();
        let (id, offset) = point.unwrap_or_else(|| (random_hex(), 0));
        let new = install::New { history: History::named(id), offset, generation, is_known };
        let db = install::run(&replication, &mut *self.applier.runner, conn, new)?;
        conn.begin_to_listen();
        replication.link.metrics.full_syncs.fetch_add(1, Relaxed);
        log::info!("PRIMARY <-> REPLICA sync: Finished with success");
        self.applier.begin(conn.client.clone(), db);
        Ok(())
    }

    /// Sends the primary the offset that has been run and the offset that is on disk. Returns both.
    fn acknowledge(&mut self, conn: &mut PrimaryConnection) -> Result<(u64, Option<u64>), Ended> {
        let offset = self.replication.stream().offset();
        self.applier.record_point(offset);
        let synced = self.applier.synced();
        let mut words = vec!["REPLCONF".to_owned(), "ACK".into(), offset.to_string()];
        if let Some(bytes) = synced {
            words.extend(["FACK".into(), bytes.to_string()]);
        }
        if let Some(number) = self.replication.members.incarnation() {
            words.extend(["CLUSTER-INCARNATION".into(), number.to_string()]);
            let is_always = self.replication.core.settings().appendfsync == Fsync::Always;
            if let Some(synced) = synced.filter(|_| is_always) {
                words.extend(["CLUSTER-KEPT".into(), synced.to_string()]);
            }
        }
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        conn.send_command(&words)?;
        Ok((offset, synced))
    }

    /// Whether the unread journal exceeds its limit.
    fn is_crowded(&self) -> bool {
        let (replication, aof) = (&self.replication, &self.replication.persist.aof);
        let limit = || replication.core.settings().appendonly_buffer_limit;
        aof.is_running()
            && (replication.core.blockers.any().contains(Blockers::CROWDED)
                || aof.unread(&replication.core.keyspace.journal) > limit())
    }

    /// Runs the stream.
    fn follow(&mut self, conn: &mut PrimaryConnection, generation: u64) -> Result<Infallible, Ended> {
        let replication = self.replication.clone();
        let is_member = replication.members.incarnation().is_some();
        let (mut next_ack, mut acked) = (Instant::now(), u64::MAX);
        // The last offset that the primary asked for and that has not been reported as on disk.
        let mut owed = None;
        let offset = replication.stream().offset();
        replication.link.metrics.read_offset.store(offset, Relaxed);
        loop {
            replication.core.wait_for_sleep();
            let is_asked = std::mem::take(&mut self.applier.is_asked);
            let is_synced = owed.is_some() && self.applier.synced() >= owed;
            let is_soon = is_member
                && Instant::now() + ACK_EVERY >= next_ack + ACK_EVERY_OF_MEMBER
                && replication.stream().offset() != acked;
            if is_asked || is_synced || is_soon || Instant::now() >= next_ack {
                next_ack = Instant::now() + if conn.is_predecessor { ACK_EVERY_SOON } else { ACK_EVERY };
                let (offset, synced) = self.acknowledge(conn)?;
                acked = offset;
                // If the disk takes longer than a second, the next acknowledgement reports it.
                owed = (is_asked && synced.is_some_and(|synced| synced < offset)).then_some(offset);
                replication.core.keyspace.tidy(self.applier.runner.ctx());
            }
            let timeout = next_ack.saturating_duration_since(Instant::now());
            let timeout = if owed.is_some() { timeout.min(SYNC_POLL_INTERVAL) } else { timeout };
            let timeout = if is_member { timeout.min(ACK_EVERY_OF_MEMBER) } else { timeout };
            // Bytes that the disk cannot take must not fill the memory: the primary keeps them, as for any
            // slow replica.
            let rests = link_rests(&replication.link);
            if rests || self.is_crowded() {
                conn.check()?;
                let timeout = if rests { REST_POLL_INTERVAL } else { timeout };
                std::thread::sleep(timeout.min(LINK_POLL_INTERVAL));
                continue;
            }
            let received = conn.receive_within(self.applier.room(ROOM), timeout);
            let got = received.as_ref().map_or(0, |got| got.unwrap_or(0));
            self.applier.received(got, ROOM);
            received?;
            if got > 0 {
                replication.link.metrics.read_offset.fetch_add(got as u64, Relaxed);
                self.applier.run(generation)?;
            }
        }
    }
}

/// Whether the thread is to read nothing for the time being. It has run all that it has read.
fn link_rests(link: &PrimaryLink) -> bool {
    let rests = link.rests.load(Acquire);
    if rests != link.is_at_rest.load(Relaxed) {
        link.is_at_rest.store(rests, Release);
    }
    rests
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Single;

    /// The link's thread may be blocked by a disk, while writes wait for the end of a failover.
    #[test]
    fn a_timed_out_failover_ends_without_the_link_thread() {
        let state = Single::new(&[]);
        let _busy = state.link.wanted.lock(); // it waits for this
        let plan = failover::Plan { target: None, until: Some(Instant::now()), force: false };
        state.with_all_held(|guard| failover::begin(&state, guard, plan));
        state.disk.wait_until("it is given up", || {
            failover::abort_late(&state);
            !state.failover.is_under_way()
        });
        assert!(!state.core.pause.is_active(clock::unix_ms()), "writes go on");
    }

    /// Line ends alone are no commands: they are dropped, and count as bytes of the stream.
    #[test]
    fn line_ends_of_a_primary_fill_no_memory() {
        let state = Single::new(&[]);
        let mut applier = Applier::new(&state);
        let generation = state.link.generation();
        state.stream().keep();
        let before = state.stream().offset();
        for sent in [&b"\n"[..], b"*0\r\n", b"\n\n*1\r\n$4\r\nPING\r\n\n"] {
            let bytes = sent.repeat(10_000);
            applier.room(bytes.len()).copy_from_slice(&bytes);
            applier.received(bytes.len(), bytes.len());
            assert!(applier.run(generation).is_ok());
            assert_eq!(applier.waiting(), 0);
        }
        let all = 10_000 * (1 + 4 + 17);
        assert_eq!(state.stream().offset() - before, all);
    }

    /// The last writes are on their way into the stream when the server is made a replica.
    #[test]
    fn a_new_replica_has_the_position_of_its_data() {
        let state = Single::new(&[]);
        state.stream().keep();
        state.with_all_held(|guard| state.follow_log(guard));
        state.replica_inbox.open(&state).expect("a thread more");
        for round in 0..20 {
            state.write();
            let target = Target { host: "127.0.0.1".into(), port: 1 };
            let (is_whole, position) = state.with_all_held(|guard| {
                change(&state, guard, Some(target));
                (!state.reading.is_any(), state.link.position(&state))
            });
            assert!(is_whole, "round {round}");
            let offset = position.expect("it is kept").offset;
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(state.stream().offset(), offset);
            state.with_all_held(|guard| change(&state, guard, None));
        }
    }
}
