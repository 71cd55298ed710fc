//! `stalls`: how long one client waits while another one works on a huge value.
//!
//! A probe sends one GET after the other of a key of its own, over one connection, and notes the longest time to a reply.
//! Meanwhile another client builds values of millions of elements, copies them, writes to the copy, deletes both, sorts
//! and unites. The machine's own share shows in the row where nothing else happens.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::Session;
use super::feed::{Words, feed, member};
use super::lanes::Lane;
use crate::interrupt;
use crate::json::Json;
use crate::peers::{Kind, Launch};
use crate::stats::Goal;
use crate::table::{Table, thousands, time_us};

/// Longest wait of the probe.
const GOAL_MS: Goal = Goal::AtMost(3.0);
/// Elements per command while a value is built.
const AT_ONCE: u64 = 20;
/// How long the probe goes on after a step, for what a server does in the background.
const AFTER: Duration = Duration::from_millis(300);

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct StallsArgs {
    /// Elements of the values that are built, copied and deleted
    #[arg(short, long, default_value_t = 10_000_000)]
    elements: u64,
    /// Elements of the values that are sorted and united
    #[arg(long, default_value_t = 1_000_000)]
    work: u64,
}

impl Default for StallsArgs {
    fn default() -> Self {
        Self { elements: 10_000_000, work: 1_000_000 }
    }
}

impl StallsArgs {
    pub(super) fn estimate(&self, session: &Session) -> Duration {
        let servers = session.peers.iter().filter(|peer| peer.kind != Kind::Floor).count() as u64;
        Duration::from_secs(servers * (4 * self.elements / 500_000 + 10))
    }
}

/// Appends element `number` of a value to a command.
type Element = fn(u64, &mut Words);

/// What happens while the probe runs.
type Step = Box<dyn Fn(SocketAddr) -> Result<()>>;

fn once(line: &'static str) -> Step {
    Box::new(move |server| feed(server, 1, |_, words| _ = words.line(line)))
}

/// Elements with numbers from zero on, added to one key.
fn build(command: &'static str, key: &'static str, count: u64, add: Element) -> Step {
    Box::new(move |server| {
        feed(server, count / AT_ONCE, |number, words| {
            words.add(command).add(key);
            (number * AT_ONCE..(number + 1) * AT_ONCE).for_each(|number| add(number, words));
        })
    })
}

fn steps(args: &StallsArgs) -> Vec<(String, Step)> {
    let mut steps: Vec<(String, Step)> = Vec::new();
    let mut add = |name: &str, step: Step| steps.push((name.to_owned(), step));
    add("nothing", Box::new(|_| interrupt::sleep(Duration::from_secs(2))));
    let kinds: [(&str, &'static str, Element); 4] = [
        ("hash", "HSET", |number, words| _ = words.add(member(number)).add("value")),
        ("set", "SADD", |number, words| _ = words.add(member(number))),
        ("zset", "ZADD", |number, words| _ = words.add((number % 65_537).to_string()).add(member(number))),
        ("list", "RPUSH", |number, words| _ = words.add(member(number))),
    ];
    for (name, command, element) in kinds {
        add(&format!("build a {name}"), build(command, "big", args.elements, element));
        add(&format!("COPY the {name}"), once("COPY big copy"));
        add(&format!("write to the copied {name}"), build(command, "copy", 20_000, element));
        add(&format!("DEL the {name}s"), once("DEL big copy"));
    }
    add(
        "two zsets for work",
        Box::new({
            let count = args.work;
            move |server| {
                build("ZADD", "one", count, |number, words| {
                    _ = words.add(number.to_string()).add(member(number))
                })(server)?;
                build("ZADD", "two", count, |number, words| {
                    _ = words.add(number.to_string()).add(member(number + 500_000));
                })(server)
            }
        }),
    );
    add("ZUNIONSTORE", once("ZUNIONSTORE union 2 one two"));
    add("SORT ALPHA STORE", once("SORT one ALPHA STORE sorted"));
    add("ZRANGE of all", once("ZRANGE one 0 -1 WITHSCORES"));
    add("FLUSHALL", once("FLUSHALL"));
    steps
}

pub(crate) fn stalls(session: &mut Session, args: &StallsArgs) -> Result<()> {
    let kinds = [Kind::Valkey, Kind::Redis, Kind::Evenkeel];
    let kinds: Vec<Kind> = kinds.into_iter().filter(|kind| session.peer(*kind).is_some()).collect();
    let all = kinds.iter().map(|kind| waits(session, *kind, args)).collect::<Result<Vec<Vec<Wait>>>>()?;
    let mut head = vec![""];
    head.extend(kinds.iter().map(|kind| kind.name()));
    head.extend(["goal", ""]);
    let mut table = Table::new(&head);
    let mut records = Vec::new();
    for (index, (name, _)) in steps(args).iter().enumerate() {
        let mut cells = vec![name.clone()];
        cells.extend(all.iter().map(|waits| {
            let wait = &waits[index];
            format!("{} in {:.1} s", time_us(wait.longest_us), wait.took.as_secs_f64())
        }));
        if let Some(ours) = kinds.iter().position(|kind| *kind == Kind::Evenkeel) {
            let ms = all[ours][index].longest_us / 1e3;
            cells.extend([
                GOAL_MS.to_string(),
                session.judge(format!("longest wait in ms: {name}"), GOAL_MS, ms),
            ]);
        }
        table.row(cells);
        let longest: Vec<f64> = all.iter().map(|waits| waits[index].longest_us).collect();
        records.push(Json::Object(vec![("step", name.as_str().into()), ("longest_us", longest.into())]));
    }
    let (elements, work) = (thousands(args.elements as f64), thousands(args.work as f64));
    let title = format!("Longest wait of another client, {elements} elements, {work} to sort and unite");
    session.report("stalls", &title, &table, vec![("steps", Json::List(records))]);
    Ok(())
}

struct Wait {
    longest_us: f64,
    took: Duration,
}

fn waits(session: &Session, kind: Kind, args: &StallsArgs) -> Result<Vec<Wait>> {
    let peer = session.peer(kind).expect("only what was found");
    let lane = Lane::start(peer, kind.name(), &Launch { cpus: Vec::new(), threads: crate::sys::cores() })?;
    let server = lane.server.address;
    feed(server, 1, |_, words| _ = words.line("SET probe value"))?;
    let (stop, longest_ns) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let probe = scope.spawn(|| probe(server, &stop, &longest_ns));
        let mut waits = Vec::new();
        let mut work = || -> Result<()> {
            for (_, step) in steps(args) {
                longest_ns.store(0, Relaxed);
                let started = Instant::now();
                step(server)?;
                let took = started.elapsed();
                interrupt::sleep(AFTER)?;
                waits.push(Wait { longest_us: longest_ns.load(Relaxed) as f64 / 1e3, took });
                // FLUSHALL takes the key of the probe along.
                feed(server, 1, |_, words| _ = words.line("SET probe value"))?;
            }
            Ok(())
        };
        let done = work();
        stop.store(true, Relaxed);
        probe.join().expect("the probe does not panic")?;
        done.map(|()| waits)
    })
}

/// Sends GETs one by one until told to stop; keeps the longest wait since it was set to zero.
fn probe(server: SocketAddr, stop: &AtomicBool, longest_ns: &AtomicU64) -> Result<()> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    let mut piece = [0; 256];
    while !stop.load(Relaxed) {
        let sent = Instant::now();
        stream.write_all(b"*2\r\n$3\r\nGET\r\n$5\r\nprobe\r\n")?;
        if stream.read(&mut piece)? == 0 {
            bail!("the server closed the probe's connection");
        }
        longest_ns.fetch_max(sent.elapsed().as_nanos() as u64, Relaxed);
        // Leaves the core to others most of the time.
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}
