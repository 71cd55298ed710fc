//! What a thread of a dump waits for.
//!
//! A dump says how a thread waits, not for what: a worker without work and a request that waits for a reply
//! are both parked. The frames tell them apart. Waits inside the queues and pools of the JDK are waits for
//! work; other waits count if they were entered from the program's own code.

use super::dump::{Frame, State, Thread, Wait};
use crate::recording::{TASK_FRAMES_MAX, Task, TaskState};

/// Begins of the names of classes that are not the program's own: the JDK's and its languages'.
const PLATFORM: [&str; 8] = ["java.", "javax.", "jakarta.", "jdk.", "sun.", "com.sun.", "kotlin", "scala."];

/// As [`PLATFORM`], of frameworks and containers that call the program's code, or that it calls to reach a
/// database or a log. A class that is missing here is taken for the program's own, which costs a less
/// useful name in a finding.
const FRAMEWORKS: [&str; 20] = [
    "org.apache.catalina.",
    "org.apache.coyote.",
    "org.apache.tomcat.",
    "org.apache.http.",
    "org.apache.logging.",
    "org.eclipse.jetty.",
    "org.springframework.",
    "org.jboss.",
    "org.xnio.",
    "io.undertow.",
    "io.netty.",
    "io.vertx.",
    "reactor.",
    "okhttp3.",
    "com.zaxxer.hikari.",
    "org.hibernate.",
    "org.postgresql.",
    "com.mysql.",
    "org.slf4j.",
    "ch.qos.logback.",
];

/// Locks of the JDK: the classes that threads park for, without the inner classes for fairness.
const LOCKS: [&str; 3] = [
    "java.util.concurrent.locks.ReentrantLock",
    "java.util.concurrent.locks.ReentrantReadWriteLock",
    "java.util.concurrent.locks.StampedLock",
];

/// Functions, as ends of a class's name with a method, in which a thread waits for work. An empty method is
/// any method.
const WORK: [(&str, &str); 14] = [
    ("ThreadPoolExecutor", "getTask"),
    ("ForkJoinPool", "awaitWork"),
    ("ForkJoinPool", "awaitQuiescence"),
    ("DelayScheduler", ""),
    ("DelayedWorkQueue", ""),
    ("Queue", "take"),
    ("Queue", "poll"),
    ("Deque", "takeFirst"),
    ("Deque", "pollFirst"),
    ("Deque", "take"),
    ("Deque", "poll"),
    ("TimerThread", "mainLoop"),
    ("ReferenceQueue", "remove"),
    ("LinuxWatchService", ""),
];

/// Functions by which a main thread waits for the end of the program.
const ENDS: [(&str, &str); 4] = [
    ("java.lang.Thread", "join"),
    ("CountDownLatch", "await"),
    ("Executor", "awaitTermination"),
    ("ForkJoinPool", "awaitTermination"),
];

/// Waits for many connections at once, or for new ones.
const POLLS: [(&str, &str); 8] = [
    ("EPoll", "wait"),
    ("EPollArrayWrapper", "epollWait"),
    ("io.netty.channel.epoll.Native", ""),
    ("io.netty.channel.uring.Native", ""),
    ("Net", "accept"),
    ("PlainSocketImpl", "socketAccept"),
    ("ServerSocketChannelImpl", "accept0"),
    ("UnixDomainSockets", "accept0"),
];

/// Waits for one connection, or for a name server.
const NETWORK: [(&str, &str); 15] = [
    ("SocketDispatcher", "read0"),
    ("SocketDispatcher", "readv0"),
    ("SocketDispatcher", "write0"),
    ("SocketDispatcher", "writev0"),
    ("DatagramDispatcher", ""),
    ("DatagramChannelImpl", "receive0"),
    ("UnixDomainSockets", ""),
    ("Net", "poll"),
    ("Net", "connect0"),
    ("Net", "pollConnect"),
    ("SocketInputStream", "socketRead0"),
    ("SocketOutputStream", "socketWrite0"),
    ("PlainSocketImpl", ""),
    ("Inet6AddressImpl", ""),
    ("Inet4AddressImpl", ""),
];

/// Whether the class ends with that name: as a whole name behind a package or an outer class, or as the end
/// of a longer name ("LinkedBlockingQueue" is a "Queue").
fn is_one_of(frame: &Frame, functions: &[(&str, &str)]) -> bool {
    functions.iter().any(|(class, method)| {
        frame.class().ends_with(class) && (method.is_empty() || frame.method() == *method)
    })
}

/// As [`is_one_of`], by whole names of classes: "Net" is not the end of "com.acme.Internet".
fn is_exactly(frame: &Frame, functions: &[(&str, &str)]) -> bool {
    functions.iter().any(|(class, method)| {
        let before = frame.class().strip_suffix(class);
        let is_class = before.is_some_and(|before| before.is_empty() || before.ends_with(['.', '$']));
        is_class && (method.is_empty() || frame.method() == *method)
    })
}

fn is_own(frame: &Frame) -> bool {
    !PLATFORM.iter().chain(&FRAMEWORKS).any(|prefix| frame.function.starts_with(prefix))
}

/// Returns the tasks of a dump. `holds` has only locks that another thread waits for: each thread has
/// monitors of its own, as those of streams, and they would make every task differ.
///
/// `awaits_client` says of a thread, by its number in the dump and its place, whether it reads from a client.
pub(super) fn tasks(threads: &[Thread], mut awaits_client: impl FnMut(i32, &str) -> bool) -> Vec<Task> {
    let mut tasks: Vec<Task> = Vec::new();
    for thread in threads {
        let Some(mut task) = task(thread) else { continue };
        let reads = task.state == TaskState::Network && !thread.frames.first().is_some_and(writes);
        if let Some((native_id, place)) = thread.native_id.zip(task.place.as_deref())
            && reads
            && awaits_client(native_id, place)
        {
            task.state = TaskState::Idle;
        }
        tasks.push(task);
    }
    let mut wanted: Vec<String> = tasks.iter().filter_map(|task| task.lock.clone()).collect();
    wanted.sort_unstable();
    for task in &mut tasks {
        task.holds.retain(|lock| wanted.binary_search(lock).is_ok());
    }
    tasks
}

fn writes(frame: &Frame) -> bool {
    frame.method().to_ascii_lowercase().contains("write")
}

/// Whether a thread waits for a lock whose owner only the list of owned synchronizers tells.
pub(super) fn has_unknown_owner(tasks: &[Task]) -> bool {
    let is_parked = |task: &Task| task.lock.as_deref().is_some_and(is_lock);
    tasks.iter().any(|task| task.state == TaskState::Lock && is_parked(task))
}

/// `None` for a carrier: its virtual thread is the task.
fn task(thread: &Thread) -> Option<Task> {
    let (state, lock) = state(thread)?;
    Some(Task {
        state,
        lock,
        holds: thread.holds.clone(),
        place: thread.frames.iter().find(|frame| is_own(frame)).map(Frame::describe),
        stack: thread.frames.iter().take(TASK_FRAMES_MAX).map(Frame::describe).collect(),
    })
}

fn state(thread: &Thread) -> Option<(TaskState, Option<String>)> {
    match &thread.wait {
        Some(Wait::Monitor(lock)) => return Some((TaskState::Lock, Some(lock.clone()))),
        Some(Wait::ClassInit(class)) => {
            return Some((TaskState::Lock, Some(format!("initialisation of {class}"))));
        }
        _ => {}
    }
    let state = match thread.state {
        State::Gone => return None,
        State::Unknown if !thread.is_virtual => return None,
        State::Unknown => virtual_state(&thread.frames),
        known => known,
    };
    let only_own = |state| if thread.frames.iter().any(is_own) { state } else { TaskState::Idle };
    let state = match state {
        // It has just got the monitor, and its state is late.
        State::Blocked if !thread.holds.is_empty() => TaskState::Running,
        State::Blocked => TaskState::Lock,
        State::Sleeping => only_own(TaskState::Sleep),
        State::Waiting => return Some(waiting(thread)),
        _ => running(&thread.frames, only_own),
    };
    Some((state, None))
}

/// A virtual thread on its carrier runs, unless it is pinned there: then the innermost frame tells.
fn virtual_state(frames: &[Frame]) -> State {
    let Some(top) = frames.first() else { return State::Runnable };
    match (top.class(), top.method()) {
        ("jdk.internal.misc.Unsafe", "park") | ("java.lang.Object", "wait" | "wait0") => State::Waiting,
        ("java.lang.VirtualThread", "parkOnCarrierThread") => State::Waiting,
        ("java.lang.Thread", "sleep" | "sleep0" | "sleepNanos0") => State::Sleeping,
        _ => State::Runnable,
    }
}

fn is_lock(object: &str) -> bool {
    object.split(' ').next().is_some_and(|class| LOCKS.contains(&class))
}

/// Whether the frames enter a lock that the program built upon the JDK's queue of waiters, exclusively.
fn enters_synchronizer(frames: &[Frame]) -> bool {
    let queue = |frame: &&Frame| {
        ["AbstractQueuedSynchronizer", "AbstractQueuedLongSynchronizer"]
            .iter()
            .any(|class| frame.class().ends_with(class))
    };
    let mut inside = frames.iter().filter(queue).peekable();
    inside.peek().is_some() && !inside.any(|frame| frame.method().contains("Shared"))
}

fn waiting(thread: &Thread) -> (TaskState, Option<String>) {
    let frames = &thread.frames;
    if let Some(Wait::Parked(object)) = &thread.wait
        && (is_lock(object) || enters_synchronizer(frames))
    {
        return (TaskState::Lock, Some(object.clone()));
    }
    let mut own = frames.iter().filter(|frame| is_own(frame));
    let is_signal = match (own.next(), own.next()) {
        (None, _) => false,
        // The main thread of a server waits for its end.
        (Some(only), None) if only.method() == "main" => !frames.iter().any(|f| is_one_of(f, &ENDS)),
        _ => true,
    };
    // The JDK runs a program's timers below its own loops: the functions that the program called decide.
    let entered = frames.iter().take_while(|frame| !is_own(frame));
    let waits_for_work = entered.into_iter().any(|frame| is_one_of(frame, &WORK));
    (if is_signal && !waits_for_work { TaskState::Signal } else { TaskState::Idle }, None)
}

/// The state of a thread that the JVM calls runnable: that may be in a system call.
fn running(frames: &[Frame], only_own: impl Fn(TaskState) -> TaskState) -> TaskState {
    let Some(top) = frames.first().filter(|top| top.is_native()) else { return TaskState::Running };
    // Up to JDK 10, files and sockets are read by the same function.
    let reads = top.class().ends_with("FileDispatcherImpl");
    let of_socket = || frames.iter().take(8).any(|frame| frame.class().contains("Socket"));
    let accepts = frames.iter().take(4).any(|frame| frame.method().to_ascii_lowercase().contains("accept"));
    match () {
        () if is_exactly(top, &POLLS) || (accepts && is_exactly(top, &NETWORK)) => TaskState::Idle,
        () if is_exactly(top, &NETWORK) || (reads && of_socket()) => only_own(TaskState::Network),
        () => only_own(TaskState::Call),
    }
}

#[cfg(test)]
mod tests {
    use super::super::dump;
    use super::*;

    /// The state and the lock of a thread with this state and these lines below it.
    #[track_caller]
    fn check(state: &str, lines: &[&str], expected: (TaskState, Option<&str>)) {
        let text =
            format!("\"t\" #1 nid=0x7 x\n   java.lang.Thread.State: {state}\n\t{}\n", lines.join("\n\t"));
        let tasks = tasks(&dump::parse(&text), |_, _| false);
        let task = tasks.first().expect("a task");
        assert_eq!((task.state, task.lock.as_deref()), expected, "{text}");
    }

    const OWN: &str = "at com.acme.Shop.order(Shop.java:12)";
    const PARK: &str = "at jdk.internal.misc.Unsafe.park(java.base@17/Native Method)";

    #[test]
    fn a_lock_is_named_whoever_waits_for_it() {
        fn lock(name: &str) -> (TaskState, Option<&str>) {
            (TaskState::Lock, Some(name))
        }
        let monitor = "- waiting to lock <0x00000000ff5f5938> (a java.lang.Object)";
        check("BLOCKED (on object monitor)", &[OWN, monitor], lock("java.lang.Object 0xff5f5938"));
        check("BLOCKED (on object monitor)", &[OWN], (TaskState::Lock, None));
        let got = "- locked <0x00000000ff5f5938> (a java.lang.Object)";
        check("BLOCKED (on object monitor)", &[OWN, got], (TaskState::Running, None));
        let class = "- waiting on the Class initialization monitor for com.acme.Shop";
        check("RUNNABLE", &[OWN, class], lock("initialisation of com.acme.Shop"));
        for (class, name) in [
            ("ReentrantLock$NonfairSync", "ReentrantLock"),
            ("ReentrantReadWriteLock$FairSync", "ReentrantReadWriteLock"),
            ("StampedLock", "StampedLock"),
        ] {
            let parked = format!("- parking to wait for  <0x00000a> (a java.util.concurrent.locks.{class})");
            let name = format!("java.util.concurrent.locks.{name} 0xa");
            check("WAITING (parking)", &[PARK, &parked, OWN], lock(&name));
            check("TIMED_WAITING (parking)", &[PARK, &parked], lock(&name));
        }
        let parked = "- parking to wait for  <0x00000a> (a com.acme.SpinLock$Sync)";
        let queue = "at java.util.concurrent.locks.AbstractQueuedSynchronizer.acquire(java.base@17/A.java:1)";
        let shared = "at java.util.concurrent.locks.AbstractQueuedSynchronizer.acquireShared(A.java:1)";
        check("WAITING (parking)", &[PARK, parked, queue, OWN], lock("com.acme.SpinLock 0xa"));
        check("WAITING (parking)", &[PARK, parked, queue, shared, OWN], (TaskState::Signal, None));
    }

    #[test]
    fn a_wait_for_another_thread_differs_from_a_wait_for_work() {
        let condition = "- parking to wait for  <0x0a> (a java.util.concurrent.locks.\
                         AbstractQueuedSynchronizer$ConditionObject)";
        for (work, own) in [
            ("java.util.concurrent.ThreadPoolExecutor.getTask(java.base@17/T.java:1)", false),
            ("java.util.concurrent.LinkedBlockingQueue.take(java.base@17/T.java:1)", true),
            ("org.eclipse.jetty.util.BlockingArrayQueue.poll(B.java:1)", false),
            ("java.util.concurrent.ForkJoinPool.awaitWork(java.base@17/F.java:1)", false),
            ("java.util.concurrent.ScheduledThreadPoolExecutor$DelayedWorkQueue.take(S.java:1)", false),
        ] {
            let work = format!("at {work}");
            let lines = if own { vec![PARK, condition, &work, OWN] } else { vec![PARK, condition, &work] };
            check("WAITING (parking)", &lines, (TaskState::Idle, None));
        }
        let future = "at java.util.concurrent.CompletableFuture.get(java.base@17/C.java:1)";
        check("WAITING (parking)", &[PARK, future, OWN], (TaskState::Signal, None));
        check("WAITING (parking)", &[PARK, future], (TaskState::Idle, None));
        let wait = "at java.lang.Object.wait(Native Method)";
        check("WAITING (on object monitor)", &[wait, OWN], (TaskState::Signal, None));
        // A timer's task that waits: its loop is below the program's function.
        let timer = "at java.util.TimerThread.mainLoop(Timer.java:1)";
        check("WAITING (on object monitor)", &[wait, OWN, timer], (TaskState::Signal, None));
        check("WAITING (on object monitor)", &[wait, timer], (TaskState::Idle, None));
        let main = "at com.acme.Shop.main(Shop.java:1)";
        let join = "at java.lang.Thread.join(java.base@17/Thread.java:1)";
        check("WAITING (on object monitor)", &[wait, join, main], (TaskState::Idle, None));
        check("WAITING (on object monitor)", &[wait, join, OWN, main], (TaskState::Signal, None));
        check("WAITING (on object monitor)", &[wait, main], (TaskState::Signal, None));
    }

    #[test]
    fn a_runnable_thread_may_be_in_a_system_call() {
        for (top, expected) in [
            ("sun.nio.ch.EPoll.wait(java.base@17/Native Method)", TaskState::Idle),
            ("sun.nio.ch.EPollArrayWrapper.epollWait(Native Method)", TaskState::Idle),
            ("sun.nio.ch.Net.accept(java.base@17/Native Method)", TaskState::Idle),
            ("java.net.PlainSocketImpl.socketAccept(Native Method)", TaskState::Idle),
            ("java.net.SocketInputStream.socketRead0(Native Method)", TaskState::Network),
            ("sun.nio.ch.SocketDispatcher.read0(java.base@25/Native Method)", TaskState::Network),
            ("sun.nio.ch.Net.poll(java.base@17/Native Method)", TaskState::Network),
            ("java.net.Inet6AddressImpl.lookupAllHostAddr(java.base@17/Native Method)", TaskState::Network),
            ("sun.nio.ch.FileDispatcherImpl.force0(java.base@17/Native Method)", TaskState::Call),
            ("sun.nio.fs.UnixNativeDispatcher.stat0(java.base@17/Native Method)", TaskState::Call),
            ("com.acme.Internet.accept(Native Method)", TaskState::Call),
            ("com.acme.Shop.sum(Shop.java:80)", TaskState::Running),
        ] {
            check("RUNNABLE", &[&format!("at {top}"), OWN], (expected, None));
        }
        let read = "at sun.nio.ch.FileDispatcherImpl.read0(java.base@11/Native Method)";
        let socket = "at sun.nio.ch.SocketDispatcher.read(java.base@11/S.java:1)";
        check("RUNNABLE", &[read, socket, OWN], (TaskState::Network, None));
        check("RUNNABLE", &[read, OWN], (TaskState::Call, None));
        let poll = "at sun.nio.ch.Net.poll(java.base@17/Native Method)";
        let accept = "at sun.nio.ch.NioSocketImpl.accept(java.base@17/N.java:1)";
        check("RUNNABLE", &[poll, accept, OWN], (TaskState::Idle, None));
        check("RUNNABLE", &[poll], (TaskState::Idle, None));
        let sleep = "at java.lang.Thread.sleep(java.base@17/Native Method)";
        check("TIMED_WAITING (sleeping)", &[sleep, OWN], (TaskState::Sleep, None));
        check("TIMED_WAITING (sleeping)", &[sleep], (TaskState::Idle, None));
    }

    #[test]
    fn a_read_from_a_client_is_a_wait_for_work() {
        let text = |top: &str| {
            format!(
                "\"t\" nid=0x7 x\n   java.lang.Thread.State: RUNNABLE\n\tat {top}(Native Method)\n\t{OWN}\n"
            )
        };
        let state = |top, client| tasks(&dump::parse(&text(top)), |thread, _| thread == client)[0].state;
        assert_eq!(state("sun.nio.ch.SocketDispatcher.read0", 7), TaskState::Idle);
        assert_eq!(state("sun.nio.ch.SocketDispatcher.read0", 8), TaskState::Network);
        assert_eq!(state("sun.nio.ch.SocketDispatcher.write0", 7), TaskState::Network, "it reads slowly");
    }

    #[test]
    fn only_locks_that_are_waited_for_are_kept_of_a_task() {
        let tasks = tasks(&dump::parse(dump::tests::JDK_17), |_, _| false);
        let lock = "java.util.concurrent.locks.ReentrantLock 0xfe894b98".to_string();
        assert_eq!(
            (tasks[0].lock.as_ref(), tasks[0].place.as_deref()),
            (Some(&lock), Some("LockServer.update (LockServer.java:46)"))
        );
        assert_eq!(tasks[1].holds, [lock]);
        assert!(has_unknown_owner(&tasks));
        let tasks = super::tasks(&dump::parse(dump::tests::JDK_8), |_, _| false);
        assert!(tasks.iter().all(|task| task.holds.is_empty()), "nobody waits for the class: {tasks:?}");
        assert!(!has_unknown_owner(&tasks), "the dump tells who has a monitor");
    }

    #[test]
    fn a_carrier_is_no_task_and_its_virtual_thread_is() {
        let tasks = tasks(&dump::parse(dump::tests::JDK_21), |_, _| false);
        let seen: Vec<(TaskState, Option<&str>)> =
            tasks.iter().map(|task| (task.state, task.place.as_deref())).collect();
        assert_eq!(
            seen,
            [
                (TaskState::Running, Some("V.lambda$main$0 (V.java:7)")),
                (TaskState::Lock, Some("V.use (V.java:10)")),
                (TaskState::Lock, Some("V.lambda$main$2 (V.java:9)")),
            ]
        );
    }
}
