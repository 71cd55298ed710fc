//! Regions of the address space that blocks have come from: a thread that takes the first block of a region
//! is about to need the next region.
//!
//! Each region has a mark, which every allocation reads: a byte of a table that stays in the cache (25 KB of
//! it for 50 GB). The table has room for all addresses of a process, and takes memory only for regions with
//! blocks.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bytes of a region: a huge page.
pub const REGION: usize = 2 << 20;

/// Number of regions in 47 bits of address. Beyond that two regions share a mark, and only the first of them
/// is reported.
const REGIONS: usize = if cfg!(miri) { 1 << 17 } else { 1 << 26 };
const _: () = assert!(REGIONS.is_power_of_two() && REGION.is_power_of_two());

static MARKS: [AtomicBool; REGIONS] = [const { AtomicBool::new(false) }; REGIONS];
static NOTIFY: OnceLock<fn(usize)> = OnceLock::new();

#[inline]
fn mark(address: usize) -> &'static AtomicBool {
    &MARKS[address / REGION % REGIONS]
}

#[inline]
pub(super) fn on_block(block: *const u8) {
    if !mark(block as usize).load(Relaxed) {
        first(block as usize);
    }
}

#[cold]
fn first(address: usize) {
    if !mark(address).swap(true, Relaxed)
        && let Some(notify) = NOTIFY.get()
    {
        notify(address);
    }
}

/// Sets the function that receives the address of each region's first block from now on. The thread that
/// allocates the block calls it, so it must not allocate. Only the first function set counts.
pub fn on_first_blocks(notify: fn(usize)) {
    let _ = NOTIFY.set(notify);
}

/// Returns true if a block has come from the region since it was last forgotten.
pub fn is_known(address: usize) -> bool {
    mark(address).load(Relaxed)
}

/// Clears the marks of regions that have gone back to the system: the next block of each is a first block
/// again.
pub fn forget(regions: Range<usize>) {
    regions.step_by(REGION).for_each(|region| mark(region).store(false, Relaxed));
}
