//! Tables that were replaced while a prefetch on another thread may be reading them. The thread that replaced
//! a table keeps it until all other threads have been outside the gate since.

use std::collections::VecDeque;
use std::collections::vec_deque::Drain;
use std::ptr::NonNull;

use crate::memory::blocks;

/// Bytes of retired tables above which each batch tries to free them.
const MANY_BYTES: usize = 256 * 1024;

/// Memory to be freed once no prefetch can be reading it.
#[derive(Debug)]
pub(crate) struct Retired {
    pub(crate) address: usize,
    /// Bytes.
    pub(crate) size: usize,
}

impl Retired {
    /// # Safety
    /// No other thread reads the memory any more.
    pub(crate) unsafe fn free(self) {
        let block = NonNull::new(self.address as *mut u8).expect("a block has an address");
        // SAFETY: address and size are those of the block; the caller promises that it is the last user.
        unsafe { blocks::put_back(block, self.size) }
    }
}

/// The tables that a thread has replaced and not freed yet.
#[derive(Default)]
pub(crate) struct RetiredTables {
    tables: VecDeque<Retired>,
    bytes: usize,
    /// This many of `tables`, from the front, were replaced before the glance.
    glanced: usize,
    glance: Vec<u64>,
}

impl RetiredTables {
    pub(crate) fn add(&mut self, retired: Option<Retired>) {
        if let Some(retired) = retired {
            self.bytes += retired.size;
            self.tables.push_back(retired);
        }
    }

    /// Bytes of all tables.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if enough memory is retired that trying to free it is worth the cost.
    #[inline]
    pub(crate) fn are_many(&self) -> bool {
        self.bytes > MANY_BYTES
    }

    /// Takes out all tables, without freeing them.
    pub(crate) fn take(&mut self) -> Drain<'_, Retired> {
        self.tables.drain(..)
    }

    /// Frees the tables retired before the last glance if `all_passed` returns true for it, and takes a new
    /// glance for the rest with `glance`.
    ///
    /// # Safety
    /// `all_passed` returns true only if every other thread has been outside the gate since the glance. This
    /// thread keeps no address of a table.
    pub(crate) unsafe fn free(
        &mut self,
        all_passed: impl FnOnce(&[u64]) -> bool,
        glance: impl FnOnce(&mut Vec<u64>),
    ) {
        if self.tables.is_empty() {
            return;
        }
        if self.glanced > 0 && all_passed(&self.glance) {
            for retired in self.tables.drain(..self.glanced) {
                self.bytes -= retired.size;
                // SAFETY: every other thread has been outside the gate since this memory was replaced, so
                // none can have kept its address, and neither has this one, by the caller's promise.
                unsafe { retired.free() }
            }
            self.glanced = 0;
        }
        if self.glanced == 0 && !self.tables.is_empty() {
            glance(&mut self.glance);
            self.glanced = self.tables.len();
        }
    }
}
