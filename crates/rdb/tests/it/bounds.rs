//! Memory and time depend on a payload's size, not on its announced lengths.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use evenkeel_rdb::{Decoder, Error, Object, Slice, Source};

use crate::broken;

/// Counts the bytes that each thread has allocated, and their peak.
struct Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: all calls are forwarded to the system's allocator; the counters are thread-local and allocate
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are the same as the system allocator's conditions.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(change: isize) {
    NOW.with(|now| {
        now.set(now.get() + change);
        MOST.with(|most| most.set(most.get().max(now.get())));
    });
}

/// Returns the peak of allocated bytes while `work` ran.
pub(crate) fn peak(work: impl FnOnce()) -> usize {
    let before = NOW.with(Cell::get);
    MOST.with(|most| most.set(before));
    work();
    (MOST.with(Cell::get) - before) as usize
}

/// Reads the value and drops it.
fn drain(body: &[u8], version: u16) -> Result<(), Error> {
    let mut decoder = Decoder::new(Slice::new(body), version);
    drain_object(decoder.object()?)?;
    decoder.finish()
}

fn drain_object<S: Source>(object: Object<'_, S>) -> Result<(), Error> {
    match object {
        Object::String(_) => {}
        Object::Long(mut string) => while string.next()?.is_some() {},
        Object::List(mut elements) | Object::Set(mut elements) => {
            assert!(elements.expected() < 1 << 20);
            while elements.next()?.is_some() {}
        }
        Object::SortedSet(mut members) => while members.next()?.is_some() {},
        Object::Hash(mut fields) => while fields.next()?.is_some() {},
        Object::Array(mut elements) => while elements.next()?.is_some() {},
        Object::Stream(stream) => {
            let (_, mut groups) = stream.finish()?;
            while groups.next()?.is_some() {}
        }
    }
    Ok(())
}

/// LZF can expand a byte to 88. The detection of duplicates takes 16 to 56 bytes for an element of two bytes
/// or more.
#[test]
fn memory_is_bounded_by_the_input() {
    broken::with_one_byte_changed(|golden, body| {
        let peak = peak(|| _ = drain(body, golden.version()));
        assert!(peak < 2_000 + 120 * body.len(), "{}: {peak} bytes for {}", golden.name, body.len());
    });
}

#[test]
fn announced_counts_and_lengths_allocate_nothing() {
    for kind in 0..=28 {
        for announced in [
            &b"\x81\x7f\xff\xff\xff\xff\xff\xff\xff"[..],
            b"\x80\xff\xff\xff\xff",
            b"\xc3\x04\x80\xff\xff\xff\xff",
        ] {
            let body = [&[kind], announced, &[b'x'; 40]].concat();
            let peak = peak(|| _ = drain(&body, 12));
            assert!(peak < 2_000, "type {kind}: {peak} bytes");
        }
    }
}

/// With such sizes quadratic work takes minutes, linear work a fraction of a second.
#[test]
fn time_is_linear_in_the_input() {
    const ELEMENTS: usize = 300_000;
    let start = Instant::now();
    let length = |count: usize| [&[0x80][..], &(count as u32).to_be_bytes()].concat();
    let short = |number: usize| [&[0xc2][..], &(number as u32).to_le_bytes()].concat();
    let numbers: Vec<u8> = (0..ELEMENTS).flat_map(short).collect();
    let set = [&[2][..], &length(ELEMENTS + 1), &numbers, &short(0)].concat();
    assert!(drain(&set, 10).is_err(), "the last one is the first again");
    let mut nodes = [&[18][..], &length(ELEMENTS)].concat();
    (0..ELEMENTS).for_each(|_| nodes.extend_from_slice(b"\x02\x07\x07\0\0\0\0\0\xff")); // empty listpacks
    assert!(drain(&nodes, 10).is_err(), "nothing in all its nodes");
    drain(&many_pending(ELEMENTS), 10).expect("nothing is wrong with it");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

/// A stream without entries; its only group has this number of pending entries, and as many consumers.
fn many_pending(count: usize) -> Vec<u8> {
    let length = [&[0x80][..], &(count as u32).to_be_bytes()].concat();
    let id = |index: usize| [&[0; 4][..], &(index as u32 + 1).to_be_bytes(), &[0; 8]].concat();
    let mut body = [&[15, 0, 0, 0, 0, 1, 1, b'g', 0, 0][..], &length].concat();
    (0..count)
        .for_each(|index| body.extend_from_slice(&[&id(index)[..], &[1, 0, 0, 0, 0, 0, 0, 0, 1]].concat()));
    body.extend_from_slice(&length);
    for index in (0..count).rev() {
        let name = [&[0xc2][..], &(index as u32).to_le_bytes()].concat();
        body.extend_from_slice(&[&name[..], &[1, 0, 0, 0, 0, 0, 0, 0, 1], &id(index)].concat());
    }
    body
}
