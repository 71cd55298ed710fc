//! `frozen-disk`: what clients feel when the file system under an append-only file stands still for three seconds.
//!
//! Each server gets a small file system of its own, in a file, and logs every SET to it with `appendfsync everysec`.
//! `fsfreeze` stops everything that wants to write there, as a disk does that hangs, a snapshot of the volume, or a throttled
//! cloud disk. Afterwards nothing may be missing: the server is killed, started again over its files, and must have
//! all keys. That takes root; without, the experiment says so and is left out.

use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Session;
use super::aof::wait_until;
use super::felt::{self, Felt, feel};
use super::lanes::{Lane, Traffic};
use crate::interrupt;
use crate::json::{Json, object};
use crate::load::keys::KeyRange;
use crate::peers::{Kind, Launch, ask};
use crate::promises::Promise;
use crate::stats::Goal;
use crate::table::Table;

/// Longest request while the file system is frozen, in microseconds.
const LONGEST_US_MAX: f64 = 5_000.0;
const FROZEN: Duration = Duration::from_secs(3);
/// The load goes on so long before and after.
const MARGIN: Duration = Duration::from_millis(500);
/// Sparse: what is not written takes no room.
const DISK_BYTES: u64 = 4 << 30;
const KEYS: u64 = 100_000;
const VALUE_SIZE: usize = 500;
/// More than three seconds of any load.
const BUFFER_LIMIT: &str = "4gb";
const LOAD_TIME_MAX: Duration = Duration::from_secs(120);
pub(super) const ESTIMATE: Duration = Duration::from_secs(60);

pub(crate) fn frozen_disk(session: &mut Session) -> Result<()> {
    if let Err(error) = Disk::make("trial") {
        println!("\nfrozen-disk is left out: {error:#}");
        return Ok(());
    }
    let mut table = Table::new(&[&[""][..], &felt::HEAD, &["log waiting"]].concat());
    let (mut figures, mut curves) = (Vec::new(), Vec::new());
    for kind in [Kind::Valkey, Kind::Evenkeel, Kind::Redis] {
        if session.peer(kind).is_none() {
            continue;
        }
        let felt = measure(session, kind)?;
        if kind == Kind::Evenkeel {
            let goal = Goal::AtMost(LONGEST_US_MAX);
            session.judge_for(
                Promise::Files,
                "longest request over a frozen disk, us".into(),
                goal,
                felt.during.max,
            );
        }
        let mut cells = vec![kind.name().to_owned()];
        cells.extend(felt.cells());
        cells.push(format!("{} MB", felt.grown / 1_000_000));
        table.row(cells);
        let mut members = vec![("server", kind.name().into())];
        members.extend(felt.figures());
        figures.push(object(members));
        curves.push(felt.curve(kind.name(), "frozen", MARGIN, MARGIN + FROZEN));
    }
    let title = format!(
        "frozen-disk: SET of {VALUE_SIZE} B from 50 clients, everysec, {} s frozen of {} s",
        FROZEN.as_secs(),
        (FROZEN + 2 * MARGIN).as_secs()
    );
    session.report(
        "frozen-disk",
        &title,
        &table,
        vec![("servers", Json::Array(figures)), ("timelines", Json::Array(curves))],
    );
    Ok(())
}

fn measure(session: &Session, kind: Kind) -> Result<Felt> {
    let peer = session.peer(kind).expect("it was found");
    let disk = Disk::make(kind.name())?;
    let launch = Launch { cpus: Vec::new(), threads: 1 };
    let mut lane = Lane::start_in(peer, kind.name(), &launch, disk.folder())?;
    lane.set("appendonly", "yes")?;
    if kind == Kind::Evenkeel {
        // The question is what clients feel before it is reached, and writers wait.
        lane.set("appendonly-buffer-limit", BUFFER_LIMIT)?;
    }
    wait_until(&lane, "aof_enabled:1")?;
    wait_until(&lane, "aof_rewrite_in_progress:0")?;
    lane.fill(KeyRange { first: 0, count: KEYS }, VALUE_SIZE)?;
    let traffic = Traffic { keys: KEYS, value_size: VALUE_SIZE, ..Traffic::default() };
    let (felt, ()) = feel(session, &lane, &traffic, FROZEN + 2 * MARGIN, || freeze(&disk))?;
    // What was acknowledged long ago has to be on the disk by now.
    interrupt::sleep(Duration::from_secs(2))?;
    lane.server.restart(&["--appendonly", "yes"])?;
    wait_for_keys(&lane)?;
    Ok(felt)
}

/// Freezes the disk in the middle of the load.
fn freeze(disk: &Disk) -> Result<()> {
    interrupt::sleep(MARGIN)?;
    let _thaws = disk.freeze()?;
    interrupt::sleep(FROZEN)
}

fn wait_for_keys(lane: &Lane) -> Result<()> {
    let until = Instant::now() + LOAD_TIME_MAX;
    loop {
        match ask(lane.server.address, &["DBSIZE"]) {
            Ok(answer) if answer.trim() == format!(":{KEYS}") => return Ok(()),
            Ok(answer) if !answer.starts_with("-LOADING") => {
                bail!("{}: {} keys after the restart, and not {KEYS}", lane.name, answer.trim());
            }
            _ if Instant::now() > until => bail!("{}: not loaded after {LOAD_TIME_MAX:?}", lane.name),
            _ => interrupt::sleep(Duration::from_millis(20))?,
        }
    }
}

/// A file system in a file, unmounted and removed in the end.
struct Disk {
    image: PathBuf,
    folder: PathBuf,
    mounted: bool,
}

/// Thaws the disk when it is dropped.
struct Frozen<'a>(&'a Disk);

impl Disk {
    fn make(name: &str) -> Result<Disk> {
        let root = std::env::temp_dir().join(format!("evenkeel-bench-disk-{}-{name}", std::process::id()));
        let mut disk = Disk { image: root.with_extension("img"), folder: root, mounted: false };
        std::fs::create_dir(&disk.folder)?;
        std::fs::File::create(&disk.image)?.set_len(DISK_BYTES)?;
        run("mkfs.ext4", &["-q", "-F"], &disk.image)?;
        let status = Process::new("mount").args(["-o", "loop"]).args([&disk.image, &disk.folder]).output();
        check("mount", status)?;
        disk.mounted = true;
        drop(disk.freeze()?);
        Ok(disk)
    }

    fn folder(&self) -> &Path {
        &self.folder
    }

    fn freeze(&self) -> Result<Frozen<'_>> {
        run("fsfreeze", &["--freeze"], &self.folder)?;
        Ok(Frozen(self))
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(error) = run("fsfreeze", &["--unfreeze"], &self.0.folder) {
            eprintln!("{error:#}");
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted
            && let Err(error) = run("umount", &[], &self.folder)
        {
            eprintln!("{error:#}");
        }
        drop(std::fs::remove_dir(&self.folder)); // it is empty unless it is still mounted
        drop(std::fs::remove_file(&self.image));
    }
}

fn run(program: &str, options: &[&str], path: &Path) -> Result<()> {
    check(program, Process::new(program).args(options).arg(path).output())
}

fn check(program: &str, ended: std::io::Result<std::process::Output>) -> Result<()> {
    let ended = ended.with_context(|| format!("{program} cannot be run"))?;
    if !ended.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&ended.stderr).trim());
    }
    Ok(())
}
