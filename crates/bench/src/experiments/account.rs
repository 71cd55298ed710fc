//! The workers' own statistics in Evenkeel: the fields of INFO workers, summed over all workers.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::lanes::Lane;
use crate::servers::ask;

/// Counts, and microseconds of stages. Two accounts can be subtracted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Account(BTreeMap<String, f64>);

impl Account {
    pub(super) fn of(lane: &Lane) -> Result<Self> {
        let info = ask(lane.server.address, &["INFO", "workers"])?;
        Self::read(&info).context("INFO workers is of another form")
    }

    fn read(info: &str) -> Option<Self> {
        let mut sums = BTreeMap::new();
        for line in info.lines().filter(|line| line.starts_with("worker")) {
            for (name, value) in line.split_once(':')?.1.split(',').filter_map(|field| field.split_once('='))
            {
                *sums.entry(name.to_owned()).or_default() += value.trim().parse::<f64>().ok()?;
            }
        }
        (!sums.is_empty()).then_some(Self(sums))
    }

    /// Returns a field, or 0 if it is missing.
    pub(super) fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(0.0)
    }

    /// Returns the microseconds of all stages but idle.
    pub(super) fn busy_us(&self) -> f64 {
        let is_busy = |name: &str| name.ends_with("_usec") && name != "idle_usec";
        self.0.iter().filter(|(name, _)| is_busy(name)).map(|(_, us)| us).sum()
    }

    pub(super) fn since(&self, before: &Self) -> Self {
        let difference = |(name, now): (&String, &f64)| (name.clone(), now - before.get(name));
        Self(self.0.iter().map(difference).collect())
    }

    pub(super) fn add(&mut self, more: &Self) {
        more.0.iter().for_each(|(name, value)| *self.0.entry(name.clone()).or_default() += value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_summed_over_the_workers() {
        let info = "$99\r\n# Workers\r\nworker0:connections=3,busy=0.5,commands=10,\
        read_usec=20,lock_wait_usec=3,idle_usec=500\r\n\
             worker1:connections=0,busy=0.000,commands=5,read_usec=7,lock_wait_usec=0,idle_usec=900\r\n";
        let account = Account::read(info).expect("two workers");
        let [commands, waited] = ["commands", "lock_wait_usec"].map(|name| account.get(name));
        assert_eq!((commands, waited, account.busy_us()), (15.0, 3.0, 30.0));
        assert_eq!(account.since(&account).busy_us(), 0.0);
        let mut twice = account.clone();
        twice.add(&account);
        assert_eq!(twice.since(&account), account);
        assert_eq!(Account::read("# Workers\r\n"), None);
        assert_eq!(Account::read("worker0:commands=x\r\n"), None);
    }
}
