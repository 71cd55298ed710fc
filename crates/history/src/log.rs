//! Events and incidents, in the order of their times.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::incident::Incident;

/// Bound of the number of events and of incidents.
const KEPT_MAX: usize = 4_096;

/// Steady incidents that follow each other within this time are a single incident.
const GAP_MS: u64 = 2_500;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    Start,
    Snapshot,
    Rewrite,
    FullSync,
    Role,
    Config,
}

/// Something that an operator or the server has begun; not a fault by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its end.
    pub at_ms: u64,
    pub lasted_us: Option<u64>,
    pub kind: EventKind,
    pub text: String,
}

/// The events and incidents; see the module's text.
#[derive(Debug, Default)]
pub struct Log {
    events: VecDeque<Event>,
    incidents: VecDeque<Incident>,
}

impl Log {
    pub fn push_event(&mut self, event: Event) {
        if self.events.len() == KEPT_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Adds an incident, or extends the last one of the same cause, if it goes on.
    pub fn push_incident(&mut self, incident: Incident) {
        let is_same = |before: &&mut Incident| {
            before.rule == incident.rule
                && before.subject == incident.subject
                && incident.start_ms() <= before.at_ms + GAP_MS
        };
        if incident.rule.is_steady()
            && let Some(before) = self.incidents.iter_mut().rev().take(16).find(is_same)
        {
            return before.extend(incident);
        }
        if self.incidents.len() == KEPT_MAX {
            self.incidents.pop_front();
        }
        self.incidents.push_back(incident);
    }

    /// Returns the events that end in a span.
    pub fn events(&self, from_ms: u64, to_ms: u64) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |event| event.at_ms > from_ms && event.at_ms <= to_ms)
    }

    /// Returns the incidents that overlap a span.
    pub fn incidents(&self, from_ms: u64, to_ms: u64) -> impl Iterator<Item = &Incident> {
        self.incidents.iter().filter(move |incident| incident.at_ms > from_ms && incident.start_ms() <= to_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incident::Rule;

    fn incident(rule: Rule, at_ms: u64) -> Incident {
        Incident::new(rule, "x", String::new()).lasted(at_ms, 1_000_000)
    }

    #[test]
    fn what_goes_on_is_a_single_incident() {
        let mut log = Log::default();
        (1..=5).for_each(|second| log.push_incident(incident(Rule::Saturated, second * 1_000)));
        log.push_incident(incident(Rule::Saturated, 60_000));
        let found: Vec<_> = log.incidents(0, u64::MAX).map(|one| (one.at_ms, one.sum_us)).collect();
        assert_eq!(found, [(5_000, 5_000_000), (60_000, 1_000_000)]);
        let mut log = Log::default();
        (1..=5).for_each(|second| log.push_incident(incident(Rule::SlowCommand, second * 1_000)));
        assert_eq!(log.incidents(0, u64::MAX).count(), 5);
        assert_eq!(log.incidents(2_500, 4_000).count(), 3, "it overlaps");
    }

    #[test]
    fn the_number_is_bounded() {
        let mut log = Log::default();
        for at_ms in 0..10_000 {
            log.push_incident(incident(Rule::SlowCommand, at_ms));
            log.push_event(Event { at_ms, lasted_us: None, kind: EventKind::Config, text: String::new() });
        }
        assert_eq!((log.incidents.len(), log.events.len()), (KEPT_MAX, KEPT_MAX));
    }
}
