//! Transcripts of geo commands.

use crate::testing::{World, check};

#[test]
fn positions_are_found_and_stored() {
    check(
        "
        > GEOADD sicily 13.361389 38.115556 Palermo 15.087269 37.502669 Catania   < :2
        > GEODIST sicily Palermo Catania km                                      < \"166.2742\"
        > GEOSEARCH sicily FROMLONLAT 15 37 BYRADIUS 200 km ASC                  < [\"Catania\", \"Palermo\"]
        > GEOSEARCH sicily FROMMEMBER Palermo BYBOX 100 100 km                   < [\"Palermo\"]
        > GEORADIUS sicily 15 37 100 km STORE a STORE b                          < :1
        > EXISTS a b                                                             < :1
        > ZRANGE b 0 -1                                                          < [\"Catania\"]
        > GEOSEARCHSTORE c sicily FROMLONLAT 15 37 BYRADIUS 200 km               < :2
        > GEOADD sicily 181 0 nowhere      < -ERR invalid longitude,latitude pair 181.000000,0.000000
        ",
    );
}

/// Valkey 9.1 gave the replies.
#[test]
fn errors_name_what_is_missing() {
    check(
        r#"
        > GEOADD g 13 38 Palermo                            < :1
        > GEOSEARCH g FROMMEMBER x BYRADIUS a km            < -ERR member x does not exist
        > GEOSEARCH g FROMMEMBER "x\ny\x00z" BYBOX 1 1 km     < -ERR member x y does not exist
        > GEORADIUSBYMEMBER g x 1 km                        < -ERR member x does not exist
        > GEOSEARCHSTORE d g FROMMEMBER x BYRADIUS 1 km     < -ERR member x does not exist
        > GEOSEARCH none FROMMEMBER x BYRADIUS 1 km         < []
        > GEOSEARCH g FROMLONLAT 1 2 ASC COUNT 1
        < -ERR exactly one of BYRADIUS, BYBOX and BYPOLYGON can be specified for GEOSEARCH
        > GEOSEARCH g BYRADIUS 1 km ASC ASC ASC
        < -ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for GEOSEARCH
        "#,
    );
}

/// The cost of a member is the number of the polygon's sides, so both numbers decide whether the search takes
/// long.
#[test]
fn polygons_of_many_corners_are_offloaded() {
    let mut world = World::new();
    for member in 0..100 {
        world.run(&format!("GEOADD places {} 10.5 m{member}", 10.4 + f64::from(member) / 1_000.0));
    }
    for (corners, is_worth_offloading) in [(4, false), (1_000, false), (10_000, true)] {
        let mut line = format!("GEOSEARCH places BYPOLYGON {corners}");
        for corner in 0..corners {
            let (sine, cosine) = (std::f64::consts::TAU * f64::from(corner) / f64::from(corners)).sin_cos();
            line += &format!(" {:.6} {:.6}", 10.5 + cosine, 10.5 + sine);
        }
        let before = world.server.offload.total();
        assert_eq!(world.run(&line).matches("\"m").count(), 100);
        assert_eq!(world.server.offload.total() > before, is_worth_offloading, "{corners} corners");
    }
}
