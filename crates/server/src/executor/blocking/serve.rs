//! Serving of waiters, by the thread that has written to their keys.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evenkeel_store::{Key, SlotGuard};

use crate::executor::Parts;
use crate::executor::permission;
use crate::observe::stats::{Outcome, add};
use crate::observe::{self, commandlog::Spent};
use crate::server::Server;
use evenkeel_acl::Access;
use evenkeel_client::session::Session;
use evenkeel_client::waiting::{Blocked, NEVER, Resumed};
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow, Mode};
use evenkeel_command::reply::Reply;
use evenkeel_command::table::table;
use evenkeel_config::Settings;
use evenkeel_runtime::clock;

/// The worker that serves: its command has woken the waiters.
pub(crate) struct Host<'a> {
    pub(crate) server: &'a Arc<Server>,
    pub(crate) settings: &'a Arc<Settings>,
    pub(crate) worker: usize,
}

impl Host<'_> {
    /// Serves the waiters of all written keys, as far as the locks held suffice: key by key in the order of
    /// the writes, the waiters of each key in the order of coming. Serving may write to more keys, which come
    /// last. The loop ends: a served waiter waits no more, and a waiter that is not served has changed
    /// nothing.
    #[cold]
    pub(crate) fn serve(&self, guard: &mut SlotGuard<'_>, resumed: &mut Vec<Resumed>) {
        while let Some(woken) = guard.next_woken() {
            let key = self.server.core.keyspace.key(woken.place.db() as u32, &woken.key);
            let mut after = 0;
            while let Some((ticket, waiter)) = guard.next_waiter(&key, after) {
                after = ticket;
                let waiter: Arc<dyn Any + Send + Sync> = waiter;
                let blocked = waiter.downcast::<Blocked>().expect("nothing else waits");
                if let Some(reply) = self.serve_one(guard, &key, &blocked) {
                    guard.unwait(&key, ticket);
                    resumed.push(blocked.resumed(reply, true));
                }
            }
        }
    }

    /// Returns the reply to a waiter, or `None` if its wait has ended, its client is gone, or there is
    /// nothing for it.
    fn serve_one(&self, guard: &mut SlotGuard<'_>, key: &Key<'_>, blocked: &Arc<Blocked>) -> Option<Reply> {
        let claimed = blocked.claim.take()?;
        if blocked.is_gone() {
            return None;
        }
        let (mut reply, before) = (blocked.empty_reply(), clock::ticks());
        let denied = self.denial(guard, blocked);
        let is_denied = denied.is_some();
        let done = match denied {
            Some(error) => Ok(Err(error)),
            None => catch_unwind(AssertUnwindSafe(|| self.run(guard, key, blocked, &mut reply))),
        };
        let done = done.unwrap_or_else(|_| {
            add(&self.server.stats[self.worker].panics, 1);
            reply = blocked.empty_reply();
            Err(Error::abandoned())
        });
        if let Ok(Flow::Block(wait)) = &done {
            blocked.retry_ms.fetch_min(wait.retry_ms.unwrap_or(NEVER), Relaxed);
            return None;
        }
        claimed.finish();
        self.record_call(blocked, (done, is_denied), before, &mut reply);
        Some(reply)
    }

    /// Returns the error for a waiter whose permissions no longer include its command.
    fn denial(&self, guard: &SlotGuard<'_>, blocked: &Blocked) -> Option<Error> {
        if blocked.permitted_at == self.server.acl.generation() {
            return None;
        }
        let (command, args) = ((blocked.id, blocked.db), blocked.args.as_args());
        permission::admit_waiting(self.server, &blocked.client, command, &args, guard.ctx.now_ms).err()
    }

    fn run(&self, guard: &mut SlotGuard<'_>, key: &Key<'_>, blocked: &Blocked, reply: &mut Reply) -> Done {
        let row = table().row(blocked.id);
        let args = blocked.args.as_args();
        let keys = row.keys.find(&args, blocked.db, &self.server.core.keyspace);
        let mut session = Session::new(blocked.client.clone(), Access::of_server());
        session.db = blocked.db;
        (session.tracks, session.caching) = (blocked.tracks, blocked.caching);
        guard.ctx.no_touch = blocked.no_touch;
        // A command may name a key more than once, with another stream ID each time.
        let woken = blocked.keys.clone().filter(|index| {
            let own = &keys[*index];
            own.place == key.place && own.bytes == key.bytes
        });
        let mut unserved = None;
        for index in woken {
            let mut parts =
                Parts::new(blocked.id, &mut *reply, &mut session, (self.server, self.settings, self.worker));
            let done = parts.run(Mode::Serving(index), args, &keys, &mut *guard);
            match done {
                Ok(Flow::Block(wait)) => unserved = Some(wait),
                done => return done,
            }
        }
        let wait = unserved.expect("the written key is a key of the waiter");
        Ok(Flow::Block(wait))
    }

    /// Counts the call, which was not counted when it began to wait.
    fn record_call(
        &self,
        blocked: &Blocked,
        (done, is_denied): (Done, bool),
        before: clock::Ticks,
        reply: &mut Reply,
    ) {
        let (server, stats) = (self.server, &self.server.stats[self.worker]);
        if let Err(error) = &done {
            reply.fail(error);
            stats.error(&error.line());
        }
        let args = blocked.args.as_args();
        let spent = Spent {
            ticks: clock::ticks().saturating_sub(before),
            request: args.wire_len(),
            reply: reply.len(),
            ..Spent::default()
        };
        let outcome = if is_denied { Outcome::Denied } else { Outcome::of_reply(reply.errors > 0) };
        stats.resumed(blocked.id, spent.ticks, outcome, self.settings.latency_tracking);
        if is_denied {
            return;
        }
        let command = (table().row(blocked.id), args, &spent);
        observe::ended(server, self.settings, self.worker, &blocked.client, command);
    }
}
