//! The directory of an append-only file: which files it consists of, and how that changes without a moment at which a
//! crash would lose data.
//!
//! The manifest decides. A file counts only while the manifest lists it, and the manifest is replaced in one step. So a
//! new part is made under another name or empty, synced, and then listed; an old part is history first, and removed when
//! a manifest that does without it has reached the disk.
//!
//! Stricter than Redis in one thing: nothing that is already there is ever written over. Where the manifest is gone but
//! parts are there, Redis starts with no data, makes a new base over the old one, and appends to an old incremental file.
//! Here that is an error, and new parts get numbers that no file in the directory has. So that a crash at the very first
//! start is not taken for that, a manifest without files is written before the first part is.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::aof::durable;
use crate::aof::error::{Error, Problem};
use crate::aof::manifest::{Entry, Kind, Manifest, is_file_name};

type Result<T> = std::result::Result<T, Error>;

/// A manifest of 300,000 files; beyond it is something else.
const MANIFEST_BYTES_MAX: u64 = 16 * 1024 * 1024;

const SNAPSHOT_SUFFIX: &str = ".base.rdb";
const BASE_SUFFIX: &str = ".base.aof";
const INCREMENTAL_SUFFIX: &str = ".incr.aof";
const SUFFIXES: [&str; 3] = [SNAPSHOT_SUFFIX, BASE_SUFFIX, INCREMENTAL_SUFFIX];

#[derive(Debug)]
pub struct Directory {
    /// The server's working directory, where servers before Redis 7 keep their one file.
    root: PathBuf,
    folder: PathBuf,
    /// What the names of all files begin with: `appendfilename`.
    name: OsString,
    /// As it is on the disk.
    manifest: Manifest,
    /// The one file of an older server has not been moved into the folder yet.
    old: bool,
    /// What the manifest on the disk lists, which is not ours, and where that manifest is to be kept.
    passed_over: Option<(PathBuf, Manifest)>,
}

/// What there is to be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Nothing,
    /// The one file of an older server, which `adopt` makes the first part.
    OldFile,
    Parts,
}

/// A file to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub path: PathBuf,
    /// `Base` or `Incremental`
    pub kind: Kind,
    pub seq: u64,
    /// In bytes.
    pub size: u64,
    /// No bytes follow in later parts: the one whose end a crash may have torn.
    pub last: bool,
}

/// Which incremental files continue a new base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// Those from this number on, which was current when the base was begun.
    Number(u64),
    /// The draft alone, which becomes the current one.
    Draft,
}

impl Directory {
    /// Finds out what there is, and changes nothing. `root`: the working directory; `folder`: `appenddirname`;
    /// `name`: `appendfilename`.
    ///
    /// An error unless there is nothing at all, or all that the data consist of.
    pub fn open(root: &Path, folder: &OsStr, name: &OsStr) -> Result<Directory> {
        let directory = Directory::read(root, root.join(folder), name)?;
        directory.parts()?;
        Ok(directory)
    }

    /// As `open`, but the parts need not be there.
    pub(crate) fn read(root: &Path, folder: PathBuf, name: &OsStr) -> Result<Directory> {
        if !is_file_name(name.as_bytes()) {
            return Err(Error::new(name, Problem::Name));
        }
        let (root, name) = (root.to_owned(), name.to_owned());
        let mut directory =
            Directory { root, folder, name, manifest: Manifest::default(), old: false, passed_over: None };
        directory.manifest = directory.read_manifest()?;
        directory.old = directory.has_old_file();
        Ok(directory)
    }

    pub fn found(&self) -> Found {
        match (self.old, self.manifest.is_empty()) {
            (true, _) => Found::OldFile,
            (false, true) => Found::Nothing,
            (false, false) => Found::Parts,
        }
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn manifest_path(&self) -> PathBuf {
        self.path_of("", ".manifest")
    }

    /// Where what is not synced yet of the last incremental file is; see [`tail`](crate::aof::tail).
    pub fn tail_path(&self) -> PathBuf {
        self.path_of("", ".tail")
    }

    /// Where to put one that belongs to no file any more: a name that nothing has.
    pub fn unused_tail_path(&self) -> PathBuf {
        self.free_path(".tail.unused")
    }

    /// Where to keep what is cut off the last incremental file: a name that nothing has.
    pub fn cut_off_path(&self) -> PathBuf {
        self.free_path(".cut")
    }

    fn free_path(&self, ending: &str) -> PathBuf {
        let numbered = |number: u64| self.path_of("", &format!("{ending}.{number}"));
        (1..).map(numbered).find(|path| !exists(path)).expect("no folder has so many files")
    }

    /// The files that commands are or were appended to, in order.
    pub fn incremental_paths(&self) -> impl DoubleEndedIterator<Item = PathBuf> {
        self.manifest.incremental.iter().map(|entry| self.entry_path(entry))
    }

    /// The files to be loaded, in order, with their sizes now. One that is not there is an error.
    pub fn parts(&self) -> Result<Vec<Part>> {
        if self.old {
            let path = self.old_path();
            let size = size_of(&path)?;
            return Ok(vec![Part { path, kind: Kind::Base, seq: 1, size, last: true }]);
        }
        let listed = self.manifest.data().map(|(kind, entry)| self.part(kind, entry));
        let mut parts = listed.collect::<Result<Vec<Part>>>()?;
        let mut behind = 0;
        for part in parts.iter_mut().rev() {
            part.last = behind == 0;
            behind += part.size;
        }
        Ok(parts)
    }

    /// Files that have the name of a part and are none: left by a crash, or by somebody.
    pub fn strays(&self) -> Result<Vec<PathBuf>> {
        let names = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("read", &self.folder)(error)),
        };
        let mut strays = Vec::new();
        for entry in names {
            let name = entry.map_err(Error::io("read", &self.folder))?.file_name();
            if self.is_part_name(name.as_bytes()) && !self.lists(name.as_bytes()) {
                strays.push(self.folder.join(name));
            }
        }
        strays.sort();
        Ok(strays)
    }

    /// Moves the one file of an older server into the folder, as its base. Does nothing where there is none.
    ///
    /// The manifest comes first: if the file has not been moved when the process ends, the next one finds both.
    pub fn adopt(&mut self) -> Result<()> {
        if !self.old {
            return Ok(());
        }
        let (from, to) = (self.old_path(), self.folder.join(&self.name));
        if from.is_symlink() {
            // Where it leads from here, it does not lead from there.
            let error = std::io::Error::other("it is a link: put the file itself there");
            return Err(Error::new(&from, Problem::Io("move", error)));
        }
        // What is written behind it may be on disk before it, and is nothing without it.
        File::open(&from).and_then(|file| file.sync_all()).map_err(Error::io("sync", &from))?;
        let entry = Entry { name: self.name.as_bytes().to_owned(), seq: 1 };
        self.commit(Manifest { base: Some(entry), ..Manifest::default() })?;
        if exists(&to) {
            let error = std::io::Error::from(ErrorKind::AlreadyExists);
            return Err(Error::new(&to, Problem::Io("move the old file to", error)));
        }
        durable::rename(&from, &to)?;
        self.old = false;
        Ok(())
    }

    /// Goes on as if there were no file of an older server, which stays as it is: for who has not loaded it. Returns its path.
    pub fn pass_over_old_file(&mut self) -> Option<PathBuf> {
        std::mem::take(&mut self.old).then(|| self.old_path())
    }

    /// Goes on as if there were no parts, for who has not loaded them: they are neither removed nor written to, and the manifest
    /// that lists them is kept under another name when there is one of new parts. Returns that name, if there are any. What
    /// their tail has gets another name now.
    pub fn pass_over_parts(&mut self) -> Result<Option<PathBuf>> {
        if self.manifest.is_empty() {
            return Ok(None);
        }
        let tail = self.tail_path();
        if exists(&tail) {
            durable::rename(&tail, &self.unused_tail_path())?;
        }
        let unused = self.free_path(".manifest.unused");
        self.passed_over = Some((unused.clone(), std::mem::take(&mut self.manifest)));
        Ok(Some(unused))
    }

    /// Opens the file that commands are appended to: the last incremental one, or a new one. It can be read as well.
    pub fn resume(&mut self) -> Result<File> {
        let Some(entry) = self.manifest.incremental.last() else {
            return self.next_incremental();
        };
        let path = self.entry_path(entry);
        OpenOptions::new().read(true).append(true).open(&path).map_err(Error::io("open", &path))
    }

    /// Goes on in a new incremental file. The caller has synced the one until now: only the end of the last part may be torn.
    pub fn next_incremental(&mut self) -> Result<File> {
        assert!(!self.old, "the old file is adopted first");
        self.prepare()?;
        let entry = self.free_incremental()?;
        let path = self.entry_path(&entry);
        let file = create_for_appending(&path)?;
        let mut manifest = self.manifest.clone();
        manifest.incremental.push(entry.clone());
        self.commit(manifest).inspect_err(|_| self.drop_unlisted(&entry))?;
        Ok(file)
    }

    /// Removes a file that could not be listed, unless it is all the same: then its number is passed over.
    fn drop_unlisted(&self, entry: &Entry) {
        let lists = |there: Manifest| there.entries().any(|(_, one)| one.name == entry.name);
        if self.read_manifest().is_ok_and(|there| !lists(there)) {
            let _ = fs::remove_file(self.entry_path(entry)); // nothing depends on it being gone
        }
    }

    /// Creates the file, under another name, that `install` makes the base; one of an earlier attempt is gone then, and not emptied:
    /// somebody whom a disk has kept may still write to it.
    pub fn draft_base(&self) -> Result<File> {
        let path = self.draft_base_path();
        self.prepare()?;
        durable::remove_if_there(&path)?;
        OpenOptions::new().write(true).create_new(true).open(&path).map_err(Error::io("create", &path))
    }

    pub fn draft_base_path(&self) -> PathBuf {
        self.path_of("temp-", ".base")
    }

    /// Creates the file, under another name, that `install` with `Since::Draft` makes the only incremental one.
    ///
    /// For appending to begin while there are no data here that a base and what follows could be added to.
    ///
    /// [`Directory::drop_drafts`] removes it and that of a base.
    pub fn draft_incremental(&self) -> Result<File> {
        let path = self.draft_incremental_path();
        self.prepare()?;
        durable::remove_if_there(&path)?;
        create_for_appending(&path)
    }

    /// Removes what has not been installed, which may be as large as the data. Nobody opens it any more: who still writes, to
    /// a disk that hangs, writes to a file without a name.
    pub fn drop_drafts(&self) {
        for draft in [self.draft_base_path(), self.draft_incremental_path()] {
            let _ = fs::remove_file(draft); // there is none most of the time
        }
    }

    /// Makes the draft the base, and history of the base until now and of the incremental files that it contains.
    ///
    /// `snapshot`: it begins with a snapshot. After an error all is as it was, as far as the data are concerned.
    pub fn install(&mut self, snapshot: bool, since: Since) -> Result<()> {
        assert!(!self.old, "the old file is adopted first");
        let base = self.free_base(if snapshot { SNAPSHOT_SUFFIX } else { BASE_SUFFIX })?;
        let mut installed = vec![base.clone()];
        self.install_as(base, since, &mut installed)
            .inspect_err(|_| installed.iter().for_each(|entry| self.drop_unlisted(entry)))
    }

    /// `installed`: what has got its name, or may have.
    fn install_as(&mut self, base: Entry, since: Since, installed: &mut Vec<Entry>) -> Result<()> {
        let mut manifest = self.manifest.clone();
        self.install_draft(&self.draft_base_path(), &base)?;
        let old_base = manifest.base.replace(base);
        let stays = match since {
            Since::Number(first) => first,
            Since::Draft => u64::MAX,
        };
        let contained = manifest.incremental.iter().take_while(|entry| entry.seq < stays).count();
        // What has become history last comes first, as Redis lists it.
        let gone = manifest.incremental.drain(..contained).chain(old_base);
        manifest.history.splice(0..0, gone);
        if since == Since::Draft {
            let entry = self.free_incremental()?;
            installed.push(entry.clone());
            self.install_draft(&self.draft_incremental_path(), &entry)?;
            manifest.incremental.push(entry);
        }
        self.commit(manifest)
    }

    /// Removes what is history, and returns how many files. A file that cannot be removed stays history.
    pub fn remove_history(&mut self) -> Result<usize> {
        let (mut kept, mut failure) = (Vec::new(), None);
        for entry in &self.manifest.history {
            let path = self.entry_path(entry);
            if let Err(error) = durable::remove_if_there(&path) {
                failure = Some(error);
                kept.push(entry.clone());
            }
        }
        let removed = self.manifest.history.len() - kept.len();
        if removed > 0 {
            self.commit(Manifest { history: kept, ..self.manifest.clone() })?;
        }
        failure.map_or(Ok(removed), Err)
    }

    fn read_manifest(&self) -> Result<Manifest> {
        let path = self.manifest_path();
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return self.without_manifest(&path),
            Err(error) => return Err(Error::io("open", &path)(error)),
        };
        let mut bytes = Vec::new();
        file.take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(Error::io("read", &path))?;
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(Error::new(&path, Problem::ManifestSize));
        }
        Manifest::parse(&bytes).map_err(|error| Error::new(&path, Problem::Manifest(error)))
    }

    fn without_manifest(&self, path: &Path) -> Result<Manifest> {
        match self.strays()?.into_iter().next() {
            None => Ok(Manifest::default()),
            Some(stray) => Err(Error::new(path, Problem::NoManifest(stray))),
        }
    }

    /// The one file of an older server lies there and is what is to be loaded: there is nothing else, or its move into
    /// the folder was begun and not finished.
    fn has_old_file(&self) -> bool {
        let begun = self.manifest.incremental.is_empty()
            && self.manifest.base.as_ref().is_some_and(|base| base.name == self.name.as_bytes())
            && !exists(&self.folder.join(&self.name));
        (self.manifest.is_empty() || begun) && self.old_path().is_file()
    }

    fn part(&self, kind: Kind, entry: &Entry) -> Result<Part> {
        let path = self.entry_path(entry);
        let size = size_of(&path)?;
        Ok(Part { path, kind, seq: entry.seq, size, last: false })
    }

    /// Replaces the manifest, on the disk and then here.
    fn commit(&mut self, manifest: Manifest) -> Result<()> {
        self.create_folder()?;
        if let Some((unused, others)) = &self.passed_over {
            durable::replace(unused, &self.path_of("temp-", ".manifest"), &others.to_bytes())?;
        }
        self.write_manifest(&manifest)?;
        (self.manifest, self.passed_over) = (manifest, None);
        Ok(())
    }

    fn write_manifest(&self, manifest: &Manifest) -> Result<()> {
        let bytes = manifest.to_bytes();
        if Manifest::parse(&bytes).as_ref() != Ok(manifest) {
            return Err(Error::new(&self.name, Problem::Name)); // quoted, it can be too long for a line
        }
        durable::replace(&self.manifest_path(), &self.path_of("temp-", ".manifest"), &bytes)
    }

    /// See to it that a file in the folder, which no manifest lists yet, is not taken for data without manifest.
    fn prepare(&self) -> Result<()> {
        self.create_folder()?;
        match exists(&self.manifest_path()) {
            true => Ok(()),
            false => self.write_manifest(&self.manifest),
        }
    }

    fn create_folder(&self) -> Result<()> {
        match fs::create_dir(&self.folder) {
            Ok(()) => durable::sync_folder_of(&self.folder),
            Err(_) if self.folder.is_dir() => Ok(()),
            Err(error) => Err(Error::io("create", &self.folder)(error)),
        }
    }

    fn install_draft(&self, draft: &Path, entry: &Entry) -> Result<()> {
        let file = File::open(draft).map_err(Error::io("open", draft))?;
        file.sync_all().map_err(Error::io("sync", draft))?;
        durable::rename(draft, &self.entry_path(entry))
    }

    fn free_base(&self, suffix: &str) -> Result<Entry> {
        self.free_entry(Kind::Base, suffix, &[SNAPSHOT_SUFFIX, BASE_SUFFIX])
    }

    fn free_incremental(&self) -> Result<Entry> {
        self.free_entry(Kind::Incremental, INCREMENTAL_SUFFIX, &[INCREMENTAL_SUFFIX])
    }

    /// The first number that none of the names has, behind all that are listed: history is, too, when its files are gone.
    fn free_entry(&self, kind: Kind, suffix: &str, taken_by: &[&str]) -> Result<Entry> {
        let was_one = |entry: &Entry| taken_by.iter().any(|suffix| entry.name.ends_with(suffix.as_bytes()));
        let listed = self.manifest.entries();
        let listed = listed.filter(|(of, entry)| *of == kind || *of == Kind::History && was_one(entry));
        let first = listed.map(|(_, entry)| entry.seq).max().unwrap_or(0) + 1;
        let free = |seq: &u64| {
            !taken_by.iter().any(|suffix| exists(&self.folder.join(self.part_name(*seq, suffix))))
        };
        match (first..=i64::MAX as u64).find(free) {
            Some(seq) => Ok(Entry { name: self.part_name(seq, suffix).into_vec(), seq }),
            None => Err(Error::new(self.manifest_path(), Problem::Numbers)),
        }
    }

    fn part_name(&self, seq: u64, suffix: &str) -> OsString {
        let mut name = self.name.clone();
        name.push(format!(".{seq}{suffix}"));
        name
    }

    fn is_part_name(&self, name: &[u8]) -> bool {
        name == self.name.as_bytes() || before_number(name) == Some(self.name.as_bytes())
    }

    fn lists(&self, name: &[u8]) -> bool {
        self.manifest.entries().any(|(_, entry)| entry.name == name)
    }

    pub(crate) fn entry_path(&self, entry: &Entry) -> PathBuf {
        self.folder.join(OsStr::from_bytes(&entry.name))
    }

    /// Where an older server keeps its one file.
    pub(crate) fn old_path(&self) -> PathBuf {
        self.root.join(&self.name)
    }

    fn path_of(&self, prefix: &str, suffix: &str) -> PathBuf {
        let mut name = OsString::from(prefix);
        name.push(&self.name);
        name.push(suffix);
        self.folder.join(name)
    }

    fn draft_incremental_path(&self) -> PathBuf {
        self.path_of("temp-", ".incr")
    }
}

/// Whatever is cut off a file of commands, what comes next stands at its end.
fn create_for_appending(path: &Path) -> Result<File> {
    OpenOptions::new().read(true).append(true).create_new(true).open(path).map_err(Error::io("create", path))
}

/// What stands before the number in the name of a part; `None`: it has no such name.
pub(crate) fn before_number(name: &[u8]) -> Option<&[u8]> {
    let rest = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix.as_bytes()))?;
    let dot = rest.iter().rposition(|byte| *byte == b'.')?;
    let number = &rest[dot + 1..];
    (!number.is_empty() && number.iter().all(u8::is_ascii_digit)).then_some(&rest[..dot])
}

/// Something has this name, be it a link that leads nowhere.
fn exists(path: &Path) -> bool {
    !matches!(fs::symlink_metadata(path), Err(error) if error.kind() == ErrorKind::NotFound)
}

pub(crate) fn size_of(path: &Path) -> Result<u64> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(found.len()),
        Ok(_) => Err(Error::new(path, Problem::NoFile)),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::new(path, Problem::Missing)),
        Err(error) => Err(Error::io("examine", path)(error)),
    }
}

#[cfg(test)]
mod tests;
