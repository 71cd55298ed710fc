//! Identities of nodes and shards: 20 random bytes, written as 40 hexadecimal digits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The text of an identity is not 40 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadId;

impl fmt::Display for BadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an identity is 40 lower-case hexadecimal digits")
    }
}

impl std::error::Error for BadId {}

fn parse(text: &str) -> Result<[u8; 20], BadId> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        _ => Err(BadId),
    };
    let text: &[u8; 40] = text.as_bytes().try_into().map_err(|_| BadId)?;
    let mut bytes = [0; 20];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Ok(bytes)
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 20]);

        impl $name {
            /// An identity of these random bytes.
            pub fn new(bytes: [u8; 20]) -> $name {
                $name(bytes)
            }

            pub fn bytes(self) -> [u8; 20] {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<$name, BadId> {
                parse(text).map($name)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id! {
    /// The identity of a node: a server process with its data.
    NodeId
}
id! {
    /// The identity of a shard: a primary and its replicas.
    ShardId
}
id! {
    /// The identity of a move of slots.
    MigrationId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_read_back() {
        let id = NodeId::new(std::array::from_fn(|at| (at * 13) as u8));
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.to_string().len(), 40);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "00", &"0".repeat(39), &"0".repeat(41), &"A".repeat(40), &"g".repeat(40)] {
            assert_eq!(text.parse::<ShardId>(), Err(BadId), "{text:?}");
        }
    }
}
