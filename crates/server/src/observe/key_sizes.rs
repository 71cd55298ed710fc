//! INFO keysizes: the distribution of the sizes of keys, by database and kind.
//!
//! Redis keeps these counts with each write. Here the control thread counts all keys again and again, in
//! slices, and INFO shows the last complete count: a write costs nothing more, and the memory of values can
//! be counted as well. 20,000 keys are counted in a tenth of a second, 50 million in about four minutes.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use evenkeel_runtime::clock;
use evenkeel_store::collection::{Hash, List, Set, ZSet};
use evenkeel_store::{Cursor, Keyspace, Kind, ThreadContext, View};
use parking_lot::Mutex;

/// Size zero, and each power of two up to 2^63.
const BINS: usize = 65;

/// Microseconds of a slice. There are ten slices a second, so counting takes a hundredth of a core.
const SLICE_US: u64 = 1_000;

/// Keys counted inside the gate at a time: a thread that closes the gate waits for that.
const KEYS_AT_ONCE: usize = 1_000;

/// The kinds that are counted, with their names in INFO.
const KINDS: [(Kind, &str); 5] = [
    (Kind::String, "strings"),
    (Kind::List, "lists"),
    (Kind::Set, "sets"),
    (Kind::ZSet, "zsets"),
    (Kind::Hash, "hashes"),
];

/// The numbers of keys by size: each bin has the sizes up to the next power of two.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Histogram([u64; BINS]);

impl Histogram {
    fn new() -> Histogram {
        Histogram([0; BINS])
    }

    fn add(&mut self, size: u64) {
        self.0[(u64::BITS - size.leading_zeros()) as usize] += 1;
    }

    /// As in Redis: `1=2,4=1,2K=7`, the bins that have keys under their smallest size; empty: no keys.
    fn line(&self) -> String {
        let filled = self.0.iter().enumerate().filter(|(_, keys)| **keys > 0);
        let bins: Vec<String> =
            filled.map(|(bin, keys)| format!("{}={keys}", Histogram::label(bin))).collect();
        bins.join(",")
    }

    /// The smallest size of a bin.
    fn label(bin: usize) -> String {
        const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
        match bin.checked_sub(1) {
            None => "0".into(),
            Some(bits) => format!("{}{}", 1_u64 << (bits % 10), UNITS[bits / 10]),
        }
    }
}

/// The counts of a database: for each of [`KINDS`], keys by length and by memory.
#[derive(Clone, Debug)]
struct Counts([[Histogram; 2]; KINDS.len()]);

impl Counts {
    fn new() -> Counts {
        Counts(std::array::from_fn(|_| [Histogram::new(), Histogram::new()]))
    }

    fn add(&mut self, view: &View<'_>, counts_memory: bool) {
        let len = match view.kind() {
            Kind::String => view.string().len() as u64,
            Kind::List => view.collection::<List>().len(),
            Kind::Set => view.collection::<Set>().len(),
            Kind::ZSet => view.collection::<ZSet>().len(),
            Kind::Hash => view.collection::<Hash>().size(),
            Kind::Stream | Kind::Array => return,
        };
        let [lengths, memory] = &mut self.0[view.kind() as usize];
        lengths.add(len);
        if counts_memory {
            memory.add(view.memory() as u64);
        }
    }
}

/// The last complete count, and the count in progress.
pub(crate) struct KeySizes {
    /// By database; `None`: no keys.
    shown: Mutex<Vec<Option<Box<Counts>>>>,
    count: Mutex<Count>,
    /// Whether the memory of values is counted: `key-memory-histograms` at the start of the last count.
    has_memory: AtomicBool,
}

struct Count {
    dbs: Vec<Option<Box<Counts>>>,
    db: usize,
    cursor: Cursor,
    counts_memory: bool,
}

impl KeySizes {
    pub(crate) fn new(databases: usize) -> KeySizes {
        let nothing = || (0..databases).map(|_| None).collect::<Vec<_>>();
        KeySizes {
            shown: Mutex::new(nothing()),
            count: Mutex::new(Count { dbs: nothing(), db: 0, cursor: Cursor(0), counts_memory: false }),
            has_memory: AtomicBool::new(false),
        }
    }

    /// Counts for a slice of time, to the end of a count at most. For the control thread, whose `ctx` is
    /// outside the gate. Nothing is counted while `is_busy`, when the gate stays closed for long.
    pub(crate) fn round(
        &self,
        keyspace: &Keyspace,
        ctx: &mut ThreadContext,
        counts_memory: bool,
        is_busy: impl Fn() -> bool,
    ) {
        let until = clock::ticks() + SLICE_US * clock::ticks_per_us();
        let mut count = self.count.lock();
        if count.db == 0 && count.cursor.0 == 0 {
            count.counts_memory = counts_memory;
        }
        // Expired keys are left to the threads that look for them.
        let keeps_expired = std::mem::replace(&mut ctx.keep_expired, true);
        while clock::ticks() < until && keyspace.enter_unless(ctx, &is_busy) {
            let is_complete = count.step(keyspace, ctx);
            keyspace.leave(ctx);
            if is_complete {
                self.has_memory.store(count.counts_memory, Relaxed);
                let nothing = count.dbs.iter().map(|_| None).collect();
                *self.shown.lock() = std::mem::replace(&mut count.dbs, nothing);
                count.db = 0;
                break;
            }
        }
        ctx.keep_expired = keeps_expired;
    }

    /// Calls `field` with the name and value of each line of INFO.
    pub(crate) fn for_each_line(&self, mut field: impl FnMut(String, String)) {
        let has_memory = self.has_memory.load(Relaxed);
        for (db, counts) in self.shown.lock().iter().enumerate() {
            for ((kind, name), [lengths, memory]) in
                KINDS.iter().zip(counts.iter().flat_map(|counts| &counts.0))
            {
                let is_string = *kind == Kind::String;
                // The bytes of a string are its size; other kinds have a number of elements, and a size.
                let lines = [
                    (if is_string { "sizes" } else { "items" }, lengths, true),
                    ("sizes", memory, has_memory && !is_string),
                ];
                for (unit, histogram, is_shown) in lines {
                    let line = histogram.line();
                    if is_shown && !line.is_empty() {
                        field(format!("db{db}_distrib_{name}_{unit}"), line);
                    }
                }
            }
        }
    }
}

impl Count {
    /// Counts some keys. Returns whether the count is complete.
    fn step(&mut self, keyspace: &Keyspace, ctx: &mut ThreadContext) -> bool {
        while self.cursor.0 == 0 && self.db < self.dbs.len() && keyspace.len(ctx, self.db) == 0 {
            self.db += 1;
        }
        let counts_memory = self.counts_memory;
        let Some(counts) = self.dbs.get_mut(self.db) else { return true };
        let counts = counts.get_or_insert_with(|| Box::new(Counts::new()));
        let mut guard = keyspace.hold_none(ctx);
        let add = |view: View<'_>| counts.add(&view, counts_memory);
        self.cursor = guard.scan(self.db, self.cursor, KEYS_AT_ONCE, None, add);
        self.db += usize::from(self.cursor.0 == 0);
        self.db == self.dbs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::live::Live;
    use evenkeel_testkit::Client;

    #[test]
    fn bins_are_powers_of_two() {
        let mut histogram = Histogram::new();
        for size in [0, 1, 2, 3, 4, 7, 8, 1023, 1024, 2047, 1 << 20, u64::MAX] {
            histogram.add(size);
        }
        assert_eq!(histogram.line(), "0=1,1=1,2=2,4=2,8=1,512=1,1K=2,1M=1,8E=1");
    }

    /// The lines are those of Redis 8.2.3 after the same commands, but for those of the memory of values.
    #[test]
    fn lines_are_those_of_redis() {
        let live = Live::start(2, &[]);
        let mut ctx = live.server.core.keyspace.thread_context();
        let mut client = live.connect();
        // A control thread is not running.
        let mut lines = |client: &mut Client| {
            let server = &live.server;
            let counts_memory = server.core.settings().key_memory_histograms;
            server.key_sizes.round(&server.core.keyspace, &mut ctx, counts_memory, || false);
            let info = client.run("INFO keysizes").to_string();
            let lines = info.trim_matches('"').split("\\r\\n").filter(|line| line.starts_with("db"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let thousand = "x".repeat(1_000);
        for line in [
            "SET a ''",
            "SET b x",
            "SET c 12345",
            &format!("SET d {thousand}"),
            "RPUSH l a b c",
            "HSET h a 1",
            "ZADD z 1 a",
            "SADD s a b",
            "XADD x * a b",
            "PFADD hll a b",
            "SETBIT bits 100000 1",
            "SELECT 3",
            "SET y 1",
        ] {
            client.run(line);
        }
        let expected = [
            "db0_distrib_strings_sizes:0=1,1=1,4=1,16=1,512=1,8K=1",
            "db0_distrib_lists_items:2=1",
            "db0_distrib_sets_items:2=1",
            "db0_distrib_zsets_items:1=1",
            "db0_distrib_hashes_items:1=1",
            "db3_distrib_strings_sizes:1=1",
        ];
        live.wait_until("all are counted", || lines(&mut client) == expected);
        client.run("CONFIG SET key-memory-histograms yes");
        live.wait_until("memory is counted", || {
            let lines = lines(&mut client).into_iter();
            let names: Vec<_> =
                lines.map(|line| line.split_once(':').expect("a value").0.to_owned()).collect();
            names[1..4] == ["db0_distrib_lists_items", "db0_distrib_lists_sizes", "db0_distrib_sets_items"]
        });
        client.run("FLUSHALL");
        live.wait_until("nothing is left", || lines(&mut client).is_empty());
        live.stop();
    }

    /// Keys are counted while they are written, removed and swapped; in the end all are counted once.
    #[test]
    fn counts_are_right_once_writes_stop() {
        let live = Live::start(2, &[]);
        let mut ctx = live.server.core.keyspace.thread_context();
        let mut client = live.connect();
        let keys = 30_000;
        for from in (0..keys).step_by(1_000) {
            let sets =
                (from..from + 1_000).map(|n| vec!["SET".to_owned(), format!("k{n}"), "x".repeat(n % 8)]);
            client.pipeline(&sets.collect::<Vec<_>>());
            live.server.key_sizes.round(&live.server.core.keyspace, &mut ctx, false, || false);
        }
        client.run("SWAPDB 0 1");
        let each = keys / 8;
        let expected = format!("db1_distrib_strings_sizes:0={each},1={each},2={},4={}", 2 * each, 4 * each);
        live.wait_until("all are counted", || {
            live.server.key_sizes.round(&live.server.core.keyspace, &mut ctx, false, || false);
            client.run("INFO keysizes").to_string().contains(&format!("{expected}\\r\\n"))
        });
        live.stop();
    }
}
