//! Who may end a wait: the one who serves it, its timeout, CLIENT UNBLOCK, or the end of its connection.
//!
//! All of them may come at the same moment on different threads, and one alone must win: an element that has been taken
//! for a client must be that client's reply, and nobody may take one for a client that has been told of its timeout. So
//! a wait has a state that is changed by exchanging it:
//!
//! ```text
//!                    take                    finish
//!     WAITING  ───────────────>  CLAIMED  ───────────────>  DONE
//!        │  ^                       │                         ^
//!        │  └───── give_back ───────┘                         │
//!        └──────────────────────── end ───────────────────────┘
//! ```
//!
//! Whoever serves looks at the client's socket while the state is CLAIMED. The bad interleaving: the owner closes the
//! socket between the claim and the look, another connection gets its number, and the look tells of a stranger. So
//! [`Claim::end`], which goes before every close, waits while the state is CLAIMED. That is as long as one handler runs,
//! which has all the locks that it needs and waits for nothing.

use crate::sync::atomic::{AtomicU8, Ordering::*};
use crate::sync::yield_now;

const WAITING: u8 = 0;
const CLAIMED: u8 = 1;
const DONE: u8 = 2;

/// See the module's text.
pub(crate) struct Claim(AtomicU8);

impl Claim {
    pub(crate) fn new() -> Claim {
        Claim(AtomicU8::new(WAITING))
    }

    /// Claims the wait in order to serve it; `false`: it has ended, or another thread is serving it.
    pub(crate) fn take(&self) -> bool {
        self.0.compare_exchange(WAITING, CLAIMED, Acquire, Relaxed).is_ok()
    }

    /// There was nothing for it: it goes on waiting. For who has claimed it.
    pub(crate) fn give_back(&self) {
        self.0.store(WAITING, Release);
    }

    /// It has been served. For who has claimed it.
    pub(crate) fn finish(&self) {
        self.0.store(DONE, Release);
    }

    /// Ends the wait without serving it; `false`: it has been served, or somebody else has ended it.
    pub(crate) fn end(&self) -> bool {
        loop {
            match self.0.compare_exchange(WAITING, DONE, AcqRel, Acquire) {
                Ok(_) => return true,
                Err(DONE) => return false,
                Err(_) => yield_now(),
            }
        }
    }
}
