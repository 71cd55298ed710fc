//! The right to end a wait: contended by the serving thread, the timeout, CLIENT UNBLOCK, and the close of
//! the connection.
//!
//! All of them may come at the same moment on different threads, and a single thread must win. An element
//! taken for a client must become that client's reply, and no element may be taken for a client that was told
//! of its timeout. So the wait is claimed while a thread serves it, and all other threads hold back until the
//! outcome is clear:
//!
//! ```text
//!                    take                    finish
//!     waiting  ───────────────>  claimed  ───────────────>  over
//!        │  ^                       │                         ^
//!        │  └──── Claimed dropped ──┘                         │
//!        └──────────────────────── end ───────────────────────┘
//! ```
//!
//! Two bad interleavings are the reason for holding back:
//!
//! - The serving thread checks the client's socket, whose owner could close it meanwhile. A new connection
//!   would get its descriptor, and the check would report on the wrong client. So [`Claim::end`] goes before
//!   every close.
//! - A wait for two keys may be served for both at once. If the second thread passed over a claimed wait, and
//!   the first then found nothing for it, the wait would go on although a key has a value for it.
//!
//! A wait is claimed for as long as a handler runs. The thread that runs it has all the locks that it needs
//! and claims nothing else meanwhile. So no thread holds back for long, and never in a circle.

use crate::sync::{Mutex, MutexGuard};

/// Whether the wait is over; see the module's text.
pub struct Claim(Mutex<bool>);

/// A wait that is being served. On drop the wait goes on.
pub struct Claimed<'a>(MutexGuard<'a, bool>);

impl Default for Claim {
    fn default() -> Claim {
        Claim::new()
    }
}

impl Claim {
    pub fn new() -> Claim {
        Claim(Mutex::new(false))
    }

    /// Claims the wait in order to serve it; `None` if it is over.
    pub fn take(&self) -> Option<Claimed<'_>> {
        let is_over = self.0.lock();
        (!*is_over).then_some(Claimed(is_over))
    }

    /// Whether the wait is over. Blocks while it is claimed.
    pub fn is_over(&self) -> bool {
        *self.0.lock()
    }

    /// Ends the wait without serving it; false if it was over.
    pub fn end(&self) -> bool {
        !std::mem::replace(&mut *self.0.lock(), true)
    }
}

impl Claimed<'_> {
    /// Ends the wait as served.
    pub fn finish(mut self) {
        *self.0 = true;
    }
}
