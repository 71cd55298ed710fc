//! squid before a slow origin.

use std::time::Duration;

use super::loads::fetch;
use super::{expect_cause, expect_none};
use crate::corpus;
use crate::squid::Squid;
use crate::stage::{self, stage};

fn with(origin: &str) -> Option<(Squid, corpus::Program, corpus::Clients)> {
    let squid = Squid::start()?;
    let origin = corpus::start(origin, stage::ALL);
    let path = format!("http://127.0.0.1:{}/", origin.port());
    let clients = fetch(squid.port, &path, 3, Duration::from_millis(2));
    Some((squid, origin, clients))
}

#[test]
fn a_slow_origin_is_the_first_finding() {
    let _stage = stage();
    let Some((squid, origin, _clients)) = with("slow-origin") else { return };
    let words = [&format!("127.0.0.1:{}", origin.port()), "(cases-"];
    expect_cause("squid, a slow origin", squid.pid(), "R22", &words);
}

#[test]
#[ignore = "long"]
fn a_fast_origin_is_no_finding() {
    let _stage = stage();
    let Some((squid, _origin, _clients)) = with("origin") else { return };
    expect_none("squid, a fast origin", squid.pid(), "R22");
}
