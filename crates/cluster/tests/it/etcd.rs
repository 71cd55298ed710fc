//! Connections to members of etcd.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use evenkeel_cluster::store::etcd::{Config, Etcd};
use evenkeel_cluster::store::{Request, Store, StoreError, StoreEvent, boot_clock};
use evenkeel_cluster::{Change, NodeId, Outcome, Snapshot, Transaction};
pub(crate) use evenkeel_testkit::etcd::{Members, PATIENCE, is_missing};

/// Members of etcd, seen from the crate.
pub(crate) trait Connects {
    fn config(&self) -> Config;
    /// Connects, and waits for the first view.
    fn connect(&self) -> Connection;
}

impl Connects for Members {
    fn config(&self) -> Config {
        Config {
            endpoints: self.endpoints(),
            tls: None,
            user: None,
            prefix: "evenkeel".into(),
            cluster: "test".into(),
            expected: None,
            identity: "first".into(),
            ttl: 3_000,
            timeout: Duration::from_secs(1),
        }
    }

    fn connect(&self) -> Connection {
        let connection = Connection::new(self.config());
        connection.view("first view", |_| true);
        connection
    }
}

/// A connection, with the events that came.
pub(crate) struct Connection {
    pub(crate) store: Etcd,
    events: Receiver<StoreEvent>,
    number: u64,
    last: std::cell::RefCell<Option<std::sync::Arc<Snapshot>>>,
}

impl Connection {
    pub(crate) fn new(config: Config) -> Connection {
        let (sender, events) = channel();
        let sink = Box::new(move |event| _ = sender.send(event));
        let store = Etcd::start(config, boot_clock, sink).expect("the settings are valid");
        Connection { store, events, number: 0, last: std::cell::RefCell::default() }
    }

    /// Waits for an event that the function maps to a value; drops the others.
    pub(crate) fn wait<T>(&self, what: &str, mut pick: impl FnMut(StoreEvent) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        let mut others = Vec::new();
        loop {
            let rest = end.saturating_duration_since(Instant::now());
            let Ok(event) = self.events.recv_timeout(rest) else { panic!("no {what}: {others:?}") };
            others.push(format!("{event:?}"));
            if let StoreEvent::View(view) = &event {
                self.last.replace(Some(std::sync::Arc::clone(view)));
            }
            if let Some(found) = pick(event) {
                return found;
            }
        }
    }

    /// Waits for a view, unless the last one fits.
    pub(crate) fn view(&self, what: &str, fits: impl Fn(&Snapshot) -> bool) -> std::sync::Arc<Snapshot> {
        let last = self.last.borrow().clone().filter(|view| fits(view));
        if let Some(last) = last {
            return last;
        }
        self.wait(what, |event| match event {
            StoreEvent::View(view) if fits(&view) => Some(view),
            _ => None,
        })
    }

    pub(crate) fn failure(&self, what: &str, fits: impl Fn(&StoreError) -> bool) -> StoreError {
        self.wait(what, |event| match event {
            StoreEvent::Failed(error) if fits(&error) => Some(error),
            _ => None,
        })
    }

    pub(crate) fn grant(&self) -> u64 {
        self.store.send(Request::Grant);
        self.wait("lease", |event| match event {
            StoreEvent::Granted { lease, .. } => Some(lease),
            _ => None,
        })
    }

    pub(crate) fn submit(&mut self, transaction: Transaction) -> Outcome {
        self.number += 1;
        let sent = self.number;
        self.store.send(Request::Submit(sent, transaction));
        self.wait("outcome", |event| match event {
            StoreEvent::Answered { number, outcome } if number == sent => Some(outcome),
            _ => None,
        })
    }

    /// Makes a change without a condition, and does not wait.
    pub(crate) fn send(&mut self, change: Change) {
        self.number += 1;
        self.store
            .send(Request::Submit(self.number, Transaction { guards: Vec::new(), changes: vec![change] }));
    }

    /// Makes a change without a condition.
    pub(crate) fn put(&mut self, change: Change) -> Outcome {
        self.submit(Transaction { guards: Vec::new(), changes: vec![change] })
    }
}

pub(crate) fn node_id(byte: u8) -> NodeId {
    NodeId::new([byte; 20])
}
