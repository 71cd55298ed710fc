use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use evenkeel_rdb::aof::{push_command, push_timestamp};

/// A snapshot of a single key, without a checksum.
const SNAPSHOT: &[u8] = b"REDIS0010\xfe\x00\x00\x01a\x011\xff\0\0\0\0\0\0\0\0";
const TORN: &[u8] = b"*1\r\n$4\r\nPI";

/// A directory that is removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn with(files: &[(&str, &[u8])]) -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("evenkeel-check-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = Folder(std::env::temp_dir().join(name));
        fs::create_dir_all(&folder.0).expect("the temporary folder can be written");
        for (name, content) in files {
            let path = folder.0.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("the folder can be written");
            fs::write(path, content).expect("the folder can be written");
        }
        folder
    }

    /// Returns the output of `evenkeel check` for these arguments and answers, and whether everything is
    /// intact.
    fn check(&self, args: &[&str], answer: &str) -> (String, bool) {
        let mut request = request(args).expect("it is asked to look");
        request.path = self.0.join(request.path);
        let mut out = Vec::new();
        let well = act(&request, &mut answer.as_bytes(), &mut out).expect("a Vec takes all");
        let text = String::from_utf8(out).expect("it is text");
        (text.replace(&format!("{}/", self.0.display()), ""), well)
    }

    fn size(&self, name: &str) -> u64 {
        fs::metadata(self.0.join(name)).expect("it is there").len()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // a directory left behind is no failure of the test
    }
}

fn request(args: &[&str]) -> Option<Request> {
    let args: Vec<OsString> = ["check"].iter().chain(args).map(OsString::from).collect();
    match Request::from(&args, |_| true)?.ok()? {
        Wish::Look(request) => Some(request),
        Wish::Help => None,
    }
}

fn commands(lines: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for line in lines {
        push_command(&mut out, &line.split(' ').collect::<Vec<_>>());
    }
    out
}

#[test]
fn redis_server_command_lines_keep_their_meaning() {
    for args in [&[][..], &["--port", "1"], &["-"], &["--fix"], &["a", "--port", "1"], &["a", "b"]] {
        assert_eq!(request(args), None, "{args:?}");
    }
    assert_eq!(Request::from(&["redis.conf".into(), "a".into()], |_| false), None);
    let path = PathBuf::from("a");
    assert_eq!(request(&["a"]), Some(Request { path: path.clone(), fix: false, yes: false, moment: None }));
    let all = request(&["--yes", "--truncate-to-timestamp", "7", "a", "--fix"]);
    assert_eq!(all, Some(Request { path, fix: true, yes: true, moment: Some(7) }));
    assert_eq!(request(&["a", "--truncate-to-timestamp", "x"]), None);
}

#[test]
fn help_succeeds() {
    for help in ["--help", "-h"] {
        let args = ["check".into(), help.into()];
        assert_eq!(Request::from(&args, |_| false), Some(Ok(Wish::Help)));
        assert_eq!(Request::from(&args, |_| true), None, "an option of the server's");
    }
}

#[test]
fn misspelt_options_are_named() {
    for (args, reason) in [
        (&["--fixx", "a"][..], "unknown option '--fixx'"),
        (&["a", "b"], "only one file or directory can be given"),
        (&["--fix"], "a file or directory is required"),
        (&[], "a file or directory is required"),
        (&["a", "--truncate-to-timestamp"], "--truncate-to-timestamp requires a number of seconds"),
        (&["a", "--truncate-to-timestamp", "x"], "--truncate-to-timestamp requires a number of seconds"),
    ] {
        let args: Vec<OsString> = ["check"].iter().chain(args).map(OsString::from).collect();
        assert_eq!(Request::from(&args, |_| false), Some(Err(reason.into())), "{args:?}");
        assert_eq!(Request::from(&args, |_| true), None, "{args:?}");
    }
}

#[test]
fn intact_files_are_reported() {
    let good = commands(&["SET a 1", "PING"]);
    let manifest = b"file b seq 1 type b\nfile i seq 1 type i\n";
    let folder =
        Folder::with(&[("m.manifest", manifest), ("b", SNAPSHOT), ("i", &good), ("m.2.incr.aof", b"")]);
    let expected = "m.manifest: 2 files\n\
        b: 25 bytes, intact: a snapshot of version 10, 1 key in 1 database, without a checksum\n\
        i: incremental, 41 bytes, intact: 2 commands\n\
        m.2.incr.aof: not in the manifest, not loaded\n\
        No errors found.\n";
    assert_eq!(folder.check(&["m.manifest"], ""), (expected.to_owned(), true));
    let (text, well) = folder.check(&["."], "");
    assert_eq!((text.replace("./", ""), well), (expected.to_owned(), true));
}

#[test]
fn torn_ends_are_truncated_after_confirmation() {
    let bytes = [&commands(&["SET a 1"])[..], TORN].concat();
    let folder = Folder::with(&[("f", &bytes)]);
    let found = "f: 37 bytes, DAMAGED: 1 command\n    the file ends within a command at offset 31\n    \
                 intact up to byte 27, followed by 10 bytes of damage\n";
    let cut = "truncate f by 10 bytes, without any complete command.\n";
    assert_eq!(folder.check(&["f"], ""), (format!("{found}--fix would {cut}"), false));
    for answer in ["", "n\n"] {
        let aborted = format!("{found}This will {cut}Continue? [y/N]: Aborted, nothing was truncated.\n");
        assert_eq!(folder.check(&["f", "--fix"], answer), (aborted, false));
        assert_eq!(folder.size("f"), 37);
    }
    let done = format!("{found}This will {cut}Continue? [y/N]: Done: f was truncated to 27 bytes.\n");
    assert_eq!(folder.check(&["f", "--fix"], "y\n"), (done, true));
    assert_eq!(folder.size("f"), 27);
    assert_eq!(folder.check(&["f", "--fix"], "").0, "f: 27 bytes, intact: 1 command\nNo errors found.\n");
}

/// A part checked alone does not show that later parts continue where it ends.
#[test]
fn only_the_last_file_is_truncated() {
    let torn = [&commands(&["SET a 1"])[..], TORN].concat();
    let whole = commands(&["SET b 1"]);
    let manifest = b"file l.1.incr.aof seq 1 type i\nfile l.2.incr.aof seq 2 type i\n";
    let folder =
        Folder::with(&[("d/l.1.incr.aof", &torn), ("d/l.2.incr.aof", &whole), ("d/l.manifest", manifest)]);
    let (said, fixed) = folder.check(&["d/l.1.incr.aof", "--fix", "--yes"], "");
    assert!(said.ends_with("Not truncated: the file is not the last in the manifest.\n"), "{said}");
    assert!(!fixed);
    assert_eq!(folder.size("d/l.1.incr.aof"), torn.len() as u64);
}

#[test]
fn losses_of_a_fix_are_reported_first() {
    let good = commands(&["SET a 1", "PING"]);
    let folder = Folder::with(&[
        ("f", &[&good[..], b"what?\r\n", &good].concat()),
        ("z", &[&good[..], &[0; 9]].concat()),
    ]);
    let (text, well) = folder.check(&["f", "--fix", "--yes"], "");
    assert!(text.contains("expected a command ('*'), found 'w' at offset 41\n"), "{text}");
    assert!(text.contains("This will truncate f by 48 bytes, with 2 commands still recognizable.\n"));
    assert!(well && folder.size("f") == 41);
    assert!(folder.check(&["z"], "").0.contains("--fix would truncate z by 9 bytes, all zero.\n"));
}

#[test]
fn unrepairable_files_are_left_unchanged() {
    let good = commands(&["SET a 1"]);
    let torn = [&good[..], TORN].concat();
    let manifest = ("m.manifest", &b"file b seq 1 type b\nfile i seq 1 type i\n"[..]);
    let folder = Folder::with(&[manifest, ("b", &torn), ("i", &good), ("r", &SNAPSHOT[..20])]);
    let (text, well) = folder.check(&["m.manifest", "--fix", "--yes"], "");
    assert!(!well && text.contains("b cannot be truncated: later files continue"), "{text}");
    assert_eq!(folder.size("b"), torn.len() as u64);
    let (text, well) = folder.check(&["r", "--fix", "--yes"], "");
    assert!(!well && text.contains("r has a damaged snapshot"), "{text}");
    assert!(
        text.contains("DAMAGED: a snapshot of version 10, 1 key in 1 database\n    the data ends"),
        "{text}"
    );
    // Of three announced keys, only the first is there.
    let cut = Folder::with(&[("r", b"REDIS0010\xfe\x00\xfb\x03\x00\x00\x01a\x011\x00\x01b".as_slice())]);
    let (text, well) = cut.check(&["r"], "");
    assert!(
        !well && text.contains("1 key in 1 database\n") && text.contains("; at least 2 keys lost\n"),
        "{text}"
    );
    fs::remove_file(folder.0.join("i")).expect("it is there");
    let (text, well) = folder.check(&["m.manifest"], "");
    assert!(
        !well && text.contains("The AOF file i is listed in the manifest: No such file or directory\n"),
        "{text}"
    );
    assert_eq!(folder.check(&["/dev/null"], ""), ("/dev/null is not a file\n".into(), false));
    assert_eq!(
        folder.check(&["nothing"], ""),
        ("Can't open nothing: No such file or directory\n".into(), false)
    );
}

/// A server refuses to start on it.
#[test]
fn empty_snapshots_are_corrupt_and_empty_aofs_are_valid() {
    let manifest = b"file m.1.base.rdb seq 1 type b\nfile m.1.incr.aof seq 1 type i\n";
    let folder = Folder::with(&[
        ("m.manifest", manifest),
        ("m.1.base.rdb", b""),
        ("m.1.incr.aof", b""),
        ("dump.rdb", b""),
        ("old.aof", b""),
    ]);
    let broken = "m.1.base.rdb: 0 bytes, DAMAGED: empty, a snapshot is expected\n\
        m.1.incr.aof: incremental, 0 bytes, empty\n\
        m.1.base.rdb has a damaged snapshot, which truncation cannot repair.\n";
    assert_eq!(folder.check(&["m.manifest"], ""), (format!("m.manifest: 2 files\n{broken}"), false));
    let (text, well) = folder.check(&["dump.rdb", "--fix", "--yes"], "");
    assert!(!well && text.starts_with("dump.rdb: 0 bytes, DAMAGED: empty"), "{text}");
    assert!(folder.check(&["old.aof"], "").1);

    let args = [folder.0.join("m.manifest").into_os_string()];
    let Some(redis::Tool::Aof(tool)) = redis::Tool::from("redis-check-aof".as_ref(), &args) else {
        panic!("it is asked to look");
    };
    let mut out = Vec::new();
    let well = tool.run(&mut std::io::empty(), &mut out).expect("a Vec takes all");
    let text = String::from_utf8_lossy(&out);
    assert!(!well && text.ends_with("BASE AOF m.1.base.rdb is empty, a snapshot is expected\n"), "{text}");
}

/// For the server's directory, the output names the append-only directory inside.
#[test]
fn directories_are_reported() {
    let folder = Folder::with(&[("dump.rdb", SNAPSHOT)]);
    let inside = folder.0.join("appendonlydir");
    fs::create_dir_all(&inside).expect("the folder can be written");
    assert_eq!(folder.check(&["."], "").0, "./: no manifest is in this folder\n".replace("./", "."));
    fs::write(inside.join("m.manifest"), "file i seq 1 type i\n").expect("the folder can be written");
    let (text, well) = folder.check(&["."], "");
    let expected = "no manifest is in this folder, but one is in ./appendonlydir\n";
    assert!(!well && text.ends_with(expected), "{text}");
}

#[test]
fn truncation_to_a_timestamp() {
    let mut bytes = commands(&["SET a 1"]);
    push_timestamp(&mut bytes, 100);
    bytes.extend(commands(&["SET a 2"]));
    let folder = Folder::with(&[("f", &bytes)]);
    let (text, well) = folder.check(&["f", "--truncate-to-timestamp", "100"], "");
    assert!(well && text.ends_with("No data is later than the timestamp.\n"), "{text}");
    let (text, well) = folder.check(&["f", "--truncate-to-timestamp", "99", "--yes"], "");
    assert!(
        well && text.contains("timestamps from 100 to 100\nThis will truncate f by 36 bytes.\n"),
        "{text}"
    );
    assert_eq!(folder.size("f"), 27);
    assert!(Path::new(&folder.0).is_dir());
}

/// Creates an append-only file after a machine failure: its tail has the bytes that the file lacks.
fn with_tail(file: &[u8], offset: u64, bytes: &[u8]) -> Folder {
    use std::os::unix::fs::MetadataExt;
    let folder = Folder::with(&[("a.manifest", b"file a.1.incr.aof seq 1 type i\n"), ("a.1.incr.aof", file)]);
    let inode = fs::metadata(folder.0.join("a.1.incr.aof")).expect("there").ino();
    let place = tail::RecordPosition {
        epoch: 1,
        file: inode,
        boot: boot().expect("a start of the machine") ^ 1,
        offset,
    };
    fs::write(folder.0.join("a.tail"), [&tail::header(&place, bytes)[..], bytes].concat()).expect("written");
    folder
}

#[test]
fn tail_contents_are_reported_and_restored_before_truncation() {
    let (first, second) = (commands(&["SET a 1"]), commands(&["SET b 2"]));
    let all = [&first[..], &second].concat();
    let torn = &all[..first.len() + 3];
    let folder = with_tail(torn, first.len() as u64, &second);
    let (output, well) = folder.check(&["a.manifest"], "");
    assert!(output.contains("are only in the tail") && !well, "{output}");
    assert_eq!(folder.size("a.1.incr.aof"), torn.len() as u64, "nothing is changed by looking");
    let (output, well) = folder.check(&["a.manifest", "--fix"], "");
    assert!(output.contains("from its tail") && output.contains("No errors found.") && well, "{output}");
    assert_eq!(fs::read(folder.0.join("a.1.incr.aof")).expect("there"), all);
    assert!(!folder.0.join("a.tail").exists());
    // Back to a moment before the bytes in the tail.
    let mut early = first.clone();
    push_timestamp(&mut early, 100);
    let folder = with_tail(&early, early.len() as u64, &second);
    let (output, well) = folder.check(&["a.manifest", "--truncate-to-timestamp", "99", "--yes"], "");
    assert!(output.contains("Done") && well, "{output}");
    assert!(fs::read(folder.0.join("a.1.incr.aof")).expect("there").starts_with(&first));
    assert!(folder.size("a.1.incr.aof") < all.len() as u64 && !folder.0.join("a.tail").exists(), "{output}");
    // A hole: the bytes behind it are no command, for now.
    let holed = [&first[..], &[0; 9], &second[9..]].concat();
    for tool in [false, true] {
        let folder = with_tail(&holed, first.len() as u64, &second);
        let (output, well) = if tool {
            let args = ["--fix".into(), folder.0.join("a.manifest").into_os_string()];
            let Some(redis::Tool::Aof(aof)) = redis::Tool::from("redis-check-aof".as_ref(), &args) else {
                panic!("it is asked to mend");
            };
            let mut out = Vec::new();
            let well = aof.run(&mut "y".as_bytes(), &mut out).expect("a Vec takes all");
            (String::from_utf8(out).expect("it is text"), well)
        } else {
            // The file alone.
            folder.check(&["a.1.incr.aof", "--fix", "--yes"], "")
        };
        assert!(output.contains("from its tail") && well, "{output}");
        assert_eq!(fs::read(folder.0.join("a.1.incr.aof")).expect("there"), all, "{output}");
    }
    // Damaged bytes follow it: until they are cut off, the tail says where they begin.
    let holed = [&all[..], &[0; 9], &second].concat();
    let folder = with_tail(&holed, first.len() as u64, &second);
    let (output, well) = folder.check(&["a.manifest", "--fix"], "n\n");
    assert!(output.contains("nothing was truncated") && !well, "{output}");
    assert!(
        fs::read(folder.0.join("a.1.incr.aof")).expect("there") == holed && folder.0.join("a.tail").exists()
    );
    let (output, well) = folder.check(&["a.manifest", "--fix"], "y\n");
    assert!(output.contains("Done") && well, "{output}");
    assert!(
        fs::read(folder.0.join("a.1.incr.aof")).expect("there") == all && !folder.0.join("a.tail").exists()
    );
    // A file that has changed.
    let folder = with_tail(&all, first.len() as u64, b"other bytes");
    let (output, well) = folder.check(&["a.manifest"], "");
    assert!(output.contains("was truncated or changed") && well, "{output}");
    let (output, well) = folder.check(&["a.manifest", "--fix"], "");
    assert!(output.contains("renamed to a.tail.unused.1") && well, "{output}");
    assert_eq!(fs::read(folder.0.join("a.1.incr.aof")).expect("there"), all);
}

fn check_rdb(folder: &Folder, args: &[&str]) -> (String, bool) {
    let mut args: Vec<OsString> = args.iter().map(OsString::from).collect();
    args[0] = folder.0.join(&args[0]).into();
    let Some(redis::Tool::Rdb(tool)) = redis::Tool::from("valkey-check-rdb".as_ref(), &args) else {
        panic!("these are arguments of that tool")
    };
    let mut out = Vec::new();
    let is_sound = tool.run(&mut out).expect("a Vec takes all");
    (String::from_utf8(out).expect("it is text"), is_sound)
}

#[test]
fn files_of_unknown_versions_are_checked() {
    let later = [b"VALKEY987", &SNAPSHOT[9..]].concat();
    let foreign = b"REDIS0075\x96\x01k\x01v";
    let folder = Folder::with(&[("later.rdb", &later), ("foreign.rdb", foreign)]);
    let (text, is_sound) = check_rdb(&folder, &["later.rdb"]);
    assert!(is_sound);
    assert!(text.contains("[offset 9] Future RDB version 987 detected\n"), "{text}");
    assert!(
        text.contains("RDB looks OK, but loading requires config 'rdb-version-check relaxed'\n"),
        "{text}"
    );
    let (text, is_sound) = check_rdb(&folder, &["foreign.rdb"]);
    assert!(!is_sound);
    assert!(text.contains("[offset 9] Foreign RDB version 75 detected\n"), "{text}");
    assert!(text.contains("Unknown object type 150 in RDB file with foreign version 75\n"), "{text}");
    let (text, _) = folder.check(&["later.rdb"], "");
    assert!(
        text.contains("of version 987 (which only a server with 'rdb-version-check relaxed' loads)"),
        "{text}"
    );
}

#[test]
fn statistics_of_types_and_databases_are_shown_in_three_formats() {
    let file = b"REDIS0010\xfe\x00\x00\x01a\x011\xfe\x07\x01\x01l\x02\x01x\x01y\xff\0\0\0\0\0\0\0\0";
    let folder = Folder::with(&[("a.rdb", file)]);
    let (text, _) = check_rdb(&folder, &["a.rdb", "--stats", "--format", "info"]);
    for line in [
        "db.0.type.string.keys.total:1",
        "db.0.type.list.keys.total:0",
        "db.7.type.list.keys.total:1",
        "db.7.type.list.elements.total:2",
        "db.7.type.stream.elements.num.avg:0.00",
    ] {
        assert!(text.contains(&format!("[info] {line}\n")), "{line} is not in {text}");
    }
    let (text, _) = check_rdb(&folder, &["a.rdb", "--stats", "--format", "csv"]);
    assert!(text.contains("\ndb.7.type.name,string,list,set,zset,hash,stream,array\n"), "{text}");
    assert!(text.contains("\ndb.7.keys.total,0,1,0,0,0,0,0\n"), "{text}");
    let output = folder.0.join("out").display().to_string();
    let (text, _) = check_rdb(&folder, &["a.rdb", "--stats", "--output", &output]);
    assert!(!text.contains("db.7"), "{text}");
    let written = fs::read_to_string(&output).expect("it was written");
    assert!(written.contains("db.7.elements.total           \t0    \t2    "), "{written}");
    let args = ["a.rdb".into(), "--format".into()];
    assert!(matches!(redis::Tool::from("redis-check-rdb".as_ref(), &args), Some(redis::Tool::Usage(_))));
}
