//! `snapshot-max-mbps` limits a snapshot's rate, unless writers wait for it; the limit can be changed
//! meanwhile.

use std::time::{Duration, Instant};

use evenkeel_testkit::{Client, Server};

use crate::{start, wait_until};

const MEGABYTES: usize = 12;
/// Duration of a snapshot at this rate; half of it is much longer than a snapshot without a limit.
const SLOW: &str = "CONFIG SET snapshot-max-mbps 2";
const LONG: Duration = Duration::from_secs(6);

fn filled(args: &[&str]) -> (Server, Client) {
    let server = start(&[&["--threads", "1", "--rdbcompression", "no"], args].concat());
    let mut client = server.connect();
    let value = "x".repeat(1_000);
    let sets = (0..MEGABYTES * 1_000).map(|n| vec!["SET".to_owned(), format!("key:{n}"), value.clone()]);
    client.pipeline(&sets.collect::<Vec<_>>());
    (server, client)
}

#[track_caller]
fn begin(server: &Server, client: &mut Client) {
    assert_eq!(client.run(SLOW).to_string(), "OK");
    assert!(!client.run("BGSAVE").is_error());
    wait_until("it has begun", || server.info("current_save_keys_processed") != "0");
}

#[test]
fn the_rate_limit_holds_and_can_be_changed() {
    let (server, mut client) = filled(&["--save", ""]);
    let began = Instant::now();
    begin(&server, &mut client);
    let at = |server: &Server| server.info("current_save_bytes").parse::<f64>().expect("a number");
    std::thread::sleep(Duration::from_secs(1));
    let rate = at(&server) / began.elapsed().as_secs_f64();
    assert!((1e6..2.5e6).contains(&rate), "{rate} bytes a second");
    let rate: f64 = server.info("current_save_bytes_per_sec").parse().expect("a number");
    assert!((0.5e6..4e6).contains(&rate), "{rate} bytes a second, as INFO has it");
    assert_eq!(client.run("CONFIG SET snapshot-max-mbps 0").to_string(), "OK");
    wait_until("it ends", || server.info("rdb_bgsave_in_progress") == "0");
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    assert_eq!(server.info("rdb_last_bgsave_status"), "ok");
}

/// A cancelled snapshot leaves the previous file, and is no failure.
#[test]
fn a_throttled_snapshot_can_be_cancelled() {
    let (server, mut client) = filled(&["--save", ""]);
    assert_eq!(client.run("SAVE").to_string(), "OK");
    let dump = server.folder().join("dump.rdb");
    let before = std::fs::read(&dump).expect("it was saved");
    assert_eq!(client.run("SET more 1").to_string(), "OK");
    begin(&server, &mut client);
    assert!(!client.run("BGSAVE CANCEL").is_error());
    wait_until("it ends", || server.info("rdb_bgsave_in_progress") == "0");
    assert_eq!(server.info("rdb_last_bgsave_status"), "ok");
    assert!(std::fs::read(&dump).expect("it stays") == before);
    let names = std::fs::read_dir(server.folder()).expect("a folder").flatten();
    let drafts = names.filter(|entry| entry.file_name().display().to_string().starts_with("temp-"));
    assert_eq!(drafts.count(), 0);
}

/// The final snapshot of a shutdown ignores the limit, since writers wait for it.
#[test]
fn a_shutdown_is_not_delayed_by_a_throttled_snapshot() {
    let (mut server, mut client) = filled(&["--save", "3600 1000000"]);
    assert_eq!(client.run(SLOW).to_string(), "OK");
    let began = Instant::now();
    assert!(server.stop().success());
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    server.start_again();
    assert_eq!(server.connect().run("DBSIZE").as_int(), Some((MEGABYTES * 1_000) as i64));
}
