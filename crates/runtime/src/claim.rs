//! Who may end a wait: the one who serves it, its timeout, CLIENT UNBLOCK, or the end of its connection.
//!
//! All of them may come at the same moment on different threads, and one alone must win: an element that has been taken
//! for a client must be that client's reply, and nobody may take one for a client that has been told of its timeout. So
//! the wait is claimed while somebody serves it, and everybody else has to hold back until it is clear what came of it:
//!
//! ```text
//!                    take                    finish
//!     waiting  ───────────────>  claimed  ───────────────>  over
//!        │  ^                       │                         ^
//!        │  └──── Claimed dropped ──┘                         │
//!        └──────────────────────── end ───────────────────────┘
//! ```
//!
//! Two bad interleavings are the reason for the holding back. The one who serves looks at the client's socket, whose
//! owner could close it meanwhile; another connection would get its number, and the look would tell of a stranger. So
//! [`Claim::end`] goes before every close. And a wait for two keys may be served for both at once: if the second one
//! passed over what is claimed, and the first one then found nothing for it, it would be left waiting for a key that has
//! what it wants.
//!
//! A wait is claimed as long as one handler runs; whoever runs it has all the locks that it needs, and claims nothing
//! else meanwhile. So nobody holds back for long, and never in a circle.

use crate::sync::{Mutex, MutexGuard};

/// See the module's text. Whether the wait is over.
pub struct Claim(Mutex<bool>);

/// A wait that is being served; dropping it lets it go on waiting.
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

    /// Claims the wait in order to serve it; `None`: it is over.
    pub fn take(&self) -> Option<Claimed<'_>> {
        let is_over = self.0.lock();
        (!*is_over).then_some(Claimed(is_over))
    }

    /// Whether the wait is over; looked at when nobody is serving it.
    pub fn is_over(&self) -> bool {
        *self.0.lock()
    }

    /// Ends the wait without serving it; `false`: it was over.
    pub fn end(&self) -> bool {
        !std::mem::replace(&mut *self.0.lock(), true)
    }
}

impl Claimed<'_> {
    /// The wait has been served.
    pub fn finish(mut self) {
        *self.0 = true;
    }
}
