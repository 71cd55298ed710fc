//! The process's priority for the kernel's OOM killer (`oom-score-adj`).

use std::io;

use parking_lot::Mutex;

use evenkeel_config::{OomScore, Settings};

/// Exists for every process; numbers from -1000, never killed, to 1000, killed first.
const FILE: &str = "/proc/self/oom_score_adj";

/// The initial score, once it has been changed: restored when the directive is turned off.
#[derive(Default)]
pub struct Score {
    before: Mutex<Option<i64>>,
}

impl Score {
    /// Sets the score of the settings. The third of their values is for processes that save, of which there
    /// are none.
    pub fn follow(&self, settings: &Settings, is_replica: bool) -> io::Result<()> {
        let mut before = self.before.lock();
        let [primary, replica, _] = settings.oom_score_adj_values;
        let value = if is_replica { replica } else { primary };
        let (base, wanted) = match (settings.oom_score_adj, *before) {
            (OomScore::No, None) => return Ok(()),
            (OomScore::No, Some(base)) => (None, base),
            (OomScore::Absolute, known) => (Some(known.map_or_else(read, Ok)?), value),
            (OomScore::Yes | OomScore::Relative, known) => {
                let base = known.map_or_else(read, Ok)?;
                (Some(base), base + value)
            }
        };
        std::fs::write(FILE, wanted.clamp(-1000, 1000).to_string())?;
        *before = base;
        Ok(())
    }
}

fn read() -> io::Result<i64> {
    let text = std::fs::read_to_string(FILE)?;
    text.trim().parse().map_err(|_| io::Error::other("no number"))
}
