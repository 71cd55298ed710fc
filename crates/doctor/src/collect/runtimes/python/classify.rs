//! The state of a Python thread, from its frames and from what the kernel says of it.
//!
//! A wait for a `threading.Lock` and a wait for work look the same to the kernel, since Python builds its
//! conditions, events and queues from locks. The innermost frames tell them apart.

use py_spy::Frame;

use crate::recording::{TASK_FRAMES_MAX, Task, TaskState};

pub(super) const INTERPRETER_LOCK: &str = "the interpreter lock (GIL)";

/// What a thread does, as the kernel sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Activity {
    /// On a CPU, or ready for one.
    Running,
    /// Waits for the interpreter lock.
    InterpreterLock,
    /// Waits for the lock at this address.
    Lock(u64),
    Call {
        name: String,
        arguments: [u64; 6],
        /// Whether its descriptor is a socket.
        on_socket: bool,
    },
    /// Blocked outside of system calls.
    Elsewhere,
}

/// The thread as a task; `holds` tells whether it holds the interpreter lock.
pub(super) fn task(frames: &[Frame], activity: &Activity, holds: bool) -> Task {
    let state = state(frames, activity);
    let lock = match (state, activity) {
        (TaskState::Lock, Activity::InterpreterLock) => Some(INTERPRETER_LOCK.to_string()),
        (TaskState::Lock, Activity::Lock(address)) => Some(format!("lock {address:#x}")),
        _ => None,
    };
    Task {
        state,
        lock,
        holds: holds.then(|| INTERPRETER_LOCK.to_string()).into_iter().collect(),
        place: frames.iter().find(|frame| is_own(frame)).map(text),
        stack: frames.iter().take(TASK_FRAMES_MAX).map(text).collect(),
    }
}

fn state(frames: &[Frame], activity: &Activity) -> TaskState {
    match activity {
        Activity::Running => TaskState::Running,
        Activity::InterpreterLock => TaskState::Lock,
        Activity::Lock(_) => of_lock(frames),
        Activity::Call { name, arguments, on_socket } => of_call(frames, name, arguments, *on_socket),
        Activity::Elsewhere => TaskState::Call,
    }
}

/// A wait for a lock, which may be that of a condition, of a queue or of another thread's end.
fn of_lock(frames: &[Frame]) -> TaskState {
    let Some(top) = frames.first() else { return TaskState::Call };
    let is_for_tasks = match function(top) {
        // The queue of this pool is written in C.
        "_worker" => is_in(top, "concurrent/futures/thread.py"),
        "wait" | "join" | "_wait_for_tstate_lock" | "_shutdown" => is_in(top, "threading.py"),
        "get" => is_in(top, "multiprocessing/queues.py"),
        _ => false,
    };
    if is_for_tasks { of_wait(frames) } else { TaskState::Lock }
}

/// A wait for another task: for work or for a result.
fn of_wait(frames: &[Frame]) -> TaskState {
    let own = frames.iter().filter(|frame| is_own(frame)).count();
    let is_main = frames.last().is_some_and(|frame| function(frame) == "<module>");
    let is_from_queue =
        frames.get(1).is_some_and(|frame| function(frame) == "get" && is_in(frame, "queue.py"));
    // The function of a thread waits for its next work; a function that it calls waits for a result. The main
    // thread of a server waits for its end.
    let is_for_work = own == 0 || own == 1 && is_from_queue || own <= 2 && is_main;
    if is_for_work { TaskState::Idle } else { TaskState::Signal }
}

fn of_call(frames: &[Frame], name: &str, arguments: &[u64; 6], on_socket: bool) -> TaskState {
    match name {
        "clock_nanosleep" | "nanosleep" => TaskState::Sleep,
        "poll" | "ppoll" if arguments[1] == 0 => TaskState::Sleep,
        "select" | "pselect6" if arguments[0] == 0 => TaskState::Sleep,
        "read" | "poll" | "ppoll" | "select" | "pselect6" if is_of_processes(frames) => of_wait(frames),
        "poll" | "ppoll" | "select" | "pselect6" if is_loop(frames) => TaskState::Idle,
        "poll" | "ppoll" | "select" | "pselect6" => TaskState::Network,
        // Only servers and their event loops wait for more sockets than one at a time.
        "epoll_wait" | "epoll_pwait" | "epoll_pwait2" | "accept" | "accept4" => TaskState::Idle,
        "rt_sigtimedwait" | "rt_sigsuspend" | "pause" => TaskState::Idle,
        "connect" | "recvfrom" | "recvmsg" | "recvmmsg" | "sendto" | "sendmsg" | "sendmmsg" => {
            TaskState::Network
        }
        "read" | "readv" | "write" | "writev" | "sendfile" if on_socket => TaskState::Network,
        _ => TaskState::Call,
    }
}

/// Frames that a wait for the next connection or event may have innermost.
const WAITING_FRAMES: usize = 3;

/// Whether a wait for descriptors is that of an event loop or of a server for its next connection.
fn is_loop(frames: &[Frame]) -> bool {
    const LOOPS: [&str; 9] = [
        "/asyncio/",
        "/socketserver.py",
        "/gunicorn/",
        "/waitress/",
        "/twisted/internet/",
        "/cheroot/",
        "/tornado/",
        "/eventlet/hubs/",
        "/gevent/",
    ];
    let is_loops = |frame: &Frame| LOOPS.iter().any(|part| frame.filename.contains(part));
    frames.iter().take(WAITING_FRAMES).any(is_loops)
}

/// Whether a wait is for another process of the module `multiprocessing`.
fn is_of_processes(frames: &[Frame]) -> bool {
    let is_connection = |frame: &Frame| is_in(frame, "multiprocessing/connection.py");
    frames.iter().take(WAITING_FRAMES).any(is_connection)
}

/// Whether a frame is of the program itself: neither of the standard library nor of an installed package.
fn is_own(frame: &Frame) -> bool {
    const LIBRARIES: [&str; 4] = ["/lib/python3", "/lib64/python3", "/site-packages/", "/dist-packages/"];
    let file = &frame.filename;
    !file.starts_with("<frozen") && !LIBRARIES.iter().any(|part| file.contains(part))
}

/// Whether a frame is in the file of this name, which may begin with folders.
fn is_in(frame: &Frame, file: &str) -> bool {
    frame.filename.strip_suffix(file).is_some_and(|folder| folder.is_empty() || folder.ends_with('/'))
}

/// The function's own name: from 3.11 on, a frame's name begins with the class.
fn function(frame: &Frame) -> &str {
    frame.name.rsplit('.').next().unwrap_or(&frame.name)
}

fn text(frame: &Frame) -> String {
    // The functions around a function say nothing that its line does not.
    let name = frame.name.rsplit("<locals>.").next().unwrap_or(&frame.name);
    let file = frame.filename.rsplit('/').next().unwrap_or(&frame.filename);
    let text =
        if frame.line > 0 { format!("{name} ({file}:{})", frame.line) } else { format!("{name} ({file})") };
    // Names come from another process's memory.
    text.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames of "function file:line", the innermost first.
    fn frames(texts: &[&str]) -> Vec<Frame> {
        let frame = |text: &&str| {
            let (name, at) = text.split_once(' ').expect("a name and a file");
            let (file, line) = at.rsplit_once(':').expect("a file and a line");
            Frame {
                name: name.to_string(),
                filename: file.to_string(),
                module: None,
                short_filename: None,
                line: line.parse().expect("a line"),
                locals: None,
                is_entry: false,
                is_shim_entry: false,
            }
        };
        texts.iter().map(frame).collect()
    }

    fn call(name: &str, arguments: [u64; 6]) -> Activity {
        Activity::Call { name: name.to_string(), arguments, on_socket: false }
    }

    fn state_of(texts: &[&str], activity: &Activity) -> TaskState {
        task(&frames(texts), activity, false).state
    }

    const LOCK: Activity = Activity::Lock(0x55d0);
    const NONE: [u64; 6] = [0; 6];

    /// The outermost frames of a thread.
    const RUN: &str = "run /usr/lib/python3.11/threading.py:975";
    const BOOTSTRAP: &str = "_bootstrap /usr/lib/python3.11/threading.py:995";
    const WAIT: &str = "Condition.wait /usr/lib/python3.11/threading.py:320";
    const GET: &str = "Queue.get /usr/lib/python3.11/queue.py:171";

    #[test]
    fn the_holder_of_the_interpreter_lock_runs() {
        let stack = frames(&["checksum /srv/app.py:14", "serve /srv/app.py:21", RUN, BOOTSTRAP]);
        let task = task(&stack, &Activity::Running, true);
        assert_eq!((task.state, task.lock), (TaskState::Running, None));
        assert_eq!(task.holds, [INTERPRETER_LOCK]);
        assert_eq!(task.place.as_deref(), Some("checksum (app.py:14)"));
        assert_eq!(task.stack.len(), 4);
    }

    #[test]
    fn a_wait_for_the_interpreter_lock_is_a_lock_wherever_the_thread_is() {
        let stack = frames(&["SocketIO.write /usr/lib/python3.11/socket.py:724", "serve /srv/app.py:22"]);
        let task = task(&stack, &Activity::InterpreterLock, false);
        assert_eq!((task.state, task.lock.as_deref()), (TaskState::Lock, Some(INTERPRETER_LOCK)));
        assert_eq!(task.place.as_deref(), Some("serve (app.py:22)"));
        assert!(task.holds.is_empty());
    }

    #[test]
    fn a_lock_of_the_program_has_its_address() {
        let stack = frames(&["answer /srv/app.py:16", "serve /srv/app.py:24", RUN, BOOTSTRAP]);
        let task = task(&stack, &LOCK, false);
        assert_eq!((task.state, task.lock.as_deref()), (TaskState::Lock, Some("lock 0x55d0")));
        let semaphore = ["Semaphore.__enter__ /usr/lib/python3.11/threading.py:470", "f /srv/app.py:1"];
        assert_eq!(state_of(&semaphore, &LOCK), TaskState::Lock);
    }

    #[test]
    fn a_wait_of_a_pools_thread_is_idle_and_a_wait_for_a_result_is_a_signal() {
        let worker = "_worker /usr/lib/python3.11/concurrent/futures/thread.py:81";
        assert_eq!(state_of(&[worker, RUN, BOOTSTRAP], &LOCK), TaskState::Idle);
        assert_eq!(state_of(&[WAIT, GET, "loop /srv/app.py:5", RUN, BOOTSTRAP], &LOCK), TaskState::Idle);
        let of_package = "run /srv/lib/python3.11/site-packages/cheroot/workers/threadpool.py:112";
        assert_eq!(state_of(&[WAIT, GET, of_package, BOOTSTRAP], &LOCK), TaskState::Idle);
        let nested = [WAIT, GET, "answer /srv/app.py:5", "serve /srv/app.py:9", RUN, BOOTSTRAP];
        assert_eq!(state_of(&nested, &LOCK), TaskState::Signal);
        let future = "Future.result /usr/lib/python3.11/concurrent/futures/_base.py:451";
        assert_eq!(state_of(&[WAIT, future, "serve /srv/app.py:9", RUN], &LOCK), TaskState::Signal);
        let join = "Thread._wait_for_tstate_lock /usr/lib/python3.11/threading.py:1132";
        assert_eq!(state_of(&[join, "serve /srv/app.py:9", RUN], &LOCK), TaskState::Signal);
        assert_eq!(
            state_of(&[join, "main /srv/app.py:9", "<module> /srv/app.py:12"], &LOCK),
            TaskState::Idle
        );
    }

    #[test]
    fn a_function_of_the_program_may_be_named_like_one_of_the_library() {
        assert_eq!(state_of(&["wait /srv/app.py:3", RUN], &LOCK), TaskState::Lock);
        assert_eq!(state_of(&["wait /srv/mythreading.py:3", RUN], &LOCK), TaskState::Lock);
    }

    #[test]
    fn a_wait_without_descriptors_is_a_sleep() {
        let stack = ["answer /srv/app.py:12", "serve /srv/app.py:19"];
        assert_eq!(state_of(&stack, &call("clock_nanosleep", [1, 1, 0x7f, 0, 0, 0])), TaskState::Sleep);
        assert_eq!(state_of(&stack, &call("select", [0, 0, 0, 0, 0x7f, 0])), TaskState::Sleep);
        assert_eq!(state_of(&stack, &call("poll", [0, 0, 50, 0, 0, 0])), TaskState::Sleep);
        assert_eq!(state_of(&stack, &call("poll", [0x7f, 1, 50, 0, 0, 0])), TaskState::Network);
        assert_eq!(state_of(&stack, &call("pselect6", [7, 0x7f, 0, 0, 0, 0])), TaskState::Network);
    }

    #[test]
    fn an_event_loop_is_idle_and_a_client_waits_for_the_network() {
        let asyncio = [
            "SelectSelector.select /usr/lib/python3.11/selectors.py:319",
            "BaseEventLoop._run_once /usr/lib/python3.11/asyncio/base_events.py:1880",
        ];
        assert_eq!(state_of(&asyncio, &call("select", [7, 0x7f, 0, 0, 0, 0])), TaskState::Idle);
        assert_eq!(state_of(&asyncio, &call("epoll_wait", NONE)), TaskState::Idle);
        assert_eq!(state_of(&["main /srv/app.py:9"], &call("accept4", NONE)), TaskState::Idle);
        let names = ["getaddrinfo /usr/lib/python3.11/socket.py:962", "ask /srv/app.py:9"];
        assert_eq!(state_of(&names, &call("poll", [0x7f, 1, 5_000, 0, 0, 0])), TaskState::Network);
        assert_eq!(state_of(&["ask /srv/app.py:9"], &call("recvfrom", NONE)), TaskState::Network);
    }

    #[test]
    fn a_read_is_a_wait_for_the_network_if_it_is_from_a_socket() {
        let read = |on_socket| Activity::Call { name: "read".to_string(), arguments: NONE, on_socket };
        assert_eq!(state_of(&["ask /srv/app.py:9"], &read(true)), TaskState::Network);
        assert_eq!(state_of(&["ask /srv/app.py:9"], &read(false)), TaskState::Call);
        let process = "Connection._recv /usr/lib/python3.11/multiprocessing/connection.py:378";
        assert_eq!(
            state_of(&[process, "f /srv/app.py:9", "g /srv/app.py:2"], &read(false)),
            TaskState::Signal
        );
        assert_eq!(state_of(&["f /srv/app.py:9"], &call("fsync", NONE)), TaskState::Call);
        assert_eq!(state_of(&["f /srv/app.py:9"], &Activity::Elsewhere), TaskState::Call);
    }

    #[test]
    fn the_place_is_the_innermost_frame_of_the_program_itself() {
        let stack = frames(&[
            "read /usr/lib/python3.11/ssl.py:1",
            "ask /srv/venv/lib/python3.11/site-packages/redis/client.py:2",
            "<module> <frozen importlib._bootstrap>:3",
            "main.<locals>.handler /srv/app.py:0",
        ]);
        let task = task(&stack, &Activity::Running, false);
        assert_eq!(task.place.as_deref(), Some("handler (app.py)"));
        assert_eq!(task.stack[2], "<module> (<frozen importlib._bootstrap>:3)");
        let library = frames(&["read /usr/lib/python3.11/ssl.py:1"]);
        assert_eq!(super::task(&library, &Activity::Running, false).place, None);
    }

    #[test]
    fn a_deep_stack_is_cut() {
        let deep = vec!["f /srv/app.py:1"; 2 * TASK_FRAMES_MAX];
        assert_eq!(task(&frames(&deep), &Activity::Running, false).stack.len(), TASK_FRAMES_MAX);
    }
}
