//! The probe of `stalls`: GETs sent in sequence over a connection to each of the server's serving threads,
//! and the longest time until a reply.
//!
//! On a machine with fewer cores than busy threads, the scheduler causes most of a long wait: the replying
//! thread, or the probe itself, is runnable but does not run. That is not the server's fault, and would drown
//! the delays that are. The kernel counts for each thread the time that it was runnable but waited for a CPU
//! (`schedstat`). The probe subtracts this time of its own thread and of the serving thread. The rest is the
//! server's own: work done before the GET, waits for locks, page faults, and time taken by the hypervisor.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::interrupt;

/// Between two GETs; leaves the core to other threads most of the time.
const PAUSE: Duration = Duration::from_micros(200);
/// GETs that identify the thread which serves a connection.
const TRIAL: usize = 300;
/// Most connections opened to find a connection on each serving thread.
const CONNECTIONS_MAX: usize = 16;

/// The longest waits since the last [`Probe::start_over`], in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Longest {
    pub(super) us: f64,
    /// Without the time spent waiting for a CPU; not necessarily of the same wait.
    pub(super) own_us: f64,
}

/// See the module's text.
pub(super) struct Probe {
    longest: Mutex<Longest>,
    stop: AtomicBool,
}

impl Probe {
    /// Probes the server, whose process is `pid`, while `work` runs.
    pub(super) fn run<R>(server: SocketAddr, pid: u32, work: impl FnOnce(&Probe) -> Result<R>) -> Result<R> {
        let probe = Probe { longest: Mutex::default(), stop: AtomicBool::new(false) };
        let mut lines = lines(server, pid)?;
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| probe.measure_waits(&mut lines));
            let done = work(&probe);
            probe.stop.store(true, Relaxed);
            waits.join().expect("the probe does not panic")?;
            done
        })
    }

    pub(super) fn start_over(&self) {
        *self.longest.lock().expect("nobody panics with it") = Longest::default();
    }

    pub(super) fn longest(&self) -> Longest {
        *self.longest.lock().expect("nobody panics with it")
    }

    fn measure_waits(&self, lines: &mut [Line]) -> Result<()> {
        let own = Thread::open("/proc/thread-self".into())?;
        while !self.stop.load(Relaxed) {
            for line in &mut *lines {
                let before = (own.in_line()?, line.thread.in_line()?);
                let us = line.get()?.as_nanos() as f64 / 1e3;
                // Both threads may wait for a CPU at once: that is a single wait.
                let in_line = (own.in_line()? - before.0).max(line.thread.in_line()? - before.1);
                let mut longest = self.longest.lock().expect("nobody panics with it");
                longest.us = longest.us.max(us);
                longest.own_us = longest.own_us.max(us - in_line.as_nanos() as f64 / 1e3);
                drop(longest);
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }
}

/// A connection, and the server's thread that serves it.
struct Line {
    stream: TcpStream,
    thread: Thread,
}

impl Line {
    fn get(&mut self) -> Result<Duration> {
        get(&mut self.stream)
    }
}

fn get(stream: &mut TcpStream) -> Result<Duration> {
    let sent = Instant::now();
    stream.write_all(b"*2\r\n$3\r\nGET\r\n$5\r\nprobe\r\n")?;
    if stream.read(&mut [0; 256])? == 0 {
        bail!("the server closed the probe's connection");
    }
    Ok(sent.elapsed())
}

/// Opens a connection to each thread that serves connections.
fn lines(server: SocketAddr, pid: u32) -> Result<Vec<Line>> {
    let mut lines: Vec<Line> = Vec::new();
    let mut spare = Vec::new(); // kept open, so that the server deals the next connection to another thread
    for _ in 0..CONNECTIONS_MAX {
        let mut stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        let thread = serving(&mut stream, pid)?;
        if lines.iter().any(|line| line.thread.path == thread.path) {
            spare.push(stream);
        } else {
            lines.push(Line { stream, thread });
        }
        interrupt::check()?;
    }
    Ok(lines)
}

/// Returns the thread of the process that runs most while GETs come over this connection.
fn serving(stream: &mut TcpStream, pid: u32) -> Result<Thread> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).context("the server has no threads")?;
    let threads: Vec<Thread> = threads.filter_map(|entry| Thread::open(entry.ok()?.path()).ok()).collect();
    let before: Vec<u64> = threads.iter().map(Thread::ran_ns).collect::<Result<_>>()?;
    for _ in 0..TRIAL {
        get(stream)?;
    }
    let after: Vec<u64> = threads.iter().map(Thread::ran_ns).collect::<Result<_>>()?;
    let ran = before.iter().zip(after).map(|(before, after)| after - before);
    let (_, most) = ran.zip(threads).max_by_key(|(ran, _)| *ran).context("the server has no threads")?;
    Ok(most)
}

/// A thread's account in the kernel's scheduler.
struct Thread {
    path: PathBuf,
    schedstat: File,
}

impl Thread {
    fn open(path: PathBuf) -> Result<Thread> {
        let file = path.join("schedstat");
        let schedstat = File::open(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(Thread { path, schedstat })
    }

    /// Returns the time run, and the time runnable but not running, in nanoseconds.
    fn account(&self) -> Result<(u64, u64)> {
        let mut text = [0; 80];
        let size = self.schedstat.read_at(&mut text, 0).context("a thread of the server has ended")?;
        fields(&text[..size]).context("unknown form of schedstat")
    }

    fn ran_ns(&self) -> Result<u64> {
        Ok(self.account()?.0)
    }

    fn in_line(&self) -> Result<Duration> {
        Ok(Duration::from_nanos(self.account()?.1))
    }
}

fn fields(text: &[u8]) -> Option<(u64, u64)> {
    let mut fields = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_read() {
        assert_eq!(fields(b"348039700 8218393 56\n"), Some((348_039_700, 8_218_393)));
        assert_eq!(fields(b"1"), None);
        let own = Thread::open("/proc/thread-self".into()).expect("own account");
        let before = own.ran_ns().expect("own account");
        let until = crate::sys::thread_cpu_ns() + 30_000_000;
        while crate::sys::thread_cpu_ns() < until {}
        assert!(own.ran_ns().expect("own account") - before >= 20_000_000);
    }
}
