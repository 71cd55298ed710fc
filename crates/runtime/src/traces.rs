//! Stack traces of all threads, for an operator who asks what a server that does not answer is doing.
//!
//! A thread can walk its own stack only. So each thread in turn gets a signal whose handler stores the
//! addresses of its frames, and the thread that asks puts them into words. The handler makes
//! async-signal-safe calls only: the walk takes no lock after a first one, which [`of_all_threads`] makes.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Most frames of a trace.
const FRAMES: usize = 64;

/// Longest wait for a thread: one that is blocked in the kernel does not answer.
const ANSWER_MAX: Duration = Duration::from_millis(100);

/// The thread that has to answer; zero: none.
static ASKED: AtomicI32 = AtomicI32::new(0);
static IS_ANSWERED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static ADDRESSES: [AtomicPtr<c_void>; FRAMES] = [const { AtomicPtr::new(null_mut()) }; FRAMES];

/// A thread's name and frames, innermost first.
pub struct Trace {
    pub name: String,
    pub thread_id: i32,
    /// `None`: the thread did not answer.
    pub frames: Option<Vec<String>>,
}

fn own_id() -> i32 {
    // SAFETY: the call has no arguments and cannot fail.
    unsafe { libc::gettid() }
}

extern "C" fn answer(_: i32) {
    // SAFETY: `errno` is a thread's own; the interrupted code must find it unchanged.
    let errno = unsafe { *libc::__errno_location() };
    if ASKED.load(SeqCst) == own_id() {
        let mut frames = [null_mut(); FRAMES];
        // SAFETY: there is room for as many frames.
        let count = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as i32) }.max(0) as usize;
        for (to, from) in ADDRESSES.iter().zip(&frames[..count]) {
            to.store(*from, Relaxed);
        }
        COUNT.store(count, Relaxed);
        // The caller may have given up on this thread, and asked another.
        if ASKED.load(SeqCst) == own_id() {
            IS_ANSWERED.store(true, SeqCst);
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns the traces of all threads but the caller's.
pub fn of_all_threads() -> Vec<Trace> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    let signal = libc::SIGRTMIN() + 7;
    let mut frame = [null_mut(); 1];
    // SAFETY: there is room for a frame, which loads the code that the handler must not load; the action has
    // the signature of a plain handler.
    unsafe {
        libc::backtrace(frame.as_mut_ptr(), 1);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = answer as *const () as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(signal, &action, null_mut());
    }
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let ids = tasks.filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok());
    let traces = ids.filter(|id| *id != own_id()).map(|id| trace(id, signal)).collect();
    ASKED.store(0, SeqCst);
    traces
}

fn trace(thread_id: i32, signal: i32) -> Trace {
    let name = std::fs::read_to_string(format!("/proc/self/task/{thread_id}/comm")).unwrap_or_default();
    IS_ANSWERED.store(false, SeqCst);
    ASKED.store(thread_id, SeqCst);
    // SAFETY: the signal has a handler; a thread that has ended gets none.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread_id, signal) } == 0;
    let until = Instant::now() + ANSWER_MAX;
    while sent && !IS_ANSWERED.load(SeqCst) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    let frames = IS_ANSWERED.load(SeqCst).then(frames);
    Trace { name: name.trim_end().to_owned(), thread_id, frames }
}

/// Puts the stored addresses into words: file and offset, as addr2line takes them.
fn frames() -> Vec<String> {
    let count = COUNT.load(Relaxed).min(FRAMES);
    let addresses: Vec<*mut c_void> = ADDRESSES[..count].iter().map(|one| one.load(Relaxed)).collect();
    // SAFETY: the length is the vector's; the result is null or as many C strings, in memory to be freed.
    unsafe {
        let texts = libc::backtrace_symbols(addresses.as_ptr(), count as i32);
        if texts.is_null() {
            return addresses.iter().map(|address| format!("[{address:p}]")).collect();
        }
        let text = |at| CStr::from_ptr(*texts.add(at)).to_string_lossy().into_owned();
        let frames = (0..count).map(text).collect();
        libc::free(texts.cast());
        frames
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn every_thread_has_a_trace() {
        let (stop, wait) = channel::<()>();
        let thread = crate::threads::named("traced").spawn(move || wait.recv()).expect("a thread");
        let traces = of_all_threads();
        let traced = traces.iter().find(|trace| trace.name == "traced").expect("it is running");
        assert!(traced.thread_id > 0);
        assert!(traced.frames.as_ref().expect("it answers").len() > 2, "{:?}", traced.frames);
        assert!(traces.iter().all(|trace| trace.thread_id != own_id()));
        stop.send(()).expect("it waits");
        thread.join().expect("no panic").expect("a message");
    }
}
