//! The 24 access bits of an entry: the time of its last access under LRU, time and frequency under LFU.

use crate::Millis;

const CLOCK_BITS: u32 = 24;
const CLOCK_MASK: u32 = (1 << CLOCK_BITS) - 1;

/// Seconds, 24 bits: wraps around every 194 days.
#[inline]
pub fn lru_clock(now: Millis) -> u32 {
    (now / 1000) as u32 & CLOCK_MASK
}

/// Maximum time, in seconds, by which an access may seem to be later than the present. Threads read the clock
/// at different times, and it may be set back. Such an access was just now, not a full turn of the counter
/// ago.
const LEAD_MAX: u32 = 3600;

/// Time since an access, in milliseconds, to the second.
pub fn idle_ms(access: u32, now: Millis) -> u64 {
    let idle = lru_clock(now).wrapping_sub(access) & CLOCK_MASK;
    if idle > CLOCK_MASK - LEAD_MAX { 0 } else { u64::from(idle) * 1000 }
}

/// The counter that a new key starts with: above zero, so that the key is not the first to go.
const LFU_INITIAL: u32 = 5;

fn lfu_minutes(now: Millis) -> u32 {
    (now / 60_000) as u32 & 0xffff
}

/// Access bits of a new key under an LFU policy: minutes in the upper 16 bits, counter in the lower 8.
pub fn lfu_new(now: Millis) -> u32 {
    lfu_minutes(now) << 8 | LFU_INITIAL
}

/// The counter, minus 1 per `decay_minutes` since it was last written (0: never decays).
pub fn lfu_counter(access: u32, now: Millis, decay_minutes: u32) -> u32 {
    let elapsed = lfu_minutes(now).wrapping_sub(access >> 8) & 0xffff;
    let elapsed = if elapsed > 0xffff - LEAD_MAX / 60 { 0 } else { elapsed };
    let periods = elapsed.checked_div(decay_minutes).unwrap_or(0);
    (access & 0xff).saturating_sub(periods)
}

/// Access bits after a further access: the counter grows with probability 1 / ((counter - 5) * log_factor +
/// 1).
pub fn lfu_touched(access: u32, now: Millis, log_factor: u32, decay_minutes: u32, random: u64) -> u32 {
    let counter = lfu_counter(access, now, decay_minutes);
    let odds = u64::from(counter.saturating_sub(LFU_INITIAL)) * u64::from(log_factor) + 1;
    let grows = counter < 255 && random.is_multiple_of(odds);
    lfu_minutes(now) << 8 | (counter + u32::from(grows))
}
