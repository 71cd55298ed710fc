//! A finding: a cause in plain words, its share of the critical thread's time, and commands to check it.

use serde::Serialize;

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Evidence {
    pub(crate) what: String,
    /// A command that shows the same.
    pub(crate) command: String,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Finding {
    pub(crate) rule: &'static str,
    /// The subject without numbers, equal for the same cause in another recording.
    pub(crate) subject: String,
    /// One sentence, without a full stop.
    pub(crate) title: String,
    /// Share of the critical thread's time; none for causes outside of it.
    pub(crate) share: Option<f64>,
    /// Half-width of the 95% interval of `share`, if it was sampled or scaled up from a part of the window.
    pub(crate) share_error: Option<f64>,
    /// The share as time per request, if the server reports how many it processes.
    pub(crate) per_request_us: Option<f64>,
    /// Upper bound of the throughput without this cause: 1.25 is a quarter more.
    pub(crate) ceiling: f64,
    /// 0 to 1.
    pub(crate) confidence: f64,
    pub(crate) evidence: Vec<Evidence>,
    pub(crate) next_step: String,
    /// Functions to mark in the flame graph.
    pub(crate) frames: Vec<String>,
    /// Clients wait for this even while the server has nothing to do.
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

    /// A cause that no thread's time measures: refused connections, a receiver that does not read.
    pub(crate) fn outside(rule: &'static str, ceiling: f64, confidence: f64, title: String) -> Finding {
        Finding { share: None, ceiling, holds_while_idle: true, ..Finding::new(rule, 0.0, confidence, title) }
    }

    /// A remark on how to read the other findings; not a cause that could be removed.
    pub(crate) fn aside(rule: &'static str, title: String) -> Finding {
        Finding { share: None, ..Finding::new(rule, 0.0, 1.0, title) }
    }

    /// Whether removing it could gain anything.
    pub(crate) fn is_cause(&self) -> bool {
        self.ceiling > 1.0
    }

    pub(crate) fn evidence(mut self, what: String, command: String) -> Finding {
        self.evidence.push(Evidence { what, command });
        self
    }

    /// Sets the errors of the inexact parts of its share.
    pub(crate) fn within(mut self, errors: &[f64]) -> Finding {
        let error = errors.iter().map(|error| error * error).sum::<f64>().sqrt();
        self.share_error = (error > 0.0).then_some(error);
        self
    }

    /// Sets the subject, for rules that may find several causes.
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
        // By gain, not by ceiling: a finding that gains nothing is last, however sure it is.
        (self.ceiling - 1.0) * self.confidence
    }
}

/// The result of a rule.
#[derive(Debug)]
pub(crate) enum Outcome {
    Found(Vec<Finding>),
    /// Examined, and not the cause; with the measured value.
    RuledOut(String),
    /// The recording does not contain the data.
    Unseen(String),
}

impl Outcome {
    /// Turns "ruled out" into "unseen" if the data was hidden.
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
