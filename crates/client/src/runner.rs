//! The runner of commands, as persistence and replication see it: they run commands of a file or of a
//! primary's stream as a client would send them.

use std::sync::Arc;

use evenkeel_command::reply::Reply;
use evenkeel_command::{Args, Id};
use evenkeel_store::{Place, ThreadContext};

use crate::session::Session;

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Replied,
    /// CLIENT PAUSE: to be tried again when the pause is over.
    Paused,
    /// The command waits, and its reply comes by [`Resumed`](crate::waiting::Resumed). The client's next
    /// commands have to wait, too.
    Suspended,
}

/// A request whose command is known.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// `None`: there is no command of this name.
    pub command: Option<Id>,
    pub args: Args<'a>,
    /// Length of the request in bytes.
    pub len: usize,
    /// Hash and place of the first argument, if it is the only key and both are computed.
    pub key: Option<(u64, Place)>,
}

/// Creates runners of commands.
pub trait RunnerFactory: Send + Sync {
    /// Creates a runner for a thread that is no worker. `ctx` is outside the gate.
    fn runner(self: Arc<Self>, ctx: ThreadContext) -> Box<dyn CommandRunner>;
}

/// Runs commands on a thread that is no worker. The thread enters the gate with the runner's context around
/// each command.
pub trait CommandRunner: Send {
    /// Returns the context in which the commands run.
    fn ctx(&mut self) -> &mut ThreadContext;

    /// Ends the runner and returns its context.
    fn into_ctx(self: Box<Self>) -> ThreadContext;

    /// Updates the time and changed settings.
    fn refresh(&mut self, now_ms: u64);

    /// Excludes the time since the last command from the time of the next command.
    fn restart_clock(&mut self);

    /// Looks up the command and the key of a request of an append-only file or a stream. Both use the
    /// original names, whatever clients call the commands here. If Redis renames commands, its files have the
    /// new names: then the same commands have to be renamed here as well.
    fn resolve_logged<'a>(&self, args: Args<'a>, db: u32) -> Request<'a>;

    /// Runs a request. Returns `None` if the command has panicked.
    fn run(&mut self, session: &mut Session, request: Request<'_>, reply: &mut Reply) -> Option<Outcome>;

    /// Returns the number of failed commands so far, of all threads that share this runner's counters.
    fn errors(&self) -> u64;

    /// Evicts keys if memory is short, as before a client's commands. Returns false if it remains short. The
    /// context is inside the gate, and holds nothing; it may leave the gate for a moment.
    fn make_room(&mut self) -> bool;

    /// Serves clients that wait for the keys that commands have written. The context is inside the gate.
    fn serve_woken(&mut self);
}
