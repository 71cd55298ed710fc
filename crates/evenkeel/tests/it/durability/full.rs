//! A full disk: writers get errors, readers are served. Once there is room, the server goes on, and no
//! acknowledged write is lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_testkit::{Client, Server};

use crate::{start, wait_until};

/// A file system of its own; unmounted on drop.
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// Mounts two megabytes.
    pub(crate) fn mount(name: &str) -> Option<Disk> {
        Disk::mount_sized(name, 2)
    }

    pub(crate) fn mount_sized(name: &str, megabytes: usize) -> Option<Disk> {
        let path = std::env::temp_dir().join(format!("evenkeel-disk-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("the temporary folder is ours");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "tmpfs"])
            .arg(&path)
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Disk(path)),
            other => {
                let _ = fs::remove_dir(&path); // empty
                let line = format!("SKIPPED: no disk of its own can be mounted: {other:?}\n");
                let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
                None
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
        let _ = fs::remove_dir(&self.0); // a folder left behind is no failure of the test
    }
}

fn write(client: &mut Client, number: usize) -> std::io::Result<evenkeel_resp::value::Value> {
    client.try_call(&["SET", &format!("key:{number}"), &format!("{number}:{}", "x".repeat(2_000))])
}

#[test]
fn a_full_disk_stops_writers_and_loses_nothing() {
    let Some(disk) = Disk::mount("full") else { return };
    let dir = disk.path().display().to_string();
    fs::write(disk.path().join("ballast"), vec![7; 1 << 20]).expect("there is room for it");
    let args = ["--threads", "2", "--appendonly", "yes", "--appendfsync", "always", "--dir", &dir];
    let mut server = start(&args);
    let (mut writer, mut other) = (server.connect(), server.connect());
    writer.set_reply_timeout(Duration::from_secs(2));
    let mut acknowledged = 0;
    // The first write without room gets no reply yet: it is executed, but its durability is unknown.
    while let Ok(reply) = write(&mut writer, acknowledged) {
        assert!(!reply.is_error(), "write {acknowledged}: {reply}");
        acknowledged += 1;
        assert!(acknowledged < 2_000, "the disk is never full");
    }
    let reply = other.run("SET other 1").to_string();
    let expected = "MISCONF Errors writing to the AOF file: No space left on device";
    assert!(reply.contains(expected), "{reply}");
    assert_eq!(other.run("STRLEN key:0").as_int(), Some(2_002), "readers are served");
    assert_eq!(server.info("aof_last_write_status"), "err");

    fs::remove_file(disk.path().join("ballast")).expect("it is there");
    writer.set_reply_timeout(Duration::from_secs(10));
    assert!(!writer.read().is_error(), "the write that waited is acknowledged");
    acknowledged += 1;
    let until = Instant::now() + Duration::from_secs(5);
    while other.run("SET other 1").is_error() {
        assert!(Instant::now() < until, "still refused, though there is room");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.info("aof_last_write_status"), "ok");
    server.assert_healthy();
    server.kill();
    server.start_again();
    let mut client = server.connect();
    for number in 0..acknowledged {
        let len = client.run(&format!("STRLEN key:{number}")).as_int();
        assert_eq!(len, Some(2_001 + number.to_string().len() as i64), "key {number} of {acknowledged}");
    }
    assert_eq!(client.run("GET other").to_string(), "\"1\"");
    server.kill(); // before the disk goes
}

/// Without room for a snapshot writers get errors (unless turned off), the last snapshot stays, and the next
/// is whole.
#[test]
fn a_snapshot_without_disk_space_keeps_the_last_snapshot() {
    let Some(disk) = Disk::mount("dump") else { return };
    let dir = disk.path().display().to_string();
    let options = ["--save", "3600 1000000", "--rdbcompression", "no", "--dir", &dir];
    let mut server = start(&options);
    let mut client = server.connect();
    assert_eq!(client.run("SET first 1").to_string(), "OK");
    assert_eq!(client.run("SAVE").to_string(), "OK");
    let dump = disk.path().join("dump.rdb");
    let before = fs::read(&dump).expect("a snapshot");
    for n in 0..4 {
        assert!(!client.call(&["SET", &format!("large:{n}"), &"x".repeat(900_000)]).is_error());
    }
    let fails = |client: &mut Client| {
        assert!(!client.run("BGSAVE").is_error());
        wait_until("it has failed", || server.info("rdb_bgsave_in_progress") == "0");
        assert_eq!(server.info("rdb_last_bgsave_status"), "err");
        assert_eq!(fs::read(&dump).expect("a snapshot"), before);
        let names: Vec<_> =
            fs::read_dir(disk.path()).expect("a folder").flatten().map(|file| file.file_name()).collect();
        assert!(names.iter().all(|name| !name.to_string_lossy().starts_with("temp-")), "{names:?}");
    };
    fails(&mut client);
    assert!(client.run("SAVE").is_error());
    let refused = client.run("SET other 1").to_string();
    assert!(refused.starts_with("-MISCONF"), "{refused}");
    assert_eq!(client.run("STRLEN large:3").as_int(), Some(900_000), "readers are served");
    assert_eq!(client.run("CONFIG SET stop-writes-on-bgsave-error no").to_string(), "OK");
    assert_eq!(client.run("SET other 1").to_string(), "OK");
    assert_eq!(client.run("CONFIG SET stop-writes-on-bgsave-error yes").to_string(), "OK");
    assert!(client.run("SET other 2").to_string().starts_with("-MISCONF"));
    fails(&mut client);
    // A compressed snapshot fits.
    assert_eq!(client.run("CONFIG SET rdbcompression yes").to_string(), "OK");
    assert!(!client.run("BGSAVE").is_error());
    wait_until("it is there", || server.info("rdb_last_bgsave_status") == "ok");
    assert_eq!(client.run("SET other 3").to_string(), "OK");
    server.kill();
    server.start_again();
    let mut client = server.connect();
    assert_eq!(client.run("STRLEN large:3").as_int(), Some(900_000));
    assert_eq!(client.run("GET other").to_string(), "\"1\"");
    server.kill(); // before the disk goes
}

/// A server with two megabytes for its append-only file, and more data than that.
fn start_overfull(disk: &Disk) -> Server {
    let dir = disk.path().display().to_string();
    let server = start(&["--threads", "2", "--appendonly", "yes", "--save", "", "--dir", &dir]);
    let mut client = server.connect();
    assert!(!client.call(&["SET", "k", &"x".repeat(3_300_000)]).is_error());
    let until = Instant::now() + Duration::from_secs(5);
    while !client.run("SET other 1").to_string().starts_with("-MISCONF") {
        assert!(Instant::now() < until, "there is room for all");
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

/// After the append-only file is turned off, no client waits for its disk.
#[test]
fn an_aof_on_a_full_disk_is_turned_off_at_once() {
    let Some(disk) = Disk::mount("off") else { return };
    let server = start_overfull(&disk);
    let mut client = server.connect();
    assert_eq!(client.run("CONFIG SET appendonly no").to_string(), "OK");
    assert_eq!(client.run("SET other 1").to_string(), "OK");
    let until = Instant::now() + Duration::from_secs(3);
    while server.info("aof_enabled") != "0" || client.run("BGSAVE").is_error() {
        assert!(Instant::now() < until, "the log does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.info("aof_last_write_status"), "ok");
    drop(server); // before the disk goes
}

/// Also when failed rewrites have delayed the next rewrite, and while another client writes.
#[test]
fn an_aof_on_a_full_disk_is_turned_off_between_rewrites() {
    let Some(disk) = Disk::mount("between") else { return };
    let server = start_overfull(&disk);
    let mut client = server.connect();
    for _ in 0..3 {
        assert!(!client.run("BGREWRITEAOF").is_error());
        wait_until("it has failed", || server.info("aof_rewrite_in_progress") == "0");
        assert_eq!(server.info("aof_last_bgrewrite_status"), "err");
    }
    client.run("CONFIG SET rdb-key-save-delay 10000000");
    assert!(!client.run("BGSAVE").is_error());
    assert_eq!(client.run("CONFIG SET appendonly no").to_string(), "OK");
    let asked = Instant::now();
    assert!(!client.run("BGSAVE CANCEL").is_error());
    wait_until("it is off", || server.info("aof_enabled") == "0");
    assert!(asked.elapsed() < Duration::from_secs(30), "{:?}", asked.elapsed());
    assert_eq!(client.run("SET other 1").to_string(), "OK");
    drop(server); // before the disk goes
}

#[test]
fn a_server_whose_aof_has_no_disk_space_stops_at_once() {
    let Some(disk) = Disk::mount("term") else { return };
    let mut server = start_overfull(&disk);
    let began = Instant::now();
    assert!(server.stop().success());
    assert!(began.elapsed() < Duration::from_secs(3), "it took {:?}", began.elapsed());
    assert!(server.log().contains("bytes could not be written to the append-only file and are lost."));
}

/// All data are still in memory, so the operator can free space, or accept their loss.
#[test]
fn shutdown_reports_an_aof_without_disk_space() {
    let Some(disk) = Disk::mount("refused") else { return };
    let mut server = start_overfull(&disk);
    let mut client = server.connect();
    for line in ["SHUTDOWN", "SHUTDOWN NOSAVE", "SHUTDOWN NOW"] {
        let refusal = client.run(line).to_string();
        let reason = "The append-only file cannot be written: No space left on device.";
        let expected = format!("-ERR Errors trying to SHUTDOWN. Check logs. {reason}");
        assert!(refusal.starts_with(&expected), "{line}: {refusal}");
    }
    let line = "cannot be written to the append-only file, can't exit.";
    wait_until("it is said", || server.log().contains(line));
    client.send(&["SHUTDOWN", "FORCE"]).expect("it reads");
    assert!(client.try_read().is_err());
    wait_until("it ends", || !server.is_alive());
}

/// Killed while the disk is full: the file ends within a command.
#[test]
fn a_server_killed_on_a_full_disk_starts_once_there_is_space() {
    let Some(disk) = Disk::mount("killed") else { return };
    let dir = disk.path().display().to_string();
    fs::write(disk.path().join("ballast"), vec![7; 1 << 20]).expect("there is room for it");
    let args = ["--threads", "2", "--appendonly", "yes", "--appendfsync", "always", "--dir", &dir];
    let mut server = start(&args);
    let mut writer = server.connect();
    writer.set_reply_timeout(Duration::from_secs(2));
    let mut acknowledged = 0;
    while write(&mut writer, acknowledged).is_ok_and(|reply| !reply.is_error()) {
        acknowledged += 1;
    }
    server.kill();
    fs::remove_file(disk.path().join("ballast")).expect("it is there");
    server.start_again();
    let there = server.connect().run("DBSIZE").as_int().expect("a number");
    assert!((acknowledged..=acknowledged + 1).contains(&(there as usize)), "{there} of {acknowledged}");
    server.kill();
}

/// There is room for the append-only file, but not for a second copy of the data.
#[test]
fn a_rewrite_without_disk_space_frees_its_files() {
    let Some(disk) = Disk::mount("rewrite") else { return };
    let dir = disk.path().display().to_string();
    let server = start(&["--threads", "2", "--appendonly", "yes", "--rdbcompression", "no", "--dir", &dir]);
    let mut client = server.connect();
    for number in 0..500 {
        assert!(!write(&mut client, number).expect("a reply").is_error());
    }
    fs::write(disk.path().join("ballast"), vec![7; 512 << 10]).expect("there is room for it");
    assert!(!client.run("BGREWRITEAOF").is_error());
    let until = Instant::now() + Duration::from_secs(10);
    while server.info("aof_last_bgrewrite_status") != "err" || server.info("aof_rewrite_in_progress") != "0" {
        assert!(Instant::now() < until, "it does not fail");
        std::thread::sleep(Duration::from_millis(20));
    }
    let names = fs::read_dir(disk.path().join("appendonlydir")).expect("it is there").flatten();
    let names: Vec<_> = names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert!(!names.iter().any(|name| name.starts_with("temp-")), "{names:?}");
    // The delayed writes are done, or will be soon.
    let until = Instant::now() + Duration::from_secs(5);
    while write(&mut client, 1).expect("a reply").is_error() {
        assert!(Instant::now() < until, "still refused, though there is room");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(server); // before the disk goes
}
