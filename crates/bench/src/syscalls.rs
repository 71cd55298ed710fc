//! The number of system calls of a process, counted by the kernel's tracepoint on all of its threads.
//!
//! The counter costs each call some hundred nanoseconds, so nothing else is measured meanwhile. It needs
//! root, or `perf_event_paranoid` at -1; without these there is no count.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::FromRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const TRACEPOINT: &str = "events/raw_syscalls/sys_enter/id";
/// Mount points of the file system of tracepoints, if it is mounted.
const MOUNTED: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// `PERF_TYPE_TRACEPOINT`
const TYPE_TRACEPOINT: u32 = 2;

/// The first version of `struct perf_event_attr`, which all kernels accept. Zeroes mean: count, at once, in
/// user space and in the kernel.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

/// Counts from its creation on. Threads that start later are not counted.
pub(crate) struct Syscalls(Vec<File>);

impl Syscalls {
    pub(crate) fn count(pid: u32) -> io::Result<Self> {
        let id = tracepoint()?;
        let mut counters = Vec::new();
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let Ok(thread) = thread?.file_name().to_string_lossy().parse() else { continue };
            counters.push(open(id, thread)?);
        }
        Ok(Self(counters))
    }

    pub(crate) fn total(&mut self) -> io::Result<u64> {
        let mut total = 0;
        for counter in &mut self.0 {
            let mut value = [0; 8];
            counter.read_exact(&mut value)?;
            total += u64::from_ne_bytes(value);
        }
        Ok(total)
    }
}

fn open(id: u64, thread: libc::pid_t) -> io::Result<File> {
    let size = size_of::<Attributes>() as u32;
    let attributes = Attributes { kind: TYPE_TRACEPOINT, size, config: id, ..Attributes::default() };
    let (any_cpu, no_group, no_flags) = (-1, -1, 0);
    // SAFETY: the attributes outlive the call and hold their own size.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attributes, thread, any_cpu, no_group, no_flags)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    Ok(unsafe { File::from_raw_fd(fd as i32) })
}

/// Returns the number of the tracepoint. If the file system with it is not mounted, it is mounted for that
/// moment.
fn tracepoint() -> io::Result<u64> {
    let read = |folder: &Path| {
        let text = fs::read_to_string(folder.join(TRACEPOINT))?;
        text.trim().parse().map_err(|_| io::Error::other("the tracepoint has no number"))
    };
    if let Some(id) = MOUNTED.iter().find_map(|folder| read(Path::new(folder)).ok()) {
        return Ok(id);
    }
    let mount = Mount::new()?;
    read(&mount.0)
}

struct Mount(PathBuf);

impl Mount {
    fn new() -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("evenkeel-bench-tracefs-{}", std::process::id()));
        fs::create_dir(&folder)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tracefs", "none"]).arg(&folder).stderr(Stdio::null());
        let made = Mount(folder); // removed in any case
        if !mount.status()?.success() {
            return Err(io::Error::other("tracefs cannot be mounted"));
        }
        Ok(made)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // it may never have been mounted
        drop(Command::new("umount").arg(&self.0).stderr(Stdio::null()).status());
        drop(fs::remove_dir(&self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_calls_are_counted_if_permitted() {
        let mut calls = match Syscalls::count(std::process::id()) {
            Ok(calls) => calls,
            Err(error) => return println!("left out: {error}"),
        };
        let before = calls.total().expect("it can be read");
        for _ in 0..1_000 {
            // SAFETY: the call takes nothing and cannot fail.
            unsafe { libc::syscall(libc::SYS_getppid) };
        }
        let made = calls.total().expect("it can be read") - before;
        assert!((1_000..100_000).contains(&made), "{made}");
    }
}
