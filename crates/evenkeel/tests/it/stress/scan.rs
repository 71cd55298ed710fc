//! SCAN beside growth, deletion and expiry: keys present all the time are returned.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evenkeel_resp::value::Value;

use super::{Member, command, crowd};
use crate::start;

const LASTING: usize = 2_000;

/// All keys of a complete SCAN.
fn scan_all(member: &mut Member<'_>, options: &[&str]) -> HashSet<Vec<u8>> {
    let mut seen = HashSet::new();
    let mut cursor = b"0".to_vec();
    for _ in 0..1_000_000 {
        let args =
            [vec![b"SCAN".to_vec(), cursor], options.iter().map(|word| word.as_bytes().to_vec()).collect()]
                .concat();
        let page = member.client.call(&args);
        let Some([Value::Bulk(next), Value::Array(keys)]) = page.as_items() else {
            panic!("SCAN says {page}")
        };
        seen.extend(keys.iter().filter_map(|key| Some(key.as_bytes()?.to_vec())));
        if next == b"0" {
            return seen;
        }
        cursor = next.clone();
    }
    panic!("a SCAN without end");
}

#[test]
fn scan_returns_all_lasting_keys() {
    let mut server = start(&[]);
    let lasting = |index: usize| format!("lasting:{index}");
    let set: Vec<Vec<String>> = (0..LASTING).map(|index| command(["SET", &lasting(index), "v"])).collect();
    server.connect().pipeline(&set);
    let scans = AtomicU64::new(0);
    // Grows to many times the size and shrinks again, repeatedly: tables are resized both ways.
    let breathe = |member: &mut Member<'_>| {
        let mut round = 0;
        while member.goes_on() {
            round += 1;
            let name = |index: usize| format!("brief:{round}:{index}");
            for (verb, rest) in [("SET", Some("v")), ("DEL", None)] {
                for start in (0..20_000).step_by(500) {
                    let one = |index| {
                        [verb.to_owned(), name(index)].into_iter().chain(rest.map(str::to_owned)).collect()
                    };
                    member.client.pipeline(&(start..start + 500).map(one).collect::<Vec<Vec<String>>>());
                }
            }
        }
    };
    let scan = |member: &mut Member<'_>| {
        while member.goes_on() {
            let count = member.random.pick(&["3", "10", "100", "1000"]);
            let seen = scan_all(member, &["COUNT", count]);
            let missing = (0..LASTING).find(|&index| !seen.contains(lasting(index).as_bytes()));
            assert_eq!(missing, None, "of {} keys, with COUNT {count}", seen.len());
            scans.fetch_add(1, Ordering::Relaxed);
        }
    };
    crowd(&mut server, &[(1, &breathe), (2, &scan)]);
    println!("{} whole scans", scans.load(Ordering::Relaxed));
    assert!(scans.into_inner() > 0);
}

#[test]
fn scan_with_match_returns_exactly_the_matching_keys() {
    let mut server = start(&[]);
    let set: Vec<Vec<String>> = (0..3_000)
        .map(|index| command(["SET", &format!("{}:{index}", ["even", "odd"][index % 2]), "v"]))
        .collect();
    server.connect().pipeline(&set);
    let scan = |member: &mut Member<'_>| {
        for _ in 0..3 {
            let seen = scan_all(member, &["MATCH", "even:*", "COUNT", "50", "TYPE", "string"]);
            assert_eq!(seen.len(), 1_500);
            assert!(seen.iter().all(|key| key.starts_with(b"even:")));
        }
    };
    crowd(&mut server, &[(2, &scan)]);
}

/// A key disappears for readers at its millisecond, and from memory soon after, without a lookup.
#[test]
fn keys_expire_on_time_under_load() {
    let mut server = start(&[]);
    let short_lives = |member: &mut Member<'_>| {
        let mut own = 0_u64;
        let me = member.random.draw();
        while member.goes_on() {
            own += 1;
            let key = format!("life:{me}:{own}");
            let asked = Instant::now();
            assert_eq!(member.client.call(&["SET", &key, "v", "PX", "15"]).to_string(), "OK");
            let set_by = Instant::now();
            let early = member.client.call(&["EXISTS", &key]);
            assert!(asked.elapsed() >= Duration::from_millis(14) || early == Value::Int(1), "gone too early");
            if own.is_multiple_of(8) {
                std::thread::sleep(Duration::from_millis(17).saturating_sub(set_by.elapsed()));
                assert_eq!(member.client.call(&["GET", &key]), Value::NullBulk, "still there after its time");
            }
        }
    };
    crowd(&mut server, &[(3, &short_lives)]);
    let mut client = server.connect();
    let deadline = Instant::now() + Duration::from_secs(3);
    while client.run("DBSIZE") != Value::Int(0) {
        assert!(Instant::now() < deadline, "DBSIZE is {}", client.run("DBSIZE"));
        std::thread::sleep(Duration::from_millis(20));
    }
}
