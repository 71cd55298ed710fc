//! A simulator for the decisions of nodes: a [`World`] of nodes, a store, a network and clients, driven by a
//! seed. It has virtual time, clocks of different rates, and faults of every kind; after each step it checks
//! that the promises hold (`checks.rs`).
//!
//! | file | models |
//! |---|---|
//! | `mod.rs` | time, the network, the order of events |
//! | `store.rs` | etcd: revisions, transactions with guards, leases, watches |
//! | `node.rs` | a process: its clock, its data, its streams |
//! | `moves.rs` | the data path of moving slots |
//! | `faults.rs` | crashes, pauses, partitions, operators |
//! | `checks.rs` | the promises |

mod checks;
mod faults;
mod moves;
mod node;
mod store;
mod tests;

use std::collections::BinaryHeap;
use std::sync::Arc;

use evenkeel_testkit::random::Random;

use crate::decide::{Ack, Outcome, Protections, Timing};
use crate::id::{MigrationId, NodeId, ShardId};
use crate::snapshot::{LeaseId, Snapshot, Transaction};

/// Slots in use; the simulator leaves the others without an owner.
const SLOTS_USED: u16 = 8;
/// Time to live of leases, in milliseconds.
const TTL: u64 = 3_000;

/// A record of a node's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    epoch: u64,
    slot: u8,
    /// A write of a client. `None`: the slot is emptied, and a copy of it follows.
    write: Option<u32>,
    /// The process that accepted the write, and that has its client.
    process: u64,
    /// The record came from another shard, whose slot moves.
    is_copy: bool,
}

/// A request to the store.
#[derive(Clone, Debug)]
enum Request {
    Grant,
    Renew(LeaseId),
    Revoke(LeaseId),
    Commit(u64, Arc<Transaction>),
    Read,
}

/// A message between nodes, or an answer of the store.
#[derive(Clone, Debug)]
enum Message {
    /// A replica asks for the stream.
    Hello {
        session: u64,
        epoch: u64,
    },
    /// The stream begins after `at` records. `full`: the replica drops its data.
    Start {
        session: u64,
        epoch: u64,
        at: usize,
        is_full: bool,
    },
    Append {
        session: u64,
        epoch: u64,
        at: usize,
        records: Vec<Record>,
    },
    Ack(u64, Ack),
    /// The records of moving slots, from the `at`-th.
    Copy {
        id: MigrationId,
        session: u64,
        source_epoch: u64,
        epoch: u64,
        at: usize,
        records: Vec<Record>,
    },
    Copied {
        id: MigrationId,
        session: u64,
        count: usize,
    },
    Lease {
        lease: Option<LeaseId>,
        asked: Option<LeaseId>,
        sent: u64,
    },
    Answer {
        number: u64,
        outcome: Outcome,
    },
    View(Arc<Snapshot>),
}

/// An event of the world.
#[derive(Debug)]
enum Event {
    Tick {
        node: usize,
        life: u32,
    },
    Deliver {
        to: usize,
        life: u32,
        from: usize,
        message: Message,
    },
    Store {
        from: usize,
        life: u32,
        sent: u64,
        request: Request,
    },
    /// The client of a transaction gives up.
    Timeout {
        node: usize,
        life: u32,
        number: u64,
    },
    LeaseTimeout {
        node: usize,
        life: u32,
    },
    Expire,
    Write,
    Fault,
    /// A process that was stopped goes on.
    Resume {
        node: usize,
    },
    Restart {
        node: usize,
    },
    Heal,
}

struct Queued {
    time: u64,
    order: u64,
    event: Event,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Queued) -> bool {
        (self.time, self.order) == (other.time, other.order)
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Queued) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Queued) -> std::cmp::Ordering {
        (other.time, other.order).cmp(&(self.time, self.order))
    }
}

/// Everything there is.
struct World {
    random: Random,
    protections: Protections,
    timing: Timing,
    /// True time, in milliseconds.
    now: u64,
    order: u64,
    queue: BinaryHeap<Queued>,
    nodes: Vec<node::Node>,
    store: store::Store,
    /// `cut[a][b]`: messages from `a` to `b` are lost. The store is the last.
    cut: Vec<Vec<bool>>,
    /// The last unique number.
    counter: u64,
    truth: checks::Truth,
    has_faults: bool,
    steps: u64,
    /// The first promise that was broken.
    broken: Option<String>,
    /// The last lines of the log, if they are wanted.
    journal: Option<Vec<String>>,
}

fn node_id(at: usize) -> NodeId {
    NodeId::new([at as u8 + 1; 20])
}

fn shard_id(at: usize) -> ShardId {
    ShardId::new([at as u8 + 1; 20])
}

fn place_of(id: NodeId) -> usize {
    let digits = id.to_string();
    usize::from_str_radix(&digits[..2], 16).expect("an identity is hexadecimal") - 1
}

impl World {
    fn new(seed: u64, protections: Protections) -> World {
        let mut random = Random::new(seed);
        let count = 4 + random.below(3);
        let mut world = World {
            protections,
            timing: Timing::of_lease(TTL),
            now: 1_000,
            order: 0,
            queue: BinaryHeap::new(),
            nodes: (0..count).map(|at| node::Node::new(at, &mut random)).collect(),
            store: store::Store::new(&mut random),
            cut: vec![vec![false; count + 1]; count + 1],
            counter: 0,
            truth: checks::Truth::default(),
            has_faults: true,
            steps: 0,
            broken: None,
            journal: None,
            random,
        };
        world.store.set_up(count);
        (0..count).for_each(|at| world.start(at, true));
        for (delay, event) in [(20, Event::Expire), (5_000, Event::Write), (8_000, Event::Fault)] {
            world.after(delay, event);
        }
        world
    }

    fn number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.order += 1;
        self.queue.push(Queued { time: self.now + delay, order: self.order, event });
    }

    fn record(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(journal) = &mut self.journal {
            journal.push(format!("{now:>7} {}", line()));
        }
    }

    fn break_promise(&mut self, what: String) {
        self.record(|| format!("BROKEN: {what}"));
        self.broken.get_or_insert(what);
    }

    /// The delay of a message: short, but for some.
    fn delay(&mut self) -> u64 {
        match self.random.below(100) {
            0 if self.has_faults => 1 + self.random.below(TTL as usize * 2) as u64,
            1..=4 if self.has_faults => 1 + self.random.below(400) as u64,
            _ => 1 + self.random.below(4) as u64,
        }
    }

    fn is_lost(&mut self, from: usize, to: usize) -> bool {
        self.cut[from][to] || self.has_faults && self.random.below(400) == 0
    }

    /// Sends a message to a node, from a node or from the store.
    fn send(&mut self, from: usize, to: usize, message: Message) {
        if self.is_lost(from, to) {
            return;
        }
        let life = self.nodes[to].life;
        if self.has_faults && from < self.nodes.len() && self.random.below(200) == 0 {
            let delay = self.delay();
            self.after(delay, Event::Deliver { to, life, from, message: message.clone() });
        }
        let delay = self.delay();
        self.after(delay, Event::Deliver { to, life, from, message });
    }

    fn ask_store(&mut self, from: usize, request: Request) {
        let (life, sent) = (self.nodes[from].life, self.nodes[from].clock(self.now));
        match &request {
            Request::Commit(number, _) => {
                let number = *number;
                self.after(TTL / 3, Event::Timeout { node: from, life, number });
            }
            Request::Grant | Request::Renew(_) => {
                self.after(TTL / 3, Event::LeaseTimeout { node: from, life });
            }
            _ => {}
        }
        let store = self.nodes.len();
        if !self.is_lost(from, store) {
            let delay = self.delay();
            self.after(delay, Event::Store { from, life, sent, request });
        }
    }

    /// Handles the next event.
    fn step(&mut self) {
        let Queued { time, event, .. } = self.queue.pop().expect("the world has events for ever");
        self.now = self.now.max(time);
        self.steps += 1;
        match event {
            Event::Tick { node, life } => self.on_node(node, life, |world, node| world.tick(node)),
            Event::Deliver { to, life, from, message } => {
                if self.nodes[to].is_stopped(self.now) && self.nodes[to].life == life {
                    let rest = self.nodes[to].stopped_until - self.now;
                    return self.after(rest, Event::Deliver { to, life, from, message });
                }
                self.on_node(to, life, |world, to| world.deliver(to, from, message));
            }
            Event::Store { from, life, sent, request } => self.on_store(from, life, sent, request),
            Event::Timeout { node, life, number } => {
                self.on_node(node, life, |world, node| world.answered(node, number, Outcome::Unknown));
            }
            Event::LeaseTimeout { node, life } => self.on_node(node, life, |world, node| {
                world.decide(node, crate::decide::Event::LeaseUnanswered);
            }),
            Event::Expire => self.expire(),
            Event::Write => self.write(),
            Event::Fault => self.fault(),
            Event::Resume { node } => self.check_writers(node),
            Event::Restart { node } => self.restart(node),
            Event::Heal => self.heal(),
        }
    }

    /// Runs a step of a process, later if it is stopped, and not at all if it has ended.
    fn on_node(&mut self, node: usize, life: u32, step: impl FnOnce(&mut World, usize)) {
        let place = &self.nodes[node];
        if place.life == life && place.decider.is_some() {
            step(self, node);
            self.check_writers(node);
        }
    }

    /// Runs until a time, or until a promise is broken.
    fn run_until(&mut self, end: u64) {
        while self.broken.is_none() && self.queue.peek().is_some_and(|next| next.time <= end) {
            self.step();
        }
    }
}
