//! A seat: what one thread brings along to use the keyspace. Its time, its randomness, its counters, its retired tables.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::*};

use parking_lot::Mutex;

use crate::Millis;
use crate::collection::Cut;
use crate::events::Event;
use crate::gate::Gate;
use crate::heap_value::HeapValue;
use crate::journal::JournalBuffer;
use crate::key::Place;
use crate::lazy_free::{Garbage, LazyFree};
use crate::segment::Retired;
use crate::snapshot::Kept;
use crate::wait::Woken;

/// How reads leave their mark on an entry, for eviction and OBJECT IDLETIME or FREQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Seconds, 24 bits.
    Lru,
    /// Minutes in 16 bits, and a logarithmic counter in 8.
    Lfu { log_factor: u32, decay_minutes: u32 },
}

/// Values of more blocks than this are given to [`LazyFree`]: freeing a block takes about 0.3 us.
const FREE_BLOCKS_MAX: usize = 64;

/// Bytes of replaced tables that may wait to be freed before each batch tries.
const RETIRED_BYTES: usize = 256 * 1024;

/// See the module's text. Made by [`crate::Keyspace::ctx`].
pub struct ThreadContext {
    /// The time by which keys are expired. Whoever drives the seat keeps it current.
    pub now_ms: Millis,
    /// The time at which keys are used when `now_ms` is before it: for who runs again what a log tells, which is to find
    /// nothing expired.
    pub played_ms: Millis,
    pub access: Access,
    /// CLIENT NO-TOUCH: reads leave no mark.
    pub no_touch: bool,
    /// DEBUG SET-ACTIVE-EXPIRE and paused writes: expired keys are hidden but not removed.
    pub keep_expired: bool,
    /// The same for all seats at once, as a replica has it; see [`crate::SlotGuard::hide_expired`].
    pub(crate) hides_expired: bool,
    /// What it does is not logged: it does again what somebody else's log tells.
    pub is_mute: bool,
    /// What happens to keys with it is told to nobody who wants to hear such, or waits for it: it brings back what was there before.
    pub is_unheard: bool,
    /// There is no memory for writes that need some. Whoever drives the seat keeps it current, for who cannot ask it.
    pub is_short_of_memory: bool,
    pub tally: Arc<Tally>,
    /// A clock for `lock_wait`.
    pub ticks: fn() -> u64,
    /// Ticks spent waiting for slots that other threads held. Whoever drives the seat reads and resets it.
    pub lock_wait: u64,
    /// Set while the thread that has the gate closed is known to take long. A seat that has this flag then stays outside
    /// instead of waiting, wherever it waits for the gate: its thread has clients to answer. Any other seat waits.
    pub gate_busy: Option<Arc<AtomicBool>>,
    /// Keys that were written to and have waiters, in the order of the writes. Whoever drives the seat serves them; see
    /// [`crate::SlotGuard::next_woken`].
    pub(crate) woken: VecDeque<Woken>,
    /// Those that could not be served with what was held.
    pub(crate) put_off: VecDeque<Woken>,
    /// The present epoch; see [`crate::snapshot`].
    pub(crate) epoch: bool,
    /// Entries kept for a snapshot since the seat went inside.
    pub(crate) kept: Vec<Kept>,
    /// What has happened to the keys that are held.
    pub(crate) events: Vec<Event>,
    /// How many of them the listener has heard.
    pub(crate) events_heard: usize,
    /// The listener has something to send before the keys are let go of.
    pub(crate) has_messages: bool,
    /// The number of the client whose command is being run, while somebody wants to hear what happens.
    pub acting: u64,
    /// What has been logged since then.
    pub buffer: JournalBuffer,
    /// Changes that were logged where they were made; see [`crate::SlotGuard::changes`].
    pub(crate) logged_aside: u64,
    /// How often it was said what to log.
    pub(crate) log_overrides: u64,
    pub(crate) index: usize,
    pub(crate) inside: bool,
    /// Something is held with this seat: it must not leave, and not hold a second thing.
    pub(crate) holding: bool,
    pub(crate) left_behind: Arc<LeftBehind>,
    /// Gets the values whose freeing would take long.
    pub(crate) lazy_free: Arc<dyn LazyFree>,
    random: u64,
    retired: VecDeque<Retired>,
    retired_bytes: usize,
    /// The first so many of `retired` were replaced before the glance.
    glanced: usize,
    glance: Vec<u64>,
}

/// Counters of one seat. Only its thread writes them; anyone may read and add up.
#[repr(align(128))]
#[derive(Default)]
pub struct Tally {
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub expired: AtomicU64,
    /// Fields of hashes.
    pub expired_fields: AtomicU64,
    /// Removed by the sweeps rather than on access.
    pub expired_in_sweeps: AtomicU64,
    pub evicted: AtomicU64,
    /// Writes since the start.
    pub dirty: AtomicU64,
    /// Those of them that nobody has asked for: what has expired, was evicted or loaded.
    pub unasked: AtomicU64,
    pub(crate) dbs: Box<[DbTally]>,
}

impl Tally {
    /// Writes that somebody has asked for. For the tally's own thread.
    pub(crate) fn asked(&self) -> u64 {
        self.dirty.load(Relaxed).wrapping_sub(self.unasked.load(Relaxed))
    }
}

#[derive(Default)]
pub(crate) struct DbTally {
    /// Keys this thread has added less those that it has removed.
    pub(crate) keys: AtomicI64,
    /// The same of those with a deadline of their own.
    pub(crate) timed: AtomicI64,
    /// The same of hashes with fields that have a deadline.
    pub(crate) hashes: AtomicI64,
}

/// The sum over all seats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    pub hits: u64,
    pub misses: u64,
    pub expired: u64,
    pub expired_fields: u64,
    pub expired_in_sweeps: u64,
    pub evicted: u64,
    pub dirty: u64,
    pub unasked: u64,
}

impl Total {
    /// Writes that somebody has asked for: those that save points count.
    pub fn asked(&self) -> u64 {
        self.dirty.saturating_sub(self.unasked)
    }
}

/// Adds to a counter that only this thread writes.
#[inline]
pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

#[inline]
pub(crate) fn add_signed(counter: &AtomicI64, by: i64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

impl ThreadContext {
    /// Whether it has something for a snapshot that is not laid down yet.
    pub fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    pub(crate) fn new(
        index: usize,
        tally: Arc<Tally>,
        left_behind: Arc<LeftBehind>,
        lazy_free: Arc<dyn LazyFree>,
        random: u64,
    ) -> ThreadContext {
        ThreadContext {
            now_ms: 0,
            played_ms: 0,
            access: Access::Lru,
            no_touch: false,
            keep_expired: false,
            hides_expired: false,
            is_mute: false,
            is_unheard: false,
            is_short_of_memory: false,
            tally,
            ticks: || 0,
            lock_wait: 0,
            gate_busy: None,
            woken: VecDeque::new(),
            put_off: VecDeque::new(),
            epoch: false,
            kept: Vec::new(),
            events: Vec::new(),
            events_heard: 0,
            has_messages: false,
            acting: 0,
            buffer: JournalBuffer::default(),
            logged_aside: 0,
            log_overrides: 0,
            index,
            inside: false,
            holding: false,
            left_behind,
            lazy_free,
            random: random | 1,
            retired: VecDeque::new(),
            retired_bytes: 0,
            glanced: 0,
            glance: Vec::new(),
        }
    }

    /// A random number (xorshift: for sampling, not for secrets).
    #[inline]
    pub fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Frees a value here, or hands it to [`LazyFree`] when freeing it would take long.
    pub(crate) fn discard(&self, value: Option<HeapValue>) {
        self.free_lazily(value.and_then(|value| Garbage::of_value(value, FREE_BLOCKS_MAX)));
    }

    /// The same for what was cut off a collection.
    pub(crate) fn discard_cut(&self, cut: Cut) {
        self.free_lazily(Garbage::of_cut(cut, FREE_BLOCKS_MAX));
    }

    fn free_lazily(&self, garbage: Option<Garbage>) {
        if let Some(garbage) = garbage {
            self.lazy_free.free(garbage);
        }
    }

    /// The time for the marks of use.
    #[inline]
    pub(crate) fn used_ms(&self) -> Millis {
        self.now_ms.max(self.played_ms)
    }

    /// Whether expired keys stay where they are, and are only not seen.
    #[inline]
    pub(crate) fn keeps_expired(&self) -> bool {
        self.keep_expired || self.hides_expired
    }

    /// Whether its thread has clients to answer instead of waiting for the gate; see [`ThreadContext::gate_busy`].
    pub(crate) fn refuses_to_wait(&self) -> bool {
        self.gate_busy.as_ref().is_some_and(|busy| busy.load(Acquire))
    }

    /// Whether it is inside the gate.
    pub fn is_inside(&self) -> bool {
        self.inside
    }

    /// The seat's number, from 1 on.
    pub(crate) fn number(&self) -> usize {
        self.index + 1
    }

    /// Whether waiters of some key are still to be served.
    #[inline]
    pub fn has_woken(&self) -> bool {
        !self.woken.is_empty() || !self.put_off.is_empty()
    }

    /// Keys whose waiters are still to be served.
    pub fn unserved(&self) -> usize {
        self.woken.len() + self.put_off.len()
    }

    /// Where the next of them lies, which may be one that was put off: for who is about to hold that.
    pub fn next_unserved(&mut self) -> Option<Place> {
        if self.woken.is_empty() {
            self.woken.extend(self.put_off.pop_front());
        }
        self.woken.front().map(|woken| woken.place)
    }

    /// Keeps memory that a prefetch on another thread may still be reading.
    pub(crate) fn retire(&mut self, retired: Option<Retired>) {
        if let Some(retired) = retired {
            self.retired_bytes += retired.layout.size();
            self.retired.push_back(retired);
        }
    }

    /// Bytes of replaced tables that could not be freed yet.
    pub fn retired_bytes(&self) -> usize {
        self.retired_bytes
    }

    /// Whether enough memory waits that it is worth trying to free it now.
    #[inline]
    pub(crate) fn has_much_retired(&self) -> bool {
        self.retired_bytes > RETIRED_BYTES
    }

    /// Frees what no prefetch can be reading any more: what was retired before a glance that all other seats have passed. The
    /// seat's own thread is outside the gate or between two commands, and so keeps no address of a table.
    pub(crate) fn free_retired(&mut self, gate: &Gate) {
        if self.retired.is_empty() {
            return;
        }
        if self.glanced > 0 && gate.all_passed(&self.glance, self.index) {
            for retired in self.retired.drain(..self.glanced) {
                self.retired_bytes -= retired.layout.size();
                // SAFETY: every other thread has been outside the gate since this memory was replaced, so none can
                // have kept its address, and neither has this one, by this function's contract.
                unsafe { retired.free() }
            }
            self.glanced = 0;
        }
        if self.glanced == 0 && !self.retired.is_empty() {
            gate.glance(&mut self.glance);
            self.glanced = self.retired.len();
        }
    }
}

impl Drop for ThreadContext {
    fn drop(&mut self) {
        self.left_behind.0.lock().extend(self.retired.drain(..));
        debug_assert!(!self.inside || std::thread::panicking(), "a seat is dropped outside the gate");
    }
}

/// Replaced tables of seats that are gone. Each seat and the keyspace share it, so it is dropped when no thread can
/// be inside any more.
#[derive(Default)]
pub(crate) struct LeftBehind(Mutex<Vec<Retired>>);

impl Drop for LeftBehind {
    fn drop(&mut self) {
        for retired in self.0.get_mut().drain(..) {
            // SAFETY: reading a table needs the keyspace and a seat, and neither exists any more.
            unsafe { retired.free() }
        }
    }
}
