//! Directories of append-only files: real servers' files are read here, and our files are loaded by real
//! servers.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_rdb::aof::{
    Commands, Directory, PartKind, Record, Since, StoredData, check, holds_snapshot, push_command,
    push_timestamp,
};
use evenkeel_rdb::file::{self, FileReader, ReadLimits};
use evenkeel_testkit::{Client, Program, Reference, Server};

const FOLDER: &str = "appendonlydir";
const NAME: &str = " my file.aof ";
const TIMEOUT: Duration = Duration::from_secs(20);

fn start(reference: Reference, more: &[&str]) -> Option<Server> {
    let program = Program::oracle(reference)?;
    let args = ["--appendonly", "yes", "--appendfilename", NAME, "--aof-timestamp-enabled", "yes"];
    Some(Server::start(&program, &[&args, more].concat()))
}

fn open(root: &Path) -> Directory {
    Directory::open(root, OsStr::new(FOLDER), OsStr::new(NAME)).expect("it is whole")
}

fn rewrite(client: &mut Client) {
    client.run("BGREWRITEAOF");
    let deadline = Instant::now() + TIMEOUT;
    let busy =
        |info: &str| !info.contains("aof_rewrite_in_progress:0") || !info.contains("aof_rewrite_scheduled:0");
    loop {
        let info = client.run("INFO persistence");
        if !busy(&String::from_utf8_lossy(info.as_bytes().expect("INFO is text"))) {
            return;
        }
        assert!(Instant::now() < deadline, "the rewrite does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The content of a part: number of keys in its snapshot, its commands, number of annotations.
fn read(path: &Path) -> (Option<u64>, Vec<String>, usize) {
    let mut file = File::open(path).expect("it is there");
    let size = file.metadata().expect("it is there").len();
    let (mut keys, mut at) = (None, 0);
    if holds_snapshot(&mut file).expect("readable") {
        let mut reader = FileReader::new(&mut file, Some(size), ReadLimits::default()).expect("a snapshot");
        let mut count = 0;
        while let Some(part) = reader.next().expect("a snapshot") {
            if let file::FilePart::Keys(batch) = part {
                count += batch.keys;
            }
        }
        (keys, at) = (Some(count), reader.position());
    }
    file.seek(SeekFrom::Start(at)).expect("readable");
    let (mut lines, mut annotations) = (Vec::new(), 0);
    let mut commands = Commands::new(file, at, Some(size));
    while let Some(record) = commands.next().expect("whole") {
        match record {
            Record::Command(command) => {
                lines.push(command.args().map(String::from_utf8_lossy).collect::<Vec<_>>().join(" "));
            }
            _ => annotations += 1,
        }
    }
    (keys, lines, annotations)
}

fn check_their_directory(reference: Reference, preamble: &str) {
    let Some(mut server) = start(reference, &["--aof-use-rdb-preamble", preamble]) else { return };
    let mut client = server.connect();
    for line in ["SET a 1", "SELECT 3", "RPUSH l 1 2 3", "SADD s x"] {
        client.run(line);
    }
    rewrite(&mut client);
    std::thread::sleep(Duration::from_millis(1_100)); // annotations come once a second
    for line in ["MULTI", "SET b 2", "INCR a", "EXEC", r#"SET "\x00\r\n" """#] {
        client.run(line);
    }
    server.stop();
    let directory = open(server.folder());
    assert_eq!(directory.stored_data(), StoredData::Parts);
    let manifest = fs::read(directory.manifest_path()).expect("it is there");
    assert_eq!(directory.manifest().to_bytes(), manifest, "written as they write it");
    let parts = directory.parts().expect("all are there");
    assert_eq!(
        parts.iter().map(|part| part.kind).collect::<Vec<_>>(),
        [PartKind::Base, PartKind::Incremental]
    );

    let (keys, commands, _) = read(&parts[0].path);
    match preamble {
        "yes" => assert_eq!((keys, commands.len()), (Some(3), 0)),
        _ => assert_eq!((keys, commands.len()), (None, 5)), // a SELECT for each database
    }
    let (keys, commands, annotations) = read(&parts[1].path);
    let expected = ["SELECT 3", "MULTI", "SET b 2", "INCR a", "EXEC", "SET \0\r\n "];
    let in_order = ["MULTI", "SELECT 3", "SET b 2", "INCR a", "EXEC", "SET \0\r\n "];
    assert!(keys.is_none() && (commands == expected || commands == in_order), "{commands:?}");
    assert!(annotations > 0);
    let report = check::check(&directory.folder().join(""), None).expect("it is there");
    assert!(report.is_whole() && report.strays.is_empty(), "{report:?}");
    assert_eq!(report.parts[1].content.as_ref().expect("whole").commands, 6);
}

#[test]
fn files_of_redis_are_read() {
    check_their_directory(Reference::Redis, "yes");
    check_their_directory(Reference::Redis, "no");
}

#[test]
fn files_of_valkey_are_read() {
    check_their_directory(Reference::Valkey, "yes");
    check_their_directory(Reference::Valkey, "no");
}

fn append(file: &mut File, lines: &[&str]) {
    let mut out = Vec::new();
    push_timestamp(&mut out, 1_700_000_000);
    for line in lines {
        push_command(&mut out, &line.split(' ').collect::<Vec<_>>());
    }
    file.write_all(&out).expect("written");
}

/// Stops the server, removes its files, and lets `build` make a directory.
fn replace_files(server: &mut Server, build: impl FnOnce(&mut Directory)) {
    server.stop();
    fs::remove_dir_all(server.folder().join(FOLDER)).expect("the server made it");
    build(&mut open(server.folder()));
}

fn check_our_directory(reference: Reference) {
    let Some(mut server) = start(reference, &[]) else { return };
    replace_files(&mut server, |directory| {
        append(
            &mut directory.draft_base().expect("a draft"),
            &["SELECT 0", "SET a 1", "SELECT 2", "SET b 1"],
        );
        directory.install(false, Since::Number(1)).expect("installed");
        let mut file = directory.resume().expect("opened");
        append(&mut file, &["SELECT 0", "MULTI", "INCR a", "SET c 1", "EXEC"]);
        file.sync_data().expect("synced");
        let mut file = directory.next_incremental().expect("opened");
        append(&mut file, &["SELECT 0", "INCR a"]);
    });
    server.start_again();
    let mut client = server.connect();
    assert_eq!(client.run("GET a").to_string(), client.run("ECHO 3").to_string());
    assert_eq!(client.run("DBSIZE").to_string(), ":2");
    client.run("INCR a");
    rewrite(&mut client);
    client.run("INCR a");
    server.stop();

    // And back again: the server has appended to it.
    let mut directory = open(server.folder());
    let parts = directory.parts().expect("all are there");
    assert_eq!(read(&parts[0].path).0, Some(3));
    assert!(parts[1].path.to_string_lossy().ends_with(&format!("/{NAME}.3.incr.aof")), "{parts:?}");
    append(&mut directory.resume().expect("opened"), &["SELECT 0", "INCR a"]);
    server.start_again();
    assert_eq!(server.connect().run("GET a").to_string(), server.connect().run("ECHO 6").to_string());
}

#[test]
fn redis_loads_files_written_here() {
    check_our_directory(Reference::Redis);
}

#[test]
fn valkey_loads_files_written_here() {
    check_our_directory(Reference::Valkey);
}

/// The manifest without files (before the first part), and an adopted file of an older server.
#[test]
fn redis_starts_from_each_step_of_a_rewrite() {
    let Some(mut server) = start(Reference::Redis, &[]) else { return };
    replace_files(&mut server, |directory| drop(directory.draft_base().expect("a draft")));
    server.start_again();
    assert_eq!(server.connect().run("DBSIZE").to_string(), ":0");
    server.stop();
    fs::remove_dir_all(server.folder().join(FOLDER)).expect("the server made it");
    append(&mut File::create(server.folder().join(NAME)).expect("created"), &["SELECT 0", "SET a 1"]);
    let mut directory = open(server.folder());
    assert_eq!(directory.stored_data(), StoredData::OldFile);
    directory.adopt().expect("moved");
    server.start_again();
    assert_eq!(server.connect().run("DBSIZE").to_string(), ":1");
    assert_eq!(open(server.folder()).manifest().incremental.len(), 1);
}
