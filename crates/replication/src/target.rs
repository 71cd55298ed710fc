//! The server that the link follows, and how far it has come.

/// The address of another server, as REPLICAOF gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub host: String,
    pub port: u16,
}

/// The name of the process that hands its data over to this process, in place of a host.
pub(super) const PREDECESSOR: &str = "predecessor";

impl Target {
    /// The process that hands its data over to this process; see [`super::handover`].
    pub(super) fn predecessor() -> Target {
        Target { host: PREDECESSOR.into(), port: 0 }
    }

    pub(super) fn is_predecessor(&self) -> bool {
        *self == Target::predecessor()
    }

    /// No server: this one is a replica whose primary is not known.
    pub(super) fn nobody() -> Target {
        Target { host: String::new(), port: 0 }
    }

    pub(super) fn is_nobody(&self) -> bool {
        *self == Target::nobody()
    }
}

/// The state of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// There is no primary.
    None,
    Connect,
    Connecting,
    Handshake,
    Transfer,
    Connected,
}

impl Phase {
    /// The name in the reply to ROLE.
    pub fn name(self) -> &'static str {
        match self {
            Phase::None => "none",
            Phase::Connect => "connect",
            Phase::Connecting => "connecting",
            Phase::Handshake => "handshake",
            Phase::Transfer => "sync",
            Phase::Connected => "connected",
        }
    }

    pub(super) fn of(number: u8) -> Phase {
        use Phase::*;
        [None, Connect, Connecting, Handshake, Transfer, Connected][usize::from(number)]
    }
}
