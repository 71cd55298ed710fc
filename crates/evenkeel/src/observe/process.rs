//! What the operating system and the allocator say about this process.

use std::time::Duration;

/// Processor time used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CpuTime {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
}

/// Of all threads, or of child processes that have ended.
pub(crate) fn cpu_time(children: bool) -> CpuTime {
    let whose = if children { libc::RUSAGE_CHILDREN } else { libc::RUSAGE_SELF };
    // SAFETY: zeros are a valid `rusage`, which the call fills; `whose` is one of those it knows, so it cannot fail.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(whose, &mut usage);
        usage
    };
    let span = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    CpuTime { user: span(usage.ru_utime), system: span(usage.ru_stime) }
}

/// Bytes of physical memory in use.
pub(crate) fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * page_bytes()
}

fn page_bytes() -> u64 {
    // SAFETY: asks for a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

/// Bytes of physical memory of this machine.
pub(crate) fn machine_bytes() -> u64 {
    // SAFETY: asks for a number.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(pages).unwrap_or(0) * page_bytes()
}

/// The system's name, release and kind of processor.
pub(crate) fn system_name() -> String {
    // SAFETY: zeros are a valid `utsname`, which the call fills with text that ends in zeros.
    let name = unsafe {
        let mut name: libc::utsname = std::mem::zeroed();
        libc::uname(&mut name);
        name
    };
    let text = |chars: &[libc::c_char]| -> String {
        chars.iter().take_while(|char| **char != 0).map(|char| *char as u8 as char).collect()
    };
    format!("{} {} {}", text(&name.sysname), text(&name.release), text(&name.machine))
}

/// The allocator's own report about its memory.
pub(crate) fn allocator_report() -> String {
    unsafe extern "C" fn append(line: *const libc::c_char, text: *mut libc::c_void) {
        // SAFETY: the allocator passes a text that ends in a zero, and the address that it was given.
        let (line, text) = unsafe { (std::ffi::CStr::from_ptr(line), &mut *text.cast::<String>()) };
        text.push_str(&line.to_string_lossy());
    }
    let mut text = String::new();
    // SAFETY: the function and the text outlive the call.
    unsafe { libmimalloc_sys::mi_stats_print_out(Some(append), (&raw mut text).cast()) };
    text
}

/// Gives memory that this thread has and does not use back to the system.
pub(crate) fn purge() {
    // SAFETY: works on the allocator's own structures.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
