//! `frozen-disk`: the impact on clients when the file system under an append-only file freezes for three
//! seconds.
//!
//! Each server gets a small file system of its own, in a file, and logs every SET to it with
//! `appendfsync everysec`. `fsfreeze` blocks every writer, as a hanging disk, a snapshot of the volume, or a
//! throttled cloud disk does. Afterwards nothing may be missing: the server is killed, restarted over its
//! files, and must have all keys. The experiment needs root; without, it reports so and is left out.

use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Session;
use super::aof::wait_until;
use super::felt::{self, Column, Felt, Planned, Rounds};
use super::lanes::{Lane, Traffic};
use crate::load::keys::KeyRange;
use crate::promises::Promise;
use crate::servers::{ServerKind, ask};
use crate::stats::Goal;
use crate::{interrupt, sys};

/// Longest request while the file system is frozen, in microseconds.
const LONGEST_US_MAX: f64 = 5_000.0;
const FROZEN: Duration = Duration::from_secs(3);
/// Time of load before and after the freeze.
const MARGIN: Duration = Duration::from_millis(500);
/// Sparse: unwritten parts take no room.
const DISK_BYTES: u64 = 8 << 30;
const KEYS: u64 = 100_000;
const VALUE_SIZE: usize = 500;
/// More than three seconds of any load.
const BUFFER_LIMIT: &str = "4gb";
const LOAD_TIME_MAX: Duration = Duration::from_secs(120);

pub(super) fn estimate(session: &Session) -> Duration {
    let servers = felt::planned(session).len() as u32;
    let round = FROZEN + 2 * MARGIN + session.time_for(1);
    (round * session.rounds as u32 + Duration::from_secs(8)) * servers
}

pub(crate) fn frozen_disk(session: &mut Session) -> Result<()> {
    if let Err(error) = Disk::make("trial") {
        println!("\nfrozen-disk is left out: {error:#}");
        return Ok(());
    }
    let all = session.beside_pauses(over_disks)?;
    if let Some(ours) = all.iter().find(|rounds| rounds.is_ours()) {
        let what = "longest request over a frozen disk, us".into();
        session.judge_wait(Promise::Files, what, Goal::AtMost(LONGEST_US_MAX), ours.longest_us(), 1.0);
    }
    let columns = [Column {
        head: "log waiting",
        cell: |rounds| format!("{:.0} MB", rounds.median(waiting_mb)),
        json: "log_waiting_mb",
        figure: waiting_mb,
    }];
    let title = format!(
        "frozen-disk: SET of {VALUE_SIZE} B from 50 clients, everysec, {} s frozen of {} s",
        FROZEN.as_secs(),
        (FROZEN + 2 * MARGIN).as_secs()
    );
    felt::report(session, "frozen-disk", &title, &all, &columns, ("frozen", |_| [MARGIN, MARGIN + FROZEN]));
    Ok(())
}

/// Runs the rounds, each server with its own disk; at the end no writes to the disks are under way.
fn over_disks(session: &mut Session) -> Result<Vec<Rounds<()>>> {
    let planned = felt::planned(session);
    let disks = planned.iter().map(|one| Disk::make(&one.name().replace(' ', "-")));
    let disks = disks.collect::<Result<Vec<Disk>>>()?;
    let lanes = planned.iter().zip(&disks).map(|(one, disk)| start(one, disk));
    let mut lanes = lanes.collect::<Result<Vec<Lane>>>()?;
    let traffic = Traffic { keys: KEYS, value_size: VALUE_SIZE, ..Traffic::default() };
    let all = felt::rounds(session, &lanes, &traffic, |lane, _| {
        let disk = disks.iter().find(|disk| disk.folder() == lane.server.directory());
        freeze(disk.expect("each server has one"))
    })?;
    for lane in &mut lanes {
        lane.server.restart(&["--appendonly", "yes"])?;
        wait_for_keys(lane)?;
    }
    drop(lanes); // before their disks
    drop(disks);
    sys::sync_files();
    Ok(all)
}

fn start(planned: &Planned<'_>, disk: &Disk) -> Result<Lane> {
    let lane = planned.start_in(disk.folder())?;
    // Growth must not start a rewrite in the middle of a measurement.
    lane.set("auto-aof-rewrite-percentage", "0")?;
    lane.set("appendonly", "yes")?;
    if planned.kind() == ServerKind::Evenkeel {
        // The experiment measures the time before the limit is reached and writers wait.
        lane.set("appendonly-buffer-limit", BUFFER_LIMIT)?;
    }
    wait_until(&lane, "aof_enabled:1")?;
    wait_until(&lane, "aof_rewrite_in_progress:0")?;
    lane.fill(KeyRange { first: 0, count: KEYS }, VALUE_SIZE)?;
    Ok(lane)
}

/// Memory that the process kept for unwritten data, in MB.
fn waiting_mb(felt: &Felt<()>) -> f64 {
    felt.grown as f64 / 1e6
}

/// Freezes the disk in the middle of the load.
fn freeze(disk: &Disk) -> Result<()> {
    interrupt::sleep(MARGIN)?;
    let thaws = disk.freeze()?;
    interrupt::sleep(FROZEN)?;
    drop(thaws);
    interrupt::sleep(MARGIN)
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

/// A file system in a file, unmounted and removed when dropped.
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
