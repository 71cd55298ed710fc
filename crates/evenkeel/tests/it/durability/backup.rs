//! Online backups: the BACKUP commands, and `preload-file`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use evenkeel_resp::value::Value;
use evenkeel_testkit::digest::{difference, digest};
use evenkeel_testkit::random::fresh_seed;
use evenkeel_testkit::transcript::target;
use evenkeel_testkit::{Program, Reference, Server};

use super::failing::Faults;
use crate::random::send_random;
use crate::{program, start, wait_until};

const PLAIN: &[&str] = &["--threads", "2", "--save", "", "--enable-debug-command", "yes"];

/// A field of BACKUP STATUS.
fn status(server: &Server, field: &str) -> String {
    let words = words(server, "BACKUP STATUS");
    let at = words.iter().position(|word| word == field);
    at.map_or(String::new(), |at| words[at + 1].clone())
}

fn words(server: &Server, line: &str) -> Vec<String> {
    // A replica that loads its primary's data replies LOADING.
    let (reply, nothing) = (server.connect().run(line), &[][..]);
    let words = reply.as_items().unwrap_or(nothing).iter();
    words.map(|word| word.to_string().trim_matches('"').to_owned()).collect()
}

fn wait_for(server: &Server, state: &str) {
    wait_until(state, || status(server, "state") == state);
}

/// Begins a backup, and waits until its base is complete.
fn begin(server: &Server) {
    assert_eq!(server.connect().run("BACKUP START").to_string(), "OK");
    wait_for(server, "incrementing");
}

fn paths(server: &Server) -> Vec<PathBuf> {
    words(server, "BACKUP LIST").into_iter().map(PathBuf::from).collect()
}

fn names(folder: &Path) -> Vec<String> {
    super::files(folder).into_iter().map(|(name, _)| name).collect()
}

/// Seals the backup, and returns the path of its manifest.
fn seal(server: &Server) -> PathBuf {
    assert_eq!(server.connect().run("BACKUP SEAL").to_string(), "OK");
    assert_eq!(status(server, "state"), "sealed");
    paths(server).pop().expect("a sealed backup has files")
}

fn preloaded(manifest: &Path, args: &[&str]) -> Server {
    let file = format!("aof:{}", manifest.display());
    start(&[PLAIN, &["--preload-file", &file], args].concat())
}

fn get(server: &Server, key: &str) -> String {
    server.connect().call(&["GET", key]).to_string()
}

#[test]
fn a_sealed_backup_has_the_data_of_its_seal() {
    for appendonly in ["no", "yes"] {
        let server = start(&[PLAIN, &["--appendonly", appendonly]].concat());
        let (mut client, folder) = (server.connect(), server.folder().join("backupdir"));
        assert_eq!(
            words(&server, "BACKUP STATUS"),
            ["state", "idle", "error", "", "start_time", "0", "end_time", "0"]
        );
        client.run("SET before 1");
        begin(&server);
        assert_eq!(server.info("backup_in_progress"), "1");
        client.run("SELECT 3");
        client.run("SET during 2");
        client.run("FUNCTION LOAD '#!lua name=lib\nredis.register_function(\"f\", function() return 7 end)'");
        let base = folder.join("appendonly.aof.1.base.rdb");
        assert_eq!(paths(&server), std::slice::from_ref(&base), "the other files still change");
        let base_bytes = fs::read(&base).expect("it is there");
        // The server's own files are rewritten, turned on and off meanwhile.
        let other = if appendonly == "no" { "yes" } else { "no" };
        for value in [other, appendonly, other] {
            client.run(&format!("CONFIG SET appendonly {value}"));
            wait_until("it is done", || {
                (server.info("aof_enabled") == "1") == (value == "yes")
                    && server.info("aof_rewrite_in_progress") == "0"
            });
        }
        let manifest = seal(&server);
        assert_eq!(server.info("backup_in_progress"), "0");
        let incr = folder.join("appendonly.aof.1.incr.aof");
        assert_eq!(paths(&server), [base.clone(), incr.clone(), folder.join("appendonly.aof.manifest")]);
        assert!(status(&server, "end_time") >= status(&server, "start_time"));
        let sealed = super::files(&folder);
        client.run("SET after 3");
        client.run("SET during 4");
        for value in ["no", "yes"] {
            let restored = preloaded(&manifest, &["--appendonly", value]);
            let mut reader = restored.connect();
            assert_eq!(get(&restored, "before"), "\"1\"");
            reader.run("SELECT 3");
            assert_eq!(reader.run("GET during").to_string(), "\"2\"");
            assert_eq!(reader.run("EXISTS after").as_int(), Some(0));
            assert_eq!(reader.run("FCALL f 0").as_int(), Some(7));
        }
        assert_eq!(super::files(&folder), sealed, "nothing writes to it any more");
        assert_eq!(fs::read(&base).expect("it is there"), base_bytes);
        // It is a folder for `appenddirname` as well, also of another server.
        let checked = std::process::Command::new(program().path()).arg("check").arg(&folder).output();
        assert!(checked.expect("it runs").status.success());
        assert_eq!(client.run("BACKUP CLEANUP").to_string(), "OK");
        assert_eq!((status(&server, "state").as_str(), names(&folder)), ("idle", vec![]));
    }
}

/// All random commands, before and during the backup; another server reads the folder.
#[test]
fn references_load_backups() {
    for reference in [Reference::Valkey, Reference::Redis8] {
        let Some(reader) = Program::oracle(reference) else { continue };
        let seed = fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        let server = start(PLAIN);
        let left_out =
            ["DEBUG", "CONFIG", "SHUTDOWN", "RESET", "CLIENT", "MONITOR", "SUBSCRIBE", "PSUBSCRIBE"];
        send_random(&server, Reference::Redis, seed, 1_000, &left_out);
        begin(&server);
        send_random(&server, Reference::Redis, seed + 1, 1_000, &left_out);
        let manifest = seal(&server);
        let mut other = Server::start(&reader, &["--appendonly", "yes", "--enable-debug-command", "yes"]);
        other.connect().run("CONFIG SET appendonly no");
        other.kill();
        let target_folder = other.folder().join("appendonlydir");
        let _ = fs::remove_dir_all(&target_folder);
        fs::create_dir(&target_folder).expect("the folder is ours");
        for file in paths(&server) {
            fs::copy(&file, target_folder.join(file.file_name().expect("a file"))).expect("a copy");
        }
        other.start_again();
        let restored = preloaded(&manifest, &[]);
        let data = |server: &Server| digest(&mut target(server));
        assert_eq!(difference(&data(&server), &data(&restored)), None);
        assert_eq!(difference(&data(&server), &data(&other)), None, "{reference:?}");
    }
}

/// Each write whose reply came before BACKUP SEAL was sent is in the backup, and none that was sent after its
/// reply.
#[test]
fn the_seal_is_a_point_in_time() {
    /// Commands that a writer sends at once: the thread of the backup cannot take them all at once.
    const BATCH: usize = 200;
    let server = start(PLAIN);
    let mut client = server.connect();
    client.run("DEBUG POPULATE 20000 k 100");
    let stops = AtomicBool::new(false);
    let acknowledged: [AtomicI64; 3] = Default::default();
    let (mut at_least, mut at_most) = (vec![0; 3], vec![0; 3]);
    let manifest = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let (mut client, acknowledged, stops) = (server.connect(), &acknowledged, &stops);
                let (key, value) = (format!("count:{writer}"), "x".repeat(4_000));
                let command = |n: usize| match n % 2 {
                    0 => vec!["INCR".to_owned(), key.clone()],
                    _ => vec!["SET".to_owned(), format!("big:{writer}"), value.clone()],
                };
                let batch: Vec<_> = (0..BATCH).map(command).collect();
                scope.spawn(move || {
                    while !stops.load(Relaxed) {
                        let counts = client.pipeline(&batch);
                        let last = counts.iter().rev().find_map(Value::as_int).expect("a number");
                        acknowledged[writer].store(last, Relaxed);
                    }
                })
            })
            .collect();
        begin(&server);
        std::thread::sleep(std::time::Duration::from_millis(200));
        (0..3).for_each(|writer| at_least[writer] = acknowledged[writer].load(Relaxed));
        let manifest = seal(&server);
        // Commands that are under way when the reply comes may be in it.
        (0..3).for_each(|writer| at_most[writer] = acknowledged[writer].load(Relaxed) + BATCH as i64);
        std::thread::sleep(std::time::Duration::from_millis(50));
        stops.store(true, Relaxed);
        writers.into_iter().for_each(|writer| writer.join().expect("it writes"));
        manifest
    });
    let restored = preloaded(&manifest, &[]);
    assert_eq!(restored.connect().run("DBSIZE").as_int(), Some(20_006));
    for writer in 0..3 {
        let count: i64 =
            get(&restored, &format!("count:{writer}")).trim_matches('"').parse().expect("a number");
        assert!(count >= at_least[writer] && count <= at_most[writer], "{at_least:?} {count} {at_most:?}");
        assert!(at_least[writer] > 0, "it has written");
    }
}

#[test]
fn each_state_refuses_what_it_cannot_do() {
    let server = start(PLAIN);
    let (mut client, folder) = (server.connect(), server.folder().join("backupdir"));
    let mut error = |line: &str| client.run(line).to_string();
    assert_eq!(error("BACKUP"), "-ERR wrong number of arguments for 'backup' command");
    assert_eq!(error("BACKUP ABORT"), "-ERR No backup in progress");
    assert_eq!(error("BACKUP SEAL"), "-ERR No backup ready to seal");
    assert_eq!(error("BACKUP CLEANUP"), "OK");
    assert_eq!(
        error("CONFIG SET backupdirname other"),
        "-ERR CONFIG SET failed (possibly related to argument 'backupdirname') - can't set immutable config"
    );
    fs::create_dir(&folder).expect("the folder is ours");
    fs::write(folder.join("mine"), "x").expect("the folder is ours");
    assert!(error("BACKUP START").contains("is not empty"));
    assert_eq!(status(&server, "state"), "idle");
    fs::remove_file(folder.join("mine")).expect("it is there");
    // The file of a server before Redis 7, which is not ours.
    fs::write(server.folder().join("appendonly.aof"), "").expect("the folder is ours");
    begin(&server);
    assert_eq!(error("BACKUP START"), "-ERR A backup is already in progress");
    assert_eq!(error("BACKUP CLEANUP"), "-ERR A backup is in progress: BACKUP ABORT ends it");
    fs::write(folder.join("mine"), "x").expect("the folder is ours");
    assert_eq!(error("BACKUP ABORT"), "OK");
    assert_eq!([status(&server, "state"), status(&server, "error")], ["failed", "aborted by user"]);
    assert_eq!(names(&folder), ["mine"], "files of others stay");
    assert_eq!(error("BACKUP SEAL"), "-ERR No backup ready to seal");
    fs::remove_file(folder.join("mine")).expect("it is there");
    // A failed one is no obstacle.
    begin(&server);
    seal(&server);
    assert_eq!(error("BACKUP START"), "-ERR A sealed backup is kept: BACKUP CLEANUP removes it");
    assert_eq!(error("BACKUP ABORT"), "-ERR No backup in progress");
    assert_eq!(error("CONFIG SET backup-sealed-ttl 1"), "OK");
    wait_for(&server, "idle");
    assert_eq!(names(&folder), Vec::<String>::new());
}

#[test]
fn a_backup_waits_for_other_jobs_and_transactions() {
    let server = start(PLAIN);
    let mut client = server.connect();
    for n in 0..5 {
        client.run(&format!("SET k{n} 1"));
    }
    client.run("CONFIG SET rdb-key-save-delay 100000");
    assert_eq!(client.run("BGSAVE").to_string(), "Background saving started");
    assert_eq!(client.run("BACKUP START").to_string(), "OK");
    assert_eq!([status(&server, "state"), server.info("backup_in_progress")], ["pending", "1"]);
    assert_eq!(paths(&server), Vec::<PathBuf>::new());
    client.run("CONFIG SET rdb-key-save-delay 0");
    wait_for(&server, "incrementing");
    assert_eq!(client.run("BACKUP ABORT").to_string(), "OK");
    for line in ["MULTI", "SET one 1", "BACKUP START", "SET two 2"] {
        client.run(line);
    }
    assert_eq!(client.run("EXEC").to_string(), "[OK, OK, OK]");
    wait_for(&server, "incrementing");
    let file = format!("rdb:{}", paths(&server)[0].display());
    let restored = start(&[PLAIN, &["--preload-file", &file]].concat());
    assert_eq!([get(&restored, "one"), get(&restored, "two")], ["\"1\"", "\"2\""]);
    // Files of others in the folder are noticed behind the transaction, and stay.
    assert_eq!(client.run("BACKUP ABORT").to_string(), "OK");
    let file = server.folder().join("backupdir/appendonly.aof.1.incr.aof");
    fs::write(&file, "x").expect("the folder is there");
    for line in ["MULTI", "BACKUP START", "EXEC"] {
        client.run(line);
    }
    wait_for(&server, "failed");
    assert!(status(&server, "error").contains("is not empty"));
    fs::remove_file(file).expect("it has stayed");
    begin(&server);
    client.run("MULTI");
    assert!(client.run("BACKUP SEAL").is_error(), "a transaction has locks that it waits for");
    client.run("DISCARD");
    // In the middle of the walk.
    assert_eq!(client.run("BACKUP ABORT").to_string(), "OK");
    client.run("CONFIG SET rdb-key-save-delay 100000");
    assert_eq!(client.run("BACKUP START").to_string(), "OK");
    wait_for(&server, "snapshotting");
    assert!(client.run("BGSAVE").is_error());
    assert_eq!(client.run("BGREWRITEAOF").to_string(), "Background append only file rewriting scheduled");
    assert_eq!(client.run("BACKUP ABORT").to_string(), "OK");
    client.run("CONFIG SET rdb-key-save-delay 0");
    wait_until("the walk has ended", || client.run("BACKUP START").to_string() == "OK");
    wait_for(&server, "incrementing");
    seal(&server);
}

/// The data do not come from the journal any more.
#[test]
fn replaced_data_end_a_backup() {
    let server = start(PLAIN);
    let primary = start(PLAIN);
    primary.connect().run("SET theirs 1");
    let mut client = server.connect();
    client.run("SET mine 1");
    begin(&server);
    client.run(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    wait_for(&server, "failed");
    assert_eq!(status(&server, "error"), "the data were replaced");
    wait_until("the sync is complete", || get(&server, "theirs") == "\"1\"");
    // A replica's backup has what its primary sends.
    begin(&server);
    primary.connect().run("SET more 1");
    wait_until("it has come", || get(&server, "more") == "\"1\"");
    let restored = preloaded(&seal(&server), &[]);
    assert_eq!([get(&restored, "theirs"), get(&restored, "more")], ["\"1\"", "\"1\""]);
    client.run("BACKUP CLEANUP");
    begin(&server);
    assert_eq!(client.run("DEBUG RELOAD").to_string(), "OK");
    assert_eq!(status(&server, "state"), "incrementing", "it loads what it has saved");
    client.run("SAVE");
    assert_eq!(client.run("DEBUG RELOAD NOSAVE").to_string(), "OK");
    assert_eq!(status(&server, "state"), "failed");
}

/// An error of its disk ends the backup, and no client notices.
#[test]
fn a_failing_disk_ends_the_backup_alone() {
    let faults = Faults::new("backup-fails");
    let server = faults.start(&[PLAIN, &["--appendonly", "yes"]].concat());
    let (mut client, folder) = (server.connect(), server.folder().join("backupdir"));
    for (lines, state) in
        [("write backupdir/appendonly.aof.1.incr\n", "incrementing"), ("sync backupdir\n", "idle")]
    {
        if state == "incrementing" {
            begin(&server);
            faults.are(lines);
            client.run("SET during 1");
        } else {
            faults.are(lines);
            assert_eq!(client.run("BACKUP START").to_string(), "OK");
        }
        wait_for(&server, "failed");
        assert!(status(&server, "error").contains("Input/output error"), "{}", status(&server, "error"));
        assert_eq!(client.run("SET after 1").to_string(), "OK");
        faults.are("");
        wait_until("its files are removed", || names(&folder).is_empty());
    }
    wait_until("another can begin", || client.run("BACKUP START").to_string() == "OK");
    wait_for(&server, "incrementing");
    faults.are("sync backupdir\n");
    let reply = client.run("BACKUP SEAL").to_string();
    assert!(reply.contains("The backup failed: Input/output error"), "{reply}");
    assert_eq!(status(&server, "state"), "failed");
}

/// A disk that hangs: writers go on, the backup fails once too much waits for it, and its memory is freed
/// when the disk goes on.
#[test]
fn a_hanging_disk_ends_the_backup_alone() {
    let faults = Faults::new("backup-hangs");
    let server = faults.start(&[PLAIN, &["--appendonly-buffer-limit", "1mb"]].concat());
    let mut client = server.connect();
    begin(&server);
    faults.are("hang backupdir/appendonly.aof.1.incr\n");
    let value = "x".repeat(10_000);
    for n in 0..300 {
        assert_eq!(client.call(&["SET", &format!("k{}", n % 10), &value]).to_string(), "OK");
    }
    wait_for(&server, "failed");
    assert!(status(&server, "error").contains("appendonly-buffer-limit"), "{}", status(&server, "error"));
    let reply = client.run("BACKUP START").to_string();
    assert_eq!(reply, "-ERR The last backup has not ended yet: its disk is slow or blocked");
    faults.are("");
    wait_until("another can begin", || client.run("BACKUP START").to_string() == "OK");
    wait_for(&server, "incrementing");
    // ABORT ends a seal that waits for the disk.
    faults.are("hang backupdir/appendonly.aof.1.incr\n");
    client.run("SET k 1");
    let mut sealer = server.connect();
    sealer.send(&["BACKUP", "SEAL"]).expect("it reads");
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(client.run("BACKUP ABORT").to_string(), "OK");
    assert_eq!(sealer.read().to_string(), "-ERR The backup failed: aborted by user");
    faults.are("");
}

#[test]
fn an_end_of_the_server_removes_an_open_backup_and_keeps_a_sealed_one() {
    let mut server = start(PLAIN);
    let folder = server.folder().join("backupdir");
    server.connect().run("SET k 1");
    begin(&server);
    assert!(server.stop().success());
    assert_eq!(names(&folder), Vec::<String>::new());
    server.start_again();
    begin(&server);
    server.connect().run("SET k 2");
    server.kill();
    server.start_again();
    assert!(server.connect().run("BACKUP START").to_string().contains("is not empty"));
    fs::remove_dir_all(&folder).expect("it is there");
    server.connect().run("SET k 3");
    begin(&server);
    let manifest = seal(&server);
    assert!(server.stop().success());
    assert_eq!(get(&preloaded(&manifest, &[]), "k"), "\"3\"");
}

#[test]
fn a_preloaded_file_replaces_the_data_of_the_start() {
    let server = start(PLAIN);
    server.connect().run("SET backed-up 1");
    begin(&server);
    let manifest = seal(&server);
    let mut restored = start(&[PLAIN, &["--appendonly", "yes"]].concat());
    restored.connect().run("SET own 1");
    restored.stop();
    let (folder, file) = (restored.folder().join("appendonlydir"), format!("aof:{}", manifest.display()));
    // In the configuration of this start alone.
    let again = |args: &[&str]| {
        let dir = restored.folder().to_str().expect("a plain name").to_owned();
        start(&[PLAIN, &["--appendonly", "yes", "--dir", &dir], args].concat())
    };
    let mut first = again(&["--preload-file", &file]);
    assert_eq!([get(&first, "backed-up"), get(&first, "own")], ["\"1\"", "(nil)"]);
    assert!(names(&folder).contains(&"appendonly.aof.manifest.unused.1".into()), "{:?}", names(&folder));
    first.connect().run("SET later 1");
    assert!(first.stop().success());
    // Its own files are loaded as ever.
    let own = format!("aof:{}", folder.join("appendonly.aof.manifest").display());
    for args in [&[][..], &["--preload-file", &own]] {
        let before = names(&folder);
        let mut second = again(args);
        assert_eq!([get(&second, "backed-up"), get(&second, "later")], ["\"1\"", "\"1\""]);
        assert!(second.stop().success());
        assert_eq!(names(&folder), before);
    }
    // A torn end is left out, and the file of the backup is not changed.
    let incr = manifest.with_file_name("appendonly.aof.1.incr.aof");
    fs::write(&incr, "*3\r\n$3\r\nSET\r\n$4\r\nlast\r\n$1\r\n1\r\n*3\r\n$3\r\nSE")
        .expect("the folder is ours");
    let before = fs::read(&incr).expect("it is there");
    assert_eq!(get(&preloaded(&manifest, &["--appendonly", "yes"]), "last"), "\"1\"");
    assert_eq!(fs::read(&incr).expect("it is there"), before);
    for (file, reason) in [
        ("aof:/tmp/foo", "preload-file must end with an extension"),
        ("rdb:/tmp/foo", "preload-file must end with an extension"),
        ("invalid:/tmp/foo.rdb", "argument must be in the format"),
        ("rdb:/nonexistent/x.rdb", "there is no such file"),
        ("aof:/nonexistent/x.manifest", "there is no such manifest"),
    ] {
        let started = Server::try_start(&program(), &["--preload-file", file]).map(drop);
        assert!(started.as_ref().is_err_and(|error| error.contains(reason)), "{file}: {started:?}");
    }
}
