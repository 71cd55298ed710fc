//! Large blocks: above [`crate::SIZE_MAX`].
//!
//! | bytes | where |
//! |---|---|
//! | to 1 MiB | consecutive pages of a chunk that has large blocks only |
//! | above | an *extent*: as many of the extents of 2 MiB as are needed, one after the other |
//!
//! A lock covers both. It is taken for a fraction of a microsecond, and whoever takes a block of this size
//! writes for several.
//!
//! - A chunk without blocks goes back to the arena. Free pages in other chunks stay resident until
//!   [`purge`] has seen them twice.
//! - The memory of an extent goes back to the system when its block is freed, so a new extent is zeros.

use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use crate::CHUNK;
use crate::arena::{self, Arena, Place};
use crate::list::List;
use crate::pages::{PAGE, PAGES, PageSet};

/// Largest block that lies in a chunk.
const IN_CHUNK_MAX: usize = CHUNK / 2;

/// Lists of chunks, by the length of their longest run of free pages.
const LISTS: usize = 32;
/// Lengths of a list.
const LIST_STEP: usize = PAGES / LISTS;

/// Chunks of the list in which only some have room that are looked at.
const LOOKS: usize = 8;

/// The pages of a chunk of large blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageBits {
    free: PageSet,
    /// Free pages that the last [`purge`] has seen, or that are not resident.
    seen: PageSet,
    /// Pages that are not resident.
    absent: PageSet,
    /// Whether the chunk has large blocks.
    is_used: bool,
    /// The list in which the chunk is.
    list: Option<u8>,
    /// Whether the extent of this number, which is elsewhere, is in use.
    pub(crate) is_extent_used: bool,
}

/// Chunks with free pages, and extents.
pub(crate) struct Large {
    open: [List; LISTS],
    /// From here on, no extent has ever been taken.
    extents_end: usize,
    /// The first extent that may be free.
    extents_from: usize,
    /// The chunk at which the next [`purge`] begins.
    purges_at: u32,
}

impl Large {
    pub(crate) fn new() -> Large {
        Large { open: [const { List::EMPTY }; LISTS], extents_end: 0, extents_from: 0, purges_at: 0 }
    }
}

/// Pages of a chunk: those that go back to the system, and those of blocks.
struct Idle {
    chunk: u32,
    idle: PageSet,
    used: PageSet,
}

/// Pages of a block.
fn pages_of(size: usize) -> usize {
    size.div_ceil(PAGE)
}

/// Bytes in large blocks, and bytes of the memory in which they lie.
pub(crate) fn counts() -> (usize, usize) {
    let Some(arena) = arena::present() else { return (0, 0) };
    (arena.header().large.used.load(Relaxed), arena.header().large.memory.load(Relaxed))
}

pub(crate) fn take(size: usize) -> Option<(NonNull<u8>, bool)> {
    let arena = arena::arena()?;
    let mut large = arena.header().large.places.lock();
    let block = if size > IN_CHUNK_MAX {
        (large.take_extents(arena, size)?, true)
    } else {
        (large.take_pages(arena, pages_of(size))?, false)
    };
    arena.header().large.used.fetch_add(pages_of(size) * PAGE, Relaxed);
    Some(block)
}

/// See [`crate::take_large_zeroed`].
pub(crate) fn take_zeroed(size: usize) -> Option<NonNull<u8>> {
    let arena = arena::arena()?;
    let block = arena.header().large.places.lock().take_extents(arena, size)?;
    arena.header().large.used.fetch_add(pages_of(size) * PAGE, Relaxed);
    Some(block)
}

/// # Safety
/// The block comes from [`take`] with this size, and nobody uses it any more.
pub(crate) unsafe fn put_back(block: NonNull<u8>, size: usize) {
    let arena = arena::arena().expect("the block came from there");
    arena.header().large.used.fetch_sub(pages_of(size) * PAGE, Relaxed);
    match arena.place_of(block.addr().get()) {
        Place::Chunk(chunk) => {
            let first = (block.addr().get() - arena.at(chunk as usize).addr().get()) / PAGE;
            arena.header().large.places.lock().put_back_pages(arena, chunk, first, pages_of(size));
        }
        Place::Extent(first) => {
            // Outside the lock, as it may take milliseconds; the extents are taken until then.
            arena.range().discard(block, pages_of(size) * PAGE);
            arena.header().large.places.lock().put_back_extents(arena, first, size.div_ceil(CHUNK));
        }
    }
}

/// See [`crate::purge_large`].
pub(crate) fn purge(chunks: usize) -> usize {
    let _background = arena::in_background();
    let Some(arena) = arena::present() else { return 0 };
    let places = &arena.header().large.places;
    let mut bytes = 0;
    for _ in 0..chunks.min(arena::chunks_end() as usize) {
        let Some(Idle { chunk, idle, used }) = places.lock().take_idle(arena) else { continue };
        // SAFETY: the pages lie in the chunk.
        let at = |first| unsafe { arena.at(chunk as usize).add(first * PAGE) };
        // Outside the lock: a call of the system may take a millisecond.
        for (first, len) in idle.runs() {
            arena.range().discard(at(first), len * PAGE);
            bytes += len * PAGE;
        }
        used.runs().for_each(|(first, len)| arena.range().map_again(at(first), len * PAGE));
        places.lock().put_back_idle(arena, chunk, &idle);
    }
    bytes
}

impl Large {
    /// The pages of a chunk. The borrow of `self` is that of the lock.
    fn bits<'a>(&'a mut self, arena: &'a Arena, chunk: u32) -> &'a mut PageBits {
        // SAFETY: the thread that has locked this is the only one that uses the table, and has one reference
        // at a time. Zeros are a value: a chunk that has no large blocks.
        unsafe { arena.pages(chunk).as_mut() }
    }

    fn take_pages(&mut self, arena: &Arena, len: usize) -> Option<NonNull<u8>> {
        let chunk = match self.find(arena, len) {
            Some(chunk) => chunk,
            None => self.add_chunk(arena)?,
        };
        let bits = self.bits(arena, chunk);
        let first = bits.free.find(len).expect("the chunk has room");
        bits.free.remove(first, len);
        bits.seen.remove(first, len);
        bits.absent.remove(first, len);
        self.file(arena, chunk);
        // SAFETY: the pages lie in the chunk.
        Some(unsafe { arena.at(chunk as usize).add(first * PAGE) })
    }

    /// A chunk with so many consecutive free pages: one whose longest run is hardly longer, if possible.
    fn find(&mut self, arena: &Arena, len: usize) -> Option<u32> {
        let list = len / LIST_STEP;
        let has_room = |chunk| {
            // SAFETY: as in `bits`; no other reference is alive.
            unsafe { arena.pages(chunk).as_ref() }.free.longest() >= len
        };
        let some = self.open[list].look_for(arena::links, LOOKS, has_room);
        some.or_else(|| self.open[list + 1..].iter().find_map(List::first))
    }

    fn add_chunk(&mut self, arena: &Arena) -> Option<u32> {
        let chunk = arena::take_for_large(arena)?;
        arena.header().large.memory.fetch_add(CHUNK, Relaxed);
        let bits = self.bits(arena, chunk);
        (bits.free, bits.seen, bits.absent) = (PageSet::ALL, PageSet::NONE, PageSet::NONE);
        (bits.is_used, bits.list) = (true, None);
        Some(chunk)
    }

    fn put_back_pages(&mut self, arena: &Arena, chunk: u32, first: usize, len: usize) {
        let bits = self.bits(arena, chunk);
        bits.free.add(first, len);
        if !bits.free.is_all() {
            return self.file(arena, chunk);
        }
        bits.is_used = false;
        self.close(arena, chunk);
        arena.header().large.memory.fetch_sub(CHUNK, Relaxed);
        arena.give_back_large(chunk);
    }

    /// Puts a chunk into the list where it belongs, after its free pages have changed.
    fn file(&mut self, arena: &Arena, chunk: u32) {
        let bits = self.bits(arena, chunk);
        let longest = bits.free.longest();
        let list = (longest > 0).then(|| ((longest / LIST_STEP).min(LISTS - 1)) as u8);
        if list == bits.list {
            return;
        }
        self.close(arena, chunk);
        self.bits(arena, chunk).list = list;
        if let Some(list) = list {
            self.open[list as usize].push(arena::links, chunk);
        }
    }

    /// Takes a chunk out of its list.
    fn close(&mut self, arena: &Arena, chunk: u32) {
        if let Some(list) = self.bits(arena, chunk).list.take() {
            self.open[list as usize].remove(arena::links, chunk);
        }
    }

    /// Takes the pages of the next chunk that are free, have been seen and are resident, so that no thread
    /// takes them meanwhile; and sees the other free pages.
    fn take_idle(&mut self, arena: &Arena) -> Option<Idle> {
        let end = arena::chunks_end();
        let chunk = if self.purges_at < end { self.purges_at } else { 0 };
        self.purges_at = chunk + 1;
        let bits = self.bits(arena, chunk);
        if chunk >= end || !bits.is_used {
            return None;
        }
        let idle = bits.free.and(&bits.seen).without(&bits.absent);
        let used = PageSet::ALL.without(&bits.free);
        bits.seen = bits.free;
        idle.runs().for_each(|(first, len)| bits.free.remove(first, len));
        self.file(arena, chunk);
        (idle != PageSet::NONE).then_some(Idle { chunk, idle, used })
    }

    /// Puts such pages back, which are not resident any more.
    fn put_back_idle(&mut self, arena: &Arena, chunk: u32, idle: &PageSet) {
        let bits = self.bits(arena, chunk);
        idle.runs().for_each(|(first, len)| bits.absent.add(first, len));
        for (first, len) in idle.runs() {
            // With the last of these the chunk may go back to the arena.
            self.put_back_pages(arena, chunk, first, len);
        }
    }

    fn take_extents(&mut self, arena: &Arena, size: usize) -> Option<NonNull<u8>> {
        let len = size.div_ceil(CHUNK);
        let first = self.find_extents(arena, len)?;
        let block = arena.extent(first);
        arena.range().make_accessible(block, len * CHUNK, crate::Pages::Small).ok()?;
        (first..first + len).for_each(|extent| arena.set_extent(extent, true));
        self.extents_end = self.extents_end.max(first + len);
        if first == self.extents_from {
            self.extents_from = first + len;
        }
        arena.header().large.memory.fetch_add(len * CHUNK, Relaxed);
        Some(block)
    }

    /// The first of `len` consecutive free extents.
    fn find_extents(&self, arena: &Arena, len: usize) -> Option<usize> {
        let (mut first, mut at) = (self.extents_from, self.extents_from);
        while at < first + len && at < self.extents_end {
            if arena.has_extent(at) {
                first = at + 1;
            }
            at += 1;
        }
        (first + len <= arena.len()).then_some(first)
    }

    fn put_back_extents(&mut self, arena: &Arena, first: usize, len: usize) {
        (first..first + len).for_each(|extent| arena.set_extent(extent, false));
        self.extents_from = self.extents_from.min(first);
        arena.header().large.memory.fetch_sub(len * CHUNK, Relaxed);
    }
}
