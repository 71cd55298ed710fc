//! The script that keeps all clients waiting, if there is such a script. Other threads read the reply for
//! their clients here, and mark the script as killed.
//!
//! A script is announced here once it has run for longer than `busy-reply-threshold` and has the gate closed,
//! so there is one at most. While none is announced, commands pay nothing: a thread that waits at the closed
//! gate looks at a single flag.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

use parking_lot::Mutex;

use evenkeel_command::error::Error;
use evenkeel_runtime::clock::Ticks;

/// The announced script; see the module's text.
#[derive(Default)]
pub struct Busy {
    /// Whether a script is announced. Shared with the contexts of threads that answer clients meanwhile, see
    /// [`evenkeel_store::ThreadContext::gate_busy`].
    is_announced: Arc<AtomicBool>,
    is_function: AtomicBool,
    killed: AtomicBool,
    running: Mutex<Option<Running>>,
}

/// Description of a running script.
#[derive(Clone, Debug)]
pub struct Running {
    /// Digest of a script, or name of a function.
    pub name: Vec<u8>,
    /// The arguments of the client's command.
    pub command: Vec<Vec<u8>>,
    pub since: Ticks,
    pub is_function: bool,
    /// Whether it has run a write command.
    pub wrote: bool,
    /// Whether it comes from a primary's stream or from the append-only file.
    pub is_replayed: bool,
}

impl Busy {
    /// Whether a script is announced.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.is_announced.load(Acquire)
    }

    /// Returns the flag of [`Busy::is_busy`], for a thread's context.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.is_announced.clone()
    }

    /// Announces a script. Returns `false` if another is announced.
    pub(super) fn begin(&self, running: Running) -> bool {
        let mut place = self.running.lock();
        if place.is_some() {
            return false;
        }
        self.killed.store(false, Release);
        self.is_function.store(running.is_function, Release);
        self.is_announced.store(true, Release);
        *place = Some(running);
        true
    }

    pub(super) fn end(&self) {
        let mut place = self.running.lock();
        *place = None;
        self.is_announced.store(false, Release);
    }

    pub(super) fn record_write(&self) {
        if let Some(running) = &mut *self.running.lock() {
            running.wrote = true;
        }
    }

    pub(super) fn is_killed(&self) -> bool {
        self.killed.load(Acquire)
    }

    /// Returns the announced script.
    pub fn running(&self) -> Option<Running> {
        self.running.lock().clone()
    }

    /// Marks the script as killed, for SCRIPT KILL or, with `a_function`, for FUNCTION KILL.
    ///
    /// # Errors
    /// No script is announced, the announced script must not be killed, or it is of the other kind.
    pub fn kill(&self, a_function: bool) -> Result<(), Error> {
        let place = self.running.lock();
        let Some(running) = &*place else {
            return Err(Error::text("NOTBUSY No scripts in execution right now."));
        };
        if running.is_replayed {
            return Err(Error::text(
                "UNKILLABLE The busy script was sent by a master instance in the context of replication and \
                 cannot be killed.",
            ));
        }
        if running.wrote {
            return Err(Error::text(
                "UNKILLABLE Sorry the script already executed write commands against the dataset. You can \
                 either wait the script termination or kill the server in a hard way using the SHUTDOWN \
                 NOSAVE command.",
            ));
        }
        if running.is_function != a_function {
            return Err(refusal(running.is_function));
        }
        self.killed.store(true, Release);
        Ok(())
    }

    /// Returns the error that clients receive meanwhile.
    pub fn refusal(&self) -> Error {
        refusal(self.is_function.load(Acquire))
    }
}

fn refusal(of_function: bool) -> Error {
    let text = if of_function {
        "BUSY Evenkeel is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE."
    } else {
        "BUSY Evenkeel is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
    };
    Error::text(text)
}
