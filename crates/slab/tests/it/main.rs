//! Tests of the allocator as a whole; `EVENKEEL_SEED` repeats a random test.

mod compaction;
mod large;
mod model;
mod remote;
mod sync;
mod threads;
mod transfer;

/// The seed of a random test, printed so that a failure can be repeated.
fn seed(test: &str) -> u64 {
    let given = std::env::var("EVENKEEL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_nanos() as u64)
    });
    println!("{test}: EVENKEEL_SEED={seed}");
    seed
}

/// Held by each test that takes blocks: the statistics are for the process.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs a test on a thread of its own, whose heap no other test uses meanwhile.
fn alone_on_a_thread(test: impl FnOnce() + Send + 'static) {
    let _alone = alone();
    std::thread::spawn(test).join().expect("it holds");
}

/// A block; its bytes are made from its number.
struct Block {
    at: std::ptr::NonNull<u8>,
    size: usize,
    number: u64,
}

// SAFETY: a block may be used and freed by any thread.
unsafe impl Send for Block {}

impl Block {
    fn take(size: usize, number: u64) -> Block {
        let at = evenkeel_slab::take(evenkeel_slab::Kind::Entry, size).expect("there is memory");
        assert!(at.addr().get().is_multiple_of(8), "aligned to eight bytes");
        let block = Block { at, size, number };
        // SAFETY: the block is this long, and new.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), size) };
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = block.byte(at));
        block
    }

    fn byte(&self, at: usize) -> u8 {
        (self.number.wrapping_mul(31).wrapping_add(at as u64) % 251) as u8
    }

    /// Moves the bytes to another block, and frees this one.
    fn relocate(&mut self) {
        let to = evenkeel_slab::take(evenkeel_slab::Kind::Entry, self.size).expect("there is memory");
        // SAFETY: both blocks are this long, and differ; the old one came from `take`, and ends here.
        unsafe {
            to.copy_from_nonoverlapping(self.at, self.size);
            evenkeel_slab::put_back(self.at);
        }
        self.at = to;
    }

    /// Checks the bytes, and frees the block.
    fn put_back(self) {
        // SAFETY: the block is this long, and in use.
        let bytes = unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.size) };
        assert!(
            bytes.iter().enumerate().all(|(at, byte)| *byte == self.byte(at)),
            "nobody has written to it"
        );
        // SAFETY: the block came from `take`, and ends here.
        unsafe { evenkeel_slab::put_back(self.at) };
    }
}
