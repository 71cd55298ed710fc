//! Frames on disk, so that the past survives a restart.
//!
//! A directory has files `history-<Unix ms>.ekh`, the oldest of which are deleted beyond a bound. A file is
//! a sequence of frames: length (4 bytes), CRC-32 of the rest (4 bytes), kind (1 byte), content. The first
//! frame has the names of the columns, so that another version, or another number of workers, can read it. A
//! row is stored as in memory, as its differences from the row before it in the file. A file that ends within
//! a frame, as after a crash, is read up to there. Numbers are little-endian.

#[cfg(fuzzing)]
pub mod fuzzing;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crc_fast::CrcAlgorithm::Crc32IsoHdlc;

use crate::incident::Incident;
use crate::log::Event;
use crate::ring::{Row, read_row, write_row};
use crate::schema::Schema;

/// Bytes of a file, from which the next frame begins a new one, and of the longest frame.
const FILE_LEN: u64 = 4 << 20;
const FRAME_LEN_MAX: usize = 4 << 20;

const PREFIX: &str = "history-";
const SUFFIX: &str = ".ekh";

const COLUMNS: u8 = 1;
const SECOND: u8 = 2;
const EVENT: u8 = 3;
const INCIDENT: u8 = 4;

#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// A row of a second.
    Second(Row),
    Event(Event),
    Incident(Incident),
}

/// The files of a directory; see the module's text.
#[derive(Debug)]
pub struct Files {
    directory: PathBuf,
    schema: Schema,
    bytes_max: u64,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    file: File,
    len: u64,
    /// The row that the next differs from.
    last: Row,
}

impl Files {
    /// Prepares a directory, which is created if it is not there.
    pub fn open(directory: &Path, schema: Schema, bytes_max: u64) -> io::Result<Files> {
        fs::create_dir_all(directory)?;
        let files = Files { directory: directory.to_owned(), schema, bytes_max, current: None };
        files.paths()?;
        Ok(files)
    }

    /// Calls `each` for all frames of all files, the oldest first. Skips files that cannot be read.
    pub fn load(&self, mut each: impl FnMut(Frame)) -> io::Result<()> {
        for (_, path) in self.paths()? {
            let mut bytes = Vec::new();
            // A file may be deleted meanwhile by the operator, and the others are of use without it.
            if File::open(&path).and_then(|mut file| file.read_to_end(&mut bytes)).is_ok() {
                read_frames(&bytes, &self.schema, &mut each);
            }
        }
        Ok(())
    }

    /// Appends frames. `now_ms` names a new file.
    pub fn append(&mut self, frames: &[Frame], now_ms: u64) -> io::Result<()> {
        let mut bytes = Vec::new();
        let current = self.current(now_ms, &mut bytes)?;
        for frame in frames {
            match frame {
                Frame::Second(row) => {
                    let mut content = Vec::new();
                    write_row(&mut content, &current.last, row, row.at_ms);
                    current.last.clone_from(row);
                    write_frame(&mut bytes, SECOND, &content);
                }
                Frame::Event(event) => write_frame(&mut bytes, EVENT, &serde_json::to_vec(event)?),
                Frame::Incident(incident) => {
                    write_frame(&mut bytes, INCIDENT, &serde_json::to_vec(incident)?);
                }
            }
        }
        let written = current.file.write_all(&bytes);
        current.len += bytes.len() as u64;
        if written.is_err() {
            // The file may end within a frame: the next frames go to a new one.
            self.current = None;
        }
        written
    }

    /// Returns the file to append to. A new file gets its columns into `bytes`.
    fn current(&mut self, now_ms: u64, bytes: &mut Vec<u8>) -> io::Result<&mut Current> {
        if self.current.as_ref().is_none_or(|current| current.len >= FILE_LEN) {
            self.delete_old()?;
            let path = self.directory.join(format!("{PREFIX}{now_ms}{SUFFIX}"));
            let file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(path)?;
            let names: Vec<&str> = self.schema.columns().iter().map(|column| column.name.as_str()).collect();
            write_frame(bytes, COLUMNS, &serde_json::to_vec(&names)?);
            let last = Row::zeros(self.schema.len());
            self.current = Some(Current { file, len: 0, last });
        }
        self.current.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Deletes the oldest files, so that there is room for a further one.
    fn delete_old(&self) -> io::Result<()> {
        let files = self.paths()?;
        let len = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
        let mut sum: u64 = files.iter().map(|(_, path)| len(path)).sum::<u64>() + FILE_LEN;
        for (_, path) in &files {
            if sum <= self.bytes_max {
                break;
            }
            sum = sum.saturating_sub(len(path));
            fs::remove_file(path)?;
        }
        Ok(())
    }

    /// Returns the files, the oldest first.
    fn paths(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
            if let Some(began_ms) = number.and_then(|number| number.parse().ok()) {
                files.push((began_ms, entry.path()));
            }
        }
        files.sort();
        Ok(files)
    }
}

fn write_frame(bytes: &mut Vec<u8>, kind: u8, content: &[u8]) {
    let mut rest = vec![kind];
    rest.extend_from_slice(content);
    bytes.extend_from_slice(&(rest.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(crc_fast::checksum(Crc32IsoHdlc, &rest) as u32).to_le_bytes());
    bytes.extend_from_slice(&rest);
}

/// Takes a frame. `None`: the bytes end, or are damaged.
fn take_frame<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    if len > FRAME_LEN_MAX {
        return None;
    }
    let (frame, rest) = rest.split_at_checked(len)?;
    let is_whole = crc_fast::checksum(Crc32IsoHdlc, frame) as u32 == u32::from_le_bytes(*crc);
    *bytes = rest;
    let (kind, content) = frame.split_first()?;
    is_whole.then_some((*kind, content))
}

/// Reads the frames of a file, with rows as this schema has them.
fn read_frames(mut bytes: &[u8], schema: &Schema, each: &mut impl FnMut(Frame)) {
    let Some((COLUMNS, names)) = take_frame(&mut bytes) else { return };
    let Ok(names) = serde_json::from_slice::<Vec<String>>(names) else { return };
    let places: Vec<Option<usize>> = names.iter().map(|name| schema.find(name)).collect();
    let mut stored = Row::zeros(names.len());
    while let Some((kind, mut content)) = take_frame(&mut bytes) {
        match kind {
            SECOND => {
                if read_row(&mut content, &mut stored).is_none() {
                    return; // the rows behind it differ from it
                }
                each(Frame::Second(placed(&stored, &places, schema.len())));
            }
            EVENT => _ = serde_json::from_slice(content).map(|event| each(Frame::Event(event))),
            INCIDENT => {
                _ = serde_json::from_slice(content).map(|incident| each(Frame::Incident(incident)));
            }
            _ => {} // of a later version
        }
    }
}

/// Returns a row with its values in other places.
fn placed(stored: &Row, places: &[Option<usize>], columns: usize) -> Row {
    let mut row = Row { at_ms: stored.at_ms, covered_ms: stored.covered_ms, ..Row::zeros(columns) };
    for (value, place) in stored.values.iter().zip(places) {
        if let Some(place) = place {
            row.values[*place] = *value;
        }
    }
    row
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::scratch::Scratch;
    use proptest::prelude::*;

    use super::*;
    use crate::incident::Rule;
    use crate::log::EventKind;
    use crate::schema::{Merge, Unit};

    fn schema(names: &[&str]) -> Schema {
        let mut schema = Schema::default();
        names.iter().for_each(|name| _ = schema.add(*name, Unit::Count, Merge::Sum));
        schema
    }

    fn row(at_ms: u64, values: &[u64]) -> Frame {
        Frame::Second(Row { at_ms, covered_ms: 1_000, values: values.to_vec() })
    }

    fn load(files: &Files) -> Vec<Frame> {
        let mut frames = Vec::new();
        files.load(|frame| frames.push(frame)).expect("the directory can be read");
        frames
    }

    #[test]
    fn frames_survive_with_other_columns() {
        let scratch = Scratch::new();
        let mut files = Files::open(&scratch.path, schema(&["a", "b", "c"]), 64 << 20).expect("it is new");
        let event =
            Event { at_ms: 5, lasted_us: None, kind: EventKind::Snapshot, text: "Snapshot \"x\"".into() };
        let incident = Incident::new(Rule::SlowCommand, "EVAL", "EVAL took 250 ms".into()).lasted(9, 250_000);
        let frames = [row(1_000, &[1, 2, 3]), Frame::Event(event), Frame::Incident(incident)];
        files.append(&frames, 7).expect("there is room");
        files.append(&[row(2_000, &[4, 2, 9])], 8).expect("there is room");
        assert_eq!(load(&files)[..3], frames);
        assert_eq!(load(&files).last(), Some(&row(2_000, &[4, 2, 9])));
        let other = Files::open(&scratch.path, schema(&["c", "d", "a"]), 64 << 20).expect("it is there");
        let rows: Vec<Frame> =
            load(&other).into_iter().filter(|one| matches!(one, Frame::Second(_))).collect();
        assert_eq!(rows, [row(1_000, &[3, 0, 1]), row(2_000, &[9, 0, 4])]);
    }

    #[test]
    fn a_torn_file_is_read_up_to_its_end() {
        let scratch = Scratch::new();
        let mut files = Files::open(&scratch.path, schema(&["a"]), 64 << 20).expect("it is new");
        (1..=20).for_each(|at| files.append(&[row(at, &[at])], 7).expect("there is room"));
        let path = scratch.path.join("history-7.ekh");
        let whole = fs::read(&path).expect("it is there");
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).expect("there is room");
            let frames = load(&files);
            assert!(frames.len() < 20 && frames.iter().zip(1..).all(|(frame, at)| *frame == row(at, &[at])));
        }
    }

    #[test]
    fn old_files_are_deleted() {
        let scratch = Scratch::new();
        let columns: Vec<String> = (0..200).map(|one| format!("c{one}")).collect();
        let names: Vec<&str> = columns.iter().map(String::as_str).collect();
        let mut files = Files::open(&scratch.path, schema(&names), 16 << 20).expect("it is new");
        for at in 1..=40_000_u64 {
            let values: Vec<u64> = (0..200).map(|one| at * one * 7_919 % 1_000_000_007).collect();
            files.append(&[row(at, &values)], at).expect("there is room");
        }
        let sum: u64 = files
            .paths()
            .expect("it can be read")
            .iter()
            .map(|(_, path)| fs::metadata(path).expect("it is there").len())
            .sum();
        assert!((8 << 20..=17 << 20).contains(&sum), "{sum}");
        let first = load(&files).into_iter().next();
        assert!(matches!(first, Some(Frame::Second(row)) if row.at_ms > 1_000));
    }

    proptest! {
        #[test]
        fn random_files_do_not_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            at in any::<prop::sample::Index>(),
        ) {
            let schema = schema(&["a", "b"]);
            read_frames(&bytes, &schema, &mut |_| {});
            // A good beginning with a random change.
            let mut good = Vec::new();
            write_frame(&mut good, COLUMNS, br#"["a","x"]"#);
            write_frame(&mut good, SECOND, &bytes);
            write_frame(&mut good, INCIDENT, &bytes);
            let at = at.index(good.len());
            read_frames(&good, &schema, &mut |_| {});
            good[at] ^= 0x10;
            read_frames(&good, &schema, &mut |_| {});
        }
    }
}
