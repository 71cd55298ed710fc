//! The introduction of a replica: PING, AUTH, REPLCONF, PSYNC, in the order of Redis' replicas.
//!
//! A primary refuses unknown requests with an error, which matters only for requests that the rest depends
//! on. A primary without PSYNC gets SYNC.

use std::sync::atomic::Ordering::Acquire;

use evenkeel_client::replica_hello::Membership;
use evenkeel_config::Settings;

use super::Replication;
use super::primary_connection::{Ended, PrimaryConnection};
use super::surplus::Branch;
use evenkeel_persist::position::{OFFSET_MAX, Position, is_id};

/// The primary's answer: the bytes that it is going to send.
#[derive(Debug)]
pub(super) enum Answer {
    /// The stream from our position on, possibly under a new name.
    Continue { id: Option<String> },
    /// A snapshot, and then the stream from this offset on.
    Full { id: String, offset: u64 },
    /// A snapshot, and then a stream whose offset is unknown.
    FullWithoutOffset,
}

/// What this server, as a node of a cluster, and its primary have said of themselves.
#[derive(Debug)]
pub(super) struct Introduced {
    pub(super) member: Membership,
    pub(super) branch: Option<Branch>,
}

/// Introduces this server. `position`: where to continue the stream, if it has one.
pub(super) fn introduce(
    replication: &Replication,
    settings: &Settings,
    conn: &mut PrimaryConnection,
    position: Option<&Position>,
    failover: bool,
) -> Result<(Answer, Option<Introduced>), Ended> {
    ping(conn)?;
    if !conn.is_predecessor {
        log_in(settings, conn)?;
    }
    announce(settings, conn, replication.link.lacks_data.load(Acquire))?;
    let introduced = match replication.members.introduction() {
        Some(introduction) => {
            let member = introduction.map_err(Ended::broken)?;
            let branch = enter(conn, &member)?;
            Some(Introduced { member, branch })
        }
        None => None,
    };
    ask(replication, conn, position, failover).map(|answer| (answer, introduced))
}

fn ping(conn: &mut PrimaryConnection) -> Result<(), Ended> {
    let answer = exchange(conn, &[b"PING"])?;
    // A primary that requires authentication first is alive as well.
    let is_alive = [&b"+"[..], b"-NOAUTH", b"-NOPERM", b"-ERR operation not permitted"];
    if !is_alive.iter().any(|start| answer.starts_with(start)) {
        return Err(Ended::Broken(format!("Error reply to PING from master: '{}'", shown(&answer))));
    }
    log::info!("Master replied to PING, replication can continue...");
    Ok(())
}

fn log_in(settings: &Settings, conn: &mut PrimaryConnection) -> Result<(), Ended> {
    let Some(words) = login(settings) else { return Ok(()) };
    let answer = exchange(conn, &words)?;
    if answer.starts_with(b"-") {
        return Err(Ended::Broken(format!("Unable to AUTH to PRIMARY: {}", shown(&answer))));
    }
    Ok(())
}

/// The AUTH command for another server, if `masterauth` is set.
pub(super) fn login(settings: &Settings) -> Option<Vec<&[u8]>> {
    let user = Some(&settings.masteruser[..]).filter(|user| !user.is_empty());
    let password = Some(&settings.masterauth[..]).filter(|password| !password.is_empty())?;
    Some([&b"AUTH"[..]].into_iter().chain(user).chain([password]).collect())
}

/// Sends our address and capabilities, and reads the answers after all of these. `only_libraries`: the
/// snapshot is to contain function libraries alone.
fn announce(settings: &Settings, conn: &mut PrimaryConnection, only_libraries: bool) -> Result<(), Ended> {
    let port = match settings.replica_announce_port {
        0 if settings.tls_replication && settings.tls_port > 0 => settings.tls_port,
        0 => settings.port,
        announced => announced,
    };
    let port = port.to_string();
    let mut announcements: Vec<Vec<&[u8]>> = vec![vec![b"REPLCONF", b"listening-port", port.as_bytes()]];
    if !settings.replica_announce_ip.is_empty() {
        announcements.push(vec![b"REPLCONF", b"ip-address", &settings.replica_announce_ip]);
    }
    announcements.push(vec![b"REPLCONF", b"capa", b"eof", b"capa", b"psync2"]);
    // Valkey adapts its snapshots to this version. Below 7.2 they would lack the deadlines of hash fields.
    announcements.push(vec![b"REPLCONF", b"version", VALKEY_VERSION]);
    if only_libraries {
        announcements.push(vec![b"REPLCONF", b"rdb-filter-only", b"functions"]);
    }
    for words in &announcements {
        conn.send_command(words)?;
    }
    for words in &announcements {
        let answer = answer(conn)?;
        if answer.starts_with(b"-") {
            let what = String::from_utf8_lossy(words[1]);
            log::info!("(Non critical) Master does not understand REPLCONF {what}: {}", shown(&answer));
        }
    }
    Ok(())
}

/// Says which node of the cluster this server is, and which primary it expects.
/// Returns where the primary has left its predecessor's history.
fn enter(conn: &mut PrimaryConnection, member: &Membership) -> Result<Option<Branch>, Ended> {
    let [epoch, incarnation] = [member.epoch, member.incarnation].map(|number| number.to_string());
    let words: [&[u8]; 9] = [
        b"REPLCONF",
        b"cluster-node",
        member.node.as_bytes(),
        b"cluster-primary",
        member.primary.as_bytes(),
        b"cluster-epoch",
        epoch.as_bytes(),
        b"cluster-incarnation",
        incarnation.as_bytes(),
    ];
    let answer = exchange(conn, &words)?;
    if answer.starts_with(b"-") {
        return Err(Ended::TooEarly(format!("The primary refuses this replica: {}", shown(&answer))));
    }
    Ok(Branch::of_reply(&answer))
}

/// The version of Valkey whose snapshots and commands are supported.
const VALKEY_VERSION: &[u8] = b"9.1.0";

fn ask(
    replication: &Replication,
    conn: &mut PrimaryConnection,
    position: Option<&Position>,
    failover: bool,
) -> Result<Answer, Ended> {
    let (id, next) = match position {
        Some(position) => (position.id.as_str(), (position.offset + 1).to_string()),
        None => ("?", "-1".to_owned()),
    };
    match position {
        Some(_) => {
            log::info!("Trying a partial resynchronization (request {id}:{next}).");
        }
        None => log::info!("Partial resynchronization not possible (no cached master)"),
    }
    let mut words: Vec<&[u8]> = vec![b"PSYNC", id.as_bytes(), next.as_bytes()];
    let mut was_asked = false;
    if failover {
        words.push(b"FAILOVER");
        was_asked = replication.failover.mark_asked();
    }
    let mut answer = exchange(conn, &words)?;
    if was_asked && is_of_a_primary(&answer) {
        log::info!("The failover target is already a master. Replicating from it.");
        words.pop();
        answer = exchange(conn, &words)?;
    }
    if let Some(rest) = answer.strip_prefix(b"+FULLRESYNC") {
        return full(rest);
    }
    if let Some(rest) = answer.strip_prefix(b"+CONTINUE") {
        return Ok(Answer::Continue { id: new_id(rest) });
    }
    if failover {
        log::warn!("The failover target replied: {}", shown(&answer));
        let is_refusal = answer.starts_with(b"-") && !was_asked;
        return Err(match is_refusal {
            true => Ended::Refused("Failover target rejected psync request".into()),
            false => Ended::broken("It is unknown whether the failover target is a master. Retrying."),
        });
    }
    if [&b"-NOMASTERLINK"[..], b"-LOADING"].iter().any(|start| answer.starts_with(start)) {
        return Err(Ended::Broken(format!(
            "Master is currently unable to PSYNC but should be in the future: {}",
            shown(&answer)
        )));
    }
    if !answer.starts_with(b"-ERR") {
        let reason = format!("Unexpected reply to PSYNC from master: {}", shown(&answer));
        return Err(Ended::Broken(reason));
    }
    log::info!("Master does not support PSYNC or is in error state (reply: {})", shown(&answer));
    log::info!("Retrying with SYNC...");
    conn.send_command(&[b"SYNC"])?;
    Ok(Answer::FullWithoutOffset)
}

/// Whether it has refused to become a primary because it is a primary.
fn is_of_a_primary(answer: &[u8]) -> bool {
    const TEXT: &[u8] = b"-ERR PSYNC FAILOVER can't be sent to a";
    answer.starts_with(TEXT)
}

/// Parses ` <id> <offset>`.
fn full(rest: &[u8]) -> Result<Answer, Ended> {
    let text = String::from_utf8_lossy(rest);
    let mut words = text.split_ascii_whitespace();
    let (id, offset) = (words.next(), words.next().and_then(|offset| offset.parse::<u64>().ok()));
    match (id, offset) {
        (Some(id), Some(offset)) if is_id(id) && offset <= OFFSET_MAX => {
            log::info!("Full resync from master: {id}:{offset}");
            Ok(Answer::Full { id: id.to_owned(), offset })
        }
        _ => Err(Ended::Broken(format!("Master replied with wrong +FULLRESYNC syntax: {}", text.trim()))),
    }
}

/// The new name of the stream, if the answer has it.
fn new_id(rest: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(rest);
    text.split_ascii_whitespace().next().filter(|id| is_id(id)).map(str::to_owned)
}

fn exchange(conn: &mut PrimaryConnection, words: &[&[u8]]) -> Result<Vec<u8>, Ended> {
    conn.send_command(words)?;
    answer(conn)
}

/// The next line that is not empty.
pub(super) fn answer(conn: &mut PrimaryConnection) -> Result<Vec<u8>, Ended> {
    loop {
        let line = conn.line()?;
        if !line.is_empty() {
            return Ok(line);
        }
    }
}

/// An answer in the form for the server log.
pub(super) fn shown(answer: &[u8]) -> String {
    const SHOWN: usize = 200;
    String::from_utf8_lossy(&answer[..answer.len().min(SHOWN)]).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replication_ids() {
        assert!(is_id(&"0a".repeat(20)) && is_id(&"zZ".repeat(20)));
        assert!(!is_id(&"0".repeat(39)) && !is_id(&"0".repeat(41)) && !is_id(&"é".repeat(20)));
        assert_eq!(new_id(b""), None);
        assert_eq!(new_id(b" abc"), None);
        assert_eq!(new_id(&[b" ", &[b'1'; 40][..]].concat()), Some("1".repeat(40)));
    }
}
