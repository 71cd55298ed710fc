//! Messages: all subscribers of a channel get them in the same order, and a publisher's messages in the order
//! of publishing. None is missing between the confirmations of subscription and unsubscription. A client that
//! does not read is dropped without an effect on other clients.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use evenkeel_resp::value::Value;
use evenkeel_testkit::Client;

use super::{Member, crowd};
use crate::{Ends, start};

const PUBLISHERS: usize = 3;
const CHANNELS: usize = 4;

/// Number of messages that a publisher has begun to publish to a channel, and number of replies. Messages are
/// numbered from 1.
#[derive(Default)]
struct Counts {
    begun: [[AtomicU64; CHANNELS]; PUBLISHERS],
    done: [[AtomicU64; CHANNELS]; PUBLISHERS],
}

impl Counts {
    fn of(counters: &[[AtomicU64; CHANNELS]; PUBLISHERS], channel: usize) -> [u64; PUBLISHERS] {
        std::array::from_fn(|publisher| counters[publisher][channel].load(SeqCst))
    }
}

/// A message: its publisher and number.
type Message = (usize, u64);

/// The channel and the message of a push; `None` for other pushes.
fn message(value: &Value) -> Option<(usize, Message)> {
    let (Value::Array(parts) | Value::Push(parts)) = value else { panic!("{value} is no push") };
    let word = |at: usize| std::str::from_utf8(parts[at].as_bytes().expect("text")).expect("text");
    let (channel, body) = match word(0) {
        "message" => (word(1), word(2)),
        "pmessage" => (word(2), word(3)),
        _ => return None,
    };
    let (publisher, number) = body.split_once('.').expect("as it was made");
    let number = number.parse().expect("as it was made");
    Some((channel[1..].parse().expect("a channel"), (publisher.parse().expect("a publisher"), number)))
}

fn publish(member: &mut Member<'_>, publisher: usize, counts: &Counts) {
    while member.goes_on() {
        let mut channels = Vec::new();
        let lines: Vec<Vec<String>> = (0..=member.random.below(20))
            .map(|_| {
                let channel = member.random.below(CHANNELS);
                channels.push(channel);
                let number = counts.begun[publisher][channel].fetch_add(1, SeqCst) + 1;
                vec!["PUBLISH".to_owned(), format!("c{channel}"), format!("{publisher}.{number}")]
            })
            .collect();
        let replies = member.client.pipeline(&lines);
        for (reply, channel) in replies.iter().zip(channels) {
            assert!(matches!(reply, Value::Int(_)), "{reply}");
            counts.done[publisher][channel].fetch_add(1, SeqCst);
        }
    }
}

/// Reads until the confirmation of an unsubscription, and passes on earlier messages.
fn read_to_the_end(client: &mut Client, mut each: impl FnMut(usize, Message)) {
    loop {
        match message(&client.read()) {
            Some((channel, message)) => each(channel, message),
            None => return,
        }
    }
}

/// Subscribes and unsubscribes repeatedly: no message is missing between the two confirmations.
fn resubscribe(member: &mut Member<'_>, counts: &Counts) {
    while member.goes_on() {
        let (channel, by_pattern) = (member.random.below(CHANNELS), member.random.chance(3));
        let (join, leave) =
            if by_pattern { ("PSUBSCRIBE", "PUNSUBSCRIBE") } else { ("SUBSCRIBE", "UNSUBSCRIBE") };
        let name = if by_pattern { format!("*{channel}") } else { format!("c{channel}") };
        member.client.call(&[join, &name]);
        let begun = Counts::of(&counts.begun, channel);
        std::thread::sleep(Duration::from_micros(member.random.below(2_000) as u64));
        let done = Counts::of(&counts.done, channel);
        let mut last = [0; PUBLISHERS];
        member.client.send(&[leave, &name]).expect("the server is there");
        read_to_the_end(&mut member.client, |from, (publisher, number)| {
            assert_eq!(from, channel);
            if last[publisher] == 0 {
                assert!(number <= begun[publisher] + 1, "{number} is first, {begun:?} had begun");
            } else {
                assert_eq!(number, last[publisher] + 1, "from publisher {publisher}");
            }
            last[publisher] = number;
        });
        for publisher in 0..PUBLISHERS {
            let due = done[publisher] > begun[publisher];
            assert!(!due || last[publisher] >= done[publisher], "{last:?} of {done:?}");
        }
    }
}

/// Subscribed from the first message to the last.
fn listen(member: &mut Member<'_>, mut client: Client, received: &Mutex<Vec<[Vec<Message>; CHANNELS]>>) {
    let mut all: [Vec<Message>; CHANNELS] = Default::default();
    client.set_reply_timeout(Duration::from_millis(1_500));
    // The last message comes after the publishers have stopped.
    while let Ok(value) = client.try_read() {
        if let Some((channel, message)) = message(&value) {
            all[channel].push(message);
        }
    }
    member.turns += all.iter().map(Vec::len).sum::<usize>() as u64;
    received.lock().expect("no thread fails").push(all);
}

#[test]
fn messages_reach_all_subscribers_once_in_the_same_order() {
    let mut server = crate::start(&["--client-output-buffer-limit", "pubsub 0 0 0"]);
    let counts = Counts::default();
    let listeners: Vec<Client> = ["c0 c1 c2 c3", "*", "c* nothing", "c3 c2 c1 c0"]
        .iter()
        .enumerate()
        .map(|(at, names)| {
            let mut client = if at % 2 == 0 { server.connect() } else { server.connect3() };
            let join = if names.contains('*') { "PSUBSCRIBE" } else { "SUBSCRIBE" };
            let names: Vec<&str> = names.split(' ').collect();
            client.call(&[&[join][..], &names].concat());
            names[1..].iter().for_each(|_| drop(client.read()));
            client
        })
        .collect();
    let (listeners, received, next) = (Mutex::new(listeners), Mutex::default(), AtomicU64::new(0));
    crowd(
        &mut server,
        &[
            (PUBLISHERS, &|member| publish(member, next.fetch_add(1, SeqCst) as usize, &counts)),
            (3, &|member| resubscribe(member, &counts)),
            (4, &|member| {
                let client = listeners.lock().expect("no thread fails").pop().expect("one for each");
                listen(member, client, &received);
            }),
        ],
    );
    let received = received.into_inner().expect("no thread has failed");
    assert_eq!(received.len(), 4);
    for channel in 0..CHANNELS {
        let first = &received[0][channel];
        for other in &received[1..] {
            assert!(other[channel] == *first, "all have heard channel {channel} alike");
        }
        let mut last = [0; PUBLISHERS];
        for (publisher, number) in first {
            assert_eq!(*number, last[*publisher] + 1, "from publisher {publisher}");
            last[*publisher] = *number;
        }
        assert_eq!(last, Counts::of(&counts.begun, channel));
    }
}

/// A client that does not read is dropped at its limit; the other client gets everything, and publishing is
/// not slower.
#[test]
fn a_subscriber_that_does_not_read_is_dropped() {
    const MESSAGES: usize = 400;
    let mut server = crate::start(&["--client-output-buffer-limit", "pubsub 8mb 0 0"]);
    let (mut slow, mut quick, mut publisher) = (server.connect(), server.connect(), server.connect());
    slow.call(&["SUBSCRIBE", "c"]);
    quick.call(&["SUBSCRIBE", "c"]);
    let body = vec![b'x'; 100_000];
    let mut slowest = Duration::ZERO;
    for number in 0..MESSAGES {
        let started = Instant::now();
        let reply = publisher.call(&[&b"PUBLISH"[..], b"c", &body]);
        slowest = slowest.max(started.elapsed());
        assert!(matches!(reply, Value::Int(1 | 2)), "{reply} to message {number}");
        let Value::Array(parts) = quick.read() else { panic!("no message {number}") };
        assert_eq!(parts[2].as_bytes().map(<[u8]>::len), Some(body.len()));
    }
    println!("the slowest PUBLISH took {slowest:?}");
    assert_eq!(publisher.call(&["PUBSUB", "NUMSUB", "c"]).to_string(), r#"["c", :1]"#);
    assert_eq!(server.info("client_output_buffer_limit_disconnections"), "1");
    slow.set_reply_timeout(Duration::from_secs(5));
    let received = slow.read_to_end().map_or(0, |bytes| bytes.len());
    assert!(received < MESSAGES * body.len(), "it was hung up on: {received}");
    server.assert_healthy();
}

/// Messages for a client that sends RESET come before its reply: the next reply answers the next request.
#[test]
fn no_message_follows_a_reset() {
    let server = start(&["--threads", "2"]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut client = server.connect();
                while !stop.load(SeqCst) {
                    client.send_raw(&b"PUBLISH channel x\r\n".repeat(50)).expect("connected");
                    (0..50).for_each(|_| drop(client.read()));
                }
            });
        }
        let _ends = Ends(&stop);
        let mut client = server.connect();
        for round in 0..1_000 {
            let line = if round % 2 == 0 { "MONITOR\r\n" } else { "SUBSCRIBE channel\r\n" };
            client.send_raw(line.as_bytes()).expect("connected");
            client.read();
            client.send_raw(b"RESET\r\nECHO mark\r\n").expect("connected");
            while client.read().to_string() != "RESET" {}
            assert_eq!(client.read().to_string(), "\"mark\"", "round {round}");
        }
    });
}
