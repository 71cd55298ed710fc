//! Persistence without a server: a keyspace and a folder, no clients, no workers, no replication.

use std::ffi::OsString;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_client::Hub;
use evenkeel_client::clients::ClientInfo;
use evenkeel_client::hub::ClientWorkers;
use evenkeel_client::runner::{CommandRunner, RunnerFactory};
use evenkeel_client::waiting::Resumed;
use evenkeel_command::Id;
use evenkeel_command::error::Error;
use evenkeel_config::Launch;
use evenkeel_core::Core;
use evenkeel_core::lazy_free::{LazyFreeThread, Owner};
use evenkeel_core::state::Workers;
use evenkeel_runtime::clock;
use evenkeel_runtime::random::{random_hex, random_seed};
use evenkeel_store::{Keyspace, SlotGuard, ThreadContext};

use super::position::{Point, Position};
use super::{EndStage, Host, Persist};
use evenkeel_scripting::Scripts;

/// The state of persistence, in a folder that is removed with it.
pub struct Disk {
    persist: Arc<Persist>,
    pub hub: Arc<Hub>,
    pub scripts: Arc<Scripts>,
    pub folder: PathBuf,
    _host: Arc<Alone>,
}

/// Creates a directory, for a test to remove. `purpose` is in its name.
pub fn folder(purpose: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("evenkeel-{purpose}-{}", &random_hex()[..12]));
    std::fs::create_dir(&path).expect("the temporary directory takes a new one");
    path
}

impl Disk {
    /// `args` are those of the server.
    pub fn new(args: &[&str]) -> Disk {
        let folder = folder("disk");
        let dir = folder.to_str().expect("a plain name");
        let args = ["--save", "", "--dir", dir].into_iter().chain(args.iter().copied()).map(OsString::from);
        let launch = Launch::from_args(args, evenkeel_acl::USER_LINES, |_| true)
            .expect("there is a working directory");
        assert!(launch.mistakes.is_empty(), "{:?}", launch.mistakes);
        let lazy_free = Arc::new(LazyFreeThread::start(Arc::from([NoWorkers])));
        let keyspace = Keyspace::new(launch.settings.databases, 8, clock::unix_ms(), random_seed())
            .with_clock(clock::log_time)
            .with_lazy_free(lazy_free.clone());
        let core = Arc::new(Core::new(launch.settings, keyspace, Arc::new(NoWorkers), lazy_free));
        let hub = Arc::new(Hub::new(core.clone(), Arc::new(NoWorkers)));
        let scripts = Arc::new(Scripts::new(&core.settings().reported_redis_version));
        let persist = Arc::new(Persist::new(core, hub.clone(), scripts.clone()));
        let host = Arc::new(Alone);
        let weak = Arc::downgrade(&host);
        persist.set_host(weak);
        Disk { persist, hub, scripts, folder, _host: host }
    }

    #[track_caller]
    pub fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let started = Instant::now();
        while !is_so() {
            assert!(started.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Changes a setting, as CONFIG SET does.
    pub fn configure(&self, name: &str, value: &str) {
        let pairs = [(name.as_bytes(), value.as_bytes())];
        let changed = self.core.change_settings(|settings| settings.set(&pairs, true).map(|(new, _)| new));
        assert!(changed.is_ok(), "{name} {value}");
    }
}

impl Deref for Disk {
    type Target = Arc<Persist>;

    fn deref(&self) -> &Arc<Persist> {
        &self.persist
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

struct NoWorkers;

impl Owner for NoWorkers {
    fn ask_to_settle(&self) {}

    fn is_settled(&self) -> bool {
        true
    }
}

impl Workers for NoWorkers {
    fn count(&self) -> usize {
        0
    }

    fn wake_all(&self) {}

    fn notify_durable(&self) {}
}

impl ClientWorkers for NoWorkers {
    fn push_queued(&self, _: usize, _: Vec<Arc<ClientInfo>>) {
        unreachable!("there are no clients");
    }

    fn resume(&self, _: Resumed) {
        unreachable!("there are no clients");
    }

    fn close_killed(&self) {}
}

/// A host without replicas and commands.
struct Alone;

impl RunnerFactory for Alone {
    fn runner(self: Arc<Self>, _: ThreadContext) -> Box<dyn CommandRunner> {
        unreachable!("these tests replay no commands");
    }
}

impl Host for Alone {
    fn record_failure(&self, _: Id, _: &Error) {}

    fn replica_position(&self) -> Option<Position> {
        None
    }

    fn finish_stream(&self, _: &mut SlotGuard<'_>) -> Option<Position> {
        None
    }

    fn continue_stream(self: Arc<Self>, _: Option<Position>) {}

    fn resume_stream(self: Arc<Self>) {}

    fn wait_for_replicas(self: Arc<Self>, _: Duration, _: &dyn Fn() -> bool) {}

    fn announce_end(&self, _: EndStage) {}

    fn stop_stream(&self, stop: &mut dyn FnMut(Option<Point>)) {
        stop(None);
    }
}
