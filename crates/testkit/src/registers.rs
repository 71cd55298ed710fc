//! Histories of registers that several clients read and write at the same time, and whether they are
//! linearizable: each operation seems to happen at one moment between its beginning and its end.
//!
//! Every value is written once, so each read names its write, and the question can be answered without a
//! search (Gibbons and Korach, 1997). The operations on a value, its write and its reads, have a *zone*:
//! between the first end and the last beginning of any of them. If the first end comes first, the
//! register has the value throughout the zone. So no two such zones overlap. If not, all operations
//! overlap each other, and the register has the value at some moment of the zone: the zone is not inside
//! one of the others.

use std::collections::BTreeMap;

/// An operation on a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Times on one clock, which begins at 1.
    pub begun: u64,
    /// `None`: its end is unknown, and it may take effect at any time after its beginning, or never.
    pub ended: Option<u64>,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Each value is written once.
    Write(u64),
    /// The value that was read; `None`: there was none.
    Read(Option<u64>),
}

/// The operations on a value.
#[derive(Clone, Copy, Debug)]
struct Zone {
    value: Option<u64>,
    first_end: u64,
    last_beginning: u64,
}

impl Zone {
    /// The register has the value from the first end to the last beginning.
    fn is_forward(&self) -> bool {
        self.first_end < self.last_beginning
    }
}

/// Checks that a history of a register that begins without a value is linearizable.
///
/// # Errors
/// The violation, with the values that are concerned.
pub fn check(operations: &[Operation]) -> Result<(), String> {
    let mut zones: Vec<Zone> = zones(operations)?.into_values().collect();
    zones.sort_unstable_by_key(|zone| zone.first_end.min(zone.last_beginning));
    let forward: Vec<Zone> = zones.iter().copied().filter(Zone::is_forward).collect();
    for pair in forward.windows(2) {
        if pair[1].first_end < pair[0].last_beginning {
            return Err(format!("the register has two values at a time: {pair:?}"));
        }
    }
    for zone in zones.iter().filter(|zone| !zone.is_forward()) {
        // Only the last forward zone that begins before this zone may have this zone inside.
        let before = forward.partition_point(|other| other.first_end < zone.last_beginning);
        if let Some(other) = before.checked_sub(1).map(|last| &forward[last])
            && zone.first_end < other.last_beginning
        {
            return Err(format!("{zone:?} is inside {other:?}"));
        }
    }
    Ok(())
}

/// The zones of all values that the register has had for certain.
fn zones(operations: &[Operation]) -> Result<BTreeMap<Option<u64>, Zone>, String> {
    // The register has no value before all operations.
    let none = Zone { value: None, first_end: 0, last_beginning: 0 };
    let mut zones = BTreeMap::from([(None, none)]);
    for operation in operations {
        let Kind::Write(value) = operation.kind else { continue };
        let first_end = operation.ended.unwrap_or(u64::MAX);
        let zone = Zone { value: Some(value), first_end, last_beginning: operation.begun };
        if zones.insert(Some(value), zone).is_some() {
            return Err(format!("{value} is written twice"));
        }
    }
    let begun: BTreeMap<Option<u64>, u64> =
        zones.values().map(|zone| (zone.value, zone.last_beginning)).collect();
    for Operation { begun: beginning, ended, kind } in operations {
        let (Kind::Read(value), Some(ended)) = (kind, ended) else { continue };
        let Some(zone) = zones.get_mut(value) else {
            return Err(format!("{value:?} was read, and nobody wrote it"));
        };
        if *ended < begun[value] {
            return Err(format!("{value:?} was read before it was written"));
        }
        zone.first_end = zone.first_end.min(*ended);
        zone.last_beginning = zone.last_beginning.max(*beginning);
    }
    // A write without an end, which nobody has seen, need not have happened.
    zones.retain(|_, zone| zone.first_end < u64::MAX);
    Ok(zones)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    fn op(begun: u64, ended: u64, kind: Kind) -> Operation {
        Operation { begun, ended: (ended > 0).then_some(ended), kind }
    }

    fn is_fine(operations: &[Operation]) -> bool {
        check(operations).is_ok()
    }

    #[test]
    fn short_histories() {
        use Kind::{Read, Write};
        assert!(is_fine(&[]));
        assert!(is_fine(&[op(1, 2, Write(1)), op(3, 4, Read(Some(1)))]));
        assert!(!is_fine(&[op(1, 2, Write(1)), op(3, 4, Read(None))]), "a lost write");
        // Reads that overlap a write see either, but not the old value after the new one.
        let overlapping =
            |first, second| is_fine(&[op(1, 9, Write(1)), op(2, 3, Read(first)), op(4, 5, Read(second))]);
        assert!(overlapping(None, Some(1)) && overlapping(None, None) && overlapping(Some(1), Some(1)));
        assert!(!overlapping(Some(1), None));
        // A write without a known end may take effect late, or never, but not before its beginning.
        assert!(is_fine(&[op(1, 0, Write(1)), op(5, 6, Read(None)), op(7, 8, Read(Some(1)))]));
        assert!(is_fine(&[op(1, 0, Write(1)), op(5, 6, Read(None))]));
        assert!(!is_fine(&[op(1, 2, Read(Some(1))), op(3, 0, Write(1))]));
        assert!(!is_fine(&[
            op(1, 0, Write(1)),
            op(2, 3, Write(2)),
            op(4, 5, Read(Some(1))),
            op(6, 7, Read(Some(2)))
        ]));
    }

    /// Histories of a real register, in which one value is then changed.
    #[test]
    fn long_histories() {
        let seed = crate::random::fresh_seed();
        println!("EVENKEEL_SEED={seed}");
        let mut random = Random::new(seed);
        for _ in 0..50 {
            let (mut value, mut first, mut now, mut operations) = (None, None, 100, Vec::new());
            for number in 0..400 {
                // It takes effect at `now`, and overlaps its neighbours.
                now += 10;
                let (begun, ended) = (now - random.below(25) as u64, now + random.below(25) as u64);
                let kind = if random.chance(40) {
                    value = Some(number);
                    Kind::Write(number)
                } else {
                    Kind::Read(value)
                };
                let is_cut = random.chance(3) && matches!(kind, Kind::Write(_));
                // A write without a known end may take effect at any time later: its value may come back.
                let ended = if is_cut { 0 } else { ended };
                if matches!(kind, Kind::Write(_)) && !is_cut {
                    first = first.or(value);
                }
                operations.push(op(begun, ended, kind));
            }
            assert!(check(&operations).is_ok());
            let last = operations.iter().rposition(|one| matches!(one.kind, Kind::Read(Some(_))));
            if let Some(last) = last {
                operations[last].kind = Kind::Read(Some(1_000));
                assert!(check(&operations).is_err(), "a value that nobody wrote");
                // The first value comes back long after it was replaced.
                operations[last].kind = Kind::Read(Some(first.expect("there are writes")));
                assert!(check(&operations).is_err(), "an old value");
            }
        }
    }
}
