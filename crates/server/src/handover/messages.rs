//! What the two processes send each other, in MessagePack. Structures travel as maps by name, and fields that
//! a later program adds have defaults, so that programs of different versions understand each other.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use evenkeel_net::channel::Channel;
use evenkeel_store::PassedKeyspace;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::ClientState;
use super::keeper::Keeper;

/// The version of the messages. A successor refuses any other.
pub(super) const FORMAT: u32 = 1;

/// From the predecessor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToSuccessor {
    /// With the socket over which the successor follows the stream, that of the keeper if there is another
    /// than the predecessor, and the file of the memory if `Begin::memory` is there.
    Begin(Box<Begin>),
    /// With the sockets, in the same order.
    Listeners(Vec<String>),
    /// With the sockets, in the same order.
    Clients(Vec<ClientState>),
    /// All listeners and clients have been sent.
    State(Box<State>),
    /// The predecessor serves nobody any more, and has released its files.
    Commit,
    /// The same, with the data, if the successor takes their memory over.
    CommitData(Box<PassedKeyspace>),
}

/// [`ToSuccessor::Clients`] without a copy of the states.
#[derive(Serialize)]
pub(super) enum ClientsToSend<'c> {
    Clients(Vec<&'c ClientState>),
}

/// From the successor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToPredecessor {
    /// It can serve with the settings, and takes the memory of the data over. One that does not says nothing:
    /// it needs a copy.
    Mapped,
    /// It has the data, and follows the stream.
    Ready { version: String },
    /// It has all sessions.
    Adopted,
    /// It serves from now on.
    Serving,
    /// It cannot take over, for this reason.
    Refused(String),
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Begin {
    pub(super) format: u32,
    pub(super) version: String,
    pub(super) keeper: Keeper,
    pub(super) run_id: String,
    /// The secret of the hash function of keys and members.
    pub(super) hash_secret: [u64; 2],
    /// The time from which deadlines in tables count.
    pub(super) start_ms: u64,
    /// The layout of the data in memory, by [`evenkeel_store::LAYOUT_HASH`].
    pub(super) layout: String,
    /// The place of the memory in which the data lie, if a successor can take it over: the first address, and
    /// the number of chunks.
    pub(super) memory: Option<(u64, u64)>,
    pub(super) directives: Vec<Directive>,
    /// The commands that `rename-command` names, and their names.
    pub(super) renamed: Vec<(ByteBuf, ByteBuf)>,
    /// The users, a line each.
    pub(super) users: ByteBuf,
    /// The scripts, and whether each may be pushed out.
    pub(super) scripts: Vec<(ByteBuf, bool)>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Directive {
    pub(super) name: String,
    pub(super) value: ByteBuf,
    pub(super) is_default: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct State {
    /// The last id that a client has got.
    pub(super) last_client: u64,
    /// The last snapshot, in seconds since the Unix epoch, and the changes since.
    pub(super) last_save_s: u64,
    pub(super) changes: u64,
    /// The append-only file goes on.
    pub(super) has_log: bool,
    /// The server's own primary.
    pub(super) primary: Option<(String, u16)>,
    /// CLIENT PAUSE: whether all commands wait, and the end in milliseconds since the Unix epoch.
    pub(super) pause: Option<(bool, u64)>,
    /// In cluster mode the map, in the form of its file; otherwise empty.
    pub(super) cluster: String,
}

pub(super) fn send(
    channel: &Channel,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = rmp_serde::to_vec_named(message).map_err(io::Error::other)?;
    channel.send(&bytes, descriptors)
}

pub(super) fn receive<T: DeserializeOwned>(channel: &Channel) -> io::Result<(T, Vec<OwnedFd>)> {
    let (bytes, descriptors) = channel.receive()?;
    let message = rmp_serde::from_slice(&bytes)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    Ok((message, descriptors))
}
