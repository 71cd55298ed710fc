//! Keys that change their name or database, and databases that change their content, beside readers.

use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_resp::value::Value;

use super::{Member, command, crowd, exec};
use crate::start;

const PLACES: usize = 12;

fn place(index: usize) -> String {
    format!("place:{index}")
}

/// A single token is renamed and moved: at every instant it is in a single place.
#[test]
fn a_renamed_key_always_exists() {
    let mut server = start(&[]);
    server.connect().call(&["SET", &place(0), "token"]);
    let rename = |member: &mut Member<'_>| {
        while member.goes_on() {
            let (from, to) = (member.random.below(PLACES), member.random.below(PLACES));
            let reply = member.client.call(&["RENAME", &place(from), &place(to)]).to_string();
            assert!(reply == "OK" || reply == "-ERR no such key", "RENAME says {reply}");
        }
    };
    let move_to_another_database = |member: &mut Member<'_>| {
        while member.goes_on() {
            let (key, database) = (place(member.random.below(PLACES)), member.random.below(2));
            member.client.call(&["SELECT", &database.to_string()]);
            member.client.call(&["MOVE", &key, &(1 - database).to_string()]);
        }
    };
    let check = |member: &mut Member<'_>| {
        let everywhere: Vec<String> =
            ["EXISTS".to_owned()].into_iter().chain((0..PLACES).map(place)).collect();
        let both = [command(["SELECT", "0"]), everywhere.clone(), command(["SELECT", "1"]), everywhere];
        while member.goes_on() {
            let seen = exec(&mut member.client, &both).expect("nothing is watched");
            let found = seen[1].as_int().unwrap_or(-1) + seen[3].as_int().unwrap_or(-1);
            assert_eq!(found, 1, "the token is in {found} places");
        }
    };
    crowd(&mut server, &[(2, &rename), (1, &move_to_another_database), (2, &check)]);
}

/// Groups are written whole, copied, swapped and flushed: no reader sees a partial or mixed group.
#[test]
fn readers_never_see_parts_of_a_group() {
    const GROUP: usize = 16;
    let mut server = start(&[]);
    let key = |index: usize| format!("member:{index}");
    let write = |member: &mut Member<'_>| {
        while member.goes_on() {
            let generation = member.random.draw().to_string();
            let mut args = vec!["MSET".to_owned()];
            args.extend((0..GROUP).flat_map(|index| [key(index), generation.clone()]));
            member.client.call(&["SELECT", member.random.pick(&["0", "1"])]);
            assert_eq!(member.client.call(&args).to_string(), "OK");
        }
    };
    let upset = |member: &mut Member<'_>| {
        while member.goes_on() {
            let reply = match member.random.below(10) {
                0 => member.client.run("FLUSHALL"),
                1 => member.client.run("FLUSHALL ASYNC"),
                2 => member.client.run("FLUSHDB"),
                3 => member.client.run("SELECT 1"),
                4 => member.client.run("SELECT 0"),
                5 => {
                    let mut args = vec!["DEL".to_owned()];
                    args.extend((0..GROUP).map(key));
                    member.client.call(&args)
                }
                _ => member.client.run("SWAPDB 0 1"),
            };
            assert!(!reply.is_error(), "{reply}");
            // else readers would find nothing most of the time
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    let read = |member: &mut Member<'_>| {
        let args: Vec<String> = ["MGET".to_owned()].into_iter().chain((0..GROUP).map(key)).collect();
        while member.goes_on() {
            member.client.call(&["SELECT", member.random.pick(&["0", "1"])]);
            let seen = member.client.call(&args);
            let values = seen.as_items().expect("an array");
            assert!(values.iter().all(|value| *value == values[0]), "parts of a group: {seen}");
        }
    };
    crowd(&mut server, &[(2, &write), (1, &upset), (2, &read)]);
    assert_eq!(server.connect().run("FLUSHALL").to_string(), "OK");
    assert_eq!(server.connect().run("DBSIZE"), Value::Int(0));
}

/// A copy is of a single point in time: the two halves of the source always agree.
#[test]
fn copies_are_consistent() {
    let mut server = start(&[]);
    server.connect().run("SET source 00000000:00000000");
    let write = |member: &mut Member<'_>| {
        while member.goes_on() {
            let half = format!("{:08}", member.random.below(100_000_000));
            let value = format!("{half}:{half}");
            match member.random.below(2) {
                0 => member.client.call(&["SET", "source", &value]),
                _ => member.client.call(&["SETRANGE", "source", "0", &value]),
            };
        }
    };
    let copy = |member: &mut Member<'_>| {
        while member.goes_on() {
            let target = format!("copy:{}", member.random.below(4));
            let commands = [command(["COPY", "source", &target, "REPLACE"]), command(["GET", &target])];
            let replies = member.client.pipeline(&commands);
            let bytes = replies[1].as_bytes().expect("it was just copied");
            assert!(bytes.len() == 17 && bytes[..8] == bytes[9..], "half of one value: {}", replies[1]);
        }
    };
    crowd(&mut server, &[(2, &write), (2, &copy)]);
}

/// MSETNX sets all its keys or none: no two clients hold overlapping pairs.
#[test]
fn locks_of_several_keys_exclude_each_other() {
    let mut server = start(&[]);
    let taken = AtomicU64::new(0);
    let take_and_check = |member: &mut Member<'_>| {
        let me = member.random.draw().to_string();
        while member.goes_on() {
            let (a, b) = (member.random.below(5), 5 + member.random.below(3));
            let (a, b) = (format!("lock:{a}"), format!("lock:{b}"));
            if member.client.call(&["MSETNX", &a, &me, &b, &me]) != Value::Int(1) {
                continue;
            }
            let guard = member.client.call(&["MGET", &a, &b]);
            let mine = Value::bulk(me.as_bytes());
            assert_eq!(guard, Value::Array(vec![mine.clone(), mine]), "somebody else is in");
            assert_eq!(member.client.call(&["DEL", &a, &b]), Value::Int(2));
            taken.fetch_add(1, Ordering::Relaxed);
        }
    };
    let turns = crowd(&mut server, &[(4, &take_and_check)]);
    let taken = taken.into_inner();
    assert!(taken > 0 && taken < turns, "{taken} of {turns}: some got in, some did not");
}
