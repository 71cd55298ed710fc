//! The lag of a real replica: the time from the reply to a PUBLISH on the primary until the message comes out
//! of the replica, where its place in the stream is behind all earlier writes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::super::lanes;
use super::super::{Session, WARM_UP};
use super::{CLIENTS, SYNC_TIME_MAX, State, Subject, VALUE_SIZE, traffic};
use crate::interrupt;
use crate::json::{Json, object};
use crate::servers::ServerKind;
use crate::stats::Goal;
use crate::table::{Table, time_us};

/// p99 of the lag of a real replica.
const LAG_US_MAX: f64 = 10_000.0;
/// Interval between published messages.
const PUBLISH_EVERY: Duration = Duration::from_millis(5);

/// Measures the lag of each server's real replica.
pub(super) fn lag(session: &mut Session, subjects: &[Subject]) -> Result<()> {
    let mut table = Table::new(&["", "SET/s", "messages", "lag p50", "p99", "longest", "goal", ""]);
    let mut figures = Vec::new();
    for subject in subjects {
        let (Some(real), lane) = (&subject.real, &subject.lane) else { continue };
        let _attached = subject.attach(session, State::Real)?;
        let traffic = traffic(session, 16);
        let time = WARM_UP + session.measured;
        let (sample, lags) = std::thread::scope(|scope| {
            let lags = scope.spawn(|| lags(lane.server.address, real.address, time));
            let sample = lanes::measure(session, lane, &traffic);
            (sample, lags.join().expect("it does not panic"))
        });
        let (sample, mut lags) = (sample?, lags?);
        lags.sort_unstable();
        let quantile = |part: f64| lags[((lags.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
        let [p50, p99, longest] = [0.5, 0.99, 1.0].map(quantile);
        let (goal, is_ours) = (Goal::AtMost(LAG_US_MAX), lane.kind == ServerKind::Evenkeel);
        let verdict = match is_ours {
            true => session.judge("p99 of a replica's lag at full load, us".into(), goal, p99),
            false => String::new(),
        };
        table.row(vec![
            lane.kind.name().to_owned(),
            format!("{:.0}k", sample.rate / 1e3),
            lags.len().to_string(),
            time_us(p50),
            time_us(p99),
            time_us(longest),
            if is_ours { time_us(LAG_US_MAX) } else { String::new() },
            verdict,
        ]);
        figures.push(object(vec![
            ("server", lane.kind.name().into()),
            ("requests_per_s", sample.rate.into()),
            ("lag_us_p50", p50.into()),
            ("lag_us_p99", p99.into()),
            ("lag_us_max", longest.into()),
        ]));
    }
    let title = format!("replica: lag of a real one, SET of {VALUE_SIZE} B, pipeline 16, {CLIENTS} clients");
    session.report("replica", &title, &table, vec![("lags", Json::Array(figures))]);
    Ok(())
}

/// Returns the time from its reply to its arrival at the replica for each message.
fn lags(primary: SocketAddr, replica: SocketAddr, time: Duration) -> Result<Vec<Duration>> {
    const CHANNEL: &str = "evenkeel-bench:lag";
    let connect = |server: SocketAddr| -> Result<TcpStream> {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SYNC_TIME_MAX))?;
        Ok(stream)
    };
    let (mut publisher, mut subscriber) = (connect(primary)?, connect(replica)?);
    let mut piece = [0; 512];
    subscriber.write_all(format!("SUBSCRIBE {CHANNEL}\r\n").as_bytes())?;
    let _confirmed = subscriber.read(&mut piece)?;
    let until = Instant::now() + time;
    let mut lags = Vec::new();
    while Instant::now() < until {
        interrupt::check()?;
        publisher.write_all(format!("PUBLISH {CHANNEL} x\r\n").as_bytes())?;
        let size = publisher.read(&mut piece)?;
        if !piece[..size].starts_with(b":") {
            bail!("PUBLISH: {}", String::from_utf8_lossy(&piece[..size]));
        }
        let answered = Instant::now();
        // A single message is under way at a time, and it comes in one piece.
        if subscriber.read(&mut piece).context("a message never came out of the replica")? == 0 {
            bail!("the replica has closed the connection");
        }
        lags.push(answered.elapsed());
        std::thread::sleep(PUBLISH_EVERY);
    }
    Ok(lags)
}
