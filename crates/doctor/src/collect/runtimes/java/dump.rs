//! The text of HotSpot's thread dump as values.
//!
//! The text is made for people and differs by version: JDK 9 put modules into the frames, JDK 21 the frames
//! of virtual threads below their carriers'. Lines that are not understood are left out, so a new version
//! loses details at most.

/// A thread with frames of Java, or a virtual thread that is on a carrier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Thread {
    pub(super) state: State,
    /// The header's number of the thread in the kernel, in the JVM's PID namespace.
    pub(super) native_id: Option<i32>,
    /// The innermost first.
    pub(super) frames: Vec<Frame>,
    /// The object at which the innermost frames wait, if they do.
    pub(super) wait: Option<Wait>,
    /// Objects whose monitor it has, and synchronizers that it owns, if the dump lists them.
    pub(super) holds: Vec<String>,
    pub(super) is_virtual: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum State {
    /// A carrier of a virtual thread, and the virtual thread itself: the dump gives none.
    #[default]
    Unknown,
    Runnable,
    Blocked,
    Sleeping,
    /// Parked, or in `Object.wait`, with a limit of time or without.
    Waiting,
    /// Not started, or ended.
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wait {
    /// For the monitor of an object.
    Monitor(String),
    /// For a notification of an object, whose monitor is free meanwhile.
    Notification(String),
    /// Parked, for an object that the program named.
    Parked(String),
    /// For another thread that initialises this class.
    ClassInit(String),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Frame {
    /// Class and method: "java.lang.Thread.run".
    pub(super) function: String,
    /// "Thread.java:840", "Native Method"; empty if unknown.
    pub(super) source: String,
}

impl Frame {
    pub(super) fn is_native(&self) -> bool {
        self.source == "Native Method"
    }

    /// The name of the class with its package.
    pub(super) fn class(&self) -> &str {
        self.function.rsplit_once('.').map_or("", |(class, _)| class)
    }

    pub(super) fn method(&self) -> &str {
        self.function.rsplit_once('.').map_or(&self.function, |(_, method)| method)
    }

    pub(super) fn describe(&self) -> String {
        if self.source.is_empty() {
            return self.function.clone();
        }
        format!("{} ({})", self.function, self.source)
    }
}

/// Returns the threads that have frames: the others are the JVM's own.
pub(super) fn parse(text: &str) -> Vec<Thread> {
    let mut threads: Vec<Thread> = Vec::new();
    for line in text.lines() {
        if line.starts_with('"') {
            threads.push(Thread { native_id: native_id(line), ..Thread::default() });
            continue;
        }
        // Behind the threads: deadlocks repeat some of them, without states.
        if line.starts_with("JNI global ref") || line.starts_with("Found ") {
            break;
        }
        let Some(thread) = threads.last_mut() else { continue };
        let line = line.trim();
        if let Some(state) = line.strip_prefix("java.lang.Thread.State: ") {
            thread.state = parse_state(state);
        } else if line.starts_with("Mounted virtual thread") {
            let native_id = thread.native_id;
            threads.push(Thread { native_id, is_virtual: true, ..Thread::default() });
        } else if let Some(frame) = line.strip_prefix("at ") {
            thread.frames.push(parse_frame(frame));
        } else if let Some(detail) = line.strip_prefix("- ") {
            add_detail(thread, detail);
        }
    }
    threads.retain(|thread| !thread.frames.is_empty());
    for thread in &mut threads {
        finish(thread);
    }
    threads
}

/// The number behind "nid=": hexadecimal up to JDK 20.
fn native_id(header: &str) -> Option<i32> {
    let (_, rest) = header.rsplit_once(" nid=")?;
    let number = rest.split(' ').next()?;
    match number.strip_prefix("0x") {
        Some(digits) => i32::from_str_radix(digits, 16).ok(),
        None => number.parse().ok(),
    }
}

fn parse_state(text: &str) -> State {
    let (name, how) = text.split_once(' ').unwrap_or((text, ""));
    match name {
        "RUNNABLE" => State::Runnable,
        "BLOCKED" => State::Blocked,
        "TIMED_WAITING" if how == "(sleeping)" => State::Sleeping,
        "WAITING" | "TIMED_WAITING" => State::Waiting,
        "NEW" | "TERMINATED" => State::Gone,
        _ => State::Unknown,
    }
}

/// Parses "java.lang.Thread.run(java.base@17.0.15/Thread.java:840)".
fn parse_frame(text: &str) -> Frame {
    let (function, source) = text.split_once('(').unwrap_or((text, ""));
    let source = source.trim_end_matches(')');
    let source = source.rsplit_once('/').map_or(source, |(_, source)| source);
    let source = if source == "Unknown Source" { "" } else { source };
    Frame { function: without_address(function), source: source.to_string() }
}

/// Removes the address from the name of a hidden class, as of a lambda: it differs in every process.
fn without_address(function: &str) -> String {
    match function.split_once("/0x") {
        Some((class, rest)) => {
            let rest = rest.trim_start_matches(|c: char| c.is_ascii_hexdigit());
            format!("{class}{rest}")
        }
        None => function.to_string(),
    }
}

/// Adds a line below a frame, or one of the list of owned synchronizers.
fn add_detail(thread: &mut Thread, detail: &str) {
    if let Some(rest) = detail.strip_prefix("locked ") {
        thread.holds.extend(parse_object(rest));
    } else if detail.starts_with('<') {
        thread.holds.extend(parse_object(detail));
    } else if thread.wait.is_none() {
        thread.wait = parse_wait(detail);
    }
}

fn parse_wait(detail: &str) -> Option<Wait> {
    let object = |prefix| detail.strip_prefix(prefix).and_then(parse_object);
    if let Some(class) = detail.strip_prefix("waiting on the Class initialization monitor for ") {
        return Some(Wait::ClassInit(class.trim().to_string()));
    }
    object("waiting to lock ")
        .or_else(|| object("waiting to re-lock in wait() "))
        .map(Wait::Monitor)
        .or_else(|| object("waiting on ").map(Wait::Notification))
        .or_else(|| object("parking to wait for ").map(Wait::Parked))
}

/// Parses " <0x00000000ff5f5938> (a java.lang.Object)" to "java.lang.Object 0xff5f5938". An object that the
/// compiler optimised away has no address.
fn parse_object(text: &str) -> Option<String> {
    let text = text.trim().strip_prefix('<')?;
    let (address, rest) = text.split_once('>')?;
    let class = rest.trim().strip_prefix("(a ")?.strip_suffix(')')?;
    // The inner classes of locks differ in fairness alone.
    let class = ["$NonfairSync", "$FairSync", "$Sync"]
        .iter()
        .find_map(|suffix| class.strip_suffix(suffix))
        .unwrap_or(class);
    let digits = address.strip_prefix("0x")?.trim_start_matches('0');
    (!digits.is_empty()).then(|| format!("{class} 0x{digits}"))
}

/// An object for which a thread waits is not among the locks that the thread has, although its frames locked
/// it: the monitor is free while its thread is in `Object.wait`.
fn finish(thread: &mut Thread) {
    if let Some(Wait::Monitor(object) | Wait::Notification(object)) = &thread.wait {
        thread.holds.retain(|locked| locked != object);
    }
    thread.holds.sort_unstable();
    thread.holds.dedup();
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// JDK 8: no modules, no SMR information, the wait's monitor is shown as locked.
    pub(in super::super) const JDK_8: &str = "2024-01-01 10:00:00
Full thread dump OpenJDK 64-Bit Server VM (25.452-b09 mixed mode):

\"worker-1\" #12 prio=5 os_prio=0 tid=0x00007f01d40e1000 nid=0x1a2b waiting for monitor entry [0x00007f01a]
   java.lang.Thread.State: BLOCKED (on object monitor)
\tat com.acme.Store.put(Store.java:40)
\t- waiting to lock <0x00000000ff5f5938> (a java.lang.Object)
\tat com.acme.Main$1.run(Main.java:12)
\tat java.lang.Thread.run(Thread.java:750)

\"consumer \\\"x\\\"\" #13 daemon prio=5 os_prio=0 tid=0x00007f01d40e2000 nid=0x1a2c in Object.wait() [0x0]
   java.lang.Thread.State: WAITING (on object monitor)
\tat java.lang.Object.wait(Native Method)
\t- waiting on <0x00000000ff000010> (a java.util.LinkedList)
\tat java.lang.Object.wait(Object.java:502)
\tat com.acme.Box.take(Box.java:9)
\t- locked <0x00000000ff000010> (a java.util.LinkedList)
\t- locked <0x00000000ff000020> (a java.lang.Class for com.acme.Box)

\"VM Thread\" os_prio=0 tid=0x00007f01d4071000 nid=0x1a11 runnable 

JNI global references: 15


Found one Java-level deadlock:
=============================
\"worker-1\":
  waiting to lock monitor 0x00007f018c0062c8 (object 0x00000000ff5f5938, a java.lang.Object),
Java stack information for the threads listed above:
===================================================
\"worker-1\":
\tat com.acme.Store.put(Store.java:40)
";

    /// JDK 17, with owned synchronizers.
    pub(in super::super) const JDK_17: &str = "2026-01-01 10:00:00
Full thread dump OpenJDK 64-Bit Server VM (17.0.15+6 mixed mode, sharing):

Threads class SMR info:
_java_thread_list=0x00007fb1ec004760, length=18, elements={
0x00007fb2700180b0, 0x00007fb270094510
}

\"Thread-0\" #12 prio=5 os_prio=0 cpu=5.82ms elapsed=1.72s tid=0x00007fb2703ac630 nid=0x482b waiting on \
                                            condition  [0x00007fb2498fb000]
   java.lang.Thread.State: WAITING (parking)
\tat jdk.internal.misc.Unsafe.park(java.base@17.0.15/Native Method)
\t- parking to wait for  <0x00000000fe894b98> (a java.util.concurrent.locks.ReentrantLock$NonfairSync)
\tat java.util.concurrent.locks.LockSupport.park(java.base@17.0.15/LockSupport.java:211)
\tat java.util.concurrent.locks.ReentrantLock.lock(java.base@17.0.15/ReentrantLock.java:322)
\tat LockServer.update(LockServer.java:46)
\tat LockServer$$Lambda$214/0x00007fb1fc144208.run(Unknown Source)

   Locked ownable synchronizers:
\t- None

\"Thread-1\" #13 prio=5 os_prio=0 cpu=5.82ms elapsed=1.72s tid=0x00007fb2703ac631 nid=0x482c waiting on \
                                            condition  [0x00007fb2498fb000]
   java.lang.Thread.State: TIMED_WAITING (sleeping)
\tat java.lang.Thread.sleep(java.base@17.0.15/Native Method)
\tat LockServer.update(LockServer.java:48)

   Locked ownable synchronizers:
\t- <0x00000000fe894b98> (a java.util.concurrent.locks.ReentrantLock$NonfairSync)

\"Signal Dispatcher\" #4 daemon prio=9 os_prio=0 cpu=0.29ms elapsed=5.73s tid=0x00007fb27009d560 nid=0x46df \
                                             waiting on condition  [0x0000000000000000]
   java.lang.Thread.State: RUNNABLE

   Locked ownable synchronizers:
\t- None

JNI global refs: 12, weak refs: 0
";

    /// JDK 21: decimal numbers, carriers, a wait for a class.
    pub(in super::super) const JDK_21: &str = "
\"ForkJoinPool-1-worker-1\" #24 [21051] daemon prio=5 os_prio=0 cpu=2052.03ms elapsed=3.06s \
tid=0x00007f6ad042d650  [0x00007f6ab0bf3000]
   Carrying virtual thread #23
\tat jdk.internal.vm.Continuation.run(java.base@21.0.3/Continuation.java:251)
\tat java.util.concurrent.ForkJoinPool.runWorker(java.base@21.0.3/ForkJoinPool.java:2019)
   Mounted virtual thread #23
\tat V.lambda$main$0(V.java:7)
\tat java.lang.VirtualThread.run(java.base@21.0.3/VirtualThread.java:460)

\"Thread-3\" #32 [21056] prio=5 os_prio=0 cpu=5.59ms elapsed=3.01s tid=0x00007f6ad0433ee0 nid=21056 in \
Object.wait()  [0x00007f6ab06f4000]
   java.lang.Thread.State: RUNNABLE
\tat V.use(V.java:10)
\t- waiting on the Class initialization monitor for V$Slow
\t- eliminated <owner is scalar replaced> (a java.lang.StringBuffer)

\"Thread-0\" #29 [21053] prio=5 os_prio=0 cpu=0.19ms elapsed=3.01s tid=0x00007f6ad042fec0 nid=21053 waiting \
for monitor entry  [0x00007f6ab09f4000]
   java.lang.Thread.State: BLOCKED (on object monitor)
\tat java.lang.Object.wait0(java.base@21.0.3/Native Method)
\t- waiting to re-lock in wait() <0x000000069da40648> (a java.lang.Object)
\tat java.lang.Object.wait(java.base@21.0.3/Object.java:389)
\tat V.lambda$main$2(V.java:9)
\t- locked <0x000000069da40648> (a java.lang.Object)
";

    #[test]
    fn a_dump_of_jdk_8_is_read_up_to_its_deadlocks() {
        let threads = parse(JDK_8);
        assert_eq!(threads.len(), 2, "{threads:?}");
        let (worker, consumer) = (&threads[0], &threads[1]);
        assert_eq!((worker.state, worker.native_id), (State::Blocked, Some(0x1a2b)));
        assert_eq!(worker.wait, Some(Wait::Monitor("java.lang.Object 0xff5f5938".to_string())));
        assert_eq!(worker.frames[0].describe(), "com.acme.Store.put (Store.java:40)");
        assert_eq!((worker.frames[1].class(), worker.frames[1].method()), ("com.acme.Main$1", "run"));
        assert_eq!(consumer.state, State::Waiting);
        assert_eq!(consumer.wait, Some(Wait::Notification("java.util.LinkedList 0xff000010".to_string())));
        let holds = ["java.lang.Class for com.acme.Box 0xff000020"];
        assert_eq!(consumer.holds, holds, "the monitor of the wait is free");
    }

    #[test]
    fn owned_synchronizers_are_those_that_others_park_for() {
        let threads = parse(JDK_17);
        assert_eq!(threads.len(), 2, "the dispatcher has no frames: {threads:?}");
        let lock = "java.util.concurrent.locks.ReentrantLock 0xfe894b98";
        assert_eq!(threads[0].wait, Some(Wait::Parked(lock.to_string())));
        assert!(threads[0].holds.is_empty() && threads[0].frames[0].is_native());
        assert_eq!(threads[0].frames[4].describe(), "LockServer$$Lambda$214.run");
        assert_eq!((threads[1].state, &threads[1].holds[..]), (State::Sleeping, &[lock.to_string()][..]));
        assert_eq!(threads[1].frames[0].describe(), "java.lang.Thread.sleep (Native Method)");
    }

    #[test]
    fn virtual_threads_follow_their_carriers() {
        let threads = parse(JDK_21);
        assert_eq!(
            threads.iter().map(|thread| thread.is_virtual).collect::<Vec<_>>(),
            [false, true, false, false]
        );
        assert_eq!((threads[1].state, threads[1].frames[0].class()), (State::Unknown, "V"));
        assert_eq!(threads[2].wait, Some(Wait::ClassInit("V$Slow".to_string())));
        assert_eq!(threads[2].native_id, Some(21056));
        assert_eq!(threads[3].wait, Some(Wait::Monitor("java.lang.Object 0x69da40648".to_string())));
        assert!(threads[3].holds.is_empty(), "it gave the monitor back and wants it again");
    }

    #[test]
    fn a_dump_that_is_cut_anywhere_is_read_as_far_as_it_goes() {
        for whole in [JDK_8, JDK_17, JDK_21] {
            let all = parse(whole).len();
            for (at, _) in whole.char_indices() {
                assert!(parse(&whole[..at]).len() <= all);
                assert!(parse(&whole[at..]).len() <= all);
            }
        }
        for odd in
            ["\"", "\"\n\tat", "\"\n\tat (", "\"\n\tat a.b(/", "\"\n\tat x/0x\n\t- locked <", "\"\n- <>()"]
        {
            parse(odd);
        }
        let odd = "\"a\" nid=0xffffffffffff x\n\tat ä.ö(ü)\n\t- locked <0x0> (a X)\n\t- locked <0xä> (a )";
        let threads = parse(odd);
        assert_eq!((threads[0].native_id, threads[0].frames[0].class()), (None, "ä"));
    }
}
