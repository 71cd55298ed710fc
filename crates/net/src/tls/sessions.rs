//! Sessions that clients may resume: a client that reconnects proves its earlier handshake, and both sides
//! save the costly half of a new handshake.
//!
//! Sessions are kept here rather than in sealed tickets at the clients, since only then
//! `tls-session-cache-size` and `-timeout` hold literally. All workers share them. A handshake takes the lock
//! a few times, for less than a microsecond of the hundreds that it costs.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::server::StoresServerSessions;

/// Cached sessions; see the module's text.
pub(super) struct Sessions {
    kept: Mutex<Kept>,
    /// Capacity, beyond which the oldest session is dropped; zero: no limit but the lifetime.
    most: usize,
    lifetime: Duration,
}

#[derive(Default)]
struct Kept {
    by_key: HashMap<Vec<u8>, (Instant, Vec<u8>)>,
    /// In order of arrival, including sessions that have been taken since.
    order: VecDeque<(Instant, Vec<u8>)>,
}

impl Kept {
    /// Drops expired sessions, and the oldest sessions beyond `most`.
    fn trim(&mut self, now: Instant, lifetime: Duration, most: usize) {
        while let Some((since, _)) = self.order.front()
            && (now.duration_since(*since) >= lifetime || most > 0 && self.order.len() > most)
        {
            let Some((since, key)) = self.order.pop_front() else { return };
            if self.by_key.get(&key).is_some_and(|(other, _)| *other == since) {
                self.by_key.remove(&key);
            }
        }
    }
}

impl Sessions {
    /// Creates a cache; `most` as in the directive, and the lifetime in seconds.
    pub(super) fn new(most: u32, lifetime_s: u32) -> Sessions {
        Sessions {
            kept: Mutex::default(),
            most: most as usize,
            lifetime: Duration::from_secs(lifetime_s.into()),
        }
    }

    fn put_at(&self, now: Instant, key: Vec<u8>, value: Vec<u8>) {
        let mut kept = self.kept.lock();
        kept.order.push_back((now, key.clone()));
        kept.by_key.insert(key, (now, value));
        kept.trim(now, self.lifetime, self.most);
    }

    fn get_at(&self, now: Instant, key: &[u8]) -> Option<Vec<u8>> {
        let mut kept = self.kept.lock();
        kept.trim(now, self.lifetime, self.most);
        kept.by_key.get(key).map(|(_, value)| value.clone())
    }
}

impl StoresServerSessions for Sessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.put_at(Instant::now(), key, value);
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.get_at(Instant::now(), key)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let value = self.get_at(Instant::now(), key)?;
        self.kept.lock().by_key.remove(key);
        Some(value)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

/// Omits secrets.
impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("most", &self.most).field("lifetime", &self.lifetime).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_sessions_are_evicted_and_expire() {
        let (sessions, began) = (Sessions::new(2, 10), Instant::now());
        let put = |second, key: &[u8]| {
            sessions.put_at(began + Duration::from_secs(second), key.to_vec(), vec![second as u8]);
        };
        let get = |second, key: &[u8]| sessions.get_at(began + Duration::from_secs(second), key);
        put(0, b"a");
        put(1, b"b");
        put(2, b"c");
        assert_eq!((get(3, b"a"), get(3, b"b"), get(3, b"c")), (None, Some(vec![1]), Some(vec![2])));
        assert_eq!((get(11, b"b"), get(11, b"c")), (None, Some(vec![2])));
        put(12, b"c");
        assert_eq!(get(13, b"c"), Some(vec![12]), "the newer of the two is kept when the older one goes");
        assert_eq!(get(22, b"c"), None);
        assert!(sessions.kept.lock().by_key.is_empty() && sessions.kept.lock().order.is_empty());
    }

    #[test]
    fn sessions_are_taken_once() {
        let sessions = Sessions::new(0, 300);
        assert!(sessions.can_cache() && sessions.put(vec![1], vec![2]));
        assert_eq!(sessions.get(&[1]), Some(vec![2]));
        assert_eq!((sessions.take(&[1]), sessions.take(&[1])), (Some(vec![2]), None));
    }
}
