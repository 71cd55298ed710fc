//! The reasons for which the store, or its content, cannot be used.

use std::fmt;

/// A reason for which the store, or its content, cannot be used. Each text names the key or the setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// No endpoint answers.
    Unreachable { reason: String },
    /// The store answered a request with an error.
    Answer { code: u64, reason: String },
    /// The store does not accept the user or the password.
    Password { user: String },
    /// The store asks for a user, or the user may not use the keys.
    Permission { prefix: String, reason: String },
    /// The store is full, and accepts no changes.
    NoSpace,
    /// A value cannot be understood.
    Document { key: String, reason: String },
    /// The keys were written by a version whose format this one does not know.
    Format { key: String, found: u64 },
    /// The keys belong to another cluster than the node does.
    OtherCluster { key: String, found: String, expected: String },
    /// The store has forgotten changes: it was restored from a backup, or is another store.
    WentBack { reason: String },
    /// A setting cannot be used.
    Setting { name: &'static str, reason: String },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Unreachable { reason } => write!(f, "The cluster's store is out of reach: {reason}"),
            StoreError::Answer { code, reason } => {
                write!(f, "The cluster's store answers with error {code}: {reason}")
            }
            StoreError::Password { user } => {
                write!(f, "The cluster's store does not accept user '{user}' with the given password")
            }
            StoreError::Permission { prefix, reason } => {
                write!(f, "The cluster's store does not let the node use the keys of '{prefix}': {reason}")
            }
            StoreError::NoSpace => f.write_str(
                "The cluster's store is full (alarm NOSPACE): it accepts no changes until it is compacted \
                 and the alarm is disarmed",
            ),
            StoreError::Document { key, reason } => {
                write!(f, "The value of key '{key}' is not valid: {reason}")
            }
            StoreError::Format { key, found } => {
                write!(f, "Key '{key}' says format {found}; this version knows format {FORMAT} only")
            }
            StoreError::OtherCluster { key, found, expected } => {
                write!(f, "Key '{key}' belongs to cluster {found}, but this node to cluster {expected}")
            }
            StoreError::WentBack { reason } => write!(
                f,
                "The cluster's store has forgotten changes ({reason}): was it restored from a backup? This \
                 node serves nothing until it is started again"
            ),
            StoreError::Setting { name, reason } => write!(f, "The setting {name} cannot be used: {reason}"),
        }
    }
}

impl std::error::Error for StoreError {}

/// The format of the keys and values.
pub const FORMAT: u64 = 1;
