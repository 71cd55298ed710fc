//! The machine fails under load, repeatedly. Unsynced writes are lost, in part or completely. Renames,
//! creations and removals in folders that were not synced may be undone.
//!
//! The test simulates a disk: faults.c stores the content of each sync, and after the kill the server's
//! folder gets a state that a disk might have. As strict as POSIX allows: a synced file has no name before
//! its folder is synced, too.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::{Random, Server};

use super::{folder, start_with};
use crate::durability::kill::{lengths, rounds, with_log};

/// Longest time between the starts of two syncs under `everysec`: a second, plus the delay of a busy machine.
const DUE: Duration = Duration::from_secs(2);

/// A write acknowledged this long before the start of a sync is in that sync: it has been written by then.
const BEHIND: Duration = Duration::from_secs(1);

/// The server's own log is not on the simulated disk.
const LOG: &str = "log";

/// The content of the simulated disk.
enum Image {
    File(Vec<u8>),
    Folder(BTreeMap<String, Image>),
}

/// The state stored by faults.c.
struct Disk(PathBuf);

impl Disk {
    fn new(name: &str) -> Disk {
        let disk = Disk(folder().join(format!("{name}-{}", std::process::id())));
        let _ = fs::remove_dir_all(&disk.0);
        fs::create_dir(&disk.0).expect("the folder is ours");
        disk
    }

    fn start(&self, args: &[&str]) -> Server {
        start_with(&format!("EVENKEEL_TEST_DISK={}", self.0.display()), &[], args)
    }

    fn kept(&self, id: &str) -> Option<Vec<u8>> {
        fs::read(self.0.join(id)).ok()
    }

    /// Simulates the crash: the server's folder gets a state of the disk.
    fn fail(&self, server: &Server, random: &mut Random) {
        let root = server.folder();
        // Whether later changes of folders have reached the disk.
        let is_named = random.chance(50);
        let Image::Folder(image) = self.folder_image(root, is_named, random) else {
            unreachable!("it is one")
        };
        for entry in entries(root).into_iter().filter(|entry| *entry != LOG) {
            let path = root.join(entry);
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
                .expect("it is there");
        }
        fs::remove_dir_all(&self.0).and_then(|()| fs::create_dir(&self.0)).expect("the folder is ours");
        write(root, image);
        self.keep(root);
    }

    fn folder_image(&self, path: &Path, is_named: bool, random: &mut Random) -> Image {
        let kept = self.kept(&id(&fs::metadata(path).expect("it is there"))).unwrap_or_default();
        let kept = String::from_utf8(kept).expect("names");
        let line = |line: &str| line.split_once(' ').map(|(id, name)| (id.to_owned(), name.to_owned()));
        let synced = kept.lines().filter_map(line);
        let present = entries(path).into_iter().filter_map(|name| {
            let status = fs::symlink_metadata(path.join(&name)).ok()?;
            Some((id(&status), name))
        });
        let present: Vec<_> = present.collect();
        let names: Vec<_> = if is_named { present.clone() } else { synced.collect() };
        let image = |(id, name): (String, String)| {
            let now = present.iter().find(|(other, _)| *other == id).map(|(_, name)| path.join(name));
            let image = match now {
                Some(now) if now.is_dir() => self.folder_image(&now, is_named, random),
                now => self.file_image(&id, now, random),
            };
            (name, image)
        };
        Image::Folder(names.into_iter().filter(|(_, name)| name != LOG).map(image).collect())
    }

    /// The synced content of a file, and perhaps some of its later bytes.
    fn file_image(&self, id: &str, now: Option<PathBuf>, random: &mut Random) -> Image {
        let synced = self.kept(id).unwrap_or_default();
        let written = now.map_or(Vec::new(), |path| fs::read(path).expect("it is there"));
        let more = written.len().saturating_sub(synced.len());
        if more == 0 || random.chance(50) {
            return Image::File(synced);
        }
        Image::File(written[..synced.len() + random.below(more + 1)].to_owned())
    }

    /// Everything present at a start of the machine is safe.
    fn keep(&self, path: &Path) {
        let own = self.0.join(id(&fs::metadata(path).expect("it is there")));
        if path.is_file() {
            fs::copy(path, own).expect("there is room");
            return;
        }
        let (mut lines, names) = (String::new(), entries(path));
        for name in names.iter().filter(|name| *name != LOG) {
            let path = path.join(name);
            lines += &format!("{} {name}\n", id(&fs::metadata(&path).expect("it is there")));
            self.keep(&path);
        }
        fs::write(own, lines).expect("there is room");
    }

    /// Time of the last start or end of a sync of the append-only file.
    fn moment(&self, which: &str) -> Instant {
        let moment = fs::metadata(self.0.join(which)).expect("a log is synced at the start").modified();
        let elapsed = SystemTime::now().duration_since(moment.expect("a time"));
        Instant::now() - elapsed.unwrap_or_default()
    }
}

/// The same identity as in faults.c.
fn id(status: &Metadata) -> String {
    let born = status.created().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    format!("{}-{}", status.ino(), born.unwrap_or_default().as_nanos())
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name")).collect()
}

fn write(folder: &Path, image: BTreeMap<String, Image>) {
    for (name, image) in image {
        let path = folder.join(name);
        match image {
            Image::File(bytes) => fs::write(path, bytes).expect("there is room"),
            Image::Folder(image) => {
                fs::create_dir(&path).expect("there is room");
                write(&path, image);
            }
        }
    }
}

fn each_second(name: &str, args: &[&str], lengths: &[Duration]) {
    let (disk, seed) = (Disk::new(name), fresh_seed());
    let mut random = Random::new(!seed);
    let server = disk.start(&[&with_log("everysec")[..], args].concat());
    rounds(server, lengths, seed, |server, killed| {
        let (begun, ended) = (disk.moment("begun"), disk.moment("ended"));
        // A longer sync is the disk's delay.
        let idle = killed.saturating_duration_since(ended.max(begun + DUE));
        assert!(begun > ended || idle.is_zero(), "the next sync has been due for {idle:?}");
        disk.fail(server, &mut random);
        // The previous sync, if this sync is in progress.
        Some(if begun > ended { begun - DUE } else { begun } - BEHIND)
    });
}

/// A large amount of writes is synced earlier.
#[test]
fn with_everysec_at_most_a_second_is_lost() {
    each_second("much", &[], &lengths(10, BEHIND + BEHIND / 2));
    let long = [2_900, 3_500, 3_200].map(Duration::from_millis);
    each_second(
        "everysec",
        &["--appendonly-direct-io", "no"],
        &[&lengths(4, BEHIND + BEHIND / 2)[..], &long].concat(),
    );
}

/// Here each sync is of the file itself; durability/tail.rs tests the tail.
#[test]
fn with_always_nothing_is_lost() {
    let (disk, seed) = (Disk::new("always"), fresh_seed());
    let mut random = Random::new(!seed);
    let server = disk.start(&[&with_log("always")[..], &["--appendonly-direct-io", "no"]].concat());
    rounds(server, &lengths(12, Duration::ZERO), seed, |server, _| {
        disk.fail(server, &mut random);
        None
    });
}

/// A snapshot with SAVE's OK is there. If a BGSAVE's end is unknown, an earlier snapshot may be there.
#[test]
fn a_snapshot_or_its_predecessor_survives_a_crash() {
    let (disk, seed) = (Disk::new("snapshots"), fresh_seed());
    println!("EVENKEEL_SEED={seed}");
    let mut random = Random::new(seed);
    let mut server = disk.start(&["--save", "", "--threads", "2"]);
    let value = "v".repeat(300);
    for round in 0..8_i64 {
        let mut client = server.connect();
        client.call(&["SET", "round", &round.to_string()]);
        for key in 0..500 {
            client.call(&["SET", &format!("key:{key}"), &format!("{round}{value}")]);
        }
        let is_confirmed = random.chance(50);
        match is_confirmed {
            true => assert_eq!(client.run("SAVE").to_string(), "OK"),
            false => {
                client.run("BGSAVE");
                std::thread::sleep(Duration::from_micros(random.below(12_000) as u64));
            }
        }
        server.kill();
        disk.fail(&server, &mut random);
        server.start_again();
        let mut client = server.connect();
        let there = client.run("GET round").to_string();
        let there = there.trim_matches('"').parse::<i64>().unwrap_or(-1);
        let least = if is_confirmed { round } else { -1 };
        assert!((least..=round).contains(&there), "round {round}: {there} is there");
        let size = if there < 0 { 0 } else { 501 };
        assert_eq!(client.run("DBSIZE").as_int(), Some(size));
        if there >= 0 {
            assert_eq!(client.run("GET key:77").to_string(), format!("\"{there}{value}\""));
            assert!(server.folder().join("dump.rdb").exists());
        }
    }
}
