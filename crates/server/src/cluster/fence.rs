//! The time until which this node may serve its slots.
//!
//! With a store, the node holds a lease, and stops before the lease may end: another node may take its place
//! then. A worker compares the time of `boot_clock` with the fence inside the gate before each batch; the
//! margin of the lease covers the time of a batch.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use evenkeel_cluster::store::boot_clock;

/// See the module's text.
pub(crate) struct Fence {
    /// Milliseconds of `boot_clock`; `u64::MAX`: there is no store, and no fence.
    until: AtomicU64,
}

impl Fence {
    /// A node with a store serves nothing before it has a lease.
    pub(super) fn new(has_store: bool) -> Fence {
        Fence { until: AtomicU64::new(if has_store { 0 } else { u64::MAX }) }
    }

    /// Moves the fence of a node with a store to a time in milliseconds of `boot_clock`.
    pub(super) fn set(&self, until: u64) {
        self.until.store(until.min(u64::MAX - 1), Release);
    }

    /// Whether the node may not serve any more.
    #[inline]
    pub(crate) fn has_passed(&self) -> bool {
        let until = self.until.load(Acquire);
        until != u64::MAX && boot_clock() >= until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_a_store_serves_until_a_time() {
        assert!(!Fence::new(false).has_passed());
        let fence = Fence::new(true);
        assert!(fence.has_passed());
        fence.set(boot_clock() + 60_000);
        assert!(!fence.has_passed());
        fence.set(boot_clock());
        assert!(fence.has_passed());
    }
}
