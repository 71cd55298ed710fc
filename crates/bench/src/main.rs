//! `evenkeel-bench`: load, measures, and the experiments that compare Evenkeel with its peers.

mod experiments;
mod floor;
mod interrupt;
mod json;
mod load;
mod load_command;
mod peers;
mod proc;
mod stats;
mod sys;
mod table;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use experiments::{
    LoadArgs, MemoryArgs, Options, Session, SnapshotArgs, StallsArgs, ThroughputArgs, ValuesArgs,
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
    /// What it costs commands that somebody listens
    Features(Options),
    /// What an append-only file costs
    Aof(Options),
    /// What clients feel of a snapshot
    Snapshot {
        #[command(flatten)]
        args: SnapshotArgs,
        #[command(flatten)]
        options: Options,
    },
    /// What clients feel when the disk under an append-only file stands still; needs root
    FrozenDisk(Options),
    /// How long it takes to load a snapshot
    Loading {
        #[command(flatten)]
        args: LoadArgs,
        #[command(flatten)]
        options: Options,
    },
    /// Rates with few and many connections, kept and short
    Connections(Options),
    /// One worker against one per core
    Workers(Options),
    /// All experiments
    All(Options),
}

fn main() -> ExitCode {
    match obey(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evenkeel-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn obey(cli: Cli) -> Result<()> {
    sys::raise_open_files()?;
    if !matches!(cli.verb, Verb::Floor(_)) {
        interrupt::install()?; // the floor waits for ever and has nothing to clean up
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
        Verb::Features(options) => run(&options, experiments::features),
        Verb::Aof(options) => run(&options, experiments::aof),
        Verb::Snapshot { args, options } => run(&options, |session| experiments::snapshot(session, &args)),
        Verb::FrozenDisk(options) => run(&options, experiments::frozen_disk),
        Verb::Loading { args, options } => run(&options, |session| experiments::load(session, &args)),
        Verb::Connections(options) => run(&options, experiments::connections),
        Verb::Workers(options) => run(&options, experiments::workers),
        Verb::All(options) => run(&options, experiments::all),
    }
}

fn run(options: &Options, experiment: impl FnOnce(&mut Session) -> Result<()>) -> Result<()> {
    let mut session = Session::new(options)?;
    experiment(&mut session)?;
    session.finish()
}
