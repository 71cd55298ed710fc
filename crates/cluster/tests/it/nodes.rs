//! Deciders with a real etcd, and a data path of nothing.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel_cluster::store::etcd::Etcd;
use evenkeel_cluster::store::{Request, Store, StoreEvent, boot_clock};
use evenkeel_cluster::{Action, Change, Decider, Event, NodeId, Setup, Shard, ShardId, Timing};

use super::etcd::{Connects, Members, PATIENCE, is_missing, node_id};

/// The state that tests look at.
#[derive(Default)]
struct Shown {
    leads: Option<u64>,
    serve_until: u64,
    has_ended: bool,
}

struct Running {
    shown: Arc<Mutex<Shown>>,
    events: Sender<Option<Event>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn start(members: &Members, me: NodeId) -> Running {
        let (sender, receiver) = channel();
        let sink = sender.clone();
        let pass = move |event: StoreEvent| {
            if let Ok(event) = event.into_event() {
                _ = sink.send(Some(event));
            }
        };
        let store = Etcd::start(members.config(), boot_clock, Box::new(pass)).expect("valid settings");
        let shown = Arc::new(Mutex::new(Shown::default()));
        let state = Arc::clone(&shown);
        let setup = Setup {
            me,
            process: boot_clock() + u64::from(me.to_string().as_bytes()[1]),
            incarnation: 1,
            offset: 0,
            address: Default::default(),
            version: "test".into(),
            timing: Timing::of_lease(3_000),
        };
        let thread = std::thread::spawn(move || run(Decider::new(setup), &store, &receiver, &state));
        Running { shown, events: sender, thread: Some(thread) }
    }

    fn serves(&self) -> Option<u64> {
        let shown = self.shown.lock().expect("no panic");
        shown.leads.filter(|_| boot_clock() < shown.serve_until)
    }

    fn end(&mut self) {
        _ = self.events.send(None);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no panic");
        }
    }
}

fn run(mut decider: Decider, store: &Etcd, events: &Receiver<Option<Event>>, shown: &Mutex<Shown>) {
    let mut queue = Vec::new();
    loop {
        let event = match events.recv_timeout(Duration::from_millis(20)) {
            Ok(None) => return,
            Ok(Some(event)) => event,
            Err(_) => Event::Tick { offset: 0 },
        };
        queue.push(event);
        while let Some(event) = queue.pop() {
            for action in decider.handle(event, boot_clock()) {
                queue.extend(act(action, store, &mut shown.lock().expect("no panic")));
            }
        }
    }
}

fn act(action: Action, store: &Etcd, shown: &mut Shown) -> Option<Event> {
    match action {
        Action::Grant => store.send(Request::Grant),
        Action::Renew { lease } => store.send(Request::Renew(lease)),
        Action::Revoke { lease } => store.send(Request::Revoke(lease)),
        Action::Submit { number, transaction } => store.send(Request::Submit(number, transaction)),
        Action::ServeUntil(time) => shown.serve_until = time,
        Action::Lead { epoch, .. } => shown.leads = Some(epoch),
        Action::Follow { .. } => shown.leads = None,
        Action::StopWrites => return Some(Event::Stopped { offset: 0 }),
        Action::CountAcks { number, .. } => return Some(Event::Counting { number, offset: 0 }),
        Action::Exit => shown.has_ended = true,
        _ => {}
    }
    None
}

fn wait(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "no {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    start.elapsed()
}

/// Two nodes of a shard, both with all data.
fn set_up(members: &Members) {
    let mut connection = members.connect();
    let id = ShardId::new([9; 20]);
    for byte in [1, 2] {
        let node = evenkeel_cluster::Node { address: Default::default(), shard: id, is_alive: false };
        connection.put(Change::Node(node_id(byte), node));
    }
    let mut shard = Shard { primary: Some(node_id(1)), slots: (0..=16_383).collect(), ..Shard::default() };
    shard.set_members(&[(node_id(1), 1), (node_id(2), 1)].into());
    connection.put(Change::Shard(id, shard));
}

/// Starts both nodes; the second joins the in-sync set of the first. The second node starts when the first
/// serves: it would be promoted if the first were late.
fn join(members: &Members) -> (Running, Running) {
    let primary = Running::start(members, node_id(1));
    wait("first primary", || primary.serves().is_some());
    let replica = Running::start(members, node_id(2));
    let connection = members.connect();
    let (node, epoch) = (node_id(2), primary.serves().expect("it serves"));
    connection.view("entry of the replica", |view| view.alive.contains_key(&node));
    let ack = evenkeel_cluster::Ack { node, incarnation: 1, epoch, offset: 0 };
    _ = primary.events.send(Some(Event::Ack(ack)));
    connection.view("both in sync", |view| view.shards.values().any(|shard| shard.value.in_sync.len() == 2));
    (primary, replica)
}

#[test]
fn a_replica_is_promoted_when_the_primary_has_gone() {
    if is_missing() {
        return;
    }
    let members = Members::start(1);
    set_up(&members);
    let (mut one, mut two) = join(&members);
    assert_eq!(two.serves(), None);
    let before = one.serves();
    one.end();
    let took = wait("promotion", || two.serves().is_some());
    println!("promoted after {took:?}");
    assert!(two.serves() > before && took < Duration::from_secs(10));
    two.end();
}

#[test]
fn a_primary_that_ends_hands_over_at_once() {
    if is_missing() {
        return;
    }
    let members = Members::start(1);
    set_up(&members);
    let (mut one, mut two) = join(&members);
    _ = one.events.send(Some(Event::Shutdown));
    let took = wait("hand-over", || two.serves().is_some());
    println!("served again after {took:?}");
    wait("end", || one.shown.lock().expect("no panic").has_ended);
    assert!(took < Duration::from_secs(2), "{took:?}");
    one.end();
    two.end();
}
