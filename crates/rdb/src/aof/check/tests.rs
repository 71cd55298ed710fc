use super::*;
use crate::aof::scratch::Root;
use crate::aof::{push_command, push_timestamp};

const MANIFEST: &str = "d/m.manifest";
const LISTED: &[u8] = b"file b seq 1 type b\nfile h seq 1 type h\nfile i seq 2 type i\n";
const TORN: &[u8] = b"*1\r\n$4\r\nPI";

/// A snapshot of a single key, without a checksum.
const SNAPSHOT: &[u8] = b"REDIS0010\xfe\x00\x00\x01a\x011\xff\0\0\0\0\0\0\0\0";

fn commands(lines: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for line in lines {
        match line.strip_prefix('@') {
            Some(seconds) => push_timestamp(&mut out, seconds.parse().expect("a number")),
            None => push_command(&mut out, &line.split(' ').collect::<Vec<_>>()),
        }
    }
    out
}

fn check_root(root: &Root, name: &str) -> AofReport {
    check(&root.0.join(name), None).expect("it can be looked through")
}

fn content(bytes: &[u8]) -> PartContent {
    let root = Root::with(&[("f", bytes)]);
    let mut report = check_root(&root, "f");
    report.parts.remove(0).content.expect("it is there")
}

#[test]
fn the_files_of_an_aof_have_its_name() {
    for (file, log) in [
        ("a.aof.manifest", "a.aof"),
        ("a.aof.1.base.rdb", "a.aof"),
        ("a.aof.12.incr.aof", "a.aof"),
        ("a.aof", "a.aof"),
        ("a.aof.x.base.aof", "a.aof.x.base.aof"),
        ("1.incr.aof", "1.incr.aof"),
    ] {
        assert_eq!(aof_name(OsStr::new(file)), OsStr::new(log), "{file}");
    }
}

#[test]
fn a_whole_file_is_whole() {
    let bytes = commands(&["@5", "SET a 1", "MULTI", "@7", "SET a 2", "EXEC"]);
    let found = content(&bytes);
    assert_eq!((found.whole, found.commands, found.moments), (bytes.len() as u64, 4, Some((5, 7))));
    assert!(found.is_whole() && found.snapshot.is_none() && found.lost == Lost::default());
    let found = content(b"");
    assert!(found.is_whole() && found.size == 0);
    let found = content(&[SNAPSHOT, &bytes[..]].concat());
    assert_eq!((found.whole, found.commands), ((SNAPSHOT.len() + bytes.len()) as u64, 4));
    assert_eq!(found.snapshot.map(|snapshot| snapshot.keys()), Some(1));
    assert!(content(SNAPSHOT).is_whole());
}

#[test]
fn lost_commands_are_counted() {
    let good = commands(&["SET a 1", "SET b 2"]);
    let found = content(&[&good[..], TORN].concat());
    assert_eq!((found.whole, found.commands), (good.len() as u64, 2));
    assert_eq!(found.lost, Lost { bytes: TORN.len() as u64, commands: 0, zeros: false });
    let found = content(&[&good[..], &[0; 100]].concat());
    assert_eq!((found.lost.bytes, found.lost.zeros), (100, true));
    let found = content(&[&good[..], b"what?\r\n", &good, TORN].concat());
    assert_eq!((found.lost.bytes, found.lost.commands), ((7 + good.len() + TORN.len()) as u64, 2));
    let found = content(&[&good[..], &commands(&["MULTI", "SET a 1"])].concat());
    assert_eq!((found.whole, found.commands, found.lost.commands), (good.len() as u64, 2, 2));
}

#[test]
fn commands_are_counted_over_windows_of_a_large_file() {
    let command = commands(&[&format!("SET k {}", "v".repeat(100_000))]);
    let noise = vec![b'x'; 20 << 20];
    let many = command.repeat(300);
    let found = content(&[b"!", &noise[..], b"\n", &many, &noise, b"\n", &command].concat());
    assert_eq!((found.whole, found.lost.commands), (0, 301));
}

#[test]
fn the_end_of_a_file_is_cut_off_and_the_rest_is_whole() {
    let good = commands(&["SET a 1"]);
    for tail in [TORN, b"\0\0", b"what?", &commands(&["EXEC"]), &commands(&["MULTI", "SET b 1"])] {
        let root = Root::with(&[("f", [&good[..], tail].concat())]);
        let cut = check_root(&root, "f")
            .repair_cut()
            .expect("it can be mended")
            .expect("there is something to repair");
        assert_eq!((cut.keep, cut.lost()), (good.len() as u64, tail.len() as u64));
        cut.make().expect("cut");
        assert_eq!(fs::read(root.0.join("f")).expect("it is there"), good);
        let report = check_root(&root, "f");
        assert!(report.is_whole());
        assert_eq!(report.repair_cut(), Ok(None));
    }
}

#[test]
fn a_file_that_grows_meanwhile_is_not_cut() {
    let root = Root::with(&[("f", TORN)]);
    let cut =
        check_root(&root, "f").repair_cut().expect("it can be mended").expect("there is something to repair");
    fs::write(root.0.join("f"), commands(&["PING"])).expect("written");
    assert!(cut.make().expect_err("it has changed").to_string().contains("somebody writes to it"));
    assert_eq!(fs::read(root.0.join("f")).expect("it is there"), commands(&["PING"]));
}

#[test]
fn only_the_last_file_is_truncated() {
    let good = commands(&["SET a 1"]);
    let torn = [&good[..], TORN].concat();
    let parts = |base: &[u8], incremental: &[u8]| {
        Root::with(&[(MANIFEST, LISTED.to_vec()), ("d/b", base.to_vec()), ("d/i", incremental.to_vec())])
    };
    let root = parts(&good, &torn);
    for name in ["d", MANIFEST] {
        let report = check_root(&root, name);
        assert_eq!((report.parts.len(), report.is_whole()), (2, false));
        let cut = report.repair_cut().expect("it can be mended").expect("there is something to repair");
        assert!(cut.path.ends_with("d/i"));
    }
    let report = check_root(&parts(&torn, &good), "d");
    assert!(matches!(report.repair_cut(), Err(CutRefusal::NotLast(path)) if path.ends_with("d/b")));
    let cut = check_root(&parts(&torn, b""), "d")
        .repair_cut()
        .expect("nothing follows")
        .expect("there is something");
    assert!(cut.path.ends_with("d/b"));
    let three = (MANIFEST, [LISTED, b"file j seq 3 type i\n"].concat());
    let root = Root::with(&[three, ("d/b", torn.clone()), ("d/i", Vec::new()), ("d/j", good.clone())]);
    assert!(
        matches!(check_root(&root, "d").repair_cut(), Err(CutRefusal::NotLast(path)) if path.ends_with("d/b"))
    );
    let report = check_root(&parts(&SNAPSHOT[..20], b""), "d");
    assert!(!report.is_whole());
    assert!(matches!(report.repair_cut(), Err(CutRefusal::Snapshot(path)) if path.ends_with("d/b")));
    assert!(check_root(&parts(SNAPSHOT, &good), "d").is_whole());
}

#[test]
fn a_missing_part_does_not_stop_the_check_of_later_parts() {
    let root = Root::with(&[(MANIFEST, LISTED), ("d/i", b"what?")]);
    let report = check_root(&root, "d");
    assert!(matches!(report.parts[0].content, Err(Error { problem: Problem::Missing, .. })));
    assert_eq!(report.parts[1].content.as_ref().expect("it is there").lost.bytes, 5);
    assert!(matches!(report.repair_cut(), Err(CutRefusal::Unreadable(path)) if path.ends_with("d/b")));
}

#[test]
fn a_foreign_folder_or_file_is_refused() {
    let refused = |files: &[(&str, &str)], name: &str| {
        let root = Root::with(files);
        let error = check(&root.0.join(name), None).expect_err("it is refused");
        error.to_string().replace(&format!("{}/", root.0.display()), "")
    };
    assert_eq!(refused(&[("d/x", "")], "d"), "d: no manifest is in this folder");
    let text = "d: 2 manifests are in this folder; name the one that is meant";
    assert_eq!(refused(&[("d/a.manifest", ""), ("d/b.manifest", "")], "d"), text);
    assert_eq!(refused(&[(MANIFEST, "")], "d"), "d/m.manifest: Found an empty AOF manifest");
    let text = "x.manifest, line 2, >>> 'file b': Invalid AOF manifest file format";
    assert_eq!(refused(&[("x.manifest", "file a seq 1 type i\nfile b\n")], "x.manifest"), text);
    assert!(refused(&[], "x").starts_with("Can't open x: "));
}

#[test]
fn an_old_file_whose_move_was_interrupted_is_found() {
    let good = commands(&["SET a 1"]);
    let root = Root::with(&[("m", &good[..]), (MANIFEST, b"file m seq 1 type b\n")]);
    let report = check_root(&root, "d");
    assert_eq!((report.parts.len(), report.is_whole()), (1, true));
}

#[test]
fn a_directory_goes_back_in_time() {
    let lines = ["SET a 0", "@100", "SET a 1", "@200", "SET a 2", "MULTI", "@300", "SET a 3", "EXEC"];
    let upto = |count: usize| commands(&lines[..count]);
    let rewound = |base: Vec<u8>, last: Vec<u8>, seconds: i64| {
        let root = Root::with(&[(MANIFEST, LISTED.to_vec()), ("d/b", base), ("d/i", last)]);
        let report = check(&root.0.join("d"), Some(seconds)).expect("looked through");
        report.rewind_cut().map(|cut| {
            cut.map(|cut| {
                cut.make().expect("cut");
                fs::read(cut.path).expect("it is there")
            })
        })
    };
    let all = upto(lines.len());
    for (seconds, count) in [(99, 1), (100, 3), (199, 3), (200, 5), (299, 5)] {
        assert_eq!(rewound(upto(1), all.clone(), seconds), Ok(Some(upto(count))), "{seconds}");
    }
    assert_eq!(rewound(upto(1), all.clone(), 300), Ok(None));
    assert!(matches!(rewound(all.clone(), upto(1), 100), Err(CutRefusal::NotLast(_))));
    assert!(matches!(rewound(upto(1), commands(&lines[1..]), 50), Err(CutRefusal::NothingBefore(_))));
    let illegible = [&upto(1)[..], b"#TS:1x0\r\n", &all].concat();
    assert!(matches!(rewound(upto(1), illegible, 100), Err(CutRefusal::Annotation(_, 27))));
    let broken = [&upto(1)[..], b"what?", &all].concat();
    assert!(matches!(rewound(upto(1), broken, 100), Err(CutRefusal::Broken(_))));
    assert_eq!(rewound(upto(1), [&all[..], TORN].concat(), 100), Ok(Some(upto(3))));
}

/// Two files written into a single file, or a snapshot's byte read as its end: a cut would keep wrong data.
#[test]
fn foreign_bytes_behind_a_snapshot_are_not_cut_off() {
    let strange = [SNAPSHOT, b"\xe8\x00\x01rest"].concat();
    let root = Root::with(&[("dump.rdb", &strange[..])]);
    let report = check_root(&root, "dump.rdb");
    assert!(!report.is_whole());
    assert!(matches!(report.repair_cut(), Err(CutRefusal::Snapshot(path)) if path.ends_with("dump.rdb")));
    for tail in [TORN.to_vec(), [&commands(&["SET a 1"])[..], TORN].concat()] {
        let root = Root::with(&[("appendonly.aof", [SNAPSHOT, &tail].concat())]);
        assert!(check_root(&root, "appendonly.aof").repair_cut().expect("a log").is_some());
    }
}

#[test]
fn a_directory_cannot_go_back_before_its_snapshot() {
    let snapshot = [&SNAPSHOT[..9], b"\xfa\x05ctime\x041000", &SNAPSHOT[9..]].concat();
    let files = [(MANIFEST, LISTED.to_vec()), ("d/b", snapshot), ("d/i", commands(&["SET a 1"]))];
    let root = Root::with(&files);
    let rewound = |seconds| check(&root.0.join("d"), Some(seconds)).expect("looked through").rewind_cut();
    assert!(matches!(rewound(999), Err(CutRefusal::NothingBefore(path)) if path.ends_with("d/b")));
    assert_eq!(rewound(1000), Ok(None));
}
