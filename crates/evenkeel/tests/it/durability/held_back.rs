//! Replies that wait until their writes are on disk.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::start;

/// When the wait for the disk is turned off, the waiting replies are sent.
#[test]
fn replies_that_wait_for_the_disk_are_sent_once_waiting_is_turned_off() {
    let server = start(&["--threads", "2", "--appendonly", "yes", "--appendfsync", "always"]);
    let (mut operator, ends) = (server.connect(), AtomicBool::new(false));
    let counts = [const { AtomicUsize::new(0) }; 6];
    let sum = || counts.each_ref().map(|count| count.load(Relaxed));
    std::thread::scope(|scope| {
        for count in &counts {
            let (mut client, ends) = (server.connect(), &ends);
            scope.spawn(move || {
                while !ends.load(Relaxed) && client.try_call(&["INCR", "n"]).is_ok() {
                    count.fetch_add(1, Relaxed);
                }
            });
        }
        for round in 0..20 {
            let (off, on) = match round % 2 {
                0 => ("CONFIG SET appendfsync no", "CONFIG SET appendfsync always"),
                _ => ("CONFIG SET appendonly no", "CONFIG SET appendonly yes"),
            };
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(operator.run(off).to_string(), "OK");
            let (before, until) = (sum(), Instant::now() + Duration::from_secs(10));
            while before.iter().zip(sum()).any(|(before, now)| now < before + 2) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            ends.store(Instant::now() >= until, Relaxed);
            assert!(!ends.load(Relaxed), "{off}: of {before:?} to {:?}", sum());
            assert_eq!(operator.run(on).to_string(), "OK");
        }
        ends.store(true, Relaxed);
    });
}
