//! The tail file: a copy of the last bytes of an append-only file, which a crash of the machine may take
//! away.
//!
//! To sync a file that grows costs a disk several writes, one after the other: the bytes, then the file
//! system's metadata. A file of a fixed size whose blocks are already written needs the first write alone. So
//! with `appendfsync always` the appended bytes are synced in such a file (`appendonly.aof.tail`), and the
//! append-only file itself once a second. Both hold the same bytes, so after a crash of the process the tail
//! is of no use. After a crash of the machine the server puts the missing bytes back at its start
//! ([`restore`]).
//!
//! The file is a row of records, each at a multiple of [`BLOCK`]:
//! ```text
//! magic 8 | checksum of the rest 8 | epoch 8 | file 8 | boot 16 | offset 8 | len 8 | len bytes | padding
//! ```
//! `file` is the inode of the append-only file, which survives a rename; `offset` is the position of the
//! bytes in it; `boot` identifies the run of the machine. Numbers are little-endian. When the append-only
//! file is synced, the next record begins the row again with another epoch. Records left over from the
//! previous row have the old epoch, so they are not taken for its continuation.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::aof::command::{ANNOTATION_BYTES_MAX, Commands, NUMBER_BYTES_MAX};
use crate::aof::directory::Directory;
use crate::aof::durable;
use crate::aof::error::Error;
use crate::aof::fault::Reason;
use crate::checksum::Sum;

type Result<T> = std::result::Result<T, Error>;

/// Alignment of a record, in bytes.
pub const BLOCK: usize = 4096;

/// Length of the tail file, in bytes.
pub const TAIL_LEN: usize = 16 << 20;

/// Length of a record's header, in bytes.
pub const HEADER_LEN: usize = 64;

const MAGIC: [u8; 8] = *b"EVKTAIL1";

/// The position of a record's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPosition {
    pub epoch: u64,
    /// The inode of the append-only file.
    pub file: u64,
    /// Identifies the run of the machine that wrote the record.
    pub boot: u128,
    /// Position of the record's first byte in the append-only file.
    pub offset: u64,
}

/// Returns the header of a record with these bytes.
pub fn header(place: &RecordPosition, bytes: &[u8]) -> [u8; HEADER_LEN] {
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

/// Parses the record at the start of `bytes`; `None` if there is no valid record.
fn record(bytes: &[u8]) -> Option<(RecordPosition, &[u8])> {
    let (header, behind) = bytes.split_at_checked(HEADER_LEN)?;
    let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
    let boot = u128::from_le_bytes(header[32..48].try_into().expect("sixteen bytes"));
    let data = behind.get(..usize::try_from(number(56)).ok()?)?;
    let is_one = header[..8] == MAGIC && number(8) == sum(&header[16..], data) && !data.is_empty();
    is_one.then_some((RecordPosition { epoch: number(16), file: number(24), boot, offset: number(48) }, data))
}

/// Returns the bytes of the row at the start of a tail, and the place of its first record. `None`: there is
/// no row.
fn row(mut tail: &[u8]) -> Option<(RecordPosition, Vec<u8>)> {
    let mut found: Option<(RecordPosition, Vec<u8>)> = None;
    while let Some((place, data)) = record(tail) {
        match &mut found {
            None => found = Some((place, data.to_owned())),
            Some((first, row)) => {
                let next = RecordPosition { offset: first.offset.saturating_add(row.len() as u64), ..*first };
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

/// The result of comparing a tail with the append-only file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tail {
    /// There is no tail, or nothing in it is of use.
    Nothing,
    /// The file has all bytes of the tail.
    Whole { path: PathBuf },
    /// The file lacks `len` bytes of the tail, or has zeroes for them, from byte `from` of the file on.
    Lacks { path: PathBuf, from: u64, len: u64 },
    /// The file ends earlier or has other bytes: it was changed after the server wrote it.
    Changed { path: PathBuf },
    /// No incremental file has the tail's inode, and none has all of its bytes: the directory may be a copy.
    Foreign,
}

/// Compares the append-only file with its tail, and changes nothing. `boot`: the machine's current run, if
/// known.
///
/// # Errors
/// A file cannot be read.
pub fn inspect(directory: &Directory, boot: Option<u128>) -> Result<Tail> {
    Ok(compare(directory, boot)?.0)
}

/// The result of putting a tail back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The result of the comparison before.
    pub tail: Tail,
    /// The tail's new path, if it belongs to a changed or unknown file.
    pub aside: Option<PathBuf>,
    /// The bytes cut off behind the tail.
    pub cut: Option<CutOff>,
}

/// Describes a cut: the last `len` bytes of a file are gone, from byte `from` on. They were being appended
/// when the machine failed. The struct names the file that keeps them, if anything but zeroes was among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutOff {
    pub path: PathBuf,
    pub from: u64,
    pub len: u64,
    pub kept: Option<PathBuf>,
}

/// The treatment of a tail once the append-only file has all of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterRestore {
    Keep,
    Remove,
    /// As `Remove`, for a server about to load the file: an incomplete command behind the last record is cut
    /// off first.
    RemoveToLoad,
}

/// Writes and syncs the bytes that the append-only file lacks of its tail, and keeps the tail. A tail of a
/// changed or unknown file is put aside.
///
/// # Errors
/// A file cannot be read, written or renamed.
pub fn complete(directory: &Directory, boot: Option<u128>) -> Result<Restored> {
    put_back(directory, boot, AfterRestore::Keep)
}

/// As [`complete`], and removes the tail: a later cut of the file is final.
///
/// # Errors
/// A file cannot be read, written, renamed or removed. Then the tail is still there.
pub fn restore(directory: &Directory, boot: Option<u128>) -> Result<Restored> {
    put_back(directory, boot, AfterRestore::Remove)
}

/// As [`restore`], for a server that is about to load the append-only file: also cuts off an incomplete
/// command that was being appended when the machine failed. No client has had a reply that confirms such a
/// command.
///
/// # Errors
/// As [`restore`], and what is cut off cannot be kept.
pub fn restore_to_load(directory: &Directory, boot: Option<u128>) -> Result<Restored> {
    put_back(directory, boot, AfterRestore::RemoveToLoad)
}

fn put_back(directory: &Directory, boot: Option<u128>, after: AfterRestore) -> Result<Restored> {
    let tail_path = directory.tail_path();
    if open(&tail_path)?.is_none() {
        return Ok(Restored { tail: Tail::Nothing, aside: None, cut: None });
    }
    let (tail, place, bytes) = compare(directory, boot)?;
    let (mut aside, mut cut) = (None, None);
    match &tail {
        Tail::Changed { .. } | Tail::Foreign => {
            let kept = directory.unused_tail_path();
            durable::rename(&tail_path, &kept)?;
            aside = Some(kept);
        }
        Tail::Whole { path } | Tail::Lacks { path, .. } => {
            // Writes all of the tail, so that the kernel syncs also pages that it may have dropped after an
            // earlier error.
            let file =
                OpenOptions::new().read(true).write(true).open(path).map_err(Error::io("open", path))?;
            file.write_all_at(&bytes, place.offset).map_err(Error::io("write", path))?;
            if after == AfterRestore::RemoveToLoad && has_started(boot, &place) {
                cut = cut_hole(directory, &file, place.offset + bytes.len() as u64, path)?;
            }
            file.sync_all().map_err(Error::io("sync", path))?;
        }
        Tail::Nothing => {}
    }
    if aside.is_none() && after != AfterRestore::Keep {
        remove(&tail_path)?;
    }
    Ok(Restored { tail, aside, cut })
}

/// Removes the tail for good.
///
/// # Errors
/// The tail is there and cannot be removed.
pub fn remove(path: &Path) -> Result<()> {
    if durable::remove_if_there(path)? { durable::sync_folder_of(path) } else { Ok(()) }
}

/// Compares the files with the tail; also returns the tail's place and bytes.
fn compare(directory: &Directory, boot: Option<u128>) -> Result<(Tail, RecordPosition, Vec<u8>)> {
    let tail_path = directory.tail_path();
    let none = RecordPosition { epoch: 0, file: 0, boot: 0, offset: 0 };
    let Some(file) = open(&tail_path)? else { return Ok((Tail::Nothing, none, Vec::new())) };
    let Some((place, bytes)) = row(&read(&file, 0, TAIL_LEN, &tail_path)?) else {
        return Ok((Tail::Nothing, none, Vec::new()));
    };
    let was_started = has_started(boot, &place);
    // Nearly always the last file has this inode; an earlier file has it if that file's last sync failed.
    for path in directory.incremental_paths().rev() {
        let Some(file) = open(&path)? else { continue };
        let status = file.metadata().map_err(Error::io("examine", &path))?;
        if status.ino() == place.file {
            let there = match status.len().checked_sub(place.offset) {
                Some(_) => read(&file, place.offset, bytes.len(), &path)?,
                None => return Ok((Tail::Changed { path }, place, bytes)),
            };
            return Ok((judge(path, &place, &there, &bytes, was_started), place, bytes));
        }
    }
    // Copies of the files have other inodes. If a file has all bytes of the tail in place, the tail is not
    // needed.
    for path in directory.incremental_paths().rev() {
        if let Some(file) = open(&path)?
            && read(&file, place.offset, bytes.len(), &path)? == bytes
        {
            return Ok((Tail::Whole { path }, place, bytes));
        }
    }
    Ok((Tail::Foreign, place, bytes))
}

/// Whether the machine has started anew since the record, or may have.
fn has_started(boot: Option<u128>, place: &RecordPosition) -> bool {
    boot != Some(place.boot)
}

/// Cuts off the unreadable rest of the file behind `from`, the end of the last record. The rest was being
/// appended when the machine failed, and the file system has zeroes for bytes that never reached the disk. No
/// command is made of zeroes, so a zero stands where parsing fails. Any other byte there is damage, and
/// stays; so does a command that just ends too early. A rest longer than [`TAIL_LEN`] is damage too. If
/// anything follows the zeroes, the rest is kept in a file of its own.
fn cut_hole(directory: &Directory, mut file: &File, from: u64, path: &Path) -> Result<Option<CutOff>> {
    if !directory.parts()?.iter().any(|part| part.last && part.path == path) {
        return Ok(None); // the commands of later files continue this file as it is
    }
    let len = file.metadata().map_err(Error::io("examine", path))?.len();
    file.seek(SeekFrom::Start(from)).map_err(Error::io("read", path))?;
    let mut commands = Commands::new(file, from, Some(len));
    let fault = loop {
        match commands.next() {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(None),
            Err(fault) => break fault,
        }
    };
    let wrong = match fault.reason {
        Reason::Start(_) | Reason::Argument(_) => 1,
        Reason::LineEnd => 2,
        Reason::Number => NUMBER_BYTES_MAX,
        Reason::Annotation => ANNOTATION_BYTES_MAX,
        Reason::Io(kind) => return Err(Error::io("read", path)(kind.into())),
        _ => return Ok(None),
    };
    let line = read(file, fault.at, wrong, path)?;
    let zero = line.iter().take_while(|byte| **byte != b'\n').position(|byte| *byte == 0);
    let Some(hole) = zero.map(|zero| fault.at + zero as u64) else { return Ok(None) };
    let is_all_zeroes = zeroes_from(file, hole, len, path)? == hole;
    if !is_all_zeroes && len - hole > TAIL_LEN as u64 {
        return Ok(None);
    }
    let kept = match is_all_zeroes {
        true => None,
        false => {
            let kept = directory.cut_off_path();
            durable::copy(file, fault.whole, &kept)?;
            Some(kept)
        }
    };
    file.set_len(fault.whole).map_err(Error::io("cut off", path))?;
    Ok(Some(CutOff { path: path.to_owned(), from: fault.whole, len: len - fault.whole, kept }))
}

/// Returns the start of the zeroes at the end of a file of `len` bytes, `from` at the earliest.
fn zeroes_from(file: &File, from: u64, len: u64, path: &Path) -> Result<u64> {
    let mut end = len;
    while end > from {
        let piece = (end - from).min(TAIL_LEN as u64);
        let bytes = read(file, end - piece, piece as usize, path)?;
        let zeroes = bytes.iter().rev().take_while(|byte| **byte == 0).count() as u64;
        end -= zeroes;
        if zeroes < piece {
            break;
        }
    }
    Ok(end)
}

/// Compares the file's bytes (`there`) with the tail's (`bytes`).
fn judge(path: PathBuf, place: &RecordPosition, there: &[u8], bytes: &[u8], was_started: bool) -> Tail {
    let differ = |at: &usize| there.get(*at) != Some(&bytes[*at]);
    let Some(first) = (0..bytes.len()).find(differ) else { return Tail::Whole { path } };
    // A file system may record a length before the bytes are written, and the bytes reach the disk in any
    // order.
    let is_hole = there.iter().zip(bytes).all(|(there, byte)| there == byte || *there == 0);
    // As long as the machine runs, a file has all bytes written to it, unless another program has cut it.
    if !is_hole || there.len() < bytes.len() && !was_started {
        return Tail::Changed { path };
    }
    let last = (first..bytes.len()).rfind(differ).unwrap_or(first);
    Tail::Lacks { path, from: place.offset + first as u64, len: (last - first + 1) as u64 }
}

/// Opens a file; `None` if there is no such file.
fn open(path: &Path) -> Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("open", path)(error)),
    }
}

/// Reads up to `len` bytes; fewer only at the end of the file.
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
    use std::fs;

    const NAME: &str = "dir/a.aof.1.incr.aof";
    const MANIFEST: &str = "file a.aof.1.incr.aof seq 1 type i\n";
    const BEFORE: u128 = 7;
    const NOW: u128 = 8;

    /// Creates a file with these bytes, and a tail with these records, the first at this offset.
    fn crashed(file: &[u8], offset: u64, records: &[&[u8]]) -> (Root, Directory) {
        let root = Root::with(&[("dir/a.aof.manifest", MANIFEST.as_bytes()), (NAME, file)]);
        let inode = fs::metadata(root.0.join(NAME)).expect("there").ino();
        let place = RecordPosition { epoch: 3, file: inode, boot: BEFORE, offset };
        fs::write(root.0.join("dir/a.aof.tail"), tail(place, records)).expect("written");
        let directory = Directory::open(&root.0, "dir".as_ref(), "a.aof".as_ref()).expect("whole");
        (root, directory)
    }

    fn tail(mut place: RecordPosition, records: &[&[u8]]) -> Vec<u8> {
        let mut tail = Vec::new();
        for bytes in records {
            tail.extend(header(&place, bytes));
            tail.extend_from_slice(bytes);
            tail.resize(tail.len().next_multiple_of(BLOCK), 0);
            place.offset += bytes.len() as u64;
        }
        tail
    }

    /// Restores a file in this run of the machine (`boot`) and checks its content.
    #[track_caller]
    fn restored(file: &[u8], offset: u64, records: &[&[u8]], boot: Option<u128>, expected: &[u8]) -> Tail {
        let (root, directory) = crashed(file, offset, records);
        let seen = inspect(&directory, boot).expect("it can be read");
        assert_eq!(fs::read(root.0.join(NAME)).expect("there"), file, "looking changes nothing");
        let Restored { tail, aside, cut } = restore_to_load(&directory, boot).expect("it can be written");
        assert_eq!(tail, seen);
        let whole = file.len().max(offset as usize + records.concat().len());
        let gone = if matches!(tail, Tail::Changed { .. }) { 0 } else { (whole - expected.len()) as u64 };
        assert_eq!(cut.as_ref().map_or(0, |cut| cut.len), gone, "what is cut off is said");
        if let Some(cut) = cut {
            let cut_off = &file[expected.len()..];
            let is_hole = cut_off.iter().skip_while(|byte| **byte != 0).all(|byte| *byte == 0);
            assert_eq!(cut.kept.is_none(), is_hole, "and kept, if something follows the zeroes");
            assert!(cut.kept.is_none_or(|kept| fs::read(kept).expect("there") == cut_off));
        }
        assert_eq!(fs::read(root.0.join(NAME)).expect("there"), expected);
        assert!(!root.0.join("dir/a.aof.tail").exists(), "it is not needed any more");
        assert_eq!(aside.is_some(), matches!(tail, Tail::Changed { .. }), "the bytes may be wanted yet");
        assert!(aside.is_none_or(|path| path.exists()));
        let nothing = Restored { tail: Tail::Nothing, aside: None, cut: None };
        assert_eq!(restore_to_load(&directory, boot).expect("nothing to do"), nothing);
        tail
    }

    #[track_caller]
    fn lacks(tail: &Tail, from: u64, len: u64) {
        assert!(matches!(tail, Tail::Lacks { from: f, len: l, .. } if (*f, *l) == (from, len)), "{tail:?}");
    }

    #[test]
    fn missing_bytes_are_restored_from_the_tail() {
        let long = vec![b'x'; 3 * BLOCK];
        let whole = [b"base".as_slice(), &long, b"end"].concat();
        for boot in [Some(NOW), None] {
            let two: [&[u8]; 2] = [b"one", b"more"];
            lacks(&restored(b"base", 4, &two, boot, b"baseonemore"), 4, 7);
            lacks(&restored(b"baseon", 4, &two, boot, b"baseonemore"), 6, 5);
            lacks(&restored(&whole[..100], 4, &[&long, b"end"], boot, &whole), 100, long.len() as u64 - 93);
            lacks(&restored(b"", 0, &[b"one"], boot, b"one"), 0, 3);
            // The file system has recorded a length before the bytes were written; they reach the disk in any
            // order.
            lacks(&restored(b"baseo\0\0\0\0", 4, &two, boot, b"baseonemore"), 5, 6);
            lacks(&restored(b"base\0\0\0more", 4, &two, boot, b"baseonemore"), 4, 3);
            lacks(&restored(b"baseo\0em\0re, torn", 4, &two, boot, b"baseonemore, torn"), 5, 4);
            // Behind the record, a command was being appended: its length was recorded, its bytes were not
            // written.
            let zeroes = [b"baseo\0\0\0\0\0\0*1\r\n$4\r\nto".as_slice(), &[0; 2 * BLOCK]].concat();
            lacks(&restored(&zeroes, 4, &two, boot, b"baseonemore"), 5, 6);
            lacks(&restored(&zeroes[..11], 4, &two, boot, b"baseonemore"), 5, 6);
            lacks(&restored(&[0; 3 * BLOCK], 0, &[b"one"], boot, b"one"), 0, 3);
            let whole = restored(b"baseonemore\0\0", 4, &two, boot, b"baseonemore");
            assert!(matches!(whole, Tail::Whole { .. }));
        }
        // In the same run of the machine, only another program can have put the zeroes there.
        let whole = restored(b"baseonemore\0\0", 4, &[b"one", b"more"], Some(BEFORE), b"baseonemore\0\0");
        assert!(matches!(whole, Tail::Whole { .. }));
        // The machine goes on, but its file system was replaced for a while.
        lacks(&restored(b"base\0\0\0more", 4, &[b"one", b"more"], Some(BEFORE), b"baseonemore"), 4, 3);
    }

    /// Bytes behind the last record were being appended; zeroes stand anywhere for bytes that never reached
    /// the disk.
    #[test]
    fn holes_behind_the_last_record_are_cut_off() {
        const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
        let records: [&[u8]; 1] = [b"one"];
        let behind = |parts: &[&[u8]]| [b"baseone", &parts.concat()[..]].concat();
        let becomes = |file: &[&[u8]], kept: &[&[u8]]| {
            for boot in [Some(NOW), None] {
                let tail = restored(&behind(file), 4, &records, boot, &behind(kept));
                assert!(matches!(tail, Tail::Whole { .. }));
            }
            let (as_it_is, boot) = (behind(file), Some(BEFORE));
            restored(&as_it_is, 4, &records, boot, &as_it_is); // another program has put them there
        };
        becomes(&[PING, &[0; 10], PING], &[PING]);
        becomes(&[&[0; 10], PING], &[]);
        let echo: &[u8] = b"*2\r\n$4\r\nECHO\r\n$9\r\n123456789\r\n";
        // In the length, the line end, the value and what is behind it, all but the beginning.
        for hole in [15..18, 27..29, 20..40, 3..57] {
            let mut file = [PING, echo, PING, PING].concat();
            file[PING.len()..][hole].fill(0);
            becomes(&[&file], &[PING]);
        }
        becomes(&[PING, b"*3", &vec![0; 3 * TAIL_LEN]], &[PING]);
        // Damage: no zero where parsing fails, or a rest longer than a tail.
        let binary: &[u8] = b"*2\r\n$4\r\nECHO\r\n$2\r\n\0\0\r\n";
        let wrong_len: &[u8] = b"*1\r\n$5\r\nPING\r\n";
        for damage in [b"x", wrong_len, b"*1\r\n$x\r\n\0\0"] {
            becomes(&[PING, damage, binary], &[PING, damage, binary]);
        }
        let long = PING.repeat(TAIL_LEN / PING.len() + 1);
        becomes(&[PING, &[0], &long], &[PING, &[0], &long]);
        // A transaction is cut off as a whole.
        let multi: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
        becomes(&[PING, multi, PING, &[0; 9], PING], &[PING]);
        // A command that ends too early is left to the loader, which reports or refuses it as configured.
        becomes(&[PING, &PING[..9]], &[PING, &PING[..9]]);
    }

    /// A later file goes on where an earlier file ended; a check of the file changes nothing unasked.
    #[test]
    fn holes_stay_in_earlier_files_and_without_a_load() {
        let holed = b"baseone\0\0*1\r\n$4\r\nPING\r\n";
        let (root, directory) = crashed(holed, 4, &[b"one"]);
        for put_back in [complete, restore] {
            let restored = put_back(&directory, Some(NOW)).expect("it can be written");
            assert!(restored.cut.is_none() && fs::read(root.0.join(NAME)).expect("there") == holed);
        }
        assert!(!directory.tail_path().exists(), "the second has removed it");
        let (root, directory) = crashed(b"base\0\0\0\0", 4, &[b"one"]);
        lacks(&complete(&directory, Some(NOW)).expect("put back").tail, 4, 3);
        restore_to_load(&directory, Some(NOW)).expect("the tail is still there");
        assert_eq!(fs::read(root.0.join(NAME)).expect("there"), b"baseone", "so the end is known");

        let (root, _) = crashed(holed, 4, &[b"one"]);
        let manifest = format!("{MANIFEST}file a.aof.2.incr.aof seq 2 type i\n");
        fs::write(root.0.join("dir/a.aof.manifest"), manifest).expect("written");
        for (later, expected) in [("more", &holed[..]), ("", &holed[..7])] {
            fs::write(root.0.join("dir/a.aof.2.incr.aof"), later).expect("written");
            let directory = Directory::open(&root.0, "dir".as_ref(), "a.aof".as_ref()).expect("whole");
            let kept_tail = fs::read(directory.tail_path()).expect("a tail");
            restore_to_load(&directory, Some(NOW)).expect("it can be written");
            assert_eq!(fs::read(root.0.join(NAME)).expect("there"), expected, "{later:?} follows");
            fs::write(directory.tail_path(), kept_tail).expect("written");
        }
    }

    #[test]
    fn a_complete_or_changed_file_is_left_unchanged() {
        let two: [&[u8]; 2] = [b"one", b"more"];
        for boot in [Some(NOW), Some(BEFORE), None] {
            let whole = |file: &[u8]| matches!(restored(file, 4, &two, boot, file), Tail::Whole { .. });
            assert!(whole(b"baseonemore") && whole(b"baseonemore, torn"));
            let changed = |file: &[u8]| matches!(restored(file, 4, &two, boot, file), Tail::Changed { .. });
            assert!(changed(b"bas"), "cut off before it");
            assert!(changed(b"baseTWO") && changed(b"baseonemort"));
        }
        let cut_off = restored(b"baseone", 4, &two, Some(BEFORE), b"baseone");
        assert!(matches!(cut_off, Tail::Changed { .. }), "somebody has done so");
    }

    #[test]
    fn the_file_is_found_by_its_inode() {
        let (root, directory) = crashed(b"base", 4, &[b"one"]);
        fs::rename(root.0.join(NAME), root.0.join("other")).expect("renamed");
        fs::write(root.0.join(NAME), b"base").expect("written");
        assert_eq!(inspect(&directory, Some(BEFORE)).expect("read"), Tail::Foreign);
        assert_eq!(inspect(&directory, Some(NOW)).expect("read"), Tail::Foreign);
        fs::write(root.0.join(NAME), b"baseone, more").expect("written");
        assert!(
            matches!(inspect(&directory, Some(NOW)).expect("read"), Tail::Whole { .. }),
            "a copy that has all"
        );
        fs::write(root.0.join(NAME), b"base").expect("written");
        let aside = restore(&directory, Some(NOW)).expect("put aside").aside.expect("its path");
        assert_eq!(fs::read(root.0.join(NAME)).expect("there"), b"base");
        assert_ne!(directory.unused_tail_path(), aside, "another one does not replace it");
        // The tail may belong to an earlier file, whose last sync failed.
        fs::rename(aside, directory.tail_path()).expect("back");
        fs::rename(root.0.join("other"), root.0.join(NAME)).expect("back");
        let manifest = format!("{MANIFEST}file a.aof.2.incr.aof seq 2 type i\n");
        fs::write(root.0.join("dir/a.aof.manifest"), manifest).expect("written");
        fs::write(root.0.join("dir/a.aof.2.incr.aof"), "more").expect("written");
        let directory = Directory::open(&root.0, "dir".as_ref(), "a.aof".as_ref()).expect("whole");
        lacks(&restore(&directory, Some(NOW)).expect("put back").tail, 4, 3);
        assert_eq!(fs::read(root.0.join(NAME)).expect("there"), b"baseone");
        fs::write(directory.tail_path(), vec![0; TAIL_LEN]).expect("written");
        assert_eq!(restore(&directory, Some(NOW)).expect("removed").tail, Tail::Nothing);
        assert!(!directory.tail_path().exists());
    }

    #[test]
    fn a_row_ends_at_a_record_of_an_earlier_row() {
        let place = |epoch, offset| RecordPosition { epoch, file: 1, boot: BEFORE, offset };
        let old = tail(place(4, 0), &[b"first", b"second", b"third"]);
        let new = tail(place(5, 16), &[b"fourth"]);
        let both = [&new[..], &old[BLOCK..]].concat();
        assert_eq!(row(&both), Some((place(5, 16), b"fourth".to_vec())));
        // An equal epoch is not enough.
        let same = [&tail(place(4, 16), &[b"fourth"])[..], &old[BLOCK..]].concat();
        assert_eq!(row(&same), Some((place(4, 16), b"fourth".to_vec())));
        assert_eq!(row(&old).expect("a row").1, b"firstsecondthird");
    }

    #[test]
    fn every_changed_byte_ends_the_row_before_its_record() {
        let place = RecordPosition { epoch: 1, file: 2, boot: BEFORE, offset: 9 };
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
            let _ = row(&whole[..len]); // any result will do: it must return
        }
        let lies = header(&RecordPosition { offset: u64::MAX, ..place }, b"one");
        assert!(row(&[&lies[..], b"one"].concat()).is_some_and(|(_, bytes)| bytes == b"one"));
    }
}
