//! `churn`: the resident memory for the data in use, after much of it has come and gone.
//!
//! A server is filled with strings of all lengths, two thirds of them are deleted at random, and strings of
//! other lengths come. The ratio of resident to used bytes (`used_memory`) is taken on the way: at 1.0,
//! everything that the process holds is data. Servers that can move data at run time do so (`activedefrag
//! yes`); the others refuse it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Session;
use super::felt::{self, Planned};
use super::lanes::KEY_SIZE;
use crate::json::{Json, object};
use crate::load::keys::{self, Random};
use crate::load::replies::Skipper;
use crate::servers::{ServerKind, ask};
use crate::stats::Goal;
use crate::table::{Table, thousands};
use crate::{interrupt, proc};

/// Shortest and longest value of the first keys, and of the keys that are written at the end.
const FIRST: (u64, u64) = (10, 1000);
const OTHERS: (u64, u64) = (1000, 3000);

/// Seconds after the deletion at which memory is measured.
const TIMES_S: [u64; 4] = [2, 10, 30, 60];

/// Seconds after the other lengths have come.
const LAST_S: u64 = 10;

const GOAL: Goal = Goal::AtMost(1.15);

/// Commands sent before their replies are read.
const BATCH: usize = 500;

/// Commands per second, for the estimate of the time.
const RATE: u64 = 200_000;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ChurnArgs {
    /// Number of keys
    #[arg(short, long, default_value_t = 1_500_000, value_parser = clap::value_parser!(u64).range(1000..))]
    keys: u64,
}

impl Default for ChurnArgs {
    fn default() -> Self {
        Self { keys: 1_500_000 }
    }
}

impl ChurnArgs {
    pub(super) fn estimate(&self, session: &Session) -> Duration {
        let waits = TIMES_S[TIMES_S.len() - 1] + LAST_S;
        Duration::from_secs(2 * self.keys / RATE + waits) * felt::planned(session).len() as u32
    }
}

/// A server's memory at the moments of the table.
struct Course {
    name: String,
    kind: ServerKind,
    is_control: bool,
    /// Whether the server moves data at run time.
    moves: bool,
    used: Vec<u64>,
    resident: Vec<u64>,
    /// Seconds of CPU time from the deletion to the last measurement before other lengths come.
    cpu_s: f64,
}

pub(crate) fn churn(session: &mut Session, args: &ChurnArgs) -> Result<()> {
    let courses: Vec<Course> =
        felt::planned(session).iter().map(|planned| run(planned, args.keys)).collect::<Result<_>>()?;
    let mut head = vec!["".to_owned(), "moves data".to_owned(), "filled".to_owned(), "deleted".to_owned()];
    head.extend(TIMES_S.map(|seconds| format!("{seconds} s")));
    head.extend([
        "others".to_owned(),
        format!("{LAST_S} s"),
        "CPU".to_owned(),
        "goal".to_owned(),
        String::new(),
    ]);
    let mut table = Table::new(&head.iter().map(String::as_str).collect::<Vec<_>>());
    for course in &courses {
        let row = course.row(session);
        table.row(row);
    }
    let title = format!(
        "Resident to used bytes: {} strings of {} to {} B, two thirds deleted at random, then strings of {} \
         to {} B",
        thousands(args.keys as f64),
        FIRST.0,
        FIRST.1,
        OTHERS.0,
        OTHERS.1
    );
    let figures = vec![
        ("servers", Json::Array(courses.iter().map(Course::to_json).collect())),
        ("curves", Json::Array(vec![curve(&courses)])),
    ];
    session.report("churn", &title, &table, figures);
    Ok(())
}

fn run(planned: &Planned<'_>, keys: u64) -> Result<Course> {
    let lane = planned.start(1)?;
    let (pid, address) = (lane.server.pid(), lane.server.address);
    let is_on = |words: [&str; 4]| ask(address, &words).is_ok_and(|answer| answer.starts_with("+OK"));
    let moves = is_on(["CONFIG", "SET", "activedefrag", "yes"])
        && is_on(["CONFIG", "SET", "active-defrag-ignore-bytes", "10mb"]);
    let mut course = Course {
        name: planned.name(),
        kind: planned.kind(),
        is_control: planned.is_control(),
        moves,
        used: Vec::new(),
        resident: Vec::new(),
        cpu_s: 0.0,
    };
    let (mut client, mut random) = (Client::connect(address)?, Random::new(1));
    client.run_all((0..keys).map(|number| set(number, FIRST, &mut random)))?;
    course.measure(pid, address)?;
    let gone: Vec<u64> = (0..keys).filter(|_| random.below(3) > 0).collect();
    client.run_all(gone.into_iter().map(|number| command(&[b"DEL", &key(number)])))?;
    course.measure(pid, address)?;
    let (deleted, before) = (Instant::now(), proc::usage(pid)?);
    for seconds in TIMES_S {
        interrupt::sleep_until(deleted + Duration::from_secs(seconds), || false)?;
        course.measure(pid, address)?;
    }
    course.cpu_s = proc::usage(pid)?.since(&before).cpu.as_secs_f64();
    client.run_all((keys..keys + keys / 6).map(|number| set(number, OTHERS, &mut random)))?;
    course.measure(pid, address)?;
    interrupt::sleep(Duration::from_secs(LAST_S))?;
    course.measure(pid, address)?;
    Ok(course)
}

fn key(number: u64) -> Vec<u8> {
    let mut key = Vec::new();
    keys::write(number, KEY_SIZE, &mut key);
    key
}

fn set(number: u64, (least, most): (u64, u64), random: &mut Random) -> Vec<u8> {
    let len = least + random.below(most - least + 1);
    command(&[b"SET", &key(number), &vec![b'x'; len as usize]])
}

fn command(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts {
        bytes.extend(format!("${}\r\n", part.len()).into_bytes());
        bytes.extend(*part);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// A connection for commands whose replies do not matter, unless they are errors.
struct Client(TcpStream);

impl Client {
    fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self(stream))
    }

    fn run_all(&mut self, mut commands: impl Iterator<Item = Vec<u8>>) -> Result<()> {
        let (mut batch, mut replies, mut piece) = (Vec::new(), Skipper::new(), vec![0; 64 * 1024]);
        loop {
            interrupt::check()?;
            batch.clear();
            let mut waiting = 0;
            for command in commands.by_ref().take(BATCH) {
                batch.extend(command);
                waiting += 1;
            }
            if waiting == 0 {
                return Ok(());
            }
            self.0.write_all(&batch)?;
            while waiting > 0 {
                let size = self.0.read(&mut piece)?;
                if size == 0 {
                    bail!("the server closed the connection");
                }
                let counts = replies.feed(&piece[..size])?;
                if counts.errors > 0 {
                    bail!("{}", replies.error_text());
                }
                waiting -= counts.replies;
            }
        }
    }
}

/// The ratios from the deletion until other lengths come, as a chart.
fn curve(courses: &[Course]) -> Json {
    let times = [0].into_iter().chain(TIMES_S).map(|seconds| seconds as f64);
    let series = |course: &Course| {
        let ratios: Vec<f64> = course.ratios().skip(1).take(1 + TIMES_S.len()).collect();
        object(vec![("server", course.name.as_str().into()), ("median", ratios.into())])
    };
    object(vec![
        ("what", "resident to used bytes".into()),
        ("x", "seconds after the deletion".into()),
        ("x_values", times.collect::<Vec<f64>>().into()),
        ("series", Json::Array(courses.iter().map(series).collect())),
    ])
}

impl Course {
    fn measure(&mut self, pid: u32, address: SocketAddr) -> Result<()> {
        let info = ask(address, &["INFO", "memory"])?;
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        self.used.push(used.context("INFO has no used_memory")?.trim().parse()?);
        self.resident.push(proc::usage(pid)?.rss_bytes);
        Ok(())
    }

    fn ratios(&self) -> impl Iterator<Item = f64> {
        self.resident.iter().zip(&self.used).map(|(resident, used)| *resident as f64 / *used as f64)
    }

    fn row(&self, session: &mut Session) -> Vec<String> {
        let mut cells = vec![self.name.clone(), if self.moves { "yes" } else { "no" }.to_owned()];
        cells.extend(self.ratios().map(|ratio| format!("{ratio:.2}")));
        cells.push(format!("{:.1} s", self.cpu_s));
        if self.kind == ServerKind::Evenkeel && !self.is_control {
            let last = self.ratios().nth(1 + TIMES_S.len()).expect("each moment was measured");
            cells.push(GOAL.to_string());
            let what = format!("resident to used bytes {} s after a deletion", TIMES_S[TIMES_S.len() - 1]);
            cells.push(session.judge(what, GOAL, last));
        }
        cells
    }

    fn to_json(&self) -> Json {
        let list = |bytes: &[u64]| bytes.iter().map(|bytes| *bytes as f64).collect::<Vec<f64>>();
        object(vec![
            ("server", self.name.as_str().into()),
            ("control", self.is_control.into()),
            ("moves_data", self.moves.into()),
            ("used_bytes", list(&self.used).into()),
            ("resident_bytes", list(&self.resident).into()),
            ("cpu_s", self.cpu_s.into()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_has_the_ratios_from_the_deletion_on() {
        let course = Course {
            name: "evenkeel".to_owned(),
            kind: ServerKind::Evenkeel,
            is_control: false,
            moves: true,
            used: vec![100; 8],
            resident: (1..=8).map(|ratio| 100 * ratio).collect(),
            cpu_s: 0.0,
        };
        let curve = curve(&[course]);
        assert_eq!(curve["x_values"], serde_json::json!([0.0, 2.0, 10.0, 30.0, 60.0]));
        assert_eq!(curve["series"][0]["median"], serde_json::json!([2.0, 3.0, 4.0, 5.0, 6.0]));
    }

    #[test]
    fn commands_have_the_form_of_the_protocol() {
        assert_eq!(command(&[b"DEL", b"k"]), b"*2\r\n$3\r\nDEL\r\n$1\r\nk\r\n");
        let set = set(7, (3, 3), &mut Random::new(1));
        assert_eq!(set, b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000007\r\n$3\r\nxxx\r\n");
    }
}
