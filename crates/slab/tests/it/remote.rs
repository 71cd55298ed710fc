//! The list of blocks that other threads free, in every order of the threads: the file is compiled against
//! loom.

#[path = "../../src/remote.rs"]
#[allow(dead_code)]
mod model;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering::*};
use loom::thread;

use model::{NONE, Remote};

/// Blocks, each with the place of the next: loom reports an access that is not ordered with a write.
struct Run {
    remote: Remote,
    blocks: [UnsafeCell<u16>; 3],
    /// Threads that have to give notice.
    notices: AtomicUsize,
}

impl Run {
    fn new() -> Arc<Run> {
        let blocks = std::array::from_fn(|_| UnsafeCell::new(77));
        Arc::new(Run { remote: Remote::new(), blocks, notices: AtomicUsize::new(0) })
    }

    fn put_back(&self, block: u16) {
        // SAFETY: the block is the caller's until it is in the list.
        let link = |next| self.blocks[block as usize].with_mut(|it| unsafe { *it = next });
        if self.remote.push(block, link) {
            self.notices.fetch_add(1, Release);
        }
    }

    /// Takes the list and counts its blocks.
    fn take(&self) -> usize {
        let list = self.remote.take();
        let (mut at, mut len) = (list.first, 0);
        while at != NONE {
            // SAFETY: the list is the caller's.
            at = self.blocks[at as usize].with(|it| unsafe { *it });
            len += 1;
        }
        assert_eq!(len, list.len as usize, "as many blocks as the word says");
        len
    }
}

#[test]
fn no_freed_block_is_lost() {
    loom::model(|| {
        let run = Run::new();
        let others = [0, 1].map(|block| {
            let run = run.clone();
            thread::spawn(move || run.put_back(block))
        });
        thread::yield_now(); // a relaxed load alone lets nobody go first
        let mut taken = run.take();
        for other in others {
            other.join().expect("it holds");
        }
        taken += run.take();
        assert_eq!(taken, 2);
    });
}

/// An owner that has asked gets notice exactly once, or has seen that it need not ask.
#[test]
fn an_owner_that_asks_gets_notice() {
    loom::model(|| {
        let run = Run::new();
        let others = [0, 1].map(|block| {
            let run = run.clone();
            thread::spawn(move || run.put_back(block))
        });
        thread::yield_now();
        let has_asked = run.remote.ask();
        for other in others {
            other.join().expect("it holds");
        }
        assert_eq!(run.notices.load(Acquire), usize::from(has_asked));
        assert_eq!(run.take(), 2);
    });
}

/// A request is taken back, or notice comes: never both.
#[test]
fn a_request_is_taken_back_or_notice_comes() {
    loom::model(|| {
        let run = Run::new();
        assert!(run.remote.ask());
        let other = {
            let run = run.clone();
            thread::spawn(move || run.put_back(2))
        };
        thread::yield_now();
        let is_back = run.remote.retract();
        other.join().expect("it holds");
        assert_eq!(run.notices.load(Acquire), usize::from(!is_back));
        assert_eq!(run.take(), 1);
    });
}
