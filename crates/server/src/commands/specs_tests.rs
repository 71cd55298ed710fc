//! The reply of COMMAND for each command, against the rows that the executor uses.

use super::install;
use evenkeel_command::Args;
use evenkeel_command::keys::Marks;
use evenkeel_command::specs::*;
use evenkeel_command::table::table;
use evenkeel_resp::request::Span;
use evenkeel_testkit::random::{Random, fresh_seed};

#[test]
fn extras_are_sorted_and_name_commands() {
    install();
    assert!(names_with_extras().is_sorted_by(|a, b| a < b));
    for name in names_with_extras() {
        assert!(table().find_full(name.as_bytes()).is_some(), "{name} is no command");
    }
}

#[test]
fn categories_are_known() {
    install();
    for row in table().rows() {
        let found = categories(row);
        assert!(found.iter().any(|one| *one == "@fast" || *one == "@slow"), "{}", row.name);
        if let Some(group) = row.group.acl_category().filter(|_| !is_container(row)) {
            assert!(found.contains(&group), "{}: {group} is not in the order", row.name);
        }
    }
}

/// Returns the places of a line's words.
fn spans(line: &str) -> Vec<Span> {
    let mut at = 0;
    let span = |word: &str| {
        at += word.len() + 1;
        Span::new(at - word.len() - 1, word.len())
    };
    line.split(' ').map(span).collect()
}

#[test]
fn secrets_are_found_by_the_preceding_words() {
    install();
    let secrets = |line: &str| -> Vec<usize> {
        let spans = spans(line);
        let args = Args::new(line.as_bytes(), &spans);
        let row = table().row(table().find_full(args.at(0)).expect("a command"));
        (0..args.len()).filter(|at| is_secret(row, &args, *at)).collect()
    };
    assert_eq!(secrets("AUTH user password"), [1, 2]);
    assert_eq!(secrets("HELLO 3 AUTH user password SETNAME n"), [3, 4]);
    assert_eq!(secrets("CONFIG|SET SET maxmemory 1 requirepass x"), [5]);
    assert_eq!(secrets("MIGRATE h 1 k 0 10 COPY AUTH x REPLACE"), [8]);
    assert_eq!(secrets("MIGRATE h 1 k 0 10 AUTH2 u x REPLACE"), [7, 8]);
    for row in table().rows() {
        let line = format!("{} a b c", row.name);
        assert!(!secrets(&line).contains(&0), "{line}");
    }
}

/// COMMAND's keys must be the keys that are locked.
#[test]
fn key_specs_match_the_locked_keys() {
    install();
    for line in [
        "GET k",
        "MSET a 1 b 2",
        "MSETEX 2 a 1 b 2 NX",
        "COPY a b",
        "MOVE k 1",
        "BITOP AND a b c d",
        "RENAME a b",
        "LCS a b LEN",
        "GEOADD k 1 2 m",
        "GEORADIUS a 1 2 3 m STORE b",
        "GEORADIUS a 1 2 3 m COUNT 3 STOREDIST b ASC",
        "GEORADIUSBYMEMBER a m 3 m COUNT 3 STOREDIST b",
        "GEORADIUSBYMEMBER a m 3 m STORE",
        "GEORADIUS a 1 2 3 m STORE b STORE c",
        "GEORADIUS a 1 2 3 m STORE b STOREDIST c",
        "GEORADIUS a 1 2 3 m STOREDIST b STORE c ASC",
        "GEORADIUS a 1 2 3 m STORE STORE STOREDIST STORE",
        "GEORADIUS a 1 2 3 STORE STORE b",
        "GEORADIUSBYMEMBER a STORE 3 m STORE b STORE c",
        "GEORADIUSBYMEMBER a m 3 STORE STOREDIST b STOREDIST c",
        "GEOSEARCHSTORE a b FROMMEMBER m BYRADIUS 1 m",
        "PFCOUNT a b c",
        "PFDEBUG GETREG k",
        "PFMERGE a b c",
        "DEL a b c",
        "OBJECT|FREQ FREQ k",
        "WATCH a b",
        "XREAD BLOCK 0 STREAMS a b 0 $",
        "XREADGROUP GROUP g streams COUNT 1 STREAMS a b > >",
        "XREAD STREAMS STREAMS a STREAMS 0 0 0",
        "XGROUP|CREATE CREATE k g 0",
        "ZRANGESTORE a b 0 -1",
        "ZUNIONSTORE a 2 b c WEIGHTS 1 2",
        "ZMPOP 2 a b MIN COUNT 3",
        "BZMPOP 0 2 a b MIN",
        "BZPOPMIN a b 0",
        "SINTERCARD 2 a b LIMIT 3",
        "SMOVE a b m",
        "SUNIONSTORE d a b",
        "SORT a LIMIT 0 1 STORE b STORE c DESC",
        "SORT_RO a BY b*",
        "MIGRATE h 1 k 0 5000 COPY",
        "MIGRATE h 1 k 0 5000 AUTH keys",
        "MIGRATE h 1 k 0 5000 AUTH2 keys keys COPY",
    ] {
        let spans = spans(line);
        let args = Args::new(line.as_bytes(), &spans);
        let id = table().find_full(args.at(0)).expect("a command");
        let row = table().row(id);
        let (mut locked, mut said) = (Vec::new(), Vec::new());
        row.keys.for_each(&args, 0, 16, |index, _| locked.push(index));
        locked.dedup(); // MOVE locks its key in two databases
        assert!(for_each_key(row, &args, |index, _| said.push(index)));
        assert_eq!(locked, said, "{line}");
    }
}

/// No order of words makes a command lock a key that its specification lacks: access control would miss
/// that key.
#[test]
fn no_key_is_locked_beyond_the_key_specs() {
    install();
    const WORDS: &[&str] = &[
        "a",
        "b",
        "1",
        "2",
        "3",
        "0",
        "STORE",
        "STOREDIST",
        "STREAMS",
        "KEYS",
        "GET",
        "BY",
        "LIMIT",
        "COUNT",
        "BLOCK",
        "GROUP",
        "AUTH",
        "AUTH2",
        "WITHDIST",
        "ASC",
        "m",
        "DB",
        "REPLACE",
        "NX",
        "WEIGHTS",
        "MATCH",
        "COPY",
    ];
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let (mut random, mut checked) = (Random::new(seed), 0);
    for row in table().rows().iter().filter(|row| !row.keys.is_none()) {
        for _ in 0..400 {
            let words = (0..1 + random.below(10)).map(|_| random.pick(WORDS));
            let line = std::iter::once(row.name).chain(words).collect::<Vec<_>>().join(" ");
            let spans = spans(&line);
            let args = Args::new(line.as_bytes(), &spans);
            let mut said = Marks::of(&args);
            if !row.arity.admits(args.len()) || !for_each_key(row, &args, |index, _| _ = said.add(index)) {
                continue;
            }
            checked += 1;
            row.keys.for_each(&args, 0, 16, |index, _| assert!(said.has(index), "{index} of {line}"));
        }
    }
    assert!(checked > 10_000, "{checked} calls");
}

/// Comparing each key with all keys before it would take the square of their number.
#[test]
fn keys_of_long_calls_take_one_pass() {
    install();
    let line = format!("SUNIONSTORE d{}", " k".repeat(200_000));
    let spans = spans(&line);
    let args = Args::new(line.as_bytes(), &spans);
    let row = table().row(table().find_full(args.at(0)).expect("a command"));
    let (mut count, began) = (0, std::time::Instant::now());
    assert!(for_each_key(row, &args, |_, _| count += 1));
    assert_eq!(count, 200_001);
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
}
