use super::*;

/// Against the definition in full: for each removal, a search among all earlier and later events.
#[test]
fn removals_are_found_in_one_pass() {
    let mut random = evenkeel_testkit::random::printed();
    for _ in 0..2_000 {
        let event = |random: &mut evenkeel_testkit::Random| Event {
            db: random.below(2) as u32,
            key: vec![b'a' + random.below(3) as u8].into(),
            what: [What::Removed, What::Removed, What::Added, What::Expired, What::Evicted, What::Written]
                [random.below(6)],
            fields: Fields::default(),
            by: 1,
        };
        let count = random.below(12);
        let events: Vec<Event> = (0..count).map(|_| event(&mut random)).collect();
        let is_same = |one: &Event, other: &Event| one.db == other.db && one.key == other.key;
        let is_lost = |what| matches!(what, What::Expired | What::AllFieldsExpired | What::Evicted);
        let expected: Vec<bool> = (0..count)
            .map(|at| {
                let event = &events[at];
                let last = events[..at].iter().rfind(|other| is_same(event, other));
                let is_added_again =
                    events[at..].iter().any(|other| is_same(event, other) && other.what == What::Added);
                event.what == What::Removed && !last.is_some_and(|last| is_lost(last.what)) && !is_added_again
            })
            .collect();
        assert_eq!(removals(&events), expected, "{events:?}");
    }
}
