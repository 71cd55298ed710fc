//! Who wants to hear about the writes to a slot: those who watch keys of it, and those who wait for some.
//!
//! They hang on the slot by one pointer beside the lock, so a write finds out with one load of a cache line that it has
//! at hand anyway that there is nobody, which is so nearly always. Then the number of the slot's last record in the log
//! stands in the same place ([`crate::journal`]), made odd, which no pointer is; otherwise it is in what hangs there.

use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::wait::Waiters;
use crate::watch::Watchers;

const _: () = assert!(usize::BITS == 64, "a number of the log takes the place of a pointer");

/// See the module's text.
#[derive(Default)]
pub(crate) struct SlotSubscribers {
    pub(crate) watchers: Watchers,
    pub(crate) waiters: Waiters,
    logged: u64,
}

// The caller holds the slot's lock for all of these.
impl SlotSubscribers {
    /// Calls `f` with the slot's audience, which may be empty before and afterwards.
    pub(crate) fn with<R>(slot: &AtomicPtr<SlotSubscribers>, f: impl FnOnce(&mut SlotSubscribers) -> R) -> R {
        let logged = SlotSubscribers::logged(slot);
        let mut subscribers = SlotSubscribers::take(slot).unwrap_or_default();
        subscribers.logged = logged;
        let result = f(&mut subscribers);
        match subscribers.is_empty() {
            true => SlotSubscribers::note_logged(slot, logged),
            false => SlotSubscribers::put(slot, Some(subscribers)),
        }
        result
    }

    /// The number of the slot's last record in the log; zero if there is none, or none since everything was held.
    #[inline]
    pub(crate) fn logged(slot: &AtomicPtr<SlotSubscribers>) -> u64 {
        let place = slot.load(Relaxed);
        if place.addr() % 2 == 1 {
            return place.addr() as u64 / 2;
        }
        // SAFETY: as in `take`; whoever holds the lock is alone with it.
        unsafe { place.as_ref() }.map_or(0, |subscribers| subscribers.logged)
    }

    /// Notes such a number.
    #[inline]
    pub(crate) fn note_logged(slot: &AtomicPtr<SlotSubscribers>, number: u64) {
        if !SlotSubscribers::is_there(slot) {
            return slot.store(std::ptr::without_provenance_mut(number as usize * 2 + 1), Relaxed);
        }
        // SAFETY: as above.
        unsafe { (*slot.load(Relaxed)).logged = number }
    }

    /// The same for who has nothing to tell when there is nobody: `None` then.
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

    /// The number of the last record is forgotten where nobody is put: for who holds everything.
    pub(crate) fn put(slot: &AtomicPtr<SlotSubscribers>, subscribers: Option<Box<SlotSubscribers>>) {
        slot.store(subscribers.map_or(std::ptr::null_mut(), Box::into_raw), Relaxed);
    }

    fn is_empty(&self) -> bool {
        self.watchers.len() == 0 && self.waiters.is_empty()
    }
}
