//! Queues with blocked clients: every element comes out once, in the order of its arrival.
//!
//! redis-server fails here: it takes an element for a client whose end of stream it has not read yet, and
//! then drops the reply.

use std::collections::HashMap;
use std::sync::Mutex;

use evenkeel_resp::value::{Value, decode};
use evenkeel_testkit::Client;

use super::{Member, crowd};

const KEYS: usize = 5;

/// The next number of each producer: its elements in a queue ascend.
#[derive(Default)]
struct Books {
    put: Mutex<Vec<String>>,
    taken: Mutex<Vec<String>>,
}

/// The last number that a consumer has seen of each queue and producer.
#[derive(Default)]
struct Seen(HashMap<(String, String), u64>);

impl Seen {
    fn record(&mut self, key: &str, element: &str) {
        let (producer, number) = element.split_once('.').expect("as it was made");
        let number: u64 = number.parse().expect("as it was made");
        let last = self.0.insert((key.to_owned(), producer.to_owned()), number);
        assert!(last.is_none_or(|last| last < number), "{element} from {key} after {last:?}");
    }
}

fn text(value: &Value) -> String {
    String::from_utf8(value.as_bytes().expect("a string").to_vec()).expect("as it was put in")
}

/// The queue and the elements in a reply of BLPOP, LMPOP and their like; no elements in a null.
fn elements(reply: &Value) -> (String, Vec<String>) {
    match reply {
        Value::Array(parts) => match &parts[..] {
            [key, Value::Array(many)] => (text(key), many.iter().map(text).collect()),
            [key, one] => (text(key), vec![text(one)]),
            other => panic!("{other:?} is no reply of a pop"),
        },
        Value::NullArray | Value::NullBulk => Default::default(),
        Value::Error(_) => panic!("{reply}"),
        other => panic!("{other} is no reply of a pop"),
    }
}

fn produce(member: &mut Member<'_>, books: &Books) {
    let producer = member.random.below(1_000_000_000);
    let mut number = 0;
    while member.goes_on() {
        let transaction = member.random.chance(20);
        let mut lines: Vec<Vec<String>> = Vec::new();
        let mut put = Vec::new();
        for _ in 0..=member.random.below(if transaction { 3 } else { 1 }) {
            let mut line = vec!["RPUSH".to_owned(), format!("q{}", member.random.below(KEYS))];
            for _ in 0..=member.random.below(3) {
                number += 1;
                put.push(format!("{producer}.{number}"));
                line.push(format!("{producer}.{number}"));
            }
            lines.push(line);
        }
        if transaction {
            lines.insert(0, vec!["MULTI".to_owned()]);
            lines.push(vec!["EXEC".to_owned()]);
        }
        assert!(member.client.pipeline(&lines).iter().all(|reply| !reply.is_error()));
        books.put.lock().expect("no thread fails").extend(put);
    }
}

fn consume(member: &mut Member<'_>, books: &Books, connect: &(dyn Fn() -> Client + Sync)) {
    let (mut seen, own) = (Seen::default(), format!("own{}", member.random.below(1_000_000_000)));
    while member.goes_on() {
        let (one, other) = (member.random.below(KEYS), member.random.below(KEYS));
        let timeout = member.random.pick(&["0.001", "0.003", "0.02", "0.1"]).to_owned();
        let line = match member.random.below(8) {
            0 => format!("BLMPOP {timeout} 3 q{one} {own} q{other} LEFT COUNT 3"),
            1 => format!("BLMOVE q{one} {own} LEFT RIGHT {timeout}"),
            2 => format!("BLPOP q{one} {timeout}"),
            _ => format!("BLPOP q{one} q{other} {own} {timeout}"),
        };
        let is_move = line.starts_with("BLMOVE");
        let args = evenkeel_testkit::words::split(&line).expect("a command line");
        member.client.send(&args).expect("an open connection");
        let reply = if member.random.chance(3) {
            // Elements taken before the end of the stream was known are sent all the same.
            member.client.finish_sending().expect("an open connection");
            let rest = member.client.read_to_end().expect("the server hangs up");
            member.client = connect();
            decode(&rest).expect("whole replies").map_or(Value::NullArray, |(reply, _)| reply)
        } else {
            member.client.read()
        };
        if is_move {
            // The element is still there; its order is checked when it leaves the other queue.
            continue;
        }
        let (key, popped) = elements(&reply);
        if key != own {
            popped.iter().for_each(|element| seen.record(&key, element));
        }
        books.taken.lock().expect("no thread fails").extend(popped);
    }
}

/// Moves whole queues to and fro, and ends waits.
fn interfere(member: &mut Member<'_>) {
    while member.goes_on() {
        let key = format!("q{}", member.random.below(KEYS));
        let id = 1 + member.random.below(200);
        let line = match member.random.below(5) {
            0 => format!("CLIENT UNBLOCK {id} TIMEOUT"),
            1 => format!("PEXPIRE {key} 100000"),
            2 => "INFO".to_owned(),
            3 => format!("PERSIST {key}"),
            _ => format!("LRANGE {key} 0 -1"),
        };
        assert!(!member.client.run(&line).is_error(), "{line}");
        std::thread::sleep(std::time::Duration::from_micros(member.random.below(400) as u64));
    }
}

#[test]
fn every_element_comes_out_once_and_in_order() {
    let mut server = crate::start(&["--databases", "2", "--maxclients", "2000"]);
    let (books, address) = (Books::default(), server.address());
    let connect = || Client::connect(address).expect("it takes connections");
    let (produce, consume) =
        (|m: &mut Member<'_>| produce(m, &books), |m: &mut Member<'_>| consume(m, &books, &connect));
    crowd(&mut server, &[(3, &produce), (12, &consume), (1, &interfere)]);
    let mut client = server.connect();
    let Value::Array(keys) = client.run("KEYS *") else { panic!("a list of keys") };
    let mut seen = books.taken.into_inner().expect("no thread fails");
    let taken = seen.len();
    for key in &keys {
        let Value::Array(left) = client.call(&["LRANGE", &text(key), "0", "-1"]) else { panic!("a list") };
        seen.extend(left.iter().map(text));
    }
    let mut put = books.put.into_inner().expect("no thread fails");
    println!("{} put in, {taken} taken, {} left", put.len(), seen.len() - taken);
    assert!(taken > 500, "they had enough to do");
    put.sort_unstable();
    seen.sort_unstable();
    assert!(put == seen, "an element is lost or was taken twice");
    server.assert_healthy();
}
