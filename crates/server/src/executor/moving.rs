//! Commands on slots that are being moved key by key to or from another node.
//!
//! Whether a key is here is looked up under the locks under which the command runs. Otherwise MIGRATE could
//! take the key between the two, and the command would make it again at its old place. A script, or EXEC,
//! holds everything from the look on: it could release its locks in order to run again with more.

use evenkeel_client::runner::Request;
use evenkeel_client::session::Session;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_command::reply::Reply;
use evenkeel_command::table::table;
use evenkeel_command::{Id, LockScope};
use evenkeel_runtime::clock;
use evenkeel_store::{Key, Keyspace};

use super::{Executor, Parts, keep_time, keep_time_to_serve, look_again};
use crate::cluster::routing::Asker;

impl Executor {
    /// Runs an admitted command if its keys of `slot` are here.
    #[cold]
    pub(super) fn run_if_present(
        &mut self,
        session: &mut Session,
        (id, slot): (Id, u16),
        request: &Request<'_>,
        reply: &mut Reply,
    ) -> Done {
        let Some(view) = self.cluster.clone() else { return Ok(Flow::RetryAdmission) };
        let (row, server, args) = (self.table.row(id), self.server.clone(), request.args);
        let keyspace = &server.core.keyspace;
        self.ctx.no_touch = session.no_touch;
        self.ctx.sees_expired = session.imports && self.settings.import_mode;
        let keys = row.keys.find(&args, session.db, keyspace);
        let mut guard = if matches!(row.lock_scope_in(&args), LockScope::Keys) {
            self.places.clear();
            self.places.extend(keys.iter().map(|key| key.place));
            keyspace.hold_to_write(&mut self.ctx, &mut self.places)
        } else {
            match keyspace.try_hold_all(&mut self.ctx) {
                Some(guard) => guard,
                None => return Ok(Flow::RetryAdmission),
            }
        };
        if guard.holds_all() {
            keep_time(guard.ctx, (&server, &self.settings), &mut self.present, clock::ticks());
            match look_again(&server, session, (row, &args), guard.ctx.now_ms)? {
                Flow::Replied => {}
                flow => return Ok(flow),
            }
        }
        let (settings, is_fenced) = (&*self.settings, self.is_fenced);
        let asker = Asker { view: &view, settings, session, is_fenced, holds_writers: false };
        let mut all = keys.clone();
        if matches!(row.lock_scope, LockScope::Queue) {
            all.extend(queued_keys(session, keyspace));
        }
        asker.judge_present(slot, &all, &mut guard)?;
        drop(all);
        let mut parts = Parts::new(id, reply, session, (&server, &self.settings, self.worker));
        let done = parts.run_shown(args, &keys, &mut guard);
        if guard.ctx.has_woken() {
            keep_time_to_serve(guard.ctx, (&server, &self.settings), &mut self.present);
            self.last_ticks += parts.serve(&mut guard, &mut self.resumed);
        }
        drop(guard);
        self.resume_served();
        done
    }
}

/// Returns the keys of the commands queued since MULTI, each in the database in which its command will run.
fn queued_keys<'s>(session: &'s Session, keyspace: &Keyspace) -> Vec<Key<'s>> {
    let (mut keys, mut db) = (Vec::new(), session.db);
    for queued in session.multi.iter().flat_map(|multi| &multi.queue) {
        let (row, args) = (table().row(queued.id), queued.args.as_args());
        if row.name == "SELECT" {
            let selected = args.int(1).ok().and_then(|number| u32::try_from(number).ok());
            db = selected.filter(|selected| (*selected as usize) < keyspace.databases()).unwrap_or(db);
        }
        keys.extend(row.keys.find(&args, db, keyspace));
    }
    keys
}
