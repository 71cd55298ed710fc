//! CPU samples without BPF: perf delivers registers and a copy of the stack, and this process walks it.
//!
//! With privileges, samples include the kernel's frames. An unprivileged user gets samples of user code, of
//! his own processes. Each CPU has a ring for the samples of all threads there; threads that begin later are
//! included by inheritance.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};

use crate::attach::online_cpus;
use crate::event::{self, ClockTarget, Wanted};
use crate::harvest::Stacks;
use crate::ring::Ring;
use crate::shared::STACK_COMPLETE;
use crate::symbols::Names;
use crate::tables::{self, Tables};
use crate::walk::{Registers, walk};
use crate::{Place, Sample, Seen};

/// Each thread takes a descriptor for each CPU. Beyond this bound, only the first threads are sampled.
const EVENTS_MAX: usize = 768;
const STACK_BYTES: u32 = 16 << 10;

const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_CALLCHAIN: u64 = 1 << 5;
const SAMPLE_REGS_USER: u64 = 1 << 12;
const SAMPLE_STACK_USER: u64 = 1 << 13;
/// Numbers of registers on x86-64; they come in this order.
const REGISTERS: u64 = 1 << 6 | 1 << 7 | 1 << 8; // bp, sp, ip
const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;
/// Addresses of a call chain from here on are context markers: "kernel follows", "user follows".
const MARKS_FROM: u64 = -4095_i64 as u64;

#[derive(Debug)]
pub struct Sampler {
    pid: i32,
    tables: Tables,
    sees_kernel: bool,
    rings: Vec<Ring>,
    /// Sampling ends when these are closed.
    _events: Vec<OwnedFd>,
    seen: Sampled,
    notes: Vec<String>,
}

/// Stacks and their counts; equal address lists are stored once.
#[derive(Debug, Default)]
struct Sampled {
    counts: HashMap<(i32, i32, u64), u64>,
    user: HashMap<(Vec<u64>, u32), u64>,
    kernel: HashMap<Vec<u64>, i32>,
    walked: u64,
    complete: u64,
    lost: u64,
}

impl Sampler {
    /// Begins to sample all threads of a process, with the kernel's frames if they are permitted.
    pub fn start(pid: i32, samples_a_second: u64) -> Result<Sampler> {
        let tables = tables::build(pid)?;
        let (sees_kernel, opened) = match open(pid, samples_a_second, true) {
            Ok(opened) => (true, opened),
            Err(_) => (false, open(pid, samples_a_second, false)?),
        };
        let notes = [tables.notes.clone(), opened.notes].concat();
        Ok(Sampler {
            pid,
            tables,
            sees_kernel,
            rings: opened.rings,
            _events: opened.events,
            seen: Sampled::default(),
            notes,
        })
    }

    /// Whether samples inside the kernel are included. Without them, a thread in a system call has no
    /// samples.
    pub fn sees_kernel(&self) -> bool {
        self.sees_kernel
    }

    /// Drains the rings. Call it often: a full ring loses samples.
    pub fn read(&mut self) {
        for ring in &mut self.rings {
            for (kind, bytes) in ring.drain() {
                match kind {
                    RECORD_SAMPLE => {
                        // The kernel writes the requested fields, so an unreadable sample is not from our
                        // events.
                        let _ = self.seen.add(&self.tables, &bytes, self.sees_kernel);
                    }
                    RECORD_LOST => self.seen.lost += Fields(&bytes[8.min(bytes.len())..]).word().unwrap_or(0),
                    _ => {}
                }
            }
        }
    }

    /// Symbolises everything. Without the running process there are no names.
    pub fn finish(mut self) -> Seen {
        self.read();
        let Sampled { counts, user, kernel, walked, complete, lost } = self.seen;
        let user = user.into_iter().map(|(stack, id)| (id, stack)).collect();
        let kernel = kernel.into_iter().map(|(stack, id)| (id, stack)).collect();
        let mut stacks = Stacks::new(user, kernel);
        stacks.name(&Names::new(self.pid, &self.tables));
        let mut samples: Vec<Sample> = counts
            .into_iter()
            .map(|((tid, kernel, user), count)| Sample {
                tid,
                place: Place::Outside,
                fd: None,
                stack: stacks.index(kernel, user),
                late: false,
                count,
            })
            .collect();
        samples.sort_by_key(|sample| (sample.tid, sample.stack));
        let (stacks, frames) = stacks.into_parts();
        Seen {
            samples,
            stacks,
            frames,
            stacks_walked: walked,
            stacks_complete: complete,
            lost,
            notes: self.notes,
            ..Seen::default()
        }
    }
}

struct Opened {
    rings: Vec<Ring>,
    events: Vec<OwnedFd>,
    notes: Vec<String>,
}

fn open(pid: i32, samples_a_second: u64, kernel: bool) -> Result<Opened> {
    let wanted = Wanted {
        sample_type: SAMPLE_TID
            | SAMPLE_REGS_USER
            | SAMPLE_STACK_USER
            | if kernel { SAMPLE_CALLCHAIN } else { 0 },
        flags: event::INHERIT | if kernel { event::EXCLUDE_CALLCHAIN_USER } else { event::EXCLUDE_KERNEL },
        registers: REGISTERS,
        stack_bytes: STACK_BYTES,
    };
    let threads = threads(pid)?;
    let cpus = online_cpus()?;
    let most = (EVENTS_MAX / cpus.len()).max(1);
    let mut opened = Opened { rings: Vec::new(), events: Vec::new(), notes: Vec::new() };
    if threads.len() > most {
        opened.notes.push(format!("only the first {most} of {} threads are sampled", threads.len()));
    }
    for cpu in cpus {
        let mut leader: Option<i32> = None;
        for &tid in threads.iter().take(most) {
            let event = match event::open_clock(ClockTarget::Thread(tid), cpu, samples_a_second, wanted) {
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue, // it has ended
                other => other.with_context(|| format!("perf_event_open for thread {tid}"))?,
            };
            match leader {
                None => {
                    opened.rings.push(Ring::map(event.as_fd()).context("no memory to sample into")?);
                    leader = Some(event.as_raw_fd());
                }
                Some(leader) => into_ring_of(&event, leader)?,
            }
            opened.events.push(event);
        }
    }
    ensure!(!opened.events.is_empty(), "it has no thread");
    Ok(opened)
}

fn threads(pid: i32) -> Result<Vec<i32>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).context("its threads cannot be read")?;
    let mut threads: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    threads.sort_unstable();
    Ok(threads)
}

fn into_ring_of(event: &OwnedFd, leader: i32) -> Result<()> {
    const SET_OUTPUT: libc::c_ulong = 0x2405; // PERF_EVENT_IOC_SET_OUTPUT
    // SAFETY: both descriptors are open, and the call keeps no pointer.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), SET_OUTPUT, leader) };
    ensure!(
        result == 0,
        "samples of two threads cannot be put together: {}",
        std::io::Error::last_os_error()
    );
    Ok(())
}

/// Reads the fields of a record in turn.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn word(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.bytes(8)?.try_into().ok()?))
    }

    fn half(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.bytes(4)?.try_into().ok()?))
    }
}

impl Sampled {
    fn add(&mut self, tables: &Tables, record: &[u8], has_kernel: bool) -> Option<()> {
        let mut fields = Fields(record);
        let _process = fields.half()?;
        let tid = fields.half()?.cast_signed();
        let mut kernel = Vec::new();
        if has_kernel {
            let count = fields.word()?;
            for _ in 0..count {
                let address = fields.word()?;
                if address < MARKS_FROM {
                    kernel.push(address);
                }
            }
        }
        let mut user = (Vec::new(), STACK_COMPLETE);
        if fields.word()? != 0 {
            let (bp, sp, ip) = (fields.word()?, fields.word()?, fields.word()?);
            let size = usize::try_from(fields.word()?).ok()?;
            let stack = fields.bytes(size)?;
            let copied = if size == 0 { 0 } else { usize::try_from(fields.word()?).ok()? };
            user = walk(tables, Registers { ip, sp, bp }, stack.get(..copied)?);
            self.walked += 1;
            self.complete += u64::from(user.1 == STACK_COMPLETE);
        }
        let next = self.kernel.len() as i32;
        let kernel = *self.kernel.entry(kernel).or_insert(next);
        let next = self.user.len() as u64;
        let user = *self.user.entry(user).or_insert(next);
        *self.counts.entry((tid, kernel, user)).or_default() += 1;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_loop_is_sampled_and_named() {
        let own = std::process::id().cast_signed();
        let mut sampler = match Sampler::start(own, 199) {
            Ok(sampler) => sampler,
            Err(error) => return println!("left out: {error:#}"),
        };
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 600 {
            spin_for_the_sampler();
            sampler.read();
        }
        let seen = sampler.finish();
        let inside = |sample: &&Sample| {
            let mut frames = seen.stacks[sample.stack as usize].iter();
            frames.any(|&frame| seen.frames[frame as usize].name.ends_with("spin_for_the_sampler"))
        };
        let ours: u64 = seen.samples.iter().filter(inside).map(|sample| sample.count).sum();
        assert!(ours >= 5, "{ours} of {} samples", seen.stacks_walked);
        assert!(seen.stacks_complete * 10 >= seen.stacks_walked * 8, "{} complete", seen.stacks_complete);
    }

    #[inline(never)]
    fn spin_for_the_sampler() {
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 20 {
            std::hint::spin_loop();
        }
    }
}
