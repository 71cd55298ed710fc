//! Formats the results for operators.

use std::fmt::Write;
use std::path::Path;

use evenkeel_rdb::aof::PartKind;
use evenkeel_rdb::aof::check::{AofReport, Cut, CutRefusal, PartContent, PartReport};
use evenkeel_rdb::aof::tail::{Restored, Tail};
use evenkeel_rdb::file::{self, Checksum};

const WRITTEN: &str = "a String takes all that is written";

/// Formats a line for each file, and more for a broken file.
pub(super) fn report(report: &AofReport) -> String {
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

/// Describes the bytes that a cut removes.
pub(super) fn cut(report: &AofReport, cut: &Cut) -> String {
    let mut out = format!("{} by {}", cut.path.display(), count(cut.lost(), "byte"));
    let content =
        report.parts.iter().find(|part| part.path == cut.path).and_then(|part| part.content.as_ref().ok());
    if let Some(content) = content
        && content.whole == cut.keep
    {
        match content.lost.commands {
            0 if content.lost.zeros => out.push_str(", all zero"),
            0 => out.push_str(", without any complete command"),
            commands => {
                write!(out, ", with {} still recognizable", count(commands, "command")).expect(WRITTEN);
            }
        }
    }
    out.push('.');
    out
}

pub(super) fn refusal(refusal: &CutRefusal) -> String {
    let shown = |path: &Path| path.display().to_string();
    match refusal {
        CutRefusal::NotLast(path) => format!(
            "{} cannot be truncated: later files continue from its end. To discard the later files, make a \
             copy of all files, remove the later files from the manifest and run the check again.",
            shown(path)
        ),
        CutRefusal::Snapshot(path) => {
            format!("{} has a damaged snapshot, which truncation cannot repair.", shown(path))
        }
        CutRefusal::Unreadable(path) => {
            format!("{} cannot be read.", shown(path))
        }
        CutRefusal::Broken(path) => {
            format!("{} is damaged before the timestamp: repair it with --fix first.", shown(path))
        }
        CutRefusal::NothingBefore(path) => format!("{} has no data before the timestamp.", shown(path)),
        CutRefusal::Annotation(path, at) => {
            format!("{} has an invalid timestamp annotation at offset {at}.", shown(path))
        }
    }
}

fn part(out: &mut String, part: &PartReport) {
    let kind = match part.kind {
        PartKind::Base => "",
        PartKind::Incremental | PartKind::History => "incremental, ",
    };
    match &part.content {
        Err(error) => writeln!(out, "{error}").expect(WRITTEN),
        Ok(content) => {
            let size = count(content.size, "byte");
            writeln!(out, "{}: {kind}{size}, {}", part.path.display(), contents(content)).expect(WRITTEN);
            broken(out, content);
        }
    }
}

/// Describes the intact content.
fn contents(content: &PartContent) -> String {
    if content.lacks_snapshot {
        return "DAMAGED: empty, a snapshot is expected".to_owned();
    }
    if content.size == 0 {
        return "empty".to_owned();
    }
    let mut parts = Vec::new();
    if let Some(snapshot) = &content.snapshot {
        parts.push(snapshot_held(snapshot));
    }
    if content.commands > 0 || content.snapshot.is_none() {
        parts.push(count(content.commands, "command"));
    }
    if let Some((first, last)) = content.moments {
        parts.push(format!("timestamps from {first} to {last}"));
    }
    let state = if content.is_whole() { "intact" } else { "DAMAGED" };
    format!("{state}: {}", parts.join(", "))
}

fn snapshot_held(snapshot: &file::FileReport) -> String {
    let mut out = String::from("a snapshot");
    if let Some(header) = &snapshot.header {
        write!(out, " of version {}", header.version).expect(WRITTEN);
        if !header.is_known() {
            out.push_str(" (which only a server with 'rdb-version-check relaxed' loads)");
        }
    }
    let databases = snapshot.databases.len() as u64;
    write!(out, ", {} in {}", count(snapshot.keys(), "key"), count(databases, "database")).expect(WRITTEN);
    let expiring: u64 = snapshot.databases.values().map(|database| database.expiring).sum();
    if expiring > 0 {
        write!(out, ", {expiring} with an expiration time").expect(WRITTEN);
    }
    if !snapshot.functions.is_empty() {
        write!(out, ", {}", count(snapshot.functions.len() as u64, "function library")).expect(WRITTEN);
    }
    if snapshot.corrected > 0 {
        let streams = count(snapshot.corrected, "stream");
        write!(out, ", {streams} with wrong counters, which are corrected when loaded").expect(WRITTEN);
    }
    if snapshot.checksum == Some(Checksum::Absent) {
        out.push_str(", without a checksum");
    }
    out
}

fn broken(out: &mut String, content: &PartContent) {
    if content.is_whole() {
        return;
    }
    if let Some(snapshot) = &content.snapshot
        && let Some(failure) = &snapshot.failure
        && content.fault.is_none()
    {
        let lost = match snapshot.lost() {
            0 => String::new(),
            keys => format!("; at least {} lost", count(keys, "key")),
        };
        writeln!(out, "    {failure}; readable up to byte {}{lost}", snapshot.readable).expect(WRITTEN);
    }
    if let Some(fault) = &content.fault {
        let lost = count(content.lost.bytes, "byte");
        writeln!(out, "    {fault}").expect(WRITTEN);
        writeln!(out, "    intact up to byte {}, followed by {lost} of damage", content.whole)
            .expect(WRITTEN);
    }
}

fn count(number: u64, what: &str) -> String {
    match (number, what.strip_suffix('y')) {
        (1, _) => format!("1 {what}"),
        (_, Some(stem)) if what.ends_with("ry") => format!("{number} {stem}ies"),
        _ => format!("{number} {what}s"),
    }
}
/// Describes, as a line, the effect of the next start on a tail; empty if there is none.
pub(super) fn tail(tail: &Tail) -> String {
    match tail {
        Tail::Nothing | Tail::Whole { .. } => String::new(),
        Tail::Lacks { path, from, len } => format!(
            "{len} bytes of {} from byte {from} on are only in the tail: the next server start or --fix \
             restores them.\n",
            path.display()
        ),
        Tail::Changed { path } => {
            format!(
                "{} was truncated or changed after its tail was written: the tail will be set aside.\n",
                path.display()
            )
        }
        Tail::Foreign => "The tail does not belong to any of these files: it will be set aside.\n".to_owned(),
    }
}

/// Describes a restored tail.
pub(super) fn restored(restored: &Restored) -> String {
    match (&restored.tail, &restored.aside) {
        (Tail::Lacks { path, from, len }, _) => {
            format!("Restored {len} bytes of {} from its tail, from byte {from} on.\n", path.display())
        }
        (_, Some(aside)) => {
            format!("The tail does not match these files. It was renamed to {}.\n", aside.display())
        }
        _ => String::new(),
    }
}
