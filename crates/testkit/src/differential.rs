//! Sends the same random commands to two servers and compares their replies byte by byte.
//!
//! Commands come from a table of families; a family is one file and a line in [`FAMILIES`]. They run in
//! episodes of a few hundred commands. Each episode starts from empty servers and new connections, so an
//! episode that finds a difference can be repeated with steps left out, until a handful of commands shows it
//! ([`shrink`]). Everything follows from a seed, which is printed before the first command.
//!
//! Allowed differences between two correct servers (the order of KEYS, an idle time) are listed by name in
//! [`same`]; any other difference is a finding. Times that matter to replies are far away or absolute, since
//! two servers never execute at the same instant.

mod bitmaps;
mod connection;
mod drive;
mod dumps;
mod expiry;
mod hashes;
mod hashes_valkey;
mod hyperloglog;
mod keyspace;
mod lists;
mod make;
mod same;
mod sets;
mod shrink;
mod sorted_sets;
mod sorts;
mod streams;
mod strings;
mod strings_valkey;
mod transactions;
mod wire;

use std::fmt;

use crate::program::Reference;
use crate::random::Random;
use crate::server::Server;
use crate::words;
use make::Maker;

type Args = Vec<Vec<u8>>;

/// An item with its relative frequency.
type Weighted<T> = (usize, T);
type MakeCommand = fn(&mut Maker) -> Args;
type MakeScene = fn(&mut Maker);

/// Two connections: enough for a WATCH that fails, and few enough to read a finding.
const CONNECTIONS: usize = 2;

/// Long enough for state to build up, short enough to shrink and to end before any second passes.
const EPISODE_STEPS: usize = 300;

/// Commands that belong together, in the same file.
struct Family {
    name: &'static str,
    /// Frequency relative to the other families.
    weight: usize,
    /// The only reference server that has these commands; `None`: all have them.
    only: Option<Reference>,
    /// Single commands, which also fill transactions and protocol tests.
    commands: &'static [Weighted<MakeCommand>],
    /// Sequences of steps that only make sense together.
    scenes: &'static [Weighted<MakeScene>],
}

#[rustfmt::skip]
const FAMILIES: &[&Family] = &[
    &strings::FAMILY,
    &strings_valkey::FAMILY,
    &bitmaps::FAMILY,
    &hyperloglog::FAMILY,
    &keyspace::FAMILY,
    &expiry::FAMILY,
    &dumps::FAMILY,
    &hashes::FAMILY,
    &lists::FAMILY,
    &hashes_valkey::FAMILY,
    &sets::FAMILY,
    &sorted_sets::FAMILY,
    &sorted_sets::NEWER,
    &streams::FAMILY,
    &streams::NEWER,
    &sorts::FAMILY,
    &connection::FAMILY,
    &transactions::FAMILY,
    &wire::FAMILY,
];

/// The parameters of a run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub seed: u64,
    /// Number of steps, nearly all of which are single commands.
    pub commands: usize,
    /// The server whose replies count as right: it decides which families take part.
    pub oracle: Reference,
    /// Names of families to leave out.
    pub except: &'static [&'static str],
}

/// The counts of a run without a finding.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    pub commands: usize,
    /// Replies that were the same byte for byte.
    pub identical: usize,
    /// Different replies that the list of allowed differences explains.
    pub allowed: usize,
    /// Replies that were errors: most drawn commands should succeed.
    pub refused: usize,
    /// Number of steps per family.
    pub families: Vec<(&'static str, usize)>,
}

/// The shortest list of commands found to which two servers reply differently.
#[derive(Debug)]
pub struct Finding {
    seed: u64,
    episode: usize,
    steps_before: usize,
    shrunk: Episode,
    difference: Difference,
}

/// A reply that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Difference {
    /// Index of the step in the episode.
    step: usize,
    subject: String,
    oracle: String,
}

/// Commands that start from empty servers and can be run again.
#[derive(Debug, Clone)]
struct Episode {
    oracle: Reference,
    /// Protocol (2 or 3) of each connection.
    protocols: [u8; CONNECTIONS],
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
struct Step {
    connection: usize,
    action: Action,
    /// Wait for the replies before the next step is sent; else this step goes out together with the next
    /// step.
    flush: bool,
    family: &'static str,
}

#[derive(Debug, Clone)]
enum Action {
    Command(Args),
    /// The same command, typed as a line.
    Inline(Args),
    /// Bytes that may not be a command and may make the server hang up.
    Raw(Vec<u8>),
    /// Bytes on a connection of their own, which the client then closes.
    Burst(Vec<u8>),
    /// SCAN, or HSCAN and the like of a key, with these options, from cursor 0 (omitted here) to the end.
    Walk(Args),
    PauseMs(u64),
}

/// Runs random commands on both servers. Both lose all their data.
pub fn compare(subject: &Server, oracle: &Server, plan: Plan) -> Result<Summary, Box<Finding>> {
    println!("differential: EVENKEEL_SEED={} repeats these {} commands", plan.seed, plan.commands);
    let mut summary = Summary::default();
    let mut seeds = Random::new(plan.seed);
    let mut number = 0;
    while summary.commands < plan.commands {
        let length = EPISODE_STEPS.min(plan.commands - summary.commands);
        let episode = make::episode(seeds.draw(), length, plan);
        if let Err(difference) = drive::run(subject, oracle, &episode, &mut summary) {
            let steps_before = episode.steps.len();
            let (shrunk, difference) = shrink::shrink(subject, oracle, episode, difference);
            return Err(Box::new(Finding {
                seed: plan.seed,
                episode: number,
                steps_before,
                shrunk,
                difference,
            }));
        }
        summary.count(&episode);
        number += 1;
    }
    Ok(summary)
}

/// A random step, for tests that compare state instead of replies.
#[derive(Debug)]
pub enum Sent {
    /// A connection's number, and the command that it sends.
    Command(usize, Vec<Vec<u8>>),
    PauseMs(u64),
}

/// Returns an episode's commands, without steps that only make sense as bytes.
pub fn commands(plan: Plan) -> Vec<Sent> {
    let steps = make::episode(plan.seed, plan.commands, plan).steps;
    let sent = steps.into_iter().filter_map(|step| match step.action {
        Action::Command(args) | Action::Inline(args) => Some(Sent::Command(step.connection, args)),
        Action::PauseMs(ms) => Some(Sent::PauseMs(ms)),
        Action::Raw(_) | Action::Burst(_) | Action::Walk(_) => None,
    });
    sent.collect()
}

impl Summary {
    fn count(&mut self, episode: &Episode) {
        self.commands += episode.steps.len();
        for step in &episode.steps {
            match self.families.iter_mut().find(|(name, _)| *name == step.family) {
                Some((_, count)) => *count += 1,
                None => self.families.push((step.family, 1)),
            }
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { commands, identical, allowed, refused, families } = self;
        write!(
            f,
            "{commands} commands, {identical} replies identical, {allowed} allowed to differ, {refused} \
             errors;"
        )?;
        families.iter().try_for_each(|(name, count)| write!(f, " {name} {count}"))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kept, before) = (self.shrunk.steps.len(), self.steps_before);
        writeln!(
            f,
            "two servers differ; seed {}, episode {}, {kept} of {before} steps:",
            self.seed, self.episode
        )?;
        write!(f, "{}", self.shrunk)?;
        writeln!(f, "at step {}", self.difference.step + 1)?;
        writeln!(f, "  subject: {}", self.difference.subject)?;
        writeln!(f, "  oracle:  {}", self.difference.oracle)
    }
}

impl fmt::Display for Episode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (connection, protocol) in self.protocols.iter().enumerate() {
            writeln!(f, "     {}> HELLO {protocol}", connection_name(connection))?;
        }
        for (index, step) in self.steps.iter().enumerate() {
            let batch = if step.flush { "" } else { "   (sent with the next)" };
            writeln!(f, "{:4} {}> {}{batch}", index + 1, connection_name(step.connection), step.action)?;
        }
        Ok(())
    }
}

fn connection_name(connection: usize) -> char {
    char::from(b'a' + connection as u8)
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Command(args) => f.write_str(&words::join(args)),
            Action::Inline(args) => write!(f, "{}   (typed)", words::join(args)),
            Action::Raw(bytes) => write!(f, "bytes {}", words::join(&[bytes])),
            Action::Burst(bytes) => {
                write!(f, "bytes {}   (new connection, then closed)", words::join(&[bytes]))
            }
            Action::Walk(args) => write!(f, "{}   (from cursor 0 to the end)", words::join(args)),
            Action::PauseMs(ms) => write!(f, "~ {ms}ms"),
        }
    }
}
