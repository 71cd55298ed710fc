//! The map as a file, in the form of Redis' nodes.conf.
//!
//! ```text
//! <id> <ip:port@bus-port[,hostname][,name=value]...> <flags> <primary|-> <ping> <pong> <epoch> <link>
//!     <slot>...
//! vars currentEpoch <epoch> lastVoteEpoch 0
//! ```
//!
//! A line per node; `myself` is among the flags of this node. A file that names further nodes is a static
//! cluster: its nodes agree since their files do. A file is read as a whole or refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::id::{NodeId, ShardId};
use crate::map::{Address, Map, Node, Shard};
use crate::slots::{SLOTS, SlotRanges};

/// Most nodes of a file.
const NODES_MAX: usize = 10_000;

/// What Redis adds to a port for the port of the cluster bus, which clients expect to see.
const BUS_OFFSET: u16 = 10_000;

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub map: Map,
    /// The node whose file it is.
    pub me: NodeId,
}

/// A line of a node.
struct Line {
    id: NodeId,
    address: Address,
    shard: Option<ShardId>,
    is_me: bool,
    is_replica: bool,
    has_failed: bool,
    primary: Option<NodeId>,
    epoch: u64,
    slots: BTreeSet<u16>,
    migrating: BTreeMap<u16, NodeId>,
    importing: BTreeMap<u16, NodeId>,
}

/// Reads a file. The map has the revision 1.
///
/// # Errors
/// The reason, with the number of the line.
pub fn read(text: &str) -> Result<Content, String> {
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let parsed = match words.first() {
            None | Some(&"vars") => continue,
            Some(_) if lines.len() == NODES_MAX => Err("there are too many nodes".to_owned()),
            Some(_) => parse_line(&words),
        };
        lines.push(parsed.map_err(|reason| format!("line {number}: {reason}"))?);
    }
    if !text.ends_with('\n') {
        return Err("the end of the last line is missing".into());
    }
    content(lines)
}

fn content(lines: Vec<Line>) -> Result<Content, String> {
    let mut mine = lines.iter().filter(|line| line.is_me);
    let me = mine.next().ok_or("no line has the flag myself")?.id;
    if mine.next().is_some() {
        return Err("two lines have the flag myself".into());
    }
    let by_id: BTreeMap<NodeId, &Line> = lines.iter().map(|line| (line.id, line)).collect();
    if by_id.len() < lines.len() {
        return Err("two lines are of the same node".into());
    }
    let (mut nodes, mut shards) = (BTreeMap::new(), BTreeMap::new());
    for line in &lines {
        let shard = shard_of(line, &by_id)?;
        let node = Node { address: line.address.clone(), shard, is_alive: !line.has_failed };
        nodes.insert(line.id, node);
        if !line.is_replica && shards.insert(shard, to_shard(line, &by_id)?).is_some() {
            return Err(format!("two primaries are of the shard {shard}"));
        }
    }
    refuse_two_owners(&lines)?;
    Ok(Content { map: Map::new(1, nodes, shards), me })
}

fn refuse_two_owners(lines: &[Line]) -> Result<(), String> {
    let mut owned = BTreeSet::new();
    for slot in lines.iter().flat_map(|line| &line.slots) {
        if !owned.insert(slot) {
            return Err(format!("two nodes own the slot {slot}"));
        }
    }
    Ok(())
}

/// Returns the shard of a line. Files of old versions do not name it: then the primary's identity stands for
/// it.
fn shard_of(line: &Line, by_id: &BTreeMap<NodeId, &Line>) -> Result<ShardId, String> {
    let own = |line: &Line| line.shard.unwrap_or_else(|| ShardId::new(line.id.bytes()));
    if !line.is_replica {
        return Ok(own(line));
    }
    let primary = line.primary.and_then(|id| by_id.get(&id)).filter(|primary| !primary.is_replica);
    let primary =
        primary.ok_or_else(|| format!("the primary of the replica {} is not in the file", line.id))?;
    Ok(own(primary))
}

fn to_shard(line: &Line, by_id: &BTreeMap<NodeId, &Line>) -> Result<Shard, String> {
    let shards = |moves: &BTreeMap<u16, NodeId>| -> Result<BTreeMap<u16, ShardId>, String> {
        let shard = |(slot, id): (&u16, &NodeId)| {
            let node =
                by_id.get(id).ok_or_else(|| format!("slot {slot} is moved to or from an unknown node"))?;
            Ok((*slot, shard_of(node, by_id)?))
        };
        moves.iter().map(shard).collect()
    };
    Ok(Shard {
        epoch: line.epoch,
        primary: Some(line.id),
        in_sync: [line.id].into(),
        slots: line.slots.iter().copied().collect(),
        migrating: shards(&line.migrating)?,
        importing: shards(&line.importing)?,
        ..Shard::default()
    })
}

fn parse_line(words: &[&str]) -> Result<Line, String> {
    let [id, address, flags, primary, _, _, epoch, _, slots @ ..] = words else {
        return Err("a node has eight fields or more".into());
    };
    let node = |text: &str| text.parse::<NodeId>().map_err(|_| format!("'{text}' is no identity of a node"));
    let (address, shard) = parse_address(address)?;
    let flags: BTreeSet<&str> = flags.split(',').collect();
    let mut line = Line {
        id: node(id)?,
        address,
        shard,
        is_me: flags.contains("myself"),
        is_replica: flags.contains("slave"),
        has_failed: flags.contains("fail"),
        primary: if *primary == "-" { None } else { Some(node(primary)?) },
        epoch: epoch.parse().map_err(|_| format!("'{epoch}' is no epoch"))?,
        slots: BTreeSet::new(),
        migrating: BTreeMap::new(),
        importing: BTreeMap::new(),
    };
    slots.iter().try_for_each(|text| add_slots(&mut line, text))?;
    if !line.is_me {
        // Only a node itself knows which of its slots are on the move.
        (line.migrating, line.importing) = (BTreeMap::new(), BTreeMap::new());
    }
    if line.is_replica && !line.slots.is_empty() {
        return Err("a replica owns slots".into());
    }
    Ok(line)
}

fn parse_address(text: &str) -> Result<(Address, Option<ShardId>), String> {
    let wrong = || format!("'{text}' is no address");
    let mut parts = text.split(',');
    let (ip, ports) = parts.next().and_then(|part| part.rsplit_once(':')).ok_or_else(wrong)?;
    let port = ports.split('@').next().and_then(|port| port.parse().ok()).ok_or_else(wrong)?;
    let mut address = Address { ip: ip.into(), port, ..Address::default() };
    let mut shard = None;
    for (index, part) in parts.enumerate() {
        let port = |value: &str| value.parse().map_err(|_| wrong());
        match part.split_once('=') {
            None if index == 0 => address.hostname = part.into(),
            None => return Err(wrong()),
            Some(("shard-id", value)) => shard = Some(value.parse().map_err(|_| wrong())?),
            Some(("nodename", value)) => address.human_name = value.into(),
            Some(("tls-port", value)) => address.tls_port = port(value)?,
            Some(("tcp-port", value)) => (address.tls_port, address.port) = (address.port, port(value)?),
            Some(("client-ipv4", value)) => address.client_ipv4 = value.into(),
            Some(("client-ipv6", value)) => address.client_ipv6 = value.into(),
            Some(("client-tcp-port", value)) => address.client_port = port(value)?,
            Some(("client-tls-port", value)) => address.client_tls_port = port(value)?,
            Some(("availability-zone", value)) => address.zone = value.into(),
            // A later version's.
            Some(_) => {}
        }
    }
    Ok((address, shard))
}

/// Reads `7`, `7-9`, `[7->-node]` or `[7-<-node]`.
fn add_slots(line: &mut Line, text: &str) -> Result<(), String> {
    let wrong = || format!("'{text}' is no slot");
    let slot =
        |text: &str| text.parse::<u16>().ok().filter(|slot| usize::from(*slot) < SLOTS).ok_or_else(wrong);
    if let Some(moved) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        let (first, id) = moved.split_once("->-").or_else(|| moved.split_once("-<-")).ok_or_else(wrong)?;
        let (slot, id) = (slot(first)?, id.parse().map_err(|_| wrong())?);
        let moves = if moved.contains("->-") { &mut line.migrating } else { &mut line.importing };
        moves.insert(slot, id);
        return Ok(());
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (slot(first)?, slot(last)?);
    if first > last {
        return Err(wrong());
    }
    line.slots.extend(first..=last);
    Ok(())
}

/// Returns the text of the file.
pub fn write(map: &Map, me: NodeId) -> String {
    let mut text = String::new();
    for (id, node) in map.nodes() {
        let address = aux(&node.address, node.shard);
        write_node(&mut text, (map, me), (*id, node), &address);
    }
    let _ = writeln!(text, "vars currentEpoch {} lastVoteEpoch 0", map.epoch()); // a `String` takes all
    text
}

/// Returns an address with all that the file keeps of it.
fn aux(address: &Address, shard: ShardId) -> String {
    let Address { ip, port, hostname, tls_port, .. } = address;
    let bus = bus_port(*port);
    let mut text = format!("{ip}:{port}@{bus},{hostname},tls-port={tls_port},shard-id={shard}");
    let words = [
        ("nodename", address.human_name.clone()),
        ("client-ipv4", address.client_ipv4.clone()),
        ("client-ipv6", address.client_ipv6.clone()),
        ("client-tcp-port", number(address.client_port)),
        ("client-tls-port", number(address.client_tls_port)),
        ("availability-zone", address.zone.clone()),
    ];
    for (name, value) in words.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = write!(text, ",{name}={value}");
    }
    text
}

fn number(port: u16) -> String {
    if port == 0 { String::new() } else { port.to_string() }
}

/// Returns the port of the cluster bus that belongs to a port, as far as there are ports.
pub fn bus_port(port: u16) -> u16 {
    port.checked_add(BUS_OFFSET).unwrap_or(0)
}

/// Writes the line of a node, as in the file and in CLUSTER NODES.
pub fn write_node(text: &mut String, (map, me): (&Map, NodeId), (id, node): (NodeId, &Node), address: &str) {
    let shard = map.shard(node.shard);
    let primary = shard.and_then(|shard| shard.primary).filter(|primary| *primary != id);
    let role = if primary.is_some() { "slave" } else { "master" };
    let (mine, failed) = (if id == me { "myself," } else { "" }, if node.is_alive { "" } else { ",fail" });
    let epoch = shard.map_or(0, |shard| shard.epoch);
    let link = if node.is_alive { "connected" } else { "disconnected" };
    let no_failover = if node.address.no_failover { ",nofailover" } else { "" };
    let _ = write!(text, "{id} {address} {mine}{role}{failed}{no_failover} ");
    let _ = match primary {
        Some(primary) => write!(text, "{primary}"),
        None => write!(text, "-"),
    };
    let _ = write!(text, " 0 0 {epoch} {link}");
    if let Some(shard) = shard.filter(|_| primary.is_none()) {
        write_slots(text, &shard.slots);
    }
    if let Some(shard) = shard.filter(|_| id == me) {
        write_moves(text, map, shard);
    }
    text.push('\n');
}

fn write_slots(text: &mut String, slots: &SlotRanges) {
    for range in slots.ranges() {
        let (first, last) = (range.start(), range.end());
        let _ = if first == last { write!(text, " {first}") } else { write!(text, " {first}-{last}") };
    }
}

fn write_moves(text: &mut String, map: &Map, shard: &Shard) {
    let primary = |id: &ShardId| map.shard(*id).and_then(|shard| shard.primary);
    let to = shard.migrating.iter().map(|(slot, id)| (slot, "->-", id));
    let from = shard.importing.iter().map(|(slot, id)| (slot, "-<-", id));
    for (slot, arrow, id) in to.chain(from) {
        if let Some(node) = primary(id) {
            let _ = write!(text, " [{slot}{arrow}{node}]");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "0101010101010101010101010101010101010101";
    const TWO: &str = "0202020202020202020202020202020202020202";
    const THREE: &str = "0303030303030303030303030303030303030303";

    fn file() -> String {
        format!(
            "{ONE} 10.0.0.1:1@10001,host,tls-port=5,nodename=n,shard-id={THREE},availability-zone=z \
             myself,master - 0 0 3 connected 0-5 7 [7->-{TWO}] [9-<-{TWO}]\n\
             {TWO} ::1:2@10002 master - 0 0 4 connected 8-16383\n\
             {THREE} 10.0.0.3:3@10003 slave {TWO} 0 0 4 connected\n\
             vars currentEpoch 4 lastVoteEpoch 0\n"
        )
    }

    #[test]
    fn a_file_is_read_back() {
        let Content { map, me } = read(&file()).expect("a good file");
        assert_eq!(me.to_string(), ONE);
        let own = map.node(me).expect("this node");
        let address = &own.address;
        let names = (address.ip.as_str(), address.hostname.as_str(), address.human_name.as_str());
        assert_eq!((names, address.port, address.tls_port), (("10.0.0.1", "host", "n"), 1, 5));
        assert_eq!(address.zone, "z");
        assert_eq!((own.shard.to_string().as_str(), map.nodes().len(), map.epoch()), (THREE, 3, 4));
        let shard = map.shard(own.shard).expect("its shard");
        assert_eq!((shard.slots.len(), shard.migrating.len(), shard.importing.len()), (7, 1, 1));
        let other: NodeId = TWO.parse().expect("an identity");
        let other = map.node(other).expect("another node");
        assert_eq!(other.address.ip, "::1");
        assert_eq!(map.members(other.shard).count(), 2);
        let again = read(&write(&map, me)).expect("its own file");
        assert_eq!((again.map, again.me), (map, me));
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let file = file();
        for (old, new, reason) in [
            ("myself,", "", "no line has the flag myself"),
            (" master", " myself,master", "two lines have the flag myself"),
            (TWO, "0202", "line 1: "),
            ("0-5", "0-16384", "line 1: '0-16384' is no slot"),
            ("0-5", "5-0", "line 1: '5-0' is no slot"),
            ("8-16383", "7-16383", "two nodes own the slot 7"),
            (":1@", ":x@", "line 1: "),
            (" 4 connected", "", "line 2: a node has eight fields or more"),
            ("[7->-02", "[7->-0f", "slot 7 is moved to or from an unknown node"),
            (&format!("slave {TWO}"), &format!("slave {THREE}"), "the primary of the replica"),
            ("connected\n", "connected 6\n", "line 3: a replica owns slots"),
            (" Epoch 0\n", "", ""),
        ] {
            let changed = file.replacen(old, new, 1);
            match read(&changed) {
                Err(found) => assert!(found.starts_with(reason), "{new}: {found}"),
                Ok(_) => assert!(reason.is_empty(), "{new} was read"),
            }
        }
        assert!(read(&file[..file.len() - 1]).is_err_and(|reason| reason.contains("last line")));
        assert!(read("").is_err());
    }

    /// Whatever bytes a file has, reading it neither panics nor takes long.
    #[test]
    fn no_file_panics() {
        let file = file();
        for at in (0..file.len()).step_by(11) {
            let _ = read(&file[..at]);
            for byte in ["\0", "\n", " ", "-", "[", "]", ",", "9", "é"] {
                let _ = read(&format!("{}{byte}{}", &file[..at], &file[at + 1..]));
            }
        }
    }
}
