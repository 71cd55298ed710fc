//! Pauses of commands: who wants one, for how long, and for which commands. This module knows times only;
//! which commands wait is decided by admission (`server/src/executor/admission.rs`).

use std::sync::atomic::{AtomicU64, Ordering::*};

use parking_lot::Mutex;

/// Reasons for a pause. Each has a pause of its own, which the other reasons do not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pauser {
    /// CLIENT PAUSE.
    Client,
    /// FAILOVER, until the roles have changed.
    Failover,
    /// Shutdown of the server.
    End,
    /// DEBUG RELOAD.
    Reload,
    /// The hand-over of all clients to another process.
    Upgrade,
    /// A planned change of the primary of a shard.
    Cluster,
}

impl Pauser {
    const ALL: [Pauser; 6] =
        [Pauser::Client, Pauser::Failover, Pauser::End, Pauser::Reload, Pauser::Upgrade, Pauser::Cluster];

    /// Returns the name in INFO, which is Valkey's if Valkey has the reason.
    fn name(self) -> &'static str {
        match self {
            Pauser::Client => "client_pause",
            Pauser::Failover | Pauser::Cluster => "failover_in_progress",
            Pauser::End => "shutdown_in_progress",
            Pauser::Reload => "reload_in_progress",
            Pauser::Upgrade => "upgrade_in_progress",
        }
    }
}

/// Pauses of commands.
#[derive(Default)]
pub struct Pause {
    /// End of the pause of writing commands, in milliseconds since the Unix epoch; zero: none.
    until_ms: AtomicU64,
    /// End of the pause of all commands.
    all_until_ms: AtomicU64,
    /// Whether all commands are paused, and the end, for each [`Pauser`].
    wanted: Mutex<[(bool, u64); Pauser::ALL.len()]>,
}

impl Pause {
    /// Whether a pause may hold: a cheap test, before the time and the command are looked at.
    #[inline]
    pub fn may_be_active(&self) -> bool {
        self.until_ms.load(Relaxed) != 0
    }

    /// Pauses until `until_ms`. Of two pauses for the same reason the stricter mode and the later end hold.
    pub fn begin(&self, by: Pauser, all: bool, until_ms: u64, now_ms: u64) {
        let mut wanted = self.wanted.lock();
        let one = &mut wanted[by as usize];
        let before = if now_ms < one.1 { *one } else { (false, 0) };
        *one = (before.0 || all, before.1.max(until_ms));
        self.follow(&*wanted);
    }

    pub fn end(&self, by: Pauser) {
        let mut wanted = self.wanted.lock();
        wanted[by as usize] = (false, 0);
        self.follow(&*wanted);
    }

    fn follow(&self, wanted: &[(bool, u64)]) {
        let last =
            |ends: &mut dyn Iterator<Item = &(bool, u64)>| ends.map(|(_, end)| *end).max().unwrap_or(0);
        self.all_until_ms.store(last(&mut wanted.iter().filter(|(all, _)| *all)), Release);
        self.until_ms.store(last(&mut wanted.iter()), Release);
    }

    /// The pause for this reason: whether all commands wait, and the end in milliseconds since the Unix
    /// epoch.
    pub fn of(&self, by: Pauser, now_ms: u64) -> Option<(bool, u64)> {
        let one = self.wanted.lock()[by as usize];
        (now_ms < one.1).then_some(one)
    }

    /// Whether any pause holds: meanwhile expired keys stay and nothing is evicted.
    #[inline]
    pub fn is_active(&self, now_ms: u64) -> bool {
        now_ms < self.until_ms.load(Acquire)
    }

    /// Whether all commands have to wait.
    pub fn is_of_all(&self, now_ms: u64) -> bool {
        now_ms < self.all_until_ms.load(Acquire)
    }

    /// Whether DEBUG RELOAD is replacing all data, which no other thread may change meanwhile.
    pub fn is_to_reload(&self) -> bool {
        self.all_until_ms.load(Acquire) != 0 && self.wanted.lock()[Pauser::Reload as usize].0
    }

    /// Returns when the pause ends, or fewer commands have to wait, in milliseconds since the Unix epoch.
    pub fn until_ms(&self, now_ms: u64) -> u64 {
        if self.is_of_all(now_ms) { self.all_until_ms.load(Acquire) } else { self.until_ms.load(Acquire) }
    }

    /// Returns the reason for INFO: the pause that lasts longest.
    pub fn reason(&self, now_ms: u64) -> &'static str {
        let wanted = self.wanted.lock();
        let end = |pauser: &Pauser| wanted[*pauser as usize].1;
        let holding = Pauser::ALL.into_iter().filter(|pauser| now_ms < end(pauser));
        holding.max_by_key(end).map_or("none", Pauser::name)
    }

    /// Returns the paused commands, for INFO: `none`, `write` or `all`.
    pub fn name(&self, now_ms: u64) -> &'static str {
        match (self.is_active(now_ms), self.is_of_all(now_ms)) {
            (false, _) => "none",
            (true, false) => "write",
            (true, true) => "all",
        }
    }
}
