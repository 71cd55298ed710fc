//! A recording from the point of view of its critical thread: the queries of the rules.

use std::collections::HashMap;

use super::critical::{Budget, roles};
use super::stacks::Tree;
use crate::recording::{Call, Frame, INTERVAL_ERRORS, Recording, Role, Sample, Tier, Wait};

/// Confidence factor of findings from sampled states, relative to exact times.
const SAMPLED: f64 = 0.75;
/// If the programs were attached for less than this part of the window, they may have missed short, rare
/// events.
const DUTY_LOW: f64 = 0.9;
/// Samples of the critical thread below which shares of functions mean nothing.
const SAMPLES_MIN: u64 = 50;

#[derive(Debug)]
pub(crate) struct View<'a> {
    pub(crate) recording: &'a Recording,
    pub(crate) critical: Budget,
    roles: HashMap<i32, Role>,
    samples_total: u64,
}

/// For each frame of the recording, whether it matches a predicate.
#[derive(Debug)]
pub(crate) struct Marks(Vec<bool>);

impl<'a> View<'a> {
    pub(crate) fn new(recording: &'a Recording, critical: Budget) -> View<'a> {
        let tid = critical.tid;
        let samples_total = recording.samples.iter().filter(|s| s.tid == tid).map(|s| s.count).sum();
        View { recording, critical, roles: roles(recording), samples_total }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.recording.target.pid
    }

    pub(crate) fn share(&self, ns: u64) -> f64 {
        self.critical.share(ns)
    }

    pub(crate) fn per_second(&self, count: u64) -> f64 {
        count as f64 / (self.recording.window_ns.max(1) as f64 / 1e9)
    }

    pub(crate) fn role(&self, fd: Option<i32>) -> Option<Role> {
        fd.and_then(|fd| self.roles.get(&fd).copied())
    }

    pub(crate) fn what(&self, fd: Option<i32>) -> Option<&'a str> {
        self.recording.descriptors.iter().find(|d| Some(d.fd) == fd).map(|d| d.what.as_str())
    }

    /// Calls of the critical thread.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &'a Call> + '_ {
        self.recording.calls.iter().filter(|call| call.tid == self.critical.tid)
    }

    /// Samples of the critical thread.
    pub(crate) fn samples(&self) -> impl Iterator<Item = &'a Sample> + '_ {
        self.recording.samples.iter().filter(|sample| sample.tid == self.critical.tid)
    }

    /// Sleeps of the critical thread, with their stacks.
    pub(crate) fn waits(&self) -> impl Iterator<Item = &'a Wait> + '_ {
        self.recording.waits.iter().filter(|wait| wait.tid == self.critical.tid)
    }

    /// Why no rule can exclude that a thread waits for something, if sleeps were hidden.
    pub(crate) fn hidden_sleeps(&self) -> Option<String> {
        let hidden = self.recording.health.sleeps_hidden;
        hidden.then(|| "the sleeps of its threads are hidden from this user".to_string())
    }

    /// The same for open descriptors.
    pub(crate) fn hidden_descriptors(&self) -> Option<String> {
        let hidden = self.recording.health.descriptors_hidden;
        hidden.then(|| "its descriptors are hidden from this user".to_string())
    }

    /// The same for short, rare events, if the programs were attached for a part of the window only.
    pub(crate) fn hidden_moments(&self) -> Option<String> {
        let duty = self.recording.health.duty;
        (duty < DUTY_LOW).then(|| format!("it was observed for {:.0}% of the window only", duty * 100.0))
    }

    pub(crate) fn has_samples(&self) -> bool {
        self.samples_total >= SAMPLES_MIN
    }

    /// Whether every system call was counted and timed.
    pub(crate) fn counts_calls(&self) -> bool {
        self.recording.tier == Tier::T0
    }

    /// Whether there are samples, with the kernel's functions.
    pub(crate) fn samples_kernel(&self) -> bool {
        self.has_samples() && self.recording.tier <= Tier::T1
    }

    /// The share of the critical thread's time that `count` of its samples represent.
    pub(crate) fn sample_share(&self, count: u64) -> f64 {
        count as f64 / self.samples_total.max(1) as f64 * self.share(self.sampled_cpu_ns())
    }

    /// The 95% sampling error of that share.
    pub(crate) fn sample_error(&self, count: u64) -> f64 {
        let taken = self.samples_total as f64 * self.recording.health.duty.clamp(1e-3, 1.0);
        let part = count as f64 / self.samples_total.max(1) as f64;
        INTERVAL_ERRORS * (part * (1.0 - part) / taken.max(1.0)).sqrt() * self.share(self.sampled_cpu_ns())
    }

    /// The 95% error of a share of counted time, which was scaled up for the pauses.
    pub(crate) fn scale_error(&self, share: f64) -> f64 {
        share * self.recording.health.scale_error.unwrap_or(0.0)
    }

    /// A count per second, and its error.
    pub(crate) fn rate(&self, count: u64) -> String {
        let error =
            self.recording.health.scale_error.map_or_else(String::new, |e| format!(" (±{:.0}%)", e * 100.0));
        format!("{:.0}{error}", self.per_second(count))
    }

    /// The CPU time that the samples cover: without privileges, they exclude the kernel's part.
    fn sampled_cpu_ns(&self) -> u64 {
        let (tid, all) = (self.critical.tid, self.critical.cpu_ns);
        let thread = self.recording.threads.iter().find(|thread| thread.tid == tid);
        match thread {
            Some(thread) if self.recording.tier == Tier::T2 => all.saturating_sub(thread.system_ns),
            _ => all,
        }
    }

    /// Frames of a stack, the innermost first.
    pub(crate) fn frames(&self, stack: u32) -> impl DoubleEndedIterator<Item = &'a Frame> + use<'a> {
        let recording = self.recording;
        recording.stacks[stack as usize].iter().map(|&index| &recording.frames[index as usize])
    }

    /// Marks the frames that match. Stacks share frames, so the predicate runs once per frame, not once per
    /// stack.
    pub(crate) fn mark(&self, is: impl Fn(&Frame) -> bool) -> Marks {
        Marks(self.recording.frames.iter().map(is).collect())
    }

    /// Whether a frame of a stack is marked.
    pub(crate) fn meets(&self, stack: u32, marks: &Marks) -> bool {
        self.recording.stacks[stack as usize].iter().any(|&index| marks.0[index as usize])
    }

    /// As `meets`, for the frames below the first that `until` marks, or for all.
    pub(crate) fn meets_below(&self, stack: u32, marks: &Marks, until: &Marks) -> bool {
        let frames = self.recording.stacks[stack as usize].iter().map(|&index| index as usize);
        frames.take_while(|&index| !until.0[index]).any(|index| marks.0[index])
    }

    /// The critical thread's samples as a tree of the frames that are `own`; the time of all other frames
    /// belongs to their caller.
    pub(crate) fn tree(&self, keep: impl Fn(&Sample) -> bool, own: impl Fn(&Frame) -> bool) -> Tree<'a> {
        let own = self.mark(own);
        let recording = self.recording;
        let mut tree = Tree::new(&recording.frames);
        for sample in self.samples().filter(|sample| keep(sample)) {
            let frames = recording.stacks[sample.stack as usize].iter().rev();
            tree.add(frames.copied().filter(|&index| own.0[index as usize]), sample.count);
        }
        tree
    }

    /// Reduces a confidence by the recording's quality. `by_stack`: the evidence comes from stacks.
    pub(crate) fn confidence(&self, base: f64, by_stack: bool) -> f64 {
        let health = &self.recording.health;
        let mut confidence = base;
        if self.recording.tier != Tier::T0 {
            confidence *= SAMPLED;
        }
        if health.events_lost > 0 {
            confidence *= 0.9;
        }
        if by_stack && health.stacks > 0 {
            confidence *= 0.5 + 0.5 * health.stacks_complete as f64 / health.stacks as f64;
        }
        confidence
    }
}
