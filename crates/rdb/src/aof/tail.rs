//! What an append-only file may lack after a crash of the machine: its tail.
//!
//! To sync a file that grows takes the disk several writes, one after the other: the bytes, and what the file system notes of
//! them. A file of a fixed size that was written once needs the first alone. So with `appendfsync always` what is appended is
//! synced in such a file (`appendonly.aof.tail`), and the append-only file itself once a second. It has the same bytes, so after
//! a crash of the process the tail is of no use; after one of the machine the start puts back what is missing ([`restore`]).
//!
//! The file is a row of records, each at a multiple of [`BLOCK`]:
//! ```text
//! magic 8 | checksum of all that follows 8 | epoch 8 | file 8 | boot 16 | offset 8 | len 8 | len bytes | zeroes or old bytes
//! ```
//! `file` is the inode of the file that the bytes belong to, which keeps it when it is renamed, `offset` where in it, `boot` says
//! since which start of the machine. Numbers are little-endian. When the append-only file is synced, the next record begins
//! the row again, with another epoch; what is left of the row before is of no use, and is not taken for its continuation.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::aof::directory::Directory;
use crate::aof::durable;
use crate::aof::error::Error;
use crate::checksum::Sum;

type Result<T> = std::result::Result<T, Error>;

/// What records begin at multiples of, in bytes.
pub const BLOCK: usize = 4096;

/// Bytes of the file.
pub const TAIL_LEN: usize = 16 << 20;

/// Bytes before those of a record.
pub const HEADER_LEN: usize = 64;

const MAGIC: [u8; 8] = *b"EVKTAIL1";

/// Where the bytes of a record belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub epoch: u64,
    /// The inode of the append-only file.
    pub file: u64,
    /// The start of the machine since which it runs.
    pub boot: u128,
    /// Bytes of the file before them.
    pub offset: u64,
}

/// What comes before the bytes of a record.
pub fn header(place: &Place, bytes: &[u8]) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[16..24].copy_from_slice(&place.epoch.to_le_bytes());
    header[24..32].copy_from_slice(&place.file.to_le_bytes());
    header[32..48].copy_from_slice(&place.boot.to_le_bytes());
    header[48..56].copy_from_slice(&place.offset.to_le_bytes());
    header[56..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    let sum = sum(&header[16..], bytes);
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&sum.to_le_bytes());
    header
}

fn sum(head: &[u8], bytes: &[u8]) -> u64 {
    let mut sum = Sum::new();
    sum.add(head);
    sum.add(bytes);
    sum.value()
}

/// The record that bytes begin with, if they do.
fn record(bytes: &[u8]) -> Option<(Place, &[u8])> {
    let (header, behind) = bytes.split_at_checked(HEADER_LEN)?;
    let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
    let boot = u128::from_le_bytes(header[32..48].try_into().expect("sixteen bytes"));
    let data = behind.get(..usize::try_from(number(56)).ok()?)?;
    let is_one = header[..8] == MAGIC && number(8) == sum(&header[16..], data) && !data.is_empty();
    is_one.then_some((Place { epoch: number(16), file: number(24), boot, offset: number(48) }, data))
}

/// The bytes of the row that a tail begins with, and the place of its first record. `None`: there is none.
fn row(mut tail: &[u8]) -> Option<(Place, Vec<u8>)> {
    let mut found: Option<(Place, Vec<u8>)> = None;
    while let Some((place, data)) = record(tail) {
        match &mut found {
            None => found = Some((place, data.to_owned())),
            Some((first, row)) => {
                let next = Place { offset: first.offset.saturating_add(row.len() as u64), ..*first };
                if place != next {
                    break;
                }
                row.extend_from_slice(data);
            }
        }
        tail = tail.get((HEADER_LEN + data.len()).next_multiple_of(BLOCK)..).unwrap_or_default();
    }
    found
}

/// What became of a tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tail {
    /// There is none, or the file has all of it.
    Whole,
    /// The file lacks bytes of it, or has zeroes in their place: from `from` on, `len` of them.
    Lacks { path: PathBuf, from: u64, len: u64 },
    /// It has others, or ends before: somebody has changed it since.
    Changed { path: PathBuf },
}

/// Says what the last incremental file lacks of its tail, and changes nothing. `boot` is the machine's last start.
///
/// # Errors
/// A file cannot be read.
pub fn look(directory: &Directory, boot: u128) -> Result<Tail> {
    Ok(compare(directory, boot)?.map_or(Tail::Whole, |(tail, _)| tail))
}

/// Puts back what the last incremental file lacks, which is on disk then, and removes the tail: it is not needed any more.
/// A file that somebody has changed is left as it is, and the tail put aside ([`Directory::unused_tail_path`]).
///
/// # Errors
/// A file cannot be read, written or removed. Then the tail is still there.
pub fn restore(directory: &Directory, boot: u128) -> Result<Tail> {
    let tail_path = directory.tail_path();
    if !tail_path.is_file() {
        return Ok(Tail::Whole);
    }
    let compared = compare(directory, boot)?;
    if let Some((Tail::Lacks { path, from, .. }, bytes)) = &compared {
        let file = OpenOptions::new().write(true).open(path).map_err(Error::io("open", path))?;
        file.write_all_at(bytes, *from).map_err(Error::io("write", path))?;
    }
    // A process that was killed has left it unsynced.
    if let Some(path) = directory.last_incremental_path()
        && let Some(file) = open(&path)?
    {
        file.sync_all().map_err(Error::io("sync", &path))?;
    }
    match &compared {
        Some((Tail::Changed { .. }, _)) => durable::rename(&tail_path, &directory.unused_tail_path())?,
        _ => remove(&tail_path)?,
    }
    Ok(compared.map_or(Tail::Whole, |(tail, _)| tail))
}

/// Removes a tail, for good.
///
/// # Errors
/// It is there, and cannot be removed.
pub fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io("remove", path)(error)),
        Ok(()) => durable::sync_folder_of(path),
    }
}

/// What there is to say of a tail, with the bytes that are missing. `None`: nothing.
fn compare(directory: &Directory, boot: u128) -> Result<Option<(Tail, Vec<u8>)>> {
    let (tail_path, path) = (directory.tail_path(), directory.last_incremental_path());
    let (Some(tail), Some(path)) = (open(&tail_path)?, path) else { return Ok(None) };
    let Some((place, bytes)) = row(&read(&tail, 0, TAIL_LEN, &tail_path)?) else { return Ok(None) };
    // While the machine has not been started again, the file has all that was written to it.
    if place.boot == boot {
        return Ok(None);
    }
    let Some(file) = open(&path)? else { return Ok(None) };
    let status = file.metadata().map_err(Error::io("examine", &path))?;
    if status.ino() != place.file {
        return Ok(None);
    }
    if status.len() < place.offset {
        return Ok(Some((Tail::Changed { path }, Vec::new())));
    }
    let there = read(&file, place.offset, bytes.len(), &path)?;
    let same = there.iter().zip(&bytes).take_while(|(there, byte)| there == byte).count();
    if there[same..].iter().any(|byte| *byte != 0) {
        return Ok(Some((Tail::Changed { path }, Vec::new())));
    }
    let missing = bytes[same..].to_owned();
    let (from, len) = (place.offset + same as u64, missing.len() as u64);
    Ok((len > 0).then_some((Tail::Lacks { path, from, len }, missing)))
}

/// `None`: it is not there.
fn open(path: &Path) -> Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("open", path)(error)),
    }
}

/// As many bytes as there are, at most `len`.
fn read(file: &File, from: u64, len: usize, path: &Path) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        match file.read_at(&mut bytes[filled..], from + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io("read", path)(error)),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aof::scratch::Root;

    const NAME: &str = "dir/a.aof.1.incr.aof";
    const MANIFEST: &str = "file a.aof.1.incr.aof seq 1 type i\n";
    const BEFORE: u128 = 7;
    const NOW: u128 = 8;

    /// A file with these bytes, and a tail with records of these bytes, the first at this offset.
    fn crashed(file: &[u8], offset: u64, records: &[&[u8]]) -> (Root, Directory) {
        let root = Root::with(&[("dir/a.aof.manifest", MANIFEST.as_bytes()), (NAME, file)]);
        let inode = fs::metadata(root.0.join(NAME)).expect("there").ino();
        let place = Place { epoch: 3, file: inode, boot: BEFORE, offset };
        fs::write(root.0.join("dir/a.aof.tail"), tail(place, records)).expect("written");
        let directory = Directory::open(&root.0, "dir".as_ref(), "a.aof".as_ref()).expect("whole");
        (root, directory)
    }

    fn tail(mut place: Place, records: &[&[u8]]) -> Vec<u8> {
        let mut tail = Vec::new();
        for bytes in records {
            tail.extend(header(&place, bytes));
            tail.extend_from_slice(bytes);
            tail.resize(tail.len().next_multiple_of(BLOCK), 0);
            place.offset += bytes.len() as u64;
        }
        tail
    }

    #[track_caller]
    fn restored(file: &[u8], offset: u64, records: &[&[u8]], expected: &[u8]) -> Tail {
        let (root, directory) = crashed(file, offset, records);
        let seen = look(&directory, NOW).expect("it can be read");
        assert_eq!(fs::read(root.0.join(NAME)).expect("there"), file, "looking changes nothing");
        let tail = restore(&directory, NOW).expect("it can be written");
        assert_eq!(tail, seen);
        assert_eq!(fs::read(root.0.join(NAME)).expect("there"), expected);
        assert!(!root.0.join("dir/a.aof.tail").exists(), "it is not needed any more");
        assert_eq!(restore(&directory, NOW).expect("nothing to do"), Tail::Whole);
        tail
    }

    #[test]
    fn what_the_file_lacks_is_put_back() {
        let long = vec![b'x'; 3 * BLOCK];
        let lacks = |from, len| move |tail: Tail| matches!(tail, Tail::Lacks { from: f, len: l, .. } if (f, l) == (from, len));
        assert!(lacks(4, 7)(restored(b"base", 4, &[b"one", b"more"], b"baseonemore")));
        assert!(lacks(6, 5)(restored(b"baseon", 4, &[b"one", b"more"], b"baseonemore")));
        let whole = [b"base".as_slice(), &long, b"end"].concat();
        assert!(lacks(100, long.len() as u64 - 93)(restored(&whole[..100], 4, &[&long, b"end"], &whole)));
        // A file system that notes a length before the bytes are there.
        assert!(lacks(5, 6)(restored(b"baseo\0\0\0\0", 4, &[b"one", b"more"], b"baseonemore")));
        assert!(lacks(0, 3)(restored(b"", 0, &[b"one"], b"one")));
    }

    #[test]
    fn a_file_that_has_all_or_other_bytes_stays_as_it_is() {
        assert_eq!(restored(b"baseonemore", 4, &[b"one", b"more"], b"baseonemore"), Tail::Whole);
        assert_eq!(restored(b"baseonemore, torn", 4, &[b"one", b"more"], b"baseonemore, torn"), Tail::Whole);
        assert!(matches!(restored(b"bas", 4, &[b"one"], b"bas"), Tail::Changed { .. }), "cut off");
        assert!(matches!(restored(b"baseTWO", 4, &[b"one", b"more"], b"baseTWO"), Tail::Changed { .. }));
        let (root, directory) = crashed(b"baseTWO", 4, &[b"one"]);
        restore(&directory, NOW).expect("put aside");
        assert!(root.0.join("dir/a.aof.tail.unused").exists(), "the bytes may be wanted yet");
    }

    #[test]
    fn a_tail_of_this_start_or_of_another_file_is_of_no_use() {
        let (root, directory) = crashed(b"base", 4, &[b"one"]);
        assert_eq!(look(&directory, BEFORE).expect("read"), Tail::Whole, "somebody has cut it off since");
        fs::rename(root.0.join(NAME), root.0.join("other")).expect("renamed");
        fs::write(root.0.join(NAME), b"base").expect("written");
        assert_eq!(look(&directory, NOW).expect("read"), Tail::Whole);
        fs::rename(root.0.join("other"), root.0.join(NAME)).expect("renamed");
        assert!(matches!(look(&directory, NOW).expect("read"), Tail::Lacks { .. }));
        assert_eq!(restore(&directory, BEFORE).expect("removed"), Tail::Whole);
        assert_eq!(fs::read(root.0.join(NAME)).expect("there"), b"base");
    }

    #[test]
    fn a_row_ends_where_another_one_was_before() {
        let place = |epoch, offset| Place { epoch, file: 1, boot: BEFORE, offset };
        let old = tail(place(4, 0), &[b"first", b"second", b"third"]);
        let new = tail(place(5, 16), &[b"fourth"]);
        let both = [&new[..], &old[BLOCK..]].concat();
        assert_eq!(row(&both), Some((place(5, 16), b"fourth".to_vec())));
        // The same epoch is not enough.
        let same = [&tail(place(4, 16), &[b"fourth"])[..], &old[BLOCK..]].concat();
        assert_eq!(row(&same), Some((place(4, 16), b"fourth".to_vec())));
        assert_eq!(row(&old).expect("a row").1, b"firstsecondthird");
    }

    #[test]
    fn every_changed_byte_ends_the_row_before_its_record() {
        let place = Place { epoch: 1, file: 2, boot: BEFORE, offset: 9 };
        let whole = tail(place, &[b"one", b"two"]);
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x41;
            let expected: &[u8] = match at {
                0..67 => b"",
                BLOCK..4163 => b"one",
                _ => b"onetwo", // behind a record
            };
            assert_eq!(row(&changed).map_or(Vec::new(), |(_, bytes)| bytes), expected, "byte {at}");
        }
        for len in 0..whole.len() {
            let _ = row(&whole[..len]); // whatever it finds, it comes back
        }
        let lies = header(&Place { offset: u64::MAX, ..place }, b"one");
        assert!(row(&[&lies[..], b"one"].concat()).is_some_and(|(_, bytes)| bytes == b"one"));
    }
}
