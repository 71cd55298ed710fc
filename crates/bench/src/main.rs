//! `evenkeel-bench`: load, measures, and the experiments that compare Evenkeel with its peers.

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
mod peers;
mod proc;
mod promises;
mod read;
mod stats;
mod sys;
mod syscalls;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use experiments::{
    DataArgs, KeysArgs, MemoryArgs, Options, ScaleArgs, Session, StallsArgs, ThroughputArgs, ValuesArgs,
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
    /// Serve fixed replies: what the kernel alone costs
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
    /// What it costs that Evenkeel accounts for its time, and counts hot keys
    Accounting(Options),
    /// What it costs commands that somebody listens
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
    /// Rates when nearly all requests go to one key
    HotKey(Options),
    /// Rates of logged writes to one database and to all
    Databases(Options),
    /// Cost of MGET and MSET of many keys
    Scatter(Options),
    /// What an append-only file costs
    Aof(Options),
    /// What clients feel of a snapshot
    Snapshot {
        #[command(flatten)]
        args: DataArgs,
        #[command(flatten)]
        options: Options,
    },
    /// What clients feel when the disk under an append-only file stands still; needs root
    FrozenDisk(Options),
    /// What replicas cost their primary, and how far behind they are
    Replica(Options),
    /// What clients feel while a new replica gets everything
    FullSync {
        #[command(flatten)]
        args: DataArgs,
        #[command(flatten)]
        options: Options,
    },
    /// How long it takes to load a snapshot
    Loading {
        #[command(flatten)]
        args: DataArgs,
        #[command(flatten)]
        options: Options,
    },
    /// Rates with few and many connections, kept and short
    Connections(Options),
    /// What a request costs the load generator itself, beside redis-benchmark
    Generator(Options),
    /// One worker against one per core
    Workers(Options),
    /// From one core to all, beside processes that share nothing and memcached
    Scale {
        #[command(flatten)]
        args: ScaleArgs,
        #[command(flatten)]
        options: Options,
    },
    /// What it costs that threads wake each other
    WakeUp(Options),
    /// Show two runs' figures side by side; fails if one has become worse beyond the noise
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
    /// What --json has written
    json: PathBuf,
    /// Write a page with all tables and charts to this file
    #[arg(required_unless_present_any = ["chart", "table"])]
    html: Option<PathBuf>,
    /// Write one chart to this file, as SVG: what SET and GET cost, to Valkey
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
    /// Write the same as a table to this file, as Markdown, with the promises
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
}

fn main() -> ExitCode {
    match obey(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("evenkeel-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn obey(cli: Cli) -> Result<ExitCode> {
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
        Verb::Snapshot { args, options } => run(&options, |session| experiments::snapshot(session, &args)),
        Verb::FrozenDisk(options) => run(&options, experiments::frozen_disk),
        Verb::Replica(options) => run(&options, experiments::replica),
        Verb::FullSync { args, options } => run(&options, |session| experiments::full_sync(session, &args)),
        Verb::Loading { args, options } => run(&options, |session| experiments::load(session, &args)),
        Verb::Connections(options) => run(&options, experiments::connections),
        Verb::Generator(options) => run(&options, experiments::generator),
        Verb::Scale { args, options } => run(&options, |session| experiments::scale(session, &args)),
        Verb::WakeUp(options) => run(&options, experiments::wake_up),
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
    // What was measured until something failed, or somebody had enough.
    let finished = session.finish();
    ended.and(finished)
}
