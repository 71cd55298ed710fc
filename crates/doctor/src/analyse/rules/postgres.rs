//! Sessions of PostgreSQL: each is a process of its own, whose title has the name of the running command, and
//! says whether the session waits for a lock of another session. No system call tells that: it sleeps as if
//! it had no work.

use super::in_hand::REQUESTS_MIN;
use super::percent;
use crate::analyse::finding::Finding;
use crate::analyse::view::View;

/// The end of the title of a session of PostgreSQL that waits for a lock.
const WAITING: &str = " waiting";

/// The title of a session of PostgreSQL that showed a statement, and the part of the samples with it.
pub(super) fn statement<'a>(view: &View<'a>) -> Option<(&'a str, f64)> {
    let (title, seen) = view.recording.states.title.as_ref()?;
    Some((title.as_str(), *seen as f64 / view.recording.states.seen.max(1) as f64))
}

/// A session of PostgreSQL that waits for a lock of another session says so in its title.
pub(super) fn waits_for_a_lock(view: &View<'_>) -> Option<Finding> {
    let (title, part) =
        statement(view).filter(|(title, part)| title.ends_with(WAITING) && *part >= REQUESTS_MIN)?;
    let command = title.trim_end_matches(WAITING).rsplit(' ').next().unwrap_or("");
    let sentence = format!(
        "{} of the time this session of PostgreSQL waits for a lock that another session has, in {command}",
        percent(part)
    );
    let mut finding = Finding::new("R22", part, view.confidence(0.95, false).max(0.9), sentence)
        .about("waits for a lock of PostgreSQL")
        .evidence(format!("its title: {title}"), format!("psql -c 'select pg_blocking_pids({})'", view.pid()))
        .next("See what that session does (pg_stat_activity), and why its transaction stays open.");
    finding.holds_while_idle = true;
    Some(finding)
}

#[cfg(test)]
mod tests {
    use crate::analyse::{Verdict, diagnose};
    use crate::golden;

    #[test]
    fn a_session_of_postgresql_that_waits_for_a_lock_says_so() {
        let mut recording = golden::idle();
        recording.target.name = "postgres".to_string();
        recording.states.seen = 20;
        recording.states.title = Some(("postgres: shop app 10.0.0.7(5000) UPDATE waiting".to_string(), 19));
        let sentence = diagnose(&recording).sentence;
        let expected =
            "95% of the time this session of PostgreSQL waits for a lock that another session has, in UPDATE";
        assert_eq!(sentence, expected);
        recording.states.title = Some(("postgres: shop app 10.0.0.7(5000) SELECT".to_string(), 19));
        let verdict = diagnose(&recording).verdict;
        assert!(matches!(verdict, Verdict::Inconclusive { .. }), "not idle: {verdict:?}");
    }
}
