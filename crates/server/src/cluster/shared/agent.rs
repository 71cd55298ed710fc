//! The thread `cluster`: events of the store and of the server go to the decider, whose actions are carried
//! out in their order.
//!
//! **The fence rises only under the right map.** Workers run under the map that was published last. When the
//! node becomes the primary in a new epoch, slots may have moved while it was not: it serves from the time at
//! which the map of that epoch, or a later one, is in force. Within an epoch, slots leave only when the node
//! itself has closed them (`operator.rs`), or without keys.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use evenkeel_cluster::store::{Request, StoreEvent, boot_clock};
use evenkeel_cluster::{
    Action, Address, Decider, Event, FailoverMode, Operation, Setup, Snapshot, Timing, plan,
};
use evenkeel_runtime::threads;

use super::super::fence::Fence;
use super::super::identity::Identity;
use super::data_path::{self, DataPath, Role, Stance};
use super::relay::Relay;
use super::{Agent, Closed, Message, NOT_OF_THE_DECIDER, State, connect, publisher};
use crate::server::Server;
use crate::startup::VERSION;

/// The longest wait for the end of the lease at the end of the process.
const END_MAX: Duration = Duration::from_millis(500);

/// Poll interval while the decider waits for the stream to have a part of the journal.
const LOG_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Milliseconds between two attempts to learn this node's address.
const LOOK_INTERVAL: u64 = 1_000;

/// Starts the threads of a node with a store.
///
/// # Errors
/// The reason why the settings cannot be used, or why a thread does not start.
pub(in crate::cluster) fn start(server: &Arc<Server>, identity: Identity) -> Result<(), String> {
    let cluster = server.cluster.as_ref().ok_or("cluster mode is off")?;
    let settings = server.core.settings();
    let (messages, receiver) = channel();
    let sink = messages.clone();
    let new_cluster = evenkeel_cluster::NodeId::new(super::super::random_id()).to_string();
    let config = connect::config(&settings, &identity.cluster, new_cluster)?;
    let ttl = config.ttl;
    let store = connect::connect(config, Box::new(move |event| _ = sink.send(Message::Store(event))))?;
    let agent = Arc::new(Agent {
        me: identity.me,
        store: Box::new(store),
        messages,
        state: State {
            snapshot: Arc::default(),
            closed: Closed::default(),
            stance: Stance::default(),
            stance_version: 0,
            published: (0, 0),
            stands: 0,
            address: None,
            health: "connecting".into(),
            last_number: 0,
            answers: Default::default(),
            has_ended: false,
            moves: Default::default(),
        }
        .into(),
        changed: Default::default(),
    });
    let _ = cluster.agent.set(agent.clone());
    let data_path = DataPath { server: Arc::downgrade(server), agent: agent.clone() };
    let (me, incarnation) = (identity.me.to_string(), identity.incarnation);
    server.replication.members.enter(me, incarnation, Arc::new(data_path));
    server.hub.pubsub.relay_by(Box::new(Relay::new(server)));
    let failed = |error: std::io::Error| format!("Cannot start a thread of the cluster: {error}");
    let (on_thread, publishing, own) = (server.clone(), agent.clone(), identity.clone());
    let map = threads::named("cluster-map").spawn(move || publisher::run(&on_thread, &publishing, &own));
    map.map_err(failed)?;
    let server = server.clone();
    let thread =
        threads::named("cluster").spawn(move || Run::new(server, agent, identity, ttl).run(&receiver));
    thread.map(drop).map_err(failed)
}

/// The state of the thread.
struct Run {
    server: Arc<Server>,
    agent: Arc<Agent>,
    identity: Identity,
    timing: Timing,
    decider: Option<Decider>,
    /// The address from which packets go to the store.
    local_ip: Option<String>,
    /// What the decider said last of the time until which the node may serve.
    until: u64,
    /// The revision of the view that gave the node its role.
    role_since: u64,
    published: u64,
    /// The version of the stance that came with the epoch, and the version in force.
    leads_with: u64,
    stands: u64,
    /// Writes have stopped with the stance of this version, and the decider does not know yet.
    stops_with: Option<u64>,
    /// The required set, with the numbers of its data.
    set: BTreeMap<String, u64>,
    /// The number of the set that the decider has not seen in force, and the last record before it, once
    /// replication has it.
    counts: Option<(u64, Option<u64>)>,
    is_paused: bool,
    /// A former primary waits for the new one until then.
    paused_until: u64,
    registration: Registration,
    next_settling: u64,
    next_look: u64,
    /// A thread removes keys that a move has left.
    is_clearing: Arc<AtomicBool>,
}

/// The node's entry in the map.
#[derive(Default)]
struct Registration {
    /// The map has had the node.
    is_known: bool,
    is_forgotten: bool,
    next_try: u64,
}

impl Run {
    fn new(server: Arc<Server>, agent: Arc<Agent>, identity: Identity, ttl: u64) -> Run {
        Run {
            server,
            agent,
            identity,
            timing: Timing::of_lease(ttl),
            decider: None,
            local_ip: None,
            until: 0,
            role_since: 0,
            published: 0,
            leads_with: 0,
            stands: 0,
            stops_with: None,
            set: BTreeMap::new(),
            counts: None,
            is_paused: false,
            paused_until: 0,
            registration: Registration::default(),
            next_settling: 0,
            next_look: 0,
            is_clearing: Arc::default(),
        }
    }

    fn run(mut self, messages: &Receiver<Message>) {
        let pause = Duration::from_millis((self.timing.ttl / 60).clamp(10, 50));
        loop {
            self.learn_address();
            let is_waiting = self.stops_with.is_some() || self.counts.is_some() || self.is_paused;
            match messages.recv_timeout(if is_waiting { LOG_POLL_INTERVAL } else { pause }) {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => self.decide(Event::Tick { offset: self.offset() }),
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.look_at_log();
            self.end_pause();
            self.register();
            self.settle();
            self.agent.clear_leftover(&self.server, &self.is_clearing);
        }
    }

    fn fence(&self) -> Option<&Fence> {
        self.server.cluster.as_ref().map(|cluster| &cluster.fence)
    }

    fn offset(&self) -> u64 {
        self.server.replication.stream().offset()
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Store(StoreEvent::Answered { number, outcome }) if number > NOT_OF_THE_DECIDER => {
                self.agent.answered(number, outcome);
            }
            Message::Store(event) => match event.into_event() {
                Ok(Event::View(view)) => self.see(view),
                Ok(event) => self.decide(event),
                Err(news) => self.hear(news),
            },
            Message::Decider(event) => self.decide(event),
            Message::Published(revision, stands) => {
                (self.published, self.stands) = (revision, stands);
                self.move_fence();
                self.end_pause();
                self.require();
                self.agent.close_copies(&self.server);
            }
            Message::Move(id, epoch, news) => {
                let event = self.agent.take_news(&self.server, id, news);
                self.decide(Event::Move { id, epoch, event });
            }
            Message::DataReset { incarnation, done } => {
                self.identity.incarnation = incarnation;
                self.decide(Event::DataReset { incarnation });
                let _ = done.send(()); // the replica may have given up
            }
            Message::Stay => {
                self.decider = None; // the next one has another lease
                self.agent.change(|state| state.has_ended = false);
            }
        }
    }

    /// Sends the decider the event that it waits for, once the stream has enough of the journal.
    fn look_at_log(&mut self) {
        let replication = self.server.replication.clone();
        if let Some((number, Some(record))) = self.counts
            && let Some(offset) = replication.offset_behind(record)
        {
            self.counts = None;
            self.decide(Event::Counting { number, offset });
        }
        if self.stops_with.is_some_and(|version| self.stands >= version)
            && let Some(offset) = replication.rests_at()
        {
            self.stops_with = None;
            self.decide(Event::Stopped { offset });
        }
    }

    /// Passes a new required set on, if the epoch that it belongs to is in force.
    fn require(&mut self) {
        if let Some((_, record @ None)) = &mut self.counts
            && self.stands >= self.leads_with
        {
            *record = Some(self.server.replication.require(self.set.clone()));
        }
    }

    /// Lets commands go on when writes do not stop any more, and the role and its map are in force.
    fn end_pause(&mut self) {
        let is_settled = {
            let state = self.agent.state.lock();
            !state.stance.stops_writes && state.stands == state.stance_version
        };
        // The clients of a former primary go to the new one, which has to be ready.
        let (now, replication) = (boot_clock(), &self.server.replication);
        let is_ready = match replication.is_replica() {
            true => replication.link.is_up() || now >= self.paused_until,
            false => now < self.until,
        };
        if self.is_paused && is_settled && is_ready && self.published >= self.role_since {
            self.is_paused = false;
            data_path::go_on(&self.server);
        }
    }

    /// Changes what this node is to be. The thread `cluster-map` follows.
    fn take_stance(&mut self, change: impl FnOnce(&mut Stance)) -> u64 {
        let mut version = 0;
        self.agent.change(|state| {
            change(&mut state.stance);
            state.stance_version += 1;
            version = state.stance_version;
        });
        version
    }

    fn see(&mut self, view: Arc<Snapshot>) {
        if self.agent.health() == "connecting" {
            self.agent.set_health("ok");
        }
        self.agent.change(|state| {
            state.snapshot = view.clone();
            state.open_if_settled();
            if let Some(entry) = view.nodes.get(&self.identity.me) {
                state.moves.follow(&view, entry.value.shard);
            }
        });
        let is_known = |id: &str| view.migrations.keys().any(|known| known.to_string() == id);
        self.server.replication.moves.imports.retain(is_known);
        self.decide(Event::View(view));
    }

    /// News of the store that the decider does not need.
    fn hear(&mut self, news: StoreEvent) {
        match news {
            StoreEvent::Failed(error) => {
                log::warn!("{error}");
                self.agent.set_health(&error.to_string());
            }
            StoreEvent::Recovered => {
                log::info!("The cluster's store can be used again");
                self.agent.set_health("ok");
            }
            StoreEvent::Identified { cluster } if cluster != self.identity.cluster => {
                log::info!("This node belongs to cluster {cluster}");
                self.identity.cluster = cluster;
                if let Some(cluster) = &self.server.cluster {
                    cluster.belong_to(&self.identity.cluster);
                }
            }
            _ => {}
        }
    }

    /// The address that the settings announce, or else that of this machine towards the store.
    fn learn_address(&mut self) {
        let settings = self.server.core.settings();
        let Some(cluster) = &self.server.cluster else { return };
        let mut address = cluster.view().address.clone();
        if settings.cluster_announce_ip.is_empty() {
            if self.local_ip.is_none() && boot_clock() >= self.next_look {
                self.local_ip = connect::local_ip(&settings);
                self.next_look = boot_clock() + LOOK_INTERVAL;
            }
            let Some(ip) = &self.local_ip else { return };
            address.ip.clone_from(ip);
        }
        self.agent.state.lock().address = Some(address.clone());
        if self.decider.is_none() {
            self.decider = Some(Decider::new(self.setup(address)));
            let view = self.agent.snapshot();
            if view.revision > 0 {
                self.decide(Event::View(view));
            }
        }
    }

    fn setup(&self, address: Address) -> Setup {
        Setup {
            me: self.identity.me,
            process: evenkeel_runtime::random::random_seed(),
            incarnation: self.identity.incarnation,
            offset: self.offset(),
            address,
            version: VERSION.into(),
            timing: self.timing,
        }
    }

    /// Passes an event to the decider, and then the events that follow from the decider's actions.
    fn decide(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let Some(decider) = &mut self.decider else { return };
            for action in decider.handle(event, boot_clock()) {
                events.extend(self.act(action));
            }
        }
    }

    fn act(&mut self, action: Action) -> Option<Event> {
        let store = &self.agent.store;
        match action {
            Action::Grant => store.send(Request::Grant),
            Action::Renew { lease } => store.send(Request::Renew(lease)),
            Action::Revoke { lease } => store.send(Request::Revoke(lease)),
            Action::Submit { number, transaction } => store.send(Request::Submit(number, transaction)),
            Action::ServeUntil(until) => {
                self.until = until;
                if until == 0 && self.is_paused {
                    // Before the fence: a command that finds the fence finds the pause.
                    data_path::pause(&self.server, true, self.pause_max());
                }
                self.move_fence();
            }
            Action::StopWrites => {
                data_path::pause(&self.server, false, self.pause_max());
                self.is_paused = true;
                self.stops_with = Some(self.take_stance(|stance| stance.stops_writes = true));
            }
            Action::ResumeWrites => {
                self.stops_with = None;
                self.take_stance(|stance| stance.stops_writes = false);
            }
            Action::Lead { epoch, .. } => {
                (self.role_since, self.stops_with) = (self.agent.snapshot().revision, None);
                // Clients whom the old primary sends here wait until this node serves.
                data_path::pause(&self.server, true, self.pause_max());
                self.is_paused = true;
                let role = Some(Role::Leads { epoch });
                self.leads_with = self.take_stance(|stance| *stance = Stance { role, stops_writes: false });
                self.move_fence();
            }
            Action::Follow { primary, epoch } => {
                (self.role_since, self.stops_with) = (self.agent.snapshot().revision, None);
                self.counts = None;
                self.paused_until = boot_clock() + self.timing.pause / 4;
                let role = Some(Role::Follows { primary, epoch });
                self.take_stance(|stance| *stance = Stance { role, stops_writes: false });
            }
            Action::CountAcks { number, members } => {
                // A role that is not in force yet takes the set with it.
                self.set = members.into_iter().map(|(node, number)| (node.to_string(), number)).collect();
                self.counts = Some((number, None));
                self.require();
            }
            Action::FullSync(node) => {
                self.server.replication.members.let_sync(&node.to_string());
                self.server.replication.replica_inbox.nudge();
            }
            Action::Log(line) => log::info!("{line}"),
            Action::Exit => self.agent.change(|state| state.has_ended = true),
            Action::Move(id, action) => self.agent.act_on_move(&self.server, id, action),
        }
        None
    }

    /// The longest pause of clients for a planned change of the primary, in milliseconds.
    fn pause_max(&self) -> u64 {
        3 * self.timing.pause
    }

    /// See the module's text.
    fn move_fence(&self) {
        let may_serve = self.published >= self.role_since && self.stands >= self.leads_with;
        if let Some(fence) = self.fence() {
            fence.set(if may_serve { self.until } else { 0 });
        }
    }

    /// Enters the map, once; afterwards, keeps the node's address there.
    fn register(&mut self) {
        let now = boot_clock();
        let (snapshot, address) = {
            let state = self.agent.state.lock();
            (state.snapshot.clone(), state.address.clone())
        };
        if snapshot.revision == 0 || now < self.registration.next_try {
            return;
        }
        self.registration.next_try = now + self.timing.retry / 4;
        let is_known = snapshot.nodes.contains_key(&self.identity.me);
        if !is_known && self.registration.is_known {
            if !self.registration.is_forgotten {
                log::warn!("The map of the cluster does not have this node any more: it was forgotten");
            }
            self.registration.is_forgotten = true;
            return;
        }
        self.registration.is_forgotten = false;
        self.registration.is_known |= is_known;
        if let Some(address) = address
            && let Ok(transaction) =
                plan(&snapshot, self.identity.me, &entry(&snapshot, &self.identity, address))
            && !transaction.changes.is_empty()
        {
            self.agent.send(transaction, false);
        }
    }

    /// Settles a transaction without an answer, whose slots are closed.
    fn settle(&mut self) {
        let now = boot_clock();
        let unsettled = self.agent.state.lock().closed.until_changed;
        if let Some((shard, revision)) = unsettled.filter(|_| now >= self.next_settling) {
            self.next_settling = now + self.timing.retry;
            self.agent.settle(shard, revision);
        }
    }
}

/// The operation that enters a node into the map. Its shard is a new one.
pub(super) fn entry(snapshot: &Snapshot, identity: &Identity, address: Address) -> Operation {
    let is_taken = snapshot.shards.contains_key(&identity.shard);
    let shard =
        if is_taken { evenkeel_cluster::ShardId::new(super::super::random_id()) } else { identity.shard };
    Operation::Register { address, shard, incarnation: identity.incarnation }
}

impl Agent {
    /// See [`Cluster::hand_over`](super::super::Cluster::hand_over).
    pub(in crate::cluster) fn hand_over(&self, time: Duration) -> bool {
        let _ = self.messages.send(Message::Decider(Event::Shutdown));
        let is_over =
            |state: &mut State| (state.has_ended && state.stands == state.stance_version).then_some(());
        self.wait(time, is_over).is_some()
    }

    pub(in crate::cluster) fn stay(&self) {
        let _ = self.messages.send(Message::Stay);
    }

    pub(in crate::cluster) fn fail_over(&self, mode: FailoverMode) {
        let _ = self.messages.send(Message::Decider(Event::Failover(mode)));
    }

    /// Gives the lease back. No worker runs any more.
    pub(in crate::cluster) fn end(&self) {
        let _ = self.messages.send(Message::Decider(Event::Shutdown));
        self.wait(END_MAX, |state| {
            (state.has_ended && !state.snapshot.alive.contains_key(&self.me)).then_some(())
        });
    }
}
