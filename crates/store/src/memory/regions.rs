//! Which regions of the address space blocks have come from: whoever takes the first one of a region is about to need the next.
//!
//! A mark for each region, which every allocation reads: one byte, of a table that stays in the cache (25 KB of it for 50 GB). The
//! table has room for all addresses that a process has, and takes memory where there are blocks.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bytes of a region: a huge page.
pub const REGION: usize = 2 << 20;

/// Those of 47 bits of address. With more, two share a mark, and one of them is not told of.
const REGIONS: usize = if cfg!(miri) { 1 << 17 } else { 1 << 26 };
const _: () = assert!(REGIONS.is_power_of_two() && REGION.is_power_of_two());

static MARKS: [AtomicBool; REGIONS] = [const { AtomicBool::new(false) }; REGIONS];
static TELL: OnceLock<fn(usize)> = OnceLock::new();

#[inline]
fn mark(address: usize) -> &'static AtomicBool {
    &MARKS[address / REGION % REGIONS]
}

#[inline]
pub(super) fn note(block: *const u8) {
    if !mark(block as usize).load(Relaxed) {
        first(block as usize);
    }
}

#[cold]
fn first(address: usize) {
    if !mark(address).swap(true, Relaxed)
        && let Some(notify) = TELL.get()
    {
        notify(address);
    }
}

/// Has `notify` called with the address of the first block of each region from now on, by the thread that allocates it; so it must
/// not allocate. Only the first such function counts.
pub fn tell_of_first_blocks(notify: fn(usize)) {
    let _ = TELL.set(notify);
}

/// Whether a block has come from the region since it was last forgotten.
pub fn is_known(address: usize) -> bool {
    mark(address).load(Relaxed)
}

/// These regions have gone back to the system: the next block of each is the first one again.
pub fn forget(regions: Range<usize>) {
    regions.step_by(REGION).for_each(|region| mark(region).store(false, Relaxed));
}
