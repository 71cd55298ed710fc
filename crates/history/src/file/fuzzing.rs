//! Checks for the fuzz targets (folder `fuzz` of the repository).

use super::*;
use crate::schema::{Merge, Unit};

/// Length, checksum and kind of a frame.
const FRAME_LEN_MIN: usize = 4 + 4 + 1;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn schema(names: &[&str]) -> Schema {
    let mut schema = Schema::default();
    names.iter().for_each(|name| _ = schema.add(*name, Unit::Count, Merge::Sum));
    schema
}

fn read(bytes: &[u8], names: &[&str]) -> Vec<Frame> {
    let mut frames = Vec::new();
    read_frames(bytes, &schema(names), &mut |frame| frames.push(frame));
    assert!(frames.len() <= bytes.len() / FRAME_LEN_MIN);
    for frame in &frames {
        assert!(!matches!(frame, Frame::Second(row) if row.values.len() != names.len()));
    }
    frames
}

/// Reads bytes as a file.
pub fn bytes(bytes: &[u8]) {
    read(bytes, &NAMES);
}

/// Reads frames with right checksums; then one bit changes, and the frames before it are still read, and no
/// frame that was not written.
pub fn frames(data: &[u8]) {
    let Some((&bit, mut rest)) = data.split_first() else { return };
    let mut file = Vec::new();
    while let [kind, len, after @ ..] = rest {
        let (content, after) = after.split_at(after.len().min(usize::from(*len)));
        write_frame(&mut file, kind % 6, content);
        rest = after;
    }
    let whole = read(&file, &NAMES);
    if file.is_empty() {
        return;
    }
    let bit = usize::from(bit) * file.len() * 8 / 256;
    file[bit / 8] ^= 1 << (bit % 8);
    let damaged = read(&file, &NAMES);
    assert!(whole.starts_with(&damaged), "a changed bit ends the file");
}

/// Writes rows, and reads them with the same columns and with fewer.
pub fn rows(data: &[u8]) {
    let numbers: Vec<u64> =
        data.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight"))).collect();
    let mut file = Vec::new();
    write_frame(&mut file, COLUMNS, &serde_json::to_vec(&NAMES).expect("names are JSON"));
    let (mut last, mut written) = (Row::zeros(NAMES.len()), Vec::new());
    for numbers in numbers.chunks_exact(NAMES.len() + 2) {
        let row = Row { at_ms: numbers[0], covered_ms: numbers[1], values: numbers[2..].to_vec() };
        let mut content = Vec::new();
        write_row(&mut content, &last, &row, row.at_ms);
        write_frame(&mut file, SECOND, &content);
        last.clone_from(&row);
        written.push(row);
    }
    let rows = |names: &[&str]| -> Vec<Row> {
        let row = |frame| if let Frame::Second(row) = frame { row } else { panic!("{frame:?}") };
        read(&file, names).into_iter().map(row).collect()
    };
    assert_eq!(rows(&NAMES), written);
    let moved = |row: &Row| Row { values: vec![row.values[3], 0, row.values[0]], ..row.clone() };
    assert_eq!(rows(&["d", "new", "a"]), written.iter().map(moved).collect::<Vec<_>>());
}
