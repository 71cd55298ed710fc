//! Transcripts of scan commands.

use crate::testing::{World, check};

#[test]
fn scan_walks_the_selected_database() {
    check(
        r#"
        > RANDOMKEY                < (nil)
        > KEYS *                   < []
        > SCAN 0                   < ["0", []]
        > SET {t}1 a
        > KEYS *                   < ["{t}1"]
        > KEYS {t}?                < ["{t}1"]
        > KEYS ?                   < []
        > RANDOMKEY                < "{t}1"
        > SCAN 0                   < ["0", ["{t}1"]]
        > SCAN 0 MATCH x MATCH * COUNT 1000 TYPE STRING < ["0", ["{t}1"]]
        > SCAN 0 type list         < ["0", []]
        > SCAN 0 COUNT 9223372036854775807 < ["0", ["{t}1"]]
        > SELECT 1
        > RANDOMKEY                < (nil)
        > SCAN 0                   < ["0", []]
        > KEYS *                   < []
    "#,
    );
}

#[test]
fn scan_refuses_invalid_arguments() {
    check(
        "
        > SCAN x                   < -ERR invalid cursor
        > SCAN x NOSUCH            < -ERR invalid cursor
        > SCAN 0 COUNT             < -ERR syntax error
        > SCAN 0 COUNT 0           < -ERR syntax error
        > SCAN 0 COUNT -1          < -ERR syntax error
        > SCAN 0 COUNT x           < -ERR value is not an integer or out of range
        > SCAN 0 NOSUCH 1          < -ERR syntax error
        > SCAN                     < -ERR wrong number of arguments for 'scan' command
    ",
    );
}

/// Valkey 9.1 gave the replies.
#[test]
fn scan_refuses_unknown_types_and_foreign_options() {
    check(
        r#"
        > SET {t}s v
        > SCAN 0 TYPE nosuch       < -ERR unknown type name 'nosuch'
        > SCAN 0 TYPE ""           < -ERR unknown type name ''
        > SCAN 0 TYPE "a\nb\x00c"    < -ERR unknown type name 'a b'
        > SCAN 0 TYPE x COUNT 0    < -ERR unknown type name 'x'
        > SCAN 0 COUNT 0 TYPE x    < -ERR syntax error
        > SCAN 0 TYPE "STRING\x00x"  < ["0", ["{t}s"]]
        > SCAN 0 TYPE hash         < ["0", []]
        > SCAN 0 NOVALUES          < -ERR NOVALUES option can only be used in HSCAN
        > SCAN 0 NOSCORES          < -ERR NOSCORES option can only be used in ZSCAN
        > SCAN ""                  < -ERR invalid cursor
        > SCAN -1                  < -ERR invalid cursor
        > SCAN " 0"                < ["0", ["{t}s"]]
        > SADD s a
        > SSCAN s 0 NOVALUES       < -ERR NOVALUES option can only be used in HSCAN
        > HSET h f v
        > HSCAN h 0 NOSCORES       < -ERR NOSCORES option can only be used in ZSCAN
        > HSCAN h 0 TYPE hash      < -ERR syntax error
        > HSCAN h ""               < -ERR invalid cursor
        > ZADD z 1 a
        > ZSCAN z 0 NOVALUES       < -ERR NOVALUES option can only be used in HSCAN
        > ZSCAN z -1               < -ERR invalid cursor
    "#,
    );
}

/// A single call may go on for many steps, and stops at its count.
#[test]
fn large_counts_are_honoured() {
    let mut world = World::new();
    (0..5000).for_each(|at| drop(world.run(&format!("SET {{t}}{at} v"))));
    let (mut cursor, mut seen) = ("0".to_string(), Vec::new());
    loop {
        let args = ["SCAN", cursor.as_str(), "COUNT", "2500"].map(|arg| arg.as_bytes().to_vec());
        let page = evenkeel_testkit::Target::call(&mut world, &args).expect("a page");
        let [next, keys] = page.as_items().expect("a cursor and keys") else { panic!("{page}") };
        let keys = keys.as_items().expect("keys");
        assert!(keys.len() < 4000, "{} keys at once", keys.len());
        seen.extend(keys.iter().map(ToString::to_string));
        cursor = String::from_utf8_lossy(next.as_bytes().expect("a cursor")).into_owned();
        if cursor == "0" {
            break;
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 5000);
    assert_eq!(world.run("KEYS *").matches("{t}").count(), 5000);
}
