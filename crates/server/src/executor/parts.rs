//! The parts of a call that do not depend on its arguments and locks, and the run of a handler with them.

use std::sync::Arc;

use evenkeel_config::Settings;
use evenkeel_runtime::clock::{self, Ticks};
use evenkeel_store::{Key, SlotGuard};

use super::look_again;
use super::permission;
use crate::admin::tracking::remember_keys;
use crate::admin::{ServerCall, ServerHandler};
use crate::commands::{Handler, handler};
use crate::executor::blocking;
use crate::executor::blocking::serve::Host;
use crate::executor::offload::Committing;
use crate::server::Server;
use evenkeel_client::monitor;
use evenkeel_client::session::Session;
use evenkeel_client::waiting::Resumed;
use evenkeel_command::call::{CallHost, logged};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow, Mode};
use evenkeel_command::reply::Reply;
use evenkeel_command::table::table;
use evenkeel_command::{Args, Call, Id, LockScope, Spec};

/// See the module's text.
pub(crate) struct Parts<'a> {
    id: Id,
    spec: &'static Spec,
    handler: Handler,
    reply: &'a mut Reply,
    pub(super) session: &'a mut Session,
    server: &'a Arc<Server>,
    settings: &'a Arc<Settings>,
    worker: usize,
}

/// The client and the server of a call on data.
struct DataHost<'a> {
    session: &'a Session,
    server: &'a Arc<Server>,
    settings: &'a Arc<Settings>,
    worker: usize,
}

impl CallHost for DataHost<'_> {
    fn client_id(&self) -> u64 {
        self.session.client.id
    }

    fn is_subscriber(&self) -> bool {
        self.session.subscriptions.is_some()
    }

    fn is_tracking(&self) -> bool {
        self.session.is_tracking()
    }

    fn may_offload(&self) -> bool {
        self.server.offload.has_room()
    }

    fn may_offload_io(&self) -> bool {
        self.server.offload.has_room_for_io()
    }

    fn may_read_all_keys(&self, id: Id, args: &Args<'_>) -> bool {
        permission::reads_all_keys(self.server, self.session, id, args)
    }

    fn look_again(&self, spec: &Spec, args: &Args<'_>, now_ms: u64) -> Done {
        look_again(self.server, self.session, (spec, args), now_ms)
    }

    fn serve(&self, mut guard: SlotGuard<'_>) {
        let mut resumed = Vec::new();
        if guard.ctx.has_woken() {
            let host = Host { server: self.server, settings: self.settings, worker: self.worker };
            host.serve(&mut guard, &mut resumed);
        }
        drop(guard);
        resumed.into_iter().for_each(|resumed| self.server.hub.resume(resumed));
    }
}

/// The same for a call on the session or the server, whose handler owns the session meanwhile.
struct ServerHost<'a> {
    client_id: u64,
    is_subscriber: bool,
    is_tracking: bool,
    server: &'a Server,
}

impl CallHost for ServerHost<'_> {
    fn client_id(&self) -> u64 {
        self.client_id
    }

    fn is_subscriber(&self) -> bool {
        self.is_subscriber
    }

    fn is_tracking(&self) -> bool {
        self.is_tracking
    }

    fn may_offload(&self) -> bool {
        self.server.offload.has_room()
    }

    fn may_offload_io(&self) -> bool {
        self.server.offload.has_room_for_io()
    }

    // The rest is asked by SORT alone, a command on data.

    fn may_read_all_keys(&self, _: Id, _: &Args<'_>) -> bool {
        false
    }

    fn look_again(&self, _: &Spec, _: &Args<'_>, _: u64) -> Done {
        Ok(Flow::RetryAdmission)
    }

    fn serve(&self, guard: SlotGuard<'_>) {
        drop(guard);
    }
}

impl<'p> Parts<'p> {
    #[inline]
    pub(crate) fn new(
        id: Id,
        reply: &'p mut Reply,
        session: &'p mut Session,
        (server, settings, worker): (&'p Arc<Server>, &'p Arc<Settings>, usize),
    ) -> Parts<'p> {
        Parts { id, spec: table().row(id), handler: handler(id), reply, session, server, settings, worker }
    }

    /// Runs the handler. A command that blocks stands in the queues of its keys when this returns, with
    /// [`Flow::Suspended`], unless it is being served.
    #[inline(always)] // the fields of the call stay in registers: some 40 instructions per command
    pub(crate) fn run(
        &mut self,
        mode: Mode,
        args: Args<'_>,
        keys: &[Key<'_>],
        guard: &mut SlotGuard<'_>,
    ) -> Done {
        if self.session.tracks {
            remember_keys(self.server, self.session, self.spec, keys);
        }
        let done = match self.handler {
            Handler::Data(handler) => self.on_data(mode, args, keys, guard, |call| logged(call, handler)),
            Handler::Server(handler) => self.run_on_server(handler, mode, args, keys, guard),
            Handler::Container => Err(Error::Syntax),
        };
        match done {
            Ok(Flow::Block(wait)) if mode == Mode::Direct => {
                let place = (self.id, args, keys);
                blocking::begin_wait(self.server, self.session, place, (*wait, self.reply.resp3), guard);
                Ok(Flow::Suspended)
            }
            done => done,
        }
    }

    /// Calls `f` with the call of a command on data.
    #[inline(always)] // for the same reason
    fn on_data<R>(
        &mut self,
        mode: Mode,
        args: Args<'_>,
        keys: &[Key<'_>],
        guard: &mut SlotGuard<'_>,
        f: impl FnOnce(&mut Call<'_, '_>) -> R,
    ) -> R {
        let host = DataHost {
            session: self.session,
            server: self.server,
            settings: self.settings,
            worker: self.worker,
        };
        let mut call = Call {
            id: self.id,
            spec: self.spec,
            args,
            keys,
            guard,
            reply: self.reply,
            db: self.session.db,
            replays: self.session.replays,
            settings: self.settings,
            mode,
            host: &host,
        };
        f(&mut call)
    }

    #[inline(never)]
    fn run_on_server(
        &mut self,
        handler: ServerHandler,
        mode: Mode,
        args: Args<'_>,
        keys: &[Key<'_>],
        guard: &mut SlotGuard<'_>,
    ) -> Done {
        let host = ServerHost {
            client_id: self.session.client.id,
            is_subscriber: self.session.subscriptions.is_some(),
            is_tracking: self.session.is_tracking(),
            server: self.server,
        };
        let base = Call {
            id: self.id,
            spec: self.spec,
            args,
            keys,
            guard,
            reply: self.reply,
            db: self.session.db,
            replays: self.session.replays,
            settings: self.settings,
            mode,
            host: &host,
        };
        let (session, server, worker) = (&mut *self.session, self.server, self.worker);
        logged(&mut ServerCall { base, session, server, worker }, handler)
    }

    /// Stores the result of the command's work if its sources are unchanged, or runs the handler.
    pub(super) fn commit_or_run(
        &mut self,
        committing: Option<&mut Committing>,
        mode: Mode,
        args: Args<'_>,
        keys: &[Key<'_>],
        guard: &mut SlotGuard<'_>,
    ) -> Done {
        if let Some(committing) = committing
            && let Some((mut is_current, store)) = committing.take()
        {
            let done = self.on_data(mode, args, keys, &mut *guard, |call| {
                let is_so = is_current(call);
                committing.spent.0 = Some(is_current);
                if is_so {
                    return Some(logged(call, store));
                }
                committing.spent.1 = Some(store);
                None
            });
            if let Some(done) = done {
                return done;
            }
        }
        self.run(mode, args, keys, guard)
    }

    /// [`Parts::run`], with the script, or the end of the transaction, shown to MONITOR together with the
    /// commands it called, before the locks are released.
    pub(super) fn run_shown(&mut self, args: Args<'_>, keys: &[Key<'_>], guard: &mut SlotGuard<'_>) -> Done {
        if !self.server.hub.monitors.is_any() {
            return self.run(Mode::Direct, args, keys, guard);
        }
        let spec = self.spec;
        if spec.runs_scripts() {
            monitor::begin_script(self.session, spec, &args);
        }
        let done = self.run(Mode::Direct, args, keys, guard);
        if spec.runs_scripts() {
            monitor::end_script(guard, &done);
        } else if matches!(spec.lock_scope, LockScope::Queue) {
            monitor::show_in_unit(guard, self.session, spec, &args);
        }
        done
    }

    /// Serves the waiters of the keys that the command wrote; returns the ticks this took, which are not
    /// the command's.
    pub(super) fn serve(&self, guard: &mut SlotGuard<'_>, resumed: &mut Vec<Resumed>) -> Ticks {
        let before = clock::ticks();
        let host = Host { server: self.server, settings: self.settings, worker: self.worker };
        host.serve(guard, resumed);
        clock::ticks().saturating_sub(before)
    }
}
