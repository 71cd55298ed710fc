//! The script that keeps everybody waiting, if there is one: others read here what to tell their clients, and write here
//! that it is to be killed.
//!
//! Only a script that has run for longer than `busy-reply-threshold` is announced. While none is, this costs nobody
//! anything: who waits at the closed gate looks at one number.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::*};

use parking_lot::Mutex;

use crate::clock::Ticks;
use crate::error::Error;

const NONE: u8 = 0;
const SCRIPT: u8 = 1;
const FUNCTION: u8 = 2;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Busy {
    /// What is running.
    kind: AtomicU8,
    killed: AtomicBool,
    running: Mutex<Option<Running>>,
}

/// A script that is running.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) name: Vec<u8>,
    pub(crate) command: Vec<Vec<u8>>,
    pub(crate) since: Ticks,
    pub(crate) is_function: bool,
    pub(crate) wrote: bool,
}

impl Busy {
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.kind.load(Acquire) != NONE
    }

    /// Announces a script; `false`: another one is announced.
    pub(super) fn begin(&self, running: Running) -> bool {
        let mut place = self.running.lock();
        if place.is_some() {
            return false;
        }
        self.killed.store(false, Release);
        self.kind.store(if running.is_function { FUNCTION } else { SCRIPT }, Release);
        *place = Some(running);
        true
    }

    pub(super) fn end(&self) {
        let mut place = self.running.lock();
        *place = None;
        self.kind.store(NONE, Release);
    }

    pub(super) fn note_write(&self) {
        if let Some(running) = &mut *self.running.lock() {
            running.wrote = true;
        }
    }

    pub(super) fn is_killed(&self) -> bool {
        self.killed.load(Acquire)
    }

    pub(crate) fn running(&self) -> Option<Running> {
        self.running.lock().clone()
    }

    /// SCRIPT KILL, or FUNCTION KILL.
    pub(crate) fn kill(&self, a_function: bool) -> Result<(), Error> {
        let place = self.running.lock();
        let Some(running) = &*place else {
            return Err(Error::text("NOTBUSY No scripts in execution right now."));
        };
        if running.wrote {
            return Err(Error::text(
                "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait \
                 the script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.",
            ));
        }
        if running.is_function != a_function {
            return Err(refusal(running.is_function));
        }
        self.killed.store(true, Release);
        Ok(())
    }

    /// What clients are told meanwhile.
    pub(crate) fn refusal(&self) -> Error {
        refusal(self.kind.load(Acquire) == FUNCTION)
    }
}

fn refusal(of_function: bool) -> Error {
    let text = if of_function {
        "BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE."
    } else {
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
    };
    Error::text(text)
}
