//! A vector in a block of the store's memory. Like `Vec`, whose memory is the general allocator's.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::memory::blocks;

/// See the module's documentation. Items are aligned to at most eight bytes.
pub struct BlockVec<T> {
    first: NonNull<T>,
    len: usize,
    /// Zero: there is no block.
    capacity: usize,
    items: PhantomData<T>,
}

/// Bytes.
pub type Bytes = BlockVec<u8>;

// SAFETY: as for `Vec`: it owns its items.
unsafe impl<T: Send> Send for BlockVec<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for BlockVec<T> {}

impl<T> BlockVec<T> {
    const FITS: () = assert!(align_of::<T>() <= 8 && size_of::<T>() > 0);

    /// A vector with a block for `capacity` items, without any.
    pub fn with_capacity(capacity: usize) -> BlockVec<T> {
        let () = BlockVec::<T>::FITS;
        let first = match capacity {
            0 => NonNull::dangling(),
            _ => blocks::take(blocks::Kind::Node, capacity * size_of::<T>()).cast(),
        };
        BlockVec { first, len: 0, capacity, items: PhantomData }
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Makes room for `more` items, and for no more than that, if there is less.
    pub fn reserve_exact(&mut self, more: usize) {
        if self.len + more > self.capacity {
            let mut larger = BlockVec::with_capacity(self.len + more);
            // SAFETY: the new block has room for the items, which move there and are not dropped here.
            unsafe { larger.first.copy_from_nonoverlapping(self.first, self.len) };
            larger.len = std::mem::take(&mut self.len);
            *self = larger;
        }
    }

    pub fn push(&mut self, item: T) {
        if self.len == self.capacity {
            self.reserve_exact((self.capacity).max(4));
        }
        // SAFETY: there is room behind the last item.
        unsafe { self.first.add(self.len).write(item) };
        self.len += 1;
    }
}

impl<T: Clone> BlockVec<T> {
    /// Appends clones of `item` until there are `len` items, of which there are no more now.
    pub fn grow(&mut self, len: usize, item: T) {
        self.reserve_exact(len - self.len);
        while self.len < len {
            self.push(item.clone());
        }
    }
}

impl Bytes {
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.reserve_exact(bytes.len());
        // SAFETY: there is room behind the last byte, and the argument is not in this block.
        unsafe {
            self.first.add(self.len).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len())
        };
        self.len += bytes.len();
    }

    /// `len` bytes of this value.
    pub fn of(byte: u8, len: usize) -> Bytes {
        let mut bytes = Bytes::with_capacity(len);
        bytes.pad(len, byte);
        bytes
    }

    /// Appends bytes of this value until there are `len` bytes, if there are fewer.
    pub fn pad(&mut self, len: usize, byte: u8) {
        let more = len.saturating_sub(self.len);
        self.reserve_exact(more);
        // SAFETY: there is room behind the last byte.
        unsafe { self.first.add(self.len).write_bytes(byte, more) };
        self.len += more;
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Bytes {
        let mut copy = Bytes::with_capacity(bytes.len());
        copy.extend_from_slice(bytes);
        copy
    }
}

impl<T> FromIterator<T> for BlockVec<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> BlockVec<T> {
        let items = items.into_iter();
        let mut all = BlockVec::with_capacity(items.size_hint().0);
        items.for_each(|item| all.push(item));
        all
    }
}

impl<T: Clone> Clone for BlockVec<T> {
    fn clone(&self) -> BlockVec<T> {
        self.iter().cloned().collect()
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for BlockVec<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T> Deref for BlockVec<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: so many items lie there, in this vector's own block.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for BlockVec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the vector is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl<T> Drop for BlockVec<T> {
    fn drop(&mut self) {
        // SAFETY: the items are dropped once, and the block came from `blocks::take` with this size.
        unsafe {
            std::ptr::drop_in_place(&raw mut **self);
            if self.capacity > 0 {
                blocks::put_back(self.first.cast(), self.capacity * size_of::<T>());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evenkeel_testkit::Random;

    use super::*;

    #[test]
    fn random_operations_match_a_plain_vector() {
        let mut random = Random::new(11);
        for _ in 0..if cfg!(miri) { 2 } else { 200 } {
            let (mut bytes, mut plain) = (Bytes::with_capacity(random.below(10)), Vec::new());
            for _ in 0..30 {
                let byte = random.below(256) as u8;
                match random.below(5) {
                    0 => (bytes.push(byte), plain.push(byte)).0,
                    1 => {
                        let more = vec![byte; random.below(30_000)];
                        bytes.extend_from_slice(&more);
                        plain.extend(more);
                    }
                    2 => {
                        let len = plain.len() + random.below(1_000);
                        bytes.pad(len, byte);
                        plain.resize(len, byte);
                    }
                    3 => bytes.reserve_exact(random.below(100)),
                    _ => bytes = bytes.clone(),
                }
                assert!(*bytes == *plain && bytes.capacity() >= plain.len());
            }
        }
    }

    #[test]
    fn items_are_dropped_once() {
        let item = Arc::new(());
        let mut all: BlockVec<Arc<()>> = (0..5).map(|_| item.clone()).collect();
        all.grow(9, item.clone());
        let copy = all.clone();
        assert_eq!(Arc::strong_count(&item), 19);
        drop(all);
        assert_eq!(Arc::strong_count(&item), 10);
        drop(copy);
        assert_eq!(Arc::strong_count(&item), 1);
    }
}
