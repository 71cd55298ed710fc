//! System calls that the load loops and the measurements need and the standard library does not offer:
//! readiness (epoll), pinning, CPU clocks, the limit on open files.
//!
//! A readiness crate would do for the loops, but the generator's worth is its price per request: here every
//! call that it makes is in sight, and `epoll_wait` fills a buffer that is reused for ever.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Most events that a `wait` returns: enough that a loop turn over thousands of ready connections costs a few
/// calls.
const EVENTS_MAX: usize = 512;

/// Interest of the loops: both directions, each change reported once.
///
/// Edge-triggered costs less: level-triggered, the kernel checks each connection a second time, only to find
/// that the reply has been read. In return, the caller must read until the buffer is not filled any more.
pub(crate) const BOTH_EDGES: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
pub(crate) const READABLE: u32 = libc::EPOLLIN as u32;

/// Lets the calling thread run before all threads of the usual scheduling policies. Then a client on the
/// machine of the server does not wait for a core that the server uses, as if it had a machine of its own.
///
/// # Errors
/// The kernel refuses it without `CAP_SYS_NICE`.
pub(crate) fn run_before_others() -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: zero is the calling thread; the kernel reads the parameters during the call.
    checked(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) }).map(drop)
}

/// An event of the connection that was registered under `token`.
#[derive(Clone, Copy)]
pub(crate) struct Event {
    pub(crate) token: usize,
    flags: u32,
}

impl Event {
    pub(crate) fn is_readable(self) -> bool {
        self.flags & (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0
    }

    pub(crate) fn is_writable(self) -> bool {
        self.flags & libc::EPOLLOUT as u32 != 0
    }
}

/// An epoll instance with its buffer of events.
pub(crate) struct Poller {
    fd: OwnedFd,
    buffer: Vec<libc::epoll_event>,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointers; its result is checked before use.
        let fd = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: `fd` was just opened and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, buffer: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX] })
    }

    /// Removes `source` from the instance. Closing the source does so, too.
    pub(crate) fn remove(&self, source: &impl AsRawFd) -> io::Result<()> {
        let (poller, fd) = (self.fd.as_raw_fd(), source.as_raw_fd());
        // SAFETY: both descriptors are open for the call, and removing needs no event.
        checked(unsafe { libc::epoll_ctl(poller, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) }).map(drop)
    }

    pub(crate) fn add(&self, source: &impl AsRawFd, token: usize, interest: u32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest, u64: token as u64 };
        // SAFETY: both descriptors are open for the call, and `event` outlives it.
        let rc = unsafe {
            libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, source.as_raw_fd(), &mut event)
        };
        checked(rc).map(drop)
    }

    /// Waits for this long (`None`: without end) and returns the number of events that `event(0..n)` holds. A
    /// signal counts as no event, so that callers come round to check their flags.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let timeout = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the buffer holds EVENTS_MAX events, which is the number given; the timeout outlives the
        // call, and there is no mask of signals.
        let rc = unsafe {
            libc::epoll_pwait2(
                self.fd.as_raw_fd(),
                self.buffer.as_mut_ptr(),
                EVENTS_MAX as libc::c_int,
                timeout,
                std::ptr::null(),
            )
        };
        match checked(rc) {
            Ok(events) => Ok(events as usize),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn event(&self, index: usize) -> Event {
        let event = self.buffer[index];
        Event { token: event.u64 as usize, flags: event.events }
    }
}

/// Keeps the calling thread on `cpus`; an empty list leaves it where it is.
///
/// Safe to call between fork and exec: it neither allocates nor locks.
pub(crate) fn pin(cpus: &[usize]) -> io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    // SAFETY: a cpu set is plain bits, for which all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus {
        if cpu >= libc::CPU_SETSIZE as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: `cpu` is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the size given is that of the set; 0 is the calling thread.
    checked(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) }).map(drop)
}

/// Waits until everything that was written to files is on disk.
pub(crate) fn sync_files() {
    // SAFETY: takes nothing, and cannot fail.
    unsafe { libc::sync() };
}

/// Returns day and time, in UTC: `2026-01-31 12:00`.
pub(crate) fn date() -> String {
    // SAFETY: a broken-down time is plain numbers, for which zeroes are valid.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values that outlive the calls.
    unsafe {
        let now = libc::time(std::ptr::null_mut());
        libc::gmtime_r(&now, &mut parts);
    }
    let (year, month) = (parts.tm_year + 1900, parts.tm_mon + 1);
    format!("{year}-{month:02}-{:02} {:02}:{:02}", parts.tm_mday, parts.tm_hour, parts.tm_min)
}

/// Returns the number of CPUs that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// Parses `"0,2-3"` to `[0, 2, 3]`.
pub(crate) fn parse_cpus(text: &str) -> Result<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number =
            |text: &str| text.trim().parse::<usize>().with_context(|| format!("bad cpu list {text:?}"));
        let (first, last) = (number(first)?, number(last)?);
        if first > last || last >= libc::CPU_SETSIZE as usize {
            bail!("bad cpu range {part:?}");
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

/// Returns the CPU time of the calling thread, in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// Returns the CPU time (user + system) of a process, in nanoseconds, over all its threads, including ended
/// threads.
///
/// This is the scheduler's own account. Summing `/proc/PID/task/*/schedstat` has the same precision but loses
/// the threads that end, and `/proc/PID/stat` counts in ticks of 10 ms.
pub(crate) fn process_cpu_ns(pid: u32) -> io::Result<u64> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is written by the call and outlives it.
    let rc = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) };
    match rc {
        0 => clock_ns(clock),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn clock_ns(clock: libc::clockid_t) -> io::Result<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is written by the call and outlives it.
    checked(unsafe { libc::clock_gettime(clock, &mut time) })?;
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32).as_nanos() as u64)
}

/// Makes the process end quietly when the reader of its output is gone (`| head`). Not for processes that
/// write to sockets.
pub(crate) fn end_with_the_reader() {
    // SAFETY: sets the signal's own action back to the default outside of Rust.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Raises the soft limit on open files to the hard limit and returns it. Servers started later inherit it.
pub(crate) fn raise_open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is written by the call and outlives it.
    checked(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is only read.
    checked(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
    Ok(limit.rlim_cur)
}

/// Asks the kernel to end the calling process when the thread that started it ends, however it ends.
///
/// For use between fork and exec: it neither allocates nor locks.
pub(crate) fn die_with_parent() -> io::Result<()> {
    // SAFETY: this option takes a signal number and no pointers.
    checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }).map(drop)
}

/// Makes the calling thread's waits end on time: the kernel may add 50 us otherwise.
pub(crate) fn wake_on_time() {
    // SAFETY: this option takes a number of nanoseconds and no pointers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Sends `signal` to a child that has not been waited for yet, whose number therefore cannot belong to
/// another process.
pub(crate) fn signal_child(pid: u32, signal: libc::c_int) {
    // SAFETY: the call takes no pointers. A failure means that the child is gone, as the caller intends.
    unsafe { libc::kill(pid as libc::pid_t, signal) };
}

/// Waits until a child ends; returns its CPU time.
pub(crate) fn wait_for_child(pid: u32) -> io::Result<Duration> {
    // SAFETY: plain numbers, for which zeroes are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    // SAFETY: both are written by the call and outlive it.
    checked(unsafe { libc::wait4(pid as libc::pid_t, &mut status, 0, &mut usage) })?;
    if status != 0 {
        return Err(io::Error::other(format!("it ended with status {status:#x}")));
    }
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1_000);
    Ok(time(usage.ru_utime) + time(usage.ru_stime))
}

/// Returns the CPUs that this process may use, in their order.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    // SAFETY: a cpu set is plain bits, for which all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the size given is that of the set, which outlives the call.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } < 0 {
        return vec![0];
    }
    // SAFETY: all numbers are below CPU_SETSIZE.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Drops up to `len` received bytes of a connection, without a copy; returns their number, 0 at its end.
pub(crate) fn discard(stream: &TcpStream, len: usize) -> io::Result<usize> {
    // SAFETY: nothing is written with MSG_TRUNC to a TCP connection, so there need be no buffer.
    let taken = unsafe { libc::recv(stream.as_raw_fd(), std::ptr::null_mut(), len, libc::MSG_TRUNC) };
    if taken < 0 { Err(io::Error::last_os_error()) } else { Ok(taken as usize) }
}

fn checked(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert!(parse_cpus("").expect("empty").is_empty());
        assert_eq!(parse_cpus("3").expect("one"), [3]);
        assert_eq!(parse_cpus("0,2-4").expect("a list"), [0, 2, 3, 4]);
        for bad in ["x", "2-1", "-", "1-99999"] {
            assert!(parse_cpus(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_process_clock_counts_threads_that_ended() {
        let before = process_cpu_ns(std::process::id()).expect("own clock");
        let busy = std::thread::spawn(|| while thread_cpu_ns() < 20_000_000 {});
        busy.join().expect("the loop cannot panic");
        let spent = process_cpu_ns(std::process::id()).expect("own clock") - before;
        assert!(spent >= 20_000_000, "{spent} ns");
    }
}
