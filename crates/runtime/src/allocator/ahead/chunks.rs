//! Chunks of the store's blocks ([`evenkeel_slab`]): populated before a worker takes them, and collapsed into
//! huge pages if a worker was faster. A chunk is a region.

use evenkeel_slab as slab;
use evenkeel_store::memory::regions::REGION;

use super::{FILLED, LOOKS, Memory};

const _: () = assert!(slab::CHUNK == REGION);

/// Populates until `wanted` chunks wait for a worker.
pub(super) fn populate(memory: &impl Memory, wanted: usize) {
    while slab::stats().idle < wanted * slab::CHUNK {
        memory.warm();
        if !slab::populate() {
            return;
        }
    }
}

/// Collapses a chunk that is filled with small pages. Returns whether it has found one.
pub(super) fn gather_one(memory: &mut impl Memory) -> bool {
    for _ in 0..LOOKS {
        let Some(chunk) = slab::next_loose() else { return false };
        if memory.resident(chunk..chunk + slab::CHUNK) >= FILLED && memory.gather(chunk) {
            return true;
        }
        slab::keep_loose(chunk);
    }
    false
}
