//! The environment of cases: a case at a time, on dedicated CPUs, and access to the doctor's report.

use std::fmt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_testkit::{Program, Reference};
use serde_json::Value;

const SECONDS: &str = "3";
/// Loads and caches settle before the window.
const WARM_UP: Duration = Duration::from_millis(700);
const TIMEOUT: Duration = Duration::from_secs(20);

static STAGE: Mutex<()> = Mutex::new(());

/// Two concurrent cases would find each other.
pub(crate) fn stage() -> MutexGuard<'static, ()> {
    STAGE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// CPU and priority of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A dedicated CPU, at real-time priority.
    First,
    /// The other CPUs, at real-time priority.
    Rest,
    /// Any CPU, at real-time priority.
    All,
    /// As `First` and `Rest`, without priority: real-time priority would delay the timers of other processes.
    FirstAlike,
    RestAlike,
    Anywhere,
}

pub(crate) const SERVER: Place = Place::First;
pub(crate) const LOAD: Place = Place::Rest;
pub(crate) const ALL: Place = Place::All;
pub(crate) const ANYWHERE: Place = Place::Anywhere;

/// Returns a command prefix for a place; empty if the machine or the user's privileges do not allow it.
pub(crate) fn prefix(place: Place) -> Vec<&'static str> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    // SAFETY: it only reads.
    let root = unsafe { libc::geteuid() } == 0;
    let before_others: &[&str] = if root { &["chrt", "-r", "5"] } else { &[] };
    let on = |cpu: &'static str| ["taskset", "-c", cpu];
    match place {
        _ if cpus < 2 => Vec::new(),
        Place::First => [before_others, &on("0")].concat(),
        Place::Rest => [before_others, &on("1")].concat(),
        Place::All => before_others.to_vec(),
        Place::FirstAlike => on("0").to_vec(),
        Place::RestAlike => on("1").to_vec(),
        Place::Anywhere => Vec::new(),
    }
}

pub(crate) fn redis(place: Place) -> Program {
    reference(Reference::Redis, place)
}

pub(crate) fn reference(reference: Reference, place: Place) -> Program {
    Program::find(reference).expect("scripts/setup installs the peers").started_by(&prefix(place))
}

/// Returns Evenkeel, if it was built beside the doctor.
pub(crate) fn evenkeel(place: Place) -> Option<Program> {
    let beside = std::path::Path::new(env!("CARGO_BIN_EXE_evenkeel-doctor")).with_file_name("evenkeel");
    let program = Program::under_test(beside.to_str()?);
    program.path().exists().then(|| program.started_by(&prefix(place)))
}

/// An endless redis-benchmark, killed on drop.
pub(crate) struct Load(Child);

impl Load {
    pub(crate) fn start(port: u16, args: &[&str]) -> Load {
        Load::start_at(LOAD, port, args)
    }

    /// Runs the number of requests in `args`.
    pub(crate) fn run(port: u16, args: &[&str]) {
        let mut load = Load::start(port, args);
        assert!(load.0.wait().is_ok_and(|status| status.success()), "redis-benchmark failed");
    }

    pub(crate) fn start_at(place: Place, port: u16, args: &[&str]) -> Load {
        let port = port.to_string();
        let mut words = prefix(place);
        words.extend(["redis-benchmark", "-p", &port, "-n", "1000000000", "-q"]);
        words.extend(args);
        let child =
            Command::new(words[0]).args(&words[1..]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Load(child.expect("scripts/setup installs redis-benchmark"))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < TIMEOUT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The doctor's report.
pub(crate) struct Seen {
    report: Value,
}

pub(crate) fn diagnose(case: &str, pid: u32) -> Seen {
    diagnose_with(case, pid, &[])
}

pub(crate) fn diagnose_with(case: &str, pid: u32, more: &[&str]) -> Seen {
    diagnose_for(case, pid, SECONDS, more)
}

pub(crate) fn diagnose_for(case: &str, pid: u32, seconds: &str, more: &[&str]) -> Seen {
    std::thread::sleep(WARM_UP);
    let pid = pid.to_string();
    let report = doctor_json(&[&["diagnose", "--json", "--seconds", seconds, "--pid", &pid], more].concat());
    let seen = Seen { report };
    println!("case: {case} | {} | {}", seen.tier(), seen.text_at("sentence"));
    seen
}

/// Returns the parsed output of the doctor; `args` include `--json`.
#[track_caller]
pub(crate) fn doctor_json(args: &[&str]) -> Value {
    serde_json::from_str(&doctor(args)).expect("--json prints JSON")
}

/// Returns the output of the doctor.
#[track_caller]
pub(crate) fn doctor(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel-doctor")).args(args).output();
    let output = output.expect("the doctor was built for this test");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it prints text")
}

impl Seen {
    /// `None`, with a message, if no programs could be loaded: the case cannot run there.
    pub(crate) fn in_kernel(self) -> Option<Seen> {
        if self.tier() == "T0" {
            return Some(self);
        }
        println!("left out: needs eBPF, and: {}", self.report["health"]["notes"]);
        None
    }

    fn text_at(&self, name: &str) -> &str {
        self.report[name].as_str().expect("the report has it")
    }

    pub(crate) fn tier(&self) -> &str {
        self.text_at("tier")
    }

    /// The name of the critical thread.
    pub(crate) fn critical(&self) -> &str {
        self.report["critical"]["name"].as_str().expect("there is one")
    }

    /// The name of the verdict.
    pub(crate) fn verdict(&self) -> &str {
        let verdict = &self.report["verdict"];
        verdict.as_str().unwrap_or("inconclusive")
    }

    /// The ranked findings without steal time: on a shared machine, steal may rightly rank before the effects
    /// of the case's load.
    fn findings(&self) -> impl Iterator<Item = &Value> {
        let all = self.report["findings"].as_array().expect("a list").iter();
        all.filter(|f| !f["title"].as_str().is_some_and(|title| title.starts_with("The hypervisor takes")))
    }

    pub(crate) fn rules(&self) -> Vec<String> {
        self.findings().map(|f| f["rule"].as_str().expect("a rule").to_string()).collect()
    }

    pub(crate) fn titles(&self) -> Vec<&str> {
        self.findings().map(|f| f["title"].as_str().expect("a title")).collect()
    }

    /// The first finding's share of the critical thread's time.
    pub(crate) fn first_share(&self) -> f64 {
        self.findings().next().and_then(|finding| finding["share"].as_f64()).unwrap_or(0.0)
    }

    pub(crate) fn text(&self) -> String {
        self.report.to_string()
    }

    pub(crate) fn complete_stacks(&self) -> f64 {
        let number = |name: &str| self.report["health"][name].as_f64().expect("a number");
        number("stacks_complete") / number("stacks").max(1.0)
    }

    #[track_caller]
    pub(crate) fn expect_first(&self, rule: &str) {
        assert_eq!(self.rules().first().map(String::as_str), Some(rule), "{self}");
        assert_eq!(self.verdict(), "found", "{self}");
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} {}", self.tier(), self.verdict(), self.report["critical"])?;
        for finding in self.findings() {
            writeln!(f, "{} {} share {}", finding["rule"], finding["title"], finding["share"])?;
        }
        write!(f, "{}", self.report["health"])
    }
}
