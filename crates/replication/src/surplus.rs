//! The writes that a former primary has and its successor lacks: nobody has acknowledged them for all
//! nodes in sync. A full synchronization drops them, so they are written to a file first.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use super::Replication;
use super::Stream;
use evenkeel_client::replica_hello::Membership;
use evenkeel_persist::position::Position;

/// Bytes written while the stream is locked.
const PIECE: usize = 1 << 20;

/// Where a primary has left its predecessor's history: the name of the history, and the number of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Branch {
    pub(super) id: String,
    pub(super) bytes: u64,
}

impl Branch {
    /// Parses the reply to a replica's introduction: `+OK`, or `+OK id bytes`.
    pub(super) fn of_reply(reply: &[u8]) -> Option<Branch> {
        let text = std::str::from_utf8(reply).ok()?.strip_prefix("+OK ")?;
        let (id, bytes) = text.split_once(' ')?;
        Some(Branch { id: id.to_owned(), bytes: bytes.parse().ok()? })
    }
}

/// Writes the part of this server's stream behind the branch to a file in `dir`, as far as it is kept,
/// and logs that. Nothing happens without such a part.
pub(super) fn keep(replication: &Replication, position: &Position, branch: &Branch, member: &Membership) {
    if position.id != branch.id || position.offset <= branch.bytes {
        return;
    }
    let surplus = position.offset - branch.bytes;
    let path =
        replication.core.settings().dir.join(format!("unacknowledged-{}-{}.aof", member.epoch, member.node));
    match write(replication, branch.bytes, position.offset, &path) {
        Ok(0) => log::warn!(
            "This node has {surplus} bytes of writes that the new primary lacks. They are dropped: the \
             replication backlog does not have them any more"
        ),
        Ok(written) => log::warn!(
            "This node has {surplus} bytes of writes that the new primary lacks. {written} bytes were \
             written to {}, as commands, before they are dropped",
            path.display()
        ),
        Err(error) => log::warn!(
            "This node has {surplus} bytes of writes that the new primary lacks. They are dropped: {} cannot \
             be written: {error}",
            path.display()
        ),
    }
}

/// Returns the number of bytes written; zero: the first one is not kept any more.
fn write(replication: &Replication, from: u64, to: u64, path: &Path) -> io::Result<u64> {
    if !is_kept(&replication.stream(), from) {
        return Ok(0);
    }
    let mut at = from;
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    while at < to {
        let mut piece = Vec::new();
        {
            let stream = replication.stream();
            let Some(backlog) = stream.backlog().filter(|backlog| backlog.has(at)) else { break };
            let most = PIECE.min((to - at) as usize);
            backlog.slices(at, most).iter().for_each(|slice| piece.extend_from_slice(slice));
        }
        if piece.is_empty() {
            break;
        }
        file.write_all(&piece)?;
        at += piece.len() as u64;
    }
    file.sync_all()?;
    Ok(at - from)
}

/// A part from the middle of a command on would be of no use.
fn is_kept(stream: &Stream, from: u64) -> bool {
    stream.backlog().is_some_and(|backlog| backlog.has(from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Single;

    #[test]
    fn branches_are_read() {
        let id = "a".repeat(40);
        let branch = Branch { id: id.clone(), bytes: 17 };
        assert_eq!(Branch::of_reply(format!("+OK {id} 17").as_bytes()), Some(branch));
        for reply in ["+OK", "+OK ", "+OK x", "+OK x y", "-ERR x"] {
            assert_eq!(Branch::of_reply(reply.as_bytes()), None, "{reply}");
        }
    }

    #[test]
    fn the_part_behind_the_branch_is_written() {
        let state = Single::new(&[]);
        state.stream().keep();
        let id = state.stream().history.id.clone();
        state.stream().append(b"*1\r\n$4\r\nPING\r\n");
        let bytes = state.stream().offset();
        state.stream().append(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n");
        let position = Position { id: id.clone(), offset: state.stream().offset(), db: 0 };
        let member = Membership { node: "n".into(), epoch: 7, ..Membership::default() };
        let path = state.core.settings().dir.join("unacknowledged-7-n.aof");
        keep(&state, &position, &Branch { id: "other".into(), bytes }, &member);
        keep(&state, &position, &Branch { id: id.clone(), bytes: position.offset }, &member);
        assert!(!path.exists(), "there is nothing to be kept");
        keep(&state, &position, &Branch { id, bytes }, &member);
        assert_eq!(std::fs::read(&path).expect("written"), b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n");
        std::fs::remove_file(path).expect("it is there");
    }
}
