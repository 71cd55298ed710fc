//! A session: the server's state of a client between two of its commands.
//!
//! Absent: sockets and buffers, which belong to the connection. A session can move to another worker with its
//! connection.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evenkeel_store::{SlotGuard, Watch};

use crate::clients::ClientInfo;
use crate::fieldsets::{Fieldset, Fieldsets};
use crate::hub::Hub;
use crate::lane_ticket::LaneTicket;
use crate::maintenance::Asked;
use crate::pubsub::{PubSub, Subscriptions};
use crate::replica_hello::ReplicaHello;
use crate::tracking::mode;
use crate::waiting::Waiting;
use evenkeel_acl::{Access, Acl};
use evenkeel_command::args::OwnedArgs;
use evenkeel_command::{Flags, Id};
use evenkeel_config::WriteAcks;

/// See the module's text.
pub struct Session {
    pub db: u32,
    /// The client's entry in the registry, shared with the threads that list or kill clients.
    pub client: Arc<ClientInfo>,
    pub access: Access,
    /// It has authenticated at some time, or did not have to.
    pub was_known: bool,
    pub multi: Option<Multi>,
    pub watching: Option<Watching>,
    /// Ended watches that are still in slots which could not be locked; see [`Session::unwatch`].
    pub left_watches: Option<Watching>,
    /// Set while its last command waits.
    pub waiting: Option<Box<Waiting>>,
    /// Its next command has waited already, in another process: the milliseconds that are left, if its wait
    /// has an end.
    pub resumes_wait: Option<Option<u64>>,
    /// Number of the last journal record that its commands made, zero before the first; the batch now running
    /// adds its own at its end. Until that record is on disk, replies may have to wait.
    pub last_record: u64,
    /// CLIENT WRITE-ACKS: what its replies wait for, beside what all replies wait for.
    pub write_acks: WriteAcks,
    /// There may be push messages for it to look at after its command.
    pub receives_push: bool,
    pub subscriptions: Option<Box<Subscriptions>>,
    /// HIMPORT PREPARE; changed by [`Session::put_fieldsets`] alone.
    pub fieldsets: Option<Box<Fieldsets>>,
    /// CLIENT TRACKING is on in a mode that records the client's reads.
    pub tracks: bool,
    pub caching: Caching,
    /// ASKING, which holds for the next command, or for the whole next transaction.
    pub asking: Caching,
    /// MONITOR.
    pub monitors: bool,
    pub reply_mode: ReplyMode,
    pub no_touch: bool,
    /// CLIENT IMPORT-SOURCE: no key has expired for it, while the server is in import mode.
    pub imports: bool,
    /// CLIENT CAPA REDIRECT.
    pub redirects: bool,
    /// CLIENT MAINT_NOTIFICATIONS.
    pub is_notified: bool,
    /// Its announcement (REPLCONF) of the replica that it is to become.
    pub replica_hello: Option<Box<ReplicaHello>>,
    /// It is to become a lane that brings slots here.
    pub lane: Option<Box<LaneTicket>>,
    /// It replays the journal while data are loaded: these writes have happened, and nothing may refuse them.
    pub replays: bool,
    /// It applies the primary's stream, over the link of this generation.
    pub link: Option<u64>,
    /// The connection is closed once the reply is sent.
    pub closing: bool,
    /// Accepted beyond `maxclients`, in case the client is an operator.
    pub on_probation: bool,
}

/// CLIENT CACHING, or ASKING, which holds for the next command, or for the whole next transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    Unsaid,
    /// Set by the current command.
    Said,
    Holds,
}

impl Caching {
    /// The state after a command.
    fn next(self, is_in_multi: bool) -> Caching {
        match self {
            Caching::Said => Caching::Holds,
            Caching::Holds if is_in_multi => Caching::Holds,
            _ => Caching::Unsaid,
        }
    }
}

/// CLIENT REPLY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyMode {
    On,
    Off,
    /// The next command's reply is dropped.
    SkipNext,
    /// This command's reply is dropped.
    SkipThis,
}

/// Commands queued since MULTI.
#[derive(Default)]
pub struct Multi {
    pub queue: Vec<Queued>,
    /// A command could not be queued: EXEC will be refused.
    pub failed: bool,
    /// The database that the queued commands have selected for the commands behind them.
    pub selected: Option<u32>,
    /// Bytes of the queue, which `client-query-buffer-limit` bounds together with all other input that has
    /// not run.
    pub memory: usize,
}

pub struct Queued {
    pub id: Id,
    /// The flags of this call, which differ from those of the command if a script declares its own.
    pub flags: Flags,
    pub args: OwnedArgs,
}

/// Keys under WATCH.
pub struct Watching {
    pub watch: Arc<Watch>,
    /// Database and key.
    pub keys: Vec<(u32, Box<[u8]>)>,
}

impl Watching {
    /// Takes the watches out of their slots. `guard` holds no slots, all slots, or the slots of the watched
    /// keys.
    pub fn end(self, guard: &mut SlotGuard<'_>) {
        for (db, key) in &self.keys {
            let key = guard.keyspace().key(*db, key);
            if guard.holds(key.place) {
                guard.unwatch(&key, &self.watch);
            } else {
                guard.visit(key.place, |guard| guard.unwatch(&key, &self.watch));
            }
        }
    }
}

impl Multi {
    /// Queues a command of this client.
    pub fn push(&mut self, (id, flags): (Id, Flags), args: OwnedArgs, client: &ClientInfo) {
        self.memory += args.memory() + size_of::<Queued>();
        self.queue.push(Queued { id, flags, args });
        client.multi_len.store(self.queue.len() as i32, Relaxed);
        client.multi_memory.store(self.memory, Relaxed);
    }
}

impl Session {
    pub fn new(client: Arc<ClientInfo>, access: Access) -> Session {
        Session {
            db: 0,
            client,
            was_known: access.is_authenticated(),
            access,
            multi: None,
            watching: None,
            left_watches: None,
            waiting: None,
            resumes_wait: None,
            last_record: 0,
            write_acks: WriteAcks::default(),
            receives_push: false,
            subscriptions: None,
            fieldsets: None,
            tracks: false,
            caching: Caching::Unsaid,
            asking: Caching::Unsaid,
            monitors: false,
            reply_mode: ReplyMode::On,
            no_touch: false,
            imports: false,
            redirects: false,
            is_notified: false,
            replica_hello: None,
            lane: None,
            replays: false,
            link: None,
            closing: false,
            on_probation: false,
        }
    }

    /// Returns the session of a new connection: it is the default user.
    pub fn of_new_connection(client: Arc<ClientInfo>, acl: &Acl) -> Session {
        let access = Access::of_new_connection(acl);
        *client.user.lock() = access.who().cloned();
        Session::new(client, access)
    }

    /// Goes on as another user.
    pub fn become_user(&mut self, access: Access) {
        *self.client.user.lock() = access.who().cloned();
        self.was_known |= access.is_authenticated();
        self.access = access;
    }

    /// Whether the client is unauthenticated although it has to authenticate.
    pub fn is_unauthenticated(&self, acl: &Acl) -> bool {
        !self.was_known && self.access.lacks_auth(acl)
    }

    /// Whether the client is notified of changes to keys that it has read, or might read.
    pub fn is_tracking(&self) -> bool {
        self.client.tracked.has(mode::ON)
    }

    /// Returns the fieldset of this name.
    pub fn fieldset(&self, name: &[u8]) -> Option<&Fieldset> {
        self.fieldsets.as_ref()?.find(name)
    }

    /// Changes the fieldsets with `change`, and returns its result.
    pub fn change_fieldsets<R>(&mut self, change: impl FnOnce(&mut Fieldsets) -> R) -> R {
        let mut fieldsets = self.take_fieldsets().unwrap_or_default();
        let result = change(&mut fieldsets);
        self.put_fieldsets(Some(fieldsets).filter(|fieldsets| !fieldsets.is_empty()));
        result
    }

    /// Takes all fieldsets away.
    pub fn take_fieldsets(&mut self) -> Option<Box<Fieldsets>> {
        self.fieldsets.take()
    }

    /// Replaces all fieldsets.
    pub fn put_fieldsets(&mut self, fieldsets: Option<Box<Fieldsets>>) {
        let memory = fieldsets.as_ref().map_or(0, |fieldsets| fieldsets.memory());
        self.client.names.fieldsets.store(memory, Relaxed);
        self.fieldsets = fieldsets;
    }

    pub fn select(&mut self, db: u32) {
        self.db = db;
        self.client.db.store(db, Relaxed);
    }

    /// Ends all watches. `guard` holds no slots, all slots, or the slots of the watched keys. If the context
    /// is outside the gate, which a script keeps closed, the watches are left to be ended later.
    pub fn unwatch(&mut self, guard: &mut SlotGuard<'_>) {
        let Some(watching) = self.watching.take() else { return };
        self.client.watched.store(0, Relaxed);
        self.client.names.watched.store(0, Relaxed);
        if guard.ctx.is_inside() {
            watching.end(guard);
        } else {
            self.left_watches = Some(watching);
        }
    }

    /// Whether it may only subscribe and unsubscribe: in RESP2, a subscriber cannot tell messages from
    /// replies.
    pub fn is_restricted(&self) -> bool {
        self.subscriptions.is_some() && !self.client.is_resp3()
    }

    /// Ends all subscriptions without a message to the client.
    pub fn unsubscribe(&mut self, pubsub: &PubSub) {
        if let Some(mut subscriptions) = self.subscriptions.take() {
            subscriptions.end(pubsub, &self.client);
        }
    }

    /// Ends tracking.
    pub fn end_tracking(&mut self, hub: &Hub) {
        hub.end_tracking(&self.client);
        (self.tracks, self.caching) = (false, Caching::Unsaid);
    }

    /// For the commands that query CLIENT CACHING: makes it hold for the command after them.
    pub fn keep_caching(&mut self) {
        if self.caching == Caching::Holds {
            self.caching = Caching::Said;
        }
    }

    /// Ends all sources of push messages: for RESET, and at the end of the session.
    pub fn end_push(&mut self, hub: &Hub) {
        self.unsubscribe(&hub.pubsub);
        if self.is_tracking() {
            self.end_tracking(hub);
        }
        if std::mem::take(&mut self.monitors) {
            hub.monitors.remove(&self.client);
        }
        self.ask_about_maintenance(Asked::Nothing);
    }

    /// Sets which messages about maintenance the client gets.
    pub fn ask_about_maintenance(&mut self, asked: Asked) {
        self.client.maintenance.store(asked as u8, Relaxed);
        self.is_notified = asked != Asked::Nothing;
        if !self.is_notified {
            self.client.is_moved.store(false, Relaxed);
        }
        self.receives_push |= self.is_notified;
    }

    /// Updates the state after a command was run or queued: whether push messages may come, and which command
    /// CLIENT CACHING holds for.
    pub fn after_command(&mut self) {
        if self.caching != Caching::Unsaid || self.asking != Caching::Unsaid {
            let is_in_multi = self.multi.is_some();
            (self.caching, self.asking) = (self.caching.next(is_in_multi), self.asking.next(is_in_multi));
        }
        self.receives_push = self.subscriptions.is_some()
            || self.monitors
            || self.is_notified
            || self.asking != Caching::Unsaid
            || self.is_tracking();
        self.resumes_wait = None;
    }

    /// Leaves MULTI, if in it.
    pub fn discard(&mut self) -> Option<Multi> {
        let multi = self.multi.take();
        self.client.multi_len.store(-1, Relaxed);
        self.client.multi_memory.store(0, Relaxed);
        multi
    }
}
