//! Who wants to hear about the writes to a slot: those who watch keys of it, and those who wait for some.
//!
//! They hang on the slot by one pointer beside the lock, so a write finds out with one load of a cache line that it has
//! at hand anyway that there is nobody, which is so nearly always.

use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::wait::Waiters;
use crate::watch::Watchers;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Audience {
    pub(crate) watchers: Watchers,
    pub(crate) waiters: Waiters,
}

// The caller holds the slot's lock for all of these.
impl Audience {
    /// Calls `f` with the slot's audience, which may be empty before and afterwards.
    pub(crate) fn with<R>(slot: &AtomicPtr<Audience>, f: impl FnOnce(&mut Audience) -> R) -> R {
        let mut audience = Audience::take(slot).unwrap_or_default();
        let result = f(&mut audience);
        Audience::put(slot, (!audience.is_empty()).then_some(audience));
        result
    }

    /// The same for who has nothing to tell when there is nobody: `None` then.
    pub(crate) fn if_any<R>(slot: &AtomicPtr<Audience>, f: impl FnOnce(&mut Audience) -> R) -> Option<R> {
        Audience::is_there(slot).then(|| Audience::with(slot, f))
    }

    #[inline]
    pub(crate) fn is_there(slot: &AtomicPtr<Audience>) -> bool {
        !slot.load(Relaxed).is_null()
    }

    pub(crate) fn take(slot: &AtomicPtr<Audience>) -> Option<Box<Audience>> {
        let audience = slot.swap(std::ptr::null_mut(), Relaxed);
        // SAFETY: the pointer is null or came from `Box::into_raw` in `put`, and was just taken out.
        (!audience.is_null()).then(|| unsafe { Box::from_raw(audience) })
    }

    pub(crate) fn put(slot: &AtomicPtr<Audience>, audience: Option<Box<Audience>>) {
        slot.store(audience.map_or(std::ptr::null_mut(), Box::into_raw), Relaxed);
    }

    fn is_empty(&self) -> bool {
        self.watchers.len() == 0 && self.waiters.is_empty()
    }
}
