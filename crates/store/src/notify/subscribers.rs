//! Subscribers of a slot: clients that watch its keys or wait for them.
//!
//! A slot refers to them by a pointer beside the lock. Nearly always there are none, and a write finds that
//! out with a load from a cache line that it has at hand anyway. The same word then holds the number of the
//! slot's last journal record ([`crate::journal`]), made odd, which no pointer is. With subscribers, the
//! number is in [`SlotSubscribers`].

use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::notify::wait::Waiters;
use crate::notify::watch::Watchers;

const _: () = assert!(usize::BITS == 64, "a number of the log takes the place of a pointer");

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct SlotSubscribers {
    pub(crate) watchers: Watchers,
    pub(crate) waiters: Waiters,
    logged: u64,
}

// The caller holds the slot's lock for all of these.
impl SlotSubscribers {
    /// Calls `f` with the slot's subscribers, which may be empty before and afterwards.
    pub(crate) fn with<R>(slot: &AtomicPtr<SlotSubscribers>, f: impl FnOnce(&mut SlotSubscribers) -> R) -> R {
        let logged = SlotSubscribers::logged(slot);
        let mut subscribers = SlotSubscribers::take(slot).unwrap_or_default();
        subscribers.logged = logged;
        let result = f(&mut subscribers);
        match subscribers.is_empty() {
            true => SlotSubscribers::set_logged(slot, logged),
            false => SlotSubscribers::put(slot, Some(subscribers)),
        }
        result
    }

    /// The number of the slot's last record; zero if there is none, or none since everything was held.
    #[inline]
    pub(crate) fn logged(slot: &AtomicPtr<SlotSubscribers>) -> u64 {
        let place = slot.load(Relaxed);
        if place.addr() % 2 == 1 {
            return place.addr() as u64 / 2;
        }
        // SAFETY: as in `take`; the holder of the lock has exclusive access.
        unsafe { place.as_ref() }.map_or(0, |subscribers| subscribers.logged)
    }

    /// Sets the number of the slot's last record.
    #[inline]
    pub(crate) fn set_logged(slot: &AtomicPtr<SlotSubscribers>, number: u64) {
        if !SlotSubscribers::is_there(slot) {
            return slot.store(std::ptr::without_provenance_mut(number as usize * 2 + 1), Relaxed);
        }
        // SAFETY: as above.
        unsafe { (*slot.load(Relaxed)).logged = number }
    }

    /// Like [`SlotSubscribers::with`], but returns `None` if there are no subscribers.
    pub(crate) fn if_any<R>(
        slot: &AtomicPtr<SlotSubscribers>,
        f: impl FnOnce(&mut SlotSubscribers) -> R,
    ) -> Option<R> {
        SlotSubscribers::is_there(slot).then(|| SlotSubscribers::with(slot, f))
    }

    #[inline]
    pub(crate) fn is_there(slot: &AtomicPtr<SlotSubscribers>) -> bool {
        let place = slot.load(Relaxed).addr();
        place != 0 && place.is_multiple_of(2)
    }

    pub(crate) fn take(slot: &AtomicPtr<SlotSubscribers>) -> Option<Box<SlotSubscribers>> {
        // SAFETY: such a pointer came from `Box::into_raw` in `put`, and is taken out here.
        SlotSubscribers::is_there(slot)
            .then(|| unsafe { Box::from_raw(slot.swap(std::ptr::null_mut(), Relaxed)) })
    }

    /// Without subscribers, this forgets the number of the last record: only for a caller that holds
    /// everything.
    pub(crate) fn put(slot: &AtomicPtr<SlotSubscribers>, subscribers: Option<Box<SlotSubscribers>>) {
        slot.store(subscribers.map_or(std::ptr::null_mut(), Box::into_raw), Relaxed);
    }

    fn is_empty(&self) -> bool {
        self.watchers.len() == 0 && self.waiters.is_empty()
    }
}
