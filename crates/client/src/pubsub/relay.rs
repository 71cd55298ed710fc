//! Messages for clients of other nodes of a cluster.

use evenkeel_store::SlotGuard;

use super::unit::{Message, keep};
use super::{PubSub, SubscriptionKind};

/// Sends messages to other nodes.
pub trait Relay: Send + Sync {
    /// Whether a message of this kind goes to any other node now.
    fn has_receivers(&self, kind: SubscriptionKind) -> bool;

    /// Sends a message, at most once to each node. Does not wait.
    fn send(&self, kind: SubscriptionKind, channel: &[u8], text: &[u8]);
}

impl PubSub {
    /// Lets messages of clients go to other nodes from now on. Only the first call counts.
    pub fn relay_by(&self, relay: Box<dyn Relay>) {
        let _ = self.relay.set(relay);
    }

    /// Sends a client's message to the other nodes.
    pub fn relay(&self, kind: SubscriptionKind, channel: &[u8], text: &[u8]) {
        if let Some(relay) = self.relay.get() {
            relay.send(kind, channel, text);
        }
    }

    /// [`PubSub::relay`] within a unit: the message goes when the unit ends.
    pub fn relay_in_unit(
        &self,
        guard: &mut SlotGuard<'_>,
        kind: SubscriptionKind,
        channel: &[u8],
        text: &[u8],
    ) {
        if self.relay.get().is_some_and(|relay| relay.has_receivers(kind)) {
            keep(Message::Relayed { kind, channel: channel.into(), text: text.into() });
            guard.record_messages();
        }
    }
}
