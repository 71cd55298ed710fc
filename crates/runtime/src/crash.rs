//! Crash reports: signal, address and backtrace, when a signal that means a bug ends the process.
//!
//! A signal handler may neither allocate, nor lock, nor wait for the log thread. So the report is put
//! together on the stack and written to the server log's file by system calls. Then the signal takes its
//! course: a core dump, or the message of Rust's own handler about a stack overflow.

use std::ffi::CString;
use std::fmt::{self, Write};
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::*};

const SIGNALS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT, libc::SIGSYS];

/// Most frames of a backtrace.
const FRAMES: usize = 100;

/// Data of the handler, prepared before any signal can arrive.
struct Known {
    /// File of the server log; `None`: standard output.
    logfile: Option<CString>,
    /// Each signal's action before this module's.
    before: [libc::sigaction; SIGNALS.len()],
}

static KNOWN: OnceLock<Known> = OnceLock::new();

/// Set by the first signal, the only signal that is reported: a later signal may be caused by the report
/// itself.
static REPORTED: AtomicBool = AtomicBool::new(false);

/// Whether reports are written; otherwise a signal only takes its course.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// Turns reports on or off. They go to `logfile`, or to standard output for `None`. The file of the first
/// call that turns reports on is kept.
pub fn follow(is_wanted: bool, logfile: Option<&Path>) {
    if is_wanted {
        watch(logfile);
    }
    IS_WANTED.store(is_wanted, SeqCst);
}

fn watch(logfile: Option<&Path>) {
    if KNOWN.get().is_some() {
        return; // installed before
    }
    let logfile = logfile.and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
    let mut frames = [ptr::null_mut(); 1];
    // SAFETY: there is room for a frame. The first call loads code that later calls, in a handler, must not
    // load.
    unsafe { libc::backtrace(frames.as_mut_ptr(), 1) };
    // SAFETY: zeros are a valid `sigaction`, both pointers are valid or null, and the call only reads the
    // present action.
    let before = SIGNALS.map(|signal| unsafe {
        let mut before: libc::sigaction = mem::zeroed();
        libc::sigaction(signal, ptr::null(), &mut before);
        before
    });
    if KNOWN.set(Known { logfile, before }).is_err() {
        return; // another thread has installed it
    }
    for signal in SIGNALS {
        // SAFETY: the handler has the signature that SA_SIGINFO asks for, and makes only async-signal-safe
        // calls.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = report as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(signal, &action, ptr::null_mut());
        }
    }
}

/// A text buffer on the stack; text beyond its end is left out.
struct Text {
    bytes: [u8; 512],
    len: usize,
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let len = text.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}

extern "C" fn report(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let Some(known) = KNOWN.get() else { return };
    if IS_WANTED.load(SeqCst) && !REPORTED.swap(true, SeqCst) {
        // SAFETY: the kernel passes a valid pointer.
        write_report(known, signal, unsafe { &*info });
    }
    let before = SIGNALS.iter().position(|other| *other == signal).map(|at| known.before[at]);
    // SAFETY: the pointer is valid, and the kernel returned the action. A signal of an instruction recurs
    // when that instruction runs again, and the earlier action handles it. A signal that a process has sent
    // is raised again, and ends the process.
    unsafe {
        match before {
            Some(before) if (*info).si_code > 0 => drop(libc::sigaction(signal, &before, ptr::null_mut())),
            _ => {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
    }
}

fn write_report(known: &Known, signal: i32, info: &libc::siginfo_t) {
    // SAFETY: the path is a C string; the descriptor stays open until the process ends.
    let fd = known.logfile.as_ref().map_or(-1, |path| unsafe {
        // An `open` of a pipe without a reader must not wait.
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NONBLOCK;
        libc::open(path.as_ptr(), flags, 0o644)
    });
    let fd = if fd < 0 { libc::STDOUT_FILENO } else { fd };
    let mut text = Text { bytes: [0; 512], len: 0 };
    // SAFETY: for signals of the kernel's own, this field of the union is set.
    let address = unsafe { info.si_addr() } as usize;
    let pid = std::process::id();
    let version = env!("CARGO_PKG_VERSION");
    // A `Text` truncates and never fails.
    let _ = write!(
        text,
        "\n\n=== EVENKEEL BUG REPORT START: Cut & paste starting from here ===\n\
         {pid}:M # Evenkeel {version} crashed by signal: {signal}, si_code: {}\n",
        info.si_code
    );
    let _ = match info.si_code {
        ..=0 => writeln!(text, "{pid}:M # The signal was sent by process {}", sender(info)),
        _ if signal == libc::SIGSYS => {
            writeln!(text, "{pid}:M # A seccomp filter denied system call {}", system_call(info))
        }
        _ => writeln!(text, "{pid}:M # Accessing address: {address:#x}"),
    };
    let _ = text.write_str("\n------ STACK TRACE ------\n");
    let mut frames = [ptr::null_mut(); FRAMES];
    // SAFETY: the lengths are those of the buffers; after a first call of `backtrace` these calls take no
    // lock.
    unsafe {
        libc::write(fd, text.bytes.as_ptr().cast(), text.len);
        let count = libc::backtrace(frames.as_mut_ptr(), FRAMES as i32);
        libc::backtrace_symbols_fd(frames.as_ptr(), count, fd);
        const END: &str = "\n=== EVENKEEL BUG REPORT END ===\n";
        libc::write(fd, END.as_ptr().cast(), END.len());
    }
}

fn sender(info: &libc::siginfo_t) -> i32 {
    // SAFETY: for signals that a process has sent, this field of the union is set.
    unsafe { info.si_pid() }
}

/// Returns the number of the system call that a seccomp filter has refused with SIGSYS.
fn system_call(info: &libc::siginfo_t) -> i32 {
    /// Offset on all 64-bit Linux: behind the signal, an error and a code, padding, and the address of the
    /// call.
    const AT: usize = 24;
    // SAFETY: the structure has 128 bytes, and for a SIGSYS of the kernel's own these four are the field
    // `si_syscall`.
    unsafe { (&raw const *info).cast::<u8>().add(AT).cast::<i32>().read() }
}
