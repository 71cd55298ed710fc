//! Checks an append-only file: finds its whole part and its lost part, and proposes a repair.
//!
//! A check changes nothing. The proposed repair is a [`Cut`] that takes off the end of one file, behind its
//! last whole command or before a moment. Only the last part can be cut: the commands in later parts were
//! executed after the missing commands. A broken part in the middle is therefore not repaired; the report
//! says how far it can be read.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::aof::command::{Commands, Record};
use crate::aof::directory::{Directory, StoredData, before_number, size_of};
use crate::aof::error::{Error, Problem};
use crate::aof::fault::{Fault, Reason};
use crate::aof::manifest::PartKind;
use crate::aof::{durable, holds_snapshot, is_snapshot_by_name};
use crate::file;

mod lost;

pub use lost::Lost;

type Result<T> = std::result::Result<T, Error>;

const MANIFEST_SUFFIX: &[u8] = b".manifest";

/// The result of a check.
#[derive(Debug)]
pub struct AofReport {
    /// The manifest, unless a single file was checked.
    pub manifest: Option<PathBuf>,
    /// The parts, in loading order.
    pub parts: Vec<PartReport>,
    /// Files that have the name of a part and are not listed.
    pub strays: Vec<PathBuf>,
}

/// A file of commands.
#[derive(Debug)]
pub struct PartReport {
    pub path: PathBuf,
    pub kind: PartKind,
    /// No bytes follow in later parts.
    pub last: bool,
    /// An error if the file is missing or cannot be read at all.
    pub content: Result<PartContent>,
}

#[derive(Debug, Default)]
pub struct PartContent {
    /// In bytes.
    pub size: u64,
    /// Length of the whole part in bytes. Nothing behind a broken snapshot is whole.
    pub whole: u64,
    /// Number of commands in the whole part, MULTI and EXEC among them.
    pub commands: u64,
    /// Number of lines of these commands, as servers write them: two for each word, its length and its bytes,
    /// whatever the word contains.
    pub lines: u64,
    /// The snapshot that the file begins with. Its report has bytes that follow as a failure; here they are
    /// none.
    pub snapshot: Option<file::FileReport>,
    /// The first and the last time in annotations, in seconds since 1970.
    pub moments: Option<(i64, i64)>,
    /// The reason why the file is not whole to its end.
    pub fault: Option<Fault>,
    pub lost: Lost,
    /// Offset of the first command executed after the requested moment; a transaction stays together.
    pub later: Option<u64>,
    /// The snapshot at the file's start was begun after the requested moment.
    pub began_later: bool,
    /// Offset of an annotation before `later` that should have a time and has none.
    pub illegible: Option<u64>,
    /// The file is empty, and should be a snapshot.
    pub lacks_snapshot: bool,
}

impl PartContent {
    /// Whether the bytes right behind the snapshot are neither a command nor the beginning of a command.
    fn has_foreign_tail(&self, fault: &Fault) -> bool {
        let is_behind_snapshot =
            self.snapshot.as_ref().is_some_and(|snapshot| snapshot.readable == fault.whole);
        is_behind_snapshot && self.commands == 0 && !fault.is_torn()
    }

    /// The time when the file's snapshot was begun, in seconds since 1970.
    fn made(&self) -> Option<i64> {
        let (_, made) = self.snapshot.as_ref()?.aux.iter().find(|(name, _)| name == b"ctime")?;
        std::str::from_utf8(made).ok()?.parse().ok()
    }

    pub fn is_whole(&self) -> bool {
        !self.lacks_snapshot && self.fault.is_none() && self.snapshot.as_ref().is_none_or(is_sound)
    }
}

/// A proposed removal of a file's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    pub path: PathBuf,
    /// The file's size in bytes; it must be the same when the cut is made.
    pub size: u64,
    /// Number of bytes to keep.
    pub keep: u64,
}

/// The reason why no cut is possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CutRefusal {
    /// Later parts follow.
    NotLast(PathBuf),
    /// A snapshot cannot be shortened.
    Snapshot(PathBuf),
    /// The file is missing, or could not be read to its end, so its content is unknown.
    Unreadable(PathBuf),
    /// The damage comes before the requested moment.
    Broken(PathBuf),
    /// The cut would leave nothing.
    NothingBefore(PathBuf),
    /// The annotation at this offset should have a time and has none.
    Annotation(PathBuf, u64),
}

/// Checks a file of commands, or all parts in a manifest; a folder with a single manifest stands for the
/// manifest.
///
/// `later_than`: also finds the first command executed after this moment, in seconds since 1970.
pub fn check(path: &Path, later_than: Option<i64>) -> Result<AofReport> {
    let found = fs::metadata(path).map_err(Error::io("open", path))?;
    if found.is_dir() {
        return check_parts(&only_manifest(path)?, later_than);
    }
    if path.as_os_str().as_bytes().ends_with(MANIFEST_SUFFIX) {
        return check_parts(path, later_than);
    }
    if !found.is_file() {
        return Err(Error::new(path, Problem::Special));
    }
    let content = read_part(path, later_than);
    let part = PartReport { path: path.to_owned(), kind: PartKind::Base, last: true, content };
    Ok(AofReport { manifest: None, parts: vec![part], strays: Vec::new() })
}

/// Returns the append-only file's name (`appendfilename`) for the name of a manifest or part, else the given
/// name.
pub fn aof_name(file: &OsStr) -> &OsStr {
    let name = file.as_bytes();
    let of_log = name.strip_suffix(MANIFEST_SUFFIX).or_else(|| before_number(name));
    OsStr::from_bytes(of_log.unwrap_or(name))
}

impl AofReport {
    pub fn is_whole(&self) -> bool {
        self.parts.iter().all(|part| part.content.as_ref().is_ok_and(PartContent::is_whole))
    }

    /// Returns the cut that makes the rest whole; `None` if nothing is broken.
    pub fn repair_cut(&self) -> std::result::Result<Option<Cut>, CutRefusal> {
        let broken = |part: &&PartReport| !part.content.as_ref().is_ok_and(PartContent::is_whole);
        let Some(part) = self.parts.iter().find(broken) else { return Ok(None) };
        let path = part.path.clone();
        let content = match &part.content {
            Ok(content) => content,
            Err(_) => return Err(CutRefusal::Unreadable(path)),
        };
        match content.fault {
            None => Err(CutRefusal::Snapshot(path)),
            // The bytes there do not begin like a command. Either a byte of the snapshot was read as its end,
            // or two files were written into one.
            Some(fault) if content.has_foreign_tail(&fault) => Err(CutRefusal::Snapshot(path)),
            Some(Fault { reason: Reason::Io(_), .. }) => Err(CutRefusal::Unreadable(path)),
            Some(_) if !part.last => Err(CutRefusal::NotLast(path)),
            Some(fault) => Ok(Some(Cut { path, size: content.size, keep: fault.whole })),
        }
    }

    /// Returns the cut that goes back to the requested moment; `None` if no command is later.
    pub fn rewind_cut(&self) -> std::result::Result<Option<Cut>, CutRefusal> {
        let is_later = |part: &&PartReport| part.content.as_ref().is_ok_and(|content| content.began_later);
        if let Some(part) = self.parts.iter().find(is_later) {
            return Err(CutRefusal::NothingBefore(part.path.clone()));
        }
        for part in &self.parts {
            let path = part.path.clone();
            let content = match &part.content {
                Ok(content) => content,
                Err(_) => return Err(CutRefusal::Unreadable(path)),
            };
            if let Some(at) = content.illegible {
                return Err(CutRefusal::Annotation(path, at));
            }
            match content.later {
                Some(0) => return Err(CutRefusal::NothingBefore(path)),
                Some(_) if !part.last => return Err(CutRefusal::NotLast(path)),
                Some(keep) => return Ok(Some(Cut { path, size: content.size, keep })),
                None if !content.is_whole() => return Err(CutRefusal::Broken(path)),
                None => {}
            }
        }
        Ok(None)
    }
}

impl Cut {
    /// Number of bytes that the cut removes.
    pub fn lost(&self) -> u64 {
        self.size - self.keep
    }

    /// Makes the cut. A file whose size has changed since the check is left as it is.
    pub fn make(&self) -> Result<()> {
        let size = size_of(&self.path)?;
        if size != self.size {
            let text = format!("it had {} bytes and now has {size}: somebody writes to it", self.size);
            return Err(Error::new(&self.path, Problem::Io("truncate", std::io::Error::other(text))));
        }
        durable::truncate(&self.path, self.keep)
    }
}

fn check_parts(manifest: &Path, later_than: Option<i64>) -> Result<AofReport> {
    let folder = match manifest.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = manifest.file_name().map_or(&b""[..], OsStr::as_bytes);
    let name = OsStr::from_bytes(name.strip_suffix(MANIFEST_SUFFIX).unwrap_or(name));
    let directory = Directory::read(&folder.join(".."), folder.to_owned(), name)?;
    let files: Vec<(PartKind, PathBuf)> = match directory.stored_data() {
        StoredData::OldFile => vec![(PartKind::Base, directory.old_path())],
        _ => directory.manifest().data().map(|(kind, entry)| (kind, directory.entry_path(entry))).collect(),
    };
    let check_part = |(kind, path): (PartKind, PathBuf)| {
        let content = read_part(&path, later_than);
        PartReport { path, kind, last: false, content }
    };
    let mut parts: Vec<PartReport> = files.into_iter().map(check_part).collect();
    let mut nothing_behind = true;
    for part in parts.iter_mut().rev() {
        part.last = nothing_behind;
        nothing_behind &= part.content.as_ref().is_ok_and(|content| content.size == 0);
    }
    Ok(AofReport { manifest: Some(manifest.to_owned()), parts, strays: directory.strays()? })
}

/// Returns the only manifest in a folder; an error if there is none, or more than one.
fn only_manifest(folder: &Path) -> Result<PathBuf> {
    let mut found = manifests(folder)?;
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(Error::new(
            folder,
            folder_inside(folder).map_or(Problem::Manifests(0), Problem::ManifestInside),
        )),
        count => Err(Error::new(folder, Problem::Manifests(count))),
    }
}

/// Returns a subfolder with a manifest, as in a server's data folder.
fn folder_inside(folder: &Path) -> Option<PathBuf> {
    let inside = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    inside.filter(|path| path.is_dir()).find(|path| manifests(path).is_ok_and(|found| !found.is_empty()))
}

fn manifests(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::io("read", folder))? {
        let name = entry.map_err(Error::io("read", folder))?.file_name();
        if name.as_bytes().ends_with(MANIFEST_SUFFIX) && !name.as_bytes().starts_with(b"temp-") {
            found.push(folder.join(name));
        }
    }
    Ok(found)
}

/// Whether the snapshot is sound; bytes that follow it are no fault here.
fn is_sound(snapshot: &file::FileReport) -> bool {
    let trailing = |failure: &file::Failure| failure.error.reason == crate::Reason::Trailing;
    snapshot.checksum.is_some() && snapshot.failure.as_ref().is_none_or(trailing)
}

fn read_part(path: &Path, later_than: Option<i64>) -> Result<PartContent> {
    let size = size_of(path)?;
    let open = || File::open(path).map_err(Error::io("open", path));
    let mut file = open()?;
    let lacks_snapshot = size == 0 && is_snapshot_by_name(path);
    let mut content = PartContent { size, lacks_snapshot, ..PartContent::default() };
    if holds_snapshot(&mut file).map_err(Error::io("read", path))? {
        let found = file::check(open()?, Some(size));
        let (end, sound) = (found.readable, is_sound(&found));
        content.snapshot = Some(found);
        if !sound {
            content.lost.bytes = size;
            return Ok(content);
        }
        content.whole = end;
        file.seek(SeekFrom::Start(end)).map_err(Error::io("read", path))?;
    }
    content.began_later = later_than.zip(content.made()).is_some_and(|(limit, made)| made > limit);
    content.walk(Commands::new(file, content.whole, Some(size)), later_than);
    if content.fault.is_some() {
        content.lost = Lost::behind(open()?, content.whole, size).map_err(Error::io("read", path))?;
    }
    Ok(content)
}

impl PartContent {
    fn walk(&mut self, mut commands: Commands<impl Read>, later_than: Option<i64>) {
        let (mut read, mut lines) = (0, 0);
        loop {
            let whole_before = commands.whole();
            match commands.next() {
                Ok(Some(Record::Command(command))) => {
                    read += 1;
                    lines += 1 + 2 * command.args().count() as u64;
                }
                Ok(Some(Record::Timestamp { seconds, .. })) => {
                    lines += 1;
                    self.moments = Some((self.moments.map_or(seconds, |(first, _)| first), seconds));
                    if self.later.is_none() && later_than.is_some_and(|limit| seconds > limit) {
                        self.later = Some(whole_before);
                    }
                }
                Ok(Some(Record::Comment { at, text })) => {
                    lines += 1;
                    if text.starts_with(b"#TS:") && self.later.is_none() {
                        self.illegible.get_or_insert(at);
                    }
                }
                Ok(None) => break,
                Err(fault) => {
                    self.fault = Some(fault);
                    break;
                }
            }
            if commands.whole() > whole_before {
                (self.whole, self.commands, self.lines) = (commands.whole(), read, lines);
            }
        }
    }
}

#[cfg(test)]
mod tests;
