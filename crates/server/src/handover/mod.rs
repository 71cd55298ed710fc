//! The hand-over of a running server to another process: an upgrade that no client notices.
//!
//! ```text
//!  this process (the predecessor)                       the new program (the successor)
//!  starts it ─────────────────────────────────────────>
//!  settings, users, scripts, memory ──────────────────> checks that it can serve with them
//!                                             <──────── Mapped: it uses the memory of the data
//!  snapshot (empty if mapped), and the stream ────────> follows as a replica
//!                                             <──────── Ready: it has, or has mapped, the data
//!  pauses all clients, waits until it has all
//!  freezes its workers
//!  listeners, clients with their sessions ────────────> makes the same sessions, serves none
//!                                             <──────── Adopted
//!  ends the append-only file, releases its locks
//!  closes the gate in front of the data
//!  Commit, or CommitData ─────────────────────────────> goes on with the append-only file
//!                                             <──────── Serving
//!  ends                                                 takes the memory over, serves
//! ```
//!
//! **Exactly one of the two serves at any time.** The successor serves nobody before it has sent `Serving`,
//! and the predecessor serves nobody after it has frozen its workers, unless the successor refuses or ends
//! without having sent `Serving`: then the predecessor goes on as if nothing had been. If the predecessor
//! ends after `Commit`, the successor has everything and serves all the same. docs/upgrade.md goes through
//! the moments at which either may be killed.
//!
//! | file | |
//! |---|---|
//! | `messages.rs` | what the two send each other |
//! | `client_state.rs` | a client's session and unsent bytes, out of a connection and into one |
//! | `predecessor.rs` | the side that hands over |
//! | `successor.rs` | the side that takes over |
//! | `control.rs` | the socket on which `evenkeel upgrade` asks a server, and that command |
//! | `keeper.rs` | keeps the process id of the first process, for whoever waits for that |

mod client_state;
pub(crate) mod control;
pub(crate) mod keeper;
mod messages;
pub(crate) mod predecessor;
pub(crate) mod successor;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::*};
use std::sync::mpsc::Sender;

use parking_lot::{Condvar, Mutex};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) use client_state::ClientState;

/// The name of the variable that tells the successor the number of its channel's descriptor.
const CHANNEL_VARIABLE: &str = "EVENKEEL_HANDOVER";

/// The program, the arguments and the folder with which this process was started. The process title
/// overwrites the arguments, and the server goes to the folder of its data.
static COMMAND_LINE: OnceLock<(OsString, Vec<OsString>, PathBuf)> = OnceLock::new();

/// Records the command line, once, before anything changes the process title.
pub(crate) fn record_command_line(program: &std::ffi::OsStr, args: &[OsString]) {
    if let Ok(folder) = std::env::current_dir() {
        let _ = COMMAND_LINE.set((program.to_owned(), args.to_vec(), folder));
    }
}

/// The state of hand-overs, shared by all threads.
#[derive(Default)]
pub(crate) struct Handover {
    /// One hand-over at a time.
    is_under_way: AtomicBool,
    /// Workers neither accept connections nor move them to other workers.
    keeps_connections: AtomicBool,
    /// A signal that has come meanwhile, for whichever process serves in the end; zero: none.
    signal: AtomicI32,
    /// The process that serves from now on, in place of this one; zero: there is none.
    successor: AtomicU32,
}

impl Handover {
    /// Whether workers keep the connections that they have, and accept none.
    #[inline]
    pub(crate) fn keeps_connections(&self) -> bool {
        self.keeps_connections.load(Acquire)
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.is_under_way.load(Acquire)
    }

    /// Passes a signal on to the process that serves in place of this process. During the hand-over, the
    /// signal is kept until one of the two processes serves. Returns false if this process serves.
    pub(crate) fn take_signal(&self, signal: i32) -> bool {
        if !self.keeps_connections() {
            return false;
        }
        self.signal.store(signal, SeqCst);
        let successor = self.successor.load(SeqCst);
        if successor != 0 {
            self.pass_signal(successor);
        }
        true
    }

    /// Decides that this process serves from now on.
    fn set_server(&self, pid: u32) {
        self.successor.store(pid, SeqCst);
        self.pass_signal(pid);
    }

    /// Passes the kept signal on, if there is one.
    fn pass_signal(&self, pid: u32) {
        let signal = Signal::from_named_raw(self.signal.swap(0, SeqCst));
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        if let (Some(signal), Some(pid)) = (signal, pid) {
            let _ = kill_process(pid, signal);
        }
    }
}

/// A worker's connections at the moment at which it froze.
pub(crate) struct Frozen {
    pub(crate) clients: Vec<(ClientState, std::os::fd::RawFd)>,
    /// Connections that cannot travel, by kind.
    pub(crate) left: Left,
    /// The reason why a connection cannot travel yet.
    pub(crate) busy: Option<&'static str>,
}

impl Frozen {
    /// The number of the worker's connections, unless one of them cannot travel yet.
    fn connections(&self) -> usize {
        self.clients.len() + self.left.tls + self.left.http + self.left.closing
    }
}

/// Numbers of connections that end with the predecessor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Left {
    pub(crate) tls: usize,
    pub(crate) http: usize,
    pub(crate) closing: usize,
}

/// Has the workers do nothing until [`Freeze::thaw`]. Each sends its connections first.
pub(crate) struct Freeze {
    pub(crate) frozen: Sender<Frozen>,
    is_over: Mutex<bool>,
    ends: Condvar,
}

impl Freeze {
    fn new(frozen: Sender<Frozen>) -> Freeze {
        Freeze { frozen, is_over: Mutex::new(false), ends: Condvar::new() }
    }

    /// Waits for the end; for workers.
    pub(crate) fn wait(&self) {
        let mut is_over = self.is_over.lock();
        while !*is_over {
            self.ends.wait(&mut is_over);
        }
    }

    fn thaw(&self) {
        *self.is_over.lock() = true;
        self.ends.notify_all();
    }
}
