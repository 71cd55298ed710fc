//! A reference-counted value that its owner may change in place while it is not shared.
//!
//! Like `Arc`, without weak references. So the test for sharing is a single load, where `Arc::get_mut` needs
//! an atomic exchange; each write makes the test at each level of a tree.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::*};

use crate::memory::blocks;

struct Inner<T> {
    refs: AtomicU32,
    value: T,
}

/// See the module's documentation. Cloning shares the value.
pub(crate) struct Shared<T>(NonNull<Inner<T>>);

// SAFETY: as for `Arc`: the count is atomic, and only the holder of the only reference changes a value,
// exclusively.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn new(value: T) -> Shared<T> {
        const { assert!(align_of::<Inner<T>>() <= 8, "blocks are aligned to eight") };
        let inner = blocks::take(blocks::Kind::Node, size_of::<Inner<T>>()).cast();
        // SAFETY: the block is as long as this.
        unsafe { inner.write(Inner { refs: AtomicU32::new(1), value }) };
        Shared(inner)
    }

    #[inline]
    fn inner(&self) -> &Inner<T> {
        // SAFETY: the block lives as long as a reference to it.
        unsafe { self.0.as_ref() }
    }

    /// Returns true if this is the only reference to the value.
    pub(crate) fn is_own(&self) -> bool {
        self.refs() == 1
    }

    /// Number of references to the value.
    pub(crate) fn refs(&self) -> u32 {
        self.inner().refs.load(Acquire)
    }

    /// Returns true if both refer to the same value.
    pub(crate) fn is_same(&self, other: &Shared<T>) -> bool {
        self.0 == other.0
    }

    pub(crate) fn into_raw(self) -> NonNull<u8> {
        let raw = self.0.cast();
        std::mem::forget(self);
        raw
    }

    /// # Safety
    /// `raw` comes from `into_raw` of the same type, and stands for a reference.
    pub(crate) unsafe fn from_raw(raw: NonNull<u8>) -> Shared<T> {
        Shared(raw.cast())
    }
}

impl<T> Shared<T> {
    /// The value, for changes, if this is the only reference.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        if !self.is_own() {
            return None;
        }
        // SAFETY: as in `own`.
        Some(unsafe { &mut self.0.as_mut().value })
    }
}

impl<T: Clone> Shared<T> {
    /// The value, for changes; a shared value is copied first.
    #[inline]
    pub(crate) fn own(&mut self) -> &mut T {
        if !self.is_own() {
            *self = Shared::new(T::clone(self));
        }
        // SAFETY: this is the only reference, and it is borrowed exclusively, so no other can come into
        // being.
        unsafe { &mut self.0.as_mut().value }
    }
}

impl<T: Clone> Shared<T> {
    /// The value without the reference; a copy if it is shared.
    pub(crate) fn into_value(self) -> T {
        if !self.is_own() {
            return T::clone(&self);
        }
        let inner = self.0;
        std::mem::forget(self);
        // SAFETY: the block was taken in `new`, and this was the last reference.
        unsafe {
            let value = inner.read().value;
            blocks::put_back(inner.cast(), size_of::<Inner<T>>());
            value
        }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&**self, f)
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        let refs = self.inner().refs.fetch_add(1, Relaxed);
        assert!(refs < u32::MAX / 2, "fewer clones than would overflow their count");
        Shared(self.0)
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        if self.inner().refs.fetch_sub(1, Release) == 1 {
            // Other threads' accesses through their clones, before they dropped them, come before the value
            // is dropped.
            self.inner().refs.load(Acquire);
            // SAFETY: the block was taken in `new`, and the last reference is gone.
            unsafe {
                self.0.drop_in_place();
                blocks::put_back(self.0.cast(), size_of::<Inner<T>>());
            }
        }
    }
}
