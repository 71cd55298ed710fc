//! Passing the memory, with all blocks, to another process of the same program.
//!
//! 1. A process that may pass its memory says so before its first block ([`share`]): the range is then that
//!    of a memory file.
//! 2. Another process gets the file and the place of the range ([`pass`]) and maps it ([`attach`]). It reads
//!    and writes nothing yet, and has no block of its own.
//! 3. The first process stops all threads that take, use or free blocks ([`suspend`]).
//! 4. The other process takes over ([`Attached::take_over`]): it has all blocks now, and goes on with the
//!    heaps of the first, which ends without touching the memory.
//!
//! Until step 4 the first process can go on as if nothing had been: the memory is as it left it. A process
//! that is killed takes nothing along, since the file lives as long as one of them.
//!
//! **Both programs must agree about every byte**: about the allocator's tables, and about what their users
//! keep in blocks. The users compare a hash of their sources before step 2.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;

use crate::arena;
use crate::heap;

/// The place of a range, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The first address.
    pub address: u64,
    /// Number of chunks for which it has room; all else follows from it.
    pub chunks: u64,
}

/// Makes the memory of this process one that can be passed. Counts before the first block only; if the
/// system refuses, the memory is private.
pub fn share() {
    arena::share();
}

/// Returns true if a memory file can have huge pages here (Linux 6.1). Takes some milliseconds.
pub fn can_share() -> bool {
    crate::range::can_collapse_shared()
}

/// The memory file and the place of the range. `None`: the memory is private, or there is none yet.
pub fn pass() -> Option<(BorrowedFd<'static>, Passed)> {
    let arena = arena::present()?;
    let file = arena.range().file()?;
    let address = arena.range().start.addr().get() as u64;
    Some((file, Passed { address, chunks: arena.len() as u64 }))
}

/// The memory of another process, mapped and not taken over.
#[derive(Debug)]
pub struct Attached(());

/// Maps the memory of another process.
///
/// # Errors
/// Addresses are in use here, the file is shorter than the range, or this process has taken blocks already.
pub fn attach(file: OwnedFd, passed: Passed) -> io::Result<Attached> {
    arena::attach(file, passed.address as usize, passed.chunks as usize)?;
    Ok(Attached(()))
}

impl Attached {
    /// Maps all pages that are resident now, so that no thread waits for that later. Other than taking over,
    /// it may take as long as it likes: a second for gigabytes in small pages.
    pub fn map_resident(&self) {
        arena::map_resident();
    }

    /// Takes all blocks over. From now on, this process may take, use and free blocks.
    ///
    /// # Safety
    /// Both programs agree about the layout of the allocator's tables. No thread of the other process uses
    /// the memory any more.
    pub unsafe fn take_over(self) {
        arena::set_own(true);
        let arena = arena::present().expect("it was attached");
        arena.header().threads.owner.store(std::process::id(), SeqCst);
        heap::leave_all(arena);
    }
}

/// This process takes and frees no block until this is dropped; a thread that tries to take one gets none.
#[derive(Debug)]
pub struct Suspended(());

/// Stops work of this process on memory without blocks and the clean-up of threads that end, and waits for
/// the end of either: some milliseconds. The caller sees to it that no thread takes, uses or frees a block.
pub fn suspend() -> Suspended {
    arena::set_own(false);
    Suspended(())
}

impl Suspended {
    /// Returns true if another process has taken the memory over. This process must not go on then, even if
    /// the other has ended: it may have been killed in the course of a change.
    pub fn is_taken(&self) -> bool {
        arena::owner() != Some(std::process::id())
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        arena::set_own(true);
        heap::leave_late();
    }
}
