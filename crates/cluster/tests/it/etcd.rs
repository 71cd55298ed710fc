//! Members of etcd, and connections to them.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use evenkeel_cluster::store::etcd::{Config, Etcd};
use evenkeel_cluster::store::{Request, Store, StoreError, StoreEvent, boot_clock};
use evenkeel_cluster::{Change, NodeId, Outcome, Snapshot, Transaction};
use evenkeel_testkit::scratch::Scratch;

/// The longest wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Whether etcd and etcdctl are there. If not, prints a line past the capture of the test, or fails on CI.
pub(crate) fn is_missing() -> bool {
    let is_missing = find("etcd").is_none() || find("etcdctl").is_none();
    if is_missing {
        let line = "SKIPPED: no etcd and etcdctl on this machine\n";
        assert!(std::env::var_os("CI").is_none(), "{line}");
        _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    }
    is_missing
}

fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("loopback has free ports")).collect();
    listeners.iter().map(|one| one.local_addr().expect("it is bound").port()).collect()
}

/// A cluster of etcd on loopback. Dropping it ends the members.
pub(crate) struct Members {
    pub(crate) scratch: Scratch,
    clients: Vec<u16>,
    servers: Vec<u16>,
    options: Vec<String>,
    scheme: &'static str,
    pub(crate) children: Vec<Option<Child>>,
}

impl Members {
    pub(crate) fn start(count: usize) -> Members {
        Members::with(count, "http", |_| Vec::new())
    }

    /// Starts members with further options, which may need files.
    pub(crate) fn with(
        count: usize,
        scheme: &'static str,
        options: impl FnOnce(&Scratch) -> Vec<String>,
    ) -> Members {
        let ports = free_ports(2 * count);
        let scratch = Scratch::new();
        let mut members = Members {
            options: options(&scratch),
            scratch,
            clients: ports[..count].to_vec(),
            servers: ports[count..].to_vec(),
            scheme,
            children: (0..count).map(|_| None).collect(),
        };
        (0..count).for_each(|at| members.run(at));
        members
    }

    fn peers(&self) -> String {
        let peer = |(at, port): (usize, &u16)| format!("m{at}=http://127.0.0.1:{port}");
        self.servers.iter().enumerate().map(peer).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn data(&self, at: usize) -> PathBuf {
        self.scratch.path.join(format!("data-{at}"))
    }

    /// Starts a member, also after it was killed.
    pub(crate) fn run(&mut self, at: usize) {
        let client = format!("{}://127.0.0.1:{}", self.scheme, self.clients[at]);
        let server = format!("http://127.0.0.1:{}", self.servers[at]);
        let log = std::fs::File::create(self.scratch.path.join(format!("log-{at}"))).expect("a log file");
        let child = Command::new("etcd")
            .arg("--name")
            .arg(format!("m{at}"))
            .arg("--data-dir")
            .arg(self.data(at))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &server, "--initial-advertise-peer-urls", &server])
            .args(["--initial-cluster", &self.peers(), "--initial-cluster-state", "new"])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .args(&self.options)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("etcd starts");
        self.children[at] = Some(child);
    }

    pub(crate) fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.children[at].take() {
            child.kill().expect("the member runs");
            child.wait().expect("the member ends");
        }
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.clients.iter().map(|port| format!("127.0.0.1:{port}")).collect()
    }

    /// Runs etcdctl. Returns whether it succeeded, and its output.
    pub(crate) fn try_control(&self, arguments: &[&str]) -> (bool, String) {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoints().join(",")])
            .args(arguments)
            .output()
            .expect("etcdctl runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    pub(crate) fn control(&self, arguments: &[&str]) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let (is_done, text) = self.try_control(arguments);
            if is_done {
                return text;
            }
            assert!(Instant::now() < end, "etcdctl {arguments:?}: {text}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn config(&self) -> Config {
        Config {
            endpoints: self.endpoints(),
            tls: None,
            user: None,
            prefix: "evenkeel".into(),
            cluster: "test".into(),
            expected: None,
            identity: "first".into(),
            ttl: 3_000,
            timeout: Duration::from_secs(1),
        }
    }

    /// Connects, and waits for the first view.
    pub(crate) fn connect(&self) -> Connection {
        let connection = Connection::new(self.config());
        connection.view("first view", |_| true);
        connection
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        (0..self.children.len()).for_each(|at| self.kill(at));
    }
}

/// A connection, with the events that came.
pub(crate) struct Connection {
    pub(crate) store: Etcd,
    events: Receiver<StoreEvent>,
    number: u64,
    last: std::cell::RefCell<Option<std::sync::Arc<Snapshot>>>,
}

impl Connection {
    pub(crate) fn new(config: Config) -> Connection {
        let (sender, events) = channel();
        let sink = Box::new(move |event| _ = sender.send(event));
        let store = Etcd::start(config, boot_clock, sink).expect("the settings are valid");
        Connection { store, events, number: 0, last: std::cell::RefCell::default() }
    }

    /// Waits for an event that the function maps to a value; drops the others.
    pub(crate) fn wait<T>(&self, what: &str, mut pick: impl FnMut(StoreEvent) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        let mut others = Vec::new();
        loop {
            let rest = end.saturating_duration_since(Instant::now());
            let Ok(event) = self.events.recv_timeout(rest) else { panic!("no {what}: {others:?}") };
            others.push(format!("{event:?}"));
            if let StoreEvent::View(view) = &event {
                self.last.replace(Some(std::sync::Arc::clone(view)));
            }
            if let Some(found) = pick(event) {
                return found;
            }
        }
    }

    /// Waits for a view, unless the last one fits.
    pub(crate) fn view(&self, what: &str, fits: impl Fn(&Snapshot) -> bool) -> std::sync::Arc<Snapshot> {
        let last = self.last.borrow().clone().filter(|view| fits(view));
        if let Some(last) = last {
            return last;
        }
        self.wait(what, |event| match event {
            StoreEvent::View(view) if fits(&view) => Some(view),
            _ => None,
        })
    }

    pub(crate) fn failure(&self, what: &str, fits: impl Fn(&StoreError) -> bool) -> StoreError {
        self.wait(what, |event| match event {
            StoreEvent::Failed(error) if fits(&error) => Some(error),
            _ => None,
        })
    }

    pub(crate) fn grant(&self) -> u64 {
        self.store.send(Request::Grant);
        self.wait("lease", |event| match event {
            StoreEvent::Granted { lease, .. } => Some(lease),
            _ => None,
        })
    }

    pub(crate) fn submit(&mut self, transaction: Transaction) -> Outcome {
        self.number += 1;
        let sent = self.number;
        self.store.send(Request::Submit(sent, transaction));
        self.wait("outcome", |event| match event {
            StoreEvent::Answered { number, outcome } if number == sent => Some(outcome),
            _ => None,
        })
    }

    /// Makes a change without a condition, and does not wait.
    pub(crate) fn send(&mut self, change: Change) {
        self.number += 1;
        self.store
            .send(Request::Submit(self.number, Transaction { guards: Vec::new(), changes: vec![change] }));
    }

    /// Makes a change without a condition.
    pub(crate) fn put(&mut self, change: Change) -> Outcome {
        self.submit(Transaction { guards: Vec::new(), changes: vec![change] })
    }
}

pub(crate) fn node_id(byte: u8) -> NodeId {
    NodeId::new([byte; 20])
}
