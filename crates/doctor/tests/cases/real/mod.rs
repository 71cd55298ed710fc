//! Real programs with a known cause, each beside the same program without the cause.
//!
//! A case starts the program in a folder of its own, on a free port, and loads it. The first finding must
//! name the cause, in the best tier. By /proc alone it may be missing, but then nothing else may be said: a
//! wrong first finding is worse than none. `scripts/setup corpus` installs the programs.

mod gunicorn;
mod haproxy;
mod loads;
mod memcached;
mod nginx;
mod node;
mod postgres;
mod proxies;
mod runtimes;

use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Folder;
use crate::stage::{self, Place, Seen, prefix};

/// Connections are sampled some five times a second, less often on a busy machine.
const SECONDS: &str = "5";
const END_WAIT: Duration = Duration::from_secs(5);
const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

/// A server in a private folder, stopped on drop.
struct Service {
    child: Child,
    port: u16,
    folder: Folder,
}

impl Service {
    /// Starts a program that stays in the foreground and listens on `port` of 127.0.0.1. It ends with this
    /// thread, however that ends.
    fn start(place: Place, words: &[&str], folder: Folder, port: u16) -> Service {
        Service::start_as(place, &[], words, folder, port)
    }

    /// As `start`, with options of setpriv.
    fn start_as(place: Place, user: &[&str], words: &[&str], folder: Folder, port: u16) -> Service {
        let mut all = prefix(place);
        all.extend(["setpriv", "--pdeathsig", "INT"]);
        all.extend(user);
        all.extend(words);
        let log = std::fs::File::create(folder.file("out")).expect("a private folder");
        let child = Command::new(all[0])
            .args(&all[1..])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn();
        let service = Service { child: child.expect("scripts/setup installs setpriv"), port, folder };
        stage::wait_for("the server listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        service
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its first child process: the worker of servers with a master.
    fn worker(&self) -> u32 {
        let path = format!("/proc/{0}/task/{0}/children", self.pid());
        let mut worker = None;
        stage::wait_for("the worker runs", || {
            let children = std::fs::read_to_string(&path).unwrap_or_default();
            worker = children.split_ascii_whitespace().next().and_then(|pid| pid.parse().ok());
            worker.is_some()
        });
        worker.expect("waited for")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // SAFETY: a plain system call on a child that has not been waited for.
        unsafe { libc::kill(self.pid().cast_signed(), libc::SIGINT) };
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < END_WAIT {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let said = std::fs::read_to_string(self.folder.file("out")).unwrap_or_default();
            eprintln!("{}", said.lines().take(5).collect::<Vec<_>>().join("\n"));
        }
    }
}

/// A helper process, killed on drop.
struct Helper(Child);

impl Helper {
    fn start(place: Place, words: &[&str]) -> Helper {
        let mut all = prefix(place);
        all.extend(["setpriv", "--pdeathsig", "KILL"]);
        all.extend(words);
        let quiet = || Stdio::null();
        let child =
            Command::new(all[0]).args(&all[1..]).stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn();
        Helper(child.expect("scripts/setup installs setpriv"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program to its end.
#[track_caller]
fn succeed(words: &[&str]) {
    let output = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", words[0]));
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Whether a program is there; prints a message if not.
fn has(path: &str) -> bool {
    let has = Path::new(path).exists();
    if !has {
        println!("left out: scripts/setup corpus installs {path}");
    }
    has
}

/// Writes a file of a server's folder, and opens the folder to servers that switch to another user.
fn write(folder: &Folder, name: &str, text: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.file(name);
    std::fs::write(&path, text).expect("a private folder");
    let for_all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.file(""), for_all).expect("it is ours");
    path
}

/// Makes a named pipe.
fn named_pipe(folder: &Folder, name: &str) -> String {
    let path = folder.file(name);
    succeed(&["mkfifo", "-m", "666", &path]);
    path
}

/// The two ways in which every case is diagnosed.
const WAYS: [&[&str]; 2] = [&[], &["--proc-only"]];

/// Expects that the first finding is of `rule`, and that its title has each of `words`. Rule and words may be
/// choices: `this|that`.
#[track_caller]
fn expect_cause(case: &str, pid: u32, rule: &str, words: &[&str]) {
    expect(case, pid, |seen| names(seen, rule, words));
}

/// Expects that nothing of `rule` is found.
#[track_caller]
fn expect_none(case: &str, pid: u32, rule: &str) {
    expect(case, pid, |seen| !seen.rules().iter().any(|found| found == rule));
}

#[track_caller]
fn expect(case: &str, pid: u32, holds: impl Fn(&Seen) -> bool) {
    let wrong: Vec<String> = WAYS
        .into_iter()
        .map(|more| stage::diagnose_for(case, pid, SECONDS, more))
        .filter(|seen| !holds(seen) || !is_a_cause(seen))
        .map(|seen| seen.to_string())
        .collect();
    assert!(wrong.is_empty(), "{case}:\n{}", wrong.join("\n"));
}

/// Stacks that could not be walked are no function.
fn is_a_cause(seen: &Seen) -> bool {
    !seen.titles().first().is_some_and(|title| title.contains("(broken stack)"))
}

fn names(seen: &Seen, rule: &str, words: &[&str]) -> bool {
    if seen.tier() != "T0" && seen.verdict() == "inconclusive" {
        return true;
    }
    let title = seen.titles().first().copied().unwrap_or("");
    let is_of = |first: &String| rule.split('|').any(|choice| first == choice);
    let has = |word: &&str| word.split('|').any(|choice| title.contains(choice));
    seen.verdict() == "found" && seen.rules().first().is_some_and(is_of) && words.iter().all(has)
}

/// A name server that does not answer, for a program that is started by the words of `prefix`.
struct SilentNames {
    _socket: std::net::UdpSocket,
    _folder: Folder,
    prefix: [String; 6],
}

impl SilentNames {
    const ADDRESS: &str = "127.9.8.7:53";

    /// `None`, with a message, if the user may not have such an address.
    fn start() -> Option<SilentNames> {
        let socket = std::net::UdpSocket::bind(SilentNames::ADDRESS)
            .inspect_err(|error| println!("left out: a name server needs root, and: {error}"))
            .ok()?;
        let folder = Folder::new("names");
        let (address, _) = SilentNames::ADDRESS.split_once(':')?;
        let text = format!("nameserver {address}\noptions timeout:1 attempts:1\n");
        let conf = write(&folder, "resolv.conf", &text);
        // Only the program's own mount namespace has the file.
        let mount = "mount --bind \"$0\" \"$(readlink -f /etc/resolv.conf)\" && exec \"$@\"";
        let prefix = ["unshare", "-m", "bash", "-c", mount, &conf].map(ToString::to_string);
        Some(SilentNames { _socket: socket, _folder: folder, prefix })
    }

    fn prefix(&self) -> Vec<&str> {
        self.prefix.iter().map(String::as_str).collect()
    }
}

/// A service that accepts nothing, with a full queue: the kernel drops further connections.
struct Unreachable {
    listener: std::net::TcpListener,
    _queue: Vec<std::net::TcpStream>,
}

impl Unreachable {
    fn start() -> Unreachable {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        // SAFETY: listen(2) on our own descriptor; again, since std listens with 128.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let address = listener.local_addr().expect("bound");
        let connect = |_| std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok();
        let queue = (0..4).map_while(connect).collect();
        Unreachable { listener, _queue: queue }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().expect("bound").port()
    }
}
