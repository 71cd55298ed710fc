//! A finding: a cause in plain words, how much of the critical thread's time it takes, and how anybody can check it.

use serde::Serialize;

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Evidence {
    pub(crate) what: String,
    /// What shows the same by hand.
    pub(crate) command: String,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Finding {
    pub(crate) rule: &'static str,
    /// What it is about, without figures: the same cause in another recording has the same.
    pub(crate) subject: String,
    /// One sentence, without a full stop.
    pub(crate) title: String,
    /// Of the critical thread's time; none for causes outside of it.
    pub(crate) share: Option<f64>,
    /// By how much that may be wrong either way, once in twenty more: it was sampled, or scaled up from a part of the window.
    pub(crate) share_error: Option<f64>,
    /// The share as time for each request, where the server says how many it processes.
    pub(crate) per_request_us: Option<f64>,
    /// What throughput could become, at most, if it were mended: 1.25 is a quarter more.
    pub(crate) ceiling: f64,
    /// 0 to 1.
    pub(crate) confidence: f64,
    pub(crate) evidence: Vec<Evidence>,
    pub(crate) next_step: String,
    /// Names of functions, for the flame graph to point at.
    pub(crate) frames: Vec<String>,
    /// It keeps clients waiting also while the server has nothing to do.
    pub(crate) holds_while_idle: bool,
}

impl Finding {
    /// A cause that takes `share` of the critical thread's time.
    pub(crate) fn new(rule: &'static str, share: f64, confidence: f64, title: String) -> Finding {
        let share = share.clamp(0.0, 0.99);
        Finding {
            rule,
            subject: String::new(),
            title,
            share: Some(share),
            share_error: None,
            per_request_us: None,
            ceiling: 1.0 / (1.0 - share),
            confidence,
            evidence: Vec::new(),
            next_step: String::new(),
            frames: Vec::new(),
            holds_while_idle: false,
        }
    }

    /// A cause that no time of a thread measures: connections that are refused, a peer that does not read.
    pub(crate) fn outside(rule: &'static str, ceiling: f64, confidence: f64, title: String) -> Finding {
        Finding { share: None, ceiling, holds_while_idle: true, ..Finding::new(rule, 0.0, confidence, title) }
    }

    /// Nothing that could be mended in the server: what the other findings are to be read with.
    pub(crate) fn aside(rule: &'static str, title: String) -> Finding {
        Finding { share: None, ..Finding::new(rule, 0.0, 1.0, title) }
    }

    /// Whether anything could be gained.
    pub(crate) fn is_cause(&self) -> bool {
        self.ceiling > 1.0
    }

    pub(crate) fn evidence(mut self, what: String, command: String) -> Finding {
        self.evidence.push(Evidence { what, command });
        self
    }

    /// Errors of the parts of its share that are not exact.
    pub(crate) fn within(mut self, errors: &[f64]) -> Finding {
        let error = errors.iter().map(|error| error * error).sum::<f64>().sqrt();
        self.share_error = (error > 0.0).then_some(error);
        self
    }

    /// For rules that may find several causes.
    pub(crate) fn about(mut self, subject: impl Into<String>) -> Finding {
        self.subject = subject.into();
        self
    }

    pub(crate) fn next(mut self, step: &str) -> Finding {
        self.next_step = step.to_string();
        self
    }

    pub(crate) fn frames(mut self, frames: impl IntoIterator<Item = String>) -> Finding {
        self.frames = frames.into_iter().collect();
        self
    }

    pub(crate) fn rank(&self) -> f64 {
        // The gain, not the ceiling: a cause that gains nothing is last, however sure it is.
        (self.ceiling - 1.0) * self.confidence
    }
}

/// What a rule says.
#[derive(Debug)]
pub(crate) enum Outcome {
    Found(Vec<Finding>),
    /// Looked, and it is not the cause; with the figure.
    RuledOut(String),
    /// This recording does not show it.
    Unseen(String),
}

impl Outcome {
    /// What was not to be seen is not ruled out.
    pub(crate) fn if_shown(self, hidden: Option<String>) -> Outcome {
        match (self, hidden) {
            (Outcome::RuledOut(_), Some(why)) => Outcome::Unseen(why),
            (outcome, _) => outcome,
        }
    }

    /// The findings, or the sentence if there are none.
    pub(crate) fn found_or(found: Vec<Finding>, otherwise: impl FnOnce() -> String) -> Outcome {
        if found.is_empty() { Outcome::RuledOut(otherwise()) } else { Outcome::Found(found) }
    }
}
