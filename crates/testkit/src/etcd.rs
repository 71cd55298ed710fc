//! Members of etcd for tests.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::scratch::Scratch;

/// The longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Whether etcd and etcdctl are there. If not, prints a line past the capture of the test, or fails on CI.
pub fn is_missing() -> bool {
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
pub struct Members {
    pub scratch: Scratch,
    clients: Vec<u16>,
    servers: Vec<u16>,
    options: Vec<String>,
    scheme: &'static str,
    pub children: Vec<Option<Child>>,
}

impl Members {
    pub fn start(count: usize) -> Members {
        Members::with(count, "http", |_| Vec::new())
    }

    /// Starts members with further options, which may need files.
    pub fn with(
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

    pub fn data(&self, at: usize) -> PathBuf {
        self.scratch.path.join(format!("data-{at}"))
    }

    /// Starts a member, also after it was killed.
    pub fn run(&mut self, at: usize) {
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

    pub fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.children[at].take() {
            child.kill().expect("the member runs");
            child.wait().expect("the member ends");
        }
    }

    pub fn endpoints(&self) -> Vec<String> {
        self.clients.iter().map(|port| format!("127.0.0.1:{port}")).collect()
    }

    /// Runs etcdctl. Returns whether it succeeded, and its output.
    pub fn try_control(&self, arguments: &[&str]) -> (bool, String) {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoints().join(",")])
            .args(arguments)
            .output()
            .expect("etcdctl runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    pub fn control(&self, arguments: &[&str]) -> String {
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
}

impl Drop for Members {
    fn drop(&mut self) {
        (0..self.children.len()).for_each(|at| self.kill(at));
    }
}
