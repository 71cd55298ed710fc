//! The directory of an append-only file: its files, and changes to them without a moment at which a crash
//! would lose data.
//!
//! The manifest decides. A file counts only while the manifest lists it, and the manifest is replaced in one
//! step. So a new part is made under another name or empty, synced, and then listed. An old part first
//! becomes history, and is removed after a manifest without it has reached the disk.
//!
//! The rules are stricter than Redis' in one respect: existing data are never overwritten. If the manifest is
//! gone but parts are there, Redis starts with no data, makes a new base over the old base, and appends to an
//! old incremental file. Here this state is an error, and new parts get numbers that no file in the directory
//! has. A manifest without files is written before the very first part, so that a crash at the first start
//! does not look like this state.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::aof::durable;
use crate::aof::error::{Error, Problem};
use crate::aof::manifest::{Entry, Manifest, PartKind, is_file_name};

type Result<T> = std::result::Result<T, Error>;

/// Enough for a manifest of 300,000 files; a longer file is no manifest.
const MANIFEST_BYTES_MAX: u64 = 16 * 1024 * 1024;

const SNAPSHOT_SUFFIX: &str = ".base.rdb";
const BASE_SUFFIX: &str = ".base.aof";
const INCREMENTAL_SUFFIX: &str = ".incr.aof";
const SUFFIXES: [&str; 3] = [SNAPSHOT_SUFFIX, BASE_SUFFIX, INCREMENTAL_SUFFIX];

#[derive(Debug)]
pub struct Directory {
    /// The server's working directory, where servers before Redis 7 keep their single file.
    root: PathBuf,
    folder: PathBuf,
    /// The prefix of all file names: `appendfilename`.
    name: OsString,
    /// The manifest as it is on the disk.
    manifest: Manifest,
    /// An older server's single file has not been moved into the folder yet.
    old: bool,
    /// The new path of a manifest passed over, and its entries: the manifest on the disk lists parts that are
    /// not ours.
    passed_over: Option<(PathBuf, Manifest)>,
}

/// The data to be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredData {
    Nothing,
    /// The single file of an older server, which `adopt` makes the first part.
    OldFile,
    Parts,
}

/// A file to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub path: PathBuf,
    /// `Base` or `Incremental`
    pub kind: PartKind,
    pub seq: u64,
    /// In bytes.
    pub size: u64,
    /// No bytes follow in later parts, so a crash may have torn this part's end.
    pub last: bool,
}

/// The incremental files that continue a new base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// The files from this number on, which was current when the base was begun.
    Number(u64),
    /// The draft alone, which becomes the current file.
    Draft,
}

impl Directory {
    /// Reads the directory's state, and changes nothing. `root`: the working directory; `folder`:
    /// `appenddirname`; `name`: `appendfilename`.
    ///
    /// Returns an error if a part of the data is missing; an empty directory is fine.
    pub fn open(root: &Path, folder: &OsStr, name: &OsStr) -> Result<Directory> {
        let directory = Directory::read(root, root.join(folder), name)?;
        directory.parts()?;
        Ok(directory)
    }

    /// Reads the state of the directory with this manifest; `None` if there is no manifest of that name.
    ///
    /// Returns an error if a part of the data is missing.
    pub fn of_manifest(manifest: &Path) -> Result<Option<Directory>> {
        let name = manifest.file_name().unwrap_or_default().as_bytes();
        let folder = manifest.parent().unwrap_or(Path::new("")).to_owned();
        let Some(name) = name.strip_suffix(b".manifest").filter(|_| manifest.is_file()) else {
            return Ok(None);
        };
        let mut directory = Directory::read(&folder.clone(), folder, OsStr::from_bytes(name))?;
        directory.pass_over_old_file(); // the manifest is the data that the caller asks for
        directory.parts()?;
        Ok(Some(directory))
    }

    /// As `open`, but the parts need not exist.
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

    pub fn stored_data(&self) -> StoredData {
        match (self.old, self.manifest.is_empty()) {
            (true, _) => StoredData::OldFile,
            (false, true) => StoredData::Nothing,
            (false, false) => StoredData::Parts,
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

    /// Path of the tail, which has the unsynced bytes of the last incremental file; see
    /// [`tail`](crate::aof::tail).
    pub fn tail_path(&self) -> PathBuf {
        self.path_of("", ".tail")
    }

    /// An unused path for a tail that belongs to no file any more.
    pub fn unused_tail_path(&self) -> PathBuf {
        self.free_path(".tail.unused")
    }

    /// An unused path for bytes that are cut off the last incremental file.
    pub fn cut_off_path(&self) -> PathBuf {
        self.free_path(".cut")
    }

    fn free_path(&self, ending: &str) -> PathBuf {
        let numbered = |number: u64| self.path_of("", &format!("{ending}.{number}"));
        (1..).map(numbered).find(|path| !exists(path)).expect("no folder has so many files")
    }

    /// Paths of the incremental files, in order.
    pub fn incremental_paths(&self) -> impl DoubleEndedIterator<Item = PathBuf> {
        self.manifest.incremental.iter().map(|entry| self.entry_path(entry))
    }

    /// Returns the files to be loaded, in order, with their sizes now. A missing file is an error.
    pub fn parts(&self) -> Result<Vec<Part>> {
        if self.old {
            let path = self.old_path();
            let size = size_of(&path)?;
            return Ok(vec![Part { path, kind: PartKind::Base, seq: 1, size, last: true }]);
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

    /// Returns files with the name of a part that the manifest does not list, as a crash or a user may leave
    /// them.
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

    /// Moves an older server's single file into the folder, as its base. Does nothing if there is none.
    ///
    /// The manifest is written first. If the process ends before the move, the next process finds both and
    /// finishes.
    pub fn adopt(&mut self) -> Result<()> {
        if !self.old {
            return Ok(());
        }
        let (from, to) = (self.old_path(), self.folder.join(&self.name));
        if from.is_symlink() {
            // A relative link leads elsewhere from the new folder.
            let error = std::io::Error::other("it is a link: put the file itself there");
            return Err(Error::new(&from, Problem::Io("move", error)));
        }
        // Bytes appended later may reach the disk before this file's own, and are useless without them.
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

    /// Ignores an older server's file, which stays as it is, for a caller that has not loaded it. Returns its
    /// path.
    pub fn pass_over_old_file(&mut self) -> Option<PathBuf> {
        std::mem::take(&mut self.old).then(|| self.old_path())
    }

    /// Ignores the listed parts, for a caller that has not loaded them: they are neither removed nor written
    /// to. Their manifest is kept under another name once a manifest of new parts replaces it. Returns that
    /// name, if there are any parts. Their tail is renamed at once.
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

    /// Opens the last incremental file for appending and reading, or creates the first.
    pub fn resume(&mut self) -> Result<File> {
        let Some(entry) = self.manifest.incremental.last() else {
            return self.next_incremental();
        };
        let path = self.entry_path(entry);
        OpenOptions::new().read(true).append(true).open(&path).map_err(Error::io("open", &path))
    }

    /// Begins a new incremental file. The caller has synced the current file: only the end of the last part
    /// may be torn.
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

    /// Removes a file that could not be listed, unless the manifest lists it after all. Then its number is
    /// passed over.
    fn drop_unlisted(&self, entry: &Entry) {
        let lists = |there: Manifest| there.entries().any(|(_, one)| one.name == entry.name);
        if self.read_manifest().is_ok_and(|there| !lists(there)) {
            let _ = fs::remove_file(self.entry_path(entry)); // nothing depends on it being gone
        }
    }

    /// Creates the draft of a base under a temporary name, for `install`. A draft of an earlier attempt is
    /// unlinked, not truncated: a thread stuck in a slow disk may still write to it.
    pub fn draft_base(&self) -> Result<File> {
        let path = self.draft_base_path();
        self.prepare()?;
        durable::remove_if_there(&path)?;
        OpenOptions::new().write(true).create_new(true).open(&path).map_err(Error::io("create", &path))
    }

    pub fn draft_base_path(&self) -> PathBuf {
        self.path_of("temp-", ".base")
    }

    /// Creates the draft of an incremental file under a temporary name; `install` with `Since::Draft` makes
    /// it the only one.
    ///
    /// With it appending can begin before the directory has data that a base and later commands could be
    /// added to.
    ///
    /// [`Directory::drop_drafts`] removes both drafts.
    pub fn draft_incremental(&self) -> Result<File> {
        let path = self.draft_incremental_path();
        self.prepare()?;
        durable::remove_if_there(&path)?;
        create_for_appending(&path)
    }

    /// Removes drafts that were not installed, which may be as large as the data. No thread opens them any
    /// more: a thread that still writes, to a disk that hangs, writes to an unlinked file.
    pub fn drop_drafts(&self) {
        for draft in [self.draft_base_path(), self.draft_incremental_path()] {
            let _ = fs::remove_file(draft); // there is none most of the time
        }
    }

    /// Makes the draft the base; the previous base and the incremental files that the new base contains
    /// become history.
    ///
    /// `snapshot`: the draft begins with a snapshot. After an error the data are unchanged.
    pub fn install(&mut self, snapshot: bool, since: Since) -> Result<()> {
        assert!(!self.old, "the old file is adopted first");
        let base = self.free_base(if snapshot { SNAPSHOT_SUFFIX } else { BASE_SUFFIX })?;
        let mut installed = vec![base.clone()];
        self.install_as(base, since, &mut installed)
            .inspect_err(|_| installed.iter().for_each(|entry| self.drop_unlisted(entry)))
    }

    /// `installed`: receives the entries whose files have their final names, or may have.
    fn install_as(&mut self, base: Entry, since: Since, installed: &mut Vec<Entry>) -> Result<()> {
        let mut manifest = self.manifest.clone();
        self.install_draft(&self.draft_base_path(), &base)?;
        let old_base = manifest.base.replace(base);
        let stays = match since {
            Since::Number(first) => first,
            Since::Draft => u64::MAX,
        };
        let contained = manifest.incremental.iter().take_while(|entry| entry.seq < stays).count();
        // The newest history comes first, as in Redis.
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

    /// Removes the history's files and returns their number. A file that cannot be removed stays history.
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

    /// Removes the files of a folder that this type creates for `name`: the manifest first, so the rest is no
    /// data. Other files and the folder stay.
    pub fn remove_files(folder: &Path, name: &OsStr) -> Result<()> {
        let directory = Directory {
            root: PathBuf::new(),
            folder: folder.to_owned(),
            name: name.to_owned(),
            manifest: Manifest::default(),
            old: false,
            passed_over: None,
        };
        durable::remove_if_there(&directory.manifest_path())?;
        directory.drop_drafts();
        for part in directory.strays()? {
            durable::remove_if_there(&part)?;
        }
        durable::remove_if_there(&directory.path_of("temp-", ".manifest")).map(drop)
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

    /// Whether the single file of an older server is the data: nothing else is there, or its move into the
    /// folder was begun and not finished.
    fn has_old_file(&self) -> bool {
        let begun = self.manifest.incremental.is_empty()
            && self.manifest.base.as_ref().is_some_and(|base| base.name == self.name.as_bytes())
            && !exists(&self.folder.join(&self.name));
        (self.manifest.is_empty() || begun) && self.old_path().is_file()
    }

    fn part(&self, kind: PartKind, entry: &Entry) -> Result<Part> {
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

    /// Prevents a file in the folder, not listed yet, from being taken for data without a manifest.
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
        self.free_entry(PartKind::Base, suffix, &[SNAPSHOT_SUFFIX, BASE_SUFFIX])
    }

    fn free_incremental(&self) -> Result<Entry> {
        self.free_entry(PartKind::Incremental, INCREMENTAL_SUFFIX, &[INCREMENTAL_SUFFIX])
    }

    /// Returns the first unused number above all listed numbers; the history's numbers count even when its
    /// files are gone.
    fn free_entry(&self, kind: PartKind, suffix: &str, taken_by: &[&str]) -> Result<Entry> {
        let was_one = |entry: &Entry| taken_by.iter().any(|suffix| entry.name.ends_with(suffix.as_bytes()));
        let listed = self.manifest.entries();
        let listed = listed.filter(|(of, entry)| *of == kind || *of == PartKind::History && was_one(entry));
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

    /// Path of an older server's single file.
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

/// Creates a file in append mode: after a truncation the next write still lands at its end.
fn create_for_appending(path: &Path) -> Result<File> {
    OpenOptions::new().read(true).append(true).create_new(true).open(path).map_err(Error::io("create", path))
}

/// Returns the part of a file name before its number; `None` if no part has such a name.
pub(crate) fn before_number(name: &[u8]) -> Option<&[u8]> {
    let rest = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix.as_bytes()))?;
    let dot = rest.iter().rposition(|byte| *byte == b'.')?;
    let number = &rest[dot + 1..];
    (!number.is_empty() && number.iter().all(u8::is_ascii_digit)).then_some(&rest[..dot])
}

/// Whether something has this name, even a dangling link.
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
