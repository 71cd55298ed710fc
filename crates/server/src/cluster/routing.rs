//! Whether this node serves a command, or which error the client gets instead.
//!
//! A command on a single key in a slot that this node serves never gets here (`Executor::admit`). A slot
//! that is being moved key by key cannot be judged before its keys are locked: [`Route::IfPresent`]. A key
//! could otherwise leave between the look and the command, which would then create it again at its old place.

use std::sync::atomic::Ordering::Relaxed;

use evenkeel_client::session::{Caching, Session};
use evenkeel_cluster::NodeId;
use evenkeel_command::error::Error;
use evenkeel_command::table::table;
use evenkeel_command::{Args, Flags, LockScope, Spec};
use evenkeel_config::Settings;
use evenkeel_store::key::slot_of;
use evenkeel_store::{Key, SlotGuard};

use super::endpoint::{Endpoint, Viewpoint};
use super::view::{ClusterView, SlotState};

/// Where a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Here.
    Here,
    /// Here, if the keys of its slot are here when they are locked: see [`judge_present`].
    IfPresent(u16),
    /// Nowhere yet: a move of its slot is about to end.
    Later,
}

/// What decides about a command, beside its keys.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'a> {
    pub(crate) view: &'a ClusterView,
    pub(crate) settings: &'a Settings,
    pub(crate) session: &'a Session,
    /// The node may not serve: see `fence.rs`.
    pub(crate) is_fenced: bool,
    /// Writers of leaving slots wait: a target of a move is to catch up with them.
    pub(crate) holds_writers: bool,
}

/// The commands on channels that have a slot.
const ON_SHARD_CHANNELS: [&str; 3] = ["SPUBLISH", "SSUBSCRIBE", "SUNSUBSCRIBE"];

/// The cursor of CLUSTERSCAN names a slot by its tag.
const SCAN: &str = "CLUSTERSCAN";

/// Whether a command concerns shard channels.
pub(crate) fn is_on_shard_channels(row: &Spec) -> bool {
    row.flags.has(Flags::PUBSUB) && ON_SHARD_CHANNELS.contains(&row.name)
}

/// Whether a command has no slot whatever its arguments are.
pub(crate) fn has_no_slot(row: &Spec) -> bool {
    row.keys.is_none()
        && !matches!(row.lock_scope, LockScope::Queue)
        && !is_on_shard_channels(row)
        && row.name != SCAN
}

/// The slots of a command's keys, or channels.
#[derive(Default)]
struct Slots {
    first: Option<u16>,
    /// The first slot that differs from `first`, and all slots from there on.
    others: Vec<u16>,
    on_channels: bool,
    on_keys: bool,
}

impl Slots {
    fn add(&mut self, slot: u16) {
        match self.first {
            None => self.first = Some(slot),
            Some(first) if first == slot => {}
            Some(_) => self.others.push(slot),
        }
    }

    fn add_call(&mut self, row: &Spec, args: &Args<'_>, db: u32) {
        if is_on_shard_channels(row) {
            self.on_channels = true;
            let count = if row.name == "SPUBLISH" { 1 } else { usize::MAX };
            args.from(1).take(count).for_each(|channel| self.add(slot_of(channel)));
        } else if row.name == SCAN {
            self.on_keys = true;
            self.add(slot_of(args.at(1)));
        } else {
            // Commands on several databases are refused by their handlers if a number is wrong.
            row.keys.for_each(args, db, u32::MAX, |index, _| {
                self.on_keys = true;
                self.add(slot_of(args.at(index)));
            });
        }
    }

    fn of(row: &Spec, args: &Args<'_>, session: &Session) -> Slots {
        let mut slots = Slots::default();
        slots.add_call(row, args, session.db);
        if matches!(row.lock_scope, LockScope::Queue) {
            for queued in session.multi.iter().flat_map(|multi| &multi.queue) {
                slots.add_call(table().row(queued.id), &queued.args.as_args(), session.db);
            }
        }
        slots
    }
}

pub(crate) fn cross_slot() -> Error {
    Error::text("CROSSSLOT Keys in request don't hash to the same slot")
}

fn unserved() -> Error {
    Error::text("CLUSTERDOWN Hash slot not served")
}

pub(crate) fn down() -> Error {
    Error::text("CLUSTERDOWN The cluster is down")
}

pub(super) fn try_again() -> Error {
    Error::text("TRYAGAIN Multiple keys request during rehashing of slot")
}

impl Asker<'_> {
    /// Decides about a command that may have a slot. `writes`: it may write; for EXEC, a queued command may.
    ///
    /// # Errors
    /// The error for the client.
    pub(crate) fn route(&self, row: &Spec, args: &Args<'_>, writes: bool) -> Result<Route, Error> {
        let slots = Slots::of(row, args, self.session);
        let Some(slot) = slots.first else {
            let is_refused = self.is_fenced && self.view.is_primary && writes;
            return if is_refused { Err(down()) } else { Ok(Route::Here) };
        };
        if self.view.map.owner(slot).is_none() {
            return Err(unserved());
        }
        if !slots.others.is_empty() && !self.may_cross(slot, &slots.others)? {
            return Err(cross_slot());
        }
        if !self.view.is_up {
            self.while_down(slots.on_channels, writes)?;
        }
        // A replica serves the channels of its shard, too.
        let on_channels_alone = slots.on_channels && !slots.on_keys;
        if on_channels_alone && self.view.state(slot) == SlotState::Migrating {
            return Ok(Route::Here);
        }
        let is_queued = self.session.multi.is_some() && !matches!(row.lock_scope, LockScope::Queue);
        let all = std::iter::once(slot).chain(slots.others);
        let mut route = Route::Here;
        for slot in all {
            if on_channels_alone && !self.view.is_primary && self.view.state(slot) == SlotState::Own {
                continue;
            }
            match (self.route_slot(slot, row, writes)?, route) {
                (Route::Here, _) => {}
                (Route::Later, _) => return Ok(Route::Later),
                (found, Route::Here) => route = found,
                (found, _) if found == route => {}
                _ => return Err(try_again()), // two slots are on the move
            }
        }
        // A queued command is judged again when EXEC runs it.
        Ok(if is_queued { Route::Here } else { route })
    }

    /// Whether a command may use several slots at once: all of them are here, and the setting allows it.
    fn may_cross(&self, first: u16, others: &[u16]) -> Result<bool, Error> {
        if !self.settings.cluster_allow_cross_slot {
            return Ok(false);
        }
        if others.iter().any(|slot| self.view.state(*slot) == SlotState::Unowned) {
            return Err(unserved());
        }
        // All slots of a single other node: its client is sent there.
        let owner = self.view.primary_of(first);
        Ok(others.iter().all(|slot| self.view.primary_of(*slot) == owner))
    }

    fn while_down(&self, on_channels: bool, writes: bool) -> Result<(), Error> {
        match (on_channels, writes) {
            (true, _) if self.settings.cluster_allow_pubsubshard_when_down => Ok(()),
            (true, _) => Err(down()),
            (false, _) if !self.settings.cluster_allow_reads_when_down => Err(down()),
            (false, true) => {
                Err(Error::text("CLUSTERDOWN The cluster is down and only accepts read commands"))
            }
            (false, false) => Ok(()),
        }
    }

    /// Decides about a command on a single slot that has an owner.
    fn route_slot(&self, slot: u16, row: &Spec, writes: bool) -> Result<Route, Error> {
        let view = self.view;
        let asks = self.session.asking == Caching::Holds || row.flags.has(Flags::ASKING);
        let route = match view.state(slot) {
            SlotState::Migrating | SlotState::Importing if row.name == "MIGRATE" => Route::Here,
            // The key would be in two databases, of which each may be here or at the other node.
            SlotState::Migrating | SlotState::Importing if row.name == "MOVE" && view.is_primary => {
                return Err(try_again());
            }
            SlotState::Own if view.is_primary => Route::Here,
            SlotState::Migrating if view.is_primary => Route::IfPresent(slot),
            SlotState::Importing if asks && view.is_primary => Route::IfPresent(slot),
            SlotState::Own if self.reads_replica() && !writes => Route::Here,
            // The primary has failed, and no replica may take its place.
            SlotState::Unowned if view.is_of_own_shard(slot) => match () {
                () if view.is_primary => return Err(down()),
                () if self.reads_replica() && !writes => Route::Here,
                () => return Err(self.redirect("MOVED", slot, view.primary_of(slot))),
            },
            SlotState::Migrating if self.reads_replica() && !writes => Route::IfPresent(slot),
            SlotState::Importing if asks && self.reads_replica() && !writes => Route::IfPresent(slot),
            _ => return Err(self.redirect("MOVED", slot, view.primary_of(slot))),
        };
        if self.is_fenced && view.is_primary {
            self.while_down(is_on_shard_channels(row), writes)?;
        }
        match () {
            () if view.closed.contains(slot) => Err(try_again()),
            () if view.paused.contains(slot) => Ok(Route::Later),
            () if self.holds_writers && writes && view.leaves(slot) => Ok(Route::Later),
            () => Ok(route),
        }
    }

    /// READONLY: the client reads from a replica on purpose.
    fn reads_replica(&self) -> bool {
        self.session.client.reads_replica.load(Relaxed)
    }

    /// Decides about a command whose slot is being moved, with its keys locked.
    ///
    /// # Errors
    /// The error for the client.
    pub(crate) fn judge_present(
        &self,
        slot: u16,
        keys: &[Key<'_>],
        guard: &mut SlotGuard<'_>,
    ) -> Result<(), Error> {
        let of_slot = || keys.iter().filter(|key| key.place.slot() == usize::from(slot));
        let missing = of_slot().filter(|key| guard.peek(key).is_none()).count();
        let (all, first) = (of_slot().count(), of_slot().next());
        let differ = keys.iter().any(|key| Some(key.bytes) != first.map(|first| first.bytes));
        let has_others = keys.iter().any(|key| key.place.slot() != usize::from(slot));
        match self.view.state(slot) {
            _ if missing == 0 => Ok(()),
            SlotState::Importing if differ => Err(try_again()),
            SlotState::Migrating if missing < all || has_others => Err(try_again()),
            SlotState::Migrating => Err(self.redirect("ASK", slot, self.view.partner(slot))),
            _ => Ok(()),
        }
    }

    /// Decides about a command of a script, whose keys are locked. Returns its slot.
    ///
    /// # Errors
    /// The error for the script.
    pub(crate) fn judge_in_script(
        &self,
        (row, args): (&Spec, &Args<'_>),
        keys: &[Key<'_>],
        guard: &mut SlotGuard<'_>,
    ) -> Result<Option<u16>, Error> {
        const NOT_HERE: &str = "ERR Attempted to access a non local key in a cluster node";
        let judged = match self.route(row, args, row.flags.has(Flags::WRITE)) {
            Ok(Route::Here) => Ok(()),
            Ok(Route::IfPresent(slot)) => self.judge_present(slot, keys, guard),
            Ok(Route::Later) => Err(try_again()),
            Err(error) => Err(error),
        };
        match judged {
            Ok(()) => Ok(Slots::of(row, args, self.session).first),
            Err(error) if error == down() => {
                let name = row.lower_name();
                Err(Error::text(format!("ERR Can not execute a command '{name}' while the cluster is down")))
            }
            Err(_) => Err(Error::text(NOT_HERE)),
        }
    }

    fn redirect(&self, word: &str, slot: u16, to: Option<NodeId>) -> Error {
        redirect(word, slot, to, self.view, (self.settings, &Viewpoint::of(&self.session.client)))
    }
}

/// Returns the error that sends a client to another node.
pub(crate) fn redirect(
    word: &str,
    slot: u16,
    to: Option<NodeId>,
    view: &ClusterView,
    (settings, from): (&Settings, &Viewpoint),
) -> Error {
    let Some(endpoint) = to.and_then(|id| Endpoint::of(view, id, from)) else { return unserved() };
    let host = endpoint.preferred(settings.cluster_preferred_endpoint_type).unwrap_or("");
    Error::text(format!("{word} {slot} {host}:{}", endpoint.port))
}
