//! What a running script needs of the server: its call, the shared state, and the decisions of the server.

use evenkeel_acl::Acl;
use evenkeel_acl::log::Refusal;
use evenkeel_client::{Hub, Session};
use evenkeel_command::error::Error;
use evenkeel_command::flow::Done;
use evenkeel_command::reply::Reply;
use evenkeel_command::{Args, Call, Flags, Id, Spec, Table};
use evenkeel_core::Core;
use evenkeel_store::Key;

use crate::Scripts;

/// A call of a command that runs a script or a function. The fields are separate, so that one is borrowed
/// while another changes.
pub struct ScriptCall<'r, 'a, 'h> {
    pub base: &'r mut Call<'a, 'h>,
    pub session: &'r mut Session,
    pub core: &'r Core,
    pub hub: &'r Hub,
    pub acl: &'r Acl,
    /// Commands under their configured names.
    pub table: &'static Table,
    pub scripts: &'r Scripts,
    pub host: &'r dyn ScriptHost,
}

impl<'a, 'h> ScriptCall<'_, 'a, 'h> {
    /// Lends the call for a shorter time.
    pub fn reborrow(&mut self) -> ScriptCall<'_, 'a, 'h> {
        ScriptCall { base: self.base, session: self.session, ..*self }
    }
}

/// The server behind a running script, on the thread that runs it: how commands of the script are admitted,
/// run and counted.
pub trait ScriptHost {
    /// Checks whether the session's user may run a command in a script, at `now_ms` milliseconds since the
    /// Unix epoch.
    ///
    /// # Errors
    /// The error for the script, and the entry for ACL LOG, which the run adds once it is known to count.
    fn permit(
        &self,
        session: &mut Session,
        command: (Id, &Args<'_>),
        now_ms: u64,
    ) -> Result<(), Box<(Error, Refusal)>>;

    /// Whether the session's user may run a command; nothing is logged.
    fn may_call(&self, session: &mut Session, command: (Id, &Args<'_>)) -> bool;

    /// Checks in cluster mode whether this node serves a command of a script, whose call holds the slots of
    /// `keys`. Returns the slot of the command.
    ///
    /// # Errors
    /// The error for the script.
    fn check_slots(
        &self,
        call: (&mut Call<'_, '_>, &Session),
        command: (&Spec, &Args<'_>),
        keys: &[Key<'_>],
    ) -> Result<Option<u16>, Error>;

    /// Returns the reason why the server's state refuses a command with these flags, if any. Called only
    /// while there are blockers.
    fn refusal(&self, command: (&Spec, Flags), session: &Session) -> Option<Error>;

    /// Runs an admitted command under the locks of the script's call, which include those of `keys`, and
    /// counts its time and its error. `reply` is empty, and gets the command's reply.
    ///
    /// # Errors
    /// The command's error, which is not in `reply`.
    fn run(
        &self,
        call: (&mut Call<'_, '_>, &mut Session),
        command: (Id, Args<'_>),
        keys: &[Key<'_>],
        reply: &mut Reply,
    ) -> Done;

    /// Counts an error that a client or a script reads; `line` begins with the code, without a minus.
    fn record_error(&self, line: &[u8]);

    /// Counts a command of a script that was not admitted.
    fn record_rejected(&self, id: Id);

    /// Counts a panic of a command.
    fn record_panic(&self);

    /// Refuses the scripts that wait for the thread for slow scripts, since a script was announced as busy.
    fn refuse_waiting_scripts(&self);

    /// Whether the server certainly stops, so that a script must not run for long any more.
    fn certainly_stops(&self) -> bool;
}
