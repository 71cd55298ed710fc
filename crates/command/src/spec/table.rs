//! The table of all commands, and the look-up by name that every request makes.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use crate::{Args, Spec};

/// A command's number: its index in [`Table::rows`] and in every worker's statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id(u16);

impl Id {
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Names of up to this many bytes are found by a single comparison.
const SHORT: usize = 15;
const BUCKETS: usize = 2048;
const _: () = assert!(BUCKETS.is_power_of_two());

/// All commands and subcommands.
pub struct Table {
    rows: Vec<&'static Spec>,
    /// Open addressing over short names of commands, not subcommands.
    short: Box<[(u128, u16); BUCKETS]>,
    /// Long names, and subcommands as `CONTAINER|SUB`.
    long: HashMap<Vec<u8>, u16>,
}

static TABLE: OnceLock<Table> = OnceLock::new();

/// The table of all commands under their original names.
///
/// # Panics
/// If it has not been installed.
#[inline]
pub fn table() -> &'static Table {
    TABLE.get().expect("the server installs the commands before it runs any")
}

/// Installs the rows, unless that was done before. Subcommands come behind their container.
pub fn install(rows: impl FnOnce() -> Vec<&'static Spec>) -> &'static Table {
    TABLE.get_or_init(|| Table::new(rows(), &[]))
}

/// Returns the same rows under the names that `rename-command` gives them: pairs of a name and its
/// replacement, which may be empty. To be called once per process: the table is never freed.
pub fn renamed(renames: &[(Vec<u8>, Vec<u8>)]) -> &'static Table {
    if renames.is_empty() {
        return table();
    }
    Box::leak(Box::new(Table::new(table().rows.clone(), renames)))
}

impl Table {
    fn new(rows: Vec<&'static Spec>, renames: &[(Vec<u8>, Vec<u8>)]) -> Table {
        let (mut names, mut long) = (BTreeMap::new(), HashMap::new());
        for (at, spec) in rows.iter().enumerate() {
            let name = spec.name.as_bytes().to_vec();
            let before = match spec.name.contains('|') {
                true => long.insert(name, at as u16),
                false => names.insert(name, at as u16),
            };
            assert!(before.is_none(), "two commands named {}", spec.name);
        }
        let mut table = Table { rows, short: vec![(0, 0); BUCKETS].try_into().expect("as many"), long };
        for (old, new) in renames {
            // In the order of the file: a later line may rename the result of an earlier line.
            if let Some(id) = names.remove(&old.to_ascii_uppercase())
                && !new.is_empty()
            {
                names.insert(new.to_ascii_uppercase(), id);
            }
        }
        assert!(names.len() < BUCKETS / 2, "the table of names is at most half full");
        for (name, id) in names {
            table.add_name(name, id);
        }
        table
    }

    fn add_name(&mut self, name: Vec<u8>, id: u16) {
        let Some(packed) = pack(&name) else {
            self.long.insert(name, id);
            return;
        };
        let mut bucket = bucket_of(packed);
        while self.short[bucket].0 != 0 {
            bucket = (bucket + 1) % BUCKETS;
        }
        self.short[bucket] = (packed, id);
    }

    /// All rows, by their numbers.
    pub fn rows(&self) -> &[&'static Spec] {
        &self.rows
    }

    /// The subcommands of a container.
    pub fn subcommands(&self, container: &Spec) -> &[&'static Spec] {
        let first = self.rows.iter().position(|spec| std::ptr::eq(*spec, container)).map_or(0, |at| at + 1);
        &self.rows[first..first + container.subcommands]
    }

    /// The numbers of all rows.
    pub fn ids(&self) -> impl Iterator<Item = Id> + use<> {
        (0..self.rows.len() as u16).map(Id)
    }

    #[inline]
    pub fn row(&self, id: Id) -> &'static Spec {
        self.rows[id.index()]
    }

    /// Returns the command of this name, in any case.
    #[inline]
    pub fn find(&self, name: &[u8]) -> Option<Id> {
        let Some(packed) = pack(name) else { return self.find_long(name) };
        let mut bucket = bucket_of(packed);
        loop {
            let (found, id) = self.short[bucket];
            // Checked first: the empty name looks like an empty bucket.
            if found == 0 {
                return None;
            }
            if found == packed {
                return Some(Id(id));
            }
            bucket = (bucket + 1) % BUCKETS;
        }
    }

    #[cold]
    fn find_long(&self, name: &[u8]) -> Option<Id> {
        if name.contains(&b'|') {
            return None;
        }
        self.long.get(&name.to_ascii_uppercase()).map(|id| Id(*id))
    }

    /// Returns the subcommand of a container, in any case.
    pub fn find_sub(&self, container: &Spec, name: &[u8]) -> Option<Id> {
        let name = [container.name.as_bytes(), b"|", name].concat().to_ascii_uppercase();
        self.long.get(&name).map(|id| Id(*id))
    }

    /// Returns the command of a call, or its subcommand if the command is a container.
    pub fn find_call(&self, args: &Args<'_>) -> Option<Id> {
        let id = self.find(args.at(0))?;
        match args.get(1) {
            Some(sub) if self.row(id).has_subcommands() => self.find_sub(self.row(id), sub),
            _ => Some(id),
        }
    }

    /// Returns a command or, for `container|sub`, a subcommand.
    pub fn find_full(&self, name: &[u8]) -> Option<Id> {
        match name.iter().position(|byte| *byte == b'|') {
            None => self.find(name),
            Some(bar) => self.find_sub(self.row(self.find(&name[..bar])?), &name[bar + 1..]),
        }
    }
}

/// A short name in upper case and its length, as a number; zero is the empty name. Without the length, a name
/// that ends in zero bytes would be the same number.
#[inline]
fn pack(name: &[u8]) -> Option<u128> {
    let len = name.len();
    if len > SHORT {
        return None;
    }
    // Reads that overlap: a copy of a variable length would be a call.
    let low = if let (Some(first), Some(last)) = (name.first_chunk(), name.last_chunk()) {
        u128::from(u64::from_le_bytes(*first)) | u128::from(u64::from_le_bytes(*last)) << (8 * (len - 8))
    } else if let (Some(first), Some(last)) = (name.first_chunk(), name.last_chunk()) {
        u128::from(
            u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << (8 * (len - 4)),
        )
    } else if let [first, .., last] | [first @ last] = name {
        let middle = u32::from(name[len / 2]) << (8 * (len / 2));
        u128::from(u32::from(*first) | middle | u32::from(*last) << (8 * (len - 1)))
    } else {
        0
    };
    Some(upper_case(low) | (len as u128) << 120)
}

/// Makes lower-case letters among sixteen bytes upper-case, all at once.
#[inline]
fn upper_case(bytes: u128) -> u128 {
    const EACH: u128 = u128::MAX / 0xff;
    // Without its highest bit, a byte plus one of these overflows into that bit from `a`, or from behind `z`.
    let rest = bytes & (EACH * 0x7f);
    let (from_a, behind_z) = (rest + EACH * (0x80 - 0x61), rest + EACH * (0x80 - 0x7b));
    let lower = (from_a ^ behind_z) & !bytes & (EACH * 0x80);
    bytes ^ (lower >> 2)
}

#[inline]
fn bucket_of(packed: u128) -> usize {
    let folded = (packed as u64) ^ ((packed >> 64) as u64).rotate_left(29);
    (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BUCKETS.trailing_zeros())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_packed_in_upper_case_with_their_length() {
        for len in 0..=SHORT + 1 {
            for first in 0..=255_u8 {
                let name: Vec<u8> =
                    (0..len).map(|at| first.wrapping_add((at as u8).wrapping_mul(31))).collect();
                let packed = pack(&name);
                if len > SHORT {
                    assert_eq!(packed, None);
                    continue;
                }
                let mut expected = name.to_ascii_uppercase();
                expected.resize(SHORT, 0);
                expected.push(len as u8);
                assert_eq!(packed.map(u128::to_le_bytes).map(Vec::from), Some(expected), "{name:?}");
            }
        }
    }
}
