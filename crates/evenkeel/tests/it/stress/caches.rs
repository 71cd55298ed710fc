//! Client-side caches, while other clients write, remove, expire and flush the cached keys: at the end every
//! cache agrees with the server.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use evenkeel_resp::value::Value;
use evenkeel_testkit::{Client, Server};

use super::{Member, crowd};

const KEYS: usize = 40;

/// A client and its cache: the value of each key, or its absence.
pub(super) struct Cache {
    client: Client,
    guard: HashMap<Vec<u8>, Option<Vec<u8>>>,
    messages: u64,
    /// Prefixes of the tracked keys; none: all.
    prefixes: Vec<String>,
}

impl Cache {
    pub(super) fn new(server: &Server, mode: &[&str]) -> Cache {
        let mut client = server.connect3();
        let reply = client.call(&[&["CLIENT", "TRACKING", "ON"], mode].concat());
        assert_eq!(reply.to_string(), "OK");
        let prefixes =
            mode.iter().filter(|word| word.starts_with('k')).map(|word| (*word).to_owned()).collect();
        Cache { client, guard: HashMap::new(), messages: 0, prefixes }
    }

    /// Returns the reply to a command, after it has processed all earlier push messages.
    fn reply(&mut self) -> Value {
        loop {
            match self.client.read() {
                Value::Push(parts) => self.on_invalidation(&parts),
                reply => return reply,
            }
        }
    }

    fn on_invalidation(&mut self, parts: &[Value]) {
        assert_eq!(parts[0].as_bytes(), Some(&b"invalidate"[..]));
        self.messages += 1;
        match parts[1].as_items() {
            Some(keys) => keys.iter().for_each(|key| drop(self.guard.remove(key.as_bytes().expect("a key")))),
            None => self.guard.clear(),
        }
    }

    fn fetch(&mut self, key: &str) {
        self.client.send(&["GET", key]).expect("the server is there");
        let value = self.reply();
        assert!(!value.is_error(), "{value}");
        self.guard.insert(key.as_bytes().to_vec(), value.as_bytes().map(<[u8]>::to_vec));
    }

    fn is_notified_of(&self, key: &str) -> bool {
        self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| key.starts_with(prefix))
    }

    /// Processes all received messages.
    pub(super) fn settle(&mut self) {
        self.client.send(&["PING"]).expect("the server is there");
        self.reply();
    }

    /// Checks the cache against the server, through `plain`, when no writes are in progress.
    #[track_caller]
    pub(super) fn assert_is_true(&self, plain: &mut Client) {
        println!("{} keys cached, {} messages", self.guard.len(), self.messages);
        assert!(self.messages > 0, "there was something to tell");
        for (key, value) in &self.guard {
            let now = plain.call(&[b"GET", &key[..]]).as_bytes().map(<[u8]>::to_vec);
            assert_eq!(now, *value, "{}", String::from_utf8_lossy(key));
        }
    }
}

pub(super) fn key(member: &mut Member<'_>) -> String {
    format!("k{}", member.random.below(KEYS))
}

pub(super) fn read(member: &mut Member<'_>, cache: &mut Cache) {
    while member.goes_on() {
        let key = key(member);
        if cache.guard.contains_key(key.as_bytes()) || !cache.is_notified_of(&key) {
            cache.settle();
        } else {
            cache.fetch(&key);
        }
    }
}

fn write(member: &mut Member<'_>) {
    while member.goes_on() {
        let (one, other, number) = (key(member), key(member), member.turns.to_string());
        let line: &[&str] = match member.random.below(60) {
            0 => &["FLUSHALL"],
            1..=5 => &["DEL", &one, &other],
            6..=10 => &["SET", &one, &number, "PX", "3"],
            11..=15 => &["RENAME", &one, &other],
            16..=25 => &["MSET", &one, &number, &other, "x"],
            26..=30 => &["GETEX", &one, "PX", "2"],
            _ => &["SET", &one, &number],
        };
        member.client.call(line);
        // A pause now and then, so that the caches keep some keys.
        if member.random.chance(10) {
            std::thread::sleep(Duration::from_micros(member.random.below(300) as u64));
        }
    }
}

#[test]
fn caches_keep_no_stale_values() {
    let mut server = crate::start(&["--tracking-table-max-keys", "30"]);
    let modes: [&[&str]; 4] = [&[], &["NOLOOP"], &["BCAST"], &["BCAST", "PREFIX", "k1", "PREFIX", "k2"]];
    let caches: Vec<Cache> = modes.iter().map(|mode| Cache::new(&server, mode)).collect();
    let (waiting, done) = (Mutex::new(caches), Mutex::new(Vec::new()));
    crowd(
        &mut server,
        &[
            (4, &|member| {
                let mut cache = waiting.lock().expect("no thread fails").pop().expect("one for each");
                read(member, &mut cache);
                done.lock().expect("no thread fails").push(cache);
            }),
            (3, &write),
        ],
    );
    // Keys with a deadline expire, and messages in flight arrive.
    std::thread::sleep(Duration::from_millis(500));
    let mut plain = server.connect();
    for mut cache in done.into_inner().expect("no thread has failed") {
        cache.settle();
        cache.assert_is_true(&mut plain);
    }
}
