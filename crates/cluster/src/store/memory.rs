//! A store in memory, for a node alone and for tests. Leases do not end by themselves.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::{EventSink, Request, Store, StoreEvent, boot_clock};
use crate::decide::Outcome;
use crate::snapshot::{Change, Key, LeaseId, Snapshot, Transaction};

/// The content, which several connections may share.
#[derive(Default)]
pub struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    view: Arc<Snapshot>,
    leases: BTreeSet<LeaseId>,
    last_lease: LeaseId,
    sinks: Vec<Arc<EventSink>>,
}

/// A connection to a store in memory.
pub struct MemoryStore {
    shared: Arc<Shared>,
    sink: Arc<EventSink>,
}

impl MemoryStore {
    /// Connects to a store. The sink runs on the threads that send requests.
    pub fn connect(shared: Arc<Shared>, sink: EventSink) -> MemoryStore {
        let sink = Arc::new(sink);
        let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.sinks.push(Arc::clone(&sink));
        let view = Arc::clone(&state.view);
        drop(state);
        if view.revision > 0 {
            sink(StoreEvent::View(view));
        }
        MemoryStore { shared, sink }
    }
}

impl State {
    fn grant(&mut self) -> LeaseId {
        self.last_lease += 1;
        self.leases.insert(self.last_lease);
        self.last_lease
    }

    fn commit(&mut self, transaction: &Transaction) -> Outcome {
        let has_lease = |change: &Change| match change {
            Change::Alive(_, alive) => self.leases.contains(&alive.lease),
            _ => true,
        };
        if !transaction.changes.iter().all(has_lease) {
            return Outcome::Refused;
        }
        let revision = self.view.revision + 1;
        if Arc::make_mut(&mut self.view).commit(revision, transaction) {
            Outcome::Committed(revision)
        } else {
            Outcome::Refused
        }
    }

    /// Ends a lease. Returns whether the content has changed.
    fn revoke(&mut self, lease: LeaseId) -> bool {
        self.leases.remove(&lease);
        let bound = self.view.alive.iter().filter(|(_, entry)| entry.value.lease == lease);
        let changes: Vec<Change> = bound.map(|(node, _)| Change::Delete(Key::Alive(*node))).collect();
        !changes.is_empty() && self.commit(&Transaction { guards: Vec::new(), changes }) != Outcome::Refused
    }
}

impl Store for MemoryStore {
    fn send(&self, request: Request) {
        let sent = boot_clock();
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (answer, has_changed) = match request {
            Request::Grant => (Some(StoreEvent::Granted { lease: state.grant(), sent }), false),
            Request::Renew(lease) if state.leases.contains(&lease) => {
                (Some(StoreEvent::Renewed { lease, sent }), false)
            }
            Request::Renew(lease) => (Some(StoreEvent::LeaseLost { lease }), false),
            Request::Revoke(lease) => (None, state.revoke(lease)),
            Request::Submit(number, transaction) => {
                let outcome = state.commit(&transaction);
                (Some(StoreEvent::Answered { number, outcome }), outcome != Outcome::Refused)
            }
        };
        let (view, sinks) = (Arc::clone(&state.view), state.sinks.clone());
        drop(state);
        answer.into_iter().for_each(|answer| (self.sink)(answer));
        for sink in sinks.iter().filter(|_| has_changed) {
            sink(StoreEvent::View(Arc::clone(&view)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::id::NodeId;
    use crate::snapshot::Alive;

    #[test]
    fn connections_share_the_content_and_leases_end_when_given_back() {
        let shared = Arc::new(Shared::default());
        let connect = || {
            let (sender, events) = channel();
            let sink = Box::new(move |event| _ = sender.send(event));
            (MemoryStore::connect(Arc::clone(&shared), sink), events)
        };
        let ((one, answers), (_two, views)) = (connect(), connect());
        one.send(Request::Grant);
        assert!(matches!(answers.recv(), Ok(StoreEvent::Granted { lease: 1, .. })));
        let put = |lease| Transaction {
            guards: Vec::new(),
            changes: vec![Change::Alive(NodeId::new([1; 20]), Alive { lease, ..Alive::default() })],
        };
        one.send(Request::Submit(1, put(9)));
        assert!(matches!(answers.recv(), Ok(StoreEvent::Answered { outcome: Outcome::Refused, .. })));
        one.send(Request::Submit(2, put(1)));
        assert!(matches!(views.recv(), Ok(StoreEvent::View(view)) if view.alive.len() == 1));
        one.send(Request::Revoke(1));
        assert!(matches!(views.recv(), Ok(StoreEvent::View(view)) if view.alive.is_empty()));
    }
}
