use super::clamp;

#[test]
fn ranges_are_clamped_to_the_length() {
    for (start, end, expected) in [
        (0, -1, Some((0, 4))),
        (1, 2, Some((1, 2))),
        (-2, 100, Some((3, 4))),
        (-100, -100, Some((0, 0))),
        (0, -100, Some((0, 0))),
        (-100, -101, None),
        (3, 2, None),
        (5, 9, None),
        (i64::MIN, i64::MAX, Some((0, 4))),
        (i64::MAX, i64::MIN, None),
    ] {
        assert_eq!(clamp(start, end, 5), expected, "{start} {end}");
    }
    assert_eq!(clamp(0, -1, 0), None);
}
