//! System calls by number: their names, and whether their first argument is a descriptor.
//!
//! The numbers are libc's constants, so the table is right on every architecture. Calls that are missing here
//! are rare in servers and are shown by number.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Bound of the numbers; the largest of Linux 6.18 is 469.
pub(crate) const NUMBER_MAX: usize = 512;

macro_rules! table {
    ($list:ident: $($name:ident $number:ident),* $(,)?) => {
        const $list: &[(&str, i64)] = &[$((stringify!($name), libc::$number)),*];
    };
}

#[rustfmt::skip]
table!(ON_DESCRIPTOR:
    read SYS_read, write SYS_write, close SYS_close, fstat SYS_fstat, lseek SYS_lseek, ioctl SYS_ioctl,
    pread64 SYS_pread64, pwrite64 SYS_pwrite64, readv SYS_readv, writev SYS_writev, preadv SYS_preadv,
    pwritev SYS_pwritev, preadv2 SYS_preadv2, pwritev2 SYS_pwritev2, dup SYS_dup, dup3 SYS_dup3,
    connect SYS_connect, accept SYS_accept, accept4 SYS_accept4, sendto SYS_sendto, recvfrom SYS_recvfrom,
    sendmsg SYS_sendmsg, recvmsg SYS_recvmsg, sendmmsg SYS_sendmmsg, recvmmsg SYS_recvmmsg,
    shutdown SYS_shutdown, bind SYS_bind, listen SYS_listen, getsockname SYS_getsockname,
    getpeername SYS_getpeername, setsockopt SYS_setsockopt, getsockopt SYS_getsockopt, fcntl SYS_fcntl,
    flock SYS_flock, fsync SYS_fsync, fdatasync SYS_fdatasync, ftruncate SYS_ftruncate,
    fallocate SYS_fallocate, sync_file_range SYS_sync_file_range, splice SYS_splice, tee SYS_tee,
    sendfile SYS_sendfile,
    epoll_ctl SYS_epoll_ctl, epoll_pwait SYS_epoll_pwait, epoll_pwait2 SYS_epoll_pwait2,
    signalfd4 SYS_signalfd4, timerfd_settime SYS_timerfd_settime, getdents64 SYS_getdents64,
    io_uring_enter SYS_io_uring_enter, fadvise64 SYS_fadvise64, readahead SYS_readahead, syncfs SYS_syncfs,
    io_submit SYS_io_submit,
);

#[rustfmt::skip]
table!(OTHERS:
    mmap SYS_mmap, mprotect SYS_mprotect, munmap SYS_munmap, brk SYS_brk, rt_sigaction SYS_rt_sigaction,
    rt_sigprocmask SYS_rt_sigprocmask, mremap SYS_mremap, msync SYS_msync, madvise SYS_madvise,
    sched_yield SYS_sched_yield, nanosleep SYS_nanosleep, getpid SYS_getpid, socket SYS_socket,
    socketpair SYS_socketpair, clone SYS_clone, clone3 SYS_clone3, execve SYS_execve, exit SYS_exit,
    exit_group SYS_exit_group, wait4 SYS_wait4, waitid SYS_waitid, kill SYS_kill, tgkill SYS_tgkill,
    getrusage SYS_getrusage, gettimeofday SYS_gettimeofday, clock_gettime SYS_clock_gettime,
    clock_nanosleep SYS_clock_nanosleep, futex SYS_futex, getrandom SYS_getrandom, pselect6 SYS_pselect6,
    ppoll SYS_ppoll, rt_sigtimedwait SYS_rt_sigtimedwait, rt_sigsuspend SYS_rt_sigsuspend,
    restart_syscall SYS_restart_syscall, openat SYS_openat, unlinkat SYS_unlinkat, newfstatat SYS_newfstatat,
    renameat SYS_renameat, renameat2 SYS_renameat2, eventfd2 SYS_eventfd2, epoll_create1 SYS_epoll_create1,
    pipe2 SYS_pipe2, membarrier SYS_membarrier, io_getevents SYS_io_getevents, gettid SYS_gettid,
    sync SYS_sync, process_vm_readv SYS_process_vm_readv, set_robust_list SYS_set_robust_list,
    statx SYS_statx, sched_getaffinity SYS_sched_getaffinity, sched_setaffinity SYS_sched_setaffinity,
);

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
table!(OLD_ON_DESCRIPTOR: epoll_wait SYS_epoll_wait, dup2 SYS_dup2);

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
table!(OLD_OTHERS:
    open SYS_open, stat SYS_stat, lstat SYS_lstat, poll SYS_poll, select SYS_select, pipe SYS_pipe,
    fork SYS_fork, vfork SYS_vfork, rename SYS_rename, unlink SYS_unlink, pause SYS_pause, access SYS_access,
    time SYS_time,
);

#[cfg(not(target_arch = "x86_64"))]
const OLD_ON_DESCRIPTOR: &[(&str, i64)] = &[];
#[cfg(not(target_arch = "x86_64"))]
const OLD_OTHERS: &[(&str, i64)] = &[];

static NAMES: LazyLock<HashMap<i64, &str>> = LazyLock::new(|| {
    let tables = [ON_DESCRIPTOR, OTHERS, OLD_ON_DESCRIPTOR, OLD_OTHERS];
    tables.into_iter().flatten().map(|&(name, number)| (number, name)).collect()
});

pub(crate) fn name(number: i64) -> String {
    NAMES.get(&number).map_or_else(|| format!("syscall {number}"), ToString::to_string)
}

/// For each number, whether its first argument is a descriptor.
pub(crate) fn on_descriptor() -> [bool; NUMBER_MAX] {
    let mut table = [false; NUMBER_MAX];
    for &(_, number) in ON_DESCRIPTOR.iter().chain(OLD_ON_DESCRIPTOR) {
        table[usize::try_from(number).expect("numbers of calls are small and positive")] = true;
    }
    table
}

pub(crate) const FUTEX: i64 = libc::SYS_futex;

/// Whether a futex wait is for a held mutex, as opposed to a wait for work.
///
/// The mutexes of glibc and of Rust's std both store 2 for "held, with waiters", and wait on that value.
/// Condition variables wait for the change of a counter, semaphores and parked threads for 0 or -1. A counter
/// that is just 2 is mistaken for a mutex once in its life. PI mutexes wait by operations of their own.
pub(crate) fn is_lock_wait(operation: u64, value: u64) -> bool {
    const WAIT: u64 = 0;
    const LOCK_PI: u64 = 6;
    const WAIT_BITSET: u64 = 9;
    const LOCK_PI2: u64 = 13;
    match operation & 0x7f {
        WAIT | WAIT_BITSET => value as u32 == 2,
        LOCK_PI | LOCK_PI2 => true,
        _ => false,
    }
}

/// The call name of waits for a mutex; all other futex waits are under "futex".
pub(crate) const FUTEX_LOCK: &str = "futex-lock";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_of_calls_are_unique() {
        assert_eq!(name(libc::SYS_fdatasync), "fdatasync");
        assert_eq!(name(9_999), "syscall 9999");
        let all = [ON_DESCRIPTOR, OTHERS, OLD_ON_DESCRIPTOR, OLD_OTHERS].concat();
        assert_eq!(NAMES.len(), all.len());
        assert!(on_descriptor()[libc::SYS_write as usize] && !on_descriptor()[libc::SYS_futex as usize]);
    }
}
