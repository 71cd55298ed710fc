//! Records of the journal as commands of an append-only file.

use evenkeel_rdb::aof::push_timestamp;
use evenkeel_store::journal::Record;

use super::file::LogFile;

/// Bytes for the timestamp and the SELECT before a record.
const PREFACE_LEN: usize = 128;

/// A record of more bytes is written while it is read, so it is never copied as a whole.
const LONG: usize = 8 << 20;

/// The end of a file of commands: the selected database, and the second of the last timestamp line. Each file
/// states its own, so each begins with the default.
#[derive(Default)]
pub(crate) struct Appender {
    selected: Option<u32>,
    second: u64,
}

impl Appender {
    /// Appends a record to the buffer of `file`, preceded by a SELECT if it needs another database, and by a
    /// timestamp line if `now_s` is a later second; zero: none. A long record may be written at once, if
    /// `may_write`. Records that change no data are left out.
    pub(crate) fn append(&mut self, file: &mut LogFile, record: &Record<'_>, now_s: u64, may_write: bool) {
        if !record.is_data {
            return;
        }
        let is_worth_offloading = may_write && record.bytes.len() > LONG;
        let buffer = file.room(PREFACE_LEN + if is_worth_offloading { 0 } else { record.bytes.len() });
        if now_s > self.second {
            self.second = now_s;
            push_timestamp(buffer, now_s as i64);
        }
        let rest = record.preceded(self.selected, buffer);
        if is_worth_offloading {
            file.append_long(rest);
        } else {
            buffer.extend_from_slice(rest);
        }
        self.selected = Some(record.last_db);
    }
}
