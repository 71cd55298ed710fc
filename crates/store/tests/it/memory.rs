//! The memory of the process, and checks that everything is freed.
//!
//! The allocator of this binary is the server's, around the system's. A test that compares amounts gives its
//! thread a counter of its own, since tests that run at the same time change the process' count.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use evenkeel_store::memory::{self, Counting};

#[global_allocator]
static MEMORY: Counting<System> = Counting(System);

thread_local! {
    static IS_REGISTERED: Cell<bool> = const { Cell::new(false) };
}

/// Bytes that this thread has taken, minus the bytes it has freed, since it first called this.
pub(crate) fn guard() -> isize {
    if !IS_REGISTERED.replace(true) {
        memory::register_thread();
    }
    memory::held_by_thread()
}

/// Block size: far above the allocations of all other tests that run at the same time.
const BLOCK: usize = 1 << 40;

/// An allocator for counting alone: its blocks need not exist.
struct Pretend;

// SAFETY: no caller uses the returned pointers.
unsafe impl GlobalAlloc for Pretend {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > 8 { std::ptr::null_mut() } else { std::ptr::dangling_mut() }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}

    unsafe fn realloc(&self, _: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: `alloc` of this type has no conditions.
        unsafe { self.alloc(Layout::from_size_align(size, layout.align()).expect("a valid layout")) }
    }
}

fn terabytes() -> usize {
    (memory::used() + BLOCK / 2) / BLOCK
}

#[test]
fn blocks_are_counted_across_threads_and_failures_are_not() {
    let pretend = Counting(Pretend);
    let layout =
        |blocks: usize, align| Layout::from_size_align(blocks * BLOCK, align).expect("below isize::MAX");
    // SAFETY: `Pretend` accepts any call.
    unsafe {
        pretend.alloc(layout(3, 8));
        assert_eq!(terabytes(), 3);
        pretend.realloc(std::ptr::dangling_mut(), layout(3, 8), 5 * BLOCK);
        assert_eq!(terabytes(), 5);
        assert!(pretend.alloc(layout(1, 16)).is_null());
        assert!(pretend.realloc(std::ptr::dangling_mut(), layout(5, 16), BLOCK).is_null());
        assert_eq!(terabytes(), 5);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                memory::register_thread();
                pretend.dealloc(std::ptr::dangling_mut(), layout(4, 8));
                pretend.alloc(layout(1, 8));
            });
        });
        assert_eq!(terabytes(), 2);
        assert!(memory::peak() >= 5 * BLOCK - BLOCK / 2);
        memory::reset_peak();
        assert!(memory::peak() < 3 * BLOCK);
        pretend.dealloc(std::ptr::dangling_mut(), layout(2, 8));
    }
    assert_eq!(terabytes(), 0);
}
