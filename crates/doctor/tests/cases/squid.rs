//! Debian's squid, a proxy with one event loop and a process that writes its log.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_testkit::server::free_port;

use crate::stage::{self, Seen, diagnose, stage};
use crate::{Folder, corpus};

const PROGRAM: &str = "/usr/sbin/squid";
const END_WAIT: Duration = Duration::from_secs(10);

/// A proxy on a port of 127.0.0.1, which writes only into its own folder. Stopped on drop.
pub(crate) struct Squid {
    child: Child,
    pub(crate) port: u16,
    /// Prefix of its memory files in /dev/shm.
    name: String,
    folder: Folder,
}

impl Squid {
    /// `None`, with a message, if squid is not installed.
    pub(crate) fn start() -> Option<Squid> {
        if !Path::new(PROGRAM).exists() {
            println!("left out: scripts/setup doctor installs squid");
            return None;
        }
        let folder = Folder::new("squid");
        let (port, name) = (free_port(), format!("doctor{}", std::process::id()));
        let here = |file: &str| folder.file(file);
        let lines = [
            format!("http_port 127.0.0.1:{port}"),
            format!("access_log daemon:{} squid", here("access.log")),
            format!("cache_log {}", here("cache.log")),
            format!("pid_filename {}", here("pid")),
            format!("coredump_dir {}", here("")),
            "http_access allow all\ncache deny all\npinger_enable off\nvisible_hostname case".to_string(),
            "shutdown_lifetime 0 seconds\n".to_string(),
        ];
        std::fs::write(here("conf"), lines.join("\n")).expect("a private folder");
        // Started as root, squid switches to another user.
        assert!(Command::new("chmod").args(["777", &here("")]).status().is_ok_and(|status| status.success()));
        let log = std::fs::File::create(here("out")).expect("a private folder");
        let mut words = stage::prefix(stage::SERVER);
        let conf = here("conf");
        words.extend([PROGRAM, "-N", "-n", &name, "-f", &conf]);
        let child = Command::new(words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let squid = Squid { child: child.expect("it is there"), port, name, folder };
        stage::wait_for("squid listens and has its log daemon", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() && squid.log_daemon().is_some()
        });
        Some(squid)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the child process that writes the log.
    fn log_daemon(&self) -> Option<i32> {
        let children = format!("/proc/{0}/task/{0}/children", self.pid());
        let children = std::fs::read_to_string(children).unwrap_or_default();
        children.split_ascii_whitespace().find_map(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            (name.trim() == "log_file_daemon").then(|| pid.parse().ok())?
        })
    }
}

impl Drop for Squid {
    fn drop(&mut self) {
        // SAFETY: a plain system call on a child that has not been waited for.
        unsafe { libc::kill(self.pid().cast_signed(), libc::SIGTERM) };
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < END_WAIT {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        for entry in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&format!("{}-", self.name)) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(self.folder.file("cache.log")).unwrap_or_default());
        }
    }
}

/// Keeps a process stopped until drop, for at most `STOPPED_S_MAX`: another process continues it, however
/// this process ends.
pub(crate) struct Stopped(Child);

const STOPPED_S_MAX: &str = "30";

impl Stopped {
    pub(crate) fn new(pid: i32) -> Stopped {
        let go_on = "read -t $0; kill -CONT $1";
        let child = Command::new("bash")
            .args(["-c", go_on, STOPPED_S_MAX, &pid.to_string()])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let stopped = Stopped(child.expect("bash is there"));
        // SAFETY: a plain system call; the process is a child of the server started here, and lives as long.
        unsafe { libc::kill(pid, libc::SIGSTOP) };
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "long"]
fn the_descriptors_of_squid_have_their_roles() {
    let _stage = stage();
    let Some(squid) = Squid::start() else { return };
    let origin = corpus::start("origin", stage::LOAD);
    let _load = corpus::proxied(squid.port, origin.port());
    let kept = squid.folder.file("recording");
    let seen = stage::diagnose_with("squid under load", squid.pid(), &["--record", &kept]);
    assert!(!told_of_the_log(&seen), "{seen}");
    let Some(seen) = seen.in_kernel() else { return };
    let calls = stage::doctor(&["syscalls", "--from", &kept]);
    let row = |words: &[&str]| calls.lines().any(|line| words.iter().all(|word| line.contains(word)));
    let daemon = format!("log_file_daemon ({})", squid.log_daemon().expect("it runs"));
    assert!(row(&["write", "log daemon", &daemon]), "{calls}");
    assert!(row(&["read", "client", "127.0.0.1"]), "{calls}");
    assert!(row(&["write", "outbound", &format!("127.0.0.1:{}", origin.port())]), "{calls}");
    assert!(row(&["epoll_wait", "epoll"]), "{calls}");
    assert!(seen.complete_stacks() >= 0.94, "{seen}");
}

fn told_of_the_log(seen: &Seen) -> bool {
    seen.titles().iter().any(|title| title.contains("log daemon"))
}

#[test]
#[ignore = "long"]
fn a_log_daemon_that_was_stopped_is_the_first_finding() {
    let _stage = stage();
    let Some(squid) = Squid::start() else { return };
    let origin = corpus::start("origin", stage::LOAD);
    let _load = corpus::proxied(squid.port, origin.port());
    let daemon = squid.log_daemon().expect("it runs");
    let _stopped = Stopped::new(daemon);
    let seen = diagnose("squid, its log daemon stopped", squid.pid());
    seen.expect_first("R11");
    let start = format!("Its log daemon log_file_daemon ({daemon}) does not read: it was stopped, and ");
    assert!(seen.titles()[0].starts_with(&start), "{seen}");
}
