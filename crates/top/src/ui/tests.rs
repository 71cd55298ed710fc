//! Screens of known samples.

use std::fmt::Write;
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::{Theme, draw};
use crate::app::App;
use crate::metrics::tests::sample;
use crate::poll::{Extra, SlowCommand};
use crate::poller::Update;

const SMALL: (u16, u16) = (80, 24);
const LARGE: (u16, u16) = (140, 45);

/// Returns INFO of an Evenkeel server with `workers` workers, each 30% busy, after so many seconds.
fn info(second: u64, workers: usize) -> String {
    let mut text = format!(
        "server_name:evenkeel\nevenkeel_version:0.1.0\nredis_version:7.2.4\nrun_id:a\nrole:master\n\
         uptime_in_seconds:{}\nconnected_clients:51\nblocked_clients:2\nused_memory:1610612736\n\
         used_memory_rss:1717986918\nmem_fragmentation_ratio:1.07\nmaxmemory:4294967296\n\
         total_commands_processed:{}\nkeyspace_hits:{}\nkeyspace_misses:{}\nmaster_repl_offset:5000\n\
         slave0:ip=10.0.0.2,port=7001,state=online,offset=3976,lag=1\naof_enabled:0\n\
         cmdstat_get:calls={},usec={}\ncmdstat_set:calls={},usec={},failed_calls={}\n\
         cmdstat_info:calls=1,usec=9\n",
        100 + second,
        second * 123_400,
        second * 75,
        second * 25,
        second * 100_000,
        second * 300_000,
        second * 23_400,
        second * 100_000,
        second * 3,
    );
    for worker in 0..workers {
        let line =
            format!("worker{worker}:read_usec={0},execute_usec={1}", second * 100_000, second * 200_000);
        writeln!(text, "{line}").expect("written");
    }
    text
}

fn app(info: impl Fn(u64) -> String) -> App {
    let mut app = App::new("127.0.0.1:7000".into(), Duration::from_secs(1), false);
    let start = Instant::now();
    for second in 0..30 {
        let calls = second as i64 * 100;
        let times = [(32, calls), (128, calls + calls / 20)];
        app.update(Update::Sample(Box::new(sample(start, second, &info(second), &times))));
    }
    app
}

fn press(app: &mut App, keys: &str) {
    for key in keys.chars() {
        let _ = app.key(KeyEvent::from(KeyCode::Char(key)));
    }
}

/// Draws a screen, and returns its lines without blanks at their ends.
fn drawn_as(app: &mut App, (width, height): (u16, u16), has_colours: bool) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    let drawn = terminal.draw(|frame| draw(frame.buffer_mut(), app, Theme { has_colours }));
    let buffer = drawn.expect("drawn").buffer;
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

fn drawn(app: &mut App, size: (u16, u16)) -> Vec<String> {
    drawn_as(app, size, true)
}

/// Checks that the screen has lines with these parts, in this order.
#[track_caller]
fn assert_shows(lines: &[String], parts: &[&str]) {
    let mut rest = lines.iter();
    for part in parts {
        assert!(rest.any(|line| line.contains(part)), "{part:?} is missing in\n{}", lines.join("\n"));
    }
}

#[test]
fn the_overview_fits_a_small_terminal() {
    let lines = drawn(&mut app(|second| info(second, 4)), SMALL);
    assert_shows(
        &lines,
        &[
            " evenkeel 0.1.0  primary  127.0.0.1:7000  memory 1.50G of 4.00G  up 00:02:09",
            " 1 Overview  2 Commands  3 Slow log  4 Clients  5 Replication  6 Findings",
            " commands/s   123k   p50          24us   p99         115us   max        <128us",
            " memory      1.50G   resident    1.60G   frag ratio   1.07   maxmemory   37.5%",
            " clients        51   blocked         2   in/s            -   out/s           -",
            " hit ratio   75.0%   expired/s       -   evicted/s       -   errors/s        -",
            " cpu             -   workers     30.0%   replica lag 1.00K   journal lag     -",
            "max 123k",
            "max 1.50G",
            "Workers",
            " w0   ",
            " w3   ",
            " command                  calls/s    share  per call       p99  failed/s",
            " get                         100k    75.0%     3.0us",
            " set                        23.4k    25.0%     4.3us         -       3.0",
            " q quit  ? help  p pause  s sort  +/- interval 1s",
        ],
    );
    assert!(!lines.iter().any(|line| line.contains(" info ")), "it was not called in the interval");
}

#[test]
fn the_overview_uses_a_large_terminal() {
    let lines = drawn(&mut app(|second| info(second, 16)), LARGE);
    let values = " commands/s        123k      memory           1.50G      clients             51      \
                  hit ratio        75.0%      cpu                  -";
    assert_shows(&lines, &[values, "History", "max 123k", "w15", "failed/s     calls", " get "]);
    let bars = lines.iter().filter(|line| line.matches("30%").count() == 2).count();
    assert_eq!(bars, 8, "two columns of workers:\n{}", lines.join("\n"));
}

#[test]
fn many_workers_fold() {
    let folded = drawn(&mut app(|second| info(second, 12)), SMALL);
    assert!(folded.iter().any(|line| line.matches("30%").count() == 3), "{}", folded.join("\n"));
    let merged = drawn(&mut app(|second| info(second, 128)), SMALL);
    assert_shows(&merged, &["mean of 128", "most: w127", "least: w0", "command  ", "get"]);
}

#[test]
fn bars_have_letters_without_colours() {
    let lines = drawn_as(&mut app(|second| info(second, 1)), SMALL, false);
    assert_shows(&lines, &["r read", "rrrrrrrxxxxxxxxxxxxx"]);
    assert!(!lines.join("").contains('█') || lines.iter().any(|line| line.contains("max ")));
}

#[test]
fn another_server_shows_dashes() {
    let redis = "redis_version:8.2.1\nrun_id:a\nrole:slave\nuptime_in_seconds:5\nused_memory:1000\n";
    let lines = drawn(&mut app(|_| redis.to_owned()), SMALL);
    assert_shows(
        &lines,
        &[
            " redis 8.2.1  replica  127.0.0.1:7000  up 00:00:05",
            " commands/s      -",
            "replica lag     -",
            "This server does not account for the stages of its threads.",
            "No commands in the last interval.",
        ],
    );
}

#[test]
fn every_view_has_its_contents() {
    let mut app = app(|second| info(second, 2));
    let slow = SlowCommand {
        unix_s: 0,
        us: 12_000,
        command: "sort big".into(),
        address: "10.0.0.9:5".into(),
        client: "batch".into(),
    };
    app.update(Update::Extra(Ok(Extra::SlowLog(vec![slow; 40]))));
    let client = |id: u32| {
        let fields = [
            ("id", id.to_string()),
            ("addr", format!("10.0.0.1:{id}")),
            ("tot-mem", (id * 1024).to_string()),
            ("age", id.to_string()),
            ("cmd", "config|get".into()),
        ];
        fields.map(|(name, value)| (name.to_owned(), value)).into()
    };
    app.update(Update::Extra(Ok(Extra::Clients((1..=50).map(client).collect()))));
    app.update(Update::Extra(Ok(Extra::Findings(format!("Finding\n{}", "a long line ".repeat(20))))));
    press(&mut app, "2");
    assert_shows(&drawn(&mut app, LARGE), &["failed/s     calls", "get", "set", "info"]);
    press(&mut app, "3");
    assert_shows(&drawn(&mut app, SMALL), &["took", "12.0ms", "sort big", "1 - 20 of 40"]);
    assert_shows(&drawn(&mut app, LARGE), &["1970-01-01 00:00:00   12.0ms  10.0.0.9:5"]);
    press(&mut app, "4");
    assert_shows(&drawn(&mut app, SMALL), &["address", "10.0.0.1:50", "10.0.0.1:49"]);
    assert_shows(&drawn(&mut app, LARGE), &["id", "50.0K", "config get"]);
    let _ = app.key(KeyEvent::from(KeyCode::End));
    let last = drawn(&mut app, SMALL);
    assert!(last[22].contains("10.0.0.1:1 ") && last[23].contains("31 - 50 of 50"), "{}", last.join("\n"));
    press(&mut app, "5");
    assert_shows(&drawn(&mut app, SMALL), &["5000", "10.0.0.2:7001           online"]);
    press(&mut app, "6");
    assert_shows(&drawn(&mut app, SMALL), &["Finding", "a long line a long line", "a long line"]);
}

#[test]
fn states_are_shown() {
    let mut app = app(|second| info(second, 2));
    press(&mut app, "?");
    assert_shows(&drawn(&mut app, SMALL), &["Keys", "longer, shorter interval"]);
    press(&mut app, "?p");
    assert_shows(&drawn(&mut app, SMALL), &["PAUSED"]);
    press(&mut app, "p4");
    app.update(Update::Extra(Err("CLIENT LIST".into())));
    assert_shows(&drawn(&mut app, SMALL), &["The user has no permission", "no permission: CLIENT LIST"]);
    let retry = Instant::now() + Duration::from_secs(3);
    app.update(Update::Lost { reason: "Connection refused".into(), retry });
    assert_shows(&drawn(&mut app, SMALL), &["127.0.0.1:7000: no connection: Connection refused"]);
    assert_shows(&drawn(&mut app, LARGE), &["next attempt in 3 s"]);
}

#[test]
fn no_size_and_no_data_panic() {
    let mut empty = App::new("x".into(), Duration::from_secs(1), false);
    let mut full = app(|second| info(second, 70));
    for app in [&mut empty, &mut full] {
        for view in "123456?".chars() {
            press(app, &view.to_string());
            for width in [1, 2, 5, 20, 79, 300] {
                for height in [1, 2, 3, 7, 12, 80] {
                    drawn(app, (width, height));
                }
            }
        }
    }
}
