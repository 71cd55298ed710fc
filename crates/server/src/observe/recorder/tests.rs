use super::*;

#[test]
fn every_group_of_commands_is_a_family() {
    let rows = evenkeel_command::table::table().rows();
    for row in rows {
        assert!(FAMILIES.iter().any(|(group, _)| *group == row.group), "{}", row.name);
    }
}

#[test]
fn times_of_day() {
    assert_eq!(time_of_day(1_764_450_192_048), "21:03:12.048 UTC");
}

#[test]
fn arguments_are_shown_as_ascii_and_cut() {
    assert_eq!(shown(b"a\x00\xff\n"), "a\\x00\\xff\\n");
    assert_eq!(cut("x".repeat(500)).len(), 123);
}
