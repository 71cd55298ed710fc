//! The identity of a node with a store, in `cluster-config-file`.
//!
//! The file has the form that it has without a store, with this node alone and without slots: the map is in
//! the store. The line `vars` has two further words, `cluster` and `incarnation`.

use std::path::Path;

use evenkeel_cluster::{Address, Map, Node, NodeId, Shard, ShardId, nodes_file};

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) me: NodeId,
    /// The shard that the node founds when the map does not have the node.
    pub(super) shard: ShardId,
    /// The address of the last map.
    pub(super) address: Address,
    /// The identity of the cluster that the node belongs to; empty: it does not know one.
    pub(super) cluster: String,
    /// The number of the node's data; see [`evenkeel_cluster::Alive::incarnation`].
    pub(super) incarnation: u64,
}

impl Identity {
    /// Reads a text.
    ///
    /// # Errors
    /// The reason, with the number of the line.
    pub(super) fn read(text: &str) -> Result<Identity, String> {
        let nodes_file::Content { map, me } = nodes_file::read(text)?;
        let node = map.node(me).ok_or("no line has the flag myself")?;
        let vars = text.lines().find(|line| line.starts_with("vars ")).unwrap_or_default();
        let words: Vec<&str> = vars.split_ascii_whitespace().skip(1).collect();
        let value = |name: &str| words.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| pair[1]);
        let incarnation = value("incarnation").map_or(Ok(0), str::parse);
        Ok(Identity {
            me,
            shard: node.shard,
            address: node.address.clone(),
            cluster: value("cluster").unwrap_or_default().into(),
            incarnation: incarnation.map_err(|_| "the incarnation in the line vars is no number")?,
        })
    }

    /// Returns the text of the file.
    pub(super) fn text(&self) -> String {
        let text = nodes_file::write(&self.map(), self.me);
        let cluster =
            if self.cluster.is_empty() { String::new() } else { format!(" cluster {}", self.cluster) };
        format!("{}{cluster} incarnation {}\n", text.trim_end(), self.incarnation)
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The reason why the file cannot be written.
    pub(super) fn write(&self, path: &Path) -> Result<(), String> {
        evenkeel_config::replace_file(path, self.text().as_bytes()).map_err(|error| {
            log::warn!("Error writing {}: {error}", path.display());
            format!("error saving the cluster node config: {}", evenkeel_config::cause(&error))
        })
    }

    /// The map before the store has shown one: this node alone, without slots.
    pub(super) fn map(&self) -> Map {
        let node = Node { address: self.address.clone(), shard: self.shard, is_alive: true };
        let own = Shard { primary: Some(self.me), in_sync: [self.me].into(), ..Shard::default() };
        Map::new(1, [(self.me, node)].into(), [(self.shard, own)].into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_identity_is_read() {
        let mut identity = Identity {
            me: NodeId::new([1; 20]),
            shard: ShardId::new([2; 20]),
            address: Address { ip: "10.0.0.1".into(), port: 7, ..Address::default() },
            cluster: "abc".into(),
            incarnation: 9,
        };
        assert_eq!(Identity::read(&identity.text()), Ok(identity.clone()));
        identity.cluster.clear();
        assert_eq!(Identity::read(&identity.text()), Ok(identity.clone()));
        // A node without a store reads the file as well: it owns no slots then.
        let alone = nodes_file::read(&identity.text()).expect("the same form");
        assert_eq!((alone.me, alone.map.assigned()), (identity.me, 0));
        let damaged = identity.text().replace("incarnation 9", "incarnation x");
        assert!(Identity::read(&damaged).is_err());
    }
}
