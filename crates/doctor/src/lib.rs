//! `evenkeel-doctor`: a command that finds the bottleneck of a server process.
//!
//! ```text
//! collect     the only part with privileges       collect/, and the crate doctor-bpf for the BPF programs
//! recording   the collected data, as a file       recording/
//! analyse     pure functions of a recording       analyse/
//! report      for people and for scripts          report/
//! ```
//!
//! Each stage knows only the data of the stage before it.

mod analyse;
mod collect;
#[cfg(test)]
mod golden;
mod private;
mod recording;
mod report;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};

use collect::probes;
use collect::target::{self, TargetArgs};
use collect::{Options, Progress};
use recording::Recording;
use report::Look;

#[derive(Parser)]
#[command(name = "evenkeel-doctor", version, about = "Says what holds a server process back, with evidence")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    /// Colours of `diagnose`, `explain` and `diff`
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    color: report::Color,
}

#[derive(Subcommand)]
enum Verb {
    /// Find the bottleneck of a process
    Diagnose {
        #[command(flatten)]
        args: CaptureArgs,
        #[command(flatten)]
        output: Output,
        /// Also keep the recording, for `explain`
        #[arg(long, value_name = "FILE")]
        record: Option<PathBuf>,
    },
    /// Record a process to a file
    Record {
        #[command(flatten)]
        args: CaptureArgs,
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
    },
    /// Diagnose a recording: without privileges, on any machine
    Explain {
        file: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Compare two recordings
    Diff {
        before: PathBuf,
        after: PathBuf,
        /// Print JSON, for scripts
        #[arg(long)]
        json: bool,
        /// Also write an HTML page: the changes, and differential flame graphs in both directions
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
    },
    /// Time of each thread: on a CPU, in the run queue, blocked, waiting for work
    Threads(Question),
    /// Tasks of a runtime (Go, Java, Python): their state, lock, place and functions
    Tasks(Question),
    /// System calls by thread and descriptor, with the descriptor's role
    Syscalls {
        #[command(flatten)]
        question: Question,
        /// Grouping of the rows
        #[arg(long, value_enum, default_value = "thread")]
        by: report::tables::By,
    },
    /// Accept queues, and connections with full queues
    Sockets(Question),
    /// Which threads wake which
    Wakeups(Question),
    /// CPU samples as folded stacks, for tools that draw flame graphs
    Cpu(Question),
    /// Stacks of blocked threads, without waits for work
    Offcpu(Question),
    /// Waits for mutexes, by mutex and by the function that takes it
    Locks(Question),
    /// Waits for a CPU, and the processes that use the CPUs
    Runqueue(Question),
    /// How long forks stop their thread, and the cost of shared pages afterwards
    Fork(Question),
    /// Latency of a function of the process
    Function {
        /// Name as shown by `cpu`, or its end after "::"
        #[arg(value_name = "NAME")]
        function: String,
        #[command(flatten)]
        live: Live,
    },
    /// Times of the stages of requests, by Evenkeel's static probes and by its own statistics
    Stages {
        #[command(flatten)]
        live: Live,
        /// Password for INFO; else $REDISCLI_AUTH
        #[arg(long)]
        auth: Option<String>,
    },
    /// How often the process meets kernel tracepoints or kernel functions
    Count {
        /// Name in which * matches any text: 'sched_*'
        pattern: String,
        #[command(flatten)]
        live: Live,
    },
    /// Write stacks for other tools
    Export {
        #[command(flatten)]
        question: Question,
        #[command(flatten)]
        format: Format,
        /// Output file; else standard output
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

#[derive(Args)]
struct Format {
    /// Folded stacks: a line per stack, with its CPU samples
    #[arg(long, conflicts_with = "pprof", required_unless_present = "pprof")]
    folded: bool,
    /// With --folded: blocked microseconds instead of samples
    #[arg(long, requires = "folded")]
    off_cpu: bool,
    /// A profile for `go tool pprof` and compatible tools: CPU, blocked and waiting time
    #[arg(long)]
    pprof: bool,
}

#[derive(Args)]
struct CaptureArgs {
    #[command(flatten)]
    target_args: TargetArgs,
    /// Length of the window in seconds
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Load no BPF programs: use perf and /proc alone
    #[arg(long)]
    no_bpf: bool,
    /// Use /proc alone
    #[arg(long)]
    proc_only: bool,
    /// Do not ask a Redis-like server which clients are replicas
    #[arg(long)]
    no_ask: bool,
    /// Password for that query; else $REDISCLI_AUTH
    #[arg(long)]
    auth: Option<String>,
}

#[derive(Args)]
struct Output {
    /// Print JSON, for scripts
    #[arg(long)]
    json: bool,
    /// Also write an HTML page: findings, flame graphs, tables
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Args)]
struct Live {
    #[command(flatten)]
    target_args: TargetArgs,
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

#[derive(Args)]
struct Question {
    #[command(flatten)]
    target_args: OptionalTargetArgs,
    /// Use this recording instead of a process
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Load no BPF programs: use perf and /proc alone
    #[arg(long)]
    no_bpf: bool,
    /// Use /proc alone
    #[arg(long)]
    proc_only: bool,
}

#[derive(Args)]
struct OptionalTargetArgs {
    #[arg(long)]
    pid: Option<i32>,
    #[arg(long)]
    port: Option<u16>,
    #[arg(long)]
    name: Option<String>,
}

/// Returns the command line, for manual pages and completions.
pub fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// Runs the program.
pub fn main() -> ExitCode {
    let Cli { verb, color } = Cli::parse();
    match run(verb, color) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evenkeel-doctor: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb, color: report::Color) -> Result<()> {
    match verb {
        Verb::Diagnose { args, output, record } => {
            let recording = capture(args)?;
            if let Some(path) = record {
                recording::save(&recording, &path)?;
            }
            explain(&recording, &output, color)
        }
        Verb::Record { args, output } => {
            let recording = capture(args)?;
            recording::save(&recording, &output)
        }
        Verb::Explain { file, output } => explain(&recording::load(&file)?, &output, color),
        Verb::Diff { before, after, json, html } => {
            let (before, after) = (recording::load(&before)?, recording::load(&after)?);
            let comparison = analyse::compare(&before, &after);
            if let Some(path) = html {
                write_page(&path, &report::differences(&before, &after, &comparison)?)?;
            }
            match json {
                true => print_text(&(serde_json::to_string_pretty(&comparison)? + "\n")),
                false => print(report::comparison(&comparison, Look::of_stdout(color)).as_bytes()),
            }
        }
        Verb::Threads(question) => answer(question, report::tables::threads),
        Verb::Tasks(question) => answer(question, report::tasks),
        Verb::Syscalls { question, by } => answer(question, |recording| report::tables::calls(recording, by)),
        Verb::Sockets(question) => answer(question, report::tables::sockets),
        Verb::Wakeups(question) => answer(question, report::tables::wakers),
        Verb::Cpu(question) => answer(question, |recording| folded(recording, false)),
        Verb::Offcpu(question) => answer(question, report::questions::off_cpu),
        Verb::Locks(question) => answer(question, report::questions::locks),
        Verb::Runqueue(question) => answer(question, report::questions::run_queue),
        Verb::Fork(question) => answer(question, report::questions::forks),
        Verb::Function { function, live } => {
            let (length, stop) = (length(live.seconds)?, stop_on_signals()?);
            let timed = probes::time_function(&target::find(&live.target_args)?, &function, length, &stop)?;
            print_text(&report::probes::latency(&timed))
        }
        Verb::Stages { live, auth } => {
            let (length, stop) = (length(live.seconds)?, stop_on_signals()?);
            let password = auth.or_else(|| std::env::var("REDISCLI_AUTH").ok());
            let staged =
                probes::stages(&target::find(&live.target_args)?, password.as_deref(), length, &stop)?;
            print_text(&report::probes::stages(&staged))
        }
        Verb::Count { pattern, live } => {
            let (length, stop) = (length(live.seconds)?, stop_on_signals()?);
            let counted = probes::count(&target::find(&live.target_args)?, &pattern, length, &stop)?;
            print_text(&report::probes::counts(&counted))
        }
        Verb::Export { question, format, output } => {
            let recording = recording_for(question)?;
            let bytes = match format.pprof {
                true => report::pprof(&recording),
                false => folded(&recording, format.off_cpu).into_bytes(),
            };
            match output {
                Some(path) => {
                    private::write(&path, &bytes).with_context(|| format!("cannot write {}", path.display()))
                }
                None => print(&bytes),
            }
        }
    }
}

/// Returns folded stacks. If there are none, the reason goes to stderr, because another program reads the
/// lines.
fn folded(recording: &Recording, off_cpu: bool) -> String {
    let lines = report::folded(recording, off_cpu);
    if lines.is_empty() {
        let what = if off_cpu { "blocked time" } else { "CPU time" };
        eprintln!("(no stack of {what} was seen, in tier {:?}; T3 sees none)", recording.tier);
    }
    lines
}

fn explain(recording: &Recording, output: &Output, color: report::Color) -> Result<()> {
    let diagnosis = analyse::diagnose(recording);
    if let Some(path) = &output.html {
        write_page(path, &report::html(recording, &diagnosis)?)?;
    }
    match output.json {
        true => print_text(&(report::json(recording, &diagnosis)? + "\n")),
        false => print(report::terminal(recording, &diagnosis, Look::of_stdout(color)).as_bytes()),
    }
}

fn write_page(path: &std::path::Path, page: &str) -> Result<()> {
    private::write(path, page.as_bytes()).with_context(|| format!("cannot write the page {}", path.display()))
}

fn answer(question: Question, table: impl FnOnce(&Recording) -> String) -> Result<()> {
    print_text(&table(&recording_for(question)?))
}

/// Loads the recording of a question, or takes a new recording.
fn recording_for(question: Question) -> Result<Recording> {
    let Question { target_args: OptionalTargetArgs { pid, port, name }, from, seconds, no_bpf, proc_only } =
        question;
    match from {
        Some(file) => recording::load(&file),
        None => {
            ensure!(
                pid.is_some() || port.is_some() || name.is_some(),
                "say which: --pid, --port, --name or --from"
            );
            let target_args = TargetArgs { pid, port, name, command: Vec::new() };
            capture(CaptureArgs { target_args, seconds, no_bpf, proc_only, no_ask: false, auth: None })
        }
    }
}

/// Prints text. Names of processes, files and functions come from anywhere, and must not send control
/// characters to the terminal.
fn print_text(text: &str) -> Result<()> {
    print(report::shown(text).as_bytes())
}

/// Prints bytes. A reader that stops early, like `head`, is not an error.
fn print(bytes: &[u8]) -> Result<()> {
    match std::io::stdout().lock().write_all(bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("cannot write"),
        _ => Ok(()),
    }
}

/// The length of the window.
fn length(seconds: f64) -> Result<Duration> {
    const SECONDS_MAX: f64 = 3_600.0;
    ensure!(
        seconds > 0.0 && seconds <= SECONDS_MAX,
        "--seconds is to be more than 0 and at most {SECONDS_MAX}"
    );
    Ok(Duration::from_secs_f64(seconds))
}

/// Returns a flag that Ctrl-C sets: the window then ends early, and the data so far is reported.
fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot listen for Ctrl-C")?;
    }
    Ok(stop)
}

fn capture(args: CaptureArgs) -> Result<Recording> {
    length(args.seconds)?;
    let found = target::find(&args.target_args)?;
    let password = args.auth.or_else(|| std::env::var("REDISCLI_AUTH").ok());
    let options = Options {
        seconds: args.seconds,
        no_bpf: args.no_bpf,
        proc_only: args.proc_only,
        ask: !args.no_ask,
        password,
    };
    let stop = stop_on_signals()?;
    let shows = std::io::stderr().is_terminal();
    let mut show = |progress: Progress| {
        if shows {
            let (passed, length) = (progress.passed.as_secs_f64(), progress.length.as_secs_f64());
            eprint!("\r{}: {passed:.1} of {length:.0} s  ", progress.tier.describe());
        }
    };
    let recording = collect::capture(&found, &options, &stop, &mut show);
    if shows {
        eprintln!();
    }
    recording
}
