//! Checks for the fuzz targets (folder `fuzz` of the repository).

use super::*;

/// A session as the model knows it.
struct Known {
    token: String,
    began: Instant,
    used: Instant,
    has_ended: bool,
}

/// Runs steps, each a byte for its kind and a byte for its number, on sessions and on a model.
pub fn session_steps(steps: &[u8], user: &Arc<User>) {
    let (sessions, mut now) = (Sessions::default(), Instant::now());
    let (mut known, mut failures) = (Vec::<Known>::new(), HashMap::<u8, (u32, Instant)>::new());
    for step in steps.chunks_exact(2) {
        let (kind, number) = (step[0] % 7, step[1]);
        let at = usize::from(number) % known.len().max(1);
        match kind {
            0 => now += Duration::from_secs(u64::from(number) * 60),
            1 => now += Duration::from_secs(number.into()),
            2 => {
                let session = sessions.begin(user.clone(), now);
                assert_ne!(session.token, session.csrf);
                known.push(Known { token: session.token, began: now, used: now, has_ended: false });
            }
            3 if !known.is_empty() => {
                let one = &mut known[at];
                let is_open = !one.has_ended && now - one.began < AGE_MAX && now - one.used < IDLE_MAX;
                let renewed = |user: &User| (number < 0xf0).then(|| Arc::new(user.clone()));
                let found = sessions.find(one.token.as_bytes(), now, renewed).is_some();
                assert_eq!(found, is_open && number < 0xf0);
                (one.has_ended, one.used) = (!found, now);
            }
            4 if !known.is_empty() => {
                sessions.end(known[at].token.as_bytes());
                known[at].has_ended = true;
            }
            5 => {
                let count = failures.entry(number % 4).or_insert((0, now));
                if now - count.1 >= FAILURES_TIME {
                    *count = (0, now);
                }
                count.0 += 1;
                sessions.record_failure(&address(number), now);
            }
            6 => {
                let wait = failures.get(&(number % 4)).and_then(|(count, since)| {
                    let rest = FAILURES_TIME.saturating_sub(now - *since);
                    (*count >= FAILURES_MAX && !rest.is_zero()).then_some(rest)
                });
                assert_eq!(sessions.wait_of(&address(number), now), wait);
            }
            _ => {}
        }
        assert!(sessions.find(&step[1..], now, |_| None).is_none(), "no token is that short");
        let open = known.iter().filter(|one| !one.has_ended).count();
        let table = sessions.0.lock();
        assert!(table.sessions.len() <= open.min(SESSIONS_MAX) && table.failures.len() <= 4);
    }
}

/// Returns an address of one of four hosts, with varying ports and, for IPv6, addresses.
fn address(number: u8) -> String {
    match number % 4 {
        host @ 0..2 => format!("10.0.0.{host}:{}", u16::from(number) + 1),
        host => format!("[2001:db8:0:{host}::{number:x}]:7"),
    }
}
