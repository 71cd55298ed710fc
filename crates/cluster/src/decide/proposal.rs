//! Transactions on the key of the node's own shard whose effect is not yet in the view.
//!
//! All of them have the guard that the key is as in the view. So at most a single transaction is ever made,
//! and none after the view shows a later revision of the key. Until then each of them may yet be made, also
//! when its answer stayed away and a later read of the store shows the key unchanged: the request may still
//! be under way. Another transaction with the same guard settles that, whichever of the two is made.

use std::collections::BTreeMap;

use super::types::Outcome;
use crate::id::{MigrationId, NodeId};

/// A transaction on the shard's key.
#[derive(Clone, Debug)]
pub(super) struct Proposal {
    pub(super) number: u64,
    /// The in-sync set that it would make.
    pub(super) members: BTreeMap<NodeId, u64>,
    /// Whether it would make another node the primary.
    pub(super) gives_away: bool,
    /// The move whose slots it would give away.
    pub(super) switches: Option<MigrationId>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Sent,
    Committed,
    Unknown,
}

/// The transactions with the same guard.
#[derive(Clone, Debug, Default)]
pub(super) struct Proposals {
    revision: u64,
    list: Vec<Proposal>,
    /// After a refusal, no transaction before this time, unless the key changes.
    not_before: u64,
}

impl Proposals {
    /// Whether a transaction may be sent: none is on its way.
    pub(super) fn may_send(&self) -> bool {
        self.list.iter().all(|proposal| proposal.state == State::Unknown)
    }

    /// Whether a refusal was so recent that another attempt would meet the same.
    pub(super) fn waits(&self, now: u64) -> bool {
        now < self.not_before
    }

    pub(super) fn are_unknown(&self) -> bool {
        !self.list.is_empty() && self.may_send()
    }

    pub(super) fn give_away(&self) -> bool {
        self.list.iter().any(|proposal| proposal.gives_away)
    }

    pub(super) fn switch(&self, id: MigrationId) -> bool {
        self.list.iter().any(|proposal| proposal.switches == Some(id))
    }

    pub(super) fn have(&self, node: NodeId) -> bool {
        self.list.iter().any(|proposal| proposal.members.contains_key(&node))
    }

    pub(super) fn members(&self) -> impl Iterator<Item = (&NodeId, &u64)> {
        self.list.iter().flat_map(|proposal| &proposal.members)
    }

    /// A transaction has been sent, with the guard that the key is at this revision.
    pub(super) fn sent(
        &mut self,
        revision: u64,
        number: u64,
        members: BTreeMap<NodeId, u64>,
        gives_away: bool,
        switches: Option<MigrationId>,
    ) {
        self.revision = revision;
        self.list.push(Proposal { number, members, gives_away, switches, state: State::Sent });
    }

    /// The answer to a transaction. Returns whether it is known here.
    pub(super) fn answered(
        &mut self,
        number: u64,
        outcome: Outcome,
        forget_unknown: bool,
        retry: u64,
    ) -> bool {
        let Some(at) = self.list.iter().position(|proposal| proposal.number == number) else { return false };
        match outcome {
            Outcome::Committed(_) => self.list[at].state = State::Committed,
            Outcome::Unknown if !forget_unknown => self.list[at].state = State::Unknown,
            Outcome::Refused | Outcome::Unknown => {
                self.list.remove(at);
                self.not_before = retry;
            }
        }
        true
    }

    /// The view shows the key at this revision.
    pub(super) fn seen(&mut self, revision: u64) {
        if revision != self.revision {
            self.list.clear();
            (self.revision, self.not_before) = (revision, 0);
        }
    }
}
