//! Scripts, messages, caches and user changes, all at once on the same keys. Each script increments a number,
//! writes a key that clients have cached, and publishes the number. So subscribers get all numbers in order,
//! caches are correct at the end, and a change of permissions holds from the next command on.

use std::sync::Mutex;
use std::time::Duration;

use evenkeel_resp::value::Value;
use evenkeel_testkit::Client;

use super::caches::{Cache, key, read};
use super::{Member, crowd};

/// A step; no client sees half of it.
const STEP: &str = "local n = redis.call('INCR', KEYS[1]) redis.call('SET', KEYS[2], n) \
                    redis.call('PUBLISH', ARGV[1], n) return n";

fn steps(member: &mut Member<'_>) {
    assert_eq!(member.client.run("AUTH bob secret").to_string(), "OK");
    let mut last = 0;
    while member.goes_on() {
        let key = key(member);
        let reply = member.client.call(&["EVAL", STEP, "2", "counter", &key, "feed"]);
        let number = reply.as_int().unwrap_or_else(|| panic!("bob may do all of this: {reply}"));
        assert!(number > last, "{number} after {last}");
        last = number;
    }
}

/// Gets each number once, in order, from the first received to the last.
fn listen(member: &mut Member<'_>, mut client: Client, ends: &Mutex<Vec<i64>>) {
    client.set_reply_timeout(Duration::from_millis(1_500));
    let mut last = None;
    // The last message comes after the last step.
    while let Ok(message) = client.try_read() {
        let parts = message.as_items().expect("a message");
        let text = parts[2].as_bytes().and_then(|text| std::str::from_utf8(text).ok());
        let number: i64 = text.and_then(|text| text.parse().ok()).expect("a number");
        assert_eq!(number, last.map_or(1, |last| last + 1), "all of them, in order");
        last = Some(number);
        member.turns += 1;
    }
    ends.lock().expect("no thread fails").push(last.unwrap_or(0));
}

/// Changes permissions. Bob keeps the permissions he needs; Ann's change from command to command, on a
/// lasting connection.
fn change_users(member: &mut Member<'_>, mut ann: Client) {
    assert_eq!(ann.run("AUTH ann secret").to_string(), "OK");
    while member.goes_on() {
        let extra = member.random.below(100);
        let (may, rule) = if member.random.chance(50) { (true, "~ann") } else { (false, "~other") };
        let pattern = format!("~unused{extra}");
        for words in [
            &["ACL", "SETUSER", "bob", "resetkeys", &pattern, "~*", "resetchannels", "&feed"][..],
            &["ACL", "SETUSER", "ann", "resetkeys", rule],
        ] {
            assert_eq!(member.client.call(words).to_string(), "OK");
        }
        let reply = ann.run("SET ann 1");
        assert_eq!(!reply.is_error(), may, "{rule}: {reply}");
        assert!(may || reply.to_string().starts_with("-NOPERM"), "{reply}");
    }
}

#[test]
fn scripts_messages_caches_and_users_work_together() {
    let mut server = crate::start(&["--threads", "4", "--client-output-buffer-limit", "pubsub 0 0 0"]);
    let mut plain = server.connect();
    for user in ["bob", "ann"] {
        let reply = plain.run(&format!("ACL SETUSER {user} on >secret ~* &feed +@all"));
        assert_eq!(reply.to_string(), "OK");
    }
    let listeners = [server.connect(), server.connect()].map(|mut client| {
        assert!(!client.run("SUBSCRIBE feed").is_error());
        client
    });
    let caches = [Cache::new(&server, &[]), Cache::new(&server, &["BCAST"])];
    let (listeners, caches) = (Mutex::new(Vec::from(listeners)), Mutex::new(Vec::from(caches)));
    let (ends, read_caches) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let ann = Mutex::new(Some(server.connect()));
    crowd(
        &mut server,
        &[
            (3, &steps),
            (2, &|member| {
                let client = listeners.lock().expect("no thread fails").pop().expect("one for each");
                listen(member, client, &ends);
            }),
            (2, &|member| {
                let mut cache = caches.lock().expect("no thread fails").pop().expect("one for each");
                read(member, &mut cache);
                read_caches.lock().expect("no thread fails").push(cache);
            }),
            (1, &|member| {
                let ann = ann.lock().expect("no thread fails").take().expect("there is one thread");
                change_users(member, ann);
            }),
        ],
    );
    let number = |value: Value| value.as_bytes().map(|text| String::from_utf8_lossy(text).into_owned());
    let steps: i64 = number(plain.run("GET counter")).and_then(|text| text.parse().ok()).expect("a number");
    assert!(steps > 0);
    assert_eq!(ends.into_inner().expect("no thread has failed"), [steps, steps], "everybody heard the last");
    for mut cache in read_caches.into_inner().expect("no thread has failed") {
        cache.settle();
        cache.assert_is_true(&mut plain);
    }
}
