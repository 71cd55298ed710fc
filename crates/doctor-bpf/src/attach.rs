//! Loads the programs, attaches them, and reads their cost.

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libbpf_rs::{Iter, IterOpts, Link, Map, MapCore, MapFlags, Object, ObjectBuilder, ProgramMut};

use crate::event::{self, ClockTarget, Wanted};
use crate::shared::{
    CALL_CLOSE, CALL_FUTEX, CALL_IDLE, CALL_ON_FD, CALL_POLL, CALL_RECEIVE, CALLS_MAX, Config, Control,
    Plain, TIME_SLOTS, as_bytes,
};
use crate::tables::Tables;
use crate::{CallClasses, Cost, Course};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/doctor.bpf.o"));

/// Minimum sleep that gets a stack. A walk takes about 2 us: at most a tenth of the sleep it explains.
const STACK_FROM_NS: u64 = 20_000;
/// Rows written to the kernel in one call.
const ROWS_A_BATCH: usize = 64 << 10;
const SAMPLES: &str = "on_sample";
/// Iterates over all tasks once, on request.
const TASK_PROGRAM: &str = "on_task";

#[derive(Debug)]
pub(crate) struct Programs {
    object: Object,
    links: Vec<Link>,
    pub(crate) config: Config,
    /// The spans of time in which the programs were attached.
    pub(crate) on: Vec<(u64, u64)>,
    samples_a_second: u64,
    epoch: u32,
    /// When the programs were attached, by their clock.
    since_ns: u64,
    /// The programs ignore events after this time, by their clock.
    until_ns: u64,
    /// While it is open, the kernel measures the run time of BPF programs.
    _measuring: Option<OwnedFd>,
    pub(crate) detached_at_ns: u64,
}

/// Whether this process is in the initial PID namespace, whose numbers the programs see.
pub(crate) fn in_first_namespace() -> bool {
    const FIRST_NAMESPACE: &str = "pid:[4026531836]"; // PROC_PID_INIT_INO
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == FIRST_NAMESPACE)
}

impl Programs {
    pub(crate) fn load(
        pid: i32,
        tables: &Tables,
        classes: &CallClasses,
        samples_a_second: u64,
        course: Course,
    ) -> Result<Programs> {
        libbpf_rs::set_print(None); // the error carries the reason
        let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
        // A tenth more: the window begins a little after the programs are attached.
        let least = course.window.mul_f64(1.1 / TIME_SLOTS as f64);
        let config = Config {
            tgid: pid.cast_unsigned(),
            mappings: tables.mappings.len() as u32,
            stack_from_ns: STACK_FROM_NS,
            stall_from_ns: course.stall.as_nanos() as u64,
            begin_ns: now_ns(),
            slot_ns: course.slot.max(least).as_nanos() as u64,
            call_flags: call_flags(classes),
        };
        for mut map in open.maps_mut() {
            match map.name().to_str() {
                Some(".rodata.config") => map.set_initial_value(as_bytes(&[config]))?,
                Some("rows") => map.set_max_entries(tables.rows.len().max(1) as u32)?,
                _ => {}
            }
        }
        let object = open.load().map_err(explain)?;
        let programs = Programs {
            object,
            links: Vec::new(),
            config,
            on: Vec::new(),
            samples_a_second,
            epoch: 0,
            since_ns: 0,
            until_ns: 0,
            _measuring: measure(),
            detached_at_ns: 0,
        };
        programs.write(tables)?;
        Ok(programs)
    }

    fn write(&self, tables: &Tables) -> Result<()> {
        write_array(&self.map("mappings")?, &tables.mappings)?;
        write_array(&self.map("rows")?, &tables.rows)
    }

    pub(crate) fn map(&self, name: &str) -> Result<Map<'_>> {
        self.object
            .maps()
            .find(|map| map.name() == OsStr::new(name))
            .with_context(|| format!("no map {name}"))
    }

    pub(crate) fn attach(&mut self, length: Duration) -> Result<()> {
        ensure!(self.links.is_empty(), "the programs are attached already");
        self.epoch += 1;
        self.since_ns = now_ns();
        self.extend(length)?;
        let mut links = Vec::new();
        let mut tasks = None;
        for program in self.object.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            let result = match name.as_str() {
                SAMPLES => attach_samples(&program, self.samples_a_second),
                TASK_PROGRAM => {
                    tasks = Some(program);
                    continue;
                }
                _ => program.attach_trace().map(|link| vec![link]).map_err(Into::into),
            };
            links.extend(result.with_context(|| format!("the program {name} cannot be attached"))?);
        }
        // Last: a thread that wakes after the iteration makes an event.
        run_task_program(&tasks.context("the object has no program that looks at tasks")?)?;
        self.links = links;
        Ok(())
    }

    /// Lets the programs handle events for `length` from now.
    pub(crate) fn extend(&mut self, length: Duration) -> Result<()> {
        self.until_ns = now_ns().saturating_add(length.as_nanos() as u64);
        let control = Control { epoch: self.epoch, pad: 0, since: self.since_ns, until: self.until_ns };
        self.map("control")?.update(&0_u32.to_ne_bytes(), as_bytes(&[control]), MapFlags::ANY)?;
        Ok(())
    }

    /// Detaches the programs. Returns false if they were not attached.
    pub(crate) fn detach(&mut self) -> bool {
        if self.links.is_empty() {
            return false;
        }
        self.detached_at_ns = now_ns().min(self.until_ns);
        self.on.push((self.since_ns, self.detached_at_ns));
        self.links.clear();
        true
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    pub(crate) fn cost(&self) -> Cost {
        let mut cost = Cost::default();
        for program in self.object.progs_mut() {
            if let Some((ns, runs)) = run_time(&program) {
                cost.time += Duration::from_nanos(ns);
                cost.runs += runs;
            }
        }
        cost
    }
}

fn call_flags(classes: &CallClasses) -> [u8; CALLS_MAX] {
    let mut flags = [0; CALLS_MAX];
    let mut set = |number: i64, flag: u8| {
        if let Some(of) = usize::try_from(number).ok().and_then(|number| flags.get_mut(number)) {
            *of |= flag;
        }
    };
    classes.on_descriptor.iter().for_each(|&number| set(number, CALL_ON_FD));
    classes.idle.iter().for_each(|&number| set(number, CALL_IDLE));
    classes.polls.iter().for_each(|&number| set(number, CALL_POLL));
    classes.receives.iter().for_each(|&number| set(number, CALL_RECEIVE));
    set(classes.futex, CALL_FUTEX);
    set(classes.close, CALL_CLOSE);
    flags
}

pub(crate) fn explain(error: libbpf_rs::Error) -> anyhow::Error {
    let hint = match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => "it needs root, or CAP_BPF and CAP_PERFMON",
        _ => "the kernel refused the programs",
    };
    anyhow::Error::new(error).context(hint)
}

fn write_array<T: Plain>(map: &Map<'_>, values: &[T]) -> Result<()> {
    let mut written = 0_u32;
    for part in values.chunks(ROWS_A_BATCH) {
        let keys: Vec<u32> = (written..).take(part.len()).collect();
        let count = part.len() as u32;
        map.update_batch(as_bytes(&keys), as_bytes(part), count, MapFlags::ANY, MapFlags::ANY)
            .context("the tables for walking stacks cannot be written")?;
        written += count;
    }
    Ok(())
}

/// Runs the program once for each task of the machine.
fn run_task_program(program: &ProgramMut<'_>) -> Result<()> {
    let link = program.attach_iter_with_opts(IterOpts::None).context("tasks cannot be looked at")?;
    let mut tasks = Iter::new(&link).context("tasks cannot be looked at")?;
    // The program writes no output: the read ends once all tasks were visited.
    while tasks.read(&mut [0; 64]).context("tasks cannot be looked at")? > 0 {}
    Ok(())
}

/// Opens a perf event per CPU; the program runs at each of its samples.
fn attach_samples(program: &ProgramMut<'_>, samples_a_second: u64) -> Result<Vec<Link>> {
    let mut links = Vec::new();
    for cpu in online_cpus()? {
        let event = event::open_clock(ClockTarget::AllThreads, cpu, samples_a_second, Wanted::default());
        let event = event.with_context(|| format!("perf_event_open on CPU {cpu}"))?;
        links.push(program.attach_perf_event(event.into_raw_fd())?); // the link closes it
    }
    Ok(links)
}

pub(crate) fn online_cpus() -> Result<Vec<i32>> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    let mut cpus = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (i32, i32) = (first.parse()?, last.parse()?);
        ensure!(first <= last && last < 1 << 16, "the list of CPUs cannot be read: {text}");
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

/// Makes the kernel measure run times for as long as the descriptor is open. Older kernels cannot; then the
/// cost is unknown.
fn measure() -> Option<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    // SAFETY: the descriptor was just opened, and nothing else owns it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn run_time(program: &ProgramMut<'_>) -> Option<(u64, u64)> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: `info` is alive for the call, zero pointers in it ask for nothing, and its size is passed.
    let result = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &raw mut info, &raw mut length)
    };
    (result == 0).then_some((info.run_time_ns, info.run_cnt))
}

/// The clock of the programs: monotonic, without the machine's suspend time.
fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is alive for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
