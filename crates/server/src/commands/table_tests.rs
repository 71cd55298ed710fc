//! The table of all commands.

use super::install;
use evenkeel_command::LockScope;
use evenkeel_command::table::*;

#[test]
fn every_name_finds_its_row_in_any_case() {
    install();
    let table = table();
    for (index, row) in table.rows().iter().enumerate() {
        for name in [row.name.to_string(), row.lower_name()] {
            assert_eq!(table.find_full(name.as_bytes()).map(Id::index), Some(index), "{name}");
        }
    }
    for unknown in
        ["", "GETX", "CLIENT|", "|", "CLIENT|NOPE", "averyveryveryverylongname", "\u{0}", "GET\u{0}"]
    {
        assert_eq!(table.find_full(unknown.as_bytes()), None, "{unknown:?}");
    }
}

#[test]
fn commands_can_be_renamed_and_removed() {
    install();
    let pair = |old: &str, new: &str| (old.as_bytes().to_vec(), new.as_bytes().to_vec());
    let long = "a_name_that_is_longer_than_sixteen";
    let renames = [pair("get", "Fetch"), pair("ping", ""), pair("CONFIG", "tune"), pair("tune", long)];
    let (before, after) = (table(), renamed(&renames));
    let id = |table: &Table, name: &str| table.find(name.as_bytes());
    for name in ["get", "ping", "config", "tune", ""] {
        assert_eq!(id(after, name), None, "{name}");
    }
    assert_eq!(id(after, "FETCH"), id(before, "get"));
    assert_eq!(id(after, "echo"), id(before, "echo"));
    let config = id(after, &long.to_uppercase()).expect("renamed twice");
    assert_eq!(after.row(config).name, "CONFIG");
    assert!(after.find_sub(after.row(config), b"get").is_some());
}

#[test]
fn rows_are_consistent() {
    install();
    for row in table().rows() {
        assert_eq!(row.name, row.name.to_ascii_uppercase());
        let names_keys = matches!(
            row.lock_scope,
            LockScope::Keys | LockScope::KeysUnless(_) | LockScope::Script(_) | LockScope::Queue
        );
        assert_eq!(!row.keys.is_none(), names_keys, "{}", row.name);
        let subs = table().subcommands(row);
        assert!(subs.iter().all(|sub| sub.name.starts_with(&format!("{}|", row.name))));
    }
}
