//! Reduces an episode that shows a difference to the steps that matter.
//!
//! Delta debugging (Zeller, Hildebrandt 2002) in its simple form: leave out halves, quarters, and so on down
//! to single steps, and keep a reduction if it still shows a difference at the same command. A difference at
//! another command does not count: leaving out an EXEC, for example, makes commands meet that were never
//! meant to.

use std::time::{Duration, Instant};

use super::{Difference, Episode, Step, Summary, drive};
use crate::server::Server;

/// By then the list is short enough, or the difference comes and goes.
const TIME_MAX: Duration = Duration::from_secs(40);

pub(super) fn shrink(
    subject: &Server,
    oracle: &Server,
    mut episode: Episode,
    mut difference: Difference,
) -> (Episode, Difference) {
    let deadline = Instant::now() + TIME_MAX;
    let (oracle_is, protocols) = (episode.oracle, episode.protocols);
    let culprit = episode.steps[difference.step].action.to_string();
    let attempt = |steps: &[Step]| {
        let candidate = Episode { oracle: oracle_is, protocols, steps: steps.to_vec() };
        let found = drive::run(subject, oracle, &candidate, &mut Summary::default()).err()?;
        (steps[found.step].action.to_string() == culprit).then_some(found)
    };
    episode.steps.truncate(difference.step + 1);
    let mut chunk = episode.steps.len().div_ceil(2);
    while chunk > 0 {
        let mut removed = false;
        let mut start = 0;
        while start < episode.steps.len() && Instant::now() < deadline {
            let steps = without(&episode.steps, start, chunk);
            match attempt(&steps) {
                Some(found) => {
                    episode.steps = steps;
                    episode.steps.truncate(found.step + 1);
                    difference = found;
                    removed = true;
                }
                None => start += chunk,
            }
        }
        // Single steps are tried until none can go: a removed step may have been the reason to keep another.
        chunk = if chunk == 1 && removed { 1 } else { chunk / 2 };
        if Instant::now() >= deadline {
            break;
        }
    }
    send_one_by_one(&mut episode, &mut difference, attempt);
    (episode, difference)
}

fn without(steps: &[Step], start: usize, count: usize) -> Vec<Step> {
    let end = (start + count).min(steps.len());
    [&steps[..start], &steps[end..]].concat()
}

/// Sending commands together rarely matters; where it does, the finding shows it.
fn send_one_by_one(
    episode: &mut Episode,
    difference: &mut Difference,
    attempt: impl Fn(&[Step]) -> Option<Difference>,
) {
    let mut steps = episode.steps.clone();
    steps.iter_mut().for_each(|step| step.flush = true);
    if let Some(found) = attempt(&steps) {
        (episode.steps, *difference) = (steps, found);
    }
}
