//! Optional system calls, and seccomp filters that would end the process for them.
//!
//! A service manager or a container runtime may install a seccomp filter, whose action for a forbidden system
//! call may be to kill the process. That is systemd's default, and Debian's unit for redis-server does it.
//! Once the call is made the process cannot prevent that action, and nothing is logged. So at the start,
//! before there are other threads, the process tries each system call that the server can do without in a
//! child process. A call that has ended its child then counts as a call that the kernel refuses.
//!
//! No child is started where `/proc/self/status` shows no filter.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// System calls that the server can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Longer time slices for a snapshot's thread.
    SchedSetattr,
    /// Binding threads to cores, for `thread-affinity`.
    SchedSetaffinity,
    /// A higher limit of open files, for `maxclients`.
    Setrlimit,
    /// Resident pages of a range, for the thread that populates memory ahead.
    Mincore,
    /// The old owner for a file that is replaced.
    Fchown,
    /// Space on the disk for the spill file of replication.
    Fallocate,
    /// Early writeback.
    SyncFileRange,
    /// Memory of the data that an upgrade passes on.
    MemfdCreate,
}

impl Call {
    const ALL: [Call; 8] = [
        Call::SchedSetattr,
        Call::SchedSetaffinity,
        Call::Setrlimit,
        Call::Mincore,
        Call::Fchown,
        Call::Fallocate,
        Call::SyncFileRange,
        Call::MemfdCreate,
    ];

    fn name(self) -> &'static str {
        match self {
            Call::SchedSetattr => "sched_setattr",
            Call::SchedSetaffinity => "sched_setaffinity",
            Call::Setrlimit => "setrlimit",
            Call::Mincore => "mincore",
            Call::Fchown => "fchown",
            Call::Fallocate => "fallocate",
            Call::SyncFileRange => "sync_file_range",
            Call::MemfdCreate => "memfd_create",
        }
    }

    fn bit(self) -> u32 {
        1 << self as u32
    }

    /// Makes the call in a form that changes nothing, whether the kernel refuses it or not. Allocates
    /// nothing.
    fn make(self) {
        // SAFETY: pointers are null, which the kernel refuses, or valid; -1 is no descriptor; a limit is set
        // to its present value.
        unsafe {
            match self {
                Call::SchedSetattr => {
                    libc::syscall(libc::SYS_sched_getattr, 0, ptr::null::<u8>(), 0, 0);
                    libc::syscall(libc::SYS_sched_setattr, 0, ptr::null::<u8>(), 0);
                }
                Call::SchedSetaffinity => _ = libc::sched_setaffinity(0, 0, ptr::null()),
                Call::Setrlimit => {
                    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                    if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
                        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
                    }
                }
                Call::Mincore => _ = libc::mincore(ptr::null_mut(), 0, ptr::null_mut()),
                Call::Fchown => _ = libc::fchown(-1, u32::MAX, u32::MAX),
                Call::Fallocate => _ = libc::fallocate(-1, libc::FALLOC_FL_KEEP_SIZE, 0, 1),
                Call::SyncFileRange => _ = libc::sync_file_range(-1, 0, 1, libc::SYNC_FILE_RANGE_WRITE),
                Call::MemfdCreate => _ = libc::memfd_create(ptr::null(), 0),
            }
        }
    }
}

/// Bits of the calls that would end the process.
static FORBIDDEN: AtomicU32 = AtomicU32::new(0);

/// Whether the server may make the call: false only where a filter would end the process for it.
pub fn permits(call: Call) -> bool {
    FORBIDDEN.load(Relaxed) & call.bit() == 0
}

/// Finds the calls that would end the process. Call it at the start, while there are no other threads.
/// Returns a line for the server log if there are any.
pub fn probe() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !has_filter(&status) {
        return None;
    }
    let forbidden: Vec<Call> = Call::ALL.into_iter().filter(|call| !is_survived(|| call.make())).collect();
    FORBIDDEN.store(forbidden.iter().map(|call| call.bit()).sum(), Relaxed);
    let names: Vec<&str> = forbidden.iter().map(|call| call.name()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "The seccomp filter of this process kills it on these optional system calls, so they are not \
             used: {}. In a systemd unit, add them to SystemCallFilter=, or set \
             SystemCallErrorNumber=EPERM.",
            names.join(", ")
        )
    })
}

/// Whether `status`, the text of `/proc/self/status`, shows an installed seccomp filter.
fn has_filter(status: &str) -> bool {
    const FILTER: &str = "2";
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() == FILTER)
}

/// Whether a child process survives `make`. Returns false if no child can be started.
fn is_survived(make: impl FnOnce()) -> bool {
    // SAFETY: the child makes only system calls, which need no lock that another thread may have had, and
    // exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: see above. The child is not dumpable: a filter that ends it leaves no core dump.
        unsafe {
            libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
            make();
            libc::_exit(0);
        }
    }
    let mut status = 0;
    loop {
        // SAFETY: writes the status of a child of this process.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        if waited >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return child > 0 && waited == child && libc::WIFEXITED(status);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_told_by_the_status() {
        assert!(has_filter("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(!has_filter("Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n"));
        assert!(!has_filter(""), "a kernel without seccomp");
    }

    #[test]
    fn a_call_that_ends_its_process_is_found() {
        assert!(Call::ALL.into_iter().all(|call| is_survived(|| call.make())));
        // SAFETY: ends the child only.
        assert!(!is_survived(|| _ = unsafe { libc::raise(libc::SIGSYS) }));
    }
}
