//! Sessions of the console: a cookie in a browser stands for a user that has logged in.
//!
//! | a session ends | |
//! |---|---|
//! | without a request | after [`IDLE_MAX`] |
//! | at the latest | after [`AGE_MAX`] |
//! | with its user | when the user is deleted, turned off, or gets other passwords ([`Host::renewed`]) |
//! | for a new session | if [`SESSIONS_MAX`] are open and no other is idle for longer |
//!
//! The table also counts failed logins by address: after [`FAILURES_MAX`] of them within [`FAILURES_TIME`],
//! an address has to wait for the rest of that time.
//!
//! [`Host::renewed`]: crate::Host::renewed

#[cfg(fuzzing)]
pub(crate) mod fuzzing;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use evenkeel_acl::User;
use evenkeel_runtime::random::fill_random;
use parking_lot::Mutex;

const AGE_MAX: Duration = Duration::from_secs(12 * 3600);
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
const SESSIONS_MAX: usize = 1000;

const FAILURES_MAX: u32 = 10;
const FAILURES_TIME: Duration = Duration::from_secs(60);

/// Addresses whose failures are counted; beyond that, the oldest count is dropped.
const ADDRESSES_MAX: usize = 10_000;

/// Random bytes of a token.
const TOKEN_LEN: usize = 32;

/// All sessions, and the addresses of failed logins.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<Table>);

#[derive(Default)]
struct Table {
    sessions: Vec<Session>,
    failures: HashMap<IpAddr, Failures>,
}

#[derive(Clone)]
pub(crate) struct Session {
    /// The value of the cookie.
    pub(crate) token: String,
    /// The value of the header that every POST request needs.
    pub(crate) csrf: String,
    pub(crate) user: Arc<User>,
    began: Instant,
    used: Instant,
}

struct Failures {
    count: u32,
    since: Instant,
}

impl Sessions {
    /// Begins a session of a user that has proved its credentials.
    pub(crate) fn begin(&self, user: Arc<User>, now: Instant) -> Session {
        let session = Session { token: token(), csrf: token(), user, began: now, used: now };
        let sessions = &mut self.0.lock().sessions;
        sessions.retain(|session| !session.is_over(now));
        while sessions.len() >= SESSIONS_MAX {
            let idle = (0..sessions.len()).min_by_key(|at| sessions[*at].used);
            idle.map(|at| sessions.swap_remove(at));
        }
        sessions.push(session.clone());
        session
    }

    /// Returns the session of this token, which is used now. `renewed` returns the present state of its user;
    /// without a user the session ends.
    pub(crate) fn find(
        &self,
        token: &[u8],
        now: Instant,
        renewed: impl FnOnce(&User) -> Option<Arc<User>>,
    ) -> Option<Session> {
        let sessions = &mut self.0.lock().sessions;
        let at = position(sessions, token)?;
        let session = &mut sessions[at];
        let user = if session.is_over(now) { None } else { renewed(&session.user) };
        let Some(user) = user else {
            sessions.swap_remove(at);
            return None;
        };
        (session.user, session.used) = (user, now);
        Some(session.clone())
    }

    pub(crate) fn end(&self, token: &[u8]) {
        let sessions = &mut self.0.lock().sessions;
        if let Some(at) = position(sessions, token) {
            sessions.swap_remove(at);
        }
    }

    /// Returns how long a client of this address has to wait before its next login.
    pub(crate) fn wait_of(&self, address: &str, now: Instant) -> Option<Duration> {
        let table = self.0.lock();
        let failures = table.failures.get(&network_of(address))?;
        let rest = FAILURES_TIME.checked_sub(now.duration_since(failures.since))?;
        (failures.count >= FAILURES_MAX && !rest.is_zero()).then_some(rest)
    }

    /// Records a failed login.
    pub(crate) fn record_failure(&self, address: &str, now: Instant) {
        let failures = &mut self.0.lock().failures;
        let network = network_of(address);
        if failures.len() >= ADDRESSES_MAX && !failures.contains_key(&network) {
            let oldest = failures.iter().min_by_key(|(_, of)| of.since).map(|(network, _)| *network);
            oldest.map(|network| failures.remove(&network));
        }
        let of = failures.entry(network).or_insert(Failures { count: 0, since: now });
        if now.duration_since(of.since) >= FAILURES_TIME {
            *of = Failures { count: 0, since: now };
        }
        of.count += 1;
    }
}

impl Session {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.began) >= AGE_MAX || now.duration_since(self.used) >= IDLE_MAX
    }
}

/// Returns a random token, in letters that a cookie and a header may have.
fn token() -> String {
    let mut bytes = [0; TOKEN_LEN];
    fill_random(&mut bytes);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Finds a session. Every token is compared, and to its end, so that the time tells nothing about them.
fn position(sessions: &[Session], token: &[u8]) -> Option<usize> {
    let mut found = None;
    for (at, session) in sessions.iter().enumerate() {
        if same(session.token.as_bytes(), token) {
            found = Some(at);
        }
    }
    found
}

/// Compares in constant time, so that the time does not reveal where the tokens differ.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b));
    a.len() == b.len() && std::hint::black_box(difference) == 0
}

/// Returns the address of a client; of IPv6 the network, of which a host has all addresses.
fn network_of(address: &str) -> IpAddr {
    const HOST_BITS: u32 = 64;
    match address.parse::<SocketAddr>().map(|address| address.ip().to_canonical()) {
        Ok(IpAddr::V6(ip)) => IpAddr::V6((ip.to_bits() >> HOST_BITS << HOST_BITS).into()),
        Ok(ip) => ip,
        Err(_) => IpAddr::from([0; 4]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Arc<User> {
        evenkeel_command::spec::table::install(Vec::new);
        Arc::new(User::new(name.as_bytes(), 1, false))
    }

    fn is_open(sessions: &Sessions, session: &Session, now: Instant) -> bool {
        sessions.find(session.token.as_bytes(), now, |user| Some(Arc::new(user.clone()))).is_some()
    }

    #[test]
    fn a_session_ends_without_requests() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let session = sessions.begin(user("ann"), start);
        let almost = IDLE_MAX - Duration::from_secs(1);
        assert!(is_open(&sessions, &session, start + almost));
        assert!(is_open(&sessions, &session, start + almost * 2));
        assert!(!is_open(&sessions, &session, start + almost * 2 + IDLE_MAX));
        assert!(!is_open(&sessions, &session, start), "it is gone");
    }

    #[test]
    fn a_session_ends_after_twelve_hours() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let session = sessions.begin(user("ann"), start);
        let mut now = start;
        while now + IDLE_MAX / 2 < start + AGE_MAX {
            now += IDLE_MAX / 2;
            assert!(is_open(&sessions, &session, now));
        }
        assert!(!is_open(&sessions, &session, start + AGE_MAX));
    }

    #[test]
    fn a_session_ends_with_its_user() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let session = sessions.begin(user("ann"), now);
        assert!(sessions.find(session.token.as_bytes(), now, |_| Some(user("new"))).is_some());
        let found = sessions.find(session.token.as_bytes(), now, |user| {
            assert_eq!(&*user.who.name, b"new", "the table has the renewed user");
            None
        });
        assert!(found.is_none() && !is_open(&sessions, &session, now));
    }

    #[test]
    fn the_longest_idle_session_gives_its_place_to_the_next() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let first = sessions.begin(user("ann"), start);
        let second = sessions.begin(user("ann"), start);
        let later = start + Duration::from_secs(1);
        assert!(is_open(&sessions, &first, later));
        (0..SESSIONS_MAX - 1).for_each(|_| _ = sessions.begin(user("ann"), later));
        assert_eq!(sessions.0.lock().sessions.len(), SESSIONS_MAX);
        assert!(is_open(&sessions, &first, later) && !is_open(&sessions, &second, later));
    }

    #[test]
    fn only_the_whole_token_opens_a_session() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let session = sessions.begin(user("ann"), now);
        let (token, longer) = (&session.token, format!("{}x", session.token));
        for wrong in ["", &token[..token.len() - 1], &longer, &session.csrf] {
            assert!(sessions.find(wrong.as_bytes(), now, |_| Some(user("ann"))).is_none(), "{wrong}");
        }
        sessions.end(b"wrong");
        assert!(is_open(&sessions, &session, now));
        sessions.end(token.as_bytes());
        assert!(!is_open(&sessions, &session, now));
    }

    #[test]
    fn failed_logins_make_an_address_wait() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        for _ in 0..FAILURES_MAX {
            assert_eq!(sessions.wait_of("10.0.0.1:1", start), None);
            sessions.record_failure("10.0.0.1:1", start);
        }
        assert_eq!(sessions.wait_of("10.0.0.1:2", start), Some(FAILURES_TIME));
        assert_eq!(sessions.wait_of("10.0.0.2:1", start), None);
        let after = start + FAILURES_TIME;
        assert_eq!(sessions.wait_of("10.0.0.1:2", after), None);
        sessions.record_failure("10.0.0.1:2", after);
        assert_eq!(sessions.wait_of("10.0.0.1:2", after), None, "the count begins again");
    }

    #[test]
    fn a_host_of_ipv6_has_one_count_for_all_its_addresses() {
        assert_eq!(network_of("[2001:db8::1]:5"), network_of("[2001:db8::ffff:1]:6"));
        assert_ne!(network_of("[2001:db8::1]:5"), network_of("[2001:db8:0:1::1]:5"));
        assert_eq!(network_of("[::ffff:10.0.0.1]:5"), network_of("10.0.0.1:6"));
    }

    #[test]
    fn the_number_of_counted_addresses_is_bounded() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        for at in 0..ADDRESSES_MAX as u32 + 5 {
            let ip = std::net::Ipv4Addr::from_bits(at);
            sessions.record_failure(&format!("{ip}:1"), now + Duration::from_millis(at.into()));
        }
        assert_eq!(sessions.0.lock().failures.len(), ADDRESSES_MAX);
    }
}
