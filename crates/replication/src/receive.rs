//! The snapshot of a full sync as it is received: exactly its bytes, from the middle of a stream.
//!
//! The end is known by the length (`$len`), or by forty random bytes that the primary announces (`$EOF:mark`)
//! and sends behind the snapshot. It then sends nothing more until the replica acknowledges. So the last
//! forty bytes are held back until more bytes come: either they are the mark, or they are not the last.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use super::Replication;
use super::handshake::{answer, shown};
use super::primary_connection::{Ended, PrimaryConnection};
use evenkeel_runtime::temp_file;

/// Bytes received at a time.
const PIECE: usize = 256 * 1024;

const MARK: usize = 40;

/// Interval of the signs of life that a waiting primary gets.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// Bytes after which the file is synced, so that the sync at the end has little to do.
const SYNC_BYTES: u64 = 32 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// So many bytes are left.
    Length(u64),
    Mark([u8; MARK]),
}

/// The bytes of a snapshot, read from the primary. After a failed read, [`Snapshot::ended`] has the cause.
pub(super) struct Snapshot<'w> {
    conn: &'w mut PrimaryConnection,
    replication: std::sync::Arc<Replication>,
    form: Form,
    /// Received bytes, not read from `taken` on; the last forty may be the mark.
    buffer: Vec<u8>,
    taken: usize,
    is_complete: bool,
    last_sign: Instant,
    ended: Option<Ended>,
}

impl<'w> Snapshot<'w> {
    /// Waits for the announcement.
    pub(super) fn begin(
        replication: &std::sync::Arc<Replication>,
        conn: &'w mut PrimaryConnection,
    ) -> Result<Snapshot<'w>, Ended> {
        let line = answer(conn)?;
        let form = form(&line)?;
        let metrics = &replication.link.metrics;
        metrics.transfer_total.store(if let Form::Length(len) = form { len as i64 } else { 0 }, Relaxed);
        metrics.transfer_read.store(0, Relaxed);
        Ok(Snapshot {
            conn,
            replication: replication.clone(),
            form,
            buffer: Vec::new(),
            taken: 0,
            is_complete: false,
            last_sign: Instant::now(),
            ended: None,
        })
    }

    /// The length, if it is known.
    pub(super) fn len(&self) -> Option<u64> {
        match self.form {
            Form::Length(len) => Some(len),
            Form::Mark(_) => None,
        }
    }

    /// The cause of a failed read.
    pub(super) fn ended(&mut self) -> Option<Ended> {
        self.ended.take()
    }

    /// Sends the primary a sign of life, at intervals.
    pub(super) fn give_sign(&mut self) -> Result<(), Ended> {
        if self.last_sign.elapsed() >= SIGN_OF_LIFE {
            self.last_sign = Instant::now();
            self.conn.send(b"\n")?;
        }
        Ok(())
    }

    /// The bytes that can be read now.
    fn ready(&self) -> &[u8] {
        let kept = match self.form {
            Form::Mark(_) if !self.is_complete => MARK,
            _ => 0,
        };
        &self.buffer[self.taken..(self.buffer.len() - kept.min(self.buffer.len())).max(self.taken)]
    }

    fn receive(&mut self) -> Result<(), Ended> {
        self.give_sign()?;
        self.buffer.drain(..self.taken);
        self.taken = 0;
        let room = match self.form {
            Form::Length(left) => usize::try_from(left).unwrap_or(PIECE).min(PIECE),
            Form::Mark(_) => PIECE,
        };
        let filled = self.buffer.len();
        self.buffer.resize(filled + room, 0);
        let got = match self.conn.receive_within(&mut self.buffer[filled..], SIGN_OF_LIFE) {
            Ok(got) => got.unwrap_or(0),
            Err(ended) => {
                self.buffer.truncate(filled);
                return Err(ended);
            }
        };
        self.buffer.truncate(filled + got);
        let metrics = &self.replication.link.metrics;
        metrics.transfer_read.fetch_add(got as i64, Relaxed);
        match &mut self.form {
            Form::Length(left) => {
                *left -= got as u64;
                self.is_complete = *left == 0;
            }
            Form::Mark(mark) => {
                if self.buffer.ends_with(&mark[..]) {
                    self.buffer.truncate(self.buffer.len() - MARK);
                    self.is_complete = true;
                }
            }
        }
        Ok(())
    }
}

impl Read for Snapshot<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.ready().is_empty() && !self.is_complete && !into.is_empty() {
            if let Err(ended) = self.receive() {
                self.ended = Some(ended);
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
        let ready = self.ready();
        let len = ready.len().min(into.len());
        into[..len].copy_from_slice(&ready[..len]);
        self.taken += len;
        Ok(len)
    }
}

/// Parses an announcement.
fn form(line: &[u8]) -> Result<Form, Ended> {
    if line.starts_with(b"-") {
        return Err(Ended::Broken(format!("PRIMARY aborted replication with an error: {}", shown(line))));
    }
    let announced = line.strip_prefix(b"$").and_then(|rest| match rest.strip_prefix(b"EOF:") {
        Some(mark) => mark.try_into().ok().map(Form::Mark),
        None => std::str::from_utf8(rest).ok()?.parse().ok().map(Form::Length),
    });
    announced.ok_or_else(|| {
        Ended::Garbled(format!(
            "Bad protocol from PRIMARY, the first byte is not '$' (we received '{}'), are you sure the host \
             and port are right?",
            shown(line)
        ))
    })
}

/// A received snapshot in a temporary file beside its target; removed unless it is installed.
pub(super) struct Received {
    pub(super) file: File,
    path: PathBuf,
    pub(super) len: u64,
    is_installed: bool,
}

impl Received {
    /// Writes the snapshot to a file.
    pub(super) fn from(snapshot: &mut Snapshot<'_>, folder: &Path) -> Result<Received, Ended> {
        let (now, process) = (evenkeel_runtime::clock::unix_ms() / 1000, std::process::id());
        let failed = |error: io::Error| {
            Ended::Broken(format!(
                "Write error or short write writing to the DB dump file needed for PRIMARY <-> REPLICA \
                 synchronization, in {}: {error}",
                folder.display()
            ))
        };
        let created = temp_file::create(folder, |number| format!("temp-{}.{process}.rdb", now + number));
        let (file, path) = created.map_err(|error| {
            Ended::Broken(format!(
                "Opening the temp file needed for PRIMARY <-> REPLICA synchronization, in {}: {error}",
                folder.display()
            ))
        })?;
        let mut received = Received { file, path, len: 0, is_installed: false };
        let (mut piece, mut synced) = (vec![0; PIECE], 0);
        loop {
            let got = match snapshot.read(&mut piece) {
                Ok(0) => break,
                Ok(got) => got,
                Err(error) => return Err(snapshot.ended().unwrap_or_else(|| failed(error))),
            };
            received.file.write_all(&piece[..got]).map_err(failed)?;
            received.len += got as u64;
            if received.len - synced >= SYNC_BYTES {
                received.file.sync_data().map_err(failed)?;
                synced = received.len;
            }
        }
        received.file.sync_all().map_err(failed)?;
        Ok(received)
    }

    /// Renames the file to the server's own snapshot.
    pub(super) fn install(mut self, target: &Path) -> io::Result<()> {
        fs::rename(&self.path, target)?;
        self.is_installed = true;
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if !self.is_installed {
            let _ = fs::remove_file(&self.path); // a file that stays does no harm
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_headers_parse() {
        let is = |line: &[u8]| form(line).ok();
        assert_eq!(is(b"$0"), Some(Form::Length(0)));
        assert_eq!(is(b"$18446744073709551615"), Some(Form::Length(u64::MAX)));
        assert_eq!(is(&[b"$EOF:", &[b'a'; 40][..]].concat()), Some(Form::Mark([b'a'; 40])));
        for line in [&b"$-1"[..], b"$", b"$x", b"$EOF:abc", b"+OK", b"-ERR no", b"SSH-2.0", b"\xff"] {
            assert_eq!(is(line), None);
        }
    }
}
