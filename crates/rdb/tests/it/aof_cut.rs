//! Files of commands that were cut or changed anywhere: our verdict agrees with redis-check-aof's, and no
//! file is whole that redis-check-aof calls broken.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_rdb::aof::check::{PartContent, check};
use evenkeel_rdb::aof::{Commands, Fault, Record, push_command, push_timestamp};
use evenkeel_testkit::random::{Random, fresh_seed};
use evenkeel_testkit::{Program, Reference};

/// Number of changed files that redis-check-aof checks: a process each.
const ASKED: usize = 100;
const CHANGED: usize = 200_000;

/// A small file with every kind of record.
fn small(random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    push_command(&mut out, &["SELECT", "0"]);
    push_timestamp(&mut out, 1_700_000_000);
    for _ in 0..3 {
        push_command(&mut out, &[b"SET", &random.bytes(3)[..], &random.bytes(30)]);
    }
    for name in ["MULTI", "PING", "EXEC"] {
        push_command(&mut out, &[name]);
    }
    push_command(&mut out, &["INCR", "n"]);
    out
}

/// All arguments of all commands, and the result at the end.
fn read(bytes: &[u8]) -> (Vec<Vec<Vec<u8>>>, Result<(), Fault>, u64) {
    let (mut all, mut commands) = (Vec::new(), Commands::new(bytes, 0, Some(bytes.len() as u64)));
    let end = loop {
        match commands.next() {
            Ok(Some(Record::Command(command))) => all.push(command.args().map(<[u8]>::to_vec).collect()),
            Ok(Some(_)) => {}
            Ok(None) => break Ok(()),
            Err(fault) => break Err(fault),
        }
    };
    (all, end, commands.whole())
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("evenkeel-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("the temporary folder can be written");
        Scratch(path)
    }

    fn file(&self, bytes: &[u8]) -> PathBuf {
        let path = self.0.join("f.aof");
        fs::File::create(&path).and_then(|mut file| file.write_all(bytes)).expect("it can be written");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // a folder left behind is no failure of the test
    }
}

/// Path of redis-check-aof, beside redis-server.
fn tool() -> Option<PathBuf> {
    let path = Program::oracle(Reference::Redis)?.path().with_file_name("redis-check-aof");
    path.is_file().then_some(path)
}

/// Whether redis-check-aof finds no fault, and the length of the whole part otherwise.
fn ask(tool: &Path, path: &Path) -> (bool, Option<u64>) {
    let output = Command::new(tool).arg(path).output().expect("it can be started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let whole = text.split("ok_up_to=").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok());
    (output.status.success(), whole)
}

fn check_file(path: &Path) -> PartContent {
    let mut report = check(path, None).expect("it is there");
    report.parts.remove(0).content.expect("it can be read")
}

#[test]
fn every_prefix_ends_at_the_offset_of_redis() {
    let Some(tool) = tool() else { return };
    let (seed, scratch) = (fresh_seed(), Scratch::new("prefix"));
    println!("seed {seed}");
    let bytes = small(&mut Random::new(seed));
    for cut in 0..=bytes.len() {
        let path = scratch.file(&bytes[..cut]);
        let (content, (valid, whole)) = (check_file(&path), ask(&tool, &path));
        // An annotation at the very end, or a part of one, is no error to redis-check-aof.
        let annotation = content.is_whole() != valid && bytes[..cut].ends_with(&bytes[23..cut.max(23)]);
        assert!(content.is_whole() == valid || annotation, "cut at {cut}: {content:?}");
        if let (Some(whole), false) = (whole, valid) {
            // redis-check-aof does not count an annotation as whole before a command follows.
            let counted = if content.whole == 39 && whole == 23 { 23 } else { content.whole };
            assert_eq!(counted, whole, "cut at {cut}");
        }
        if let Some(fault) = content.fault {
            assert!(fault.is_torn(), "cut at {cut}: {fault}");
        }
    }
}

#[test]
fn files_broken_for_redis_are_not_whole() {
    let Some(tool) = tool() else { return };
    let (seed, scratch) = (fresh_seed(), Scratch::new("flips"));
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let good = small(&mut random);
    for _ in 0..ASKED {
        let mut bytes = good.clone();
        let at = random.below(bytes.len());
        bytes[at] = random.draw() as u8;
        let path = scratch.file(&bytes);
        let (content, (valid, _)) = (check_file(&path), ask(&tool, &path));
        assert!(valid || !content.is_whole(), "byte {at} is {}: {content:?}", bytes[at]);
    }
}

/// There is no checksum. A changed byte of an argument changes that argument. A changed length may by chance
/// end at a later command's end, whose bytes then count as data. All other changes are noticed, and unchanged
/// commands stay as they are.
#[test]
fn a_changed_byte_changes_a_single_command_or_is_detected() {
    let seed = fresh_seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    for _ in 0..CHANGED / 200 {
        let good = small(&mut random);
        let (expected, end, _) = read(&good);
        assert_eq!(end, Ok(()));
        for _ in 0..200 {
            let mut bytes = good.clone();
            let at = random.below(bytes.len());
            bytes[at] = random.draw() as u8;
            let (found, end, whole) = read(&bytes);
            let same = found.iter().zip(&expected).take_while(|(a, b)| a == b).count();
            let behind = found.get(same + 1..).unwrap_or_default();
            let mut rests = (same + 1..=expected.len()).map(|from| &expected[from..]);
            let explained = match end {
                Ok(()) => found == expected || found.len() > same && rests.any(|rest| rest == behind),
                Err(fault) => {
                    assert!(fault.whole == whole && whole <= fault.at && fault.at <= bytes.len() as u64);
                    behind.is_empty() || rests.any(|rest| rest.starts_with(behind))
                }
            };
            assert!(explained, "byte {at} is {}: {end:?}, {found:?}", bytes[at]);
        }
    }
}
