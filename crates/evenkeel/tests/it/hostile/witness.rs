//! Another client on the same server, which must not notice the attack.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_testkit::Server;

/// Longest wait of the witness: on two cores that also run the attack, tens of milliseconds are the
/// scheduler's.
const WAIT_MAX: Duration = Duration::from_millis(1_000);
const MEDIAN_MAX: Duration = Duration::from_millis(100);

/// Runs the attack while another client sets and gets a key of its own, and checks its waits and replies.
#[track_caller]
pub(super) fn while_serving_a_witness(server: &mut Server, attack: impl FnOnce(&Server)) {
    let done = AtomicBool::new(false);
    let waits = std::thread::scope(|scope| {
        let (server, done) = (&*server, &done);
        let witness = scope.spawn(move || serve(server, done));
        // The witness must end even if the attack's assertions fail.
        let _ends = EndOnDrop(done);
        attack(server);
        drop(_ends);
        witness.join().expect("the witness is answered")
    });
    server.assert_healthy();
    let median = waits[waits.len() / 2];
    let worst = waits[waits.len() - 1];
    assert!(
        median < MEDIAN_MAX && worst < WAIT_MAX,
        "others waited {median:?} in the middle and {worst:?} at worst"
    );
}

struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// All waits, sorted.
fn serve(server: &Server, done: &AtomicBool) -> Vec<Duration> {
    let mut client = server.connect();
    let mut waits = Vec::new();
    while !done.load(Ordering::Relaxed) || waits.len() < 10 {
        let number = waits.len().to_string();
        let started = Instant::now();
        assert_eq!(client.call(&["SET", "witness", &number]).to_string(), "OK");
        assert_eq!(client.call(&["GET", "witness"]).as_bytes(), Some(number.as_bytes()));
        waits.push(started.elapsed());
        std::thread::sleep(Duration::from_micros(500));
    }
    waits.sort_unstable();
    waits
}
