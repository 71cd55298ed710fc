//! The form of a set (OBJECT ENCODING): that of Redis after the same history.
//!
//! A set begins as an `intset` or, if the first member is no integer or there are too many, as a `listpack`
//! or a `hashtable`. Each form may turn into a later form, and none back. The form is a name; the actual
//! representation of a set does not follow it.

use evenkeel_resp::number::parse_i64;
use evenkeel_store::collection::{Collection, Set};

use evenkeel_config::Settings;

pub(super) const INTSET: u8 = 0;
pub(super) const LISTPACK: u8 = 1;
pub(super) const HASHTABLE: u8 = 2;

/// The maximum of each form, by the settings.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    intset_members: u64,
    listpack_members: u64,
    /// Bytes of a member.
    listpack_value: usize,
}

impl Limits {
    pub(super) fn of(settings: &Settings) -> Limits {
        /// Redis keeps no more in an intset, whatever the setting is.
        const INTSET_MEMBERS_MAX: u64 = 1 << 30;
        Limits {
            intset_members: (settings.set_max_intset_entries as u64).min(INTSET_MEMBERS_MAX),
            listpack_members: settings.set_max_listpack_entries as u64,
            listpack_value: settings.set_max_listpack_value,
        }
    }

    /// Returns the form of a set to which `count` members, beginning with `first`, are about to be added.
    #[inline]
    pub(super) fn before(&self, form: u8, set: &Set, first: &[u8], count: u64) -> u8 {
        match form {
            INTSET if count > self.intset_members => {
                if set.is_empty() && count <= self.listpack_members {
                    LISTPACK
                } else {
                    HASHTABLE
                }
            }
            INTSET if set.is_empty() && parse_i64(first).is_none() => {
                if count <= self.listpack_members {
                    LISTPACK
                } else {
                    HASHTABLE
                }
            }
            LISTPACK if count > self.listpack_members => HASHTABLE,
            form => form,
        }
    }

    /// Returns the form after adding a member that was missing.
    #[inline]
    pub(super) fn after(&self, form: u8, set: &Set, member: &[u8]) -> u8 {
        match form {
            HASHTABLE => HASHTABLE,
            INTSET if set.is_packed() || parse_i64(member).is_some() => {
                if set.len() <= self.intset_members {
                    INTSET
                } else {
                    HASHTABLE
                }
            }
            _ if set.len() > self.listpack_members || member.len() > self.listpack_value => HASHTABLE,
            // Integers go into a listpack as texts, which may be too long for it.
            INTSET if !set.iter().all(|member| member.len() <= self.listpack_value) => HASHTABLE,
            _ => LISTPACK,
        }
    }

    /// Returns the form of a set that was computed from other sets.
    pub(super) fn of_result(&self, set: &Set) -> u8 {
        if set.len() > self.intset_members.max(self.listpack_members) {
            return HASHTABLE;
        }
        if set.is_packed() || set.iter().all(|member| parse_i64(&member).is_some()) {
            return if set.len() <= self.intset_members { INTSET } else { HASHTABLE };
        }
        if self.fits_listpack(set) { LISTPACK } else { HASHTABLE }
    }

    /// Whether a set, whatever its form, would be a listpack if it were made anew.
    pub(super) fn fits_listpack(&self, set: &Set) -> bool {
        set.len() <= self.listpack_members && set.iter().all(|member| member.len() <= self.listpack_value)
    }
}
