//! `load` and `fill`: the generator as a standalone tool, against any server that speaks the Redis protocol.

use std::env::{self, VarError};
use std::io::{IsTerminal, stderr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::json::{Json, object};
use crate::load::distribution::Distribution;
use crate::load::endpoint::{Address, Endpoint, Protocol};
use crate::load::greeting::{Login, Password};
use crate::load::keys::KeyRange;
use crate::load::requests::Command;
use crate::load::sizes::Sizes;
use crate::load::timeline::{SLICE, Slice};
use crate::load::tls::{Files, Trust};
use crate::load::{self, Extras, Outcome, Plan, Until};
use crate::table::{Table, thousands, time_us};
use crate::{servers, sys};

/// The server's address and protocol, and the keys.
#[derive(clap::Args, Debug)]
struct Target {
    /// Name or address of the server
    #[arg(long, default_value = "127.0.0.1", help_heading = "Server")]
    host: String,
    #[arg(short, long, default_value_t = 6379, help_heading = "Server", help = "Its port")]
    port: u16,
    /// Connect to this Unix socket instead of a host and a port
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port"], help_heading = "Server")]
    socket: Option<PathBuf>,
    /// resp2, resp3 (each connection says HELLO 3), memcached (get and set only), or http (a path)
    #[arg(long, default_value = "resp2", help_heading = "Server")]
    protocol: Protocol,
    /// Password of each connection [default: REDISCLI_AUTH of the environment, which other users cannot see]
    #[arg(short = 'a', long, value_name = "TEXT", help_heading = "Server")]
    password: Option<Password>,
    /// User of the password [default: the server's default user]
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    user: Option<String>,
    /// Number of the database that each connection selects
    #[arg(long, value_name = "NUMBER", help_heading = "Server")]
    db: Option<u32>,
    /// Talk TLS; needs --cacert or --insecure
    #[arg(long, requires = "believed", help_heading = "TLS")]
    tls: bool,
    /// PEM file of the authorities trusted to certify the server
    #[arg(long, value_name = "FILE", requires = "tls", group = "believed", help_heading = "TLS")]
    cacert: Option<PathBuf>,
    /// Accept any certificate of the server
    #[arg(long, requires = "tls", group = "believed", help_heading = "TLS")]
    insecure: bool,
    /// PEM file of the certificate to show to the server
    #[arg(long, value_name = "FILE", requires_all = ["tls", "key"], help_heading = "TLS")]
    cert: Option<PathBuf>,
    /// PEM file of its key
    #[arg(long, value_name = "FILE", requires_all = ["tls", "cert"], help_heading = "TLS")]
    key: Option<PathBuf>,
    /// Name that the server's certificate must have [default: the host]
    #[arg(long, value_name = "NAME", requires = "tls", help_heading = "TLS")]
    sni: Option<String>,
    /// Bytes of a key
    #[arg(long, default_value_t = 16, value_name = "BYTES", help_heading = "Requests")]
    key_size: usize,
    /// Bytes of a value: 500, any of 100-1000, or some with weights, 100:70,1000:25,10000:5
    #[arg(short = 'd', long, default_value = "500", value_name = "BYTES", help_heading = "Requests")]
    value_size: Sizes,
    /// CPUs for the generator's threads, such as 1 or 2-3
    #[arg(
        long,
        value_name = "LIST",
        default_value = "",
        hide_default_value = true,
        help_heading = "Connections"
    )]
    cpus: String,
}

impl Target {
    fn endpoint(&self) -> Result<Endpoint> {
        let address = match &self.socket {
            Some(path) => Address::Unix(path.clone()),
            None => Address::Tcp(servers::resolve(&self.host, self.port)?),
        };
        let tls = self.tls.then(|| {
            let host = if self.socket.is_some() { "localhost" } else { &self.host };
            Trust::new(Files {
                authorities: self.cacert.as_deref(),
                own: self.cert.as_deref().zip(self.key.as_deref()),
                name: self.sni.as_deref().unwrap_or(host),
            })
        });
        Ok(Endpoint { address, protocol: self.protocol, tls: tls.transpose()? })
    }

    fn extras(&self) -> Result<Extras> {
        let password = match &self.password {
            None if self.protocol != Protocol::Memcached => password_of_environment()?,
            given => given.clone(),
        };
        if self.user.is_some() && password.is_none() {
            bail!("--user needs --password, or {PASSWORD_VARIABLE} in the environment");
        }
        Ok(Extras {
            login: Login { user: self.user.clone(), password, database: self.db },
            sizes: Some(self.value_size.clone()),
            shows_progress: stderr().is_terminal(),
        })
    }
}

/// The variable in which redis-cli, too, looks for a password.
const PASSWORD_VARIABLE: &str = "REDISCLI_AUTH";

fn password_of_environment() -> Result<Option<Password>> {
    match env::var(PASSWORD_VARIABLE) {
        Ok(text) => Ok((!text.is_empty()).then(|| text.into())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => bail!("{PASSWORD_VARIABLE} is not UTF-8"),
    }
}

const LOAD_NOTES: &str = "\
Commands: mixed is GET with 10% SET, or as many as it says. In words, {key} and {value} stand for a key and \
the value,
{same} for the key before, {number} for a key's digits. Several commands, separated by \" ; \", \
come by turns, or, if
each begins with a percentage, in any order and that often; there, get and set are known, too.
GETs of keys that are not there are misses, and cost less: write them first with `evenkeel-bench fill`.

Keys: zipf takes the k-th key in proportion to 1/k^EXPONENT (0.99), hot sends PERCENT (50) \
of the requests to one.

Rate: without --rate, each connection waits for its answer before it sends again, \
so a server that stalls is asked less.
With it, latencies run from when a request was due.

Short connections to this machine come from 127.0.0.1 to 127.0.0.64, which Redis 7.0 in protected mode denies.

Examples:
  evenkeel-bench load -P 16 --command set                 SET as fast as 50 connections get their answers
  evenkeel-bench load --rate 20000 -s 30                  20,000 GETs a second
  evenkeel-bench load --command \"INCR {key}\" -k 1000     any command, over 1,000 keys
  evenkeel-bench load --command \"70% get ; 25% set ; 5% LRANGE list:{key} 0 9\" -d 100-1000
  evenkeel-bench load --tls -p 6380 --cacert ca.crt --protocol resp3";

/// Put load on a server and report rate, latencies and CPU.
#[derive(clap::Args, Debug)]
#[command(after_help = LOAD_NOTES)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    target: Target,
    /// Connections at a time
    #[arg(short, long, default_value_t = 50, help_heading = "Connections")]
    clients: usize,
    /// Threads that share the connections
    #[arg(short, long, default_value_t = 1, help_heading = "Connections")]
    threads: usize,
    /// Requests that a connection sends in one batch
    #[arg(short = 'P', long, default_value_t = 1, value_name = "REQUESTS", help_heading = "Connections")]
    pipeline: usize,
    /// A connection for each request; see below
    #[arg(long, help_heading = "Connections")]
    short: bool,
    /// get, set, mixed, mixed:PERCENT, words such as "INCR {key}", or a mix of such; see below
    #[arg(long, default_value = "get", help_heading = "Requests")]
    command: Command,
    /// Number of different keys
    #[arg(short, long, default_value_t = 300_000, help_heading = "Requests")]
    keys: u64,
    /// uniform, sequential, zipf[:EXPONENT], or hot[:PERCENT]; see below
    #[arg(long, default_value = "uniform", value_name = "KIND", help_heading = "Requests")]
    distribution: Distribution,
    /// Send this many per second, whatever the server does; see below
    #[arg(short, long, value_name = "REQUESTS", help_heading = "Length")]
    rate: Option<f64>,
    /// Time to measure
    #[arg(short, long, default_value_t = 5.0, help_heading = "Length")]
    seconds: f64,
    /// Time before that, which does not count
    #[arg(long, default_value_t = 0.5, value_name = "SECONDS", help_heading = "Length")]
    warm_up: f64,
    /// Send this many requests instead, without warm-up
    #[arg(short = 'n', long, conflicts_with_all = ["seconds", "warm_up"], help_heading = "Length")]
    requests: Option<u64>,
    /// Also measure this process: the server, when it runs on this machine
    #[arg(long, help_heading = "Result")]
    pid: Option<u32>,
    /// Write the result to this file as JSON
    #[arg(long, value_name = "FILE", help_heading = "Result")]
    json: Option<PathBuf>,
}

/// Write each of a number of keys once, as fast as the server takes them.
#[derive(clap::Args, Debug)]
pub(crate) struct FillArgs {
    #[command(flatten)]
    target: Target,
    /// Number of keys
    #[arg(short, long, default_value_t = 300_000, help_heading = "Requests")]
    keys: u64,
    /// Number of the first key
    #[arg(long, default_value_t = 0, help_heading = "Requests")]
    first: u64,
}

/// Longest run: a bound for mistakes on the command line, within the range of a `Duration`.
const SECONDS_MAX: f64 = 1e6;

pub(crate) fn load(args: &LoadArgs) -> Result<()> {
    for seconds in [args.seconds, args.warm_up] {
        if !(0.0..=SECONDS_MAX).contains(&seconds) {
            bail!("times must be from 0 to {SECONDS_MAX} seconds");
        }
    }
    if args.seconds == 0.0 || args.requests == Some(0) {
        bail!("there is nothing to measure: no time, or no request");
    }
    let time = Until::Time {
        warm_up: Duration::from_secs_f64(args.warm_up),
        measured: Duration::from_secs_f64(args.seconds),
    };
    let plan = Plan {
        server: args.target.endpoint()?,
        clients: args.clients,
        threads: args.threads,
        pipeline: args.pipeline,
        command: args.command.clone(),
        key_size: args.target.key_size,
        keys: KeyRange { first: 0, count: args.keys },
        distribution: args.distribution,
        value_size: args.target.value_size.mean(),
        rate: args.rate,
        until: args.requests.map_or(time, Until::Requests),
        short: args.short,
        cpus: sys::parse_cpus(&args.target.cpus)?,
    };
    for word in args.command.unknown_placeholders() {
        eprintln!("note: {word} stands for itself; {{key}}, {{same}}, {{number}} and {{value}} are replaced");
    }
    let outcome = load::run_with(&plan, &args.target.extras()?, args.pid)?;
    print!("{}", table(&outcome));
    if let Some(path) = &args.json {
        std::fs::write(path, format!("{}\n", json(args, &plan, &outcome)))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if outcome.commands > 0 && outcome.errors >= outcome.commands {
        bail!("every request was answered with an error: {}", outcome.error_text.unwrap_or_default());
    }
    Ok(())
}

pub(crate) fn fill(args: &FillArgs) -> Result<()> {
    let target = &args.target;
    let server = target.endpoint()?;
    let range = KeyRange { first: args.first, count: args.keys };
    let mut plan = Plan::fill(server, range, target.key_size, target.value_size.mean());
    plan.cpus = sys::parse_cpus(&target.cpus)?;
    let outcome = load::run_with(&plan, &target.extras()?, None)?;
    if outcome.errors > 0 {
        bail!("{} of the writes failed: {}", outcome.errors, outcome.error_text.unwrap_or_default());
    }
    let seconds = outcome.elapsed.as_secs_f64();
    println!(
        "{} keys in {seconds:.1} s: {} per second",
        thousands(args.keys as f64),
        thousands(outcome.rate())
    );
    Ok(())
}

/// Reported percentiles: their names in a table and in JSON, and their quantiles.
const PERCENTILES: [(&str, &str, f64); 7] = [
    ("p50", "latency_us_p50", 0.5),
    ("p90", "latency_us_p90", 0.9),
    ("p95", "latency_us_p95", 0.95),
    ("p99", "latency_us_p99", 0.99),
    ("p99.9", "latency_us_p999", 0.999),
    ("p99.99", "latency_us_p9999", 0.9999),
    ("max", "latency_us_max", 1.0),
];

fn table(outcome: &Outcome) -> Table {
    let mut table = Table::new(&["", ""]);
    let mut line = |name: &str, value: String| table.row(vec![name.to_owned(), value]);
    line("requests", thousands(outcome.commands as f64));
    line("seconds", format!("{:.2}", outcome.elapsed.as_secs_f64()));
    line("requests per second", thousands(outcome.rate()));
    if outcome.late > 0 {
        line("requests that were never sent", thousands(outcome.late as f64));
    }
    line("latency of a batch, mean", time_us(outcome.latency_us_mean()));
    for (name, _, quantile) in PERCENTILES {
        line(&format!("latency of a batch, {name}"), time_us(outcome.latency_us(quantile)));
    }
    let counts = [
        ("error replies", outcome.errors),
        ("misses", outcome.misses),
        ("connections refused", outcome.refused),
        ("connections failed", outcome.failed),
        ("listen queue overflows", outcome.listen_overflows),
    ];
    for (name, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        line(name, thousands(count as f64));
    }
    if let Some(text) = &outcome.error_text {
        line("first error", text.clone());
    }
    line("generator's CPU per request", format!("{:.2} us", outcome.load_us()));
    line("generator's threads busy", format!("{:.0}%", outcome.load_busy() * 100.0));
    if let (Some(us), Some(spent)) = (outcome.server_us(), &outcome.server) {
        line("server's CPU per request", format!("{us:.2} us"));
        line("server's CPU in the kernel", format!("{:.0}%", spent.system_share * 100.0));
        line("server's memory (RSS)", format!("{:.1} MB", spent.rss_bytes as f64 / 1e6));
        line(
            "server's context switches",
            thousands((spent.voluntary_switches + spent.involuntary_switches) as f64),
        );
        line("server's page faults", thousands(spent.page_faults as f64));
    }
    table
}

fn json(args: &LoadArgs, plan: &Plan, outcome: &Outcome) -> Json {
    let slices =
        |figure: fn(&Slice) -> f64| outcome.timeline.slices().iter().map(figure).collect::<Vec<f64>>();
    let latencies = PERCENTILES.map(|(_, name, quantile)| (name, outcome.latency_us(quantile).into()));
    let mut members = vec![
        ("server", plan.server.to_string().into()),
        ("protocol", plan.server.protocol.to_string().into()),
        ("command", plan.command.to_string().into()),
        ("clients", plan.clients.into()),
        ("threads", plan.threads.into()),
        ("pipeline", plan.pipeline.into()),
        ("short", plan.short.into()),
        ("rate", plan.rate.into()),
        ("distribution", plan.distribution.to_string().into()),
        ("keys", plan.keys.count.into()),
        ("key_size", plan.key_size.into()),
        ("value_size", plan.value_size.into()), // the mean
        ("value_sizes", args.target.value_size.to_string().into()),
        ("database", args.target.db.into()),
        ("requests", outcome.commands.into()),
        ("seconds", outcome.elapsed.as_secs_f64().into()),
        ("requests_per_s", outcome.rate().into()),
        ("latency_us_mean", outcome.latency_us_mean().into()),
        ("errors", outcome.errors.into()),
        ("misses", outcome.misses.into()),
        ("refused", outcome.refused.into()),
        ("failed", outcome.failed.into()),
        ("listen_overflows", outcome.listen_overflows.into()),
        ("load_cpu_us_per_request", outcome.load_us().into()),
        ("load_busy", outcome.load_busy().into()),
        ("server_cpu_us_per_request", outcome.server_us().into()),
        ("server_page_faults", outcome.server.as_ref().map(|spent| spent.page_faults).into()),
        ("never_sent", outcome.late.into()),
        ("timeline_slice_ms", (SLICE.as_millis() as u64).into()),
        ("timeline_requests", slices(|slice| slice.commands as f64).into()),
        ("timeline_longest_us", slices(|slice| slice.longest.as_secs_f64() * 1e6).into()),
    ];
    members.extend(latencies);
    object(members)
}
