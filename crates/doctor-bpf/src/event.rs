//! Perf events on the kernel's CPU clock. It needs no hardware counter, so it works in virtual machines too.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// The first 96 bytes of `struct perf_event_attr`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    frequency: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clock: i32,
}
const _: () = assert!(size_of::<Attributes>() == 96); // PERF_ATTR_SIZE_VER3

/// The contents of a sample; the numbers are those of perf_event_open(2).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wanted {
    pub(crate) flags: u64,
    pub(crate) sample_type: u64,
    pub(crate) registers: u64,
    pub(crate) stack_bytes: u32,
}

pub(crate) const INHERIT: u64 = 1 << 1;
pub(crate) const EXCLUDE_KERNEL: u64 = 1 << 5;
const BY_FREQUENCY: u64 = 1 << 10;
pub(crate) const EXCLUDE_CALLCHAIN_USER: u64 = 1 << 22;

/// Which threads are sampled.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ClockTarget {
    AllThreads,
    Thread(i32),
}

/// Opens the clock of a CPU, with `frequency` samples a second.
pub(crate) fn open_clock(of: ClockTarget, cpu: i32, frequency: u64, wanted: Wanted) -> io::Result<OwnedFd> {
    const SOFTWARE: u32 = 1;
    const CPU_CLOCK: u64 = 0;
    const CLOSE_ON_EXEC: libc::c_ulong = 8;
    let attributes = Attributes {
        kind: SOFTWARE,
        size: size_of::<Attributes>() as u32,
        config: CPU_CLOCK,
        frequency,
        flags: wanted.flags | BY_FREQUENCY,
        sample_type: wanted.sample_type,
        sample_regs_user: wanted.registers,
        sample_stack_user: wanted.stack_bytes,
        ..Attributes::default()
    };
    let pid = match of {
        ClockTarget::AllThreads => -1,
        ClockTarget::Thread(tid) => tid,
    };
    let no_group = -1;
    // SAFETY: the structure is alive for the call, and its size is in it.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attributes, pid, cpu, no_group, CLOSE_ON_EXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
