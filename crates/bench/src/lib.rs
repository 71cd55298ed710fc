//! `evenkeel-bench`: load, measurements, and the experiments that compare Evenkeel with other servers.

mod chart;
mod compare;
mod experiments;
mod floor;
mod interrupt;
mod json;
mod load;
mod load_command;
mod page;
mod pauses;
mod proc;
mod promises;
mod read;
mod servers;
mod stats;
mod sys;
mod syscalls;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use experiments::{
    ChurnArgs, DataArgs, KeysArgs, MemoryArgs, Options, OverheadArgs, ScaleArgs, Session, StallsArgs,
    ThroughputArgs, ValuesArgs,
};

#[derive(Parser)]
#[command(
    name = "evenkeel-bench",
    version,
    about = "Measures servers that speak the Redis protocol, side by side"
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Load(load_command::LoadArgs),
    Fill(load_command::FillArgs),
    /// Serve fixed replies: the cost of the kernel alone
    Floor(floor::Args),
    /// Cost of SET and GET, with and without a pipeline
    Throughput {
        #[command(flatten)]
        args: ThroughputArgs,
        #[command(flatten)]
        options: Options,
    },
    /// Resident bytes per key
    Memory {
        #[command(flatten)]
        args: MemoryArgs,
        #[command(flatten)]
        options: Options,
    },
    /// Resident bytes per key beyond key and value, for values of many sizes
    Overhead {
        #[command(flatten)]
        args: OverheadArgs,
        #[command(flatten)]
        options: Options,
    },
    /// Resident bytes after two thirds of the data have gone
    Churn {
        #[command(flatten)]
        args: ChurnArgs,
        #[command(flatten)]
        options: Options,
    },
    /// Cost of the usual commands on collections
    Values {
        #[command(flatten)]
        args: ValuesArgs,
        #[command(flatten)]
        options: Options,
    },
    /// Resident bytes per element of collections
    Elements(Options),
    /// Longest wait while another client works on huge values
    Stalls {
        #[command(flatten)]
        args: StallsArgs,
        #[command(flatten)]
        options: Options,
    },
    /// Cost of Evenkeel's time accounting and hot-key counters
    Accounting(Options),
    /// Cost per command of notifications, monitors, user rules and TLS
    Features(Options),
    /// Longest wait while millions of keys come
    Growth {
        #[command(flatten)]
        args: KeysArgs,
        #[command(flatten)]
        options: Options,
    },
    /// Longest wait while millions of keys expire at once
    Expiry {
        #[command(flatten)]
        args: KeysArgs,
        #[command(flatten)]
        options: Options,
    },
    /// Rates when nearly all requests go to a single key
    HotKey(Options),
    /// Rates of logged writes to a single database and to all
    Databases(Options),
    /// Cost of MGET and MSET of many keys
    Scatter(Options),
    /// Cost of an append-only file
    Aof(Options),
    /// Impact of a snapshot on clients
    Snapshot {
        #[command(flatten)]
        args: DataArgs,
        #[command(flatten)]
        options: Options,
    },
    /// Impact of a hand-over to another process on clients
    Upgrade {
        #[command(flatten)]
        args: DataArgs,
        #[command(flatten)]
        options: Options,
    },
    /// Time without service when the primary of a shard is killed, or changed
    Failover {
        #[command(flatten)]
        args: experiments::FailoverArgs,
        #[command(flatten)]
        options: Options,
    },
    /// Cost of cluster mode
    Cluster(Options),
    /// Time of a move of slots to another node, and its impact on clients
    Migration {
        #[command(flatten)]
        args: experiments::MigrationArgs,
        #[command(flatten)]
        options: Options,
    },
    /// Impact of a frozen disk under an append-only file on clients; needs root
    FrozenDisk(Options),
    /// Cost of replicas for their primary, and their lag
    Replica(Options),
    /// Impact of a new replica's full sync on clients
    FullSync {
        #[command(flatten)]
        args: DataArgs,
        #[command(flatten)]
        options: Options,
    },
    /// Time to load a snapshot
    Loading {
        #[command(flatten)]
        args: DataArgs,
        #[command(flatten)]
        options: Options,
    },
    /// Rates with few and many connections, kept and short
    Connections(Options),
    /// The load generator's own cost per request, compared with redis-benchmark
    Generator(Options),
    /// A single worker against a worker per core
    Workers(Options),
    /// From one core to all, beside processes that share nothing and memcached
    Scale {
        #[command(flatten)]
        args: ScaleArgs,
        #[command(flatten)]
        options: Options,
    },
    /// Cost of threads waking each other
    WakeUp(Options),
    /// The HTTP side beside nginx: kept and short connections, scrapes, and what SET pays for it
    Http(Options),
    /// Show two runs' metrics side by side; fails if a metric has become worse beyond the noise
    Compare(compare::CompareArgs),
    /// Draw a page, a chart or a table of a run's --json
    Page(PageArgs),
    /// The experiments that matter most, in about ten minutes with --quick
    Short(Options),
    /// All experiments
    All(Options),
}

#[derive(clap::Args)]
struct PageArgs {
    /// The file written by --json
    json: PathBuf,
    /// Write a page with all tables and charts to this file
    #[arg(required_unless_present_any = ["chart", "table"])]
    html: Option<PathBuf>,
    /// Write a chart to this file, as SVG: the cost of SET and GET, relative to Valkey
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
    /// Write the chart's data as a table to this file, as Markdown, with the promises
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
}

/// Returns the command line, for manual pages and completions.
pub fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// Runs the program.
pub fn main() -> ExitCode {
    match execute(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("evenkeel-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn execute(cli: Cli) -> Result<ExitCode> {
    sys::raise_open_files()?;
    if !matches!(cli.verb, Verb::Floor(_)) {
        interrupt::install()?; // the floor waits for ever and has nothing to clean up
    }
    if matches!(cli.verb, Verb::Compare(_)) {
        sys::end_with_the_reader();
    }
    match cli.verb {
        Verb::Load(args) => load_command::load(&args),
        Verb::Fill(args) => load_command::fill(&args),
        Verb::Floor(args) => floor::serve(&args),
        Verb::Throughput { args, options } => {
            run(&options, |session| experiments::throughput(session, &args))
        }
        Verb::Memory { args, options } => run(&options, |session| experiments::memory(session, &args)),
        Verb::Overhead { args, options } => run(&options, |session| experiments::overhead(session, &args)),
        Verb::Churn { args, options } => run(&options, |session| experiments::churn(session, &args)),
        Verb::Values { args, options } => run(&options, |session| experiments::values(session, &args)),
        Verb::Elements(options) => run(&options, experiments::elements),
        Verb::Stalls { args, options } => run(&options, |session| experiments::stalls(session, &args)),
        Verb::Accounting(options) => run(&options, experiments::accounting),
        Verb::Features(options) => run(&options, experiments::features),
        Verb::Growth { args, options } => run(&options, |session| experiments::growth(session, &args)),
        Verb::Expiry { args, options } => run(&options, |session| experiments::expiry(session, &args)),
        Verb::HotKey(options) => run(&options, experiments::hot_key),
        Verb::Databases(options) => run(&options, experiments::databases),
        Verb::Scatter(options) => run(&options, experiments::scatter),
        Verb::Aof(options) => run(&options, experiments::aof),
        Verb::Upgrade { args, options } => run(&options, |session| experiments::upgrade(session, &args)),
        Verb::Snapshot { args, options } => run(&options, |session| experiments::snapshot(session, &args)),
        Verb::Migration { args, options } => run(&options, |session| experiments::migration(session, &args)),
        Verb::Cluster(options) => run(&options, experiments::cluster),
        Verb::Failover { args, options } => run(&options, |session| experiments::failover(session, &args)),
        Verb::FrozenDisk(options) => run(&options, experiments::frozen_disk),
        Verb::Replica(options) => run(&options, experiments::replica),
        Verb::FullSync { args, options } => run(&options, |session| experiments::full_sync(session, &args)),
        Verb::Loading { args, options } => run(&options, |session| experiments::load(session, &args)),
        Verb::Connections(options) => run(&options, experiments::connections),
        Verb::Generator(options) => run(&options, experiments::generator),
        Verb::Scale { args, options } => run(&options, |session| experiments::scale(session, &args)),
        Verb::WakeUp(options) => run(&options, experiments::wake_up),
        Verb::Http(options) => run(&options, experiments::http),
        Verb::Workers(options) => run(&options, experiments::workers),
        Verb::Short(options) => run(&options, experiments::short),
        Verb::All(options) => run(&options, experiments::all),
        Verb::Page(args) => draw(&args),
        Verb::Compare(args) => return compare::compare(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn draw(args: &PageArgs) -> Result<()> {
    let run = read::read(&args.json)?;
    let write = |path: &Option<PathBuf>, text: &dyn Fn() -> Option<String>| -> Result<()> {
        let Some(path) = path else { return Ok(()) };
        let text =
            text().with_context(|| format!("{} has no throughput with Valkey", args.json.display()))?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    write(&args.html, &|| Some(page::page(&run)))?;
    write(&args.chart, &|| chart::svg(&run))?;
    write(&args.table, &|| chart::markdown(&run))
}

fn run(options: &Options, experiment: impl FnOnce(&mut Session) -> Result<()>) -> Result<()> {
    let mut session = Session::new(options)?;
    let ended = experiment(&mut session);
    // Reports the measurements made before a failure or an interrupt, too.
    let finished = session.finish();
    ended.and(finished)
}
