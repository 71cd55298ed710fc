//! Replication without a server: a keyspace that tests write to, no clients, and no commands.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

use evenkeel_client::Session;
use evenkeel_client::runner::{CommandRunner, Outcome, Request, RunnerFactory};
use evenkeel_command::error::Error;
use evenkeel_command::reply::Reply;
use evenkeel_command::table::table;
use evenkeel_command::{Args, Id};
use evenkeel_net::tls::Tls;
use evenkeel_store::{Expire, ThreadContext};
use parking_lot::Mutex;

use super::moves::{Admission, Ticket};
use super::{Host, Replication};
use evenkeel_persist::testing::Disk;

/// The state of replication of a server that nobody uses. Its threads end with it.
pub(super) struct Single {
    replication: Arc<Replication>,
    pub(super) disk: Disk,
    /// The context of [`Single::write`].
    writer: Mutex<ThreadContext>,
    _host: Arc<Alone>,
}

/// Installs the commands on data, unless that was done before.
pub(crate) fn install_commands() {
    let families = evenkeel_command::FAMILIES.iter().copied().flatten();
    evenkeel_command::table::install(|| families.map(|command| &command.spec).collect());
}

impl Single {
    /// `args` are those of the server.
    pub(super) fn new(args: &[&str]) -> Single {
        install_commands();
        let disk = Disk::new(args);
        let shared = (disk.core.clone(), disk.hub.clone());
        let on_disk = (disk.scripts.clone(), (*disk).clone());
        let replication = Replication::new(shared, on_disk, Arc::new(Tls::default()), table());
        let replication = Arc::new(replication.expect("a few descriptors are free"));
        let host = Arc::new(Alone);
        let weak = Arc::downgrade(&host);
        replication.set_host(weak);
        let writer = Mutex::new(replication.core.keyspace.thread_context());
        Single { replication, disk, writer, _host: host }
    }

    /// Sets a key, as a client's SET does.
    pub(super) fn write(&self) {
        let keyspace = &self.core.keyspace;
        let mut ctx = self.writer.lock();
        keyspace.enter(&mut ctx);
        let mut guard = keyspace.hold_all(&mut ctx);
        guard.set_string(&keyspace.key(0, b"k"), b"v", Expire::Clear);
        guard.log(0, [&b"SET"[..], b"k", b"v"].into_iter());
        drop(guard);
        keyspace.leave(&mut ctx);
    }
}

impl Deref for Single {
    type Target = Arc<Replication>;

    fn deref(&self) -> &Arc<Replication> {
        &self.replication
    }
}

impl Drop for Single {
    fn drop(&mut self) {
        self.core.stopping.store(true, Release);
        self.replica_inbox.nudge();
    }
}

struct Alone;

impl RunnerFactory for Alone {
    fn runner(self: Arc<Self>, ctx: ThreadContext) -> Box<dyn CommandRunner> {
        Box::new(NoCommands(ctx))
    }
}

impl Host for Alone {
    fn admit(&self, _: &mut Session, _: Id, _: &Args<'_>) -> Result<bool, Error> {
        Ok(true)
    }

    fn may_import(&self, _: &Ticket) -> Admission {
        Admission::Yes
    }

    fn record_ended_wait(&self, _: Id, _: &Error) {}
}

/// A runner whose commands succeed and do nothing.
struct NoCommands(ThreadContext);

impl CommandRunner for NoCommands {
    fn ctx(&mut self) -> &mut ThreadContext {
        &mut self.0
    }

    fn into_ctx(self: Box<Self>) -> ThreadContext {
        self.0
    }

    fn refresh(&mut self, _: u64) {}

    fn restart_clock(&mut self) {}

    fn resolve_logged<'a>(&self, args: Args<'a>, _: u32) -> Request<'a> {
        Request { command: table().find(args.at(0)), args, len: 0, key: None }
    }

    fn run(&mut self, _: &mut Session, _: Request<'_>, _: &mut Reply) -> Option<Outcome> {
        Some(Outcome::Replied)
    }

    fn errors(&self) -> u64 {
        0
    }

    fn make_room(&mut self) -> bool {
        true
    }

    fn serve_woken(&mut self) {}
}
