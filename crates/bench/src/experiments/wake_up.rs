//! `wake-up`: the cost of threads waking each other.
//!
//! First in isolation: four threads pass events round ([`super::ring`]), with a signal for each event, and by
//! the server's mailbox. With a single event each hand-over wakes a sleeper; with many, the threads are awake
//! anyway, and a signal is waste. Then in the server: clients of four workers publish, and subscribers on all
//! of them listen, so that nearly every message crosses from one worker to another. The workers count their
//! wake-ups and turns.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::Session;
use super::account::Account;
use super::features::Listener;
use super::lanes::{self, Lane, Traffic};
use super::ring::{self, Ring, SignalMode, THREADS};
use super::series::Sample;
use crate::json::{Json, object};
use crate::load::requests::Command;
use crate::promises::Promise;
use crate::servers::{Launch, ServerKind};
use crate::stats::{Goal, Spread};
use crate::table::{Table, thousands};
use crate::{proc, sys};

/// Events under way at a time: each hand-over wakes a sleeper, and hardly any has to.
const EVENTS: [usize; 2] = [1, 64];
const MODES: [(SignalMode, &str); 2] =
    [(SignalMode::Always, "eventfd each time"), (SignalMode::Mailbox, "evenkeel's mailbox")];
const SUBSCRIBERS: usize = 8;
const PUBLISHERS: usize = 16;
const PIPELINES: [usize; 2] = [1, 16];
const MESSAGE_SIZE: usize = 50;
const CHANNEL: &str = "evenkeel-bench:wake-up";
/// Signals per time that a thread went to sleep: a thread that is awake gets none.
const PER_SLEEP: Goal = Goal::AtMost(1.0);
/// Wake-ups of all workers, per turn of a loop and per other worker that it could have woken.
const PER_TURN: Goal = Goal::AtMost(1.0);

pub(super) fn estimate(session: &Session) -> Duration {
    session.time_for((EVENTS.len() * MODES.len() + PIPELINES.len()) * session.rounds)
}

pub(crate) fn wake_up(session: &mut Session) -> Result<()> {
    threads(session)?;
    server(session)
}

fn threads(session: &mut Session) -> Result<()> {
    let head = [
        "events under way",
        "",
        "events/s",
        "useful CPU",
        "signals per event",
        "per sleep",
        "goal",
        "",
        "rescheduling interrupts/s",
        "function calls/s",
    ];
    let (mut table, mut figures) = (Table::new(&head), Vec::new());
    for events in EVENTS {
        let mut all: Vec<Vec<Ring>> = MODES.iter().map(|_| Vec::new()).collect();
        for _ in 0..session.rounds {
            for ((mode, _), rings) in MODES.iter().zip(&mut all) {
                rings.push(ring::run(*mode, events, session.measured)?);
            }
        }
        for ((mode, name), rings) in MODES.iter().zip(&all) {
            let values = |figure: fn(&Ring) -> f64| rings.iter().map(figure).collect::<Vec<f64>>();
            let median = |figure| Spread::of(values(figure)).map_or(f64::NAN, |spread| spread.median);
            let per_sleep = Spread::of(values(|ring| ring.signals_per_sleep)).map_or(f64::NAN, |one| one.max);
            let is_ours = *mode == SignalMode::Mailbox;
            let verdict = match is_ours {
                true => session.judge_for(
                    Promise::WakeUps,
                    format!("signals per sleep, with {events} under way"),
                    PER_SLEEP,
                    per_sleep,
                ),
                false => String::new(),
            };
            table.row(vec![
                events.to_string(),
                (*name).to_owned(),
                thousands(median(|ring| ring.events_per_s)),
                format!("{:.0}%", median(|ring| ring.useful) * 100.0),
                format!("{:.3}", median(|ring| ring.signals_per_event)),
                format!("{per_sleep:.2}"),
                if is_ours { PER_SLEEP.to_string() } else { String::new() },
                verdict,
                thousands(median(|ring| ring.rescheduling_per_s)),
                thousands(median(|ring| ring.calls_per_s)),
            ]);
            figures.push(object(vec![
                ("server", format!("{name}, {events} under way").into()),
                ("events_per_s", values(|ring| ring.events_per_s).into()),
                ("useful_cpu", values(|ring| ring.useful).into()),
                ("signals_per_event", values(|ring| ring.signals_per_event).into()),
                ("signals_per_sleep", values(|ring| ring.signals_per_sleep).into()),
                ("rescheduling_interrupts_per_s", values(|ring| ring.rescheduling_per_s).into()),
                ("function_call_interrupts_per_s", values(|ring| ring.calls_per_s).into()),
            ]));
        }
    }
    let title = format!("wake-up: {THREADS} threads that hand events of 1 us round, {} cores", sys::cores());
    session.report("wake-up", &title, &table, vec![("servers", Json::Array(figures))]);
    Ok(())
}

/// A measurement of the server; wake-ups of workers and turns of their loops are per message.
struct WakeUps {
    sample: Sample,
    wakeups: f64,
    turns: f64,
    rescheduling_per_s: f64,
}

fn server(session: &mut Session) -> Result<()> {
    let Some(program) = session.program(ServerKind::Evenkeel) else {
        println!("\nwake-up: the server's part is skipped, since there is no evenkeel");
        return Ok(());
    };
    let lane =
        Lane::start(program, ServerKind::Evenkeel.name(), &Launch { threads: THREADS, ..Launch::default() })?;
    let subscribe = format!("SUBSCRIBE {CHANNEL}\r\n");
    let listen = |_| Listener::connect(lane.server.address, &subscribe, true);
    let _listeners = (0..SUBSCRIBERS).map(listen).collect::<Result<Vec<Listener>>>()?;
    let head = [
        "PUBLISH",
        "messages/s",
        "CPU us/message",
        "kernel",
        "wake-ups per 1,000 messages",
        "turns per 1,000",
        "wake-ups per turn and peer",
        "goal",
        "",
        "rescheduling interrupts/s",
        "load busy",
    ];
    let (mut table, mut figures) = (Table::new(&head), Vec::new());
    for pipeline in PIPELINES {
        let traffic = Traffic {
            command: Command::Words(format!("PUBLISH {CHANNEL} {{value}}")),
            pipeline,
            clients: PUBLISHERS,
            value_size: MESSAGE_SIZE,
            ..Traffic::default()
        };
        let all: Vec<WakeUps> =
            (0..session.rounds).map(|_| measure(session, &lane, &traffic)).collect::<Result<_>>()?;
        let values = |figure: fn(&WakeUps) -> f64| all.iter().map(figure).collect::<Vec<f64>>();
        let median = |figure| Spread::of(values(figure)).map_or(f64::NAN, |spread| spread.median);
        let per_turn = median(|one| one.wakeups / one.turns / (THREADS - 1) as f64);
        let what = format!("wake-ups per turn and peer, PUBLISH, pipeline {pipeline}");
        let verdict = session.judge_for(Promise::WakeUps, what, PER_TURN, per_turn);
        table.row(vec![
            format!("pipeline {pipeline}"),
            thousands(median(messages_per_s)),
            format!("{:.2}", median(|one| one.sample.cpu_us / SUBSCRIBERS as f64)),
            format!("{:.0}%", median(|one| one.sample.system_share) * 100.0),
            format!("{:.1}", median(|one| one.wakeups * 1e3)),
            format!("{:.1}", median(|one| one.turns * 1e3)),
            format!("{per_turn:.3}"),
            PER_TURN.to_string(),
            verdict,
            thousands(median(|one| one.rescheduling_per_s)),
            format!("{:.0}%", median(|one| one.sample.load_busy) * 100.0),
        ]);
        figures.push(object(vec![
            ("server", format!("evenkeel, pipeline {pipeline}").into()),
            ("messages_per_s", values(messages_per_s).into()),
            ("wakeups_per_message", values(|one| one.wakeups).into()),
            ("turns_per_message", values(|one| one.turns).into()),
            ("rescheduling_interrupts_per_s", values(|one| one.rescheduling_per_s).into()),
        ]));
    }
    let title = format!(
        "wake-up: {PUBLISHERS} clients PUBLISH {MESSAGE_SIZE} B to {SUBSCRIBERS} \
         subscribers over {THREADS} workers, {} cores",
        sys::cores()
    );
    session.report("wake-up", &title, &table, vec![("servers", Json::Array(figures))]);
    Ok(())
}

fn messages_per_s(one: &WakeUps) -> f64 {
    one.sample.rate * SUBSCRIBERS as f64
}

/// The account covers the warm-up as well, and is divided by the messages of all that time.
fn measure(session: &Session, lane: &Lane, traffic: &Traffic) -> Result<WakeUps> {
    let (before, began) = (Account::of(lane)?, Instant::now());
    let (interrupts_before, _) = proc::interrupts_between_cpus();
    let sample = lanes::measure(session, lane, traffic)?;
    let (interrupts, _) = proc::interrupts_between_cpus();
    let (account, seconds) = (Account::of(lane)?.since(&before), began.elapsed().as_secs_f64());
    let messages = account.get("commands") * SUBSCRIBERS as f64;
    if messages <= 0.0 {
        bail!("nothing was published");
    }
    let [wakeups, turns] = ["wakeups", "turns"].map(|name| account.get(name) / messages);
    let rescheduling_per_s = (interrupts - interrupts_before) as f64 / seconds;
    Ok(WakeUps { sample, wakeups, turns, rescheduling_per_s })
}
