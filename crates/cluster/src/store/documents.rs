//! Keys and values as the store has them: paths below the prefix of the cluster, and JSON.
//!
//! ```text
//! /<prefix>/<cluster-name>/meta                 the format, and the identity of the cluster
//!                         /nodes/<node>         address and shard of a node
//!                         /alive/<node>         bound to the lease of the node
//!                         /shards/<shard>       epoch, primary, in-sync set, slots
//!                         /migrations/<move>    slots on the move
//! ```

use std::fmt::Display;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::{FORMAT, StoreError};
use crate::map::{Node, Shard};
use crate::slots::{SLOTS, SlotRanges};
use crate::snapshot::{Alive, Change, Key, Migration, Snapshot};

/// The value of the key `meta`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    pub format: u64,
    /// A random identity of the cluster.
    pub cluster: String,
}

/// The paths of a cluster's keys.
#[derive(Clone, Debug)]
pub struct Paths {
    root: String,
}

/// A key and a value of the store.
#[derive(Debug, PartialEq, Eq)]
pub enum Document {
    Meta(Meta),
    Change(Box<Change>),
}

impl Paths {
    /// The paths below `/<prefix>/<cluster>/`. Both are not empty, and the name of the cluster has no slash.
    pub fn new(prefix: &str, cluster: &str) -> Result<Paths, StoreError> {
        let prefix = prefix.trim_matches('/');
        if prefix.is_empty() {
            return Err(StoreError::Setting { name: "cluster-store", reason: "the prefix is empty".into() });
        }
        if cluster.is_empty() || cluster.contains('/') {
            let reason = format!("'{cluster}' is empty or has a slash");
            return Err(StoreError::Setting { name: "cluster-name", reason });
        }
        Ok(Paths { root: format!("/{prefix}/{cluster}/") })
    }

    /// The common beginning of all keys, with a slash at its end.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The end of the range of all keys.
    pub fn end(&self) -> String {
        format!("{}0", self.root.trim_end_matches('/'))
    }

    /// The path of a key.
    pub fn path(&self, key: Key) -> String {
        let root = &self.root;
        match key {
            Key::Meta => format!("{root}meta"),
            Key::Node(id) => format!("{root}nodes/{id}"),
            Key::Alive(id) => format!("{root}alive/{id}"),
            Key::Shard(id) => format!("{root}shards/{id}"),
            Key::Migration(id) => format!("{root}migrations/{id}"),
        }
    }

    /// The key of a path.
    pub fn key(&self, path: &str) -> Result<Key, StoreError> {
        let foreign = || invalid(path, "this version does not know such a key");
        let rest = path.strip_prefix(&self.root).ok_or_else(foreign)?;
        match rest.split_once('/') {
            None if rest == "meta" => Ok(Key::Meta),
            Some(("nodes", id)) => parse(path, id).map(Key::Node),
            Some(("alive", id)) => parse(path, id).map(Key::Alive),
            Some(("shards", id)) => parse(path, id).map(Key::Shard),
            Some(("migrations", id)) => parse(path, id).map(Key::Migration),
            _ => Err(foreign()),
        }
    }

    /// Parses a key and its value.
    pub fn parse(&self, path: &str, value: &[u8]) -> Result<Document, StoreError> {
        let change = match self.key(path)? {
            Key::Meta => return self.meta(path, value).map(Document::Meta),
            Key::Node(id) => Change::Node(id, from_json::<Node>(path, value)?),
            Key::Alive(id) => Change::Alive(id, from_json::<Alive>(path, value)?),
            Key::Shard(id) => Change::Shard(id, check_shard(path, from_json(path, value)?)?),
            Key::Migration(id) => Change::Migration(id, check_migration(path, from_json(path, value)?)?),
        };
        Ok(Document::Change(Box::new(change)))
    }

    fn meta(&self, path: &str, value: &[u8]) -> Result<Meta, StoreError> {
        let meta: Meta = from_json(path, value)?;
        if meta.format != FORMAT {
            return Err(StoreError::Format { key: path.into(), found: meta.format });
        }
        Ok(meta)
    }

    /// The path and the value of a change; `None` as the value: the key is deleted.
    pub fn write(&self, change: &Change) -> (String, Option<String>) {
        let value = match change {
            Change::Node(_, value) => Some(to_json(value)),
            Change::Alive(_, value) => Some(to_json(value)),
            Change::Shard(_, value) => Some(to_json(value)),
            Change::Migration(_, value) => Some(to_json(value)),
            Change::Delete(_) => None,
        };
        (self.path(change.key()), value)
    }

    /// Checks the conditions that span keys: a slot has one owner, and names of nodes and shards exist.
    pub fn check(&self, view: &Snapshot) -> Result<(), StoreError> {
        let mut owners = vec![None; SLOTS];
        for (id, shard) in &view.shards {
            let path = self.path(Key::Shard(*id));
            for slot in shard.value.slots.iter() {
                if let Some(other) = owners[usize::from(slot)].replace(*id) {
                    let other = self.path(Key::Shard(other));
                    return Err(invalid(&path, format!("key '{other}' has slot {slot} as well")));
                }
            }
            if let Some(primary) = shard.value.primary
                && view.nodes.get(&primary).map(|node| node.value.shard) != Some(*id)
            {
                let node = self.path(Key::Node(primary));
                return Err(invalid(&path, format!("its primary is no node of the shard (key '{node}')")));
            }
        }
        self.check_migrations(view)
    }

    fn check_migrations(&self, view: &Snapshot) -> Result<(), StoreError> {
        let mut moving = SlotRanges::default();
        for (id, entry) in &view.migrations {
            let path = self.path(Key::Migration(*id));
            if moving.meets(&entry.value.slots) {
                return Err(invalid(&path, "another move has one of its slots"));
            }
            moving = moving.union(&entry.value.slots);
        }
        Ok(())
    }
}

fn check_shard(path: &str, shard: Shard) -> Result<Shard, StoreError> {
    let knows = |node| shard.in_sync.contains(node);
    if shard.primary.as_ref().is_some_and(|primary| !knows(primary)) {
        return Err(invalid(path, "the primary is not in the set in_sync"));
    }
    let mut single = shard.migrating.keys().chain(shard.importing.keys());
    if single.any(|slot| usize::from(*slot) >= SLOTS) {
        return Err(invalid(path, "a slot is above 16383"));
    }
    Ok(shard)
}

fn check_migration(path: &str, migration: Migration) -> Result<Migration, StoreError> {
    if migration.source == migration.target || migration.slots.is_empty() {
        return Err(invalid(path, "a move has slots, and two different shards"));
    }
    Ok(migration)
}

fn parse<T: FromStr<Err: Display>>(path: &str, id: &str) -> Result<T, StoreError> {
    id.parse().map_err(|error| invalid(path, error))
}

fn from_json<T: DeserializeOwned>(path: &str, value: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(value).map_err(|error| invalid(path, error))
}

pub(super) fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("these types have a form in JSON")
}

fn invalid(path: &str, reason: impl Display) -> StoreError {
    StoreError::Document { key: path.into(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use evenkeel_testkit::random;

    use super::*;
    use crate::id::{MigrationId, NodeId, ShardId};

    fn paths() -> Paths {
        Paths::new("/evenkeel/", "c1").expect("valid names")
    }

    fn changes() -> Vec<Change> {
        let (node, shard) = (NodeId::new([1; 20]), ShardId::new([2; 20]));
        let mut full = Shard { epoch: 7, primary: Some(node), slots: (5..=9).collect(), ..Shard::default() };
        full.set_members(&BTreeMap::from([(node, 3)]));
        full.migrating.insert(5, ShardId::new([4; 20]));
        let slots = (7..=8).collect();
        let target = ShardId::new([4; 20]);
        let migration =
            Migration { slots, source: shard, target, source_epoch: 1, target_epoch: 2, restarts: 0 };
        vec![
            Change::Node(node, Node { address: Default::default(), shard, is_alive: false }),
            Change::Alive(node, Alive { process: u64::MAX, lease: 1 << 62, ..Alive::default() }),
            Change::Shard(shard, full),
            Change::Migration(MigrationId::new([3; 20]), migration),
        ]
    }

    #[test]
    fn values_are_read_back() {
        for change in changes() {
            let (path, value) = paths().write(&change);
            let value = value.expect("it is no deletion");
            assert_eq!(
                paths().parse(&path, value.as_bytes()),
                Ok(Document::Change(Box::new(change))),
                "{path}: {value}"
            );
        }
    }

    #[test]
    fn damaged_values_never_panic_and_errors_name_the_key() {
        let mut random = random::printed();
        for _ in 0..20_000 {
            let change = &changes()[random.below(4)];
            let (path, value) = paths().write(change);
            let mut bytes = value.expect("it is no deletion").into_bytes();
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len());
                match random.below(3) {
                    0 => bytes[at] = random.draw() as u8,
                    1 => bytes[at] = b"0123456789,:[]{}\"-en"[random.below(20)],
                    _ => bytes.truncate(at.max(1)),
                }
            }
            if let Err(error) = paths().parse(&path, &bytes) {
                assert!(error.to_string().contains(&path), "{error}");
            }
        }
    }

    #[test]
    fn bad_values_are_refused() {
        let id = "ab".repeat(20);
        let shard = |text: &str| (format!("/evenkeel/c1/shards/{id}"), text.to_owned());
        let other = "cd".repeat(20);
        let table = [
            shard(r#"{"epoch":1,"primary":null,"slots":[[0,16384]]}"#),
            shard(r#"{"epoch":1,"primary":null,"slots":[[3,5],[4,9]]}"#),
            shard(r#"{"epoch":18446744073709551616,"primary":null,"slots":[]}"#),
            shard(&format!(r#"{{"epoch":1,"primary":"{other}","slots":[]}}"#)),
            shard(&format!(r#"{{"epoch":1,"primary":null,"slots":[],"migrating":{{"16384":"{other}"}}}}"#)),
            shard(r#"{"epoch":1,"primary":"me","slots":[]}"#),
            (format!("/evenkeel/c1/shards/{}", "AB".repeat(20)), "{}".into()),
            (format!("/evenkeel/c2/shards/{id}"), "{}".into()),
            ("/evenkeel/c1/".into(), "{}".into()),
            ("/evenkeel/c1/meta".into(), r#"{"format":1}"#.into()),
            ("/evenkeel/c1/meta".into(), r#"{"format":9,"cluster":"x"}"#.into()),
            (
                format!("/evenkeel/c1/migrations/{id}"),
                format!(
                    r#"{{"slots":[[1,1]],"source":"{id}","target":"{id}","source_epoch":1,"target_epoch":1}}"#
                ),
            ),
        ];
        for (path, value) in table {
            let error = paths().parse(&path, value.as_bytes()).expect_err(&value);
            assert!(error.to_string().contains(&path), "{error}");
        }
    }

    #[test]
    fn names_that_would_leave_the_prefix_are_refused() {
        for (prefix, cluster) in [("", "c"), ("/", "c"), ("p", ""), ("p", "a/b")] {
            assert!(matches!(Paths::new(prefix, cluster), Err(StoreError::Setting { .. })));
        }
        assert_eq!((paths().root(), paths().end().as_str()), ("/evenkeel/c1/", "/evenkeel/c10"));
    }

    #[test]
    fn a_slot_has_one_owner_and_a_primary_is_a_node_of_its_shard() {
        let (node, shard) = (NodeId::new([1; 20]), ShardId::new([2; 20]));
        let mut view = Snapshot::default();
        changes().into_iter().for_each(|change| view.apply(1, change));
        assert_eq!(paths().check(&view), Ok(()));
        let mut moved = view.clone();
        let moved_node = Node { address: Default::default(), shard: ShardId::new([9; 20]), is_alive: false };
        moved.apply(2, Change::Node(node, moved_node));
        let error = paths().check(&moved).expect_err("the primary is a node of another shard");
        assert!(error.to_string().contains(&shard.to_string()), "{error}");
        let other = ShardId::new([8; 20]);
        view.apply(2, Change::Shard(other, Shard { slots: (9..=9).collect(), ..Shard::default() }));
        let error = paths().check(&view).expect_err("two shards have the slot").to_string();
        assert!(error.contains(&shard.to_string()) && error.contains(&other.to_string()), "{error}");
    }
}
