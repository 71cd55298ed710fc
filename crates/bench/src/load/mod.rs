//! The load generator, over kept or short connections: a closed loop, or an open loop at a fixed rate.
//!
//! It has to be cheaper per request than any server that it measures, or it measures itself. So each thread
//! is an epoll loop over its share of the connections, with a write and a read per batch and connection,
//! reused buffers, and replies that are counted but not decoded. The threads share nothing but a phase that
//! the main thread writes and, per thread, a count of commands that the main thread reads.
//!
//! The main thread moves all threads from warm-up to measuring to the end, and takes the server's measures
//! from `/proc` at the same two instants as the counts: CPU per command is the quotient of the two
//! differences.

pub(crate) mod distribution;
pub(crate) mod endpoint;
pub(crate) mod greeting;
mod http;
mod keepalive;
pub(crate) mod keys;
mod memcached;
mod progress;
pub(crate) mod replies;
pub(crate) mod requests;
mod schedule;
mod short;
pub(crate) mod sizes;
mod stream;
mod tally;
pub(crate) mod timeline;
pub(crate) mod tls;
mod weights;

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::proc::{self, Usage};
use crate::{interrupt, sys};
use distribution::Distribution;
use endpoint::{Endpoint, Protocol};
use greeting::{Greeting, Login};
use keys::{KeyRange, KeyStream};
use progress::Progress;
use replies::Counts;
use requests::{Command, Composer};
use sizes::Sizes;
pub(crate) use tally::{Outcome, Tally};

/// Longest time that the server may leave all connections of a thread without an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// A loop turn ends at the latest after this time, to check the phase.
const TURN_MAX: Duration = Duration::from_millis(50);
/// Most requests of a batch: a bound for mistakes on the command line.
const PIPELINE_MAX: usize = 10_000;
/// Bounds of a rate, for mistakes on the command line.
const RATE_MIN: f64 = 0.1;
const RATE_MAX: f64 = 1e8;
/// Connections of a fill: enough that the server always has a batch waiting, few enough that batches stay
/// large.
const FILL_CLIENTS: usize = 4;
const FILL_PIPELINE: usize = 64;

/// When a run ends.
#[derive(Clone, Debug)]
pub(crate) enum Until {
    /// Measured for a time, after a warm-up that does not count.
    Time { warm_up: Duration, measured: Duration },
    /// This many requests, all of them measured.
    Requests(u64),
    /// Measured until an event is over, which begins when the warm-up has ended.
    Event { warm_up: Duration, event: Arc<Event> },
}

/// Synchronizes a load with an event in its server.
#[derive(Debug, Default)]
pub(crate) struct Event {
    may_begin: AtomicBool,
    is_over: AtomicBool,
}

impl Event {
    /// Waits until the load is being measured.
    pub(crate) fn begin(&self) -> Result<()> {
        while !self.may_begin.load(Ordering::Acquire) && !self.is_over() {
            interrupt::check()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Ends the load.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

/// All parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) server: Endpoint,
    pub(crate) clients: usize,
    pub(crate) threads: usize,
    pub(crate) pipeline: usize,
    pub(crate) command: Command,
    pub(crate) key_size: usize,
    pub(crate) keys: KeyRange,
    pub(crate) distribution: Distribution,
    pub(crate) value_size: usize,
    /// Requests per second, sent when they are due; `None`: each connection sends after its last reply.
    pub(crate) rate: Option<f64>,
    pub(crate) until: Until,
    /// A connection per request instead of kept connections.
    pub(crate) short: bool,
    /// CPUs for the threads; empty: anywhere.
    pub(crate) cpus: Vec<usize>,
}

impl Plan {
    /// SET of each key of the range, once, as fast as the server takes it.
    pub(crate) fn fill(
        server: impl Into<Endpoint>,
        keys: KeyRange,
        key_size: usize,
        value_size: usize,
    ) -> Self {
        Self {
            server: server.into(),
            clients: FILL_CLIENTS,
            threads: 1,
            pipeline: FILL_PIPELINE,
            command: Command::Set,
            key_size,
            keys,
            distribution: Distribution::Sequential,
            value_size,
            rate: None,
            until: Until::Requests(keys.count),
            short: false,
            cpus: Vec::new(),
        }
    }

    fn check(&self) -> Result<()> {
        keys::check(self.key_size, self.keys)?;
        if self.clients == 0 || self.threads == 0 || self.pipeline == 0 {
            bail!("clients, threads and pipeline must be at least 1");
        }
        if self.pipeline > PIPELINE_MAX {
            bail!("a pipeline of more than {PIPELINE_MAX} is not supported");
        }
        if self.rate.is_some_and(|rate| !(RATE_MIN..=RATE_MAX).contains(&rate)) {
            bail!("the rate must be from {RATE_MIN} to {RATE_MAX} requests per second");
        }
        if self.server.protocol == Protocol::Memcached
            && matches!(self.command, Command::Words(_) | Command::Shares(_))
        {
            bail!("memcached is sent get, set and mixed only");
        }
        let is_path = |command: &Command| matches!(command, Command::Words(words) if words.starts_with('/'));
        if (self.server.protocol == Protocol::Http) != is_path(&self.command) {
            bail!("http is sent paths, such as /livez, and no other server is");
        }
        if self.short && self.rate.is_some() {
            bail!("short connections come as fast as they are answered: no rate");
        }
        if self.short && self.pipeline > 1 {
            bail!("short connections send one request each: no pipeline");
        }
        Ok(())
    }

    /// Returns the plan of thread `index` of `self.threads`: its share of clients, requests and, if they come
    /// in order, keys.
    fn share(&self, index: usize) -> Self {
        let (index, threads) = (index as u64, self.threads as u64);
        let part = |whole: u64, index: u64| whole / threads + u64::from(index < whole % threads);
        let mut share = self.clone();
        share.clients = part(self.clients as u64, index) as usize;
        if let Until::Requests(requests) = self.until {
            share.until = Until::Requests(part(requests, index));
        }
        if self.distribution == Distribution::Sequential && self.keys.count >= threads {
            share.keys.first += (0..index).map(|before| part(self.keys.count, before)).sum::<u64>();
            share.keys.count = part(self.keys.count, index);
        }
        share
    }

    fn composer(&self, sizes: &Sizes, index: usize) -> Composer {
        let keys = KeyStream::new(self.keys, self.distribution, 0xc0ffee + index as u64);
        Composer::new(self.server.protocol, &self.command, self.key_size, sizes, keys, index as u64)
    }
}

/// Options of the command line beside a plan, which no experiment uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extras {
    pub(crate) login: Login,
    /// Sizes of the values, unless all have the plan's.
    pub(crate) sizes: Option<Sizes>,
    /// Show progress in a line on stderr.
    pub(crate) shows_progress: bool,
}

/// The phases of a run, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    WarmUp,
    Measure,
    Stop,
}

/// State shared by the threads and the main thread.
struct Control {
    phase: AtomicU8,
    counters: Vec<Counter>,
}

/// Replies to a thread since its start; all its counts belong to the same moment. On its own cache line.
#[repr(align(64))]
#[derive(Default)]
struct Counter(Mutex<Counts>);

impl Counter {
    fn set(&self, counts: Counts) {
        *self.0.lock().expect("nobody panics meanwhile") = counts;
    }

    fn get(&self) -> Counts {
        *self.0.lock().expect("nobody panics meanwhile")
    }
}

impl Control {
    fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::WarmUp,
            1 => Phase::Measure,
            _ => Phase::Stop,
        }
    }

    fn answered(&self) -> Counts {
        let mut sum = Counts::default();
        self.counters.iter().for_each(|counter| sum.add(counter.get()));
        sum
    }
}

/// A loop over connections, kept or short.
trait Driver: Send {
    /// Sends the first requests.
    fn begin(&mut self) -> Result<()>;
    /// Handles ready connections. Returns false when all requested requests have been answered.
    fn turn(&mut self) -> Result<bool>;
    fn tally(&mut self) -> &mut Tally;
    /// Returns the wait of the connection that waits longest.
    fn longest_wait(&self) -> Duration;
    /// Returns the requests that were due and have not been sent.
    fn late(&self) -> u64;
}

/// Runs `plan`; with `server`, also measures the process of that number.
pub(crate) fn run(plan: &Plan, server: Option<u32>) -> Result<Outcome> {
    run_with(plan, &Extras::default(), server)
}

pub(crate) fn run_with(plan: &Plan, extras: &Extras, server: Option<u32>) -> Result<Outcome> {
    plan.check()?;
    extras.login.check(plan.server.protocol)?;
    let greeting = Arc::new(Greeting::new(plan.server.protocol, &extras.login));
    let sizes = extras.sizes.clone().unwrap_or(Sizes::Fixed(plan.value_size));
    let threads = plan.threads.min(plan.clients);
    let plan = Plan { threads, ..plan.clone() };
    let mut drivers: Vec<Box<dyn Driver>> = Vec::new();
    for index in 0..threads {
        let share = plan.share(index);
        let composer = share.composer(&sizes, index);
        drivers.push(match plan.short {
            true => Box::new(short::ShortConnections::new(&share, composer, greeting.clone())?),
            false => Box::new(keepalive::KeptConnections::new(&share, composer, &greeting, index)?),
        });
    }
    let counters = (0..threads).map(|_| Counter::default()).collect();
    // A number of requests counts from the first request, so the threads must find the phase when they begin.
    let first = if matches!(plan.until, Until::Requests(_)) { Phase::Measure } else { Phase::WarmUp };
    let control = Control { phase: AtomicU8::new(first as u8), counters };
    let began = Mark::take(&control, server)?;
    std::thread::scope(|scope| {
        let workers = spawn(scope, drivers, &control, &plan.cpus)?;
        let progress = extras.shows_progress.then(Progress::new);
        let window = conduct(&plan, &control, &workers, began, server, progress.as_ref());
        control.enter(Phase::Stop);
        let tallies = workers.into_iter().map(|worker| worker.join().expect("the loops do not panic"));
        let tallies = tallies.collect::<Result<Vec<Tally>>>()?;
        Ok(Outcome::new(window?, tallies))
    })
}

type Worker<'scope> = ScopedJoinHandle<'scope, Result<Tally>>;

fn spawn<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    drivers: Vec<Box<dyn Driver + 'env>>,
    control: &'env Control,
    cpus: &'env [usize],
) -> Result<Vec<Worker<'scope>>> {
    let mut workers = Vec::new();
    for (index, mut driver) in drivers.into_iter().enumerate() {
        let counter = &control.counters[index];
        let worker = move || {
            sys::pin(cpus).context("cannot pin the load to its cpus")?;
            drive(driver.as_mut(), control, counter)
        };
        let builder = std::thread::Builder::new().name(format!("load-{index}"));
        workers.push(builder.spawn_scoped(scope, worker).context("cannot start a thread")?);
    }
    Ok(workers)
}

/// Runs a thread's loop from start to end.
fn drive(driver: &mut dyn Driver, control: &Control, counter: &Counter) -> Result<Tally> {
    let mut seen = control.phase();
    let mut cpu_at_start = sys::thread_cpu_ns();
    sys::wake_on_time();
    driver.begin()?;
    let (mut last_count, mut last_progress) = (0, Instant::now());
    while seen != Phase::Stop && driver.turn()? {
        let answered = driver.tally().answered;
        counter.set(answered);
        if answered.replies != last_count {
            (last_count, last_progress) = (answered.replies, Instant::now());
        } else if last_progress.elapsed() > ANSWER_TIMEOUT {
            bail!("the server has answered nothing for {} s", ANSWER_TIMEOUT.as_secs());
        }
        let phase = control.phase();
        if phase == Phase::Measure && seen == Phase::WarmUp {
            driver.tally().forget_warm_up();
            cpu_at_start = sys::thread_cpu_ns();
        }
        seen = phase;
    }
    counter.set(driver.tally().answered);
    let (waiting, late) = (driver.longest_wait(), driver.late());
    let mut tally = std::mem::take(driver.tally());
    tally.cpu_ns = sys::thread_cpu_ns() - cpu_at_start;
    tally.record_unanswered(waiting);
    tally.late = late;
    tally.ended = Some(Instant::now());
    Ok(tally)
}

/// The main thread's measurements at both ends of the measured time.
pub(crate) struct Window {
    pub(crate) started: Instant,
    pub(crate) ended: Instant,
    pub(crate) answered: Counts,
    pub(crate) usage: Option<(Usage, Usage)>,
    pub(crate) threads: usize,
    pub(crate) listen_overflows: u64,
}

/// Counts and measures at a single instant.
struct Mark {
    at: Instant,
    answered: Counts,
    usage: Option<Usage>,
    listen_overflows: u64,
}

impl Mark {
    fn take(control: &Control, server: Option<u32>) -> Result<Self> {
        let (usage, listen_overflows) = (server.map(proc::usage).transpose()?, proc::listen_overflows());
        Ok(Self { at: Instant::now(), answered: control.answered(), usage, listen_overflows })
    }
}

/// Leads the threads through the phases.
fn conduct(
    plan: &Plan,
    control: &Control,
    workers: &[Worker<'_>],
    began: Mark,
    server: Option<u32>,
    progress: Option<&Progress>,
) -> Result<Window> {
    let tick = || progress.iter().for_each(|line| line.tick(&plan.until, || control.answered().replies));
    let one_ended = || {
        tick();
        workers.iter().any(|worker| worker.is_finished())
    };
    let all_ended = || {
        tick();
        workers.iter().all(|worker| worker.is_finished())
    };
    let started = match plan.until {
        Until::Time { warm_up, measured } => {
            interrupt::sleep_until(Instant::now() + warm_up, one_ended)?;
            let started = Mark::take(control, server)?;
            control.enter(Phase::Measure);
            interrupt::sleep_until(started.at + measured, one_ended)?;
            started
        }
        Until::Requests(_) => {
            wait_for(all_ended)?;
            began
        }
        Until::Event { warm_up, ref event } => {
            interrupt::sleep_until(Instant::now() + warm_up, one_ended)?;
            let started = Mark::take(control, server)?;
            control.enter(Phase::Measure);
            event.may_begin.store(true, Ordering::Release);
            wait_for(|| event.is_over() || one_ended())?;
            started
        }
    };
    // before the look at the server, which takes time
    let (at, answered) = (Instant::now(), control.answered());
    let ended = Mark { at, answered, ..Mark::take(control, server)? };
    Ok(Window {
        started: started.at,
        ended: ended.at,
        answered: ended.answered.since(started.answered),
        usage: started.usage.zip(ended.usage),
        threads: plan.threads,
        listen_overflows: ended.listen_overflows.saturating_sub(started.listen_overflows),
    })
}

fn wait_for(done: impl Fn() -> bool) -> Result<()> {
    while !done() {
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn shares_add_up_and_do_not_overlap() {
        let server = SocketAddr::from(([127, 0, 0, 1], 1));
        let mut plan = Plan::fill(server, KeyRange { first: 5, count: 1_001 }, 16, 1);
        (plan.threads, plan.clients) = (3, 7);
        let shares: Vec<Plan> = (0..3).map(|index| plan.share(index)).collect();
        assert_eq!(shares.iter().map(|share| share.clients).sum::<usize>(), 7);
        let mut next = 5;
        for share in &shares {
            assert_eq!(share.keys.first, next);
            assert!(matches!(share.until, Until::Requests(requests) if requests == share.keys.count));
            next += share.keys.count;
        }
        assert_eq!(next, 5 + 1_001);
    }

    #[test]
    fn plans_that_make_no_sense_are_refused() {
        let server = SocketAddr::from(([127, 0, 0, 1], 1));
        let good = Plan::fill(server, KeyRange { first: 0, count: 10 }, 16, 1);
        assert!(good.check().is_ok());
        assert!(Plan { clients: 0, ..good.clone() }.check().is_err());
        assert!(Plan { pipeline: 0, ..good.clone() }.check().is_err());
        assert!(Plan { short: true, ..good.clone() }.check().is_err());
        assert!(Plan { key_size: 4, ..good }.check().is_err());
    }
}
