//! Conditions that block commands. The threads that notice a condition set its bit; which commands it
//! concerns is decided by admission (`server/src/executor/admission.rs`).

use std::sync::atomic::{AtomicU8, Ordering::*};

use bitflags::bitflags;

bitflags! {
    /// Conditions that block commands.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct Blockers: u8 {
        /// Data are being loaded.
        const LOADING = 1 << 0;
        /// The last snapshot failed, and the settings stop writes without one.
        const NO_SNAPSHOT = 1 << 1;
        /// The append-only file cannot be written.
        const NO_LOG = 1 << 2;
        /// The unread journal exceeds its limit, so writes wait.
        const CROWDED = 1 << 3;
        /// There are fewer good replicas than the settings require.
        const NO_REPLICAS = 1 << 4;
        /// The server is a replica, and clients may not write.
        const READ_ONLY = 1 << 5;
        /// The server is a replica whose link is down, and clients must not read stale data.
        const STALE = 1 << 6;
    }
}

/// The blockers in force: read before every command, and written very rarely.
#[derive(Default)]
pub struct AtomicBlockers(AtomicU8);

impl AtomicBlockers {
    #[inline]
    pub fn any(&self) -> Blockers {
        Blockers::from_bits_retain(self.0.load(Relaxed))
    }

    pub fn set(&self, blocker: Blockers, is_there: bool) {
        if is_there {
            self.0.fetch_or(blocker.bits(), AcqRel);
        } else {
            self.0.fetch_and(!blocker.bits(), AcqRel);
        }
    }
}
