//! Start and stop of the server, from the command line on.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use evenkeel_rdb::without_numbers;
use evenkeel_store::ThreadContext;
use rustix::thread::{CpuSet, sched_setaffinity};
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGPIPE, SIGTERM, SIGUSR2, SIGXFSZ};

use crate::cluster;
use crate::commands;
use crate::handover::{self, control as upgrades, successor::Predecessor};
use crate::observe::{process, recorder};
use crate::server::Server;
use crate::worker::Worker;
use evenkeel_config::{Action, Launch, LogLevel, Mistakes, NoEffect, Preload, Settings};
use evenkeel_net::listener::NOWHERE;
use evenkeel_persist::load::{self, Ended, INTEGRITY};
use evenkeel_persist::lock::What;
use evenkeel_persist::progress_bar::Bar;
use evenkeel_persist::replay::{self, Replayed};
use evenkeel_persist::{aof, backup, end, passed_over, rewrite, save_points, snapshot};
use evenkeel_replication::{failover, link};
use evenkeel_runtime::allocator::SLICE_US_MAX;
use evenkeel_runtime::allocator::{self, Watch};
use evenkeel_runtime::clock::{self, Ticks};
use evenkeel_runtime::crash;
use evenkeel_runtime::sandbox::{self, Call};
use evenkeel_runtime::server_log::{self, try_file};
use evenkeel_runtime::threads;
use log::LevelFilter;

mod preflight;
mod sentinel;
pub(crate) mod watchdog;

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Longest wait for an abandoned snapshot at shutdown: only a write to a disk that hangs takes so long.
const UNWANTED_MAX: Duration = Duration::from_secs(5);

/// Time for which clients wait for the end of a load before they get LOADING errors.
const SHORT_LOAD: Duration = Duration::from_millis(200);

/// The same for a load of at most `SMALL_LOAD_BYTES`: Redis answers no client before it has loaded as many.
/// Such a load takes this long only on a disk that hangs, or with a script in an append-only file.
const SMALL_LOAD: Duration = Duration::from_secs(10);
const SMALL_LOAD_BYTES: u64 = 2 << 20;

/// Milliseconds between two rounds of the control thread.
const ROUND_MS: u64 = 100;

/// Runs the server and returns the exit code of the process. `args` are the arguments behind the program's
/// name.
pub fn run(program: &OsStr, args: Vec<OsString>) -> ExitCode {
    if sentinel::is_asked_for(program, &args) {
        eprintln!("{}", sentinel::NO_SENTINEL);
        return ExitCode::FAILURE;
    }
    if let Some(status) = handover::keeper::run_if_asked() {
        return status;
    }
    handover::record_command_line(program, &args);
    let table = commands::install();
    let known = |name: &[u8]| table.find(name).is_some();
    let launch = match Launch::from_args(args.into_iter(), evenkeel_acl::USER_LINES, known) {
        Ok(launch) => launch,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if launch.action != Action::CheckConfig && !launch.mistakes.is_empty() {
        eprintln!("{}", Mistakes(&launch.mistakes));
        return ExitCode::FAILURE;
    }
    match launch.action {
        Action::Version => {
            println!("Evenkeel server v={VERSION} bits={}", usize::BITS);
            ExitCode::SUCCESS
        }
        Action::Help => {
            print!("{}", evenkeel_config::USAGE);
            ExitCode::SUCCESS
        }
        Action::CheckConfig => check_config(&launch),
        Action::Run => serve(launch),
    }
}

/// Lists the obstacles to starting a server with this configuration, or to keeping its data.
fn check_config(launch: &Launch) -> ExitCode {
    let found = preflight::check(&launch.settings, !launch.lacks_dir);
    launch.without_effect.iter().for_each(|one| println!("{one}"));
    launch.notices.iter().chain(&found.remarks).for_each(|remark| println!("{remark}"));
    let count = launch.mistakes.len() + found.mistakes.len();
    if count == 0 {
        println!("The configuration is valid.");
        return ExitCode::SUCCESS;
    }
    if !launch.mistakes.is_empty() {
        eprintln!("{}", Mistakes(&launch.mistakes));
    }
    found.mistakes.iter().for_each(|mistake| eprintln!("{mistake}"));
    eprintln!("The configuration has {count} error{}.", if count == 1 { "" } else { "s" });
    ExitCode::FAILURE
}

fn serve(launch: Launch) -> ExitCode {
    let Launch { settings, config_file, has_more, notices, without_effect, .. } = launch;
    let predecessor = match Predecessor::of_this_process(&settings) {
        Ok(predecessor) => predecessor,
        Err(reason) => {
            eprintln!("Cannot take over: {reason}");
            return ExitCode::FAILURE;
        }
    };
    let settings = predecessor.as_ref().map_or(settings, Predecessor::settings_meanwhile);
    let forbidden = sandbox::probe();
    let huge_pages = settings.huge_pages;
    allocator::set_up(huge_pages);
    if let Err(reason) = preflight::enter_dir(&settings) {
        eprintln!("{reason}");
        return ExitCode::FAILURE;
    }
    let workers = worker_count(&settings);
    let ahead = allocator::ahead::start(workers, huge_pages, settings.shared_memory);
    if let Some(path) = &settings.logfile
        && let Err(error) = try_file(path)
    {
        eprintln!("{}", preflight::no_log_file(path, &error));
        return ExitCode::FAILURE;
    }
    let (lines, times) = settings.log_format();
    server_log::set_format(lines, times);
    server_log::start(level_of(settings.loglevel), settings.log_target());
    print_welcome(&settings, &without_effect);
    crash::follow(settings.crash_log_enabled, settings.logfile.as_deref());
    forbidden.into_iter().for_each(|line| log::warn!("{}", line));
    let settings = match within_file_limit(settings) {
        Ok(settings) => settings,
        Err(reason) => return fail(reason),
    };
    let pidfile = settings.pidfile.clone();
    let inherited = predecessor.as_ref().map(Predecessor::identity);
    let server = match Server::new(settings, config_file, workers, inherited) {
        Ok(server) => server,
        Err(error) => return fail(format!("Cannot initialize the server: {error}")),
    };
    if let Err(error) = server.acl.load_at_start(&server.core.settings()) {
        return fail(format!("Startup aborted because of ACL errors: {error}"));
    }
    // First, since listening takes a Unix socket away from its present owner.
    if let Err(error) = lock_files(&server) {
        return fail(format!("Can't start: {error}. Exiting."));
    }
    if let Err(reason) = open_map(&server, predecessor.is_some()) {
        return fail(format!("Can't start: {reason}. Exiting."));
    }
    if predecessor.is_none()
        && let Err(reason) = listen(&server)
    {
        return fail(reason);
    }
    log_panics();
    let write_pidfile = || {
        if let Some(path) = &pidfile
            && let Err(error) = std::fs::write(path, format!("{}\n", std::process::id()))
        {
            log::warn!("{}", preflight::no_pidfile(path, &error));
        }
    };
    if predecessor.is_none() {
        write_pidfile();
    }
    load::set_loading(&server.persist, true);
    server.replication.follow(&server.core.settings());
    link::follow_at_start(&server.replication);
    if server.cluster.as_ref().is_some_and(cluster::Cluster::is_shared) {
        server.replication.await_role();
    }
    if let Err(error) = server.core.oom_score.follow(&server.core.settings(), server.replication.is_replica())
    {
        log::warn!("Unable to write oom_score_adj: {error}");
    }
    server.set_title();
    announce(&server, has_more, &notices);
    report_no_effect(&without_effect);
    watchdog::follow(&server);
    // Before the first client is served: a client that has had a reply may rely on an orderly shutdown.
    watch_signals(server.clone());
    let threads = match start_workers(&server) {
        Ok(threads) => threads,
        Err(error) => return fail(format!("Cannot start a worker thread: {error}")),
    };
    if let Err(error) = ahead {
        log::warn!("Memory is not allocated in advance: cannot start the thread: {error}");
    }
    if let Err(error) = start_long(&server) {
        return fail(format!("Cannot start an offload thread: {error}"));
    }
    let start_recorder =
        || recorder::start(server.clone()).map_err(|error| format!("Cannot start the recorder: {error}"));
    server.sampler.record_startup();
    let loaded = match predecessor {
        Some(predecessor) => {
            let listen = || {
                upgrades::start(&server);
                listen(&server)
            };
            let taken = predecessor.take_over(&server, listen).map_err(Ended::Failed);
            // Only now, since the former process had the recorder's files.
            taken.and_then(|()| start_recorder().map_err(Ended::Failed)).inspect(|()| write_pidfile())
        }
        None => {
            if let Err(reason) = start_recorder() {
                return fail(reason);
            }
            upgrades::start(&server);
            let bar = Bar::begin(&server.persist);
            let loaded = load(&server);
            drop(bar);
            loaded
        }
    };
    match loaded {
        Ok(()) => {
            server.replication.number_records_if_asked();
            if let Err(reason) = cluster::join(&server) {
                return fail(reason);
            }
            log::info!("Ready to accept connections");
            server.core.manager.notify_ready(server.replication.is_replica());
        }
        Err(Ended::Stopped) => log::warn!("Stopped while loading"),
        Err(Ended::Failed(reason)) => {
            let is_damaged = reason.contains(INTEGRITY);
            let reason =
                format!("Fatal error loading the DB: {reason}. No data was lost or overwritten. Exiting.");
            let code = fail(reason);
            if is_damaged {
                log::warn!("Terminating server after rdb file reading failure.");
                server_log::flush();
            }
            return code;
        }
    }
    control(&server);
    for thread in threads {
        // The panic hook has logged a worker's panic.
        let _ = thread.join();
    }
    server.cluster.iter().for_each(|cluster| cluster.end());
    server.replication.wait_for_end();
    // A snapshot in progress is no longer needed: its file is removed.
    backup::give_up(&server.persist);
    server.persist.cancel_all();
    if !server.persist.is_idle_within(UNWANTED_MAX) {
        log::warn!("An obsolete snapshot is blocked in a write to disk. Exiting without waiting for it.");
        snapshot::remove_unfinished(&server.core.settings());
    }
    if server.persist.aof.is_on() {
        aof::stop(&server.persist);
    }
    if let Some(path) = pidfile {
        let _ = std::fs::remove_file(path);
    }
    server.listeners.close();
    log::warn!("Evenkeel is now ready to exit, bye bye...");
    server_log::flush();
    ExitCode::SUCCESS
}

/// Loads the data from disk, while the workers answer clients with LOADING.
fn load(server: &Arc<Server>) -> Result<(), Ended> {
    let settings = server.core.settings();
    if let Some(preload) = to_preload(&settings) {
        load_instead(server, &settings, preload)?;
    } else {
        load_own(server)?;
    }
    server.persist.record_loaded(&server.core.keyspace);
    load::set_loading(&server.persist, false);
    if server.replication.is_replica() {
        link::begin(&server.replication);
    }
    Ok(())
}

/// The data to be loaded instead of this server's own; none if they are its own append-only file.
fn to_preload(settings: &Settings) -> Option<Preload> {
    match settings.preload_file.clone()? {
        Preload::Manifest(path) => {
            let path = settings.dir.join(path);
            let mut name = settings.appendfilename.clone().into_os_string();
            name.push(".manifest");
            let own = settings.dir.join(&settings.appenddirname).join(name);
            let file = |path: &Path| std::fs::canonicalize(path).ok();
            let is_own = settings.appendonly && file(&path).is_some_and(|there| Some(there) == file(&own));
            (!is_own).then_some(Preload::Manifest(path))
        }
        Preload::Snapshot(path) => Some(Preload::Snapshot(settings.dir.join(path))),
    }
}

/// Loads these data, and begins a new append-only file if that is enabled: the present one is kept aside.
fn load_instead(server: &Arc<Server>, settings: &Settings, preload: Preload) -> Result<(), Ended> {
    match preload {
        Preload::Manifest(path) => {
            log::warn!("Loading {} instead of the data in 'dir' (preload-file)", path.display());
            replay::preload(&server.persist, &path)?;
        }
        Preload::Snapshot(path) => {
            log::warn!("Loading {} instead of the data in 'dir' (preload-file)", path.display());
            load::preload(&server.persist, &path)?;
        }
    }
    if settings.appendonly {
        let directory = rewrite::open(settings).map_err(|error| Ended::Failed(error.to_string()))?;
        rewrite::start_anew(&server.persist, directory).map_err(Ended::Failed)?;
    }
    link::set_loaded_position(&server.replication, None);
    Ok(())
}

fn load_own(server: &Arc<Server>) -> Result<(), Ended> {
    passed_over::report(&server.core.settings());
    if server.core.settings().appendonly {
        replay::put_tail_back(&server.persist)?;
        let Replayed { directory, found, position } = replay::directory(&server.persist)?;
        if !found {
            // Turning the append-only file on keeps the existing data, as operators expect.
            load::snapshot(&server.persist)?;
        }
        rewrite::start_logging(&server.persist, directory, found).map_err(Ended::Failed)?;
        // No expired key has been removed so far; replicas receive the removals from now on.
        if server.replication.is_replica() {
            link::set_loaded_position(&server.replication, position);
        } else {
            link::continue_as_primary(&server.replication, position);
        }
    } else {
        let loaded = load::snapshot_at_start(&server.persist)?;
        link::set_loaded_position(&server.replication, loaded.and_then(|loaded| loaded.position));
    }
    Ok(())
}

/// Locks the files that are about to be loaded and replaced against other servers. With an append-only file,
/// a snapshot is not the data: its lock is taken when a snapshot begins.
fn lock_files(server: &Server) -> std::io::Result<()> {
    let settings = server.core.settings();
    if settings.appendonly {
        rewrite::hold(&server.persist, &settings)
    } else if !settings.save.is_empty() {
        server.persist.locks.hold(What::Snapshot, &settings.dir, &settings.dbfilename)
    } else {
        Ok(())
    }
}

/// Reads or begins the map of the cluster, in cluster mode. A process that takes over gets the map from the
/// process before.
fn open_map(server: &Server, takes_over: bool) -> Result<(), String> {
    let settings = server.core.settings();
    cluster::check(&settings)?;
    match &server.cluster {
        Some(cluster) if !takes_over => cluster.open_file(&settings),
        _ => Ok(()),
    }
}

fn listen(server: &Arc<Server>) -> Result<(), String> {
    let settings = server.core.settings();
    let tls = server.tls.change(&settings).map_err(preflight::no_tls)?;
    tls.put_in_force();
    server.listen(&settings).map_err(|reason| {
        log::warn!("{}", reason);
        format!("Failed listening on port {}, aborting.", settings.port)
    })?;
    if server.listeners.all().is_empty() {
        return Err(NOWHERE.into());
    }
    server.listen_http(&settings).map_err(|reason| {
        log::warn!("{}", reason);
        format!("Failed listening on http-port {}, aborting.", settings.http_port)
    })
}

/// Tells an operator at a terminal that the server does not hang: nothing appears there while the server log
/// goes to a file, and a server with `daemonize` does not go to the background.
fn print_welcome(settings: &Settings, without_effect: &[NoEffect]) {
    let is_to_go = without_effect.iter().any(|one| one.name == "daemonize");
    if let Some(file) = &settings.logfile
        && (is_to_go || std::io::stderr().is_terminal())
    {
        let why = if is_to_go { " ('daemonize' has no effect)" } else { "" };
        eprintln!("Evenkeel runs in the foreground{why}. The server log is {}", file.display());
    }
}

/// Logs a line for each directive whose effect may be missed, and a line for all remaining directives.
fn report_no_effect(without_effect: &[NoEffect]) {
    without_effect.iter().filter(|one| one.is_missed).for_each(|one| log::warn!("{}", one));
    let others = without_effect.iter().filter(|one| !one.is_missed);
    let names: Vec<String> = others.map(|one| format!("'{}'", one.name)).collect();
    if !names.is_empty() {
        log::info!(
            "These directives have no effect and are not needed: {}. 'evenkeel --check-config' prints the \
             reasons",
            names.join(", ")
        );
    }
}

/// Reports the reason in the server log, and on the terminal as well.
fn fail(reason: String) -> ExitCode {
    if server_log::is_in_file() {
        eprintln!("{}", without_numbers(&reason));
    }
    log::warn!("{}", reason);
    server_log::flush();
    ExitCode::FAILURE
}

fn worker_count(settings: &Settings) -> usize {
    match settings.threads {
        0 => std::thread::available_parallelism().map_or(1, |cores| cores.get()).min(256),
        threads => threads,
    }
}

/// Converts a directive's value to the server log's level.
pub(crate) fn level_of(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Debug => LevelFilter::Trace,
        LogLevel::Verbose => LevelFilter::Debug,
        LogLevel::Notice => LevelFilter::Info,
        LogLevel::Warning => LevelFilter::Warn,
        LogLevel::Nothing => LevelFilter::Off,
    }
}

/// Returns the settings with as many clients as the limit of open files admits; an error if it admits none.
fn within_file_limit(settings: Settings) -> Result<Settings, String> {
    let Err(clients) = raise_file_limit(&settings) else { return Ok(settings) };
    const HINT: &str = "raise the limit with 'ulimit -n'";
    if clients == 0 {
        return Err(format!("The limit of open files is too low to serve a client: {HINT}. Exiting."));
    }
    log::warn!(
        "maxclients was reduced from {} to {clients} because of the limit of open files. For a higher \
         maxclients, {HINT}",
        settings.maxclients
    );
    Ok(settings.with_maxclients(clients))
}

/// Raises the limit of descriptors to the need of `maxclients`. If it stays too low, returns the number of
/// clients that it admits.
pub(crate) fn raise_file_limit(settings: &Settings) -> Result<(), u32> {
    const OTHERS: u64 = 64; // listeners, the server log, an epoll and an eventfd per worker, operators
    // A connection of HTTP, and both ends of its connection to a worker.
    let http = if settings.http_port > 0 { 3 * u64::from(settings.http_max_connections) } else { 0 };
    let others = OTHERS + http + 2 * worker_count(settings) as u64;
    let wanted = u64::from(settings.maxclients) + others;
    let fit = |files: u64| u32::try_from(files.saturating_sub(others)).unwrap_or(settings.maxclients);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // By libc: rustix takes for granted that the limit can be read, but a filter of system calls may refuse.
    // SAFETY: the pointer is to a valid `rlimit`.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    if !known || limit.rlim_cur >= wanted {
        return Ok(());
    }
    if !sandbox::permits(Call::Setrlimit) {
        return Err(fit(limit.rlim_cur));
    }
    let raised = libc::rlimit { rlim_cur: wanted, rlim_max: limit.rlim_max.max(wanted) };
    let reachable = libc::rlimit { rlim_cur: limit.rlim_max.min(wanted), rlim_max: limit.rlim_max };
    // SAFETY: the pointers are to valid `rlimit`s.
    let done = unsafe {
        libc::setrlimit(libc::RLIMIT_NOFILE, &raised) == 0
            || libc::setrlimit(libc::RLIMIT_NOFILE, &reachable) == 0 && reachable.rlim_cur == wanted
    };
    if done { Ok(()) } else { Err(fit(limit.rlim_max)) }
}

fn announce(server: &Server, has_more: bool, notices: &[String]) {
    let settings = server.core.settings();
    let pid = std::process::id();
    log::info!("Evenkeel version={VERSION}, bits={}, pid={pid}, just started", usize::BITS);
    if settings.always_show_logo {
        // Scripts find the process by this form.
        let port = if settings.port != 0 { settings.port } else { settings.tls_port };
        log::info!("Evenkeel {VERSION} ({} bit), Port: {port}, PID: {pid}", usize::BITS);
    }
    match &server.config_file {
        Some(file) => log::info!("Configuration loaded from {}", file.path.display()),
        None if has_more => log::info!("Configuration loaded without a file"),
        None => log::info!("No config file specified, using the defaults"),
    }
    notices.iter().for_each(|notice| log::warn!("{}", notice.as_str()));
    if settings.tls_port != 0 {
        log::info!("Listening with TLS on port {}", settings.tls_port);
    }
    let addresses: Vec<&str> = settings.bind.iter().map(|bind| bind.address.as_str()).collect();
    if settings.port != 0
        && let Some(first) = addresses.first()
    {
        let host = if addresses.contains(&"*") { "127.0.0.1" } else { first };
        log::info!("Listening on port {} of {}", settings.port, addresses.join(" "));
        log::info!(
            "Connect with: redis-cli -h {host} -p {}   Stop with Ctrl-C, or: redis-cli -h {host} -p {0} \
             shutdown",
            settings.port
        );
    }
    if settings.http_port != 0
        && let Some(host) = settings.http_bind.first()
    {
        let scheme = if settings.http_tls { "https" } else { "http" };
        log::info!(
            "HTTP (metrics, health checks, REST, console): {scheme}://{}",
            with_port(&host.address, settings.http_port)
        );
    }
    if let Some(path) = &settings.unixsocket {
        log::info!("The server is now ready to accept connections at {}", path.display());
    }
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    let kept = match (settings.appendonly, settings.save.is_empty()) {
        (true, _) => "the append-only file is on",
        (false, false) => "snapshots are taken at save points",
        (false, true) => "there is no persistence",
    };
    log::info!(
        "{} worker threads; {kept}; the data directory is {}",
        server.core.workers.count(),
        here.display()
    );
    let (limit, machine) = (process::memory_limit(), process::machine_bytes());
    log::info!("{}", preflight::memory_line(settings.maxmemory, limit, machine));
    [preflight::unwritable(&settings), preflight::beyond_machine(&settings)]
        .into_iter()
        .flatten()
        .for_each(|warning| log::warn!("{}", warning));
    log::info!("Server initialized");
}

/// Returns the address as it stands in a URL. All addresses of the machine include its own.
fn with_port(address: &str, port: u16) -> String {
    match address {
        "*" => format!("127.0.0.1:{port}"),
        "::*" => format!("[::1]:{port}"),
        address if address.contains(':') => format!("[{address}]:{port}"),
        address => format!("{address}:{port}"),
    }
}

fn start_workers(server: &Arc<Server>) -> std::io::Result<Vec<std::thread::JoinHandle<()>>> {
    let cpus = server.core.settings().thread_affinity.list.clone();
    (0..server.core.workers.count())
        .map(|index| {
            let worker = Worker::new(server.clone(), index)?;
            let server = server.clone();
            let cpu = cpus.get(index % cpus.len().max(1)).copied();
            let thread = threads::with_deep_stack(format!("worker-{index}"));
            thread.spawn(move || {
                if let Some(cpu) = cpu {
                    pin_to(cpu);
                }
                wait_for_short_load(&server);
                threads::or_exit("worker", || worker.run());
            })
        })
        .collect()
}

/// Delays a worker's first clients during a load that is short or small, as Redis does: a client that
/// connects meanwhile waits for its reply, instead of getting LOADING.
fn wait_for_short_load(server: &Server) {
    let began = Instant::now();
    // The size of the load is zero until it is known.
    let is_small = || server.persist.loading.total_bytes.load(Relaxed) <= SMALL_LOAD_BYTES;
    let is_delayed = server.core.settings().key_load_delay != 0; // a test needs a long load
    let longest = || if is_small() && !is_delayed { SMALL_LOAD } else { SHORT_LOAD };
    while server.persist.is_loading() && !server.core.stopping.load(Acquire) && began.elapsed() < longest() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts the offload pool with as many threads as there are workers. Shutdown does not wait for them.
fn start_long(server: &Arc<Server>) -> std::io::Result<()> {
    for index in 0..server.core.workers.count() {
        let (server, stats) = (server.clone(), server.core.workers.count() + index);
        // DEBUG RELOAD makes such a thread run the code of libraries.
        let thread = threads::with_deep_stack(format!("offload-{index}"));
        thread.spawn(move || {
            threads::or_exit("offload thread", || {
                crate::executor::offload::run(&server, &server.offload, stats)
            })
        })?;
    }
    let server = server.clone();
    let thread = threads::with_deep_stack("scripts");
    thread.spawn(move || {
        let stats = 2 * server.core.workers.count();
        threads::or_exit("script thread", || {
            crate::executor::offload::run(&server, &server.slow_scripts, stats)
        })
    })?;
    Ok(())
}

fn pin_to(cpu: usize) {
    if !sandbox::permits(Call::SchedSetaffinity) {
        return; // already logged
    }
    let mut set = CpuSet::new();
    set.set(cpu); // inside the set, since the configuration allows no larger number
    let _ = sched_setaffinity(None, &set);
}

/// Receives all signals, on a thread of its own:
///
/// - SIGINT during shutdown ends the process at once, as in Redis: an operator waits at a terminal.
/// - A second SIGTERM has no effect, since service managers repeat theirs: the last snapshot is still taken.
/// - SIGHUP, which a log rotation may send, has no effect: the server log's file is opened for each line.
/// - SIGALRM writes the stack traces of all threads into the server log.
/// - SIGUSR2 hands the server over to the program's file as it is now (docs/upgrade.md).
/// - With SIGXFSZ ignored, a write beyond the limit of a file's size returns an error.
fn watch_signals(server: Arc<Server>) {
    let without_effect = [SIGHUP, SIGPIPE, SIGXFSZ];
    let with_effect = [SIGTERM, SIGINT, SIGALRM, SIGUSR2];
    let mut signals = signal_hook::iterator::Signals::new(with_effect.iter().chain(&without_effect))
        .expect("these signals can be handled");
    threads::named("signals")
        .spawn(move || {
            for signal in signals.forever() {
                if server.handover.take_signal(signal) {
                    continue;
                }
                let settings = server.core.settings();
                let (name, how) = match signal {
                    SIGTERM => ("SIGTERM", settings.shutdown_on_sigterm),
                    SIGINT => ("SIGINT", settings.shutdown_on_sigint),
                    SIGALRM => {
                        log::warn!("Received SIGALRM");
                        watchdog::log_traces();
                        continue;
                    }
                    SIGUSR2 => {
                        log::warn!("Received SIGUSR2 scheduling an upgrade...");
                        upgrades::upgrade_soon(&server);
                        continue;
                    }
                    _ => continue,
                };
                let is_ending = server.core.stopping.load(Acquire) || server.persist.ending.is_under_way();
                if is_ending && signal == SIGINT {
                    log::warn!("You insist... exiting now.");
                    server_log::flush();
                    snapshot::remove_unfinished(&settings);
                    std::process::exit(1);
                }
                log::warn!("Received {name} scheduling shutdown...");
                if !server.is_end_unsafe(how) {
                    end::begin(&server.persist, how, None);
                }
            }
        })
        .expect("a thread can be started");
}

/// Logs panics with their location. The panic's own text becomes a single line, since it may contain bytes
/// from a client; the backtrace has a line for each of its lines.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::force_capture().to_string();
        let thread = std::thread::current();
        let panic = panic.to_string().replacen('\n', " ", 1); // between location and message
        log::warn!("Panic in thread '{}': {panic}", thread.name().unwrap_or("?"));
        backtrace.lines().for_each(|line| log::warn!("{}", line));
    }));
}

/// Runs periodic work beside the workers, until the server stops.
fn control(server: &Arc<Server>) {
    let mut ctx = server.core.keyspace.thread_context();
    let mut purge = Watch::default();
    let mut appraise_from = 0;
    while !server.core.stopping.load(Acquire) {
        ctx.now_ms = clock::unix_ms();
        server.rates.lock().sample(&server.stats, server.replication.traffic(), ctx.now_ms);
        server.targets.close_idle();
        evenkeel_store::memory::peak();
        if purge.round(&server.core.purge) {
            server.ask_for_purge();
        }
        server.sampler.round(&server.core.keyspace, &mut ctx, server.core.settings().maxmemory);
        if !server.persist.is_loading() {
            let counts_memory = server.core.settings().key_memory_histograms;
            let is_busy = || server.scripts.busy.is_busy();
            server.key_sizes.round(&server.core.keyspace, &mut ctx, counts_memory, is_busy);
        }
        if clock::ticks() >= appraise_from {
            appraise_from = appraise_sharers(server, &mut ctx);
        }
        backup::look(&server.persist);
        save_points::look(&server.persist);
        failover::abort_late(&server.replication);
        server.replication.number_records_if_asked();
        reload_tls(server);
        server.hotkeys.end_if_due(server, ctx.now_ms);
        std::thread::park_timeout(Duration::from_millis(ROUND_MS));
    }
}

/// Checks, for a slice or a single value, which values share less than was recorded. Returns when to
/// continue: it takes at most a fiftieth of a core, however many pages the values have.
fn appraise_sharers(server: &Server, ctx: &mut ThreadContext) -> Ticks {
    let (started, keyspace) = (clock::ticks(), &server.core.keyspace);
    let waiting = keyspace.sharers();
    let may_begin = waiting > 0 && !server.persist.is_loading();
    if !may_begin || !keyspace.enter_unless(ctx, || server.scripts.busy.is_busy()) {
        return started;
    }
    let until = started + SLICE_US_MAX * clock::ticks_per_us();
    // Each key at most once: a value that still shares pages goes back to the end.
    for _ in 0..waiting {
        if !keyspace.hold_none(ctx).appraise_next() || clock::ticks() >= until {
            break;
        }
    }
    keyspace.leave(ctx);
    let ended = clock::ticks();
    ended + 50 * (ended - started)
}

/// Reloads certificates and keys that have changed on disk, if configured.
fn reload_tls(server: &Server) {
    let settings = server.core.settings();
    match server.tls.look(&settings, || Arc::ptr_eq(&settings, &server.core.settings())) {
        None => {}
        Some(Ok(())) => log::info!("TLS certificates or keys have changed and were reloaded."),
        Some(Err(reason)) => log::warn!("TLS files were not reloaded: {reason}"),
    }
}
