//! Probes on request: counts of kernel tracepoints and functions that a process runs, and the latency of one
//! of its own functions.
//!
//! They cost more than the permanent programs, by an amount that depends on the request. Therefore they are
//! in a separate object and answer a single question at a time. If the kernel does not support a probe, the
//! error says so.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use libbpf_rs::btf::{Btf, types};
use libbpf_rs::{
    KprobeMultiOpts, Link, MapCore, MapFlags, Object, ObjectBuilder, ProgramMut, RawTracepointOpts,
};

use crate::functions::Function;
use crate::shared::{self, COUNTS_MAX, SLOTS, as_bytes, from_bytes};
use crate::{attach, check_machine};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/probe.bpf.o"));

/// Each is attached for all processes, and frequent tracepoints slow these processes.
pub const TRACEPOINTS_MAX: usize = 64;
/// Prefix of the BTF types that describe tracepoints.
const TRACEPOINT_TYPE: &str = "btf_trace_";

/// Loads only the programs with these names, so that a kernel which lacks support for one of them can run the
/// rest.
pub(crate) fn load(pid: i32, wanted: &[&str]) -> Result<Object> {
    check_machine()?;
    libbpf_rs::set_print(None); // the error carries the reason
    let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
    for mut program in open.progs_mut() {
        let is_wanted = program.name().to_str().is_some_and(|name| wanted.contains(&name));
        program.set_autoload(is_wanted);
    }
    for mut map in open.maps_mut() {
        if map.name().to_str() == Some(".rodata.target") {
            map.set_initial_value(as_bytes(&[pid.cast_unsigned()]))?;
        }
    }
    open.load().map_err(attach::explain)
}

pub(crate) fn program<'a>(object: &'a Object, name: &str) -> Result<ProgramMut<'a>> {
    object.progs_mut().find(|program| program.name() == name).with_context(|| format!("no program {name}"))
}

pub(crate) fn first<T: shared::Plain>(object: &Object, map: &str, index: u32) -> Option<T> {
    let map = object.maps().find(|found| found.name() == map)?;
    from_bytes(&map.lookup(&index.to_ne_bytes(), MapFlags::ANY).ok()??)
}

/// Counts how often a process meets tracepoints or functions of the kernel.
#[derive(Debug)]
pub struct Counter {
    object: Object,
    links: Vec<Link>,
    names: Vec<String>,
}

impl Counter {
    /// `pattern`: a name in which `*` matches any text. Tracepoints are searched first, then functions.
    pub fn start(pid: i32, pattern: &str) -> Result<Counter> {
        check_machine()?;
        let tracepoints = matching(tracepoints()?, pattern);
        if tracepoints.is_empty() {
            Counter::functions(pid, pattern)
        } else {
            Counter::tracepoints(pid, tracepoints)
        }
    }

    fn tracepoints(pid: i32, names: Vec<String>) -> Result<Counter> {
        ensure!(
            names.len() <= TRACEPOINTS_MAX,
            "{} tracepoints match: use a longer name, at most {TRACEPOINTS_MAX} may match",
            names.len()
        );
        let object = load(pid, &["on_tracepoint"])?;
        let mut links = Vec::new();
        for (cookie, name) in names.iter().enumerate() {
            let options = RawTracepointOpts { cookie: cookie as u64, ..RawTracepointOpts::default() };
            let link = program(&object, "on_tracepoint")?.attach_raw_tracepoint_with_opts(name, options);
            links.push(link.with_context(|| format!("the tracepoint {name} cannot be counted"))?);
        }
        Ok(Counter { object, links, names })
    }

    fn functions(pid: i32, pattern: &str) -> Result<Counter> {
        let names = matching(functions(), pattern);
        ensure!(!names.is_empty(), "the kernel has no tracepoint and no function named {pattern}");
        ensure!(
            names.len() <= COUNTS_MAX,
            "{} functions of the kernel match: use a longer name, at most {COUNTS_MAX} may match",
            names.len()
        );
        let options = KprobeMultiOpts {
            symbols: names.clone(),
            cookies: (0..names.len() as u64).collect(),
            ..KprobeMultiOpts::default()
        };
        let attached = load(pid, &["on_function"]).and_then(|object| {
            let link = program(&object, "on_function")?.attach_kprobe_multi_with_opts(options)?;
            Ok((object, link))
        });
        match attached {
            Ok((object, link)) => Ok(Counter { object, links: vec![link], names }),
            Err(error) => bail!(
                "{} functions of the kernel match, but it cannot count them (this needs kprobes): \
                 {error:#}. It can count tracepoints: see `perf list tracepoint`",
                names.len()
            ),
        }
    }

    /// Detaches everything. Returns names and counts, the most frequent first.
    pub fn finish(mut self) -> Vec<(String, u64)> {
        self.links.clear();
        let count = |index: usize| first(&self.object, "counts", index as u32).unwrap_or(0);
        let names = self.names.iter().enumerate();
        let mut counts: Vec<(String, u64)> =
            names.map(|(index, name)| (name.clone(), count(index))).collect();
        counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        counts
    }
}

/// Returns all tracepoints, by the BTF types that describe their arguments.
fn tracepoints() -> Result<Vec<String>> {
    let kernel = Btf::from_vmlinux().context("the kernel's description of itself cannot be read")?;
    let types = kernel.type_by_kind::<types::Typedef<'_>>();
    let names = types.filter_map(|of| of.name()?.to_str()?.strip_prefix(TRACEPOINT_TYPE).map(str::to_string));
    Ok(names.collect())
}

fn functions() -> Vec<String> {
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let function = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (kind, name) = (fields.next()?, fields.next()?);
        (kind.eq_ignore_ascii_case("t") && fields.next().is_none()).then(|| name.to_string())
    };
    symbols.lines().filter_map(function).collect()
}

fn matching(mut names: Vec<String>, pattern: &str) -> Vec<String> {
    names.retain(|name| matches(pattern, name));
    names.sort_unstable();
    names.dedup();
    names
}

/// Whether `pattern`, in which `*` matches any text, matches the whole name.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let start = parts.next().unwrap_or("");
    let Some(mut rest) = name.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(end) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(end)
}

/// Latency of the calls of a function.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Latency {
    /// Calls that began, including nested calls and calls that have not returned.
    pub begun: u64,
    pub count: u64,
    pub sum_ns: u64,
    pub longest_ns: u64,
    /// (Bound in nanoseconds, calls below it and not below the bound of the entry before).
    pub slots: Vec<(u64, u64)>,
}

/// Times the calls of a function.
#[derive(Debug)]
pub struct Stopwatch {
    object: Object,
    links: Vec<Link>,
}

impl Stopwatch {
    pub fn start(pid: i32, function: &Function) -> Result<Stopwatch> {
        let object = load(pid, &["on_begin", "on_return"])?;
        let offset = usize::try_from(function.offset)?;
        let mut links = Vec::new();
        for (name, is_return) in [("on_return", true), ("on_begin", false)] {
            let link = program(&object, name)?.attach_uprobe(is_return, pid, &function.path, offset);
            links.push(link.with_context(|| format!("no probe can be put into {}", function.name))?);
        }
        Ok(Stopwatch { object, links })
    }

    /// Returns the number of calls that began so far.
    pub fn begun(&self) -> u64 {
        first::<shared::Latency>(&self.object, "latency", 0).map_or(0, |latency| latency.begun)
    }

    pub fn finish(mut self) -> Latency {
        self.links.clear();
        let Some(seen) = first::<shared::Latency>(&self.object, "latency", 0) else {
            return Latency::default();
        };
        let slots = (0..SLOTS).filter(|&slot| seen.slots[slot] > 0);
        Latency {
            begun: seen.begun,
            count: seen.count,
            sum_ns: seen.sum_ns,
            longest_ns: seen.longest_ns,
            slots: slots.map(|slot| (end_of(slot), seen.slots[slot])).collect(),
        }
    }
}

/// The exclusive upper bound of a slot in nanoseconds, matching `slot_of` of probe.bpf.c.
fn end_of(slot: usize) -> u64 {
    let next = slot as u64 + 1;
    match (next / 4, next % 4) {
        (0, quarter) => quarter,
        (1, _) => 4, // slots 4 to 7 stay empty
        (power @ 2..64, quarter) => (4 + quarter) << (power - 2),
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        assert!(matches("sched_switch", "sched_switch") && !matches("sched_switch", "sched_switch_x"));
        assert!(matches("sched_*", "sched_switch") && !matches("sched_*", "xsched_switch"));
        assert!(matches("*_switch", "sched_switch") && matches("s*_s*h", "sched_switch"));
        assert!(matches("*", "anything") && !matches("", "anything"));
        assert!(!matches("ab*b", "ab"), "parts do not overlap");
    }

    /// `slot_of` of probe.bpf.c.
    fn slot_of(ns: u64) -> usize {
        let power = ns.max(1).ilog2() as usize;
        if power < 2 { ns as usize } else { power * 4 + ((ns >> (power - 2)) & 3) as usize }
    }

    #[test]
    fn each_time_is_within_the_bounds_of_its_slot() {
        for ns in (0..70).chain([1_000, 65_535, 65_536, u64::MAX / 2 + 1, u64::MAX - 1]) {
            let slot = slot_of(ns);
            assert!(ns < end_of(slot), "{ns} in {slot}");
            assert!(slot == 0 || ns >= end_of(slot - 1), "{ns} in {slot}");
        }
    }
}
