//! CPU samples by perf, where no programs can be loaded: without the privileges, or on a kernel without BTF.
//! Sleeps are then sampled from /proc, as without perf.

use anyhow::Result;
use evenkeel_doctor_bpf::{Sampler, Seen};

use super::kernel::convert_frame;
use crate::recording::{Recording, Sample, Tier};

/// Each sample copies 16 KiB of stack, so there are fewer than with BPF. 99 does not divide 100, the rate of
/// /proc.
const SAMPLES_A_SECOND: u64 = 99;
/// Prefixes of the kernel's functions for system calls; the call's name follows. The compiler decides which
/// of them a stack has: the rest tail-call it.
const CALL_PREFIXES: &[&str] = &["__x64_sys_", "__do_sys_", "__se_sys_", "ksys_", "__sys_"];

pub(crate) struct Collector {
    sampler: Sampler,
}

impl Collector {
    pub(crate) fn start(pid: i32) -> Result<Collector> {
        Ok(Collector { sampler: Sampler::start(pid, SAMPLES_A_SECOND)? })
    }

    pub(crate) fn tier(&self) -> Tier {
        if self.sampler.sees_kernel() { Tier::T1 } else { Tier::T2 }
    }

    pub(crate) fn tick(&mut self) {
        self.sampler.read();
    }

    pub(crate) fn fill(self, recording: &mut Recording) {
        let Seen { samples, stacks, frames, stacks_walked, stacks_complete, lost, notes, .. } =
            self.sampler.finish();
        recording.stacks = stacks;
        recording.frames = frames.into_iter().map(convert_frame).collect();
        recording.samples = samples
            .into_iter()
            .map(|sample| Sample {
                tid: sample.tid,
                stack: sample.stack,
                count: sample.count,
                call: call_of(recording, sample.stack),
                fd: None,
                late: false,
            })
            .collect();
        let health = &mut recording.health;
        (health.stacks, health.stacks_complete, health.events_lost) = (stacks_walked, stacks_complete, lost);
        health.notes.extend(notes);
    }
}

/// The system call that a stack is in.
fn call_of(recording: &Recording, stack: u32) -> Option<String> {
    let mut frames = recording.frames_of(stack).filter(|frame| frame.is_kernel());
    frames.find_map(|frame| {
        let name = CALL_PREFIXES.iter().find_map(|prefix| frame.name.strip_prefix(prefix))?;
        Some(name.strip_prefix("new").unwrap_or(name).to_string()) // as in newfstat
    })
}
