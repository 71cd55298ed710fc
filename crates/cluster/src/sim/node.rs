//! The model of a process: its clock, its log, its streams, and the data path that carries out the actions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use evenkeel_testkit::random::Random;

use super::moves::{Copying, Import};
use super::{Event, Message, Record, Request, SLOTS_USED, World, node_id, place_of};
use crate::decide::{self, Ack, Action, Decider, Outcome, Setup};
use crate::id::{MigrationId, NodeId};
use crate::map::Address;

/// The connection of a replica to its primary.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    pub(super) number: u64,
    primary: usize,
    has_begun: bool,
    since: u64,
}

pub(super) struct Node {
    /// `None`: there is no process.
    pub(super) decider: Option<Decider>,
    /// The number of the process.
    pub(super) life: u32,
    /// Parts per million by which the clock is fast, and its time at the beginning.
    rate: i64,
    base: u64,
    /// The process is stopped (SIGSTOP) until this time.
    pub(super) stopped_until: u64,
    /// What survives the end of the process.
    pub(super) log: Vec<Record>,
    /// The number of times that the node has become a replica.
    reigns: u64,
    /// The shard that the log is of.
    shard: usize,
    pub(super) incarnation: u64,
    /// The state of the data path.
    pub(super) serve_until: u64,
    pub(super) leads: Option<u64>,
    pub(super) writes_stopped: bool,
    /// The slots of the node's shard in its view, a bit for each; and, for each move, the closed slots.
    pub(super) owned: u64,
    pub(super) closed: BTreeMap<MigrationId, u64>,
    required: BTreeMap<NodeId, u64>,
    /// For each replica: session, number of the data, offset.
    acks: BTreeMap<usize, (u64, u64, usize)>,
    /// For each replica: the last session that it asked for.
    hellos: BTreeMap<usize, u64>,
    /// For each replica: its session, once the stream has begun.
    sessions: BTreeMap<usize, u64>,
    pub(super) committed: usize,
    session: Option<Session>,
    pub(super) copies: BTreeMap<MigrationId, Copying>,
    pub(super) imports: BTreeMap<MigrationId, Import>,
    pub(super) last_read: u64,
    events: VecDeque<decide::Event>,
    is_busy: bool,
    pub(super) may_end: bool,
}

impl Node {
    pub(super) fn new(at: usize, random: &mut Random) -> Node {
        Node {
            decider: None,
            life: 0,
            rate: random.between(-1_000, 1_000),
            base: 10_000 * (at as u64 + 1),
            stopped_until: 0,
            log: Vec::new(),
            reigns: 0,
            shard: at % 2,
            incarnation: 0,
            serve_until: 0,
            leads: None,
            writes_stopped: false,
            owned: 0,
            closed: BTreeMap::new(),
            required: BTreeMap::new(),
            acks: BTreeMap::new(),
            hellos: BTreeMap::new(),
            sessions: BTreeMap::new(),
            committed: 0,
            session: None,
            copies: BTreeMap::new(),
            imports: BTreeMap::new(),
            last_read: 0,
            events: VecDeque::new(),
            is_busy: false,
            may_end: false,
        }
    }

    /// The node's clock at a true time.
    pub(super) fn clock(&self, now: u64) -> u64 {
        self.base + (now as i64 + now as i64 * self.rate / 1_000_000) as u64
    }

    pub(super) fn is_stopped(&self, now: u64) -> bool {
        now < self.stopped_until
    }

    /// The slots that the node accepts writes for, as bits.
    pub(super) fn writable(&self, now: u64) -> u64 {
        let serves = self.leads.is_some()
            && self.decider.is_some()
            && !self.is_stopped(now)
            && !self.writes_stopped
            && self.clock(now) < self.serve_until;
        if serves { self.owned & !self.closed.values().fold(0, |all, slots| all | slots) } else { 0 }
    }

    fn forget_process(&mut self) {
        let fresh = Node::new(0, &mut Random::new(0));
        let kept = Node {
            life: self.life,
            rate: self.rate,
            base: self.base,
            log: std::mem::take(&mut self.log),
            reigns: self.reigns,
            shard: self.shard,
            incarnation: self.incarnation,
            ..fresh
        };
        *self = kept;
    }
}

impl World {
    /// Starts a process. Without `has_data`, the node may have lost records.
    pub(super) fn start(&mut self, at: usize, has_data: bool) {
        let process = self.number();
        let node = &mut self.nodes[at];
        node.forget_process();
        node.life += 1;
        if !has_data {
            node.incarnation = process;
        }
        let setup = Setup {
            me: node_id(at),
            process,
            incarnation: node.incarnation,
            offset: node.log.len() as u64,
            address: Address::default(),
            version: String::new(),
            timing: self.timing,
        };
        node.decider = Some(Decider::new(setup).with(self.protections));
        let life = node.life;
        self.after(1, Event::Tick { node: at, life });
    }

    pub(super) fn end_process(&mut self, at: usize) {
        self.nodes[at].decider = None;
        self.nodes[at].life += 1;
    }

    /// Passes an event to the decider, and carries out its actions.
    pub(super) fn decide(&mut self, at: usize, event: decide::Event) {
        self.nodes[at].events.push_back(event);
        if std::mem::replace(&mut self.nodes[at].is_busy, true) {
            return; // the events of an action come after all actions of the present event
        }
        let clock = self.nodes[at].clock(self.now);
        while let Some(event) = self.nodes[at].events.pop_front() {
            let Some(decider) = &mut self.nodes[at].decider else { break };
            for action in decider.handle(event, clock) {
                self.act(at, action);
            }
        }
        self.nodes[at].is_busy = false;
    }

    fn act(&mut self, at: usize, action: Action) {
        self.record(|| format!("node {at}: {action:?}"));
        match action {
            Action::Grant => self.ask_store(at, Request::Grant),
            Action::Renew { lease } => self.ask_store(at, Request::Renew(lease)),
            Action::Revoke { lease } => self.ask_store(at, Request::Revoke(lease)),
            Action::Submit { number, transaction } => {
                self.ask_store(at, Request::Commit(number, Arc::new(transaction)));
            }
            Action::ServeUntil(time) => self.nodes[at].serve_until = time,
            Action::StopWrites => {
                self.nodes[at].writes_stopped = true;
                let offset = self.nodes[at].log.len() as u64;
                self.decide(at, decide::Event::Stopped { offset });
            }
            Action::ResumeWrites => self.nodes[at].writes_stopped = false,
            Action::Lead { epoch, .. } => self.lead(at, epoch),
            Action::Follow { .. } => self.follow(at),
            Action::CountAcks { number, members } => self.count_acks(at, number, members),
            Action::FullSync(node) => self.begin_stream(at, place_of(node), 0, true),
            Action::Move(id, action) => self.act_on_move(at, id, action),
            Action::Log(_) => {}
            Action::Exit => self.nodes[at].may_end = true,
        }
    }

    fn lead(&mut self, at: usize, epoch: u64) {
        let node = &mut self.nodes[at];
        (node.leads, node.session, node.writes_stopped, node.committed) = (Some(epoch), None, false, 0);
        node.acks.clear();
        node.sessions.clear();
        node.hellos.clear();
        node.closed.clear();
    }

    fn follow(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        (node.leads, node.session) = (None, None);
        // The clients that wait are let go.
        node.reigns += 1;
        node.closed.clear();
        node.copies.clear();
        node.imports.clear();
    }

    fn count_acks(&mut self, at: usize, number: u64, members: BTreeMap<NodeId, u64>) {
        self.nodes[at].required = members;
        let offset = self.nodes[at].log.len() as u64;
        self.advance(at);
        self.decide(at, decide::Event::Counting { number, offset });
    }

    pub(super) fn tick(&mut self, at: usize) {
        let life = self.nodes[at].life;
        let rest = self.nodes[at].stopped_until.saturating_sub(self.now);
        let pause = rest + 40 + self.random.below(40) as u64;
        self.after(pause, Event::Tick { node: at, life });
        if rest > 0 {
            return;
        }
        if self.now >= self.nodes[at].last_read + 700 {
            self.nodes[at].last_read = self.now;
            self.ask_store(at, Request::Read);
        }
        if self.has_faults && self.random.below(50) == 0 {
            self.nodes[at].session = None; // the connection breaks
        }
        self.connect(at);
        self.check_copies(at);
        let offset = self.nodes[at].log.len() as u64;
        self.decide(at, decide::Event::Tick { offset });
        if self.nodes[at].may_end {
            self.end_process(at);
            let pause = 100 + self.random.below(3_000) as u64;
            self.after(pause, Event::Restart { node: at });
        }
    }

    pub(super) fn answered(&mut self, at: usize, number: u64, outcome: Outcome) {
        if self.nodes[at].is_stopped(self.now) {
            // Its clock runs on, and the process finds the deadline passed when it goes on.
            let (rest, life) = (self.nodes[at].stopped_until - self.now, self.nodes[at].life);
            return self.after(rest, Event::Timeout { node: at, life, number });
        }
        self.decide(at, decide::Event::Answered { number, outcome });
    }

    pub(super) fn deliver(&mut self, at: usize, from: usize, message: Message) {
        match message {
            Message::Hello { session, epoch } => self.on_hello(at, from, session, epoch),
            Message::Start { session, epoch, at: length, is_full } => {
                self.on_start(at, from, session, epoch, length, is_full);
            }
            Message::Append { session, epoch, at: length, records } => {
                self.on_append(at, from, session, epoch, length, &records);
            }
            Message::Ack(session, ack) => self.on_ack(at, from, session, ack),
            Message::Copy { id, session, source_epoch, epoch, at: place, records } => {
                self.on_copy(at, from, id, session, source_epoch, epoch, place, &records);
            }
            Message::Copied { id, session, count } => self.on_copied(at, id, session, count),
            Message::Lease { lease: Some(lease), asked: None, sent } => {
                self.decide(at, decide::Event::Granted { lease, sent });
            }
            Message::Lease { lease: Some(lease), sent, .. } => {
                self.decide(at, decide::Event::Renewed { lease, sent });
            }
            Message::Lease { lease: None, asked, .. } => {
                let lease = asked.expect("only a renewal is refused");
                self.decide(at, decide::Event::LeaseLost { lease });
            }
            Message::Answer { number, outcome } => {
                self.decide(at, decide::Event::Answered { number, outcome })
            }
            Message::View(view) => self.on_view(at, view),
        }
    }

    fn on_view(&mut self, at: usize, view: Arc<crate::snapshot::Snapshot>) {
        self.decide(at, decide::Event::View(view));
        let Some(decider) = &self.nodes[at].decider else { return };
        self.nodes[at].owned = decider.owned_slots().iter().fold(0, |bits, slot| bits | 1 << slot);
    }

    // --- The stream ---

    /// A replica without a stream asks for it.
    fn connect(&mut self, at: usize) {
        let node = &self.nodes[at];
        let Some((primary, epoch)) = node.decider.as_ref().and_then(Decider::follows) else { return };
        let waits = |session: &Session| session.has_begun || self.now < session.since + 500;
        if node.session.as_ref().is_some_and(waits) {
            return;
        }
        let (number, primary) = (self.number(), place_of(primary));
        let since = self.now;
        self.nodes[at].session = Some(Session { number, primary, has_begun: false, since });
        self.send(at, primary, Message::Hello { session: number, epoch });
    }

    fn on_hello(&mut self, at: usize, from: usize, session: u64, epoch: u64) {
        if self.nodes[at].leads != Some(epoch) {
            return;
        }
        if self.nodes[at].hellos.get(&from).is_some_and(|known| *known >= session) {
            return;
        }
        let (mine, theirs) = (&self.nodes[at].log, &self.nodes[from].log);
        let mut common = mine.len().min(theirs.len());
        while common > 0 && mine[common - 1] != theirs[common - 1] {
            common -= 1;
        }
        let is_other = self.nodes[at].shard != self.nodes[from].shard && !theirs.is_empty();
        let is_full =
            is_other || self.random.below(4) == 0 && self.has_faults || common == 0 && !theirs.is_empty();
        self.nodes[at].sessions.remove(&from);
        self.nodes[at].acks.remove(&from);
        self.nodes[at].hellos.insert(from, session);
        self.decide(at, decide::Event::Disconnected(node_id(from)));
        if is_full {
            self.decide(at, decide::Event::NeedsFullSync(node_id(from)));
        } else {
            self.begin_stream(at, from, common, false);
        }
    }

    fn begin_stream(&mut self, at: usize, to: usize, start: usize, is_full: bool) {
        let node = &mut self.nodes[at];
        let (Some(epoch), Some(session)) = (node.leads, node.hellos.get(&to).copied()) else { return };
        node.sessions.insert(to, session);
        let records = node.log[start..].to_vec();
        self.send(at, to, Message::Start { session, epoch, at: start, is_full });
        if !records.is_empty() {
            self.send(at, to, Message::Append { session, epoch, at: start, records });
        }
    }

    /// Whether a message of the stream is of the replica's session.
    fn is_current(&self, at: usize, from: usize, session: u64, epoch: u64) -> bool {
        let node = &self.nodes[at];
        let accepts = |decider: &Decider| decider.accepts_stream(node_id(from), epoch);
        let is_own = node.session.is_some_and(|own| own.number == session && own.primary == from);
        node.leads.is_none()
            && node.decider.as_ref().is_some_and(accepts)
            && (is_own || !self.protections.epochs)
    }

    fn on_start(&mut self, at: usize, from: usize, session: u64, epoch: u64, length: usize, is_full: bool) {
        if !self.is_current(at, from, session, epoch) {
            return;
        }
        let has_begun = self.nodes[at].session.is_some_and(|own| own.has_begun);
        if has_begun && self.protections.epochs {
            return;
        }
        if is_full {
            let incarnation = self.number();
            self.nodes[at].incarnation = incarnation;
            self.decide(at, decide::Event::DataReset { incarnation });
        }
        self.nodes[at].log.truncate(length);
        self.nodes[at].shard = self.nodes[from].shard;
        if let Some(own) = &mut self.nodes[at].session {
            own.has_begun = true;
        }
        self.send_ack(at, from, session, epoch);
    }

    fn on_append(
        &mut self,
        at: usize,
        from: usize,
        session: u64,
        epoch: u64,
        length: usize,
        records: &[Record],
    ) {
        if !self.is_current(at, from, session, epoch) {
            return;
        }
        let node = &mut self.nodes[at];
        let has_begun = node.session.is_some_and(|own| own.has_begun) || !self.protections.epochs;
        let end = length + records.len();
        if !has_begun || length > node.log.len() {
            node.session = None; // a message was lost: the connection breaks
            return;
        }
        if !self.protections.epochs {
            node.log.truncate(length);
        }
        if end > node.log.len() {
            let new = node.log.len() - length;
            node.log.extend(&records[new..]);
        }
        self.send_ack(at, from, session, epoch);
    }

    fn send_ack(&mut self, at: usize, from: usize, session: u64, epoch: u64) {
        let node = &self.nodes[at];
        let offset = node.log.len() as u64;
        let ack = Ack { node: node_id(at), incarnation: node.incarnation, epoch, offset };
        self.send(at, from, Message::Ack(session, ack));
    }

    fn on_ack(&mut self, at: usize, from: usize, session: u64, ack: Ack) {
        let node = &mut self.nodes[at];
        let counts = node.decider.as_ref().is_some_and(|decider| decider.counts(&ack));
        if !counts || node.sessions.get(&from) != Some(&session) && self.protections.epochs {
            return;
        }
        let known = node.acks.entry(from).or_insert((session, ack.incarnation, 0));
        if (known.0, known.1) != (session, ack.incarnation) {
            *known = (session, ack.incarnation, 0);
        }
        known.2 = known.2.max(ack.offset as usize);
        self.advance(at);
        self.decide(at, decide::Event::Ack(ack));
    }

    /// Acknowledges the writes that all required nodes have.
    pub(super) fn advance(&mut self, at: usize) {
        let node = &self.nodes[at];
        if node.leads.is_none() {
            return;
        }
        let has = |(id, number): (&NodeId, &u64)| match node.acks.get(&place_of(*id)) {
            Some((_, incarnation, offset)) if incarnation == number => *offset,
            _ => 0,
        };
        let end = node.required.iter().map(has).min().unwrap_or(usize::MAX).min(node.log.len());
        let start = node.committed;
        if end > start {
            self.nodes[at].committed = end;
            self.check_acknowledged(at, start, end);
            self.confirm_imports(at);
        }
    }

    /// The identity of a process, and of the time since it was a replica.
    pub(super) fn process(&self, at: usize) -> u64 {
        (at as u64) << 48 | u64::from(self.nodes[at].life) << 24 | self.nodes[at].reigns
    }

    /// A client writes to a node.
    pub(super) fn write(&mut self) {
        let pause = 5 + self.random.below(30) as u64;
        self.after(pause, Event::Write);
        let slot = self.random.below(usize::from(SLOTS_USED)) as u8;
        let now = self.now;
        let at = self.random.below(self.nodes.len());
        if self.nodes[at].writable(now) & 1 << slot == 0 {
            return;
        }
        let id = self.truth.new_write();
        self.append(
            at,
            &[Record { epoch: 0, slot, write: Some(id), process: self.process(at), is_copy: false }],
        );
    }

    /// Appends records to the log of a primary, and sends them to its replicas.
    pub(super) fn append(&mut self, at: usize, records: &[Record]) {
        let epoch = self.nodes[at].leads.expect("only a primary appends");
        let records: Vec<Record> = records.iter().map(|record| Record { epoch, ..*record }).collect();
        let start = self.nodes[at].log.len();
        self.nodes[at].log.extend(&records);
        let sessions: Vec<(usize, u64)> =
            self.nodes[at].sessions.iter().map(|(to, session)| (*to, *session)).collect();
        for (to, session) in sessions {
            self.send(at, to, Message::Append { session, epoch, at: start, records: records.clone() });
        }
        self.forward(at, start);
        self.advance(at);
    }
}
