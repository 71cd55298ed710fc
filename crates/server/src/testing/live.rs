//! The server with its threads, in the test's own process: its workers are threads, its clients connect over
//! a Unix socket, and it has the commands that exist only in tests.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_testkit::Client;

use crate::server::Server;
use crate::worker::Worker;
use evenkeel_config::Launch;

/// A running server; see the module's text. Dropping it stops the server.
pub(crate) struct Live {
    pub(crate) server: Arc<Server>,
    threads: Vec<JoinHandle<()>>,
    folder: PathBuf,
}

impl Live {
    pub(crate) fn start(workers: usize, args: &[&str]) -> Live {
        let folder = super::folder("live");
        let socket = folder.join("socket").into_os_string();
        let dir = ["--dir".into(), folder.clone().into_os_string()];
        let own = ["--port", "0", "--unixsocket"].map(OsString::from);
        let all = dir.into_iter().chain(own).chain([socket]).chain(args.iter().map(OsString::from));
        let launch =
            Launch::from_args(all, evenkeel_acl::USER_LINES, |_| true).expect("there is a working directory");
        assert!(launch.mistakes.is_empty(), "{:?}", launch.mistakes);
        let server = Server::new(launch.settings, None, workers, None);
        let server = server.expect("a few descriptors are free");
        server.listen(&server.core.settings()).expect("the folder is there");
        let serving = (0..workers).map(|index| {
            let worker = Worker::new(server.clone(), index).expect("a few descriptors are free");
            std::thread::spawn(move || worker.run())
        });
        let long = (workers..2 * workers).map(|index| {
            let server = server.clone();
            std::thread::spawn(move || crate::executor::offload::run(&server, &server.offload, index))
        });
        let of_scripts = server.clone();
        let scripts = std::thread::spawn(move || {
            crate::executor::offload::run(&of_scripts, &of_scripts.slow_scripts, 2 * workers);
        });
        let threads = serving.chain(long).chain(std::iter::once(scripts)).collect();
        Live { threads, server, folder }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::connect_unix(&self.folder.join("socket")).expect("it listens")
    }

    /// Waits until `count` clients are blocked.
    #[track_caller]
    pub(crate) fn await_blocked(&self, count: usize) {
        self.wait_until("clients wait", || self.server.hub.clients.totals().blocked == count);
    }

    #[track_caller]
    pub(crate) fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let started = Instant::now();
        while !is_so() {
            assert!(started.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Panics if the keyspace is inconsistent.
    pub(crate) fn verify(&self) {
        let mut ctx = self.server.core.keyspace.thread_context();
        self.server.core.keyspace.enter(&mut ctx);
        self.server.core.keyspace.hold_all(&mut ctx).verify();
        self.server.core.keyspace.leave(&mut ctx);
    }

    /// Stops the workers; fails if a worker has failed.
    pub(crate) fn stop(mut self) {
        self.server.core.stop();
        for thread in self.threads.drain(..) {
            thread.join().expect("no worker fails");
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.server.core.stop();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        self.server.listeners.close();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
