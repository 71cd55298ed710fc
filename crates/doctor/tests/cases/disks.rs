//! Servers that wait for files: a frozen file system, and reads from the disk.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_testkit::Server;

use crate::corpus;
use crate::extremes::programs_of_the_doctor;
use crate::stage::{self, Load, Seen, diagnose, redis, stage};

/// Bound of the wait for BPF programs, which some machines cannot load.
const TIMEOUT: Duration = Duration::from_secs(5);
const SIZE: &str = "64M";

fn succeeds(program: &str, args: &[&str]) -> bool {
    let quiet = Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

/// A mounted file system in a file, removed on drop.
struct Disk {
    folder: PathBuf,
    image: PathBuf,
}

impl Disk {
    /// `None`, with a message, if mounting is not permitted.
    fn mount(name: &str) -> Option<Disk> {
        let folder = std::env::temp_dir().join(format!("doctor-{name}-{}", std::process::id()));
        let disk = Disk { image: folder.with_extension("image"), folder };
        std::fs::create_dir_all(&disk.folder).expect("a private folder");
        let (folder, image) = (disk.path(), disk.image.to_str().expect("text"));
        let mounted = succeeds("truncate", &["-s", SIZE, image])
            && succeeds("mkfs.ext4", &["-q", image])
            && succeeds("mount", &["-o", "loop", image, folder]);
        if !mounted {
            println!("left out: no file system can be mounted");
        }
        mounted.then_some(disk)
    }

    fn path(&self) -> &str {
        self.folder.to_str().expect("text")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = succeeds("umount", &[self.path()]) || succeeds("umount", &["--lazy", self.path()]);
        let _ = std::fs::remove_dir(&self.folder);
        let _ = std::fs::remove_file(&self.image);
    }
}

/// Freezes the disk until it is dropped, for at most `FROZEN_S_MAX`.
///
/// Another process thaws the disk when its standard input closes, which happens however this process ends, or
/// when time is up.
struct Frozen(Child);

const FROZEN_S_MAX: &str = "40";

impl Frozen {
    fn new(disk: &Disk) -> Frozen {
        let thaw = "read -t $0; fsfreeze --unfreeze $1";
        let child = Command::new("bash")
            .args(["-c", thaw, FROZEN_S_MAX, disk.path()])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let frozen = Frozen(child.expect("bash is there"));
        assert!(succeeds("fsfreeze", &["--freeze", disk.path()]), "a mounted file system can be frozen");
        frozen
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// A redis-server with its append-only file on the disk, stuck in a write to it.
fn stuck(disk: &Disk) -> (Server, Load, Frozen) {
    let args = ["--appendonly", "yes", "--appendfsync", "everysec", "--dir", disk.path()];
    let server = Server::start(&redis(stage::SERVER), &args);
    let load = Load::start(server.port(), &["-t", "set", "-d", "100", "-c", "10", "-r", "1000"]);
    stage::wait_for("the load is on", || server.info("total_commands_processed").len() > 3);
    let frozen = Frozen::new(disk);
    let write = format!("{} ", libc::SYS_write);
    let path = format!("/proc/{0}/task/{0}/stack", server.pid());
    stage::wait_for("the server is stuck", || {
        let call = std::fs::read_to_string(format!("/proc/{}/syscall", server.pid())).unwrap_or_default();
        let stack = std::fs::read_to_string(&path).unwrap_or_default();
        call.starts_with(&write) && stack.contains("rwsem")
    });
    (server, load, frozen)
}

fn expect_the_file(seen: &Seen) {
    seen.expect_first("R3");
    let title = seen.titles()[0];
    assert!(title.contains("write on the append-only file"), "{seen}");
    assert!(title.ends_with("(appendonly.aof.1.incr.aof)"), "{seen}");
}

#[test]
fn a_write_begun_before_the_capture_is_the_first_finding() {
    let _stage = stage();
    let Some(disk) = Disk::mount("frozen") else { return };
    let (server, _load, _frozen) = stuck(&disk);
    let seen = diagnose("redis-server, a frozen file system", server.pid());
    expect_the_file(&seen);
    assert!(seen.first_share() > 0.95, "{seen}");
    if let Some(seen) = seen.in_kernel() {
        assert!(seen.text().contains("the file system is frozen"), "{seen}");
    }
}

#[test]
fn a_write_begun_before_and_ended_in_the_window_is_the_first_finding() {
    let _stage = stage();
    let Some(disk) = Disk::mount("thawed") else { return };
    let (server, load, frozen) = stuck(&disk);
    drop(load); // its pending requests complete after the thaw, and no more follow
    let before = programs_of_the_doctor();
    let thaw = std::thread::spawn(move || {
        let start = Instant::now();
        while start.elapsed() < TIMEOUT && programs_of_the_doctor().iter().all(|id| before.contains(id)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_secs(2)); // the window has begun, or is over: both will do
        drop(frozen);
    });
    let seen = diagnose("the same, thawed in the window", server.pid());
    thaw.join().expect("it does not panic");
    expect_the_file(&seen);
    // At least a second of three.
    assert!(seen.first_share() > 0.25, "{seen}");
}

#[test]
fn reads_from_a_disk_are_the_first_finding_with_their_file_and_the_disk() {
    let _stage = stage();
    let Some(disk) = Disk::mount("read") else { return };
    let file = format!("{}/table", disk.path());
    let program = std::env::current_exe().expect("this test has a path");
    let variable = format!("{}={file}", corpus::FILE_VARIABLE);
    let server = corpus::start_by(&["env", &variable], &program, "reader");
    let seen = diagnose("reads at random past the cache", server.pid());
    drop(server);
    seen.expect_first("R16");
    assert!(seen.titles()[0].contains("pread64 of table takes"), "{seen}");
    assert!(seen.text().contains("the disk loop"), "{}", seen.text());
}
