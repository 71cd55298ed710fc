//! A replica that keeps nothing: it requests a full sync, takes it, and drops it, so that only the primary's
//! cost remains.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{interrupt, sys};

/// Longest silence of a primary.
const READ_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval at which the stream's thread checks for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const ACK_EVERY: Duration = Duration::from_secs(1);
const PIECE: usize = 1 << 20;
/// Length of the text that ends a snapshot of unannounced length.
const MARK: usize = 40;

/// The primary hung up in the middle of the snapshot. Servers do so if more has been written meanwhile than
/// they keep for a replica.
#[derive(Debug)]
pub(super) struct CutOff {
    /// Bytes of the snapshot that had come.
    pub(super) taken: u64,
}

impl std::fmt::Display for CutOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a snapshot ended after {} bytes", self.taken)
    }
}

impl std::error::Error for CutOff {}

/// A replica whose snapshot has come, and whose stream a thread takes.
pub(super) struct Sink {
    pub(super) snapshot_bytes: u64,
    stream_bytes: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sink {
    /// Becomes a replica of the server and takes its snapshot. The thread that takes the stream afterwards
    /// runs on these CPUs.
    pub(super) fn attach(primary: SocketAddr, cpus: &[usize]) -> Result<Sink> {
        let stream = TcpStream::connect(primary)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        let mut reader = BufReader::with_capacity(PIECE, stream);
        // One after the other: PSYNC is refused while a reply is on its way.
        request(&mut reader, "REPLCONF capa eof capa psync2", "+OK")?;
        let begun = request(&mut reader, "PSYNC ? -1", "+FULLRESYNC ")?;
        let offset = begun.split(' ').next_back().and_then(|offset| offset.parse().ok());
        let offset: u64 = offset.with_context(|| format!("{begun:?} has no offset"))?;
        let snapshot_bytes = snapshot(&mut reader)?;
        let stream = reader.into_inner();
        stream.set_read_timeout(Some(POLL_INTERVAL))?;
        let (stream_bytes, ended, is_over) = <(Arc<AtomicU64>, Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let (taken, end, over, cpus) = (stream_bytes.clone(), ended.clone(), is_over.clone(), cpus.to_vec());
        let thread = std::thread::Builder::new().name("sink".into()).spawn(move || {
            drop(sys::pin(&cpus)); // it also works without pinning
            take(&stream, offset, &taken, &end);
            over.store(true, Relaxed);
        });
        let thread = Some(thread.context("no thread for a replica")?);
        Ok(Sink { snapshot_bytes, stream_bytes, ended, is_over, thread })
    }

    /// Returns the bytes of the stream that have come.
    pub(super) fn stream_bytes(&self) -> u64 {
        self.stream_bytes.load(Relaxed)
    }

    /// Returns whether the primary has ended the connection.
    pub(super) fn is_cut_off(&self) -> bool {
        self.is_over.load(Relaxed)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join()); // it does not panic
        }
    }
}

/// Sends a command; returns the answer, which has to start with `beginning`.
fn request(reader: &mut BufReader<TcpStream>, command: &str, beginning: &str) -> Result<String> {
    reader.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
    let answer = line(reader)?;
    if !answer.starts_with(beginning) {
        bail!("{command}: {answer}");
    }
    Ok(answer)
}

/// Returns the next line that is not empty: primaries send empty lines while they prepare a snapshot.
fn line(reader: &mut impl BufRead) -> Result<String> {
    loop {
        interrupt::check()?;
        let mut line = String::new();
        if reader.read_line(&mut line).context("a primary is silent")? == 0 {
            bail!("a primary has closed the connection");
        }
        if !line.trim().is_empty() {
            return Ok(line.trim().to_owned());
        }
    }
}

/// Drops a snapshot; returns its length in bytes. Bytes behind it may have been read, and belong to the
/// stream.
fn snapshot(reader: &mut BufReader<TcpStream>) -> Result<u64> {
    let head = line(reader)?;
    let announced = head.strip_prefix('$').with_context(|| format!("{head:?} and not a snapshot"))?;
    if let Some(mark) = announced.strip_prefix("EOF:") {
        return up_to(reader, mark.as_bytes());
    }
    let len = announced.parse().with_context(|| format!("{head:?} is no length"))?;
    let taken = io::copy(&mut reader.take(len), &mut io::sink())?;
    if taken < len {
        return Err(CutOff { taken }.into());
    }
    Ok(len)
}

/// Drops everything up to and including the mark.
fn up_to(reader: &mut impl BufRead, mark: &[u8]) -> Result<u64> {
    if mark.len() != MARK {
        bail!("a mark of {} bytes", mark.len());
    }
    let (mut taken, mut tail) = (0, Vec::new());
    loop {
        interrupt::check()?;
        let piece = reader.fill_buf().context("a primary is silent")?;
        if piece.is_empty() {
            return Err(CutOff { taken }.into());
        }
        // The mark may lie across two pieces.
        let kept = tail.len();
        tail.extend_from_slice(&piece[..piece.len().min(MARK)]);
        let len = piece.len();
        let end =
            find(&tail, mark).map(|at| at + MARK - kept).or_else(|| find(piece, mark).map(|at| at + MARK));
        if let Some(end) = end {
            reader.consume(end);
            return Ok(taken + end as u64 - MARK as u64);
        }
        if len >= MARK {
            tail.clear();
            tail.extend_from_slice(&piece[len - (MARK - 1)..]);
        } else {
            tail.drain(..tail.len().saturating_sub(MARK - 1));
        }
        reader.consume(len);
        taken += len as u64;
    }
}

fn find(text: &[u8], mark: &[u8]) -> Option<usize> {
    // SAFETY: both pointers are valid for the lengths given, which are only read.
    let at = unsafe { libc::memmem(text.as_ptr().cast(), text.len(), mark.as_ptr().cast(), mark.len()) };
    (!at.is_null()).then(|| at as usize - text.as_ptr() as usize)
}

/// Takes the stream. A primary sends it to a replica that acknowledges the snapshot, and goes on while
/// acknowledgements come: so the sink acknowledges at once, and every second, as replicas do.
fn take(mut stream: &TcpStream, offset: u64, taken: &AtomicU64, ended: &AtomicBool) {
    let mut next = Instant::now();
    while !ended.load(Relaxed) {
        if Instant::now() >= next {
            let offset = (offset + taken.load(Relaxed)).to_string();
            let word = format!("*3\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n${}\r\n{offset}\r\n", offset.len());
            if stream.write_all(word.as_bytes()).is_err() {
                return;
            }
            next = Instant::now() + ACK_EVERY;
        }
        match sys::discard(stream, PIECE) {
            Ok(0) => return,
            Ok(len) => _ = taken.fetch_add(len as u64, Relaxed),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_found_wherever_it_lies() {
        let mark = [b'm'; MARK];
        for before in [0, 1, 39, 40, 41, 100, 1_000] {
            let mut bytes = vec![b'x'; before];
            bytes.extend_from_slice(&mark);
            bytes.extend_from_slice(b"*1\r\n");
            for capacity in [1, 7, 39, 40, 41, 64, 4_096] {
                let mut reader = BufReader::with_capacity(capacity, &bytes[..]);
                assert_eq!(
                    up_to(&mut reader, &mark).expect("it is there"),
                    before as u64,
                    "{before} {capacity}"
                );
                let mut rest = String::new();
                reader.read_to_string(&mut rest).expect("it is text");
                assert_eq!(rest, "*1\r\n", "{before} {capacity}");
            }
        }
        let cut = up_to(&mut BufReader::new(&b"xxxx"[..]), &mark).expect_err("there is no mark");
        assert_eq!(cut.downcast_ref::<CutOff>().map(|cut| cut.taken), Some(4));
        assert!(up_to(&mut BufReader::new(&b"xxxx"[..]), b"short").is_err());
    }
}
