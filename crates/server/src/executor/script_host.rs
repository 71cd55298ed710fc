//! The server as running scripts see it ([`ScriptHost`]).

use std::sync::Arc;

use evenkeel_acl::log::Refusal;
use evenkeel_client::session::Session;
use evenkeel_command::error::Error;
use evenkeel_command::flow::Done;
use evenkeel_command::reply::Reply;
use evenkeel_command::{Args, Call, Flags, Id, Spec};
use evenkeel_scripting::host::{ScriptCall, ScriptHost};
use evenkeel_store::Key;

use super::{admission, nested, permission};
use crate::admin::ServerCall;
use crate::cluster::routing::Asker;
use crate::observe::stats::add;
use crate::server::Server;

/// The server, and the number of the thread that runs the script.
pub(crate) struct ScriptThread<'a> {
    server: &'a Arc<Server>,
    worker: usize,
}

impl<'a> ScriptThread<'a> {
    /// Returns the thread of a call.
    pub(crate) fn of(call: &ServerCall<'a, '_>) -> ScriptThread<'a> {
        ScriptThread { server: call.server, worker: call.worker }
    }

    /// Returns the call as its script sees it.
    pub(crate) fn script_call<'r, 'h>(&'r self, call: &'r mut ServerCall<'a, 'h>) -> ScriptCall<'r, 'a, 'h> {
        ScriptCall {
            base: &mut call.base,
            session: call.session,
            core: &self.server.core,
            hub: &self.server.hub,
            acl: &self.server.acl,
            table: self.server.table,
            scripts: &self.server.scripts,
            host: self,
        }
    }
}

impl ScriptHost for ScriptThread<'_> {
    fn permit(
        &self,
        session: &mut Session,
        command: (Id, &Args<'_>),
        now_ms: u64,
    ) -> Result<(), Box<(Error, Refusal)>> {
        permission::admit_in_script(self.server, session, command, now_ms)
    }

    fn may_call(&self, session: &mut Session, (id, args): (Id, &Args<'_>)) -> bool {
        permission::may_call(self.server, session, id, args)
    }

    fn check_slots(
        &self,
        (base, session): (&mut Call<'_, '_>, &Session),
        command: (&Spec, &Args<'_>),
        keys: &[Key<'_>],
    ) -> Result<Option<u16>, Error> {
        let Some(cluster) = &self.server.cluster else { return Ok(None) };
        let (settings, is_fenced) = (base.settings, self.server.is_fenced());
        cluster.with_view(self.worker, |view| {
            Asker { view, settings, session, is_fenced, holds_writers: false }
                .judge_in_script(command, keys, base.guard)
        })
    }

    fn refusal(&self, command: (&Spec, Flags), session: &Session) -> Option<Error> {
        admission::refusal(self.server, command, session)
    }

    fn run(
        &self,
        call: (&mut Call<'_, '_>, &mut Session),
        command: (Id, Args<'_>),
        keys: &[Key<'_>],
        reply: &mut Reply,
    ) -> Done {
        nested::run_in_script((self.server, self.worker), call, command, keys, reply)
    }

    fn record_error(&self, line: &[u8]) {
        self.server.stats[self.worker].script_error(line);
    }

    fn record_rejected(&self, id: Id) {
        add(&self.server.stats[self.worker].commands[id.index()].rejected, 1);
    }

    fn record_panic(&self) {
        add(&self.server.stats[self.worker].panics, 1);
    }

    fn refuse_waiting_scripts(&self) {
        self.server.slow_scripts.refuse_all(self.server, self.worker);
    }

    fn certainly_stops(&self) -> bool {
        self.server.certainly_stops()
    }
}
