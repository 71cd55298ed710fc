//! Four threads that pass events round, each with an epoll and an eventfd, like the workers of a server.
//!
//! An event is a microsecond's work, after which it goes to the next thread. The baseline writes the eventfd
//! for each event. The alternative is the server's own mailbox, which writes the
//! eventfd only for a sleeping thread. The threads' CPU time beyond the events' work was spent on waking.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use evenkeel_runtime::mailbox::Mailbox;

use crate::load::keys::Random;
use crate::sys::{self, Poller};
use crate::{interrupt, proc};

pub(super) const THREADS: usize = 4;
/// Steps of work per event: about a microsecond.
const WORK: u32 = 600;
/// Events that calibrate the work.
const TRIAL_EVENTS: u32 = 20_000;
/// Longest time until a thread notices the end of the run.
const POLL_TIMEOUT: Duration = Duration::from_millis(20);

/// The way threads signal each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignalMode {
    /// Writes the eventfd for each event.
    Always,
    /// Writes the eventfd for a sleeping thread only.
    Mailbox,
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    pub(super) events_per_s: f64,
    /// Share of the threads' CPU time spent on the events' work.
    pub(super) useful: f64,
    /// Writes of an eventfd: per event, and per time that a thread was about to sleep.
    pub(super) signals_per_event: f64,
    pub(super) signals_per_sleep: f64,
    /// Of the whole machine, per second.
    pub(super) rescheduling_per_s: f64,
    pub(super) calls_per_s: f64,
}

/// A thread's place in the ring.
struct Place {
    mailbox: Mailbox<u64>,
    event_fd: OwnedFd,
    /// Each counter has a single writer, its thread.
    events: AtomicU64,
    sleeps: AtomicU64,
    signals: AtomicU64,
}

/// Passes this many events round for a time.
pub(super) fn run(mode: SignalMode, events: usize, time: Duration) -> Result<Ring> {
    let places = (0..THREADS).map(|_| Place::new()).collect::<Result<Vec<Place>>>()?;
    (0..events).for_each(|event| _ = places[event % THREADS].mailbox.put(event as u64));
    let work_ns = work_ns();
    let stop = AtomicBool::new(false);
    let (resched, calls) = proc::interrupts_between_cpus();
    let began = Instant::now();
    let cpu_ns: Result<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|index| {
                let (places, stop) = (&places, &stop);
                scope.spawn(move || go_round(mode, places, index, stop))
            })
            .collect();
        let waited = interrupt::sleep(time);
        stop.store(true, Relaxed);
        let spent = threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum();
        waited.and(spent)
    });
    let seconds = began.elapsed().as_secs_f64();
    let (resched_after, calls_after) = proc::interrupts_between_cpus();
    let sum = |count: fn(&Place) -> &AtomicU64| {
        places.iter().map(|place| count(place).load(Relaxed)).sum::<u64>() as f64
    };
    let (handled, signals) = (sum(|place| &place.events), sum(|place| &place.signals));
    Ok(Ring {
        events_per_s: handled / seconds,
        useful: handled * work_ns / cpu_ns? as f64,
        signals_per_event: signals / handled.max(1.0),
        signals_per_sleep: signals / sum(|place| &place.sleeps).max(1.0),
        rescheduling_per_s: (resched_after - resched) as f64 / seconds,
        calls_per_s: (calls_after - calls) as f64 / seconds,
    })
}

impl Place {
    fn new() -> Result<Self> {
        // SAFETY: the call takes no pointers; its result is checked before use.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error()).context("no eventfd");
        }
        // SAFETY: `fd` was just opened and has no other owner.
        let event_fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let [events, sleeps, signals] = [const { AtomicU64::new(0) }; 3];
        Ok(Self { mailbox: Mailbox::new(), event_fd, events, sleeps, signals })
    }

    fn signal(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes are read from `one`. The write fails only when the count is full, and then the
        // thread is signalled already.
        unsafe { libc::write(self.event_fd.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
    }

    fn drain(&self) {
        let mut count = 0_u64;
        // SAFETY: eight bytes are written to `count`. The read fails when there is nothing to read, which is
        // fine.
        unsafe { libc::read(self.event_fd.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
    }
}

/// Runs a thread of the ring; returns the CPU time that it has used, in nanoseconds.
fn go_round(mode: SignalMode, places: &[Place], index: usize, stop: &AtomicBool) -> Result<u64> {
    let (own, next) = (&places[index], &places[(index + 1) % places.len()]);
    let mut poller = Poller::new().context("epoll")?;
    poller.add(&own.event_fd, 0, sys::READABLE).context("epoll")?;
    let count = |counter: &AtomicU64| counter.store(counter.load(Relaxed) + 1, Relaxed);
    let began_ns = sys::thread_cpu_ns();
    let mut events = own.mailbox.take(); // events dealt out before the start
    while !stop.load(Relaxed) {
        for event in events.drain(..) {
            let event = work(event);
            count(&own.events);
            let sleeps = next.mailbox.put(event);
            if sleeps || mode == SignalMode::Always {
                count(&own.signals);
                next.signal();
            }
        }
        count(&own.sleeps);
        // With a signal for each event no check is needed before the wait: the eventfd is readable if there
        // is an event.
        let may_sleep = mode == SignalMode::Always || own.mailbox.may_sleep();
        if may_sleep && poller.wait(Some(POLL_TIMEOUT)).context("epoll")? > 0 {
            own.drain();
        }
        own.mailbox.awake();
        events = own.mailbox.take();
    }
    Ok(sys::thread_cpu_ns() - began_ns)
}

/// Draws numbers that each depend on the previous number.
fn work(event: u64) -> u64 {
    let mut random = Random::new(event);
    (0..WORK).fold(event, |sum, _| std::hint::black_box(sum ^ random.next()))
}

/// Returns the CPU nanoseconds of an event's work, alone: the least of a few tries.
fn work_ns() -> f64 {
    let once = |_| {
        let before = sys::thread_cpu_ns();
        (0..TRIAL_EVENTS).for_each(|event| _ = std::hint::black_box(work(u64::from(event))));
        (sys::thread_cpu_ns() - before) as f64 / f64::from(TRIAL_EVENTS)
    };
    (0..5).map(once).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mailbox_signals_sleepers_only() {
        for events in [1, 64] {
            let ring = run(SignalMode::Mailbox, events, Duration::from_millis(200)).expect("it runs");
            assert!(ring.events_per_s > 0.0, "{ring:?}");
            assert!(ring.signals_per_sleep <= 1.0, "{ring:?}");
            let ring = run(SignalMode::Always, events, Duration::from_millis(200)).expect("it runs");
            assert!(ring.signals_per_event == 1.0, "{ring:?}");
        }
    }
}
