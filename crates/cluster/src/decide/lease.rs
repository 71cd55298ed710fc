//! The lease of a node, its entry `alive/<node>`, and the time until which the node may serve.
//!
//! The store ends a lease no sooner than its time to live after it handled a renewal, and the node sent the
//! renewal before that. So the node may count from the time of sending, less a margin for the rate of its
//! clock. It serves only with a view that has its entry with this very lease: the lease prevents promotions,
//! and the view shows any earlier promotion.
//!
//! The entry is made only where there is none. A second process with the same identity therefore waits until
//! the lease of the first has ended, and the first has stopped by then.

use super::{Action, Decider, Timing};
use crate::snapshot::{Alive, Change, Key, LeaseId, Transaction};

/// The state of the lease.
#[derive(Debug, Default)]
pub(super) struct Lease {
    id: Option<LeaseId>,
    /// The time at which the last request was sent that the store answered.
    renewed: u64,
    /// The time of the next request.
    next_ask: u64,
    /// The transaction on the entry that has no answer yet, and the time of the last transaction.
    entry: Option<u64>,
    entry_sent: u64,
    /// The time of the last attempt to settle unknown transactions.
    retried: u64,
    /// The lease has been given back.
    is_over: bool,
}

impl Lease {
    pub(super) fn id(&self) -> Option<LeaseId> {
        self.id
    }

    pub(super) fn granted(&mut self, lease: LeaseId, sent: u64) {
        if self.id.is_none() && !self.is_over {
            (self.id, self.renewed) = (Some(lease), sent);
        }
    }

    pub(super) fn renewed(&mut self, lease: LeaseId, sent: u64) {
        if self.id == Some(lease) {
            self.renewed = self.renewed.max(sent);
        }
    }

    pub(super) fn lost(&mut self, lease: LeaseId) {
        if self.id == Some(lease) {
            (self.id, self.next_ask) = (None, 0);
        }
    }

    /// A request failed: the next one comes soon, but not at once, since a store that is away fails at once.
    pub(super) fn unanswered(&mut self, now: u64, timing: &Timing) {
        self.next_ask = self.next_ask.min(now + timing.renew / 4);
    }

    pub(super) fn answered(&mut self, number: u64) {
        if self.entry == Some(number) {
            self.entry = None;
        }
    }

    /// Whether `pause` has passed since this function last said so.
    pub(super) fn may_retry(&mut self, now: u64, pause: u64) -> bool {
        let may = now >= self.retried + pause;
        if may {
            self.retried = now;
        }
        may
    }
}

impl Decider {
    /// Asks for the lease, renews it, and writes the node's entry.
    pub(super) fn keep_lease(&mut self) {
        if self.lease.is_over {
            return;
        }
        if self.now >= self.lease.next_ask {
            self.lease.next_ask = self.now + self.setup.timing.renew;
            let ask = self.lease.id.map_or(Action::Grant, |lease| Action::Renew { lease });
            self.actions.push(ask);
        }
        self.keep_entry();
    }

    fn keep_entry(&mut self) {
        let Some(lease) = self.lease.id else { return };
        if self.lease.entry.is_some() {
            return;
        }
        let entry = Alive {
            process: self.setup.process,
            lease,
            incarnation: self.setup.incarnation,
            offset: self.offset,
            address: self.setup.address.clone(),
            version: self.setup.version.clone(),
        };
        let known = self.view.alive.get(&self.setup.me).map(|known| &*known.value);
        let is_due = match known {
            None => self.lease.entry_sent == 0 || self.now >= self.lease.entry_sent + self.setup.timing.rank,
            Some(known) if known.process != self.setup.process || known.lease != lease => false,
            Some(known) if known.incarnation != entry.incarnation => {
                self.now >= self.lease.entry_sent + self.setup.timing.rank / 4
            }
            Some(known) => {
                known.offset != entry.offset && self.now >= self.lease.entry_sent + self.setup.timing.retry
            }
        };
        if is_due {
            self.put_entry(entry);
        }
    }

    fn put_entry(&mut self, entry: Alive) {
        let guard = self.view.unchanged(Key::Alive(self.setup.me));
        let change = Change::Alive(self.setup.me, entry);
        self.lease.entry = Some(self.submit(Transaction { guards: vec![guard], changes: vec![change] }));
        self.lease.entry_sent = self.now;
    }

    /// Gives the lease back: the node has stopped serving.
    pub(super) fn give_lease_back(&mut self) {
        self.lease.is_over = true;
        if let Some(lease) = self.lease.id.take() {
            self.update_fence();
            self.actions.push(Action::Revoke { lease });
        }
    }

    /// The time until which the node may serve; 0: it may not.
    fn serves_until(&self) -> u64 {
        let has_lease =
            if self.protections.fresh_view { self.is_registered() } else { self.lease.id.is_some() };
        if !self.is_leading() || self.proposals.give_away() {
            return 0;
        }
        match self.protections {
            super::Protections { fence: false, .. } => u64::MAX,
            _ if !has_lease => 0,
            super::Protections { margin: false, .. } => self.lease.renewed + self.setup.timing.ttl,
            _ => (self.lease.renewed + self.setup.timing.ttl).saturating_sub(self.setup.timing.margin),
        }
    }

    pub(super) fn update_fence(&mut self) {
        let fence = self.serves_until();
        if fence != self.fence {
            self.fence = fence;
            self.actions.push(Action::ServeUntil(fence));
        }
    }
}
