//! Time: the processor's time-stamp counter for stages, the system's clock for deadlines.
//!
//! Reading the counter takes about 8 ns and no system call, so every command can be timed. Where the
//! processor does not promise a constant rate of the counter, the monotonic clock takes its place.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// A count that grows at a constant rate; [`ns`] converts it.
pub type Ticks = u64;

#[derive(Clone, Copy)]
struct Scale {
    counter: bool,
    /// Nanoseconds per tick, times 2^32.
    ns_q32: u64,
    /// Ticks per microsecond, at least 1. Stored, since every command needs it and a division takes as long
    /// as reading the counter.
    per_us: u64,
    base: Instant,
    first: Ticks,
    /// All cores share a single counter.
    is_one: bool,
}

impl Scale {
    fn new(counter: bool, ns_q32: u64, base: Instant) -> Scale {
        let per_us = ((1000_u128 << 32) / u128::from(ns_q32.max(1))).max(1) as u64;
        let first = if counter { self::counter() } else { 0 };
        Scale { counter, ns_q32, per_us, base, first, is_one: counter && kernel_goes_by_it() }
    }
}

static SCALE: OnceLock<Scale> = OnceLock::new();

fn scale() -> &'static Scale {
    SCALE.get_or_init(|| {
        let base = Instant::now();
        if !counter_is_invariant() {
            return Scale::new(false, 1 << 32, base);
        }
        let before = counter();
        std::thread::sleep(Duration::from_millis(10));
        let (ticks, elapsed) = (counter() - before, base.elapsed().as_nanos() as u64);
        Scale::new(true, ((u128::from(elapsed) << 32) / u128::from(ticks.max(1))) as u64, base)
    })
}

/// Returns the present in ticks, from the same clock on all threads.
#[inline]
pub fn ticks() -> Ticks {
    let scale = scale();
    if scale.counter { counter() } else { scale.base.elapsed().as_nanos() as u64 }
}

/// Bits by which a tick of the journal's clock is coarser: 40 to 130 ns each. A write takes longer, and 2^53
/// of these ticks are eleven years.
const LOG_SHIFT: u32 = 7;

/// Returns the journal's time, from the same clock on all threads: a record that is written after another
/// record has been seen never gets an earlier time. See [`evenkeel_store::journal`].
pub fn log_time() -> u64 {
    let scale = scale();
    let since = match scale.is_one {
        true => counter().saturating_sub(scale.first),
        false => scale.base.elapsed().as_nanos() as u64,
    };
    since >> LOG_SHIFT
}

/// Whether work for clients is timed. Always on, except to measure the cost of timing (DEBUG ACCOUNTING).
static IS_ACCOUNTING: AtomicBool = AtomicBool::new(true);

pub fn set_accounting(is_on: bool) {
    IS_ACCOUNTING.store(is_on, Relaxed);
}

#[inline]
pub fn is_accounting() -> bool {
    IS_ACCOUNTING.load(Relaxed)
}

/// Returns the end of a stage that began at `from`: the present, or `from` without accounting, so that stages
/// take no time.
#[inline]
pub fn stage_end(from: Ticks) -> Ticks {
    if is_accounting() { ticks() } else { from }
}

/// Converts a span of ticks to nanoseconds.
#[inline]
pub fn ns(ticks: Ticks) -> u64 {
    ((u128::from(ticks) * u128::from(scale().ns_q32)) >> 32) as u64
}

/// Converts a span of ticks to microseconds.
pub fn us(ticks: Ticks) -> u64 {
    ns(ticks) / 1000
}

/// Returns the ticks per microsecond, at least 1.
#[inline]
pub fn ticks_per_us() -> u64 {
    scale().per_us
}

/// Names the source of ticks, for INFO.
pub fn source() -> String {
    if scale().counter {
        format!("X86 TSC @ {} ticks/us", ticks_per_us())
    } else {
        "POSIX clock_gettime".into()
    }
}

/// Returns milliseconds since the Unix epoch.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Returns microseconds since the Unix epoch.
pub fn unix_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Returns the CPU time of this thread so far.
pub fn thread_cpu() -> Duration {
    cpu(ClockId::ThreadCPUTime)
}

/// Returns the CPU time of all threads so far.
pub fn process_cpu() -> Duration {
    cpu(ClockId::ProcessCPUTime)
}

fn cpu(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Whether the kernel takes its own time from the counter. It does not where the counter of a core may lag
/// behind another core's.
fn kernel_goes_by_it() -> bool {
    let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    std::fs::read_to_string(file).is_ok_and(|source| source.trim() == "tsc")
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "x86_64")]
fn counter_is_invariant() -> bool {
    use std::arch::x86_64::__cpuid;
    let highest = __cpuid(0x8000_0000).eax;
    highest >= 0x8000_0007 && __cpuid(0x8000_0007).edx & 1 << 8 != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

#[cfg(not(target_arch = "x86_64"))]
fn counter_is_invariant() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_keep_pace_with_the_clock() {
        // The thread may lose the processor between the two readings, so a single good try is enough.
        let good = (0..10).any(|_| {
            let (start, before) = (Instant::now(), ticks());
            std::thread::sleep(Duration::from_millis(20));
            let (by_ticks, by_clock) = (ns(ticks() - before), start.elapsed().as_nanos() as u64);
            by_ticks.abs_diff(by_clock) < by_clock / 20
        });
        assert!(good && ticks_per_us() >= 1);
    }
}
