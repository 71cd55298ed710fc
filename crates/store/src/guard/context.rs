//! The context of a thread that uses the keyspace: its time, its randomness, its counters, its retired
//! tables.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::*};

use parking_lot::Mutex;

use crate::Millis;
use crate::guard::gate::Gate;
use crate::journal::JournalBuffer;
use crate::key::Place;
use crate::lazy_free::{Garbage, LazyFree};
use crate::notify::events::Event;
use crate::notify::wait::Woken;
use crate::snapshot::Kept;
use crate::table::retired::{Retired, RetiredTables};
use crate::value::collection::Cut;
use crate::value::heap_value::HeapValue;

/// How reads and writes mark an entry, for eviction and OBJECT IDLETIME or FREQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Seconds, 24 bits.
    Lru,
    /// The same, for writes only.
    Lrm,
    /// Minutes in 16 bits, and a logarithmic counter in 8.
    Lfu { log_factor: u32, decay_minutes: u32 },
}

/// Values of more blocks than this go to [`LazyFree`]: freeing a block takes about 0.3 us.
const FREE_BLOCKS_MAX: usize = 64;

/// See the module's documentation. Made by [`crate::Keyspace::thread_context`].
pub struct ThreadContext {
    /// The time by which keys are expired. The owner of the context keeps it current.
    pub now_ms: Millis,
    /// The access time of keys while `now_ms` is before it: a thread that replays a journal must find no key
    /// expired, so its `now_ms` stays behind.
    pub played_ms: Millis,
    /// The time that TIME has replied to the script in progress, in microseconds since the Unix epoch: to a
    /// script, no time passes.
    pub script_us: Option<u64>,
    pub access: Access,
    /// CLIENT NO-TOUCH: reads leave no mark.
    pub no_touch: bool,
    /// DEBUG SET-ACTIVE-EXPIRE and paused writes: expired keys are hidden, not removed.
    pub keep_expired: bool,
    /// The same for all contexts at once, set on a replica; see [`crate::SlotGuard::hide_expired`].
    pub(crate) hides_expired: bool,
    /// Expired keys exist for the present command, whose client is the source of an import.
    pub sees_expired: bool,
    /// Writes are not logged, since they replay the journal of another server or an earlier run.
    pub is_mute: bool,
    /// Changes notify no listener and wake no waiter, since they restore an earlier state.
    pub suppresses_events: bool,
    /// Memory is short, so writes that need some are refused. The owner of the context keeps it current, for
    /// callers that cannot ask the owner.
    pub is_short_of_memory: bool,
    pub tally: Arc<Tally>,
    /// A clock for `lock_wait`.
    pub ticks: fn() -> u64,
    /// Ticks spent waiting for slots that other threads held. The owner of the context reads and resets it.
    pub lock_wait: u64,
    /// The owner of the context wants `seen`, and resets it.
    pub records_seen: bool,
    /// The largest number of a record on the slots that were held since: no effect of a later record was
    /// seen.
    pub seen: u64,
    /// Set while the thread that has the gate closed is known to take long. A context with this flag then
    /// stays outside instead of waiting for the gate, since its thread has clients to answer. A context
    /// without the flag waits.
    pub gate_busy: Option<Arc<AtomicBool>>,
    /// Keys that were written to and have waiters, in the order of the writes. The owner of the context
    /// serves the waiters; see [`crate::SlotGuard::next_woken`].
    pub(crate) woken: VecDeque<Woken>,
    /// Woken keys that could not be served with the locks held.
    pub(crate) put_off: VecDeque<Woken>,
    /// The present epoch; see [`crate::snapshot`].
    pub(crate) epoch: bool,
    /// Entries kept for a snapshot since the thread entered the gate.
    pub(crate) kept: Vec<Kept>,
    /// Events of the keys that are held.
    pub(crate) events: Vec<Event>,
    /// The listener has received this many of the events.
    pub(crate) events_reported: usize,
    /// The listener has messages to send before the keys are unlocked.
    pub(crate) has_messages: bool,
    /// Number of the client whose command is being run, while a listener wants events.
    pub acting: u64,
    /// Records logged since the thread entered the gate.
    pub buffer: JournalBuffer,
    /// Changes that were logged where they were made; see [`crate::SlotGuard::changes`].
    pub(crate) logged_unasked: u64,
    /// Number of times that a command has stated its own log entry; see [`crate::SlotGuard::log_overrides`].
    pub(crate) log_overrides: u64,
    pub(crate) index: usize,
    pub(crate) inside: bool,
    /// A guard of this context is alive: the thread must neither leave the gate nor take a second guard.
    pub(crate) holding: bool,
    pub(crate) left_behind: Arc<LeftBehind>,
    /// Receives the values whose freeing would take long.
    pub(crate) lazy_free: Arc<dyn LazyFree>,
    random: u64,
    pub(crate) retired: RetiredTables,
}

/// Counters of one context. Only its thread writes them; any thread may read and add them up.
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
    /// Writes among `dirty` that no client requested: expiry, eviction, loading.
    pub unasked: AtomicU64,
    pub(crate) dbs: Box<[DbTally]>,
}

impl Tally {
    /// Writes requested by clients. Only the tally's own thread calls this.
    pub(crate) fn asked(&self) -> u64 {
        self.dirty.load(Relaxed).wrapping_sub(self.unasked.load(Relaxed))
    }
}

#[derive(Default)]
pub(crate) struct DbTally {
    /// Keys that this thread has added, minus keys that it has removed.
    pub(crate) keys: AtomicI64,
    /// The same balance of keys with a deadline of their own.
    pub(crate) timed: AtomicI64,
    /// The same balance of hashes with fields that have a deadline.
    pub(crate) hashes: AtomicI64,
}

/// The sum over all contexts.
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
    /// Writes requested by clients: the number that save points count.
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
    /// Returns true if entries are kept for a snapshot and not published yet.
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
            script_us: None,
            access: Access::Lru,
            no_touch: false,
            keep_expired: false,
            sees_expired: false,
            hides_expired: false,
            is_mute: false,
            suppresses_events: false,
            is_short_of_memory: false,
            tally,
            ticks: || 0,
            lock_wait: 0,
            records_seen: false,
            seen: 0,
            gate_busy: None,
            woken: VecDeque::new(),
            put_off: VecDeque::new(),
            epoch: false,
            kept: Vec::new(),
            events: Vec::new(),
            events_reported: 0,
            has_messages: false,
            acting: 0,
            buffer: JournalBuffer::default(),
            logged_unasked: 0,
            log_overrides: 0,
            index,
            inside: false,
            holding: false,
            left_behind,
            lazy_free,
            random: random | 1,
            retired: RetiredTables::default(),
        }
    }

    /// Returns a random number (xorshift: for sampling, not for secrets).
    #[inline]
    pub fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Frees a value here, or hands it to [`LazyFree`] if freeing it would take long.
    pub(crate) fn discard(&self, value: Option<HeapValue>) {
        self.free_lazily(value.and_then(|value| Garbage::of_value(value, FREE_BLOCKS_MAX)));
    }

    /// Like [`ThreadContext::discard`], for the part that was cut off a collection.
    pub(crate) fn discard_cut(&self, cut: Cut) {
        self.free_lazily(Garbage::of_cut(cut, FREE_BLOCKS_MAX));
    }

    fn free_lazily(&self, garbage: Option<Garbage>) {
        if let Some(garbage) = garbage {
            self.lazy_free.free(garbage);
        }
    }

    /// The time that access marks get.
    #[inline]
    pub(crate) fn used_ms(&self) -> Millis {
        self.now_ms.max(self.played_ms)
    }

    /// The time by which keys and fields have expired for the present command, in milliseconds since 1970.
    /// Zero: none has, since the source of an import sees all of them.
    #[inline]
    pub fn seen_ms(&self) -> Millis {
        if self.sees_expired { 0 } else { self.now_ms }
    }

    /// Returns true if expired keys are hidden instead of removed.
    #[inline]
    pub(crate) fn keeps_expired(&self) -> bool {
        self.keep_expired || self.hides_expired
    }

    /// Returns true if the thread has clients to answer instead of waiting for the gate; see
    /// [`ThreadContext::gate_busy`].
    pub(crate) fn refuses_to_wait(&self) -> bool {
        self.gate_busy.as_ref().is_some_and(|busy| busy.load(Acquire))
    }

    /// Returns true if the thread is inside the gate.
    pub fn is_inside(&self) -> bool {
        self.inside
    }

    /// Number of the context, from 1.
    pub(crate) fn number(&self) -> usize {
        self.index + 1
    }

    /// Returns true if waiters of some key are still to be served.
    #[inline]
    pub fn has_woken(&self) -> bool {
        !self.woken.is_empty() || !self.put_off.is_empty()
    }

    /// Number of keys whose waiters are still to be served.
    pub fn unserved(&self) -> usize {
        self.woken.len() + self.put_off.len()
    }

    /// Place of the next such key, for a caller that is about to lock it. May be a key that was put off.
    pub fn next_unserved(&mut self) -> Option<Place> {
        if self.woken.is_empty() {
            self.woken.extend(self.put_off.pop_front());
        }
        self.woken.front().map(|woken| woken.place)
    }

    /// Bytes of retired tables that could not be freed yet.
    pub fn retired_bytes(&self) -> usize {
        self.retired.bytes()
    }

    /// Frees tables that no prefetch can be reading any more: tables retired before a glance that all other
    /// threads have passed. The context's own thread is outside the gate or between two commands, so it keeps
    /// no address of a table.
    pub(crate) fn free_retired(&mut self, gate: &Gate) {
        let index = self.index;
        // SAFETY: the gate tells which threads have been outside since the glance; see above for this thread.
        unsafe { self.retired.free(|glance| gate.all_passed(glance, index), |into| gate.glance(into)) }
    }
}

impl Drop for ThreadContext {
    fn drop(&mut self) {
        self.left_behind.0.lock().extend(self.retired.take());
        debug_assert!(!self.inside || std::thread::panicking(), "a context is dropped outside the gate");
    }
}

/// Retired tables of contexts that are gone. Each context and the keyspace share this value, so it is dropped
/// when no thread can be inside any more.
#[derive(Default)]
pub(crate) struct LeftBehind(Mutex<Vec<Retired>>);

impl Drop for LeftBehind {
    fn drop(&mut self) {
        for retired in self.0.get_mut().drain(..) {
            // SAFETY: reading a table needs the keyspace and a context, and neither exists any more.
            unsafe { retired.free() }
        }
    }
}
