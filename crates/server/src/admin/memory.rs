//! MEMORY: the use of memory.

use std::sync::atomic::Ordering::Relaxed;

use super::{
    Command, Flags, Group, Keys, ServerCall, ServerHandler, at_least, container, docs, exactly, read, session,
};
use crate::observe::memory::MemoryMetrics;
use evenkeel_command::error::Error;
use evenkeel_command::flow::{Done, Flow};
use evenkeel_runtime::allocator;

const GROUP: Group = Group::Server;

/// Allowed whenever other commands are: without the flags of commands on the session.
const fn plain(command: Command<ServerHandler>) -> Command<ServerHandler> {
    command.without(Flags::NOSCRIPT.with(Flags::LOADING).with(Flags::STALE))
}

#[rustfmt::skip]
pub(crate) const COMMANDS: &[Command<ServerHandler>] = &[
    container("MEMORY", GROUP, &[
        plain(session("MEMORY|DOCTOR",       exactly(2),  GROUP, doctor      )),
        session      ("MEMORY|HELP",         exactly(2),  GROUP, help        ).scriptable(),
        plain(session("MEMORY|MALLOC-STATS", exactly(2),  GROUP, malloc_stats)).flag(Flags::LOADING),
        plain(session("MEMORY|PURGE",        exactly(2),  GROUP, purge       )).flag(Flags::LOADING),
        plain(session("MEMORY|STATS",        exactly(2),  GROUP, stats       )),
        read         ("MEMORY|USAGE",        at_least(3), Keys::SECOND, GROUP, usage),
    ]),
];

/// MEMORY HELP
fn help(call: &mut ServerCall<'_, '_>) -> Done {
    docs::reply_help(call, "MEMORY");
    Ok(Flow::Replied)
}

/// MEMORY USAGE key [SAMPLES count]
///
/// The entry, and its share of a table: a word of eight bytes in a table that is about two thirds full.
fn usage(call: &mut ServerCall<'_, '_>) -> Done {
    const TABLE_SHARE: usize = 12;
    let args = call.base.args;
    for at in (3..args.len()).step_by(2) {
        if !args.is(at, "SAMPLES") || args.len() == at + 1 {
            return Err(Error::Syntax);
        }
        // The size of a value is known, or estimated from a few of its pages: no samples are taken.
        if args.int(at + 1)? < 0 {
            return Err(Error::Syntax);
        }
    }
    match call.base.guard.peek(&call.base.keys[0]) {
        Some(view) => call.base.reply.int((view.memory() + TABLE_SHARE) as i64),
        None => call.base.reply.null(),
    }
    Ok(Flow::Replied)
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// MEMORY STATS
fn stats(call: &mut ServerCall<'_, '_>) -> Done {
    let (server, ctx) = (call.server, &*call.base.guard.ctx);
    let metrics = MemoryMetrics::gather(server, server.hub.clients.totals().memory as u64);
    let MemoryMetrics { used, peak, startup, clients, overhead, resident, .. } = metrics;
    let keys: u64 =
        (0..server.core.keyspace.databases()).map(|db| server.core.keyspace.len(ctx, db) as u64).sum();
    let databases: Vec<(usize, u64)> = (0..call.server.core.keyspace.databases())
        .filter(|db| call.server.core.keyspace.len(call.base.guard.ctx, *db) > 0)
        .map(|db| (db, call.server.sampler.table_bytes_of(db)))
        .collect();
    let tables = call.server.sampler.table_bytes();
    let reply = &mut *call.base.reply;
    let before: &[(&str, u64)] = &[
        ("peak.allocated", peak),
        ("total.allocated", used),
        ("startup.allocated", startup),
        ("replication.backlog", metrics.backlog),
        ("replicas.repl.buffer", 0),
        ("clients.slaves", metrics.beyond),
        ("clients.normal", clients),
        ("cluster.links", 0),
        ("cluster.slot_import", 0),
        ("cluster.slot_export", 0),
        ("aof.buffer", 0),
        ("lua.caches", metrics.scripts),
        ("functions.caches", metrics.functions),
    ];
    let after: &[(&str, u64)] = &[
        ("overhead.db.hashtable.lut", tables),
        ("overhead.db.hashtable.rehashing", 0), // a segment is split as a whole
        ("overhead.total", overhead),
        ("db.dict.rehashing.count", 0),
        ("keys.count", keys),
        ("keys.bytes-per-key", metrics.net_used().checked_div(keys).unwrap_or(0)),
        ("dataset.bytes", metrics.dataset()),
        ("allocator.allocated", used),
        ("allocator.active", metrics.active),
        ("allocator.resident", resident),
        ("allocator.muzzy", 0),
    ];
    let ratios: &[(&str, f64)] = &[
        ("dataset.percentage", 100.0 * ratio(metrics.dataset(), metrics.net_used())),
        ("peak.percentage", 100.0 * ratio(used, peak)),
        ("allocator-fragmentation.ratio", metrics.allocator_ratios().0),
        ("allocator-rss.ratio", metrics.allocator_ratios().1),
        ("rss-overhead.ratio", 1.0),
        ("fragmentation", metrics.fragmentation()),
    ];
    let differences: &[(&str, i64)] = &[
        ("allocator-fragmentation.bytes", (metrics.active - used) as i64),
        ("allocator-rss.bytes", resident as i64 - metrics.active as i64),
        ("rss-overhead.bytes", 0),
        ("fragmentation.bytes", metrics.fragmentation_bytes()),
    ];
    reply.map(before.len() + databases.len() + after.len() + ratios.len() + differences.len());
    let mut number = |(name, value): &(&str, u64)| {
        reply.bulk(name.as_bytes());
        reply.int(*value as i64);
    };
    before.iter().for_each(&mut number);
    after.iter().for_each(&mut number);
    for (db, bytes) in databases {
        reply.bulk(format!("db.{db}").as_bytes());
        reply.map(2);
        reply.bulk(b"overhead.hashtable.main");
        reply.int(bytes as i64);
        reply.bulk(b"overhead.hashtable.expires"); // deadlines are in the same tables
        reply.int(0);
    }
    for (name, value) in ratios {
        reply.bulk(name.as_bytes());
        reply.double(*value);
    }
    for (name, value) in differences {
        reply.bulk(name.as_bytes());
        reply.int(*value);
    }
    Ok(Flow::Replied)
}

/// MEMORY DOCTOR
fn doctor(call: &mut ServerCall<'_, '_>) -> Done {
    let metrics = MemoryMetrics::gather(call.server, call.server.hub.clients.totals().memory as u64);
    let clients = call.server.hub.clients.count() as u64;
    call.base.reply.verbatim(&diagnosis(&metrics, clients), b"txt");
    Ok(Flow::Replied)
}

fn diagnosis(metrics: &MemoryMetrics, clients: u64) -> String {
    const MB: u64 = 1 << 20;
    // Each serving thread has some megabytes from the start on, and touches more of its reserve from the
    // allocator.
    const OF_THREADS: u64 = 64 * MB;
    if metrics.net_used() < 5 * MB {
        return "The data set is too small for a diagnosis.\n".into();
    }
    let mut found = Vec::new();
    if metrics.peak * 2 > metrics.used * 3 {
        found.push(format!(
            "Peak: {} MB are in use, but the peak was {} MB. The allocator keeps freed memory for reuse, so \
             it counts as resident. MEMORY PURGE returns it to the operating system.",
            metrics.used / MB,
            metrics.peak / MB
        ));
    }
    if metrics.resident * 5 > metrics.used * 7 && metrics.resident > metrics.used + OF_THREADS {
        found.push(format!(
            "Fragmentation: {} MB are resident for {} MB in use. 'CONFIG SET activedefrag yes' moves data \
             together while clients are served, and MEMORY PURGE does so once.",
            metrics.resident / MB,
            metrics.used / MB
        ));
    }
    if clients > 0 && metrics.clients / clients > 200 * 1024 {
        found.push(format!(
            "Clients: the average is {} KB per client. Some clients send large requests or do not read their \
             replies. See qbuf and omem in CLIENT LIST; client-output-buffer-limit and maxmemory-clients set \
             limits.",
            metrics.clients / clients / 1024
        ));
    }
    if found.is_empty() {
        return "No memory problems found.\n".into();
    }
    found.iter().map(|line| format!("- {line}\n")).collect()
}

/// MEMORY MALLOC-STATS
fn malloc_stats(call: &mut ServerCall<'_, '_>) -> Done {
    let text = allocator::report();
    call.base.reply.verbatim(&text, b"txt");
    Ok(Flow::Replied)
}

/// MEMORY PURGE: each worker moves blocks out of its sparse chunks, and each thread gives its free memory
/// back, soon.
fn purge(call: &mut ServerCall<'_, '_>) -> Done {
    call.server.compactions_asked.fetch_add(1, Relaxed);
    call.server.core.purge.ask();
    call.server.ask_for_purge();
    call.base.reply.ok();
    Ok(Flow::Replied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, check};

    #[test]
    fn memory_usage_of_a_key() {
        check(
            "
            > SET k v
            > MEMORY USAGE nosuch                 < (nil)
            > MEMORY USAGE k                      < :*
            > MEMORY USAGE k SAMPLES 0            < :*
            > MEMORY USAGE k SAMPLES              < -ERR syntax error
            > MEMORY USAGE k SAMPLES -1           < -ERR syntax error
            > MEMORY USAGE k SAMPLES x            < -ERR value is not an integer or out of range
            > MEMORY USAGE k COLOURS 5            < -ERR syntax error
            > MEMORY PURGE                        < OK
            > MEMORY STATS
            < [\"peak.allocated\", :*, \"total.allocated\", :*, \"startup.allocated\", *]
        ",
        );
    }

    #[test]
    fn memory_usage_of_large_values_is_exact() {
        let mut world = World::new();
        world.run("SETRANGE k 999999 x");
        let bytes = |reply: String| reply.trim_start_matches(':').parse::<usize>().expect("a number");
        let sparse = bytes(world.run("MEMORY USAGE k"));
        assert!(sparse < 100_000, "a hole takes no memory: {sparse}");
        world.run(&format!("SET k {}", "x".repeat(1_000_000)));
        let full = bytes(world.run("MEMORY USAGE k"));
        assert!((1_000_000..1_100_000).contains(&full), "{full}");
        world.check("> MEMORY MALLOC-STATS < \"*heap*\"");
    }

    #[test]
    fn memory_doctor_names_each_problem() {
        const MB: u64 = 1 << 20;
        let metrics = |used: u64, peak: u64, resident: u64, clients: u64| MemoryMetrics {
            used: used * MB,
            peak: peak * MB,
            resident: resident * MB,
            clients: clients * MB,
            ..MemoryMetrics::default()
        };
        assert!(diagnosis(&metrics(1, 100, 100, 0), 1).contains("too small"));
        let at_start = MemoryMetrics { startup: 10 * MB, ..metrics(14, 14, 60, 0) };
        assert!(diagnosis(&at_start, 1).contains("too small"));
        assert!(diagnosis(&metrics(100, 100, 110, 1), 100).contains("No memory problems"));
        assert!(diagnosis(&metrics(100, 200, 110, 1), 100).starts_with("- Peak: 100 MB"));
        assert!(diagnosis(&metrics(100, 100, 200, 1), 100).starts_with("- Fragmentation: 200 MB"));
        assert!(diagnosis(&metrics(100, 100, 110, 50), 10).starts_with("- Clients: the average is 5120 KB"));
    }
}
