//! R24: tasks of a language's runtime that wait for one lock, and tasks that are ready and do not run.
//!
//! The samples of a runtime (`collect/runtimes`) count tasks by state: goroutines, threads of Java or
//! Python. A task with work runs, is ready, waits for a lock, or does something slow (it sleeps, it is in a
//! system call) while it may hold one. Tasks that wait for the network or for other tasks are not counted,
//! since their wait may be one for work.

use std::collections::BTreeMap;

use super::functions::{HOT_CONFIDENCE, sentence_case};
use super::{SHARE_MIN, millis, percent};
use crate::analyse::finding::{Finding, Outcome};
use crate::analyse::view::View;
use crate::recording::{Runtime, Task, TaskState};

const SAMPLES_MIN: u64 = 5;
/// Tasks that wait for one lock on average, from which it is a cause: with fewer, its holder is alone most
/// of the time.
const WAITERS_MIN: f64 = 0.5;
/// Part of the tasks with work that wait for the lock, from which it is a cause.
const WAITERS_PART_MIN: f64 = 0.2;
/// Ready tasks on average, from which the runtime has too few processors.
const READY_MIN: f64 = 1.0;
/// Part of the samples in which a place is seen to hold the lock, from which it is named.
const HOLDER_MIN: f64 = 0.3;
/// CPUs that all threads use together, and part of the running tasks in one function, from which that
/// function is named.
const COMPUTING_MIN: f64 = 0.5;
/// Functions of Go's garbage collector.
const COLLECTOR: &[&str] = &["runtime.gcBgMarkWorker", "runtime.gcAssistAlloc", "runtime.bgsweep"];
/// The name of Python's lock, as `collect/runtimes` gives it.
pub(crate) const INTERPRETER_LOCK: &str = "the interpreter lock (GIL)";

pub(crate) fn evaluate(view: &View<'_>) -> Outcome {
    let Some(runtime) = &view.recording.runtime else {
        return Outcome::RuledOut("it is no program of Go, Java or Python".to_string());
    };
    let paused = paused(view, runtime);
    if runtime.seen < SAMPLES_MIN {
        if !paused.is_empty() {
            return Outcome::Found(paused);
        }
        let why = runtime.notes.first().map_or("its tasks were hardly sampled", String::as_str);
        return Outcome::Unseen(format!("{}: {why}", runtime.name));
    }
    let at_work = mean(runtime, |task| is_at_work(task.state));
    let mut findings: Vec<Finding> = contended_locks(runtime, at_work)
        .into_iter()
        .take(2)
        .map(|lock| contended(view, runtime, &lock, at_work))
        .collect();
    findings.extend(paused);
    findings.extend(crowded(view, runtime, at_work));
    findings.extend(computing(view, runtime));
    Outcome::found_or(findings, || {
        let waiting = mean(runtime, |task| task.state == TaskState::Lock);
        format!("of {at_work:.1} {} at work on average, {waiting:.1} wait for locks", tasks(runtime))
    })
}

/// Whether a lock of the runtime is a cause.
pub(super) fn waits_for_locks(view: &View<'_>) -> bool {
    let runtime = view.recording.runtime.as_ref().filter(|runtime| runtime.seen >= SAMPLES_MIN);
    runtime.is_some_and(|runtime| {
        !contended_locks(runtime, mean(runtime, |task| is_at_work(task.state))).is_empty()
    })
}

/// The locks for which many tasks wait, of `at_work` on average.
fn contended_locks(runtime: &Runtime, at_work: f64) -> Vec<Lock> {
    let is_cause = |lock: &Lock| lock.waiters >= WAITERS_MIN && lock.waiters >= WAITERS_PART_MIN * at_work;
    locks(runtime).into_iter().filter(is_cause).collect()
}

/// The name of a runtime's tasks.
pub(super) fn tasks(runtime: &Runtime) -> &'static str {
    if runtime.name.starts_with("Go") { "goroutines" } else { "threads" }
}

fn is_at_work(state: TaskState) -> bool {
    !matches!(state, TaskState::Idle | TaskState::Network | TaskState::Signal)
}

/// The average number of tasks that fulfil a condition.
pub(super) fn mean(runtime: &Runtime, holds: impl Fn(&Task) -> bool) -> f64 {
    let count: u64 = runtime.tasks.iter().filter(|(task, _)| holds(task)).map(|(_, count)| count).sum();
    count as f64 / runtime.seen.max(1) as f64
}

/// A lock for which tasks wait. Locks without an address are told apart by the place of the wait.
#[derive(Debug)]
struct Lock {
    name: String,
    /// Average number of waiting tasks.
    waiters: f64,
    /// Where most of them wait.
    place: Option<String>,
}

fn locks(runtime: &Runtime) -> Vec<Lock> {
    let mut by_lock: BTreeMap<(&str, &str), BTreeMap<&str, u64>> = BTreeMap::new();
    for (task, count) in runtime.tasks.iter().filter(|(task, _)| task.state == TaskState::Lock) {
        let name = task.lock.as_deref().unwrap_or("a lock");
        let place = task.place.as_deref().unwrap_or("");
        let apart = if has_identity(name) { "" } else { function(place) };
        *by_lock.entry((name, apart)).or_default().entry(place).or_default() += count;
    }
    let mut locks: Vec<Lock> = by_lock
        .into_iter()
        .map(|((name, _), places)| {
            let waiting: u64 = places.values().sum();
            let most = places.into_iter().max_by_key(|(_, count)| *count);
            let place = most.map(|(place, _)| place.to_string()).filter(|place| !place.is_empty());
            Lock { name: name.to_string(), waiters: waiting as f64 / runtime.seen.max(1) as f64, place }
        })
        .collect();
    locks.sort_by(|a, b| b.waiters.total_cmp(&a.waiters));
    locks
}

/// Whether the name of a lock belongs to one lock alone.
fn has_identity(name: &str) -> bool {
    name == INTERPRETER_LOCK || name.contains(" 0x") || name.starts_with("a connection")
}

/// A place without its file and line.
fn function(place: &str) -> &str {
    place.split(" (").next().unwrap_or(place)
}

/// What the holder of a lock does most of the time, where that is seen: the runtime knows the holder, or a
/// task at work is in the function in which the others wait.
fn holder(runtime: &Runtime, lock: &Lock) -> Option<String> {
    // A holder that the runtime does not know is a task at work in the function in which the others wait.
    let is_known = runtime.tasks.iter().any(|(task, _)| task.holds.contains(&lock.name));
    let inside = |task: &Task| {
        if task.holds.contains(&lock.name) {
            return true;
        }
        let place = lock.place.as_deref().map(function);
        let same =
            place.is_some() && task.stack.iter().map(|frame| function(frame)).any(|f| Some(f) == place);
        !is_known && is_at_work(task.state) && task.state != TaskState::Lock && same
    };
    let mut doing: BTreeMap<String, u64> = BTreeMap::new();
    for (task, count) in runtime.tasks.iter().filter(|(task, _)| inside(task)) {
        *doing.entry(activity(task)?).or_default() += count;
    }
    let (activity, count) = doing.into_iter().max_by_key(|(_, count)| *count)?;
    (count as f64 >= HOLDER_MIN * runtime.seen as f64).then_some(activity)
}

/// "sleeps at main.update (x.go:14)"
pub(super) fn activity(task: &Task) -> Option<String> {
    let does = match task.state {
        TaskState::Running => "computes",
        TaskState::Ready => "is ready to run",
        TaskState::Lock => "waits for a lock",
        TaskState::Signal => "waits for another task",
        TaskState::Sleep => "sleeps",
        TaskState::Network => "waits for the network",
        TaskState::Call => "is in a system call",
        TaskState::Idle => return None,
    };
    let place = task.place.as_deref().or(task.stack.first().map(String::as_str));
    Some(place.map_or_else(|| does.to_string(), |place| format!("{does} at {place}")))
}

fn contended(view: &View<'_>, runtime: &Runtime, lock: &Lock, at_work: f64) -> Finding {
    let part = (lock.waiters / at_work.max(lock.waiters)).min(0.99);
    let tasks = tasks(runtime);
    let title = if lock.name == INTERPRETER_LOCK {
        let cpus = view.share(view.recording.threads.iter().map(|thread| thread.cpu_ns).sum());
        format!(
            "Python's threads share {INTERPRETER_LOCK}: {:.1} of {at_work:.1} at work wait for it, and all \
             together use {cpus:.2} CPUs",
            lock.waiters
        )
    } else {
        let at = lock.place.as_ref().map_or_else(String::new, |place| format!(" at {place}"));
        format!("{:.1} of {at_work:.1} {tasks} at work wait for {}{at}", lock.waiters, article(&lock.name))
    };
    let holder = holder(runtime, lock);
    let title = match &holder {
        Some(activity) => format!("{title}; the holder {activity}"),
        None => title,
    };
    let mut finding = Finding::new("R24", part, view.confidence(0.95, false).max(0.9), title)
        .about(format!("{} at {}", lock.name, lock.place.as_deref().unwrap_or("unknown places")))
        .evidence(
            format!("{} of the {tasks} at work, in {} samples", percent(part), runtime.seen),
            command(view, runtime),
        )
        .next(if lock.name == INTERPRETER_LOCK {
            "Use processes instead of threads for work in Python, or move it into code that releases the \
             lock (or a build of Python without it)."
        } else {
            "Do less while it is taken (no waiting, no sleeping), split it, or give each thread its own."
        });
    finding.holds_while_idle = true;
    if let Some(stack) = runtime.tasks.iter().find(|(task, _)| {
        task.state == TaskState::Lock && task.lock.as_deref().unwrap_or("a lock") == lock.name
    }) {
        finding = finding.evidence(innermost(&stack.0), command(view, runtime));
    }
    finding
}

fn article(name: &str) -> String {
    let is_plain = name.starts_with("a ") || name.starts_with("the ");
    if is_plain { name.to_string() } else { format!("a lock ({name})") }
}

/// Tasks that are ready, while the runtime has no processor for them.
fn crowded(view: &View<'_>, runtime: &Runtime, at_work: f64) -> Option<Finding> {
    let ready = mean(runtime, |task| task.state == TaskState::Ready);
    if ready < READY_MIN {
        return None;
    }
    let part = (ready / at_work.max(ready)).min(0.99);
    let cpus = view.share(view.recording.threads.iter().map(|thread| thread.cpu_ns).sum());
    let most = most_computing(view);
    let inside = most
        .as_ref()
        .map_or_else(String::new, |(name, part)| format!(", {} of that in {name}", percent(*part)));
    let title = format!(
        "{ready:.1} of {at_work:.1} {} at work wait for a processor of the runtime, which uses {cpus:.2} \
         CPUs{inside}",
        tasks(runtime)
    );
    let finding = Finding::new("R24", part, view.confidence(0.7, false), title)
        .about("ready tasks")
        .evidence(
            format!("{cpus:.2} CPUs by the kernel's count of all threads"),
            "pidstat -u -p PID 10 1".replace("PID", &view.pid().to_string()),
        )
        .frames(most.map(|(name, _)| name))
        .next("Give it more CPUs (GOMAXPROCS, the control group's limit), or less work.");
    Some(finding)
}

/// Whether the runtime stops all its tasks for much of the time.
pub(super) fn stops_all(view: &View<'_>) -> bool {
    view.recording.runtime.as_ref().is_some_and(|runtime| !paused(view, runtime).is_empty())
}

/// The times in which the runtime stops all its tasks.
fn paused(view: &View<'_>, runtime: &Runtime) -> Vec<Finding> {
    let long = runtime.pauses.iter().filter(|(_, ns)| view.share(*ns) >= SHARE_MIN);
    let finding = |(reason, ns): &(String, u64)| {
        let share = view.share(*ns);
        let title = format!("{} stops all threads for {} of the time", sentence_case(reason), percent(share));
        let mut finding = Finding::new("R24", share, view.confidence(0.95, false).max(0.9), title)
            .about(reason.clone())
            .evidence(
                format!("{} by the runtime's own count", millis(*ns)),
                format!("jstat -gcutil {} 1000", view.pid()),
            )
            .next("Allocate less on this path, or give the runtime more memory (-Xmx) or another collector.");
        finding.holds_while_idle = true;
        finding
    };
    long.map(finding).collect()
}

/// The function in which most of the running tasks are, where the runtime tells: the processor is in the
/// interpreter, or in code made at run time, and CPU samples name neither.
fn computing(view: &View<'_>, runtime: &Runtime) -> Option<Finding> {
    // What the kernel does for a function has rules of its own.
    let threads = view.recording.threads.iter();
    let cpus = view.share(threads.map(|thread| thread.cpu_ns.saturating_sub(thread.system_ns)).sum());
    let mut places: BTreeMap<&str, u64> = BTreeMap::new();
    let running = runtime.tasks.iter().filter(|(task, _)| task.state == TaskState::Running);
    let mut all = 0;
    for (task, count) in running {
        all += count;
        if let Some(place) = &task.place {
            *places.entry(function(place)).or_default() += count;
        }
    }
    let (name, count) = places.into_iter().max_by_key(|(_, count)| *count)?;
    let part = count as f64 / all.max(1) as f64;
    // A share of one thread's time: several threads may compute in the same function.
    let share = (cpus * part).min(0.99);
    if cpus < COMPUTING_MIN || share < COMPUTING_MIN * COMPUTING_MIN || all < SAMPLES_MIN {
        return None;
    }
    let task = runtime.tasks.iter().find(|(task, _)| task.place.as_deref().map(function) == Some(name));
    let stack = task.map_or_else(String::new, |(task, _)| innermost(task));
    let title = format!("The function {name} computes {} of the time, by {}", percent(share), runtime.name);
    let mut finding = Finding::new("R24", share, view.confidence(HOT_CONFIDENCE, false), title)
        .about(name)
        .evidence(
            format!("in {} of {all} samples of running {}", percent(part), tasks(runtime)),
            command(view, runtime),
        )
        .evidence(stack, command(view, runtime))
        .next("See what it does for each request, and what calls it that often.");
    finding.ceiling = 1.0 / (1.0 - share / 2.0);
    Some(finding)
}

/// The program's own function that computes most, over the samples of all threads: goroutines move between
/// them; and its part of all samples.
fn most_computing(view: &View<'_>) -> Option<(String, f64)> {
    let mut functions: BTreeMap<&str, u64> = BTreeMap::new();
    let mut all = 0;
    for sample in &view.recording.samples {
        all += sample.count;
        // The collector works in goroutines of its own, and in goroutines that allocate.
        if view.frames(sample.stack).any(|frame| COLLECTOR.iter().any(|name| frame.name.starts_with(name))) {
            *functions.entry("garbage collection").or_default() += sample.count;
            continue;
        }
        let own = view.frames(sample.stack).find(|frame| !frame.is_kernel() && is_own_in_go(&frame.name));
        *functions.entry(own.map_or("", |frame| frame.name.as_str())).or_default() += sample.count;
    }
    functions.remove("");
    let (name, count) = functions.into_iter().max_by_key(|(_, count)| *count)?;
    Some((name.to_string(), count as f64 / all.max(1) as f64))
}

/// The innermost functions of a task, each followed by its caller.
pub(super) fn innermost(task: &Task) -> String {
    task.stack.iter().take(6).map(String::as_str).collect::<Vec<_>>().join(" < ")
}

/// A command that shows the tasks of a runtime.
pub(super) fn command(view: &View<'_>, runtime: &Runtime) -> String {
    let pid = view.pid();
    match runtime.name.split(' ').next() {
        Some("Go") => {
            "go tool pprof http://ADDRESS/debug/pprof/mutex   # if the program serves it".to_string()
        }
        Some("Java") => format!("jstack -l {pid}"),
        _ => format!("py-spy dump --pid {pid}"),
    }
}

/// Whether a function is the program's, by the path of its package: packages of the standard library have no
/// dot in the first part, and so may the program's; then the part is a name that the library does not have.
pub(crate) fn is_own_in_go(name: &str) -> bool {
    const LIBRARY: &[&str] = &[
        "archive",
        "bufio",
        "bytes",
        "cmp",
        "compress",
        "container",
        "context",
        "crypto",
        "database",
        "debug",
        "embed",
        "encoding",
        "errors",
        "expvar",
        "flag",
        "fmt",
        "go",
        "hash",
        "html",
        "image",
        "index",
        "internal",
        "io",
        "iter",
        "log",
        "maps",
        "math",
        "mime",
        "net",
        "os",
        "path",
        "plugin",
        "reflect",
        "regexp",
        "runtime",
        "slices",
        "sort",
        "strconv",
        "strings",
        "sync",
        "syscall",
        "testing",
        "text",
        "time",
        "type:",
        "unicode",
        "unique",
        "unsafe",
        "vendor",
        "weak",
    ];
    let first = name.split('/').next().unwrap_or(name);
    if name.contains('/') && first.contains('.') {
        return !["golang.org", "google.golang.org"].contains(&first);
    }
    !LIBRARY.contains(&first.split('.').next().unwrap_or(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::{Verdict, diagnose};
    use crate::golden;
    use crate::recording::{Call, Recording, Wait};

    fn with_tasks(name: &str, tasks: Vec<(Task, u64)>) -> Recording {
        let mut recording = golden::idle();
        recording.target.name = "app".to_string();
        recording.runtime = Some(Runtime { name: name.to_string(), seen: 100, tasks, ..Runtime::default() });
        recording
    }

    fn task(state: TaskState, lock: Option<&str>, place: &str) -> Task {
        let lock = lock.map(ToString::to_string);
        Task {
            state,
            lock,
            holds: Vec::new(),
            place: Some(place.to_string()),
            stack: vec![place.to_string()],
        }
    }

    #[test]
    fn a_mutex_of_go_is_named_by_its_place_and_what_its_holder_does() {
        let waits = task(TaskState::Lock, Some("sync.Mutex"), "main.update (x.go:12)");
        let sleeps = task(TaskState::Sleep, None, "main.update (x.go:14)");
        let recording = with_tasks("Go 1.22", vec![(waits, 490), (sleeps, 98)]);
        let diagnosis = diagnose(&recording);
        assert_eq!(diagnosis.verdict, Verdict::Found);
        assert_eq!(
            diagnosis.sentence,
            "4.9 of 5.9 goroutines at work wait for a lock (sync.Mutex) at main.update (x.go:12); the holder \
             sleeps at main.update (x.go:14)"
        );
    }

    #[test]
    fn a_monitor_of_java_is_named_with_its_holder_wherever_that_is() {
        let waits = task(TaskState::Lock, Some("java.lang.Object 0x7f"), "Server.handle (Server.java:20)");
        let mut holds = task(TaskState::Sleep, None, "Server.slow (Server.java:30)");
        holds.holds.push("java.lang.Object 0x7f".to_string());
        let first = diagnose(&with_tasks("Java 17", vec![(waits, 500), (holds, 100)])).findings[0].clone();
        assert!(
            first.title.ends_with("; the holder sleeps at Server.slow (Server.java:30)"),
            "{}",
            first.title
        );
    }

    #[test]
    fn threads_that_share_pythons_lock_are_added_up() {
        let waits = task(TaskState::Lock, Some(INTERPRETER_LOCK), "work (app.py:10)");
        let mut runs = task(TaskState::Running, None, "work (app.py:10)");
        runs.holds.push(INTERPRETER_LOCK.to_string());
        let mut recording = with_tasks("Python 3.11", vec![(waits, 500), (runs, 100)]);
        recording.threads[0].cpu_ns = golden::WINDOW_NS / 6;
        let first = diagnose(&recording).findings[0].clone();
        assert!(first.title.contains("5.0 of 6.0 at work wait for it"), "{}", first.title);
        assert!(first.title.ends_with("the holder computes at work (app.py:10)"), "{}", first.title);
    }

    #[test]
    fn the_function_that_a_runtime_runs_most_is_named() {
        let task = |state, place: &str| task(state, None, place);
        let runs = vec![
            (task(TaskState::Running, "work (app.py:10)"), 50),
            (task(TaskState::Running, "work (app.py:11)"), 30),
            (task(TaskState::Running, "other (app.py:40)"), 10),
        ];
        let mut recording = with_tasks("Python 3.11", runs);
        recording.threads[0].cpu_ns = golden::WINDOW_NS;
        let first = diagnose(&recording).findings[0].clone();
        assert_eq!(first.title, "The function work computes 89% of the time, by Python 3.11");
        recording.threads[0].cpu_ns = golden::WINDOW_NS / 10;
        assert!(diagnose(&recording).findings.is_empty(), "it hardly computes");
    }

    #[test]
    fn the_time_in_which_the_runtime_stops_all_tasks_is_a_finding() {
        let mut recording = with_tasks("Java 17", Vec::new());
        let pause = |part: u64| ("garbage collection (Copy)".to_string(), golden::WINDOW_NS / part);
        if let Some(runtime) = &mut recording.runtime {
            (runtime.seen, runtime.pauses) = (0, vec![pause(5), pause(100)]);
        }
        let diagnosis = diagnose(&recording);
        assert_eq!(diagnosis.sentence, "Garbage collection (Copy) stops all threads for 20% of the time");
        assert_eq!(diagnosis.findings.len(), 1, "1% is none");
        // The JVM's threads then wait for locks of its own.
        let stack = golden::add_stack(&mut recording, &["allocate", "Monitor::lock", "pthread_mutex_lock"]);
        recording.frames.iter_mut().for_each(|frame| frame.module = "libjvm.so".to_string());
        let (tid, call, blocked_ns) = (golden::TID, Some("futex-lock".to_string()), golden::WINDOW_NS / 2);
        recording.calls.push(Call { tid, name: "futex-lock".to_string(), blocked_ns, ..Call::default() });
        recording.waits.push(Wait { tid, stack, call, blocked_ns, ..Wait::default() });
        let rules: Vec<_> = diagnose(&recording).findings.iter().map(|finding| finding.rule).collect();
        assert_eq!(rules, ["R24"]);
        recording.frames.iter_mut().for_each(|frame| frame.module = "app".to_string());
        assert!(diagnose(&recording).findings.iter().any(|finding| finding.rule == "R6"));
    }

    #[test]
    fn tasks_without_work_and_rare_waits_are_no_finding() {
        let idle = task(TaskState::Network, None, "main.serve (x.go:3)");
        let waits = task(TaskState::Lock, Some("sync.Mutex"), "main.update (x.go:12)");
        let runs = task(TaskState::Running, None, "main.work (x.go:20)");
        for tasks in [vec![(idle.clone(), 5_000)], vec![(waits, 10), (runs, 100), (idle, 5_000)]] {
            let rules = diagnose(&with_tasks("Go 1.22", tasks)).ruled_out;
            assert!(rules.iter().any(|ruled| ruled.rule == "R24" && !ruled.unseen), "{rules:?}");
        }
    }

    #[test]
    fn a_runtime_that_could_not_be_read_is_not_ruled_out() {
        let mut recording = with_tasks("Go 1.22", Vec::new());
        recording.runtime = Some(Runtime {
            name: "Go 1.22".to_string(),
            notes: vec!["its goroutines are hidden".to_string()],
            ..Runtime::default()
        });
        let ruled_out = diagnose(&recording).ruled_out;
        let unseen = ruled_out.iter().find(|ruled| ruled.rule == "R24").expect("it is listed");
        assert_eq!((unseen.unseen, unseen.why.as_str()), (true, "Go 1.22: its goroutines are hidden"));
    }

    #[test]
    fn functions_of_the_library_are_told_from_the_programs() {
        for own in ["main.main", "main.(*server).handle", "github.com/a/b.F", "x/handlers.Get"] {
            assert!(is_own_in_go(own), "{own}");
        }
        for library in ["net/http.(*conn).serve", "sync.(*Mutex).Lock", "golang.org/x/sync/errgroup.Go"] {
            assert!(!is_own_in_go(library), "{library}");
        }
    }
}
