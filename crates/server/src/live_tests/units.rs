use std::collections::HashMap;
use std::time::Duration;

use evenkeel_resp::value::Value;
use evenkeel_testkit::Client;

use crate::testing::World;
use crate::testing::live::Live;

const WRITERS: usize = 6;
const UNITS: usize = 150;
const PARTS: usize = 12;

/// Returns keys of a unit, in as many slots: the unit's number and the part's.
fn keys(unit: usize) -> Vec<String> {
    (0..PARTS).map(|part| format!("unit:{unit}:{part}")).collect()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Makes each writer send a unit after the other, with only its own keys.
fn write_all(live: &Live, commands: impl Fn(&[String]) -> Vec<Vec<String>> + Sync) {
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (mut client, commands) = (live.connect(), &commands);
            scope.spawn(move || {
                for unit in 0..UNITS {
                    for reply in client.pipeline(&commands(&keys(writer * UNITS + unit))) {
                        assert!(!reply.is_error(), "{reply}");
                    }
                }
            });
        }
    });
}

/// Returns the unit and part that a message is about, if any.
fn part_of(message: &Value) -> Option<(usize, usize)> {
    let text = message.to_string();
    let (_, name) = text.rsplit_once("unit:")?;
    let (unit, part) = name.split_once(':')?;
    let digits = part.split(|message: char| !message.is_ascii_digit()).next()?;
    Some((unit.parse().ok()?, digits.parse().ok()?))
}

/// Reads all messages of all units, `per_part` of each part, and checks that each unit's messages are
/// contiguous and in order. Returns the order of the units.
fn read_all(listener: &mut Client, per_part: usize, what: &str) -> Vec<usize> {
    listener.set_reply_timeout(Duration::from_secs(20));
    let mut units = Vec::new();
    let mut left: HashMap<usize, usize> = HashMap::new();
    while units.len() < WRITERS * UNITS || left.values().any(|left| *left > 0) {
        let message = listener.read();
        let Some((unit, part)) = part_of(&message) else { continue };
        if units.last() != Some(&unit) {
            assert!(!left.contains_key(&unit), "{what}: others stand among the messages of unit {unit}");
            assert!(left.values().all(|left| *left == 0), "{what}: {message} comes among another unit");
            units.push(unit);
            left.insert(unit, PARTS * per_part);
        }
        let left = left.get_mut(&unit).expect("it has begun");
        *left -= 1;
        assert_eq!(part, PARTS - 1 - *left / per_part, "{what}: {message}");
    }
    units
}

fn subscribed(live: &Live, command: &[&str]) -> Client {
    let mut client = live.connect();
    client.call(command);
    client
}

fn notified(what: &str, event: &str, commands: impl Fn(&[String]) -> Vec<Vec<String>> + Sync) {
    let live = Live::start(4, &["--notify-keyspace-events", "KEA"]);
    if event == "del" {
        write_all(&live, |keys| vec![mset(keys)]);
    }
    let channel = format!("__keyevent@0__:{event}");
    let [mut one, mut other] = [(); 2].map(|()| subscribed(&live, &["SUBSCRIBE", &channel]));
    let mut by_pattern = subscribed(&live, &["PSUBSCRIBE", "__key*__:*"]);
    let (commands, live) = (&commands, &live);
    std::thread::scope(|scope| {
        let orders = [(&mut one, 1), (&mut other, 1), (&mut by_pattern, 2)]
            .map(|(listener, per_part)| scope.spawn(move || read_all(listener, per_part, what)));
        write_all(live, commands);
        let [one, other, _] = orders.map(|order| order.join().expect("they stand together"));
        assert_eq!(one, other, "{what}: one order for all");
    });
}

fn mset(keys: &[String]) -> Vec<String> {
    words(&["MSET"]).into_iter().chain(keys.iter().flat_map(|key| [key.clone(), "v".into()])).collect()
}

fn del(keys: &[String]) -> Vec<String> {
    words(&["DEL"]).into_iter().chain(keys.iter().cloned()).collect()
}

/// Returns a transaction of a command for each key.
fn transaction(keys: &[String], command: impl Fn(&str) -> Vec<String>) -> Vec<Vec<String>> {
    let queue = keys.iter().map(|key| command(key));
    std::iter::once(words(&["MULTI"])).chain(queue).chain([words(&["EXEC"])]).collect()
}

fn script(text: &str, keys: &[String]) -> Vec<String> {
    words(&["EVAL", text, &keys.len().to_string()]).into_iter().chain(keys.iter().cloned()).collect()
}

#[test]
fn notifications_of_a_unit_are_contiguous() {
    notified("MSET", "set", |keys| vec![mset(keys)]);
    notified("DEL", "del", |keys| vec![del(keys)]);
    notified("MULTI", "set", |keys| transaction(keys, |key| words(&["SET", key, "v"])));
    let sets = "for _, key in ipairs(KEYS) do redis.call('SET', key, 'v') end";
    notified("EVAL", "set", |keys| vec![script(sets, keys)]);
}

#[test]
fn messages_of_a_transaction_are_contiguous() {
    let live = Live::start(4, &[]);
    let [mut one, mut other] = [(); 2].map(|()| subscribed(&live, &["SUBSCRIBE", "channel"]));
    let mut sharded = subscribed(&live, &["SSUBSCRIBE", "channel"]);
    std::thread::scope(|scope| {
        let orders = [&mut one, &mut other, &mut sharded]
            .map(|listener| scope.spawn(move || read_all(listener, 1, "PUBLISH")));
        write_all(&live, |keys| {
            let queue = keys
                .iter()
                .flat_map(|key| ["PUBLISH", "SPUBLISH"].map(|name| words(&[name, "channel", key])));
            std::iter::once(words(&["MULTI"])).chain(queue).chain([words(&["EXEC"])]).collect()
        });
        let [one, other, _] = orders.map(|order| order.join().expect("they stand together"));
        assert_eq!(one, other, "one order for all");
    });
}

#[test]
fn invalidations_of_a_unit_are_contiguous() {
    let live = Live::start(4, &[]);
    write_all(&live, |keys| vec![mset(keys)]);
    let mut listener = live.connect();
    for line in ["HELLO 3", "CLIENT TRACKING on"] {
        listener.run(line);
    }
    for unit in 0..WRITERS * UNITS {
        let read = words(&["MGET"]).into_iter().chain(keys(unit)).collect::<Vec<_>>();
        listener.call(&read);
    }
    std::thread::scope(|scope| {
        let order = scope.spawn(move || read_all(&mut listener, 1, "CLIENT TRACKING"));
        write_all(&live, |keys| vec![del(keys)]);
        order.join().expect("they stand together");
    });
}

#[test]
fn monitor_lines_of_a_unit_are_contiguous() {
    for kind in ["MULTI", "EVAL"] {
        let live = Live::start(4, &[]);
        let mut watcher = live.connect();
        watcher.run("MONITOR");
        std::thread::scope(|scope| {
            let order = scope.spawn(move || read_lines(&mut watcher, kind));
            let sets = "for _, key in ipairs(KEYS) do redis.call('SET', key, 'v') end";
            write_all(&live, |keys| match kind {
                "MULTI" => transaction(keys, |key| words(&["SET", key, "v"])),
                _ => vec![script(sets, keys)],
            });
            order.join().expect("they stand together");
        });
    }
}

/// Reads MONITOR's lines of all units: for a transaction its commands and then EXEC, for a script the script
/// and then its calls.
fn read_lines(watcher: &mut Client, kind: &str) {
    watcher.set_reply_timeout(Duration::from_secs(20));
    let mut next = || watcher.read().to_string().replace('\\', "");
    for _ in 0..WRITERS * UNITS {
        let mut first = next();
        while first.contains("\"MULTI\"") {
            first = next();
        }
        if kind == "EVAL" {
            assert!(first.contains("\"EVAL\""), "{first}");
            first = next();
        }
        let (unit, _) = part_of(&Value::Simple(first.clone().into_bytes())).expect(&first);
        for part in 1..PARTS {
            let line = next();
            assert!(line.contains(&format!("unit:{unit}:{part}\"")), "{kind}: {line} comes behind {first}");
        }
        if kind == "MULTI" {
            let line = next();
            assert!(line.contains("\"EXEC\""), "{kind}: {line} comes behind {first}");
        }
    }
}

/// A transaction's messages go to the clients that are subscribed at that moment of it.
#[test]
fn transactions_receive_their_messages_after_subscribing() {
    // Redis puts messages among EXEC's elements.
    World::new().check(
        "
        other> SUBSCRIBE c            < [\"subscribe\", \"c\", :1]
        > HELLO 3                     < *
        > MULTI                       < OK
        > PUBLISH c before            < QUEUED
        > SUBSCRIBE c                 < QUEUED
        > PUBLISH c in                < QUEUED
        > UNSUBSCRIBE c               < QUEUED
        > PUBLISH c after             < QUEUED
        > EXEC
        < [:1, >[\"subscribe\", \"c\", :1], :2, >[\"unsubscribe\", \"c\", :0], :1]
        < >[\"message\", \"c\", \"in\"]
        other< [\"message\", \"c\", \"before\"]
        other< [\"message\", \"c\", \"in\"]
        other< [\"message\", \"c\", \"after\"]
    ",
    );
}
