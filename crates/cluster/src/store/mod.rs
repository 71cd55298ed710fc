//! The store of the map: etcd, or the memory of the only node.
//!
//! A [`Store`] takes [`Request`]s and answers with [`StoreEvent`]s, which carry all that a
//! [`Decider`](crate::Decider) needs. No call waits for the network.

mod documents;
mod error;
pub mod etcd;
pub mod memory;

use std::sync::Arc;

pub use documents::{Document, Meta, Paths};
pub use error::{FORMAT, StoreError};

use crate::decide::{Event, Outcome};
use crate::snapshot::{LeaseId, Snapshot, Transaction};

/// A request to the store.
#[derive(Clone, Debug)]
pub enum Request {
    Grant,
    Renew(LeaseId),
    Revoke(LeaseId),
    /// A transaction, with a number that the answer has as well.
    Submit(u64, Transaction),
}

/// An answer of the store, or news.
#[derive(Clone, Debug)]
pub enum StoreEvent {
    /// All keys at a revision that is higher than that of any earlier view.
    View(Arc<Snapshot>),
    Granted {
        lease: LeaseId,
        sent: u64,
    },
    Renewed {
        lease: LeaseId,
        sent: u64,
    },
    LeaseLost {
        lease: LeaseId,
    },
    LeaseUnanswered,
    Answered {
        number: u64,
        outcome: Outcome,
    },
    /// The identity of the cluster ([`Meta::cluster`]), which the node keeps.
    Identified {
        cluster: String,
    },
    /// Something is wrong; the store is tried again.
    Failed(StoreError),
    /// The store can be used again.
    Recovered,
}

impl StoreEvent {
    /// The event for the decider; `Err`: it is not for the decider.
    pub fn into_event(self) -> Result<Event, StoreEvent> {
        Ok(match self {
            StoreEvent::View(view) => Event::View(view),
            StoreEvent::Granted { lease, sent } => Event::Granted { lease, sent },
            StoreEvent::Renewed { lease, sent } => Event::Renewed { lease, sent },
            StoreEvent::LeaseLost { lease } => Event::LeaseLost { lease },
            StoreEvent::LeaseUnanswered => Event::LeaseUnanswered,
            StoreEvent::Answered { number, outcome } => Event::Answered { number, outcome },
            other => return Err(other),
        })
    }
}

/// Receives the events, on a thread of the store. It must not wait.
pub type EventSink = Box<dyn Fn(StoreEvent) + Send + Sync>;

/// A store of the map.
pub trait Store: Send + Sync {
    /// Sends a request. The answer, if there is one, is an event.
    fn send(&self, request: Request);
}

/// The clock of leases: milliseconds since the start of the machine, with the time in which it slept.
pub fn boot_clock() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec as u64 * 1_000 + time.tv_nsec as u64 / 1_000_000
}
