//! Per command, the data that access control needs, derived from the command table once.

use std::sync::OnceLock;

use bitflags::bitflags;

use evenkeel_command::keys::Marks;
use evenkeel_command::specs::{self, ChannelArgs, DatabaseArgs, Find};
use evenkeel_command::table::table;
use evenkeel_command::{Args, Id, Keys, LockScope, Spec};

/// The categories in the order of ACL CAT, as rules write them.
pub const CATEGORIES: &[&str] = specs::CATEGORIES;

/// A category, as its index in the list.
#[derive(Clone, Copy)]
pub struct Category(usize);

impl Category {
    /// Returns the category of this name, without the `@` and in any case.
    pub fn named(name: &[u8]) -> Option<Category> {
        CATEGORIES.iter().position(|one| one.as_bytes()[1..].eq_ignore_ascii_case(name)).map(Category)
    }

    pub(super) fn name(self) -> &'static str {
        CATEGORIES[self.0]
    }

    pub fn has(self, id: Id) -> bool {
        of(id).categories & 1 << self.0 != 0
    }

    /// Returns its commands and subcommands, in the order of the table.
    pub fn commands(self) -> impl Iterator<Item = Id> {
        table().ids().filter(move |id| self.has(*id))
    }
}

bitflags! {
    /// Kinds of access to a key.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Need: u8 {
        const READ = 1 << 0;
        const WRITE = 1 << 1;
    }
}

impl Need {
    /// Reads the words of a key specification. A command that only checks whether a key exists needs no
    /// permission for it.
    fn of(flags: &str) -> Need {
        flags.split(' ').fold(Need::empty(), |need, word| match word {
            "access" => need | Need::READ,
            "insert" | "delete" | "update" => need | Need::WRITE,
            _ => need,
        })
    }
}

/// Kinds of access to the keys of a command.
#[derive(Clone, Copy)]
enum KeyNeeds {
    None,
    /// The same access to each key, wherever the row finds it.
    Each(Need),
    /// The arguments decide.
    Varied,
}

struct Row {
    categories: u32,
    keys: KeyNeeds,
    channels: ChannelArgs,
    databases: DatabaseArgs,
    /// The command concerns the data of its client's database.
    is_on_current: bool,
    /// Only with arguments does it concern data itself.
    only_with_arguments: bool,
    /// Number of rows behind this row that are its subcommands.
    subcommands: usize,
}

fn rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| table().rows().iter().map(|row| Row::of(row)).collect())
}

fn of(id: Id) -> &'static Row {
    &rows()[id.index()]
}

impl Row {
    fn of(row: &'static Spec) -> Row {
        let own = specs::categories(row);
        let bit = |(at, name): (usize, &&str)| u32::from(own.contains(name)) << at;
        let categories = CATEGORIES.iter().enumerate().map(bit).sum();
        let (keys, channels, databases) = (needs(row), specs::channels(row), specs::databases(row));
        let has_keys = !matches!(keys, KeyNeeds::None);
        let is_on_data = own.iter().any(|name| matches!(*name, "@keyspace" | "@read" | "@write"));
        // SELECT and SWAPDB are in none of these categories, or name all that they use.
        let is_on_current = has_keys || is_on_data && databases == DatabaseArgs::None;
        // The conditions of EXEC are on keys; its commands are checked one by one.
        let only_with_arguments = matches!(row.lock_scope, LockScope::Queue);
        Row {
            categories,
            keys,
            channels,
            databases,
            is_on_current,
            only_with_arguments,
            subcommands: row.subcommands,
        }
    }
}

fn needs(row: &Spec) -> KeyNeeds {
    let specs: Vec<_> = specs::key_specs(row).into_iter().filter(|spec| spec.is_of_keys()).collect();
    match specs.as_slice() {
        [] => KeyNeeds::None,
        [one] => {
            let is_fixed = one.in_call.is_none() && one.keyword.is_empty();
            match one.find {
                Find::Range { .. } | Find::Counted { .. } | Find::HalfAfter(_) if is_fixed => {
                    KeyNeeds::Each(Need::of(one.flags))
                }
                _ => KeyNeeds::Varied,
            }
        }
        _ => KeyNeeds::Varied,
    }
}

/// Returns the rows of a command's subcommands.
pub(super) fn subcommands(id: Id) -> impl Iterator<Item = usize> {
    id.index() + 1..id.index() + 1 + of(id).subcommands
}

/// Returns the index of a call's first key that is not `allowed`.
pub(super) fn refused_key(id: Id, args: &Args<'_>, allowed: impl Fn(&[u8], Need) -> bool) -> Option<usize> {
    let row = table().row(id);
    let mut refused = None;
    match of(id).keys {
        KeyNeeds::None => {}
        KeyNeeds::Each(need) => each_key(&row.keys, args, |index| {
            if refused.is_none() && !allowed(args.at(index), need) {
                refused = Some(index);
            }
        }),
        KeyNeeds::Varied => {
            let mut said = Marks::of(args);
            let is_well_formed = specs::for_each_key(row, args, |index, flags| {
                said.add(index);
                if refused.is_none() && !allowed(args.at(index), Need::of(flags)) {
                    refused = Some(index);
                }
            });
            if !is_well_formed {
                return None; // the call has no keys, and the handler will report why
            }
            // Keys that the command can reach beyond its specification need every permission.
            each_key(&row.keys, args, |index| {
                if refused.is_none() && !said.has(index) && !allowed(args.at(index), Need::all()) {
                    refused = Some(index);
                }
            });
        }
    }
    refused
}

fn each_key(keys: &Keys, args: &Args<'_>, mut key: impl FnMut(usize)) {
    // The key's database is checked by itself.
    keys.for_each(args, 0, 1, |index, _| key(index));
}

/// The database of a command's client, and the number of databases.
#[derive(Clone, Copy, Debug)]
pub struct Databases {
    pub current: u32,
    pub count: u32,
}

/// Returns the index of a call's first argument that names a database which is not `allowed`; zero for its
/// client's database, or for one of all databases.
pub(super) fn refused_database(
    id: Id,
    args: &Args<'_>,
    databases: Databases,
    allowed: impl Fn(u32) -> bool,
) -> Option<usize> {
    let row = of(id);
    let is_refused = |at: &usize| args.database(*at, databases.count).is_ok_and(|db| !allowed(db));
    match row.databases {
        DatabaseArgs::None => None,
        DatabaseArgs::All => (0..databases.count).any(|db| !allowed(db)).then_some(0),
        _ => row.databases.indices(args, databases.count).into_iter().find(is_refused),
    }
    .or_else(|| {
        let is_on_current = row.is_on_current && (args.len() > 1 || !row.only_with_arguments);
        (is_on_current && !allowed(databases.current)).then_some(0)
    })
}

/// Returns the indices of the channels that need a permission, and whether they are patterns.
pub(super) fn channels(id: Id, args: &Args<'_>) -> (std::ops::Range<usize>, bool) {
    match of(id).channels {
        ChannelArgs::None => (0..0, false),
        ChannelArgs::First => (1..args.len().min(2), false),
        ChannelArgs::All => (1..args.len(), false),
        ChannelArgs::Patterns => (1..args.len(), true),
    }
}
