//! What was found, as an operator reads it.

use std::fmt::Write;
use std::path::Path;

use evenkeel_rdb::aof::Kind;
use evenkeel_rdb::aof::check::{Content, Cut, Hopeless, Part, Report};
use evenkeel_rdb::aof::tail::{Restored, Tail};
use evenkeel_rdb::file::{self, Checksum};

const WRITTEN: &str = "a String takes all that is written";

/// A line for each file, and more for one that is broken.
pub(super) fn report(report: &Report) -> String {
    let mut out = String::new();
    if let Some(manifest) = &report.manifest {
        writeln!(out, "{}: {}", manifest.display(), count(report.parts.len() as u64, "file")).expect(WRITTEN);
    }
    for listed in &report.parts {
        part(&mut out, listed);
    }
    for stray in &report.strays {
        writeln!(out, "{}: not in the manifest, not loaded", stray.display()).expect(WRITTEN);
    }
    out
}

/// What is taken off by a cut.
pub(super) fn cut(report: &Report, cut: &Cut) -> String {
    let mut out = format!("{} off the end of {}", count(cut.lost(), "byte"), cut.path.display());
    let content =
        report.parts.iter().find(|part| part.path == cut.path).and_then(|part| part.content.as_ref().ok());
    if let Some(content) = content
        && content.whole == cut.keep
    {
        match content.lost.commands {
            0 if content.lost.zeros => out.push_str(", all of them zero"),
            0 => out.push_str(", in which no whole command is found"),
            commands => {
                write!(out, ", in which {} can still be recognised", count(commands, "command"))
                    .expect(WRITTEN);
            }
        }
    }
    out.push('.');
    out
}

pub(super) fn hopeless(hopeless: &Hopeless) -> String {
    let shown = |path: &Path| path.display().to_string();
    match hopeless {
        Hopeless::NotLast(path) => format!(
            "{} cannot be cut: what later files hold was executed after what would be missing. Keep a copy of all \
             files; to give up the later ones, take them out of the manifest and run this again.",
            shown(path)
        ),
        Hopeless::Snapshot(path) => {
            format!("{} holds a snapshot that is broken: it cannot be mended by cutting.", shown(path))
        }
        Hopeless::Unreadable(path) => {
            format!("{} cannot be read, so nothing can be said about it.", shown(path))
        }
        Hopeless::Broken(path) => {
            format!("{} is broken before that moment: mend it first, with --fix.", shown(path))
        }
        Hopeless::NothingBefore(path) => format!("{} has nothing before that moment.", shown(path)),
        Hopeless::Annotation(path, at) => {
            format!("{} has an annotation at offset {at} that tells no time.", shown(path))
        }
    }
}

fn part(out: &mut String, part: &Part) {
    let kind = match part.kind {
        Kind::Base => "",
        Kind::Incremental | Kind::History => "incremental, ",
    };
    match &part.content {
        Err(error) => writeln!(out, "{error}").expect(WRITTEN),
        Ok(content) => {
            let size = count(content.size, "byte");
            writeln!(out, "{}: {kind}{size}, {}", part.path.display(), guard(content)).expect(WRITTEN);
            broken(out, content);
        }
    }
}

/// What is whole in it.
fn guard(content: &Content) -> String {
    if content.lacks_snapshot {
        return "BROKEN: empty, and should be a snapshot".to_owned();
    }
    if content.size == 0 {
        return "empty".to_owned();
    }
    let mut guard = Vec::new();
    if let Some(snapshot) = &content.snapshot {
        guard.push(snapshot_held(snapshot));
    }
    if content.commands > 0 || content.snapshot.is_none() {
        guard.push(count(content.commands, "command"));
    }
    if let Some((first, last)) = content.moments {
        guard.push(format!("annotated from {first} to {last}"));
    }
    let state = if content.is_whole() { "whole" } else { "BROKEN" };
    format!("{state}: {}", guard.join(", "))
}

fn snapshot_held(snapshot: &file::Report) -> String {
    let mut out = String::from("a snapshot");
    if let Some(header) = &snapshot.header {
        write!(out, " of version {}", header.version).expect(WRITTEN);
    }
    let databases = snapshot.databases.len() as u64;
    write!(out, ", {} in {}", count(snapshot.keys(), "key"), count(databases, "database")).expect(WRITTEN);
    let expiring: u64 = snapshot.databases.values().map(|database| database.expiring).sum();
    if expiring > 0 {
        write!(out, ", {expiring} of which expire").expect(WRITTEN);
    }
    if !snapshot.functions.is_empty() {
        write!(out, ", {}", count(snapshot.functions.len() as u64, "function library")).expect(WRITTEN);
    }
    if snapshot.corrected > 0 {
        let streams = count(snapshot.corrected, "stream");
        write!(out, ", {streams} with wrong counters, which a load corrects").expect(WRITTEN);
    }
    if snapshot.checksum == Some(Checksum::Absent) {
        out.push_str(", without a checksum");
    }
    out
}

fn broken(out: &mut String, content: &Content) {
    if content.is_whole() {
        return;
    }
    if let Some(snapshot) = &content.snapshot
        && let Some(failure) = &snapshot.failure
        && content.fault.is_none()
    {
        let lost = match snapshot.lost() {
            0 => String::new(),
            keys => format!("; {} lost, or more", count(keys, "key")),
        };
        writeln!(out, "    {failure}; it can be read up to byte {}{lost}", snapshot.readable).expect(WRITTEN);
    }
    if let Some(fault) = &content.fault {
        let lost = count(content.lost.bytes, "byte");
        writeln!(out, "    {fault}").expect(WRITTEN);
        writeln!(out, "    whole up to byte {}, {lost} behind it are not", content.whole).expect(WRITTEN);
    }
}

fn count(number: u64, what: &str) -> String {
    match (number, what.strip_suffix('y')) {
        (1, _) => format!("1 {what}"),
        (_, Some(stem)) if what.ends_with("ry") => format!("{number} {stem}ies"),
        _ => format!("{number} {what}s"),
    }
}
/// What the next start would do with a tail, as a line, if it is anything.
pub(super) fn tail(tail: &Tail) -> String {
    match tail {
        Tail::Nothing | Tail::Whole { .. } => String::new(),
        Tail::Lacks { path, from, len } => format!(
            "{len} bytes of {} are in its tail, from byte {from} on: the next start puts them back, as does --fix.\n",
            path.display()
        ),
        Tail::Changed { path } => {
            format!(
                "{} has been cut off or changed since its tail was written: the tail is put aside.\n",
                path.display()
            )
        }
        Tail::Foreign => "The tail belongs to none of these files: it is put aside.\n".to_owned(),
    }
}

/// What was done with it.
pub(super) fn restored(restored: &Restored) -> String {
    match (&restored.tail, &restored.aside) {
        (Tail::Lacks { path, from, len }, _) => {
            format!("{len} bytes of {} are back from its tail, from byte {from} on.\n", path.display())
        }
        (_, Some(aside)) => {
            format!("The tail is not of these files as they are, and is kept as {}.\n", aside.display())
        }
        _ => String::new(),
    }
}
